"""What operators do to a queue: retry, cancel, pause, resume, purge, sweep."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from limpet.cli.options import (
    IdArgument,
    JsonOption,
    QueueArgument,
    SinceOption,
    UrlOption,
    WhereOption,
    demand_queue,
    existing,
    in_store,
)
from limpet.cli.output import EXIT_FAILED, lines, many, print_json, say
from limpet.cli.queue.show import nothing_failed
from limpet.errors import Invalid, Missing

IDS_SHOWN = 10

EPILOGS = {
    "retry": lines(
        "Example: one task; all that failed; those whose error mentions a timeout, of the last two hours",
        "$ limpet queue retry enrich a.com@2026-11 -u s3://acme/prod",
        "$ limpet queue retry enrich --all -u s3://acme/prod",
        "$ limpet queue retry enrich --where timeout --since 2h -u s3://acme/prod",
        "Exit codes: 0 done; 1 there is no such failed task or queue; 2 wrong usage.",
    ),
    "cancel": lines(
        "Example:",
        "$ limpet queue cancel enrich a.com@2026-11 -u s3://acme/prod",
        "Exit codes: 0 cancelled; 1 it had ended, or there is no such task; 2 wrong usage.",
    ),
    "pause": lines(
        "Example:",
        "$ limpet queue pause enrich -u s3://acme/prod",
        "Exit codes: 0 paused; 1 there is no such queue; 2 wrong usage.",
    ),
    "resume": lines(
        "Example:",
        "$ limpet queue resume enrich -u s3://acme/prod",
        "Exit codes: 0 resumed; 1 there is no such queue; 2 wrong usage.",
    ),
    "purge": lines(
        "Example:",
        "$ limpet queue purge enrich --yes -u s3://acme/prod",
        "Exit codes: 0 purged; 1 there is no such queue, or you said no; 2 wrong usage, or nobody to ask.",
    ),
    "sweep": lines(
        "Example:",
        "$ limpet queue sweep enrich -u s3://acme/prod",
        "Exit codes: 0 swept; 1 there is no such queue; 2 wrong usage.",
    ),
}


def retry(
    queue: QueueArgument,
    id: Annotated[
        str | None, typer.Argument(metavar="ID", show_default=False, help="The task's id; or use --all.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Retry every task that failed. Cancelled ones stay.")] = False,
    where: WhereOption = None,
    since: SinceOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Give failed tasks another life, with fresh attempts: one by its id, all, or those that --where and --since name.

    A task that lives again has a new id: ~1, ~2 and so on are added to its old one. Asking for the old id finds it.
    """
    chosen = where is not None or since is not None
    if id is not None and chosen:
        raise Invalid("--where and --since choose among all failed tasks", hint="leave the id out, or the options")
    if (id is None) is not (all or chosen):
        raise Invalid(
            "say which task to retry, or --all, --where or --since",
            hint=f"`limpet queue ls {queue} --failed` shows what failed, `limpet queue failed {queue}` groups it",
        )
    fleet = existing(url)
    handle = fleet.queue(queue)
    demand_queue(fleet, handle)
    try:
        ids = [*handle.retry(id, all=id is None, where=where, since_s=since)]
    except Missing as missing:
        missing.hint = f"`limpet queue ls {queue} --failed` shows what failed"
        raise
    if json:
        print_json({"queue": queue, "retried": ids})
    elif not ids:
        say(nothing_failed(queue, where, since))
    elif id is not None:
        say(f"{id!r} waits again, as {ids[0]!r}")
    else:
        shown = ", ".join(ids[:IDS_SHOWN]) + (", ..." if len(ids) > IDS_SHOWN else "")
        say(f"waiting again, {many(len(ids), 'task')}: {shown}")


def cancel(queue: QueueArgument, id: IdArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """End a task that has not ended.

    A handler that runs already is not stopped, and if it succeeds, that counts. Of a batch, only the whole can be
    cancelled.
    """
    fleet = existing(url)
    handle = fleet.queue(queue)
    demand_queue(fleet, handle)
    try:
        cancelled = handle.cancel(id)
    except Missing as missing:
        missing.hint = f"`limpet queue ls {queue}` shows what waits"
        raise
    if json:
        print_json({"queue": queue, "id": id, "cancelled": cancelled})
    elif cancelled:
        say(f"{id!r} is cancelled")
    else:
        say(f"{id!r} has ended already; nothing was changed: limpet queue show {queue} {id}", err=True)
    if not cancelled:
        raise typer.Exit(EXIT_FAILED)


def pause(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Let nobody claim anything until `resume`.

    Workers notice within a few seconds. What runs goes on, and tasks may still be pushed.
    """
    _set_paused(queue, url, True, json=json)


def resume(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Undo `pause`."""
    _set_paused(queue, url, False, json=json)


def _set_paused(queue: str, url: str | None, paused: bool, *, json: bool) -> None:
    fleet = existing(url)
    handle = fleet.queue(queue)
    demand_queue(fleet, handle)
    if paused:
        handle.pause()
    else:
        handle.resume()
    if json:
        print_json({"queue": queue, "paused": paused})
    elif paused:
        say(f"{queue!r} is paused; go on with: limpet queue resume {queue}")
    else:
        say(f"{queue!r} is resumed; workers notice within a few seconds")


def purge(
    queue: QueueArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Drop every task that waits, delayed ones too. What ended stays to be looked at.

    There is no undo. A handler that runs goes on, and if it succeeds, that counts.
    """
    fleet = existing(url)
    handle = fleet.queue(queue)
    demand_queue(fleet, handle)
    if not yes:
        stats = handle.stats()
        waiting = many(stats.pending + stats.scheduled, "task")
        said = f"{waiting} would be dropped from {queue!r}, {stats.in_flight:,} of them in flight"
        if not sys.stdin.isatty():
            raise Invalid(f"{said}, and nobody is here to ask", hint="add --yes")
        say(f"{said}.", err=True)
        if not typer.confirm("Drop them all?", err=True):
            say("nothing was changed", err=True)
            raise typer.Exit(EXIT_FAILED)
    gone = handle.purge()
    if json:
        print_json({"queue": queue, "purged": gone})
    else:
        say(f"dropped {many(gone, 'task')} of {queue!r}")


def sweep(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Tidy up after crashes: finish half-done ends, drop what lost.

    Workers do this by themselves, one of them once an hour. Nothing that waits or ended is lost by it.
    """
    fleet = existing(url)
    handle = in_store(fleet.queue(queue), "be swept")
    demand_queue(fleet, handle)
    gone = handle.sweep()
    if json:
        print_json({"queue": queue, "removed": gone})
    else:
        say(f"{queue!r} is tidy; {many(gone, 'object')} removed")
