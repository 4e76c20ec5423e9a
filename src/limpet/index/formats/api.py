"""The interface of file formats: read records chunk by chunk, with bounded memory, and write them shard by shard."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice
from typing import IO, Any, Protocol

from limpet.index.codec import LINE_BYTES_MAX, UPDATED_AT, Columns, Field, Schema, by_column
from limpet.index.values import INTEGER_END, JSON_KINDS, NULL, READERS, SEPARATOR, Kind, all_in_utc, shown, stamp_time
from limpet.kernel import records
from limpet.kernel.errors import Invalid
from limpet.kernel.wording import many

SAMPLE_ROWS = 1000
BOM = b"\xef\xbb\xbf"
Record = tuple[int, bytes]
"""The number of a record in its file, and its bytes."""
Decode = Callable[[Any], dict[str, Any]]
"""Decodes a record of a file into values by column.   Raises: Invalid."""

DecodeMany = Callable[[Sequence[Any]], Columns | None]
"""Decodes records of a file into values by column; None, or Invalid, if one may be invalid."""

Write = Callable[[Sequence[bytes]], object]
"""Writes the records of some lines of an index."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A position between two records of a file: bytes (Parquet: rows) before it, and the number of the last record."""

    position: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class FileHead:
    """The header of a file: the names of its fields, if it has them, and the start of the records."""

    names: tuple[str, ...] | None
    start: Mark = Mark()


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """When a chunk is full."""

    records: int = 200_000
    size: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some records, not decoded yet, so that another process can do that. `end`: the start of the next chunk."""

    names: tuple[str, ...] | None
    rows: Any
    end: Mark


@dataclass(frozen=True, slots=True)
class Sample:
    """The inferred columns of a file, and its key if the file has it."""

    fields: tuple[Field, ...]
    key: str | None = None


class Format(Protocol):
    """A file format. The default implementations are for a file of lines without a header."""

    noun: str = "line"
    """The name of a record in messages: line, record or row."""

    seeks: bool = False
    """Whether the stream must be seekable."""

    def head(self, stream: IO[bytes]) -> FileHead:
        """Read the header, from the start of the file.   Raises: Invalid."""
        return FileHead(None)

    def total(self, stream: IO[bytes], size: int) -> int:
        """The position at the end of a file of `size` bytes."""
        return size

    def chunks(self, stream: IO[bytes], head: FileHead, after: Mark, limits: ChunkLimits) -> Iterator[Chunk]:
        """The records after a mark. The stream is positioned after the header.   Raises: Invalid."""
        if after != head.start:  # else it is positioned there already, and need not be seekable
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

    def source(self, stream: IO[bytes], after: Mark) -> LineReader:
        """The records of a stream that is positioned at a mark."""
        return LineReader(stream, after)

    def rows(self, chunk: Chunk) -> Iterator[tuple[int, Any]]:
        """Each record of a chunk with its number in the file."""
        return iter(chunk.rows)

    def decoder(self, names: tuple[str, ...] | None, schema: Schema) -> Decode:
        """The decoder of records.   Raises: Invalid for fields that the index does not have."""

    def bulk_decoder(self, names: tuple[str, ...] | None, schema: Schema) -> DecodeMany:
        """The same for many records at once.   Raises: as `decoder`."""
        decode = self.decoder(names, schema)
        return lambda raws: by_column([decode(raw) for raw in raws])

    def sample(self, stream: IO[bytes]) -> Sample:
        """The columns of a file, by its own types or by its first 1,000 records.   Raises: Invalid."""

    def aside(self, names: tuple[str, ...] | None, row: Any) -> bytes:
        """The bytes to keep of a record that cannot be imported. Without a `row`: the header of the file of those."""
        if row is None:
            return b""
        return bytes(row) if row.endswith(b"\n") else row + b"\n"

    def write(self, stream: IO[bytes], schema: Schema) -> AbstractContextManager[Write]:
        """Write a file; it is complete when the block ends."""


class TextFormat(Format, Protocol):
    """Text whose first record names the fields."""

    required_may_be_empty: bool = False
    """Whether null means an empty string in a required string column."""

    def split(self, raw: bytes) -> list[str | None]:
        """The fields of a record; None for null.   Raises: Invalid."""

    def joined(self, fields: Sequence[str | None]) -> str:
        """A record of those fields, with its end."""

    def stored(self, text: str) -> str:
        """The string of a field of a file."""
        return text

    def shown(self, text: str) -> str:
        """The field of a file for a string: the inverse of `stored`."""
        return text

    def head(self, stream: IO[bytes]) -> FileHead:
        source = self.source(stream, Mark())
        found = next(source.records(), None)
        if found is None:
            raise Invalid("the file is empty", hint=f"the first {self.noun} of the file names its fields")
        names = [name or "" for name in self.split(found[1].removeprefix(BOM))]
        if "" in names:
            raise Invalid(f"the header has no name for field {names.index('') + 1}")
        return FileHead(tuple(map(self.stored, names)), source.mark)

    def stored_all(self, texts: Sequence[str | None]) -> Sequence[str | None]:
        """`stored` of each; null stays null."""
        return [None if text is None else self.stored(text) for text in texts]

    def split_all(self, raws: Sequence[bytes]) -> Sequence[Sequence[str | None]]:
        """`split` of each.   Raises: Invalid."""
        return [*map(self.split, raws)]

    def _null_of(self, field: Field) -> str | None:
        return "" if self.required_may_be_empty and field.required and field.type == "string" else None

    def bulk_decoder(self, names: tuple[str, ...] | None, schema: Schema) -> DecodeMany:
        plan = [
            (field.name, self.stored_all if field.type == "string" else from_texts(field.type), self._null_of(field))
            for field in matched(names or (), schema, what="the header").values()
        ]

        def decode(raws: Sequence[bytes]) -> Columns | None:
            rows = self.split_all(raws)
            if {*map(len, rows)} != {len(plan)}:
                return None
            columns: dict[str, Sequence[Any]] = {}
            for (name, read, null), texts in zip(plan, zip(*rows, strict=True), strict=True):
                values = read(texts)
                columns[name] = values if null is None else [null if value is None else value for value in values]
            return columns

        return decode

    def decoder(self, names: tuple[str, ...] | None, schema: Schema) -> Decode:
        plan = [
            (field.name, self.stored if field.type == "string" else from_text(field.type), self._null_of(field))
            for field in matched(names or (), schema, what="the header").values()
        ]

        def decode(raw: bytes) -> dict[str, Any]:
            found = self.split(raw)
            if len(found) != len(plan):
                raise wrong_width(len(plan), len(found), hint="the header says which fields there are")
            values: dict[str, Any] = {}
            for (name, read, null), text in zip(plan, found, strict=True):
                try:
                    values[name] = null if text is None else read(text)
                except Invalid as error:
                    raise in_field(name, error) from None
            return values

        return decode

    def sample(self, stream: IO[bytes]) -> Sample:
        head = self.head(stream)
        rows: list[list[str | None]] = []
        for number, raw in islice(self.source(stream, head.start).records(), SAMPLE_ROWS):
            try:
                rows.append(self.split(raw))
            except Invalid as error:
                raise Invalid(f"{self.noun} {number}: {error}", hint=error.hint) from None
        return Sample(fields_of_text(head.names or (), rows))

    def aside(self, names: tuple[str, ...] | None, row: Any) -> bytes:
        return super().aside(names, row) if row is not None else self.joined([*map(self.shown, names or ())]).encode()

    @contextmanager
    def write(self, stream: IO[bytes], schema: Schema) -> Iterator[Write]:
        """A field is the same text as in a line, with the escapes of strings undone."""
        are_strings = [field.type == "string" for field in schema.columns]
        stream.write(self.aside(tuple(field.name for field in schema.columns), None))

        def record(line: bytes) -> str:
            texts = line.decode().split(SEPARATOR.decode())
            del texts[schema.shape.deleted_column]
            texts += [NULL.decode()] * (len(are_strings) - len(texts))
            return self.joined(
                [
                    None if text == NULL.decode() else self.shown(READERS["string"](text)) if is_string else text
                    for is_string, text in zip(are_strings, texts, strict=False)  # a line of a newer schema has more
                ]
            )

        yield lambda lines: stream.write("".join(map(record, lines)).encode())


def matched(names: Sequence[str], schema: Schema, *, what: str) -> dict[str, Field]:
    """The columns of a file's field names.

    Raises: Invalid for a duplicate or unknown name, or a missing required one.
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
    return Invalid(f"expected {many(expected, 'field')}, got {got}", hint=hint)


