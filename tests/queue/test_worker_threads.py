"""A worker on real time: async handlers, real threads, memory and a directory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Fleet
from limpet.kernel.runtime import system
from limpet.worker import Job, Worker, WorkerEvent, coroutines, current_task

PATIENCE_S = 30.0


@pytest.fixture(params=["memory", "directory"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Fleet:
    return limpet.open("memory://" if request.param == "memory" else tmp_path / "fleet", durability="os")


def poll(holds: Callable[[], object], what: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s, f"not so after {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.005)


def test_many_threads_run_every_task_once(fleet: Fleet) -> None:
    seen: list[int] = []
    queue = fleet.queue("q")
    queue.push_many([{"n": n} for n in range(300)], batch=50)
    queue.push_many([{"n": n} for n in range(300, 340)], batch=1)
    worker = Worker([Job(queue, lambda payload: seen.append(payload["n"]))], system(), threads=8, burst=True)
    tally = worker.run()
    assert (tally.done, tally.failed, tally.retried, tally.lost) == (340, 0, 0, 0)
    assert sorted(seen) == [*range(340)]
    assert queue.stats().pending == 0


def test_an_async_handler_returns_its_result_and_sees_its_task(fleet: Fleet) -> None:
    async def handle(payload: dict[str, Any]) -> list[Any]:
        await asyncio.sleep(0)
        task = current_task()
        return [task.id, payload["n"]]

    queue = fleet.queue("q")
    for n in range(3):
        queue.push({"n": n}, id=f"task-{n}")
    assert Worker([Job(queue, handle)], system(), burst=True).run().done == 3
    assert [queue.result(f"task-{n}").value for n in range(3)] == [[f"task-{n}", n] for n in range(3)]


def test_async_handlers_of_a_thread_share_one_loop(fleet: Fleet) -> None:
    """What a handler binds to the loop, such as a client's connections, stays good for the next task."""
    loops = set()

    async def handle(payload: dict[str, Any]) -> None:
        loops.add(id(asyncio.get_running_loop()))

    queue = fleet.queue("q")
    queue.push_many([{"n": n} for n in range(5)], batch=1)
    assert Worker([Job(queue, handle)], system(), burst=True).run().done == 5
    assert len(loops) == 1


@pytest.mark.parametrize("error", [ValueError("x"), limpet.Retry("x"), asyncio.CancelledError("x")])
def test_an_async_error_is_retried(fleet: Fleet, error: BaseException) -> None:
    async def handle(payload: dict[str, Any]) -> None:
        raise error

    events: list[WorkerEvent] = []
    queue = fleet.queue("q")
    queue.push({"n": 1})
    assert Worker([Job(queue, handle)], system(), burst=True, listener=events.append).run().retried == 1
    assert events[-1].kind == "retry"


def test_an_async_handler_past_its_time_is_cancelled_and_retried(fleet: Fleet) -> None:
    tidied: list[str] = []

    async def handle(payload: dict[str, Any]) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            tidied.append("up")

    events: list[WorkerEvent] = []
    queue = fleet.queue("q", timeout_s=0.1)
    queue.push({"n": 1})
    assert Worker([Job(queue, handle)], system(), burst=True, listener=events.append).run().retried == 1
    assert (tidied, events[-1].note) == (["up"], "took longer than timeout_s = 0.1")


def test_an_async_handler_that_returns_when_cancelled_has_returned(fleet: Fleet) -> None:
    async def handle(payload: dict[str, Any]) -> str:
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            return "so far"
        return "all"

    queue = fleet.queue("q", timeout_s=0.1)
    pushed = queue.push({"n": 1})
    assert Worker([Job(queue, handle)], system(), burst=True).run().done == 1
    assert queue.result(pushed.id).value == "so far"


def test_an_async_handler_is_cancelled_when_its_claim_is_lost(fleet: Fleet) -> None:
    started, ended = threading.Event(), threading.Event()

    async def handle(payload: dict[str, Any]) -> None:
        started.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            ended.set()

    events: list[WorkerEvent] = []
    queue = fleet.queue("q", ttl_s=1.0)
    pushed = queue.push({"n": 1})
    worker = Worker([Job(queue, handle)], system(), listener=events.append)
    worker.start()
    assert started.wait(PATIENCE_S)
    assert fleet.queue("q").cancel(pushed.id)
    assert ended.wait(PATIENCE_S)
    worker.stop()
    assert worker.wait(PATIENCE_S)
    assert (worker.counts().lost, worker.counts().retried, events[-1].kind) == (1, 0, "lost")
    assert queue.result(pushed.id).state == "cancelled"


