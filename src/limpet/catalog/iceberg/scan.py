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
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata

from limpet.catalog.iceberg.avro import UNREADABLE, AvroBudget, entries_in, manifests_in
from limpet.catalog.iceberg.deletes import DeleteIndex, rows_deleted_by
from limpet.catalog.iceberg.models import Fetch, FetchedFiles, Input, table_of
from limpet.kernel.errors import Corrupt, Unsupported
from limpet.kernel.wording import many


class TableReader:
    """The current snapshot of a table, whose metadata is in hand.   Raises: Corrupt for metadata that is none."""

    def __init__(self, metadata: bytes, fetch: Fetch, what: str) -> None:
        self._fetch = fetch
        self._what = what
        try:
            self._table: TableMetadata = table_of(metadata)
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
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return [], []
        data: list[ManifestEntry] = []
        deletes = DeleteIndex(self._table)
        budget = AvroBudget()
        for manifest in manifests_in(Input(snapshot.manifest_list, self._fetch), budget, version=3):
            for entry in entries_in(Input(manifest.manifest_path, self._fetch), manifest, budget, version=3):
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
    """The rows of a data file but those at some positions. PyIceberg would unpack vectors of any size."""
    deleted = pa.array(gone, pa.int64())
    for places, batch in numbered(scan, data):
        yield batch.filter(pc.invert(pc.is_in(places, value_set=deleted)))


def numbered(scan: ArrowScan, data: DataFile) -> Iterator[tuple[Any, Any]]:
    """The record batches of a data file, each with the positions of its rows.

    Raises: ValueError if the file has another number of rows than the manifest says; what PyIceberg raises.
    """
    at = 0
    for batch in scan.to_record_batches([FileScanTask(data)]):
        yield pa.array(range(at, at + batch.num_rows), pa.int64()), batch
        at += batch.num_rows
    if at != data.record_count:
        raise ValueError(f"a data file has {many(at, 'row')}, not {data.record_count}")
