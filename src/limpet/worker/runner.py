"""Run one task: call its handler, classify how the call ended, and record the verdict.

A `Runner` is what one thread of a worker does with the tasks of a `SharedClaim`, which other threads may share.
`current_task()` is the task that runs now, as its handler sees it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from limpet.events import EventSink, task_run
from limpet.kernel.cell import Fence
from limpet.kernel.errors import Invalid, LeaseLost, LimpetError, Unsupported
from limpet.kernel.runtime import Flag, Runtime
from limpet.kernel.user_code import UserCall
from limpet.queue.api import Claim, Queue, Retry, Task, apply_error
from limpet.queue.claim import EntryClaim, EntryTask
from limpet.queue.steps import RUNNING, Suspend, TaskSteps
from limpet.queue.tracing import OTEL, TaskSpan, span
from limpet.worker.coroutines import EventLoop
from limpet.worker.limits import Permits, Rate
from limpet.worker.protocol import ROUTINE, EventKind, InterruptWatch, TaskCounts, WorkerEvent
from limpet.worker.schedule import Cron
from limpet.worker.verdict import Outcome, classify, end_of, record_done

RATE_OVER_S = 10.0
STUBBORN = "of its coroutines ignored that they were cancelled; they stay where they are"


@dataclass(frozen=True, slots=True)
class Job:
    """A queue and the function that handles its payloads. A coroutine that `handle` returns is awaited.

    `cron` says when tasks are pushed by the clock; `events` receives an event for every task that ran; `presence`:
    whether the process that works on it may show that it is alive.
    """

    queue: Queue
    handle: Callable[[Any], Any]
    cron: Cron | None = None
    events: EventSink | None = None
    presence: bool = True


class WorkerReport:
    """Where the threads of a worker report: counts of what ended, and events for the listener.

    With `routine=False` the listener gets only events that are out of the ordinary.
    """

    def __init__(
        self, runtime: Runtime, listener: Callable[[WorkerEvent], None] | None = None, *, routine: bool = True
    ) -> None:
        self._runtime = runtime
        self._listener = listener
        self.silent: frozenset[EventKind] = frozenset() if listener is not None and routine else ROUTINE
        """Events of these kinds go nowhere."""
        self._mutex = runtime.mutex()
        self._counts: Counter[Outcome] = Counter()
        self._marks: list[tuple[float, int]] = [(runtime.elapsed_s(), 0)]

    def say(self, kind: EventKind, worker: str, **fields: Any) -> None:
        """Pass an event to the listener, if it wants that kind."""
        if self._listener is not None and kind not in self.silent:
            self._listener(WorkerEvent(kind=kind, at=self._runtime.wall(), worker=worker, **fields))

    def count(self, outcome: Outcome, by: int = 1) -> None:
        """Count tasks that ended so."""
        with self._mutex:
            self._counts[outcome] += by

    def counts(self, *, in_flight: int = 0) -> TaskCounts:
        """The counts so far. The rate is that of the last 10 s."""
        at_s = self._runtime.elapsed_s()
        with self._mutex:
            counts = dict(self._counts)
            ended = self._counts["done"] + self._counts["failed"]
            while len(self._marks) > 1 and self._marks[1][0] <= at_s - RATE_OVER_S:
                del self._marks[0]
            if at_s - self._marks[-1][0] >= RATE_OVER_S / 10:
                self._marks.append((at_s, ended))
            since_s, before = self._marks[0]
        rate_per_s = (ended - before) / (at_s - since_s) if at_s > since_s else 0.0
        return TaskCounts(**counts, in_flight=in_flight, rate_per_s=rate_per_s)


class RunningTask:
    """The running task as its handler sees it."""

    __slots__ = ("_say", "_steps", "_task", "attempt", "queue")

    def __init__(
        self,
        queue: str,
        task: Task,
        say: Callable[[str], None],
        *,
        attempt: int | None = None,
        steps: TaskSteps | None = None,
    ) -> None:
        self.queue = queue
        self._steps = steps
        self.attempt = task.attempt if attempt is None else attempt
        self._task = task
        self._say = say

    @property
    def id(self) -> str:
        """The task's id. A retry has another one: an idempotency key is `key`."""
        return self._task.id

    @property
    def key(self) -> str:
        """The task's idempotency key: the same in every attempt and every retry, another one for each push of an id.

        A retry `from_scratch` has a new one.
        """
        return self._task.key

    @property
    def lost(self) -> bool:
        """Whether the claim has ended, so that another worker may run the task too."""
        return self._task.lost

    @property
    def lock(self) -> str:
        """The lock of its entry: `cell.write(value, lease=limpet.current_task())` is refused once a newer claim wrote.

        Use one cell per task: a cell is guarded by one lock, and every entry has another.
        Raises: Unsupported where the queue has no fencing.
        """
        return self._fence().lock

    @property
    def token(self) -> int:
        """The token of its claim, higher than that of every earlier one.   Raises: Unsupported."""
        return self._fence().token

    def _fence(self) -> Fence:
        if self._task.fence is None:
            raise Unsupported(f"queue {self.queue!r} has no fencing", hint="a bucket or a directory has it")
        return self._task.fence

    @property
    def step_key(self) -> str:
        """The idempotency key of the step whose function runs: the same in every attempt.

        Raises: Invalid outside of `limpet.step`.
        """
        if self._steps is None:
            raise Invalid("no step runs now", hint="step_key is for the function that limpet.step calls")
        return self._steps.key

    def check(self) -> None:
        """Return if the claim is still held, as far as this process knows.   Raises: LeaseLost."""
        if self._task.lost:
            raise LeaseLost(f"task {self.id!r} is no longer ours")

    def progress(self, note: str) -> None:
        """Write a note to the worker's log.   Raises: LeaseLost, so that a long loop ends when it should."""
        self.check()
        self._say(note)


