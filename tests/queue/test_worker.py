"""A worker on a clock that moves by hand: one process, its threads, its queues."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

import limpet
from limpet import Fleet
from limpet.kernel.errors import Invalid, Unavailable
from limpet.kernel.runtime import ulid
from limpet.kernel.store import MemoryStore
from limpet.queue import BucketQueue
from limpet.worker import Cron, Job, TaskCounts, Worker, WorkerEvent, current_task
from limpet.worker.runner import task_or_none
from support.clock import EPOCH, ManualRuntime, Time
from support.queue import Network

Handler = Callable[[dict[str, Any]], Any]


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

    def job(self, name: str, handle: Handler | None = None, cron: str | None = None, **policy: Any) -> Job:
        """A queue whose payloads are noted; then `handle` has its say."""

        def note(payload: dict[str, Any]) -> Any:
            self.ran.append(payload["n"])
            return handle(payload) if handle else None

        return Job(self.fleet.queue(name, **policy), note, Cron(cron) if cron else None)

    def worker(self, *jobs: Job, **options: Any) -> Worker:
        return Worker(jobs, self.runtime, listener=self.events.append, **options)

    def run_for(self, seconds: float, *jobs: Job, **options: Any) -> TaskCounts:
        """Run a worker, and stop it after that time."""
        worker = self.worker(*jobs, **options)
        self.at(seconds, worker.stop)
        return worker.run()

    def kinds(self, *wanted: str) -> list[str]:
        return [event.kind for event in self.events if not wanted or event.kind in wanted]

    def at(self, after_s: float, call: Callable[[], object]) -> None:
        self.runtime.time.at(after_s, call)


@pytest.fixture
def ground() -> Ground:
    return Ground()


def test_done_with_its_result(ground: Ground) -> None:
    job = ground.job("q", lambda payload: {"twice": 2 * payload["n"]})
    pushed = job.queue.push({"n": 4})
    tally = ground.worker(job, burst=True).run()
    assert (tally.done, tally.failed, tally.in_flight) == (1, 0, 0)
    result = job.queue.result(pushed.id)
    assert (result.state, result.value, result.attempts) == ("completed", {"twice": 8}, 1)
    assert ground.kinds() == ["started", "done"]
    done = ground.events[-1]
    assert (done.queue, done.id, done.attempt, done.worker) == ("q", pushed.id, 1, "host:p1/1")


@pytest.mark.parametrize("batch", [False, True])
def test_a_result_that_cannot_be_stored_is_a_failure_of_its_task(ground: Ground, batch: bool) -> None:
    values = [object(), float("nan"), "x" * 300_000, "good"]
    job = ground.job("q", lambda payload: values[payload["n"]])
    payloads = [{"n": n} for n in range(4)]
    ids = job.queue.push_many(payloads) if batch else [job.queue.push(payload).id for payload in payloads]
    tally = ground.worker(job, burst=True).run()
    assert (tally.done, tally.failed) == (1, 3)
    results = [job.queue.result(id_) for id_ in ids]
    assert [result.state for result in results] == ["failed"] * 3 + ["completed"]
    assert all("its result cannot be stored: " in (result.error or "") for result in results[:3])
    assert "262,144" in (results[2].error or "")
    assert results[3].value == "good"


@pytest.mark.parametrize("batch", [False, True])
def test_tasks_that_are_put_aside_are_told_and_counted(ground: Ground, batch: bool) -> None:
    job = ground.job("q", lambda payload: payload)
    queue = job.queue
    assert isinstance(queue, BucketQueue)
    ids = queue.push_many([{"n": n} for n in range(3)]) if batch else [queue.push({"n": 1}).id]
    entry = ids[0].rpartition(".")[0] if batch else ids[0]
    queue.storage.store.put(queue.storage.keys.tasks(entry, batch=batch), b"{")
    good = queue.push({"n": 5})
    tally = ground.worker(job, burst=True).run()
    assert (tally.done, tally.failed) == (1, len(ids))
    (told,) = [event for event in ground.events if event.kind == "failed"]
    assert (told.queue, told.id) == ("q", entry)
    assert "not a valid" in told.note
    assert queue.result(good.id).state == "completed"


def test_an_error_is_retried_with_backoff_and_then_failed_with_its_trace(ground: Ground) -> None:
    def handle(payload: dict[str, Any]) -> None:
        raise ValueError("no\nway")

    job = ground.job("q", handle, max_attempts=3, backoff_s=10)
    pushed = job.queue.push({"n": 1})
    tally = ground.run_for(120, job)
    assert (tally.done, tally.retried, tally.failed) == (0, 2, 1)
    assert [event.attempt for event in ground.events if event.kind == "started"] == [1, 2, 3]
    assert ground.kinds("retry", "failed") == ["retry", "retry", "failed"]
    result = job.queue.result(pushed.id)
    assert (result.state, result.error, result.attempts) == ("failed", "ValueError: no ...", 3)
    assert result.traceback is not None
    assert result.traceback.endswith('raise ValueError("no\\nway")\nValueError: no\nway\n')
    assert "limpet/queue" not in result.traceback


def test_retry_comes_back_when_it_said(ground: Ground) -> None:
    at_s: list[float] = []

    def handle(payload: dict[str, Any]) -> None:
        at_s.append(ground.runtime.elapsed_s())
        if len(at_s) == 1:
            raise limpet.Retry("too soon", after_s=60)

    job = ground.job("q", handle)
    job.queue.push({"n": 1})
    assert (ground.run_for(200, job).retried, ground.events[1].after_s, ground.events[1].note) == (1, 60, "too soon")
    assert 60 <= at_s[1] - at_s[0] <= 90


def test_fail_is_final(ground: Ground) -> None:
    def handle(payload: dict[str, Any]) -> None:
        raise limpet.Fail("gone")

    job = ground.job("q", handle)
    pushed = job.queue.push({"n": 1})
    assert ground.worker(job, burst=True).run().failed == 1
    assert (job.queue.result(pushed.id).state, job.queue.result(pushed.id).error) == ("failed", "gone")


def test_a_batch_has_a_verdict_for_each(ground: Ground) -> None:
    def handle(payload: dict[str, Any]) -> int:
        if payload["n"] == 1:
            raise limpet.Fail("one")
        if payload["n"] == 2 and current_task().attempt == 1:
            raise limpet.Retry(after_s=0)
        return int(payload["n"])

    job = ground.job("q", handle)
    ids = job.queue.push_many([{"n": n} for n in range(4)])
    tally = ground.run_for(60, job)
    assert (tally.done, tally.failed, tally.retried) == (3, 1, 1)
    assert [job.queue.result(id_).state for id_ in ids] == ["completed", "failed", "completed", "completed"]
    assert [job.queue.result(id_).value for id_ in ids] == [0, None, 2, 3]
    assert sorted(ground.ran) == [0, 1, 2, 2, 3]


def test_a_lower_queue_waits_until_the_higher_is_empty(ground: Ground) -> None:
    high, low = ground.job("high"), ground.job("low")
    for n in range(5):
        low.queue.push({"n": f"low{n}"})
        high.queue.push({"n": f"high{n}"})
    ground.worker(high, low, burst=True).run()
    assert [str(n)[:-1] for n in ground.ran] == ["high"] * 5 + ["low"] * 5


def test_what_is_urgent_overtakes_while_the_lower_queue_is_long(ground: Ground) -> None:
    def handle(payload: dict[str, Any]) -> None:
        ground.runtime.sleep(0.5)

    high, low = ground.job("high"), ground.job("low", handle)
    for n in range(100):
        low.queue.push({"n": n})
    worker = ground.worker(high, low)
    ground.at(20, lambda: high.queue.push({"n": "urgent"}))
    ground.at(40, worker.stop)
    worker.run()
    assert 40 <= ground.ran.index("urgent") <= 46


def test_without_an_order_queues_take_turns(ground: Ground) -> None:
    one, two = ground.job("one"), ground.job("two")
    for n in range(4):
        one.queue.push({"n": f"one{n}"})
        two.queue.push({"n": f"two{n}"})
    ground.worker(one, two, burst=True, in_order=False).run()
    assert [str(n)[:-1] for n in ground.ran] == ["one", "two"] * 4


def test_threads_work_side_by_side(ground: Ground) -> None:
    running = {"now": 0, "most": 0}

    def handle(payload: dict[str, Any]) -> None:
        running["now"] += 1
        running["most"] = max(running["now"], running["most"])
        ground.runtime.sleep(1)
        running["now"] -= 1

    job = ground.job("q", handle)
    for n in range(12):
        job.queue.push({"n": n})
    began_s = ground.runtime.elapsed_s()
    assert ground.worker(job, threads=4, burst=True).run().done == 12
    assert running["most"] == 4
    assert ground.runtime.elapsed_s() - began_s < 5


def test_a_burst_stays_for_what_its_own_tasks_push(ground: Ground) -> None:
    def handle(payload: dict[str, Any]) -> None:
        ground.runtime.sleep(2)
        if payload["n"] < 3:
            for _ in range(2):
                job.queue.push({"n": payload["n"] + 1})

    job = ground.job("q", handle)
    job.queue.push({"n": 0})
    assert ground.worker(job, threads=8, burst=True).run().done == 15


def test_idle_threads_and_queues_make_the_requests_of_one(ground: Ground) -> None:
    """At most 200 requests an hour."""
    worker = ground.worker(*[ground.job(f"q{n}") for n in range(3)], threads=2)
    ground.at(1800 + 120, worker.stop)
    before = None

    def begin() -> None:
        nonlocal before
        before = ground.fleet.meter.snapshot()

    ground.at(120, begin)
    worker.run()
    assert before is not None
    spent = ground.fleet.meter.snapshot() - before
    assert 0 < spent.total() <= 100, spent


def test_a_busy_worker_pays_nothing_for_an_empty_queue_beside(ground: Ground) -> None:
    """A look a second at most, whatever the number of tasks."""
    empty, full = ground.job("empty"), ground.job("full")
    full.queue.push_many([{"n": n} for n in range(500)], batch=1)
    alone = ground.fleet.meter.snapshot()
    ground.worker(full, burst=True).run()
    cost_alone = (ground.fleet.meter.snapshot() - alone).total()
    full.queue.push_many([{"n": n} for n in range(500)], batch=1)
    beside = ground.fleet.meter.snapshot()
    ground.worker(empty, full, burst=True).run()
    assert (ground.fleet.meter.snapshot() - beside).total() <= cost_alone * 1.01 + 5


def test_max_tasks_counts_tasks_and_the_rest_of_a_batch_goes_back(ground: Ground) -> None:
    job = ground.job("q")
    job.queue.push_many([{"n": n} for n in range(10)])
    worker = ground.worker(job, max_tasks=3)
    assert (worker.run().done, worker.used_up) == (3, True)
    assert ground.worker(job, burst=True).run().done == 7
    assert sorted(ground.ran) == [*range(10)]
    assert {event.attempt for event in ground.events} == {1}


def test_max_tasks_counts_single_tasks(ground: Ground) -> None:
    job = ground.job("q")
    for n in range(6):
        job.queue.push({"n": n})
    assert ground.worker(job, max_tasks=4).run().done == 4


def test_looking_at_an_empty_queue_uses_up_no_rate(ground: Ground) -> None:
    job = ground.job("q", rate_per_s=0.01)
    worker = ground.worker(job)
    ground.at(1, lambda: job.queue.push({"n": 1}))
    ground.at(5, worker.stop)
    assert worker.run().done == 1


def test_the_rate_is_kept_and_a_queue_without_one_is_not_held_up(ground: Ground) -> None:
    slow, quick = ground.job("slow", rate_per_s=2.0), ground.job("quick")
    for _ in range(100):
        slow.queue.push({"n": "slow"})
        quick.queue.push({"n": "quick"})
    ground.run_for(10, slow, quick, threads=3)
    assert ground.ran.count("quick") == 100
    assert 19 <= ground.ran.count("slow") <= 22


def test_the_rate_holds_inside_a_batch(ground: Ground) -> None:
    job = ground.job("q", rate_per_s=5.0)
    job.queue.push_many([{"n": n} for n in range(100)])
    ground.run_for(10, job)
    assert 48 <= len(ground.ran) <= 52


def test_stop_lets_the_running_task_end_and_gives_the_rest_of_its_batch_back(ground: Ground) -> None:
    worker: Worker

    def handle(payload: dict[str, Any]) -> None:
        ground.runtime.sleep(1)
        if payload["n"] == 2:
            worker.stop()
            ground.runtime.sleep(5)

    job = ground.job("q", handle)
    ids = job.queue.push_many([{"n": n} for n in range(6)])
    worker = ground.worker(job)
    assert worker.run().done == 3
    assert [job.queue.result(id_).state for id_ in ids[3:]] == ["pending"] * 3
    with job.queue.claim() as claim:
        assert next((task.payload["n"], task.attempt) for task in claim) == (3, 1)


def test_hand_back_restores_the_attempt(ground: Ground) -> None:
    def handle(payload: dict[str, Any]) -> None:
        ground.runtime.sleep(500)

    job = ground.job("q", handle, max_attempts=2)
    pushed = job.queue.push({"n": 1})
    worker = ground.worker(job, threads=2)
    worker.start()
    ground.runtime.sleep(5)
    worker.hand_back()
    assert (worker.counts().handed_back, worker.counts().in_flight, worker.ended) == (1, 1, False)
    assert ground.kinds() == ["started", "handed_back"]
    other = ManualRuntime(ground.runtime.time, "p2")
    queue = limpet.app.Fleet(ground.fleet.meter, "memory://", ground.fleet.record, other).queue("q", max_attempts=2)
    with queue.claim() as claim:
        assert [(task.id, task.attempt) for task in claim] == [(pushed.id, 1)]


@pytest.mark.parametrize("heard", [False, True])
def test_a_cancelled_task_is_not_said_to_be_handed_back(ground: Ground, heard: bool) -> None:
    """`heard`: the worker has learned of it by a heartbeat. Its handler runs to its end in either case, and counts."""

    def handle(payload: dict[str, Any]) -> str:
        ground.runtime.sleep(500)
        return "done all the same"

    job = ground.job("q", handle)
    pushed = job.queue.push({"n": 1})
    worker = ground.worker(job)
    worker.start()
    ground.runtime.sleep(5)
    assert job.queue.cancel(pushed.id)
    said = job.queue.result(pushed.id).error
    assert said is not None
    assert said.startswith("cancelled: host:p1 may still run its handler")
    ground.runtime.sleep(100 if heard else 1)
    worker.hand_back()
    assert (worker.counts().handed_back, worker.counts().lost) == (0, 1)
    assert ground.kinds() == ["started", "lost"]
    assert ground.events[-1].note == "it was cancelled, or another worker has it"
    ground.runtime.sleep(600)
    assert (job.queue.result(pushed.id).state, job.queue.result(pushed.id).value) == ("completed", "done all the same")


def test_a_signal_in_a_handler_ends_the_worker_of_this_thread_and_its_own_interrupt_does_not(ground: Ground) -> None:
    def handle(payload: dict[str, Any]) -> None:
        if payload["n"] == 1:
            signal.raise_signal(signal.SIGINT)
        raise KeyboardInterrupt("of its own")

    job = ground.job("q", handle, max_attempts=1)
    for n in (0, 1, 2):
        job.queue.push({"n": n}, id=f"task-{n}")
    worker = ground.worker(job)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            worker.run_here()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    counts = worker.counts()
    assert (counts.failed, counts.handed_back, counts.retried) == (1, 1, 0)
    assert worker.halted == "a signal has interrupted the handler"
    assert job.queue.result("task-0").error == "KeyboardInterrupt: of its own"
    left: list[tuple[str, int]] = []
    while claim := job.queue.claim():
        with claim:
            left += [(task.id, task.attempt) for task in claim]
    assert sorted(left) == [("task-1", 1), ("task-2", 1)]


def test_a_handler_that_exits_has_failed_and_the_worker_goes_on(ground: Ground) -> None:
    """It costs an attempt: a task that always exits must end."""

    def handle(payload: dict[str, Any]) -> None:
        raise SystemExit(3)

    job = ground.job("q", handle, max_attempts=2, backoff_s=0.0)
    pushed = job.queue.push({"n": 1})
    tally = ground.worker(job, burst=True).run()
    assert (tally.retried, tally.failed, tally.handed_back) == (1, 1, 0)
    assert job.queue.result(pushed.id).error == "SystemExit: 3"


def test_a_sync_handler_past_its_time_is_told_once_and_its_result_counts(ground: Ground) -> None:
    def handle(payload: dict[str, Any]) -> str:
        ground.runtime.sleep(300)
        return "late"

    job = ground.job("q", handle, timeout_s=10, ttl_s=30)
    pushed = job.queue.push({"n": 1})
    ground.run_for(400, job)
    assert ground.kinds() == ["started", "overdue", "done"]
    assert ground.events[1].note == "runs longer than timeout_s = 10; its claim is not renewed"
    assert ground.events[2].note == "its claim was over before"
    assert job.queue.result(pushed.id).value == "late"


def test_a_task_that_was_taken_over_is_lost_to_us(ground: Ground) -> None:
    """The handler sees it, and a check ends it; the verdict is the other one's to give."""

    def handle(payload: dict[str, Any]) -> None:
        task = current_task()
        while not task.lost:
            ground.runtime.sleep(1)
        task.check()

    job = ground.job("q", handle, ttl_s=10)
    pushed = job.queue.push({"n": 1})
    worker = ground.worker(job)
    ground.at(20, lambda: job.queue.cancel(pushed.id))
    ground.at(60, worker.stop)
    tally = worker.run()
    assert (tally.lost, tally.done, tally.retried, tally.failed) == (1, 0, 0, 0)
    assert ground.kinds() == ["started", "lost"]
    assert job.queue.result(pushed.id).state == "cancelled"


