"""Durable tasks on a clock that moves by hand: steps, sleeps, gathers and signals, as a worker runs them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import re
import threading
import time
import typing
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

import limpet
from limpet import Fail, Fleet
from limpet.app.metrics import FleetMetrics
from limpet.app.overview import read_overview
from limpet.app.query import fleet_sql
from limpet.kernel.cell import struct_codec
from limpet.kernel.errors import Conflict, Invalid, LeaseLost, Missing, Unsupported
from limpet.kernel.keys import Key, derived
from limpet.kernel.runtime import ulid
from limpet.kernel.store import Blob, MeteredStore
from limpet.queue import BucketQueue, Policy, Result
from limpet.queue.durable import waiting
from limpet.queue.entry import EntryLease, GatheredStep, Suspension
from limpet.queue.step_values import gathered_bytes
from limpet.queue.steps import RUNNING, TaskSteps
from limpet.queue.storage import Storage
from limpet.worker import Job, Worker, WorkerEvent
from support.clock import ManualRuntime
from support.queue import TTL_S, World


@dataclass
class Page:
    """What a step returns."""

    url: str
    status: int


def fetch(url: str) -> Page:
    """A step."""
    return Page(url, 200)


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
        return [stat.key for stat in self.fleet.store.list("queues") if "/steps/" in stat.key]


@pytest.fixture
def ground() -> Ground:
    return Ground()


def test_a_recorded_step_is_not_run_again_by_a_later_attempt(ground: Ground) -> None:
    @ground.fleet.task("report", backoff_s=0.0)
    def report(day: str) -> list[str]:
        task = limpet.current_task()
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


def test_the_ends_of_a_gather_stay_when_a_task_is_retried_later(ground: Ground) -> None:
    seen: list[list[str]] = []
    good: list[bool] = []

    @ground.fleet.task("crawl", max_attempts=1)
    def crawl() -> str:
        if not good:
            raise RuntimeError("a bad page")
        return "good"

    @ground.fleet.task("report", durable=True, backoff_s=60.0)
    def report() -> str:
        seen.append([end.state for end in limpet.gather([crawl.push()])])
        if len(seen) == 1:
            raise RuntimeError("it fails after the gather")
        return seen[-1][0]

    pushed = report.push()
    ground.work(report, crawl, until_empty=False)
    ground.runtime.sleep(5)
    ground.work(report, until_empty=False)
    good.append(True)
    crawl.queue.retry(all=True)
    ground.work(report, crawl)
    assert seen == [["failed"], ["failed"]]
    assert pushed.result().value == "failed"


def test_a_retry_keeps_the_recorded_steps_and_the_names_of_its_pushes(ground: Ground) -> None:
    keys: list[str] = []
    broken = [True]

    def charge() -> str:
        task = limpet.current_task()
        keys.append(task.step_key)
        if broken:
            raise RuntimeError("no money")
        return "charged"

    @ground.fleet.task("report", max_attempts=1)
    def report() -> list[str]:
        return [limpet.step(ground.note, "reserved", name="reserve"), limpet.step(charge)]

    report.push()
    ground.work(report)
    assert len(ground.left()) == 1
    broken.clear()
    [again] = report.queue.retry(all=True)
    assert len(ground.left()) == 1
    ground.work(report)
    assert report.queue.result(again).value == ["reserved", "charged"]
    assert ground.ran == ["reserved"]
    assert keys[0] == keys[1]
    assert ground.left() == []


def _failed(ground: Ground) -> tuple[Any, list[bool]]:
    """A durable task that has recorded a step, and fails until the list is empty."""
    broken = [True]

    @ground.fleet.task("report", max_attempts=1)
    def report() -> str:
        value: str = limpet.step(ground.note, "reserved", name="reserve")
        if broken:
            raise RuntimeError("no money")
        return value

    report.push()
    ground.work(report)
    return report, broken


def test_a_sweep_between_the_copy_of_the_steps_and_the_retry_keeps_the_copy(ground: Ground) -> None:
    report, broken = _failed(ground)
    queue: Any = report.queue
    place = queue._pusher.place
    swept: list[int] = []

    def sweep_first(entry: str, task: Any) -> bool:
        swept.append(queue.sweep())
        return bool(place(entry, task))

    queue._pusher.place = sweep_first
    ground.runtime.sleep(3600)
    [again] = queue.retry(all=True)
    broken.clear()
    ground.work(report)
    assert (swept, queue.result(again).value, ground.ran) == ([0], "reserved", ["reserved"])


def test_the_steps_of_a_task_whose_retry_died_are_swept_and_those_of_its_next_life_are_not(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, broken = _failed(ground)
    queue: Any = report.queue

    class Killed(BaseException):
        pass

    def die(*of: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "drop_steps_of", die)
        with pytest.raises(Killed):
            queue.retry(all=True)
    assert len(ground.left()) == 2
    ground.runtime.sleep(3600)
    queue.sweep()
    [kept] = ground.left()
    assert "~1/" in kept
    broken.clear()
    ground.work(report)
    assert (ground.ran, ground.left()) == (["reserved"], [])


def test_a_signal_of_another_name_than_the_task_waits_for_is_refused(ground: Ground) -> None:
    @ground.fleet.task("order")
    def order() -> list[Any]:
        return [limpet.wait_signal("approved"), limpet.wait_signal("paid")]

    pushed = order.push()
    assert limpet.signal(pushed, "approvd"), "it waits for nothing yet"
    ground.work(order)
    with pytest.raises(Invalid, match="does not wait for the signal 'aproved': it waits for 'approved'") as told:
        limpet.signal(pushed, "aproved")
    assert "--early" in told.value.hint
    assert limpet.signal(pushed, "paid", 9, early=True)
    assert limpet.signal(pushed, "approved", "ann")
    ground.work(order)
    assert pushed.result().value == ["ann", 9]


@pytest.mark.parametrize(
    ("waits", "cost"), [(True, {"get": 2, "head": 1, "put": 3}), (False, {"get": 3, "head": 1, "put": 1})]
)
def test_what_a_signal_costs(ground: Ground, waits: bool, cost: dict[str, int]) -> None:
    @ground.fleet.task("order")
    def order() -> Any:
        return limpet.wait_signal("approved")

    pushed = order.push()
    if waits:
        ground.work(order)
    metered = MeteredStore(ground.fleet.store)
    queue = BucketQueue(metered, "order", ground.runtime)
    with metered.measure() as measured:
        sent = queue.send_signal(pushed.id, "approved")
    assert (sent.first, sent.awaited) == (True, waits)
    assert measured.requests == cost


def test_a_signal_to_a_delayed_task_waits_for_it(ground: Ground) -> None:
    """Sweeps leave it alone, although the task is not pending yet."""

    @ground.fleet.task("report")
    def report() -> Any:
        return limpet.wait_signal("approved", timeout_s=1, default="nobody")

    pushed = report.using(delay_s=86400).push()
    queue: Any = report.queue
    limpet.signal(pushed, "approved", "ann")
    ground.runtime.sleep(7200)
    assert queue.sweep() == 0
    ground.runtime.sleep(86400)
    ground.work(report)
    assert (pushed.result().value, ground.left()) == ("ann", [])


def test_a_retry_from_scratch_keeps_nothing(ground: Ground) -> None:
    @ground.fleet.task("report", max_attempts=1)
    def report() -> str:
        limpet.step(ground.note, "reserved", name="reserve")
        raise RuntimeError("no money")

    report.push()
    ground.work(report)
    report.queue.retry(all=True, from_scratch=True)
    ground.work(report)
    assert ground.ran == ["reserved", "reserved"]
    assert len(ground.left()) == 1


@pytest.mark.parametrize("batch", [False, True])
def test_a_retry_keeps_the_signals_that_were_sent(ground: Ground, batch: bool) -> None:
    broken = [True]

    @ground.fleet.task("report", max_attempts=1)
    def report(n: int) -> Any:
        limpet.step(ground.note, n, name="note")
        limpet.sleep(60)
        if broken:
            raise RuntimeError("no money")
        return limpet.wait_signal("approved", timeout_s=60, default="nobody")

    ids = report.push_many([(0,), (1,)]) if batch else [report.push(0).id]
    ground.work(report, until_empty=False)
    assert report.queue.signal(ids[-1], "approved", {"by": "ann"})
    ground.work(report)
    broken.clear()
    again = report.queue.retry(all=True)
    ground.work(report)
    assert [report.queue.result(id_).value for id_ in again] == [*(["nobody"] if batch else []), {"by": "ann"}]
    assert ground.left() == []


def test_a_signal_to_a_task_that_fails_meanwhile_is_refused(ground: Ground) -> None:
    """A retry may have copied the signals before this one was there."""

    @ground.fleet.task("report", max_attempts=1)
    def report() -> None:
        limpet.sleep(60)
        raise RuntimeError("no money")

    pushed = report.push()
    ground.work(report, until_empty=False)
    queue: Any = report.queue
    life = queue._life_of_waiting

    def then_it_fails(*of: Any) -> Any:
        found = life(*of)
        ground.work(report)
        return found

    queue._life_of_waiting = then_it_fails
    with pytest.raises(Missing, match="has failed"):
        queue.signal(pushed.id, "approved")


def test_a_signal_wakes_the_task_that_waits_for_it(ground: Ground) -> None:
    @ground.fleet.task("report")
    def report() -> Any:
        return limpet.wait_signal("approved", timeout_s=7 * 86400)

    pushed = report.using(id="order-1").push()
    ground.work(report, until_empty=False)
    assert ground.kinds() == ["started", "suspended"]
    assert limpet.signal(pushed, "approved", {"by": "ann"})
    assert not report.queue.signal("order-1", "approved", {"by": "bob"}), "the first of a name counts"
    ground.work(report, until_empty=False)
    assert pushed.result().value == {"by": "ann"}
    assert ground.left() == []
    with pytest.raises(Missing):
        limpet.signal(pushed, "approved")


def test_a_gather_of_a_purged_task_ends_after_two_minutes(ground: Ground) -> None:
    """What it has waited is added up over its claims, each of which finds nothing."""

    @ground.fleet.task("crawl")
    def crawl() -> None:
        pass

    @ground.fleet.task("report", durable=True)
    def report() -> list[str]:
        return [end.state for end in limpet.gather([crawl.push()])]

    pushed = report.push()
    ground.work(report, until_empty=False)
    crawl.queue.purge()
    began_s = ground.runtime.elapsed_s()
    while not pushed.result().ready and ground.runtime.elapsed_s() - began_s < 600:
        ground.runtime.sleep(1)
        ground.work(report, until_empty=False)
    assert pushed.result().value == ["unknown"]
    assert 100 <= ground.runtime.elapsed_s() - began_s <= 200
    assert len(ground.kinds("started")) <= 25, "less and less often"


def test_a_clock_that_lags_behind_does_not_make_a_look_a_claim(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's clock is known as a lower bound, from what was last seen of it."""

    @ground.fleet.task("report")
    def report() -> Any:
        return limpet.wait_signal("approved")

    report.push()
    ground.work(report, until_empty=False)
    queue: Any = report.queue
    exact = queue._store.now

    def lagging(**how: Any) -> Any:
        return exact(**how) - timedelta(seconds=0 if how else 5)

    monkeypatch.setattr(queue._store, "now", lagging)
    ground.runtime.sleep(3)
    queue.storage._exact_at_s = None
    assert not queue.claim()


