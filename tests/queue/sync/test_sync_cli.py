"""`limpet supervise`, as people type it: two nodes, one bucket, signals, refusals."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import limpet
from cli.harness import Here
from limpet.kernel.keys import Key

PATIENCE_S = 30.0

Command = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("LIMPET_URL", "LIMPET_REMOTE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def start() -> Iterator[Command]:
    """`start("--local", ...)` starts a real supervisor; whatever is left at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "limpet", "supervise", "--create", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def here(here: Here) -> Here:
    """`here("--local", ...)` runs a supervisor to its end in this process: its exit code and what it said."""
    return partial(here, "supervise")


@pytest.fixture
def command(here: Any) -> Here:
    """`command("backup", ...)`: any command of limpet."""
    run: Here = here.func
    return run


@pytest.fixture
def once(here: Here) -> Here:
    """`once("a")` syncs the node `a` once."""
    return lambda node, *more: here("--local", node, "--remote", "bucket", "--node", node, "--once", "--create", *more)


def _queue(url: str) -> Any:
    return limpet.open(url, durability="os").queue("q")


def _work(url: str) -> list[str]:
    ran = []
    queue = _queue(url)
    while claim := queue.claim():
        with claim:
            for task in claim:
                task.done(f"done at {url}")
                ran.append(task.id)
    return ran


def _line(process: subprocess.Popen[str], event: str) -> dict[str, Any]:
    """Read JSON lines up to and with the first of this kind."""
    assert process.stdout is not None
    for text in process.stdout:
        found: dict[str, Any] = json.loads(text)
        if found["event"] == event:
            return found
    raise AssertionError(f"it ended without {event}")


def test_two_nodes_and_a_client_of_the_bucket(once: Here) -> None:
    assert once("a")[0] == once("b")[0] == 0
    _queue("a").push({"n": 1}, id="x")
    _queue("bucket").push({"n": 2}, id="y")
    code, _, err = once("a")
    assert code == 0
    assert "Z up    1 push\n" in err
    assert "Z down  1 push\n" in err
    code, out, err = once("b", "--json")
    assert (code, err) == (0, "")
    up, down = map(json.loads, out.splitlines())
    assert (up["event"], up["pushes"], down["event"], down["pushes"], down["collisions"]) == ("up", 0, "down", 2, [])
    assert sorted(_work("b")) == ["x", "y"]
    once("b")
    once("a")
    for place in ("a", "b", "bucket"):
        assert [_queue(place).result(id_).value for id_ in "xy"] == ["done at b"] * 2
        assert _queue(place).stats().pending == 0


def test_places_are_marked_and_whoever_opens_them_knows(once: Here) -> None:
    _queue("a").push({}, id="before")
    once("a")
    assert limpet.open("a").record.features == ["node", "supervised"]
    assert limpet.open("bucket").record.features == ["supervised"]
    assert _queue("bucket").stats().pending == 1, "what was there before is adopted"
    _queue("a").push({}, id="x")
    assert len(list(Path("a/sync/outbox").iterdir())) == 1
    _queue("bucket").push({}, id="y")
    assert len(list(Path("bucket/sync").glob("client-*/*.jsonl"))) == 1


def test_collisions_are_told(once: Here) -> None:
    for node in "ab":
        once(node)
    _queue("a").push({}, id="x")
    for node in "ab":
        once(node)
    assert _work("a") == _work("b") == ["x"]
    once("a")
    _, _, err = once("b")
    assert "Z twice task 'x' of queue 'q' was run twice (" in err


@pytest.mark.parametrize(
    "name", ["sync/%1b%5d0/0000000001.jsonl", "sync/evil/0000000001.jsonl", "sync/x/9999999999.jsonl"]
)
def test_a_bad_object_is_told_of_and_ends_nothing(once: Here, name: str) -> None:
    """A2: each of these ended every `limpet supervise` of the fleet with exit code 2, each time."""
    for node in "ab":
        once(node)
    receipt: dict[str, object] = {"state": "completed", "id": "x", "finished_at": "2026-01-01T00:00:00Z"}
    receipt |= {"parts": ["queues/q/parts/../x.json"]}
    line = {"kind": "end", "key": "queues/q/completed/x.json", "entry": "x", "batch": False, "write_id": "w"}
    body = json.dumps(line | {"receipt": receipt}).encode() + b'\n{"kind": "\x1b]0;"}'
    header = {"schema": 1, "node": "evil", "owner": "o", "up_s": 5.0, "count": 2}
    header["sha256"] = hashlib.sha256(body).hexdigest()
    limpet.open("bucket").store.put(Key(name), json.dumps(header).encode() + b"\n" + body)
    _queue("a").push({}, id="good")
    for node in "ab":
        code, out, err = once(node)
        assert (code, out) == (0, "")
        assert "\x1b" not in err
        assert f"bad   {name}" in err
    assert _work("b") == ["good"]


def test_it_runs_until_told_to_stop(start: Command) -> None:
    process = start("--local", "a", "--remote", "bucket", "--node", "a", "--json")
    _line(process, "down")
    _queue("a").push({}, id="x")
    process.send_signal(signal.SIGUSR1)
    assert _line(process, "up")["pushes"] == 1
    assert _queue("bucket").stats().pending == 1
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")


