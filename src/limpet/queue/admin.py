"""What operators do to a queue: retry, cancel, pause, purge."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from limpet.cell import Lost, Replaced, Unclear, Versioned, Won
from limpet.errors import Conflict, Corrupt, Invalid, Missing
from limpet.keys import Key, is_minted
from limpet.lease import State
from limpet.queue.api import Policy
from limpet.queue.decide import cancelled, claimed
from limpet.queue.entry import (
    BATCH,
    NOTHING,
    RETRY_MARK,
    TASK,
    Content,
    ControlRecord,
    EntryLease,
    Receipt,
    Storage,
    batch_of,
    count_of,
    entry_of,
    is_batch,
    name_of_receipt,
    new_task,
    parts_of_entry,
    read_task,
)
from limpet.queue.finish import cancelled_receipt, finish_cancelled, reject_entry
from limpet.queue.inspect import Inspection
from limpet.queue.push import Pusher

CANCEL_TRIES_MAX = 10


class Admin:
    """The operator's side of one queue."""

    def __init__(self, storage: Storage, pusher: Pusher, inspect: Inspection, policy: Policy) -> None:
        self._storage = storage
        self._store = storage.store
        self._keys = storage.keys
        self._runtime = storage.runtime
        self._pusher = pusher
        self._inspect = inspect
        self._policy = policy

    def retry(self, id_: str | None, *, all: bool, where: str | None, since_s: float | None) -> list[str]:
        """Push failed tasks again under their next id; returns the new ids. See `Queue.retry`."""
        if (id_ is None) is not all:
            raise Invalid("say which task to retry, or all=True")
        if id_ is None:
            since = None if since_s is None else self._storage.exact_now() - timedelta(seconds=since_s)
            failures = self._inspect.failures(where=where, since=since)
            return [self._retry(key, seen) for key, seen in failures if _has_payload(seen.value)]
        if where is not None or since_s is not None:
            raise Invalid("where and since_s choose among all failed tasks", hint="leave the id out, and say all=True")
        key = self._keys.failed_of(entry_of(id_))
        seen = self._storage.receipt(key).read()
        if seen is None or self._inspect.completed(id_, gone=True) is not None:
            raise Missing(f"there is no failed task {id_!r}", hint="`limpet queue ls --failed` shows them")
        if seen.value.state == "retried":
            return [seen.value.retried_as] if seen.value.retried_as else []
        if not _has_payload(seen.value):
            kept = f"its bytes are kept in {seen.value.raw}" if seen.value.raw else "push its payloads again"
            raise Invalid(f"{id_!r} cannot be retried as it is", hint=kept)
        return [self._retry(key, seen)]

    def _retry(self, key: Key, seen: Versioned[Receipt]) -> str:
        """First the new life, then the mark on the old receipt: a crash in between is found by the next retry (H1)."""
        receipt = seen.value
        name = name_of_receipt(key)
        life = receipt.retries + 1
        entry = name.rpartition(RETRY_MARK)[0] if receipt.retries else name
        base = receipt.id.rpartition(RETRY_MARK)[0] if receipt.retries else receipt.id
        task = new_task(
            f"{base}{RETRY_MARK}{life}",
            bytes(receipt.payload),
            pushed_at=self._runtime.wall(),
            write_id=self._runtime.new_id(),
            retries=life,
        )
        self._pusher.place(f"{entry}{RETRY_MARK}{life}", task)
        retried = msgspec.structs.replace(receipt, state="retried", retried_as=task.id)
        self._storage.journal.ended(name, False, key, retried)
        self._storage.receipt(key).attempt(seen, retried)
        return task.id

    def cancel(self, id_: str) -> bool:
        """Cancel an entry that has not ended; returns whether this call ended it. See `Queue.cancel`."""
        entry = entry_of(id_)
        if batch_of(id_):
            raise Invalid(f"{id_!r} is part of a batch, which is cancelled as a whole", hint="cancel the batch's entry")
        if self._storage.ended(entry):
            return False
        if self._swap_to_cancelled(entry):
            return finish_cancelled(self._storage, entry, batch=is_batch(entry))
        later = self._inspect.scheduled(entry)
        if not later:
            raise Missing(f"there is no task {id_!r} waiting")
        return self._cancel_scheduled(entry, later)

    def _swap_to_cancelled(self, entry: str) -> bool:
        """Mark the entry as cancelled, so that no worker takes it; False if there is no such entry."""
        cell = self._storage.lease(entry)
        seen = cell.read()
        for _ in range(CANCEL_TRIES_MAX):
            if seen is None and not self._storage.exists(self._keys.tasks(entry, batch=is_batch(entry))):
                return False
            if seen is not None and seen.value.state is State.CANCELLED:
                return True
            base = seen.value if seen else self._unclaimed(entry)
            match cell.attempt(seen, cancelled(base)):
                case Won() | Replaced():
                    return True
                case Lost(now) | Unclear(now):
                    seen = now
        raise Conflict(f"the lease of {entry} is swapped all the time", hint="try again")

    def _unclaimed(self, entry: str) -> EntryLease:
        return claimed(
            None,
            entry=entry,
            worker_id=self._runtime.owner,
            label=self._runtime.label,
            policy=self._policy,
            wall=self._runtime.wall(),
        )

    def _cancel_scheduled(self, entry: str, keys: list[Key]) -> bool:
        """The receipt first: from then on no promotion can make the entry pending."""
        for key in keys:
            try:
                task = read_task(self._store.get(key).data, what=key)
            except Missing:
                continue
            content = Content((task.id,), (bytes(task.payload),), task.pushed_at, task.retries, minted=False)
            receipt = cancelled_receipt(self._storage, task.id, content, task.payload, 1)
            self._storage.write_receipt(entry, self._keys.failed_of(entry), receipt, batch=False)
            self._store.delete(key)
        return True

    def set_paused(self, paused: bool) -> None:
        """A record that cannot be read is replaced."""

        def change(record: ControlRecord | None) -> ControlRecord | None:
            before = record or ControlRecord()
            return None if before.paused == paused else msgspec.structs.replace(before, paused=paused)

        try:
            self._storage.control().update(change)
        except Corrupt:
            self._store.delete(self._keys.control)
            self._storage.control().update(change)

    def purge(self) -> int:
        """A user's id gets a receipt, so that it stays used; minted names are never used again.

        On a supervised node all get one: only a receipt reaches the other nodes.
        """
        gone = 0
        for stat in [*self._store.list(self._keys.pending)]:
            entry, kind = parts_of_entry(stat.key, self._keys.pending) or ("", "")
            if kind not in (TASK, BATCH):
                continue
            if is_minted(entry) and not self._storage.journal.travels:
                self._store.delete(stat.key)
                self._storage.drop_lease(entry)
                gone += count_of(entry)
            else:
                gone += self._purge_named(entry, batch=kind == BATCH)
        for stat in [*self._store.list(self._keys.scheduled)]:
            if self._storage.journal.travels:
                self._cancel_scheduled(stat.key.rsplit("/", 1)[1].rpartition("@")[0], [stat.key])
            self._store.delete(stat.key)
            gone += 1
        return gone

    def _purge_named(self, entry: str, *, batch: bool) -> int:
        try:
            ended = self._swap_to_cancelled(entry) and finish_cancelled(self._storage, entry, batch=batch)
            return count_of(entry) if ended else 0
        except Corrupt as error:
            reject_entry(self._storage, entry, str(error), batch=batch)
            return 1


def _has_payload(receipt: Receipt) -> bool:
    """Whether a receipt says what to run again: not that of unreadable bytes, nor of a whole batch."""
    return receipt.count == 1 and (receipt.raw is None or bytes(receipt.payload) != bytes(NOTHING))
