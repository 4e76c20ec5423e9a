"""Limpet in a simulated world of virtual time, faulty networks and dying processes, all decided by one seed.

`python -m sim kernel --seed 7` runs one seed; `... soak --seconds 600` tries new ones.

    world       virtual time, the scheduler, the trace; the runtime of a simulated process
    bucket      the object store, and the network between it and a process
    actors      faults and when they strike; slots of processes that take turns, crash and restart; `perform` runs them

A scenario is one file: its actors, a model of what they did and were shown, and the invariants (`kernel`, which also
has the check for linearizability, `directory`, which also has the file system of a machine that may lose power,
`queue`, `durable`, `swept`, `lives`, `backup`, `supervisor`, `index`, `catalog`). This module has the scenarios by
name, runs many seeds, removes faults that a failure does not need, and prints a trace.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from itertools import islice

import msgspec

from limpet.kernel.runtime import system
from sim.actors import perform
from sim.world import TraceEvent, Violation, World

__all__ = [
    "SCENARIOS",
    "RunSum",
    "Scenario",
    "coverage_table",
    "describe",
    "run_seeds",
    "run_until",
    "shrink",
    "trace_lines",
]

Scenario = Callable[..., tuple[World, Violation | None]]


def _run(module: str, actors: str, seed: int, *, muted: frozenset[str] = frozenset()) -> tuple[World, Violation | None]:
    # A module is imported when it is needed: that of the catalog takes a second.
    return perform(getattr(import_module(module), actors), seed, muted=muted)


_ACTORS = {
    "kernel": ("sim.kernel", "KernelActors"),
    "directory": ("sim.directory", "DirectoryActors"),
    "queue": ("sim.queue", "QueueActors"),
    "queue_far": ("sim.queue", "FarQueueActors"),
    "durable": ("sim.durable", "DurableActors"),
    "swept": ("sim.swept", "SweptActors"),
    "backup": ("sim.backup", "BackupActors"),
    "drop": ("sim.drop", "DropActors"),
    "lives": ("sim.lives", "LivesActors"),
    "supervisor": ("sim.supervisor", "SupervisorActors"),
    "index": ("sim.index", "IndexActors"),
    "index_far": ("sim.index", "FarIndexActors"),
    "index_disk": ("sim.index", "IndexDiskActors"),
    "catalog": ("sim.catalog", "CatalogActors"),
    "maintain": ("sim.maintain", "MaintainActors"),
}
SCENARIOS: dict[str, Scenario] = {name: partial(_run, *place) for name, place in _ACTORS.items()}
"""Each runs a seed: `run(seed, muted=frozenset(...))`."""

BLOCK = 10
"""Seeds that a process runs before it reports."""
SHRINK_RUNS_MAX = 400
SHOWN_BYTES = 200


# ---- many seeds ----


@dataclass(slots=True)
class RunSum:
    """The sum over some runs of a scenario."""

    runs: int = 0
    virtual_s: float = 0.0
    busy_s: float = 0.0
    calls: list[int] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)
    actors: list[int] = field(default_factory=list)
    by_kind: Counter[str] = field(default_factory=Counter)
    coverage: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: RunSum) -> None:
        """Add the sum over other runs."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def run_seeds(scenario: str, first: int, count: int, *, jobs: int) -> RunSum:
    """The sum over `count` seeds."""
    total = RunSum()
    blocks = (range(first, first + count)[at : at + BLOCK] for at in range(0, count, BLOCK))
    for part in _spread(scenario, blocks, jobs):
        total.add(part)
    return total


def run_until(scenario: str, first: int, seconds: float, *, jobs: int) -> Iterator[RunSum]:
    """Cumulative sums, until this many real seconds have passed or an invariant is violated."""
    total = RunSum()
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


def _spread(scenario: str, work: Iterable[range], jobs: int) -> Iterator[RunSum]:
    if jobs == 1:
        yield from map(partial(_run_block, scenario), work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _begin, (scenario,)) as pool:
        work = iter(work)
        under_way = deque(pool.apply_async(_run_block, (scenario, seeds)) for seeds in islice(work, 2 * jobs))
        while under_way:
            yield under_way.popleft().get()
            under_way.extend(pool.apply_async(_run_block, (scenario, seeds)) for seeds in islice(work, 1))


def _begin(scenario: str) -> None:
    """Import all of a scenario. It stays to the end, and is not looked through for garbage."""
    import_module(_ACTORS[scenario][0])
    gc.freeze()


def _run_block(scenario: str, seeds: range) -> RunSum:
    total = RunSum()
    started_s = system().elapsed_s()
    for seed in seeds:
        world, violation = SCENARIOS[scenario](seed)
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


def coverage_table(coverage: Counter[tuple[str, str]]) -> str:
    """How often each fault met each protocol step."""
    steps = sorted({step for _, step in coverage})
    kinds = sorted({kind for kind, _ in coverage})
    widths = [max(len(step), 6) for step in steps]
    lines = [" " * 17 + "  ".join(step.rjust(width) for step, width in zip(steps, widths, strict=True))]
    for kind in kinds:
        cells = (str(coverage[kind, step] or "-").rjust(width) for step, width in zip(steps, widths, strict=True))
        lines.append(f"{kind:<17}" + "  ".join(cells))
    return "\n".join(lines)


# ---- fewer faults, same failure ----


def shrink(run: Scenario, seed: int) -> tuple[frozenset[str], World, Violation]:
    """The largest set of muted faults, found greedily, with which the seed still violates an invariant.

    Faults are drawn per request, so muting one does not change the others; each attempt is a new run.
    """
    world, violation = run(seed)
    assert violation is not None, "nothing to shrink"
    muted: frozenset[str] = frozenset()
    left = SHRINK_RUNS_MAX
    part = max(1, len(set(world.faults)) // 2)
    while left > 0:
        smaller = False
        faults = sorted(set(world.faults))
        for start in range(0, len(faults), part):
            left -= 1
            tried = muted | frozenset(faults[start : start + part])
            world_now, violation_now = run(seed, muted=tried)
            if violation_now is not None:
                muted, world, violation, smaller = tried, world_now, violation_now, True
                break
            if left <= 0:
                break
        if not smaller:
            if part == 1:
                break
            part = max(1, part // 2)
    return muted, world, violation


# ---- the trace ----


def trace_lines(world: World) -> Iterator[str]:
    """The trace of a run as text."""
    yield f"seed {world.seed}: {world.calls} store calls, {len(world.faults)} faults, {world.now_s:.0f} virtual s"
    yield from map(_line, world.trace)


def _line(event: TraceEvent) -> str:
    struck = f"  << {event.fault}" if event.fault else ""
    about = " ".join(part for part in (event.key, describe(event.detail)) if part)
    return f"{event.at_s:9.3f}  {event.who:<9} {event.what:<13} {about}  -> {event.result}{struck}".rstrip(" ->")


def describe(detail: str | bytes) -> str:
    """A short text for the body of a request."""
    if isinstance(detail, str):
        return detail
    if not detail.startswith(b"{"):
        return repr(detail[:SHOWN_BYTES].decode(errors="replace").replace("\x1f", "|"))
    fields = msgspec.json.decode(detail.split(b"\n", 1)[0])
    if not isinstance(fields, dict) or "seq" not in fields:
        return ""
    if "state" in fields:
        return f"[seq {fields['seq']}: {fields['state']}, token {fields.get('token')}, {fields.get('worker_id')}]"
    fence = fields.get("fence")
    token = f", token {fence['token']}" if fence else ""
    return f"[seq {fields['seq']}: {fields.get('value')!r}{token}]"
