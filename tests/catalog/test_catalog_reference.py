"""What the reference implementation does and its clients rely on: Spark and Java beside PyIceberg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from limpet.catalog.catalog import Catalog
from limpet.catalog.names import AlreadyExists, CommitFailed, NamespaceNotEmpty, NoSuchTable, NoSuchView
from limpet.kernel.errors import Invalid
from limpet.kernel.store import DirectoryStore
from support.catalog import SCHEMA, append, catalog, catalog_on, metadata, snapshot, staged, table, version, view

__all__ = ["catalog"]


@pytest.fixture(autouse=True)
def namespace(catalog: Catalog) -> None:
    catalog.create_namespace(["a"])


def test_a_table_of_a_missing_namespace_is_a_missing_table(catalog: Catalog) -> None:
    """Spark asks for the metadata table `a.t.snapshots` as a table of the namespace `a.t`."""
    loaded = catalog.create_table(["a"], table())
    for namespace in (["nowhere"], ["a", "t"]):
        with pytest.raises(NoSuchTable, match=rf"^Table does not exist: {'.'.join(namespace)}\.snapshots\n"):
            catalog.load_table(namespace, "snapshots")
        with pytest.raises(NoSuchTable):
            catalog.drop_table(namespace, "snapshots")
        with pytest.raises(NoSuchTable):
            catalog.commit_table(namespace, "snapshots", append(loaded, 1))
        with pytest.raises(NoSuchTable):
            catalog.rename_table((namespace, "snapshots"), (["a"], "u"))
        with pytest.raises(NoSuchView, match=r"^View does not exist: "):
            catalog.load_view(namespace, "v")
        with pytest.raises(NoSuchView):
            catalog.drop_view(namespace, "v")
        assert not catalog.has_table(namespace, "snapshots")


# ---- names that a URL cannot tell apart ----


@pytest.mark.parametrize(("first", "second"), [("a b", "a+b"), ("a+b", "a b"), ("a + b", "a   b"), (" ", "+")])
def test_names_that_a_url_cannot_tell_apart_are_refused(catalog: Catalog, first: str, second: str) -> None:
    catalog.create_table(["a"], table(first))
    with pytest.raises(Invalid, match="confuse it with"):
        catalog.create_table(["a"], table(second))
    with pytest.raises(Invalid, match="confuse it with"):
        catalog.create_table(["a"], table(second, **{"stage-create": True}))
    catalog.create_table(["a"], table("u"))
    with pytest.raises(Invalid, match="confuse it with"):
        catalog.rename_table((["a"], "u"), (["a"], second))
    catalog.create_namespace(["b"])
    catalog.create_table(["b"], table(second))
    catalog.rename_table((["a"], first), (["a"], second))
    assert catalog.tables(["a"]).names == sorted([second, "u"]), "the old name goes as the new one comes"


def test_views_and_namespaces_that_a_url_cannot_tell_apart_are_refused(catalog: Catalog) -> None:
    catalog.create_view(["a"], view("x y"))
    with pytest.raises(Invalid, match="confuse it with"):
        catalog.create_view(["a"], view("x+y"))
    catalog.create_namespace(["n 1"])
    with pytest.raises(Invalid, match="confuse it with"):
        catalog.create_namespace(["n+1"])
    catalog.create_namespace(["a", "n+1"])
    with pytest.raises(AlreadyExists):
        catalog.create_namespace(["n 1"])
    catalog.create_namespace(["n 12"])
    catalog.create_namespace(["n1"])


# ---- file:/x is file:///x ----


def test_a_path_with_one_slash_is_the_same_as_one_with_three(tmp_path: Path) -> None:
    """Java and Hadoop write `file:/x`."""
    with catalog_on(DirectoryStore(tmp_path, durability="os"), str(tmp_path)) as made:
        made.create_namespace(["a"], {"location": f"file:{tmp_path}/warehouse/mine"})
        short, long = f"file:{tmp_path}/warehouse", f"file://{tmp_path}/warehouse"
        first = made.create_table(["a"], table(location=f"{short}/x"))
        assert metadata(first)["location"] == f"{long}/x"
        place = {"write.metadata.path": f"{short}/y/metadata"}
        second = made.create_table(["a"], table("u", properties=place))
        assert str(second.metadata_location).startswith(f"{long}/y/metadata/")
        request = append(first, 1)
        request["updates"][0]["snapshot"]["manifest-list"] = f"{short}/x/metadata/snap-1.avro"
        request["updates"].append({"action": "set-location", "location": f"{short}/z"})
        request["updates"].append({"action": "set-properties", "updates": {"write.data.path": f"{short}/z/data"}})
        assert metadata(made.commit_table(["a"], "t", request))["location"] == f"{long}/z"
        for outside in (f"file:{tmp_path}/x", f"file:////{tmp_path}/warehouse/x", f"file:{tmp_path}/warehouse/../x"):
            with pytest.raises(Invalid):
                made.create_table(["a"], table("v", location=outside))


@pytest.mark.parametrize("scheme", ["s3a", "s3n", "S3", "file"])
def test_other_schemes_of_a_bucket_are_refused(scheme: str) -> None:
    """They reach it through other settings, and the catalog hands out s3://."""
    with catalog_on(url="s3://bucket/fleet") as made:
        made.create_namespace(["a"])
        with pytest.raises(Invalid, match="not inside the warehouse"):
            made.create_table(["a"], table(location=f"{scheme}://bucket/fleet/warehouse/x"))


