"""Finding one record in a shard or pack of any size with a few range reads.

Lines stand in the order of the SHA-256 of their keys, which is uniform: the place of a key is nearly proportional to
its digest, and each look at some lines makes the next guess better. `Search` plans the reads and learns from them; it
does no I/O. While no record exceeds 4 KiB, three reads of 192 KiB together find it; larger records take a few more.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from limpet.errors import Corrupt
from limpet.index.decide import Shape, digest, fractions, key_of
from limpet.index.text import END

READS = 3
BYTES_MAX = 192 << 10
WINDOW_MIN = 8 << 10
ANCHOR = 12 << 10
LINE_GUESS = 128.0
SURE = 6.0
"""A window of so many standard deviations misses once in 400 times; if lines are about as long, once in 40,000."""


class Absent:
    """The record is not there."""


ABSENT = Absent()


@dataclass(slots=True)
class _Edge:
    """A place where a line begins: its offset, and how far into the order of digests it lies."""

    offset: int
    fraction: float


class Search:
    """The state of one search: between which edges the key must lie."""

    def __init__(self, key: bytes, shape: Shape, depth: int, size: int, *, line_size: float = LINE_GUESS) -> None:
        self._place = digest(key)
        self._fraction = fractions(self._place, depth)
        self._shape = shape
        self._depth = depth
        self._low = _Edge(0, 0.0)
        self._high = _Edge(size, 1.0)
        self._line_size = max(line_size, 1.0)  # a manifest may claim records without bytes
        self._reads = 0
        self._bytes = 0
        self._floor = WINDOW_MIN

    def window(self) -> tuple[int, int]:
        """The bytes `[start, stop)` to read next."""
        low, high = self._low, self._high
        room = high.offset - low.offset
        width = high.fraction - low.fraction
        share = min(max((self._fraction - low.fraction) / width, 0.0), 1.0) if width > 0 else 0.5
        guess = low.offset + int(share * room)
        lines = max(room / self._line_size, 1.0)
        spread = SURE * sqrt(2 * lines * share * (1 - share)) * self._line_size + 4 * self._line_size
        size = min(max(self._size(spread), self._floor), room)
        start = min(max(guess - size // 2, low.offset), high.offset - size)
        return start, start + size

    def _size(self, spread: float) -> int:
        """All that is needed to be sure, if it can be afforded; a small look at the surroundings if not.

        Instead of a first window of more than 48 KiB, such a look and a window beside it read less, at any size.
        """
        left = BYTES_MAX - self._bytes - ANCHOR * max(READS - 1 - self._reads, 0)
        if self._reads >= READS - 1:
            return max(left, 2 * self._floor, 64 << 10)
        return int(spread) if spread <= (left / 2 if self._reads else BYTES_MAX / 4) else ANCHOR

    def learn(self, start: int, data: bytes) -> bytes | Absent | None:
        """The line, if it is among these bytes; None: ask for the next window.   Raises: Corrupt."""
        self._reads += 1
        self._bytes += len(data)
        stop = start + len(data)
        first = 0 if start == self._low.offset else data.find(END) + 1
        last = data.rfind(END) + 1
        if stop == self._high.offset and last != len(data):
            raise Corrupt("the last line is cut off")
        if last <= first or (start != self._low.offset and not first):
            if start == self._low.offset and stop == self._high.offset:
                return ABSENT
            self._floor *= 4
            return None
        at = self._bisect(data, first, last)
        if at < last:
            line = _line_at(data, at)
            if self._place_of(line) == self._place:
                return line
        if first < at < last or self._low.offset == start + at or self._high.offset == start + at:
            return ABSENT
        self._line_size = (last - first) / data.count(END, first, last)
        if at == first:
            self._high = _Edge(start + first, self._fraction_of(_line_at(data, first)))
        else:
            begin = max(data.rfind(END, first, last - 1) + 1, first)
            self._low = _Edge(start + last, self._fraction_of(_line_at(data, begin)))
        return None if self._low.offset < self._high.offset else ABSENT

    def _bisect(self, data: bytes, low: int, high: int) -> int:
        """Where the first line begins whose place is not below ours; `high` if there is none among these lines."""
        while low < high:
            middle = (low + high) // 2
            begin = max(data.rfind(END, low, middle) + 1, low)
            line = _line_at(data, begin)
            if self._place_of(line) < self._place:
                low = begin + len(line) + 1
            else:
                high = begin
        return low

    def _place_of(self, line: bytes) -> bytes:
        return digest(key_of(line, self._shape))

    def _fraction_of(self, line: bytes) -> float:
        return fractions(self._place_of(line), self._depth)


def _line_at(data: bytes, begin: int) -> bytes:
    return data[begin : data.find(END, begin)]
