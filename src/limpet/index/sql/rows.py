"""`Rows`: the answer to a query, as Python values, as an Arrow table, and as text for people."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, timedelta
from importlib import import_module
from itertools import islice
from typing import IO, Any, overload

from limpet import records
from limpet.errors import Invalid

ROWS_SHOWN = 40
CELL_SHOWN = 60
BATCH_ROWS = 10_000
# Arrow carries them wrongly or not at all.
_REFUSED = {"bignum", "bit", "geometry", "time with time zone", "timestamp_ns", "union", "variant"}
_NUMBER = re.compile("U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)$|FLOAT$|DOUBLE$|DECIMAL")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
Convert = Callable[[Any], Any]


class Rows(Sequence[tuple[Any, ...]]):
    """What a query answered: tuples of Python values. Printing it shows a table.

    Datetimes are aware and in UTC, JSON is decoded, null is None. `polars.DataFrame(rows)`, `pyarrow.table(rows)` and
    whatever else reads Arrow take it as it is, with the types of the columns.
    """

    def __init__(self, table: Any, types: Sequence[str], converts: Sequence[Convert | None]) -> None:
        self.columns: tuple[str, ...] = tuple(table.column_names)
        """The names of the columns."""
        self.types: tuple[str, ...] = tuple(types)
        """Their types, as DuckDB calls them."""
        self._table = table
        self._converts = converts

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for at in range(0, len(self), BATCH_ROWS):
            yield from self._values(self._table.slice(at, BATCH_ROWS))

    @overload
    def __getitem__(self, at: int) -> tuple[Any, ...]: ...

    @overload
    def __getitem__(self, at: slice) -> list[tuple[Any, ...]]: ...

    def __getitem__(self, at: int | slice) -> tuple[Any, ...] | list[tuple[Any, ...]]:
        if isinstance(at, slice):
            return [self[number] for number in range(len(self))[at]]
        return self._values(self._table.slice(range(len(self))[at], 1))[0]

    def dicts(self) -> Iterator[dict[str, Any]]:
        """The rows, each by the names of the columns.   Raises: Invalid if two columns have one name."""
        self._demand_names()
        for row in self:
            yield dict(zip(self.columns, row, strict=True))

    def arrow(self) -> Any:
        """The rows as a `pyarrow.Table`; JSON is text there."""
        return self._table

    def parquet(self, where: str | IO[bytes]) -> None:
        """Write the rows as a Parquet file, with the types of the columns.   Raises: Invalid; OSError."""
        self._demand_names()
        import_module("pyarrow.parquet").write_table(self._table, where)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        cells = [[cell[:CELL_SHOWN] for cell in map(shown, row)] for row in islice(self, ROWS_SHOWN)]
        heads = [shown(name)[:CELL_SHOWN] for name in self.columns]
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        numbers = [is_number(kind) for kind in self.types]
        rule = ["-" * width for width in widths]
        lines = ["  ".join(_padded(row, widths, numbers)).rstrip() for row in (heads, rule, *cells)]
        more = f", the first {ROWS_SHOWN} shown" if len(self) > ROWS_SHOWN else ""
        lines.append(f"({len(self):,} row{'' if len(self) == 1 else 's'}{more})")
        return "\n".join(lines)

    def _values(self, table: Any) -> list[tuple[Any, ...]]:
        columns = []
        for name, column, kind, convert in zip(self.columns, table.columns, self.types, self._converts, strict=True):
            try:
                values = _naive(column, kind).to_pylist()
                columns.append(values if convert is None else [None if v is None else convert(v) for v in values])
            except (ValueError, OverflowError) as error:
                raise Invalid(
                    f"a value of column {name!r} does not fit in Python: {' '.join(str(error).split())}",
                    hint="cast it to varchar",
                ) from None
        return [*zip(*columns, strict=True)]

    def _demand_names(self) -> None:
        twice = [name for name, count in Counter(self.columns).items() if count > 1]
        if twice:
            raise Invalid(f"two columns are called {twice[0]!r}", hint="give one another name: select ... as ...")


def rows_of(result: Any) -> Rows:
    """The rows of a DuckDB result.   Raises: Invalid for a type that has no Python value."""
    described = result.description
    converts = [_convert(kind, name) for name, kind, *_ in described]
    return Rows(result.to_arrow_table(), [str(kind) for _, kind, *_ in described], converts)


def _naive(column: Any, kind: str) -> Any:
    """The session's time zone is UTC. Without a zone, pyarrow needs no time zone database, which small images lack."""
    if kind == "TIMESTAMP WITH TIME ZONE":
        return column.cast(import_module("pyarrow").timestamp("us"))
    return column


def _convert(kind: Any, name: str) -> Convert | None:
    """What turns a value as pyarrow gives it into one that people expect; None if it is that already."""
    if str(kind) == "JSON":
        return json.loads
    if kind.id in _REFUSED:
        raise Invalid(f"column {name!r} is of type {kind}, which has no Python value", hint="cast it to varchar")
    match kind.id:
        case "hugeint":
            return int
        case "uhugeint":
            return lambda value: int(value) % (1 << 128)
        case "timestamp with time zone":
            return lambda value: value.replace(tzinfo=UTC)
        case "interval":
            return lambda value: timedelta(days=30 * value.months + value.days, microseconds=value.nanoseconds // 1000)
        case "list" | "array":
            inner = _convert(dict(kind.children)["child"], name)
            return inner and (lambda value: [_maybe(inner, each) for each in value])
        case "struct":
            parts = {key: _convert(part, name) for key, part in kind.children}
            return lambda value: {key: _maybe(parts[key], each) for key, each in value.items()}
        case "map":
            both = dict(kind.children)
            first, second = _convert(both["key"], name), _convert(both["value"], name)
            return lambda value: {_maybe(first, key): _maybe(second, each) for key, each in value}
    return None


def _maybe(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def is_number(kind: str) -> bool:
    """Whether a type of DuckDB's is one of numbers."""
    return _NUMBER.match(kind) is not None


def shown(value: Any) -> str:
    """A value as one line of text, safe on a terminal (F34)."""
    match value:
        case None:
            text = "null"
        case bool():
            text = "true" if value else "false"
        case str():
            text = value
        case dict() | list():
            text = json.dumps(value, ensure_ascii=False, default=shown)
        case _:
            text = records.encode(value).decode().strip('"') if hasattr(value, "isoformat") else str(value)
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _padded(row: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> Iterator[str]:
    for cell, width, number in zip(row, widths, numbers, strict=True):
        yield cell.rjust(width) if number else cell.ljust(width)
