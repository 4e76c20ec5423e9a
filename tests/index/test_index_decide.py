"""What the index decides: where a record lives, which of two wins, what a compiler does."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.index import shard_id
from limpet.index.codec import Shape
from limpet.index.decide import (
    DEPTHS,
    FOLD_AGE,
    FOLD_BELOW_BYTES,
    FOLD_PACKS,
    FOLD_SHARE,
    GUESSES,
    PACK_BYTES,
    PACK_SINGLES,
    Merged,
    Step,
    Waiting,
    _among,
    _near,
    digest,
    explains,
    fractions,
    key_of,
    keys_of,
    merge,
    newest,
    next_step,
    packed,
    rank,
    shard_ids,
    shard_of,
    split,
    winners,
)
from limpet.kernel.errors import Corrupt
from support.clock import steady
from support.index import keys_in

SHAPE = Shape(key_column=0, stamp_column=2, deleted_column=3, width=4)
WIDE = Shape(key_column=0, stamp_column=2, deleted_column=3, width=6)


def line(key: str, text: str = "x", stamp: int = 0, gone: int = 0, *later: str) -> bytes:
    """A line as a schema writes it."""
    return "\x1f".join([key, text, f"2026-01-01T00:00:00.{stamp:06}Z", str(gone), *later]).encode()


lines = st.builds(
    line,
    st.sampled_from(["a", "b", "c", "d"]),
    st.sampled_from(["x", "y", "\\N"]),
    st.integers(0, 3),
    st.integers(0, 1),
)


# ---- places ----


@pytest.mark.parametrize("key", ["example.com", "", "é", "a/b", "x" * 5000])
def test_the_shard_of_a_key_is_that_of_the_seed(key: str) -> None:
    def get_shard_id(domain: str) -> str:
        return hashlib.sha256(domain.encode()).hexdigest()[:2]

    assert shard_id(key) == get_shard_id(key)
    assert shard_id(key, 4) == hashlib.sha256(key.encode()).hexdigest()[:4]
    assert shard_of(digest(key.encode()), 3) == shard_id(key, 3)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_the_shards_of_an_index(depth: int) -> None:
    ids = shard_ids(depth)
    assert len(ids) == len({*ids}) == 16**depth
    assert {shard_id(str(n), depth) for n in range(200)} <= {*ids}
    assert ids == sorted(ids)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_how_far_into_its_shard_a_key_lies(depth: int) -> None:
    places = sorted(digest(key.encode()) for key in keys_in("3a", 200))
    places = [place for place in places if shard_of(place, depth) == shard_of(places[0], depth)]
    found = [fractions(place, depth) for place in places]
    assert found == sorted(found)
    assert all(0 <= each < 1 for each in found)
    assert fractions(b"\x3a" + bytes(31), 2) == 0.0
    assert fractions(b"\x3a\x80" + bytes(30), 2) == 0.5
    assert fractions(bytes(7) + b"\x01" + bytes(24), 0) == 2**-64, "the last of 64 bits counts"


def test_the_depths_and_sizes_that_the_format_promises() -> None:
    assert DEPTHS == (2, 3, 4)
    assert PACK_BYTES == 67_108_864


# ---- winners ----


def test_the_later_wins_then_the_tombstone_then_the_greater_bytes() -> None:
    rising = [
        line("a", "z", 1, 0),
        line("a", "a", 2, 0),
        line("a", "b", 2, 0),
        line("a", "\\N", 2, 1),
        line("a", "a", 3, 0),
    ]
    assert sorted(rising, key=lambda each: rank(each, SHAPE)) == rising


def test_a_column_that_came_later_does_not_decide_while_it_is_null() -> None:
    assert rank(line("a", "x", 1, 0, "\\N", "\\N"), WIDE) == rank(line("a", "x", 1, 0), WIDE)
    assert rank(line("a", "x", 1, 0, "\\N", "7"), WIDE) > rank(line("a", "x", 1, 0), WIDE)
    assert rank(line("a", "x", 1, 0, "\\N", "7"), WIDE) > rank(line("a", "x", 1, 0, "\\N", "\\N"), WIDE)


def test_a_line_with_too_few_fields_is_corrupt() -> None:
    key_last = Shape(key_column=2, stamp_column=0, deleted_column=1, width=3)
    for act in (
        lambda: rank(b"a\x1fb", SHAPE),
        lambda: key_of(b"a\x1fb", key_last),
        lambda: keys_of([b"a\x1fb"], key_last),
        lambda: newest([line("a"), b"a"], SHAPE),
    ):
        with pytest.raises(Corrupt, match="too few fields"):
            act()


def test_an_escaped_key_is_the_key_that_was_put() -> None:
    assert key_of(line("a\\n\\x1fb\\\\"), SHAPE) == b"a\n\x1fb\\"
    assert keys_of([line("a\\n"), line("b")], SHAPE) == [b"a\n", b"b"]


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_the_key_is_the_field_that_the_shape_names_and_no_more(at: int) -> None:
    shape = Shape(key_column=at, stamp_column=0, deleted_column=0, width=4)
    assert key_of(b"k0\x1fk1\x1fk2\x1fk3", shape) == b"k%d" % at
    assert keys_of([b"k0\x1fk1\x1fk2\x1fk3", b"j0\x1fj1\x1fj2\x1fj3"], shape) == [b"k%d" % at, b"j%d" % at]


def test_a_line_of_nulls_only_keeps_its_first_field() -> None:
    assert rank(b"\\N\x1f\\N\x1f\\N", Shape(0, 0, 0, 3)) == (b"\\N", b"\\N", b"\\N")
    assert rank(b"\x1f\\N", Shape(0, 0, 0, 2)) == (b"", b"", b""), "an empty key followed by a null"


def test_each_line_has_one_digest() -> None:
    one = line("a", stamp=1)
    for places, some in (([b"p"], [one, one]), ([b"p", b"q"], [one]), ([b"p", b"p", b"p"], [one, one])):
        with pytest.raises(ValueError, match="zip"):
            winners(places, some, SHAPE)


def test_of_two_lines_of_one_rank_the_first_is_kept() -> None:
    """They differ in columns that one of them does not know, which are null in the other."""
    short, long = line("a", "x", 1), line("a", "x", 1, 0, "\\N")
    assert newest([short, long], WIDE) == {digest(b"a"): short}
    assert newest([long, short], WIDE) == {digest(b"a"): long}


@pytest.mark.parametrize(
    ("sizes", "size_max", "wanted"),
    [
        ([], 10, [[]]),
        ([4], 1, [[4]]),
        ([10], 10, [[10]]),
        ([10, 10], 10, [[10], [10]]),
        ([4, 4], 10, [[4, 4]]),
        ([4, 5], 10, [[4], [5]]),
        ([5, 4], 10, [[5], [4]]),
        ([0, 8], 10, [[0, 8]]),
        ([0, 9], 10, [[0], [9]]),
        ([1, 1, 1, 1, 1], 6, [[1, 1, 1], [1, 1]]),
        ([3, 3, 3, 3, 3], 8, [[3, 3], [3, 3], [3]]),
        ([9, 1, 9, 1, 1], 5, [[9], [1], [9], [1, 1]]),
        ([9, 4, 5], 10, [[9], [4], [5]]),
    ],
)
def test_parts_hold_their_lines_with_line_ends_below_the_limit(
    sizes: list[int], size_max: int, wanted: list[list[int]]
) -> None:
    lines = {b"%d" % n: b"." * size for n, size in enumerate(sizes)}
    parts = [*split(lines, size_max)]
    assert [[len(each) for each in part.values()] for part in parts] == wanted
    assert [place for part in parts for place in part] == [*lines]


@pytest.mark.parametrize(
    ("held", "waiting", "single", "pack"),
    [
        ([], [line("a")], False, False),
        ([line("a")], [], False, False),
        ([line("a")], [line("a")], True, True),
        ([line("b")], [line("a")], False, False),
        ([line("a", stamp=2)], [line("a", stamp=1)], False, True),
        ([line("a")], [line("b"), line("a")], True, True),
        ([line("a")], [line("b"), line("c")], False, False),
        ([line("a", "x", 1, 0, "\\N")], [line("a", "x", 1)], True, True),
    ],
)
def test_whether_a_shard_may_hold_what_waits(held: list[bytes], waiting: list[bytes], single: bool, pack: bool) -> None:
    base = newest(held, WIDE)
    assert explains(base, waiting, WIDE, is_pack=False) is single
    assert explains(base, waiting, WIDE, is_pack=True) is pack


# ---- merging ----


def merged(base: bytes, some: list[bytes], shape: Shape = SHAPE) -> bytes:
    return merge(base.split(b"\n")[:-1], newest(some, shape), shape, what="it").data


@steady
@given(st.lists(lines, max_size=12), st.lists(lines, max_size=12), st.data())
def test_merging_does_not_depend_on_order_or_on_how_often(
    one: list[bytes], two: list[bytes], data: st.DataObject
) -> None:
    whole = merged(b"", [*one, *two])
    assert merged(merged(b"", one), two) == whole
    assert merged(merged(b"", two), one) == whole
    assert merged(whole, one) == whole
    assert merged(b"", data.draw(st.permutations([*one, *two]))) == whole
    assert packed(newest([*one, *two], SHAPE), SHAPE) == whole, "a pack of all is the same"


@steady
@given(st.lists(lines, max_size=12), st.lists(lines, max_size=12))
def test_a_merge_is_what_a_dict_would_say(base: list[bytes], some: list[bytes]) -> None:
    winners: dict[bytes, bytes] = {}
    for each in (*base, *some):
        key = each.split(b"\x1f")[0]
        if key not in winners or rank(each, SHAPE) > rank(winners[key], SHAPE):
            winners[key] = each
    before = merged(b"", base).split(b"\n")[:-1]
    after = merge(before, newest(some, SHAPE), SHAPE, what="it")
    assert after.data.split(b"\n")[:-1] == [winners[key] for key in sorted(winners, key=digest)]
    assert after.records == len(winners)
    assert after.won == len({*after.data.split(b"\n")[:-1]} - {*before})


def test_merging_pads_old_lines_and_keeps_newer_ones_whole() -> None:
    base = merged(b"", [line("a", "old", 1)])
    wide = merged(base, [line("b", "new", 1, 0, "7", "8", "9")], WIDE).split(b"\n")[:-1]
    assert {*wide} == {line("a", "old", 1, 0, "\\N", "\\N"), line("b", "new", 1, 0, "7", "8", "9")}


@pytest.mark.parametrize("later", [[], ["7"], ["7", "8"], ["7", "8", "9"]])
def test_a_line_gets_a_null_for_each_column_that_it_lacks(later: list[str]) -> None:
    given = line("a", "x", 1, 0, *later)
    wanted = line("a", "x", 1, 0, *later, *["\\N"] * (2 - len(later)))
    assert merge([], newest([given], WIDE), WIDE, what="it") == Merged(wanted + b"\n", 1, 1)
    assert packed(newest([given], WIDE), WIDE) == wanted + b"\n"


def test_a_line_of_an_older_schema_is_padded_beside_one_of_a_newer_schema() -> None:
    """What one line lacks is not made up for by what another one has too many of."""
    old, new = line("a", "x", 1), line("b", "y", 1, 0, "7", "8", "9", "10")
    assert old.count(b"\x1f") + new.count(b"\x1f") == 2 * (WIDE.width - 1)
    wanted = {digest(b"a"): line("a", "x", 1, 0, "\\N", "\\N"), digest(b"b"): new}
    data = b"".join(wanted[place] + b"\n" for place in sorted(wanted))
    assert packed(newest([old, new], WIDE), WIDE) == data
    assert merge([old], newest([new], WIDE), WIDE, what="it") == Merged(data, 2, 1)


def test_a_base_out_of_order_or_with_a_key_twice_is_corrupt() -> None:
    good = [line(key) for key in sorted("abcd", key=lambda key: digest(key.encode()))]
    assert merge(good, {}, SHAPE, what="it").records == 4
    for bad in permutations(good):
        if [*bad] != good:
            with pytest.raises(Corrupt, match="it is out of order"):
                merge(bad, {}, SHAPE, what="it")
    with pytest.raises(Corrupt):
        merge([good[0], good[0], *good[1:]], {}, SHAPE, what="it")


# ---- what a compiler does ----

LARGE = 100 * FOLD_BELOW_BYTES
YOUNG = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("waiting", "base", "full", "step"),
    [
        (Waiting(0, 0, 0, YOUNG), LARGE, True, Step.REST),
        (Waiting(0, 0, 0, YOUNG), 0, False, Step.REST),
        (Waiting(1, 0, 50, YOUNG), 0, False, Step.FOLD),
        (Waiting(1, 0, 50, YOUNG), FOLD_BELOW_BYTES, False, Step.FOLD),
        (Waiting(1, 0, 50, YOUNG), FOLD_BELOW_BYTES + 1, False, Step.REST),
        (Waiting(1, 0, 50, YOUNG), LARGE, False, Step.REST),
        (Waiting(1, 0, 50, YOUNG), LARGE, True, Step.FOLD),
        (Waiting(0, 1, 50, YOUNG), LARGE, False, Step.REST),
        (Waiting(1, 0, 50, FOLD_AGE), LARGE, False, Step.FOLD),
        (Waiting(0, 1, int(LARGE * FOLD_SHARE), YOUNG), LARGE, False, Step.FOLD),
        (Waiting(0, 1, int(LARGE * FOLD_SHARE) - 1, YOUNG), LARGE, False, Step.REST),
        (Waiting(PACK_SINGLES - 1, 0, 50, YOUNG), LARGE, False, Step.REST),
        (Waiting(PACK_SINGLES, 0, 50, YOUNG), LARGE, False, Step.PACK),
        (Waiting(PACK_SINGLES, 1, 50, YOUNG), LARGE, False, Step.REST),
        (Waiting(2 * PACK_SINGLES, 1, 50, YOUNG), LARGE, False, Step.PACK),
        (Waiting(0, FOLD_PACKS - 1, 50, YOUNG), LARGE, False, Step.REST),
        (Waiting(0, FOLD_PACKS, 50, YOUNG), LARGE, False, Step.FOLD),
    ],
)
def test_the_next_step(waiting: Waiting, base: int, full: bool, step: Step) -> None:
    assert next_step(waiting, base, full=full) is step


@pytest.mark.parametrize("size", [50, 400, 4096])
def test_singles_that_keep_coming_make_few_packs(size: int) -> None:
    """However many are put between two runs, a lookup opens few packs, and each byte is written a few times only."""
    for at_once in (1, 7, 100):
        singles = packs = waiting = written = put = most = 0
        base = LARGE
        for _ in range(20_000 // at_once):
            singles, waiting, put = singles + at_once, waiting + at_once * size, put + at_once * size
            match next_step(Waiting(singles, packs, waiting, YOUNG), base):
                case Step.FOLD:
                    base += waiting
                    written += base
                    singles = packs = waiting = 0
                case Step.PACK:
                    written += singles * size
                    singles, packs = 0, packs + 1
            most = max(most, packs)
        assert most < FOLD_PACKS
        assert written <= (2 + 1 / FOLD_SHARE) * put + base


@given(st.lists(lines, max_size=12), st.lists(lines, max_size=12))
@steady
def test_a_merge_into_a_base_that_is_known_to_be_in_order_gives_the_same(old: list[bytes], some: list[bytes]) -> None:
    base = packed(newest(old, SHAPE), SHAPE).split(b"\n")[:-1]
    incoming = newest(some, SHAPE)
    assert merge(base, incoming, SHAPE, what="it", in_order=True) == merge(base, incoming, SHAPE, what="it")


@pytest.mark.parametrize("number", [1, 5, 300])
def test_few_or_many_new_lines_find_their_place_in_a_base_that_is_known_to_be_in_order(number: int) -> None:
    base = packed(newest([line(f"old{n}") for n in range(200)], SHAPE), SHAPE).split(b"\n")[:-1]
    incoming = newest([line(f"new{n}") for n in range(number)], SHAPE)
    assert merge(base, incoming, SHAPE, what="it", in_order=True) == merge(base, incoming, SHAPE, what="it")


@pytest.mark.parametrize("key_at", [0, 1])
@pytest.mark.parametrize("number", [1, 7, 60, 400])
def test_few_incoming_lines_find_their_place_whatever_the_key_is(number: int, key_at: int) -> None:
    """Before, behind and between the others; keys that are there, with a later, an equal and an earlier time."""
    shape = Shape(key_column=key_at, stamp_column=2, deleted_column=3, width=4)

    def swapped(some: bytes) -> bytes:
        first, second, *rest = some.split(b"\x1f")
        return b"\x1f".join([second, first, *rest]) if key_at else some

    old = [swapped(line(f"a\\n{n}", stamp=1)) for n in range(2500)]
    base = packed(newest(old, shape), shape).split(b"\n")[:-1]
    some = [swapped(line(f"a\\n{n * 5}", "y" if n % 2 else "x", n % 3)) for n in range(number)]
    some += [swapped(line(f"new{n}")) for n in range(number // 2)]
    incoming = newest(some, shape)
    places = [digest(key) for key in keys_of(base, shape)]
    with_ends = {digest(key_of(each, shape)): each for each in (base[0], base[-1])}
    for each in (incoming, with_ends, {}):
        wanted = merge(base, each, shape, what="it")
        assert merge(base, each, shape, what="it", in_order=True, is_wide=True) == wanted
        assert [*_near(base, sorted(each), shape)] == [*_among(places, sorted(each))]


def test_digests_that_are_not_uniform_are_found_in_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can choose keys must not make a fold slow: after a few guesses the rest is bisected."""
    keys = sorted((f"k{n}".encode() for n in range(5000)), key=digest)
    crowded = [*keys[:2000], *keys[-2:]]
    looks = counted_looks(monkeypatch)
    wanted = [digest(key) for key in crowded[1000:1990:90]]
    looks.clear()
    found = [*_near([line(key.decode()) for key in crowded], wanted, SHAPE)]
    assert [at for _, at, _ in found] == [*range(1000, 1990, 90)]
    assert all(is_there for _, _, is_there in found)
    assert len(looks) <= 2 + len(wanted) * (GUESSES + 12)
    assert len(looks) == 115


