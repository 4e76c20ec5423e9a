"""The lease's rules as tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.kernel.errors import Invalid
from limpet.kernel.lease.decide import (
    TOKEN_MAX,
    Create,
    LeaseRecord,
    State,
    Take,
    Wait,
    check_ttl,
    freed,
    is_live,
    look_interval_s,
    next_step,
    renew_interval_s,
    renewed,
    reset,
    taken,
)
from support.clock import steady

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
TTL_S = 30.0
LOOK_S = 12.0  # a third of the ttl, and two seconds
ENDS_S = 31.0  # the ttl, and the second to which LastModified is rounded


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def record(state: State = State.HELD, *, not_before: datetime | None = None) -> LeaseRecord:
    return LeaseRecord(
        state=state,
        name="backup",
        worker_id="w1",
        label="pi:7",
        token=5,
        attempt=5,
        created_at=T0,
        heartbeat_at=T0,
        expires_at=at(TTL_S),
        ttl_s=TTL_S,
        not_before=not_before,
    )


def step(
    found: LeaseRecord | None, *, watched_s: float = 0.0, now_s: float = 0.0, wall_s: float = 0.0
) -> Create | Take | Wait:
    return next_step(found, modified=T0, unchanged_s=watched_s, now=at(now_s), wall=at(wall_s))


def test_what_never_was_is_created() -> None:
    assert step(None) == Create()


@pytest.mark.parametrize(
    ("not_before_s", "now_s", "expected"),
    [(None, 0, Take()), (0, 0, Take()), (5, 5, Take()), (5, 4.999, Wait(at(5), confirm=False))],
)
def test_a_free_lock_is_taken_when_it_is_due(not_before_s: float | None, now_s: float, expected: Take | Wait) -> None:
    found = record(State.FREE, not_before=None if not_before_s is None else at(not_before_s))
    assert step(found, now_s=now_s, wall_s=999) == expected


@pytest.mark.parametrize(
    ("watched_s", "now_s", "wall_s", "expected"),
    [
        # fresh
        (0, 0, 0, Wait(at(ENDS_S), confirm=False)),
        (LOOK_S, 20, 20, Wait(at(ENDS_S), confirm=False)),
        # expired, but not watched: the holder may be renewing this moment
        (0, ENDS_S, 0, Wait(at(ENDS_S), confirm=True)),
        (LOOK_S - 0.001, 10_000, 10_000, Wait(at(ENDS_S), confirm=True)),
        # watched, but not expired
        (LOOK_S, ENDS_S - 0.001, 10_000, Wait(at(ENDS_S), confirm=False)),
        (ENDS_S - 0.001, 0, 0, Wait(at(ENDS_S), confirm=False)),
        # F14: LastModified may be rounded down by a second
        (LOOK_S, TTL_S, 0, Wait(at(ENDS_S), confirm=False)),
        (LOOK_S, TTL_S + 0.999, 0, Wait(at(ENDS_S), confirm=False)),
        # both
        (LOOK_S, ENDS_S, 0, Take()),
        (10_000, 10_000, 0, Take()),
        # watched for its whole life: the store's clock was set back, ours was not
        (ENDS_S, -10_000, 0, Take()),
        # the wall clock says it is over: worth another look, never enough to take it (F13)
        (0, 0, TTL_S + 0.001, Wait(at(ENDS_S), confirm=True)),
        (0, 0, TTL_S, Wait(at(ENDS_S), confirm=False)),
        (LOOK_S - 0.001, 20, 10_000, Wait(at(ENDS_S), confirm=True)),
    ],
)
def test_a_held_lock_is_taken_only_when_expired_and_watched(
    watched_s: float, now_s: float, wall_s: float, expected: Take | Wait
) -> None:
    assert step(record(), watched_s=watched_s, now_s=now_s, wall_s=wall_s) == expected


def test_what_has_ended_is_never_taken_again() -> None:
    with pytest.raises(Invalid, match="'backup' is cancelled"):
        step(record(State.CANCELLED), watched_s=10_000, now_s=10_000, wall_s=10_000)


@steady
@given(st.floats(0, LOOK_S, exclude_max=True), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_no_clock_of_others_takes_a_lock_that_was_not_watched(watched_s: float, now_s: float, wall_s: float) -> None:
    assert isinstance(step(record(), watched_s=watched_s, now_s=now_s, wall_s=wall_s), Wait)


@steady
@given(st.floats(0, 1e6), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_the_wall_clock_never_decides(watched_s: float, now_s: float, wall_s: float, other_wall_s: float) -> None:
    steps = [step(record(), watched_s=watched_s, now_s=now_s, wall_s=wall) for wall in (wall_s, other_wall_s)]
    assert type(steps[0]) is type(steps[1])


# ---- records ----


def test_taking_adds_one_token_and_names_the_new_holder() -> None:
    found = taken(record(not_before=at(1)), name="backup", worker_id="w2", label="pi:8", ttl_s=60, wall=at(100))
    assert found == LeaseRecord(
        state=State.HELD,
        name="backup",
        worker_id="w2",
        label="pi:8",
        token=6,
        attempt=6,
        created_at=at(100),
        heartbeat_at=at(100),
        expires_at=at(160),
        ttl_s=60,
        not_before=None,
    )


def test_the_first_token_is_one() -> None:
    found = taken(None, name="a", worker_id="w", label="l", ttl_s=5, wall=T0)
    assert (found.token, found.attempt, found.state) == (1, 1, State.HELD)


def test_a_renewal_moves_only_the_labels_of_time() -> None:
    found = renewed(record(), at(10))
    assert (found.heartbeat_at, found.expires_at) == (at(10), at(10 + TTL_S))
    assert renewed(found, T0) == record()


@pytest.mark.parametrize("state", [State.HELD, State.FREE])
def test_freeing_keeps_the_token(state: State) -> None:
    """F9, F10: tokens only ever rise."""
    assert freed(record(state)) == record(State.FREE)


@pytest.mark.parametrize("ttl_s", [1, 1.0, 30, 7 * 86400])
def test_a_ttl_that_a_lease_can_have(ttl_s: float) -> None:
    assert check_ttl(ttl_s) == ttl_s
    assert isinstance(check_ttl(ttl_s), float)


@pytest.mark.parametrize("ttl_s", [0, -1, 0.999, 7 * 86400 + 1, float("inf"), float("nan")])
def test_a_ttl_that_no_lease_can_have(ttl_s: float) -> None:
    with pytest.raises(Invalid, match="ttl_s must be between 1 and 604800 seconds"):
        check_ttl(ttl_s)


def test_two_renewals_may_fail_and_a_live_holder_is_seen_to_renew() -> None:
    assert renew_interval_s(TTL_S) * 3 <= TTL_S
    assert look_interval_s(TTL_S) == LOOK_S > renew_interval_s(TTL_S)


# ---- a record that cannot be read ----


@pytest.mark.parametrize(
    ("wall", "token"),
    [
        (T0, 1_772_366_400_000),
        (datetime(1970, 1, 1, tzinfo=UTC), 1),
        (datetime(1960, 1, 1, tzinfo=UTC), 1),
        (datetime(1970, 1, 1, 0, 0, 0, 5_000, tzinfo=UTC), 5),
    ],
)
def test_a_reset_is_free_and_its_token_is_the_time(wall: datetime, token: int) -> None:
    after = reset("backup", "w1", "pi:7", TTL_S, wall)
    assert (after.state, after.token, after.name, after.worker_id) == (State.FREE, token, "backup", "w1")


@pytest.mark.parametrize(("token", "sound"), [(-1, False), (0, True), (TOKEN_MAX, True), (TOKEN_MAX + 1, False)])
def test_which_tokens_a_record_may_have(token: int, sound: bool) -> None:
    assert TOKEN_MAX == 1 << 50
    for field in ("token", "attempt"):
        stored = msgspec.to_builtins(record()) | {field: token}
        if sound:
            assert getattr(msgspec.convert(stored, LeaseRecord), field) == token
        else:
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert(stored, LeaseRecord)


# ---- for those who only look ----


@pytest.mark.parametrize(
    ("state", "now_s", "live"),
    [
        (State.HELD, -5.0, True),
        (State.HELD, 0.0, True),
        (State.HELD, ENDS_S - 0.5, True),
        (State.HELD, ENDS_S, True),
        (State.HELD, ENDS_S + 0.001, False),
        (State.FREE, 0.0, False),
        (State.CANCELLED, 0.0, False),
    ],
)
def test_which_leases_are_live(state: State, now_s: float, live: bool) -> None:
    assert is_live(record(state), modified=T0, now=at(now_s)) is live
