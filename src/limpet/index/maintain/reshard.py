"""Resharding: more shards, or fewer. Offline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from limpet.errors import Conflict, Invalid
from limpet.index.codec.lines import END
from limpet.index.decide import DEPTHS, digest, keys_of, shard_ids, shard_of
from limpet.index.describe import write_descriptions
from limpet.index.maintain.offline import (
    MisplacedRecords,
    WholeIndex,
    compile_all,
    demand_quiesced,
    load,
    misplaced_in,
    refuse_running,
    refuse_waiting,
    retire,
    sole,
    sound,
)
from limpet.index.storage import Count, Manifest, sum_of, with_counts
from limpet.keys import Key
from limpet.lease import Lease
from limpet.store.api import Absent, Match, Version
from limpet.store.outcome import put_bytes


@dataclass(slots=True)
class ReshardReport:
    """What a reshard did. `removed` counts objects of another depth that are gone, those of an earlier run included."""

    before: int
    depth: int
    shards: int = 0
    records: int = 0
    written_bytes: int = 0
    removed: int = 0


def reshard(whole: WholeIndex, depth: int, *, quiesced: bool = False) -> ReshardReport:
    """Give the index shards of `depth` hex digits. Nobody may write, compile or read it meanwhile.

    Shards of the new depth are written beside the old ones, the swap of the manifest makes them count, and then the
    old ones go. With the depth that it has, it only finishes or undoes what an earlier run left.
    Raises: Invalid without `quiesced`; Held if a compiler, repair, purge or other reshard is at work; Conflict if
    another process wrote nevertheless; Corrupt for a shard that must not be built upon. Then the index is unchanged,
    or is resharded and waits to be tidied: run it again.
    Cost: a full compile, 1 GET and 1 PUT + 1 DELETE for each old shard, 1 PUT for each new one, 2 swaps, 6 LISTs or
    more. Memory is bounded by the largest shard, old or new.
    Crash: before the swap of the manifest the old shards count, after it the new ones; running it again completes it.
    """
    if depth not in DEPTHS:
        raise Invalid(f"an index has a depth of {DEPTHS[0]} to {DEPTHS[-1]}, not {depth}")
    demand_quiesced(quiesced, what="reshard")
    with sole(whole) as lease:
        refuse_running(whole)
        report = ReshardReport(load(whole).value.depth, depth)
        if report.before != depth:
            compile_all(whole)
            refuse_waiting(whole)
            _Move(whole, report).run(lease)
        _tidy(whole, report)
        return report


class _Move:
    """From one depth to another."""

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
        # F3: swapped on what is there now, so that no write of an earlier run that comes late can replace ours
        there = {stat.key: stat.version for stat in self._storage.store.list(self._storage.keys.shards)}
        for old, new in _groups(self._old.depth, self._report.depth):
            self._write(self._split(self._lines(old), new), there)
        self._demand_written()
        lease.check()
        self._commit()
        self._retire()

    def _lines(self, shards: Sequence[str]) -> list[bytes]:
        """The lines of neighbouring shards, in order."""
        lines: list[bytes] = []
        for shard, blob in self._storage.shards(shards).items():
            key = self._storage.keys.shard(shard)
            lines += sound(self._old, shard, blob.data, what=key, at_rest=True)
            self._read[key] = blob.version
        return lines

    def _split(self, lines: Sequence[bytes], shards: Sequence[str]) -> dict[str, bytes]:
        """The bytes of each new shard. Shards are ordered by the digests they begin with, so order is kept."""
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

    def _demand_written(self) -> None:
        """The manifest may name only what is there.   Raises: Conflict."""
        there = {stat.key: stat.version for stat in self._storage.store.list(self._storage.keys.shards)}
        for key, version in (*self._read.items(), *self._written.items()):
            if there.get(key) != version:
                raise Conflict(
                    f"{key} was changed while the index was resharded",
                    hint="stop the process that does that, and run it again",
                )

    def _commit(self) -> None:
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

    def _retire(self) -> None:
        done = self._storage.for_each(lambda key: retire(self._storage, key, self._read[key]), self._read)
        self._report.removed += len(done)


def _groups(old: int, new: int) -> Iterator[tuple[list[str], list[str]]]:
    """The shards of both depths that hold the same records, in order; one of the two is a single shard."""
    common = min(old, new)
    for prefix in shard_ids(common):
        yield _below(prefix, old - common), _below(prefix, new - common)


def _below(prefix: str, digits: int) -> list[str]:
    return [prefix + rest for rest in shard_ids(digits)] if digits else [prefix]


def _tidy(whole: WholeIndex, report: ReshardReport) -> None:
    """Describe the new layout, and bring home whatever lies where only another depth looks.

    Raises: Conflict for what cannot be brought home; it stays.   Cost: 4 LISTs; on a tidy index no more but 1 GET.
    """
    manifest = load(whole).value
    if manifest.described != manifest.schema_version:
        write_descriptions(whole.storage, whole.name, manifest)
        whole.cell.update(_described)
    strays = MisplacedRecords(whole, manifest)
    for key, place in [*misplaced_in(whole.storage, manifest.depth)]:
        strays.bring_home(key, place)
        report.removed += 1


def _described(now: Manifest | None) -> Manifest | None:
    return msgspec.structs.replace(now, described=now.schema_version) if now else None