def counted_looks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys that are hashed from now on."""
    looks: list[bytes] = []

    def counted(key: bytes) -> Any:
        looks.append(key)
        return hashlib.sha256(key)

    monkeypatch.setattr("limpet.index.decide.sha256", counted)
    return looks


def test_uniform_digests_are_found_in_about_three_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact numbers: the guesses depend on nothing but the keys, and a worse guess would show only in the time."""
    keys = sorted((f"k{n}".encode() for n in range(4000)), key=digest)
    lines = [line(key.decode()) for key in keys[::2]]
    wanted = [digest(key) for key in keys[7::61]]
    looks = counted_looks(monkeypatch)
    found = [*_near(lines, wanted, SHAPE)]
    assert [at for _, at, _ in found] == [(n + 1) // 2 for n in range(7, 4000, 61)]
    assert [is_there for _, _, is_there in found] == [n % 2 == 0 for n in range(7, 4000, 61)]
    assert len(looks) == 195
    looks.clear()
    ends = [digest(keys[0]), digest(keys[1]), digest(keys[-2]), digest(keys[-1])]
    assert [at for _, at, _ in _near(lines, ends, SHAPE)] == [0, 1, 1999, 2000]
    assert len(looks) == 11


def test_a_line_with_too_few_fields_is_corrupt_also_where_not_all_keys_are_read() -> None:
    key_last = Shape(key_column=2, stamp_column=0, deleted_column=1, width=3)
    low, middle, high = sorted((b"k1", b"k2", b"k3"), key=digest)
    base = [b"s\x1f0\x1f" + low, *[b"a\x1fb"] * 10, b"s\x1f0\x1f" + high]
    with pytest.raises(Corrupt, match="too few fields"):
        merge(base, {digest(middle): b"s\x1f0\x1f" + middle}, key_last, what="it", in_order=True)


def test_lines_that_come_in_are_padded_also_where_the_base_is_known_to_be_wide() -> None:
    base = [line("a", "x", 1, 0, "7", "8")]
    wanted = merge(base, newest([line("b", "y", 1)], WIDE), WIDE, what="it")
    assert merge(base, newest([line("b", "y", 1)], WIDE), WIDE, what="it", in_order=True, is_wide=True) == wanted
    assert line("b", "y", 1, 0, "\\N", "\\N") in wanted.data.split(b"\n")
