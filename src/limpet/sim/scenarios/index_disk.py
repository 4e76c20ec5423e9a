"""Processes of one machine around an index in a directory: power loss, failing calls, kill -9 between any two calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from limpet.errors import LimpetError
from limpet.sim.cast import Cast, perform
from limpet.sim.disk import Disk, SimFiles
from limpet.sim.index_books import Books
from limpet.sim.index_store import KEYS, NAMES, WAITING, DiskStore, layout, tuned, tuning
from limpet.sim.index_user import DAMAGE, Habits, User
from limpet.sim.runtime import SimRuntime
from limpet.sim.world import Process, Violation, World

__all__ = ["run"]

A = TypeVar("A")
R = TypeVar("R")

ROOT = "/srv/fleet"
SLOTS = 3
TURNS = 8
RUN_S = 600.0
LOCK_TTL_S = 5.0


def run(seed: int, *, muted: frozenset[str] = frozenset()) -> tuple[World, Violation | None]:
    """One run of the seed: the world as it ended, and the invariant that broke, if one did."""
    world = World(seed, muted=muted)
    with tuned(tuning(world, LOCK_TTL_S)):
        return perform(world, _Machine(world))


class _Machine(Cast):
    """One machine: its disk, and the processes on it."""

    def __init__(self, world: World) -> None:
        super().__init__(world, slots=SLOTS, turns=TURNS)
        self.disk = Disk(world, folders=ROOT)
        self.fault_rate = 0.01 * world.chance(60)
        self.books = Books()
        self.habits = Habits(
            NAMES[: 1 + int(world.chance(57) * 3)],
            duel=world.chance(66) < 0.7,
            rest_s=10 * self.disk.pace_s,
            full=0.5,
        )

    def act(self) -> None:
        """Run until all have had their turns; then everything is folded, and still there."""
        founder = self.newcomer("founder")
        for key, data in layout().items():
            founder.store.put(key, data)
        self.play(self.torment, until_s=RUN_S)
        self.world.healed = True
        for process in [*self.living]:
            self.world.kill(process)
            self.disk.bury(process)
        self.inspect("the end")
        newcomer = self.newcomer("newcomer")
        try:
            newcomer.compile_all()
        except LimpetError as error:
            raise Violation(f"in the end nothing can be folded: {error}") from error
        waiting = [stat.key for stat in newcomer.store.list(KEYS.root) if stat.key.startswith(WAITING)]
        if waiting:
            raise Violation(f"after everything was folded there is still {waiting[0]}")
        self.inspect("the last fold")

    def actor(self, process: Process) -> User:
        """A process's program on this machine's disk."""
        runtime = SimRuntime(self.world, process)
        files = _Files(self, process)
        return User(runtime, DiskStore(ROOT, runtime=runtime, files=files), self.history, self.books, self.habits)

    def newcomer(self, name: str) -> User:
        """Somebody who comes while nobody else runs, and to whom nothing happens."""
        process = self.world.start(name)
        runtime = _StillRuntime(self.world, process)
        files = _StillFiles(self.disk, self.world, process, fault_rate=0)
        return User(runtime, DiskStore(ROOT, runtime=runtime, files=files), self.history, self.books, self.habits)

    def torment(self) -> None:
        """kill -9 and power loss, now and then."""
        strikes = 0
        while not self.world.healed:
            strikes += 1
            self.world.pause(self.disk.pace_s * (10 + 100 * self.world.chance(61, strikes)))
            kind = "power_loss" if self.world.chance(62, strikes) < 0.5 else "crash"
            if not self.living or not self.world.strike(f"nemesis/{strikes}", kind):
                continue
            one = int(self.world.chance(63, strikes) * len(self.living))
            self.strike(kind, [*self.living] if kind == "power_loss" else [self.living[one]])

    def strike(self, kind: str, victims: list[Process]) -> None:
        """These processes are gone at once, and after a power loss whatever was not synced; others start."""
        self.world.note("nemesis", kind, detail=" ".join(victim.name for victim in victims), fault=kind)
        for victim in victims:
            for flight in victim.in_flight.values():
                self.world.coverage[kind, flight.step] += 1
            self.world.kill(victim)
            self.living.remove(victim)
            self.disk.bury(victim)
        if kind == "power_loss":
            self.disk.lose_power()
            self.books.lost_power()
            self.settle()
            self.inspect("a power loss")
        for victim in victims:
            self.relaunch(victim)

    def settle(self) -> None:
        """What an operator does after a power loss. A write that was not acknowledged may be gone while a fold of it
        stays: then the shard has other bytes than recorded, and nothing tells that a compiler put them there.

        Raises: Violation for a shard that lost anything.
        """
        operator = self.newcomer("operator")
        for finding in operator.index.verify(accept_loss=True).findings:
            if finding.kind in DAMAGE and finding.kind != "changed" and "/shards/" in finding.key:
                raise Violation(f"after a power loss {finding.key} {finding.what}")

    def inspect(self, when: str) -> None:
        """Nobody runs. Everything that was acknowledged is there, however it is read.   Raises: Violation."""
        inspector = self.newcomer("inspector")
        try:
            for name in self.habits.names:
                inspector.get(name)
            inspector.scan()
        except (LimpetError, Violation) as error:
            raise Violation(f"after {when}: {error}") from error


class _Files(SimFiles):
    """Now and then a process dies when a shard is in place and its folder is not yet synced (F25)."""

    def __init__(self, machine: _Machine, process: Process) -> None:
        super().__init__(machine.disk, machine.world, process, fault_rate=machine.fault_rate)
        self._machine = machine

    def rename(self, folder: int, name: str, to_folder: int, to_name: str, /) -> None:
        """See `Files.rename`."""
        super().rename(folder, name, to_folder, to_name)
        world, process = self._world, self._process
        due = to_name.endswith(".usv") and world.chance(64, process.index, process.calls) < 0.1
        if due and world.strike(f"{process.name}/{process.calls}/crash", "crash"):
            self._machine.strike("crash", [process])
            world.check_alive(process)


class _StillFiles(SimFiles):
    """Calls that take no time."""

    def _do(self, what: str, path: str, call: Callable[[], R]) -> R:
        self._process.calls += 1
        return call()


class _StillRuntime(SimRuntime):
    """A process that never gives way."""

    def sleep(self, seconds: float) -> None:
        """There is nobody to wait for."""

    def fan_out(self, call: Callable[[A], R], items: Iterable[A], *, at_once: int = 32) -> list[R]:
        """One after the other."""
        return [call(item) for item in items]
