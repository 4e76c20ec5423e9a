"""How our index grows: the same verbs on more and more records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from bench.indexes.records import Fields, Upsert, domain, expected, made, probes

if TYPE_CHECKING:
    from bench.indexes.ours import Ours

__all__ = ["grow"]

WARM_UP = 20
CHUNK = 1_000_000
"""So many records are made and put at once: memory holds no more of them."""


def grow(connect: Callable[[], Ours], wave: Upsert, lookups: int) -> dict[str, Any]:
    """Load, compile, upsert, compile as it pays, look up before and after. `wave` says how much of each."""
    index = connect()
    load_s = _put(index, (made(number) for number in range(wave.loaded)))
    begun_s = time.perf_counter()
    index.settle()
    compile_s = time.perf_counter() - begun_s
    compiled = _looked_up(connect(), Upsert(wave.loaded, 0), lookups)
    size = index.size()
    before = index.spent()
    upsert_s = _put(index, (made(number, 1) for number in wave.numbers()))
    put = index.spent()
    begun_s = time.perf_counter()
    report = index.compile()
    upsert_compile_s = time.perf_counter() - begun_s
    after = index.spent()
    return {
        "records": wave.loaded,
        "load_s": load_s,
        "compile_s": compile_s,
        "index_bytes": size,
        "upserted": wave.n,
        "upsert_s": upsert_s,
        "upsert_bytes": put["written_bytes"] - before["written_bytes"],
        "upsert_compile_s": upsert_compile_s,
        "rewritten_bytes": after["written_bytes"] - put["written_bytes"],
        "folded": report.folded,
        "rested": report.rested,
        "compiled": compiled,
        "waiting": _looked_up(connect(), wave, lookups),
    }


def _put(index: Ours, records: Iterator[Fields]) -> float:
    spent_s = 0.0
    while some := index.prepare([*islice(records, CHUNK)]):
        begun_s = time.perf_counter()
        index.load(some)
        spent_s += time.perf_counter() - begun_s
    return spent_s


def _looked_up(index: Ours, wave: Upsert, n: int) -> Mapping[str, float]:
    """What a lookup took: milliseconds, requests and bytes."""
    for number in probes(wave, WARM_UP):
        index.lookup(domain(number))
    numbers = probes(wave, n, first=WARM_UP)
    before, times_s = index.spent(), []
    for number in numbers:
        key = domain(number)
        begun_s = time.perf_counter()
        answer = index.lookup(key)
        times_s.append(time.perf_counter() - begun_s)
        if answer != expected(wave, number):
            raise AssertionError(f"the lookup of {key} answered {answer}, not {expected(wave, number)}")
    after = index.spent()
    return {
        "mean_ms": mean(times_s) * 1e3,
        "median_ms": median(times_s) * 1e3,
        "requests": (_total(after) - _total(before)) / n,
        "read_bytes": (after["read_bytes"] - before.get("read_bytes", 0)) / n,
    }


def _total(spent: Mapping[str, float]) -> float:
    return sum(count for name, count in spent.items() if not name.endswith("_bytes"))
