"""Two formats of US-delimited text: Limpet's own lines, and strict USV."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from limpet.errors import Corrupt, Invalid
from limpet.index.codec.lines import DELETED, END, LINE_BYTES_MAX, NULL, SEPARATOR, Schema, shown
from limpet.index.formats.api import (
    Decode,
    FileHead,
    Format,
    LineReader,
    Mark,
    Record,
    Sample,
    TextFormat,
    Write,
    text_of,
    too_long,
    wrong_width,
)


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
            if schema.is_gone(line):
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
    """Records of strict USV."""

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
