"""What must be true of an index: of every read when it is answered, and of every mutation of the bucket.

A write counts from the moment it is sent: it may land even if its client never learns so. A read that begins after
another ended, or after a write was acknowledged, never shows anything older. The rank and the shard of a line are
worked out here once more, so that a mistake in `limpet.index` is not believed.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec

from limpet.keys import IndexKeys, Key
from limpet.sim.bucket import Bucket, BucketChange
from limpet.sim.world import Violation

INDEX = "ix"
KEYS = IndexKeys.of(INDEX)
WAITING = (f"{KEYS.inbox}/", f"{KEYS.packs}/")
"""The prefixes of what is not folded yet."""
DEPTH = 1
"""Sixteen shards: a real index has more, and none of them would matter more."""
FOUNDER = "founder"
BUDGET_BASE = 600
BUDGET_PER_OPERATION = 60

Rank = tuple[bytes, bytes, bytes]
KEY_AT, BY_AT, STAMP_AT, GONE_AT = range(4)
SEPARATOR, NULL = b"\x1f", b"\\N"


@dataclass(frozen=True)
class Older:
    """A record. `by`: who wrote it, and which of their writes it is; unique."""

    key: str
    by: str | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True)
class Newer:
    """A record of a later version of the program, which has one more column."""

    key: str
    by: str | None = None
    updated_at: datetime | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class IndexLine:
    """A line of an index, as the checks see it."""

    key: str
    by: str
    rank: Rank
    width: int

    @property
    def stamp(self) -> str:
        """When it was written, as text."""
        return self.rank[0].decode()

    @property
    def gone(self) -> bool:
        """Whether it is a tombstone."""
        return self.rank[1] == b"1"

    def __str__(self) -> str:
        return f"{self.key!r} at {self.stamp} ({'deleted' if self.gone else self.by})"


@lru_cache(10_000)
def line_of(data: bytes) -> IndexLine:
    """A line without its LF."""
    fields = data.split(SEPARATOR)
    content = [*fields]
    while content[-1] == NULL:
        content.pop()
    rank = (fields[STAMP_AT], fields[GONE_AT], SEPARATOR.join(content))
    return IndexLine(fields[KEY_AT].decode(), fields[BY_AT].decode(), rank, len(fields))


def lines_in(data: bytes) -> list[IndexLine]:
    """The lines of an object.   Raises: Violation for one that was cut off."""
    lines = data.split(b"\n")
    if lines.pop():
        raise Violation(f"an object does not end with a line feed: {data[-60:]!r}")
    return [line_of(line) for line in lines]


Floors = Mapping[str, Rank | None]


@dataclass(slots=True)
class IndexModel:
    """Every write that was sent, and for each key the rank below which no later read may fall."""

    sent: dict[str, dict[Rank, IndexLine]] = field(default_factory=dict)
    bad: dict[Key, bytes] = field(default_factory=dict)
    operations: int = 0
    _by: dict[tuple[str, str], IndexLine] = field(default_factory=dict)
    _floor: dict[str, Rank] = field(default_factory=dict)
    _safe: dict[str, Rank] = field(default_factory=dict)
    _stamped: dict[tuple[str, str], str] = field(default_factory=dict)
    """By process and key, the latest time that the process has given to a record."""
    _seen: dict[tuple[str, str], str] = field(default_factory=dict)
    """By process and key, the latest time that the process has been shown: its next put must exceed it."""

    def sends(self, who: str, line: IndexLine, given: Container[str]) -> None:
        """A write is sent; the user chose the time of those `given`.   Raises: Violation if its stamp is too old."""
        self.sent.setdefault(line.key, {})[line.rank] = line
        if not line.gone:
            self._by[line.key, line.by] = line
        if line.by in given:
            return
        for did, stamps in (("stamped", self._stamped), ("seen", self._seen)):
            if line.stamp <= stamps.get((who, line.key), ""):
                raise Violation(f"{who} stamped {line} although it had {did} {stamps[who, line.key]} before")
        self._stamped[who, line.key] = line.stamp

    def acknowledged(self, who: str, lines: Iterable[IndexLine], given: Container[str]) -> None:
        """A write was answered: every later read shows it, or something later."""
        for line in lines:
            self._raise(line.key, line.rank)
            self._safe[line.key] = max(line.rank, self._safe.get(line.key, line.rank))
            if line.by in given:
                self._saw(who, line.key, line.stamp)

    def lost_power(self) -> None:
        """Forget what was only read: a reader may see a write before it is durable."""
        self._floor = dict(self._safe)

    def begins(self, keys: Iterable[str]) -> Floors:
        """A read is sent: the ranks below which it must not fall."""
        self.operations += 1
        return {key: self._floor.get(key) for key in keys}

    def ends(self, who: str, floors: Floors, found: Mapping[str, Older | Newer], *, got: bool = True) -> None:
        """A read was answered; `got`: by `get`, whose stamp the process's next put of the key must exceed.

        Raises: Violation.
        """
        ranks: dict[str, Rank | None] = {}
        for key, floor in floors.items():
            record = found.get(key)
            ranks[key] = rank = self._nothing(who, key, floor) if record is None else self._shown(who, key, record)
            if floor is not None and rank is not None and rank < floor:
                newer = self.sent[key][floor]
                raise Violation(f"{who} read {self.sent[key][rank]} after {newer} was acknowledged or read")
        for key, rank in ranks.items():
            if rank is not None:
                self._raise(key, rank)
                if got:
                    self._saw(who, key, rank[0].decode())

    def _shown(self, who: str, key: str, record: Older | Newer) -> Rank:
        line = self._by.get((key, record.by or ""))
        if line is None:
            raise Violation(f"{who} read {key!r} by {record.by!r}, which no process wrote")
        if record.updated_at is None or line.stamp != f"{record.updated_at:%Y-%m-%dT%H:%M:%S.%f}Z":
            raise Violation(f"{who} read {line} with another time: {record.updated_at}")
        return line.rank

    def _nothing(self, who: str, key: str, floor: Rank | None) -> Rank | None:
        """The least tombstone that explains why there was nothing; None if nothing needs to be explained."""
        if floor is None:
            return None
        deletes = [rank for rank, line in self.sent[key].items() if line.gone and rank >= floor]
        if not deletes:
            raise Violation(f"{who} found nothing although {self.sent[key][floor]} was acknowledged or read")
        return min(deletes)

    def _raise(self, key: str, rank: Rank) -> None:
        self._floor[key] = max(rank, self._floor.get(key, rank))

    def _saw(self, who: str, key: str, stamp: str) -> None:
        self._seen[who, key] = max(stamp, self._seen.get((who, key), ""))


# ---- every mutation ----


class _ManifestBody(msgspec.Struct):
    fields: list[dict[str, Any]]
    schema_version: int
    described: int
    records: list[int]
    sizes: list[int]
    sums: list[str]


class _LockToken(msgspec.Struct):
    token: int


class _Quarantined(msgspec.Struct):
    key: str
    data: bytes


@dataclass(slots=True)
class IndexHistory:
    """The mutations of the bucket one after another: what landed, and the ranks in each object by key."""

    model: IndexModel
    landed: dict[str, dict[Rank, IndexLine]] = field(default_factory=dict)
    shards: dict[Key, dict[str, Rank]] = field(default_factory=dict)
    waiting: dict[Key, list[IndexLine]] = field(default_factory=dict)
    tokens: dict[Key, int] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    counted: list[int] = field(default_factory=list)
    history: dict[Key, list[tuple[str, dict[str, Rank]]]] = field(default_factory=dict)
    """By shard, what it was at any time: the digest of its bytes, and what it held."""
    recorded: dict[Key, int] = field(default_factory=dict)
    """By shard, which of these the manifest records."""

    def winners(self) -> dict[str, IndexLine]:
        """By key, the greatest of all that landed."""
        return {key: lines[max(lines)] for key, lines in self.landed.items()}

    def apply(self, applied: BucketChange) -> None:
        """One mutation.   Raises: Violation."""
        key, data = applied.key, applied.data
        if key in self.model.bad:
            if data is None and key not in self.kept:
                raise Violation(f"{applied.who} deleted {key}, which could not be read, before it was kept")
        elif key.startswith(f"{KEYS.quarantine}/") and data is not None:
            self.kept.add(msgspec.json.decode(data, type=_Quarantined).key)
        elif key.endswith(".lock"):
            self._lock(applied)
        elif key == KEYS.manifest and data is not None:
            self._manifest(applied, data)
        elif key.startswith(f"{KEYS.shards}/"):
            self._shard(applied)
        elif key.startswith(WAITING):
            if data is None:
                self._forward(applied)
            else:
                self._arrives(applied, data)

    def _lock(self, applied: BucketChange) -> None:
        if applied.data is None:
            raise Violation(f"{applied.who} deleted {applied.key}: its tokens would start again")
        token = msgspec.json.decode(applied.data, type=_LockToken).token
        if token < self.tokens.get(applied.key, 0):
            raise Violation(f"{applied.key}: token {token} follows {self.tokens[applied.key]}")
        self.tokens[applied.key] = token

    def _manifest(self, applied: BucketChange, data: bytes) -> None:
        """A count above what there is would make a healthy shard look damaged; one that falls hides a loss."""
        manifest = msgspec.json.decode(data, type=_ManifestBody)
        if any(now < before for before, now in zip(self.counted, manifest.records, strict=False)):
            raise Violation(f"{applied.who} took a count down, from {self.counted} to {manifest.records}")
        self.counted = manifest.records
        for at, count in enumerate(manifest.records):
            there = len(self.shards.get(KEYS.shard(f"{at:0{DEPTH}x}"), ()))
            if count > there:
                raise Violation(f"{applied.who} counted {count} records in shard {at:x}, and there are {there}")
        for at, digest in enumerate(manifest.sums):
            self._recorded(applied, KEYS.shard(f"{at:0{DEPTH}x}"), digest)

    def _recorded(self, applied: BucketChange, shard: Key, digest: str) -> None:
        """The digest of a shard is one that it had, and never an older one than before."""
        if not digest:
            return
        before = self.recorded.get(shard, 0)
        found = [at for at, (each, _) in enumerate(self.history.get(shard, ())) if each == digest]
        if not found or found[-1] < before:
            raise Violation(f"{applied.who} recorded a digest of {shard} that it does not have any more, or never had")
        self.recorded[shard] = found[-1]

    def _arrives(self, applied: BucketChange, data: bytes) -> None:
        """A user's write, or a pack of some: nothing in it is new but what a user sent."""
        lines = lines_in(data)
        if applied.key.startswith(f"{KEYS.packs}/"):
            self._ordered(applied, lines)
        for line in lines:
            if line.rank not in self.model.sent.get(line.key, {}):
                raise Violation(f"{applied.who} put {line} into {applied.key}, and no user had sent it")
            self.landed.setdefault(line.key, {})[line.rank] = line
        self.waiting[applied.key] = lines

    def _forward(self, applied: BucketChange) -> None:
        """What is deleted lies further on: a single's lines in a pack or the shard, a pack's in the shard (F18).

        In the shard means: in one that the manifest records, so that a fold that is not recorded is noticed (F23).
        """
        lines = self.waiting.pop(applied.key, [])
        single = applied.key.startswith(f"{KEYS.inbox}/")
        for line in lines:
            key = KEYS.shard(_place(line.key)[:DEPTH])
            shard = self.history[key][self.recorded.get(key, 0)][1].get(line.key)
            if shard is not None and shard >= line.rank:
                continue
            packs = (other for key, held in self.waiting.items() if "/packs/" in key for other in held)
            if single and any(other.key == line.key and other.rank >= line.rank for other in packs):
                continue
            raise Violation(f"{applied.who} deleted {applied.key}, and {line} is nowhere further on")

    def _shard(self, applied: BucketChange) -> None:
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

    def _ordered(self, applied: BucketChange, lines: Sequence[IndexLine]) -> None:
        places = [_place(line.key) for line in lines]
        shard = applied.key.removeprefix(f"{KEYS.root}/").split("/")[1].removesuffix(".usv")
        if any(not place.startswith(shard) for place in places):
            raise Violation(f"{applied.who} put a record of another shard into {applied.key}")
        if any(place >= following for place, following in pairwise(places)):
            raise Violation(f"{applied.who} put {applied.key} out of order, or with one key twice")


