"""What acts on a queue cost in requests, as the docstrings and the guarantees say. Single acts: tests/costs.toml."""

from __future__ import annotations

import pytest

from limpet.kernel.keys import QueueKeys
from limpet.kernel.runtime import system
from limpet.kernel.store import MemoryStore, MeteredStore
from limpet.queue import BucketQueue, Policy
from support.costs import plus
from support.queue import NAME, TTL_S, World, held, rounds

CLAIM = {"put": 1, "get": 1}
NAMED = {"head": 2}
PAGE = {"list": 1}
CONTROL = {"get": 1}
"""Whether the queue is paused is asked when there is something to take, and not more often than every 5 s."""


def queue_on(meter: MeteredStore, policy: Policy | None = None) -> BucketQueue:
    return BucketQueue(meter, NAME, system(), policy=policy)


# ---- on the hand-moved clock ----


def test_of_many_claims_from_one_page_only_the_first_pays_for_it(world: World) -> None:
    process = world.process()
    for _ in range(10):
        process.queue.push({})
    process.take()
    for _ in range(9):
        assert process.cost(process.take) == CLAIM


def test_a_retry_is_one_put_and_the_next_attempt_one_put_more(world: World) -> None:
    """Besides: the lease is read once, and its token is above 1, so the receipts are looked for."""
    process = world.process()
    process.queue.push({})
    _, task = process.start()
    assert process.cost(lambda: task.retry(after_s=0)) == {"put": 1}
    claims = []
    assert process.cost(lambda: claims.append(process.take())) == plus(CLAIM, {"list": 1}, {"get": 1}, NAMED)
    assert process.cost(lambda: next(iter(claims[0]))) == {"put": 1}


def test_with_one_attempt_the_first_is_charged_by_a_swap_too(world: World) -> None:
    process = world.process(max_attempts=1)
    process.queue.push({})
    claim = process.take()
    assert process.cost(lambda: next(iter(claim))) == {"put": 1}


def test_handing_back_is_one_put(world: World) -> None:
    process = world.process()
    process.queue.push({})
    assert process.cost(process.take().hand_back) == {"put": 1}


def test_a_claim_that_is_refused_is_one_put_and_one_get(world: World) -> None:
    one, two = world.process(), world.process()
    one.queue.push({})
    two.queue.discovery.list_page()
    two.queue._paused()
    one.take()
    assert two.cost(lambda: two.queue._first_claim()) == {"put": 1, "get": 1}


def test_taking_over_costs_a_look_and_a_swap(world: World) -> None:
    world.process().queue.push({})
    world.dead()
    two = world.process()
    two.queue.claim()
    world.time.sleep(2 * TTL_S)
    two.queue.discovery._drop_ready()
    assert two.cost(lambda: held(two.queue.claim())) == plus(CLAIM, PAGE, CONTROL, NAMED)


def test_cancel(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    waiting = process.cost(lambda: process.queue.cancel("x"))
    assert (waiting["put"], waiting["delete"]) == (2, 2)
    assert sum(waiting.values()) <= 14


@pytest.mark.parametrize("number", [20, 50])
def test_a_batch_of_100_costs_at_most_8_hundredths_of_a_request_a_task(world: World, number: int) -> None:
    """Over its whole life: pushed, listed, claimed, done, removed."""
    process = world.process()

    def live() -> None:
        process.queue.push_many(rounds(100 * number), batch=100)
        while claim := process.queue.claim():
            with claim:
                for task in claim:
                    task.done({"n": 1})

    spent = process.cost(live)
    assert process.queue.stats().completed == 100 * number
    assert sum(spent.values()) / (100 * number) <= 0.08
    assert spent["put"] == 3 * number
    assert spent["delete"] == 2 * number
    assert spent["get"] <= number + 2


def test_a_slow_batch_pays_for_its_heartbeats_only(world: World) -> None:
    """A second a task: five beats at a ttl of 60 s, and a page that grew old."""
    process = world.process(ttl_s=60.0)
    process.queue.push_many(rounds(1000), batch=100)

    def work() -> None:
        while claim := process.queue.claim():
            with claim:
                for task in claim:
                    world.time.sleep(1)
                    task.done()

    spent = process.cost(work)
    assert sum(spent.values()) / 1000 <= 0.15


@pytest.mark.parametrize("waiting", ["nothing", "scheduled", "resting", "held by the living"])
def test_an_idle_worker_makes_at_most_200_requests_an_hour(world: World, waiting: str) -> None:
    other = world.process("other", timeout_s=None)
    if waiting == "scheduled":
        other.queue.push({}, delay_s=100_000)
    elif waiting != "nothing":
        other.queue.push({}, id="x")
        _, task = other.start()
        if waiting == "resting":
            task.retry(after_s=100_000)
    for n in range(3):
        process = world.process(f"idle{n}")
        process.runtime.rng.seed(n)
        limit = 200 if waiting != "held by the living" else 400  # each new version of a lease is read once
        for _ in range(2):
            spent = process.cost(lambda: process.queue.claim(wait_s=3600.0))  # noqa: B023
            assert sum(spent.values()) <= limit, spent


def test_short_waits_cost_no_more_than_a_long_one(world: World) -> None:
    """A loop of claims that each wait ten seconds is an idle worker too."""
    process = world.process()

    def loop() -> None:
        for _ in range(360):
            process.queue.claim(wait_s=10.0)

    assert sum(process.cost(loop).values()) <= 400


# ---- however long the backlog is ----


def backlog(number: int) -> MeteredStore:
    """A bucket in which so many tasks wait: one push, seen under as many names."""
    memory = MemoryStore()
    keys = QueueKeys.of(NAME)
    pushed = BucketQueue(memory, NAME, system()).push({})
    task = memory._objects.pop(keys.tasks(pushed.id, batch=False))
    memory._objects.update((keys.tasks(f"{n:026d}", batch=False), task) for n in range(number))
    return MeteredStore(memory)


def claims_cost(number: int, claims: int = 300) -> float:
    """Requests for a claim and its end, at so long a backlog."""
    meter = backlog(number)
    queue = queue_on(meter)
    with meter.measure() as cost:
        for _ in range(claims):
            with held(queue.claim()) as claim:
                for task in claim:
                    task.done()
    return cost.total() / claims


def test_a_claim_costs_no_more_at_a_million_than_at_a_thousand() -> None:
    assert claims_cost(1_000_000) <= 2 * claims_cost(1_000)
