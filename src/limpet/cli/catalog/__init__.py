"""`limpet catalog`: the table catalog, its history, and what operators do to it."""

from __future__ import annotations

import typer

from limpet.cli.catalog import change, inspect
from limpet.cli.output import lines

__all__ = ["app"]

app = typer.Typer(
    name="catalog",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look at the table catalog and its history; put back what was dropped. `limpet serve` serves it.",
    epilog=lines(
        "Example: what was done last; then what there was before it",
        "$ limpet catalog log -u s3://acme/prod",
        "$ limpet catalog show --at 41 -u s3://acme/prod",
    ),
)
app.command(epilog=inspect.LOG_EPILOG)(inspect.log)
app.command(epilog=inspect.SHOW_EPILOG)(inspect.show)
app.command(epilog=inspect.VERIFY_EPILOG)(inspect.verify)
app.command(epilog=change.UNDROP_EPILOG)(change.undrop)
app.command(epilog=change.GC_EPILOG)(change.gc)
app.add_typer(change.quarantine)
