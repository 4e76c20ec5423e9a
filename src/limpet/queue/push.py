"""Pushing: the rule by which a name comes to be pending, once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice

import msgspec

from limpet import records
from limpet.errors import Conflict, Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown, Unsupported
from limpet.keys import Key, is_minted, segment
from limpet.queue.api import Pushed
from limpet.queue.records import BATCH_MAX, ENTRY_BYTES_MAX, TaskRecord, batch_bytes, read_task
from limpet.queue.storage import Storage
from limpet.store.api import Absent, Put

__all__ = ["Pusher", "check_id", "due_name", "due_of"]

SENDS_MAX = 4
BACKOFF_S = 0.2
AT_ONCE = 32
DELAY_MAX_S = 366 * 86400.0
EXACT_S = 3600.0
RETRY_MARK = "~"


def check_id(id_: str) -> str:
    """The entry of a user's id.   Raises: Invalid for an id that no name can hold, or of a form that we mint."""
    if not isinstance(id_, str) or RETRY_MARK in id_:
        raise Invalid(f"the task id {id_!r} has a {RETRY_MARK!r}", hint="limpet marks retried tasks with it")
    if is_minted(id_):
        raise Invalid(f"the task id {id_!r} looks like one that limpet makes", hint="prefix it with a word of yours")
    return segment(id_)


def due_name(due: datetime) -> str:
    """A moment as a name that sorts by time."""
    return due.strftime("%Y%m%dT%H%M%SZ")


def due_of(name: str) -> datetime | None:
    """The moment behind such a name; None if it is none."""
    try:
        return datetime.strptime(f"{name}+0000", "%Y%m%dT%H%M%SZ%z")
    except ValueError:
        return None


