"""Copying a fleet to another URL while it runs, and back: `backup`, `restore`, `check_backup`.

A backup has the layout of the fleet, plus `backup.json` and the lists below `backup/`. The copy is consistent by the
order in which kinds of objects are copied (`ORDER`): data that moves is copied in the direction in which it moves, one
step after the other; objects that refer to others are copied before those. So an object that has moved before it
was copied is found in a later step. docs/design/0007-backup.md explains each step and the guarantees.

The source is never written to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TypeVar

import msgspec

from limpet import keys, records
from limpet.app.backup_decide import (
    INDEX_ORDER,
    QUEUE_ORDER,
    REST,
    UNKNOWN_MAX,
    BackupRecord,
    Entries,
    ListRef,
    StepNames,
    check_target,
    entry_at,
    keeps_id,
    kind_of,
    names_in_step,
    next_epoch,
    older_lists,
    run_name,
    superseded,
    token_of_run,
)
from limpet.app.fleet import (
    BACKUP,
    RESTORING,
    FleetRecord,
    absolute,
    check_has_store,
    check_record,
    record_cell,
    store_for,
)
from limpet.cell import Cell, Versioned, struct_codec
from limpet.errors import (
    Conflict,
    Corrupt,
    Held,
    Invalid,
    LeaseLost,
    LimpetError,
    Missing,
    OutcomeUnknown,
    Unavailable,
)
from limpet.events import EXECUTIONS
from limpet.events.fold import EventHead
from limpet.index.storage import Manifest, shortened
from limpet.keys import CatalogKeys, Key, entry_of
from limpet.lease import Lease, Lock, VersionWatch
from limpet.records import Count, Digest, Name, digest_of
from limpet.runtime import Runtime, system
from limpet.store.api import Absent, Match, Stat, Store, Version, batched
from limpet.store.directory.plain import WAREHOUSE, plain_warehouse
from limpet.store.metered import MeteredStore
from limpet.store.outcome import put_bytes
from limpet.store.probe import probe_conditions

T = TypeVar("T")
_size = attrgetter("size")

OBJECT_BYTES_MAX = 1 << 30
"""An object is read whole before it is written; a larger one is skipped and reported."""
OTHER_SIZE = "another size"
GROUP_BYTES = 64 << 20
GROUP_OBJECTS = 256
LIST_LINES = 2000
LIST_BYTES_MAX = 8 << 20
SHOWN_MAX = 100
TRIES_MAX = 5
BACKOFF_S = 1.0
SETTLE_ROUNDS = 20
HEAD_BYTES_MAX = 64 << 20
CATALOG = "catalog"
LOCK_TTL_S = 60.0
"""Longer than a request that was given up can still take to land."""
TAKEN_OVER = "another run to the same target has taken over: this one was paused for too long"
TAKEN_OVER_HINT = "let it finish; if you need this one too, run it again then"


class _Line(msgspec.Struct, frozen=True, array_like=True):
    """One copied object: its key, its size, its version in the source, the digest of its bytes."""

    key: Name
    size: Count
    version: Name
    sha256: Digest


class _Retried(msgspec.Struct, frozen=True):
    """The field of a receipt that names the retry of its task."""

    retried_as: Name | None = None


@dataclass(frozen=True, slots=True)
class BackupProgress:
    """The progress of a run: the current kind of object, objects and bytes found, and objects copied."""

    kind: str
    objects: int
    bytes: int
    copied: int


Tell = Callable[[BackupProgress], None]


@dataclass(slots=True)
class BackupReport:
    """What a run did. `left_out`: objects that could not be copied, with the reason; `damaged` (restore only): objects
    whose bytes differ from the backup's record; `unknown`: entries that durable tasks have pushed and that are not in
    the source, as `queues/QUEUE/ENTRY`. `fleet` and `epoch` are those of the fleet that was copied or restored."""

    objects: int = 0
    bytes: int = 0
    copied: int = 0
    copied_bytes: int = 0
    vanished: int = 0
    removed: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    requests: dict[str, dict[str, int]] = field(default_factory=dict)
    fleet: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `check_backup`: objects that are missing, changed, or not part of the backup, and entries that a
    durable task has pushed and that were lost, as `queues/QUEUE/ENTRY`."""

    finished: bool
    objects: int
    bytes: int
    missing: list[str]
    changed: list[str]
    strange: list[str]
    left_out: int
    lost: list[str]

    @property
    def ok(self) -> bool:
        """Whether the backup is finished and complete."""
        return self.finished and not (self.missing or self.changed or self.lost)


# ---- backup, restore, check ----


