"""Scenario: processes of one machine on a directory, with power loss, full disks, failing calls, and kill -9."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from limpet.cell import PLAIN, Cell
from limpet.errors import Conflict, LimpetError, Missing
from limpet.keys import Key, cell_key
from limpet.sim.actors import Actors, RunPlan, Turns
from limpet.sim.disk import Disk, SimFiles
from limpet.sim.kernel import CellActor, History, Operation, cell_model, explained, linearizable
from limpet.sim.world import SimProcess, SimRuntime, Violation, World
from limpet.store import Absent, Blob, DirectoryStore, Match, Store, When

R = TypeVar("R")

ROOT = "/srv/fleet"
SLOTS = 3
TURNS = 7
RUN_S = 600.0
TTL_CALLS = 20
"""The ttl of an entry's lease, in disk calls: sometimes shorter than its work."""
RAW = Key("raw/object.json")
CELLS = ("counter", "register", "once-0", "once-1", "once-2")


class MachineActors(Actors):
    """The processes of one machine, its disk, and kill -9 and power loss at random times."""

    def __init__(
        self, world: World, plan: RunPlan, *, turns: int, pauses: tuple[float, float], power_losses: float
    ) -> None:
        """`pauses`: the minimum time between two faults, and the maximum random addition, in disk calls.

        `power_losses`: the share of faults that are power losses; the others kill one process.
        """
        super().__init__(world, plan, slots=SLOTS, turns=turns)
        self.disk = Disk(world, folders=ROOT)
        self._pauses = pauses
        self._power_losses = power_losses

    def inject_faults(self) -> None:
        """Inject faults until they stop."""
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
        """Kill these processes, for a power loss also lose unsynced data; then start new ones."""
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
    """System calls that take no time and never fail. They are counted, so that each write draws another number."""

    def _simulate(self, what: str, about: str, call: Callable[[], R]) -> R:
        self._process.calls += 1
        return call()


