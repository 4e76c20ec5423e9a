"""Executions: events of the whole fleet, folded into the Parquet files of a head.

Folding needs no lock: the swap of the head decides. Events are identified by id, so an event that is submitted several
times, to any number of compactors, in any order, is kept once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any

import msgspec

from limpet.events import Event
from limpet.events.ledger import OBJECT_BYTES_MAX, AppliedBatch, Publication, Publisher, delete_all, store_time
from limpet.events.parquet import event_table, events_in, ids_in, merged, read_event_table, write_table
from limpet.events.quarantine import isolate
from limpet.events.sink import SCHEMA, EventBatch
from limpet.kernel import records
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.cell import Cell, Replaced, Versioned, Won, struct_codec
from limpet.kernel.errors import Conflict, Corrupt, Invalid, Missing, Unavailable
from limpet.kernel.keys import Key, is_ulid
from limpet.kernel.records import Count, Digest, Moment, MomentOrNone, Name, digest_of, moment
from limpet.kernel.runtime import Runtime, ulid_above
from limpet.kernel.store.api import Absent, Blob, Stat, Store, batched
from limpet.kernel.store.outcome import put_bytes
from limpet.kernel.waiting import attempts
from limpet.kernel.wording import many

APPLIED_MAX = 256

PATHS_MAX = 256
GONE_MAX = 1000
ROWS_MAX = 250_000
FILES_MAX = 100_000
STATE_BYTES_MAX = 1 << 30
LATE_S = 3600.0
_log = logging.getLogger("limpet.events")


class StateFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of folded events: its digest, size, rows, and first and last id."""

    id: Name
    sha256: Digest
    size: Annotated[int, msgspec.Meta(ge=0, le=STATE_BYTES_MAX)]
    rows: Count
    first: Name
    last: Name


class MergedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that was merged into another one, and when. Readers may still use it."""

    id: Name
    at: Moment


class EventHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `manifests/executions.json` beside the cell's header. `newest`: when the newest folded batch was
    written, by the store's clock."""

    version: Count = 0
    files: Annotated[tuple[StateFile, ...], msgspec.Meta(max_length=FILES_MAX)] = ()
    gone: Annotated[tuple[MergedFile, ...], msgspec.Meta(max_length=GONE_MAX)] = ()
    applied: Annotated[tuple[AppliedBatch, ...], msgspec.Meta(max_length=2 * APPLIED_MAX)] = ()
    last_id: Name = ""
    newest: MomentOrNone = ""
    events: Count = 0
    duplicates: Count = 0
    late: Count = 0
    quarantined: Count = 0


def to_merge(files: Sequence[StateFile], rows: int) -> int:
    """How many of the last files to merge with this many new rows.

    A full file stays; each of the others is at least twice as large as the next one. So there is a file for each
    250,000 events, and a logarithmic number of smaller ones.
    """
    taken = 0
    while taken < len(files) and files[-1 - taken].rows < min(2 * rows, ROWS_MAX):
        rows += files[-1 - taken].rows
        taken += 1
    return taken


def is_late(event: Event, newest: str) -> bool:
    """Whether an event is more than an hour older than the newest fold: a reader may have counted without it."""
    if not newest:
        return False
    return moment(event.at) < moment(newest) - timedelta(seconds=LATE_S)


def read_batch(data: bytes, domain: str) -> EventBatch:
    """A valid batch of events.   Raises: Invalid, with the reason for quarantine."""
    try:
        batch = records.decode(data, EventBatch, what="it", size_max=OBJECT_BYTES_MAX)
    except Corrupt as error:
        raise Invalid(str(error)) from None
    if batch.schema > SCHEMA:
        raise Invalid(f"a newer version of limpet wrote it (schema {batch.schema}; this one reads up to {SCHEMA})")
    if batch.domain != domain:
        raise Invalid(f"it is a batch of the domain {batch.domain!r}")
    for event in batch.events:
        if not is_ulid(event.id):
            raise Invalid(f"an event has the id {event.id[:40]!r}")
        try:
            at = moment(event.at)
        except Corrupt:
            raise Invalid(f"event {event.id} has the time {event.at[:40]!r}") from None
        if at.year not in records.YEARS:
            raise Invalid(f"event {event.id} has the time {event.at[:40]!r}")
    return batch


@dataclass(frozen=True, slots=True)
class _Read:
    """The content of ledger objects: events by id with their positions, and unreadable objects."""

    paths: tuple[str, ...]
    events: Mapping[str, tuple[Event, int | None]]
    repeated: int
    bad: Mapping[str, tuple[Blob, str]]
    newest: str