def backup(
    source: Store,
    target: Store,
    runtime: Runtime,
    *,
    source_url: str,
    target_url: str,
    data: bool = True,
    wait_s: float = 0.0,
    tell: Tell = lambda progress: None,
) -> BackupReport:
    """Copy the fleet in `source` to `target`, which is empty or an earlier backup of it. The fleet may be running.

    Everything that was acknowledged before the call is in the copy, or its outcome is. Objects that did not change
    since the last run to the same target are not copied again; objects that are gone from the source are deleted from
    the target at the end. `data=False` skips table data, but not table metadata.
    Raises: Missing if there is no fleet; Invalid for a target with something else, or of another fleet; Held if another
    run to the same target has not ended after `wait_s`; LeaseLost if one took over while this one was paused;
    Unavailable; Denied; Corrupt if objects of the catalog's head are missing.
    Cost: 1 LIST per 1,000 objects on both sides, 1 GET + 1 PUT for each object that is copied, 1 PUT per 2,000 objects,
    1 GET per 256 objects that are copied or deleted. Memory: 64 MiB, or one object if that is larger, twice; and about
    300 bytes for each object of the fleet.
    Crash: the same call resumes, once the lock of the dead run has expired; until then `backup.json` says that it is
    not finished. Meanwhile nothing of the last finished backup is missing.
    """
    old, new = _metered(source, runtime), _metered(target, runtime)
    record = _fleet_record(old, runtime, source_url)
    wanted = BackupRecord(
        purpose="backup",
        state="running",
        run="",
        source=source_url[: records.NAME_MAX],
        begun_at=runtime.wall(),
        fleet=record.id or None,
        epoch=record.epoch or 0,
    )
    with _alone(new, runtime, wanted, target_url, wait_s) as turn:
        run = _Run(old, new, runtime, turn, tell)
        _set_record(new, runtime, record, BACKUP)
        _copy_fleet(run, data=data)
        run.note_unknown()
        run.remove_stale()
        _finish(run, with_data=data)
    return run.reported(record)


def restore(
    source: Store,
    target: Store,
    runtime: Runtime,
    *,
    source_url: str,
    target_url: str,
    force: bool = False,
    keep_id: bool = False,
    wait_s: float = 0.0,
    tell: Tell = lambda progress: None,
) -> BackupReport:
    """Restore the backup in `source` as a fleet in `target`, which must be empty.

    The fleet cannot be opened before it is complete. Every object that the backup's record names is compared with it;
    others are left. Locks keep their state: a held one becomes free `ttl_s` after it was written here. The epoch of the
    fleet is raised: `next_epoch`. It keeps its id at the URL that was backed up, elsewhere with `keep_id`: `keeps_id`.
    `force`: accept a backup that is not finished, or has damaged objects.
    Raises: Missing if there is no backup; Invalid for a target that is not empty, or an unfinished backup; Held,
    LeaseLost: as `backup`; Conflict if a run to `source` began meanwhile; Corrupt, naming damaged objects: all others
    are restored then; Unavailable; Denied.
    Cost: 1 LIST per 1,000 objects, 1 GET + 1 PUT an object, 1 PUT per 2,000 objects, 1 GET per 256.
    Memory: as `backup`.   Crash: as `backup`.
    """
    old, new = _metered(source, runtime), _metered(target, runtime)
    found = _backup_at(old, runtime, source_url)
    if found.state != "finished" and not force:
        raise Invalid(
            f"the backup at {source_url} was not finished",
            hint="run `limpet backup` again to finish it; if the fleet is lost, --force restores what is there",
        )
    record = _fleet_record(old, runtime, source_url)
    record = _restored_record(new, runtime, record, keep_id=keeps_id(found, target_url, asked=keep_id))
    if _is_nearly_done(new, runtime, found.run):
        _set_record(new, runtime, record, None)
        return BackupReport(fleet=record.id or "", epoch=record.epoch or 0)
    known = _lines(old, found, force=force)
    wanted = BackupRecord(purpose="restore", state="running", run="", source=found.run, begun_at=runtime.wall())
    with _alone(new, runtime, wanted, target_url, wait_s) as turn:
        run = _Run(old, new, runtime, turn, tell)
        _set_record(new, runtime, record, RESTORING)
        whole = found.state == "finished"
        stats = (stat for stat in old.list() if kind_of(stat.key) != "own" and (stat.key in known or not whole))
        run.copy_all(stats, "restore", known)
        lost = known.keys() - run.lines.keys()
        run.report.damaged = sorted({*run.report.damaged, *lost})  # including existing objects that cannot be read
        if run.report.damaged and not force:
            raise _damaged(run, old, found, source_url, target_url, len(known))
        run.note_unknown()
        run.report.unknown = sorted(run.unknown - {*found.unknown})
        run.flush()
        run.remove(stat.key for stat in new.list(keys.BACKUPS) if stat.key != keys.BACKUP_LOCK)
        _finish(run, with_data=found.with_data)
        _set_record(new, runtime, record, None)
    return run.reported(record)


def _damaged(
    run: _Run, source: Store, found: BackupRecord, source_url: str, target_url: str, count: int
) -> Corrupt | Conflict:
    """The error of a restore from a backup whose objects are not those of its record."""
    now = _backup_at(source, run.runtime, source_url)
    if now.run != found.run:
        return Conflict(f"a run to {source_url} began meanwhile", hint="let it finish, then restore again")
    damaged = run.report.damaged
    return Corrupt(
        f"damaged or missing in the backup: {len(damaged)} of {count} objects, such as {damaged[0]}; "
        f"the rest is at {target_url}",
        hint="use another backup, or restore without them: --force",
    )


