"""The life of a task: what belongs to another one is not there; what belongs to one that has not ended has no age."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any

import msgspec
import pytest

import limpet
from limpet.kernel.errors import Corrupt, LeaseLost, Unsupported
from limpet.kernel.keys import retry_tag
from limpet.queue import BucketQueue, Policy
from limpet.queue.claim import EntryTask
from limpet.queue.entry import TaskRecord, read_task
from limpet.queue.steps import RUNNING, Suspend, TaskSteps
from support.queue import NAME, ROOT, Crash, Process, World, crash, rounds

DAY_S = 86400.0
RETENTION_S = 30 * DAY_S


class Flow:
    """A durable task of a process: its function, the steps that ran, and the keys that it had."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.ran: list[Any] = []
        self.keys: list[str] = []
        self.step_keys: list[str] = []
        self.broken = False

    def note(self, value: Any) -> Any:
        """What a step does."""
        steps = RUNNING.get()
        assert steps is not None
        self.step_keys.append(steps.key)
        self.ran.append(value)
        return value

    def charge(self, task: EntryTask) -> Any:
        """A handler with one step, that fails while it is `broken`."""
        value = limpet.step(self.note, f"charged {task.payload['of']}", name="charge")
        if self.broken:
            raise limpet.Fail("no money")
        return value

    def run(self, task: EntryTask, handle: Callable[[EntryTask], Any] | None = None) -> None:
        """As a worker does."""
        self.keys.append(task.key)
        token = RUNNING.set(TaskSteps(self.process.queue, task))
        try:
            task.done((handle or self.charge)(task))
        except Suspend as error:
            task.suspend(error.wait_s, error.suspension)
        except limpet.Fail as error:
            task.fail(str(error))
        finally:
            RUNNING.reset(token)

    def work(self, handle: Callable[[EntryTask], Any] | None = None, *, idle_s: float = 100.0) -> list[str]:
        """Work until nothing was there for a while."""
        return self.process.drain(lambda task: self.run(task, handle), idle_s=idle_s)


def flow_of(world: World, **policy: Any) -> Flow:
    return Flow(world.process(retention_s=RETENTION_S, **policy))


def expire(world: World, *names: str) -> None:
    """The receipts have expired, and what `retain` removes after them has not: its process died."""
    for name in names:
        world.delete(name)


def left(world: World) -> list[str]:
    """Every object of the queue but the record of the last sweep."""
    return [name for name in world.names() if name != "sweep.json"]


# ---- what belongs to another life is not there ----


def test_the_steps_of_an_earlier_life_do_not_count(world: World) -> None:
    flow = flow_of(world)
    flow.broken = True
    flow.process.queue.push({"of": "ann"}, id="order-7")
    flow.work()
    expire(world, "failed/order-7.json")
    flow.broken = False
    assert flow.process.queue.push({"of": "bob"}, id="order-7").created
    flow.work()
    assert flow.process.queue.result("order-7").value == "charged bob"
    assert flow.ran == ["charged ann", "charged bob"]
    assert world.names() == ["completed/order-7.json", "parts/order-7/history-1.json"]


def test_nor_where_a_takeover_reads_them(world: World) -> None:
    flow = flow_of(world)
    flow.broken = True
    flow.process.queue.push({"of": "ann"}, id="order-7")
    flow.work()
    expire(world, "failed/order-7.json")
    flow.broken = False
    flow.process.queue.push({"of": "bob"}, id="order-7")
    ghost = world.process()
    ghost.start()
    ghost.freeze()
    flow.work()
    assert flow.process.queue.result("order-7").value == "charged bob"


