"""What each act on an index costs in requests and bytes, as the docstrings and the guarantees say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
import pytest

import limpet
from limpet.app import Fleet
from limpet.index import Index, decide, shard_id
from limpet.index.compiler import LOCK_TTL_S
from limpet.index.storage import manifest_cell
from limpet.index.types import typed
from limpet.index.writer import stamps_of
from limpet.kernel.keys import IndexKeys, Key
from limpet.kernel.lease import Lock, VersionWatch
from limpet.kernel.runtime import system
from limpet.kernel.store import Always, Blob, MemoryStore, Stat, Version, When
from support.clock import ManualRuntime
from support.costs import plus, requests, times
from support.index import NAME, Rec, keys_in, line_sizes, objects
from support.stores import ScriptedStore

SHARDS = 256
MANIFEST = {"get": 1}
CLOCK = {"put": 1, "head": 1}
"""The store's clock is read once in ten minutes, and by whatever put comes first."""
LOCK = {"get": 1, "put": 2}
"""Look, take, give back."""
SHARD = {"get": 1, "put": 1}
RUN = plus(MANIFEST, {"list": 2})
NOTED = {"get": 1, "put": 1}
"""One swap of the manifest for all folds of a run, before what they took in is deleted."""
BYTES_MAX = 192 << 10
READS_MAX = 3


