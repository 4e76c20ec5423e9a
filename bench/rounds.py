"""Time several ways of doing one thing side by side, in rounds, so that a noisy machine troubles all of them alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median, quantiles

__all__ = ["Batch", "Call", "Case", "Row", "measure"]

Call = Callable[[], object]
Batch = Callable[[int], Sequence[Call]]
"""`batch(n)` prepares `n` calls, which is not timed. With T threads, call i is run by thread i % T."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing done our way, and the bare ways to compare it with. Without an aim it only shows the noise."""

    name: str
    ours: Batch
    bare: Mapping[str, Batch]
    aim: float | None
    calls: int
    rounds: int
    threads: int = 1
    where: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Ours against one bare way. Times are medians over the rounds, in microseconds a call; ratios are ours / bare.

    The ratio is the median of the rounds' own ratios, with its quartiles. `cpu` is the CPU time of this process, all
    threads together; a server's is not in it.
    """

    where: str
    name: str
    threads: int
    against: str
    ours_us: float
    bare_us: float
    ratio: float
    ratio_q1: float
    ratio_q3: float
    ours_cpu_us: float
    bare_cpu_us: float
    aim: float | None
    met: bool | None
    note: str


@dataclass(frozen=True, slots=True)
class _Spent:
    wall_us: float
    cpu_us: float


def measure(case: Case) -> list[Row]:
    """Run the case: a round to warm up, then rounds in which every way has its turn, in changing order."""
    ways = {"": case.ours, **case.bare}
    spent: dict[str, list[_Spent]] = {name: [] for name in ways}
    order = [*ways]
    with ThreadPoolExecutor(case.threads) as pool:
        for turn in range(case.rounds + 1):
            for name in order:
                took = _spend(ways[name](case.calls), case.threads, pool)
                if turn > 0:
                    spent[name].append(took)
            order = [*order[1:], order[0]] if turn % 2 else order[::-1]
    return [_row(case, against, spent[""], spent[against]) for against in case.bare]


def _spend(calls: Sequence[Call], threads: int, pool: ThreadPoolExecutor) -> _Spent:
    gc.collect()
    gc.disable()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    if threads == 1:
        _run(calls)
    else:
        for _ in pool.map(_run, [calls[i::threads] for i in range(threads)]):
            pass
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    gc.enable()
    return _Spent(wall_s / len(calls) * 1e6, cpu_s / len(calls) * 1e6)


def _run(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _row(case: Case, against: str, ours: Sequence[_Spent], bare: Sequence[_Spent]) -> Row:
    q1, ratio, q3 = quantiles([mine.wall_us / theirs.wall_us for mine, theirs in zip(ours, bare, strict=True)], n=4)
    return Row(
        where=case.where,
        name=case.name,
        threads=case.threads,
        against=against,
        ours_us=median(each.wall_us for each in ours),
        bare_us=median(each.wall_us for each in bare),
        ratio=ratio,
        ratio_q1=q1,
        ratio_q3=q3,
        ours_cpu_us=median(each.cpu_us for each in ours),
        bare_cpu_us=median(each.cpu_us for each in bare),
        aim=case.aim,
        met=None if case.aim is None else ratio <= case.aim,
        note=case.note,
    )
