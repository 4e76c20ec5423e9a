"""How an entry ends without a worker's verdict (it cannot be read, or is cancelled), and how a failed one is retried.

What cannot be read ends in failed/ with the reason, its bytes kept: never lost, never in a loop of crashes (F23).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from limpet.cell import Lost, Replaced, Unclear, Versioned, Won
from limpet.errors import Conflict, Corrupt, Denied, Invalid, LimpetError, Missing, Unsupported
from limpet.keys import (
    BATCH,
    RETRY_MARK,
    TASK,
    Key,
    batch_of,
    count_of,
    entry_of,
    is_batch,
    is_minted,
    name_of_receipt,
    parts_of_entry,
)
from limpet.lease import State
from limpet.queue.api import Policy
from limpet.queue.decide import attempts_of, cancelled, claimed, task_receipt
from limpet.queue.durable import origin_of, woken
from limpet.queue.entry import (
    NOTHING,
    Content,
    ControlRecord,
    Ended,
    ForeignTask,
    Receipt,
    SignalRecord,
    Storage,
    TaskRecord,
    new_task,
    read_task,
    task_name,
    value_bytes,
)
from limpet.queue.inspect import Inspection, next_life
from limpet.store.api import Absent

CANCELLED = "cancelled"
CANCEL_TRIES_MAX = 10


def reject_entry(storage: Storage, entry: str, why: str, *, batch: bool) -> None:
    """End an entry whose task or lease cannot be read, and say so. If only the lease is bad, its tasks can be retried.

    Raises: ForeignTask for one of another program, which is left as it is.
    Cost: 3 GETs, 2 PUTs (for a batch with a bad lease 1 a task more), 2 DELETEs.
    """
    content: Content | None
    try:
        content = storage.content(entry, batch=batch)
    except Missing:
        storage.drop_lease(entry)
        return
    except ForeignTask:
        raise
    except (Corrupt, Unsupported):
        content = None
    raw = _keep_bytes(storage, entry, batch=batch)
    if content is None:
        receipt = _receipt(storage, "failed", entry, why, raw=raw)
        storage.write_receipt(entry, storage.keys.failed_of(entry), receipt, batch=batch)
    else:
        _fail_all(storage, entry, content, why, raw, batch=batch)
    storage.close(entry, batch=batch)
    storage.notices.failed(entry, why, count_of(entry))


def reject_scheduled(storage: Storage, key: Key, why: str) -> None:
    """End a delayed push that cannot be read. Its receipt has another name: a good task of that id may be pending.

    Cost: 1 GET + 2 PUTs.
    """
    name = name_of_receipt(key)
    raw = storage.keys.part(name, storage.runtime.new_id())
    storage.store.put(raw, storage.raw_bytes(key), when=Absent())
    receipt = _receipt(storage, "failed", name, why, raw=raw)
    storage.write_receipt(name, storage.keys.failed_of(name), receipt, batch=False)
    storage.notices.failed(name, why)


def finish_cancelled(storage: Storage, entry: str, *, batch: bool) -> bool:
    """Write the receipt of a cancelled entry and remove the entry; returns whether this call ended it.

    Tasks of a batch that were done before keep their completion.
    Cost: 1 GET, 2 HEADs, 1 GET, 1 PUT, 2 DELETEs; for a batch 1 PUT more for each task that was done.
    """
    keys = storage.keys
    try:
        content = storage.content(entry, batch=batch)
    except Missing:
        storage.drop_lease(entry)
        return False
    if storage.ended(entry):
        storage.close(entry, batch=batch)
        return False
    seen = storage.lease(entry).read()
    if seen is not None and batch:
        record = seen.value
        for n in record.done:
            done = task_receipt(
                record,
                content,
                n,
                "completed",
                attempts=max(1, attempts_of(record, n)),
                wall=storage.runtime.wall(),
                result=record.results.get(n),
                parts=[] if n in record.results else record.parts,
            )
            storage.write_receipt(entry, keys.completed_of(f"{entry}.{n}"), done, batch=True)
    receipt = _receipt(
        storage,
        "cancelled",
        entry if batch else content.ids[0],
        CANCELLED,
        count=len(content.ids),
        payload=NOTHING if batch else msgspec.Raw(content.payloads[0]),
        pushed_at=content.pushed_at,
        retries=content.retries,
    )
    stands = storage.write_receipt(entry, keys.failed_of(entry), receipt, batch=batch)
    durable = {*seen.value.durable} if seen is not None else {*()}
    failed = seen.value.failed if seen is not None else ()
    storage.close(entry, batch=batch, steps=bool(durable.difference(failed)), keep=failed)
    if content.caller:
        storage.wake(content.caller)
    return stands.state == "cancelled"


def _fail_all(storage: Storage, entry: str, content: Content, why: str, raw: str, *, batch: bool) -> None:
    """Write a receipt in failed/ for each task of an entry; for a batch also the one that ends it.

    Each may have recorded steps, which only its lease could tell: a retry looks for them.
    """
    for n, id_ in enumerate(content.ids):
        readable = storage.kept_payload(entry, content.payloads[n]) is None
        payload = msgspec.Raw(content.payloads[n]) if readable else NOTHING
        receipt = _receipt(
            storage,
            "failed",
            id_,
            why,
            raw=raw,
            payload=payload,
            retries=content.retries,
            origin=origin_of(storage.keys, entry, n, content, batch=batch),
        )
        name = task_name(entry, n, batch=batch)
        storage.write_receipt(entry, storage.keys.failed_of(name), receipt, batch=batch)
    if batch:
        count = len(content.ids)
        receipt = _receipt(storage, "completed", entry, why, raw=raw, count=count, failed=[*range(count)])
        storage.write_receipt(entry, storage.keys.completed_of(entry), receipt, batch=True)


def _keep_bytes(storage: Storage, entry: str, *, batch: bool) -> Key:
    """Copy the bytes of the entry's task, then of its lease, into one part object; returns its key."""
    data = b""
    for key in (storage.keys.tasks(entry, batch=batch), storage.keys.lease(entry)):
        try:
            data += storage.raw_bytes(key) + b"\n"
        except Missing:
            continue
    raw = storage.keys.part(entry, storage.runtime.new_id())
    storage.store.put(raw, data, when=Absent())
    return raw


