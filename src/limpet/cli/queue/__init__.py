"""`limpet queue`: push, inspect, retry and cancel tasks."""

from __future__ import annotations

from limpet.cli import group, lines
from limpet.cli.queue import change, show

__all__ = ["app"]

app = group(
    "queue",
    change.push,
    show.ls,
    show.failed,
    show.peek,
    show.show,
    show.stats,
    show.cost,
    change.retry,
    change.cancel,
    change.signal,
    change.pause,
    change.resume,
    change.purge,
    change.sweep,
    change.adopt,
    help="Push tasks, look at queues, retry what failed.",
    epilog=lines(
        "Example: push a task, see what waits and what failed, retry what failed",
        """$ limpet queue push enrich '{"domain": "a.com"}' -u s3://acme/prod""",
        "$ limpet queue ls enrich -u s3://acme/prod",
        "$ limpet queue failed enrich -u s3://acme/prod",
        "$ limpet queue retry enrich --all -u s3://acme/prod",
    ),
)
