"""Receipts: how a task ended, told once, whoever finishes late."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.lease import State
from limpet.queue import AttemptError, Result
from support.clock import EPOCH
from support.queue import TTL_S, World, raises, rounds
from support.stores import late, lost_reply, own_conflict


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
        errors=(
            AttemptError(1, EPOCH + timedelta(seconds=1000), "host:p1", "first", None),
            AttemptError(2, EPOCH + timedelta(seconds=world.time.now_s), "host:p1", "second", "a trace"),
        ),
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


@pytest.mark.parametrize("bad", ["", 5.5, b"x", "a\x00b", "\ud800"])
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
    process.store.away("put", "/x.json", OutcomeUnknown("no answer"))
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
                process.store.away("put", "failed/x.json", Unavailable("away"))
                task.fail("no")

    with pytest.raises(Unavailable):
        work()
    process.store.back()
    assert world.facts("x")[0] is State.FREE
    assert process.drain() == ["x"]


@pytest.mark.parametrize("verdict", ["done", "fail", "retry"])
@pytest.mark.parametrize("error", [Unavailable("away"), OutcomeUnknown("no answer")])
def test_an_end_is_tried_again_until_the_claim_ends(world: World, verdict: str, error: LimpetError) -> None:
    """Finished work is not run again because the store was away for a moment."""
    process = world.process()
    process.queue.push({}, id="x")
    claim, task = process.start()
    ending = {"done": "completed/x.json", "fail": "failed/x.json", "retry": "lease.json"}[verdict]
    process.freeze()
    for _ in range(5):
        process.store.before("put", ending, raises(error))
    {"done": lambda: task.done(1), "fail": lambda: task.fail("no"), "retry": lambda: task.retry(3600)}[verdict]()
    assert claim.over
    assert world.time.now_s - 1000 < TTL_S
    assert world.process().drain() == []
    assert process.queue.result("x").state == {"done": "completed", "fail": "failed", "retry": "pending"}[verdict]


def test_a_hand_back_does_not_wait_for_a_store_that_is_away(world: World) -> None:
    process = world.process()
    process.queue.push_many(rounds(2))
    claim = process.take()
    next(iter(claim)).done("kept")
    process.freeze()
    process.store.away("put", "lease.json", Unavailable("away"))
    claim.hand_back()
    assert world.time.now_s == 1000


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


# ---- what is told of failed attempts ----


def test_each_task_of_a_batch_has_its_own_error(world: World) -> None:
    """A task that kills its process is not said to have met its neighbour's error, nor is one that is done."""
    process = world.process(max_attempts=2)
    ids = process.queue.push_many(rounds(3))
    with process.take() as claim:
        for n, task in enumerate(claim):
            if n == 1:
                task.retry(after_s=0)
            elif n == 2:
                task.retry(after_s=0, error="429", traceback="the neighbour's")
            else:
                task.done()
    worker = world.process(max_attempts=2)
    assert [task.id for task in worker.take()] == [ids[1], ids[2]]
    worker.freeze()
    world.process(max_attempts=2).drain(idle_s=10 * TTL_S)
    results = [process.queue.result(id_) for id_ in ids]
    assert [result.state for result in results][:2] == ["completed", "failed"]
    assert results[0].error is None
    assert "worker died" in (results[1].error or "")
    assert all("429" not in f"{each.error}{each.traceback}" for each in results[:2])
    assert "429" in (results[2].error or "")
    assert all("429" not in f"{each.errors}" for each in results[:2])
    assert [error.error for error in results[2].errors][:1] == ["429"]


@pytest.mark.parametrize("batch", [False, True])
def test_the_traceback_of_each_attempt_is_kept_before_the_task_is_given_up(world: World, batch: bool) -> None:
    process = world.process(max_attempts=5)
    id_ = process.queue.push_many(rounds(1))[0] if batch else process.queue.push({}).id
    for n in range(1, 6):
        _, task = process.start()
        task.retry(after_s=0, error=f"no {n}", traceback=f"head {n} " + "x" * 5000 + f" tail {n}")
        kept = process.queue.errors(id_)
        assert [each.attempt for each in kept] == [*range(max(1, n - 2 - (n == 5)), n + 1)]
        assert all(each.error == f"no {each.attempt}" and each.worker == "host:p1" for each in kept)
        for each in kept:
            assert len(each.traceback or "") <= 2048
            assert (each.traceback or "").startswith(f"head {each.attempt} ")
            assert (each.traceback or "").endswith(f" tail {each.attempt}")
    result = process.queue.result(id_)
    assert (result.state, len(result.errors), len(result.traceback or "")) == ("failed", 4, 5014)