class Executions:
    """Folds and reads the events of a domain. Any number of processes may fold concurrently."""

    def __init__(self, store: Store, keys: CatalogKeys, runtime: Runtime) -> None:
        self.store = store
        self.keys = keys
        self.runtime = runtime

    def cell(self) -> Cell[EventHead]:
        """The cell of the head."""
        return Cell(self.store, self.keys.head, struct_codec(EventHead), self.runtime)

    def publish(self, paths: Sequence[str], token: int = 0) -> Publication:
        """Fold ledger objects. After it returns, each is folded, in quarantine, or was removed after a fold.

        `token` is ignored: there is no leader of events.
        Raises: Invalid for paths that are not batches; Unavailable, OutcomeUnknown (call it again).
        Cost: 1 GET + 1 a path + 1 for each file that they overlap or are merged with; 2 PUTs, and 2 for each object
        that goes to quarantine.   Crash: folded or not; at worst an unused file remains, which GC removes.
        """
        if not paths or len({*paths}) != len(paths) or len(paths) > PATHS_MAX:
            raise Invalid(f"give 1 to {PATHS_MAX} paths, and none twice")
        for path in paths:
            if self.keys.batch_id(path) is None:
                raise Invalid(f"{path!r} is not a batch of {self.keys.domain}")
        cell = self.cell()
        blobs: dict[str, Blob] | None = None
        for _ in attempts(self.runtime, pause_s=0):
            seen = cell.read() or self._begin(cell)
            done = {each.path: each for each in seen.value.applied if each.path in paths}
            if len(done) == len(paths) and len({each.version for each in done.values()}) == 1:
                return Publication(done[paths[0]].version, done[paths[0]].commit)
            if blobs is None:
                blobs = self._get([path for path in paths if path not in done])
            waiting = {path: blob for path, blob in blobs.items() if path not in done}
            if not waiting:
                return Publication(seen.value.version, seen.value.last_id)
            published = self._attempt(cell, seen, self._read(waiting))
            if published is not None:
                return Publication(published.version, published.last_id)
        raise Unavailable("too many concurrent swaps of the head")

    def fold(self, id_: str, blob: Blob) -> int:
        """Fold one batch from quarantine; returns how many of its events are new.

        Raises: Invalid if it still cannot be read.   Cost: as `publish`.
        """
        read = self._read({self.keys.batch(id_): blob})
        for _, reason in read.bad.values():
            raise Invalid(f"{id_} still cannot be read: {reason}", hint="a newer version of limpet may read it")
        cell = self.cell()
        for _ in attempts(self.runtime, pause_s=0):
            seen = cell.read() or self._begin(cell)
            after = self._attempt(cell, seen, read)
            if after is not None:
                return after.events - seen.value.events
        raise Unavailable("too many concurrent swaps of the head")

    def head(self) -> EventHead:
        """The current head; an empty one if nothing was folded yet.   Raises: Corrupt.   Cost: 1 GET."""
        seen = self.cell().read()
        return seen.value if seen else EventHead()

    def scan(self) -> Iterator[tuple[Event, int | None]]:
        """Every event as of one head, with its position, unordered.

        Raises: Corrupt, after all events of the other files, if files are damaged or missing; Conflict if files were
        merged and removed meanwhile.   Cost: 1 GET + 1 for each file.
        """
        head = self.head()
        damaged: list[str] = []
        for file in head.files:
            try:
                yield from events_in(self._table(file))
            except Corrupt as error:
                damaged.append(str(error))
            except Missing:
                if self.head().version != head.version:
                    raise Conflict("files were merged while they were read") from None
                damaged.append(f"{self.keys.state(file.id)} is missing")
        if damaged:
            raise Corrupt(f"{len(damaged)} of {many(len(head.files), 'file')} of events cannot be read: {damaged[0]}")

    def newest_first(self, floor: str = "") -> Iterator[tuple[str, list[Event]]]:
        """The folded events by file, with the last id of the file; files with later ids come first.

        A damaged file is skipped and logged. Files whose last id is below `floor` are not read.
        Cost: 1 GET + 1 for each file.
        """
        files = [file for file in self.head().files if file.last >= floor]
        for file in sorted(files, key=lambda each: each.last, reverse=True):
            try:
                table = self._sound_table(file)
            except Missing:  # it was merged into another one since
                continue
            yield file.last, [] if table is None else [event for event, _ in events_in(table)]

    def events_of(self, files: Iterable[StateFile]) -> list[Event]:
        """The events of files. A damaged one is skipped and logged.   Raises: Missing.   Cost: 1 GET each."""
        tables = [self._sound_table(file) for file in files]
        return [event for table in tables if table is not None for event, _ in events_in(table)]

    def _begin(self, cell: Cell[EventHead]) -> Versioned[EventHead]:
        """Create an empty head before any file, so that a lost head is never mistaken for a new domain."""
        if next(iter(self.store.list(self.keys.states)), None) is not None:
            seen = cell.read()
            if seen is None:
                raise Corrupt(
                    f"{self.keys.head} is missing, and there are files", hint="restore manifests/ from a backup"
                )
            return seen
        try:
            return cell.create(EventHead())
        except Conflict as conflict:
            seen = cell.read()
            if seen is None:
                raise Corrupt(f"{self.keys.head} was there and is gone") from conflict
            return seen

    def _get(self, paths: Sequence[str]) -> dict[str, Blob]:
        """The existing objects: a missing one was folded and removed.   Raises: Corrupt for one that is too large."""
        found: dict[str, Blob] = {}
        for path, outcome in self.store.get_many([Key(path) for path in paths], size_max=OBJECT_BYTES_MAX).items():
            if isinstance(outcome, Blob):
                found[path] = outcome
            elif not isinstance(outcome, Missing):
                raise outcome
        return found

    def _read(self, blobs: Mapping[str, Blob]) -> _Read:
        events: dict[str, tuple[Event, int | None]] = {}
        bad: dict[str, tuple[Blob, str]] = {}
        count = 0
        for path, blob in blobs.items():
            try:
                batch = read_batch(blob.data, self.keys.domain)
            except Invalid as error:
                bad[path] = (blob, str(error))
                continue
            count += len(batch.events)
            for number, event in enumerate(batch.events):
                events.setdefault(event.id, (event, None if batch.position is None else batch.position + number))
        newest = max((blob.modified for blob in blobs.values()), default=None)
        said = newest.isoformat(timespec="microseconds") if newest else ""
        return _Read(tuple(blobs), events, count - len(events), bad, said)

    def _attempt(self, cell: Cell[EventHead], seen: Versioned[EventHead], read: _Read) -> EventHead | None:
        """One attempt on one head; None: the head has changed, read it again. A lost attempt leaves nothing behind."""
        for path, (blob, reason) in read.bad.items():
            isolate(self.store, self.keys, str(self.keys.batch_id(path)), blob, reason)
        try:
            new = self._build(seen.value, read)
        except Missing as error:  # a file that was merged and removed since, if the head has moved
            now = cell.read()
            if now is not None and now.version != seen.version:
                return None
            raise Corrupt(f"a file of the head is missing: {error}") from None
        match cell.attempt(seen, new):
            case Won() | Replaced():
                return new
            case _:
                return None

    def _build(self, head: EventHead, read: _Read) -> EventHead:
        """The head after these events; its new files are written under names above all names in the head."""
        merging = to_merge(head.files, len(read.events))
        tables: list[Any] = []
        for file in reversed(head.files[len(head.files) - merging :]):
            table = self._sound_table(file)
            if table is None:
                break  # a damaged file stays unchanged, and the smaller ones after it are merged
            tables.insert(0, table)
        split = len(head.files) - len(tables)
        kept, replaced = head.files[:split], head.files[split:]
        known = {id_ for table in tables for id_ in ids_in(table)}
        first, last = min(read.events, default=""), max(read.events, default="")
        for file in kept:
            if file.first <= last and first <= file.last and (table := self._sound_table(file)) is not None:
                known.update(ids_in(table))
        fresh = [found for id_, found in read.events.items() if id_ not in known]
        last_id, files, gone = head.last_id, head.files, head.gone
        if fresh:
            whole = merged([*tables, event_table(fresh)])
            written = [*self._write(whole, head.last_id)]
            last_id, files = written[-1].id, (*kept, *written)
            at = self.store.now().isoformat(timespec="microseconds")
            gone = (*head.gone, *(MergedFile(file.id, at) for file in replaced))[-GONE_MAX:]
        version = head.version + 1
        return EventHead(
            version=version,
            files=files,
            gone=gone,
            applied=(*head.applied, *(AppliedBatch(path, version, last_id) for path in read.paths))[-APPLIED_MAX:],
            last_id=last_id,
            newest=max(read.newest, head.newest),
            events=head.events + len(fresh),
            duplicates=head.duplicates + read.repeated + len(read.events) - len(fresh),
            late=head.late + sum(is_late(event, head.newest) for event, _ in fresh),
            quarantined=head.quarantined + len(read.bad),
        )

    def _write(self, table: Any, floor: str) -> Iterator[StateFile]:
        for start in range(0, table.num_rows, ROWS_MAX):
            part = table.slice(start, ROWS_MAX)
            data, ids = write_table(part), ids_in(part)
            floor = ulid_above(self.runtime.new_id(), floor)
            put_bytes(self.store, self.runtime, self.keys.state(floor), data, Absent())
            yield StateFile(floor, digest_of(data), len(data), len(ids), ids[0], ids[-1])

    def _sound_table(self, file: StateFile) -> Any | None:
        """The table of a file; None for a damaged one, which is logged and skipped (A5).

        Its events are stored again if they are submitted again.
        """
        try:
            return self._table(file)
        except Corrupt as error:
            _log.warning("a file of folded events is damaged and was skipped: %s", error)
            return None

    def _table(self, file: StateFile) -> Any:
        key = self.keys.state(file.id)
        data = self.store.get(key, size_max=file.size).data
        if digest_of(data) != file.sha256:
            raise Corrupt(f"{key} was modified since it was folded: its digest differs")
        return read_event_table(data, what=key)


