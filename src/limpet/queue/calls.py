"""Durable tasks: `step`, `sleep`, `gather`, `wait_signal`, `version`, as a handler calls them.

Outside of a task every function does the plain thing: it calls, sleeps, waits.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

from limpet.kernel import records
from limpet.kernel.errors import Invalid
from limpet.kernel.runtime import in_thread, in_whole_thread, pause, system
from limpet.queue.api import Pushed, Result, TaskHandle
from limpet.queue.step_values import (
    call_digest,
    checked_seconds,
    final_bytes,
    handles_of,
    results_in_order,
    shown,
    step_name,
    typed_value,
)
from limpet.queue.steps import RUNNING, TaskSteps, begun, in_step

P = ParamSpec("P")
R = TypeVar("R")

FOREVER_S = 10 * 366 * 86400.0


def step(function: Callable[..., R], /, *args: Any, name: str | None = None, **kwargs: Any) -> R:
    """Call `function` and record what it returns: a later attempt of this task does not call it again.

    All attempts get the same value, as the function's return type builds it from JSON. An exception records nothing
    and ends the attempt as usual. `name` (default: the function's) and a digest of the arguments tell this step from
    others when the code changes. The function may run more than once if its worker dies before the record:
    `limpet.current_task().step_key` is an idempotency key for its side effects.
    Outside of a task, the function is called and nothing is recorded; so it is in a thread that knows no task.
    If another step was recorded under its number, the task is suspended until a worker has code that fits.
    Raises: Fail for a result that is not JSON or over 256 KiB; Invalid in another thread or coroutine than the
    handler's own; LeaseLost; Suspend.
    Cost: 1 PUT; in a later claim 1 LIST and 1 GET for each recorded step, once.
    """
    called = step_name(function, name, args)
    if inspect.iscoroutinefunction(function):
        raise Invalid(f"{called} is a coroutine function", hint="await limpet.step_async(...)")
    steps = RUNNING.get()
    if steps is None:
        return function(*args, **kwargs)
    number, sha256 = steps.take(), call_digest(function, args, kwargs)
    found = steps.recalled(number, "step", called, sha256)
    if found is None:
        began_at = steps.wall()
        with in_step(number):
            value = function(*args, **kwargs)
        data = final_bytes(value, function, called)
        found = steps.record(number, "step", called, data, began_at=began_at, sha256=sha256)
    return typing.cast(R, typed_value(found.value.value, function, called))


@overload
def step_async(
    function: Callable[..., Awaitable[R]], /, *args: Any, name: str | None = None, **kwargs: Any
) -> Coroutine[Any, Any, R]: ...


@overload
def step_async(
    function: Callable[..., R], /, *args: Any, name: str | None = None, **kwargs: Any
) -> Coroutine[Any, Any, R]: ...


def step_async(
    function: Callable[..., Any], /, *args: Any, name: str | None = None, **kwargs: Any
) -> Coroutine[Any, Any, Any]:
    """`step`, for coroutines: of a coroutine function, or of a plain one, which then runs in a thread.

    Steps are numbered in the order of the calls of `step_async`, so several may be awaited at once. One that has begun
    is recorded before the task is suspended. One whose coroutine is cancelled otherwise records nothing, and may have
    had its effect; a plain function in its thread comes to its end first, and is recorded.
    """
    called = step_name(function, name, args)
    steps = RUNNING.get()
    if steps is None:
        return _called(function, args, kwargs, in_thread)
    number, sha256 = steps.take(), call_digest(function, args, kwargs)
    return begun(steps, _step_async(steps, number, sha256, function, called, args, kwargs))


async def _step_async(
    steps: TaskSteps, number: int, sha256: str, function: Callable[..., Any], called: str, args: Any, kwargs: Any
) -> Any:
    found = await in_whole_thread(steps.recalled, number, "step", called, sha256)
    if found is None:
        if steps.suspended is not None:
            raise steps.suspended  # it has not begun
        began_at = steps.wall()
        with in_step(number):
            value = await _called(function, args, kwargs, in_whole_thread)
        data = final_bytes(value, function, called)
        record = partial(steps.record, number, "step", called, data, began_at=began_at, sha256=sha256)
        found = await in_whole_thread(record)
    return typed_value(found.value.value, function, called)


async def _called(function: Callable[..., Any], args: Any, kwargs: Any, in_thread: Callable[..., Any]) -> Any:
    """A coroutine function, or a plain one in a thread, or anything that returns what is to be awaited."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    value = await in_thread(function, *args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def sleep(seconds: float) -> None:
    """Suspend this task for so long: no worker and no claim is held meanwhile, and no attempt is charged.

    The time counts from its first record, by the store's clock. Outside of a task it sleeps.
    Raises: Invalid for a negative time or one of more than a year.   Cost: 1 PUT, and 1 PUT for the suspension.
    """
    wait_s = checked_seconds(seconds, "a sleep")
    steps = RUNNING.get()
    if steps is None:
        system().sleep(wait_s)
    else:
        steps.sleep(steps.take(), wait_s)


def sleep_async(seconds: float) -> Coroutine[Any, Any, None]:
    """`sleep`, for coroutines."""
    wait_s = checked_seconds(seconds, "a sleep")
    steps = RUNNING.get()
    if steps is None:
        return pause(wait_s)
    return begun(steps, in_whole_thread(steps.sleep, steps.take(), wait_s))


def gather(tasks: Iterable[TaskHandle | Pushed], *, timeout_s: float | None = None) -> list[Result]:
    """The ends of these tasks, in their order: suspends this task until all of them have ended.

    A failed task has ended, and so has a cancelled one: see `Result.ok` and `Result.error`. When `timeout_s` is up, the
    others are `pending`. All attempts get the same ends. Outside of a task it waits.
    Raises: Invalid for an id that is no handle of a push; Unsupported for tasks in SQS.
    Cost: 1 HEAD for a look while the first of them runs, else 1 GET for each entry; 1 PUT at the end.
    """
    return _gathering(tasks, timeout_s)[1]()


def gather_async(
    tasks: Iterable[TaskHandle | Pushed], *, timeout_s: float | None = None
) -> Coroutine[Any, Any, list[Result]]:
    """`gather`, for coroutines."""
    steps, wait = _gathering(tasks, timeout_s)
    return in_thread(wait) if steps is None else begun(steps, in_whole_thread(wait))


def _gathering(
    tasks: Iterable[TaskHandle | Pushed], timeout_s: float | None
) -> tuple[TaskSteps | None, Callable[[], list[Result]]]:
    """The steps of the task that gathers, and how it waits; its numbers are taken now."""
    handles = handles_of(tasks)
    steps = RUNNING.get()
    if steps is None:
        wait_s = FOREVER_S if timeout_s is None else checked_seconds(timeout_s, "timeout_s")
        return None, partial(_waited, handles, wait_s)
    numbers, limit_s = _limited(steps, timeout_s)
    return steps, partial(steps.gather, numbers, handles, limit_s)


def _limited(steps: TaskSteps, timeout_s: float | None) -> tuple[list[int], float | None]:
    """The numbers of a step that waits, and its time limit: with one, that is recorded under the first number."""
    if timeout_s is None:
        return [steps.take()], None
    limit_s = checked_seconds(timeout_s, "timeout_s")
    return [steps.take(), steps.take()], limit_s


def _waited(handles: Sequence[TaskHandle], timeout_s: float) -> list[Result]:
    until_s = system().elapsed_s() + timeout_s
    for handle in handles:
        handle.result(wait_s=max(0.0, until_s - system().elapsed_s()))
    return results_in_order(handles)


def wait_signal(name: str, *, timeout_s: float | None = None, default: Any = None) -> Any:
    """The value of the signal `name` to this task: suspends the task until `limpet.signal` has sent it.

    When `timeout_s` is up, `default`. The first signal of a name counts, and stays.
    Raises: Invalid outside of a task.   Cost: 1 GET for a look, 1 PUT at the end.
    """
    steps = _needed()
    numbers, limit_s = _limited(steps, timeout_s)
    return steps.wait_signal(numbers, name, limit_s, default)


def wait_signal_async(name: str, *, timeout_s: float | None = None, default: Any = None) -> Coroutine[Any, Any, Any]:
    """`wait_signal`, for coroutines."""
    steps = _needed()
    numbers, limit_s = _limited(steps, timeout_s)
    return begun(steps, in_whole_thread(steps.wait_signal, numbers, name, limit_s, default))


def version(change: str) -> bool:
    """Whether this task is on the new side of a change of its code, for ever.

    A task that had come past this place before the change stays on the old side. Outside of a task: True.
    Cost: 1 PUT the first time.
    """
    if not isinstance(change, str) or not 0 < len(change) <= records.NAME_MAX or not change.isprintable():
        raise Invalid(f"a change needs a short name, not {shown(change)}", hint='limpet.version("check-first")')
    steps = RUNNING.get()
    return True if steps is None else steps.version(change)


def signal(task: TaskHandle | Pushed, name: str, value: Any = None, *, early: bool = False) -> bool:
    """Send a signal to a task that waits for it now or later; whether this call was the first of that name.

    Raises, Cost: as `Queue.signal`. For an id that is only a text, call `queue.signal(id, name, value)`.
    """
    [handle] = handles_of([task])
    return handle.queue.signal(handle, name, value, early=early)


def _needed() -> TaskSteps:
    steps = RUNNING.get()
    if steps is None:
        raise Invalid("only a task can wait for a signal", hint="call it in a handler that a worker runs")
    return steps
