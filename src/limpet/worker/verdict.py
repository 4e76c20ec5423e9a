"""What becomes of a task when its handler has ended: pure rules, and how a result is recorded."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from msgspec import ValidationError

from limpet.kernel.errors import Invalid, LeaseLost, Unsupported
from limpet.kernel.user_code import one_line, text_of
from limpet.queue.api import Fail, Retry, Task
from limpet.queue.steps import Suspend
from limpet.queue.value_types import ANYTHING, ValueType, shown_type

TRACE_BYTES_MAX = 8 * 1024
INTERRUPTED = "a signal has interrupted the handler"
UNSTORABLE = "the handler returned, but its result cannot be stored"
OUR_FRAMES = ("limpet", "asyncio", "contextlib", "importlib")
Outcome = Literal["done", "failed", "retried", "lost", "handed_back", "suspended"]


@dataclass(frozen=True, slots=True)
class TaskVerdict:
    """What is done with a task whose handler raised.

    retry: another attempt, after `after_s`, or after the queue's back-off. fail: no further attempt. lost: the handler
    stopped because its claim has ended; another worker has the task. halt: a signal has interrupted the handler, and
    the worker ends; the task goes back with its attempt restored.
    """

    kind: Literal["retry", "fail", "lost", "halt"]
    error: str
    after_s: float | None = None
    trace: str | None = None


def classify(error: BaseException, *, lost: bool, interrupted: bool = False) -> TaskVerdict:
    """The verdict on a task whose handler raised `error`. `lost`: its claim has ended.

    `interrupted`: this thread got a signal, which is where a KeyboardInterrupt comes from; a handler may also raise one
    by itself, and that is an error like any other.
    """
    match error:
        case KeyboardInterrupt() if interrupted:
            return TaskVerdict("halt", INTERRUPTED)
        case LeaseLost() if lost:
            return TaskVerdict("lost", text_of(error))
        case Retry():
            return TaskVerdict("retry", text_of(error), error.after_s, trace_of(error))
        case Fail():
            return TaskVerdict("fail", text_of(error), trace=trace_of(error))
        case _:
            return TaskVerdict("retry", one_line(error), trace=trace_of(error))


def end_of(error: BaseException | None, suspended: Suspend | None) -> BaseException | None:
    """How a run has ended whose handler raised `error`, or returned (None), and which was `suspended` or not.

    A handler that catches `Suspend` and returns has not returned: it is suspended all the same. A group of errors, as
    an `asyncio.TaskGroup` raises it, is a suspension if there is nothing else in it.
    """
    if isinstance(error, BaseExceptionGroup):
        error = error.split(Suspend)[1]
    return error if error is not None else suspended


def record_done(task: Task, value: Any, returns: ValueType = ANYTHING) -> tuple[bool, str]:
    """Record that the task is done, with its result; whether that was stored, and what is to be said about it.

    A result that cannot be stored, or does not fit what the function `returns`, is a failure of the task, and is
    recorded as one. Where the queue keeps no results (SQS) it is left out, and the text says so.
    Raises: LimpetError if the store fails.
    """
    try:
        task.done(None if value is None and returns.takes_none else returns.stored(value))
    except Unsupported as error:
        task.done()
        return True, f"done without its result: {error}"
    except Invalid as error:
        note = f"{UNSTORABLE}: {error}"
    except ValidationError as error:
        note = f"the handler returned, but its result does not fit {shown_type(returns.kind)}: {error}"
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        note = f"{UNSTORABLE}: {one_line(error)}"
    else:
        return True, ""
    task.fail(note)
    return False, note


def user_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the user's first frame on; None if no frame is the user's."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").partition(".")[0] in OUR_FRAMES:
        frames = frames.tb_next
    return frames


def trace_of(error: BaseException) -> str | None:
    """The traceback from the user's first frame on, at most the last 8 KiB; None if no frame is the user's."""
    frames = user_frames(error)
    if frames is None:
        return None
    text = "".join(traceback.format_exception(type(error), error, frames))
    data = text.encode(errors="backslashreplace")
    if len(data) <= TRACE_BYTES_MAX:
        return text
    return "...\n" + data[4 - TRACE_BYTES_MAX :].decode(errors="ignore")
