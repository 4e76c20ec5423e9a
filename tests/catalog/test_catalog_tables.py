"""Tables: created, staged, committed to, renamed, registered, dropped, purged and put back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from limpet.catalog import compactor, history
from limpet.catalog.catalog import Catalog, LoadedTable
from limpet.catalog.entries import CheckedPurge, drop
from limpet.catalog.iceberg.tables import document_of, whole
from limpet.catalog.leader import Grant, NeedsMetadata
from limpet.catalog.names import AlreadyExists, CommitFailed, NoSuchNamespace, NoSuchTable, entry_in
from limpet.kernel import records
from limpet.kernel.errors import Conflict, Corrupt, Invalid, Missing, NotModified, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.runtime import system
from limpet.kernel.store import MemoryStore
from limpet.kernel.store.metered import MeteredStore
from support.catalog import (
    SCHEMA,
    append,
    catalog,
    catalog_on,
    cold,
    metadata,
    snapshot,
    staged,
    stored_at,
    table,
    view,
)

__all__ = ["catalog"]

ZSTD = {"write.parquet.compression-codec": "zstd"}
WIDER = {
    **SCHEMA,
    "schema-id": 1,
    "fields": [*SCHEMA["fields"], {"id": 3, "name": "n", "required": False, "type": "int"}],
}


@pytest.fixture(autouse=True)
def namespace(catalog: Catalog) -> None:
    catalog.create_namespace(["a"])


def commit(catalog: Catalog, *updates: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return metadata(catalog.commit_table(["a"], "t", {"requirements": [], "updates": [*updates], **fields}))


# ---- create, load, list ----


def test_create_load_and_list(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table(properties={"x": "y"}))
    assert catalog.load_table(["a"], "t") == made
    found = metadata(made)
    assert found["format-version"] == 2
    assert found["location"].startswith(f"{catalog.warehouse.url}/a/t-")
    assert found["properties"] == {"x": "y", **ZSTD}
    assert made.metadata_location is not None
    assert made.metadata_location.startswith(f"{found['location']}/metadata/00000-")
    assert catalog.warehouse.store.get(stored_at(catalog, made)).data == made.metadata
    assert TableMetadataUtil.parse_raw(made.metadata.decode()).schema().column_names == ["id", "data"]
    assert catalog.has_table(["a"], "t")
    assert catalog.tables(["a"]).names == ["t"]
    with pytest.raises(NotModified):
        catalog.load_table(["a"], "t", made.etag)
    changed = catalog.commit_table(["a"], "t", append(made, 1))
    assert catalog.load_table(["a"], "t", made.etag) == changed


def test_creates_that_are_refused(catalog: Catalog) -> None:
    catalog.create_table(["a"], table())
    with pytest.raises(AlreadyExists):
        catalog.create_table(["a"], table())
    with pytest.raises(AlreadyExists):
        catalog.create_table(["a"], {**table(), "stage-create": True})
    with pytest.raises(NoSuchNamespace):
        catalog.create_table(["b"], table())
    with pytest.raises(NoSuchTable):
        catalog.load_table(["a"], "u")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"schema": None}, None),
        ({"schema": {}}, None),
        ({"schema": {"type": "struct", "fields": [{"id": 1, "name": "x", "required": True, "type": "moon"}]}}, "moon"),
        ({"schema": {**SCHEMA, "fields": [SCHEMA["fields"][0], {**SCHEMA["fields"][1], "name": "id"}]}}, "id"),
        ({"schema": {**SCHEMA, "fields": [{"id": 1, "name": "x", "required": True, "type": "timestamp_ns"}]}}, None),
        ({"partition-spec": {"fields": [{"source-id": 9, "transform": "identity", "name": "x"}]}}, None),
        ({"partition-spec": {"fields": [{"source-id": 2, "transform": "year", "name": "x"}]}}, None),
        ({"partition-spec": {"fields": 7}}, "fields"),
        ({"write-order": {"order-id": 1, "fields": [{"source-id": 9, "transform": "identity"}]}}, None),
        ({"write-order": {"order-id": 1, "fields": [7]}}, None),
        ({"properties": {"format-version": "4"}}, "format version 4 is not supported"),
        ({"properties": {"format-version": "x"}}, "format version"),
        ({"properties": 7}, "properties"),
        ({"name": "\x1f"}, "control"),
        ({"name": None}, "name"),
    ],
)
def test_creates_that_make_no_sense_are_refused_in_one_line(
    catalog: Catalog, fields: dict[str, Any], why: str | None
) -> None:
    with pytest.raises(Invalid, match=why) as refused:
        catalog.create_table(["a"], {**table(), **fields})
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400
    assert catalog.tables(["a"]).names == []


def test_partitions_orders_and_the_first_format(catalog: Catalog) -> None:
    spec = {"fields": [{"source-id": 1, "transform": "bucket[4]", "name": "b"}]}
    order = {"order-id": 1, "fields": [{"source-id": 2, "transform": "identity", "direction": "asc"}]}
    request = {**table(), "partition-spec": spec, "write-order": order, "properties": {"format-version": "1"}}
    made = catalog.create_table(["a"], request)
    found = metadata(made)
    assert found["format-version"] == 1
    assert found["partition-specs"][0]["fields"][0]["field-id"] == 1000
    assert found["sort-orders"][0]["fields"][0]["null-order"] == "nulls-first"
    assert "format-version" not in found["properties"]
    again = metadata(cold(catalog).commit_table(["a"], "t", append(made, 1)))
    assert again["current-snapshot-id"] == 1
    wider = commit(
        catalog, {"action": "add-schema", "schema": WIDER}, {"action": "set-current-schema", "schema-id": -1}
    )
    assert [field["name"] for field in wider["schema"]["fields"]] == ["id", "data", "n"], "its readers look here"
    second = commit(catalog, {"action": "upgrade-format-version", "format-version": 2})
    assert second["format-version"] == 2
    assert second["snapshots"][0]["snapshot-id"] == 1
    assert metadata(catalog.commit_table(["a"], "t", append(catalog.load_table(["a"], "t"), 2)))["refs"]["main"]


# ---- staged creates ----


def staged_commit(loaded: LoadedTable) -> dict[str, Any]:
    """What PyIceberg sends for a table that was staged."""
    return {
        "requirements": [{"type": "assert-create"}],
        "updates": [
            *staged(loaded, properties={"x": "y"}),
            {"action": "add-snapshot", "snapshot": snapshot(loaded, 1)},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1},
        ],
    }


def test_a_staged_table_is_published_by_its_commit(catalog: Catalog) -> None:
    draft = catalog.create_table(["a"], {**table(), "stage-create": True})
    assert draft.metadata_location is None
    assert catalog.tables(["a"]).names == []
    made = catalog.commit_table(["a"], "t", staged_commit(draft))
    found = metadata(made)
    assert found["table-uuid"] == metadata(draft)["table-uuid"]
    assert found["location"] == metadata(draft)["location"]
    assert found["current-snapshot-id"] == 1
    assert found["properties"] == {"x": "y"}
    assert catalog.load_table(["a"], "t") == made
    with pytest.raises(CommitFailed, match="already"):
        catalog.commit_table(["a"], "t", staged_commit(draft))
    with pytest.raises(NoSuchNamespace):
        catalog.commit_table(["b"], "t", staged_commit(draft))
    catalog.create_view(["a"], view())
    with pytest.raises(Conflict):
        catalog.commit_table(["a"], "v", staged_commit(draft))


def test_a_commit_that_creates_may_leave_the_location_to_us(catalog: Catalog) -> None:
    request = staged_commit(catalog.create_table(["a"], {**table(), "stage-create": True}))
    request["updates"] = [each for each in request["updates"] if "location" not in each and "uuid" not in each]
    found = metadata(catalog.commit_table(["a"], "t", request))
    assert found["location"].startswith(f"{catalog.warehouse.url}/a/t-")
    request["updates"] = [each for each in request["updates"] if "schema" not in each]
    with pytest.raises(Invalid):
        catalog.commit_table(["a"], "u", request)


# ---- commits ----


def test_appends_follow_each_other(catalog: Catalog) -> None:
    loaded = catalog.create_table(["a"], table())
    first = loaded
    for n in (1, 2, 3):
        loaded = catalog.commit_table(["a"], "t", append(loaded, n))
    found = metadata(loaded)
    assert [each["snapshot-id"] for each in found["snapshots"]] == [1, 2, 3]
    assert [each["snapshot-id"] for each in found["snapshot-log"]] == [1, 2, 3]
    assert found["metadata-log"][0]["metadata-file"] == first.metadata_location
    assert len(found["metadata-log"]) == 3
    assert found["last-sequence-number"] == 3
    assert loaded.metadata_location is not None
    assert "/00003-" in loaded.metadata_location
    assert TableMetadataUtil.parse_raw(loaded.metadata.decode()).refs["main"].snapshot_id == 3


def test_a_commit_for_an_older_table_fails(catalog: Catalog) -> None:
    loaded = catalog.create_table(["a"], table())
    late = append(loaded, 2)
    current = catalog.commit_table(["a"], "t", append(loaded, 1))
    with pytest.raises(CommitFailed, match="main"):
        catalog.commit_table(["a"], "t", late)
    for parent in ({}, {"parent-snapshot-id": 1}):
        stale = {**snapshot(current, 3), "sequence-number": 1, **parent}
        with pytest.raises(CommitFailed, match="sequence number 1"):
            commit(catalog, {"action": "add-snapshot", "snapshot": stale})
    for requirement in (
        {"type": "assert-table-uuid", "uuid": str(uuid4())},
        {"type": "assert-create"},
        {"type": "assert-current-schema-id", "current-schema-id": 4},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 4},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 4},
        {"type": "assert-default-spec-id", "default-spec-id": 4},
        {"type": "assert-default-sort-order-id", "default-sort-order-id": 4},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 4},
        {"type": "assert-ref-snapshot-id", "ref": "gone", "snapshot-id": 1},
    ):
        with pytest.raises(CommitFailed):
            catalog.commit_table(["a"], "t", {"requirements": [requirement], "updates": []})
    assert catalog.load_table(["a"], "t") == current


def test_the_first_branch_of_an_empty_table(catalog: Catalog) -> None:
    loaded = catalog.create_table(["a"], table())
    request = append(loaded, 1)
    request["requirements"][1]["ref"] = request["updates"][1]["ref-name"] = "wip"
    found = metadata(catalog.commit_table(["a"], "t", request))
    assert found["refs"]["wip"]["snapshot-id"] == 1
    assert "current-snapshot-id" not in found


@pytest.mark.parametrize(
    "update",
    [
        {"action": "fly-to-the-moon"},
        {},
        7,
        {"action": "add-snapshot"},
        {"action": "add-snapshot", "snapshot": {"snapshot-id": "x"}},
        {"action": "set-statistics"},
        {"action": "set-snapshot-ref", "ref-name": "x", "type": "branch", "snapshot-id": 99},
        {"action": "set-snapshot-ref", "ref-name": "x", "type": "tag", "snapshot-id": 1, "max-snapshot-age-ms": 1},
        {"action": "set-current-schema", "schema-id": 9},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "set-default-spec", "spec-id": 9},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "set-default-sort-order", "sort-order-id": 9},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "add-schema", "schema": {"type": "struct", "fields": 3}},
        {"action": "add-spec", "spec": 3},
        {"action": "add-spec", "spec": {"fields": [3]}},
        {"action": "add-sort-order", "sort-order": {"order-id": 3, "fields": [{}]}},
        {"action": "upgrade-format-version", "format-version": 1},
        {"action": "upgrade-format-version", "format-version": 4},
        {"action": "assign-uuid", "uuid": "00000000-0000-4000-8000-000000000000"},
        {"action": "assign-uuid", "uuid": "x"},
        {"action": "remove-schemas", "schema-ids": [0]},
        {"action": "remove-partition-specs", "spec-ids": [0]},
        {"action": "remove-properties", "removals": 3},
        {"action": "set-properties", "updates": {"x": {"y": "z"}}},
        {"action": "set-properties", "updates": {"x": None}},
    ],
)
def test_updates_that_are_refused_in_one_line(catalog: Catalog, update: dict[str, Any]) -> None:
    loaded = catalog.commit_table(["a"], "t", append(catalog.create_table(["a"], table()), 1))
    with pytest.raises(Invalid) as refused:
        commit(catalog, update)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400
    assert catalog.load_table(["a"], "t") == loaded


@pytest.mark.parametrize(
    "request_", [{"updates": 7}, {"requirements": 7}, {"requirements": [{"type": "moon"}]}, {"requirements": [{}]}]
)
def test_requests_that_are_refused(catalog: Catalog, request_: dict[str, Any]) -> None:
    catalog.create_table(["a"], table())
    with pytest.raises(Invalid):
        catalog.commit_table(["a"], "t", request_)


def test_a_commit_without_updates_changes_nothing(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table())
    assert catalog.commit_table(["a"], "t", {"requirements": [], "updates": []}) == made
    gone = {"action": "remove-properties", "removals": ["not", "there"]}
    assert catalog.commit_table(["a"], "t", {"updates": [gone]}) == made


def test_schemas_get_ids_of_their_own(catalog: Catalog) -> None:
    catalog.create_table(["a"], table())
    clash = {**WIDER, "schema-id": 0}
    found = commit(
        catalog, {"action": "add-schema", "schema": clash}, {"action": "set-current-schema", "schema-id": -1}
    )
    assert [schema["schema-id"] for schema in found["schemas"]] == [0, 1]
    assert found["current-schema-id"] == 1
    assert found["last-column-id"] == 3
    back = commit(
        catalog, {"action": "add-schema", "schema": SCHEMA}, {"action": "set-current-schema", "schema-id": -1}
    )
    assert [schema["schema-id"] for schema in back["schemas"]] == [0, 1], "one that is there is not added again"
    assert back["current-schema-id"] == 0
    assert len(commit(catalog, {"action": "remove-schemas", "schema-ids": [1]})["schemas"]) == 1


def test_specs_and_orders_get_ids_of_their_own(catalog: Catalog) -> None:
    catalog.create_table(["a"], table())
    by_id = {"source-id": 1, "transform": "identity", "name": "id"}
    by_bucket = {"source-id": 1, "transform": "bucket[4]", "name": "b"}
    last = {"action": "set-default-spec", "spec-id": -1}
    one = commit(catalog, {"action": "add-spec", "spec": {"fields": [by_id]}}, last)
    assert one["default-spec-id"] == 1
    two = commit(catalog, {"action": "add-spec", "spec": {"spec-id": 1, "fields": [by_bucket, by_id]}}, last)
    assert [spec["spec-id"] for spec in two["partition-specs"]] == [0, 1, 2]
    assert [field["field-id"] for field in two["partition-specs"][2]["fields"]] == [1001, 1000]
    assert two["last-partition-id"] == 1001
    back = commit(catalog, {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}}, last)
    assert len(back["partition-specs"]) == 3
    assert back["default-spec-id"] == 0
    order = {"order-id": 1, "fields": [{"source-id": 1, "transform": "identity", "direction": "desc"}]}
    default = {"action": "set-default-sort-order", "sort-order-id": -1}
    sorted_ = commit(catalog, {"action": "add-sort-order", "sort-order": order}, default)
    assert sorted_["default-sort-order-id"] == 1
    other = {**order, "fields": [{**order["fields"][0], "direction": "asc"}]}  # type: ignore[index]
    assert commit(catalog, {"action": "add-sort-order", "sort-order": other}, default)["default-sort-order-id"] == 2
    none = commit(catalog, {"action": "add-sort-order", "sort-order": {"order-id": 7, "fields": []}}, default)
    assert none["default-sort-order-id"] == 0
    assert len(none["sort-orders"]) == 3


def test_snapshots_tags_and_properties_go(catalog: Catalog) -> None:
    loaded = catalog.create_table(["a"], table(properties={"x": "1", "y": "2"}))
    for n in (1, 2):
        loaded = catalog.commit_table(["a"], "t", append(loaded, n))
    tag = {"action": "set-snapshot-ref", "ref-name": "v1", "type": "tag", "snapshot-id": 1}
    assert commit(catalog, tag)["refs"]["v1"] == {"snapshot-id": 1, "type": "tag"}
    found = commit(
        catalog,
        {"action": "remove-snapshot-ref", "ref-name": "v1"},
        {"action": "remove-snapshots", "snapshot-ids": [1, 1, 77]},
        {"action": "remove-properties", "removals": ["x", "x", "gone"]},
    )
    assert [each["snapshot-id"] for each in found["snapshots"]] == [2]
    assert "parent-snapshot-id" not in found["snapshots"][0]
    assert found["properties"] == {"y": "2", **ZSTD}
    assert [*found["refs"]] == ["main"]
    assert metadata(cold(catalog).load_table(["a"], "t")) == found


def test_metadata_goes_where_the_table_says(catalog: Catalog) -> None:
    place = f"{catalog.warehouse.url}/elsewhere/m"
    made = catalog.create_table(["a"], table(properties={"write.metadata.path": f"{place}/"}))
    assert made.metadata_location is not None
    assert made.metadata_location.startswith(f"{place}/00000-")
    next_ = catalog.commit_table(["a"], "t", append(made, 1))
    assert next_.metadata_location is not None
    assert next_.metadata_location.startswith(f"{place}/00001-")
    assert cold(catalog).load_table(["a"], "t") == next_


# ---- ids and threads ----


def test_the_same_id_commits_once_and_is_told_the_same(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table(), id_="one")
    assert catalog.create_table(["a"], table(), id_="one") == made
    request = append(made, 1)
    first = catalog.commit_table(["a"], "t", request, id_="two")
    catalog.commit_table(["a"], "t", append(first, 2))
    assert cold(catalog).commit_table(["a"], "t", request, id_="two") == first
    assert len(metadata(catalog.load_table(["a"], "t"))["snapshots"]) == 2


def test_a_commit_that_is_published_is_never_told_to_be_refused(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = catalog.create_table(["a"], table())
    request = append(made, 1)

    def fail(path: str) -> Any:
        raise Unavailable("the store is away")

    with monkeypatch.context() as away:
        away.setattr(catalog, "_loaded", fail)
        catalog.leader = Away(catalog.leader)  # type: ignore[assignment]
        with pytest.raises(OutcomeUnknown, match="the request was published"):
            catalog.commit_table(["a"], "t", request, id_="one")
    assert metadata(catalog.commit_table(["a"], "t", request, id_="one"))["current-snapshot-id"] == 1


class Away:
    """A leader of which nothing is known beforehand."""

    known = None

    def __init__(self, leader: Any) -> None:
        self.commit = leader.commit


def test_appends_at_once_are_all_there(catalog: Catalog) -> None:
    catalog.create_table(["a"], table())
    other = cold(catalog)

    def work(which: Catalog, first: int) -> None:
        for id_ in range(first, first + 5):
            done = False
            while not done:
                with suppress(CommitFailed, Unavailable):  # two memories for one leader may miss each other for long
                    which.commit_table(["a"], "t", append(which.load_table(["a"], "t"), id_))
                    done = True

    threads = [Thread(target=work, args=([catalog, other][n % 2], 1 + 5 * n)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = metadata(catalog.load_table(["a"], "t"))
    assert sorted(each["snapshot-id"] for each in found["snapshots"]) == [*range(1, 31)]
    parents = [each.get("parent-snapshot-id") for each in found["snapshots"]]
    assert parents == [None, *(each["snapshot-id"] for each in found["snapshots"][:-1])]
    assert [each["sequence-number"] for each in found["snapshots"]] == [*range(1, 31)]


# ---- drop, purge, undrop ----


def files(catalog: Catalog, root: str) -> list[str]:
    return catalog.warehouse.files_in(root)


def root_of(catalog: Catalog, loaded: LoadedTable) -> str:
    return catalog.warehouse.root_of(metadata(loaded)["location"])


def add_file(catalog: Catalog, loaded: LoadedTable, name: str = "data/x=y/part.parquet") -> None:
    """A data file, as a client writes it: beside the store."""
    location: str = metadata(loaded)["location"]
    if location.startswith("file://"):
        path = Path(location.removeprefix("file://")) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"data")
    else:
        catalog.warehouse.store.put(Key(f"warehouse/{root_of(catalog, loaded)}/{name}"), b"data")


def test_drop_keeps_files_and_undrop_brings_the_table_back(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table())
    last = catalog.commit_table(["a"], "t", append(made, 1))
    catalog.drop_table(["a"], "t")
    assert not catalog.has_table(["a"], "t")
    with pytest.raises(NoSuchTable):
        catalog.drop_table(["a"], "t")
    assert len(files(catalog, root_of(catalog, made))) == 2
    assert cold(catalog).undrop(["a"], "t") == last
    with pytest.raises(AlreadyExists):
        catalog.undrop(["a"], "t")
    catalog.rename_table((["a"], "t"), (["a"], "u"))
    catalog.create_table(["a"], table())
    catalog.drop_table(["a"], "t")
    with pytest.raises(Missing):
        catalog.undrop(["a"], "never")


def test_a_done_undrop_or_register_is_told_again_whatever_came_since(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table())
    assert made.metadata_location is not None
    catalog.drop_table(["a"], "t")
    assert catalog.undrop(["a"], "t", id_="back") == made
    catalog.drop_table(["a"], "t")
    entered = catalog.register_table(["a"], "r", made.metadata_location, id_="in")
    assert metadata(entered) == metadata(made)
    catalog.drop_table(["a"], "r", purge=True)
    with pytest.raises(OutcomeUnknown, match="the request was published"):
        catalog.undrop(["a"], "t", id_="back")
    with pytest.raises(OutcomeUnknown, match="the request was published"):
        catalog.register_table(["a"], "r", made.metadata_location, id_="in")
    assert catalog.tables(["a"]).names == []


def test_an_id_is_for_one_request(catalog: Catalog) -> None:
    catalog.create_table(["a"], table(), id_="x.y")
    with pytest.raises(Invalid, match=r"'x\.y' was used for another request"):
        catalog.create_table(["a"], table("u"), id_="x.y")
    catalog.create_table(["a"], table("v"), id_="x")
    assert catalog.tables(["a"]).names == ["t", "v"]


def test_undrop_reads_so_much_of_the_past_and_no_more(
    metered: tuple[Catalog, MeteredStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, store = metered
    monkeypatch.setattr(history, "COMMITS_MAX", 5)
    catalog.create_table(["a"], table())
    catalog.drop_table(["a"], "t")
    for n in range(8):
        catalog.create_namespace([f"n{n}"])
    with store.measure() as cost, pytest.raises(Missing, match="in the last 5 commits"):
        catalog.undrop(["a"], "t")
    assert cost.requests["get"] <= 6
    catalog.create_table(["a"], table("there"))
    with store.measure() as cost, pytest.raises(AlreadyExists):
        catalog.undrop(["a"], "there")
    assert cost.requests == {"get": 1}
    with store.measure() as cost, pytest.raises(NoSuchNamespace):
        catalog.undrop(["none"], "t")
    assert cost.requests == {"get": 1}, "the head says so"


def test_undrop_needs_its_folder_and_its_namespace(catalog: Catalog) -> None:
    location = f"{catalog.warehouse.url}/mine"
    catalog.create_table(["a"], table(location=location))
    catalog.drop_table(["a"], "t")
    catalog.create_table(["a"], table("u", location=location))
    with pytest.raises(Invalid, match="overlaps"):
        catalog.undrop(["a"], "t")
    catalog.drop_table(["a"], "u")
    catalog.drop_namespace(["a"])
    with pytest.raises(NoSuchNamespace):
        catalog.undrop(["a"], "t")


def test_undrop_of_a_table_whose_files_went_with_another_name(catalog: Catalog) -> None:
    catalog.create_table(["a"], table())
    catalog.drop_table(["a"], "t")
    catalog.undrop(["a"], "t")
    catalog.rename_table((["a"], "t"), (["a"], "u"))
    catalog.drop_table(["a"], "u", purge=True)
    with pytest.raises(Missing, match="gone"):
        catalog.undrop(["a"], "t")
    assert not catalog.has_table(["a"], "t")


def test_purge_deletes_the_tables_files_and_no_others(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table())
    beside = catalog.create_table(["a"], table("u"))
    for loaded in (made, beside):
        add_file(catalog, loaded)
    catalog.commit_table(
        ["a"], "t", {"updates": [{"action": "set-location", "location": f"{catalog.warehouse.url}/new"}]}
    )
    catalog.commit_table(["a"], "t", append(catalog.load_table(["a"], "t"), 1))
    assert len(files(catalog, root_of(catalog, made))) == 2
    assert len(files(catalog, "new")) == 2
    catalog.drop_table(["a"], "t", purge=True)
    assert files(catalog, root_of(catalog, made)) == files(catalog, "new") == []
    assert len(files(catalog, root_of(catalog, beside))) == 2
    with pytest.raises(Missing, match="purged"):
        catalog.undrop(["a"], "t")
    catalog.create_table(["a"], table(location=f"{catalog.warehouse.url}/new"))


def test_a_purge_that_is_told_again_deletes_nothing_of_a_new_table(catalog: Catalog) -> None:
    request = table(location=f"{catalog.warehouse.url}/mine")
    catalog.create_table(["a"], request)
    catalog.drop_table(["a"], "t", purge=True, id_="one")
    new = catalog.create_table(["a"], {**request, "properties": {"gc.enabled": "false"}})
    add_file(catalog, new)
    catalog.drop_table(["a"], "t", purge=True, id_="one")
    assert catalog.load_table(["a"], "t") == new
    assert len(files(catalog, "mine")) == 2


def test_a_purge_of_a_table_whose_files_others_need_is_refused(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table(properties={"gc.enabled": "false"}))
    add_file(catalog, made)
    with pytest.raises(Invalid, match=r"gc\.enabled=false"):
        catalog.drop_table(["a"], "t", purge=True)
    assert catalog.load_table(["a"], "t") == made
    catalog.drop_table(["a"], "t")
    assert len(files(catalog, root_of(catalog, made))) == 2


def test_a_property_that_is_set_beside_a_purge_counts(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """What allows a purge is looked at in the decision: a commit may come between any look before it and the drop."""
    made = catalog.create_table(["a"], table())
    add_file(catalog, made)
    leader = catalog.leader
    assert leader is not None
    commit, acts = leader.commit, [{"gc.enabled": "false"}]

    def commit_after_another(*request: Any) -> Any:
        if acts:
            updates = [{"action": "set-properties", "updates": acts.pop()}]
            catalog.commit_table(["a"], "t", {"requirements": [], "updates": updates})
        return commit(*request)

    monkeypatch.setattr(leader, "commit", commit_after_another)
    with pytest.raises(Invalid, match=r"gc\.enabled=false"):
        catalog.drop_table(["a"], "t", purge=True)
    assert catalog.has_table(["a"], "t")
    assert len(files(catalog, root_of(catalog, made))) == 3
    acts.append({"gc.enabled": "true"})
    catalog.drop_table(["a"], "t", purge=True)
    assert not catalog.has_table(["a"], "t")


def test_a_purge_is_decided_on_what_the_same_group_has_made(catalog: Catalog) -> None:
    catalog.create_table(["a"], table())
    loaded = catalog.view.now()
    assert loaded is not None
    path = entry_in(loaded.state, "t", ("a",), "t").path
    decide = partial(drop, "t", ("a",), "t", CheckedPurge(catalog.warehouse))
    assert isinstance(decide(loaded.state, {}), NeedsMetadata)
    document = catalog.warehouse.read(path)
    granted = decide(loaded.state, {path: document})
    assert isinstance(granted, Grant)
    kept = document_of({**whole(document), "properties": {"gc.enabled": "false"}})
    with pytest.raises(Invalid, match=r"gc\.enabled=false"):
        decide(loaded.state, {path: kept})


def test_metadata_that_was_purged_meanwhile_is_not_damaged(catalog: Catalog) -> None:
    """A process knows a table that another one has purged since: to its client there is no such table."""
    catalog.create_table(["a"], table())
    slow, known = cold(catalog), catalog._known()
    catalog.drop_table(["a"], "t", purge=True)
    slow._known = lambda: known  # type: ignore[method-assign]
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"x": "y"}}]}
    for act in (
        lambda: slow.commit_table(["a"], "t", change),
        lambda: slow.commit_transaction([{**change, "identifier": {"namespace": ["a"], "name": "t"}}]),
        lambda: slow.drop_table(["a"], "t", purge=True),
    ):
        with pytest.raises(NoSuchTable):
            act()


def test_a_purge_ends_although_a_client_goes_on_writing(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    made = catalog.create_table(["a"], table())
    delete = catalog.warehouse.delete

    def delete_while_another_is_written(some: Sequence[str]) -> None:
        delete(some)
        add_file(catalog, made)

    with monkeypatch.context() as busy:
        busy.setattr(catalog.warehouse, "delete", delete_while_another_is_written)
        catalog.drop_table(["a"], "t", purge=True)
    assert not catalog.has_table(["a"], "t")
    assert len(files(catalog, root_of(catalog, made))) == 1
    assert catalog.finish_purges() == 1
    assert files(catalog, root_of(catalog, made)) == []


def test_a_purge_that_fails_is_finished_later(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    request = table(location=f"{catalog.warehouse.url}/mine")
    catalog.create_table(["a"], request)
    with monkeypatch.context() as broken:
        broken.setattr(catalog.warehouse, "delete", _fail)
        catalog.drop_table(["a"], "t", purge=True)
        with pytest.raises(Unavailable):
            catalog.finish_purges()
    assert not catalog.has_table(["a"], "t")
    for path in ("mine", "mine/below"):
        with pytest.raises(Invalid, match="overlaps"):
            catalog.create_table(["a"], table(location=f"{catalog.warehouse.url}/{path}"))
    assert catalog.finish_purges() == 1
    assert files(catalog, "mine") == []
    assert catalog.finish_purges() == 0
    catalog.create_table(["a"], request)


def _fail(files: object) -> None:
    raise Unavailable("no")


@pytest.mark.parametrize("path", ["mine", "mine/below", "mine/a/b", "."])
def test_no_table_lies_in_anothers_folder(catalog: Catalog, path: str) -> None:
    url = catalog.warehouse.url
    wanted = f"{url}/x" if path == "." else f"{url}/x/{path}"
    catalog.create_table(["a"], table("other", location=f"{url}/x/mine"))
    catalog.create_table(["a"], table())
    attempts: list[Any] = [
        lambda: catalog.create_table(["a"], table("n", location=wanted)),
        lambda: catalog.create_table(["a"], table("n", properties={"write.data.path": wanted})),
        lambda: commit(catalog, {"action": "set-location", "location": wanted}),
        lambda: commit(catalog, {"action": "set-properties", "updates": {"write.data.path": wanted}}),
        lambda: catalog.create_view(["a"], view(location=wanted)),
    ]
    for attempt in attempts:
        with pytest.raises(Invalid, match="overlaps"):
            attempt()
    catalog.create_table(["a"], table("n", location=f"{url}/x/mine2"))


# ---- rename, register ----


def test_rename(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table())
    catalog.create_namespace(["b"])
    catalog.create_table(["b"], table("taken"))
    with pytest.raises(AlreadyExists):
        catalog.rename_table((["a"], "t"), (["b"], "taken"))
    with pytest.raises(NoSuchNamespace):
        catalog.rename_table((["a"], "t"), (["c"], "t"))
    with pytest.raises(NoSuchTable):
        catalog.rename_table((["a"], "gone"), (["b"], "t"))
    catalog.rename_table((["a"], "t"), (["b"], "u/v"), id_="one")
    catalog.rename_table((["a"], "t"), (["b"], "u/v"), id_="one")
    assert catalog.tables(["a"]).names == []
    assert catalog.load_table(["b"], "u/v") == made
    assert metadata(catalog.commit_table(["b"], "u/v", append(made, 1)))["current-snapshot-id"] == 1


def test_register(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table())
    assert made.metadata_location is not None
    with pytest.raises(Invalid, match="overlaps"):
        catalog.register_table(["a"], "r", made.metadata_location)
    catalog.drop_table(["a"], "t")
    with pytest.raises(NoSuchNamespace):
        catalog.register_table(["b"], "r", made.metadata_location)
    registered = catalog.register_table(["a"], "r", made.metadata_location)
    assert metadata(registered) == metadata(made)
    assert registered.metadata_location != made.metadata_location, "it is a file of the catalog's own"
    with pytest.raises(AlreadyExists):
        catalog.register_table(["a"], "r", made.metadata_location)
    later = catalog.commit_table(["a"], "r", append(registered, 1))
    assert later.metadata_location is not None
    assert "/00002-" in later.metadata_location
    back = catalog.register_table(["a"], "r", made.metadata_location, overwrite=True)
    assert metadata(back).get("current-snapshot-id") is None
    assert catalog.load_table(["a"], "r") == back


def test_register_looks_at_all_that_the_metadata_names(catalog: Catalog) -> None:
    made = catalog.commit_table(["a"], "t", append(catalog.create_table(["a"], table()), 1))
    catalog.drop_table(["a"], "t")
    sound = metadata(made)
    location = sound["location"]
    outside = "s3://elsewhere/x"
    stats = {"snapshot-id": 1, "statistics-path": outside, "file-size-in-bytes": 1}
    broken: list[Any] = [
        {**sound, "location": outside},
        {**sound, "properties": {"write.data.path": outside}},
        {**sound, "snapshots": [{**sound["snapshots"][0], "manifest-list": outside}]},
        {**sound, "metadata-log": [{"metadata-file": outside, "timestamp-ms": 1}]},
        {**sound, "statistics": [{**stats, "file-footer-size-in-bytes": 1, "blob-metadata": []}]},
        {**sound, "partition-statistics": [stats]},
        {**sound, "format-version": 3},
        {**sound, "format-version": "x"},
        {**sound, "current-schema-id": 9},
        {"x": 1},
        [],
    ]
    for n, each in enumerate(broken):
        name = f"metadata/{n:05d}-x.metadata.json"
        catalog.warehouse.store.put(Key(f"warehouse/{root_of(catalog, made)}/{name}"), records.encode(each))
        with pytest.raises(Invalid):
            catalog.register_table(["a"], "r", f"{location}/{name}")
    for url in (f"{location}/metadata/gone.metadata.json", f"{location}/metadata", outside):
        with pytest.raises(Invalid):
            catalog.register_table(["a"], "r", url)
    assert catalog.tables(["a"]).names == []


# ---- the past ----


def test_log_at_and_verify(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table())
    version = catalog.at().version
    catalog.create_view(["a"], view())
    catalog.drop_table(["a"], "t")
    then, now = catalog.at(version), catalog.at()
    assert then.tables == {(("a",), "t"): made.metadata_location}
    assert then.views == now.tables == {}
    assert [*now.views] == [(("a",), "v")]
    assert now.namespaces == {("a",): {}}
    assert [row.what for commit in catalog.log(3) for row in commit.rows] == [
        "drop table",
        "create view",
        "create table",
    ]
    moment = next(commit.at for commit in catalog.log() if commit.version == version)
    assert catalog.at(datetime.fromisoformat(moment)) == then
    with pytest.raises(Invalid, match="zone"):
        catalog.at(datetime(2026, 1, 1))
    for never in (now.version + 1, 0, datetime.fromisoformat("2001-01-01T00:00:00+00:00")):
        with pytest.raises(Missing):
            catalog.at(never)
    assert catalog.verify().broken is None
    assert catalog.verify().chain.commits == now.version


# ---- cost ----


@pytest.fixture
def metered() -> Iterator[tuple[Catalog, MeteredStore]]:
    store = MeteredStore(MemoryStore(system()))
    with catalog_on(store) as made:
        made.create_namespace(["a"])
        yield made, store


def test_what_reads_and_commits_cost(metered: tuple[Catalog, MeteredStore]) -> None:
    catalog, store = metered
    made = catalog.create_table(["a"], table())
    catalog.load_table(["a"], "t")
    with store.measure() as cost:
        catalog.load_table(["a"], "t")
    assert (cost.requests, cost.read_bytes) == ({"get": 1}, 0), "one look at the head"
    reader = cold(catalog)
    reader.namespaces()
    with store.measure() as cost:
        reader.load_table(["a"], "t")
    assert cost.requests == {"get": 2}, "and the metadata"
    with store.measure() as cost, pytest.raises(NotModified):
        cold(catalog).load_table(["a"], "t", made.etag)
    assert cost.requests == {"get": 1}, "what the client has is not read"
    with store.measure() as batch:
        catalog.create_namespace(["b"])
    with store.measure() as cost:
        loaded = catalog.commit_table(["a"], "t", append(made, 1))
    assert cost.requests == {**batch.requests, "put": batch.requests["put"] + 1}, "a batch, and its metadata"
    with store.measure() as cost:
        cold(catalog).commit_table(["a"], "t", append(loaded, 2))
    extra = {verb: count - batch.requests.get(verb, 0) for verb, count in cost.requests.items()}
    assert {verb: count for verb, count in extra.items() if count} == {"put": 1, "get": 1}, "and the last metadata"


def test_a_commit_adds_few_bytes_to_the_head(metered: tuple[Catalog, MeteredStore]) -> None:
    catalog, _ = metered
    loaded = catalog.create_table(["a"], table())
    for n in range(1, 4):
        loaded = catalog.commit_table(["a"], "t", append(loaded, n))
    sizes = [len(records.encode(row)) for commit in catalog.log(3) for row in commit.rows]
    assert max(sizes) < 350


def test_the_chain_can_be_walked_when_the_state_cannot_be_read(
    metered: tuple[Catalog, MeteredStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, store = metered
    monkeypatch.setattr(compactor, "SNAPSHOT_EVERY", 3)
    for n in range(8):
        catalog.create_table(["a"], table(f"t{n}"))
    for stat in [*store.list(catalog.storage.keys.snapshots)]:
        store.put(stat.key, b"damaged")
    reader = cold(catalog)
    with pytest.raises(Corrupt):
        reader.at()
    found = reader.verify()
    assert found.chain.broken is None
    assert "its digest differs" in found.damaged[0], "the state cannot be told from it"
    assert [row.what for commit in reader.log(2) for row in commit.rows] == ["create table", "create table"]
