"""Who may ask the dashboard what: tokens, origins, rights; and what a browser is told to allow."""

from __future__ import annotations

import re
from importlib.resources import files
from uuid import uuid4

import pytest

import limpet
from limpet.service.tokens import Caller, Tokens, digest_of
from support.dashboard import sample_fleet
from support.roles import key_for
from support.servers.catalog import ask, start_server
from support.servers.process import Bucket
from ui.conftest import OWN, Serve

TOKEN = "a-token-of-these-tests"
SIGNAL = {"id": "a", "name": "go", "value": None}
STATIC = files("limpet.ui") / "static"
NAMES = sorted(each.name for each in STATIC.iterdir())


def bearer(token: str) -> dict[str, str]:
    return {**OWN, "authorization": f"Bearer {token}"}


def test_page_allows_nothing_but_its_own_files(serve: Serve) -> None:
    server = serve()
    page = ask(server.url, "GET", "/ui")
    rules = dict(rule.strip().split(" ", 1) for rule in page.headers["content-security-policy"].split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert page.headers["referrer-policy"] == "no-referrer"
    for name in NAMES:
        file = ask(server.url, "GET", f"/ui/static/{name}")
        assert file.status == 200
        assert file.body == (STATIC / name).read_bytes()
        assert file.headers["content-security-policy"]
    assert ask(server.url, "GET", "/ui/static/..%2Fserver.py").status == 404
    assert ask(server.url, "GET", "/").headers["location"] == "/ui"


@pytest.mark.parametrize("name", NAMES)
def test_files_parse_no_html_and_load_nothing_from_elsewhere(name: str) -> None:
    text = (STATIC / name).read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc", text)
    addresses = [url for url in re.findall(r"https?://[^\s\"'`)]+", text) if url != "http://www.w3.org/2000/svg"]
    assert addresses == []
    assert not re.search(r"\sstyle=|\son\w+=\"", text)  # the policy forbids both


def test_token_is_asked_for(serve: Serve) -> None:
    server = serve(tokens=Tokens([TOKEN]))
    assert ask(server.url, "GET", "/ui").status == 200
    assert server.get("config").status == 401
    assert server.get("overview", headers=bearer("wrong-token-of-these-tests")).status == 401
    assert server.get("events", headers=bearer("wrong-token-of-these-tests")).status == 401
    assert server.post("refresh", body={}, headers=bearer("wrong")).status == 401
    assert server.get("config", headers=bearer(TOKEN)).json["tokens"] is True


def test_rights_of_a_token(serve: Serve) -> None:
    fleet = limpet.open("memory://")
    fleet.queue("mail").push({})
    reader = digest_of("r" * 20), Caller("reader", frozenset(("read",)))
    narrow = digest_of("n" * 20), Caller("narrow", frozenset(("read", "write")), (("sales",),))
    server = serve(fleet, Tokens((), (reader, narrow)))
    assert server.get("config", headers=bearer("r" * 20)).json["writes"] is False
    assert server.get("queue", "mail", headers=bearer("r" * 20)).status == 200
    assert server.post("queue", "mail", "pause", body={}, headers=bearer("r" * 20)).status == 403
    assert server.post("queue", "mail", "signal", body=SIGNAL, headers=bearer("r" * 20)).status == 403
    assert server.get("overview", headers=bearer("n" * 20)).status == 403
    assert server.post("queue", "mail", "pause", body={}, headers=bearer("n" * 20)).status == 403
    assert not fleet.queue("mail").stats().paused


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site", "x-limpet-ui": "1"},
        {"sec-fetch-site": "same-site", "x-limpet-ui": "1"},
        {"sec-fetch-site": "none", "x-limpet-ui": "1"},
        {"sec-fetch-site": "same-origin"},
        {"origin": "http://127.0.0.1:3000", "x-limpet-ui": "1"},
        {"origin": "null", "x-limpet-ui": "1"},
        {},
    ],
)
def test_page_of_another_origin_changes_nothing(serve: Serve, headers: dict[str, str]) -> None:
    fleet = limpet.open("memory://")
    fleet.queue("mail").push({})
    server = serve(fleet)
    assert server.post("queue", "mail", "pause", body={}, headers=headers).status == 403
    assert not fleet.queue("mail").stats().paused


