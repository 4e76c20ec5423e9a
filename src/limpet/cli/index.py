"""`limpet index`: records by key."""

from __future__ import annotations

import typer

from limpet.cli import (
    index_compile,
    index_export,
    index_import,
    index_publish,
    index_records,
    index_repair,
    index_schema,
    index_sql,
    index_stats,
)
from limpet.cli.shared import lines

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
app.command(epilog=index_schema.CREATE_EPILOG)(index_schema.create)
app.command(epilog=index_schema.LS_EPILOG)(index_schema.ls)
app.command(epilog=index_schema.SCHEMA_EPILOG)(index_schema.schema)
app.command(epilog=index_records.PUT_EPILOG)(index_records.put)
app.command(epilog=index_records.GET_EPILOG)(index_records.get)
app.command(epilog=index_records.DELETE_EPILOG)(index_records.delete)
app.command("import", epilog=index_import.EPILOG)(index_import.import_)
app.command(epilog=index_export.EPILOG)(index_export.export)
app.command(epilog=index_publish.EPILOG)(index_publish.publish)
app.command(epilog=index_compile.EPILOG)(index_compile.compile)
app.command(epilog=index_sql.EPILOG)(index_sql.sql)
app.command(epilog=index_stats.EPILOG)(index_stats.stats)
app.command(epilog=index_repair.VERIFY_EPILOG)(index_repair.verify)
app.command(epilog=index_repair.ADOPT_EPILOG)(index_repair.adopt)
app.command(epilog=index_repair.RESHARD_EPILOG)(index_repair.reshard)
app.command(epilog=index_repair.PURGE_EPILOG)(index_repair.purge)
