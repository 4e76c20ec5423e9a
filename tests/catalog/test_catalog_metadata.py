"""Generated commits give the metadata that PyIceberg's own updates give, for format versions 1 to 3."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.exceptions import ValidationError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataUtil, new_table_metadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import TableUpdate, update_table_metadata

from limpet.catalog.commit import apply, parse_commit
from limpet.catalog.iceberg.tables import document_of, new_table, registered, whole
from limpet.catalog.names import CommitFailed
from limpet.catalog.warehouse import Document
from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid
from support.catalog import SCHEMA, table

LOCATION = "s3://bucket/warehouse/a/t"
UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"
NOW_MS = 1_794_000_000_000
THEIRS = pydantic.TypeAdapter(tuple[TableUpdate, ...])
STRICTER = re.compile(
    "sequence number|not supported until v3|Tags do not support|the commit is not valid|row ids end|"
    "Cannot (add a snapshot|find source|use |reassign|remove )|has an operation|a (spec|schema|order)-id|whole number"
)
"""Refusals of commits that PyIceberg takes."""
ABSENT = re.compile("Statistics with snapshot id|unknown ref")
"""Refusals by PyIceberg of removals that find nothing: they change nothing here, as in the reference implementation."""

MAIN_AT_1 = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1}
VERSION_2 = {"action": "upgrade-format-version", "format-version": 2}
IDS = st.integers(1, 5)
REFS = st.sampled_from(["main", "wip", "v1"])
PARTS = st.integers(0, 3)


def _column(id_: int, type_: str) -> dict[str, Any]:
    return {"id": id_, "name": f"c{id_}", "required": False, "type": type_}


UPDATES = st.one_of(
    st.builds(lambda id_, more: ("add-snapshot", id_, more), IDS, st.integers(0, 3)),
    st.builds(
        lambda name, kind, id_, keep: {
            "action": "set-snapshot-ref",
            "ref-name": name,
            "type": kind,
            "snapshot-id": id_,
            **({"min-snapshots-to-keep": keep} if keep is not None else {}),
        },
        REFS,
        st.sampled_from(["branch", "branch", "tag"]),
        IDS,
        st.sampled_from([None, None, 0, 2]),
    ),
    st.builds(lambda name: {"action": "remove-snapshot-ref", "ref-name": name}, REFS),
    st.builds(lambda ids: {"action": "remove-snapshots", "snapshot-ids": ids}, st.lists(IDS, max_size=3, unique=True)),
    st.builds(
        lambda texts, number: {"action": "set-properties", "updates": {**texts, **number}},
        st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), max_size=2),
        st.dictionaries(
            st.just("write.metadata.previous-versions-max"), st.sampled_from(["1", "2", "3", "x"]), max_size=1
        ),
    ),
    st.builds(
        lambda names: {"action": "remove-properties", "removals": names},
        st.lists(st.sampled_from(["x", "y"]), max_size=2, unique=True),
    ),
    st.builds(lambda at, type_: ("add-schema", at, type_), PARTS, st.sampled_from(["int", "string", "unheard"])),
    st.builds(lambda id_: {"action": "set-current-schema", "schema-id": id_}, st.integers(-1, 3)),
    st.builds(lambda at, how: ("add-spec", at, how), PARTS, st.sampled_from(["identity", "bucket[4]", "void"])),
    st.builds(lambda id_: {"action": "set-default-spec", "spec-id": id_}, st.integers(-1, 3)),
    st.builds(lambda at, how: ("add-sort-order", at, how), PARTS, st.sampled_from(["asc", "desc"])),
    st.builds(lambda id_: {"action": "set-default-sort-order", "sort-order-id": id_}, st.integers(-1, 3)),
    st.builds(lambda name: {"action": "set-location", "location": f"{LOCATION}{name}"}, st.sampled_from(["", "/b"])),
    st.builds(lambda to: {"action": "upgrade-format-version", "format-version": to}, st.integers(1, 2)),
    st.builds(
        lambda id_: {
            "action": "set-statistics",
            "statistics": {
                "snapshot-id": id_,
                "statistics-path": f"{LOCATION}/{id_}.puffin",
                "file-size-in-bytes": 9,
                "file-footer-size-in-bytes": 3,
                "blob-metadata": [],
            },
        },
        IDS,
    ),
    st.builds(lambda id_: {"action": "remove-statistics", "snapshot-id": id_}, IDS),
)


def made(what: Any, before: dict[str, Any]) -> dict[str, Any]:
    """The update that a strategy stands for, on that table. New schemas, specs and orders have ids that are free."""
    if isinstance(what, dict):
        return dict(what)
    action, n, how = what
    if action == "add-snapshot":
        number = before["last-sequence-number"] + how
        rows = {"first-row-id": before["next-row-id"], "added-rows": how} if "next-row-id" in before else {}
        return {
            "action": action,
            "snapshot": {
                "snapshot-id": n,
                "sequence-number": number,
                "timestamp-ms": 1_700_000_000_000 + n,
                "manifest-list": f"{LOCATION}/{n}.avro",
                "summary": {"operation": "append"},
                **({"parent-snapshot-id": n - 1} if n > 1 else {}),
                **rows,
            },
        }
    if action == "add-schema":
        fields = [*SCHEMA["fields"], _column(10 + n, how)]
        id_ = max(part["schema-id"] for part in before["schemas"]) + 1
        return {"action": action, "schema": {"type": "struct", "schema-id": id_, "fields": fields}}
    if action == "add-spec":
        field = {"source-id": 1, "transform": how, "name": f"p{n}", "field-id": before["last-partition-id"] + 1}
        id_ = max(part["spec-id"] for part in before["partition-specs"]) + 1
        return {"action": action, "spec": {"spec-id": id_, "fields": [field]}}
    field = {"source-id": 1 + n % 2, "transform": "identity", "direction": how, "null-order": "nulls-first"}
    id_ = max(part["order-id"] for part in before["sort-orders"]) + 1
    return {"action": action, "sort-order": {"order-id": id_, "fields": [field]}}


def ours(document: Document, update: dict[str, Any]) -> Document | str | None:
    try:
        return apply(document, parse_commit({"updates": [update]}), f"{LOCATION}/0.json", NOW_MS)
    except (CommitFailed, Invalid) as error:
        return str(error)


def theirs(document: Document, update: dict[str, Any]) -> Any:
    """What PyIceberg makes of it. It refuses removals of absent things, which change nothing here."""
    base = TableMetadataUtil.parse_raw(document.data.decode())
    if update["action"] == "remove-snapshots":
        update["snapshot-ids"] = [id_ for id_ in update["snapshot-ids"] if base.snapshot_by_id(id_)]
    if update["action"] == "remove-properties":
        update["removals"] = [name for name in update["removals"] if name in base.properties]
    try:
        new = update_table_metadata(base, THEIRS.validate_python((update,)), metadata_location=f"{LOCATION}/0.json")
        return None if new == base else new
    except (KeyError, ValueError, ValidationError) as error:
        return f"{type(error).__name__}: {error}"


def timeless(value: Any) -> Any:
    """The metadata without the times of commits, in one order: those of PyIceberg are the clock's."""
    match value:
        case dict():
            return {key: timeless(part) for key, part in sorted(value.items()) if part is not None}
        case list() | tuple():
            return [timeless(part) for part in value]
        case int() if value > 1_750_000_000_000:
            return "now"
    return value


