"""CSV: a header, commas, quotes where they are needed, LF or CRLF (RFC 4180), UTF-8.

Null is an empty field without quotes; an empty string is `""`. A string that a spreadsheet would interpret as a formula
gets an apostrophe in front (F34), by a reversible rule: a string of any number of apostrophes followed by one of
`= + - @`, their full-width forms, TAB, CR or LF gets one more apostrophe on export, and loses one on import. Other
strings stay unchanged, including `'tis`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import IO

from limpet.errors import Invalid
from limpet.index.codec.lines import LINE_BYTES_MAX
from limpet.index.formats.api import FileHead, LineReader, Mark, Record, TextFormat, text_of

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
    """Records: lines, joined where a line end is inside quotes."""

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
    """Comma-separated values."""

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
