"""Processes that write, read and compile one index through a faulty network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from types import ModuleType
from typing import Any

from limpet.cell import Cell, struct_codec
from limpet.errors import Corrupt, Missing
from limpet.index import Index, compiler, decide, describe, reader
from limpet.index import decide as seek
from limpet.index import index as layouts
from limpet.index import writer as stamps
from limpet.index.codec.types import typed, with_own
from limpet.index.decide import digest, shard_id, shard_ids
from limpet.index.maintain import verify
from limpet.index.storage import Count, Manifest, fresh, sum_of, with_counts
from limpet.index.writer import stamps_of
from limpet.keys import Key
from limpet.lease import VersionWatch
from limpet.sim.actors import Actor, Actors, Settings, Turns
from limpet.sim.bucket import Bucket, SimStore
from limpet.sim.index_model import (
    DEPTH,
    FOUNDER,
    INDEX,
    KEYS,
    WAITING,
    IndexHistory,
    IndexLine,
    IndexModel,
    Newer,
    Older,
    check_index,
    lines_in,
)
from limpet.sim.nemesis import Knobs, Nemesis, steps
from limpet.sim.world import EPOCH, SimProcess, SimRuntime, Violation, World
from limpet.store.api import Always, Store, Version, When
from limpet.store.memory import MemoryStore

TURNS = 9
RUN_S = 3_000.0
HEAL_S = 4_000.0
QUIET_S = 120.0
"""After this long no copy of a request is still under way."""
ROUNDS_MAX = 40
DAMAGE = ("changed", "lost", "missing_shard", "cut_off", "bad_line", "bad_value", "order", "duplicate", "misplaced")
"""The kinds of findings of `verify` that mean a damaged shard."""
NAMES = ("b", "e", "f1", "h1", "~x", "a2", "c", "f")
"""The keys that users write: four of one shard, one of another, three of a third."""
OLD = ("old0", "old19", "old39", "old63", "old3", "old43", "old50", "old61", "old36", "old54", "old101")
"""Keys of records that are there from the start, in the three shards that the users write to."""

STEPS = steps(
    "lock: create free read take takeover",
    "manifest: read swap",
    "pack: delete list put read",
    "shard: head put read",
    "single: delete list put read",
)
"""The steps of the index's protocol at which a process may be struck. Settling a swap is the kernel's."""
RARE = ("lock.free", "lock.takeover", "lock.takeover", "lock.takeover", "shard.put", "shard.put")
"""Where processes are struck more often: a compiler that dies with the lock, and the next one."""


def tuning(world: World, lock_ttl_s: float) -> Settings:
    """Constants with which, in most runs, small shards are folded, packed and searched like large ones."""
    chance = world.chance
    settings: dict[tuple[ModuleType, str], Any] = {
        (compiler, "LOCK_TTL_S"): lock_ttl_s,
        (layouts, "DEPTH"): DEPTH,
        (verify, "DEPTHS"): (DEPTH, *decide.DEPTHS),
    }
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
    if chance(67) < 0.2:
        settings[stamps, "READ_EVERY_S"] = 3.0
    return settings


class IndexActors(Actors):
    """Processes on separate machines, around one index."""

    def __init__(self, world: World, knobs: Knobs) -> None:
        duel = world.chance(66) < 0.3
        super().__init__(world, knobs, slots=knobs.processes, turns=2 * TURNS if duel else TURNS)
        self.bucket = Bucket(world, knobs)
        self.model = IndexModel()
        names = NAMES[: 1 + int(world.chance(57) * (2 if duel else len(NAMES)))]
        self.policy = IndexPolicy(names, duel, ahead=world.chance(58) < 0.15, rest_s=0.2 if duel else 3.0)
        self.founded = world.chance(60) < 0.95
        """In the other runs the users race to create the index."""
        self.vandal = self.founded and world.chance(59) < 0.12
        self.mixed = self.founded and knobs.mixed_versions

    @staticmethod
    def tuning(world: World, knobs: Knobs) -> Settings:
        return tuning(world, max(2.0, knobs.ttl_s / 4))

    def act(self) -> None:
        for key, data in layout().items() if self.founded else ():
            self.bucket.put(FOUNDER, key, data, Always())
        if self.vandal:
            for n in range(1 + int(self.world.chance(61) * 3)):
                self.world.later(40 * self.world.chance(62, n), partial(self.spoil, n))
        nemesis = Nemesis(self.world, self.knobs, self.living, self.restart, steps=(*STEPS, *RARE))
        self.play(nemesis.run, until_s=RUN_S)
        self.stop_faults()
        process = self.world.start("newcomer")
        process.newer = self.mixed
        newcomer = SimIndexVerifier(self, process)
        self.alone(newcomer, newcomer.fold_everything, within_s=HEAL_S)
        replay = check_index(self.bucket, self.world.calls, self.model)
        self.alone(newcomer, lambda: newcomer.look_back(replay), within_s=HEAL_S)

    def actor(self, process: SimProcess) -> IndexUser:
        self.vary(process, newer=self.mixed)
        runtime = SimRuntime(self.world, process)
        return IndexUser(runtime, self.store(runtime), self.model, self.policy)

    def store(self, runtime: SimRuntime) -> BucketStore:
        """A process's view of the bucket."""
        return BucketStore(self.world, self.bucket, runtime, self.knobs)

    def spoil(self, n: int) -> None:
        """A user's script puts something that is no record into the inbox or among the packs."""
        name = self.policy.names[int(self.world.chance(63, n) * len(self.policy.names))]
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
        self.model.bad[key] = data
        self.bucket.put("vandal", key, data, Always())


