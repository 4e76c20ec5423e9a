"""Processes that write, read and compile one index through a faulty network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from types import ModuleType
from typing import Any

from limpet.errors import Corrupt
from limpet.index import Index, compiler, decide, reader, seek
from limpet.index import index as facade
from limpet.index.stamps import stamps_of
from limpet.keys import Key
from limpet.lease import Sightings
from limpet.sim.bucket import Bucket
from limpet.sim.cast import Actor, Cast, perform
from limpet.sim.index_books import Books, Line, lines_in
from limpet.sim.index_checks import FOUNDER, Model, check_index
from limpet.sim.index_store import DEPTH, INDEX, KEYS, NEWER, OLDER, IndexStore, Newer, Older, layout, tuned
from limpet.sim.nemesis import Knobs, Nemesis, draw
from limpet.sim.runtime import SimRuntime
from limpet.sim.world import EPOCH, Process, Violation, World
from limpet.store.api import Always

__all__ = ["STEPS", "run"]

TURNS = 9
RUN_S = 3_000.0
HEAL_S = 4_000.0
QUIET_S = 120.0
"""After this long no copy of a request is still under way."""
ROUNDS_MAX = 40
NAMES = ("b", "e", "f1", "h1", "~x", "a2", "c", "f")
"""Four of one shard, one of another, three of a third."""

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

Turns = list[tuple[float, Callable[[], None]]]


def run(seed: int, *, muted: frozenset[str] = frozenset()) -> tuple[World, Violation | None]:
    """One run of the seed: the world as it ended, and the invariant that broke, if one did."""
    world = World(seed, muted=muted)
    knobs = draw(seed)
    with tuned(_settings(world, knobs)):
        return perform(world, _Fleet(world, knobs))


def _settings(world: World, knobs: Knobs) -> Mapping[tuple[ModuleType, str], Any]:
    """A compiler that folds or packs as if shards were large, and searches that take several reads, in most runs."""
    chance = world.chance
    settings: dict[tuple[ModuleType, str], Any] = {(compiler, "LOCK_TTL_S"): knobs.ttl_s, (facade, "DEPTH"): DEPTH}
    if chance(50) < 0.75:
        settings |= {
            (decide, "FOLD_BELOW_BYTES"): 0,
            (decide, "FOLD_SHARE"): 0.5 + 9 * chance(51),
            (decide, "FOLD_PACKS"): 2 + int(3 * chance(52)),
            (decide, "FOLD_AGE"): timedelta(seconds=5 + 200 * chance(53)),
            (decide, "PACK_SINGLES"): 1 + int(2 * chance(54)),
        }
    if chance(55) < 0.6:
        settings |= {
            (seek, "WINDOW_MIN"): 64,
            (seek, "ANCHOR"): 64,
            (seek, "BYTES_MAX"): 256,
            (reader, "SHARE_FOR_WHOLE"): 0 if chance(56) < 0.5 else 60,
        }
    return settings


class _Fleet(Cast):
    """Processes on machines of their own, around one index."""

    def __init__(self, world: World, knobs: Knobs) -> None:
        self.duel = world.chance(66) < 0.3
        """One or two keys, and each process does one thing, as fast as it can."""
        super().__init__(world, slots=knobs.processes, turns=2 * TURNS if self.duel else TURNS)
        self.knobs = knobs
        self.bucket = Bucket(world, knobs)
        self.books = Books()
        self.names = NAMES[: 1 + int(world.chance(57) * (2 if self.duel else len(NAMES)))]
        self.rest_s = 0.2 if self.duel else 3.0
        self.ahead = world.chance(58) < 0.15
        """Whether users write records of the future."""
        self.vandal = world.chance(59) < 0.1
        self.founded = world.chance(60) < 0.95
        self.mixed = knobs.mixed_versions and self.founded

    def act(self) -> None:
        """The faulty part, then the healed part in which everything is folded; then every check."""
        for key, data in layout().items() if self.founded else ():
            self.bucket.put(FOUNDER, key, data, Always())
        if self.vandal:
            for n in range(1 + int(self.world.chance(61) * 3)):
                self.world.later(40 * self.world.chance(62, n), partial(self.spoil, n))
        nemesis = Nemesis(self.world, self.knobs, lambda: self.living, self.restart, steps=STEPS)
        self.play(nemesis.run, until_s=RUN_S)
        newcomer = self.heal()
        model = check_index(self.world, self.bucket.journal, self.bucket.objects, KEYS, self.books)
        self.alone(newcomer, lambda: newcomer.look_back(model))

    def actor(self, process: Process) -> _Actor:
        """A program; some processes have bad clocks, some a newer version of it and of Limpet."""
        process.newer = self.mixed and process.index % 2 == 1
        if self.knobs.drift:
            process.clock_rate = 0.9 + 0.2 * self.world.chance(30, process.index)
        return _Actor(self, process)

    def spoil(self, n: int) -> None:
        """Somebody's script leaves something in the inbox or among the packs that is no record."""
        name = self.names[int(self.world.chance(63, n) * len(self.names))]
        shard = decide.shard_id(name, DEPTH)
        single = self.world.chance(64, n) < 0.6
        key = KEYS.single(shard, name, "20260101000000000000", f"bad{n}") if single else KEYS.pack(shard, f"bad{n}")
        stamp = "2026-01-01T00:00:10.000000Z"
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

    def heal(self) -> _Actor:
        """Faults stop. Whatever happened before, a newcomer folds everything."""
        self.world.healed = True
        self.world.note("nemesis", "faults stop")
        for process in self.living:
            self.world.kill(process)
        process = self.world.start("newcomer")
        process.newer = self.mixed
        newcomer = _Actor(self, process)
        self.alone(newcomer, newcomer.fold_everything)
        return newcomer

    def alone(self, actor: _Actor, work: Callable[[], None]) -> None:
        """Let one actor work, without faults, until it is done.   Raises: Violation if it never is."""
        task = self.world.spawn(actor.process, work)
        self.world.run(until_s=self.world.now_s + HEAL_S, done=lambda: task.done)
        self.fail_on_error()
        if not task.done:
            raise Violation(f"no progress: {HEAL_S:g} s after the faults stopped {actor.process.name} still works")


