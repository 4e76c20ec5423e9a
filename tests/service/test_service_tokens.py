"""Named tokens: what a file of them says, when it is read again, and what each may do on a real service."""

from __future__ import annotations

import hashlib
import json
import os
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from limpet.cli import main
from limpet.kernel.errors import Invalid
from limpet.kernel.runtime import system
from limpet.service.tokens import Caller, Tokens, TokenUnknown, WatchedFile, named_tokens
from support.servers.catalog import Answer, CatalogServer, catalog_server, start_server, until

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
VERSION = {
    "version-id": 1,
    "timestamp-ms": 1750000000000,
    "schema-id": 0,
    "summary": {},
    "representations": [{"type": "sql", "sql": "select 1 as id", "dialect": "duckdb"}],
    "default-namespace": ["b"],
}


def secret(name: str) -> str:
    return f"the-secret-of-{name}-here"


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret(name)}"}


FILE = f"""
[[token]]
name = "boss"
secret = "{secret("boss")}"
rights = ["admin"]

[[token]]
name = "reader"
sha256 = "{hashlib.sha256(secret("reader").encode()).hexdigest()}"
rights = ["read"]

[[token]]
name = "team-a"
secret = "{secret("team-a")}"
rights = ["write"]
namespaces = ["a", "deep.er"]

[[token]]
name = "scraper"
secret = "{secret("scraper")}"
rights = ["metrics"]
"""


def _file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "tokens.toml"
    new = folder / "new"
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)
    return path


