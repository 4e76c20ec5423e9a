"""DuckDB: a table with a primary key, filled from Arrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import Any

from bench.indexes.api import Index, Options, Place, arrow, needs
from bench.indexes.records import Fields, Months

__all__ = ["NEEDS", "SCAN", "connect"]

NEEDS: Mapping[str, str] = {"duckdb": "duckdb", "pyarrow": "pyarrow"}
CREATE = "CREATE TABLE t (domain VARCHAR PRIMARY KEY, company VARCHAR, version BIGINT, updated_at TIMESTAMP)"
UPSERT = (
    "INSERT INTO t SELECT * FROM incoming ON CONFLICT (domain) DO UPDATE SET"
    " company = excluded.company, version = excluded.version, updated_at = excluded.updated_at"
    " WHERE excluded.updated_at >= updated_at"
)
SCAN = "SELECT date_trunc('month', updated_at) AS month, count(*), sum(version) FROM {} GROUP BY 1"


def connect(place: Place, options: Options) -> Index:
    """There are no options."""
    return _DuckDB(place)


class _DuckDB(Index):
    def __init__(self, place: Place) -> None:
        self._db = needs("duckdb", "duckdb").connect(str(place.folder / "index.duckdb"))
        if place.fresh:
            self._db.execute(CREATE)
        self._db.execute("PREPARE one AS SELECT * FROM t WHERE domain = $1")

    def prepare(self, records: Sequence[Fields]) -> Any:
        table = arrow(records)
        # Times without a zone: with one, DuckDB's Python package wants pytz.
        at = table["updated_at"].cast(needs("pyarrow", "pyarrow").timestamp("us"))
        return table.set_column(table.num_columns - 1, "updated_at", at)

    def load(self, prepared: Any) -> None:
        self._db.register("incoming", prepared)
        self._db.execute("INSERT INTO t SELECT * FROM incoming")

    def upsert(self, prepared: Any) -> None:
        self._db.register("incoming", prepared)
        self._db.execute(UPSERT)

    def settle(self) -> None:
        self._db.execute("CHECKPOINT")

    def lookup(self, key: str) -> Fields | None:
        row = self._db.execute(f"EXECUTE one('{key}')").fetchone()
        return (row[0], row[1], row[2], row[3].replace(tzinfo=UTC)) if row else None

    def scans(self) -> Mapping[str, Callable[[], Months]]:
        return {"SQL": self._scan}

    def _scan(self) -> Months:
        rows = self._db.execute(SCAN.format("t")).fetchall()
        return {f"{month:%Y-%m}": (count, int(total)) for month, count, total in rows}

    def close(self) -> None:
        self._db.close()
