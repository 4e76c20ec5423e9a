"""`limpet events`: what `limpet work --events` wrote."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from uuid import uuid4

import pytest

import limpet
from cli.harness import Here, Spawn
from limpet import testing
from limpet.app.catalogs import executions_of
from limpet.events.tail import recent
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.runtime import system
from support.servers.process import Bucket


def _work(url: str, count: int) -> limpet.Fleet:
    """Run some tasks and write the events down."""
    fleet = limpet.open(url, events=True)

    @fleet.task(max_attempts=1)
    def half(n: int) -> int:
        if n % 2:
            raise ValueError(f"{n} is odd\x1b[31m")
        return n // 2

    for n in range(count):
        half.using(id=f"task-{n}").push(n)
    testing.drain(fleet)
    assert fleet.events is not None
    fleet.events.flush()
    return fleet


@pytest.fixture(params=["directory", "bucket"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "directory":
        return "fleet"
    bucket: Bucket = request.getfixturevalue("seaweedfs")
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    return bucket.at(f"events-{uuid4().hex}")


def test_runs_are_listed_newest_first_and_filtered(here: Here, url: str) -> None:
    _work(url, 6)
    told = json.loads(here("events", "ls", "-u", url, "--json").out)
    assert len(told) == 6
    assert [each["id"] for each in told] == sorted((each["id"] for each in told), reverse=True)
    failed = json.loads(here("events", "ls", "--outcome", "failed", "-n", "2", "-u", url, "--json").out)
    assert [each["outcome"] for each in failed] == ["failed"] * 2
    [one] = json.loads(here("events", "ls", "--task", "task-3", "--since", "1h", "-u", url, "--json").out)
    assert (one["queue"], one["attempt"], one["error"]) == ("half", 1, "ValueError: 3 is odd\x1b[31m")
    assert json.loads(here("events", "ls", "-q", "other", "-u", url, "--json").out) == []
    shown = here("events", "ls", "--outcome", "failed", "-u", url).out
    assert "\x1b" not in shown
    assert shown.count("\tfailed\thalf\ttask-") == 3
    assert [line.split("\t")[1:4] for line in shown.splitlines()[1:4]].count(["failed", "half", "task-1"]) == 1


def test_tail_prints_runs_as_they_are_recorded(spawn: Spawn, tmp_path: Path) -> None:
    _work(str(tmp_path / "fleet"), 2)
    process = spawn("events", "tail", "--outcome", "failed", "--json", "-u", "fleet")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stderr.readline() == "runs from now on, looked for every 5 s; Ctrl-C ends it\n"
    fleet = limpet.open(tmp_path / "fleet", events=True)

    @fleet.task(max_attempts=1)
    def new(n: int) -> None:
        if n:
            raise ValueError("no")

    new.using(id="fine").push(0)
    new.using(id="broken").push(1)
    testing.drain(fleet)
    fleet.close()
    told = json.loads(process.stdout.readline())
    assert (told["task"], told["outcome"]) == ("broken", "failed")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130


def test_folded_events_are_found_too(here: Here) -> None:
    fleet = _work("fleet", 4)
    executions = executions_of(fleet.store, system())
    executions.publish([stat.key for stat in fleet.store.list(executions.keys.ledger)])
    for stat in [*fleet.store.list(executions.keys.ledger)]:
        fleet.store.delete(stat.key)
    told = json.loads(here("events", "ls", "-u", "fleet", "--json").out)
    assert sorted(each["task"] for each in told) == [f"task-{n}" for n in range(4)]
    assert len(recent(fleet.store, system(), 2).events) == 2


def test_one_bad_batch_hides_no_other(here: Here) -> None:
    _work("fleet", 2)
    keys = CatalogKeys.of("executions")
    bad = Path("fleet") / keys.batch(system().new_id())
    bad.write_bytes(b"\xff\x1b")
    done = here("events", "ls", "-u", "fleet", "--json")
    assert (done.code, len(json.loads(done.out))) == (0, 2)
    assert done.err.startswith("unreadable: ledger/executions/")
    assert "\x1b" not in done.err


def test_nothing_and_wrong_usage(here: Here) -> None:
    limpet.open("fleet").check()
    assert here("events", "ls", "-u", "fleet").out.startswith("no matching event was found")
    assert here("events", "ls", "-u", "nowhere").code == 1
    assert here("events", "ls", "--outcome", "odd", "-u", "fleet").code == 2
    assert here("events", "ls", "--since", "yesterday", "-u", "fleet").code == 2
