"""What an operator relies on: the log, TLS, safe headers, and a readiness that tells the truth and no secret."""

from __future__ import annotations

import http.client
import io
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

import limpet
from limpet.app.catalogs import leader_of
from limpet.app.nodes import check_same
from limpet.catalog.compactor import Compactor
from limpet.cli.serve import _announce
from limpet.kernel.errors import Invalid
from limpet.kernel.runtime import system
from limpet.service.log import RARE_PER_S, ServiceLog, printable
from limpet.service.requests import Request, Response
from limpet.service.rpc import RpcPublisher, redacted
from limpet.service.status import health_routes
from support.servers.catalog import CatalogServer, ask, catalog_server, start_server, until

SECRET = "the-secret-of-the-two-services"
TOKEN = "the-token-of-the-callers"
BEARER = {"authorization": f"Bearer {TOKEN}"}


# ---- the log ----


def _logged(form: Any, *events: dict[str, Any]) -> list[str]:
    out = io.StringIO()
    log = ServiceLog(system(), form, out)
    for fields in events:
        log.event("request", **fields)
    return out.getvalue().splitlines()


HOSTILE = "a\nb\x1b]0;x\x07\u202e\x9b31m\ud800"


def test_no_field_breaks_a_line_or_a_terminal() -> None:
    for form in ("text", "json"):
        [line] = _logged(form, {"error": HOSTILE, "empty": "", "none": None, "ms": 1.25, "text": "hi"})
        assert line.isprintable()
        assert "empty" not in line
    assert json.loads(line)["event"] == "request"
    assert printable("x" * 10_000) == "x" * 300 + "..."
    assert _logged("none", {"a": 1}) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the location 's3n://AKIA:a-secret@lake/x' is", "the location 's3n://...@lake/x' is"),
        ("http://u:a-secret@h:1/ and //a-secret@h", "http://...@h:1/ and //...@h"),
        (f"s3://{'a-secret' * 50}@lake", "s3://...@lake"),
        ("s3://lake/a@b", "s3://lake/a@b"),
    ],
)
def test_the_log_shows_no_password_of_a_url(text: str, shown: str) -> None:
    """A client may send one in a location, and an error quotes it."""
    assert printable(text) == shown
    assert "a-secret" not in "".join(_logged("json", {"error": text}))


def test_strangers_cannot_fill_the_log() -> None:
    out = io.StringIO()
    log = ServiceLog(system(), "json", out)
    for _ in range(10_000):
        log.rare("refused", status=401)
    lines = out.getvalue().splitlines()
    assert RARE_PER_S <= len(lines) < 1000
    assert json.loads(lines[0])["status"] == 401