def test_nor_does_a_signal_to_an_earlier_life(world: World) -> None:
    flow = flow_of(world)
    queue = flow.process.queue

    def wait(task: EntryTask) -> Any:
        return limpet.wait_signal("approved", timeout_s=DAY_S, default="nobody")

    queue.push({}, id="order-7")
    queue.signal("order-7", "approved", "by ann")
    sent = world.read("steps/order-7/signals/0.approved.json")
    flow.work(wait)
    assert queue.result("order-7").value == "by ann"
    world.write("steps/order-7/signals/0.approved.json", sent)
    expire(world, "completed/order-7.json")
    queue.push({}, id="order-7")
    flow.work(wait)
    assert queue.result("order-7").state == "pending"
    assert queue.signal("order-7", "approved", "by bob"), "it is the first one of this life"
    assert not queue.signal("order-7", "approved", "by eve")
    flow.work(wait)
    assert queue.result("order-7").value == "by bob"


def test_a_worker_of_an_earlier_life_replaces_nothing(world: World) -> None:
    """It sleeps inside of a step until its id is used again, by a task whose lease has the same token."""
    flow, sleeper = flow_of(world), flow_of(world)
    queue = flow.process.queue
    queue.push({"of": "ann"}, id="order-7")
    held: list[EntryTask] = []

    def begin_another_life() -> None:
        flow.work()
        expire(world, "completed/order-7.json")
        assert queue.push({"of": "bob"}, id="order-7").created
        held.append(flow.process.start()[1])
        RUNNING.set(TaskSteps(queue, held[0]))
        limpet.step(flow.note, "charged bob", name="charge")

    def fall_asleep() -> str:
        sleeper.process.freeze()
        Context().run(begin_another_life)
        return "charged ann, late"

    _, task = sleeper.process.start()
    with pytest.raises(LeaseLost):
        sleeper.run(task, lambda task: limpet.step(fall_asleep, name="charge"))
    assert b"charged bob" in world.read("steps/order-7/0.0000.json")
    held[0].done("bob's")
    assert queue.result("order-7").value == "bob's"


@pytest.mark.parametrize("many", [False, True])
def test_a_worker_that_wakes_up_in_another_life_ends_nothing(world: World, many: bool) -> None:
    process, sleeper = world.process(retention_s=RETENTION_S), world.process()

    def push() -> str:
        if many:
            return process.queue.push_many(rounds(1), id="many")[0]
        return process.queue.push({}, id="order-7").id

    id_ = push()
    _, task = sleeper.start()
    sleeper.freeze()
    assert process.drain(lambda task: task.done("ann's")) == [id_]
    world.time.sleep(RETENTION_S + DAY_S)
    process.queue.sweep()
    push()
    task.done("ann's, late")
    sleeper.queue.flush()
    assert process.drain(lambda task: task.done("bob's")) == [id_]
    assert process.queue.result(id_).value == "bob's"


def test_a_retry_from_scratch_takes_nothing_from_a_retry_that_died(world: World) -> None:
    flow = flow_of(world)
    queue = flow.process.queue
    flow.broken = True
    queue.push({"of": "ann"}, id="order-7")
    flow.work()
    flow.process.store.before("put", "pending/order-7~1/task.json", crash)
    with pytest.raises(Crash):
        queue.retry("order-7")
    assert "steps/order-7~1/0.0000.json" in world.names()
    flow.broken = False
    assert queue.retry("order-7", from_scratch=True) == ["order-7~1"]
    assert queue.retry("order-7", from_scratch=True) == ["order-7~1"]
    flow.work()
    assert flow.ran == ["charged ann", "charged ann"]
    assert flow.keys[0] != flow.keys[1]
    assert queue.result("order-7").value == "charged ann"


def test_a_task_that_was_restored_is_looked_at_for_steps(world: World) -> None:
    """The backup copied the pending task before it was claimed, and its steps afterwards."""
    flow = flow_of(world)
    flow.process.queue.push({"of": "ann"}, id="order-7")
    task = world.read("pending/order-7/task.json")
    flow.broken = True
    flow.work()
    world.delete("failed/order-7.json")
    world.write("pending/order-7/task.json", task)
    restored = Flow(world.process())
    restored.process.queue = BucketQueue(
        restored.process.store, NAME, restored.process.runtime, policy=Policy(ttl_s=60.0), epoch=1
    )
    restored.work()
    assert restored.process.queue.result("order-7").value == "charged ann"
    assert (flow.ran, restored.ran) == (["charged ann"], [])


