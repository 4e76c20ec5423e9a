"""Batches: many tasks under one lease, each with its own verdict, result and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from limpet.kernel import records
from limpet.kernel.errors import Invalid, LimpetError, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key, QueueKeys
from limpet.kernel.lease import State
from limpet.queue import Result, Retry
from limpet.queue.claim import EntryClaim, EntryTask
from limpet.queue.entry import SignalRecord, Suspension
from limpet.queue.rows import task_rows
from limpet.queue.state import INLINE_BYTES_MAX, INLINE_TOTAL_MAX, PART_BYTES_MAX
from support.queue import TTL_S, Crash, Process, World, crash, held, raises, rounds
from support.stores import lost_reply, lost_request

LARGE = "x" * (INLINE_BYTES_MAX + 1)


def entry_of(ids: Sequence[str]) -> str:
    return ids[0].rpartition(".")[0]


def states(world: World, ids: Sequence[str]) -> list[str]:
    queue = world.process("looker").queue
    return [queue.result(id_).state for id_ in ids]


def values(world: World, ids: Sequence[str]) -> list[Any]:
    queue = world.process("looker").queue
    return [queue.result(id_).value for id_ in ids]


def parts(world: World) -> list[str]:
    return [key for key in world.names() if key.startswith("parts/")]


# ---- one life ----


def test_a_batch_is_one_claim_and_one_receipt(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(5))
    entry = entry_of(ids)
    with process.take() as claim:
        assert (claim.entry, claim.token) == (entry, 1)
        assert world.names() == [f"pending/{entry}/lease.json", f"pending/{entry}/tasks.jsonl"]
        found = []
        for task in claim:
            found.append((task.id, task.payload, task.attempt))
            task.done(task.payload["n"] * 2)
    assert found == [(id_, {"n": n}, 1) for n, id_ in enumerate(ids)]
    assert world.names() == [f"completed/{entry}.json"]
    assert states(world, ids) == ["completed"] * 5
    assert values(world, ids) == [0, 2, 4, 6, 8]
    receipt = world.receipt(f"completed/{entry}")
    assert (receipt.count, receipt.failed, receipt.id) == (5, [], entry)


@pytest.mark.parametrize(("tasks", "name"), [(1000, "crawl"), (80, "c" * 120)])
def test_a_batch_is_suspended_whatever_its_tasks_wait_for(world: World, tasks: int, name: str) -> None:
    """100 keys each: together more than a lease has room for."""
    keys = QueueKeys.of(name)
    awaits = [str(keys.tasks(f"{n:026d}", batch=False)) for n in range(100)]
    for key in awaits:
        world.memory.put(Key(key), b"{}")
    process = world.process()
    entry = entry_of(process.queue.push_many(rounds(tasks), batch=1000))
    with process.take() as claim:
        for n, task in enumerate(claim):
            if n == 0:
                task.retry(error="it fails", after_s=3600)
                continue
            task.suspend(60.0, Suspension(reason="it waits", step=1, since=process.runtime.wall(), awaits=awaits))
    assert world.facts(entry)[0] is State.FREE
    assert len(world.lease(entry).suspended) == tasks - 1
    process.store.log.clear()
    world.time.sleep(1800)
    assert not process.queue.claim(), "what it waits for is there"
    for key in awaits:
        world.memory.delete(Key(key))
    claim = process.take()
    assert sorted(int(task.id.rpartition(".")[2]) for task in claim) == [*range(1, tasks)]


@pytest.mark.parametrize("tasks", [1, 20])
def test_tasks_of_a_batch_that_wait_for_signals_are_looked_at_together(tasks: int) -> None:
    world = World(far=True)
    process = world.process()
    entry = entry_of(process.queue.push_many(rounds(tasks)))
    with process.take() as claim:
        for n, task in enumerate(claim):
            wall = process.runtime.wall()
            task.suspend(5.0, Suspension(reason="it waits", step=1, since=wall, signal=f"go {n}"))
    world.time.sleep(6)
    process.store.log.clear()
    assert not process.queue.claim()
    asked = [line for line in process.store.wrote("get", "head", "list") if f"steps/{entry}" in line]
    [line] = asked
    assert line.startswith("list" if tasks > 1 else "get")
    signal = process.queue.storage.signal(entry, tasks - 1, f"go {tasks - 1}")
    signal.create(SignalRecord(name=f"go {tasks - 1}", at=process.runtime.wall()))
    assert process.take().entry == entry


def test_a_swap_that_is_refused_as_too_large_is_made_without_what_the_tasks_wait_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = world.process()
    entry = entry_of(process.queue.push_many(rounds(3)))
    waits = Suspension(reason="it waits", step=1, since=process.runtime.wall(), awaits=["x" * 1000] * 100, due_s=90.0)
    with process.take() as claim:
        monkeypatch.setattr(records, "RECORD_BYTES_MAX", 10_000)
        for n, task in enumerate(claim):
            if n:
                task.suspend(30.0, waits)
            else:
                task.done("a")
    assert world.facts(entry)[0] is State.FREE
    record = world.lease(entry)
    assert (record.done, record.waits) == ([0], {1: 30.0, 2: 30.0})
    assert [(each.awaits, each.reason, each.due_s) for each in record.suspended.values()] == [([], "", 90.0)] * 2
    assert not process.queue.claim()
    with process.take(within_s=60) as claim:
        for task in claim:
            task.done("b")
    assert [*msgspec.json.decode(msgspec.json.encode(world.receipt(f"completed/{entry}").results)).values()] == [*"abb"]


def test_h2_a_mixed_batch_keeps_every_verdict(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(4))
    entry = entry_of(ids)
    with process.take() as claim:
        for n, task in enumerate(claim):
            if n in (1, 3):
                task.fail(f"no {n}")
            else:
                task.done(n)
    writes = process.store.wrote("put")[-3:]
    assert writes == [f"put failed/{ids[1]}.json", f"put failed/{ids[3]}.json", f"put completed/{entry}.json"]
    for _ in range(2):
        assert world.names() == [f"completed/{entry}.json", f"failed/{ids[1]}.json", f"failed/{ids[3]}.json"]
        assert states(world, ids) == ["completed", "failed", "completed", "failed"]
        assert process.queue.result(ids[3]).error == "no 3"
        process.queue.sweep()
    assert world.receipt(f"completed/{entry}").failed == [1, 3]
    assert bytes(world.receipt(f"failed/{ids[1]}").payload) == b'{"n":1}'


def test_a_batch_that_fails_whole_is_ended_too(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(2))
    process.drain(lambda task: task.fail("no"))
    assert states(world, ids) == ["failed", "failed"]
    assert world.names() == [f"completed/{entry_of(ids)}.json", *(f"failed/{id_}.json" for id_ in ids)]
    assert process.drain() == []


def test_some_are_retried_alone(world: World) -> None:
    process = world.process(max_attempts=3)
    ids = process.queue.push_many(rounds(4))
    rounds_: list[list[str]] = []
    while claim := process.queue.claim(wait_s=100):
        with claim:
            rounds_.append([])
            for task in claim:
                rounds_[-1].append(task.id)
                if task.payload["n"] in (0, 2) and task.attempt < 3:
                    task.retry(after_s=5)
                else:
                    task.done(task.attempt)
    assert rounds_ == [ids, [ids[0], ids[2]], [ids[0], ids[2]]]
    assert values(world, ids) == [3, 1, 3, 1]


def test_each_task_of_a_batch_waits_its_own_time(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(3))
    started_s = world.time.now_s
    with process.take() as claim:
        for task in claim:
            task.retry(after_s=100.0 * (3 - task.payload["n"]))
    assert world.lease(entry_of(ids)).wait_s == pytest.approx(100)
    ran = process.collect(lambda task: (task.id, int(world.time.now_s - started_s) // 100), idle_s=150)
    assert ran == [(ids[2], 1), (ids[1], 2), (ids[0], 3)]


def test_what_the_block_raises_is_the_verdict_of_the_task_that_ran(world: World) -> None:
    process = world.process(max_attempts=1)
    ids = process.queue.push_many(rounds(3))

    def work() -> None:
        with process.take() as claim:
            for n, task in enumerate(claim):
                if n == 1:
                    raise ValueError("boom")
                task.done()

    with pytest.raises(ValueError, match="boom"):
        work()
    assert process.drain() == [ids[2]]
    assert states(world, ids) == ["completed", "failed", "completed"]
    assert process.queue.result(ids[1]).error == "ValueError: boom"


def test_a_retry_with_a_time_waits_alone_and_the_rest_goes_on(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(3))

    def work() -> None:
        with process.take() as claim:
            for _ in claim:
                raise Retry(after_s=500)

    with pytest.raises(Retry):
        work()
    assert process.drain(idle_s=50) == ids[1:]
    assert process.drain(idle_s=600) == ids[:1]


def test_one_verdict_each(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(3))
    with process.take() as claim:
        for n, task in enumerate(claim):
            if n == 0:
                task.done("first")
            elif n == 1:
                task.retry(after_s=0)
            else:
                task.fail("first")
            if n < 2:
                with pytest.raises(Invalid, match="verdict already"):
                    task.done()
                with pytest.raises(Invalid, match="verdict already"):
                    task.fail("second")
                with pytest.raises(Invalid, match="verdict already"):
                    task.retry()
    process.drain()
    assert states(world, ids) == ["completed", "completed", "failed"]
    assert values(world, ids)[0] == "first"


# ---- progress is written down by the heart ----


def test_verdicts_are_written_down_with_the_heartbeat(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(3))
    entry = entry_of(ids)
    tasks = iter(process.take())
    next(tasks).done("small")
    next(tasks).fail("no")
    assert (world.lease(entry).done, world.lease(entry).failed) == ([], [])
    world.time.sleep(TTL_S / 2)
    record = world.lease(entry)
    assert (record.done, record.failed, record.token) == ([0], [1], 1)
    assert bytes(record.results[0]) == b'"small"'
    process.freeze()
    other = world.process()
    assert other.drain() == [ids[2]]
    assert states(world, ids) == ["completed", "failed", "completed"]
    assert values(world, ids)[0] == "small"


def test_verdicts_that_were_not_written_down_run_again(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(3))
    tasks = iter(process.take())
    next(tasks).done()
    next(tasks).fail("no")
    process.freeze()
    assert world.process().drain() == ids
    assert states(world, ids) == ["completed"] * 3
    world.process().queue.sweep()
    assert world.names() == [f"completed/{entry_of(ids)}.json"], "the early failure was beaten"


def test_a_batch_whose_every_verdict_was_written_down_is_ended_without_running_anything(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(2))
    tasks = iter(process.take())
    next(tasks).done("a")
    task = next(tasks)
    process.store.away("put", f"completed/{entry_of(ids)}.json", Unavailable("away"))
    with pytest.raises(Unavailable):
        task.done("b")
    world.time.sleep(TTL_S / 2)
    process.freeze()
    assert world.lease(entry_of(ids)).done == [0, 1]
    assert world.process().drain() == []
    assert values(world, ids) == ["a", "b"]
    assert world.names() == [f"completed/{entry_of(ids)}.json"]


def test_a_single_task_whose_verdict_was_written_down_is_ended_without_running_again(world: World) -> None:
    process = world.process()
    pushed = process.queue.push({})
    _, task = process.start()
    process.store.away("put", f"completed/{pushed.id}.json", OutcomeUnknown("no answer"))
    with pytest.raises(OutcomeUnknown):
        task.done(LARGE)
    world.time.sleep(TTL_S / 2)
    process.freeze()
    assert world.lease(pushed.id).done == [0]
    process.store.back()
    assert world.process().drain() == []
    assert process.queue.result(pushed.id).value == LARGE
    assert [key for key in world.names() if not key.startswith("parts/")] == [f"completed/{pushed.id}.json"]


# ---- results ----


def test_small_results_stand_in_the_receipt_and_large_ones_in_parts(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(4))
    results: list[Any] = ["small", LARGE, None, {"rows": [LARGE]}]
    with process.take() as claim:
        for n, task in enumerate(claim):
            task.done(results[n])
    assert values(world, ids) == results
    receipt = world.receipt(f"completed/{entry_of(ids)}")
    assert [*receipt.results] == [0]
    assert [key.removeprefix("queues/q/") for key in receipt.parts] == parts(world)
    assert len(parts(world)) == 1


def test_many_small_results_do_not_swell_the_lease(world: World) -> None:
    process = world.process()
    size = INLINE_BYTES_MAX - 10
    ids = process.queue.push_many(rounds(1000), batch=1000)
    with process.take() as claim:
        for task in claim:
            task.done("r" * size)
    assert len(world.read(f"completed/{entry_of(ids)}.json")) < 2 * INLINE_TOTAL_MAX
    assert values(world, [ids[0], ids[500], ids[999]]) == ["r" * size] * 3


def test_nor_do_they_over_several_claims(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(1000), batch=1000)
    for _ in range(4):
        with process.take() as claim:
            for n, task in enumerate(claim):
                if n == 240:
                    break
                task.done("r" * (INLINE_BYTES_MAX - 10))
        assert len(world.read(f"pending/{entry_of(ids)}/lease.json")) < 2 * INLINE_TOTAL_MAX
    process.drain(lambda task: task.done("end"))
    assert values(world, [ids[0], ids[700], ids[999]]) == ["r" * (INLINE_BYTES_MAX - 10)] * 2 + ["end"]


def test_the_largest_results_come_back(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(6))
    large = "y" * (250 * 1024)
    with process.take() as claim:
        for task in claim:
            task.done(large)
    assert values(world, ids) == [large] * 6
    assert len(parts(world)) >= 6 * len(large) // (PART_BYTES_MAX + len(large))
    assert all(stat.size < 1 << 20 for stat in world.memory.list("queues/q/parts"))


def die_at(process: Process, moment: int) -> None:
    """Crash at the so-manieth put from now."""
    process.store.before("put", "", crash if moment == 1 else lambda: die_at(process, moment - 1))


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_part_is_written_before_the_swap_that_counts_its_task_as_done(world: World, max_attempts: int) -> None:
    """Whoever dies at any request: a task that the lease calls done has its result."""
    for moment in range(1, 9):
        world = World()
        process = world.process(max_attempts=max_attempts)
        ids = process.queue.push_many(rounds(2))
        claim = process.take()
        tasks = iter(claim)
        next(tasks).done(LARGE)

        die_at(process, moment)
        try:
            next(tasks).done(LARGE)
            claim.renew()
        except (Crash, LimpetError):
            assert moment < 9
        process.freeze()
        world.process(max_attempts=5).drain(lambda task: task.done(LARGE))
        done = [
            value for state, value in zip(states(world, ids), values(world, ids), strict=True) if state == "completed"
        ]
        assert len(done) == 2
        assert done == [LARGE, LARGE], f"it died at request {moment}"


def test_a_part_that_could_not_be_written_is_written_with_the_next_beat(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(2))
    claim = process.take()
    next(iter(claim)).done(LARGE)
    process.store.puts.extend([lost_request])
    world.time.sleep(TTL_S / 2)
    assert world.lease(entry_of(ids)).done == [0]
    assert len(world.lease(entry_of(ids)).parts) == 1
    process.freeze()
    world.process().drain()
    assert values(world, ids) == [LARGE, None]


@pytest.mark.parametrize("fault", [lost_reply, lost_request])
def test_a_hand_back_whose_part_is_unclear_loses_no_result_and_holds_nothing_for_ever(world: World, fault: Any) -> None:
    process = world.process(timeout_s=None)
    ids = process.queue.push_many(rounds(2))
    with process.take() as claim:
        next(iter(claim)).done(LARGE)
        process.store.puts.append(fault)
    others = world.process()
    others.drain(idle_s=10 * TTL_S)
    assert states(world, ids) == ["completed", "completed"]
    assert values(world, ids)[0] == LARGE


# ---- finished after the lease was lost (H4) ----


def test_a_batch_finished_after_it_was_taken_over_keeps_what_was_done(world: World) -> None:
    one = world.process(max_attempts=1)
    ids = one.queue.push_many(rounds(2))
    claim = one.take()
    tasks = iter(claim)
    first = next(tasks)
    one.freeze()
    two = world.process(max_attempts=1)
    assert two.drain(lambda task: task.fail("two says no")) == [ids[1]]
    assert states(world, ids) == ["failed", "failed"]
    first.done("late")
    claim.hand_back()
    assert states(world, ids) == ["completed", "failed"]
    assert values(world, ids)[0] == "late"
    two.queue.sweep()
    assert {*world.names()} == {f"completed/{entry_of(ids)}.json", f"completed/{ids[0]}.json", f"failed/{ids[1]}.json"}


@pytest.mark.parametrize("result", ["small", LARGE])
def test_a_late_receipt_has_the_result_wherever_it_was_kept(world: World, result: str) -> None:
    """One result was written down by a beat before the lease was lost, the other was not."""
    one = world.process()
    ids = one.queue.push_many(rounds(3))
    claim = one.take()
    tasks = iter(claim)
    next(tasks).done(result)
    world.time.sleep(TTL_S / 2)
    next(tasks).done(result)
    last = next(tasks)
    one.freeze()
    two = world.process()
    held(two.take())
    last.done(result)
    told = "the first claim's beat has said that the first is done; the batch's holder may still complete the others"
    assert states(world, ids) == ["completed", "pending", "pending"], told
    two.runtime.frozen = True
    assert world.process().drain(lambda task: task.done("later"), idle_s=10 * TTL_S)
    assert states(world, ids) == ["completed"] * 3
    assert values(world, ids) == [result] * 3


def test_the_receipt_that_stands_wins_and_late_successes_are_told_beside_it(world: World) -> None:
    """Two finish the same batch; the second finds a receipt that calls failed what it has done."""
    one = world.process(max_attempts=1)
    ids = one.queue.push_many(rounds(2))
    claim = one.take()
    tasks = iter(claim)
    next(tasks).done("one")
    last = next(tasks)
    two = world.process(max_attempts=1)
    one.freeze()
    one.store.before("put", f"completed/{entry_of(ids)}.json", lambda: two.drain(idle_s=10 * TTL_S))
    last.done("one")
    assert states(world, ids) == ["completed", "completed"]
    assert values(world, ids) == ["one", "one"]
    two.queue.sweep()
    assert [key for key in world.names() if key.startswith(("pending/", "failed/"))] == []


def test_the_end_of_a_block_after_the_loss_is_quiet(world: World) -> None:
    one, two = world.process(), world.process()
    ids = one.queue.push_many(rounds(3))
    with one.take() as claim:
        next(iter(claim)).done("kept")
        one.freeze()
        taken, again = two.start()
    assert world.facts(entry_of(ids)) == (State.HELD, 2, two.runtime.owner)
    assert states(world, ids)[0] == "pending", "its holder may still complete it, with another result"
    again.done("second")
    claim.hand_back()
    taken.hand_back()
    two.drain()
    assert values(world, ids)[0] == "kept", "the first finisher wins"


@pytest.mark.parametrize("large", [False, True])
def test_a_batch_tasks_result_is_not_replaced_by_a_later_finisher(world: World, large: bool) -> None:
    """The holder sleeps past its ttl, another worker completes the batch, the sleeper wakes up and says done."""
    one, two = world.process(), world.process()
    ids = one.queue.push_many(rounds(2))
    blob = "." * 2_000 if large else ""
    tasks = iter(one.take())
    one.freeze()
    next(tasks).done(f"one {blob}")
    late = next(tasks)
    two.drain(lambda task: task.done(f"two {blob}"))
    before = values(world, ids)
    assert before == [f"two {blob}"] * 2
    late.done("one")
    assert values(world, ids) == before
    assert world.names() == [key for key in world.names() if not key.startswith(f"completed/{ids[0]}")]


def test_a_result_that_was_told_is_told_again_whoever_ends_the_batch(world: World) -> None:
    """The sleeper ends its task just before, or just after, the batch's present holder ends the batch."""
    for moment in ("list", "put"):
        one, two = world.process(), world.process()
        ids = one.queue.push_many(rounds(2))
        entry = entry_of(ids)
        task = next(iter(late := one.take()))
        one.freeze()
        told: list[object] = []

        def wake(
            task: EntryTask = task, late: EntryClaim = late, ids: Sequence[str] = ids, told: list[object] = told
        ) -> None:
            task.done("one")
            late.hand_back()
            told.extend(world.process("looker").queue.result(id_) for id_ in ids)

        two.store.before(moment, "completed" if moment == "list" else f"completed/{entry}.json", wake)
        two.drain(lambda task: task.done("two"))
        assert [result.state for result in told if isinstance(result, Result)] == ["pending", "pending"]
        assert values(world, ids) == ["one" if moment == "list" else "two", "two"]


