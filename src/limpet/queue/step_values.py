"""The values, names and arguments of a durable task's steps: checked, encoded as they are recorded, and read back."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid
from limpet.kernel.user_code import UserCall, one_line
from limpet.kernel.wording import an
from limpet.queue.api import Fail, Pushed, Result, TaskHandle
from limpet.queue.durable import arguments_digest
from limpet.queue.entry import (
    DELAY_MAX_S,
    ERROR_CHARS_MAX,
    GATHER_MAX,
    NOTHING,
    GatheredStep,
    GatheredTask,
    value_bytes,
)
from limpet.queue.value_types import ANYTHING, UnsupportedType, ValueType, return_type

S = TypeVar("S", bound=msgspec.Struct)

GATHERED_BYTES_MAX = 512 * 1024
SHORT_ERROR_CHARS = 40
UNREADABLE = "cannot be read; `limpet queue retry --from-scratch` runs the task without its recorded steps"


def decoded_value(data: msgspec.Raw, kind: type[S], number: int) -> S:
    """The value of step `number` as a `kind`.   Raises: Fail."""
    try:
        return records.decode(bytes(data), kind, what=f"step {number}")
    except Corrupt as error:
        raise Fail(f"step {number} {UNREADABLE}: {error}") from None


def json_value(data: msgspec.Raw) -> Any:
    """The value of a step as plain JSON.   Raises: Corrupt."""
    return records.decode(bytes(data), typing.cast(type[Any], Any), what="the value of a step")


def results_in_order(handles: Sequence[TaskHandle]) -> list[Result]:
    """The results of tasks of several queues, in order."""
    found: dict[int, Result] = {}
    by_queue: dict[int, list[int]] = {}
    for n, handle in enumerate(handles):
        by_queue.setdefault(id(handle.queue), []).append(n)
    for places in by_queue.values():
        results = handles[places[0]].queue.results([handles[n] for n in places])
        found.update(zip(places, results, strict=True))
    return [found[n] for n in range(len(handles))]


def built_result(handle: TaskHandle, result: Result) -> Result:
    """The result of a task with its value built as its queue builds results."""
    kind = handle.queue.result_type
    return result if kind is None else kind.built_result(result)


def gathered_bytes(results: Sequence[Result], digest: str) -> bytes:
    """The ends of tasks as a gather records them: without results if these are too large, then with short errors, and
    at last without errors."""

    def encoded(error_chars: int, *, values: bool) -> bytes:
        tasks = [
            GatheredTask(
                state=each.state,
                value=msgspec.Raw(records.encode(each.value)) if values and each.value is not None else NOTHING,
                error=(each.error or "")[:error_chars] or None,
                attempts=each.attempts,
                worker=each.worker if values else None,
            )
            for each in results
        ]
        return records.encode(GatheredStep(tasks=tasks, values=values, sha256=digest))

    data = encoded(ERROR_CHARS_MAX, values=True)
    for error_chars in (SHORT_ERROR_CHARS, 0):
        if len(data) > GATHERED_BYTES_MAX:
            data = encoded(error_chars, values=False)
    return data


def step_type(function: Callable[..., Any]) -> ValueType:
    """What a step returns, by its function's annotation. A value of a type that cannot be built stays plain."""
    try:
        return return_type(function)
    except (NameError, UnsupportedType):
        return ANYTHING


def typed_value(data: bytes | msgspec.Raw, function: Callable[..., Any], name: str) -> Any:
    """A recorded value as the function's return type.   Raises: Invalid if it does not fit."""
    try:
        return step_type(function).built(json_value(msgspec.Raw(data)))
    except msgspec.ValidationError as error:
        raise Invalid(f"what step {name!r} returned does not fit its annotation: {error}") from None


