"""An index that is dropped: what goes, who prevents it, and when its name can be used again."""

from __future__ import annotations

from contextlib import suppress

import pytest

from limpet.index.compiler import LOCK_TTL_S
from limpet.index.index import REFRESH_S
from limpet.index.maintain.drop import REST_S
from limpet.kernel.drop import LOCK_TTL_S as DROP_TTL_S
from limpet.kernel.drop import SETTLE_S
from limpet.kernel.errors import Conflict, Corrupt, Missing, Unsupported
from limpet.kernel.keys import Key
from limpet.kernel.lease import Lease, Lock
from limpet.kernel.store import MemoryStore
from support.clock import Time
from support.index import KEYS, Killed, Process, Rec, keys_in, objects, records_of


def filled(bucket: MemoryStore, time: Time, owner: str = "p") -> Process:
    """Three compiled records and one that waits."""
    process = Process.start(bucket, time, owner)
    process.index.put_many([Rec(f"k{n}", str(n)) for n in range(3)])
    process.index.compile(full=True)
    process.index.put(Rec("waits", "w"))
    return process


def left(bucket: MemoryStore) -> list[str]:
    return [stat.key for stat in bucket.list(KEYS.root)]


def test_everything_goes_and_the_name_can_be_used_again_when_all_have_noticed(bucket: MemoryStore, time: Time) -> None:
    assert REST_S > REFRESH_S
    process, late = filled(bucket, time), Process.start(bucket, time, "late")
    assert late.index.get("k1") is not None
    shown = process.index.drop(dry_run=True)
    assert shown.counts == {"records": 3, "inbox": 1}
    report = process.index.drop()
    assert (report.removed, left(bucket)) == (shown.objects, [])
    late.index.put(Rec("late", "x"))  # it has the index open, and does not know
    with pytest.raises(Conflict, match="the index 'recs' was dropped at 00:16:40 UTC, and who had it open may still"):
        process.index.put(Rec("new", "n"))
    time.sleep(REFRESH_S)
    with pytest.raises(Conflict, match="was dropped"):
        late.index.put(Rec("late", "y"))
    assert len(left(bucket)) == 1
    assert Process.start(bucket, time, "q").index.drop().dropped  # what came late may be dropped, too
    time.sleep(REST_S + 2)
    process.index.put(Rec("new", "n"))
    assert records_of(process.index) == records_of(late.index) == {"new": "n"}


def test_what_came_late_goes_before_the_index_is_made_anew(bucket: MemoryStore, time: Time) -> None:
    process, late = filled(bucket, time), Process.start(bucket, time, "late")
    assert late.index.get("k1") is not None
    process.index.drop()
    late.index.put(Rec("k1", "late"))
    time.sleep(REST_S + 2)
    process.index.put(Rec("new", "n"))
    assert records_of(process.index) == {"new": "n"}
    time.sleep(REFRESH_S)
    assert records_of(late.index) == {"new": "n"}


def test_a_quiesced_drop_frees_the_name_at_once_also_afterwards(bucket: MemoryStore, time: Time) -> None:
    for afterwards in (False, True):
        process = filled(bucket, time)
        process.index.drop(quiesced=not afterwards)
        if afterwards:
            process.index.drop(quiesced=True)
        process.index.put(Rec("new", "n"))
        assert records_of(process.index) == {"new": "n"}
        process.index.drop(quiesced=True)
    with pytest.raises(Missing, match="there is no index 'recs'"):
        process.index.drop(quiesced=True)


@pytest.mark.parametrize("key", [KEYS.lock("a3"), KEYS.lock("all")])
def test_a_compiler_or_a_repair_prevents_it(bucket: MemoryStore, time: Time, key: Key) -> None:
    process, other = filled(bucket, time), Process.start(bucket, time, "other")
    lock = Lock(other.store, key, key, LOCK_TTL_S, other.runtime, other.whole.watch)
    lease = lock.try_acquire()
    assert isinstance(lease, Lease)
    before = left(bucket)
    with pytest.raises(Conflict, match=f"the index 'recs' is in use: host:other holds {key}"):
        process.index.drop()
    assert left(bucket) == before
    assert process.index.get("k1") is not None
    lease.release()
    assert process.index.drop().dropped


def test_a_drop_that_dies_at_any_write_is_finished_by_the_next(bucket: MemoryStore, time: Time) -> None:
    number = 1
    while True:
        first = filled(bucket, time, f"first{number}")
        first.die_at_write(number)
        try:
            first.index.drop(quiesced=True)
        except Killed:
            pass
        else:
            break
        reader = Process.start(bucket, time, f"reader{number}")
        if bucket.exists(KEYS.manifest) and b'"dropping":true' in bucket.get(KEYS.manifest).data:
            with pytest.raises(Unsupported, match="the index 'recs' is being dropped"):
                reader.index.get("k1")
        time.sleep(DROP_TTL_S + 400)
        second = Process.start(bucket, time, f"second{number}")
        try:
            assert second.index.drop(quiesced=True).dropped
        except Missing:
            assert not bucket.exists(KEYS.manifest)
        assert left(bucket) == []
        number += 1 if number < 12 else 60
    assert number > 200


def test_in_a_bucket_it_waits_for_late_deletes(bucket: MemoryStore, time: Time) -> None:
    process = filled(bucket, time)
    process.store.far = True
    began_s = time.now_s
    process.index.drop()
    assert time.now_s - began_s >= SETTLE_S


def test_a_compiler_that_began_before_brings_nothing_back(bucket: MemoryStore, time: Time) -> None:
    process, late = filled(bucket, time), Process.start(bucket, time, "late")
    for key in keys_in("a3", 3):
        late.index.put(Rec(key, "x"))
    dropped: list[bool] = []

    def drop_meanwhile(verb: str, key: str) -> None:
        if verb == "put" and key.endswith(".lock") and not dropped:
            dropped.append(True)
            process.index.drop(quiesced=True)

    late.store.before = drop_meanwhile
    with suppress(Corrupt, Missing, Unsupported):
        late.index.compile(full=True)
    assert dropped
    process.index.put(Rec("new", "n"))
    assert records_of(process.index) == {"new": "n"}


def test_files_of_another_program_are_not_dropped(bucket: MemoryStore, time: Time) -> None:
    process = Process.start(bucket, time, "p")
    bucket.put(KEYS.shard("a3"), b"theirs")
    with pytest.raises(Missing):
        process.index.drop()
    bucket.put(KEYS.manifest, b'{"theirs": true}')
    with pytest.raises(Corrupt):
        process.index.drop()
    assert objects(bucket, "shards") == [KEYS.shard("a3")]
