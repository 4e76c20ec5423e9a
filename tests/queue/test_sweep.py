"""Sweeping: whatever came too late, each task ends up in one place, and nothing that counts is removed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from limpet.kernel.errors import Invalid, Unavailable
from limpet.kernel.lease import State
from limpet.queue import Policy
from limpet.queue.sweep import CHUNK, GRACE_S, RETAIN_EVERY_S, SWEEP_EVERY_S
from support.queue import ROOT, TTL_S, Crash, World, crash, raises, rounds
from support.stores import late

DAY_S = 86400.0


def copy(world: World, prefix: str) -> dict[str, bytes]:
    """The objects below a prefix as they are, for a request that lands late."""
    return {key: world.read(key) for key in world.names() if key.startswith(prefix)}


def land(world: World, objects: dict[str, bytes]) -> None:
    """The late requests arrive: each creates what is not there."""
    for key, data in objects.items():
        if key not in world.names():
            world.write(key, data)


# ---- late creates ----


@pytest.mark.parametrize("id_", ["x", None])
def test_a_task_that_is_created_late(world: World, id_: str | None) -> None:
    """A user's id does not run again; a minted one may (at least once), and is told once."""
    process = world.process()
    pushed = process.queue.push({}, id=id_)
    task = copy(world, "pending/")
    process.drain(lambda task: task.done("first"))
    land(world, task)
    world.process().queue.sweep()
    assert world.names() == [f"completed/{pushed.id}.json"]
    land(world, task)
    ran = process.drain(lambda task: task.done("second"))
    assert ran == ([] if id_ else [pushed.id])
    assert world.names() == [f"completed/{pushed.id}.json"]
    assert process.queue.result(pushed.id).value == "first"


def test_a_batch_that_is_created_late(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(2))
    batch = copy(world, "pending/")
    process.drain(lambda task: task.done("first"))
    land(world, batch)
    process.queue.sweep()
    assert process.drain() == []
    assert [process.queue.result(id_).value for id_ in ids] == ["first", "first"]


@pytest.mark.parametrize("end", ["done", "fail"])
def test_a_lease_that_is_created_late(world: World, end: str) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    _, task = process.start()
    lease = copy(world, "pending/x/lease.json")
    task.done() if end == "done" else task.fail("no")
    before = world.names()
    land(world, lease)
    assert process.drain() == []
    world.process().queue.sweep()
    assert world.names() == before


def test_a_lease_without_a_task_or_a_receipt_is_dropped(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    process.take().hand_back()
    world.delete("pending/x/task.json")
    assert process.queue.sweep() == 1
    assert world.names() == []


def test_a_failed_receipt_that_is_created_late(world: World) -> None:
    """H4 the other way round: the failure was sent first and lands last."""
    process = world.process()
    process.queue.push({}, id="x")
    zombie = world.killed(max_attempts=1)
    world.process(max_attempts=1).drain()
    failed = copy(world, "failed/")
    zombie.done("done")
    process.queue.sweep()
    assert world.names() == ["completed/x.json"]
    land(world, failed)
    assert process.queue.result("x").state == "completed"
    assert process.queue.sweep() == 1
    assert world.names() == ["completed/x.json"]


def test_a_failed_receipt_of_a_batchs_task_that_is_created_late(world: World) -> None:
    one = world.process()
    ids = one.queue.push_many(rounds(2))
    tasks = iter(one.take())
    next(tasks).fail("early")
    failed = copy(world, "failed/")
    one.freeze()
    two = world.process()
    assert two.drain() == ids
    two.queue.sweep()
    land(world, failed)
    assert [two.queue.result(id_).state for id_ in ids] == ["completed"] * 2
    assert two.queue.retry(all=True) == []
    assert two.queue.sweep() == 1
    assert [key for key in world.names() if key.startswith("failed/")] == []


def test_a_completed_receipt_that_is_created_late(world: World) -> None:
    world.process().queue.push({}, id="x")
    zombie = world.killed(max_attempts=1)
    two = world.process(max_attempts=1)
    two.drain()
    pending: list[Any] = []
    store = zombie._claim.storage.store
    store.puts.append(late(pending))  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="is unknown"):
        zombie.done("late")
    two.queue.sweep()
    assert world.names() == ["failed/x.json"]
    pending[0]()
    assert two.queue.result("x").value == "late"
    two.queue.sweep()
    assert world.names() == ["completed/x.json"]


