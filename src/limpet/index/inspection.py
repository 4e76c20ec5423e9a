"""What is wrong with the bytes of a shard, a pack or a single. Pure: no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from limpet.errors import Corrupt, Invalid
from limpet.index.decide import digest, keys_of, shard_of
from limpet.index.schema import Schema
from limpet.index.text import END
from limpet.keys import IndexKeys, Key

Kind = Literal[
    "bad_line",
    "bad_value",
    "behind",
    "changed",
    "counts",
    "cut_off",
    "description",
    "duplicate",
    "lost",
    "misnamed",
    "misplaced",
    "missing_shard",
    "order",
    "quarantined",
    "stray",
    "too_large",
    "unknown",
]

UNREADABLE = frozenset({"bad_line", "bad_value", "cut_off"})


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing that is wrong, in words that follow the object's name."""

    kind: Kind
    what: str


@dataclass(slots=True)
class Inspected:
    """The lines of an object: those of its own shard, those of others, and what is wrong with them."""

    own: list[bytes] = field(default_factory=list)
    others: list[bytes] = field(default_factory=list)
    keys: int = 0
    tombstones: int = 0
    flaws: list[Flaw] = field(default_factory=list)

    @property
    def readable(self) -> bool:
        """Whether every line is a good record."""
        return not any(flaw.kind in UNREADABLE for flaw in self.flaws)


def inspect(data: bytes, schema: Schema, depth: int, shard: str) -> Inspected:
    """Look at every line, and decode every value. An object of no use beyond its first bad line is not looked at."""
    found = Inspected()
    if data and not data.endswith(END):
        found.flaws.append(Flaw("cut_off", "does not end with a line feed: it was cut off"))
        return found
    try:
        lines = schema.lines(data, what="it")
    except Corrupt as error:
        said = str(error)
        what = said.removeprefix("it ") if said.startswith("it ") else f"has a bad line: {said.removeprefix('it: ')}"
        found.flaws.append(Flaw("bad_line", what))
        return found
    _check_values(found, lines, schema)
    if found.readable:
        _check_places(found, lines, schema, depth, shard)
    return found


def good_lines(data: bytes, schema: Schema, depth: int, shard: str) -> list[bytes]:
    """The lines of a damaged shard that are records of its own, whatever the others are."""
    good: list[bytes] = []
    for line in data.split(END)[:-1]:
        try:
            [line] = schema.lines(line + END, what="it")
            [key] = keys_of([line], schema.shape)
        except Corrupt:
            continue
        if shard_of(digest(key), depth) == shard and _wrong_value(line, schema, where="it") is None:
            good.append(line)
    return good


def _check_values(found: Inspected, lines: list[bytes], schema: Schema) -> None:
    bad = 0
    first = ""
    for number, line in enumerate(lines, 1):
        wrong = _wrong_value(line, schema, where=f"line {number}")
        if wrong is not None:
            first = first or wrong
            bad += 1
    if bad:
        found.flaws.append(Flaw("bad_value", first + (f"; and {bad - 1} lines more" if bad > 1 else "")))


def _wrong_value(line: bytes, schema: Schema, *, where: str) -> str | None:
    """Why no put could have written this line; None if one could."""
    try:
        values = schema.values(line)
        key = schema.key_text(values[schema.key])
        if not schema.is_gone(line):
            schema.line(values, schema.stamp_of(line), where=where)
    except Corrupt as error:
        return f"{where}: {error}"
    except Invalid as error:
        return str(error) if str(error).startswith(where) else f"{where}: {error}"
    if keys_of([line], schema.shape) != [key.encode()]:
        return f"{where}: the key {key!r} is written in another way than Limpet does"
    return None


def _check_places(found: Inspected, lines: list[bytes], schema: Schema, depth: int, shard: str) -> None:
    keys = keys_of(lines, schema.shape)
    places = [digest(key) for key in keys]
    for number, (line, place) in enumerate(zip(lines, places, strict=True), 1):
        (found.own if shard_of(place, depth) == shard else found.others).append(line)
        found.tombstones += schema.is_gone(line)
        if len(found.others) == 1 and found.others[0] is line:
            belongs = shard_of(place, depth)
            found.flaws.append(Flaw("misplaced", f"has records of other shards: line {number} belongs to {belongs}"))
    found.keys = len(set(keys))
    if found.keys < len(keys):
        found.flaws.append(Flaw("duplicate", f"has {len(keys)} records of {found.keys} keys"))
    out = next((number for number, (a, b) in enumerate(pairwise(places), 2) if a > b), None)
    if out is not None:
        found.flaws.append(Flaw("order", f"is out of order at line {out}"))


def misnamed(keys: IndexKeys, key: Key, shard: str, found: Inspected, schema: Schema) -> Flaw | None:
    """What a single's name says that its content does not; the name is where a reader looks for it."""
    lines = [*found.own, *found.others]
    if len(lines) != 1:
        return Flaw("misnamed", f"is a single, and has {len(lines)} records")
    [line] = lines
    text = keys_of([line], schema.shape)[0].decode()
    id_ = key.rpartition("/")[2].partition("-")[2].removesuffix(".usv")
    if not id_ or key != keys.single(shard, text, schema.stamp_of(line), id_):
        return Flaw("misnamed", f"is the record {text!r} of {schema.stamp_of(line)}, and its name says otherwise")
    return None
