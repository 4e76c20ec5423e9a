"""Lines of an index as Arrow columns, typed by its schema. Objects, arrays and `any` are JSON text."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from limpet import records
from limpet.errors import Unsupported
from limpet.index.schema import Schema
from limpet.index.values import JSON_KINDS, Kind

__all__ = ["rows_of"]


def rows_of(schema: Schema, lines: Sequence[bytes]) -> Any:
    """The records of those lines as a `pyarrow.Table`; none of them may be a tombstone.

    Raises: Corrupt for a line that is no record; Unsupported without pyarrow.
    """
    try:
        pa = import_module("pyarrow")
    except ImportError:
        raise Unsupported("Arrow needs pyarrow", hint="pip install 'limpet[sql]'") from None
    types = _types(pa)
    rows = [schema.values(line) for line in lines]
    columns = []
    for field in schema.columns:
        values = [row[field.name] for row in rows]
        if field.type in JSON_KINDS:
            values = [None if value is None else records.encode(value).decode() for value in values]
        columns.append(pa.array(values, types[field.type]))
    fields = [pa.field(field.name, types[field.type], field.name != schema.key) for field in schema.columns]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _types(pa: Any) -> dict[Kind, Any]:
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