def check_index(bucket: Bucket, calls: int, model: IndexModel) -> IndexHistory:
    """Every invariant of the index, when all is folded. Returns what it must hold.   Raises: Violation."""
    replay = IndexHistory(model)
    for applied in bucket.journal:
        replay.apply(applied)
    manifest = msgspec.json.decode(bucket.objects[KEYS.manifest].data, type=_ManifestBody)
    _nothing_waits(bucket)
    _all_is_recorded(bucket, manifest)
    _the_winners_stand(bucket, manifest, replay)
    _the_bad_is_kept(bucket, model)
    _described(bucket, manifest)
    if calls > BUDGET_BASE + BUDGET_PER_OPERATION * model.operations:
        raise Violation(f"{calls} requests for {model.operations} operations")
    return replay


def _place(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _digest(data: bytes) -> str:
    digest = hashlib.sha256(data).digest()[:16]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=") if data else "-"


def _nothing_waits(bucket: Bucket) -> None:
    left = [*bucket.below(KEYS.inbox), *bucket.below(KEYS.packs)]
    if left:
        raise Violation(f"after everything was folded there is still {left[0]}")


def _all_is_recorded(bucket: Bucket, manifest: _ManifestBody) -> None:
    """When nothing waits, the manifest has the digest of every shard."""
    for at, digest in enumerate(manifest.sums):
        shard = KEYS.shard(f"{at:0{DEPTH}x}")
        if digest != _digest(bucket.objects[shard].data):
            raise Violation(f"all is folded, and the manifest has another digest of {shard}: {digest!r}")


def _the_winners_stand(bucket: Bucket, manifest: _ManifestBody, replay: IndexHistory) -> None:
    """The shards hold the greatest of what landed for each key, tombstones too, in full width, and nothing else."""
    stands: dict[str, IndexLine] = {}
    for key in bucket.below(KEYS.shards):
        if not key.endswith(".usv"):
            continue
        lines = lines_in(bucket.objects[key].data)
        stands.update({line.key: line for line in lines})
        if any(line.width != len(manifest.fields) for line in lines):
            raise Violation(f"{key} has a line that is not padded to {len(manifest.fields)} columns")
    for line in replay.winners().values():
        if line.key not in stands:
            raise Violation(f"{line} landed, and is in no shard")
        if stands[line.key].rank != line.rank:
            raise Violation(f"{line} landed, and the shard has {stands[line.key]}")
    if extra := stands.keys() - replay.landed.keys():
        raise Violation(f"a shard has {min(extra)!r}, which no process wrote")


def _the_bad_is_kept(bucket: Bucket, model: IndexModel) -> None:
    kept = [msgspec.json.decode(bucket.objects[key].data, type=_Quarantined) for key in bucket.below(KEYS.quarantine)]
    for each in kept:
        if model.bad.get(Key(each.key)) != each.data:
            raise Violation(f"{each.key} was put into quarantine, and it was good")
    if missing := model.bad.keys() - {each.key for each in kept}:
        raise Violation(f"{min(missing)} could not be read, and was not kept")


def _described(bucket: Bucket, manifest: _ManifestBody) -> None:
    """Other tools are shown the columns that there are."""
    package = msgspec.json.decode(bucket.objects[KEYS.package].data)
    shown = [each["name"] for each in package["resources"][0]["schema"]["fields"]]
    if manifest.described == manifest.schema_version and shown != [each["name"] for each in manifest.fields]:
        raise Violation(f"{KEYS.package} shows the columns {shown}")