# ---- snapshots that build on nothing ----


def test_a_snapshot_without_a_parent_is_never_stale(catalog: Catalog) -> None:
    """Two sessions that run CREATE OR REPLACE TABLE at once: the later one still ends."""
    loaded = catalog.create_table(["a"], table())
    late = append(loaded, 9)
    for n in (1, 2):
        loaded = catalog.commit_table(["a"], "t", append(loaded, n))
    late["requirements"] = late["requirements"][:1]
    assert "parent-snapshot-id" not in late["updates"][-2]["snapshot"]
    found = metadata(catalog.commit_table(["a"], "t", late))
    assert found["current-snapshot-id"] == 9
    assert found["last-sequence-number"] == 2, "it never goes back: the next snapshot is newer than all"
    stale = {**snapshot(loaded, 10), "sequence-number": 2, "parent-snapshot-id": 9}
    with pytest.raises(CommitFailed, match=r"^Cannot add snapshot with sequence number 2 older than last "):
        catalog.commit_table(["a"], "t", {"updates": [{"action": "add-snapshot", "snapshot": stale}]})


# ---- types of a later format ----


@pytest.mark.parametrize(
    "field",
    [
        {"type": "timestamp_ns"},
        {"type": "timestamptz_ns"},
        {"type": "unknown"},
        {"type": "string", "initial-default": "x"},
        {"type": "string", "write-default": "x"},
        {"type": {"type": "list", "element-id": 9, "element": "timestamp_ns", "element-required": False}},
    ],
)
def test_types_of_a_later_format_are_refused(catalog: Catalog, field: dict[str, Any]) -> None:
    schema = {
        **SCHEMA,
        "schema-id": 1,
        "fields": [*SCHEMA["fields"], {"id": 3, "name": "n", "required": False, **field}],
    }
    with pytest.raises(Invalid, match="Invalid schema for v2"):
        catalog.create_table(["a"], {**table("u"), "schema": schema})
    loaded = catalog.create_table(["a"], table())
    with pytest.raises(Invalid, match="Invalid schema for v2"):
        catalog.commit_table(["a"], "t", {"updates": [{"action": "add-schema", "schema": schema}]})
    draft = catalog.create_table(["a"], {**table("u"), "stage-create": True})
    updates = staged(draft, schemas=[schema])
    with pytest.raises(Invalid, match="Invalid schema for v2"):
        catalog.commit_table(["a"], "u", {"requirements": [{"type": "assert-create"}], "updates": updates})
    assert catalog.load_table(["a"], "t") == loaded


# ---- views ----


def test_a_view_has_one_text_for_a_dialect(catalog: Catalog) -> None:
    twice = {**version("select 1")}
    twice["representations"] = [
        {"type": "sql", "sql": "select 1", "dialect": "spark"},
        {"type": "sql", "sql": "select 2", "dialect": "SPARK"},
    ]
    wrong = "^Invalid view version: Cannot add multiple queries for dialect spark$"
    with pytest.raises(Invalid, match=wrong):
        catalog.create_view(["a"], {**view(), "view-version": twice})
    catalog.create_view(["a"], view())
    with pytest.raises(Invalid, match=wrong):
        catalog.replace_view(["a"], "v", {"updates": [{"action": "add-view-version", "view-version": twice}]})
    with pytest.raises(CommitFailed, match=r"^Requirement failed: view UUID does not match: expected "):
        catalog.replace_view(["a"], "v", {"requirements": [{"type": "assert-view-uuid", "uuid": "x"}], "updates": []})


def test_the_metadata_of_a_view_lies_where_its_properties_say(catalog: Catalog) -> None:
    place = f"{catalog.warehouse.url}/elsewhere/metadata"
    made = catalog.create_view(["a"], view(properties={"write.metadata.path": place}))
    assert str(made.metadata_location).startswith(f"{place}/00000-")
    with pytest.raises(Invalid, match="overlaps"):
        catalog.create_table(["a"], table(location=f"{catalog.warehouse.url}/elsewhere"))
    other = f"{catalog.warehouse.url}/third"
    updates = [{"action": "set-properties", "updates": {"write.metadata.path": other}}]
    moved = catalog.replace_view(["a"], "v", {"updates": updates})
    assert str(moved.metadata_location).startswith(f"{other}/00001-")
    assert catalog.load_view(["a"], "v") == moved


