"""Maintenance of real tables, written by PyIceberg: every retained snapshot stays readable."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import CommitTableResponse, StaticTable, Table
from pyiceberg.transforms import IdentityTransform

import limpet
from limpet.app import Fleet
from limpet.catalog.catalog import Catalog
from limpet.catalog.iceberg import plan
from limpet.catalog.maintain.tables import LedCatalogWriter
from limpet.catalog.names import CommitFailed, NoSuchTable
from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown, Unsupported
from limpet.publish import IndexPublisher
from limpet.testing import drain
from support.catalog import append, metadata
from support.catalog import table as new_table

NOW = timedelta(0)
WHERE = ("a",)
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "data"))


class Through(NoopCatalog):
    """PyIceberg's writer over a catalog of ours in this process."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__("test")
        self.ours = catalog

    def load(self) -> Table:
        loaded = self.ours.load_table(WHERE, "t")
        static = StaticTable.from_metadata(str(loaded.metadata_location))
        return Table(("a", "t"), static.metadata, str(loaded.metadata_location), PyArrowFileIO(), self)

    def load_table(self, identifier: Any) -> Table:
        return self.load()

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        request = {
            "requirements": [each.model_dump(mode="json") for each in requirements],
            "updates": [each.model_dump(mode="json") for each in updates],
        }
        loaded = self.ours.commit_table(WHERE, "t", request)
        return CommitTableResponse.model_validate(
            {"metadata-location": loaded.metadata_location, "metadata": metadata(loaded)}
        )


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return limpet.open(str(tmp_path / "fleet"), durability="os")


def rows(*ids: int, data: str = "x") -> Any:
    fields = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("data", pa.string())])
    return pa.table({"id": [*ids], "data": [data] * len(ids)}, schema=fields)


def create(fleet: Fleet, *, partitioned: bool = False) -> None:
    with fleet.lead_catalog() as catalog:
        catalog.create_namespace(WHERE)
        spec = {"partition-spec": SPEC.model_dump(mode="json")} if partitioned else {}
        catalog.create_table(WHERE, new_table("t", **spec))


def change(fleet: Fleet, *acts: Callable[[Table], object]) -> None:
    with fleet.lead_catalog() as catalog:
        client = Through(catalog)
        for act in acts:
            act(client.load())


def read(fleet: Fleet, snapshot_id: int | None = None) -> list[int]:
    found = Through(fleet.catalog()).load().scan(snapshot_id=snapshot_id).to_arrow()
    return sorted(found["id"].to_pylist())


def current(table: Table) -> int:
    assert table.metadata.current_snapshot_id is not None
    return table.metadata.current_snapshot_id


def snapshots(fleet: Fleet) -> list[int]:
    return [each["snapshot-id"] for each in metadata(fleet.catalog().load_table(WHERE, "t"))["snapshots"]]


def files(fleet: Fleet) -> set[str]:
    top = Path(fleet.url) / "warehouse"
    return {os.path.relpath(path, top) for path in top.rglob("*") if path.is_file()}


def test_old_snapshots_expire_and_their_files_go_after_the_grace_time(fleet: Fleet) -> None:
    create(fleet)
    change(fleet, lambda table: table.append(rows(0)))
    change(fleet, *(lambda table, n=n: table.overwrite(rows(n)) for n in range(1, 4)))
    table = fleet.maintain(WHERE, "t")
    before = files(fleet)
    would = table.expire(max_age=NOW, dry_run=True)
    done = table.expire(max_age=NOW)
    assert done.snapshots == would.snapshots
    assert done.kept == 1
    assert read(fleet) == [3]
    assert before <= files(fleet), "expiry deletes no file"
    assert not table.remove_orphans().files, "they are young"
    gone = table.remove_orphans(grace=NOW, quiesced=True)
    assert gone.files
    assert read(fleet) == [3]
    assert not table.remove_orphans(grace=NOW, quiesced=True).files
    assert not table.expire(max_age=NOW).snapshots