def test_hand_back_cancels_async_handlers_and_another_worker_goes_on_at_the_same_attempt(fleet: Fleet) -> None:
    started, attempts = threading.Event(), []

    async def handle(payload: dict[str, Any]) -> None:
        task = current_task()
        attempts.append(task.attempt)
        if not started.is_set():
            started.set()
            await asyncio.sleep(PATIENCE_S)

    queue = fleet.queue("q", max_attempts=1)
    queue.push({"n": 1})
    worker = Worker([Job(queue, handle)], system())
    worker.start()
    assert started.wait(PATIENCE_S)
    worker.hand_back()
    assert worker.wait(PATIENCE_S)
    tally = worker.counts()
    assert (tally.handed_back, tally.in_flight, tally.lost, tally.retried) == (1, 0, 0, 0)
    assert Worker([Job(fleet.queue("q", max_attempts=1), handle)], system(), burst=True).run().done == 1
    assert attempts == [1, 1]


def test_a_coroutine_that_a_handler_leaves_behind_is_cancelled_at_the_end(fleet: Fleet) -> None:
    ended = threading.Event()
    kept: list[asyncio.Task[None]] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            ended.set()

    async def handle(payload: dict[str, Any]) -> None:
        kept.append(asyncio.ensure_future(linger()))
        await asyncio.sleep(0)

    queue = fleet.queue("q")
    queue.push({"n": 1})
    assert Worker([Job(queue, handle)], system(), burst=True).run().done == 1
    assert ended.is_set()


class Own(BaseException):
    """An error of the user's own that is no `Exception`."""


