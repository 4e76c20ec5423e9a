"""`limpet workers`, beside real workers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import msgspec
import pytest

import limpet
from cli.harness import Here, Spawn, poll
from limpet.app.presence import WorkerPresence, workers
from limpet.kernel import keys

APP = """
import limpet
fleet = limpet.open("./fleet"{options})

@fleet.task()
def enrich(n: int = 0): ...
"""


def test_limpet_work_is_shown_while_it_runs(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.format(options=""))
    fleet = limpet.open(tmp_path / "fleet").check()
    process = spawn("work", "app:fleet", "-p", "2", "-t", "3")
    poll("both processes show themselves", lambda: len(workers(fleet).alive) == 2)
    found = workers(fleet).alive
    assert {(each.queues, each.threads) for each in found} == {(("enrich",), 3)}
    assert process.pid not in [each.pid for each in found], "a worker process, not the pool"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert workers(fleet).workers == []


def test_a_worker_process_that_died_is_not_shown_as_alive(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.format(options=""))
    fleet = limpet.open(tmp_path / "fleet").check()
    process = spawn("work", "app:fleet")
    poll("it shows itself", lambda: len(workers(fleet).alive) == 1)
    [dead] = workers(fleet).alive
    os.kill(dead.pid, signal.SIGKILL)
    poll("another one takes its place", lambda: dead.pid not in [each.pid for each in workers(fleet).workers])
    poll("that shows itself", lambda: len(workers(fleet).alive) == 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert workers(fleet).workers == []


@pytest.mark.parametrize("way", ["env", "open"])
def test_a_worker_may_be_hidden(spawn: Spawn, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app.py").write_text(APP.format(options=", presence=False" if way == "open" else ""))
    if way == "env":
        monkeypatch.setenv("LIMPET_PRESENCE", "0")
    fleet = limpet.open(tmp_path / "fleet").check()
    handle = limpet.open(tmp_path / "fleet").queue("enrich")
    process = spawn("work", "app:fleet")
    handle.push({"n": 1}).result(wait_s=30)
    handle.push({"n": 2}, delay_s=1.5).result(wait_s=30)
    assert workers(fleet).workers == []
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_the_command_shows_workers_and_escapes_what_they_say(here: Here, tmp_path: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet").check()
    assert here("workers", "-u", fleet.url).out.startswith("no worker is registered")
    now = fleet.runtime.wall()
    record = WorkerPresence(
        host="h\x1b[31m", pid=7, version="[b]9", queues=["a\nb"], threads=2, since=now, renewed_at=now
    )
    fleet.store.put(keys.worker_key("w"), msgspec.json.encode(record))
    fleet.store.put(keys.worker_key("bad"), b"{")
    done = here("workers", "-u", fleet.url)
    assert done.code == 0
    title, row, count, bad = done.out.splitlines()
    assert title.split("\t") == ["worker", "state", "since", "renewed", "threads", "version", "queues"]
    cells = row.split("\t")
    assert cells[:2] + cells[4:] == ["h\\x1b[31m:7", "alive", "2", "[b]9", "a\\nb"]
    assert count == "1 alive, 0 gone"
    assert bad.startswith("unreadable: workers/bad.json: ")
    facts = json.loads(here("workers", "--json", "-u", fleet.url).out)
    assert [(each["state"], each["host"], each["queues"]) for each in facts["workers"]] == [
        ("alive", "h\x1b[31m", ["a\nb"])
    ]
    assert [each["key"] for each in facts["unreadable"]] == ["workers/bad.json"]
