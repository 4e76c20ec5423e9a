"""Iceberg's metadata: the only package that knows PyIceberg."""

from limpet.catalog.iceberg.updates import (
    TableCommit,
    apply,
    check_table,
    check_view,
    create,
    encoded,
    files_of,
    listed,
    new_table,
    parse_commit,
    parse_table,
    table_of,
)

__all__ = [
    "TableCommit",
    "apply",
    "check_table",
    "check_view",
    "create",
    "encoded",
    "files_of",
    "listed",
    "new_table",
    "parse_commit",
    "parse_table",
    "table_of",
]