HANDED_PATHS_MAX = 64
HANDED_BYTES_MAX = 16 << 20
HANDED_MOST = 10_000
GRACE_S = 3600.0


@dataclass(frozen=True, slots=True)
class HandoverReport:
    """The result of a pass over the ledger of events: batches that were folded and removed; objects that stay:
    not batches, too large, or rejected by the compactor."""

    batches: int
    strays: int


def hand_over(store: Store, keys: CatalogKeys, publish: Publisher, *, most: int = HANDED_MOST) -> HandoverReport:
    """Fold the waiting batches of events, and remove each from the ledger after that.

    A rejected batch does not delay the others: then they are submitted one by one.
    Raises: Unavailable and other errors of the store; batches that were not folded still wait.   Cost: 1 LIST per 1,000
    batches, 1 publication for each 64 of them or 16 MiB, 1 DELETE each.   Crash: folded batches that were not removed
    are recognised next time.
    """
    batches = strays = 0

    def waiting() -> Iterator[Stat]:
        nonlocal strays
        for stat in islice(store.list(keys.ledger), most):
            if keys.batch_id(stat.key) is None or stat.size > OBJECT_BYTES_MAX:
                strays += 1  # it stays; the compactor would have to read all of it into memory (F32)
            else:
                yield stat

    for some in batched(waiting(), lambda stat: stat.size, size=HANDED_BYTES_MAX, count=HANDED_PATHS_MAX):
        groups = [[stat.key for stat in some]]
        while groups:
            group = groups.pop(0)
            try:
                publish(group, 0)
            except (Invalid, Corrupt) as error:
                if len(group) > 1:
                    groups = [[key] for key in group]
                else:
                    _log.warning("the events in %s cannot be folded, and stay there: %s", group[0], error)
                    strays += 1
                continue
            delete_all(store, group)
            batches += len(group)
    return HandoverReport(batches, strays)


