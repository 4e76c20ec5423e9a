"""Durable tasks on a clock that moves by hand: steps, sleeps, gathers and signals, as a worker runs them."""

from __future__ import annotations

from typing import Any

import pytest

import limpet
from limpet import Fleet
from limpet.runtime import ulid
from limpet.worker import Job, Worker, WorkerEvent
from support.clock import ManualRuntime


class Process(ManualRuntime):
    """With ids of the form that a queue recognises as its own."""

    def new_id(self) -> str:
        return ulid(int(self.elapsed_s() * 1000), self.rng.getrandbits(80))


class Ground:
    """A fleet in memory, a process that works on it, and what it reported."""

    def __init__(self) -> None:
        self.runtime = Process()
        self.fleet: Fleet = limpet.open("memory://", runtime=self.runtime)
        self.events: list[WorkerEvent] = []
        self.ran: list[Any] = []

    def note(self, value: Any) -> Any:
        """What a step does: it is noted, and returned."""
        self.ran.append(value)
        return value

    def work(self, *tasks: Any, until_empty: bool = True) -> None:
        jobs: list[Job] = [task.job for task in tasks]
        Worker(jobs, self.runtime, listener=self.events.append, burst=True, until_empty=until_empty).run()

    def kinds(self, *wanted: str) -> list[str]:
        return [event.kind for event in self.events if not wanted or event.kind in wanted]

    def left(self) -> list[str]:
        """Every recorded step and signal."""
        return [stat.key for stat in self.fleet.queue("report").storage.store.list("queues") if "/steps/" in stat.key]


@pytest.fixture
def ground() -> Ground:
    return Ground()


def test_a_recorded_step_is_not_run_again_by_a_later_attempt(ground: Ground) -> None:
    @ground.fleet.task("report", backoff_s=0.0)
    def report(day: str) -> list[str]:
        task = limpet.current_task()
        assert task is not None
        first = limpet.step(ground.note, f"{day}-1", name="first")
        if task.attempt == 1:
            raise RuntimeError("it fails after its first step")
        return [first, limpet.step(ground.note, f"{day}-2", name="second")]

    pushed = report.push("monday")
    ground.work(report)
    assert pushed.result().value == ["monday-1", "monday-2"]
    assert ground.ran == ["monday-1", "monday-2"]
    assert ground.left() == []


def test_a_sleep_holds_no_worker_and_charges_no_attempt(ground: Ground) -> None:
    at: list[float] = []

    @ground.fleet.task("report", max_attempts=1)
    def report() -> int:
        limpet.step(ground.note, "before")
        limpet.sleep(3600)
        at.append(ground.runtime.elapsed_s())
        task = limpet.current_task()
        assert task is not None
        return task.attempt

    pushed = report.push()
    began_s = ground.runtime.elapsed_s()
    ground.work(report)
    assert pushed.result().value == 1
    assert ground.ran == ["before"]
    assert 3600 <= at[0] - began_s < 3700
    assert ground.kinds() == ["started", "suspended", "started", "done"]


def test_gather_returns_the_end_of_each_task(ground: Ground) -> None:
    @ground.fleet.task("crawl", max_attempts=1)
    def crawl(n: int) -> int:
        ground.note(n)
        if n == 3:
            raise RuntimeError("a bad page")
        return n * n

    @ground.fleet.task("report", durable=True)
    def report() -> dict[str, Any]:
        done = limpet.gather(crawl.push_many([(n,) for n in range(6)], batch=4))
        single = limpet.gather([crawl.push(7)])
        return {
            "sum": sum(r.value for r in done if r.ok),
            "bad": [r.error for r in done if not r.ok],
            "x": single[0].value,
        }

    pushed = report.push()
    ground.work(report, crawl)
    assert pushed.result().value == {"sum": 0 + 1 + 4 + 16 + 25, "bad": ["RuntimeError: a bad page"], "x": 49}
    assert sorted(ground.ran) == [0, 1, 2, 3, 4, 5, 7]
    assert ground.left() == []
