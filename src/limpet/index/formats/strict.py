"""Strict USV, as in draft-unicode-separated-values-01: a unit ends with U+001F, a record with U+001E.

The first record is the header. Each record that we write stands on a line of its own; line ends around a unit do not
count, says the draft, so one that belongs to the unit gets an escaped character beside it, which does not count either.
ESC (U+001B) before a special character makes it content. The visible symbols (U+241F and so on) are read too.

The draft has no null: here it is `\\N`, and a text of one or more backslashes and then `N` gets one backslash more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import IO, Any

from limpet.errors import Invalid
from limpet.index.codec.lines import LINE_BYTES_MAX, Schema, shown
from limpet.index.formats.api import (
    SAMPLE_ROWS,
    Decode,
    FileHead,
    Format,
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
    too_long,
    wrong_width,
)

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


class _Records:
    """The records of a stream."""

    def __init__(self, stream: IO[bytes], after: Mark) -> None:
        self._stream = stream
        self._position = after.position
        self._number = after.number

    @property
    def mark(self) -> Mark:
        """Behind the last record given."""
        return Mark(self._position, self._number)

    def records(self) -> Iterator[Record]:
        """Each record up to its separator, up to the end of transmission, if there is one."""
        left = b""
        while block := self._stream.read(BLOCK):
            left += block
            at, ended = 0, False
            for found in _END.finditer(left, 0, max(0, len(left) - 4)):
                if found[2]:
                    ended = True
                    break
                if found[1]:
                    yield from self._record(left[at : found.end()])
                    at = found.end()
            if ended:
                return
            left = left[at:]
            if len(left) > LINE_BYTES_MAX:
                raise too_long(f"record {self._number + 1}")
        yield from self._last(left)

    def _last(self, left: bytes) -> Iterator[Record]:
        at = 0
        for found in _END.finditer(left):
            if found[2]:
                return
            if found[1]:
                yield from self._record(left[at : found.end()])
                at = found.end()
        if left[at:].strip(b"\r\n"):
            yield from self._record(left[at:])

    def _record(self, raw: bytes) -> Iterator[Record]:
        self._position += len(raw)
        self._number += 1
        yield self._number, raw


def _bare(raw: bytes) -> str:
    text = text_of(raw)
    if text[-1:] not in (RS, "\u241e"):
        raise Invalid("it does not end with U+001E: it was cut off")
    return text[:-1]


class StrictUsv(Format):
    """Unicode separated values."""

    noun = "record"
    seeks = True

    def head(self, stream: IO[bytes]) -> FileHead:
        """The first record. What was read beyond it is read again, so the stream must go back."""
        source = _Records(stream, Mark())
        found = next(source.records(), None)
        if found is None:
            raise Invalid("the file is empty", hint="the first record of a USV file names its fields")
        stream.seek(source.mark.position)
        names = tuple(name or "" for name in units(_bare(found[1])))
        if "" in names:
            raise Invalid(f"the header has no name for field {names.index('') + 1}")
        return FileHead(names, source.mark)

    def source(self, stream: IO[bytes], after: Mark) -> _Records:
        return _Records(stream, after)

    def decoder(self, names: tuple[str, ...] | None, schema: Schema) -> Decode:
        assert names is not None
        plan = [(name, from_text(field.type)) for name, field in matched(names, schema, what="the header").items()]

        def decode(raw: bytes) -> dict[str, Any]:
            found = units(_bare(raw))
            if len(found) != len(plan):
                raise wrong_width(len(plan), len(found))
            values: dict[str, Any] = {}
            for (name, read), text in zip(plan, found, strict=True):
                try:
                    values[name] = None if text is None else read(text)
                except Invalid as error:
                    raise in_field(name, error) from None
            return values

        return decode

    def sample(self, stream: IO[bytes]) -> Sample:
        head = self.head(stream)
        assert head.names is not None
        rows = [units(_bare(raw)) for _, raw in islice(_Records(stream, head.start).records(), SAMPLE_ROWS)]
        return Sample(fields_of_text(head.names, rows))

    def aside(self, names: tuple[str, ...] | None, row: bytes | None) -> bytes:
        return _written(names or ()).encode() if row is None else row

    @contextmanager
    def write(self, stream: IO[bytes], schema: Schema) -> Iterator[Write]:
        plan: list[tuple[str, Callable[[Any], str]]] = [(field.name, to_text(field.type)) for field in schema.columns]
        stream.write(_written([name for name, _ in plan]).encode())

        def some(lines: Sequence[bytes]) -> None:
            text: list[str] = []
            for line in lines:
                values = schema.values(line)
                text.append(_written([None if values[name] is None else write(values[name]) for name, write in plan]))
            stream.write("".join(text).encode())

        yield some


def _written(fields: Sequence[str | None]) -> str:
    return "".join(map(unit, fields)) + RS + "\n"