def modelled(table_: Any) -> Any:
    """Metadata as PyIceberg's model prints it."""
    known = timeless(TableMetadataUtil.parse_raw(records.encode(table_).decode()).model_dump(mode="json"))
    # PyIceberg sets back the number, has another clock, and does not renew the fields of version 1.
    for name in ("last-sequence-number", "last-updated-ms", "schema", "partition-spec"):
        known.pop(name, None)
    return known


@given(st.sampled_from([1, 2, 3]), st.lists(UPDATES, max_size=8))
@example(2, [("add-snapshot", 1, 1), MAIN_AT_1, {"action": "remove-snapshots", "snapshot-ids": [1]}])
@example(1, [("add-schema", 1, "int"), {"action": "set-current-schema", "schema-id": 1}, VERSION_2])
@settings(deadline=None, max_examples=200)
def test_an_update_does_what_pyiceberg_does(version: int, wanted: Sequence[Any]) -> None:
    request = table(properties={"format-version": str(version)})
    document = new_table(request, LOCATION, UUID, 1_700_000_000_000)
    for what in wanted:
        update = made(what, whole(document))
        new, expected = ours(document, update), theirs(document, update)
        if isinstance(new, str):
            assert isinstance(expected, str) or expected is None or STRICTER.search(new), (update, new)
            continue
        if isinstance(expected, str):
            assert new is None, (update, expected)
            assert ABSENT.search(expected), (update, expected)
            continue
        if new is None and update["action"] in ("add-schema", "add-spec", "add-sort-order"):
            continue  # there is an equal one, which is used again
        left = modelled((new or document).json())
        right = modelled(document.json() if expected is None else expected.model_dump(mode="json"))
        if new is None or expected is None:  # a commit that changes nothing is logged by one of them
            left.pop("metadata-log", None), right.pop("metadata-log", None)
        assert left == right, update
        document = new or document


