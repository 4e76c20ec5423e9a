"""No memory, no CPU and no seats for strangers: a real service under a crowd of hostile clients, and an honest one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

import pytest

from service.strangers import PLAYS
from support.servers.catalog import CatalogServer, catalog_server

TOKEN = "an-honest-token-of-the-tests"
BEARER = {"authorization": f"Bearer {TOKEN}"}
RSS_MAX = 300 << 20
PATIENCE_S = 20.0


@contextmanager
def crowd(server: CatalogServer, many: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Hostile clients, in a process of their own that does not outlive the test."""
    tied = shutil.which("setpriv")
    script = Path(__file__).with_name("strangers.py")
    port = server.url.rpartition(":")[2]
    command = [sys.executable, str(script), port, str(many), str(seconds)]
    tie = [tied, "--pdeathsig", "KILL", "--"] if tied else []
    with subprocess.Popen([*tie, *command], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def resident_bytes(process: int) -> int:
    """What a process has in memory now."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def served_within(server: CatalogServer, name: str) -> float:
    """Commit, and read it back, each on a new connection, again if it is lost; how long the slower one took."""
    slowest = 0.0
    requests = [("POST", "/v1/namespaces", {"namespace": [name]}), ("GET", f"/v1/namespaces/{name}", None)]
    for method, path, body in requests:
        since = time.monotonic()
        while True:
            try:
                status = server.ask(method, path, body, BEARER).status
            except (OSError, HTTPException):
                status = 0
            if status == 200 or (status == 409 and method == "POST"):
                break
            assert status in (0, 503), status
            assert time.monotonic() - since < PATIENCE_S, f"{method} {path} was not served"
        slowest = max(slowest, time.monotonic() - since)
    return slowest


@pytest.mark.parametrize("many", [200, 1100])
def test_strangers_take_neither_memory_nor_seats_nor_the_lead(many: int, tmp_path: Path) -> None:
    env = {"LIMPET_API_TOKENS": TOKEN}
    with catalog_server(str(tmp_path / "fleet"), env=env) as server:
        rss, slowest, rounds = 0, [], 0
        with crowd(server, many, 5.0) as attack:
            while attack.poll() is None:
                slowest.append(served_within(server, f"n{rounds}"))
                rounds += 1
                rss = max(rss, resident_bytes(server.process.pid))
                assert rss < RSS_MAX
            assert attack.stdout is not None
            played = json.loads(attack.stdout.read())
        assert {*played} == {play.__name__ for play in PLAYS}, "all of them were there"
        print(
            f"{many} strangers, {sum(played.values())} connections: {rss >> 20} MiB resident, {rounds} rounds, slowest"
        )
        print(f"answer {max(slowest):.2f} s (aim: 1 s); played {played}")
        assert rounds >= 3
        assert server.ask("GET", "/healthz").status == 200
        log = server.log()
        assert "no longer leads" not in log
        assert TOKEN not in log
        assert len(log) < 2_000_000, "strangers do not fill the log"
