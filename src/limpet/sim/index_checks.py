"""The index's invariants, checked on everything that the bucket really did, one mutation after another."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from limpet.keys import IndexKeys, Key
from limpet.sim.bucket import Applied
from limpet.sim.index_books import Books, Line, Rank, lines_in
from limpet.sim.world import Violation, World
from limpet.store.api import Blob

__all__ = ["FOUNDER", "Model", "check_index"]

DEPTH = 1
FOUNDER = "founder"
BUDGET_BASE = 600
BUDGET_PER_OPERATION = 60


class _Manifest(msgspec.Struct):
    fields: list[dict[str, Any]]
    schema_version: int
    described: int
    records: list[int]
    sizes: list[int]
    sums: list[str]


class _Lock(msgspec.Struct):
    token: int


class _Kept(msgspec.Struct):
    key: str
    data: bytes


@dataclass(slots=True)
class Model:
    """The index as it must be: what landed, what lies where, by key the rank of it in each object."""

    books: Books
    keys: IndexKeys
    landed: dict[str, dict[Rank, Line]] = field(default_factory=dict)
    shards: dict[Key, dict[str, Rank]] = field(default_factory=dict)
    waiting: dict[Key, list[Line]] = field(default_factory=dict)
    tokens: dict[Key, int] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    counted: list[int] = field(default_factory=list)
    history: dict[Key, list[tuple[str, dict[str, Rank]]]] = field(default_factory=dict)
    """By shard, what it was at any time: the digest of its bytes, and what it held."""
    recorded: dict[Key, int] = field(default_factory=dict)
    """By shard, which of these the manifest records."""

    def winners(self) -> dict[str, Line]:
        """By key, the greatest of all that landed."""
        return {key: lines[max(lines)] for key, lines in self.landed.items()}

    def apply(self, applied: Applied) -> None:
        """One mutation.   Raises: Violation."""
        key, data = applied.key, applied.data
        if key in self.books.bad:
            if data is None and key not in self.kept:
                raise Violation(f"{applied.who} deleted {key}, which could not be read, before it was kept")
        elif key.startswith(f"{self.keys.quarantine}/") and data is not None:
            self.kept.add(msgspec.json.decode(data, type=_Kept).key)
        elif key.endswith(".lock"):
            self._lock(applied)
        elif key == self.keys.manifest and data is not None:
            self._manifest(applied, data)
        elif key.startswith(f"{self.keys.shards}/"):
            self._shard(applied)
        elif key.startswith((f"{self.keys.inbox}/", f"{self.keys.packs}/")):
            if data is None:
                self._forward(applied)
            else:
                self._arrives(applied, data)

    def _lock(self, applied: Applied) -> None:
        if applied.data is None:
            raise Violation(f"{applied.who} deleted {applied.key}: its tokens would start again")
        token = msgspec.json.decode(applied.data, type=_Lock).token
        if token < self.tokens.get(applied.key, 0):
            raise Violation(f"{applied.key}: token {token} follows {self.tokens[applied.key]}")
        self.tokens[applied.key] = token

    def _manifest(self, applied: Applied, data: bytes) -> None:
        """A count above what there is would make a healthy shard look damaged; one that falls hides a loss."""
        manifest = msgspec.json.decode(data, type=_Manifest)
        if any(now < before for before, now in zip(self.counted, manifest.records, strict=False)):
            raise Violation(f"{applied.who} took a count down, from {self.counted} to {manifest.records}")
        self.counted = manifest.records
        for at, count in enumerate(manifest.records):
            there = len(self.shards.get(self.keys.shard(f"{at:0{DEPTH}x}"), ()))
            if count > there:
                raise Violation(f"{applied.who} counted {count} records in shard {at:x}, and there are {there}")
        for at, digest in enumerate(manifest.sums):
            self._recorded(applied, self.keys.shard(f"{at:0{DEPTH}x}"), digest)

    def _recorded(self, applied: Applied, shard: Key, digest: str) -> None:
        """The digest of a shard is one that it had, and never an older one than before."""
        if not digest:
            return
        before = self.recorded.get(shard, 0)
        found = [at for at, (each, _) in enumerate(self.history.get(shard, ())) if each == digest]
        if not found or found[-1] < before:
            raise Violation(f"{applied.who} recorded a digest of {shard} that it does not have any more, or never had")
        self.recorded[shard] = found[-1]

    def _arrives(self, applied: Applied, data: bytes) -> None:
        """A user's write, or a pack of some: nothing in it is new but what a user sent."""
        lines = lines_in(data)
        pack = applied.key.startswith(f"{self.keys.packs}/")
        if pack:
            self._ordered(applied, lines)
        for line in lines:
            self._really_sent(applied, line)
            self.landed.setdefault(line.key, {})[line.rank] = line
        self.waiting[applied.key] = lines

    def _forward(self, applied: Applied) -> None:
        """What is deleted lies further on: a single's lines in a pack or the shard, a pack's in the shard (F18).

        In the shard means: in one that the manifest records, so that a fold that is not recorded can be told (F23).
        """
        lines = self.waiting.pop(applied.key, [])
        single = applied.key.startswith(f"{self.keys.inbox}/")
        for line in lines:
            key = self.keys.shard(_place(line.key)[:DEPTH])
            shard = self.history[key][self.recorded.get(key, 0)][1].get(line.key)
            if shard is not None and shard >= line.rank:
                continue
            packs = (other for key, held in self.waiting.items() if "/packs/" in key for other in held)
            if single and any(other.key == line.key and other.rank >= line.rank for other in packs):
                continue
            raise Violation(f"{applied.who} deleted {applied.key}, and {line} is nowhere further on")

    def _shard(self, applied: Applied) -> None:
        """A shard only rises, and holds nothing that was not written."""
        if applied.data is None:
            raise Violation(f"{applied.who} deleted {applied.key}")
        lines = lines_in(applied.data)
        self._ordered(applied, lines)
        now = {line.key: line.rank for line in lines}
        if applied.who == FOUNDER:
            self.landed |= {line.key: {line.rank: line} for line in lines}
        for key, rank in self.shards.get(applied.key, {}).items():
            if key not in now or now[key] < rank:
                raise Violation(f"{applied.who} put {applied.key}, and {self.landed[key][rank]} was lost from it")
        for line in lines:
            if line.rank not in self.landed.get(line.key, {}):
                raise Violation(f"{applied.who} put {line} into {applied.key}, and it had not landed")
        self.shards[applied.key] = now
        self.history.setdefault(applied.key, []).append((_digest(applied.data), now))

    def _ordered(self, applied: Applied, lines: Sequence[Line]) -> None:
        places = [_place(line.key) for line in lines]
        shard = applied.key.removeprefix(f"{self.keys.root}/").split("/")[1].removesuffix(".usv")
        if any(not place.startswith(shard) for place in places):
            raise Violation(f"{applied.who} put a record of another shard into {applied.key}")
        if any(place >= following for place, following in pairwise(places)):
            raise Violation(f"{applied.who} put {applied.key} out of order, or with one key twice")

    def _really_sent(self, applied: Applied, line: Line) -> None:
        if line.rank not in self.books.sent.get(line.key, {}):
            raise Violation(f"{applied.who} put {line} into {applied.key}, and nobody had sent it")


