"""The catalog against other catalogs: creating tables and appending to them with 1, 8 and 64 clients, in three places.

`python bench/catalog.py` starts the servers that it needs, measures, prints a line for each measurement, and writes
bench/results/catalog.md, catalog.json and catalog.svg. `--quick` measures little and writes nothing; `--only TEXT`
measures what has TEXT in its line (`growth`: requests, bytes and CPU by the number of tables; `scale`: lists, loads and
commits with 100,000 tables, start-up and takeover), and writes nothing. It takes about ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.pop(0)  # bench/queue.py would hide the standard library's queue
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bench.catalogs.api import NotHere
from bench.catalogs.places import TMPFS, Places
from bench.catalogs.runs import Measured, measured
from bench.catalogs.systems import CLIENTS, PLACES, SYSTEMS, PlaceKind, System
from bench.catalogs.tables import grown_line, line, save, scaled_lines, summary
from bench.queues.runs import Failed
from bench.report import file_system, machine, versions

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("pyiceberg", "boringcatalog", "pyarrow", "SQLAlchemy", "uvicorn", "uvloop", "httptools")
LARGE: tuple[tuple[PlaceKind, int], ...] = (("directory", 1), ("30 ms", 64))
"""Where, and with how many clients, a catalog of many tables is measured."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    seconds: float
    clients: tuple[int, ...]
    large: int
    """How many tables a large catalog has; 0: there is none."""
    grown: tuple[int, ...]
    scaled: tuple[int, ...]
    """With how many tables lists, loads, commits, start-up and takeover are measured."""
    rounds: int
    """For how many rounds, from one checkpoint to the next, creates and appends of each size are counted."""


FULL = Scale(3.0, CLIENTS, 10_000, (10, 100, 1_000, 10_000, 100_000), (100, 10_000, 100_000), 3)
QUICK = Scale(1.0, (1, 64), 0, (10, 100), (100, 1_000), 1)

Run = tuple[System, PlaceKind, int, int]


def main() -> int:
    """Measure, print, write the results; 1 if a measurement of ours failed."""
    arguments = _arguments()
    scale, only = QUICK if arguments.quick else FULL, arguments.only.lower()
    begun_s, facts = time.monotonic(), _facts()
    rows: list[Measured] = []
    with Places() as places:
        for run in _runs(scale):
            if only in _name(run).lower():
                rows.append(_measured(places, run, scale))
                print(line(rows[-1]), flush=True)
    grown = [_in_process("grow", tables, scale.rounds) for tables in scale.grown] if only in "growth" else []
    for found in grown:
        print(grown_line(found))
    large = [_scaled(tables) for tables in scale.scaled] if only in "scale" else []
    print(*scaled_lines(large), sep="\n")
    facts["load after"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    facts["took"] = f"{(time.monotonic() - begun_s) / 60:.0f} min"
    print("", *summary(rows, grown), sep="\n")
    if not arguments.quick and not only:
        save(ROOT / "bench" / "results", facts, rows, grown, large, scale.seconds)
    return 1 if any(row.note.startswith("failed") and row.system.kind == "ours" for row in rows) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short measurements, nothing written")
    parser.add_argument("--only", default="", help="only lines that hold this text; nothing written")
    return parser.parse_args()


def _runs(scale: Scale) -> Iterator[Run]:
    """All that is measured, systems side by side."""
    for place in PLACES:
        for clients in scale.clients:
            for system in SYSTEMS:
                if place in system.places and clients in system.clients:
                    yield system, place, clients, 0
    for place, clients in LARGE if scale.large else ():
        for system in SYSTEMS:
            if system.large:
                yield system, place, clients, scale.large


def _name(run: Run) -> str:
    system, place, clients, tables = run
    return f"{place} {system.name} {clients} clients" + (f" {tables} tables" if tables else "")


def _measured(places: Places, run: Run, scale: Scale) -> Measured:
    """The measurement; without figures if something is not here, or fails before there are any."""
    system, kind, clients, tables = run
    try:
        with places.fresh(kind) as place:
            return measured(system, place, kind, clients, tables, scale.seconds)
    except NotHere as error:
        return Measured(system, kind, clients, tables, note=f"skipped: needs {error}")
    except Failed as error:
        return Measured(system, kind, clients, tables, note=f"failed: {error}")


def _in_process(module: str, *arguments: object) -> dict[str, Any]:
    """What a module of `bench.catalogs` measures in a process of its own."""
    command = [sys.executable, "-m", f"bench.catalogs.{module}", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    said = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(said)
    return found


def _scaled(tables: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=TMPFS, prefix="limpet-bench-") as folder:
        return _in_process("scale", tables, folder)


def _facts() -> dict[str, str]:
    """What the numbers depend on."""
    facts = {**machine(), "file system": file_system(TMPFS), "SQLite": sqlite3.sqlite_version}
    return {**facts, **versions(PEERS)}


if __name__ == "__main__":
    sys.exit(main())