def test_until_empty_waits_for_what_goes_on_by_itself_and_names_what_does_not(ground: Ground) -> None:
    fleet = ground.fleet

    @fleet.task("crawl", backoff_s=60.0)
    def crawl(n: int) -> int:
        task = limpet.current_task()
        if n == 1 and task is not None and task.attempt == 1:
            raise RuntimeError("it fails once")
        return n

    @fleet.task("ask")
    def ask() -> Any:
        return limpet.wait_signal("approved")

    @fleet.task("report", durable=True)
    def report(what: str) -> Any:
        match what:
            case "sleep":
                limpet.sleep(3600)
                return "slept"
            case "limit":
                return limpet.wait_signal("approved", timeout_s=3600, default="none came")
            case "retry":
                return [end.value for end in limpet.gather([crawl.push(1)])]
            case "delayed":
                return [end.value for end in limpet.gather([crawl.using(delay_s=600).push(2)])]
            case _:
                return [end.value for end in limpet.gather([crawl.push(3), ask.push()])]

    good = {what: report.push(what) for what in ("sleep", "limit", "retry", "delayed")}
    bad: list[Any] = [report.push("signal"), ask.push(), *report.push_many([("signal",), ("signal",)])]
    ground.work(report, crawl, ask)
    assert [pushed.result().state for pushed in good.values()] == ["completed"] * 4
    assert [report.queue.result(bad[0].id).state, *(each.result().state for each in bad[1:])] == ["pending"] * 4
    said = [event.note for event in ground.events if event.kind == "warning"]
    assert said == [
        "7 tasks are suspended, and nothing here wakes them: waiting for the signal 'approved' (4); "
        "waiting for 2 tasks in 'ask' and 'crawl' (3)"
    ]
    for each in ask.queue.peek(9):
        ask.queue.signal(each.id, "approved", "yes")
    ground.events.clear()
    ground.work(report, crawl, ask)
    assert [each.result().value for each in bad[2:]] == [[3, "yes"]] * 2
    assert ground.kinds("warning") == []


def test_a_worker_of_another_queue_waits_for_a_task_until_that_waits_for_a_signal(ground: Ground) -> None:
    @ground.fleet.task("ask")
    def ask() -> Any:
        return limpet.wait_signal("approved")

    @ground.fleet.task("report", durable=True)
    def report() -> Any:
        return [end.value for end in limpet.gather([ask.push()])]

    report.push()
    ground.runtime.time.at(600, lambda: ground.work(ask, until_empty=False))
    began_s = ground.runtime.elapsed_s()
    ground.work(report)
    assert 600 <= ground.runtime.elapsed_s() - began_s < 700
    assert [event.note for event in ground.events if event.kind == "warning"] == [
        "1 task is suspended, and nothing here wakes it: waiting for 1 task in 'ask'"
    ]


@pytest.mark.parametrize(("sleep_s", "after_s"), [(3.0, 1.0), (7200.0, 1800.0), (7200.0, 7100.0)])
@pytest.mark.parametrize("batch", [False, True])
def test_a_sleep_ends_in_time_though_the_clock_of_the_store_was_set_back(
    ground: Ground, sleep_s: float, after_s: float, batch: bool
) -> None:
    @ground.fleet.task("report")
    def report() -> float:
        limpet.sleep(sleep_s)
        return ground.runtime.elapsed_s()

    def set_back() -> None:
        ground.runtime.wall_offset_s -= 3600

    began_s = ground.runtime.elapsed_s()
    ids = report.push_many([(), ()]) if batch else [report.push().id]
    ground.runtime.time.at(after_s, set_back)
    ground.work(report)
    for result in report.queue.results(ids):
        assert sleep_s <= result.unwrap() - began_s <= sleep_s + 60
    assert Counter(ground.kinds("started")) == {"started": 2 * len(ids)}


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_the_end_of_what_a_task_waits_for_wakes_its_queue(ground: Ground, batch: bool, cancel: bool) -> None:
    pushed: list[Any] = []

    @ground.fleet.task("crawl")
    def crawl(n: int) -> int:
        return n

    @ground.fleet.task("report", durable=True)
    def report() -> int:
        pushed[:] = crawl.push_many([(1,), (2,)]) if batch else [crawl.push(1).id]
        return len(limpet.gather(pushed))

    report.push()
    ground.work(report, until_empty=False)
    bell = ground.fleet.queue("report").storage.keys.bell  # type: ignore[attr-defined]
    assert not ground.fleet.store.exists(bell)
    if cancel:
        crawl.queue.cancel(pushed[0].rpartition(".")[0] or pushed[0])
    else:
        ground.work(crawl)
    assert ground.fleet.store.exists(bell)


def test_a_wait_that_times_out_returns_the_default(ground: Ground) -> None:
    @ground.fleet.task("report")
    def report() -> Any:
        return limpet.wait_signal("approved", timeout_s=600, default="nobody")

    pushed = report.push()
    began_s = ground.runtime.elapsed_s()
    ground.work(report)
    assert pushed.result().value == "nobody"
    assert 600 <= ground.runtime.elapsed_s() - began_s < 700


def test_a_gather_that_times_out_says_what_has_not_ended(ground: Ground) -> None:
    @ground.fleet.task("crawl")
    def crawl() -> None:
        pass

    @ground.fleet.task("report", durable=True)
    def report() -> list[str]:
        return [end.state for end in limpet.gather([crawl.push()], timeout_s=30)]

    pushed = report.push()
    ground.work(report)  # no worker runs crawl
    assert pushed.result().value == ["pending"]


def test_cancel_ends_a_suspended_task_at_once(ground: Ground) -> None:
    @ground.fleet.task("report")
    def report() -> None:
        limpet.step(ground.note, "before")
        limpet.sleep(86400)

    pushed = report.push()
    ground.work(report, until_empty=False)
    assert len(ground.left()) == 2
    assert report.queue.cancel(pushed.id)
    assert pushed.result().state == "cancelled"
    assert len(ground.left()) == 2, "its steps stay for a retry"
    [again] = report.queue.retry(pushed.id)
    ground.runtime.sleep(86400)
    ground.work(report)
    assert report.queue.result(again).state == "completed"
    assert ground.ran == ["before"]
    assert ground.left() == []


def test_the_time_limit_counts_running_time_and_not_suspended_time(ground: Ground) -> None:
    @ground.fleet.task("report", timeout_s=10.0, max_attempts=1)
    def report() -> str:
        limpet.step(ground.runtime.sleep, 6, name="before")
        limpet.sleep(3600)
        ground.runtime.sleep(6)
        return "in time"

    @ground.fleet.task("slow", timeout_s=10.0, max_attempts=1)
    def slow() -> str:
        limpet.sleep(3600)
        ground.runtime.sleep(60)
        return "too late"

    pushed = report.push()
    ground.work(report)
    assert pushed.result().value == "in time"
    assert ground.kinds() == ["started", "suspended", "started", "done"]
    slow.push()
    ground.work(slow)
    assert ground.kinds()[4:] == ["started", "suspended", "started", "overdue", "done"]


def test_a_paused_queue_resumes_no_suspended_task(ground: Ground) -> None:
    @ground.fleet.task("report")
    def report() -> None:
        limpet.sleep(60)
        ground.note("after")

    pushed = report.push()
    ground.work(report, until_empty=False)
    report.queue.pause()
    ground.runtime.sleep(600)
    ground.work(report, until_empty=False)
    assert ground.ran == []
    queue: Any = report.queue
    assert queue.describe(pushed.id)["state"] == "suspended"
    report.queue.resume()
    ground.work(report)
    assert ground.ran == ["after"]


def test_a_sweep_keeps_the_steps_of_what_is_suspended_and_of_what_may_be_retried(ground: Ground) -> None:
    @ground.fleet.task("report", max_attempts=1, retention_s=7 * 86400.0)
    def report(n: int) -> int:
        value: int = limpet.step(ground.note, n, name="note")
        if n == 1:
            raise RuntimeError("no money")
        limpet.sleep(6 * 86400)
        return value

    suspended, failed = report.push(0), report.push(1)
    ground.work(report, until_empty=False)
    queue: Any = report.queue
    kept = {suspended.id: 2, failed.id: 1}
    for day in range(8):
        if day == 5:
            ground.work(report)  # it wakes up after six days, and ends
            kept.pop(suspended.id)
        if day == 6:
            kept.clear()  # the receipt of the failed one has expired, and its steps go with it
        ground.runtime.sleep(1200)
        queue.sweep()
        assert Counter(key.split("/")[3] for key in ground.left()) == kept, day
        ground.runtime.sleep(86400 - 1200)
    assert ground.ran == [0, 1]
    assert suspended.result().value == 0


