"""Typed, strict JSON: how Limpet encodes and decodes what it stores.

Stored bytes are not trusted. Their number is limited before they are parsed; types and bounds are checked by the
parser. A failure is `Corrupt` for stored bytes and `Invalid` for a user's input (F23, F32). Unknown fields are ignored:
a newer version of Limpet may have added them.

The field types below (`Count`, `Seconds`, `Instant`, `Name`, ...) include their bounds. tests/test_stored.py checks
every stored struct, and fails for a number, text, collection or time without bounds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime
from functools import cache, partial
from typing import Annotated, Any, TypeVar

import msgspec

from limpet.kernel.errors import Corrupt, Invalid
from limpet.kernel.models import built_part, plain_part
from limpet.kernel.runtime import ProcessMutex, sha256
from limpet.kernel.user_code import ended
from limpet.kernel.wording import an, many

T = TypeVar("T")

RECORD_BYTES_MAX = 1 << 20
DEPTH_MAX = 64
INTEGER_MAX = (1 << 53) - 1
"""The largest integer that every JSON parser reads exactly."""
SECONDS_MAX = 10 * 366 * 86400.0
NAME_MAX = 1024
TEXT_MAX = 1 << 16
ERROR_MAX = 200
OWN_FIELDS = frozenset(("schema", "write_id"))
"""Fields that every JSON object of Limpet has. One of another program is unlikely to have both."""

Count = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=INTEGER_MAX)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=SECONDS_MAX)]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with a zone. `decode` also refuses years outside `YEARS`, so that sums with `Seconds` never overflow."""
Name = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
Digest = Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
"""SHA-256 in hexadecimal: see `digest_of`."""

_MOMENT = r"(19[7-9]\d|2[0-4]\d\d)-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(\+00:00|Z)"
Moment = Annotated[str, msgspec.Meta(pattern=f"^{_MOMENT}$", max_length=32)]
"""A time in UTC as text that sorts. `moment` reads it."""
MomentOrNone = Annotated[str, msgspec.Meta(pattern=f"^({_MOMENT})?$", max_length=32)]
"""The same; an empty text if there is none yet."""

YEARS = range(1970, 2500)

_SURROGATE = re.compile(r"[\ud800-\udfff]")


_encoder = msgspec.json.Encoder(enc_hook=plain_part)
_deterministic_encoder = msgspec.json.Encoder(enc_hook=plain_part, order="deterministic")
_stable_encoder = msgspec.json.Encoder(
    enc_hook=lambda value: str(value) if isinstance(value, str) else None, order="deterministic"
)


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_building = ProcessMutex()


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a type, created once.

    msgspec analyses a type when it is first used. If a second thread uses the type meanwhile, the process crashes. So
    every caller that decodes or converts to a type first gets its decoder here, under a mutex.
    """
    found = _decoders.get(kind)
    if found is None:
        with _building:
            found = _decoders.get(kind) or msgspec.json.Decoder(kind, strict=True, dec_hook=built_part)
            _decoders[kind] = found
    return found


def converted(value: Any, kind: type[T], *, str_keys: bool = False) -> T:
    """Plain values as a `kind`.   Raises: msgspec.ValidationError."""
    decoder(kind)
    return msgspec.convert(value, kind, str_keys=str_keys, dec_hook=built_part)


encode = _encoder.encode
"""Compact UTF-8 JSON of a struct or a plain value."""


builtins = partial(msgspec.to_builtins, str_keys=True, enc_hook=plain_part)
"""A value as the types of JSON: dicts, lists, texts, numbers.   Raises: TypeError, ValueError."""


def json_text(value: Any) -> str:
    """A value as JSON text. Equal values give equal texts."""
    return _deterministic_encoder.encode(value).decode()


def stable_bytes(value: Any) -> bytes:
    """A value as bytes that are equal in every process. What has no stable form, such as a client, counts as `null`."""
    if isinstance(value, bytes | bytearray):
        return b"b" + value  # unlike any JSON
    encoded = ended(_stable_encoder.encode, value)
    return encoded.value if encoded.error is None else b"null"


def digest_of(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return sha256(data).hex()


def moment(text: str) -> datetime:
    """The time of a stored `Moment`.   Raises: Corrupt."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise Corrupt(f"{text[:40]!r} is no time with a zone")
    return at


