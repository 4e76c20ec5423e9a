"""Scans that the service plans: PyIceberg reads the same rows as with its own planner."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.scan_planning import PlanTableScanRequest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    UUIDType,
)
from pyroaring import BitMap

import limpet
from clients.conftest import Served
from clients.deletes import EQUALITY_LEFT, commit_deletes, puffin_deletes, with_equality_deletes
from clients.ducks import attached
from limpet.app.query import fleet_sql
from limpet.catalog import catalog as catalogs
from limpet.catalog.catalog import Catalog
from limpet.catalog.iceberg import avro, plan
from limpet.kernel.errors import Corrupt, Invalid, Missing, Unavailable, Unsupported
from limpet.service.client import ServiceWriter
from sim.deletes import sealed_vector
from support.servers.catalog import ask

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "city", StringType()), NestedField(3, "day", DateType())
)
SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "city"), PartitionField(3, 1001, IdentityTransform(), "day")
)
CITIES = ("Oslo", "Bergen", "Bodø")
FILTERS = ("city == 'Oslo'", "id > 20", "city in ('Bergen', 'Bodø') and id < 5", "day == '2024-01-02'", "id is null")


def rows(first: int, count: int) -> pa.Table:
    ids = [*range(first, first + count)]
    days = [date(2024, 1, 1 + id_ % 3) for id_ in ids]
    return pa.table({"id": ids, "city": [CITIES[id_ % 3] for id_ in ids], "day": days})


@pytest.fixture
def planned(served: Served) -> RestCatalog:
    """A client that asks the service for plans."""
    return served.catalog(**{"scan-planning-mode": "server"})


def test_a_planned_scan_reads_the_same_rows(
    served: Served, catalog: RestCatalog, planned: RestCatalog, namespace: str
) -> None:
    table = catalog.create_table((namespace, "t"), SCHEMA, partition_spec=SPEC)
    assert planned.load_table((namespace, "t")).scan().to_arrow().num_rows == 0
    table.append(rows(0, 30))
    old = table.current_snapshot()
    assert old is not None
    table.append(rows(30, 30))
    theirs = planned.load_table((namespace, "t"))
    for row_filter in (AlwaysTrue(), *FILTERS):
        ours = table.scan(row_filter=row_filter)
        found = theirs.scan(row_filter=row_filter)
        assert found.to_arrow().sort_by("id") == ours.to_arrow().sort_by("id"), row_filter
        assert found.count() == ours.count(), row_filter
        files = sorted(task.file.file_path for task in found.plan_files())
        assert files == sorted(task.file.file_path for task in ours.plan_files()), row_filter
    assert theirs.scan(snapshot_id=old.snapshot_id).to_arrow().num_rows == 30
    request = PlanTableScanRequest.model_validate({"stats-fields": ["id"]})
    for task in planned.plan_scan((namespace, "t"), request):
        assert {*task.file.value_counts} == {1}
        assert task.file.record_count == task.file.value_counts[1]


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_are_part_of_the_plan(served: Served, planned: RestCatalog, namespace: str, version: int) -> None:
    with closing(attached(served)) as duck:
        duck.execute(f"USE c.{namespace}")
        duck.execute(f"CREATE TABLE t (id BIGINT, city VARCHAR) WITH ('format-version' = '{version}')")
        duck.execute("INSERT INTO t SELECT range, 'city ' || range FROM range(10)")
        duck.execute("INSERT INTO t SELECT range, 'city ' || range FROM range(10, 20)")
        duck.execute("DELETE FROM t WHERE id IN (2, 3, 14)")
    scan = planned.load_table((namespace, "t")).scan()
    tasks = [*scan.plan_files()]
    assert len(tasks) == 2
    answer = ask(served.url, "POST", f"/v1/namespaces/{namespace}/tables/t/plan", {}).json
    first = sorted(task["data-file"].get("first-row-id", -1) for task in answer["file-scan-tasks"])
    assert first == ([0, 10] if version == 3 else [-1, -1]), "inherited from the manifests"
    if version == 3:
        assert [len(task.delete_files) for task in tasks] == [1, 1], "a deletion vector is for one file"
    assert sorted(scan.to_arrow()["id"].to_pylist()) == [id_ for id_ in range(20) if id_ not in (2, 3, 14)]


def test_deletion_vectors_in_one_puffin_file_are_told_apart(
    served: Served, catalog: RestCatalog, planned: RestCatalog, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark writes those of several data files into one. Position deletes that a vector replaces are not named."""
    with closing(attached(served)) as duck:
        duck.execute(f"USE c.{namespace}")
        duck.execute("CREATE TABLE t (id BIGINT) WITH ('format-version' = '3')")
        for n in range(4):
            duck.execute(f"INSERT INTO t SELECT range FROM range({10 * n}, {10 * n + 10})")
    table = catalog.load_table((namespace, "t"))
    urls = {task.file.file_path: [n, n + 1] for n, task in enumerate(table.scan().plan_files())}
    commit_deletes(table, ServiceWriter(served.url), 7, puffin_deletes(table, "gone", urls))
    with closing(attached(served)) as duck:
        left = duck.execute(f"SELECT id FROM c.{namespace}.t ORDER BY id").fetchall()
    assert len(left) == 32
    answer = ask(served.url, "POST", f"/v1/namespaces/{namespace}/tables/t/plan", {}).json
    deletes = answer["delete-files"]
    for task in answer["file-scan-tasks"]:
        [reference] = task["delete-file-references"]
        assert deletes[reference]["referenced-data-file"] == task["data-file"]["file-path"]
    assert len({(each["file-path"], each["content-offset"]) for each in deletes}) == 4
    assert len({each["file-path"] for each in deletes}) == 1
    found = planned.load_table((namespace, "t")).scan().to_arrow()["id"].to_pylist()
    assert [(id_,) for id_ in sorted(found)] == left
    for name, value in served.place.env.items():
        monkeypatch.setenv(name, value)
    query = f"select id from tables.{namespace}.t order by id"
    fleet = limpet.open(served.place.url)
    assert [*fleet_sql(fleet, query)] == left
    assert fleet.maintain([namespace], "t", through=ServiceWriter(served.url)).compact(min_files=2).files == 4
    assert [*fleet_sql(fleet, query)] == left


