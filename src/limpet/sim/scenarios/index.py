"""Processes that write, read and compile one index through a faulty network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from limpet.errors import Corrupt
from limpet.index.decide import shard_id
from limpet.keys import Key
from limpet.sim.bucket import Bucket
from limpet.sim.cast import Cast, perform
from limpet.sim.index_books import Books
from limpet.sim.index_checks import FOUNDER, Model, check_index
from limpet.sim.index_store import DEPTH, KEYS, NAMES, WAITING, BucketStore, layout, tuned, tuning
from limpet.sim.index_user import Habits, User
from limpet.sim.nemesis import Knobs, Nemesis, draw
from limpet.sim.runtime import SimRuntime
from limpet.sim.world import Process, Violation, World
from limpet.store.api import Always

__all__ = ["STEPS", "run"]

TURNS = 9
RUN_S = 3_000.0
HEAL_S = 4_000.0
QUIET_S = 120.0
"""After this long no copy of a request is still under way."""
ROUNDS_MAX = 40

STEPS = (
    "lock.create",
    "lock.free",
    "lock.read",
    "lock.take",
    "lock.takeover",
    "manifest.read",
    "manifest.swap",
    "pack.delete",
    "pack.list",
    "pack.put",
    "pack.read",
    "shard.head",
    "shard.put",
    "shard.read",
    "single.delete",
    "single.list",
    "single.put",
    "single.read",
)
"""The steps of the index's protocol at which somebody may lie in wait. Settling a swap is the kernel's."""
RARE = ("lock.free", "lock.takeover", "lock.takeover", "lock.takeover", "shard.put", "shard.put")
"""Where they wait more often: a compiler that dies with the lock, and the one that comes after it."""


def run(seed: int, *, muted: frozenset[str] = frozenset()) -> tuple[World, Violation | None]:
    """One run of the seed: the world as it ended, and the invariant that broke, if one did."""
    world = World(seed, muted=muted)
    knobs = draw(seed)
    with tuned(tuning(world, max(2.0, knobs.ttl_s / 4))):
        return perform(world, _Fleet(world, knobs))


class _Fleet(Cast):
    """Processes on machines of their own, around one index."""

    def __init__(self, world: World, knobs: Knobs) -> None:
        duel = world.chance(66) < 0.3
        super().__init__(world, slots=knobs.processes, turns=2 * TURNS if duel else TURNS)
        self.knobs = knobs
        self.bucket = Bucket(world, knobs)
        self.books = Books()
        names = NAMES[: 1 + int(world.chance(57) * (2 if duel else len(NAMES)))]
        self.habits = Habits(names, duel, ahead=world.chance(58) < 0.15, rest_s=0.2 if duel else 3.0)
        self.founded = world.chance(60) < 0.95
        """In the other runs the users race to create the index."""
        self.vandal = self.founded and world.chance(59) < 0.12
        self.mixed = self.founded and knobs.mixed_versions

    def act(self) -> None:
        """The faulty part, then the healed part in which everything is folded; then every check."""
        for key, data in layout().items() if self.founded else ():
            self.bucket.put(FOUNDER, key, data, Always())
        if self.vandal:
            for n in range(1 + int(self.world.chance(61) * 3)):
                self.world.later(40 * self.world.chance(62, n), partial(self.spoil, n))
        nemesis = Nemesis(self.world, self.knobs, lambda: self.living, self.restart, steps=(*STEPS, *RARE))
        self.play(nemesis.run, until_s=RUN_S)
        newcomer = self.heal()
        model = check_index(self.world, self.bucket.journal, self.bucket.objects, KEYS, self.books)
        self.alone(newcomer, lambda: newcomer.look_back(model))

    def actor(self, process: Process) -> User:
        """A program; some processes have bad clocks, some a newer version of it and of Limpet."""
        process.newer = self.mixed and process.index % 2 == 1
        if self.knobs.drift:
            process.clock_rate = 0.9 + 0.2 * self.world.chance(30, process.index)
        runtime = SimRuntime(self.world, process)
        return User(runtime, self.store(runtime), self.history, self.books, self.habits)

    def store(self, runtime: SimRuntime) -> BucketStore:
        """A process's view of the bucket."""
        return BucketStore(self.world, self.bucket, runtime, self.knobs)

    def spoil(self, n: int) -> None:
        """Somebody's script leaves something in the inbox or among the packs that is no record."""
        name = self.habits.names[int(self.world.chance(63, n) * len(self.habits.names))]
        shard = shard_id(name, DEPTH)
        single = self.world.chance(64, n) < 0.6
        stamp = f"2026-01-01T0{n % 2}:00:00.000000Z"
        key = KEYS.single(shard, name, stamp, f"bad{n}") if single else KEYS.pack(shard, f"bad{n}")
        kinds = (
            f"{name}\x1fcut off\x1f{stamp}\x1f0",
            "rubbish\n",
            f"{name}\x1fwhen\x1fsoon\x1f0\n",
            f"{name}\x1f\x00\x1f{stamp}\x1f0\n",
            f"d\x1fof another shard\x1f{stamp}\x1f0\n",
        )
        data = kinds[int(self.world.chance(65, n) * len(kinds))].encode()
        self.books.bad[key] = data
        self.bucket.put("vandal", key, data, Always())

    def heal(self) -> _Newcomer:
        """Faults stop. Whatever happened before, a newcomer folds everything."""
        self.world.healed = True
        self.world.note("nemesis", "faults stop")
        for process in self.living:
            self.world.kill(process)
        process = self.world.start("newcomer")
        process.newer = self.mixed
        newcomer = _Newcomer(self, process)
        self.alone(newcomer, newcomer.fold_everything)
        return newcomer

    def alone(self, actor: User, work: Callable[[], None]) -> None:
        """Let one actor work, without faults, until it is done.   Raises: Violation if it never is."""
        task = self.world.spawn(actor.process, work)
        self.world.run(until_s=self.world.now_s + HEAL_S, done=lambda: task.done)
        self.fail_on_error()
        if not task.done:
            raise Violation(f"no progress: {HEAL_S:g} s after the faults stopped {actor.process.name} still works")


