"""The objects of one index, its manifest, and the order in which they are read.

Data moves only forward: from singles to packs or the shard, from packs to the shard. A reader that takes them in that
order, each step after the last has ended, misses nothing; an object that is gone when it is asked for was merged into
something that is read later. No name is ever used twice, so no delete, however late, can hit a newer object.

`manifest.json` has the columns, the number of shards, and what a compiler recorded of each shard, which readers and
`verify` compare it with (F23): the records and bytes that it has, and a digest of the bytes. It only moves forward
along the versions that the shard really had, and objects that were folded are deleted only once the fold is recorded.
docs/design/0005-index.md proves that a healthy shard is never refused.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Annotated, TypeVar

import msgspec

from limpet.cell import Cell, struct_codec
from limpet.errors import Corrupt, LimpetError, Missing, OutcomeUnknown
from limpet.index.codec.lines import (
    Fields,
    Schema,
)
from limpet.index.decide import DEPTHS, places_of, shard_of
from limpet.keys import IndexKeys, Key
from limpet.records import INTEGER_MAX, Name, Positive
from limpet.runtime import Runtime
from limpet.store.api import Blob, Put, Stat, Store, Version

COUNTED_DEPTH_MAX = 3
"""A deeper index has too many shards to record each in one small object."""

SUM_BYTES = 16
SUM_MAX = 64
_Number = Annotated[int, msgspec.Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)]
"""Below zero makes no sense, but verify says so and repairs it: one wrong count must not hide the whole index."""

_Sum = Annotated[str, msgspec.Meta(max_length=SUM_MAX)]
_OF_SHARDS = msgspec.Meta(max_length=16 ** DEPTHS[-1])
UNKNOWN_SUM = ""
EMPTY_SUM = "-"


class Manifest(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The fields of `manifest.json` beside the cell's header.

    `generation` rises with each reshard or purge; `described` is the schema version that datapackage.json shows.
    `records`, `sizes` (bytes) and `sums` (see `sum_of`) are by shard, as of the last fold that was recorded.
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

    @cached_property
    def schema(self) -> Schema:
        """The columns."""
        return Schema(self.fields, self.key)

    def count(self, shard: str) -> Count | None:
        """What the manifest records of a shard; None if it records nothing."""
        at = int(shard, 16)
        if at >= len(self.records) or at >= len(self.sizes):
            return None
        return Count(self.records[at], self.sizes[at], self.sums[at] if at < len(self.sums) else UNKNOWN_SUM)

    def size(self, shard: str) -> int:
        """How many bytes the manifest records of a shard; 0 if it records nothing."""
        count = self.count(shard)
        return count.size if count else 0


class Count(msgspec.Struct, frozen=True):
    """How many records and bytes a shard has, and the digest of its bytes; "" if none is recorded."""

    records: _Number
    size: _Number
    sum: _Sum = UNKNOWN_SUM


@dataclass(frozen=True, slots=True)
class Fold:
    """A shard that was put: what it has now, its version, and the digest of the bytes that it replaced."""

    count: Count
    version: Version
    base: str = UNKNOWN_SUM


def sum_of(data: bytes) -> str:
    """The digest of a shard's bytes: 128 bits of their SHA-256 in base 64, "-" for an empty shard."""
    return urlsafe_b64encode(sha256(data).digest()[:SUM_BYTES]).decode().rstrip("=") if data else EMPTY_SUM


def fresh(schema: Schema, depth: int) -> Manifest:
    """The manifest of a new index."""
    length = 16**depth if depth <= COUNTED_DEPTH_MAX else 0
    zeros = (0,) * length
    return Manifest(
        fields=schema.fields, key=schema.key, depth=depth, records=zeros, sizes=zeros, sums=(EMPTY_SUM,) * length
    )


def with_counts(manifest: Manifest, counts: Mapping[str, Count]) -> Manifest:
    """The manifest with these counts, whatever it said before; of shards that it never counted it says 0."""
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
    """The manifest with the folds that are provably newer than what it records, and the shards recorded so.

    A fold is newer if it replaced exactly the bytes that are recorded. Otherwise (another compiler has not recorded its
    own fold yet, or never will) it is recorded only if the shard is still of the fold's version: `is_current`, which
    must look after the manifest was read. What is not recorded is left to the compiler that folded after it.
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


def is_current(storage: IndexStorage, shard: str, version: Version) -> bool:
    """Whether the shard is of that version now.   Cost: 1 HEAD."""
    try:
        return storage.store.head(storage.keys.shard(shard)).version == version
    except Missing:
        return False


def manifest_cell(storage: IndexStorage) -> Cell[Manifest]:
    """The cell of an index's manifest."""
    return Cell(storage.store, storage.keys.manifest, struct_codec(Manifest), storage.runtime)


