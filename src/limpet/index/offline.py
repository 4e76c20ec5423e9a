"""What operations on a whole index share: the index at hand, proof that nobody else is at work, and bounded reading."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import msgspec

from limpet.cell import Cell, Versioned, struct_codec
from limpet.errors import Conflict, Corrupt, Held, Invalid, LimpetError, Missing
from limpet.index.compiler import LOCK_TTL_S, CompileReport
from limpet.index.decide import PACK_BYTES, merge, newest, packed, shard_of, split
from limpet.index.manifest import Count, Fold, Manifest, is_current, noted, sum_of, with_counts
from limpet.index.schema import checked
from limpet.index.stamps import READ_NOW_S
from limpet.index.storage import Storage
from limpet.lease import Lease, LeaseRecord, Lock, State, VersionWatch
from limpet.store.api import Put, Stat

ALL = "all"
"""Stands for every shard in the name of a lock. It is no shard: `l` is no hex digit."""

SOLE_TTL_S = 60.0
BATCH_OBJECTS = 256
BATCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Whole:
    """One index, for operations on all of it. `compile` folds everything that waits."""

    name: str
    storage: Storage
    cell: Cell[Manifest]
    sightings: VersionWatch
    compile: Callable[[], CompileReport]


def load(whole: Whole) -> Versioned[Manifest]:
    """The manifest as it is now.   Raises: Missing; Corrupt.   Cost: 1 GET."""
    seen = whole.cell.read()
    if seen is None:
        raise Missing(f"there is no index {whole.name!r}", hint="`limpet index create` makes one")
    return seen


def demand_quiesced(quiesced: bool, *, what: str) -> None:
    """Go on only if the operator says that the index is at rest.   Raises: Invalid, saying what to stop."""
    if not quiesced:
        raise Invalid(
            f"{what} works only on an index that nobody uses",
            hint="stop everything that writes, compiles or reads this index (workers, `limpet index compile --watch`, "
            "imports), wait until it has ended, then say --quiesced",
        )


@contextmanager
def sole(whole: Whole) -> Iterator[Lease]:
    """Be the only one who repairs, reshards or purges this index.

    Raises: Missing; Held.   Cost: 2 GETs + 2 PUTs, 1 PUT more every 20 s.   Crash: the lock runs out after a minute.
    """
    load(whole)
    storage = whole.storage
    key = storage.keys.lock(ALL)
    lock = Lock(storage.store, key, key, SOLE_TTL_S, storage.runtime, whole.sightings, look_first=True)
    try:
        with lock.hold(wait_s=0.0) as lease:
            yield lease
    except Held as error:
        if error.name == key:
            error.hint = "another repair, reshard or purge of this index is at work; wait until it has ended"
        raise


def refuse_running(whole: Whole) -> None:
    """Go on only if no compiler holds the lock of a shard.

    A lock that has run out on the store's clock is nobody's: its compiler died, or was stopped by the operator.
    Raises: Held, naming who it is.
    Cost: 1 PUT + 1 HEAD + 1 LIST per 1,000 shards + 1 GET for each lock used in the last 5 minutes.
    """
    storage = whole.storage
    now = storage.store.now(max_age_s=READ_NOW_S)  # before the list: an object may be stamped in the future
    listed = [stat for stat in storage.store.list(storage.keys.shards) if stat.key.endswith(".lock")]
    oldest = timedelta(seconds=LOCK_TTL_S + 1)  # F14: LastModified is rounded down
    young = [stat.key for stat in listed if stat.modified + oldest > now and stat.key != storage.keys.lock(ALL)]
    for key, found in storage.store.get_many(young).items():
        if isinstance(found, LimpetError):
            raise found
        record = Cell(storage.store, key, struct_codec(LeaseRecord), storage.runtime).decode(found).value
        if record.state is State.HELD:
            until = found.modified + timedelta(seconds=record.ttl_s + 1)
            held = Held(key, by=record.label, until=until, token=record.token)
            held.hint = "a compiler is at work: stop it, or wait until its lock runs out"
            raise held


def compile_all(whole: Whole) -> None:
    """Fold everything that waits.   Raises: Conflict if another compiler was at work; as `Index.compile`."""
    report = whole.compile()
    if report.held or report.conflicts:
        raise Conflict(
            f"somebody else compiled the index {whole.name!r} at the same time",
            hint="stop every compiler, wait until it has ended, and try again",
        )


def refuse_waiting(whole: Whole) -> None:
    """Go on only if nothing waits to be compiled.   Raises: Conflict, naming an object.   Cost: 2 LISTs."""
    storage = whole.storage
    for prefix in (storage.keys.inbox, storage.keys.packs):
        for stat in storage.store.list(prefix):
            raise Conflict(
                f"{stat.key} still waits after everything was compiled",
                hint="stop every writer and try again; `limpet index verify` tells if it does not belong there",
            )


def sound(manifest: Manifest, shard: str, data: bytes, *, what: str, at_rest: bool = False) -> list[bytes]:
    """The lines of a shard that may be built upon. `at_rest`: all is folded and nobody compiles, so the recorded bytes
    are those of the shard.   Raises: Corrupt for one that may not (F23).
    """
    schema = manifest.schema
    lines = checked(schema, manifest.depth, shard, data, what=what)
    merge(lines, {}, schema.shape, what=what)
    known = manifest.count(shard)
    if known is not None and len(lines) < known.records:
        raise Corrupt(
            f"{what} has {len(lines)} records, and had {known.records} before: some are lost",
            hint="restore it from a backup, or `limpet index verify --accept-loss`; nothing was changed in it",
        )
    if at_rest and known is not None and known.sum not in ("", sum_of(data)):
        raise Corrupt(
            f"{what} has other bytes than those that were compiled: it was changed since",
            hint="restore it from a backup, or `limpet index verify --accept-loss`; nothing was changed in it",
        )
    return lines


def record(whole: Whole, generation: int, folds: Mapping[str, Fold]) -> None:
    """Record shards that were put or read, unless somebody else has put them since.

    Cost: 1 GET + at most 1 PUT, 1 HEAD for each shard that is not recorded so.
    """

    def change(now: Manifest | None) -> Manifest | None:
        if now is None or now.generation != generation:
            return None
        found = with_counts(noted(now, folds, partial(is_current, whole.storage))[0], {})
        return found if found != now else None

    whole.cell.update(change)


def put_packs(storage: Storage, manifest: Manifest, lines: Sequence[bytes]) -> int:
    """Put lines, which are good, where compilers and readers find them; how many packs that took.

    A pack is safe whatever they were in before: it is read after every single, and before every shard.
    Cost: 1 PUT for each shard touched.   Crash: whole packs are there or not; putting them again changes nothing.
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


