"""What operators do to a queue: retry, cancel, pause, resume, purge, sweep, adopt."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import limpet
from limpet.cli import EXIT_FAILED, answer, confirm, console, lines, many, print_json, say
from limpet.cli.options import (
    IdArgument,
    JsonOption,
    QueueArgument,
    SinceOption,
    UrlOption,
    WhereOption,
    YesOption,
    refuse_path,
)
from limpet.cli.queue.show import nothing_failed
from limpet.errors import Invalid, Missing

if TYPE_CHECKING:
    from limpet.queue import QueueAdoptReport

IDS_SHOWN = 10

EPILOGS = {
    "retry": lines(
        "Example: one task; all that failed; those whose error mentions a timeout, of the last two hours",
        "$ limpet queue retry enrich a.com@2026-11 -u s3://acme/prod",
        "$ limpet queue retry enrich --all -u s3://acme/prod",
        "$ limpet queue retry enrich --where timeout --since 2h -u s3://acme/prod",
        "$ limpet queue retry enrich --where 'error ~ 429|503' --since 1h -u s3://acme/prod",
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
        "Exit codes: 0 purged; 1 there is no such queue, or you said no; 2 wrong usage, or no terminal to ask.",
    ),
    "sweep": lines(
        "Example:",
        "$ limpet queue sweep enrich -u s3://acme/prod",
        "Exit codes: 0 swept; 1 there is no such queue; 2 wrong usage.",
    ),
    "adopt": lines(
        "Example: copy the tasks of another program's queue; then take it over, once that program has stopped",
        "$ limpet queue adopt enrich --from ./old/queues/enrich -u s3://acme/prod",
        "$ limpet queue adopt enrich --from ./old/queues/enrich --quiesced -u s3://acme/prod",
        "Exit codes: 0 all were taken over; 1 some files were bad, or there are none; 2 wrong usage.",
    ),
}


def retry(
    queue: QueueArgument,
    id: Annotated[str | None, typer.Argument(metavar="ID", help="The task's id; or use --all.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Retry every task that failed. Cancelled ones stay.")] = False,
    where: WhereOption = None,
    since: SinceOption = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Forget the recorded steps of durable tasks: run them all again.")
    ] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Queue failed tasks again, with fresh attempts: one by its id, all, or those that --where and --since name.

    A retried task has a new id: ~1, ~2 and so on are added to its old one. Commands that are given the old id find it.
    A durable task keeps its recorded steps, unless --from-scratch is given.
    """
    chosen = where is not None or since is not None
    if id is not None and chosen:
        raise Invalid("--where and --since choose among all failed tasks", hint="leave the id out, or the options")
    if (id is None) is not (all or chosen):
        raise Invalid(
            "say which task to retry, or --all, --where or --since",
            hint=f"`limpet queue ls {queue} --failed` shows what failed, `limpet queue failed {queue}` groups it",
        )
    handle = limpet.open(url, create=False).check().queue(queue, create=False)
    try:
        ids = [*handle.retry(id, all=id is None, where=where, since_s=since, from_scratch=from_scratch)]
    except Missing as missing:
        can_list = "peek" in handle.supports
        missing.hint = f"`limpet queue ls {queue} --failed` shows what failed" if can_list else "--all retries all"
        raise
    if not ids:
        text = nothing_failed(queue, where, since)
    elif id is not None:
        text = f"{id!r} waits again, as {ids[0]!r}"
    else:
        shown = ", ".join(ids[:IDS_SHOWN]) + (", ..." if len(ids) > IDS_SHOWN else "")
        text = f"waiting again, {many(len(ids), 'task')}: {shown}"
    answer({"queue": queue, "retried": ids}, text, json=json)


