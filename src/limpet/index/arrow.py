"""Lines of an index as Arrow columns, typed by its schema. Objects, arrays and `any` are JSON text."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from limpet import records
from limpet.errors import Unsupported
from limpet.index.fields import Field
from limpet.index.schema import Schema
from limpet.index.values import JSON_KINDS, Kind


def rows_of(schema: Schema, lines: Sequence[bytes]) -> Any:
    """The records of those lines as a `pyarrow.Table`; none of them may be a tombstone.

    Raises: Corrupt for a line that is no record; Unsupported without pyarrow.
    """
    try:
        pa = import_module("pyarrow")
    except ImportError:
        raise Unsupported("Arrow needs pyarrow", hint="pip install 'limpet[sql]'") from None
    kinds = types(pa)
    rows = [schema.values(line) for line in lines]
    columns = [column(pa, rows, field, kinds[field.type]) for field in schema.columns]
    fields = [pa.field(field.name, kinds[field.type], field.name != schema.key) for field in schema.columns]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def column(pa: Any, rows: Sequence[dict[str, Any]], field: Field, kind: Any) -> Any:
    """One column of those records, as an Arrow array of that type."""
    values = [row[field.name] for row in rows]
    if field.type in JSON_KINDS:
        values = [None if value is None else records.encode(value).decode() for value in values]
    return pa.array(values, kind)


def types(pa: Any) -> dict[Kind, Any]:
    """The Arrow type of each kind of column."""
    text = pa.string()
    return {
        "string": text,
        "integer": pa.int64(),
        "number": pa.float64(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "datetime": pa.timestamp("us", "UTC"),
        "object": text,
        "array": text,
        "any": text,
    }
