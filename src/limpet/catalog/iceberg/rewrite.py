"""The files of a table, for maintenance: all that a snapshot needs, and small data files rewritten as large ones.

A rewrite is a snapshot with the operation `replace`: the same rows in other files. Position deletes and deletion
vectors are applied, and dropped when no remaining file needs them. Manifests without a rewritten file stay as they are.
In format version 3 a row keeps its id and the sequence number of its last change: both become columns of the new file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Literal

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.io.pyarrow import ArrowScan, _read_deletes, write_file
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import FileScanTask, WriteTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import LongType, NestedField, TimestampNanoType, TimestamptzNanoType

from limpet.catalog.iceberg.avro import AvroBudget, entries_in, field_of, manifest_writer, manifests_in, readable
from limpet.catalog.iceberg.deletes import DeleteIndex, rows_deleted_by
from limpet.catalog.iceberg.files import Stamp, new_snapshot, summary_of
from limpet.catalog.iceberg.metadata import MAIN
from limpet.catalog.iceberg.models import Fetch, FetchedFiles, Input, Output, table_of
from limpet.catalog.iceberg.scan import numbered
from limpet.catalog.iceberg.schemas import NO_DEFAULT, columns_of
from limpet.catalog.maintain.decide import RewriteCandidate
from limpet.catalog.warehouse import Document
from limpet.kernel.errors import Unsupported

FILES_MAX = 1_000_000
ROW_ID: Final = "_row_id"
CHANGED_IN: Final = "_last_updated_sequence_number"
LINEAGE = (NestedField(2147483540, ROW_ID, LongType()), NestedField(2147483539, CHANGED_IN, LongType()))
"""Columns that Iceberg reserves; both are optional."""

_OTHER_PLACES = ("write.py-location-provider.impl", "write.object-storage.enabled", "write.format.default")
"""Properties that would have PyIceberg write the files elsewhere, in another format, or by code of its owner."""


# ---- what a snapshot needs ----


class NeededFiles:
    """The URLs of all files that snapshots need. Each manifest list and manifest is read once.

    Data files and delete files (position deletes, equality deletes, deletion vectors) are found in the manifests.
    """

    def __init__(self, fetch: Fetch, keep: Callable[[str], object]) -> None:
        """`keep` is called with every URL."""
        self._fetch = fetch
        self._keep = keep
        self._met: set[str] = set()
        self._count = 0

    def add_snapshot(self, manifest_list: str) -> None:
        """Add what a snapshot needs.

        Raises: Corrupt; Unsupported for too many files; what `fetch` raises.
        Cost: 1 `fetch` of the list and of each manifest, unless another snapshot had them.
        """
        if not self._add(manifest_list):
            return
        budget = AvroBudget()
        with readable(manifest_list):
            for manifest in manifests_in(Input(manifest_list, self._fetch), budget):
                if self._add(manifest.manifest_path):
                    for entry in entries_in(Input(manifest.manifest_path, self._fetch), manifest, AvroBudget()):
                        self._count += 1
                        if self._count > FILES_MAX:
                            raise Unsupported(
                                f"the table has more than {FILES_MAX:,} files", hint="use Spark's procedures for it"
                            )
                        self._keep(entry.data_file.file_path)

    def _add(self, url: str) -> bool:
        is_new = url not in self._met
        self._met.add(url)
        self._keep(url)
        return is_new


# ---- compaction ----


FileState = tuple[frozenset[str], int | None]
"""What decides the rows of a data file and their ids: the deletes that apply to it, and the id of its first row."""


@dataclass(slots=True)
class LiveDataFile:
    """A data file of the current snapshot, the manifest that lists it, and the deletes that apply to it."""

    entry: ManifestEntry
    manifest: str
    deletes: frozenset[str]

    @property
    def url(self) -> str:
        """The URL of the file."""
        path: str = self.entry.data_file.file_path
        return path

    @property
    def state(self) -> FileState:
        """Its state in this snapshot."""
        return self.deletes, field_of(self.entry.data_file, "first_row_id")


@dataclass(slots=True)
class CurrentFiles:
    """The current snapshot of a table's main branch: its manifests, data files, and deletes (`_delete_id`)."""

    table: TableMetadata
    version: Literal[2, 3]
    manifests: list[ManifestFile] = field(default_factory=list)
    data: list[LiveDataFile] = field(default_factory=list)
    deletes: dict[str, DataFile] = field(default_factory=dict)
    deletes_in: dict[str, list[str]] = field(default_factory=dict)
    """By delete manifest, the deletes in it."""

    def candidates(self, is_readable: Callable[[str], bool]) -> list[RewriteCandidate]:
        """The Parquet files of the current partition spec that can be read, in the order of the manifests."""
        spec = self.table.default_spec_id
        return [
            RewriteCandidate(
                nth, file.entry.data_file.partition, file.entry.data_file.file_size_in_bytes, bool(file.deletes)
            )
            for nth, file in enumerate(self.data)
            if file.entry.data_file.spec_id == spec
            and file.entry.data_file.file_format == FileFormat.PARQUET
            and is_readable(file.url)
        ]


