"""A limit on how many claims there are at once, over all processes."""

from __future__ import annotations

import pytest

from limpet.kernel.errors import Unavailable
from limpet.queue.claim import EntryClaim
from support.queue import LATER_S, TTL_S, Process, World, held, raises, rounds


def fill(world: World, number: int) -> None:
    process = world.process("pusher")
    for n in range(number):
        process.queue.push({"n": n})


def take_all(processes: list[Process], rounds_: int = 5) -> list[EntryClaim]:
    """What the processes can claim, in turns."""
    claims = []
    for _ in range(rounds_):
        for process in processes:
            claim = process.queue.claim()
            if claim:
                claims.append(held(claim))
    return claims


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_claims_than_slots(world: World, limit: int) -> None:
    fill(world, 20)
    processes = [world.process(concurrency=limit, timeout_s=None) for _ in range(4)]
    claims = take_all(processes)
    assert len(claims) == limit
    for _ in range(3):
        world.time.sleep(TTL_S)
        assert take_all(processes) == []
    for claim in claims:
        claim.hand_back()
    assert len(take_all(processes)) == limit


def test_a_free_slot_is_found(world: World) -> None:
    """A claim is refused only if all slots are taken."""
    fill(world, 10)
    one, two = world.process(concurrency=5), world.process(concurrency=5)
    for _ in range(4):
        one.take(within_s=0)
    assert two.queue.claim()
    assert not two.queue.claim()


def test_a_batch_is_one_claim(world: World) -> None:
    process = world.process(concurrency=1)
    process.queue.push_many(rounds(5))
    process.queue.push_many(rounds(5))
    claim = process.take()
    assert len([*claim]) == 5
    assert not process.queue.claim()


def test_an_idle_slot_is_used_again_for_nothing(world: World) -> None:
    fill(world, 6)
    process = world.process(concurrency=1)
    for _ in range(5):
        with process.take() as claim:
            for task in claim:
                task.done()
    slots = [line for line in process.store.log if "slots/" in line]
    assert slots == ["get slots/0.lock", "put slots/0.lock"]


def test_an_idle_slot_is_given_back(world: World) -> None:
    fill(world, 2)
    one, two = world.process(concurrency=1), world.process(concurrency=1)
    with one.take() as claim:
        for task in claim:
            task.done()
    assert not two.queue.claim(), "one may go on at once"
    assert two.queue.claim(wait_s=3 * TTL_S)
    assert one.cost(lambda: world.time.sleep(20 * TTL_S)) == {}, "what was given back costs nothing"
    assert not one.queue._renewer._due_s


def test_the_slot_of_a_dead_process_is_taken_over(world: World) -> None:
    fill(world, 2)
    world.dead(concurrency=1)
    other = world.process(concurrency=1)
    assert not other.queue.claim(wait_s=TTL_S / 2)
    assert other.take(within_s=LATER_S)


def test_a_slot_is_not_lost_with_an_error(world: World) -> None:
    fill(world, 3)
    process = world.process(concurrency=1)
    for verb, ending in (("get", "task.json"), ("put", "/lease.json"), ("get", "control.json")):
        process.store.before(verb, ending, raises(Unavailable("away")))
        with pytest.raises(Unavailable):
            process.queue.claim()
        world.time.sleep(31)
    assert process.queue.claim(wait_s=60)
    assert not process.queue.claim()


def test_nothing_to_claim_takes_no_slot(world: World) -> None:
    process = world.process(concurrency=1)
    assert not process.queue.claim(wait_s=100)
    assert world.names() == []


def test_a_claim_that_finds_nothing_gives_its_slot_back(world: World) -> None:
    """All that the page shows is held by others."""
    fill(world, 1)
    world.process(timeout_s=None).take()
    one, two = world.process(concurrency=1), world.process(concurrency=1)
    assert not one.queue.claim(wait_s=10)
    world.process().queue.push({})
    assert one.queue.claim(wait_s=60)
    assert not two.queue.claim(wait_s=10)


def test_slots_are_locks_that_outlive_a_sweep(world: World) -> None:
    fill(world, 1)
    process = world.process(concurrency=2, timeout_s=None)
    process.take()
    before = [key for key in world.names() if key.startswith("slots/")]
    assert len(before) == 1
    world.time.sleep(10 * TTL_S)
    process.queue.sweep()
    process.queue.purge()
    assert [key for key in world.names() if key.startswith("slots/")] == before