def check_backup(store: Store, runtime: Runtime, *, url: str, tell: Tell = lambda progress: None) -> CheckReport:
    """Read a whole backup, and compare it with its record. What recorded steps have pushed must be there too.

    Raises: Missing if there is none; Unavailable.
    Cost: 1 LIST per 1,000 objects, 1 GET an object and per 2,000 objects.
    """
    store = _metered(store, runtime)
    record = _backup_at(store, runtime, url)
    pushed: dict[str, set[str]] = {}

    def read_digest(stat: Stat) -> str | None:
        """None for an object that is gone since it was listed. One with another size than recorded is not read."""
        size_max = known[stat.key].size
        if stat.size != size_max:
            return OTHER_SIZE
        try:
            data = _patiently(runtime, lambda: store.get(stat.key, size_max=size_max)).data
        except Missing:
            return None
        except Corrupt:  # it has grown since it was listed, or was truncated
            return OTHER_SIZE
        if kind_of(stat.key) == "steps" and (names := names_in_step(stat.key, data).pushed):
            pushed.setdefault(entry_at(stat.key) or "", set()).update(names)
        return digest_of(data)

    known = _lines(store, record, force=True)
    listed = {stat.key: stat for stat in store.list() if kind_of(stat.key) != "own"}
    changed: list[str] = []
    size = 0
    wanted = [listed[Key(key)] for key in known if key in listed]
    for group in batched(wanted, _size, size=GROUP_BYTES, count=GROUP_OBJECTS):
        for stat, digest in zip(group, runtime.fan_out(read_digest, group, at_once=store.at_once), strict=True):
            line = known[stat.key]
            size += stat.size
            if digest is not None and digest != line.sha256:
                changed.append(stat.key)
        tell(BackupProgress("check", len(changed), size, 0))
    missing = [key for key in known if key not in listed]
    if record.state == "finished" and sum(ref.lines for ref in record.lists) != len(known):
        missing.append("some of the lists in backup/")
    strange = [str(key) for key in listed if key not in known] if record.state == "finished" else []
    lost = sorted(_unknown(known, pushed) - {*record.unknown})
    return CheckReport(
        record.state == "finished", len(known), size, missing, sorted(changed), strange, record.left_out, lost
    )


def _unknown(names: Iterable[str], pushed: Mapping[str, Collection[str]]) -> set[str]:
    """The entries that recorded pushes name, and of which none of these objects is left."""
    entries = Entries.among(names)
    return entries.needed(pushed) - entries.waiting - entries.ended


# ---- the two stores ----


def store_to_copy(url: str) -> Store:
    """The store of a fleet or a backup, by URL.   Raises: Unsupported for SQS; as `store_for`."""
    check_has_store(url, "it can be neither copied nor restored")
    return store_for(url, system())


def plain_url(url: str) -> str:
    """The URL in canonical form, without options: backups are recorded under it."""
    return absolute(url).partition("?")[0]


def _metered(store: Store, runtime: Runtime) -> MeteredStore:
    """The store with counted requests; in a directory, table files keep their names on the disk."""
    return MeteredStore(plain_warehouse(store, runtime), runtime=runtime)


def _patiently(runtime: Runtime, call: Callable[[], T]) -> T:
    """`call()` with retries while the store is unavailable. Puts can be repeated: same bytes, same name."""
    for tries in range(1, TRIES_MAX):
        try:
            return call()
        except (Unavailable, OutcomeUnknown):
            runtime.sleep(BACKOFF_S * 2**tries)
    return call()


def _marker(store: Store, runtime: Runtime) -> Cell[BackupRecord]:
    return Cell(store, keys.BACKUP, struct_codec(BackupRecord), runtime)


def _backup_at(store: Store, runtime: Runtime, url: str) -> BackupRecord:
    """The record of a backup.   Raises: Missing if there is none."""
    found = _marker(store, runtime).read()
    if found is None or found.value.purpose != "backup":
        raise Missing(f"there is no backup at {url}", hint="`limpet backup FLEET URL` makes one")
    return found.value


def _fleet_record(store: Store, runtime: Runtime, url: str) -> FleetRecord:
    seen = record_cell(store, runtime).read()
    if seen is None:
        raise Missing(f"there is no fleet at {url}", hint="check the URL")
    record = msgspec.structs.replace(seen.value, features=[f for f in seen.value.features if f != BACKUP])
    check_record(record, where=url)
    return record


def _set_record(store: Store, runtime: Runtime, record: FleetRecord, mark: str | None) -> None:
    """Write `limpet.json` of the target: the source's formats and features, the probe of the target store, and `mark`,
    which keeps workers from opening it."""
    cell = record_cell(store, runtime)
    seen = cell.read()
    probe = seen.value.probe if seen else probe_conditions(store, runtime=runtime)
    features = sorted({*record.features, *([mark] if mark else ())})
    wanted = msgspec.structs.replace(record, features=features, probe=probe)
    if seen is None or seen.value != wanted:
        _patiently(runtime, lambda: cell.write(wanted))


def _restored_record(target: Store, runtime: Runtime, record: FleetRecord, *, keep_id: bool) -> FleetRecord:
    """The record of a fleet that is restored, without its mark. A restore that is resumed goes on with its own."""
    seen = record_cell(target, runtime).read()
    if seen is not None and RESTORING in seen.value.features and seen.value.id and seen.value.epoch:
        return msgspec.structs.replace(record, id=seen.value.id, epoch=seen.value.epoch)
    id_ = (keep_id and record.id) or runtime.new_id()
    return msgspec.structs.replace(record, id=id_, epoch=next_epoch(record.epoch or 0, runtime.wall()))


