"""What the index decides, as pure functions: where a record lives, which of two wins, what a compiler does next, and
which bytes a lookup reads next.

A line is a record's bytes without the LF. Of two lines of one key the later `updated_at` wins, then the tombstone, then
the greater bytes: the same winner wherever and in whatever order they meet. A shard therefore only rises, and merging
anything twice changes nothing.

`Search` finds one record in a shard or pack of any size with a few range reads. Lines stand in the order of the SHA-256
of their keys, which is uniform: the place of a key is nearly proportional to its digest, and each look at some lines
makes the next guess better. While no record exceeds 4 KiB, three reads of 192 KiB together find it; larger records take
a few more.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from hashlib import sha256
from itertools import islice
from math import sqrt

from limpet.errors import Corrupt
from limpet.index.codec.lines import END, NULL, SEPARATOR, Shape, unescape

DEPTHS = (2, 3, 4)
FOLD_SHARE = 0.1
FOLD_BELOW_BYTES = 256 << 10
FOLD_PACKS = 16
FOLD_AGE = timedelta(days=1)
PACK_SINGLES = 8
PACK_BYTES = 64 << 20
_NULLS = SEPARATOR + NULL


def digest(key: bytes) -> bytes:
    """The place of a key in the order of shards and packs."""
    return sha256(key).digest()


def shard_id(key: str, depth: int = 2) -> str:
    """The shard of a key: the first hex digits of its SHA-256."""
    return shard_of(digest(key.encode()), depth)


def shard_of(place: bytes, depth: int) -> str:
    """The shard of a digest."""
    return place[:2].hex()[:depth]


def shard_ids(depth: int) -> list[str]:
    """Every shard of an index."""
    return [f"{number:0{depth}x}" for number in range(16**depth)]


def fractions(place: bytes, depth: int) -> float:
    """How far into its shard a digest lies, from 0 to 1."""
    return ((int.from_bytes(place[:8], "big") << (4 * depth)) & ((1 << 64) - 1)) / (1 << 64)


def key_of(line: bytes, shape: Shape) -> bytes:
    """The key of a line, as UTF-8.   Raises: Corrupt for a line with too few fields."""
    fields = line.split(SEPARATOR, shape.key_at + 1)
    if len(fields) <= shape.key_at:
        raise Corrupt(f"the line {line[:60]!r} has too few fields")
    return unescape(fields[shape.key_at])


def keys_of(lines: Sequence[bytes], shape: Shape) -> list[bytes]:
    """The key of each line.   Raises: Corrupt for a line with too few fields."""
    try:
        if shape.key_at == 0:
            fields = [line.partition(SEPARATOR)[0] for line in lines]
        else:
            fields = [line.split(SEPARATOR, shape.key_at + 1)[shape.key_at] for line in lines]
    except IndexError:
        raise Corrupt("a line has too few fields") from None
    if b"\\" not in b"".join(fields):
        return fields
    return [unescape(field) for field in fields]


def places_of(lines: Sequence[bytes], shape: Shape) -> list[bytes]:
    """The digest of each line's key.   Raises: Corrupt for a line with too few fields."""
    return [sha256(key).digest() for key in keys_of(lines, shape)]


def rank(line: bytes, shape: Shape) -> tuple[bytes, bytes, bytes]:
    """What decides between two lines of one key; the greater wins. Nulls at the end do not count: a column may be new.

    Raises: Corrupt for a line with too few fields.
    """
    fields = line.split(SEPARATOR)
    try:
        stamp, gone = fields[shape.stamp_at], fields[shape.gone_at]
    except IndexError:
        raise Corrupt(f"the line {line[:60]!r} has too few fields") from None
    end = len(line)
    while line.endswith(_NULLS, 0, end):
        end -= len(_NULLS)
    line = line[:end]
    return stamp, gone, line


def newest(lines: Sequence[bytes], shape: Shape) -> dict[bytes, bytes]:
    """The winning line of each key, by the key's digest.   Raises: Corrupt for a line with too few fields."""
    return winners(places_of(lines, shape), lines, shape)


def winners(places: Sequence[bytes], lines: Sequence[bytes], shape: Shape) -> dict[bytes, bytes]:
    """`newest`, for lines whose digests are known."""
    found = dict(zip(places, lines, strict=True))
    if len(found) == len(lines):
        return found
    found.clear()
    for place, line in zip(places, lines, strict=True):
        other = found.get(place)
        if other is None or rank(line, shape) > rank(other, shape):
            found[place] = line
    return found


def packed(lines: Mapping[bytes, bytes], shape: Shape) -> bytes:
    """Lines by digest as one object's bytes, in the order of shards and packs."""
    return _joined([lines[place] for place in sorted(lines)], shape.width)