def test_version_keeps_a_task_on_its_side_of_a_change(ground: Ground) -> None:
    code = ["old"]

    @ground.fleet.task("report", backoff_s=0.0)
    def report() -> list[Any]:
        if code[0] == "new" and limpet.version("checks first"):
            limpet.step(ground.note, "check")
        limpet.step(ground.note, "act", name="act")
        limpet.sleep(60)
        return [limpet.step(ground.note, "end", name="end")]

    report.push()
    ground.work(report, until_empty=False)
    code[0] = "new"
    report.push()
    ground.work(report)
    assert sorted(ground.ran) == ["act", "act", "check", "end", "end"]


def test_a_push_before_the_first_step_fails_with_the_reason(ground: Ground) -> None:
    @ground.fleet.task("report")
    def report(n: int) -> None:
        if n:
            report.push(0)
            limpet.step(ground.note, n)

    pushed = report.push(1)
    ground.work(report)
    error = pushed.result().error
    assert error is not None
    assert "pushed a task before its first step" in error
    assert ground.ran == []


def test_steps_of_an_async_handler_run_at_once_and_are_numbered_by_their_calls(ground: Ground) -> None:
    async def page(n: int) -> int:
        await asyncio.sleep(0.01 * (3 - n))
        ground.note(n)
        return n

    @ground.fleet.task("crawl")
    async def crawl(n: int) -> int:
        return 10 * n

    @ground.fleet.task("report", durable=True, backoff_s=0.0)
    async def report() -> list[Any]:
        task = limpet.current_task()
        pages = await asyncio.gather(*(limpet.step_async(page, n, name=f"page {n}") for n in range(3)))
        pushed = await asyncio.gather(*(crawl.push_async(n) for n in pages))
        ends = await limpet.gather_async(pushed)
        await limpet.sleep_async(30)
        if task.attempt == 1:
            raise RuntimeError("again")
        return [end.value for end in ends]

    pushed = report.push()
    ground.work(report, crawl)
    assert pushed.result().value == [0, 10, 20]
    assert sorted(ground.ran) == [0, 1, 2]


def test_a_push_of_a_coroutine_is_numbered_when_it_is_made_and_not_by_its_thread(ground: Ground) -> None:
    raw: Any = ground.fleet.queue("raw")
    other_is_pushed = threading.Event()

    class Slow(dict[str, int]):
        def items(self) -> Any:
            other_is_pushed.wait(10)
            return super().items()

    async def other(push: Any) -> Any:
        pushed = await push
        other_is_pushed.set()
        return pushed

    @ground.fleet.task("report", durable=True)
    async def report() -> bool:
        first, second = await asyncio.gather(raw.push_async(Slow(n=1)), other(raw.push_async({"n": 2})))
        task = limpet.current_task()
        storage = ground.fleet.queue("report").storage  # type: ignore[attr-defined]
        blobs = storage.step_blobs(task.id, 0)
        return [str(first.id) in blobs[0].data.decode(), str(second.id) in blobs[1].data.decode()] == [True, True]

    pushed = report.push()
    ground.work(report)
    assert pushed.result().value is True


def test_tasks_of_a_batch_are_durable_each_for_itself(ground: Ground) -> None:
    @ground.fleet.task("report", backoff_s=0.0)
    def report(n: int) -> int:
        value: int = limpet.step(ground.note, n, name="note")
        limpet.sleep(10 * n)
        if n == 2:
            raise Fail("the third one fails")
        return value

    ids = report.push_many([(n,) for n in range(4)])
    ground.work(report)
    assert [each.value for each in report.queue.results(ids)] == [0, 1, None, 3]
    assert sorted(ground.ran) == [0, 1, 2, 3]
    assert {key.rsplit("/", 1)[1].split(".")[0] for key in ground.left()} == {"2"}, "for a retry"


def test_a_time_limit_holds_although_another_task_of_the_batch_runs_on(ground: Ground) -> None:
    ended_s: dict[int, float] = {}

    @ground.fleet.task("report")
    def report(n: int) -> None:
        if n == 0:
            limpet.wait_signal("approved", timeout_s=600)
        else:
            limpet.step(ground.runtime.sleep, 590.0, name="work")
            limpet.sleep(3000)
        ended_s[n] = ground.runtime.elapsed_s()

    began_s = ground.runtime.elapsed_s()
    report.push_many([(0,), (1,)])
    ground.work(report)
    assert 600 <= ended_s[0] - began_s < 700
    assert 3590 <= ended_s[1] - began_s < 3700


def test_a_signal_to_one_task_of_a_batch_does_not_prolong_the_waits_of_others(ground: Ground) -> None:
    ended_s: dict[int, float] = {}

    @ground.fleet.task("report")
    def report(n: int) -> None:
        if n == 0:
            for name in "abcde":
                limpet.wait_signal(name)
        else:
            limpet.sleep(600)
        ended_s[n] = ground.runtime.elapsed_s()

    began_s = ground.runtime.elapsed_s()
    ids = report.push_many([(0,), (1,)])
    ground.work(report, until_empty=False)
    for name in "abcde":
        ground.runtime.sleep(100)
        limpet.signal(ids[0], name)
    ground.work(report)
    assert 600 <= ended_s[1] - began_s < 700


def test_a_wait_does_not_depend_on_the_clocks_of_two_workers(ground: Ground) -> None:
    """`UNKNOWN_S` counts what the task has waited by the store's clock."""
    before = Suspension(reason="", step=1, since=ground.runtime.wall(), waited_s=8.0)
    for skew_s in (-3600, 3600):
        wall = ground.runtime.wall() + timedelta(seconds=skew_s)
        rest_s, after = waiting(before, reason="", step=1, wall=wall)
        assert (rest_s, after.waited_s, after.since) == (2.0, 8.0, before.since)


def test_values_come_back_as_the_functions_return_type(ground: Ground) -> None:
    seen: list[Page] = []

    @ground.fleet.task("report", backoff_s=0.0)
    def report() -> None:
        seen.append(limpet.step(fetch, "a.com"))
        if len(seen) == 1:
            raise RuntimeError("again")

    report.push()
    ground.work(report)
    assert seen == [Page("a.com", 200), Page("a.com", 200)]


def test_what_json_cannot_hold_is_refused(ground: Ground) -> None:
    @ground.fleet.task("report", max_attempts=1)
    def report() -> None:
        limpet.step(ground.note, object(), name="note")

    pushed = report.push()
    ground.work(report)
    assert "cannot be written as JSON" in (pushed.result().error or "")
    assert ground.left() == []


# ---- runs that are suspended in odd ways ----


def test_a_handler_that_catches_its_suspension_is_suspended_all_the_same(ground: Ground) -> None:
    """And no step is taken after it: not in a `finally` either."""

    @ground.fleet.task("report", max_attempts=1)
    def report() -> Any:
        try:
            limpet.sleep(3600)
        except BaseException:  # noqa: BLE001
            ground.ran.append("caught")
        finally:
            limpet.step(ground.note, "after", name="after")
        return ground.runtime.elapsed_s()

    began_s = ground.runtime.elapsed_s()
    pushed = report.push()
    ground.work(report)
    assert ground.ran == ["caught", "after"]
    assert pushed.result().unwrap() - began_s >= 3600

    @ground.fleet.task("quiet", max_attempts=1)
    def quiet() -> str:
        with contextlib.suppress(BaseException):
            limpet.sleep(3600)
        return f"after {limpet.version('x')}" if ground.runtime.elapsed_s() - began_s > 7200 else "too early"

    pushed = quiet.push()
    ground.work(quiet)
    assert pushed.result().value == "after True"


def test_an_error_after_a_suspension_is_an_error(ground: Ground) -> None:
    @ground.fleet.task("report", max_attempts=1)
    def report() -> None:
        try:
            limpet.sleep(3600)
        except BaseException as error:
            raise RuntimeError("it cannot wait") from error

    pushed = report.push()
    ground.work(report)
    assert (pushed.result().state, pushed.result().error) == ("failed", "RuntimeError: it cannot wait")


def test_a_task_group_may_suspend_or_fail(ground: Ground) -> None:
    """It raises a group of errors, which is no `Exception`: it must not end the worker's thread."""

    async def fail() -> None:
        raise RuntimeError("a bad page")

    @ground.fleet.task("report", max_attempts=1)
    async def report(bad: bool) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(limpet.sleep_async(60))
            group.create_task(limpet.sleep_async(120))
            if bad:
                group.create_task(fail())
        return "done"

    good, bad = report.push(False), report.push(True)
    ground.work(report)
    assert good.result().value == "done"
    assert bad.result().state == "failed"
    assert "unhandled errors in a TaskGroup" in (bad.result().error or "")
    assert ground.kinds("suspended", "done", "failed") == ["suspended", "failed", "suspended", "done"]


async def _double(n: int) -> int:
    await asyncio.sleep(0.01 * (3 - n))
    return 2 * n


def test_steps_are_made_by_the_handlers_own_coroutine_and_awaited_anywhere(ground: Ground) -> None:
    """Made in a coroutine beside it they would be numbered as they come: two of one name could swap their values."""

    async def limited(gate: asyncio.Semaphore, step: Any) -> int:
        async with gate:
            return int(await step)

    async def beside(n: int) -> int:
        await asyncio.sleep(0.01 * (3 - n))
        return await limpet.step_async(_double, n)

    @ground.fleet.task("report", max_attempts=1)
    async def report(where: str) -> list[int]:
        gate = asyncio.Semaphore(2)
        match where:
            case "own":
                chain = await limpet.step_async(_double, await limpet.step_async(_double, 1))
                steps = [limited(gate, limpet.step_async(_double, n)) for n in range(3)]
                timed = await asyncio.wait_for(limpet.step_async(_double, 3), 60)
                return [chain, *await asyncio.gather(*steps), timed, limpet.step(ground.note, 9)]
            case "coroutine":
                return await asyncio.gather(*(beside(n) for n in range(3)))
            case "task":
                return [await asyncio.create_task(beside(1))]
            case "callback":
                done = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().call_soon(lambda: done.set_result(_said(limpet.version, "x")))
                raise Fail(await done)
            case "push":
                limpet.version("durable from here on")
                return [len(await asyncio.create_task(_awaited(report.queue.push_async, {"where": "own"})))]
            case _:
                return [await asyncio.to_thread(limpet.step, ground.note, 1)]

    own, *elsewhere = [report.push(where) for where in ("own", "coroutine", "task", "callback", "push", "thread")]
    ground.work(report)
    assert own.result().value == [4, 0, 2, 4, 6, 9]
    for pushed in elsewhere:
        error = pushed.result().error or ""
        assert "a step is made by the handler's own " in error, error
    assert "own coroutine: the number of one that is made in another coroutine" in (elsewhere[0].result().error or "")
    assert "(hint: call limpet.step_async(f, x), or push_async, in the handler itself" in error
    assert "own thread: the number of one that is made in another thread depends on timing" in error
    assert ground.ran == [9]


