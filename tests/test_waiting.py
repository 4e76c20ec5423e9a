"""When a request is sent again, and when something is looked at again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.kernel.waiting import attempts, backoff_s, polls, spread_backoff_s, ticks
from support.clock import ManualRuntime, steady


def test_attempts_pause_between_them_and_not_before_the_first_or_after_the_last() -> None:
    runtime = ManualRuntime()
    begun_s, at_s = runtime.elapsed_s(), []
    for n in attempts(runtime, 4, 1.0, longest_s=3.0):
        at_s.append(runtime.elapsed_s() - begun_s)
        assert len(at_s) == n
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(at_s)]
    assert at_s[0] == 0
    assert runtime.elapsed_s() - begun_s == at_s[-1]
    assert all(longest / 2 <= gap <= longest for gap, longest in zip(gaps_s, (1.0, 2.0, 3.0), strict=True))


def test_attempts_without_a_pause_take_no_time() -> None:
    runtime = ManualRuntime()
    begun_s = runtime.elapsed_s()
    assert [*attempts(runtime, 3, 0)] == [1, 2, 3]
    assert runtime.elapsed_s() == begun_s


def test_a_pause_after_many_failures_is_bounded() -> None:
    assert 1.5 <= backoff_s(ManualRuntime(), 10_000, 0.1, longest_s=3.0) <= 3.0


@pytest.mark.parametrize(
    ("failures", "chance", "expected"),
    [
        (1, 0.0, 1.0), (1, 0.999999, 2.0), (2, 0.0, 2.0), (3, 0.5, 6.0), (8, 0.0, 128.0), (9, 0.0, 150.0),
        (10**6, 0.0, 150.0),
    ],
)  # fmt: skip
def test_backoff_doubles_up_to_a_limit(failures: int, chance: float, expected: float) -> None:
    assert spread_backoff_s(failures, 2.0, 300.0, chance) == pytest.approx(expected, rel=1e-4)


@given(st.integers(1, 100), st.floats(0, 0.999), st.floats(0, 1e6), st.floats(0, 1e6))
@steady
def test_backoff_is_never_negative_or_longer_than_its_limit(
    failures: int, chance: float, first_s: float, most_s: float
) -> None:
    assert 0 <= spread_backoff_s(failures, first_s, most_s, chance) <= most_s


def test_polls_look_at_once_and_when_the_time_is_over() -> None:
    runtime = ManualRuntime()
    begun_s, at_s = runtime.elapsed_s(), []
    for left_s in polls(runtime, 10.0, 1.0):
        at_s.append(runtime.elapsed_s() - begun_s)
        assert left_s == pytest.approx(10.0 - at_s[-1])
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(at_s)]
    assert (at_s[0], at_s[-1]) == (0.0, 10.0)
    assert all(0.7 <= gap <= 1.0 for gap in gaps_s[:-1])
    assert gaps_s[-1] <= 1.0


@pytest.mark.parametrize("wait_s", [0.0, -1.0])
def test_a_poll_without_time_looks_once(wait_s: float) -> None:
    assert [*polls(ManualRuntime(), wait_s, 1.0)] == [0.0]


def test_ticks_end_when_they_are_stopped() -> None:
    runtime = ManualRuntime()
    stop, begun_s, at_s = runtime.flag(), runtime.elapsed_s(), []
    for _ in ticks(stop, 2.0):
        at_s.append(runtime.elapsed_s() - begun_s)
        if len(at_s) == 3:
            stop.set()
    assert at_s == [2.0, 4.0, 6.0]