def _is_nearly_done(store: Store, runtime: Runtime, run: str) -> bool:
    """Whether a restore of that backup was killed just before the last write of `limpet.json`."""
    marker = _marker(store, runtime).read()
    fleet = record_cell(store, runtime).read()
    return (
        marker is not None
        and (marker.value.purpose, marker.value.state, marker.value.source) == ("restore", "finished", run)
        and fleet is not None
        and RESTORING in fleet.value.features
    )


@contextmanager
def _alone(
    target: Store, runtime: Runtime, wanted: BackupRecord, target_url: str, wait_s: float
) -> Iterator[_TargetLease]:
    """Hold the target's lock, and record there that a run begins. The lock is renewed meanwhile.

    Nothing is written to a target that is refused. What the lock's next holder writes is protected from a holder that
    was paused: it asks for the record before each group, and puts are conditional (`_Run.confirm`, `_Run.write`).
    Raises: Invalid for a target in use; Held if another run has not ended after `wait_s`; LeaseLost.
    Cost: 2 GETs + 3 PUTs, 1 PUT more per ttl / 3; 2 LISTs more for a new target.
    Crash: the next run takes over when the lock has expired.
    """
    cell = _marker(target, runtime)

    def seen_target() -> Versioned[BackupRecord] | None:
        seen = cell.read()
        is_empty = seen is not None or all(stat.key == keys.BACKUP_LOCK for stat in islice(target.list(), 2))
        check_target(seen.value if seen else None, wanted, is_empty=is_empty, target_url=target_url)
        return seen

    seen_target()
    lock = Lock(target, keys.BACKUP_LOCK, wanted.purpose, LOCK_TTL_S, runtime, VersionWatch(runtime), look_first=True)
    with ExitStack() as stack:
        try:
            lease = stack.enter_context(lock.hold(wait_s))
        except Held as held:
            held.hint = (
                f"another run writes to {target_url}: let it finish, or wait for it (--wait SECONDS). "
                f"After a run that was killed the next one takes over within {LOCK_TTL_S * 1.5:g} s"
            )
            raise
        seen = seen_target()
        before = seen.value if seen else None
        if before is not None and token_of_run(before.run) >= lease.token:
            raise LeaseLost(TAKEN_OVER, hint=TAKEN_OVER_HINT)
        unknown = before.unknown if before else ()
        record = msgspec.structs.replace(wanted, run=run_name(lease.token, runtime.new_id()), unknown=unknown)
        try:
            begun = cell.swap(seen, record) if seen else cell.create(record)
        except Conflict:
            raise LeaseLost(TAKEN_OVER, hint=TAKEN_OVER_HINT) from None
        yield _TargetLease(lease, cell, begun, before)


def _finish(run: _Run, *, with_data: bool) -> None:
    """Record that the run is finished.   Raises: LeaseLost if another run to the same target has taken over."""
    run.flush()
    lists = () if run.begun.value.purpose == "restore" else tuple(run.lists)
    finished = msgspec.structs.replace(
        run.begun.value,
        state="finished",
        finished_at=run.runtime.wall(),
        objects=len(run.lines),
        bytes=sum(line.size for line in run.lines.values()),
        with_data=with_data,
        left_out=len(run.report.left_out),
        lists=lists,
        sha256=digest_of("".join(ref.sha256 for ref in lists).encode()),
        unknown=tuple(sorted(run.unknown)[:UNKNOWN_MAX]),
    )
    try:
        _patiently(run.runtime, lambda: run.cell.swap(run.begun, finished))
    except Conflict:
        seen = run.cell.read()
        if seen is None or seen.value != finished:  # else an earlier try of ours landed
            raise LeaseLost(TAKEN_OVER, hint=TAKEN_OVER_HINT) from None


def _lines(store: Store, record: BackupRecord | None, *, force: bool) -> dict[str, _Line]:
    """The recorded objects of a run, by key. For an unfinished run those in its lists; later lists win.

    Raises: Corrupt for a list that is missing or changed, unless `force`.
    """
    if record is None:
        return {}
    known: dict[str, _Line] = {}
    if record.state == "finished":
        named = [(keys.backup_list_key(record.run, n), ref.sha256) for n, ref in enumerate(record.lists)]
    else:
        listed = (stat.key for stat in store.list(keys.BACKUPS) if stat.key != keys.BACKUP_LOCK)
        named = [(key, "") for key in sorted(listed, key=lambda key: (token_of_run(key.split("/")[1]), key))]
    for key, digest in named:
        try:
            data = store.get(key, size_max=LIST_BYTES_MAX).data
            if digest and digest_of(data) != digest:
                raise Corrupt(f"{key} was modified: its digest differs")
            for text in data.splitlines():
                line = records.decode(text, _Line, what=key)
                known[line.key] = line
        except (Corrupt, Missing) as error:
            if not force:
                raise Corrupt(str(error), hint="run `limpet backup` again, or restore what is there: --force") from None
    return known


# ---- one run ----


@dataclass(frozen=True, slots=True)
class _TargetLease:
    """The right to write to a target: its lock, its record as this run wrote it, and the record before."""

    lease: Lease
    cell: Cell[BackupRecord]
    begun: Versioned[BackupRecord]
    before: BackupRecord | None