def _receipt(storage: Storage, state: Ended, id_: str, error: str, **about: Any) -> Receipt:
    """A receipt that does not come from a claim; `about` are further fields of it."""
    runtime = storage.runtime
    return Receipt(
        state=state,
        id=id_,
        error=error,
        worker_id=runtime.owner,
        label=runtime.label,
        finished_at=runtime.wall(),
        **about,
    )


class Admin:
    """What operators do with one queue: retry, cancel, pause, purge. `place` pushes a task under a given name."""

    def __init__(
        self, storage: Storage, place: Callable[[str, TaskRecord], bool], inspect: Inspection, policy: Policy
    ) -> None:
        self._storage = storage
        self._store = storage.store
        self._keys = storage.keys
        self._runtime = storage.runtime
        self._place = place
        self._inspect = inspect
        self._policy = policy

    def retry(
        self, id_: str | None, *, all: bool, where: str | None, since_s: float | None, from_scratch: bool = False
    ) -> list[str]:
        """Push failed tasks again under their next id; returns the new ids. See `Queue.retry`."""
        if (id_ is None) is not all:
            raise Invalid("say which task to retry, or all=True")
        if id_ is None:
            since = None if since_s is None else self._storage.exact_now() - timedelta(seconds=since_s)
            failures = self._inspect.failures(where=where, since=since)
            chosen = [(key, seen) for key, seen in failures if _has_payload(seen.value)]
            return [self._retry(key, seen, from_scratch=from_scratch) for key, seen in chosen]
        if where is not None or since_s is not None:
            raise Invalid("where and since_s choose among all failed tasks", hint="leave the id out, and say all=True")
        key = self._keys.failed_of(entry_of(id_))
        seen = self._storage.receipt(key).read()
        if seen is None or self._inspect.completed(id_, gone=True) is not None:
            raise Missing(f"there is no failed task {id_!r}", hint="`limpet queue ls --failed` shows them")
        if seen.value.state == "retried":
            return [next_life(id_, seen.value.retried_as)] if seen.value.retried_as else []
        if not _has_payload(seen.value):
            kept = f"its bytes are kept in {seen.value.raw}" if seen.value.raw else "push its payloads again"
            raise Invalid(f"{id_!r} cannot be retried: its receipt has no payload", hint=kept)
        return [self._retry(key, seen, from_scratch=from_scratch)]

    def _retry(self, key: Key, seen: Versioned[Receipt], *, from_scratch: bool) -> str:
        """First push the retry, then mark the old receipt: a crash in between is repaired by the next call (H1).

        A durable task keeps its recorded steps, and the names of its pushes; not if it starts `from_scratch`.
        """
        receipt = seen.value
        name = name_of_receipt(key)
        life = receipt.retries + 1
        entry = name.rpartition(RETRY_MARK)[0] if receipt.retries else name
        base = receipt.id.rpartition(RETRY_MARK)[0] if receipt.retries else receipt.id
        kept = "" if from_scratch else receipt.origin or ""
        copied = bool(kept) and self._copy_steps(name, f"{entry}{RETRY_MARK}{life}")
        task = new_task(
            f"{base}{RETRY_MARK}{life}",
            bytes(receipt.payload),
            pushed_at=self._runtime.wall(),
            write_id=self._runtime.new_id(),
            retries=life,
            origin=kept,
        )
        self._place(f"{entry}{RETRY_MARK}{life}", task)
        self._storage.ring()
        retried = msgspec.structs.replace(receipt, state="retried", retried_as=task.id)
        self._storage.journal.ended(name, False, key, retried)
        self._storage.receipt(key).attempt(seen, retried)
        if copied or (from_scratch and receipt.origin):
            part = batch_of(name)
            self._storage.drop_steps_of(*part or (name, 0))
        return task.id

    def _copy_steps(self, name: str, entry: str) -> bool:
        """Copy the recorded steps of a failed task to its next life, and the signals to it, before that is pushed.

        Returns whether there are any.

        Cost: 2 LISTs, 1 GET and 1 PUT for each.   Crash: a second call copies the rest; what no task has is swept.
        """
        old, n = batch_of(name) or (name, 0)
        steps = {self._keys.step(entry, 0, number): key for number, key in self._storage.steps_of(old, n).items()}
        before = f"{self._keys.signals_of(old)}/{n}."
        for key in self._storage.signals_of(old, n):
            steps[Key(f"{self._keys.signals_of(entry)}/0.{key.removeprefix(before)}")] = key
        blobs = self._store.get_many(steps.values())
        for copy, key in sorted(steps.items()):
            blob = blobs[key]
            if isinstance(blob, LimpetError):
                raise blob
            with suppress(Conflict):
                self._store.put(copy, blob.data, when=Absent())
        return bool(steps)

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
        for key in later:
            self._cancel_scheduled(entry, key)
        return True

    def signal(self, id_: str, name: str, value: Any) -> bool:
        """Put the signal, then wake the task if it waits for it. See `Queue.signal`.

        A task that suspends itself has looked for the signal before; if it came in between, the first look finds it.
        A role that may not write leases only rings: the workers then look at the tasks that wait.
        """
        part = batch_of(id_)
        entry, n = part or (entry_of(id_), 0)
        storage = self._storage
        data = value_bytes(value, "the value of a signal")
        storage.check_steps()
        self._check_waits(id_, entry)
        wall, label = self._runtime.wall(), self._runtime.label
        record = SignalRecord(name=name, at=wall, label=label, value=msgspec.Raw(data))
        outcome = storage.signal(entry, n, name).attempt(None, record)
        lease = storage.lease(entry)
        seen = lease.read()
        if storage.exists(self._keys.failed_of(task_name(entry, n, batch=part is not None))):
            # It ended before the signal was there, as far as is known: a retry may not have copied it.
            raise Missing(f"task {id_!r} has failed", hint="retry it, and send the signal to its next life")
        for _ in range(CANCEL_TRIES_MAX):
            if seen is None:
                break
            since_s = 0.0 if seen.modified is None else (self._store.now() - seen.modified).total_seconds()
            after = woken(seen.value, n, name, max(0.0, since_s))
            if after is None:
                break
            try:
                written = lease.attempt(seen, after)
            except Denied:
                storage.wake(self._keys.name)
                break
            match written:
                case Won() | Replaced():
                    storage.wake(self._keys.name)
                    break
                case Lost(now) | Unclear(now):
                    seen = now
        return isinstance(outcome, Won | Replaced)

    def _check_waits(self, id_: str, entry: str) -> None:
        """Raises: Missing unless the entry is pending or scheduled. A role that may not list cannot tell the latter."""
        task = self._keys.tasks(entry, batch=is_batch(entry))
        if self._storage.exists(task):
            return
        try:
            later = bool(self._inspect.scheduled(entry))
        except Denied:
            later = False
        if not later and not self._storage.exists(task):  # it may have become pending meanwhile
            raise Missing(f"there is no task {id_!r} waiting", hint="it has ended, or was never pushed")

    def _swap_to_cancelled(self, entry: str) -> bool:
        """Mark the entry as cancelled, so that no worker takes it; False if there is no such entry."""
        cell = self._storage.lease(entry)
        seen = cell.read()
        for _ in range(CANCEL_TRIES_MAX):
            if seen is None and not self._storage.exists(self._keys.tasks(entry, batch=is_batch(entry))):
                return False
            if seen is not None and seen.value.state is State.CANCELLED:
                return True
            record = seen.value if seen else None
            if record is None:
                owner, label, wall = self._runtime.owner, self._runtime.label, self._runtime.wall()
                record = claimed(None, entry=entry, worker_id=owner, label=label, policy=self._policy, wall=wall)
            match cell.attempt(seen, cancelled(record)):
                case Won() | Replaced():
                    return True
                case Lost(now) | Unclear(now):
                    seen = now
        raise Conflict(f"other processes keep changing the lease of {entry}", hint="try again")

    def _cancel_scheduled(self, entry: str, key: Key) -> None:
        """End a delayed push. The receipt comes first: from then on no promotion can make the entry pending."""
        try:
            task = read_task(self._store.get(key).data, what=key)
        except Missing:
            return
        receipt = _receipt(
            self._storage,
            "cancelled",
            task.id,
            CANCELLED,
            payload=task.payload,
            pushed_at=task.pushed_at,
            retries=task.retries,
        )
        self._storage.write_receipt(entry, self._keys.failed_of(entry), receipt, batch=False)
        self._store.delete(key)

    def set_paused(self, paused: bool) -> None:
        """Pause or resume the queue. A control record that cannot be read is replaced."""

        changes = False

        def change(record: ControlRecord | None) -> ControlRecord | None:
            nonlocal changes
            before = record or ControlRecord()
            changes = before.paused != paused
            return msgspec.structs.replace(before, paused=paused) if changes else None

        try:
            self._storage.control().update(change)
        except Corrupt:
            self._store.delete(self._keys.control)
            self._storage.control().update(change)
        if changes and not paused:
            self._storage.ring()

    def purge(self) -> int:
        """Drop all waiting tasks; returns their number. A user's id gets a receipt, so that it stays used.

        Minted names are never used again, and get none; on a supervised node all get one: only a receipt reaches the
        other nodes.
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
                self._cancel_scheduled(stat.key.rsplit("/", 1)[1].rpartition("@")[0], stat.key)
            self._store.delete(stat.key)
            gone += 1
        return gone

    def _purge_named(self, entry: str, *, batch: bool) -> int:
        try:
            ended = self._swap_to_cancelled(entry) and finish_cancelled(self._storage, entry, batch=batch)
            return count_of(entry) if ended else 0
        except ForeignTask:
            return 0
        except Corrupt as error:
            reject_entry(self._storage, entry, str(error), batch=batch)
            return 1


def _has_payload(receipt: Receipt) -> bool:
    """Whether a receipt says what to run again: not that of unreadable bytes, nor of a whole batch."""
    return receipt.count == 1 and (receipt.raw is None or bytes(receipt.payload) != bytes(NOTHING))
