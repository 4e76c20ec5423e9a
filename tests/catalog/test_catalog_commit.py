"""Decisions on requests are pure: the same values give the same grant, and nothing is read, drawn or remembered."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

from limpet.catalog import CatalogState, Grant, commit, entries
from limpet.catalog.commit import WorkedMetadata
from limpet.catalog.leader import Decide, Documents, NeedsMetadata
from limpet.catalog.names import find_entry
from limpet.catalog.records import Row
from limpet.catalog.warehouse import Warehouse
from limpet.kernel.runtime import system
from limpet.kernel.store import MemoryStore
from support.catalog import table, view

AT = "2026-11-17T00:00:00+00:00"
WHERE = ("a",)


def sealed(warehouse: Warehouse) -> None:
    """Take away all that a decision could read, draw, measure or change."""
    for name in ("store", "runtime", "_mutex", "_cache", "_files"):
        setattr(warehouse, name, None)


def twice(decide: Decide, state: CatalogState, made: Documents) -> Grant | NeedsMetadata:
    first, second = decide(state, made), decide(state, made)
    if isinstance(first, NeedsMetadata) and isinstance(second, NeedsMetadata):
        assert [*first.needs] == [*second.needs]
    else:
        assert isinstance(first, Grant)
        assert replace(first, made={}) == replace(cast(Grant, second), made={})
        assert [*first.made] == [*cast(Grant, second).made]
    return first


def after(state: CatalogState, grant: Grant | NeedsMetadata) -> CatalogState:
    assert isinstance(grant, Grant)
    return state.after([Row(grant.what, grant.what, grant.changes, grant.result)], AT)


def properties(**updates: str) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": updates}]}


def test_every_decision_is_a_function_of_what_it_is_given() -> None:
    warehouse = Warehouse(MemoryStore(system()), "s3://bucket", system())
    empty = CatalogState()
    drafts = {name: entries.draft("t", warehouse, empty, WHERE, name, table(name)) for name in "tu"}
    drafted_view = entries.draft("v", warehouse, empty, WHERE, "v", view("v"))
    new_view = partial(entries.create, "v", warehouse, WHERE, "v", drafted_view)
    for draft in drafts.values():
        warehouse.keep(draft.entry.path, draft.document)
    first, second = (commit.prepare_commit(warehouse, CatalogState, WHERE, "t", properties(n=n)) for n in "12")
    both = commit.prepare_transaction(
        warehouse,
        CatalogState,
        [{"identifier": {"namespace": ["a"], "name": name}, **properties(x="y")} for name in "tu"],
    )
    worked_t, worked_none, worked_u = (WorkedMetadata(warehouse) for _ in range(3))
    worked_t.work_out(first.needs(warehouse, drafts["t"].entry.path))
    worked_u.work_out(both[1].needs(warehouse, drafts["u"].entry.path))
    sealed(warehouse)

    state = after(empty, twice(partial(entries.create_namespace, WHERE, {"x": "1"}), empty, {}))
    state = after(state, twice(partial(entries.update_namespace, WHERE, ["x"], {"y": "2"}), state, {}))
    made: dict[str, Any] = {}
    for decide in (*(partial(entries.create, "t", warehouse, WHERE, *each) for each in drafts.items()), new_view):
        grant = twice(decide, state, made)
        state = after(state, grant)
        assert isinstance(grant, Grant)
        made |= grant.made
    second_wants = partial(commit.commit_table, warehouse, second, worked_none)
    for each in (
        partial(commit.commit_table, warehouse, first, worked_t),
        second_wants,
        partial(commit.commit_transaction, warehouse, both, worked_u),
    ):
        if each is second_wants:
            assert isinstance(twice(each, state, {}), NeedsMetadata), "what is not handed in is not looked for"
        grant = twice(each, state, made)
        assert isinstance(grant, Grant)
        assert {put.data for put in grant.writes} == {document.data for document in grant.made.values()}
        state = after(state, grant)
        made |= grant.made
    entry = find_entry(state, "t", WHERE, "t")
    assert entry is not None
    assert {"n": "2", "x": "y"}.items() <= made[entry.path].json()["properties"].items()
    state = after(state, twice(partial(entries.drop, "t", WHERE, "t", None), state, made))
    state = after(state, twice(partial(entries.undrop, "t", WHERE, "t", entry), state, made))
    state = after(state, twice(partial(entries.rename, "v", (WHERE, "v"), (WHERE, "w")), state, made))
    purge = partial(entries.drop, "t", WHERE, "u", entries.CheckedPurge(warehouse))
    assert isinstance(twice(purge, state, {}), NeedsMetadata), "what is not handed in is not looked for"
    state = after(state, twice(purge, state, made))
    roots = [key[2:] for key in state.keys_under("p/")]
    state = after(state, twice(partial(entries.release_folders, roots), state, made))
    assert [*state.keys_under("p/")] == []
