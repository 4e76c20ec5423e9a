"""Tables that Limpet itself writes: Parquet files with statistics, the manifest, and the commit that adds them.

A snapshot of ours has one manifest, which lists all files of the table. Its summary has the source, and the ids of the
columns in its files, so that a later writer can decide whether the files may stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import msgspec
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from limpet.catalog.iceberg.avro import (
    AvroBudget,
    entries_in,
    manifest_writer,
    manifests_in,
    readable,
    write_manifest_list,
)
from limpet.catalog.iceberg.models import Fetch, Input, Output, table_of
from limpet.catalog.iceberg.updates import (
    AddOrder,
    AddSchema,
    AddSnapshot,
    AddSpec,
    AssignUuid,
    SetLocation,
    SetOrder,
    SetProperties,
    SetRef,
    SetSchema,
    SetSpec,
    UpgradeVersion,
)
from limpet.catalog.warehouse import Document
from limpet.events.parquet import write_table
from limpet.kernel import records
from limpet.kernel.errors import Unsupported

FORMAT_VERSION: Final = 2
"""The version of a table that is created here. One that was upgraded to version 3 stays so."""
SOURCE, COLUMNS = "limpet.source", "limpet.columns"


@dataclass(frozen=True, slots=True)
class Column:
    """A wanted column. `type`: a primitive type of Iceberg; `is_key`: it identifies a row."""

    name: str
    type: str
    is_key: bool = False
    doc: str | None = None


@dataclass(frozen=True, slots=True)
class File:
    """A data file, and its entry in a manifest."""

    url: str
    records: int
    size: int
    entry: Any


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a table to keep, to add and to drop."""

    keep: Sequence[File]
    add: Sequence[File]
    drop: Sequence[File]


@dataclass(frozen=True, slots=True)
class Contents:
    """The current table, compared with the wanted columns of `source`.

    `schema`: the wanted one, in which existing columns keep their ids. `files`: those of the current snapshot.
    `may_stay`: we wrote that snapshot, from the same source, and its columns have the same ids. `is_staged`: the table
    is not in the catalog yet.
    """

    table: TableMetadata
    source: str
    schema: Schema
    files: Sequence[File]
    may_stay: bool
    is_staged: bool

    @property
    def location(self) -> str:
        """The folder of the table."""
        return self.table.location

    @property
    def version(self) -> Literal[2, 3]:
        """The format version in which its manifests are written."""
        return 3 if self.table.format_version == 3 else 2

    @property
    def is_of_source(self) -> bool:
        """Whether the table was created from this source."""
        return self.table.properties.get(SOURCE) == self.source

    @property
    def fits(self) -> bool:
        """Whether the table has exactly these columns."""
        return _shape(self.table.schema()) == _shape(self.schema)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The identity of a new snapshot: its id, its time, and a unique part for the names of its files."""

    snapshot_id: int
    at_ms: int
    unique: str


def stage_request(name: str, source: str, columns: Sequence[Column]) -> dict[str, Any]:
    """The request to stage a table for a source."""
    ids = {column.name: id_ for id_, column in enumerate(columns, 1)}
    schema = _schema(columns, ids).model_dump(mode="json")
    return {"name": name, "schema": schema, "stage-create": True, "properties": {SOURCE: source}}


def contents_of(
    metadata: bytes, source: str, columns: Sequence[Column], fetch: Fetch, *, is_staged: bool = False
) -> Contents:
    """The content of a table.   Raises: Corrupt; Unsupported for an encrypted table; what `fetch` raises.

    Cost: 1 `fetch` of the manifest list, and 1 of each manifest, of which we write one.
    """
    table = table_of(metadata)
    if Document(metadata).json().get("encryption-keys"):
        raise Unsupported("the table is encrypted; limpet has no keys", hint="publish to a new table")
    schema = _schema(columns, _ids(table, columns))
    snapshot = table.current_snapshot()
    files: list[File] = []
    may_stay = True
    if snapshot is not None:
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        ids = {field.name: field.field_id for field in schema.fields}
        may_stay = summary.get(SOURCE) == source and _ids_in(summary.get(COLUMNS, "null")).items() <= ids.items()
        files = _files(snapshot.manifest_list, fetch, 3 if table.format_version == 3 else 2)
    return Contents(table, source, schema, files, may_stay, is_staged)


def data_file(contents: Contents, url: str, rows: Any) -> tuple[File, bytes]:
    """Rows (a `pyarrow.Table` of exactly these columns) as the Parquet file for `url`, with ids and statistics."""
    schema = contents.schema
    fields = rows.schema
    for at, field in enumerate(schema.fields):
        fields = fields.set(at, fields.field(at).with_metadata({"PARQUET:field_id": str(field.field_id)}))
    collected: list[Any] = []
    data = write_table(rows.cast(fields), metadata_collector=collected)
    statistics = data_file_statistics_from_parquet_metadata(
        collected[0], compute_statistics_plan(schema, contents.table.properties), parquet_path_to_id_mapping(schema)
    )
    made = DataFile.from_args(
        contents.version,
        content=DataFileContent.DATA,
        file_path=url,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=len(data),
        spec_id=UNPARTITIONED_PARTITION_SPEC.spec_id,
        **statistics.to_serialized_dict(),
    )
    entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=made)
    return File(url, rows.num_rows, len(data), entry), data


def commit_of(contents: Contents, files: TableFiles, stamp: Stamp) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The commit after which the table has exactly `files.keep` and `files.add`, and the files to write before, by URL.

    Without files to add or drop it has no snapshot: it creates the table, or changes the columns.
    """
    table = contents.table
    schema_id, updates = _created(contents) if contents.is_staged else _with_schema(contents)
    writes: dict[str, bytes] = {}
    if files.add or files.drop:
        added, writes = new_snapshot(
            table, contents.version, stamp, schema_id, _summary(contents, files), partial(_manifests, contents, files)
        )
        updates += added
    return {"requirements": _requirements(contents), "updates": updates}, writes


