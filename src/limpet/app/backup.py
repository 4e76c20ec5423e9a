"""Copying a fleet to another URL while it runs, and back: `backup`, `restore`, `check_backup`.

A backup has the layout of the fleet, plus `backup.json` and the lists below `backup/`. `backup_order` says in which
order a running fleet is copied, `backup_run` copies the objects and records them, `backup_decide` has the rules.
docs/inside/decisions/0007-backup.md explains each step and the guarantees.

The source is never written to.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from limpet.app.backup_decide import BackupRecord, entry_at, keeps_id, kind_of, names_in_step, next_epoch
from limpet.app.backup_order import copy_fleet
from limpet.app.backup_run import (
    GROUP_BYTES,
    GROUP_OBJECTS,
    BackupProgress,
    BackupReport,
    CopyRun,
    Tell,
    begun_at,
    finish,
    marker_cell,
    patiently,
    recorded_objects,
    size_of,
    unknown_entries,
)
from limpet.app.place import absolute, check_has_store, store_for
from limpet.app.record import BACKUP, RESTORING, FleetRecord, check_record, record_cell
from limpet.kernel import keys, records
from limpet.kernel.errors import Conflict, Corrupt, Invalid, Missing
from limpet.kernel.keys import Key
from limpet.kernel.records import digest_of
from limpet.kernel.runtime import Runtime, system
from limpet.kernel.store.api import Stat, Store, batched
from limpet.kernel.store.directory.plain import plain_warehouse
from limpet.kernel.store.metered import MeteredStore
from limpet.kernel.store.probe import probe_conditions
from limpet.kernel.wording import many

OTHER_SIZE = "another size"
SHOWN_MAX = 100


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
    with begun_at(new, runtime, wanted, target_url, wait_s) as turn:
        run = CopyRun(old, new, runtime, turn, tell)
        _set_record(new, runtime, record, BACKUP)
        copy_fleet(run, data=data)
        run.note_unknown()
        run.remove_stale()
        finish(run, with_data=data)
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
    known = recorded_objects(old, found, force=force)
    wanted = BackupRecord(purpose="restore", state="running", run="", source=found.run, begun_at=runtime.wall())
    with begun_at(new, runtime, wanted, target_url, wait_s) as turn:
        run = CopyRun(old, new, runtime, turn, tell)
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
        finish(run, with_data=found.with_data)
        _set_record(new, runtime, record, None)
    return run.reported(record)


def _damaged(
    run: CopyRun, source: Store, found: BackupRecord, source_url: str, target_url: str, count: int
) -> Corrupt | Conflict:
    if _backup_at(source, run.runtime, source_url).run != found.run:
        return Conflict(f"a run to {source_url} began meanwhile", hint="let it finish, then restore again")
    damaged = run.report.damaged
    return Corrupt(
        f"damaged or missing in the backup: {len(damaged)} of {many(count, 'object')}, such as {damaged[0]}; "
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
            data = patiently(runtime, lambda: store.get(stat.key, size_max=size_max)).data
        except Missing:
            return None
        except Corrupt:  # it has grown since it was listed, or was truncated
            return OTHER_SIZE
        if kind_of(stat.key) == "steps" and (names := names_in_step(stat.key, data).pushed):
            pushed.setdefault(entry_at(stat.key) or "", set()).update(names)
        return digest_of(data)

    known = recorded_objects(store, record, force=True)
    listed = {stat.key: stat for stat in store.list() if kind_of(stat.key) != "own"}
    changed: list[str] = []
    size = 0
    wanted = [listed[Key(key)] for key in known if key in listed]
    for group in batched(wanted, size_of, size=GROUP_BYTES, count=GROUP_OBJECTS):
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
    lost = sorted(unknown_entries(known, pushed) - {*record.unknown})
    return CheckReport(
        record.state == "finished", len(known), size, missing, sorted(changed), strange, record.left_out, lost
    )


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


def _backup_at(store: Store, runtime: Runtime, url: str) -> BackupRecord:
    """The record of a backup.   Raises: Missing if there is none."""
    found = marker_cell(store, runtime).read()
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
        patiently(runtime, lambda: cell.write(wanted))


def _restored_record(target: Store, runtime: Runtime, record: FleetRecord, *, keep_id: bool) -> FleetRecord:
    """The record of a fleet that is restored, without its mark. A restore that is resumed goes on with its own."""
    seen = record_cell(target, runtime).read()
    if seen is not None and RESTORING in seen.value.features and seen.value.id and seen.value.epoch:
        return msgspec.structs.replace(record, id=seen.value.id, epoch=seen.value.epoch)
    id_ = (keep_id and record.id) or runtime.new_id()
    return msgspec.structs.replace(record, id=id_, epoch=next_epoch(record.epoch or 0, runtime.wall()))


def _is_nearly_done(store: Store, runtime: Runtime, run: str) -> bool:
    """Whether a restore of that backup was killed just before the last write of `limpet.json`."""
    marker = marker_cell(store, runtime).read()
    fleet = record_cell(store, runtime).read()
    return (
        marker is not None
        and (marker.value.purpose, marker.value.state, marker.value.source) == ("restore", "finished", run)
        and fleet is not None
        and RESTORING in fleet.value.features
    )
