"""Iceberg's metadata: the only package that knows PyIceberg."""

from limpet.catalog.iceberg.tables import (
    Commit,
    apply,
    check_view,
    create,
    files_of,
    new_table,
    parse_commit,
    parse_table,
    table_of,
)

__all__ = [
    "Commit",
    "apply",
    "check_view",
    "create",
    "files_of",
    "new_table",
    "parse_commit",
    "parse_table",
    "table_of",
]