@pytest.mark.parametrize("served", ["directory"], indirect=True)
def test_a_query_does_not_unpack_a_vector_of_more_rows_than_the_file_has(
    served: Served, catalog: RestCatalog, namespace: str
) -> None:
    """A megabyte can name four billion rows, which PyIceberg would put into a list."""
    with closing(attached(served)) as duck:
        duck.execute(f"CREATE TABLE c.{namespace}.t (id BIGINT) WITH ('format-version' = '3')")
        duck.execute(f"INSERT INTO c.{namespace}.t SELECT range FROM range(10)")
    table = catalog.load_table((namespace, "t"))
    [task] = table.scan().plan_files()
    bitmap = BitMap()
    bitmap.add_range(0, 1 << 32)
    bitmap.run_optimize()
    blob = sealed_vector(bitmap.serialize())
    assert len(blob) < 2 << 20
    commit_deletes(table, ServiceWriter(served.url), 7, puffin_deletes(table, "bomb", {task.file.file_path: blob}))
    with pytest.raises(Corrupt, match="names rows that the file has not"):
        fleet_sql(limpet.open(served.place.url, read_only=True), f"select count(*) from tables.{namespace}.t")


def planned_rows(answer: dict[str, Any], table: Table) -> list[int]:
    """The ids of the rows that a client reads by a plan with equality deletes."""

    def read(url: str) -> pa.Table:
        with table.io.new_input(url).open() as stream:
            return pq.read_table(pa.BufferReader(stream.read()))

    found: list[int] = []
    for task in answer["file-scan-tasks"]:
        gone: set[int] = set()
        for reference in task.get("delete-file-references", ()):
            file = answer["delete-files"][reference]
            assert (file["content"], file["equality-ids"]) == ("equality-deletes", [1])
            gone |= {*read(file["file-path"])["id"].to_pylist()}
        found += [id_ for id_ in read(task["data-file"]["file-path"])["id"].to_pylist() if id_ not in gone]
    return sorted(found)


def test_equality_deletes_are_part_of_the_plan(
    served: Served, catalog: RestCatalog, planned: RestCatalog, namespace: str
) -> None:
    """They apply to older rows: of the same partition, or of all if the spec has no partition."""
    table = with_equality_deletes(catalog, ServiceWriter(served.url), namespace)
    path = f"/v1/namespaces/{namespace}/tables/t/plan"
    answer = ask(served.url, "POST", path, {}).json
    assert planned_rows(answer, table) == EQUALITY_LEFT
    where = {"filter": {"type": "eq", "term": "city", "value": "Bergen"}}
    answer = ask(served.url, "POST", path, where).json
    assert planned_rows(answer, table) == [10, 13]
    with pytest.raises(NotImplementedError, match="equality deletes"):
        planned.load_table((namespace, "t")).scan().to_arrow()


