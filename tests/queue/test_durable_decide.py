"""The decisions about durable tasks, as tables."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from limpet.kernel.cell import Lost, Replaced, Unclear, Versioned, Won
from limpet.kernel.cell.decide import Header
from limpet.kernel.keys import QueueKeys
from limpet.kernel.lease import State
from limpet.kernel.store import Version
from limpet.queue.durable import (
    KnownStep,
    NewStep,
    OtherStep,
    WaitingStep,
    agreed,
    arguments_digest,
    has_ended,
    left_before,
    left_s,
    look_again_s,
    looks,
    origin_of,
    orphaned,
    pushed_name,
    recall,
    step_key,
    until,
    waiting,
    woken,
)
from limpet.queue.entry import AWAITS_MAX, REASON_CHARS_MAX, Content, EntryLease, StepKind, StepRecord, Suspension
from support.clock import EPOCH

KEYS = QueueKeys.of("report")
TASK = str(KEYS.tasks("order-7", batch=False))
BATCH = str(KEYS.tasks("0000000000aaaaaaaaaaaaaaaa", batch=True))


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def seen(
    kind: StepKind = "step",
    name: str = "fetch",
    *,
    wait_s: float = 0.0,
    modified: datetime | None = EPOCH,
    sha256: str | None = None,
) -> Versioned[StepRecord]:
    record = StepRecord(kind=kind, name=name, token=1, began_at=EPOCH, at=EPOCH, wait_s=wait_s, sha256=sha256)
    return Versioned(record, Header(1, 1, "w"), Version("v"), modified)


def suspension(**fields: Any) -> Suspension:
    base: dict[str, Any] = {"reason": "it waits", "step": 4, "since": EPOCH}
    return Suspension(**(base | fields))


def lease(state: State = State.FREE, **fields: Any) -> EntryLease:
    base: dict[str, Any] = {
        "state": state,
        "name": "x",
        "worker_id": "w1",
        "label": "host:1",
        "token": 3,
        "attempt": 1,
        "created_at": EPOCH,
        "heartbeat_at": EPOCH,
        "expires_at": at(60),
        "ttl_s": 60.0,
    }
    return EntryLease(**(base | fields))


# ---- recorded steps ----


def test_a_step_with_other_arguments_is_of_other_code() -> None:
    ann, bob, old = (arguments_digest([name], {}) for name in ("ann", "bob", "old"))
    log = {n: seen("step", "charge", sha256=sha256) for n, sha256 in enumerate([ann, bob, None])}
    assert recall(log, 0, "step", "charge", ann) == KnownStep(log[0])
    assert recall(log, 0, "step", "charge") == KnownStep(log[0])
    assert recall(log, 2, "step", "charge", old) == KnownStep(log[2]), "an older version has recorded no digest"
    said = (
        "waits for code that fits: "
        f"step 0 is step 'charge' with arguments of digest {ann[:8]}, the code asks for step 'charge'"
    )
    for sha256, where in ((bob, f" with {bob[:8]}, which is step 1 (or "), (old, f" with {old[:8]} (or ")):
        match recall(log, 0, "step", "charge", sha256):
            case OtherStep(why):
                assert why.startswith(said + where)
                assert why.endswith("(or do the arguments depend on a clock, or on chance?)")
            case other:
                raise AssertionError(other)


def test_arguments_are_told_apart_by_value_and_place() -> None:
    calls: list[tuple[list[Any], dict[str, Any]]] = [
        ([], {}),
        ([None], {}),
        ([1], {}),
        (["1"], {}),
        ([1, 2], {}),
        ([[1, 2]], {}),
        ([2, 1], {}),
        ([1], {"x": 2}),
        ([], {"x": 1, "y": 2}),
        ([], {"x": 2, "y": 1}),
        ([b"1"], {"x": b"2"}),
    ]
    assert len({arguments_digest(*call) for call in calls}) == len(calls)
    assert arguments_digest([], {"x": 1, "y": 2}) == arguments_digest([], {"y": 2, "x": 1})
    assert arguments_digest([{"b", "a", "c"}], {}) == arguments_digest([{"c", "b", "a"}], {})
    assert arguments_digest([object()], {}) == arguments_digest([object()], {})


def test_a_step_is_new_known_or_of_other_code() -> None:
    log = {2: seen("step", "fetch")}
    assert recall(log, 1, "step", "fetch") == NewStep()
    assert recall(log, 2, "step", "fetch") == KnownStep(log[2])
    assert recall(log, 2, "step", "parse") == OtherStep(
        "waits for code that fits: step 2 is step 'fetch', the code asks for step 'parse'"
    )
    other = recall(log, 2, "sleep", "")
    assert isinstance(other, OtherStep)
    assert other.why.endswith("the code asks for sleep")
    long = recall({0: seen("step", "x" * 999 + "1")}, 0, "step", "x" * 999 + "2")
    assert isinstance(long, OtherStep), "names that differ beyond what is shown"
    assert len(long.why) < 250
    assert isinstance(recall(log, 2, "push", "fetch"), OtherStep), "the kind counts, too"


def test_the_first_record_counts_whoever_wrote_it() -> None:
    ours, theirs = seen(name="ours"), seen(name="theirs")
    assert agreed(Won(ours)) is ours
    assert agreed(Lost(theirs)) is theirs
    assert agreed(Unclear(theirs)) is theirs
    assert agreed(Replaced(ours, theirs)) is theirs


def test_names_are_derived_from_the_first_life() -> None:
    pushed = Content(("order-7",), (b"{}",), EPOCH, 0, False, write_id="w1")
    origin = origin_of(KEYS, "order-7", 0, pushed, batch=False)
    assert origin == "queues/report/order-7@w1"
    assert origin_of(KEYS, "e", 3, pushed, batch=True) == "queues/report/e.3@w1"
    retried = msgspec.structs.replace(pushed, write_id="w2", origin=origin)
    assert origin_of(KEYS, "order-7~1", 0, retried, batch=False) == origin
    again = msgspec.structs.replace(pushed, write_id="w3")
    assert origin_of(KEYS, "order-7", 0, again, batch=False) != origin, "the id is used again, after its receipt"
    assert step_key(origin, 2) == "queues/report/order-7@w1#2"
    assert pushed_name(origin, 2) == pushed_name(origin, 2)
    assert len({pushed_name(origin, 2), pushed_name(origin, 3), pushed_name(f"{origin}.1", 2)}) == 3


def test_a_sleep_counts_from_its_record() -> None:
    assert left_s(seen("sleep", "", wait_s=10.0), at(4)) == 6.0
    assert left_s(seen("sleep", "", wait_s=10.0), at(14)) == -4.0
    assert left_s(seen("sleep", "", wait_s=10.0, modified=None), at(4)) == 10.0, "it was recorded just now"
    assert left_s(seen("sleep", "", wait_s=10.0000004), at(10)) == 0.0, "times are whole microseconds"


def test_what_a_suspension_says_about_its_time_counts_for_its_own_step() -> None:
    assert left_before(suspension(due_s=8.0), 4, held_s=3.0) == 5.0
    assert left_before(suspension(due_s=0.0), 4, held_s=0.5) == -0.5
    assert left_before(suspension(due_s=3.0000004), 4, held_s=3.0) == 0.0
    assert left_before(suspension(due_s=8.0), 5, held_s=3.0) is None, "another step waited then"
    assert left_before(suspension(), 4, held_s=3.0) is None, "it did not wait for a time then"
    assert left_before(None, 4, held_s=3.0) is None


@pytest.mark.parametrize(
    ("state", "waited_s", "ended"),
    [
        ("completed", 0.0, True),
        ("failed", 0.0, True),
        ("cancelled", 0.0, True),
        ("pending", 1e9, False),
        ("running", 1e9, False),
        ("scheduled", 1e9, False),
        ("unknown", 0.0, False),
        ("unknown", 119.9, False),
        ("unknown", 120.0, True),
    ],
)
def test_which_tasks_have_ended(state: str, waited_s: float, ended: bool) -> None:
    assert has_ended(state, waited_s) is ended


# ---- suspension ----


@pytest.mark.parametrize(("waited_s", "again_s"), [(0, 2), (8, 2), (12, 3), (40, 10), (240, 60), (1e6, 60)])
def test_looks_get_rarer(waited_s: float, again_s: float) -> None:
    assert look_again_s(waited_s) == again_s


def test_a_first_wait() -> None:
    rest_s, found = waiting(None, reason="r" * 999, step=4, wall=at(40), awaits=[TASK] * 999, signal="go")
    assert rest_s == 2.0
    assert found == Suspension(
        reason="r" * REASON_CHARS_MAX, step=4, since=at(40), due_s=None, awaits=[TASK] * AWAITS_MAX, signal="go"
    )
    assert waiting(None, reason="", step=4, wall=at(40))[1] == Suspension(reason="", step=4, since=at(40))


@pytest.mark.parametrize(
    ("delayed_s", "left", "rest_s"),
    [(-5.0, None, 2.0), (90.0, None, 90.0), (1e6, None, 1800.0), (90.0, 40.0, 40.0), (1.0, None, 2.0)],
)
def test_a_wait_for_delayed_tasks_lasts_until_they_are_due(delayed_s: float, left: float | None, rest_s: float) -> None:
    rests_s, found = waiting(None, reason="", step=4, wall=at(40), left=left, delayed_s=delayed_s)
    assert (rests_s, found.due_s) == (rest_s, left)


def test_a_wait_at_the_same_step_goes_on_and_another_one_begins() -> None:
    before = suspension(step=4, since=at(0), waited_s=40.0)
    rest_s, found = waiting(before, reason="", step=4, wall=at(40))
    assert (rest_s, found.since, found.waited_s) == (10.0, at(0), 40.0)
    rest_s, found = waiting(before, reason="", step=5, wall=at(40))
    assert (rest_s, found.since, found.waited_s) == (2.0, at(40), 0.0)


@pytest.mark.parametrize(
    ("left", "rest_s", "due_s"),
    [(None, 10.0, None), (99.0, 10.0, 99.0), (3.0, 3.0, 3.0), (0.0, 0.0, 0.0), (-5.0, 0.0, 0.0)],
)
def test_a_wait_ends_when_its_time_is_up(left: float | None, rest_s: float, due_s: float | None) -> None:
    rests_s, found = waiting(suspension(since=at(0), waited_s=40.0), reason="", step=4, wall=at(40), left=left)
    assert (rests_s, found.due_s) == (rest_s, due_s)


def looked(record: EntryLease, count: int = 1, *, now_s: float = 10.0) -> list[WaitingStep]:
    return looks(record, count, modified=EPOCH, now=at(now_s))


def test_what_is_looked_for_before_a_claim() -> None:
    both = suspension(awaits=[TASK, BATCH], signal="go")
    assert looked(lease(suspended={0: both})) == [WaitingStep(0, [TASK, BATCH], "go")]
    assert looked(lease(suspended={0: suspension(signal="go")})) == [WaitingStep(0, [], "go")]
    assert looked(lease(suspended={0: suspension(awaits=[TASK])})) == [WaitingStep(0, [TASK], None)]
    two = {0: both, 1: suspension(signal="stop")}
    assert looked(lease(suspended=two), 2) == [WaitingStep(0, [TASK, BATCH], "go"), WaitingStep(1, [], "stop")]
    assert looked(lease(suspended=two, done=[0]), 2) == [WaitingStep(1, [], "stop")]


def test_nothing_is_looked_for_if_a_task_can_go_on() -> None:
    waits = suspension(signal="go")
    assert looked(lease(State.HELD, suspended={0: waits})) == [], "somebody has it"
    assert looked(lease(suspended={0: waits}), 2) == [], "task 1 is not suspended"
    assert looked(lease(suspended={0: suspension()})) == [], "it sleeps, and is due"
    assert looked(lease(suspended={0: suspension(signal="go", due_s=10.0)})) == [], "its time is up"
    assert looked(lease(suspended={0: suspension(signal="go", due_s=10.1)})) != []
    assert looked(lease(suspended={0: waits}), now_s=-0.5) == [], "the clock is behind the lease"


def test_a_task_that_rests_is_not_looked_for() -> None:
    two = {0: suspension(signal="go"), 1: suspension(signal="stop")}
    assert looked(lease(suspended=two, waits={0: 10.1, 1: 10.0}), 2) == [WaitingStep(1, [], "stop")]
    assert looked(lease(suspended=two, waits={0: 11.0}), 2) == [WaitingStep(1, [], "stop")]
    assert looked(lease(suspended={0: two[0]}, waits={1: 10.5}), 2) == [WaitingStep(0, [], "go")], "1 retries later"
    assert looked(lease(suspended={1: two[1]}, waits={0: 0.5}), 2, now_s=0.3) == [WaitingStep(1, [], "stop")]


def test_keys_of_other_objects_are_not_looked_at() -> None:
    strange = ["../../etc/passwd", "catalog/head.json", str(KEYS.completed_of("order-7")), f"{TASK}x", ""]
    assert looked(lease(suspended={0: suspension(awaits=[*strange, TASK])})) == [WaitingStep(0, [TASK], None)]


def test_a_signal_wakes_the_task_that_waits_for_it() -> None:
    record = lease(
        suspended={0: suspension(signal="go", awaits=[TASK], due_s=99.0), 1: suspension(signal="go", waited_s=5.0)},
        waits={0: 60.0, 1: 50.0},
        wait_s=50.0,
        attempts={0: 2},
    )
    after = woken(record, 0, "go", 20.0)
    assert after is not None
    assert after == msgspec.structs.replace(
        record,
        wait_s=0.0,
        waits={0: 0.0, 1: 30.0},
        suspended={0: suspension(due_s=79.0, waited_s=20.0), 1: suspension(signal="go", waited_s=25.0)},
    )
    assert looks(after, 2, modified=EPOCH, now=EPOCH) == [], "it can be claimed at once"
    assert woken(record, 0, "stop", 0.0) is None
    assert woken(record, 2, "go", 0.0) is None
    assert woken(lease(State.HELD, suspended=record.suspended), 0, "go", 0.0) is None


def test_a_wait_that_is_over_stays_over_when_another_task_is_woken() -> None:
    record = lease(suspended={0: suspension(signal="go"), 1: suspension(due_s=10.0)}, waits={1: 10.0})
    after = woken(record, 0, "go", 20.0)
    assert after is not None
    assert (after.waits[1], after.suspended[1].due_s) == (0.0, 0.0)


def test_when_a_suspended_task_goes_on() -> None:
    assert until(suspension(due_s=9.0), at(5)) == at(14)
    assert until(suspension(due_s=0.0), at(5)) == at(5)
    assert until(suspension(), at(5)) is None


# ---- what is left ----


def test_whose_steps_go() -> None:
    assert orphaned([0, 1, 2], waits=True, failed=[]) == set()
    assert orphaned([0, 1, 2], waits=False, failed=[1]) == {0, 2}
