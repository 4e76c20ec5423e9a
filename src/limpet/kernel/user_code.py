"""The border between Limpet and a user's code: whatever leaves that code, of any class, is kept and goes no further.

`UserCall` is the one wrapper around it. `ended` and `ended_async` call it and return how the call ended, for threads
and event loops, which handle some classes of errors on their own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec

from limpet.kernel.errors import LimpetError
from limpet.kernel.wording import an

P = ParamSpec("P")

LINE_CHARS_MAX = 500
VERSION_CHARS = 12
SHORT_CHARS_MAX = 300


class UserCall:
    """A block that calls a user's code, and the error that came out of it.

    No class of error leaves the block, SystemExit, GeneratorExit and `asyncio.CancelledError` included.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> UserCall:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        self.error = error
        return True


@dataclass(slots=True)
class CallResult:
    """How a call of a user's code ended."""

    value: Any
    error: BaseException | None

    def get(self) -> Any:
        """What the call returned.   Raises: what it raised."""
        if self.error is not None:
            raise self.error
        return self.value


def ended(call: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> CallResult:
    """How `call(...)` ends."""
    try:
        return CallResult(call(*args, **kwargs), None)
    except BaseException as error:  # noqa: BLE001 - as `UserCall`, in a quarter of its time
        return CallResult(None, error)


async def ended_async(work: Awaitable[Any]) -> CallResult:
    """How `work` ends. Its SystemExit does not stop the event loop."""
    value = None
    with UserCall() as done:
        value = await work
    return CallResult(value, done.error)


def text_of(error: BaseException) -> str:
    """`str(error)`, which is a user's code too."""
    said = ended(str, error)
    return said.value if said.error is None else f"{an(type(error).__name__)} whose text cannot be shown"


def one_line(error: BaseException) -> str:
    """The type of the error, the first line of its text, and the hint if it is one of ours."""
    said, _, more = text_of(error).strip().partition("\n")
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    if isinstance(error, LimpetError) and error.hint not in ("", error.default_hint):
        text += f" (hint: {error.hint})"
    return text[:LINE_CHARS_MAX] + (" ..." if more or len(text) > LINE_CHARS_MAX else "")


def short_reason(error: BaseException) -> str:
    """What is wrong with a value, in one line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    said = " ".join(text_of(error).split()) or type(error).__name__
    return "".join(char if char.isprintable() else "?" for char in said[:SHORT_CHARS_MAX])


def code_version(function: Callable[..., Any]) -> str:
    """A short name of the version of a function's code: another one once it has changed, or a module of its package
    that is loaded now. Empty for what is not written in Python.
    """
    from hashlib import sha256

    owner: Any = getattr(function, "__self__", None)
    function = inspect.unwrap(owner if hasattr(owner, "__wrapped__") else function)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    package = function.__module__.partition(".")[0]
    loaded = (sys.modules[name] for name in sorted(sys.modules) if name.partition(".")[0] == package)
    files = dict.fromkeys([code.co_filename, *(getattr(module, "__file__", None) or "" for module in loaded)])
    sources = [ended(Path(file).read_bytes).value or b"" for file in files if file.endswith(".py")]
    place = f"{code.co_qualname}:{code.co_firstlineno}:{code.co_names}".encode()
    return sha256(b"\0".join((*sources, place, code.co_code))).hexdigest()[:VERSION_CHARS]
