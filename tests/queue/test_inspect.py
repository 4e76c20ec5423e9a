"""Counting queues by one listing: the same numbers as `Queue.stats`, for fewer requests, and without a write."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import limpet
from limpet.kernel.keys import Key
from limpet.kernel.runtime import SystemRuntime, system
from limpet.queue import Queue
from limpet.queue.count import ALL, FOLDERS, count_queues
from limpet.queue.summary import QueueSummary, summarize
from limpet.testing import drain
from support.queue import TTL_S, World, rounds
from support.servers.process import Bucket

NAMES = ("pending", "in_flight", "resting", "scheduled", "completed", "failed", "paused")


class _Later(SystemRuntime):
    """This machine, an hour from now."""

    def wall(self) -> datetime:
        return super().wall() + timedelta(hours=1)


def _counted(fleet: limpet.Fleet, name: str) -> QueueSummary:
    [found] = summarize(fleet.store, system(), [name], limits=ALL)
    return found


def _work(queue: Queue, entries: int) -> None:
    for _ in range(entries):
        with queue.claim() as claim:
            for task in claim:
                match task.payload["do"]:
                    case "done":
                        task.done()
                    case "fail":
                        task.fail("no")
                    case "rest":
                        task.retry(after_s=600)


def _busy(fleet: limpet.Fleet) -> Queue:
    queue = fleet.queue("busy")
    for do in ("done", "fail", "fail", "rest"):
        queue.push({"do": do}, id=do if do == "done" else None)
    queue.push_many([{"do": "fail" if n in (2, 5) else "done"} for n in range(10)], batch=10)
    _work(queue, 5)
    [_, again] = queue.retry(all=True)[:2]
    _work(queue, 1)
    queue.push({"do": "done"}, delay_s=100)
    queue.push({"do": "done"}, id="waits")
    queue.push({"do": "done"}, id="dropped")
    queue.cancel("dropped")
    queue.pause()
    assert again.endswith("~1")
    return queue


def test_it_counts_as_stats_does() -> None:
    fleet = limpet.open("memory://")
    queue = _busy(fleet)
    stats, found = asdict(queue.stats()), asdict(_counted(fleet, "busy"))
    assert {name: found[name] for name in NAMES} == {name: stats[name] for name in NAMES}
    assert stats["pending"] > 0
    assert stats["resting"] == 1
    assert stats["failed"] > 0
    assert stats["completed"] > 1
    assert (found["paused"], found["at_least"]) == (True, ())


def test_a_reader_counts_and_writes_nothing() -> None:
    fleet = limpet.open("memory://counts")
    _busy(fleet)
    before = {stat.key: stat.version for stat in fleet.store.list()}
    reader = limpet.open("memory://counts", read_only=True)
    assert [each.queue for each in summarize(reader.store, system())] == ["busy"]
    assert {stat.key: stat.version for stat in fleet.store.list()} == before


def test_all_queues_take_one_listing() -> None:
    fleet = limpet.open("memory://")
    for name in ("b", "a", "with space/and slash", "x" * 300):
        fleet.queue(name).push_many([{}] * 30, batch=10)
    with fleet.meter.measure() as cost:
        found = summarize(fleet.store, system())
    assert cost.requests == {"list": 1}
    assert [each.pending for each in found] == [30] * 4
    assert {"a", "b", "with space/and slash"} < {each.queue for each in found}


def test_counting_stops_and_says_so() -> None:
    """2,500 receipts: with a limit of 1,000 the rest is jumped over, and what lies behind is counted."""
    fleet = limpet.open("memory://")
    for n in range(2500):
        fleet.store.put(Key(f"queues/q/completed/{n:04d}.json"), b"{}")
    fleet.store.put(Key("queues/q/pending/a/task.json"), b"{}")
    with fleet.meter.measure() as cost:
        [found] = summarize(fleet.store, system(), limits=dict.fromkeys(FOLDERS, 1000.0))
    assert (found.completed, found.pending, found.at_least) == (1000, 1, ("completed",))
    assert cost.requests["list"] == 3
    [whole] = summarize(fleet.store, system(), limits=ALL)
    assert (whole.completed, whole.pending, whole.at_least) == (2500, 1, ())


@pytest.mark.parametrize("kind", ["directory", "seaweedfs"])
def test_jumping_over_a_folder_misses_nothing(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues whose names sort around the slash, on stores that walk folders."""
    url = str(tmp_path)
    if kind == "seaweedfs":
        bucket: Bucket = request.getfixturevalue("seaweedfs")
        for name, value in bucket.env.items():
            monkeypatch.setenv(name, value)
        url = bucket.at(f"survey-{os.getpid()}")
    fleet = limpet.open(url)
    for queue in ("q", "q-b", "q.b", "q0"):
        for folder, names in (("completed", "abcde"), ("failed", "fgh"), ("parts/x", "ijk"), ("scheduled/x", "lm")):
            for name in names:
                fleet.store.put(Key(f"queues/{queue}/{folder}/{name}.json"), b"{}")
        fleet.store.put(Key(f"queues/{queue}/pending/a/task.json"), b"{}")
    fleet.store.put(Key("queues/stray.json"), b"{}")
    found = summarize(fleet.store, system(), limits={"completed": 2, "failed": 0, "pending": 9, "scheduled": 9})
    assert [(each.queue, each.completed, each.failed, each.pending, each.scheduled) for each in found] == [
        (queue, 2, 0, 1, 2) for queue in ("q", "q-b", "q.b", "q0")
    ]


