"""Putting right what verify found, as far as it can be derived from what is there.

Nothing is made up, and nothing is removed before its records are durable where they belong. Every step is safe beside
readers, writers and compilers: what waits moves only forward, and shards are swapped on the version that was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from limpet.errors import Conflict, Corrupt, LimpetError, Missing, OutcomeUnknown
from limpet.index import describe
from limpet.index.decide import merge, newest, packed
from limpet.index.inspection import Inspected, Kind, good_lines, inspect
from limpet.index.manifest import Count, Fold, Manifest, sum_of
from limpet.index.offline import Whole, load, lower, put_packs, record, sound
from limpet.index.places import Place, place_of
from limpet.index.quarantine import keep
from limpet.index.storage import SHARD_BYTES_MAX, WAITING_BYTES_MAX
from limpet.index.strays import Strays
from limpet.keys import Key
from limpet.store.api import Absent, Match, Version
from limpet.store.outcome import put_bytes

FIXABLE: frozenset[Kind] = frozenset(
    {"behind", "counts", "description", "duplicate", "misnamed", "misplaced", "order", "stray"}
)
"""What is derived. An object with any other flaw is left as it is."""

ACCEPTABLE: frozenset[Kind] = frozenset(
    {"bad_line", "bad_value", "changed", "cut_off", "lost", "missing_shard", "too_large"}
)
"""Damage of a shard with which an operator may choose to go on."""

_ORDER = ("shard", "single", "pack", "described")


def descriptions(whole: Whole, manifest: Manifest) -> dict[Key, bytes]:
    """What other tools should find beside the manifest."""
    keys = whole.storage.keys
    return {
        keys.package: describe.package(whole.name, manifest),
        keys.json_schema: describe.json_schema(whole.name, manifest),
    }


class Repairs:
    """Repairs objects of one index, each on what a fresh read shows of it.

    Cost: a shard 1 GET + 1 PUT and a swap of the manifest, and 1 PUT for each shard that gets records back; a single
    1 GET + 1 PUT + 1 DELETE; a pack 2 GETs + 1 PUT + 1 DELETE and a swap; a stray see `Strays`; a description 2 GETs +
    1 PUT; counts 1 swap and 1 HEAD for each shard that is not recorded so.
    """

    def __init__(self, whole: Whole, manifest: Manifest, folds: Mapping[str, Fold]) -> None:
        self._whole = whole
        self._storage = whole.storage
        self._manifest = manifest
        self._schema = manifest.schema
        self._strays = Strays(whole, manifest)
        self._folds = {**folds}
        self._written = False

    def run(self, keys: Iterable[Key]) -> dict[Key, LimpetError | None]:
        """Repair these objects; for each None, or why it could not be done. Shards come first: the rest builds on them.

        Raises: what no repair can do anything about (Unavailable, Denied).
        """
        places = {key: place_of(self._storage.keys, key) for key in keys}
        outcomes: dict[Key, LimpetError | None] = {}
        if self._storage.keys.manifest in places:
            self._count()
            self._manifest = load(self._whole).value  # the rest goes by its counts
        for key, place in sorted(
            places.items(), key=lambda item: (self._is_stray(item[1]), _ORDER.index(item[1].role))
        ):
            try:
                self._one(key, place)
            except (Conflict, Corrupt, OutcomeUnknown) as error:
                outcomes[key] = error
            else:
                outcomes[key] = None
        if self._written:
            self._count()
        return outcomes

    def accept_loss(self, key: Key, shard: str, reason: str) -> str:
        """Have a damaged shard be what is left of it: its good lines, in order. Returns what was kept and what was not.

        First its bytes are kept in quarantine, then the manifest promises no more than is left, then the shard is put.
        Raises: Corrupt for a shard that is too large to be read; Conflict or OutcomeUnknown if others write it.
        Cost: 1 GET, 2 PUTs, 2 swaps.   Crash: at any point, nothing that was there is gone; accepting it again goes on.
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
        told = f"{len(kept)} records are kept, {'an unknown number' if lost is None else lost} are lost"
        keep(self._storage, shard, key, data if left != data else b"", f"{reason}; the loss was accepted: {told}")
        if left != data or blob is None:
            self._swap(shard, left, blob.version if blob else None, len(kept))
        else:
            count = Count(len(kept), len(left), sum_of(left))
            lower(self._whole, self._manifest, {shard: count})
            self._folds[shard] = Fold(count, blob.version)
        self._count()
        return told

    def _is_stray(self, place: Place) -> bool:
        return bool(place.shard) and len(place.shard) != self._manifest.depth

    def _one(self, key: Key, place: Place) -> None:
        if self._is_stray(place):
            self._strays.bring_home(key, place)
        elif place.role == "shard":
            self._shard(key, place.shard)
        elif place.role in ("pack", "single"):
            self._waiting(key, place)
        elif key != self._storage.keys.manifest:
            self._describe(key)

    def _shard(self, key: Key, shard: str) -> None:
        """Order, duplicates, and records of other shards, which are durable in packs of theirs before they go here."""
        blob = self._storage.shard(shard)
        found = self._inspected(key, shard, blob.data)
        put_packs(self._storage, self._manifest, found.others)
        kept = newest(found.own, self._schema.shape)
        data = packed(kept, self._schema.shape)
        self._swap(shard, data, blob.version, len(kept))

    def _waiting(self, key: Key, place: Place) -> None:
        """Forward only: a single becomes a pack, a pack goes into its shard.

        A reader that listed before and finds the object gone looks further on, so the records must be there: never in
        another single or pack beside it, which its listing did not show.
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
        base = sound(self._manifest, shard, blob.data, what=at)
        shape = self._schema.shape
        merged = merge(base, newest(lines, shape), shape, what=at)
        # F25: even if nothing changes, so that the pack is deleted only after a write of our own is durable
        self._swap(shard, merged.data, blob.version, merged.records)

    def _count(self) -> None:
        """Record what there is, unless somebody else has put it since."""
        record(self._whole, self._manifest.generation, self._folds)

    def _describe(self, key: Key) -> None:
        """Write a description anew. It is read before the manifest, so a later schema's is never replaced."""
        try:
            when: Match | Absent = Match(self._storage.store.head(key).version)
        except Missing:
            when = Absent()
        data = descriptions(self._whole, load(self._whole).value)[key]
        put_bytes(self._storage.store, self._storage.runtime, key, data, when)

    def _inspected(self, key: Key, shard: str, data: bytes) -> Inspected:
        found = inspect(data, self._schema, self._manifest.depth, shard)
        if not found.readable:
            raise Corrupt(f"{key} {found.flaws[0].what}")
        return found

    def _swap(self, shard: str, data: bytes, version: Version | None, records: int) -> None:
        """Put a shard, of which the manifest promises neither more nor a digest until it is recorded."""
        key = self._storage.keys.shard(shard)
        count = Count(records, len(data), sum_of(data))
        lower(self._whole, self._manifest, {shard: count})
        when = Match(version) if version is not None else Absent()
        put = put_bytes(self._storage.store, self._storage.runtime, key, data, when)
        self._folds[shard] = Fold(count, put)
        self._written = True
