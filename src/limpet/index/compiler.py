"""The compiler: any number of processes, on any machine, fold waiting objects into the shards.

The swap of the shard decides; the lock only avoids duplicate work. A compiler deletes only objects that it has read
itself and whose records are durable in the pack it has just written, or in the shard it has just written and recorded
in the manifest. A compiler that dies, stalls for a day or loses its lock does not undo the work of another one. Objects
that cannot be read go to quarantine, with the reason, and the rest is compiled.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Annotated

import msgspec

from limpet.events import EventSink, compaction
from limpet.index.decide import (
    Step,
    Waiting,
    digest,
    explains,
    keys_of,
    merge,
    newest,
    next_step,
    packed,
    shard_ids,
    shard_of,
    winners,
)
from limpet.index.describe import write_descriptions
from limpet.index.storage import (
    SHARD_BYTES_MAX,
    WAITING_BYTES_MAX,
    Count,
    Fold,
    IndexStorage,
    Manifest,
    WaitingShards,
    changed_bytes,
    lost_records,
    manifest_cell,
    noted,
    placed,
    sum_of,
)
from limpet.index.values import lines_of
from limpet.kernel import records
from limpet.kernel.cell import Cell
from limpet.kernel.errors import Conflict, Corrupt, Held, Invalid, LimpetError, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.lease import Lock, VersionWatch
from limpet.kernel.records import Name, Text
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Blob, Match, Stat, batched
from limpet.kernel.wording import many

LOCK_TTL_S = 300.0
PART_BYTES_MAX = 64 << 20
LOOKS_MAX = 3
PART = 8
AT_ONCE = 8
FAR_AT_ONCE = 32
"""Shards that are folded concurrently on a far store: each mostly waits for its seven sequential requests."""
AT_ONCE_BYTES = 64 << 20
"""Bytes of shards that are folded concurrently, at least one shard: memory is bounded by the largest."""

ROUND_SHARDS = 256
ROUND_BYTES = 1 << 30
"""A run records its folds after this many shards or bytes: after a crash, no more than that is repeated."""


@dataclass(slots=True)
class CompileReport:
    """What a run did. `held`: shards locked by another compiler; `conflicts`: shards that another one wrote meanwhile.

    `strays`: folders of another depth, written by a program that does not know about a reshard. `too_large`: objects
    that Limpet did not write; they are not touched. By shard, `folds` are the written shards, and `merged` the objects
    in them, which are deleted after the manifest records the fold.
    """

    folded: int = 0
    packed: int = 0
    rested: int = 0
    held: int = 0
    conflicts: int = 0
    objects: int = 0
    records: int = 0
    written_bytes: int = 0
    quarantined: int = 0
    strays: int = 0
    too_large: list[Key] = field(default_factory=list)
    folds: dict[str, Fold] = field(default_factory=dict, repr=False)
    merged: dict[str, list[Key]] = field(default_factory=dict, repr=False)

    def add(self, other: CompileReport) -> None:
        """Add the report of another run or shard."""
        for each in fields(self):
            if each.name not in ("folds", "merged"):
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        for shard, fold in other.folds.items():
            first = self.folds.get(shard, fold)
            self.folds[shard] = Fold(fold.count, fold.version, first.base)
            self.merged.setdefault(shard, []).extend(other.merged[shard])


Outcomes = Sequence[CompileReport | LimpetError]
Stop = Callable[[], bool]
ShardJob = Callable[[Sequence[str], bool, str], Outcomes]
"""Compiles shards of an index in any process; created by `limpet.app`, so that it can be pickled.

