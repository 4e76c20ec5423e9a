"""The decisions of the index, as pure functions: the shard of a record, which of two records wins, what a compiler does
next, and which bytes a lookup reads next.

A line is a record's bytes without the LF. Of two lines of one key the later `updated_at` wins, then the tombstone, then
the greater bytes: the winner does not depend on the order of merges. So the records of a shard only become newer, and
merging the same line twice changes nothing.

`Search` finds one record in a shard or pack of any size with a few range reads (interpolation search). Lines are sorted
by the SHA-256 of their keys, which is uniform: the position of a key is nearly proportional to its digest, and each
read improves the next guess. While no record exceeds 4 KiB, three reads of 192 KiB together find it; larger records
take a few more.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from hashlib import sha256
from itertools import islice
from math import sqrt
from struct import Struct

from limpet.index.codec import Shape
from limpet.index.values import BACKSLASH, END, NULL, SEPARATOR, unescape
from limpet.kernel.errors import Corrupt

DEPTHS = (2, 3, 4)
FOLD_SHARE = 0.1
FOLD_BELOW_BYTES = 256 << 10
FOLD_PACKS = 16
FOLD_AGE = timedelta(days=1)
PACK_SINGLES = 8
PACK_BYTES = 64 << 20
_NULLS = SEPARATOR + NULL
_IN_FIELDS = bytes({*range(256)} - {*SEPARATOR, *END})


def digest(key: bytes) -> bytes:
    """The sort key of a record in shards and packs."""
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
    """The relative position of a digest in its shard, from 0 to 1."""
    return ((int.from_bytes(place[:8], "big") << (4 * depth)) & ((1 << 64) - 1)) / (1 << 64)


def key_of(line: bytes, shape: Shape) -> bytes:
    """The key of a line, as UTF-8.   Raises: Corrupt for a line with too few fields."""
    fields = line.split(SEPARATOR, shape.key_column + 1)
    if len(fields) <= shape.key_column:
        raise _too_few(line)
    return unescape(fields[shape.key_column])


def _too_few(line: bytes) -> Corrupt:
    return Corrupt(f"the line {line[:60]!r} has too few fields")


def keys_of(lines: Sequence[bytes], shape: Shape) -> list[bytes]:
    """The key of each line.   Raises: Corrupt for a line with too few fields."""
    try:
        if shape.key_column == 0:
            fields = [line.partition(SEPARATOR)[0] for line in lines]
        else:
            fields = [line.split(SEPARATOR, shape.key_column + 1)[shape.key_column] for line in lines]
    except IndexError:
        raise Corrupt("a line has too few fields") from None
    if b"\\" not in b"".join(fields):
        return fields
    return [unescape(field) for field in fields]


def places_of(lines: Sequence[bytes], shape: Shape) -> list[bytes]:
    """The digest of each line's key.   Raises: Corrupt for a line with too few fields."""
    return [sha256(key).digest() for key in keys_of(lines, shape)]


def rank(line: bytes, shape: Shape) -> tuple[bytes, bytes, bytes]:
    """The rank of a line: of two lines of one key the greater wins. Trailing nulls are ignored: a column may be new.

    Raises: Corrupt for a line with too few fields.
    """
    fields = line.split(SEPARATOR)
    try:
        stamp, gone = fields[shape.stamp_column], fields[shape.deleted_column]
    except IndexError:
        raise _too_few(line) from None
    end = len(line)
    while line.endswith(_NULLS, 0, end):
        end -= len(_NULLS)
    line = line[:end]
    return stamp, gone, line


def newest(lines: Sequence[bytes], shape: Shape) -> dict[bytes, bytes]:
    """The winning line of each key, by the key's digest.   Raises: Corrupt for a line with too few fields."""
    return winners(places_of(lines, shape), lines, shape)


def winners(places: Sequence[bytes], lines: Sequence[bytes], shape: Shape) -> dict[bytes, bytes]:
    """The same as `newest`, for lines with known digests."""
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
    """Lines by digest as the bytes of one object, sorted."""
    return _joined([lines[place] for place in sorted(lines)], shape.width)


def split(lines: Mapping[bytes, bytes], size_max: int) -> Iterator[Mapping[bytes, bytes]]:
    """Lines by digest in parts of at most `size_max` bytes, unless one line is larger; at least one part."""
    if sum(map(len, lines.values())) + len(lines) <= size_max:
        yield lines
        return
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


def merge(
    base: Sequence[bytes],
    incoming: Mapping[bytes, bytes],
    shape: Shape,
    *,
    what: str,
    in_order: bool = False,
    is_wide: bool = False,
) -> Merged:
    """The base with every winning incoming line, by digest.   Raises: Corrupt for an unsorted base (F23).

    `in_order`: the base is known to be sorted, so for few incoming lines only keys near them are hashed.
    `is_wide`: its lines are known to have all columns, so the columns are not counted again.
    """
    if in_order and len(incoming) * LOOKS < len(base):
        found = _near(base, sorted(incoming), shape)
    else:
        places = places_of(base, shape)
        if any(map(operator.ge, places, islice(places, 1, None))):
            raise Corrupt(f"{what} is out of order", hint="`limpet index verify --repair` puts it in order")
        found = _among(places, sorted(incoming))
    merged: list[bytes] = []
    taken = won = 0
    for place, at, is_there in found:
        line = incoming[place]
        if is_there and rank(line, shape) <= rank(base[at], shape):
            continue
        merged += base[taken:at]
        merged.append(_wide(line, shape.width))
        taken = at + is_there
        won += 1
    merged += base[taken:]
    data = END.join([*merged, b""]) if is_wide else _joined(merged, shape.width)
    return Merged(data, len(merged), won)


