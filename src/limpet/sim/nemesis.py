"""Faults: their kinds, and the schedule by which a seed injects them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from limpet.sim.world import SimProcess, World, mix

if TYPE_CHECKING:
    from limpet.sim.actors import Actors

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
        self._knobs = actors.plan

    def run(self) -> None:
        """Inject faults at random times: into a random process, or the first one at a certain protocol step."""
        world = self._world
        strikes = 0
        while not world.healed:
            strikes += 1
            world.pause(self._knobs.nemesis_every_s * (0.3 + world.chance(20, strikes)))
            kind = PROCESS_FAULTS[mix(world.seed, 22, strikes) % len(PROCESS_FAULTS)]
            if kind == "store_clock_step" and not self._knobs.store_steps:
                kind = "crash"
            if world.chance(24, strikes) < 0.5:
                step = self._steps[mix(world.seed, 25, strikes) % len(self._steps)]
                world.strike_during = (step, partial(self._hit, f"nemesis/{strikes}", kind, world.chance(23, strikes)))
            elif victims := self._actors.living:
                victim = victims[mix(world.seed, 21, strikes) % len(victims)]
                self._hit(f"nemesis/{strikes}", kind, world.chance(23, strikes), victim)

    def _hit(self, fault_id: str, kind: str, much: float, victim: SimProcess) -> None:
        if victim in self._actors.living and self._world.strike(fault_id, kind):
            self._world.cover(kind, victim)
            self._strike(kind, victim, much)

    def _strike(self, kind: str, victim: SimProcess, much: float) -> None:
        world, ttl_s = self._world, self._knobs.ttl_s
        world.note("nemesis", kind, detail=victim.name, result=f"{much:.2f}", fault=kind)
        match kind:
            case "crash":
                world.kill(victim)
                self._actors.restart(victim)
            case "pause":
                victim.paused_until_s = world.now_s + much * 3 * ttl_s
            case "pause_heartbeat":
                for task in victim.renewals():
                    task.paused_until_s = world.now_s + much * 3 * ttl_s
            case "hang":
                for task in victim.tasks:
                    if task.name == "main":
                        task.paused_until_s = world.now_s + much * 6 * ttl_s
            case "cut_off":
                victim.cut_off_until_s = world.now_s + much * 2 * ttl_s
            case "wall_step":
                victim.wall_offset_s += (much - 0.5) * 86_400
            case "store_clock_step":
                world.store_offset_s += (much - 0.5) * 20 * ttl_s
