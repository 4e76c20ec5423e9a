"""Files of deletes as engines write them, for the simulation and tests: Limpet only reads and applies them.

Position deletes are Parquet files with the path and the position of each deleted row (format version 2). Deletion
vectors, several of them in one Puffin file, replace them in version 3.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

from limpet.catalog.iceberg.avro import Version, manifest_writer, write_manifest_list
from limpet.catalog.iceberg.files import File, Stamp
from limpet.catalog.iceberg.metadata import MAIN
from limpet.catalog.iceberg.models import Output
from limpet.catalog.iceberg.rewrite import CurrentFiles
from limpet.events.parquet import write_table

_NONE: Mapping[int, Any] = {}
NO_METRICS: Mapping[str, Any] = {
    f"{what}_{kind}": _NONE
    for kind, names in (("counts", ("value", "null_value", "nan_value")), ("bounds", ("lower", "upper")))
    for what in names
} | {"column_sizes": _NONE}
"""Statistics of a file that has none."""
_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


def position_deletes(url: str, gone: Mapping[str, Sequence[int]]) -> tuple[DataFile, bytes]:
    """A file of position deletes: by the URL of a data file, the positions of its deleted rows."""
    rows = sorted((path, position) for path, positions in gone.items() for position in positions)
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _POSITIONS, strict=True)]
    data = write_table(pa.table(columns, schema=_POSITIONS))
    file = _delete_file(2, url, FileFormat.PARQUET, len(rows), len(data))
    return file, data


def puffin_deletes(url: str, gone: Mapping[str, Sequence[int] | bytes]) -> tuple[list[DataFile], bytes]:
    """The deletion vectors of several data files in one Puffin file, as Spark writes those of a task.

    `gone`: by the URL of a data file, the positions of its deleted rows, or a vector.
    """
    body = b"PFA1"
    blobs, places = [], []
    for path, positions in gone.items():
        blob = positions if isinstance(positions, bytes) else vector_of(positions)
        place = {"referenced_data_file": path, "content_offset": len(body), "content_size_in_bytes": len(blob)}
        properties = {"referenced-data-file": path, "cardinality": str(len(positions))}
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [2147483645],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(body),
                "length": len(blob),
                "properties": properties,
            }
        )
        places.append((place, len(positions)))
        body += blob
    footer = json.dumps({"blobs": blobs, "properties": {}}).encode()
    body += b"PFA1" + footer + struct.pack("<iI", len(footer), 0) + b"PFA1"
    return [_delete_file(3, url, FileFormat.PUFFIN, count, len(body), **place) for place, count in places], body


def _delete_file(version: Version, url: str, kind: FileFormat, rows: int, size: int, **more: Any) -> DataFile:
    file = DataFile.from_args(
        version,
        content=DataFileContent.POSITION_DELETES,
        file_path=url,
        file_format=kind,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=size,
        **NO_METRICS,
        **more,
    )
    file.spec_id = 0
    return file


def vector_of(positions: Sequence[int]) -> bytes:
    """A deletion vector of up to 4,096 rows among the first 65,536."""
    head = struct.pack("<IIHHI", 12346, 1, 0, len(positions) - 1, 16)
    return sealed_vector(head + struct.pack(f"<{len(positions)}H", *sorted(positions)))


def sealed_vector(bitmap: bytes, *, count: int = 1, key: int = 0) -> bytes:
    """A bitmap as a deletion vector, with its length and checksum."""
    body = bytes.fromhex("d1d33964") + struct.pack("<QI", count, key) + bitmap
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def deletes_manifest(
    version: Version, spec: PartitionSpec, schema: Schema, output: Output, snapshot_id: int, files: Sequence[DataFile]
) -> ManifestFile:
    """Write a manifest of deletes of one partition spec."""
    kind: Any = type(manifest_writer(version, spec, schema, output, snapshot_id))

    class DeletesWriter(kind):  # type: ignore[misc]
        """PyIceberg writes no manifests of deletes by itself."""

        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

        def new_writer(self) -> AvroOutputFile[ManifestEntry]:
            schema = _with_int_ids(self._with_partition(version))
            return AvroOutputFile(self._output_file, schema, "manifest_entry", schema, self._meta)

    with DeletesWriter(spec, schema, output, snapshot_id, "deflate") as writer:
        for file in files:
            writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=file))
    made: ManifestFile = writer.to_manifest_file()
    return made


def changing_commit(
    current: CurrentFiles, stamp: Stamp, added: Sequence[File], deletes: Sequence[DataFile]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The commit of an engine that adds data files and deletes in one snapshot, and the files to write before, by URL.

    In format version 3 `deletes` are all of the table: a data file has one deletion vector at most.
    """
    table, version = current.table, current.version
    prefix = f"{table.location}/metadata/{stamp.snapshot_id}-{stamp.unique}"
    listed = Output(f"{prefix}.avro")
    outputs = [Output(f"{prefix}-{kind}.avro") for kind in ("data", "deletes")]
    manifests = [each for each in current.manifests if each.content == ManifestContent.DATA or version == 2]
    if added:
        with manifest_writer(version, table.spec(), table.schema(), outputs[0], stamp.snapshot_id) as writer:
            for file in added:
                writer.add(file.entry)
        manifests.append(writer.to_manifest_file())
    if deletes:
        args = (version, table.spec(), table.schema(), outputs[1], stamp.snapshot_id, deletes)
        manifests.append(deletes_manifest(*args))
    parent, number = table.current_snapshot_id, table.next_sequence_number()
    identity = (stamp.snapshot_id, parent, number)
    lineage = write_manifest_list(version, listed, identity, getattr(table, "next_row_id", None), manifests)
    snapshot = {
        "snapshot-id": stamp.snapshot_id,
        "parent-snapshot-id": parent,
        "sequence-number": number,
        "timestamp-ms": max(stamp.at_ms, table.last_updated_ms),
        "manifest-list": listed.location,
        "summary": {"operation": "overwrite"},
        "schema-id": table.current_schema_id,
        **lineage,
    }
    ref = {"ref-name": MAIN, "type": "branch", "snapshot-id": stamp.snapshot_id}
    request = {
        "requirements": [
            {"type": "assert-table-uuid", "uuid": str(table.table_uuid)},
            {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": parent},
        ],
        "updates": [{"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", **ref}],
    }
    return request, {output.location: output.data for output in (*outputs, listed) if output.data}


def _with_int_ids(schema: Schema) -> Schema:
    """The schema of a manifest with the ids of columns as the specification has them: PyIceberg writes them as longs,
    which Java does not read."""
    *others, data = schema.fields
    assert isinstance(data.field_type, StructType)
    ids = ListType(element_id=136, element=IntegerType(), element_required=True)
    fields = [
        NestedField(each.field_id, each.name, ids, required=False) if each.name == "equality_ids" else each
        for each in data.field_type.fields
    ]
    return Schema(*others, NestedField(data.field_id, data.name, StructType(*fields), required=True))
