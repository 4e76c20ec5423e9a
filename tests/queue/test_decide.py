"""The queue's decisions, as tables."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.kernel import records
from limpet.kernel.keys import SEGMENT_BYTES_MAX, QueueKeys
from limpet.kernel.lease import State
from limpet.kernel.lease.decide import look_interval_s
from limpet.kernel.records import RECORD_BYTES_MAX
from limpet.kernel.store import Version
from limpet.queue import Policy
from limpet.queue.decide import (
    ABANDONED,
    BRIEF_CHARS_MAX,
    ERRORS_BYTES_MAX,
    NOTE_BYTES,
    SUSPENSIONS_BYTES_MAX,
    Progress,
    Ready,
    Resting,
    aged,
    attempts_of,
    bare,
    batch_receipt,
    cancelled,
    charged,
    claimable,
    claimed,
    completion,
    error_of,
    errors_of,
    exhausted,
    first_done,
    fitted,
    freed,
    handed_back,
    is_left_out,
    lists_done,
    may_start,
    must_charge,
    now_for,
    open_tasks,
    other_shape,
    progressed,
    start_order,
    task_receipt,
    trimmed,
    waits_left,
)
from limpet.queue.entry import (
    DELAY_MAX_S,
    ERROR_CHARS_MAX,
    AttemptRecord,
    Content,
    EntryLease,
    PushShape,
    Receipt,
    Suspension,
)
from limpet.queue.rows import state_of
from limpet.queue.state import INLINE_BYTES_MAX, INLINE_TOTAL_MAX
from support.clock import EPOCH, steady

TTL_S = 60.0
LOOK_S = look_interval_s(TTL_S)
RAW = msgspec.Raw(b"1")


def at(seconds: float) -> Any:
    return EPOCH + timedelta(seconds=seconds)


def record(state: State = State.HELD, **fields: Any) -> EntryLease:
    base: dict[str, Any] = {
        "state": state,
        "name": "x",
        "worker_id": "w1",
        "label": "host:1",
        "token": 3,
        "attempt": 1,
        "created_at": EPOCH,
        "heartbeat_at": EPOCH,
        "expires_at": at(TTL_S),
        "ttl_s": TTL_S,
    }
    return EntryLease(**(base | fields))


def suspension(waited_s: float = 0.0, due_s: float | None = None) -> Suspension:
    return Suspension(reason="", step=1, since=EPOCH, waited_s=waited_s, due_s=due_s)


def claim_by(before: EntryLease | None, *, max_attempts: int = 5, **more: Any) -> EntryLease:
    policy = Policy(max_attempts=max_attempts, ttl_s=30.0)
    return claimed(before, entry="x", worker_id="w2", label="host:2", policy=policy, wall=at(500), **more)


# ---- may it be taken ----


def test_a_clock_that_was_set_makes_no_record_younger_than_it_was_seen_and_none_of_ours_older() -> None:
    assert now_for(at(10), modified=EPOCH, unchanged_s=4, ours=False) == at(10)
    assert now_for(at(-3600), modified=EPOCH, unchanged_s=4, ours=False) == at(4)
    assert now_for(at(3600), modified=EPOCH, unchanged_s=4, ours=True) == at(4)


@pytest.mark.parametrize(
    ("state", "wait_s", "now_s", "unchanged_s", "take", "finish", "at_s"),
    [
        (State.FREE, 0.0, 0.0, 0.0, True, False, 0.0),
        (State.FREE, 10.0, 9.9, 1000.0, False, False, 10.0),
        (State.FREE, 10.0, 10.0, 0.0, True, False, 10.0),
        (State.HELD, 0.0, 0.0, 0.0, False, False, TTL_S + 1),
        (State.HELD, 0.0, TTL_S, LOOK_S, False, False, TTL_S + 1),
        (State.HELD, 0.0, TTL_S + 1, LOOK_S - 0.1, False, False, TTL_S + 1),
        (State.HELD, 0.0, TTL_S + 1, LOOK_S, True, False, None),
        (State.HELD, 0.0, 10**7, 0.0, False, False, TTL_S + 1),
        (State.HELD, 0.0, 0.0, TTL_S, False, False, TTL_S + 1),
        (State.HELD, 0.0, 0.0, TTL_S + 1, True, False, None),
        (State.HELD, 500.0, TTL_S + 1, LOOK_S, True, False, None),
        (State.CANCELLED, 0.0, 0.0, 0.0, False, True, None),
        (State.CANCELLED, 0.0, 10**7, 10**7, False, True, None),
    ],
)
def test_claimable(
    state: State, wait_s: float, now_s: float, unchanged_s: float, take: bool, finish: bool, at_s: float | None
) -> None:
    lease = record(state, wait_s=wait_s)
    ready = claimable(lease, modified=EPOCH, unchanged_s=unchanged_s, now=at(now_s), wall=at(now_s))
    assert ready == Ready(take=take, finish=finish, at=None if at_s is None else at(at_s))


@pytest.mark.parametrize(
    ("waits", "now_s", "left"),
    [
        ({}, 100.0, {}),
        ({0: 10.0, 1: 20.0}, 0.0, {0: 10.0, 1: 20.0}),
        ({0: 10.0, 1: 20.0}, 15.0, {1: 5.0}),
        ({0: 10.0}, 10.0, {}),
        ({0: 10.0, 1: 20.0}, 99.0, {}),
        ({0: 10.0}, -5.0, {0: 15.0}),
        ({0: 0.0}, 0.0, {}),
        ({0: 7.7990604929287911}, 7.79906, {}),  # `claimable` takes it then: its time is a whole microsecond
        ({0: 7.75}, 7.749999, {0: 7.75 - 7.749999}),
    ],
)
def test_waits_left(waits: dict[int, float], now_s: float, left: dict[int, float]) -> None:
    assert waits_left(record(waits=waits), modified=EPOCH, now=at(now_s)) == left


@pytest.mark.parametrize(
    ("state", "wait_s", "waits", "done", "now_s", "working", "resting"),
    [
        (State.HELD, 0.0, {}, [], 0.0, 3, 0),
        (State.HELD, 0.0, {}, [1], 0.0, 2, 0),
        (State.HELD, 0.0, {}, [0, 1, 2], 0.0, 0, 0),
        (State.HELD, 0.0, {0: 10.0}, [], 9.9, 2, 1),
        (State.HELD, 0.0, {0: 10.0}, [], 10.0, 3, 0),
        (State.HELD, 0.0, {0: 10.0, 1: 20.0}, [], 5.0, 1, 2),
        (State.HELD, 0.0, {0: 10.0, 1: 20.0}, [0], 5.0, 1, 1),
        (State.HELD, 0.0, {0: 0.5}, [], 0.0, 2, 1),
        # renewed since the clock was read: what has no wait does not rest
        (State.HELD, 0.0, {}, [], -0.5, 3, 0),
        (State.HELD, 0.0, {0: 10.0}, [], -0.5, 2, 1),
        (State.HELD, 500.0, {}, [], 10.0, 3, 0),
        (State.HELD, 0.0, {}, [], TTL_S + 1, 3, 0),
        (State.HELD, 0.0, {}, [], TTL_S + 1.1, 0, 0),
        (State.HELD, 500.0, {}, [], TTL_S + 1.1, 0, 0),
        (State.FREE, 0.0, {}, [], 0.0, 0, 0),
        (State.FREE, 10.0, {}, [], 9.9, 0, 3),
        (State.FREE, 10.0, {}, [2], 9.9, 0, 2),
        (State.FREE, 10.0, {}, [], 10.0, 0, 0),
        (State.CANCELLED, 10.0, {}, [], 0.0, 0, 0),
    ],
)
def test_how_many_are_worked_on_and_how_many_rest(
    state: State, wait_s: float, waits: dict[int, float], done: list[int], now_s: float, working: int, resting: int
) -> None:
    lease = record(state, wait_s=wait_s, waits=waits, done=done)
    states = [state_of(lease, n, modified=EPOCH, now=at(now_s)) for n in range(3)]
    assert (states.count("running"), states.count("resting")) == (working, resting)


V1, V2 = Version("1"), Version("2")


@pytest.mark.parametrize(
    ("at_s", "now_s", "left_out"),
    [
        (0.0, 0.0, True),
        (9.9, 0.0, True),
        (10.0, 0.0, False),
        (10.1, 0.0, False),
        # this process's clock stood still while the machine slept: that of the store counts too
        (0.0, 99.9, True),
        (0.0, 100.0, False),
        (0.0, 100.1, False),
    ],
)
def test_an_entry_that_rests_is_left_out_until_it_is_due(at_s: float, now_s: float, left_out: bool) -> None:
    rest = Resting(V1, due_s=10.0, at=at(100.0))
    assert is_left_out(rest, version=V1, at_s=at_s, now=at(now_s)) is left_out


@pytest.mark.parametrize(("at_s", "left_out"), [(0.0, True), (9.9, True), (10.0, False)])
def test_an_entry_whose_rest_has_no_time_of_the_stores_clock(at_s: float, left_out: bool) -> None:
    assert is_left_out(Resting(V1, due_s=10.0), version=V1, at_s=at_s, now=at(1e6)) is left_out


def test_an_entry_whose_lease_has_changed_is_considered() -> None:
    assert is_left_out(Resting(V1, due_s=10.0), version=V2, at_s=0.0, now=EPOCH) is False


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        ({}, False),
        ({"tasks": 8}, True),
        ({"sha256": "b" * 64}, True),
        # neither when it was made nor by what name tells one push from another
        ({"at": at(9)}, False),
    ],
)
def test_a_push_of_many_tasks_has_one_shape(other: dict[str, Any], differs: bool) -> None:
    first = PushShape(id="monday", tasks=7, entries=2, sha256="a" * 64, at=EPOCH)
    assert other_shape(first, msgspec.structs.replace(first, **other)) is differs


# ---- taking ----


@pytest.mark.parametrize("max_attempts", [1, 2, 5])
def test_the_first_claim_charges_nobody(max_attempts: int) -> None:
    first = claim_by(None, max_attempts=max_attempts)
    assert (first.state, first.token, first.charged, first.attempts) == (State.HELD, 1, 0, {})
    assert not first.contested
    assert (first.worker_id, first.label, first.name, first.ttl_s) == ("w2", "host:2", "x", 30.0)
    assert (first.created_at, first.heartbeat_at, first.expires_at) == (at(500), at(500), at(530))


def test_a_later_claim_keeps_what_is_known_of_the_tasks_and_charges_nobody() -> None:
    before = record(
        State.FREE,
        charged=2,
        attempts={1: 4},
        running=1,
        done=[0],
        failed=[2],
        results={0: RAW},
        parts=["p"],
        error="boom",
        wait_s=9.0,
        waits={3: 9.0, 4: 1.0},
        not_before=at(9),
    )
    after = claim_by(before, waits={3: 4.0})
    assert (after.state, after.token, after.worker_id, after.ttl_s) == (State.HELD, 4, "w2", 30.0)
    assert (after.charged, after.attempts, after.done, after.failed) == (2, {1: 4}, [0], [2])
    assert (after.results, after.parts, after.error) == ({0: RAW}, ["p"], "boom")
    assert (after.running, after.not_before, after.wait_s, after.waits) == (None, None, 0.0, {3: 4.0})


def test_a_claim_knows_what_its_tasks_waited_for_and_which_have_recorded_steps() -> None:
    """A replay needs both: how long it has waited for the same step, and whether there is anything to read."""
    before = record(State.FREE, suspended={3: suspension(5.0, 30.0)}, durable=[3, 1])
    after = claim_by(before)
    assert (after.suspended, after.durable) == (before.suspended, [3, 1]), "as old as they were: no time has passed"
    assert claim_by(before, since_s=4.0).suspended == {3: suspension(9.0, 26.0)}


def test_every_field_of_a_lease_that_is_taken() -> None:
    """So that a field that a new version adds is thought about here too."""
    mine = {"name": "x", "worker_id": "w2", "label": "host:2", "ttl_s": 30.0, "created_at": at(500)}
    mine |= {"heartbeat_at": at(500), "expires_at": at(530)}
    assert claim_by(None) == record(**mine, token=1, attempt=1, charged=0)
    before = record(State.FREE, name="y", attempt=4, charged=2, running=1, wait_s=9.0, not_before=at(9), waits={1: 9.0})
    assert claim_by(before) == record(**mine, token=4, attempt=4, charged=2)
    dead = record(State.HELD, running=1, beside=[4, 2], done=[2], suspects=[3])
    assert (claim_by(dead).running, claim_by(dead).beside, claim_by(dead).suspects) == (None, [], [3, 1, 4])


@pytest.mark.parametrize(
    ("state", "before", "contested"),
    [(State.FREE, False, False), (State.FREE, True, True), (State.HELD, False, True), (State.HELD, True, True)],
)
def test_a_lease_that_was_taken_from_a_holder_stays_contested(state: State, before: bool, contested: bool) -> None:
    assert claim_by(record(state, contested=before)).contested is contested


def note(attempt: int = 1, error: str = "boom", traceback: str | None = None, at_s: float = 0.0) -> AttemptRecord:
    return AttemptRecord(attempt=attempt, at=at(at_s), worker="host:1", error=error, traceback=traceback)


DIED = AttemptRecord(attempt=2, at=at(500), worker="host:1", error=ABANDONED)


@pytest.mark.parametrize(
    ("state", "fields", "errors"),
    [
        (State.HELD, {}, {}),
        (State.HELD, {"running": 0}, {0: [DIED]}),
        (State.HELD, {"running": 1}, {1: [DIED]}),
        (State.HELD, {"running": 1, "errors": {0: [note()]}}, {0: [note()], 1: [DIED]}),
        (State.HELD, {"running": 1, "errors": {1: [note()]}}, {1: [note(), DIED]}),
        (State.HELD, {"errors": {1: [note()]}}, {1: [note()]}),
        (State.HELD, {"beside": [0, 2]}, {0: [DIED], 2: [DIED]}),
        (State.HELD, {"running": 1, "beside": [2, 0, 3], "done": [0], "waits": {3: 1.0}}, {1: [DIED], 2: [DIED]}),
        (State.FREE, {"running": 1, "beside": [2]}, {}),
        # it is not running any more: it has ended, or rests until its next attempt
        (State.HELD, {"running": 1, "done": [1]}, {}),
        (State.HELD, {"running": 1, "failed": [1]}, {}),
        (State.HELD, {"running": 1, "waits": {1: 5.0}}, {}),
        (State.HELD, {"running": 1, "done": [0], "failed": [2], "waits": {3: 5.0}}, {1: [DIED]}),
        # its holder let go of it
        (State.FREE, {"running": 1}, {}),
        (State.FREE, {"running": 1, "errors": {0: [note()]}}, {0: [note()]}),
    ],
)
def test_the_task_that_a_dead_holder_was_at_has_an_error_more(
    state: State, fields: dict[str, Any], errors: dict[int, list[AttemptRecord]]
) -> None:
    assert claim_by(record(state, charged=2, **fields)).errors == errors


def test_a_claim_is_of_the_entry_that_was_claimed_whatever_the_record_says() -> None:
    assert claim_by(record(name="../../other")).name == "x"


@pytest.mark.parametrize(
    ("token", "max_attempts", "by_swap"),
    [(1, 1, True), (1, 2, False), (1, 9, False), (2, 1, True), (2, 2, True), (9, 9, True)],
)
def test_must_charge(token: int, max_attempts: int, by_swap: bool) -> None:
    assert must_charge(record(token=token), Policy(max_attempts=max_attempts)) is by_swap


@pytest.mark.parametrize(
    ("state", "fields", "suspects"),
    [
        (State.HELD, {}, []),
        (State.HELD, {"running": 1}, [1]),
        (State.HELD, {"running": 1, "beside": [0, 2]}, [1, 0, 2]),
        (State.HELD, {"running": 1, "beside": [1, 1, 2, 2]}, [1, 2]),
        (State.HELD, {"running": 1, "beside": [0, 2, 3], "done": [0], "failed": [2], "waits": {3: 0.0}}, [1]),
        (State.HELD, {"suspects": [4, 1]}, [4, 1]),
        (State.HELD, {"suspects": [4, 1], "running": 1, "beside": [2]}, [4, 1, 2]),
        (State.FREE, {"running": 1, "beside": [2]}, []),
        (State.FREE, {"suspects": [4]}, [4]),
    ],
)
def test_the_tasks_that_ran_when_a_holder_died_are_suspects(
    state: State, fields: dict[str, Any], suspects: list[int]
) -> None:
    assert claim_by(record(state, **fields)).suspects == suspects


@pytest.mark.parametrize(
    ("fields", "order"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"done": [0], "failed": [3]}, [1, 2, 4]),
        ({"waits": {1: 5.0}}, [0, 2, 3, 4]),
        ({"suspects": [3, 1]}, [1, 3, 0, 2, 4]),
        ({"suspects": [3, 1], "done": [0, 1], "waits": {4: 5.0}}, [3, 2]),
    ],
)
def test_suspects_are_started_first(fields: dict[str, Any], order: list[int]) -> None:
    assert start_order(record(**fields), 5) == order


@pytest.mark.parametrize(
    ("n", "running", "suspects", "maximum", "concurrency", "may"),
    [
        (0, [], [], 5, None, True),
        (1, [0], [], 5, None, True),
        (1, [0], [], 2, None, True),
        (1, [0, 2], [7], 5, None, True),
        # nothing beside a suspect, and a suspect beside nothing
        (0, [], [0, 1], 5, None, True),
        (1, [0], [0, 1], 5, None, False),
        (2, [0], [0, 1], 5, None, False),
        (2, [3, 0], [0, 1], 5, None, False),
        (1, [3], [0, 1], 5, None, False),
        # one attempt, or a limit: one at a time
        (0, [], [], 1, None, True),
        (1, [0], [], 1, None, False),
        (0, [], [], 5, 9, True),
        (1, [0], [], 5, 9, False),
    ],
)
def test_what_may_start_beside_what_runs(
    n: int, running: list[int], suspects: list[int], maximum: int, concurrency: int | None, may: bool
) -> None:
    policy = Policy(max_attempts=maximum, concurrency=concurrency)
    assert may_start(n, running=running, suspects=suspects, policy=policy) is may


# ---- attempts ----


@pytest.mark.parametrize(
    ("charge", "attempts", "n", "expected"),
    [(1, {}, 0, 1), (0, {}, 7, 0), (1, {0: 3}, 0, 3), (1, {0: 3}, 1, 1), (2, {0: 0}, 0, 0)],
)
def test_attempts_of(charge: int, attempts: dict[int, int], n: int, expected: int) -> None:
    assert attempts_of(record(charged=charge, attempts=attempts), n) == expected


@pytest.mark.parametrize(
    ("done", "failed", "expected"),
    [([], [], [0, 1, 2]), ([1], [], [0, 2]), ([], [0, 2], [1]), ([2, 0], [1], []), ([7, -1], [], [0, 1, 2])],
)
def test_open_tasks(done: list[int], failed: list[int], expected: list[int]) -> None:
    assert open_tasks(record(done=done, failed=failed), 3) == expected


@pytest.mark.parametrize(
    ("charge", "attempts", "done", "maximum", "expected"),
    [
        (1, {}, [], 2, []),
        (1, {}, [], 1, [0, 1, 2]),
        (0, {}, [], 1, []),
        (0, {1: 1}, [], 1, [1]),
        (1, {0: 2, 1: 2}, [], 2, [0, 1]),
        (1, {0: 2, 1: 2}, [0], 2, [1]),
        (1, {0: 2}, [], 3, []),
        (2, {2: 1}, [], 2, [0, 1]),
        (5, {}, [0, 1, 2], 2, []),
    ],
)
def test_exhausted(charge: int, attempts: dict[int, int], done: list[int], maximum: int, expected: list[int]) -> None:
    lease = record(charged=charge, attempts=attempts, done=done)
    assert exhausted(lease, 3, Policy(max_attempts=maximum)) == expected


def test_charging_names_the_task_and_ends_its_wait() -> None:
    after = charged(record(charged=1, attempts={2: 5}, waits={1: 9.0, 2: 8.0}), [1])
    assert (after.running, after.attempts, after.attempt, after.waits) == (1, {1: 2, 2: 5}, 2, {2: 8.0})
    again = charged(after, [2])
    assert (again.running, again.attempts, again.attempt, again.waits) == (2, {1: 2, 2: 6}, 6, {})
    assert (again.state, again.token, again.beside) == (State.HELD, 3, [1]), "it has no verdict: it runs on"


def test_a_task_that_goes_on_is_no_longer_suspended_and_its_neighbours_are() -> None:
    waiting = {1: suspension(5.0), 2: suspension(0.0, 8.0), 4: suspension()}
    before = record(charged=1, attempts={2: 4}, waits={1: 9.0, 2: 8.0, 4: 7.0}, suspended=waiting, durable=[1, 2, 4])
    after = charged(before, [2, 4])
    assert after.suspended == {1: suspension(5.0)}
    assert (after.attempt, after.attempts) == (5, {2: 5, 4: 2}), "the attempt shown is that of the first of them"
    assert after.durable == [1, 2, 4], "it has recorded steps, whoever runs it"


def test_a_group_of_starts_is_charged_and_named_at_once() -> None:
    before = record(
        charged=1, attempts={2: 5}, waits={3: 9.0, 6: 8.0}, running=0, beside=[1, 2], done=[1], suspects=[0]
    )
    after = charged(before, [3, 4, 5])
    assert (after.running, after.beside) == (3, [4, 5, 0, 2])
    assert (after.attempts, after.attempt, after.waits) == ({2: 5, 3: 2, 4: 2, 5: 2}, 2, {6: 8.0})
    assert after.suspects == [0]


@pytest.mark.parametrize(
    ("before", "progress", "running", "beside", "suspects"),
    [
        ({}, {}, None, [], []),
        ({}, {"running": [2]}, 2, [], []),
        ({}, {"running": [2, 0]}, 2, [0], []),
        ({"running": 1, "beside": [3]}, {}, 1, [3], []),
        ({"running": 1, "beside": [3]}, {"running": [3, 4, 1]}, 3, [4, 1], []),
        ({"running": 1, "beside": [3, 4]}, {"done": [1]}, 3, [4], []),
        ({"running": 1, "beside": [3, 4]}, {"done": [1], "failed": [3], "due_s": {4: 9.0}}, None, [], []),
        ({"running": 1, "beside": [2], "waits": {2: 1.0}}, {}, 1, [], []),
        ({"beside": [2]}, {}, 2, [], []),
        ({"suspects": [1, 3, 4]}, {}, None, [], [1, 3, 4]),
        ({"suspects": [1, 3, 4, 5]}, {"done": [1], "failed": [3], "due_s": {4: 9.0}}, None, [], [5]),
    ],
)
def test_a_verdict_ends_a_run_and_a_suspicion(
    before: dict[str, Any], progress: dict[str, Any], running: int | None, beside: list[int], suspects: list[int]
) -> None:
    after = progressed(record(**before), Progress(**progress), 0.0)
    assert (after.running, after.beside, after.suspects) == (running, beside, suspects)


# ---- progress ----


def test_progress_is_added_and_nothing_is_forgotten() -> None:
    before = record(done=[0], failed=[1], waits={5: 3.0, 6: 4.0}, results={0: RAW}, parts=["a"], error="old")
    progress = Progress(
        done=[2, 0], failed=[3], due_s={6: 110.0, 7: 90.0}, results={2: RAW}, parts=["a", "b"], error="new"
    )
    after = progressed(before, progress, 100.0)
    assert (after.done, after.failed) == ([0, 2], [1, 3])
    assert after.waits == {5: 3.0, 6: 10.0, 7: 0.0}
    assert (after.results, after.parts, after.error) == ({0: RAW, 2: RAW}, ["a", "b"], "new")
    assert progressed(before, Progress(), 100.0) == before


def test_the_times_of_suspensions_count_from_the_record_that_holds_them() -> None:
    before = {0: suspension(5.0, 30.0), 1: suspension(0.0, None), 2: suspension(0.0, 8.0)}
    later = {0: suspension(15.0, 20.0), 1: suspension(10.0, None), 2: suspension(10.0, 0.0)}
    assert aged(before, 10.0) == later
    assert aged(before, 2 * DELAY_MAX_S)[0] == suspension(DELAY_MAX_S, 0.0), "within what a record may hold"
    assert claim_by(record(State.FREE, suspended=before), since_s=10.0).suspended == later
    held = record(suspended=before, waits={0: 9.0, 1: 9.0, 2: 9.0})
    progress = Progress(suspended={n: (each, 100.0) for n, each in before.items()})
    once = progressed(held, progress, 110.0)
    assert once.suspended == later
    assert progressed(once, progress, 110.0) == once, "a swap that is made again"


def test_progress_names_the_tasks_that_have_recorded_steps_once_each() -> None:
    before = record(durable=[4, 1])
    assert progressed(before, Progress(durable=[2, 4, 3]), 0.0).durable == [4, 1, 2, 3]
    assert progressed(before, Progress(done=[4]), 0.0).durable == [4, 1], "a task that has ended has left some"


def test_only_a_task_that_waits_is_suspended() -> None:
    """A claim still knows the suspensions of the tasks that are due: a heartbeat writes only those that wait."""
    before = record(waits={0: 9.0}, suspended={0: suspension(), 1: suspension()})
    after = progressed(
        before, Progress(suspended={2: (suspension(), 0.0), 3: (suspension(), 0.0)}, due_s={2: 5.0}), 0.0
    )
    assert ({*after.waits}, {*after.suspended}) == ({0, 2}, {0, 2})


@given(
    st.lists(st.integers(0, 20), max_size=10),
    st.lists(st.integers(0, 20), max_size=10),
    st.lists(st.integers(0, 20), max_size=10),
)
@steady
def test_writing_progress_twice_is_writing_it_once(before: list[int], done: list[int], failed: list[int]) -> None:
    """A swap whose answer was lost is made again on what it made."""
    progress = Progress(done=[*dict.fromkeys(done)], failed=[*dict.fromkeys(failed)], results=dict.fromkeys(done, RAW))
    once = progressed(record(done=[*dict.fromkeys(before)]), progress, 0.0)
    assert progressed(once, progress, 0.0) == once
    assert {*once.done} == {*before, *done}
    assert len(once.done) == len({*once.done})


@given(st.floats(0, 1e9), st.floats(0, DELAY_MAX_S))
@steady
def test_a_wait_is_never_out_of_range(at_s: float, after_s: float) -> None:
    after = progressed(record(), Progress(due_s={0: at_s + after_s}), at_s)
    assert 0 <= after.waits[0] <= DELAY_MAX_S + 1


# ---- errors ----


@pytest.mark.parametrize(
    ("errors", "error", "count", "wanted"),
    [
        ({}, None, 1, None),
        ({}, "old", 1, "old"),
        ({}, "old", 2, None),
        ({0: [note(1, "a")]}, "old", 1, "a"),
        ({0: [note(1, "a"), note(2, "b"), note(3, "c")]}, "old", 2, "c"),
        ({1: [note(1, "a")]}, "old", 2, None),
        ({0: [note(1, "a"), note(2, ABANDONED)]}, "old", 2, "a"),
        ({0: [note(1, ABANDONED)]}, "old", 2, None),
        ({0: [note(1, ABANDONED)]}, "old", 1, "old"),
    ],
)
def test_what_a_task_said_last(
    errors: dict[int, list[AttemptRecord]], error: str | None, count: int, wanted: str | None
) -> None:
    assert error_of(record(errors=errors, error=error), 0, count) == wanted


@pytest.mark.parametrize(
    ("before", "more", "fields", "wanted"),
    [
        ({}, {}, {}, {}),
        ({}, {1: 1}, {}, {1: [1]}),
        ({1: [1]}, {}, {}, {1: [1]}),
        ({1: [1], 3: [5]}, {1: 2, 0: 1}, {}, {0: [1], 1: [1, 2], 3: [5]}),
        # the last three of each task, and none twice
        ({1: [1, 2, 3]}, {1: 4}, {}, {1: [2, 3, 4]}),
        ({1: [1, 2, 3, 4]}, {}, {}, {1: [2, 3, 4]}),
        ({1: [1, 2]}, {1: 2}, {}, {1: [1, 2]}),
        # none of a task that has ended, by this claim or before
        ({1: [1], 2: [1]}, {1: 2}, {"done": [1]}, {2: [1]}),
        ({1: [1], 2: [1]}, {1: 2}, {"failed": [1]}, {2: [1]}),
    ],
)
@pytest.mark.parametrize("now", [False, True], ids=["before", "now"])
def test_which_errors_a_lease_keeps(
    before: dict[int, list[int]],
    more: dict[int, int],
    fields: dict[str, Any],
    wanted: dict[int, list[int]],
    now: bool,
) -> None:
    lease = record(errors={n: [*map(note, notes)] for n, notes in before.items()}, **({} if now else fields))
    progress = Progress(errors={n: note(attempt) for n, attempt in more.items()}, **(fields if now else {}))
    after = progressed(lease, progress, 0.0)
    assert {n: [each.attempt for each in notes] for n, notes in after.errors.items()} == wanted


def wait(n: int, keys: int = 0, **fields: Any) -> Suspension:
    awaits = [f"queues/crawl/pending/{n:03d}{key:023d}/task.json" for key in range(keys)]
    base: dict[str, Any] = {"reason": f"waiting for {keys} tasks in 'crawl'", "step": 4, "since": EPOCH}
    return Suspension(**(base | {"awaits": awaits} | fields))


def size_of(suspended: dict[int, Suspension]) -> int:
    return sum(len(records.encode({n: each})) for n, each in suspended.items())


def test_suspensions_that_fit_are_kept_whole() -> None:
    suspended = {n: wait(n, 100) for n in range(50)}
    assert fitted(suspended) == suspended


@pytest.mark.parametrize(("tasks", "kept"), [(70, 80), (100, 55), (1000, 3)])
def test_suspensions_that_do_not_fit_share_the_room(tasks: int, kept: int) -> None:
    suspended = {n: wait(n, 100) for n in range(tasks)} | {0: wait(0, 1)}
    after = fitted(suspended)
    assert [*after] == [*suspended]
    assert after[0] == suspended[0], "a short one is kept"
    assert min(len(each.awaits) for n, each in after.items() if n) >= kept
    assert all(each.awaits == suspended[n].awaits[: len(each.awaits)] for n, each in after.items())
    assert 0.95 * SUSPENSIONS_BYTES_MAX < size_of(after) <= SUSPENSIONS_BYTES_MAX
    assert fitted(after) == after


def test_what_no_room_is_left_for_is_looked_at_by_time() -> None:
    suspended = {n: wait(n, signal="\x07" * 200, reason="\x07" * 300, due_s=8.0) for n in range(1000)}
    after = fitted(suspended)
    assert size_of(after) <= SUSPENSIONS_BYTES_MAX
    brief = [each for each in after.values() if each.signal is None]
    assert brief
    assert all((each.reason, each.awaits, each.step, each.due_s) == ("", [], 4, 8.0) for each in brief)
    assert [*bare(record(suspended={1: wait(1, 100)}, errors=long_errors(9))).suspended.values()] == [
        wait(1, reason="")
    ]


def test_a_lease_with_all_of_its_lists_at_their_limits_fits_into_a_cell() -> None:
    """A task is done, with a small result or one in a part, or it is open, and suspended or not."""
    part = QueueKeys.of("q" * SEGMENT_BYTES_MAX).part("0" * 40, "1" * 26)
    small, large = range(INLINE_TOTAL_MAX // INLINE_BYTES_MAX), range(INLINE_TOTAL_MAX // INLINE_BYTES_MAX, 900)
    text = "\x07" * ERROR_CHARS_MAX
    full = record(
        name="0" * 40,
        attempts=dict.fromkeys(range(1000), 1 << 50),
        done=[*small, *large],
        results={n: msgspec.Raw(b"1" * INLINE_BYTES_MAX) for n in small},
        parts=[f"{part}{n:03d}" for n in large],
        waits=dict.fromkeys(range(900, 1000), 12_345_678.123456),
        suspended={n: wait(n, 100) for n in range(900, 1000)},
        errors={n: [note(attempt, text, text) for attempt in range(3)] for n in range(900, 1000)},
        durable=[*range(1000)],
        error=text,
    )
    data = records.encode(progressed(full, Progress(), 0.0))
    assert 0.75 * RECORD_BYTES_MAX < len(data) < 0.95 * RECORD_BYTES_MAX


LONG = 1_000
SIZE = NOTE_BYTES + 2 * LONG


def long_errors(number: int, spare: int = 0) -> dict[int, list[AttemptRecord]]:
    """One of each task, the later the higher its number; their sizes are exactly the room, less `spare`."""
    error, traceback = "e" * LONG, "t" * LONG
    notes = {n: [note(1, error, traceback, at_s=n)] for n in range(number)}
    rest = ERRORS_BYTES_MAX - spare - (number - 1) * SIZE - NOTE_BYTES - LONG
    notes[0] = [note(1, error, "t" * rest)]
    return notes


def test_the_figures_of_errors() -> None:
    assert (ERRORS_BYTES_MAX, BRIEF_CHARS_MAX, NOTE_BYTES) == (65_536, 200, 120)


def test_errors_that_fit_exactly_are_kept_whole() -> None:
    notes = long_errors(31)
    assert sum(NOTE_BYTES + len(each.error) + len(each.traceback or "") for [each] in notes.values()) == 65_536
    after = progressed(record(errors=notes), Progress(), 0.0).errors
    assert after == notes
    assert [*after] == [*range(31)], "in the order of their tasks, as they were written before"


def test_of_errors_that_do_not_fit_the_oldest_are_cut_short() -> None:
    notes = long_errors(31, spare=-1)
    after = progressed(record(errors=notes), Progress(), 0.0).errors
    assert {n: after[n] for n in range(1, 31)} == {n: notes[n] for n in range(1, 31)}
    assert after[0] == [note(1, "e" * 200)]


def test_errors_are_counted_as_json_has_them() -> None:
    """A control character takes six bytes."""
    texts = {n: [note(1, "\x07" * LONG, "\x07" * LONG, at_s=n)] for n in range(60)}
    after = progressed(record(errors=texts), Progress(), 0.0).errors
    assert len(records.encode(after)) <= ERRORS_BYTES_MAX
    assert after[59] == texts[59]


def test_what_does_not_fit_even_when_cut_short_is_dropped_and_the_order_of_attempts_kept() -> None:
    """Of one task each, three attempts, the newest with the longest text."""
    texts = {n: [note(i, "e" * LONG, "t" * LONG, at_s=10 * i + n / 100) for i in (1, 2, 3)] for n in range(60)}
    after = progressed(record(errors=texts), Progress(), 0.0).errors
    kept = [each for notes in after.values() for each in notes]
    assert sum(NOTE_BYTES + len(each.error) + len(each.traceback or "") for each in kept) <= ERRORS_BYTES_MAX
    assert all(notes == sorted(notes, key=lambda each: each.attempt) for notes in after.values())
    whole = [(each.attempt, n) for n, notes in after.items() for each in notes if each.traceback]
    assert sorted(whole) == [(3, n) for n in range(60 - 30, 60)], "as many as fit, the newest"
    brief = [(each.attempt, n) for n, notes in after.items() for each in notes if not each.traceback]
    assert sorted(brief) == [(3, n) for n in range(24, 30)], "six more, of 320 characters each"


@pytest.mark.parametrize(("spare", "whole"), [(0, True), (1, True), (-1, False)])
def test_an_error_that_fits_exactly_beside_the_newer_ones_is_kept_whole(spare: int, whole: bool) -> None:
    """The oldest has no room any more, not even cut short."""
    notes = {n + 1: each for n, each in long_errors(31, spare).items()}
    after = progressed(record(errors={**notes, 0: [note(1, "o" * LONG, at_s=-1.0)]}), Progress(), 0.0).errors
    assert {n: after[n] for n in range(2, 32)} == {n: notes[n] for n in range(2, 32)}
    assert after[1] == (notes[1] if whole else [note(1, "e" * 200)])
    assert (0 in after) is not whole


@pytest.mark.parametrize(("room", "kept"), [(319, False), (320, True), (321, True)])
def test_an_error_that_fits_exactly_when_cut_short_is_kept(room: int, kept: bool) -> None:
    notes = {n + 1: each for n, each in long_errors(31, spare=room).items()}
    after = progressed(record(errors={**notes, 0: [note(1, "o" * LONG, at_s=-1.0)]}), Progress(), 0.0).errors
    assert {n: after[n] for n in range(1, 32)} == notes
    assert after.get(0) == ([note(1, "o" * 200, at_s=-1.0)] if kept else None)


# ---- letting go ----


@pytest.mark.parametrize(
    ("waits", "done", "wait_s"),
    [
        ({}, [], 0.0),
        ({0: 5.0}, [], 0.0),
        ({0: 5.0, 1: 7.0, 2: 9.0}, [], 5.0),
        ({0: 5.0, 1: 7.0, 2: 9.0}, [0], 7.0),
        ({0: 5.0}, [1, 2], 5.0),
        ({0: 0.25}, [1, 2], 0.25),
        ({0: 5.0}, [0, 1, 2], 0.0),
    ],
)
def test_a_freed_entry_rests_until_the_first_of_its_open_tasks_is_due(
    waits: dict[int, float], done: list[int], wait_s: float
) -> None:
    after = freed(record(waits=waits, done=done, running=1, beside=[2], suspects=[0]), 3, at(100))
    assert (after.state, after.running, after.wait_s, after.token) == (State.FREE, None, wait_s, 3)
    assert (after.beside, after.suspects) == ([], [0])
    assert after.not_before == (at(100 + wait_s) if wait_s else None)


@pytest.mark.parametrize(
    ("before", "returned", "started", "attempts"),
    [
        pytest.param({}, {0, 1, 2}, [], [0, 0, 0], id="a first claim, nothing started"),
        pytest.param({"attempts": {0: 1, 1: 1}}, {0, 1, 2}, [0, 1], [0, 0, 0], id="a first claim, two started"),
        pytest.param({"attempts": {0: 1, 1: 1}, "waits": {1: 5.0}}, {0, 2}, [0, 1], [0, 1, 0], id="one nacked"),
        pytest.param({"attempts": {0: 1}}, {1, 2}, [], [1, 0, 0], id="one attempt, none of it ours"),
        pytest.param({"attempts": {0: 1, 1: 1}, "running": 1}, {1, 2}, [1], [1, 0, 0], id="running"),
        pytest.param({"charged": 1, "attempts": {0: 3, 1: 2}}, {0, 1, 2}, [0, 1], [2, 1, 1], id="started ahead"),
        pytest.param({"charged": 1, "attempts": {2: 2}, "running": 2}, {0, 1, 2}, [], [1, 1, 1], id="unheard charge"),
        pytest.param({"charged": 1, "attempts": {2: 2}, "running": 2}, {0, 1}, [2], [1, 1, 2], id="running, judged"),
        pytest.param({}, {0, 1, 2}, [0], [0, 0, 0], id="never below zero"),
        pytest.param(
            {"charged": 1, "attempts": {0: 2, 1: 2, 2: 2}, "running": 0, "beside": [1, 2]},
            {0, 1},
            [],
            [1, 1, 2],
            id="several run",
        ),
        pytest.param({"charged": 1, "attempts": {1: 2}, "beside": [1]}, {0, 1, 2}, [], [1, 1, 1], id="beside alone"),
    ],
)
def test_handing_back(before: dict[str, Any], returned: set[int], started: list[int], attempts: list[int]) -> None:
    after = handed_back(record(**{"charged": 0, **before}), returned, started=started)
    assert [attempts_of(after, n) for n in range(3)] == attempts
    assert (after.running, after.beside) == (None, [])


@given(st.integers(1, 6), st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4)), st.booleans())
@steady
def test_a_claim_that_is_handed_back_was_never_made(
    maximum: int, nacked: set[int], started: set[int], later: bool
) -> None:
    """Whatever was started: only what was nacked has fewer attempts left than before the claim."""
    policy = Policy(max_attempts=maximum)
    base = record(State.FREE, token=1, charged=1, attempts={3: 2}) if later else None
    lease = claimed(base, entry="x", worker_id="w", label="", policy=policy, wall=EPOCH)
    progress = Progress(due_s=dict.fromkeys(nacked, 10.0))
    for n in sorted(started | nacked):
        if must_charge(lease, policy):
            lease = charged(lease, [n])
        else:
            progress.attempts[n] = attempts_of(lease, n) + 1
    lease = progressed(lease, progress, 0.0)
    after = handed_back(lease, {*range(5)} - nacked, started=started)
    for n in range(5):
        had = attempts_of(base, n) if base else 0
        assert attempts_of(after, n) == had + (n in nacked)


def test_cancelled_is_for_good_and_keeps_the_token() -> None:
    after = cancelled(record(running=1, beside=[2], done=[0], suspended={2: suspension()}, durable=[0, 2]))
    assert (after.beside, after.suspended) == ([], {}), "it waits for nothing any more"
    assert after.durable == [0, 2], "whoever ends it removes their steps"
    assert (after.state, after.running, after.token, after.done) == (State.CANCELLED, None, 3, [0])


# ---- back-off ----


@pytest.mark.parametrize(
    ("state", "error", "kept", "found"),
    [
        ("failed", "no", [], ["no"]),
        ("retried", "no", [], ["no"]),
        ("failed", None, [], []),
        ("completed", "no", [], []),
        ("cancelled", "cancelled", [], []),
        ("failed", "no", ["first", "no"], ["first", "no"]),
        ("completed", None, ["first"], ["first"]),
    ],
)
def test_the_failed_attempts_in_a_receipt(state: Any, error: str | None, kept: list[str], found: list[str]) -> None:
    records = [AttemptRecord(attempt=n, at=EPOCH, worker="w", error=text) for n, text in enumerate(kept, 1)]
    receipt = Receipt(state=state, id="x", attempts=3, label="w", finished_at=EPOCH, error=error, errors=records)
    assert [each.error for each in errors_of(receipt)] == found


@pytest.mark.parametrize(("n", "done"), [(0, True), (1, False), (2, True), (3, False)])
def test_which_tasks_the_receipt_of_a_batch_lists_as_done(n: int, done: bool) -> None:
    assert lists_done(Receipt(state="completed", id="x", count=3, finished_at=EPOCH, failed=[1]), n) is done


# ---- receipts ----


@pytest.mark.parametrize(
    ("whole", "own", "ended", "counts"),
    [
        ("none", False, False, None),
        ("none", False, True, None),
        ("none", True, False, None),
        ("none", True, True, "own"),
        ("done", False, True, "whole"),
        ("done", True, True, "whole"),
        ("done, own first", True, True, "own"),
        ("done, own first", False, True, "whole"),
        ("failed", False, True, None),
        ("failed", True, True, "own"),
        ("failed", True, False, None),
    ],
)
def test_which_receipt_counts(whole: str, own: bool, ended: bool, counts: str | None) -> None:
    receipts: dict[str, Receipt | None] = {
        "none": None,
        "done": Receipt(state="completed", id="b", count=2, finished_at=EPOCH, own=[0]),
        "done, own first": Receipt(state="completed", id="b", count=2, finished_at=EPOCH, own=[1]),
        "failed": Receipt(state="completed", id="b", count=2, finished_at=EPOCH, failed=[1]),
    }
    single = Receipt(state="completed", id="b.1", finished_at=EPOCH) if own else None
    found = completion(1, whole=receipts[whole], own=single, ended=ended)
    assert found is {"own": single, "whole": receipts[whole], None: None}[counts]


CONTENT = Content(("x", "y"), (b"1", b"2"), EPOCH, retries=2, minted=True)


@pytest.mark.parametrize(
    ("state", "before", "kept"),
    [
        ("failed", 0, []),
        ("failed", 1, [1, 9]),
        ("failed", 3, [1, 2, 3, 9]),
        ("completed", 0, []),
        ("completed", 2, []),
        ("cancelled", 2, []),
    ],
)
def test_which_attempts_a_receipt_names(state: Any, before: int, kept: list[int]) -> None:
    errors = {1: [note(n) for n in range(1, before + 1)], 0: [note(7)]}
    found = task_receipt(record(errors=errors), CONTENT, 1, state, attempts=9, wall=at(5), error="no", trace="at")
    assert [each.attempt for each in found.errors] == kept
    assert (found.id, found.attempts, found.finished_at, found.retries) == ("y", 9, at(5), 2)
    assert bytes(found.payload) == b"2"
    if kept:
        assert found.errors[-1] == AttemptRecord(attempt=9, at=at(5), worker="host:1", error="no", traceback="at")


@pytest.mark.parametrize(
    ("fields", "attempts"),
    [
        ({}, 1),
        ({"token": 9}, 1),
        ({"charged": 2}, 2),
        ({"charged": 1, "attempts": {0: 0, 1: 3}}, 3),
        ({"charged": 0, "attempts": {0: 0}}, 1),
    ],
)
def test_the_receipt_of_a_batch_names_the_most_attempts_of_a_task_and_not_its_claims(
    fields: dict[str, Any], attempts: int
) -> None:
    found = batch_receipt(record(done=[0, 1], **fields), CONTENT, wall=at(5))
    assert (found.state, found.count, found.attempts, found.finished_at) == ("completed", 2, attempts, at(5))


def test_a_receipt_keeps_the_end_of_a_traceback() -> None:
    trace = "".join(f"{n:04}" for n in range(2001))
    found = task_receipt(record(), CONTENT, 0, "failed", attempts=1, wall=EPOCH, error="e" * 2001, trace=trace)
    assert found.traceback == trace[4:]
    assert len(found.traceback) == 8000
    assert found.error == "e" * 2000


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ""),
        ("abcdefghijkl", "abcdefghijkl"),
        ("abcdefghijklm", "abcd\n...\nklm"),
        ("abcdefghijklmnopqrstuvwxyz", "abcd\n...\nxyz"),
    ],
)
def test_a_long_text_keeps_its_beginning_and_its_end(text: str, kept: str) -> None:
    """A third of the room for the beginning, and the rest for the end."""
    assert trimmed(text, 12) == kept


# ---- what is done before the batch has ended ----


@pytest.mark.parametrize(
    ("token", "settled", "shown"),
    [(1, 0, [4, 2, 7]), (1, 1, [4, 2, 7]), (2, 0, []), (2, 2, [4, 2]), (3, 1, [4])],
)
def test_only_what_the_first_claim_has_done_counts_before_the_end(token: int, settled: int, shown: list[int]) -> None:
    lease = record(token=token, done=[4, 2, 7], settled=settled)
    assert first_done(lease) == shown
    taken = claim_by(lease)
    assert first_done(taken) == shown
    more = msgspec.structs.replace(taken, done=[*taken.done, 5])
    assert first_done(more) == shown, "a later claim's own ones do not"
    assert first_done(claim_by(more)) == shown
