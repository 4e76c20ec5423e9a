"""The stochastic compiler: any number of processes, anywhere, fold what waits into the shards.

The swap of the shard decides; the lock only saves work. Whatever is deleted was read by this very compiler and is
durable further on: in the pack that it just put, or in the shard that it just put and that the manifest records. A
compiler that dies, stalls for a day or loses its lock changes nothing that another one did. Objects that cannot be read
go to quarantine, with the reason, and the rest is compiled.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import partial
from typing import Annotated

import msgspec

from limpet import records
from limpet.cell import Cell
from limpet.errors import Conflict, Corrupt, Held, Invalid, LimpetError, OutcomeUnknown, Unavailable
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
    batched,
    changed_bytes,
    is_current,
    lost_records,
    manifest_cell,
    noted,
    placed,
    sum_of,
)
from limpet.keys import Key
from limpet.lease import Lock, VersionWatch
from limpet.records import Name, Text
from limpet.runtime import Runtime
from limpet.store.api import Blob, Match, Stat

LOCK_TTL_S = 300.0
PART_BYTES_MAX = 64 << 20
LOOKS_MAX = 3
PART = 8
AT_ONCE = 8
AT_ONCE_BYTES = 64 << 20
"""So many bytes of shards are folded side by side, or one shard: memory is bounded by the largest."""

ROUND_SHARDS = 256
ROUND_BYTES = 1 << 30
"""After so many shards, or bytes of them, a run records what it has folded: a run that dies repeats no more."""


@dataclass(slots=True)
class CompileReport:
    """What a run did. `held` shards were another compiler's; `conflicts` were written by another one meanwhile.

    `strays` are folders of another depth, where a program writes that does not know the index was resharded.
    `too_large` are objects that no Limpet wrote; they stay where they are.
    By shard, `folds` are what was put and `merged` the objects in it: they go once the manifest records the fold.
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
        """Take in what another run, or another shard's, did."""
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
"""Compiles some shards of an index wherever it is run; made by `limpet.app`, so that it can be pickled.

The last argument is different each time: some executors (Dask's) answer a call that they have seen before from memory.
"""


