"""`eager`: a push runs its task before it returns, in the caller's thread; `drain`: what is due runs now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar

from limpet.app import Fleet
from limpet.app.tasks import TaskFunction
from limpet.kernel.cell import Versioned
from limpet.kernel.errors import Invalid
from limpet.kernel.runtime import system
from limpet.kernel.user_code import UserCall, one_line
from limpet.queue.api import Fail, Queue, Retry, Task
from limpet.queue.entry import StepRecord
from limpet.queue.steps import Suspend, TaskSteps, as_running
from limpet.worker import RunningTask, TaskCounts, Worker
from limpet.worker.coroutines import EventLoop, has_running_loop
from limpet.worker.runner import as_current
from limpet.worker.verdict import end_of, record_done, trace_of

R = TypeVar("R")


@contextmanager
def eager(fleet: Fleet, *, signals: Mapping[str, Any] | None = None) -> Iterator[None]:
    """While the block lasts, `push` and `push_many` of a task function run what they push, in the caller's thread.

    An error of the task comes out of `push`, so a test sees it; the task is then in failed/. `Retry` runs it again at
    once, up to max_attempts. A delay is not waited for. Results stand in `task.queue.result(id)`. Pushes that go to
    `fleet.queue(name)` directly are left for `drain`.
    A durable task records its steps, gets its `signals` by name, and no time passes in its sleeps. Where it waits for a
    signal that is not among them, its time is up at once; one that would wait without a limit fails.
    Raises: Invalid for anything but a fleet. In the block: Invalid for a task that would wait without a limit.
    """
    check_fleet(fleet, "eager")
    before = fleet.tasks.run_at_once
    fleet.tasks.run_at_once = partial(_run_all, dict(signals or {}))
    try:
        yield
    finally:
        fleet.tasks.run_at_once = before


def drain(fleet: Fleet, *, max_tasks: int | None = None) -> TaskCounts:
    """Run all that waits in the queues of the fleet's tasks, as a worker does, until nothing is due; the counts.

    What tasks push meanwhile is run too. A task that raises is retried by its policy: if that is later than now, it
    stays. Errors do not come out; see the counts, or `task.queue.result(id)`. The clock does not move: see `isolated`.
    """
    worker = Worker([task.job for task in fleet.tasks], fleet.runtime, burst=True, in_order=False, max_tasks=max_tasks)
    counts = worker.run() if has_running_loop() else worker.run_here()
    if worker.error is not None:
        raise worker.error
    return counts


def check_fleet(fleet: object, caller: str) -> None:
    """Raises: Invalid for anything but a fleet."""
    if not isinstance(fleet, Fleet):
        raise Invalid(
            f"testing.{caller} wants a fleet, not {type(fleet).__name__} {str(fleet)[:40]!r}",
            hint="give it the object that limpet.open returned",
        )


class EagerSteps(TaskSteps):
    """The steps of a task that runs at once: every time is over, and signals are given."""

    __slots__ = ("_signals",)

    def __init__(self, queue: Queue, task: Task, signals: Mapping[str, Any]) -> None:
        super().__init__(queue, task)
        self._signals = signals

    def begin_again(self) -> None:
        """The next attempt begins, in this thread. Recorded steps stay."""
        self._next, self.suspended, self.main = 0, None, None
        self._thread = self._runtime.thread()

    def wait_signal(self, numbers: Sequence[int], name: str, timeout_s: float | None, default: Any) -> Any:
        """Send the signal, if it is given, then wait for it."""
        if name in self._signals:
            self._queue.signal(self._task.id, name, self._signals[name])
        return super().wait_signal(numbers, name, timeout_s, default)

    def _left_s(self, step: Versioned[StepRecord], number: int) -> float:
        return 0.0


def _run_all(signals: Mapping[str, Any], function: TaskFunction[..., Any]) -> None:
    while claim := function.queue.claim():
        with claim:
            for task in claim:
                _run(function, task, EagerSteps(function.queue, task, signals))


def _run(function: TaskFunction[..., Any], task: Task, steps: EagerSteps) -> None:
    error: BaseException | None = None
    for attempt in range(1, function.queue.policy.max_attempts + 1):
        value = None
        shown = RunningTask(function.name, task, lambda note: None, attempt=attempt, steps=steps)
        with UserCall() as call, as_current(shown), as_running(steps):
            steps.begin_again()
            value = function.handle(task.payload)
            if isawaitable(value):
                value = in_plain_thread(partial(_in_new_loop, value, steps))
        error = end_of(call.error, steps.suspended)
        if error is None:
            stored, note = record_done(task, value, function.arguments.returns)
            if not stored:
                raise Fail(note)
            return
        if isinstance(error, Suspend):
            error = _endless(function, error.suspension.reason)
        if not isinstance(error, Retry):
            break
    assert error is not None
    task.fail(one_line(error), trace_of(error))
    raise error


def _endless(function: TaskFunction[..., Any], reason: str) -> Invalid:
    return Invalid(
        f"task {function.name!r} stops in eager, {reason}",
        hint='give signals={"name": value}, or a timeout_s=; testing.isolated runs tasks that wait for each other',
    )


def in_plain_thread(call: Callable[[], R]) -> R:
    """What `call()` returns or raises; inside a running event loop it is called in another thread."""
    if not has_running_loop():
        return call()
    result: list[R] = []
    context = copy_context()

    def run() -> None:
        with caught:
            result.append(context.run(call))

    caught = UserCall()
    system().spawn(run, name="limpet-testing").join()
    if caught.error is not None:
        raise caught.error
    return result[0]


def _in_new_loop(work: Awaitable[Any], steps: EagerSteps) -> Any:
    steps.begin_again()
    loop = EventLoop()
    try:
        return loop.run(work, lambda: None)
    finally:
        loop.close()
