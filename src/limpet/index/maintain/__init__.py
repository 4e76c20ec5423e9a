"""Operations on a whole index: verify and repair it, reshard it, purge tombstones, import existing record files.

This module has what they share: the lock, bounded reads, packs, counts in the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from limpet.index.compiler import CompileReport
from limpet.index.decide import PACK_BYTES, merge, newest, packed, shard_of, split
from limpet.index.storage import (
    Count,
    Fold,
    IndexStorage,
    Manifest,
    changed_bytes,
    lost_records,
    noted,
    placed,
    sum_of,
    with_counts,
)
from limpet.kernel.cell import Cell, Versioned
from limpet.kernel.errors import Conflict, Held, Missing
from limpet.kernel.lease import Lease, Lock, VersionWatch
from limpet.kernel.store.api import Put, Stat, batched

__all__ = ["WholeIndex"]

ALL = "all"
"""Names the lock of all shards. It cannot be a shard: `l` is not a hex digit."""

SOLE_TTL_S = 60.0
BATCH_OBJECTS = 256
BATCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class WholeIndex:
    """One index, for operations on all of it. `compile` folds all waiting objects."""

    name: str
    storage: IndexStorage
    cell: Cell[Manifest]
    watch: VersionWatch
    compile: Callable[[], CompileReport]


def load(whole: WholeIndex) -> Versioned[Manifest]:
    """The current manifest.   Raises: Missing; Corrupt.   Cost: 1 GET."""
    seen = whole.cell.read()
    if seen is None:
        raise Missing(f"there is no index {whole.name!r}", hint="`limpet index create` makes one")
    return seen


@contextmanager
def sole(whole: WholeIndex) -> Iterator[Lease]:
    """Hold the lock for repairs, reshards and purges of this index.

    Raises: Missing; Held.   Cost: 2 GETs + 2 PUTs, 1 PUT more every 20 s.   Crash: the lock expires after a minute.
    """
    load(whole)
    storage = whole.storage
    key = storage.keys.lock(ALL)
    lock = Lock(storage.store, key, key, SOLE_TTL_S, storage.runtime, whole.watch, look_first=True)
    try:
        with lock.hold(wait_s=0.0) as lease:
            yield lease
    except Held as error:
        if error.name == key:
            error.hint = "another repair, reshard or purge of this index is running; wait until it has ended"
        raise


def checked_lines(manifest: Manifest, shard: str, data: bytes, *, what: str, at_rest: bool = False) -> list[bytes]:
    """The lines of a shard, checked. `at_rest`: everything is folded and no compiler runs, so the recorded digest must
    match.   Raises: Corrupt for a damaged shard (F23).
    """
    schema = manifest.schema
    lines = placed(schema, manifest.depth, shard, data, what=what)[1]
    merge(lines, {}, schema.shape, what=what)
    known = manifest.count(shard)
    if known is not None and len(lines) < known.records:
        raise lost_records(what, len(lines), known.records, note="; nothing was changed in it")
    if at_rest and known is not None and known.sum not in ("", sum_of(data)):
        raise changed_bytes(what, note="; nothing was changed in it")
    return lines


def record(whole: WholeIndex, generation: int, folds: Mapping[str, Fold]) -> None:
    """Record shards that were written or read, unless another process has written them since.

    Cost: 1 GET + at most 1 PUT, 1 HEAD for each shard whose record differs.
    """

    def change(now: Manifest | None) -> Manifest | None:
        if now is None or now.generation != generation:
            return None
        found = with_counts(noted(now, folds, whole.storage.is_current)[0], {})
        return found if found != now else None

    whole.cell.update(change)


def put_packs(storage: IndexStorage, manifest: Manifest, lines: Sequence[bytes]) -> int:
    """Put checked lines into packs of their shards; returns the number of shards.

    A pack is safe for lines of singles, packs and shards: it is read after every single and before every shard.
    Cost: 1 PUT for each shard touched.   Crash: any subset of the packs is written; putting them again changes nothing.
    """
    shape = manifest.schema.shape
    by_shard: dict[str, dict[bytes, bytes]] = {}
    for place, line in newest(lines, shape).items():
        by_shard.setdefault(shard_of(place, manifest.depth), {})[place] = line
    storage.add_many(
        [
            Put(storage.keys.pack(shard, storage.runtime.new_id()), packed(part, shape))
            for shard, winners in sorted(by_shard.items())
            for part in split(winners, PACK_BYTES)
        ]
    )
    return len(by_shard)


def lower(whole: WholeIndex, manifest: Manifest, counts: Mapping[str, Count], *, for_good: bool = False) -> None:
    """Lower the counts in the manifest to these, and remove the digests, before the shards are written.

    A compiler refuses a shard with fewer records than the manifest says, or with another digest. `for_good`: increase
    the generation too, so that a slow compiler cannot record an earlier fold.
    Raises: Conflict if the index was resharded.   Cost: 1 GET + at most 1 PUT.
    """

    def change(now: Manifest | None) -> Manifest | None:
        if now is None or now.generation != manifest.generation:
            raise changed_meanwhile(whole)
        fewer: dict[str, Count] = {}
        for shard, count in counts.items():
            known = now.count(shard)
            if known is not None:
                least = count if known.records > count.records else known
                fewer[shard] = Count(least.records, least.size)
        lowered = with_counts(now, fewer)
        if for_good and counts:
            return msgspec.structs.replace(lowered, generation=now.generation + 1)
        return lowered if lowered != now else None

    whole.cell.update(change)


def changed_meanwhile(whole: WholeIndex) -> Conflict:
    """The error for an index that was resharded or purged meanwhile."""
    return Conflict(f"the index {whole.name!r} was resharded or purged meanwhile", hint="try again")


def batches(stats: Iterable[Stat]) -> Iterator[list[Stat]]:
    """The objects in batches of at most 256 and 32 MiB, unless one is larger."""
    return batched(stats, lambda stat: stat.size, size=BATCH_BYTES, count=BATCH_OBJECTS)
