"""`reshard`: more shards or fewer, with the same records, whatever happens on the way."""

from __future__ import annotations

from typing import Any

import pytest

from limpet.app import Fleet
from limpet.index.compiler import LOCK_TTL_S
from limpet.index.decide import shard_id, shard_ids
from limpet.index.maintain import WholeIndex
from limpet.index.maintain.flaws import MOVED, inspect
from limpet.index.maintain.offline import reshard
from limpet.index.maintain.verify import verify
from limpet.kernel.errors import Conflict, Corrupt, Held, Invalid, Missing, OutcomeUnknown
from limpet.kernel.lease import Lock
from limpet.kernel.store import MemoryStore
from support.clock import ManualRuntime, Time
from support.index import (
    KEYS,
    NAME,
    Killed,
    Process,
    Rec,
    contents,
    keys_in,
    lines_of,
    manifest_of,
    records_of,
    texts_of,
    until_done,
    whole_of,
)

OLD = "2020-01-01T00:00:00.000000Z"


def filled(bucket: MemoryStore, time: Time, *, depth: int = 2, number: int = 40) -> dict[str, str | None]:
    """Some records compiled, some deleted, some that wait; what is left of them."""
    process = Process.start(bucket, time, "filler", depth=depth)
    process.index.put_many([Rec(f"k{n}", str(n)) for n in range(number)])
    process.index.compile(full=True)
    process.index.put(Rec("k1", "newer"))
    process.index.put_many([Rec(key, "waits") for key in keys_in("5e", 3)])
    process.index.delete("k0")
    model: dict[str, str | None] = {f"k{n}": str(n) for n in range(1, number)}
    return model | {"k1": "newer"} | dict.fromkeys(keys_in("5e", 3), "waits")


def shards_in(bucket: MemoryStore) -> set[str]:
    """The shards that lie there, of any depth."""
    names = (stat.key.rpartition("/")[2] for stat in bucket.list(KEYS.shards))
    return {name.removesuffix(".usv") for name in names if name.endswith(".usv")}


