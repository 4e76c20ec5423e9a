"""The rows of a table's current snapshot as Arrow data, for `limpet sql`, and the deletes that apply to a data file.

PyIceberg reads the Parquet files and projects them onto the table's columns; which files there are is read with the
bounds of `avro`. Every file goes through `fetch`, so nothing outside the warehouse is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.table import FileScanTask
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record

from limpet.catalog.iceberg.avro import UNREADABLE, AvroBudget, entries_in, field_of, manifests_in
from limpet.catalog.iceberg.files import Fetch, Input
from limpet.catalog.iceberg.updates import table_of
from limpet.catalog.warehouse import DATA_BYTES_MAX, Document
from limpet.errors import Corrupt, Unsupported


class FetchedFiles(FileIO):
    """Files that are read whole, by `fetch`; nothing is written."""

    def __init__(self, fetch: Fetch) -> None:
        super().__init__()
        self._fetch = fetch

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        return Input(location, self._fetch, DATA_BYTES_MAX)

    def new_output(self, location: str) -> OutputFile:
        """Raises: Unsupported."""
        raise Unsupported(f"{location} cannot be written: a query only reads")

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Raises: Unsupported."""
        raise Unsupported(f"{location} cannot be deleted: a query only reads")


class SnapshotDeletes:
    """The deletes of a snapshot, and to which data files each applies, by the rules of the specification.

    PyIceberg's index knows position deletes only. In a set it keeps one of the deletion vectors in a Puffin file, since
    for PyIceberg two files are equal if their paths are.
    """

    def __init__(self, table: TableMetadata) -> None:
        self._specs = table.specs()
        self._positions = DeleteFileIndex()
        self._vectors: dict[str, tuple[int, DataFile]] = {}
        self._equality: dict[tuple[int, Record] | None, list[tuple[int, DataFile]]] = {}

    def add(self, entry: ManifestEntry) -> None:
        """Add a live entry of a manifest of deletes, whose file has its `spec_id`.

        Raises: ValueError for a second deletion vector of a data file; LookupError for an unknown partition spec.
        """
        file, number = entry.data_file, entry.sequence_number or 0
        if file.content == DataFileContent.EQUALITY_DELETES:
            fields = self._specs[file.spec_id].fields
            is_global = all(isinstance(each.transform, VoidTransform) for each in fields)
            key = None if is_global else (file.spec_id, file.partition)
            self._equality.setdefault(key, []).append((number, file))
        elif file.file_format != FileFormat.PUFFIN:
            self._positions.add_delete_file(entry, partition_key=file.partition)
        elif self._vectors.setdefault(field_of(file, "referenced_data_file"), (number, file))[1] is not file:
            raise ValueError("a data file has two deletion vectors")

    def of(self, entry: ManifestEntry) -> list[DataFile]:
        """The deletes that apply to a data file: position deletes as new as it is, and equality deletes newer than it.

        A deletion vector has all earlier position deletes of its file too: those are not named beside it.
        """
        data, number = entry.data_file, entry.sequence_number or 0
        keys = (None, (data.spec_id, data.partition)) if self._equality else ()
        found = [file for key in keys for added, file in self._equality.get(key, ()) if added > number]
        added, vector = self._vectors.get(data.file_path, (-1, None))
        if vector is not None and added >= number:
            return [*found, vector]
        positions = self._positions.for_data_file(number, data, partition_key=data.partition)
        return [
            *found,
            *(each for each in positions if field_of(each, "referenced_data_file") in (None, data.file_path)),
        ]


class TableReader:
    """The current snapshot of a table, whose metadata is in hand.   Raises: Corrupt for metadata that is none."""

    def __init__(self, metadata: bytes, fetch: Fetch, what: str) -> None:
        self._fetch = fetch
        self._what = what
        try:
            self._table: TableMetadata = table_of(Document(metadata))
            self.arrow_schema: Any = schema_to_pyarrow(self._table.schema(), include_field_ids=False)
        except UNREADABLE as error:
            raise self._corrupt(error) from None

    def batches(self) -> Iterator[Any]:
        """The rows, as record batches.

        Raises: Unsupported for a table with equality deletes; Corrupt, Missing.
        Cost: 1 GET for the manifest list, each manifest, and each data file.
        """
        scan = ArrowScan(self._table, FetchedFiles(self._fetch), self._table.schema(), AlwaysTrue())
        try:
            yield from scan.to_record_batches(self._tasks())
        except UNREADABLE as error:
            raise self._corrupt(error) from None

    def _tasks(self) -> list[FileScanTask]:
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return []
        data: list[ManifestEntry] = []
        deletes = SnapshotDeletes(self._table)
        budget = AvroBudget()
        for manifest in manifests_in(Input(snapshot.manifest_list, self._fetch), budget, version=3):
            for entry in entries_in(Input(manifest.manifest_path, self._fetch), manifest, budget, version=3):
                entry.data_file.spec_id = manifest.partition_spec_id
                if manifest.content == ManifestContent.DATA:
                    data.append(entry)
                elif entry.data_file.content == DataFileContent.POSITION_DELETES:
                    deletes.add(entry)
                else:
                    raise Unsupported(
                        f"the table {self._what} has equality deletes, which limpet does not read",
                        hint="compact it with the engine that wrote them, or query it there",
                    )
        return [FileScanTask(entry.data_file, {*deletes.of(entry)}) for entry in data]

    def _corrupt(self, error: BaseException) -> Corrupt:
        return Corrupt(f"the table {self._what} cannot be read: {' '.join(str(error).split())[:160]}")
