"""`limpet queue ls`: what waits, what ended, and how."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from limpet.cli.queue_options import (
    QueueArgument,
    SinceOption,
    WhereOption,
    demand_queue,
    in_store,
    many,
    now_of,
)
from limpet.cli.shared import JsonOption, UrlOption, ago, clean, console, lines, opened, print_json
from limpet.errors import Corrupt, Invalid, LimpetError, Missing

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.cell import Versioned
    from limpet.queue import BucketQueue
    from limpet.queue.records import EntryLease, Receipt
    from limpet.store.api import Stat

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

State = Literal["pending", "failed", "completed", "scheduled"]
AT_ONCE = 50
HASHED = "%h"
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
    flags: dict[State, bool] = {"pending": pending, "failed": failed, "completed": completed, "scheduled": scheduled}
    states = [state for state, wanted in flags.items() if wanted]
    if len(states) > 1:
        raise Invalid(f"--{states[0]} and --{states[1]} are two lists", hint="ask for one of them")
    fleet = opened(url, read_only=True)
    if queue is None:
        if states:
            raise Invalid(f"--{states[0]} needs a queue name", hint="limpet queue ls QUEUE --" + states[0])
        _ls_queues(fleet, json=json)
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


def _ls_queues(fleet: Fleet, *, json: bool) -> None:
    from limpet.cli.queue_survey import surveys
    from limpet.cli.status import print_queues
    from limpet.runtime import system

    found = surveys(fleet, system())
    if json:
        print_json([each.facts() for each in found])
        return
    print_queues(console(), fleet.url, found)


def _ls_entries(fleet: Fleet, name: str, state: State, n: int, *, json: bool) -> None:
    queue = in_store(fleet.queue(name), "list its tasks")
    rows = [*islice(rows_of(queue, state), n + 1)]
    if not rows:
        demand_queue(fleet, queue)
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


_COLUMNS: dict[State, tuple[str, ...]] = {
    "pending": ("id", "tasks", "pushed", "state", "attempt", "worker"),
    "failed": ("id", "state", "attempts", "ended", "error"),
    "completed": ("id", "tasks", "failed", "ended", "worker"),
    "scheduled": ("id", "due in"),
}
_TO_THE_LEFT = ("id", "state", "worker", "error")
_FOLDED = ("id", "worker", "error")


def _cells(state: State, row: dict[str, Any]) -> list[str]:
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


def rows_of(queue: BucketQueue, state: State) -> Iterator[dict[str, Any]]:
    """The entries in that state, in the order of their names, as facts; lazily.

    Cost: 1 LIST per 1,000 objects; 1 GET for each lease, or for each receipt.
    """
    match state:
        case "pending":
            return _pending(queue)
        case "scheduled":
            return _scheduled(queue)
        case "failed" | "completed":
            return _receipts(queue, state)


def _pending(queue: BucketQueue) -> Iterator[dict[str, Any]]:
    storage = queue.storage
    lease: Stat | None = None
    remote: Stat | None = None
    for stat in storage.store.list(storage.keys.pending):
        entry, kind = stat.key.rsplit("/", 2)[1:]
        if kind == "lease.json":
            lease = stat
        elif kind == "remote.json":
            remote = stat
        elif kind in ("task.json", "tasks.jsonl"):
            held = lease if lease is not None and lease.key == storage.keys.lease(entry) else None
            row = _pending_row(queue, entry, stat, held)
            noted = remote is not None and remote.key == storage.keys.remote(entry)
            yield {**row, **elsewhere(queue, entry)} if noted and row["state"] == "waits" else row


def _pending_row(queue: BucketQueue, entry: str, stat: Stat, lease: Stat | None) -> dict[str, Any]:
    from limpet.queue.names import count_of

    row = {
        "id": _id_of(queue, entry, batch=stat.key.endswith(".jsonl")),
        "tasks": count_of(entry),
        "age_s": round((now_of(stat.modified) - stat.modified).total_seconds(), 1),
        "state": "waits",
        "attempt": 0,
        "worker": None,
    }
    if lease is None:
        return row
    try:
        seen = queue.storage.lease(entry).read()
    except Corrupt:
        return {**row, "state": "corrupt"}
    return {**row, **lease_facts(seen, now_of(seen.modified))} if seen else row


def elsewhere(queue: BucketQueue, entry: str) -> dict[str, Any]:
    """On a supervised node: that a worker of another node holds an entry that waits here.   Cost: 1 GET."""
    from limpet.queue.sync import RemoteLeases

    storage = queue.storage
    found = RemoteLeases(storage.store, storage.runtime).holder(storage.keys.remote(entry))
    return {"state": "held elsewhere", "worker": f"{found.label} at {found.node}"} if found else {}


def lease_facts(seen: Versioned[EntryLease], now: datetime) -> dict[str, Any]:
    """Who works on an entry, or worked on it last: held, overdue (its worker died), rests (until retried), waits."""
    from limpet.cli.queue_survey import is_live
    from limpet.lease import State as LeaseState

    record = seen.value
    assert seen.modified is not None
    age_s = (now - seen.modified).total_seconds()
    match record.state:
        case LeaseState.HELD:
            state = "held" if is_live(seen, now) else "overdue"
        case LeaseState.FREE:
            state = "rests" if record.wait_s > age_s else "waits"
        case _:
            state = "cancelled"
    return {
        "state": state,
        "attempt": record.attempt,
        "worker": record.label if state in ("held", "overdue") else None,
        "token": record.token,
        "heartbeat_s": round(age_s, 1),
        "ttl_s": record.ttl_s,
        "rests_s": round(max(0.0, record.wait_s - age_s), 1) if state == "rests" else 0.0,
        "error": record.error,
    }


def _id_of(queue: BucketQueue, entry: str, *, batch: bool) -> str:
    """The id behind an entry's name; a name too long for a key is a hash, and the task itself tells."""
    from limpet.keys import name_of

    if not entry.startswith(HASHED):
        return name_of(entry)
    try:
        return queue.storage.content(entry, batch=batch).ids[0]
    except (Missing, Corrupt):
        return entry


