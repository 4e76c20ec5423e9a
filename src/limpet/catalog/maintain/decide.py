"""What maintenance does to a table: which snapshots expire, which files are rewritten, which may be deleted. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec

from limpet.catalog.iceberg.metadata import MAIN, MANY, Long, MetadataLogJson, Short
from limpet.catalog.iceberg.updates import RemoveRef, RemoveSnapshots
from limpet.kernel import records
from limpet.kernel.errors import Corrupt
from limpet.kernel.records import Count, Positive

DAY_MS = 24 * 3600 * 1000
MAX_AGE_MS = 5 * DAY_MS
MIN_SNAPSHOTS = 1
SMALL = 0.75
"""A file below this share of the target size is small."""
MAX_AGE_PROPERTY = "history.expire.max-snapshot-age-ms"
MIN_SNAPSHOTS_PROPERTY = "history.expire.min-snapshots-to-keep"
MAX_REF_AGE_PROPERTY = "history.expire.max-ref-age-ms"
GC_PROPERTY = "gc.enabled"

# ---- the metadata of a table, as far as maintenance reads it ----


class TableSnapshot(msgspec.Struct, rename="kebab", frozen=True):
    """A snapshot of a table: its time, its parent, and the list of its manifests."""

    snapshot_id: Long
    timestamp_ms: Long
    sequence_number: Long | None = None
    parent_snapshot_id: Long | None = None
    manifest_list: Short | None = None


class TableRef(msgspec.Struct, rename="kebab", frozen=True):
    """A branch or tag, with its own retention rules."""

    snapshot_id: Long
    type: Short = "branch"
    min_snapshots_to_keep: Positive | None = None
    max_snapshot_age_ms: Count | None = None
    max_ref_age_ms: Count | None = None


class StatisticsFile(msgspec.Struct, rename="kebab", frozen=True):
    """A statistics file: Puffin, or the partition statistics."""

    statistics_path: Short


class TableHistory(msgspec.Struct, rename="kebab", frozen=True):
    """The metadata of a table, of any format version, without schemas and partition specs."""

    format_version: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    table_uuid: Short
    location: Short
    last_updated_ms: Long
    last_sequence_number: Long = 0
    properties: Annotated[dict[Short, Short], msgspec.Meta(max_length=MANY)] = {}
    snapshots: Annotated[tuple[TableSnapshot, ...], msgspec.Meta(max_length=MANY)] | None = None
    refs: Annotated[dict[Short, TableRef], msgspec.Meta(max_length=MANY)] | None = None
    current_snapshot_id: Long | None = None
    metadata_log: Annotated[tuple[MetadataLogJson, ...], msgspec.Meta(max_length=MANY)] | None = None
    statistics: Annotated[tuple[StatisticsFile, ...], msgspec.Meta(max_length=MANY)] | None = None
    partition_statistics: Annotated[tuple[StatisticsFile, ...], msgspec.Meta(max_length=MANY)] | None = None

    def by_id(self) -> dict[int, TableSnapshot]:
        """The snapshots by their ids."""
        return {snapshot.snapshot_id: snapshot for snapshot in self.snapshots or ()}

    def all_refs(self) -> dict[str, TableRef]:
        """The branches and tags. Metadata of format version 1 may have a current snapshot and no branch for it."""
        refs = dict(self.refs or {})
        if MAIN not in refs and self.current_snapshot_id in self.by_id():
            refs[MAIN] = TableRef(snapshot_id=self.current_snapshot_id or 0)
        return refs

    def owns_files(self) -> bool:
        """See the function."""
        return owns_files(self.properties)


def owns_files(properties: Mapping[str, str]) -> bool:
    """Whether snapshots of a table may be removed, and their files deleted.

    `gc.enabled=false`: other tables or catalogs need them.
    """
    return properties.get(GC_PROPERTY, "true").lower() == "true"


def history_of(metadata: bytes, what: str) -> TableHistory:
    """The metadata of the table `what`.   Raises: Corrupt."""
    try:
        return records.decoder(TableHistory).decode(metadata)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Corrupt(f"the metadata of {what} cannot be read: {str(error)[:160]}") from None


# ---- expiry ----


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What is kept of a branch without its own rule: snapshots that are younger than `max_age_ms`, and the newest
    `min_snapshots`. A branch or tag whose snapshot is older than `max_ref_age_ms` goes itself; None: it stays."""

    max_age_ms: int = MAX_AGE_MS
    min_snapshots: int = MIN_SNAPSHOTS
    max_ref_age_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """The snapshots, branches and tags that a table no longer needs."""

    snapshots: tuple[int, ...]
    refs: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.snapshots or self.refs)


