"""`Runner`: what one thread of a worker does with the entry that it has claimed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from limpet.errors import LeaseLost
from limpet.events import EventSink, task_run
from limpet.queue.api import Claim, Queue, Retry, Task
from limpet.queue.work.cron import Cron
from limpet.queue.work.events import ROUTINE, Event, EventKind, TallyKeeper
from limpet.queue.work.judge import Again, Caught, Dropped, Failed, Halt, judge, record_done
from limpet.queue.work.rate import Rate
from limpet.queue.work.running import AsCurrent, RunningTask
from limpet.runtime import Flag, Runtime

if TYPE_CHECKING:
    from limpet.queue.work.aio import Loop


@dataclass(frozen=True, slots=True)
class Job:
    """A queue, and what to do with a payload of it. A coroutine that `handle` returns is awaited. `events`, if given,
    is told of every task that ran."""

    queue: Queue
    handle: Callable[[Any], Any]
    cron: Cron | None = None
    events: EventSink | None = None


class Permits:
    """How many tasks may still be started; without a limit, any number."""

    def __init__(self, limit: int | None, runtime: Runtime) -> None:
        self._limited = limit is not None
        self._left = limit or 0
        self._mutex = runtime.mutex()

    def take(self) -> bool:
        """Whether one more may be started."""
        if not self._limited:
            return True
        with self._mutex:
            if self._left < 1:
                return False
            self._left -= 1
            return True

    def give_back(self) -> None:
        """It was not started after all."""
        with self._mutex:
            self._left += 1

    @property
    def used_up(self) -> bool:
        """Whether all were taken."""
        return self._limited and self._left < 1


class Report:
    """Where the threads of a worker tell what happens: counts for all, events for whoever listens."""

    def __init__(self, runtime: Runtime, listener: Callable[[Event], None] | None, *, routine: bool) -> None:
        self.tally = TallyKeeper(runtime)
        self._runtime = runtime
        self._listener = listener
        self._silent: frozenset[EventKind] = ROUTINE if listener is None or not routine else frozenset()

    def is_silent(self, kind: EventKind) -> bool:
        """Whether nobody wants to hear of it."""
        return kind in self._silent

    def say(self, kind: EventKind, worker: str, **fields: Any) -> None:
        """Pass on an event, if anybody wants it."""
        if self._listener is not None and kind not in self._silent:
            self._listener(Event(kind=kind, at=self._runtime.wall(), worker=worker, **fields))


@dataclass(slots=True)
class _InHand:
    """The task that a thread runs now."""

    job: Job
    claim: Claim
    task: Task
    started_s: float
    told_overdue: bool = False
    given_back: bool = False


class Runner:
    """One thread's work, task after task."""

    def __init__(self, name: str, runtime: Runtime, report: Report, permits: Permits, stopping: Flag) -> None:
        self.name = name
        self.halted: str | None = None
        self.busy = False
        """Whether it has a claim."""
        self._runtime = runtime
        self._report = report
        self._permits = permits
        self._stopping = stopping
        self._loop: Loop | None = None
        self._in_hand: _InHand | None = None

    @property
    def runs(self) -> bool:
        """Whether a task runs now."""
        return self._in_hand is not None

    def close(self) -> None:
        """End what async handlers left behind."""
        if self._loop is not None:
            self._loop.close()

    def work(self, job: Job, claim: Claim, rate: Rate | None) -> None:
        """Run the tasks of a claim until they, the permits or the time are up. The rest goes back.

        The permit of `rate` for the first task was taken with the claim.
        Raises: LimpetError when the store does not take a verdict; the task then comes back by itself.
        """
        self.busy = True
        try:
            with claim:
                self._run_all(job, claim, rate)
        finally:
            self.busy = False

    def hand_back(self) -> bool:
        """Give the task that runs now back, with its attempt restored. From another thread; its handler goes on.

        Whether there was one.   Raises: LimpetError; then it comes back by itself once its claim runs out.
        """
        now = self._in_hand
        if now is None:
            return False
        now.given_back = True
        now.claim.hand_back()
        self._count(now, "handed_back", "handed_back")
        return True

    def tell_overdue(self) -> None:
        """Say once that the task which runs now takes longer than it may, and that its claim will end (F16)."""
        now = self._in_hand
        if now is None or now.told_overdue:
            return
        limit_s = now.job.queue.policy.timeout_s
        if limit_s is not None and self._runtime.elapsed_s() - now.started_s > limit_s:
            now.told_overdue = True
            self._say(now, "overdue", note=f"runs longer than timeout_s = {limit_s:g}; its claim is not renewed")

    def _run_all(self, job: Job, claim: Claim, rate: Rate | None) -> None:
        tasks = iter(claim)
        reserved = True
        while not self.halted and self._may_start(rate, reserved=reserved):
            reserved = False
            task = next(tasks, None)
            if task is None:
                self._permits.give_back()
                if rate is not None:
                    rate.give_back()
                return
            self._run(_InHand(job, claim, task, self._runtime.elapsed_s()))

    def _may_start(self, rate: Rate | None, *, reserved: bool) -> bool:
        if self._stopping.is_set() or not self._permits.take():
            return False
        while rate is not None and not reserved and (wait_s := rate.take()):
            if self._stopping.wait(wait_s):
                self._permits.give_back()
                return False
        return True

    def _run(self, now: _InHand) -> None:
        self._in_hand = now
        self._say(now, "started")
        shown = RunningTask(now.job.queue.name, now.task, lambda note: self._say(now, "progress", note=note))
        value = None
        try:
            with Caught() as caught, AsCurrent(shown):
                value = now.job.handle(now.task.payload)
                if value is not None and isawaitable(value):
                    value = self._awaited(now, value)
            if caught.error is None:
                self._done(now, value)
            elif not now.given_back:
                self._not_done(now, caught.error)
        finally:
            self._in_hand = None

    def _awaited(self, now: _InHand, work: Awaitable[Any]) -> Any:
        if self._loop is None:
            from limpet.queue.work.aio import Loop  # asyncio only where there is something to await

            self._loop = Loop()
        return self._loop.run(work, lambda: self._why_over(now))

    def _why_over(self, now: _InHand) -> Exception | None:
        """Why an async handler must not go on (F16)."""
        limit_s = now.job.queue.policy.timeout_s
        if now.given_back or now.task.lost:
            return LeaseLost(f"task {now.task.id!r} is no longer ours")
        if limit_s is not None and self._runtime.elapsed_s() - now.started_s > limit_s:
            return Retry(f"took longer than timeout_s = {limit_s:g}")
        return None

    def _done(self, now: _InHand, value: Any) -> None:
        unkept = record_done(now.task, value)
        if isinstance(unkept, Failed):
            now.task.fail(unkept.error)
            ended: EventKind = "lost" if now.task.lost else "failed"
            self._count(now, ended, ended, note=unkept.error)
            return
        if unkept:
            self._say(now, "warning", note=unkept)
        self._report.tally.add("done")
        self._emit(now, "done")
        if not self._report.is_silent("done"):
            self._say(now, "done", **self._took(now), note="its claim was over before" if now.task.lost else "")

    def _not_done(self, now: _InHand, error: BaseException) -> None:
        """The verdict on a handler that raised. If the claim was lost, it may not be ours to give: the queue knows."""
        lost, task = now.task.lost, now.task
        match judge(error, lost=lost):
            case Halt(why):
                self.halted = why
                now.claim.hand_back()
                self._count(now, "handed_back", "handed_back", note=why)
            case Dropped(why):
                self._count(now, "lost", "lost", note=why)
            case Failed(why, trace):
                task.fail(why, trace)
                self._count(now, "lost" if lost else "failed", "lost" if lost else "failed", note=why)
            case Again(why, after_s, trace):
                task.retry(after_s, why, trace)
                if lost:
                    self._count(now, "lost", "lost", note=why)
                elif task.attempt >= now.job.queue.policy.max_attempts:
                    self._count(now, "failed", "failed", note=why)
                else:
                    self._count(now, "retried", "retry", note=why, after_s=after_s)

    def _count(self, now: _InHand, name: str, kind: EventKind, **fields: Any) -> None:
        self._report.tally.add(name)
        self._emit(now, "released" if name == "handed_back" else name, fields.get("note", ""))
        self._say(now, kind, **self._took(now), **fields)

    def _emit(self, now: _InHand, outcome: str, error: str = "") -> None:
        if now.job.events is not None:
            now.job.events.emit(
                task_run(
                    self._runtime,
                    queue=now.job.queue.name,
                    task=now.task.id,
                    attempt=now.task.attempt,
                    worker=self.name,
                    took_s=self._took(now)["seconds"],
                    outcome=outcome,
                    error=error,
                )
            )

    def _took(self, now: _InHand) -> dict[str, float]:
        return {"seconds": round(self._runtime.elapsed_s() - now.started_s, 6)}

    def _say(self, now: _InHand, kind: EventKind, **fields: Any) -> None:
        if self._report.is_silent(kind):
            return
        self._report.say(kind, self.name, queue=now.job.queue.name, id=now.task.id, attempt=now.task.attempt, **fields)
