"""What every file format does: give records chunk by chunk, so that memory is bounded, and take them shard by shard."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date, datetime
from typing import IO, Any, Protocol

from limpet import records
from limpet.errors import Invalid
from limpet.index.codec.lines import (
    INTEGER_END,
    JSON_KINDS,
    LINE_BYTES_MAX,
    UPDATED_AT,
    Field,
    Kind,
    Schema,
    shown,
    stamp_text,
    stamp_time,
)

SAMPLE_ROWS = 1000
BOM = b"\xef\xbb\xbf"
Record = tuple[int, bytes]
"""The number of a record in its file, and its bytes."""
Decode = Callable[[Any], dict[str, Any]]
"""From a record as it is in the file to its values by column.   Raises: Invalid."""

Write = Callable[[Sequence[bytes]], None]
"""Writes the records behind some lines of an index."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place between two records of a file: bytes (Parquet: rows) before it, and the number of the last record."""

    position: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class FileHead:
    """What a file says before its first record: the names of its fields, if it has them, and where records begin."""

    names: tuple[str, ...] | None
    start: Mark = Mark()


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """When a chunk is full."""

    records: int = 200_000
    size: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some records as they are in the file, which any process can decode. `end` is where the next chunk begins."""

    names: tuple[str, ...] | None
    rows: Any
    end: Mark


@dataclass(frozen=True, slots=True)
class Sample:
    """The columns that a file seems to have, and its key if the file names it."""

    fields: tuple[Field, ...]
    key: str | None = None


class Records(Protocol):
    """What is left of a file. `mark` is where the record that was returned last ends."""

    @property
    def mark(self) -> Mark:
        """Behind the last record returned."""

    def records(self) -> Iterator[Record]:
        """The records from here on.   Raises: Invalid."""


class Format(Protocol):
    """One way to write records into a file. The methods with a body suit a file of lines without a header."""

    noun: str = "line"
    """What a record is called in messages: a line, a record, a row."""

    seeks: bool = False
    """Whether a file is needed: a stream that cannot go back will not do."""

    def head(self, stream: IO[bytes]) -> FileHead:
        """Read what comes before the records, from the start of the file.   Raises: Invalid."""
        return FileHead(None)

    def total(self, stream: IO[bytes], size: int) -> int:
        """The position at the end of a file of `size` bytes."""
        return size

    def chunks(self, stream: IO[bytes], head: FileHead, after: Mark, limits: ChunkLimits) -> Iterator[Chunk]:
        """The records after a mark. The stream stands behind the head.   Raises: Invalid."""
        if after != head.start:  # else it stands there already, so a stream that cannot go back will do
            stream.seek(after.position)
        source = self.source(stream, after)
        rows: list[Record] = []
        size = 0
        for row in source.records():
            rows.append(row)
            size += len(row[1])
            if len(rows) >= limits.records or size >= limits.size:
                yield Chunk(head.names, rows, source.mark)
                rows, size = [], 0
        if rows:
            yield Chunk(head.names, rows, source.mark)

    def source(self, stream: IO[bytes], after: Mark) -> Records:
        """The records of a stream that stands at a mark."""
        return LineReader(stream, after)

    def rows(self, chunk: Chunk) -> Iterator[tuple[int, Any]]:
        """Each record of a chunk with its number in the file."""
        return iter(chunk.rows)

    def decoder(self, names: tuple[str, ...] | None, schema: Schema) -> Decode:
        """How records become values.   Raises: Invalid for fields that the index does not have."""

    def sample(self, stream: IO[bytes]) -> Sample:
        """The columns of a file, by its own types or by its first 1,000 records.   Raises: Invalid."""

    def aside(self, names: tuple[str, ...] | None, row: Any) -> bytes:
        """A record as it is kept when it cannot be imported. Without a `row`: what such a file begins with."""
        if row is None:
            return b""
        return bytes(row) if row.endswith(b"\n") else row + b"\n"

    def write(self, stream: IO[bytes], schema: Schema) -> AbstractContextManager[Write]:
        """Write a file; it is complete when the block ends."""


def matched(names: Sequence[str], schema: Schema, *, what: str) -> dict[str, Field]:
    """The columns behind a file's field names.

    Raises: Invalid for a name that comes twice, that the index does not have, or that is missing and must be there.
    """
    columns: Mapping[str, Field] = {field.name: field for field in schema.columns}
    for at, name in enumerate(names):
        if name in names[:at]:
            raise Invalid(f"{what} has two fields {name!r}")
        if name not in columns:
            raise Invalid(
                f"{what} has a field {name!r}, which the index does not have",
                hint=f"it has {', '.join(columns)}; `limpet index schema NAME --add {name}:string` adds a column",
            )
    for field in columns.values():
        if field.required and field.name not in names:
            raise Invalid(f"{what} has no field {field.name!r}, which every record needs")
    return {name: columns[name] for name in names}


def wrong_width(expected: int, got: int, *, hint: str | None = None) -> Invalid:
    """The error for a record with too many or too few fields."""
    return Invalid(f"expected {expected} field{'' if expected == 1 else 's'}, got {got}", hint=hint)


def in_field(name: str, error: Invalid) -> Invalid:
    """The same error, naming the field."""
    hint = error.hint
    if name == UPDATED_AT and hint == Invalid.default_hint:
        hint = "updated_at is when the record was last changed; leave the field out to take the time of the import"
    return Invalid(f"field {name!r}: {error}", hint=hint)


class LineReader:
    """The lines of a stream, with their numbers. Some can be given back."""

    def __init__(self, stream: IO[bytes], after: Mark) -> None:
        self.number = after.number
        self._position = after.position
        self._stream = stream
        self._again: deque[bytes] = deque()

    @property
    def mark(self) -> Mark:
        """Behind the last line given."""
        return Mark(self._position, self.number)

    def next(self) -> bytes:
        """The next line with its end; empty behind the last one.   Raises: Invalid for one that is too long."""
        line = self._again.popleft() if self._again else self._stream.readline(LINE_BYTES_MAX + 1)
        if len(line) > LINE_BYTES_MAX:
            raise too_long(f"line {self.number + 1}")
        if line:
            self._position += len(line)
            self.number += 1
        return line

    def give_back(self, lines: list[bytes]) -> None:
        """Let these come again, the first one first."""
        self._again.extendleft(reversed(lines))
        self._position -= sum(map(len, lines))
        self.number -= len(lines)

    def records(self) -> Iterator[Record]:
        """Each line that is not blank is a record."""
        while line := self.next():
            if not line.isspace():
                yield self.number, line


def too_long(where: str) -> Invalid:
    """The error for a record that no index takes."""
    return Invalid(
        f"{where} has more than {LINE_BYTES_MAX >> 20} MiB",
        hint="is it a file of that format? --format says which one it is",
    )


def text_of(raw: bytes) -> str:
    """A record's bytes as text.   Raises: Invalid."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        if raw.startswith(b"\x1f\x8b"):
            raise Invalid("the file is compressed", hint="unpack it first: gunzip FILE") from None
        known = "UTF-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "LATIN1"
        raise Invalid(
            f"byte {raw[error.start]:#04x} is not UTF-8", hint=f"convert the file: iconv -f {known} -t UTF-8 FILE"
        ) from None


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


