"""The measurements of each system, the sizes at which they are made, and the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.indexes.records import Months, Upsert
from bench.indexes.runs import Failed, Lab
from bench.indexes.systems import System
from bench.indexes.trace import Traced

__all__ = ["FULL", "QUICK", "Row", "Scale", "Written", "measure"]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    loaded: int
    upserted: int
    lookups: int
    traced: int
    """How many lookups strace looks at."""
    cold: int
    """How many processes do one lookup each."""
    rounds: int
    enough_s: float
    """An upsert that took so long is not repeated."""
    grown: tuple[int, ...]
    """The sizes at which our index is measured alone."""

    @property
    def wave(self) -> Upsert:
        """What is loaded and upserted."""
        return Upsert(self.loaded, self.upserted)


FULL = Scale(1_000_000, 100_000, 1_000, 50, 3, rounds=3, enough_s=5.0, grown=(1_000_000, 10_000_000))
QUICK = Scale(20_000, 2_000, 100, 10, 1, rounds=1, enough_s=0.0, grown=(20_000, 100_000))


@dataclass(frozen=True, slots=True)
class Written:
    """What a load or an upsert took: the write, which every reader sees and which is durable, and settling after it."""

    prepare_s: float
    """Bringing the records into the form that the system takes. Counted nowhere."""
    write_s: float
    settle_s: float

    @property
    def both_s(self) -> float:
        """The write and settling."""
        return self.write_s + self.settle_s


@dataclass(slots=True)
class Row:
    """One system's figures."""

    system: System
    loaded: Written | None = None
    upserts: list[Written] = field(default_factory=list)
    size_bytes: int | None = None
    lookups: Mapping[str, Any] | None = None
    cold: Mapping[str, float] | None = None
    traced: Traced | None = None
    traced_lookups: int = 0
    scans: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    skipped: str = ""
    """What it needs and is not here, so that nothing of it was measured."""
    notes: list[str] = field(default_factory=list)
    failed: bool = False
    took_s: float = 0.0

    @property
    def upsert_s(self) -> float | None:
        """Seconds until every reader sees the upserted records: the median of the rounds."""
        return median(each.write_s for each in self.upserts) if self.upserts else None

    @property
    def upsert_both_s(self) -> float | None:
        """The same with settling."""
        return median(each.both_s for each in self.upserts) if self.upserts else None

    @property
    def lookup_ms(self) -> float | None:
        """A lookup with one handle: the mean."""
        return float(self.lookups["mean_ms"]) if self.lookups else None

    def scan_s(self, way: str = "") -> float | None:
        """A scan: the first way that is known, or the named one."""
        way = way or next(iter(self.scans), "")
        return float(self.scans[way]["s"]) if way in self.scans else None


def measure(row: Row, lab: Lab, scale: Scale, answer: Months, *, upserts_only: bool = False) -> None:
    """Measure one system and fill its row. A measurement that fails is described in the notes of the row.

    `answer` is what each scan must find. `upserts_only`: no lookups and no scans. Raises: NotHere.
    """
    begun_s = time.monotonic()
    if _part(row, "load", lambda: _load(row, lab)) and _part(row, "upsert", lambda: _upsert(row, lab, scale)):
        row.size_bytes = lab.size_bytes()
        if not upserts_only:
            _part(row, "lookups", lambda: _look(row, lab, scale))
            _part(row, "scan", lambda: _scan(row, lab, answer))
    row.took_s = time.monotonic() - begun_s


def _part(row: Row, what: str, call: Callable[[], None]) -> bool:
    try:
        call()
    except Failed as error:
        row.failed = True
        row.notes.append(f"failed: {what}: {error}")
        return False
    return True


def _load(row: Row, lab: Lab) -> None:
    row.loaded = _written(lab.load())


def _upsert(row: Row, lab: Lab, scale: Scale) -> None:
    lab.keep()
    while True:
        row.upserts.append(_written(lab.upsert()))
        if len(row.upserts) == scale.rounds or row.upserts[-1].both_s > scale.enough_s:
            return
        lab.restore()


def _written(found: Mapping[str, Any]) -> Written:
    return Written(found["prepare_s"], found["write_s"], found["settle_s"])


def _look(row: Row, lab: Lab, scale: Scale) -> None:
    row.lookups = lab.lookups(scale.lookups)
    row.cold = lab.cold(scale.cold)
    row.traced, row.traced_lookups = lab.traced(scale.traced), scale.traced


def _scan(row: Row, lab: Lab, answer: Months) -> None:
    for way, found in lab.scan().items():
        if {month: (count, total) for month, (count, total) in found["answer"].items()} != answer:
            raise Failed(f"{way}: the counts or sums are wrong")
        row.scans[way] = {"s": found["s"], "first_s": found["first_s"]}
