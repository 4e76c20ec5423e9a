"""`EntryClaim`: the tasks of one entry that this process holds, from the claim to the last verdict.

`Renewer` keeps the claims of a process alive, and `Results` holds their results until they are written.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol

import msgspec

from limpet import records
from limpet.cell import Fence
from limpet.errors import Invalid, LeaseLost, LimpetError, OutcomeUnknown, Unavailable
from limpet.keys import Key
from limpet.lease import HeldLease
from limpet.lease.decide import renew_interval_s
from limpet.queue.api import Fail, Policy, Retry, Task
from limpet.queue.decide import (
    Progress,
    attempt_record,
    attempts_of,
    backoff_s,
    batch_receipt,
    charged,
    clean_text,
    freed,
    handed_back,
    lists_done,
    must_charge,
    open_tasks,
    progressed,
    task_receipt,
)
from limpet.queue.entry import (
    DELAY_MAX_S,
    NOTHING,
    Content,
    Ended,
    EntryLease,
    Part,
    Receipt,
    Storage,
    result_bytes,
    task_name,
)
from limpet.runtime import Runtime
from limpet.store.api import Absent

NO_VERDICT = "the block ended without a verdict"
NO_RECEIPT = "its lease says that it failed, and no receipt says why"
SHORT_CHARS_MAX = 300
PATIENCE_S = 0.2
PATIENCE_MAX_S = 3.0
UNREADABLE = (
    msgspec.MsgspecError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a payload may raise while it is decoded: bytes that are no JSON, or what a user's own type says about them."""
TICK_PART = 12
INLINE_BYTES_MAX = 1024
INLINE_TOTAL_MAX = 256 * 1024
PART_BYTES_MAX = 512 * 1024


class Renewable(Protocol):
    """Something that a `Renewer` keeps alive."""

    def renew(self) -> None:
        """Renew it; do nothing if it is over, or its task has run past its time."""


class Renewer:
    """One thread that renews every claim of a process (F16): every ttl_s / 3, after a failure every ttl_s / 12.

    The thread starts with the first claim and ends when there was none for a while. A claim that is over before its
    first renewal costs nothing.
    """

    def __init__(self, runtime: Runtime, ttl_s: float, *, name: str) -> None:
        self._runtime = runtime
        self._ttl_s = ttl_s
        self._name = name
        self._mutex = runtime.mutex()
        self._due_s: dict[Renewable, float] = {}
        self._owner: str | None = None

    def add(self, claim: Renewable) -> None:
        """Keep `claim` alive from now on."""
        with self._mutex:
            self._due_s[claim] = self._runtime.elapsed_s() + renew_interval_s(self._ttl_s)
            if self._owner != self._runtime.owner:
                self._owner = self._runtime.owner  # a forked child does not have the threads of its parent
                self._runtime.spawn(self._run, name=self._name)

    def remove(self, claim: Renewable) -> None:
        """Let `claim` go. A renewal that is under way may still finish."""
        with self._mutex:
            self._due_s.pop(claim, None)

    def _run(self) -> None:
        resting = 0
        while resting < TICK_PART:
            self._runtime.sleep(self._ttl_s / TICK_PART)
            resting = 0 if self._tick() else resting + 1
            with self._mutex:
                if resting == TICK_PART and self._due_s:
                    resting = 0
                elif resting == TICK_PART:
                    self._owner = None

    def _tick(self) -> bool:
        """Renew what is due; whether there is anything to keep alive."""
        at_s = self._runtime.elapsed_s()
        with self._mutex:
            due = [claim for claim, due_s in self._due_s.items() if due_s <= at_s]
            alive = bool(self._due_s)
        for claim in due:
            try:
                claim.renew()
                pause_s = renew_interval_s(self._ttl_s)
            except LimpetError:
                pause_s = 0.0
            with self._mutex:
                if claim in self._due_s:
                    self._due_s[claim] = at_s + pause_s
        return alive


