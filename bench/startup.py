"""What it costs to start: the CPU time of a new process that imports Limpet or runs its command."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

__all__ = ["Start", "start_line", "starts"]

RUNS = 9


@dataclass(frozen=True, slots=True)
class Start:
    """One way to start: CPU time, user and system, of some runs. The aim is for the median."""

    name: str
    cpu_ms: float
    cpu_min_ms: float
    cpu_max_ms: float
    aim_ms: float | None

    @property
    def met(self) -> bool | None:
        """Whether it meets its aim; None without one."""
        return None if self.aim_ms is None else self.cpu_ms < self.aim_ms


def starts() -> list[Start]:
    """Start each of them `RUNS` times, in turn, so that other work on the machine slows all of them alike.

    One run more, before these, compiles the modules.
    """
    python, command = sys.executable, str(Path(sys.executable).parent / "limpet")
    ways: list[tuple[str, list[str], float | None]] = [
        ("Python alone", [python, "-c", "pass"], None),
        ("import limpet", [python, "-c", "import limpet"], 40.0),
        ("import limpet; limpet.open()", [python, "-c", "import limpet; limpet.open('memory://')"], 45.0),
        ("limpet --version", [command, "--version"], 40.0),
        ("limpet lock ls --help", [command, "lock", "ls", "--help"], 80.0),
        ("limpet --help", [command, "--help"], 100.0),
    ]
    spent: dict[str, list[float]] = {name: [] for name, _, _ in ways}
    with tempfile.TemporaryDirectory() as cache:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = cache
        for _ in range(1 + RUNS):
            for name, words, _ in ways:
                spent[name].append(_cpu_ms(words, environment))
    runs = {name: times[1:] for name, times in spent.items()}
    return [Start(name, median(runs[name]), min(runs[name]), max(runs[name]), aim) for name, _, aim in ways]


def _cpu_ms(words: list[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def start_line(start: Start) -> str:
    """One row for the terminal."""
    verdict = {None: "", True: "met", False: "MISSED"}[start.met]
    aim = f"{start.aim_ms:.0f} ms" if start.aim_ms else "-"
    return (
        f"start-up: {start.name:<36} {start.cpu_ms:6.0f} ms of CPU "
        f"({start.cpu_min_ms:.0f}-{start.cpu_max_ms:.0f})  aim {aim}  {verdict}"
    ).rstrip()