OLDER = typed(Older, "key")
NEWER = typed(Newer, "key")


class WatchedStore(Store):
    """A store that calls `watch` for every put before it is sent."""

    watch: Callable[[Key, bytes], None] | None = None


class BucketStore(SimStore, WatchedStore):
    """The bucket, watched."""

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        if self.watch is not None:
            self.watch(key, data)
        return super().put(key, data, when=when)


@cache
def layout() -> Mapping[Key, bytes]:
    """The objects of an index with a few old records."""
    assert OLDER.fields is not None
    shards = dict.fromkeys(shard_ids(DEPTH), b"")
    for key in sorted(OLD, key=lambda key: digest(key.encode())):
        shards[shard_id(key, DEPTH)] += f"{key}\x1ffounder\x1f2025-12-31T00:00:00.000000Z\x1f0\n".encode()
    counts = {shard: Count(data.count(b"\n"), len(data), sum_of(data)) for shard, data in shards.items()}
    manifest = with_counts(fresh(with_own(OLDER.fields, "key"), DEPTH), counts)
    world = World(0)
    runtime = SimRuntime(world, world.start("founder"))
    store = MemoryStore(runtime=runtime)
    Cell(store, KEYS.manifest, struct_codec(Manifest), runtime).create(manifest)
    return {
        **{KEYS.shard(shard): data for shard, data in shards.items()},
        KEYS.manifest: store.get(KEYS.manifest).data,
        KEYS.package: describe.package(INDEX, manifest),
        KEYS.json_schema: describe.json_schema(INDEX, manifest),
    }


@dataclass(frozen=True, slots=True)
class IndexPolicy:
    """How the users of this seed behave.

    `duel`: each does one thing, as fast as it can. `ahead`: with records of the future. `full`: how often a compiler
    folds everything.
    """

    names: tuple[str, ...]
    duel: bool = False
    ahead: bool = False
    rest_s: float = 3.0
    full: float = 0.07


