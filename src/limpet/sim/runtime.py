"""`SimRuntime`: the runtime of one simulated process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from limpet.runtime import Flag, Worker
from limpet.sim.world import EPOCH, Process, Task, World, mix

__all__ = ["SimFlag", "SimMutex", "SimRuntime", "SimWorker"]

A = TypeVar("A")
B = TypeVar("B")


class SimFlag:
    """A latch on virtual time."""

    def __init__(self, runtime: SimRuntime) -> None:
        self._runtime = runtime
        self._up = False
        self._waiting: list[Task] = []

    def set(self) -> None:
        """Raise it."""
        self._up = True
        world = self._runtime.world
        for task in self._waiting:
            world.wake_at(task, world.now_s)
        self._waiting.clear()

    def is_set(self) -> bool:
        """Whether it was raised."""
        return self._up

    def wait(self, timeout: float) -> bool:
        """Wait until it is raised or the time is over."""
        world = self._runtime.world
        task = world.current()
        if not self._up:
            self._waiting.append(task)
            world.wake_at(task, world.now_s + timeout / self._runtime.process.clock_rate)
            world.park(task)
            if task in self._waiting:
                self._waiting.remove(task)
        return self._up


class SimMutex:
    """A lock between the tasks of one process."""

    def __init__(self, runtime: SimRuntime) -> None:
        self._runtime = runtime
        self._taken = False
        self._waiting: list[Task] = []

    def __enter__(self) -> SimMutex:
        world = self._runtime.world
        while self._taken:
            task = world.current()
            self._waiting.append(task)
            world.park(task)
        self._taken = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._taken = False
        world = self._runtime.world
        if self._waiting:
            world.wake_at(self._waiting.pop(0), world.now_s)


class SimWorker:
    """A spawned task."""

    def __init__(self, runtime: SimRuntime, task: Task) -> None:
        self._runtime = runtime
        self._task = task

    def join(self) -> None:
        """Wait until it has ended."""
        world = self._runtime.world
        if not self._task.done:
            waiter = world.current()
            self._task.on_done.append(lambda: world.wake_at(waiter, world.now_s))
            world.park(waiter)


class SimRuntime:
    """Virtual clocks with their errors, seeded chance, and threads that are greenlets."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self._rng = Random(mix(world.seed, 4, process.index))
        self._ids = 0
        self._shared: dict[Any, Any] = {}

    @property
    def owner(self) -> str:
        """A name that no other process of this run has."""
        return self.process.name

    @property
    def label(self) -> str:
        """The same, for people."""
        return self.process.name

    @property
    def rng(self) -> Random:
        """Seeded chance of this process."""
        return self._rng

    @property
    def shared(self) -> dict[Any, Any]:
        """What the handles of this process share."""
        return self._shared

    def wall(self) -> datetime:
        """A wall clock that may be wrong."""
        return EPOCH + timedelta(seconds=self.world.now_s + self.process.wall_offset_s)

    def elapsed_s(self) -> float:
        """A rising clock that may run fast or slow."""
        return self.world.now_s * self.process.clock_rate + self.process.boot_offset_s

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.world.pause(max(0.0, seconds) / self.process.clock_rate)

    def new_id(self) -> str:
        """Unique in this run, the same in the next run of the seed, and of a real id's form and order."""
        self._ids += 1
        return f"{int(self.world.now_s * 1000):010d}p{self.process.index:03d}n{self._ids:011d}"

    def flag(self) -> Flag:
        """A latch."""
        return SimFlag(self)

    def mutex(self) -> AbstractContextManager[Any]:
        """A lock."""
        return SimMutex(self)

    def spawn(self, work: Callable[[], None], *, name: str) -> Worker:
        """A task of this process."""
        self.world.check_alive(self.process)
        return SimWorker(self, self.world.spawn(self.process, work, name=name))

    def fan_out(self, call: Callable[[A], B], items: Iterable[A], *, at_once: int = 32) -> list[B]:
        """Every item in a task of its own, interleaved with the rest of the world."""
        results: dict[int, B] = {}

        def run(i: int, item: A) -> None:
            results[i] = call(item)

        workers = [self.spawn(partial(run, i, item), name=f"io{i}") for i, item in enumerate(items)]
        for worker in workers:
            worker.join()
        return [results[i] for i in range(len(workers))]