def test_a_push_in_the_fleets_own_epoch_costs_no_list(world: World) -> None:
    process = world.process()
    process.queue = BucketQueue(process.store, NAME, process.runtime, policy=Policy(ttl_s=60.0), epoch=lambda: 3)
    flow = Flow(process)
    process.queue.push({"of": "ann"})
    _, task = process.start()
    assert process.cost(lambda: flow.run(task)) == {"put": 3, "list": 1, "delete": 3}


# ---- derived names come from the life ----


def test_the_retry_of_an_earlier_life_is_not_that_of_a_later_one(world: World) -> None:
    """January's retry sleeps; its receipt has expired, and february's task of the same id has failed."""
    flow = flow_of(world)
    queue = flow.process.queue
    flow.broken = True
    queue.push({"of": "january"}, id="report")
    flow.work()
    assert queue.retry("report") == ["report~1"]
    expire(world, "failed/report.json")
    world.time.sleep(DAY_S)
    assert queue.push({"of": "february"}, id="report").created
    _, january = flow.process.start()

    def sleep(task: EntryTask) -> None:
        flow.charge(task)
        limpet.sleep(300 * DAY_S)

    flow.broken = False
    flow.run(january, sleep)
    flow.broken = True
    flow.work()
    [again] = queue.retry("report")
    assert again == f"report~1{retry_tag(flow.keys[2])}"
    assert queue.retry("report") == [again]
    flow.broken = False
    assert flow.work() == [again]
    assert queue.result("report").value == "charged february"
    assert flow.ran == ["charged january", "charged february"]
    assert queue.result("report~1").state == "pending"


@pytest.mark.parametrize("kept", [False, True])
def test_a_retry_whose_name_was_taken_is_made_once(world: World, kept: bool) -> None:
    """It dies after the push; then the name that was taken becomes free."""
    flow = flow_of(world)
    queue = flow.process.queue
    flow.broken = True
    queue.push({"of": "january"}, id="report")
    flow.work()
    queue.retry("report")
    expire(world, "failed/report.json")
    queue.push({"of": "february"}, id="report")
    flow.process.drain(lambda task: flow.run(task) if task.id == "report" else task.done("of january"))
    puts = iter(range(3))
    flow.process.store.before("put", "failed/report.json", lambda: next(puts))
    flow.process.store.before("put", "failed/report.json", crash)
    with pytest.raises(Crash):
        queue.retry("report", from_scratch=not kept)
    expire(world, "completed/report~1.json")
    [again] = queue.retry("report", from_scratch=not kept)
    assert again.startswith("report~1-")
    flow.broken = False
    assert flow.work() == [again]
    assert flow.ran == ["charged january", "charged february"] + ["charged february"] * (not kept)


def test_a_retry_that_an_older_version_pushed_is_recognised(world: World) -> None:
    """It has no life: it was pushed after the task that failed."""
    flow = flow_of(world)
    queue = flow.process.queue
    queue.push({"of": "ann"}, id="x")
    flow.process.drain(lambda task: task.fail("no"))
    queue.retry("x")
    old = msgspec.structs.replace(read_task(world.read("pending/x~1/task.json"), what=""), life=msgspec.UNSET)
    world.write("pending/x~1/task.json", msgspec.json.encode(old))
    failed = msgspec.json.decode(world.read("failed/x.json"))
    for field in ("life", "retried_as"):
        failed.pop(field)
    world.write("failed/x.json", msgspec.json.encode({**failed, "state": "failed"}))
    assert queue.retry("x") == ["x~1"]
    assert flow.process.drain() == ["x~1"]
    assert queue.result("x").state == "completed"


