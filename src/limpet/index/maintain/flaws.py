"""What is wrong with an object of an index: its place by its key, and its lines by the schema. Pure, but for
`misplaced_in` and `retire`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

from limpet.index.codec import Schema
from limpet.index.decide import digest, keys_of, shard_of
from limpet.index.maintain import ALL
from limpet.index.storage import IndexStorage
from limpet.index.values import END
from limpet.kernel.errors import Corrupt, Invalid
from limpet.kernel.keys import IndexKeys, Key
from limpet.kernel.store.api import Match, Version
from limpet.kernel.store.outcome import put_bytes
from limpet.kernel.wording import many

Role = Literal["adopted", "described", "lock", "pack", "plain", "quarantined", "shard", "single", "unknown"]
_SHARD = re.compile("[0-9a-f]{1,4}")


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """The role of an object, and its shard; `plain` is a record file that another program wrote."""

    role: Role
    shard: str = ""


def place_of(keys: IndexKeys, key: Key) -> ObjectPlace:
    """The role of an object below the index's root. A shard may have any depth.

    Compilers read all objects in a shard's folder of `inbox/` or `packs/`, so all count as singles or packs.
    """
    if key in (keys.manifest, keys.package, keys.json_schema):
        return ObjectPlace("described")
    match key.removeprefix(f"{keys.root}/").split("/"):
        case ["inbox", shard, _, *_] if _SHARD.fullmatch(shard):
            return ObjectPlace("single", shard)
        case ["packs", shard, _, *_] if _SHARD.fullmatch(shard):
            return ObjectPlace("pack", shard)
        case ["shards", name]:
            stem, _, ending = name.rpartition(".")
            if ending == "usv" and _SHARD.fullmatch(stem):
                return ObjectPlace("shard", stem)
            if ending == "lock" and (stem == ALL or _SHARD.fullmatch(stem)):
                return ObjectPlace("lock", stem)
        case ["adopted", *_]:
            return ObjectPlace("adopted")
        case ["imports", name] if name.endswith(".json"):
            return ObjectPlace("described")
        case ["quarantine", _, name] if name.endswith(".json"):
            return ObjectPlace("quarantined")
        case [name] if name.endswith(".usv"):
            return ObjectPlace("plain")
    return ObjectPlace("unknown")


Fixable = Literal["behind", "counts", "description", "duplicate", "misnamed", "misplaced", "order", "outdated", "stray"]
"""What can be derived from other objects. An object with another flaw is not changed."""
Acceptable = Literal["bad_line", "bad_value", "changed", "cut_off", "lost", "missing_shard", "too_large"]
"""Damage of a shard that an operator may accept."""
FlawKind = Literal[Fixable, Acceptable, "quarantined", "unknown"]
FIXABLE: frozenset[FlawKind] = frozenset(get_args(Fixable))
ACCEPTABLE: frozenset[FlawKind] = frozenset(get_args(Acceptable))
UNREADABLE = frozenset({"bad_line", "bad_value", "cut_off"})


@dataclass(frozen=True, slots=True)
class Flaw:
    """One problem; `what` follows the object's name in a sentence."""

    kind: FlawKind
    what: str


@dataclass(slots=True)
class Inspected:
    """The lines of an object: those of its shard, those of other shards, and their problems."""

    own: list[bytes] = field(default_factory=list)
    others: list[bytes] = field(default_factory=list)
    keys: int = 0
    tombstones: int = 0
    flaws: list[Flaw] = field(default_factory=list)

    @property
    def readable(self) -> bool:
        """Whether every line is a valid record."""
        return not any(flaw.kind in UNREADABLE for flaw in self.flaws)


def inspect(data: bytes, schema: Schema, depth: int, shard: str) -> Inspected:
    """Check every line and decode every value. The check ends at the first invalid line."""
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
    """The lines of a damaged shard that are valid records of that shard."""
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
        found.flaws.append(Flaw("bad_value", first + (f"; and {many(bad - 1, 'line')} more" if bad > 1 else "")))


def _wrong_value(line: bytes, schema: Schema, *, where: str) -> str | None:
    """Why this line cannot come from a put; None if it can."""
    try:
        values = schema.values(line)
        key = schema.key_text(values[schema.key])
        if not schema.is_tombstone(line):
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
        found.tombstones += schema.is_tombstone(line)
        if len(found.others) == 1 and found.others[0] is line:
            belongs = shard_of(place, depth)
            found.flaws.append(Flaw("misplaced", f"has records of other shards: line {number} belongs to {belongs}"))
    found.keys = len(set(keys))
    if found.keys < len(keys):
        found.flaws.append(Flaw("duplicate", f"has {many(len(keys), 'record')} of {many(found.keys, 'key')}"))
    out = next((number for number, (a, b) in enumerate(pairwise(places), 2) if a > b), None)
    if out is not None:
        found.flaws.append(Flaw("order", f"is out of order at line {out}"))


def misnamed(keys: IndexKeys, key: Key, shard: str, found: Inspected, schema: Schema) -> Flaw | None:
    """How the name of a single contradicts its content, if it does; readers look it up by name."""
    lines = [*found.own, *found.others]
    if len(lines) != 1:
        return Flaw("misnamed", f"is a single, and has {many(len(lines), 'record')}")
    [line] = lines
    text = keys_of([line], schema.shape)[0].decode()
    id_ = key.rpartition("/")[2].partition("-")[2].removesuffix(".usv")
    if not id_ or key != keys.single(shard, text, schema.stamp_of(line), id_):
        return Flaw("misnamed", f"is the record {text!r} of {schema.stamp_of(line)}, and its name says otherwise")
    return None


MOVED = b"the records of this shard lie in shards of another depth"
"""It has no final line feed, so that every reader and compiler refuses it."""
_HOLDING = ("pack", "shard", "single")


def misplaced_in(storage: IndexStorage, depth: int) -> Iterator[tuple[Key, ObjectPlace]]:
    """The objects of another depth that may hold records.   Cost: 1 LIST per 1,000 objects, at least 3."""
    for prefix in (storage.keys.inbox, storage.keys.packs, storage.keys.shards):
        for stat in storage.store.list(prefix):
            place = place_of(storage.keys, stat.key)
            if place.role in _HOLDING and len(place.shard) != depth:
                yield stat.key, place


def retire(storage: IndexStorage, key: Key, version: Version) -> None:
    """Remove a shard of another depth whose records are durable elsewhere, if it still has this version.

    Raises: OutcomeUnknown if another process wrote it since: it stays.   Cost: 1 PUT + 1 DELETE.
    Crash: a shard that is marked as moved; the next run removes it.
    """
    put_bytes(storage.store, storage.runtime, key, MOVED, Match(version), deletable=True)
    storage.store.delete(key)
