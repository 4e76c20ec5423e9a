"""Parquet through pyarrow: columns typed by the index. Objects, arrays and `any` are JSON text.

The metadata of files that we write holds the key and the kinds of the columns, for a lossless round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any

import msgspec

from limpet.index.codec import FIELDS_MAX, LINE_BYTES_MAX, UPDATED_AT, Field, Schema
from limpet.index.formats.api import (
    Chunk,
    ChunkLimits,
    Decode,
    FileHead,
    Format,
    Mark,
    Sample,
    Write,
    from_arrow,
    in_field,
    matched,
)
from limpet.index.values import JSON_KINDS, KINDS, Kind
from limpet.kernel import records
from limpet.kernel.errors import Invalid, Unsupported
from limpet.kernel.wording import many

GROUP_ROWS = 100_000
BATCH_ROWS = 1024
CHUNKS_MAX = 1_000_000
NESTED_VALUES_MAX = 32 << 20
COLUMN_BYTES_MAX = 2 << 30
"""A small file may decompress to any size. Its metadata says how much, and a larger file is refused unread."""

TYPE_NOTE = b"limpet:type"
KEY_NOTE = b"limpet:key"


def _arrow() -> Any:
    try:
        pyarrow = import_module("pyarrow")
        import_module("pyarrow.compute")
        import_module("pyarrow.parquet")
    except ImportError:
        raise Unsupported("Parquet needs pyarrow", hint="pip install 'limpet[sql]'") from None
    return pyarrow


def _file(stream: IO[bytes], *, packed: Sequence[str] = ()) -> Any:
    """The opened file. The columns `packed` stay dictionary-encoded.   Raises: Invalid."""
    pa = _arrow()
    stream.seek(0)
    try:
        file = pa.parquet.ParquetFile(stream, read_dictionary=[*packed])
    except (pa.ArrowException, OSError) as error:
        raise Invalid(f"it is not a Parquet file: {' '.join(str(error).split())[:120]}") from None
    _check_bounds(file.metadata)
    return file


def _check_bounds(metadata: Any) -> None:
    """Check that the file can be decompressed in pieces.   Raises: Invalid."""
    if metadata.num_columns > FIELDS_MAX or metadata.num_columns * metadata.num_row_groups > CHUNKS_MAX:
        raise Invalid(
            f"it has {many(metadata.num_columns, 'column')} in {many(metadata.num_row_groups, 'row group')}: too many"
        )
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for at in range(group.num_columns):
            column = group.column(at)
            is_nested = column.num_values > group.num_rows
            if (
                is_nested and column.num_values > NESTED_VALUES_MAX
            ) or column.total_uncompressed_size > COLUMN_BYTES_MAX:
                raise Invalid(
                    f"column {column.path_in_schema!r} has {many(column.num_values, 'value')} of together "
                    f"{many(column.total_uncompressed_size, 'byte')} in row group {number + 1}: "
                    "that is too much at once",
                    hint="write it with smaller row groups",
                )


class Parquet(Format):
    """Apache Parquet."""

    noun = "row"
    seeks = True

    def head(self, stream: IO[bytes]) -> FileHead:
        return FileHead(tuple(_file(stream).schema_arrow.names))

    def total(self, stream: IO[bytes], size: int) -> int:
        return int(_file(stream).metadata.num_rows)

    def chunks(self, stream: IO[bytes], head: FileHead, after: Mark, limits: ChunkLimits) -> Iterator[Chunk]:
        """Row groups before `after` are not read."""
        pa = _arrow()
        is_text, is_bytes = pa.types.is_string, pa.types.is_binary
        columns = _file(stream).schema_arrow
        file = _file(stream, packed=[each.name for each in columns if is_text(each.type) or is_bytes(each.type)])
        first, skipped = 0, 0
        while first < file.num_row_groups and skipped + file.metadata.row_group(first).num_rows <= after.position:
            skipped += file.metadata.row_group(first).num_rows
            first += 1
        at = skipped
        waiting: list[Any] = []
        rows = size = 0
        try:
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[*range(first, file.num_row_groups)]):
                cut = min(max(0, after.position - at), batch.num_rows)
                at += cut
                for piece, weight in _pieces(batch.slice(cut), min(BATCH_ROWS, limits.records), limits.size):
                    if waiting and (rows + piece.num_rows > limits.records or size + weight > limits.size):
                        yield Chunk(head.names, pa.Table.from_batches(waiting), Mark(at, at))
                        waiting, rows, size = [], 0, 0
                    waiting.append(piece)
                    at, rows, size = at + piece.num_rows, rows + piece.num_rows, size + weight
            if waiting:
                yield Chunk(head.names, pa.Table.from_batches(waiting), Mark(at, at))
        except (pa.ArrowException, OSError) as error:
            raise Invalid(f"after row {at}: {' '.join(str(error).split())[:160]}") from None

    def rows(self, chunk: Chunk) -> Iterator[tuple[int, dict[str, Any]]]:
        """A value that Python cannot represent affects only its own row."""
        columns = [_python(column) for column in chunk.rows.columns]
        first = chunk.end.number - chunk.rows.num_rows + 1
        for number, values in enumerate(zip(*columns, strict=True), first):
            yield number, dict(zip(chunk.names or (), values, strict=True))

    def decoder(self, names: tuple[str, ...] | None, schema: Schema) -> Decode:
        columns = matched(names or (), schema, what="the file")
        plan = [(name, from_arrow(field.type)) for name, field in columns.items()]

        def decode(row: dict[str, Any]) -> dict[str, Any]:
            values: dict[str, Any] = {}
            for name, read in plan:
                try:
                    if isinstance(row[name], _Unreadable):
                        raise Invalid(f"Python cannot represent the value: {row[name]}")
                    values[name] = read(row[name])
                except Invalid as error:
                    raise in_field(name, error) from None
            return values

        return decode

    def sample(self, stream: IO[bytes]) -> Sample:
        """By the types of the file."""
        schema = _file(stream).schema_arrow
        key = (schema.metadata or {}).get(KEY_NOTE)
        return Sample(tuple(_field(each) for each in schema), key.decode() if key else None)

    def aside(self, names: tuple[str, ...] | None, row: dict[str, Any] | None) -> bytes:
        """The row as a line of JSON."""
        return b"" if row is None else msgspec.json.encode(row, enc_hook=str) + b"\n"

    @contextmanager
    def write(self, stream: IO[bytes], schema: Schema) -> Iterator[Write]:
        """Shards are collected into row groups of about 100,000 rows."""
        pa = _arrow()
        kinds = _types(pa)
        wanted = pa.schema(
            [
                pa.field(each.name, kinds[each.type], not each.required, {TYPE_NOTE: each.type.encode()})
                for each in schema.columns
            ],
            metadata={KEY_NOTE: schema.key.encode()},
        )
        waiting: list[dict[str, Any]] = []
        with pa.parquet.ParquetWriter(stream, wanted, compression="zstd") as file:

            def flush() -> None:
                columns = [_column(pa, waiting, each, kinds[each.type]) for each in schema.columns]
                file.write_batch(pa.record_batch(columns, schema=wanted), row_group_size=max(1, len(waiting)))
                waiting.clear()

            def some(lines: Sequence[bytes]) -> None:
                waiting.extend(map(schema.values, lines))
                if len(waiting) >= GROUP_ROWS:
                    flush()

            yield some
            if waiting:
                flush()


def _pieces(batch: Any, rows_max: int, size_max: int) -> Iterator[tuple[Any, int]]:
    """The batch in pieces of at most `rows_max` rows and `size_max` decoded bytes, each with its size."""
    while batch.num_rows:
        size = _unpacked_size(batch)
        rows = batch.num_rows if size <= size_max else max(1, batch.num_rows * size_max // size)
        piece = batch.slice(0, min(rows, rows_max))
        yield piece, size if piece.num_rows == batch.num_rows else _unpacked_size(piece)
        batch = batch.slice(piece.num_rows)


def _unpacked_size(batch: Any) -> int:
    pa = _arrow()
    size = 0
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            sizes = pa.compute.binary_length(column.dictionary)
            size += pa.compute.sum(pa.compute.take(sizes, column.indices)).as_py() or 0
        else:
            size += column.nbytes
    return int(size)


class _Unreadable(str):
    """Represents a value that Python cannot represent: the reason."""


_UNREADABLE = (ValueError, OverflowError, NotImplementedError, LookupError)
"""What pyarrow raises for values out of Python's range, such as a date in the year 10,000."""