class _Run:
    """Copies objects, and records each. `lines`: the objects of this run in the target."""

    def __init__(
        self, source: MeteredStore, target: MeteredStore, runtime: Runtime, turn: _TargetLease, tell: Tell
    ) -> None:
        self.source = source
        self.target = target
        self.runtime = runtime
        self.cell, self.begun = turn.cell, turn.begun
        self.report = BackupReport()
        self.lines: dict[str, _Line] = {}
        self.lists: list[ListRef] = []
        self.retried: dict[str, None] = {}
        """The retries that copied receipts name, as `queues/QUEUE/ENTRY`."""
        self.durable: set[str] = set()
        """The entries of durable tasks, likewise: their leases say so, or they have steps."""
        self.pushed: dict[str, set[str]] = {}
        """What recorded pushes name, by the entry that has recorded them: those that this run has read."""
        self.unknown: set[str] = set()
        """Entries that recorded pushes name and that the source does not have either."""
        self._unread: dict[str, list[Key]] = {}
        """The steps that were in the target already, by their entry."""
        self._gathering: set[str] = set()
        """The entries with a new gather."""
        self._tell = tell
        self._lease = turn.lease
        self._unlisted: list[_Line] = []
        self._before = _lines(target, turn.before, force=True)
        self.durable.update(_step_owners(self._before))
        self._there = {stat.key: stat for stat in target.list() if kind_of(stat.key) != "own"}

    def confirm(self) -> None:
        """Return if this run may still write to the target: it holds the lock, and none began after it.

        Raises: LeaseLost.   Cost: 1 GET.
        """
        self._lease.check()
        seen = _patiently(self.runtime, self.cell.read)
        if seen is None or seen.value.run != self.begun.value.run:
            raise LeaseLost(TAKEN_OVER, hint=TAKEN_OVER_HINT)

    def write(self, key: Key, data: bytes) -> None:
        """Put an object over the version that this run knows.

        An earlier run's request may land late: this one then replaces what that has put, and a request of this run that
        lands late is refused.   Raises: LeaseLost; the store's errors.
        """

        def put() -> Version:
            there = self._there.get(key)
            when = Match(there.version) if there else Absent()
            try:
                return put_bytes(self.target, self.runtime, key, data, when, deletable=True)
            except OutcomeUnknown:
                self.confirm()
                self._there.pop(key, None)
                with suppress(Missing):
                    self._there[key] = self.target.head(key)
                raise

        version = _patiently(self.runtime, put)
        self._there[key] = Stat(key, len(data), version, self.runtime.wall())

    def copy_below(self, prefix: str, kind: str) -> None:
        """Copy all objects of a kind below a prefix, by one listing; one that is gone since is skipped."""
        self.copy_all((stat for stat in self.source.list(prefix) if kind_of(stat.key) == kind), kind)

    def copy_all(self, stats: Iterable[Stat], kind: str, wanted: Mapping[str, _Line] | None = None) -> None:
        """Copy these objects in groups. `wanted`: their expected digests."""
        source, target = self.source, self.target
        for group in batched(stats, _size, size=GROUP_BYTES, count=GROUP_OBJECTS):
            todo = [stat for stat in group if not self._is_there(stat, (wanted or {}).get(stat.key))]
            if todo:
                self.confirm()
            at_once = max(source.at_once, target.at_once)
            for stat, outcome in zip(todo, self.runtime.fan_out(self._copy, todo, at_once=at_once), strict=True):
                self._note(stat, outcome, (wanted or {}).get(stat.key))
            self._tell(BackupProgress(kind, len(self.lines), self.report.bytes, self.report.copied))

    def put(self, key: str, blob_version: Version, data: bytes) -> None:
        """Write bytes that were read before, and record them."""
        self.confirm()
        self.write(Key(key), data)
        self._record(_Line(key, len(data), blob_version, digest_of(data)), copied=True)

    def read_names(self) -> None:
        """Read what steps name that an earlier run has copied, of the entries with a new gather: it refers to the ends
        of tasks that they have pushed.   Cost: 1 GET each, in the target."""
        unread = [key for entry in self._gathering for key in self._unread.pop(entry, ())]

        def names(key: Key) -> StepNames:
            return names_in_step(key, _patiently(self.runtime, lambda: self.target.get(key)).data)

        for key, step in zip(unread, self.runtime.fan_out(names, unread, at_once=self.target.at_once), strict=True):
            self._note_names(key, step)

    def note_unknown(self) -> None:
        """Note which of the entries that recorded pushes name are not in the source either."""
        entries = Entries.among(self.lines)
        absent = {*self.begun.value.unknown} - entries.waiting - entries.ended
        self.unknown = absent | _unknown(self.lines, self.pushed)
        self.report.unknown = sorted(self.unknown)

    def remove_stale(self) -> None:
        """Delete objects from the target that are not in the source, and entries that a receipt has ended."""
        kept = self.lines.keys() | self.report.left_out.keys()
        stale = [key for key in self._there if key not in kept and kind_of(key) != "own"]
        ended = [Key(key) for key in superseded(self.lines)]
        for key in ended:
            del self.lines[key]
        self.flush()  # then write all lists again, without those objects
        self.lists.clear()
        self._unlisted = [*self.lines.values()]
        self.flush()
        run = self.begun.value.run
        lists = {keys.backup_list_key(run, n) for n in range(len(self.lists))}
        own = [stat.key for stat in self.target.list(keys.backup_lists(run)) if stat.key not in lists]
        old = map(Key, older_lists((stat.key for stat in self.target.list(keys.BACKUPS)), run))
        self.remove([*stale, *ended, *own, *old])

    def remove(self, names: Iterable[Key]) -> None:
        """Delete these objects from the target."""
        waiting = iter(names)
        while some := [*islice(waiting, GROUP_OBJECTS)]:
            self.confirm()
            for key, error in _patiently(self.runtime, partial(self.target.delete_many, some)).items():
                if error is not None:
                    raise error
                self.report.removed += 0 if key.startswith(f"{keys.BACKUPS}/") else 1

    def flush(self) -> None:
        """Write the lists of objects copied since the last list."""
        while self._unlisted:
            self._write_list()

    def reported(self, record: FleetRecord) -> BackupReport:
        """The report, with totals and requests."""
        self.report.fleet, self.report.epoch = record.id or "", record.epoch or 0
        self.report.objects = len(self.lines)
        self.report.bytes = sum(line.size for line in self.lines.values())
        self.report.requests = {
            "source": self.source.snapshot().requests,
            "target": self.target.snapshot().requests,
        }
        return self.report

    def _is_there(self, stat: Stat, wanted: _Line | None) -> bool:
        """Whether the target has this version already, by the record of an earlier run."""
        line = self._before.get(stat.key)
        if stat.key in self.lines and self.lines[stat.key].version == stat.version:
            return True
        if line is None or (line.size, line.version) != (stat.size, stat.version):
            return False
        there = self._there.get(stat.key)
        if there is None or there.size != stat.size or (wanted is not None and wanted.sha256 != line.sha256):
            return False
        self._record(line, copied=False)
        if kind_of(stat.key) == "steps":
            self._unread.setdefault(entry_at(stat.key) or "", []).append(stat.key)
        return True

    def _copy(self, stat: Stat) -> _Line | LimpetError:
        """Copy one object.   Cost: 1 GET + 1 PUT."""
        try:
            blob = _patiently(self.runtime, lambda: self.source.get(stat.key, size_max=OBJECT_BYTES_MAX))
            self.write(stat.key, blob.data)
        except LimpetError as error:
            return error
        if "/failed/" in stat.key and (life := _next_life(stat.key, blob.data)):
            self.retried[life] = None
        if stat.key.endswith("/lease.json") and b'"durable":' in blob.data:
            self.durable.add(stat.key.removesuffix("/lease.json").replace("/pending/", "/", 1))
        if kind_of(stat.key) == "steps":
            self._note_names(stat.key, names_in_step(stat.key, blob.data))
        return _Line(stat.key, len(blob.data), blob.version, digest_of(blob.data))

    def _note_names(self, key: Key, step: StepNames) -> None:
        entry = entry_at(key)
        if entry is not None and step.pushed:
            self.pushed.setdefault(entry, set()).update(step.pushed)
        if entry is not None and step.gathers:
            self._gathering.add(entry)

    def _note(self, stat: Stat, outcome: _Line | LimpetError, wanted: _Line | None) -> None:
        match outcome:
            case _Line():
                self._record(outcome, copied=True)
                if wanted is not None and outcome.sha256 != wanted.sha256:
                    self.report.damaged.append(stat.key)
            case Missing():
                self.report.vanished += 1
            case Invalid() | Corrupt():
                self.report.left_out[stat.key] = str(outcome)
            case error:
                raise error

    def _record(self, line: _Line, *, copied: bool) -> None:
        self.lines[line.key] = line
        self.report.bytes += line.size
        self.report.copied += copied
        self.report.copied_bytes += line.size if copied else 0
        self._unlisted.append(line)
        if len(self._unlisted) >= LIST_LINES:
            self._write_list()

    def _write_list(self) -> None:
        lines, self._unlisted = self._unlisted[:LIST_LINES], self._unlisted[LIST_LINES:]
        data = b"\n".join(map(records.encode, lines))
        key = keys.backup_list_key(self.begun.value.run, len(self.lists))
        self.write(key, data)
        self.lists.append(ListRef(digest_of(data), len(lines)))


