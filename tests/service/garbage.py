"""Requests that make sense, to be broken: every route of the Iceberg REST catalog, and bodies that they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["BODIES", "CREATE_TABLE", "CREATE_VIEW", "LOCATION", "ROUTES", "Body"]

LOCATION = "{location}"
"""Stands for the location of the table that is there; `{uuid}`, `{metadata}` and `{view}` are to be filled in too."""

ONE = "/v1/namespaces/g"
TABLE, VIEW = f"{ONE}/tables/t", f"{ONE}/views/v"
SCHEMA: dict[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "identifier-field-ids": [1],
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "city", "required": False, "type": "string", "doc": "where"},
        {
            "id": 3,
            "name": "tags",
            "required": False,
            "type": {"type": "list", "element-id": 4, "element": "decimal(9,2)", "element-required": False},
        },
    ],
}
SPEC = {"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "transform": "bucket[16]", "name": "b"}]}
ORDER = {
    "order-id": 1,
    "fields": [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
}
VERSION = {
    "version-id": 1,
    "timestamp-ms": 1750000000000,
    "schema-id": 0,
    "summary": {"engine-name": "duckdb"},
    "representations": [{"type": "sql", "sql": "select 1 as id", "dialect": "duckdb"}],
    "default-namespace": ["g"],
}
SNAPSHOT = {
    "snapshot-id": 7,
    "sequence-number": 1000,
    "timestamp-ms": 4000000000000,
    "manifest-list": f"{LOCATION}/metadata/snap-7.avro",
    "summary": {"operation": "append"},
    "schema-id": 0,
}
STATISTICS = {
    "snapshot-id": 7,
    "statistics-path": f"{LOCATION}/metadata/7.puffin",
    "file-size-in-bytes": 10,
    "file-footer-size-in-bytes": 5,
    "blob-metadata": [
        {
            "type": "apache-datasketches-theta-v1",
            "snapshot-id": 7,
            "sequence-number": 1,
            "fields": [1],
            "properties": {"a": "b"},
        }
    ],
}
PARTITION_STATISTICS = {"snapshot-id": 7, "statistics-path": f"{LOCATION}/metadata/p", "file-size-in-bytes": 10}
CREATE_TABLE: dict[str, Any] = {
    "name": "t",
    "schema": SCHEMA,
    "partition-spec": SPEC,
    "write-order": ORDER,
    "stage-create": False,
    "properties": {"owner": "me"},
}
CREATE_VIEW: dict[str, Any] = {"name": "v", "schema": SCHEMA, "view-version": VERSION, "properties": {"owner": "me"}}
REQUIREMENTS: list[dict[str, Any]] = [
    {"type": "assert-create"},
    {"type": "assert-table-uuid", "uuid": "{uuid}"},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 4},
    {"type": "assert-current-schema-id", "current-schema-id": 0},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1000},
    {"type": "assert-default-spec-id", "default-spec-id": 0},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 1},
]
UPDATES: list[list[dict[str, Any]]] = [
    [{"action": "assign-uuid", "uuid": "{uuid}"}],
    [{"action": "upgrade-format-version", "format-version": 2}],
    [
        {"action": "add-schema", "schema": SCHEMA, "last-column-id": 4},
        {"action": "set-current-schema", "schema-id": -1},
    ],
    [{"action": "add-spec", "spec": SPEC}, {"action": "set-default-spec", "spec-id": -1}],
    [{"action": "add-sort-order", "sort-order": ORDER}, {"action": "set-default-sort-order", "sort-order-id": -1}],
    [
        {"action": "add-snapshot", "snapshot": SNAPSHOT},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 7},
        {"action": "set-snapshot-ref", "ref-name": "v1", "type": "tag", "snapshot-id": 7, "max-ref-age-ms": 1},
    ],
    [{"action": "remove-snapshot-ref", "ref-name": "main"}, {"action": "remove-snapshots", "snapshot-ids": [7]}],
    [{"action": "set-location", "location": LOCATION}],
    [
        {"action": "set-properties", "updates": {"a": "b", "write.metadata.path": f"{LOCATION}/metadata"}},
        {"action": "remove-properties", "removals": ["a"]},
    ],
    [
        {"action": "set-statistics", "snapshot-id": 7, "statistics": STATISTICS},
        {"action": "set-partition-statistics", "partition-statistics": PARTITION_STATISTICS},
    ],
    [{"action": "remove-statistics", "snapshot-id": 7}, {"action": "remove-partition-statistics", "snapshot-id": 7}],
    [{"action": "remove-partition-specs", "spec-ids": [1]}, {"action": "remove-schemas", "schema-ids": [1]}],
    [{"action": "enable-row-lineage"}],
    [
        {
            "action": "add-encryption-key",
            "encryption-key": {"key-id": "k", "encrypted-key-metadata": "AAAA", "encrypted-by-id": "x"},
        },
        {"action": "remove-encryption-key", "key-id": "k"},
    ],
]
ALL_NEW: list[dict[str, Any]] = [
    {"action": "assign-uuid", "uuid": "01890a5d-ac96-474b-bcce-b302099a8057"},
    {"action": "upgrade-format-version", "format-version": 2},
    *UPDATES[2],
    *UPDATES[3],
    *UPDATES[4],
    {"action": "set-location", "location": f"{LOCATION}-new"},
    {"action": "set-properties", "updates": {"owner": "me"}},
]
VIEW_UPDATES: list[list[dict[str, Any]]] = [
    [
        {"action": "add-schema", "schema": SCHEMA, "last-column-id": 4},
        {"action": "add-view-version", "view-version": VERSION | {"version-id": 2}},
        {"action": "set-current-view-version", "view-version-id": -1},
    ],
    [
        {"action": "assign-uuid", "uuid": "{view}"},
        {"action": "upgrade-format-version", "format-version": 1},
        {"action": "set-location", "location": "{view-location}"},
        {"action": "set-properties", "updates": {"a": "b"}},
        {"action": "remove-properties", "removals": ["a"]},
    ],
]


@dataclass(frozen=True, slots=True)
class Body:
    """A request with a body."""

    method: str
    path: str
    json: Any


def _commit(updates: list[dict[str, Any]], *requirements: dict[str, Any]) -> dict[str, Any]:
    return {"requirements": [*requirements], "updates": updates}


def _change(commit: dict[str, Any], name: str) -> dict[str, Any]:
    return {"identifier": {"namespace": ["g"], "name": name}} | commit


_TWO = {"source": {"namespace": ["g"], "name": "t"}, "destination": {"namespace": ["g"], "name": "t2"}}
BODIES: list[Body] = [
    Body("POST", "/v1/namespaces", {"namespace": ["g", "h"], "properties": {"owner": "me"}}),
    Body("POST", f"{ONE}/properties", {"removals": ["a"], "updates": {"b": "c"}}),
    Body("POST", f"{ONE}/tables", CREATE_TABLE | {"name": "t3"}),
    Body("POST", f"{ONE}/tables", CREATE_TABLE | {"name": "t4", "stage-create": True}),
    Body("POST", f"{ONE}/tables", CREATE_TABLE | {"name": "t5", "properties": {"format-version": "3"}}),
    Body("POST", f"{ONE}/register", {"name": "t", "metadata-location": "{metadata}", "overwrite": True}),
    Body("POST", f"{TABLE}/metrics", {"report-type": "scan-report", "table-name": "t", "snapshot-id": 7}),
    Body("POST", "/v1/tables/rename", _TWO),
    Body("POST", "/v1/views/rename", _TWO | {"source": {"namespace": ["g"], "name": "v"}}),
    Body("POST", f"{ONE}/views", CREATE_VIEW | {"name": "v3"}),
    *(Body("POST", TABLE, _commit(updates, REQUIREMENTS[1])) for updates in UPDATES),
    *(Body("POST", TABLE, _commit([], requirement)) for requirement in REQUIREMENTS),
    *(Body("POST", VIEW, _commit(updates, {"type": "assert-view-uuid", "uuid": "{view}"})) for updates in VIEW_UPDATES),
    Body("POST", "/v1/transactions/commit", {"table-changes": [_change(_commit(UPDATES[5]), "t")]}),
    Body(
        "POST",
        "/v1/transactions/commit",
        {"table-changes": [_change(_commit(UPDATES[8]), "t"), _change(_commit(ALL_NEW, REQUIREMENTS[0]), "new")]},
    ),
]
ROUTES = [
    "/v1/config",
    "/v1/oauth/tokens",
    "/v1/namespaces",
    "/v1/namespaces/{}",
    "/v1/namespaces/{}/properties",
    "/v1/namespaces/{}/tables",
    "/v1/namespaces/{}/tables/{}",
    "/v1/namespaces/{}/tables/{}/metrics",
    "/v1/namespaces/{}/tables/{}/credentials",
    "/v1/namespaces/{}/tables/{}/plan",
    "/v1/namespaces/{}/register",
    "/v1/namespaces/{}/views",
    "/v1/namespaces/{}/views/{}",
    "/v1/namespaces/{}/register-view",
    "/v1/tables/rename",
    "/v1/views/rename",
    "/v1/transactions/commit",
    "/healthz",
    "/readyz",
    "/metrics",
    "/internal/sync-compact",
    "/{}",
    "/{}/{}",
]