def test_a_death_is_one_of_the_attempts_that_are_told(world: World) -> None:
    world.process().queue.push({}, id="x")
    world.killed(max_attempts=1)
    world.process(max_attempts=1).drain(idle_s=10 * TTL_S)
    errors = world.process().queue.result("x").errors
    assert [each.worker for each in errors] == ["host:p2", "host:p3"]
    assert "worker died" in errors[0].error


def test_errors_of_a_thousand_tasks_do_not_swell_their_lease(world: World) -> None:
    process = world.process(max_attempts=9)
    ids = process.queue.push_many(rounds(1000), batch=1000)
    with process.take() as claim:
        for task in claim:
            task.retry(after_s=3600, error="e" * 1000, traceback="t" * 5000)
    (entry,) = {id_.rpartition(".")[0] for id_ in ids}
    assert len(world.read(f"pending/{entry}/lease.json")) < 150_000
    assert process.queue.errors(ids[-1])[0].error.startswith("eee")


def test_failures_are_grouped_by_error_and_retried_by_it(world: World) -> None:
    process = world.process(max_attempts=1)
    for n in range(5):
        process.queue.push({"n": n}, id=f"x{n}")
    process.drain(
        lambda task: task.fail(f"timeout after {task.payload['n']}.5 s" if task.payload["n"] < 3 else "No row")
    )
    first, second = process.queue.failed()
    assert (first.error, first.count, sorted(first.ids)) == ("timeout after # s", 3, ["x0", "x1", "x2"])
    assert (second.error, second.count, sorted(second.ids)) == ("No row", 2, ["x3", "x4"])
    assert sum(group.count for group in process.queue.failed(4)) == 4
    assert process.queue.retry(all=True, where="nothing like it") == []
    assert sorted(process.queue.retry(all=True, where="no ROW")) == ["x3~1", "x4~1"]
    assert [group.count for group in process.queue.failed()] == [3]
    world.time.sleep(1000)
    process.queue.push({"n": 0}, id="late")
    process.drain(lambda task: task.fail("no row"))
    assert [group.ids for group in process.queue.failed(since_s=500)] == [("late", "x3~1", "x4~1")]
    assert sorted(process.queue.retry(all=True, since_s=500)) == ["late~1", "x3~2", "x4~2"]
    with pytest.raises(Invalid, match="among all"):
        process.queue.retry("x0", where="timeout")


@pytest.mark.parametrize("retried_as", ["x", "y~1", "x~2", "../x", ""])
def test_a_receipt_that_names_no_next_life_is_not_followed(world: World, retried_as: str) -> None:
    process = world.process(max_attempts=1)
    process.queue.push({}, id="x")
    process.drain(lambda task: task.fail("no"))
    process.queue.retry("x")
    data = world.read("failed/x.json").replace(b'"retried_as":"x~1"', b'"retried_as":"%s"' % retried_as.encode())
    world.write("failed/x.json", data)
    if not retried_as:
        assert process.queue.result("x").state == "failed"
        return
    with pytest.raises(Corrupt, match="another task"):
        process.queue.result("x")


def test_what_rests_is_not_in_flight(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="rests")
    process.start()[1].retry(after_s=TTL_S)
    ids = process.queue.push_many(rounds(3))
    batch = process.take()
    by_id = {task.id: task for task in batch}
    by_id[ids[0]].retry(after_s=3600)
    by_id[ids[1]].done()
    process.queue.push({}, id="runs")
    process.take()
    process.queue.push({}, id="waits")
    world.time.sleep(TTL_S / 2)
    stats = process.queue.stats()
    assert (stats.pending, stats.in_flight) == (6, 2)
    assert stats.resting == 2
    world.time.sleep(TTL_S)
    assert process.queue.stats().resting == 1, "its rest is over"
    process.freeze()
    world.time.sleep(2 * TTL_S)
    assert process.queue.stats().in_flight == 0, "nobody renews them"
