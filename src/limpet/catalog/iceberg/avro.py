"""Manifest lists and manifests, read with limits: any client with write access to the warehouse may have written them.
They are also written here: PyIceberg has no writer for format version 3.

PyIceberg's compiled decoder does not check lengths, so a damaged file can crash the process, and its codecs decompress
without a limit. This decoder is written in Python and checks every read, decompression has a limit, and the files of a
snapshot share one budget.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeVar

import zstandard
from pyiceberg.avro.codecs import AVRO_CODEC_KEY
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import SYNC_SIZE, AvroFile, AvroOutputFile, Block
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.exceptions import ResolveError
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestListWriterV2,
    ManifestWriter,
    ManifestWriterV2,
    PartitionFieldSummary,
    _inherit_from_manifest,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record, StructProtocol

from limpet.catalog.iceberg.metadata import ROW_ID_MAX
from limpet.catalog.maintain.decide import assigned_row_id, inherited_row_id
from limpet.kernel import records
from limpet.kernel.errors import Corrupt

D = TypeVar("D", bound=StructProtocol)

CODEC: Final = "deflate"
UNPACKED_BYTES_MAX = 64 << 20
"""Decompressed bytes of all manifests of a snapshot: about 80,000 files with the statistics of ten columns."""
VALUES_MAX = 4_000_000
"""Numbers and texts in them. Each takes up to 100 bytes of memory."""
SCHEMA_BYTES_MAX = 1 << 20
SCHEMA_DEPTH_MAX = 32
INT_BYTES_MAX = 10

UNREADABLE = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, EOFError, AssertionError, RuntimeError),
    *(OSError, ResolveError, zlib.error, zstandard.ZstdError),
)
"""What PyIceberg and the codecs raise for an Avro file that cannot be read."""


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Convert errors of a block that reads manifests.   Raises: Corrupt."""
    try:
        yield
    except UNREADABLE as error:
        raise Corrupt(f"the manifests of {what} cannot be read: {' '.join(str(error).split())[:120]}") from None


class AvroBudget:
    """The remaining budget for all manifests of one snapshot."""

    def __init__(self) -> None:
        self.unpacked = UNPACKED_BYTES_MAX
        self.values = VALUES_MAX

    def unpack(self, codec: str, data: bytes) -> bytes:
        """A decompressed block.   Raises: ValueError beyond the budget; what the codec raises."""
        if codec not in _CODECS:
            raise ValueError(f"its codec is {codec[:20]!r}")
        unpacked = _CODECS[codec](data, self.unpacked + 1)
        self.unpacked -= len(unpacked)
        if self.unpacked < 0:
            raise ValueError(f"the manifests have more than {UNPACKED_BYTES_MAX} bytes")
        return unpacked


_CODECS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "null": lambda data, _: data,
    "deflate": lambda data, most: zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most),
    "bzip2": lambda data, most: bz2.BZ2Decompressor().decompress(data, most),
    "zstandard": lambda data, most: zstandard.ZstdDecompressor(max_window_size=8 << 20).stream_reader(data).read(most),
}


class AvroDecoder(BinaryDecoder):
    """Decodes values from bytes, and never reads beyond the end."""

    def __init__(self, data: bytes, budget: AvroBudget) -> None:
        self._data = data
        self._at = 0
        self._budget = budget

    def tell(self) -> int:
        """The number of bytes read."""
        return self._at

    def read(self, n: int) -> bytes:
        """Raises: EOFError if fewer bytes are left; ValueError for a negative length, and beyond the budget."""
        start = self._at
        self.skip(n)
        return self._data[start : self._at]

    def skip(self, n: int) -> None:
        """Raises: as `read`."""
        self._budget.values -= 1
        if n < 0 or self._budget.values < 0:
            raise ValueError("a negative length" if n < 0 else f"the manifests hold more than {VALUES_MAX} values")
        if n > len(self._data) - self._at:
            raise EOFError("it ends too early")
        self._at += n

    def read_int(self) -> int:
        """Raises: as `read`; ValueError for a number of more than 64 bits."""
        value = 0
        for at in range(INT_BYTES_MAX):
            byte = self.read(1)[0] if at == 0 else self._next()
            value |= (byte & 0x7F) << (7 * at)
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise ValueError("a number that is too long")

    def skip_int(self) -> None:
        """Raises: as `read_int`."""
        self.read_int()

    def _next(self) -> int:
        if self._at >= len(self._data):
            raise EOFError("it ends too early")
        self._at += 1
        return self._data[self._at - 1]


