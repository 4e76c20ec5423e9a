"""`limpet queue`: look at tasks (`ls`, `failed`, `peek`, `show`, `stats`, `cost`), push them, and change what waits or
has failed (`retry`, `cancel`, `signal`, `pause`, `resume`, `purge`, `sweep`, `adopt`)."""

from __future__ import annotations

import os
from dataclasses import asdict
from itertools import islice
from typing import IO, TYPE_CHECKING, Annotated, Any

import msgspec

import limpet
from limpet import cli
from limpet.cli import (
    EXIT_FAILED,
    ago,
    answer,
    clean,
    clean_lines,
    confirm,
    console,
    many,
    now_of,
    pairs,
    print_json,
    progress_bar,
    say,
    table,
    when,
)
from limpet.cli.options import (
    DELAY_HELP,
    STDIN,
    IdArgument,
    JsonOption,
    QueueArgument,
    SinceOption,
    UrlOption,
    WhereOption,
    YesOption,
    duration_s,
    open_input,
    refuse_path,
)
from limpet.cli.parse import Argument, Exit, Option, group, lines
from limpet.kernel.errors import Invalid, LimpetError, Missing

if TYPE_CHECKING:
    from limpet.app.push_file import FilePush
    from limpet.queue import Queue, QueueAdoptReport
    from limpet.queue.count import Folder


FAILED_SHOWN = 20
ID_WIDTH = 36

COLUMNS: dict[Folder, tuple[str, ...]] = {
    "pending": ("id", "tasks", "pushed", "state", "attempt", "worker"),
    "failed": ("id", "state", "attempts", "ended", "error"),
    "completed": ("id", "tasks", "failed", "ended", "worker"),
    "scheduled": ("id", "due in"),
}
FIGURES = ("tasks", "pushed", "attempt", "attempts", "ended", "failed", "due in")
NOTHING: dict[Folder, str] = {
    "pending": "nothing waits in",
    "failed": "nothing has failed in",
    "completed": "nothing is completed in",
    "scheduled": "nothing is scheduled in",
}
COLOURS = {"completed": "green", "running": "green", "failed": "red", "cancelled": "red"}


