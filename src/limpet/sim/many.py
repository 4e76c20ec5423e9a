"""Many seeds: run them on all cores, and add up what happened."""

from __future__ import annotations

import multiprocessing
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from limpet.runtime import system
from limpet.sim.scenarios import SCENARIOS

__all__ = ["Sum", "blocks", "coverage_table", "run_seeds", "run_until"]

BLOCK = 50


@dataclass(slots=True)
class Sum:
    """What some runs of a scenario had in common."""

    runs: int = 0
    virtual_s: float = 0.0
    busy_s: float = 0.0
    calls: list[int] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)
    actors: list[int] = field(default_factory=list)
    by_kind: Counter[str] = field(default_factory=Counter)
    coverage: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Sum) -> None:
        """Take in the sum of other runs."""
        self.runs += other.runs
        self.virtual_s += other.virtual_s
        self.busy_s += other.busy_s
        for mine, theirs in (
            (self.calls, other.calls),
            (self.faults, other.faults),
            (self.actors, other.actors),
        ):
            mine.extend(theirs)
        self.by_kind.update(other.by_kind)
        self.coverage.update(other.coverage)
        self.broken.extend(other.broken)


def _block(scenario: str, seeds: range) -> Sum:
    run = SCENARIOS[scenario]
    total = Sum()
    started_s = system().elapsed_s()
    for seed in seeds:
        world, violation = run(seed)
        total.runs += 1
        total.virtual_s += world.now_s
        total.calls.append(world.calls)
        total.faults.append(sum(world.fault_counts.values()))
        total.actors.append(sum(1 for process in world.processes if process.calls))
        total.by_kind.update(world.fault_counts)
        total.coverage.update(world.coverage)
        if violation is not None:
            total.broken.append((seed, str(violation).splitlines()[0]))
    total.busy_s = system().elapsed_s() - started_s
    return total


def blocks(first: int, count: int) -> Iterator[range]:
    """`count` seeds from `first`, in blocks of 50."""
    for start in range(first, first + count, BLOCK):
        yield range(start, min(start + BLOCK, first + count))


def _spread(scenario: str, work: Iterable[range], jobs: int) -> Iterator[Sum]:
    if jobs == 1:
        yield from map(partial(_block, scenario), work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        work = iter(work)
        under_way = deque(pool.apply_async(_block, (scenario, seeds)) for seeds in islice(work, 2 * jobs))
        while under_way:
            yield under_way.popleft().get()
            under_way.extend(pool.apply_async(_block, (scenario, seeds)) for seeds in islice(work, 1))


def run_seeds(scenario: str, first: int, count: int, *, jobs: int) -> Sum:
    """The sum over `count` seeds."""
    total = Sum()
    for part in _spread(scenario, blocks(first, count), jobs):
        total.add(part)
    return total


def run_until(scenario: str, first: int, seconds: float, *, jobs: int) -> Iterator[Sum]:
    """Sums that grow until so many real seconds have passed or an invariant broke."""
    total = Sum()
    started_s = system().elapsed_s()
    for part in _spread(scenario, _blocks_until(first, started_s + seconds), jobs):
        total.add(part)
        yield total
        if total.broken:
            return


def _blocks_until(first: int, until_s: float) -> Iterator[range]:
    while system().elapsed_s() < until_s:
        yield range(first, first + BLOCK)
        first += BLOCK


def coverage_table(coverage: Counter[tuple[str, str]]) -> str:
    """How often each fault struck each protocol step."""
    steps = sorted({step for _, step in coverage})
    kinds = sorted({kind for kind, _ in coverage})
    widths = [max(len(step), 6) for step in steps]
    lines = [" " * 17 + "  ".join(step.rjust(width) for step, width in zip(steps, widths, strict=True))]
    for kind in kinds:
        cells = (str(coverage[kind, step] or "-").rjust(width) for step, width in zip(steps, widths, strict=True))
        lines.append(f"{kind:<17}" + "  ".join(cells))
    return "\n".join(lines)