def policy_of(
    properties: Mapping[str, str], *, max_age_ms: int | None = None, min_snapshots: int | None = None
) -> RetentionPolicy:
    """The policy that a caller names; the rest as the properties of the table say, by Iceberg's names and defaults."""
    age = max_age_ms if max_age_ms is not None else _number(properties, MAX_AGE_PROPERTY)
    count = min_snapshots if min_snapshots is not None else _number(properties, MIN_SNAPSHOTS_PROPERTY)
    return RetentionPolicy(
        MAX_AGE_MS if age is None else age, count or MIN_SNAPSHOTS, _number(properties, MAX_REF_AGE_PROPERTY)
    )


def _number(properties: Mapping[str, str], name: str) -> int | None:
    """A property as a number; None if it is not set, or is none: then nothing expires earlier than by default."""
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def expired(table: TableHistory, policy: RetentionPolicy, now_ms: int) -> ExpiryPlan:
    """What expires, by the rules of Iceberg's specification.

    Kept are: the snapshot of each branch and tag that stays; of each branch the newest `min_snapshots` and all that are
    not older than the maximal age; and snapshots in no branch (staged ones) that are not older than that.
    """
    snapshots, refs = table.by_id(), table.all_refs()
    kept_refs = {
        name: ref for name, ref in refs.items() if name == MAIN or not _is_old_ref(ref, snapshots, policy, now_ms)
    }
    kept: set[int] = set()
    in_branches: set[int] = set()
    for ref in kept_refs.values():
        kept.add(ref.snapshot_id)
        if ref.type == "tag":
            continue
        lineage = [*_lineage(ref.snapshot_id, snapshots)]
        in_branches.update(snapshot.snapshot_id for snapshot in lineage)
        age_ms = policy.max_age_ms if ref.max_snapshot_age_ms is None else ref.max_snapshot_age_ms
        count = policy.min_snapshots if ref.min_snapshots_to_keep is None else ref.min_snapshots_to_keep
        for nth, snapshot in enumerate(lineage):
            if nth < count or snapshot.timestamp_ms >= now_ms - age_ms:
                kept.add(snapshot.snapshot_id)
    for id_, snapshot in snapshots.items():
        if id_ not in in_branches and snapshot.timestamp_ms >= now_ms - policy.max_age_ms:
            kept.add(id_)
    return ExpiryPlan(
        tuple(id_ for id_ in snapshots if id_ not in kept), tuple(name for name in refs if name not in kept_refs)
    )


def _is_old_ref(ref: TableRef, snapshots: Mapping[int, TableSnapshot], policy: RetentionPolicy, now_ms: int) -> bool:
    snapshot = snapshots.get(ref.snapshot_id)
    most_ms = policy.max_ref_age_ms if ref.max_ref_age_ms is None else ref.max_ref_age_ms
    return snapshot is None or (most_ms is not None and now_ms - snapshot.timestamp_ms > most_ms)


def _lineage(id_: int | None, snapshots: Mapping[int, TableSnapshot]) -> Iterator[TableSnapshot]:
    """A snapshot and its ancestors, as far as they are there. A cycle, which only damage can make, ends it."""
    met: set[int] = set()
    while id_ is not None and id_ in snapshots and id_ not in met:
        met.add(id_)
        yield snapshots[id_]
        id_ = snapshots[id_].parent_snapshot_id


