"""Durable tasks whose code has changed since they began: they wait for code that fits, and `fail` ends them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest

import limpet
from limpet.kernel.errors import Conflict, Invalid, Missing
from limpet.kernel.lease import State
from limpet.kernel.user_code import code_version
from limpet.queue.decide import bare, claimable, may_fit, waits_left
from limpet.queue.durable import CODE_MAX_S, CODE_MIN_S, left_before, looks, stands_still, waiting, waiting_for_code
from limpet.queue.entry import CODES_MAX, EntryLease, Suspension
from limpet.queue.summary import summarize
from limpet.worker import Job, Worker, WorkerEvent
from support.clock import EPOCH
from support.queue import Process, World

WHY = "waits for code that fits: step 1 is step 'reserve', the code asks for step 'charge'"


@pytest.fixture(params=[False, True], ids=["near", "far"])
def world(request: pytest.FixtureRequest) -> World:
    return World(far=request.param)


class Program:
    """Two versions of a handler, and one whose steps nothing fits; the calls of their steps."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def note(self, what: str) -> str:
        self.calls.append(what)
        return what

    def old(self, payload: Any) -> list[str]:
        first = limpet.step(self.note, "first", name="first")
        second = limpet.step(self.note, "reserve", name="reserve")
        limpet.sleep(payload.get("sleep", 60))
        return [first, second]

    def new(self, payload: Any) -> list[str]:
        first = limpet.step(self.note, "first", name="first")
        return [first, limpet.step(self.note, "charge", name="charge")]

    def other(self, payload: Any) -> list[str]:
        return [limpet.step(self.note, "another", name="another")]


def work(process: Process, handle: Callable[[Any], Any], *, until_empty: bool = False) -> list[WorkerEvent]:
    """What a worker process does that starts with this code, and ends when nothing can be claimed."""
    events: list[WorkerEvent] = []
    job = Job(process.queue, handle)
    Worker([job], process.runtime, listener=events.append, burst=True, until_empty=until_empty).run()
    process.queue.flush()
    return events


def kinds(events: list[WorkerEvent]) -> list[str]:
    return [event.kind for event in events if event.kind in ("started", "suspended", "warning", "done", "failed")]


def suspension(**fields: Any) -> Suspension:
    return Suspension(**{"reason": WHY, "step": 1, "since": EPOCH, **fields})


def lease(**fields: Any) -> EntryLease:
    base: dict[str, Any] = dict.fromkeys(("created_at", "heartbeat_at", "expires_at"), EPOCH)
    base |= {"state": State.FREE, "name": "x", "worker_id": "w", "label": "w", "token": 2, "attempt": 1, "ttl_s": 60.0}
    return EntryLease(**{**base, **fields})


# ---- decisions ----


@pytest.mark.parametrize(
    ("codes", "code", "fits"),
    [
        ([], "v2", False),
        (["v1"], "v1", False),
        (["v1"], "v2", True),
        (["v1"], "", False),
        ([""], "v1", True),
        ([f"v{n}" for n in range(CODES_MAX)], "new", False),
    ],
)
def test_which_code_may_fit(codes: list[str], code: str, fits: bool) -> None:
    each = suspension(codes=codes)
    assert may_fit(each, code) is fits
    record = lease(wait_s=180.0, waits={0: 180.0}, suspended={0: each})
    wall = EPOCH + timedelta(days=1)  # that of the worker does not count
    ready = claimable(record, modified=EPOCH, unchanged_s=0.0, now=EPOCH, wall=wall, code=code)
    assert (ready.take, ready.at) == (fits, EPOCH + timedelta(seconds=180))
    assert waits_left(record, modified=EPOCH, now=EPOCH, code=code) == ({} if fits else {0: 180.0})
    assert not may_fit(None, code)


def test_a_try_that_does_not_fit_puts_the_next_one_off() -> None:
    rest_s, first = waiting_for_code(None, why=WHY * 9, step=1, wall=EPOCH, code="v1")
    assert (rest_s, first.codes, first.waited_s, first.due_s) == (CODE_MIN_S, ["v1"], 0.0, None)
    assert len(first.reason) == 300
    later = EPOCH + timedelta(hours=1)
    before = msgspec.structs.replace(first, waited_s=1000.0)
    rest_s, second = waiting_for_code(before, why=WHY, step=3, wall=later, code="v2")
    assert (rest_s, second.codes, second.since, second.step) == (500.0, ["v1", "v2"], EPOCH, 3)
    before = msgspec.structs.replace(second, waited_s=1e6)
    assert waiting_for_code(before, why=WHY, step=1, wall=later, code="v1")[0] == CODE_MAX_S
    full = suspension(codes=[f"v{n}" for n in range(CODES_MAX)])
    assert waiting_for_code(full, why=WHY, step=1, wall=later, code="new")[1].codes == full.codes
    slept = suspension(due_s=60.0, waited_s=1000.0)
    assert waiting_for_code(slept, why=WHY, step=1, wall=later, code="v1")[1].since == later


