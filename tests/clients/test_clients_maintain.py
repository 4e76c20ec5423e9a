"""Maintenance of tables whose files have odd names and other partition specs, on a directory and on SeaweedFS."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

import limpet
from clients.conftest import Served
from limpet.catalog.maintain.tables import TableMaintenance
from limpet.service.client import ServiceWriter

NOW = timedelta(0)
ODD = ["a b", "a+b", "100%", "a%20b", "é/ü", "x=y&z", "#?", "..", ".hidden", "_under", "'\"", "日本"]
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": [*ids] * len(ODD), "part": [part for part in ODD for _ in ids]})


def found(table: Table) -> list[tuple[str, int]]:
    return sorted((row["part"], row["id"]) for row in table.scan().to_arrow().to_pylist())


def data_files(table: Table) -> set[str]:
    return {str(task.file.file_path) for task in table.scan().plan_files()}


def expire_all_but_one(table: TableMaintenance) -> None:
    """The times of a bucket are in whole seconds, so a snapshot of the last second counts as young."""
    while table.expire(max_age=NOW).kept > 1:
        pass


def test_files_with_odd_names_are_compacted_and_only_orphans_go(
    served: Served, catalog: RestCatalog, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition values are part of the names of files. Rows of an older partition spec stay in their files."""
    for name, value in served.place.env.items():
        monkeypatch.setenv(name, value)
    name, sibling = f"{namespace}.t", f"{namespace}.t 2"
    for each in (name, sibling):
        catalog.create_table(each, SCHEMA).append(rows(0))
    table = catalog.load_table(name)
    with table.update_spec() as update:
        update.add_identity("part")
    [unpartitioned] = data_files(table)
    for n in (1, 2):
        catalog.load_table(name).append(rows(n))
    assert len(data_files(catalog.load_table(name))) == 1 + 2 * len(ODD)

    maintained = limpet.open(served.place.url).maintain((namespace,), "t", through=ServiceWriter(served.url))
    done = maintained.compact(min_files=2)
    assert (done.files, done.unreadable) == (2 * len(ODD), 0)
    expire_all_but_one(maintained)
    gone = maintained.remove_orphans(grace=NOW, quiesced=True).files
    table = catalog.load_table(name)
    assert found(table) == sorted((part, n) for part in ODD for n in range(3))
    assert len(data_files(table)) == 1 + len(ODD)
    assert unpartitioned in data_files(table)
    assert sum(file.endswith(".parquet") for file in gone) == 2 * len(ODD)
    assert not maintained.remove_orphans(grace=NOW, quiesced=True).files

    before = data_files(table)
    table.overwrite(rows(5))
    expire_all_but_one(maintained)
    gone = maintained.remove_orphans(grace=NOW, quiesced=True).files
    assert sum(file.endswith(".parquet") for file in gone) == len(before)
    assert found(catalog.load_table(name)) == sorted((part, 5) for part in ODD)
    assert found(catalog.load_table(sibling)) == sorted((part, 0) for part in ODD)
