"""The files of a table, for maintenance: all that a snapshot needs, and small data files rewritten as large ones.

A rewrite is a snapshot with the operation `replace`: the same rows in other files. Position deletes are applied, and
dropped when no remaining file needs them. Manifests without a rewritten file stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import ArrowScan, write_file
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table import FileScanTask, WriteTask
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.metadata import TableMetadata

from limpet.catalog.iceberg.avro import AvroBudget, entries_in, manifests_in, readable
from limpet.catalog.iceberg.files import CODEC, Fetch, Input, Output, Stamp
from limpet.catalog.iceberg.updates import table_of
from limpet.catalog.maintain.decide import MAIN, RewriteCandidate
from limpet.catalog.warehouse import DATA_BYTES_MAX, Document
from limpet.errors import Unsupported

FORMAT_VERSION: Final = 2
FILES_MAX = 1_000_000

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


@dataclass(slots=True)
class LiveDataFile:
    """A data file of the current snapshot, the manifest that lists it, and the delete files that apply to it."""

    entry: ManifestEntry
    manifest: str
    deletes: frozenset[str]

    @property
    def url(self) -> str:
        """The URL of the file."""
        path: str = self.entry.data_file.file_path
        return path


@dataclass(slots=True)
class CurrentFiles:
    """The current snapshot of a table's main branch: its manifests, data files, and delete files by URL."""

    table: TableMetadata
    manifests: list[ManifestFile] = field(default_factory=list)
    data: list[LiveDataFile] = field(default_factory=list)
    deletes: dict[str, DataFile] = field(default_factory=dict)
    deletes_in: dict[str, list[str]] = field(default_factory=dict)
    """By delete manifest, the delete files in it."""

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
    """Data files that are replaced, with the delete files that were applied to each, and the new file (None: no row is
    left)."""

    old: Mapping[str, frozenset[str]]
    new: DataFile | None

    def still_holds(self, current: CurrentFiles) -> bool:
        """Whether the table still has the old files, with the same deletes: then the new file has the same rows."""
        live = {file.url: file.deletes for file in current.data if file.url in self.old}
        return live == self.old


def current_files(metadata: bytes, fetch: Fetch, what: str) -> CurrentFiles:
    """The current snapshot of the table `what`.

    Raises: Unsupported for a table that cannot be rewritten; Corrupt; what `fetch` raises.
    Cost: 1 `fetch` of the manifest list, and 1 of each manifest.
    """
    table = table_of(Document(metadata))
    if table.format_version != FORMAT_VERSION:
        raise Unsupported(
            f"{what} has format version {table.format_version}; limpet rewrites files of version {FORMAT_VERSION} only",
            hint="compact it with Spark" if table.format_version > FORMAT_VERSION else "upgrade it to version 2",
        )
    found = CurrentFiles(table)
    snapshot = table.snapshot_by_name(MAIN)
    if snapshot is None:
        return found
    index, budget = DeleteFileIndex(), AvroBudget()
    with readable(what):
        for manifest in manifests_in(Input(snapshot.manifest_list, fetch), budget):
            found.manifests.append(manifest)
            for entry in entries_in(Input(manifest.manifest_path, fetch), manifest, budget):
                entry.data_file.spec_id = manifest.partition_spec_id
                if manifest.content == ManifestContent.DATA:
                    found.data.append(LiveDataFile(entry, manifest.manifest_path, frozenset()))
                    continue
                if entry.data_file.content != DataFileContent.POSITION_DELETES:
                    raise Unsupported(
                        f"{what} has equality deletes, which limpet does not apply",
                        hint="compact it with the engine that writes them, such as Spark",
                    )
                index.add_delete_file(entry, partition_key=entry.data_file.partition)
                found.deletes[entry.data_file.file_path] = entry.data_file
                found.deletes_in.setdefault(manifest.manifest_path, []).append(entry.data_file.file_path)
        for file in found.data if found.deletes else ():
            data = file.entry.data_file
            applied = index.for_data_file(file.entry.sequence_number or 0, data, partition_key=data.partition)
            file.deletes = frozenset(each.file_path for each in applied)
    return found


def rewritten(
    current: CurrentFiles, group: Sequence[LiveDataFile], fetch: Fetch, uuid: str, what: str
) -> tuple[RewrittenGroup, dict[str, bytes]]:
    """One file with the rows of a group, by URL; nothing to write if no row is left. It has all rows in memory.

    Raises: Corrupt; what `fetch` raises.   Cost: 1 `fetch` of each data file and delete file.
    """
    table = current.table
    old = {file.url: file.deletes for file in group}
    io = _CapturedFiles(fetch)
    tasks = [FileScanTask(file.entry.data_file, {current.deletes[url] for url in file.deletes}) for file in group]
    with readable(what):
        scan = ArrowScan(table, io, table.schema(), AlwaysTrue())
        batches = [batch for batch in scan.to_record_batches(tasks) if batch.num_rows]
        if not batches:
            return RewrittenGroup(old, None), {}
        task = WriteTask(_as_uuid(uuid), 0, table.schema(), batches)
        (made,) = write_file(io, _writing_to_data(table), iter([task]))
    first = group[0].entry.data_file
    new = _with_partition(made, first.partition, first.spec_id)
    return RewrittenGroup(old, new), io.written()


