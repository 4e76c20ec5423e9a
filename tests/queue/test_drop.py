"""A queue that is dropped: what goes, who prevents it, and what a second drop makes of the rest of a first one."""

from __future__ import annotations

from typing import Any

import pytest

from limpet.kernel.drop import GROUP, LOCK_TTL_S, SETTLE_S, DropRecord, DropState, DropStep, drop_cell, next_step
from limpet.kernel.errors import Conflict, Corrupt, Held, LimpetError, Missing, Unavailable, Unsupported
from limpet.kernel.keys import Key, QueueKeys
from limpet.queue.claim import EntryClaim
from limpet.queue.drop import NOTICE_S, QueueTarget
from limpet.queue.sync import Outbox
from support.queue import LATER_S, NAME, ROOT, TTL_S, Crash, Process, World, crash, raises

KEYS = QueueKeys.of(NAME)
BESIDE = {KEYS.drop, Key(f"{ROOT}.drop.lock")}


def left(world: World) -> list[str]:
    """What lies below the queue's name."""
    return [stat.key for stat in world.memory.list(ROOT)]


def filled(world: World, name: str = "a") -> Process:
    """A process whose queue has tasks of every kind."""
    process = world.process(name)
    queue = process.queue
    for n in range(3):
        queue.push({"n": n})
    queue.push_many([{"n": n} for n in range(4)])
    queue.push({"n": 7}, id="mine")
    queue.push({"n": 8}, delay_s=3600)
    for verdict in ("done", "fail"):
        claim = queue.claim()
        assert isinstance(claim, EntryClaim)
        for task in claim:
            task.done({"r": 1}) if verdict == "done" else task.fail("no")
    queue.flush()
    return process


def kill_at(process: Process, verb: str, ending: str) -> None:
    """Kill the process just before that request: no other one follows."""

    def die(verb: str = "", key: str = "") -> None:
        process.store._note = die  # type: ignore[method-assign]
        crash()

    process.store.before(verb, ending, die)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("facts", "act"),
    [
        ({"holders": 1}, DropStep.REFUSE),
        ({"holders": 1, "stage": DropState.CLOSING, "closed": True}, DropStep.REOPEN),
        ({"holders": 1, "stage": DropState.REMOVING, "closed": True}, DropStep.REFUSE),
        ({}, DropStep.CLOSE),
        ({"stage": DropState.REMOVING, "listed": 3}, DropStep.CLOSE),
        ({"closed": True, "listed": 3}, DropStep.REMOVE),
        ({"closed": True, "listed": 3, "rounds": 10}, DropStep.GIVE_UP),
        ({"closed": True, "marked": True, "settled": False}, DropStep.UNMARK),
        ({"closed": True, "settled": False}, DropStep.SETTLE),
        ({"closed": True}, DropStep.FINISH),
    ],
)
def test_the_next_step(facts: dict[str, Any], act: DropStep) -> None:
    plain: dict[str, Any] = {"stage": None, "closed": False, "holders": 0, "listed": 0, "marked": False}
    assert next_step(**plain | {"settled": True, "rounds": 0} | facts) is act


def test_everything_goes_and_the_name_can_be_used_again(world: World) -> None:
    queue = filled(world).queue
    shown = queue.drop(dry_run=True)
    assert shown.counts == {"pending": 6, "scheduled": 1, "completed": 1, "failed": 1}
    assert (shown.objects, shown.dropped, shown.unfinished) == (len(left(world)), False, None)
    report = queue.drop()
    assert (report.dropped, report.removed, left(world)) == (True, shown.objects + 1, [])  # and its settings
    assert {stat.key for stat in world.memory.list("queues")} == BESIDE
    with pytest.raises(Missing, match="there is no queue 'q'"):
        queue.drop()
    assert queue.push({"n": 9}, id="mine").created
    other = world.process("b")
    claim = other.queue.claim()
    assert isinstance(claim, EntryClaim)
    for task in claim:
        task.done()
    assert other.queue.result("mine").state == "completed"


def test_a_task_that_runs_prevents_it_until_its_lease_has_run_out(world: World) -> None:
    a, b = filled(world), world.process("b")
    claim = a.queue.claim()
    assert isinstance(claim, EntryClaim)
    before = left(world)
    with pytest.raises(Conflict, match=f"the queue 'q' is in use: host:a holds {claim.entry}\n"):
        b.queue.drop()
    assert b.queue.drop(dry_run=True).held[0].by == "host:a"
    assert left(world) == before
    a.freeze()
    world.time.sleep(TTL_S + 2)
    assert b.queue.drop().dropped


