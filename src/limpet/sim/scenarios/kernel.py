"""Processes that lock, write with tokens, count, create and swap through a faulty network."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from limpet.cell import PLAIN, Cell, Fence, Seen
from limpet.errors import (
    Conflict,
    Held,
    Invalid,
    LeaseLost,
    OutcomeUnknown,
    Unavailable,
)
from limpet.keys import Key, cell_key, lock_key
from limpet.lease import Lease, Lock, Sightings
from limpet.sim.bucket import Bucket, SimStore
from limpet.sim.checks import Tally, check_run
from limpet.sim.linear import History
from limpet.sim.nemesis import Knobs, Nemesis, draw
from limpet.sim.runtime import SimRuntime
from limpet.sim.world import Process, Violation, World

__all__ = ["run"]

LOCKS = ("red", "blue")
TURNS = 9
HEAL_S = 600.0
RUN_S = 3_000.0


def run(seed: int, *, muted: frozenset[str] = frozenset()) -> tuple[World, Violation | None]:
    """One run of the seed: the world as it ended, and the invariant that broke, if one did."""
    world = World(seed, muted=muted)
    knobs = draw(seed)
    cast = _Cast(world, knobs, Bucket(world, knobs))
    violation: Violation | None = None
    try:
        cast.act()
        check_run(world, knobs, cast.bucket, cast.history, cast.tally)
    except Violation as found:
        violation = found
    finally:
        world.close()
    return world, violation


@dataclass(slots=True)
class _Cast:
    """The processes of one run and what they remember for the checks."""

    world: World
    knobs: Knobs
    bucket: Bucket
    history: History = field(default_factory=History)
    tally: Tally = field(default_factory=Tally)
    living: list[Process] = field(default_factory=list)
    turns_left: dict[str, int] = field(default_factory=dict)
    finished: int = 0

    def act(self) -> None:
        """The faulty part, then the healed part in which a newcomer must get everywhere."""
        for i in range(self.knobs.processes):
            self.turns_left[f"p{i}"] = TURNS
            self.launch(f"p{i}", 1)
        nemesis = Nemesis(self.world, self.knobs, lambda: self.living, self.restart)
        self.world.spawn(self.world.start("nemesis"), nemesis.run)
        self.world.run(until_s=RUN_S, done=lambda: self.finished == self.knobs.processes)
        self.fail_on_error()
        self.heal()

    def launch(self, slot: str, life: int) -> None:
        """Start (again) the process of a slot."""
        process = self.world.start(f"{slot}#{life}")
        process.newer = self.knobs.mixed_versions and process.index % 2 == 1
        if self.knobs.drift:
            process.clock_rate = 0.9 + 0.2 * self.world.chance(30, process.index)
        self.living.append(process)
        actor = _Actor(self, process)
        self.world.spawn(process, lambda: self.live(actor, slot))

    def live(self, actor: _Actor, slot: str) -> None:
        """A process's whole life: its slot's remaining turns."""
        while self.turns_left[slot] > 0:
            self.turns_left[slot] -= 1
            actor.turn()
        self.living.remove(actor.process)
        self.finished += 1

    def restart(self, dead: Process) -> None:
        """After a crash the slot's next process starts, a little later."""
        self.living.remove(dead)
        slot, life = dead.name.split("#")
        delay_s = 5 * self.world.chance(31, dead.index)
        self.world.later(delay_s, lambda: self.launch(slot, int(life) + 1))

    def heal(self) -> None:
        """Faults stop. Whatever happened before, a newcomer gets every lock and writes with it."""
        self.world.healed = True
        self.world.note("nemesis", "faults stop")
        for process in self.living:
            self.world.kill(process)
        newcomer = _Actor(self, self.world.start("newcomer"))
        task = self.world.spawn(newcomer.process, newcomer.visit_everything)
        self.world.run(until_s=self.world.now_s + HEAL_S, done=lambda: task.done)
        self.fail_on_error()
        if not task.done:
            raise Violation(f"no progress: {HEAL_S:g} s after the faults stopped the newcomer still waits")

    def fail_on_error(self) -> None:
        """An error that no caller should ever see is a violation."""
        if self.world.failure is not None:
            raise Violation(f"unexpected {self.world.failure!r}") from self.world.failure