class Results:
    """Keeps the results of one claim, and the large ones until they are written.

    `inline_bytes`: what earlier claims of the entry have put into the record.
    """

    def __init__(self, storage: Storage, entry: str, *, inline_bytes: int) -> None:
        self._storage = storage
        self._entry = entry
        self._inline_bytes = inline_bytes
        self.all: dict[int, msgspec.Raw] = {}
        self.large: dict[int, msgspec.Raw] = {}

    def is_large(self, n: int, data: msgspec.Raw) -> bool:
        """Whether the result of task `n` goes into a part object; then it is kept here."""
        self.all[n] = data
        size = len(bytes(data))
        if size <= INLINE_BYTES_MAX and self._inline_bytes + size <= INLINE_TOTAL_MAX:
            self._inline_bytes += size
            return False
        self.large[n] = data
        return True

    def write_large(self) -> Iterator[Key]:
        """Write what is kept; the keys of the parts. It comes before the record that names them.

        Cost: 1 PUT per 512 KiB.
        """
        while self.large:
            some: dict[int, msgspec.Raw] = {}
            size = 0
            for n, data in [*self.large.items()]:
                size += len(bytes(data))
                if some and size > PART_BYTES_MAX:
                    break
                some[n] = data
            key = self._storage.keys.part(self._entry, self._storage.runtime.new_id())
            self._storage.store.put(key, records.encode(Part(results=some)), when=Absent())
            for n in some:
                self.large.pop(n, None)
            yield key


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
    def lost(self) -> bool:
        return self._claim.lost

    @property
    def fence(self) -> Fence | None:
        return self._claim.fence

    def done(self, result: Any = None) -> None:
        """Cost: nothing inside a batch; for its last task, or a single one, 1 PUT + 2 DELETEs."""
        self._claim.done(self._n, result)

    def retry(self, after_s: float | None = None, error: str = "", traceback: str | None = None) -> None:
        """Cost: 1 PUT for the whole entry; with the last attempt as `fail`."""
        self._claim.retry(self._n, after_s, error, traceback)

    def fail(self, error: str, traceback: str | None = None) -> None:
        """Cost: 1 PUT, and 2 DELETEs if it ends the entry."""
        self._claim.fail(self._n, error, traceback)


