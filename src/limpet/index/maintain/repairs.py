"""Repairs of an index: what a verification found is moved to quarantine, folded again or described again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from limpet.index.compiler import keep
from limpet.index.decide import merge, newest, packed, rank, shard_of
from limpet.index.describe import descriptions
from limpet.index.maintain import WholeIndex, checked_lines, load, lower, put_packs, record
from limpet.index.maintain.flaws import MOVED, Inspected, ObjectPlace, good_lines, inspect, place_of, retire
from limpet.index.storage import SHARD_BYTES_MAX, WAITING_BYTES_MAX, Count, Fold, Manifest, sum_of
from limpet.index.values import lines_of
from limpet.kernel.errors import Conflict, Corrupt, LimpetError, Missing, OutcomeUnknown
from limpet.kernel.keys import Key
from limpet.kernel.store.api import Absent, Match, Version
from limpet.kernel.store.outcome import put_bytes
from limpet.kernel.wording import many

_ORDER = ("shard", "single", "pack", "described")


class Repairs:
    """Repairs objects of one index, each after reading it again.

    Cost: a shard 1 GET + 1 PUT and a swap of the manifest, and 1 PUT for each shard that gets records back; a single
    1 GET + 1 PUT + 1 DELETE; a pack 2 GETs + 1 PUT + 1 DELETE and a swap; a misplaced object see `move`;
    a description 2 GETs + 1 PUT; counts 1 swap and 1 HEAD for each shard that is not recorded so.
    """

    def __init__(self, whole: WholeIndex, manifest: Manifest, folds: Mapping[str, Fold]) -> None:
        self._whole = whole
        self._storage = whole.storage
        self._manifest = manifest
        self._schema = manifest.schema
        self._folds = {**folds}
        self._written = False
        self._compared: tuple[str, dict[bytes, bytes]] = ("", {})
        """Cache of the shard that a misplaced object was last compared with: they come in the order of shards."""

    def run(self, keys: Iterable[Key]) -> dict[Key, LimpetError | None]:
        """Repair these objects; returns for each None, or the error. Shards come first: the rest depends on them.

        Raises: errors that concern all repairs (Unavailable, Denied).
        """
        places = {key: place_of(self._storage.keys, key) for key in keys}
        outcomes: dict[Key, LimpetError | None] = dict.fromkeys(places)
        if self._storage.keys.manifest in places:
            self._count()
            self._manifest = load(self._whole).value  # the rest uses its counts
        for key, place in sorted(
            places.items(), key=lambda item: (self._is_misplaced(item[1]), _ORDER.index(item[1].role))
        ):
            try:
                self._one(key, place)
            except (Conflict, Corrupt, OutcomeUnknown) as error:
                outcomes[key] = error
        if self._written:
            self._count()
        return outcomes

    def accept_loss(self, key: Key, shard: str, reason: str) -> str:
        """Replace a damaged shard by its valid lines, sorted. Returns a summary of records kept and lost.

        First its bytes are copied to quarantine, then the counts in the manifest are lowered, then the shard is put.
        Raises: Corrupt for a shard that is too large to be read; Conflict or OutcomeUnknown if others write it.
        Cost: 1 GET, 2 PUTs, 2 swaps.   Crash: nothing is lost; run it again.
        """
        known = self._manifest.count(shard)
        try:
            blob = self._storage.store.get(key, size_max=SHARD_BYTES_MAX)
        except Missing:
            blob = None
        data = blob.data if blob else b""
        kept = newest(good_lines(data, self._schema, self._manifest.depth, shard), self._schema.shape)
        left = packed(kept, self._schema.shape)
        lost = max(known.records - len(kept), 0) if known else None
        summary = f"{many(len(kept), 'record')} kept, {'an unknown number' if lost is None else lost} lost"
        keep(self._storage, shard, key, data if left != data else b"", f"{reason}; the loss was accepted: {summary}")
        if left != data or blob is None:
            self._swap(shard, left, blob.version if blob else None, len(kept))
        else:
            count = Count(len(kept), len(left), sum_of(left))
            lower(self._whole, self._manifest, {shard: count})
            self._folds[shard] = Fold(count, blob.version)
        self._count()
        return summary

    def move(self, key: Key, place: ObjectPlace) -> None:
        """Move the records of an object of another depth to their shards, then remove it.

        Raises: Corrupt if it cannot be read: it stays; OutcomeUnknown.
        Cost: 1 GET, 1 PUT for each shard that gets something, 1 DELETE; for a shard 1 PUT and 1 GET of each shard that
        its records belong to more.   Crash: the object still exists, and the move can be repeated.
        """
        try:
            blob = self._storage.store.get(key, size_max=SHARD_BYTES_MAX)
        except Missing:
            return
        if place.role == "shard" and blob.data == MOVED:
            self._storage.store.delete(key)
            return
        found = self._inspected(key, place.shard, blob.data)
        lines = [*found.own, *found.others]
        if place.role == "shard":
            put_packs(self._storage, self._manifest, self._uncovered(lines))
            retire(self._storage, key, blob.version)
        else:
            put_packs(self._storage, self._manifest, lines)
            self._storage.store.delete(key)

    def _uncovered(self, lines: Sequence[bytes]) -> list[bytes]:
        """The lines that are missing from their shard, or newer than the record there."""
        shape = self._schema.shape
        missing: list[bytes] = []
        for place, line in sorted(newest(lines, shape).items()):
            shard = shard_of(place, self._manifest.depth)
            if self._compared[0] != shard:
                there = lines_of(self._storage.shard(shard).data, what=self._storage.keys.shard(shard))
                self._compared = shard, newest(there, shape)
            standing = self._compared[1].get(place)
            if standing is None or rank(line, shape) > rank(standing, shape):
                missing.append(line)
        return missing

    def _is_misplaced(self, place: ObjectPlace) -> bool:
        return bool(place.shard) and len(place.shard) != self._manifest.depth

    def _one(self, key: Key, place: ObjectPlace) -> None:
        if self._is_misplaced(place):
            self.move(key, place)
        elif place.role == "shard":
            self._shard(key, place.shard)
        elif place.role in ("pack", "single"):
            self._waiting(key, place)
        elif key != self._storage.keys.manifest:
            self._describe(key)

    def _shard(self, key: Key, shard: str) -> None:
        """Repair order, duplicates and records of other shards, which are put into packs of those shards first."""
        blob = self._storage.shard(shard)
        found = self._inspected(key, shard, blob.data)
        put_packs(self._storage, self._manifest, found.others)
        kept = newest(found.own, self._schema.shape)
        data = packed(kept, self._schema.shape)
        self._swap(shard, data, blob.version, len(kept))

    def _waiting(self, key: Key, place: ObjectPlace) -> None:
        """Repair by moving records forward: a single becomes a pack, a pack is folded into its shard.

        A reader that listed the object and finds it gone continues with the next step, so the records must be there,
        and not in a new single or pack of the same step, which its listing did not show.
        """
        try:
            data = self._storage.store.get(key, size_max=WAITING_BYTES_MAX).data
        except Missing:
            return  # compiled meanwhile
        found = self._inspected(key, place.shard, data)
        put_packs(self._storage, self._manifest, found.others)
        if place.role == "single":
            put_packs(self._storage, self._manifest, found.own)
        else:
            self._fold(place.shard, found.own)
        self._storage.store.delete(key)

    def _fold(self, shard: str, lines: list[bytes]) -> None:
        at = self._storage.keys.shard(shard)
        blob = self._storage.shard(shard)
        base = checked_lines(self._manifest, shard, blob.data, what=at)
        shape = self._schema.shape
        merged = merge(base, newest(lines, shape), shape, what=at)
        # F25: even if nothing changes, so that our own write is durable before the pack is deleted
        self._swap(shard, merged.data, blob.version, merged.records)

    def _count(self) -> None:
        record(self._whole, self._manifest.generation, self._folds)

    def _describe(self, key: Key) -> None:
        """Write a description again. It is read before the manifest, so that of a later schema is never replaced."""
        try:
            when: Match | Absent = Match(self._storage.store.head(key).version)
        except Missing:
            when = Absent()
        data = descriptions(self._storage.keys, self._whole.name, load(self._whole).value)[key]
        put_bytes(self._storage.store, self._storage.runtime, key, data, when)

    def _inspected(self, key: Key, shard: str, data: bytes) -> Inspected:
        found = inspect(data, self._schema, self._manifest.depth, shard)
        if not found.readable:
            raise Corrupt(f"{key} {found.flaws[0].what}")
        return found

    def _swap(self, shard: str, data: bytes, version: Version | None, records: int) -> None:
        """Swap a shard. Before that, its counts in the manifest are lowered and its digest is removed."""
        key = self._storage.keys.shard(shard)
        count = Count(records, len(data), sum_of(data))
        lower(self._whole, self._manifest, {shard: count})
        when = Match(version) if version is not None else Absent()
        put = put_bytes(self._storage.store, self._storage.runtime, key, data, when)
        self._folds[shard] = Fold(count, put)
        self._written = True
