"""Tables of format version 3, written and read by DuckDB and PyIceberg: row lineage, deletion vectors, defaults."""

from __future__ import annotations

import json
import time
from contextlib import closing
from datetime import timedelta
from urllib.request import Request, urlopen

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestampNanoType

import limpet
from clients.conftest import Served
from clients.ducks import attached
from limpet.app.query import fleet_sql
from limpet.errors import Unsupported
from limpet.service.client import ServiceWriter

V3 = {"format-version": "3"}


@pytest.fixture
def with_keys(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in served.place.env.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("with_keys")
def test_duckdb_writes_rows_deletion_vectors_and_defaults(served: Served, catalog: RestCatalog, namespace: str) -> None:
    with closing(attached(served)) as duck:
        duck.execute(f"USE c.{namespace}")
        duck.execute("CREATE TABLE t (id BIGINT, city VARCHAR) WITH ('format-version' = '3')")
        duck.execute("INSERT INTO t SELECT range, 'city ' || range FROM range(10)")
        duck.execute("DELETE FROM t WHERE id IN (2, 3)")
        duck.execute("UPDATE t SET city = 'Bodø' WHERE id = 4")
        duck.execute("ALTER TABLE t ADD COLUMN k INTEGER DEFAULT 7")
        wanted = duck.execute("FROM t ORDER BY id").fetchall()
    assert wanted[2:4] == [(4, "Bodø", 7), (5, "city 5", 7)]
    table = catalog.load_table((namespace, "t"))
    assert table.metadata.format_version == 3
    added = [(each.first_row_id, each.added_rows) for each in table.metadata.snapshots]
    assert added == [(0, 10), (10, 0), (10, 1)]
    assert table.metadata.next_row_id == 11
    assert {each["file_format"] for each in table.inspect.delete_files().to_pylist()} == {"PUFFIN"}
    assert [tuple(row.values()) for row in table.scan().to_arrow().sort_by("id").to_pylist()] == wanted
    found = fleet_sql(limpet.open(served.place.url, read_only=True), f"from tables.{namespace}.t order by id")
    assert [*found] == wanted


def test_duckdb_reads_back_the_types_that_pyiceberg_lacks(served: Served, namespace: str) -> None:
    with closing(attached(served)) as duck:
        duck.execute(f"USE c.{namespace}")
        duck.execute("CREATE TABLE t (id BIGINT, doc VARIANT, ts TIMESTAMP_NS) WITH ('format-version' = '3')")
    with closing(attached(served)) as other:
        found = other.execute(f"DESCRIBE c.{namespace}.t").fetchall()
    assert [(row[0], row[1]) for row in found] == [("id", "BIGINT"), ("doc", "VARIANT"), ("ts", "TIMESTAMP_NS")]


def test_pyiceberg_creates_and_evolves_a_table(served: Served, catalog: RestCatalog, namespace: str) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestampNanoType()))
    table = catalog.create_table((namespace, "t"), schema, properties=V3)
    assert (table.metadata.format_version, table.metadata.next_row_id) == (3, 0)
    stale = catalog.load_table((namespace, "t"))
    with table.update_schema() as update:
        update.add_column("city", StringType(), default_value="Oslo")
    with table.transaction() as change:
        change.set_properties(owner="me")
    with pytest.raises(CommitFailedException), stale.update_schema() as update:
        update.add_column("n", LongType())
    found = catalog.load_table((namespace, "t"))
    assert found.schema().find_field("city").initial_default == "Oslo"
    assert found.properties["owner"] == "me"
    with closing(attached(served)) as duck:
        duck.execute(f"INSERT INTO c.{namespace}.t (id) VALUES (1)")
        assert duck.execute(f"SELECT id, city FROM c.{namespace}.t").fetchall() == [(1, "Oslo")]
    rows = catalog.load_table((namespace, "t")).scan(selected_fields=("id", "city")).to_arrow()
    assert rows == pa.table({"id": [1], "city": ["Oslo"]}, schema=rows.schema)


def test_a_table_of_version_2_is_upgraded(served: Served, catalog: RestCatalog, namespace: str) -> None:
    """Neither PyIceberg nor DuckDB can ask for it; Spark does as here."""
    table = catalog.create_table((namespace, "t"), Schema(NestedField(1, "id", LongType())))
    table.append(pa.table({"id": [1, 2]}))
    upgrade = {"updates": [{"action": "upgrade-format-version", "format-version": 3}]}
    url = f"{served.url}/v1/namespaces/{namespace}/tables/t"
    with urlopen(Request(url, json.dumps(upgrade).encode(), {"Content-Type": "application/json"})) as answer:
        assert json.load(answer)["metadata"]["next-row-id"] == 0
    with closing(attached(served)) as duck:
        duck.execute(f"INSERT INTO c.{namespace}.t VALUES (3)")
        duck.execute(f"DELETE FROM c.{namespace}.t WHERE id = 1")
        assert duck.execute(f"SELECT id FROM c.{namespace}.t ORDER BY id").fetchall() == [(2,), (3,)]
    assert sorted(catalog.load_table((namespace, "t")).scan().to_arrow()["id"].to_pylist()) == [2, 3]
    assert catalog.load_table((namespace, "t")).metadata.format_version == 3


@pytest.mark.usefixtures("with_keys")
def test_maintenance_keeps_deletion_vectors_and_compaction_is_refused(
    served: Served, catalog: RestCatalog, namespace: str
) -> None:
    """A rewrite would have to carry the ids of rows along, which PyIceberg's writer of manifests cannot."""
    with closing(attached(served)) as duck:
        duck.execute(f"CREATE TABLE c.{namespace}.t (id BIGINT) WITH ('format-version' = '3')")
        for n in range(3):
            duck.execute(f"INSERT INTO c.{namespace}.t SELECT {n} * 10 + range FROM range(10)")
        duck.execute(f"DELETE FROM c.{namespace}.t WHERE id IN (3, 13)")
        fleet = limpet.open(served.place.url)
        table = fleet.maintain((namespace,), "t", through=ServiceWriter(served.url))
        with pytest.raises(Unsupported, match="format version 3"):
            table.compact()
        while table.expire(max_age=timedelta(0)).kept > 1:
            time.sleep(0.2)  # S3 tells the time in whole seconds
        while not (gone := table.remove_orphans(grace=timedelta(0), quiesced=True)).files:
            time.sleep(0.2)
        assert not any(name.endswith((".parquet", ".puffin")) for name in gone.files)
        assert duck.execute(f"SELECT count(*), sum(id) FROM c.{namespace}.t").fetchall() == [(28, 435 - 16)]
    found = catalog.load_table((namespace, "t"))
    assert found.scan().to_arrow().num_rows == 28
    assert found.metadata.next_row_id == 30


@pytest.mark.usefixtures("with_keys")
def test_an_index_is_not_published_to_a_table_of_version_3(served: Served, namespace: str) -> None:
    fleet = limpet.open(served.place.url)
    index = fleet.index(f"recs-{namespace}", {"fields": [{"name": "id", "type": "string"}]}, key="id")
    index.put({"id": "r1"})
    where, through = ((namespace,), "t"), ServiceWriter(served.url)
    fleet.publish_index(index.name, where, through=through)
    upgrade = {"requirements": [], "updates": [{"action": "upgrade-format-version", "format-version": 3}]}
    through.commit_table(*where, upgrade)
    index.put({"id": "r2"})
    with pytest.raises(Unsupported, match="format version 3"):
        fleet.publish_index(index.name, where, through=through)