def test_manifests_of_expired_snapshots_stay_while_a_retained_one_names_them(fleet: Fleet) -> None:
    create(fleet)
    change(fleet, *(lambda table, n=n: table.append(rows(n)) for n in range(3)))
    table = fleet.maintain(WHERE, "t")
    assert len(table.expire(max_age=NOW).snapshots) == 2
    assert len(table.remove_orphans(grace=NOW, quiesced=True).files) == 2, "two manifest lists"
    assert read(fleet) == [0, 1, 2]


def test_what_a_branch_or_tag_needs_stays(fleet: Fleet) -> None:
    create(fleet)
    change(fleet, lambda table: table.append(rows(1)))
    change(
        fleet,
        lambda table: table.manage_snapshots().create_branch(current(table), "dev").commit(),
        lambda table: table.overwrite(rows(2)),
        lambda table: table.manage_snapshots().create_tag(current(table), "v2").commit(),
        lambda table: table.overwrite(rows(3)),
    )
    refs = metadata(fleet.catalog().load_table(WHERE, "t"))["refs"]
    table = fleet.maintain(WHERE, "t")
    table.expire(max_age=NOW)
    table.remove_orphans(grace=NOW, quiesced=True)
    assert [read(fleet, refs[name]["snapshot-id"]) for name in ("dev", "v2", "main")] == [[1], [2], [3]]
    assert metadata(fleet.catalog().load_table(WHERE, "t"))["refs"] == refs


def test_a_snapshot_is_not_removed_from_under_a_new_branch(fleet: Fleet) -> None:
    create(fleet)
    change(fleet, lambda table: table.append(rows(1)), lambda table: table.append(rows(2)))
    old = snapshots(fleet)[0]
    change(fleet, lambda table: table.manage_snapshots().create_tag(old, "new").commit())
    removal = {"requirements": [], "updates": [{"action": "remove-snapshots", "snapshot-ids": [old]}]}
    with fleet.lead_catalog() as catalog, pytest.raises(CommitFailed, match="new refers to it"):
        catalog.commit_table(WHERE, "t", removal)
    assert old in snapshots(fleet)


@pytest.mark.parametrize("partitioned", [False, True])
def test_small_files_become_one(fleet: Fleet, partitioned: bool) -> None:
    create(fleet, partitioned=partitioned)
    change(fleet, *(lambda table, n=n: table.append(rows(n)) for n in range(6)))
    change(fleet, lambda table: table.append(rows(100, data="y")))
    table = fleet.maintain(WHERE, "t")
    would = table.compact(dry_run=True)
    done = table.compact()
    assert would.files == done.files == (6 if partitioned else 7)
    assert (done.new_files, done.commits) == (1, 1)
    assert read(fleet) == [*range(6), 100]
    loaded = Through(fleet.catalog()).load()
    assert len([*loaded.scan().plan_files()]) == (2 if partitioned else 1)
    assert loaded.scan(row_filter="data = 'y'").to_arrow()["id"].to_pylist() == [100]
    summary = loaded.metadata.snapshots[-1].summary
    assert summary is not None
    assert summary.operation.value == "replace"
    assert not table.compact().commits, "there is nothing left to do"
    table.expire(max_age=NOW)
    table.remove_orphans(grace=NOW, quiesced=True)
    assert read(fleet) == [*range(6), 100]
    assert len([path for path in files(fleet) if path.endswith(".parquet")]) == (2 if partitioned else 1)


