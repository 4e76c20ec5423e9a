"""`limpet top`: a fleet, live in a terminal."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

import limpet
from limpet.cli import ago, clean, console, many, table
from limpet.cli.options import UrlOption

if TYPE_CHECKING:
    from rich.console import RenderableType

    from limpet.app.overview import FleetOverview
    from limpet.queue.inspect import QueueSummary

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


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one reading, and exit.")] = False,
    url: UrlOption = None,
) -> None:
    """Watch a fleet: queues with their rates, workers, indexes, locks, the catalog, and what it costs. Changes nothing.

    What changes is shown within seconds; a fleet at rest is read ever more rarely, under 200 requests an hour. A number
    with a plus is a lower bound. Without a terminal it prints one reading.

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
def _quit_key() -> Iterator[_KeyReader]:
    """What waits so many seconds for a `q`, and says whether one came; without a keyboard it only waits."""
    if not sys.stdin.isatty():
        yield _KeyReader(None)
        return
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield _KeyReader(keyboard)
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


class _KeyReader:
    """Waits for a key."""

    def __init__(self, keyboard: int | None) -> None:
        self._keyboard = keyboard

    def __call__(self, timeout_s: float) -> bool:
        watched = [] if self._keyboard is None else [self._keyboard]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        return bool(ready) and self._keyboard is not None and os.read(self._keyboard, 100)[:1] in (b"q", b"Q", b"")


def parts_of(overview: FleetOverview, *, rows: int, width: int) -> list[RenderableType]:
    """The screen from top to bottom, with at most so many queues, and as many columns as fit."""
    shown = sorted(overview.queues, key=lambda each: (-each.pending, -each.failed, each.queue))
    parts: list[RenderableType] = [_heading(overview), _queues(shown[:rows], overview, width)]
    hidden = len(shown) - rows
    if hidden > 0 or overview.uncounted:
        left = f", {len(overview.uncounted):,} not counted yet" if overview.uncounted else ""
        parts.append(f"[dim]{max(0, hidden):,} more queues{left}[/dim]")
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
    figures = ["pending", "in flight", "resting", "scheduled", "failed", "oldest", "per min"]
    for least in ("scheduled", "resting", "per min", "oldest", "in flight"):
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
            "[yellow]paused[/yellow]" if each.paused else clean(each.trouble),
        )
    return listed


def _left(width: int, figures: Sequence[str]) -> int:
    """How many columns are left beside a queue's name, these figures and whether it is paused."""
    return width - NAME_COLUMNS - sum(GAP + len(name) for name in figures) - 2 * GAP - len("paused")


def _figure(each: QueueSummary, name: str) -> str:
    value = getattr(each, name)
    return "-" if value is None else f"{value:,}{'+' if name in each.at_least else ''}"


def _sparkline(minutes: Sequence[int]) -> str:
    most = max(minutes, default=0)
    if not most:
        return ""
    return "".join(SPARKS[min(len(SPARKS) - 1, -(-count * (len(SPARKS) - 1) // most))] for count in minutes)


def _below(overview: FleetOverview) -> Iterator[str]:
    """One line for each of the other parts that there are."""
    from limpet.cli.fleet import limit_message

    now = overview.at
    for broken in overview.alerts[:3]:
        yield f"[red]alert[/red] {clean(limit_message(broken))}"
    suspended = [each for each in overview.queues if each.suspended]
    for each in suspended[:3]:
        reason = clean(each.suspended_reason[:REASON_SHOWN])
        yield f"[bold]suspended[/bold] {_figure(each, 'suspended')} of {clean(each.queue)}: {reason}"
    if len(suspended) > 3:
        yield f"[dim]{len(suspended) - 3:,} more queues with suspended tasks[/dim]"
    for index in overview.indexes[:5]:
        records = "-" if index.records is None else f"{index.records:,}"
        compiled = "never" if index.compiled_at is None else f"{_since(index.compiled_at, now)} ago"
        said = f"{records} records, {index.waiting:,} waiting, compiled {compiled}"
        bad = f", [red]{index.quarantined:,} in quarantine[/red]" if index.quarantined else ""
        yield f"[bold]index[/bold] {clean(index.name)}: {said}{bad}"
    more = len(overview.indexes) - 5 + overview.indexes_more
    if more > 0:
        yield f"[dim]{more:,} more indexes[/dim]"
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
