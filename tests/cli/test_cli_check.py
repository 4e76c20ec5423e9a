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
from limpet.keys import QueueKeys
from limpet.queue.inspect import RECEIPTS_AT_ONCE
from limpet.store import DirectoryStore

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
    done = here("check", "--max-age", "90m", "--max-failed", "2", "--max-pending", "20", "-u", "fleet")
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
    assert here("check", "--max-age", limit, "-u", "fleet").code == code


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
    assert cost.requests["get"] == RECEIPTS_AT_ONCE


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


def test_a_mistyped_url_is_an_error_and_creates_nothing(here: Here) -> None:
    done = here("check", "--max-age", "1h", "-u", "./typo")
    assert (done.code, done.out) == (1, "")
    assert not Path("typo").exists()


def test_a_rule_is_needed(here: Here) -> None:
    limpet.open("fleet").check()
    done = here("check", "-u", "fleet")
    assert (done.code, done.out) == (2, "")
    assert done.err == "limpet: no rule was given\nhint: say --max-age, --max-failed or --max-pending\n"


@pytest.mark.parametrize("arguments", [("--max-age", "90"), ("--max-failed", "-1"), ("--max-pending", "many")])
def test_wrong_usage(here: Here, arguments: tuple[str, ...]) -> None:
    limpet.open("fleet").check()
    done = here("check", *arguments, "-u", "fleet")
    assert (done.code, done.out) == (2, "")
    _, hint = done.err.splitlines()
    assert hint.startswith("hint: usage: limpet check ")
