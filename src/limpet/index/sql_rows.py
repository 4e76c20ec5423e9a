"""What a query answers: rows of plain Python values, which can also be read as Arrow data or written as Parquet."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, timedelta
from importlib import import_module
from itertools import islice
from typing import IO, Any, overload

from limpet.kernel import records
from limpet.kernel.errors import Invalid
from limpet.kernel.wording import many

ROWS_SHOWN = 40
CELL_SHOWN = 60
BATCH_ROWS = 10_000
# Arrow converts them wrongly or not at all.
_REFUSED = {"bignum", "bit", "geometry", "time with time zone", "timestamp_ns", "union", "variant"}
_NUMBER = re.compile("U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)$|FLOAT$|DOUBLE$|DECIMAL")
Convert = Callable[[Any], Any]


class Rows(Sequence[tuple[Any, ...]]):
    """The result of a query: tuples of Python values. Its repr is a table.

    Datetimes are aware and in UTC, JSON is decoded, null is None. `polars.DataFrame(rows)`, `pyarrow.table(rows)` and
    every other Arrow reader accept it directly, with the types of the columns.
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
        self._check_names()
        for row in self:
            yield dict(zip(self.columns, row, strict=True))

    def arrow(self) -> Any:
        """The rows as a `pyarrow.Table`; JSON is text there."""
        return self._table

    def parquet(self, where: str | IO[bytes]) -> None:
        """Write the rows as a Parquet file, with the types of the columns.   Raises: Invalid; OSError."""
        self._check_names()
        import_module("pyarrow.parquet").write_table(self._table, where)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        cells = [[cell[:CELL_SHOWN] for cell in map(shown, row)] for row in islice(self, ROWS_SHOWN)]
        heads = [shown(name)[:CELL_SHOWN] for name in self.columns]
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        numbers = [is_number(kind) for kind in self.types]
        rule = ["-" * width for width in widths]
        lines = []
        for row in (heads, rule, *cells):
            padded = zip(row, widths, numbers, strict=True)
            lines.append("  ".join(cell.rjust(n) if right else cell.ljust(n) for cell, n, right in padded).rstrip())
        more = f", the first {ROWS_SHOWN} shown" if len(self) > ROWS_SHOWN else ""
        lines.append(f"({many(len(self), 'row')}{more})")
        return "\n".join(lines)

    def _values(self, table: Any) -> list[tuple[Any, ...]]:
        columns = []
        for name, column, kind, convert in zip(self.columns, table.columns, self.types, self._converts, strict=True):
            try:
                if kind == "TIMESTAMP WITH TIME ZONE":  # it is UTC; to_pylist would need a database of zones
                    column = column.cast(import_module("pyarrow").timestamp("us"))
                values = column.to_pylist()
                columns.append(values if convert is None else [None if v is None else convert(v) for v in values])
            except (ValueError, OverflowError) as error:
                raise Invalid(
                    f"a value of column {name!r} does not fit in Python: {' '.join(str(error).split())}",
                    hint="cast it to varchar",
                ) from None
        return [*zip(*columns, strict=True)]

    def _check_names(self) -> None:
        twice = [name for name, count in Counter(self.columns).items() if count > 1]
        if twice:
            raise Invalid(f"two columns are called {twice[0]!r}", hint="give one another name: select ... as ...")


def rows_of(result: Any) -> Rows:
    """The rows of a DuckDB relation.   Raises: Invalid for a type that has no Python value."""
    described = result.description
    converts = [_convert(kind, name) for name, kind, *_ in described]
    return Rows(result.to_arrow_table(), [str(kind) for _, kind, *_ in described], converts)


def _json_value(text: str) -> Any:
    """A JSON value. What Python may not be able to read or print stays text: numbers of thousands of digits, and more
    levels than Limpet stores (F32)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    may_be_deep = text.count("[") + text.count("{") > records.DEPTH_MAX
    return text if may_be_deep and _is_deeper(value, records.DEPTH_MAX) else value


def _is_deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(each, levels - 1) for each in inner)


def _convert(kind: Any, name: str) -> Convert | None:
    if str(kind) == "JSON":
        return _json_value
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
    """Whether a DuckDB type is numeric."""
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
    return records.printable(text)
