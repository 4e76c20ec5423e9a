"""LanceDB: `merge_insert`, a BTREE index on the key, `optimize` after each write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from bench.indexes.api import Index, Options, Place, months, needs
from bench.indexes.records import COLUMNS, Fields, Months

__all__ = ["NEEDS", "connect"]

NEEDS: Mapping[str, str] = {"lancedb": "lancedb", "pyarrow": "pyarrow"}


def connect(place: Place, options: Options) -> Index:
    """There are no options."""
    return _Lance(place)


class _Lance(Index):
    def __init__(self, place: Place) -> None:
        self._db = needs("lancedb", "lancedb").connect(place.folder / "lance")
        self._table: Any = None if place.fresh else self._db.open_table("t")

    def load(self, prepared: Any) -> None:
        self._table = self._db.create_table("t", prepared)
        self._table.create_scalar_index("domain", index_type="BTREE")

    def upsert(self, prepared: Any) -> None:
        newer = self._table.merge_insert("domain").when_matched_update_all(
            where="source.updated_at >= target.updated_at"
        )
        newer.when_not_matched_insert_all().execute(prepared)

    def settle(self) -> None:
        self._table.optimize(cleanup_older_than=timedelta(0), delete_unverified=True)

    def lookup(self, key: str) -> Fields | None:
        found = self._table.search().where(f"domain = '{key}'").limit(1).to_arrow().to_pylist()
        return (*(found[0][name] for name in COLUMNS),) if found else None

    def scans(self) -> Mapping[str, Callable[[], Months]]:
        return {"Arrow": self._scan}

    def _scan(self) -> Months:
        return months(self._table.search().select(["version", "updated_at"]).limit(None).to_arrow())