@dataclass(frozen=True, slots=True)
class RewrittenGroup:
    """Data files that are replaced, with the state of each, and the new file (None: no row is left)."""

    old: Mapping[str, FileState]
    new: DataFile | None

    def still_holds(self, current: CurrentFiles) -> bool:
        """Whether the table still has the old files in the same state: then the new file has the same rows."""
        live = {file.url: file.state for file in current.data if file.url in self.old}
        return live == self.old


def current_files(metadata: bytes, fetch: Fetch, what: str) -> CurrentFiles:
    """The current snapshot of the table `what`.

    Raises: Unsupported for a table that cannot be rewritten; Corrupt; what `fetch` raises.
    Cost: 1 `fetch` of the manifest list, and 1 of each manifest.
    """
    table = _rewritable(metadata, what)
    version: Literal[2, 3] = 3 if table.format_version == 3 else 2
    found = CurrentFiles(table, version)
    snapshot = table.snapshot_by_name(MAIN)
    if snapshot is None:
        return found
    deletes, budget = DeleteIndex(table), AvroBudget()
    with readable(what):
        for manifest in manifests_in(Input(snapshot.manifest_list, fetch), budget, version=version):
            found.manifests.append(manifest)
            for entry in entries_in(Input(manifest.manifest_path, fetch), manifest, budget, version=version):
                data = entry.data_file
                if data.key_metadata is not None:
                    raise _encrypted(what)
                if manifest.content == ManifestContent.DATA:
                    found.data.append(LiveDataFile(entry, manifest.manifest_path, frozenset()))
                    continue
                if data.content != DataFileContent.POSITION_DELETES:
                    raise Unsupported(
                        f"{what} has equality deletes, which limpet does not apply",
                        hint="compact it with the engine that writes them, such as Spark",
                    )
                id_ = _delete_id(data)
                deletes.add(entry)
                found.deletes[id_] = data
                found.deletes_in.setdefault(manifest.manifest_path, []).append(id_)
        for file in found.data if found.deletes else ():
            file.deletes = frozenset(map(_delete_id, deletes.of(file.entry)))
    return found


def _rewritable(metadata: bytes, what: str) -> TableMetadata:
    """The metadata of a table whose files can be rewritten without loss.   Raises: Unsupported; Corrupt."""
    table = table_of(metadata)
    if table.format_version == 1:
        raise Unsupported(
            f"{what} has format version 1; limpet rewrites files of versions 2 and 3 only", hint="upgrade it"
        )
    if table.format_version == 3:
        if Document(metadata).json().get("encryption-keys"):
            raise _encrypted(what)
        columns = columns_of(table.schema().model_dump(mode="json")).values()
        lost = [each.name for each in columns if each.kind in NO_DEFAULT or each.name in (ROW_ID, CHANGED_IN)]
        if lost:
            raise Unsupported(
                f"{what} has the column {lost[0]!r}, which limpet cannot rewrite", hint="compact it with Spark"
            )
    return table


def _encrypted(what: str) -> Unsupported:
    return Unsupported(f"{what} is encrypted; limpet has no keys", hint="compact it with the engine that writes it")


def _delete_id(file: DataFile) -> str:
    """Identifies a delete file, or one deletion vector: a Puffin file may have those of many data files."""
    if file.file_format != FileFormat.PUFFIN:
        return str(file.file_path)
    return f"{file.file_path}#{field_of(file, 'content_offset')}"


