"""What the index decides, as pure functions: where a record lives, which of two wins, what a compiler does next.

A line is a record's bytes without the LF. Of two lines of one key the later `updated_at` wins, then the tombstone, then
the greater bytes: the same winner wherever and in whatever order they meet. A shard therefore only rises, and merging
anything twice changes nothing.
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

from limpet.errors import Corrupt
from limpet.index.text import END, NULL, SEPARATOR, unescape

DEPTHS = (2, 3, 4)
FOLD_SHARE = 0.1
FOLD_BELOW_BYTES = 256 << 10
FOLD_PACKS = 16
FOLD_AGE = timedelta(days=1)
PACK_SINGLES = 8
PACK_BYTES = 64 << 20

_NULLS = SEPARATOR + NULL


@dataclass(frozen=True, slots=True)
class Shape:
    """Where a line has what Limpet needs to know of it. `width` is how many fields it has; older lines have fewer."""

    key_at: int
    stamp_at: int
    gone_at: int
    width: int


def digest(key: bytes) -> bytes:
    """The place of a key in the order of shards and packs."""
    return sha256(key).digest()


def shard_id(key: str, depth: int = 2) -> str:
    """The shard of a key: the first hex digits of its SHA-256 (seed 001's `get_shard_id`)."""
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
