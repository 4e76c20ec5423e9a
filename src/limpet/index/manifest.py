"""`manifest.json`: the columns of an index, how many shards it has, and what a compiler recorded of each.

What is recorded of a shard is what readers and `verify` compare it with (F23): the records and bytes that it has, and a
digest of the bytes. It only moves forward along the versions that the shard really had, and objects that were folded
are deleted only once the fold is recorded. docs/design/0005-index.md proves that a healthy shard is never refused.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Annotated

import msgspec

from limpet.cell import Cell, struct_codec
from limpet.errors import Missing
from limpet.index.decide import DEPTHS
from limpet.index.fields import Fields
from limpet.index.schema import Schema
from limpet.index.storage import Storage
from limpet.records import INTEGER_MAX, Name, Positive
from limpet.store.api import Version

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

    `generation` rises when shards are laid out anew; `described` is the schema version that datapackage.json shows.
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


class Count(msgspec.Struct, frozen=True):
    """How many records and bytes a shard has, and the digest of its bytes; "" if nobody recorded one."""

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
    must look after the manifest was read. What is not recorded is left to whoever folded after it.
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


def is_current(storage: Storage, shard: str, version: Version) -> bool:
    """Whether the shard is of that version now.   Cost: 1 HEAD."""
    try:
        return storage.store.head(storage.keys.shard(shard)).version == version
    except Missing:
        return False


def manifest_cell(storage: Storage) -> Cell[Manifest]:
    """The cell of an index's manifest."""
    return Cell(storage.store, storage.keys.manifest, struct_codec(Manifest), storage.runtime)