@pytest.fixture(params=["memory", "directory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place. A bucket is not told apart here: what it lists of emptied folders is its own affair."""
    return f"memory://cost-{uuid4().hex}" if request.param == "memory" else str(tmp_path / "fleet")


@pytest.fixture
def index(fleet: Fleet) -> Index[Rec]:
    """A new index whose handle has read the manifest and the clock."""
    fleet.index(NAME, Rec, key="key").compile()
    ix = fleet.index(NAME, Rec, key="key")
    ix.put(Rec("first"))
    ix.compile(full=True)
    return ix


def spread(number: int) -> list[Rec]:
    """Records of so many shards, two in each."""
    shards: dict[str, list[str]] = {}
    n = 0
    while sum(len(keys) == 2 for keys in shards.values()) < number:
        keys = shards.setdefault(shard_id(f"r{n}"), [])
        if len(keys) < 2:
            keys.append(f"r{n}")
        n += 1
    two = [keys for keys in shards.values() if len(keys) == 2]
    return [Rec(key) for keys in two[:number] for key in keys]


# ---- opening ----


def test_a_handle_costs_nothing_and_creating_an_index_a_put_for_each_shard(fleet: Fleet) -> None:
    assert requests(fleet, lambda: fleet.index(NAME, Rec, key="key")) == {}
    made = requests(fleet, lambda: fleet.index(NAME, Rec, key="key").manifest)
    assert made == plus(MANIFEST, {"list": 1, "put": SHARDS + 3, "get": 3}), "is it empty, was it dropped; then all"
    assert requests(fleet, lambda: fleet.index(NAME, Rec, key="key").manifest) == MANIFEST


# ---- writing ----


def test_a_put_is_one_put(fleet: Fleet, index: Index[Rec]) -> None:
    assert requests(fleet, lambda: index.put(Rec("a", "text"))) == {"put": 1}
    assert requests(fleet, lambda: index.put({"key": "a", "text": None})) == {"put": 1}
    other = fleet.index(NAME)
    assert requests(fleet, lambda: other.put({"key": "a"})) == plus(MANIFEST, {"put": 1})
    assert requests(fleet, lambda: other.put({"key": "a"})) == {"put": 1}


def test_the_first_put_of_a_process_reads_the_clock_and_then_one_in_ten_minutes_with_the_manifest() -> None:
    runtime = ManualRuntime()
    fleet = limpet.open("memory://", runtime=runtime)
    index = fleet.index(NAME, Rec, key="key")
    assert index.manifest
    runtime.sleep(1)
    assert requests(fleet, lambda: index.put(Rec("a"))) == plus(CLOCK, {"put": 1})
    spent = 0
    for n in range(120):
        runtime.sleep(10)
        spent += sum(requests(fleet, lambda: index.put(Rec(f"k{n}"))).values())  # noqa: B023
    assert spent == 120 + 2 * sum(CLOCK.values()) + 2 * sum(MANIFEST.values()), "20 minutes"


def test_put_many_is_one_put_for_each_shard_touched(fleet: Fleet, index: Index[Rec]) -> None:
    assert requests(fleet, lambda: index.put_many([])) == {}
    assert requests(fleet, lambda: index.put_many([Rec("a")])) == {"put": 1}
    assert requests(fleet, lambda: index.put_many([Rec("a", str(n)) for n in range(100)])) == {"put": 1}
    assert requests(fleet, lambda: index.put_many(spread(7))) == {"put": 7}
    everywhere = [Rec(f"k{n}", "x" * 50) for n in range(3_000)]
    assert len({shard_id(rec.key) for rec in everywhere}) == SHARDS
    assert requests(fleet, lambda: index.put_many(everywhere)) == {"put": SHARDS}


def test_a_put_many_of_which_one_record_is_bad_costs_nothing(fleet: Fleet, index: Index[Rec]) -> None:
    def bad() -> None:
        with pytest.raises(limpet.Invalid):
            index.put_many([Rec("a"), Rec("b"), {"key": "c", "text": 3}])

    assert requests(fleet, bad) == {}


def test_a_delete_is_one_put(fleet: Fleet, index: Index[Rec]) -> None:
    assert requests(fleet, lambda: index.delete("a")) == {"put": 1}
    assert requests(fleet, lambda: index.delete("never put")) == {"put": 1}


# ---- reading ----


def test_a_get_of_a_compiled_key(fleet: Fleet, index: Index[Rec]) -> None:
    keys = keys_in("3a", 5)
    index.put_many(Rec(key) for key in keys)
    index.compile(full=True)
    index = fleet.index(NAME, Rec, key="key")
    assert requests(fleet, lambda: index.get(keys[0])) == plus(MANIFEST, {"list": 2, "get": 1})
    assert requests(fleet, lambda: index.get(keys[1])) == {"list": 2, "get": 1}
    assert requests(fleet, lambda: index.get(keys_in("3a", 6)[5])) == {"list": 2, "get": 1}, "never put"


def test_a_get_in_an_empty_shard_asks_for_its_size_only(fleet: Fleet, index: Index[Rec]) -> None:
    key = keys_in("77", 1)[0]
    assert requests(fleet, lambda: index.get(key)) == {"list": 2, "head": 1}


def test_a_shard_that_was_compiled_by_another_since_costs_one_head_once(fleet: Fleet, index: Index[Rec]) -> None:
    keys = keys_in("3a", 3)
    index.get(keys[0])
    other = fleet.index(NAME, Rec, key="key")
    other.put_many(Rec(key) for key in keys)
    other.compile(full=True)
    assert requests(fleet, lambda: index.get(keys[0])) == {"list": 2, "head": 1, "get": 1}
    assert requests(fleet, lambda: index.get(keys[1])) == {"list": 2, "get": 1}


@pytest.mark.parametrize("waiting", [1, 5])
def test_a_get_reads_only_the_newest_of_the_singles_of_its_key(fleet: Fleet, index: Index[Rec], waiting: int) -> None:
    key, *others = keys_in("3a", 20)
    index.put_many([Rec(key), *(Rec(other) for other in others)])
    index.compile(full=True)
    index.get(key)
    for n in range(waiting):
        index.put(Rec(key, str(n)))
    for other in others:
        index.put(Rec(other))
    assert requests(fleet, lambda: index.get(key)) == {"list": 2, "get": 2}
    assert index.get(key) == Rec(key, str(waiting - 1))


@pytest.mark.parametrize("packs", [1, 4])
def test_a_get_looks_into_each_pack_of_its_shard_and_of_no_other(fleet: Fleet, index: Index[Rec], packs: int) -> None:
    keys = keys_in("3a", 20)
    index.put_many(Rec(key) for key in keys)
    index.compile(full=True)
    index.get(keys[0])
    for n in range(packs):
        index.put_many([*(Rec(key, str(n)) for key in keys[:5]), *(Rec(key) for key in keys_in("77", 5))])
    assert requests(fleet, lambda: index.get(keys[0])) == {"list": 2, "get": packs + 1}
    assert requests(fleet, lambda: index.get(keys[19])) == {"list": 2, "get": packs + 1}
    assert index.get(keys[0]) == Rec(keys[0], str(packs - 1))


def test_get_many_of_a_compiled_index(fleet: Fleet, index: Index[Rec]) -> None:
    records = spread(30)
    index.put_many(records)
    index.compile(full=True)
    index = fleet.index(NAME, Rec, key="key")
    keys = [rec.key for rec in records]
    assert requests(fleet, lambda: index.get_many(keys)) == plus(MANIFEST, {"list": 2, "get": 30})
    assert len(index.get_many(keys)) == 60
    assert requests(fleet, lambda: index.get_many([])) == {}


def test_get_many_lists_only_the_shards_where_something_waits(fleet: Fleet, index: Index[Rec]) -> None:
    records = spread(30)
    index.put_many(records)
    index.compile(full=True)
    index.get_many([rec.key for rec in records])
    index.put(records[0])
    index.put_many(records[2:4])
    spent = requests(fleet, lambda: index.get_many([rec.key for rec in records]))
    assert spent == {"list": 2 + 2 + 1, "get": 30 + 1 + 1}, "singles and packs of one shard, packs of another"


def test_get_many_of_one_key_of_a_large_shard_does_not_read_all_of_it() -> None:
    fleet = limpet.open("memory://")
    index = fleet.index(NAME, Rec, key="key")
    keys = keys_in("3a", 500)
    index.put_many(Rec(key, "x" * 4000) for key in keys)
    index.compile(full=True)
    with fleet.meter.measure() as cost:
        index.get_many(keys[:1])
    assert cost.read_bytes <= BYTES_MAX + 20_000  # the manifest too
    with fleet.meter.measure() as cost:
        assert len(index.get_many(keys[:200])) == 200
    assert cost.requests["get"] == 1


def test_a_scan_reads_each_shard_once(fleet: Fleet, index: Index[Rec]) -> None:
    records = spread(30)
    index.put_many(records)
    index.compile(full=True)
    assert requests(fleet, lambda: [*index.scan()]) == plus(MANIFEST, {"list": 2, "get": SHARDS})
    index.put(records[0])
    index.put(records[1])
    index.put_many(records[2:4])
    assert requests(fleet, lambda: [*index.scan()]) == plus(MANIFEST, {"list": 2 + 2 + 1, "get": SHARDS + 2 + 1})


# ---- compiling ----


def test_a_run_with_nothing_to_do(fleet: Fleet, index: Index[Rec]) -> None:
    index.put_many(spread(30))
    index.compile(full=True)
    assert requests(fleet, index.compile) == RUN
    assert requests(fleet, lambda: index.compile(full=True)) == RUN


@pytest.mark.parametrize("number", [1, 6])
def test_folding_shards_that_have_singles(fleet: Fleet, index: Index[Rec], number: int) -> None:
    for rec in spread(number):
        index.put(rec)
    fold = plus({"list": 1}, {"get": 2, "delete": 2}, SHARD, LOCK)
    assert requests(fleet, index.compile) == plus(RUN, times(number, fold), NOTED)
    for rec in spread(number):
        index.put(rec)
    assert requests(fleet, index.compile) == plus(RUN, times(number, fold), NOTED), "and again: other digests"


@pytest.mark.parametrize("number", [1, 6])
def test_folding_shards_that_have_packs(fleet: Fleet, index: Index[Rec], number: int) -> None:
    for _ in range(3):
        index.put_many(spread(number))
    fold = plus({"list": 1}, {"get": 3, "delete": 3}, SHARD, LOCK)
    assert requests(fleet, index.compile) == plus(RUN, times(number, fold), NOTED)


def test_folding_a_shard_that_has_both(fleet: Fleet, index: Index[Rec]) -> None:
    one, two = spread(1)
    index.put_many([one, two])
    index.put(one)
    fold = plus({"list": 2}, {"get": 2, "delete": 2}, SHARD, LOCK)
    assert requests(fleet, index.compile) == plus(RUN, fold, NOTED)


def test_gathering_singles_into_a_pack(fleet: Fleet, index: Index[Rec], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "FOLD_BELOW_BYTES", 0)
    keys = keys_in("3a", 1_000)
    index.put_many(Rec(key, "x" * 100) for key in keys)
    index.compile(full=True)
    few, many = decide.PACK_SINGLES - 1, decide.PACK_SINGLES
    for key in keys[:few]:
        index.put(Rec(key))
    assert requests(fleet, index.compile) == plus(RUN, {"list": 1}), "too few yet: they rest"
    index.put(Rec(keys[few]))
    assert requests(fleet, index.compile) == plus(RUN, {"list": 1}, {"get": many, "delete": many}, {"put": 1})
    assert len(objects(fleet.store, "packs")) == 1
    assert objects(fleet.store, "inbox") == []
    assert requests(fleet, index.compile) == plus(RUN, {"list": 1}), "a pack rests too"


def test_a_shard_that_is_held_costs_one_look(fleet: Fleet, index: Index[Rec]) -> None:
    index.put_many(spread(1))
    (shard,) = {shard_id(rec.key) for rec in spread(1)}
    key = IndexKeys.of(NAME).lock(shard)
    runtime = system()
    Lock(fleet.store, key, key, LOCK_TTL_S, runtime, VersionWatch(runtime)).try_acquire()
    assert requests(fleet, index.compile) == plus(RUN, {"list": 1}, {"get": 1})
    forced = plus({"list": 1}, {"get": 1}, {"get": 1, "delete": 1}, SHARD)
    assert requests(fleet, lambda: index.compile(full=True)) == plus(RUN, forced, NOTED)


def test_a_lost_race_costs_the_swap_and_deletes_nothing() -> None:
    runtime = ManualRuntime()
    fleet = limpet.open("memory://", runtime=runtime)
    index = fleet.index(NAME, Rec, key="key")
    assert index.manifest
    network = ScriptedStore(runtime, _memory(fleet))
    mine = Index(network, NAME, runtime, index._typed, index._stamps, VersionWatch(runtime))
    mine.compile()
    index.put_many(spread(1))
    shard = IndexKeys.of(NAME).shard(shard_id(spread(1)[0].key))

    def too_late(send: Callable[[], Version]) -> Version:
        fleet.store.put(shard, b"")
        return send()

    network.puts.extend([None, too_late])  # the lock, and then the shard, which another compiler has just written
    report = mine.compile()
    assert (report.conflicts, report.folded) == (1, 0)
    assert len(objects(fleet.store, "packs")) == 1


def _memory(fleet: Fleet) -> MemoryStore:
    inner = fleet.meter.inner
    assert isinstance(inner, MemoryStore)
    return inner


# ---- nothing grows with what it need not ----


@pytest.mark.parametrize("other_records", [0, 5_000])
def test_the_size_of_the_index_changes_nothing(other_records: int) -> None:
    fleet = limpet.open("memory://")
    index = fleet.index(NAME, Rec, key="key")
    one, two = spread(1)
    index.put_many([one, two, *(Rec(f"other{n}", "x" * 100) for n in range(other_records))])
    index.compile(full=True)
    index = fleet.index(NAME, Rec, key="key")
    index.get(one.key)
    acts: list[tuple[Callable[[], object], dict[str, int]]] = [
        (lambda: index.put(one), {"put": 1}),
        (lambda: index.get(one.key), {"list": 2, "get": 2}),
        (lambda: index.put_many([one, two]), {"put": 1}),
        (lambda: index.get(one.key), {"list": 2, "get": 3}),
        (lambda: index.delete(two.key), {"put": 1}),
        (lambda: index.put(Rec(two.key, "longer")), {"put": 1}),
        (index.compile, plus(RUN, {"list": 2}, {"get": 4, "delete": 4}, SHARD, LOCK, NOTED)),
    ]
    for act, cost in acts:
        assert requests(fleet, act) == cost


@pytest.mark.parametrize("rounds", [3, 30])
def test_the_age_of_the_index_changes_nothing(rounds: int) -> None:
    fleet = limpet.open("memory://")
    index = fleet.index(NAME, Rec, key="key")
    for n in range(rounds):
        index.put_many(Rec(rec.key, str(n)) for rec in spread(3))
        index.compile(full=True)
    assert requests(fleet, lambda: index.put_many(Rec(rec.key, "longer") for rec in spread(3))) == {"put": 3}
    fold = plus({"list": 1}, {"get": 1, "delete": 1}, SHARD, LOCK)
    with fleet.meter.measure() as cost:
        index.compile()
    assert cost.requests == plus(RUN, times(3, fold), NOTED)
    assert cost.written_bytes < 20_000


# ---- a shard of tens of megabytes ----


@pytest.mark.parametrize("kind", ["large", "mixed", "exponential"])
def test_a_get_in_a_large_shard_is_three_ranges_of_192_kib(kind: str, many_keys: list[str]) -> None:
    fleet = limpet.open(f"memory://large-{uuid4().hex}")
    index = fleet.index(NAME, Rec, key="key")
    keys, absent = many_keys[:-200], many_keys[-200:]
    chance = Random(4)
    sizes = line_sizes(kind, chance)
    index.put_many(Rec(key, "x" * (next(sizes) - 50)) for key in keys)
    (pack,) = objects(fleet.store, "packs")
    size = fleet.store.head(pack).size
    assert size > {"large": 20 << 20, "mixed": 10 << 20, "exponential": 2 << 20}[kind]
    assert cheap_gets(fleet, index, keys, absent, chance) == 200, "an empty shard is asked for its size, and not read"
    index.compile(full=True)
    assert fleet.store.head(IndexKeys.of(NAME).shard("3a")).size == size
    assert cheap_gets(fleet, index, keys, absent, chance) == 1
    again = limpet.open(fleet.url)
    fresh = again.index(NAME, Rec, key="key")
    assert fresh.manifest.count("3a")
    assert cheap_gets(again, fresh, keys, absent, chance) == 0, "the manifest told the size"


@pytest.fixture(scope="module")
def many_keys() -> list[str]:
    """Keys of one shard; to find them takes a while."""
    return keys_in("3a", 6_200)


def cheap_gets(fleet: Fleet, index: Index[Rec], keys: list[str], absent: list[str], chance: Random) -> int:
    """Many gets in one shard, each within the promise. How many HEADs there were."""
    heads = 0
    for n in range(200):
        there = n % 3 > 0
        key = chance.choice(keys if there else absent)
        with fleet.meter.measure() as cost:
            assert (index.get(key) is not None) == there
        heads += cost.requests.pop("head", 0)
        assert cost.requests.pop("list") == 2
        assert cost.requests.pop("get") <= READS_MAX
        assert cost.requests == {}
        assert cost.read_bytes <= BYTES_MAX
    return heads


# ---- round trips in sequence on a far store ----

A = TypeVar("A")
B = TypeVar("B")


class TickRuntime(ManualRuntime):
    """A process whose clock shows what overlaps: calls of a fan-out start at the same time, as many as it allows."""

    inside = False

    def fan_out(self, call: Callable[[A], B], items: Iterable[A], *, at_once: int = 32) -> list[B]:
        """As `SystemRuntime`: one inside of another makes its calls one after the other. The last item goes first:
        no order is promised, and this one shows what relies on another.
        """
        todo = [*items]
        if self.inside or not todo:
            return [call(item) for item in todo]
        free = [self.time.now_s] * min(at_once, len(todo))
        results: list[B] = []
        self.inside = True
        for item in reversed(todo):
            self.time.now_s = heappop(free)
            results.append(call(item))
            heappush(free, self.time.now_s)
        self.inside = False
        self.time.now_s = max(free)
        return results[::-1]


class TickStore(MemoryStore):
    """A far store where each request takes one second."""

    far = True
    at_once = 32

    def __init__(self, runtime: TickRuntime) -> None:
        super().__init__(runtime=runtime)
        self.time = runtime.time
        self.before_get: Callable[[Key], None] | None = None
        self.before_list: Callable[[str], None] | None = None

    def get(self, key: Key, **options: Any) -> Blob:
        """See `Store.get`. `before_get` may meddle first."""
        self.time.now_s += 1
        if self.before_get is not None:
            self.before_get(key)
        return super().get(key, **options)

    def head(self, key: Key) -> Stat:
        """See `Store.head`."""
        self.time.now_s += 1
        return super().head(key)

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`."""
        self.time.now_s += 1
        return super().put(key, data, when=when)

    def delete(self, key: Key) -> None:
        """See `Store.delete`."""
        self.time.now_s += 1
        super().delete(key)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """See `Store.list`. `before_list` may meddle first."""
        self.time.now_s += 1
        if self.before_list is not None:
            self.before_list(prefix)
        return super().list(prefix, after=after)

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        """See `Store.list_dirs`."""
        self.time.now_s += 1
        return super().list_dirs(prefix)


class FarIndex:
    """An index on such a store, with two handles: one to look at, and another process's."""

    def __init__(self) -> None:
        self.runtime = TickRuntime()
        self.store = TickStore(self.runtime)
        self.mine, self.other = self.handle(), self.handle()
        records = [Rec(f"k{n}", "x" * 50) for n in range(2_000)]
        assert len({shard_id(rec.key) for rec in records}) == SHARDS
        self.other.put_many(records)
        self.other.compile(full=True)
        self.mine.get("k0")

    def handle(self) -> Index[Rec]:
        """Another process's."""
        stamps = stamps_of(self.store, self.runtime, "far")
        return Index(self.store, NAME, self.runtime, typed(Rec, "key"), stamps, VersionWatch(self.runtime))

    def trips(self, act: Callable[[], object]) -> int:
        """Round trips in sequence."""
        before = self.runtime.time.now_s
        act()
        return round(self.runtime.time.now_s - before)


@pytest.fixture
def far() -> FarIndex:
    return FarIndex()


def test_a_far_get_is_three_round_trips_whatever_waits(far: FarIndex) -> None:
    assert far.trips(lambda: far.mine.get("k1")) == 3
    far.other.put(Rec("k1", "single"))
    assert far.trips(lambda: far.mine.get("k1")) == 3, "the single is read while packs are listed"
    for n in range(4):
        far.other.put_many(Rec(f"k{m}", f"pack {n}") for m in range(2_000))
    assert far.trips(lambda: far.mine.get("k1")) == 3, "packs are read while the shard is"
    assert far.mine.get("k1") == Rec("k1", "pack 3")
    far.other.put(Rec("k1", "both"))
    assert far.trips(lambda: far.mine.get("k1")) == 3
    assert far.mine.get("k1") == Rec("k1", "both")


def test_a_far_get_many_is_three_round_trips_and_one_for_each_kind_of_object_that_waits(far: FarIndex) -> None:
    keys = [f"k{n}" for n in range(100)]
    far.mine.get_many(keys)
    assert far.trips(lambda: far.mine.get_many(keys)) == 3
    far.other.put_many(Rec(f"k{n}", "pack") for n in range(2_000))
    assert far.trips(lambda: far.mine.get_many(keys[:60])) == 4, "120 objects fit into one go, 200 do not"
    assert far.trips(lambda: far.mine.get_many(keys)) <= 5
    for key in keys[:60]:
        far.other.put(Rec(key, "single"))
    assert far.trips(lambda: far.mine.get_many(keys[:60])) <= 6
    assert {rec.text for rec in far.mine.get_many(keys).values()} == {"pack", "single"}


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("waits", ["single", "pack"])
def test_a_far_lookup_finds_what_a_compiler_moves_while_it_looks(
    far: FarIndex, waits: str, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "FOLD_BELOW_BYTES", 0)
    monkeypatch.setattr(decide, "FOLD_SHARE", 100)
    monkeypatch.setattr(decide, "PACK_SINGLES", 1)
    moved: list[Key] = []

    def move(key: Key) -> None:
        if "/inbox/" in key or "/packs/" in key:
            far.store.before_get = None
            far.other.compile(full=waits == "pack")  # a single goes into a pack, and a pack into the shard
            moved.append(key)

    if waits == "single":
        far.other.put(Rec("k1", waits))
    else:
        far.other.put_many(Rec(key, waits) for n in range(2_000) if shard_id(key := f"k{n}") == shard_id("k1"))
    far.store.before_get = move
    found = far.mine.get_many(["k1"]).get("k1") if many else far.mine.get("k1")
    assert found == Rec("k1", waits)
    assert len(moved) == 1, "it was moved between the listing and the read"


def test_a_far_get_many_looks_for_a_pack_that_was_made_of_singles_since(
    far: FarIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "FOLD_BELOW_BYTES", 0)
    monkeypatch.setattr(decide, "FOLD_SHARE", 100)
    monkeypatch.setattr(decide, "PACK_SINGLES", 1)

    def pack(prefix: str) -> None:
        far.store.before_list = None
        assert far.other.compile().packed == 1, f"before {prefix} is listed"

    far.other.put(Rec("k1", "single"))
    far.store.before_list = pack
    assert far.mine.get_many(["k1"]) == {"k1": Rec("k1", "single")}
    assert far.store.before_list is None


def test_a_far_compile_of_all_shards(far: FarIndex) -> None:
    far.other.put_many(Rec(f"k{n}", "again") for n in range(2_000))
    fold = 7  # list, look at the lock, take it, read the pack, the shard, write it, give back
    run, recorded, deletes = 3, 2, SHARDS // 32
    assert far.trips(lambda: far.mine.compile(full=True)) <= run + fold * SHARDS // 32 + recorded + deletes


def test_a_shard_of_which_no_digest_is_recorded_is_checked_before_it_is_built_upon() -> None:
    fleet = limpet.open("memory://")
    index = fleet.index(NAME, Rec, key="key")
    keys = keys_in("3a", 20)  # so many that a fold need not look at all of them
    index.put_many(Rec(key) for key in keys)
    index.compile(full=True)
    at = IndexKeys.of(NAME).shard("3a")
    fleet.store.put(at, b"".join(reversed(fleet.store.get(at).data.splitlines(keepends=True))))
    manifest_cell(index.storage).update(lambda now: None if now is None else msgspec.structs.replace(now, sums=()))
    index.put(Rec(keys[0], "later"))
    with pytest.raises(limpet.Corrupt, match="out of order"):
        index.compile(full=True)