def decode(data: bytes, kind: type[T], *, what: str, size_max: int = RECORD_BYTES_MAX) -> T:
    """Decode `data` as a `kind`.

    Raises: Corrupt, with `what` and the first error; nothing else, whatever the bytes are.
    """
    if len(data) > size_max:
        raise Corrupt(f"{what} has {many(len(data), 'byte')}, more than the {size_max:,} that a record may have")
    decode_kind, times = _readers.get(kind) or _reader(kind)
    try:
        value: T = decode_kind(data)
        if times is None:
            _check_times(value)
        else:
            for name in times:
                at = getattr(value, name)
                if at is not None:
                    _check_times(at)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else printable(str(error)[:ERROR_MAX])
        raise Corrupt(f"{what} is not a valid {getattr(kind, '__name__', kind)}: {reason}") from None
    return value


_readers: dict[Any, tuple[Callable[[bytes], Any], tuple[str, ...] | None]] = {}  # faster than `cache`


def _reader(kind: Any) -> tuple[Callable[[bytes], Any], tuple[str, ...] | None]:
    """How a type is decoded, and the fields of a struct that hold times; None for any other type."""
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    found = _readers[kind] = (decoder(kind).decode, _times_of(kind) if is_struct else None)
    return found


def _check_times(value: Any) -> None:
    """Refuse times so early or late that adding or subtracting seconds, or another time zone, could overflow."""
    if isinstance(value, datetime):
        if value.year not in YEARS:
            raise ValueError(f"the year {value.year} is out of range")
    elif isinstance(value, msgspec.Struct):
        for name in _times_of(type(value)):
            _check_times(getattr(value, name))
    elif isinstance(value, list | tuple):
        for item in value:
            _check_times(item)
    elif isinstance(value, dict):
        for item in value.values():
            _check_times(item)


@cache
def _times_of(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a struct that contain a time, directly or in another struct."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return tuple(field.name for field in info.fields if _holds_time(field.type, ()))


def _holds_time(info: msgspec.inspect.Type, inside: tuple[type, ...]) -> bool:
    i = msgspec.inspect
    match info:
        case i.DateTimeType():
            return True
        case i.StructType(cls=cls, fields=fields):
            return cls not in inside and any(_holds_time(field.type, (*inside, cls)) for field in fields)
        case i.UnionType(types=types) | i.TupleType(item_types=types):
            return any(_holds_time(type_, inside) for type_ in types)
        case i.ListType(item_type=item) | i.VarTupleType(item_type=item) | i.DictType(value_type=item):
            return _holds_time(item, inside)
    return False


def printable(text: str) -> str:
    """`text` on one line, safe for a terminal: characters that do not print are escaped as in a Python string.

    These are control characters, line ends, terminal escapes, and marks that change the direction of text (F34).
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def plain(value: Any, *, what: str) -> Any:
    """`value`, if it is JSON that reads back equal: str keys, finite numbers, at most 64 levels.   Raises: Invalid."""
    plain_bytes(value, what=what)
    return value


def plain_bytes(value: Any, *, what: str) -> bytes:
    """`value` as JSON, with the checks of `plain`.   Raises: Invalid, with the path of the value that is wrong."""
    _check_plain(value, what, 0)
    try:
        return encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"{what} cannot be written as JSON: {error}") from None


_ALWAYS_PLAIN = frozenset((type(None), bool, int))


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
                if depth < DEPTH_MAX and (type(item) in _ALWAYS_PLAIN or (type(item) is str and item.isascii())):
                    continue  # true for most values; to build a path for each would take most of the time
                _check_plain(item, f"{where}[{key!r}]", depth + 1)
        case _:
            raise Invalid(f"{where} is {an(type(value).__name__)}, which JSON cannot hold")


def parse_json(text: str | bytes, *, what: str, bytes_max: int = RECORD_BYTES_MAX) -> Any:
    """Parse a user's JSON text strictly: no NaN, no duplicate keys, limited bytes and depth.   Raises: Invalid."""
    size = len(text) if isinstance(text, bytes) else len(text.encode(errors="surrogatepass"))
    if size > bytes_max:
        raise Invalid(f"{what} has more than {many(bytes_max, 'byte')}")
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text  # `json` would guess the encoding
        value = _strict_decoder().decode(text)
    except UnicodeDecodeError as error:
        raise Invalid(f"{what} is not UTF-8: byte {error.start + 1} is wrong", hint="JSON is UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{what} is not valid JSON: {error}") from None
    return plain(value, what=what)


def is_foreign(data: bytes) -> bool:
    """Whether the bytes are a JSON object of another program: not empty, and without the fields that all ours have."""
    try:
        value = parse_json(data, what="it")
    except Invalid:
        return False
    return isinstance(value, dict) and bool(value) and not value.keys() & OWN_FIELDS


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("an object has the same key twice")
    return fields


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


@cache
def _strict_decoder() -> Any:
    from json import JSONDecoder  # few processes need it at their start

    return JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
