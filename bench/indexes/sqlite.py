"""SQLite: a table WITHOUT ROWID, its key the primary key."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from bench.indexes.api import Index, Options, Place
from bench.indexes.records import Fields, Months

__all__ = ["NEEDS", "connect"]

NEEDS: Mapping[str, str] = {}
CREATE = "CREATE TABLE t (domain TEXT PRIMARY KEY, company TEXT, version INTEGER, updated_at TEXT) WITHOUT ROWID"
UPSERT = (
    "INSERT INTO t VALUES (?, ?, ?, ?) ON CONFLICT (domain) DO UPDATE SET"
    " company = excluded.company, version = excluded.version, updated_at = excluded.updated_at"
    " WHERE excluded.updated_at >= t.updated_at"
)
SCAN = "SELECT substr(updated_at, 1, 7), count(*), sum(version) FROM t GROUP BY 1"


def connect(place: Place, options: Options) -> Index:
    """There are no options."""
    return _Sqlite(place)


class _Sqlite(Index):
    def __init__(self, place: Place) -> None:
        self._db = sqlite3.connect(place.folder / "index.db")
        if place.fresh:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(CREATE)
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA cache_size = -262144")

    def prepare(self, records: Sequence[Fields]) -> Any:
        # In the order of the table, which is much quicker to insert.
        return sorted((domain, company, version, at.isoformat()) for domain, company, version, at in records)

    def load(self, prepared: Any) -> None:
        with self._db:
            self._db.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", prepared)

    def upsert(self, prepared: Any) -> None:
        with self._db:
            self._db.executemany(UPSERT, prepared)

    def settle(self) -> None:
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def lookup(self, key: str) -> Fields | None:
        row = self._db.execute("SELECT * FROM t WHERE domain = ?", (key,)).fetchone()
        return (row[0], row[1], row[2], datetime.fromisoformat(row[3])) if row else None

    def scans(self) -> Mapping[str, Callable[[], Months]]:
        return {"SQL": lambda: {month: (count, total) for month, count, total in self._db.execute(SCAN)}}

    def close(self) -> None:
        self._db.close()