_current: ContextVar[RunningTask | None] = ContextVar("limpet_current_task", default=None)


def current_task() -> RunningTask | None:
    """The task that this code runs for; None in a plain call of the function."""
    return _current.get()


@contextmanager
def as_current(task: RunningTask) -> Iterator[None]:
    """Make `task` the current one for the block and for the coroutines that are started in it."""
    before = _current.set(task)
    try:
        yield
    finally:
        _current.reset(before)


class SharedClaim:
    """A shared claim: the threads of a worker run its tasks side by side, and the last thread to leave ends it.

    `n` is the number of its job. The thread that made the claim, and one that has joined it, has a permit of `rate`.
    """

    def __init__(self, n: int, job: Job, claim: Claim, rate: Rate, runner: str, runtime: Runtime) -> None:
        self.n = n
        self.job = job
        self.claim = claim
        self.rate = rate
        self.offered = False
        self._mutex = runtime.mutex()
        self._runners = {runner}

    @property
    def over(self) -> bool:
        """Whether the last thread has left it."""
        return not self._runners

    def join(self, runner: str) -> bool:
        """Join it if there is a task to start; whether the thread has joined. `leave` must follow."""
        if not self.claim.may_start:
            return False
        with self._mutex:
            if not self._runners or self.rate.take():
                return False
            self._runners.add(runner)
            return True

    def leave_to_others(self, runner: str) -> bool:
        """Leave it unless this thread is the last in it; whether the thread has left."""
        with self._mutex:
            if self._runners == {runner}:
                return False
            self._runners.discard(runner)
            return True

    def leave(self, runner: str) -> None:
        """Leave it, if the thread has not done so. The last one ends it: what was not started goes back.

        Raises: LimpetError when the store does not accept the end; tasks come back when the claim runs out.
        """
        with self._mutex:
            last = self._runners == {runner}
            self._runners.discard(runner)
        if last:
            self.claim.__exit__(None, None, None)


@dataclass(slots=True)
class _ActiveTask:
    job: Job
    claim: Claim
    task: Task
    started_s: float
    overdue: bool = False
    handed_back: bool = False
    span: TaskSpan | None = None