class BoundedAvroFile(AvroFile[D]):
    """An Avro file whose reader stays within a budget."""

    __slots__ = ("_budget", "_size")

    def __init__(self, input_file: InputFile, budget: AvroBudget, **options: Any) -> None:
        super().__init__(input_file, **options)
        self._budget = budget

    def __enter__(self) -> BoundedAvroFile[D]:
        """Read the header.   Raises: those in `UNREADABLE`."""
        with self.input_file.open() as stream:
            data = stream.read()
        self._size = len(data)
        self.decoder = AvroDecoder(data, self._budget)
        self.header = self._read_header()
        _check_schema(self.header.meta.get("avro.schema", ""))
        self.schema = self.header.get_schema()
        self.reader = resolve_reader(self.schema, self.read_schema or self.schema, self.read_types, self.read_enums)
        return self

    def __next__(self) -> D:
        """The next record. PyIceberg would treat a truncated file, or an empty block, as the end."""
        while not (self.block and self.block.has_next()):
            if self.decoder.tell() == self._size:
                raise StopIteration
            self._read_block()
        return next(self.block)

    def _read_block(self) -> int:
        count, packed = self.decoder.read_int(), self.decoder.read_bytes()
        if count < 0 or self.decoder.read(SYNC_SIZE) != self.header.sync:
            raise ValueError("a block does not end where it says")
        data = self._budget.unpack(self.header.meta.get(AVRO_CODEC_KEY, "null"), packed)
        self.block = Block(self.reader, count, AvroDecoder(data, self._budget))
        return count


Version = Literal[2, 3]
_DATA_FILE_AT = {field.name: at for at, field in enumerate(DATA_FILE_TYPE[3].fields)}
_MANIFEST_AT = {field.name: at for at, field in enumerate(MANIFEST_LIST_FILE_SCHEMAS[3].fields)}


def manifests_in(
    listed: InputFile, budget: AvroBudget, *, version: Version = DEFAULT_READ_VERSION
) -> Iterator[ManifestFile]:
    """The manifests that a manifest list names.   Raises: those in `UNREADABLE`."""
    with BoundedAvroFile[ManifestFile](
        listed,
        budget,
        read_schema=MANIFEST_LIST_FILE_SCHEMAS[version],
        read_types={-1: ManifestFile, 508: PartitionFieldSummary},
        read_enums={517: ManifestContent},
    ) as found:
        yield from found


