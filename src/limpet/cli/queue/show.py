"""`limpet queue ls`, `failed`, `peek`, `show` and `stats`: what waits, what ended and how. They change nothing."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from limpet.cli.options import (
    IdArgument,
    JsonOption,
    QueueArgument,
    SinceOption,
    UrlOption,
    WhereOption,
    demand_queue,
    in_store,
    inspection,
    opened,
)
from limpet.cli.output import ago, clean, clean_lines, console, lines, many, now_of, print_json, when
from limpet.cli.status import APPROXIMATE, print_queues, summaries
from limpet.errors import Invalid, Missing

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.queue.inspect import Folder

EPILOG = lines(
    "Example: all queues; what waits in one; what failed, as JSON",
    "$ limpet queue ls -u s3://acme/prod",
    "$ limpet queue ls enrich -u s3://acme/prod",
    "$ limpet queue ls enrich --failed -n 100 --json -u s3://acme/prod",
    "Exit codes: 0 listed; 1 there is no such queue or fleet; 2 wrong usage.",
)

FAILED_EPILOG = lines(
    "Example: all; those of the last two hours whose error mentions a timeout",
    "$ limpet queue failed enrich -u s3://acme/prod",
    "$ limpet queue failed enrich --where timeout --since 2h -u s3://acme/prod",
    "Exit codes: 0 shown, or nothing has failed; 1 there is no such queue or fleet; 2 wrong usage.",
)

SHOW_EPILOG = lines(
    "Example:",
    "$ limpet queue show enrich a.com@2026-11 -u s3://acme/prod",
    "Exit codes: 0 shown; 1 there is no such task, queue or fleet; 2 wrong usage.",
)
PEEK_EPILOG = lines(
    "Example:",
    "$ limpet queue peek enrich -n 3 -u s3://acme/prod",
    "Exit codes: 0 shown, or nothing waits; 1 there is no such queue or fleet; 2 wrong usage.",
)

STATS_EPILOG = lines(
    "Example:",
    "$ limpet queue stats enrich --json -u s3://acme/prod",
    "Exit codes: 0 shown; 1 there is no such queue or fleet; 2 wrong usage.",
)

FAILED_SHOWN = 20
ID_WIDTH = 36


def ls(
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", show_default=False, help="The queue; without it, all queues.")
    ] = None,
    pending: Annotated[bool, typer.Option("--pending", help="What waits or is worked on (the default).")] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="What failed or was cancelled, and was not retried.")
    ] = False,
    completed: Annotated[bool, typer.Option("--completed", help="What succeeded.")] = False,
    scheduled: Annotated[bool, typer.Option("--scheduled", help="What was pushed with a delay.")] = False,
    n: Annotated[int, typer.Option("-n", min=1, help="Show at most so many.")] = 20,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """List the entries of a queue, or all queues with their counts. Changes nothing.

    An entry is one task, or a batch of tasks that were pushed together. They come in the order of their names, which
    for ids that Limpet made is oldest first.
    """
    flags: dict[Folder, bool] = {"pending": pending, "failed": failed, "completed": completed, "scheduled": scheduled}
    states = [state for state, wanted in flags.items() if wanted]
    if len(states) > 1:
        raise Invalid(f"--{states[0]} and --{states[1]} are two lists", hint="ask for one of them")
    fleet = opened(url, read_only=True)
    if queue is None:
        if states:
            raise Invalid(f"--{states[0]} needs a queue name", hint="limpet queue ls QUEUE --" + states[0])
        found = summaries(fleet)
        if json:
            print_json([each.facts() for each in found])
        else:
            print_queues(console(), fleet.url, found)
        return
    _ls_entries(fleet, queue, states[0] if states else "pending", n, json=json)


def failed(
    queue: QueueArgument,
    where: WhereOption = None,
    since: SinceOption = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Read at most so many failed tasks.")] = 1000,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Show what failed and was not retried, grouped by error, the most frequent first. Changes nothing.

    Errors that differ only in their numbers are one group. `limpet queue retry` takes the same --where and --since.
    """
    fleet = opened(url, read_only=True)
    handle = fleet.queue(queue)
    groups = handle.failed(n, where=where, since_s=since)
    if not groups:
        demand_queue(fleet, handle)
    rows: list[dict[str, Any]] = [
        {
            "error": group.error,
            "count": group.count,
            "last_at": group.last_at,
            "age_s": round((now_of(group.last_at) - group.last_at).total_seconds(), 1),
            "ids": group.ids,
        }
        for group in groups
    ]
    if json:
        print_json(rows)
        return
    out = console()
    if not groups:
        out.print(nothing_failed(queue, where, since), markup=False, soft_wrap=True)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("tasks", justify="right", no_wrap=True)
    table.add_column("newest", justify="right", no_wrap=True)
    table.add_column("its id", overflow="fold", min_width=min(ID_WIDTH, max(len(group.ids[0]) for group in groups)))
    table.add_column("error", overflow="fold")
    for group, row in zip(groups, rows, strict=True):
        error = " ".join(group.error.split())
        table.add_row(f"{group.count:,}", f"{ago(row['age_s'])} ago", clean(group.ids[0]), clean(error))
    out.print(table)
    if sum(group.count for group in groups) >= n:
        out.print(f"\n[dim]{many(n, 'failed task')} read; -n {n * 5} reads more of them.[/dim]")


