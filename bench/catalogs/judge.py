"""The aims, and whether a run meets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.catalogs.runs import Figures, Measured
from bench.catalogs.systems import PLACES
from bench.queues.judge import Aim

__all__ = ["VERBS", "aims", "besides"]

VERBS = ("create", "append")
IN_PROCESS, OVER_HTTP, PEER = "limpet in process", "limpet over HTTP", "SqlCatalog, SQLite"
FAR = "30 ms"
PER_S = {64: 500.0, 8: 100.0}
WRITES_MAX = 0.2
WRITES_CLIENTS = 64
FLAT = 1.5
"""Requests, and bytes, of a commit with the most tables / with the fewest, at most."""
CPU_FLAT, CPU_FROM = 1.3, 100
"""CPU of a commit with more tables / with so many, at most, with its share of checkpoints."""


def besides(figures: Figures) -> float:
    """Objects written for a commit besides the table's metadata, of which each commit writes one."""
    return figures.requests.get("put", 0.0) - 1.0


def aims(rows: Sequence[Measured], grown: Sequence[Mapping[str, Any]]) -> Iterator[Aim]:
    """Every aim of the catalog. Rates and writes are judged in process and over HTTP alike."""
    for name in (IN_PROCESS, OVER_HTTP):
        for clients, wanted in PER_S.items():
            for verb in VERBS:
                found = _find(rows, name, FAR, clients, verb)
                yield Aim(
                    f"{name}: {clients} clients on the {FAR} store at least {wanted:,.0f} {verb}s/s",
                    None if found is None else found.per_s >= wanted,
                    "no figure" if found is None else f"{found.per_s:,.0f}/s",
                )
        for verb in VERBS:
            found = _find(rows, name, FAR, WRITES_CLIENTS, verb)
            yield Aim(
                f"{name}: {WRITES_CLIENTS} clients, {verb}s: at most {WRITES_MAX:g} writes each besides metadata",
                None if found is None else besides(found) <= WRITES_MAX,
                "no figure" if found is None else f"{besides(found):.3f}",
            )
    for place in PLACES:
        yield _ahead(rows, place)
    if len(grown) > 1:
        yield from _flat(grown[0], grown[-1])
        yield from _cpu_flat([each for each in grown if each["tables"] >= CPU_FROM])
    yield _nothing_lost(rows)


def _find(rows: Sequence[Measured], name: str, place: str, clients: int, verb: str) -> Figures | None:
    """The figures with the fewest tables."""
    found = [row for row in rows if (row.system.name, row.place, row.clients) == (name, place, clients)]
    return min(found, key=lambda row: row.tables).figures.get(verb) if found else None


def _ahead(rows: Sequence[Measured], place: str) -> Aim:
    what = f"sequential create_table ahead of {PEER}, {place}"
    mine, theirs = (_find(rows, name, place, 1, "create") for name in (IN_PROCESS, PEER))
    if mine is None or theirs is None:
        return Aim(what, None, "no figure")
    times = mine.per_s / theirs.per_s
    return Aim(what, times > 1, f"{mine.per_s:,.0f}/s against {theirs.per_s:,.0f}/s: {times:.2f}x")


def _flat(few: Mapping[str, Any], many: Mapping[str, Any]) -> Iterator[Aim]:
    for verb in VERBS:
        small, large = few[verb], many[verb]
        requests = [each["puts"] + each["gets"] for each in (small, large)]
        ratios = (requests[1] / requests[0], large["bytes"] / small["bytes"])
        yield Aim(
            f"{verb}: requests and bytes flat from {few['tables']:,} to {many['tables']:,} tables outside checkpoints"
            f" (at most {FLAT:g}x)",
            max(ratios) <= FLAT,
            f"{requests[0]:.2f} and {requests[1]:.2f} requests, {small['bytes']:,.0f} and {large['bytes']:,.0f} B",
        )
    again, after = many["load"]["again"], many["load"]["after a commit"]
    yield Aim(
        "a load reads the catalog's state at most once a version",
        again["bytes"] == 0 and after["requests"] == 1,
        f"again: {again['requests']} request, {again['bytes']:,} B; after a commit: {after['requests']} request",
    )


def _cpu_flat(grown: Sequence[Mapping[str, Any]]) -> Iterator[Aim]:
    for verb in VERBS:
        cpu_ms = {each["tables"]: each[verb]["cpu_ms"] + each[verb]["checkpoint_cpu_ms"] for each in grown}
        few, most = min(cpu_ms), max(cpu_ms)
        yield Aim(
            f"{verb}: CPU of a commit flat from {few:,} to {most:,} tables with checkpoints (at most {CPU_FLAT:g}x)",
            max(cpu_ms.values()) <= CPU_FLAT * cpu_ms[few] if few < most else None,
            ", ".join(f"{tables:,} tables {ms:.2f} ms ({ms / cpu_ms[few]:.2f}x)" for tables, ms in cpu_ms.items()),
        )


def _nothing_lost(rows: Sequence[Measured]) -> Aim:
    mine = [figures for row in rows if row.system.kind == "ours" for figures in row.figures.values()]
    lost, refused = (sum(getattr(each, name) for each in mine) for name in ("lost", "refused"))
    return Aim(
        "nothing acknowledged is lost, nothing refused",
        lost == refused == 0 if mine else None,
        f"{lost} lost, {refused} refused of {sum(each.acknowledged for each in mine):,}",
    )
