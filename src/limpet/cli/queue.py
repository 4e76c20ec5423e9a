"""`limpet queue`: push tasks, look at them, and put right what went wrong."""

from __future__ import annotations

import typer

from limpet.cli import queue_change, queue_cost, queue_ls, queue_push, queue_show
from limpet.cli.shared import lines

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
app.command(epilog=queue_push.EPILOG)(queue_push.push)
app.command(epilog=queue_ls.EPILOG)(queue_ls.ls)
app.command(epilog=queue_ls.FAILED_EPILOG)(queue_ls.failed)
app.command(epilog=queue_show.PEEK_EPILOG)(queue_show.peek)
app.command(epilog=queue_show.SHOW_EPILOG)(queue_show.show)
app.command(epilog=queue_cost.STATS_EPILOG)(queue_cost.stats)
app.command(epilog=queue_cost.COST_EPILOG)(queue_cost.cost)
app.command(epilog=queue_change.EPILOGS["retry"])(queue_change.retry)
app.command(epilog=queue_change.EPILOGS["cancel"])(queue_change.cancel)
app.command(epilog=queue_change.EPILOGS["pause"])(queue_change.pause)
app.command(epilog=queue_change.EPILOGS["resume"])(queue_change.resume)
app.command(epilog=queue_change.EPILOGS["purge"])(queue_change.purge)
app.command(epilog=queue_change.EPILOGS["sweep"])(queue_change.sweep)
