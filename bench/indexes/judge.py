"""The aims, judged by the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bench.indexes.rows import Row
from bench.queues.judge import Aim

__all__ = ["aims", "ours"]

LOOKUP_FASTER = 20.0
LOOKUP_PEERS = ("delta-rs", "LanceDB", "PyIceberg")
SCAN_SLOWER_MAX = 5.0
SCAN_PEER = "Parquet + polars"
FLAT = 1.25
"""Bytes a lookup at the largest size / at the smallest, at most."""
REWRITTEN_MAX = 0.2
"""Bytes rewritten for an upsert of 1 % / bytes of the index, at most."""


def ours(rows: Sequence[Row]) -> Row | None:
    """Our own row: the durable one."""
    return next((row for row in rows if row.system.kind == "ours"), None)


def aims(rows: Sequence[Row], grown: Sequence[Mapping[str, Any]]) -> Iterator[Aim]:
    """Every aim of the index. Ours is with `fsync`; upserts also with `os`, where the peer syncs nothing."""
    mine = ours(rows)
    for lake in (row for row in rows if row.system.kind == "lakehouse"):
        for own in (
            row for row in rows if row.system.kind == "ours" and row.system.synced in ("all", lake.system.synced)
        ):
            how = f"({own.system.name}) ahead of {lake.system.name}, which syncs {lake.system.synced}"
            yield _faster(f"upsert {how}", own.upsert_s, lake.upsert_s, 1.0, lambda s: f"{s:.2f} s")
            yield _faster(
                f"upsert and settled {how}", own.upsert_both_s, lake.upsert_both_s, 1.0, lambda s: f"{s:.2f} s"
            )
    for row in (row for row in rows if row.system.name in LOOKUP_PEERS):
        what = f"lookup at least {LOOKUP_FASTER:g}x faster than {row.system.name}"
        ms = mine.lookup_ms if mine else None
        yield _faster(what, ms, row.lookup_ms, LOOKUP_FASTER, lambda ms: f"{ms:.3f} ms")
    polars = next((row for row in rows if row.system.name == SCAN_PEER), None)
    for way in mine.scans if mine else ():
        what = f"scan ({way}) within {SCAN_SLOWER_MAX:g}x of {SCAN_PEER}"
        yield _within(what, mine.scan_s(way) if mine else None, polars.scan_s() if polars else None, SCAN_SLOWER_MAX)
    if len(grown) > 1:
        yield from _growth(grown[0], grown[-1])


def _faster(what: str, mine: float | None, theirs: float | None, factor: float, shown: Callable[[float], str]) -> Aim:
    if mine is None or theirs is None:
        return Aim(what, None, "no figure")
    times = theirs / mine
    return Aim(
        what, times > 1 if factor == 1 else times >= factor, f"{shown(mine)} against {shown(theirs)}: {times:.2f}x"
    )


def _within(what: str, mine_s: float | None, theirs_s: float | None, slower_max: float) -> Aim:
    if mine_s is None or theirs_s is None:
        return Aim(what, None, "no figure")
    times = mine_s / theirs_s
    return Aim(what, times <= slower_max, f"{mine_s:.3f} s against {theirs_s:.3f} s: {times:.1f}x its time")


def _growth(small: Mapping[str, Any], large: Mapping[str, Any]) -> Iterator[Aim]:
    bytes_ = [float(each["compiled"]["read_bytes"]) for each in (small, large)]
    yield Aim(
        f"bytes a lookup flat from {small['records']:,} to {large['records']:,} records (at most {FLAT:g}x)",
        bytes_[1] <= FLAT * bytes_[0],
        f"{bytes_[0]:,.0f} B, then {bytes_[1]:,.0f} B: {bytes_[1] / bytes_[0]:.2f}x",
    )
    share = large["rewritten_bytes"] / large["index_bytes"]
    yield Aim(
        f"upserting 1 % of {large['records']:,} records rewrites at most {REWRITTEN_MAX:.0%} of their bytes",
        share <= REWRITTEN_MAX,
        f"{share:.1%}",
    )