class Runner:
    """Runs tasks in one thread, one after another. `offer` shows a claim to the other threads of the worker."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        report: WorkerReport,
        permits: Permits,
        stopping: Flag,
        offer: Callable[[SharedClaim], None],
    ) -> None:
        self.name = name
        self.halted: str | None = None
        """Why the worker is to end, if a signal has interrupted a handler."""
        self.interrupts: InterruptWatch | None = None
        """Of a runner in the main thread."""
        self.busy = False
        """Whether it has a claim."""
        self.lately_s = float("inf")
        """How long its claims have lately taken; infinite before the first."""
        self._runtime = runtime
        self._report = report
        self._permits = permits
        self._stopping = stopping
        self._offer = offer
        self._loop = EventLoop()
        self._active: _ActiveTask | None = None

    @property
    def runs(self) -> bool:
        """Whether a task runs now."""
        return self._active is not None

    def close(self) -> None:
        """Cancel what async handlers left running."""
        self._loop.close()

    def work(self, shared: SharedClaim) -> None:
        """Run tasks of a claim until none may be started, or no permit is left, or the worker stops.

        Once a task may run beside this thread's, the claim is offered to the other threads.
        Raises: LimpetError when the store does not accept a verdict; the task comes back when its claim runs out.
        """
        self.busy = True
        begun_s = self._runtime.elapsed_s()
        reserved = True
        try:
            while self._may_start(shared, reserved=reserved):
                reserved = False
                task = shared.claim.start_next()
                if task is None:
                    self._permits.give_back()
                    shared.rate.give_back()
                    return
                if not shared.offered and shared.claim.may_start:
                    shared.offered = True
                    self._offer(shared)
                self._run(_ActiveTask(shared.job, shared.claim, task, self._runtime.elapsed_s()))
        finally:
            try:
                shared.leave(self.name)
            finally:
                self.busy = False
                took_s = self._runtime.elapsed_s() - begun_s
                self.lately_s = took_s if self.lately_s > took_s * 10 else max(took_s, 0.9 * self.lately_s)

    def hand_back(self) -> None:
        """Hand back the task that runs now, with its attempt restored. Another thread calls this; the handler goes on.

        One that was cancelled, or that another worker has, is lost instead.

        Raises: LimpetError; then the task comes back when its claim runs out.
        """
        now = self._active
        if now is not None:
            now.handed_back = True
            now.claim.hand_back()
            lost = isinstance(now.claim, EntryClaim) and not now.claim.released
            note = "it was cancelled, or another worker has it" if lost else ""
            self._ended(now, "lost" if lost else "handed_back", note=note)

    def report_overdue(self) -> None:
        """Report once that the running task exceeds its `timeout_s`, and that its claim will end (F16)."""
        now = self._active
        if now is not None and not now.overdue and self._is_overdue(now):
            now.overdue = True
            limit_s = now.job.queue.policy.timeout_s
            self._say(now, "overdue", note=f"runs longer than timeout_s = {limit_s:g}; its claim is not renewed")

    def _may_start(self, shared: SharedClaim, *, reserved: bool) -> bool:
        """Whether to start a task of the claim. A thread waits for the rate only if no other one would."""
        if self.halted or self._stopping.is_set() or not self._permits.take():
            return False
        while not reserved and (wait_s := shared.rate.take()):
            if shared.leave_to_others(self.name) or self._stopping.wait(wait_s):
                self._permits.give_back()
                return False
        return True

    def _run(self, now: _ActiveTask) -> None:
        if OTEL not in sys.modules:
            self._run_traced(now)
            return
        queue, task = now.job.queue.name, now.task
        parent = getattr(task, "trace", None)  # SQS carries none
        with span("process", queue, "consumer", parent=parent, message_id=task.id, attempt=task.attempt) as now.span:
            now.span.set(worker=self.name)
            self._run_traced(now)

    def _run_traced(self, now: _ActiveTask) -> None:
        self._active = now
        self._say(now, "started")
        steps = TaskSteps(now.job.queue, now.task)
        shown = RunningTask(
            now.job.queue.name, now.task, lambda note: self._say(now, "progress", note=note), steps=steps
        )
        value = None
        try:
            current, running = _current.set(shown), RUNNING.set(steps)
            try:
                with UserCall() as call:
                    value = now.job.handle(now.task.payload)
                    if value is not None and isawaitable(value):
                        value = self._loop.run(value, lambda: self._why_over(now))
            finally:
                _current.reset(current)
                RUNNING.reset(running)
            if self._loop.abandoned:
                self._say(now, "warning", note=f"{self._loop.abandoned} {STUBBORN}")
                self._loop.abandoned = 0
            error = end_of(call.error, steps.suspended)
            if now.span is None:
                self._record(now, value, error)
            else:
                if error is not None and not isinstance(error, Suspend):
                    now.span.failed(error)
                with span("ack", now.job.queue.name, "internal", message_id=now.task.id):
                    self._record(now, value, error)
        except LimpetError as error:
            with suppress(LimpetError):  # it has its verdict, or the store still fails
                apply_error(now.task, error)
            raise
        finally:
            self._active = None

    def _record(self, now: _ActiveTask, value: Any, error: BaseException | None) -> None:
        if error is None:
            stored, note = record_done(now.task, value)
            if stored and note:
                self._say(now, "warning", note=note)
            if stored:
                note = "its claim was over before" if now.task.lost else ""
            self._ended(now, "done" if stored else "lost" if now.task.lost else "failed", note=note)
        elif now.handed_back:
            return
        elif isinstance(error, Suspend) and isinstance(now.task, EntryTask):
            now.task.suspend(error.wait_s, error.suspension)
            if error.suspension.codes:
                self._say(now, "warning", note=error.suspension.reason)
            self._ended(now, "suspended", note=error.suspension.reason, after_s=error.wait_s)
        else:
            self._raised(now, error)

    def _is_overdue(self, now: _ActiveTask) -> bool:
        limit_s = now.job.queue.policy.timeout_s
        return limit_s is not None and self._runtime.elapsed_s() - now.started_s > limit_s

    def _why_over(self, now: _ActiveTask) -> Exception | None:
        """Why an async handler must be cancelled (F16)."""
        if now.handed_back or now.task.lost:
            return LeaseLost(f"task {now.task.id!r} is no longer ours")
        if self._is_overdue(now):
            return Retry(f"took longer than timeout_s = {now.job.queue.policy.timeout_s:g}")
        return None

    def _raised(self, now: _ActiveTask, error: BaseException) -> None:
        """Record the verdict. If the claim was lost, another worker may have given one: the queue decides."""
        lost, task = now.task.lost, now.task
        verdict = classify(error, lost=lost, interrupted=self.interrupts is not None and self.interrupts.came)
        outcome: Outcome = "lost"
        match verdict.kind:
            case "halt":
                self.halted = verdict.error
                now.claim.hand_back()
                outcome = "handed_back"
            case "fail":
                task.fail(verdict.error, verdict.trace)
                outcome = "lost" if lost else "failed"
            case "retry":
                task.retry(verdict.after_s, verdict.error, verdict.trace)
                given_up = task.attempt >= now.job.queue.policy.max_attempts
                outcome = "lost" if lost else "failed" if given_up else "retried"
        after_s = verdict.after_s if outcome == "retried" else None
        self._ended(now, outcome, note=verdict.error, after_s=after_s)

    def _ended(self, now: _ActiveTask, outcome: Outcome, *, note: str = "", after_s: float | None = None) -> None:
        took_s = round(self._runtime.elapsed_s() - now.started_s, 6)
        self._report.count(outcome)
        if now.span is not None:
            now.span.set(outcome=outcome)
            if outcome in ("failed", "lost"):
                now.span.failed(note or outcome)
        if now.job.events is not None:
            now.job.events.emit(
                task_run(
                    self._runtime,
                    queue=now.job.queue.name,
                    task=now.task.id,
                    attempt=now.task.attempt,
                    worker=self.name,
                    took_s=took_s,
                    outcome="released" if outcome in ("handed_back", "suspended") else outcome,
                    error="" if outcome == "done" else note,
                )
            )
        self._say(now, "retry" if outcome == "retried" else outcome, seconds=took_s, after_s=after_s, note=note)

    def _say(self, now: _ActiveTask, kind: EventKind, **fields: Any) -> None:
        if kind not in self._report.silent:
            task = now.task
            self._report.say(kind, self.name, queue=now.job.queue.name, id=task.id, attempt=task.attempt, **fields)