def demand(bucket: MemoryStore, time: Time, model: dict[str, str | None], depth: int) -> None:
    """The index has that depth and those records, and nothing is wrong with it."""
    index = Process.start(bucket, time, "judge").index
    assert index.manifest.depth == depth
    assert shards_in(bucket) == {*shard_ids(depth)}
    assert verify(whole_of(index)).findings == []
    assert records_of(index) == model
    assert texts_of(index, ["k0", "k1", "k9"]) == {"k1": model["k1"], "k9": "9"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Depth 1, which no user can have: with 16 shards instead of 4,096 every moment can be tried."""
    for module in ("index", "maintain.offline", "maintain.verify"):
        monkeypatch.setattr(f"limpet.index.{module}.DEPTHS", (1, 2, 3, 4))


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_reshard(bucket: MemoryStore, time: Time, before: int, after: int) -> None:
    model = filled(bucket, time, depth=before)
    process = Process.start(bucket, time, "p")
    told = manifest_of(bucket)
    report = reshard(process.whole, after, quiesced=True)
    assert (report.before, report.depth, report.shards) == (before, after, 16**after)
    assert (report.records, report.removed) == (len(model) + 1, 16**before)  # the tombstone too
    now = manifest_of(bucket)
    assert (now.depth, now.generation, now.schema_version) == (after, told.generation + 1, told.schema_version)
    assert sum(now.records) == report.records
    assert sum(now.sizes) == report.written_bytes
    assert now.described == now.schema_version
    demand(bucket, time, model, after)
    time.sleep(5.0)
    index = Process.start(bucket, time, "q").index
    index.put(Rec("k1", "newest"))
    index.delete("k2")
    index.compile(full=True)
    del model["k2"]
    demand(bucket, time, model | {"k1": "newest"}, after)


def test_tombstones_move_too(bucket: MemoryStore, time: Time) -> None:
    filled(bucket, time)
    process = Process.start(bucket, time, "p")
    reshard(process.whole, 3, quiesced=True)
    schema = manifest_of(bucket).schema
    [line] = lines_of(bucket, KEYS.shard(shard_id("k0", 3)))
    assert schema.is_tombstone(line.rstrip(b"\n"))


@pytest.mark.parametrize("lock", ["compiler", "reshard"])
def test_somebody_at_work(bucket: MemoryStore, time: Time, lock: str) -> None:
    filled(bucket, time)
    other = Process.start(bucket, time, "other")
    key = KEYS.lock("5e" if lock == "compiler" else "all")
    held = Lock(other.store, key, key, LOCK_TTL_S, other.runtime, other.whole.watch, look_first=True).acquire()
    before = contents(bucket)
    with pytest.raises(Held) as error:
        reshard(Process.start(bucket, time, "p").whole, 3, quiesced=True)
    assert "host:other" in str(error.value)
    assert "wait" in error.value.hint
    assert contents(bucket) == before
    held.release()
    assert reshard(Process.start(bucket, time, "p").whole, 3, quiesced=True).depth == 3


def test_a_dead_compiler_does_not_stop_it(bucket: MemoryStore, time: Time) -> None:
    """Its lock is still held, and no process has watched it; but it has run out, and the operator says it is over."""
    model = filled(bucket, time)
    other = Process.start(bucket, time, "other")
    key = KEYS.lock("5e")
    Lock(other.store, key, key, LOCK_TTL_S, other.runtime, other.whole.watch, look_first=True).acquire()
    time.sleep(LOCK_TTL_S + 60)
    reshard(Process.start(bucket, time, "p").whole, 3, quiesced=True)
    demand(bucket, time, model, 3)


@pytest.mark.parametrize("depth", [1, 5])
def test_depths(bucket: MemoryStore, time: Time, depth: int) -> None:
    with pytest.raises(Invalid, match="depth of 2 to 4"):
        reshard(Process.start(bucket, time, "p").whole, depth, quiesced=True)


def test_only_when_nobody_is_at_work(bucket: MemoryStore, time: Time) -> None:
    filled(bucket, time)
    process = Process.start(bucket, time, "p")
    with process.store.measure() as cost, pytest.raises(Invalid, match="requires that no other process uses") as error:
        reshard(process.whole, 3)
    assert "--quiesced" in error.value.hint
    assert "stop" in error.value.hint
    assert cost.requests == {}
    empty = Process.start(MemoryStore(ManualRuntime(time)), time, "p")
    with pytest.raises(Missing):
        reshard(empty.whole, 3, quiesced=True)
    assert [*empty.bucket.list()] == []


@pytest.mark.parametrize("damage", ["missing", "lost", "order", "cut off"])
def test_a_bad_shard_is_not_built_upon(bucket: MemoryStore, time: Time, damage: str) -> None:
    filled(bucket, time)
    process = Process.start(bucket, time, "p")
    process.index.compile(full=True)
    key = KEYS.shard("5e")
    lines = lines_of(bucket, key)
    assert len(lines) > 1
    changed = {"missing": [], "lost": lines[1:], "order": lines[::-1], "cut off": [*lines, b"x"]}[damage]
    bucket.put(key, b"".join(changed))
    if damage == "missing":
        bucket.delete(key)
    with pytest.raises(Corrupt):
        reshard(process.whole, 3, quiesced=True)
    assert manifest_of(bucket).depth == 2
    assert {*shard_ids(2)} - shards_in(bucket) == ({"5e"} if damage == "missing" else set())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_crash_at_any_write_is_completed_by_the_next_run(before: int, after: int) -> None:
    """Around the swap of the manifest at every write, elsewhere at some."""
    writes = _writes(before, after)
    commit = [at for at, key in enumerate(writes, 1) if key == KEYS.manifest][-2]
    points = {*range(1, len(writes), 19), *range(commit - 3, commit + 8), *range(len(writes) - 2, len(writes) + 2)}
    seen: set[tuple[int, bool]] = set()
    for number in sorted(points):
        time = Time()
        bucket = MemoryStore(ManualRuntime(time))
        model = filled(bucket, time, depth=before)
        depths: list[int] = []

        def act(whole: WholeIndex, bucket: MemoryStore = bucket, depths: list[int] = depths) -> None:
            depths.append(manifest_of(bucket).depth)
            reshard(whole, after, quiesced=True)

        died = until_done(bucket, time, act, number)
        assert died is (number <= len(writes))
        demand(bucket, time, model, after)
        seen.add((depths[-1], died))
    assert seen == {(before, True), (after, True), (before, False)}


def _writes(before: int, after: int) -> list[str]:
    """The keys that a reshard writes or deletes, in order."""
    time = Time()
    bucket = MemoryStore(ManualRuntime(time))
    filled(bucket, time, depth=before)
    process = Process.start(bucket, time, "p")
    writes: list[str] = []
    process.store.before = lambda verb, key: writes.append(key) if verb in ("put", "delete") else None
    reshard(process.whole, after, quiesced=True)
    return writes


@pytest.mark.usefixtures("small")
def test_after_a_crash_people_may_go_on_and_reshard_later(bucket: MemoryStore, time: Time) -> None:
    """What the first run left is older than what was put since; nothing of it counts."""
    model = filled(bucket, time, depth=1)
    first = Process.start(bucket, time, "first")
    first.die_at_write(200)
    with pytest.raises(Killed):
        reshard(first.whole, 2, quiesced=True)
    time.sleep(400.0)
    assert len(shards_in(bucket) - {*shard_ids(1)}) > 100
    index = Process.start(bucket, time, "worker").index
    index.put(Rec("k1", "since"))
    index.delete("k3")
    index.compile(full=True)
    del model["k3"]
    model |= {"k1": "since"}
    assert records_of(index) == model
    reshard(Process.start(bucket, time, "second").whole, 2, quiesced=True)
    demand(bucket, time, model, 2)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("undo", ["reshard", "verify"])
def test_a_half_done_one_can_be_undone(bucket: MemoryStore, time: Time, undo: str) -> None:
    model = filled(bucket, time, depth=1)
    first = Process.start(bucket, time, "first")
    first.die_at_write(200)
    with pytest.raises(Killed):
        reshard(first.whole, 2, quiesced=True)
    time.sleep(400.0)
    process = Process.start(bucket, time, "second")
    if undo == "reshard":
        assert reshard(process.whole, 1, quiesced=True).removed > 100
    else:
        assert not verify(process.whole).ok
        assert verify(process.whole, repair=True).ok
    assert [*bucket.list(KEYS.packs)] == []  # whatever was there is covered by the shards
    demand(bucket, time, model, 1)


def test_a_write_of_an_earlier_run_that_comes_late_is_refused(bucket: MemoryStore, time: Time) -> None:
    """The first run died before its put of a new shard had arrived; it arrives when the second has written it."""
    filled(bucket, time)
    first = Process.start(bucket, time, "first")
    key = KEYS.shard("5e0")
    sent: list[tuple[bytes, Any]] = []
    real = bucket.put

    def put(key_: Any, data: bytes, *, when: Any = None) -> Any:
        if key_ == key and not sent:
            sent.append((data, when))
            raise OutcomeUnknown("no answer")
        return real(key_, data, when=when)

    bucket.put = put  # type: ignore[method-assign, assignment]
    with pytest.raises(OutcomeUnknown):
        reshard(first.whole, 3, quiesced=True)
    bucket.put = real  # type: ignore[method-assign]
    reshard(Process.start(bucket, time, "second").whole, 3, quiesced=True)
    [(data, when)] = sent
    with pytest.raises(Conflict):
        bucket.put(key, data, when=when)


@pytest.mark.parametrize("key", [KEYS.shard("5e"), KEYS.shard("5e0")])
def test_a_shard_written_meanwhile_stops_it_before_the_swap(bucket: MemoryStore, time: Time, key: Any) -> None:
    model = filled(bucket, time)
    process = Process.start(bucket, time, "p")

    def before(verb: str, at: str) -> None:
        if (verb, at) == ("put", KEYS.shard("fff")):
            bucket.put(key, bucket.get(key).data)

    process.store.before = before
    with pytest.raises(Conflict, match=f"{key} was changed"):
        reshard(process.whole, 3, quiesced=True)
    assert manifest_of(bucket).depth == 2
    assert records_of(Process.start(bucket, time, "q").index) == model


def test_a_compile_of_a_forgotten_compiler_stops_it(bucket: MemoryStore, time: Time) -> None:
    filled(bucket, time)
    process = Process.start(bucket, time, "p")
    forgotten = Process.start(bucket, time, "forgotten")
    forgotten.index.put(Rec("late", "x"))

    def after(verb: str, at: str) -> None:
        if (verb, at) == ("list", KEYS.packs):
            process.store.after = lambda verb, key: None
            forgotten.index.put(Rec("later", "x"))
            forgotten.index.compile(full=True)

    process.store.after = after
    reshard(process.whole, 3, quiesced=True)
    assert records_of(Process.start(bucket, time, "q").index)["later"] == "x"


def test_what_a_forgotten_program_wrote_by_the_old_depth_is_brought_home(bucket: MemoryStore, time: Time) -> None:
    """It put a record after the last look at the inbox, and folded another into an old shard after the swap."""
    model = filled(bucket, time)
    process = Process.start(bucket, time, "p")
    forgotten = Process.start(bucket, time, "forgotten")
    assert forgotten.index.manifest.depth == 2

    def before(verb: str, at: str) -> None:
        if (verb, at) == ("put", KEYS.manifest):
            process.store.before = lambda verb, key: None
            forgotten.index.put(Rec("late", "x"))

    time.sleep(1.0)
    process.index.compile(full=True)
    process.store.before = before
    reshard(process.whole, 3, quiesced=True)
    demand_records(bucket, time, model | {"late": "x"})


def demand_records(bucket: MemoryStore, time: Time, model: dict[str, str | None]) -> None:
    judge = Process.start(bucket, time, "judge")
    assert verify(judge.whole).findings == []
    assert records_of(judge.index) == model


def test_an_old_shard_that_changed_after_the_swap_stays_until_its_records_are_home(
    bucket: MemoryStore, time: Time
) -> None:
    model = filled(bucket, time)
    process = Process.start(bucket, time, "p")
    schema = manifest_of(bucket).schema
    key = KEYS.shard(shard_id("late"))

    def after(verb: str, at: str) -> None:
        if (verb, at) == ("put", KEYS.manifest) and manifest_of(bucket).depth == 3:
            process.store.after = lambda verb, key: None
            bucket.put(key, schema.line({"key": "late", "text": "x"}, OLD, where="") + b"\n")

    process.store.after = after
    with pytest.raises(OutcomeUnknown):
        reshard(process.whole, 3, quiesced=True)
    assert bucket.get(key).data != MOVED
    reshard(Process.start(bucket, time, "again").whole, 3, quiesced=True)
    demand_records(bucket, time, model | {"late": "x"})


def test_nobody_builds_on_a_shard_that_has_moved() -> None:
    schema = Process.start(MemoryStore(ManualRuntime()), Time(), "p").index.manifest.schema
    assert not inspect(MOVED, schema, 2, "5e").readable


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_cost(bucket: MemoryStore, time: Time, before: int, after: int) -> None:
    process = Process.start(bucket, time, "p", depth=before)
    process.index.put_many([Rec(f"k{n}") for n in range(20)])
    process.index.compile(full=True)
    time.sleep(400.0)
    with process.store.measure() as cost:
        reshard(process.whole, after, quiesced=True)
    old, new = 16**before, 16**after
    # lock: 2 puts; the clock; the swap and the mark that it is described; the data package; old shards swapped, deleted
    assert cost.requests["put"] == new + old + 2 + 1 + 2 + 1
    assert cost.requests["delete"] == old
    assert cost.requests["get"] <= old + 12
    assert cost.requests["list"] <= 12 + 4 * (old + new) // 1000


@pytest.mark.usefixtures("small")
def test_on_every_store(fleet: Fleet) -> None:
    index = fleet.index(NAME, Rec, key="key", depth=1)
    index.put_many([Rec(f"k{n}", str(n)) for n in range(30)])
    index.delete("k0")
    report = reshard(whole_of(index), 2, quiesced=True)
    assert (report.records, report.shards, report.removed) == (30, 256, 16)
    fresh = fleet.index(NAME, Rec, key="key")
    assert records_of(fresh) == {f"k{n}": str(n) for n in range(1, 30)}
    assert verify(whole_of(fresh)).findings == []
    assert reshard(whole_of(fresh), 2, quiesced=True).removed == 0
