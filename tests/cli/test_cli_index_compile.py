"""`limpet index compile`: once, on several engines, and for ever."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import limpet
from cli.harness import Here, Spawn, poll
from limpet.index import Index, shard_id
from limpet.kernel.keys import IndexKeys

SHARD = shard_id("d0.com")
COMPILE = ("index", "compile", "-u", "fleet")


@pytest.fixture
def sites() -> Index[dict[str, Any]]:
    """An index with 600 records that wait."""
    index = limpet.open("fleet").index("sites", {"fields": [{"name": "domain"}]}, key="domain")
    index.put_many({"domain": f"d{n}.com"} for n in range(600))
    return index


def _waits(index: Index[Any]) -> int:
    stats = index.stats()
    return stats.singles.objects + stats.packs.objects


def test_once(here: Here, sites: Index[Any]) -> None:
    waiting = _waits(sites)
    done = here(*COMPILE, "sites")
    assert (done.code, done.err) == (0, "")
    head, row, took = done.out.splitlines()
    assert head.split() == [
        *("index", "folded", "packed", "rested", "held", "conflicts", "objects", "records", "written", "quarantined")
    ]
    assert row.split()[:8] == ["sites", str(waiting), "0", "0", "0", "0", str(waiting), "600"]
    assert took.startswith("This took ")
    assert _waits(sites) == 0
    told = json.loads(here(*COMPILE, "--json").out)
    assert (told["indexes"]["sites"]["folded"], told["requests"]) == (0, {"get": 1, "list": 3})


@pytest.mark.parametrize("engine", ["threads=2", "processes=2"])
def test_engines(here: Here, sites: Index[Any], engine: str) -> None:
    told = json.loads(here(*COMPILE, "sites", "--engine", engine, "--json").out)
    assert told["indexes"]["sites"]["records"] == 600
    assert (_waits(sites), sites.stats().records) == (0, 600)


def test_a_corrupt_shard_is_told_after_the_rest(here: Here, sites: Index[Any]) -> None:
    sites.compile(full=True)
    sites.put_many({"domain": f"d{n}.com"} for n in range(600))
    limpet.open("fleet").store.delete(sites.storage.keys.shard(SHARD))
    done = here(*COMPILE, "sites", "--full")
    assert done.code == 1
    assert f"{SHARD}.usv is missing" in done.err
    assert _waits(sites) == 1


def test_an_index_that_was_never_completed_is_passed_over(here: Here, sites: Index[Any]) -> None:
    limpet.open("fleet").store.put(IndexKeys.of("half").shard("00"), b"")
    assert [*json.loads(here(*COMPILE, "--json").out)["indexes"]] == ["sites"]
    assert here(*COMPILE, "half").code == 1


def test_folders_of_another_depth_are_told(here: Here, sites: Index[Any]) -> None:
    limpet.open("fleet").store.put(IndexKeys.of("sites").pack("abc", "x"), b"d0.com\n")
    done = here(*COMPILE, "sites")
    assert done.code == 0
    assert "sites: 1 folder of another depth; see `limpet index verify`" in done.out


def test_without_an_index(here: Here) -> None:
    limpet.open("fleet").check()
    assert here(*COMPILE).out == "there is no index to compile; `limpet index create` makes one\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_watch(sites: Index[Any], spawn: Spawn, number: int) -> None:
    process = spawn(*COMPILE, "--watch", "--every", "1")
    poll("the first run is done", lambda: _waits(sites) == 0)
    sites.put({"domain": "late.com"})
    poll("the next run is done", lambda: _waits(sites) == 0)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    lines = err.splitlines()
    assert len(lines) == 2, "a run that did nothing says nothing"
    assert "sites: 1 shard folded" in lines[1]


@pytest.mark.full
def test_watch_tells_in_json_and_goes_on_after_a_bad_shard(sites: Index[Any], spawn: Spawn) -> None:
    store = limpet.open("fleet").store
    bad = sites.storage.keys.shard(SHARD)
    kept = store.get(bad).data
    store.delete(bad)
    process = spawn(*COMPILE, "--watch", "--every", "1", "--json")
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    assert f"{SHARD}.usv is missing" in told["error"]
    store.put(bad, kept)
    poll("it goes on", lambda: _waits(sites) == 0)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_watch_that_is_told_to_stop_finishes_its_shards(spawn: Spawn, tmp_path: Path) -> None:
    """Whatever it was at, nothing is lost and no lock is left that another compiler would have to wait for."""
    index = limpet.open("fleet").index("sites", {"fields": [{"name": "domain"}]}, key="domain")
    index.put_many({"domain": f"d{n}.com"} for n in range(20_000))
    process = spawn(*COMPILE, "--watch")
    poll("it has begun", lambda: _waits(index) < 256)
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        pytest.fail("it did not stop")
    assert process.returncode == 0
    report = index.compile(full=True)
    assert (report.held, report.quarantined, _waits(index)) == (0, 0, 0)
    assert sum(1 for _ in index.scan()) == 20_000


def test_dask_that_is_not_there(here: Here, sites: Index[Any]) -> None:
    done = here(*COMPILE, "sites", "--engine", "dask=nonsense://x")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[0].startswith("limpet: no Dask scheduler answers at nonsense://x: ")