def _as_uuid(text: str) -> Any:
    """A text where PyIceberg wants a UUID: it only becomes a part of the name of a file."""
    return text


def _writing_to_data(table: TableMetadata) -> TableMetadata:
    """The table, with properties by which PyIceberg writes Parquet files right below its `data` folder."""
    properties = {name: value for name, value in table.properties.items() if name not in _OTHER_PLACES}
    properties["write.data.path"] = f"{table.location.rstrip('/')}/data"
    return table.model_copy(update={"properties": properties})


def _with_partition(made: DataFile, partition: Any, spec_id: int) -> DataFile:
    return DataFile.from_args(
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
    folder = f"{table.location.rstrip('/')}/metadata"
    manifest = Output(f"{folder}/{stamp.snapshot_id}-{stamp.unique}-m0.avro")
    listed = Output(f"{folder}/snap-{stamp.snapshot_id}-{stamp.unique}.avro")
    gone = {url for each in done for url in each.old}
    needed = {url for file in current.data if file.url not in gone for url in file.deletes}
    parent, number = table.current_snapshot_id, table.next_sequence_number()
    with write_manifest_list(FORMAT_VERSION, listed, stamp.snapshot_id, parent, number, CODEC) as lists:
        lists.add_manifests(
            [_new_manifest(current, done, stamp.snapshot_id, manifest), *_kept_manifests(current, gone, needed)]
        )
    snapshot = {
        "snapshot-id": stamp.snapshot_id,
        "parent-snapshot-id": parent,
        "sequence-number": number,
        "timestamp-ms": max(stamp.at_ms, table.last_updated_ms),
        "manifest-list": listed.location,
        "summary": _summary(current, done, gone, needed),
        "schema-id": table.current_schema_id,
    }
    request = {
        "requirements": [
            {"type": "assert-table-uuid", "uuid": str(table.table_uuid)},
            {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": parent},
        ],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": MAIN, "type": "branch", "snapshot-id": stamp.snapshot_id},
        ],
    }
    return request, {output.location: output.data for output in (manifest, listed)}


def _new_manifest(
    current: CurrentFiles, done: Sequence[RewrittenGroup], snapshot_id: int, output: Output
) -> ManifestFile:
    """One manifest instead of all that list a replaced file, with the new files. All of them have the current spec."""
    gone = {url for each in done for url in each.old}
    touched = {file.manifest for file in current.data if file.url in gone}
    table = current.table
    with write_manifest(FORMAT_VERSION, table.spec(), table.schema(), output, snapshot_id, CODEC) as writer:
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
        if manifest.manifest_path not in touched and not _is_unneeded(current, manifest, needed)
    ]


def _is_unneeded(current: CurrentFiles, manifest: ManifestFile, needed: set[str]) -> bool:
    if manifest.content == ManifestContent.DATA:
        return False
    return not any(url in needed for url in current.deletes_in.get(manifest.manifest_path, ()))


def _summary(current: CurrentFiles, done: Sequence[RewrittenGroup], gone: set[str], needed: set[str]) -> dict[str, str]:
    new = [each.new for each in done if each.new is not None]
    old = [file.entry.data_file for file in current.data if file.url in gone]
    after = [*new, *(file.entry.data_file for file in current.data if file.url not in gone)]
    kept = {
        url: current.deletes[url]
        for manifest in _kept_manifests(current, gone, needed)
        for url in current.deletes_in.get(manifest.manifest_path, ())
    }
    counts = {
        "added-data-files": len(new),
        "added-records": sum(file.record_count for file in new),
        "added-files-size": sum(file.file_size_in_bytes for file in new),
        "deleted-data-files": len(old),
        "deleted-records": sum(file.record_count for file in old),
        "removed-files-size": sum(file.file_size_in_bytes for file in old),
        "removed-delete-files": len(current.deletes) - len(kept),
        "total-data-files": len(after),
        "total-records": sum(file.record_count for file in after),
        "total-files-size": sum(file.file_size_in_bytes for file in (*after, *kept.values())),
        "total-delete-files": len(kept),
        "total-position-deletes": sum(file.record_count for file in kept.values()),
        "total-equality-deletes": 0,
    }
    return {"operation": "replace", **{name: str(count) for name, count in counts.items()}}


class _CapturedFiles(FileIO):
    """Reads files by `fetch`, and keeps what is written in memory, by URL."""

    def __init__(self, fetch: Fetch) -> None:
        super().__init__()
        self._fetch = fetch
        self._outputs: list[Output] = []

    def new_input(self, location: str) -> InputFile:
        return Input(location, self._fetch, DATA_BYTES_MAX)

    def new_output(self, location: str) -> OutputFile:
        self._outputs.append(Output(location))
        return self._outputs[-1]

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise Unsupported(f"{location} cannot be deleted here")

    def written(self) -> dict[str, bytes]:
        """The bytes of the files that were written."""
        return {output.location: output.data for output in self._outputs}
