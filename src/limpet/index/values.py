"""Values of records as text: one pure function a type and direction, and the pattern of each type.

A line holds escaped texts between separators. `WRITERS` makes the text of a value, `READERS` the value of a text, and
`PATTERNS` is the regular expression of all texts that a writer makes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

import msgspec

from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid
from limpet.kernel.wording import many

SEPARATOR = b"\x1f"
END = b"\n"
NULL = b"\\N"
BACKSLASH = ord("\\")
_SHORT = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
ESCAPES = {chr(i): _SHORT.get(chr(i), f"\\x{i:02x}") for i in (92, *range(32), 127)}
"""The escape of each character that a field cannot contain."""
_ESCAPED_AS = {char.encode(): escaped.encode() for char, escaped in ESCAPES.items()}
_MEANT_BY = {escaped: char for char, escaped in _ESCAPED_AS.items()}
_SAFE_BYTES = bytes(byte for byte in range(256) if bytes([byte]) not in _ESCAPED_AS)
_ESCAPE = re.compile(rb"\\(?:x..|.|$)", re.DOTALL)


def escape(text: str) -> bytes:
    """A string as the bytes of one field.   Raises: Invalid for text that is not valid Unicode."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{text[:40]!r} is not valid Unicode") from None
    found = unsafe(data)
    if found:
        for char, escaped in _ESCAPED_AS.items():  # the backslash comes first: the other escapes contain one
            if char in found:
                data = data.replace(char, escaped)
    return data


def unsafe(data: bytes) -> bytes:
    """The bytes of `data` that must be escaped in a field, in order."""
    return data.translate(None, _SAFE_BYTES)


def unescape(field: bytes) -> bytes:
    """The unescaped bytes of a string field that is not null.   Raises: Corrupt for an unknown escape."""
    return _ESCAPE.sub(_undo, field) if BACKSLASH in field else field


def _undo(found: re.Match[bytes]) -> bytes:
    char = _MEANT_BY.get(found[0])
    if char is None:
        raise Corrupt(f"the field {found.string[:40]!r} has an escape that Limpet does not write")
    return char


def lines_of(data: bytes, *, what: str) -> list[bytes]:
    """The lines of an object, without their LF.   Raises: Corrupt if the last one is incomplete."""
    lines = data.split(END)
    if lines.pop():
        raise Corrupt(f"{what} does not end with a line feed: it was cut off")
    return lines


Kind = Literal["string", "integer", "number", "boolean", "date", "datetime", "object", "array", "any"]
KINDS: tuple[Kind, ...] = get_args(Kind)
JSON_KINDS: tuple[Kind, ...] = ("object", "array", "any")
INTEGER_END = 1 << 63
SHOWN_MAX = 40


def _at_most(digits: bytes) -> bytes:
    """A pattern for numbers with the same number of digits that are not greater."""
    below = [
        digits[:at] + b"[0-%d]" % (digit - 1) + b"[0-9]{%d}" % (len(digits) - 1 - at)
        for at, digit in enumerate(map(int, digits.decode()))
        if digit
    ]
    return b"(?!0)(?:" + b"|".join([*below, digits]) + b")"


def _fraction_at_most(digits: bytes) -> bytes:
    """A pattern for fractions that are not greater, with the same number of digits or fewer, or smaller ones."""
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
"""A number that matches is finite."""
_TIMES = msgspec.json.Encoder()
_ZONE = attrgetter("tzinfo")
_STAMP_CHARS = len("2026-03-01T12:00:00.000000Z")
SAFE = rb"[^\x00-\x1f\x7f\\]*+"
ESCAPE_PATTERNS = b"|".join(re.escape(escaped.encode()) for escaped in ESCAPES.values())
_JSON = rb"[^\x00-\x1f\x7f]*+"
_LEAP_YEAR = rb"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    rb"(?!0000)(?:[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    rb"|(?:0[13578]|1[02])-31)|" + _LEAP_YEAR + rb"-02-29)"
)
PATTERNS: Mapping[Kind, bytes] = MappingProxyType(
    {
        "string": SAFE + b"(?:(?:" + ESCAPE_PATTERNS + b")" + SAFE + b")*+",
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
"""The bytes of a field that is not null. A match can be decoded; JSON must be parsed as well."""


def shown(value: Any) -> str:
    """A value of any size and type, shortened for an error message."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {many(value.bit_length(), 'bit')}"
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def builtins_of(value: Any) -> Any:
    """An enum, UUID, decimal, dataclass and so on as JSON types, by msgspec.   Raises: TypeError."""
    if isinstance(value, str):
        return str.__str__(value)
    return msgspec.to_builtins(value, str_keys=True, order="deterministic")


def stamp_text(at: datetime) -> str:
    """A time as text: UTC, microseconds, fixed width, so that it sorts."""
    at = at if at.tzinfo is UTC else at.astimezone(UTC)
    quoted = _TIMES.encode(at).decode()
    return quoted[1:-1] if at.microsecond else f"{quoted[1:-2]}.000000Z"


def all_in_64_bits(values: Sequence[Any]) -> bool:
    """Whether all are integers of at most 64 bits."""
    return {*map(type, values)} == {int} and min(values) >= -INTEGER_END and max(values) < INTEGER_END


def all_in_utc(values: Sequence[Any]) -> bool:
    """Whether all are datetimes in UTC, so that they can be compared and encoded in bulk."""
    return {*map(type, values)} == {datetime} and {*map(_ZONE, values)} == {UTC}


def stamp_texts(times: Sequence[datetime]) -> list[str]:
    """`stamp_text` of times that are all in UTC, ten times as fast."""
    texts = _TIMES.encode(times).decode()[2:-2].split('","')
    return texts if {*map(len, texts)} == {_STAMP_CHARS} else [stamp_text(at) for at in times]


def stamp_time(text: str) -> datetime:
    """The time of a stamp.   Raises: ValueError."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return at if at.tzinfo is UTC else at.astimezone(UTC)


A = TypeVar("A")
Write = Callable[[Any], bytes]
Read = Callable[[str], Any]
_TURNED: Mapping[Kind, type] = {"string": str, "integer": int, "object": dict, "array": list}


def _other(kind: Kind, value: Any) -> bytes:
    """Encode a value of another type than the kind's: converted, or refused."""
    with suppress(TypeError):
        turned = builtins_of(value)
        if type(turned) is not type(value) and type(turned) is _TURNED.get(kind):
            return WRITERS[kind](turned)
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
        raise Invalid(f"expected datetime, got {value}, which is not in the years 1 to 9999 in UTC") from None


def _object(value: Any) -> bytes:
    return _any(value) if isinstance(value, dict) else _other("object", value)


def _array(value: Any) -> bytes:
    return _any(value) if isinstance(value, (list, tuple)) else _other("array", value)


def _any(value: Any) -> bytes:
    try:
        return records.plain_bytes(value, what="the value").replace(b"\x7f", b"\\u007f")
    except Invalid as error:
        raise Invalid(str(error), hint="a column of JSON holds JSON: write a time as text, and so on") from None


WRITERS: Mapping[Kind, Write] = {
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
"""By kind, the encoder of a value that is not None.

Other types that msgspec can convert to the kind (enums, UUIDs, decimals, nested structs) are converted.
The functions raise Invalid, with the expected type and the given value.
"""


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


READERS: Mapping[Kind, Read] = {
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
"""By kind, the decoder of a field that is not null.   The functions raise ValueError or Corrupt."""
