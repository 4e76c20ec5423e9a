"""DuckDB's iceberg extension against the served catalog, alone and beside PyIceberg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.rest import RestCatalog

from clients.conftest import Served
from clients.ducks import attached


@pytest.fixture
def duck(served: Served, namespace: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection whose current schema is the test's namespace."""
    with closing(attached(served)) as connection:
        connection.execute(f"USE c.{namespace}")
        yield connection


def ask(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    return connection.execute(sql).fetchall()


def test_schemas_and_tables_come_and_go(served: Served, catalog: RestCatalog, namespace: str) -> None:
    with closing(attached(served)) as duck:
        duck.execute(f"CREATE SCHEMA c.{namespace}_duck")
        duck.execute(f"CREATE TABLE c.{namespace}_duck.t (id BIGINT, city VARCHAR)")
        assert (f"{namespace}_duck",) in catalog.list_namespaces()
        assert catalog.list_tables(f"{namespace}_duck") == [(f"{namespace}_duck", "t")]
        listed = "SELECT table_name FROM duckdb_tables() WHERE schema_name = '{}'"
        assert ask(duck, listed.format(f"{namespace}_duck")) == [("t",)]
        with pytest.raises(duckdb.Error, match="already exists"):
            duck.execute(f"CREATE TABLE c.{namespace}_duck.t (id BIGINT)")
        duck.execute(f"CREATE TABLE IF NOT EXISTS c.{namespace}_duck.t (id BIGINT)")
        duck.execute(f"DROP TABLE c.{namespace}_duck.t")
        duck.execute(f"DROP SCHEMA c.{namespace}_duck")
    assert not catalog.namespace_exists(f"{namespace}_duck")


def test_rows_are_inserted_updated_and_deleted(
    served: Served, catalog: RestCatalog, namespace: str, duck: duckdb.DuckDBPyConnection
) -> None:
    duck.execute("CREATE TABLE t (id BIGINT, city VARCHAR)")
    duck.execute("INSERT INTO t VALUES (1, 'Oslo'), (2, 'Bergen'), (3, 'Bodø')")
    duck.execute("CREATE TABLE u AS SELECT id * 10 AS id, city FROM t WHERE id < 3")
    assert ask(duck, "FROM u ORDER BY id") == [(10, "Oslo"), (20, "Bergen")]
    duck.execute("UPDATE t SET city = 'Tromsø' WHERE id = 2")
    duck.execute("DELETE FROM t WHERE id = 1")
    with closing(attached(served)) as other:
        assert ask(other, f"FROM c.{namespace}.t ORDER BY id") == [(2, "Tromsø"), (3, "Bodø")]
    found = catalog.load_table((namespace, "t")).scan().to_arrow().sort_by("id")
    assert found.to_pydict() == {"id": [2, 3], "city": ["Tromsø", "Bodø"]}


def test_two_tables_change_together_or_not_at_all(
    served: Served, catalog: RestCatalog, namespace: str, duck: duckdb.DuckDBPyConnection
) -> None:
    def both() -> list[tuple[Any, ...]]:
        with closing(attached(served)) as other:
            return [ask(other, f"SELECT sum(balance) FROM c.{namespace}.{name}")[0] for name in ("a", "b")]

    for name in ("a", "b"):
        duck.execute(f"CREATE TABLE {name} (balance BIGINT)")
        duck.execute(f"INSERT INTO {name} VALUES (100)")
    duck.execute("BEGIN")
    duck.execute("INSERT INTO a VALUES (-30)")
    duck.execute("INSERT INTO b VALUES (30)")
    assert both() == [(100,), (100,)]
    duck.execute("COMMIT")
    assert both() == [(70,), (130,)]
    duck.execute("BEGIN")
    duck.execute("INSERT INTO a VALUES (-70)")
    duck.execute("INSERT INTO b VALUES (70)")
    duck.execute("ROLLBACK")
    assert both() == [(70,), (130,)]
    duck.execute("BEGIN")
    duck.execute("INSERT INTO a VALUES (-1)")
    duck.execute("INSERT INTO b VALUES (1)")
    catalog.load_table((namespace, "b")).append(pa.table({"balance": [1000]}))
    with pytest.raises(duckdb.Error):
        duck.execute("COMMIT")
    assert both() == [(70,), (1130,)]


def test_each_reads_what_the_other_wrote_now_and_then(
    catalog: RestCatalog, namespace: str, duck: duckdb.DuckDBPyConnection
) -> None:
    table = catalog.create_table((namespace, "t"), pa.schema([("id", pa.int64()), ("city", pa.string())]))
    table.append(pa.table({"id": [1], "city": ["Oslo"]}))
    first = table.current_snapshot()
    assert first is not None
    duck.execute("INSERT INTO t VALUES (2, 'Bergen')")
    table.refresh()
    with table.update_schema() as update:
        update.rename_column("city", "town")
    table.append(pa.table({"id": [3], "town": ["Moss"]}))
    assert ask(duck, "SELECT id, town FROM t ORDER BY id") == [(1, "Oslo"), (2, "Bergen"), (3, "Moss")]
    assert table.scan().to_arrow().sort_by("id")["town"].to_pylist() == ["Oslo", "Bergen", "Moss"]
    assert ask(duck, f"SELECT id FROM t AT (VERSION => {first.snapshot_id})") == [(1,)]
    assert table.scan(snapshot_id=first.snapshot_id).count() == 1


def test_what_is_not_there_is_said_to_be_so(namespace: str, duck: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(duckdb.CatalogException, match="does not exist"):
        duck.execute("FROM no_such_table")
    with pytest.raises(duckdb.Error):
        duck.execute(f"CREATE TABLE c.{namespace}_none.t (id BIGINT)")
