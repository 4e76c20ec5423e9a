"""Scenario: processes that write, read and compile one index through a faulty network, or on one machine's disk, which
may fail and lose power.

The invariants are checked for every read when it is answered, and for every mutation of the bucket. A write counts from
the moment it is sent: it may take effect even if its client gets no answer. A read that begins after another ended, or
after a write was acknowledged, never shows anything older. The rank and the shard of a line are computed here
independently, so that a mistake in `limpet.index` is found.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache, lru_cache, partial
from itertools import pairwise
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from limpet.index import Index, compiler, decide, describe, reader, writer
from limpet.index import index as layouts
from limpet.index.decide import shard_id, shard_ids
from limpet.index.maintain import verify
from limpet.index.storage import Count, Manifest, fresh, sum_of, with_counts
from limpet.index.types import typed, with_own
from limpet.kernel.cell import Cell, struct_codec
from limpet.kernel.errors import Corrupt, LimpetError, Missing
from limpet.kernel.keys import IndexKeys, Key
from limpet.kernel.lease import VersionWatch
from limpet.kernel.store import DirectoryStore
from limpet.kernel.store.api import Always, Store, Version, When
from limpet.kernel.store.memory import MemoryStore
from sim.actors import Actor, Actors, Nemesis, RunPlan, Settings, Turns, steps
from sim.bucket import Bucket, BucketChange, SimStore
from sim.directory import ROOT, MachineActors, SimFiles, StillFiles
from sim.world import EPOCH, SimProcess, SimRuntime, Violation, World

A = TypeVar("A")
R = TypeVar("R")

INDEX = "ix"
KEYS = IndexKeys.of(INDEX)
WAITING = (f"{KEYS.inbox}/", f"{KEYS.packs}/")
"""The prefixes of objects that are not folded yet."""
DEPTH = 1
"""Sixteen shards: more would add nothing to the test."""
FOUNDER = "founder"
BUDGET_BASE = 600
BUDGET_PER_OPERATION = 60

Rank = tuple[bytes, bytes, bytes]
KEY_AT, BY_AT, STAMP_AT, GONE_AT = range(4)
SEPARATOR, NULL = b"\x1f", b"\\N"

TURNS = 9
RUN_S = 3_000.0
HEAL_S = 4_000.0
QUIET_S = 120.0
"""After this time no duplicate of a request is in flight."""
ROUNDS_MAX = 40
DISK_TURNS = 8
DISK_RUN_S = 600.0
DISK_LOCK_TTL_S = 5.0
DAMAGE = ("changed", "lost", "missing_shard", "cut_off", "bad_line", "bad_value", "order", "duplicate", "misplaced")
"""The kinds of findings of `verify` that mean a damaged shard."""
NAMES = ("b", "e", "f1", "h1", "~x", "a2", "c", "f")
"""The keys that users write: four in one shard, one in another, three in a third."""
OLD = ("old0", "old19", "old39", "old63", "old3", "old43", "old50", "old61", "old36", "old54", "old101")
"""Keys of initial records, in the three shards that the users write to."""

STEPS = steps(
    "lock: create free read take takeover",
    "manifest: read swap",
    "pack: delete list put read",
    "shard: head put read",
    "single: delete list put read",
)
"""The steps of the index's protocol at which a process may be struck. Settling a swap is the kernel's."""
RARE = ("lock.free", "lock.takeover", "lock.takeover", "lock.takeover", "shard.put", "shard.put")
"""Steps with more faults: a compiler that dies while it holds the lock, and the next one."""


def tuning(world: World, lock_ttl_s: float) -> Settings:
    """Constants that, in most runs, make small shards behave like large ones: folds, packs, searches."""
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
            (decide, "WINDOW_MIN"): 64,
            (decide, "ANCHOR"): 64,
            (decide, "BYTES_MAX"): 256,
            (reader, "SHARE_FOR_WHOLE"): 0 if chance(56) < 0.5 else 60,
        }
    if chance(67) < 0.2:
        settings[writer, "READ_EVERY_S"] = 3.0
    return settings


class IndexActors(Actors):
    """Processes on separate machines, around one index."""

    far = False
    """Whether they treat the bucket as far away: lookups make several requests at the same time."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        duel = world.chance(66) < 0.3
        super().__init__(world, plan, slots=plan.processes, turns=2 * TURNS if duel else TURNS)
        self.bucket = Bucket(world, plan)
        self.model = IndexModel()
        names = NAMES[: 1 + int(world.chance(57) * (2 if duel else len(NAMES)))]
        self.policy = IndexPolicy(names, duel, ahead=world.chance(58) < 0.15, rest_s=0.2 if duel else 3.0)
        self.founded = world.chance(60) < 0.95
        """Otherwise the users race to create the index."""
        self.vandal = self.founded and world.chance(59) < 0.12
        self.mixed = self.founded and plan.mixed_versions

    @staticmethod
    def tuning(world: World, plan: RunPlan) -> Settings:
        return tuning(world, max(2.0, plan.ttl_s / 4))

    def act(self) -> None:
        for key, data in layout().items() if self.founded else ():
            self.bucket.put(FOUNDER, key, data, Always())
        if self.vandal:
            for n in range(1 + int(self.world.chance(61) * 3)):
                self.world.later(40 * self.world.chance(62, n), partial(self.spoil, n))
        self.play(Nemesis(self, (*STEPS, *RARE)).run, until_s=RUN_S)
        self.stop_faults()
        process = self.world.start("newcomer")
        process.newer = self.mixed
        newcomer = SimIndexVerifier(self, process)
        self.alone(newcomer, newcomer.fold_everything, within_s=HEAL_S)
        replay = check_index(self.world, self.bucket, self.model)
        self.alone(newcomer, lambda: newcomer.look_back(replay), within_s=HEAL_S)

    def actor(self, process: SimProcess) -> IndexUser:
        self.vary(process, newer=self.mixed)
        runtime = SimRuntime(self.world, process)
        return IndexUser(runtime, self.store(runtime), self.model, self.policy)

    def store(self, runtime: SimRuntime) -> BucketStore:
        """A process's view of the bucket."""
        store = BucketStore(self.bucket, runtime)
        store.far = self.far
        return store

    def spoil(self, n: int) -> None:
        """A user's script puts an invalid object into the inbox or the packs."""
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