def test_the_current_task(ground: Ground) -> None:
    seen: list[tuple[str, str, int, bool]] = []

    def handle(payload: dict[str, Any]) -> None:
        task = current_task()
        task.progress("half way")
        seen.append((task.queue, task.id, task.attempt, task.lost))

    with pytest.raises(Invalid, match="no task runs here"):
        current_task()
    job = ground.job("q", handle)
    job.queue.push({"n": 1}, id="mine")
    ground.worker(job, burst=True).run()
    assert seen == [("q", "mine", 1, False)]
    assert task_or_none() is None
    assert ground.kinds() == ["started", "progress", "done"]
    assert ground.events[1].note == "half way"


def test_without_routine_only_what_is_out_of_the_ordinary_is_said(ground: Ground) -> None:
    def handle(payload: dict[str, Any]) -> None:
        if payload["n"] == 1:
            raise limpet.Fail("x")

    job = ground.job("q", handle)
    job.queue.push_many([{"n": n} for n in range(3)])
    assert ground.worker(job, burst=True, routine=False).run().done == 2
    assert ground.kinds() == ["failed"]


class _Wrapped:
    """A queue with another way to claim."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def claim_last(self) -> Any:
        return self.claim(wait_s=1.0 if self.provider == "sqs" else 0.0)


class _Failing(_Wrapped):
    """A queue whose store fails so many times in a row."""

    def __init__(self, queue: Any, times: int, error: Exception | None = None) -> None:
        super().__init__(queue)
        self.left = times
        self.error = error or Unavailable("slow down")

    def claim(self, *, wait_s: float = 0.0) -> Any:
        if self.left:
            self.left -= 1
            raise self.error
        return self._queue.claim()


class _LongPolling(_Wrapped):
    """A queue that waits in its server, as SQS does."""

    provider = "sqs"

    def __init__(self, queue: Any, runtime: ManualRuntime) -> None:
        super().__init__(queue)
        self.waits_s: list[float] = []
        self._runtime = runtime

    def claim(self, *, wait_s: float = 0.0) -> Any:
        self.waits_s.append(wait_s)
        self._runtime.sleep(wait_s)
        return self._queue.claim()


def test_a_store_that_fails_for_a_while_is_waited_for(ground: Ground) -> None:
    job = ground.job("q")
    job.queue.push({"n": 1})
    failing = Job(_Failing(job.queue, 4), job.handle)
    assert ground.worker(failing, burst=True).run().done == 1
    assert ground.kinds("trouble") == ["trouble"] * 4
    assert ground.events[0].note == "slow down (back off and retry)"


@pytest.mark.parametrize(
    ("queues", "burst", "waits_s", "most"), [(1, False, {20.0, 1.0}, 182), (2, False, {1.0}, 200), (1, True, {1.0}, 3)]
)
def test_a_queue_that_waits_in_its_server_is_let_wait(
    ground: Ground, queues: int, burst: bool, waits_s: set[float], most: int
) -> None:
    """Without waiting, SQS may miss a task."""
    polled = [_LongPolling(ground.fleet.queue(f"q{n}"), ground.runtime) for n in range(queues)]
    ground.run_for(3600, *[Job(queue, lambda payload: None) for queue in polled], burst=burst)
    assert {wait_s for queue in polled for wait_s in queue.waits_s} == waits_s
    assert sum(len(queue.waits_s) for queue in polled) <= most


def test_a_mistake_of_our_own_is_not_taken_for_the_end_of_the_work(ground: Ground) -> None:
    failing = Job(_Failing(ground.fleet.queue("q"), 1, ZeroDivisionError("ours")), lambda payload: None)
    worker = ground.worker(failing, burst=True)
    with pytest.raises(ZeroDivisionError):
        worker.run_here()
    assert (worker.broken, worker.ended, worker.stopping) == (True, True, True)


def test_a_burst_gives_up_on_a_store_that_goes_on_failing(ground: Ground) -> None:
    began_s = ground.runtime.elapsed_s()
    job = ground.job("q")
    failing = Job(_Failing(job.queue, 1000), job.handle)
    worker = ground.worker(failing, threads=2, burst=True)
    worker.run()
    assert isinstance(worker.error, Unavailable)
    assert ground.runtime.elapsed_s() - began_s > 10


def test_a_worker_that_goes_on_survives_a_long_outage(ground: Ground) -> None:
    job = ground.job("q")
    job.queue.push({"n": 1})
    failing = Job(_Failing(job.queue, 50), job.handle)
    worker = ground.worker(failing)
    ground.at(2000, worker.stop)
    assert worker.run().done == 1


def test_cron_pushes_each_tick_once_from_any_number_of_workers() -> None:
    time = Time()
    time.now_s = 90 * 60.0 + 7  # 01:30:07
    runtimes = [ManualRuntime(time, owner, wall_offset_s=skew) for owner, skew in (("p1", 0.0), ("p2", 20.0))]
    first = limpet.open("memory://", runtime=runtimes[0])
    ran: list[str] = []
    workers = []
    for runtime in runtimes:
        fleet = Fleet(first.meter, "memory://", first.record, runtime)

        def note(payload: Any) -> None:
            task = current_task()
            ran.append(task.id)

        workers.append(Worker([Job(fleet.queue("report"), note, Cron("*/10 * * * *"))], runtime))
    for worker in workers:
        worker.start()
        time.at(3600, worker.stop)
    runtimes[0].sleep(3700)
    ticks = [EPOCH + timedelta(minutes=90 + 10 * n) for n in range(7)]
    assert ran == [f"cron.report.{tick:%Y%m%dT%H%MZ}" for tick in ticks]


@pytest.mark.parametrize(
    ("line", "day", "ids"),
    [
        ("30 2 * * *", "2026-03-29", ["20260329T0100Z"]),
        ("30 2 * * *", "2026-10-25", ["20261025T0030Z"]),
        ("30 * * * *", "2026-10-25", [f"20261025T0{hour}30Z" for hour in range(4)]),
    ],
)
def test_cron_in_a_zone_pushes_each_tick_once_when_the_clocks_change(line: str, day: str, ids: list[str]) -> None:
    """Two workers, 20 s apart, on the days when 02:30 does not exist in Berlin, and when it comes twice."""
    time = Time()
    time.now_s = (datetime.fromisoformat(f"{day}T00:00Z") - EPOCH).total_seconds() - 60
    runtimes = [ManualRuntime(time, owner, wall_offset_s=skew) for owner, skew in (("p1", 0.0), ("p2", 20.0))]
    bucket = Network(runtimes[0], MemoryStore(runtimes[0]))  # with hints, idle workers would look ten times a second
    first = limpet.open("memory://", runtime=runtimes[0])
    pushed: list[str] = []
    for runtime in runtimes:
        queue = Fleet(bucket, "memory://", first.record, runtime).queue("report")
        listener = lambda event: pushed.append(event.id) if event.kind == "cron" else None  # noqa: E731
        worker = Worker([Job(queue, lambda payload: None, Cron(line, "Europe/Berlin"))], runtime, listener=listener)
        worker.start()
        time.at(4 * 3600, worker.stop)
    runtimes[0].sleep(4 * 3600 + 100)
    assert pushed == [f"cron.report.{tick}" for tick in ids]


def test_cron_leaves_out_what_is_long_past(ground: Ground) -> None:
    ground.runtime.time.now_s = 36_000.0 + 301
    job = ground.job("q", cron="@hourly")
    ground.run_for(60, job)
    assert ground.events == []


def test_cron_in_a_burst_pushes_what_is_due(ground: Ground) -> None:
    ground.runtime.time.now_s = 36_000.0 + 200
    job = Job(ground.fleet.queue("q"), lambda payload: None, Cron("@hourly"))
    assert ground.worker(job, burst=True).run().done == 1
    assert ground.kinds() == ["cron", "started", "done"]


def test_a_worker_wants_a_job_and_sane_numbers(ground: Ground) -> None:
    with pytest.raises(Invalid):
        ground.worker()
    with pytest.raises(Invalid):
        ground.worker(ground.job("q"), threads=0)
    with pytest.raises(Invalid):
        ground.worker(ground.job("q"), max_tasks=0)


def test_a_handler_writes_with_the_token_of_its_claim(ground: Ground) -> None:
    def handle(payload: dict[str, Any]) -> None:
        current = limpet.current_task()
        assert current is not None
        ground.fleet.cell("report").write(payload["n"], lease=current)

    job = ground.job("q", handle)
    pushed = job.queue.push({"n": 7})
    ground.worker(job, burst=True).run()
    seen = ground.fleet.cell("report").read()
    assert seen is not None
    assert seen.value == 7
    assert seen.header.fence == limpet.Fence(f"queues/q/pending/{pushed.id}/lease.json", 1)
    with pytest.raises(limpet.Invalid, match="is guarded by"):
        ground.fleet.cell("report").write(8, lease=limpet.Fence("locks/user/other.lock", 9))


# ---- a batch on many threads ----


def test_a_batch_takes_as_long_as_its_tasks_divided_by_the_threads(ground: Ground) -> None:
    """1,000 handlers of a second, in batches of 100, on 200 threads."""

    def handle(payload: dict[str, Any]) -> None:
        ground.runtime.sleep(1)

    job = ground.job("q", handle)
    job.queue.push_many([{"n": n} for n in range(1000)], batch=100)
    began_s = ground.runtime.elapsed_s()
    assert ground.worker(job, threads=200, burst=True).run().done == 1000
    assert ground.runtime.elapsed_s() - began_s < 10


def test_a_thread_does_not_wait_for_the_others_of_its_batch(ground: Ground) -> None:
    """One task of the first batch takes long; the thread that claimed it goes on to the second one."""

    def handle(payload: dict[str, Any]) -> None:
        ground.runtime.sleep(1000 if payload["n"] == 1 else 1)

    job = ground.job("q", handle)
    first = job.queue.push_many([{"n": n} for n in range(2)])
    second = job.queue.push_many([{"n": n} for n in range(2, 12)])
    worker = ground.worker(job, threads=2)
    worker.start()
    ground.runtime.sleep(100)
    assert {job.queue.result(id_).state for id_ in second} == {"completed"}
    worker.stop()
    assert worker.wait(2000)
    assert {job.queue.result(id_).state for id_ in first} == {"completed"}


def test_the_rate_holds_for_all_threads_of_a_batch_and_no_thread_waits_for_it_in_vain(ground: Ground) -> None:
    def handle(payload: dict[str, Any]) -> None:
        ground.runtime.sleep(1)

    slow, quick = ground.job("slow", handle, rate_per_s=5.0), ground.job("quick")
    slow.queue.push_many([{"n": "slow"} for _ in range(100)])
    worker = ground.worker(slow, quick, threads=12)
    worker.start()
    ground.runtime.sleep(5)
    quick.queue.push_many([{"n": "quick"} for _ in range(100)], batch=1)
    ground.runtime.sleep(5)
    worker.stop()
    assert worker.wait(60)
    assert ground.ran.count("quick") == 100
    assert 40 <= ground.ran.count("slow") <= 52, "five a second, though each takes a second"


def test_only_the_task_past_its_time_is_told(ground: Ground) -> None:
    def handle(payload: dict[str, Any]) -> None:
        ground.runtime.sleep(60 if payload["n"] == 0 else 5)

    job = ground.job("q", handle, timeout_s=20, ttl_s=30)
    ids = job.queue.push_many([{"n": n} for n in range(6)])
    ground.run_for(80, job, threads=3)
    assert {event.id for event in ground.events if event.kind == "overdue"} == {ids[0]}
    assert {job.queue.result(id_).state for id_ in ids} == {"completed"}