class _Actor:
    """One process's program: unchanged kernel code, and notes about what it was told."""

    def __init__(self, cast: _Cast, process: Process) -> None:
        self.cast = cast
        self.process = process
        self.world = cast.world
        self.runtime = SimRuntime(cast.world, process)
        self.store = SimStore(cast.world, cast.bucket, self.runtime, cast.knobs)
        self.sightings = Sightings(self.runtime)
        self.values = 0
        self.registers: dict[str, Seen[Any]] = {}

    def chance(self, n: int) -> float:
        """Chance of this process alone."""
        return self.world.chance(40, self.process.index, self.process.calls, n)

    def turn(self) -> None:
        """Do one of the things that users do."""
        turns: list[tuple[float, Callable[[], None]]] = [
            (0.34, self.hold_and_write),
            (0.14, self.acquire_by_hand),
            (0.16, self.count),
            (0.14, self.swap_register),
            (0.08, self.create_once),
            (0.06, self.write_without_lease),
            (0.04, self.write_with_wrong_lock),
            (1.0, self.look_around),
        ]
        at = self.chance(0)
        while at >= turns[0][0]:
            at -= turns.pop(0)[0]
        with suppress(Held, LeaseLost, OutcomeUnknown, Unavailable):
            turns[0][1]()
        self.runtime.sleep(self.chance(1) * 3)

    def lock(self, name: str) -> Lock:
        """A fresh handle, as a user would make one."""
        return Lock(
            self.store,
            lock_key(name),
            name,
            self.cast.knobs.ttl_s,
            self.runtime,
            self.sightings,
            look_first=self.chance(2) < 0.3,
        )

    def cell(self, key: Key) -> Cell[Any]:
        """A fresh handle on a cell."""
        return Cell(self.store, key, PLAIN, self.runtime)

    def new_value(self) -> str:
        """A value that nobody else writes."""
        self.values += 1
        return f"{self.process.name}-{self.values}"

    def hold_and_write(self) -> None:
        """The common use: a block under a lock, writing to the cell that it guards."""
        name = LOCKS[self.chance(3) < 0.3]
        with self.lock(name).hold(wait_s=self.chance(4) * 2 * self.cast.knobs.ttl_s) as lease:
            self.won(lease)
            cell = self.cell(cell_key(name))
            for i in range(1 + int(self.chance(5) * 4)):
                self.checked(lease)
                self.write(cell, lease)
                self.runtime.sleep(self.chance(6 + i) * self.cast.knobs.ttl_s / 2)

    def acquire_by_hand(self) -> None:
        """The advanced use: no heartbeat thread."""
        name = LOCKS[self.chance(3) < 0.3]
        lock = self.lock(name)
        if self.cast.knobs.breaks and self.chance(4) < 0.2:
            if lock.peek() is not None:
                lock.break_()
            return
        got = lock.try_acquire()
        if isinstance(got, Held):
            return
        self.won(got)
        self.runtime.sleep(self.chance(5) * self.cast.knobs.ttl_s * 0.7)
        got.renew()
        self.checked(got)
        self.write(self.cell(cell_key(name)), got)
        if self.chance(6) < 0.7:
            got.release()

    def won(self, lease: Lease) -> None:
        """Remember a won lock."""
        self.cast.tally.won(self.world.now_s, self.process.name, lease.name, lease.token)

    def checked(self, lease: Lease) -> None:
        """Just before a side effect outside Limpet."""
        lease.check()
        self.cast.tally.checked(self.world.now_s, self.process.name, lease.name, lease.token)

    def write(self, cell: Cell[Any], lease: Lease | Fence | None) -> None:
        """A write, with or without a token."""
        value = self.new_value()
        token = lease.token if lease else None
        self.recorded(cell.key, "write", (value, token), lambda: cell.write(value, lease=lease) and "ok")

    def recorded(self, key: Key, name: str, argument: Any, call: Callable[[], Any]) -> Any:
        """Do it, and put it into the history: an unknown outcome stays open."""
        operation = self.cast.history.begin(self.process.name, key, name, argument)
        try:
            answer = call()
        except (Conflict, Invalid, LeaseLost) as refused:
            self.cast.history.end(operation, type(refused).__name__)
            raise
        self.cast.history.end(operation, answer)
        return answer

    def read(self, cell: Cell[Any]) -> Seen[Any] | None:
        """A read of the whole cell."""
        found: list[Seen[Any] | None] = []

        def look() -> Any:
            found.append(cell.read())
            return found[0].value if found[0] else None

        self.recorded(cell.key, "read", None, look)
        return found[0]

    def count(self) -> None:
        """A shared counter: increments by update."""
        cell = self.cell(cell_key("counter"))

        def add() -> Any:
            seen = cell.update(lambda n: (n or 0) + 1)
            return seen.value if seen else None

        self.recorded(cell.key, "add", None, add)

    def swap_register(self) -> None:
        """Read a register, and swap it on what was read, now or later."""
        cell = self.cell(cell_key("register"))
        seen = self.registers.get("register") if self.chance(3) < 0.3 else None
        seen = seen or self.read(cell)
        value = self.new_value()
        if seen is None:
            self.refusable(lambda: self.recorded(cell.key, "create", value, lambda: cell.create(value) and "ok"))
            return
        self.registers["register"] = seen
        if self.chance(4) < 0.3:
            self.runtime.sleep(self.chance(5) * 2)
        base = seen
        self.refusable(
            lambda: self.recorded(cell.key, "swap", (base.value, value), lambda: cell.swap(base, value) and "ok")
        )

    def create_once(self) -> None:
        """Several race to create one name."""
        cell = self.cell(cell_key(f"once-{int(self.chance(3) * 3)}"))
        value = self.new_value()
        self.refusable(lambda: self.recorded(cell.key, "create", value, lambda: cell.create(value) and "ok"))
        self.read(cell)

    def write_without_lease(self) -> None:
        """An operator's hand edit of a guarded cell: keeps the fence."""
        cell = self.cell(cell_key(LOCKS[self.chance(3) < 0.3]))
        self.write(cell, None)
        self.read(cell)

    def write_with_wrong_lock(self) -> None:
        """A token of another lock is refused, however high."""
        cell = self.cell(cell_key("red"))
        seen = self.read(cell)
        if seen is not None and seen.header.fence is not None:
            value = self.new_value()
            fence = Fence("locks/user/other.lock", 1_000_000)
            self.refusable(
                lambda: self.recorded(cell.key, "foreign", value, lambda: cell.write(value, lease=fence) and "ok")
            )

    def look_around(self) -> None:
        """List the locks, as an operator does."""
        for stat in self.store.list("locks"):
            self.store.head(stat.key)

    def refusable(self, call: Callable[[], Any]) -> None:
        """A lost race is an answer, not an error."""
        try:
            call()
        except (Conflict, Invalid):
            return

    def visit_everything(self) -> None:
        """After the faults: every lock can be had, every cell written and read."""
        for name in LOCKS:
            lease = self.lock(name).acquire(wait_s=None)
            self.won(lease)
            self.write(self.cell(cell_key(name)), lease)
            lease.release()
        for name in (*LOCKS, "counter", "register", "once-0", "once-1", "once-2"):
            self.read(self.cell(cell_key(name)))
        self.count()
