"""One suite for every store: reads, writes, conditions, bodies, names, batches, the clock."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime, timedelta

import pytest

from limpet.kernel.errors import Conflict, Corrupt, Invalid, LimpetError, Missing, NotModified
from limpet.kernel.keys import Key
from limpet.kernel.store import Absent, Blob, Match, Put, Store, Version

K = Key("room/thing.json")
ABSENT = Key("room/absent.json")
OTHER = Version('"d41d8cd98f00b204e9800998ecf8427e"')

NASTY = [
    "a b", "a%20b", "a+b", "a%2Bb", "a/b", "a%2Fb", "a%252Fb", "a#b", "a?b", "a?x=1&y=2", "a*b", "a&b", "a&amp;b",
    'a"b', "a'b", "a~b", "a=b", "a=2fb", "a:b;c|d", "<a>", "{a}[b]^c`d@e!f$g(h),i", "é", "e\u0301", "Straße/ключ/中文",
    "STRASSE", "strasse", "😀/🎉", "\U0010ffff", "trail.", "trail..", "trail", "TRAIL", " lead", "end ", ".hidden",
    "...", "..x/y", "%", "%%", "%zz", "%00", "%2e%2e/x", "con/nul.txt", "index.html", "-", "a.json", "s" * 200,
    "p/" + "q" * 230, "/".join(["z" * 98] * 9),
]  # fmt: skip
REFUSED = [
    "", "/", "/a", "a/", "a//b", "a\\b", "a\uffffb", ".uploads/a", "a/b.versions/c", ".", "..", "a/../b", "a/./b",
    "a\nb", "a\x00b", "\x7f", "\ud800", "k" * 901,
]  # fmt: skip


class TestReadAndWrite:
    def test_a_get_returns_what_was_put(self, store: Store) -> None:
        version = store.put(K, b"one")
        found = store.get(K)
        assert (found.data, found.version, found.size) == (b"one", version, 3)

    def test_a_second_put_replaces_the_first(self, store: Store) -> None:
        first = store.put(K, b"one")
        second = store.put(K, b"twenty")
        assert first != second
        assert (store.get(K).data, store.head(K).size, store.head(K).version) == (b"twenty", 6, second)

    def test_every_verb_tells_the_same_version_size_and_time(self, store: Store) -> None:
        version = store.put(K, b"one")
        blob, stat, [listed] = store.get(K), store.head(K), [*store.list("room")]
        assert {version, blob.version, stat.version, listed.version} == {version}
        assert store.get(K, range=(1, 2)).version == version
        assert (stat.key, listed.key) == (K, K)
        assert blob.size == stat.size == listed.size == 3
        times = [blob.modified, stat.modified, listed.modified]
        assert max(times) - min(times) < timedelta(seconds=1)  # F14: RGW tells milliseconds in listings only

    def test_times_are_in_utc_and_recent(self, store: Store) -> None:
        store.put(K, b"one")
        modified = store.head(K).modified
        assert modified.utcoffset() == timedelta(0)
        assert abs(datetime.now(UTC) - modified) < timedelta(minutes=5)

    def test_what_is_not_there_is_missing(self, store: Store) -> None:
        with pytest.raises(Missing):
            store.get(K)
        with pytest.raises(Missing):
            store.head(K)
        with pytest.raises(Missing):
            store.get(K, if_match=OTHER)
        with pytest.raises(Missing):
            store.get(K, range=(0, 1))

    def test_a_folder_is_not_an_object(self, store: Store) -> None:
        store.put(Key("room/inner/x"), b"1")
        for key in (Key("room"), Key("room/inner")):
            with pytest.raises(Missing):
                store.get(key)
            with pytest.raises(Missing):
                store.head(key)
            store.delete(key)
        assert store.get(Key("room/inner/x")).data == b"1"

    def test_delete_is_idempotent(self, store: Store) -> None:
        store.put(K, b"one")
        store.delete(K)
        store.delete(K)
        with pytest.raises(Missing):
            store.get(K)

    def test_delete_in_order(self, store: Store) -> None:
        keys = [Key("a/entry/task.json"), Key("a/entry/missing.json"), Key("a/entry/lease.json")]
        stays = Key("a/other/task.json")
        for key in (keys[0], keys[2], stays):
            store.put(key, b"one", when=Absent())
        for _ in range(2):
            store.delete_in_order(keys)
            assert [stat.key for stat in store.list("a")] == [stays]

    def test_a_deleted_name_can_be_created_again(self, store: Store) -> None:
        store.put(K, b"one", when=Absent())
        store.delete(K)
        store.put(K, b"two", when=Absent())
        assert store.get(K).data == b"two"

    @pytest.mark.parametrize("size", [0, 1, 1 << 10, (1 << 20) + 1, 64 << 20])
    def test_bodies_of_all_sizes(self, store: Store, size: int) -> None:
        data = (os.urandom(1 << 10) * (size // (1 << 10) + 1))[:size]
        version = store.put(K, data, when=Absent())
        found = store.get(K, size_max=size)
        assert (found.size, found.version) == (size, version)
        assert hashlib.sha256(found.data).digest() == hashlib.sha256(data).digest()
        assert store.put(K, data + b"!", when=Match(version)) == store.head(K).version
        assert store.head(K).size == size + 1

    def test_an_object_larger_than_its_reader_allows_is_not_read(self, store: Store) -> None:
        store.put(K, b"123456789")
        with pytest.raises(Corrupt, match="has 9 bytes, more than the 8"):
            store.get(K, size_max=8)
        assert store.get(K, size_max=9).data == b"123456789"
        assert store.get(K, size_max=2, range=(0, 4)).data == b"1234"
        some = store.get_many([K, ABSENT], size_max=8)
        assert isinstance(some[K], Corrupt)
        assert isinstance(some[ABSENT], Missing)


class TestRanges:
    @pytest.mark.parametrize(
        ("range_", "expected"), [((0, 1), b"0"), ((3, 7), b"3456"), ((0, 10), b"0123456789"), ((8, 1000), b"89")]
    )
    def test_a_range_is_cut_at_the_end(self, store: Store, range_: tuple[int, int], expected: bytes) -> None:
        version = store.put(K, b"0123456789")
        found = store.get(K, range=range_)
        assert (found.data, found.version, found.size) == (expected, version, 10)

    @pytest.mark.parametrize("range_", [(10, 11), (99, 100), (3, 3), (5, 2), (-1, 2)])
    def test_a_range_past_the_end_or_empty_is_invalid(self, store: Store, range_: tuple[int, int]) -> None:
        store.put(K, b"0123456789")
        with pytest.raises(Invalid):
            store.get(K, range=range_)

    def test_an_empty_object_has_no_range(self, store: Store) -> None:
        store.put(K, b"")
        with pytest.raises(Invalid):
            store.get(K, range=(0, 1))

    def test_a_range_of_a_version_that_is_gone_conflicts(self, store: Store) -> None:
        first = store.put(K, b"0123456789")
        assert store.get(K, range=(0, 2), if_match=first).data == b"01"
        store.put(K, b"9876543210")
        with pytest.raises(Conflict):
            store.get(K, range=(0, 2), if_match=first)


class TestConditions:
    def test_a_create_wins_once(self, store: Store) -> None:
        first = store.put(K, b"one", when=Absent())
        with pytest.raises(Conflict):
            store.put(K, b"two", when=Absent())
        with pytest.raises(Conflict):
            store.put(K, b"one", when=Absent())
        assert (store.get(K).data, store.get(K).version) == (b"one", first)

    def test_a_swap_needs_the_version_that_is_there(self, store: Store) -> None:
        first = store.put(K, b"one")
        second = store.put(K, b"two", when=Match(first))
        with pytest.raises(Conflict):
            store.put(K, b"three", when=Match(first))
        with pytest.raises(Conflict):
            store.put(K, b"three", when=Match(OTHER))
        assert (store.get(K).data, store.get(K).version) == (b"two", second)
        store.put(K, b"three", when=Match(second))

    def test_a_swap_on_the_version_that_a_head_or_a_list_told(self, store: Store) -> None:
        store.put(K, b"one")
        store.put(K, b"two", when=Match(store.head(K).version))
        [listed] = store.list("room")
        store.put(K, b"three", when=Match(listed.version))
        assert store.get(K).data == b"three"

    def test_a_swap_on_a_missing_object_conflicts(self, store: Store) -> None:
        with pytest.raises(Conflict):
            store.put(K, b"one", when=Match(OTHER))
        version = store.put(K, b"one")
        store.delete(K)
        with pytest.raises(Conflict):
            store.put(K, b"two", when=Match(version))
        with pytest.raises(Missing):
            store.get(K)

    def test_reads_with_conditions(self, store: Store) -> None:
        first = store.put(K, b"one")
        assert store.get(K, if_match=first).data == b"one"
        with pytest.raises(NotModified):
            store.get(K, if_none_match=first)
        second = store.put(K, b"two")
        assert store.get(K, if_none_match=first).version == second
        with pytest.raises(Conflict):
            store.get(K, if_match=first)

    def test_a_refused_put_leaves_no_trace(self, store: Store) -> None:
        version = store.put(K, b"one")
        for when in (Absent(), Match(OTHER)):
            with pytest.raises(Conflict):
                store.put(K, b"refused", when=when)
        [only] = store.list()
        assert (only.key, only.version) == (K, version)

    def test_a_version_may_return_with_its_bytes(self, store: Store) -> None:
        """A-B-A: S3's ETag is a digest, so a swap back to the same bytes may bring the old version back.

        Whoever must tell the two apart puts something unique into the body, as cells do (F15).
        """
        first = store.put(K, b"A")
        second = store.put(K, b"B", when=Match(first))
        store.put(K, b"A", when=Match(second))
        with pytest.raises(Conflict):
            store.put(K, b"C", when=Match(second))
        assert store.get(K).data == b"A"


class TestNames:
    def test_nasty_names_are_kept_apart_and_told_back(self, store: Store) -> None:
        keys = [Key(f"n/{name}") for name in NASTY]
        put = store.put_many(Put(key, key.encode(), Absent()) for key in keys)
        assert [error for error in put.values() if isinstance(error, LimpetError)] == []
        got = store.get_many(keys)
        assert {key: blob.data for key, blob in got.items() if isinstance(blob, Blob)} == {k: k.encode() for k in keys}
        assert [stat.key for stat in store.list("n")] == sorted(keys, key=str.encode)
        assert [store.head(key).key for key in keys] == keys
        assert [error for error in store.delete_many(keys).values() if error] == []
        assert [*store.list()] == []

    def test_an_object_and_a_folder_of_one_name(self, store: Store) -> None:
        for key in ("k", "k/x", "k/x/y", "k.json", "k.json/x"):
            store.put(Key(key), key.encode(), when=Absent())
        assert [stat.key for stat in store.list()] == ["k", "k.json", "k.json/x", "k/x", "k/x/y"]
        store.delete(Key("k"))
        assert store.get(Key("k/x")).data == b"k/x"
        store.delete(Key("k/x/y"))
        assert store.get(Key("k/x")).data == b"k/x"

    def test_a_long_segment_is_not_written_though_a_bucket_may_have_it(self, store: Store) -> None:
        """Other programs write such names into a bucket: the values of a partition of a table."""
        key = Key(f"warehouse/city={'%D0%9F' * 30}/x.parquet")
        with pytest.raises(Invalid, match="too long"):
            store.put(key, b"1")
        with pytest.raises((Invalid, Missing)):
            store.get(key)

    @pytest.mark.parametrize("name", REFUSED)
    def test_names_that_no_store_can_hold_are_refused_alike(self, store: Store, name: str) -> None:
        key = Key(name)
        for call in (
            lambda: store.get(key),
            lambda: store.head(key),
            lambda: store.put(key, b"1"),
            lambda: store.delete(key),
        ):
            with pytest.raises(Invalid) as refused:
                call()
            assert len(str(refused.value).splitlines()) == 1
        if name not in ("", "a/"):
            with pytest.raises(Invalid):
                [*store.list(name)]
            with pytest.raises(Invalid):
                store.list_dirs(name)
            with pytest.raises(Invalid):
                store.sample(name, 1)


class TestBatches:
    def test_each_key_has_its_own_result(self, store: Store) -> None:
        store.put(Key("b/taken"), b"0")
        free, taken, bad = Key("b/free"), Key("b/taken"), Key("b//bad")
        put = store.put_many([Put(free, b"1", Absent()), Put(taken, b"1", Absent()), Put(bad, b"1")])
        assert put[free] == store.head(free).version
        assert isinstance(put[taken], Conflict)
        assert isinstance(put[bad], Invalid)
        got = store.get_many([free, taken, Key("b/none")])
        assert [blob.data if isinstance(blob, Blob) else type(blob) for blob in got.values()] == [b"1", b"0", Missing]
        deleted = store.delete_many([free, Key("b/none"), bad])
        assert (deleted[free], deleted[Key("b/none")]) == (None, None)
        assert isinstance(deleted[bad], Invalid)
        assert [stat.key for stat in store.list()] == [taken]

    def test_nothing_asked_nothing_done(self, store: Store) -> None:
        assert (store.get_many([]), store.put_many([]), store.delete_many([])) == ({}, {}, {})

    def test_a_hundred_at_once(self, store: Store) -> None:
        keys = [Key(f"many/{i:03}") for i in range(100)]
        assert set(store.put_many(Put(key, key.encode()) for key in keys)) == set(keys)
        assert [key for key, blob in store.get_many(keys).items() if not isinstance(blob, Blob)] == []
        assert set(store.delete_many(keys).values()) == {None}
        assert [*store.list("many")] == []


class TestClock:
    def test_now_is_a_lower_bound_of_the_stores_clock(self, store: Store) -> None:
        now = store.now()
        store.put(K, b"later")
        assert now <= store.head(K).modified + timedelta(seconds=1)  # F14: LastModified may be whole seconds
        assert abs(datetime.now(UTC) - now) < timedelta(minutes=5)

    def test_now_costs_nothing_after_a_read(self, store: Store) -> None:
        store.put(K, b"one")
        modified = store.get(K).modified
        assert store.now() >= modified
        assert store.now(max_age_s=3600) >= modified
        assert [stat.key for stat in store.list()] == [K]

    def test_now_never_goes_back(self, store: Store) -> None:
        readings = []
        for i in range(5):
            store.put(Key(f"t/{i}"), b"x")
            store.head(Key(f"t/{i}"))
            readings.append(store.now())
        assert readings == sorted(readings)
