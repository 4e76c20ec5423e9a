"""The kernel's price: our stores, cells and locks against the bare calls that they are made of, as ratios;
and the CPU time that it takes to start.

`python bench/kernel.py` (`make bench`) starts a SeaweedFS with the servers of the tests (so tests/ goes on sys.path),
measures, prints a line per comparison, and writes bench/results/kernel.md and kernel.json. `--quick` runs a few rounds
and writes nothing; `--only TEXT` runs the cases whose line holds TEXT, and writes nothing either (`--only start-up`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.pop(0)  # bench/queue.py would hide the standard library's queue
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bench.clouds import cloud_cases
from bench.files import file_cases
from bench.report import file_system, line, machine, save, summary
from bench.rounds import Case, measure
from bench.startup import start_line, starts
from support.servers.seaweedfs import SeaweedFS

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
TMPFS = Path("/dev/shm")
THREADS = (1, 32)


def main() -> None:
    """Measure, print, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    parser.add_argument("--only", default="", help="only the cases whose name holds this text")
    arguments = parser.parse_args()
    facts = machine()
    rows = []
    started = starts() if arguments.only in "start-up" else []
    for start in started:
        print(start_line(start), flush=True)
    for case in cases(quick=arguments.quick) if arguments.only != "start-up" else ():
        if arguments.only in f"{case.where}: {case.name} x{case.threads}":
            for row in measure(case):
                rows.append(row)
                print(line(row), flush=True)
    facts["load after"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    print(summary(rows))
    if not arguments.quick and not arguments.only:
        save(ROOT / "bench" / "results", facts, rows, started)


def cases(*, quick: bool) -> Iterator[Case]:
    """All that is measured, each made when its turn comes."""
    if os.access(TMPFS, os.W_OK):
        yield from file_cases(TMPFS, file_system(TMPFS), calls=100, rounds=7 if quick else 41)
    yield from file_cases(ROOT, f"{file_system(ROOT)} (the checkout's disk)", calls=20, rounds=5 if quick else 31)
    with SeaweedFS() as server:
        for threads in THREADS:
            yield from cloud_cases(server.bucket, threads=threads, rounds=5 if quick else 31)


if __name__ == "__main__":
    main()