def test_a_claim_between_the_look_and_the_mark_takes_the_marks_back(world: World) -> None:
    a, b = filled(world), world.process("b")
    a.queue.pause()
    a.queue.resume()
    claims: list[Any] = []
    b.store.before("put", "control.json", lambda: claims.append(a.queue.claim()))
    with pytest.raises(Conflict, match="is in use: host:a holds"):
        b.queue.drop()
    assert not b.queue.storage.paused()
    record = drop_cell(world.memory, KEYS.drop, b.runtime).read()
    assert record is not None
    assert record.value.stage is DropState.KEPT
    for task in claims[0]:
        task.done()
    assert a.queue.stats().pending


def test_workers_are_told_before_anything_goes_and_resume_is_refused(world: World) -> None:
    a, b = filled(world), world.process("b")
    kill_at(a, "delete", ".json")
    began_s = world.time.now_s
    with pytest.raises(Crash):
        a.queue.drop()
    assert world.time.now_s - began_s >= NOTICE_S
    assert b.queue.storage.paused()
    assert not [*b.queue.claim()]
    with pytest.raises(Unsupported, match="the queue 'q' is being dropped"):
        b.queue.resume()
    with pytest.raises(Held, match="drop of queue q"):
        b.queue.drop()


def test_a_drop_that_dies_at_any_request_is_finished_by_the_next(world: World) -> None:
    """Each of its requests is its last one, in turn; a third process then uses the name."""
    requests = 0
    for n in range(400):
        world = World()
        a = filled(world)
        countdown = [n]

        def note(verb: str, key: str, countdown: list[int] = countdown) -> None:
            countdown[0] -= 1
            if countdown[0] < 0:
                crash()

        a.store._note = note  # type: ignore[method-assign]
        try:
            a.queue.drop()
        except Crash:
            pass
        else:
            requests = n
            break
        world.time.sleep(LOCK_TTL_S + 2)
        b = world.process("b")
        for _ in range(3):
            try:
                b.queue.drop()
                break
            except Held:
                world.time.sleep(LOCK_TTL_S)
            except Missing:
                break
        assert left(world) == [], n
        assert b.queue.push({"n": 1}, id="mine").created, n
        assert [*b.queue.claim()], n
    assert requests > 20


def test_in_a_bucket_it_waits_for_late_deletes_of_names_that_may_come_back(world: World) -> None:
    for id_, waits_s in ((None, 0.0), ("mine", SETTLE_S)):
        process = world.process(f"p-{id_}")
        process.store.far = True
        process.queue.push({"n": 1}, id=id_)
        began_s, said = world.time.now_s, list[str]()
        assert process.queue.drop(progress=said.append).dropped
        assert world.time.now_s - began_s - NOTICE_S == pytest.approx(waits_s, abs=1)
        assert len(said) == 1 + bool(waits_s)


def test_a_second_drop_in_a_bucket_waits_for_the_deletes_of_the_first(world: World) -> None:
    a, b = filled(world), world.process("b")
    a.store.far = b.store.far = True
    kill_at(a, "delete", ".json")
    with pytest.raises(Crash):
        a.queue.drop()
    for stat in [*world.memory.list(ROOT)]:  # they came late: the second one finds nothing to delete
        if stat.key != KEYS.control:
            world.memory.delete(stat.key)
    world.time.sleep(LATER_S)
    began_s = world.time.now_s
    assert b.queue.drop().dropped
    assert world.time.now_s - began_s >= SETTLE_S


def test_what_comes_while_it_waits_goes_too(world: World) -> None:
    a, b = filled(world), world.process("b")
    a.store.far = True
    world.time.at(NOTICE_S + SETTLE_S / 2, lambda: b.queue.push({"n": 1}))
    assert a.queue.drop().dropped
    assert left(world) == []


def test_it_gives_up_where_others_go_on_to_write(world: World) -> None:
    a, b = filled(world), world.process("b")

    def push() -> None:
        b.queue.push({"n": 1})
        a.store.before("list", NAME, push)

    a.store.before("delete", "control.json", push)
    with pytest.raises(Conflict, match="other processes go on to write to the queue 'q'"):
        a.queue.drop()


