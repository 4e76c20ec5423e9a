"""The objects of one index, its manifest, and the order in which they are read.

Data moves only forward: from singles to packs or the shard, from packs to the shard. A reader that reads them in that
order, one step after the other, misses nothing: an object that is missing when it is read was merged into one that is
read later. No name is ever reused, so a late delete cannot remove a newer object.

`manifest.json` holds the columns, the number of shards, and for each shard the number of records, the size and a digest
of the bytes, as a compiler recorded them. Readers and `verify` compare shards with it (F23). Recorded values only
advance along versions that the shard really had, and folded objects are deleted only after the fold is recorded.
docs/inside/decisions/0005-index.md proves that a healthy shard is never refused.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from typing import Annotated, TypeVar

import msgspec

from limpet.index.codec import Fields, Schema
from limpet.index.decide import DEPTHS, places_of, shard_ids, shard_of
from limpet.kernel.cell import Cell, Codec, struct_codec
from limpet.kernel.drop import being_dropped
from limpet.kernel.errors import Corrupt, LimpetError, Missing, OutcomeUnknown
from limpet.kernel.keys import IndexKeys, Key, is_key, name_of
from limpet.kernel.records import INTEGER_MAX, RECORD_BYTES_MAX, Name, Positive, decode
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Blob, Put, Stat, Store, Version
from limpet.kernel.waiting import SENDS_MAX, attempts
from limpet.kernel.wording import many

DROPPING_SCHEMA = 2
COUNTED_DEPTH_MAX = 3
"""A deeper index has too many shards to record them in one small object."""

SUM_BYTES = 16
SUM_MAX = 64
_Number = Annotated[int, msgspec.Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)]
"""Negative values are allowed here, so that `verify` can report and repair them: one must not hide an index."""

_Sum = Annotated[str, msgspec.Meta(max_length=SUM_MAX)]
_OF_SHARDS = msgspec.Meta(max_length=16 ** DEPTHS[-1])
UNKNOWN_SUM = ""
EMPTY_SUM = "-"


class Manifest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The fields of `manifest.json` beside the cell's header.

    `generation` increases with each reshard or purge; `described` is the schema version in datapackage.json. `records`,
    `sizes` (bytes) and `sums` (see `sum_of`) are by shard, as of the last recorded fold.
    """

    fields: Fields
    key: Name
    depth: Annotated[int, msgspec.Meta(ge=1, le=DEPTHS[-1])]
    generation: Positive = 1
    schema_version: Positive = 1
    described: Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)] = 0
    records: Annotated[tuple[_Number, ...], _OF_SHARDS] = ()
    sizes: Annotated[tuple[_Number, ...], _OF_SHARDS] = ()
    sums: Annotated[tuple[_Sum, ...], _OF_SHARDS] = ()
    dropping: bool | msgspec.UnsetType = msgspec.UNSET
    """Set while the index is being dropped. Then its schema is one that older versions refuse."""

    @property
    def is_dropping(self) -> bool:
        """Whether it is being dropped."""
        return self.dropping is True

    @cached_property
    def schema(self) -> Schema:
        """The columns."""
        return Schema(self.fields, self.key)

    def count(self, shard: str) -> Count | None:
        """What the manifest records of a shard; None if nothing."""
        at = int(shard, 16)
        if at >= len(self.records) or at >= len(self.sizes):
            return None
        return Count(self.records[at], self.sizes[at], self.sums[at] if at < len(self.sums) else UNKNOWN_SUM)

    def size(self, shard: str) -> int:
        """The recorded size of a shard in bytes; 0 if nothing is recorded."""
        count = self.count(shard)
        return count.size if count else 0


class Count(msgspec.Struct, frozen=True):
    """How many records and bytes a shard has, and the digest of its bytes; "" if none is recorded."""

    records: _Number
    size: _Number
    sum: _Sum = UNKNOWN_SUM


@dataclass(frozen=True, slots=True)
class Fold:
    """A shard after a fold: its counts, its version, and the digest of the bytes that were replaced."""

    count: Count
    version: Version
    base: str = UNKNOWN_SUM


def sum_of(data: bytes) -> str:
    """The digest of a shard's bytes: 128 bits of their SHA-256 in base 64, "-" for an empty shard."""
    return shortened(sha256(data).digest()) if data else EMPTY_SUM


