"""Rows that other engines delete, by position deletes (version 2) or deletion vectors (version 3), stay deleted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

import limpet
from limpet.app import Fleet
from limpet.app.query import fleet_sql
from limpet.catalog.iceberg.files import Column, Stamp, contents_of, data_file, stage_request
from limpet.catalog.iceberg.rewrite import current_files
from limpet.catalog.maintain.tables import LedCatalogWriter, TableMaintenance, TableWriter
from sim.deletes import changing_commit, position_deletes, puffin_deletes

WHERE = ("a",), "t"
COLUMNS = (Column("id", "long"),)


class Engine:
    """Writes a table as an engine does that deletes rows without rewriting their files."""

    def __init__(self, fleet: Fleet, version: int) -> None:
        self._fleet = fleet
        self._version = version
        self._places: dict[int, tuple[str, int]] = {}
        self._gone: dict[str, list[int]] = {}
        self._commits = 0
        with fleet.lead_catalog() as catalog:
            catalog.create_namespace(WHERE[0])
            request = {**stage_request(WHERE[1], "engine", COLUMNS), "stage-create": False}
            catalog.create_table(WHERE[0], {**request, "properties": {"format-version": str(version)}})

    def change(self, added: Sequence[int] = (), deleted: Sequence[int] = ()) -> None:
        """Add a file of rows, and delete some, in one commit."""
        with self._fleet.lead_catalog() as catalog:
            self._change(LedCatalogWriter(catalog), added, deleted)

    def _change(self, writer: TableWriter, added: Sequence[int], deleted: Sequence[int]) -> None:
        catalog, self._commits = self._fleet.catalog(), self._commits + 1
        loaded, fetch = catalog.open_table(*WHERE)
        current = current_files(loaded.metadata, fetch, "a.t")
        contents = contents_of(loaded.metadata, "engine", COLUMNS, fetch)
        writes: dict[str, bytes] = {}
        files = []
        if added:
            url = f"{contents.location}/data/f{self._commits}.parquet"
            file, writes[url] = data_file(contents, url, pa.table({"id": pa.array(added, pa.int64())}))
            files.append(file)
            self._places |= {id_: (url, at) for at, id_ in enumerate(added)}
        gone: dict[str, list[int]] = {**self._gone} if self._version == 3 else {}
        for id_ in deleted:
            url, at = self._places[id_]
            gone[url] = sorted([*gone.get(url, ()), at])
        deletes = []
        if gone:
            url = f"{contents.location}/data/d{self._commits}.{'puffin' if self._version == 3 else 'parquet'}"
            made, writes[url] = puffin_deletes(url, gone) if self._version == 3 else position_deletes(url, gone)
            deletes = made if isinstance(made, list) else [made]
        self._gone = gone
        request, manifests = changing_commit(current, Stamp(self._commits, 0, "u"), files, deletes)
        for url, data in {**writes, **manifests}.items():
            path = Path(url.removeprefix("file://"))
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_bytes(data)
        writer.commit_table(*WHERE, request)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return limpet.open(str(tmp_path / "fleet"), durability="os")


def rows(fleet: Fleet) -> list[int]:
    return [id_ for (id_,) in fleet_sql(fleet, "select id from tables.a.t order by id")]


def maintained(fleet: Fleet, *acts: Callable[[], object]) -> TableMaintenance:
    """The maintenance of the table; before each of its first commits, another process does one of `acts`."""
    table, left = fleet.maintain(*WHERE), [*acts]
    inner = table._lead

    @contextmanager
    def lead() -> Iterator[Any]:
        if left:
            left.pop(0)()
        with inner() as writer:
            yield writer

    table._lead = lead
    return table


def parquets(fleet: Fleet) -> set[str]:
    return {name for _, _, names in os.walk(f"{fleet.url}/warehouse") for name in names if name.endswith(".parquet")}


@pytest.mark.parametrize("version", [2, 3])
def test_rows_that_are_deleted_beside_a_compaction_stay_deleted(fleet: Fleet, version: int) -> None:
    """The delete arrives after the files of the group were read: what was rewritten has the deleted row."""
    engine = Engine(fleet, version)
    for n in range(6):
        engine.change([10 * n, 10 * n + 1])
    before = parquets(fleet)
    table = maintained(fleet, lambda: engine.change(deleted=[30]))
    with pytest.raises(limpet.Unavailable, match="too many concurrent commits"):
        table.compact()
    left = [id_ for n in range(6) for id_ in (10 * n, 10 * n + 1) if id_ != 30]
    assert rows(fleet) == left
    assert len(parquets(fleet) - before) == (version == 2), "the rewritten file is gone; a file of deletes is there"
    done = table.compact()
    assert (done.files, done.commits) == (6, 1)
    assert rows(fleet) == left


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_of_other_files_keep_what_was_rewritten(fleet: Fleet, version: int) -> None:
    """Of two groups, one has a row deleted meanwhile: the other one is committed, and nothing is read again."""
    engine = Engine(fleet, version)
    for n in range(4):
        engine.change([10 * n + m for m in range(1000)] if n == 3 else [100_000 + n])
    engine.change(deleted=[31])
    table = maintained(fleet, lambda: engine.change([200_000]))
    size = 3000
    assert table.compact(target_bytes=size, min_files=2).commits
    assert 31 not in rows(fleet)
    assert len(rows(fleet)) == 1000 + 3 + 1 - 1


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_apply_to_files_of_their_own_commit(fleet: Fleet, version: int) -> None:
    """An engine that merges rows adds and deletes them in one snapshot: both have one sequence number."""
    engine = Engine(fleet, version)
    engine.change([1, 2, 3], deleted=[2])
    engine.change([4, 5, 6], deleted=[1, 6])
    assert rows(fleet) == [3, 4, 5]
    planned = fleet.catalog().plan_scan(*WHERE, {})
    assert all(task.get("delete-file-references") for task in planned["file-scan-tasks"])
    assert maintained(fleet).compact(min_files=2).files == 2
    assert rows(fleet) == [3, 4, 5]
    assert not maintained(fleet).compact().commits
