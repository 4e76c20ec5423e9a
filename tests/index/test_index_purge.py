"""`purge`: tombstones go, nothing else does, and only when nobody could bring a deleted record back."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from limpet.app import Fleet
from limpet.index.compiler import LOCK_TTL_S
from limpet.index.decide import shard_id
from limpet.index.maintain.offline import purge
from limpet.index.maintain.verify import verify
from limpet.kernel.errors import Conflict, Corrupt, Held, Invalid
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
    until_done,
    whole_of,
)

KEPT = {"k3": "3", "k4": "4", "waits": "w"}


def filled(bucket: MemoryStore, time: Time) -> Process:
    """Five records, three of them deleted: two compiled, one a day later and not compiled yet; and one that waits."""
    process = Process.start(bucket, time, "filler")
    process.index.put_many([Rec(f"k{n}", str(n)) for n in range(5)])
    process.index.delete("k0")
    process.index.delete("k1")
    process.index.compile(full=True)
    time.sleep(86400.0)
    process.index.delete("k2")
    process.index.put(Rec("waits", "w"))
    return Process.start(bucket, time, "p")


def tombstones(bucket: MemoryStore) -> int:
    """How many there are in the shards."""
    schema = manifest_of(bucket).schema
    keys = [stat.key for stat in bucket.list(KEYS.shards) if stat.key.endswith(".usv")]
    lines = [line for key in keys for line in lines_of(bucket, key) if line.endswith(b"\n")]
    return sum(schema.is_tombstone(line[:-1]) for line in lines)


def test_all_of_them(bucket: MemoryStore, time: Time) -> None:
    process = filled(bucket, time)
    report = purge(process.whole, quiesced=True)
    assert (report.dropped, report.kept, report.shards) == (3, 0, 3)
    assert tombstones(bucket) == 0
    fresh = Process.start(bucket, time, "q")
    assert records_of(fresh.index) == KEPT
    assert verify(fresh.whole).findings == []
    assert sum(manifest_of(bucket).records) == 3
    fresh.index.put(Rec("k0", "again"))
    fresh.index.compile(full=True)
    assert records_of(fresh.index) == KEPT | {"k0": "again"}


def test_those_of_a_certain_age(bucket: MemoryStore, time: Time) -> None:
    process = filled(bucket, time)
    report = purge(process.whole, quiesced=True, older_than_s=3600.0)
    assert (report.dropped, report.kept) == (2, 1)
    assert tombstones(bucket) == 1
    index = Process.start(bucket, time, "q").index
    assert records_of(index) == KEPT
    assert index.get("k2") is None
    again = purge(Process.start(bucket, time, "r").whole, quiesced=True, older_than_s=3600.0)
    assert (again.dropped, again.kept, again.shards) == (0, 1, 0)


def test_only_when_nobody_is_at_work(bucket: MemoryStore, time: Time) -> None:
    process = filled(bucket, time)
    with process.store.measure() as cost, pytest.raises(Invalid, match="requires that no other process uses") as error:
        purge(process.whole)
    assert "--quiesced" in error.value.hint
    with pytest.raises(Invalid, match="cannot be negative"):
        purge(process.whole, quiesced=True, older_than_s=-1.0)
    assert cost.requests == {}


@pytest.mark.parametrize("shard", ["5e", "all"])
def test_somebody_at_work(bucket: MemoryStore, time: Time, shard: str) -> None:
    process = filled(bucket, time)
    other = Process.start(bucket, time, "other")
    key = KEYS.lock(shard)
    Lock(other.store, key, key, LOCK_TTL_S, other.runtime, other.whole.watch, look_first=True).acquire()
    before = contents(bucket)
    with pytest.raises(Held, match="host:other"):
        purge(process.whole, quiesced=True)
    assert contents(bucket) == before


def test_another_compiler_wins_a_shard(bucket: MemoryStore, time: Time) -> None:
    process = filled(bucket, time)
    key = KEYS.shard(shard_id("waits"))

    def before(verb: str, at: str) -> None:
        if (verb, at) == ("put", key):
            bucket.put(key, bucket.get(key).data)

    process.store.before = before
    with pytest.raises(Conflict, match="another process compiled"):
        purge(process.whole, quiesced=True)
    assert tombstones(bucket) == 3


def test_something_waits_all_the_same(bucket: MemoryStore, time: Time) -> None:
    """A writer that was forgotten: an older record of a deleted key may come."""
    process = filled(bucket, time)
    forgotten = Process.start(bucket, time, "forgotten")

    def before(verb: str, key: str) -> None:
        if (verb, key) == ("list", KEYS.inbox) and tombstones(bucket) == 3:
            forgotten.index.put(Rec("late", "x"))

    process.store.before = before
    with pytest.raises(Conflict, match="still waits"):
        purge(process.whole, quiesced=True)
    assert tombstones(bucket) == 3


def test_a_stray_may_hold_what_was_deleted(bucket: MemoryStore, time: Time) -> None:
    """Brought home after the purge, its older record would be alive again."""
    process = filled(bucket, time)
    old = process.index.manifest.schema.line({"key": "k0", "text": "0"}, "2020-01-01T00:00:00.000000Z", where="")
    bucket.put(KEYS.shard(shard_id("k0", 3)), old + b"\n")
    with pytest.raises(Conflict, match="another depth") as error:
        purge(process.whole, quiesced=True)
    assert "verify --repair" in error.value.hint
    assert tombstones(bucket) == 3
    assert verify(process.whole, repair=True).ok
    assert purge(process.whole, quiesced=True).dropped == 3
    assert records_of(Process.start(bucket, time, "q").index) == KEPT


@pytest.mark.parametrize("damage", ["missing", "lost", "cut off"])
def test_a_bad_shard_stops_it(bucket: MemoryStore, time: Time, damage: str) -> None:
    process = filled(bucket, time)
    process.index.put_many([Rec(key) for key in keys_in("5e", 2)])
    process.index.compile(full=True)
    key = KEYS.shard("5e")
    lines = lines_of(bucket, key)
    bucket.put(key, b"".join(lines[1:] if damage == "lost" else [*lines, b"x"]))
    if damage == "missing":
        bucket.delete(key)
    told = manifest_of(bucket)
    with pytest.raises(Corrupt):
        purge(process.whole, quiesced=True)
    assert tombstones(bucket) == 3
    assert manifest_of(bucket) == told


def test_counts_are_lowered_before_shards_shrink(bucket: MemoryStore, time: Time) -> None:
    """At every moment a compiler that starts finds no fewer records than the manifest says."""
    process = filled(bucket, time)
    shrunk: list[str] = []

    def after(verb: str, key: str) -> None:
        manifest = manifest_of(bucket)
        for shard in {shard_id(f"k{n}") for n in range(5)}:
            count = manifest.count(shard)
            assert count is not None
            there = len(lines_of(bucket, KEYS.shard(shard)))
            assert there >= count.records, (verb, key)
            if there == count.records == 0:
                shrunk.append(shard)

    process.store.after = after
    assert purge(process.whole, quiesced=True).dropped == 3
    assert shrunk


def test_a_slow_compiler_cannot_put_its_counts_back(bucket: MemoryStore, time: Time) -> None:
    """It has folded a tombstone, and says so only when that is gone."""
    process, slow = filled(bucket, time), Process.start(bucket, time, "slow")
    slow.index.delete("k4")
    looks: list[str] = []

    def before(verb: str, key: str) -> None:
        if (verb, key) == ("get", KEYS.manifest):
            looks.append(key)
            if len(looks) == 2:  # the first began the run, this one is to note what it counted
                assert purge(process.whole, quiesced=True).dropped == 4

    slow.store.before = before
    slow.index.compile(full=True)
    assert len(looks) == 2
    fresh = Process.start(bucket, time, "q")
    assert verify(fresh.whole).ok
    fresh.index.put(Rec("k4", "again"))
    assert fresh.index.compile(full=True).folded == 1


def test_a_shard_written_meanwhile_is_not_overwritten(bucket: MemoryStore, time: Time) -> None:
    process = filled(bucket, time)
    key = KEYS.shard(shard_id("k0"))
    gets: list[str] = []

    def before(verb: str, at: str) -> None:
        if (verb, at) == ("get", key):
            gets.append(at)
            if len(gets) == 2:  # the second look, after the counts were lowered
                bucket.put(key, bucket.get(key).data)

    process.index.compile(full=True)
    process.store.before = before
    with pytest.raises(Conflict, match="was written while"):
        purge(process.whole, quiesced=True)
    assert len(gets) == 2
    assert verify(Process.start(bucket, time, "q").whole).ok
    assert purge(Process.start(bucket, time, "r").whole, quiesced=True).dropped in (1, 2, 3)
    assert records_of(Process.start(bucket, time, "s").index) == KEPT


def test_a_crash_at_any_write_is_completed_by_the_next_run() -> None:
    died = 0
    for number in count(1):
        time = Time()
        bucket = MemoryStore(ManualRuntime(time))
        filled(bucket, time)

        def act(whole: Any) -> None:
            purge(whole, quiesced=True)

        more = until_done(bucket, time, act, number)
        assert tombstones(bucket) == 0
        fresh = Process.start(bucket, time, "judge")
        assert verify(fresh.whole).ok
        assert records_of(fresh.index) == KEPT
        if not more:
            break
        died += 1
    assert died > 10


def test_between_a_crash_and_the_next_run_the_index_works() -> None:
    for number in range(1, 14):
        time = Time()
        bucket = MemoryStore(ManualRuntime(time))
        first = filled(bucket, time)
        first.die_at_write(number)
        with pytest.raises(Killed):
            purge(first.whole, quiesced=True)
        time.sleep(400.0)
        index = Process.start(bucket, time, "worker").index
        index.put(Rec("k0", "again"))
        index.compile(full=True)
        time.sleep(400.0)
        assert index.compile(full=True).held == 0  # a lock of the dead one is taken over at the second look
        assert records_of(index) == KEPT | {"k0": "again"}
        assert verify(whole_of(index)).ok


def test_cost(bucket: MemoryStore, time: Time) -> None:
    process = filled(bucket, time)
    process.index.compile(full=True)
    time.sleep(400.0)
    with process.store.measure() as cost:
        report = purge(process.whole, quiesced=True)
    assert report.shards == 3
    # the lock twice, the clock once, the manifest before and after, each shard that shrinks once
    assert cost.requests["put"] == 2 + 1 + 2 + 3
    assert "delete" not in cost.requests
    assert cost.requests["get"] <= 256 + 3 + 8
    assert cost.requests["list"] <= 12


def test_on_every_store(fleet: Fleet) -> None:
    index = fleet.index(NAME, Rec, key="key")
    index.put_many([Rec(f"k{n}", str(n)) for n in range(30)])
    for n in range(10):
        index.delete(f"k{n}")
    report = purge(whole_of(index), quiesced=True)
    assert (report.dropped, report.kept) == (10, 0)
    fresh = fleet.index(NAME, Rec, key="key")
    assert records_of(fresh) == {f"k{n}": str(n) for n in range(10, 30)}
    assert verify(whole_of(fresh)).findings == []
    assert purge(whole_of(fresh), quiesced=True).dropped == 0
