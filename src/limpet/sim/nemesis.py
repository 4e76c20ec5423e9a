"""What goes wrong, and how often: drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from limpet.sim.world import Process, World, mix

__all__ = ["PROCESS_FAULTS", "REQUEST_FAULTS", "STEPS", "Knobs", "Nemesis", "draw", "pick_request_fault"]

REQUEST_FAULTS: dict[str, tuple[str, ...]] = {
    "put": ("lost_request", "lost_reply", "late", "duplicate", "refused_409", "throttled", "slow"),
    "get": ("lost_reply", "throttled", "slow"),
    "head": ("lost_reply", "throttled", "slow"),
    "delete": ("lost_request", "lost_reply", "late", "duplicate", "slow"),
    "list": ("throttled", "slow", "torn_pages"),
}
"""Per verb. `refused_409`: S3's answer to a racing write, nothing landed (F6). `torn_pages`: other writes go on between
the pages. `late`: the client gives up, and the request lands after that."""

STEPS = (
    "cell.create",
    "cell.delete",
    "cell.fenced",
    "cell.list",
    "cell.read",
    "cell.settle",
    "cell.swap",
    "clock.head",
    "clock.put",
    "lock.create",
    "lock.free",
    "lock.head",
    "lock.list",
    "lock.read",
    "lock.renew",
    "lock.settle",
    "lock.take",
    "lock.takeover",
)
"""Every step of the kernel's protocols that sends a request."""

PROCESS_FAULTS = ("crash", "pause", "pause_heartbeat", "hang", "cut_off", "wall_step", "store_clock_step")
"""Per process. `pause` is SIGSTOP or a laptop's sleep: the rising clock goes on. `hang`: only its heartbeat lives.
`cut_off`: no request gets through."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """What this seed's world is like."""

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
        """Whether all rising clocks run at one rate, the store's too: then two processes never hold one lock."""
        return not (self.drift or self.store_steps or self.breaks)


def draw(seed: int) -> Knobs:
    """The knobs of a seed."""

    def often(n: int, share: float) -> bool:
        return mix(seed, 100, n) / 2**64 < share

    def between(n: int, low: float, high: float) -> float:
        return low + (high - low) * (mix(seed, 101, n) / 2**64)

    return Knobs(
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


def pick_request_fault(world: World, process: Process, verb: str, fault_rate: float) -> str:
    """The fault that strikes this request of the process, or an empty string."""
    call = process.calls
    if process.cut_off_until_s > world.now_s and not world.healed:
        return "cut_off"
    if world.chance(10, process.index, call) >= fault_rate:
        return ""
    kinds = REQUEST_FAULTS[verb]
    kind = kinds[mix(world.seed, 11, process.index, call) % len(kinds)]
    return kind if world.strike(f"{process.name}/{call}", kind) else ""


class Nemesis:
    """An actor outside all processes that kills, pauses and confuses them until the world is healed."""

    def __init__(
        self,
        world: World,
        knobs: Knobs,
        victims: Callable[[], list[Process]],
        restart: Callable[[Process], None],
        *,
        steps: Sequence[str] = STEPS,
    ) -> None:
        self._steps = steps
        self._world = world
        self._knobs = knobs
        self._victims = victims
        self._restart = restart

    def run(self) -> None:
        """Strike now and then: at anybody, or at whoever comes first to a certain step of a protocol."""
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
                world.ambush = (step, partial(self._hit, f"nemesis/{strikes}", kind, world.chance(23, strikes)))
            elif victims := self._victims():
                victim = victims[mix(world.seed, 21, strikes) % len(victims)]
                self._hit(f"nemesis/{strikes}", kind, world.chance(23, strikes), victim)

    def _hit(self, fault_id: str, kind: str, much: float, victim: Process) -> None:
        if victim in self._victims() and self._world.strike(fault_id, kind):
            for flight in victim.in_flight.values():
                self._world.coverage[kind, flight.step] += 1
            self._strike(kind, victim, much)

    def _strike(self, kind: str, victim: Process, much: float) -> None:
        world, ttl_s = self._world, self._knobs.ttl_s
        world.note("nemesis", kind, detail=victim.name, result=f"{much:.2f}", fault=kind)
        match kind:
            case "crash":
                world.kill(victim)
                self._restart(victim)
            case "pause":
                victim.paused_until_s = world.now_s + much * 3 * ttl_s
            case "pause_heartbeat":
                for task in victim.tasks:
                    if task.name.startswith("limpet-heart"):
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
