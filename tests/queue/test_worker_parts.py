"""The small parts of a worker: permits by rate, the order of looks, crontab lines, verdicts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from limpet.errors import Invalid, LeaseLost
from limpet.queue.api import Fail, Retry
from limpet.queue.work.cron import Cron
from limpet.queue.work.events import TallyKeeper
from limpet.queue.work.judge import Again, Caught, Dropped, Failed, Halt, judge, one_line, trace_of
from limpet.queue.work.looks import BUSY_S, FIRST_S, IDLE_S, Looks
from limpet.queue.work.rate import Rate
from limpet.queue.work.runner import Permits
from support.clock import ManualRuntime


@pytest.fixture
def runtime() -> ManualRuntime:
    return ManualRuntime()


# ---- rate ----


def _taken_in(runtime: ManualRuntime, rate: Rate, seconds: float) -> int:
    """How many permits somebody gets who wants as many as there are."""
    until_s, taken = runtime.elapsed_s() + seconds, 0
    while runtime.elapsed_s() < until_s:
        wait_s = rate.take()
        if wait_s:
            runtime.sleep(wait_s)
        else:
            taken += 1
    return taken


@pytest.mark.parametrize("per_s", [0.5, 1.0, 7.0, 500.0])
def test_rate_over_a_longer_time(runtime: ManualRuntime, per_s: float) -> None:
    assert _taken_in(runtime, Rate(per_s, runtime), 20) == pytest.approx(20 * per_s, rel=0.02, abs=1)


def test_rate_does_not_save_up(runtime: ManualRuntime) -> None:
    rate = Rate(100.0, runtime)
    runtime.sleep(3600)
    taken = 0
    while not rate.take():
        taken += 1
    assert taken == 10


def test_rate_says_how_long_to_wait(runtime: ManualRuntime) -> None:
    rate = Rate(0.5, runtime)
    assert rate.take() == 0.0
    assert rate.take() == pytest.approx(2.0)
    runtime.sleep(1.5)
    assert rate.take() == pytest.approx(0.5)
    rate.give_back()
    assert rate.take() == 0.0


# ---- looks ----


def test_an_earlier_queue_comes_first(runtime: ManualRuntime) -> None:
    looks = Looks(2, runtime, in_order=True)
    assert looks.take() == 0
    looks.found(0)
    assert looks.take() == 0
    looks.empty(0)
    assert looks.take() == 1
    looks.found(1)
    assert looks.take() == 1
    runtime.sleep(FIRST_S)
    assert looks.take() == 0


def test_without_an_order_they_take_turns(runtime: ManualRuntime) -> None:
    looks = Looks(3, runtime, in_order=False)
    seen = []
    for _ in range(6):
        n = looks.take()
        assert n is not None
        looks.found(n)
        seen.append(n)
    assert seen == [0, 1, 2, 0, 1, 2]


def test_only_one_looks_at_a_queue_that_was_empty(runtime: ManualRuntime) -> None:
    looks = Looks(1, runtime, in_order=True)
    assert (looks.take(), looks.take()) == (0, None)
    looks.found(0)
    assert (looks.take(), looks.take()) == (0, 0)


@pytest.mark.parametrize("queues", [1, 2, 5])
def test_idle_looks_do_not_grow_with_the_queues(runtime: ManualRuntime, queues: int) -> None:
    looks = Looks(queues, runtime, in_order=True)

    def in_an_hour() -> int:
        count, until_s = 0, runtime.elapsed_s() + 3600
        while runtime.elapsed_s() < until_s:
            while (n := looks.take()) is not None:
                looks.empty(n)
                count += 1
            runtime.sleep(looks.wait_s())
        return count

    in_an_hour()
    assert 3600 / IDLE_S - 2 * queues <= in_an_hour() <= 200


def test_work_in_one_queue_brings_a_look_at_the_others(runtime: ManualRuntime) -> None:
    looks = Looks(2, runtime, in_order=True)
    for _ in range(30):
        while (n := looks.take()) is not None:
            looks.empty(n)
        runtime.sleep(looks.wait_s())
    assert looks.take() is not None
    looks.found(1)
    runtime.sleep(2 * BUSY_S)
    assert looks.take() == 0


def test_trouble_backs_off_and_is_forgotten(runtime: ManualRuntime) -> None:
    looks = Looks(1, runtime, in_order=True)
    waits = []
    for _ in range(7):
        assert looks.take() == 0
        looks.trouble(0)
        waits.append(looks.wait_s())
        runtime.sleep(waits[-1])
    assert waits == pytest.approx([1, 2, 4, 8, 16, 30, 30])
    assert looks.trouble_wait_s() > 0
    looks.take()
    looks.empty(0)
    assert looks.trouble_wait_s() == 0


def test_a_long_look_counts_as_a_pause(runtime: ManualRuntime) -> None:
    """A claim that waits in the server has waited."""
    looks = Looks(1, runtime, in_order=True)
    for _ in range(30):
        assert looks.take() == 0
        runtime.sleep(IDLE_S)
        looks.empty(0)


# ---- permits and tally ----


def test_permits(runtime: ManualRuntime) -> None:
    permits = Permits(2, runtime)
    assert (permits.take(), permits.take(), permits.take(), permits.used_up) == (True, True, False, True)
    permits.give_back()
    assert (permits.used_up, permits.take()) == (False, True)
    assert all(Permits(None, runtime).take() for _ in range(1000))


def test_the_rate_of_a_tally_is_that_of_the_last_seconds(runtime: ManualRuntime) -> None:
    keeper = TallyKeeper(runtime)
    for _ in range(100):
        keeper.add("done")
        runtime.sleep(1)
        keeper.now()
    for _ in range(100):
        keeper.add("done", 3)
        keeper.add("failed")
        runtime.sleep(0.5)
        keeper.now()
    tally = keeper.now()
    assert (tally.done, tally.failed, tally.ended) == (400, 100, 500)
    assert tally.rate_per_s == pytest.approx(8.0, rel=0.1)
    assert (tally + tally).done == 800


# ---- cron ----


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "now", "tick"),
    [
        ("* * * * *", "2026-11-16T10:07:30.5", "2026-11-16T10:07"),
        ("*/15 * * * *", "2026-11-16T10:14:59", "2026-11-16T10:00"),
        ("5-10/2 * * * *", "2026-11-16T10:08", "2026-11-16T10:07"),
        ("50/5 * * * *", "2026-11-16T10:08", "2026-11-16T09:55"),
        ("0 9,17 * * *", "2026-11-16T16:00", "2026-11-16T09:00"),
        ("0 9 * * mon-fri", "2026-11-15T12:00", "2026-11-13T09:00"),
        ("0 9 * * 7", "2026-11-16T12:00", "2026-11-15T09:00"),
        ("0 0 1 jan *", "2026-11-16T12:00", "2026-01-01T00:00"),
        ("0 0 29 2 *", "2027-11-16T12:00", "2024-02-29T00:00"),
        ("0 0 13 * fri", "2026-11-16T12:00", "2026-11-13T00:00"),
        ("0 0 13 * tue", "2026-11-16T12:00", "2026-11-13T00:00"),
        ("0 0 13 * sun", "2026-11-16T12:00", "2026-11-15T00:00"),
        ("30 23 * * *", "2026-03-01T00:00", "2026-02-28T23:30"),
        ("@hourly", "2026-11-16T10:59", "2026-11-16T10:00"),
        ("@daily", "2026-11-16T10:59", "2026-11-16T00:00"),
        ("@weekly", "2026-11-16T10:59", "2026-11-15T00:00"),
        ("@monthly", "2026-11-16T10:59", "2026-11-01T00:00"),
        ("@yearly", "2026-11-16T10:59", "2026-01-01T00:00"),
    ],
)
def test_the_last_tick(line: str, now: str, tick: str) -> None:
    assert Cron(line).last(_at(now)) == _at(tick)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("60 * * * *", "'60' is no minute"),
        ("* 24 * * *", "'24' is no hour"),
        ("* * 0 * *", "'0' is no day of the month"),
        ("* * * foo *", "'foo' is no month"),
        ("* * * * 8", "'8' is no day of the week"),
        ("5-1 * * * *", "'5-1' is no minute"),
        ("*/0 * * * *", "'*/0' is no minute"),
        ("1, * * * *", "'' is no minute"),
        ("-1 * * * *", "'-1' is no minute"),
        ("0 0 31 2 *", "never comes"),
        ("@reboot", "five fields"),
    ],
)
def test_a_line_that_is_none(line: str, said: str) -> None:
    with pytest.raises(Invalid) as raised:
        Cron(line)
    assert said in str(raised.value)


# ---- verdicts ----


def _raised(error: BaseException) -> BaseException:
    with Caught() as caught:
        raise error
    assert caught.error is error
    return error


def test_verdicts() -> None:
    assert judge(Retry("later", after_s=3), lost=False) == Again("later", 3, None)
    assert judge(Fail("gone"), lost=True) == Failed("gone")
    assert judge(ValueError("a\nb"), lost=False) == Again("ValueError: a ...")
    assert judge(LeaseLost("taken"), lost=True) == Dropped("taken")
    assert judge(SystemExit(2), lost=False) == Again("SystemExit: 2")
    assert judge(KeyboardInterrupt(), lost=True) == Halt("the handler raised KeyboardInterrupt")


def test_a_lock_that_the_handler_lost_is_an_error_like_any_other() -> None:
    """Our own claim is fine, so the task must not be dropped."""
    assert judge(LeaseLost("lock 'x' was taken"), lost=False) == Again("LeaseLost: lock 'x' was taken")


def test_what_ends_a_thread_from_outside_passes() -> None:
    class Killed(BaseException): ...

    with pytest.raises(Killed), Caught():
        raise Killed


def test_one_line() -> None:
    assert one_line(KeyError()) == "KeyError"
    assert one_line(ValueError("x" * 1000)) == "ValueError: " + "x" * 488 + " ..."


def test_a_trace_begins_with_the_users_code_and_is_short() -> None:
    error = _raised(ValueError("deep"))
    trace = trace_of(error)
    assert trace is not None
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.endswith("ValueError: deep\n")
    assert trace_of(ValueError("never raised")) is None


def test_a_trace_keeps_the_end_of_a_long_story() -> None:
    def fall(n: int) -> Any:
        return fall(n - 1) + 1 if n else dict[str, int]()["ü" * 6000]

    with Caught() as caught:
        fall(200)
    assert caught.error is not None
    trace = trace_of(caught.error)
    assert trace is not None
    assert len(trace.encode()) <= 8 * 1024
    assert trace.startswith("...\n")
    assert trace.endswith("ü'\n")
