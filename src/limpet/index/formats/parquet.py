"""Parquet through pyarrow: columns typed by the index. Objects, arrays and `any` are JSON text.

What we write says in its metadata which column is the key and what the columns were, so that it comes back the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any

import msgspec

from limpet.errors import Invalid, Unsupported
from limpet.index import arrow
from limpet.index.formats.api import Chunk, Decode, Head, Limits, Mark, Sample, Write, in_field, matched
from limpet.index.formats.convert import from_arrow
from limpet.index.schema import UPDATED_AT, Field, Schema
from limpet.index.values import KINDS, Kind

__all__ = ["Parquet"]

GROUP_ROWS = 100_000
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


def _file(stream: IO[bytes]) -> Any:
    pa = _arrow()
    stream.seek(0)
    try:
        return pa.parquet.ParquetFile(stream)
    except (pa.ArrowException, OSError) as error:
        raise Invalid(f"it is no Parquet file: {' '.join(str(error).split())[:120]}") from None


class Parquet:
    """Apache Parquet."""

    noun = "row"
    seeks = True

    def head(self, stream: IO[bytes]) -> Head:
        """See `Format.head`."""
        return Head(tuple(_file(stream).schema_arrow.names))

    def total(self, stream: IO[bytes], size: int) -> int:
        """See `Format.total`: rows."""
        return int(_file(stream).metadata.num_rows)

    def chunks(self, stream: IO[bytes], head: Head, after: Mark, limits: Limits) -> Iterator[Chunk]:
        """See `Format.chunks`. Row groups that lie behind are not read again."""
        pa = _arrow()
        file = _file(stream)
        first, skipped = 0, 0
        while first < file.num_row_groups and skipped + file.metadata.row_group(first).num_rows <= after.position:
            skipped += file.metadata.row_group(first).num_rows
            first += 1
        at = skipped
        share = max(1, file.metadata.num_rows)
        weight = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)) / share
        rows_max = max(1, min(limits.records, int(limits.size / max(weight, 1.0))))
        try:
            for batch in file.iter_batches(rows_max, row_groups=[*range(first, file.num_row_groups)]):
                cut = min(max(0, after.position - at), batch.num_rows)
                at += batch.num_rows
                if cut < batch.num_rows:
                    yield Chunk(head.names, batch.slice(cut), Mark(at, at))
        except (pa.ArrowException, OSError) as error:
            raise Invalid(f"after row {at}: {' '.join(str(error).split())[:160]}") from None

    def rows(self, chunk: Chunk) -> Iterator[tuple[int, dict[str, Any]]]:
        """See `Format.rows`. A value that Python cannot hold spoils only its own row."""
        columns = [_python(column) for column in chunk.rows.columns]
        first = chunk.end.number - chunk.rows.num_rows + 1
        for number, values in enumerate(zip(*columns, strict=True), first):
            yield number, dict(zip(chunk.names or (), values, strict=True))

    def decoder(self, names: tuple[str, ...] | None, schema: Schema) -> Decode:
        """See `Format.decoder`."""
        columns = matched(names or (), schema, what="the file")
        plan = [(name, from_arrow(field.type)) for name, field in columns.items()]

        def decode(row: dict[str, Any]) -> dict[str, Any]:
            values: dict[str, Any] = {}
            for name, read in plan:
                try:
                    if isinstance(row[name], _Unreadable):
                        raise Invalid(f"Python cannot hold the value: {row[name]}")
                    values[name] = read(row[name])
                except Invalid as error:
                    raise in_field(name, error) from None
            return values

        return decode

    def sample(self, stream: IO[bytes]) -> Sample:
        """See `Format.sample`: the file says what its columns are."""
        schema = _file(stream).schema_arrow
        key = (schema.metadata or {}).get(KEY_NOTE)
        return Sample(tuple(_field(each) for each in schema), key.decode() if key else None)

    def aside(self, names: tuple[str, ...] | None, row: dict[str, Any] | None) -> bytes:
        """See `Format.aside`: the row as a line of JSON."""
        return b"" if row is None else msgspec.json.encode(row, enc_hook=str) + b"\n"

    @contextmanager
    def write(self, stream: IO[bytes], schema: Schema) -> Iterator[Write]:
        """See `Format.write`. Shards are gathered into row groups of some 100,000 rows."""
        pa = _arrow()
        kinds = arrow.types(pa)
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
                columns = [arrow.column(pa, waiting, each, kinds[each.type]) for each in schema.columns]
                file.write_batch(pa.record_batch(columns, schema=wanted), row_group_size=max(1, len(waiting)))
                waiting.clear()

            def some(lines: Sequence[bytes]) -> None:
                waiting.extend(map(schema.values, lines))
                if len(waiting) >= GROUP_ROWS:
                    flush()

            yield some
            if waiting:
                flush()


class _Unreadable(str):
    """Stands for a value that no Python object can hold, and says why."""


_UNREADABLE = (ValueError, OverflowError, NotImplementedError, LookupError)
"""What pyarrow raises for values that Python's types cannot hold, such as a date in the year 10,000."""


def _python(column: Any) -> list[Any]:
    """The values of a column; those that cannot be had are `_Unreadable`."""
    try:
        return [*_micros(column).to_pylist()]
    except _UNREADABLE:
        return [_one(column.slice(at, 1)) for at in range(len(column))]


def _one(value: Any) -> Any:
    try:
        return _micros(value).to_pylist()[0]
    except _UNREADABLE as error:
        return _Unreadable(" ".join(str(error).split())[:80] or type(error).__name__)


def _micros(column: Any) -> Any:
    """Times with at most microseconds, since Python has no finer ones, and in UTC, which needs no list of zones."""
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
    """The column for an Arrow type; what has no kind of its own becomes a string, as msgspec writes it."""
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