def _python(column: Any) -> list[Any]:
    """The values of a column; those out of range are `_Unreadable`."""
    if _arrow().types.is_dictionary(column.type):
        return [value for chunk in column.chunks for value in _of_dictionary(chunk)]
    try:
        return [*_micros(column).to_pylist()]
    except _UNREADABLE:
        return [_one(column.slice(at, 1)) for at in range(len(column))]


def _of_dictionary(column: Any) -> list[Any]:
    """The values of a dictionary-encoded column; equal values share a Python object."""
    values = [
        _Unreadable(f"it has more than {LINE_BYTES_MAX:,} bytes")
        if size is not None and size > LINE_BYTES_MAX
        else value
        for size, value in zip(
            _arrow().compute.binary_length(column.dictionary).to_pylist(), column.dictionary.to_pylist(), strict=True
        )
    ]
    return [None if at is None else values[at] for at in column.indices.to_pylist()]


def _one(value: Any) -> Any:
    try:
        return _micros(value).to_pylist()[0]
    except _UNREADABLE as error:
        return _Unreadable(" ".join(str(error).split())[:80] or type(error).__name__)


def _micros(column: Any) -> Any:
    """Times in microseconds, Python's resolution, and in UTC, which needs no time zone database."""
    pa = _arrow()
    kind = column.type
    if pa.types.is_timestamp(kind):
        wanted = pa.timestamp("us", "UTC" if kind.tz else None)
    elif pa.types.is_time64(kind):
        wanted = pa.time64("us")
    elif pa.types.is_duration(kind):
        wanted = pa.duration("us")
    else:
        return column
    return column.cast(options=pa.compute.CastOptions(wanted, allow_time_truncate=True))