class DirectoryActors(MachineActors):
    """Processes that use cells and objects; `kept`: the cells as the last power loss left them."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        super().__init__(world, plan, turns=TURNS, pauses=(15, 250), power_losses=0.3)
        self.fault_rate = 0.01 + 0.05 * world.chance(60)
        self.history = History()
        self.kept: dict[Key, object] = {}
        self.entries = EntryModel(ttl_s=TTL_CALLS * self.disk.pace_s)

    def act(self) -> None:
        self.play(self.inject_faults, until_s=RUN_S)
        self.world.healed = True
        self.recover()

    def actor(self, process: SimProcess) -> DirectoryActor:
        runtime = SimRuntime(self.world, process)
        files = SimFiles(self.disk, self.world, process, fault_rate=self.fault_rate)
        return DirectoryActor(runtime, DirectoryStore(ROOT, runtime=runtime, files=files), self.history, self.entries)

    def recover(self) -> None:
        """Acknowledged writes are on the disk, and the answers so far are linearizable."""
        when = "the end" if self.world.healed else f"power loss {self.disk.losses}"
        found = self.recovered()
        for key in [*(cell_key(name) for name in CELLS), RAW]:
            operations = self.history.operations.get(key, [])
            before = (self.kept.get(key), 0)
            if linearizable(operations, before, cell_model) is False:
                raise Violation(explained(f"{key} is not linearizable before {when}", operations))
            # A reader may have seen a write that was not durable yet: only acknowledged writes must exist.
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
        self.entries.check({stat.key for stat in store.list("queues")})
        for name in CELLS:
            cell = Cell(store, cell_key(name), PLAIN, runtime)
            try:
                seen = cell.read()
            except LimpetError as error:
                raise Violation(f"{cell.key} cannot be read: {error}") from error
            if seen is not None:
                found[cell.key] = seen.value
        return found


def entry_keys(name: str) -> tuple[Key, Key, Key]:
    """The task, the lease and the receipt of an entry."""
    return Key(f"queues/e/{name}/task.json"), Key(f"queues/e/{name}/lease.json"), Key(f"queues/ended/{name}.json")


@dataclass(slots=True)
class EntryModel:
    """Entries as a queue has them.

    `pushed`: those that may be listed; `claimed_s`: when the last claim of each was sent; `ended`: those whose receipt
    was acknowledged.
    """

    ttl_s: float
    pushed: list[str] = field(default_factory=list)
    claimed_s: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    def start(self, name: str, token: int) -> None:
        """A process that holds `token` of the entry begins its work.   Raises: Violation, if it has ended."""
        if name in self.ended:
            raise Violation(f"{name} was ended, and starts again under token {token}")

    def check(self, there: set[Key]) -> None:
        """Nothing is lost, and no ended task is without its lease: a first claim would start it again.

        Raises: Violation.
        """
        for name in self.pushed:
            task, lease, receipt = entry_keys(name)
            if not {task, receipt} & there:
                raise Violation(f"{name} was pushed, and neither its task nor its receipt is there")
            if name in self.ended and task in there and lease not in there:
                raise Violation(f"{name} was ended, and its task is there without its lease")


class DirectoryActor(CellActor):
    """Uses cells, objects that come and go, and entries whose names are used once."""

    def __init__(self, runtime: SimRuntime, store: Store, history: History, entries: EntryModel) -> None:
        super().__init__(runtime, store, history)
        self.entries = entries

    def turns(self) -> Turns:
        return [
            (0.15, self.count),
            (0.15, self.swap_register),
            (0.1, self.create_once),
            (0.25, self.swap_bytes),
            (0.1, self.come_and_go),
            (0.25, self.run_entry),
        ]

    def swap_bytes(self) -> None:
        """Swap an object without a header, always of the same size, as fast as possible (F15); sometimes delete it."""
        for _ in range(4):
            if self.chance() < 0.1:
                self.recorded(RAW, "delete", None, lambda: self.store.delete(RAW) or "ok")
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
        """Create and delete a single-use object in a folder that others create and prune too."""
        key = Key(f"queues/q/{int(self.chance() * 2)}/{self.new_value().replace('#', '-')}.json")
        self.store.put(key, b"{}")
        if key not in [stat.key for stat in self.store.list("queues")]:
            raise Violation(f"{key} was acknowledged and is not listed")
        self.store.delete(key)

    def run_entry(self) -> None:
        """Claim an entry, run it and end it, by the queue's rules (docs/ARCHITECTURE.md, the life of an entry)."""
        entries = self.entries
        if not entries.pushed or self.chance() < 0.4:
            name = self.new_value().replace("#", "-")
            self.store.put(entry_keys(name)[0], b"{}", when=Absent())
            entries.pushed.append(name)
        else:
            name = entries.pushed[-1 - int(self.chance() * min(2, len(entries.pushed)))]
        task, lease, receipt = entry_keys(name)
        claim = self.claim(name, lease)
        if claim is None:
            return
        token, sent_s = claim
        try:
            self.store.get(task)
        except Missing:
            self.store.delete(lease)
            return
        if (token > 1 and self.exists(receipt)) or self.world.now_s - sent_s > entries.ttl_s:
            return
        entries.start(name, token)
        try:
            self.store.put(receipt, b"{}", when=Absent())
        except Conflict:
            return  # of another claim: it may not be durable yet, so we must not act on it
        entries.ended.add(name)
        self.store.delete_in_order([task, lease])

    def claim(self, name: str, lease: Key) -> tuple[int, float] | None:
        """Create the lease, or take over an expired one; returns its token and the time of the request, or None."""
        try:
            found: Blob | None = self.store.get(lease)
        except Missing:
            found = None
        sent_s = self.world.now_s
        if found is not None and sent_s - self.entries.claimed_s[name] <= self.entries.ttl_s:
            return None
        self.entries.claimed_s[name] = sent_s
        token = int(found.data) + 1 if found else 1
        try:
            self.store.put(lease, b"%d" % token, when=Match(found.version) if found else Absent())
        except Conflict:
            return None
        return token, sent_s

    def exists(self, key: Key) -> bool:
        """Whether there is such an object."""
        try:
            self.store.head(key)
        except Missing:
            return False
        return True
