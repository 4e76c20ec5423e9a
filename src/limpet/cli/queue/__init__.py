"""`limpet queue`: push tasks, look at them, and put right what went wrong."""

from __future__ import annotations

import typer

from limpet.cli.output import lines
from limpet.cli.queue import change, cost, push, show

__all__ = ["app"]

app = typer.Typer(
    name="queue",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Push tasks, look at queues, retry what failed.",
    epilog=lines(
        "Example: push a task, see what waits and what failed, retry what failed",
        """$ limpet queue push enrich '{"domain": "a.com"}' -u s3://acme/prod""",
        "$ limpet queue ls enrich -u s3://acme/prod",
        "$ limpet queue failed enrich -u s3://acme/prod",
        "$ limpet queue retry enrich --all -u s3://acme/prod",
    ),
)
for command, epilog in (
    (push.push, push.EPILOG),
    (show.ls, show.EPILOG),
    (show.failed, show.FAILED_EPILOG),
    (show.peek, show.PEEK_EPILOG),
    (show.show, show.SHOW_EPILOG),
    (show.stats, show.STATS_EPILOG),
    (cost.cost, cost.EPILOG),
    *((getattr(change, name), epilog) for name, epilog in change.EPILOGS.items()),
):
    app.command(epilog=epilog)(command)