def garbage(head: EventHead, listed: Iterable[Stat], ids: Iterable[str | None], before: datetime) -> list[str]:
    """The unused files of events: merged, or written without being named by a head, before that time."""
    named = {file.id for file in head.files}
    merged = {gone.id: moment(gone.at) for gone in head.gone}
    return [
        id_
        for stat, id_ in zip(listed, ids, strict=True)
        if id_ is not None and id_ not in named and merged.get(id_, stat.modified) < before
    ]


def collect_events(executions: Executions, *, grace_s: float = GRACE_S) -> int:
    """Delete files of events that were merged or never used; returns how many. For the compactor.

    It swaps the head before it deletes: a process that was about to use one of them loses, and writes new files.
    Raises: OutcomeUnknown (run it again).   Cost: 1 GET, 1 LIST per 1,000 files; if there is garbage 1 GET + 1 PUT, and
    1 DELETE each.   Crash: the next run deletes the rest.
    """
    cell, store, keys = executions.cell(), executions.store, executions.keys
    before = store_time(store, cell.read) - timedelta(seconds=grace_s)
    seen = cell.read()
    if seen is None:
        return 0
    listed = [*store.list(keys.states)]
    doomed = {*garbage(seen.value, listed, [keys.id_of(stat.key) for stat in listed], before)}
    if not doomed:
        return 0

    def cleared(head: EventHead | None) -> EventHead | None:
        if head is None:
            return None
        return msgspec.structs.replace(head, gone=tuple(each for each in head.gone if each.id not in doomed))

    after = cell.update(cleared)
    if after is None:
        return 0
    doomed -= {file.id for file in after.value.files}  # named between the listing and the swap
    delete_all(store, [keys.state(id_) for id_ in sorted(doomed)])
    return len(doomed)