def test_a_wait_for_code_tells_nothing_about_the_times_of_its_step() -> None:
    """The step may be a sleep of a day, which has begun. An earlier version reads the suspension in this way too."""
    each = suspension(codes=["v1"], waited_s=900.0)
    assert left_before(each, 1, 10.0) is None
    assert waiting(each, reason="waiting", step=1, wall=EPOCH + timedelta(1))[1].waited_s == 0.0


def test_what_waits_for_code_is_tried_by_time_or_by_other_code() -> None:
    each, signal = suspension(codes=["v1"]), suspension(signal="go", life="a")
    record = lease(name="x-2", wait_s=2.0, waits={0: 180.0, 1: 2.0}, suspended={0: each, 1: signal})

    def looked(now_s: float, code: str) -> list[int]:
        now = EPOCH + timedelta(seconds=now_s)
        return [step.n for step in looks(record, 2, modified=EPOCH, now=now, code=code)]

    assert [looked(10, "v1"), looked(10, "v2"), looked(181, "v1")] == [[1], [], []]
    assert [step.n for step in stands_still(record, 2)] == [0, 1]
    assert bare(record).suspended[0].codes == ["v1"]


def test_the_version_of_code_is_that_of_the_function_and_its_file() -> None:
    program = Program()
    versions = {code_version(each) for each in (program.old, program.new, program.other, code_version)}
    assert len(versions) == 4
    assert code_version(program.old) == code_version(Program().old)
    task: Any = limpet.open("memory://").task("a")(lambda: None)
    assert code_version(task.handle) == code_version(task.__wrapped__)
    assert code_version(len) == ""


# ---- as workers run it ----


def test_changed_code_waits_and_charges_no_attempt(world: World) -> None:
    program, operator = Program(), world.process(max_attempts=1)
    pushed = operator.queue.push({})
    work(world.process(max_attempts=1), program.old)
    operator.runtime.sleep(61)
    events = work(world.process(max_attempts=1), program.new)
    assert kinds(events) == ["started", "warning", "suspended"]
    facts = operator.queue.describe(pushed.id) or {}
    assert (facts["state"], facts["reason"], facts["waits_for_code"]) == ("suspended", WHY, True)
    assert [step["name"] for step in facts["steps"]] == ["first", "reserve", "of 60 s"]
    [summary] = summarize(operator.store, operator.runtime)
    assert (summary.suspended, summary.waits_for_code, summary.suspended_reason) == (1, 1, WHY)
    work(world.process(max_attempts=1), program.old)
    result = pushed.result()
    assert (result.value, result.attempts) == (["first", "reserve"], 1)
    assert program.calls == ["first", "reserve"]


def test_a_sleep_goes_on_after_a_wait_for_code(world: World) -> None:
    program, operator = Program(), world.process()
    pushed = operator.queue.push({"sleep": 7200})
    work(world.process(), program.old)
    operator.runtime.sleep(7201)
    work(world.process(), program.new)
    began_s = operator.runtime.elapsed_s()
    work(world.process(), program.other)
    assert operator.queue.describe(pushed.id)["reason"].startswith("waits for code")  # type: ignore[index]
    work(world.process(), program.old)
    assert pushed.result().ok
    assert operator.runtime.elapsed_s() - began_s < CODE_MIN_S, "it began two hours ago"


def test_each_version_tries_once_and_then_time_counts(world: World) -> None:
    program, operator = Program(), world.process()
    operator.queue.push({"sleep": 1})
    work(world.process(max_attempts=1), program.old)
    operator.runtime.sleep(2)
    tries: list[float] = []

    def changed(payload: Any) -> None:
        tries.append(operator.runtime.elapsed_s())
        limpet.step(program.note, "x", name="charge")

    def also(payload: Any) -> None:
        changed(payload)

    process = world.process(max_attempts=1)
    for _ in range(300):
        work(process, changed)
        work(world.process(max_attempts=1), changed)
        work(world.process(max_attempts=1), also)
        operator.runtime.sleep(30)
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses[0] < 60, "the other version tries at once"
    assert min(pauses[1:]) > CODE_MIN_S - 30
    assert max(pauses) < CODE_MAX_S + 180
    assert len(tries) < 25


