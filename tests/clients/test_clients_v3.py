"""Tables of format version 3, written and read by DuckDB and PyIceberg: row lineage, deletion vectors, defaults."""

from __future__ import annotations

import json
import random
import time
from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestampNanoType

import limpet
from catalog.test_catalog_v3 import FIELDS, KEY, ORDER, SPEC, WIDE
from clients.conftest import Served
from clients.ducks import attached
from limpet.app.query import fleet_sql
from limpet.catalog.maintain.tables import TableMaintenance
from limpet.kernel.errors import Unsupported
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


LINEAGE = "SELECT *, _row_id, _last_updated_sequence_number FROM c.{}.t ORDER BY id"


def maintained(served: Served, namespace: str) -> TableMaintenance:
    return limpet.open(served.place.url).maintain((namespace,), "t", through=ServiceWriter(served.url))


def lineage(served: Served, namespace: str) -> list[tuple[Any, ...]]:
    """All rows with their ids and the number of the commit that changed them last, as DuckDB sees them."""
    with closing(attached(served)) as duck:
        return duck.execute(LINEAGE.format(namespace)).fetchall()


def spans(catalog: RestCatalog, namespace: str) -> list[tuple[int, int]]:
    """The row ids of each snapshot; they never overlap."""
    found = catalog.load_table((namespace, "t")).metadata
    ids = [(each.first_row_id or 0, (each.first_row_id or 0) + (each.added_rows or 0)) for each in found.snapshots]
    assert all(end <= start for (_, end), (start, _) in pairwise(ids))
    assert found.next_row_id == ids[-1][1]
    return ids


@pytest.mark.usefixtures("with_keys")
def test_a_compaction_keeps_row_ids_and_applies_deletion_vectors(
    served: Served, catalog: RestCatalog, namespace: str
) -> None:
    """Of rows from many files, twice: the second time the ids are read from the columns of the first new file."""
    with closing(attached(served)) as duck:
        duck.execute(f"USE c.{namespace}")
        duck.execute("CREATE TABLE t (id BIGINT, ts TIMESTAMP_NS, city VARCHAR) WITH ('format-version' = '3')")
        for n in range(4):
            rows = f"SELECT {n} * 10 + range, make_timestamp_ns(1700000000000000001 + range), 'x' || range"
            duck.execute(f"INSERT INTO t {rows} FROM range(10)")
        duck.execute("DELETE FROM t WHERE id IN (3, 13, 14)")
        duck.execute("UPDATE t SET city = 'Bodø' WHERE id = 25")
        duck.execute("ALTER TABLE t ADD COLUMN k INTEGER DEFAULT 7")
    before, table = lineage(served, namespace), maintained(served, namespace)
    assert len({row[-2] for row in before}) == len(before) == 37
    assert {row[-1] for row in before} == {1, 2, 3, 4, 6}
    assert (table.compact(min_files=2).files, table.compact(min_files=2).files) == (5, 0)
    assert lineage(served, namespace) == before
    assert not catalog.load_table((namespace, "t")).inspect.delete_files().num_rows
    with closing(attached(served)) as duck:
        duck.execute(f"INSERT INTO c.{namespace}.t (id) VALUES (99)")
        duck.execute(f"DELETE FROM c.{namespace}.t WHERE id = 5")
    before = lineage(served, namespace)
    assert before[-1][-2] >= max(row[-2] for row in before)
    assert table.compact(min_files=2).files == 2
    assert lineage(served, namespace) == before
    with closing(attached(served)) as duck:
        found = duck.execute(f"SELECT id, epoch_ns(ts) FROM c.{namespace}.t WHERE id = 7").fetchall()
    assert found == [(7, 1_700_000_000_000_000_008)], "no nanosecond is lost"
    assert catalog.load_table((namespace, "t")).scan(selected_fields=("id",)).to_arrow().num_rows == 37
    spans(catalog, namespace)


@pytest.mark.usefixtures("with_keys")
def test_a_compaction_after_an_upgrade_gives_every_row_an_id(
    served: Served, catalog: RestCatalog, namespace: str
) -> None:
    """No snapshot of version 3 exists before: rows that are rewritten, and those of files that stay, get ids once."""
    table = catalog.create_table((namespace, "t"), Schema(NestedField(1, "id", LongType())))
    big = pa.table({"id": pa.array(random.Random(1).sample(range(1000, 1 << 40), 50_000))})
    for rows in (pa.table({"id": [1, 2]}), big, pa.table({"id": [3]}), pa.table({"id": [4]})):
        table.append(rows)
    upgrade = {"requirements": [], "updates": [{"action": "upgrade-format-version", "format-version": 3}]}
    ServiceWriter(served.url).commit_table((namespace,), "t", upgrade)
    ours = maintained(served, namespace)
    assert ours.compact(min_files=2, target_bytes=100_000).files == 3
    before = lineage(served, namespace)
    assert {row[-2] for row in before} == {*range(50_004)}
    assert [row[-1] for row in before[:4]] == [1, 1, 3, 4]
    with closing(attached(served)) as duck:
        duck.execute(f"INSERT INTO c.{namespace}.t VALUES (5)")
    before = lineage(served, namespace)
    assert ours.compact(min_files=2, target_bytes=100_000).files == 2, (
        "the manifest of the large file stays, and its ids"
    )
    assert lineage(served, namespace) == before
    assert ours.compact(min_files=2).files == 2
    assert lineage(served, namespace) == before
    spans(catalog, namespace)