The last argument is unique: some executors (Dask's) cache the result of a call by its arguments.
"""


class Compiler:
    """Compiles shards of one index, by the manifest as of the start of the run."""

    def __init__(
        self, name: str, storage: IndexStorage, cell: Cell[Manifest], manifest: Manifest, watch: VersionWatch
    ) -> None:
        self._name = name
        self._storage = storage
        self._cell = cell
        self._manifest = manifest
        self._schema = manifest.schema
        self._watch = watch

    def run(
        self, shards: Sequence[str], work: WaitingShards, *, full: bool, stop: Stop | None = None
    ) -> Iterator[CompileReport | LimpetError]:
        """Compile these shards, some concurrently; yields for each its report, or its error.

        They are compiled in rounds, and the folds of a round are recorded at its end. After `stop` returns True, no
        shard is started. A folder that is not a shard of this index is counted as a stray.
        Cost: as `compile` for each shard, and as `record` for every round.
        """
        sizes = dict(zip(shard_ids(self._manifest.depth), self._manifest.sizes, strict=False))
        every = {*shard_ids(self._manifest.depth)}

        def one(shard: str) -> CompileReport | LimpetError:
            if stop is not None and stop():
                return CompileReport()
            if shard not in every:
                return CompileReport(strays=1)
            try:
                return self.compile(shard, work, full=full)
            except LimpetError as error:
                return error

        largest = max(self._manifest.sizes, default=0)
        wanted = FAR_AT_ONCE if self._storage.store.far else AT_ONCE
        at_once = max(1, min(wanted, self._storage.store.at_once, AT_ONCE_BYTES // max(largest, 1)))
        for some in batched(shards, lambda shard: sizes.get(shard, 0), size=ROUND_BYTES, count=ROUND_SHARDS):
            outcomes = self._storage.runtime.fan_out(one, some, at_once=at_once)
            done = CompileReport()
            for outcome in outcomes:
                if isinstance(outcome, CompileReport):
                    done.add(outcome)
                    outcome.folds, outcome.merged = {}, {}
            self.record(done)
            yield from outcomes

    def record(self, report: CompileReport) -> None:
        """Record folds, then delete the folded objects; describe the schema if that is not done yet.

        If the store refuses or does not answer, the folded objects still wait, and the next run records the folds.
        Cost: 1 swap of the manifest; 1 HEAD for each shard that another compiler wrote in between; 1 DELETE an object.
        Crash: the folded objects still wait, and are folded again; that changes nothing.
        """
        manifest = self._manifest
        recorded: frozenset[str] = frozenset()

        def change(now: Manifest | None) -> Manifest | None:
            nonlocal recorded
            recorded = frozenset()
            if now is None or now.generation != manifest.generation:
                return None
            found, recorded = noted(now, report.folds, self._storage.is_current)
            found = msgspec.structs.replace(found, described=max(now.described, manifest.schema_version))
            # F25: even if another compiler has recorded the same, so that the fold is durable before the deletes
            return found if found != now or recorded else None

        with suppress(Conflict, OutcomeUnknown, Unavailable):
            if manifest.described != manifest.schema_version:
                write_descriptions(self._storage, self._name, manifest)
            elif not report.folds:
                return
            self._cell.update(change)
            self._storage.remove([key for shard in sorted(recorded) for key in report.merged[shard]])

    def compile(self, shard: str, work: WaitingShards, *, full: bool = False) -> CompileReport:
        """Fold one shard, pack its singles, or leave it, whichever is due.

        Corrupt objects go to quarantine and the rest is compiled. A lost race is not an error: the winner's shard
        stays, and the objects that this compiler read are still there.
        Raises: Corrupt for a damaged shard; any read error.
        Cost: 1 LIST of the singles and 1 of the packs, if `work` shows any; a fold then 1 GET an object, the lock
        (2 or 3 requests), 1 GET and 1 PUT of the shard for each 64 MiB that wait; packing 1 GET and 1 DELETE a single
        and 1 PUT. Where another compiler has not recorded its fold yet, as `is_unexplained`. The folded objects are not
        deleted here: see `CompileReport.merged`.
        Crash: nothing is lost, and nothing must be cleaned up: the lock expires.
        """
        singles, large = _readable(self._storage.singles(shard) if shard in work.singles else [])
        packs, larger = _readable(self._storage.packs(shard) if shard in work.packs else [])
        everything = (*singles, *packs)
        oldest = min((stat.modified for stat in everything), default=None)
        age = self._storage.store.now() - oldest if oldest else timedelta()
        waiting = Waiting(len(singles), len(packs), sum(stat.size for stat in everything), age)
        count = self._manifest.count(shard)
        match next_step(waiting, count.size if count else self._storage.shard_stat(shard).size, full=full):
            case Step.FOLD:
                parts = batched(everything, lambda stat: stat.size, size=PART_BYTES_MAX)
                report = self._fold(shard, [[stat.key for stat in part] for part in parts], full=full)
            case Step.PACK:
                report = self._pack(shard, [stat.key for stat in singles])
            case Step.REST:
                report = CompileReport(rested=1)
        report.too_large += [*large, *larger]
        return report

    def _fold(self, shard: str, parts: Sequence[Sequence[Key]], *, full: bool) -> CompileReport:
        key, storage = self._storage.keys.lock(shard), self._storage
        lock = Lock(storage.store, key, key, LOCK_TTL_S, storage.runtime, self._watch, look_first=True)
        try:
            lease = lock.try_acquire()
        except (Corrupt, OutcomeUnknown):  # the swap decides, lock or no lock
            return self._merge_all(shard, parts)
        if isinstance(lease, Held):
            # the swap decides, so there is no need to wait for the lock of a dead or slower compiler
            run_out = lease.until is not None and lease.until <= self._storage.store.now()
            return self._merge_all(shard, parts) if full or run_out else CompileReport(held=1)
        try:
            return self._merge_all(shard, parts)
        finally:
            with suppress(LimpetError):  # the lease expires; the shard does not depend on it
                lease.release()

    def _merge_all(self, shard: str, parts: Sequence[Sequence[Key]]) -> CompileReport:
        report = CompileReport()
        for part in parts:
            ours = report.folds.get(shard)
            report.add(self._merge(shard, part, ours.count.sum if ours else None))
            if report.conflicts:
                break
        report.folded = min(report.folded, 1)
        return report

    def _merge(self, shard: str, keys: Sequence[Key], ours: str | None) -> CompileReport:
        """Fold one part. `ours` is the digest of the shard if this compiler has just written it."""
        read, incoming, bad = self._read(shard, keys)
        report = CompileReport(quarantined=bad)
        if not read:
            return report
        what = self._storage.keys.shard(shard)
        blob = self._storage.shard(shard)
        known = self._manifest.count(shard)
        base_sum = sum_of(blob.data)
        # a digest is recorded only for bytes that were checked, so these need not be checked again
        was_checked = base_sum == ours or (known is not None and known.sum == base_sum)
        base = lines_of(blob.data, what=what) if was_checked else self._schema.lines(blob.data, what=what)
        if known is not None and len(base) < known.records:
            raise lost_records(what, len(base), known.records, note="; nothing was compiled into it")
        is_recorded = known is None or known.sum in ("", base_sum) or base_sum == ours
        if not is_recorded and is_unexplained(self._storage, self._manifest, shard, blob, base):
            raise changed_bytes(what, note="; nothing was compiled into it")
        self._check_ends(base, shard)
        is_wide = was_checked and self._manifest.schema_version == 1  # no column was ever added
        merged = merge(base, incoming, self._schema.shape, what=what, in_order=was_checked, is_wide=is_wide)
        if len(merged.data) > SHARD_BYTES_MAX:
            raise Invalid(
                f"{what} would have {many(len(merged.data), 'byte')}, more than the {SHARD_BYTES_MAX:,} allowed",
                hint="`limpet index reshard` makes more shards, which are smaller; waiting records are kept",
            )
        try:
            # F25: even if nothing changes, so that the records are durable in a shard that we wrote before the deletes
            version = self._storage.store.put(what, merged.data, when=Match(blob.version))
        except (Conflict, OutcomeUnknown):
            report.conflicts = 1
            return report
        report.folded = 1
        report.objects = len(read)
        report.records = merged.won
        report.written_bytes = len(merged.data)
        count = Count(merged.records, len(merged.data), sum_of(merged.data))
        report.folds[shard] = Fold(count, version, base_sum)
        report.merged[shard] = read
        return report

    def _check_ends(self, base: Sequence[bytes], shard: str) -> None:
        """Raises: Corrupt for a shard with a record of another one. It is ordered, so its two ends are enough."""
        for key in keys_of([*base[:1], *base[-1:]], self._schema.shape):
            if shard_of(digest(key), self._manifest.depth) != shard:
                what = self._storage.keys.shard(shard)
                raise Corrupt(f"{what} has a record of another shard", hint="`limpet index verify --repair` moves it")

    def _pack(self, shard: str, keys: Sequence[Key]) -> CompileReport:
        read, incoming, bad = self._read(shard, keys)
        report = CompileReport(quarantined=bad)
        if not read:
            return report
        data = packed(incoming, self._schema.shape)
        try:
            self._storage.add(self._storage.keys.pack(shard, self._storage.runtime.new_id()), data)
        except OutcomeUnknown:
            report.conflicts = 1
            return report
        self._storage.remove(read)
        report.packed = 1
        report.objects = len(read)
        report.written_bytes = len(data)
        return report

    def _read(self, shard: str, keys: Sequence[Key]) -> tuple[list[Key], dict[bytes, bytes], int]:
        """The valid objects that still exist, the winners of their lines, and how many went to quarantine."""
        good: list[Key] = []
        places: list[bytes] = []
        lines: list[bytes] = []
        bad: dict[Key, tuple[bytes, str]] = {}
        for key, data in self._storage.read(keys).items():
            try:
                found = placed(self._schema, self._manifest.depth, shard, data, what=key)
            except Corrupt as error:
                bad[key] = (data, str(error))
            else:
                good.append(key)
                places += found[0]
                lines += found[1]
        quarantine(self._storage, shard, bad)
        return good, winners(places, lines, self._schema.shape), len(bad)


def is_unexplained(storage: IndexStorage, manifest: Manifest, shard: str, blob: Blob, lines: Sequence[bytes]) -> bool:
    """Whether a shard whose bytes differ from the record was changed by something other than a compiler (F23).

    A compiler that wrote the shard and has not recorded it (yet) left the objects that it folded. So if no such object
    waits while the record and the shard stay the same, no compiler wrote it.
    Cost: 2 GETs + 1 HEAD + 2 LISTs + 1 GET for each object that waits, at most three times.
    """
    cell, schema = manifest_cell(storage), manifest.schema
    base = newest(lines, schema.shape)
    for _ in range(LOOKS_MAX):
        before = cell.read()
        known = before.value.count(shard) if before and before.value.generation == manifest.generation else None
        if known is None or known.sum in ("", sum_of(blob.data)) or not storage.is_current(shard, blob.version):
            return False
        for key, data in storage.waiting(shard).items():
            with suppress(Corrupt):  # not a record, so no compiler folded it
                if explains(base, schema.lines(data, what=key), schema.shape, is_pack=storage.is_pack(key)):
                    return False
        after = cell.read()
        if after and after.value.generation == manifest.generation and after.value.count(shard) == known:
            return True
    return False


def _readable(waiting: Sequence[Stat]) -> tuple[list[Stat], list[Key]]:
    large = [stat.key for stat in waiting if stat.size > WAITING_BYTES_MAX]
    return [stat for stat in waiting if stat.size <= WAITING_BYTES_MAX], large


def compile_there(
    job: ShardJob, executor: Executor, shards: Sequence[str], full: bool, run_id: str, stop: Stop | None
) -> Iterator[CompileReport | LimpetError]:
    """Compile shards on an executor's workers; yields the outcome of each, or an error for a lost part."""
    parts = [shards[at : at + PART] for at in range(0, len(shards), PART)]
    futures: list[Future[Outcomes]] = []
    try:
        futures = [executor.submit(job, part, full, f"{run_id}-{number}") for number, part in enumerate(parts)]
    except RuntimeError as error:  # a pool that is broken or shut down
        yield Unavailable(f"the executor does not accept work: {error}")
    for future in futures:
        if stop is not None and stop() and future.cancel():
            continue
        try:
            yield from future.result()
        except LimpetError as error:
            yield error
        except (BrokenExecutor, CancelledError) as error:
            yield Unavailable(f"a worker ended before its shards were compiled: {error or type(error).__name__}")


def emit_run(
    sink: EventSink, runtime: Runtime, index: str, report: CompileReport, failed: LimpetError | None, began_s: float
) -> None:
    """Emit an event for a run that changed something or failed."""
    if not (report.folded or report.packed or report.quarantined or failed):
        return
    names = ("folded", "packed", "rested", "held", "conflicts", "objects", "records", "written_bytes", "quarantined")
    counts = {name: getattr(report, name) for name in names}
    took_s = round(runtime.elapsed_s() - began_s, 6)
    sink.emit(compaction(runtime, index=index, counts=counts, took_s=took_s, error=str(failed) if failed else ""))


KEPT_CHARACTERS_MAX = 4 * (WAITING_BYTES_MAX // 3 + 1)
REASON_MAX = 2000


class Quarantined(msgspec.Struct, frozen=True):
    """A quarantined object: its key, what is wrong with it, and its bytes in base 64."""

    key: Text
    reason: Text
    found_at: Name
    data: Annotated[str, msgspec.Meta(max_length=KEPT_CHARACTERS_MAX)]


def read_quarantined(data: bytes, *, what: str) -> Quarantined:
    """A quarantined object, of any size.   Raises: Corrupt."""
    return records.decode(data, Quarantined, what=what, size_max=2 * KEPT_CHARACTERS_MAX)


def quarantine(storage: IndexStorage, shard: str, bad: Mapping[Key, tuple[bytes, str]]) -> None:
    """Move objects to `quarantine/`: the copy is durable before the object is deleted.

    Cost: 1 PUT + 1 DELETE each.   Crash: the object, its copy, or both exist.
    """
    for key, (data, reason) in bad.items():
        keep(storage, shard, key, data, reason)
        storage.remove([key])


def keep(storage: IndexStorage, shard: str, key: Key, data: bytes, reason: str) -> None:
    """Put a copy of an object, with the reason, into `quarantine/`.   Cost: 1 PUT, or 1 for every 256 MiB."""
    at = storage.runtime.wall().isoformat(timespec="seconds")
    for start in range(0, len(data) or 1, WAITING_BYTES_MAX):
        part = b64encode(data[start : start + WAITING_BYTES_MAX]).decode()
        kept = Quarantined(key, reason[:REASON_MAX], at, part)
        storage.add(storage.keys.quarantined(shard, storage.runtime.new_id()), records.encode(kept))
