"""What is measured of each system, at which sizes, and what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from bench.queues.runs import Claims, Drain, Failed, Killed, Lab
from bench.queues.systems import System

__all__ = ["FULL", "QUICK", "Row", "Scale", "measure"]

FILL_S_MAX = 120.0
PRODUCERS = 2
MILLION_SINGLE_GB = 8.0
"""What a million entries take of tmpfs and of the kernel's memory, with room to spare."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. A system that is slow drains `slow_drained` of a backlog, others up to `drained`."""

    backlogs: tuple[int, ...]
    many: int
    many_claims: int
    """How many claims are made of the largest backlog, at least: a page of ours, which is one look, is a thousand."""
    drained: int
    slow_drained: int
    killed: int
    rounds: int
    enough_s: float
    """A measurement that took so long is not repeated."""

    @property
    def judged(self) -> int:
        """The backlog at which systems are compared."""
        return self.backlogs[-1]


FULL = Scale((1_000, 20_000), 1_000_000, 1_000, 20_000, 2_000, killed=300, rounds=3, enough_s=5.0)
QUICK = Scale((200, 1_000), 5_000, 10, 1_000, 200, killed=150, rounds=1, enough_s=0.0)


@dataclass(slots=True)
class Row:
    """One system's figures; rates are medians of the rounds in `push_samples` and `samples`."""

    system: System
    push_samples: list[float] = field(default_factory=list)
    samples: dict[int, list[Drain]] = field(default_factory=dict)
    two_samples: list[Drain] = field(default_factory=list)
    killed: Killed | None = None
    skipped: str = ""
    """What it needs and is not here, so that nothing of it was measured."""
    notes: list[str] = field(default_factory=list)
    failed: bool = False
    took_s: float = 0.0

    @property
    def push_per_s(self) -> float | None:
        """Tasks pushed in a second by one producer, up to the backlog at which systems are compared."""
        return median(self.push_samples) if self.push_samples else None

    def per_s(self, backlog: int) -> float | None:
        """Tasks handled in a second by one worker."""
        drains = self.samples.get(backlog)
        return median(drain.per_s for drain in drains) if drains else None

    def claims(self, backlog: int) -> Claims | None:
        """What a claim cost, in the middle one of the rounds."""
        found = [drain.claims for drain in self.samples.get(backlog, ()) if drain.claims is not None]
        return sorted(found, key=lambda claims: claims.mean_us)[len(found) // 2] if found else None

    @property
    def two_per_s(self) -> float | None:
        """Tasks handled in a second by two workers together."""
        return median(drain.per_s for drain in self.two_samples) if self.two_samples else None

    @property
    def two_again(self) -> int:
        """The most tasks that two workers were given twice in a run, without any crash."""
        return max((drain.again for drain in self.two_samples), default=0)


def measure(row: Row, lab: Lab, scale: Scale) -> None:
    """Everything there is to know of one system, put into its row. What fails is told in its notes.

    Raises: NotHere.
    """
    begun_s = time.monotonic()
    for backlog in scale.backlogs:
        _part(row, f"{backlog:,} pending", partial(_repeat, partial(_one_worker, row, lab, scale, backlog), scale))
    if row.system.pairs:
        _part(row, "2 workers", partial(_repeat, partial(_two_workers, row, lab, scale), scale))
    _part(row, "kill -9", partial(_kill, row, lab, scale))
    if row.system.million:
        _part(row, f"{scale.many:,} pending", partial(_many, row, lab, scale))
    row.took_s = time.monotonic() - begun_s


def _part(row: Row, what: str, call: Callable[[], None]) -> None:
    try:
        call()
    except Failed as error:
        row.failed = True
        row.notes.append(f"failed: {what}: {error}")


def _repeat(once: Callable[[], None], scale: Scale) -> None:
    for _ in range(scale.rounds):
        begun_s = time.monotonic()
        once()
        if time.monotonic() - begun_s > scale.enough_s:
            return


def _one_worker(row: Row, lab: Lab, scale: Scale, backlog: int) -> None:
    pushed_per_s, drain = lab.drain(backlog, _share(row, scale, backlog))
    row.samples.setdefault(backlog, []).append(drain)
    if backlog == scale.judged:
        row.push_samples.append(pushed_per_s)


def _two_workers(row: Row, lab: Lab, scale: Scale) -> None:
    n = _share(row, scale, scale.judged) // (2 if row.system.slow else 1)
    row.two_samples.append(lab.drain(scale.judged, n, workers=2)[1])


def _kill(row: Row, lab: Lab, scale: Scale) -> None:
    row.killed = lab.kill(scale.killed)


def _share(row: Row, scale: Scale, backlog: int) -> int:
    """How many tasks of a backlog are drained."""
    return min(backlog, scale.slow_drained if row.system.slow else scale.drained)


def _many(row: Row, lab: Lab, scale: Scale) -> None:
    """The largest backlog, unless it would take too long or too much memory; then a note says so."""
    if row.system.kind == "ours" and row.system.batch == 1:
        if row.push_per_s is None:
            raise Failed("there is no rate to tell how long it would take to fill")
        fill_s = scale.many / row.push_per_s / PRODUCERS
        if fill_s > FILL_S_MAX:
            row.notes.append(f"not measured at {scale.many:,}: filling it would take {fill_s:.0f} s")
            return
        if _free_gb() < MILLION_SINGLE_GB * scale.many / 1e6:
            row.notes.append(f"not measured at {scale.many:,}: it takes {MILLION_SINGLE_GB:.0f} GB of memory")
            return
    n = max(scale.drained, scale.many_claims * row.system.batch)
    row.samples[scale.many] = [lab.drain_filled(scale.many, n, producers=PRODUCERS)]


def _free_gb() -> float:
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 1e6
