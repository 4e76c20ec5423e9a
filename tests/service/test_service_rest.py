"""Every route of a real `limpet serve`, as a client that speaks plain HTTP sees it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

import limpet
from support.servers.catalog import Answer, CatalogServer, until

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
VIEW = {
    "schema": SCHEMA,
    "view-version": {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": 1,
        "summary": {},
        "default-namespace": ["x"],
        "representations": [{"type": "sql", "sql": "select 1", "dialect": "duckdb"}],
    },
    "properties": {},
}

Make = Callable[[], str]


@pytest.fixture
def make(served: CatalogServer) -> Make:
    """A new namespace."""

    def create() -> str:
        name = f"n{uuid4().hex[:12]}"
        assert served.ask("POST", "/v1/namespaces", {"namespace": [name]}).status == 200
        return name

    return create


def _create(served: CatalogServer, namespace: str, name: str, **fields: Any) -> Answer:
    return served.ask("POST", f"/v1/namespaces/{namespace}/tables", {"name": name, "schema": SCHEMA, **fields})


def _set(**properties: str) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": properties}]}


def test_views_are_registered(served: CatalogServer, make: Make) -> None:
    namespace = make()
    made = served.ask("POST", f"/v1/namespaces/{namespace}/views", {"name": "v", **VIEW}).json
    register = f"/v1/namespaces/{namespace}/register-view"
    body = {"name": "w", "metadata-location": made["metadata-location"]}
    assert served.ask("POST", register, body).error[0] == 400, "its folder belongs to the view v"
    assert served.ask("DELETE", f"/v1/namespaces/{namespace}/views/v").status == 204
    found = served.ask("POST", register, body)
    assert found.status == 200
    assert found.json["metadata"] == made["metadata"]
    assert found.json["metadata-location"] != made["metadata-location"], "a copy that this catalog wrote"
    assert served.ask("GET", f"/v1/namespaces/{namespace}/views/w").json["metadata"] == made["metadata"]
    assert served.ask("POST", register, body).error[0] in (400, 409)
    table = _create(served, namespace, "t").json
    for wrong in (f"{made['metadata-location']}x", "s3://elsewhere/x", table["metadata-location"]):
        assert served.ask("POST", register, {"name": "x", "metadata-location": wrong}).error[0] == 400
    assert served.ask("POST", "/v1/namespaces/nowhere/register-view", body).error[0] == 404


def test_namespaces(served: CatalogServer) -> None:
    top = f"n{uuid4().hex[:12]}"
    made = served.ask("POST", "/v1/namespaces", {"namespace": [top], "properties": {"owner": "me"}})
    assert (made.status, made.json) == (200, {"namespace": [top], "properties": {"owner": "me"}})
    assert served.ask("POST", "/v1/namespaces", {"namespace": [top]}).error == (409, "AlreadyExistsException")
    assert served.ask("POST", "/v1/namespaces", {"namespace": [top, "b"]}).status == 200
    assert served.ask("POST", "/v1/namespaces", {"namespace": [top, "x", "y"]}).error[0] == 404
    assert served.ask("GET", f"/v1/namespaces/{top}").json["properties"] == {"owner": "me"}
    assert served.ask("GET", f"/v1/namespaces/{top}%1Fb").json["namespace"] == [top, "b"]
    assert [top] in served.ask("GET", "/v1/namespaces").json["namespaces"]
    assert served.ask("GET", f"/v1/namespaces?parent={top}").json["namespaces"] == [[top, "b"]]
    assert served.ask("GET", "/v1/namespaces?parent=nowhere").error == (404, "NoSuchNamespaceException")
    assert served.ask("HEAD", f"/v1/namespaces/{top}").status == 204
    missing = served.ask("HEAD", "/v1/namespaces/nowhere")
    assert (missing.status, missing.body) == (404, b"")
    changed = served.ask(
        "POST", f"/v1/namespaces/{top}/properties", {"removals": ["owner", "gone"], "updates": {"a": "b"}}
    )
    assert changed.json == {"updated": ["a"], "removed": ["owner"], "missing": ["gone"]}
    both = served.ask("POST", f"/v1/namespaces/{top}/properties", {"removals": ["a"], "updates": {"a": "c"}})
    assert both.error[0] == 422
    assert served.ask("GET", f"/v1/namespaces/{top}").json["properties"] == {"a": "b"}
    assert served.ask("DELETE", f"/v1/namespaces/{top}").error == (409, "NamespaceNotEmptyException")
    assert served.ask("DELETE", f"/v1/namespaces/{top}%1Fb").status == 204
    assert served.ask("DELETE", f"/v1/namespaces/{top}").status == 204
    assert served.ask("DELETE", f"/v1/namespaces/{top}").error == (404, "NoSuchNamespaceException")


def test_tables_from_create_to_drop(served: CatalogServer, make: Make) -> None:
    space = make()
    made = _create(served, space, "t", properties={"p": "1"})
    assert made.status == 200
    assert made.json.keys() == {"metadata-location", "metadata", "config"}
    assert _create(served, space, "t").error == (409, "AlreadyExistsException")
    assert _create(served, "nowhere", "t").error == (404, "NoSuchNamespaceException")
    path = f"/v1/namespaces/{space}/tables/t"
    loaded = served.ask("GET", path)
    assert loaded.json == made.json
    assert loaded.headers["etag"] == made.headers["etag"]
    assert served.ask("HEAD", path).status == 204
    assert served.ask("HEAD", f"{path}x").status == 404
    assert served.ask("GET", f"{path}x").error == (404, "NoSuchTableException")
    listed = served.ask("GET", f"/v1/namespaces/{space}/tables").json
    assert listed == {"identifiers": [{"namespace": [space], "name": "t"}], "next-page-token": None}
    committed = served.ask("POST", path, _set(p="2"))
    assert committed.status == 200
    assert committed.json["metadata"]["properties"]["p"] == "2"
    assert committed.headers["etag"] != made.headers["etag"]
    stale = {"requirements": [{"type": "assert-table-uuid", "uuid": str(uuid4())}], "updates": []}
    assert served.ask("POST", path, stale).error == (409, "CommitFailedException")
    assert served.ask("POST", f"{path}x", _set(p="3")).error == (404, "NoSuchTableException")
    assert served.ask("POST", f"{path}/metrics", {"report-type": "scan-report"}).status == 204
    assert served.ask("POST", f"{path}x/metrics", {}).status == 204, "Spark reports on tables that are only staged"
    target = make()
    rename = {"source": {"namespace": [space], "name": "t"}, "destination": {"namespace": [target], "name": "u"}}
    assert served.ask("POST", "/v1/tables/rename", rename).status == 204
    assert served.ask("POST", "/v1/tables/rename", rename).error == (404, "NoSuchTableException")
    moved = served.ask("GET", f"/v1/namespaces/{target}/tables/u").json
    assert moved["metadata-location"] == committed.json["metadata-location"]
    assert served.ask("DELETE", f"/v1/namespaces/{target}/tables/u").status == 204
    assert served.ask("DELETE", f"/v1/namespaces/{target}/tables/u").error == (404, "NoSuchTableException")
    register = {"name": "v", "metadata-location": moved["metadata-location"]}
    registered = served.ask("POST", f"/v1/namespaces/{space}/register", register).json
    assert registered["metadata"] == moved["metadata"]
    assert registered["metadata-location"] != moved["metadata-location"], "a file of the catalog's own"
    undrop = served.ask("POST", "/limpet/undrop", {"namespace": [target], "name": "u"})
    assert undrop.error[0] in (400, 409), "its folder is that of `v` now"
    assert served.ask("DELETE", f"/v1/namespaces/{space}/tables/v?purgeRequested=true").status == 204
    gone = served.ask("POST", "/limpet/undrop", {"namespace": [space], "name": "v"})
    assert gone.error[0] == 404


def test_undrop(served: CatalogServer, make: Make) -> None:
    space = make()
    made = _create(served, space, "t")
    assert served.ask("DELETE", f"/v1/namespaces/{space}/tables/t").status == 204
    assert served.ask("POST", "/limpet/undrop", {"namespace": [space], "name": "t"}).json == made.json
    again = served.ask("POST", "/limpet/undrop", {"namespace": [space], "name": "t"})
    assert again.error == (409, "AlreadyExistsException")
    assert served.ask("GET", f"/v1/namespaces/{space}/tables/t").json == made.json


def test_a_staged_table_is_there_when_it_is_committed(served: CatalogServer, make: Make) -> None:
    space = make()
    staged = _create(served, space, "t", **{"stage-create": True})
    assert staged.status == 200
    assert "config" in staged.json
    assert "metadata-location" not in staged.json
    assert "etag" not in staged.headers
    path = f"/v1/namespaces/{space}/tables/t"
    assert served.ask("HEAD", path).status == 404
    metadata = staged.json["metadata"]
    updates = [
        {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": SCHEMA, "last-column-id": 1},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": metadata["location"]},
    ]
    commit = {"requirements": [{"type": "assert-create"}], "updates": updates}
    assert served.ask("POST", path, commit).status == 200
    assert served.ask("POST", path, commit).error[0] == 409
    assert served.ask("HEAD", path).status == 204


def test_a_transaction_is_all_or_nothing(served: CatalogServer, make: Make) -> None:
    space = make()
    uuids = {name: _create(served, space, name).json["metadata"]["table-uuid"] for name in ("a", "b")}

    def change(name: str, uuid: str, value: str) -> dict[str, Any]:
        return {
            "identifier": {"namespace": [space], "name": name},
            "requirements": [{"type": "assert-table-uuid", "uuid": uuid}],
            "updates": _set(p=value)["updates"],
        }

    def values() -> list[str | None]:
        tables = [served.ask("GET", f"/v1/namespaces/{space}/tables/{name}").json for name in "ab"]
        return [table["metadata"]["properties"].get("p") for table in tables]

    good = {"table-changes": [change("a", uuids["a"], "1"), change("b", uuids["b"], "1")]}
    bad = {"table-changes": [change("a", uuids["a"], "2"), change("b", uuids["a"], "2")]}
    assert served.ask("POST", "/v1/transactions/commit", good).status == 204
    assert values() == ["1", "1"]
    assert served.ask("POST", "/v1/transactions/commit", bad).error == (409, "CommitFailedException")
    assert values() == ["1", "1"]


def test_views(served: CatalogServer, make: Make) -> None:
    space = make()
    path = f"/v1/namespaces/{space}/views"
    made = served.ask("POST", path, {"name": "v", **VIEW})
    assert made.status == 200, made.body
    assert served.ask("POST", path, {"name": "v", **VIEW}).error == (409, "AlreadyExistsException")
    assert _create(served, space, "v").error == (409, "AlreadyExistsException")
    assert served.ask("GET", f"{path}/v").json == made.json
    assert served.ask("GET", f"{path}/v", headers={"if-none-match": made.headers["etag"]}).status == 304
    assert served.ask("GET", f"{path}/w").error == (404, "NoSuchViewException")
    assert served.ask("GET", path).json["identifiers"] == [{"namespace": [space], "name": "v"}]
    assert [served.ask("HEAD", f"{path}/{name}").status for name in "vw"] == [204, 404]
    replaced = served.ask("POST", f"{path}/v", _set(comment="x"))
    assert replaced.json["metadata"]["properties"] == {"comment": "x"}
    rename = {"source": {"namespace": [space], "name": "v"}, "destination": {"namespace": [space], "name": "w"}}
    assert served.ask("POST", "/v1/views/rename", rename).status == 204
    assert served.ask("DELETE", f"{path}/v").error == (404, "NoSuchViewException")
    assert served.ask("DELETE", f"{path}/w").status == 204


def test_a_client_that_has_it_already_gets_304(served: CatalogServer, make: Make) -> None:
    space = make()
    path = f"/v1/namespaces/{space}/tables/t"
    etag = _create(served, space, "t").headers["etag"]
    same = served.ask("GET", path, headers={"if-none-match": etag})
    assert (same.status, same.body, same.headers["etag"]) == (304, b"", etag)
    assert served.ask("GET", path, headers={"if-none-match": f'"x", W/{etag}'}).status in (200, 304)
    assert served.ask("GET", path, headers={"if-none-match": '"other"'}).status == 200
    refs = served.ask("GET", f"{path}?snapshots=refs")
    assert refs.headers["etag"] != etag
    assert served.ask("GET", f"{path}?snapshots=refs", headers={"if-none-match": etag}).status == 200
    assert served.ask("GET", f"{path}?snapshots=refs", headers={"if-none-match": refs.headers["etag"]}).status == 304
    assert served.ask("GET", path, headers={"if-none-match": refs.headers["etag"]}).status == 200
    assert served.ask("POST", path, _set(p="2")).status == 200
    assert served.ask("GET", path, headers={"if-none-match": etag}).status == 200


def test_pages(served: CatalogServer, make: Make) -> None:
    space = make()
    names = [f"t{n}" for n in range(5)]
    for name in names:
        assert _create(served, space, name).status == 200
    path = f"/v1/namespaces/{space}/tables"
    found: list[str] = []
    token: str | None = ""
    sizes: list[int] = []
    while token is not None:
        page = served.ask("GET", f"{path}?pageSize=2&pageToken={token}").json
        sizes.append(len(page["identifiers"]))
        found += [each["name"] for each in page["identifiers"]]
        token = page["next-page-token"]
    assert found == names
    assert sizes == [2, 2, 1]
    assert len(served.ask("GET", f"{path}?pageToken=").json["identifiers"]) == 5
    for wrong in (
        "pageSize=0",
        "pageSize=-1",
        "pageSize=x",
        "pageSize=1e9",
        "pageToken=%C3%BC",
        "pageToken=a",
        "pageSize=",
    ):
        assert served.ask("GET", f"{path}?{wrong}").error[0] == 400, wrong


def test_a_request_with_the_same_key_is_one_request(served: CatalogServer, make: Make) -> None:
    space = make()
    key = {"idempotency-key": str(uuid4())}
    body = {"name": "t", "schema": SCHEMA}
    first = served.ask("POST", f"/v1/namespaces/{space}/tables", body, key)
    again = served.ask(
        "POST", f"/v1/namespaces/{space}/tables", body, {"Idempotency-Key": key["idempotency-key"].upper()}
    )
    assert (first.status, first.json) == (again.status, again.json)
    path = f"/v1/namespaces/{space}/tables/t"
    drop = {"idempotency-key": str(uuid4())}
    assert [served.ask("DELETE", path, headers=drop).status for _ in range(3)] == [204, 204, 204]
    assert served.ask("DELETE", path).status == 404
    moved = {**dict(reversed(body.items()))}
    assert served.ask("POST", f"/v1/namespaces/{space}/tables", moved, key).json == first.json, "in any order"
    other = served.ask("POST", f"/v1/namespaces/{space}/tables", {**body, "name": "u"}, key)
    assert other.error == (400, "BadRequestException"), "the key was given to another request"
    assert served.ask("GET", f"/v1/namespaces/{space}/tables").json["identifiers"] == []
    for wrong in ("", "x", "0" * 36, str(uuid4())[:-1]):
        assert served.ask("DELETE", path, headers={"idempotency-key": wrong}).error[0] == 400


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a/b", "a%2Fb"),
        ("a.b", "a.b"),
        ("a..", "a%2E%2E"),
        ("ünï 漢字 🐚", "%C3%BCn%C3%AF%20%E6%BC%A2%E5%AD%97%20%f0%9f%90%9a"),
        ("%2F", "%252F"),
        ("a+b&c=d?#", "a%2Bb%26c%3Dd%3F%23"),
        ("x" * 255, "x" * 255),
    ],
)
def test_names_of_all_kinds_work(served: CatalogServer, make: Make, name: str, path: str) -> None:
    space = make()
    assert served.ask("POST", "/v1/namespaces", {"namespace": [space, name]}).status == 200
    assert served.ask("GET", f"/v1/namespaces/{space}%1F{path}").json["namespace"] == [space, name]
    assert served.ask("GET", f"/v1/namespaces?parent={space}").json["namespaces"] == [[space, name]]
    made = _create(served, f"{space}%1F{path}", name)
    assert made.status == 200, made.body
    assert served.ask("GET", f"/v1/namespaces/{space}%1F{path}/tables/{path}").json == made.json
    assert served.ask("GET", f"/v1/namespaces/{space}%1F{path}/tables").json["identifiers"][0]["name"] == name
    assert served.ask("DELETE", f"/v1/namespaces/{space}%1F{path}/tables/{path}").status == 204
    assert served.ask("DELETE", f"/v1/namespaces/{space}%1F{path}").status == 204


@pytest.mark.parametrize("path", ["%2E%2E", "%00", "a%0Ab", "%1F", "a%1F", "x" * 256, "%ff", "%EF%BF%BF"])
def test_other_names_are_refused(served: CatalogServer, path: str) -> None:
    assert served.ask("GET", f"/v1/namespaces/{path}").error[0] == 400
    assert served.ask("GET", f"/v1/namespaces/a/tables/{path}").error[0] in (400, 404)


def test_oauth_is_refused_as_clients_expect(served: CatalogServer) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = served.ask("POST", "/v1/oauth/tokens", b"grant_type=client_credentials", form)
    assert answer.status == 400
    assert answer.json["error"] == "unsupported_grant_type"


def _version(served: CatalogServer) -> int:
    version: int = served.ask("GET", "/readyz").json["version"]
    return version


def test_health_readiness_and_metrics(served: CatalogServer, make: Make) -> None:
    make()
    assert served.ask("GET", "/healthz").json == {"status": "ok"}
    until("it tells of a commit: readiness is remembered for a second", lambda: _version(served) > 1)
    ready = served.ask("GET", "/readyz").json
    assert (ready["status"], ready["limpet"]) == ("ready", limpet.__version__)
    assert ready["leads"] is True
    assert ready["leader"].endswith(f":{served.process.pid}")
    metrics = served.ask("GET", "/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    lines = metrics.body.decode().splitlines()
    assert "limpet_leader 1.0" in lines
    for beginning in (
        'limpet_request_seconds_count{method="POST",route="/v1/namespaces",status="200"} ',
        'limpet_request_seconds_bucket{le="0.001",method="POST",route="/v1/namespaces",status="200"} ',
        'limpet_store_requests_total{verb="put"} ',
        'limpet_publish_seconds_count{outcome="published"} ',
        'limpet_group_commits_bucket{le="1.0"} ',
    ):
        assert any(line.startswith(beginning) for line in lines), beginning
    assert all(re.fullmatch(r"# (HELP|TYPE) .+|[a-z_]+(\{.*\})? [0-9.e+-]+", line) for line in lines)


def test_a_plus_in_a_path_is_a_space_and_no_client_reaches_the_other_table(served: CatalogServer, make: Make) -> None:
    """Java writes a space as `+`; PyIceberg and DuckDB write `%20`; all of them write a plus as `%2B`."""
    space = make()
    tables = f"/v1/namespaces/{space}/tables"
    assert _create(served, space, "a b").status == 200
    assert _create(served, space, "a+b").error == (400, "BadRequestException")
    for path in ("a+b", "a%20b"):
        assert served.ask("GET", f"{tables}/{path}").json["metadata"]["location"]
    assert served.ask("GET", f"{tables}/a%2Bb").error == (404, "NoSuchTableException")
    assert served.ask("DELETE", f"{tables}/a%2Bb").error == (404, "NoSuchTableException")
    assert served.ask("POST", f"{tables}/a%2Bb", _set(p="1")).error == (404, "NoSuchTableException")
    assert served.ask("DELETE", f"{tables}/a+b").status == 204
    assert _create(served, space, "a+b").status == 200
    assert _create(served, space, "a b").error == (400, "BadRequestException")
    assert served.ask("GET", f"{tables}/a+b").error == (404, "NoSuchTableException"), "there is no table `a b`"
    assert served.ask("DELETE", f"{tables}/a%20b").error == (404, "NoSuchTableException")
    assert served.ask("HEAD", f"{tables}/a%2Bb").status == 204


def test_page_tokens_are_ours_to_the_last_character(served: CatalogServer, make: Make) -> None:
    space = make()
    for name in "abc":
        _create(served, space, name)
    listed = f"/v1/namespaces/{space}/tables?pageSize=1"
    token = served.ask("GET", listed).json["next-page-token"]
    assert served.ask("GET", f"{listed}&pageToken={token}").json["identifiers"][0]["name"] == "b"
    for bad in (token[:-1], f"{token}!", f"!{token}", token[1:], "YQ==", "x", "abcd", "1", token + token, "%00"):
        assert served.ask("GET", f"{listed}&pageToken={bad}").error == (400, "BadRequestException"), bad


def test_a_table_of_a_missing_namespace_is_a_missing_table(served: CatalogServer, make: Make) -> None:
    space = make()
    _create(served, space, "t")
    for path in (f"{space}%1Ft/tables/snapshots", "nowhere/tables/t"):
        for method in ("GET", "DELETE"):
            assert served.ask(method, f"/v1/namespaces/{path}").error == (404, "NoSuchTableException")
        assert served.ask("POST", f"/v1/namespaces/{path}", _set(p="1")).error == (404, "NoSuchTableException")
    assert served.ask("GET", "/v1/namespaces/nowhere/views/v").error == (404, "NoSuchViewException")
    assert served.ask("GET", "/v1/namespaces/nowhere/tables").error == (404, "NoSuchNamespaceException")
    assert _create(served, "nowhere", "t").error == (404, "NoSuchNamespaceException")