def test_a_retry_goes_on_under_the_names_that_an_older_version_derived(world: World) -> None:
    flow = flow_of(world)
    queue = flow.process.queue
    [id_] = queue.push_many([{"of": "ann"}])
    entry = id_.rpartition(".")[0]
    flow.broken = True
    flow.work()
    failed = msgspec.json.decode(world.read(f"failed/{id_}.json"))
    assert failed["origin"] == f"{ROOT}/{id_}@{entry.rpartition('-')[0]}"
    failed.pop("life")
    world.write(f"failed/{id_}.json", msgspec.json.encode(failed))
    [again] = queue.retry(id_)
    flow.work(
        lambda task: (
            limpet.step(flow.note, "charged ann", name="charge") and limpet.step(flow.note, "last", name="last")
        )
    )
    assert flow.keys == [f"{entry.rpartition('-')[0]}.0"] * 2
    assert flow.step_keys == [f"{failed['origin']}#0", f"{failed['origin']}#1"]
    assert queue.result(again).value == "last"


@pytest.mark.parametrize("batch", [None, 2])
def test_a_task_has_one_key_in_each_attempt_and_each_retry(world: World, batch: int | None) -> None:
    flow = flow_of(world, max_attempts=2)
    queue = flow.process.queue

    def push() -> None:
        if batch:
            queue.push_many(rounds(2), id="many", batch=batch)
        else:
            queue.push({}, id="order-7")

    def fail(task: EntryTask) -> None:
        flow.keys.append(task.key)
        task.retry(0.0, "again")

    keys: list[set[str]] = []
    for _ in range(2):
        push()
        flow.keys.clear()
        for _ in range(3):
            flow.process.drain(fail)
            queue.retry(all=True)
        queue.cancel("order-7~3") if not batch else queue.purge()
        keys.append({*flow.keys})
        assert len(flow.keys) == (6 if not batch else 12)
        expire(world, *[name for name in world.names() if name.startswith(("failed/", "completed/", "pushes/"))])
    assert [len(each) for each in keys] == [batch or 1] * 2
    assert keys[0].isdisjoint(keys[1])


# ---- what belongs to a life that has not ended has no age ----


def test_the_results_of_a_batch_stay_while_one_of_its_tasks_sleeps(world: World) -> None:
    flow = flow_of(world, max_attempts=1)
    queue = flow.process.queue
    ids = queue.push_many(rounds(3), batch=3, id="many")

    def handle(task: EntryTask) -> Any:
        if task.id == ids[0]:
            return "y" * 2000
        if task.id == ids[1]:
            raise limpet.Fail("a bad page")
        limpet.sleep(100 * DAY_S)
        return "awake"

    flow.work(handle)
    before = [(each.state, each.value, each.error) for each in queue.results(ids)]
    assert [state for state, _, _ in before] == ["completed", "failed", "pending"]
    for _ in range(9):
        world.time.sleep(10 * DAY_S)
        queue.sweep()
    assert [(each.state, each.value, each.error) for each in queue.results(ids)] == before
    with pytest.raises(limpet.Conflict):
        queue.push_many(rounds(3), batch=1, id="many")
    world.time.sleep(10 * DAY_S)
    assert flow.work(handle) == [ids[2]]
    world.time.sleep(RETENTION_S - DAY_S)
    queue.sweep()
    assert [each.value for each in queue.results(ids)] == ["y" * 2000, None, "awake"], "retention counts from the end"
    assert queue.retry(ids[1]) == [f"{ids[1]}~1"]
    world.time.sleep(2 * DAY_S)
    queue.sweep()
    assert flow.process.drain(idle_s=1.0) == [f"{ids[1]}~1"]
    world.time.sleep(RETENTION_S + DAY_S)
    queue.sweep()
    assert left(world) == []
    assert queue.push_many(rounds(3), batch=1, id="many")