def nothing_failed(queue: str, where: str | None, since_s: float | None) -> str:
    """That no failed task of the queue was found that fits."""
    error = f" with {where!r} in its error" if where is not None else ""
    time = f" in the last {ago(since_s)}" if since_s is not None else ""
    return f"nothing has failed in {queue!r}{error}{time}"


def _ls_entries(fleet: Fleet, name: str, state: Folder, n: int, *, json: bool) -> None:
    rows = [*islice(inspection(fleet, name, "list its tasks").entries(state), n + 1)]
    if not rows:
        demand_queue(fleet, fleet.queue(name))
    more, rows = len(rows) > n, rows[:n]
    if json:
        print_json(rows)
        return
    out = console()
    if not rows:
        nothing = {
            "pending": "nothing waits in",
            "failed": "nothing has failed in",
            "completed": "nothing is completed in",
            "scheduled": "nothing is scheduled in",
        }
        out.print(f"{nothing[state]} {name!r}", markup=False, soft_wrap=True)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in _COLUMNS[state]:
        justify: Literal["left", "right"] = "left" if title in _TO_THE_LEFT else "right"
        width = min(ID_WIDTH, max(len(row["id"]) for row in rows)) if title == "id" else None
        table.add_column(title, justify=justify, overflow="fold", no_wrap=title not in _FOLDED, min_width=width)
    for row in rows:
        table.add_row(*_cells(state, row))
    out.print(table)
    if more:
        out.print(f"\n[dim]There are more: -n {n * 5} shows more of them.[/dim]")


_COLUMNS: dict[Folder, tuple[str, ...]] = {
    "pending": ("id", "tasks", "pushed", "state", "attempt", "worker"),
    "failed": ("id", "state", "attempts", "ended", "error"),
    "completed": ("id", "tasks", "failed", "ended", "worker"),
    "scheduled": ("id", "due in"),
}
_TO_THE_LEFT = ("id", "state", "worker", "error")
_FOLDED = ("id", "worker", "error")


def _cells(state: Folder, row: dict[str, Any]) -> list[str]:
    match state:
        case "pending":
            pushed = f"{ago(row['age_s'])} ago"
            attempt = str(row["attempt"]) if row["attempt"] else "-"
            colour = {"held": "green", "overdue": "red", "cancelled": "red"}.get(row["state"])
            said = f"[{colour}]{row['state']}[/{colour}]" if colour else row["state"]
            if row["state"] == "rests":
                said = f"rests {ago(row['rests_s'])}"
            return [clean(row["id"]), f"{row['tasks']:,}", pushed, said, attempt, clean(row["worker"] or "-")]
        case "failed":
            ended = f"{ago(row['age_s'])} ago"
            error = " ".join((row["error"] or "").split())
            return [clean(row["id"]), row["state"], str(row["attempts"]), ended, clean(error)]
        case "completed":
            ended = f"{ago(row['age_s'])} ago"
            return [clean(row["id"]), f"{row['tasks']:,}", f"{row['failed']:,}", ended, clean(row["worker"])]
        case "scheduled":
            return [clean(row["id"]), ago(row["due_in_s"]) if row["due_in_s"] > 0 else "now"]