class EntryClaim:
    """One entry, held. Verdicts gather here; the last one ends the entry, and a heartbeat writes them down meanwhile.

    Crash: tasks without a written verdict run again; none is lost, and only those that were started are charged.
    """

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
        self._storage = storage
        self._runtime = storage.runtime
        self._policy = policy
        self._decoder = decoder
        self._renewer = renewer
        self._lease = lease
        record = lease.record
        open_now = open_tasks(record, len(content.ids))
        at_s = self._runtime.elapsed_s()
        self._tasks = [n for n in open_now if n not in record.waits]
        self._progress = Progress(due_s={n: at_s + wait_s for n, wait_s in record.waits.items()})
        self._open = {*open_now}
        self._by_swap = must_charge(lease.record, policy)
        self._mutex = self._runtime.mutex()
        self._writing = self._runtime.mutex()
        self._started: list[int] = []
        self._spent: set[int] = set()
        self._started_s = at_s
        self._results = Results(storage, lease.name, inline_bytes=sum(map(len, map(bytes, record.results.values()))))
        self._ended = self._announced = self._hurry = False
        self._inherited = [*record.failed]
        self._after: Callable[[], None] | None = None
        renewer.add(self)

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do in it."""
        return self._ended or not self._open

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
    def lost(self) -> bool:
        return self._lease.lost

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[EntryTask]:
        payloads = self.content.payloads
        decode, elapsed_s = self._decoder.decode, self._runtime.elapsed_s
        for n in self._tasks:
            self._started_s = elapsed_s()
            if self._ended or self._lease.lost_at(self._started_s) or n not in self._open:
                continue
            try:
                payload = decode(payloads[n])
            except UNREADABLE as error:
                self.give_up(n, f"the payload does not fit: {_short(error)}", unread=True)
                continue
            if self._by_swap:
                if not self._charge(n):
                    return
            else:
                with self._mutex:
                    self._progress.attempts[n] = attempts_of(self._lease.record, n) + 1
            self._started.append(n)
            yield EntryTask(self, n, payload, self._attempts(n))

    def _attempts(self, n: int) -> int:
        """How many attempts of task `n` there were, this claim's too."""
        return self._progress.attempts.get(n) or attempts_of(self._lease.record, n)

    def __enter__(self) -> EntryClaim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if error is None or isinstance(error, Exception):
                for n in [n for n in self._started if n in self._open and n not in self._progress.due_s]:
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

    def abandon(self) -> None:
        """Let it run out, as after a crash."""
        self._end()

    def renew(self) -> None:
        """Renew, and write down the verdicts so far. Not once a task has run past its time (F16).   Cost: 1 PUT."""
        limit_s = float("inf") if self._policy.timeout_s is None else self._policy.timeout_s
        with self._writing:
            if not self._ended and self._runtime.elapsed_s() - self._started_s <= limit_s:
                self._write_large()
                self._lease.rewrite(self._written)
                if not self._announced:
                    self._announced = True
                    self._storage.journal.held(self._storage.keys, self.entry, self.batch)

    def done(self, n: int, result: Any) -> None:
        """Verdict: it succeeded. It counts even if the claim was lost meanwhile (H4)."""
        data = None if result is None else msgspec.Raw(result_bytes(result))
        if self._ended:
            self._complete_late([n], data)
            return
        self._first_verdict(n)
        with self._mutex:
            self._open.discard(n)
            self._progress.due_s.pop(n, None)
            self._progress.done.append(n)
            if data is not None and not self._results.is_large(n, data):
                self._progress.results[n] = data
        if not self._open:
            self._finish()

    def retry(self, n: int, after_s: float | None, error: str, trace: str | None = None) -> None:
        """Verdict: another attempt, if there is one left."""
        attempts = self._attempts(n)
        if attempts >= self._policy.max_attempts:
            self.fail(n, error or NO_VERDICT, trace)
            return
        if after_s is None:
            after_s = backoff_s(self._policy, attempts, self._runtime.rng.random())
        if not after_s >= 0:
            raise Invalid(f"after_s must not be negative, and is {after_s:g}")
        after_s = min(after_s, DELAY_MAX_S)
        if self._ended:
            return
        self._first_verdict(n)
        with self._mutex:
            self._progress.due_s[n] = self._runtime.elapsed_s() + after_s
            self._note(n, error, trace)
        if self._open == self._progress.due_s.keys():
            self._conclude()

    def give_up(self, n: int, error: str, *, unread: bool = False) -> None:
        """End a task that is not run: it cannot be read, or its workers died too often. `queue.notices` has it.

        `unread`: its payload may not even be JSON; then its bytes are kept as they are.
        """
        raw = self._storage.kept_payload(self.entry, self.content.payloads[n]) if unread else None
        if self.fail(n, error, raw=raw):
            self._storage.notices.failed(self.content.ids[n], error)

    def fail(self, n: int, error: str, trace: str | None = None, *, raw: Key | None = None) -> bool:
        """Verdict: it failed for good; False if the lease is lost, for then it is not ours to say."""
        with self._writing:
            if self._ended:
                return False
            if not self._still_ours():
                self._spent.add(n)
                self._note(n, error, trace)
                return False
        self._first_verdict(n)
        receipt = self._receipt(n, "failed", error=error, trace=trace)
        if raw is not None:
            receipt = msgspec.structs.replace(receipt, payload=NOTHING, raw=raw)
        name = task_name(self.entry, n, batch=self.batch)
        key = self._storage.keys.failed_of(name)
        self._patiently(lambda: self._storage.write_receipt(self.entry, key, receipt, batch=self.batch))
        with self._mutex:
            self._open.discard(n)
            self._progress.due_s.pop(n, None)
            self._progress.failed.append(n)
        if not self._open:
            self._finish()
        return True

    def _note(self, n: int, error: str, trace: str | None) -> None:
        """Keep the error of an attempt for those who look at the task, and for its receipt."""
        if error or trace:
            record, wall = self._lease.record, self._runtime.wall()
            self._progress.errors[n] = attempt_record(
                self._attempts(n), at=wall, worker=record.label, error=error, trace=trace
            )
        if not self.batch:
            self._progress.error = clean_text(error) or None

    def _patiently(self, write: Callable[[], object]) -> None:
        """Write an end; while the store cannot be reached, try again until the claim ends.

        Raises: OutcomeUnknown, Unavailable, if it cannot be reached by then.
        """
        until_s = self._runtime.elapsed_s() + self._lease.valid_for_s()
        tries = 0
        while True:
            try:
                write()
                return
            except (OutcomeUnknown, Unavailable):
                tries += 1
                if not self._wait_for_store(tries, until_s):
                    raise

    def _wait_for_store(self, tries: int, until_s: float) -> bool:
        """Back off; whether there is time for another try. Not when the process is to end."""
        left_s = until_s - self._runtime.elapsed_s()
        if self._hurry or left_s <= 0:
            return False
        pause_s = min(PATIENCE_MAX_S, PATIENCE_S * 2.0 ** min(tries, 10)) * self._runtime.rng.uniform(0.5, 1.0)
        self._runtime.sleep(min(pause_s, left_s))
        return True

    def _first_verdict(self, n: int) -> None:
        if n not in self._open or n in self._progress.due_s:
            raise Invalid(f"task {self.content.ids[n]!r} has its verdict already", hint="give each task exactly one")

    def _charge(self, n: int) -> bool:
        """Name the task running, with an attempt more, before its handler starts. False: it cannot be said now."""
        try:
            with self._writing:
                self._write_large()
                self._lease.rewrite(lambda record: charged(self._written(record), n))
        except (LeaseLost, OutcomeUnknown, Unavailable):
            return False
        with self._mutex:
            self._progress.due_s.pop(n, None)
        return True

    def _write_large(self) -> None:
        """Large results come before the swap that counts their tasks as done."""
        self._progress.parts.extend(self._results.write_large())

    def _written(self, record: EntryLease) -> EntryLease:
        """The record with what may be written down by now: a task whose large result still lies here is not done."""
        with self._mutex:
            done = [n for n in self._progress.done if n not in self._results.large]
            return progressed(record, replace(self._progress, done=done), self._runtime.elapsed_s())

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

        def finish() -> None:
            with self._writing:
                self._write_end()

        self._patiently(finish)

    def _write_end(self) -> None:
        if self.batch:
            self._finish_batch()
        else:
            record = self._lease.record
            if self._progress.done or record.done:
                result = self._results.all.get(0) or record.results.get(0)
                receipt = self._receipt(0, "completed", result=result, parts=[] if result else record.parts)
                key = self._storage.keys.completed_of(self.entry)
                self._storage.write_receipt(self.entry, key, receipt, batch=False)
            else:
                self._write_missing_receipts()
        self._close()

    def _write_missing_receipts(self) -> None:
        """No task goes without a receipt: one that the lease called failed when we took it should have one.

        Cost: 1 LIST, if there are such tasks; 1 PUT for each that has none.
        """
        if not self._inherited:
            return
        written = self._storage.own_receipts(self._storage.keys.failed, self.entry) if self.batch else {*()}
        for n in self._inherited:
            if n not in written:
                name = task_name(self.entry, n, batch=self.batch)
                receipt = self._receipt(n, "failed", error=NO_RECEIPT)
                self._storage.write_receipt(self.entry, self._storage.keys.failed_of(name), receipt, batch=self.batch)

    def _finish_batch(self) -> None:
        if not self._still_ours():
            self._end()
            self._complete_late(self._progress.done)
            return
        self._write_large()
        self._write_missing_receipts()
        record = self._written(self._lease.record)
        completed = self._storage.keys.completed
        own = self._storage.own_receipts(completed, self.entry) if record.contested else ()
        receipt = batch_receipt(record, self.content, wall=self._runtime.wall(), own=own)
        key = self._storage.keys.completed_of(self.entry)
        stands = self._storage.write_receipt(self.entry, key, receipt, batch=True)
        self._complete_late([n for n in self._progress.done if n in stands.failed])

    def _complete_late(self, tasks: list[int], result: msgspec.Raw | None = None) -> None:
        """Write a receipt for each task that finished after this process lost the entry (H4).

        A task that the batch's receipt lists as done has completed, and nothing is added to that.
        Cost: 1 PUT each; for a batch 1 GET.
        """
        if self.batch and tasks:
            whole = self._storage.read_receipt(self._storage.keys.completed_of(self.entry))
            tasks = [n for n in tasks if whole is None or not lists_done(whole, n)]
        for n in tasks:
            data = result or self._results.all.get(n)
            name = task_name(self.entry, n, batch=self.batch)
            receipt = self._receipt(n, "completed", result=data)
            self._storage.write_receipt(self.entry, self._storage.keys.completed_of(name), receipt, batch=self.batch)

    def _close(self) -> None:
        if not self._ended:
            self._end()
            self._storage.close(self.entry, batch=self.batch)

    def _end(self) -> None:
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
            if self._open:
                self._let_go()
            else:
                self._write_end()

    def _let_go(self) -> None:
        returned = {n for n in self._open if n not in self._progress.due_s and n not in self._spent}
        self._hurry = self._hurry or not (self._progress.done or self._progress.due_s or self._spent)
        try:
            self._patiently(lambda: self._free(returned))
        except (LeaseLost, OutcomeUnknown, Unavailable):
            self._end()
            self._complete_late(self._progress.done)  # the entry itself runs out, as after a crash

    def _free(self, returned: set[int]) -> None:
        self._write_large()
        self._end()
        self._lease.free(
            lambda record: freed(
                handed_back(self._written(record), returned, started=self._started),
                len(self.content.ids),
                self._runtime.wall(),
            )
        )

    def _receipt(self, n: int, state: Ended, **about: Any) -> Receipt:
        record, attempts = self._lease.record, self._attempts(n)
        return task_receipt(record, self.content, n, state, attempts=attempts, wall=self._runtime.wall(), **about)


def apply_error(task: Task, error: Exception | None) -> None:
    """Give a task that has no verdict the one that the end of its `with` block implies."""
    match error:
        case Fail():
            task.fail(str(error))
        case Retry():
            task.retry(error.after_s, str(error))
        case None | LeaseLost():
            task.retry(None, NO_VERDICT)
        case _:
            task.retry(None, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))


def _short(error: Exception) -> str:
    """What is wrong with a payload, in one line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    said = " ".join(str(error).split()) or type(error).__name__
    return "".join(char if char.isprintable() else "?" for char in said[:SHORT_CHARS_MAX])
