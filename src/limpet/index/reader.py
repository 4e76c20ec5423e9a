"""Reading records: one, some, or all. Singles first, then packs, then the shard, one step after the other.

On a far store, lookups run some of these steps concurrently, and repeat a step whose objects were moved meanwhile: see
`Reader._lookup` and docs/inside/decisions/0005-index.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from limpet.index.codec import Schema
from limpet.index.decide import LINE_GUESS, NoLine, Search, digest, keys_of, merge, newest, shard_ids, shard_of
from limpet.index.storage import (
    NONE_WAIT,
    Count,
    IndexStorage,
    Manifest,
    WaitingShards,
    lost_records,
    manifest_cell,
    placed,
)
from limpet.index.values import END, lines_of
from limpet.kernel.errors import Conflict, Corrupt, Invalid, Missing, Unavailable
from limpet.kernel.keys import Key, digits, single_stamp
from limpet.kernel.store.api import Stat, Version, batched
from limpet.kernel.waiting import TRIES_MAX, attempts
from limpet.kernel.wording import many

A = TypeVar("A")
SHARE_FOR_WHOLE = 16 << 10
NEVER_WHOLE = -1
"""As the `share` of a lookup: never read an object whole, not even an empty one."""

GROUP_SHARDS = 32
GROUP_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class DamagedShard:
    """A damaged shard that was skipped, with its waiting objects. `records`: how many it had; None if unknown."""

    key: Key
    reason: str
    records: int | None

    def __str__(self) -> str:
        had = (
            "the number of its records is not recorded"
            if self.records is None
            else f"it had {many(self.records, 'record')}"
        )
        return f"{self.key} was left out ({had}): {self.reason}"


OnDamage = Callable[[DamagedShard], None]
"""Called for each damaged shard, which is then skipped. Without it, a damaged shard is an error."""


class DamagedShardWarning(UserWarning):
    """A damaged shard was skipped, as the caller requested."""


def warn_of(left_out: DamagedShard) -> None:
    """Warn that a shard was skipped."""
    warnings.warn(str(left_out), DamagedShardWarning, stacklevel=3)


class Reader:
    """Finds lines. Caches the sizes of shards, nothing else.

    A shard never loses a record, so one with fewer records than the manifest says is damaged (F23). A lookup that reads
    only parts of a shard compares its size with the recorded one, and counts the records only if it is smaller.
    """

    def __init__(self, storage: IndexStorage, manifest: Manifest) -> None:
        self._storage = storage
        self._manifest = manifest
        self._schema: Schema = manifest.schema
        self._sizes: dict[str, int] = {}
        self._counts: dict[str, Count | None] = {}

    def find(self, key: str) -> bytes | None:
        """The winning line of a key, which may be a tombstone; None if the key was never put.

        Raises: Corrupt; Unavailable.   Cost: 2 LISTs; 1 GET if singles of the key wait; 1 to 3 range GETs of each
        pack of its shard, and of the shard; 1 HEAD if the shard was empty when last seen; as `check_size`. On a far
        store as `_lookup`, 3 round trips in sequence if the shard needs one range GET.
        """
        shard = shard_of(digest(key.encode()), self._manifest.depth)
        listed = {key: self._storage.singles(shard, key)}
        return self._lookup({shard: [key]}, listed, [shard], NEVER_WHOLE).get(key)

    def find_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The winning lines of those keys that were put before.

        Cost: 2 LISTs; for each shard touched, if objects wait there, up to 2 LISTs per 1,000 objects, 1 GET for each
        key with singles; for each pack and the shard 1 GET of the whole object, or what `find` costs for each key,
        whichever reads less.
        """
        by_shard: dict[str, list[str]] = {}
        for key in dict.fromkeys(keys):
            by_shard.setdefault(shard_of(digest(key.encode()), self._manifest.depth), []).append(key)
        work = self._storage.work() if by_shard else NONE_WAIT
        packed = [shard for shard in by_shard if shard in work.shards]

        def list_singles(shard: str) -> dict[str, list[Stat]]:
            return self._by_key(shard, by_shard[shard]) if shard in work.singles else {}

        def one_shard(shard: str, keys: Sequence[str]) -> dict[str, bytes]:
            listed = list_singles(shard)
            return self._lookup({shard: keys}, listed, [shard] if shard in packed else [], SHARE_FOR_WHOLE)

        if not self._storage.store.far:
            return _union(self._storage.for_each(lambda item: one_shard(*item), by_shard.items()))
        some = [shard for shard in by_shard if shard in work.singles]
        listed = _union(self._storage.together([partial(list_singles, shard) for shard in some]))
        return self._lookup(by_shard, listed, packed, SHARE_FOR_WHOLE)

    def _by_key(self, shard: str, keys: Sequence[str]) -> dict[str, list[Stat]]:
        """The singles of those keys that have some.   Cost: 1 LIST per 1,000 singles of the shard."""
        folders = {self._storage.keys.inbox_of(shard, key): key for key in keys}
        found: dict[str, list[Stat]] = {}
        for stat in self._storage.singles(shard):
            key = folders.get(stat.key.rpartition("/")[0])
            if key is not None:
                found.setdefault(key, []).append(stat)
        return found

    def _winners(self, keys: Sequence[str], lines: Sequence[bytes]) -> dict[str, bytes]:
        winners = newest(lines, self._schema.shape)
        places = {key: digest(key.encode()) for key in keys}
        return {key: winners[place] for key, place in places.items() if place in winners}

    def _lookup(
        self, wanted: Mapping[str, Sequence[str]], listed: Mapping[str, list[Stat]], packed: Sequence[str], share: int
    ) -> dict[str, bytes]:
        """The winning lines of keys, by shard. `listed` are the keys' singles, `packed` the shards that may have packs.

        An object of at most `share` bytes per key is read whole. On a far store singles are read while packs are
        listed, and packs while the shard is read. That is not the order in which data moves, so a missing object is not
        simply skipped: if a single is gone, the packs are listed again; if a pack is gone, the shard is read again.
        Cost: on a far store, for each shard where a single or a pack was moved meanwhile, 1 LIST of its packs more, or
        the reads of the shard.
        """
        far = self._storage.store.far
        run = self._storage.together if far else _one_by_one
        lines: dict[str, list[bytes]] = {shard: [] for shard in wanted}
        packs: dict[str, list[Stat]] = {}
        moved: set[str] = set()
        folded: set[str] = set()

        def read_singles(shard: str, key: str) -> None:
            found, is_whole = self._newest_singles(key, listed[key])
            lines[shard].extend(found)
            if far and not is_whole:
                moved.add(shard)

        def list_packs(shard: str) -> None:
            packs[shard] = self._storage.packs(shard)

        def read_pack(shard: str, stat: Stat, keys: Sequence[str]) -> None:
            found = self._of_pack(stat, keys, share)
            if found is not None:
                lines[shard].extend(found)
            elif far:
                folded.add(shard)

        def read_shard(shard: str, keys: Sequence[str]) -> None:
            lines[shard].extend(self._of_shard(shard, keys, share))

        of_singles = [
            partial(read_singles, shard, key) for shard, keys in wanted.items() for key in keys if key in listed
        ]
        run([*of_singles, *(partial(list_packs, shard) for shard in packed)])
        run([partial(list_packs, shard) for shard in sorted(moved)])

        of_packs = [partial(read_pack, shard, stat, wanted[shard]) for shard in packs for stat in packs[shard]]
        of_shards = {shard: self._parts(shard, keys, share) for shard, keys in wanted.items()}
        run([*of_packs, *(partial(read_shard, shard, keys) for shard, parts in of_shards.items() for keys in parts)])
        run([partial(read_shard, shard, keys) for shard in sorted(folded) for keys in of_shards[shard]])
        return _union(self._winners(keys, lines[shard]) for shard, keys in wanted.items())

    def _parts(self, shard: str, keys: Sequence[str], share: int) -> Sequence[Sequence[str]]:
        """The keys of a shard, grouped: all together if the whole shard is read, else each alone."""
        known = self._sizes.get(shard) or self._manifest.size(shard)
        return [[key] for key in keys] if known > len(keys) * share else [keys]

    def _of_pack(self, stat: Stat, keys: Sequence[str], share: int) -> list[bytes] | None:
        """The lines of a pack, at least those of `keys`; None if it is gone: then they are in the shard."""
        if not stat.size:
            return []
        try:
            if stat.size <= len(keys) * share:
                data = self._storage.read([stat.key]).get(stat.key)
                return None if data is None else self._schema.lines(data, what=stat.key)
            return [line for key in keys for line in self._seek(key, stat.key, stat.size)]
        except Missing:
            return None

    def _of_shard(self, shard: str, keys: Sequence[str], share: int) -> list[bytes]:
        count = self._count(shard)  # the size as last seen, as recorded, or as the store says
        size = self._sizes.get(shard, count.size if count else 0) or self._ask_size(shard)
        if size <= len(keys) * share:
            return self.checked_lines(shard, self._storage.shard(shard).data)
        return [line for key in keys for line in self._in_shard(key, shard, self._sizes.get(shard, size))]

    def check_records(self, shard: str, number: int) -> None:
        """Check that a shard has at least as many records as recorded.

        Raises: Corrupt.   Cost: 0; 1 GET of the manifest if it has fewer than the manifest in memory says.
        """
        known = self._count(shard)
        if known is not None and number < known.records:
            known = self._recount(shard)
        if known is not None and number < known.records:
            what = self._storage.keys.shard(shard)
            raise lost_records(what, number, known.records, note=" to keep what is left")

    def check_size(self, shard: str, size: int) -> None:
        """Check that a shard of this size has at least as many records as recorded.

        Raises: Corrupt.   Cost: 0; for a shard that is smaller than recorded 1 GET of the manifest, and, if the current
        manifest agrees, once 1 GET of the shard to count them: records may have become shorter.
        """
        known = self._count(shard)
        if known is not None and size < known.size:
            known = self._recount(shard)
        if known is not None and size < known.size:
            blob = self._storage.shard(shard)
            records = blob.data.count(END)
            self.check_records(shard, records)
            self._counts[shard] = Count(known.records, min(size, blob.size))

    def _count(self, shard: str) -> Count | None:
        return self._counts[shard] if shard in self._counts else self._manifest.count(shard)

    def _recount(self, shard: str) -> Count | None:
        """What the current manifest records of a shard: a purge or an accepted loss lowers it.   Cost: 1 GET."""
        seen = manifest_cell(self._storage).read()
        if seen is not None:
            self._counts[shard] = seen.value.count(shard) if seen.value.depth == self._manifest.depth else None
        return self._count(shard)

    def scan(self, on_damage: OnDamage | None = None) -> Iterator[list[bytes]]:
        """The live lines of each shard, in the order of their digests.

        Each record is as of some moment after the scan began. Memory is bounded by 32 MiB of shards, or the largest.
        With `on_damage`, a damaged shard is skipped, and so are its waiting objects: they may be older than the records
        of the shard.
        Cost: 2 LISTs; for each shard 1 GET, and for one with work up to 2 LISTs and 1 GET an object.
        """
        work = self._storage.work()

        def size_of(shard: str) -> int:
            return GROUP_BYTES + 1 if shard in work.shards else self._manifest.size(shard)

        if on_damage is None:  # shards are read in groups; one with waiting objects is a group alone
            for shards in batched(shard_ids(self._manifest.depth), size_of, size=GROUP_BYTES, count=GROUP_SHARDS):
                yield from self._scan(shards, work)
            return
        for shard in shard_ids(self._manifest.depth):
            try:
                [lines] = self._scan([shard], work)
            except Corrupt as error:
                known = self._count(shard)
                on_damage(DamagedShard(self._storage.keys.shard(shard), str(error), known.records if known else None))
            else:
                yield lines

    def _scan(self, shards: Sequence[str], work: WaitingShards) -> Iterator[list[bytes]]:
        shape = self._schema.shape
        waiting = {shard: newest(self.waiting(shard, work), shape) for shard in shards if shard in work.shards}
        for shard, blob in self._storage.shards(shards).items():
            lines = self.checked_lines(shard, blob.data)
            if waiting.get(shard):
                what = self._storage.keys.shard(shard)
                lines = lines_of(merge(lines, waiting[shard], shape, what=what).data, what=what)
            yield [line for line in lines if not self._schema.is_tombstone(line)]

    def checked_lines(self, shard: str, data: bytes) -> list[bytes]:
        """The lines of a shard, checked, and at least as many as recorded.   Raises: Corrupt."""
        lines = self._schema.lines(data, what=self._storage.keys.shard(shard))
        self.check_records(shard, len(lines))
        return lines

    def waiting(self, shard: str, work: WaitingShards) -> list[bytes]:
        """The lines that wait for a shard, checked.   Raises: Corrupt.   Cost: as `IndexStorage.waiting`."""
        return [
            line
            for at, data in self._storage.waiting(shard, work).items()
            for line in placed(self._schema, self._manifest.depth, shard, data, what=at)[1]
        ]

    def _newest_singles(self, key: str, listed: Sequence[Stat]) -> tuple[list[bytes], bool]:
        """The newest of one record's singles, and whether all of those still existed.

        Older ones cannot win, unless one of the newest went to quarantine.
        Raises: Corrupt for an object whose name does not match its record.
        """
        if not listed:
            return [], True
        newest_stamp = max(single_stamp(stat.key) for stat in listed)
        wanted = [stat.key for stat in listed if single_stamp(stat.key) == newest_stamp]
        found = self._storage.read(wanted)
        is_whole = len(found) == len(wanted)
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
        return lines, is_whole

    def _in_shard(self, key: str, shard: str, size: int) -> list[bytes]:
        if size == 0:
            self.check_size(shard, size)
            return []
        at = self._storage.keys.shard(shard)
        try:
            return self._seek(key, at, size, shard=shard)
        except Missing:
            raise self._storage.no_shard(shard) from None

    def _ask_size(self, shard: str) -> int:
        self._sizes[shard] = self._storage.shard_stat(shard).size
        return self._sizes[shard]

    def _seek(self, key: str, at: Key, size: int, *, shard: str | None = None) -> list[bytes]:
        """The line of a key in an ordered object, if it has one.

        Raises: Missing; Corrupt; Unavailable if the object changes too often to be read.
        """
        for _ in attempts(self._storage.runtime, pause_s=0):
            try:
                return self._seek_once(key, at, size, shard)
            except Conflict:
                continue
            except Invalid:
                if shard is None or self._ask_size(shard) == size:
                    raise
                size = self._sizes[shard]
                if size == 0:
                    self.check_size(shard, size)
                    return []
        raise Unavailable(f"{at} was written {TRIES_MAX} times while it was read")

    def _seek_once(self, key: str, at: Key, size: int, shard: str | None) -> list[bytes]:
        search = self._search(key, size, shard)
        version: Version | None = None
        while True:
            start, stop = search.window()
            blob = self._storage.store.get(at, range=(start, stop), if_match=version)
            if version is None and shard is not None:
                self.check_size(shard, blob.size)
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
        far = self._storage.store.far
        return Search(key.encode(), self._schema.shape, self._manifest.depth, size, line_size=line_size, far=far)


def _one_by_one(jobs: Iterable[Callable[[], object]]) -> None:
    for job in jobs:
        job()


def _union(parts: Iterable[Mapping[str, A]]) -> dict[str, A]:
    return {key: value for part in parts for key, value in part.items()}
