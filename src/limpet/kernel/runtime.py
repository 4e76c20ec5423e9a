"""Clocks, random numbers and threads. No other module uses Python's own.

All other packages take a `Runtime` as an argument, so that the simulation can run the same synchronous code on a
virtual clock with one seed (`sim`). `system()` is the real one.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from limpet.kernel.user_code import ended, ended_async

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")

FAN_OUT_MAX = 32
POOL_MAX = 128

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LETTERS = bytes(ord(_ALPHABET[byte % 32]) for byte in range(256))
"""Turns random bytes into random letters: each stands for five of its eight bits."""
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Flag(Protocol):
    """An event that threads can wait for. Once set, it stays set."""

    def set(self) -> None:
        """Set it, and wake up the threads that wait."""

    def is_set(self) -> bool:
        """Whether it is set."""

    def wait(self, timeout: float) -> bool:
        """Wait until it is set, for at most `timeout` seconds; returns whether it is set."""


class ThreadHandle(Protocol):
    """A thread of this process."""

    def join(self) -> None:
        """Wait until it has ended."""


class Runtime(Protocol):
    """The clocks, random numbers and threads of a process."""

    @property
    def owner(self) -> str:
        """Random id of this process. A forked child has a new one (F17)."""

    @property
    def label(self) -> str:
        """`host:pid`, for people; never compared."""

    @property
    def rng(self) -> random.Random:
        """Random numbers that differ in every process."""

    @property
    def shared(self) -> dict[Any, Any]:
        """Values that all objects of this process share, each kind of value under its own keys; empty after a fork."""

    def wall(self) -> datetime:
        """This machine's wall clock, in UTC: a label for people, never compared with another's (F13)."""

    def elapsed_s(self) -> float:
        """Seconds on a monotonic clock that also counts time asleep (CLOCK_BOOTTIME where it exists)."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def new_id(self) -> str:
        """A unique id of 26 lower-case characters (a ULID). Ids sort by the millisecond in which they were made."""

    def flag(self) -> Flag:
        """A new `Flag`."""

    def mutex(self) -> AbstractContextManager[Any]:
        """A new lock between threads of this process."""

    def thread(self) -> object:
        """The thread that calls; equal only for the same one, while it lives."""

    def spawn(self, work: Callable[[], None], *, name: str) -> ThreadHandle:
        """Run `work` in a new thread, which does not keep the process alive."""

    def fan_out(self, call: Callable[[A], B], items: Iterable[A], *, at_once: int = FAN_OUT_MAX) -> list[B]:
        """`call` for each item, at most `at_once` at a time; results in the order of the items.

        `call` must not raise: an error is a result like any other.
        """


class SystemRuntime:
    """The real clocks, random numbers and threads of this process."""

    def __init__(self) -> None:
        self._fresh()
        _runtimes.add(self)

    def _fresh(self) -> None:
        self.rng = random.Random(os.urandom(32))
        self._moment = (-1, "")
        self.owner = self.new_id()
        self.label = f"{os.uname().nodename}:{os.getpid()}"
        self._pool: ThreadPoolExecutor | None = None
        self._in_pool = threading.local()
        self._mutex = threading.Lock()
        self.shared: dict[Any, Any] = {}

    # Not Python functions, whose calls take longer: each task reads the clocks a dozen times.
    wall = staticmethod(partial(datetime.now, UTC))
    elapsed_s = staticmethod(partial(time.clock_gettime, _BOOTTIME))

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def new_id(self) -> str:
        # Every object that is written has an id, and several are written in a millisecond.
        unix_ms, time_text = self._moment
        now_ms = time.time_ns() // 1_000_000
        if now_ms != unix_ms:
            time_text = ulid(now_ms, 0)[:10]
            self._moment = (now_ms, time_text)
        return time_text + self.rng.getrandbits(128).to_bytes(16, "little").translate(_LETTERS).decode()

    def flag(self) -> Flag:
        return threading.Event()

    mutex = staticmethod(threading.Lock)
    thread = staticmethod(threading.get_ident)

    def spawn(self, work: Callable[[], None], *, name: str) -> ThreadHandle:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def fan_out(self, call: Callable[[A], B], items: Iterable[A], *, at_once: int = FAN_OUT_MAX) -> list[B]:
        """The calling thread takes part. A fan-out inside another runs its items one after another.

        Each thread takes the next item when it has finished one. So a fan-out over many items uses at most `at_once`
        threads of the pool, and others can run at the same time.
        """
        todo = list(items)
        if len(todo) < 2 or at_once < 2 or getattr(self._in_pool, "yes", False):
            return [call(item) for item in todo]
        found: dict[int, B] = {}
        numbers = iter(range(len(todo)))  # shared by the threads

        def run() -> None:
            self._in_pool.yes = True
            try:
                for n in numbers:
                    found[n] = call(todo[n])
            finally:
                self._in_pool.yes = False

        with self._mutex:
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor

                self._pool = ThreadPoolExecutor(POOL_MAX, thread_name_prefix="limpet-io")
        helpers = [self._pool.submit(run) for _ in range(min(at_once, POOL_MAX, len(todo)) - 1)]
        run()
        for helper in helpers:
            helper.result()
        return [found[n] for n in range(len(todo))]


