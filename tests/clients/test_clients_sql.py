"""`limpet sql` reads tables with the row-level deletes that other engines write, or says that it cannot."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

import limpet
from clients.conftest import Served
from clients.ducks import attached
from limpet.app.query import fleet_sql
from limpet.service.client import ServiceWriter
from support.servers.catalog import until

DELETED_ID = 7_777_777_777


@pytest.fixture
def with_keys(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of somebody who may read the bucket."""
    for name, value in served.place.env.items():
        monkeypatch.setenv(name, value)


def ask(served: Served, query: str) -> list[tuple[Any, ...]]:
    """What `limpet sql` answers."""
    return [*fleet_sql(limpet.open(served.place.url, read_only=True), query)]


@pytest.mark.usefixtures("with_keys")
def test_positional_deletes_of_duckdb_are_applied_and_compacted(
    served: Served, catalog: RestCatalog, namespace: str
) -> None:
    with closing(attached(served)) as duck:
        duck.execute(f"USE c.{namespace}")
        duck.execute("CREATE TABLE t (id BIGINT, city VARCHAR)")
        duck.execute("INSERT INTO t SELECT range, 'city ' || range FROM range(1000)")
        duck.execute("DELETE FROM t WHERE id % 2 = 0")
        duck.execute("UPDATE t SET city = 'Bodø' WHERE id = 3")
    files = catalog.load_table((namespace, "t")).inspect.delete_files().to_pylist()
    assert {each["content"] for each in files} == {int(DataFileContent.POSITION_DELETES)}
    query = f"select count(*), min(id), max(id), any_value(city) filter (id = 3) from tables.{namespace}.t"
    assert ask(served, query) == [(500, 1, 999, "Bodø")]
    maintain = limpet.open(served.place.url).maintain([namespace], "t", through=ServiceWriter(served.url))
    assert maintain.compact().commits == 1
    assert catalog.load_table((namespace, "t")).inspect.delete_files().to_pylist() == []
    assert ask(served, query) == [(500, 1, 999, "Bodø")]
    assert catalog.load_table((namespace, "t")).scan().to_arrow().num_rows == 500


VALUES = [
    *(
        "Oslo",
        "a b",
        "São/Paulo",
        "50%",
        "ø+å",
        "..",
        "",
        "x?y#z",
        "%2e%2e",
        "a=b",
        "back\\slash",
        "line\nbreak",
        "star*",
    ),
    *("北海道札幌市中央区北一条西二丁目", "x" * 200, None),
]


@pytest.mark.usefixtures("with_keys")
@pytest.mark.parametrize("engine", ["pyiceberg", "duckdb"])
def test_partitioned_tables_are_read_and_compacted_whatever_the_values_are(
    served: Served, catalog: RestCatalog, namespace: str, engine: str
) -> None:
    """Engines write the values of a partition into the paths of its files, each in its own way."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "city", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "city"))
    table = catalog.create_table((namespace, "t"), schema, partition_spec=spec)
    for turn in range(2):
        if engine == "pyiceberg":
            ids = pa.array(range(turn * 100, turn * 100 + len(VALUES)), pa.int64())
            table.refresh().append(pa.table({"id": ids, "city": pa.array(VALUES, pa.string())}))
            continue
        with closing(attached(served)) as duck:
            for n, value in enumerate(VALUES):
                duck.execute(f"INSERT INTO c.{namespace}.t VALUES (?, ?)", [turn * 100 + n, value])
    wanted = [(turn * 100 + n, value) for turn in range(2) for n, value in enumerate(VALUES)]
    query = f"select id, city from tables.{namespace}.t order by id"
    assert ask(served, query) == wanted
    maintain = limpet.open(served.place.url).maintain([namespace], "t", through=ServiceWriter(served.url))
    done = maintain.compact(min_files=2)
    assert (done.files, done.new_files, done.unreadable) == (2 * len(VALUES), len(VALUES), 0)
    assert ask(served, query) == wanted
    removed: list[str] = []

    def all_gone() -> bool:
        maintain.expire(max_age=timedelta(0))
        removed.extend(maintain.remove_orphans(grace=timedelta(0), quiesced=True).files)
        return len(removed) >= 2 * len(VALUES)

    until("the old snapshots and files are older than the tick of the store's clock", all_gone)
    assert ask(served, query) == wanted
    with closing(attached(served)) as duck:
        assert duck.execute(f"SELECT * FROM c.{namespace}.t ORDER BY id").fetchall() == wanted


class _DeletesWriter(ManifestWriterV2):
    """PyIceberg writes no manifests of deletes by itself."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_by_value(table: Table) -> None:
    """Commit an equality delete of `id`, as Flink does."""
    before = table.current_snapshot()
    assert before is not None
    folder = f"{table.location()}/metadata"
    at_ms = int(time.time() * 1000)
    statistics: Mapping[int, Any] = {}
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=f"{table.location()}/data/equality.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=500,
        equality_ids=[1],
        column_sizes=statistics,
        value_counts=statistics,
        null_value_counts=statistics,
        nan_value_counts=statistics,
        lower_bounds=statistics,
        upper_bounds=statistics,
    )
    entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=DELETED_ID, data_file=file)
    output = table.io.new_output(f"{folder}/deletes.avro")
    with _DeletesWriter(table.spec(), table.schema(), output, DELETED_ID, "null") as writer:
        writer.add_entry(entry)
    manifests: list[ManifestFile] = [writer.to_manifest_file(), *before.manifests(table.io)]
    listed = f"{folder}/list.avro"
    sequence = (before.sequence_number or 0) + 1
    with write_manifest_list(
        2, table.io.new_output(listed), DELETED_ID, before.snapshot_id, sequence, "null"
    ) as writing:
        writing.add_manifests(manifests)
    snapshot = {
        "snapshot-id": DELETED_ID,
        "parent-snapshot-id": before.snapshot_id,
        "sequence-number": sequence,
        "timestamp-ms": at_ms,
        "manifest-list": listed,
        "summary": {"operation": "delete"},
        "schema-id": table.schema().schema_id,
    }
    added = AddSnapshotUpdate.model_validate({"snapshot": snapshot})
    reference = {"ref-name": "main", "type": "branch", "snapshot-id": DELETED_ID}
    changes = (added, SetSnapshotRefUpdate.model_validate(reference))
    table.catalog.commit_table(table, (), changes)


@pytest.mark.usefixtures("with_keys")
def test_equality_deletes_are_refused_with_a_hint(served: Served, catalog: RestCatalog, namespace: str) -> None:
    with closing(attached(served)) as duck:
        duck.execute(f"CREATE TABLE c.{namespace}.t (id BIGINT)")
        duck.execute(f"INSERT INTO c.{namespace}.t VALUES (1), (2)")
    assert ask(served, f"select count(*) from tables.{namespace}.t") == [(2,)]
    delete_by_value(catalog.load_table((namespace, "t")))
    with pytest.raises(limpet.Unsupported, match="has equality deletes, which limpet does not read") as refused:
        ask(served, f"select count(*) from tables.{namespace}.t")
    assert "compact it with the engine that wrote them" in refused.value.hint
    assert ask(served, f"describe tables.{namespace}.t")[0][0] == "id"
