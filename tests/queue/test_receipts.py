"""Receipts: how a task ended, told once, whoever finishes late."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kernel_helpers import EPOCH, late, lost_reply, own_conflict
from limpet.errors import Invalid, Missing, OutcomeUnknown, Unavailable
from limpet.lease import State
from limpet.queue import Result
from queue_helpers import TTL_S, World, raises, rounds


def test_what_a_completed_receipt_tells(world: World) -> None:
    process = world.process()
    process.queue.push({"n": 1}, id="x")
    world.time.sleep(5)
    _, task = process.start()
    world.time.sleep(5)
    task.done([1, 2])
    receipt = world.receipt("completed/x")
    assert (receipt.state, receipt.id, receipt.count, receipt.attempts, receipt.token) == ("completed", "x", 1, 1, 1)
    assert (receipt.worker_id, receipt.label) == ("p1", "host:p1")
    assert bytes(receipt.payload) == b'{"n":1}'
    assert bytes(receipt.result) == b"[1,2]"
    assert receipt.pushed_at is not None
    assert receipt.finished_at - receipt.pushed_at >= timedelta(seconds=10)
    assert (receipt.error, receipt.traceback, receipt.failed, receipt.parts) == (None, None, [], [])


def test_what_a_result_tells(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    process.start()[1].retry(after_s=0, error="first")
    process.start()[1].fail("second", "a trace")
    assert process.queue.result("x") == Result(
        id="x",
        state="failed",
        error="second",
        traceback="a trace",
        worker="host:p1",
        attempts=2,
        finished_at=EPOCH + timedelta(seconds=world.time.now_s),
    )
    assert process.queue.result("x").ready


@pytest.mark.parametrize(("id_", "state"), [("pending", "pending"), ("later", "scheduled"), ("nobody", "unknown")])
def test_what_a_result_tells_of_a_task_that_has_not_ended(world: World, id_: str, state: str) -> None:
    process = world.process()
    process.queue.push({}, id="pending")
    process.queue.push({}, id="later", delay_s=100)
    assert process.queue.result(id_) == Result(id_, state)  # type: ignore[arg-type]
    assert not process.queue.result(id_).ready


def test_a_task_of_a_batch_that_has_not_ended(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(2))
    assert process.queue.result(ids[0]).state == "pending"
    next(iter(process.take())).done()
    assert process.queue.result(ids[0]).state == "pending", "not written down yet"


def test_a_task_that_ends_between_two_looks_is_not_unknown(world: World) -> None:
    process, other = world.process(), world.process()
    process.queue.push({}, id="x")
    _, task = other.start()
    process.store.before("head", "task.json", task.done)
    assert process.queue.result("x").state == "completed"


def test_a_receipt_that_moves_between_two_looks_is_not_unknown(world: World) -> None:
    world.process().queue.push({}, id="x")
    zombie = world.killed(max_attempts=1)
    world.process(max_attempts=1).drain()
    process = world.process()

    def the_receipt_moves() -> None:
        zombie.done()
        world.process().queue.sweep()

    process.store.before("get", "failed/x.json", the_receipt_moves)
    assert process.queue.result("x").state == "completed"


@pytest.mark.parametrize("bad", ["", 5, b"x", "a\x00b", "\ud800"])
@pytest.mark.parametrize("verb", ["result", "cancel", "retry"])
def test_ids_that_no_task_has(world: World, bad: Any, verb: str) -> None:
    with pytest.raises(Invalid):
        getattr(world.process().queue, verb)(bad)
    assert world.names() == []


@pytest.mark.parametrize("verb", ["result", "cancel", "retry"])
def test_ids_of_any_length_are_looked_for(world: World, verb: str) -> None:
    for id_ in ("a" * 26 + "." + "1" * 5000, "x" * 5000, "x~" + "1" * 5000):
        try:
            found = getattr(world.process().queue, verb)(id_)
        except (Missing, Invalid):
            continue
        assert found == Result(id_, "unknown")


@pytest.mark.parametrize("text", ["word " * 1000, "\u2028\x00\x85" * 1000])
def test_long_errors_are_cut_and_the_end_of_a_trace_is_kept(world: World, text: str) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    process.start()[1].fail(text, "head " + text * 5 + " tail")
    result = process.queue.result("x")
    assert result.error is not None
    assert result.traceback is not None
    assert text.startswith(result.error[:1000])
    assert len(result.error) <= 2000
    assert len(result.traceback) <= 8000
    assert result.traceback.endswith(" tail")
    assert len(world.read("failed/x.json")) < 100_000


# ---- the first one that finishes ----


def test_h4_finished_after_the_lease_was_lost_is_finished(world: World) -> None:
    world.process().queue.push({}, id="x")
    zombie = world.killed(max_attempts=1)
    two = world.process(max_attempts=1)
    assert two.drain() == []
    assert two.queue.result("x").state == "failed"
    zombie.done("late, but done")
    assert (two.queue.result("x").state, two.queue.result("x").value) == ("completed", "late, but done")
    two.queue.sweep()
    assert world.names() == ["completed/x.json"]


def test_h4_while_somebody_else_is_at_it(world: World) -> None:
    world.process().queue.push({}, id="x")
    zombie = world.killed()
    two = world.process()
    claim, again = two.start()
    zombie.done("first")
    assert world.names() == ["completed/x.json"]
    world.time.sleep(TTL_S / 2)
    assert claim.lost
    again.done("second")
    assert world.names() == ["completed/x.json"]
    assert two.queue.result("x").value == "first"


@pytest.mark.parametrize("verdict", ["fail", "retry", "hand back"])
def test_after_a_zombie_has_finished_nobody_can_undo_it(world: World, verdict: str) -> None:
    world.process().queue.push({}, id="x")
    zombie = world.killed()
    two = world.process()
    claim, again = two.start()
    zombie.done("first")
    with claim:
        match verdict:
            case "fail":
                again.fail("second")
            case "retry":
                again.retry(after_s=0)
            case _:
                claim.hand_back()
    two.queue.sweep()
    assert two.drain() == []
    assert world.names() == ["completed/x.json"]
    assert two.queue.result("x").value == "first"


def test_two_zombies_and_one_receipt(world: World) -> None:
    world.process().queue.push({}, id="x")
    one, two, three = (world.killed() for _ in range(3))
    two.done("two")
    one.done("one")
    three.done("three")
    assert world.names() == ["completed/x.json"]
    assert world.process().queue.result("x").value == "two"


def test_done_after_the_task_was_handed_back_counts(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    claim, task = process.start()
    claim.hand_back()
    task.done("all the same")
    assert process.queue.result("x").value == "all the same"
    assert process.drain() == []
    assert world.names() == ["completed/x.json"]


# ---- unclear answers ----


@pytest.mark.parametrize("verdict", ["done", "fail"])
@pytest.mark.parametrize("fault", [lost_reply, own_conflict])
def test_a_receipt_of_our_own_is_recognised(world: World, verdict: str, fault: Any) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    _, task = process.start()
    process.store.puts.append(fault)
    if verdict == "done":
        task.done("mine")
    else:
        task.fail("mine")
    assert len(world.names()) == 1
    assert process.queue.result("x").state == ("completed" if verdict == "done" else "failed")


@pytest.mark.parametrize("verdict", ["done", "fail"])
def test_nothing_is_removed_before_the_receipt_is_certain(world: World, verdict: str) -> None:
    """F4: clean up only after a definite answer."""
    process = world.process()
    process.queue.push({}, id="x")
    _, task = process.start()
    process.store.before("put", "/x.json", raises(OutcomeUnknown("no answer")))
    with pytest.raises(OutcomeUnknown):
        task.done() if verdict == "done" else task.fail("no")
    assert world.names() == ["pending/x/lease.json", "pending/x/task.json"]


def test_a_receipt_that_lands_late_is_the_same_receipt(world: World) -> None:
    pending: list[Any] = []
    process = world.process()
    process.queue.push({}, id="x")
    with process.take() as claim:
        for task in claim:
            process.store.puts.append(late(pending))
            with pytest.raises(OutcomeUnknown):
                task.done("kept")
    assert process.queue.result("x").value == "kept"
    with pytest.raises(Exception, match="exists"):
        pending[0]()
    assert world.names() == ["completed/x.json"]


def test_a_failed_verdict_that_could_not_be_written_leaves_the_task_to_the_next(world: World) -> None:
    process = world.process(max_attempts=2)
    process.queue.push({}, id="x")

    def work() -> None:
        with process.take() as claim:
            for task in claim:
                process.store.before("put", "failed/x.json", raises(Unavailable("away")))
                task.fail("no")

    with pytest.raises(Unavailable):
        work()
    assert world.facts("x")[0] is State.FREE
    assert process.drain() == ["x"]


def test_receipts_are_never_rewritten_by_a_second_end(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    process.drain(lambda task: task.done("one"))
    before = world.read("completed/x.json")
    process.queue.push({}, id="x")
    process.drain(lambda task: task.done("two"))
    assert not process.queue.cancel("x")
    process.queue.sweep()
    assert world.read("completed/x.json") == before