def _said(call: Callable[..., object], *args: Any) -> str:
    """What a call is refused with."""
    with pytest.raises(Invalid) as raised:
        call(*args)
    return str(raised.value)


async def _awaited(call: Callable[..., Any], *args: Any) -> Any:
    return await call(*args)


def test_a_loop_of_a_plain_handler_has_one_coroutine_with_steps(ground: Ground) -> None:
    async def flow(n: int) -> int:
        return await limpet.step_async(_double, await limpet.step_async(_double, n))

    async def beside() -> list[int]:
        return [await limpet.step_async(_double, 1), *(await asyncio.gather(flow(2), flow(3)))]

    @ground.fleet.task("report", max_attempts=1)
    def report(good: bool) -> list[int]:
        one = limpet.step(ground.note, 1)
        return [one, asyncio.run(flow(2)), asyncio.run(flow(3))] if good else asyncio.run(beside())

    good, bad = report.push(True), report.push(False)
    ground.work(report)
    assert good.result().value == [1, 8, 12]
    assert "a step is made by the handler's own coroutine" in (bad.result().error or "")


def test_a_thread_that_knows_the_task_may_make_no_step_of_it(ground: Ground) -> None:
    """One that knows no task, such as that of an executor, makes a plain call: nobody can tell whose it is."""

    @ground.fleet.task("report", max_attempts=1)
    def report(knows: bool) -> int:
        limpet.step(ground.note, 0, name="first")
        with ThreadPoolExecutor(1) as pool:
            call: Callable[[], Any] = partial(limpet.step, ground.note, 1)
            call = partial(contextvars.copy_context().run, call) if knows else call
            return int(pool.submit(call).result())

    plain, refused = report.push(False), report.push(True)
    ground.work(report)
    assert plain.result().value == 1
    assert "a step is made by the handler's own thread" in (refused.result().error or "")
    assert ground.ran == [0, 1, 0]


# ---- steps that are under way ----


def _suspended() -> bool:
    steps = RUNNING.get()
    assert steps is not None
    return steps.suspended is not None


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "thread"])
@pytest.mark.parametrize("group", [False, True], ids=["gather", "group"])
def test_a_step_that_has_begun_is_recorded_before_the_task_is_suspended(
    ground: Ground, group: bool, plain: bool
) -> None:
    """A suspension beside it must not leave it half-way: it would be begun again."""
    begun = asyncio.Event() if not plain else threading.Event()

    async def charge() -> str:
        ground.note("begun")
        begun.set()
        while not _suspended() and ground.ran == ["begun"]:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        return ground.note("charged")  # type: ignore[no-any-return]

    def charge_in_a_thread() -> str:
        ground.note("begun")
        begun.set()
        while not _suspended() and ground.ran == ["begun"]:
            time.sleep(0.001)
        return ground.note("charged")  # type: ignore[no-any-return]

    @ground.fleet.task("report", max_attempts=1)
    async def report() -> Any:
        charging = limpet.step_async(charge_in_a_thread if plain else charge, name="charge")
        waiting_ = limpet.sleep_async(60)

        async def wait() -> None:
            while not begun.is_set():
                await asyncio.sleep(0)
            await waiting_

        if group:
            async with asyncio.TaskGroup() as tasks:
                paid = tasks.create_task(charging)
                tasks.create_task(wait())
            return paid.result()
        return (await asyncio.gather(charging, wait()))[0]

    pushed = report.push()
    ground.work(report)
    assert pushed.result().value == "charged"
    assert ground.ran == ["begun", "charged"]
    assert ground.kinds("suspended", "done", "retry", "failed") == ["suspended", "done"]


def test_a_step_that_has_not_begun_when_the_task_is_suspended_does_not_begin(ground: Ground) -> None:
    @ground.fleet.task("report", max_attempts=1)
    async def report() -> Any:
        later = limpet.step_async(ground.note, "after", name="note")
        try:
            await limpet.sleep_async(60)
        finally:
            await later

    pushed = report.push()
    ground.work(report, until_empty=False)
    assert (ground.ran, ground.kinds("suspended")) == ([], ["suspended"])
    ground.work(report)
    assert (pushed.result().state, ground.ran) == ("completed", ["after"])


def test_a_step_beside_one_that_fails_is_cancelled_before_the_verdict(ground: Ground) -> None:
    """It records nothing, and is begun again: only a suspension waits for it."""
    ended: list[str] = []

    async def charge() -> str:
        task = limpet.current_task()
        ground.note(task.attempt)
        try:
            await asyncio.sleep(60 if task.attempt == 1 else 0)
        finally:
            ended.append(f"ended before the verdict: {ground.kinds('retry')}")
        return "charged"

    async def fail() -> str:
        task = limpet.current_task()
        while not ground.ran:
            await asyncio.sleep(0)
        if task.attempt == 1:
            raise RuntimeError("no money")
        return "paid"

    @ground.fleet.task("report", max_attempts=2, backoff_s=0.0)
    async def report() -> Any:
        return await asyncio.gather(limpet.step_async(charge), limpet.step_async(fail))

    pushed = report.push()
    ground.work(report)
    assert (pushed.result().value, ground.ran) == (["charged", "paid"], [1, 2])
    assert ended[0] == "ended before the verdict: []"


def test_a_plain_step_in_its_thread_is_recorded_although_its_coroutine_is_cancelled(ground: Ground) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    def charge() -> str:
        begun.set()
        assert cancelled.wait(30)
        return ground.note("charged")  # type: ignore[no-any-return]

    @ground.fleet.task("report", max_attempts=2, backoff_s=0.0)
    async def report() -> Any:
        charging = asyncio.create_task(limpet.step_async(charge))
        task = limpet.current_task()
        if task.attempt == 1:
            while not begun.is_set():
                await asyncio.sleep(0)
            charging.cancel()
            asyncio.get_running_loop().call_soon(cancelled.set)
        return await charging

    pushed = report.push()
    ground.work(report)
    assert (pushed.result().value, ground.ran) == ("charged", ["charged"])
    assert ground.kinds("retry", "done") == ["retry", "done"], "the handler's coroutine was cancelled all the same"


@pytest.mark.parametrize("leaves", [SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit])
@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "thread"])
def test_whatever_a_step_raises_reaches_its_handler(ground: Ground, plain: bool, leaves: type[BaseException]) -> None:
    async def coroutine() -> None:
        raise leaves("no money")

    def thread() -> None:
        raise leaves("no money")

    @ground.fleet.task("report", max_attempts=1)
    async def report() -> str:
        try:
            await limpet.step_async(thread if plain else coroutine, name="charge")
        except BaseException as error:  # noqa: BLE001
            return repr(error)
        return "nothing"

    pushed = report.push()
    ground.work(report)
    assert (pushed.result().value or "").startswith(("RuntimeError", leaves.__name__))


# ---- what a step was called with ----


def test_the_same_calls_in_another_order_are_another_program(ground: Ground) -> None:
    runs: list[int] = []

    @ground.fleet.task("report", backoff_s=0.0, max_attempts=2)
    def report() -> list[Any]:
        runs.append(1)
        names = ["ann", "bob"] if len(runs) == 1 else ["bob", "ann"]
        charged = [limpet.step(ground.note, name, currency="eur") for name in names[:2]]
        if len(runs) == 1:
            raise RuntimeError("it fails after its steps")
        return charged

    def note(name: str, *, currency: str) -> str:
        ground.ran.append(name)
        return f"charged {name}"

    ground.note = note  # type: ignore[method-assign, assignment]
    pushed = report.push()
    ground.work(report)
    assert re.match(
        r"waits for code that fits: step 0 is step '.*note' with arguments of digest [0-9a-f]{8}, the code asks for "
        r"step '.*note' with [0-9a-f]{8}, which is step 1",
        _reason(pushed),
    )
    assert ground.ran == ["ann", "bob"], "nothing was called again"


def test_the_same_pushes_in_another_order_are_another_program(ground: Ground) -> None:
    raw = ground.fleet.queue("raw")
    runs: list[int] = []

    @ground.fleet.task("report", durable=True, backoff_s=0.0, max_attempts=2)
    def report(many: bool) -> None:
        runs.append(1)
        for n in (1, 2) if len(runs) == 1 else (2, 1):
            if many:
                raw.push_many([{"n": n, "of": ["a", "b"]}])
            else:
                raw.push({"n": n, "of": ["a", "b"]})
        raise RuntimeError("it fails after its pushes")

    for many in (False, True):
        runs.clear()
        pushed = report.push(many)
        ground.work(report)
        assert "step 0 is push 'raw' with arguments of digest" in _reason(pushed)
    assert raw.stats().pending == 4


def test_arguments_that_have_no_stable_form_do_not_count(ground: Ground) -> None:
    class Client:
        """Its address differs in each attempt."""

    @dataclass
    class Order:
        n: int
        client: Any

    def charge(client: Any, order: Order, *, tags: Any) -> int:
        ground.ran.append(order.n)
        return order.n

    @ground.fleet.task("report", backoff_s=0.0)
    def report() -> int:
        task = limpet.current_task()
        order = Order(7, Client())
        one = limpet.step(charge, Client(), order, tags=threading.Lock())
        two = limpet.step(partial(charge, Client(), tags={"b", "a"}), order, name="again")
        if task.attempt == 1:
            raise RuntimeError("again")
        return one + two

    pushed = report.push()
    ground.work(report)
    assert (pushed.result().value, ground.ran) == (14, [7, 7])