# ---- a fleet ----


def _copy_fleet(run: _Run, *, data: bool) -> None:
    """Copy everything, in the order of `ORDER`."""
    source = run.source
    run.copy_below(keys.SYNC, "sync")
    for kind in QUEUE_ORDER:
        for queue in source.list_dirs(keys.QUEUES):
            run.copy_below(f"{keys.QUEUES}/{queue}/{kind}", kind)
    _follow_retries(run)
    _copy_steps(run)
    for index in source.list_dirs(keys.INDEXES):
        _copy_index(run, f"{keys.INDEXES}/{index}")
    _copy_events(run)
    _copy_catalog(run, data=data)
    for prefix in ("cells", "sequence"):
        run.copy_below(prefix, "cell")
    run.copy_all((stat for stat in source.list() if kind_of(stat.key) in REST), "other")
    locks = [
        "locks",
        keys.SYNC,
        *(f"{keys.QUEUES}/{queue}/slots" for queue in source.list_dirs(keys.QUEUES)),
        *(f"{keys.INDEXES}/{index}/shards" for index in source.list_dirs(keys.INDEXES)),
    ]
    for prefix in locks:
        run.copy_below(prefix, "lock")


def _follow_retries(run: _Run) -> None:
    """Copy tasks that were created by a retry while the backup ran: receipts name them.

    A retry creates the new task before it marks the receipt, and pending/ was copied before failed/: a copied receipt
    may name a task that did not exist when pending/ was copied.
    Cost: for each such task 1 LIST and 2 HEADs.
    """
    done: set[str] = set()
    while waiting := [name for name in run.retried if name not in done]:
        for name in waiting:
            done.add(name)
            root, _, entry = name.rpartition("/")
            receipts = [f"{root}/{kind}/{entry}.json" for kind in ("failed", "completed")]
            if any(key in run.lines for key in receipts):
                continue
            run.copy_below(f"{root}/pending/{entry}", "pending")
            for key in receipts:
                with suppress(Missing, Invalid):
                    run.copy_all([_stat(run, key)], kind_of(key))


