"""One value as the bytes of a field, and back, for each kind of column.

A value is spelt in one way only:

    string      the text, escaped
    integer     decimal, of 64 bits
    number      the shortest decimal that reads back equal
    boolean     true, false
    date        2026-03-01
    datetime    2026-03-01T12:00:00.000000Z, always in UTC
    object, array, any    compact JSON, which has escapes of its own
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, get_args

import msgspec

from limpet import records
from limpet.errors import Invalid
from limpet.index.text import ESCAPES, escape, unescape

Kind = Literal["string", "integer", "number", "boolean", "date", "datetime", "object", "array", "any"]

KINDS: tuple[Kind, ...] = get_args(Kind)
JSON_KINDS: tuple[Kind, ...] = ("object", "array", "any")
INTEGER_END = 1 << 63
SHOWN_MAX = 40


def _at_most(digits: bytes) -> bytes:
    """A pattern for the numbers of as many digits, none of them greater."""
    below = [
        digits[:at] + b"[0-%d]" % (digit - 1) + b"[0-9]{%d}" % (len(digits) - 1 - at)
        for at, digit in enumerate(map(int, digits.decode()))
        if digit
    ]
    return b"(?!0)(?:" + b"|".join([*below, digits]) + b")"


def _fraction_at_most(digits: bytes) -> bytes:
    """A pattern for the fractions that are not greater, of as many digits or fewer, or smaller."""
    below = [
        digits[:at] + b"[0-%d][0-9]*+" % (digit - 1) for at, digit in enumerate(map(int, digits.decode())) if digit
    ]
    equal = [digits[:at] for at in range(len(digits), 0, -1)]
    return b"(?:" + b"|".join([*below, *equal]) + b")"


_DECIMALS = rb"(?:\.[0-9]++)?"
_NUMBER = (
    rb"-?(?:"
    rb"[0-9]{1,308}" + _DECIMALS + b"|"
    rb"[0-9]{1,20}" + _DECIMALS + rb"e(?:-[0-9]{1,5}|\+?(?:[0-9]{1,2}|1[0-9]{2}|2[0-7][0-9]))|"
    rb"[0-9]" + _DECIMALS + rb"e\+?(?:2[89][0-9]|30[0-7])|"
    rb"1(?:\." + _fraction_at_most(b"7976931348623157") + rb")?e\+?308"
    rb")"
)
"""Whatever looks so is finite."""

_TIMES = msgspec.json.Encoder()
_ZONE = attrgetter("tzinfo")
_STAMP_CHARS = len("2026-03-01T12:00:00.000000Z")
_SAFE = rb"[^\x00-\x1f\x7f\\]*+"
_ESCAPES = b"|".join(re.escape(escaped.encode()) for escaped in ESCAPES.values())
_JSON = rb"[^\x00-\x1f\x7f]*+"
_LEAP_YEAR = rb"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    rb"(?!0000)(?:[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    rb"|(?:0[13578]|1[02])-31)|" + _LEAP_YEAR + rb"-02-29)"
)

PATTERNS: Mapping[Kind, bytes] = MappingProxyType(
    {
        "string": _SAFE + b"(?:(?:" + _ESCAPES + b")" + _SAFE + b")*+",
        "integer": rb"0|-?(?:[1-9][0-9]{0,17}|" + _at_most(b"%d" % (INTEGER_END - 1)) + b")|-%d" % INTEGER_END,
        "number": _NUMBER,
        "boolean": rb"true|false",
        "date": _DATE,
        "datetime": _DATE + rb"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{6}Z",
        "object": rb"\{" + _JSON,
        "array": rb"\[" + _JSON,
        "any": _JSON,
    }
)
"""What the bytes of a field look like, but for null. What looks so can be read, but JSON must be parsed to know."""


def shown(value: Any) -> str:
    """A value of any size and type in a few words, for an error of one line."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def plain(value: Any) -> Any:
    """What msgspec makes of an enum, UUID, decimal, dataclass and so on: values that JSON has.   Raises: TypeError."""
    if isinstance(value, str):
        return str.__str__(value)
    return msgspec.to_builtins(value, str_keys=True, order="deterministic")


def stamp_text(at: datetime) -> str:
    """A time as it is written: UTC, microseconds, always as many characters, so that it sorts."""
    at = at if at.tzinfo is UTC else at.astimezone(UTC)
    quoted = _TIMES.encode(at).decode()
    return quoted[1:-1] if at.microsecond else f"{quoted[1:-2]}.000000Z"


def all_in_64_bits(values: Sequence[Any]) -> bool:
    """Whether all of them are integers that a column can hold."""
    return {*map(type, values)} == {int} and min(values) >= -INTEGER_END and max(values) < INTEGER_END


