"""Resharding and purging: operations during which no other process may use the index.

A purge drops tombstones: no older record of a deleted key may be written afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from limpet.index.compiler import LOCK_TTL_S
from limpet.index.decide import DEPTHS, digest, keys_of, shard_ids, shard_of
from limpet.index.describe import write_descriptions
from limpet.index.maintain import ALL, BATCH_BYTES, BATCH_OBJECTS, WholeIndex, checked_lines, load, lower, record, sole
from limpet.index.maintain.flaws import misplaced_in, retire
from limpet.index.maintain.repairs import Repairs
from limpet.index.storage import Count, Fold, Manifest, sum_of, with_counts
from limpet.index.values import END, stamp_text
from limpet.index.writer import READ_NOW_S
from limpet.kernel.cell import Cell, struct_codec
from limpet.kernel.errors import Conflict, Held, Invalid
from limpet.kernel.keys import Key
from limpet.kernel.lease import Lease, LeaseRecord
from limpet.kernel.lease.decide import RESOLUTION_S, is_live
from limpet.kernel.store.api import Absent, Blob, Match, Stat, Version, batched
from limpet.kernel.store.outcome import put_bytes


@contextmanager
def at_rest(whole: WholeIndex, quiesced: bool, *, what: str) -> Iterator[Lease]:
    """`sole`, if the operator confirms that no other process uses the index, and no compiler holds a shard's lock.

    A lock that has expired by the store's clock is free: its compiler died or was stopped.
    Raises: Invalid without `quiesced`, with what to stop; Missing; Held, naming the compiler.
    Cost: as `sole`, and 1 PUT + 1 HEAD + 1 LIST per 1,000 shards + 1 GET for each lock used in the last 5 minutes.
    """
    if not quiesced:
        raise Invalid(
            f"{what} requires that no other process uses the index",
            hint="stop everything that writes, compiles or reads this index (workers, `limpet index compile --watch`, "
            "imports), wait until it has ended, then add --quiesced",
        )
    storage = whole.storage
    with sole(whole) as lease:
        # read before the listing: an object may have a timestamp in the future
        now = storage.store.now(max_age_s=READ_NOW_S)
        listed = [stat for stat in storage.store.list(storage.keys.shards) if stat.key.endswith(".lock")]
        oldest = timedelta(seconds=LOCK_TTL_S + RESOLUTION_S)  # F14: LastModified is rounded down
        young = [stat.key for stat in listed if stat.modified + oldest > now and stat.key != storage.keys.lock(ALL)]
        for key, found in storage.blobs(young).items():
            record = Cell(storage.store, key, struct_codec(LeaseRecord), storage.runtime).decode(found).value
            if is_live(record, modified=found.modified, now=now):
                until = found.modified + timedelta(seconds=record.ttl_s + RESOLUTION_S)
                held = Held(key, by=record.label, until=until, token=record.token)
                held.hint = "a compiler is running: stop it, or wait until its lock expires"
                raise held
        yield lease


def compile_all(whole: WholeIndex) -> None:
    """Fold all waiting objects.

    Raises: Conflict if another compiler was running, or objects still wait afterwards; as `Index.compile`.
    Cost: a full compile and 2 LISTs.
    """
    report = whole.compile()
    if report.held or report.conflicts:
        raise Conflict(
            f"another process compiled the index {whole.name!r} at the same time",
            hint="stop every compiler, wait until it has ended, and try again",
        )
    for prefix in (whole.storage.keys.inbox, whole.storage.keys.packs):
        for stat in whole.storage.store.list(prefix):
            raise Conflict(
                f"{stat.key} still waits after everything was compiled",
                hint="stop every writer and try again; `limpet index verify` says if it does not belong there",
            )


@dataclass(slots=True)
class ReshardReport:
    """What a reshard did. `removed`: objects of another depth that were deleted, including those of earlier runs."""

    before: int
    depth: int
    shards: int = 0
    records: int = 0
    written_bytes: int = 0
    removed: int = 0


def reshard(whole: WholeIndex, depth: int, *, quiesced: bool = False) -> ReshardReport:
    """Change the depth of the shards to `depth` hex digits. No other process may use the index meanwhile.

    Shards of the new depth are written beside the old ones, the swap of the manifest activates them, and then the old
    ones are deleted. With the current depth, it only cleans up after an earlier run.
    Raises: Invalid without `quiesced`; Held if a compiler, repair, purge or other reshard is running; Conflict if
    another process wrote nevertheless; Corrupt for a damaged shard. Then the index is unchanged, or resharded and not
    cleaned up: run it again.
    Cost: a full compile, 1 GET and 1 PUT + 1 DELETE for each old shard, 1 PUT for each new one, 2 swaps, 6 LISTs or
    more. Memory is bounded by the largest shard, old or new.
    Crash: before the swap of the manifest the old shards are active, after it the new ones; run it again.
    """
    if depth not in DEPTHS:
        raise Invalid(f"an index has a depth of {DEPTHS[0]} to {DEPTHS[-1]}, not {depth}")
    with at_rest(whole, quiesced, what="reshard") as lease:
        report = ReshardReport(load(whole).value.depth, depth)
        if report.before != depth:
            compile_all(whole)
            _Move(whole, report).run(lease)
        _tidy(whole, report)
        return report


class _Move:
    def __init__(self, whole: WholeIndex, report: ReshardReport) -> None:
        self._whole = whole
        self._storage = whole.storage
        self._report = report
        self._seen = load(whole)
        self._old = self._seen.value
        self._read: dict[Key, Version] = {}
        self._written: dict[Key, Version] = {}
        self._counts: dict[str, Count] = {}

    def run(self, lease: Lease) -> None:
        """Write the new shards, swap the manifest, retire the old ones."""
        # F3: conditional on the current versions, so that a late write of an earlier run cannot replace ours
        there = {stat.key: stat.version for stat in self._storage.store.list(self._storage.keys.shards)}
        for old, new in _groups(self._old.depth, self._report.depth):
            self._write(self._split(self._lines(old), new), there)
        there = {stat.key: stat.version for stat in self._storage.store.list(self._storage.keys.shards)}
        for key, version in (*self._read.items(), *self._written.items()):
            if there.get(key) != version:  # the manifest may only refer to existing versions
                raise Conflict(
                    f"{key} was changed while the index was resharded",
                    hint="stop the process that writes it, and run this again",
                )
        lease.check()
        empty = msgspec.structs.replace(
            self._old,
            depth=self._report.depth,
            generation=self._old.generation + 1,
            described=0,
            records=(),
            sizes=(),
            sums=(),
        )
        self._whole.cell.swap(self._seen, with_counts(empty, self._counts))
        done = self._storage.for_each(lambda key: retire(self._storage, key, self._read[key]), self._read)
        self._report.removed += len(done)

    def _lines(self, shards: Sequence[str]) -> list[bytes]:
        lines: list[bytes] = []
        for shard, blob in self._storage.shards(shards).items():
            key = self._storage.keys.shard(shard)
            lines += checked_lines(self._old, shard, blob.data, what=key, at_rest=True)
            self._read[key] = blob.version
        return lines

    def _split(self, lines: Sequence[bytes], shards: Sequence[str]) -> dict[str, bytes]:
        """The bytes of each new shard. Shards are digest prefixes, so the order is preserved."""
        parts: dict[str, list[bytes]] = {shard: [] for shard in shards}
        for key, line in zip(keys_of(lines, self._old.schema.shape), lines, strict=True):
            parts[shard_of(digest(key), self._report.depth)].append(line + END)
        self._report.records += len(lines)
        joined = {shard: b"".join(some) for shard, some in parts.items()}
        for shard, data in joined.items():
            self._counts[shard] = Count(len(parts[shard]), len(data), sum_of(data))
        return joined

    def _write(self, parts: Mapping[str, bytes], there: Mapping[Key, Version]) -> None:
        def write(shard: str) -> tuple[Key, Version]:
            key = self._storage.keys.shard(shard)
            when = Match(there[key]) if key in there else Absent()
            return key, put_bytes(self._storage.store, self._storage.runtime, key, parts[shard], when, deletable=True)

        self._written.update(self._storage.for_each(write, parts))
        self._report.shards += len(parts)
        self._report.written_bytes += sum(map(len, parts.values()))


def _groups(old: int, new: int) -> Iterator[tuple[list[str], list[str]]]:
    """The shards of both depths that hold the same records, in order; one of the two is a single shard."""

    def below(prefix: str, digits: int) -> list[str]:
        return [prefix + rest for rest in shard_ids(digits)] if digits else [prefix]

    common = min(old, new)
    for prefix in shard_ids(common):
        yield below(prefix, old - common), below(prefix, new - common)


def _tidy(whole: WholeIndex, report: ReshardReport) -> None:
    """Describe the new layout, and move objects of other depths.

    Raises: Conflict for one that cannot be moved; it stays.   Cost: 4 LISTs + 1 GET if there is nothing to do.
    """
    manifest = load(whole).value
    if manifest.described != manifest.schema_version:
        write_descriptions(whole.storage, whole.name, manifest)
        whole.cell.update(lambda now: now and msgspec.structs.replace(now, described=now.schema_version))
    repairs = Repairs(whole, manifest, {})
    for key, place in [*misplaced_in(whole.storage, manifest.depth)]:
        repairs.move(key, place)
        report.removed += 1


@dataclass(slots=True)
class PurgeReport:
    """What a purge did: tombstones dropped, tombstones kept because of their age, shards and bytes rewritten."""

    dropped: int = 0
    kept: int = 0
    shards: int = 0
    written_bytes: int = 0


def purge(whole: WholeIndex, *, quiesced: bool = False, older_than_s: float | None = None) -> PurgeReport:
    """Compile everything, then drop the tombstones, or those older than `older_than_s`.

    No other process may use the index meanwhile, and every process that could still write an older record of a deleted
    key must have ended: only the tombstone hides such a record.
    Raises: Invalid without `quiesced`; Held if a compiler, repair, reshard or other purge is running; Conflict if
    objects wait or another process wrote nevertheless; Corrupt for a damaged shard.
    Cost: a full compile, 1 GET a shard, 2 swaps of the manifest, 1 GET + 1 PUT + 1 HEAD more for each shard with
    something to drop. Memory is bounded by 32 MiB of shards or the largest one, whichever is more.
    Crash: some shards are purged and others not; the counts in the manifest are lowered before. Run it again.
    """
    if older_than_s is not None and older_than_s < 0:
        raise Invalid(f"older_than_s is {older_than_s:g}: an age cannot be negative")
    with at_rest(whole, quiesced, what="purge"):
        compile_all(whole)
        manifest = load(whole).value
        for key, _ in misplaced_in(whole.storage, manifest.depth):
            raise Conflict(
                f"{key} is of another depth and may hold older records of deleted keys",
                hint="`limpet index verify --repair` puts them into their shards; then purge again",
            )
        before = None
        if older_than_s is not None:
            before = stamp_text(whole.storage.store.now(max_age_s=0.0) - timedelta(seconds=older_than_s))
        return _Purge(whole, manifest, before).run()


class _Purge:
    """Drops tombstones with a stamp before `before`, or all of them."""

    def __init__(self, whole: WholeIndex, manifest: Manifest, before: str | None) -> None:
        self._whole = whole
        self._storage = whole.storage
        self._manifest = manifest
        self._before = before

    def run(self) -> PurgeReport:
        """Find the shards with tombstones to drop; lower their counts in the manifest; then rewrite them."""
        report = PurgeReport()
        is_tombstone = self._manifest.schema.is_tombstone
        shrinking: dict[str, Stat] = {}
        counts: dict[str, Count] = {}
        for shard, blob in self._read(self._storage.shard_stats(self._manifest.depth)):
            key = self._storage.keys.shard(shard)
            lines = checked_lines(self._manifest, shard, blob.data, what=key, at_rest=True)
            kept = self._kept(lines)
            report.kept += sum(map(is_tombstone, kept))
            if len(kept) < len(lines):
                shrinking[shard] = Stat(key, blob.size, blob.version, blob.modified)
                counts[shard] = Count(len(kept), sum(len(line) + 1 for line in kept))
        lower(self._whole, self._manifest, counts, for_good=True)
        folds: dict[str, Fold] = {}
        for shard, blob in self._read(shrinking):
            key, version = shrinking[shard].key, shrinking[shard].version
            if blob.version != version:
                raise Conflict(
                    f"{key} was written while the index was purged",
                    hint="stop the process that writes it, and purge again",
                )
            lines = checked_lines(self._manifest, shard, blob.data, what=key)
            kept = self._kept(lines)
            data = b"".join([line + END for line in kept])
            put = put_bytes(self._storage.store, self._storage.runtime, key, data, Match(version))
            folds[shard] = Fold(Count(len(kept), len(data), sum_of(data)), put)
            report.dropped += len(lines) - len(kept)
            report.shards += 1
            report.written_bytes += len(data)
        if folds:
            record(self._whole, load(self._whole).value.generation, folds)
        return report

    def _read(self, shards: Mapping[str, Stat]) -> Iterator[tuple[str, Blob]]:
        for batch in batched(shards, lambda shard: shards[shard].size, size=BATCH_BYTES, count=BATCH_OBJECTS):
            yield from self._storage.shards(batch).items()

    def _kept(self, lines: list[bytes]) -> list[bytes]:
        schema, before = self._manifest.schema, self._before
        return [
            line
            for line in lines
            if not schema.is_tombstone(line) or (before is not None and schema.stamp_of(line) >= before)
        ]