def split(lines: Mapping[bytes, bytes], size_max: int) -> Iterator[dict[bytes, bytes]]:
    """Lines by digest in parts of at most so many bytes, unless one line has more; at least one part."""
    part: dict[bytes, bytes] = {}
    size = 0
    for place, line in lines.items():
        if part and size + len(line) >= size_max:
            yield part
            part, size = {}, 0
        part[place] = line
        size += len(line) + 1
    yield part


@dataclass(frozen=True, slots=True)
class Merged:
    """A shard after a merge: its bytes, how many records it has, and how many of the incoming ones won."""

    data: bytes
    records: int
    won: int


def merge(base: Sequence[bytes], incoming: Mapping[bytes, bytes], shape: Shape, *, what: str) -> Merged:
    """The base with every incoming line, by digest, that wins.   Raises: Corrupt for a base out of order (F23)."""
    places = places_of(base, shape)
    if any(map(operator.ge, places, islice(places, 1, None))):
        raise Corrupt(f"{what} is out of order", hint="`limpet index verify --repair` puts it in order")
    lines, new, won = [*base], dict[bytes, bytes](), 0
    for place, line in incoming.items():
        at = bisect_left(places, place)
        if at == len(places) or places[at] != place:
            new[place] = line
        elif rank(line, shape) > rank(lines[at], shape):
            lines[at] = line
            won += 1
    merged: list[bytes] = []
    taken = 0
    for place in sorted(new):
        at = bisect_left(places, place, taken)
        merged += lines[taken:at]
        merged.append(new[place])
        taken = at
    merged += lines[taken:]
    return Merged(_joined(merged, shape.width), len(merged), won + len(new))


def _joined(lines: Sequence[bytes], width: int) -> bytes:
    """The lines as one object, each with a null for every column that it does not know yet."""
    data = END.join([*lines, b""])
    if data.count(SEPARATOR) == len(lines) * (width - 1):
        return data
    return b"".join([_wide(line, width) + END for line in lines])


def _wide(line: bytes, width: int) -> bytes:
    """The line with a null for each column that it does not know yet."""
    missing = width - 1 - line.count(SEPARATOR)
    return line + _NULLS * missing if missing > 0 else line


def explains(base: Mapping[bytes, bytes], waiting: Sequence[bytes], shape: Shape, *, is_pack: bool) -> bool:
    """Whether a shard may have been folded from this object without that being recorded.

    The shard then holds a line of the object. In a pack that line may have been replaced by a later one of its key, so
    there the key is enough.   Raises: Corrupt for a line with too few fields.
    """
    for place, line in zip(places_of(waiting, shape), waiting, strict=True):
        other = base.get(place)
        if other is not None and (is_pack or rank(other, shape) == rank(line, shape)):
            return True
    return False


class Step(Enum):
    """What a compiler does with a shard."""

    FOLD = "merge what waits into the shard"
    PACK = "put the waiting singles into one pack"
    REST = "nothing yet"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a listing shows of a shard's inbox and packs. `age` is that of the oldest object."""

    singles: int
    packs: int
    size: int
    age: timedelta


def next_step(waiting: Waiting, base_size: int, *, full: bool = False) -> Step:
    """Fold when that is cheap for what it brings, or overdue; below that, gather many singles into one pack.

    Each pack takes twice as many singles as the one before: a lookup opens every pack of its shard, so there are few.
    """
    if not waiting.singles and not waiting.packs:
        return Step.REST
    if (
        full
        or base_size <= FOLD_BELOW_BYTES
        or waiting.size >= FOLD_SHARE * base_size
        or waiting.packs >= FOLD_PACKS
        or waiting.age >= FOLD_AGE
    ):
        return Step.FOLD
    return Step.PACK if waiting.singles >= PACK_SINGLES << waiting.packs else Step.REST


READS = 3
BYTES_MAX = 192 << 10
WINDOW_MIN = 8 << 10
ANCHOR = 12 << 10
LINE_GUESS = 128.0
SURE = 6.0
"""A window of so many standard deviations misses once in 400 times; if lines are about as long, once in 40,000."""


class NoLine:
    """The record is not there."""


NO_LINE = NoLine()


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

    def learn(self, start: int, data: bytes) -> bytes | NoLine | None:
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
                return NO_LINE
            self._floor *= 4
            return None
        at = self._bisect(data, first, last)
        if at < last:
            line = _line_at(data, at)
            if self._place_of(line) == self._place:
                return line
        if first < at < last or self._low.offset == start + at or self._high.offset == start + at:
            return NO_LINE
        self._line_size = (last - first) / data.count(END, first, last)
        if at == first:
            self._high = _Edge(start + first, self._fraction_of(_line_at(data, first)))
        else:
            begin = max(data.rfind(END, first, last - 1) + 1, first)
            self._low = _Edge(start + last, self._fraction_of(_line_at(data, begin)))
        return None if self._low.offset < self._high.offset else NO_LINE

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
