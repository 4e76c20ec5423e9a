"""`limpet index`: records by key."""

from __future__ import annotations

from limpet.cli.index import maintain, records
from limpet.cli.parse import group, lines

__all__ = ["app"]

app = group(
    "index",
    "Records",
    records.create,
    records.ls,
    records.schema,
    records.stats,
    records.put,
    records.get,
    records.delete,
    records.sql,
    "Files",
    records.import_,
    records.export,
    "Keep",
    maintain.compile,
    maintain.publish,
    maintain.verify,
    maintain.adopt,
    maintain.reshard,
    maintain.purge,
    maintain.drop,
    help="Keep records by key: import, look up, query, compile, export.",
    epilog=lines(
        "Example: a CSV file into a new index; fold it into shards; look one up",
        "$ limpet index import sites sites.csv --create --key domain -u s3://acme/prod",
        "$ limpet index compile sites -u s3://acme/prod",
        "$ limpet index get sites a.com -u s3://acme/prod",
    ),
)
