"""Reading records: one, some, or all. Singles first, then packs, then the shard; each step after the last has ended."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from limpet.errors import Conflict, Corrupt, Invalid, Missing, Unavailable
from limpet.index.codec.lines import END, Schema, lines_of
from limpet.index.decide import LINE_GUESS, NoLine, Search, digest, keys_of, merge, newest, shard_ids, shard_of
from limpet.index.storage import (
    NONE_WAIT,
    Count,
    IndexStorage,
    Manifest,
    WaitingShards,
    batched,
    lost_records,
    manifest_cell,
    placed,
)
from limpet.keys import Key, digits, single_stamp
from limpet.store.api import Stat, Version

TRIES_MAX = 20
SHARE_FOR_WHOLE = 16 << 10
GROUP_SHARDS = 32
GROUP_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class DamagedShard:
    """A damaged shard that was left out, with what waits for it. `records`: how many it had; None if unknown."""

    key: Key
    reason: str
    records: int | None

    def __str__(self) -> str:
        had = "nobody recorded how many records it had" if self.records is None else f"it had {self.records} records"
        return f"{self.key} was left out ({had}): {self.reason}"


OnDamage = Callable[[DamagedShard], None]
"""Called for each damaged shard, which is then left out. Without one, a damaged shard is an error."""


class DamagedShardWarning(UserWarning):
    """A damaged shard was left out, because the caller asked for that."""


def warn_of(left_out: DamagedShard) -> None:
    """Warn of a shard that was left out."""
    warnings.warn(str(left_out), DamagedShardWarning, stacklevel=3)


class Reader:
    """Finds lines. Remembers how large shards are, nothing else.

    A shard never loses a record, so one with fewer than the manifest records is damaged (F23). A lookup that does not
    read all of a shard notices that it is smaller than recorded, and only then counts.
    """

    def __init__(self, storage: IndexStorage, manifest: Manifest) -> None:
        self._storage = storage
        self._manifest = manifest
        self._schema: Schema = manifest.schema
        self._sizes: dict[str, int] = {}
        self._counts: dict[str, Count | None] = {}

    def find(self, key: str) -> bytes | None:
        """The winning line of a key, a tombstone too; None if it was never put.

        Raises: Corrupt; Unavailable.   Cost: 2 LISTs; 1 GET if singles of the key wait; 1 to 3 range GETs of each
        pack of its shard, and of the shard; 1 HEAD if the shard was empty when last seen; as `demand_whole`.
        """
        place = digest(key.encode())
        shard = shard_of(place, self._manifest.depth)
        lines = self._newest_of(key, self._storage.singles_of(shard, key))
        for stat in self._storage.packs(shard):
            lines += self._in_pack(key, stat)
        lines += self._in_shard(key, shard)
        return newest(lines, self._schema.shape).get(place)

    def find_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The winning lines of those keys that were ever put.

        Cost: 2 LISTs; for each shard touched, if something waits there, up to 2 LISTs per 1,000 objects, 1 GET for each
        key with singles, and of each pack as of the shard: 1 GET of all of it, or what `find` costs for each key,
        whichever is less to read.
        """
        by_shard: dict[str, list[str]] = {}
        for key in dict.fromkeys(keys):
            by_shard.setdefault(shard_of(digest(key.encode()), self._manifest.depth), []).append(key)
        work = self._storage.work() if by_shard else NONE_WAIT

        found: dict[str, bytes] = {}
        for lines in self._storage.for_each(lambda item: self._some(*item, work), by_shard.items()):
            found.update(lines)
        return found

    def _some(self, shard: str, keys: Sequence[str], work: WaitingShards) -> dict[str, bytes]:
        lines: list[bytes] = []
        if shard in work.singles:
            folders = {self._storage.keys.inbox_of(shard, key): key for key in keys}
            by_folder: dict[str, list[Stat]] = {}
            for stat in self._storage.singles(shard):
                by_folder.setdefault(stat.key.rpartition("/")[0], []).append(stat)
            for folder, listed in by_folder.items():
                if folder in folders:
                    lines += self._newest_of(folders[folder], listed)
        if shard in work.shards:
            for stat in self._storage.packs(shard):
                if stat.size <= len(keys) * SHARE_FOR_WHOLE:
                    for at, data in self._storage.read([stat.key]).items():
                        lines += self._schema.lines(data, what=at)
                else:
                    lines += [line for key in keys for line in self._in_pack(key, stat)]
        if self._size(shard) <= len(keys) * SHARE_FOR_WHOLE:
            lines += self.sound(shard, self._storage.shard(shard).data)
        else:
            lines += [line for key in keys for line in self._in_shard(key, shard)]
        winners = newest(lines, self._schema.shape)
        places = {key: digest(key.encode()) for key in keys}
        return {key: winners[place] for key, place in places.items() if place in winners}

    def demand_records(self, shard: str, number: int) -> None:
        """Go on only if a shard that was read has as many records as it must.

        Raises: Corrupt.   Cost: 0; 1 GET of the manifest for a shard that has fewer than the one at hand records.
        """
        known = self._count(shard)
        if known is not None and number < known.records:
            known = self._recount(shard)
        if known is not None and number < known.records:
            what = self._storage.keys.shard(shard)
            raise lost_records(what, number, known.records, note=" to go on with what is left")

    def demand_whole(self, shard: str, size: int) -> None:
        """Go on only if a shard of which that size was seen has as many records as it must.

        Raises: Corrupt.   Cost: 0; for a shard that is smaller than recorded 1 GET of the manifest, and once 1 GET of
        the shard if the manifest still says so: its records may have become shorter.
        """
        known = self._count(shard)
        if known is not None and size < known.size:
            known = self._recount(shard)
        if known is not None and size < known.size:
            blob = self._storage.shard(shard)
            records = blob.data.count(END)
            self.demand_records(shard, records)
            self._counts[shard] = Count(known.records, min(size, blob.size))

    def _count(self, shard: str) -> Count | None:
        return self._counts[shard] if shard in self._counts else self._manifest.count(shard)

    def _recount(self, shard: str) -> Count | None:
        """What is recorded of a shard now: after a purge or an accepted loss it is less.   Cost: 1 GET."""
        seen = manifest_cell(self._storage).read()
        if seen is not None:
            self._counts[shard] = seen.value.count(shard) if seen.value.depth == self._manifest.depth else None
        return self._count(shard)

    def scan(self, on_damage: OnDamage | None = None) -> Iterator[list[bytes]]:
        """The live lines of each shard, in the order of their digests.

        Each record is as of some moment after the scan began. Memory is bounded by 32 MiB of shards, or the largest.
        A damaged shard is left out if there is an `on_damage`, with what waits for it: that may be older than what the
        shard had.
        Cost: 2 LISTs; for each shard 1 GET, and for one with work up to 2 LISTs and 1 GET an object.
        """
        work = self._storage.work()
        if on_damage is None:
            for shards in self._groups(work):
                yield from self._scan(shards, work)
            return
        for shard in shard_ids(self._manifest.depth):
            try:
                [lines] = self._scan([shard], work)
            except Corrupt as error:
                on_damage(self.left_out(shard, error))
            else:
                yield lines

    def _scan(self, shards: Sequence[str], work: WaitingShards) -> Iterator[list[bytes]]:
        shape = self._schema.shape
        waiting = {shard: newest(self.waiting(shard, work), shape) for shard in shards if shard in work.shards}
        for shard, blob in self._storage.shards(shards).items():
            lines = self.sound(shard, blob.data)
            if waiting.get(shard):
                what = self._storage.keys.shard(shard)
                lines = lines_of(merge(lines, waiting[shard], shape, what=what).data, what=what)
            yield [line for line in lines if not self._schema.is_gone(line)]

    def sound(self, shard: str, data: bytes) -> list[bytes]:
        """The lines of a shard, all of them good, and as many as there must be.   Raises: Corrupt."""
        lines = self._schema.lines(data, what=self._storage.keys.shard(shard))
        self.demand_records(shard, len(lines))
        return lines

    def left_out(self, shard: str, error: Corrupt) -> DamagedShard:
        """The description of a damaged shard that is left out."""
        known = self._count(shard)
        return DamagedShard(self._storage.keys.shard(shard), str(error), known.records if known else None)

    def _groups(self, work: WaitingShards) -> Iterator[list[str]]:
        """All shards, in runs that are read together; a shard with waiting objects is alone, since they may be many."""

        def size_of(shard: str) -> int:
            return GROUP_BYTES + 1 if shard in work.shards else self._manifest.size(shard)

        return batched(shard_ids(self._manifest.depth), size_of, size=GROUP_BYTES, count=GROUP_SHARDS)

    def waiting(self, shard: str, work: WaitingShards) -> list[bytes]:
        """The lines that wait for a shard, every one checked.   Raises: Corrupt.   Cost: as `IndexStorage.waiting`."""
        return [
            line
            for at, data in self._storage.waiting(shard, work).items()
            for line in placed(self._schema, self._manifest.depth, shard, data, what=at)[1]
        ]

    def _newest_of(self, key: str, listed: Sequence[Stat]) -> list[bytes]:
        """The newest of one record's singles; older ones cannot win, unless one of those went to quarantine.

        Raises: Corrupt for a line that is not what the name of its object says.
        """
        if not listed:
            return []
        newest_stamp = max(single_stamp(stat.key) for stat in listed)
        wanted = [stat.key for stat in listed if single_stamp(stat.key) == newest_stamp]
        found = self._storage.read(wanted)
        if len(found) < len(wanted) < len(listed):
            found |= self._storage.read([stat.key for stat in listed if stat.key not in wanted])
        lines: list[bytes] = []
        for at, data in found.items():
            some = self._schema.lines(data, what=at)
            named = (key.encode(), single_stamp(at))
            for of, line in zip(keys_of(some, self._schema.shape), some, strict=True):
                if (of, digits(self._schema.stamp_of(line))) != named:
                    raise Corrupt(f"{at} holds another record than its name says")
            lines += some
        return lines

    def _in_pack(self, key: str, stat: Stat) -> list[bytes]:
        try:
            return self._seek(key, stat.key, stat.size) if stat.size else []
        except Missing:
            return []

    def _in_shard(self, key: str, shard: str) -> list[bytes]:
        size = self._size(shard)
        if size == 0:
            self.demand_whole(shard, size)
            return []
        at = self._storage.keys.shard(shard)
        try:
            return self._seek(key, at, size, shard=shard)
        except Missing:
            raise self._storage.no_shard(shard) from None

    def _size(self, shard: str) -> int:
        """About how large a shard is: as last seen, as the manifest says, or as the store says."""
        size = self._sizes.get(shard)
        if size is None:
            count = self._count(shard)
            size = count.size if count else 0
        return size or self._ask_size(shard)

    def _ask_size(self, shard: str) -> int:
        self._sizes[shard] = self._storage.shard_size(shard)
        return self._sizes[shard]

    def _seek(self, key: str, at: Key, size: int, *, shard: str | None = None) -> list[bytes]:
        """The line of a key in an ordered object, if it has one.

        Raises: Missing; Corrupt; Unavailable if the object changes so often that it cannot be read.
        """
        for _ in range(TRIES_MAX):
            try:
                return self._seek_once(key, at, size, shard)
            except Conflict:
                continue
            except Invalid:
                if shard is None or self._ask_size(shard) == size:
                    raise
                size = self._sizes[shard]
                if size == 0:
                    self.demand_whole(shard, size)
                    return []
        raise Unavailable(f"{at} was written {TRIES_MAX} times while it was read")

    def _seek_once(self, key: str, at: Key, size: int, shard: str | None) -> list[bytes]:
        search = self._search(key, size, shard)
        version: Version | None = None
        while True:
            start, stop = search.window()
            blob = self._storage.store.get(at, range=(start, stop), if_match=version)
            if version is None and shard is not None:
                self.demand_whole(shard, blob.size)
            if version is None and blob.size != size:
                size = blob.size
                search = self._search(key, size, shard)
                if not size:
                    return []
            version = blob.version
            if shard is not None:
                self._sizes[shard] = blob.size
            try:
                outcome = search.learn(start, blob.data)
            except Corrupt as error:
                raise Corrupt(f"{at}: {error}") from None
            if isinstance(outcome, NoLine):
                return []
            if outcome is not None:
                return self._schema.lines(outcome + END, what=at)

    def _search(self, key: str, size: int, shard: str | None) -> Search:
        count = self._manifest.count(shard) if shard is not None else None
        line_size = count.size / count.records if count and count.records else LINE_GUESS
        return Search(key.encode(), self._schema.shape, self._manifest.depth, size, line_size=line_size)
