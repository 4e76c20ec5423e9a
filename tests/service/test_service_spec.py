"""Every operation of Iceberg's REST specification, as its YAML has it, against a real `limpet serve`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.operations import ALWAYS, OPERATIONS, Operation
from support.servers.catalog import Answer, CatalogServer, catalog_server

UNLISTED = {"getConfig": 200, "getToken": 400}
"""Operations that clients use without looking for them in the list of endpoints, and our answer to an empty request."""
UNSUPPORTED = {"loadCredentials", "signRequest", "listFunctions", "loadFunction"}
"""Refused by a service on a directory. The first two are compared in `tests/clients/test_clients_signing.py`."""
ELSEWHERE = {406, 500, 502, 504}
"""Namespaces have properties, and tables move. A plan is refused with 406 for a table that PyIceberg cannot read."""
NEVER = {"reportMetrics": {404}}
"""Java reports on tables that are only staged; reports are ignored."""

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
VERSION = {
    "version-id": 1,
    "schema-id": 0,
    "timestamp-ms": 1,
    "summary": {},
    "default-namespace": ["x"],
    "representations": [{"type": "sql", "sql": "select 1", "dialect": "duckdb"}],
}
NEW_VIEW = {"schema": SCHEMA, "view-version": VERSION, "properties": {}}
SETS: dict[str, Any] = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
OTHER_UUID = "00000000-0000-4000-8000-000000000000"
NONE = {"namespace": "none", "table": "none", "view": "none"}


@dataclass(frozen=True, slots=True)
class Case:
    """A request to one operation, and its answer. `names`: parts of the path, if not those that exist."""

    status: int
    kind: str = ""
    body: Any = None
    names: dict[str, str] = field(default_factory=dict)
    query: str = ""
    headers: dict[str, str] = field(default_factory=dict)


def secret(name: str) -> str:
    return f"the-secret-of-{name}-here"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogServer]:
    folder = tmp_path_factory.mktemp("spec")
    path: Path = folder / "tokens.toml"
    rights = {"boss": 'rights = ["admin"]', "elsewhere": 'rights = ["write"]\nnamespaces = ["elsewhere"]'}
    path.write_text("".join(f'[[token]]\nname = "{n}"\nsecret = "{secret(n)}"\n{r}\n' for n, r in rights.items()))
    path.chmod(0o600)
    with catalog_server(str(folder / "fleet"), "--tokens-file", str(path)) as server:
        yield server


def asked(server: CatalogServer, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    return server.ask(method, path, body, {"authorization": f"Bearer {secret('boss')}", **headers})


def path_of(operation: Operation, names: dict[str, str], query: str = "") -> str:
    path = operation.path.replace("/{prefix}", "")
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", value)
    assert "{" not in path, path
    return path + (f"?{query}" if query else "")


def renames(space: str, source: str, target: str, into: str | None = None) -> dict[str, Any]:
    return {
        "source": {"namespace": [space], "name": source},
        "destination": {"namespace": [into or space], "name": target},
    }


def changes(space: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"table-changes": [{"identifier": {"namespace": [space], "name": name}, **SETS, **fields}]}


def cases(operation: str, server: CatalogServer, space: str) -> list[Case]:
    """The requests to try, the one that succeeds and removes something last."""
    table = asked(server, "GET", f"/v1/namespaces/{space}/tables/t")
    register = {}
    for kind in ("table", "view"):
        path = f"/v1/namespaces/{space}/{kind}s/old-{kind}"
        register[kind] = {"name": "again", "metadata-location": asked(server, "GET", path).json["metadata-location"]}
        assert asked(server, "DELETE", path).status == 204
    missing = {"table": "none"}
    no_table, no_view, no_namespace = "NoSuchTableException", "NoSuchViewException", "NoSuchNamespaceException"
    exists, failed, bad = "AlreadyExistsException", "CommitFailedException", "BadRequestException"
    key = {"idempotency-key": str(uuid4())}
    uuid = {"requirements": [{"type": "assert-table-uuid", "uuid": OTHER_UUID}]}
    view_uuid = {"requirements": [{"type": "assert-view-uuid", "uuid": OTHER_UUID}]}
    unknown = {"requirements": [], "updates": [{"action": "dance"}]}
    odd = {"requirements": [{"type": "assert-mood"}], "updates": []}
    delegation = {"x-iceberg-access-delegation": "vended-credentials,remote-signing,telepathy"}
    found: dict[str, list[Case]] = {
        "getConfig": [Case(200), Case(200, query="warehouse=some")],
        "listNamespaces": [
            *(Case(200, query=query) for query in ("", "parent=", "pageToken=&pageSize=2", f"parent={space}")),
            Case(404, no_namespace, query="parent=none"),
            Case(400, bad, query="pageToken=x"),
            Case(400, bad, query="pageSize=0"),
        ],
        "createNamespace": [
            Case(200, body={"namespace": [space, "c"], "properties": {"a": "b"}}, headers=key),
            Case(200, body={"namespace": [space, "c"], "properties": {"a": "b"}}, headers=key),
            Case(409, exists, body={"namespace": [space]}),
            Case(400, bad, body={"properties": {}}),
            Case(400, bad, body={"namespace": [f"{space}x"]}, headers={"idempotency-key": "x"}),
        ],
        "loadNamespaceMetadata": [Case(200), Case(404, no_namespace, names=NONE)],
        "namespaceExists": [Case(204), Case(404, names=NONE)],
        "dropNamespace": [
            Case(409, "NamespaceNotEmptyException"),
            Case(404, no_namespace, names=NONE),
            Case(204, names={"namespace": f"{space}%1Fempty"}, headers=key),
            Case(204, names={"namespace": f"{space}%1Fempty"}, headers=key),
        ],
        "updateProperties": [
            Case(200, body={"removals": ["x"], "updates": {"a": "b"}}, headers=key),
            Case(200, body={}),
            Case(404, no_namespace, body={}, names=NONE),
            Case(422, "UnprocessableEntityException", body={"removals": ["a"], "updates": {"a": "b"}}),
        ],
        "listTables": [
            *(Case(200, query=query) for query in ("", "pageToken=&pageSize=1")),
            Case(404, no_namespace, names=NONE),
        ],
        "createTable": [
            Case(200, body={"name": "new", "schema": SCHEMA}, headers={**key, **delegation}),
            Case(200, body={"name": "staged", "schema": SCHEMA, "stage-create": True}),
            Case(200, body={"name": "full", "schema": SCHEMA, "partition-spec": {"fields": []},
                            "write-order": {"order-id": 0, "fields": []}, "properties": {"a": "b"}}),
            Case(409, exists, body={"name": "t", "schema": SCHEMA}),
            Case(409, exists, body={"name": "v", "schema": SCHEMA}),
            Case(404, no_namespace, body={"name": "t", "schema": SCHEMA}, names=NONE),
            Case(400, bad, body={"schema": SCHEMA}),
            Case(400, bad, body={"name": "x"}),
        ],
        "planTableScan": [
            Case(200),
            Case(200, body={"filter": {"type": "eq", "term": "id", "value": 1}, "select": ["id"],
                            "stats-fields": ["id"], "min-rows-requested": 5, "case-sensitive": False,
                            "use-snapshot-schema": True},
                 headers={**key, **delegation}),
            Case(404, no_table, body={}, names=missing),
            Case(400, bad, body={"snapshot-id": 7}),
            Case(400, bad, body={"start-snapshot-id": 7}),
        ],
        "fetchPlanningResult": [
            Case(200),
            Case(404, "NoSuchPlanIdException", names={"plan-id": "none"}),
            Case(404, no_table, names=missing),
        ],
        "cancelPlanning": [Case(204), Case(404, no_table, names=missing)],
        "fetchScanTasks": [
            Case(200, body={"plan-task": "eyJmaXJzdCI6MCwibGFzdCI6MX0="}),
            Case(404, "NoSuchPlanTaskException", body={"plan-task": "none"}),
            Case(404, no_table, body={"plan-task": "none"}, names=missing),
            Case(400, bad, body={}),
        ],
        "registerTable": [
            Case(200, body=register["table"], headers={**key, **delegation}),
            Case(200, body=register["table"], headers=key),
            Case(409, exists, body={**register["table"], "name": "t"}),
            Case(404, no_namespace, body=register["table"], names=NONE),
            Case(400, bad, body={"name": "x"}),
            Case(400, bad, body={"name": "x", "metadata-location": "s3://elsewhere/x.metadata.json"}),
        ],
        "unregisterTable": [Case(404, no_table, names=missing), Case(200, headers=key), Case(200, headers=key)],
        "loadTable": [
            *(Case(200, query=query) for query in ("", "snapshots=all", "snapshots=refs", "referenced-by=a%1Fv,b%1Fw")),
            Case(200, headers=delegation),
            Case(304, headers={"if-none-match": table.headers["etag"]}),
            Case(200, query="snapshots=refs", headers={"if-none-match": table.headers["etag"]}),
            Case(404, no_table, names=missing),
            Case(404, no_table, names=NONE),
            Case(400, bad, query="snapshots=some"),
        ],
        "updateTable": [
            Case(200, body=SETS, headers=key),
            Case(404, no_table, body=SETS, names=missing),
            Case(409, failed, body={**SETS, **uuid}),
            Case(400, bad, body=unknown),
            Case(400, bad, body=odd),
            Case(400, bad, body={"requirements": []}),
        ],
        "dropTable": [
            Case(404, no_table, names=missing),
            Case(204, query="purgeRequested=false", headers=key),
            Case(204, query="purgeRequested=false", headers=key),
        ],
        "tableExists": [Case(204), Case(404, names=missing), Case(404, names=NONE)],
        "renameTable": [
            Case(404, no_table, body=renames(space, "none", "x")),
            Case(404, no_namespace, body=renames(space, "t", "x", "none")),
            Case(409, exists, body=renames(space, "t", "u")),
            Case(409, exists, body=renames(space, "t", "v")),
            Case(400, bad, body={"source": {"namespace": [space], "name": "t"}}),
            Case(204, body=renames(space, "t", "x"), headers=key),
            Case(204, body=renames(space, "t", "x"), headers=key),
        ],
        "reportMetrics": [Case(204, body={"report-type": "scan-report"}), Case(400, bad, body=[])],
        "commitTransaction": [
            Case(204, body=changes(space, "t"), headers=key),
            Case(404, no_table, body=changes(space, "none")),
            Case(409, failed, body=changes(space, "t", **uuid)),
            Case(400, bad, body={"table-changes": [SETS]}),
            Case(400, bad, body=changes(space, "t", **unknown)),
        ],
        "listViews": [
            *(Case(200, query=query) for query in ("", "pageToken=&pageSize=1")),
            Case(404, no_namespace, names=NONE),
        ],
        "createView": [
            Case(200, body={"name": "new", **NEW_VIEW}),
            Case(409, exists, body={"name": "v", **NEW_VIEW}),
            Case(409, exists, body={"name": "t", **NEW_VIEW}),
            Case(404, no_namespace, body={"name": "v", **NEW_VIEW}, names=NONE),
            Case(400, bad, body={"name": "x", "schema": SCHEMA}),
        ],
        "loadView": [
            Case(200),
            Case(200, query=f"referenced-by={space}%1Fv,{space}%1Fw"),
            Case(404, no_view, names={"view": "none"}),
            Case(404, no_view, names=NONE),
        ],
        "replaceView": [
            Case(200, body=SETS, headers=key),
            Case(200, body={"updates": SETS["updates"]}),
            Case(404, no_view, body=SETS, names={"view": "none"}),
            Case(409, failed, body={**SETS, **view_uuid}),
            Case(400, bad, body=unknown),
            Case(400, bad, body=odd),
        ],
        "dropView": [
            Case(404, no_view, names={"view": "none"}), Case(204, headers=key), Case(204, headers=key),
        ],
        "viewExists": [Case(204), Case(404, names={"view": "none"})],
        "renameView": [
            Case(404, no_view, body=renames(space, "none", "x")),
            Case(404, no_namespace, body=renames(space, "v", "x", "none")),
            Case(409, exists, body=renames(space, "v", "t")),
            Case(204, body=renames(space, "v", "x"), headers=key),
        ],
        "registerView": [
            Case(200, body=register["view"], headers=key),
            Case(409, exists, body={**register["view"], "name": "v"}),
            Case(409, exists, body={**register["view"], "name": "t"}),
            Case(404, no_namespace, body=register["view"], names=NONE),
            Case(400, bad, body={"name": "x"}),
        ],
    }  # fmt: skip
    return found[operation]


@pytest.fixture
def space(guarded: CatalogServer) -> str:
    """A new namespace with two tables, a view, a namespace, and a table and a view to register."""
    name = f"n{uuid4().hex[:12]}"
    for levels in ([name], [name, "empty"]):
        assert asked(guarded, "POST", "/v1/namespaces", {"namespace": levels}).status == 200
    for table in ("t", "u", "old-table"):
        assert asked(guarded, "POST", f"/v1/namespaces/{name}/tables", {"name": table, "schema": SCHEMA}).status == 200
    for view in ("v", "old-view"):
        assert asked(guarded, "POST", f"/v1/namespaces/{name}/views", {"name": view, **NEW_VIEW}).status == 200
    return name


@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each.name not in {*UNSUPPORTED, "getToken"}],
                         ids=lambda each: each.name)  # fmt: skip
def test_an_operation_is_as_specified(guarded: CatalogServer, space: str, operation: Operation) -> None:
    """Statuses, types of errors and fields of answers; each status of the specification is tried."""
    names = {"namespace": space, "table": "t", "view": "v"}
    if "{plan-id}" in operation.path:
        names["plan-id"] = asked(guarded, "POST", f"/v1/namespaces/{space}/tables/t/plan", {}).json["plan-id"]
    tried: set[int] = set()
    for case in cases(operation.name, guarded, space):
        path = path_of(operation, {**names, **case.names}, case.query)
        answer = asked(guarded, operation.method, path, case.body, **case.headers)
        assert answer.status == case.status, (case, answer.body)
        assert answer.status in operation.statuses | ALWAYS, f"{answer.status} is not in the specification"
        tried.add(answer.status)
        if case.status >= 400 and operation.method != "HEAD":
            assert answer.error == (case.status, case.kind), case
        elif case.status == 200:
            assert answer.headers["content-type"] == "application/json"
            assert {*operation.required} <= answer.json.keys(), case
            if (
                "metadata" in operation.required
                and operation.name != "unregisterTable"
                and "View" not in operation.name
            ):
                assert ("etag" in answer.headers) is not bool((case.body or {}).get("stage-create")), case
        else:
            assert answer.body == b""
    assert tried >= operation.statuses - ELSEWHERE - NEVER.get(operation.name, set())
    path = path_of(operation, names)
    body: Any = {} if operation.method == "POST" else None
    unknown = guarded.ask(operation.method, path, body)
    assert unknown.status == 401
    assert unknown.headers["www-authenticate"] == "Bearer"
    if operation.name not in ("getConfig", "listNamespaces"):
        body = {"namespace": [space]} if operation.name == "createNamespace" else body
        body = renames(space, "t", "x") if operation.name in ("renameTable", "renameView") else body
        body = changes(space, "t") if operation.name == "commitTransaction" else body
        foreign = guarded.ask(operation.method, path, body, {"authorization": f"Bearer {secret('elsewhere')}"})
        assert foreign.status == 403
        assert operation.method == "HEAD" or foreign.error == (403, "ForbiddenException")


def test_the_list_of_endpoints_is_that_of_the_operations_that_are_done(guarded: CatalogServer, space: str) -> None:
    """The list is exact, in the words of the specification: Java compares the paths as text."""
    config = asked(guarded, "GET", "/v1/config").json
    listed = config["endpoints"]
    done = {each.endpoint for each in OPERATIONS if each.name not in {*UNSUPPORTED, *UNLISTED}}
    assert {*listed} == done
    assert len(listed) == len(done) == len(OPERATIONS) - len(UNSUPPORTED) - len(UNLISTED) == 29
    assert re.fullmatch(r"PT\d+M", config["idempotency-key-lifetime"])
    names = {"namespace": space, "table": "t", "view": "v", "plan-id": "x", "function": "f"}
    for operation in OPERATIONS:
        body: Any = {} if operation.method == "POST" else None
        if operation.name == "signRequest":
            body = {"method": "GET", "region": "r", "uri": "https://h/x", "headers": {}}
        path = path_of(operation, names)
        answer = asked(guarded, operation.method, path, body)
        if operation.name in UNLISTED:
            assert answer.status == UNLISTED[operation.name]
        elif operation.name in UNSUPPORTED:
            assert answer.error == (406, "UnsupportedOperationException"), operation.name
        else:
            assert answer.status not in (405, 406, 501), operation.name
            assert answer.status != 404 or operation.method == "HEAD" or answer.error[1].startswith("NoSuch")


def test_a_token_is_not_to_be_had(guarded: CatalogServer) -> None:
    """The error of OAuth, which is not that of the catalog."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = guarded.ask("POST", "/v1/oauth/tokens", b"grant_type=client_credentials", form)
    assert (answer.status, answer.json["error"]) == (400, "unsupported_grant_type")


