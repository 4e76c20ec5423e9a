"""`limpet index`: records by key."""

from __future__ import annotations

from limpet.cli import group, lines
from limpet.cli.index import compiling, files, maintain, records, schema

__all__ = ["app"]

app = group(
    "index",
    schema,
    records,
    files,
    compiling,
    maintain,
    help="Keep records by key: import, look up, query, compile, export.",
    epilog=lines(
        "Example: a CSV file into a new index; fold it into shards; look one up",
        "$ limpet index import sites sites.csv --create --key domain -u s3://acme/prod",
        "$ limpet index compile sites -u s3://acme/prod",
        "$ limpet index get sites a.com -u s3://acme/prod",
    ),
)