def test_a_commit_meanwhile_is_kept(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    create(fleet)
    change(fleet, *(lambda table, n=n: table.append(rows(n)) for n in range(6)))
    table = fleet.maintain(WHERE, "t")
    inner = table._lead
    met: list[int] = []

    def lead() -> Any:
        if not met:
            met.append(1)
            change(fleet, lambda other: other.append(rows(50)))
        return inner()

    table._lead = lead
    assert table.compact().files == 6
    assert read(fleet) == [*range(6), 50]


def test_an_expiry_is_planned_again_after_a_commit_of_others(fleet: Fleet) -> None:
    create(fleet)
    change(fleet, *(lambda table, n=n: table.append(rows(n)) for n in range(3)))
    table, planned = fleet.maintain(WHERE, "t"), snapshots(fleet)
    inner, acts = table._lead, [lambda other: other.append(rows(50))]

    def lead() -> Any:
        if acts:
            change(fleet, acts.pop())
        return inner()

    table._lead = lead
    assert table.expire(max_age=NOW).snapshots == tuple(planned)
    assert read(fleet) == [0, 1, 2, 50]


def test_a_deleted_row_does_not_come_back(fleet: Fleet) -> None:
    """The files of a group were replaced while it was rewritten: the rewrite is thrown away."""
    create(fleet)
    change(fleet, *(lambda table, n=n: table.append(rows(n)) for n in range(6)))
    table = fleet.maintain(WHERE, "t")
    inner = table._lead
    met: list[int] = []

    def lead() -> Any:
        if not met:
            met.append(1)
            change(fleet, lambda other: other.delete("id = 3"))
        return inner()

    table._lead = lead
    with pytest.raises(limpet.Unavailable):
        table.compact()
    assert read(fleet) == [0, 1, 2, 4, 5]


def _fails(*_: object, **__: object) -> Any:
    raise limpet.Unavailable("no answer")


@pytest.mark.parametrize("trouble", ["lead", "write", "reload", "refused", "unknown", "dropped"])
def test_a_compaction_that_fails_leaves_files_only_if_a_commit_may_name_them(fleet: Fleet, trouble: str) -> None:
    create(fleet)
    change(fleet, *(lambda table, n=n: table.append(rows(n)) for n in range(6)))
    table, before = fleet.maintain(WHERE, "t"), files(fleet)

    class Writer(LedCatalogWriter):
        def commit_table(self, namespace: Any, name: str, request: Any) -> str:
            if trouble == "refused":
                raise Invalid("no")
            if trouble == "unknown":
                raise OutcomeUnknown("no answer")
            if trouble == "dropped":
                self._catalog.drop_table(WHERE, "t")
            table._current = _fails  # type: ignore[method-assign]
            raise CommitFailed("another one was first")

    @contextmanager
    def lead() -> Iterator[Any]:
        if trouble == "lead":
            _fails()
        if trouble == "write":
            table._write = _fails  # type: ignore[method-assign]
        with fleet.lead_catalog() as catalog:
            yield Writer(catalog)

    table._lead = lead
    expected: dict[str, type[LimpetError]] = {"refused": Invalid, "unknown": OutcomeUnknown, "dropped": NoSuchTable}
    with pytest.raises(expected.get(trouble, limpet.Unavailable)):
        table.compact()
    left = {path.rpartition(".")[2] for path in files(fleet) - before}
    assert left == ({"parquet", "avro"} if trouble in ("unknown", "dropped") else set())
    table = fleet.maintain(WHERE, "t")
    if trouble == "dropped":
        with fleet.lead_catalog() as catalog:
            catalog.undrop(WHERE, "t")
    assert table.compact().files == 6
    assert read(fleet) == [*range(6)]


def test_a_commit_that_was_sent_twice_and_has_expired_keeps_its_files(fleet: Fleet) -> None:
    """F1: a proxy sends it, waits in vain for an answer, and sends it again. Others commit meanwhile; it expires."""
    create(fleet)
    change(fleet, *(lambda table, n=n: table.append(rows(n)) for n in range(6)))
    table = fleet.maintain(WHERE, "t")

    class Proxied(LedCatalogWriter):
        def commit_table(self, namespace: Any, name: str, request: Any) -> str:
            super().commit_table(namespace, name, request)
            Through(self._catalog).load().append(rows(50))
            fleet.maintain(WHERE, "t", through=LedCatalogWriter(self._catalog)).expire(max_age=NOW)
            return super().commit_table(namespace, name, request)

    with fleet.lead_catalog() as catalog:
        maintained = fleet.maintain(WHERE, "t", through=Proxied(catalog))
        with pytest.raises(OutcomeUnknown, match="was refused, and may be there"):
            maintained.compact()
    assert read(fleet) == [*range(6), 50]
    assert len(snapshots(fleet)) == 1
    assert not table.compact().commits, "it is compacted"


def test_snapshots_of_a_table_whose_files_others_need_are_not_removed(fleet: Fleet) -> None:
    """The property is set after the expiry was planned: the catalog refuses it."""
    create(fleet)
    change(fleet, *(lambda table, n=n: table.append(rows(n)) for n in range(3)))
    table, before = fleet.maintain(WHERE, "t"), snapshots(fleet)
    inner, acts = table._lead, [{"gc.enabled": "false"}]

    def lead() -> Any:
        if acts:
            values = acts.pop()
            change(fleet, lambda other: other.transaction().set_properties(values).commit_transaction())
        return inner()

    table._lead = lead
    with pytest.raises(Unsupported, match=r"gc\.enabled"):
        table.expire(max_age=NOW)
    assert snapshots(fleet) == before


@pytest.mark.parametrize(("value", "may"), [("false", False), ("FALSE", False), ("no", False), ("True", True)])
def test_files_that_others_own_stay(fleet: Fleet, value: str, may: bool) -> None:
    """`gc.enabled=false`: a table that was copied, or imported while another catalog goes on with it."""
    create(fleet)
    change(fleet, lambda table: table.append(rows(0)), lambda table: table.overwrite(rows(1)))
    change(fleet, lambda table: table.transaction().set_properties({"gc.enabled": value}).commit_transaction())
    table, before = fleet.maintain(WHERE, "t"), files(fleet)
    acts: list[Callable[[], object]] = [
        lambda: table.expire(max_age=NOW),
        lambda: table.remove_orphans(grace=NOW, quiesced=True),
    ]
    for act in acts:
        if may:
            act()
        else:
            with pytest.raises(Unsupported, match=r"gc\.enabled"):
                act()
    assert (files(fleet) == before) is not may
    assert (len(snapshots(fleet)) == 1) is may


def test_a_short_grace_time_is_refused(fleet: Fleet) -> None:
    create(fleet)
    with pytest.raises(Invalid, match="too short"):
        fleet.maintain(WHERE, "t").remove_orphans(grace=timedelta(minutes=1))


def test_orphans_of_a_crash_go(fleet: Fleet) -> None:
    create(fleet)
    change(fleet, lambda table: table.append(rows(1)))
    folder = next((Path(fleet.url) / "warehouse").rglob("data"))
    (folder / "00000-0-left-over.parquet").write_bytes(b"half")
    (folder / "_hidden").write_bytes(b"kept")
    old = time.time() - 10 * 86400
    os.utime(folder / "00000-0-left-over.parquet", (old, old))
    gone = fleet.maintain(WHERE, "t").remove_orphans()
    assert [path.rpartition("/")[2] for path in gone.files] == ["00000-0-left-over.parquet"]
    assert (folder / "_hidden").exists()
    assert read(fleet) == [1]


def _age(fleet: Fleet, names: Callable[[str], bool] = lambda name: True) -> None:
    """All files of tables with such names were written ten days ago."""
    old = time.time() - 10 * 86400
    for path in files(fleet):
        if names(path):
            os.utime(Path(fleet.url) / "warehouse" / path, (old, old))


def test_an_old_file_that_a_commit_names_meanwhile_is_no_orphan(fleet: Fleet) -> None:
    """The files are listed before the metadata is read: a commit in between may name a file that is not young."""
    create(fleet)
    change(fleet, lambda table: table.append(rows(1)), lambda table: table.append(rows(2)))
    last = snapshots(fleet)[-1]
    drop = [
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshots(fleet)[0]},
        {"action": "remove-snapshots", "snapshot-ids": [last]},
    ]
    removed = next(
        each for each in metadata(fleet.catalog().load_table(WHERE, "t"))["snapshots"] if each["snapshot-id"] == last
    )
    with fleet.lead_catalog() as catalog:
        catalog.commit_table(WHERE, "t", {"requirements": [], "updates": drop})
    _age(fleet)
    table = fleet.maintain(WHERE, "t")
    inner = table._listed

    def listed(roots: Any) -> Any:
        found = inner(roots)
        again = {**removed, "snapshot-id": last + 1, "sequence-number": removed["sequence-number"] + 1}
        reference = {"ref-name": "main", "type": "branch", "snapshot-id": last + 1}
        updates = [{"action": "add-snapshot", "snapshot": again}, {"action": "set-snapshot-ref", **reference}]
        with fleet.lead_catalog() as catalog:
            catalog.commit_table(WHERE, "t", {"requirements": [], "updates": updates})
        return found

    table._listed = listed  # type: ignore[method-assign]
    table.remove_orphans(grace=NOW, quiesced=True)
    assert read(fleet) == [1, 2]


