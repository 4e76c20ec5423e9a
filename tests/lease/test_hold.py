"""`with lock.hold()`: kept for the block, given back after it, and honest about a loss."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lease.world import TTL_S, World, won
from limpet.kernel.errors import Held, LeaseLost
from limpet.kernel.keys import lock_key
from limpet.kernel.lease import Lock, State, VersionWatch
from limpet.kernel.runtime import system
from limpet.kernel.store import MemoryStore
from support.stores import lost_request, unavailable


class Boom(Exception):
    """Something in the block."""


def test_the_lock_is_kept_for_the_block_and_freed_after_it(world: World) -> None:
    with world.process("a").lock().hold() as lease:
        world.time.sleep(10 * TTL_S)
        lease.check()
        assert world.facts() == (State.HELD, 1, "a")
    assert world.facts() == (State.FREE, 1, "a")
    assert lease.lost
    world.time.sleep(10 * TTL_S)
    assert world.facts() == (State.FREE, 1, "a"), "the renewing has ended"


def test_a_lock_that_is_held_is_not_entered(world: World) -> None:
    won(world.process("a").lock().try_acquire())
    with pytest.raises(Held), world.process("b").lock().hold(wait_s=0):
        pytest.fail("entered")


def test_an_error_in_the_block_passes_and_the_lock_is_freed(world: World) -> None:
    with pytest.raises(Boom), world.process("a").lock().hold():
        raise Boom
    assert world.facts() == (State.FREE, 1, "a")


@pytest.mark.parametrize("fault", [unavailable, lost_request])
def test_a_release_that_fails_is_left_to_the_ttl(world: World, fault: Any) -> None:
    a = world.process("a")
    with a.lock().hold():
        a.store.puts.extend([fault] * 3)
    assert world.facts() == (State.HELD, 1, "a")


def cut_off(world: World, process: Any) -> None:
    process.store.puts.extend([unavailable] * 100)
    world.time.sleep(TTL_S + 1)
    process.store.puts.clear()


def test_a_loss_is_told_at_the_end_of_the_block(world: World) -> None:
    a = world.process("a")
    told: list[str] = []

    def block() -> None:
        with a.lock().hold(on_lost=lambda: told.append("lost")) as lease:
            cut_off(world, a)
            assert lease.lost
            with pytest.raises(LeaseLost):
                lease.check()

    with pytest.raises(LeaseLost):
        block()
    assert told == ["lost"]


def test_an_error_in_the_block_comes_before_the_loss(world: World) -> None:
    a = world.process("a")

    def block() -> None:
        with a.lock().hold():
            cut_off(world, a)
            raise Boom

    with pytest.raises(Boom):
        block()


def test_a_lost_lock_is_not_freed_from_its_next_holder(world: World) -> None:
    a, b = world.process("a"), world.process("b")

    def block() -> None:
        with a.lock().hold():
            cut_off(world, a)
            assert b.lock().acquire(wait_s=60).token == 2

    with pytest.raises(LeaseLost):
        block()
    assert world.facts() == (State.HELD, 2, "b")


def test_a_hung_block_loses_its_lock(world: World) -> None:
    with pytest.raises(LeaseLost), world.process("a").lock().hold(stall_s=20):
        world.time.sleep(200)


def test_a_block_may_give_its_lock_back_early(world: World) -> None:
    with world.process("a").lock().hold() as lease:
        lease.release()
        assert won(world.process("b").lock().try_acquire()).token == 2
    assert world.facts() == (State.HELD, 2, "b")


# ---- with real threads and the real clock ----


def real_lock(store: MemoryStore, ttl_s: float = 60.0) -> Lock:
    return Lock(store, lock_key("real"), "real", ttl_s, system(), VersionWatch(system()))


def test_the_thread_renews(poll: Callable[[Callable[[], bool]], None]) -> None:
    store = MemoryStore()
    with real_lock(store, ttl_s=1.0).hold():
        first = store.head(lock_key("real")).version
        poll(lambda: store.head(lock_key("real")).version != first)
    assert not [thread for thread in threading.enumerate() if thread.name == "limpet-renewer-real"]


def test_the_thread_tells_of_a_loss() -> None:
    store = MemoryStore()
    told = threading.Event()

    def block() -> None:
        with real_lock(store, ttl_s=1.0).hold(on_lost=told.set) as lease:
            real_lock(store).break_()
            assert told.wait(30)
            assert lease.lost

    with pytest.raises(LeaseLost):
        block()


def test_threads_exclude_each_other() -> None:
    store = MemoryStore()
    inside: list[int] = []
    tokens: list[int] = []

    def work(n: int) -> None:
        for _ in range(2):
            with real_lock(store).hold() as lease:
                assert inside == []
                inside.append(n)
                tokens.append(lease.token)
                assert inside.pop() == n

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, n) for n in range(4)]:
            done.result(60)
    assert tokens == [*range(1, 9)]