def test_a_worker_that_is_to_end_leaves_what_waits_for_other_code(world: World) -> None:
    program, process = Program(), world.process()
    process.queue.push({"sleep": 1})
    work(process, program.old)
    process.runtime.sleep(2)
    began_s = process.runtime.elapsed_s()
    events = work(process, program.new, until_empty=True)
    assert process.runtime.elapsed_s() - began_s < CODE_MIN_S
    assert events[-1].note == f"1 task is suspended, and nothing here wakes it: {WHY}"


# ---- failed by command ----


def test_fail_ends_what_no_worker_holds(world: World) -> None:
    program, operator = Program(), world.process(max_attempts=1)
    queue = operator.queue
    waiting, delayed = queue.push({}), queue.push({}, id="later", delay_s=3600)
    batch = queue.push_many([{"n": n} for n in range(3)])
    assert queue.fail(waiting.id)
    assert queue.fail("later", "withdrawn")
    assert (waiting.result().state, waiting.result().error) == ("failed", "failed by command")
    assert (delayed.result().state, delayed.result().error) == ("failed", "withdrawn")
    assert queue.fail(batch[1])
    assert sorted(operator.drain()) == [batch[0], batch[2]]
    assert [queue.result(id_).state for id_ in batch] == ["completed", "failed", "completed"]
    assert [queue.fail(id_) for id_ in (waiting.id, "later", batch[0], batch[1])] == [False] * 4
    with pytest.raises(Missing, match="there is no task 'nope' waiting"):
        queue.fail("nope")
    with pytest.raises(Invalid, match="is a batch"):
        queue.fail(batch[0].rpartition(".")[0])
    assert not program.calls


def test_fail_is_refused_while_a_worker_holds_the_task(world: World) -> None:
    operator, worker = world.process(), world.process()
    pushed = operator.queue.push({})
    claim, task = worker.start()
    with pytest.raises(Conflict, match="cannot be failed: a worker at"):
        operator.queue.fail(pushed.id)
    task.done("done")
    assert claim.over
    assert pushed.result().value == "done"
    cancelled = operator.queue.push({}, id="c")
    worker.start()
    assert operator.queue.cancel("c")
    assert not operator.queue.fail("c")
    assert cancelled.result().state == "cancelled"


def test_a_failed_wait_for_code_is_retried_with_its_steps(world: World) -> None:
    program, operator = Program(), world.process(max_attempts=1)
    pushed = operator.queue.push({})
    work(world.process(max_attempts=1), program.old)
    operator.runtime.sleep(61)
    work(world.process(max_attempts=1), program.new)
    assert operator.queue.fail(pushed.id)
    assert operator.queue.stats().pending == 0
    [retried] = operator.queue.retry(all=True)
    work(world.process(max_attempts=1), program.old)
    operator.runtime.sleep(61)
    work(world.process(max_attempts=1), program.old)
    assert operator.queue.result(retried).ok
    assert program.calls == ["first", "reserve"]


def test_the_waits_of_a_batch_go_on_when_one_of_its_tasks_is_failed(world: World) -> None:
    operator, worker = world.process(), world.process()
    one, two = operator.queue.push_many([{}, {}])
    with worker.take() as claim:
        for task in claim:
            task.retry(after_s=500)
    assert operator.queue.fail(one)
    lease = world.lease(one.rpartition(".")[0])
    assert lease.state is State.FREE
    assert 490 < lease.wait_s <= 500
    operator.runtime.sleep(501)
    assert operator.drain() == [two]


@pytest.mark.parametrize(
    ("what", "cost"),
    [
        ("pending", {"get": 2, "head": 3, "put": 2, "delete": 2}),
        ("delayed", {"get": 2, "head": 1, "list": 1, "put": 1, "delete": 1}),
    ],
)
def test_what_fail_costs(what: str, cost: dict[str, int]) -> None:
    world = World()
    operator = world.process()
    operator.queue.push({}, id="a", delay_s=60.0 if what == "delayed" else 0.0)
    assert operator.cost(lambda: operator.queue.fail("a")) == cost
    assert world.names() == ["failed/a.json"]
