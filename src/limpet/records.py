"""Typed, strict JSON: what Limpet writes, and how it reads it back.

Every stored byte is hostile. Bytes are capped before they are parsed; types and bounds are checked while they are
parsed; a failure is `Corrupt` for what the store holds and `Invalid` for what a user hands in (F23, F32). Unknown
fields are kept out, not refused: a newer version of Limpet may have added them.

The field types below (`Count`, `Seconds`, `Instant`, `Name`, ...) carry their bounds. tests/test_stored.py walks every
stored struct and refuses one with a number, text, collection or time that has none.
"""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec

from limpet.errors import Corrupt, Invalid
from limpet.runtime import ProcessMutex

T = TypeVar("T")

RECORD_BYTES_MAX = 1 << 20
DEPTH_MAX = 64
INTEGER_MAX = (1 << 53) - 1
"""The largest integer that every JSON reader keeps exactly."""
SECONDS_MAX = 10 * 366 * 86400.0
NAME_MAX = 1024
TEXT_MAX = 1 << 16
ERROR_MAX = 200

Count = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=SECONDS_MAX)]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with a zone. `decode` also refuses years outside `YEARS`, so that sums with `Seconds` never overflow."""
Name = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
Digest = Annotated[str, msgspec.Meta(min_length=64, max_length=64)]

YEARS = range(1970, 2500)

_SURROGATE = re.compile(r"[\ud800-\udfff]")

_encoder = msgspec.json.Encoder()


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_building = ProcessMutex()


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a type, made once.

    msgspec finds out about a type when it is first used. A second thread that comes meanwhile sees it half known, and
    the process dies. So whoever decodes or converts to a type has its decoder made first, one at a time.
    """
    found = _decoders.get(kind)
    if found is None:
        with _building:
            found = _decoders.get(kind) or msgspec.json.Decoder(kind, strict=True)
            _decoders[kind] = found
    return found


def converted(value: Any, kind: type[T], *, str_keys: bool = False) -> T:
    """Plain values as a `kind`.   Raises: msgspec.ValidationError."""
    decoder(kind)
    return msgspec.convert(value, kind, str_keys=str_keys)


def encode(value: Any) -> bytes:
    """Compact UTF-8 JSON of a struct or a plain value."""
    return _encoder.encode(value)


def to_fields(record: msgspec.Struct) -> dict[str, Any]:
    """The record as a dict of JSON-ready fields."""
    fields = msgspec.to_builtins(record)
    assert isinstance(fields, dict)
    return fields


def decode(data: bytes, kind: type[T], *, what: str, size_max: int = RECORD_BYTES_MAX) -> T:
    """`data` as a `kind`.

    Raises: Corrupt, naming `what` and the first thing that is wrong; nothing else, whatever the bytes are.
    """
    if len(data) > size_max:
        raise Corrupt(f"{what} has {len(data)} bytes, more than the {size_max} that a record may have")
    try:
        value = decoder(kind).decode(data)
        _check_times(value)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else _short(str(error))
        raise Corrupt(f"{what} is not a valid {getattr(kind, '__name__', kind)}: {reason}") from None
    return value


def _check_times(value: Any) -> None:
    """Refuse a time that would overflow when it is added to, subtracted from, or moved to another zone."""
    if isinstance(value, msgspec.Struct):
        for name in _times_of(type(value)):
            _check_times(getattr(value, name))
    elif isinstance(value, datetime) and value.year not in YEARS:
        raise ValueError(f"the year {value.year} is out of range")
    elif isinstance(value, list | tuple):
        for item in value:
            _check_times(item)
    elif isinstance(value, dict):
        for item in value.values():
            _check_times(item)


_holders: dict[type[msgspec.Struct], tuple[str, ...]] = {}


def _times_of(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a struct that hold a time, or another struct that does."""
    found = _holders.get(kind)
    if found is None:
        fields = msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined]
        found = tuple(field.name for field in fields if _holds_time(field.type, ()))
        _holders[kind] = found
    return found


def _holds_time(info: msgspec.inspect.Type, inside: tuple[type, ...]) -> bool:
    match info:
        case msgspec.inspect.DateTimeType():
            return True
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            return cls not in inside and any(_holds_time(field.type, (*inside, cls)) for field in fields)
        case msgspec.inspect.UnionType(types=types):
            return any(_holds_time(each, inside) for each in types)
        case msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item):
            return _holds_time(item, inside)
        case msgspec.inspect.TupleType(item_types=items):
            return any(_holds_time(each, inside) for each in items)
        case msgspec.inspect.DictType(value_type=item):
            return _holds_time(item, inside)
        case _:
            return False


def _short(text: str) -> str:
    """An error's text on one line, in printable characters: it may quote what was stored."""
    line = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[: ERROR_MAX + 1])
    return line if len(line) <= ERROR_MAX else f"{line[:ERROR_MAX]}..."


def plain(value: Any, *, what: str) -> Any:
    """`value`, if it is JSON that reads back equal: str keys, finite numbers, at most 64 levels.

    Raises: Invalid, naming the place.
    """
    plain_bytes(value, what=what)
    return value


def plain_bytes(value: Any, *, what: str) -> bytes:
    """`value` as JSON, by the rule of `plain`.   Raises: Invalid, naming the place."""
    _check_plain(value, what, 0)
    try:
        return encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"{what} cannot be written as JSON: {error}") from None


def _check_plain(value: Any, where: str, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise Invalid(f"{where.split('[')[0]} is nested deeper than {DEPTH_MAX} levels")
    match value:
        case None | bool() | int():
            return
        case str():
            if not value.isascii() and _SURROGATE.search(value):
                raise Invalid(f"{where} is not valid Unicode")
        case float():
            if not math.isfinite(value):
                raise Invalid(f"{where} is {value}, which JSON cannot hold")
        case list() | tuple():
            for i, item in enumerate(value):
                _check_plain(item, f"{where}[{i}]", depth + 1)
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise Invalid(f"{where} has the key {key!r}; JSON keys are strings")
                _check_plain(item, f"{where}[{key!r}]", depth + 1)
        case _:
            raise Invalid(f"{where} is a {type(value).__name__}, which JSON cannot hold")


def parse_json(text: str | bytes, *, what: str, bytes_max: int = RECORD_BYTES_MAX) -> Any:
    """A user's JSON text, strictly: no NaN, no duplicate keys, capped in bytes and depth.

    Raises: Invalid.
    """
    size = len(text) if isinstance(text, bytes) else len(text.encode(errors="surrogatepass"))
    if size > bytes_max:
        raise Invalid(f"{what} has more than {bytes_max} bytes")
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{what} is not valid JSON: {error}") from None
    return plain(value, what=what)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("an object has the same key twice")
    return fields


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
