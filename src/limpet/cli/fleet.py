"""`limpet status`, `check`, `workers`, `upgrade`, `metrics` and `top`: a whole fleet, on one screen, against limits,
its formats, for Prometheus, and live in a terminal."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import limpet
from limpet.cli import EXIT_FAILED, ago, answer, clean, console, print_json, say, show, table, when
from limpet.cli.options import JsonOption, LimitOptions, QueuesOption, UrlOption, one_url
from limpet.cli.parse import Argument, Context, Exit, Option
from limpet.kernel.errors import Invalid
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from rich.console import RenderableType

    from limpet.app.health import BrokenLimit
    from limpet.app.overview import FleetOverview
    from limpet.kernel.lease import LockState
    from limpet.queue.summary import QueueSummary


LOCKS_MAX = 1000
COUNTS = ("pending", "running", "resting", "scheduled", "completed", "failed")
STATE_COLOURS = {"paused": "yellow", "no worker": "red"}
APPROXIMATE = (
    "Numbers of SQS: approximate, and late by up to a minute. Running counts what rests before its next attempt too; "
    "SQS reports neither ages nor what was completed."
)
AT_LEAST = (
    "+ at least: counting stopped at 10,000 objects of a kind, or 1,000 receipts of failed tasks. "
    "`limpet status --full`, or `limpet queue stats QUEUE`, counts them all."
)


def status(
    url: UrlOption = None,
    full: Annotated[bool, Option(help="Count every object; otherwise counting stops at 10,000 of a kind.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the queues of a fleet and the locks that are held. Changes nothing.

    running: tasks that a live worker holds. resting: tasks that failed and wait for their next attempt, or that are
    suspended. Both are part of pending. oldest: the time since the push of the oldest task that has not ended. failed:
    tasks that failed and were not retried; cancelled ones are counted by themselves. no worker: a task is due, and no
    worker process that is alive (`limpet workers`) names the queue.

    Example:
    $ limpet status -u s3://acme/prod
    Exit codes: 0 shown; 1 no fleet there, or it cannot be read; 2 wrong usage. For alerts use `limpet check`.
    """
    from limpet.app.health import FleetLocks, lock_states, summaries
    from limpet.app.place import has_store
    from limpet.queue.count import ALL, SOME

    fleet = limpet.open(url, read_only=True).check()
    queues = summaries(fleet, limits=ALL if full else SOME)
    locks = lock_states(fleet, LOCKS_MAX) if has_store(fleet.url) else FleetLocks([], {}, more=False)
    held = [lock for lock in locks.locks if lock.state != "free"]
    spent = fleet.meter.snapshot()
    if json:
        shown = ("name", "state", "holder", "token", "age_s", "ttl_s")
        facts = {
            "url": fleet.url,
            "queues": [each.facts() for each in queues],
            "locks_held": [{name: getattr(lock, name) for name in shown} for lock in held],
            "requests": spent.requests,
        }
        bad = [{"key": key, "state": "unreadable", "error": error} for key, error in locks.unreadable.items()]
        print_json({**facts, "locks_unreadable": bad} if bad else facts)
        return
    print_queues(fleet.url, queues)
    if not has_store(fleet.url):
        return
    say("")
    _print_locks(held, more=locks.more)
    for key, error in locks.unreadable.items():
        show(f"[red]unreadable[/red]: {clean(key)}: {clean(error)}")
    by_verb = ", ".join(f"{count:,} {verb.upper()}" for verb, count in sorted(spent.requests.items()))
    show(f"\n[dim]This took {many(spent.total(), 'request')} ({by_verb}): ${spent.dollars('s3'):.6f} on S3.[/dim]")