class _Stuck(io.StringIO):
    """A reader of the log that does not read, until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = Event()

    def write(self, text: str) -> int:
        assert self.go_on.wait(60)
        return super().write(text)


def test_a_log_that_nobody_reads_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpet.service.log.LINES_MAX", 100)
    out = _Stuck()
    log = ServiceLog(system(), "text", out)
    log.start()
    for n in range(1000):
        log.event("request", n=n)
    out.go_on.set()
    until("what was dropped is told", lambda: "lines of the log were dropped" in out.getvalue())
    log.stop()
    assert 100 <= len(out.getvalue().splitlines()) < 1000


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:pass@host:1/x", "http://host:1/x"),
        ("https://user@host?token=pass#pass", "https://host"),
        ("http://a:p@ss@host", "http://host"),
        ("http://[::1]:8182", "http://[::1]:8182"),
        ("http://[pass", "(invalid URL)"),
    ],
)
def test_urls_are_shown_without_secrets(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_a_service_logs_requests_refusals_and_who_leads(tmp_path: Path) -> None:
    with catalog_server(str(tmp_path / "fleet"), "--log", "json", env={"LIMPET_API_TOKENS": TOKEN}) as server:
        ids = {**BEARER, "x-request-id": "my-request.1"}
        made = server.ask("POST", "/v1/namespaces", {"namespace": ["secret-name"]}, ids)
        assert made.status == 200
        assert made.headers["x-request-id"] == "my-request.1"
        gone = server.ask("GET", "/v1/namespaces/nowhere", headers=BEARER | {"x-request-id": 'a "forged" id'})
        assert gone.status == 404
        server.ask("GET", "/v1/namespaces", headers={"authorization": "Bearer a-wrong-secret-of-someone"})
        server.ask("GET", "/healthz")
        assert server.stop() == 0
        events = [json.loads(line) for line in (server.folder / "err").read_text().splitlines()]
        log = server.log()
    assert all(line.isprintable() for line in log.splitlines())
    assert TOKEN not in log
    assert "wrong-secret" not in log
    requests = [each for each in events if each["event"] == "request"]
    first = requests[0]
    assert (first["method"], first["route"], first["status"]) == ("POST", "/v1/namespaces", 200)
    assert (first["actor"], first["request_id"], first["peer"]) == ("default", "my-request.1", "127.0.0.1")
    assert first["ms"] > 0
    assert first["bytes_in"] > 0
    assert first["bytes_out"] == len(made.body)
    assert requests[1]["error"].startswith("NoSuchNamespace")
    assert requests[1]["request_id"] == gone.headers["x-request-id"]
    assert not [each for each in events if each.get("route") == "/healthz"]
    [refused] = [each for each in events if each["event"] == "refused"]
    assert (refused["status"], refused["route"]) == (401, "/v1/namespaces")
    told = [each["text"] for each in events if each["event"] == "lead"]
    assert told == ["this process leads", "this process no longer leads"]


# ---- readiness ----


def test_readiness_occupies_one_thread_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpet.service.status.REMEMBERED_S", 0.0)
    asked, go_on, calls = Event(), Event(), []

    def facts() -> dict[str, Any]:
        calls.append(1)
        if len(calls) > 1:
            asked.set()
            assert go_on.wait(60)
        return {}

    ready = health_routes(facts, lambda: False, system())[1].handler
    assert ready(Request("GET")).status == 200
    answers: list[Response] = []
    slow = Thread(target=lambda: answers.append(ready(Request("GET"))))
    slow.start()
    assert asked.wait(30)
    assert ready(Request("GET")).status == 200, "what was known last"
    monkeypatch.setattr("limpet.service.status.SLOW_S", 0.0)
    assert ready(Request("GET")).status == 503, "nobody knows any more"
    assert len(calls) == 2
    go_on.set()
    slow.join()
    assert answers[0].status == 200


@contextmanager
def compactor(fleet: Path, *arguments: str) -> Iterator[CatalogServer]:
    server = start_server("compactor", "--url", str(fleet), *arguments, env={"LIMPET_RPC_SECRET": SECRET})
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)


@contextmanager
def started(*arguments: str, env: dict[str, str]) -> Iterator[str]:
    """The URL of a service that is not waited for: because it speaks TLS, or will not be ready."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CatalogServer, "ready", lambda _: {"leads": True})
        server = start_server(*arguments, env=env)
    try:
        yield server.url
    finally:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)


