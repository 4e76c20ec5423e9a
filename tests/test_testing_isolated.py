"""`limpet.testing.isolated` and `eager` with durable tasks, used as a user's own tests use them."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing

WRONG: dict[str, Any] = {"text": "./fleet", "none": None, "module": limpet}
START = datetime(2026, 3, 2, 8, 50, tzinfo=UTC)

# ---- a user's app.py ----


@dataclass
class Person:
    """A record."""

    key: str
    name: str = ""


class App:
    """An application: a fleet that is never made, and handles of it that exist before any test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.fleet = fleet = limpet.open(url)
        self.people = fleet.index("people", Person, key="key")
        self.total = fleet.cell("total")
        self.lock = fleet.lock("one at a time")
        self.raw = fleet.queue("raw")
        self.ran: list[tuple[str, float]] = []
        self.refusals = 2

        @fleet.task(durable=True)
        def order(id: str) -> str:
            self.note("order")
            paid = limpet.wait_signal("paid", timeout_s=7 * 86400)
            if paid is None:
                return "cancelled"
            limpet.sleep(1800)
            [end] = limpet.gather([ship.push(id)])
            return str(end.value)

        @fleet.task(max_attempts=3)
        def ship(id: str) -> str:
            self.note("ship")
            if self.refusals:
                self.refusals -= 1
                raise limpet.Retry("the carrier is busy", after_s=60)
            self.people.put(Person(id))
            return f"shipped {id}"

        @fleet.task(cron="0 * * * *")
        def report() -> int:
            self.note("report")
            return len([*self.people.scan()])

        @fleet.task(max_attempts=2, backoff_s=10)
        def work(how: str) -> str:
            self.note(how)
            match how:
                case "assert":
                    assert how.isupper(), "not this one"
                case "fail":
                    pytest.fail("from a handler")
                case "drain":
                    self.test.drain()
                case "wait":
                    self.raw.result("never", wait_s=7200)
                case "again":
                    work.using(delay_s=60).push(how)
                case "unfit":
                    return object()  # type: ignore[return-value]
            return how.upper()

        @fleet.task
        async def both(seconds: float) -> list[Any]:
            self.note("both")
            await limpet.sleep_async(seconds)
            ends = await limpet.gather_async(work.push_many([("one",), ("two",)]))
            return [end.value for end in ends]

        self.order, self.ship, self.report, self.work, self.both = order, ship, report, work, both
        self.test: testing.IsolatedFleet

    def note(self, what: str) -> None:
        """Note that a handler ran, and when."""
        self.ran.append((what, (self.fleet.runtime.wall() - START).total_seconds()))

    def isolated(self, **options: Any) -> Any:
        """The block of a test."""
        return testing.isolated(self.fleet, start=START, **options)


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(str(tmp_path / "fleet"))


@pytest.fixture
def test(app: App) -> Iterator[testing.IsolatedFleet]:
    with app.isolated() as test:
        app.test = test
        yield test


# ---- an hour in milliseconds ----


def test_a_workflow_of_an_hour(app: App, test: testing.IsolatedFleet) -> None:
    pushed = app.order.push("o-1")
    before = test.drain(for_s=60)
    assert (before.suspended, before.waiting()) == (1, ["waiting for the signal 'paid'"])
    limpet.signal(pushed, "paid", {"cents": 300})
    report = test.drain(for_s=3540)
    assert pushed.result().value == "shipped o-1"
    assert [(what, s) for what, s in app.ran if what != "order"] == [
        ("report", 600.0),
        ("ship", 1860.0),
        ("ship", 1860.0 + 60),
        ("ship", 1860.0 + 120),
    ]
    assert (report.done, report.retried, report.failures, report.left, report.moved_s) == (3, 2, [], [], 3540.0)
    assert test.now == START + timedelta(hours=1)


