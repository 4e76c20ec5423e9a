"""Processes of one machine around an index in a directory: power loss, failing calls, kill -9 between any two calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from limpet.errors import LimpetError
from limpet.keys import Key
from limpet.sim.actors import Settings
from limpet.sim.directory import ROOT, MachineActors, StillFiles
from limpet.sim.disk import SimFiles
from limpet.sim.index import DAMAGE, NAMES, IndexPolicy, IndexUser, WatchedStore, layout, tuning
from limpet.sim.index_model import KEYS, WAITING, IndexModel
from limpet.sim.nemesis import Knobs
from limpet.sim.world import SimProcess, SimRuntime, Violation, World
from limpet.store import DirectoryStore
from limpet.store.api import Always, Version, When

A = TypeVar("A")
R = TypeVar("R")

TURNS = 8
RUN_S = 600.0
LOCK_TTL_S = 5.0


class IndexDiskActors(MachineActors):
    """One machine: its disk, and the processes on it."""

    def __init__(self, world: World, knobs: Knobs) -> None:
        super().__init__(world, knobs, turns=TURNS, pauses=(10, 100), power_losses=0.5)
        self.fault_rate = 0.01 * world.chance(60)
        self.model = IndexModel()
        self.policy = IndexPolicy(
            NAMES[: 1 + int(world.chance(57) * 3)],
            duel=world.chance(66) < 0.7,
            rest_s=10 * self.disk.pace_s,
            full=0.5,
        )

    @staticmethod
    def tuning(world: World, knobs: Knobs) -> Settings:
        return tuning(world, LOCK_TTL_S)

    def act(self) -> None:
        founder = self.newcomer("founder")
        for key, data in layout().items():
            founder.store.put(key, data)
        self.play(self.torment, until_s=RUN_S)
        self.world.healed = True
        for process in self.living:
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

    def actor(self, process: SimProcess) -> IndexUser:
        return self.user(SimRuntime(self.world, process), _CrashingFiles(self, process))

    def newcomer(self, name: str) -> IndexUser:
        """A user that runs alone, and without faults."""
        process = self.world.start(name)
        files = _CountingFiles(self.disk, self.world, process, fault_rate=0)
        return self.user(_StillRuntime(self.world, process), files)

    def user(self, runtime: SimRuntime, files: SimFiles) -> IndexUser:
        """A process's program on this machine's disk."""
        return IndexUser(runtime, DiskStore(ROOT, runtime=runtime, files=files), self.model, self.policy)

    def recover(self) -> None:
        """What an operator does after a power loss; then everything that was acknowledged is there.

        A write that was not acknowledged may be gone while a fold of it stays: then the shard has other bytes than
        recorded, and nothing shows that a compiler put them there.
        """
        self.model.lost_power()
        operator = self.newcomer("operator")
        for finding in operator.index.verify(accept_loss=True).findings:
            if finding.kind in DAMAGE and finding.kind != "changed" and "/shards/" in finding.key:
                raise Violation(f"after a power loss {finding.key} {finding.what}")
        self.inspect("a power loss")

    def inspect(self, when: str) -> None:
        """No process runs. Everything that was acknowledged is there, by any read.   Raises: Violation."""
        inspector = self.newcomer("inspector")
        try:
            for name in self.policy.names:
                inspector.get(name)
            inspector.scan()
        except (LimpetError, Violation) as error:
            raise Violation(f"after {when}: {error}") from error


class DiskStore(DirectoryStore, WatchedStore):
    """A directory, watched."""

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        if self.watch is not None:
            self.watch(key, data)
        return super().put(key, data, when=when)


class _CrashingFiles(SimFiles):
    """The process may die when a shard is in place and its folder is not yet synced (F25)."""

    def __init__(self, machine: IndexDiskActors, process: SimProcess) -> None:
        super().__init__(machine.disk, machine.world, process, fault_rate=machine.fault_rate)
        self._machine = machine

    def rename(self, folder: int, name: str, to_folder: int, to_name: str, /) -> None:
        super().rename(folder, name, to_folder, to_name)
        world, process = self._world, self._process
        due = to_name.endswith(".usv") and world.chance(64, process.index, process.calls) < 0.1
        if due and world.strike(f"{process.name}/{process.calls}/crash", "crash"):
            self._machine.hit("crash", [process])
            world.check_alive(process)


class _CountingFiles(StillFiles):
    """Counts calls, so that each write draws another random number."""

    def _simulate(self, what: str, about: str, call: Callable[[], R]) -> R:
        self._process.calls += 1
        return call()


class _StillRuntime(SimRuntime):
    """A process that never yields."""

    def sleep(self, seconds: float) -> None:
        """Return at once: no other process runs."""

    def fan_out(self, call: Callable[[A], R], items: Iterable[A], *, at_once: int = 32) -> list[R]:
        return [call(item) for item in items]
