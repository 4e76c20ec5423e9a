"""The formats of text: CSV, JSON lines, Limpet's own lines (USV), and strict USV."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import IO, Any

import msgspec

from limpet.index.codec import DELETED, LINE_BYTES_MAX, Columns, Schema, by_column
from limpet.index.formats.api import (
    BOM,
    SAMPLE_ROWS,
    Decode,
    DecodeMany,
    FileHead,
    Format,
    LineReader,
    Mark,
    Record,
    Sample,
    TextFormat,
    Write,
    fields_of_json,
    from_json,
    from_texts,
    in_field,
    text_of,
    too_long,
    wrong_width,
)
from limpet.index.values import END, NULL, SEPARATOR, shown
from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid

# ---- CSV ----

_RISKY = re.compile("'*[=+\\-@\uff1d\uff0b\uff0d\uff20\t\r\n]")
_QUOTED = re.compile('[",\r\n]')
_CELL = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^",]*))(,|\Z)')
_OPEN = re.compile(rb'(?:"[^"]*(?:""[^"]*)*",|[^",]*,)*"[^"]*(?:""[^"]*)*')
_WHOLE = re.compile(rb'(?:"[^"]*(?:""[^"]*)*"|[^",]*)(?:,(?:"[^"]*(?:""[^"]*)*"|[^",]*))*')


def guarded(text: str) -> str:
    """The string, protected from being run as a formula by a spreadsheet."""
    return f"'{text}" if _RISKY.match(text) else text


def unguarded(text: str) -> str:
    """The inverse of `guarded`."""
    return text[1:] if text.startswith("'") and _RISKY.match(text) else text


def cells(text: str) -> list[str | None]:
    """The fields of a record without its line end.   Raises: Invalid for misplaced quotes."""
    if '"' not in text:
        return [cell or None for cell in text.split(",")]
    found: list[str | None] = []
    at = 0
    while True:
        cell = _CELL.match(text, at)
        if cell is None:
            raise Invalid(
                f"a quote is out of place after {text[max(0, at - 20) : at + 20]!r}",
                hint='a field with a quote must be quoted, and the quote doubled: "5"" pipe"',
            )
        found.append(cell[1].replace('""', '"') if cell[1] is not None else cell[2] or None)
        if not cell[3]:
            return found
        at = cell.end()


def joined(fields: Sequence[str | None]) -> str:
    """A record of those fields, without its line end."""
    return ",".join(["" if field is None else _quoted(field) for field in fields])


def _quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if not field or _QUOTED.search(field) else field


def _bare(raw: bytes) -> bytes:
    return raw.removesuffix(b"\n").removesuffix(b"\r")


class _Rows(LineReader):
    def records(self) -> Iterator[Record]:
        """A quote that is never closed affects only its own line."""
        while line := self.next():
            number = self.number
            if line.count(b'"') % 2:
                line = self._closed(line)
            if not line.isspace():
                yield number, line

    def _closed(self, line: bytes) -> bytes:
        """The record that begins with a line with an open quote; the line itself if the quote is never closed."""
        if _OPEN.fullmatch(_bare(line)) is None:
            return line
        more: list[bytes] = []
        room = LINE_BYTES_MAX - len(line)
        while room > 0 and (following := self.next()):
            more.append(following)
            room -= len(following)
            if following.count(b'"') % 2:
                whole = b"".join((line, *more))
                if _WHOLE.fullmatch(_bare(whole)):
                    return whole
                break
        self.give_back(more)
        return line


class Csv(TextFormat):
    """CSV: a header, commas, quotes where they are needed, LF or CRLF (RFC 4180), UTF-8.

    Null is an empty field without quotes; an empty string is `""`. A string that a spreadsheet would interpret as a
    formula gets an apostrophe in front (F34), by a reversible rule: a string of any number of apostrophes followed by
    one of `= + - @`, their full-width forms, TAB, CR or LF gets one more apostrophe on export, and loses one on import.
    Other strings stay unchanged, including `'tis`.
    """

    required_may_be_empty = True

    def head(self, stream: IO[bytes]) -> FileHead:
        """The first line that is not blank."""
        head = super().head(stream)
        if head.names is not None and len(head.names) == 1 and re.search("[;\t|]", head.names[0]):
            raise Invalid(
                f"the header has one field, {head.names[0]!r}", hint="put commas between the fields of a CSV file"
            )
        return head

    def source(self, stream: IO[bytes], after: Mark) -> LineReader:
        return _Rows(stream, after)

    def split(self, raw: bytes) -> list[str | None]:
        return cells(text_of(_bare(raw)))

    def split_all(self, raws: Sequence[bytes]) -> Sequence[Sequence[str | None]]:
        text = text_of(b"".join(raws))
        if '"' in text or "\r" in text:
            return super().split_all(raws)
        return [[cell or None for cell in line.split(",")] for line in text.removesuffix("\n").split("\n")]

    def joined(self, fields: Sequence[str | None]) -> str:
        return joined(fields) + "\n"

    def stored(self, text: str) -> str:
        return unguarded(text)

    def stored_all(self, texts: Sequence[str | None]) -> Sequence[str | None]:
        return super().stored_all(texts) if "'" in "".join(filter(None, texts)) else texts

    def shown(self, text: str) -> str:
        return guarded(text)


# ---- JSON lines ----


def parsed(raw: str | bytes, *, what: str = "the record") -> dict[str, Any]:
    """One JSON object.   Raises: Invalid."""
    value = records.parse_json(raw, what=what, bytes_max=LINE_BYTES_MAX)
    if not isinstance(value, dict):
        raise Invalid(
            f"{what} is a JSON {'array' if isinstance(value, list) else 'value'}, and a record is a JSON object",
            hint='write {"field": value, ...}',
        )
    return value


def json_decoder(schema: Schema) -> Decode:
    """Decodes a JSON object into values by column. (Unknown names are refused when the record is written.)"""
    plan = {field.name: from_json(field.type) for field in schema.columns if field.type in ("date", "datetime")}

    def decode(values: dict[str, Any]) -> dict[str, Any]:
        for name, read in plan.items():
            if name in values:
                try:
                    values[name] = read(values[name])
                except Invalid as error:
                    raise in_field(name, error) from None
        return values

    return decode


_FLAT = msgspec.json.Decoder(dict[str, str | int | float | bool | None])
_NAME_END = re.compile(rb'"[ \t\r\n]*:')


class Jsonl(Format):
    """JSON lines: one object per line, strictly parsed. A missing field is null; dates and times are ISO strings."""

    def decoder(self, names: tuple[str, ...] | None, schema: Schema) -> Decode:
        decode = json_decoder(schema)
        return lambda raw: decode(parsed(text_of(raw.removeprefix(BOM))))

    def bulk_decoder(self, names: tuple[str, ...] | None, schema: Schema) -> DecodeMany:
        """Fast for records without nested values. msgspec accepts duplicate names, so they are counted: there are at
        most as many names as quotes followed by a colon.
        """
        times = {field.name: from_texts(field.type) for field in schema.columns if field.type in ("date", "datetime")}

        def decode(raws: Sequence[bytes]) -> Columns | None:
            try:
                found = [*map(_FLAT.decode, raws)]
            except (msgspec.DecodeError, UnicodeDecodeError):
                return None
            if sum(map(len, found)) != len(_NAME_END.findall(b"".join(raws))):
                return None
            return {name: times[name](some) if name in times else some for name, some in by_column(found).items()}

        return decode

    def sample(self, stream: IO[bytes]) -> Sample:
        rows = []
        for number, raw in islice(LineReader(stream, Mark()).records(), SAMPLE_ROWS):
            rows.append(parsed(text_of(raw.removeprefix(BOM)), what=f"line {number}"))
        if not rows:
            raise Invalid("the file is empty, so its fields are not known")
        return Sample(fields_of_json(rows))

    @contextmanager
    def write(self, stream: IO[bytes], schema: Schema) -> Iterator[Write]:
        yield lambda lines: stream.write(b"".join([records.encode(schema.values(line)) + b"\n" for line in lines]))


# ---- USV: text with separators of ASCII ----


class Usv(Format):
    """Lines as in a shard: no header, the columns of the index in order, including `_deleted`.

    So shards of another index with the same columns can be imported unchanged, including tombstones.
    """

    def decoder(self, names: tuple[str, ...] | None, schema: Schema) -> Decode:
        """A tombstone has `_deleted`."""
        width = len(schema.fields)

        def decode(raw: bytes) -> dict[str, Any]:
            text_of(raw)
            line = raw.removesuffix(END)
            fields = line.count(SEPARATOR) + 1
            if fields > width:
                raise wrong_width(
                    width,
                    fields,
                    hint="USV has no header: the columns are those that `limpet index schema` shows, then _deleted",
                )
            try:
                [line] = schema.lines(line + END, what="it")
                values = schema.values(line)
            except Corrupt:
                raise Invalid(
                    f"it is not a record of this index: {shown(line)}",
                    hint="if it is strict USV, use --format strict-usv",
                ) from None
            if schema.is_tombstone(line):
                values[DELETED] = True
            return values

        return decode

    def sample(self, stream: IO[bytes]) -> Sample:
        raise Invalid("USV has no header, so its fields are not known", hint="`limpet index create` the index first")

    @contextmanager
    def write(self, stream: IO[bytes], schema: Schema) -> Iterator[Write]:
        width = len(schema.fields)

        def exactly(line: bytes) -> bytes:
            """The line with as many fields as the schema has: older lines have fewer, those of a newer schema more."""
            fields = line.split(SEPARATOR)
            return SEPARATOR.join([*fields[:width], *[NULL] * (width - len(fields))]) + END

        yield lambda lines: stream.write(b"".join(map(exactly, lines)))


US, RS, ESC = "\x1f", "\x1e", "\x1b"
BLOCK = 1 << 20
_SPECIAL = re.compile("[\x04\x17\x1b-\x1f\u2404\u2417\u241b-\u241f]")
_PAIR = re.compile("[\x1b\u241b](.)", re.DOTALL)
_UNIT = re.compile("[\r\n]*((?:[\x1b\u241b].|[^\x04\x17\x1b-\x1f\u2404\u2417\u241b-\u241f])*)[\x1f\u241f]", re.DOTALL)
# in UTF-8 the symbols are e2 90 84 (EOT), 97 (ETB), 9b (ESC), 9e (RS)
_END = re.compile(
    rb"(?:\x1b|\xe2\x90\x9b)(?:\xe2\x90.|.)|(\x1e|\xe2\x90\x9e)|([\x04\x17]|\xe2\x90[\x84\x97])", re.DOTALL
)
_MANY_N = re.compile(r"\\+N")
_NULL = r"\N"


def unit(text: str | None) -> str:
    """One field as a unit, with its separator."""
    if text is None:
        return _NULL + US
    if _MANY_N.fullmatch(text):
        text = "\\" + text
    text = _SPECIAL.sub(lambda found: ESC + found[0], text)
    if text[:1] in ("\r", "\n"):
        text = f"{ESC} {text}"
    if text[-1:] in ("\r", "\n"):
        text = f"{text}{ESC} "
    return text + US


def units(record: str) -> list[str | None]:
    """The fields of a record without its separator.   Raises: Invalid."""
    found: list[str | None] = []
    at = 0
    record = record.rstrip("\r\n")
    while at < len(record):
        one = _UNIT.match(record, at)
        if one is None:
            raise Invalid(f"a unit does not end with U+001F, or has a group or file separator: {shown(record[at:])}")
        found.append(_content(one[1]))
        at = one.end()
    return found


def _content(text: str) -> str | None:
    bare = text.rstrip("\r\n")
    if (len(bare) - len(bare.rstrip("\x1b\u241b"))) % 2:
        bare = text[: len(bare) + 1]  # the line end belongs to an escape
    if bare == _NULL:
        return None
    bare = _PAIR.sub(lambda pair: pair[1] if _SPECIAL.match(pair[1]) else "", bare)
    return bare[1:] if len(bare) > 2 and _MANY_N.fullmatch(bare) else bare


class _StrictRecords(LineReader):
    def records(self) -> Iterator[Record]:
        """Each record up to its separator, until the end of transmission, if there is one."""
        left = b""
        while True:
            block = self._stream.read(BLOCK)
            left += block
            at = 0
            # the end of a block may be an incomplete escape or symbol
            for found in _END.finditer(left, 0, max(0, len(left) - 4) if block else len(left)):
                if found[2]:
                    return
                if found[1]:
                    yield self._record(left[at : found.end()])
                    at = found.end()
            left = left[at:]
            if not block:
                break
            if len(left) > LINE_BYTES_MAX:
                raise too_long(f"record {self.number + 1}")
        if left.strip(b"\r\n"):
            yield self._record(left)

    def _record(self, raw: bytes) -> Record:
        self._position += len(raw)
        self.number += 1
        return self.number, raw


class StrictUsv(TextFormat):
    """Unicode separated values, as in draft-unicode-separated-values-01: a unit ends with U+001F, a record with U+001E.

    We write each record on a separate line. By the draft, line ends around a unit are ignored, so one that belongs to
    the unit gets an escaped character beside it, which is ignored too. ESC (U+001B) before a special character makes it
    content. The visible symbols (U+241F and so on) are also read.
    The draft has no null: here it is `\\N`, and a text of one or more backslashes and then `N` gets another backslash.
    """

    noun = "record"
    seeks = True

    def head(self, stream: IO[bytes]) -> FileHead:
        """The reader buffers beyond the header, so the stream is repositioned."""
        head = super().head(stream)
        stream.seek(head.start.position)
        return head

    def source(self, stream: IO[bytes], after: Mark) -> LineReader:
        return _StrictRecords(stream, after)

    def split(self, raw: bytes) -> list[str | None]:
        text = text_of(raw)
        if text[-1:] not in (RS, "\u241e"):
            raise Invalid("it does not end with U+001E: it is incomplete")
        return units(text[:-1])

    def joined(self, fields: Sequence[str | None]) -> str:
        return "".join(map(unit, fields)) + RS + "\n"

    def aside(self, names: tuple[str, ...] | None, row: bytes | None) -> bytes:
        return super().aside(names, None) if row is None else row