def peek(
    queue: QueueArgument,
    n: Annotated[int, typer.Option("-n", min=1, max=1000, help="Show at most so many.")] = 5,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Show the payloads of some tasks that wait, without claiming them. Changes nothing.

    With a long backlog they come from a random place of it.
    """
    fleet = opened(url, read_only=True)
    handle = fleet.queue(queue)
    found = handle.peek(n)
    if not found:
        demand_queue(fleet, handle)
    if json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print(f"nothing waits in {queue!r}", markup=False, soft_wrap=True)
    for task in found:
        pushed = f"  [dim]pushed {when(task.pushed_at)}[/dim]" if task.pushed_at else ""
        out.print(f"[bold]{clean(task.id)}[/bold]{pushed}", soft_wrap=True)
        out.print(f"  {_json(task.payload)}", soft_wrap=True)


def show(queue: QueueArgument, id: IdArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Show one task: where it is, who works on it, how it ended and why. Changes nothing.

    A task that was retried is followed to its last life. The id of a batch shows the batch.
    """
    fleet = opened(url, read_only=True)
    handle = in_store(fleet.queue(queue), "show a task's lease")
    found = handle.inspect.describe(id)
    if found is None:
        demand_queue(fleet, handle)
        raise Missing(
            f"there is no task {id!r} in queue {queue!r}",
            hint=f"`limpet queue ls {queue}` shows what waits; receipts are kept for a time only",
        )
    facts = {"queue": queue, **found}
    if json:
        print_json(facts)
        return
    from rich.table import Table

    out = console()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for title, text in _lines(facts):
        table.add_row(title, text)
    out.print(table)
    earlier = facts.get("errors", ())
    for each in earlier:
        when_, who, error = when(each["at"]), clean(each["worker"]), clean(each["error"])
        out.print(f"\n[bold]attempt {each['attempt']}[/bold] failed {when_} in {who}: {error}", soft_wrap=True)
        if each["traceback"]:
            out.print(clean_lines(each["traceback"].rstrip()), soft_wrap=True, style="dim")
    if facts.get("traceback") and not (earlier and earlier[-1]["traceback"] == facts["traceback"]):
        out.print()
        out.print(clean_lines(facts["traceback"].rstrip()), soft_wrap=True, style="dim")


_STATES = {"completed": "green", "held": "green", "failed": "red", "cancelled": "red", "overdue": "red"}


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts as people read them, in a fixed order."""
    colour = _STATES.get(facts["state"], "bold")
    rows = [("task", clean(facts["id"])), ("state", f"[{colour}]{facts['state']}[/{colour}]")]
    if "asked_for" in facts:
        rows.append(("retried", f"{clean(facts['asked_for'])} lives on as {clean(facts['id'])}"))
    if facts.get("worker"):
        rows.append(("worker", clean(facts["worker"])))
    if "token" in facts:
        rows.append(("token", str(facts["token"])))
        rows.append(("heartbeat", f"{ago(facts['heartbeat_s'])} ago, ttl {facts['ttl_s']:g} s"))
    if facts.get("rests_s"):
        rows.append(("next try", f"in {ago(facts['rests_s'])}"))
    for title, key in (("attempt", "attempt"), ("attempts", "attempts"), ("tasks", "tasks"), ("done", "done")):
        if facts.get(key):
            rows.append((title, f"{facts[key]:,}"))
    if facts.get("failed"):
        shown = ", ".join(facts["failed"][:FAILED_SHOWN]) + (", ..." if len(facts["failed"]) > FAILED_SHOWN else "")
        rows.append(("failed", clean(shown)))
    for title, key in (("pushed", "pushed_at"), ("due", "due_at"), ("ended", "finished_at")):
        if facts.get(key):
            rows.append((title, when(facts[key])))
    if facts.get("error"):
        rows.append(("error", clean(facts["error"])))
    for key in ("payload", "result"):
        if key in facts:
            rows.append((key, _json(facts[key])))
    if "raw" in facts:
        rows.append(("its bytes", clean(facts["raw"])))
    return rows


def _json(value: Any) -> str:
    return clean(msgspec.json.encode(value).decode())


def stats(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Count the tasks of one queue, all of them. Changes nothing.

    It lists every object of the queue, at a request for each thousand. `limpet status` stops counting sooner.
    """
    from limpet.queue.inspect import ALL

    fleet = opened(url, read_only=True)
    found = summaries(fleet, [queue], limits=ALL)
    if not found:
        demand_queue(fleet, fleet.queue(queue))
    facts = found[0].facts()
    del facts["at_least"]
    if json:
        print_json(facts)
        return
    out = console()
    paused = "  [yellow]paused[/yellow]" if facts["paused"] else ""
    out.print(f"[bold]{clean(queue)}[/bold]{paused}")
    for key in ("pending", "in_flight", "resting", "scheduled", "completed", "failed"):
        out.print(f"  {key.replace('_', ' '):<10} {'-' if facts[key] is None else format(facts[key], ','):>9}")
    out.print(f"  {'oldest':<10} {ago(facts['oldest_s']) if facts['oldest_s'] is not None else '-':>9}")
    if "trouble" in facts:
        out.print(f"  [red]{clean(facts['trouble'])}[/red]", soft_wrap=True)
    if "approximate" in facts:
        out.print(f"[dim]{APPROXIMATE}[/dim]", soft_wrap=True)