def check_index(
    world: World, journal: Sequence[Applied], objects: Mapping[Key, Blob], keys: IndexKeys, books: Books
) -> Model:
    """Every invariant of the index, when all is folded. Returns what it must hold.   Raises: Violation."""
    model = Model(books, keys)
    for applied in journal:
        model.apply(applied)
    _nothing_waits(objects, keys)
    _all_is_recorded(objects, keys)
    _the_winners_stand(objects, keys, model)
    _the_bad_is_kept(objects, keys, books)
    _described(objects, keys)
    if world.calls > BUDGET_BASE + BUDGET_PER_OPERATION * books.operations:
        raise Violation(f"{world.calls} requests for {books.operations} operations")
    return model


def _place(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _digest(data: bytes) -> str:
    digest = hashlib.sha256(data).digest()[:16]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=") if data else "-"


def _below(objects: Mapping[Key, Blob], prefix: str) -> list[Key]:
    return sorted(key for key in objects if key.startswith(f"{prefix}/"))


def _nothing_waits(objects: Mapping[Key, Blob], keys: IndexKeys) -> None:
    left = [*_below(objects, keys.inbox), *_below(objects, keys.packs)]
    if left:
        raise Violation(f"after everything was folded there is still {left[0]}")


def _all_is_recorded(objects: Mapping[Key, Blob], keys: IndexKeys) -> None:
    """When nothing waits, the manifest has the digest of every shard."""
    manifest = msgspec.json.decode(objects[keys.manifest].data, type=_Manifest)
    for at, digest in enumerate(manifest.sums):
        shard = keys.shard(f"{at:0{DEPTH}x}")
        if digest != _digest(objects[shard].data):
            raise Violation(f"all is folded, and the manifest has another digest of {shard}: {digest!r}")


def _the_winners_stand(objects: Mapping[Key, Blob], keys: IndexKeys, model: Model) -> None:
    """The shards hold the greatest of what landed for each key, tombstones too, in full width, and nothing else."""
    manifest = msgspec.json.decode(objects[keys.manifest].data, type=_Manifest)
    stands: dict[str, Line] = {}
    for key in _below(objects, keys.shards):
        if not key.endswith(".usv"):
            continue
        lines = lines_in(objects[key].data)
        stands.update({line.key: line for line in lines})
        if any(line.width != len(manifest.fields) for line in lines):
            raise Violation(f"{key} has a line that is not padded to {len(manifest.fields)} columns")
    for line in model.winners().values():
        if line.key not in stands:
            raise Violation(f"{line} landed, and is in no shard")
        if stands[line.key].rank != line.rank:
            raise Violation(f"{line} landed, and the shard has {stands[line.key]}")
    if extra := stands.keys() - model.landed.keys():
        raise Violation(f"a shard has {min(extra)!r}, which nobody wrote")


def _the_bad_is_kept(objects: Mapping[Key, Blob], keys: IndexKeys, books: Books) -> None:
    kept = [msgspec.json.decode(objects[key].data, type=_Kept) for key in _below(objects, keys.quarantine)]
    for each in kept:
        if books.bad.get(Key(each.key)) != each.data:
            raise Violation(f"{each.key} was put into quarantine, and it was good")
    if missing := books.bad.keys() - {each.key for each in kept}:
        raise Violation(f"{min(missing)} could not be read, and was not kept")


def _described(objects: Mapping[Key, Blob], keys: IndexKeys) -> None:
    """Other tools are shown the columns that there are."""
    manifest = msgspec.json.decode(objects[keys.manifest].data, type=_Manifest)
    package = msgspec.json.decode(objects[keys.package].data)
    shown = [each["name"] for each in package["resources"][0]["schema"]["fields"]]
    if manifest.described == manifest.schema_version and shown != [each["name"] for each in manifest.fields]:
        raise Violation(f"{keys.package} shows the columns {shown}")
