"""Scan planning: the files that a query of a table must read, as Iceberg's REST protocol wants them.

Nothing is kept between requests. The id of a plan has its request, and the name of each of its tasks has all that is
needed to answer it: the snapshot, the filter, a range of its manifests. So any server answers any of them, and there is
nothing to cancel. A client that makes up an id or a task reads nothing that a plan would not give: the rights are those
of the table.

PyIceberg's planner decides which manifests and files a filter leaves; the manifests are read with the bounds of `avro`.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from hashlib import sha256
from typing import Annotated, Any

import msgspec
from pyiceberg.catalog.rest.scan_planning import PlanTableScanRequest
from pyiceberg.conversions import to_json
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.schema import Schema
from pyiceberg.table import ManifestGroupPlanner
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from limpet.catalog.iceberg.avro import UNREADABLE, AvroBudget, entries_in, field_of, manifests_in, readable
from limpet.catalog.iceberg.deletes import DeleteIndex
from limpet.catalog.iceberg.metadata import Long
from limpet.catalog.iceberg.models import Fetch, FetchedFiles, Input, table_of
from limpet.catalog.iceberg.schemas import converted, kebab_names
from limpet.catalog.warehouse import Json
from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid, Missing, Unsupported

FILTER_BYTES_MAX = 16 << 10
FIELDS_MAX = 1000
TASK_BYTES_MAX = 64 << 10
PLAN_ID_CHARACTERS_MAX = 4096
"""It is part of a path. A plan with a longer request has an id by which it cannot be fetched again."""
TASKS_MAX = 64
FILES_MAX = 2000
"""Data files in one answer; the rest of a task is another one."""
RESIDUALS_BYTES_MAX = 4 << 20
"""Bytes of filters in one answer: each file may repeat the filter."""
REFERENCES_MAX = 200_000
"""Pairs of a data file and a delete file in one answer; more if a single data file has more."""
MANIFESTS_MAX = 100_000
SNAPSHOTS_MAX = 1000
"""Snapshots in an incremental scan."""
PLAN_S = 20.0

_CONTENTS = {
    DataFileContent.DATA: "data",
    DataFileContent.POSITION_DELETES: "position-deletes",
    DataFileContent.EQUALITY_DELETES: "equality-deletes",
}
_Place = Annotated[int, msgspec.Meta(ge=0, le=MANIFESTS_MAX)]
_Skipped = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
_FieldNames = Annotated[list[Annotated[str, msgspec.Meta(max_length=1 << 16)]], msgspec.Meta(max_length=FIELDS_MAX)]


class _AskedFields(msgspec.Struct, rename="kebab", kw_only=True):
    """What a client asks for. `select` and `min_rows_requested` change no answer here."""

    snapshot_id: Long | None = None
    filter: Any = None
    case_sensitive: bool = True
    use_snapshot_schema: bool = False
    stats_fields: _FieldNames | None = None
    start_snapshot_id: Long | None = None
    end_snapshot_id: Long | None = None


class _TaskFields(_AskedFields, kw_only=True):
    """The same with a range of manifests, and the number of files in it that were answered already."""

    first: _Place
    last: _Place
    skip: _Skipped = 0


def plan_scan(metadata: bytes, request: Mapping[str, Any] | str, fetch: Fetch, now: Callable[[], float]) -> Json:
    """The plan of a scan: its files if they fit into one answer, else tasks. `request`: also the id of a plan.

    An incremental scan has the files that appends after `start-snapshot-id` up to `end-snapshot-id` have added.
    Raises: Invalid; Missing without that snapshot, or for an id that is none; Unsupported for what is too large, and
    for a table that PyIceberg cannot read; Corrupt; what `fetch` raises.
    Cost: 1 `fetch` of the manifest list (of each append); if the plan is one task, those of `scan_tasks` too, with the
    list once.
    """
    given = _fields_in(request, "plan") if isinstance(request, str) else request
    asked = converted(given, _AskedFields, "the scan")
    planner = _PlanReader(metadata, asked, fetch, now)
    with readable("the table"):
        ranges = _ranges(planner.wanted())
    fields = {name: value for name, value in given.items() if name in kebab_names(_AskedFields)}
    fields |= {} if planner.is_incremental else {"snapshot-id": planner.snapshot_id}
    id_ = _token(fields)
    id_ = id_ if len(id_) <= PLAN_ID_CHARACTERS_MAX else sha256(id_.encode()).hexdigest()
    plan: Json = {"status": "completed", "plan-id": id_}
    tasks: list[Json] = [{**fields, "first": first, "last": last} for first, last in ranges]
    if len(tasks) == 1:
        with readable("the table"):
            return {**plan, **planner.answer(converted(tasks[0], _TaskFields, "the scan"), tasks[0])}
    return {**plan, "plan-tasks": [_token(task) for task in tasks], "file-scan-tasks": [], "delete-files": []}


def _ranges(wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most `TASKS_MAX` ranges of manifests, each with about as many files as fit into an answer or more."""
    least = max(FILES_MAX, -(-sum(files for _, files in wanted) // TASKS_MAX))
    found: list[tuple[int, int]] = []
    first, sum_ = -1, 0
    for place, files in wanted:
        first, sum_ = (place, files) if first < 0 else (first, sum_ + files)
        if sum_ >= least or place == wanted[-1][0]:
            found.append((first, place + 1))
            first = -1
    return found


def scan_tasks(metadata: bytes, task: str, fetch: Fetch, now: Callable[[], float]) -> Json:
    """The files of a task, and another task for the rest.   Raises: as `plan_scan`.

    Cost: 1 `fetch` of the manifest list, of each manifest of deletes, and of each of the task that the filter leaves.
    """
    fields = _fields_in(task, "plan task")
    asked = converted(fields, _TaskFields, "the scan")
    planner = _PlanReader(metadata, asked, fetch, now)
    with readable("the table"):
        return planner.answer(asked, fields)


def _fields_in(token: str, what: str) -> Json:
    """Raises: Missing for a token that is none."""
    found = None
    if len(token) <= TASK_BYTES_MAX:
        with suppress(ValueError, Invalid):
            found = records.parse_json(urlsafe_b64decode(token.encode("ascii")), what=what)
    if not isinstance(found, dict):
        raise Missing(f"there is no such {what}", hint="plan the scan again")
    return found


def _token(fields: Json) -> str:
    return urlsafe_b64encode(records.encode(fields)).decode()


class _PlanReader:
    """One scan of one snapshot, or of the appends between two."""

    def __init__(self, metadata: bytes, asked: _AskedFields, fetch: Fetch, now: Callable[[], float]) -> None:
        table = table_of(metadata)
        self._fetch, self._now, self._until = fetch, now, now() + PLAN_S
        self._budget = AvroBudget()
        self._evaluators: dict[int, Callable[[ManifestFile], bool]] = {}
        self._appends = _appends(table, asked)
        wanted = asked.snapshot_id if asked.end_snapshot_id is None else asked.end_snapshot_id
        snapshot = table.current_snapshot() if wanted is None else table.snapshot_by_id(wanted)
        if snapshot is None and asked.snapshot_id is not None:
            raise Missing(f"the table has no snapshot {asked.snapshot_id}")
        if asked.use_snapshot_schema and snapshot is not None and table.schema_by_id(snapshot.schema_id or 0):
            table = table.model_copy(update={"current_schema_id": snapshot.schema_id})
        self._table: TableMetadata = table
        self._snapshot = snapshot
        self._filter = asked.filter
        self._prunes = True
        try:
            self._stats = {table.schema().find_field(name, asked.case_sensitive).field_id
                           for name in asked.stats_fields or ()}  # fmt: skip
            try:
                row_filter = _filter_of(asked.filter, table.schema(), asked.case_sensitive)
            except _UnprunableFilter:
                row_filter, self._prunes = AlwaysTrue(), False
            self._planner = ManifestGroupPlanner(table, FetchedFiles(fetch), row_filter, asked.case_sensitive)
            self._is_wanted = self._planner._build_metrics_evaluator()
        except UNREADABLE as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise Invalid(f"the scan is not valid: {reason}") from None

    @property
    def is_incremental(self) -> bool:
        """Whether it reads only what appends have added."""
        return self._appends is not None

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that is read."""
        return self._snapshot.snapshot_id if self._snapshot else None

    def wanted(self) -> list[tuple[int, int]]:
        """The places of manifests that may have data files for the filter, each with its number of files."""
        found: list[tuple[int, int]] = []
        for place, manifest in enumerate(self._manifests):
            self._check_time()
            if self._may_match(manifest):
                counts = manifest.added_files_count, manifest.existing_files_count
                found.append((place, max(1, sum(count or 0 for count in counts))))
        return found

    def _may_match(self, manifest: ManifestFile) -> bool:
        """Whether a manifest is of data files, and may have some for the filter."""
        if manifest.content != ManifestContent.DATA:
            return False
        spec_id = manifest.partition_spec_id
        if spec_id not in self._evaluators:
            self._evaluators[spec_id] = self._planner._build_manifest_evaluator(spec_id)
        return self._evaluators[spec_id](manifest)

    def answer(self, task: _TaskFields, fields: Json) -> Json:
        """The files of a task."""
        manifests = self._manifests
        deletes = self._deletes(manifests)
        tasks: list[Json] = []
        files: dict[str, tuple[int, Json]] = {}
        pairs = 0
        more: list[str] = []
        most = min(FILES_MAX, max(1, RESIDUALS_BYTES_MAX // len(records.encode(self._filter))))
        for nth, entry in enumerate(self._entries(manifests[task.first : task.last])):
            if nth < task.skip:
                continue
            if len(tasks) == most or pairs >= REFERENCES_MAX:
                more = [_token({**fields, "skip": nth})]
                break
            data = entry.data_file
            references = []
            for each in sorted(deletes.of(entry), key=lambda file: str(file.file_path)):
                key = f"{each.file_path} {field_of(each, 'content_offset')}"
                if key not in files:
                    files[key] = len(files), self._file(each)
                references.append(files[key][0])
            pairs += len(references)
            tasks.append(self._task(data, references))
        return {
            "plan-tasks": more,
            "file-scan-tasks": tasks,
            "delete-files": [each for _, each in files.values()] if tasks else [],
        }

    def _task(self, data: DataFile, references: Sequence[int]) -> Json:
        task: Json = {"data-file": self._file(data)}
        if references:
            task["delete-file-references"] = [*references]
        if self._filter is not None:
            residual = self._planner._build_residual_evaluator(data.spec_id)(data).residual_for(data.partition)
            if not (self._prunes and isinstance(residual, AlwaysTrue)):
                task["residual-filter"] = self._filter  # the whole filter is always right
        return task

    @cached_property
    def _manifests(self) -> list[ManifestFile]:
        """The manifests of the snapshot; of an incremental scan those that its appends have written."""
        appends = self._appends
        snapshots = appends.values() if appends is not None else [self._snapshot] if self._snapshot else []
        found: dict[str, ManifestFile] = {}
        for snapshot in snapshots:
            for manifest in manifests_in(Input(snapshot.manifest_list, self._fetch), self._budget, version=3):
                if len(found) == MANIFESTS_MAX:
                    raise Unsupported(f"the table has more than {MANIFESTS_MAX:,} manifests", hint="plan in the client")
                self._check_time()
                is_data = manifest.content == ManifestContent.DATA
                if appends is None or (is_data and manifest.added_snapshot_id in appends):
                    found[manifest.manifest_path] = manifest
        return [*found.values()]

    def _read(self, manifest: ManifestFile) -> Iterator[ManifestEntry]:
        for entry in entries_in(Input(manifest.manifest_path, self._fetch), manifest, self._budget, version=3):
            self._check_time()
            yield entry

    def _check_time(self) -> None:
        """Raises: Unsupported after `PLAN_S`."""
        if self._now() > self._until:
            raise Unsupported(f"the plan takes longer than {PLAN_S:.0f} s", hint="plan the scan in the client")

    def _entries(self, manifests: Sequence[ManifestFile]) -> Iterator[ManifestEntry]:
        for manifest in manifests:
            if not self._may_match(manifest):
                continue
            in_partition = self._planner._build_partition_evaluator(manifest.partition_spec_id)
            for entry in self._read(manifest):
                is_new = entry.status == ManifestEntryStatus.ADDED
                if self._appends is not None and not (is_new and entry.snapshot_id in self._appends):
                    continue
                if in_partition(entry.data_file) and self._is_wanted(entry.data_file):
                    yield entry

    def _deletes(self, manifests: Sequence[ManifestFile]) -> DeleteIndex:
        deletes = DeleteIndex(self._table)
        for manifest in manifests:
            if manifest.content == ManifestContent.DELETES:
                for entry in self._read(manifest):
                    deletes.add(entry)
        return deletes

    def _file(self, file: DataFile) -> Json:
        """A data file or delete file as the protocol writes it. Bounds of columns are left out."""
        is_data = file.content == DataFileContent.DATA
        found: Json = {
            "content": _CONTENTS[file.content],
            "file-path": file.file_path,
            "file-format": str(file.file_format.value).lower(),
            "spec-id": file.spec_id,
            "partition": self._partition(file),
            "file-size-in-bytes": file.file_size_in_bytes,
            "record-count": file.record_count,
        }
        optional: Json = {
            "split-offsets": file.split_offsets,
            "sort-order-id": file.sort_order_id,
            "key-metadata": _hex(file.key_metadata) if file.key_metadata else None,
        }
        if is_data:
            optional["first-row-id"] = field_of(file, "first_row_id")
        elif file.content == DataFileContent.EQUALITY_DELETES:
            optional["equality-ids"] = file.equality_ids
        else:
            names = ("referenced-data-file", "content-offset", "content-size-in-bytes")
            optional |= {name: field_of(file, name.replace("-", "_")) for name in names}
        if is_data and self._stats:
            for name in ("column-sizes", "value-counts", "null-value-counts", "nan-value-counts"):
                counts = {
                    id_: n for id_, n in (getattr(file, name.replace("-", "_")) or {}).items() if id_ in self._stats
                }
                optional[name] = {"keys": [*counts], "values": [*counts.values()]}
        return found | {name: value for name, value in optional.items() if value is not None}

    def _partition(self, file: DataFile) -> list[Any]:
        spec = self._table.specs().get(file.spec_id)
        if spec is None:
            raise Corrupt(f"the table has no partition spec {file.spec_id}")
        kind: StructType = spec.partition_type(self._table.schema())
        values: list[Any] = []
        for nth, field in enumerate(kind.fields):
            inner: Any = field.field_type
            value = file.partition[nth]
            if value is None or isinstance(inner, UnknownType):  # unknown: its column was dropped
                values.append(None)
            elif isinstance(value, bytes):
                values.append(_hex(value))
            else:
                values.append(to_json(inner, value))
        return values


def _appends(table: TableMetadata, asked: _AskedFields) -> dict[int, Snapshot] | None:
    """The appends of an incremental scan, the oldest first; None for a scan of one snapshot.

    Every snapshot between must be there, so that all tasks of a plan see the same appends.
    """
    start, end = asked.start_snapshot_id, asked.end_snapshot_id
    if start is None and end is None:
        return None
    if start is None or end is None or asked.snapshot_id is not None:
        raise Invalid("an incremental scan has a start-snapshot-id and an end-snapshot-id, and no snapshot-id")
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots}
    if end not in snapshots:
        raise Missing(f"the table has no snapshot {end}")
    found: list[Snapshot] = []
    at: int | None = end
    while at != start:
        if at is None or at not in snapshots:
            raise Invalid(f"the snapshot {start} is not an ancestor of {end}, or one between them has expired")
        if len(found) == SNAPSHOTS_MAX:
            raise Unsupported(f"more than {SNAPSHOTS_MAX} snapshots are between", hint="plan in the client")
        found.append(snapshots[at])
        at = snapshots[at].parent_snapshot_id
    kept = (each for each in reversed(found) if each.summary and each.summary.operation == Operation.APPEND)
    return {each.snapshot_id: each for each in kept}


class _UnprunableFilter(Exception):
    """A filter that PyIceberg cannot evaluate: no file is left out, and the client filters."""


def _filter_of(filter_: Any, schema: Schema, case_sensitive: bool) -> Any:
    """Raises: Invalid; _UnprunableFilter; what PyIceberg raises."""
    if filter_ is None:
        return AlwaysTrue()
    if len(records.encode(filter_)) > FILTER_BYTES_MAX:
        raise Invalid(
            f"the filter has more than {FILTER_BYTES_MAX} bytes", hint="filter less, and the rest in the client"
        )
    readable_ = _for_pyiceberg(filter_, schema, case_sensitive)
    return PlanTableScanRequest.model_validate({"filter": readable_}).filter


_COMPARED = (
    *(BooleanType, IntegerType, LongType, FloatType, DoubleType, DecimalType, DateType, TimeType),
    *(TimestampType, TimestamptzType, StringType, UUIDType),
)
"""Types whose literals PyIceberg reads as the specification writes them."""


def _for_pyiceberg(node: Any, schema: Schema, case_sensitive: bool) -> Any:
    """A filter in the forms that PyIceberg 0.12 reads, of those in the specification.   Raises: as `_filter_of`."""
    again = partial(_for_pyiceberg, schema=schema, case_sensitive=case_sensitive)
    match node:
        case {"type": "true" | "false" as name}:
            return name == "true"
        case {"type": "and" | "or", "left": left, "right": right}:
            return {**node, "left": again(left), "right": again(right)}
        case {"type": "not", "child": child}:
            return {**node, "child": again(child)}
        case {"term": {"type": "reference", "term": str(name)}}:
            return again({**node, "term": name})
        case {"term": {"type": "transform", "term": str(name)}}:
            schema.find_field(name, case_sensitive)
            raise _UnprunableFilter
        case {"term": str(name), "value": _} | {"term": str(name), "values": _}:
            if not isinstance(schema.find_field(name, case_sensitive).field_type, _COMPARED):
                raise _UnprunableFilter
    return node


def _hex(value: bytes) -> str:
    return value.hex().upper()
