"""Objects of another depth: what a reshard leaves behind, and what somebody wrote who did not know of it.

Their records are put where they belong before the object goes. A shard of another depth may still be written by a
compiler that was forgotten, so it is first swapped to a state on which nobody can build.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from limpet.errors import Corrupt, Missing
from limpet.index.decide import newest, rank, shard_of
from limpet.index.inspection import inspect
from limpet.index.manifest import Manifest
from limpet.index.offline import Whole, put_packs
from limpet.index.places import Place, place_of
from limpet.index.storage import SHARD_BYTES_MAX, Storage
from limpet.index.text import lines_of
from limpet.keys import Key
from limpet.store.api import Match, Version
from limpet.store.outcome import put_bytes

MOVED = b"the records of this shard lie in shards of another depth"
"""Without a line feed at its end, so that every reader and compiler refuses it."""

_HOLDING = ("pack", "shard", "single")


def strays_of(storage: Storage, depth: int) -> Iterator[tuple[Key, Place]]:
    """The objects of another depth that may hold records.   Cost: 1 LIST per 1,000 objects, 3 at least."""
    for prefix in (storage.keys.inbox, storage.keys.packs, storage.keys.shards):
        for stat in storage.store.list(prefix):
            place = place_of(storage.keys, stat.key)
            if place.role in _HOLDING and len(place.shard) != depth:
                yield stat.key, place


def retire(storage: Storage, key: Key, version: Version) -> None:
    """Remove a shard of another depth whose records are durable elsewhere, if it is still of that version.

    Raises: OutcomeUnknown if somebody wrote it since: it stays.   Cost: 1 PUT + 1 DELETE.
    Crash: a shard that says it has moved; it is removed by whoever comes next.
    """
    put_bytes(storage.store, storage.runtime, key, MOVED, Match(version), deletable=True)
    storage.store.delete(key)


class Strays:
    """Brings the records of strays home. The shard that was compared last is kept, since strays come in order."""

    def __init__(self, whole: Whole, manifest: Manifest) -> None:
        self._storage = whole.storage
        self._manifest = manifest
        self._schema = manifest.schema
        self._last: tuple[str, dict[bytes, bytes]] = ("", {})

    def bring_home(self, key: Key, place: Place) -> None:
        """Put the records of one stray where they belong, then remove it.

        Raises: Corrupt for one that cannot be read: it stays; OutcomeUnknown.
        Cost: 1 GET, 1 PUT for each shard that gets something, 1 DELETE; for a shard 1 PUT and 1 GET of each shard that
        its records belong to more.   Crash: the stray is still there, and doing it again changes nothing.
        """
        try:
            blob = self._storage.store.get(key, size_max=SHARD_BYTES_MAX)
        except Missing:
            return
        if place.role == "shard" and blob.data == MOVED:
            self._storage.store.delete(key)
            return
        found = inspect(blob.data, self._schema, self._manifest.depth, place.shard)
        if not found.readable:
            raise Corrupt(f"{key} {found.flaws[0].what}")
        lines = [*found.own, *found.others]
        if place.role == "shard":
            put_packs(self._storage, self._manifest, self._uncovered(lines))
            retire(self._storage, key, blob.version)
        else:
            put_packs(self._storage, self._manifest, lines)
            self._storage.store.delete(key)

    def _uncovered(self, lines: Sequence[bytes]) -> list[bytes]:
        """Those that their own shard does not have, or has an older record for."""
        shape = self._schema.shape
        missing: list[bytes] = []
        for place, line in sorted(newest(lines, shape).items()):
            standing = self._base(shard_of(place, self._manifest.depth)).get(place)
            if standing is None or rank(line, shape) > rank(standing, shape):
                missing.append(line)
        return missing

    def _base(self, shard: str) -> dict[bytes, bytes]:
        if self._last[0] != shard:
            what = self._storage.keys.shard(shard)
            lines = lines_of(self._storage.shard(shard).data, what=what)
            self._last = shard, newest(lines, self._schema.shape)
        return self._last[1]
