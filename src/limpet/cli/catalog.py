"""`limpet catalog`: the table catalog, its history, and what operators do to it."""

from __future__ import annotations

import typer

from limpet.cli import catalog_change, catalog_look
from limpet.cli.shared import lines

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
app.command(epilog=catalog_look.LOG_EPILOG)(catalog_look.log)
app.command(epilog=catalog_look.SHOW_EPILOG)(catalog_look.show)
app.command(epilog=catalog_look.VERIFY_EPILOG)(catalog_look.verify)
app.command(epilog=catalog_change.UNDROP_EPILOG)(catalog_change.undrop)
app.command(epilog=catalog_change.GC_EPILOG)(catalog_change.gc)
app.add_typer(catalog_change.quarantine)
