"""Typed, strict JSON: what Limpet writes, and how it reads it back.

Bytes are capped before they are parsed, types are checked while they are parsed, and a failure is `Corrupt` for what
the store holds and `Invalid` for what a user hands in (F23, F32). Unknown fields are kept out, not refused: a newer
version of Limpet may have added them.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar

import msgspec

from limpet.errors import Corrupt, Invalid
from limpet.runtime import ProcessMutex

__all__ = [
    "RECORD_BYTES_MAX",
    "converted",
    "decode",
    "decoder",
    "encode",
    "parse_json",
    "plain",
    "plain_bytes",
    "to_fields",
]

T = TypeVar("T")

RECORD_BYTES_MAX = 1 << 20
DEPTH_MAX = 64

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


def decode(data: bytes, kind: type[T], *, what: str) -> T:
    """`data` as a `kind`.

    Raises: Corrupt, naming `what` and the first thing that is wrong.
    """
    if len(data) > RECORD_BYTES_MAX:
        raise Corrupt(f"{what} has {len(data)} bytes, more than the {RECORD_BYTES_MAX} that a record may have")
    try:
        return decoder(kind).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"{what} is not a valid {kind.__name__}: {error or 'nested too deeply'}") from None


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
