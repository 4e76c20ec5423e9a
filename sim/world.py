"""A simulated world in one thread: virtual time, processes that crash and sleep, all decided by one seed.

`World` is the scheduler and the trace; `SimRuntime` is the runtime of one simulated process. Threads are greenlets that
run the normal synchronous code. They yield only inside runtime and store calls; the hub then runs the next event in
virtual time. A task that yields switches to the next one itself, and a greenlet whose work is done takes that of
another task: most of the cost of a run would be greenlets that start, and switches by way of the hub. Random numbers
are hashes of (seed, process, counter), so removing one fault from a run does not change
the others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import heappop, heappush
from random import Random
from types import TracebackType
from typing import Any, TypeVar

import msgspec
from greenlet import GreenletExit, getcurrent, greenlet

from limpet.kernel.errors import LimpetError
from limpet.kernel.runtime import Flag, ThreadHandle

A = TypeVar("A")
B = TypeVar("B")

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
RENEWAL_THREADS = "limpet-renewer"
"""How the names of the threads that renew leases begin."""
_MASK = (1 << 64) - 1


class Killed(BaseException):
    """Raised in the threads of a dead process, so that their clean-up code has no effect."""


class Violation(AssertionError):
    """An invariant does not hold."""


def mix(*parts: int) -> int:
    """A 64-bit hash of small integers (splitmix64), the same on every machine."""
    return _mixed(0x9E3779B97F4A7C15, parts)


def _mixed(state: int, parts: tuple[int, ...]) -> int:
    for part in parts:
        state = (state ^ part) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


class TraceEvent(msgspec.Struct, gc=False):
    """One line of the trace."""

    at_s: float
    who: str
    what: str
    key: str
    detail: str | bytes
    result: str
    fault: str


@dataclass(slots=True, eq=False)
class SimTask:
    """One thread of a process."""

    world: World
    process: SimProcess
    name: str
    work: Callable[[], Any]
    glet: greenlet | None = None
    """What runs it; None before it begins."""
    done: bool = False
    wake: int = 0
    paused_until_s: float = 0.0
    on_done: list[Callable[[], None]] = field(default_factory=list)

    def join(self) -> None:
        """Wait until it has ended."""
        if not self.done:
            waiter = self.world.current()
            self.on_done.append(lambda: self.world.wake_at(waiter, self.world.now_s))
            self.world.park(waiter)


@dataclass(slots=True, eq=False)
class SimProcess:
    """A process on a separate machine: its clocks, its threads, and whether it is alive."""

    index: int
    name: str
    alive: bool = True
    paused_until_s: float = 0.0
    cut_off_until_s: float = 0.0
    clock_rate: float = 1.0
    boot_offset_s: float = 0.0
    wall_offset_s: float = 0.0
    newer: bool = False
    """Whether it runs a later version of the program."""
    tasks: list[SimTask] = field(default_factory=list)
    calls: int = 0
    """How many requests it has sent."""
    served: int = 0
    """How many mutations the bucket had seen when it last answered this process."""
    in_flight: dict[int, PendingRequest] = field(default_factory=dict)

    def renewals(self) -> list[SimTask]:
        """The threads that renew leases."""
        return [task for task in self.tasks if task.name.startswith(RENEWAL_THREADS)]


class PendingRequest(msgspec.Struct, frozen=True):
    """A request that was sent and not yet answered: its protocol step, and the effect of its arrival."""

    step: str
    land: Callable[[], Any]


class World:
    """The scheduler of virtual time, and the trace of everything that happened."""

    def __init__(self, seed: int, *, muted: frozenset[str] = frozenset()) -> None:
        self.seed = seed
        self._mixed_seed = mix(seed)
        self._mixed_heads: dict[tuple[int, ...], int] = {}
        """Cache: the seed mixed with all parts of a random number except the last."""
        self.muted = muted
        self.now_s = 0.0
        self.store_offset_s = 0.0
        self.over = False
        """Whether the run has ended: no task goes on."""
        self.healed = False
        """Whether the faults have stopped."""
        self.trace: list[TraceEvent] = []
        self.faults: list[str] = []
        self.fault_counts: Counter[str] = Counter()
        self.coverage: Counter[tuple[str, str]] = Counter()
        self.calls = 0
        self.processes: list[SimProcess] = []
        self.failure: BaseException | None = None
        self.strike_during: tuple[str, Callable[[SimProcess], None]] | None = None
        """A step, and the fault for the first process that sends a request of this step."""
        self.strike_after: dict[str, Callable[[SimProcess], None]] = {}
        """By step, the fault for the first process that has completed it, before its next call."""
        self._hub = getcurrent()
        self._running: SimTask | None = None
        self._network = SimProcess(-1, "network")
        self._idle: list[greenlet] = []
        self._going = False
        """Whether `run` goes on: it has not seen its end."""
        self._until_s = 0.0
        self._done: Callable[[], bool] = lambda: True
        self._queue: list[tuple[float, int, int, SimTask]] = []
        self._wakes = 0

    def start(self, name: str) -> SimProcess:
        """A new process without threads."""
        process = SimProcess(len(self.processes), name)
        process.boot_offset_s = float(mix(self.seed, 1, process.index) % 100_000)
        self.processes.append(process)
        return process

    def spawn(self, process: SimProcess, work: Callable[[], Any], *, name: str = "main") -> SimTask:
        """Run `work` as a thread of `process`, from now on."""
        task = SimTask(self, process, name, work)
        process.tasks.append(task)
        self.wake_at(task, self.now_s)
        return task

    def later(self, delay_s: float, work: Callable[[], Any]) -> None:
        """Run `work` after a delay, as part of the network: it happens even if every process is dead by then."""
        task = self.spawn(self._network, work)
        self.wake_at(task, self.now_s + delay_s)

    def wake_at(self, task: SimTask, at_s: float) -> None:
        """Resume `task` at `at_s`; replaces an earlier wake-up."""
        task.wake = self._wakes = wake = self._wakes + 1
        # Tasks that wake at the same moment are shuffled.
        shuffled = (wake ^ self._mixed_seed) * 0x9E3779B97F4A7C15 >> 7 & 0xFFFF
        heappush(self._queue, (at_s, shuffled, wake, task))

    def pause(self, seconds: float) -> None:
        """Yield; the current task resumes after this much virtual time."""
        task = self._running
        if task is None or self.over or not task.process.alive:
            raise Killed
        self.wake_at(task, self.now_s + seconds)
        self.park(task)

    def park(self, task: SimTask) -> None:
        """Yield until `wake_at` is called for `task`."""
        following = self._following()
        if following is not task:
            self._greenlet(following).switch()
        if self.over or not task.process.alive:
            raise Killed

    def current(self) -> SimTask:
        """The running task.   Raises: Killed when its process is dead."""
        task = self._running
        if task is None or self.over or not task.process.alive:
            raise Killed
        return task

    def check_alive(self, process: SimProcess) -> None:
        """Raises: Killed when the process is dead or the run is over."""
        if self.over or not process.alive:
            raise Killed

    def kill(self, process: SimProcess) -> None:
        """kill -9: none of its tasks runs again. Requests that it has sent may still arrive."""
        process.alive = False
        for i, flight in enumerate(process.in_flight.values()):
            if self.chance(5, process.index, i) < 0.5:
                self.later(self.chance(6, process.index, i) * 5, flight.land)

    def run(self, *, until_s: float, done: Callable[[], bool]) -> None:
        """Advance virtual time until `done()`, until there are no events, or until `until_s`."""
        self._until_s, self._done, self._going = until_s, done, True
        while self._going:
            task = self._running or self._following()
            if task is not None:
                if task.glet is None:
                    task.glet = greenlet(self._carry, self._hub)
                task.glet.switch()
        self._running = None

    def _following(self) -> SimTask | None:
        """The task that runs next, at its time; None if `run` has come to its end."""
        self._running = None
        queue = self._queue
        while queue and self.failure is None and not self._done():
            at_s, shuffled, wake, task = heappop(queue)
            process = task.process
            if task.done or wake != task.wake or not process.alive:
                continue
            if process.paused_until_s > at_s or task.paused_until_s > at_s:
                awake_s = max(process.paused_until_s, task.paused_until_s)
                heappush(queue, (awake_s, shuffled, wake, task))
                continue
            if at_s > self._until_s:
                break
            if at_s > self.now_s:
                self.now_s = at_s
            self._running = task
            return task
        self._going = False
        return None

    def _greenlet(self, task: SimTask | None) -> greenlet:
        """What runs the task: an idle greenlet if it is yet to begin. The hub ends the run, and starts new greenlets:
        one begins at the depth of recursion of its starter."""
        if task is None:
            return self._hub
        if task.glet is None and self._idle:
            task.glet = self._idle.pop()
            task.glet.gr_context = None
        return task.glet or self._hub

    def _carry(self) -> None:
        """Do the work of the running task, and then that of others, until the run is over."""
        while self._running:
            self._perform(self._running)
            if self.over:
                return
            self._idle.append(getcurrent())
            self._greenlet(self._following()).switch()

    def _perform(self, task: SimTask) -> None:
        try:
            task.work()
        except Killed:
            pass
        except (LimpetError, AssertionError) as error:
            if task.process.alive and not self.over:
                self.failure = self.failure or error
        finally:
            task.done = True
            for call in task.on_done:
                call()

    def close(self) -> None:
        """End every task; their clean-up code has no effect."""
        self.over = True
        for process in self.processes:
            for task in process.tasks:
                if not task.done and task.glet:
                    task.glet.throw(Killed)
        for idle in self._idle:
            idle.throw(GreenletExit)
        self._idle.clear()

    def chance(self, *parts: int) -> float:
        """A number in [0, 1) that depends on the seed and `parts` only.

        The first part is a number of its own for each question, so that two questions get independent answers.
        """
        head = parts[:-1]
        state = self._mixed_heads.get(head)
        if state is None:
            state = self._mixed_heads[head] = _mixed(self._mixed_seed, head)
        # `_mixed` of the last part. Every request asks three times, and most get another number each time.
        state = (state ^ parts[-1]) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        return (state ^ state >> 31) / 2**64

    def note(
        self, who: str, what: str, key: str = "", detail: str | bytes = "", result: str = "", fault: str = ""
    ) -> None:
        """Add a line to the trace."""
        self.trace.append(TraceEvent(self.now_s, who, what, key, detail, result, fault))

    def strike(self, fault_id: str, kind: str) -> bool:
        """Whether the fault happens (the shrinker may have muted it); counts it."""
        if fault_id in self.muted or self.healed:
            return False
        self.faults.append(fault_id)
        self.fault_counts[kind] += 1
        return True

    def cover(self, kind: str, victim: SimProcess) -> None:
        """Count a fault for each pending request of a process, by step."""
        for flight in victim.in_flight.values():
            self.coverage[kind, flight.step] += 1

    def begins(self, step: str, process: SimProcess) -> None:
        """A process sends a request of this step: inject the fault of `strike_during` if that is for this step."""
        if self.strike_during is not None and self.strike_during[0] == step and not self.healed:
            strike, self.strike_during = self.strike_during[1], None
            self.later(0.002, lambda: strike(process) if process.alive else None)

    def completed(self, step: str, process: SimProcess) -> None:
        """A process has completed this step: inject the fault of `strike_after` if there is one for this step."""
        strike = None if self.healed else self.strike_after.pop(step, None)
        if strike is not None and process.alive:
            strike(process)
            self.check_alive(process)

    def check_calls(self, most: int, what: str) -> None:
        """Raises: Violation if the run made more store calls than `what` it did allows."""
        if self.calls > most:
            raise Violation(f"{self.calls} requests for {what}")

    def store_time(self) -> datetime:
        """The store's clock."""
        return EPOCH + timedelta(seconds=self.now_s + self.store_offset_s)

    def trace_hash(self) -> str:
        """A digest of the whole trace: equal for equal runs."""
        digest = hashlib.sha256()
        for e in self.trace:
            digest.update(f"{e.at_s:.6f}|{e.who}|{e.what}|{e.key}|{e.detail!r}|{e.result}|{e.fault}\n".encode())
        return digest.hexdigest()