class _Newcomer(User):
    """The process that comes after the faults, and has the index to itself."""

    def __init__(self, cast: _Fleet, process: Process) -> None:
        runtime = SimRuntime(cast.world, process)
        super().__init__(runtime, cast.store(runtime), cast.history, cast.books, cast.habits)
        self.cast = cast

    def waiting(self) -> list[Key]:
        """What is not folded yet."""
        return [key for key in self.cast.bucket.objects if key.startswith(WAITING)]

    def fold_everything(self) -> None:
        """After the faults: one more record a shard, so that each is written in full width; then all is folded."""
        self.runtime.sleep(QUIET_S)
        for name in {shard_id(name, DEPTH): name for name in NAMES}.values():
            self.writing([], partial(self.index.put, self.made(name)))
        for _ in range(ROUNDS_MAX):
            self.compile_all()
            if not self.waiting():
                return
            self.runtime.sleep(self.cast.knobs.ttl_s / 3 + 2)
        raise Violation(f"{ROUNDS_MAX} compile runs, and there is still {self.waiting()[0]}")

    def look_back(self, model: Model) -> None:
        """The index reads as the model says; compiling again, and what arrives once more, changes nothing."""
        self.reads_as(model)
        done = len(self.cast.bucket.journal)
        self.compile_all()
        if again := [each.key for each in self.cast.bucket.journal[done:] if not each.key.startswith("clock")]:
            raise Violation(f"there was nothing to do, and the compiler wrote {again[0]}")
        shards = self.shards()
        for applied in self.cast.bucket.journal[::7]:
            good = applied.key.startswith(WAITING) and applied.key not in self.books.bad
            if good and applied.data is not None:
                self.cast.bucket.put("network", applied.key, applied.data, Always())
        self.reads_as(model)
        self.compile_all()
        if self.shards() != shards:
            raise Violation("what was folded before was folded again, and that changed a shard")
        if self.chance() < 0.3:
            self.lose_a_shard()

    def shards(self) -> dict[Key, bytes]:
        """The bytes of all shards."""
        found = self.cast.bucket.objects.items()
        return {key: blob.data for key, blob in found if key.endswith(".usv") and key.startswith(KEYS.shards)}

    def reads_as(self, model: Model) -> None:
        """Every way to read tells what the model says.   Raises: Violation."""
        must = {key: line.by for key, line in model.winners().items() if not line.gone}
        all_, some = sorted({*must, *self.habits.names}), self.habits.names
        told: dict[str, tuple[Sequence[str], dict[Any, Any]]] = {
            "get": (some, {name: record for name in some if (record := self.index.get(name)) is not None}),
            "get_many": (all_, self.index.get_many(all_)),
        }
        if self.chance() < 0.3:
            told["scan"] = (all_, {record.key: record for record in self.index.scan()})
        for way, (asked, found) in told.items():
            by = {key: record.by for key, record in found.items()}
            if by != {key: must[key] for key in asked if key in must}:
                raise Violation(f"when all is folded {way} tells {by}, not {must}")

    def lose_a_shard(self) -> None:
        """A shard that is gone, or lost a record, is an error to all who need it, and is not built upon (F23)."""
        name = self.habits.names[0]
        key = KEYS.shard(shard_id(name, DEPTH))
        objects = self.cast.bucket.objects
        whole = objects.pop(key)
        for what, call in (("get", lambda: self.index.get(name)), ("scan", lambda: [*self.index.scan()])):
            with suppress(Corrupt):
                raise Violation(f"{key} is missing, and {what} answers {call()}")
        self.refused(key)
        self.cast.bucket.put("vandal", key, whole.data.partition(b"\n")[2], Always())
        self.noticed(key, name)
        self.refused(key)
        self.cast.bucket.put("vandal", key, b"", Always())
        self.noticed(key, name)
        changed = whole.data.replace(b"\x1f0\n", b"\x1f1\n", 1)
        if changed != whole.data:  # a record that reads as deleted: no reader can tell
            self.cast.bucket.put("vandal", key, changed, Always())
            if not any(finding.kind == "changed" for finding in self.index.verify().findings):
                raise Violation(f"{key} was changed, and verify does not find it")

    def noticed(self, key: Key, name: str) -> None:
        """Whoever reads a shard that lost records is told so, whichever record is asked for.   Raises: Violation."""
        reads: dict[str, Callable[[], object]] = {
            "get": lambda: self.index.get(name),
            "get_many": lambda: self.index.get_many([name]),
            "scan": lambda: [*self.index.scan()],
        }
        for what, call in reads.items():
            with suppress(Corrupt):
                raise Violation(f"{key} lost records, and {what} answers {call()}")
        if not any(finding.kind == "lost" for finding in self.index.verify().findings):
            raise Violation(f"{key} lost records, and verify does not find it")

    def refused(self, shard: Key) -> None:
        """A compiler does not build upon the shard, and what waits for it stays.   Raises: Violation."""
        found = self.cast.bucket.objects.get(shard)
        self.index.put({"key": self.habits.names[0], "by": "late"})
        waiting = self.waiting()
        with suppress(Corrupt):
            raise Violation(f"{shard} lost records, and a compiler built upon it: {self.index.compile(full=True)}")
        if self.cast.bucket.objects.get(shard) != found or self.waiting() != waiting:
            raise Violation(f"{shard} lost records, and a compiler wrote it or deleted what waits for it")