class FarIndexActors(IndexActors):
    """The same around an index that is far away."""

    far = True


@dataclass(frozen=True)
class OlderRecord:
    """A record. `by`: who wrote it, and which of their writes it is; unique."""

    key: str
    by: str | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True)
class NewerRecord:
    """A record of a later version of the program, which has one more column."""

    key: str
    by: str | None = None
    updated_at: datetime | None = None
    note: str | None = None


OLDER = typed(OlderRecord, "key")
NEWER = typed(NewerRecord, "key")


class WatchedStore(Store):
    """A store that calls `watch` for every put before it is sent."""

    watch: Callable[[Key, bytes], None] | None = None

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        if self.watch is not None:
            self.watch(key, data)
        return super().put(key, data, when=when)  # type: ignore[safe-super]  # of the store that it is mixed into


class BucketStore(WatchedStore, SimStore):
    """The bucket, watched."""


@cache
def layout() -> Mapping[Key, bytes]:
    """The objects of an index with a few old records."""
    assert OLDER.fields is not None
    shards = dict.fromkeys(shard_ids(DEPTH), b"")
    for key in sorted(OLD, key=lambda key: decide.digest(key.encode())):
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
            writer.stamps_of(store, runtime, "fleet"),
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
        """Like every actor; in runs with invalid objects any reader may get Corrupt."""
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

    def record(self, *, given: bool = False) -> OlderRecord | NewerRecord:
        """A new record of some key; `given`: with a time that others may give too."""
        name = self.name()
        return self.made(name, self.some_time(name) if given else None)

    def made(self, name: str, at: datetime | None = None) -> OlderRecord | NewerRecord:
        """A record as this program's version makes it."""
        by = self.new_value()
        return NewerRecord(name, by, at, note=f"by {by}") if self.process.newer else OlderRecord(name, by, at)

    def some_time(self, name: str) -> datetime:
        """A time that was used for this key before, so that they collide; or the rounded current time; or hours off."""
        used = [line.stamp for line in self.model.sent.get(name, {}).values()]
        if used and self.chance() < 0.5:
            return datetime.fromisoformat(used[int(self.chance() * len(used))])
        at = EPOCH + timedelta(seconds=int(self.world.now_s) // 8 * 8)
        if self.chance() < (0.5 if self.policy.ahead else 0.1):
            at += timedelta(hours=(-3, 5, 20)[int(self.chance() * (3 if self.policy.ahead else 1))])
        return at

    def writing(self, records: Iterable[OlderRecord | NewerRecord], call: Callable[[], object]) -> list[IndexLine]:
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
        found: dict[Any, Any] = self.index.get_many([*names, "never written"])
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
        """Verify while others work. No shard is damaged.   Raises: Violation if one is reported."""
        self.model.operations += 1
        try:
            report = self.index.verify()
        except Missing:
            return  # it is not created yet
        for finding in report.findings:
            if finding.kind in DAMAGE and "/shards/" in finding.key:
                raise Violation(f"{finding.key} is healthy, and verify says that it {finding.what}")

    def compile(self) -> None:
        """Like a cron job."""
        self.model.operations += 1
        self.index.compile()

    def compile_all(self) -> None:
        """Like an operator who wants short listings."""
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
            self.runtime.sleep(self.actors.plan.ttl_s / 3 + 2)
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
        """Every kind of read matches the model.   Raises: Violation."""
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
        """A shard that is missing, or lost a record, is an error for every reader and compiler (F23)."""
        name = self.policy.names[0]
        key = KEYS.shard(shard_id(name, DEPTH))
        whole = self.actors.bucket.lose(key)
        self.noticed(key, name, finding="missing_shard")
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

    def noticed(self, key: Key, name: str, *, finding: str = "lost") -> None:
        """Every read of a shard that lost records must raise Corrupt, whichever record it is for."""
        reads: dict[str, Callable[[], object]] = {
            "get": lambda: self.index.get(name),
            "get_many": lambda: self.index.get_many([name]),
            "scan": lambda: [*self.index.scan()],
        }
        for what, call in reads.items():
            with suppress(Corrupt):
                raise Violation(f"{key} lost records, and {what} answers {call()}")
        if not any(found.kind == finding for found in self.index.verify().findings):
            raise Violation(f"{key} lost records, and verify does not find it")

    def refused(self, shard: Key) -> None:
        """A compiler refuses the shard, and the objects that wait for it stay.   Raises: Violation."""
        found = self.actors.bucket.objects.get(shard)
        self.index.put({"key": self.policy.names[0], "by": "late"})
        waiting = self.waiting()
        with suppress(Corrupt):
            raise Violation(f"{shard} lost records, and a compiler built upon it: {self.index.compile(full=True)}")
        if self.actors.bucket.objects.get(shard) != found or self.waiting() != waiting:
            raise Violation(f"{shard} lost records, and a compiler wrote it or deleted what waits for it")


# ---- on one disk: power loss, failing calls, kill -9 between any two calls ----


class IndexDiskActors(MachineActors):
    """One machine: its disk, and the processes on it."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        super().__init__(world, plan, turns=DISK_TURNS, pauses=(10, 100), power_losses=0.5)
        self.fault_rate = 0.01 * world.chance(60)
        self.model = IndexModel()
        self.policy = IndexPolicy(
            NAMES[: 1 + int(world.chance(57) * 3)],
            duel=world.chance(66) < 0.7,
            rest_s=10 * self.disk.pace_s,
            full=0.5,
        )

    @staticmethod
    def tuning(world: World, plan: RunPlan) -> Settings:
        return tuning(world, DISK_LOCK_TTL_S)

    def act(self) -> None:
        founder = self.newcomer("founder")
        for key, data in layout().items():
            founder.store.put(key, data)
        self.play(self.inject_faults, until_s=DISK_RUN_S)
        self.world.healed = True
        for process in self.living:
            self.world.kill(process)
            self.disk.release(process)
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
        files = StillFiles(self.disk, self.world, process, fault_rate=0)
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


class DiskStore(WatchedStore, DirectoryStore):
    """A directory, watched."""


class _CrashingFiles(SimFiles):
    """The process may die after a shard was renamed and before its folder is synced (F25)."""

    def __init__(self, machine: IndexDiskActors, process: SimProcess) -> None:
        super().__init__(machine.disk, machine.world, process, fault_rate=machine.fault_rate)
        self._machine = machine

    def rename(self, name: str, to_name: str, /, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        super().rename(name, to_name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        world, process = self._world, self._process
        due = to_name.endswith(".usv") and world.chance(64, process.index, process.calls) < 0.1
        if due and world.strike(f"{process.name}/{process.calls}/crash", "crash"):
            self._machine.hit("crash", [process])
            world.check_alive(process)


class _StillRuntime(SimRuntime):
    """A process that never yields."""

    def sleep(self, seconds: float) -> None:
        """Return at once: no other process runs."""

    def fan_out(self, call: Callable[[A], R], items: Iterable[A], *, at_once: int = 32) -> list[R]:
        return [call(item) for item in items]


# ---- what must hold: every read ----


@dataclass(frozen=True, slots=True)
class IndexLine:
    """A line of an index, as the checks see it."""

    key: str
    by: str
    rank: Rank
    width: int

    @property
    def stamp(self) -> str:
        """When it was written, as text."""
        return self.rank[0].decode()

    @property
    def gone(self) -> bool:
        """Whether it is a tombstone."""
        return self.rank[1] == b"1"

    def __str__(self) -> str:
        return f"{self.key!r} at {self.stamp} ({'deleted' if self.gone else self.by})"


@lru_cache(10_000)
def line_of(data: bytes) -> IndexLine:
    """A line without its LF."""
    fields = data.split(SEPARATOR)
    content = [*fields]
    while content[-1] == NULL:
        content.pop()
    rank = (fields[STAMP_AT], fields[GONE_AT], SEPARATOR.join(content))
    return IndexLine(fields[KEY_AT].decode(), fields[BY_AT].decode(), rank, len(fields))


def lines_in(data: bytes) -> list[IndexLine]:
    """The lines of an object.   Raises: Violation for one that was cut off."""
    lines = data.split(b"\n")
    if lines.pop():
        raise Violation(f"an object does not end with a line feed: {data[-60:]!r}")
    return [line_of(line) for line in lines]


Floors = Mapping[str, Rank | None]


@dataclass(slots=True)
class IndexModel:
    """Every write that was sent, and for each key the minimum rank of later reads."""

    sent: dict[str, dict[Rank, IndexLine]] = field(default_factory=dict)
    bad: dict[Key, bytes] = field(default_factory=dict)
    operations: int = 0
    _by: dict[tuple[str, str], IndexLine] = field(default_factory=dict)
    _floor: dict[str, Rank] = field(default_factory=dict)
    _safe: dict[str, Rank] = field(default_factory=dict)
    _stamped: dict[tuple[str, str], str] = field(default_factory=dict)
    """By process and key, the latest time that the process has given to a record."""
    _seen: dict[tuple[str, str], str] = field(default_factory=dict)
    """By process and key, the latest time that the process has been shown: its next put must exceed it."""

    def sends(self, who: str, line: IndexLine, given: Container[str]) -> None:
        """A write is sent; the user chose the time of those `given`.   Raises: Violation if its stamp is too old."""
        self.sent.setdefault(line.key, {})[line.rank] = line
        if not line.gone:
            self._by[line.key, line.by] = line
        if line.by in given:
            return
        for did, stamps in (("stamped", self._stamped), ("seen", self._seen)):
            if line.stamp <= stamps.get((who, line.key), ""):
                raise Violation(f"{who} stamped {line} although it had {did} {stamps[who, line.key]} before")
        self._stamped[who, line.key] = line.stamp

    def acknowledged(self, who: str, lines: Iterable[IndexLine], given: Container[str]) -> None:
        """A write was answered: every later read shows it, or something later."""
        for line in lines:
            self._raise(line.key, line.rank)
            self._safe[line.key] = max(line.rank, self._safe.get(line.key, line.rank))
            if line.by in given:
                self._saw(who, line.key, line.stamp)

    def lost_power(self) -> None:
        """Forget what was only read: a reader may see a write before it is durable."""
        self._floor = dict(self._safe)

    def begins(self, keys: Iterable[str]) -> Floors:
        """A read is sent: the ranks below which it must not fall."""
        self.operations += 1
        return {key: self._floor.get(key) for key in keys}

    def ends(
        self, who: str, floors: Floors, found: Mapping[str, OlderRecord | NewerRecord], *, got: bool = True
    ) -> None:
        """A read was answered; `got`: by `get`, whose stamp the process's next put of the key must exceed.

        Raises: Violation.
        """
        ranks: dict[str, Rank | None] = {}
        for key, floor in floors.items():
            record = found.get(key)
            ranks[key] = rank = self._nothing(who, key, floor) if record is None else self._shown(who, key, record)
            if floor is not None and rank is not None and rank < floor:
                newer = self.sent[key][floor]
                raise Violation(f"{who} read {self.sent[key][rank]} after {newer} was acknowledged or read")
        for key, rank in ranks.items():
            if rank is not None:
                self._raise(key, rank)
                if got:
                    self._saw(who, key, rank[0].decode())

    def _shown(self, who: str, key: str, record: OlderRecord | NewerRecord) -> Rank:
        line = self._by.get((key, record.by or ""))
        if line is None:
            raise Violation(f"{who} read {key!r} by {record.by!r}, which no process wrote")
        if record.updated_at is None or line.stamp != f"{record.updated_at:%Y-%m-%dT%H:%M:%S.%f}Z":
            raise Violation(f"{who} read {line} with another time: {record.updated_at}")
        return line.rank

    def _nothing(self, who: str, key: str, floor: Rank | None) -> Rank | None:
        """The least tombstone that explains an empty answer; None if no explanation is needed."""
        if floor is None:
            return None
        deletes = [rank for rank, line in self.sent[key].items() if line.gone and rank >= floor]
        if not deletes:
            raise Violation(f"{who} found nothing although {self.sent[key][floor]} was acknowledged or read")
        return min(deletes)

    def _raise(self, key: str, rank: Rank) -> None:
        self._floor[key] = max(rank, self._floor.get(key, rank))

    def _saw(self, who: str, key: str, stamp: str) -> None:
        self._seen[who, key] = max(stamp, self._seen.get((who, key), ""))


# ---- every mutation ----


class _ManifestBody(msgspec.Struct):
    fields: list[dict[str, Any]]
    schema_version: int
    described: int
    records: list[int]
    sizes: list[int]
    sums: list[str]


class _LockToken(msgspec.Struct):
    token: int


class _Quarantined(msgspec.Struct):
    key: str
    data: bytes


@dataclass(slots=True)
class IndexHistory:
    """The replayed mutations of the bucket: the lines that were stored, and the ranks in each object by key."""

    model: IndexModel
    landed: dict[str, dict[Rank, IndexLine]] = field(default_factory=dict)
    shards: dict[Key, dict[str, Rank]] = field(default_factory=dict)
    waiting: dict[Key, list[IndexLine]] = field(default_factory=dict)
    tokens: dict[Key, int] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    counted: list[int] = field(default_factory=list)
    history: dict[Key, list[tuple[str, dict[str, Rank]]]] = field(default_factory=dict)
    """By shard, what it was at any time: the digest of its bytes, and what it held."""
    recorded: dict[Key, int] = field(default_factory=dict)
    """By shard, which of these the manifest records."""

    def winners(self) -> dict[str, IndexLine]:
        """By key, the greatest line that was stored."""
        return {key: lines[max(lines)] for key, lines in self.landed.items()}

    def apply(self, applied: BucketChange) -> None:
        """One mutation.   Raises: Violation."""
        key, data = applied.key, applied.data
        if key in self.model.bad:
            if data is None and key not in self.kept:
                raise Violation(f"{applied.who} deleted {key}, which could not be read, before it was kept")
        elif key.startswith(f"{KEYS.quarantine}/") and data is not None:
            self.kept.add(msgspec.json.decode(data, type=_Quarantined).key)
        elif key.endswith(".lock"):
            self._lock(applied)
        elif key == KEYS.manifest and data is not None:
            self._manifest(applied, data)
        elif key.startswith(f"{KEYS.shards}/"):
            self._shard(applied)
        elif key.startswith(WAITING):
            if data is None:
                self._forward(applied)
            else:
                self._arrives(applied, data)

    def _lock(self, applied: BucketChange) -> None:
        if applied.data is None:
            raise Violation(f"{applied.who} deleted {applied.key}: its tokens would start again")
        token = msgspec.json.decode(applied.data, type=_LockToken).token
        if token < self.tokens.get(applied.key, 0):
            raise Violation(f"{applied.key}: token {token} follows {self.tokens[applied.key]}")
        self.tokens[applied.key] = token

    def _manifest(self, applied: BucketChange, data: bytes) -> None:
        """A count above the real one would make a healthy shard look damaged; a count that decreases hides a loss."""
        manifest = msgspec.json.decode(data, type=_ManifestBody)
        if any(now < before for before, now in zip(self.counted, manifest.records, strict=False)):
            raise Violation(f"{applied.who} took a count down, from {self.counted} to {manifest.records}")
        self.counted = manifest.records
        for at, count in enumerate(manifest.records):
            there = len(self.shards.get(KEYS.shard(f"{at:0{DEPTH}x}"), ()))
            if count > there:
                raise Violation(f"{applied.who} counted {count} records in shard {at:x}, and there are {there}")
        for at, digest in enumerate(manifest.sums):
            self._recorded(applied, KEYS.shard(f"{at:0{DEPTH}x}"), digest)

    def _recorded(self, applied: BucketChange, shard: Key, digest: str) -> None:
        """The recorded digest is one that the shard had, and never older than the last recorded one."""
        if not digest:
            return
        before = self.recorded.get(shard, 0)
        found = [at for at, (each, _) in enumerate(self.history.get(shard, ())) if each == digest]
        if not found or found[-1] < before:
            raise Violation(f"{applied.who} recorded a digest of {shard} that it does not have any more, or never had")
        self.recorded[shard] = found[-1]

    def _arrives(self, applied: BucketChange, data: bytes) -> None:
        """A user's write, or a pack: it has only lines that a user sent."""
        lines = lines_in(data)
        if applied.key.startswith(f"{KEYS.packs}/"):
            self._ordered(applied, lines)
        for line in lines:
            if line.rank not in self.model.sent.get(line.key, {}):
                raise Violation(f"{applied.who} put {line} into {applied.key}, and no user had sent it")
            self.landed.setdefault(line.key, {})[line.rank] = line
        self.waiting[applied.key] = lines

    def _forward(self, applied: BucketChange) -> None:
        """Deleted lines exist in a later object: a single's in a pack or the shard, a pack's in the shard (F18).

        The shard must be one that the manifest records: so an unrecorded fold is noticed (F23).
        """
        lines = self.waiting.pop(applied.key, [])
        single = applied.key.startswith(f"{KEYS.inbox}/")
        for line in lines:
            key = KEYS.shard(_place(line.key)[:DEPTH])
            shard = self.history[key][self.recorded.get(key, 0)][1].get(line.key)
            if shard is not None and shard >= line.rank:
                continue
            packs = (other for key, held in self.waiting.items() if "/packs/" in key for other in held)
            if single and any(other.key == line.key and other.rank >= line.rank for other in packs):
                continue
            raise Violation(f"{applied.who} deleted {applied.key}, and {line} is nowhere further on")

    def _shard(self, applied: BucketChange) -> None:
        """The records of a shard only become newer, and all of them were written."""
        if applied.data is None:
            raise Violation(f"{applied.who} deleted {applied.key}")
        lines = lines_in(applied.data)
        self._ordered(applied, lines)
        now = {line.key: line.rank for line in lines}
        if applied.who == FOUNDER:
            self.landed |= {line.key: {line.rank: line} for line in lines}
        for key, rank in self.shards.get(applied.key, {}).items():
            if key not in now or now[key] < rank:
                raise Violation(f"{applied.who} put {applied.key}, and {self.landed[key][rank]} was lost from it")
        for line in lines:
            if line.rank not in self.landed.get(line.key, {}):
                raise Violation(f"{applied.who} put {line} into {applied.key}, and it had not landed")
        self.shards[applied.key] = now
        self.history.setdefault(applied.key, []).append((_digest(applied.data), now))

    def _ordered(self, applied: BucketChange, lines: Sequence[IndexLine]) -> None:
        places = [_place(line.key) for line in lines]
        shard = applied.key.removeprefix(f"{KEYS.root}/").split("/")[1].removesuffix(".usv")
        if any(not place.startswith(shard) for place in places):
            raise Violation(f"{applied.who} put a record of another shard into {applied.key}")
        if any(place >= following for place, following in pairwise(places)):
            raise Violation(f"{applied.who} put {applied.key} out of order, or with one key twice")


def check_index(world: World, bucket: Bucket, model: IndexModel) -> IndexHistory:
    """Every invariant of the index, when all is folded. Returns what it must hold.   Raises: Violation."""
    replay = IndexHistory(model)
    for applied in bucket.journal:
        replay.apply(applied)
    manifest = msgspec.json.decode(bucket.objects[KEYS.manifest].data, type=_ManifestBody)
    bucket.check_empty(KEYS.inbox, KEYS.packs, when="after everything was folded")
    _all_is_recorded(bucket, manifest)
    _the_winners_stand(bucket, manifest, replay)
    _the_bad_is_kept(bucket, model)
    _described(bucket, manifest)
    world.check_calls(BUDGET_BASE + BUDGET_PER_OPERATION * model.operations, f"{model.operations} operations")
    return replay


def _place(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _digest(data: bytes) -> str:
    digest = hashlib.sha256(data).digest()[:16]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=") if data else "-"


def _all_is_recorded(bucket: Bucket, manifest: _ManifestBody) -> None:
    """When nothing waits, the manifest has the digest of every shard."""
    for at, digest in enumerate(manifest.sums):
        shard = KEYS.shard(f"{at:0{DEPTH}x}")
        if digest != _digest(bucket.objects[shard].data):
            raise Violation(f"all is folded, and the manifest has another digest of {shard}: {digest!r}")


def _the_winners_stand(bucket: Bucket, manifest: _ManifestBody, replay: IndexHistory) -> None:
    """The shards have exactly the greatest stored line of each key, including tombstones, in full width."""
    stands: dict[str, IndexLine] = {}
    for key in bucket.below(KEYS.shards):
        if not key.endswith(".usv"):
            continue
        lines = lines_in(bucket.objects[key].data)
        stands.update({line.key: line for line in lines})
        if any(line.width != len(manifest.fields) for line in lines):
            raise Violation(f"{key} has a line that is not padded to {len(manifest.fields)} columns")
    for line in replay.winners().values():
        if line.key not in stands:
            raise Violation(f"{line} landed, and is in no shard")
        if stands[line.key].rank != line.rank:
            raise Violation(f"{line} landed, and the shard has {stands[line.key]}")
    if extra := stands.keys() - replay.landed.keys():
        raise Violation(f"a shard has {min(extra)!r}, which no process wrote")


def _the_bad_is_kept(bucket: Bucket, model: IndexModel) -> None:
    kept = [msgspec.json.decode(bucket.objects[key].data, type=_Quarantined) for key in bucket.below(KEYS.quarantine)]
    for each in kept:
        if model.bad.get(Key(each.key)) != each.data:
            raise Violation(f"{each.key} was put into quarantine, and it was good")
    if missing := model.bad.keys() - {each.key for each in kept}:
        raise Violation(f"{min(missing)} could not be read, and was not kept")


def _described(bucket: Bucket, manifest: _ManifestBody) -> None:
    """The description has the current columns."""
    package = msgspec.json.decode(bucket.objects[KEYS.package].data)
    shown = [each["name"] for each in package["resources"][0]["schema"]["fields"]]
    if manifest.described == manifest.schema_version and shown != [each["name"] for each in manifest.fields]:
        raise Violation(f"{KEYS.package} shows the columns {shown}")
