"""One run of a backup or a restore: the right to write to the target, the objects that it copies, and its record.

`begun_at` holds the target's lock; `CopyRun` copies objects in groups and records each, in lists that the next run
reads; `finish` closes the record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TypeVar

import msgspec

from limpet.app.backup_decide import (
    UNKNOWN_MAX,
    BackupRecord,
    Entries,
    ListRef,
    check_target,
    entry_at,
    kind_of,
    names_in_step,
    older_lists,
    run_name,
    superseded,
    token_of_run,
)
from limpet.app.record import FleetRecord
from limpet.kernel import keys, records
from limpet.kernel.cell import Cell, Versioned, struct_codec
from limpet.kernel.errors import (
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
from limpet.kernel.keys import Key, entry_of
from limpet.kernel.lease import Lease, Lock, VersionWatch
from limpet.kernel.records import Count, Digest, Name, digest_of
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Absent, Match, Stat, Store, Version, batched
from limpet.kernel.store.metered import MeteredStore
from limpet.kernel.store.outcome import put_bytes
from limpet.kernel.waiting import attempts

T = TypeVar("T")
size_of = attrgetter("size")
OBJECT_BYTES_MAX = 1 << 30
"""An object is read whole before it is written; a larger one is skipped and reported."""
GROUP_BYTES = 64 << 20
GROUP_OBJECTS = 256
LIST_LINES = 2000
LIST_BYTES_MAX = 8 << 20
LOCK_TTL_S = 60.0
"""Longer than a request that was given up can still take to land."""
TAKEN_OVER = "another run to the same target has taken over: this one was paused for too long"
TAKEN_OVER_HINT = "let it finish; if you need this one too, run it again then"


class CopiedBlob(msgspec.Struct, frozen=True, array_like=True):
    """One copied object: its key, its size, its version in the source, the digest of its bytes."""

    key: Name
    size: Count
    version: Name
    sha256: Digest


class _Retried(msgspec.Struct, frozen=True):
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


def unknown_entries(names: Iterable[str], pushed: Mapping[str, Collection[str]]) -> set[str]:
    """The entries that recorded pushes name, and of which none of these objects is left."""
    entries = Entries.among(names)
    return entries.needed(pushed) - entries.waiting - entries.ended


def patiently(runtime: Runtime, call: Callable[[], T]) -> T:
    """`call()` with retries for half a minute while the store is unavailable. Puts can be repeated: same bytes."""
    for _ in attempts(runtime, longest_s=16.0):
        with suppress(Unavailable, OutcomeUnknown):
            return call()
    return call()


def marker_cell(store: Store, runtime: Runtime) -> Cell[BackupRecord]:
    """The cell `backup.json`, which says which run has written a target."""
    return Cell(store, keys.BACKUP, struct_codec(BackupRecord), runtime)


@contextmanager
def begun_at(
    target: Store, runtime: Runtime, wanted: BackupRecord, target_url: str, wait_s: float
) -> Iterator[TargetLease]:
    """Hold the target's lock, and record there that a run begins. The lock is renewed meanwhile.

    Nothing is written to a target that is refused. What the lock's next holder writes is protected from a holder that
    was paused: it asks for the record before each group, and puts are conditional (`confirm`, `write`).
    Raises: Invalid for a target in use; Held if another run has not ended after `wait_s`; LeaseLost.
    Cost: 2 GETs + 3 PUTs, 1 PUT more per ttl / 3; 2 LISTs more for a new target.
    Crash: the next run takes over when the lock has expired.
    """
    cell = marker_cell(target, runtime)

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
        yield TargetLease(lease, cell, begun, before)


def finish(run: CopyRun, *, with_data: bool) -> None:
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
        patiently(run.runtime, lambda: run.cell.swap(run.begun, finished))
    except Conflict:
        seen = run.cell.read()
        if seen is None or seen.value != finished:  # else an earlier try of ours landed
            raise LeaseLost(TAKEN_OVER, hint=TAKEN_OVER_HINT) from None


def recorded_objects(store: Store, record: BackupRecord | None, *, force: bool) -> dict[str, CopiedBlob]:
    """The recorded objects of a run, by key. For an unfinished run those in its lists; later lists win.

    Raises: Corrupt for a list that is missing or changed, unless `force`.
    """
    if record is None:
        return {}
    known: dict[str, CopiedBlob] = {}
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
                line = records.decode(text, CopiedBlob, what=key)
                known[line.key] = line
        except (Corrupt, Missing) as error:
            if not force:
                raise Corrupt(str(error), hint="run `limpet backup` again, or restore what is there: --force") from None
    return known


@dataclass(frozen=True, slots=True)
class TargetLease:
    """The right to write to a target: its lock, its record as this run wrote it, and the record before."""

    lease: Lease
    cell: Cell[BackupRecord]
    begun: Versioned[BackupRecord]
    before: BackupRecord | None


class CopyRun:
    """Copies objects, and records each. `lines`: the objects of this run in the target."""

    def __init__(
        self, source: MeteredStore, target: MeteredStore, runtime: Runtime, turn: TargetLease, tell: Tell
    ) -> None:
        self.source = source
        self.target = target
        self.runtime = runtime
        self.cell, self.begun = turn.cell, turn.begun
        self.report = BackupReport()
        self.lines: dict[str, CopiedBlob] = {}
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
        self._unlisted: list[CopiedBlob] = []
        self._before = recorded_objects(target, turn.before, force=True)
        self.durable.update(step_owners(self._before))
        self._there = {stat.key: stat for stat in target.list() if kind_of(stat.key) != "own"}

    def confirm(self) -> None:
        """Return if this run may still write to the target: it holds the lock, and none began after it.

        Raises: LeaseLost.   Cost: 1 GET.
        """
        self._lease.check()
        seen = patiently(self.runtime, self.cell.read)
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

        version = patiently(self.runtime, put)
        self._there[key] = Stat(key, len(data), version, self.runtime.wall())

    def copy_below(self, prefix: str, kind: str) -> None:
        """Copy all objects of a kind below a prefix, by one listing; one that is gone since is skipped."""
        self.copy_all((stat for stat in self.source.list(prefix) if kind_of(stat.key) == kind), kind)

    def copy_all(self, stats: Iterable[Stat], kind: str, wanted: Mapping[str, CopiedBlob] | None = None) -> None:
        """Copy these objects in groups. `wanted`: their expected digests."""
        wanted, at_once = wanted or {}, max(self.source.at_once, self.target.at_once)
        for group in batched(stats, size_of, size=GROUP_BYTES, count=GROUP_OBJECTS):
            todo = [stat for stat in group if not self._is_there(stat, wanted.get(stat.key))]
            if todo:
                self.confirm()
            for stat, outcome in zip(todo, self.runtime.fan_out(self._copy, todo, at_once=at_once), strict=True):
                self._note(stat, outcome, wanted.get(stat.key))
            self._tell(BackupProgress(kind, len(self.lines), self.report.bytes, self.report.copied))

    def put(self, key: str, blob_version: Version, data: bytes) -> None:
        """Write bytes that were read before, and record them."""
        self.confirm()
        self.write(Key(key), data)
        self._record(CopiedBlob(key, len(data), blob_version, digest_of(data)), copied=True)

    def read_names(self) -> None:
        """Read what steps name that an earlier run has copied, of the entries with a new gather: it refers to the ends
        of tasks that they have pushed.   Cost: 1 GET each, in the target."""
        unread = [key for entry in self._gathering for key in self._unread.pop(entry, ())]

        def note(key: Key) -> None:
            self._note_names(key, patiently(self.runtime, lambda: self.target.get(key)).data)

        self.runtime.fan_out(note, unread, at_once=self.target.at_once)

    def note_unknown(self) -> None:
        """Note which of the entries that recorded pushes name are not in the source either."""
        entries = Entries.among(self.lines)
        absent = {*self.begun.value.unknown} - entries.waiting - entries.ended
        self.unknown = absent | unknown_entries(self.lines, self.pushed)
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
            for key, error in patiently(self.runtime, partial(self.target.delete_many, some)).items():
                if error is not None:
                    raise error
                self.report.removed += 0 if key.startswith(f"{keys.BACKUPS}/") else 1

    def flush(self, count: int = 1) -> None:
        """Write the lists of objects copied since the last list, while there are so many."""
        while len(self._unlisted) >= count:
            lines, self._unlisted = self._unlisted[:LIST_LINES], self._unlisted[LIST_LINES:]
            data = b"\n".join(map(records.encode, lines))
            self.write(keys.backup_list_key(self.begun.value.run, len(self.lists)), data)
            self.lists.append(ListRef(digest_of(data), len(lines)))

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

    def _is_there(self, stat: Stat, wanted: CopiedBlob | None) -> bool:
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

    def _copy(self, stat: Stat) -> CopiedBlob | LimpetError:
        """Copy one object.   Cost: 1 GET + 1 PUT."""
        try:
            blob = patiently(self.runtime, lambda: self.source.get(stat.key, size_max=OBJECT_BYTES_MAX))
            self.write(stat.key, blob.data)
        except LimpetError as error:
            return error
        if "/failed/" in stat.key:
            with suppress(LimpetError):  # a receipt that cannot be read names no retry
                if name := records.decode(blob.data, _Retried, what=stat.key).retried_as:
                    self.retried[f"{stat.key.split('/failed/')[0]}/{entry_of(name)}"] = None
        if stat.key.endswith("/lease.json") and b'"durable":' in blob.data:
            self.durable.add(stat.key.removesuffix("/lease.json").replace("/pending/", "/", 1))
        if kind_of(stat.key) == "steps":
            self._note_names(stat.key, blob.data)
        return CopiedBlob(stat.key, len(blob.data), blob.version, digest_of(blob.data))

    def _note_names(self, key: Key, data: bytes) -> None:
        step, entry = names_in_step(key, data), entry_at(key)
        if entry is not None and step.pushed:
            self.pushed.setdefault(entry, set()).update(step.pushed)
        if entry is not None and step.gathers:
            self._gathering.add(entry)

    def _note(self, stat: Stat, outcome: CopiedBlob | LimpetError, wanted: CopiedBlob | None) -> None:
        match outcome:
            case CopiedBlob():
                self._record(outcome, copied=True)
                if wanted is not None and outcome.sha256 != wanted.sha256:
                    self.report.damaged.append(stat.key)
            case Missing():
                self.report.vanished += 1
            case Invalid() | Corrupt():
                self.report.left_out[stat.key] = str(outcome)
            case error:
                raise error

    def _record(self, line: CopiedBlob, *, copied: bool) -> None:
        self.lines[line.key] = line
        self.report.bytes += line.size
        self.report.copied += copied
        self.report.copied_bytes += line.size if copied else 0
        self._unlisted.append(line)
        self.flush(LIST_LINES)


def step_owners(names: Iterable[str]) -> set[str]:
    """The entries whose steps are among `names`, as `queues/QUEUE/ENTRY`."""
    return {entry for key in names if kind_of(key) == "steps" and (entry := entry_at(key)) is not None}
