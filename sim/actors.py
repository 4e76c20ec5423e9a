"""The faults of a run, and its processes: each slot takes turns, crashes, and restarts as a new process."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from limpet.kernel.errors import Held, LeaseLost, LimpetError, OutcomeUnknown, Unavailable
from limpet.kernel.store import Store
from sim.world import SimProcess, SimRuntime, Violation, World, mix

# ---- faults ----

REQUEST_FAULTS: dict[str, tuple[str, ...]] = {
    "put": ("lost_request", "lost_reply", "late", "duplicate", "refused_409", "throttled", "slow"),
    "get": ("lost_reply", "throttled", "slow"),
    "head": ("lost_reply", "throttled", "slow"),
    "delete": ("lost_request", "lost_reply", "late", "duplicate", "slow"),
    "list": ("throttled", "slow", "torn_pages"),
}
"""By verb. `refused_409`: S3's answer to a concurrent write; nothing was stored (F6). `torn_pages`: others write while
pages are listed. `late`: the client times out, and the request takes effect later."""


def steps(*rooms: str) -> tuple[str, ...]:
    """The names of protocol steps: `steps("lock: read take")` is `("lock.read", "lock.take")`."""
    parts = (each.split(": ") for each in rooms)
    return tuple(f"{room}.{step}" for room, names in parts for step in names.split())


STEPS = steps(
    "cell: create delete fenced list read settle swap",
    "clock: head put",
    "lock: create free head list read renew settle take takeover",
)
"""Every step of the kernel's protocols that sends a request."""

PROCESS_FAULTS = ("crash", "pause", "pause_heartbeat", "hang", "cut_off", "wall_step", "store_clock_step")
"""By process. `pause`: SIGSTOP or a laptop's sleep; the monotonic clock continues. `hang`: only leases are renewed.
`cut_off`: all requests are lost."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The parameters of a seed's world."""

    processes: int
    ttl_s: float
    fault_rate: float
    nemesis_every_s: float
    whole_seconds: bool
    digest_versions: bool
    drift: bool
    store_steps: bool
    breaks: bool
    mixed_versions: bool

    @property
    def sane_clocks(self) -> bool:
        """Whether all clocks, including the store's, run at the same rate: then two processes never hold one lock."""
        return not (self.drift or self.store_steps or self.breaks)


def draw(seed: int) -> RunPlan:
    """The plan of a seed."""

    def often(n: int, share: float) -> bool:
        return mix(seed, 100, n) / 2**64 < share

    def between(n: int, low: float, high: float) -> float:
        return low + (high - low) * (mix(seed, 101, n) / 2**64)

    return RunPlan(
        processes=3 + mix(seed, 102) % 3,
        ttl_s=round(between(0, 4, 30), 1),
        fault_rate=between(1, 0.05, 0.22),
        nemesis_every_s=between(2, 4, 20),
        whole_seconds=often(3, 0.5),
        digest_versions=often(4, 0.5),
        drift=often(5, 0.25),
        store_steps=often(6, 0.25),
        breaks=often(7, 0.2),
        mixed_versions=often(8, 0.3),
    )


def pick_fault(
    world: World, process: SimProcess, kinds: Sequence[str], rate: float, *, salt: int, number: int, name: str = ""
) -> str:
    """The fault of a request of the process, its `number`th; an empty string for none."""
    if process.cut_off_until_s > world.now_s and not world.healed:
        return "cut_off"
    if world.chance(salt, process.index, number) >= rate:
        return ""
    kind = kinds[mix(world.seed, salt + 1, process.index, number) % len(kinds)]
    return kind if world.strike(f"{process.name}/{name}{number}", kind) else ""


class Nemesis:
    """Injects faults into processes until the faults stop."""

    def __init__(self, actors: Actors, steps: Sequence[str] = STEPS) -> None:
        self._actors = actors
        self._steps = steps
        self._world = actors.world
        self._plan = actors.plan

    def run(self) -> None:
        """Inject faults at random times: into a random process, or the first one at a certain protocol step."""
        world = self._world
        strikes = 0
        while not world.healed:
            strikes += 1
            world.pause(self._plan.nemesis_every_s * (0.3 + world.chance(20, strikes)))
            kind = PROCESS_FAULTS[mix(world.seed, 22, strikes) % len(PROCESS_FAULTS)]
            if kind == "store_clock_step" and not self._plan.store_steps:
                kind = "crash"
            if world.chance(24, strikes) < 0.5:
                step = self._steps[mix(world.seed, 25, strikes) % len(self._steps)]
                world.strike_during = (step, partial(self._hit, f"nemesis/{strikes}", kind, world.chance(23, strikes)))
            elif victims := self._actors.living:
                victim = victims[mix(world.seed, 21, strikes) % len(victims)]
                self._hit(f"nemesis/{strikes}", kind, world.chance(23, strikes), victim)

    def _hit(self, fault_id: str, kind: str, strength: float, victim: SimProcess) -> None:
        if victim in self._actors.living and self._world.strike(fault_id, kind):
            self._world.cover(kind, victim)
            self._strike(kind, victim, strength)

    def _strike(self, kind: str, victim: SimProcess, strength: float) -> None:
        world, ttl_s = self._world, self._plan.ttl_s
        world.note("nemesis", kind, detail=victim.name, result=f"{strength:.2f}", fault=kind)
        match kind:
            case "crash":
                world.kill(victim)
                self._actors.restart(victim)
            case "pause":
                victim.paused_until_s = world.now_s + strength * 3 * ttl_s
            case "pause_heartbeat":
                for task in victim.renewals():
                    task.paused_until_s = world.now_s + strength * 3 * ttl_s
            case "hang":
                for task in victim.tasks:
                    if task.name == "main":
                        task.paused_until_s = world.now_s + strength * 6 * ttl_s
            case "cut_off":
                victim.cut_off_until_s = world.now_s + strength * 2 * ttl_s
            case "wall_step":
                victim.wall_offset_s += (strength - 0.5) * 86_400
            case "store_clock_step":
                world.store_offset_s += (strength - 0.5) * 20 * ttl_s


# ---- processes ----

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
