"""The queue's decisions, as tables."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.lease import State
from limpet.lease.decide import look_interval_s
from limpet.queue import Policy
from limpet.queue.decide import (
    Progress,
    Ready,
    attempts_of,
    backoff_s,
    cancelled,
    charged,
    claimable,
    claimed,
    exhausted,
    freed,
    handed_back,
    must_charge,
    open_tasks,
    progressed,
    waits_left,
)
from limpet.queue.records import DELAY_MAX_S, EntryLease
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


def claim_by(before: EntryLease | None, *, max_attempts: int = 5, **more: Any) -> EntryLease:
    policy = Policy(max_attempts=max_attempts, ttl_s=30.0)
    return claimed(before, entry="x", worker_id="w2", label="host:2", policy=policy, wall=at(500), **more)


# ---- may it be taken ----


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
        (State.DONE, 0.0, 0.0, 0.0, False, True, None),
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
    ],
)
def test_waits_left(waits: dict[int, float], now_s: float, left: dict[int, float]) -> None:
    assert waits_left(record(waits=waits), modified=EPOCH, now=at(now_s)) == left


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


def test_a_claim_is_of_the_entry_that_was_claimed_whatever_the_record_says() -> None:
    assert claim_by(record(name="../../other")).name == "x"


@pytest.mark.parametrize(
    ("token", "max_attempts", "by_swap"),
    [(1, 1, True), (1, 2, False), (1, 9, False), (2, 1, True), (2, 2, True), (9, 9, True)],
)
def test_must_charge(token: int, max_attempts: int, by_swap: bool) -> None:
    assert must_charge(record(token=token), Policy(max_attempts=max_attempts)) is by_swap


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
    after = charged(record(charged=1, attempts={2: 5}, waits={1: 9.0, 2: 8.0}), 1)
    assert (after.running, after.attempts, after.attempt, after.waits) == (1, {1: 2, 2: 5}, 2, {2: 8.0})
    again = charged(after, 2)
    assert (again.running, again.attempts, again.attempt, again.waits) == (2, {1: 2, 2: 6}, 6, {})
    assert (again.state, again.token) == (State.HELD, 3)


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


# ---- letting go ----


@pytest.mark.parametrize(
    ("waits", "done", "wait_s"),
    [
        ({}, [], 0.0),
        ({0: 5.0}, [], 0.0),
        ({0: 5.0, 1: 7.0, 2: 9.0}, [], 5.0),
        ({0: 5.0, 1: 7.0, 2: 9.0}, [0], 7.0),
        ({0: 5.0}, [1, 2], 5.0),
        ({0: 5.0}, [0, 1, 2], 0.0),
    ],
)
def test_a_freed_entry_rests_until_the_first_of_its_open_tasks_is_due(
    waits: dict[int, float], done: list[int], wait_s: float
) -> None:
    after = freed(record(waits=waits, done=done, running=1), 3, at(100))
    assert (after.state, after.running, after.wait_s, after.token) == (State.FREE, None, wait_s, 3)
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
    ],
)
def test_handing_back(before: dict[str, Any], returned: set[int], started: list[int], attempts: list[int]) -> None:
    after = handed_back(record(**{"charged": 0, **before}), returned, started=started)
    assert [attempts_of(after, n) for n in range(3)] == attempts


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
            lease = charged(lease, n)
        else:
            progress.attempts[n] = attempts_of(lease, n) + 1
    lease = progressed(lease, progress, 0.0)
    after = handed_back(lease, {*range(5)} - nacked, started=started)
    for n in range(5):
        had = attempts_of(base, n) if base else 0
        assert attempts_of(after, n) == had + (n in nacked)


def test_cancelled_is_for_good_and_keeps_the_token() -> None:
    after = cancelled(record(running=1, done=[0]))
    assert (after.state, after.running, after.token, after.done) == (State.CANCELLED, None, 3, [0])


# ---- back-off ----


@pytest.mark.parametrize(
    ("attempts", "chance", "expected"),
    [
        (1, 0.0, 1.0),
        (1, 0.999999, 2.0),
        (2, 0.0, 2.0),
        (3, 0.5, 6.0),
        (8, 0.0, 128.0),
        (9, 0.0, 150.0),
        (10**6, 0.0, 150.0),
    ],
)
def test_backoff_doubles_up_to_a_limit(attempts: int, chance: float, expected: float) -> None:
    policy = Policy(backoff_s=2.0, backoff_max_s=300.0)
    assert backoff_s(policy, attempts, chance) == pytest.approx(expected, rel=1e-4)


@given(st.integers(1, 100), st.floats(0, 0.999), st.floats(0, 1e6), st.floats(0, 1e6))
@steady
def test_backoff_is_never_negative_or_longer_than_its_limit(
    n: int, chance: float, first_s: float, most_s: float
) -> None:
    wait_s = backoff_s(Policy(backoff_s=first_s, backoff_max_s=most_s), n, chance)
    assert 0 <= wait_s <= most_s
