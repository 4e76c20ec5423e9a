"""`limpet queue`: look at tasks (`ls`, `failed`, `peek`, `show`, `stats`, `cost`). `queue_change` has the commands that
push them, and change what waits or has failed."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

import limpet
from limpet import cli
from limpet.cli import ago, clean, clean_lines, now_of, pairs, print_json, say, table, when
from limpet.cli.options import (
    IdArgument,
    JsonOption,
    QueueArgument,
    QueueOrAllArgument,
    SinceOption,
    UrlOption,
    WhereOption,
)
from limpet.cli.parse import Argument, Option, group, lines
from limpet.cli.queue_change import (
    adopt,
    cancel,
    drop,
    fail,
    nothing_failed,
    pause,
    purge,
    push,
    resume,
    retry,
    signal,
    sweep,
)
from limpet.kernel.errors import Invalid, Missing
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from limpet.queue.count import Folder


FAILED_SHOWN = 20
ID_WIDTH = 36

COLUMNS: dict[Folder, tuple[str, ...]] = {
    "pending": ("id", "tasks", "pushed", "state", "attempt", "worker"),
    "failed": ("id", "state", "attempts", "ended", "error"),
    "completed": ("id", "tasks", "failed", "pushed", "ended", "took", "payload"),
    "scheduled": ("id", "due in"),
}
FIGURES = ("tasks", "pushed", "attempt", "attempts", "ended", "took", "failed", "due in")
PAYLOAD_SHOWN = 60
VERY_MANY = "There are very many receipts: not all were looked at, and tasks with ids of their own may be missing."
NOTHING: dict[Folder, str] = {
    "pending": "nothing waits in",
    "failed": "nothing has failed in",
    "completed": "nothing is completed in",
    "scheduled": "nothing is scheduled in",
}
COLOURS = {"completed": "green", "running": "green", "failed": "red", "cancelled": "red"}


def ls(
    queue: Annotated[
        str | None, Argument(metavar="QUEUE", help="The queue; without it, all queues.", names="queue")
    ] = None,
    pending: Annotated[bool, Option(help="What waits or is worked on (the default).")] = False,
    failed: Annotated[bool, Option(help="What failed or was cancelled, and was not retried.")] = False,
    completed: Annotated[bool, Option(help="What succeeded.")] = False,
    scheduled: Annotated[bool, Option(help="Tasks that were pushed with a delay.")] = False,
    n: Annotated[int, Option("-n", "--limit", min=1, help="Show at most N entries.")] = 20,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """List the entries of a queue, or all queues with their counts. Changes nothing.

    An entry is one task, or a batch of tasks that were pushed together. They come in the order of their names, which
    for ids that Limpet made is oldest first; with --completed, what ended last comes first.

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
    reader = inspection(fleet, queue, "list its tasks")
    whole = True
    if state == "completed":
        rows, whole = reader.latest(n + 1)
    else:
        rows = [*islice(reader.entries(state), n + 1)]
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
        if not whole:
            cli.show(f"[dim]{VERY_MANY}[/dim]")


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
            pushed = "-"
            if row["pushed_at"] is not None:
                before_s = (row["finished_at"] - row["pushed_at"]).total_seconds()
                pushed = f"{ago(row['age_s'] + max(0.0, before_s))} ago"
            counts = [f"{row['tasks']:,}", f"{row['failed']:,}"]
            payload = "" if row["payload"] is None else _short(_json(row["payload"]))
            return [id_, *counts, pushed, f"{ago(row['age_s'])} ago", _took(row["took_s"]), payload]
        case "scheduled":
            return [id_, ago(row["due_in_s"]) if row["due_in_s"] > 0 else "now"]


def _took(took_s: float | None) -> str:
    """How long a handler ran."""
    if took_s is None:
        return "-"
    if 0 < took_s < 1:
        return f"{took_s * 1000:.3g} ms"
    return f"{took_s:.3g} s" if took_s < 60 else ago(took_s)


def _short(text: str) -> str:
    return text if len(text) <= PAYLOAD_SHOWN else f"{text[:PAYLOAD_SHOWN]}..."


