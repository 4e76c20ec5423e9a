"""`limpet index stats`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from limpet.cli.index_options import IndexArgument, demand_index, size_text
from limpet.cli.queue_options import many, now_of, when
from limpet.cli.shared import JsonOption, UrlOption, ago, clean, console, lines, opened, print_json

if TYPE_CHECKING:
    from limpet.index.stats import IndexStats, Waits

EPILOG = lines(
    "Example:",
    "$ limpet index stats sites -u s3://acme/prod",
    "Exit codes: 0 shown; 1 there is no such index or fleet; 2 wrong usage.",
)


def stats(index: IndexArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Count what an index holds, and what waits to be compiled. Changes nothing.

    It lists every object of the index, at a request for each thousand; no record is read. Deleted records count until
    `limpet index purge`.
    """
    fleet = opened(url, read_only=True)
    handle = demand_index(fleet, index)
    with fleet.meter.measure() as cost:
        found = handle.stats()
    age_s = (now_of(found.oldest_at) - found.oldest_at).total_seconds() if found.oldest_at else None
    if json:
        print_json(_facts(found, age_s, cost.requests))
    else:
        _print(found, age_s, cost.requests)


def _facts(found: IndexStats, age_s: float | None, requests: dict[str, int]) -> dict[str, Any]:
    return {**asdict(found), "oldest_s": None if age_s is None else round(age_s, 1), "requests": requests}


def _print(found: IndexStats, age_s: float | None, requests: dict[str, int]) -> None:
    out = console()
    records = f"{found.records:,}" if found.records is not None else "not counted at depth 4"
    compiled = f", last {when(found.compiled_at)}" if found.compiled_at else ", never"
    rows = {
        "records": f"{records} in the shards",
        "size": f"{size_text(found.bytes)} in {found.shards:,} shards{_largest(found)}",
        "waiting": f"{_waits(found.singles, 'single')}, {_waits(found.packs, 'pack')}",
        "oldest": f"{ago(age_s)} ago" if age_s is not None else "nothing waits",
        "compiled": compiled.removeprefix(", "),
        "schema": f"version {found.schema_version}, {many(found.columns, 'column')}, key {found.key!r}",
        "quarantine": many(found.quarantined, "object") if found.quarantined else "empty",
    }
    out.print(f"[bold]{clean(found.name)}[/bold]")
    for name, said in rows.items():
        style = "red" if name == "quarantine" and found.quarantined else None
        out.print(f"  {name:<11} {clean(said)}", soft_wrap=True, style=style)
    took = ", ".join(f"{count:,} {verb.upper()}" for verb, count in requests.items())
    out.print(f"[dim]This took {many(sum(requests.values()), 'request')}: {took}.[/dim]", soft_wrap=True)


def _largest(found: IndexStats) -> str:
    return f", the largest {size_text(found.largest.bytes)} ({found.largest.id})" if found.largest else ""


def _waits(waits: Waits, what: str) -> str:
    return f"{many(waits.objects, what)} of {size_text(waits.bytes)}" if waits.objects else f"no {what}s"
