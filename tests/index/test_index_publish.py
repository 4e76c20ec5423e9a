"""An index as an Iceberg table: the same rows, only what changed, old or new and never between."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import msgspec
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyiceberg.table import StaticTable
from rich.console import Console

import limpet
from limpet.app import Fleet
from limpet.catalog import NotLeader
from limpet.catalog.catalog import Catalog
from limpet.catalog.maintain.tables import LedCatalogWriter, TableWriter
from limpet.demo import INDEX, KEY, DemoResult
from limpet.demo.report import DemoScreen, DemoState
from limpet.demo.report import publish as publish_demo
from limpet.kernel.errors import Corrupt, Invalid, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.keys import IndexKeys, Key
from limpet.kernel.store.api import Stat, Version
from limpet.publish import NAMESPACE, IndexPublisher, Published, parts_of
from support.index import keys_in
from support.publish import NAME, PACKAGE, Rec, Watched, by_sql, fleet_on, plain_rows, some

TABLE = (NAMESPACE, NAME)
EXISTING, ADDED, DELETED = 0, 1, 2


class Died(BaseException):
    """The process is gone."""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return limpet.open(tmp_path / "fleet", durability="os")


@pytest.fixture
def leading(fleet: Fleet) -> Iterator[Catalog]:
    with fleet.lead_catalog() as catalog:
        yield catalog


def publish(
    fleet: Fleet, writer: TableWriter | Catalog, *, part_bytes: int = 4 << 20, compile: bool = True
) -> Published:
    """Publish through somebody who leads already."""

    @contextmanager
    def lead() -> Iterator[TableWriter]:
        yield LedCatalogWriter(writer) if isinstance(writer, Catalog) else writer

    publisher = IndexPublisher(fleet.index(NAME), fleet.catalog(), TABLE, lead, part_bytes=part_bytes)
    return publisher.publish(compile=compile)


def table_of(done: Published) -> StaticTable:
    return StaticTable.from_metadata(done.metadata_location)


def rows(done: Published) -> list[tuple[Any, ...]]:
    return plain_rows(table_of(done).scan().to_arrow())


def data_files(fleet: Fleet) -> list[Key]:
    return [stat.key for stat in fleet.store.list("warehouse") if stat.key.endswith(".parquet")]


def leftovers(fleet: Fleet, done: Published) -> set[str]:
    """Data files that no snapshot of the table names."""
    named = {file.rpartition("/")[2] for file in table_of(done).inspect.all_files()["file_path"].to_pylist()}
    return {key.rpartition("/")[2] for key in data_files(fleet)} - named


# ---- the same rows ----


def test_a_table_holds_what_sql_says(fleet: Fleet) -> None:
    index = fleet.index(NAME, PACKAGE, key="domain")
    index.put_many(some(300))
    index.delete("d7.com")
    index.put({"domain": "only.key"})
    done = fleet.publish_index(NAME)
    assert (done.changed, done.records, done.files) == (True, 300, 16)
    assert rows(done) == by_sql(fleet)
    assert len(rows(done)) == 300


def test_what_waits_is_left_out_if_it_may_not_be_compiled(fleet: Fleet, leading: Catalog) -> None:
    index = fleet.index(NAME, Rec, key="domain")
    index.put(Rec("a.com", 1))
    assert publish(fleet, leading).records == 1
    index.put(Rec("b.com", 2))
    left = publish(fleet, leading, compile=False)
    assert (left.changed, left.records) == (False, 1)
    assert publish(fleet, leading).records == 2


def test_types_ids_and_statistics(fleet: Fleet) -> None:
    index = fleet.index(NAME, PACKAGE, key="domain")
    index.put_many(some(200))
    table = table_of(fleet.publish_index(NAME))
    names = ("string", "string", "long", "double", "boolean", "date", "timestamptz", "string", "string", "string")
    assert [str(column.field_type) for column in table.schema().fields] == [*names, "timestamptz"]
    assert table.schema().identifier_field_names() == {"domain"}
    wanted = {field.name: field.field_id for field in table.schema().fields}
    seen = 0
    for task in table.scan().plan_files():
        file, name = task.file, task.file.file_path.removeprefix("file://")
        stored = pq.ParquetFile(name)
        assert {each.name: int(each.metadata[b"PARQUET:field_id"]) for each in stored.schema_arrow} == wanted
        values = stored.read()
        assert file.record_count == values.num_rows
        assert file.file_size_in_bytes == Path(name).stat().st_size
        assert file.value_counts == dict.fromkeys(wanted.values(), values.num_rows)
        assert file.null_value_counts == {wanted[each]: values[each].null_count for each in values.column_names}
        assert file.lower_bounds[1].decode() == min(values["domain"].to_pylist())
        assert file.upper_bounds[1].decode() == max(values["domain"].to_pylist())
        seen += file.record_count
    assert seen == 200
    summary = table.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert summary["total-records"] == "200"
    # the bounds are used: what lies outside of them is not read
    assert table.scan(row_filter="domain > 'e'").to_arrow().num_rows == 0
    assert table.scan(row_filter="domain == 'd42.com'").to_arrow().num_rows == 1


def test_an_empty_index_is_an_empty_table(fleet: Fleet, leading: Catalog) -> None:
    index = fleet.index(NAME, Rec, key="domain")
    assert index.manifest.depth == 2
    done = publish(fleet, leading)
    assert (done.changed, rows(done)) == (True, [])
    assert publish(fleet, leading).changed is False
    index.put(Rec("a.com", 1))
    assert len(rows(publish(fleet, leading))) == 1
    index.delete("a.com")
    gone = publish(fleet, leading)
    assert (gone.changed, gone.files_removed, rows(gone)) == (True, 1, [])
    assert publish(fleet, leading).changed is False


# ---- only what changed ----


@pytest.mark.parametrize("records", [600, 3000])
def test_a_refresh_costs_what_changed(fleet: Fleet, leading: Catalog, records: int) -> None:
    index = fleet.index(NAME, Rec, key="domain")
    [key] = keys_in("a7", 1)
    index.put_many([Rec(key, 0), *(Rec(f"d{n}.com", n) for n in range(records))])
    first = publish(fleet, leading, part_bytes=0)  # so that each shard is a file of its own
    shards = [stat for stat in fleet.store.list(IndexKeys.of(NAME).shards) if stat.key.endswith(".usv")]
    assert first.files == sum(1 for stat in shards if stat.size) > 200
    index.put(Rec(key, -1))
    index.compile(full=True)
    watched = Watched()
    done = publish(fleet_on(fleet, watched), leading, part_bytes=0, compile=False)
    assert (done.files_added, done.files) == (1, first.files)
    assert watched.count("list", "") == 1
    assert [key for verb, key in watched.asked if verb == "get" and "/shards/" in key] == [
        IndexKeys.of(NAME).shard("a7")
    ]
    puts = [key.rpartition(".")[2] for verb, key in watched.asked if verb == "put"]
    assert puts == ["parquet", "avro", "avro"]
    # the head, the table's metadata, its manifest list and manifest; the columns before and after
    assert watched.count("get", "") - 1 == 6
    assert rows(done) == by_sql(fleet)


def test_the_manifest_tells_what_stayed_what_came_and_what_went(fleet: Fleet, leading: Catalog) -> None:
    index = fleet.index(NAME, Rec, key="domain")
    index.put_many(Rec(f"d{n}.com", n) for n in range(300))
    first = publish(fleet, leading)
    index.put(Rec("d1.com", -1))
    second = publish(fleet, leading)
    entries = table_of(second).inspect.entries().to_pylist()
    assert Counter((entry["status"], entry["snapshot_id"]) for entry in entries) == {
        (EXISTING, first.snapshot_id): 15,
        (ADDED, second.snapshot_id): 1,
        (DELETED, second.snapshot_id): 1,
    }
    assert {entry["sequence_number"] for entry in entries if entry["status"] == EXISTING} == {1}
    [manifest] = table_of(second).inspect.manifests().to_pylist()
    counts = [manifest[f"{what}_data_files_count"] for what in ("existing", "added", "deleted")]
    assert counts == [15, 1, 1]
    summary = table_of(second).current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert (summary.operation.value, summary["total-records"], summary["deleted-data-files"]) == (
        "overwrite",
        "300",
        "1",
    )


def test_a_shard_that_changes_while_it_is_read_is_known_as_what_was_read(fleet: Fleet, leading: Catalog) -> None:
    fleet.index(NAME, Rec, key="domain").put(Rec("a.com", 1))
    fleet.index(NAME).compile(full=True)

    def change(verb: str, key: str) -> None:
        if verb == "get" and "/shards/" in key and not changed:
            changed.append(key)
            fleet.index(NAME).put({"domain": "a.com", "n": 2})
            fleet.index(NAME).compile(full=True)

    changed: list[str] = []
    done = publish(fleet_on(fleet, Watched(before=change)), leading, compile=False)
    assert changed
    assert [row[1] for row in rows(done)] == [2]
    assert publish(fleet, leading).changed is False


def test_nothing_changed_nothing_written(fleet: Fleet, leading: Catalog) -> None:
    fleet.index(NAME, Rec, key="domain").put_many(Rec(f"d{n}.com", n) for n in range(100))
    first = publish(fleet, leading)
    before = [stat.version for stat in fleet.store.list("")]
    watched = Watched()
    again = publish(fleet_on(fleet, watched), leading, compile=False)
    assert (again.changed, again.snapshot_id, again.metadata_location) == (
        False,
        first.snapshot_id,
        first.metadata_location,
    )
    assert watched.count("put", "") == 0
    assert watched.count("get", "/shards/") == 0
    assert [stat.version for stat in fleet.store.list("")] == before


def _shards(size: int, **versions: str) -> dict[str, Stat]:
    """256 shards of that size, but for an empty one."""
    ids = [f"{n:02x}" for n in range(256)]
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return {
        each: Stat(Key(each), 0 if each == "03" else size, Version(versions.get(f"v{each}", "old")), at) for each in ids
    }


def test_neighbours_share_a_file_while_they_are_small() -> None:
    small, large = parts_of(_shards(10), 160), parts_of(_shards(11), 160)
    assert [part.name for part in small] == [f"{n:x}" for n in range(16)]
    assert [part.name for part in large] == [f"{n:02x}" for n in range(256) if n != 3]
    for parts in (small, large):
        assert [shard for part in parts for shard in part.shards] == [f"{n:02x}" for n in range(256) if n != 3]
    changed = parts_of(_shards(10, v15="new"), 160)
    assert [part.name for part, was in zip(changed, small, strict=True) if part.version != was.version] == ["1"]
    fuller = parts_of({**_shards(10), "03": msgspec.structs.replace(_shards(10)["04"], size=1)}, 160)
    assert [part.name for part, was in zip(fuller, small, strict=True) if part.version != was.version] == ["0"]


def test_a_group_that_grows_is_split(fleet: Fleet, leading: Catalog) -> None:
    index = fleet.index(NAME, Rec, key="domain")
    index.put_many(Rec(f"d{n}.com", n) for n in range(500))
    whole = publish(fleet, leading)
    assert whole.files == 16
    index.put_many(Rec(key, 1, "x" * 20_000) for key in keys_in("a7", 5))
    split = publish(fleet, leading, part_bytes=50_000)
    assert split.files == 15 + sum(1 for n in range(16) if fleet.store.head(IndexKeys.of(NAME).shard(f"a{n:x}")).size)
    assert split.files_removed == 1
    assert rows(split) == by_sql(fleet)


# ---- columns ----


def test_new_columns_come_along_and_old_files_stay(fleet: Fleet, leading: Catalog) -> None:
    fleet.index(NAME, Rec, key="domain").put_many(Rec(f"d{n}.com", n) for n in range(200))
    first = publish(fleet, leading)

    @dataclass
    class More(Rec):
        more: int | None = None

    index = fleet.index(NAME, More, key="domain")
    assert len(index.manifest.schema.columns) == 5
    wider = publish(fleet, leading)
    assert (wider.changed, wider.files_added, wider.snapshot_id) == (True, 0, first.snapshot_id)
    assert rows(wider) == by_sql(fleet)
    index.put(More("d3.com", 3, more=4))
    done = publish(fleet, leading)
    assert (done.files_added, done.files_removed) == (1, 1)
    assert rows(done) == by_sql(fleet)
    assert ("d3.com", 3, None, 4) in {(row[0], row[1], row[2], row[4]) for row in rows(done)}
    old, new = table_of(first).schema(), table_of(done).schema()
    assert [new.find_field(field.name).field_id for field in old.fields] == [field.field_id for field in old.fields]


def test_columns_that_grow_while_shards_are_read(fleet: Fleet, leading: Catalog) -> None:
    fleet.index(NAME, Rec, key="domain").put(Rec("a.com", 1))
    fleet.index(NAME).compile(full=True)

    @dataclass
    class More(Rec):
        more: int | None = None

    def grow(verb: str, key: str) -> None:
        if verb == "get" and "/shards/" in key and not grown:
            grown.append(key)
            index = limpet.open(fleet.url).index(NAME, More, key="domain")
            index.put(More("a.com", 1, more=2))
            index.compile(full=True)

    grown: list[str] = []
    done = publish(fleet_on(fleet, Watched(before=grow)), leading, compile=False)
    assert grown
    assert rows(done) == by_sql(fleet)
    assert [row[4] for row in rows(done)] == [2]
    assert leftovers(fleet, done) == set()


def test_a_resharded_index_is_the_same_table(fleet: Fleet, leading: Catalog) -> None:
    index = fleet.index(NAME, Rec, key="domain")
    index.put_many(Rec(f"d{n}.com", n) for n in range(100))
    before = rows(publish(fleet, leading))
    index.reshard(3, quiesced=True)
    done = publish(fleet, leading)
    assert done.files_removed == 16
    assert rows(done) == before


# ---- others ----


class Hooked:
    """A writer with something in its way."""

    def __init__(self, catalog: Catalog) -> None:
        self._inner = LedCatalogWriter(catalog)
        self.before: list[Any] = []
        self.after: list[Any] = []

    def create_namespace(self, namespace: Sequence[str]) -> None:
        self._inner.create_namespace(namespace)

    def commit_table(self, namespace: Sequence[str], name: str, request: Mapping[str, Any]) -> str:
        if self.before:
            self.before.pop()()
        location = self._inner.commit_table(namespace, name, request)
        if self.after:
            raise self.after.pop()
        return location


@pytest.mark.parametrize("is_new", [True, False])
def test_whoever_is_late_looks_again(fleet: Fleet, leading: Catalog, is_new: bool) -> None:
    index = fleet.index(NAME, Rec, key="domain")
    index.put_many(Rec(f"d{n}.com", n) for n in range(100))
    if not is_new:
        publish(fleet, leading)
    index.put(Rec("d1.com", -1))

    def overtake() -> None:
        index.put(Rec("d2.com", -2))
        publish(fleet, leading)

    writer = Hooked(leading)
    writer.before = [overtake]
    done = publish(fleet, writer)
    assert {row[0]: row[1] for row in rows(done)}["d2.com"] == -2, "older shards came back"
    assert rows(done) == by_sql(fleet)
    assert leftovers(fleet, done) == set()


def test_many_publishers_at_once(fleet: Fleet, leading: Catalog) -> None:
    index = fleet.index(NAME, Rec, key="domain")
    start = Barrier(4)
    seen: list[Published] = []

    def one(who: int) -> None:
        start.wait()
        for n in range(5):
            index.put(Rec(f"d{who}-{n}.com", n))
            seen.append(publish(fleet, leading))

    threads = [Thread(target=one, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 20
    done = publish(fleet, leading)
    assert rows(done) == by_sql(fleet)
    assert len(rows(done)) == 20
    counts = [table_of(done).scan(snapshot_id=each.snapshot_id).count() for each in table_of(done).snapshots()]
    assert counts == sorted(counts), "a snapshot lost what an older one had"


def test_a_lost_answer_is_unknown_and_the_next_run_settles_it(fleet: Fleet, leading: Catalog) -> None:
    fleet.index(NAME, Rec, key="domain").put(Rec("a.com", 1))
    writer = Hooked(leading)
    writer.after = [OutcomeUnknown("no answer came")]
    with pytest.raises(OutcomeUnknown):
        publish(fleet, writer)
    done = publish(fleet, leading)
    assert done.changed is False
    assert rows(done) == by_sql(fleet), "nothing that a commit may name was removed"


@pytest.mark.parametrize("is_new", [True, False])
def test_a_commit_that_is_sent_twice_is_not_undone(fleet: Fleet, leading: Catalog, is_new: bool) -> None:
    index = fleet.index(NAME, Rec, key="domain")
    index.put(Rec("a.com", 1))
    if not is_new:
        publish(fleet, leading)
        index.put(Rec("a.com", 2))

    class Twice(LedCatalogWriter):
        def commit_table(self, namespace: Sequence[str], name: str, request: Mapping[str, Any]) -> str:
            super().commit_table(namespace, name, request)
            return super().commit_table(namespace, name, request)

    done = publish(fleet, Twice(leading))
    assert (done.changed, done.files_added) == (True, 1)
    assert rows(done) == by_sql(fleet)
    assert publish(fleet, leading).changed is False


@pytest.mark.parametrize("dies_at", ["parquet", "-m0.avro", "snap-"])
def test_a_publisher_that_dies_leaves_the_old_table(fleet: Fleet, leading: Catalog, dies_at: str) -> None:
    index = fleet.index(NAME, Rec, key="domain")
    index.put(Rec("a.com", 1))
    old = publish(fleet, leading)
    index.put(Rec("a.com", 2))
    index.compile(full=True)

    def die(verb: str, key: str) -> None:
        if verb == "put" and dies_at in key:
            raise Died

    with pytest.raises(Died):
        publish(fleet_on(fleet, Watched(before=die)), leading, compile=False)
    now = fleet.catalog().load_table(*TABLE)
    assert now.metadata_location == old.metadata_location
    assert [row[1] for row in rows(old)] == [1]
    done = publish(fleet, leading)
    assert [row[1] for row in rows(done)] == [2]


def test_a_corrupt_shard_publishes_nothing_and_leaves_nothing(fleet: Fleet, leading: Catalog) -> None:
    index = fleet.index(NAME, Rec, key="domain")
    index.put_many(Rec(f"d{n}.com", n) for n in range(100))
    done = publish(fleet, leading)
    index.put_many(Rec(f"d{n}.com", -n) for n in range(100))
    index.compile(full=True)
    fleet.store.put(IndexKeys.of(NAME).shard("ff"), b"no record\n")
    files = data_files(fleet)
    with pytest.raises(Corrupt):
        publish(fleet, leading, compile=False)
    fleet.store.delete(IndexKeys.of(NAME).shard("ff"))
    with pytest.raises(Corrupt, match="missing"):
        publish(fleet, leading, compile=False)
    assert data_files(fleet) == files
    assert fleet.catalog().load_table(*TABLE).metadata_location == done.metadata_location


@pytest.mark.parametrize("fails_at", ["-m0.avro", "snap-"])
def test_a_store_that_fails_half_way_is_left_clean(fleet: Fleet, leading: Catalog, fails_at: str) -> None:
    fleet.index(NAME, Rec, key="domain").put_many(Rec(f"d{n}.com", n) for n in range(100))
    fleet.index(NAME).compile(full=True)

    def fail(verb: str, key: str) -> None:
        if verb == "put" and fails_at in key:
            raise Unavailable("the store is away")

    watched = Watched(before=fail)
    with pytest.raises(Unavailable):
        publish(fleet_on(fleet, watched), leading, compile=False)
    assert watched.count("put", ".parquet") == 16
    assert [stat.key for stat in fleet.store.list("warehouse")] == []


# ---- wrong input ----


def test_a_table_of_somebody_else_is_not_touched(fleet: Fleet, leading: Catalog) -> None:
    fleet.index(NAME, Rec, key="domain").put(Rec("a.com", 1))
    fleet.index("other", Rec, key="domain").put(Rec("b.com", 1))
    done = publish(fleet, leading)
    with pytest.raises(Invalid, match="was not created from the index 'other'") as refused:
        fleet.publish_index("other", TABLE, through=LedCatalogWriter(leading))
    assert "--table" in refused.value.hint
    assert fleet.catalog().load_table(*TABLE).metadata_location == done.metadata_location
    schema = {"type": "struct", "fields": [{"id": 1, "name": "x", "required": False, "type": "long"}]}
    version = {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": 1,
        "summary": {},
        "representations": [{"type": "sql", "sql": "select 1", "dialect": "duckdb"}],
        "default-namespace": ["indexes"],
    }
    view = {"name": "v", "schema": {**schema, "schema-id": 0}, "view-version": version, "properties": {}}
    leading.create_view(NAMESPACE, view)
    with pytest.raises(Invalid, match="is a view"):
        fleet.publish_index("other", (NAMESPACE, "v"), through=LedCatalogWriter(leading))


def test_an_index_that_is_not_there(fleet: Fleet, leading: Catalog) -> None:
    with pytest.raises(Missing, match="there is no index 'nowhere'"):
        fleet.publish_index("nowhere", through=LedCatalogWriter(leading))
    assert leading.namespaces().names == []


def test_another_process_leads(fleet: Fleet, leading: Catalog) -> None:
    fleet.index(NAME, Rec, key="domain").put(Rec("a.com", 1))
    with pytest.raises(NotLeader):
        limpet.open(fleet.url).publish_index(NAME, wait_s=0.0)
    assert data_files(fleet) == []
    done = publish(fleet, leading)
    assert limpet.open(fleet.url).publish_index(NAME, wait_s=0.0) == replace(done, changed=False, files_added=0)


def test_without_the_extra(fleet: Fleet) -> None:
    code = f"""
import sys
sys.modules["pyiceberg"] = None
import limpet
try:
    limpet.open({fleet.url!r}).publish_index("domains")
except limpet.Unsupported as refused:
    print(refused.hint)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("pip install 'limpet[catalog]'\n", "")


# ---- the demo ----


def _screen() -> tuple[DemoScreen, StringIO]:
    out = StringIO()
    return DemoScreen(Console(file=out, width=400), DemoState(1, {})), out


def test_the_demo_publishes_its_index(fleet: Fleet) -> None:
    index = fleet.index(INDEX, DemoResult, key=KEY)
    index.put_many(DemoResult(n, n * n, "ada") for n in range(50))
    index.compile(full=True)
    screen, out = _screen()
    done = publish_demo(screen, fleet, stays=True)
    assert done is not None
    assert "published as the Iceberg table indexes.results: 50 records in" in out.getvalue()
    assert f"iceberg_scan('{done.metadata_location}')" in out.getvalue()
    assert len(rows(done)) == 50


def test_the_demo_goes_on_without_the_extra(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    screen, out = _screen()
    assert publish_demo(screen, fleet, stays=True) is None
    [line] = out.getvalue().splitlines()
    assert "pip install 'limpet[catalog]'" in line