A = TypeVar("A")
B = TypeVar("B")

SHARD_BYTES_MAX = 2 << 30
WAITING_BYTES_MAX = 256 << 20
"""No Limpet writes a larger single or pack."""

DESCRIPTION_BYTES_MAX = 16 << 20
SENDS_MAX = 3
BACKOFF_S = 0.1


def batched(
    items: Iterable[A], size_of: Callable[[A], int], *, size: int, count: int | None = None
) -> Iterator[list[A]]:
    """The items in runs of at most `count` items and `size` bytes together; an item that is larger is a run alone."""
    batch: list[A] = []
    total = 0
    for item in items:
        more = size_of(item)
        if batch and (len(batch) == count or total + more > size):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += more
    if batch:
        yield batch


def lost_records(what: str, number: int, recorded: int, *, note: str) -> Corrupt:
    """The error for a shard with fewer records than the manifest records (F23)."""
    return Corrupt(
        f"{what} has {number} records, and had {recorded} before: some are lost",
        hint=f"restore it from a backup, or `limpet index verify --accept-loss`{note}",
    )


def changed_bytes(what: str, *, note: str) -> Corrupt:
    """The error for a shard whose bytes no compiler wrote (F23)."""
    return Corrupt(
        f"{what} has other bytes than those that were compiled: it was changed since",
        hint=f"restore it from a backup, or `limpet index verify --accept-loss`{note}",
    )


@dataclass(frozen=True, slots=True)
class WaitingShards:
    """The shards in which something waits to be compiled, by where it waits.

    `singles` was listed before `packs`. A shard in neither has everything in its base that was there before.
    """

    singles: frozenset[str]
    packs: frozenset[str]

    @property
    def shards(self) -> frozenset[str]:
        """All of them. The singles of one may have become a pack since it was listed: look for its packs too."""
        return self.singles | self.packs


NONE_WAIT = WaitingShards(frozenset(), frozenset())