def test_a_time_limit_of_a_week_passes(app: App, test: testing.IsolatedFleet) -> None:
    pushed = app.order.push("o-1")
    with pytest.raises(limpet.Invalid, match=r"ran 20 tasks.*queues with open tasks: order"):
        test.drain(max_tasks=20)  # the cron of each hour, while the clock goes on to the end of the week
    test.move(7 * 86400)
    test.drain(until_idle=False)
    assert pushed.result().value == "cancelled"


def test_async_handlers_batches_and_what_waits_for_them(app: App, test: testing.IsolatedFleet) -> None:
    pushed = app.both.push(1234.5)
    report = test.drain()
    assert pushed.result().value == ["ONE", "TWO"]
    assert report.left == []
    assert [ran for ran in app.ran if ran[0] != "both"] == [("report", 600.0), ("one", 1234.5), ("two", 1234.5)]
    assert report.moved_s < 1240


@pytest.mark.parametrize(
    ("options", "pushes", "ran"),
    [
        ({"backoff_s": 1.0}, [0.0], [0.0]),
        ({}, [0.0, 86400.0, 3600.0], [0.0, 3601.0, 86401.0]),  # delayed pushes are due at the next full second
        ({"concurrency": 1}, [5.0, 5.0], [6.0, 6.0]),
        ({"rate_per_s": 0.1}, [0.0, 0.0], [0.0, 10.0]),
    ],
    ids=["at once", "delays", "one at a time", "a rate"],
)
def test_times(app: App, options: dict[str, Any], pushes: list[float], ran: list[float]) -> None:
    @app.fleet.task("timed", **options)
    def timed() -> None:
        app.note("timed")

    with app.isolated() as test:
        for delay_s in pushes:
            timed.using(delay_s=delay_s).push()
        assert test.drain().done == len([what for what, _ in app.ran])
    assert [round(s) for what, s in app.ran if what == "timed"] == ran


