"""PyIceberg's SqlCatalog on SQLite: the catalog in a file on this machine, table metadata in the warehouse."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from bench.catalogs.api import Client, Place, Threaded, needs
from bench.catalogs.peers import PyIcebergClient, count, metadata_files, properties_of, snapshots, spent
from bench.catalogs.work import NAMESPACE, table
from bench.catalogs.write import writer

__all__ = ["NEEDS", "connect"]

NEEDS: Mapping[str, str] = {"pyiceberg.catalog.sql": "pyiceberg[sql-sqlite]", "pyarrow": "pyarrow"}
NAME = "bench"
WAIT_S = 60
"""For so long a client waits for SQLite's lock; by default it gives up after 5 s."""


def connect(place: Place) -> Threaded:
    """Open it, or make it."""
    return _Sql(place)


class _Sql(Threaded):
    def __init__(self, place: Place) -> None:
        self._place = place
        self._file = place.folder / "catalog.db"
        self._near = self._open(0.0)

    def _open(self, delay_s: float) -> Any:
        sql = needs("pyiceberg.catalog.sql", NEEDS["pyiceberg.catalog.sql"])
        uri = f"sqlite:///{self._file}?timeout={WAIT_S}"
        return sql.SqlCatalog(NAME, uri=uri, **properties_of(self._place, delay_s))

    def fill(self, tables: int) -> None:
        """Rows as `create_table` writes them, all in one transaction."""
        self._near.create_namespace(NAMESPACE)
        with writer(self._place) as write:
            found = metadata_files(self._place, [table(number) for number in range(tables)], write)
        rows = [(NAME, NAMESPACE, name, location) for name, location in found.items()]
        with sqlite3.connect(self._file) as db:
            columns = "catalog_name, table_namespace, table_name, metadata_location"
            kinds = [each[1] for each in db.execute("PRAGMA table_info(iceberg_tables)")]
            more, value = (", iceberg_type", ", 'TABLE'") if "iceberg_type" in kinds else ("", "")
            db.executemany(f"INSERT INTO iceberg_tables ({columns}{more}) VALUES (?, ?, ?, ?{value})", rows)
        db.close()

    def client(self) -> Client:
        """A catalog of its own: SQLAlchemy's pool is too small for 64 threads."""
        return PyIcebergClient(self._open(self._place.delay_s), self._place.url)

    def spent(self) -> Mapping[str, float]:
        return spent()

    def count(self) -> int:
        return count(self._near)

    def snapshots(self, names: Sequence[str]) -> int:
        return snapshots(self._near, names)
