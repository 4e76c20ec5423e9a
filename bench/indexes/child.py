"""One process of a measurement: it loads, upserts, looks records up, or scans.

`python -m bench.indexes.child JOB.json` does the job and writes what it saw to `<JOB>.out`. Packages are imported and
records made before any clock starts.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench.indexes.api import Index, NotHere, Place, needs
from bench.indexes.grow import grow
from bench.indexes.records import Upsert, domain, expected, made, probes
from bench.indexes.trace import BEGIN, END

__all__ = ["NOT_HERE", "main"]

WARM_UP = 20
LOOKUPS_S = 60.0
"""Lookups end after so many seconds, however few they were."""
SCANS = 3
SCAN_ENOUGH_S = 5.0
"""A scan that took so long is not repeated."""
NOT_HERE = 3
"""The exit code that says: something is not installed. What it is stands in `<JOB>.out`."""


def main(path: Path) -> int:
    """Do the job in the file at `path`; the exit code."""
    job: dict[str, Any] = json.loads(path.read_text())
    out = path.with_suffix(".out")
    adapter = importlib.import_module(f"bench.indexes.{job['module']}")
    try:
        for module, package in adapter.NEEDS.items():
            needs(module, package)
    except NotHere as error:
        out.write_text(str(error))
        return NOT_HERE
    out.write_text(json.dumps(ACTS[job["act"]](adapter, job)))
    return 0


def _load(adapter: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    records = [made(number) for number in range(job["loaded"])]
    return _written(_open(adapter, job, fresh=True), "load", records)


def _upsert(adapter: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    records = [made(number, 1) for number in _wave(job).numbers()]
    return _written(_open(adapter, job), "upsert", records)


def _written(index: Index, verb: str, records: Sequence[Any]) -> dict[str, Any]:
    """Write, then settle, each timed."""
    begun_s = time.perf_counter()
    prepared = index.prepare(records)
    prepared_s = time.perf_counter()
    (index.load if verb == "load" else index.upsert)(prepared)
    written_s = time.perf_counter()
    index.settle()
    settled_s = time.perf_counter()
    index.close()
    return {
        "prepare_s": prepared_s - begun_s,
        "write_s": written_s - prepared_s,
        "settle_s": settled_s - written_s,
        "spent": dict(index.spent()),
    }


def _lookups(adapter: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    """Many lookups with one handle, each timed and each answer checked."""
    wave, index = _wave(job), _open(adapter, job)
    numbers = probes(wave, WARM_UP + job["lookups"])
    _look(index, numbers[:WARM_UP])
    before, spent = _read_bytes(), index.spent()
    times_s, answers = _look(index, numbers[WARM_UP:])
    read_bytes, after = _read_bytes() - before, index.spent()
    n = len(answers)
    _check(wave, numbers[WARM_UP : WARM_UP + n], answers)
    index.close()
    return {
        "lookups": n,
        "mean_ms": mean(times_s) * 1e3,
        "median_ms": median(times_s) * 1e3,
        "p99_ms": sorted(times_s)[len(times_s) * 99 // 100] * 1e3,
        "read_bytes": read_bytes / n,
        "spent": {name: (count - spent.get(name, 0)) / n for name, count in after.items() if count != spent.get(name)},
    }


def _cold(adapter: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    """Open the index and look one record up."""
    wave = _wave(job)
    number = probes(wave, 1, first=job["probe"])[0]
    before, begun_s = _read_bytes(), time.perf_counter()
    index = _open(adapter, job)
    answer = index.lookup(domain(number))
    spent_s, read_bytes = time.perf_counter() - begun_s, _read_bytes() - before
    _check(wave, [number], [answer])
    index.close()
    return {"ms": spent_s * 1e3, "read_bytes": read_bytes}


def _trace(adapter: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    """A few lookups between two marks that strace sees."""
    index = _open(adapter, job)
    numbers = probes(_wave(job), WARM_UP + job["lookups"])
    _look(index, numbers[:WARM_UP])
    os.path.exists(BEGIN)
    _look(index, numbers[WARM_UP:])
    os.path.exists(END)
    index.close()
    return {}


def _scan(adapter: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    """Every way to scan, each a few times with one handle."""
    index = _open(adapter, job)
    found: dict[str, Any] = {}
    for name, scan in index.scans().items():
        times_s = []
        for _ in range(SCANS):
            begun_s = time.perf_counter()
            answer = scan()
            times_s.append(time.perf_counter() - begun_s)
            if times_s[-1] > SCAN_ENOUGH_S:
                break
        found[name] = {"s": median(times_s), "first_s": times_s[0], "answer": answer}
    index.close()
    return found


def _grow(adapter: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    return grow(lambda: _open(adapter, job), _wave(job), job["lookups"])


def _open(adapter: Any, job: Mapping[str, Any], *, fresh: bool = False) -> Any:
    return adapter.connect(Place(Path(job["folder"]), fresh), job["options"])


def _wave(job: Mapping[str, Any]) -> Upsert:
    return Upsert(job["loaded"], job["upserted"])


def _look(index: Index, numbers: Sequence[int]) -> tuple[list[float], list[Any]]:
    times_s, answers = [], []
    until_s = time.perf_counter() + LOOKUPS_S
    for number in numbers:
        if time.perf_counter() > until_s:
            break
        key = domain(number)
        begun_s = time.perf_counter()
        answers.append(index.lookup(key))
        times_s.append(time.perf_counter() - begun_s)
    return times_s, answers


def _check(wave: Upsert, numbers: Sequence[int], answers: Sequence[Any]) -> None:
    for number, answer in zip(numbers, answers, strict=True):
        wanted = expected(wave, number)
        if answer != wanted:
            raise AssertionError(f"the lookup of {wanted[0]} answered {answer}, not {wanted}")


def _read_bytes() -> int:
    """What this process has read so far, by read and pread of whatever kind."""
    return int(Path("/proc/self/io").read_text().split()[1])


ACTS = {
    "load": _load,
    "upsert": _upsert,
    "lookups": _lookups,
    "cold": _cold,
    "trace": _trace,
    "scan": _scan,
    "grow": _grow,
}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
