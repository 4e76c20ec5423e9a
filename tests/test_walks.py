"""How many files of ours a call walks through, kernel aside (docs/ARCHITECTURE.md)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pytest

import limpet
from limpet.cli import main
from support.catalog import SCHEMA
from support.servers.catalog import ask, until
from support.walk import Tracer, Walk

FILES_MAX = {"task": 6, "record": 7, "commit": 9, "ls": 4}
"""As measured, and as the plan of the house wants it."""
TIMES = 3
START_S = 60.0


@dataclass
class Rec:
    """What is put."""

    key: str
    text: str


def _walk(act: Callable[[], object]) -> Walk:
    """What `act` enters every time."""
    with Tracer() as tracer:
        act()
        found = []
        for _ in range(TIMES):
            with tracer.record() as walk:
                act()
            found.append(walk)
    return reduce(Walk.common, found)


def _demand(way: str, walk: Walk) -> None:
    if len(walk) > FILES_MAX[way]:
        pytest.fail(f"{len(walk)} files instead of {FILES_MAX[way]}:\n{walk}", pytrace=False)
    assert walk, "the tracer saw nothing"


def test_a_task_from_push_to_receipt(tmp_path: Path) -> None:
    fleet = limpet.open(str(tmp_path / "fleet"), durability="os")
    queue = fleet.queue("shout")
    pushed: list[str] = []

    @fleet.task
    def shout(text: str) -> str:
        return text.upper()

    def act() -> None:
        pushed.append(shout.push("hello").id)
        claim = queue.claim()
        assert claim
        with claim:
            for task in claim:
                task.done("HELLO")

    walk = _walk(act)
    assert {queue.result(each).state for each in pushed} == {"completed"}
    _demand("task", walk)


def test_a_record_from_put_to_get(tmp_path: Path) -> None:
    index = limpet.open(str(tmp_path / "fleet"), durability="os").index("recs", Rec, key="key")

    def act() -> None:
        index.put(Rec("a", "b"))
        index.compile(full=True)
        assert index.get("a") == Rec("a", "b")

    _demand("record", _walk(act))


def test_queue_ls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "fleet")
    limpet.open(url, durability="os").queue("shout").push({"text": "hello"}, id="one")

    def act() -> None:
        with pytest.raises(SystemExit):
            main(["queue", "ls", "shout", "--url", url])
        assert "one" in capsys.readouterr().out

    _demand("ls", _walk(act))


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`limpet serve` under a tracer."""
    command = ["serve", "--url", str(folder / "fleet"), "--port", "0", "--json"]
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.walk", str(folder), *command],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
    try:
        until("it says where it listens", lambda: (folder / "out").read_text().endswith("}\n"), START_S)
        url = json.loads((folder / "out").read_text())["url"]
        until("it leads", lambda: ask(url, "GET", "/readyz").json.get("leads"), START_S)
        yield process, url
    finally:
        process.kill()
        process.wait()


def test_a_commit_over_http(tmp_path: Path) -> None:
    table = "/v1/namespaces/a/tables/t"
    with _server(tmp_path) as (process, url):

        def commit(n: int) -> None:
            updates = [{"action": "set-properties", "updates": {"n": str(n)}}]
            answer = ask(url, "POST", table, {"requirements": [], "updates": updates})
            assert answer.status == 200, answer.body

        assert ask(url, "POST", "/v1/namespaces", {"namespace": ["a"]}).status == 200
        assert ask(url, "POST", "/v1/namespaces/a/tables", {"name": "t", "schema": SCHEMA}).status == 200
        commit(0)
        found = []
        for n in range(1, 1 + TIMES):
            os.kill(process.pid, signal.SIGUSR1)
            until("it records", (tmp_path / "begun").exists)
            commit(n)
            os.kill(process.pid, signal.SIGUSR2)
            until("it recorded", (tmp_path / "walk.json").exists)
            found.append(Walk(json.loads((tmp_path / "walk.json").read_text())))
            (tmp_path / "walk.json").unlink()
            (tmp_path / "begun").unlink()
    _demand("commit", reduce(Walk.common, found))
