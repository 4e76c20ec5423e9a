"""CSV: a header, commas, quotes where they are needed, LF or CRLF (RFC 4180), UTF-8.

Null is an empty field without quotes; an empty string is `""`. A string that a spreadsheet would take for a formula
gets an apostrophe in front (F34), by a rule that can be undone exactly: a string of any number of apostrophes and then
one of `= + - @`, their full-width forms, TAB, CR or LF gets one apostrophe more; on the way in it loses one, if it has
one. Every other string stays as it is, `'tis` too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import IO, Any

from limpet.errors import Invalid
from limpet.index.codec.lines import LINE_BYTES_MAX, Schema
from limpet.index.formats.api import (
    BOM,
    SAMPLE_ROWS,
    Decode,
    FileHead,
    Format,
    LineReader,
    Mark,
    Record,
    Sample,
    Write,
    fields_of_text,
    from_text,
    in_field,
    matched,
    text_of,
    to_text,
    wrong_width,
)

_RISKY = re.compile("'*[=+\\-@\uff1d\uff0b\uff0d\uff20\t\r\n]")
_QUOTED = re.compile('[",\r\n]')
_CELL = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^",]*))(,|\Z)')
_OPEN = re.compile(rb'(?:"[^"]*(?:""[^"]*)*",|[^",]*,)*"[^"]*(?:""[^"]*)*')
_WHOLE = re.compile(rb'(?:"[^"]*(?:""[^"]*)*"|[^",]*)(?:,(?:"[^"]*(?:""[^"]*)*"|[^",]*))*')


def guarded(text: str) -> str:
    """A string that no spreadsheet runs."""
    return f"'{text}" if _RISKY.match(text) else text


def unguarded(text: str) -> str:
    """The string behind `guarded`."""
    return text[1:] if text.startswith("'") and _RISKY.match(text) else text


def cells(text: str) -> list[str | None]:
    """The fields of a record without its line end.   Raises: Invalid for quotes that make no sense."""
    if '"' not in text:
        return [cell or None for cell in text.split(",")]
    found: list[str | None] = []
    at = 0
    while True:
        cell = _CELL.match(text, at)
        if cell is None:
            raise Invalid(
                f"a quote is out of place after {text[max(0, at - 20) : at + 20]!r}",
                hint='a field with a quote is written in quotes, and the quote twice: "5"" pipe"',
            )
        found.append(cell[1].replace('""', '"') if cell[1] is not None else cell[2] or None)
        if not cell[3]:
            return found
        at = cell.end()


def joined(fields: Sequence[str | None]) -> str:
    """A record of those fields."""
    return ",".join(["" if field is None else _quoted(field) for field in fields])


def _quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if not field or _QUOTED.search(field) else field


def _bare(raw: bytes) -> bytes:
    return raw.removesuffix(b"\n").removesuffix(b"\r")


class _Rows(LineReader):
    """Lines, with those put together whose line end is inside of quotes."""

    def records(self) -> Iterator[Record]:
        """A quote that is never closed spoils only its own line."""
        while line := self.next():
            number = self.number
            if line.count(b'"') % 2:
                line = self._closed(line)
            if not line.isspace():
                yield number, line

    def _closed(self, line: bytes) -> bytes:
        """The record that begins with a line whose last quote is open; the line itself if there is none."""
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


class Csv(Format):
    """Comma-separated values."""

    def head(self, stream: IO[bytes]) -> FileHead:
        """The first line that is not blank."""
        lines = _Rows(stream, Mark())
        found = next(lines.records(), None)
        if found is None:
            raise Invalid("the file is empty", hint="the first line of a CSV file names its fields")
        names = [name or "" for name in cells(text_of(_bare(found[1].removeprefix(BOM))))]
        if len(names) == 1 and re.search("[;\t|]", names[0]):
            raise Invalid(f"the header has one field, {names[0]!r}", hint="put commas between the fields of a CSV file")
        if "" in names:
            raise Invalid(f"the header has no name for field {names.index('') + 1}")
        return FileHead(tuple(unguarded(name) for name in names), lines.mark)

    def source(self, stream: IO[bytes], after: Mark) -> _Rows:
        return _Rows(stream, after)

    def decoder(self, names: tuple[str, ...] | None, schema: Schema) -> Decode:
        """An empty field of a string that must be there is an empty string."""
        assert names is not None
        columns = matched(names, schema, what="the header")
        plan: list[tuple[str, Callable[[str], Any]]] = [
            (name, unguarded if field.type == "string" else from_text(field.type)) for name, field in columns.items()
        ]
        never_null = {name for name, field in columns.items() if field.required and field.type == "string"}

        def decode(raw: bytes) -> dict[str, Any]:
            found = cells(text_of(_bare(raw)))
            if len(found) != len(plan):
                raise wrong_width(len(plan), len(found), hint="the header says which fields there are")
            values: dict[str, Any] = {}
            for (name, read), cell in zip(plan, found, strict=True):
                if cell is None:
                    values[name] = "" if name in never_null else None
                    continue
                try:
                    values[name] = read(cell)
                except Invalid as error:
                    raise in_field(name, error) from None
            return values

        return decode

    def sample(self, stream: IO[bytes]) -> Sample:
        head = self.head(stream)
        assert head.names is not None
        rows: list[list[str | None]] = []
        for number, raw in islice(_Rows(stream, head.start).records(), SAMPLE_ROWS):
            try:
                rows.append(cells(text_of(_bare(raw))))
            except Invalid as error:
                raise Invalid(f"line {number}: {error}", hint=error.hint) from None
        return Sample(fields_of_text(head.names, rows))

    def aside(self, names: tuple[str, ...] | None, row: bytes | None) -> bytes:
        if row is None:
            return (joined([guarded(name) for name in names or ()]) + "\n").encode()
        return super().aside(names, row)

    @contextmanager
    def write(self, stream: IO[bytes], schema: Schema) -> Iterator[Write]:
        names = [field.name for field in schema.columns]
        plan = [(field.name, guarded if field.type == "string" else to_text(field.type)) for field in schema.columns]
        stream.write(self.aside(tuple(names), None))

        def some(lines: Sequence[bytes]) -> None:
            text: list[str] = []
            for line in lines:
                values = schema.values(line)
                text.append(
                    joined([None if values[name] is None else write(values[name]) for name, write in plan]) + "\n"
                )
            stream.write("".join(text).encode())

        yield some
