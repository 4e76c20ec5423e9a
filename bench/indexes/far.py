"""Our index on a store that is 30 ms away: lookups and a full compile, each against its aim."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import limpet
from bench.indexes.ours import NAME
from bench.indexes.records import Company, domain, made
from bench.slow import DELAY_S, SlowStore

__all__ = ["FarFigure", "measure_far"]

RECORDS = 24_000
KEYS = 100
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class FarFigure:
    """One measurement: the median of its rounds, and the aim; both in milliseconds."""

    what: str
    ms: float
    aim_ms: float | None = None

    def __str__(self) -> str:
        aim = (
            "" if self.aim_ms is None else f"  aim {self.aim_ms:,.0f}: {'met' if self.ms <= self.aim_ms else 'MISSED'}"
        )
        return f"{self.what:<44} {self.ms:>8,.0f} ms{aim}"


def measure_far(folder: Path) -> Iterator[FarFigure]:
    """Measure an index of 256 shards of about 8 KB. It is filled on the near store; then each request takes 30 ms."""
    fleet = limpet.open(folder / "fleet", durability="os")
    index = fleet.index(NAME, Company, key="domain")
    index.put_many(_companies(range(RECORDS), 0))
    index.compile(full=True)
    near, at_once = fleet.meter.inner, fleet.meter.at_once

    def slow(is_slow: bool) -> None:
        fleet.meter.inner = SlowStore(near, DELAY_S) if is_slow else near
        fleet.meter.at_once = SlowStore.at_once if is_slow else at_once
        fleet.meter.far = is_slow

    def timed(act: Callable[[], Any], rounds: int = ROUNDS) -> float:
        slow(True)
        times_s = []
        for _ in range(rounds):
            begun_s = time.perf_counter()
            act()
            times_s.append(time.perf_counter() - begun_s)
        slow(False)
        return median(times_s) * 1e3

    three_trips = 3 * DELAY_S * 1e3 + 15
    keys = [domain(number) for number in range(0, RECORDS, RECORDS // KEYS)]
    index.get_many(keys)
    yield FarFigure("get", timed(lambda: index.get(keys[0])), three_trips)
    yield FarFigure(f"get_many({KEYS})", timed(lambda: index.get_many(keys)), 200)
    index.put(*_companies([0], 1))
    yield FarFigure("get, a single waits", timed(lambda: index.get(keys[0])), three_trips)
    index.put_many(_companies(range(0, RECORDS, 12), 1))
    yield FarFigure("get, a single and a pack wait", timed(lambda: index.get(keys[0])), three_trips)
    yield FarFigure(f"get_many({KEYS}), packs wait in all shards", timed(lambda: index.get_many(keys)))
    yield FarFigure("compile, 256 packs into 256 shards", timed(lambda: index.compile(full=True), 1), 4_000)


def _companies(numbers: Sequence[int], wave: int) -> list[Company]:
    return [Company(*made(number, wave)) for number in numbers]