def test_those_of_a_batch_in_a_paused_queue_stay_too(world: World) -> None:
    flow = flow_of(world)
    queue = flow.process.queue
    ids = queue.push_many(rounds(2), batch=2)
    claim = flow.process.take()
    with claim:
        next(iter(claim)).done("y" * 2000)
        claim.renew()
    queue.pause()
    world.time.sleep(RETENTION_S + DAY_S)
    queue.sweep()
    queue.resume()
    flow.process.drain(lambda task: task.done("second"))
    assert [each.value for each in queue.results(ids)] == ["y" * 2000, "second"]


def test_a_result_that_is_gone_is_an_error(world: World) -> None:
    process = world.process()
    [id_] = process.queue.push_many(rounds(1))
    process.drain(lambda task: task.done("y" * 2000))
    [part] = [name for name in world.names() if name.startswith("parts/")]
    world.delete(part)
    with pytest.raises(Corrupt, match="is gone"):
        process.queue.result(id_)
    [result] = process.queue.results([id_])
    assert (result.state, result.value) == ("unknown", None)
    assert part in (result.error or "")


def test_a_retried_receipt_stays_as_long_as_its_retry(world: World) -> None:
    flow = flow_of(world)
    queue = flow.process.queue
    flow.broken = True
    queue.push({"of": "january"}, id="report")
    flow.work()
    queue.retry("report")
    flow.work()
    queue.retry("report~1")

    def sleep(task: EntryTask) -> Any:
        limpet.sleep(100 * DAY_S)
        return "awake"

    flow.work(lambda task: limpet.step(flow.note, "charged january", name="charge") and sleep(task))
    world.time.sleep(RETENTION_S + DAY_S)
    queue.sweep()
    assert not queue.push({"of": "february"}, id="report").created
    assert queue.result("report").id == "report~2"
    world.time.sleep(80 * DAY_S)
    flow.work(lambda task: limpet.step(flow.note, "charged january", name="charge") and sleep(task))
    world.time.sleep(RETENTION_S - DAY_S)
    queue.sweep()
    assert queue.result("report").value == "awake"
    world.time.sleep(2 * DAY_S)
    queue.sweep()
    assert left(world) == []


def test_an_entry_that_is_cut_short_by_a_crash_of_retain_goes_later(world: World) -> None:
    """Its receipt is the last to go, so that no later entry of its name meets what is left."""
    flow = flow_of(world, max_attempts=1)
    queue = flow.process.queue
    ids = queue.push_many(rounds(2), batch=2, id="many")
    flow.process.drain(lambda task: task.fail("no") if task.id == ids[0] else task.done("y" * 2000))
    world.time.sleep(RETENTION_S + DAY_S)
    entry = ids[0].rpartition(".")[0]
    flow.process.store.before("delete", f"completed/{entry}.json", crash)
    with pytest.raises(Crash):
        queue.sweep()
    assert not any(name.startswith(("failed/", "parts/")) for name in world.names())
    assert f"completed/{entry}.json" in world.names()
    queue.sweep()
    assert left(world) == []


# ---- what may have steps says so ----


def test_a_retry_keeps_the_steps_of_a_worker_that_died_before_its_first_heartbeat(world: World) -> None:
    flow = flow_of(world, max_attempts=2)
    queue = flow.process.queue
    queue.push({"of": "ann"}, id="order-7")
    ghost = Flow(world.process())
    _, task = ghost.process.start()
    ghost.process.freeze()
    token = RUNNING.set(TaskSteps(ghost.process.queue, task))
    limpet.step(ghost.note, "charged ann", name="charge")
    RUNNING.reset(token)
    flow.process.drain(lambda task: task.fail("before its first step"))
    queue.retry("order-7")
    flow.work()
    assert queue.result("order-7").value == "charged ann"
    assert flow.ran == []


