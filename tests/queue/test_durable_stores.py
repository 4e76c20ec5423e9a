"""Durable tasks on real stores, what they are refused, and what a day of waiting costs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import limpet
from limpet.app import Fleet
from limpet.errors import Unsupported
from limpet.queue import BucketQueue
from limpet.queue.api import FEATURES
from limpet.queue.sqs.queue import SUPPORTS
from limpet.runtime import system
from limpet.worker import Job, Worker
from support.queue import World

DAY_S = 86_400.0


def test_fan_out_sleep_signal_and_fan_in(fleet: Fleet) -> None:
    ran: list[Any] = []

    @fleet.task("crawl", max_attempts=1)
    def crawl(n: int) -> int:
        if n == 2:
            raise RuntimeError("a bad page")
        return n * n

    @fleet.task("report", durable=True, backoff_s=0.0)
    def report(day: str) -> dict[str, Any]:
        task = limpet.current_task()
        assert task is not None
        pages = limpet.step(_pages, ran, day)
        ends = limpet.gather(crawl.push_many([(n,) for n in pages], batch=3))
        limpet.sleep(0.5)
        if task.attempt == 1:
            raise RuntimeError("it fails once")
        return {"sum": sum(end.value for end in ends if end.ok), "by": limpet.wait_signal("approved", timeout_s=60)}

    pushed = report.push("monday")
    assert limpet.signal(pushed, "approved", "ann")
    Worker([report.job, crawl.job], system(), burst=True, until_empty=True, threads=2).run()
    result = pushed.result()
    assert result.value == {"sum": 0 + 1 + 9 + 16, "by": "ann"}
    assert result.attempts == 2
    assert ran == ["monday"]
    fleet.queue("report").flush()
    assert [stat.key for stat in fleet.store.list("queues") if "/steps/" in stat.key] == []


def _pages(ran: list[Any], day: str) -> list[int]:
    ran.append(day)
    return [*range(5)]


def test_a_store_without_steps_says_so() -> None:
    assert "steps" in FEATURES
    assert "steps" not in SUPPORTS
    fleet = limpet.open("memory://")
    queue = fleet.queue("report")
    queue.supports = frozenset(FEATURES - {"steps"})  # type: ignore[misc]
    errors: list[Exception] = []

    def handle(payload: Any) -> None:
        try:
            limpet.sleep(1)
        except Unsupported as error:
            errors.append(error)

    queue.push({})
    Worker([Job(queue, handle)], system(), burst=True).run()
    assert "has no steps" in str(errors[0])


def test_a_queue_that_is_exchanged_with_other_nodes_refuses_steps() -> None:
    fleet = limpet.open("memory://")
    queue: Any = fleet.queue("report")
    queue.storage._journal = _Travels()
    errors: list[str] = []

    def handle(payload: Any) -> None:
        try:
            limpet.step(_pages, [], "x")
        except Unsupported as error:
            errors.append(str(error))

    queue.push({})
    Worker([Job(queue, handle)], system(), burst=True).run()
    assert errors == ["queue 'report' is exchanged with other nodes, and steps are not"]


class _Travels:
    """A journal as a supervised node has one."""

    travels = True

    def pushed(self, key: Any, data: bytes) -> None:
        pass

    def ended(self, entry: str, batch: bool, key: Any, receipt: Any) -> None:
        pass

    def held(self, queue: Any, entry: str, batch: bool) -> None:
        pass

    def foreign(self, found: Any) -> tuple[()]:
        return ()


def test_a_task_that_waits_for_a_day_costs_at_most_1500_requests() -> None:
    idle, waits = _day(suspended=False), _day(suspended=True)
    assert waits - idle <= 1_500
    assert waits - idle >= 1_000, "it is looked at about once a minute"


def _day(*, suspended: bool) -> int:
    """What an idle worker asks of a bucket in a day, with a task that waits for a batch or without."""
    from limpet.queue.steps import RUNNING, Suspend, TaskSteps, gather

    world = World(far=True)
    process = world.process()
    crawl = BucketQueue(process.store, "crawl", process.runtime)
    if suspended:
        process.queue.push({})
        with process.take() as claim:
            for task in claim:
                token = RUNNING.set(TaskSteps(process.queue, task))
                try:
                    limpet.step(_pages, [], "x")
                    gather(crawl.push_many([{"n": n} for n in range(100)]))
                except Suspend as error:
                    task.suspend(error.wait_s, error.suspension)
                finally:
                    RUNNING.reset(token)
    began = process.runtime.wall()
    with process.store.measure() as cost:
        while process.runtime.wall() < began + timedelta(seconds=DAY_S):
            assert not process.queue.claim(wait_s=600.0)
    return sum(cost.requests.values())
