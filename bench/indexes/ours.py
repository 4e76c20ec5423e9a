"""Limpet on a directory: `put_many`, `compile`, `get`; scanned by `sql`, and by DuckDB over the bare shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import limpet
from bench.indexes.api import Index, Options, Place, needs
from bench.indexes.duckdb import SCAN
from bench.indexes.records import Company, Fields, Months
from limpet.index import CompileReport

__all__ = ["NEEDS", "Ours", "connect"]

NEEDS: Mapping[str, str] = {"duckdb": "duckdb", "pyarrow": "pyarrow"}
NAME = "companies"
SHARDS = (
    "read_csv('{}/*.usv', delim='\x1f', quote='', escape='', nullstr='\\N', header=false, auto_detect=false,"
    " new_line='\\n', columns={{'domain': 'VARCHAR', 'company': 'VARCHAR', 'version': 'BIGINT',"
    " 'updated_at': 'TIMESTAMP', '_deleted': 'INTEGER'}})"
)


def connect(place: Place, options: Options) -> Ours:
    """`durability` is os or fsync."""
    return Ours(place, options)


class Ours(Index):
    """An index of ours; `connect` opens it."""

    def __init__(self, place: Place, options: Options) -> None:
        folder = place.folder / "fleet"
        self._shards = folder / "indexes" / NAME / "shards"
        self._fleet = limpet.open(folder, durability=options["durability"])
        self._index = self._fleet.index(NAME, Company, key="domain")
        assert self._index.manifest.depth == 2  # the first use creates the index, or reads what it is

    def prepare(self, records: Sequence[Fields]) -> Any:
        return [Company(*fields) for fields in records]

    def load(self, prepared: Any) -> None:
        self._index.put_many(prepared)

    def upsert(self, prepared: Any) -> None:
        self._index.put_many(prepared)

    def settle(self) -> None:
        self._index.compile(full=True)

    def lookup(self, key: str) -> Fields | None:
        found = self._index.get(key)
        return (found.domain, found.company, found.version, found.updated_at) if found else None

    def scans(self) -> Mapping[str, Callable[[], Months]]:
        return {"sql": self._sql, "read_csv": self._read_csv}

    def spent(self) -> Mapping[str, float]:
        cost = self._fleet.meter.snapshot()
        return {**cost.requests, "read_bytes": cost.read_bytes, "written_bytes": cost.written_bytes}

    def compile(self) -> CompileReport:
        """What `settle` does, but only where it pays or is overdue: as a compiler in production runs."""
        return self._index.compile()

    def size(self) -> int:
        """The bytes of all shards."""
        return sum(path.stat().st_size for path in self._shards.iterdir())

    def _sql(self) -> Months:
        return _months(self._index.sql(SCAN.format(NAME)))

    def _read_csv(self) -> Months:
        """What any tool can do with a compiled index: DuckDB over the bare shards, without Limpet."""
        shards = SHARDS.format(self._shards)
        with needs("duckdb", "duckdb").connect() as db:
            return _months(db.execute(SCAN.format(shards)).fetchall())


def _months(rows: Sequence[tuple[Any, ...]]) -> Months:
    return {f"{month:%Y-%m}": (count, int(total)) for month, count, total in rows}
