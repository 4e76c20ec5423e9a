"""Processes of one machine on a directory: power loss, full disks, failing calls, kill -9 between any two calls."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from limpet.cell import PLAIN, Cell
from limpet.errors import LimpetError, Missing
from limpet.keys import Key, cell_key
from limpet.sim.actors import Actors, Turns
from limpet.sim.disk import Disk, SimFiles
from limpet.sim.kernel import CellActor, cell_model
from limpet.sim.linear import History, Operation, explained, linearizable
from limpet.sim.nemesis import Knobs
from limpet.sim.world import SimProcess, SimRuntime, Violation, World
from limpet.store import Absent, DirectoryStore, Match, When

R = TypeVar("R")

ROOT = "/srv/fleet"
SLOTS = 3
TURNS = 7
RUN_S = 600.0
RAW = Key("raw/object.json")
CELLS = ("counter", "register", "once-0", "once-1", "once-2")


class MachineActors(Actors):
    """The processes of one machine, its disk, and kill -9 and power loss at random times."""

    def __init__(
        self, world: World, knobs: Knobs, *, turns: int, pauses: tuple[float, float], power_losses: float
    ) -> None:
        """`pauses`: the least time between two strikes and what may be added to it, in disk calls.

        `power_losses`: the share of strikes that are power losses; the others kill one process.
        """
        super().__init__(world, knobs, slots=SLOTS, turns=turns)
        self.disk = Disk(world, folders=ROOT)
        self._pauses = pauses
        self._power_losses = power_losses

    def torment(self) -> None:
        """Strike until the world is healed."""
        strikes = 0
        while not self.world.healed:
            strikes += 1
            least, more = self._pauses
            self.world.pause(self.disk.pace_s * (least + more * self.world.chance(61, strikes)))
            kind = "power_loss" if self.world.chance(62, strikes) < self._power_losses else "crash"
            if not self.living or not self.world.strike(f"nemesis/{strikes}", kind):
                continue
            one = int(self.world.chance(63, strikes) * len(self.living))
            self.hit(kind, [*self.living] if kind == "power_loss" else [self.living[one]])

    def hit(self, kind: str, victims: list[SimProcess]) -> None:
        """Kill these processes, and with a power loss lose all that was not synced; then start others."""
        self.world.note("nemesis", kind, detail=" ".join(victim.name for victim in victims), fault=kind)
        for victim in victims:
            self.crash(victim, kind)
            self.disk.bury(victim)
        if kind == "power_loss":
            self.disk.lose_power()
            self.recover()
        for victim in victims:
            self.relaunch(victim)

    @abstractmethod
    def recover(self) -> None:
        """Check the disk after a power loss; no process runs.   Raises: Violation."""


class StillFiles(SimFiles):
    """System calls that take no time and never fail."""

    def _simulate(self, what: str, about: str, call: Callable[[], R]) -> R:
        return call()


class DirectoryActors(MachineActors):
    """Processes that use cells and objects; `kept`: the cells as the last power loss left them."""

    def __init__(self, world: World, knobs: Knobs) -> None:
        super().__init__(world, knobs, turns=TURNS, pauses=(15, 250), power_losses=0.3)
        self.fault_rate = 0.01 + 0.05 * world.chance(60)
        self.history = History()
        self.kept: dict[Key, object] = {}

    def act(self) -> None:
        self.play(self.torment, until_s=RUN_S)
        self.world.healed = True
        self.recover()

    def actor(self, process: SimProcess) -> DirectoryActor:
        runtime = SimRuntime(self.world, process)
        files = SimFiles(self.disk, self.world, process, fault_rate=self.fault_rate)
        return DirectoryActor(runtime, DirectoryStore(ROOT, runtime=runtime, files=files), self.history)

    def recover(self) -> None:
        """Everything that was acknowledged is on the disk, and the answers so far are linearizable."""
        when = "the end" if self.world.healed else f"power loss {self.disk.losses}"
        found = self.recovered()
        for key in [*(cell_key(name) for name in CELLS), RAW]:
            operations = self.history.operations.get(key, [])
            before = (self.kept.get(key), 0)
            if linearizable(operations, before, cell_model) is False:
                raise Violation(explained(f"{key} is not linearizable before {when}", operations))
            # A reader may have seen a write that was not durable yet: only acknowledged writes must be there.
            writes = [op for op in operations if op.name != "read" and op.answer not in ("Conflict",)]
            last = Operation("the disk", "read", None, float(10**9), float(10**9 + 1), found.get(key))
            if linearizable([*writes, last], before, cell_model) is False:
                raise Violation(explained(f"after {when}, {key} is {found.get(key)!r}", operations))
        self.kept = found
        self.history.operations.clear()

    def recovered(self) -> dict[Key, object]:
        """The cells as the next process will find them.   Raises: Violation for one that is torn."""
        process = self.world.start("inspector")
        runtime = SimRuntime(self.world, process)
        store = DirectoryStore(ROOT, runtime=runtime, files=StillFiles(self.disk, self.world, process, fault_rate=0))
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


class DirectoryActor(CellActor):
    """Uses cells, and objects that come and go."""

    def turns(self) -> Turns:
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