def test_a_store_that_is_away_is_tried_again_and_then_told(world: World) -> None:
    a = filled(world)
    a.store.before("delete", ".json", raises(Unavailable("slow down")))
    assert a.queue.drop().dropped
    a.queue.push({"n": 1})
    a.store.away("delete", "task.json", Unavailable("slow down"))
    with pytest.raises(Unavailable, match="slow down"):
        a.queue.drop()


def test_a_late_record_of_an_earlier_drop_does_not_count(world: World) -> None:
    """F12: the first drop sleeps for longer than its lock before it says that it is done."""
    a, b = filled(world), world.process("b")
    seen: list[DropRecord] = []

    def take_over() -> None:
        a.store.away("put", ".drop.lock", Unavailable("slow down"))
        world.time.sleep(LOCK_TTL_S + 2)
        assert b.queue.drop().dropped
        record = drop_cell(world.memory, KEYS.drop, b.runtime).read()
        assert record is not None
        seen.append(record.value)
        a.store.back()

    a.store.before("delete", "control.json", lambda: a.store.before("put", "q.drop.json", take_over))
    with pytest.raises(LimpetError):
        a.queue.drop()
    record = drop_cell(world.memory, KEYS.drop, b.runtime).read()
    assert record is not None
    assert [record.value] == seen


def test_a_worker_that_comes_too_late_writes_nothing_into_a_dropped_queue(world: World) -> None:
    a, b = world.process("a"), world.process("b")
    a.queue.push({"n": 1}, id="mine")
    claim = a.queue.claim()
    assert isinstance(claim, EntryClaim)
    tasks = [*claim]
    a.freeze()
    world.time.sleep(TTL_S + 2)
    assert b.queue.drop().dropped
    assert b.queue.push({"n": 2}, id="mine").created
    tasks[0].done("late")
    assert a.queue.result("mine").state == "pending"
    assert [*b.queue.claim()]


def test_a_worker_that_looks_for_tasks_does_not_make_it_anew(world: World) -> None:
    a, b = filled(world), world.process("b")
    a.queue.drop()
    for _ in range(3):
        assert not [*b.queue.claim()]
        b.queue._sweeper.take_turn()
        world.time.sleep(4000)
    assert left(world) == []
    b.queue.push({"n": 1})
    b.queue._sweeper.take_turn()
    assert KEYS.sweep in left(world)


def test_what_cannot_be_dropped_soundly_is_refused(world: World) -> None:
    a = filled(world)
    before = left(world)
    a.queue.storage.__dict__["journal"] = Outbox(a.store, a.runtime)
    with pytest.raises(Unsupported, match="exchanged with other nodes, which would bring it back"):
        a.queue.drop()
    assert left(world) == before


def test_a_hostile_lease_or_record_stops_no_drop_or_is_one_clear_line(world: World) -> None:
    a = filled(world)
    world.memory.put(KEYS.lease("mine"), b"\x00garbage")
    world.memory.put(KEYS.control, b"[]")
    assert a.queue.drop().dropped
    a.queue.push({"n": 1})
    world.memory.put(KEYS.drop, b"{}")
    with pytest.raises(Corrupt, match=r"drop\.json is not a valid"):
        a.queue.drop()
    assert left(world)


def test_it_costs_what_it_says(world: World) -> None:
    a = world.process("a")
    a.queue.push_many([{"n": n} for n in range(GROUP + 5)], batch=1)
    cost = a.cost(lambda: a.queue.drop())
    assert cost.pop("delete") == GROUP + 7
    assert cost == {"get": 6, "put": 11, "head": 4, "list": 18}


@pytest.mark.parametrize(
    ("key", "reused"),
    [
        (KEYS.tasks("mine", batch=False), True),
        (KEYS.completed_of("mine"), True),
        (KEYS.failed_of("mine~1"), True),
        (KEYS.step("mine", 0, 1), True),
        (KEYS.shape("z" * 26), True),
        (KEYS.tasks("01m7v4pd5hwxszj2fy77680f1m", batch=False), False),
        (KEYS.completed_of("01m7v4pd5hwxszj2fy77680f1m-4.1"), False),
        (KEYS.failed_of("01m7v4pd5hwxszj2fy77680f1m~1"), False),
        (KEYS.scheduled_at("20260301T000000Z", "mine", "01m7v4pd5hwxszj2fy77680f1m"), False),
        (KEYS.bell, False),
    ],
)
def test_which_names_a_later_object_may_have(world: World, key: Key, reused: bool) -> None:
    assert QueueTarget(world.process("a").queue.storage, bool).reuses(key) is reused
