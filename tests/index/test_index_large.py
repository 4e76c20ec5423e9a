"""An index of the sizes that people have: what an upsert rewrites, what a lookup reads, what it all holds in memory."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

import limpet
from index_helpers import NAME, Rec, keys_in, line_sizes, objects
from limpet.app import Fleet
from limpet.index import Index, decide
from limpet.keys import IndexKeys

SHARDS = 256
TEXT = "x" * 40
UPSERT = 0.01
REWRITE_MAX = 0.20


def sizes_of(fleet: Fleet) -> int:
    """The bytes of all shards."""
    return sum(stat.size for stat in fleet.store.list(f"{IndexKeys.of(NAME).root}/shards") if stat.key.endswith(".usv"))


def load(index: Index[Rec], number: int, *, chunk: int = 500_000) -> None:
    """So many records, compiled."""
    for first in range(0, number, chunk):
        index.put_many(Rec(f"key{n}", TEXT) for n in range(first, min(first + chunk, number)))
    index.compile(full=True)


def upserts(fleet: Fleet, index: Index[Rec], number: int, rounds: int) -> list[float]:
    """Upsert 1 % at a time, half of it new, and compile; the share of the index's bytes that each round wrote."""
    chance = Random(9)
    some = int(number * UPSERT)
    shares = []
    for round_ in range(rounds):
        old = [Rec(f"key{chance.randrange(number)}", str(round_) + TEXT) for _ in range(some // 2)]
        new = [Rec(f"new{round_}.{n}", TEXT) for n in range(some - len(old))]
        before = sizes_of(fleet)
        with fleet.meter.measure() as cost:
            index.put_many([*old, *new])
            index.compile()
        shares.append(cost.written_bytes / before)
    return shares


def test_upserting_one_percent_again_and_again_rewrites_at_most_a_fifth_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same ratios as with 10M records: a shard there has 16 times the bytes below which it is always folded."""
    number = 100_000
    fleet = limpet.open(f"memory://upsert-{uuid4().hex}")
    index = fleet.index(NAME, Rec, key="key")
    load(index, number)
    monkeypatch.setattr(decide, "FOLD_BELOW_BYTES", sizes_of(fleet) // SHARDS // 16)
    shares = upserts(fleet, index, number, 24)
    assert shares[0] <= REWRITE_MAX
    assert max(shares) <= 1.3, "at worst everything once, and what was put"
    assert sum(shares) / len(shares) <= REWRITE_MAX
    assert sum(shares) >= 1, "it came to folding"
    waiting = sum(stat.size for stat in fleet.store.list(f"{IndexKeys.of(NAME).root}/packs"))
    assert waiting <= 0.15 * sizes_of(fleet), "what waits stays small beside what is compiled"
    assert sum(1 for _ in index.scan()) == number + 24 * (int(number * UPSERT) // 2)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_upserting_one_percent_of_ten_million_rewrites_at_most_a_fifth(tmp_path: Path) -> None:
    number = 10_000_000
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    index = fleet.index(NAME, Rec, key="key")
    load(index, number)
    assert sizes_of(fleet) / SHARDS > 4 * decide.FOLD_BELOW_BYTES
    shares = upserts(fleet, index, number, 2)
    shutil.rmtree(tmp_path / "fleet")
    assert max(shares) <= REWRITE_MAX, shares


# ---- memory ----


def peak_mb(act: Iterator[object]) -> float:
    """How much more than before was held at once while it ran."""
    tracemalloc.start()
    try:
        for _ in act:
            pass
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


@pytest.fixture
def heavy(tmp_path: Path) -> Index[Rec]:
    """40 shards of 1 MB each, on a directory, so that no data is in this process."""
    fleet = limpet.open(tmp_path / "fleet", durability="os")
    index = fleet.index(NAME, Rec, key="key")
    for n in range(40):
        index.put_many(Rec(key, "x" * 4000) for key in keys_in(f"{n:02x}", 4, prefix=f"{n}."))
    index.compile(full=True)
    return index


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