class Compiler:
    """Compiles shards of one index, as its manifest was when the run began."""

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
        """Compile those shards, some at the same time; for each its report, or the error that it met.

        They are compiled in rounds, and what a round has folded is recorded. Once `stop` returns True, no shard is
        begun. A folder that is no shard of this index is counted: a program that knows another depth writes there.
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
        at_once = max(1, min(AT_ONCE, self._storage.store.at_once, AT_ONCE_BYTES // max(largest, 1)))
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
        """Record what was folded, then delete what is in it; describe a schema that is not described yet.

        If the store refuses or does not answer, what was folded still waits, and the next run records it.
        Cost: 1 swap of the manifest; 1 HEAD for each shard that another compiler put in between; 1 DELETE an object.
        Crash: what was folded is still there, and is folded again; that changes nothing.
        """
        with suppress(Conflict, OutcomeUnknown, Unavailable):
            self._record(report)

    def _record(self, report: CompileReport) -> None:
        manifest = self._manifest
        if manifest.described != manifest.schema_version:
            write_descriptions(self._storage, self._name, manifest)
        elif not report.folds:
            return
        recorded: frozenset[str] = frozenset()

        def change(now: Manifest | None) -> Manifest | None:
            nonlocal recorded
            recorded = frozenset()
            if now is None or now.generation != manifest.generation:
                return None
            found, recorded = noted(now, report.folds, partial(is_current, self._storage))
            found = msgspec.structs.replace(found, described=max(now.described, manifest.schema_version))
            # F25: even if another compiler has recorded the same, so that what is deleted next is recorded durably
            return found if found != now or recorded else None

        self._cell.update(change)
        self._storage.remove([key for shard in sorted(recorded) for key in report.merged[shard]])

    def compile(self, shard: str, work: WaitingShards, *, full: bool = False) -> CompileReport:
        """Do with one shard what is due: fold it, pack its singles, or leave it.

        Corrupt objects go to quarantine and the rest goes on. A lost race is no error: the winner's shard stands, and
        what this compiler read is still there.
        Raises: Corrupt for a shard that must not be built upon; whatever a read met.
        Cost: 1 LIST of the singles and 1 of the packs, if `work` shows any; a fold then 1 GET an object, the lock
        (2 or 3 requests), 1 GET and 1 PUT of the shard for each 64 MiB that wait; packing 1 GET and 1 DELETE a single
        and 1 PUT. Where another compiler has not recorded its fold yet, as `is_unexplained`. The objects of a fold are
        still there: see `CompileReport.merged`.
        Crash: at any point, nothing is lost and nothing needs to be cleaned up but a lock that runs out.
        """
        singles, large = _readable(self._storage.singles(shard) if shard in work.singles else [])
        packs, larger = _readable(self._storage.packs(shard) if shard in work.packs else [])
        match next_step(self._waiting(singles, packs), self._base_size(shard), full=full):
            case Step.FOLD:
                parts = batched((*singles, *packs), lambda stat: stat.size, size=PART_BYTES_MAX)
                report = self._fold(shard, [[stat.key for stat in part] for part in parts], full=full)
            case Step.PACK:
                report = self._pack(shard, [stat.key for stat in singles])
            case Step.REST:
                report = CompileReport(rested=1)
        report.too_large += [*large, *larger]
        return report

    def _waiting(self, singles: Sequence[Stat], packs: Sequence[Stat]) -> Waiting:
        everything = (*singles, *packs)
        oldest = min((stat.modified for stat in everything), default=None)
        age = self._storage.store.now() - oldest if oldest else timedelta()
        return Waiting(len(singles), len(packs), sum(stat.size for stat in everything), age)

    def _base_size(self, shard: str) -> int:
        count = self._manifest.count(shard)
        return count.size if count else self._storage.shard_size(shard)

    def _fold(self, shard: str, parts: Sequence[Sequence[Key]], *, full: bool) -> CompileReport:
        key, storage = self._storage.keys.lock(shard), self._storage
        lock = Lock(storage.store, key, key, LOCK_TTL_S, storage.runtime, self._watch, look_first=True)
        try:
            lease = lock.try_acquire()
        except (Corrupt, OutcomeUnknown):  # the swap decides, lock or no lock
            return self._merge_all(shard, parts)
        if isinstance(lease, Held):
            # the swap decides: no need to wait for the lock of a compiler that died, or that is merely slower
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
        """Fold one part. `ours` is the digest of the shard as this compiler has just put it, if it did."""
        read, incoming, bad = self._read(shard, keys)
        report = CompileReport(quarantined=bad)
        if not read:
            return report
        what = self._storage.keys.shard(shard)
        blob = self._storage.shard(shard)
        base = self._schema.lines(blob.data, what=what)
        known = self._manifest.count(shard)
        if known is not None and len(base) < known.records:
            raise lost_records(what, len(base), known.records, note="; nothing was compiled into it")
        base_sum = sum_of(blob.data)
        is_recorded = known is None or known.sum in ("", base_sum) or base_sum == ours
        if not is_recorded and is_unexplained(self._storage, self._manifest, shard, blob, base):
            raise changed_bytes(what, note="; nothing was compiled into it")
        shape = self._schema.shape
        for key in keys_of([*base[:1], *base[-1:]], shape):  # a shard is in order, so checking its ends is enough
            if shard_of(digest(key), self._manifest.depth) != shard:
                raise Corrupt(f"{what} has a record of another shard", hint="`limpet index verify --repair` moves it")
        merged = merge(base, incoming, shape, what=what)
        if len(merged.data) > SHARD_BYTES_MAX:
            raise Invalid(
                f"{what} would have {len(merged.data)} bytes, more than the {SHARD_BYTES_MAX} that it may have",
                hint="`limpet index reshard` makes more shards, which are smaller; what waits is kept",
            )
        try:
            # F25: even if nothing changes, so that what is deleted next is durable in a shard that we wrote ourselves
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
        """The objects that are still there and good, the winners of their lines, and how many went to quarantine."""
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
    """Whether a shard with other bytes than recorded was changed by something else than a compiler (F23).

    A compiler that put it, and has not recorded that or died before, left the objects that it folded. So if none of
    them waits while record and shard stay the same, no compiler folded it.
    Cost: 2 GETs + 1 HEAD + 2 LISTs + 1 GET for each object that waits, at most three times.
    """
    cell, schema = manifest_cell(storage), manifest.schema
    base = newest(lines, schema.shape)
    for _ in range(LOOKS_MAX):
        before = cell.read()
        known = before.value.count(shard) if before and before.value.generation == manifest.generation else None
        if known is None or known.sum in ("", sum_of(blob.data)) or not is_current(storage, shard, blob.version):
            return False
        for key, data in storage.waiting(shard).items():
            with suppress(Corrupt):  # it is no record, so no compiler folded it
                if explains(base, schema.lines(data, what=key), schema.shape, is_pack=storage.is_pack(key)):
                    return False
        after = cell.read()
        if after and after.value.generation == manifest.generation and after.value.count(shard) == known:
            return True
    return False


def _readable(waiting: Sequence[Stat]) -> tuple[list[Stat], list[Key]]:
    """The objects that may be read, and the names of those that are too large for that."""
    large = [stat.key for stat in waiting if stat.size > WAITING_BYTES_MAX]
    return [stat for stat in waiting if stat.size <= WAITING_BYTES_MAX], large


def compile_there(
    job: ShardJob, executor: Executor, shards: Sequence[str], full: bool, run_id: str, stop: Stop | None
) -> Iterator[CompileReport | LimpetError]:
    """Have those shards compiled by an executor's workers; the outcome of each, or of each part that a worker lost."""
    parts = [shards[at : at + PART] for at in range(0, len(shards), PART)]
    futures: list[Future[Outcomes]] = []
    try:
        futures = [executor.submit(job, part, full, f"{run_id}-{number}") for number, part in enumerate(parts)]
    except RuntimeError as error:  # a pool that is broken or shut down
        yield Unavailable(f"the executor takes no work: {error}")
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
    """Note a run that changed something or failed; one that found nothing to do is no event."""
    if not (report.folded or report.packed or report.quarantined or failed):
        return
    names = ("folded", "packed", "rested", "held", "conflicts", "objects", "records", "written_bytes", "quarantined")
    counts = {name: getattr(report, name) for name in names}
    took_s = round(runtime.elapsed_s() - began_s, 6)
    sink.emit(compaction(runtime, index=index, counts=counts, took_s=took_s, error=str(failed) if failed else ""))


KEPT_CHARACTERS_MAX = 4 * (WAITING_BYTES_MAX // 3 + 1)
REASON_MAX = 2000


class Quarantined(msgspec.Struct, frozen=True):
    """An object as it was found: its key, what is wrong with it, and its bytes in base 64."""

    key: Text
    reason: Text
    found_at: Name
    data: Annotated[str, msgspec.Meta(max_length=KEPT_CHARACTERS_MAX)]


def read_quarantined(data: bytes, *, what: str) -> Quarantined:
    """An object as it was kept, however large.   Raises: Corrupt."""
    return records.decode(data, Quarantined, what=what, size_max=2 * KEPT_CHARACTERS_MAX)


def quarantine(storage: IndexStorage, shard: str, bad: Mapping[Key, tuple[bytes, str]]) -> None:
    """Move objects to `quarantine/`: the copy is durable before the object is deleted.

    Cost: 1 PUT + 1 DELETE each.   Crash: the object, its copy, or both are there.
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