def in_field(name: str, error: Invalid) -> Invalid:
    """The same error, naming the field."""
    hint = error.hint
    if name == UPDATED_AT and hint == Invalid.default_hint:
        hint = "updated_at is when the record was last changed; leave the field out to take the time of the import"
    return Invalid(f"field {name!r}: {error}", hint=hint)


class LineReader:
    """The lines of a stream, with their numbers. Lines can be pushed back."""

    def __init__(self, stream: IO[bytes], after: Mark) -> None:
        self.number = after.number
        self._position = after.position
        self._stream = stream
        self._again: deque[bytes] = deque()

    @property
    def mark(self) -> Mark:
        """After the last line that was returned."""
        return Mark(self._position, self.number)

    def next(self) -> bytes:
        """The next line with its end; empty at the end.   Raises: Invalid for one that is too long."""
        line = self._again.popleft() if self._again else self._stream.readline(LINE_BYTES_MAX + 1)
        if len(line) > LINE_BYTES_MAX:
            raise too_long(f"line {self.number + 1}")
        if line:
            self._position += len(line)
            self.number += 1
        return line

    def give_back(self, lines: list[bytes]) -> None:
        """Push lines back, to be returned again in this order."""
        self._again.extendleft(reversed(lines))
        self._position -= sum(map(len, lines))
        self.number -= len(lines)

    def records(self) -> Iterator[Record]:
        """Each line that is not blank is a record."""
        while line := self.next():
            if not line.isspace():
                yield self.number, line