def test_files_of_snapshots_that_expired_lately_stay_for_their_readers(fleet: Fleet) -> None:
    """A query that began before the expiry reads them still, however old the files are."""
    create(fleet)
    change(fleet, lambda table: table.append(rows(1)), lambda table: table.overwrite(rows(2)))
    began = Through(fleet.catalog()).load()
    old = began.metadata.snapshots[0].snapshot_id
    table = fleet.maintain(WHERE, "t")
    assert old in table.expire(max_age=NOW).snapshots
    current_metadata = str(fleet.catalog().load_table(WHERE, "t").metadata_location).rpartition("/")[2]
    _age(fleet, lambda name: not name.endswith(current_metadata))
    assert not table.remove_orphans().files
    assert began.scan(snapshot_id=old).to_arrow()["id"].to_pylist() == [1]
    _age(fleet)
    assert table.remove_orphans().files, "it was current until ten days ago"
    assert read(fleet) == [2]


def test_a_table_that_takes_the_name_meanwhile_is_not_taken_for_the_first(fleet: Fleet) -> None:
    """The files of one table were listed, and the metadata of another one would be read: nothing is deleted."""
    create(fleet)
    change(fleet, lambda table: table.append(rows(1)))
    with fleet.lead_catalog() as catalog:
        catalog.create_table(WHERE, new_table("other"))
    table, before = fleet.maintain(WHERE, "t"), files(fleet)
    inner = table._listed

    def listed(roots: Any) -> Any:
        found = inner(roots)
        with fleet.lead_catalog() as catalog:
            catalog.rename_table((WHERE, "t"), (WHERE, "old"))
            catalog.rename_table((WHERE, "other"), (WHERE, "t"))
        return found

    table._listed = listed  # type: ignore[method-assign]
    with pytest.raises(limpet.Unavailable, match="was moved meanwhile"):
        table.remove_orphans(grace=NOW, quiesced=True)
    assert files(fleet) == before