def new_snapshot(
    table: TableMetadata,
    version: Literal[2, 3],
    stamp: Stamp,
    schema_id: int,
    summary: Mapping[str, str],
    manifests: Callable[[Output, int], list[ManifestFile]],
) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """The updates that make a new snapshot the current one, and the files to write before, by URL.

    `manifests` returns those of the snapshot, and writes the new one among them.
    """
    folder = f"{table.location.rstrip('/')}/metadata"
    manifest = Output(f"{folder}/{stamp.snapshot_id}-{stamp.unique}-m0.avro")
    listed = Output(f"{folder}/snap-{stamp.snapshot_id}-{stamp.unique}.avro")
    parent, number = table.current_snapshot_id, table.next_sequence_number()
    identity, next_row_id = (stamp.snapshot_id, parent, number), getattr(table, "next_row_id", None)
    lineage = write_manifest_list(version, listed, identity, next_row_id, manifests(manifest, stamp.snapshot_id))
    snapshot = {
        "snapshot-id": stamp.snapshot_id,
        "parent-snapshot-id": parent,
        "sequence-number": number,
        "timestamp-ms": max(stamp.at_ms, table.last_updated_ms),
        "manifest-list": listed.location,
        "summary": summary,
        "schema-id": schema_id,
        **lineage,
    }
    updates = [AddSnapshot.of(snapshot=snapshot), SetRef.to_main(stamp.snapshot_id)]
    return updates, {output.location: output.data for output in (manifest, listed) if output.data}


def summary_of(
    operation: str, added: Sequence[DataFile], removed: Sequence[DataFile], after: Sequence[DataFile]
) -> dict[str, str]:
    """The summary of a snapshot without files of deletes: data files that it adds, removes, and has."""
    counts = {
        "added-data-files": len(added),
        "added-records": sum(file.record_count for file in added),
        "added-files-size": sum(file.file_size_in_bytes for file in added),
        "deleted-data-files": len(removed),
        "deleted-records": sum(file.record_count for file in removed),
        "removed-files-size": sum(file.file_size_in_bytes for file in removed),
        "total-data-files": len(after),
        "total-records": sum(file.record_count for file in after),
        "total-files-size": sum(file.file_size_in_bytes for file in after),
        "total-delete-files": 0,
        "total-position-deletes": 0,
        "total-equality-deletes": 0,
    }
    return {"operation": operation, **{name: str(count) for name, count in counts.items()}}


# ---- schemas ----


def _ids(table: TableMetadata, columns: Sequence[Column]) -> dict[str, int]:
    known = {field.name: field for field in table.schema().fields}
    last = table.last_column_id
    ids: dict[str, int] = {}
    for column in columns:
        field = known.get(column.name)
        if field is None or str(field.field_type) != column.type:
            last += 1
        ids[column.name] = field.field_id if field and str(field.field_type) == column.type else last
    return ids


