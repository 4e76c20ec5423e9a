"""`limpet check`: rules, one line for each that is violated, and the exit code."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

import limpet
from cli.harness import Here
from limpet.app.health import Limits, broken_limits
from limpet.app.overview import read_overview
from limpet.app.presence import QUEUES_MAX, WorkerPresence
from limpet.kernel import records
from limpet.kernel.keys import QueueKeys, worker_key
from limpet.kernel.store import DirectoryStore
from limpet.queue.inspect import RECEIPTS_AT_ONCE

HOUR_S = 3600


def _push_long_ago(queue: str, id_: str, age_s: float) -> None:
    """Push a task, and have its file say that this was long ago."""
    store = DirectoryStore("fleet")
    before = {*Path("fleet").rglob("task.json")}
    limpet.open("fleet").queue(queue).push({}, id=id_)
    [new] = {*Path("fleet").rglob("task.json")} - before
    then = time.time() - age_s
    os.utime(new, (then, then))
    assert any(stat.key.endswith(f"/{id_}/task.json") for stat in store.list())


def _fail(queue: str, count: int) -> None:
    handle = limpet.open("fleet").queue(queue)
    handle.push_many([{}] * count, batch=count)
    with handle.claim() as claim:
        for task in claim:
            task.fail("no")


def test_all_is_well(here: Here) -> None:
    limpet.open("fleet").queue("a").push({})
    done = here("check", "--max-age", "1h", "--max-failed", "0", "--max-pending", "1", "-u", "fleet")
    assert (done.code, done.out, done.err) == (0, "ok: 1 queue within limits\n", "")
    told = json.loads(here("check", "--max-age", "1h", "-u", "fleet", "--json").out)
    assert told == {"ok": True, "queues": ["a"], "violations": []}


def test_a_fleet_without_queues_is_well(here: Here) -> None:
    limpet.open("fleet").check()
    assert here("check", "--max-age", "1h", "-u", "fleet").out == "ok: 0 queues within limits\n"


def test_each_violated_rule_is_a_line(here: Here) -> None:
    _push_long_ago("a", "old", 2 * HOUR_S)
    limpet.open("fleet").queue("a").push_many([{}] * 20)
    _fail("b", 3)
    rules = ("--max-age", "90m", "--max-failed", "2", "--max-pending", "20")
    done = here("check", *rules, "-u", "fleet")
    assert (done.code, done.err) == (1, "")
    assert done.out.splitlines()[2] == "a: no worker, and a task has been due for 2 h; --no-worker is 5 min"
    done = here("check", *rules, "--no-worker", "off", "-u", "fleet")
    assert (done.code, done.err) == (1, "")
    assert done.out.splitlines() == [
        "a: the oldest task was pushed 2 h ago, and --max-age is 90 min",
        "a: 21 tasks pending, and --max-pending is 20",
        "b: 3 tasks failed, and --max-failed is 2",
    ]


def test_json_tells_the_numbers(here: Here) -> None:
    _fail("b", 3)
    done = here("check", "--max-failed", "2", "-u", "fleet", "--json")
    assert done.code == 1
    assert json.loads(done.out) == {
        "ok": False,
        "queues": ["b"],
        "violations": [
            {
                "queue": "b",
                "rule": "max-failed",
                "limit": 2.0,
                "value": 3.0,
                "message": "b: 3 tasks failed, and --max-failed is 2",
            }
        ],
    }


@pytest.mark.parametrize(("age_s", "limit", "code"), [(2 * HOUR_S, "1h", 1), (2 * HOUR_S, "3h", 0), (172_000, "1d", 1)])
def test_max_age(here: Here, age_s: float, limit: str, code: int) -> None:
    _push_long_ago("a", "old", age_s)
    assert here("check", "--max-age", limit, "--no-worker", "off", "-u", "fleet").code == code


def test_retried_and_cancelled_tasks_have_not_failed(here: Here) -> None:
    _fail("a", 3)
    queue = limpet.open("fleet").queue("a")
    assert here("check", "--max-failed", "2", "-u", "fleet").code == 1
    queue.push({}, id="dropped")
    queue.cancel("dropped")
    queue.retry(all=True)
    assert here("check", "--max-failed", "0", "-u", "fleet").code == 0
    for _ in range(3):
        with queue.claim() as claim:
            for task in claim:
                task.fail("again")
    assert here("check", "--max-failed", "2", "-u", "fleet").out == "a: 3 tasks failed, and --max-failed is 2\n"


def test_it_stops_reading_when_there_are_enough() -> None:
    _fail("a", 3 * RECEIPTS_AT_ONCE)
    fleet = limpet.open("fleet", read_only=True)
    fleet.check()
    with fleet.meter.measure() as cost:
        _, [wrong] = broken_limits(fleet, Limits(failed=5))
    assert (wrong.queue, wrong.value, wrong.bound) == ("a", RECEIPTS_AT_ONCE, "at least")
    # of the first page the receipts, those of completions that may be newer, and that of the batch
    assert cost.requests["get"] == 2 * RECEIPTS_AT_ONCE + 1


def test_what_no_rule_is_about_is_not_listed() -> None:
    """2,500 receipts of success cost no page of them."""
    fleet = limpet.open("memory://")
    queue = fleet.queue("a")
    for n in range(3):
        queue.push({}, id=f"{n}")
    for n in range(2500):
        fleet.store.put(QueueKeys.of("a").completed_of(f"{n}"), b"{}")
    with fleet.meter.measure() as cost:
        found, wrong = broken_limits(fleet, Limits(age_s=HOUR_S, pending=3))
    assert (found, wrong) == (["a"], [])
    assert cost.requests == {"list": 2}


def test_only_the_queues_that_are_named(here: Here) -> None:
    _fail("a", 3)
    _fail("b", 3)
    done = here("check", "--max-failed", "2", "-q", "a", "-q", "a", "-u", "fleet")
    assert (done.code, done.out) == (1, "a: 3 tasks failed, and --max-failed is 2\n")


def test_a_mistyped_queue_is_an_error_and_not_ok(here: Here) -> None:
    limpet.open("fleet").queue("enrich").push({})
    done = here("check", "--max-age", "1h", "-q", "enrihc", "-u", "fleet")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("limpet: there is no queue 'enrihc' at fleet\nhint: did you mean 'enrich'?")


def test_without_a_rule_it_checks_what_the_dashboard_warns_of(here: Here) -> None:
    _push_long_ago("a", "old", 2 * HOUR_S)
    _push_long_ago("b", "new", 600)
    _fail("c", 1)
    limpet.open("fleet").queue("d").push_many([{}] * 20)
    done = here("check", "-u", "fleet")
    assert (done.code, done.err) == (1, "")
    assert done.out.splitlines() == [
        "a: the oldest task was pushed 2 h ago, and --max-age is 60 min",
        "a: no worker, and a task has been due for 2 h; --no-worker is 5 min",
        "b: no worker, and a task has been due for 10 min; --no-worker is 5 min",
        "c: 1 task failed, and --max-failed is 0",
    ]
    told = json.loads(here("check", "-u", "fleet", "--json").out)["violations"]
    alerts = read_overview(limpet.open("fleet")).alerts
    assert [(each["queue"], each["rule"], each["limit"]) for each in told] == [
        (each.queue, each.rule, each.limit) for each in alerts
    ]


def _present(queues: list[str], *, renewed_s: float = 0.0) -> None:
    fleet = limpet.open("fleet")
    now = fleet.runtime.wall()
    record = WorkerPresence(host="pi", pid=1, version="0.1.0", queues=queues, threads=4, since=now, renewed_at=now)
    fleet.store.put(worker_key("w1"), records.encode(record))
    then = time.time() - renewed_s
    os.utime(next(Path("fleet").glob("workers/w1*")), (then, then))


def test_a_living_worker_that_names_the_queue_is_a_worker(here: Here) -> None:
    """As every version writes it; one that was not renewed for five minutes is gone."""
    _push_long_ago("a", "old", 600)
    _present(["b", "a"])
    assert here("check", "-u", "fleet").code == 0
    _present(["b"])
    assert here("check", "-u", "fleet").code == 1
    _present(["b", "a"], renewed_s=600)
    assert here("check", "-u", "fleet").code == 1
    _present([f"q{n}" for n in range(QUEUES_MAX)])
    assert here("check", "-u", "fleet").code == 0, "it may have more queues than it names"
    limpet.open("fleet").store.put(worker_key("w1"), b"{")
    assert here("check", "-u", "fleet").code == 0, "nobody can tell what it works on"


def test_workers_of_supervised_nodes_are_not_known(here: Here) -> None:
    _push_long_ago("a", "old", 600)
    assert here("check", "-u", "fleet").code == 1
    assert here("supervise", "--local", "node", "--remote", "fleet", "--once").code == 0
    assert here("check", "-u", "fleet").code == 0


def test_no_worker_is_needed_where_nothing_is_due(here: Here) -> None:
    _push_long_ago("paused", "old", 600)
    fleet = limpet.open("fleet")
    fleet.queue("paused").pause()
    fleet.queue("delayed").push({}, delay_s=600)
    _push_long_ago("rests", "old", 600)
    with fleet.queue("rests").claim() as claim:
        for task in claim:
            task.retry(600, "not now")
    _push_long_ago("held", "old", 600)
    held = fleet.queue("held").claim()
    assert here("check", "-u", "fleet").out == "ok: 4 queues within limits\n"
    assert held


def test_a_queue_where_something_was_just_done_has_time(here: Here) -> None:
    """A worker that stopped a minute ago, while another one starts."""
    _push_long_ago("a", "old", 600)
    limpet.open("fleet").queue("a").push({}, id="new")
    with limpet.open("fleet").queue("a").claim() as claim:
        for task in claim:
            task.retry(0, "again")
    assert here("check", "-u", "fleet").code == 0
    assert json.loads(here("status", "-u", "fleet", "--json").out)["queues"][0]["state"] == "no worker"


@pytest.mark.parametrize("arguments", [("--max-age", "90"), ("--max-failed", "-1"), ("--max-pending", "many")])
def test_wrong_usage(here: Here, arguments: tuple[str, ...]) -> None:
    limpet.open("fleet").check()
    done = here("check", *arguments, "-u", "fleet")
    assert (done.code, done.out) == (2, "")
    _, hint = done.err.splitlines()
    assert hint.startswith("hint: usage: limpet check ")
