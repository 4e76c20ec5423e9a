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
    TASK,
    Key,
    batch_of,
    count_of,
    entry_of,
    first_name,
    is_batch,
    is_minted,
    name_of_receipt,
    parts_of_entry,
    parts_of_scheduled,
    retry_name,
    retry_of,
    retry_tag,
    write_id_of_scheduled,
)
from limpet.lease import State
from limpet.queue.api import Policy
from limpet.queue.decide import attempts_of, cancelled, claimed, task_receipt
from limpet.queue.durable import (
    asks_again,
    is_copy,
    is_retry,
    life_of,
    life_of_receipt,
    life_said,
    may_have_steps,
    next_scratch,
    origin_of,
    woken,
)
from limpet.queue.entry import (
    DURABLE_SCHEMA,
    NOTHING,
    Content,
    ControlRecord,
    Ended,
    ForeignTask,
    Receipt,
    SignalRecord,
    StepRecord,
    Storage,
    TaskRecord,
    is_of,
    new_task,
    read_task,
    task_name,
    value_bytes,
)
from limpet.queue.inspect import Inspection, next_life
from limpet.store.api import Absent, Blob, Match

CANCELLED = "cancelled"
MAY_RUN = "may still run its handler, and if that succeeds, the task has completed after all"
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
    record = seen.value if seen is not None else None
    if record is not None and batch:
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
                life=life_of(entry, n, content, batch=batch),
            )
            storage.write_receipt(entry, keys.completed_of(f"{entry}.{n}"), done, batch=True)
    durable = {*record.durable} if record is not None else {*()}
    keeps = not batch and may_have_steps(record, content, durable, 0, epoch=storage.epoch)
    receipt = _receipt(
        storage,
        "cancelled",
        entry if batch else content.ids[0],
        f"{CANCELLED}: {record.label} {MAY_RUN}" if record is not None and record.contested else CANCELLED,
        count=len(content.ids),
        payload=NOTHING if batch else msgspec.Raw(content.payloads[0]),
        pushed_at=content.pushed_at,
        retries=content.retries,
        life=None if batch else life_of(entry, 0, content, batch=False),
        origin=origin_of(keys, entry, 0, content, batch=False) if keeps else None,
    )
    stands = storage.write_receipt(entry, keys.failed_of(entry), receipt, batch=batch)
    failed = record.failed if record is not None else ()
    # The steps of a single task stay for a retry. A batch is not retried, but for its tasks that failed before.
    drops = batch and bool(durable.difference(failed))
    storage.close(entry, batch=batch, steps=drops, keep=failed)
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
            life=life_of(entry, n, content, batch=batch),
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
        receipt, name = seen.value, name_of_receipt(key)
        part = retry_of(name)
        number, tag = (part[1] + 1, part[2]) if part else (1, "")
        if receipt.retried_as:  # its name was taken when it was retried before
            tag = (retry_of(entry_of(receipt.retried_as)) or ("", 0, ""))[2]
        task = self._place_retry(key, seen, number, tag, from_scratch=from_scratch)
        if task is None:
            # A retry of another life has that name, for as long as that life lasts.
            tag = retry_tag(life_of_receipt(key, receipt))
            noted = msgspec.structs.replace(receipt, retried_as=retry_name(first_name(receipt.id), number, tag))
            seen = self._storage.receipt(key).swap(seen, noted)  # so that a second call takes it too
            task = self._place_retry(key, seen, number, tag, from_scratch=from_scratch)
        if task is None:
            raise Conflict(f"the name of a retry of {receipt.id!r} is taken", hint="push its payload again")
        self._storage.ring()
        retried = msgspec.structs.replace(receipt, state="retried", retried_as=task.id)
        self._storage.journal.ended(name, False, key, retried)
        self._storage.receipt(key).attempt(seen, retried)
        if task.schema == DURABLE_SCHEMA or (from_scratch and receipt.origin):
            self._drop_steps(name)
        return task.id

    def _drop_steps(self, name: str) -> None:
        """Remove the recorded steps of a task that was retried. Those of a task of a batch that has not ended stay, for
        the lease may not know that it has failed: it would run again.

        Cost: for a task of a batch 1 HEAD; 2 LISTs, 1 DELETE each, in bulk.
        """
        part = batch_of(name)
        if part is None or not self._storage.exists(self._keys.tasks(part[0], batch=True)):
            self._storage.drop_steps_of(*part or (name, 0))

    def _place_retry(
        self, key: Key, seen: Versioned[Receipt], number: int, tag: str, *, from_scratch: bool
    ) -> TaskRecord | None:
        """Push a retry of that number and tag, unless it was pushed before; None if another life has that name."""
        receipt, name = seen.value, name_of_receipt(key)
        life = life_of_receipt(key, receipt)
        entry = retry_name(first_name(name), number, tag)
        keeps = bool(receipt.origin) and not from_scratch
        task = new_task(
            retry_name(first_name(receipt.id), number, tag),
            bytes(receipt.payload),
            pushed_at=self._runtime.wall(),
            write_id=self._runtime.new_id(),
            retries=receipt.retries + 1,
            life=next_scratch(life, receipt.retries + 1) if from_scratch else life,
            epoch=self._storage.epoch,
            has_steps=keeps and self._copy_steps(name, entry, life),
        )
        if self._place(entry, task) or self._is_retry_of(entry, receipt, life):
            return task
        return None

    def _is_retry_of(self, entry: str, receipt: Receipt, life: str) -> bool:
        """Whether the task that has a name, pending or ended, is a retry of the failed one that has this receipt.

        Cost: 1 to 3 GETs.
        """
        with suppress(Missing, Corrupt):
            content = self._storage.content(entry, batch=False)
            says = bool(content.life or content.origin)
            named = life_of(entry, 0, content, batch=False) if says else ""
            return is_retry(named, content.pushed_at, receipt, life)
        for key in (self._keys.failed_of(entry), self._keys.completed_of(entry)):
            ended = self._storage.read_receipt(key)
            if ended is not None:
                named = life_of_receipt(key, ended) if ended.life or ended.origin else ""
                return is_retry(named, ended.pushed_at, receipt, life)
        return False

    def _copy_steps(self, name: str, entry: str, life: str) -> bool:
        """Copy the recorded steps of a failed task to its retry, and the signals to it, before that is pushed.

        Returns whether there are any. A gather at the end in which a task had not completed is left out: that task may
        have been retried.
        Cost: 2 LISTs, 1 GET and 1 PUT for each; for each of another life that is replaced 1 GET, 1 HEAD and 1 PUT more.
        Crash: a second call copies the rest; what no task has is swept.
        """
        old, n = batch_of(name) or (name, 0)
        numbers = self._storage.steps_of(old, n)
        copies = {self._keys.step(entry, 0, number): key for number, key in numbers.items()}
        before = f"{self._keys.signals_of(old)}/{n}."
        for key in self._storage.signals_of(old, n):
            copies[Key(f"{self._keys.signals_of(entry)}/0.{key.removeprefix(before)}")] = key
        blobs = self._store.get_many(copies.values())
        steps: dict[int, StepRecord] = {}
        for number, key in numbers.items():
            with suppress(Corrupt, Unsupported):
                steps[number] = self._storage.decoded_step(old, n, number, blobs[key]).value
        left_out = {numbers[number] for number in asks_again(steps)} if len(steps) == len(numbers) else set[Key]()
        copied = False
        for copy, key in sorted(copies.items()):
            blob = blobs[key]
            if isinstance(blob, LimpetError):
                raise blob
            if key in left_out or not is_of(life_said(blob.data), life):
                continue
            copied = True
            try:
                self._store.put(copy, blob.data, when=Absent())
            except Conflict:
                self._replace_other(copy, blob, entry, life)
        return copied

    def _replace_other(self, copy: Key, blob: Blob, entry: str, life: str) -> None:
        """Replace what has the name of a copied step, if it is of another life and no task of that name waits."""
        stored = self._store.get(copy)
        if is_copy(stored.data, blob.data, life) or self._storage.exists(self._keys.tasks(entry, batch=False)):
            return
        self._store.put(copy, blob.data, when=Match(stored.version))

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
        life = self._life_of_waiting(id_, entry, n)
        wall, label = self._runtime.wall(), self._runtime.label
        record = SignalRecord(name=name, at=wall, label=label, value=msgspec.Raw(data), life=life)
        outcome = storage.put_first(storage.signal(entry, n, name), record)
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

    def _life_of_waiting(self, id_: str, entry: str, n: int) -> str | None:
        """The life of a task that is pending or scheduled; None if several pushes of its id are scheduled.

        A role that may not list cannot tell whether a task is scheduled.
        Raises: Missing if there is none.   Cost: 1 GET for a pending task, 1 LIST per 1,000 delayed pushes for others.
        """
        batch = is_batch(entry)
        for looks_again in (False, True):
            with suppress(Missing):
                return life_of(entry, n, self._storage.content(entry, batch=batch), batch=batch)
            try:
                later = [] if looks_again else self._inspect.scheduled(entry)
            except Denied:
                later = []
            if later:
                return write_id_of_scheduled(later[0]) if len(later) == 1 else None
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
                record = msgspec.structs.replace(record, state=State.FREE)  # nobody has held it
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
            life=task.life or task.write_id,
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
            part = parts_of_scheduled(stat.key)
            if part is not None and (self._storage.journal.travels or not is_minted(part[1])):
                self._cancel_scheduled(part[1], stat.key)
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
    readable = receipt.raw is None or bytes(receipt.payload) != bytes(NOTHING)
    return receipt.count == 1 and not is_batch(receipt.id) and readable
