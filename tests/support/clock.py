"""Processes on a clock that moves by hand."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from itertools import count
from math import ceil
from random import Random
from typing import Any, TypeVar

import greenlet
from hypothesis import settings

from limpet.kernel.runtime import Flag, ThreadHandle, ulid

__all__ = ["EPOCH", "ManualFlag", "ManualRuntime", "QueueRuntime", "Time", "steady"]

A = TypeVar("A")
B = TypeVar("B")

EPOCH = datetime(2026, 3, 1, tzinfo=UTC)

steady = settings(deadline=None)
"""For property tests: how long an example takes on a busy machine says nothing."""


class Time:
    """Virtual seconds, and what is due when. Whoever sleeps lets the others run; no thread, no waiting."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()
        self._main = greenlet.getcurrent()

    def at(self, after_s: float, call: Callable[[], object]) -> None:
        """Do `call` so many seconds from now, while somebody sleeps."""
        heapq.heappush(self._due, (self.now_s + after_s, next(self._order), call))

    def sleep(self, seconds: float, over: Callable[[], bool] = lambda: False) -> None:
        """Let time pass for the one who calls; for the main one, until something is `over`."""
        me = greenlet.getcurrent()
        if me is self._main:
            until_s = self.now_s + max(0.0, seconds)
            while self._due and self._due[0][0] <= until_s:
                self.step()
                if over():
                    return
            self.now_s = until_s
        else:
            self.at(max(0.0, seconds), lambda: self.run(me))
            assert me.parent is not None
            me.parent.switch()

    def step(self) -> None:
        """Go to the next thing that is due, and do it."""
        assert self._due, "everybody waits for somebody else"
        due_s, _, call = heapq.heappop(self._due)
        self.now_s = max(self.now_s, due_s)
        call()

    def run(self, task: greenlet.greenlet) -> None:
        """Let a task go on until it sleeps or ends."""
        if not task.dead:
            task.parent = greenlet.getcurrent()
            task.switch()


class ManualFlag:
    """A latch on the virtual time."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._up = False
        self._waiting: list[Callable[[], None]] = []
        self.every_s = 0.1

    def set(self) -> None:
        self._up = True
        for notify in self._waiting:
            notify()

    def is_set(self) -> bool:
        return self._up

    def wait(self, timeout: float) -> bool:
        """Returns when the time is over, or at the first full `every_s` after the flag was set."""
        time, me, began_s, over = self._time, greenlet.getcurrent(), self._time.now_s, False

        def rest_s() -> float:
            waited_s = time.now_s - began_s
            return max(0.0, min(timeout, ceil(waited_s / self.every_s) * self.every_s) - waited_s)

        def wake() -> None:
            nonlocal over
            if not over:
                over = True
                time.run(me)

        def notify() -> None:
            time.at(rest_s(), wake)

        if self._up or timeout <= 0:
            return self._up
        if me.parent is None:
            time.sleep(timeout, self.is_set)
            time.sleep(rest_s())
        else:
            self._waiting.append(notify)
            time.at(timeout, wake)
            me.parent.switch()
            self._waiting.remove(notify)
        return self._up


class _Worker:
    def __init__(self, time: Time, task: greenlet.greenlet) -> None:
        self._time = time
        self._task = task

    def join(self) -> None:
        while not self._task.dead:
            self._time.step()


class _Mutex(AbstractContextManager[None]):
    def __init__(self, time: Time) -> None:
        self._time = time
        self._taken = False

    def __enter__(self) -> None:
        while self._taken:
            self._time.sleep(0.01)
        self._taken = True

    def __exit__(self, *raised: object) -> None:
        self._taken = False


class ManualRuntime:
    """One process on a clock that moves only when somebody sleeps. Several may share the clock, and so the store."""

    def __init__(self, time: Time | None = None, owner: str = "p1", *, wall_offset_s: float = 0.0) -> None:
        self.time = time or Time()
        self.owner = owner
        self.label = f"host:{owner}"
        self.wall_offset_s = wall_offset_s
        self.slept: list[float] = []
        self.rng = Random(0)
        self.shared: dict[Any, Any] = {}
        self._ids = count(1)

    def wall(self) -> datetime:
        """The shared time, wrong by `wall_offset_s`."""
        return EPOCH + timedelta(seconds=self.time.now_s + self.wall_offset_s)

    def elapsed_s(self) -> float:
        """The shared time."""
        return self.time.now_s

    def sleep(self, seconds: float) -> None:
        """Move the clock, at least a little, and note by how much."""
        self.slept.append(seconds)
        self.time.sleep(max(seconds, 1e-6))

    def new_id(self) -> str:
        """`p1-1`, `p1-2`, ..."""
        return f"{self.owner}-{next(self._ids)}"

    def flag(self) -> Flag:
        """A latch on the shared time."""
        return ManualFlag(self.time)

    def thread(self) -> object:
        """The greenlet that calls."""
        return greenlet.getcurrent()

    def mutex(self) -> AbstractContextManager[Any]:
        """A lock between the tasks of this process."""
        return _Mutex(self.time)

    def spawn(self, work: Callable[[], None], *, name: str) -> ThreadHandle:
        """A task that first runs when somebody sleeps."""
        task = greenlet.greenlet(work)
        self.time.at(0.0, lambda: self.time.run(task))
        return _Worker(self.time, task)

    def fan_out(self, call: Callable[[A], B], items: Iterable[A], *, at_once: int = 32) -> list[B]:
        """One after the other."""
        return [call(item) for item in items]


class QueueRuntime(ManualRuntime):
    """A process whose ids have the form of real ones, and whose threads can be stopped without its knowing."""

    def __init__(self, time: Time, owner: str) -> None:
        super().__init__(time, owner)
        self.frozen = False
        self._numbers = count(1)

    def new_id(self) -> str:
        """A ULID that nobody else makes."""
        name = int.from_bytes(self.owner.encode()[:6].ljust(6, b"."), "big")
        return ulid(int(self.wall().timestamp() * 1000), name << 24 | next(self._numbers))

    def sleep(self, seconds: float) -> None:
        """Wait; in a thread of a frozen process, for ever."""
        super().sleep(seconds)
        self.freeze()

    def flag(self) -> Flag:
        """A latch that a thread of a frozen process waits for in vain."""
        return _FreezingFlag(self)

    def freeze(self) -> None:
        """Stop a thread for ever if its process is frozen."""
        me = greenlet.getcurrent()
        while self.frozen and me.parent is not None:
            me.parent.switch()


class _FreezingFlag(ManualFlag):
    def __init__(self, runtime: QueueRuntime) -> None:
        super().__init__(runtime.time)
        self._runtime = runtime

    def wait(self, timeout: float) -> bool:
        try:
            return super().wait(timeout)
        finally:
            self._runtime.freeze()
