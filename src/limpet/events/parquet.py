"""Parquet files that any engine can read: tables with a fixed schema, and tables of events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from io import BytesIO
from typing import Any

import msgspec

from limpet.events import Event
from limpet.kernel.errors import Corrupt, Unsupported
from limpet.kernel.records import json_text
from limpet.kernel.wording import many

TABLE_BYTES_MAX = 4 << 30
ROWS_ALWAYS = 1000

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def arrow() -> Any:
    """pyarrow, which only the catalog's writers need.   Raises: Unsupported, if it is not installed."""
    try:
        pyarrow = import_module("pyarrow")
        import_module("pyarrow.parquet")
    except ImportError:
        raise Unsupported("the catalog needs pyarrow", hint="pip install 'limpet[catalog]'") from None
    return pyarrow


def write_table(table: Any, **options: Any) -> bytes:
    """A table as one Parquet file. The same rows give the same bytes."""
    sink = BytesIO()
    arrow().parquet.write_table(table, sink, compression="zstd", **options)
    return sink.getvalue()


def read_table(data: bytes, schema: Any, *, what: str) -> Any:
    """The table of a file with exactly that schema.   Raises: Corrupt, naming `what`."""
    pa = arrow()
    try:
        file = pa.parquet.ParquetFile(BytesIO(data))
        sizes = [file.metadata.row_group(n).total_byte_size for n in range(file.metadata.num_row_groups)]
        if not 0 <= sum(sizes) <= TABLE_BYTES_MAX or min(sizes, default=0) < 0:
            raise Corrupt(f"{what} would take {many(sum(sizes), 'byte')} in memory, more than {TABLE_BYTES_MAX:,}")
        if file.metadata.num_rows > max(len(data), ROWS_ALWAYS):
            # All rows that we write differ by an id or a digest, which cannot be compressed.
            raise Corrupt(
                f"{what} has {many(file.metadata.num_rows, 'row')} in {many(len(data), 'byte')}, more than can differ"
            )
        table = file.read(use_threads=False)
        table.validate(full=True)
        alike = table.schema.equals(schema)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise Corrupt(f"{what} is not a valid Parquet file: {' '.join(str(error).split())[:160]}") from None
    if not alike:
        raise Corrupt(f"{what} has other columns than {', '.join(schema.names)}")
    return table


def event_schema() -> Any:
    """The columns of folded events: id, kind, at, position (null if there is none) and fields, which is JSON text."""
    pa = arrow()
    texts = {name: pa.string() for name in ("id", "kind", "at", "fields")}
    return pa.schema([(name, texts.get(name, pa.int64())) for name in ("id", "kind", "at", "position", "fields")])


def event_table(events: Iterable[tuple[Event, int | None]]) -> Any:
    """A table of events with their positions, a row each."""
    schema = event_schema()
    rows = [(each.id, each.kind, each.at, position, json_text(each.fields)) for each, position in events]
    columns = [[*column] for column in zip(*rows, strict=True)] or [[] for _ in schema.names]
    return arrow().table(columns, schema=schema)


def read_event_table(data: bytes, *, what: str) -> Any:
    """The table of a file of events.   Raises: Corrupt."""
    table = read_table(data, event_schema(), what=what)
    if any(table.column(name).null_count for name in ("id", "kind", "at", "fields")):
        raise Corrupt(f"{what} lacks values")
    return table


def merged(tables: Sequence[Any]) -> Any:
    """One table of all, sorted by id. Ids must be unique."""
    return arrow().concat_tables(tables).sort_by("id").combine_chunks()


def ids_in(table: Any) -> list[str]:
    """The ids of a table of events, in the order of the rows."""
    return [*map(str, table.column("id").to_pylist())]


def events_in(table: Any) -> Iterator[tuple[Event, int | None]]:
    """The events of a table, with their positions.   Raises: Corrupt for `fields` that are not a JSON object."""
    for id_, kind, at, position, fields in zip(*(column.to_pylist() for column in table.columns), strict=True):
        try:
            event = Event(id_, kind, at, _decode(fields))
        except (msgspec.DecodeError, RecursionError) as error:
            raise Corrupt(f"the fields of the event {id_[:40]!r} cannot be read: {error}") from None
        yield event, position