def ls(
    queue: Annotated[str | None, Argument(metavar="QUEUE", help="The queue; without it, all queues.")] = None,
    pending: Annotated[bool, Option("--pending", help="What waits or is worked on (the default).")] = False,
    failed: Annotated[bool, Option("--failed", help="What failed or was cancelled, and was not retried.")] = False,
    completed: Annotated[bool, Option("--completed", help="What succeeded.")] = False,
    scheduled: Annotated[bool, Option("--scheduled", help="What was pushed with a delay.")] = False,
    n: Annotated[int, Option("-n", metavar="N", min=1, help="Show at most N entries.")] = 20,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """List the entries of a queue, or all queues with their counts. Changes nothing.

    An entry is one task, or a batch of tasks that were pushed together. They come in the order of their names, which
    for ids that Limpet made is oldest first.

    Example: all queues; what waits in one; what failed, as JSON
    $ limpet queue ls -u s3://acme/prod
    $ limpet queue ls enrich -u s3://acme/prod
    $ limpet queue ls enrich --failed -n 100 --json -u s3://acme/prod
    Exit codes: 0 listed; 1 there is no such queue or fleet; 2 wrong usage.
    """
    flags: dict[Folder, bool] = {"pending": pending, "failed": failed, "completed": completed, "scheduled": scheduled}
    states = [state for state, wanted in flags.items() if wanted]
    if len(states) > 1:
        raise Invalid(f"--{states[0]} and --{states[1]} are two lists", hint="ask for one of them")
    if queue is not None:
        _ls_entries(url, queue, states[0] if states else "pending", n, json=json)
        return
    from limpet.app.health import summaries
    from limpet.cli.fleet import print_queues

    fleet = limpet.open(url, read_only=True).check()
    if states:
        raise Invalid(f"--{states[0]} needs a queue name", hint="limpet queue ls QUEUE --" + states[0])
    found = summaries(fleet)
    if json:
        print_json([each.facts() for each in found])
    else:
        print_queues(fleet.url, found)


def _ls_entries(url: str | None, queue: str, state: Folder, n: int, *, json: bool) -> None:
    from limpet.app.fleet import inspection

    fleet = limpet.open(url, read_only=True).check()
    rows = [*islice(inspection(fleet, queue, "list its tasks").entries(state), n + 1)]
    if not rows:
        fleet.queue(queue, create=False)
    more, rows = len(rows) > n, rows[:n]
    if json:
        print_json(rows)
    elif not rows:
        say(f"{NOTHING[state]} {queue!r}")
    else:
        listed = table(*COLUMNS[state], right=FIGURES)
        listed.columns[0].min_width = min(ID_WIDTH, max(len(row["id"]) for row in rows))
        for row in rows:
            listed.add_row(*_cells(state, row))
        cli.show(listed, *([f"\n[dim]There are more: -n {n * 5} shows more of them.[/dim]"] if more else []))


def _cells(state: Folder, row: dict[str, Any]) -> list[str]:
    id_ = clean(row["id"])
    match state:
        case "pending":
            pushed = f"{ago(row['age_s'])} ago"
            attempt = str(row["attempt"]) if row["attempt"] else "-"
            said = f"resting {ago(row['rests_s'])}" if row["state"] == "resting" else _state(row)
            said += f": {clean(row['reason'])}" if "reason" in row else ""
            tasks = f"{row['done']:,} of {row['tasks']:,}" if row["done"] else f"{row['tasks']:,}"
            return [id_, tasks, pushed, said, attempt, clean(row["worker"] or "-")]
        case "failed":
            error = " ".join((row["error"] or "").split())
            return [id_, row["state"], str(row["attempts"]), f"{ago(row['age_s'])} ago", clean(error)]
        case "completed":
            return [id_, f"{row['tasks']:,}", f"{row['failed']:,}", f"{ago(row['age_s'])} ago", clean(row["worker"])]
        case "scheduled":
            return [id_, ago(row["due_in_s"]) if row["due_in_s"] > 0 else "now"]


def _state(facts: dict[str, Any]) -> str:
    state = facts["state"]
    colour = COLOURS.get(state, "default")
    said = f"[{colour}]{state}[/{colour}]"
    if facts.get("overdue"):
        return f"{said} [red](its worker is overdue)[/red]"
    return f"{said}, and its batch goes on" if "batch" in facts and state in ("completed", "failed") else said


def failed(
    queue: QueueArgument,
    where: WhereOption = None,
    since: SinceOption = None,
    n: Annotated[int, Option("-n", metavar="N", min=1, help="Read at most N failed tasks.")] = 1000,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Show what failed and was not retried, grouped by error, the most frequent first. Changes nothing.

    Errors that differ only in their numbers are one group. `limpet queue retry` takes the same --where and --since.

    Example: all; those of the last two hours whose error mentions a timeout
    $ limpet queue failed enrich -u s3://acme/prod
    $ limpet queue failed enrich --where timeout --since 2h -u s3://acme/prod
    Exit codes: 0 shown, or nothing has failed; 1 there is no such queue or fleet; 2 wrong usage.
    """
    fleet = limpet.open(url, read_only=True).check()
    groups = fleet.queue(queue).failed(n, where=where, since_s=since)
    if not groups:
        fleet.queue(queue, create=False)
    ages_s = [(now_of(group.last_at) - group.last_at).total_seconds() for group in groups]
    if json:
        print_json([{**asdict(group), "age_s": round(age_s, 1)} for group, age_s in zip(groups, ages_s, strict=True)])
    elif not groups:
        say(nothing_failed(queue, where, since))
    else:
        listed = table("tasks", "newest", "its id", "error", right=("tasks", "newest"))
        listed.columns[2].min_width = min(ID_WIDTH, max(len(group.ids[0]) for group in groups))
        for group, age_s in zip(groups, ages_s, strict=True):
            error = clean(" ".join(group.error.split()))
            listed.add_row(f"{group.count:,}", f"{ago(age_s)} ago", clean(group.ids[0]), error)
        cli.show(listed)
        if sum(group.count for group in groups) >= n:
            cli.show(f"\n[dim]{many(n, 'failed task')} read; -n {n * 5} reads more of them.[/dim]")


def nothing_failed(queue: str, where: str | None, since_s: float | None) -> str:
    """That no failed task of the queue was found that fits."""
    error = f" with {where!r} in its error" if where is not None else ""
    time = f" in the last {ago(since_s)}" if since_s is not None else ""
    return f"nothing has failed in {queue!r}{error}{time}"


def peek(
    queue: QueueArgument,
    n: Annotated[int, Option("-n", metavar="N", min=1, max=1000, help="Show at most N tasks.")] = 5,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Show the payloads of some tasks that wait, without claiming them. Changes nothing.

    With a long backlog they come from a random place of it.

    Example:
    $ limpet queue peek enrich -n 3 -u s3://acme/prod
    Exit codes: 0 shown, or nothing waits; 1 there is no such queue or fleet; 2 wrong usage.
    """
    fleet = limpet.open(url, read_only=True).check()
    found = fleet.queue(queue).peek(n)
    if not found:
        fleet.queue(queue, create=False)
    if json:
        print_json(found)
        return
    if not found:
        say(f"nothing waits in {queue!r}")
    for task in found:
        pushed = f"  [dim]pushed {when(task.pushed_at)}[/dim]" if task.pushed_at else ""
        cli.show(f"[bold]{clean(task.id)}[/bold]{pushed}", f"  {_json(task.payload)}")


def show(queue: QueueArgument, id: IdArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Show one task: where it is, who works on it, how it ended and why. Changes nothing.

    For a task that was retried, the last retry is shown. The id of a batch shows the batch.

    Example:
    $ limpet queue show enrich a.com@2026-11 -u s3://acme/prod
    Exit codes: 0 shown; 1 there is no such task, queue or fleet; 2 wrong usage.
    """
    from limpet.app.fleet import in_store

    fleet = limpet.open(url, read_only=True).check()
    found = in_store(fleet.queue(queue), "show a task's lease").describe(id)
    if found is None:
        fleet.queue(queue, create=False)
        raise Missing(
            f"there is no task {id!r} in queue {queue!r}",
            hint=f"`limpet queue ls {queue}` shows what waits; receipts are kept for a time only",
        )
    if json:
        print_json({"queue": queue, **found})
        return
    cli.show(pairs(_facts(found)))
    earlier = found.get("errors", ())
    for each in earlier:
        where, error = f"{when(each['at'])} in {clean(each['worker'])}", clean(each["error"])
        cli.show(f"\n[bold]attempt {each['attempt']}[/bold] failed {where}: {error}")
        _show_traceback(each["traceback"])
    if found.get("traceback") and not (earlier and earlier[-1]["traceback"] == found["traceback"]):
        say("")
        _show_traceback(found["traceback"])


def _show_traceback(text: str | None) -> None:
    if text:
        cli.show(f"[dim]{clean_lines(text.rstrip())}[/dim]")


def _facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts as people read them, in a fixed order."""
    rows = [("task", clean(facts["id"])), ("state", _state(facts))]
    if "asked_for" in facts:
        rows.append(("retried", f"{clean(facts['asked_for'])} was retried as {clean(facts['id'])}"))
    if "reason" in facts:
        rows.append(("suspended", f"{clean(facts['reason'])}, since {when(facts['suspended_at'])}"))
    rows += [(f"step {step['number']}", _step(step)) for step in facts.get("steps", ())]
    if facts.get("worker"):
        rows.append(("worker", clean(facts["worker"])))
    if "token" in facts and "reason" not in facts:  # no worker holds a suspended task
        rows.append(("token", str(facts["token"])))
        rows.append(("heartbeat", f"{ago(facts['heartbeat_s'])} ago, ttl {facts['ttl_s']:g} s"))
    if facts.get("rests_s") and "reason" not in facts:
        rows.append(("next try", f"in {ago(facts['rests_s'])}"))
    rows += [(key, f"{facts[key]:,}") for key in ("attempt", "attempts", "tasks", "done") if facts.get(key)]
    if facts.get("failed"):
        shown = ", ".join(facts["failed"][:FAILED_SHOWN]) + (", ..." if len(facts["failed"]) > FAILED_SHOWN else "")
        rows.append(("failed", clean(shown)))
    times = (
        ("pushed", "pushed_at"),
        ("waits until" if "reason" in facts else "due", "due_at"),
        ("ended", "finished_at"),
    )
    rows += [(title, when(facts[key])) for title, key in times if facts.get(key)]
    if "receipts_kept_s" in facts:
        kept_s = facts["receipts_kept_s"]
        rows.append(("receipt", "kept for ever" if kept_s is None else f"kept for {ago(kept_s)}"))
    if facts.get("error"):
        rows.append(("error", clean(facts["error"])))
    rows += [(key, _json(facts[key])) for key in ("payload", "result") if key in facts]
    if "raw" in facts:
        rows.append(("its bytes", clean(facts["raw"])))
    return rows


def _step(step: dict[str, Any]) -> str:
    """A recorded step in one line."""
    if "kind" not in step:
        return clean(f"cannot be read: {step['error']}")
    took = f"waited {ago(step['waited_s'])}" if "waited_s" in step else f"{step['took_s']:g} s"
    return clean(f"{step['kind']} {step['name']}".strip() + f", {took}, {when(step['at'])} in {step['worker']}")


def _json(value: Any) -> str:
    return clean(msgspec.json.encode(value).decode())


def stats(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Count the tasks of one queue, all of them. Changes nothing.

    It lists every object of the queue, at a request for each thousand. `limpet status` stops counting sooner.

    Example:
    $ limpet queue stats enrich --json -u s3://acme/prod
    Exit codes: 0 shown; 1 there is no such queue or fleet; 2 wrong usage.
    """
    from limpet.app.health import summaries
    from limpet.cli.fleet import APPROXIMATE, state_text
    from limpet.queue.count import ALL

    fleet = limpet.open(url, read_only=True).check()
    found = summaries(fleet, [queue], limits=ALL)
    if not found:
        fleet.queue(queue, create=False)
    facts = found[0].facts()
    del facts["at_least"]
    if json:
        print_json(facts)
        return
    state = state_text(found[0])
    cli.show(f"[bold]{clean(queue)}[/bold]{f'  {state}' if state else ''}")
    shown = ("pending", "running", "resting", "scheduled", "completed", "failed", "cancelled")
    counts = {key: facts[key] for key in shown}
    for key, count in counts.items():
        say(f"  {key.replace('_', ' '):<10} {'-' if count is None else format(count, ','):>9}")
        if key == "pending" and facts["done"]:
            say(f"  {'  of them':<10} {facts['done']:>9,} done, in batches that have not ended")
        if key == "resting" and "suspended" in facts:
            reason = clean(facts["suspended_reason"])
            cli.show(f"  {'  of them':<10} {facts['suspended']:>9,} suspended; the oldest: {reason}")
    say(f"  {'oldest':<10} {ago(facts['oldest_s']) if facts['oldest_s'] is not None else '-':>9}")
    if "trouble" in facts:
        cli.show(f"  [red]{clean(facts['trouble'])}[/red]")
    if "approximate" in facts:
        cli.show(f"[dim]{APPROXIMATE}[/dim]")


# ---- cost: beside SQS ----

PROVIDERS = {"s3": "s3", "gs": "gcs", "az": "azure"}
NAMES = {"s3": "S3", "gcs": "Cloud Storage", "azure": "Azure Blob Storage"}


def cost(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Show what a queue costs in requests and dollars, beside SQS. Changes nothing.

    Requests of a whole fleet are not metered. The figures are computed from the entries and receipts of the queue: each
    stands for the requests that it took at least. Receipts that retention has removed are not in it.

    Example:
    $ limpet queue cost enrich -u s3://acme/prod
    Exit codes: 0 shown; 1 there is no such queue or fleet; 2 wrong usage.
    """
    from limpet.app.fleet import in_store
    from limpet.queue.cost import cost_facts, work_of

    fleet = limpet.open(url, read_only=True).check()
    handle = in_store(fleet.queue(queue), "be priced")
    work, read = work_of(fleet.store, queue, fleet.runtime)
    if not work.ended and not work.waiting:
        fleet.queue(queue, create=False)
    free = handle.provider != "bucket"
    provider = PROVIDERS.get(fleet.url.partition("://")[0], "s3")
    facts = cost_facts(work, provider, poll_s=handle.policy.poll_s, free=free)
    facts = {"queue": queue, "receipts_read": read, **facts}
    if json:
        print_json(facts)
    else:
        _print_cost(facts, provider, free=free)


def _idle_lines(facts: dict[str, Any], provider: str, *, free: bool) -> str:
    idle, bell = facts["idle_worker"], facts["bell_an_hour_at_most"]
    month = _money(idle["a_month_in_a_bucket"]["dollars"])
    if free:
        return f"An idle worker costs nothing here; in a bucket up to ${month} a month on {NAMES[provider]}."
    asked = " + ".join(f"{count:,} {verb.upper()}s" for verb, count in idle["requests_an_hour"].items())
    return (
        f"An idle worker process makes up to {asked} an hour with poll_s={idle['poll_s']:g}: ${month} a month. "
        "The PUTs renew its presence; LIMPET_PRESENCE=0 saves them.\n"
        f"A push rings the bell: 1 PUT more, at most once a second and process, ${_money(bell['dollars'])} an hour."
    )


def _print_cost(facts: dict[str, Any], provider: str, *, free: bool) -> None:
    from limpet.queue.cost import NOT_COUNTED

    by_verb = ", ".join(f"{count:,} {verb.upper()}" for verb, count in facts["requests"].items() if count)
    price = f"${_money(facts['dollars_in_a_bucket'])} on {NAMES[provider]}"
    bills = table("a million tasks", "requests", "dollars", right=("requests", "dollars"))
    for name, bill in facts["per_million"].items():
        style = "bold" if name == "this_queue" else None
        bills.add_row(_label(name), f"{bill['requests']:,}", f"${_money(bill['dollars'])}", style=style)
    cli.show(
        _heading(facts),
        f"  so far, at least   {many(sum(facts['requests'].values()), 'request')}: {by_verb}",
        f"  which cost         {f'nothing here; {price}' if free else price}\n",
        bills,
        f"\n{_verdict(facts['per_million'], provider)}",
        _idle_lines(facts, provider, free=free),
        f"[dim]Computed from {many(facts['entries'], 'receipt')} ({facts['receipts_read']:,} read), not metered. "
        f"Not in it: {NOT_COUNTED}. List prices of {facts['prices_of']}, requests only, without free tiers.[/dim]",
    )


def _heading(facts: dict[str, Any]) -> str:
    name = f"[bold]{clean(facts['queue'])}[/bold]"
    if not facts["entries"]:
        return f"{name}: nothing has ended yet; {many(facts['waiting_entries'], 'entry', 'entries')} waiting"
    size, claims = facts["tasks"] / facts["entries"], facts["claims"] / facts["entries"]
    often = "once" if claims == 1 else f"{claims:.3g} times"
    return f"{name}: {many(facts['tasks'], 'task')} ended, {size:.3g} to an entry, each entry claimed {often}"


def _label(name: str) -> str:
    if name == "this_queue":
        return "this queue, as it was used"
    who, _, batch = name.partition("_")
    title = {"limpet": "Limpet", "sqs": "SQS"}[who]
    return f"{title}, one by one" if batch == "1" else f"{title}, {batch} at once"


def _verdict(bills: dict[str, dict[str, Any]], provider: str) -> str:
    """Which of the two is cheaper, in a sentence."""
    from limpet.queue.cost import SQS_BATCH, break_even

    mine, theirs = bills.get("this_queue", bills["limpet_100"])["dollars"], bills[f"sqs_{SQS_BATCH}"]["dollars"]
    who = "this queue" if "this_queue" in bills else "Limpet with 100 at once"
    if mine <= theirs:
        return f"Limpet is cheaper: {who} takes {mine / theirs:.0%} of what SQS takes with {SQS_BATCH} at once."
    times, enough = mine / theirs, break_even(provider=provider)
    return (
        f"SQS is cheaper: {who} costs {times:.3g} times as much as SQS with {SQS_BATCH} at once. "
        f"Limpet is cheaper from {enough} tasks to an entry on, if they succeed at once."
    )


def _money(dollars: float) -> str:
    """Enough digits to see the first two that count."""
    return f"{dollars:.2f}" if dollars >= 1 else f"{dollars:.3g}" if dollars >= 0.001 else f"{dollars:.6f}"


def push(
    queue: QueueArgument,
    payload: Annotated[str | None, Argument(metavar="JSON", help="The task: a JSON object.")] = None,
    id: Annotated[str | None, Option("--id", help="The task's name. A second push of it changes nothing.")] = None,
    delay: Annotated[
        float | None,
        Option("--delay", metavar="TIME", parser=duration_s, help=f"Run it after this time, {DELAY_HELP}."),
    ] = None,
    file: Annotated[
        str | None, Option("--file", "-f", metavar="FILE", help="JSON objects, one a line; - is stdin.")
    ] = None,
    batch: Annotated[int, Option("--batch", min=1, max=1000, help="How many tasks of a file share an object.")] = 100,
    create: Annotated[
        bool, Option("--create/--no-create", help="Create the fleet or queue if it does not exist.")
    ] = True,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Push a task, or a file of tasks. The queue is made by its first push, and stderr then says "(new queue)".

    A task is a JSON object of at most 256 KiB. Once the command has ended, no crash loses it.

    Tasks of a file go in batches: 100 tasks in one object cost a hundredth of 100 objects. They get new ids
    and are not deduplicated. At the first bad line it stops: nothing of that line's batch is pushed, and the line is
    named.

    Example: one task; the same task at most once; many, a hundred to an object
    $ limpet queue push enrich '{"domain": "a.com"}' -u s3://acme/prod
    $ limpet queue push enrich '{"domain": "a.com"}' --id a.com@2026-11 --delay 15m -u s3://acme/prod
    $ limpet queue push enrich --file domains.jsonl -u s3://acme/prod
    Exit codes: 0 pushed, or the id was pushed before; 1 the store refused; 2 wrong usage, or bad JSON.
    """
    from limpet.app.push_file import EXAMPLE, parse_payload

    if (payload is None) is (file is None):
        raise Invalid("say what to push: JSON, or --file", hint=EXAMPLE if file is None else "one of the two")
    if file is not None:
        if id is not None or delay is not None:
            raise Invalid("--id and --delay are for a single task, not for --file", hint="leave them out")
        with open_input(file) as stream:
            handle, remark = _queue(url, queue, create=create)
            _push_file(handle, stream, file, batch=batch, json=json)
        _remark(remark)
        return
    assert payload is not None
    task = parse_payload(payload, what="the payload")
    handle, remark = _queue(url, queue, create=create)
    pushed = handle.push(task, id=id, delay_s=delay or 0.0)
    _remark(remark)
    new, old = f"pushed {pushed.id} to {queue!r}", f"{pushed.id!r} was pushed to {queue!r} before; nothing was changed"
    answer(pushed, new if pushed.created else old, json=json)


def _queue(url: str | None, name: str, *, create: bool) -> tuple[Queue, str]:
    """The queue to push to, and what to say if it is new, or its fleet is: it may be a typo.   Cost: 1 LIST more."""
    from limpet.app.fleet import is_used

    if create:
        refuse_path(name, "queue", lambda: _queue(url, name, create=False))
    fleet = limpet.open(url, create=create).check()
    queue = fleet.queue(name, create=create)
    if fleet.is_new:
        return queue, f"(new fleet at {fleet.url})"
    return queue, "(new queue)" if create and not is_used(fleet, queue) else ""


def _remark(text: str) -> None:
    if text:
        say(text, err=True)


def _push_file(queue: Queue, stream: IO[bytes], file: str, *, batch: int, json: bool) -> None:
    from limpet.app.push_file import BadLine, FilePush

    work = FilePush(queue, batch)
    try:
        size = 0 if file == STDIN else os.path.getsize(file)
        with progress_bar("pushing", total=size or None) as update:
            for _ in work.run(stream):
                update(completed=work.read_bytes, description=f"{many(work.pushed, 'task')} pushed")
    except KeyboardInterrupt:
        say(f"interrupted: {_so_far(work)}", err=True)
        raise
    except BadLine as error:
        hint = _go_on(work, file) if work.pushed else error.hint
        raise Invalid(f"{error}; {_so_far(work)}", hint=hint) from None
    except LimpetError as error:
        raise type(error)(f"{error}; {_so_far(work)}; more may have been", hint=error.hint) from error
    facts = {name: getattr(work, name) for name in ("pushed", "batches", "first_id", "last_id")}
    text = f"pushed {many(work.pushed, 'task')} to {queue.name!r} in {many(work.batches, 'batch', 'batches')}"
    nothing = "the file has no line; nothing was pushed"
    answer({"queue": queue.name, **facts}, text if work.pushed else nothing, json=json)


def _so_far(work: FilePush) -> str:
    if not work.pushed:
        return "nothing was pushed"
    later = f", and {work.later} of those after it" if work.later else ""
    return f"{many(work.pushed - work.later, 'task')} before line {work.next_line} went in{later}"


def _go_on(work: FilePush, file: str) -> str:
    if file == STDIN:
        return f"correct it, and push from line {work.next_line} on"
    return f"correct it, then: tail -n +{work.next_line} {file} | limpet queue push {work.queue.name} --file -"


# ---- what operators do ----

IDS_SHOWN = 10


def retry(
    queue: QueueArgument,
    id: Annotated[str | None, Argument(metavar="ID", help="The task's id; or use --all.")] = None,
    all: Annotated[bool, Option("--all", help="Retry every task that failed. Cancelled ones stay.")] = False,
    where: WhereOption = None,
    since: SinceOption = None,
    from_scratch: Annotated[
        bool, Option("--from-scratch", help="Forget the recorded steps of durable tasks: run them all again.")
    ] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Queue failed tasks again, with fresh attempts: one by its id, all, or those that --where and --since name.

    A retried task has a new id: ~1, ~2 and so on are added to its old one. Commands that are given the old id find it.
    A durable task keeps its recorded steps, unless --from-scratch is given.

    Example: one task; all that failed; those whose error mentions a timeout, of the last two hours
    $ limpet queue retry enrich a.com@2026-11 -u s3://acme/prod
    $ limpet queue retry enrich --all -u s3://acme/prod
    $ limpet queue retry enrich --where timeout --since 2h -u s3://acme/prod
    $ limpet queue retry enrich --where 'error ~ 429|503' --since 1h -u s3://acme/prod
    Exit codes: 0 done; 1 there is no such failed task or queue; 2 wrong usage.
    """
    chosen = where is not None or since is not None
    if id is not None and chosen:
        raise Invalid("--where and --since choose among all failed tasks", hint="leave the id out, or the options")
    if id is not None and all:
        raise Invalid("--all means every task that failed", hint=f"leave {id!r} out, or --all")
    if id is None and not (all or chosen):
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

    No worker starts it any more. A handler that runs is not stopped: an async one is cancelled with the next heartbeat
    of its worker, a plain function runs to its end, unless it calls current_task().check(), and if it succeeds, the
    task has completed after all. A task of a batch cannot be cancelled alone, only the whole batch.

    Example:
    $ limpet queue cancel enrich a.com@2026-11 -u s3://acme/prod
    Exit codes: 0 cancelled; 1 it had ended, or there is no such task; 2 wrong usage.
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
        said = handle.result(id).error or ""
        say(f"{id!r} is {clean(said) if said.startswith('cancelled: ') else 'cancelled'}")
    else:
        say(f"{id!r} has ended already; nothing was changed: limpet queue show {queue} {id}", err=True)
    if not cancelled:
        raise Exit(EXIT_FAILED)


def signal(
    queue: QueueArgument,
    id: IdArgument,
    name: Annotated[str, Argument(metavar="NAME", help="The name that the task waits for.")],
    value: Annotated[str, Argument(metavar="JSON", help="What the task gets.")] = "null",
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Send a signal to a durable task that waits for it now or later: an approval, say.

    The first signal of a name counts.

    Example:
    $ limpet queue signal order order-7 approved '"ann"' -u s3://acme/prod
    Exit codes: 0 sent; 1 one of that name was sent before, or no such task waits; 2 wrong usage.
    """
    from limpet.kernel.records import parse_json

    try:
        told = parse_json(value, what="the value")
    except Invalid as invalid:
        invalid.hint = f"a text is in double quotes: '\"{value}\"'"
        raise
    handle = limpet.open(url, create=False).check().queue(queue, create=False)
    try:
        first = handle.signal(id, name, told)
    except Missing as missing:
        missing.hint = f"`limpet queue ls {queue}` shows what waits"
        raise
    if json:
        print_json({"queue": queue, "id": id, "signal": name, "sent": first})
    elif first:
        say(f"{id!r} gets {name!r}")
    else:
        say(f"{name!r} was sent to {id!r} before, and the first one counts; nothing was changed", err=True)
    if not first:
        raise Exit(EXIT_FAILED)


def pause(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Stop workers from claiming tasks of a queue, until `resume`.

    Workers notice within a few seconds. Running tasks continue, and tasks may still be pushed.

    Example:
    $ limpet queue pause enrich -u s3://acme/prod
    Exit codes: 0 paused; 1 there is no such queue; 2 wrong usage.
    """
    _set_paused(queue, url, True, json=json)


def resume(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Undo `pause`.

    Example:
    $ limpet queue resume enrich -u s3://acme/prod
    Exit codes: 0 resumed; 1 there is no such queue; 2 wrong usage.
    """
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

    There is no undo. A running handler is not stopped, and if it succeeds, its result counts.

    Example:
    $ limpet queue purge enrich --yes -u s3://acme/prod
    Exit codes: 0 purged; 1 there is no such queue, or you said no; 2 wrong usage, or no terminal to ask.
    """
    handle = limpet.open(url, create=False).check().queue(queue, create=False)
    if not yes:
        stats = handle.stats()
        waiting = many(stats.pending + stats.scheduled, "task")
        confirm(f"{waiting} would be dropped from {queue!r}, {stats.in_flight:,} of them running", "Drop them all?")
    gone = handle.purge()
    answer({"queue": queue, "purged": gone}, f"dropped {many(gone, 'task')} of {queue!r}", json=json)


def sweep(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Clean up after crashes: finish tasks that ended half-way, and delete leftovers of tasks that have ended.

    Workers do this by themselves, one of them once an hour. Nothing that waits or ended is lost by it: receipts stay,
    however old they are, until a worker whose retention_s they exceed removes them.

    Example:
    $ limpet queue sweep enrich -u s3://acme/prod
    Exit codes: 0 swept; 1 there is no such queue; 2 wrong usage.
    """
    from limpet.app.fleet import in_store

    handle = limpet.open(url, create=False).check().queue(queue, create=False)
    gone = in_store(handle, "be swept").sweep(retain=False)
    answer({"queue": queue, "removed": gone}, f"{queue!r} is tidy; {many(gone, 'object')} removed", json=json)


def adopt(
    queue: QueueArgument,
    from_: Annotated[
        str | None,
        Option(
            "--from",
            metavar="DIR",
            show_default="the queue's own folder",
            help="Where they are: a folder, or a URL (s3://bucket/prefix).",
        ),
    ] = None,
    quiesced: Annotated[
        bool,
        Option(
            "--quiesced",
            help="The other program has stopped: ignore leases, delete each original once its task is safe.",
        ),
    ] = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Take over a queue that another program keeps in files.

    Its files: `pending/ID/task.json`, or `pending/SHARD/ID/task.json`, is a waiting task, with a `lease.json` beside it
    while a worker holds it; `completed/ID.json` and `failed/ID.json` are ended tasks. Each file is the payload, a JSON
    object. Ids are kept, so running it twice changes nothing; failed tasks can be retried. Invalid files, and tasks
    whose id this queue has with another payload, are reported and kept. Other files are counted.

    Without --quiesced nothing is deleted, tasks with a lease are skipped, and a task that the other program claims
    later runs twice. Without --from the files lie where the queue keeps its own (`queues/QUEUE/` below the URL): each
    is replaced in its place, which needs --quiesced. The place need not be a fleet before.

    Example: copy the tasks of another program's queue; then take it over, once that program has stopped
    $ limpet queue adopt enrich --from ./old/queues/enrich -u s3://acme/prod
    $ limpet queue adopt enrich --from ./old/queues/enrich --quiesced -u s3://acme/prod
    Example: in place, where the other program kept them in s3://acme/campaigns/x/queues/enrich
    $ limpet queue adopt enrich --quiesced -u s3://acme/campaigns/x
    Exit codes: 0 all were taken; 1 some files were bad, or there are none; 2 wrong usage.
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
        raise Exit(EXIT_FAILED)


def _print_adopted(queue: str, report: QueueAdoptReport) -> None:
    for bad in report.bad:
        say(f"not taken over: {bad.name}: {bad.reason}", err=True)
    if report.held:
        held = many(report.held, "task has a lease and was skipped", "tasks have a lease and were skipped")
        say(f"{held}; once the other program has stopped: --quiesced", err=True)
    if report.ignored:
        names = ", ".join(report.ignored_names)
        said = many(report.ignored, "other file is no task and stays", "other files are no tasks and stay")
        say(f"{said}, such as {names}", err=True)
    parts = [f"{report.pending:,} waiting, {report.completed:,} completed, {report.failed:,} failed"]
    if report.known:
        parts.append(f"{report.known:,} known before")
    if report.replaced:
        parts.append(f"{many(report.replaced, 'original')} replaced in place")
    if report.deleted or not report.replaced:
        parts.append(f"{many(report.deleted, 'original')} deleted" if report.deleted else "no original deleted")
    say(f"took {many(report.pending + report.completed + report.failed, 'task')} into {queue!r}: {'; '.join(parts)}")
    if report.completed:
        say(
            "hint: ids of completed tasks stay used for as long as the workers keep receipts, by default 30 days; "
            'retention_s=float("inf") keeps them for ever',
            err=True,
        )


app = group(
    "queue",
    push,
    ls,
    failed,
    peek,
    show,
    stats,
    cost,
    retry,
    cancel,
    signal,
    pause,
    resume,
    purge,
    sweep,
    adopt,
    help="Push tasks, look at queues, retry what failed.",
    epilog=lines(
        "Example: push a task, see what waits and what failed, retry what failed",
        """$ limpet queue push enrich '{"domain": "a.com"}' -u s3://acme/prod""",
        "$ limpet queue ls enrich -u s3://acme/prod",
        "$ limpet queue failed enrich -u s3://acme/prod",
        "$ limpet queue retry enrich --all -u s3://acme/prod",
    ),
)
