"""Namespaces: nested, with properties, listed in pages."""

from __future__ import annotations

import pytest

from limpet.catalog.catalog import Catalog, NamesPage
from limpet.catalog.leader import NotLeader
from limpet.catalog.names import AlreadyExists, NamespaceNotEmpty, NoSuchNamespace
from limpet.kernel.errors import Invalid
from limpet.kernel.runtime import system
from limpet.kernel.store import MemoryStore
from limpet.kernel.store.metered import MeteredStore
from support.catalog import catalog, catalog_on, table, view

__all__ = ["catalog"]


def test_an_empty_catalog_reads_as_empty(catalog: Catalog) -> None:
    assert catalog.namespaces() == NamesPage([], None)
    assert not catalog.has_table(["a"], "t")
    for missing in (catalog.namespace, catalog.tables, catalog.views, catalog.namespaces, catalog.drop_namespace):
        with pytest.raises(NoSuchNamespace, match=r"Namespace does not exist: a\n"):
            missing(["a"])


def test_create_nest_and_drop(catalog: Catalog) -> None:
    assert catalog.create_namespace(["a"], {"owner": "me"}) == {"owner": "me"}
    assert catalog.namespace(["a"]) == {"owner": "me"}
    with pytest.raises(AlreadyExists):
        catalog.create_namespace(["a"])
    with pytest.raises(NoSuchNamespace, match=r"Namespace does not exist: a\.b\n"):
        catalog.create_namespace(["a", "b", "c"])
    catalog.create_namespace(["a", "b"])
    catalog.create_namespace(["a.b"])
    assert catalog.namespaces().names == ["a", "a.b"]
    assert catalog.namespaces(["a"]).names == ["b"]
    with pytest.raises(NamespaceNotEmpty):
        catalog.drop_namespace(["a"])
    catalog.drop_namespace(["a", "b"])
    catalog.drop_namespace(["a"])
    assert catalog.namespaces().names == ["a.b"]


def test_a_namespace_with_a_table_or_a_view_is_not_empty(catalog: Catalog) -> None:
    catalog.create_namespace(["a"])
    catalog.create_table(["a"], table())
    with pytest.raises(NamespaceNotEmpty):
        catalog.drop_namespace(["a"])
    catalog.drop_table(["a"], "t")
    catalog.create_view(["a"], view())
    with pytest.raises(NamespaceNotEmpty):
        catalog.drop_namespace(["a"])
    catalog.drop_view(["a"], "v")
    catalog.drop_namespace(["a"])


def test_properties_are_set_and_removed(catalog: Catalog) -> None:
    catalog.create_namespace(["a"], {"x": "1", "y": "2"})
    told = catalog.update_properties(["a"], ["x", "z", "x"], {"y": "3", "w": "4"})
    assert told == {"updated": ["y", "w"], "removed": ["x"], "missing": ["z"]}
    assert catalog.namespace(["a"]) == {"y": "3", "w": "4"}
    with pytest.raises(Invalid, match="both set and removed"):
        catalog.update_properties(["a"], ["y"], {"y": "5"})
    with pytest.raises(NoSuchNamespace):
        catalog.update_properties(["b"], [], {"y": "5"})
    for properties in ({"location": "s3://elsewhere/x"}, {"x": {"y": 1}}, "x", {"x": "y" * 70_000}):
        with pytest.raises(Invalid):
            catalog.update_properties(["a"], [], properties)
        with pytest.raises(Invalid):
            catalog.create_namespace(["new"], properties)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        catalog.update_properties(["a"], [1], {})
    assert catalog.namespaces().names == ["a"]
    catalog.update_properties(["a"], [], {"w": "y" * 40_000})
    with pytest.raises(Invalid, match="at most"):
        catalog.update_properties(["a"], [], {"v": "y" * 40_000})


def test_pages(catalog: Catalog) -> None:
    names = ["a", "%", "a b", "a/b", "b", "ä", "名"]
    for name in names:
        catalog.create_namespace([name])
        catalog.create_namespace(["a", name])
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = catalog.namespaces(after=after, limit=2)
        seen += page.names
        after = page.next
    assert seen == [*catalog.namespaces().names]
    assert sorted(seen) == sorted(names)
    assert catalog.namespaces(limit=7).next is None, "the last page says so"
    with pytest.raises(Invalid):
        catalog.namespaces(limit=0)


def test_names_of_every_kind_work(catalog: Catalog) -> None:
    for name in ("a/b", "...", "x" * 255, "名前", "%2F", "a.b"):
        catalog.create_namespace([name])
        catalog.create_table([name], table(name))
        assert catalog.load_table([name], name).metadata_location
        assert catalog.tables([name]).names == [name]


def test_the_same_id_is_told_the_same_and_for_another_request_it_is_refused(catalog: Catalog) -> None:
    catalog.create_namespace(["a"], id_="one")
    catalog.create_namespace(["a"], id_="one")
    with pytest.raises(AlreadyExists):
        catalog.create_namespace(["a"], id_="two")
    with pytest.raises(Invalid, match="was used for another request"):
        catalog.drop_namespace(["a"], id_="one")
    assert catalog.namespaces().names == ["a"]
    for id_ in ("~mine", "", "x" * 201, "a\nb"):
        with pytest.raises(Invalid, match="an id has"):
            catalog.create_namespace(["b"], id_=id_)


def test_a_catalog_without_a_leader_only_reads() -> None:
    store = MemoryStore(system())
    with catalog_on(store) as leading:
        leading.create_namespace(["a"])
        reader = Catalog(leading.storage, leading.warehouse)
        assert reader.namespaces().names == ["a"]
        with pytest.raises(NotLeader):
            reader.create_namespace(["b"])


def test_what_it_costs() -> None:
    store = MeteredStore(MemoryStore(system()))
    with catalog_on(store) as catalog:
        catalog.create_namespace(["a"])
        catalog.namespaces()
        with store.measure() as cost:
            catalog.namespaces()
            catalog.namespace(["a"])
            catalog.tables(["a"])
        assert cost.requests == {"get": 3}
        assert cost.read_bytes == 0, "nothing changed, so no head is sent"