def _ids_in(text: str) -> dict[str, int]:
    """The column ids in a summary; for the summary of another program an id that matches no column."""
    try:
        return records.decoder(dict[str, int]).decode(text)
    except msgspec.DecodeError:
        return {"": 0}


def _schema(columns: Sequence[Column], ids: Mapping[str, int]) -> Schema:
    fields = [
        {"id": ids[each.name], "name": each.name, "type": each.type, "required": each.is_key, "doc": each.doc}
        for each in columns
    ]
    keys = [ids[each.name] for each in columns if each.is_key]
    return Schema.model_validate({"type": "struct", "fields": fields, "identifier-field-ids": keys})


def _shape(schema: Schema) -> object:
    """Equal for schemas with the same columns."""
    fields = [(field.field_id, field.name, str(field.field_type), field.required) for field in schema.fields]
    return fields, sorted(schema.identifier_field_ids)


def _with_schema(contents: Contents) -> tuple[int, list[dict[str, Any]]]:
    table = contents.table
    if contents.fits:
        return table.current_schema_id, []
    for known in table.schemas:
        if _shape(known) == _shape(contents.schema):
            return known.schema_id, [SetSchema.of(schema_id=known.schema_id)]
    new_id = max(known.schema_id for known in table.schemas) + 1
    schema = {**contents.schema.model_dump(mode="json"), "schema-id": new_id}
    return new_id, [AddSchema.of(schema=schema), SetSchema.of(schema_id=new_id)]


def _created(contents: Contents) -> tuple[int, list[dict[str, Any]]]:
    """The same for a staged table, which the commit creates."""
    table = contents.table
    spec, order = table.spec().model_dump(mode="json"), table.sort_order().model_dump(mode="json")
    return table.current_schema_id, [
        AssignUuid.of(uuid=str(table.table_uuid)),
        UpgradeVersion.of(format_version=FORMAT_VERSION),
        AddSchema.of(schema=table.schema().model_dump(mode="json")),
        SetSchema.of(),
        AddSpec.of(spec=spec),
        SetSpec.of(),
        AddOrder.of(sort_order=order),
        SetOrder.of(),
        SetLocation.of(location=table.location),
        SetProperties.of(updates=dict(table.properties)),
    ]


def _requirements(contents: Contents) -> list[dict[str, Any]]:
    """No other commit since: the kept and dropped files are all files of the table."""
    table = contents.table
    if contents.is_staged:
        return [{"type": "assert-create"}]
    return [
        {"type": "assert-table-uuid", "uuid": str(table.table_uuid)},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": table.current_snapshot_id},
        {"type": "assert-current-schema-id", "current-schema-id": table.current_schema_id},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": table.last_column_id},
    ]


# ---- manifests ----


def _files(manifest_list: str, fetch: Fetch, version: Literal[2, 3]) -> list[File]:
    """The data files of a snapshot. Delete files are skipped: our snapshots do not keep them."""
    found: list[File] = []
    budget = AvroBudget()
    with readable(manifest_list):
        for manifest in manifests_in(Input(manifest_list, fetch), budget, version=version):
            if manifest.content == ManifestContent.DATA:
                for entry in entries_in(Input(manifest.manifest_path, fetch), manifest, budget, version=version):
                    data = entry.data_file
                    found.append(File(data.file_path, data.record_count, data.file_size_in_bytes, entry))
    return found


def _manifests(contents: Contents, files: TableFiles, output: Output, snapshot_id: int) -> list[ManifestFile]:
    """The manifest of a new snapshot, which is written; none without entries."""
    spec = UNPARTITIONED_PARTITION_SPEC
    # other programs may have set a partition spec; files of that spec cannot be in this manifest
    gone = [file for file in files.drop if file.entry.data_file.spec_id == spec.spec_id]
    if not (files.keep or files.add or gone):
        return []
    with manifest_writer(contents.version, spec, contents.schema, output, snapshot_id) as writer:
        for file in files.keep:
            writer.existing(file.entry)
        for file in files.add:
            writer.add(file.entry)
        for file in gone:
            writer.delete(file.entry)
    return [writer.to_manifest_file()]


def _summary(contents: Contents, files: TableFiles) -> dict[str, str]:
    added, removed, kept = ([file.entry.data_file for file in each] for each in (files.add, files.drop, files.keep))
    ids = {field.name: field.field_id for field in contents.schema.fields}
    return {
        **summary_of("overwrite" if removed else "append", added, removed, [*kept, *added]),
        SOURCE: contents.source,
        COLUMNS: msgspec.json.encode(ids).decode(),
    }
