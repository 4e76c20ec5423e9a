"""Durable tasks on real stores, what they are refused, and what a day of waiting costs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.app import Fleet
from limpet.kernel.runtime import system
from limpet.queue import BucketQueue, Pushed, TaskHandle
from limpet.queue.claim import EntryClaim
from limpet.worker import Worker
from support.queue import World

DAY_S = 86_400.0


@pytest.mark.parametrize(
    ("coroutine", "batch"),
    [
        pytest.param(False, True, id="sync-batch"),
        pytest.param(True, False, id="async-single"),
        pytest.param(False, False, id="sync-single", marks=pytest.mark.full),
        pytest.param(True, True, id="async-batch", marks=pytest.mark.full),
    ],
)
def test_every_verb_in_both_kinds_of_handler(fleet: Fleet, coroutine: bool, batch: bool) -> None:
    """Each task fails once, after all of its steps: its second attempt gets the same values, and calls nothing."""
    ran: list[Any] = []

    @fleet.task("square", max_attempts=1)
    def square(n: int) -> int:
        if n == 11:
            raise RuntimeError("a bad number")
        return n * n

    def key_of(n: int) -> str:
        task = limpet.current_task()
        ran.append((n, task.step_key))
        return task.step_key

    def check(values: list[Any]) -> list[Any]:
        task = limpet.current_task()
        if task.attempt == 1:
            raise RuntimeError("it fails once")
        return values

    @fleet.task("sync", durable=True, backoff_s=0.0)
    def sync(n: int) -> list[Any]:
        key = limpet.step(key_of, n)
        new = limpet.version("a change")
        ends = limpet.gather([*square.push_many([(n,), (n + 1,)], batch=1), square.push(n + 2)])
        limpet.sleep(0.1)
        return check([key, new, [end.value for end in ends], limpet.wait_signal("go", timeout_s=60)])

    @fleet.task("async", durable=True, backoff_s=0.0)
    async def async_(n: int) -> list[Any]:
        key = await limpet.step_async(key_of, n)
        new = limpet.version("a change")
        pushed: list[Any] = [*square.push_many([(n,), (n + 1,)], batch=1), await square.push_async(n + 2)]
        ends = await limpet.gather_async(pushed)
        await limpet.sleep_async(0.1)
        return check([key, new, [end.value for end in ends], await limpet.wait_signal_async("go", timeout_s=60)])

    work: Any = async_ if coroutine else sync
    ids = [*work.push_many([(0,), (10,)])] if batch else [work.push(0).id]
    for id_ in ids:
        assert limpet.signal(id_, "go", str(id_))
    Worker([work.job, square.job], system(), burst=True, until_empty=True, threads=2).run()
    results = work.queue.results(ids)
    keys = dict(ran)
    assert len(ran) == len({*keys.values()}) == len(ids), "called once each, with separate keys"
    squares = {0: [0, 1, 4], 10: [100, None, 144]}
    assert [(result.value, result.attempts) for result in results] == [
        ([keys[n], True, squares[n], str(id_)], 2) for n, id_ in zip(squares, ids, strict=False)
    ]
    work.queue.flush()
    assert [stat.key for stat in fleet.store.list("queues") if "/steps/" in stat.key] == []


def test_a_sleep_ends_though_the_files_are_of_a_clock_that_is_an_hour_ahead(tmp_path: Path) -> None:
    """Until that clock is reached, a file counts as written just now: a worker claimed the task again and again."""
    fleet = limpet.open(tmp_path)
    events: list[str] = []

    @fleet.task("report")
    def report() -> str:
        limpet.step(_pages, [], "x")
        limpet.sleep(0.5)
        return "slept"

    pushed = report.push()
    Worker([report.job], system(), burst=True).run()
    soon = system().wall().timestamp() + 3600
    for path in tmp_path.glob("queues/report/*/*/*.json"):
        os.utime(path, (soon, soon))
    Worker([report.job], system(), burst=True, until_empty=True, listener=lambda event: events.append(event.kind)).run()
    assert pushed.result().value == "slept"
    assert events == ["started", "done"]


def test_queues_that_are_exchanged_between_nodes_refuse_steps(tmp_path: Path) -> None:
    """A task may move to another node, and its steps do not: neither the node nor the bucket records any."""
    places = [tmp_path / "node", tmp_path / "bucket"]
    for place, features in zip(places, (["node", "supervised"], ["supervised"]), strict=True):
        limpet.open(place).enable(*features)
    for place in places:
        fleet = limpet.open(place)

        @fleet.task("report", max_attempts=1)
        def report() -> None:
            limpet.step(_pages, [], "x")

        pushed = report.push()
        Worker([report.job], system(), burst=True).run()
        result = pushed.result()
        assert result.state == "failed"
        assert result.error is not None
        assert "queue 'report' is exchanged with other nodes, and steps are not" in result.error
        assert "keep durable tasks in a queue that is not supervised" in result.error
        with pytest.raises(limpet.Unsupported, match="exchanged with other nodes"):
            fleet.queue("report").signal(report.push().id, "approved")
        assert [stat.key for stat in fleet.store.list("queues") if "/steps/" in stat.key] == []


def _pages(ran: list[Any], day: str) -> list[int]:
    ran.append(day)
    return [*range(5)]


def test_a_task_that_waits_for_a_day_costs_at_most_1500_requests() -> None:
    idle, _ = _day()
    waits, claims = _day(lambda crawl: crawl.push_many([{"n": n} for n in range(100)]))
    assert claims == 1
    assert 1_000 <= waits - idle <= 1_500, "it is looked at about once a minute"


def test_a_task_that_waits_for_a_delayed_one_for_a_day_costs_at_most_1500_requests() -> None:
    """There is no object in pending/ to look at: each look is a claim, so it looks again when the other one is due."""
    idle, _ = _day()
    waits, claims = _day(lambda crawl: [crawl.push({}, delay_s=2 * DAY_S)])
    assert 40 <= claims <= 60, "every half an hour"
    assert waits - idle <= 1_500


def _day(push: Callable[[BucketQueue], Sequence[TaskHandle | Pushed]] | None = None) -> tuple[int, int]:
    """What an idle worker asks of a bucket in a day, and how often it claims a task that waits for what was pushed."""
    from limpet.queue.calls import gather
    from limpet.queue.steps import RUNNING, Suspend, TaskSteps

    world = World(far=True)
    process = world.process()
    crawl = BucketQueue(process.store, "crawl", process.runtime)
    claims = 0

    def run(claim: EntryClaim) -> None:
        nonlocal claims
        claims += 1
        for task in claim:
            token = RUNNING.set(TaskSteps(process.queue, task))
            try:
                limpet.step(_pages, [], "x")
                assert push is not None
                gather(push(crawl))
            except Suspend as error:
                task.suspend(error.wait_s, error.suspension)
            finally:
                RUNNING.reset(token)

    if push is not None:
        process.queue.push({})
        with process.take() as claim:
            run(claim)
    began = process.runtime.wall()
    with process.store.measure() as cost:
        while process.runtime.wall() < began + timedelta(seconds=DAY_S):
            with process.queue.claim(wait_s=600.0) as found:
                if isinstance(found, EntryClaim):
                    run(found)
    return sum(cost.requests.values()), claims