def test_a_new_table_is_what_pyiceberg_makes() -> None:
    inner = {"type": "struct", "fields": [{"id": 9, "name": "x", "required": True, "type": "int"}]}
    items = {"type": "list", "element-id": 8, "element": inner, "element-required": True}
    fields = [
        {"id": 7, "name": "deep", "required": False, "type": items},
        {"id": 3, "name": "day", "required": True, "type": "date"},
        {"id": 5, "name": "id", "required": True, "type": "long"},
    ]
    schema = {"type": "struct", "schema-id": 4, "fields": fields, "identifier-field-ids": [5]}
    spec = {"spec-id": 3, "fields": [{"source-id": 3, "transform": "month", "name": "m", "field-id": 1000}]}
    order = {
        "order-id": 9,
        "fields": [{"source-id": 5, "transform": "bucket[3]", "direction": "desc", "null-order": "nulls-last"}],
    }
    for version in ("1", "2"):
        request = {"name": "t", "schema": schema, "partition-spec": spec, "write-order": order}
        new = new_table({**request, "properties": {"format-version": version}}, LOCATION, UUID, 1)
        properties = {"write.parquet.compression-codec": "zstd", "format-version": version}
        expected = new_table_metadata(
            Schema.model_validate(schema),
            PartitionSpec.model_validate(spec),
            SortOrder.model_validate(order),
            LOCATION,
            properties,
            UUID,  # type: ignore[arg-type]
        )
        assert modelled(new.json()) == modelled(expected.model_dump(mode="json"))


def test_metadata_of_another_program_is_completed() -> None:
    """It may leave out what this catalog always writes."""
    base = new_table(table(), LOCATION, UUID, 1_700_000_000_000).json()
    first = made(("add-snapshot", 1, 1), base)["snapshot"]
    variants: list[dict[str, Any]] = [
        {key: value for key, value in base.items() if key not in ("refs", "statistics", "properties")},
        {**base, "current-snapshot-id": -1},
        {**base, "snapshots": [first], "current-snapshot-id": 1, "last-sequence-number": 1},
    ]
    for variant in variants:
        number = variant["last-sequence-number"]
        main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 2}
        tip = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1 if number else None}
        updates = [made(("add-snapshot", 2, 1), variant), main]
        commit = parse_commit({"requirements": [tip], "updates": updates})
        after = apply(Document(records.encode(variant)), commit, "s3://bucket/0", 1)
        assert after is not None
        assert after.json()["refs"]["main"]["snapshot-id"] == 2
        assert after.json()["last-sequence-number"] == number + 1


def test_the_first_writers_of_version_1_wrote_one_schema_and_one_spec() -> None:
    field = {"name": "day", "transform": "identity", "source-id": 1}
    old = {
        "format-version": 1,
        "table-uuid": UUID,
        "location": LOCATION,
        "last-updated-ms": 1,
        "last-column-id": 2,
        "schema": {"type": "struct", "fields": SCHEMA["fields"]},
        "partition-spec": [field],
        "properties": {},
        "current-snapshot-id": -1,
        "snapshots": [],
    }
    document = document_of(registered(old)[0])
    assert document.json()["partition-specs"] == [{"spec-id": 0, "fields": [{**field, "field-id": 1000}]}]
    TableMetadataUtil.parse_raw(document.data.decode())
    again = apply(Document(document.data), parse_commit({"updates": [made(("add-schema", 1, "int"), whole(document)),
                  {"action": "set-current-schema"}]}), "s3://bucket/0", 2)  # fmt: skip
    assert again is not None
    assert again.json()["schema"]["fields"][-1]["name"] == "c11", "readers of version 1 see the current schema"
    newer = apply(again, parse_commit({"updates": [{"action": "upgrade-format-version", "format-version": 2}]}), "x", 3)
    assert newer is not None
    assert {"schema", "partition-spec"}.isdisjoint(newer.json())
    assert newer.json()["last-sequence-number"] == 0
    TableMetadataUtil.parse_raw(newer.data.decode())


@pytest.mark.parametrize("gone", ["schemas", "last-sequence-number", "default-spec-id", "table-uuid", "location"])
def test_stored_metadata_that_lacks_a_field_is_corrupt(gone: str) -> None:
    base = new_table(table(), LOCATION, UUID, 1).json()
    with pytest.raises(Corrupt, match="not valid"):
        whole(Document(records.encode({key: value for key, value in base.items() if key != gone})))


def test_the_time_of_a_table_does_not_go_back() -> None:
    """A commit's time is taken before it waits for the leader, so a later commit may have an earlier one."""
    document = new_table({"name": "t", "schema": {"type": "struct", "fields": []}}, LOCATION, UUID, 2_000)
    after = apply(
        document, parse_commit({"updates": [{"action": "set-properties", "updates": {"a": "1"}}]}), "x", 1_000
    )
    assert after is not None
    assert after.json()["last-updated-ms"] == 2_000