def rewritten(
    current: CurrentFiles, group: Sequence[LiveDataFile], fetch: Fetch, uuid: str, what: str
) -> tuple[RewrittenGroup, dict[str, bytes]]:
    """One file with the rows of a group, by URL; nothing to write if no row is left. It has all rows in memory.

    Raises: Corrupt; what `fetch` raises.
    Cost: 1 `fetch` of each data file and delete file.
    """
    table = current.table
    if current.version == 3:
        longer = Schema(*table.schema().fields, *LINEAGE, schema_id=table.current_schema_id)
        others = [schema for schema in table.schemas if schema.schema_id != longer.schema_id]
        table = table.model_copy(update={"schemas": [*others, longer]})
    old = {file.url: file.state for file in group}
    io = _CapturedFiles(fetch, {each.file_path for each in current.deletes.values()})
    with readable(what):
        scan = ArrowScan(table, io, table.schema(), AlwaysTrue())
        rows: Iterator[Any]
        if current.version == 3:
            rows = chain.from_iterable(_traced(scan, current, file, io) for file in group)
        else:
            deletes = [{current.deletes[id_] for id_ in file.deletes} for file in group]
            tasks = [FileScanTask(file.entry.data_file, each) for file, each in zip(group, deletes, strict=True)]
            rows = scan.to_record_batches(tasks)
        batches = [batch for batch in rows if batch.num_rows]
        if not batches:
            return RewrittenGroup(old, None), {}
        name: Any = uuid  # PyIceberg wants a UUID, which only becomes a part of the name of the file
        task = WriteTask(name, 0, table.schema(), batches)
        (made,) = write_file(io, _writing_to_data(table), iter([task]))
    first = group[0].entry.data_file
    new = _with_partition(made, first.partition, first.spec_id, current.version)
    return RewrittenGroup(old, new), io.written()


# ---- row lineage and deletion vectors: format version 3 ----


def _traced(scan: ArrowScan, current: CurrentFiles, file: LiveDataFile, io: FileIO) -> Iterator[Any]:
    """The rows of a file that are not deleted, each with its id and the sequence number of its last change.

    A row whose id is null in the file has the position after the file's first row id; a file that no snapshot of
    version 3 has listed has no first id, and its rows get one with this commit.   Raises: ValueError.
    """
    data, first = file.entry.data_file, field_of(file.entry.data_file, "first_row_id")
    gone = pa.array(_deleted_rows(current, file, io), pa.int64())
    for places, batch in numbered(scan, data):
        ids, numbers = batch.column(ROW_ID), batch.column(CHANGED_IN)
        if first is not None:
            ids = pc.coalesce(ids, pc.add_checked(places, pa.scalar(first, pa.int64())))
        numbers = pc.coalesce(numbers, pa.scalar(file.entry.sequence_number, pa.int64()))
        columns = [*batch.columns[: -len(LINEAGE)], ids, numbers]
        traced = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        yield traced.filter(pc.invert(pc.is_in(places, value_set=gone))) if len(gone) else traced


def _deleted_rows(current: CurrentFiles, file: LiveDataFile, io: FileIO) -> list[int]:
    """The positions of the rows of a file that are deleted.   Raises: ValueError; what PyIceberg raises."""
    found: list[int] = []
    for id_ in file.deletes:
        deletes = current.deletes[id_]
        if deletes.file_format != FileFormat.PUFFIN:
            positions = _read_deletes(io, deletes).get(file.url)
            found += [] if positions is None else positions.to_pylist()
            continue
        with io.new_input(deletes.file_path).open() as stream:
            found += rows_deleted_by(deletes, stream.read(), file.entry.data_file.record_count)
    return found


# ---- the commit ----


def _writing_to_data(table: TableMetadata) -> TableMetadata:
    """The table, with properties by which PyIceberg writes Parquet files right below its `data` folder.

    Columns in nanoseconds get no lower and upper bounds: PyArrow needs pandas for such a value.
    """
    properties = {name: value for name, value in table.properties.items() if name not in _OTHER_PLACES}
    properties["write.data.path"] = f"{table.location.rstrip('/')}/data"
    for id_, column in index_by_id(table.schema()).items():
        if isinstance(column.field_type, TimestampNanoType | TimestamptzNanoType):
            properties[f"write.metadata.metrics.column.{table.schema().find_column_name(id_)}"] = "counts"
    return table.model_copy(update={"properties": properties})


