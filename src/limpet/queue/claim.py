"""`EntryClaim`: the tasks of one entry that this process holds, from the claim to the last verdict.

`state` has what is known of them in memory, `storage` their objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

import msgspec

from limpet.kernel.cell import Fence, Versioned
from limpet.kernel.errors import (
    Conflict,
    Corrupt,
    Invalid,
    LeaseLost,
    LimpetError,
    Missing,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from limpet.kernel.keys import Key
from limpet.kernel.lease import HeldLease, Renewer
from limpet.kernel.user_code import ended, short_reason
from limpet.kernel.waiting import attempts, backoff_s
from limpet.queue.api import NO_VERDICT, Policy, apply_error
from limpet.queue.decide import (
    attempt_record,
    attempts_of,
    bare,
    batch_receipt,
    charged,
    clean_text,
    error_of,
    exhausted,
    freed,
    handed_back,
    lists_done,
    progressed,
    task_receipt,
)
from limpet.queue.durable import life_of, may_have_begun, may_have_steps, origin_of
from limpet.queue.entry import (
    DELAY_MAX_S,
    NOTHING,
    Content,
    Ended,
    EntryLease,
    Receipt,
    StepRecord,
    Suspension,
    result_bytes,
    task_name,
)
from limpet.queue.state import ClaimState, StartGroup
from limpet.queue.storage import Storage

DIED = "its worker died, and its attempts are used up"
NO_RECEIPT = "its lease says that it failed, and no receipt says why"
OUTLIVED_S = 3 * 86400.0
"""A claim that ran out so long ago asks whether the entry is still the one that it had."""


class EntryTask:
    """One task of a claim. See `Task` for the verdicts."""

    __slots__ = ("_claim", "_n", "attempt", "payload")

    def __init__(self, claim: EntryClaim, n: int, payload: Any, attempt: int) -> None:
        self._claim = claim
        self._n = n
        self.payload = payload
        self.attempt = attempt

    @property
    def id(self) -> str:
        return self._claim.content.ids[self._n]

    @property
    def key(self) -> str:
        return self._claim.life(self._n)

    @property
    def lost(self) -> bool:
        return self._claim.lost

    @property
    def fence(self) -> Fence | None:
        return self._claim.fence

    @property
    def trace(self) -> str:
        """The `traceparent` of its push; empty if that had none."""
        return self._claim.content.trace

    def done(self, result: Any = None) -> None:
        """Cost: nothing inside a batch; for its last task, or a single one, 1 PUT + 2 DELETEs."""
        self._claim.done(self._n, result)

    def retry(self, after_s: float | None = None, error: str = "", traceback: str | None = None) -> None:
        """Cost: 1 PUT for the whole entry; with the last attempt as `fail`."""
        self._claim.retry(self._n, after_s, error, traceback)

    def fail(self, error: str, traceback: str | None = None) -> None:
        """Cost: 1 PUT, and 2 DELETEs if it ends the entry."""
        self._claim.fail(self._n, error, traceback)

    def suspend(self, wait_s: float, suspension: Suspension) -> None:
        """Cost: 1 PUT for the whole entry."""
        self._claim.suspend(self._n, wait_s, suspension)

    @property
    def place(self) -> tuple[EntryClaim, int]:
        """Its claim, and its number in the entry."""
        return self._claim, self._n


class EntryClaim:
    """One entry, held. Verdicts gather here; the last one ends the entry, and a heartbeat writes them down meanwhile.

    Several threads may run its tasks, each one that it took by `start_next`. `_mutex` guards what has been decided,
    `_writing` the writes of it, one after another; `_mutex` is taken inside `_writing`, never the other way round.

    Crash: tasks without a written verdict run again; none is lost, and only those that were started are charged.
    """

    _ended = False
    _announced = False
    """Whether the journal knows that the entry is held."""
    _hurry = False
    """Whether an end is tried once, and not until the claim ends."""
    _after: Callable[[], None] | None = None

    def __init__(
        self,
        storage: Storage,
        policy: Policy,
        decoder: msgspec.json.Decoder[Any],
        renewer: Renewer,
        lease: HeldLease[EntryLease],
        content: Content,
        *,
        batch: bool,
    ) -> None:
        self.content = content
        self.batch = batch
        self.storage = storage
        self._policy = policy
        self._decoder = decoder
        self._renewer = renewer
        self._lease = lease
        runtime = storage.runtime
        self.state = ClaimState(lease.record, len(content.ids), policy, runtime.elapsed_s())
        self._mutex = runtime.mutex()
        self._writing = runtime.mutex()
        renewer.add(self)

    @property
    def over(self) -> bool:
        """Whether it has ended, or every task has its verdict."""
        return self._ended or not self.state.open

    def on_end(self, call: Callable[[], None]) -> None:
        """Call this once when the claim is over."""
        self._after = call

    @property
    def entry(self) -> str:
        """The name of the entry."""
        return self._lease.name

    @property
    def token(self) -> int:
        return self._lease.token

    @property
    def fence(self) -> Fence:
        """The lock and the token of the entry."""
        return Fence(self._lease.lock, self._lease.token)

    @property
    def held_s(self) -> float:
        """For how long this process has had the claim."""
        return self.storage.runtime.elapsed_s() - self.state.began_s

    @property
    def lost(self) -> bool:
        return self._lease.lost

    @property
    def released(self) -> bool:
        """Whether it has let the entry go for others."""
        return self._lease.released

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[EntryTask]:
        while (task := self._start(beside=True)) is not None:
            yield task

    def start_next(self) -> EntryTask | None:
        """Cost: nothing in a first claim with attempts left, else 1 PUT for all that start at the same time."""
        return self._start(beside=False)

    @property
    def may_start(self) -> bool:
        with self._mutex:
            return not (self._ended or self._lease.lost) and self.state.next_may_start(self._policy)

    def _start(self, *, beside: bool) -> EntryTask | None:
        """Start the next task; None if there is none, or the claim is over. `beside`: whatever else runs."""
        state, lease = self.state, self._lease
        while True:
            with self._mutex:
                at_s = self.storage.runtime.elapsed_s()
                if self._ended or not state.waiting or lease.lost_at(at_s):
                    return None
                if state.running and not beside and not state.next_may_start(self._policy):
                    return None
                n = state.waiting.pop()
                state.running[n] = state.started_s = at_s
                attempts = attempts_of(lease.record, n) + 1
                if not state.by_swap:
                    state.progress.attempts[n] = attempts
            payload = ended(self._decoder.decode, self.content.payloads[n])
            if payload.error is not None:  # the bytes are no JSON, or a user's own type refuses them
                with self._mutex:
                    state.put_back(n)
                self.give_up(n, f"the payload does not fit: {short_reason(payload.error)}", unread=True)
                continue
            if state.by_swap and (not self._charge(n) or self._ended):
                return None  # or it was handed back meanwhile
            return EntryTask(self, n, payload.value, attempts)

    def _attempts(self, n: int) -> int:
        return self.state.progress.attempts.get(n) or attempts_of(self._lease.record, n)

    def __enter__(self) -> EntryClaim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._ended:
            return
        try:
            if error is None or isinstance(error, Exception):
                for n in [*self.state.running]:
                    apply_error(EntryTask(self, n, None, self._attempts(n)), error)
            self._conclude()
        finally:
            self._end()

    def hand_back(self) -> None:
        """Not from a signal handler: a swap of this thread may be under way.

        Cost: 1 PUT. With every verdict in, it ends the entry.
        """
        self._hurry = True
        self._conclude()

    def give_up_exhausted(self) -> bool:
        """Give up the tasks whose attempts are used up, and end an entry that has no other ones.

        Returns whether there are tasks left. If it fails, the claim is let run out, as after a crash.
        Its workers may have died before a heartbeat said that it has steps: a retry looks for them.
        Cost: for each of them a failure.
        """
        record, count = self._lease.record, len(self.content.ids)
        try:
            for n in exhausted(record, count, self._policy):
                before = error_of(record, n, count)
                self.note_durable(n)
                self.give_up(n, f"{DIED} (before that: {before})" if before else DIED)
            self.state.waiting = [n for n in self.state.waiting if n in self.state.open]
            if not self.over:
                return True
            self.hand_back()
        except BaseException:
            self._end()
            raise
        return False

    def renew(self) -> None:
        """Renew, and write down the verdicts so far. Not once a task has run past its time (F16).   Cost: 1 PUT."""
        limit_s = float("inf") if self._policy.timeout_s is None else self._policy.timeout_s
        with self._writing:
            if not self._ended and self.storage.runtime.elapsed_s() - self._running_since_s() <= limit_s:
                self._write_large()
                self._lease.rewrite(self._written)
                if not self._announced:
                    self._announced = True
                    self.storage.journal.held(self.storage.keys, self.entry, self.batch)

    def _running_since_s(self) -> float:
        """When the task that has run longest was started; if none runs, the last one."""
        with self._mutex:
            return min(self.state.running.values(), default=self.state.started_s)

    def done(self, n: int, result: Any) -> None:
        """Verdict: it succeeded. It counts even if the claim was lost meanwhile (H4)."""
        data = None if result is None else result_bytes(result)
        state = self.state
        last = False
        with self._mutex:
            ended = self._ended
            if state.histories is not None:
                state.histories.keep(n, self.life(n))
            if not ended:
                self._check_undecided(n)
                if self.batch:
                    at_s = self.storage.runtime.elapsed_s()
                    state.progress.took[n] = round(at_s - state.running.get(n, at_s), 6)
                last = state.close(n)
                state.progress.done.append(n)
                if data is not None and not state.results.is_large(n, data):
                    state.progress.results[n] = state.results.all[n]
        if ended:
            self._complete_late([n], None if data is None else msgspec.Raw(data))
        elif last:
            self.patiently(self._finish)

    def retry(self, n: int, after_s: float | None, error: str, trace: str | None = None) -> None:
        """Verdict: another attempt, if there is one left."""
        attempts = self._attempts(n)
        if attempts >= self._policy.max_attempts:
            self.fail(n, error or NO_VERDICT, trace)
            return
        if after_s is None:
            after_s = backoff_s(
                self.storage.runtime, attempts, self._policy.backoff_s, longest_s=self._policy.backoff_max_s
            )
        if not after_s >= 0:
            raise Invalid(f"after_s must not be negative, and is {after_s:g}")
        after_s = min(after_s, DELAY_MAX_S)
        with self._mutex:
            if self._ended:
                return
            self._check_undecided(n)
            self.state.running.pop(n, None)
            self.state.progress.due_s[n] = self.storage.runtime.elapsed_s() + after_s
            self._note(n, error, trace)
            all_wait = self.state.all_wait()
        if all_wait:
            self._conclude()

    def suspend(self, n: int, wait_s: float, suspension: Suspension) -> None:
        """Verdict: it goes on in a later claim. It is no attempt: the one that was charged is given back."""
        with self._mutex:
            if self._ended:
                return
            self._check_undecided(n)
            progress, at_s = self.state.progress, self.storage.runtime.elapsed_s()
            progress.attempts[n] = max(0, self._attempts(n) - 1)
            self.state.running.pop(n, None)
            progress.due_s[n] = at_s + min(max(0.0, wait_s), DELAY_MAX_S)
            progress.suspended[n] = suspension, at_s
            all_wait = self.state.all_wait()
        if all_wait:
            self._conclude()

    def note_durable(self, n: int, log: Mapping[int, Versioned[StepRecord]] | None = None) -> None:
        """Task `n` records a step: its steps are removed with the entry. `log`: those that its run knows."""
        with self._mutex:
            if n not in self.state.progress.durable:
                self.state.progress.durable.append(n)
            if log is not None:
                self.state.note_log(n, log)

    def check_held(self) -> None:
        """Return if what was written before this call was written while the entry was ours.

        Raises: LeaseLost; Unavailable.   Cost: as `HeldLease.check_held`.
        """
        self._lease.check_held()

    def _durable(self) -> set[int]:
        return {*self._lease.record.durable, *self.state.progress.durable}

    def life(self, n: int) -> str:
        """The life of task `n`."""
        return life_of(self._lease.name, n, self.content, batch=self.batch)

    def origin(self, n: int) -> str:
        """What the names of the pushes of task `n` are derived from."""
        return origin_of(self.storage.keys, self.entry, n, self.content, batch=self.batch)

    @property
    def may_have_begun(self) -> bool:
        """Whether an earlier attempt, or the task that this one retries, may have recorded steps."""
        return may_have_begun(self.content, token=self.token, epoch=self.storage.epoch)

    def give_up(self, n: int, error: str, *, unread: bool = False) -> None:
        """End a task that is not run: it cannot be read, or its workers died too often. `queue.notices` has it.

        `unread`: its payload may not even be JSON; then its bytes are kept as they are.
        """
        raw = self.storage.kept_payload(self.entry, self.content.payloads[n]) if unread else None
        if self.fail(n, error, raw=raw):
            self.storage.notices.failed(self.content.ids[n], error)

    def fail(self, n: int, error: str, trace: str | None = None, *, raw: Key | None = None) -> bool:
        """Verdict: it failed for good; False if the lease is lost, for then it is not ours to say."""
        with self._writing:
            if self._ended:
                return False
            if not self._still_ours():
                with self._mutex:
                    self.state.spent |= {n}
                    self._note(n, error, trace)
                return False
        self._check_undecided(n)
        receipt = self._receipt(n, "failed", error=error, trace=trace)
        if raw is not None:
            receipt = msgspec.structs.replace(receipt, payload=NOTHING, raw=raw)
        wrote = last = False

        def write() -> None:
            """One step for `hand_back`, which another thread may call: it must not return a task that has failed."""
            nonlocal wrote, last
            with self._writing:
                if self._ended:
                    return
                self._write_receipt(n, receipt)
                with self._mutex:
                    last = self.state.close(n)
                    self.state.progress.due_s.pop(n, None)
                    self.state.progress.failed.append(n)
                wrote = True

        self.patiently(write)
        if last:
            self.patiently(self._finish)
        return wrote

    def _note(self, n: int, error: str, trace: str | None) -> None:
        """Keep the error of an attempt for those who look at the task, and for its receipt."""
        progress = self.state.progress
        if error or trace:
            at, worker = self.storage.runtime.wall(), self._lease.record.label
            progress.errors[n] = attempt_record(self._attempts(n), at=at, worker=worker, error=error, trace=trace)
        if not self.batch:
            progress.error = clean_text(error) or None

    def patiently(self, write: Callable[[], object]) -> None:
        """Write an end; while the store cannot be reached, try again until the claim ends.

        Raises: OutcomeUnknown, Unavailable, if it cannot be reached by then.
        """
        try:
            write()
        except (OutcomeUnknown, Unavailable) as error:
            self._write_again(write, error)

    def _write_again(self, write: Callable[[], object], error: LimpetError) -> None:
        runtime = self.storage.runtime
        at_s = runtime.elapsed_s()
        until_s = at_s + self._lease.valid_for_s()
        for tries in attempts(runtime, None, lambda n: min(backoff_s(runtime, n), until_s - runtime.elapsed_s())):
            if tries > 1:
                try:
                    write()
                    return
                except (OutcomeUnknown, Unavailable) as again:
                    at_s, error = runtime.elapsed_s(), again
            if self._hurry or at_s >= until_s:
                raise error

    def _check_undecided(self, n: int) -> None:
        """Raises: Invalid for a task that has its verdict."""
        if n not in self.state.open or n in self.state.progress.due_s:
            raise Invalid(f"task {self.content.ids[n]!r} has its verdict already", hint="give each task exactly one")

    def _charge(self, n: int) -> bool:
        """Name the task running, with an attempt more, before its handler starts. False: it cannot be said now.

        The first thread that may write does so for all that wait for that: they start together.
        """
        with self._mutex:
            starts = self.state.starts = self.state.starts or StartGroup()
            starts.tasks.append(n)
        try:
            with self._writing:
                with self._mutex:
                    writes = self.state.starts is starts
                    if writes:
                        self.state.starts = None
                if writes:
                    with suppress(Conflict, LeaseLost, OutcomeUnknown, Unavailable):
                        self._write_large()
                        self._lease.rewrite(lambda record: charged(self._written(record), starts.tasks))
                        starts.charged = True
        finally:
            if not starts.charged:
                with self._mutex:
                    self.state.put_back(n)
                    self.state.waiting.clear()  # the rest goes back
        return starts.charged

    def _write_large(self) -> None:
        """Large results come before the swap that counts their tasks as done."""
        self.state.progress.parts.extend(self.state.results.write_large(self.storage, self.entry))

    def _write_ahead(self) -> None:
        """What the end of a claim refers to comes before it."""
        self._write_large()
        if self.state.histories is not None:
            self.state.histories.write(self.storage, self.entry, self.token)

    def _written(self, record: EntryLease) -> EntryLease:
        """The record with what may be written down by now: a task whose large result still lies here is not done."""
        with self._mutex:
            state = self.state
            done = [n for n in state.progress.done if n not in state.results.large]
            running = [] if state.by_swap else [*state.running]
            progress = msgspec.structs.replace(state.progress, done=done, running=running)
            return progressed(record, progress, self.storage.runtime.elapsed_s())

    def _still_ours(self) -> bool:
        """Whether the lease is still ours. Asks the store only if it has expired by this process's clock."""
        if not self._lease.lost:
            return True
        try:
            self._write_large()
            self._lease.rewrite(self._written)
        except LimpetError:
            return False
        return True

    def _finish(self) -> None:
        """Every task has its verdict: the receipt ends the entry.

        Raises: OutcomeUnknown, Unavailable: the verdicts stay, and the end of the block tries again.
        """
        with self._writing:
            self._write_end()

    def _outlived(self) -> bool:
        """Whether this claim ran out so long ago that its entry's name may be that of another life, or its queue was
        dropped since it began: then nothing of it counts. Receipts last for a week at least, and the clock also counts
        time asleep.   Cost: nothing while it holds its lease; then 1 GET, or 2.
        """
        if self._lease.lost and self.storage.dropped_within(self.held_s):
            return True
        if self.content.minted or self._lease.valid_for_s() > -OUTLIVED_S:
            return False
        try:
            return self.storage.content(self.entry, batch=self.batch).write_id != self.content.write_id
        except (Missing, Corrupt, Unsupported):
            return True

    def _write_end(self) -> None:
        if self.storage.runtime.elapsed_s() - self.state.began_s > self._policy.ttl_s / 2 and self._outlived():
            self._end()
        elif self.batch:
            self._finish_batch()
        else:
            record, state = self._lease.record, self.state
            if state.progress.done or record.done:
                if state.histories is not None:
                    state.histories.write(self.storage, self.entry, self.token)
                result = state.results.all.get(0) or record.results.get(0)
                parts = [] if result else record.parts
                self._write_receipt(0, self._receipt(0, "completed", result=result, parts=parts))
            else:
                self._write_missing_receipts()
        if not self._ended:
            self._end()
            self._close()

    def _close(self) -> None:
        """Remove the entry, which a receipt ends. Steps of failed tasks stay, for a retry."""
        record, progress = self._lease.record, self.state.progress
        if record.durable or progress.durable:
            failed = {*record.failed, *progress.failed}
            self.storage.close(self.entry, batch=self.batch, steps=bool(self._durable() - failed), keep=failed)
        else:
            self.storage.close(self.entry, batch=self.batch)
        if self.content.caller:
            self.storage.wake(self.content.caller)

    def _write_missing_receipts(self) -> None:
        """No task goes without a receipt: one that the lease called failed when we took it should have one.

        Cost: 1 LIST, if there are such tasks; 1 PUT for each that has none.
        """
        inherited = self.state.first.failed
        if not inherited:
            return
        written = self.storage.own_receipts(self.storage.keys.failed, self.entry) if self.batch else {*()}
        for n in inherited:
            if n not in written:
                self._write_receipt(n, self._receipt(n, "failed", error=NO_RECEIPT))

    def _finish_batch(self) -> None:
        if not self._still_ours():
            self._end()
            self._complete_late(self.state.progress.done)
            return
        self._write_ahead()
        self._write_missing_receipts()
        record = self._written(self._lease.record)
        own = self.storage.own_receipts(self.storage.keys.completed, self.entry) if record.contested else ()
        wall = self.storage.runtime.wall()
        receipt = batch_receipt(record, self.content, wall=wall, own=own, took=self.state.progress.took)
        key = self.storage.keys.completed_of(self.entry)
        stands = self.storage.write_receipt(self.entry, key, receipt, batch=True)
        self._complete_late([n for n in self.state.progress.done if n in stands.failed])

    def _complete_late(self, tasks: list[int], result: msgspec.Raw | None = None) -> None:
        """Write a receipt for each task that finished after this process lost the entry (H4), without a history.

        A task that the batch's receipt lists as done has completed, and nothing is added to that.
        Cost: 1 PUT each; for a batch 1 GET.
        """
        if tasks and self._outlived():
            return
        if self.batch and tasks:
            whole = self.storage.read_receipt(self.storage.keys.completed_of(self.entry))
            tasks = [n for n in tasks if whole is None or not lists_done(whole, n)]
        for n in tasks:
            data = result or self.state.results.all.get(n)
            self._write_receipt(n, self._receipt(n, "completed", result=data))

    def _end(self) -> None:
        with self._mutex:
            if self._ended:
                return
            self._ended = True
        self._renewer.remove(self)
        if self._after is not None:
            self._after()

    def _conclude(self) -> None:
        """Write down what is decided and let the entry go. Tasks without a verdict go back with their attempt."""
        with self._writing:
            if self._ended:
                return
            if self.state.open:
                self._let_go()
            else:
                self._write_end()

    def _let_go(self) -> None:
        """A verdict that another thread gives from now on comes late (H4): those before it are all written down."""
        self._end()
        returned = {n for n in self.state.open if n not in self.state.progress.due_s and n not in self.state.spent}
        self._hurry = self._hurry or not (self.state.progress.done or self.state.progress.due_s or self.state.spent)
        try:
            self.patiently(lambda: self._free(returned))
        except (LeaseLost, OutcomeUnknown, Unavailable):
            self._complete_late(self.state.progress.done)  # the entry itself runs out, as after a crash

    def _free(self, returned: set[int]) -> None:
        def change(record: EntryLease) -> EntryLease:
            record = handed_back(self._written(record), returned, started=self.state.running)
            return freed(record, len(self.content.ids), self.storage.runtime.wall())

        self._write_ahead()
        try:
            self._lease.free(change)
        except Invalid:  # it is too large for a cell, by names of an unforeseen length
            self._lease.free(lambda record: bare(change(record)))
        self.storage.watch.wrote(self.storage.keys.lease(self.entry), self._lease.version)
        wait_s = self._lease.record.wait_s
        if wait_s <= 0:
            self.storage.ring()
        elif self.storage.bell is not None:
            self.storage.bell.expect(self.storage.runtime.elapsed_s() + wait_s)
        if self._lease.record.suspended and wait_s > 0:
            note_freed = self.storage.freed_listener and self.storage.freed_listener()
            if note_freed:
                note_freed(self.entry, batch=self.batch, version=self._lease.version, wait_s=wait_s)

    def _receipt(self, n: int, state: Ended, **about: Any) -> Receipt:
        record, attempts = self._lease.record, self._attempts(n)
        if state == "failed" and may_have_steps(record, self.content, self._durable(), n, epoch=self.storage.epoch):
            about["origin"] = self.origin(n)
        about["life"], claim = self.life(n), self.state
        if claim.histories is not None and state == "completed":
            about["durable"] = claim.histories.written
        started_s = claim.running.get(n, claim.started_s if not self.batch and claim.progress.done else None)
        if started_s is not None:
            about["began_at"] = record.created_at + timedelta(seconds=started_s - claim.began_s)
        wall = self.storage.runtime.wall()
        return task_receipt(record, self.content, n, state, attempts=attempts, wall=wall, **about)

    def _write_receipt(self, n: int, receipt: Receipt) -> None:
        entry = self._lease.name
        name = task_name(entry, n, batch=self.batch)
        keys = self.storage.keys
        key = keys.completed_of(name) if receipt.state == "completed" else keys.failed_of(name)
        self.storage.write_receipt(entry, key, receipt, batch=self.batch)