def shortened(digest: bytes) -> str:
    """A SHA-256 digest as the manifest records it."""
    return urlsafe_b64encode(digest[:SUM_BYTES]).decode().rstrip("=")


def fresh(schema: Schema, depth: int) -> Manifest:
    """The manifest of a new index."""
    length = 16**depth if depth <= COUNTED_DEPTH_MAX else 0
    zeros = (0,) * length
    return Manifest(
        fields=schema.fields, key=schema.key, depth=depth, records=zeros, sizes=zeros, sums=(EMPTY_SUM,) * length
    )


def with_counts(manifest: Manifest, counts: Mapping[str, Count]) -> Manifest:
    """The manifest with these counts; 0 for shards that were never counted."""
    if manifest.depth > COUNTED_DEPTH_MAX:
        return msgspec.structs.replace(manifest, records=(), sizes=(), sums=())
    length = 16**manifest.depth
    records = [max(0, number) for number in (*manifest.records, *[0] * length)][:length]
    sizes = [max(0, number) for number in (*manifest.sizes, *[0] * length)][:length]
    sums = [*manifest.sums, *[UNKNOWN_SUM] * length][:length]
    for shard, count in counts.items():
        at = int(shard, 16)
        records[at], sizes[at], sums[at] = count.records, count.size, count.sum
    return msgspec.structs.replace(manifest, records=tuple(records), sizes=tuple(sizes), sums=tuple(sums))


def noted(
    manifest: Manifest, folds: Mapping[str, Fold], is_current: Callable[[str, Version], bool]
) -> tuple[Manifest, frozenset[str]]:
    """The manifest with those folds that are provably newer than what it records, and the shards of those.

    A fold is newer if it replaced exactly the recorded bytes. Otherwise (another compiler has not recorded its own fold
    yet, or never will) it is recorded only if the shard still has the fold's version: `is_current`, which must be
    called after the manifest was read. Other folds are left to the compiler that folded later.
    """
    if manifest.depth > COUNTED_DEPTH_MAX:
        return manifest, frozenset(folds)
    newer: dict[str, Count] = {}
    recorded: set[str] = set()
    for shard, fold in folds.items():
        known = manifest.count(shard) or Count(0, 0)
        if known == fold.count:
            recorded.add(shard)
        elif (known.sum and known.sum == fold.base) or is_current(shard, fold.version):
            newer[shard] = fold.count
            recorded.add(shard)
    return with_counts(manifest, newer) if newer else manifest, frozenset(recorded)


def manifest_cell(storage: IndexStorage) -> Cell[Manifest]:
    """The cell of an index's manifest."""
    name = name_of(storage.keys.root.rpartition("/")[2])
    return _manifest_cell(storage, Codec(Manifest, None, partial(_open_manifest, name)), name)


def closed_manifest_cell(storage: IndexStorage) -> Cell[Manifest]:
    """As `manifest_cell`, for a process that drops the index: also where it is being dropped."""
    codec = replace(struct_codec(Manifest), schema_of=lambda manifest: DROPPING_SCHEMA if manifest.is_dropping else 1)
    return _manifest_cell(storage, codec, name_of(storage.keys.root.rpartition("/")[2]))


def _open_manifest(name: str, data: bytes, what: str) -> Manifest:
    manifest = decode(data, Manifest, what=what)
    if manifest.is_dropping:
        raise being_dropped("index", name)
    return manifest


def _manifest_cell(storage: IndexStorage, codec: Codec[Manifest], name: str) -> Cell[Manifest]:
    codec = replace(codec, schema_max=DROPPING_SCHEMA)
    remedy = (
        f"restore it from a backup; if another program wrote it, stop that, and `limpet index adopt {name} --quiesced` "
        "makes an index of its files"
    )
    return Cell(storage.store, storage.keys.manifest, codec, storage.runtime, remedy=remedy)


A = TypeVar("A")
B = TypeVar("B")

SHARD_BYTES_MAX = 2 << 30
WAITING_BYTES_MAX = 256 << 20
"""Limpet never writes a larger single or pack."""

DESCRIPTION_BYTES_MAX = 16 << 20
LOOKUPS_AT_ONCE = 128
"""Concurrent lookups on a far store, where each of them mostly waits."""