def _copy_steps(run: _Run) -> None:
    """Copy the recorded steps and signals of durable tasks, and what they refer to.

    A step is recorded after what it has pushed, and what it has pushed may have been made from the values of the steps
    before it. So steps are copied after the queues, and the entries that recorded pushes name are then followed through
    their queues once more, with their own steps, until all were followed.

    Steps are deleted after their task, or after the receipt of a failed one was marked as retried. So where the task or
    the receipt is unchanged after its steps were copied, none is missing. Where it has changed, the receipt is copied
    again, and the retry that it names, with its steps.
    Cost: 1 LIST per 1,000 steps, failed receipts, and entries of queues with durable tasks; 1 HEAD for each task that
    has moved meanwhile, and those lists again. While tasks that steps have pushed have not ended in the copy: 1 LIST
    per 1,000 objects of their queues.
    """
    followed: set[str] = set()
    _follow_retries(run)
    for queue in run.source.list_dirs(keys.QUEUES):
        run.copy_below(f"{keys.QUEUES}/{queue}/steps", "steps")
    for _ in range(SETTLE_ROUNDS):
        run.durable.update(_step_owners(run.lines))
        run.read_names()
        moved = _moved(run) - followed
        pushed = _pushed(run) - followed
        if not moved and not pushed:
            return
        followed |= moved | pushed
        retried = {*run.retried}
        for root in {name.rpartition("/")[0] for name in moved}:
            run.copy_below(f"{root}/failed", "failed")
        for root, _, entry in (name.rpartition("/") for name in moved):
            with suppress(Missing, Invalid):
                run.copy_all([_stat(run, f"{root}/completed/{entry}.json")], "completed")
        _copy_entries(run, pushed, QUEUE_ORDER)
        _follow_retries(run)
        _copy_entries(run, pushed | (run.retried.keys() - retried), ["steps"])
    why = "it was pushed while the backup ran, as others before: pause its queue, or run the backup again"
    run.report.left_out |= dict.fromkeys(_pushed(run) - followed, why)


def _pushed(run: _Run) -> set[str]:
    """The entries that recorded pushes name, and that have not ended in the copy."""
    entries = Entries.among(run.lines)
    return entries.needed(run.pushed) - entries.ended


def _copy_entries(run: _Run, names: Collection[str], kinds: Sequence[str]) -> None:
    """Copy the objects of these entries, by one listing a kind and queue."""
    for root in sorted({name.rpartition("/")[0] for name in names}):
        for kind in kinds:
            listed = run.source.list(f"{root}/{kind}")
            run.copy_all((stat for stat in listed if kind_of(stat.key) == kind and entry_at(stat.key) in names), kind)


def _step_owners(names: Iterable[str]) -> set[str]:
    """The entries whose steps are among `names`, as `queues/QUEUE/ENTRY`."""
    return {entry for key in names if kind_of(key) == "steps" and (entry := entry_at(key)) is not None}


def _moved(run: _Run) -> set[str]:
    """The durable tasks that were copied as waiting, and the tasks that were copied as failed, and are so no longer.

    A receipt does not say whether its task was durable, so all that were retried meanwhile count.
    """
    copied: dict[str, list[tuple[str, str]]] = {}
    for key in run.lines:
        match = re.fullmatch(r"(queues/[^/]+)/(?:pending/([^/]+)/tasks?\.jsonl?|failed/([^/]+?)(?:\.\d+)?\.json)", key)
        if match and (match[3] or f"{match[1]}/{match[2]}" in run.durable):
            copied.setdefault(f"{match[1]}/{'failed' if match[3] else 'pending'}", []).append(
                (key, match[2] or match[3])
            )
    moved: set[str] = set()
    for folder, found in copied.items():
        root, _, kind = folder.rpartition("/")
        now = {stat.key: stat.version for stat in run.source.list(folder)}
        for key, entry in found:
            if Key(key) not in now or (kind == "failed" and now[Key(key)] != run.lines[key].version):
                moved.add(f"{root}/{entry}")
    return moved


def _stat(run: _Run, key: str) -> Stat:
    """The source's entry for an object.   Raises: Missing; Invalid.   Cost: 1 HEAD."""
    return _patiently(run.runtime, lambda: run.source.head(Key(key)))


def _next_life(key: str, data: bytes) -> str | None:
    """The queue and the entry of the retry that a failed receipt names, if it can be read."""
    try:
        name = records.decode(data, _Retried, what=key).retried_as
        return f"{key.split('/failed/')[0]}/{entry_of(name)}" if name else None
    except LimpetError:
        return None


