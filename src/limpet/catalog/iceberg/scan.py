"""The rows of a table's current snapshot as Arrow data, for `limpet sql`.

PyIceberg reads the Parquet files and projects them onto the table's columns; which files there are is read with the
bounds of `avro`. Every file goes through `fetch`, so nothing outside the warehouse is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata

from limpet.catalog.iceberg.avro import UNREADABLE, AvroBudget, entries_in, manifests_in
from limpet.catalog.iceberg.deletes import DeleteIndex, rows_deleted_by
from limpet.catalog.iceberg.files import Fetch, Input
from limpet.catalog.iceberg.models import table_of
from limpet.catalog.warehouse import DATA_BYTES_MAX, Document
from limpet.kernel.errors import Corrupt, Unsupported


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
        Cost: 1 GET for the manifest list, each manifest, each data file, and each file of deletes.
        """
        io = FetchedFiles(self._fetch)
        scan = ArrowScan(self._table, io, self._table.schema(), AlwaysTrue())
        try:
            tasks, vectors = self._tasks()
            yield from scan.to_record_batches(tasks) if tasks else ()
            url, puffin = "", b""
            for data, vector in sorted(vectors, key=lambda pair: str(pair[1].file_path)):
                if vector.file_path != url:
                    url, puffin = vector.file_path, io.new_input(vector.file_path).open().read()
                yield from _without(rows_deleted_by(vector, puffin, data.record_count), scan, data)
        except UNREADABLE as error:
            raise self._corrupt(error) from None

    def _tasks(self) -> tuple[list[FileScanTask], list[tuple[DataFile, DataFile]]]:
        """The data files with their position deletes, and those that have a deletion vector."""
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return [], []
        data: list[ManifestEntry] = []
        deletes = DeleteIndex(self._table)
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
        tasks: list[FileScanTask] = []
        vectors: list[tuple[DataFile, DataFile]] = []
        for entry in data:
            applied = deletes.of(entry)
            if applied and applied[0].file_format == FileFormat.PUFFIN:
                vectors.append((entry.data_file, applied[0]))
            else:
                tasks.append(FileScanTask(entry.data_file, {*applied}))
        return tasks, vectors

    def _corrupt(self, error: BaseException) -> Corrupt:
        return Corrupt(f"the table {self._what} cannot be read: {' '.join(str(error).split())[:160]}")


def _without(gone: list[int], scan: ArrowScan, data: DataFile) -> Iterator[Any]:
    """The rows of a data file but those at some positions. PyIceberg would unpack vectors of any size.

    Raises: ValueError if it has another number of rows; what PyIceberg raises.
    """
    deleted, at = pa.array(gone, pa.int64()), 0
    for batch in scan.to_record_batches([FileScanTask(data)]):
        places = pa.array(range(at, at + batch.num_rows), pa.int64())
        at += batch.num_rows
        yield batch.filter(pc.invert(pc.is_in(places, value_set=deleted)))
    if at != data.record_count:
        raise ValueError(f"a data file has {at} rows, not {data.record_count}")
