"""`limpet status`: a whole fleet on one screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.options import JsonOption, UrlOption, opened
from limpet.cli.output import ago, clean, console, lines, many, now_of, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from limpet.app import Fleet
    from limpet.queue.inspect import Folder, QueueSummary

EPILOG = lines(
    "Example:",
    "$ limpet status -u s3://acme/prod",
    "Exit codes: 0 shown; 1 no fleet there, or it cannot be read; 2 wrong usage. For alerts use `limpet check`.",
)

LOCKS_MAX = 1000
APPROXIMATE = (
    "Numbers of SQS: approximate, and late by up to a minute. In flight counts what rests before its next attempt too; "
    "SQS tells neither ages nor what was completed."
)


def status(
    url: UrlOption = None,
    full: Annotated[
        bool, typer.Option("--full", help="Count every object; otherwise counting stops at 10,000 of a kind.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show the queues of a fleet and the locks that are held. Changes nothing.

    in flight: tasks in the hands of a worker that is alive. resting: tasks that failed and wait for their next
    attempt; both are part of pending. oldest: how long ago the oldest task was pushed that has
    not ended. failed: what failed or was cancelled, and was not retried.
    """
    from limpet.app.urls import has_store
    from limpet.queue.inspect import ALL

    fleet = opened(url, read_only=True)
    queues = summaries(fleet, limits=ALL if full else None)
    locks, bad, more = _held(fleet) if has_store(fleet.url) else ([], [], False)
    spent = fleet.meter.snapshot()
    if json:
        facts = {
            "url": fleet.url,
            "queues": [each.facts() for each in queues],
            "locks_held": locks,
            "requests": spent.requests,
        }
        print_json({**facts, "locks_unreadable": bad} if bad else facts)
        return
    out = console()
    print_queues(out, fleet.url, queues)
    if not has_store(fleet.url):
        return
    out.print()
    _print_locks(out, locks, more=more)
    for each in bad:
        out.print(f"[red]unreadable[/red]: {clean(each['key'])}: {clean(each['error'])}", soft_wrap=True)
    by_verb = ", ".join(f"{count:,} {verb.upper()}" for verb, count in sorted(spent.requests.items()))
    out.print(
        f"\n[dim]This took {many(spent.total(), 'request')} ({by_verb}): ${spent.dollars('s3'):.6f} on S3.[/dim]",
        soft_wrap=True,
    )


def summaries(
    fleet: Fleet, queues: Iterable[str] | None = None, *, limits: Mapping[Folder, float] | None = None
) -> list[QueueSummary]:
    """Count these queues of a fleet, or all there are, wherever they live; by default up to 10,000 objects of a kind.

    Cost: that of `limpet.queue.inspect.summarize`. On SQS 1 request for the names, 3 or more for each queue.
    """
    from limpet.app.urls import SQS, provider_of
    from limpet.queue.inspect import SOME, QueueSummary, summarize
    from limpet.runtime import system

    if provider_of(fleet.url) != SQS:
        return summarize(fleet.store, system(), queues, limits=limits or SOME)
    names = fleet.queues() if queues is None else queues
    return [QueueSummary(queue=name, **asdict(fleet.queue(name).stats()), approximate=True) for name in names]


def print_queues(out: Console, url: str, queues: Sequence[QueueSummary]) -> None:
    """The queues as a table. A number with a plus is a lower bound."""
    from rich.table import Table

    if not queues:
        out.print(f"no queue was ever used at {clean(url)}", soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("queue", overflow="fold")
    for title in ("pending", "in flight", "resting", "scheduled", "completed", "failed", "oldest"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for each in queues:
        keys = ("pending", "in_flight", "resting", "scheduled", "completed", "failed")
        counts = [_count(each, key) for key in keys]
        counts[-1] = f"[red]{counts[-1]}[/red]" if each.failed else counts[-1]
        plus = "+" if "oldest_s" in each.at_least else ""
        oldest = f"{ago(each.oldest_s)}{plus}" if each.oldest_s is not None else "-"
        remark = (
            f"[red]{clean(each.trouble)}[/red]" if each.trouble else "[yellow]paused[/yellow]" if each.paused else ""
        )
        table.add_row(clean(each.queue), *counts, oldest, remark)
    out.print(table)
    if any(each.approximate for each in queues):
        out.print(f"\n[dim]{APPROXIMATE}[/dim]", soft_wrap=True)
    if any(each.at_least for each in queues):
        out.print(
            "\n[dim]+ at least: counting stopped at 10,000 objects of a kind. `limpet status --full`, or `limpet queue "
            "stats QUEUE`, counts them all.[/dim]",
            soft_wrap=True,
        )


def _count(survey: QueueSummary, key: str) -> str:
    value = getattr(survey, key)
    return "-" if value is None else f"{value:,}{'+' if key in survey.at_least else ''}"


def _held(fleet: Fleet) -> tuple[list[dict[str, Any]], list[dict[str, Any]], bool]:
    """The locks that are held among the first 1,000, those that cannot be read, and whether there are more."""
    from limpet.cli.lock import unreadable
    from limpet.lease import State
    from limpet.lease.decide import is_live

    bad: list[dict[str, Any]] = []
    found = fleet.locks(on_error=lambda key, error: bad.append(unreadable(key, error)))
    seen = [*islice(found, LOCKS_MAX + 1)]
    now = now_of(*(each.modified for each in seen))
    held = []
    for each in seen[:LOCKS_MAX]:
        record, modified = each.value, each.modified
        if record.state is not State.HELD or modified is None:
            continue
        age_s = max(0.0, (now - modified).total_seconds())
        held.append(
            {
                "name": record.name,
                "state": "held" if is_live(record, modified=modified, now=now) else "overdue",
                "holder": record.label,
                "token": record.token,
                "age_s": round(age_s, 1),
                "ttl_s": record.ttl_s,
            }
        )
    return held, bad, len(seen) > LOCKS_MAX


def _print_locks(out: Console, locks: Sequence[dict[str, Any]], *, more: bool) -> None:
    from rich.table import Table

    if not locks:
        out.print("no lock is held" + (f" among the first {LOCKS_MAX:,}" if more else ""))
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("lock held", "by"):
        table.add_column(title, overflow="fold")
    for title in ("token", "last heartbeat", "ttl"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for lock in locks:
        overdue = "[red]overdue[/red]" if lock["state"] == "overdue" else ""
        cells = [str(lock["token"]), f"{ago(lock['age_s'])} ago", f"{lock['ttl_s']:g} s", overdue]
        table.add_row(clean(lock["name"]), clean(lock["holder"]), *cells)
    out.print(table)
    if more:
        out.print(f"[dim]There are more locks; the first {LOCKS_MAX:,} were looked at.[/dim]")
