"""Limpet's own lines, as they are in a shard: no header, the columns of the index in their order, `_deleted` too.

So shards of another index with the same columns can be taken in as they are, tombstones included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from limpet.errors import Corrupt, Invalid
from limpet.index.codec.lines import DELETED, END, NULL, SEPARATOR, Schema, shown
from limpet.index.formats.api import (
    Decode,
    Format,
    Sample,
    Write,
    text_of,
    wrong_width,
)


class Usv(Format):
    """Lines of an index."""

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
                    hint="is it strict USV? then say --format strict-usv",
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

        def some(lines: Sequence[bytes]) -> None:
            stream.write(b"".join([_exactly(line, width) + END for line in lines]))

        yield some


def _exactly(line: bytes, width: int) -> bytes:
    """The line with as many fields as the schema has: older lines have fewer, those of a newer schema more."""
    fields = line.split(SEPARATOR)
    return SEPARATOR.join([*fields[:width], *[NULL] * (width - len(fields))])
