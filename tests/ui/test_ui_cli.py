"""`limpet ui` as people start and stop it."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import limpet
from limpet.cli import main
from support.servers.catalog import CatalogServer, start_server

TOKEN = "a-token-of-these-tests"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> limpet.Fleet:
    monkeypatch.chdir(tmp_path)
    made = limpet.open("fleet")
    made.queue("mail").push({})
    return made


@pytest.fixture
def dashboard(fleet: limpet.Fleet, tmp_path: Path) -> Iterator[CatalogServer]:
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\n")
    secret.chmod(0o600)
    server = start_server(str(tmp_path / "fleet"), "--token-file", str(secret), verb="ui")
    yield server
    server.kill()


def test_it_is_served_and_ends_with_a_page_open(dashboard: CatalogServer, tmp_path: Path) -> None:
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert dashboard.ask("GET", "/ui").status == 200
    assert dashboard.ask("GET", "/ui/api/overview").status == 401
    found = dashboard.ask("GET", "/ui/api/overview", headers=bearer).json
    assert (found["url"], found["queues"][0]["queue"]) == (str(tmp_path / "fleet"), "mail")
    assert dashboard.ask("GET", "/metrics", headers=bearer).status == 200
    connection = http.client.HTTPConnection(dashboard.url.removeprefix("http://"), timeout=30)
    connection.request("GET", "/ui/api/events", headers=bearer)
    stream = connection.getresponse()
    assert stream.readline() == b"event: overview\n"
    assert dashboard.stop() == 0
    stream.read()  # it was ended in order, else this raises
    connection.close()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nothing"], 1, "there is no fleet at nothing"),
        (["fleet", "--host", "0.0.0.0"], 2, "reached from other machines, and LIMPET_UI_TOKEN (or --token-file)"),
        (["fleet", "--token-file", "nope"], 2, "No such file"),
        (["fleet", "--token-file", "short"], 2, "fewer than 16 characters"),
        (["fleet", "--port", "TAKEN"], 2, "cannot listen on 127.0.0.1"),
    ],
)
def test_wrong_usage_is_one_line_and_a_hint(
    fleet: limpet.Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    (tmp_path / "short").write_text("x\n")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as ended:
        main(["ui", *(str(taken.getsockname()[1]) if word == "TAKEN" else word for word in arguments)])
    assert ended.value.code == code
    line, hint = capsys.readouterr().err.splitlines()
    assert said in line
    assert hint.startswith("hint: ")
    assert not (tmp_path / "nothing").exists()