def entries_in(
    file: InputFile, manifest: ManifestFile, budget: AvroBudget, *, version: Version = DEFAULT_READ_VERSION
) -> Iterator[ManifestEntry]:
    """The live entries of a manifest, with the fields of a format version.   Raises: those in `UNREADABLE`.

    Row ids of data files are inherited if the manifest was read with the fields of version 3 too.
    """
    next_id = field_of(manifest, "first_row_id")
    with BoundedAvroFile[ManifestEntry](
        file,
        budget,
        read_schema=MANIFEST_ENTRY_SCHEMAS[version],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as found:
        for entry in found:
            if entry.status != ManifestEntryStatus.DELETED:
                entry.data_file.spec_id = manifest.partition_spec_id
                if version == 3 and manifest.content == ManifestContent.DATA:
                    data = entry.data_file
                    first, next_id = inherited_row_id(field_of(data, "first_row_id"), data.record_count, next_id)
                    if not all(0 <= (row_id or 0) <= ROW_ID_MAX for row_id in (first, next_id)):
                        raise ValueError(f"the row ids of a manifest are not between 0 and {ROW_ID_MAX}")
                    data[_DATA_FILE_AT["first_row_id"]] = first
                yield _inherit_from_manifest(entry, manifest)


def field_of(record: Record, name: str) -> Any:
    """A field that version 3 has added to a data file or a manifest; None in a record of an earlier version."""
    at = (_DATA_FILE_AT if isinstance(record, DataFile) else _MANIFEST_AT)[name]
    return record[at] if at < len(record) else None


class _RowIdManifestWriter(ManifestWriterV2):
    @property
    def version(self) -> Version:
        return 3

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        schema = self._with_partition(3)
        return AvroOutputFile(self._output_file, schema, "manifest_entry", schema, self._meta)


def manifest_writer(
    version: Version, spec: PartitionSpec, schema: Schema, output: OutputFile, snapshot_id: int
) -> ManifestWriter:
    """A writer of a data manifest. Its entries have the fields of that version."""
    kind = _RowIdManifestWriter if version == 3 else ManifestWriterV2
    return kind(spec, schema, output, snapshot_id, CODEC)


class RowIdListWriter(ManifestListWriterV2):
    """A writer of a manifest list, which gives a row id to each data manifest that has none.

    `next_row_id`: the next unused id. It begins as the snapshot's first row id, and the difference is its `added-rows`.
    """

    def __init__(
        self, output: OutputFile, snapshot_id: int, parent: int | None, number: int, first_row_id: int
    ) -> None:
        super().__init__(output, snapshot_id, parent, number, CODEC)
        self._format_version = 3
        self._meta |= {"format-version": "3", "first-row-id": str(first_row_id)}
        self.next_row_id = first_row_id

    def __enter__(self) -> RowIdListWriter:
        schema = MANIFEST_LIST_FILE_SCHEMAS[3]
        self._writer = AvroOutputFile(self._output_file, schema, "manifest_file", schema, self._meta)
        self._writer.__enter__()
        return self

    def prepare_manifest(self, manifest_file: ManifestFile) -> ManifestFile:
        """The manifest as it is listed, with its first row id."""
        new = super().prepare_manifest(manifest_file)
        rows = (new.added_rows_count or 0) + (new.existing_rows_count or 0)
        is_data = new.content == ManifestContent.DATA
        first, self.next_row_id = assigned_row_id(field_of(new, "first_row_id"), is_data, rows, self.next_row_id)
        at = _MANIFEST_AT["first_row_id"]
        return ManifestFile(*(new[n] for n in range(at)), first)


def write_manifest_list(
    version: Version,
    output: OutputFile,
    snapshot: tuple[int, int | None, int],
    next_row_id: int | None,
    manifests: list[ManifestFile],
) -> dict[str, int]:
    """Write the manifest list of a snapshot (its id, its parent, its sequence number).

    Returns the fields of the snapshot that version 3 has added: `first-row-id` and `added-rows`.
    """
    if version != 3:
        with ManifestListWriterV2(output, *snapshot, CODEC) as writer:
            if manifests:
                writer.add_manifests(manifests)
        return {}
    first = next_row_id or 0
    with RowIdListWriter(output, *snapshot, first) as rows:
        if manifests:
            rows.add_manifests(manifests)
    return {"first-row-id": first, "added-rows": rows.next_row_id - first}


def _check_schema(text: str) -> None:
    """Raises: ValueError for a schema that is too large, too deep, or has lists of zero-byte items."""
    if len(text) > SCHEMA_BYTES_MAX:
        raise ValueError("its schema is too large")
    _bytes_min(records.decoder(Any).decode(text), 0)


def _bytes_min(kind: Any, depth: int) -> int:
    if depth > SCHEMA_DEPTH_MAX:
        raise ValueError("its schema is too deep")
    match kind:
        case "null":
            return 0
        case {"type": "record", "fields": list(fields)}:
            return sum(_bytes_min(field["type"], depth + 1) for field in fields)
        case {"type": "array", "items": items}:
            if not _bytes_min(items, depth + 1):
                raise ValueError("it has a list whose items take no byte")
            return 1
        case {"type": "map", "values": values}:
            _bytes_min(values, depth + 1)
            return 1
        case {"type": "fixed"}:
            return 0
        case {"type": inner}:
            return _bytes_min(inner, depth + 1)
        case list():
            for each in kind:
                _bytes_min(each, depth + 1)
            return 1
    return 1
