"""Deletes that no client here writes: equality deletes, and deletion vectors of several files in one Puffin file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from limpet.catalog.iceberg.avro import AvroBudget, manifests_in, write_manifest_list
from limpet.catalog.iceberg.models import Output
from limpet.service.client import ServiceWriter
from sim import deletes
from sim.deletes import NO_METRICS, deletes_manifest

__all__ = ["EQUALITY_LEFT", "commit_deletes", "equality_delete", "puffin_deletes", "with_equality_deletes"]


def write(table: Table, url: str, data: bytes) -> None:
    with table.io.new_output(url).create() as out:
        out.write(data)


def equality_delete(table: Table, name: str, ids: Sequence[int], spec_id: int = 0, *partition: Any) -> DataFile:
    """A written file of deletes of all rows with one of `ids` in the first column."""
    column = table.schema().fields[0]
    field = pa.field(column.name, pa.int64(), metadata={"PARQUET:field_id": str(column.field_id)})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([pa.array(ids, pa.int64())], schema=pa.schema([field])), sink)
    url, data = f"{table.location()}/data/{name}.parquet", sink.getvalue().to_pybytes()
    write(table, url, data)
    made = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=url,
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=len(ids),
        file_size_in_bytes=len(data),
        equality_ids=[column.field_id],
        **NO_METRICS,
    )
    made.spec_id = spec_id
    return made


def puffin_deletes(table: Table, name: str, gone: Mapping[str, Sequence[int] | bytes]) -> list[DataFile]:
    """The written deletion vectors of several data files, by URL, in one Puffin file. Each is made of positions, or
    given."""
    url = f"{table.location()}/data/{name}.puffin"
    files, data = deletes.puffin_deletes(url, gone)
    write(table, url, data)
    return files


def commit_deletes(table: Table, through: ServiceWriter, snapshot_id: int, files: Sequence[DataFile]) -> None:
    """Add delete files of one partition spec to a table."""
    before = table.refresh().current_snapshot()
    assert before is not None
    version, spec = table.metadata.format_version, table.specs()[files[0].spec_id]
    assert version > 1
    folder, number = f"{table.location()}/metadata", (before.sequence_number or 0) + 1
    made, listed = Output(f"{folder}/{snapshot_id}-deletes.avro"), Output(f"{folder}/{snapshot_id}.avro")
    new = deletes_manifest(3 if version == 3 else 2, spec, table.schema(), made, snapshot_id, files)
    old = manifests_in(table.io.new_input(before.manifest_list), AvroBudget(), version=3 if version == 3 else 2)
    identity = (snapshot_id, before.snapshot_id, number)
    next_row_id = getattr(table.metadata, "next_row_id", None)
    manifests = [new, *old]
    lineage = write_manifest_list(3 if version == 3 else 2, listed, identity, next_row_id, manifests)
    for each in (made, listed):
        write(table, each.location, each.data)
    snapshot = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": before.snapshot_id,
        "sequence-number": number,
        "timestamp-ms": table.metadata.last_updated_ms + 1,
        "manifest-list": listed.location,
        "summary": {"operation": "delete"},
        "schema-id": table.schema().schema_id,
        **lineage,
    }
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
    *namespace, name = table.name()
    request = {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": snapshot}, ref]}
    through.commit_table(namespace, name, request)
    table.refresh()


def with_equality_deletes(catalog: RestCatalog, through: ServiceWriter, namespace: str) -> Table:
    """A table `t` with deletes of all partitions and of one, each before and after a row that has the same id."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "city", StringType()))
    table: Table = catalog.create_table((namespace, "t"), schema)

    def append(city: str, *ids: int) -> None:
        table.refresh().append(pa.table({"id": pa.array(ids, pa.int64()), "city": [city] * len(ids)}))

    append("Oslo", 0, 1, 2)
    commit_deletes(table, through, 71, [equality_delete(table, "e1", [1, 30])])
    append("Oslo", 1)
    with table.refresh().update_spec() as spec:
        spec.add_identity("city")
    append("Oslo", 10, 11)
    append("Bergen", 10, 12, 13)
    by_city = table.refresh().spec().spec_id
    commit_deletes(table, through, 72, [equality_delete(table, "e2", [0, 10], by_city, "Oslo")])
    append("Oslo", 10, 30)
    commit_deletes(table, through, 73, [equality_delete(table, "e3", [12, 2])])
    return table


EQUALITY_LEFT = [0, 1, 10, 10, 11, 13, 30]
"""0: the delete is of another partition spec; 1: written again; 10: of another partition, and written again."""
