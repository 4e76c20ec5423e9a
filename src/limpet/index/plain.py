"""Plain record files, as seed 001 lays them out: US-delimited text that some other program wrote."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from limpet.errors import Invalid
from limpet.index.fields import UPDATED_AT, Field
from limpet.index.formats.convert import from_text
from limpet.index.schema import Schema
from limpet.keys import encoded

ENDING = ".usv"
UNIT, RECORD = "\x1f", "\x1e"


def rows(data: bytes, schema: Schema) -> list[list[str]]:
    """The fields of each record. Records end with U+001E, or without any with LF; the last one need not.

    Nothing is escaped in such a file: a backslash is a backslash.
    Raises: Invalid for what is not UTF-8, or begins with a header.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid(f"it is not UTF-8: {error.reason} at byte {error.start}") from None
    if RECORD in text:
        records = [part.removeprefix("\r").removeprefix("\n") for part in text.split(RECORD)]
    else:
        records = [part.removesuffix("\r") for part in text.split("\n")]
    if not records[-1]:
        records.pop()
    found = [record.split(UNIT) for record in records]
    if not found:
        return []
    names = [field.name for field in schema.columns]
    if len(found[0]) > 1 and found[0] == names[: len(found[0])]:
        raise Invalid("it begins with a header", hint="remove that line: the columns are those of the index, in order")
    return found


def values_of(fields: Sequence[str], schema: Schema, *, where: str) -> dict[str, Any]:
    """The values of a record.

    Fields that are left out at the end, or empty, are null; a string that must be there may be empty.
    Raises: Invalid, naming record and field.
    """
    columns = schema.columns
    if len(fields) > len(columns):
        names = ", ".join(field.name for field in columns)
        raise Invalid(f"{where} has {len(fields)} fields, and the index has {len(columns)}", hint=f"they are {names}")
    values: dict[str, Any] = {}
    for field, text in zip(columns, fields, strict=False):
        try:
            values[field.name] = _value(field, text)
        except Invalid as error:
            raise Invalid(f"{where}: field {field.name!r}: {error}", hint=error.hint) from None
    return values


def _value(field: Field, text: str) -> Any:
    if not text:
        return "" if field.required and field.type == "string" else None
    if field.type == "datetime" or field.name == UPDATED_AT:
        with suppress(ValueError):
            at = datetime.fromisoformat(text.strip())
            if at.tzinfo is None:
                return at.replace(tzinfo=UTC)  # a program that leaves the zone out writes UTC, as the seed's does
    return from_text(field.type)(text)


def is_named(name: str, key: str) -> bool:
    """Whether a file of that name, without its ending, is that of the key: as it is, or percent-encoded."""
    return name in (key, encoded(key)) or unquote(name) == key
