"""One value as text outside an index, and back: the same words in CSV, in strict USV and in JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any

from limpet import records
from limpet.errors import Invalid
from limpet.index.schema import LINE_BYTES_MAX
from limpet.index.values import JSON_KINDS, Kind, shown, stamp_text, stamp_time

_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_ZONE_HINT = "say the time zone: 2026-11-05T12:00:00Z, or +01:00 at the end"


def _wrong(kind: Kind, text: str) -> Invalid:
    return Invalid(f"expected {kind}, got {shown(text)}")


def _integer(text: str) -> Any:
    if _INTEGER.fullmatch(text) is None:
        raise _wrong("integer", text)
    return int(text)


def _number(text: str) -> Any:
    if _NUMBER.fullmatch(text) is None:
        raise _wrong("number", text)
    # a whole number stays one, so that one which no float can hold is refused and not rounded
    return int(text) if _INTEGER.fullmatch(text) else float(text)


def _boolean(text: str) -> Any:
    found = _BOOLEANS.get(text.lower())
    if found is None:
        raise _wrong("boolean", text)
    return found


def _date(text: str) -> Any:
    try:
        if _DATE.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise _wrong("date", text)


def _datetime(text: str) -> Any:
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return stamp_time(text)
    except (ValueError, OverflowError):
        raise _wrong("datetime", text) from None
    raise Invalid(f"expected datetime with a time zone, got {shown(text)}", hint=_ZONE_HINT)


def _json(text: str) -> Any:
    return records.parse_json(text, what="the JSON", bytes_max=LINE_BYTES_MAX)


_READERS: Mapping[Kind, Callable[[str], Any]] = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "date": _date,
    "datetime": _datetime,
    "object": _json,
    "array": _json,
    "any": _json,
}


def from_text(kind: Kind) -> Callable[[str], Any]:
    """How text becomes a value. A string is what it is; elsewhere blanks around do not count, and nothing is null.

    Objects, arrays and `any` are JSON. The function raises: Invalid.
    """
    read = _READERS.get(kind)
    if read is None:
        return str

    def stripped(text: str) -> Any:
        text = text.strip()
        return read(text) if text else None

    return stripped


def from_json(kind: Kind) -> Callable[[Any], Any]:
    """How a JSON value becomes a value: dates and times are strings there, all else is what it is."""
    if kind not in ("date", "datetime"):
        return lambda value: value
    read = _READERS[kind]
    return lambda value: read(value) if isinstance(value, str) else value


def from_arrow(kind: Kind) -> Callable[[Any], Any]:
    """How a value of a Parquet file becomes one of a column: JSON may be text there."""
    if kind not in JSON_KINDS:
        return from_json(kind)
    return lambda value: _json(value) if isinstance(value, str) else value


def _plain_json(value: Any) -> str:
    return records.encode(value).decode()


_WRITERS: Mapping[Kind, Callable[[Any], str]] = {
    "string": str,
    "integer": str,
    "number": repr,
    "boolean": lambda value: "true" if value else "false",
    "date": lambda value: str(value.isoformat()),
    "datetime": stamp_text,
    "object": _plain_json,
    "array": _plain_json,
    "any": _plain_json,
}


def to_text(kind: Kind) -> Callable[[Any], str]:
    """How a value that is not None becomes text that `from_text` reads back."""
    return _WRITERS[kind]