@pytest.mark.parametrize(
    ("line", "zone", "start", "for_s", "ticks"),
    [
        ("0 * * * *", None, START, 600, ["09:00"]),
        ("0 * * * *", None, START, 599, []),
        ("50 8 * * *", None, START, 3600, []),
        ("*/20 * * * *", None, START, 3600, ["09:00", "09:20", "09:40"]),
        ("30 2 * * *", "Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC), 86400, ["01:00"]),
        ("30 2 * * *", "Europe/Berlin", datetime(2026, 10, 24, 12, tzinfo=UTC), 86400, ["00:30"]),
        ("30 * * * *", "Europe/Berlin", datetime(2026, 10, 24, 23, 40, tzinfo=UTC), 7200, ["00:30", "01:30"]),
    ],
    ids=["in", "out", "at the start", "many", "in a gap", "twice", "every hour"],
)
def test_cron(line: str, zone: str | None, start: datetime, for_s: float, ticks: list[str]) -> None:
    fleet = testing.fleet()
    seen: list[str] = []

    @fleet.task(cron=line, cron_zone=zone)
    def tick() -> None:
        seen.append(f"{fleet.runtime.wall():%H:%M}")

    with testing.isolated(fleet, start=start) as test:
        assert test.drain().done == 0, "cron alone does not keep a drain going"
        test.drain(for_s=for_s / 2)
        test.drain(until=start + timedelta(seconds=for_s))
        assert (seen, test.now) == (ticks, start + timedelta(seconds=for_s))


def test_times_that_are_no_whole_microseconds_end_once(app: App) -> None:
    @app.fleet.task(durable=True, max_attempts=9)
    def odd(n: int) -> int:
        app.note("odd")
        limpet.sleep(n / 3)
        limpet.wait_signal("never", timeout_s=n / 7)
        current = limpet.current_task()
        assert current is not None
        if current.attempt < 4:
            raise limpet.Retry("later", after_s=n * 1e-7 / 3)
        return n

    with app.isolated() as test:
        odd.push_many([(n,) for n in range(1, 40)])
        report = test.drain(max_tasks=39 * 7)
        assert (report.done, report.retried, report.left) == (39, 39 * 3, [])


# ---- isolation ----


def test_handles_of_before_and_of_the_block_follow_the_fleet(app: App) -> None:
    with app.isolated() as test:
        app.people.put(Person("a"))
        app.total.write(1)
        late = app.fleet.queue("late")
        late.push({})
        app.raw.push({})
        with app.lock.hold():
            assert [row.queue for row in test.drain().left] == ["late", "raw"]
            test.move(3600)
            assert app.fleet.lock("one at a time").try_acquire().__class__.__name__ == "Held"
    assert not Path(app.url).exists(), "the place of the fleet is not touched"
    with app.isolated() as test:
        assert (app.total.read(), app.people.get("a"), late.stats().pending) == (None, None, 0)
        late.push({})
    assert (app.total.read(), late.stats().pending, app.fleet.queue("late").stats().pending) == (None, 0, 0)
    app.raw.push({})
    assert Path(app.url, "queues", "raw").exists()


def test_all_is_undone_after_an_exception(tmp_path: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet", events=True)
    task = fleet.task("noted")(lambda: None)
    fleet.on_done(lambda run: None)
    events, runtime, state = fleet.events, fleet.runtime, dict(task.queue.__dict__)

    def block() -> None:
        with testing.isolated(fleet) as test:
            task.push()
            assert (test.drain().done, fleet.events, fleet.url) == (1, None, "memory://")
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        block()
    assert (fleet.events, fleet.tasks.hooks.events, fleet.runtime, fleet.url) == (
        events,
        events,
        runtime,
        f"{tmp_path}/fleet",
    )
    assert task.queue.__dict__ == state


def test_the_threads_of_a_block_end_with_it(app: App) -> None:
    def running() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("limpet-renewer")}

    before = running()
    with app.isolated() as test:
        app.work.push("a")
        test.drain()
        app.raw.push({})
        with app.raw.claim() as claim, app.lock.hold():
            test.move(1000)
            assert not next(iter(claim)).lost
    for thread in threading.enumerate():
        if thread.name.startswith("limpet-renewer") and thread.name not in before:
            thread.join(10)
    assert running() <= before


def test_a_run_is_the_same_each_time(app: App) -> None:
    def run(seed: int) -> list[Any]:
        app.ran.clear()
        with app.isolated(seed=seed) as test:
            ids = [app.work.push(how).id for how in ("b", "a", "c")]
            app.work.push("assert")
            test.drain(raise_failed=False)
            return [ids, app.ran[:], test.now]

    first, again, other = run(0), run(0), run(1)
    assert first == again
    assert [what for what, _ in first[1]] == ["b", "a", "c", "assert", "assert"], "in the order of the pushes"
    assert first[0] != other[0]
    assert first[0] == sorted(first[0])


def test_a_limit_of_claims_that_an_earlier_drain_used(app: App) -> None:
    one = app.fleet.task("one", concurrency=1)(lambda: None)
    both = app.fleet.task("both batches")(lambda: len(one.push_many([()] * 150)))
    with app.isolated() as test:
        one.push()
        assert test.drain().done == 1
        both.push()
        assert (test.drain().done, test.now) == (151, START)


def test_a_drain_inside_a_running_loop(app: App, test: testing.IsolatedFleet) -> None:
    async def main() -> int:
        await app.both.push_async(60)
        return test.drain().done

    assert asyncio.run(main()) == 3


# ---- failures ----


def test_a_failure_comes_out_with_its_own_traceback(app: App, test: testing.IsolatedFleet) -> None:
    pushed = app.work.push("assert")
    app.work.push("assert")
    with pytest.raises(AssertionError, match="not this one") as caught:
        test.drain()
    shown = "".join(traceback.format_exception(caught.value))
    assert "assert how.isupper()" in shown
    assert f"task {pushed.id!r} of queue 'work' failed in attempt 2" in "".join(caught.value.__notes__)
    assert "job.handle" not in shown, "no frame of Limpet between the test's and the handler's"
    assert app.ran[0] == ("assert", 0.0)
    assert pushed.result().state == "failed"


@pytest.mark.parametrize(
    ("how", "error", "runs", "match"),
    [
        ("assert", AssertionError, 2, "not this one"),
        ("unfit", limpet.Fail, 1, "cannot be stored"),
        ("wait", limpet.Invalid, 2, "nothing runs meanwhile"),
        ("drain", limpet.Invalid, 2, "a drain runs already"),
    ],
)
def test_failures_in_the_report(
    app: App, test: testing.IsolatedFleet, how: str, error: type[Exception], runs: int, match: str
) -> None:
    pushed = app.work.push(how)
    app.work.push("fine")
    report = test.drain(raise_failed=False)
    assert (report.done, report.failed, len(app.ran)) == (1, 1, runs + 1)
    [failure] = report.failures
    assert (failure.queue, failure.id, failure.attempts, type(failure.error)) == ("work", pushed.id, runs, error)
    assert match in str(failure.error)


def test_pytest_fail_in_a_handler_ends_the_drain(app: App, test: testing.IsolatedFleet) -> None:
    app.work.push("fail")
    app.work.push("later")
    with pytest.raises(pytest.fail.Exception, match="from a handler"):
        test.drain(raise_failed=False)
    assert [what for what, _ in app.ran] == ["fail"]


def test_a_payload_that_does_not_fit_fails(app: App, test: testing.IsolatedFleet) -> None:
    app.work.queue.push({"other": 1})
    with pytest.raises(limpet.Fail, match="no field 'how'"):
        test.drain()


def test_what_is_left(app: App, test: testing.IsolatedFleet) -> None:
    app.order.using(id="o").push("o")
    app.raw.push({})
    app.work.using(id="later", delay_s=60).push("later")
    app.work.queue.pause()
    app.report.push()
    report = test.drain(for_s=120)
    assert {(task.queue, task.id if task.queue != "raw" else "", task.state) for task in report.left} == {
        ("order", "o", "suspended"),
        ("raw", "", "waiting"),
        ("work", "later", "waiting"),
    }
    assert report.waiting() == ["waiting", "waiting", "waiting for the signal 'paid'"]
    app.work.queue.resume()
    assert test.drain(for_s=60).done == 1


@pytest.mark.parametrize("limits", [{"max_tasks": 50}, {"max_tasks": 50, "for_s": 86400}])
def test_a_task_that_pushes_itself_has_no_end(app: App, test: testing.IsolatedFleet, limits: dict[str, Any]) -> None:
    app.work.push("again")
    with pytest.raises(limpet.Invalid, match="ran 50 tasks, and there are more") as caught:
        test.drain(**limits)
    assert "for_s=" in caught.value.hint
    app.ran.clear()
    assert test.drain(for_s=600).done == 9, "a delay of 60 s ends with the next full second"


# ---- misuse ----


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda app: testing.isolated(app.work), "wants a fleet, not TaskFunction"),
        (lambda app: testing.isolated(WRONG["text"]), "wants a fleet, not str './fleet'"),
        (lambda app: testing.isolated(WRONG["none"]), "wants a fleet, not NoneType"),
        (lambda app: testing.eager(WRONG["module"]), "wants a fleet, not module"),
        (lambda app: testing.isolated(app.fleet, start=datetime(2026, 1, 1)), "start=2026-01-01 00:00:00 has no zone"),
        (lambda app: testing.isolated(limpet.open("sqs://eu-west-1/x")), "a fleet in SQS cannot be isolated"),
    ],
)
def test_blocks_that_cannot_be(app: App, call: Callable[[App], Any], text: str) -> None:
    with pytest.raises((limpet.Invalid, limpet.Unsupported)) as caught, call(app):
        pass
    assert text in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda app, test: ExitStack().enter_context(testing.isolated(app.fleet)), "the fleet is isolated already"),
        (lambda app, test: test.move(-1), "a clock moves forward, not by -1 seconds"),
        (lambda app, test: test.move(float("nan")), "a clock moves forward, not by nan seconds"),
        (lambda app, test: test.drain(max_tasks=0), "max_tasks must be at least 1, not 0"),
        (lambda app, test: test.drain(for_s=-1), "a clock moves forward, not by -1 seconds"),
        (lambda app, test: test.drain(for_s=1, until=START), "give for_s or until, not both"),
        (lambda app, test: test.drain(for_s=1, until_idle=False), "for_s and until move the clock"),
        (lambda app, test: test.drain(until=datetime(2026, 3, 3)), "until=2026-03-03 00:00:00 has no zone"),
        (lambda app, test: test.drain(until=START - timedelta(1)), "behind until=2026-03-01"),
        (lambda app, test: app.raw.result("x", wait_s=1e9), "nothing runs meanwhile"),
    ],
)
def test_calls_that_cannot_be(
    app: App, test: testing.IsolatedFleet, call: Callable[[App, testing.IsolatedFleet], Any], text: str
) -> None:
    with pytest.raises(limpet.Invalid) as caught:
        call(app, test)
    assert text in str(caught.value)
    app.work.push("still works")
    assert test.drain().done == 1


