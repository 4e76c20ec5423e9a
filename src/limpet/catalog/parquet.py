"""Parquet: snapshots of the catalog, and folded events, as files that any engine can read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from io import BytesIO
from itertools import pairwise
from typing import Any

import msgspec

from limpet.catalog.records import RememberedAnswer
from limpet.catalog.state import CatalogState
from limpet.errors import Corrupt, Unsupported
from limpet.events import Event

ENTRY, ANSWERS = "entry", "answers"
TABLE_BYTES_MAX = 4 << 30
ROWS_ALWAYS = 1000

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode
_answers = msgspec.json.Decoder(dict[str, RememberedAnswer]).decode


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
            raise Corrupt(f"{what} would take {sum(sizes)} bytes in memory, more than {TABLE_BYTES_MAX}")
        if file.metadata.num_rows > max(len(data), ROWS_ALWAYS):
            # No two rows that we write are equal, and each has an id or a digest that cannot be compressed.
            raise Corrupt(f"{what} has {file.metadata.num_rows} rows in {len(data)} bytes, more than can differ")
        table = file.read(use_threads=False)
        table.validate(full=True)
        alike = table.schema.equals(schema)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise Corrupt(f"{what} is no sound Parquet file: {' '.join(str(error).split())[:160]}") from None
    if not alike:
        raise Corrupt(f"{what} has other columns than {', '.join(schema.names)}")
    return table


def _schema() -> Any:
    pa = arrow()
    return pa.schema([(name, pa.string()) for name in ("kind", "key", "value")])


class ParquetSnapshots:
    """The `SnapshotCodec` of the catalog: a row for each entry in the order of keys, then one row with all answers."""

    def to_bytes(self, state: CatalogState) -> bytes:
        """Equal states give equal bytes.   Raises: Unsupported without pyarrow."""
        entries = [*state.entries().items()]
        columns = {
            "kind": [ENTRY] * len(entries) + [ANSWERS],
            "key": [key for key, _ in entries] + [""],
            "value": [_text(value) for _, value in entries] + [_text(state.answers())],
        }
        table = arrow().table(columns, schema=_schema())
        return write_table(table, use_dictionary=["kind"], write_statistics=False)

    def from_bytes(self, data: bytes, *, what: str) -> CatalogState:
        """Raises: Corrupt, with the reason; Unsupported without pyarrow."""
        columns = [column.to_pylist() for column in read_table(data, _schema(), what=what).columns]
        kinds, keys, values = columns
        if kinds != [ENTRY] * (len(kinds) - 1) + [ANSWERS]:
            raise Corrupt(f"{what} has rows of another kind, or out of order")
        if None in keys or None in values:
            raise Corrupt(f"{what} lacks values")
        keys.pop()
        told = values.pop()
        if any(first >= second for first, second in pairwise(keys)):
            raise Corrupt(f"{what} has a key twice, or keys out of order")
        try:
            entries = dict(zip(keys, map(_decode, values), strict=True))
            answers = _answers(told)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Corrupt(f"{what} holds a value that is not what it should be: {error}") from None
        if None in entries.values():
            raise Corrupt(f"{what} has an entry without a value")
        return CatalogState(entries, answers)


class ParquetEvents:
    """Folded events as Parquet: a row an event, in the order of their ids; `fields` is JSON text."""

    def schema(self) -> Any:
        """The columns: id, kind, at, position (null if there is none) and fields."""
        pa = arrow()
        texts = {name: pa.string() for name in ("id", "kind", "at", "fields")}
        return pa.schema([(name, texts.get(name, pa.int64())) for name in ("id", "kind", "at", "position", "fields")])

    def table(self, events: Iterable[tuple[Event, int | None]]) -> Any:
        """A table of events with their positions."""
        rows = [(each.id, each.kind, each.at, position, _text(each.fields)) for each, position in events]
        columns = [[*column] for column in zip(*rows, strict=True)] or [[] for _ in self.schema().names]
        return arrow().table(columns, schema=self.schema())

    def merged(self, tables: Sequence[Any]) -> Any:
        """One table of all, in the order of ids. No id may be in two of them."""
        return arrow().concat_tables(tables).sort_by("id").combine_chunks()

    def ids(self, table: Any) -> list[str]:
        """The ids, in the order of the rows."""
        return [*map(str, table.column("id").to_pylist())]

    def events(self, table: Any) -> Iterator[tuple[Event, int | None]]:
        """The events of a table, with their positions."""
        for id_, kind, at, position, fields in zip(*(column.to_pylist() for column in table.columns), strict=True):
            yield Event(id_, kind, at, _decode(fields)), position

    def to_bytes(self, table: Any) -> bytes:
        """The file of a table."""
        return write_table(table)

    def from_bytes(self, data: bytes, *, what: str) -> Any:
        """The table of a file.   Raises: Corrupt."""
        table = read_table(data, self.schema(), what=what)
        if any(table.column(name).null_count for name in ("id", "kind", "at", "fields")):
            raise Corrupt(f"{what} lacks values")
        return table


def _text(value: Any) -> str:
    return _encode(value).decode()