def step_name(function: Any, name: str | None, args: Sequence[Any]) -> str:
    """The name of a step: the given one, or that of its function.   Raises: Invalid."""
    if inspect.iscoroutine(function):
        function.close()  # or Python warns that it was never awaited
    if not callable(function):
        raise Invalid(
            f"a step needs a function, not {shown(function)}",
            hint="limpet.step(f, x) calls f(x): do not call it yourself",
        )
    if name is not None and _leaves_name(function, args):
        raise Invalid(
            "`name` names the step, and the function has a parameter `name`, too",
            hint="pass that one by its place, or limpet.step(functools.partial(f, name=...), name=...)",
        )
    found = name if name is not None else getattr(function, "__qualname__", getattr(function, "__name__", ""))
    if not found or (name is None and "<lambda>" in found):
        what = "a lambda" if found else an(type(function).__name__)
        raise Invalid(f"{what} has no name", hint='give the step one: limpet.step(f, name="...")')
    return _text(found, "the name of a step").rsplit("<locals>.", 1)[-1][: records.NAME_MAX]


def _leaves_name(function: Any, args: Sequence[Any]) -> bool:
    """Whether the function has a parameter `name` that these arguments leave open."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # one of C's
        return False
    if isinstance(function, partial) and "name" in function.keywords:
        return False
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    filled = [each.name for each in parameters if each.kind in by_place][: len(args)]
    open_ = [each.name for each in parameters if each.kind in (by_place[1], inspect.Parameter.KEYWORD_ONLY)]
    return "name" in open_ and "name" not in filled


def call_digest(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """The digest of the arguments of a call, those of a `functools.partial` too."""
    while isinstance(function, partial):
        args, kwargs, function = (*function.args, *args), {**function.keywords, **kwargs}, function.func
    return arguments_digest(args, kwargs)


def final_bytes(value: Any, function: Callable[..., Any], called: str) -> bytes:
    """What a step's function has returned, as it is recorded.

    Raises: Fail if that cannot be. The function has run, so another attempt would only run it again.
    """
    with UserCall() as call:
        if inspect.iscoroutine(value):
            value.close()
            raise Invalid(f"what step {called!r} returned is a coroutine", hint="await limpet.step_async(...)")
        data = value_bytes(value, f"what step {called!r} returned")
        typed_value(data, function, called)
        return data
    assert call.error is not None
    raise Fail(one_line(call.error)) from call.error


def _text(name: Any, what: str) -> str:
    """A name that can be recorded.   Raises: Invalid."""
    if not isinstance(name, str) or not name.isprintable():
        raise Invalid(f"{what} is a printable text, not {shown(name)}", hint="give it a short name")
    return name


def handles_of(tasks: Iterable[Any]) -> list[TaskHandle]:
    """The handles of the tasks that a gather waits for.   Raises: Invalid."""
    if isinstance(tasks, set | frozenset):
        raise Invalid("gather needs a list of tasks: a set has another order in each run", hint="limpet.gather([task])")
    if isinstance(tasks, Pushed | str) or not isinstance(tasks, Iterable):
        raise Invalid(f"gather needs a list of tasks, not {shown(tasks)}", hint="limpet.gather([task])")
    found: list[TaskHandle] = []
    for task in tasks:
        each = task.id if isinstance(task, Pushed) else task
        if not isinstance(each, TaskHandle):
            raise Invalid(f"{shown(each)} is not the handle of a task", hint="give what push and push_many return")
        found.append(each)
    if len(found) > GATHER_MAX:
        raise Invalid(f"gather takes at most {GATHER_MAX} tasks, not {len(found)}", hint="gather them in parts")
    return found


def checked_seconds(seconds: float, what: str) -> float:
    """A wait of at most a year.   Raises: Invalid."""
    if not isinstance(seconds, int | float) or not 0 <= seconds <= DELAY_MAX_S:
        raise Invalid(
            f"{what} must be between 0 and {DELAY_MAX_S:.0f} seconds, not {shown(seconds)}",
            hint="that is a year at most",
        )
    return float(seconds)


def shown(value: object) -> str:
    """A wrong argument, on one short line."""
    return repr(value)[:80]