def _field(each: Any) -> Field:
    noted = (each.metadata or {}).get(TYPE_NOTE, b"").decode()
    for kind in KINDS:
        if kind == noted:
            return Field(each.name, kind, required=not each.nullable and each.name != UPDATED_AT)
    return Field(each.name, _kind(each.name, each.type))


def _kind(name: str, kind: Any) -> Kind:
    types = _arrow().types
    if types.is_dictionary(kind):
        return _kind(name, kind.value_type)
    if types.is_timestamp(kind) and kind.tz is None:
        raise Invalid(
            f"field {name!r}: the times have no time zone",
            hint="write them with one, in pandas with .dt.tz_localize('UTC')",
        )
    tests: Sequence[tuple[Kind, Callable[[Any], bool]]] = (
        ("integer", types.is_integer),
        ("number", types.is_floating),
        ("boolean", types.is_boolean),
        ("date", types.is_date),
        ("datetime", types.is_timestamp),
        ("object", types.is_struct),
        ("array", types.is_nested),
    )
    return next((each for each, test in tests if test(kind)), "string")


def arrow_table(schema: Schema, lines: Sequence[bytes]) -> Any:
    """The records of lines, none of them a tombstone, as a `pyarrow.Table`.

    Raises: Corrupt for an invalid line; Unsupported without pyarrow.
    """
    pa = _arrow()
    kinds = _types(pa)
    rows = [schema.values(line) for line in lines]
    columns = [_column(pa, rows, field, kinds[field.type]) for field in schema.columns]
    fields = [pa.field(field.name, kinds[field.type], field.name != schema.key) for field in schema.columns]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _column(pa: Any, rows: Sequence[dict[str, Any]], field: Field, kind: Any) -> Any:
    values = [row[field.name] for row in rows]
    if field.type in JSON_KINDS:
        values = [None if value is None else records.encode(value).decode() for value in values]
    return pa.array(values, kind)


def _types(pa: Any) -> dict[Kind, Any]:
    text = pa.string()
    return {
        "string": text,
        "integer": pa.int64(),
        "number": pa.float64(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
        "datetime": pa.timestamp("us", "UTC"),
        "object": text,
        "array": text,
        "any": text,
    }