def test_form_changes_nothing(serve: Serve) -> None:
    fleet = limpet.open("memory://")
    fleet.queue("mail").push({})
    server = serve(fleet)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = server.post("queue", "mail", "pause", body=b"{}", headers={**OWN, "content-type": kind})
        assert answer.status == 415
    assert not fleet.queue("mail").stats().paused


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_page_of_another_origin_reads_nothing(serve: Serve, site: str) -> None:
    assert serve().get("overview", headers={"sec-fetch-site": site}).status == 403


def test_host_name_that_points_here_is_refused_without_a_token(serve: Serve) -> None:
    server = serve()
    assert server.get("config", headers={"host": "evil.example"}).status == 403
    assert server.get("config", headers={"host": "localhost"}).status == 200


def test_read_only_dashboard_changes_nothing(serve: Serve) -> None:
    fleet = limpet.open("memory://ui-read-only")
    fleet.queue("mail").push({}, id="a")
    server = serve(limpet.open("memory://ui-read-only", read_only=True), read_only=True)
    assert server.get("config").json["writes"] is False
    for action, body in {
        "pause": {},
        "resume": {},
        "push": {"payload": {}},
        "cancel": {"id": "a"},
        "fail": {"id": "a"},
        "signal": SIGNAL,
    }.items():
        answer = server.post("queue", "mail", action, body=body)
        assert answer.status == 403
        assert "read-only" in answer.json["error"]["message"]
    assert server.post("catalog", "undrop", body={"namespace": ["a"], "name": "b"}).status == 403
    assert server.get("queue", "mail").json["pending"][0]["id"] == "a"
    assert {*server.fleet.meter.snapshot().requests} <= {"get", "head", "list"}


def test_a_key_that_may_only_read_is_enough(serve: Serve, seaweedfs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server itself holds the key to the policy that `limpet iam --role reader` prints."""
    prefix = f"ui-{uuid4().hex}"
    for name, value in seaweedfs.env.items():
        monkeypatch.setenv(name, value)
    owner, held = sample_fleet(seaweedfs.at(prefix), records=20, hostile=False)
    failed = next(iter(owner.queue("enrich").failed())).ids[0]
    key = key_for(seaweedfs, "reader", prefix)
    for name, value in key.env.items():
        monkeypatch.setenv(name, value)
    server = serve(limpet.open(key.url, read_only=True), read_only=True)
    found = server.get("overview").json
    assert (found["trouble"], len(found["queues"]), len(found["workers"]["workers"])) == ({}, 4, 4)
    pages = [
        ("queue", "enrich"),
        ("queue", "enrich", "task", failed),
        ("index", "companies"),
        ("index", "companies", "record", "company7.example"),
        ("catalog",),
        ("catalog", "difference", "2", "9"),
        ("store",),
    ]
    assert {page: server.get(*page).status for page in pages} == dict.fromkeys(pages, 200)
    assert server.post("catalog", "table", body={"namespace": ["sales"], "name": "orders"}).status == 200
    counted = server.post("sql", body={"sql": "select count(*) from queues.enrich, locks, workers"})
    assert (counted.status, counted.json["notes"]) == (200, [])
    assert held


def test_serve_has_the_dashboard_and_its_old_routes(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = start_server("--url", str(tmp_path_factory.mktemp("serve") / "fleet"))
    try:
        assert server.ask("GET", "/").status == 404
        assert server.ask("GET", "/ui").status == 200
        assert server.ask("GET", "/v1/config").status == 200
        assert server.ask("GET", "/ui/api/overview").json["catalog"]["version"] >= 1
        assert server.ask("POST", "/v1/namespaces", {"namespace": ["a"]}).status == 200
        server.wait_until_leading()
        undropped = server.ask("POST", "/ui/api/catalog/undrop", {"namespace": ["a"], "name": "t"}, OWN)
        assert undropped.error == (404, "NotFoundException")
        assert server.stop() == 0
    finally:
        server.kill()


def test_a_service_without_the_dashboard(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = start_server("--url", str(tmp_path_factory.mktemp("serve") / "fleet"), "--no-ui")
    try:
        assert server.ask("GET", "/v1/config").status == 200
        for path in ("/ui", "/ui/api/overview", "/ui/static/page.js"):
            assert server.ask("GET", path).status == 404
        assert server.stop() == 0
    finally:
        server.kill()
