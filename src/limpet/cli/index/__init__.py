"""`limpet index`: records by key."""

from __future__ import annotations

import typer

from limpet.cli.index import compiling, importing, maintain, records, schema
from limpet.cli.output import lines

__all__ = ["app"]

app = typer.Typer(
    name="index",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Keep records by key: import, look up, query, compile, export.",
    epilog=lines(
        "Example: a CSV file into a new index; fold it into shards; look one up",
        "$ limpet index import sites sites.csv --create --key domain -u s3://acme/prod",
        "$ limpet index compile sites -u s3://acme/prod",
        "$ limpet index get sites a.com -u s3://acme/prod",
    ),
)


app.command(epilog=schema.CREATE_EPILOG)(schema.create)


app.command(epilog=schema.LS_EPILOG)(schema.ls)


app.command(epilog=schema.SCHEMA_EPILOG)(schema.schema)


app.command(epilog=records.PUT_EPILOG)(records.put)


app.command(epilog=records.GET_EPILOG)(records.get)


app.command(epilog=records.DELETE_EPILOG)(records.delete)


app.command("import", epilog=importing.EPILOG)(importing.import_)


app.command(epilog=records.EXPORT_EPILOG)(records.export)


app.command(epilog=compiling.PUBLISH_EPILOG)(compiling.publish)


app.command(epilog=compiling.COMPILE_EPILOG)(compiling.compile)


app.command(epilog=records.SQL_EPILOG)(records.sql)


app.command(epilog=schema.STATS_EPILOG)(schema.stats)


app.command(epilog=maintain.VERIFY_EPILOG)(maintain.verify)


app.command(epilog=maintain.ADOPT_EPILOG)(maintain.adopt)


app.command(epilog=maintain.RESHARD_EPILOG)(maintain.reshard)


app.command(epilog=maintain.PURGE_EPILOG)(maintain.purge)