@pytest.mark.usefixtures("with_keys")
def test_a_compaction_that_would_lose_something_is_refused(
    served: Served, catalog: RestCatalog, namespace: str
) -> None:
    with closing(attached(served)) as duck:
        duck.execute(f"CREATE TABLE c.{namespace}.t (id BIGINT, doc VARIANT) WITH ('format-version' = '3')")
    with pytest.raises(Unsupported, match="variant"):
        maintained(served, namespace).compact()
    catalog.drop_table((namespace, "t"))
    catalog.create_table((namespace, "t"), Schema(NestedField(1, "_row_id", LongType())), properties=V3)
    with pytest.raises(Unsupported, match="'_row_id', which limpet cannot rewrite"):
        maintained(served, namespace).compact()
    catalog.drop_table((namespace, "t"))
    catalog.create_table((namespace, "t"), Schema(NestedField(1, "id", LongType())), properties=V3)
    key = {"key-id": "k1", "encrypted-key-metadata": "AAEC"}
    secret = {"requirements": [], "updates": [{"action": "add-encryption-key", "encryption-key": key}]}
    ServiceWriter(served.url).commit_table((namespace,), "t", secret)
    with pytest.raises(Unsupported, match="is encrypted"):
        maintained(served, namespace).compact()


@pytest.mark.usefixtures("with_keys")
def test_expiry_and_orphans_keep_deletion_vectors(served: Served, catalog: RestCatalog, namespace: str) -> None:
    with closing(attached(served)) as duck:
        duck.execute(f"CREATE TABLE c.{namespace}.t (id BIGINT) WITH ('format-version' = '3')")
        for n in range(3):
            duck.execute(f"INSERT INTO c.{namespace}.t SELECT {n} * 10 + range FROM range(10)")
        duck.execute(f"DELETE FROM c.{namespace}.t WHERE id IN (3, 13)")
        table = maintained(served, namespace)
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
def test_an_index_is_published_to_a_table_of_version_3(served: Served, catalog: RestCatalog, namespace: str) -> None:
    """Rows of files that stay keep their ids; a record that is published again is a new row."""
    fleet = limpet.open(served.place.url)
    fields = {"fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "integer"}]}
    index = fleet.index(f"recs-{namespace}", fields, key="id")
    where, through = ((namespace,), "t"), ServiceWriter(served.url)
    index.put_many([{"id": f"r{n}", "n": n} for n in range(20)])
    fleet.publish_index(index.name, where, through=through)
    upgrade = {"requirements": [], "updates": [{"action": "upgrade-format-version", "format-version": 3}]}
    through.commit_table(*where, upgrade)
    index.put({"id": "r20", "n": 20})
    fleet.publish_index(index.name, where, through=through)
    before = {row[0]: row for row in lineage(served, namespace)}
    assert len({row[-2] for row in before.values()}) == 21
    index.put({"id": "r3", "n": -3})
    fleet.publish_index(index.name, where, through=through)
    after = {row[0]: row for row in lineage(served, namespace)}
    assert {key: row[1] for key, row in after.items()} == {key: row[1] for key, row in before.items()} | {"r3": -3}
    kept = [key for key in after if after[key] == before[key]]
    assert len({row[-2] for row in after.values()}) == 21
    assert len(kept) >= 15, "of 256 shards one has changed"
    spans(catalog, namespace)


def test_the_service_hands_on_what_was_sent(served: Served, namespace: str) -> None:
    """Every type, default values, transforms of several columns, keys, statistics: over HTTP, and registered."""

    def ask(path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"{served.url}/v1/namespaces/{namespace}/{path}"
        with urlopen(Request(url, data, {"Content-Type": "application/json"})) as answer:
            return json.load(answer)

    request = {"name": "t", "schema": WIDE, "partition-spec": SPEC, "write-order": ORDER, "properties": V3}
    made = ask("tables", request)["metadata"]
    assert made["schemas"][0]["fields"][:10] == FIELDS[:10]
    assert (made["partition-specs"], made["sort-orders"]) == ([SPEC], [ORDER])
    folder = f"{made['location']}/metadata"
    new = {
        "snapshot-id": 1,
        "sequence-number": 1,
        "timestamp-ms": made["last-updated-ms"],
        "manifest-list": f"{folder}/1.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
        "first-row-id": 0,
        "added-rows": 5,
        "key-id": "k1",
    }
    blob = {"type": "my-blob-v1", "snapshot-id": 1, "sequence-number": 1, "fields": [1], "properties": {"ndv": "5"}}
    stats = {
        "snapshot-id": 1,
        "statistics-path": f"{folder}/1.puffin",
        "file-size-in-bytes": 9,
        "file-footer-size-in-bytes": 3,
        "blob-metadata": [blob],
    }
    updates = [
        {"action": "add-encryption-key", "encryption-key": KEY},
        {"action": "add-snapshot", "snapshot": new},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1},
        {"action": "set-statistics", "snapshot-id": 1, "statistics": stats},
    ]
    done = ask("tables/t", {"requirements": [], "updates": updates})
    found = ask("tables/t")["metadata"]
    assert found == done["metadata"]
    assert (found["encryption-keys"], found["snapshots"], found["statistics"]) == ([KEY], [new], [stats])
    assert found["next-row-id"] == 5
    with urlopen(Request(f"{served.url}/v1/namespaces/{namespace}/tables/t", method="DELETE")) as gone:
        assert gone.status == 204
    again = ask("register", {"name": "r", "metadata-location": done["metadata-location"]})["metadata"]
    assert again == found