class IndexUser(Actor):
    """Writes, reads and compiles; reports every call and its answer to the model."""

    store: WatchedStore

    def __init__(self, runtime: SimRuntime, store: WatchedStore, model: IndexModel, policy: IndexPolicy) -> None:
        super().__init__(runtime, store)
        self.store = store
        self.model = model
        self.policy = policy
        self.index: Index[Any] = Index(
            store,
            INDEX,
            runtime,
            NEWER if self.process.newer else OLDER,
            stamps_of(store, runtime, "fleet"),
            VersionWatch(runtime),
        )

    def turns(self) -> Turns:
        write: Turns = [(0.12, self.put_some), (0.05, self.put_with_time), (0.08, self.delete), (0.2, self.put)]
        read: Turns = [(0.03, self.verify), (0.07, self.scan), (0.08, self.get_some), (0.15, self.get)]
        work: Turns = [(self.policy.full, self.compile_all), (0.2, self.compile)]
        if self.policy.duel:
            slot = int(self.process.name[1:].partition("#")[0])
            return (read, work, write, read, work)[slot]
        return [*write, *read, *work]

    def turn(self) -> None:
        """As every actor; any reader may meet what a vandal has spoilt."""
        try:
            super().turn()
        except Corrupt:
            if not self.model.bad:
                raise
            self.rest()

    def rest(self) -> None:
        self.runtime.sleep(self.chance() * self.policy.rest_s)

    def name(self) -> str:
        """Some key."""
        return self.policy.names[int(self.chance() * len(self.policy.names))]

    def record(self, *, given: bool = False) -> Older | Newer:
        """A new record of some key; `given`: with a time that others may give too."""
        name = self.name()
        return self.made(name, self.some_time(name) if given else None)

    def made(self, name: str, at: datetime | None = None) -> Older | Newer:
        """A record as this program's version makes it."""
        by = self.new_value()
        return Newer(name, by, at, note=f"by {by}") if self.process.newer else Older(name, by, at)

    def some_time(self, name: str) -> datetime:
        """A time that was used for this key already, so that they collide; or now, coarsely; or some hours off."""
        used = [line.stamp for line in self.model.sent.get(name, {}).values()]
        if used and self.chance() < 0.5:
            return datetime.fromisoformat(used[int(self.chance() * len(used))])
        at = EPOCH + timedelta(seconds=int(self.world.now_s) // 8 * 8)
        if self.chance() < (0.5 if self.policy.ahead else 0.1):
            at += timedelta(hours=(-3, 5, 20)[int(self.chance() * (3 if self.policy.ahead else 1))])
        return at

    def writing(self, records: Iterable[Older | Newer], call: Callable[[], object]) -> list[IndexLine]:
        """Write; the lines that were sent count as acknowledged once the call returns. Returns them."""
        self.model.operations += 1
        given = {str(record.by) for record in records if record.updated_at}
        sent: dict[Key, list[IndexLine]] = {}

        def watch(key: Key, data: bytes) -> None:
            if key not in sent and key.startswith(WAITING):
                sent[key] = lines_in(data)
                for line in sent[key]:
                    self.model.sends(self.process.name, line, given)

        self.store.watch = watch
        try:
            call()
        finally:
            self.store.watch = None
        lines = [line for each in sent.values() for line in each]
        self.model.acknowledged(self.process.name, lines, given)
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
        name = key or self.name()
        floors = self.model.begins([name])
        record = self.index.get(name)
        self.model.ends(self.process.name, floors, {} if record is None else {name: record})

    def get_some(self) -> None:
        """Some records, and one that never was."""
        names = sorted({self.name() for _ in range(1 + int(self.chance() * 5))})
        floors = self.model.begins(names)
        found: dict[Any, Any] = self.index.get_many([*names, "nobody"])
        if not found.keys() <= {*names}:
            raise Violation(f"get_many of {names} found {found}")
        self.model.ends(self.process.name, floors, found)

    def scan(self) -> None:
        """Every record."""
        floors = self.model.begins(self.policy.names)
        records = [*self.index.scan()]
        found = {record.key: record for record in records}
        if len(found) != len(records):
            raise Violation(f"a scan shows a key twice: {records}")
        self.model.ends(self.process.name, floors, found, got=False)

    def verify(self) -> None:
        """Verify while others work. No shard is ever damaged.   Raises: Violation if one is reported."""
        self.model.operations += 1
        try:
            report = self.index.verify()
        except Missing:
            return  # it is not created yet
        for finding in report.findings:
            if finding.kind in DAMAGE and "/shards/" in finding.key:
                raise Violation(f"{finding.key} is healthy, and verify says that it {finding.what}")

    def compile(self) -> None:
        """As a cron job does."""
        self.model.operations += 1
        self.index.compile()

    def compile_all(self) -> None:
        """As an operator does who wants small listings now."""
        self.model.operations += 1
        self.index.compile(full=True)


class SimIndexVerifier(IndexUser):
    """The process that runs alone after the faults."""

    def __init__(self, actors: IndexActors, process: SimProcess) -> None:
        runtime = SimRuntime(actors.world, process)
        super().__init__(runtime, actors.store(runtime), actors.model, actors.policy)
        self.actors = actors

    def waiting(self) -> list[Key]:
        """The objects that are not folded yet."""
        return [key for key in self.actors.bucket.objects if key.startswith(WAITING)]

    def fold_everything(self) -> None:
        """After the faults: one more record a shard, so that each is written in full width; then all is folded."""
        self.runtime.sleep(QUIET_S)
        for name in {shard_id(name, DEPTH): name for name in NAMES}.values():
            self.writing([], partial(self.index.put, self.made(name)))
        for _ in range(ROUNDS_MAX):
            self.compile_all()
            if not self.waiting():
                return
            self.runtime.sleep(self.actors.knobs.ttl_s / 3 + 2)
        raise Violation(f"{ROUNDS_MAX} compile runs, and there is still {self.waiting()[0]}")

    def look_back(self, replay: IndexHistory) -> None:
        """The index reads as the replay says; compiling again, and objects that arrive again, change nothing."""
        self.reads_as(replay)
        done = len(self.actors.bucket.journal)
        self.compile_all()
        if again := [each.key for each in self.actors.bucket.journal[done:] if not each.key.startswith("clock")]:
            raise Violation(f"there was nothing to do, and the compiler wrote {again[0]}")
        shards = self.shards()
        for applied in self.actors.bucket.journal[::7]:
            good = applied.key.startswith(WAITING) and applied.key not in self.model.bad
            if good and applied.data is not None:
                self.actors.bucket.put("network", applied.key, applied.data, Always())
        self.reads_as(replay)
        self.compile_all()
        if self.shards() != shards:
            raise Violation("what was folded before was folded again, and that changed a shard")
        if self.chance() < 0.3:
            self.lose_a_shard()

    def shards(self) -> dict[Key, bytes]:
        """The bytes of all shards."""
        found = self.actors.bucket.objects.items()
        return {key: blob.data for key, blob in found if key.endswith(".usv") and key.startswith(KEYS.shards)}

    def reads_as(self, replay: IndexHistory) -> None:
        """Every way to read tells what the model says.   Raises: Violation."""
        must = {key: line.by for key, line in replay.winners().items() if not line.gone}
        all_, some = sorted({*must, *self.policy.names}), self.policy.names
        answers: dict[str, tuple[Sequence[str], dict[Any, Any]]] = {
            "get": (some, {name: record for name in some if (record := self.index.get(name)) is not None}),
            "get_many": (all_, self.index.get_many(all_)),
        }
        if self.chance() < 0.3:
            answers["scan"] = (all_, {record.key: record for record in self.index.scan()})
        for way, (asked, found) in answers.items():
            by = {key: record.by for key, record in found.items()}
            if by != {key: must[key] for key in asked if key in must}:
                raise Violation(f"when all is folded {way} shows {by}, not {must}")

    def lose_a_shard(self) -> None:
        """A shard that is gone, or lost a record, is an error for every reader, and is not built upon (F23)."""
        name = self.policy.names[0]
        key = KEYS.shard(shard_id(name, DEPTH))
        objects = self.actors.bucket.objects
        whole = objects.pop(key)
        for what, call in (("get", lambda: self.index.get(name)), ("scan", lambda: [*self.index.scan()])):
            with suppress(Corrupt):
                raise Violation(f"{key} is missing, and {what} answers {call()}")
        self.refused(key)
        self.actors.bucket.put("vandal", key, whole.data.partition(b"\n")[2], Always())
        self.noticed(key, name)
        self.refused(key)
        self.actors.bucket.put("vandal", key, b"", Always())
        self.noticed(key, name)
        changed = whole.data.replace(b"\x1f0\n", b"\x1f1\n", 1)
        if changed != whole.data:  # a record that reads as deleted: no reader can tell
            self.actors.bucket.put("vandal", key, changed, Always())
            if not any(finding.kind == "changed" for finding in self.index.verify().findings):
                raise Violation(f"{key} was changed, and verify does not find it")

    def noticed(self, key: Key, name: str) -> None:
        """Every read of a shard that lost records must raise Corrupt, whichever record it is for."""
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
        found = self.actors.bucket.objects.get(shard)
        self.index.put({"key": self.policy.names[0], "by": "late"})
        waiting = self.waiting()
        with suppress(Corrupt):
            raise Violation(f"{shard} lost records, and a compiler built upon it: {self.index.compile(full=True)}")
        if self.actors.bucket.objects.get(shard) != found or self.waiting() != waiting:
            raise Violation(f"{shard} lost records, and a compiler wrote it or deleted what waits for it")
