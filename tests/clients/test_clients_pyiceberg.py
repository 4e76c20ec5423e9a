"""PyIceberg against the served catalog. What one client did, another one that starts afterwards sees."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import SetLocationUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from pyiceberg.view.metadata import SQLViewRepresentation, ViewVersion

from clients.conftest import Served

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "city", StringType(), required=False),
    identifier_field_ids=[1],
)
ARROW = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string())])
CLIENTS, APPENDS = 8, 4
PATIENT = {"commit.retry.num-retries": "100", "commit.retry.min-wait-ms": "5", "commit.retry.max-wait-ms": "200"}
LONG = "x" * 255
ODD_NAMES = ["a/b", "a.b", ".hidden", "...", "a b", "a%2Fb", "a%b", "c+d", "a?b#c", "Ærø-東京-🐚", "a\\b", "~x", LONG]


def rows(*pairs: tuple[int, str | None]) -> pa.Table:
    return pa.Table.from_pylist([{"id": id_, "city": city} for id_, city in pairs], schema=ARROW)


def seen(served: Served, table: Table, **scan: Any) -> list[tuple[Any, ...]]:
    """The rows as a new client finds them."""
    with served.catalog() as client:
        found = client.load_table(table.name()).scan(**scan).to_arrow()
    return sorted(tuple(row.values()) for row in found.to_pylist())


def test_rows_are_appended_overwritten_deleted_and_upserted(
    served: Served, catalog: RestCatalog, namespace: str
) -> None:
    table = catalog.create_table((namespace, "t"), SCHEMA)
    assert seen(served, table) == []
    table.append(rows((1, "Oslo"), (2, "Bergen")))
    table.append(rows((3, "Bodø")))
    assert seen(served, table) == [(1, "Oslo"), (2, "Bergen"), (3, "Bodø")]
    table.overwrite(rows((2, "Tromsø")), overwrite_filter="id == 2")
    assert seen(served, table, row_filter="id > 1") == [(2, "Tromsø"), (3, "Bodø")]
    table.delete("city == 'Oslo'")
    assert seen(served, table) == [(2, "Tromsø"), (3, "Bodø")]
    done = table.upsert(rows((3, "Narvik"), (4, None)))
    assert (done.rows_updated, done.rows_inserted) == (1, 1)
    assert seen(served, table) == [(2, "Tromsø"), (3, "Narvik"), (4, None)]
    table.overwrite(rows((9, "Alta")))
    assert seen(served, table) == [(9, "Alta")]


def test_a_schema_evolves(served: Served, catalog: RestCatalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "t"), pa.schema([("id", pa.int32()), ("city", pa.string())]))
    table.append(pa.table({"id": pa.array([1], pa.int32()), "city": ["Oslo"]}))
    with table.update_schema() as update:
        update.add_column("mayor", StringType(), doc="since the last vote")
        update.update_column("id", LongType())
        update.move_first("city")
        update.rename_column("city", "town")
    table.append(pa.table({"town": ["Bergen"], "id": pa.array([1 << 40], pa.int64()), "mayor": ["Marit"]}))
    assert seen(served, table) == [("Bergen", 1 << 40, "Marit"), ("Oslo", 1, None)]
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("mayor")
    with table.transaction() as transaction:
        with transaction.update_schema() as update:
            update.union_by_name(pa.schema([("town", pa.string()), ("id", pa.int64()), ("zip", pa.string())]))
        transaction.append(pa.table({"town": ["Moss"], "id": pa.array([3], pa.int64()), "zip": ["1500"]}))
    assert seen(served, table) == [("Bergen", 1 << 40, None), ("Moss", 3, "1500"), ("Oslo", 1, None)]
    again = served.catalog().load_table(table.name())
    assert [field.field_id for field in again.schema().fields] == [2, 1, 4], "an id is never used twice"
    assert len(again.schemas()) == 4


def test_partitions_and_sort_order_evolve(served: Served, catalog: RestCatalog, namespace: str) -> None:
    by_city = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "city"))
    by_id = SortOrder(SortField(1, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST))
    table = catalog.create_table((namespace, "t"), SCHEMA, partition_spec=by_city, sort_order=by_id)
    table.append(rows((1, "Oslo"), (2, "Bergen")))
    with table.update_spec() as update:
        update.remove_field("city")
        update.add_identity("id")
    table.append(rows((3, "Oslo")))
    with table.update_sort_order() as order:
        order.asc("city", IdentityTransform(), NullOrder.NULLS_FIRST)
    assert seen(served, table, row_filter="city == 'Oslo'") == [(1, "Oslo"), (3, "Oslo")]
    again = served.catalog().load_table(table.name())
    assert [field.name for field in again.spec().fields] == ["id"]
    assert [field.source_id for field in again.sort_order().fields] == [2]
    assert len(again.specs()) == 2
    assert len([*again.scan().plan_files()]) == 3


def test_snapshots_are_read_rolled_back_and_expired(served: Served, catalog: RestCatalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "t"), SCHEMA)
    for n in range(4):
        table.append(rows((n, "Oslo")), snapshot_properties={"of": str(n)})
    first, second, third, fourth = (snapshot.snapshot_id for snapshot in table.snapshots())
    assert [snapshot.summary and snapshot.summary["of"] for snapshot in table.snapshots()] == ["0", "1", "2", "3"]
    assert seen(served, table, snapshot_id=second) == [(0, "Oslo"), (1, "Oslo")]
    table.manage_snapshots().rollback_to_snapshot(third).commit()
    assert len(seen(served, table)) == 3
    table.manage_snapshots().set_current_snapshot(fourth).commit()
    assert len(seen(served, table)) == 4
    table.maintenance.expire_snapshots().by_ids([first, second]).commit()
    again = served.catalog().load_table(table.name())
    assert [snapshot.snapshot_id for snapshot in again.snapshots()] == [third, fourth]
    assert len(seen(served, table)) == 4


def test_tags_and_branches(served: Served, catalog: RestCatalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "t"), SCHEMA)
    table.append(rows((1, "Oslo")))
    first = table.current_snapshot()
    assert first is not None
    table.manage_snapshots().create_tag(first.snapshot_id, "v1").create_branch(first.snapshot_id, "audit").commit()
    table.append(rows((2, "Bergen")))
    table.append(rows((3, "Moss")), branch="audit")
    again = served.catalog().load_table(table.name())
    assert {*again.refs()} == {"main", "v1", "audit"}

    def at(ref: str) -> list[int]:
        return sorted(again.scan().use_ref(ref).to_arrow()["id"].to_pylist())

    assert (at("v1"), at("main"), at("audit")) == ([1], [1, 2], [1, 3])
    table.manage_snapshots().remove_tag("v1").remove_branch("audit").commit()
    assert {*served.catalog().load_table(table.name()).refs()} == {"main"}


def test_properties_and_statistics(served: Served, catalog: RestCatalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "t"), SCHEMA, properties={"owner": "me", "gone": "soon"})
    with table.transaction() as transaction:
        transaction.set_properties({"owner": "you", "new": "ß"})
        transaction.remove_properties("gone")
    table.append(rows((1, "Oslo")))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    blob = {
        "type": "apache-datasketches-theta-v1",
        "snapshot-id": snapshot.snapshot_id,
        "sequence-number": 1,
        "fields": [1],
        "properties": {},
    }
    statistics = StatisticsFile.model_validate(
        {
            "snapshot-id": snapshot.snapshot_id,
            "statistics-path": f"{table.location()}/metadata/s.puffin",
            "file-size-in-bytes": 1,
            "file-footer-size-in-bytes": 1,
            "blob-metadata": [blob],
        }
    )
    with table.update_statistics() as update:
        update.set_statistics(statistics)
    again = served.catalog().load_table(table.name())
    assert again.properties == {"owner": "you", "new": "ß", "write.parquet.compression-codec": "zstd"}
    assert again.metadata.statistics == [statistics]


def test_tables_are_renamed_dropped_and_registered(served: Served, catalog: RestCatalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "t"), SCHEMA)
    table.append(rows((1, "Oslo")))
    catalog.create_namespace((namespace, "deeper"))
    moved = catalog.rename_table((namespace, "t"), (namespace, "deeper", "u"))
    assert moved.metadata_location == table.metadata_location
    assert not catalog.table_exists((namespace, "t"))
    catalog.create_table((namespace, "t"), SCHEMA)
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table((namespace, "t"), (namespace, "deeper", "u"))
    moved.append(rows((2, "Bergen")))
    catalog.drop_table(moved.name())
    with pytest.raises(NoSuchTableError):
        catalog.load_table(moved.name())
    back = catalog.register_table((namespace, "back"), moved.metadata_location)
    assert back.metadata.table_uuid == table.metadata.table_uuid
    assert seen(served, back) == [(1, "Oslo"), (2, "Bergen")]
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_table((namespace, "back"), table.metadata_location)
    older = catalog.register_table((namespace, "back"), table.metadata_location, overwrite=True)
    assert seen(served, older) == [(1, "Oslo")]


def test_a_purge_removes_the_files_of_that_table_only(served: Served, catalog: RestCatalog, namespace: str) -> None:
    gone, kept = (catalog.create_table((namespace, name), SCHEMA) for name in ("t", "t2"))
    for table in (gone, kept):
        table.append(rows((1, "Oslo")))
    files = [task.file.file_path for task in gone.scan().plan_files()]
    catalog.purge_table(gone.name())
    assert not catalog.table_exists(gone.name())
    assert [gone.io.new_input(path).exists() for path in (*files, gone.metadata_location)] == [False, False]
    assert seen(served, kept) == [(1, "Oslo")]
    catalog.create_table(gone.name(), SCHEMA).append(rows((2, "Bergen")))
    assert seen(served, gone) == [(2, "Bergen")]


def test_namespaces_nest_and_have_properties(served: Served, catalog: RestCatalog, namespace: str) -> None:
    catalog.create_namespace((namespace, "a"), {"owner": "me", "gone": "soon"})
    catalog.create_namespace((namespace, "a", "b"))
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace((namespace, "a"))
    with pytest.raises(RESTError, match="NoSuchNamespaceException"):
        catalog.create_namespace((namespace, "none", "b"))
    assert catalog.list_namespaces(namespace) == [(namespace, "a")]
    assert catalog.list_namespaces((namespace, "a")) == [(namespace, "a", "b")]
    assert (namespace,) in catalog.list_namespaces()
    done = catalog.update_namespace_properties((namespace, "a"), {"gone", "never"}, {"owner": "you"})
    assert (done.removed, done.updated, done.missing) == (["gone"], ["owner"], ["never"])
    assert served.catalog().load_namespace_properties((namespace, "a"))["owner"] == "you"
    table = catalog.create_table((namespace, "a", "b", "t"), SCHEMA)
    for full in ((namespace, "a"), (namespace, "a", "b")):
        with pytest.raises(NamespaceNotEmptyError):
            catalog.drop_namespace(full)
    catalog.drop_table(table.name())
    catalog.drop_namespace((namespace, "a", "b"))
    catalog.drop_namespace((namespace, "a"))
    assert not catalog.namespace_exists((namespace, "a"))
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables((namespace, "a"))


def test_lists_come_in_pages(served: Served, catalog: RestCatalog, namespace: str) -> None:
    names = [f"t{n}" for n in range(5)]
    for name in names:
        catalog.create_table((namespace, name), SCHEMA)
        catalog.create_namespace((namespace, name))
    paged = served.catalog(**{"rest-page-size": "2"})
    assert paged.list_tables(namespace) == [(namespace, name) for name in names]
    assert paged.list_namespaces(namespace) == [(namespace, name) for name in names]


def test_views(served: Served, catalog: RestCatalog, namespace: str) -> None:
    sql = SQLViewRepresentation(type="sql", sql="select 1 as id", dialect="duckdb")
    version = ViewVersion.model_validate(
        {"version-id": 1, "schema-id": 0, "representations": [sql.model_dump()], "default-namespace": [namespace]}
    )
    view = catalog.create_view((namespace, "v"), SCHEMA, version, properties={"owner": "me"})
    catalog.create_table((namespace, "t"), SCHEMA)
    again = served.catalog().load_view((namespace, "v"))
    assert again == view
    assert again.sql_for("duckdb") == sql
    assert again.properties["owner"] == "me"
    assert catalog.list_views(namespace) == [(namespace, "v")]
    assert catalog.list_tables(namespace) == [(namespace, "t")]
    assert (catalog.view_exists((namespace, "v")), catalog.view_exists((namespace, "t"))) == (True, False)
    assert not catalog.table_exists((namespace, "v"))
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table((namespace, "v"), SCHEMA)
    catalog.drop_view((namespace, "v"))
    with pytest.raises(NoSuchViewError):
        catalog.drop_view((namespace, "v"))


def test_a_staged_table_is_there_only_after_its_commit(served: Served, catalog: RestCatalog, namespace: str) -> None:
    staged = [catalog.create_table_transaction((namespace, "t"), SCHEMA) for _ in range(2)]
    with staged[0].update_schema() as update:
        update.add_column("zip", StringType())
    staged[0].set_properties(owner="me")
    assert not catalog.table_exists((namespace, "t"))
    assert catalog.list_tables(namespace) == []
    table = staged[0].commit_transaction()
    table.append(
        pa.table({"id": [1], "city": ["Oslo"], "zip": ["0150"]}, schema=ARROW.append(pa.field("zip", pa.string())))
    )
    with pytest.raises(CommitFailedException):
        staged[1].commit_transaction()
    assert seen(served, table) == [(1, "Oslo", "0150")]
    assert served.catalog().load_table(table.name()).properties["owner"] == "me"


def test_a_commit_on_an_old_table_is_refused_and_leaves_nothing(
    served: Served, catalog: RestCatalog, namespace: str
) -> None:
    table = catalog.create_table((namespace, "t"), SCHEMA)
    late = catalog.load_table(table.name())
    with table.update_schema() as update:
        update.add_column("zip", StringType())
    newest = served.catalog().load_table(table.name()).metadata_location
    with pytest.raises(CommitFailedException), late.update_schema() as update:
        update.add_column("street", StringType())
    assert served.catalog().load_table(table.name()).metadata_location == newest


def test_appends_at_the_same_time_are_all_there_once(served: Served, catalog: RestCatalog, namespace: str) -> None:
    catalog.create_table((namespace, "t"), SCHEMA, properties=PATIENT)

    def client(number: int) -> None:
        with served.catalog() as mine:
            table = mine.load_table((namespace, "t"))
            for n in range(APPENDS):
                table.append(rows((number * 1000 + n, "Oslo")))

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert [*pool.map(client, range(CLIENTS))] == [None] * CLIENTS
    table = catalog.load_table((namespace, "t"))
    assert [id_ for id_, _ in seen(served, table)] == [c * 1000 + n for c in range(CLIENTS) for n in range(APPENDS)]
    assert len(table.history()) == CLIENTS * APPENDS
    assert table.metadata.last_sequence_number == CLIENTS * APPENDS


def test_creates_at_the_same_time_have_one_winner(served: Served, namespace: str) -> None:
    def client(_: int) -> bool:
        with served.catalog() as mine:
            try:
                mine.create_table((namespace, "t"), SCHEMA)
            except TableAlreadyExistsError:
                return False
        return True

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert sum(pool.map(client, range(CLIENTS))) == 1


def test_odd_names(served: Served, catalog: RestCatalog, namespace: str) -> None:
    for number, name in enumerate(ODD_NAMES):
        catalog.create_namespace((namespace, name))
        table = catalog.create_table((namespace, name, name), SCHEMA)
        table.append(rows((number, name[:9])))
    assert {*catalog.list_namespaces(namespace)} == {(namespace, name) for name in ODD_NAMES}
    for number, name in enumerate(ODD_NAMES):
        assert catalog.list_tables((namespace, name)) == [(namespace, name, name)]
        table = served.catalog().load_table((namespace, name, name))
        assert seen(served, table) == [(number, name[:9])]
    for name in ODD_NAMES:
        catalog.rename_table((namespace, name, name), (namespace, f"{name[:200]} too"))
        catalog.drop_namespace((namespace, name))
    assert {name for _, name in catalog.list_tables(namespace)} == {f"{name[:200]} too" for name in ODD_NAMES}


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a\nb", "a\x00b", "a\x1fb", "x" * 256],
    ids=["empty", "dot", "dots", "newline", "nul", "separator", "too-long"],
)
def test_names_that_are_refused(catalog: RestCatalog, namespace: str, name: str) -> None:
    with pytest.raises(BadRequestError):
        catalog.create_table((namespace, name), SCHEMA)
    with pytest.raises(BadRequestError):
        catalog.create_namespace((namespace, name))
    assert catalog.list_tables(namespace) == []
    assert catalog.list_namespaces(namespace) == []


def test_locations_outside_the_warehouse_are_refused(catalog: RestCatalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "t"), SCHEMA)
    inside = table.location()
    warehouse = inside[: inside.index("/warehouse/") + len("/warehouse")]
    outside = [
        "s3://elsewhere/t",
        "file:///etc/t",
        f"{warehouse}-evil/t",
        f"{warehouse}/../ledger/t",
        f"{warehouse}/%2e%2e/ledger/t",
        "https://127.0.0.1/t",
        "/etc/t",
    ]
    for place in outside:
        with pytest.raises(BadRequestError):
            catalog.create_table((namespace, f"u{uuid4().hex}"), SCHEMA, location=place)
        with pytest.raises(BadRequestError):
            catalog.commit_table(table, (), (SetLocationUpdate(location=place),))
        with pytest.raises(BadRequestError):
            catalog.register_table((namespace, "r"), f"{place}/metadata/00000-x.metadata.json")
        for key in ("write.data.path", "write.metadata.path", "write.object-storage.path"):
            with pytest.raises(BadRequestError):
                catalog.create_table((namespace, "w"), SCHEMA, properties={key: place})
            with pytest.raises(BadRequestError), table.transaction() as transaction:
                transaction.set_properties({key: place})
    assert catalog.list_tables(namespace) == [(namespace, "t")]
    assert catalog.load_table(table.name()).metadata_location == table.metadata_location
    own = catalog.create_table((namespace, "own"), SCHEMA, location=f"{warehouse}/chosen-{uuid4().hex}")
    own.append(rows((1, "Oslo")))
    assert own.scan().count() == 1