def cancel(queue: QueueArgument, id: IdArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Cancel a task that has not ended.

    A handler that runs already is not stopped, and if it succeeds, that counts. A task of a batch cannot be cancelled
    alone, only the whole batch.
    """
    handle = limpet.open(url, create=False).check().queue(queue, create=False)
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
    """Stop workers from claiming tasks of a queue, until `resume`.

    Workers notice within a few seconds. What runs goes on, and tasks may still be pushed.
    """
    _set_paused(queue, url, True, json=json)


def resume(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Undo `pause`."""
    _set_paused(queue, url, False, json=json)


def _set_paused(queue: str, url: str | None, paused: bool, *, json: bool) -> None:
    handle = limpet.open(url, create=False).check().queue(queue, create=False)
    if paused:
        handle.pause()
        text = f"{queue!r} is paused; go on with: limpet queue resume {queue}"
    else:
        handle.resume()
        text = f"{queue!r} is resumed; workers notice within a few seconds"
    answer({"queue": queue, "paused": paused}, text, json=json)


def purge(queue: QueueArgument, yes: YesOption = False, url: UrlOption = None, json: JsonOption = False) -> None:
    """Delete every task that waits, delayed ones too. Receipts of tasks that have ended stay.

    There is no undo. A handler that runs goes on, and if it succeeds, that counts.
    """
    handle = limpet.open(url, create=False).check().queue(queue, create=False)
    if not yes:
        stats = handle.stats()
        waiting = many(stats.pending + stats.scheduled, "task")
        confirm(f"{waiting} would be dropped from {queue!r}, {stats.in_flight:,} of them in flight", "Drop them all?")
    gone = handle.purge()
    answer({"queue": queue, "purged": gone}, f"dropped {many(gone, 'task')} of {queue!r}", json=json)


def sweep(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Clean up after crashes: finish tasks that ended half-way, and delete leftovers of tasks that have ended.

    Workers do this by themselves, one of them once an hour. Nothing that waits or ended is lost by it: receipts stay,
    however old they are, until a worker whose retention_s they exceed removes them.
    """
    from limpet.app.fleet import in_store

    handle = limpet.open(url, create=False).check().queue(queue, create=False)
    gone = in_store(handle, "be swept").sweep(retain=False)
    answer({"queue": queue, "removed": gone}, f"{queue!r} is tidy; {many(gone, 'object')} removed", json=json)


def adopt(
    queue: QueueArgument,
    from_: Annotated[
        str,
        typer.Option(
            "--from", metavar="DIR", show_default=False, help="Where they are: a folder, or a URL (s3://bucket/prefix)."
        ),
    ],
    quiesced: Annotated[
        bool,
        typer.Option(
            "--quiesced",
            help="The other program has stopped: ignore leases, delete each original once its task is safe.",
        ),
    ] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Take over a queue that another program keeps in files.

    Its files: `pending/ID/task.json` is a waiting task, with a `lease.json` beside it while a worker holds it;
    `completed/ID.json` and `failed/ID.json` are ended tasks. Each file is the payload, a JSON object. Ids are kept, so
    running it twice changes nothing; failed tasks can be retried. Invalid files are reported and kept.

    Without --quiesced nothing is deleted, tasks with a lease are skipped, and a task that the other program claims
    later runs twice.
    """
    from limpet.app.adopt import adopt_tasks

    refuse_path(queue, "queue", lambda: limpet.open(url, create=False).check().queue(queue, create=False))
    fleet = limpet.open(url).check()
    with console(stderr=True).status(f"taking tasks into {queue!r}"):
        report = adopt_tasks(fleet, queue, from_, quiesced=quiesced)
    if json:
        print_json({"queue": queue, **asdict(report)})
    else:
        _print_adopted(queue, report)
    if report.bad:
        raise typer.Exit(EXIT_FAILED)


def _print_adopted(queue: str, report: QueueAdoptReport) -> None:
    for bad in report.bad:
        say(f"not taken over: {bad.name}: {bad.reason}", err=True)
    if report.held:
        held = many(report.held, "task has a lease and was skipped", "tasks have a lease and were skipped")
        say(f"{held}; once the other program has stopped: --quiesced", err=True)
    parts = [f"{report.pending:,} waiting, {report.completed:,} completed, {report.failed:,} failed"]
    if report.known:
        parts.append(f"{report.known:,} known before")
    parts.append(f"{many(report.deleted, 'original')} deleted" if report.deleted else "no original deleted")
    say(f"took {many(report.pending + report.completed + report.failed, 'task')} into {queue!r}: {'; '.join(parts)}")
