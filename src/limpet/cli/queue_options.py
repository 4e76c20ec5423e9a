"""What the queue's commands share: options, how a queue is opened, and how a task is shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from limpet.errors import Unsupported

if TYPE_CHECKING:
    from datetime import datetime

    from limpet.app import Fleet
    from limpet.queue import BucketQueue, Queue
    from limpet.queue.inspect import Inspection

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", show_default=False, help="The queue's name.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", show_default=False, help="The task's id.")]

DELAY_HELP = "such as 90s, 15m, 1h or 2d"

_DURATION = re.compile(r"([0-9]{1,9})([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration_s(text: str) -> float:
    """`90s`, `15m`, `1h` or `2d` in seconds. Nothing else is a duration: a bare number could be anything."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration; write a whole number and a unit, {DELAY_HELP}")
    return int(found[1]) * _SECONDS[found[2]]


SinceOption = Annotated[
    float | None,
    typer.Option("--since", metavar="AGE", parser=duration_s, help=f"Only what failed in that time, {DELAY_HELP}."),
]
WhereOption = Annotated[
    str | None,
    typer.Option("--where", metavar="TEXT", help="Only tasks whose error contains the text, in upper or lower case."),
]


def in_store(queue: Queue, what: str) -> BucketQueue:
    """The queue, if it lives in the fleet's own store.   Raises: Unsupported."""
    from limpet.queue import BucketQueue

    if isinstance(queue, BucketQueue):
        return queue
    raise Unsupported(
        f"queue {queue.name!r} lives in {queue.provider}, which cannot {what}",
        hint="a bucket or a directory can",
    )


def inspection(fleet: Fleet, name: str, what: str) -> Inspection:
    """The reading side of the queue `name`, if it lives in the fleet's own store.   Raises: Unsupported."""
    from limpet.app.urls import SQS, provider_of
    from limpet.queue.inspect import Inspection
    from limpet.runtime import system

    if provider_of(fleet.url) == SQS:
        in_store(fleet.queue(name), what)
    return Inspection.of(fleet.store, name, system())


def demand_queue(fleet: Fleet, queue: Queue) -> None:
    """Go on only if the queue was ever used, so that a typo changes nothing.   Raises: Missing.   Cost: 1 LIST."""
    from limpet.app.fleet import demand_queue

    demand_queue(fleet, queue)


def now_of(*stamps: datetime | None) -> datetime:
    """The store's time, as near as one gets without writing: this machine's, but not before what the store stamped."""
    from limpet.runtime import system

    return max([system().wall(), *(stamp for stamp in stamps if stamp is not None)])


def when(moment: datetime | None) -> str:
    """A moment, for people."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "-"


def many(count: int, one: str, more: str | None = None) -> str:
    """`1 task`, `2 tasks`."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"
