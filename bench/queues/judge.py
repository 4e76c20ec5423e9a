"""The aims, judged by the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.queues.rows import Row, Scale

__all__ = ["Aim", "aims", "like", "ratio"]

FASTER = 3.0
PER_S = 60_000


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim. `met` is None if a figure that it needs is missing."""

    what: str
    met: bool | None
    figures: str

    def __str__(self) -> str:
        verdict = "not measured" if self.met is None else "met" if self.met else "MISSED"
        return f"{verdict}: {self.what} ({self.figures})"


def aims(rows: Sequence[Row], scale: Scale) -> Iterator[Aim]:
    """Every aim of the queue."""
    at = scale.judged
    batch, durable, single = (
        like(rows, batch=100, durable=False),
        like(rows, batch=100, durable=True),
        like(rows, batch=1, durable=False),
    )
    peers = [row for row in rows if row.system.kind != "ours"]
    yield _ahead(f"batch path at least {FASTER:g}x the fastest peer, {at:,} pending", batch, peers, at, FASTER)
    per_s = batch.per_s(at) if batch else None
    yield Aim(
        f"batch path at least {PER_S:,} tasks/s with one worker, {at:,} pending",
        None if per_s is None else per_s >= PER_S,
        "no figure" if per_s is None else f"{per_s:,.0f}/s",
    )
    on_files = [row for row in peers if row.system.kind in ("file", "SQLite")]
    yield _ahead(f"single path ahead of every file and SQLite peer, {at:,} pending", single, on_files, at, 1.0)
    postgres = [row for row in peers if row.system.server == "postgres" and row.system.durable]
    for backlog in (at, scale.many):
        yield _ahead(f"durable batch path ahead of Postgres, {backlog:,} pending", durable, postgres, backlog, 1.0)


def like(rows: Sequence[Row], *, batch: int, durable: bool) -> Row | None:
    """Our own row of that kind."""
    for row in rows:
        if row.system.kind == "ours" and row.system.batch == batch and row.system.durable == durable:
            return row
    return None


def ratio(ours: Row | None, peer: Row, backlog: int) -> float | None:
    """Ours / the peer's, in tasks that one worker handles in a second."""
    mine, theirs = ours.per_s(backlog) if ours else None, peer.per_s(backlog)
    return mine / theirs if mine is not None and theirs is not None else None


def _ahead(what: str, ours: Row | None, peers: Sequence[Row], backlog: int, factor: float) -> Aim:
    mine = ours.per_s(backlog) if ours else None
    theirs = [(per_s, peer) for peer in peers if (per_s := peer.per_s(backlog)) is not None]
    if mine is None or not theirs:
        return Aim(what, None, "no figure")
    best, peer = max(theirs, key=lambda found: found[0])
    met = mine >= factor * best if factor > 1 else mine > best
    return Aim(what, met, f"{mine:,.0f}/s against {best:,.0f}/s of {peer.system.name}: {mine / best:.2f}x")