# a zero in front is part of a code or a telephone number, which an integer would lose
_INTEGER_LIKE = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_NUMBER_LIKE = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")


def _is_integer(text: str) -> bool:
    return _INTEGER_LIKE.fullmatch(text) is not None and -INTEGER_END <= int(text) < INTEGER_END


def _is_number(text: str) -> bool:
    # a whole number that no float holds exactly would be refused later
    return _NUMBER_LIKE.fullmatch(text) is not None and (not text.lstrip("-").isdigit() or abs(int(text)) <= 1 << 53)


def _is_boolean(text: str) -> bool:
    return text.lower() in ("true", "false")


def _reads_as(kind: Kind) -> Callable[[str], bool]:
    read = from_text(kind)

    def reads(text: str) -> bool:
        try:
            return read(text) is not None
        except Invalid:
            return False

    return reads


_TESTS: Sequence[tuple[Kind, Callable[[str], bool]]] = (
    ("integer", _is_integer),
    ("number", _is_number),
    ("boolean", _is_boolean),
    ("date", _reads_as("date")),
    ("datetime", _reads_as("datetime")),
)


def _kind_of_text(texts: Iterable[str], tests: Sequence[tuple[Kind, Callable[[str], bool]]] = _TESTS) -> Kind:
    some = {text.strip() for text in texts}
    some.discard("")
    for kind, test in tests:
        if some and all(map(test, some)):
            return kind
    return "string"


def fields_of_text(names: Sequence[str], rows: Sequence[Sequence[str | None]]) -> tuple[Field, ...]:
    """The columns behind rows of text. A row of the wrong width is left to the import to complain about."""
    whole = [row for row in rows if len(row) == len(names)]
    return tuple(
        _field(name, _kind_of_text(cell for row in whole if (cell := row[at]) is not None))
        for at, name in enumerate(names)
    )


def fields_of_json(rows: Sequence[Mapping[str, Any]]) -> tuple[Field, ...]:
    """The columns behind JSON objects, in the order in which they are first seen."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return tuple(
        _field(name, _kind_of_json([each for each in some if each is not None])) for name, some in columns.items()
    )


def _kind_of_json(values: Sequence[Any]) -> Kind:
    kinds = {type(value) for value in values}
    if kinds <= {str}:
        return _kind_of_text(values, _TESTS[-2:])
    if kinds == {int}:
        return "integer"
    if kinds <= {int, float}:
        return "number"
    by_type: dict[type, Kind] = {bool: "boolean", dict: "object", list: "array"}
    return by_type.get(kinds.pop(), "any") if len(kinds) == 1 else "any"


def _field(name: str, kind: Kind) -> Field:
    return Field(name, "datetime" if name == UPDATED_AT else kind)