def _state(facts: dict[str, Any]) -> str:
    state = facts["state"]
    colour = COLOURS.get(state, "default")
    said = f"[{colour}]{state}[/{colour}]"
    if facts.get("overdue"):
        return f"{said} [red](its worker is overdue)[/red]"
    return f"{said}, and its batch goes on" if "batch" in facts and state in ("completed", "failed") else said


def failed(
    queue: QueueOrAllArgument = None,
    where: WhereOption = None,
    since: SinceOption = None,
    n: Annotated[int, Option("-n", min=1, help="Read at most N failed tasks.")] = 1000,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Show what failed and was not retried, grouped by error, the most frequent first. Changes nothing.

    Errors that differ only in their numbers are one group. `limpet queue retry` takes the same --where and --since.

    Example: in all queues; in one; those of the last two hours whose error mentions a timeout
    $ limpet queue failed -u s3://acme/prod
    $ limpet queue failed enrich -u s3://acme/prod
    $ limpet queue failed enrich --where timeout --since 2h -u s3://acme/prod
    Exit codes: 0 shown, or nothing has failed; 1 there is no such queue or fleet; 2 wrong usage.
    """
    fleet = limpet.open(url, read_only=True).check()
    names = fleet.queues() if queue is None else [queue]
    found = [(name, group) for name in names for group in fleet.queue(name).failed(n, where=where, since_s=since)]
    if not found and queue is not None:
        fleet.queue(queue, create=False)
    ages_s = [(now_of(group.last_at) - group.last_at).total_seconds() for _, group in found]
    if json:
        rows = zip(found, ages_s, strict=True)
        print_json([{"queue": name, **asdict(group), "age_s": round(age_s, 1)} for (name, group), age_s in rows])
    elif not found:
        say(nothing_failed(queue, where, since))
    else:
        whole = queue is None
        listed = table(*(["queue"] * whole), "tasks", "newest", "its id", "error", right=("tasks", "newest"))
        listed.columns[-2].min_width = min(ID_WIDTH, max(len(group.ids[0]) for _, group in found))
        for (name, group), age_s in zip(found, ages_s, strict=True):
            error = clean(" ".join(group.error.split()))
            row = (f"{group.count:,}", f"{ago(age_s)} ago", clean(group.ids[0]), error)
            listed.add_row(*([clean(name)] * whole), *row)
        cli.show(listed)
        if any(sum(group.count for name, group in found if name == each) >= n for each in names):
            read = many(n, "failed task")
            cli.show(f"\n[dim]{read} read{' in a queue' * whole}; -n {n * 5} reads more of them.[/dim]")


def peek(
    queue: QueueArgument,
    n: Annotated[int, Option("-n", min=1, max=1000, help="Show at most N tasks.")] = 5,
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
    _show_steps(found)
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
    rows = [("task", clean(facts["id"])), ("state", _state(facts))]
    if "asked_for" in facts:
        rows.append(("retried", f"{clean(facts['asked_for'])} was retried as {clean(facts['id'])}"))
    if "reason" in facts:
        rows.append(("suspended", f"{clean(facts['reason'])}, since {when(facts['suspended_at'])}"))
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
        ("began", "began_at"),
        ("waits until" if "reason" in facts else "due", "due_at"),
        ("ended", "finished_at"),
    )
    rows += [(title, when(facts[key])) for title, key in times if facts.get(key)]
    if "took_s" in facts:
        rows.append(("handler", f"ran for {_took(facts['took_s'])}"))
    if "parent" in facts:
        parent = facts["parent"]
        rows.append(("pushed by", clean(f"step {parent['step']} of {parent['id']} in {parent['queue']}")))
    if "receipts_kept_s" in facts:
        kept_s = facts["receipts_kept_s"]
        rows.append(("receipt", "kept for ever" if kept_s is None else f"kept for {ago(kept_s)}"))
    if facts.get("error"):
        rows.append(("error", clean(facts["error"])))
    rows += [(key, _json(facts[key])) for key in ("payload", "result") if key in facts]
    if "raw" in facts:
        rows.append(("its bytes", clean(facts["raw"])))
    return rows


def _show_steps(facts: dict[str, Any]) -> None:
    """The steps of a durable task, the signals that were sent to it, and the tasks that it has pushed."""
    steps, signals, children = facts.get("steps", ()), facts.get("signals", ()), facts.get("children", ())
    if steps:
        listed = table("step", "", "at", "took", "worker", "value", right=("step", "took"))
        for step in steps:
            listed.add_row(str(step["number"]), *_step_cells(step))
        cli.show("", listed)
    if facts.get("steps_left_out"):
        cli.show(f"[dim]{many(facts['steps_left_out'], 'step')} left out: the history of a task is bounded.[/dim]")
    if facts.get("steps_lost"):
        cli.show("[dim]Its steps were not kept: the worker that wrote them died, or had another version.[/dim]")
    if signals:
        listed = table("signal", "at", "by", "value")
        for signal_ in signals:
            listed.add_row(clean(signal_["name"]), when(signal_["at"]), clean(signal_["by"]), _value(signal_))
        cli.show("", listed)
    if children:
        listed = table("pushed", "queue", "state")
        for child in children:
            listed.add_row(clean(child["id"]), clean(child["queue"]), _state(child))
        cli.show("", listed)
        if facts["pushed"] > len(children):
            cli.show(f"[dim]The first {len(children)} of {many(facts['pushed'], 'task')} that it pushed.[/dim]")


def _step_cells(step: dict[str, Any]) -> list[str]:
    if "kind" not in step:
        return [clean(f"cannot be read: {step['error']}"), "", "", "", ""]
    took = f"waited {ago(step['waited_s'])}" if "waited_s" in step else _took(step["took_s"])
    name = clean(f"{step['kind']} {step['name']}".strip())
    return [name, when(step["at"]), took, clean(step["worker"]), _value(step)]


def _value(facts: dict[str, Any]) -> str:
    if "value_bytes" in facts:
        return f"{facts['value_bytes']:,} bytes"
    return "" if facts["value"] is None else _short(_json(facts["value"]))


def _json(value: Any) -> str:
    return clean(msgspec.json.encode(value).decode())


def stats(queue: QueueArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Count the tasks of one queue, all of them. Changes nothing.

    It lists every object of the queue, at a request for each thousand, and reads the last 200 receipts of completed
    tasks for how long their handlers took. `limpet status` stops counting sooner.

    Example:
    $ limpet queue stats enrich --json -u s3://acme/prod
    Exit codes: 0 shown; 1 there is no such queue or fleet; 2 wrong usage.
    """
    from limpet.app.fleet import inspection
    from limpet.app.health import summaries
    from limpet.cli.fleet import APPROXIMATE, state_text
    from limpet.queue.count import ALL

    fleet = limpet.open(url, read_only=True).check()
    found = summaries(fleet, [queue], limits=ALL)
    if not found:
        fleet.queue(queue, create=False)
    facts = found[0].facts()
    del facts["at_least"]
    if "approximate" not in facts:
        facts["handlers"] = inspection(fleet, queue, "tell how long its handlers take").durations()
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
            if "waits_for_code" in facts:
                cli.show(f"  {'of them':<10} [red]{facts['waits_for_code']:>9,} waits for code[/red]")
    say(f"  {'oldest':<10} {ago(facts['oldest_s']) if facts['oldest_s'] is not None else '-':>9}")
    took = facts.get("handlers", {})
    if took.get("tasks"):
        half, most = _took(took["p50_s"]), _took(took["p99_s"])
        cli.show(f"  {'handlers':<10} p50 {half}, p99 {most} [dim](of the last {many(took['tasks'], 'task')})[/dim]")
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


app = group(
    "queue",
    "Look",
    ls,
    failed,
    peek,
    show,
    stats,
    cost,
    "Run",
    push,
    retry,
    cancel,
    fail,
    signal,
    pause,
    resume,
    "Keep",
    purge,
    drop,
    sweep,
    adopt,
    epilog=lines(
        "Example: push a task, see what waits and what failed, retry what failed",
        """$ limpet queue push enrich '{"domain": "a.com"}' -u s3://acme/prod""",
        "$ limpet queue ls enrich -u s3://acme/prod",
        "$ limpet queue failed enrich -u s3://acme/prod",
        "$ limpet queue retry enrich --all -u s3://acme/prod",
    ),
)