def expiry_request(table: TableHistory, plan: ExpiryPlan) -> dict[str, Any]:
    """The commit that carries out a plan, if every branch and tag that was read is unchanged.

    A branch or tag that was created since is not named here: the catalog refuses to remove its snapshot.
    """
    requirements: list[dict[str, Any]] = [{"type": "assert-table-uuid", "uuid": table.table_uuid}]
    requirements += [
        {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": ref.snapshot_id}
        for name, ref in (table.refs or {}).items()
    ]
    updates = [RemoveRef.of(ref_name=name) for name in plan.refs]
    if plan.snapshots:
        updates.append(RemoveSnapshots.of(snapshot_ids=[*plan.snapshots]))
    return {"requirements": requirements, "updates": updates}


def was_added(table: TableHistory, snapshot: Mapping[str, Any]) -> bool | None:
    """Whether a table got this snapshot, although its commit was refused (F1); None: that is not known.

    It may have expired since. Then no other snapshot has its sequence number. In format version 1 all are 0.
    """
    number: int = snapshot["sequence-number"]
    if snapshot["snapshot-id"] in table.by_id():
        return True
    is_of_other = any(each.sequence_number == number > 0 for each in table.snapshots or ())
    return False if is_of_other or table.last_sequence_number < number else None


# ---- compaction ----


@dataclass(frozen=True, slots=True)
class RewriteCandidate:
    """A data file that may be rewritten: files of equal `partition` may become one. `nth`: its place in a list."""

    nth: int
    partition: Hashable
    size: int
    has_deletes: bool


def rewrite_groups(
    files: Iterable[RewriteCandidate], *, target_bytes: int, min_files: int
) -> list[list[RewriteCandidate]]:
    """The files that become one file each: small ones of one partition, and all that have deletes.

    A group has `min_files` files at least, so that a large file is not rewritten for a few records more; or two that
    make a file that is not small; or a file with deletes. It has at most `target_bytes`, or one file.
    """
    small = SMALL * target_bytes
    partitions: dict[Hashable, list[RewriteCandidate]] = {}
    for file in files:
        if file.has_deletes or file.size < small:
            partitions.setdefault(file.partition, []).append(file)
    found: list[list[RewriteCandidate]] = []
    for some in partitions.values():
        group: list[RewriteCandidate] = []
        size = 0
        for file in some:
            if group and size + file.size > target_bytes:
                found.append(group)
                group, size = [], 0
            group.append(file)
            size += file.size
        found.append(group)
    return [
        group
        for group in found
        if len(group) >= min_files
        or sum(file.size for file in group) >= small
        or any(file.has_deletes for file in group)
    ]


# ---- row ids: format version 3 ----


def inherited_row_id(own: int | None, rows: int, next_id: int | None) -> tuple[int | None, int | None]:
    """The first row id of a data file, and the id for the next file of its manifest that has none.

    `next_id` begins as the manifest's first row id. Without one, rows have no ids: no snapshot of version 3 lists it.
    """
    if next_id is None:
        return None, None
    return (next_id, next_id + rows) if own is None else (own, next_id)


def assigned_row_id(own: int | None, is_data: bool, rows: int, next_id: int) -> tuple[int | None, int]:
    """The first row id of a manifest in a new manifest list, and the next unused id. Ids once assigned stay."""
    if not is_data or own is not None:
        return own, next_id
    return next_id, next_id + rows


# ---- orphans ----


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file in a folder of a table. `path`: below the store's root."""

    path: str
    size: int
    modified: datetime


def names_of(url: str) -> tuple[str, str]:
    """The name of a file by its URL, as written and decoded: programs write the same URL in different ways."""
    name = url.rstrip("/").rpartition("/")[2]
    return name, unquote(name)


def orphans(listed: Iterable[ListedFile], needed: Collection[str], before: datetime) -> list[ListedFile]:
    """The files that nothing needs: last changed before `before`, and no needed file has their name, in any folder.

    So a file is kept in doubt, for instance if metadata has its URL in another form (`s3a:`). Hidden files (`.` or `_`
    first) and `version-hint.text`, which some programs look for, stay.
    """
    return [file for file in listed if file.modified < before and _may_go(names_of(file.path), needed)]


def _may_go(names: tuple[str, str], needed: Collection[str]) -> bool:
    if names[0].startswith((".", "_")) or names[0] == "version-hint.text":
        return False
    return all(name not in needed for name in names)


def recent_metadata(
    table: TableHistory, location: str, written: Mapping[str, datetime], since: datetime
) -> Sequence[str]:
    """The older metadata files that were current at `since` or later, as far as the log goes back; newest first.

    Queries and commits that began with one of them may still use its files. `location`: the current metadata file;
    `written`: by name, when each file was written by the store's clock. Times in the metadata are those of its writers,
    whose clocks may be wrong (F13). A file was current until the next one was written; if that is not known, it counts.
    """
    found: list[str] = []
    following = location
    for entry in reversed(table.metadata_log or ()):
        known = [written[name] for name in names_of(following) if name in written]
        if known and max(known) < since:
            break
        following = entry.metadata_file
        found.append(following)
    return found
