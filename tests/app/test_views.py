"""One thing is counted by one rule: every view of a fleet says the same numbers of the same tasks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

import limpet
from cli.harness import Here
from limpet.app.history import FleetHistory
from limpet.app.metrics import FleetMetrics
from limpet.app.overview import FleetOverview, read_overview
from limpet.app.query import fleet_sql
from limpet.cli.fleet import parts_of
from limpet.kernel.keys import QueueKeys, entry_of
from limpet.queue import Queue
from limpet.queue.count import count_queues
from limpet.queue.storage import Storage
from limpet.queue.summary import FailedReceipts
from limpet.testing import drain
from limpet.ui.facts import overview_facts, queue_facts

MIXED = {
    "pending": 8,
    "in_flight": 0,
    "resting": 3,
    "scheduled": 1,
    "completed": 6,
    "failed": 5,
    "cancelled": 4,
    "done": 1,
}
"""`done` are in a batch that has not ended: `pending` has all tasks of its entry, as ever."""
WAITING = 3
STATES = {"completed": 7, "failed": 5, "cancelled": 4, "waiting": 3, "resting": 3, "scheduled": 1}
COUNTED = ("pending", "in_flight", "resting", "scheduled", "completed", "failed", "cancelled")


def _end(queue: Queue, verdicts: str) -> None:
    """Give verdicts on the tasks that are claimed next: d(one), f(ailed), r(esting)."""
    with queue.claim() as claim:
        for verdict, task in zip(verdicts, claim, strict=True):
            match verdict:
                case "d":
                    task.done()
                case "f":
                    task.fail("no")
                case "r":
                    task.retry(3600, "later")


def _mixed(queue: Queue) -> None:
    for id_, verdict in (("completed", "d"), ("failed", "f"), ("again", "f"), ("better", "f"), ("rests", "r")):
        queue.push({}, id=id_)
        _end(queue, verdict)
    queue.retry("better")
    _end(queue, "d")
    queue.push({}, id="dropped")
    queue.cancel("dropped")
    ended = queue.push_many([{}] * 6, batch=6)
    _end(queue, "dfdfdf")
    dropped = queue.push_many([{}] * 5, batch=5)
    _end(queue, "dfrrr")
    queue.cancel(entry_of(dropped[0]).rpartition(".")[0])
    queue.push_many([{}] * 4, batch=4)
    _end(queue, "dfrr")
    queue.retry("again")
    queue.retry(ended[1])
    queue.push({}, id="waits")
    queue.push({}, id="delayed", delay_s=3600)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> limpet.Fleet:
    """Queues `mixed`, with single tasks and batches in all states, and `flows`, whose tasks are suspended."""
    monkeypatch.chdir(tmp_path)
    found = limpet.open("fleet")
    _mixed(found.queue("mixed"))

    @found.task("flows")
    def flow(hours: int) -> None:
        limpet.sleep(3600 * hours)

    flow.push(1)
    flow.push(2)
    drain(found)
    return limpet.open("fleet", read_only=True)


def _facts(counted: Mapping[str, Any], names: tuple[str, ...] = tuple(MIXED)) -> dict[str, Any]:
    return {name: counted[name] for name in names}


def _status(fleet: limpet.Fleet, here: Here) -> list[dict[str, Any]]:
    queues: list[dict[str, Any]] = json.loads(here("status", "-u", "fleet", "--json").out)["queues"]
    return queues


def _listed(fleet: limpet.Fleet, here: Here) -> list[dict[str, Any]]:
    queues: list[dict[str, Any]] = json.loads(here("queue", "ls", "-u", "fleet", "--json").out)
    return queues


def _counted(fleet: limpet.Fleet, here: Here) -> list[dict[str, Any]]:
    return [json.loads(here("queue", "stats", name, "-u", "fleet", "--json").out) for name in ("flows", "mixed")]


def _dashboard(fleet: limpet.Fleet, here: Here) -> list[dict[str, Any]]:
    found: FleetOverview = read_overview(fleet)
    queues: list[dict[str, Any]] = overview_facts(found, FleetHistory(fleet), {}, 1.0)["queues"]
    return queues


def _sql(fleet: limpet.Fleet, here: Here) -> list[dict[str, Any]]:
    rows = fleet_sql(fleet, "select * from queues order by queue")
    return [dict(zip(rows.columns, row, strict=True)) for row in rows]


@pytest.mark.parametrize("view", [_status, _listed, _counted, _dashboard, _sql])
def test_every_view_says_the_same_numbers(
    fleet: limpet.Fleet, here: Here, view: Callable[[limpet.Fleet, Here], list[dict[str, Any]]]
) -> None:
    flows, mixed = view(fleet, here)
    names = tuple(MIXED) if "done" in mixed else COUNTED
    assert _facts(mixed, names) == _facts(MIXED, names)
    assert (mixed["state"], mixed["waiting"]) == ("no worker", WAITING)
    assert (flows["pending"], flows["resting"], flows["suspended"]) == (2, 2, 2)
    assert (flows["failed"], flows["cancelled"], flows["waiting"], flows["state"]) == (0, 0, 0, "ok")


def test_the_queue_itself_says_so(fleet: limpet.Fleet) -> None:
    queue = fleet.queue("mixed")
    stats = queue.stats()
    assert {name: getattr(stats, name) for name in MIXED} == MIXED
    with fleet.meter.measure() as again:
        assert queue.stats().failed == MIXED["failed"]
    with fleet.meter.measure() as first:
        fleet.queue("mixed").stats()
    assert first.requests["get"] - again.requests["get"] == 9 + 1, "nine receipts, and that of a batch"


def test_failures_are_those_that_are_counted(fleet: limpet.Fleet, here: Here) -> None:
    groups = json.loads(here("queue", "failed", "mixed", "-u", "fleet", "--json").out)
    assert [each["count"] for each in groups] == [MIXED["failed"]]
    assert [each["count"] for each in queue_facts(fleet, "mixed")["groups"]] == [MIXED["failed"]]
    rows = json.loads(here("queue", "ls", "mixed", "--failed", "-n", "99", "-u", "fleet", "--json").out)
    by_state = Counter[str]()
    for row in rows:
        by_state[row["state"]] += row["tasks"]
    assert by_state == {"failed": MIXED["failed"], "cancelled": MIXED["cancelled"]}


def test_check_and_alerts_count_them(fleet: limpet.Fleet, here: Here) -> None:
    allowed = ("--no-worker", "off", "-u", "fleet")
    assert here("check", "--max-failed", "5", *allowed).code == 0
    done = here("check", "--max-failed", "4", *allowed)
    assert (done.code, done.out) == (1, "mixed: 5 tasks failed, and --max-failed is 4\n")
    alerts = [(each.queue, each.rule, each.value) for each in read_overview(fleet).alerts]
    assert alerts == [("mixed", "max-failed", 5)]


def test_sql_has_a_row_for_each(fleet: limpet.Fleet) -> None:
    rows = fleet_sql(fleet, "select state, count(*) from queues.mixed group by 1")
    assert dict([*rows]) == STATES
    rows = fleet_sql(fleet, "select state, count(*) from queues.flows group by 1")
    assert [*rows] == [("suspended", 2)]


def test_metrics_and_top_show_them(fleet: limpet.Fleet, here: Here) -> None:
    text = generate_latest(FleetMetrics(fleet).registry()).decode()
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for name in COUNTED:
        assert float(samples[f'limpet_queue_{name}{{queue="mixed"}}']) == MIXED[name], name
    assert float(samples['limpet_queue_no_worker{queue="mixed"}']) == 1
    assert float(samples['limpet_queue_no_worker{queue="flows"}']) == 0
    shown = here("top", "--once", "-u", "fleet").out.splitlines()
    [row] = [line.split("\t") for line in shown if line.startswith("mixed")]
    assert row[1:6] == ["8", "0", "3", "1", "5"]
    assert row[-1] == "no worker"
    assert "cancelled 4 of mixed" in shown
    assert parts_of(read_overview(fleet), rows=10, width=80)


def test_receipts_are_read_once_and_a_bound_is_said(fleet: limpet.Fleet) -> None:
    """Names do not tell failed from cancelled: receipts are read in bulk, so many, and known by their versions."""
    [count] = count_queues(fleet.store, ["mixed"], dict.fromkeys(("completed", "failed", "pending", "scheduled"), 1e9))
    storage = Storage(fleet.store, QueueKeys.of("mixed"), fleet.runtime)
    receipts = FailedReceipts()
    with fleet.meter.measure() as cost:
        part = receipts.count(storage, count, most=2)
    assert cost.requests["get"] <= 4
    assert part.unread >= MIXED["failed"] + MIXED["cancelled"] - part.failed - part.cancelled > 0
    with fleet.meter.measure() as cost:
        whole = receipts.count(storage, count)
    assert (whole.failed, whole.cancelled, whole.unread) == (5, 4, 0)
    assert cost.requests["get"] > 0
    with fleet.meter.measure() as cost:
        assert receipts.count(storage, count) == whole
    assert cost.requests == {}
