"""Records, keys of one shard, and counted acts, for the tests of the index."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from typing import Any

from limpet.app import Fleet
from limpet.keys import IndexKeys, Key
from limpet.store import MeteredStore, Store

__all__ = [
    "NAME",
    "PAST",
    "Rec",
    "at",
    "keys_in",
    "line_count",
    "line_sizes",
    "objects",
    "plus",
    "requests",
    "shard_data",
    "times",
]

NAME = "recs"
PAST = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Rec:
    """What most tests put."""

    key: str
    text: str | None = None


def at(seconds: float) -> datetime:
    """A moment of the past, for records that bring their own time."""
    return PAST + timedelta(seconds=seconds)


def keys_in(shard: str, number: int, *, prefix: str = "k") -> list[str]:
    """So many keys that all belong to one shard."""

    def all_() -> Iterator[str]:
        wanted, half = bytes.fromhex(shard[: len(shard) // 2 * 2]), shard[len(shard) // 2 * 2 :]
        for n in count():
            digest = hashlib.sha256(f"{prefix}{n}".encode()).digest()
            if digest.startswith(wanted) and digest.hex().startswith(shard if half else ""):
                yield f"{prefix}{n}"

    return [*islice(all_(), number)]


def requests(meter: MeteredStore | Fleet, act: Callable[[], object]) -> dict[str, int]:
    """What an act asked of the store, by verb."""
    meter = meter.meter if isinstance(meter, Fleet) else meter
    with meter.measure() as cost:
        act()
    return cost.requests


def plus(*costs: dict[str, int]) -> dict[str, int]:
    """Costs added up."""
    return dict(sum((Counter(cost) for cost in costs), Counter()))


def times(number: int, cost: dict[str, int]) -> dict[str, int]:
    """A cost so many times."""
    return {verb: number * each for verb, each in cost.items() if number * each}


def objects(store: Store, below: str, name: str = NAME) -> list[Key]:
    """The objects of the index under `inbox`, `packs`, `shards` or `quarantine`."""
    return [stat.key for stat in store.list(f"{IndexKeys.of(name).root}/{below}")]


def shard_data(store: Store, shard: str, name: str = NAME) -> bytes:
    """The bytes of a shard."""
    return store.get(IndexKeys.of(name).shard(shard)).data


def line_count(store: Store, name: str = NAME) -> int:
    """How many records, tombstones included, all the shards have."""
    return sum(store.get(key).data.count(b"\n") for key in objects(store, "shards", name) if key.endswith(".usv"))


def line_sizes(kind: str, chance: Any) -> Iterator[int]:
    """Endless sizes of lines: `constant`, `large`, `mixed` or `exponential`, none above 4 KiB."""
    while True:
        match kind:
            case "constant":
                yield 100
            case "large":
                yield 4096
            case "mixed":
                yield chance.choice((60, 4096))
            case _:
                yield min(4096, 60 + int(chance.expovariate(1 / 400)))
