"""The processes of a run: each slot takes turns, crashes, and restarts as a new process."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from limpet.errors import Held, LeaseLost, LimpetError, OutcomeUnknown, Unavailable
from limpet.sim.nemesis import RunPlan, draw
from limpet.sim.world import SimProcess, SimRuntime, Violation, World
from limpet.store import Store

Turns = list[tuple[float, Callable[[], object]]]
Settings = Mapping[tuple[ModuleType, str], Any]


class Actor(ABC):
    """The program of one process."""

    expected: tuple[type[LimpetError], ...] = (Held, LeaseLost, OutcomeUnknown, Unavailable)
    """Errors that every caller must expect: they end the turn, not the run."""

    def __init__(self, runtime: SimRuntime, store: Store) -> None:
        self.runtime = runtime
        self.process = runtime.process
        self.world = runtime.world
        self.store = store
        self.values = 0
        self.draws = 0

    @abstractmethod
    def turns(self) -> Turns:
        """Its possible actions with their probabilities; the last one gets the rest."""

    def turn(self) -> None:
        """Do one of its actions, then rest."""
        turns = self.turns()
        at = self.chance()
        while len(turns) > 1 and at >= turns[0][0]:
            at -= turns.pop(0)[0]
        with suppress(*self.expected):
            turns[0][1]()
        self.rest()

    def rest(self) -> None:  # noqa: B027, most actors need no rest
        """Sleep between two turns."""

    def chance(self) -> float:
        """The next random number of this process."""
        self.draws += 1
        return self.world.chance(40, self.process.index, self.draws)

    def new_value(self) -> str:
        """A value that no other process writes."""
        self.values += 1
        return f"{self.process.name}-{self.values}"


class Actors(ABC):
    """The slots of processes in one world."""

    def __init__(self, world: World, plan: RunPlan, *, slots: int = 0, turns: int = 0) -> None:
        self.world = world
        self.plan = plan
        self.living: list[SimProcess] = []
        self.turns_left = {f"p{i}": turns for i in range(slots)}
        self._playing = slots

    @staticmethod
    def tuning(world: World, plan: RunPlan) -> Settings:
        """Constants to change during the run: limits for gigabytes are set for a few records."""
        return {}

    @abstractmethod
    def act(self) -> None:
        """The whole run, checks included.   Raises: Violation."""

    @abstractmethod
    def actor(self, process: SimProcess) -> Actor:
        """The program of a process."""

    def play(self, nemesis: Callable[[], None], *, until_s: float) -> None:
        """Let every slot take its turns while `nemesis` injects faults."""
        for slot in self.turns_left:
            self.launch(slot, 1)
        self.world.spawn(self.world.start("nemesis"), nemesis)
        self.world.run(until_s=until_s, done=lambda: self._playing == 0)
        self.fail_on_error()

    def launch(self, slot: str, life: int) -> None:
        """Start the slot's process."""
        process = self.world.start(f"{slot}#{life}")
        actor = self.actor(process)
        self.living.append(process)
        self.world.spawn(process, lambda: self._live(actor, slot))

    def relaunch(self, dead: SimProcess) -> None:
        """Start the next process of the slot whose process has died."""
        slot, life = dead.name.split("#")
        self.launch(slot, int(life) + 1)

    def restart(self, dead: SimProcess) -> None:
        """Start the slot's next process within 5 s after a crash."""
        self.living.remove(dead)
        self.world.later(5 * self.world.chance(31, dead.index), lambda: self.relaunch(dead))

    def vary(self, process: SimProcess, *, newer: bool) -> None:
        """In some runs, let clocks run fast or slow, and every second process have a newer version."""
        process.newer = newer and process.index % 2 == 1
        if self.plan.drift:
            process.clock_rate = 0.9 + 0.2 * self.world.chance(30, process.index)

    def crash(self, victim: SimProcess, kind: str) -> None:
        """Kill a process, and count its pending steps."""
        self.world.cover(kind, victim)
        self.world.kill(victim)
        self.living.remove(victim)

    def stop_faults(self) -> None:
        """Stop injecting faults, and kill all processes."""
        self.world.healed = True
        self.world.note("nemesis", "faults stop")
        for process in self.living:
            self.world.kill(process)

    def alone(self, actor: Actor, work: Callable[[], None], *, within_s: float) -> None:
        """After the faults, run one actor until it is done.   Raises: Violation if it takes too long."""
        task = self.world.spawn(actor.process, work)
        self.world.run(until_s=self.world.now_s + within_s, done=lambda: task.done)
        self.fail_on_error()
        if not task.done:
            raise Violation(f"no progress: {within_s:g} s after the faults stopped {actor.process.name} still works")

    def fail_on_error(self) -> None:
        """Raises: Violation if an actor got an unexpected error."""
        if isinstance(self.world.failure, Violation):
            raise self.world.failure
        if self.world.failure is not None:
            raise Violation(f"unexpected {self.world.failure!r}") from self.world.failure

    def _live(self, actor: Actor, slot: str) -> None:
        while self.turns_left[slot] > 0:
            self.turns_left[slot] -= 1
            actor.turn()
        self.living.remove(actor.process)
        self._playing -= 1


def perform(kind: type[Actors], seed: int, *, muted: frozenset[str] = frozenset()) -> tuple[World, Violation | None]:
    """Run a seed without the muted faults; returns the final world, and the violated invariant, if any."""
    world, plan = World(seed, muted=muted), draw(seed)
    violation: Violation | None = None
    with _tuned(kind.tuning(world, plan)), _no_garbage_collection():
        try:
            kind(world, plan).act()
        except Violation as found:
            violation = found
        finally:
            world.close()
    return world, violation


@contextmanager
def _tuned(settings: Settings) -> Iterator[None]:
    before = {(module, name): getattr(module, name) for module, name in settings}
    try:
        for (module, name), value in settings.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collect cyclic garbage only at the end of a run: it would take a quarter of its time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