def test_an_incremental_scan_has_what_appends_added(
    served: Served, catalog: RestCatalog, planned: RestCatalog, namespace: str
) -> None:
    """As PyIceberg's own planner: rows of overwrites and deletes are not in it, also where manifests were merged."""
    properties = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    table = catalog.create_table((namespace, "t"), SCHEMA, partition_spec=SPEC, properties=properties)
    for n in range(3):
        table.append(rows(n * 6, 6))
    table.delete("id == 7")
    table.overwrite(rows(100, 6), overwrite_filter="id < 3")
    table.append(rows(200, 6))
    ids = [each.snapshot_id for each in table.metadata.snapshots]
    for start in ids[:-1]:
        for end in ids[ids.index(start) + 1 :]:
            for row_filter in ("city == 'Oslo'", "id >= 0"):
                scan = table.incremental_append_scan(row_filter=row_filter)
                ours = scan.from_snapshot_id_exclusive(start).to_snapshot_id_inclusive(end).plan_files()
                request = PlanTableScanRequest(
                    **{"start-snapshot-id": start, "end-snapshot-id": end, "filter": scan.row_filter}
                )
                found = planned.plan_scan((namespace, "t"), request)
                assert sorted(task.file.file_path for task in found) == sorted(task.file.file_path for task in ours)
                assert not any(task.delete_files for task in found)


# ---- pages, limits and hostile requests, in this process ----

on_a_directory = pytest.mark.parametrize("served", ["directory"], indirect=True)


@pytest.fixture
def local(served: Served) -> Catalog:
    """The same catalog, read by this process."""
    return limpet.open(served.place.url, read_only=True).catalog()


@pytest.fixture
def table(catalog: RestCatalog, namespace: str) -> Table:
    """A table with 5 manifests of 3 files each."""
    made: Table = catalog.create_table((namespace, "t"), SCHEMA, partition_spec=SPEC)
    for n in range(5):
        made.append(rows(n * 6, 6))
    return made


def followed(catalog: Catalog, namespace: str, request: dict[str, Any], most: int) -> list[str]:
    """The files of a plan and of all of its tasks."""
    found: list[str] = []
    answer = catalog.plan_scan([namespace], "t", request)
    assert answer.pop("status") == "completed"
    assert answer.pop("plan-id")
    answers = [answer]
    while answers:
        answer = answers.pop()
        assert len(answer["file-scan-tasks"]) <= most
        found += [task["data-file"]["file-path"] for task in answer["file-scan-tasks"]]
        answers += [catalog.scan_tasks([namespace], "t", task) for task in answer["plan-tasks"]]
    return found