class IndexStorage:
    """Reads and writes objects; decides nothing."""

    def __init__(self, store: Store, keys: IndexKeys, runtime: Runtime) -> None:
        self.store = store
        self.keys = keys
        self.runtime = runtime

    def work(self) -> WaitingShards:
        """Where something waits.   Cost: 2 LISTs, one of `inbox/`, then one of `packs/`, by their folders."""
        singles = frozenset(self.store.list_dirs(self.keys.inbox))
        return WaitingShards(singles, frozenset(self.store.list_dirs(self.keys.packs)))

    def singles(self, shard: str) -> list[Stat]:
        """The singles of a shard.   Cost: 1 LIST per 1,000."""
        return [*self.store.list(self.keys.inbox_of(shard))]

    def singles_of(self, shard: str, key: str) -> list[Stat]:
        """The singles of one record, the newest last.   Cost: 1 LIST per 1,000."""
        return [*self.store.list(self.keys.inbox_of(shard, key))]

    def packs(self, shard: str) -> list[Stat]:
        """The packs of a shard.   Cost: 1 LIST per 1,000."""
        return [*self.store.list(self.keys.packs_of(shard))]

    def is_pack(self, key: Key) -> bool:
        """Whether an object that waits is a pack, and no single."""
        return key.startswith(f"{self.keys.packs}/")

    def read(self, keys: Iterable[Key]) -> dict[Key, bytes]:
        """The objects that are still there: a missing one was merged, and its data lies further on.

        Raises: whatever else a read met (F23: never an empty result).   Cost: 1 GET each, a bounded number at once.
        """
        found: dict[Key, bytes] = {}
        for key, outcome in self.store.get_many(keys, size_max=WAITING_BYTES_MAX).items():
            if isinstance(outcome, Missing):
                continue
            if isinstance(outcome, LimpetError):
                raise outcome
            found[key] = outcome.data
        return found

    def waiting(self, shard: str, work: WaitingShards | None = None) -> dict[Key, bytes]:
        """What waits for a shard: its singles, then its packs. `work` may say that there is nothing to look for.

        Cost: 2 LISTs (none for what `work` rules out) + 1 GET an object.
        """
        data: dict[Key, bytes] = {}
        if work is None or shard in work.singles:
            data |= self.read([stat.key for stat in self.singles(shard)])
        if work is None or shard in work.shards:
            data |= self.read([stat.key for stat in self.packs(shard)])
        return data

    def shard(self, shard: str) -> Blob:
        """The shard as it is now.   Raises: Corrupt if it is not there: `create` wrote every one.   Cost: 1 GET."""
        try:
            return self.store.get(self.keys.shard(shard), size_max=SHARD_BYTES_MAX)
        except Missing:
            raise self.no_shard(shard) from None

    def shards(self, shards: Sequence[str]) -> dict[str, Blob]:
        """Those shards as they are now.   Raises: as `shard`.   Cost: 1 GET each, a bounded number at once."""
        found: dict[str, Blob] = {}
        outcomes = self.store.get_many([self.keys.shard(shard) for shard in shards], size_max=SHARD_BYTES_MAX)
        for shard in shards:
            outcome = outcomes[self.keys.shard(shard)]
            if isinstance(outcome, Missing):
                raise self.no_shard(shard)
            if isinstance(outcome, LimpetError):
                raise outcome
            found[shard] = outcome
        return found

    def for_each(self, act: Callable[[A], B], items: Iterable[A]) -> list[B]:
        """What `act` returns for each item, a bounded number at once.   Raises: the first LimpetError, after all."""

        def one(item: A) -> B | LimpetError:
            try:
                return act(item)
            except LimpetError as error:
                return error

        done: list[B] = []
        failed: LimpetError | None = None
        for outcome in self.runtime.fan_out(one, items, at_once=self.store.at_once):
            if isinstance(outcome, LimpetError):
                failed = failed or outcome
            else:
                done.append(outcome)
        if failed is not None:
            raise failed
        return done

    def exists(self, key: Key) -> bool:
        """Whether there is such an object.   Cost: 1 HEAD."""
        try:
            self.store.head(key)
        except Missing:
            return False
        return True

    def shard_size(self, shard: str) -> int:
        """How many bytes the shard has now.   Raises: Corrupt if it is not there.   Cost: 1 HEAD."""
        try:
            return self.store.head(self.keys.shard(shard)).size
        except Missing:
            raise self.no_shard(shard) from None

    def no_shard(self, shard: str) -> Corrupt:
        """The error for a shard that is not there (F23)."""
        return Corrupt(
            f"{self.keys.shard(shard)} is missing, and an index always has all its shards",
            hint="if the index was resharded, start this program again; else restore it, see `limpet index verify`",
        )

    def add(self, key: Key, data: bytes) -> None:
        """Write an object with a unique name; send the same bytes again if the outcome is unknown.

        Raises: OutcomeUnknown after three sends.   Cost: 1 PUT.   Crash: there or not, whole.
        """
        for sent in range(1, SENDS_MAX + 1):
            try:
                self.store.put(key, data)
            except OutcomeUnknown:
                if sent == SENDS_MAX:
                    raise
                self.runtime.sleep(self.runtime.rng.uniform(0.5, 1.0) * BACKOFF_S * sent)
            else:
                return

    def add_many(self, puts: Sequence[Put]) -> None:
        """`add` for each, a bounded number at once.   Raises: the first error, when all have been tried."""
        for put, outcome in zip(puts, self.store.put_many(puts).values(), strict=True):
            if isinstance(outcome, OutcomeUnknown):
                self.add(put.key, put.data)
            elif isinstance(outcome, LimpetError):
                raise outcome

    def remove(self, keys: Collection[Key]) -> None:
        """Delete what was merged. What cannot be deleted now is merged again by a later run (F20).

        Cost: 1 DELETE each, a bounded number at once.
        """
        self.store.delete_many(keys)


def placed(schema: Schema, depth: int, shard: str, data: bytes, *, what: str) -> tuple[list[bytes], list[bytes]]:
    """The digests of the keys and the lines of an object that waits for a shard.

    Raises: Corrupt for a bad line, or one of another shard.
    """
    lines = schema.lines(data, what=what)
    places = places_of(lines, schema.shape)
    if places and not shard == shard_of(min(places), depth) == shard_of(max(places), depth):
        number, of = next((n, of) for n, place in enumerate(places, 1) if (of := shard_of(place, depth)) != shard)
        raise Corrupt(f"{what}: line {number} belongs to shard {of}")
    return places, lines
