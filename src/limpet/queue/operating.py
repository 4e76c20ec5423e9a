"""What operators do with a queue: retry, cancel, signal, pause, purge, sweep, adopt."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from limpet.kernel import records
from limpet.kernel.cell import Cell, Lost, Replaced, Unclear, Versioned, Won
from limpet.kernel.drop import Dropper, DropReport, being_dropped
from limpet.kernel.errors import Conflict, Corrupt, Denied, Invalid, LimpetError, Missing, Unsupported
from limpet.kernel.keys import (
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
from limpet.kernel.lease import HeldLease, Renewer, State
from limpet.kernel.lease.decide import is_live, look_interval_s
from limpet.kernel.records import NAME_MAX
from limpet.kernel.store.api import Absent, Blob, Match
from limpet.kernel.store.sources import FileSource
from limpet.kernel.waiting import attempts
from limpet.queue.adopt import Adopter, QueueAdoptReport
from limpet.queue.api import FAILED_BY_COMMAND, Policy
from limpet.queue.claim import EntryClaim
from limpet.queue.decide import cancelled, claimable, claimed, clean_text, waits_left
from limpet.queue.drop import QueueTarget
from limpet.queue.durable import (
    asks_again,
    awaited_signal,
    is_copy,
    is_retry,
    life_of,
    life_of_receipt,
    life_said,
    next_scratch,
    woken,
)
from limpet.queue.entry import (
    DURABLE_SCHEMA,
    NOTHING,
    ControlRecord,
    Ended,
    EntryLease,
    ForeignTask,
    Receipt,
    SignalRecord,
    StepRecord,
    TaskRecord,
    encoded_payload,
    is_of,
    new_task,
    read_task,
    task_name,
    value_bytes,
)
from limpet.queue.finish import CANCELLED, finish_cancelled, reject_entry, unclaimed_receipt
from limpet.queue.inspect import Inspection
from limpet.queue.push import Pusher
from limpet.queue.results import next_life, plain_id
from limpet.queue.sweep import Sweeper


@dataclass(frozen=True, slots=True)
class SignalSent:
    """What became of a signal: whether it was the `first` of its name, and whether the task waits for it now."""

    first: bool
    awaited: bool


class Operating(Inspection):
    """The methods of a queue that change it for operators."""

    policy: Policy
    _decoder: msgspec.json.Decoder[Any]
    announce_drop: Callable[[bool], object] = staticmethod(lambda dropping: None)
    """Says in limpet.json that the queue is being dropped, or is no more."""
    _pusher: Pusher
    _renewer: Renewer
    _payload_type: Any
    _sweeper: Sweeper
    _ask_control_at_s: float

    def retry(
        self,
        id: str | int | None = None,
        *,
        all: bool = False,
        where: str | None = None,
        since_s: float | None = None,
        from_scratch: bool = False,
        dry_run: bool = False,
    ) -> list[str]:
        """Cost: each 1 GET + a push + 1 PUT; for all, 1 LIST per 1,000 more. For a durable task 4 LISTs, and 1 GET,
        1 PUT and 1 DELETE for each recorded step and each signal more; for one whose workers died 2 LISTs.

        Crash: the new life is there before the receipt says so, so a second call finds it (H1).
        """
        if (id is None) is not all:
            raise Invalid("say which task to retry, or all=True")
        if id is None:
            since = None if since_s is None else self.storage.exact_now() - timedelta(seconds=since_s)
            failures = self.failures(where=where, since=since)
            chosen = [(key, seen) for key, seen in failures if _has_payload(seen.value)]
            if dry_run:
                return [seen.value.id for _, seen in chosen]
            return [self._retry(key, seen, from_scratch=from_scratch) for key, seen in chosen]
        if where is not None or since_s is not None:
            raise Invalid("where and since_s choose among all failed tasks", hint="leave the id out, and say all=True")
        key = self._keys.failed_of(entry_of(id := plain_id(id)))
        seen = self.storage.receipt(key).read()
        if seen is None or self.completed(id, gone=True) is not None:
            raise Missing(f"there is no failed task {id!r}", hint="`limpet queue ls --failed` shows them")
        if seen.value.state == "retried":
            return [next_life(id, seen.value.retried_as)] if seen.value.retried_as else []
        if not _has_payload(seen.value):
            kept = f"its bytes are kept in {seen.value.raw}" if seen.value.raw else "push its payloads again"
            raise Invalid(f"{id!r} cannot be retried: its receipt has no payload", hint=kept)
        return [id if dry_run else self._retry(key, seen, from_scratch=from_scratch)]

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
            seen = self.storage.receipt(key).swap(seen, noted)  # so that a second call takes it too
            task = self._place_retry(key, seen, number, tag, from_scratch=from_scratch)
        if task is None:
            raise Conflict(f"the name of a retry of {receipt.id!r} is taken", hint="push its payload again")
        self.storage.ring()
        retried = msgspec.structs.replace(receipt, state="retried", retried_as=task.id)
        self.storage.journal.ended(name, False, key, retried)
        self.storage.receipt(key).attempt(seen, retried)
        if task.schema == DURABLE_SCHEMA or (from_scratch and receipt.origin):
            self._drop_steps(name)
        return task.id

    def _drop_steps(self, name: str) -> None:
        """Remove the recorded steps of a task that was retried. Those of a task of a batch that has not ended stay, for
        the lease may not know that it has failed: it would run again.

        Cost: for a task of a batch 1 HEAD; 2 LISTs, 1 DELETE each, in bulk.
        """
        part = batch_of(name)
        if part is None or not self.storage.exists(self._keys.tasks(part[0], batch=True)):
            self.storage.drop_steps_of(*part or (name, 0))

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
            caller=receipt.caller or "",
            parent=receipt.parent or "",
            epoch=self.storage.epoch,
            has_steps=keeps and self._copy_steps(name, entry, life),
        )
        if self._pusher.place(entry, task) or self._is_retry_of(entry, receipt, life):
            return task
        return None

    def _is_retry_of(self, entry: str, receipt: Receipt, life: str) -> bool:
        """Whether the task that has a name, pending or ended, is a retry of the failed one that has this receipt.

        Cost: 1 to 3 GETs.
        """
        with suppress(Missing, Corrupt):
            content = self.storage.content(entry, batch=False)
            says = bool(content.life or content.origin)
            named = life_of(entry, 0, content, batch=False) if says else ""
            return is_retry(named, content.pushed_at, receipt, life)
        for key in (self._keys.failed_of(entry), self._keys.completed_of(entry)):
            ended = self.storage.read_receipt(key)
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
        numbers = self.storage.steps_of(old, n)
        copies = {self._keys.step(entry, 0, number): key for number, key in numbers.items()}
        before = f"{self._keys.signals_of(old)}/{n}."
        for key in self.storage.signals_of(old, n):
            copies[Key(f"{self._keys.signals_of(entry)}/0.{key.removeprefix(before)}")] = key
        blobs = self._store.get_many(copies.values())
        steps: dict[int, StepRecord] = {}
        for number, key in numbers.items():
            with suppress(Corrupt, Unsupported):
                steps[number] = self.storage.decoded_step(old, n, number, blobs[key]).value
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
        if is_copy(stored.data, blob.data, life) or self.storage.exists(self._keys.tasks(entry, batch=False)):
            return
        self._store.put(copy, blob.data, when=Match(stored.version))

    def cancel(self, id: str | int) -> bool:
        """Cost: 1 PUT (1 GET + 1 PUT if it is claimed), 1 GET, 1 PUT, 2 DELETEs."""
        entry = entry_of(id := plain_id(id))
        if batch_of(id):
            raise Invalid(f"{id!r} is part of a batch, which is cancelled as a whole", hint="cancel the batch's entry")
        if self.storage.ended(entry):
            return False
        if self._swap_to_cancelled(entry):
            return finish_cancelled(self.storage, entry, batch=is_batch(entry))
        later = self.scheduled(entry)
        if not later:
            raise Missing(f"there is no task {id!r} waiting")
        for key in later:
            self._end_scheduled(entry, key, "cancelled", CANCELLED)
        return True

    def fail(self, id: str | int, error: str = FAILED_BY_COMMAND) -> bool:
        """Claim the entry by the rule of every contender, except that its wait does not count, and give the verdict.

        If its worker has not renewed its lease in time, the lease is watched for a third of `ttl_s` first.
        Cost: 1 GET, 1 PUT, 1 GET, 2 HEADs, 1 PUT, 2 DELETEs; for one task of a batch 1 PUT in place of the DELETEs. For
        a delayed push 2 GETs, 1 HEAD, 1 LIST per 1,000 of them, 1 PUT and 1 DELETE.
        Crash: as that of a worker: the claim runs out, and a receipt that is there ends the task.
        """
        part = batch_of(id := plain_id(id))
        entry, n = part or (entry_of(id), 0)
        if part is None and is_batch(entry):
            raise Invalid(f"{id!r} is a batch", hint=f"name one of its tasks, {id}.0 say, or cancel the batch")
        claim = self._claim_to_end(id, entry, n, batch=part is not None)
        if claim is None:
            later = self.scheduled(entry)
            for key in later:
                self._end_scheduled(entry, key, "failed", error)
            return bool(later) or self._no_such_task(id)
        with claim:
            return n in claim.state.open and claim.fail(n, clean_text(error))

    def _no_such_task(self, id_: str) -> bool:
        """False if a task has ended.   Raises: Missing for one that is nowhere."""
        if self.receipt(id_, gone=True) is None:
            raise Missing(f"there is no task {id_!r} waiting", hint="it was never pushed, or its receipt has expired")
        return False

    def _claim_to_end(self, id_: str, entry: str, n: int, *, batch: bool) -> EntryClaim | None:
        """The claim of an entry that no worker holds, in which task `n` waits no more; None if it does not wait.

        Raises: Conflict while a worker holds it.
        """
        storage, runtime = self.storage, self._runtime
        cell = storage.lease(entry)
        seen, watch_s = cell.read(), 0.0
        for _ in attempts(runtime, pause_s=lambda _: watch_s):
            if watch_s:
                seen = cell.read()
            if seen is None and not storage.exists(self._keys.tasks(entry, batch=batch)):
                return None
            record, waits, since_s = None, dict[int, float](), 0.0
            if seen is not None and seen.modified is not None:
                record, now = seen.value, storage.exact_now()
                if record.state is State.CANCELLED:
                    return None
                if watch_s := self._watch_s(id_, entry, seen, now):
                    continue
                since_s = max(0.0, (now - seen.modified).total_seconds())
                waits = waits_left(record, modified=seen.modified, now=now)
            owner, label, wall = runtime.owner, runtime.label, runtime.wall()
            taken = claimed(
                record,
                entry=entry,
                worker_id=owner,
                label=label,
                policy=self.policy,
                wall=wall,
                waits={m: wait_s for m, wait_s in waits.items() if m != n},
                since_s=since_s,
            )
            sent_at_s = runtime.elapsed_s()
            match cell.attempt(seen, taken):
                case Won() as won:
                    lease = HeldLease(cell, won.seen, runtime, sent_at_s=sent_at_s)
                    return self._opened(entry, lease, batch=batch)
                case Replaced(_, now_) | Lost(now_) | Unclear(now_):
                    seen = now_
        raise Conflict(f"other processes keep changing the lease of {entry}", hint="try again")

    def _watch_s(self, id_: str, entry: str, seen: Versioned[EntryLease], now: datetime) -> float:
        """For how long to watch a lease until it may be taken. Zero for one that no worker holds.

        Raises: Conflict while a worker holds it.
        """
        record, modified, wall = seen.value, seen.modified, self._runtime.wall()
        assert modified is not None
        unchanged_s = self.storage.watch.unchanged_s(self._keys.lease(entry), seen.version)
        if (
            record.state is State.FREE
            or claimable(record, modified=modified, unchanged_s=unchanged_s, now=now, wall=wall).take
        ):
            return 0.0
        if is_live(record, modified=modified, now=now):
            held = f"task {id_!r} cannot be failed: a worker at {record.label} holds it"
            raise Conflict(held, hint="wait, or cancel it")
        return look_interval_s(record.ttl_s)

    def _opened(self, entry: str, lease: HeldLease[EntryLease], *, batch: bool) -> EntryClaim | None:
        """The claim, unless its entry had ended before; what is left of that is removed."""
        try:
            content = self.storage.content(entry, batch=batch)
        except Missing:
            self.storage.drop_lease(entry)
            return None
        if self.storage.ended(entry):
            self.storage.close(entry, batch=batch)  # H5: it ended; only its end was not finished
            return None
        return EntryClaim(self.storage, self.policy, self._decoder, self._renewer, lease, content, batch=batch)

    def signal(self, id: str | int, name: str, value: Any = None, *, early: bool = False) -> bool:
        return self.send_signal(id, name, value, early=early).first

    def send_signal(
        self, id: str | int, name: str, value: Any = None, *, early: bool = False, sender: str = ""
    ) -> SignalSent:
        """Put the signal, then wake the task if it waits for it.

        A task that suspends itself has looked for the signal before; if it came in between, the first look finds it.
        A role that may not write leases only rings: the workers then look at the tasks that wait.
        `sender`: who sends it; by default this process.
        Cost: 2 GETs, 1 PUT, 1 HEAD; 1 PUT more, and that of a ring, if the task waits for it, and 1 GET if it does not.
        Crash: the signal is there, or it is not. A task that waits for it finds it within a minute.
        """
        part = batch_of(id := plain_id(id))
        entry, n = part or (entry_of(id), 0)
        storage = self.storage
        data = value_bytes(value, "the value of a signal")
        storage.check_steps()
        life = self._life_of_waiting(id, entry, n)
        lease = storage.lease(entry)
        seen = lease.read()
        if not early and (awaited := awaited_signal(seen.value if seen else None, n)) not in (None, name):
            raise Invalid(
                f"task {id!r} does not wait for the signal {name!r}: it waits for {awaited!r}",
                hint=f"send {awaited!r}; one that is meant for a later wait is sent with --early, or early=True",
            )
        wall, label = self._runtime.wall(), (sender or self._runtime.label)[:NAME_MAX]
        record = SignalRecord(name=name, at=wall, label=label, value=msgspec.Raw(data), life=life)
        outcome = storage.put_first(storage.signal(entry, n, name), record)
        if awaited_signal(seen.value if seen else None, n) != name:
            seen = lease.read()  # it may have suspended itself before the signal was there
        waits = awaited_signal(seen.value if seen else None, n) == name
        if storage.exists(self._keys.failed_of(task_name(entry, n, batch=part is not None))):
            # It ended before the signal was there, as far as is known: a retry may not have copied it.
            raise Missing(f"task {id!r} has failed", hint="retry it, and send the signal to its next life")
        if waits:
            self._wake_for(lease, seen, n, name)
        return SignalSent(first=isinstance(outcome, Won | Replaced), awaited=waits)

    def _wake_for(self, lease: Cell[EntryLease], seen: Versioned[EntryLease] | None, n: int, name: str) -> None:
        """Wake task `n` of an entry, if it still waits for that signal.   Cost: 1 PUT, and that of a ring."""
        for _ in attempts(self._runtime, pause_s=0):
            if seen is None:
                return
            since_s = 0.0 if seen.modified is None else (self._store.now() - seen.modified).total_seconds()
            after = woken(seen.value, n, name, max(0.0, since_s))
            if after is None:
                return
            try:
                written = lease.attempt(seen, after)
            except Denied:
                self.storage.wake(self._keys.name)
                return
            match written:
                case Won() | Replaced():
                    self.storage.wake(self._keys.name)
                    return
                case Lost(now) | Unclear(now):
                    seen = now

    def _life_of_waiting(self, id_: str, entry: str, n: int) -> str | None:
        """The life of a task that is pending or scheduled; None if several pushes of its id are scheduled.

        A role that may not list cannot tell whether a task is scheduled.
        Raises: Missing if there is none.   Cost: 1 GET for a pending task, 1 LIST per 1,000 delayed pushes for others.
        """
        batch = is_batch(entry)
        for looks_again in (False, True):
            with suppress(Missing):
                return life_of(entry, n, self.storage.content(entry, batch=batch), batch=batch)
            try:
                later = [] if looks_again else self.scheduled(entry)
            except Denied:
                later = []
            if later:
                return write_id_of_scheduled(later[0]) if len(later) == 1 else None
        raise Missing(f"there is no task {id_!r} waiting", hint="it has ended, or was never pushed")

    def _swap_to_cancelled(self, entry: str) -> bool:
        """Mark the entry as cancelled, so that no worker takes it; False if there is no such entry."""
        cell = self.storage.lease(entry)
        seen = cell.read()
        for _ in attempts(self._runtime, pause_s=0):
            if seen is None and not self.storage.exists(self._keys.tasks(entry, batch=is_batch(entry))):
                return False
            if seen is not None and seen.value.state is State.CANCELLED:
                return True
            record = seen.value if seen else None
            if record is None:
                owner, label, wall = self._runtime.owner, self._runtime.label, self._runtime.wall()
                record = claimed(None, entry=entry, worker_id=owner, label=label, policy=self.policy, wall=wall)
                record = msgspec.structs.replace(record, state=State.FREE)  # nobody has held it
            match cell.attempt(seen, cancelled(record)):
                case Won() | Replaced():
                    return True
                case Lost(now) | Unclear(now):
                    seen = now
        raise Conflict(f"other processes keep changing the lease of {entry}", hint="try again")

    def _end_scheduled(self, entry: str, key: Key, state: Ended, why: str) -> None:
        """End a delayed push. The receipt comes first: from then on no promotion can make the entry pending."""
        try:
            task = read_task(self._store.get(key).data, what=key)
        except Missing:
            return
        receipt = unclaimed_receipt(
            self.storage,
            state,
            task.id,
            why,
            payload=task.payload,
            pushed_at=task.pushed_at,
            retries=task.retries,
            life=task.life or task.write_id,
            caller=task.caller or None,
            parent=task.parent or None,
        )
        self.storage.write_receipt(entry, self._keys.failed_of(entry), receipt, batch=False)
        self._store.delete(key)

    def pause(self) -> None:
        """Workers notice within a few seconds.   Cost: 1 GET + 1 PUT."""
        self._set_paused(True)

    def resume(self) -> None:
        """Cost: 1 GET + 1 PUT."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        """Pause or resume the queue. A control record that cannot be read is replaced."""

        changes = False

        def change(record: ControlRecord | None) -> ControlRecord | None:
            nonlocal changes
            before = record or ControlRecord()
            if before.dropping is not msgspec.UNSET:
                raise being_dropped("queue", self._keys.name)
            changes = before.paused != paused
            return msgspec.structs.replace(before, paused=paused) if changes else None

        try:
            self.storage.control().update(change)
        except Corrupt:
            self._store.delete(self._keys.control)
            self.storage.control().update(change)
        self._ask_control_at_s = float("-inf")
        if changes and not paused:
            self.storage.ring()

    def drop(self, *, dry_run: bool = False, progress: Callable[[str], object] = lambda said: None) -> DropReport:
        """Remove the queue with all that it holds, receipts too, and everything that Limpet knows of its ids.

        All tasks that were pushed before the drop are removed. A task that is pushed during the drop is removed with
        them, or it stays and creates the queue again. A task that is pushed after the drop has returned stays, also
        under an id that was used before. Workers go on, and serve the queue again after the next push. A worker that
        lost its claim before the drop and ends its task after it writes nothing, unless its process slept for minutes
        between two requests. `dry_run` returns the report and removes nothing. `progress` gets a line for each wait:
        7 s for workers to notice, if tasks wait; in a bucket two minutes for late deletes, if tasks had own ids.
        Raises: Conflict while a task runs, and nothing was changed; Held while another process drops it; Missing;
        Unsupported for a queue that is exchanged with other nodes. After any other error, drop it again.
        Cost: 3 LISTs per 1,000 objects, 1 GET for each lease, 1 DELETE an object, in bulk; 10 PUTs and 10 GETs.
        Crash: the queue is paused and cannot be resumed; a second drop goes on.
        """
        self.check_own()
        dropper = Dropper(self._store, self._runtime, QueueTarget(self.storage, self.announce_drop), self.storage.watch)
        report = dropper.look() if dry_run else dropper.run(progress=progress)
        self._ask_control_at_s = float("-inf")
        return report

    def purge(self) -> int:
        """A user's id gets a receipt, so that it stays used.

        Minted names are never used again, and get none; on a supervised node all get one: only a receipt reaches the
        other nodes.
        Cost: 1 LIST per 1,000 objects + 2 DELETEs an entry, 1 PUT for a user's id.
        """
        gone = 0
        for stat in [*self._store.list(self._keys.pending)]:
            entry, kind = parts_of_entry(stat.key, self._keys.pending) or ("", "")
            if kind not in (TASK, BATCH):
                continue
            if is_minted(entry) and not self.storage.journal.travels:
                self._store.delete(stat.key)
                self.storage.drop_lease(entry)
                gone += count_of(entry)
            else:
                gone += self._purge_named(entry, batch=kind == BATCH)
        for stat in [*self._store.list(self._keys.scheduled)]:
            part = parts_of_scheduled(stat.key)
            if part is not None and (self.storage.journal.travels or not is_minted(part[1])):
                self._end_scheduled(part[1], stat.key, "cancelled", CANCELLED)
            self._store.delete(stat.key)
            gone += 1
        return gone

    def _purge_named(self, entry: str, *, batch: bool) -> int:
        try:
            ended = self._swap_to_cancelled(entry) and finish_cancelled(self.storage, entry, batch=batch)
            return count_of(entry) if ended else 0
        except ForeignTask:
            return 0
        except Corrupt as error:
            reject_entry(self.storage, entry, str(error), batch=batch)
            return 1

    def sweep(self, *, retain: bool = True) -> int:
        """Tidy up after crashes: finish half-done ends, drop what lost, and what is older than `retention_s`.

        Workers do this by themselves, one of them once an hour. How many objects went.
        With `retain=False` no receipt goes by its age: for a process that does not know the workers' `retention_s`.
        Cost: 1 LIST per 1,000 objects, 1 DELETE for each that goes, 1 GET for each batch that has large results.
        """
        gone = self._sweeper.sweep()
        if retain:
            gone += self._sweeper.retain()
        return gone + self._sweeper.drop_parts()

    def adopt(self, source: FileSource, *, quiesced: bool = False, in_place: bool = False) -> QueueAdoptReport:
        """Take over the tasks of another program's queue. `in_place`: its files lie in the folder of this one.

        See `queue.adopt.Adopter.take_over`.
        """
        encode = partial(encoded_payload, payload_type=self._payload_type)
        adopter = Adopter(self.storage, self._pusher.place, encode, source, in_place=in_place)
        return adopter.take_over(quiesced=quiesced)

    def check_own(self) -> None:
        """Check, before a worker starts, that these are not the files of another program.

        A sweep would take those that have ended there for receipts, and delete them by their age.
        Raises: Unsupported, if one is the first of its folder, and nothing was swept before.
        Cost: 1 HEAD; before the first sweep 3 LISTs and up to 3 GETs more.
        """
        keys = self.storage.keys
        try:
            if self.storage.exists(keys.sweep):
                return
            firsts = [next(self._store.list(folder), None) for folder in (keys.pending, keys.completed, keys.failed)]
            blobs = self._store.get_many([first.key for first in firsts if first is not None])
        except LimpetError:
            return  # a claim will fail too, and report it
        for key, blob in blobs.items():
            if not isinstance(blob, LimpetError) and records.is_foreign(blob.data):
                raise Unsupported(
                    f"{key} is a file of another program, in the folder of queue {keys.name!r}",
                    hint=f"stop that program, then `limpet queue adopt {keys.name} --quiesced` takes its tasks over",
                )


def _has_payload(receipt: Receipt) -> bool:
    """Whether a receipt says what to run again: not that of unreadable bytes, nor of a whole batch."""
    readable = receipt.raw is None or bytes(receipt.payload) != bytes(NOTHING)
    return receipt.count == 1 and not is_batch(receipt.id) and readable
