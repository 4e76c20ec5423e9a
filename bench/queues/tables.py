"""What a run says: a line for each system, the tables, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.queues.api import PAYLOAD_BYTES
from bench.queues.judge import aims, like, ratio
from bench.queues.plot import picture
from bench.queues.rows import Row, Scale
from bench.queues.runs import Drain, Killed
from bench.report import table_lines

__all__ = ["line", "save", "short", "summary"]


def line(row: Row, scale: Scale) -> str:
    """One system for the terminal."""
    if row.skipped:
        return f"{row.system.name:<34} {row.skipped}"
    figures = [f"push {short(row.push_per_s):>5}/s"]
    figures += [f"{_size(at)}: {short(row.per_s(at)):>5}/s" for at in _backlogs(scale) if row.per_s(at) is not None]
    figures += [f"2 workers: {_two(row)}", f"kill -9: {_killed(row.killed)}", *row.notes]
    return f"{row.system.name:<34} " + "  ".join(figures) + f"  ({row.took_s:.0f} s)"


def summary(rows: Sequence[Row], scale: Scale) -> Iterator[str]:
    """The table for a reader: rates, ratios, verdicts."""
    yield from table_lines(_head(scale), [_cells(row, rows, scale) for row in rows if not row.skipped])
    for row in rows:
        if row.skipped:
            yield f"\n{row.system.name}: {row.skipped}."
        for note in row.notes:
            yield f"\n{row.system.name}: {note}."
    yield "\n## Aims\n"
    for aim in aims(rows, scale):
        yield f"- {aim}"
    yield "\n## What a claim costs\n"
    yield "One worker, from its first claim on. Requests are of a whole turn: claim, read, acknowledge.\n"
    yield from table_lines(
        ("system", "pending", "claims", "mean µs", "median µs", "longest ms", "requests a claim"), [*_claim_cells(rows)]
    )
    for row in rows:
        few, many = row.claims(scale.backlogs[0]), row.claims(scale.many)
        if row.system.kind == "ours" and few is not None and many is not None:
            yield (
                f"\n{row.system.name}: with {_size(scale.many)} pending a claim takes"
                f" {many.mean_us / few.mean_us:.2f}x what it takes with {_size(scale.backlogs[0])} (mean),"
                f" and {sum(many.requests.values()):.2f} requests against {sum(few.requests.values()):.2f}."
            )


def save(path: Path, options: str, facts: dict[str, str], rows: Sequence[Row], scale: Scale) -> None:
    """Write what is found at `path` with the endings .md, .json and, of a whole run, .svg."""
    told = " · ".join(f"{name} {value}" for name, value in facts.items())
    text = [
        "# The queue against others\n",
        f"Written by `{f'python bench/queue.py {options}'.strip()}`; bench/README.md says how to read it.\n",
        f"{told}\n",
        *([] if options else [f"![tasks a second, by system and backlog]({path.name}.svg)\n"]),
        f"Tasks of {PAYLOAD_BYTES} B, a handler that does nothing, tasks a second. Ratios: ours / theirs at"
        f" {scale.judged:,} pending with one worker, ours with `fsync` where theirs syncs each task.\n",
        *summary(rows, scale),
    ]
    path.with_suffix(".md").write_text("\n".join(text) + "\n")
    found = {
        "machine": facts,
        "aims": [asdict(aim) for aim in aims(rows, scale)],
        "rows": [_plain(row) for row in rows],
    }
    path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    if not options:
        path.with_suffix(".svg").write_text(picture(rows, scale))


def short(per_s: float | None) -> str:
    """A rate in at most five characters: `97k`, `6.4k`, `85`."""
    if per_s is None:
        return "-"
    if per_s < 1000:
        return f"{per_s:.0f}"
    return f"{per_s / 1000:.1f}k" if per_s < 99_950 else f"{per_s / 1000:.0f}k"


def _head(scale: Scale) -> Sequence[str]:
    sizes = [f"{_size(at)} pending" for at in _backlogs(scale)]
    ours = ("our batch / it", "our single / it")
    return ("system", "push", *sizes, "2 workers", *ours, "on disk", "worker killed -9")


def _cells(row: Row, rows: Sequence[Row], scale: Scale) -> Sequence[str]:
    ours = [like(rows, batch=batch, durable=row.system.durable) for batch in (100, 1)]
    ratios = [None if row.system.kind == "ours" else ratio(each, row, scale.judged) for each in ours]
    return (
        row.system.name,
        short(row.push_per_s),
        *(short(row.per_s(at)) for at in _backlogs(scale)),
        _two(row),
        *(_times(each) for each in ratios),
        row.system.synced,
        _killed(row.killed),
    )


def _claim_cells(rows: Sequence[Row]) -> Iterator[Sequence[str]]:
    for row in rows:
        for backlog in row.samples:
            claims = row.claims(backlog)
            if claims is not None:
                yield (
                    row.system.name,
                    f"{backlog:,}",
                    f"{claims.claims:,}",
                    f"{claims.mean_us:.0f}",
                    f"{claims.median_us:.0f}",
                    f"{claims.longest_us / 1000:.1f}",
                    ", ".join(f"{count:.3g} {verb}" for verb, count in claims.requests.items()),
                )


def _backlogs(scale: Scale) -> Sequence[int]:
    return (*scale.backlogs, scale.many)


def _size(n: int) -> str:
    return f"{n // 1_000_000}M" if n >= 1_000_000 else f"{n // 1000}k" if n >= 1000 else str(n)


def _two(row: Row) -> str:
    return short(row.two_per_s) + (f" ({row.two_again:,} delivered twice)" if row.two_again else "")


def _killed(killed: Killed | None) -> str:
    if killed is None:
        return "-"
    counts = {"lost": killed.lost, "stuck": killed.stuck, "run again": killed.again}
    told = [f"{count} {what}" for what, count in counts.items() if count]
    return ", ".join(told if killed.lost or killed.stuck else ["none lost", *told])


def _times(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}"


def _plain(row: Row) -> dict[str, object]:
    return {
        "system": row.system.name,
        "kind": row.system.kind,
        "on_disk": row.system.synced,
        "skipped": row.skipped,
        "notes": row.notes,
        "push_per_s": [round(per_s) for per_s in row.push_samples],
        "pending": {str(backlog): [_drain(drain) for drain in drains] for backlog, drains in row.samples.items()},
        "two_workers": [_drain(drain) for drain in row.two_samples],
        "killed": asdict(row.killed) if row.killed else None,
    }


def _drain(drain: Drain) -> dict[str, object]:
    found: dict[str, object] = {"per_s": round(drain.per_s, 1), "handled": drain.handled, "again": drain.again}
    if drain.claims is not None:
        rounded = {name: round(value, 1) for name, value in asdict(drain.claims).items() if name != "requests"}
        found["claims"] = {**rounded, "requests": drain.claims.requests}
    return found