# ---- requests and answers ----


def test_a_commit_has_a_list_of_updates(catalog: Catalog) -> None:
    loaded = catalog.create_table(["a"], table())
    catalog.create_view(["a"], view())
    requests: list[dict[str, Any]] = [{}, {"requirements": []}, {"updates": None}, {"updates": {}}]
    for request in requests:
        with pytest.raises(Invalid, match="updates"):
            catalog.commit_table(["a"], "t", request)
        with pytest.raises(Invalid, match="updates"):
            catalog.replace_view(["a"], "v", request)
        with pytest.raises(Invalid, match="updates"):
            catalog.commit_transaction([{"identifier": {"namespace": ["a"], "name": "t"}, **request}])
    assert catalog.commit_table(["a"], "t", {"updates": []}) == loaded


def test_tables_lie_in_the_location_of_their_namespace(catalog: Catalog) -> None:
    place = f"{catalog.warehouse.url}/projects/x"
    catalog.create_namespace(["b"], {"location": place})
    assert metadata(catalog.create_table(["b"], table()))["location"].startswith(f"{place}/t-")
    staged = metadata(catalog.create_table(["b"], {**table("u"), "stage-create": True}))
    assert staged["location"].startswith(f"{place}/u-")
    assert metadata(catalog.create_view(["b"], view()))["location"].startswith(f"{place}/v-")
    catalog.update_properties(["b"], ["location"])
    assert metadata(catalog.create_table(["b"], table("w")))["location"].startswith(f"{catalog.warehouse.url}/b/w-")
    catalog.create_table(["a"], table(location=f"{catalog.warehouse.url}/whole"))
    catalog.create_namespace(["c"], {"location": f"{catalog.warehouse.url}/whole"})
    inside = metadata(catalog.create_table(["c"], table()))["location"]
    assert not inside.startswith(f"{catalog.warehouse.url}/whole"), "all of that belongs to a table"


def test_new_tables_are_compressed_as_the_reference_does(catalog: Catalog) -> None:
    codec = "write.parquet.compression-codec"
    assert metadata(catalog.create_table(["a"], table()))["properties"][codec] == "zstd"
    assert metadata(catalog.create_table(["a"], {**table("s"), "stage-create": True}))["properties"][codec] == "zstd"
    own = metadata(catalog.create_table(["a"], table("u", properties={codec: "snappy"})))
    assert own["properties"][codec] == "snappy"


def test_refusals_are_worded_as_in_the_reference(catalog: Catalog) -> None:
    loaded = catalog.commit_table(["a"], "t", append(catalog.create_table(["a"], table()), 1))
    uuid = metadata(loaded)["table-uuid"]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"type": "assert-create"}, "table already exists"),
        ({"type": "assert-table-uuid", "uuid": uuid[:-1] + ("0" if uuid[-1] != "0" else "1")}, "UUID does not match: "),
        (
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
            "branch main was created concurrently",
        ),
        (
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7},
            "branch main has changed: expected id 7 != 1",
        ),
        ({"type": "assert-ref-snapshot-id", "ref": "x", "snapshot-id": 7}, "branch or tag x is missing, expected 7"),
        (
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 9},
            "last assigned field id changed: expected id 9 != 2",
        ),
        ({"type": "assert-current-schema-id", "current-schema-id": 9}, "current schema changed: expected id 9 != 0"),
        (
            {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 9},
            "last assigned partition id changed: expected id 9 != 999",
        ),
        (
            {"type": "assert-default-spec-id", "default-spec-id": 9},
            "default partition spec changed: expected id 9 != 0",
        ),
        ({"type": "assert-default-sort-order-id", "default-sort-order-id": 9}, "default sort order changed: expected "),
    ]
    for requirement, said in cases:
        with pytest.raises(CommitFailed) as refused:
            catalog.commit_table(["a"], "t", {"requirements": [requirement], "updates": []})
        assert str(refused.value).startswith(f"Requirement failed: {said}")
    catalog.create_view(["a"], view())
    with pytest.raises(AlreadyExists, match=r"^Table already exists: a\.t\n"):
        catalog.create_table(["a"], table())
    with pytest.raises(AlreadyExists, match=r"^View with same name already exists: a\.v\n"):
        catalog.create_table(["a"], table("v"))
    with pytest.raises(AlreadyExists, match=r"^Table with same name already exists: a\.t\n"):
        catalog.create_view(["a"], view("t"))
    with pytest.raises(AlreadyExists, match=r"^Cannot rename a\.t to a\.v\. View already exists\n"):
        catalog.rename_table((["a"], "t"), (["a"], "v"))
    with pytest.raises(AlreadyExists, match=r"^Namespace already exists: a\n"):
        catalog.create_namespace(["a"])
    with pytest.raises(NamespaceNotEmpty, match=r"^Namespace is not empty: a\n"):
        catalog.drop_namespace(["a"])