def _scheduled(queue: BucketQueue) -> Iterator[dict[str, Any]]:
    from limpet.keys import name_of
    from limpet.queue.push import due_of

    storage = queue.storage
    for stat in storage.store.list(storage.keys.scheduled):
        due_name, name = stat.key.rsplit("/", 2)[1:]
        due = due_of(due_name)
        if due is not None:
            due_in_s = round((due - now_of(stat.modified)).total_seconds(), 1)
            yield {"id": name_of(name.rpartition("@")[0]), "due_at": due, "due_in_s": due_in_s}


def _receipts(queue: BucketQueue, state: Literal["failed", "completed"]) -> Iterator[dict[str, Any]]:
    storage = queue.storage
    listing = storage.store.list(storage.keys.failed if state == "failed" else storage.keys.completed)
    while some := [*islice(listing, AT_ONCE)]:
        for key, blob in storage.store.get_many([stat.key for stat in some]).items():
            if isinstance(blob, Missing):
                continue
            if isinstance(blob, LimpetError):
                raise blob
            seen = storage.receipt(key).decode(blob)
            if seen.value.state != "retried":
                yield _receipt_row(seen)


def _receipt_row(seen: Versioned[Receipt]) -> dict[str, Any]:
    receipt = seen.value
    assert seen.modified is not None
    return {
        "id": receipt.id,
        "state": receipt.state,
        "tasks": receipt.count,
        "failed": len(receipt.failed) if receipt.state == "completed" else receipt.count,
        "attempts": receipt.attempts,
        "age_s": round((now_of(seen.modified) - seen.modified).total_seconds(), 1),
        "finished_at": receipt.finished_at,
        "worker": receipt.label,
        "error": receipt.error,
    }
