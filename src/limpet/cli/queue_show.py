"""`limpet queue show` and `limpet queue peek`: one task in full, and the payloads that wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from limpet.cli.queue_ls import elsewhere, lease_facts
from limpet.cli.queue_options import IdArgument, QueueArgument, demand_queue, in_store, now_of, when
from limpet.cli.shared import JsonOption, UrlOption, ago, clean, clean_lines, console, lines, opened, print_json
from limpet.errors import Missing

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.queue import BucketQueue, Result
    from limpet.queue.api import AttemptError
    from limpet.queue.entry import EntryLease

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

FAILED_SHOWN = 20


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
    facts = facts_of(fleet, in_store(fleet.queue(queue), "show a task's lease"), id)
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


def facts_of(fleet: Fleet, queue: BucketQueue, id: str) -> dict[str, Any]:
    """Everything that the store tells of a task.   Raises: Missing.   Cost: up to 8 GETs, HEADs and LISTs."""
    result = queue.result(id)
    facts = {"queue": queue.name, "id": result.id, "state": result.state}
    if result.id != id:
        facts["asked_for"] = id
    if result.ready:
        return {**facts, **_ended(queue, result), **_errors(result.errors)}
    waiting = _waiting(queue, result.id) or _scheduled(queue, result.id)
    if waiting is None:
        demand_queue(fleet, queue)
        raise Missing(
            f"there is no task {id!r} in queue {queue.name!r}",
            hint=f"`limpet queue ls {queue.name}` shows what waits; receipts are kept for a time only",
        )
    return {**facts, **waiting, **_errors(queue.errors(result.id))}


def _errors(errors: Sequence[AttemptError]) -> dict[str, Any]:
    """The attempts that failed, the oldest first."""
    return {"errors": [asdict(each) for each in errors]} if errors else {}


def _ended(queue: BucketQueue, result: Result) -> dict[str, Any]:
    from limpet.queue.entry import entry_of

    keys = queue.storage.keys
    name = entry_of(result.id)
    facts: dict[str, Any] = {
        "worker": result.worker,
        "attempts": result.attempts,
        "finished_at": result.finished_at,
    }
    if result.state == "completed":
        seen = queue.storage.receipt(keys.completed_of(name)).read()
        if seen is not None and seen.value.count > 1:
            failed = [f"{result.id}.{n}" for n in seen.value.failed]
            return {**facts, "tasks": seen.value.count, "failed": failed}
        return {**facts, "result": result.value}
    seen = queue.storage.receipt(keys.failed_of(name)).read()
    facts |= {"error": result.error, "traceback": result.traceback}
    if seen is not None:
        facts |= {"payload": _decoded(seen.value.payload), "pushed_at": seen.value.pushed_at}
        facts |= {"tasks": seen.value.count} if seen.value.count > 1 else {}
        facts |= {"raw": seen.value.raw} if seen.value.raw else {}
    return facts


def _waiting(queue: BucketQueue, id: str) -> dict[str, Any] | None:
    """A task, a task of a batch, or a whole batch that has not ended."""
    from limpet.queue.entry import batch_of, entry_of, is_batch

    part = batch_of(id)
    entry = part[0] if part else entry_of(id)
    batch = part is not None or is_batch(entry)
    try:
        content = queue.storage.content(entry, batch=batch)
    except Missing:
        return None
    facts: dict[str, Any] = {"pushed_at": content.pushed_at}
    if part is not None and part[1] < len(content.payloads):
        facts["payload"] = _decoded(content.payloads[part[1]])
    elif part is not None:
        return None
    elif batch:
        facts["tasks"] = len(content.ids)
    else:
        facts["payload"] = _decoded(content.payloads[0])
    seen = queue.storage.lease(entry).read()
    facts |= lease_facts(seen, now_of(seen.modified)) if seen else {"state": "waits"}
    if facts["state"] == "waits" and queue.storage.journal.travels:
        facts |= elsewhere(queue, entry)
    if seen is None:
        return facts
    if part is not None:
        facts |= {"batch": entry} | _in_batch(seen.value, part[1], str(facts["state"]))
    elif batch:
        facts |= {"done": len(seen.value.done), "failed": [f"{entry}.{n}" for n in seen.value.failed]}
    return facts


def _in_batch(lease: EntryLease, n: int, state: str) -> dict[str, Any]:
    """How far one task of a batch is: its verdict may be known before the batch has ended."""
    from limpet.queue.decide import attempts_of

    facts = {"attempt": attempts_of(lease, n)}
    if n in lease.done:
        return {**facts, "state": "done, and its batch goes on"}
    if n in lease.failed:
        return {**facts, "state": "failed, and its batch goes on"}
    return {**facts, "state": state}


def _scheduled(queue: BucketQueue, id: str) -> dict[str, Any] | None:
    """A push that waits for its time. Cost: 1 LIST per 1,000 of them."""
    from limpet.queue.entry import entry_of, read_task
    from limpet.queue.push import due_of

    storage = queue.storage
    entry = entry_of(id)
    for stat in storage.store.list(storage.keys.scheduled):
        due, name = stat.key.rsplit("/", 2)[1:]
        if name.rpartition("@")[0] == entry:
            task = read_task(storage.store.get(stat.key).data, what=stat.key)
            return {
                "state": "scheduled",
                "due_at": due_of(due),
                "pushed_at": task.pushed_at,
                "payload": _decoded(task.payload),
            }
    return None


def _decoded(data: bytes | msgspec.Raw) -> Any:
    """A payload as JSON; what is none, as text that says so."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"(not JSON: {error}) {bytes(data)[:1000]!r}"


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
