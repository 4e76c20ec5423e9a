"""What an index holds and what waits for its compilers, told by listings and the manifest alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from limpet.index.decide import shard_ids
from limpet.index.manifest import Manifest
from limpet.index.storage import Storage


@dataclass(frozen=True, slots=True)
class Waits:
    """Objects that wait to be compiled. `oldest_at` is the store's time of the oldest."""

    objects: int
    bytes: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard, by its id."""

    id: str
    bytes: int


@dataclass(frozen=True, slots=True)
class IndexStats:
    """An index in numbers.

    `records` and `bytes` are those of the compiled shards. Records count tombstones, as of the last compile run that
    told; None for an index of depth 4, which has too many shards to count. `compiled_at` is when a shard was last
    written, by the store's clock.
    """

    name: str
    key: str
    columns: int
    schema_version: int
    depth: int
    shards: int
    records: int | None
    bytes: int
    largest: Shard | None
    singles: Waits
    packs: Waits
    quarantined: int
    compiled_at: datetime | None

    @property
    def oldest_at(self) -> datetime | None:
        """When the oldest of what waits was put."""
        return min((at for at in (self.singles.oldest_at, self.packs.oldest_at) if at), default=None)


def stats(storage: Storage, name: str, manifest: Manifest) -> IndexStats:
    """Count an index. Reads only.

    Cost: 1 LIST per 1,000 objects in each of `shards/`, `inbox/`, `packs/` and `quarantine/`, at least 1 for each.
    """
    keys, store = storage.keys, storage.store
    ids = {keys.shard(shard): shard for shard in shard_ids(manifest.depth)}
    largest: Shard | None = None
    size = 0
    compiled_at: datetime | None = None
    for each in store.list(keys.shards):
        shard = ids.get(each.key)
        if shard is None or not each.size:
            continue
        size += each.size
        compiled_at = max(compiled_at or each.modified, each.modified)
        if largest is None or each.size > largest.bytes:
            largest = Shard(shard, each.size)
    return IndexStats(
        name=name,
        key=manifest.key,
        columns=len(manifest.schema.columns),
        schema_version=manifest.schema_version,
        depth=manifest.depth,
        shards=16**manifest.depth,
        records=sum(manifest.records) if manifest.records else None,
        bytes=size,
        largest=largest,
        singles=_waits(storage, keys.inbox),
        packs=_waits(storage, keys.packs),
        quarantined=sum(1 for _ in store.list(keys.quarantine)),
        compiled_at=compiled_at,
    )


def _waits(storage: Storage, folder: str) -> Waits:
    objects = size = 0
    oldest: datetime | None = None
    for each in storage.store.list(folder):
        objects += 1
        size += each.size
        oldest = min(oldest or each.modified, each.modified)
    return Waits(objects, size, oldest)
