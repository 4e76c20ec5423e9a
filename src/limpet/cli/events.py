"""`limpet events`: the runs that workers and compilers record with `--events`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import limpet
from limpet.cli import clean, print_json, printable_json, say, show, table
from limpet.cli.options import DELAY_HELP, JsonOption, QueuesOption, UrlOption, duration_s
from limpet.cli.parse import Option, group, lines
from limpet.events import OUTCOMES
from limpet.kernel import records
from limpet.kernel.errors import Unavailable
from limpet.kernel.waiting import ticks
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from limpet.events import Event
    from limpet.events.tail import EventFilter


EVERY_S = 5.0
TASK_RUN = "task run"

OutcomeFilter = Annotated[
    list[str] | None,
    Option("--outcome", metavar="OUTCOME", help=f"{', '.join(OUTCOMES)} (handed back, or suspended); may be repeated."),
]
TaskFilter = Annotated[str | None, Option("--task", metavar="ID", help="Runs of this task.")]


def ls(
    queue: QueuesOption = None,
    outcome: OutcomeFilter = None,
    task: TaskFilter = None,
    since: Annotated[
        float | None, Option(metavar="TIME", parser=duration_s, help=f"Not older than that, {DELAY_HELP}.")
    ] = None,
    n: Annotated[int, Option("-n", min=1, max=1_000_000, help="Show at most N events.")] = 20,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """List the newest runs, the newest first. Changes nothing.

    Workers write their events now and then, so the last ones may be up to 15 minutes old, and a worker that was killed
    takes some with it. Times are by the clock of the worker's machine.

    Example: what a task went through; all of the last hour as JSON
    $ limpet events ls --task a.com@2026-11 -u s3://acme/prod
    $ limpet events ls --since 1h -n 100000 --json -u s3://acme/prod
    Exit codes: 0 listed; 1 no fleet there, or it cannot be read; 2 wrong usage.
    """
    from limpet.events.tail import recent

    wanted = _filter(queue, outcome, task, since)
    fleet = limpet.open(url, read_only=True).check()
    found = recent(fleet.store, fleet.runtime, n, wanted)
    if json:
        print_json([_facts(event) for event in found.events])
    elif not found.events:
        say("no matching event was found; `limpet work --events` records them")
    else:
        _print(found.events)
    for line in found.unreadable:
        say(f"unreadable: {line}", err=True)


def tail(
    queue: QueuesOption = None,
    outcome: OutcomeFilter = None,
    task: TaskFilter = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Print runs as they are recorded, the oldest first, until Ctrl-C; with --json, one object a line.

    It polls every 5 s: a LIST and a GET, and a GET for each batch of events that is new. Runs that ended more than an
    hour before it began are not printed.

    Example:
    $ limpet events tail --outcome failed -u s3://acme/prod
    Exit codes: 130 stopped by Ctrl-C; 1 no fleet there, or it cannot be read; 2 wrong usage.
    """
    from limpet.events.tail import EventTail

    wanted = _filter(queue, outcome, task)
    fleet = limpet.open(url, read_only=True).check()
    followed = EventTail(fleet.store, fleet.runtime, wanted)
    followed.look()
    say(f"runs from now on, looked for every {EVERY_S:.0f} s; Ctrl-C ends it", err=True)
    for _ in ticks(fleet.runtime.flag(), EVERY_S):
        try:
            found = followed.look()
        except Unavailable as error:
            say(f"{error}; it goes on", err=True)
            continue
        for event in reversed(found.events):
            facts = records.encode(_facts(event)).decode()
            say(printable_json(facts) if json else "  ".join(_cells(event)))
        for line in found.unreadable:
            say(f"unreadable: {line}", err=True)


def _filter(
    queues: list[str] | None, outcomes: list[str] | None, task: str | None, since_s: float | None = None
) -> EventFilter:
    from limpet.events.tail import EventFilter
    from limpet.kernel.runtime import system

    since = None if since_s is None else system().wall() - timedelta(seconds=since_s)
    return EventFilter(queues or (), outcomes or (), task, since)


def _facts(event: Event) -> dict[str, Any]:
    return {"id": event.id, "kind": event.kind, "at": event.at, **event.fields}


def _cells(event: Event) -> list[str]:
    fields = event.fields
    took = fields.get("took_s")
    took_text = f"{took:.3f} s" if isinstance(took, (int, float)) and not isinstance(took, bool) else "-"
    if event.kind != TASK_RUN:
        what = str(fields.get("index", "-"))
        return [event.at, event.kind, what, "-", "-", took_text, "-", str(fields.get("error", ""))]
    named = [str(fields.get(name, "-")) for name in ("outcome", "queue", "task", "attempt")]
    return [event.at, *named, took_text, str(fields.get("worker", "-")), str(fields.get("error", ""))]


def _print(events: list[Event]) -> None:
    titles = ("at", "what", "queue", "task", "attempt", "took", "worker", "error")
    listed = table(*titles, right=("attempt", "took"))
    for event in events:
        listed.add_row(*map(clean, _cells(event)))
    show(listed, f"[dim]{many(len(events), 'event')}[/dim]")


app = group(
    "events",
    ls,
    tail,
    epilog=lines(
        "Example: the last tasks that failed, in any worker",
        "$ limpet events ls --outcome failed -n 50 -u s3://acme/prod",
    ),
)