def print_queues(url: str, queues: Sequence[QueueSummary]) -> None:
    """The queues as a table. A number with a plus is a lower bound."""
    if not queues:
        say(f"no queue was ever used at {url}")
        return
    titles = [name.replace("_", " ") for name in COUNTS]
    listed = table("queue", *titles, "oldest", "", right=(*titles, "oldest"))
    for each in queues:
        counts = [_figure(each, name) for name in COUNTS]
        counts[-1] = f"[red]{counts[-1]}[/red]" if each.failed else counts[-1]
        plus = "+" if "oldest_s" in each.at_least else ""
        oldest = f"{ago(each.oldest_s)}{plus}" if each.oldest_s is not None else "-"
        listed.add_row(clean(each.queue), *counts, oldest, _remark(each))
    show(listed)
    if any(each.approximate for each in queues):
        show(f"\n[dim]{APPROXIMATE}[/dim]")
    if any(each.at_least for each in queues):
        show(f"\n[dim]{AT_LEAST}[/dim]")


def _remark(each: QueueSummary) -> str:
    if each.trouble:
        return f"[red]{clean(each.trouble)}[/red]"
    words = [state] if (state := state_text(each)) else []
    words += [f"{_figure(each, name)} {name}" for name in ("suspended", "cancelled") if getattr(each, name)]
    words += [f"[red]{_figure(each, 'waits_for_code')} waits for code[/red]"] if each.waits_for_code else []
    return ", ".join(words)


def _print_locks(held: Sequence[LockState], *, more: bool) -> None:
    if not held:
        say("no lock is held" + (f" among the first {LOCKS_MAX:,}" if more else ""))
        return
    listed = table("lock held", "by", "token", "last heartbeat", "ttl", "", right=("token", "last heartbeat", "ttl"))
    for lock in held:
        overdue = "[red]overdue[/red]" if lock.state == "overdue" else ""
        figures = (str(lock.token), f"{ago(lock.age_s)} ago", f"{lock.ttl_s:g} s")
        listed.add_row(clean(lock.name), clean(lock.holder), *figures, overdue)
    show(listed)
    if more:
        show(f"[dim]There are more locks; the first {LOCKS_MAX:,} were read.[/dim]")


def check(rules: LimitOptions, queue: QueuesOption = None, url: UrlOption = None, json: JsonOption = False) -> None:
    """Check rules on every queue: one line for each that is violated, and exit code 1. Changes nothing.

    Without a --max rule it checks what the dashboard warns of: --max-age 1h --max-failed 0. --no-worker 5m is checked
    with any other rule too: a task was due for longer, nobody holds one, and no worker process that is alive names the
    queue. Tasks that were retried or cancelled do not count as failed, and delayed ones do not wait before their time.
    A rule that is given and cannot be checked counts as violated: SQS reports neither ages nor workers.

    Example: what the dashboard warns of
    $ limpet check -u s3://acme/prod
    Example: from cron, or as a health check
    $ limpet check --max-age 1h --max-failed 10 -u s3://acme/prod
    $ limpet check --max-pending 50000 -q enrich -q mail -u s3://acme/prod
    Exit codes: 0 all rules hold; 1 a rule is violated or cannot be checked; 2 wrong usage.
    """
    from dataclasses import replace

    from limpet.app.health import Limits, broken_limits, default_limits

    fleet = limpet.open(url, read_only=True).check()
    limits = default_limits(fleet.url)
    if (rules.max_age, rules.max_failed, rules.max_pending) != (None, None, None):
        limits = Limits(rules.max_age, rules.max_failed, rules.max_pending, limits.no_worker_s)
    if rules.no_worker is not None:
        limits = replace(limits, no_worker_s=rules.no_worker)
    found, broken = broken_limits(fleet, limits, queue)
    if json:
        facts = ("queue", "rule", "limit", "value")
        wrong = [{**{name: getattr(each, name) for name in facts}, "message": limit_message(each)} for each in broken]
        print_json({"ok": not wrong, "queues": found, "violations": wrong})
    elif broken:
        for each in broken:
            say(limit_message(each))
    else:
        say(f"ok: {many(len(found), 'queue')} within limits")
    if broken:
        raise Exit(EXIT_FAILED)