def _headers(name: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {secret(name)}".encode())]


def test_a_file_of_tokens() -> None:
    tokens = Tokens((), lambda: named_tokens(FILE))
    assert tokens.authenticate(_headers("reader")) == Caller("reader", frozenset(("read",)))
    assert tokens.authenticate(_headers("team-a")).prefixes == (("a",), ("deep", "er"))
    assert tokens.authenticate(_headers("boss")).rights == {"read", "write", "metrics"}
    for wrong in (_headers("x"), _headers("reader") * 2, [], [(b"authorization", b"Bearer")]):
        with pytest.raises(TokenUnknown):
            tokens.authenticate(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[[token]",
        "x = 1",
        "token = 1",
        "[[token]]",
        '[[token]]\nname = "a"\nrights = ["read"]',
        '[[token]]\nname = "a"\nrights = ["read"]\nsecret = "short"',
        '[[token]]\nname = "a"\nrights = ["read"]\nsha256 = "00"',
        '[[token]]\nname = "a"\nrights = []\nsecret = "SECRET-SECRET-SECRET"',
        '[[token]]\nname = "a"\nrights = ["publish"]\nsecret = "SECRET-SECRET-SECRET"',
        '[[token]]\nname = "a"\nrights = "read"\nsecret = "SECRET-SECRET-SECRET"',
        '[[token]]\nname = "a b"\nrights = ["read"]\nsecret = "SECRET-SECRET-SECRET"',
        '[[token]]\nname = "default"\nrights = ["read"]\nsecret = "SECRET-SECRET-SECRET"',
        '[[token]]\nname = "a"\nrights = ["read"]\nsecret = "SECRET-SECRET-SECRET"\nnamespaces = []',
        '[[token]]\nname = "a"\nrights = ["read"]\nsecret = "SECRET-SECRET-SECRET"\nnamespaces = ["a..b"]',
        '[[token]]\nname = "a"\nrights = ["admin"]\nsecret = "SECRET-SECRET-SECRET"\nnamespaces = ["a"]',
        '[[token]]\nname = "a"\nrights = ["read"]\nsecret = "SECRET-SECRET-SECRET"\nnamespace = ["a"]',
        '[[token]]\nname = "a"\nrights = ["read"]\nsecret = "SECRET-SECRET-SECRET"\nsecret = "SECRET-SECRET-SECRET"',
        '[[token]]\nname = "a"\nrights = ["read"]\nsecret = SECRET-SECRET-SECRET',
    ],
)
def test_files_that_are_refused_without_telling_a_secret(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        named_tokens(text)
    assert "SECRET-" not in f"{refused.value} {refused.value.hint}"


def test_levels_with_dots_are_written_as_lists() -> None:
    text = '[[token]]\nname = "a"\nrights = ["read"]\nsecret = "SECRET-SECRET-SECRET"\nnamespaces = [["a.b", "c"]]'
    assert named_tokens(text)[0][1].prefixes == (("a.b", "c"),)


@pytest.mark.parametrize(
    ("namespace", "acts", "sees"),
    [
        ((), False, True),
        (("a",), True, True),
        (("a", "b"), True, True),
        (("ab",), False, False),
        (("deep",), False, True),
        (("deep", "er"), True, True),
        (("deep", "er", "x"), True, True),
        (("deep", "other"), False, False),
    ],
)
def test_prefixes(namespace: tuple[str, ...], acts: bool, sees: bool) -> None:
    caller = Caller("team-a", frozenset(("read",)), (("a",), ("deep", "er")))
    assert (caller.acts_in(namespace), caller.sees(namespace)) == (acts, sees)


def test_a_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpet.service.tokens.LOOK_EVERY_S", 0.0)
    said: list[str] = []
    path = _file(tmp_path, FILE)
    source = WatchedFile(str(path), named_tokens, system(), said.append, private=True)
    assert len(source()) == 4
    _file(tmp_path, FILE.partition('[[token]]\nname = "scraper"')[0])
    assert len(source()) == 3
    for text, mode in (("broken", 0o600), ("", 0o600), (FILE, 0o644)):
        _file(tmp_path, text, mode)
        assert len(source()) == 3
        assert "stay in force" in said[-1]
    path.unlink()
    assert len(source()) == 3
    count = len(said)
    assert len(source()) == 3
    assert len(said) == count, "it is told once"
    path = _file(tmp_path, FILE)
    os.utime(path, (1, 1))
    assert len(source()) == 4


@pytest.mark.parametrize(
    ("text", "mode", "said"), [(FILE, 0o644, "every user"), ("x", 0o600, "not TOML"), (None, 0, "cannot be")]
)
def test_a_file_that_cannot_be_used_at_the_start_is_refused(
    tmp_path: Path, text: str | None, mode: int, said: str
) -> None:
    path = tmp_path / "nowhere" if text is None else _file(tmp_path, text, mode)
    with pytest.raises(Invalid, match=said):
        WatchedFile(str(path), named_tokens, system(), print, private=True)


# ---- a real service ----


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogServer]:
    folder = tmp_path_factory.mktemp("guarded")
    path = _file(folder, FILE)
    with catalog_server(str(folder / "fleet"), "--tokens-file", str(path), "--log", "json") as server:
        for levels in (["a"], ["b"], ["deep"], ["deep", "er"], ["deep", "other"]):
            assert server.ask("POST", "/v1/namespaces", {"namespace": levels}, bearer("boss")).status == 200
        for space in ("a", "b"):
            body: dict[str, Any] = {"name": "t", "schema": SCHEMA}
            assert server.ask("POST", f"/v1/namespaces/{space}/tables", body, bearer("boss")).status == 200
            view = {"name": "v", "schema": SCHEMA, "view-version": VERSION, "properties": {}}
            assert server.ask("POST", f"/v1/namespaces/{space}/views", view, bearer("boss")).status == 200
        yield server


def _two(source: str, target: str, name: str) -> dict[str, Any]:
    return {"source": {"namespace": [source], "name": name}, "destination": {"namespace": [target], "name": "x"}}


def _changes(*spaces: str) -> dict[str, Any]:
    update = {"action": "set-properties", "updates": {"by": "someone"}}
    return {
        "table-changes": [
            {"identifier": {"namespace": [space], "name": "t"}, "requirements": [], "updates": [update]}
            for space in spaces
        ]
    }


OUTSIDE: dict[str, Any] = {
    "POST /v1/{prefix}/namespaces": {"namespace": ["b", "c"]},
    "POST /v1/{prefix}/tables/rename": _two("a", "b", "t"),
    "POST /v1/{prefix}/views/rename": _two("b", "a", "v"),
    "POST /v1/{prefix}/transactions/commit": _changes("a", "b"),
}


def test_every_route_is_closed_outside_of_a_tokens_namespaces(guarded: CatalogServer) -> None:
    """The routes are those that the service says it has: a new one is tried too."""
    endpoints = guarded.ask("GET", "/v1/config", headers=bearer("team-a")).json["endpoints"]
    assert len(endpoints) > 20
    for endpoint in endpoints:
        if endpoint == "GET /v1/{prefix}/namespaces":
            continue  # it is filtered
        method, path = endpoint.replace("/{prefix}", "").split()
        path = path.replace("{namespace}", "b").replace("{table}", "t").replace("{view}", "v")
        body = OUTSIDE.get(endpoint, {} if method == "POST" else None)
        answer = guarded.ask(method, path, body, bearer("team-a"))
        assert answer.status == 403, endpoint
        if method != "HEAD":
            assert answer.error == (403, "ForbiddenException"), endpoint
    undrop = guarded.ask("POST", "/limpet/undrop", {"namespace": ["b"], "name": "t"}, bearer("team-a"))
    assert undrop.error == (403, "ForbiddenException")
    assert guarded.ask("GET", "/v1/namespaces/b/tables/t", headers=bearer("boss")).status == 200, "nothing has happened"


def test_inside_of_its_namespaces_a_token_may_write(guarded: CatalogServer) -> None:
    def ask(method: str, path: str, body: Any = None) -> Answer:
        return guarded.ask(method, path, body, bearer("team-a"))

    assert ask("POST", "/v1/transactions/commit", _changes("a")).status == 204
    assert ask("POST", "/v1/transactions/commit", {"table-changes": "x"}).status == 400
    assert ask("POST", "/v1/transactions/commit", {"table-changes": [{}]}).status == 400
    assert ask("POST", "/v1/tables/rename", _two("a", "a", "t")).status == 204
    assert ask("DELETE", "/v1/namespaces/a/tables/x").status == 204
    assert ask("POST", "/limpet/undrop", {"namespace": ["a"], "name": "x"}).status == 200
    assert ask("GET", "/v1/namespaces/a/tables/x").status == 200
    assert ask("POST", "/v1/namespaces", {"namespace": ["a", "sub"]}).status == 200
    assert ask("GET", "/v1/namespaces").json["namespaces"] == [["a"], ["deep"]], "only what it sees"
    assert ask("GET", "/v1/namespaces?parent=deep").json["namespaces"] == [["deep", "er"]]
    assert ask("GET", "/v1/namespaces?parent=b").status == 403
    assert ask("GET", "/v1/namespaces/deep").status == 200, "on the way to one of its own"
    assert ask("GET", "/v1/namespaces/deep/tables").status == 403
    assert ask("DELETE", "/v1/namespaces/deep").status == 403
    assert ask("GET", "/metrics").status == 403


def test_pages_of_namespaces_and_their_tokens_name_only_what_a_token_sees(guarded: CatalogServer) -> None:
    for parent, seen in (("", [["a"], ["deep"]]), ("deep", [["deep", "er"]])):
        found: list[list[str]] = []
        token: str | None = ""
        while token is not None:
            path = f"/v1/namespaces?parent={parent}&pageSize=1&pageToken={token}"
            page = guarded.ask("GET", path, headers=bearer("team-a")).json
            assert len(page["namespaces"]) == 1, "no page is empty because of what is hidden"
            found += page["namespaces"]
            token = page["next-page-token"]
            assert token is None or urlsafe_b64decode(token).decode() == f"after:{found[-1][-1]}"
        assert found == seen
    whole = guarded.ask("GET", "/v1/namespaces?pageSize=9", headers=bearer("boss")).json
    assert whole["namespaces"] == [["a"], ["b"], ["deep"]]


def test_a_reader_reads_and_a_scraper_scrapes(guarded: CatalogServer) -> None:
    endpoints = guarded.ask("GET", "/v1/config", headers=bearer("reader")).json["endpoints"]
    for endpoint in endpoints:
        method, path = endpoint.replace("/{prefix}", "").split()
        path = path.replace("{namespace}", "b").replace("{table}", "t").replace("{view}", "v")
        body: Any = {} if method == "POST" else None
        # a plan changes nothing, and there is nothing to cancel
        reads = method in ("GET", "HEAD") or path.endswith(("/metrics", "/plan", "/tasks", "/plan/{plan-id}"))
        assert (guarded.ask(method, path, body, bearer("reader")).status == 403) is not reads, endpoint
        assert guarded.ask(method, path, body, bearer("scraper")).status == 403, endpoint
        assert guarded.ask(method, path, body).status == 401, endpoint
    assert guarded.ask("GET", "/metrics", headers=bearer("reader")).status == 403
    assert guarded.ask("GET", "/metrics", headers=bearer("scraper")).status == 200
    assert guarded.ask("GET", "/metrics", headers=bearer("boss")).status == 200


def test_each_commit_names_its_caller(guarded: CatalogServer, capsys: pytest.CaptureFixture[str]) -> None:
    made = guarded.ask("POST", "/v1/namespaces", {"namespace": ["a", "signed"]}, bearer("team-a"))
    assert made.status == 200
    fleet = json.loads((guarded.folder / "out").read_text())["fleet"]
    with pytest.raises(SystemExit) as exit_:
        main(["catalog", "log", "--url", fleet, "--json"])
    assert exit_.value.code == 0
    rows = [row for commit in json.loads(capsys.readouterr().out) for row in commit["rows"]]
    [signed] = [row for row in rows if {"kind": "namespace", "name": "a.signed"} in row["changes"]]
    assert signed["actor"] == "team-a"
    assert {row["actor"] for row in rows} == {"boss", "team-a"}


def test_names_that_once_froze_the_service_are_answered(guarded: CatalogServer) -> None:
    """60 KB of property names took 71 s in the leader's thread, and with that the lead."""
    hostile = ["a" * 60_000, "write." * 10_000, "-" * 60_000, ".a" * 30_000, "A_" * 30_000, "1" * 60_000]
    for name in hostile:
        update = {"action": "set-properties", "updates": {name: "x", f"write.{name}.path": "y"}}
        body: Any = {"requirements": [], "updates": [update]}
        assert guarded.ask("POST", "/v1/namespaces/b/tables/t", body, bearer("boss")).status in (200, 400)
        body = {"removals": [name], "updates": {f"{name}x": "y"}}
        assert guarded.ask("POST", "/v1/namespaces/b/properties", body, bearer("boss")).status in (200, 400)
    assert "no longer leads" not in guarded.log()


def test_tokens_change_without_a_restart(tmp_path: Path) -> None:
    path = _file(tmp_path, FILE)
    with catalog_server(str(tmp_path / "fleet"), "--tokens-file", str(path)) as server:
        assert server.ask("GET", "/v1/namespaces", headers=bearer("boss")).status == 200
        _file(tmp_path, FILE.replace(secret("boss"), secret("chief")))
        until("the new one is known", lambda: server.ask("GET", "/v1/config", headers=bearer("chief")).status == 200)
        assert server.ask("GET", "/v1/namespaces", headers=bearer("boss")).status == 401
        _file(tmp_path, "broken")
        until("it is told", lambda: "stay in force" in server.log() if server.ask("GET", "/v1/config") else False)
        assert server.ask("GET", "/v1/namespaces", headers=bearer("chief")).status == 200
        assert "the-secret" not in server.log()


def test_a_metrics_token_may_do_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "metrics"
    file.write_text(secret("metrics"))
    env = {"LIMPET_RPC_SECRET": secret("rpc")}
    server = start_server("compactor", "--url", str(tmp_path / "fleet"), "--metrics-token-file", str(file), env=env)
    try:
        assert server.ask("GET", "/metrics", headers=bearer("metrics")).status == 200
        assert server.ask("GET", "/metrics", headers=bearer("rpc")).status == 200
        assert server.ask("GET", "/metrics").status == 401
        for method in ("GET", "POST"):
            body: Any = {} if method == "POST" else None
            assert server.ask(method, "/internal/sync-compact", body, bearer("metrics")).status == 401
        assert server.ask("GET", "/internal/sync-compact", headers=bearer("rpc")).status == 200
    finally:
        server.kill()
    env = {"LIMPET_API_TOKENS": secret("api"), "LIMPET_METRICS_TOKEN": secret("metrics")}
    with catalog_server(str(tmp_path / "fleet"), env=env) as api:
        assert api.ask("GET", "/metrics", headers=bearer("metrics")).status == 200
        assert api.ask("GET", "/metrics", headers=bearer("api")).status == 200
        assert api.ask("GET", "/v1/namespaces", headers=bearer("metrics")).status == 401
        assert api.ask("GET", "/v1/namespaces", headers=bearer("api")).status == 200
