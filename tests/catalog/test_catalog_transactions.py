"""Several tables in one commit: all or none."""

from __future__ import annotations

from typing import Any

import pytest

from limpet.catalog.catalog import Catalog, LoadedTable
from limpet.catalog.names import CommitFailed, NoSuchTable
from limpet.catalog.warehouse import Warehouse
from limpet.kernel.errors import Invalid
from limpet.kernel.runtime import system
from support.catalog import append, catalog, metadata, staged, table

__all__ = ["catalog"]


@pytest.fixture(autouse=True)
def tables(catalog: Catalog) -> None:
    catalog.create_namespace(["a"])
    for name in ("t", "u"):
        catalog.create_table(["a"], table(name))


def change(name: str, request: dict[str, Any]) -> dict[str, Any]:
    return {"identifier": {"namespace": ["a"], "name": name}, **request}


def creation(catalog: Catalog, name: str, **fields: Any) -> dict[str, Any]:
    updates = staged(catalog.create_table(["a"], {**table(name, **fields), "stage-create": True}))
    return change(name, {"requirements": [{"type": "assert-create"}], "updates": updates})


def current(loaded: LoadedTable) -> int | None:
    found: int | None = metadata(loaded).get("current-snapshot-id")
    return found


def test_all_of_it_is_published_in_one_version(catalog: Catalog) -> None:
    before = catalog.at().version
    loaded = {name: catalog.load_table(["a"], name) for name in ("t", "u")}
    changes = [change(name, append(each, 7)) for name, each in loaded.items()]
    catalog.commit_transaction([*changes, creation(catalog, "new")], id_="one")
    assert catalog.at().version == before + 1
    assert [current(catalog.load_table(["a"], name)) for name in ("t", "u", "new")] == [7, 7, None]
    with pytest.raises(CommitFailed):
        catalog.commit_transaction(changes)


def test_one_that_fails_undoes_all(catalog: Catalog) -> None:
    good = change("t", append(catalog.load_table(["a"], "t"), 1))
    stale = append(catalog.load_table(["a"], "u"), 2)
    catalog.commit_table(["a"], "u", append(catalog.load_table(["a"], "u"), 1))
    version = catalog.at().version
    refusals: list[tuple[type[Exception], dict[str, Any]]] = [
        (CommitFailed, change("u", stale)),
        (NoSuchTable, change("gone", stale)),
        (NoSuchTable, {**change("x", stale), "identifier": {"namespace": ["b"], "name": "x"}}),
        (Invalid, change("u", {"updates": [{"action": "set-location", "location": "s3://elsewhere"}]})),
        (Invalid, change("u", {"updates": [{"action": "set-current-schema", "schema-id": 9}]})),
    ]
    for kind, bad in refusals:
        for changes in ([good, bad], [bad, good]):
            with pytest.raises(kind):
                catalog.commit_transaction(changes)
    assert catalog.at().version == version
    assert current(catalog.load_table(["a"], "t")) is None
    catalog.commit_transaction([good])
    assert current(catalog.load_table(["a"], "t")) == 1


def test_the_same_id_commits_once(catalog: Catalog) -> None:
    changes = [change("t", append(catalog.load_table(["a"], "t"), 1))]
    catalog.commit_transaction(changes, id_="one")
    catalog.commit_transaction(changes, id_="one")
    assert len(metadata(catalog.load_table(["a"], "t"))["snapshots"]) == 1


def test_a_process_that_knows_nothing_reads_what_it_needs(catalog: Catalog) -> None:
    changes = [change(name, append(catalog.load_table(["a"], name), 1)) for name in ("t", "u")]
    url = catalog.warehouse.url.removesuffix("/warehouse")
    cold = Catalog(catalog.storage, Warehouse(catalog.warehouse.store, url, system()), catalog.leader)
    cold.commit_transaction(changes)
    assert current(catalog.load_table(["a"], "u")) == 1


def test_two_new_tables_may_not_overlap(catalog: Catalog) -> None:
    url = catalog.warehouse.url
    for one, other in (("x", "x"), ("x", "x/y"), ("x/y", "x")):
        changes = [creation(catalog, "n1", location=f"{url}/{one}"), creation(catalog, "n2", location=f"{url}/{other}")]
        with pytest.raises(Invalid, match="overlap"):
            catalog.commit_transaction(changes)
    assert catalog.tables(["a"]).names == ["t", "u"]


@pytest.mark.parametrize(
    "changes",
    [
        None,
        [],
        "x",
        7,
        [7],
        [{}],
        [{"identifier": 7}],
        [{"identifier": {"namespace": [], "name": "t"}}],
        [{"identifier": {"namespace": ["a"], "name": ""}}],
        [change("t", {}), change("t", {})],
        [change("t", {"updates": [{"action": "moon"}]})],
        [change("t", {})] * 1001,
    ],
)
def test_transactions_that_are_refused(catalog: Catalog, changes: object) -> None:
    with pytest.raises(Invalid):
        catalog.commit_transaction(changes)
