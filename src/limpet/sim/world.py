"""A world in one thread: virtual time, processes that crash and sleep, and one seed that decides everything.

Actors are greenlets that run unchanged synchronous code. They give way only inside runtime and store calls; the hub
then runs whichever event is next in virtual time. Chance comes from hashes of (seed, who, how often), so removing one
fault from a run does not reshuffle the others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import Any

from greenlet import getcurrent, greenlet

from limpet.errors import LimpetError

__all__ = ["EPOCH", "Event", "Flight", "Killed", "Process", "Task", "Violation", "World", "mix"]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_MASK = (1 << 64) - 1


class Killed(BaseException):
    """Raised inside an actor whose process is dead, so that its clean-up has no effect."""


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


@dataclass(slots=True)
class Event:
    """One line of the story."""

    at_s: float
    who: str
    what: str
    key: str
    detail: str | bytes
    result: str
    fault: str


@dataclass(slots=True, eq=False)
class Task:
    """One thread of a process."""

    process: Process
    name: str
    glet: greenlet
    done: bool = False
    wake: int = 0
    paused_until_s: float = 0.0
    on_done: list[Callable[[], None]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Process:
    """A process on a machine of its own: its clocks, and whether it lives."""

    index: int
    name: str
    alive: bool = True
    paused_until_s: float = 0.0
    cut_off_until_s: float = 0.0
    clock_rate: float = 1.0
    boot_offset_s: float = 0.0
    wall_offset_s: float = 0.0
    newer: bool = False
    tasks: list[Task] = field(default_factory=list)
    calls: int = 0
    served: int = 0
    in_flight: dict[int, Flight] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flight:
    """A request that was sent and not yet answered: its protocol step, and what its arrival does."""

    step: str
    land: Callable[[], Any]


class World:
    """The scheduler and the record of what happened."""

    def __init__(self, seed: int, *, muted: frozenset[str] = frozenset()) -> None:
        self.seed = seed
        self._mixed_seed = mix(seed)
        self.muted = muted
        self.now_s = 0.0
        self.store_offset_s = 0.0
        self.over = False
        self.healed = False
        self.trace: list[Event] = []
        self.faults: list[str] = []
        self.fault_counts: Counter[str] = Counter()
        self.coverage: Counter[tuple[str, str]] = Counter()
        self.calls = 0
        self.processes: list[Process] = []
        self.failure: BaseException | None = None
        self.ambush: tuple[str, Callable[[Process], None]] | None = None
        self.lurking: dict[str, Callable[[Process], None]] = {}
        self._hub = getcurrent()
        self._running: Task | None = None
        self._network = Process(-1, "network")
        self._queue: list[tuple[float, int, int, Task]] = []
        self._wakes = 0

    def start(self, name: str) -> Process:
        """A new process, not yet doing anything."""
        process = Process(len(self.processes), name)
        process.boot_offset_s = float(mix(self.seed, 1, process.index) % 100_000)
        self.processes.append(process)
        return process

    def spawn(self, process: Process, work: Callable[[], Any], *, name: str = "main") -> Task:
        """Run `work` as a thread of `process`, from now on."""

        def body() -> None:
            try:
                work()
            except Killed:
                pass
            except (LimpetError, AssertionError) as error:
                if process.alive and not self.over:
                    self.failure = self.failure or error
            finally:
                task.done = True
                for call in task.on_done:
                    call()

        task = Task(process, name, greenlet(body, parent=self._hub))
        process.tasks.append(task)
        self.wake_at(task, self.now_s)
        return task

    def later(self, delay_s: float, work: Callable[[], Any]) -> None:
        """Let the network do `work` after a while, whoever lives then."""
        task = self.spawn(self._network, work)
        self.wake_at(task, self.now_s + delay_s)

    def wake_at(self, task: Task, at_s: float) -> None:
        """Let `task` go on at `at_s`; replaces an earlier wake-up."""
        self._wakes += 1
        task.wake = self._wakes
        heappush(self._queue, (at_s, self._shuffled(self._wakes), self._wakes, task))

    def _shuffled(self, wake: int) -> int:
        """Who goes first of those that wake at the same moment."""
        return (wake ^ self._mixed_seed) * 0x9E3779B97F4A7C15 >> 7 & 0xFFFF

    def pause(self, seconds: float) -> None:
        """Give way: the current task goes on after so much virtual time."""
        task = self.current()
        self.wake_at(task, self.now_s + seconds)
        self.park(task)

    def park(self, task: Task) -> None:
        """Give way until somebody wakes `task`."""
        self._hub.switch()
        self.check_alive(task.process)

    def current(self) -> Task:
        """The running task.   Raises: Killed when its process is dead."""
        if self._running is None:
            raise Killed
        self.check_alive(self._running.process)
        return self._running

    def check_alive(self, process: Process) -> None:
        """Raises: Killed when the process is dead or the run is over."""
        if self.over or not process.alive:
            raise Killed

    def kill(self, process: Process) -> None:
        """kill -9: no task of it runs again. A request of it that is under way may still arrive."""
        process.alive = False
        for i, flight in enumerate(process.in_flight.values()):
            if self.chance(5, process.index, i) < 0.5:
                self.later(self.chance(6, process.index, i) * 5, flight.land)

    def run(self, *, until_s: float, done: Callable[[], bool]) -> None:
        """Let virtual time pass until `done()`, nothing is left to do, or `until_s`."""
        while self._queue and not done() and self.failure is None:
            at_s, _, wake, task = heappop(self._queue)
            if task.done or wake != task.wake or not task.process.alive:
                continue
            awake_s = max(task.process.paused_until_s, task.paused_until_s)
            if awake_s > at_s:
                heappush(self._queue, (awake_s, self._shuffled(wake), wake, task))
                continue
            if at_s > until_s:
                return
            self.now_s = max(self.now_s, at_s)
            self._running = task
            task.glet.switch()
            self._running = None

    def close(self) -> None:
        """End every task; nothing that they still do has an effect."""
        self.over = True
        for process in self.processes:
            for task in process.tasks:
                if not task.done and task.glet:
                    task.glet.throw(Killed)

    def chance(self, *parts: int) -> float:
        """A number in [0, 1) that depends on the seed and `parts` only."""
        return _mixed(self._mixed_seed, parts) / 2**64

    def note(
        self, who: str, what: str, key: str = "", detail: str | bytes = "", result: str = "", fault: str = ""
    ) -> None:
        """Add a line to the story."""
        self.trace.append(Event(self.now_s, who, what, key, detail, result, fault))

    def strike(self, fault_id: str, kind: str) -> bool:
        """Whether the fault happens (the shrinker may have muted it); counts it."""
        if fault_id in self.muted or self.healed:
            return False
        self.faults.append(fault_id)
        self.fault_counts[kind] += 1
        return True

    def passing(self, step: str, process: Process) -> None:
        """A request of this step sets out. If somebody lies in wait for it, it is met half-way."""
        if self.ambush is not None and self.ambush[0] == step and not self.healed:
            strike, self.ambush = self.ambush[1], None
            self.later(0.002, lambda: strike(process) if process.alive else None)

    def passed(self, step: str, process: Process) -> None:
        """This step has just happened. If somebody lurks behind it, the process is met before it does anything else."""
        strike = None if self.healed else self.lurking.pop(step, None)
        if strike is not None and process.alive:
            strike(process)
            self.check_alive(process)

    def store_time(self) -> datetime:
        """The store's clock."""
        return EPOCH + timedelta(seconds=self.now_s + self.store_offset_s)

    def trace_hash(self) -> str:
        """A digest of the whole story: equal for equal runs."""
        digest = hashlib.sha256()
        for e in self.trace:
            digest.update(f"{e.at_s:.6f}|{e.who}|{e.what}|{e.key}|{e.detail!r}|{e.result}|{e.fault}\n".encode())
        return digest.hexdigest()