def test_a_file_of_older_metadata_may_be_gone_and_one_of_a_snapshot_may_not(fleet: Fleet) -> None:
    create(fleet)
    change(fleet, *(lambda table, n=n: table.append(rows(n)) for n in range(3)))
    table = fleet.maintain(WHERE, "t")
    table.expire(max_age=NOW)
    assert table.remove_orphans(grace=NOW, quiesced=True).files, "files of metadata that was current lately"
    assert not table.remove_orphans().files
    [listed] = [each["manifest-list"] for each in metadata(fleet.catalog().load_table(WHERE, "t"))["snapshots"]]
    Path(listed.removeprefix("file://")).unlink()
    before = files(fleet)
    with pytest.raises(Corrupt, match="is gone; nothing was deleted"):
        table.remove_orphans(grace=NOW, quiesced=True)
    assert files(fleet) == before


def test_statistics_and_older_metadata_stay(fleet: Fleet) -> None:
    """They are named by the metadata alone, and by no manifest."""
    create(fleet)
    change(fleet, lambda table: table.append(rows(1)), lambda table: table.append(rows(2)))
    loaded = fleet.catalog().load_table(WHERE, "t")
    root, id_ = metadata(loaded)["location"], metadata(loaded)["current-snapshot-id"]
    named = {"statistics": f"{root}/metadata/a.puffin", "partition-statistics": f"{root}/metadata/b.parquet"}
    blob = {"type": "apache-datasketches-theta-v1", "snapshot-id": id_, "sequence-number": 2, "fields": [1]}
    more = {"statistics": {"file-footer-size-in-bytes": 1, "blob-metadata": [blob]}, "partition-statistics": {}}
    updates = [
        {"action": f"set-{kind}", "snapshot-id": id_,
         kind: {"snapshot-id": id_, "statistics-path": url, "file-size-in-bytes": 1, **more[kind]}}
        for kind, url in named.items()
    ]  # fmt: skip
    with fleet.lead_catalog() as catalog:
        catalog.commit_table(WHERE, "t", {"requirements": [], "updates": updates})
    for url in [*named.values(), f"{root}/metadata/unnamed.puffin"]:
        Path(url.removeprefix("file://")).write_bytes(b"x")
    loaded = fleet.catalog().load_table(WHERE, "t")
    before = files(fleet)
    for path in before:
        os.utime(Path(fleet.url) / "warehouse" / path, (0, 0))
    [gone] = fleet.maintain(WHERE, "t").remove_orphans(grace=NOW, quiesced=True).files
    assert gone.endswith("/unnamed.puffin")
    assert files(fleet) == before - {gone}
    older = [entry["metadata-file"] for entry in metadata(loaded)["metadata-log"]]
    assert all(Path(url.removeprefix("file://")).exists() for url in (str(loaded.metadata_location), *older))
    assert len(older) >= 3


