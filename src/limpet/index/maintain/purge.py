"""Dropping tombstones. Offline, since a record that is older than its tombstone must not turn up afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from limpet.errors import Conflict, Invalid, Missing
from limpet.index.codec.lines import END, stamp_text
from limpet.index.decide import shard_ids
from limpet.index.maintain.offline import (
    WholeIndex,
    batches,
    compile_all,
    demand_quiesced,
    load,
    lower,
    misplaced_in,
    place_of,
    record,
    refuse_running,
    refuse_waiting,
    sole,
    sound,
)
from limpet.index.storage import Count, Fold, Manifest, sum_of
from limpet.keys import Key
from limpet.store.api import Blob, Match, Stat, Version
from limpet.store.outcome import put_bytes


@dataclass(slots=True)
class PurgeReport:
    """What a purge did: tombstones dropped, and kept since they are too young; shards and bytes rewritten."""

    dropped: int = 0
    kept: int = 0
    shards: int = 0
    written_bytes: int = 0


def purge(whole: WholeIndex, *, quiesced: bool = False, older_than_s: float | None = None) -> PurgeReport:
    """Compile everything, then drop the tombstones, or those older than `older_than_s`.

    Nobody may write, compile or read the index meanwhile, and whatever could still write an older record of a deleted
    key must be gone for good: with its tombstone goes the only thing that keeps such a record hidden.
    Raises: Invalid without `quiesced`; Held if a compiler, repair, reshard or other purge is at work; Conflict if
    something waits or another process wrote nevertheless; Corrupt for a shard that must not be built upon.
    Cost: a full compile, 1 GET a shard, 2 swaps of the manifest, 1 GET + 1 PUT + 1 HEAD more for each shard with
    something to drop. Memory is bounded by 32 MiB of shards or the largest one, whichever is more.
    Crash: some shards have been purged and others not; the manifest promises no more than there is. Run it again.
    """
    if older_than_s is not None and older_than_s < 0:
        raise Invalid(f"older_than_s is {older_than_s:g}, and an age is not below zero")
    demand_quiesced(quiesced, what="purge")
    with sole(whole):
        refuse_running(whole)
        compile_all(whole)
        refuse_waiting(whole)
        for key, _ in misplaced_in(whole.storage, load(whole).value.depth):
            raise Conflict(
                f"{key} is of another depth and may hold older records of deleted keys",
                hint="`limpet index verify --repair` brings them home; then purge again",
            )
        return _Purge(whole, older_than_s).run()


class _Purge:
    def __init__(self, whole: WholeIndex, older_than_s: float | None) -> None:
        self._whole = whole
        self._storage = whole.storage
        self._manifest: Manifest = load(whole).value
        self._schema = self._manifest.schema
        self._report = PurgeReport()
        self._before: str | None = None
        if older_than_s is not None:
            now = self._storage.store.now(max_age_s=0.0)
            self._before = stamp_text(now - timedelta(seconds=older_than_s))

    def run(self) -> PurgeReport:
        """Look at every shard; lower the counts of those that will shrink; then rewrite these."""
        found: dict[Stat, Count] = {}
        for batch in batches(self._shards()):
            for stat, blob in self._read(batch):
                count = self._look(stat.key, blob)
                if count is not None:
                    found[Stat(stat.key, blob.size, blob.version, blob.modified)] = count
        counts = {self._id(stat.key): count for stat, count in found.items()}
        lower(self._whole, self._manifest, counts, for_good=True)
        folds: dict[str, Fold] = {}
        for batch in batches(found):
            for stat, blob in self._read(batch):
                folds[self._id(stat.key)] = self._rewrite(stat.key, stat.version, blob)
        if folds:
            record(self._whole, load(self._whole).value.generation, folds)
        return self._report

    def _shards(self) -> Iterator[Stat]:
        """Every shard. A list is only a hint (F22): one that it does not show is asked for."""
        listed = {stat.key: stat for stat in self._storage.store.list(self._storage.keys.shards)}
        for shard in shard_ids(self._manifest.depth):
            key = self._storage.keys.shard(shard)
            try:
                yield listed.get(key) or self._storage.store.head(key)
            except Missing:
                raise self._storage.no_shard(shard) from None

    def _id(self, key: Key) -> str:
        return place_of(self._storage.keys, key).shard

    def _read(self, batch: list[Stat]) -> list[tuple[Stat, Blob]]:
        blobs = self._storage.shards([self._id(stat.key) for stat in batch])
        return [*zip(batch, blobs.values(), strict=True)]

    def _look(self, key: Key, blob: Blob) -> Count | None:
        """How much of a shard stays; None if all of it does."""
        lines = sound(self._manifest, self._id(key), blob.data, what=key, at_rest=True)
        kept = self._kept(lines)
        gone = sum(self._schema.is_gone(line) for line in lines)
        self._report.kept += gone - (len(lines) - len(kept))
        return Count(len(kept), sum(len(line) + 1 for line in kept)) if len(kept) < len(lines) else None

    def _kept(self, lines: list[bytes]) -> list[bytes]:
        return [line for line in lines if not self._schema.is_gone(line) or not self._is_old(line)]

    def _is_old(self, line: bytes) -> bool:
        return self._before is None or self._schema.stamp_of(line) < self._before

    def _rewrite(self, key: Key, version: Version, blob: Blob) -> Fold:
        if blob.version != version:
            raise Conflict(
                f"{key} was written while the index was purged", hint="stop the process that does that, and purge again"
            )
        lines = sound(self._manifest, self._id(key), blob.data, what=key)
        kept = self._kept(lines)
        data = b"".join([line + END for line in kept])
        put = put_bytes(self._storage.store, self._storage.runtime, key, data, Match(version))
        self._report.dropped += len(lines) - len(kept)
        self._report.shards += 1
        self._report.written_bytes += len(data)
        return Fold(Count(len(kept), len(data), sum_of(data)), put)