def test_a_page_is_whole_without_a_token_and_ends_with_null(guarded: CatalogServer, space: str) -> None:
    path = f"/v1/namespaces/{space}/tables"
    whole = asked(guarded, "GET", path).json
    assert whole["next-page-token"] is None
    assert [each["name"] for each in whole["identifiers"]] == ["old-table", "t", "u"]
    token: str | None = ""
    found: list[Any] = []
    for _ in range(3):
        page = asked(guarded, "GET", f"{path}?pageSize=1&pageToken={token}").json
        found += page["identifiers"]
        token = page["next-page-token"]
    assert found == whole["identifiers"]
    assert token is None


def test_what_is_unregistered_can_be_registered_and_takes_no_commit(guarded: CatalogServer, space: str) -> None:
    path = f"/v1/namespaces/{space}/tables"
    assert asked(guarded, "POST", f"{path}/t", SETS).status == 200
    before = asked(guarded, "GET", f"{path}/t").json
    last = asked(guarded, "POST", f"{path}/t/unregister").json
    assert last == {name: before[name] for name in ("metadata-location", "metadata")}
    assert asked(guarded, "POST", f"{path}/t", SETS).error == (404, "NoSuchTableException")
    assert asked(guarded, "POST", f"{path}/t/unregister").error == (404, "NoSuchTableException")
    body = {"name": "t2", "metadata-location": last["metadata-location"]}
    found = asked(guarded, "POST", f"/v1/namespaces/{space}/register", body)
    assert found.json["metadata"] == last["metadata"], "its files are where they were"
    assert asked(guarded, "POST", f"{path}/t2", SETS).status == 200