def test_a_cancelled_task_keeps_its_steps_for_a_retry(world: World) -> None:
    flow = flow_of(world)
    queue = flow.process.queue
    queue.push({"of": "ann"}, id="order-7")
    _, task = flow.process.start()
    token = RUNNING.set(TaskSteps(queue, task))
    limpet.step(flow.note, "charged ann", name="charge")
    RUNNING.reset(token)
    assert queue.cancel("order-7")
    flow.process.freeze()
    world.time.sleep(DAY_S)
    other = Flow(world.process())
    other.process.queue.sweep()
    assert other.process.queue.retry("order-7") == ["order-7~1"]
    other.work()
    assert other.process.queue.result("order-7").value == "charged ann"
    assert other.ran == []
    assert world.names() == ["completed/order-7~1.json", "failed/order-7.json", "parts/order-7~1/history-1.json"]


def test_a_task_that_nobody_held_has_no_steps_when_it_is_cancelled(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    process.queue.cancel("x")
    assert process.cost(lambda: process.queue.retry("x")) == {"get": 2, "put": 2, "head": 2}


def test_a_retry_with_recorded_steps_is_refused_by_workers_that_know_none(world: World) -> None:
    flow = flow_of(world)
    queue = flow.process.queue
    flow.broken = True
    queue.push({"of": "ann"}, id="durable")
    flow.work()
    queue.push({}, id="plain")
    flow.process.drain(lambda task: task.fail("no"))
    queue.retry(all=True)
    schemas = {
        id_: msgspec.json.decode(world.read(f"pending/{id_}/task.json"), type=TaskRecord).schema
        for id_ in ("durable~1", "plain~1")
    }
    assert schemas == {"durable~1": 2, "plain~1": 1}
    later = msgspec.structs.replace(read_task(world.read("pending/durable~1/task.json"), what=""), schema=3)
    with pytest.raises(Unsupported, match="schema 3; this limpet reads up to 2"):
        read_task(msgspec.json.encode(later), what="it")


# ---- smaller ----


def test_purge_keeps_the_ids_of_delayed_pushes_used(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="later", delay_s=DAY_S)
    process.queue.push({}, delay_s=DAY_S)
    assert process.queue.purge() == 2
    assert world.names() == ["failed/later.json"]
    assert not process.queue.push({}, id="later").created
    assert process.queue.result("later").state == "cancelled"


@pytest.mark.parametrize("timeout_s", [None, 3600.0])
def test_a_retry_asks_again_for_the_ends_of_tasks_that_had_failed(world: World, timeout_s: float | None) -> None:
    flow = flow_of(world, durable=True)
    queue = flow.process.queue
    queue.push({"what": "parent"}, id="parent")
    good: list[str] = []

    def handle(task: EntryTask) -> Any:
        if task.payload["what"] == "child":
            if not good:
                raise limpet.Fail("a bad page")
            return "a good page"
        [end] = limpet.gather([queue.push({"what": "child"}, id="child")], timeout_s=timeout_s)
        if not end.ok:
            raise limpet.Fail(f"the child: {end.error}")
        return end.value

    flow.work(handle, idle_s=1000.0)
    assert queue.result("parent").error == "the child: a bad page"
    world.time.sleep(DAY_S)
    good.append("now")
    queue.retry("child")
    queue.retry("parent")
    flow.work(handle, idle_s=1000.0)
    assert queue.result("parent").value == "a good page"


def test_a_gather_that_other_steps_follow_stays_as_it_was(world: World) -> None:
    flow = flow_of(world, durable=True)
    queue = flow.process.queue
    queue.push({"what": "parent"}, id="parent")

    def handle(task: EntryTask) -> Any:
        if task.payload["what"] == "child":
            raise limpet.Fail("a bad page")
        [end] = limpet.gather([queue.push({"what": "child"}, id="child")])
        limpet.step(flow.note, f"compensated for {end.state}", name="compensate")
        if flow.broken:
            raise limpet.Fail("no money")
        return end.state

    flow.broken = True
    flow.work(handle, idle_s=1000.0)
    flow.broken = False
    queue.retry("parent")
    flow.work(handle, idle_s=1000.0)
    assert queue.result("parent").value == "failed"
    assert flow.ran == ["compensated for failed"]
