"""What a run says: a line for each measurement, the tables, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.catalogs.judge import VERBS, aims, besides
from bench.catalogs.plot import picture
from bench.catalogs.runs import Figures, Measured
from bench.report import rounded, table_lines

__all__ = ["grown_line", "line", "save", "scaled_lines", "summary"]

HEAD = (
    "system",
    "clients",
    "tables",
    "creates/s",
    "median ms",
    "p99",
    "appends/s",
    "median ms",
    "p99",
    "writes besides metadata",
    "reads",
    "leader's CPU ms",
    "refused",
    "lost",
)
GROWN_HEAD = (
    "tables",
    "verb",
    "PUTs",
    "GETs",
    "bytes",
    "of which head",
    "metadata",
    "checkpoints",
    "their bytes",
    "CPU ms",
    "of checkpoints",
    "requests of a load: first, again, after a commit",
    "its bytes",
)


SCALED = (
    ("snapshot_bytes", "snapshot: bytes", 0),
    ("load_state_ms", "snapshot read, checked and decoded: ms", 0),
    ("begin_ms", "a new term, from a free lock and an empty memory: ms", 0),
    ("start_s", "`limpet serve` until it leads: s", 2),
    ("takeover_s", "takeover by a process that waits, after kill -9 (the lease is 10 s): s", 2),
    ("start_after_kill_s", "`limpet serve` until it leads, started right after kill -9: s", 2),
    ("waiting_rss_mb", "memory of a process that waits: MB", 0),
    ("taken_rss_mb", "memory of a new leader: MB", 0),
    ("leader_rss_mb", "memory of a leader after 700 commits: MB", 0),
)
"""Fields of what `bench.catalogs.scale` prints, what they are, and their digits."""


def line(row: Measured) -> str:
    """One measurement for the terminal."""
    what = f"{row.place:<10} {row.system.name:<25} {row.clients:>2} clients {row.tables:>6,} tables"
    return "  ".join([what, *(f"{verb} {_said(figures)}" for verb, figures in row.figures.items()), row.note]).rstrip()


def _said(figures: Figures) -> str:
    bad = f", {figures.refused} refused, {figures.lost} lost" if figures.refused or figures.lost else ""
    return f"{figures.per_s:,.0f}/s ({figures.median_ms:.1f} ms, p99 {figures.p99_ms:.0f}{bad})"


def grown_line(found: Mapping[str, Any]) -> str:
    """One size of ours for the terminal."""
    return "\n".join(
        "  ".join(f"{name} {value}" for name, value in zip(GROWN_HEAD, cells, strict=True))
        for cells in _grown_cells(found)
    )


def scaled_lines(large: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What clients and operators meet as tables become many, a column for each size."""
    if not large:
        return
    yield "\n## Lists, loads, commits, start-up and takeover as tables become many\n"

    found = {"tables": [f"{each['tables']:,}" for each in large]}
    for where in ("in process", "over HTTP"):
        for what in large[0][where]:
            found[f"{what}, {where}: ms"] = ["{:.2f} (p99 {:.1f})".format(*each[where][what]) for each in large]
    for name, what, digits in SCALED:
        found[what] = [f"{each[name]:,.{digits}f}" for each in large]
    head, *rows = [(what, *cells) for what, cells in found.items()]
    yield from table_lines(head, rows)


def summary(
    rows: Sequence[Measured], grown: Sequence[Mapping[str, Any]], large: Sequence[Mapping[str, Any]] = ()
) -> Iterator[str]:
    """The tables for a reader, the aims first."""
    yield from (f"- {aim}" for aim in aims(rows, grown))
    for place in dict.fromkeys(row.place for row in rows):
        yield f"\n## {place}\n"
        here = [row for row in rows if row.place == place]
        yield from table_lines(HEAD, [_cells(row) for row in here])
        for row in here:
            error = next((each.error for each in row.figures.values() if each.error), "")
            if row.note or error:
                yield f"\n{row.system.name}, {row.clients} clients: {row.note or error}."
    if grown:
        yield "\n## What a commit costs as tables become many\n"
        yield from table_lines(GROWN_HEAD, [cells for each in grown for cells in _grown_cells(each)])
    yield from scaled_lines(large)


def save(
    folder: Path,
    facts: Mapping[str, str],
    rows: Sequence[Measured],
    grown: Sequence[Mapping[str, Any]],
    large: Sequence[Mapping[str, Any]],
    seconds: float,
) -> None:
    """Write `catalog.md`, `catalog.json` and `catalog.svg`."""
    text = [
        "# The catalog against others\n",
        "Written by `python bench/catalog.py`; bench/README.md says how to read it.\n",
        " · ".join(f"{name} {value}" for name, value in facts.items()) + "\n",
        "![appends a second, by place, system and clients](catalog.svg)\n",
        f"Each figure is of {seconds:g} s. Pairs in one cell are for creates and for appends.\n",
        "## Aims\n",
        *summary(rows, grown, large),
    ]
    (folder / "catalog.md").write_text("\n".join(text) + "\n")
    found = {
        "machine": facts,
        "seconds": seconds,
        "aims": [asdict(aim) for aim in aims(rows, grown)],
        "rows": [row.plain() for row in rows],
        "growth": [*grown],
        "scale": [*large],
    }
    (folder / "catalog.json").write_text(json.dumps(rounded(found), indent=1) + "\n")
    (folder / "catalog.svg").write_text(picture(rows))


def _cells(row: Measured) -> Sequence[str]:
    made, added = (row.figures.get(verb) for verb in VERBS)
    both = [figures for figures in (made, added) if figures is not None]
    cpu = [figures.server_cpu_ms for figures in both if figures.server_cpu_ms is not None]
    return (
        row.system.name,
        str(row.clients),
        f"{row.tables:,}",
        *_speed(made),
        *_speed(added),
        " / ".join(f"{besides(figures):.2f}" for figures in both) or "-",
        " / ".join(f"{_reads(figures):.2f}" for figures in both) or "-",
        " / ".join(f"{ms:.2f}" for ms in cpu) or "-",
        _counted([figures.refused for figures in both]),
        _counted([figures.lost for figures in both]),
    )


def _speed(figures: Figures | None) -> Sequence[str]:
    if figures is None:
        return ("-", "-", "-")
    per_s = f"{figures.per_s:,.0f}" if figures.per_s >= 20 else f"{figures.per_s:.1f}"
    return (per_s, f"{figures.median_ms:.1f}", f"{figures.p99_ms:.0f}")


def _reads(figures: Figures) -> float:
    return sum(count for verb, count in figures.requests.items() if verb in ("get", "head", "list"))


def _counted(counts: Sequence[int]) -> str:
    return " / ".join(f"{count:,}" for count in counts) if any(counts) else ""


def _grown_cells(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for verb in VERBS:
        each = found[verb]
        loads = [", ".join(f"{load[what]:,}" for load in found["load"].values()) for what in ("requests", "bytes")]
        yield (
            f"{found['tables']:,}",
            verb,
            f"{each['puts']:.2f}",
            f"{each['gets']:.2f}",
            f"{each['bytes']:,.0f}",
            f"{each['bytes_by_kind']['head']:,.0f}",
            f"{each['bytes_by_kind']['metadata']:,.0f}",
            f"{each['checkpoints']:.3f}",
            f"{each['checkpoint_bytes']:,.0f}",
            f"{each['cpu_ms']:.2f}",
            f"{each['checkpoint_cpu_ms']:.2f}",
            *(loads if verb == VERBS[0] else [""] * len(loads)),
        )
