"""Run one measurement: a fresh catalog, filled; its clients create, then append; then every answer is checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.catalogs.api import NotHere, Place
from bench.catalogs.systems import System
from bench.catalogs.work import OWN_TABLES
from bench.queues.runs import Failed
from bench.queues.servers import tied

__all__ = ["Figures", "Measured", "measured"]

ROOT = Path(__file__).resolve().parent.parent.parent
ANSWER_S = 240.0
"""For so long a process is waited for."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of creates, or of appends."""

    acknowledged: int
    per_s: float
    median_ms: float
    p99_ms: float
    refused: int
    lost: int
    """Acknowledged, and not there afterwards."""
    requests: Mapping[str, float]
    """Requests of the storage for each acknowledged call, by verb."""
    written_bytes: float | None
    """Bytes written for each, where they are counted."""
    server_cpu_ms: float | None
    """CPU of the process that leads, for each."""
    error: str = ""


@dataclass(slots=True)
class Measured:
    """One system in one place with so many clients and tables."""

    system: System
    place: str
    clients: int
    tables: int
    figures: dict[str, Figures] = field(default_factory=dict)
    note: str = ""

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "system": self.system.name, "kind": self.system.kind}


def measured(system: System, place: Place, where: str, clients: int, tables: int, seconds: float) -> Measured:
    """Create, then append, with so many clients, each for some seconds.   Raises: NotHere; Failed before any figure."""
    found = Measured(system, where, clients, max(tables, OWN_TABLES * clients))
    with ExitStack() as stack:
        server = stack.enter_context(_process(place, "bench.catalogs.serve", _plain(place))) if system.served else None
        if server is not None:
            place = replace(place, server=server.first["server"])
        first = stack.enter_context(_client(system, place))
        first.ask(act="fill", tables=found.tables)
        more = range(1, min(system.processes, clients))
        children = [first, *(stack.enter_context(_client(system, place)) for _ in more)]
        for verb, before in (("create", found.tables), ("append", 0)):
            try:
                driven = _driven(children, server, place.delay_s, verb, clients, seconds)
                there = first.ask(act="check", verb=verb, clients=clients)["there"]
            except Failed as error:
                found.note = f"failed: {verb}: {error}"
                break
            found.figures[verb] = _figures(driven, there - before, system.kind == "ours")
    return found


def _driven(
    children: Sequence[_Child], server: _Child | None, delay_s: float, verb: str, clients: int, seconds: float
) -> Mapping[str, Any]:
    """All processes at once, added up. Only while they work is the server's store far away."""
    before = server.ask(delay_s=delay_s) if server else None
    cuts = [clients * i // len(children) for i in range(len(children) + 1)]
    for child, start, end in zip(children, cuts, cuts[1:], strict=False):
        child.tell(act="drive", verb=verb, first=start, last=end, clients=clients, seconds=seconds)
    parts = [child.hear() for child in children]
    spent = {name: sum(part["spent"].get(name, 0) for part in parts) for part in parts for name in part["spent"]}
    cpu_s = sum(part["cpu_s"] for part in parts)
    if server is not None and before is not None:
        after = server.ask(delay_s=0.0)
        spent = {name: value - before["spent"].get(name, 0) for name, value in after["spent"].items()}
        cpu_s = after["cpu_s"] - before["cpu_s"]
    return {
        "acknowledged": sum(part["acknowledged"] for part in parts),
        "refused": sum(part["refused"] for part in parts),
        "took_s": max(part["took_s"] for part in parts),
        "seconds": sorted(seconds for part in parts for seconds in part["seconds"]),
        "errors": [error for part in parts for error in part["errors"]],
        "spent": spent,
        "cpu_s": cpu_s,
    }


def _figures(driven: Mapping[str, Any], there: int, ours: bool) -> Figures:
    n = driven["acknowledged"]
    each = max(1, n)
    times_s = driven["seconds"] or [0.0]
    spent = driven["spent"]
    return Figures(
        acknowledged=n,
        per_s=n / driven["took_s"],
        median_ms=median(times_s) * 1e3,
        p99_ms=times_s[len(times_s) * 99 // 100] * 1e3,
        refused=driven["refused"],
        lost=max(0, n - there),
        requests={name: count / each for name, count in spent.items() if not name.endswith("_bytes") and count},
        written_bytes=spent["written_bytes"] / each if "written_bytes" in spent else None,
        server_cpu_ms=driven["cpu_s"] / each * 1e3 if ours else None,
        error=driven["errors"][0] if driven["errors"] else "",
    )


class _Child:
    """A process that answers lines with lines."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.first = self.hear()

    def ask(self, **job: Any) -> dict[str, Any]:
        """Tell, and hear.   Raises: Failed."""
        self.tell(**job)
        return self.hear()

    def tell(self, **job: Any) -> None:
        """Give it a job."""
        assert self._process.stdin is not None
        try:
            print(json.dumps(job), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise Failed(f"a process has ended: {_last_words(self._log)}") from None

    def hear(self) -> dict[str, Any]:
        """Its next answer.   Raises: Failed; NotHere."""
        assert self._process.stdout is not None
        alarm = threading.Timer(ANSWER_S, self._process.kill)
        alarm.start()
        line = self._process.stdout.readline()
        alarm.cancel()
        if not line:
            raise Failed(f"a process ended: {_last_words(self._log)}")
        answer: dict[str, Any] = json.loads(line)
        if "not_here" in answer:
            raise NotHere(answer["not_here"])
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer


def _client(system: System, place: Place) -> Any:
    return _process(place, "bench.catalogs.child", system.module, _plain(place))


@contextmanager
def _process(place: Place, module: str, *arguments: str) -> Iterator[_Child]:
    log = place.folder / f"{module.rpartition('.')[2]}.log"
    with log.open("a") as words:
        process = subprocess.Popen(
            [*tied("KILL"), sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, **place.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
        )
    try:
        yield _Child(process, log)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _plain(place: Place) -> str:
    return json.dumps({**asdict(place), "folder": str(place.folder)})


def _last_words(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1][:300]
