"""Options and arguments that commands share, and how a command opens a fleet or a queue."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from limpet.errors import Unsupported

if TYPE_CHECKING:
    from limpet.app import Fleet
    from limpet.queue import BucketQueue, Queue
    from limpet.queue.inspect import Inspection

ENV_URL = "LIMPET_URL"
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", "-u", envvar=ENV_URL, show_default=False, help="The fleet: ./dir, s3://bucket/prefix, gs://, az://."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]


def opened(url: str | None, *, read_only: bool = False, create: bool = True) -> Fleet:
    """The fleet at `url`, connected: what is wrong with the place is said before anything else."""
    import limpet

    fleet = limpet.open(url, read_only=read_only, create=create)
    fleet.check()
    return fleet


def existing(url: str | None) -> Fleet:
    """The fleet at `url`, to write to. One that is not there is `Missing`, so that a typo creates nothing."""
    return opened(url, create=False)


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