def all_in_utc(values: Sequence[Any]) -> bool:
    """Whether all of them are datetimes in UTC, so that they can be compared and written without a look at each."""
    return {*map(type, values)} == {datetime} and {*map(_ZONE, values)} == {UTC}


def stamp_texts(times: Sequence[datetime]) -> list[str]:
    """`stamp_text` of times that are all in UTC, for a tenth of the price."""
    texts = _TIMES.encode(times).decode()[2:-2].split('","')
    return texts if {*map(len, texts)} == {_STAMP_CHARS} else [stamp_text(at) for at in times]


def stamp_time(text: str) -> datetime:
    """The time behind a stamp.   Raises: ValueError."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return at if at.tzinfo is UTC else at.astimezone(UTC)


Write = Callable[[Any], bytes]
Read = Callable[[str], Any]


_TURNED: Mapping[Kind, type] = {"string": str, "integer": int, "object": dict, "array": list}


def _other(kind: Kind, value: Any) -> bytes:
    """A value that is not of the kind's own type: turned into one, or refused."""
    with suppress(TypeError):
        turned = plain(value)
        if type(turned) is not type(value) and type(turned) is _TURNED.get(kind):
            return _WRITERS[kind](turned)
    raise Invalid(f"expected {kind}, got {type(value).__name__} {shown(value)}")


def _string(value: Any) -> bytes:
    return escape(value) if type(value) is str else _other("string", value)


def _integer(value: Any) -> bytes:
    if type(value) is not int:
        return _other("integer", value)
    if not -INTEGER_END <= value < INTEGER_END:
        raise Invalid(f"expected integer of 64 bits, got {shown(value)}", hint="keep such a number as a string")
    return b"%d" % value


def _number(value: Any) -> bytes:
    if type(value) is int:
        return repr(_exact(value)).encode()
    if not isinstance(value, float):
        return _other("number", value)
    if not math.isfinite(value):
        raise Invalid(f"expected number, got {value!r}, which is not finite", hint="leave it out (null)")
    return float.__repr__(value).encode()


def _exact(value: int) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if number != value:
        raise Invalid(
            f"expected number, got {shown(value)}, which is not exact as one", hint="use an integer column, or a string"
        )
    return number


def _boolean(value: Any) -> bytes:
    if type(value) is not bool:
        return _other("boolean", value)
    return b"true" if value else b"false"


def _date(value: Any) -> bytes:
    if type(value) is not date:
        raise Invalid(f"expected date, got {type(value).__name__} {shown(value)}")
    return value.isoformat().encode()


def _datetime(value: Any) -> bytes:
    if not isinstance(value, datetime):
        raise Invalid(f"expected datetime, got {type(value).__name__} {shown(value)}")
    if value.utcoffset() is None:
        raise Invalid(
            f"expected datetime with a time zone, got {value}",
            hint="make it aware: datetime.now(UTC), or .replace(tzinfo=UTC)",
        )
    try:
        return stamp_text(value).encode()
    except OverflowError:
        raise Invalid(f"expected datetime, got {value}, which is no year from 1 to 9999 in UTC") from None


def _object(value: Any) -> bytes:
    return _any(value) if isinstance(value, dict) else _other("object", value)


def _array(value: Any) -> bytes:
    return _any(value) if isinstance(value, (list, tuple)) else _other("array", value)


def _any(value: Any) -> bytes:
    try:
        return records.plain_bytes(value, what="the value").replace(b"\x7f", b"\\u007f")
    except Invalid as error:
        raise Invalid(str(error), hint="a column of JSON holds JSON: write a time as text, and so on") from None


_WRITERS: Mapping[Kind, Write] = {
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


def writer(kind: Kind) -> Write:
    """How a value that is not None becomes the bytes of a field.

    Other types that msgspec can turn into one of the kind (enums, UUIDs, decimals, nested structs) are turned.
    The function raises: Invalid, saying what was expected and what came.
    """
    return _WRITERS[kind]


def _read_string(text: str) -> str:
    return unescape(text.encode()).decode() if "\\" in text else text


def _read_number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _read_boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


def _read_datetime(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is not UTC:
        raise ValueError
    return at


def _read_json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise ValueError from None


_READERS: Mapping[Kind, Read] = {
    "string": _read_string,
    "integer": int,
    "number": _read_number,
    "boolean": _read_boolean,
    "date": date.fromisoformat,
    "datetime": _read_datetime,
    "object": _read_json,
    "array": _read_json,
    "any": _read_json,
}


def reader(kind: Kind) -> Read:
    """How the text of a field that is not null becomes a value.   The function raises: ValueError, Corrupt."""
    return _READERS[kind]