def test_readiness_shows_no_password_and_misses_none(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    with compactor(fleet) as server:
        url = server.url.replace("http://", "http://somebody:a-password@")
        with catalog_server(str(fleet), "api", "--compactor-url", url, env={"LIMPET_RPC_SECRET": SECRET}) as api:
            ready = api.ready() or {}
            assert ready["compactor"] == server.url
            server.kill()
            until("it is told", lambda: "cannot be reached" in (api.ready() or {}).get("compactor_trouble", ""))
            assert "a-password" not in api.log()


def test_an_api_with_a_wrong_secret_is_not_ready(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    env = {"LIMPET_RPC_SECRET": SECRET + "x"}
    with compactor(fleet) as server, started("api", "--compactor-url", server.url, "--url", str(fleet), env=env) as url:
        answer = ask(url, "GET", "/readyz")
        assert answer.status == 503
        assert "rejects our secret" in answer.json["error"]
        assert ask(url, "GET", "/healthz").status == 200


def test_an_api_whose_compactor_belongs_to_another_fleet_is_not_ready_and_commits_nothing(tmp_path: Path) -> None:
    """A15: a commit must not be acknowledged in another fleet."""
    other = tmp_path / "other"
    env = {"LIMPET_RPC_SECRET": SECRET}
    with (
        compactor(other) as server,
        started("api", "--compactor-url", server.url, "--url", str(tmp_path / "fleet"), env=env) as url,
    ):
        answer = ask(url, "GET", "/readyz")
        assert answer.status == 503
        assert "this compactor belongs to fleet" in answer.json["error"]
        assert ask(url, "POST", "/v1/namespaces", {"namespace": ["a"]}).status == 503
    assert limpet.open(other).catalog().namespaces().names == []


def test_a_leader_whose_fleet_was_replaced_leads_no_more(tmp_path: Path) -> None:
    """A15: the folder is deleted below it, and another fleet, or a restored one, is put there."""
    fleet = limpet.open(tmp_path / "fleet")
    with fleet.lead_catalog() as catalog:
        catalog.create_namespace(["a"])
    leader = leader_of(catalog.storage, Compactor(catalog.storage).publish)
    leader.check_fleet = partial(check_same, fleet)
    leader.turn()
    assert leader.trouble is None
    leader._resign()
    fields = msgspec.json.decode((tmp_path / "fleet/limpet.json").read_bytes())
    for change, what in (({"id": "another"}, "replaced by fleet another"), ({"epoch": 9}, "restored from a backup")):
        (tmp_path / "fleet/limpet.json").write_bytes(msgspec.json.encode({**fields, **change}))
        leader.turn()
        assert what in str(leader.trouble)
    (tmp_path / "fleet/limpet.json").write_bytes(msgspec.json.encode(fields))
    leader.turn()
    assert leader.leads
    leader._resign()


# ---- TLS ----


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *subject]
    subprocess.run(
        [*made, "-days", "2", "-keyout", "key.pem", "-out", "cert.pem"], cwd=folder, check=True, capture_output=True
    )
    return folder


def _by_tls(url: str, cert: Path, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=str(cert))
    connection = http.client.HTTPSConnection(urlsplit(url).netloc, context=context, timeout=30)
    try:
        connection.request(method, path, body, {"content-type": "application/json", **BEARER})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _followed_by_a_byte(url: str, cert: Path, body: bytes) -> bytes:
    """All that answers the creation of a namespace whose body is one byte longer than announced."""
    place, context = urlsplit(url), ssl.create_default_context(cafile=str(cert))
    head = f"POST /v1/namespaces HTTP/1.1\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\n"
    with (
        socket.create_connection((place.hostname, place.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=place.hostname) as connection,
    ):
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body + b"x")
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_both_services_by_tls(tmp_path: Path, certificate: Path) -> None:
    cert, key = certificate / "cert.pem", certificate / "key.pem"
    tls = ["--tls-cert", str(cert), "--tls-key", str(key)]
    fleet = ["--url", str(tmp_path / "fleet")]
    env = {"LIMPET_RPC_SECRET": SECRET, "LIMPET_API_TOKENS": TOKEN}
    with started("compactor", *fleet, *tls, env=env) as below:
        assert below.startswith("https://")
        with started("api", "--compactor-url", below, "--ca", str(cert), *fleet, *tls, env=env) as url:
            until("it leads", lambda: b'"leads":true' in _by_tls(url, cert, "GET", "/readyz")[1])
            assert _by_tls(url, cert, "POST", "/v1/namespaces", b'{"namespace": ["a"]}')[0] == 200
            assert _by_tls(url, cert, "GET", "/v1/namespaces/a")[0] == 200
            assert _followed_by_a_byte(url, cert, b'{"namespace": ["b"]}').startswith(b"HTTP/1.1 200 ")
            with pytest.raises((OSError, http.client.HTTPException)):
                ask(url, "GET", "/healthz")
            assert _by_tls(url, cert, "GET", "/healthz")[0] == 200
        untrusting = RpcPublisher(below, SECRET, system())
        assert "certificate verify failed" in untrusting.check()
        trusting = RpcPublisher(below, SECRET, system(), ca=str(cert))
        assert trusting.check() == ""


def test_handshakes_that_do_not_come_are_counted_and_end(tmp_path: Path, certificate: Path) -> None:
    tls = ["--tls-cert", str(certificate / "cert.pem"), "--tls-key", str(certificate / "key.pem")]
    env = {"LIMPET_API_TOKENS": TOKEN}
    with (
        started("--url", str(tmp_path / "fleet"), "--peer-connections", "5", *tls, env=env) as url,
        ExitStack() as stack,
    ):
        place, cert = urlsplit(url), certificate / "cert.pem"
        idle = [stack.enter_context(socket.create_connection((place.hostname, place.port))) for _ in range(40)]

        def ended() -> bool:
            socket.create_connection((place.hostname, place.port), timeout=30).close()
            status, metrics = _by_tls(url, cert, "GET", "/metrics")
            assert status == 200
            counts = dict(line.rsplit(b" ", 1) for line in metrics.splitlines() if not line.startswith(b"#"))
            return float(counts[b'limpet_connections{client="stranger"}']) <= 6

        until("most were ended, and the honest client is served", ended)
        assert len(idle) == 40


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tls-cert", "x"], "go together"),
        (["--tls-key", "x"], "go together"),
        (["--tls-cert", "x", "--tls-key", "y"], "cannot be used"),
        (["--tokens-file", "nowhere"], "cannot be read"),
        (["api", "--compactor-url", "http://h:1", "--ca", "x"], "does not use TLS"),
        (["api", "--compactor-url", "https://h:1", "--ca", "nowhere"], "cannot be used"),
        (["api", "--compactor-url", "http://u:a-password@h:1?x"], "not a compactor's URL"),
    ],
)
def test_what_cannot_be_served_is_refused(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from limpet.cli import main

    monkeypatch.setenv("LIMPET_STORAGE_URL", str(tmp_path / "fleet"))
    with pytest.raises(SystemExit) as exit_:
        main(["serve", *arguments, "--port", "0"])
    assert exit_.value.code == 2
    told = capsys.readouterr().err
    assert said in told.splitlines()[0]
    assert "a-password" not in told


def test_a_public_address_without_tls_is_warned_of(tmp_path: Path) -> None:
    env = {"LIMPET_API_TOKENS": TOKEN}
    with catalog_server(str(tmp_path / "fleet"), "--host", "0.0.0.0", env=env) as server:
        until("it is told", lambda: "without TLS" in server.log())


# ---- browsers ----


def test_answers_are_neither_sniffed_nor_stored(served: CatalogServer) -> None:
    for method, path in (("GET", "/healthz"), ("GET", "/v1/config"), ("GET", "/nowhere"), ("PUT", "/healthz")):
        headers = served.ask(method, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-origin", 200), ("none", 200)])
def test_pages_of_other_sites_are_refused(served: CatalogServer, site: str, status: int) -> None:
    for path in ("/v1/namespaces", "/healthz"):
        assert served.ask("GET", path, headers={"sec-fetch-site": site}).status == status


def test_the_banner_says_where_the_tables_of_a_bucket_lie(capsys: pytest.CaptureFixture[str]) -> None:
    """Group F: the options of the URL stood in the middle of it."""
    _announce("all", False, "http://127.0.0.1:8181", "s3://acme/prod?endpoint=http://127.0.0.1:8333", True)
    said = capsys.readouterr().out.splitlines()
    assert "  tables     s3://acme/prod/warehouse" in said
    assert said[1] == '  PyIceberg  load_catalog("limpet", type="rest", uri="http://127.0.0.1:8181", token=TOKEN)'


def test_there_are_no_websockets(tmp_path: Path) -> None:
    """Also where a WebSocket library is installed, which uvicorn would use by itself."""
    library = tmp_path / "library" / "wsproto"
    library.mkdir(parents=True)
    anything = "class Thing(Exception): ...\ndef __getattr__(name): return Thing\n"
    for name in ("__init__", "connection", "events", "extensions", "utilities"):
        (library / f"{name}.py").write_text(anything)
    with catalog_server(str(tmp_path / "fleet"), env={"PYTHONPATH": str(library.parent)}) as served:
        _no_websockets(served)


def _no_websockets(served: CatalogServer) -> None:
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    assert served.ask("GET", "/healthz", headers=headers).status == 200
    assert served.ask("GET", "/v1/namespaces", headers=headers).status == 200


def test_a_bad_ca_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        RpcPublisher("https://h", None, system(), ca=str(tmp_path))
