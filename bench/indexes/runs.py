"""Run one system: load it, upsert into copies of what was loaded, read, each in a separate process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from bench.indexes.api import NotHere
from bench.indexes.child import NOT_HERE
from bench.indexes.records import Upsert
from bench.indexes.systems import System
from bench.indexes.trace import CALLS, Traced, counted
from bench.queues.runs import Failed
from bench.queues.servers import tied

__all__ = ["Failed", "Lab"]

ROOT = Path(__file__).resolve().parent.parent.parent
CHILD_S = 900.0


class Lab:
    """Runs measurements of one system, all on one index below `folder`."""

    def __init__(self, system: System, folder: Path, wave: Upsert) -> None:
        self._system = system
        self._folder = folder
        self._data = folder / "data"
        self._wave = wave
        self._names = count()

    def load(self) -> dict[str, Any]:
        """Load a new index, and settle it."""
        self._data.mkdir()
        return self._run("load")

    def keep(self) -> None:
        """Keep a copy of the index as it is now."""
        _command("cp", "-a", str(self._data), str(self._folder / "kept"))

    def restore(self) -> None:
        """Make the index again what it was, under the same path: some systems write their paths down."""
        _command("rm", "-rf", str(self._data))
        _command("cp", "-a", str(self._folder / "kept"), str(self._data))

    def upsert(self) -> dict[str, Any]:
        """Upsert into the index, and settle it."""
        return self._run("upsert")

    def size_bytes(self) -> int:
        """The files of the index, all together."""
        return sum(path.lstat().st_size for path in self._data.rglob("*") if path.is_file())

    def lookups(self, n: int) -> dict[str, Any]:
        """Lookups with one handle."""
        return self._run("lookups", lookups=n)

    def cold(self, processes: int) -> dict[str, float]:
        """One lookup in a new process: the median of several."""
        found = [self._run("cold", probe=i) for i in range(processes)]
        return {name: median(each[name] for each in found) for name in ("ms", "read_bytes")}

    def traced(self, n: int) -> Traced | None:
        """What a lookup asks of the file system; None without strace."""
        strace = shutil.which("strace")
        if strace is None:
            return None
        log = self._folder / "strace.log"
        self._run("trace", before=[strace, "-f", "-y", "-qq", "-e", f"trace={CALLS}", "-o", str(log)], lookups=n)
        with log.open(errors="replace") as lines:
            traced = counted(lines, str(self._data))
        log.unlink()
        return traced

    def scan(self) -> dict[str, Any]:
        """Every way to scan."""
        return self._run("scan")

    def grow(self, lookups: int) -> dict[str, Any]:
        """What our index costs at this size; it is removed afterwards."""
        self._data.mkdir()
        found = self._run("grow", lookups=lookups)
        _command("rm", "-rf", str(self._data))
        return found

    def _run(self, act: str, *, before: Sequence[str] = (), **more: Any) -> dict[str, Any]:
        """A child's findings.   Raises: Failed, NotHere."""
        path = self._folder / f"job{next(self._names)}.json"
        job: Mapping[str, Any] = {
            "act": act,
            "module": self._system.module,
            "options": dict(self._system.options),
            "folder": str(self._data),
            "loaded": self._wave.loaded,
            "upserted": self._wave.n,
            **more,
        }
        path.write_text(json.dumps(job))
        out, log = path.with_suffix(".out"), path.with_suffix(".log")
        command = [*tied("KILL"), *before, sys.executable, "-m", "bench.indexes.child", str(path)]
        with log.open("wb") as words:
            try:
                code = subprocess.run(
                    command,
                    cwd=ROOT,
                    env={**os.environ, "TMPDIR": str(self._folder)},
                    stdout=words,
                    stderr=words,
                    timeout=CHILD_S,
                ).returncode
            except subprocess.TimeoutExpired:
                raise Failed(f"gave up after {CHILD_S:.0f} s") from None
        if code == NOT_HERE:
            raise NotHere(out.read_text())
        if code != 0:
            raise Failed(f"a process ended with {code}: {_last_words(log)}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def _last_words(log: Path) -> str:
    """The last line that a process wrote to its log: with Python, the error."""
    return (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]


def _command(*command: str) -> None:
    subprocess.run(command, check=True)