def test_what_maintenance_costs() -> None:
    """On a published index, in memory: three snapshots, one manifest each."""
    fleet = limpet.open("memory://maintenance-costs")
    index = fleet.index("recs", {"fields": [{"name": "id", "type": "string"}]}, key="id")
    for n in range(3):
        index.put({"id": f"r{n}"})
        fleet.publish_index("recs")
    table = fleet.maintain(("indexes",), "recs")
    store: Any = fleet.store
    before = store.snapshot()
    assert len(table.expire(max_age=NOW, dry_run=True).snapshots) == 2
    assert (store.snapshot() - before).requests.get("get", 0) == 2, "the head and the metadata"
    table.expire(max_age=NOW)
    before = store.snapshot()
    gone = table.remove_orphans(grace=NOW, quiesced=True)
    spent = (store.snapshot() - before).requests
    assert spent["list"] == 1
    assert spent["get"] == 6, "the head three times, the metadata, one manifest list, one manifest"
    assert spent["delete"] == len(gone.files) > 0


def test_maintenance_runs_as_a_task_of_the_fleet(fleet: Fleet) -> None:
    """As in docs/use/tables.md: a cron task, and the same as a durable one, whose steps are done once."""
    create(fleet)
    change(fleet, *(lambda table, n=n: table.append(rows(n)) for n in range(3)))

    @fleet.task(cron="0 3 * * *")
    def nightly() -> int:
        return len(fleet.maintain(WHERE, "t").expire(max_age=NOW).snapshots)

    @fleet.task(durable=True)
    def in_steps() -> list[int]:
        return [limpet.step(compact), limpet.step(remove)]

    def compact() -> int:
        return fleet.maintain(WHERE, "t").compact(min_files=2).files

    def remove() -> int:
        return len(fleet.maintain(WHERE, "t").remove_orphans(grace=NOW, quiesced=True).files)

    id_ = nightly.push().id
    assert drain(fleet).done == 1
    assert nightly.queue.result(id_).value == 2
    id_ = in_steps.push().id
    assert drain(fleet).done == 1
    done, gone = in_steps.queue.result(id_).unwrap()
    assert (done, gone > 0) == (3, True)
    assert read(fleet) == [0, 1, 2]


def test_a_published_index_expires_its_old_snapshots() -> None:
    fleet = limpet.open("memory://published-expiry")
    index = fleet.index("recs", {"fields": [{"name": "id", "type": "string"}]}, key="id")
    counts = []
    for n in range(5):
        index.put({"id": f"r{n}"})
        fleet.publish_index("recs")
        if n == 0:
            update = {"action": "set-properties", "updates": {"history.expire.max-snapshot-age-ms": "0"}}
            with fleet.lead_catalog() as catalog:
                catalog.commit_table(("indexes",), "recs", {"requirements": [], "updates": [update]})
        counts.append(len(metadata(fleet.catalog().load_table(("indexes",), "recs"))["snapshots"]))
    assert counts == [1, 2, 2, 2, 2], "the one before stays until the next publication"