def test_a_batch_cut_off_by_cancel_keeps_what_was_done(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(4))
    entry = entry_of(ids)
    with process.take() as claim:
        tasks = iter(claim)
        next(tasks).done("written down")
        next(tasks).done(LARGE)
        world.time.sleep(TTL_S / 2)
        next(tasks).done("only in memory")
        assert world.process().queue.cancel(entry)
    assert states(world, ids) == ["completed", "completed", "completed", "cancelled"]
    assert values(world, ids)[:3] == ["written down", LARGE, "only in memory"]
    assert process.drain() == []


@pytest.mark.parametrize("gone", ["handed back", "dead"])
def test_a_batch_that_is_cancelled_while_nobody_has_it_keeps_what_was_done(world: World, gone: str) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(4))
    claim = process.take()
    tasks = iter(claim)
    for result in ("small", LARGE, None):
        next(tasks).done(result)
    if gone == "dead":
        world.time.sleep(TTL_S / 2)
        process.freeze()
    else:
        claim.hand_back()
    assert world.process().queue.cancel(entry_of(ids))
    assert states(world, ids) == ["completed", "completed", "completed", "cancelled"]
    assert values(world, ids) == ["small", LARGE, None, None]
    world.process().queue.sweep()
    assert states(world, ids) == ["completed", "completed", "completed", "cancelled"]


