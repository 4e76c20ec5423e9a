"""PyIceberg: `upsert` on an unpartitioned table, its catalog in SQLite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench.indexes.api import Index, Options, Place, months, needs
from bench.indexes.records import COLUMNS, Fields, Months

__all__ = ["NEEDS", "connect"]

NEEDS: Mapping[str, str] = {
    "pyiceberg.catalog.sql": "pyiceberg[sql-sqlite]",
    "pyiceberg.expressions": "pyiceberg",
    "pyarrow": "pyarrow",
}
ROW_GROUP = 16_384


def connect(place: Place, options: Options) -> Index:
    """There are no options."""
    return _Iceberg(place)


class _Iceberg(Index):
    def __init__(self, place: Place) -> None:
        sql = needs("pyiceberg.catalog.sql", NEEDS["pyiceberg.catalog.sql"])
        self._equal = needs("pyiceberg.expressions", "pyiceberg").EqualTo
        uri = f"sqlite:///{place.folder / 'catalog.db'}"
        self._catalog = sql.SqlCatalog("bench", uri=uri, warehouse=f"file://{place.folder / 'warehouse'}")
        self._table: Any = None if place.fresh else self._catalog.load_table("bench.t")

    def load(self, prepared: Any) -> None:
        self._catalog.create_namespace("bench")
        properties = {"write.parquet.row-group-limit": str(ROW_GROUP)}
        self._table = self._catalog.create_table("bench.t", prepared.schema, properties=properties)
        # In the order of its keys, so that the limits of the row groups show where a key can be.
        self._table.append(prepared.sort_by("domain"))

    def upsert(self, prepared: Any) -> None:
        self._table.upsert(prepared, join_cols=["domain"])

    def settle(self) -> None:
        return

    def lookup(self, key: str) -> Fields | None:
        found = self._table.scan(row_filter=self._equal("domain", key)).to_arrow().to_pylist()
        return (*(found[0][name] for name in COLUMNS),) if found else None

    def scans(self) -> Mapping[str, Callable[[], Months]]:
        return {"Arrow": self._scan}

    def _scan(self) -> Months:
        return months(self._table.scan(selected_fields=("version", "updated_at")).to_arrow())
