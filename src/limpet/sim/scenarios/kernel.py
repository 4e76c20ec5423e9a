"""Processes that lock, write with tokens, count, create and swap through a faulty network."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from limpet.cell import PLAIN, Cell, Fence
from limpet.errors import Conflict, Held, LimpetError, Unavailable
from limpet.keys import Key, cell_key, lock_key
from limpet.lease import Lease, Lock, VersionWatch
from limpet.sim.bucket import Bucket, SimStore
from limpet.sim.cast import Actor, Cast, perform
from limpet.sim.checks import Tally, check_run
from limpet.sim.nemesis import Knobs, Nemesis, draw
from limpet.sim.runtime import SimRuntime
from limpet.sim.world import Process, Violation, World

__all__ = ["run"]

LOCKS = ("red", "blue")
TURNS = 9
STALL_TTLS = 2
HEAL_S = 600.0
RUN_S = 3_000.0


def run(seed: int, *, muted: frozenset[str] = frozenset()) -> tuple[World, Violation | None]:
    """One run of the seed: the world as it ended, and the invariant that broke, if one did."""
    world = World(seed, muted=muted)
    return perform(world, _Fleet(world, draw(seed)))


class _Fleet(Cast):
    """Processes on machines of their own, around one bucket."""

    def __init__(self, world: World, knobs: Knobs) -> None:
        super().__init__(world, slots=knobs.processes, turns=TURNS)
        self.knobs = knobs
        self.bucket = Bucket(world, knobs)
        self.tally = Tally()

    def act(self) -> None:
        """The faulty part, then the healed part in which a newcomer must get everywhere; then every check."""
        self.play(Nemesis(self.world, self.knobs, lambda: self.living, self.restart).run, until_s=RUN_S)
        self.heal()
        check_run(self.world, self.knobs, self.bucket, self.history, self.tally, stall_s=STALL_TTLS * self.knobs.ttl_s)

    def actor(self, process: Process) -> _Actor:
        """A program; some processes have bad clocks, some a newer version of Limpet."""
        process.newer = self.knobs.mixed_versions and process.index % 2 == 1
        if self.knobs.drift:
            process.clock_rate = 0.9 + 0.2 * self.world.chance(30, process.index)
        return _Actor(self, process)

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


class _Actor(Actor):
    """One process's program."""

    def __init__(self, cast: _Fleet, process: Process) -> None:
        runtime = SimRuntime(cast.world, process)
        super().__init__(runtime, SimStore(cast.world, cast.bucket, runtime, cast.knobs), cast.history)
        self.cast = cast
        self.ttl_s = cast.knobs.ttl_s
        self.sightings = VersionWatch(runtime)

    def turns(self) -> list[tuple[float, Callable[[], None]]]:
        """The things that users do."""
        return [
            (0.30, self.hold_and_write),
            (0.14, self.acquire_by_hand),
            (0.16, self.count),
            (0.14, self.swap_register),
            (0.08, self.create_once),
            (0.06, self.write_without_lease),
            (0.06, self.use_once),
            (0.04, self.write_with_wrong_lock),
            (0.02, self.look_around),
        ]

    def turn(self) -> None:
        """One of them, and a rest."""
        super().turn()
        self.runtime.sleep(self.chance() * 3)

    def some_lock(self) -> str:
        """Mostly one lock, so that they meet."""
        return LOCKS[self.chance() < 0.3]

    def lock(self, name: str) -> Lock:
        """A fresh handle, as a user would make one."""
        look_first = self.chance() < 0.3
        return Lock(self.store, lock_key(name), name, self.ttl_s, self.runtime, self.sightings, look_first=look_first)

    def hold_and_write(self) -> None:
        """The common use: a block under a lock, writing to the cell that it guards."""
        name = self.some_lock()
        began_s = self.world.now_s
        wait_s = self.chance() * 2 * self.ttl_s
        with self.lock(name).hold(wait_s, stall_s=STALL_TTLS * self.ttl_s) as lease:
            self.won(lease, began_s)
            cell = self.cell(name)
            for _ in range(1 + int(self.chance() * 4)):
                self.checked(lease)
                self.write(cell, lease)
                self.runtime.sleep(self.chance() * self.ttl_s / 2)
                lease.progress()
                self.cast.tally.moved(self.world.now_s, self.process.name, name, lease.token)

    def acquire_by_hand(self) -> None:
        """The advanced use: no heartbeat thread."""
        name = self.some_lock()
        lock = self.lock(name)
        if self.cast.knobs.breaks and self.chance() < 0.2:
            if lock.peek() is not None:
                lock.break_()
            return
        began_s = self.world.now_s
        got = lock.try_acquire()
        if isinstance(got, Held):
            return
        self.won(got, began_s)
        self.runtime.sleep(self.chance() * self.ttl_s * 0.7)
        self.cast.tally.moved(self.world.now_s, self.process.name, name, got.token)
        got.renew()
        self.checked(got)
        self.write(self.cell(name), got)
        if self.chance() < 0.7:
            got.release()

    def won(self, lease: Lease, began_s: float) -> None:
        """Remember a won lock. When the bucket last answered us, the lock was ours."""
        self.cast.tally.won(self.world.now_s, self.process.name, lease.name, lease.token, began_s)
        self.cast.tally.moved(self.world.now_s, self.process.name, lease.name, lease.token)
        record = self.cast.bucket.at(Key(lease.lock), self.process.served)
        if record is None or f'"token":{lease.token},'.encode() not in record:
            raise Violation(
                f"{self.process.name} was given token {lease.token} of {lease.name}, which was already gone"
            )

    def checked(self, lease: Lease) -> None:
        """Just before a side effect outside Limpet."""
        lease.check()
        self.cast.tally.checked(self.world.now_s, self.process.name, lease.name, lease.token)

    def write_without_lease(self) -> None:
        """An operator's hand edit of a guarded cell: keeps the fence."""
        cell = self.cell(self.some_lock())
        self.write(cell, None)
        self.read(cell)

    def write_with_wrong_lock(self) -> None:
        """A token of another lock is refused, however high."""
        cell = self.cell("red")
        seen = self.read(cell)
        if seen is not None and seen.header.fence is not None:
            self.write(cell, Fence("locks/user/other.lock", 1_000_000), name="foreign")

    def use_once(self) -> None:
        """A name that is created, and removed by whoever finds it; it is never used again."""
        cell = Cell(self.store, cell_key(f"tmp-{self.new_value()}"), PLAIN, self.runtime, deletable=True)
        with suppress(Conflict):
            cell.create("once")
        self.store.delete_many(stat.key for stat in self.store.list("cells") if stat.key.startswith("cells/tmp-"))

    def look_around(self) -> None:
        """List the locks and read them all, as an operator does."""
        keys = [stat.key for stat in self.store.list("locks")]
        for key, found in self.store.get_many(keys).items():
            if isinstance(found, LimpetError) and not isinstance(found, Unavailable):
                raise Violation(f"{key} was listed, and reading it gave {found!r}")
        for key in keys:
            self.store.head(key)

    def visit_everything(self) -> None:
        """After the faults: every lock can be had, every cell written and read."""
        for name in LOCKS:
            began_s = self.world.now_s
            lease = self.lock(name).acquire(wait_s=None)
            self.won(lease, began_s)
            self.write(self.cell(name), lease)
            lease.release()
        for name in (*LOCKS, "counter", "register", "once-0", "once-1", "once-2"):
            self.read(self.cell(name))
        self.count()
