"""Single tasks beside the bare system calls of the same protocol, and beside another version of Limpet.

Each way is a process that lives for the whole run. They take turns, a few dozen tasks at a time, so that whatever else
the machine does meets all of them alike; CPU time (user and system) is compared, not wall time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import get_args

from bench.queues.bare import Durability

__all__ = ["SingleRow", "measure_single", "report_single"]

ROOT = Path(__file__).resolve().parent.parent.parent
GROUP = 40
AIM = 2.0
VERBS = ("push", "drain")


@dataclass(frozen=True, slots=True)
class SingleRow:
    """CPU microseconds of a task, by way: the median of all groups."""

    verb: str
    durability: str
    cpu_us: dict[str, float] = field(default_factory=dict)
    low_us: dict[str, float] = field(default_factory=dict)
    """The lowest tenth of the groups: nearer to a quiet machine."""

    def ratio(self, way: str, to: str) -> str:
        """How many times the time of the way `to`: by the medians, and by the lowest tenths."""
        return f"{self.cpu_us[way] / self.cpu_us[to]:.2f} ({self.low_us[way] / self.low_us[to]:.2f})"


def measure_single(folder: Path, *, groups: int, against: Path | None) -> Iterator[SingleRow]:
    """`against`: the `src` folder of another version of Limpet."""
    ways = {"limpet": ROOT / "src", "bare": ROOT / "src", **({"before": against} if against else {})}
    for durability in get_args(Durability):
        with tempfile.TemporaryDirectory(dir=folder, prefix="limpet-single-") as made, ExitStack() as stack:
            children = {way: stack.enter_context(_child(way, durability, made, src)) for way, src in ways.items()}
            samples: dict[tuple[str, str], list[float]] = {}
            for n in range(1 + groups):
                for verb in VERBS:
                    for way in [*ways] if n % 2 else [*ways][::-1]:
                        took_us = _ask(children[way], f"{verb} {GROUP}")
                        if n:  # the first group warms up
                            samples.setdefault((verb, way), []).append(took_us)
            for child in children.values():
                assert child.stdin is not None
                child.stdin.close()
        for verb in VERBS:
            sorted_us = {way: sorted(samples[verb, way]) for way in ways}
            yield SingleRow(
                verb,
                durability,
                {way: median(all_us) for way, all_us in sorted_us.items()},
                {way: all_us[len(all_us) // 10] for way, all_us in sorted_us.items()},
            )


def _child(way: str, durability: str, folder: str, src: Path) -> subprocess.Popen[str]:
    code = f"from bench.queues.bare import serve; serve({way!r}, {durability!r}, {folder!r})"
    env = {**os.environ, "PYTHONPATH": f"{src}{os.pathsep}{ROOT}"}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=env, stdin=pipe, stdout=pipe, text=True)


def _ask(child: subprocess.Popen[str], line: str) -> float:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{line}\n")
    child.stdin.flush()
    return float(child.stdout.readline())


def report_single(rows: Sequence[SingleRow], facts: Mapping[str, str]) -> tuple[str, str]:
    """The rows as Markdown and as JSON."""
    compared = bool(rows) and "before" in rows[0].cpu_us
    heads = ["single tasks", "limpet CPU µs", "bare CPU µs", "limpet / bare", "aim"]
    lines = [
        "# Single tasks beside bare system calls\n",
        "Written by `python bench/queue.py --single`; bench/README.md says how to read it.\n",
        " · ".join(f"{name} {value}" for name, value in facts.items()) + "\n",
        _table([*heads, *(["before CPU µs", "before / limpet"] if compared else [])]),
        _table(["---"] * (len(heads) + 2 * compared)),
    ]
    for row in rows:
        met = "met" if row.cpu_us["limpet"] <= AIM * row.cpu_us["bare"] else "MISSED"
        cells = [f"{row.verb}, {row.durability}", *(f"{row.cpu_us[way]:.1f}" for way in ("limpet", "bare"))]
        cells += [row.ratio("limpet", "bare"), f"{AIM:g}: {met}"]
        if compared:
            cells += [f"{row.cpu_us['before']:.1f}", row.ratio("before", "limpet")]
        lines.append(_table(cells))
    return "\n".join(lines) + "\n", json.dumps({"machine": facts, "rows": [*map(asdict, rows)]}, indent=1) + "\n"


def _table(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
