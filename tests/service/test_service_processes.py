"""API and compactor as processes of their own: who leads, what the RPC answers, and how they end."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

import limpet
from limpet.app.catalogs import storage_of
from limpet.catalog.leader import add_batch
from limpet.catalog.records import Change, LedgerBatch, Row
from limpet.catalog.storage import CatalogStorage
from limpet.cli import main
from limpet.kernel.runtime import system
from support.servers.catalog import Answer, CatalogServer, ask, catalog_server, start_server, until
from support.servers.process import Bucket, free_ports

SECRET = "a secret of the tests".replace(" ", "-")
TOKEN = "a token of the tests".replace(" ", "-")
LEASE_S = "2"
SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
RPC = "/internal/sync-compact"


@contextmanager
def compactor(fleet: Path, port: int = 0) -> Iterator[CatalogServer]:
    server = start_server("compactor", "--url", str(fleet), env={"LIMPET_RPC_SECRET": SECRET}, port=port)
    try:
        yield server
    finally:
        server.kill()  # SIGKILL ends a stopped process too
        shutil.rmtree(server.folder, ignore_errors=True)


@contextmanager
def api(fleet: Path, *compactor_urls: str, lead: bool = True) -> Iterator[CatalogServer]:
    arguments = ("api", *(word for url in compactor_urls for word in ("--compactor-url", url)), "--lease-s", LEASE_S)
    with catalog_server(str(fleet), *arguments, env={"LIMPET_RPC_SECRET": SECRET}, lead=lead) as server:
        yield server


def create(server: CatalogServer, name: str) -> Answer:
    return server.ask("POST", "/v1/namespaces", {"namespace": [name]})


def names(server: CatalogServer) -> set[str]:
    return {levels[0] for levels in server.ask("GET", "/v1/namespaces").json["namespaces"]}


@pytest.fixture
def storage(tmp_path: Path) -> CatalogStorage:
    """The storage below the services of a test, as one who may do everything."""
    return storage_of(limpet.open(tmp_path / "fleet").store, system())


def test_the_rpc(tmp_path: Path, storage: CatalogStorage) -> None:
    fleet = tmp_path / "fleet"
    bearer = {"authorization": f"Bearer {SECRET}"}
    with compactor(fleet) as server, api(fleet, server.url) as leader:
        assert create(leader, "a").status == 200
        seen = storage.head().read()
        assert seen is not None
        head = seen.value

        def publish(path: str, token: int = head.token, **other: Any) -> Answer:
            order = {"domain": "catalog", "event_paths": [path], "fencing_token": token, **other}
            return server.ask("POST", RPC, order, bearer)

        def batch(token: int, base_version: int | None) -> str:
            rows = (Row(str(uuid4()), "create namespace", (Change("n//evil", {}),)),)
            made = LedgerBatch(domain="catalog", token=token, base_version=base_version, rows=rows)
            return add_batch(storage, system().new_id(), made)

        last = head.applied[-1]
        told = {"manifest_version": f"v{last.version}", "commit_ulid": last.commit}
        for _ in range(2):
            answer = publish(last.path)
            assert (answer.status, answer.json) == (200, told)
        assert publish(last.path, token=0).json == told, "what was published stays told, whatever the token"
        assert publish(batch(0, head.version), token=0).error == (409, "stale_fencing_token")
        assert publish(batch(head.token, head.version - 1)).error == (409, "version_conflict")
        assert publish(batch(head.token + 1, None), token=head.token + 1).error[0] == 503, "it does not hold the lock"
        for path in ("", "ledger/catalog/x.json", "../limpet.json", f"ledger/catalog/{'0' * 26}.json", "limpet.json"):
            assert publish(path).error == (400, "BadRequestException"), path
        wrongs: list[dict[str, Any]] = [
            {"domain": "x"},
            {"event_paths": []},
            {"event_paths": "x"},
            {"fencing_token": "1"},
        ]
        for wrong in wrongs:
            assert publish(last.path, **wrong).error == (400, "BadRequestException"), wrong
        assert publish(last.path, fencing_token=-1).error[0] == 400
        assert publish(last.path, extra=1).error[0] == 400
        assert server.ask("POST", RPC, b"{", bearer).error[0] == 400
        order = json.dumps({"domain": "catalog", "event_paths": [last.path], "fencing_token": head.token})
        assert server.ask("POST", RPC, order.encode(), bearer).status == 200
        assert server.ask("POST", RPC, order[:-1].encode() + b', "fencing_token": 1}', bearer).error[0] == 400
        for headers in ({}, {"authorization": f"Bearer {SECRET}x"}, {"authorization": SECRET}):
            assert server.ask("POST", RPC, {}, headers).error == (401, "NotAuthorizedException")
        assert server.ask("GET", "/metrics").status == 401
        assert server.ask("GET", "/v1/config", headers=bearer).status == 404
        assert leader.ask("POST", RPC, {}, bearer).status == 404
        assert names(leader) == {"a"}, "nothing else was published"
        until("they agree", lambda: (server.ready() or {})["version"] == (leader.ready() or {})["version"])
        assert server.stop() == 0


def test_a_follower_reads_and_takes_over_from_a_leader_that_was_killed(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    with compactor(fleet) as server, api(fleet, server.url) as first, api(fleet, server.url, lead=False) as second:
        assert create(first, "a").status == 200
        assert names(second) == {"a"}
        refused = create(second, "b")
        assert refused.error == (503, "ServiceUnavailableException")
        assert refused.headers["retry-after"] == "1"
        ready = second.ready() or {}
        assert ready["leads"] is False
        assert ready["leader"].endswith(f":{first.process.pid}")
        key = {"idempotency-key": str(uuid4())}
        body = {"name": "t", "schema": SCHEMA}
        told = first.ask("POST", "/v1/namespaces/a/tables", body, key)
        assert told.status == 200
        first.kill()
        assert names(second) == {"a"}, "reads go on"
        assert second.ask("GET", "/v1/namespaces/a/tables/t").json == told.json
        second.wait_until_leading()
        assert create(second, "b").status == 200
        assert names(second) == {"a", "b"}
        assert second.ask("POST", "/v1/namespaces/a/tables", body, key).json == told.json, "the same answer again"
        assert second.ask("GET", "/v1/namespaces/a/tables/t").json == told.json
        with api(fleet, server.url, lead=False) as third:
            assert second.stop() == 0
            third.wait_until_leading(patience_s=float(LEASE_S) + 3)  # handed back, not run out


def test_a_compactor_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    [port] = free_ports(1)
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        server = stack.enter_context(compactor(fleet, port))
        leader = stack.enter_context(api(fleet, server.url))
        assert create(leader, "a").status == 200
        server.kill()
        waiting = threads.submit(create, leader, "b")
        stack.enter_context(compactor(fleet, port))
        assert waiting.result().status == 200
        assert names(leader) == {"a", "b"}


def test_one_of_several_compactors_is_enough(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    with ExitStack() as stack:
        first, second = stack.enter_context(compactor(fleet)), stack.enter_context(compactor(fleet))
        urls = {"LIMPET_COMPACTOR_URL": f"{first.url} {second.url}", "LIMPET_RPC_SECRET": SECRET}
        leader = stack.enter_context(catalog_server(str(fleet), "api", "--lease-s", LEASE_S, env=urls))
        assert create(leader, "a").status == 200
        assert (leader.ready() or {})["compactor"] == first.url
        first.kill()
        assert create(leader, "b").status == 200
        until("readiness is asked anew", lambda: (leader.ready() or {})["compactor"] == second.url)
        assert first.url in (leader.ready() or {})["compactor_trouble"]
        assert create(leader, "c").status == 200
        assert names(leader) == {"a", "b", "c"}


def _publishing(fleet: Path, before: int) -> bool:
    """Whether a batch was written since: a commit waits for its publication."""
    return len([*(fleet / "ledger" / "catalog").iterdir()]) > before


def test_what_cannot_be_told_at_the_end_is_unknown_and_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    with compactor(fleet) as server, ThreadPoolExecutor(2) as threads:
        with api(fleet, server.url) as leader:
            assert create(leader, "a").status == 200
            batches = len([*(fleet / "ledger" / "catalog").iterdir()])
            server.process.send_signal(signal.SIGSTOP)
            waiting = threads.submit(create, leader, "b")
            until("the commit waits", lambda: _publishing(fleet, batches))
            assert leader.stop() == 0
            assert waiting.result().error == (500, "CommitStateUnknownException")
        server.process.send_signal(signal.SIGCONT)
        with api(fleet, server.url) as leader:
            assert create(leader, "c").status == 200
            batches = len([*(fleet / "ledger" / "catalog").iterdir()])
            server.process.send_signal(signal.SIGSTOP)
            hasty = threads.submit(create, leader, "d")
            until("the commit waits", lambda: _publishing(fleet, batches))
            leader.process.send_signal(signal.SIGTERM)
            until("it takes no more", lambda: not _accepts(leader))
            assert leader.stop() == 130
            with pytest.raises((OSError, HTTPException)):
                hasty.result()


def _accepts(server: CatalogServer) -> bool:
    port = int(server.url.rpartition(":")[2])
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def test_sigterm_under_load_loses_nothing_and_hands_the_lead_back(tmp_path: Path, storage: CatalogStorage) -> None:
    fleet = tmp_path / "fleet"
    told: list[str] = []

    def write(server: CatalogServer, worker: int) -> None:
        for n in range(10_000):
            name = f"w{worker}-{n}"
            try:
                status = create(server, name).status
            except (OSError, HTTPException):
                return
            if status != 200:
                assert status == 503
                return
            told.append(name)

    with catalog_server(str(fleet)) as server, ThreadPoolExecutor(8) as threads:
        work = [threads.submit(write, server, worker) for worker in range(8)]
        until("they write", lambda: len(told) > 30)
        assert server.stop() == 0
        for each in work:
            each.result()
    lock = msgspec.json.decode(storage.store.get(storage.keys.lock).data)
    assert lock["state"] == "free"
    page = limpet.open(fleet).catalog().namespaces()
    assert {*told} <= {*page.names}
    assert limpet.open(fleet).catalog().verify().broken is None


def test_tokens_guard_all_but_health(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN}\n{'x' * 20}\n")
    env = {"LIMPET_API_TOKENS_FILE": str(file), "LIMPET_TENANT_ID": "acme-corp", "LIMPET_WORKSPACE_ID": "prod"}
    with catalog_server(str(tmp_path / "fleet"), "--host", "0.0.0.0", env=env) as server:
        for path in ("/v1/config", "/v1/namespaces", "/metrics"):
            refused = server.ask("GET", path)
            assert refused.error == (401, "NotAuthorizedException")
            assert refused.headers["www-authenticate"] == "Bearer"
            assert server.ask("GET", path, headers={"authorization": f"Bearer {TOKEN[:-1]}"}).status == 401
            assert server.ask("GET", path, headers={"authorization": f"Bearer {TOKEN}"}).status == 200
        assert server.ask("GET", "/healthz").status == 200
        made = server.ask("POST", "/v1/namespaces", {"namespace": ["a"]}, {"authorization": f"bearer {'x' * 20}"})
        assert made.status == 200
    root = tmp_path / "fleet" / "acme-corp" / "prod"
    assert (root / "manifests" / "catalog.json").exists()
    assert [path.name for path in (tmp_path / "fleet").iterdir()] == ["acme-corp"]


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        (["--host", "0.0.0.0"], {}, "LIMPET_API_TOKENS is not set"),
        (["--host", "0.0.0.0"], {"LIMPET_RPC_SECRET": SECRET}, "LIMPET_API_TOKENS is not set"),
        (["compactor", "--host", "::"], {"LIMPET_API_TOKENS": TOKEN}, "LIMPET_RPC_SECRET is not set"),
        (["api", "--compactor-url", "nowhere"], {}, "not a compactor's URL"),
        ([], {"LIMPET_TENANT_ID": "x"}, "a tenant and a workspace go together"),
        ([], {"LIMPET_TENANT_ID": "a/b", "LIMPET_WORKSPACE_ID": "c"}, "contains a %"),
        ([], {"LIMPET_API_TOKENS": "short"}, "fewer than 16"),
        (["--port", "TAKEN"], {}, "cannot listen on 127.0.0.1"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_line(
    arguments: list[str],
    env: dict[str, str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LIMPET_STORAGE_URL", str(tmp_path / "fleet"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(SystemExit) as exit_:
            main(["serve", *(port if each == "TAKEN" else each for each in arguments)])
    assert exit_.value.code == 2
    [line, hint] = capsys.readouterr().err.splitlines()
    assert said in line
    assert hint.startswith("hint: ")


def test_in_a_bucket(seaweedfs: Bucket) -> None:
    with catalog_server(seaweedfs.at(f"serve-{uuid4().hex[:12]}"), env=seaweedfs.env) as server:
        defaults = server.ask("GET", "/v1/config").json["defaults"]
        assert defaults["s3.endpoint"].startswith("http://127.0.0.1:")
        assert not [name for name in defaults if "key" in name or "token" in name]
        assert create(server, "a").status == 200
        made = ask(server.url, "POST", "/v1/namespaces/a/tables", {"name": "t", "schema": SCHEMA})
        assert made.status == 200
        assert made.json["metadata-location"].startswith("s3://")
        assert made.json["config"] == {}
        assert server.ask("GET", "/v1/namespaces/a/tables/t").json == made.json
        assert server.stop() == 0