_runtimes: WeakSet[SystemRuntime] = WeakSet()
"""The runtimes of this process, which a forked child resets. A hook cannot be unregistered, so one serves them all."""


def _renew_runtimes() -> None:
    for runtime in [*_runtimes]:
        runtime._fresh()


os.register_at_fork(after_in_child=_renew_runtimes)


async def in_thread(call: Callable[P, B], /, *args: P.args, **kwargs: P.kwargs) -> B:
    """`call(...)` in a thread, for coroutines: the event loop runs meanwhile."""
    from asyncio import to_thread

    return await to_thread(call, *args, **kwargs)


async def in_whole_thread(call: Callable[P, B], /, *args: P.args, **kwargs: P.kwargs) -> B:
    """`call(...)` in a thread, whole: a cancellation of the coroutine takes effect when the call has ended."""
    import asyncio

    work = partial(copy_context().run, ended, call, *args, **kwargs)
    future = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            cancelled = True
    me = asyncio.current_task()
    if cancelled and me is not None:
        me.cancel()
    end: B = future.result().get()
    return end


async def in_own_task(work: Awaitable[Any], tasks: set[Any], *, goes_on: Callable[[], bool]) -> Any:
    """What `work` returns or raises. It runs in a task of asyncio of its own, which is in `tasks` until it is done.

    If the coroutine is cancelled, so is that task, and waited for; not if it `goes_on`.
    """
    import asyncio

    inner = asyncio.ensure_future(ended_async(work))
    tasks.add(inner)
    inner.add_done_callback(tasks.discard)
    try:
        end = await asyncio.shield(inner)
    except asyncio.CancelledError:
        if not goes_on():
            inner.cancel()
            await asyncio.wait({inner})
        raise
    return end.get()


def running_coroutine() -> tuple[Any, Any]:
    """The event loop that runs in this thread, and its current task: None outside of a loop, and in its callbacks."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None, None
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None, None
    return loop, asyncio.current_task(loop)


async def pause(seconds: float) -> None:
    """Sleep, for coroutines."""
    from asyncio import sleep

    await sleep(seconds)


class ComputedField(Generic[A, B]):
    """A property that is computed at its first use and is an attribute from then on.

    Unlike `functools.cached_property` it has no lock, which all objects of a class would share, and which a fork might
    leave locked. Two threads may both compute it.
    """

    def __init__(self, compute: Callable[[A], B]) -> None:
        self.func = compute
        self.__doc__ = compute.__doc__

    def __get__(self, of: A, kind: object = None) -> B:
        value = of.__dict__[self.func.__name__] = self.func(of)
        return value


class ProcessMutex:
    """A lock between all threads of this process. In a forked child it is free."""

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
    """48 bits of time and 80 random bits in Crockford's base 32, lower case."""
    pairs, high, low = _PAIRS, chance >> 40, chance & 0xFF_FFFF_FFFF
    # Written out, it takes a quarter of the time of a loop.
    return (
        f"{pairs[unix_ms >> 40]}{pairs[unix_ms >> 30 & 1023]}{pairs[unix_ms >> 20 & 1023]}{pairs[unix_ms >> 10 & 1023]}"
        f"{pairs[unix_ms & 1023]}{pairs[high >> 30]}{pairs[high >> 20 & 1023]}{pairs[high >> 10 & 1023]}"
        f"{pairs[high & 1023]}{pairs[low >> 30]}{pairs[low >> 20 & 1023]}{pairs[low >> 10 & 1023]}{pairs[low & 1023]}"
    )


def ulid_above(id_: str, floor: str) -> str:
    """`id_` if it is above the ULID `floor`; else the same id with a time one millisecond after that of `floor`.

    So names rise even if a clock is slow, and no two are equal (counterexample 9).
    """
    if id_ > floor:
        return id_
    floor_ms = ulid_ms(floor)
    assert floor_ms is not None
    return ulid(floor_ms + 1, 0)[:10] + id_[10:]


def sha256(data: bytes) -> bytes:
    """The digest of `data`."""
    from hashlib import sha256 as digest  # loads OpenSSL, which few processes need at their start

    return digest(data).digest()


_system: SystemRuntime | None = None


def system() -> SystemRuntime:
    """The one real runtime of this process."""
    global _system
    if _system is None:
        _system = SystemRuntime()
    return _system


def ulid_ms(text: str) -> int | None:
    """The time in a ULID, in milliseconds since 1970; None for any other text."""
    digits = [_ALPHABET.find(char) for char in text[:10]]
    if len(text) != 26 or min(digits) < 0:
        return None
    return sum(digit << 5 * n for n, digit in enumerate(reversed(digits)))