def _among(places: Sequence[bytes], wanted: Iterable[bytes]) -> Iterator[tuple[bytes, int, bool]]:
    """For each digest, in ascending order: the digest, the index of the first of `places` that is not below it, and
    whether that one is equal.
    """
    at = 0
    for place in wanted:
        at = bisect_left(places, place, at)
        yield place, at, at < len(places) and places[at] == place


def _near(lines: Sequence[bytes], wanted: Iterable[bytes], shape: Shape) -> Iterator[tuple[bytes, int, bool]]:
    """The same as `_among` for the digests of the keys of sorted lines, hashing only few of them.

    Digests are uniform, so the index is interpolated from the last digest that was computed: about three computations
    find it. After `GUESSES` of them the digests are not uniform, and the rest is bisected.
    Raises: Corrupt for a line with too few fields.
    """
    [first], [last] = (_number(digest(key_of(line, shape))) for line in (lines[0], lines[-1]))
    density = (len(lines) - 1) / max(last - first, 1)
    key_column, parts = shape.key_column, shape.key_column + 1
    low, known = 0, first * density
    for place in wanted:
        high, looks, is_there = len(lines), 0, False
        aim = _number(place)[0] * density
        at = low + int(aim - known)
        while low < high and not is_there:
            if looks == GUESSES:
                at = (low + high) // 2
            else:
                looks += 1
                at = low if at < low else high - 1 if at >= high else at
            try:
                key = lines[at].split(SEPARATOR, parts)[key_column]
            except IndexError:
                raise _too_few(lines[at]) from None
            other = sha256(unescape(key) if BACKSLASH in key else key).digest()
            known = _number(other)[0] * density
            if other < place:
                low = at + 1
                at = low + int(aim - known)
            else:
                high, is_there = at, other == place
                at -= 1 + int(known - aim)
        low, known = high, aim
        yield place, high, is_there


LOOKS = 6
"""Finding one digest by `_near` costs about as much as hashing this many keys."""

GUESSES = 8
_number = Struct(">Q").unpack_from


def _joined(lines: Sequence[bytes], width: int) -> bytes:
    """The lines as one object, each padded with nulls for columns that were added later."""
    data = END.join([*lines, b""])
    if data.translate(None, _IN_FIELDS) == (SEPARATOR * (width - 1) + END) * len(lines):
        return data
    return b"".join([_wide(line, width) + END for line in lines])


def _wide(line: bytes, width: int) -> bytes:
    missing = width - 1 - line.count(SEPARATOR)
    return line + _NULLS * missing if missing > 0 else line


def explains(base: Mapping[bytes, bytes], waiting: Sequence[bytes], shape: Shape, *, is_pack: bool) -> bool:
    """Whether a fold of this object, not recorded yet, may explain the bytes of a shard.

    Then the shard holds a line of the object. For a pack, a line with the same key is enough: it may have been replaced
    by a later one.   Raises: Corrupt for a line with too few fields.
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
    """What a listing shows of a shard's inbox and packs. `age`: of the oldest object."""

    singles: int
    packs: int
    size: int
    age: timedelta


def next_step(waiting: Waiting, base_size: int, *, full: bool = False) -> Step:
    """Fold when that is worth its cost, or overdue; otherwise gather many singles into one pack.

    Each pack takes twice as many singles as the one before: a lookup reads every pack of its shard.
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
"""The window in standard deviations. It misses once in 400 times; with lines of similar length, once in 40,000."""


class NoLine:
    """The record is not there."""


NO_LINE = NoLine()


@dataclass(slots=True)
class _Edge:
    """The start of a line: its offset, and its relative position in the order of digests."""

    offset: int
    fraction: float


class Search:
    """The state of one search: the two edges between which the key must lie."""

    def __init__(
        self, key: bytes, shape: Shape, depth: int, size: int, *, line_size: float = LINE_GUESS, far: bool = False
    ) -> None:
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
        self._first_max = BYTES_MAX // 2 if far else BYTES_MAX // 4

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
        """The size of a window that almost certainly holds the line, if the budget allows it; else of a small one.

        A small window and a second one beside it read less than a first window of more than 48 KiB. On a far store up
        to 96 KiB are read, to save the second read.
        """
        left = BYTES_MAX - self._bytes - ANCHOR * max(READS - 1 - self._reads, 0)
        if self._reads >= READS - 1:
            return max(left, 2 * self._floor, 64 << 10)
        return int(spread) if spread <= (left / 2 if self._reads else self._first_max) else ANCHOR

    def learn(self, start: int, data: bytes) -> bytes | NoLine | None:
        """The line, if it is in these bytes; None: read the next window.   Raises: Corrupt."""
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
        """The offset of the first line whose digest is not below ours; `high` if there is none."""
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
