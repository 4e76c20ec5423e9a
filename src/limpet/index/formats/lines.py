"""Reading a file record by record with a bounded memory, and gathering records into chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import IO, Protocol

from limpet.errors import Invalid
from limpet.index.formats.api import Chunk, Head, Limits, Mark
from limpet.index.schema import LINE_BYTES_MAX

BOM = b"\xef\xbb\xbf"

Record = tuple[int, bytes]
"""The number of a record in its file, and its bytes."""


class Records(Protocol):
    """What is left of a file. `mark` is where the record that was given last ends."""

    @property
    def mark(self) -> Mark:
        """Behind the last record given."""

    def records(self) -> Iterator[Record]:
        """The records from here on.   Raises: Invalid."""


class Lines:
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


def placed(stream: IO[bytes], head: Head, after: Mark) -> IO[bytes]:
    """The stream at a mark. It stands behind the head already, so one that cannot go back will do there."""
    if after != head.start:
        stream.seek(after.position)
    return stream


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


def gathered(names: tuple[str, ...] | None, source: Records, limits: Limits) -> Iterator[Chunk]:
    """Chunks of records, each closed when it has enough of them."""
    rows: list[Record] = []
    size = 0
    for row in source.records():
        rows.append(row)
        size += len(row[1])
        if len(rows) >= limits.records or size >= limits.size:
            yield Chunk(names, rows, source.mark)
            rows, size = [], 0
    if rows:
        yield Chunk(names, rows, source.mark)