@pytest.mark.parametrize("call", [lambda test: test.drain(), lambda test: test.move(1)], ids=["drain", "move"])
def test_calls_behind_the_block(app: App, call: Callable[[testing.IsolatedFleet], Any]) -> None:
    with app.isolated() as test:
        pass
    with pytest.raises(limpet.Invalid, match="behind the block of"):
        call(test)


# ---- durable tasks in eager ----


def test_an_eager_workflow(app: App) -> None:
    app.refusals = 0
    with app.isolated():
        with testing.eager(app.fleet, signals={"paid": {"cents": 300}}):
            pushed = app.order.push("o-1")
        assert pushed.result().value == "shipped o-1"
        with testing.eager(app.fleet):
            assert app.order.push("o-2").result().value == "cancelled", "its time is up at once"
            assert app.both.push(1e6).result().value == ["ONE", "TWO"]


def test_eager_steps_are_recorded_once() -> None:
    fleet = testing.fleet()
    calls: list[str] = []

    @fleet.task(durable=True, max_attempts=3)
    def charge(cents: int) -> str:
        current = limpet.current_task()
        calls.append(f"attempt {current.attempt}")
        key = limpet.step(pay, cents)
        if current.attempt < 3:
            raise limpet.Retry("once more")
        return key

    def pay(cents: int) -> str:
        calls.append(f"pay {cents}")
        noted.push(cents)
        current = limpet.current_task()
        return current.step_key

    @fleet.task(durable=True)
    def noted(cents: int) -> None:
        limpet.step(calls.append, f"noted {cents}")

    with testing.eager(fleet):
        pushed = charge.push(5)
    assert calls == ["attempt 1", "pay 5", "noted 5", "attempt 2", "attempt 3"]
    assert pushed.result().unwrap().endswith("#0")


@pytest.mark.parametrize("is_async", [False, True])
def test_eager_without_its_signal(is_async: bool) -> None:
    fleet = testing.fleet()

    @fleet.task("approval")
    def approval() -> Any:
        try:
            return limpet.wait_signal("approve")
        except limpet.LimpetError:
            return "caught"

    async def push() -> None:
        approval.push()

    call = (lambda: asyncio.run(push())) if is_async else approval.push
    with testing.eager(fleet, signals={"aprove": 1}), pytest.raises(limpet.Invalid) as caught:
        call()
    assert str(caught.value) == "task 'approval' stops in eager, waiting for the signal 'approve'"
    assert 'signals={"name": value}' in caught.value.hint