def test_folders_that_nobody_asked_for_are_not_listed() -> None:
    fleet = limpet.open("memory://")
    _busy(fleet)
    [found] = count_queues(fleet.store, ["busy"], {"completed": 0, "failed": 0, "pending": 0, "scheduled": 9})
    assert (found.scheduled, found.pending, found.completed_tasks(), found.failed) == (1, 0, 0, {})
    assert found.cut == {"completed", "failed", "pending"}


def test_in_flight_is_what_a_living_worker_holds() -> None:
    fleet = limpet.open("memory://")
    queue = fleet.queue("q", ttl_s=600)
    queue.push_many([{"n": n} for n in range(7)], batch=7)
    assert queue.claim()
    queue.push({"n": 7})
    [found] = summarize(fleet.store, system())
    assert (found.pending, found.in_flight) == (8, 7)
    [later] = summarize(fleet.store, _Later())
    assert (later.pending, later.in_flight) == (8, 0)
    assert later.oldest_s is not None
    assert later.oldest_s >= 3600


def test_what_rests_is_not_in_flight() -> None:
    fleet = limpet.open("memory://")
    queue = fleet.queue("q", ttl_s=600)
    queue.push({"do": "rest"})
    _work(queue, 1)
    queue.push_many([{"n": n} for n in range(3)], batch=3)
    assert queue.claim()
    queue.push({}, id="waits")
    stats, [found] = queue.stats(), summarize(fleet.store, system())
    assert (found.pending, found.in_flight, found.resting) == (stats.pending, stats.in_flight, stats.resting)
    assert (found.pending, found.in_flight, found.resting) == (5, 3, 1)


@pytest.mark.parametrize("entry", ["a", "gone"])
def test_a_lease_that_is_corrupt_or_has_no_task_counts_for_nothing(entry: str) -> None:
    fleet = limpet.open("memory://")
    fleet.queue("q").push({}, id="a")
    fleet.store.put(Key(f"queues/q/pending/{entry}/lease.json"), b"{garbage")
    with fleet.meter.measure() as cost:
        [found] = summarize(fleet.store, system())
    assert (found.pending, found.in_flight, found.resting) == (1, 0, 0)
    assert cost.requests.get("get", 0) == (1 if entry == "a" else 0)


def test_what_is_done_in_a_batch_that_runs_is_counted_with_its_heartbeat() -> None:
    world = World()
    process = world.process()
    process.queue.push_many(rounds(100), batch=100)
    process.queue.push({})
    tasks = iter(process.take())
    for _ in range(59):
        next(tasks).done()
    next(tasks).fail("no")
    assert process.queue.stats().done == 0
    world.time.sleep(TTL_S / 2)
    stats, [found] = process.queue.stats(), summarize(world.memory, process.runtime)
    assert (stats.pending, stats.in_flight, stats.done, stats.failed) == (101, 40, 59, 1)
    assert (found.pending, found.in_flight, found.done, found.failed) == (101, 40, 59, 1)
    assert [(each["tasks"], each["done"]) for each in process.queue.entries("pending")] == [(100, 59), (1, 0)]
    for task in tasks:
        task.done()
    assert (process.queue.stats().done, process.queue.stats().completed) == (0, 99)


def test_a_task_is_due_when_it_waits_for_nothing_but_a_worker() -> None:
    """Not while it is delayed, rests, sleeps or is held; and then since it was pushed, or since its wait was over."""
    fleet = limpet.open("memory://")

    @fleet.task("flows")
    def flow() -> None:
        limpet.sleep(1800)

    flow.push()
    drain(fleet)
    queue = fleet.queue("q", ttl_s=60)
    queue.push({"do": "rest"})
    _work(queue, 1)
    queue.push({}, delay_s=600)
    queue.push({}, id="held")
    claim = queue.claim()
    flows, waits = summarize(fleet.store, system())
    assert [(each.waiting, each.due_s) for each in (flows, waits)] == [(0, None), (0, None)]
    flows, waits = summarize(fleet.store, _Later())
    assert (flows.waiting, flows.suspended, waits.waiting) == (0, 1, 2)
    assert flows.due_s == pytest.approx(1800, abs=60)
    assert waits.due_s == pytest.approx(3540, abs=60), "since the lease of its worker ended"
    assert claim
    queue.push({}, id="new")
    waits = _counted(fleet, "q")
    assert waits.waiting == 1
    assert waits.due_s == pytest.approx(0, abs=60)