def limit_message(broken: BrokenLimit) -> str:
    """One line: the queue, its figure, and the limit."""
    if broken.value is None:
        unknown = "who works on a queue" if broken.rule == "no-worker" else "how old a task is"
        return f"{broken.queue}: --{broken.rule} cannot be checked: SQS does not report {unknown}"
    limit = f"--{broken.rule} is {ago(broken.limit)}"
    if broken.rule == "no-worker":
        return f"{broken.queue}: no worker, and a task has been due for {ago(broken.value)}; {limit}"
    if broken.rule == "max-age":
        return f"{broken.queue}: the oldest task was pushed {ago(broken.value)} ago, and {limit}"
    bound = "" if broken.bound == "exact" else f"{broken.bound} "
    count = f"{bound}{many(int(broken.value), 'task')} {broken.rule.removeprefix('max-')}"
    return f"{broken.queue}: {count}, and --{broken.rule} is {int(broken.limit):,}"


def workers(url: UrlOption = None, json: JsonOption = False) -> None:
    """Show the worker processes of a fleet: where they run, their version and queues, and since when. Changes nothing.

    A process of `limpet work` registers itself after a second, renews that every two minutes, and removes it when it
    ends. One that has not renewed for five minutes is shown as gone: it was most likely killed. LIMPET_PRESENCE=0, in
    the environment of a worker, hides it.

    Example: who works on the fleet, and since when
    $ limpet workers -u s3://acme/prod
    Example: the versions that are in use
    $ limpet workers --json -u s3://acme/prod | jq -r '.workers[].version' | sort | uniq -c
    Exit codes: 0 shown; 1 no fleet there, or it cannot be read; 2 wrong usage.
    """
    from dataclasses import asdict

    from limpet.app.presence import workers as find_workers

    found = find_workers(limpet.open(url, read_only=True).check())
    if json:
        rows = [{**asdict(each), "state": "gone" if each.gone else "alive"} for each in found.workers]
        bad = [{"key": key, "error": error} for key, error in found.unreadable.items()]
        print_json({"workers": rows, "more": found.more, **({"unreadable": bad} if bad else {})})
        return
    if not found.workers:
        say("no worker is registered; `limpet work` registers itself a second after it started")
    else:
        listed = table("worker", "state", "since", "renewed", "threads", "version", "queues", right=("threads",))
        for each in found.workers:
            state = "[red]gone[/red]" if each.gone else "[green]alive[/green]"
            queues = ", ".join(map(clean, each.queues))
            figures = (str(each.threads), clean(each.version), queues)
            listed.add_row(clean(each.label), state, when(each.since), f"{ago(each.renewed_s)} ago", *figures)
        show(listed, f"[dim]{len(found.alive):,} alive, {len(found.workers) - len(found.alive):,} gone[/dim]")
    if found.more:
        show(f"[dim]There are more; the first {len(found.workers):,} are shown.[/dim]")
    for key, error in found.unreadable.items():
        show(f"[red]unreadable[/red]: {clean(key)}: {clean(error)}")