class Pusher:
    """Puts tasks into one queue."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._store = storage.store
        self._keys = storage.keys
        self._runtime = storage.runtime
        self._exact_at_s: float | None = None

    def push(self, payload: bytes, *, id: str | None, delay_s: float) -> Pushed:
        """One task.   Cost: 1 PUT; with an id 1 PUT + 2 HEADs. Delayed: 1 PUT (with an id + 2 HEADs), and once an hour
        1 PUT + 1 HEAD for the store's clock.
        """
        entry = check_id(id) if id is not None else None
        if not 0 <= delay_s <= DELAY_MAX_S:
            raise Invalid(f"delay_s must be between 0 and {DELAY_MAX_S:g} seconds, not {delay_s:g}")
        write_id = self._runtime.new_id()
        entry = entry or write_id
        task = TaskRecord(
            id=id or entry, payload=msgspec.Raw(payload), pushed_at=self._runtime.wall(), write_id=write_id
        )
        if delay_s:
            return self._schedule(entry, task, delay_s)
        return Pushed(task.id, self.place(entry, task))

    def push_many(self, payloads: Iterable[bytes], *, batch: int) -> list[str]:
        """Many tasks, `batch` to an entry (fewer if they are large).   Raises: OutcomeUnknown.   Cost: 1 PUT an entry.

        Crash: whole entries are there or not.
        """
        if not 1 <= batch <= BATCH_MAX:
            raise Invalid(f"batch must be between 1 and {BATCH_MAX}, not {batch}")
        ids: list[str] = []
        packs = _packed(payloads, batch)
        while some := [*islice(packs, AT_ONCE)]:
            entries = [self._pack(payloads) for payloads in some]
            for put in entries:
                self._storage.journal.pushed(put.key, put.data)
            answers = self._store.put_many(entries)
            for put, payloads_ in zip(entries, some, strict=True):
                if isinstance(answers[put.key], LimpetError):
                    self._settle(put.key, put.data)
                entry = put.key.rsplit("/", 2)[1]
                ids.extend(f"{entry}.{n}" for n in range(len(payloads_)))
        return ids

    def place(self, entry: str, task: TaskRecord) -> bool:
        """The push rule: put if absent, then look for a receipt in failed/ and then in completed/ (H5, H6).

        Whether the task is now pending by this call. A receipt ends the name: the task is taken back.
        Raises: OutcomeUnknown, after which the same push may be made again.
        Cost: 1 PUT, and for a name that is not minted 2 HEADs.
        """
        key = self._keys.tasks(entry, batch=False)
        data = records.encode(task)
        self._storage.journal.pushed(key, data)
        if not self._settle(key, data, write_id=task.write_id):
            return False
        if is_minted(entry) or not self._storage.ended(entry):
            return True
        self._storage.close(entry, batch=False)
        return False

    def promote(self, *, now: datetime, keys: Iterable[Key]) -> None:
        """Make delayed pushes that are due pending.   Cost: each 1 GET, a push, 1 DELETE.

        Crash: at worst one is pushed twice, which the push rule undoes.
        """
        for key in keys:
            due = due_of(key.rsplit("/", 2)[1])
            if due is not None and due > now:
                return
            try:
                blob = self._store.get(key)
            except Missing:
                continue
            entry = key.rsplit("/", 1)[1].rpartition("@")[0]
            try:
                self.place(entry, read_task(blob.data, what=key))
            except Corrupt as error:
                self._storage.reject(entry, blob.data, str(error), batch=False)
            self._store.delete(key)

    def exact_now(self) -> datetime:
        """The store's clock to within a round trip.   Cost: once an hour 1 PUT + 1 HEAD, else nothing."""
        at_s = self._runtime.elapsed_s()
        if self._exact_at_s is None or at_s - self._exact_at_s > EXACT_S:
            self._exact_at_s = at_s
            return self._store.now(max_age_s=0.0)
        return self._store.now()

    def _schedule(self, entry: str, task: TaskRecord, delay_s: float) -> Pushed:
        if not is_minted(entry) and self._storage.ended(entry):
            return Pushed(task.id, False)
        due = self.exact_now() + timedelta(seconds=delay_s + 1)
        key = self._keys.scheduled_at(due_name(due), entry, task.write_id)
        data = records.encode(task)
        self._storage.journal.pushed(key, data)
        self._settle(key, data, write_id=task.write_id)
        return Pushed(task.id, True)

    def _pack(self, payloads: Sequence[bytes]) -> Put:
        write_id = self._runtime.new_id()
        data = batch_bytes(payloads, pushed_at=self._runtime.wall(), write_id=write_id)
        return Put(self._keys.tasks(f"{write_id}-{len(payloads)}", batch=True), data, Absent())

    def _settle(self, key: Key, data: bytes, *, write_id: str | None = None) -> bool:
        """Put a task that is not there; whether ours is what stands there, or stood there and was finished.

        The name may have been used up while we did not hear: sending the same task again at worst runs it again.
        """
        for sent in range(1, SENDS_MAX + 1):
            try:
                self._store.put(key, data, when=Absent())
                return True
            except (Conflict, OutcomeUnknown) as error:
                unclear: LimpetError = error
            try:
                found = self._store.get(key).data
                return found == data if write_id is None else _pushed_by(found) == write_id
            except Missing:
                entry = key.rsplit("/", 2)[1]
                if is_minted(entry) and self._storage.ended(entry):
                    return True
            except LimpetError as error:
                unclear = error
            self._runtime.sleep(self._runtime.rng.uniform(0.5, 1.0) * BACKOFF_S * sent)
        raise OutcomeUnknown(
            f"whether the push to {key} happened cannot be told ({unclear})", hint="push it again with the same id"
        )


def _pushed_by(data: bytes) -> str | None:
    try:
        return read_task(data, what="the task that stands there").write_id
    except (Corrupt, Unsupported):
        return None


def _packed(payloads: Iterable[bytes], batch: int) -> Iterator[list[bytes]]:
    pack: list[bytes] = []
    size = 0
    for payload in payloads:
        if pack and (len(pack) == batch or size + len(payload) >= ENTRY_BYTES_MAX // 2):
            yield pack
            pack, size = [], 0
        pack.append(payload)
        size += len(payload) + 1
    if pack:
        yield pack
