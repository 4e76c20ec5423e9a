"""The search in an ordered object: three reads and 192 KiB whatever its size, and the answer of reading it all."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.index import decide as seek
from limpet.index.codec import Field, Shape
from limpet.index.decide import ANCHOR, LINE_GUESS, READS, SURE, WINDOW_MIN, NoLine, Search, digest, fractions
from limpet.index.reader import Reader
from limpet.index.storage import IndexStorage, fresh
from limpet.index.types import with_own
from limpet.kernel.errors import Conflict, Corrupt, LimpetError, Unavailable
from limpet.kernel.keys import IndexKeys, Key
from limpet.kernel.records import RECORD_BYTES_MAX
from limpet.kernel.store import Blob, MemoryStore
from support.clock import ManualRuntime, steady
from support.index import keys_in, line_sizes
from support.stores import ScriptedStore, fails

SHAPE = Shape(key_column=0, stamp_column=1, deleted_column=2, width=3)
KINDS = ["constant", "large", "mixed", "exponential"]
READS_MAX = 3
BYTES_MAX = 192 << 10
ALL = 0
"""A depth of 0 makes one shard of all keys, so that none has to be searched for that hashes into a certain one."""


@dataclass(frozen=True)
class Layout:
    """A shard that is never all in memory: which key stands where, and how long its line is."""

    numbers: Sequence[int]
    ends: Sequence[int]

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.ends[-1]

    def start(self, at: int) -> int:
        """Where a line begins."""
        return self.ends[at - 1] if at else 0

    def line(self, at: int) -> bytes:
        """One line, its LF included."""
        return b"k%d\x1f" % self.numbers[at] + b"." * (self._pad(at)) + b"\n"

    def _pad(self, at: int) -> int:
        return self.ends[at] - self.start(at) - len(b"k%d\x1f" % self.numbers[at]) - 1

    def read(self, start: int, stop: int) -> bytes:
        """The bytes of a range."""
        first, last = bisect_right(self.ends, start), bisect_left(self.ends, stop)
        data = b"".join([self.line(at) for at in range(first, last + 1)])
        return data[start - self.start(first) : stop - self.start(first)]


@cache
def in_order(number: int) -> Sequence[int]:
    """The keys k0, k1, ... in the order of their digests."""
    return sorted(range(number), key=lambda n: hashlib.sha256(b"k%d" % n).digest()[:16])


def layout(number: int, kind: str) -> Layout:
    """So many lines of such sizes."""
    sizes = line_sizes(kind, Random(number))
    return Layout(in_order(number), [*accumulate(size for size, _ in zip(sizes, range(number), strict=False))])


@dataclass(frozen=True)
class Found:
    """The outcome of a search, and what it took."""

    line: bytes | None
    reads: int
    bytes: int

    @property
    def cheap(self) -> bool:
        """Whether it kept the promise."""
        return self.reads <= READS_MAX and self.bytes <= BYTES_MAX


def look(
    read: Callable[[int, int], bytes],
    size: int,
    key: bytes,
    *,
    line_size: float = LINE_GUESS,
    depth: int = ALL,
    far: bool = False,
) -> Found:
    """Search as the reader does."""
    search = Search(key, SHAPE, depth, size, line_size=line_size, far=far)
    reads = total = 0
    while True:
        start, stop = search.window()
        assert 0 <= start < stop <= size
        data = read(start, stop)
        reads, total = reads + 1, total + len(data)
        outcome = search.learn(start, data)
        if outcome is not None:
            return Found(None if isinstance(outcome, NoLine) else outcome, reads, total)
        assert reads < 100, "it does not come to an end"


# ---- the promise, numerically ----


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("number", "lookups"), [(4_000, 1_500), (60_000, 1_500), (300_000, 2_000)], ids=["4k", "60k", "300k"]
)
def test_three_reads_of_192_kib_find_every_record_and_miss_every_other(
    number: int, lookups: int, kind: str, far: bool
) -> None:
    shard, chance = layout(number, kind), Random(lookups)
    for n in range(lookups):
        # the manifest usually tells how long a line is; a guess has to do as well
        line_size = shard.size / number if n % 2 else LINE_GUESS
        if n % 4 == 3:
            found = look(shard.read, shard.size, b"absent%d" % chance.randrange(10**9), line_size=line_size, far=far)
            assert found.line is None
        else:
            at = chance.randrange(number)
            found = look(shard.read, shard.size, b"k%d" % shard.numbers[at], line_size=line_size, far=far)
            assert found.line == shard.line(at)[:-1]
        assert found.cheap, (n, found.reads, found.bytes)


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
def test_on_a_far_store_one_read_does_where_a_near_one_takes_two(far: bool) -> None:
    """A shard of 6 MB, so an index of 1.5 GB: the second round trip costs more than 48 KiB."""
    number = 45_000
    shard, chance = layout(number, "constant"), Random(1)
    reads = [
        look(shard.read, shard.size, b"k%d" % chance.randrange(number), line_size=shard.size / number, far=far).reads
        for _ in range(1_000)
    ]
    assert (reads.count(1) >= 990) == far


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_in_a_shard_of_three_million_lines_hardly_any_lookup_takes_a_fourth_read(kind: str) -> None:
    """12 GB of lines of 4 KiB is more than one PUT can carry; there, and only there, a few take 64 KiB more."""
    number, lookups = 3_000_000, 5_000
    shard, chance = layout(number, kind), Random(lookups)
    dear = 0
    for _ in range(lookups):
        at = chance.randrange(number)
        found = look(shard.read, shard.size, b"k%d" % shard.numbers[at], line_size=shard.size / number)
        assert found.line == shard.line(at)[:-1]
        assert found.reads <= READS_MAX + 1
        dear += not found.cheap
    assert dear <= lookups * {"large": 0.01, "mixed": 0.002}.get(kind, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [1, 2, 3, 50, 4_000])
def test_the_first_and_the_last_record_and_what_lies_beyond(number: int, kind: str) -> None:
    shard = layout(number, kind)
    for at in {0, min(1, number - 1), number - 1}:
        found = look(shard.read, shard.size, b"k%d" % shard.numbers[at])
        assert found.line == shard.line(at)[:-1]
        assert found.cheap
    ends = [digest(b"k%d" % shard.numbers[at]) for at in (0, -1)]
    beyond = [key for n in range(10 * number) if not ends[0] < digest(key := b"absent%d" % n) < ends[1]]
    assert beyond
    for key in beyond[:100]:
        found = look(shard.read, shard.size, key)
        assert found.line is None
        assert found.cheap


def test_in_an_empty_object_there_is_nothing() -> None:
    assert isinstance(Search(b"a", SHAPE, 2, 0).learn(0, b""), NoLine)


# ---- the windows that are planned ----


def windows(read: Callable[[int, int], bytes], size: int, key: bytes, line_size: float) -> list[tuple[int, int]]:
    """Where each read of a search begins, and how many bytes it takes."""
    asked: list[tuple[int, int]] = []

    def recorded(start: int, stop: int) -> bytes:
        asked.append((start, stop - start))
        return read(start, stop)

    look(recorded, size, key, line_size=line_size)
    return asked


@pytest.mark.parametrize(
    ("number", "kind", "key", "line_size", "wanted"),
    [
        # all that the object has, and never less than 8 KiB of it
        (1, "constant", "k0", 128, [(0, 100)]),
        (100, "constant", "k63", 128, [(0, 8192)]),
        (100, "constant", "k5", 128, [(1250, 8192)]),
        (100, "constant", "k33", 128, [(1808, 8192)]),
        (100, "constant", "k5", 1000, [(0, 10_000)]),
        # wide enough to be sure: more in the middle than near the ends, more for longer lines
        (4_000, "constant", "k1527", 128, [(0, 8192)]),
        (4_000, "constant", "k3633", 128, [(47_232, 21_919)]),
        (4_000, "constant", "k2423", 128, [(182_780, 30_868)]),
        (4_000, "constant", "k1991", 1000, [(390_023, 9_977)]),
        (4_000, "constant", "absent1", 128, [(124_532, 29_435)]),
        # 12 KiB where that would take more than 48 KiB
        (4_000, "constant", "k2423", 1000, [(192_070, 12_288)]),
        (60_000, "constant", "k53649", 128, [(845_297, 12_288)]),
        (4_000, "constant", "k2423", 250, [(176_502, 43_424)]),
        (4_000, "constant", "k2423", 400, [(192_070, 12_288)]),
        # the second read stands where the first one says, and the third takes what is left of 192 KiB
        (60_000, "large", "k53649", 128, [(34_868_919, 12_288), (35_100_594, 12_288)]),
        (60_000, "large", "k19774", 128, [(122_632_332, 12_288), (122_827_224, 12_288), (122_839_040, 172_032)]),
        (60_000, "large", "k53494", 1000, [(245_739_106, 20_894)]),
        (60_000, "mixed", "k53649", 128, [(17_798_504, 12_288), (17_635_753, 12_288), (17_467_636, 172_032)]),
        (60_000, "mixed", "absent1", 128, [(43_671_858, 12_288), (43_590_935, 12_288)]),
    ],
)
def test_the_windows_of_a_search(
    number: int, kind: str, key: str, line_size: float, wanted: list[tuple[int, int]]
) -> None:
    shard = layout(number, kind)
    assert windows(shard.read, shard.size, key.encode(), line_size) == wanted


@pytest.mark.parametrize(
    ("number", "size", "key", "wanted"),
    [
        (10, 40_000, "k0", [(315_628, 23_891), (311_189, 32_768), (137_856, 262_144)]),
        (10, 40_000, "k2", [(0, 8_192), (0, 32_768), (0, 262_144)]),
        (10, 40_000, "absent", [(127_135, 29_561), (125_531, 32_768), (10_843, 262_144)]),
        (30, 300_000, "k2", [(37_497, 21_547), (31_886, 32_768), (0, 262_144), (0, 1_048_576)]),
        (
            30, 300_000, "k5",
            [(4_805_313, 12_288), (4_795_073, 32_768), (4_680_385, 262_144), (4_287_169, 1_048_576),
             (5_330_234, 1_048_576), (5_100_000, 300_000)],
        ),
    ],
)  # fmt: skip
def test_a_window_without_a_whole_line_is_followed_by_wider_ones(
    number: int, size: int, key: str, wanted: list[tuple[int, int]]
) -> None:
    keys = sorted((b"k%d" % n for n in range(number)), key=digest)
    data = b"".join(each.ljust(size - 1, b"\x1f") + b"\n" for each in keys)
    assert windows(lambda start, stop: data[start:stop], len(data), key.encode(), 128) == wanted


@pytest.mark.parametrize("line_size", [0.0, -5.0, 0.5, 1.0])
def test_a_manifest_that_claims_lines_without_bytes_is_not_believed(line_size: float) -> None:
    shard = layout(60_000, "constant")
    assert windows(shard.read, shard.size, b"k19774", line_size) == [(2_988_905, 10_396), (2_999_300, 8_192)]


# ---- what is learnt, one read at a time ----


@cache
def places() -> Sequence[tuple[bytes, bytes]]:
    """Many keys, each after its digest, in order."""
    return sorted((digest(key), key) for key in (b"n%d" % n for n in range(20_000)))


def key_at(fraction: float, shard: int | None = None) -> bytes:
    """A key that lies about so far into the order of all keys, or into that shard of 256."""
    depth = 0 if shard is None else 2
    some = [(place, key) for place, key in places() if shard is None or place[0] == shard]
    return min(some, key=lambda each: abs(fractions(each[0], depth) - fraction))[1]


def lines_of(size: int, *keys: bytes) -> bytes:
    """A line of that many bytes for each key."""
    return b"".join(key.ljust(size - 1, b"\x1f") + b"\n" for key in keys)


def test_the_figures_of_the_search() -> None:
    assert (READS, seek.BYTES_MAX, WINDOW_MIN, ANCHOR, LINE_GUESS, SURE) == (3, 196_608, 8_192, 12_288, 128.0, 6.0)


def size_of(search: Search) -> int:
    start, stop = search.window()
    return stop - start


def test_from_the_third_read_on_a_window_takes_what_is_left_of_192_kib() -> None:
    search = Search(key_at(0.5), SHAPE, ALL, 10_000_000)
    at = 0
    for n, fraction in enumerate((0.1, 0.2, 0.3, 0.4), start=1):
        assert search.learn(at, lines_of(50, key_at(fraction))) is None
        at += 50
        if n >= 2:
            assert size_of(search) == 196_608 - 50 * n


@pytest.mark.parametrize(("read", "size"), [(131_071, 65_537), (131_072, 65_536), (131_073, 65_536), (190_000, 65_536)])
def test_a_late_window_has_at_least_64_kib(read: int, size: int) -> None:
    search = Search(key_at(0.5), SHAPE, ALL, 10_000_000)
    assert search.learn(0, lines_of(read - 50, key_at(0.1))) is None
    assert search.learn(read - 50, lines_of(50, key_at(0.2))) is None
    assert size_of(search) == size


@pytest.mark.parametrize(
    ("first", "line_size", "number", "size"),
    [
        # 6 standard deviations of where the line may be, and 4 lines
        (0.0, 100, 60_000, 62_000),
        (0.0, 100, 30_000, 44_000),
        (0.0, 100, 120_000, 88_500),
        # more than half of what is left: 12 KiB
        (0.0, 100, 140_000, 12_288),
        (0.0, 200, 60_000, 12_288),
        # the lines before the first whole one of a window do not count
        (0.02, 100, 60_000, 57_000),
    ],
)
def test_a_second_window_is_as_wide_as_the_lines_of_the_first_demand(
    first: float, line_size: int, number: int, size: int
) -> None:
    search = Search(key_at(0.1), SHAPE, ALL, number * line_size)
    cut = b"." * 5_000 + b"\n" if first else b""
    lines = lines_of(line_size, *(key_at(first + n / 10_000) for n in range(1, 5)))
    assert search.learn(int(first * number * line_size), cut + lines) is None
    assert size_of(search) == pytest.approx(size, rel=0.03)


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        pytest.param(0.3, 0.7, 0.5, id="as it should be"),
        pytest.param(0.6, 0.8, 0.0, id="ours would be below both"),
        pytest.param(0.2, 0.4, 1.0, id="ours would be above both"),
        pytest.param(0.9, 0.8, 0.5, id="above and in the wrong order"),
        pytest.param(0.2, 0.1, 0.5, id="below and in the wrong order"),
    ],
)
def test_lines_of_another_shard_on_both_sides_do_not_stop_a_search(low: float, high: float, wanted: float) -> None:
    """A damaged shard: what they say of the place is kept within the room that is left."""
    below, above = lines_of(100, key_at(low, 0x10)), b"cut\n" + lines_of(100, key_at(high, 0xF0))
    size = 10_000_000
    search = Search(key_at(0.5, 0x3A), SHAPE, 2, size)
    assert search.learn(0, below) is None
    assert search.learn(size - len(above), above) is None
    start, stop = search.window()
    room, taken = size - 200, stop - start
    assert taken == 196_608 - 204
    assert start == pytest.approx(min(max(100 + wanted * room - taken / 2, 100), size - 100 - taken), abs=200_000)


# ---- against a plain search through all lines ----

# Sizes on both sides of each border in the search: 8 KiB looks, 12 KiB anchors, 64 KiB and more for the last look.
line_bytes = st.one_of(
    st.integers(20, 200), st.sampled_from([8191, 8192, 8193, 12288, 65535, 65536, 65537]), st.integers(200, 200_000)
)


@steady
@given(st.lists(line_bytes, max_size=40), st.integers(0, 10), st.floats(20, 100_000))
def test_any_sizes_of_lines_give_the_answer_of_a_plain_search(sizes: list[int], absent: int, line_size: float) -> None:
    """Records far above 4 KiB are found too; only then it may take more reads."""
    keys = sorted((b"k%d" % n for n in range(len(sizes))), key=digest)
    lines = {key: key + b"\x1f" + b"." * (size - len(key) - 2) for key, size in zip(keys, sizes, strict=True)}
    data = b"".join(line + b"\n" for line in lines.values())
    if not data:
        return
    for key in (*keys, b"absent%d" % absent):
        found = look(lambda start, stop: data[start:stop], len(data), key, line_size=line_size)
        assert found.line == lines.get(key)
        if max(sizes) <= 4096:
            assert found.cheap


@steady
@given(st.integers(1, 400), st.integers(1, 4096), st.integers(0, 1 << 30))
def test_every_alignment_of_a_window_with_its_lines(number: int, size: int, chance: int) -> None:
    """Lines of one size, so that windows begin and end exactly where lines do for many of these sizes."""
    size = max(size, 12)
    keys = sorted((b"k%d" % n for n in range(number)), key=digest)
    lines = [key + b"\x1f" + b"." * (size - len(key) - 2) for key in keys]
    data = b"".join(line + b"\n" for line in lines)
    at = chance % number
    found = look(lambda start, stop: data[start:stop], len(data), keys[at])
    assert found.line == lines[at]
    assert found.cheap
    absent = look(lambda start, stop: data[start:stop], len(data), b"absent%d" % chance)
    assert absent.line is None
    assert absent.cheap


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_a_shard_of_each_depth(depth: int) -> None:
    shard = "3a7f"[:depth]
    keys = sorted((key.encode() for key in keys_in(shard, 400 >> 4 * (depth - 2) or 2)), key=digest)
    data = b"".join(key + b"\x1f" + b"." * 2000 + b"\n" for key in keys)
    for key in keys:
        found = look(lambda start, stop: data[start:stop], len(data), key, depth=depth)
        assert found.line is not None
        assert found.cheap


# ---- damage ----


def test_a_last_line_that_is_cut_off_is_corrupt() -> None:
    data = b"".join(
        sorted((b"k%d\x1f..\n" % n for n in range(50)), key=lambda line: digest(bytes(line).partition(b"\x1f")[0]))
    )
    for cut in (1, 2, 3, 5):
        with pytest.raises(Corrupt, match="cut off"):
            look(lambda start, stop: data[:-cut][start:stop], len(data) - cut, b"k7")  # noqa: B023


def test_an_object_without_any_line_is_corrupt() -> None:
    for size in (1, 10_000, 1_000_000):
        data = b"x" * size
        with pytest.raises(Corrupt, match="cut off"):
            look(lambda start, stop: data[start:stop], size, b"k7")  # noqa: B023


def test_a_line_that_has_no_key_is_corrupt() -> None:
    key_last = Shape(key_column=2, stamp_column=1, deleted_column=0, width=3)
    search = Search(b"a", key_last, 2, 4)
    with pytest.raises(Corrupt, match="too few fields"):
        search.learn(0, b"x\x1fy\n")


# ---- through the reader, which may know an old size, while others write ----


class Bucket:
    """One shard, read by a process that knows what the manifest said when it opened the index."""

    def __init__(self, number: int, size: int) -> None:
        self.runtime = ManualRuntime()
        self.store = ScriptedStore(self.runtime, MemoryStore(self.runtime))
        self.keys = IndexKeys.of("x")
        manifest = fresh(with_own([Field("key", "string"), Field("text", "string")], "key"), 2)
        self.schema = manifest.schema
        self.reader = Reader(IndexStorage(self.store, self.keys, self.runtime), manifest)
        self.names = keys_in("3a", number)
        self.write(size)

    def line(self, key: str, size: int) -> bytes:
        line = self.schema.line({"key": key, "text": ""}, "2026-01-01T00:00:00.000000Z", where="it")
        text = "." * max(0, size - len(line) - 1)
        return self.schema.line({"key": key, "text": text}, "2026-01-01T00:00:00.000000Z", where="it")

    def write(self, size: int, *, without: Sequence[str] = ()) -> None:
        """All records, or all but some, of so many bytes each."""
        lines = sorted((digest(key.encode()), self.line(key, size)) for key in self.names if key not in without)
        self.store.others.put(self.keys.shard("3a"), b"".join(line + b"\n" for _, line in lines))

    def find(self, key: str) -> tuple[bytes | None, dict[str, int], int]:
        """The line, what was asked, and how many bytes came."""
        with self.store.measure() as cost:
            line = self.reader.find(key)
        return line, cost.requests, cost.read_bytes


@pytest.mark.parametrize(("before", "after"), [(60, 900), (900, 60), (60, 4000), (4000, 60), (4000, 3999)])
def test_a_shard_that_grew_or_shrank_since_its_size_was_learnt(before: int, after: int) -> None:
    """Also far enough that the first range starts past its end."""
    bucket = Bucket(300, before)
    for key in bucket.names[:20]:
        bucket.write(before)
        bucket.find(bucket.names[0])
        bucket.write(after)
        line, asked, size = bucket.find(key)
        assert line == bucket.line(key, after)
        assert asked["list"] == 2
        # one range may have been refused, and the size asked for
        assert asked["get"] <= 4
        assert asked.get("head", 0) <= 1
        assert size <= BYTES_MAX
        assert bucket.find(key)[1].get("head") is None, "the size is known again"


def test_a_shard_that_was_empty_and_is_not_any_more() -> None:
    bucket = Bucket(300, 900)
    bucket.write(60, without=bucket.names)
    assert bucket.find(bucket.names[0])[:2] == (None, {"list": 2, "head": 1})
    bucket.write(900)
    assert bucket.find(bucket.names[0])[0] == bucket.line(bucket.names[0], 900)


def test_a_record_that_comes_while_its_shard_is_searched_is_found_in_the_new_version() -> None:
    bucket = Bucket(300, 4000)
    slow = 0
    for late in bucket.names[:30]:
        bucket.write(4000, without=[late])
        bucket.find(late)  # the size is known from here on
        line, asked, _ = bucket.find(late)
        assert line is None
        if asked["get"] == 1:
            continue  # it was over before anybody came
        slow += 1
        bucket.store.gets.extend([None, lambda: bucket.write(4000)])
        line, asked, _ = bucket.find(late)
        assert line == bucket.line(late, 4000)
        assert asked["get"] <= 1 + 1 + READS_MAX
    assert slow > 5


def test_a_shard_that_is_written_all_the_time_is_unavailable_never_absent() -> None:
    bucket = Bucket(300, 4000)
    slow = next(key for key in bucket.names if bucket.find(key)[1]["get"] > 1)
    sizes = [4000, 4001]

    def swap() -> None:
        sizes.reverse()
        bucket.write(sizes[0])

    bucket.store.gets.extend([swap] * 100)
    with pytest.raises(Unavailable, match="while it was read"):
        bucket.find(slow)


def test_a_version_that_is_gone_repeats_the_search_of_the_shard_only() -> None:
    bucket = Bucket(300, 4000)
    slow = next(key for key in bucket.names if bucket.find(key)[1]["get"] > 1)
    bucket.store.gets.extend([None, fails(Conflict("another version"))])
    line, asked, _ = bucket.find(slow)
    assert line == bucket.line(slow, 4000)
    assert asked["list"] == 2
    assert asked["get"] <= 1 + READS_MAX, "one that was answered, and a whole search"


# ---- several singles of one record, while others remove some ----


class Racing(MemoryStore):
    """A bucket in which something happens between a listing and the next read of many objects."""

    def __init__(self) -> None:
        super().__init__(ManualRuntime())
        self.before_read: Callable[[], object] = lambda: None

    def get_many(
        self, keys: Iterable[Key], *, size_max: int | None = RECORD_BYTES_MAX
    ) -> Mapping[Key, Blob | LimpetError]:
        self.before_read()
        self.before_read = lambda: None
        return super().get_many(keys, size_max=size_max)


GONE = "(deleted)"


@pytest.mark.parametrize(
    ("singles", "removed", "wanted"),
    [
        ([(1, "a")], [], (1, "a")),
        ([(1, "a"), (2, "b")], [], (2, "b")),
        ([(1, "a"), (2, GONE)], [], (2, GONE)),
        ([(1, GONE), (2, "b")], [], (2, "b")),
        # several of one time: content decides, in whatever order their names are
        ([(2, "low"), (2, "top")], [], (2, "top")),
        ([(2, "top"), (2, "low")], [], (2, "top")),
        ([(2, GONE), (2, "top")], [], (2, GONE)),
        ([(2, "top"), (2, GONE)], [], (2, GONE)),
        # the newest one went to quarantine, after it was listed: an older one is the record
        ([(1, "a"), (2, "b")], [1], (1, "a")),
        ([(1, "a"), (2, GONE)], [1], (1, "a")),
        ([(1, GONE), (2, "b")], [1], (1, GONE)),
        ([(1, "a"), (2, "b"), (3, "c")], [2], (2, "b")),
        ([(1, "a"), (2, "low"), (2, "top")], [2], (2, "low")),
        ([(1, "a"), (2, "low"), (2, "top")], [1, 2], (1, "a")),
        ([(2, "low"), (2, "top")], [1], (2, "low")),
        # so did all of them
        ([(1, "a"), (2, "b")], [0, 1], None),
    ],
)
@pytest.mark.parametrize("many", [False, True], ids=["find", "find_many"])
def test_which_single_of_a_record_is_read(
    singles: list[tuple[int, str]], removed: list[int], wanted: tuple[int, str] | None, many: bool
) -> None:
    store = Racing()
    keys = IndexKeys.of("x")
    manifest = fresh(with_own([Field("key", "string"), Field("text", "string")], "key"), 2)
    [key] = keys_in("3a", 1)

    def line(second: int, text: str) -> bytes:
        stamp = f"2026-01-01T00:00:0{second}.000000Z"
        if text == GONE:
            return manifest.schema.tombstone(key, stamp)
        return manifest.schema.line({"key": key, "text": text}, stamp, where="it")

    store.put(keys.shard("3a"), b"")
    names = [
        keys.single("3a", key, f"2026-01-01T00:00:0{second}.000000Z", f"{n}") for n, (second, _) in enumerate(singles)
    ]
    for name, single in zip(names, singles, strict=True):
        store.put(name, line(*single) + b"\n")
    store.before_read = lambda: store.delete_many([names[n] for n in removed])
    reader = Reader(IndexStorage(store, keys, ManualRuntime()), manifest)
    found = reader.find_many([key]).get(key) if many else reader.find(key)
    assert found == (None if wanted is None else line(*wanted))
