"""The rows of a table's current snapshot as Arrow data, for `limpet sql`.

PyIceberg reads the Parquet files and projects them onto the table's columns; which files there are is read with the
bounds of `avro`. Every file goes through `fetch`, so nothing outside the warehouse is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntry
from pyiceberg.table import FileScanTask
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.metadata import TableMetadata

from limpet.catalog.iceberg.avro import UNREADABLE, AvroBudget, entries_in, manifests_in
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
        deletes = DeleteFileIndex()
        budget = AvroBudget()
        for manifest in manifests_in(Input(snapshot.manifest_list, self._fetch), budget):
            for entry in entries_in(Input(manifest.manifest_path, self._fetch), manifest, budget):
                entry.data_file.spec_id = manifest.partition_spec_id
                if manifest.content == ManifestContent.DATA:
                    data.append(entry)
                elif entry.data_file.content == DataFileContent.POSITION_DELETES:
                    deletes.add_delete_file(entry, partition_key=entry.data_file.partition)
                else:
                    raise Unsupported(
                        f"the table {self._what} has equality deletes, which limpet does not read",
                        hint="compact it with the engine that wrote them, or query it there",
                    )
        return [
            FileScanTask(
                entry.data_file,
                deletes.for_data_file(
                    entry.sequence_number or 0, entry.data_file, partition_key=entry.data_file.partition
                ),
            )
            for entry in data
        ]

    def _corrupt(self, error: BaseException) -> Corrupt:
        return Corrupt(f"the table {self._what} cannot be read: {' '.join(str(error).split())[:160]}")
