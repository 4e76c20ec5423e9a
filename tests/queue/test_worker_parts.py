"""The small parts of a worker: permits by rate, the order of looks, crontab lines, verdicts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from limpet.kernel.errors import Invalid, LeaseLost
from limpet.kernel.user_code import UserCall, one_line
from limpet.queue.api import Fail, Retry
from limpet.queue.look import FIRST_S, IDLE_S
from limpet.worker.limits import Permits, Rate
from limpet.worker.runner import WorkerReport
from limpet.worker.schedule import Cron
from limpet.worker.verdict import TaskVerdict, classify, trace_of
from limpet.worker.worker import BUSY_S, LookLine
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


# ---- polls ----


def test_an_earlier_queue_comes_first(runtime: ManualRuntime) -> None:
    polls = LookLine([IDLE_S * 2] * 2, runtime, in_order=True)
    assert polls.take() == 0
    polls.found(0)
    assert polls.take() == 0
    polls.queues[0].empty()
    assert polls.take() == 1
    polls.found(1)
    assert polls.take() == 1
    runtime.sleep(FIRST_S)
    assert polls.take() == 0


def test_without_an_order_they_take_turns(runtime: ManualRuntime) -> None:
    polls = LookLine([IDLE_S * 3] * 3, runtime, in_order=False)
    seen = []
    for _ in range(6):
        n = polls.take()
        assert n is not None
        polls.found(n)
        seen.append(n)
    assert seen == [0, 1, 2, 0, 1, 2]


def test_only_one_looks_at_a_queue_that_was_empty(runtime: ManualRuntime) -> None:
    polls = LookLine([IDLE_S * 1] * 1, runtime, in_order=True)
    assert (polls.take(), polls.take()) == (0, None)
    polls.found(0)
    assert (polls.take(), polls.take()) == (0, 0)


def test_threads_that_find_nothing_at_once_do_not_make_the_pause_longer(runtime: ManualRuntime) -> None:
    polls = LookLine([IDLE_S], runtime, in_order=True)
    polls.found(0)
    assert [polls.take() for _ in range(32)] == [0] * 32
    for _ in range(32):
        polls.queues[0].empty()
    runtime.sleep(FIRST_S)
    assert polls.take() == 0
    polls.queues[0].empty()
    assert polls.wait_s() <= FIRST_S


@pytest.mark.parametrize("queues", [1, 2, 5])
def test_idle_looks_do_not_grow_with_the_queues(runtime: ManualRuntime, queues: int) -> None:
    polls = LookLine([IDLE_S * queues] * queues, runtime, in_order=True)

    def in_an_hour() -> int:
        count, until_s = 0, runtime.elapsed_s() + 3600
        while runtime.elapsed_s() < until_s:
            while (n := polls.take()) is not None:
                polls.queues[n].empty()
                count += 1
            runtime.sleep(polls.wait_s())
        return count

    in_an_hour()
    assert 3600 / IDLE_S - 2 * queues <= in_an_hour() <= 200


def test_work_in_one_queue_brings_a_look_at_the_others(runtime: ManualRuntime) -> None:
    polls = LookLine([IDLE_S * 2] * 2, runtime, in_order=True)
    for _ in range(30):
        while (n := polls.take()) is not None:
            polls.queues[n].empty()
        runtime.sleep(polls.wait_s())
    assert polls.take() is not None
    polls.found(1)
    runtime.sleep(2 * BUSY_S)
    assert polls.take() == 0


def test_trouble_backs_off_and_is_forgotten(runtime: ManualRuntime) -> None:
    polls = LookLine([IDLE_S * 1] * 1, runtime, in_order=True)
    waits = []
    for _ in range(7):
        assert polls.take() == 0
        polls.queues[0].failed()
        waits.append(polls.wait_s())
        runtime.sleep(waits[-1])
    assert waits == pytest.approx([1, 2, 4, 8, 16, 30, 30])
    assert polls.failed_wait_s() > 0
    polls.take()
    polls.queues[0].empty()
    assert polls.failed_wait_s() == 0


def test_a_long_look_counts_as_a_pause(runtime: ManualRuntime) -> None:
    """A claim that waits in the server has waited."""
    polls = LookLine([IDLE_S * 1] * 1, runtime, in_order=True)
    for _ in range(30):
        assert polls.take() == 0
        runtime.sleep(IDLE_S)
        polls.queues[0].empty()


# ---- permits and counts ----


def test_permits(runtime: ManualRuntime) -> None:
    permits = Permits(2, runtime)
    assert (permits.take(), permits.take(), permits.take(), permits.used_up) == (True, True, False, True)
    permits.give_back()
    assert (permits.used_up, permits.take()) == (False, True)
    assert all(Permits(None, runtime).take() for _ in range(1000))


def test_the_rate_of_the_counts_is_that_of_the_last_seconds(runtime: ManualRuntime) -> None:
    report = WorkerReport(runtime)
    for _ in range(100):
        report.count("done")
        runtime.sleep(1)
        report.counts()
    for _ in range(100):
        report.count("done", 3)
        report.count("failed")
        runtime.sleep(0.5)
        report.counts()
    counts = report.counts()
    assert (counts.done, counts.failed, counts.ended) == (400, 100, 500)
    assert counts.rate_per_s == pytest.approx(8.0, rel=0.1)
    assert (counts + counts).done == 800


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
        ("1, * * * *", "'1,' is no minute"),
        ("-1 * * * *", "'-1' is no minute"),
        ("0 0 31 2 *", "'31' is no day of the month"),
        ("* * */20 * 1L", "never comes"),
        ("0 0 12 * * *", "five fields"),
        (["* * * * *"], "five fields"),
        ("@reboot", "five fields"),
    ],
)
def test_a_line_that_is_none(line: Any, said: str) -> None:
    with pytest.raises(Invalid) as raised:
        Cron(line)
    assert said in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "Europe", "../../etc/passwd", "/etc/localtime", "a\0b", 5])
def test_a_zone_that_is_none(zone: Any) -> None:
    with pytest.raises(Invalid, match="is no time zone of this machine") as raised:
        Cron("0 3 * * *", zone)
    assert "Europe/Berlin" in raised.value.hint


SPRING, AUTUMN = "2026-03-29", "2026-10-25"
"""In Berlin 02:00 to 03:00 does not exist on the first of these days, and comes twice on the second."""


@pytest.mark.parametrize(
    ("line", "day", "ticks"),
    [
        ("0 3 * * *", SPRING, ["01:00"]),
        ("30 2 * * *", SPRING, ["01:00"]),
        ("0,30 2 * * *", SPRING, ["01:00"]),
        ("30 1 * * *", SPRING, ["00:30"]),
        ("*/30 2 * * *", SPRING, []),
        ("30 * * * *", SPRING, ["00:30", "01:30", "02:30"]),
        ("0 3 * * *", AUTUMN, ["02:00"]),
        ("30 2 * * *", AUTUMN, ["00:30"]),
        ("59 2 * * *", AUTUMN, ["00:59"]),
        ("0,30 2 * * *", AUTUMN, ["00:00", "00:30"]),
        ("30 * * * *", AUTUMN, ["00:30", "01:30", "02:30"]),
    ],
)
def test_the_days_when_the_clocks_change(line: str, day: str, ticks: list[str]) -> None:
    """A time that does not exist is the first minute after it; one that exists twice is the first of the two."""
    cron = Cron(line, "Europe/Berlin")
    found: list[datetime] = []
    now = _at(f"{day}T00:00")
    while now < _at(f"{day}T03:00"):
        tick = cron.last(now)
        assert tick is not None
        assert tick <= now
        assert tick >= max(found, default=tick)
        if tick not in found and tick >= _at(f"{day}T00:00"):
            assert now - tick < timedelta(seconds=20)
            found.append(tick)
        now += timedelta(seconds=20)
    assert [f"{tick:%H:%M}" for tick in found] == ticks


def test_a_zone_moves_the_tick() -> None:
    line, now = "0 9 * * mon", _at("2026-11-16T23:30")
    assert Cron(line).last(now) == _at("2026-11-16T09:00")
    assert Cron(line, "UTC").last(now) == _at("2026-11-16T09:00")
    assert Cron(line, "America/New_York").last(now) == _at("2026-11-16T14:00")
    assert Cron(line, "Pacific/Auckland").last(now) == _at("2026-11-15T20:00")


# ---- verdicts ----


def _raised(error: BaseException) -> BaseException:
    with UserCall() as call:
        raise error
    assert call.error is error
    return error


def test_verdicts() -> None:
    assert classify(Retry("later", after_s=3), lost=False) == TaskVerdict("retry", "later", 3)
    assert classify(Fail("gone"), lost=True) == TaskVerdict("fail", "gone")
    assert classify(ValueError("a\nb"), lost=False) == TaskVerdict("retry", "ValueError: a ...")
    assert classify(LeaseLost("taken"), lost=True) == TaskVerdict("lost", "taken")
    assert classify(SystemExit(2), lost=False) == TaskVerdict("retry", "SystemExit: 2")
    said = "a signal has interrupted the handler"
    assert classify(KeyboardInterrupt(), lost=True, interrupted=True) == TaskVerdict("halt", said)
    assert classify(KeyboardInterrupt(), lost=False) == TaskVerdict("retry", "KeyboardInterrupt")


def test_a_lock_that_the_handler_lost_is_an_error_like_any_other() -> None:
    """Our own claim is fine, so the task must not be dropped."""
    assert classify(LeaseLost("lock 'x' was taken"), lost=False) == TaskVerdict(
        "retry", "LeaseLost: lock 'x' was taken"
    )


@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, type("Own", (BaseException,), {})]
)
def test_whatever_leaves_the_users_code_is_a_verdict(kind: type[BaseException]) -> None:
    error = _raised(kind("of its own"))
    assert classify(error, lost=False).error == f"{kind.__name__}: of its own"
    assert classify(error, lost=False).kind == "retry"


def test_an_error_whose_text_raises_is_an_error_like_any_other() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

    said = "a Mute whose text cannot be shown"
    assert classify(_raised(Mute()), lost=False).error == f"Mute: {said}"
    assert classify(type("MuteFail", (Mute, Fail), {})(), lost=False).kind == "fail"


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


def test_a_trace_shows_source_lines_and_no_values() -> None:
    """A secret in a variable stays out of the bucket; what an exception says is its author's choice."""

    def handler(token: str) -> None:
        local = token.upper()
        raise ValueError("refused", len(local))

    secret = "".join(("hun", "ter", "2"))
    with UserCall() as call:
        handler(secret)
    assert call.error is not None
    trace = trace_of(call.error)
    assert trace is not None
    assert 'raise ValueError("refused", len(local))' in trace
    assert secret not in trace.lower()


def test_a_trace_keeps_the_end_of_a_long_story() -> None:
    def fall(n: int) -> Any:
        return fall(n - 1) + 1 if n else dict[str, int]()["ü" * 6000]

    with UserCall() as call:
        fall(200)
    assert call.error is not None
    trace = trace_of(call.error)
    assert trace is not None
    assert len(trace.encode()) <= 8 * 1024
    assert trace.startswith("...\n")
    assert trace.endswith("ü'\n")
