"""The public face: typed pushes, `using`, coroutines, `with` blocks, and the fixtures for users' tests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import limpet
from limpet import testing
from limpet.app import Fleet
from limpet.kernel.errors import Held, Invalid
from limpet.testing import Clock

pytest_plugins = ["pytester"]


@pytest.fixture
def fleet() -> Fleet:
    return testing.fleet()


# ---- typed pushes ----

SAMPLE = """
import limpet
from datetime import UTC, datetime
from typing import assert_type

fleet = limpet.open("memory://")

@fleet.task(max_attempts=3)
def enrich(domain: str, tries: int = 1) -> str:
    return domain

enrich.push("a.com")
enrich.using(id="a", delay_s=1.0).push("a.com", tries=2)
enrich.using(at=datetime(2030, 1, 1, tzinfo=UTC)).push(domain="a.com")
pushed: limpet.Pushed = enrich.push("a.com")
result: limpet.Result = enrich.queue.result(pushed.id)

@fleet.task
async def count(domain: str) -> int:
    ends = limpet.gather([enrich.push(domain), enrich.push(domain)])
    assert_type([end.unwrap() for end in ends], list[str])
    assert_type(limpet.current_task().attempt, int)
    pushed = await count.push_async(domain)
    return pushed.result().unwrap()