def test_a_publication_does_not_expire_a_tag_that_was_moved_meanwhile() -> None:
    fleet = limpet.open("memory://published-tag")
    index = fleet.index("recs", {"fields": [{"name": "id", "type": "string"}]}, key="id")
    where = ("indexes",), "recs"

    def publish(n: int) -> int:
        index.put({"id": f"r{n}"})
        fleet.publish_index("recs")
        return int(metadata(fleet.catalog().load_table(*where))["current-snapshot-id"])

    def tag(id_: int, **rule: int) -> None:
        update = {"action": "set-snapshot-ref", "ref-name": "kept", "type": "tag", "snapshot-id": id_, **rule}
        with fleet.lead_catalog() as catalog:
            catalog.commit_table(*where, {"requirements": [], "updates": [update]})

    first, second = publish(0), publish(1)
    tag(first, **{"max-ref-age-ms": 1})
    index.put({"id": "r2"})
    publisher = IndexPublisher(index, fleet.catalog(), where, partial(fleet._writing, None, 20.0))
    inner, moves = publisher._lead, [second]

    def lead() -> Any:
        if moves:
            tag(moves.pop())
        return inner()

    publisher._lead = lead
    assert publisher.publish().changed
    assert metadata(fleet.catalog().load_table(*where))["refs"]["kept"]["snapshot-id"] == second


def test_a_compaction_copies_no_file_of_another_table(fleet: Fleet) -> None:
    """Who may write to this table may not read the other one; the process that compacts may read both."""
    create(fleet)
    change(fleet, *(lambda table, n=n: table.append(rows(n)) for n in range(6)))
    other = Path(fleet.url) / "warehouse" / "b" / "other-0123456789ab"
    other.mkdir(parents=True)

    def forge(table: Table) -> None:
        [stolen, *_] = [task.file for task in table.scan().plan_files()]
        (other / "x.parquet").write_bytes(Path(stolen.file_path.removeprefix("file://")).read_bytes())
        names = ("content", "file_format", "partition", "record_count", "file_size_in_bytes")
        forged = DataFile.from_args(
            file_path=f"file://{other}/x.parquet", **{name: getattr(stolen, name) for name in names}
        )
        forged.spec_id = 0
        with table.transaction() as act, act.update_snapshot().fast_append() as snapshot:
            snapshot.append_data_file(forged)

    change(fleet, forge)
    before = files(fleet)
    with pytest.raises(Unsupported, match="is not in a folder of the table"):
        fleet.maintain(WHERE, "t").compact()
    assert files(fleet) == before