def _with_partition(made: DataFile, partition: Any, spec_id: int, version: Literal[2, 3]) -> DataFile:
    return DataFile.from_args(
        version,
        content=made.content,
        file_path=made.file_path,
        file_format=made.file_format,
        partition=partition,
        record_count=made.record_count,
        file_size_in_bytes=made.file_size_in_bytes,
        column_sizes=made.column_sizes,
        value_counts=made.value_counts,
        null_value_counts=made.null_value_counts,
        nan_value_counts=made.nan_value_counts,
        lower_bounds=made.lower_bounds,
        upper_bounds=made.upper_bounds,
        split_offsets=made.split_offsets,
        spec_id=spec_id,
    )


def replacing_commit(
    current: CurrentFiles, done: Sequence[RewrittenGroup], stamp: Stamp
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The commit that replaces files, if the main branch has not moved, and the manifests to write before, by URL."""
    table = current.table
    gone = {url for each in done for url in each.old}
    needed = {url for file in current.data if file.url not in gone for url in file.deletes}
    kept = _kept_manifests(current, gone, needed)

    def manifests(output: Output, snapshot_id: int) -> list[ManifestFile]:
        return [_new_manifest(current, done, snapshot_id, output), *kept]

    summary = _summary(current, done, gone, kept)
    updates, files = new_snapshot(table, current.version, stamp, table.current_schema_id, summary, manifests)
    requirements = [
        {"type": "assert-table-uuid", "uuid": str(table.table_uuid)},
        {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": table.current_snapshot_id},
    ]
    return {"requirements": requirements, "updates": updates}, files


def _new_manifest(
    current: CurrentFiles, done: Sequence[RewrittenGroup], snapshot_id: int, output: Output
) -> ManifestFile:
    """One manifest instead of all that list a replaced file, with the new files. All of them have the current spec."""
    gone = {url for each in done for url in each.old}
    touched = {file.manifest for file in current.data if file.url in gone}
    table = current.table
    with manifest_writer(current.version, table.spec(), table.schema(), output, snapshot_id) as writer:
        for file in current.data:
            if file.url in gone:
                writer.delete(file.entry)
            elif file.manifest in touched:
                writer.existing(file.entry)
        for each in done:
            if each.new is not None:
                writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=each.new))
    return writer.to_manifest_file()


def _kept_manifests(current: CurrentFiles, gone: set[str], needed: set[str]) -> list[ManifestFile]:
    """The manifests that list no replaced file, and those of deletes that a remaining file needs."""
    touched = {file.manifest for file in current.data if file.url in gone}
    return [
        manifest
        for manifest in current.manifests
        if manifest.manifest_path not in touched
        and (
            manifest.content == ManifestContent.DATA
            or not needed.isdisjoint(current.deletes_in.get(manifest.manifest_path, ()))
        )
    ]


def _summary(
    current: CurrentFiles, done: Sequence[RewrittenGroup], gone: set[str], kept: Sequence[ManifestFile]
) -> dict[str, str]:
    new = [each.new for each in done if each.new is not None]
    old = [file.entry.data_file for file in current.data if file.url in gone]
    after = [*new, *(file.entry.data_file for file in current.data if file.url not in gone)]
    delete_ids = {id_ for manifest in kept for id_ in current.deletes_in.get(manifest.manifest_path, ())}
    deletes = [current.deletes[id_] for id_ in delete_ids]
    counts = {
        "removed-delete-files": len(current.deletes) - len(deletes),
        "total-files-size": sum(file.file_size_in_bytes for file in (*after, *deletes)),
        "total-delete-files": len(deletes),
        "total-position-deletes": sum(file.record_count for file in deletes),
    }
    return summary_of("replace", new, old, after) | {name: str(count) for name, count in counts.items()}


class _CapturedFiles(FetchedFiles):
    """Reads files by `fetch`, and keeps what is written in memory, by URL.

    `shared`: files that are read for several others, and are fetched once.
    """

    def __init__(self, fetch: Fetch, shared: Collection[str]) -> None:
        super().__init__(self._read)
        self._fetch_once = fetch
        self._shared = shared
        self._fetched: dict[str, bytes] = {}
        self._outputs: list[Output] = []

    def _read(self, url: str, size_max: int) -> bytes:
        if url in self._fetched:
            return self._fetched[url]
        data = self._fetch_once(url, size_max)
        if url in self._shared:
            self._fetched[url] = data
        return data

    def new_output(self, location: str) -> OutputFile:
        self._outputs.append(Output(location))
        return self._outputs[-1]

    def written(self) -> dict[str, bytes]:
        """The bytes of the files that were written."""
        return {output.location: output.data for output in self._outputs}
