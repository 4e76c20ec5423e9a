"""Records of every kind, the same rows by SQL and from a published table, and stores that interfere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from limpet.app import Fleet
from limpet.kernel.runtime import system
from support.stores import Meddled

__all__ = ["NAME", "PACKAGE", "Rec", "Watched", "by_sql", "fleet_on", "plain_rows", "some"]

NAME = "domains"
KINDS = ("string", "integer", "number", "boolean", "date", "datetime", "object", "array", "any")
PACKAGE: dict[str, Any] = {
    "fields": [{"name": "domain", "type": "string"}]
    + [{"name": f"a {kind}.é", "type": kind, "constraints": {"required": False}} for kind in KINDS]
}


@dataclass
class Rec:
    """What most tests put."""

    domain: str
    n: int
    text: str | None = None


def some(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """Records of `PACKAGE` with values, hard text and nulls."""
    values: dict[str, Any] = {
        "string": "tab\t, \x1f, \\N, \n, ünï",
        "integer": -(1 << 63),
        "number": 0.1,
        "boolean": True,
        "date": date(1, 2, 3),
        "datetime": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        "object": {"a": [1, None, "\x1f"]},
        "array": [1, "zwei"],
        "any": "text",
    }
    for n in range(first, first + count):
        row = {f"a {kind}.é": value if (n + at) % 3 else None for at, (kind, value) in enumerate(values.items())}
        yield {"domain": f"d{n}.com", **row}


def by_sql(fleet: Fleet, name: str = NAME) -> list[tuple[Any, ...]]:
    """What our own SQL says, JSON decoded, in the order of the keys."""
    return sorted(fleet.index(name).sql(f'select * from "{name}"'), key=lambda row: str(row[0]))


def plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of an Arrow table as our own SQL gives them."""
    columns = []
    for column in table.column_names:
        values = table[column].to_pylist()
        if any(column == f"a {kind}.é" for kind in ("object", "array", "any")):
            values = [None if value is None else json.loads(value) for value in values]
        columns.append(values)
    return sorted(zip(*columns, strict=True), key=lambda row: str(row[0]))


@dataclass
class Watched:
    """What is asked of a store, and what happens just before. `before(verb, key)` may raise."""

    asked: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[str, str], object] = lambda verb, key: None

    def note(self, verb: str, key: str) -> None:
        """A request is about to be sent."""
        self.asked.append((verb, key))
        self.before(verb, key)

    def count(self, verb: str, part: str) -> int:
        """How many requests of that kind had `part` in their key."""
        return sum(1 for asked, key in self.asked if asked == verb and part in key)


def fleet_on(fleet: Fleet, watched: Watched) -> Fleet:
    """The same fleet through a store that is watched."""
    store = Meddled(fleet.meter.inner)
    store.before = watched.note
    return Fleet(store, fleet.url, fleet.record, system())
