"""`limpet queue`: push, inspect, retry and cancel tasks."""

from __future__ import annotations

from limpet.cli import group, lines
from limpet.cli.queue import change, cost, push, show

__all__ = ["app"]

app = group(
    "queue",
    push,
    show,
    cost,
    change,
    help="Push tasks, look at queues, retry what failed.",
    epilog=lines(
        "Example: push a task, see what waits and what failed, retry what failed",
        """$ limpet queue push enrich '{"domain": "a.com"}' -u s3://acme/prod""",
        "$ limpet queue ls enrich -u s3://acme/prod",
        "$ limpet queue failed enrich -u s3://acme/prod",
        "$ limpet queue retry enrich --all -u s3://acme/prod",
    ),
)