def test_only_one_for_each_directory(start: Command, once: Here) -> None:
    first = start("--local", "a", "--remote", "bucket", "--node", "a", "--json")
    _line(first, "down")
    code, out, err = once("a")
    assert (code, out) == (75, "")
    assert "limpet: lock 'supervisor' is held by " in err
    assert "hint: another supervisor works on this directory; one is enough\n" in err
    first.terminate()
    assert first.wait(PATIENCE_S) == 0
    assert once("a")[0] == 0


def test_a_bucket_that_is_away_is_waited_for(start: Command) -> None:
    away = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_REGION": "us-east-1",
    }
    process = start("--local", "a", "--remote", "s3://nowhere/x", "--json", **away)
    assert "error" in _line(process, "away")
    limpet.open("a").queue("q").push({}, id="x")
    assert _work("a") == ["x"], "the node works on by itself"
    assert len(list(Path("a/sync/outbox").iterdir())) == 2
    process.terminate()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "", "")
    process = start("--local", "a", "--remote", "s3://nowhere/x", "--once", **away)
    assert process.wait(PATIENCE_S) == 1


def test_wrong_places_are_refused(here: Here, once: Here) -> None:
    once("a")
    for local, remote, why in (
        ("a", "./a", "--local and --remote are the same directory"),
        ("bucket", "other", "bucket is the bucket of other nodes"),
        ("c", "a", "a is the directory of one node"),
    ):
        code, _, err = here("--local", local, "--remote", remote, "--once")
        assert code == 2
        assert err.startswith(f"limpet: {why}\nhint: ")


def test_a_name_stays(here: Here, once: Here) -> None:
    assert once("a", "--queue", "q")[0] == 0
    code, _, err = here("--local", "a", "--remote", "bucket", "--node", "z", "--once")
    assert code == 2
    assert "this directory is the node 'a', not 'z'" in err
    assert here("--local", "a", "--remote", "bucket", "--once")[0] == 0


def test_receipts_may_be_kept_for_ever(here: Here, once: Here) -> None:
    assert here("--local", "a", "--remote", "bucket", "--create", "--once", "--receipts", "forever").code == 0
    short = here("--local", "a", "--remote", "bucket", "--once", "--receipts", "3d")
    assert short.code == 2
    assert "at least 7 days" in short.err
    assert here("--local", "a", "--remote", "bucket", "--once", "--receipts", "long").code == 2


# ---- which fleet the remote is ----


def test_a_remote_without_a_fleet_is_not_set_up_silently(here: Here) -> None:
    """A15: a typo in --remote is an error, and makes no folder."""
    _queue("a").push({}, id="x")
    code, _, err = here("--local", "a", "--remote", "bukket", "--once")
    assert code == 1
    assert "there is no fleet at bukket" in err
    assert "--create" in err
    assert not Path("bukket").exists()


def test_a_node_does_not_send_to_another_fleet(once: Here, here: Here) -> None:
    """A15: a push is noted as sent only in the node's own fleet; --rehome sends everything again."""
    once("a")
    _queue("a").push({}, id="x")
    limpet.open("other").check()
    code, _, err = here("--local", "a", "--remote", "other", "--once")
    assert code == 2
    assert "node 'a' belongs to fleet" in err
    assert "--rehome" in err
    assert _queue("other").stats().pending == 0
    code, _, err = once("a")
    assert (code, _queue("bucket").stats().pending) == (0, 1)
    code, _, err = here("--local", "a", "--remote", "other", "--once", "--rehome")
    assert code == 0, err
    assert _queue("other").stats().pending == 1
    assert here("--local", "a", "--remote", "bucket", "--once")[0] == 2, "it belongs to the other one now"


def test_a_node_sends_again_what_a_restored_bucket_lacks(once: Here, command: Here) -> None:
    once("a")
    once("b")
    _queue("a").push({}, id="old")
    once("a")
    assert command("backup", "bucket", "kept")[0] == 0
    _queue("a").push({}, id="lost")
    once("a")
    once("b")
    assert sorted(_work("b")) == ["lost", "old"]  # both came with one cycle, within one tick of the clock
    once("b")
    shutil.rmtree("bucket")
    assert command("restore", "kept", "bucket")[0] == 0
    assert _queue("bucket").result("lost").state == "unknown"
    once("a")
    once("b")
    once("a")
    for place in ("a", "b", "bucket"):
        assert [_queue(place).result(id_).state for id_ in ("old", "lost")] == ["completed"] * 2, place


def test_an_older_copy_of_the_fleet_is_refused(once: Here, command: Here, here: Here) -> None:
    once("a")
    shutil.copytree("bucket", "before")
    assert command("backup", "bucket", "kept")[0] == 0
    shutil.rmtree("bucket")
    assert command("restore", "kept", "bucket")[0] == 0
    assert once("a")[0] == 0
    code, _, err = here("--local", "a", "--remote", "before", "--once")
    assert code == 2
    assert "an older copy of it" in err
