"""An index of the sizes that people have: what an upsert rewrites, what a lookup reads, what it all holds in memory."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

import limpet
from limpet.app import Fleet
from limpet.index import Index, decide, reader
from limpet.kernel.keys import IndexKeys
from support.index import NAME, Rec, keys_in, line_sizes, objects

SHARDS = 256
TEXT = "x" * 40
UPSERT = 0.01
REWRITE_MAX = 0.20


def sizes_of(fleet: Fleet) -> int:
    """The bytes of all shards."""
    return sum(stat.size for stat in fleet.store.list(f"{IndexKeys.of(NAME).root}/shards") if stat.key.endswith(".usv"))


def load(index: Index[Rec], keys: Iterable[str], *, chunk: int = 500_000) -> None:
    """A record for each key, compiled."""
    keys = iter(keys)
    while some := [*islice(keys, chunk)]:
        index.put_many(Rec(key, TEXT) for key in some)
    index.compile(full=True)


def upserts(fleet: Fleet, index: Index[Rec], old: Sequence[str], new: Iterator[str], rounds: int) -> list[float]:
    """Upsert 1 % at a time, half of it new, and compile; the share of the index's bytes that each round wrote."""
    chance = Random(9)
    half = int(len(old) * UPSERT / 2)
    shares = []
    for round_ in range(rounds):
        some = [*(old[chance.randrange(len(old))] for _ in range(half)), *islice(new, half)]
        before = sizes_of(fleet)
        with fleet.meter.measure() as cost:
            index.put_many(Rec(key, f"{round_}{TEXT}") for key in some)
            index.compile()
        shares.append(cost.written_bytes / before)
    return shares


def test_upserting_one_percent_again_and_again_rewrites_at_most_a_fifth_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same ratios as with 10M records: a shard there has 16 times the bytes below which it is always folded."""
    shards = 4
    keys = [key for n in range(shards) for key in keys_in(f"{n:02x}", 1_200)]
    old, new = keys[::3] + keys[1::3], iter(keys[2::3])
    fleet = limpet.open(f"memory://upsert-{uuid4().hex}")
    index = fleet.index(NAME, Rec, key="key")
    load(index, old)
    monkeypatch.setattr(decide, "FOLD_BELOW_BYTES", sizes_of(fleet) // shards // 16)
    rounds = 30
    shares = upserts(fleet, index, old, new, rounds)
    assert shares[0] <= REWRITE_MAX
    assert max(shares) <= 1.5, "at worst everything once, what was put, and the manifest"
    assert sum(shares) / rounds <= REWRITE_MAX
    assert sum(shares) >= 1, "it came to folding"
    waiting = sum(stat.size for stat in fleet.store.list(f"{IndexKeys.of(NAME).root}/packs"))
    assert waiting <= 0.15 * sizes_of(fleet), "what waits stays small beside what is compiled"
    assert sum(1 for _ in index.scan()) == len(old) + rounds * int(len(old) * UPSERT / 2)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_upserting_one_percent_of_ten_million_rewrites_at_most_a_fifth(tmp_path: Path) -> None:
    number = 10_000_000
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    index = fleet.index(NAME, Rec, key="key")
    load(index, (f"key{n}" for n in range(number)))
    assert sizes_of(fleet) / SHARDS > 4 * decide.FOLD_BELOW_BYTES
    old = [f"key{n}" for n in range(number)]
    shares = upserts(fleet, index, old, (f"new{n}" for n in count()), 2)
    shutil.rmtree(tmp_path / "fleet")
    assert max(shares) <= REWRITE_MAX, shares


# ---- memory ----

HEAVY = 12
SHARD_MB = 2


def peak_mb(act: Callable[[], object]) -> float:
    """How much more than before was held at once while it ran."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def test_a_scan_and_a_compile_hold_about_one_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a directory, so that no data is in this process but what it works on; shards too large to be read together."""
    monkeypatch.setattr(reader, "GROUP_BYTES", SHARD_MB << 20)
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    fleet.meter.at_once = 1
    index = fleet.index(NAME, Rec, key="key")
    keys = {f"{n:02x}": keys_in(f"{n:02x}", 32) for n in range(HEAVY)}
    for some in keys.values():
        index.put_many(Rec(key, "x" * (SHARD_MB << 20 >> 5)) for key in some)
    index.compile(full=True)
    assert sizes_of(fleet) >= HEAVY * SHARD_MB << 20

    def scan() -> None:
        for _ in index.scan():
            pass

    def get_many() -> None:
        index.get_many([key for some in keys.values() for key in some[:1]])

    assert peak_mb(scan) <= 5 * SHARD_MB
    for some in keys.values():
        index.put_many([Rec(some[0], "small"), Rec(some[1], "small")])
    assert peak_mb(scan) <= 5 * SHARD_MB
    assert peak_mb(get_many) <= 5 * SHARD_MB
    assert peak_mb(lambda: index.compile(full=True)) <= 5 * SHARD_MB


# ---- a shard of 300 MB ----

BYTES_MAX = 192 << 10
KEYS = {"constant": 310_000, "mixed": 155_000, "large": 78_000}


def _some_keys(part: int, number: int) -> list[str]:
    return keys_in("3a", number, prefix=f"part{part}.")


@pytest.fixture(scope="module")
def very_many_keys() -> list[str]:
    """Keys of one shard, found by two processes."""
    number = max(KEYS.values()) + 2_000
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        parts = [*pool.map(partial(_some_keys, number=number // 20), range(20))]
    keys = [key for part in parts for key in part]
    Random(1).shuffle(keys)
    return keys


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [*KEYS])
def test_a_get_in_a_shard_of_300_mb_is_three_ranges_of_192_kib(
    tmp_path: Path, very_many_keys: list[str], kind: str
) -> None:
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    index = fleet.index(NAME, Rec, key="key")
    keys, absent = very_many_keys[: KEYS[kind]], very_many_keys[-2_000:]
    chance = Random(2)
    sizes = (1000 for _ in keys) if kind == "constant" else line_sizes(kind, chance)
    index.put_many(Rec(key, "x" * max(0, size - 60)) for key, size in zip(keys, sizes, strict=False))
    index.compile(full=True)
    assert objects(fleet.store, "packs") == []
    assert fleet.store.head(IndexKeys.of(NAME).shard("3a")).size >= 290 * 10**6
    index.get(keys[0])
    for n in range(3_000):
        there = n % 3 > 0
        with fleet.meter.measure() as cost:
            assert (index.get(chance.choice(keys if there else absent)) is not None) == there
        assert cost.requests.pop("list") == 2
        assert cost.requests.pop("get") <= 3
        assert cost.requests == {}
        assert cost.read_bytes <= BYTES_MAX
    shutil.rmtree(tmp_path / "fleet")