class _Actor(Actor):
    """One process's program."""

    store: IndexStore

    def __init__(self, cast: _Fleet, process: Process) -> None:
        runtime = SimRuntime(cast.world, process)
        super().__init__(runtime, IndexStore(cast.world, cast.bucket, runtime, cast.knobs), cast.history)
        self.cast = cast
        self.books = cast.books
        self.index: Index[Any] = Index(
            self.store,
            INDEX,
            runtime,
            NEWER if process.newer else OLDER,
            stamps_of(self.store, runtime, "fleet"),
            Sightings(runtime),
        )

    def turns(self) -> Turns:
        """The things that users do. Every slot does all of them, unless it has just one thing to do."""
        write: Turns = [(0.12, self.put_some), (0.05, self.put_with_time), (0.08, self.delete), (0.2, self.put)]
        read: Turns = [(0.05, self.scan), (0.08, self.get_some), (0.15, self.get)]
        work: Turns = [(0.07, self.compile_all), (0.2, self.compile)]
        if self.cast.duel:
            slot = int(self.process.name[1:].partition("#")[0])
            return (read, work, write, read, work)[slot]
        return [*write, *read, *work]

    def turn(self) -> None:
        """One of them, and a rest. What a vandal spoilt may be met by anybody who reads."""
        try:
            super().turn()
        except Corrupt:
            if not self.books.bad:
                raise
        self.runtime.sleep(self.chance() * self.cast.rest_s)

    def name(self) -> str:
        """Some key."""
        return self.cast.names[int(self.chance() * len(self.cast.names))]

    def record(self, *, given: bool = False) -> Older | Newer:
        """A record of some key that nobody else writes; with a time that others may give too."""
        kind = Newer if self.process.newer else Older
        name = self.name()
        return kind(name, self.new_value(), self.some_time(name) if given else None)

    def some_time(self, name: str) -> datetime:
        """A time that somebody used for this key already, so that they meet; or now, coarsely; or some hours off."""
        used = [line.stamp for line in self.books.sent.get(name, {}).values()]
        if used and self.chance() < 0.5:
            return datetime.fromisoformat(used[int(self.chance() * len(used))])
        at = EPOCH + timedelta(seconds=int(self.world.now_s) // 8 * 8)
        if self.chance() < (0.5 if self.cast.ahead else 0.1):
            at += timedelta(hours=(-3, 5, 20)[int(self.chance() * (3 if self.cast.ahead else 1))])
        return at

    def writing(self, records: Iterable[Older | Newer], call: Callable[[], object]) -> list[Line]:
        """Write; the lines that were sent count as acknowledged once it is answered."""
        self.books.operations += 1
        given = {record.by for record in records if record.updated_at}
        sent: dict[Key, list[Line]] = {}

        def watch(key: Key, data: bytes) -> None:
            if key not in sent and key.startswith((f"{KEYS.inbox}/", f"{KEYS.packs}/")):
                sent[key] = lines_in(data)
                for line in sent[key]:
                    self.books.sends(self.process.name, line, given)

        self.store.watch = watch
        try:
            call()
        finally:
            self.store.watch = None
        lines = [line for each in sent.values() for line in each]
        self.books.acknowledged(self.process.name, lines, given)
        return lines

    def put(self) -> None:
        """A record, stamped by Limpet; often after a look at it."""
        record = self.record()
        if self.chance() < 0.3:
            self.get(record.key)
        self.writing([], lambda: self.index.put(record))

    def put_with_time(self) -> None:
        """A record that brings its own time."""
        record = self.record(given=True)
        self.writing([record], lambda: self.index.put(record))

    def put_some(self) -> None:
        """Several at once, the same key twice or more; the last of each counts."""
        records = [self.record(given=self.chance() < 0.15) for _ in range(2 + int(self.chance() * 4))]
        if self.chance() < 0.2:
            self.get(records[0].key)
        lines = self.writing(records, lambda: self.index.put_many(records))
        last = {record.key: record.by for record in records}
        if {line.key: line.by for line in lines} != last or len(lines) != len(last):
            raise Violation(f"put_many of {records} wrote {[str(line) for line in lines]}")

    def delete(self) -> None:
        """Remove a record."""
        name = self.name()
        self.writing([], lambda: self.index.delete(name))

    def get(self, key: str | None = None) -> None:
        """One record."""
        self.books.operations += 1
        name = key or self.name()
        floors = self.books.begins([name])
        record = self.index.get(name)
        self.books.ends(self.process.name, floors, {} if record is None else {name: record})

    def get_some(self) -> None:
        """Some records, and one that never was."""
        self.books.operations += 1
        names = {self.name() for _ in range(1 + int(self.chance() * 5))}
        floors = self.books.begins(sorted(names))
        found: dict[Any, Any] = self.index.get_many([*sorted(names), "nobody"])
        if not found.keys() <= names:
            raise Violation(f"get_many of {names} found {found}")
        self.books.ends(self.process.name, floors, found)

    def scan(self) -> None:
        """Every record."""
        self.books.operations += 1
        floors = self.books.begins(self.cast.names)
        records = [*self.index.scan()]
        found = {record.key: record for record in records}
        if len(found) != len(records):
            raise Violation(f"a scan shows a key twice: {records}")
        self.books.ends(self.process.name, floors, found, got=False)

    def compile(self) -> None:
        """As a cron job does."""
        self.books.operations += 1
        self.index.compile()

    def compile_all(self) -> None:
        """As somebody does who wants small listings now."""
        self.books.operations += 1
        self.index.compile(full=True)

    def waiting(self) -> list[Key]:
        """What is not folded yet."""
        return [key for key in self.cast.bucket.objects if key.startswith((f"{KEYS.inbox}/", f"{KEYS.packs}/"))]

    def fold_everything(self) -> None:
        """After the faults: one more record a shard, so that each is written in full width; then all is folded."""
        self.runtime.sleep(QUIET_S)
        for name in {decide.shard_id(name, DEPTH): name for name in NAMES}.values():
            kind = Newer if self.process.newer else Older
            self.writing([], partial(self.index.put, kind(name, self.new_value())))
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
            good = applied.key.startswith((f"{KEYS.inbox}/", f"{KEYS.packs}/")) and applied.key not in self.books.bad
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
        all_, some = sorted({*must, *self.cast.names}), self.cast.names
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
        name = self.cast.names[0]
        key = KEYS.shard(decide.shard_id(name, DEPTH))
        objects = self.cast.bucket.objects
        whole = objects.pop(key)
        for what, call in (("get", lambda: self.index.get(name)), ("scan", lambda: [*self.index.scan()])):
            with suppress(Corrupt):
                raise Violation(f"{key} is missing, and {what} answers {call()}")
        self.refused(key)
        self.cast.bucket.put("vandal", key, whole.data.partition(b"\n")[2], Always())
        self.refused(key)

    def refused(self, shard: Key) -> None:
        """A compiler does not build upon the shard, and what waits for it stays.   Raises: Violation."""
        found = self.cast.bucket.objects.get(shard)
        self.index.put({"key": self.cast.names[0], "by": "late"})
        waiting = self.waiting()
        with suppress(Corrupt):
            raise Violation(f"{shard} lost a record or all, and a compiler built upon it: {self.index.compile(full=True)}")
        if self.cast.bucket.objects.get(shard) != found or self.waiting() != waiting:
            raise Violation(f"{shard} lost a record or all, and a compiler wrote it or deleted what waits for it")