def test_a_record_without_a_digest_is_accepted_as_it_is(ground: Ground) -> None:
    """As versions before the digest wrote it."""

    @ground.fleet.task("report", backoff_s=0.0)
    def report() -> Any:
        task = limpet.current_task()
        value = limpet.step(ground.note, "any", name="first")
        if task.attempt == 1:
            [blob] = _storage(ground, "report").step_blobs(task.id, 0).values()
            assert isinstance(blob, Blob)
            record = msgspec.json.decode(blob.data)
            assert len(record.pop("sha256")) == 64
            [key] = ground.left()
            ground.fleet.store.put(Key(key), msgspec.json.encode(record | {"value": "older"}))
            raise RuntimeError("again")
        return value

    pushed = report.push()
    ground.work(report)
    assert (pushed.result().value, ground.ran) == ("older", ["any"])


def _reason(pushed: Any) -> str:
    """What a suspended task waits for."""
    facts = pushed.id.queue.describe(pushed.id)
    assert facts["state"] == "suspended"
    return str(facts["reason"])


def _storage(ground: Ground, queue: str) -> Storage:
    found: Any = ground.fleet.queue(queue)
    assert isinstance(found.storage, Storage)
    return found.storage


@pytest.mark.parametrize("coroutine", [False, True])
@pytest.mark.parametrize("wrong", ["type", "large", "object", "coroutine", "post"])
def test_a_value_that_cannot_be_recorded_is_final(ground: Ground, wrong: str, coroutine: bool) -> None:
    """The function has run: another attempt would charge again."""

    @dataclass
    class Paid:
        cents: int

        def __post_init__(self) -> None:
            if self.cents == 13:
                raise LookupError("no such cents")

    def charge() -> Any:
        ground.ran.append("charged")
        values = {"type": "many", "large": "x" * 300_000, "object": threading.Lock(), "post": {"cents": 13}}
        return values[wrong] if wrong in values else _double(1)

    charge.__annotations__["return"] = Paid if wrong == "post" else int if wrong == "type" else Any

    @ground.fleet.task("sync", max_attempts=5, backoff_s=0.0)
    def sync() -> Any:
        return limpet.step(charge)

    @ground.fleet.task("async", max_attempts=5, backoff_s=0.0)
    async def async_() -> Any:
        if wrong == "coroutine":
            raise Fail("it is awaited: 'charge' returned")
        return await limpet.step_async(charge)

    task: Any = async_ if coroutine else sync
    pushed = task.push()
    ground.work(task)
    result = pushed.result()
    assert (result.state, result.attempts) == ("failed", 1)
    assert ground.ran == ([] if coroutine and wrong == "coroutine" else ["charged"])
    assert "'charge' returned" in (result.error or "") or "no such cents" in (result.error or "")


def test_a_parameter_called_name_is_not_taken_for_the_name_of_the_step(ground: Ground) -> None:
    def greet(name: str = "nobody", *, loud: bool = False) -> str:
        return f"hello {name}"

    @ground.fleet.task("report", max_attempts=1)
    def report(wrong: bool) -> Any:
        if wrong:
            return limpet.step(greet, name="ann")
        plain = limpet.step(greet, "ann", name="greet ann")
        bound = limpet.step(partial(greet, name="bob"), name="greet bob")
        return [plain, bound, limpet.step(ground.note, "x", name="note"), limpet.step(len, "abc", name="len")]

    good, bad = report.push(False), report.push(True)
    ground.work(report)
    assert good.result().value == ["hello ann", "hello bob", "x", 3]
    assert "`name` names the step, and the function has a parameter `name`, too" in (bad.result().error or "")
    assert "functools.partial(f, name=...)" in (bad.result().error or "")


# ---- a worker that sleeps longer than its lease lasts ----


def _made(queue: Any, task: Any, function: Callable[[], Any]) -> Any:
    """One step of a task, as its handler makes it."""
    token = RUNNING.set(TaskSteps(queue, task))
    try:
        return limpet.step(function, name="toss")
    finally:
        RUNNING.reset(token)


def test_a_worker_that_slept_until_its_task_had_ended_gets_no_value_that_nobody_else_saw(world: World) -> None:
    sleeper, other = world.process(), world.process()
    sleeper.queue.push({}, id="x")
    claim, task = sleeper.start()

    def sleep() -> str:
        claim._renewer.remove(claim)  # it sleeps, and its heartbeat with it
        with other.take() as late:
            [again] = late
            assert contextvars.Context().run(_made, other.queue, again, lambda: "heads") == "heads"
            again.done("heads")
        assert [name for name in world.names() if "steps/" in name] == []
        return "tails"

    with pytest.raises(LeaseLost, match="ran out, and is no longer ours"):
        _made(sleeper.queue, task, sleep)
    assert task.lost


def test_a_worker_whose_entry_another_one_has_taken_gets_no_value(world: World) -> None:
    """The other one has not come as far as this step: its value counts, or this one's, but not both."""
    sleeper, other = world.process(), world.process()
    sleeper.queue.push({}, id="x")
    claim, task = sleeper.start()
    late: list[Any] = []

    def sleep() -> str:
        claim._renewer.remove(claim)
        late.append(other.take())
        return "tails"

    with pytest.raises(LeaseLost, match="ran out, and is no longer ours"):
        _made(sleeper.queue, task, sleep)
    [again] = late[0]
    assert contextvars.Context().run(_made, other.queue, again, lambda: "heads") == "tails", "the first record counts"