def test_a_manifest_is_read_within_its_bounds_whatever_it_is_called(fleet: Fleet) -> None:
    """A data file may have a gigabyte, and a manifest 64 MB: its name does not decide."""
    create(fleet)
    with fleet.lead_catalog() as catalog:
        loaded = catalog.load_table(WHERE, "t")
        large = f"{metadata(loaded)['location']}/metadata/x.parquet"
        catalog.commit_table(WHERE, "t", append(loaded, 1, **{"manifest-list": large}))
    path = Path(large.removeprefix("file://"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    table = fleet.maintain(WHERE, "t")
    for read_it in (table.compact, table.remove_orphans):
        with pytest.raises(Corrupt, match="more than"):
            read_it()


@pytest.mark.parametrize("version", [2, 3])
def test_a_url_in_a_column_is_a_text_that_no_process_of_ours_opens_or_deletes(fleet: Fleet, version: int) -> None:
    """Unknown fields of columns, specs and summaries are passed on, or dropped: a comment may name any file (F29)."""
    from support.catalog import table

    other = Path(fleet.url) / "warehouse" / "b" / "other-0123456789ab" / "x.parquet"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"kept")
    odd = {"location": f"file://{other}", "path": "file:///nowhere/x", "manifest-list": f"file://{other}"}
    column = {"id": 1, "name": "id", "type": "long", "required": False, "doc": "s3://elsewhere/x", **odd}
    spec = {"fields": [{"name": "id", "source-id": 1, "field-id": 1000, "transform": "identity", **odd}]}
    schema = {"type": "struct", "schema-id": 0, "fields": [column]}
    wanted = table("t", schema=schema, **{"partition-spec": spec}, properties={"format-version": str(version)})
    with fleet.lead_catalog() as catalog:
        catalog.create_namespace(WHERE)
        catalog.create_table(WHERE, wanted)
        loaded = catalog.load_table(WHERE, "t")
        summary = {"operation": "append", **odd}
        rows_of = {"first-row-id": 0, "added-rows": 0} if version == 3 else {}
        catalog.commit_table(WHERE, "t", append(loaded, 1, summary=summary, **rows_of))
        catalog.commit_table(
            WHERE, "t", {"requirements": [], "updates": [{"action": "remove-snapshot-ref", "ref-name": "main"}]}
        )
        assert catalog.load_table(WHERE, "t")
    maintained = fleet.maintain(WHERE, "t")
    maintained.expire(max_age=NOW)
    maintained.remove_orphans(grace=NOW, quiesced=True)
    with fleet.lead_catalog() as catalog:
        catalog.plan_scan(WHERE, "t", {})
        catalog.drop_table(WHERE, "t", purge=True)
    assert other.read_bytes() == b"kept"
    assert not [path for path in files(fleet) if path.startswith("a/t-")], "the table's own files are gone"


def test_a_plan_is_of_the_table_and_not_of_its_name(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is made; the table is renamed or dropped, another one takes its name; then the tasks are read."""
    monkeypatch.setattr(plan, "FILES_MAX", 1)
    create(fleet)
    change(fleet, *(lambda table, n=n: table.append(rows(n)) for n in range(2)))
    reader = fleet.catalog()
    wanted = {str(task.file.file_path) for task in Through(reader).load().scan().plan_files()}
    tasks = reader.plan_scan(WHERE, "t", {})["plan-tasks"]

    def found(name: str) -> set[str]:
        answers = [reader.scan_tasks(WHERE, name, task) for task in tasks]
        return {each["data-file"]["file-path"] for answer in answers for each in answer["file-scan-tasks"]}

    change(fleet, lambda table: table.overwrite(rows(9)))
    assert found("t") == wanted, "the snapshot of the plan"
    with fleet.lead_catalog() as catalog:
        catalog.rename_table((WHERE, "t"), (WHERE, "u"))
    assert found("u") == wanted
    with pytest.raises(NoSuchTable):
        found("t")
    with fleet.lead_catalog() as catalog:
        catalog.create_table(WHERE, new_table("t"))
    change(fleet, *(lambda table, n=n: table.append(rows(n)) for n in range(2)))
    with pytest.raises(Missing, match="has no snapshot"):
        found("t")
    with fleet.lead_catalog() as catalog:
        catalog.drop_table(WHERE, "u")
    with pytest.raises(NoSuchTable):
        found("u")


def test_a_process_that_does_not_lead_signs_by_the_published_state(fleet: Fleet) -> None:
    """Its folders are those of the table that has the name now, also if this process has read an older state."""
    create(fleet)
    follower = fleet.catalog()
    before = follower.table_folders(WHERE, "t")
    with fleet.lead_catalog() as catalog:
        catalog.drop_table(WHERE, "t")
    with pytest.raises(NoSuchTable):
        follower.table_folders(WHERE, "t")
    with fleet.lead_catalog() as catalog:
        catalog.create_table(WHERE, new_table("t"))
        assert not {*before} & {*catalog.table_folders(WHERE, "t")}
    assert not {*before} & {*follower.table_folders(WHERE, "t")}


def test_a_plan_reads_no_manifest_of_a_sibling_folder(fleet: Fleet) -> None:
    """The manifests of a table are in its folders; a folder whose name begins alike is another table's."""
    create(fleet)
    change(fleet, lambda table: table.append(rows(1)))
    [root] = fleet.catalog().table_folders(WHERE, "t")
    folder = Path(fleet.url) / "warehouse" / root
    shutil.copytree(folder, folder.with_name(f"{folder.name}2"))
    listed = next(each for each in metadata(fleet.catalog().load_table(WHERE, "t"))["snapshots"])["manifest-list"]
    snapshot = {
        "snapshot-id": 7,
        "sequence-number": 9,
        "timestamp-ms": int(time.time() * 1000) + 1000,
        "manifest-list": listed.replace(folder.name, f"{folder.name}2"),
        "summary": {"operation": "append"},
    }
    with fleet.lead_catalog() as catalog:
        catalog.commit_table(WHERE, "t", {"updates": [{"action": "add-snapshot", "snapshot": snapshot}]})
    assert fleet.catalog().plan_scan(WHERE, "t", {})["file-scan-tasks"]
    with pytest.raises(Unsupported, match="not in a folder of the table"):
        fleet.catalog().plan_scan(WHERE, "t", {"snapshot-id": 7})
