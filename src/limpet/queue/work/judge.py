"""From the end of a handler to a verdict."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec

from limpet.errors import Invalid, LeaseLost, Unsupported
from limpet.queue.api import Fail, Retry, Task

TRACE_BYTES_MAX = 8 * 1024
LINE_CHARS_MAX = 500
UNSTORABLE = "the handler returned, but its result cannot be stored"
OUR_FRAMES = ("limpet", "asyncio", "contextlib", "importlib")


@dataclass(frozen=True, slots=True)
class Again:
    """It wants, or needs, another attempt."""

    error: str
    after_s: float | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """It gave the task up."""

    error: str
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """It stopped because the claim was over: somebody else goes on."""

    error: str


@dataclass(frozen=True, slots=True)
class Halt:
    """It asked the process to end. The task goes back as if it had not begun."""

    error: str


Verdict = Again | Failed | Dropped | Halt


class Caught:
    """A block of somebody else's code, and what it raised: any error at all may come out of it.

    `Exception`, KeyboardInterrupt and SystemExit stop here; what ends a thread from outside passes.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> Caught:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        self.error = error
        return isinstance(error, (Exception, KeyboardInterrupt, SystemExit))


def judge(error: BaseException, *, lost: bool) -> Verdict:
    """What becomes of a task whose handler raised `error`. `lost`: the claim is over."""
    match error:
        case KeyboardInterrupt():
            return Halt(f"the handler raised {type(error).__name__}")
        case LeaseLost() if lost:
            return Dropped(str(error))
        case Retry():
            return Again(str(error), error.after_s, trace_of(error))
        case Fail():
            return Failed(str(error), trace_of(error))
        case _:
            return Again(one_line(error), None, trace_of(error))


def record_done(task: Task, value: Any) -> Failed | str | None:
    """Record that the task is done, with its result.

    A result that cannot be stored is a failure of the task, which is returned and not yet recorded. Where the queue
    keeps no results (SQS) it is left out, and the text says so.   Raises: LimpetError if the store does not take it.
    """
    try:
        task.done(None if value is None else msgspec.to_builtins(value, str_keys=True))
    except Unsupported as error:
        task.done()
        return f"done without its result: {error}"
    except Invalid as error:
        return Failed(f"{UNSTORABLE}: {error}")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return Failed(f"{UNSTORABLE}: {one_line(error)}")
    return None


def one_line(error: BaseException) -> str:
    """The kind of error and the first line of what it says."""
    said, _, more = str(error).strip().partition("\n")
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return text[:LINE_CHARS_MAX] + (" ..." if more or len(text) > LINE_CHARS_MAX else "")


def trace_of(error: BaseException) -> str | None:
    """The traceback from the user's first frame on, at most 8 KiB of its end; None if no frame is the user's."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").partition(".")[0] in OUR_FRAMES:
        frames = frames.tb_next
    if frames is None:
        return None
    text = "".join(traceback.format_exception(type(error), error, frames))
    data = text.encode(errors="backslashreplace")
    if len(data) <= TRACE_BYTES_MAX:
        return text
    return "...\n" + data[4 - TRACE_BYTES_MAX :].decode(errors="ignore")