LEAVES: list[type[BaseException]] = [SystemExit, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, Own]
"""What ends a thread, a loop or a process where nobody stops it."""


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("kind", ["sync", "async", "beside"])
def test_of_40_tasks_the_ten_that_raise_anything_have_their_errors_and_thirty_are_done(
    fleet: Fleet, kind: str, batch: bool
) -> None:
    ran: list[int] = []

    def sync(payload: dict[str, Any]) -> int:
        n: int = payload["n"]
        ran.append(n)
        if n % 4 == 3:
            raise LEAVES[n // 4 % 5](f"of {n}")
        return n

    async def async_(payload: dict[str, Any]) -> int:
        await asyncio.sleep(0)
        return sync(payload)

    async def beside(payload: dict[str, Any]) -> int:
        return await asyncio.create_task(async_(payload))

    queue = fleet.queue("q", max_attempts=1)
    ids: list[str] = [*queue.push_many([{"n": n} for n in range(40)])] if batch else []
    ids = ids or [queue.push({"n": n}).id for n in range(40)]
    events: list[WorkerEvent] = []
    handle: Any = {"sync": sync, "async": async_, "beside": beside}[kind]
    worker = Worker([Job(queue, handle)], system(), threads=2, burst=True, listener=events.append)
    counts = worker.run()
    assert (counts.done, counts.failed, counts.retried, counts.handed_back, counts.lost) == (30, 10, 0, 0, 0)
    assert (worker.broken, worker.halted, sorted(ran)) == (False, None, [*range(40)])
    for n, result in enumerate(queue.results(ids)):
        said = f"{LEAVES[n // 4 % 5].__name__}: of {n}" if n % 4 == 3 else None
        assert (result.value, result.error) == (None if said else n, said)


def test_a_coroutine_that_exits_beside_its_handler_fails_that_task_and_no_other(fleet: Fleet) -> None:
    async def leave() -> None:
        raise SystemExit("enough")

    async def handle(payload: dict[str, Any]) -> int:
        if payload["n"] == 2:
            _kept.append(asyncio.create_task(leave()))
            await asyncio.sleep(PATIENCE_S)
        await asyncio.sleep(0)
        return int(payload["n"])

    queue = fleet.queue("q", max_attempts=1)
    ids = [queue.push({"n": n}).id for n in range(6)]
    counts = Worker([Job(queue, handle)], system(), burst=True).run()
    assert (counts.done, counts.failed) == (5, 1)
    assert [result.error for result in queue.results(ids)] == [None, None, "SystemExit: enough", None, None, None]


_kept: list[asyncio.Task[None]] = []
"""Tasks of asyncio need a reference."""


def test_a_run_ends_all_that_it_made_before_its_verdict(fleet: Fleet) -> None:
    """What a `finally` makes too; the next task finds an empty loop."""
    order: list[str] = []

    async def linger(depth: int) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            if depth:
                _kept.append(asyncio.create_task(linger(depth - 1)))
            await asyncio.sleep(0)
            order.append(f"end {depth}")

    async def handle(payload: dict[str, Any]) -> int:
        alone = len(asyncio.all_tasks())
        _kept.append(asyncio.create_task(linger(2)))
        await asyncio.sleep(0)
        if payload["n"]:
            raise ValueError("it fails")
        return alone

    queue = fleet.queue("q", max_attempts=1)
    ids = [queue.push({"n": n}).id for n in (0, 1, 0)]
    worker = Worker(
        [Job(queue, handle)],
        system(),
        burst=True,
        listener=lambda event: order.append(event.kind) if event.kind in ("done", "failed") else None,
    )
    worker.run()
    ends = ["end 2", "end 1", "end 0"]
    verdicts = [each for each in order if not each.startswith("end")]
    assert order == [*ends, verdicts[0], *ends, verdicts[1], *ends, verdicts[2]]
    assert [queue.result(id_).value for id_ in (ids[0], ids[2])] == [2, 2], "the handler, and who watches it"


def test_a_coroutine_that_ignores_its_cancellation_stays_behind_with_its_loop(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    steps: list[int] = []

    async def ignore() -> None:
        while True:
            try:
                await asyncio.sleep(0.001)
                steps.append(len(loops))
            except asyncio.CancelledError:
                pass

    async def handle(payload: dict[str, Any]) -> None:
        loops.append(asyncio.get_running_loop())
        if len(loops) == 1:
            _kept.append(asyncio.create_task(ignore()))
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)

    monkeypatch.setattr(coroutines, "WIND_UP_S", 0.05)
    events: list[WorkerEvent] = []
    queue = fleet.queue("q")
    for n in range(3):
        queue.push({"n": n})
    assert Worker([Job(queue, handle)], system(), burst=True, listener=events.append).run().done == 3
    assert set(steps) == {1}, "it does not run beside other tasks"
    assert loops[0] is not loops[1]
    assert loops[1] is loops[2]
    [warning] = [event.note for event in events if event.kind == "warning"]
    assert warning.startswith("1 of its coroutines ignored that")


def test_stop_is_prompt_while_idle(fleet: Fleet) -> None:
    worker = Worker([Job(fleet.queue(f"q{n}"), lambda payload: None) for n in range(3)], system(), threads=4)
    worker.start()
    spent = fleet.meter.snapshot
    poll(lambda: spent().requests.get("list", 0) >= 6, "every queue was looked at twice")
    worker.stop()
    assert worker.wait(PATIENCE_S)


def test_work_that_comes_while_idle_is_found_by_all_threads(fleet: Fleet) -> None:
    barrier = threading.Barrier(3, timeout=PATIENCE_S)
    queue = fleet.queue("q")
    worker = Worker([Job(queue, lambda payload: barrier.wait() and None)], system(), threads=3)
    worker.start()
    for n in range(3):
        queue.push({"n": n})
    poll(lambda: worker.counts().done == 3, "three threads met")
    worker.stop()
    assert worker.wait(PATIENCE_S)


def test_a_context_variable_does_not_leak_from_task_to_task(fleet: Fleet) -> None:
    variable: ContextVar[int] = ContextVar("variable", default=0)
    seen = []

    async def handle(payload: dict[str, Any]) -> None:
        seen.append(variable.get())
        variable.set(payload["n"] + 1)

    queue = fleet.queue("q")
    queue.push_many([{"n": n} for n in range(3)])
    Worker([Job(queue, handle)], system(), burst=True).run()
    assert seen == [0, 0, 0]


# ---- a batch on many threads ----


@pytest.mark.parametrize("later", [False, True], ids=["first claim", "later claim"])
def test_the_tasks_of_one_batch_run_at_the_same_time(fleet: Fleet, later: bool) -> None:
    barrier = threading.Barrier(6, timeout=PATIENCE_S)
    queue = fleet.queue("q")
    ids = queue.push_many([{"n": n} for n in range(6)])
    if later:
        queue.claim().hand_back()
    worker = Worker([Job(queue, lambda payload: barrier.wait() and None)], system(), threads=6, burst=True)
    assert worker.run().done == 6
    assert {queue.result(id_).state for id_ in ids} == {"completed"}


def test_async_tasks_of_one_batch_run_at_the_same_time(fleet: Fleet) -> None:
    there: list[int] = []

    async def handle(payload: dict[str, Any]) -> str:
        there.append(payload["n"])
        for _ in range(int(PATIENCE_S / 0.01)):
            if len(there) == 6:
                task = current_task()
                return task.id
            await asyncio.sleep(0.01)
        raise limpet.Fail("they did not meet")

    queue = fleet.queue("q")
    ids = queue.push_many([{"n": n} for n in range(6)])
    assert Worker([Job(queue, handle)], system(), threads=6, burst=True).run().done == 6
    assert [queue.result(id_).value for id_ in ids] == ids


def test_a_batch_that_comes_while_all_threads_are_idle_is_spread(fleet: Fleet) -> None:
    barrier = threading.Barrier(4, timeout=PATIENCE_S)
    queue = fleet.queue("q")
    worker = Worker([Job(queue, lambda payload: barrier.wait() and None)], system(), threads=4)
    worker.start()
    spent = fleet.meter.snapshot
    poll(lambda: spent().requests.get("list", 0) >= 2, "it is idle")
    queue.push_many([{"n": n} for n in range(4)])
    poll(lambda: worker.counts().done == 4, "four threads met")
    worker.stop()
    assert worker.wait(PATIENCE_S)


def test_each_task_of_a_spread_batch_has_its_own_error_and_traceback(fleet: Fleet) -> None:
    barrier = threading.Barrier(4, timeout=PATIENCE_S)

    def fail(n: int) -> None:
        raise limpet.Fail(f"error {n}")

    def handle(payload: dict[str, Any]) -> str:
        barrier.wait()
        task = current_task()
        if payload["n"] < 3:
            fail(payload["n"])
        return task.id

    queue = fleet.queue("q")
    ids = queue.push_many([{"n": n} for n in range(4)])
    tally = Worker([Job(queue, handle)], system(), threads=4, burst=True).run()
    assert (tally.done, tally.failed) == (1, 3)
    results = [queue.result(id_) for id_ in ids]
    assert [result.error for result in results] == ["error 0", "error 1", "error 2", None]
    for n, result in enumerate(results[:3]):
        assert (result.traceback or "").endswith(f"error {n}\n")
    assert results[3].value == ids[3]


def test_hand_back_returns_all_that_run_and_the_rest_of_their_batch(fleet: Fleet) -> None:
    running, over = threading.Semaphore(0), threading.Event()

    def handle(payload: dict[str, Any]) -> None:
        running.release()
        over.wait(PATIENCE_S)

    queue = fleet.queue("q", max_attempts=2)
    ids = queue.push_many([{"n": n} for n in range(5)])
    worker = Worker([Job(queue, handle)], system(), threads=3)
    worker.start()
    for _ in range(3):
        assert running.acquire(timeout=PATIENCE_S)
    assert worker.counts().in_flight == 3
    worker.hand_back()
    assert worker.counts().handed_back == 3
    with fleet.queue("q", max_attempts=2).claim() as claim:
        assert [(task.id, task.attempt) for task in claim] == [(id_, 1) for id_ in ids]
        claim.hand_back()
    over.set()
    assert worker.wait(PATIENCE_S)


def test_stop_lets_all_that_run_end_and_gives_the_rest_back(fleet: Fleet) -> None:
    barrier, over = threading.Barrier(4, timeout=PATIENCE_S), threading.Event()

    def handle(payload: dict[str, Any]) -> int:
        barrier.wait()
        over.wait(PATIENCE_S)
        return int(payload["n"])

    queue = fleet.queue("q")
    ids = queue.push_many([{"n": n} for n in range(7)])
    worker = Worker([Job(queue, handle)], system(), threads=3)
    worker.start()
    barrier.wait()
    worker.stop()
    over.set()
    assert worker.wait(PATIENCE_S)
    assert worker.counts().done == 3
    assert queue.stats().done == 3
    with queue.claim() as claim:
        assert [(task.id, task.attempt) for task in claim] == [(id_, 1) for id_ in ids[3:]]


@pytest.mark.parametrize("policy", [{"max_attempts": 1}, {"concurrency": 1}])
def test_with_one_attempt_or_a_limit_the_tasks_of_a_batch_run_one_at_a_time(fleet: Fleet, policy: Any) -> None:
    alone = threading.Lock()

    def handle(payload: dict[str, Any]) -> None:
        if not alone.acquire(blocking=False):
            raise limpet.Fail("another task runs")
        time.sleep(0.002)
        alone.release()

    queue = fleet.queue("q", **policy)
    queue.push_many([{"n": n} for n in range(20)])
    tally = Worker([Job(queue, handle)], system(), threads=4, burst=True).run()
    assert (tally.done, tally.failed) == (20, 0)


def test_max_tasks_counts_the_tasks_of_all_threads(fleet: Fleet) -> None:
    queue = fleet.queue("q")
    queue.push_many([{"n": n} for n in range(20)])
    assert Worker([Job(queue, lambda payload: None)], system(), threads=4, max_tasks=7).run().done == 7
    assert Worker([Job(queue, lambda payload: None)], system(), threads=4, burst=True).run().done == 13
