"""Time, chance and threads. No other module touches them.

Everything above takes a `Runtime` as an argument, so the simulation can run the same synchronous code on a virtual
clock with one seed (`limpet.sim`). `system()` is the real one.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")

FAN_OUT_MAX = 32
POOL_MAX = 128

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Flag(Protocol):
    """A latch that threads can wait for."""

    def set(self) -> None:
        """Raise it, for good."""

    def is_set(self) -> bool:
        """Whether it was raised."""

    def wait(self, timeout: float) -> bool:
        """Wait until it is raised or `timeout` seconds have passed; whether it was raised."""


class ThreadHandle(Protocol):
    """A thread of this process."""

    def join(self) -> None:
        """Wait until it has ended."""


class Runtime(Protocol):
    """What the core may know of time, chance and threads."""

    @property
    def owner(self) -> str:
        """Random id of this process, made anew at start and after a fork (F17)."""

    @property
    def label(self) -> str:
        """`host:pid`, for people; never compared."""

    @property
    def rng(self) -> random.Random:
        """Chance that no other process shares."""

    @property
    def shared(self) -> dict[Any, Any]:
        """What all handles of this process share, under keys of their own; made anew after a fork."""

    def wall(self) -> datetime:
        """This machine's wall clock, in UTC: a label for people, never compared with another's (F13)."""

    def elapsed_s(self) -> float:
        """Seconds on a clock that only rises and counts time asleep (CLOCK_BOOTTIME where there is one)."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def new_id(self) -> str:
        """26 lower-case characters, unique, sorted by creation time within a second or so (a ULID)."""

    def flag(self) -> Flag:
        """A new latch."""

    def mutex(self) -> AbstractContextManager[Any]:
        """A new lock between threads of this process."""

    def spawn(self, work: Callable[[], None], *, name: str) -> ThreadHandle:
        """Run `work` beside the caller, in a thread that does not keep the process alive."""

    def fan_out(self, call: Callable[[A], B], items: Iterable[A], *, at_once: int = FAN_OUT_MAX) -> list[B]:
        """`call` for each item, at most `at_once` at a time; results in the order of the items.

        `call` must not raise: an error is a result like any other.
        """


class SystemRuntime:
    """The real clock, chance and threads of this process."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._fresh()
        os.register_at_fork(after_in_child=self._fresh)

    def _fresh(self) -> None:
        self._rng = random.Random(os.urandom(32))
        self._owner = self.new_id()
        self._label = f"{socket.gethostname()}:{os.getpid()}"
        self._pool: ThreadPoolExecutor | None = None
        self._in_pool = threading.local()
        self._mutex = threading.Lock()
        self._shared: dict[Any, Any] = {}

    @property
    def owner(self) -> str:
        return self._owner

    @property
    def label(self) -> str:
        return self._label

    @property
    def rng(self) -> random.Random:
        return self._rng

    @property
    def shared(self) -> dict[Any, Any]:
        return self._shared

    def wall(self) -> datetime:
        return datetime.now(UTC)

    def elapsed_s(self) -> float:
        return time.clock_gettime(_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def new_id(self) -> str:
        return ulid(time.time_ns() // 1_000_000, self._rng.getrandbits(80))

    def flag(self) -> Flag:
        return threading.Event()

    def mutex(self) -> AbstractContextManager[Any]:
        return threading.Lock()

    def spawn(self, work: Callable[[], None], *, name: str) -> ThreadHandle:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def fan_out(self, call: Callable[[A], B], items: Iterable[A], *, at_once: int = FAN_OUT_MAX) -> list[B]:
        """A call made from inside a fan-out runs its items one after another."""
        todo = list(items)
        if len(todo) < 2 or at_once < 2 or getattr(self._in_pool, "yes", False):
            return [call(item) for item in todo]
        slots = threading.BoundedSemaphore(min(at_once, POOL_MAX))

        def one(item: A) -> B:
            with slots:
                self._in_pool.yes = True
                return call(item)

        return list(self._executor().map(one, todo))

    def _executor(self) -> ThreadPoolExecutor:
        with self._mutex:
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor

                self._pool = ThreadPoolExecutor(POOL_MAX, thread_name_prefix="limpet-io")
            return self._pool


async def in_thread(call: Callable[P, B], /, *args: P.args, **kwargs: P.kwargs) -> B:
    """`call(...)` in a thread, for coroutines: the event loop goes on meanwhile."""
    from asyncio import to_thread

    return await to_thread(call, *args, **kwargs)


class ProcessMutex:
    """A lock between all threads of this process. A forked child begins with it free."""

    def __init__(self) -> None:
        self._fresh()
        os.register_at_fork(after_in_child=self._fresh)

    def _fresh(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def ulid(unix_ms: int, chance: int) -> str:
    """48 bits of time and 80 of chance in Crockford's base 32, lower case."""
    bits = (unix_ms << 80) | chance
    return "".join([_PAIRS[(bits >> shift) & 1023] for shift in range(120, -1, -10)])


_system: SystemRuntime | None = None


def system() -> SystemRuntime:
    """The one real runtime of this process."""
    global _system
    if _system is None:
        _system = SystemRuntime()
    return _system


def ulid_ms(text: str) -> int | None:
    """The milliseconds since 1970 that a ULID holds; None for another text."""
    digits = [_ALPHABET.find(char) for char in text[:10]]
    if len(text) != 26 or min(digits) < 0:
        return None
    return sum(digit << 5 * n for n, digit in enumerate(reversed(digits)))