def test_a_result_that_comes_while_a_beat_is_under_way_is_not_counted_without_its_part(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(2))
    claim = process.take()
    task = next(iter(claim))
    process.store.puts.append(lost_reply)
    process.store.before("get", "lease.json", raises(Unavailable("away")))
    with pytest.raises(OutcomeUnknown):
        claim.renew()
    process.store.before("get", "lease.json", lambda: task.done("x" * 3_000))
    claim.renew()
    process.freeze()
    world.process().drain(lambda task: task.done("x" * 3_000))
    assert [world.process().queue.result(id_).value for id_ in ids] == ["x" * 3_000] * 2


def test_a_task_of_a_batch_has_its_own_attempts(world: World) -> None:
    """Not the most that one of the batch took."""
    process = world.process(max_attempts=5)
    ids = process.queue.push_many(rounds(3))
    process.drain(lambda task: task.retry() if task.payload["n"] == 1 and task.attempt < 3 else task.done())
    assert [process.queue.result(id_).attempts for id_ in ids] == [1, 3, 1]
    assert [each.attempts for each in process.queue.results(ids)] == [1, 3, 1]
    rows = task_rows(process.queue.storage).rows
    assert [rows[id_].attempts for id_ in ids] == [1, 3, 1]
    whole = process.queue.receipt(entry_of(ids))
    assert whole is not None
    assert (whole.attempts, whole.tried) == (3, {1: 3})


def test_a_batch_that_does_not_say_who_was_tried_again_has_the_attempts_of_all(world: World) -> None:
    """As Limpet 0.1 wrote it."""
    process = world.process(max_attempts=5)
    ids = process.queue.push_many(rounds(2))
    process.drain(lambda task: task.retry() if task.payload["n"] == 1 and task.attempt < 3 else task.done())
    cell = process.queue.storage.receipt(process.queue.storage.keys.completed_of(entry_of(ids)))
    seen = cell.read()
    assert seen is not None
    cell.attempt(seen, msgspec.structs.replace(seen.value, tried={}))
    assert [process.queue.result(id_).attempts for id_ in ids] == [3, 3]
