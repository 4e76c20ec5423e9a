"""Format version 3: what a client sent is what the next client reads, and row ids are assigned once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from limpet.catalog.catalog import Catalog, LoadedTable
from limpet.catalog.names import CommitFailed
from limpet.kernel import records
from limpet.kernel.errors import Invalid
from limpet.kernel.keys import Key
from support.catalog import SCHEMA, append, catalog, metadata, snapshot, staged, table

__all__ = ["catalog"]

V3 = {"properties": {"format-version": "3"}}
FIELDS: list[dict[str, Any]] = [
    {"id": 1, "name": "id", "required": True, "type": "long"},
    {
        "id": 2,
        "name": "at",
        "required": False,
        "type": "timestamp_ns",
        "initial-default": "2024-01-01T00:00:00.000000001",
    },
    {"id": 3, "name": "seen", "required": False, "type": "timestamptz_ns"},
    {"id": 4, "name": "nothing", "required": False, "type": "unknown"},
    {"id": 5, "name": "any", "required": False, "type": "variant"},
    {"id": 6, "name": "place", "required": False, "type": "geometry(srid:4326)"},
    {"id": 7, "name": "earth", "required": False, "type": "geography(OGC:CRS84, karney)"},
    {"id": 8, "name": "price", "required": False, "type": "decimal(9, 2)", "write-default": "14.20"},
    {"id": 9, "name": "n", "required": True, "type": "int", "initial-default": 7, "write-default": -7, "doc": "ü"},
    {"id": 10, "name": "key", "required": False, "type": "fixed[2]", "initial-default": "00ff"},
    {
        "id": 11,
        "name": "tags",
        "required": False,
        "type": {"type": "list", "element-id": 12, "element": "string", "element-required": True},
        "initial-default": ["a", "b"],
    },
    {
        "id": 13,
        "name": "inner",
        "required": False,
        "type": {
            "type": "struct",
            "fields": [{"id": 14, "name": "x", "required": False, "type": "double", "write-default": 0.1}],
        },
    },
]
WIDE: dict[str, Any] = {"type": "struct", "schema-id": 0, "fields": FIELDS, "identifier-field-ids": [1]}
SPEC = {
    "spec-id": 0,
    "fields": [
        {"source-ids": [1, 9], "field-id": 1000, "name": "both", "transform": "zorder"},
        {"source-id": 2, "field-id": 1001, "name": "at_day", "transform": "day"},
    ],
}
ORDER = {
    "order-id": 1,
    "fields": [{"source-ids": [1, 9], "transform": "hilbert", "direction": "asc", "null-order": "nulls-first"}],
}
KEY = {"key-id": "k1", "encrypted-key-metadata": "AAEC", "encrypted-by-id": "kek", "properties": {"a": "b"}}


@pytest.fixture(autouse=True)
def namespace(catalog: Catalog) -> None:
    catalog.create_namespace(["a"])


def commit(catalog: Catalog, *updates: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return metadata(catalog.commit_table(["a"], "t", {"requirements": [], "updates": [*updates], **fields}))


def rows(loaded: LoadedTable, id_: int, first: int, added: int, **fields: Any) -> dict[str, Any]:
    """A commit that adds a snapshot with row ids."""
    request = append(loaded, id_)
    request["updates"][0]["snapshot"] |= {"first-row-id": first, "added-rows": added, **fields}
    return request


def test_what_was_created_is_read_back(catalog: Catalog) -> None:
    request = {**table(), "schema": WIDE, "partition-spec": SPEC, "write-order": ORDER, **V3}
    found = metadata(catalog.create_table(["a"], request))
    assert found["format-version"] == 3
    assert found["next-row-id"] == found["last-sequence-number"] == 0
    assert "format-version" not in found["properties"]
    # ids are assigned as in the reference: all columns first, then what is inside them
    new = {12: 13, 13: 12}
    assert [field["id"] for field in found["schemas"][0]["fields"]] == [*range(1, 13)]
    assert found["schemas"][0]["fields"][:10] == FIELDS[:10]
    inner = {**FIELDS[11], "id": new[13]}
    assert found["schemas"][0]["fields"][11] == inner
    assert found["schemas"][0]["fields"][10]["type"]["element-id"] == new[12]
    assert found["schemas"][0]["identifier-field-ids"] == [1]
    assert found["last-column-id"] == 14
    assert found["partition-specs"] == [SPEC]
    assert found["sort-orders"] == [ORDER]
    assert (found["default-spec-id"], found["default-sort-order-id"], found["last-partition-id"]) == (0, 1, 1001)


def test_what_was_committed_is_read_back(catalog: Catalog) -> None:
    """Each part byte for byte, also fields that no specification knows yet."""
    made = catalog.create_table(["a"], {**table(), **V3})
    schema = {**WIDE, "schema-id": 1, "later": {"x": [1, 2.5, None]}}
    new = {**snapshot(made, 1), "first-row-id": 0, "added-rows": 5, "key-id": "k1", "later": "x"}
    stats = {
        "snapshot-id": 1,
        "statistics-path": f"{metadata(made)['location']}/metadata/1.puffin",
        "file-size-in-bytes": 9,
        "file-footer-size-in-bytes": 3,
        "key-metadata": "AA==",
        "blob-metadata": [
            {"type": "my-blob-v1", "snapshot-id": 1, "sequence-number": 1, "fields": [1], "properties": {"ndv": "5"}}
        ],
    }
    partitions = {key: stats[key] for key in ("snapshot-id", "statistics-path", "file-size-in-bytes")}
    found = commit(
        catalog,
        {"action": "add-encryption-key", "encryption-key": KEY},
        {"action": "add-schema", "schema": schema},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {**SPEC, "spec-id": 1}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": ORDER},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "add-snapshot", "snapshot": new},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1, "max-ref-age-ms": 9},
        {"action": "set-statistics", "snapshot-id": 1, "statistics": stats},
        {"action": "set-partition-statistics", "partition-statistics": partitions},
    )
    sent = [schema, {**SPEC, "spec-id": 1}, ORDER, new, stats, partitions, KEY]
    read = [found["schemas"][-1], found["partition-specs"][-1], found["sort-orders"][-1], found["snapshots"][0]]
    read += [found["statistics"][0], found["partition-statistics"][0], found["encryption-keys"][0]]
    assert [records.encode(each) for each in read] == [records.encode(each) for each in sent]
    assert found["next-row-id"] == 5
    assert found["refs"] == {"main": {"type": "branch", "snapshot-id": 1, "max-ref-age-ms": 9}}
    again = commit(catalog, {"action": "set-properties", "updates": {"x": "y"}})
    kept = ("schemas", "partition-specs", "sort-orders", "snapshots", "statistics", "encryption-keys", "next-row-id")
    assert {name: again[name] for name in kept} == {name: found[name] for name in kept}
    gone = commit(
        catalog,
        {"action": "remove-snapshots", "snapshot-ids": [1]},
        {"action": "remove-snapshot-ref", "ref-name": "main"},
        {"action": "remove-encryption-key", "key-id": "k1"},
    )
    assert (gone["statistics"], gone["partition-statistics"], gone["encryption-keys"]) == ([], [], [])
    assert gone["next-row-id"] == 5, "row ids are never assigned again"


def test_all_of_it_survives_a_rename_a_drop_a_registration_and_is_in_the_history(catalog: Catalog) -> None:
    """Types, defaults, transforms of several columns, row ids, statistics and encryption keys of an upgraded table."""
    old = catalog.create_table(["a"], table())
    new = {**snapshot(old, 1), "first-row-id": 0, "added-rows": 5, "key-id": "k1"}
    stats = {
        "snapshot-id": 1,
        "statistics-path": f"{metadata(old)['location']}/metadata/1.puffin",
        "file-size-in-bytes": 9,
        "file-footer-size-in-bytes": 3,
        "blob-metadata": [{"type": "b", "snapshot-id": 1, "sequence-number": 1, "fields": [1], "properties": {}}],
    }
    before = catalog.at().version
    full = commit(
        catalog,
        {"action": "upgrade-format-version", "format-version": 3},
        {"action": "add-encryption-key", "encryption-key": KEY},
        {"action": "add-schema", "schema": {**WIDE, "schema-id": 1}},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {**SPEC, "spec-id": 1}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": ORDER},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "add-snapshot", "snapshot": new},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1},
        {"action": "set-statistics", "snapshot-id": 1, "statistics": stats},
    )
    assert (full["next-row-id"], full["statistics"], full["encryption-keys"]) == (5, [stats], [KEY])
    published = catalog.load_table(["a"], "t").metadata_location
    catalog.rename_table((["a"], "t"), (["a"], "renamed"))
    assert metadata(catalog.load_table(["a"], "renamed")) == full
    catalog.drop_table(["a"], "renamed")
    assert metadata(catalog.undrop(["a"], "renamed")) == full
    catalog.drop_table(["a"], "renamed")
    assert metadata(catalog.register_table(["a"], "registered", str(published))) == full
    past, upgraded = catalog.at(before), catalog.at(before + 1)
    versions = [
        msgspec.json.decode(catalog.warehouse.fetch(str(url).removeprefix(f"{catalog.warehouse.url}/")).data)
        for url in (past.tables[("a",), "t"], upgraded.tables[("a",), "t"])
    ]
    assert versions == [metadata(old), full]


def test_row_ids_are_assigned_once(catalog: Catalog) -> None:
    loaded = catalog.create_table(["a"], {**table(), **V3})

    def add(id_: int, first: int | None, added: int | None) -> dict[str, Any]:
        request = append(catalog.load_table(["a"], "t"), id_)
        lineage = {"first-row-id": first, "added-rows": added}
        request["updates"][0]["snapshot"] |= {key: value for key, value in lineage.items() if value is not None}
        return metadata(catalog.commit_table(["a"], "t", request))

    assert add(1, 0, 10)["next-row-id"] == 10
    with pytest.raises(CommitFailed, match="first-row-id is behind table next-row-id: 9 < 10"):
        add(2, 9, 1)
    assert add(2, 10, 0)["next-row-id"] == 10
    assert add(3, 20, 5)["next-row-id"] == 25, "a gap is allowed; what is above it is taken"
    for first, added in ((None, 1), (25, None), (None, None)):
        with pytest.raises(Invalid, match="is null"):
            add(4, first, added)
    with pytest.raises(Invalid, match="row ids end"):
        add(4, (1 << 63) - 1, 1)
    with pytest.raises(Invalid):
        add(4, -1, 1)
    with pytest.raises(Invalid):
        add(4, 1 << 63, 1)
    stale = rows(loaded, 5, 0, 1)
    del stale["updates"][0]["snapshot"]["sequence-number"]
    with pytest.raises((CommitFailed, Invalid)):
        catalog.commit_table(["a"], "t", stale)
    assert metadata(catalog.load_table(["a"], "t"))["next-row-id"] == 25


def test_writers_at_once_never_share_row_ids(catalog: Catalog) -> None:
    """Two snapshots of different branches are based on the same next row id: the later one is asked to retry."""
    loaded = catalog.create_table(["a"], {**table(), **V3})
    first, second = rows(loaded, 1, 0, 3), rows(loaded, 2, 0, 4)
    second["updates"][1]["ref-name"] = second["requirements"][-1]["ref"] = "wip"
    catalog.commit_table(["a"], "t", first)
    with pytest.raises(CommitFailed, match="behind"):
        catalog.commit_table(["a"], "t", second)
    second["updates"][0]["snapshot"] |= {"first-row-id": 3, "sequence-number": 2}
    assert metadata(catalog.commit_table(["a"], "t", second))["next-row-id"] == 7


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_table_is_upgraded(catalog: Catalog, version: str) -> None:
    loaded = catalog.create_table(["a"], {**table(), "properties": {"format-version": version, "x": "y"}})
    before = metadata(catalog.commit_table(["a"], "t", append(loaded, 1)))
    with pytest.raises(Invalid, match="not supported until v3"):
        commit(catalog, {"action": "add-schema", "schema": {**WIDE, "schema-id": 1}})
    after = commit(
        catalog,
        {"action": "upgrade-format-version", "format-version": 3},
        {"action": "add-schema", "schema": {**WIDE, "schema-id": 1}},
        {"action": "set-current-schema", "schema-id": -1},
    )
    assert (after["format-version"], after["next-row-id"], after["current-schema-id"]) == (3, 0, 1)
    assert after["properties"] == before["properties"]
    assert [each["snapshot-id"] for each in after["snapshots"]] == [1]
    assert len(after["metadata-log"]) == len(before["metadata-log"]) + 1
    for older in (1, 2):
        with pytest.raises(Invalid, match="Cannot downgrade v3 table"):
            commit(catalog, {"action": "upgrade-format-version", "format-version": older})
    loaded = catalog.load_table(["a"], "t")
    assert metadata(catalog.commit_table(["a"], "t", rows(loaded, 2, 0, 1)))["next-row-id"] == 1


def test_a_staged_table_is_created(catalog: Catalog) -> None:
    draft = catalog.create_table(["a"], {**table(), "schema": WIDE, **V3, "stage-create": True})
    assert metadata(draft)["format-version"] == 3
    updates = staged(draft)
    create = {"requirements": [{"type": "assert-create"}], "updates": updates}
    found = metadata(catalog.commit_table(["a"], "t", create))
    changing = ("last-updated-ms",)
    assert {**found, **dict.fromkeys(changing)} == {**metadata(draft), **dict.fromkeys(changing)}
    with pytest.raises(CommitFailed, match="already exists"):
        catalog.commit_table(["a"], "t", create)
    for missing in (2, 4, 6):
        short = [each for n, each in enumerate(updates) if n not in (0, 8, missing, missing + 1)]
        with pytest.raises(Invalid):
            catalog.commit_table(["a"], "u", {**create, "updates": short})


def test_a_table_of_another_catalog_is_registered(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], {**table(), "schema": WIDE, **V3})
    made = catalog.commit_table(["a"], "t", rows(made, 1, 0, 3))
    catalog.drop_table(["a"], "t")
    sound = metadata(made)
    folder = f"{sound['location']}/metadata"

    def register(name: str, given: dict[str, Any]) -> dict[str, Any]:
        url = f"{folder}/{name}.metadata.json"
        catalog.warehouse.store.put(
            Key("warehouse/" + url.removeprefix(f"{catalog.warehouse.url}/")), msgspec.json.encode(given)
        )
        return metadata(catalog.register_table(["a"], "r", url))

    outside = "s3://elsewhere/x"
    only = sound["snapshots"][0]
    broken: dict[str, dict[str, Any]] = {
        "rows": {"next-row-id": 2},
        "no-rows": {"next-row-id": None},
        "below": {"next-row-id": -1},
        "large": {"next-row-id": 1 << 63},
        "location": {"location": outside},
        "list": {"snapshots": [{**only, "manifest-list": outside}]},
        "manifests": {"snapshots": [{**only, "manifests": [outside]}]},
        "strange": {"snapshots": [{**only, "later": {"x": [outside]}}]},
        "top": {"later": outside},
        "twice": {"snapshots": [only, only]},
        "key": {"snapshots": [{**only, "key-id": "k1"}]},
        "ref": {"refs": {**sound["refs"], "b": {"snapshot-id": 9, "type": "branch"}}},
        "main": {"refs": {}, "current-snapshot-id": 9},
        "schema": {"current-schema-id": 9},
        "types": {"schemas": [{**WIDE, "fields": [{**FIELDS[0], "type": "varian"}]}]},
        "keys": {"encryption-keys": [{"key-id": "x"}]},
        "statistics": {"statistics": [{"snapshot-id": 1}]},
        "log": {"metadata-log": [{"metadata-file": outside, "timestamp-ms": 1}]},
        "logs": {"snapshot-log": ["x"]},
    }
    for name, fields in broken.items():
        with pytest.raises(Invalid):
            register(name, {**sound, **fields})
    found = register("sound", {**sound, "encryption-keys": [KEY]})
    assert found == {**sound, "encryption-keys": [KEY]}
    found = register_short(catalog, register, sound)
    assert found["refs"] == sound["refs"]


def register_short(catalog: Catalog, register: Any, sound: dict[str, Any]) -> dict[str, Any]:
    """What the specification makes optional is added."""
    catalog.drop_table(["a"], "r")
    optional = ("refs", "snapshot-log", "metadata-log", "statistics", "partition-statistics")
    found: dict[str, Any] = register("short", {key: value for key, value in sound.items() if key not in optional})
    return found


WRONG: list[dict[str, Any]] = [
    {"type": "unknown", "required": True},
    {"type": "unknown", "initial-default": 1},
    {"type": "variant", "write-default": 1},
    {"type": "geometry", "initial-default": "POINT (1 2)"},
    {"type": "geography(OGC:CRS84, flat)"},
    {"type": "geometry(a(b))"},
    {"type": "decimal(39, 2)"},
    {"type": "int", "initial-default": 1 << 31},
    {"type": "int", "initial-default": True},
    {"type": "int", "initial-default": "1"},
    {"type": "boolean", "write-default": 0},
    {"type": "string", "write-default": 0},
    {"type": "date", "initial-default": "yesterday"},
    {"type": "timestamp_ns", "initial-default": "2024-01-01T00:00:00.0000000001"},
    {"type": "timestamptz_ns", "initial-default": "2024-01-01T00:00:00"},
    {"type": "uuid", "initial-default": "x"},
    {"type": "binary", "initial-default": "0"},
    {"type": {"type": "struct", "fields": []}, "initial-default": {"1": 1}},
    {"type": {"type": "list", "element-id": 9, "element": "int", "element-required": True}, "initial-default": ["x"]},
    {"type": {"type": "list", "element-id": 1, "element": "int", "element-required": True}},
    {"type": {"type": "map", "key-id": 9, "key": "int", "value-id": 10, "value": "nothing", "value-required": True}},
    {"type": {"type": "tuple"}},
    {"type": 5},
    {"id": 1 << 31},
    {"id": -1},
    {"id": 1},
    {"name": ""},
    {"name": "id"},
    {"required": "yes"},
]


@pytest.mark.parametrize("field", WRONG)
def test_schemas_that_are_refused(catalog: Catalog, field: dict[str, Any]) -> None:
    wrong = {"id": 3, "name": "x", "required": False, "type": "int", **field}
    schema = {**SCHEMA, "fields": [*SCHEMA["fields"], wrong]}
    with pytest.raises(Invalid):
        catalog.create_table(["a"], {**table(), "schema": schema, **V3})
    catalog.create_table(["a"], {**table(), **V3})
    with pytest.raises(Invalid):
        commit(catalog, {"action": "add-schema", "schema": {**schema, "schema-id": 1}})


@pytest.mark.parametrize("part", ["schema", "partition-spec", "write-order"])
@pytest.mark.parametrize("wrong", ["x", 5, True, [1], [["fields", []]], {"fields": 5}, {"fields": [5]}])
def test_parts_of_a_new_table_are_objects(catalog: Catalog, part: str, wrong: Any) -> None:
    with pytest.raises(Invalid):
        catalog.create_table(["a"], {**table(), part: wrong, **V3})


def deep(levels: int) -> Any:
    type_: Any = "int"
    for n in range(levels):
        type_ = {"type": "list", "element-id": 100 + n, "element": type_, "element-required": True}
    return type_


def test_updates_that_are_refused(catalog: Catalog) -> None:
    made = catalog.commit_table(["a"], "t", rows(catalog.create_table(["a"], {**table(), **V3}), 1, 0, 1))
    outside = "s3://elsewhere/x"
    spec = {"name": "p", "transform": "identity", "source-id": 1, "field-id": 1000}
    wrong: list[dict[str, Any]] = [
        {"action": "nothing"},
        {"action": "add-schema", "schema": {**SCHEMA, "fields": [{**FIELDS[0], "type": deep(200)}]}},
        {"action": "add-schema", "schema": {**SCHEMA, "identifier-field-ids": [9]}},
        {"action": "add-schema", "schema": {**SCHEMA, "identifier-field-ids": [2]}},
        {"action": "add-schema", "schema": {**SCHEMA, "schema-id": 1, "place": [{"x": outside}]}},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "set-current-schema", "schema-id": 9},
        {"action": "remove-schemas", "schema-ids": [0]},
        {"action": "remove-partition-specs", "spec-ids": [0]},
        {"action": "set-default-spec", "spec-id": 9},
        {"action": "set-default-sort-order", "sort-order-id": 9},
        {"action": "add-spec", "spec": {"fields": [{**spec, "source-ids": [1]}]}},
        {"action": "add-spec", "spec": {"fields": [{key: spec[key] for key in ("name", "transform")}]}},
        {"action": "add-spec", "spec": {"fields": [spec, spec]}},
        {"action": "add-spec", "spec": {"fields": [{**spec, "transform": "f(x)"}]}},
        {"action": "add-spec", "spec": {"fields": [{**spec, "source-ids": []}]}},
        {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": [{"transform": "identity"}]}},
        {"action": "add-encryption-key", "encryption-key": {"key-id": "k"}},
        {"action": "add-encryption-key", "encryption-key": {**KEY, "at": outside}},
        {"action": "set-statistics", "statistics": {"snapshot-id": 1}},
        {"action": "set-snapshot-ref", "ref-name": "v", "type": "tag", "snapshot-id": 1, "min-snapshots-to-keep": 1},
        {"action": "set-snapshot-ref", "ref-name": "v", "type": "tag", "snapshot-id": 9},
        {
            "action": "add-snapshot",
            "snapshot": {**snapshot(made, 2), "first-row-id": 1, "added-rows": 1, "key-id": "k"},
        },
        {
            "action": "add-snapshot",
            "snapshot": {**snapshot(made, 2), "first-row-id": 1, "added-rows": 1, "manifests": []},
        },
        {
            "action": "add-snapshot",
            "snapshot": {**snapshot(made, 2), "first-row-id": 1, "added-rows": 1, "summary": {"operation": "none"}},
        },
        {"action": "assign-uuid", "uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1"},
        {"action": "upgrade-format-version", "format-version": 4},
    ]
    for update in wrong:
        with pytest.raises(Invalid):
            commit(catalog, update)
    for source, transform in ((1, "hour"), (2, "day"), (9, "identity")):
        late = {"fields": [{**spec, "source-id": source, "transform": transform}], "spec-id": 1}
        with pytest.raises(Invalid):
            commit(catalog, {"action": "add-spec", "spec": late}, {"action": "set-default-spec", "spec-id": -1})
    assert catalog.load_table(["a"], "t") == made


def test_keys_that_snapshots_need_stay(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], {**table(), **V3})
    commit(catalog, {"action": "add-encryption-key", "encryption-key": KEY})
    assert commit(catalog, {"action": "add-encryption-key", "encryption-key": KEY})["encryption-keys"] == [KEY]
    with pytest.raises(Invalid, match="another encryption key"):
        commit(catalog, {"action": "add-encryption-key", "encryption-key": {**KEY, "encrypted-key-metadata": "BB=="}})
    catalog.commit_table(["a"], "t", rows(made, 1, 0, 1, **{"key-id": "k1"}))
    with pytest.raises(Invalid, match="which a snapshot needs"):
        commit(catalog, {"action": "remove-encryption-key", "key-id": "k1"})
    done = commit(
        catalog,
        {"action": "remove-snapshot-ref", "ref-name": "main"},
        {"action": "remove-snapshots", "snapshot-ids": [1]},
        {"action": "remove-encryption-key", "key-id": "k1"},
    )
    assert done["encryption-keys"] == []


def test_what_version_3_added_is_refused_in_version_2(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table())
    multi = {"fields": [{"source-ids": [1, 2], "name": "p", "transform": "zorder"}]}
    order = {"order-id": 1, "fields": [{"source-ids": [1, 2], "transform": "zorder"}]}
    later = "not supported until v3"
    for update in (
        {"action": "add-encryption-key", "encryption-key": KEY},
        {"action": "remove-encryption-key", "key-id": "k1"},
        {"action": "add-spec", "spec": multi},
        {"action": "add-sort-order", "sort-order": order},
        {"action": "add-schema", "schema": {**SCHEMA, "fields": [{**FIELDS[4], "id": 3}]}},
        {"action": "add-snapshot", "snapshot": {**snapshot(made, 1), "first-row-id": 0, "added-rows": 1}},
        {"action": "add-snapshot", "snapshot": {**snapshot(made, 1), "key-id": "k1"}},
        {"action": "add-snapshot", "snapshot": {**snapshot(made, 1), "added-rows": 0, "later": 1}},
    ):
        with pytest.raises(Invalid, match=later):
            commit(catalog, update)
    for fields in ({"schema": {**SCHEMA, "fields": [FIELDS[5]]}}, {"partition-spec": multi}, {"write-order": order}):
        with pytest.raises(Invalid, match=later):
            catalog.create_table(["a"], {**table("u"), **fields})
    assert catalog.load_table(["a"], "t") == made