@pytest.mark.parametrize("id_", ["x", None])
def test_a_delayed_push_that_is_created_late(world: World, id_: str | None) -> None:
    process = world.process()
    pushed = process.queue.push({}, id=id_, delay_s=5)
    scheduled = copy(world, "scheduled/")
    assert process.drain() == [pushed.id]
    land(world, scheduled)
    process.queue.pause()
    assert not process.queue.claim(wait_s=60)
    assert world.names() == [f"completed/{pushed.id}.json", "control.json"], "nothing is pending, even for a moment"
    process.queue.resume()
    land(world, scheduled)
    assert process.drain() == []
    process.queue.sweep()
    assert world.names() == [f"completed/{pushed.id}.json", "control.json"]


def test_a_part_that_is_created_late_goes_with_the_others(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(2))
    process.drain(lambda task: task.done("y" * 2000))
    (part,) = copy(world, "parts/").values()
    world.write(f"parts/{ids[0].rpartition('.')[0]}/late.json", part)
    assert process.queue.result(ids[0]).value == "y" * 2000
    world.time.sleep(31 * DAY_S)
    process.queue._sweeper.retain()
    assert world.names() == []


# ---- late and repeated deletes ----


@pytest.mark.parametrize("kind", ["task.json", "lease.json"])
def test_a_delete_that_comes_twice_hits_nothing_new(world: World, kind: str) -> None:
    """F18: a name is used once, so a late delete of an ended one finds nothing of anybody's."""
    process = world.process()
    process.queue.push({}, id="x")
    process.drain(lambda task: task.fail("no"))
    process.queue.retry("x")
    _, task = process.start()
    world.delete(f"pending/x/{kind}")
    assert not task.lost
    task.done("fine")
    assert process.queue.result("x").value == "fine"


def test_a_lease_that_is_deleted_under_its_holder(world: World) -> None:
    """As by a delete that was sent before the entry was taken over. It may run twice, and is told once."""
    process = world.process()
    process.queue.push({}, id="x")
    _, task = process.start()
    world.delete("pending/x/lease.json")
    two = world.process()
    _, again = two.start()
    task.done("one")
    again.done("two")
    two.queue.sweep()
    assert world.names() == ["completed/x.json"]
    assert two.queue.result("x").value == "one"