@on_a_directory
def test_a_plan_has_pages(
    served: Served, local: Catalog, table: Table, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = sorted(task.file.file_path for task in table.scan().plan_files())
    assert len(wanted) == 15
    assert sorted(followed(local, namespace, {}, plan.FILES_MAX)) == wanted
    for files, tasks in ((2, 2), (1, 64), (100, 2), (4, 1)):
        monkeypatch.setattr(plan, "FILES_MAX", files)
        monkeypatch.setattr(plan, "TASKS_MAX", tasks)
        assert len(local.plan_scan([namespace], "t", {})["plan-tasks"]) <= max(tasks, 1)
        assert sorted(followed(local, namespace, {}, files)) == wanted
    ids = [each.snapshot_id for each in table.metadata.snapshots]
    between = {"start-snapshot-id": ids[0], "end-snapshot-id": ids[-1]}
    added = table.incremental_append_scan().from_snapshot_id_exclusive(ids[0]).plan_files()
    assert sorted(followed(local, namespace, between, 4)) == sorted(task.file.file_path for task in added)
    oslo = {"type": "eq", "term": "city", "value": "Oslo"}
    found = followed(local, namespace, {"filter": oslo}, 4)
    assert sorted(found) == sorted(task.file.file_path for task in table.scan("city == 'Oslo'").plan_files())
    assert len(found) == 5
    monkeypatch.undo()
    monkeypatch.setattr(plan, "RESIDUALS_BYTES_MAX", 2 * len(json.dumps(oslo)))
    assert sorted(followed(local, namespace, {"filter": oslo}, 2)) == sorted(found), "a filter is repeated so often"
    monkeypatch.undo()
    answer = local.plan_scan([namespace], "t", {"filter": oslo, "stats-fields": ["id"]})
    table.append(rows(90, 6))
    assert local.plan_scan([namespace], "t", answer["plan-id"]) == answer, "the same plan, of the same snapshot"
    path = f"/v1/namespaces/{namespace}/tables/t/plan/{answer['plan-id']}"
    assert ask(served.url, "GET", path).json == answer, "no process keeps anything: another one answers it too"
    long = {"type": "in", "term": "city", "values": ["x" * 100] * 100}
    answer = local.plan_scan([namespace], "t", {"filter": long})
    assert len(answer["plan-id"]) == 64
    with pytest.raises(Missing):
        local.plan_scan([namespace], "t", answer["plan-id"])


@on_a_directory
@pytest.mark.usefixtures("served")
def test_a_plan_reads_each_file_once(local: Catalog, table: Table, namespace: str) -> None:
    """The manifest list, each manifest of deletes, and each manifest of data that the filter leaves."""
    table.delete("id == 29")
    metadata = local.load_table([namespace], "t").metadata
    reads: Counter[str] = Counter()

    def fetch(url: str, size_max: int) -> bytes:
        reads[url] += 1
        return local.warehouse.data(local.warehouse.path_of(url, "file"), size_max=size_max)

    def cost(ask_: Callable[..., dict[str, Any]], asked: Any) -> dict[str, Any]:
        reads.clear()
        answer = ask_(metadata, asked, fetch, lambda: 0.0)
        assert {*reads.values()} == {1}
        return answer

    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    cost(plan.plan_scan, {})
    assert {*reads} == {snapshot.manifest_list, *(each.manifest_path for each in snapshot.manifests(table.io))}
    cost(plan.plan_scan, {"filter": {"type": "eq", "term": "city", "value": "Reykjavík"}})
    assert {*reads} == {snapshot.manifest_list}
    table.append(rows(90, 1))
    metadata = local.load_table([namespace], "t").metadata
    day = {"type": "eq", "term": "day", "value": "2024-01-01"}
    cost(
        plan.plan_scan,
        {"filter": {"type": "and", "left": day, "right": {"type": "eq", "term": "city", "value": "Oslo"}}},
    )
    every = len(reads)
    cost(plan.plan_scan, {"filter": {"type": "eq", "term": "city", "value": "Bergen"}})
    assert len(reads) == every - 1, "the last append has a row in Oslo only"


@on_a_directory
@pytest.mark.usefixtures("served")
def test_a_plan_of_columns_that_were_dropped_or_renamed(local: Catalog, table: Table, namespace: str) -> None:
    """Values of a partition whose column is gone are null. A filter has the names of the schema that is read."""
    old = table.refresh().current_snapshot()
    assert old is not None
    table.manage_snapshots().create_branch(old.snapshot_id, "old").commit()
    with table.refresh().update_spec() as spec:
        spec.remove_field("city")
    with table.refresh().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("city")
        update.rename_column("id", "Number")
    table.refresh().append(pa.table({"Number": [100], "day": [date(2024, 2, 1)]}))
    tasks = local.plan_scan([namespace], "t", {})["file-scan-tasks"]
    partitions = sorted(str(task["data-file"]["partition"]) for task in tasks)
    assert partitions == sorted(["['2024-02-01']", *(f"[None, '2024-01-0{1 + n % 3}']" for n in range(15))])
    past = {"snapshot-id": old.snapshot_id, "use-snapshot-schema": True}
    ways: list[tuple[str, bool, Mapping[str, Any]]] = [("Number", True, {}), ("nUMBER", False, {}), ("id", True, past)]
    for name, sensitive, fields in ways:
        filter_ = {"type": "lt", "term": name, "value": 6}
        found = local.plan_scan([namespace], "t", {"filter": filter_, "case-sensitive": sensitive, **fields})
        assert len(found["file-scan-tasks"]) == 3, name
    between = {"start-snapshot-id": old.parent_snapshot_id, "end-snapshot-id": old.snapshot_id}
    for name, schema in (("Number", False), ("id", True)):
        asked = {**between, "filter": {"type": "gt", "term": name, "value": 0}, "use-snapshot-schema": schema}
        assert len(local.plan_scan([namespace], "t", asked)["file-scan-tasks"]) == 3
    refused: list[dict[str, Any]] = [
        {"filter": {"type": "lt", "term": "number", "value": 6}},
        {"filter": {"type": "lt", "term": "id", "value": 6}, "snapshot-id": old.snapshot_id},
        {**between, "filter": {"type": "gt", "term": "Number", "value": 0}, "use-snapshot-schema": True},
    ]
    for wrong in refused:
        with pytest.raises(Invalid):
            local.plan_scan([namespace], "t", wrong)


UNIQUE = "00000000-0000-4000-8000-000000000001"
ID_IS_1 = {"type": "eq", "term": "id", "value": 1}
EXPRESSIONS: list[tuple[Any, str]] = [
    *[(each, "ab") for each in ({"type": "true"}, True, {"type": "not", "child": {"type": "false"}})],
    *[(each, "") for each in ({"type": "false"}, False, {"type": "and", "left": {"type": "false"}, "right": ID_IS_1})],
    (ID_IS_1, "a"),
    ({"type": "eq", "term": {"type": "reference", "term": "id"}, "value": 1}, "a"),
    ({"type": "or", "left": ID_IS_1, "right": {"type": "eq", "term": "id", "value": 2}}, "ab"),
    *[({"type": type_, "term": "id", "value": 1}, found) for type_, found in (
        ("lt", ""), ("lt-eq", "a"), ("gt", "b"), ("gt-eq", "ab"), ("not-eq", "ab"))],
    *[({"type": type_, "term": "id", "values": [1, 7]}, found) for type_, found in (("in", "a"), ("not-in", "ab"))],
    *[({"type": type_, "term": "name", "value": "o"}, found) for type_, found in (
        ("starts-with", "a"), ("not-starts-with", "ab"))],
    *[({"type": type_, "term": "id"}, found) for type_, found in (("is-null", ""), ("not-null", "ab"))],
    *[({"type": type_, "term": "score"}, found) for type_, found in (("is-nan", "ab"), ("not-nan", "ab"))],
    ({"type": "eq", "term": {"type": "transform", "transform": "bucket[16]", "term": "id"}, "value": 3}, "ab"),
    ({"type": "not", "child": {"type": "eq", "term": "raw", "value": "78797A"}}, "ab"),
    ({"type": "eq", "term": "raw", "value": "78797A"}, "ab"),
    ({"type": "eq", "term": "price", "value": "1.50"}, "a"),
    ({"type": "eq", "term": "at", "value": "2024-01-01T00:00:00.000001"}, "a"),
    ({"type": "eq", "term": "unique", "value": UNIQUE}, "a"),
]  # fmt: skip
"""Each expression of the specification, and the files that may hold such rows: `a` the first row, `b` the second."""


@on_a_directory
def test_every_expression_is_read_and_no_file_with_its_rows_is_left_out(
    served: Served, catalog: RestCatalog, local: Catalog, namespace: str
) -> None:
    """PyIceberg 0.12 lacks some of them, and literals of some types: then nothing is left out."""
    types = [LongType(), StringType(), DoubleType(), BinaryType(), DecimalType(9, 2), TimestampType(), UUIDType()]
    names = ("id", "name", "score", "raw", "price", "at", "unique")
    schema = Schema(*(NestedField(n, name, types[n - 1]) for n, name in enumerate(names, 1)))
    table = catalog.create_table((namespace, "t"), schema)
    files: dict[str, str] = {}
    first = (1, "one", 0.5, b"xyz", Decimal("1.50"), datetime(2024, 1, 1, 0, 0, 0, 1), UUID(UNIQUE).bytes)
    for row in (first, (2, "two", 1.5, b"zzz", Decimal("2.50"), datetime(2024, 1, 2), UUID(int=2).bytes)):
        columns = dict(zip(names, ([each] for each in row), strict=True))
        table.append(pa.Table.from_pydict(columns, schema=schema.as_arrow()))
        [new] = {task.file.file_path for task in table.scan().plan_files()} - {*files}
        files[new] = "ab"[len(files)]
    for filter_, found in EXPRESSIONS:
        answer = local.plan_scan([namespace], "t", {"filter": filter_})
        tasks = answer["file-scan-tasks"]
        assert "".join(sorted(files[task["data-file"]["file-path"]] for task in tasks)) == found, filter_
        assert all("residual-filter" in task for task in tasks) or filter_ in (True, {"type": "true"}) or found == "ab"
    for wrong in ("nothing", {"type": "transform", "transform": "day", "term": "nothing"}):
        with pytest.raises(Invalid):
            local.plan_scan([namespace], "t", {"filter": {"type": "eq", "term": wrong, "value": 1}})


def token(fields: Any) -> str:
    return urlsafe_b64encode(json.dumps(fields).encode()).decode()


@on_a_directory
@pytest.mark.usefixtures("table")
def test_hostile_plans_are_refused(local: Catalog, namespace: str) -> None:
    def nested(depth: int) -> Any:
        found: Any = {"type": "is-null", "term": "id"}
        for _ in range(depth):
            found = {"type": "not", "child": found}
        return found

    wrong: list[dict[str, Any]] = [
        {"filter": {"type": "eq", "term": "nothing", "value": 1}},
        {"filter": {"type": "eq", "term": "id", "value": {}}},
        {"filter": {"type": "run", "term": "id"}},
        {"filter": 5},
        {"filter": nested(900)},
        {"filter": {"type": "in", "term": "city", "values": ["x" * 100] * 1000}},
        {"snapshot-id": "1"},
        {"snapshot-id": 1 << 70},
        {"stats-fields": ["nothing"]},
        {"stats-fields": ["id"] * 10_000},
        {"case-sensitive": 1},
    ]
    for request in wrong:
        with pytest.raises(Invalid):
            local.plan_scan([namespace], "t", request)
    with pytest.raises(Missing):
        local.plan_scan([namespace], "t", {"snapshot-id": 7})
    with pytest.raises(Missing):
        local.plan_scan([namespace], "t", {"start-snapshot-id": 1, "end-snapshot-id": 2})
    newest = json.loads(local.load_table([namespace], "t").metadata)["current-snapshot-id"]
    for request in (
        {"start-snapshot-id": 1},
        {"end-snapshot-id": newest},
        {"start-snapshot-id": 1, "end-snapshot-id": newest},
        {"start-snapshot-id": newest, "end-snapshot-id": newest, "snapshot-id": newest},
    ):
        with pytest.raises(Invalid):
            local.plan_scan([namespace], "t", request)
    for task in (
        "",
        "x",
        "ö",
        "!" * 200_000,
        token([]),
        token({}),
        token({"first": -1, "last": 2}),
        token(nested(900)),
    ):
        with pytest.raises((Missing, Invalid)):
            local.scan_tasks([namespace], "t", task)
    beyond: list[dict[str, Any]] = [{"first": 90_000, "last": 100_000}, {"first": 0, "last": 5, "skip": 1 << 30}]
    for fields in beyond:
        assert local.scan_tasks([namespace], "t", token(fields))["file-scan-tasks"] == []


@on_a_directory
def test_plans_are_bounded(local: Catalog, table: Table, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(plan, "PLAN_S", -1.0)
        with pytest.raises(Unsupported, match="takes longer"):
            local.plan_scan([namespace], "t", {})
    with monkeypatch.context() as patch:
        patch.setattr(plan, "MANIFESTS_MAX", 4)
        with pytest.raises(Unsupported, match="manifests"):
            local.plan_scan([namespace], "t", {})
    with monkeypatch.context() as patch:
        patch.setattr(catalogs, "PLANS_MAX", 0)
        with pytest.raises(Unavailable, match="too many"):
            local.plan_scan([namespace], "t", {})
    with monkeypatch.context() as patch:
        patch.setattr(avro, "VALUES_MAX", 10)
        with pytest.raises(Corrupt, match="values"):
            local.plan_scan([namespace], "t", {})
    snapshot = table.current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file://")).write_bytes(b"Obj\x01")
    for _ in range(catalogs.PLANS_MAX + 1):
        with pytest.raises(Corrupt):
            local.plan_scan([namespace], "t", {})


@on_a_directory
def test_manifests_of_another_table_are_not_read(
    served: Served, catalog: RestCatalog, local: Catalog, table: Table, namespace: str
) -> None:
    """A client may name any manifest list of the warehouse in a commit."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    catalog.create_table((namespace, "thief"), SCHEMA)
    stolen: dict[str, Any] = {"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": snapshot.timestamp_ms + 1}
    stolen |= {"manifest-list": snapshot.manifest_list, "summary": {"operation": "append"}}
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1}
    request = {"updates": [{"action": "add-snapshot", "snapshot": stolen}, ref]}
    ServiceWriter(served.url).commit_table([namespace], "thief", request)
    with pytest.raises(Unsupported, match="not in a folder of the table"):
        local.plan_scan([namespace], "thief", {})
