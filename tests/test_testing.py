"""`limpet.testing`, used as a user's own tests use it."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

import limpet
from limpet import testing

# ---- a user's app.py ----

fleet = testing.fleet()
calls: list[str] = []


@fleet.task("enrich", max_attempts=3)
def enrich(domain: str) -> str:
    """Shouts, in the end."""
    calls.append(domain)
    if domain == "gone.com":
        raise limpet.Fail("gone")
    if domain == "broken.com":
        raise ValueError("broken")
    if domain == "busy.com" and calls.count(domain) < 3:
        raise limpet.Retry("busy", after_s=3600)
    if domain == "down.com":
        raise limpet.Retry("down", after_s=3600)
    return domain.upper()


@fleet.task()
async def crawl(domains: list[str]) -> int:
    """Pushes the rest of the work."""
    await asyncio.sleep(0)
    return len(enrich.push_many([(domain,) for domain in domains]))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()
    for task in fleet.tasks:
        task.queue.purge()


# ---- a user's test_app.py ----


def test_a_fleet_of_its_own_each_time() -> None:
    one, other = testing.fleet(), testing.fleet()
    one.cell("x").write(1)
    assert other.cell("x").read() is None


def test_a_fleet_that_is_no_longer_used_is_freed() -> None:
    runtime = weakref.ref(testing.fleet(testing.Clock()).runtime)
    gc.collect()
    assert runtime() is None, "a hook for forks must not keep it"


def test_an_eager_push_runs_at_once() -> None:
    with testing.eager(fleet):
        pushed = enrich.push("a.com")
        assert calls == ["a.com"]
    result = enrich.queue.result(pushed.id)
    assert (result.state, result.value) == ("completed", "A.COM")


def test_an_eager_push_does_not_wait_for_its_delay() -> None:
    with testing.eager(fleet):
        enrich.using(delay_s=3600).push("a.com")
    assert calls == ["a.com"]


def test_an_eager_id_runs_once() -> None:
    with testing.eager(fleet):
        assert enrich.using(id="once").push("a.com").created
        assert not enrich.using(id="once").push("a.com").created
    assert calls == ["a.com"]


def test_an_eager_push_to_an_async_task_and_from_it_to_others() -> None:
    with testing.eager(fleet):
        pushed = crawl.push(["a.com", "b.com"])
    assert crawl.queue.result(pushed.id).value == 2
    assert calls == ["a.com", "b.com"]


def test_an_eager_push_inside_a_running_loop() -> None:
    async def app() -> str:
        return crawl.push(["a.com"]).id

    with testing.eager(fleet):
        id_ = asyncio.run(app())
    assert (crawl.queue.result(id_).value, calls) == (1, ["a.com"])


@pytest.mark.parametrize(("domain", "error"), [("gone.com", limpet.Fail), ("broken.com", ValueError)])
def test_an_eager_error_comes_out(domain: str, error: type[Exception]) -> None:
    with testing.eager(fleet), pytest.raises(error, match=domain.removesuffix(".com")):
        enrich.using(id=f"error-{domain}").push(domain)
    result = enrich.queue.result(f"error-{domain}")
    assert (result.state, calls) == ("failed", [domain])
    assert domain.removesuffix(".com") in (result.error or "")


def test_an_eager_retry_runs_again_at_once() -> None:
    with testing.eager(fleet):
        pushed = enrich.push("busy.com")
    assert enrich.queue.result(pushed.id).value == "BUSY.COM"
    assert calls == ["busy.com"] * 3


def test_an_eager_retry_gives_up_after_max_attempts() -> None:
    with testing.eager(fleet), pytest.raises(limpet.Retry, match="down"):
        enrich.using(id="down").push("down.com")
    assert (calls, enrich.queue.result("down").state) == (["down.com"] * 3, "failed")


def test_eager_ends_with_its_block() -> None:
    with pytest.raises(ValueError, match="mine"), testing.eager(fleet):
        raise ValueError("mine")
    enrich.push("a.com")
    assert calls == []


def test_drain_runs_what_waits_and_what_that_pushes() -> None:
    crawl.push(["a.com", "gone.com", "down.com"])
    enrich.push("b.com")
    assert calls == []
    counts = testing.drain(fleet)
    assert (counts.done, counts.failed, counts.retried) == (3, 1, 1)
    assert sorted(calls) == ["a.com", "b.com", "down.com", "gone.com"]
    assert testing.drain(fleet).done == 0


def test_drain_inside_a_running_loop() -> None:
    async def app() -> int:
        crawl.push(["a.com"])
        return testing.drain(fleet).done

    assert asyncio.run(app()) == 2


def test_drain_stops_after_max_tasks() -> None:
    enrich.push_many([(f"{n}.com",) for n in range(10)])
    assert testing.drain(fleet, max_tasks=4).done == 4
    assert len(calls) == 4
    assert testing.drain(fleet).done == 6