assert_type(enrich.push("a.com").result().value, str | None)
assert_type(enrich.using(id=1).push("a.com"), limpet.Pushed[str])
assert_type(count.push("a.com").result().unwrap(), int)
assert_type(count.using(id="a").push("a.com"), limpet.Pushed[int])
assert_type([task.result().unwrap() for task in count.push_many([("a.com",)])], list[int])
assert_type(limpet.gather([*count.push_many([]), count.push("a")])[0], limpet.Result)
"""
MISTAKES = """
enrich.push(1)
enrich.push()
enrich.push("a.com", retries=2)
enrich.using(id=1.5).push("a.com")
enrich.using(id="a").push("a.com", tries="many")
enrich.push("a.com").result().value.upper()
len(count.push("a.com").result().unwrap())
"""


def test_mypy_finds_a_wrong_argument(tmp_path: Path) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text(SAMPLE + MISTAKES)
    command = [sys.executable, "-m", "mypy", str(sample)]  # with the cache that `make test` has filled
    ran = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    first = SAMPLE.count("\n") + 2
    found = {int(line.split(":")[1]) for line in ran.stdout.splitlines() if ": error:" in line}
    assert found == {*range(first, first + MISTAKES.strip().count("\n") + 1)}, ran.stdout


# ---- using ----


def test_using_gives_a_task_an_id_and_a_delay(fleet: Fleet) -> None:
    @fleet.task()
    def enrich(domain: str, id: str = "", delay_s: float = 0.0) -> None: ...

    assert enrich.using(id="x").push("a.com", id="mine").created
    assert not enrich.using(id="x").push("a.com").created
    enrich.using(id="later", delay_s=60).push("b.com", delay_s=1.0)
    assert enrich.queue.result("later").state == "scheduled"
    [waiting] = [each for each in enrich.queue.peek() if each.id == "x"]
    assert waiting.payload == {"domain": "a.com", "id": "mine"}


def test_using_a_time(limpet_fleet: Fleet, limpet_clock: Clock) -> None:
    @limpet_fleet.task()
    def enrich(domain: str) -> str:
        return domain

    now = limpet_fleet.runtime.wall()
    enrich.using(id="past", at=now - timedelta(days=1)).push("a.com")
    enrich.using(id="future", at=now + timedelta(hours=1)).push("b.com")
    assert testing.drain(limpet_fleet).done == 1
    limpet_clock.advance(3601)
    assert testing.drain(limpet_fleet).done == 1
    assert enrich.queue.result("future").value == "b.com"


def test_a_time_without_a_zone_or_beside_a_delay_is_refused(fleet: Fleet) -> None:
    @fleet.task()
    def enrich(domain: str) -> None: ...

    with pytest.raises(Invalid, match="has no zone"):
        enrich.using(at=datetime(2030, 1, 1))
    with pytest.raises(Invalid, match="two times"):
        enrich.using(at=datetime(2030, 1, 1, tzinfo=UTC), delay_s=1.0)


def test_push_says_where_the_options_belong(fleet: Fleet) -> None:
    @fleet.task()
    def enrich(domain: str) -> None: ...

    with pytest.raises(Invalid) as raised:
        enrich.push("a.com", id="x")  # type: ignore[call-arg]
    assert "using(id=" in raised.value.hint
    assert fleet.queues() == []


# ---- coroutines ----


def test_pushes_and_results_for_coroutines(fleet: Fleet) -> None:
    @fleet.task()
    def enrich(domain: str) -> str:
        return domain.upper()

    async def app() -> str:
        first = await enrich.push_async("a.com")
        second = await enrich.using(id="b").push_async("b.com")
        third = await enrich.queue.push_async({"domain": "c.com"}, id="c")
        await asyncio.to_thread(testing.drain, fleet)
        results = [await enrich.queue.result_async(each.id) for each in (first, second, third)]
        return " ".join(result.unwrap() for result in results)

    assert asyncio.run(app()) == "A.COM B.COM C.COM"


def test_a_push_for_coroutines_does_not_hold_the_event_loop(fleet: Fleet) -> None:
    queue = fleet.queue("jobs")
    threads: list[int] = []
    push = queue.push

    def noted(*args: object, **kwargs: object) -> limpet.Pushed:
        threads.append(threading.get_ident())
        return push(*args, **kwargs)  # type: ignore[arg-type]

    queue.push = noted  # type: ignore[method-assign]
    asyncio.run(queue.push_async({}))
    assert threads != [threading.get_ident()]


def test_a_lock_for_coroutines(fleet: Fleet) -> None:
    async def app() -> None:
        async with fleet.lock("backup").hold_async() as lease:
            assert not lease.lost
            with pytest.raises(Held):
                async with fleet.lock("backup").hold_async(wait_s=0):
                    pass
        with pytest.raises(ValueError, match="mine"):
            async with fleet.lock("backup").hold_async(wait_s=0):
                raise ValueError("mine")
        async with fleet.lock("backup").hold_async(wait_s=0) as again:
            assert again.token == lease.token + 2

    asyncio.run(app())


def test_a_coroutine_that_is_cancelled_while_it_waits_for_a_lock_does_not_keep_it(fleet: Fleet) -> None:
    """Its thread waits on, and may win the lock when no one is there any more to release it."""
    other = fleet.lock("backup").acquire()

    async def app() -> None:
        async def hold() -> None:
            async with fleet.lock("backup").hold_async():
                pytest.fail("it was cancelled")

        waiting = asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        while not fleet.lock("backup").peek():
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        other.release()

    asyncio.run(app())  # ends when the thread has ended
    record = fleet.lock("backup").peek()
    assert record is not None
    assert (record.state.value, record.token) == ("free", 2)


# ---- with ----


def test_a_fleet_is_a_context_manager(tmp_path: Path) -> None:
    with limpet.open(tmp_path / "fleet", events=True) as fleet:
        assert fleet.events is not None
        fleet.cell("x").write(1)

    async def app() -> None:
        async with limpet.open(tmp_path / "fleet", create=False) as again:
            seen = again.cell("x").read()
            assert seen is not None
            assert seen.value == 1

    asyncio.run(app())


# ---- for users' tests ----


def test_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from limpet import testing

        def test_retries(limpet_fleet, limpet_clock):
            @limpet_fleet.task(max_attempts=2, backoff_s=600)
            def fail() -> None:
                raise ValueError("no")

            pushed = fail.push()
            assert testing.drain(limpet_fleet).retried == 1
            assert testing.drain(limpet_fleet).retried == 0
            limpet_clock.advance(7200)
            assert testing.drain(limpet_fleet).failed == 1
            assert fail.queue.result(pushed.id).state == "failed"

        def test_a_fresh_fleet(limpet_fleet):
            assert limpet_fleet.queues() == []

        def test_an_isolated_one(limpet_isolated, limpet_fleet):
            limpet_fleet.queue("q").push({})
            test = limpet_isolated(limpet_fleet)
            test.move(60)
            assert limpet_fleet.queues() == []
        """
    )
    ran = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")
    ran.assert_outcomes(passed=3)


def test_a_clock_does_not_go_back() -> None:
    with pytest.raises(Invalid, match="forward"):
        Clock().advance(-1)
