"""Views: created, replaced, dropped and put back."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from catalog.test_catalog_v3 import FIELDS, WIDE
from limpet.catalog.catalog import Catalog
from limpet.catalog.names import AlreadyExists, CommitFailed, NoSuchNamespace, NoSuchTable, NoSuchView
from limpet.catalog.warehouse import Warehouse
from limpet.kernel.errors import Invalid, NotModified
from limpet.kernel.runtime import system
from support.catalog import SCHEMA, catalog, metadata, table, version, view

__all__ = ["catalog"]


def replacement(sql: str, **fields: Any) -> dict[str, Any]:
    return {
        "requirements": [],
        "updates": [
            {"action": "add-view-version", "view-version": {**version(sql), **fields}},
            {"action": "set-current-view-version", "view-version-id": -1},
        ],
    }


def sql_of(loaded: dict[str, Any]) -> str:
    [current] = [each for each in loaded["versions"] if each["version-id"] == loaded["current-version-id"]]
    found: str = current["representations"][0]["sql"]
    return found


@pytest.fixture(autouse=True)
def namespace(catalog: Catalog) -> None:
    catalog.create_namespace(["a"])


def test_create_load_list_and_drop(catalog: Catalog) -> None:
    made = catalog.create_view(["a"], view(properties={"x": "y"}))
    loaded = catalog.load_view(["a"], "v")
    assert made == loaded
    found = metadata(loaded)
    assert found["format-version"] == 1
    assert found["properties"] == {"x": "y"}
    assert sql_of(found) == "select 1"
    assert catalog.has_view(["a"], "v")
    assert not catalog.has_table(["a"], "v")
    assert catalog.views(["a"]).names == ["v"]
    with pytest.raises(NotModified):
        catalog.load_view(["a"], "v", loaded.etag)
    with pytest.raises(NoSuchTable):
        catalog.load_table(["a"], "v")
    catalog.drop_view(["a"], "v")
    for missing in (catalog.load_view, catalog.drop_view):
        with pytest.raises(NoSuchView):
            missing(["a"], "v")


def test_a_view_has_columns_of_every_type(catalog: Catalog) -> None:
    """Also those that PyIceberg lacks, in a new view, a replaced one, and one that is registered."""
    schema = {**WIDE, "schema-id": 0}
    made = catalog.create_view(["a"], view(schema=schema))
    assert metadata(made)["schemas"] == [schema]
    wider = {**schema, "fields": [*FIELDS, {"id": 20, "name": "more", "required": False, "type": "variant"}]}
    request = replacement("select 2", **{"schema-id": -1})
    request["updates"].insert(0, {"action": "add-schema", "schema": wider})
    found = catalog.replace_view(["a"], "v", request)
    assert metadata(found)["schemas"] == [schema, {**wider, "schema-id": 1}]
    catalog.drop_view(["a"], "v")
    again = catalog.register_view(["a"], "w", str(found.metadata_location))
    assert metadata(again)["schemas"] == metadata(found)["schemas"]
    for kind in ("varian", 5, {"type": "list"}):
        with pytest.raises(Invalid):
            catalog.create_view(["a"], view("x", schema={**SCHEMA, "fields": [{**FIELDS[0], "type": kind}]}))


def test_tables_and_views_share_names(catalog: Catalog) -> None:
    catalog.create_view(["a"], view("x"))
    catalog.create_table(["a"], table("y"))
    with pytest.raises(AlreadyExists):
        catalog.create_table(["a"], table("x"))
    with pytest.raises(AlreadyExists):
        catalog.create_view(["a"], view("y"))
    with pytest.raises(AlreadyExists):
        catalog.rename_view((["a"], "x"), (["a"], "y"))
    with pytest.raises(AlreadyExists):
        catalog.rename_table((["a"], "y"), (["a"], "x"))
    with pytest.raises(NoSuchNamespace):
        catalog.rename_view((["a"], "x"), (["b"], "x"))
    catalog.rename_view((["a"], "x"), (["a"], "z"))
    assert catalog.views(["a"]).names == ["z"]


def test_replace_makes_versions_and_keeps_some(catalog: Catalog) -> None:
    catalog.create_view(["a"], view(properties={"version.history.num-entries": "3"}))
    uuid = metadata(catalog.load_view(["a"], "v"))["view-uuid"]
    for n in range(2, 7):
        request = replacement(f"select {n}")
        request["requirements"] = [{"type": "assert-view-uuid", "uuid": uuid}]
        found = metadata(catalog.replace_view(["a"], "v", request))
        assert sql_of(found) == f"select {n}"
        assert found["current-version-id"] == n
    assert [each["version-id"] for each in found["versions"]] == [4, 5, 6]
    assert [each["version-id"] for each in found["version-log"]] == [4, 5, 6]
    back = {"updates": [{"action": "set-current-view-version", "view-version-id": 4}]}
    assert sql_of(metadata(catalog.replace_view(["a"], "v", back))) == "select 4"


def test_replace_changes_schema_properties_and_location(catalog: Catalog) -> None:
    catalog.create_view(["a"], view())
    wider = {**SCHEMA, "fields": [*SCHEMA["fields"], {"id": 3, "name": "n", "required": False, "type": "int"}]}
    location = f"{catalog.warehouse.url}/moved"
    uuid = metadata(catalog.load_view(["a"], "v"))["view-uuid"]
    updates: list[dict[str, Any]] = [
        {"action": "assign-uuid", "uuid": uuid},
        {"action": "upgrade-format-version", "format-version": 1},
        {"action": "add-schema", "schema": SCHEMA},
        {"action": "add-schema", "schema": wider},
        {"action": "set-properties", "updates": {"x": "1", "y": "2"}},
        {"action": "remove-properties", "removals": ["x", "gone"]},
        {"action": "set-location", "location": f"{location}/"},
        *replacement("select 2", **{"schema-id": -1})["updates"],
    ]
    loaded = catalog.replace_view(["a"], "v", {"updates": updates})
    found = metadata(loaded)
    assert [schema["schema-id"] for schema in found["schemas"]] == [0, 1]
    assert found["versions"][-1]["schema-id"] == 1
    assert found["properties"] == {"y": "2"}
    assert found["location"] == location
    assert loaded.metadata_location is not None
    assert loaded.metadata_location.startswith(f"{location}/metadata/00001-")


@pytest.mark.parametrize(
    "update",
    [
        {"action": "drop-everything"},
        {},
        {"action": "assign-uuid", "uuid": str(uuid4())},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "set-current-view-version", "view-version-id": 9},
        {"action": "set-current-view-version", "view-version-id": -1},
        {"action": "set-current-view-version"},
        {"action": "add-view-version"},
        {"action": "add-view-version", "view-version": {**version("x"), "schema-id": 7}},
        {"action": "add-view-version", "view-version": {**version("x"), "schema-id": -1}},
        {"action": "add-view-version", "view-version": {**version("x"), "representations": "x"}},
        {"action": "add-view-version", "view-version": {**version("x"), "timestamp-ms": {}}},
        {"action": "add-schema", "schema": {"type": "struct", "fields": [{"id": "x"}]}},
        {"action": "set-properties", "updates": ["x"]},
        {"action": "remove-properties", "removals": "x"},
        {"action": "set-location"},
    ],
)
def test_updates_that_are_refused(catalog: Catalog, update: dict[str, Any]) -> None:
    before = catalog.create_view(["a"], view())
    with pytest.raises(Invalid):
        catalog.replace_view(["a"], "v", {"updates": [update]})
    assert catalog.load_view(["a"], "v") == before


def test_requirements(catalog: Catalog) -> None:
    catalog.create_view(["a"], view())
    with pytest.raises(CommitFailed):
        catalog.replace_view(
            ["a"], "v", {**replacement("x"), "requirements": [{"type": "assert-view-uuid", "uuid": str(uuid4())}]}
        )
    unknown: list[Any] = [[{"type": "assert-moon"}], ["x"], "x", [{}]]
    for requirements in unknown:
        with pytest.raises(Invalid):
            catalog.replace_view(["a"], "v", {**replacement("x"), "requirements": requirements})


@pytest.mark.parametrize(
    "fields", [{"schema": None}, {"view-version": 7}, {"schema": {"type": "x"}}, {"properties": 7}, {"name": ""}]
)
def test_creates_that_are_refused(catalog: Catalog, fields: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        catalog.create_view(["a"], {**view(), **fields})


def test_the_same_id_replaces_once_also_from_a_process_that_knows_nothing(catalog: Catalog) -> None:
    catalog.create_view(["a"], view())
    cold = Catalog(
        catalog.storage, Warehouse(catalog.warehouse.store, catalog.warehouse.url[:-10], system()), catalog.leader
    )
    first = cold.replace_view(["a"], "v", replacement("select 2"), id_="one")
    again = catalog.replace_view(["a"], "v", replacement("select 2"), id_="one")
    assert first == again
    assert metadata(again)["current-version-id"] == 2


def test_undrop(catalog: Catalog) -> None:
    made = catalog.create_view(["a"], view())
    catalog.drop_view(["a"], "v")
    assert catalog.undrop(["a"], "v") == made
    assert catalog.has_view(["a"], "v")