def _copy_index(run: _Run, root: str) -> None:
    """Copy one index: the progress of imports, then records in the direction in which they move, then the manifest.

    An index without a manifest at the start is still being created: its manifest is not copied.
    """
    has_manifest = False
    with suppress(Missing, Corrupt):
        _patiently(run.runtime, lambda: run.source.get(Key(f"{root}/manifest.json")))
        has_manifest = True
    for kind in INDEX_ORDER:
        run.copy_below(f"{root}/{kind}", kind)
    if has_manifest:
        _settle_manifest(run, root)


def _settle_manifest(run: _Run, root: str) -> None:
    """Copy the manifest such that its record of each shard matches the copied shard.

    A shard that was folded after it was copied is copied again, with its waiting records, until the manifest matches.
    A shard that still differs then differs in the source too: it is being folded, or damaged.
    """
    key = Key(f"{root}/manifest.json")
    last: object = None
    for _ in range(SETTLE_ROUNDS):
        try:
            blob = _patiently(run.runtime, lambda: run.source.get(key))
        except (Missing, Corrupt):
            run.copy_below(root, "manifest")
            return
        differ = _outdated(run, root, blob.data)
        state = [(shard, said, run.lines[shard].version) for shard, said in differ]
        if not differ or state == last:
            break
        last = state
        for shard, _ in differ:
            name = shard.rsplit("/", 1)[1].removesuffix(".usv")
            for kind in ("inbox", "packs", "shards", "inbox", "packs"):
                run.copy_below(f"{root}/{kind}" if kind == "shards" else f"{root}/{kind}/{name}", kind)
    run.put(key, blob.version, blob.data)


def _outdated(run: _Run, root: str, manifest: bytes) -> list[tuple[str, object]]:
    """The copied shards that differ from the manifest, with its record; none if it cannot be read."""
    try:
        found = records.decode(manifest, Manifest, what=f"{root}/manifest.json")
    except Corrupt:
        return []
    differ: list[tuple[str, object]] = []
    prefix = f"{root}/shards/"
    for key in [key for key in run.lines if key.startswith(prefix) and key.endswith(".usv")]:
        name = key.removeprefix(prefix).removesuffix(".usv")
        said = found.count(name) if re.fullmatch("[0-9a-f]{1,4}", name) else None
        line = run.lines[key]
        digest = shortened(bytes.fromhex(line.sha256))
        if said is not None and (line.size != said.size or (line.size and said.sum not in ("", digest))):
            differ.append((key, said))
    return differ


def _copy_events(run: _Run) -> None:
    """Copy events, which move from the ledger into the files of a head: first the ledger, then the files."""
    for prefix in ("ledger/executions", "quarantine/executions"):
        run.copy_below(prefix, "events")
    _copy_under_head(run, EXECUTIONS, [("state/executions", "folded")], _has_named_events)


def _has_named_events(run: _Run) -> bool:
    """Whether all files of the copied head of events are in the copy."""
    events = CatalogKeys.of(EXECUTIONS)
    try:
        head = records.decode(run.target.get(events.head).data, EventHead, what=events.head)
    except LimpetError:
        return True
    return all(events.state(file.id) in run.lines for file in head.files)


def _copy_catalog(run: _Run, *, data: bool) -> None:
    """Copy the catalog. The head is read first and written last: in between, all its objects are copied."""
    named = [(f"{name}/{CATALOG}", "history") for name in ("commits", "snapshots", "ledger")]
    named += [(WAREHOUSE, "metadata"), *([(WAREHOUSE, "data")] if data else [])]
    _copy_under_head(run, CATALOG, named, _has_named_tables)
    own = [f"manifests/{domain}.json" for domain in (CATALOG, EXECUTIONS)]
    run.copy_all((stat for stat in run.source.list("manifests") if stat.key not in own), "head")


def _copy_under_head(
    run: _Run, domain: str, named: Sequence[tuple[str, str]], is_whole: Callable[[_Run], bool]
) -> None:
    """Copy the objects of a head, and then this version of the head.

    If some are missing then, they were collected or purged meanwhile, and a newer head does not need them: start again
    with that. If the head is still the same, they are missing in the source.
    """
    key = Key(f"manifests/{domain}.json")
    for _ in range(SETTLE_ROUNDS):
        try:
            blob = _patiently(run.runtime, lambda: run.source.get(key, size_max=HEAD_BYTES_MAX))
        except (Missing, Corrupt):
            blob = None
        gone = run.report.vanished
        for prefix, kind in named:
            run.copy_below(prefix, kind)
        if blob is None:
            run.copy_all((stat for stat in run.source.list("manifests") if stat.key == key), "head")
            return
        run.put(key, blob.version, blob.data)
        if run.report.vanished == gone and is_whole(run):
            return
        with suppress(Missing):
            if _stat(run, key).version == blob.version:
                return


def _has_named_tables(run: _Run) -> bool:
    """Whether all objects of the copied head of the catalog are in the copy; True without the extra `catalog`.

    Cost: 1 GET a commit, in the target.
    """
    try:
        from limpet.app.catalogs import open_catalog, storage_of
        from limpet.catalog.state import Entry
    except ModuleNotFoundError:
        return True
    catalog = open_catalog(storage_of(run.target, run.runtime), "memory://copy")
    try:
        catalog.verify()
        loaded = catalog.view.now()
    except LimpetError:
        return False
    entries = [value for kind in "tv" for _, value in loaded.state.under(f"{kind}/")] if loaded else []
    return all(f"{WAREHOUSE}/{Entry.of(value).path}" in run.lines for value in entries)
