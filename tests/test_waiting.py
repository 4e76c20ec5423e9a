"""When a request is sent again, and when something is looked at again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.kernel.errors import Unavailable
from limpet.kernel.waiting import (
    BackgroundJob,
    WakeFlag,
    attempts,
    backoff_s,
    naps,
    poll_pause_s,
    polls,
    spread_backoff_s,
    ticks,
)
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


def test_a_function_says_how_long_attempts_pause() -> None:
    runtime = ManualRuntime()
    begun_s, pauses = runtime.elapsed_s(), [0.0, 4.0, 0.0]
    at_s = [runtime.elapsed_s() - begun_s for _ in attempts(runtime, 4, lambda failures: pauses[failures - 1])]
    assert at_s == [0.0, 0.0, 4.0, 4.0]


@pytest.mark.parametrize(("looks", "longest_s"), [(1, 1.0), (2, 1.5), (3, 2.25), (9, 5.0), (10**6, 5.0)])
def test_pauses_between_looks_grow_by_half_up_to_a_limit(looks: int, longest_s: float) -> None:
    runtime = ManualRuntime()
    pauses = [poll_pause_s(runtime, looks, 1.0, 5.0) for _ in range(100)]
    assert all(0.7 * longest_s <= pause_s <= longest_s for pause_s in pauses)
    assert len({*pauses}) == 100, "they have a random part"


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


def test_naps_end_when_the_function_says_so() -> None:
    runtime = ManualRuntime()
    begun_s, pauses = runtime.elapsed_s(), iter([3.0, 0.5, None, 9.0])
    assert [runtime.elapsed_s() - begun_s for _ in naps(runtime, lambda: next(pauses))] == [3.0, 3.5]


def test_a_wake_counts_until_the_work_that_answers_it() -> None:
    runtime = ManualRuntime()
    waker, woken = WakeFlag(runtime), []
    waker.wake()
    for wake in waker.rounds(5.0):
        woken.append((wake, runtime.elapsed_s()))
        match len(woken):
            case 2:
                waker.rest()
            case 4:
                waker.stop()
                waker.rest()
    begun_s = woken[0][1]
    assert [(wake, at_s - begun_s) for wake, at_s in woken] == [(True, 0), (True, 0), (False, 5), (False, 10)]


def test_a_background_job_works_at_intervals_and_when_it_is_woken_and_once_at_its_end() -> None:
    runtime = ManualRuntime()
    begun_s, at_s = runtime.elapsed_s(), []

    def work() -> None:
        at_s.append(runtime.elapsed_s() - begun_s)
        raise Unavailable("the next run tries again")

    job = BackgroundJob("test", work, 10.0, runtime)
    job.start()
    runtime.sleep(35.0)
    first_s = at_s[0]
    assert 1.0 <= first_s <= 10.0
    assert at_s == pytest.approx([first_s + 10.0 * n for n in range(len(at_s))])
    before = len(at_s)
    job.wake()
    runtime.sleep(0.5)
    assert len(at_s) == before + 1
    job.finish()
    runtime.sleep(100.0)
    assert job.stopped
    assert len(at_s) == before + 2
