"""Processes of one machine on a directory: power loss, full disks, failing calls, kill -9 between any two calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from limpet.cell import PLAIN, Cell
from limpet.errors import LimpetError, Missing
from limpet.keys import Key, cell_key
from limpet.sim.cast import Actor, Cast, perform
from limpet.sim.checks import cell_model
from limpet.sim.disk import Disk, SimFiles
from limpet.sim.linear import Operation, linearizable
from limpet.sim.runtime import SimRuntime
from limpet.sim.world import Process, Violation, World
from limpet.store import Absent, DirectoryStore, Match, When

__all__ = ["run"]

R = TypeVar("R")

ROOT = "/srv/fleet"
SLOTS = 3
TURNS = 7
RUN_S = 600.0
RAW = Key("raw/object.json")
CELLS = ("counter", "register", "once-0", "once-1", "once-2")


def run(seed: int, *, muted: frozenset[str] = frozenset()) -> tuple[World, Violation | None]:
    """One run of the seed: the world as it ended, and the invariant that broke, if one did."""
    world = World(seed, muted=muted)
    return perform(world, _Machine(world))


class _Machine(Cast):
    """One machine: its disk, its processes, and what they were told since the power came on."""

    def __init__(self, world: World) -> None:
        super().__init__(world, slots=SLOTS, turns=TURNS)
        self.disk = Disk(world, folders=ROOT)
        self.fault_rate = 0.01 + 0.05 * world.chance(60)
        self.kept: dict[Key, object] = {}

    def act(self) -> None:
        """Run until all have had their turns, then look at what is there."""
        self.play(self.torment, until_s=RUN_S)
        self.world.healed = True
        self.end_epoch("the end")

    def actor(self, process: Process) -> _Actor:
        """A process's program on this machine's disk."""
        runtime = SimRuntime(self.world, process)
        files = SimFiles(self.disk, self.world, process, fault_rate=self.fault_rate)
        return _Actor(runtime, DirectoryStore(ROOT, runtime=runtime, files=files), self.history)

    def torment(self) -> None:
        """kill -9 and power loss, now and then."""
        strikes = 0
        while not self.world.healed:
            strikes += 1
            self.world.pause(self.disk.pace_s * (15 + 250 * self.world.chance(61, strikes)))
            kind = "power_loss" if self.world.chance(62, strikes) < 0.3 else "crash"
            if not self.living or not self.world.strike(f"nemesis/{strikes}", kind):
                continue
            one = int(self.world.chance(63, strikes) * len(self.living))
            victims = [*self.living] if kind == "power_loss" else [self.living[one]]
            self.world.note("nemesis", kind, detail=" ".join(victim.name for victim in victims), fault=kind)
            for victim in victims:
                for flight in victim.in_flight.values():
                    self.world.coverage[kind, flight.step] += 1
                self.world.kill(victim)
                self.living.remove(victim)
                self.disk.bury(victim)
            if kind == "power_loss":
                self.disk.lose_power()
                self.end_epoch(f"power loss {strikes}")
            for victim in victims:
                self.relaunch(victim)

    def end_epoch(self, when: str) -> None:
        """Nobody runs. Everything that was acknowledged is on the disk, and the answers so far make sense."""
        found = self.recovered()
        for key in [*(cell_key(name) for name in CELLS), RAW]:
            operations = self.history.operations.get(key, [])
            before = (self.kept.get(key), 0)
            if linearizable(operations, before, cell_model) is False:
                raise Violation(_told(f"{key} is not linearizable before {when}", operations))
            # A reader may have seen a write that was not durable yet: only acknowledged writes must be there.
            writes = [op for op in operations if op.name != "read" and op.answer not in ("Conflict",)]
            last = Operation("the disk", "read", None, float(10**9), float(10**9 + 1), found.get(key))
            if linearizable([*writes, last], before, cell_model) is False:
                raise Violation(_told(f"after {when}, {key} is {found.get(key)!r}", operations))
        self.kept = found
        self.history.operations.clear()

    def recovered(self) -> dict[Key, object]:
        """The cells as the next process will find them.   Raises: Violation for one that is torn."""
        process = self.world.start("inspector")
        runtime = SimRuntime(self.world, process)
        store = DirectoryStore(ROOT, runtime=runtime, files=_Still(self.disk, self.world, process, fault_rate=0))
        found: dict[Key, object] = {}
        with suppress(Missing):
            found[RAW] = store.get(RAW).data
        for name in CELLS:
            cell = Cell(store, cell_key(name), PLAIN, runtime)
            try:
                seen = cell.read()
            except LimpetError as error:
                raise Violation(f"{cell.key} cannot be read: {error}") from error
            if seen is not None:
                found[cell.key] = seen.value
        return found


class _Still(SimFiles):
    """Calls that take no time."""

    def _do(self, what: str, path: str, call: Callable[[], R]) -> R:
        return call()


class _Actor(Actor):
    """Cells, and objects that come and go."""

    def turns(self) -> list[tuple[float, Callable[[], None]]]:
        """The things that users do."""
        return [
            (0.25, self.count),
            (0.2, self.swap_register),
            (0.15, self.create_once),
            (0.25, self.swap_bytes),
            (0.15, self.come_and_go),
        ]

    def swap_bytes(self) -> None:
        """Swaps of an object without a header, all of one size, as fast as they go (F15)."""
        for _ in range(4):
            operation = self.history.begin(self.process.name, RAW, "read")
            try:
                found = self.store.get(RAW)
            except Missing:
                self.history.end(operation, None)
                self.put_bytes("create", None, Absent())
                continue
            self.history.end(operation, found.data)
            self.put_bytes("swap", found.data, Match(found.version))

    def put_bytes(self, name: str, base: bytes | None, when: When) -> None:
        """One conditional put; a directory's Conflict is final."""
        self.values += 1
        data = f"{self.process.index:04x}{self.values:04x}".encode()
        argument = data if base is None else (base, data)
        self.recorded(RAW, name, argument, lambda: self.store.put(RAW, data, when=when) and "ok")

    def come_and_go(self) -> None:
        """A single-use object in a folder that others make and prune, too."""
        key = Key(f"queues/q/{int(self.chance() * 2)}/{self.new_value().replace('#', '-')}.json")
        self.store.put(key, b"{}")
        if key not in [stat.key for stat in self.store.list("queues")]:
            raise Violation(f"{key} was acknowledged and is not listed")
        self.store.delete(key)


def _told(what: str, operations: list[Operation]) -> str:
    return what + "\n    " + "\n    ".join(str(op) for op in operations)