class SimFlag(Flag):
    """A latch on virtual time."""

    def __init__(self, runtime: SimRuntime) -> None:
        self._runtime = runtime
        self._up = False
        self._waiting: list[SimTask] = []

    def set(self) -> None:
        self._up = True
        world = self._runtime.world
        for task in self._waiting:
            world.wake_at(task, world.now_s)
        self._waiting.clear()

    def is_set(self) -> bool:
        return self._up

    def wait(self, timeout: float) -> bool:
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
        self._waiting: list[SimTask] = []

    def __enter__(self) -> SimMutex:
        while self._taken:
            world = self._runtime.world
            task = world.current()
            self._waiting.append(task)
            world.park(task)
        self._taken = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._taken = False
        if self._waiting:
            world = self._runtime.world
            world.wake_at(self._waiting.pop(0), world.now_s)


class SimRuntime:
    """The runtime of one simulated process: virtual clocks with errors, seeded random numbers, greenlets as threads."""

    def __init__(self, world: World, process: SimProcess) -> None:
        self.world = world
        self.process = process
        self.owner = self.label = process.name
        self.rng = Random(mix(world.seed, 4, process.index))
        self.shared: dict[Any, Any] = {}
        self._ids = 0

    def wall(self) -> datetime:
        """The wall clock, which may be wrong."""
        return EPOCH + timedelta(seconds=self.world.now_s + self.process.wall_offset_s)

    def elapsed_s(self) -> float:
        """The monotonic clock, which may run fast or slow."""
        return self.world.now_s * self.process.clock_rate + self.process.boot_offset_s

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.world.pause(max(0.0, seconds) / self.process.clock_rate)

    def new_id(self) -> str:
        """Unique in this run, equal in every run of the seed; with the format and order of a real id."""
        self._ids += 1
        return f"{int(self.world.now_s * 1000):010d}p{self.process.index:03d}n{self._ids:011d}"

    def flag(self) -> Flag:
        """A latch on virtual time."""
        return SimFlag(self)

    thread = staticmethod(getcurrent)

    def mutex(self) -> AbstractContextManager[Any]:
        """A lock between the tasks of this process."""
        return SimMutex(self)

    def spawn(self, work: Callable[[], None], *, name: str) -> ThreadHandle:
        """Run `work` as a task of this process."""
        self.world.check_alive(self.process)
        return self.world.spawn(self.process, work, name=name)

    def fan_out(self, call: Callable[[A], B], items: Iterable[A], *, at_once: int = 32) -> list[B]:
        """`call` for each item in a separate task, interleaved with the rest of the world."""
        results: dict[int, B] = {}

        def run(i: int, item: A) -> None:
            results[i] = call(item)

        workers = [self.spawn(partial(run, i, item), name=f"io{i}") for i, item in enumerate(items)]
        for worker in workers:
            worker.join()
        return [results[i] for i in range(len(workers))]