def test_a_worker_that_slept_and_still_has_its_lease_goes_on(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    claim, task = process.start()

    def sleep(seconds: float) -> str:
        claim._renewer.remove(claim)
        process.runtime.sleep(seconds)
        return "heads"

    costs = []
    for seconds in (TTL_S / 4, TTL_S * 0.9, 10 * TTL_S):
        token = RUNNING.set(TaskSteps(process.queue, task))
        log_before = len(process.store.log)
        assert limpet.step(sleep, seconds, name="toss") == "heads"
        costs.append([line.split()[0] for line in process.store.log[log_before:] if "clock/" not in line])
        for key in [name for name in world.names() if "steps/" in name]:
            world.delete(key)
        RUNNING.reset(token)
    assert costs == [["put"], ["put", "get"], ["get", "put", "get"]], "who did not sleep asks for nothing more"


def test_a_gather_must_ask_for_the_same_tasks_in_the_same_order(ground: Ground) -> None:
    @ground.fleet.task("crawl")
    def crawl(n: int) -> int:
        return n

    runs: list[int] = []

    @ground.fleet.task("report", durable=True, backoff_s=0.0)
    def report() -> list[Any]:
        runs.append(1)
        tasks = crawl.push_many([(n,) for n in range(3)])
        ends = limpet.gather(tasks if len(runs) < 3 else tasks[::-1])
        if len(runs) == 2:
            raise RuntimeError("again")
        return [end.value for end in ends]

    pushed = report.push()
    ground.work(report, crawl)
    assert "step 1 gathered other tasks, or the same ones in another order" in _reason(pushed)


@pytest.mark.parametrize("batch", [False, True])
def test_a_task_cannot_wait_for_its_own_entry(ground: Ground, batch: bool) -> None:
    ids: list[Any] = []

    @ground.fleet.task("report", max_attempts=1)
    def report(n: int) -> None:
        if n == 0:
            limpet.gather(ids[-1:])

    ids += report.push_many([(0,), (1,)]) if batch else [report.push(0).id]
    ground.work(report)
    error = report.queue.result(ids[0]).error or ""
    assert "a task cannot wait for itself, or for a task of its own batch" in error


def test_a_step_of_a_coroutine_may_be_anything_that_is_awaited(ground: Ground) -> None:
    async def double(n: int) -> int:
        return 2 * n

    class Client:
        async def __call__(self, n: int) -> int:
            return 3 * n

    @ground.fleet.task("report", max_attempts=1)
    async def report() -> list[int]:
        return [
            await limpet.step_async(double, 1),
            await limpet.step_async(lambda: double(2), name="two"),
            await limpet.step_async(Client(), 3, name="three"),
            int(await limpet.step_async(fetch, "a.com") is not None),
        ]

    pushed = report.push()
    ground.work(report)
    assert pushed.result().value == [2, 4, 9, 1]


def test_payloads_that_ask_for_steps_are_made_before_the_push_is_numbered(ground: Ground) -> None:
    raw = ground.fleet.queue("raw")

    @ground.fleet.task("report", durable=True, backoff_s=0.0)
    def report() -> int:
        task = limpet.current_task()
        pushed = raw.push_many({"n": limpet.step(ground.note, n, name=f"note {n}")} for n in range(3))
        limpet.step(ground.note, "end", name="end")
        if task.attempt == 1:
            raise RuntimeError("again")
        return len(pushed)

    pushed = report.push()
    ground.work(report)
    assert pushed.result().value == 3
    assert ground.ran == [0, 1, 2, "end"]


def test_a_large_gather_fails_when_a_result_is_gone(ground: Ground) -> None:
    """Results that are too large for the record are asked for again. None of them may turn into nothing."""

    @ground.fleet.task("crawl", retention_s=7 * 86400.0)
    def crawl(n: int) -> str:
        return "x" * 100_000

    @ground.fleet.task("report", durable=True)
    def report() -> int:
        ends = limpet.gather(crawl.push_many([(n,) for n in range(8)]))
        limpet.sleep(10 * 86400)
        return sum(len(end.unwrap()) for end in ends)

    pushed = report.push()
    ground.work(report, crawl, until_empty=False)
    ground.runtime.sleep(60)
    ground.work(report, until_empty=False)
    ground.runtime.sleep(9 * 86400)
    crawl.queue.sweep()  # type: ignore[attr-defined]
    ground.work(report)
    assert "whose result is gone: a receipt lasts for retention_s" in (pushed.result().error or "")


def test_the_record_of_a_gather_always_fits() -> None:
    bad = [Result(f"task-{n}", "failed", error="\0" * 2000, attempts=3) for n in range(10_000)]
    data = gathered_bytes(bad, "0" * 64)
    assert len(data) <= 1024 * 1024
    assert msgspec.json.decode(data, type=GatheredStep).tasks[0].state == "failed"
    few = msgspec.json.decode(gathered_bytes(bad[:20], "0" * 64), type=GatheredStep)
    assert (few.values, few.tasks[0].error) == (True, "\0" * 2000)


def test_one_push_of_a_durable_task_has_a_limit_before_anything_is_pushed(ground: Ground) -> None:
    @ground.fleet.task("crawl")
    def crawl(n: int) -> int:
        return n

    @ground.fleet.task("report", durable=True, max_attempts=1)
    def report() -> None:
        crawl.push_many([(n,) for n in range(20_001)], batch=1)

    pushed = report.push()
    ground.work(report)
    assert "makes at most 20000 entries, not 20001" in (pushed.result().error or "")
    assert crawl.queue.stats().pending == 0


def test_a_task_of_another_store_wakes_nobody_there(ground: Ground) -> None:
    other = limpet.open("memory://", runtime=ground.runtime)

    @other.task("crawl")
    def crawl(n: int) -> int:
        return n

    @ground.fleet.task("report", durable=True)
    def report() -> list[Any]:
        return [end.value for end in limpet.gather([*crawl.push_many([(1,), (2,)]), crawl.push(3)])]

    pushed = report.push()
    ground.work(report, until_empty=False)
    ground.work(crawl)
    ground.work(report)
    assert pushed.result().value == [1, 2, 3]
    assert [stat.key for stat in other.store.list("queues/report")] == [], "there is no such queue"


def test_an_id_that_is_used_again_after_its_receipt_pushes_anew(ground: Ground) -> None:
    """The receipts of what it pushed before may last longer than its own."""

    @ground.fleet.task("crawl", retention_s=300 * 86400.0)
    def crawl(day: int) -> int:
        return day

    @ground.fleet.task("report", durable=True, retention_s=7 * 86400.0)
    def report(day: int) -> list[Any]:
        return [end.value for end in limpet.gather([crawl.push(day), *crawl.push_many([(day,)])])]

    for day in (1, 9):
        pushed = report.using(id="weekly").push(day)
        assert pushed.created
        ground.work(report, crawl)
        assert pushed.result().value == [day, day]
        ground.runtime.sleep(8 * 86400)
        report.queue.sweep()  # type: ignore[attr-defined]


def test_a_late_push_of_a_first_attempt_runs_nothing_again(ground: Ground) -> None:
    """A first attempt pushes without a look for receipts. If it was paused meanwhile, the claim looks for them."""

    @ground.fleet.task("crawl")
    def crawl(n: int) -> None:
        ground.note(n)

    pusher = crawl.queue._pusher  # type: ignore[attr-defined]
    for _ in range(2):
        pusher.push(b'{"n":1}', id=None, delay_s=0.0, name=derived("push", "report", 1), fresh=True)
        pusher.push_many([b'{"n":2}'], batch=1, name=derived("push", "report", 2), fresh=True)
        ground.work(crawl)
    assert ground.ran == [1, 2]
    assert crawl.queue.stats().pending == 0
    pusher.push_many([b'{"n":2}'], batch=1, name=derived("push", "report", 2))
    assert crawl.queue.stats().pending == 0, "a later attempt takes it back at once"


def test_steps_of_a_failed_task_go_with_its_receipt(ground: Ground) -> None:
    """Its id may be used again from then on: the new task must not find them."""
    report, _ = _failed(ground)
    ground.runtime.sleep(31 * 86400)
    report.queue.sweep()
    assert ground.left() == []


def test_a_cancelled_batch_keeps_the_steps_of_its_failed_tasks(ground: Ground) -> None:
    broken = [True]

    @ground.fleet.task("report", max_attempts=1)
    def report(n: int) -> int:
        value: int = limpet.step(ground.note, n, name="note")
        if n == 0 and broken:
            raise Fail("no money")
        limpet.sleep(3600)
        return value

    ids = report.push_many([(0,), (1,)])
    ground.work(report, until_empty=False)
    assert report.queue.cancel(ids[0].rpartition(".")[0])
    assert [key.rsplit("/", 1)[1] for key in ground.left()] == ["0.0000.json"]
    broken.clear()
    [again] = report.queue.retry(ids[0])
    ground.work(report)
    assert report.queue.result(again).value == 0
    assert (ground.ran, ground.left()) == ([0, 1], [])


def test_a_batch_that_is_cancelled_under_its_worker_keeps_all_steps(ground: Ground) -> None:
    """H10: the worker has put the receipt of a failed task that no renewal names yet, and reads the steps of others."""
    began: list[int] = []

    @ground.fleet.task("report", max_attempts=1)
    def report(n: int) -> None:
        began.append(n)
        if began == [0, 1, 0, 1]:
            assert report.queue.cancel(entry)
            queue.sweep()
        limpet.step(ground.note, n, name="note")
        limpet.sleep(3600)
        if n == 0 and not began[4:]:
            raise Fail("no money")

    queue: Any = report.queue
    ids = report.push_many([(0,), (1,)])
    entry = ids[0].rpartition(".")[0]
    ground.work(report, until_empty=False)
    ground.runtime.sleep(4000)
    ground.work(report, until_empty=False)
    assert (began, ground.ran) == ([0, 1, 0, 1], [0, 1])
    assert report.queue.result(ids[0]).error == "no money"
    ground.runtime.sleep(700)
    queue.sweep()
    assert {key.rsplit("/", 1)[1][0] for key in ground.left()} == {"0"}, "the other one has ended"
    [again] = report.queue.retry(ids[0])
    ground.work(report)
    assert report.queue.result(again).ok
    assert (ground.ran, ground.left()) == ([0, 1], [])


@pytest.mark.parametrize("batch", [False, True])
def test_a_retry_keeps_the_steps_of_a_task_whose_lease_could_not_be_read(ground: Ground, batch: bool) -> None:
    @ground.fleet.task("report")
    def report(n: int) -> int:
        value: int = limpet.step(ground.note, n, name="note")
        limpet.sleep(3600)
        return value

    ids = [*report.push_many([(0,), (1,)])] if batch else [report.push(0).id]
    ground.work(report, until_empty=False)
    queue: Any = report.queue
    ground.fleet.store.put(queue.storage.keys.lease(ids[0].rpartition(".")[0] or ids[0]), b"{rotten")
    ground.runtime.sleep(60)
    ground.work(report, until_empty=False)
    assert queue.result(ids[0]).state == "failed"
    ground.runtime.sleep(3600)
    queue.sweep()
    again = queue.retry(all=True)
    ground.work(report)
    assert sorted(queue.result(id_).value for id_ in again) == [*range(len(ids))]
    assert (ground.ran, ground.left()) == ([*range(len(ids))], [])


def test_a_retry_keeps_the_steps_of_a_task_whose_workers_died_before_a_heartbeat(ground: Ground) -> None:
    """Its lease knows of no step: the receipt says that a retry is to look."""
    dies = [True]

    class Killed(BaseException):
        pass

    @ground.fleet.task("report", max_attempts=1, ttl_s=6.0)
    def report() -> str:
        value: str = limpet.step(ground.note, "reserved", name="reserve")
        if dies:
            raise Killed
        return value

    report.push()
    queue: Any = report.queue
    claim = queue.claim()
    [task] = claim
    token = RUNNING.set(TaskSteps(queue, task))
    with contextlib.suppress(Killed):
        report(*())
    RUNNING.reset(token)
    queue._renewer.remove(claim)  # it is dead: no heartbeat, no verdict
    dies.clear()
    ground.runtime.sleep(60)
    ground.work(report, until_empty=False)
    ground.runtime.sleep(60)
    ground.work(report)
    [again] = queue.retry(all=True)
    ground.work(report)
    assert queue.result(again).value == "reserved"
    assert (ground.ran, ground.left()) == (["reserved"], [])


def test_the_steps_go_after_the_task_and_before_its_lease(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []
    store: Any = ground.fleet.queue("report").storage.store  # type: ignore[attr-defined]
    delete, delete_many = store.delete, store.delete_many

    def one(key: Any) -> None:
        gone.append(key)
        delete(key)

    def many(keys: Any) -> Any:
        gone.extend(keys := [*keys])
        return delete_many(keys)

    monkeypatch.setattr(store, "delete", one)
    monkeypatch.setattr(store, "delete_many", many)

    @ground.fleet.task("report")
    def report() -> None:
        limpet.step(ground.note, 1, name="note")

    report.push()
    ground.work(report)
    names = [key.rsplit("/", 1)[1] for key in dict.fromkeys(gone)]
    assert names == ["task.json", "0.0000.json", "lease.json"]


def test_what_becomes_pending_while_it_is_looked_for_is_found(ground: Ground) -> None:
    """A sweep and a signal look for it in `pending/`, then in `scheduled/`. It moves from the second to the first."""

    @ground.fleet.task("report")
    def report() -> Any:
        return limpet.wait_signal("approved", timeout_s=1, default="nobody")

    queue: Any = report.queue
    sweeper = queue._sweeper
    scheduled = queue.scheduled

    def late(look: Callable[[str], Any]) -> Callable[[str], Any]:
        def looked(entry: str) -> Any:
            ground.runtime.sleep(90_000)
            queue._pusher.promote(now=ground.fleet.store.now(), keys=scheduled(entry))
            return look(entry)

        return looked

    first = report.using(delay_s=86400).push()
    queue.scheduled = late(scheduled)
    assert limpet.signal(first, "approved", "ann")
    queue.scheduled = scheduled
    second = report.using(delay_s=86400).push()
    limpet.signal(second, "approved", "bob")
    ground.runtime.sleep(1200)
    sweeper._keys_of_scheduled = late(sweeper._keys_of_scheduled)
    queue.sweep()
    ground.work(report)
    assert (first.result().value, second.result().value) == ("ann", "bob")


def test_a_task_that_waited_for_a_delayed_one_is_looked_at_by_one_request_afterwards(ground: Ground) -> None:
    @ground.fleet.task("crawl")
    def crawl() -> str:
        return "good"

    @ground.fleet.task("report", durable=True)
    def report() -> Any:
        [end] = limpet.gather([crawl.using(delay_s=600).push()])
        return end.value

    pushed = report.push()
    ground.work(report, until_empty=False)
    for _ in range(20):
        ground.runtime.sleep(60)
        ground.work(report, until_empty=False)
    assert crawl.queue.claim().__class__.__name__ == "EntryClaim", "it is pending now, and runs elsewhere"
    claims = len(ground.kinds("started"))
    for _ in range(20):
        ground.runtime.sleep(2)
        ground.work(report, until_empty=False)
    assert len(ground.kinds("started")) - claims <= 1
    assert pushed.result().state == "pending"


def test_outside_of_a_task_steps_are_plain_calls() -> None:
    assert limpet.step(fetch, "a.com") == Page("a.com", 200)
    assert limpet.version("anything")
    with pytest.raises(Invalid, match="only a task can wait"):
        limpet.wait_signal("x")
    with pytest.raises(Invalid, match="has no name"):
        limpet.step(lambda: 1)


def test_nested_steps_are_refused(ground: Ground) -> None:
    @ground.fleet.task("report", max_attempts=1)
    def report() -> None:
        limpet.step(lambda: limpet.step(ground.note, 1), name="outer")

    pushed = report.push()
    ground.work(report)
    assert "a step inside of a step" in (pushed.result().error or "")


def test_push_many_with_an_id_is_made_once(ground: Ground) -> None:
    queue = ground.fleet.queue("report")
    first = queue.push_many([{"n": n} for n in range(5)], id="today", batch=2)
    assert queue.push_many([{"n": n} for n in range(5)], id="today", batch=2) == first
    assert queue.stats().pending == 5
    while claim := queue.claim():
        with claim:
            for task in claim:
                task.done(task.payload["n"])
    assert queue.push_many([{"n": n} for n in range(5)], id="today", batch=2) == first, "it stays so when it has ended"
    assert queue.stats().pending == 0
    assert [each.value for each in queue.results(first)] == [0, 1, 2, 3, 4]


def test_an_id_of_many_tasks_is_used_for_one_number_of_tasks_and_one_batch_size(ground: Ground) -> None:
    queue = ground.fleet.queue("report")
    first = queue.push_many([{"n": n} for n in range(5)], id="today", batch=2)
    for tasks, batch in ((5, 3), (4, 2), (6, 2), (5, 1), (5, 100)):
        with pytest.raises(Conflict, match="'today' was used for a push of 5 tasks in 3 batches"):
            queue.push_many([{"n": n} for n in range(tasks)], id="today", batch=batch)
    with pytest.raises(Conflict):
        queue.push_many([{"n": "x" * 200_000} for _ in range(42)], id="today", batch=100)
    assert queue.push_many([], id="today") == []
    assert queue.stats().pending == 5
    assert queue.push_many([{"other": n} for n in range(5)], id="today", batch=2) == first, "as a single id"
    assert queue.stats().pending == 5
    assert len(queue.push_many([{"n": 1}], id="tomorrow")) == 1


def test_what_many_tasks_with_an_id_cost(ground: Ground) -> None:
    queue = ground.fleet.queue("report")
    payloads = [{"n": n} for n in range(5)]
    queue.push({})
    assert _cost(ground, lambda: queue.push_many(payloads, batch=2)) == {"put": 3}
    assert _cost(ground, lambda: queue.push_many(payloads, batch=2, id="x")) == {"put": 4, "head": 6}


def test_the_shape_of_a_push_goes_with_the_receipts(ground: Ground) -> None:
    @ground.fleet.task("report", retention_s=7 * 86400.0)
    def report(n: int) -> int:
        return n

    report.queue.push_many([{"n": 1}, {"n": 2}], id="today")
    ground.work(report)
    queue: Any = report.queue
    ground.runtime.sleep(6 * 86400)
    queue.sweep()
    with pytest.raises(Conflict):
        queue.push_many([{"n": 1}], id="today")
    ground.runtime.sleep(2 * 86400)
    queue.sweep()
    assert [stat.key for stat in ground.fleet.store.list("queues/report") if "sweep" not in stat.key] == []
    assert len(queue.push_many([{"n": 1}], id="today")) == 1


# ---- costs ----


def _cost(ground: Ground, act: Callable[[], object]) -> dict[str, int]:
    before = ground.fleet.meter.snapshot()
    act()
    return dict((ground.fleet.meter.snapshot() - before).requests)


def test_what_steps_cost(ground: Ground) -> None:
    costs: dict[str, dict[str, int]] = {}

    @ground.fleet.task("report", backoff_s=0.0)
    def report() -> None:
        task = limpet.current_task()
        for n in range(5):
            if task.attempt == 1:
                costs[f"step {n}"] = _cost(ground, lambda: limpet.step(ground.note, 1, name="note"))
            else:
                costs[f"replay {n}"] = _cost(ground, lambda: limpet.step(ground.note, 1, name="note"))
        if task.attempt == 1:
            raise RuntimeError("again")

    report.push()
    ground.work(report)
    assert [costs[f"step {n}"] for n in range(5)] == [{"put": 1}] * 5
    assert costs["replay 0"] == {"list": 1, "get": 5}
    assert [costs[f"replay {n}"] for n in range(1, 5)] == [{}] * 4


def test_what_a_gather_costs(ground: Ground) -> None:
    looks: list[dict[str, int]] = []

    @ground.fleet.task("crawl")
    def crawl(n: int) -> int:
        return n

    @ground.fleet.task("report", durable=True)
    def report() -> int:
        handles = crawl.push_many([(n,) for n in range(40)], batch=10)
        before = ground.fleet.meter.snapshot()
        try:
            return len(limpet.gather(handles))
        finally:
            looks.append(dict((ground.fleet.meter.snapshot() - before).requests))

    pushed = report.push()
    ground.work(report, crawl)
    assert pushed.result().value == 40
    assert looks == [{"head": 1}, {"head": 1, "get": 4, "put": 1}]


def test_a_queue_without_durable_tasks_costs_what_it_did(world: World) -> None:
    """A sweep lists three times, as in version 0.1; a task whose workers died is given up without a listing."""
    process = world.process(max_attempts=1)
    assert process.cost(process.queue._sweeper.sweep)["list"] == 3
    process.queue.push({}, id="x")
    process.queue.push({}, id="later", delay_s=1000.0)
    assert process.cost(process.queue._sweeper.sweep)["list"] == 7, "four of them look for receipts"
    world.killed(max_attempts=1)
    world.time.sleep(600)
    other = world.process(max_attempts=1)
    requests = other.cost(lambda: other.queue.claim(wait_s=300.0))
    assert world.receipt("failed/x").state == "failed"
    lists = [line for line in other.store.log if line.startswith("list") and "steps" in line]
    assert (lists, requests.get("delete")) == ([], 2)
    assert len(process.queue.retry("x")) == 1


# ---- followers ----


def test_a_follower_runs_when_the_task_has_ended(ground: Ground) -> None:
    @ground.fleet.task("crawl", max_attempts=1)
    def crawl(n: int) -> int:
        if n == 3:
            raise RuntimeError("a bad page")
        return n * n

    @ground.fleet.task("report")
    def report(end: Any) -> Any:
        return [end.state, end.value]

    @ground.fleet.task("sum")
    async def total(ends: Any) -> Any:
        return [end.value for end in ends]

    one, other = crawl.push(2).then(report), crawl.push(3).then(report)
    crawl.push_many([(n,) for n in range(6)], batch=4, then=total)
    ground.work(report, total, crawl)
    assert one.result().value == ["completed", 4]
    assert other.result().value == ["failed", None]
    sums: Any = total.queue
    [row] = sums.entries("completed")
    assert sums.result(row["id"]).value == [0, 1, 4, None, 16, 25]


def test_a_follower_needs_a_function_of_one_argument(ground: Ground) -> None:
    @ground.fleet.task("report")
    def report(day: str, end: Any) -> None:
        pass

    with pytest.raises(Invalid, match="is called with results alone"):
        report.queue.push({"day": "x", "end": 1}).then(report)


# ---- what operators see ----


def test_a_suspended_task_is_shown_with_its_reason_and_its_steps(ground: Ground) -> None:
    @ground.fleet.task("report")
    def report() -> None:
        limpet.step(fetch, "a.com")
        limpet.sleep(0)
        limpet.wait_signal("approved", timeout_s=90)

    pushed = report.push()
    ground.work(report, until_empty=False)
    queue: Any = report.queue
    [row] = queue.entries("pending")
    assert (row["state"], row["reason"]) == ("suspended", "waiting for the signal 'approved'")
    assert (row["due_at"] - ground.runtime.wall()).total_seconds() == pytest.approx(90, abs=5)
    facts = queue.describe(pushed.id)
    assert facts is not None
    assert facts["state"] == "suspended"
    assert [(step["number"], step["kind"], step["name"]) for step in facts["steps"]] == [
        (0, "step", "fetch"),
        (1, "sleep", "of 0 s"),
        (2, "timer", "of 90 s for signal approved"),
    ]
    assert facts["steps"][0]["value"] == {"url": "a.com", "status": 200}


def test_a_task_beside_a_suspended_one_is_not_shown_as_suspended(ground: Ground) -> None:
    @ground.fleet.task("report", max_attempts=2, backoff_s=600)
    def report(signal: str) -> None:
        if not signal:
            raise RuntimeError("no paper")
        limpet.wait_signal(signal)

    one, two, three = report.push_many([("ready",), ("",), ("done",)])
    ground.work(report, until_empty=False)
    queue: Any = report.queue
    shown = [queue.describe(str(each)) for each in (one, two, three)]
    assert [each["state"] for each in shown] == ["suspended", "resting", "suspended"]
    assert [each.get("reason") for each in shown] == [
        "waiting for the signal 'ready'",
        None,
        "waiting for the signal 'done'",
    ]


def test_a_failed_durable_task_is_shown_with_its_steps_and_how_long_it_waited(ground: Ground) -> None:
    """A retry keeps them, so an operator must see them; a task that failed without steps costs no request more."""

    @ground.fleet.task("report", max_attempts=1)
    def report(durable: bool) -> None:
        if durable:
            limpet.step(fetch, "a.com")
            limpet.wait_signal("approved")
        raise RuntimeError("no paper")

    pushed = [report.push(True).id, *map(str, report.push_many([(True,), (False,)]))]
    ground.work(report, until_empty=False)
    queue: Any = report.queue
    for each in pushed[:2]:
        queue.signal(each, "approved")
    ground.work(report)
    for each in pushed[:2]:
        facts = queue.describe(each)
        assert (facts["state"], facts["error"]) == ("failed", "RuntimeError: no paper")
        assert [(step["kind"], step["name"]) for step in facts["steps"]] == [("step", "fetch"), ("signal", "approved")]
        waited = (facts["steps"][1]["at"] - facts["steps"][0]["at"]).total_seconds()
        assert facts["steps"][1]["waited_s"] == pytest.approx(waited, abs=0.001)
    facts = queue.describe(pushed[2])
    assert (facts["state"], "steps" in facts) == ("failed", False)


def test_a_worker_that_does_not_know_steps_leaves_a_durable_task_alone(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease has schema 2, and Limpet 0.1 reads up to 1. What that version really does is in decision 0012."""

    @ground.fleet.task("report")
    def report(day: str) -> str:
        return f"{limpet.step(ground.note, day)}{limpet.wait_signal('go')}"

    pushed = report.push("monday")
    ground.work(report, until_empty=False)
    queue: Any = report.queue
    lease = queue.storage.keys.lease(pushed.id)
    assert ground.fleet.store.get(lease).data.startswith(b'{"schema":2,')
    limpet.signal(pushed, "go", "!")

    def old_codec(count: int) -> Any:
        return struct_codec(EntryLease)

    with monkeypatch.context() as patch:
        patch.setattr("limpet.queue.storage.lease_codec", old_codec)
        old = BucketQueue(ground.fleet.store, "report", ground.runtime, policy=Policy())
        ran: list[Any] = []
        other = old.push({"day": "tuesday"})
        Worker([Job(old, ran.append)], ground.runtime, burst=True).run()
        assert ran == [{"day": "tuesday"}]
        assert old.result(other.id).ok
        with pytest.raises(Unsupported, match="has schema 2; this limpet reads up to 1"):
            old.cancel(pushed.id)
    ground.work(report)
    assert pushed.result().value == "monday!"
    assert ground.ran == ["monday"]


def test_a_suspended_task_has_one_state_in_every_view(ground: Ground) -> None:
    """`queue ls`, `queue show`, `limpet sql`, the figures of `limpet top` and the dashboard, and the metrics."""

    @ground.fleet.task("report", backoff_s=1000.0)
    def report(what: str) -> None:
        if what == "sleep":
            limpet.sleep(3600)
        if what == "wait":
            limpet.wait_signal("approved")
        raise RuntimeError("again")

    pushed = {what: report.push(what).id for what in ("sleep", "wait", "fail")}
    both = report.push_many([("sleep",), ("wait",)])
    ground.work(report, until_empty=False)
    found = fleet_sql(ground.fleet, "select id, state, reason, due_at from queues.report")
    rows = {row[0]: dict(zip(("id", "state", "reason", "due_at"), row, strict=True)) for row in found}
    states = {what: rows[id_]["state"] for what, id_ in pushed.items()}
    assert states == {"sleep": "suspended", "wait": "suspended", "fail": "resting"}
    assert rows[pushed["sleep"]]["reason"].startswith("sleeping until")
    assert rows[pushed["wait"]]["reason"] == "waiting for the signal 'approved'"
    assert rows[pushed["fail"]]["reason"] is None
    assert [(rows[id_]["state"], rows[id_]["due_at"] is None) for id_ in both] == [
        ("suspended", False),
        ("suspended", True),
    ]
    queue: Any = report.queue
    shown = {row["id"]: row for row in queue.entries("pending")}
    facts = queue.describe(pushed["sleep"])
    assert shown[pushed["sleep"]]["state"] == facts["state"] == "suspended"
    assert shown[pushed["sleep"]]["due_at"] == facts["due_at"] == rows[pushed["sleep"]]["due_at"]
    assert rows[pushed["wait"]]["due_at"] is None
    assert rows[pushed["fail"]]["due_at"] > ground.runtime.wall()
    [summary] = read_overview(ground.fleet).queues
    assert (summary.suspended, summary.resting) == (4, 5)
    registry = FleetMetrics(ground.fleet).registry()
    figures = {sample.name: sample.value for metric in registry.collect() for sample in metric.samples}
    assert (figures["limpet_queue_suspended"], figures["limpet_queue_resting"]) == (4, 5)


def _nested() -> Page:
    return limpet.step(fetch, "a.com")


def _lock() -> Any:
    return threading.Lock()


def _number() -> int:
    return typing.cast(int, "three")


async def _coroutine() -> int:
    return 1


def _texts() -> Any:
    return ["order-7"]


WRONG: dict[str, tuple[Callable[[], object], str, str]] = {
    "lambda": (lambda: limpet.step(lambda: 1), "a lambda has no name", 'limpet.step(f, name="...")'),
    "called": (lambda: limpet.step(fetch("a.com")), "a step needs a function, not Page(", "do not call it yourself"),  # type: ignore[arg-type]
    "awaited": (lambda: limpet.step(_coroutine()), "a step needs a function, not <coroutine object", "do not call it"),  # type: ignore[arg-type]
    "coroutine": (lambda: limpet.step(_coroutine), "_coroutine is a coroutine function", "limpet.step_async"),
    "nested": (lambda: limpet.step(_nested), "a step inside of a step has no number", "call the function itself"),
    "JSON": (lambda: limpet.step(_lock), "what step '_lock' returned cannot be written as JSON", "use plain values"),
    "type": (lambda: limpet.step(_number), "what step '_number' returned does not fit its annotation", ""),
    "key": (lambda: _current().step_key, "no step runs now", "step_key is for the function that limpet.step calls"),
    "negative": (lambda: limpet.sleep(-1), "a sleep must be between 0 and 31622400 seconds, not -1", "a year"),
    "text": (lambda: limpet.sleep("3"), "a sleep must be between 0 and 31622400 seconds, not '3'", "a year"),  # type: ignore[arg-type]
    "timeout": (lambda: limpet.gather([], timeout_s=-1), "timeout_s must be between 0", "a year"),
    "id": (lambda: limpet.gather(_texts()), "'order-7' is not the handle of a task", "what push and push_many return"),
    "one": (lambda: limpet.gather("order-7"), "gather needs a list of tasks, not 'order-7'", "limpet.gather([task])"),  # type: ignore[arg-type]
    "signal": (lambda: limpet.wait_signal(""), "a name must be a non-empty string", ""),
    "long": (lambda: limpet.wait_signal("x" * 201), "the name of a signal has 201 characters", "use at most 200"),
    "number": (lambda: limpet.step(fetch, "a", name=5), "the name of a step is a printable text, not 5", "short"),  # type: ignore[arg-type]
    "control": (lambda: limpet.step(fetch, "a", name="a\nb"), "the name of a step is a printable text", "short"),
    "surrogate": (lambda: limpet.version("\udcff"), "a change needs a short name, not '\\udcff'", "limpet.version("),
    "set": (lambda: limpet.gather({*_texts()}), "gather needs a list of tasks: a set", "limpet.gather([task])"),
    "awaitable": (
        lambda: limpet.step(lambda: _coroutine(), name="x"),
        "what step 'x' returned is a coroutine",
        "await",
    ),
    "version": (lambda: limpet.version(""), "a change needs a short name, not ''", "limpet.version("),
}


def _current() -> Any:
    return limpet.current_task()


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_use_is_one_line_with_a_hint(ground: Ground, wrong: str) -> None:
    call, said, hint = WRONG[wrong]

    @ground.fleet.task("report", max_attempts=1)
    def report() -> None:
        limpet.step(fetch, "a.com")
        call()

    pushed = report.push()
    ground.work(report)
    error = pushed.result().error or ""
    assert error.startswith(f"Invalid: {said}")
    assert hint in error.partition("(hint: ")[2]
    assert "\n" not in error


def test_wrong_use_outside_of_a_task(ground: Ground) -> None:
    @ground.fleet.task("report")
    def report() -> None:
        pass

    def plain(result: Any) -> None:
        pass

    pushed = report.push()
    every: list[Any] = [()] * 10_001
    for call, said in [
        (lambda: limpet.signal(pushed, "x" * 201), "the name of a signal has 201 characters"),
        (lambda: report.push_many(every, batch=1000, then=report), "a task can follow 10000 tasks in 1000 batches"),
        (lambda: report.push_many(every[:1001], batch=1, then=report), "a task can follow 10000 tasks"),
        (lambda: limpet.wait_signal("go"), "only a task can wait for a signal"),
        (lambda: limpet.signal("order-7", "go"), "'order-7' is not the handle of a task"),  # type: ignore[arg-type]
        (lambda: limpet.signal(pushed, "go", threading.Lock()), "the value of a signal cannot be written as JSON"),
        (lambda: limpet.sleep(-1), "a sleep must be between 0"),
        (lambda: pushed.then(plain), "'plain' is not a task"),  # type: ignore[arg-type]
        (lambda: report.push_many([()], then=plain), "'plain' is not a task"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(Invalid, match=said) as raised:
            call()  # type: ignore[no-untyped-call]
        assert raised.value.hint
    assert report.queue.stats().pending == 1, "nothing was pushed"