def too_long(where: str) -> Invalid:
    """The error for a record that is too long."""
    return Invalid(
        f"{where} has more than {LINE_BYTES_MAX >> 20} MiB",
        hint="check that the file has this format, or give another --format",
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
_ZONE_HINT = "add the time zone: 2026-11-05T12:00:00Z, or +01:00 at the end"


def _wrong(kind: Kind, text: str) -> Invalid:
    return Invalid(f"expected {kind}, got {shown(text)}")


def _integer(text: str) -> Any:
    if _INTEGER.fullmatch(text) is None:
        raise _wrong("integer", text)
    return int(text)


def _number(text: str) -> Any:
    if _NUMBER.fullmatch(text) is None:
        raise _wrong("number", text)
    # an integer stays one, so that one which no float can represent is refused, not rounded
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
    """The decoder of text. Strings stay unchanged; for other kinds surrounding blanks are ignored, and empty is null.

    Objects, arrays and `any` are JSON. The function raises Invalid.
    """
    read = _READERS.get(kind)
    if read is None:
        return str

    def stripped(text: str) -> Any:
        text = text.strip()
        return read(text) if text else None

    return stripped


_INTEGERS = re.compile(r"(?:[+-]?[0-9]{1,30}\n)++")


def from_texts(kind: Kind) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """`from_text` of each value that is a text; others stay unchanged. With a fast path for common texts.

    The function raises Invalid.
    """
    read = from_text(kind)

    def fast(values: Sequence[Any]) -> Sequence[Any] | None:
        try:
            if kind == "integer" and _INTEGERS.fullmatch("\n".join([*values, ""])):
                return [*map(int, values)]
            if kind == "datetime" and all_in_utc(times := [*map(datetime.fromisoformat, values)]):
                return times
        except (TypeError, ValueError):  # null, or not a text; blanks around, or a wrong text
            pass
        return None

    return lambda values: fast(values) or [read(value) if isinstance(value, str) else value for value in values]


def from_json(kind: Kind) -> Callable[[Any], Any]:
    """The decoder of a JSON value: dates and times are strings there, other values stay unchanged."""
    if kind not in ("date", "datetime"):
        return lambda value: value
    read = _READERS[kind]
    return lambda value: read(value) if isinstance(value, str) else value


def from_arrow(kind: Kind) -> Callable[[Any], Any]:
    """The decoder of a value of a Parquet file: JSON may be text there."""
    if kind not in JSON_KINDS:
        return from_json(kind)
    return lambda value: _json(value) if isinstance(value, str) else value


# a leading zero indicates a code or a telephone number, where an integer would lose it
_INTEGER_LIKE = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_NUMBER_LIKE = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")


def _is_number(text: str) -> bool:
    # an integer that no float can represent exactly would be refused later
    return _NUMBER_LIKE.fullmatch(text) is not None and (not text.lstrip("-").isdigit() or abs(int(text)) <= 1 << 53)


def _reads_as(kind: Kind) -> Callable[[str], bool]:
    read = from_text(kind)

    def reads(text: str) -> bool:
        try:
            return read(text) is not None
        except Invalid:
            return False

    return reads


_TESTS: Sequence[tuple[Kind, Callable[[str], bool]]] = (
    ("integer", lambda text: _INTEGER_LIKE.fullmatch(text) is not None and -INTEGER_END <= int(text) < INTEGER_END),
    ("number", _is_number),
    ("boolean", lambda text: text.lower() in ("true", "false")),
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
    """The inferred columns of rows of text. Rows of the wrong width are ignored: the import reports them."""
    whole = [row for row in rows if len(row) == len(names)]
    return tuple(
        _field(name, _kind_of_text(cell for row in whole if (cell := row[at]) is not None))
        for at, name in enumerate(names)
    )


def fields_of_json(rows: Sequence[Mapping[str, Any]]) -> tuple[Field, ...]:
    """The inferred columns of JSON objects, in order of first appearance."""
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
