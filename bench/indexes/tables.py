"""What a run says: a line for each system, the tables, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.indexes.judge import aims
from bench.indexes.plot import picture
from bench.indexes.rows import Row, Scale
from bench.report import rounded, table_lines

__all__ = ["grown_line", "line", "save", "summary"]

HEAD = (
    "system",
    "load",
    "+ settled",
    "upsert",
    "+ settled",
    "settled by",
    "MB",
    "lookups",
    "ms",
    "p99",
    "new process ms",
    "scan",
    "synced",
    "prepared (not counted)",
)
READ_HEAD = (
    "system",
    "requests",
    "bytes",
    "files opened",
    "folders listed",
    "read calls",
    "mapped",
    "new process, bytes",
)
GROWN_HEAD = (
    "records",
    "MB",
    "load",
    "compile",
    "upsert 1 %",
    "compile",
    "rewritten",
    "lookup ms",
    "requests",
    "bytes",
    "with packs waiting: ms",
    "requests",
    "bytes",
)


def line(row: Row) -> str:
    """One system for the terminal."""
    if row.skipped:
        return f"{row.system.name:<18} {row.skipped}"
    figures = [
        f"load {_s(row.loaded.write_s if row.loaded else None)}",
        f"upsert {_s(row.upsert_s)} + settled {_s(row.upsert_both_s)}",
        f"lookup {_ms(row.lookup_ms)} ms, {_bytes(row)}",
        f"scan {_scans(row)}",
        *row.notes,
    ]
    return f"{row.system.name:<18} " + "  ".join(figures) + f"  ({row.took_s:.0f} s)"


def grown_line(found: Mapping[str, Any]) -> str:
    """One size of ours for the terminal."""
    return "  ".join(f"{name} {value}" for name, value in zip(GROWN_HEAD, _grown_cells(found), strict=True))


def summary(rows: Sequence[Row], grown: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The tables for a reader, the aims first."""
    yield from (f"- {aim}" for aim in aims(rows, grown))
    shown = [row for row in rows if not row.skipped]
    if shown:
        yield "\n## Seconds and megabytes\n"
        yield from table_lines(HEAD, [_cells(row) for row in shown])
    for row in rows:
        if row.skipped:
            yield f"\n{row.system.name}: {row.skipped}."
        for note in row.notes:
            yield f"\n{row.system.name}: {note}."
    if shown:
        yield "\n## What a lookup reads\n"
        yield from table_lines(READ_HEAD, [_read_cells(row) for row in shown if row.lookups])
    if grown:
        yield "\n## How ours grows\n"
        yield from table_lines(GROWN_HEAD, [_grown_cells(each) for each in grown])


def save(
    folder: Path, facts: Mapping[str, str], rows: Sequence[Row], grown: Sequence[Mapping[str, Any]], scale: Scale
) -> None:
    """Write `index.md`, `index.json` and `index.svg`."""
    title = f"{scale.loaded:,} records, {scale.upserted:,} upserted (half new), tmpfs"
    text = [
        "# The index against others\n",
        "Written by `python bench/index.py`; bench/README.md says how to read it.\n",
        " · ".join(f"{name} {value}" for name, value in facts.items()) + "\n",
        "![seconds to upsert, look up and scan, by system](index.svg)\n",
        f"{title}; then {scale.lookups:,} lookups and a scan of the settled index. Seconds unless it says otherwise.\n",
        "## Aims\n",
        *summary(rows, grown),
    ]
    (folder / "index.md").write_text("\n".join(text) + "\n")
    found = {
        "machine": facts,
        "scale": asdict(scale),
        "aims": [asdict(aim) for aim in aims(rows, grown)],
        "rows": [_plain(row) for row in rows],
        "growth": [*grown],
    }
    (folder / "index.json").write_text(json.dumps(rounded(found), indent=1) + "\n")
    (folder / "index.svg").write_text(picture(rows, title))


def _cells(row: Row) -> Sequence[str]:
    loaded = row.loaded
    return (
        row.system.name,
        _s(loaded.write_s if loaded else None),
        _s(loaded.both_s if loaded else None),
        _s(row.upsert_s),
        _s(row.upsert_both_s),
        row.system.settled_by or "-",
        f"{row.size_bytes / 1e6:.0f}" if row.size_bytes is not None else "-",
        f"{row.lookups['lookups']:,}" if row.lookups else "-",
        _ms(row.lookup_ms),
        _ms(row.lookups["p99_ms"] if row.lookups else None),
        _ms(row.cold["ms"] if row.cold else None),
        _scans(row),
        row.system.synced,
        _s(loaded.prepare_s if loaded else None),
    )


def _read_cells(row: Row) -> Sequence[str]:
    per = max(1, row.traced_lookups)
    traced = row.traced
    counts = [f"{n / per:.3g}" for n in (traced.opened, traced.listed, traced.reads)] if traced else ["-"] * 3
    mapped = f"{traced.mapped_bytes / per:,.0f}" if traced and traced.mapped_bytes else ""
    spent = row.lookups["spent"] if row.lookups else {}
    requests = ", ".join(f"{n:.3g} {verb}" for verb, n in spent.items() if not verb.endswith("_bytes"))
    return (
        row.system.name,
        requests,
        _bytes(row),
        *counts,
        mapped,
        f"{row.cold['read_bytes']:,.0f}" if row.cold else "-",
    )


def _grown_cells(found: Mapping[str, Any]) -> Sequence[str]:
    looked = [found["compiled"], found["waiting"]]
    figures = [(_ms(each["mean_ms"]), f"{each['requests']:.2f}", f"{each['read_bytes']:,.0f}") for each in looked]
    return (
        f"{found['records']:,}",
        f"{found['index_bytes'] / 1e6:,.0f}",
        _s(found["load_s"]),
        _s(found["compile_s"]),
        _s(found["upsert_s"]),
        _s(found["upsert_compile_s"]),
        f"{found['rewritten_bytes'] / found['index_bytes']:.1%}",
        *figures[0],
        *figures[1],
    )


def _bytes(row: Row) -> str:
    """What a lookup read: by our meter, or by the process's own count."""
    if row.lookups is None:
        return "-"
    return f"{row.lookups['spent'].get('read_bytes', row.lookups['read_bytes']):,.0f}"


def _scans(row: Row) -> str:
    return ", ".join(f"{each['s']:.3f} ({way})" for way, each in row.scans.items()) or "-"


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.2f}"


def _ms(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}"


def _plain(row: Row) -> dict[str, Any]:
    found = asdict(row)
    system = found.pop("system")
    return {"system": system["name"], "kind": system["kind"], "synced": system["synced"], **found}
