"""Fields that no specification knows yet: what a client sent is what the next one reads, in every object of a table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.test_catalog_v3 import KEY, ORDER, SPEC, V3, WIDE
from limpet.catalog.commit import apply, parse_commit
from limpet.catalog.iceberg.tables import document_of, new_table, registered
from limpet.kernel import records
from support.catalog import SCHEMA

OTHER_UUID = "00000000-0000-4000-8000-000000000000"
MAPS = frozenset(("properties", "summary"))
"""Objects whose keys are names that users give."""
TEXTS = st.text(max_size=9).filter(lambda text: ":" not in text)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
LATER = st.dictionaries(TEXTS.map("later {}".format), VALUES, max_size=2)


def widened(value: Any, later: Iterator[dict[str, Any]], name: str = "") -> Any:
    """The JSON with unknown fields in every object of it."""
    if isinstance(value, list):
        return [widened(each, later) for each in value]
    if not isinstance(value, dict) or name in MAPS:
        return value
    more = {} if name == "refs" else next(later)
    return {**{key: widened(each, later, key) for key, each in value.items()}, **more}


def whole_table() -> dict[str, Any]:
    """Metadata of a table with something of every kind."""
    location = "memory://test/warehouse/a/t"
    schemas = [{**SCHEMA, "schema-id": 0}, {**WIDE, "schema-id": 1}]
    first = {"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": 1, "summary": {"operation": "append", "x": "y"}}
    first |= {"manifest-list": f"{location}/1.avro", "schema-id": 0, "first-row-id": 0, "added-rows": 5, "key-id": "k1"}
    stats = {"snapshot-id": 1, "statistics-path": f"{location}/1.puffin", "file-size-in-bytes": 9}
    blob = {"type": "b", "snapshot-id": 1, "sequence-number": 1, "fields": [1], "properties": {"ndv": "5"}}
    return {
        "format-version": 3,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": location,
        "last-sequence-number": 1,
        "next-row-id": 5,
        "last-updated-ms": 2,
        "last-column-id": 14,
        "schemas": schemas,
        "current-schema-id": 1,
        "partition-specs": [SPEC],
        "default-spec-id": 0,
        "last-partition-id": 1001,
        "sort-orders": [ORDER],
        "default-sort-order-id": 1,
        "properties": {"owner": "me"},
        "current-snapshot-id": 1,
        "snapshots": [first],
        "snapshot-log": [{"snapshot-id": 1, "timestamp-ms": 1}],
        "metadata-log": [{"metadata-file": f"{location}/0.json", "timestamp-ms": 1}],
        "refs": {"main": {"snapshot-id": 1, "type": "branch"}, "v1": {"snapshot-id": 1, "type": "tag"}},
        "statistics": [{**stats, "file-footer-size-in-bytes": 3, "blob-metadata": [blob]}],
        "partition-statistics": [stats],
        "encryption-keys": [KEY],
    }


@settings(max_examples=100, deadline=None)
@given(st.lists(LATER, min_size=1, max_size=7))
def test_fields_that_nobody_knows_are_kept_at_every_depth(some: list[dict[str, Any]]) -> None:
    """Of a table that is registered, then of all that a commit adds to it, then of what a new table has."""
    later = cycle(some)
    sent = widened(whole_table(), later)
    document = document_of(registered(records.parse_json(records.encode(sent), what="it"))[0])
    assert records.parse_json(document.data, what="it") == sent
    new = {**sent["snapshots"][0], "snapshot-id": 2, "sequence-number": 2, "first-row-id": 5}
    schema, spec, order = ({**sent[part][-1], name: 7} for part, name in (
        ("schemas", "schema-id"), ("partition-specs", "spec-id"), ("sort-orders", "order-id")))  # fmt: skip
    schema["doc"], spec["doc"], order["doc"] = "new", "new", "new"
    key, stats = {**sent["encryption-keys"][0], "key-id": "k2"}, {**sent["statistics"][0], "snapshot-id": 2}
    partitions, ref = {**sent["partition-statistics"][0], "snapshot-id": 2}, widened({"type": "branch"}, later)
    updates = [
        {"action": "add-encryption-key", "encryption-key": key},
        {"action": "add-schema", "schema": schema},
        {"action": "add-spec", "spec": spec},
        {"action": "add-sort-order", "sort-order": order},
        {"action": "add-snapshot", "snapshot": new},
        {"action": "set-snapshot-ref", "ref-name": "b", "snapshot-id": 2, **ref},
        {"action": "set-statistics", "statistics": stats},
        {"action": "set-partition-statistics", "partition-statistics": partitions},
    ]
    asked = parse_commit(records.parse_json(records.encode({"updates": updates, "requirements": []}), what="it"))
    changed = apply(document, asked, "memory://test/x", 9)
    assert changed is not None
    found = records.parse_json(changed.data, what="it")
    added = [("encryption-keys", key), ("schemas", schema), ("partition-specs", spec), ("sort-orders", order)]
    for name, each in [*added, ("snapshots", new), ("statistics", stats), ("partition-statistics", partitions)]:
        assert found[name] == [*sent[name], each]
    assert found["refs"] == {**sent["refs"], "b": {"snapshot-id": 2, **ref}}
    others = {*sent} - {"last-updated-ms", "last-sequence-number", "next-row-id", "metadata-log", "refs"}
    others -= {name for name, _ in added} | {"snapshots", "statistics", "partition-statistics"}
    assert {name: found[name] for name in others} == {name: sent[name] for name in others}
    assert found["metadata-log"][:-1] == sent["metadata-log"]
    request = {"schema": sent["schemas"][0], "partition-spec": {"fields": []}, "write-order": {"fields": []}}
    request = widened({name: part for name, part in request.items() if name != "schema"}, later) | request
    made = new_table({**request, **V3}, "memory://test/n", OTHER_UUID, 1).json()
    assert made["schemas"] == [{**request["schema"], "schema-id": 0}]