def test_a_task_that_is_deleted_under_its_holder(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    _, task = process.start()
    world.delete("pending/x/task.json")
    assert world.process().drain(idle_s=3 * TTL_S) == []
    task.done("one")
    assert world.names() == ["completed/x.json"]


# ---- half-done ends ----


@pytest.mark.parametrize("step", ["delete task.json", "delete lease.json"])
@pytest.mark.parametrize("end", ["done", "fail", "cancel"])
def test_an_end_that_died_half_way_is_finished(world: World, step: str, end: str) -> None:
    process = world.process()
    pushed = process.queue.push({})
    _, task = process.start()
    verb, ending = step.split()
    process.store.before(verb, ending, crash)
    ends: dict[str, Callable[[], object]] = {
        "done": task.done,
        "fail": lambda: task.fail("no"),
        "cancel": lambda: process.queue.cancel(pushed.id),
    }
    with pytest.raises(Crash):
        ends[end]()
    process.freeze()
    place = "completed" if end == "done" else "failed"
    world.process().queue.sweep()
    assert world.names() == [f"{place}/{pushed.id}.json"]
    assert world.process().drain() == []


def test_a_batch_that_died_after_its_receipt_is_finished(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(2))
    process.store.before("delete", "tasks.jsonl", crash)
    with pytest.raises(Crash):
        process.drain()
    process.freeze()
    world.process().queue.sweep()
    assert world.names() == [f"completed/{ids[0].rpartition('.')[0]}.json"]


def test_the_task_goes_before_the_lease_wherever_a_page_ends(world: World) -> None:
    """Else an ended entry would stand there without its lease, and be claimed as if it were new."""
    process = world.process()
    pushed = process.queue.push({})
    _, task = process.start()
    process.store.before("delete", "task.json", crash)
    with pytest.raises(Crash):
        task.done()
    for n in range(CHUNK - 2):
        world.write(f"pending/{n:026d}/task.json", b"{}")
    sweeper = world.process()
    ended = [f"delete pending/{pushed.id}/{kind}.json" for kind in ("task", "lease")]
    for n in range(CHUNK - 2, CHUNK + 2):
        sweeper.queue.sweep()
        assert sweeper.store.wrote("delete") == ended
        world.write(f"pending/{pushed.id}/task.json", b"{}")
        world.write(f"pending/{pushed.id}/lease.json", b"{}")
        world.write(f"pending/{n:026d}/task.json", b"{}")


def test_a_sweep_whose_delete_of_the_task_fails_keeps_the_lease(world: World) -> None:
    process = world.process()
    pushed = process.queue.push({})
    _, task = process.start()
    process.store.before("delete", "task.json", crash)
    with pytest.raises(Crash):
        task.done()
    sweeper = world.process()
    sweeper.store.before("delete", "task.json", raises(Unavailable("away")))
    sweeper.queue.sweep()
    assert f"pending/{pushed.id}/lease.json" in world.names()
    sweeper.queue.sweep()
    assert world.names() == [f"completed/{pushed.id}.json"]


# ---- what a sweep must not touch ----


def test_a_sweep_in_the_middle_of_everything_changes_nothing(world: World) -> None:
    process = world.process(max_attempts=5)
    process.queue.push({}, id="failed")
    process.drain(lambda task: task.fail("no"))
    process.queue.push({}, id="done")
    process.drain()
    process.queue.push_many(rounds(3))
    process.drain(lambda task: task.fail("no") if task.payload["n"] == 1 else task.done("y" * 2000))
    process.queue.push({}, id="rests")
    process.start()[1].retry(after_s=1000)
    process.queue.push_many(rounds(3))
    tasks = iter(process.take())
    next(tasks).fail("no")
    process.queue.push({}, id="runs")
    process.start()
    process.queue.push({}, id="waits")
    process.queue.push({}, delay_s=1000)
    process.queue.retry("failed")
    process.queue.pause()
    before = {key: world.read(key) for key in world.names()}
    assert world.process().queue.sweep() == 0
    assert {key: world.read(key) for key in world.names()} == before


def test_a_lease_whose_task_a_listing_did_not_show_is_not_dropped(world: World) -> None:
    process, sweeper = world.process(), world.process()
    process.queue.push({}, id="x")
    claim = process.take()
    task = world.read("pending/x/task.json")
    world.delete("pending/x/task.json")
    sweeper.store.before("list", "pending/x", lambda: world.write("pending/x/task.json", task))
    assert sweeper.queue.sweep() == 0
    claim.renew()


def test_more_receipts_than_a_page_holds(world: World) -> None:
    process = world.process()
    for n in range(CHUNK + 200):
        world.write(f"completed/a{n:05}.json", b"{}")
    process.queue.push({}, id="a00003")
    for id_ in ("a00004", "b", "z"):
        world.write(f"pending/{id_}/task.json", b"{}")
    world.write(f"completed/zz{CHUNK}.json", b"{}")
    world.write("completed/z.json", b"{}")
    process.queue.sweep()
    assert [key for key in world.names() if key.startswith("pending/")] == ["pending/b/task.json"]


# ---- whose turn it is ----


def test_an_idle_worker_sweeps_about_once_an_hour(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    _, task = process.start()
    process.store.before("delete", "lease.json", raises(Unavailable("away")))
    task.done()
    process.queue.claim(wait_s=SWEEP_EVERY_S + 60)
    world.time.sleep(GRACE_S)
    process.queue.claim(wait_s=1.2 * SWEEP_EVERY_S)
    assert world.names() == ["completed/x.json", "sweep.json"]


def test_of_many_workers_one_sweeps(world: World) -> None:
    workers = [world.process() for _ in range(10)]
    hours = 5
    for _ in range(int(hours * SWEEP_EVERY_S / 600)):
        for worker in workers:
            worker.queue.claim()
        world.time.sleep(600)
    sweeps = sum(worker.store.log.count("list pending") for worker in workers)
    assert hours - 1 <= sweeps <= hours + 1


def test_two_that_want_the_same_turn(world: World) -> None:
    one, two = world.process(), world.process()
    world.time.sleep(2 * SWEEP_EVERY_S)
    one.store.before("put", "sweep.json", lambda: two.queue.claim())
    one.queue.claim()
    assert "list failed" in two.store.log
    assert "list failed" not in one.store.log


@pytest.mark.parametrize("data", [b"", b"{", b'{"schema":2,"seq":1,"write_id":"x"}'])
def test_a_bad_record_of_turns_stops_nobody(world: World, data: bytes) -> None:
    world.write("sweep.json", data)
    process = world.process()
    for _ in range(3):
        process.queue.push({})
        world.time.sleep(2 * SWEEP_EVERY_S)
        assert len(process.drain()) == 1


def test_a_store_that_is_away_during_a_sweep_stops_nobody(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    world.time.sleep(2 * SWEEP_EVERY_S)
    process.store.before("list", "failed", raises(Unavailable("away")))
    assert process.drain() == ["x"]


# ---- retention ----


def test_receipts_are_kept_for_their_time_and_no_longer(world: World) -> None:
    process = world.process(retention_s=10 * DAY_S)
    process.queue.push({}, id="old")
    process.queue.push({}, id="bad")
    process.drain(lambda task: task.fail("no") if task.id == "bad" else task.done())
    ids = process.queue.push_many(rounds(2))
    process.drain(lambda task: task.done("y" * 2000))
    world.time.sleep(9 * DAY_S)
    process.queue.push({}, id="new")
    process.drain()
    assert process.queue._sweeper.retain() == 0
    assert not process.queue.push({}, id="old").created
    world.time.sleep(1.5 * DAY_S)
    assert process.queue._sweeper.retain() == 4
    assert world.names() == ["completed/new.json", "sweep.json"]
    assert process.queue.result(ids[0]).state == "unknown"
    assert process.queue.push({}, id="old").created


def test_retention_is_done_by_the_workers_once_a_day(world: World) -> None:
    process = world.process(retention_s=7 * DAY_S)
    process.queue.push({}, id="x")
    process.drain()
    for _ in range(10):
        process.queue.claim()
        world.time.sleep(RETAIN_EVERY_S)
        process.queue.claim()
    assert [key for key in world.names() if key.startswith("completed/")] == []


def test_what_waits_is_kept_for_ever(world: World) -> None:
    process = world.process(retention_s=7 * DAY_S)
    process.queue.push({}, id="x")
    process.queue.push({}, id="later", delay_s=300 * DAY_S)
    process.queue.pause()
    world.time.sleep(299 * DAY_S)
    process.queue._sweeper.retain()
    process.queue.sweep()
    process.queue.resume()
    assert process.drain() == ["x"]
    assert process.drain(idle_s=2 * DAY_S) == ["later"]


def test_a_sweep_may_meet_a_claim(world: World) -> None:
    """The sweep lists a lease without a task; before it deletes, the name comes to life. It looks again first."""
    process, sweeper = world.process(), world.process()
    process.queue.push({}, id="x")
    process.take().hand_back()
    task = world.read("pending/x/task.json")
    world.delete("pending/x/task.json")

    def alive() -> None:
        world.write("pending/x/task.json", task)
        process.take()

    sweeper.store.before("list", f"{ROOT}/pending/x", alive)
    sweeper.queue.sweep()
    assert world.facts("x")[0] is State.HELD


def test_two_sweeps_at_once(world: World) -> None:
    process = world.process()
    for n in range(3):
        process.queue.push({}, id=f"x{n}")
    for _ in range(3):
        _, task = process.start()
        process.store.before("delete", "task.json", crash)
        with pytest.raises(Crash):
            task.done()
    process.freeze()
    one, two = world.process(), world.process()
    one.store.before("delete", "task.json", two.queue.sweep)
    one.queue.sweep()
    assert world.names() == [f"completed/x{n}.json" for n in range(3)]


# ---- what nothing else would remove ----


@pytest.mark.parametrize("end", ["done", "fail"])
def test_a_delayed_push_of_a_name_that_has_ended_is_removed(world: World, end: str) -> None:
    process = world.process()
    process.queue.push({"n": 1}, id="x", delay_s=3600)
    process.queue.push({"n": 1}, id="y", delay_s=3600)
    process.queue.push({"n": 2}, id="x")
    process.drain(lambda task: task.done() if end == "done" else task.fail("no"))
    assert len([key for key in world.names() if key.startswith("scheduled/")]) == 2
    process.queue.sweep()
    (left,) = [key for key in world.names() if key.startswith("scheduled/")]
    assert "/y@" in left
    world.time.sleep(4000)
    assert process.drain() == ["y"]


def test_parts_that_no_receipt_names_are_removed_and_no_others(world: World) -> None:
    one, two = world.process(), world.process()
    ids = one.queue.push_many(rounds(2))
    entry = ids[0].rpartition(".")[0]
    tasks = iter(one.take())
    next(tasks).done("x" * 2000)
    last = next(tasks)
    one.freeze()
    two.drain(lambda task: task.done("y" * 2000), idle_s=10 * TTL_S)
    last.done("x" * 2000)
    waiting = two.queue.push_many(rounds(1))[0].rpartition(".")[0]
    world.write(f"parts/{waiting}/{one.runtime.new_id()}.json", b"of a batch that waits")
    world.write(f"parts/{entry}/{one.runtime.new_id()}.json", b"of a worker that died")
    before = [key for key in world.names() if key.startswith("parts/")]
    named = [key.removeprefix("queues/q/") for key in world.receipt(f"completed/{entry}").parts]
    assert len(before) > len(named) + 1
    two.queue.sweep()
    assert [key for key in world.names() if key.startswith("parts/")] == before, "they may be new"
    world.time.sleep(3600)
    two.queue.sweep()
    left = [key for key in world.names() if key.startswith("parts/")]
    assert sorted(left) == sorted([*named, *(key for key in before if waiting in key)])
    assert [two.queue.result(id_).value for id_ in ids] == ["y" * 2000] * 2


def test_bytes_that_a_receipt_keeps_stay(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(2))
    process.take().hand_back()
    world.write(f"pending/{ids[0].rpartition('.')[0]}/lease.json", b"{")
    process.queue.push({}, id="x")
    world.write("pending/x/task.json", b"{")
    process.drain(idle_s=2 * TTL_S)
    kept = [key for key in world.names() if key.startswith("parts/")]
    assert len(kept) == 2
    world.time.sleep(3600)
    process.queue.sweep()
    assert [key for key in world.names() if key.startswith("parts/")] == kept


def test_parts_are_looked_through_once_a_day_by_the_workers(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(1))
    process.drain(lambda task: task.done())
    orphan = f"parts/{ids[0].rpartition('.')[0]}/{process.runtime.new_id()}.json"
    world.write(orphan, b"{}")
    for _ in range(60):
        world.time.sleep(3600)
        process.queue.claim()
    assert orphan not in world.names()


@pytest.mark.parametrize("years", [-5, 5])
def test_retention_does_not_look_at_the_wall_clock(world: World, years: int) -> None:
    process = world.process(retention_s=7 * 86400.0)
    process.queue.push({}, id="x")
    process.drain()
    process.runtime.wall_offset_s = years * 366 * 86400.0
    assert process.queue.sweep() == 0
    world.time.sleep(6 * 86400)
    assert process.queue.sweep() == 0
    assert world.names() == ["completed/x.json"]
    world.time.sleep(2 * 86400)
    assert process.queue.sweep() == 1


@pytest.mark.parametrize("retention_s", [math.inf, 1e15])
def test_receipts_that_are_kept_for_ever_never_go(world: World, retention_s: float) -> None:
    process = world.process(retention_s=retention_s)
    process.queue.push({}, id="old")
    process.queue.push({}, id="bad")
    process.drain(lambda task: task.fail("no") if task.id == "bad" else task.done())
    for _ in range(3):
        world.time.sleep(400 * DAY_S)
        process.queue.claim()
    assert process.queue.sweep() == 0
    assert not process.queue.push({}, id="old").created
    assert [result.state for result in process.queue.results(["old", "bad"])] == ["completed", "failed"]
    facts = process.queue.describe("old")
    assert facts is not None
    assert facts["receipts_kept_s"] is None


def test_how_long_receipts_are_kept_is_told_once_a_worker_has_swept(world: World) -> None:
    process = world.process(retention_s=10 * DAY_S)
    process.queue.push({}, id="x")
    process.drain()
    facts = process.queue.describe("x")
    assert facts is not None
    assert "receipts_kept_s" not in facts
    world.time.sleep(2 * SWEEP_EVERY_S)
    process.queue.claim()
    facts = process.queue.describe("x")
    assert facts is not None
    assert facts["receipts_kept_s"] == 10 * DAY_S


def test_a_retention_that_is_no_number_is_refused() -> None:
    for wrong in (math.nan, -math.inf, 0.0):
        with pytest.raises(Invalid, match="at least 7 days"):
            Policy(retention_s=wrong)
    assert Policy(retention_s=math.inf).kept_s is None