def upgrade(
    context: Context,
    where: Annotated[str | None, Argument(metavar="[URL]", help="The fleet; or use --url.")] = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Raise a fleet's recorded formats to those of this limpet.

    Do it once every machine runs the new version: older ones refuse the fleet from then on. Until then a new limpet
    keeps writing the old formats, so that mixed fleets work.

    Example: every machine has the new limpet by now
    $ limpet upgrade s3://acme/prod
    Exit codes: 0 upgraded, or nothing to do; 1 no fleet there, or refused; 2 wrong usage.
    """
    fleet = limpet.open(one_url(context, where, url), create=False).check()
    before = fleet.record
    changed = fleet.upgrade()
    after = fleet.record
    formats = sorted(after.format.items())
    said = ", ".join(f"{room} {number}" for room, number in formats)
    old = {room: before.format.get(room, "none") for room in after.format}
    steps = [f"{room} {old[room]} -> {number}" for room, number in formats if old[room] != number]
    if before.min_writer != after.min_writer:
        steps.append(f"writers of level {before.min_writer} -> {after.min_writer}")
    done = f"upgraded {fleet.url}: {', '.join(steps)}"
    nothing = f"nothing to do: {fleet.url} has the formats of this limpet ({said})"
    facts = {"url": fleet.url, "changed": changed, "before": before.format, "after": after.format}
    answer(facts, done if changed else nothing, json=json)


DAY_S = 86400.0


def metrics(
    serve: Annotated[
        str | None, Option(metavar="[HOST:]PORT", help="Answer scrapes until Ctrl-C. Port 0 takes a free one.")
    ] = None,
    textfile: Annotated[str | None, Option(metavar="FILE", help="Write one reading to a file, and exit.")] = None,
    count: Annotated[
        int, Option(min=999, help="Count up to so many objects of a kind in a queue: 1 LIST per 1,000.")
    ] = 10_000,
    idle_requests: Annotated[
        int, Option(min=60, help="Requests an hour on an idle fleet, at most. With more, a change is noticed sooner.")
    ] = 260,
    url: UrlOption = None,
) -> None:
    """Show a fleet to Prometheus: depth, age and rate of queues, workers, locks, indexes, the catalog, cost.

    Reads only. Scraped every 15 s, an idle fleet costs under 260 requests an hour. Alert rules and a Grafana board are
    in deploy/; `limpet work --metrics-port` shows how long handlers take. Needs the extra `metrics`.

    Example: a port that Prometheus scrapes; on this machine only, or for all
    $ limpet metrics --serve 9464 -u s3://acme/prod
    $ limpet metrics --serve 0.0.0.0:9464 -u s3://acme/prod
    Example: from cron, a file for the textfile collector of the node exporter
    $ limpet metrics --textfile /var/lib/node_exporter/limpet.prom -u s3://acme/prod
    Exit codes: 0 written; 130 stopped by Ctrl-C; 1 no fleet there, or no such port or file; 2 wrong usage.
    """
    from limpet.app.metrics import FleetMetrics, ScrapePlace, serving, write_textfile
    from limpet.kernel.runtime import system
    from limpet.kernel.waiting import ticks

    if (serve is None) is (textfile is None):
        raise Invalid("say --serve PORT or --textfile FILE", hint="one of the two")
    address = None if serve is None else ScrapePlace.of(serve)
    found = FleetMetrics(limpet.open(url, read_only=True).check(), objects=count, idle_requests=idle_requests)
    if textfile is not None:
        write_textfile(found.registry(), textfile)
        say(f"wrote {textfile}", err=True)
        return
    assert address is not None
    with serving(found.registry(), address) as taken:
        say(f"metrics on {taken}", err=True)
        for _ in ticks(system().flag(), DAY_S):
            pass


# ---- limpet top ----


SPARKS = "\u00b7\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
NAME_COLUMNS = 10
GAP = 3
MINUTES_MIN, MINUTES_MAX = 5, 60
WIDTH_OF_TEXT = 124
"""The width that is assumed without a terminal: room for 30 minutes."""
REASON_SHOWN = 80
"""Characters shown of what a suspended task waits for."""
DRAW_EVERY_S = 1.0
OTHER_LINES = 16
"""Lines that are kept for what stands below the queues."""


def top(once: Annotated[bool, Option(help="Print one reading, and exit.")] = False, url: UrlOption = None) -> None:
    """Watch a fleet: queues with their rates, workers, indexes, locks, the catalog, and what it costs. Changes nothing.

    What changes is shown within seconds; an idle fleet is read less and less often, under 200 requests an hour. A
    number with a plus is a lower bound. Without a terminal it prints one reading.

    Example: watch a fleet; q or Ctrl-C ends it
    $ limpet top -u s3://acme/prod
    Example: one reading, as text
    $ limpet top --once -u s3://acme/prod
    Exit codes: 0 ended by q, or shown once; 130 ended by Ctrl-C; 1 no fleet there; 2 wrong usage.
    """
    from limpet.app.overview import OverviewWatch

    watch = OverviewWatch(limpet.open(url, read_only=True).check())
    out = console()
    if once or not sys.stdout.isatty():
        for part in parts_of(watch.look(), rows=1000, width=WIDTH_OF_TEXT):
            out.print(part, soft_wrap=isinstance(part, str))
        return
    from rich.console import Group
    from rich.live import Live

    with _quit_key() as pressed, Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            overview = watch.look()
            shown = parts_of(overview, rows=max(3, out.height - OTHER_LINES), width=out.width)
            live.update(Group(*shown), refresh=True)
            if pressed(min(DRAW_EVERY_S, max(0.1, watch.wait_s()))):
                return


@contextmanager
def _quit_key() -> Iterator[Callable[[float], bool]]:
    """What waits so many seconds for a `q`, and says whether one came; without a keyboard it only waits."""
    if not sys.stdin.isatty():
        yield lambda timeout_s: bool(select.select([], [], [], timeout_s)[0])
        return
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield (
            lambda timeout_s: (
                bool(select.select([keyboard], [], [], timeout_s)[0])
                and os.read(keyboard, 100)[:1] in (b"q", b"Q", b"")
            )
        )
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def parts_of(overview: FleetOverview, *, rows: int, width: int) -> list[RenderableType]:
    """The screen from top to bottom, with at most so many queues, and as many columns as fit."""
    shown = sorted(overview.queues, key=lambda each: (-each.pending, -each.failed, each.queue))
    parts: list[RenderableType] = [_heading(overview), _queues(shown[:rows], overview, width)]
    hidden = len(shown) - rows
    if hidden > 0 or overview.uncounted:
        left = f", {len(overview.uncounted):,} not counted yet" if overview.uncounted else ""
        parts.append(f"[dim]{many(max(0, hidden), 'more queue')}{left}[/dim]")
    if not shown:
        parts.append("[dim]no queue was ever used[/dim]")
    parts += ["", *_below(overview)]
    parts += [f"[red]{clean(part)}: {clean(error)}[/red]" for part, error in overview.trouble.items()]
    return parts


def _heading(overview: FleetOverview) -> str:
    words = [f"[bold]{clean(overview.url)}[/bold]", f"{overview.at:%H:%M:%S}Z"]
    if overview.workers is not None:
        alive = len(overview.workers.alive)
        gone = len(overview.workers.workers) - alive
        words.append(f"{many(alive, 'worker')} alive" + (f", [red]{gone:,} gone[/red]" if gone else ""))
    if overview.bill is not None:
        place = "in a bucket " if overview.bill.free else ""
        words.append(f"{place}${overview.bill.month_dollars:.2f} a month at this rate")
    if overview.alerts:
        words.append(f"[red]{many(len(overview.alerts), 'alert')}[/red]")
    return "  ".join(words)


def _queues(queues: Sequence[QueueSummary], overview: FleetOverview, width: int) -> RenderableType:
    figures = ["pending", "running", "resting", "scheduled", "failed", "oldest", "per min"]
    width -= max([len("paused"), *(len(each.state) for each in queues)])
    for least in ("scheduled", "resting", "per min", "oldest", "running"):
        if _left(width, figures) < 0:
            figures.remove(least)
    minutes = min(MINUTES_MAX, _left(width, figures))
    listed = table("queue", *figures, *((f"{minutes} min",) if minutes >= MINUTES_MIN else ()), "", right=figures)
    listed.columns[0].min_width = NAME_COLUMNS
    for column in listed.columns[len(figures) + 1 : -1]:
        column.no_wrap = True  # a line of minutes that is folded cannot be read
    for each in queues:
        rate, failed = overview.rates.get(each.queue), _figure(each, "failed")
        cells = {
            "failed": f"[red]{failed}[/red]" if each.failed else failed,
            "oldest": "-" if each.oldest_s is None else ago(each.oldest_s),
            "per min": "-" if rate is None else f"{rate.per_minute:,.1f}",
        }
        listed.add_row(
            clean(each.queue),
            *(cells[name] if name in cells else _figure(each, name.replace(" ", "_")) for name in figures),
            *(["" if rate is None else _sparkline(rate.minutes[-minutes:])] if minutes >= MINUTES_MIN else []),
            clean(each.trouble) if each.trouble else state_text(each),
        )
    return listed


def state_text(each: QueueSummary) -> str:
    """The state of a queue, unless it is as it should be."""
    colour = STATE_COLOURS.get(each.state)
    return f"[{colour}]{each.state}[/{colour}]" if colour else ""


def _left(width: int, figures: Sequence[str]) -> int:
    return width - NAME_COLUMNS - sum(GAP + len(name) for name in figures) - 2 * GAP


def _figure(each: QueueSummary, name: str) -> str:
    value = getattr(each, name)
    return "-" if value is None else f"{value:,}{'+' if name in each.at_least else ''}"


def _sparkline(minutes: Sequence[int]) -> str:
    most = max(minutes, default=0)
    if not most:
        return ""
    return "".join(SPARKS[min(len(SPARKS) - 1, -(-count * (len(SPARKS) - 1) // most))] for count in minutes)


def _below(overview: FleetOverview) -> Iterator[str]:
    now = overview.at
    for broken in overview.alerts[:3]:
        yield f"[red]alert[/red] {clean(limit_message(broken))}"
    cancelled = [f"{_figure(each, 'cancelled')} of {clean(each.queue)}" for each in overview.queues if each.cancelled]
    if cancelled:
        rest = f" and {many(len(cancelled) - 3, 'more queue')}" if len(cancelled) > 3 else ""
        yield f"[dim]cancelled {', '.join(cancelled[:3])}{rest}[/dim]"
    suspended = [each for each in overview.queues if each.suspended]
    for each in suspended[:3]:
        reason = clean(each.suspended_reason[:REASON_SHOWN])
        yield f"[bold]suspended[/bold] {_figure(each, 'suspended')} of {clean(each.queue)}: {reason}"
    if len(suspended) > 3:
        yield f"[dim]{many(len(suspended) - 3, 'more queue')} with suspended tasks[/dim]"
    for index in overview.indexes[:5]:
        records = "- records" if index.records is None else many(index.records, "record")
        compiled = "never" if index.compiled_at is None else f"{_since(index.compiled_at, now)} ago"
        said = f"{records}, {index.waiting:,} waiting, compiled {compiled}"
        bad = f", [red]{index.quarantined:,} in quarantine[/red]" if index.quarantined else ""
        yield f"[bold]index[/bold] {clean(index.name)}: {said}{bad}"
    more = len(overview.indexes) - 5 + overview.indexes_more
    if more > 0:
        yield f"[dim]{many(more, 'more index', 'more indexes')}[/dim]"
    held = [lock for lock in overview.locks.locks if lock.state != "free"]
    if held:
        names = ", ".join(f"{clean(lock.name)} by {clean(lock.holder)}" for lock in held[:3])
        overdue = sum(lock.state == "overdue" for lock in held)
        late = f", [red]{overdue:,} overdue[/red]" if overdue else ""
        yield f"[bold]locks[/bold] {len(held):,} held{late}: {names}{' ...' if len(held) > 3 else ''}"
    catalog = overview.catalog
    if catalog is not None and catalog.version:
        last = "" if catalog.at is None else f", last commit {_since(datetime.fromisoformat(catalog.at), now)} ago"
        yield f"[bold]catalog[/bold] {many(catalog.tables, 'table')}, version {catalog.version:,}{last}"
    if overview.bill is not None:
        own = overview.bill.own
        yield f"[dim]This has taken {many(own.requests, 'request')}, ${own.dollars:.6f}.[/dim]"


def _since(at: datetime, now: datetime) -> str:
    return ago((now - at).total_seconds())
