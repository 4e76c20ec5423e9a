"""The deletes of a snapshot: which data files each applies to, and the rows that a deletion vector deletes."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from itertools import pairwise

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record

from limpet.catalog.iceberg.avro import field_of


class DeleteIndex:
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


# ---- deletion vectors ----


def rows_deleted_by(vector: DataFile, puffin: bytes, rows: int) -> list[int]:
    """The positions that a deletion vector deletes in a data file with `rows` rows. `puffin`: the file that it is in.

    Raises: ValueError if it is damaged.
    """
    start, size = field_of(vector, "content_offset"), field_of(vector, "content_size_in_bytes")
    if not 0 <= start < start + size <= len(puffin):
        raise ValueError("a deletion vector is not inside its file")
    return vector_positions(puffin[start : start + size], rows)


_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
_WITHOUT_RUNS, _WITH_RUNS = 12346, 12347
_CONTAINER_BITS = 16
_ARRAY_MAX = 4096
_OFFSETS_FROM = 4


def vector_positions(blob: bytes, rows: int) -> list[int]:
    """The positions in a deletion vector (`deletion-vector-v1` of the Puffin specification) of a file with `rows` rows.

    They are in order, and at most `rows`, however few bytes the blob has.   Raises: ValueError if it is damaged.
    """
    vector = blob[4:-4]
    sums = struct.pack(">I", len(vector)), struct.pack(">I", zlib.crc32(vector))
    if (blob[:4], blob[-4:]) != sums or vector[:4] != _VECTOR_MAGIC:
        raise ValueError("a deletion vector is damaged")
    rest = BytesIO(vector[4:])
    (count,) = _numbers(rest, "Q")
    if count == 0:
        return []
    key, cookie = _numbers(rest, "II")
    if count != 1 or key != 0:
        raise ValueError("a deletion vector is for more rows than a file has")
    runs = b""
    if cookie & 0xFFFF == _WITH_RUNS:
        size = (cookie >> 16) + 1
        runs = bytes(_numbers(rest, f"{(size + 7) // 8}B"))
    elif cookie == _WITHOUT_RUNS:
        (size,) = _numbers(rest, "I")
    else:
        raise ValueError("a deletion vector has an unknown format")
    if size > 1 << _CONTAINER_BITS:
        raise ValueError("a deletion vector is too long")
    heads = _numbers(rest, f"{2 * size}H")
    if not runs or size >= _OFFSETS_FROM:
        _numbers(rest, f"{size}I")
    found: list[int] = []
    for nth in range(size):
        base = heads[2 * nth] << _CONTAINER_BITS
        if base >= rows or (found and base <= found[-1]):
            raise ValueError("a deletion vector names rows that the file has not")
        is_run = bool(runs and runs[nth // 8] >> nth % 8 & 1)
        found += [base + low for low in _container(rest, heads[2 * nth + 1] + 1, is_run)]
    if found and (found[-1] >= rows or any(one >= other for one, other in pairwise(found))):
        raise ValueError("a deletion vector names rows that the file has not")
    return found


def _container(rest: BytesIO, count: int, is_run: bool) -> list[int]:
    """The low 16 bits of positions: runs, or a sorted list, or 65,536 bits."""
    if is_run:
        (number,) = _numbers(rest, "H")
        pairs = _numbers(rest, f"{2 * number}H")
        spans = [range(start, start + more + 1) for start, more in zip(pairs[::2], pairs[1::2], strict=True)]
        if sum(map(len, spans)) > 1 << _CONTAINER_BITS:
            raise ValueError("a deletion vector has runs that overlap")
        return [low for span in spans for low in span]
    if count <= _ARRAY_MAX:
        return list(_numbers(rest, f"{count}H"))
    words = _numbers(rest, f"{(1 << _CONTAINER_BITS) // 64}Q")
    return [64 * nth + bit for nth, word in enumerate(words) if word for bit in range(64) if word >> bit & 1]


def _numbers(stream: BytesIO, layout: str) -> tuple[int, ...]:
    """The next little-endian numbers.   Raises: ValueError at the end."""
    data = stream.read(struct.calcsize(f"<{layout}"))
    try:
        return struct.unpack(f"<{layout}", data)
    except struct.error:
        raise ValueError("a deletion vector ends too early") from None