def lost_records(what: str, number: int, recorded: int, *, note: str) -> Corrupt:
    """The error for a shard with fewer records than the manifest says (F23)."""
    return Corrupt(
        f"{what} has {many(number, 'record')}, and had {recorded} before: some are lost",
        hint=f"restore it from a backup, or `limpet index verify --accept-loss`{note}",
    )


def changed_bytes(what: str, *, note: str) -> Corrupt:
    """The error for a shard with bytes that no compiler wrote (F23)."""
    return Corrupt(
        f"{what} was changed since it was compiled: its digest differs",
        hint=f"restore it from a backup, or `limpet index verify --accept-loss`{note}",
    )


@dataclass(frozen=True, slots=True)
class WaitingShards:
    """The shards with objects that wait to be compiled: singles, packs.

    `singles` was listed before `packs`. A shard in neither set has all earlier records in its base.
    """

    singles: frozenset[str]
    packs: frozenset[str]

    @property
    def shards(self) -> frozenset[str]:
        """All of them. The singles of a shard may have become a pack since they were listed: look for its packs too."""
        return self.singles | self.packs


NONE_WAIT = WaitingShards(frozenset(), frozenset())


class IndexStorage:
    """Reads and writes objects; decides nothing."""

    def __init__(self, store: Store, keys: IndexKeys, runtime: Runtime) -> None:
        self.store = store
        self.keys = keys
        self.runtime = runtime

    def work(self) -> WaitingShards:
        """The shards with waiting objects.   Cost: 2 LISTs of folders: `inbox/`, then `packs/`."""
        singles = frozenset(self.store.list_dirs(self.keys.inbox))
        return WaitingShards(singles, frozenset(self.store.list_dirs(self.keys.packs)))

    def singles(self, shard: str, key: str | None = None) -> list[Stat]:
        """The singles of a shard, or of one record, the newest last.   Cost: 1 LIST per 1,000."""
        return self._listed(self.keys.inbox_of(shard, key))

    def packs(self, shard: str) -> list[Stat]:
        """The packs of a shard.   Cost: 1 LIST per 1,000."""
        return self._listed(self.keys.packs_of(shard))

    def _listed(self, prefix: str) -> list[Stat]:
        """The objects below a prefix, without names that are not valid keys: other programs wrote those."""
        return [stat for stat in self.store.list(prefix) if is_key(stat.key)]

    def is_pack(self, key: Key) -> bool:
        """Whether a waiting object is a pack, not a single."""
        return key.startswith(f"{self.keys.packs}/")

    def blobs(self, keys: Iterable[Key], size_max: int = RECORD_BYTES_MAX) -> dict[Key, Blob]:
        """The objects that exist.   Raises: any other read error (F23: never an empty result).

        Cost: 1 GET each, with bounded concurrency.
        """
        found: dict[Key, Blob] = {}
        for key, outcome in self.store.get_many(keys, size_max=size_max).items():
            if isinstance(outcome, Missing):
                continue
            if isinstance(outcome, LimpetError):
                raise outcome
            found[key] = outcome
        return found

    def read(self, keys: Iterable[Key]) -> dict[Key, bytes]:
        """The waiting objects that still exist: a missing one was merged into an object that is read later.

        Raises, Cost: as `blobs`.
        """
        return {key: blob.data for key, blob in self.blobs(keys, WAITING_BYTES_MAX).items()}

    def waiting(self, shard: str, work: WaitingShards | None = None) -> dict[Key, bytes]:
        """The objects that wait for a shard: its singles, then its packs. `work` may rule out one or both.

        Cost: 2 LISTs (none where `work` rules it out) + 1 GET an object.
        """
        data: dict[Key, bytes] = {}
        if work is None or shard in work.singles:
            data |= self.read([stat.key for stat in self.singles(shard)])
        if work is None or shard in work.shards:
            data |= self.read([stat.key for stat in self.packs(shard)])
        return data

    def shard(self, shard: str) -> Blob:
        """The current shard.   Raises: Corrupt if it is missing: `create` wrote all of them.   Cost: 1 GET."""
        try:
            return self.store.get(self.keys.shard(shard), size_max=SHARD_BYTES_MAX)
        except Missing:
            raise self.no_shard(shard) from None

    def shards(self, shards: Sequence[str]) -> dict[str, Blob]:
        """The current shards.   Raises: as `shard`.   Cost: 1 GET each, with bounded concurrency."""
        blobs = self.blobs([self.keys.shard(shard) for shard in shards], SHARD_BYTES_MAX)
        for shard in shards:
            if self.keys.shard(shard) not in blobs:
                raise self.no_shard(shard)
        return {shard: blobs[self.keys.shard(shard)] for shard in shards}

    def for_each(self, act: Callable[[A], B], items: Iterable[A], *, at_once: int | None = None) -> list[B]:
        """`act` for each item, with bounded concurrency.   Raises: the first LimpetError, after all have run."""

        def one(item: A) -> B | LimpetError:
            try:
                return act(item)
            except LimpetError as error:
                return error

        done: list[B] = []
        failed: LimpetError | None = None
        for outcome in self.runtime.fan_out(one, items, at_once=at_once or self.store.at_once):
            if isinstance(outcome, LimpetError):
                failed = failed or outcome
            else:
                done.append(outcome)
        if failed is not None:
            raise failed
        return done

    def together(self, jobs: Sequence[Callable[[], B]]) -> list[B]:
        """Run small lookups on a far store, many concurrently.   Raises: the first LimpetError, after all have run."""
        return self.for_each(lambda job: job(), jobs, at_once=LOOKUPS_AT_ONCE)

    def shard_stat(self, shard: str) -> Stat:
        """Current size and version of a shard.   Raises: Corrupt if it is missing.   Cost: 1 HEAD."""
        try:
            return self.store.head(self.keys.shard(shard))
        except Missing:
            raise self.no_shard(shard) from None

    def shard_stats(self, depth: int) -> dict[str, Stat]:
        """`shard_stat` of every shard. A listing is only a hint (F22): a shard that it does not show is looked up.

        Cost: 1 LIST per 1,000 shards and locks.
        """
        listed = {stat.key: stat for stat in self.store.list(self.keys.shards)}
        return {shard: listed.get(self.keys.shard(shard)) or self.shard_stat(shard) for shard in shard_ids(depth)}

    def is_current(self, shard: str, version: Version) -> bool:
        """Whether the shard still has this version.   Cost: 1 HEAD."""
        try:
            return self.store.head(self.keys.shard(shard)).version == version
        except Missing:
            return False

    def no_shard(self, shard: str) -> Corrupt:
        """The error for a missing shard (F23)."""
        return Corrupt(
            f"{self.keys.shard(shard)} is missing, and an index always has all its shards",
            hint="if the index was resharded, start this program again; else restore it, see `limpet index verify`",
        )

    def add(self, key: Key, data: bytes) -> None:
        """Write an object with a unique name, repeating the write if its outcome is unknown.

        Raises: OutcomeUnknown after three attempts.   Cost: 1 PUT.   Crash: written entirely or not at all.
        """
        for sent in attempts(self.runtime, SENDS_MAX):
            try:
                self.store.put(key, data)
                return
            except OutcomeUnknown:
                if sent == SENDS_MAX:
                    raise

    def add_many(self, puts: Sequence[Put]) -> None:
        """`add` for each, with bounded concurrency.   Raises: the first error, after all were tried."""
        for put, outcome in zip(puts, self.store.put_many(puts).values(), strict=True):
            if isinstance(outcome, OutcomeUnknown):
                self.add(put.key, put.data)
            elif isinstance(outcome, LimpetError):
                raise outcome

    def remove(self, keys: Collection[Key]) -> None:
        """Delete merged objects. One that cannot be deleted now is merged again by a later run (F20).

        Cost: 1 DELETE each, with bounded concurrency.
        """
        self.store.delete_many(keys)


def placed(schema: Schema, depth: int, shard: str, data: bytes, *, what: str) -> tuple[list[bytes], list[bytes]]:
    """The key digests and the lines of an object that waits for a shard.

    Raises: Corrupt for an invalid line, or one that belongs to another shard.
    """
    lines = schema.lines(data, what=what)
    places = places_of(lines, schema.shape)
    if places and not shard == shard_of(min(places), depth) == shard_of(max(places), depth):
        number, of = next((n, of) for n, place in enumerate(places, 1) if (of := shard_of(place, depth)) != shard)
        raise Corrupt(f"{what}: line {number} belongs to shard {of}")
    return places, lines
