"""The compiled shards of an index as parts: what is copied elsewhere as one file, and from which version it was made.

Sixteen neighbouring shards are one part while they are small, so that a small index is few files; once they are large,
each shard is a part of its own, so that a change copies little. Which it is follows from the sizes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from limpet.errors import LimpetError, Missing
from limpet.index.decide import shard_ids
from limpet.index.manifest import Manifest
from limpet.index.reader import Reader
from limpet.index.storage import SHARD_BYTES_MAX, Storage
from limpet.store.api import Blob, Stat

NEIGHBOURS = 16
PART_BYTES = 4 << 20
"""Up to so many bytes together, neighbours are one part."""

BATCH_BYTES = 32 << 20
VERSION_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring shards that are not empty. `name` is what their ids begin with.

    `version` is another one when any of them is, and when one more is not empty.
    """

    name: str
    shards: tuple[str, ...]
    version: str
    size: int


class Compiled:
    """Lists and reads the shards of an index, as its manifest is. What waits for a compiler is not looked at."""

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self._storage = storage
        self._manifest = manifest
        self._reader = Reader(storage, manifest)

    def parts(self, part_bytes: int = PART_BYTES) -> list[Part]:
        """The parts that are not empty, as they are now.

        Raises: Corrupt for a shard that is not there, or lost records.   Cost: 1 LIST per 1,000 shards and locks; as
        `Reader.demand_whole`.
        """
        keys = self._storage.keys
        found = {stat.key: stat for stat in self._storage.store.list(keys.shards)}
        listed = {shard: found.get(keys.shard(shard)) for shard in shard_ids(self._manifest.depth)}
        stats = {shard: stat or self._look(shard) for shard, stat in listed.items()}
        for shard, stat in stats.items():
            self._reader.demand_whole(shard, stat.size)
        return parts_of(stats, part_bytes)

    def _look(self, shard: str) -> Stat:
        """A shard that a listing does not show, which is only a hint (F22).   Raises: Corrupt.   Cost: 1 HEAD."""
        try:
            return self._storage.store.head(self._storage.keys.shard(shard))
        except Missing:
            raise self._storage.no_shard(shard) from None

    def read(self, parts: Sequence[Part]) -> Iterator[tuple[Part, list[bytes]]]:
        """Each part as it was read, which may be newer than it was listed, and its live lines.

        Memory is bounded by 32 MiB of shards, or the largest part.   Raises: Corrupt.   Cost: 1 GET a shard.
        """
        schema, keys = self._manifest.schema, self._storage.keys
        for batch in _batches(parts):
            shards = [shard for part in batch for shard in part.shards]
            blobs = self._storage.store.get_many([keys.shard(shard) for shard in shards], size_max=SHARD_BYTES_MAX)
            for part in batch:
                lines: list[bytes] = []
                read: dict[str, Blob] = {}
                for shard in part.shards:
                    blob = blobs[keys.shard(shard)]
                    if isinstance(blob, Missing):
                        raise self._storage.no_shard(shard)
                    if isinstance(blob, LimpetError):
                        raise blob
                    read[shard] = blob
                    some = schema.lines(blob.data, what=keys.shard(shard))
                    self._reader.demand_records(shard, len(some))
                    lines += some
                yield replace(part, version=_version(read)), [line for line in lines if not schema.is_gone(line)]


def parts_of(shards: Mapping[str, Stat], part_bytes: int) -> list[Part]:
    """The parts of all the shards of an index, in their order, without empty ones. Pure."""
    ids = [*shards]
    parts: list[Part] = []
    for at in range(0, len(ids), NEIGHBOURS):
        some = ids[at : at + NEIGHBOURS]
        whole = _part(some[0][:-1], some, shards)
        parts += [whole] if whole.size <= part_bytes else [_part(shard, [shard], shards) for shard in some]
    return [part for part in parts if part.size]


def _part(name: str, ids: Sequence[str], shards: Mapping[str, Stat]) -> Part:
    found = {shard: shards[shard] for shard in ids if shards[shard].size}
    return Part(name, tuple(found), _version(found), sum(stat.size for stat in found.values()))


def _version(found: Mapping[str, Stat | Blob]) -> str:
    told = "".join(f"{shard} {each.version}\n" for shard, each in found.items())
    return sha256(told.encode()).hexdigest()[:VERSION_CHARACTERS]


def _batches(parts: Sequence[Part]) -> Iterator[list[Part]]:
    batch: list[Part] = []
    size = 0
    for part in parts:
        if batch and size + part.size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += part.size
    if batch:
        yield batch
