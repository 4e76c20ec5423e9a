"""For the tests of your own code: tasks that run at once, or when you say so, without a worker or a bucket.

from limpet import testing
from app import enrich, fleet              # in app.py: fleet = limpet.open(), and LIMPET_URL=memory:// for tests

def test_enrich():
    with testing.eager(fleet):             # a push runs its task before it returns
        pushed = enrich.push("a.com")
    assert enrich.queue.result(pushed.id).value == "A.COM"

def test_pipeline():
    enrich.push("a.com")                   # waits in the queue, as in production
    assert testing.drain(fleet).done == 1  # runs everything that waits

Limpet's pytest plugin has two fixtures: `limpet_fleet`, a new empty fleet in memory for each test, and `limpet_clock`,
its clock: `limpet_clock.advance(3600)` makes what is due within the hour due now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from datetime import datetime, timedelta
from inspect import isawaitable
from typing import Any

from limpet.app import Fleet, open
from limpet.app.tasks import TaskFunction
from limpet.kernel.errors import Invalid
from limpet.kernel.runtime import SystemRuntime, system
from limpet.kernel.user_code import UserCall, one_line
from limpet.queue.api import Fail, Retry, Task
from limpet.worker import RunningTask, TaskCounts, Worker
from limpet.worker.coroutines import EventLoop, has_running_loop
from limpet.worker.runner import as_current
from limpet.worker.verdict import record_done, trace_of


class Clock:
    """The clock of a test's fleet: it runs like the real one, and `advance` moves it."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Delays, retries, leases and retention see that time as passed."""
        if not seconds >= 0:
            raise Invalid(f"a clock moves forward, not by {seconds:g} seconds")
        self.offset_s += seconds


class _MovedRuntime(SystemRuntime):
    def __init__(self, clock: Clock) -> None:
        self._moved = clock
        super().__init__()

    def wall(self) -> datetime:
        return super().wall() + timedelta(seconds=self._moved.offset_s)

    def elapsed_s(self) -> float:
        return super().elapsed_s() + self._moved.offset_s


def fleet(clock: Clock | None = None) -> Fleet:
    """A new, empty fleet in this process's memory; with a `clock`, on that clock."""
    return open("memory://", runtime=_MovedRuntime(clock) if clock is not None else None)


@contextmanager
def eager(fleet: Fleet) -> Iterator[None]:
    """While the block lasts, `push` and `push_many` of a task function run what they push, in the caller's thread.

    An error of the task comes out of `push`, so a test sees it; the task is then in failed/. `Retry` runs it again at
    once, up to max_attempts. A delay is not waited for. Results stand in `task.queue.result(id)`. Pushes that go to
    `fleet.queue(name)` directly are left for `drain`.
    """
    before = fleet.tasks.run_at_once
    fleet.tasks.run_at_once = _run_all
    try:
        yield
    finally:
        fleet.tasks.run_at_once = before


def drain(fleet: Fleet, *, max_tasks: int | None = None) -> TaskCounts:
    """Run all that waits in the queues of the fleet's tasks, as a worker does, until nothing is due; the counts.

    What tasks push meanwhile is run too. A task that raises is retried by its policy: if that is later than now, it
    stays. Errors do not come out; see the counts, or `task.queue.result(id)`.
    """
    worker = Worker([task.job for task in fleet.tasks], fleet.runtime, burst=True, in_order=False, max_tasks=max_tasks)
    counts = worker.run() if has_running_loop() else worker.run_here()
    if worker.error is not None:
        raise worker.error
    return counts


def _run_all(function: TaskFunction[..., Any]) -> None:
    while claim := function.queue.claim():
        with claim:
            for task in claim:
                _run(function, task)


def _run(function: TaskFunction[..., Any], task: Task) -> None:
    error: BaseException | None = None
    for attempt in range(1, function.queue.policy.max_attempts + 1):
        value = None
        with UserCall() as call, as_current(RunningTask(function.name, task, lambda note: None, attempt=attempt)):
            value = function.handle(task.payload)
            if isawaitable(value):
                value = _awaited(value)
        error = call.error
        if error is None:
            stored, note = record_done(task, value, function.arguments.returns)
            if not stored:
                raise Fail(note)
            return
        if not isinstance(error, Retry):
            break
    assert error is not None
    task.fail(one_line(error), trace_of(error))
    raise error


def _awaited(work: Awaitable[Any]) -> Any:
    """What a coroutine returns, also for a caller who is inside a running event loop: then in another thread."""
    if not has_running_loop():
        return _in_new_loop(work)
    result: list[Any] = []
    context = copy_context()

    def run() -> None:
        with call:
            result.append(context.run(_in_new_loop, work))

    call = UserCall()
    system().spawn(run, name="limpet-eager").join()
    if call.error is not None:
        raise call.error
    return result[0]


def _in_new_loop(work: Awaitable[Any]) -> Any:
    loop = EventLoop()
    try:
        return loop.run(work, lambda: None)
    finally:
        loop.close()