def lower(whole: Whole, manifest: Manifest, counts: Mapping[str, Count], *, for_good: bool = False) -> None:
    """Have the manifest promise no more than these counts, and no digest, before their shards are put.

    A compiler refuses a shard that has fewer records than the manifest says, or other bytes. `for_good`: one that has
    folded before, and is slow to say so, cannot record its fold.
    Raises: Conflict if the index was laid out anew.   Cost: 1 GET + at most 1 PUT.
    """

    def change(now: Manifest | None) -> Manifest | None:
        if now is None or now.generation != manifest.generation:
            raise anew(whole)
        fewer = {shard: _fewer(now.count(shard), count) for shard, count in counts.items()}
        lowered = with_counts(now, {shard: count for shard, count in fewer.items() if count is not None})
        if for_good and counts:
            return msgspec.structs.replace(lowered, generation=now.generation + 1)
        return lowered if lowered != now else None

    whole.cell.update(change)


def _fewer(known: Count | None, count: Count) -> Count | None:
    if known is None:
        return None
    return Count(count.records, count.size) if known.records > count.records else Count(known.records, known.size)


def anew(whole: Whole) -> Conflict:
    """The error for an index whose shards were laid out anew meanwhile."""
    return Conflict(f"the index {whole.name!r} was resharded or purged meanwhile", hint="try again")


def batches(stats: Iterable[Stat], *, objects: int = BATCH_OBJECTS, size: int = BATCH_BYTES) -> Iterator[list[Stat]]:
    """The objects in runs that fit into memory together: at most so many, and so many bytes unless one is larger."""
    batch: list[Stat] = []
    total = 0
    for stat in stats:
        if batch and (len(batch) == objects or total + stat.size > size):
            yield batch
            batch, total = [], 0
        batch.append(stat)
        total += stat.size
    if batch:
        yield batch
