"""One value as the bytes of a field, and back, for each kind of column."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any, Literal, get_args

import msgspec

from limpet import records
from limpet.errors import Corrupt, Invalid
from limpet.index.text import escape, unescape

__all__ = ["KINDS", "PATTERNS", "TEXT", "Kind", "reader", "stamp_text", "stamp_time", "writer"]

Kind = Literal["string", "integer", "number", "boolean", "date", "datetime", "object", "array", "any"]

KINDS: tuple[Kind, ...] = get_args(Kind)
INTEGER_END = 1 << 63

_PLAIN = rb"[^\x00-\x1f\x7f\\]*"
TEXT = _PLAIN + rb"(?:\\(?:[\\nrt]|x(?:[01][0-9a-f]|7f))" + _PLAIN + rb")*"
_DATE = rb"[0-9]{4}-[0-9]{2}-[0-9]{2}"

PATTERNS: Mapping[Kind, bytes] = MappingProxyType(
    {
        "string": TEXT,
        "integer": rb"-?[0-9]{1,19}",
        "number": rb"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?",
        "boolean": rb"true|false",
        "date": _DATE,
        "datetime": _DATE + rb"T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z",
        "object": rb"\{" + TEXT,
        "array": rb"\[" + TEXT,
        "any": TEXT,
    }
)
"""What the bytes of a field look like, but for null."""


class _Wrong(Exception):
    """The value is not of the kind."""


def stamp_text(at: datetime) -> str:
    """A time as it is written: UTC, microseconds, always as many characters, so that it sorts."""
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def stamp_time(text: str) -> datetime:
    """The time behind a stamp.   Raises: ValueError."""
    return datetime.fromisoformat(text).astimezone(UTC)


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _Wrong
    return escape(value)


def _integer(value: Any) -> bytes:
    if type(value) is not int:
        raise _Wrong
    if not -INTEGER_END <= value < INTEGER_END:
        raise Invalid(f"{value} does not fit in 64 bits", hint="keep such a number as a string")
    return str(value).encode()


def _number(value: Any) -> bytes:
    if type(value) not in (int, float):
        raise _Wrong
    if not math.isfinite(value):
        raise Invalid(f"{value} is not a finite number", hint="leave it out (null)")
    number = float(value)
    if number != value:
        raise Invalid(f"{value} is not exact as a floating-point number", hint="use an integer column, or a string")
    return repr(number).encode()


def _boolean(value: Any) -> bytes:
    if type(value) is not bool:
        raise _Wrong
    return b"true" if value else b"false"


def _date(value: Any) -> bytes:
    if type(value) is not date:
        raise _Wrong
    return value.isoformat().encode()


def _datetime(value: Any) -> bytes:
    if not isinstance(value, datetime):
        raise _Wrong
    if value.tzinfo is None:
        raise Invalid(f"{value} has no time zone", hint="make it aware: datetime.now(UTC), or .replace(tzinfo=UTC)")
    return stamp_text(value).encode()


def _object(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise _Wrong
    return _any(value)


def _array(value: Any) -> bytes:
    if not isinstance(value, (list, tuple)):
        raise _Wrong
    return _any(value)


def _any(value: Any) -> bytes:
    return escape(records.plain_bytes(value, what="the value").decode())


_WRITERS: Mapping[Kind, Callable[[Any], bytes]] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "date": _date,
    "datetime": _datetime,
    "object": _object,
    "array": _array,
    "any": _any,
}


def writer(kind: Kind) -> Callable[[Any], bytes]:
    """How a value that is not None becomes the bytes of a field.

    Other types that msgspec can turn into one of the kind (enums, UUIDs, decimals, nested structs) are turned.
    The function raises: Invalid, saying what was expected and what came.
    """
    write = _WRITERS[kind]

    def checked(value: Any) -> bytes:
        try:
            return write(value)
        except _Wrong:
            try:
                plain = msgspec.to_builtins(value, builtin_types=(datetime, date))
                if type(plain) is not type(value):
                    return write(plain)
            except (TypeError, _Wrong):
                pass
            shown = repr(value)
            shown = shown if len(shown) <= 40 else shown[:37] + "..."
            raise Invalid(f"expected {kind}, got {type(value).__name__} {shown}") from None

    return checked


def _read_string(field: bytes) -> Any:
    return unescape(field).decode()


def _read_boolean(field: bytes) -> Any:
    if field not in (b"true", b"false"):
        raise ValueError
    return field == b"true"


def _read_json(field: bytes) -> Any:
    return msgspec.json.decode(unescape(field))


_READERS: Mapping[Kind, Callable[[bytes], Any]] = {
    "string": _read_string,
    "integer": int,
    "number": float,
    "boolean": _read_boolean,
    "date": lambda field: date.fromisoformat(field.decode()),
    "datetime": lambda field: stamp_time(field.decode()),
    "object": _read_json,
    "array": _read_json,
    "any": _read_json,
}


def reader(kind: Kind) -> Callable[[bytes], Any]:
    """How the bytes of a field that is not null become a value.   The function raises: Corrupt."""
    read = _READERS[kind]

    def checked(field: bytes) -> Any:
        try:
            return read(field)
        except (ValueError, msgspec.DecodeError):
            raise Corrupt(f"the field {field[:40]!r} is not a valid {kind}") from None

    return checked
