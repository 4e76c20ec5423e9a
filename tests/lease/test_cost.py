"""What taking over a lock and keeping it cost in requests, on a clock moved by hand. The rest: tests/costs.toml."""

from __future__ import annotations

from collections.abc import Callable

from lease.world import TTL_S, Process, World, won
from limpet.kernel.lease.decide import look_interval_s
from support.costs import plus, requests

PROBE = {"put": 1, "head": 1}
LOOK_S = look_interval_s(TTL_S)


def cost_of(process: Process, act: Callable[[], object]) -> dict[str, int]:
    return requests(process.store, act)


def test_the_clock_is_probed_only_to_take_over(world: World) -> None:
    won(world.process("a").lock().try_acquire())
    world.time.sleep(600)
    b = world.process("b")
    lock = b.lock(look_first=True)
    assert cost_of(b, lock.try_acquire) == {"get": 1}
    world.time.sleep(LOOK_S - 1)
    assert cost_of(b, lock.try_acquire) == {"get": 1}
    world.time.sleep(1)
    assert cost_of(b, lambda: won(lock.try_acquire())) == plus({"get": 1, "put": 1}, PROBE)


def test_the_clock_is_probed_once_for_each_version_seen(world: World) -> None:
    """Watched long enough but not expired yet: one probe, and its reading goes on by itself."""
    won(world.process("a").lock().try_acquire())
    b = world.process("b")
    lock = b.lock(look_first=True)
    with b.store.measure() as cost:
        lease = lock.acquire()
    assert lease.token == 2
    assert cost.requests["head"] == 1
    assert cost.requests["put"] == 2, "the probe and the takeover"


def test_a_reading_that_is_young_enough_spares_the_probe(world: World) -> None:
    won(world.process("a").lock().try_acquire())
    world.time.sleep(600)
    b = world.process("b")
    lock = b.lock(look_first=True)
    lock.try_acquire()
    world.time.sleep(LOOK_S)
    b.store.now(max_age_s=0)
    assert cost_of(b, lambda: won(lock.try_acquire())) == {"get": 1, "put": 1}


def test_a_lock_watched_for_its_whole_ttl_needs_no_probe(world: World) -> None:
    won(world.process("a").lock().try_acquire())
    b = world.process("b")
    lock = b.lock(look_first=True)
    lock.try_acquire()
    world.time.sleep(TTL_S + 1)
    assert cost_of(b, lambda: won(lock.try_acquire())) == {"get": 1, "put": 1}


def test_waiting_for_the_living_never_probes(world: World) -> None:
    lease = won(world.process("a").lock().try_acquire())
    for n in range(1, 40):
        world.time.at(TTL_S / 3 * n, lease.renew)
    world.time.at(TTL_S / 3 * 39 + 1, lease.release)
    b = world.process("b")
    with b.store.measure() as cost:
        b.lock(look_first=True).acquire()
    assert cost.requests["put"] == 1
    assert "head" not in cost.requests


def test_keeping_a_lock_is_three_puts_a_ttl(world: World) -> None:
    a = world.process("a")

    def hold() -> None:
        with a.lock().hold():
            world.time.sleep(10 * TTL_S + 1)

    assert cost_of(a, hold) == {"put": 32}
