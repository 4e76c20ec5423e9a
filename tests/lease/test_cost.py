"""What a lock costs in requests, on every kind of store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from lease.world import TTL_S, Process, World, won
from limpet.errors import Held
from limpet.keys import lock_key
from limpet.lease import Lock, VersionWatch
from limpet.lease.decide import look_interval_s
from limpet.runtime import system
from limpet.store import DirectoryStore, MemoryStore, MeteredStore
from support.servers.process import Bucket


@pytest.fixture(params=["memory", "directory", "seaweedfs"])
def meter(request: pytest.FixtureRequest, tmp_path: Path) -> MeteredStore:
    """A metered store that several `VersionWatch` may share as if they were processes."""
    if request.param == "memory":
        return MeteredStore(MemoryStore())
    if request.param == "directory":
        return MeteredStore(DirectoryStore(tmp_path))
    from limpet.store.cloud import CloudStore

    bucket: Bucket = request.getfixturevalue("seaweedfs")
    return MeteredStore(CloudStore(bucket.at(f"lease-cost-{uuid4().hex}"), options=dict(bucket.options)))


def lock_of(meter: MeteredStore, sightings: VersionWatch, *, look_first: bool = False) -> Lock:
    return Lock(meter, lock_key("x"), "x", 60.0, system(), sightings, look_first=look_first)


def requests(meter: MeteredStore, act: Callable[[], object]) -> dict[str, int]:
    with meter.measure() as cost:
        act()
    return cost.requests


def test_acquire_renew_release(meter: MeteredStore) -> None:
    known = VersionWatch(system())
    lock = lock_of(meter, known)
    with meter.measure() as first:
        lease = won(lock.try_acquire())
    assert first.requests == {"put": 1}
    assert requests(meter, lease.renew) == {"put": 1}
    assert requests(meter, lease.renew) == {"put": 1}
    assert requests(meter, lease.release) == {"put": 1}
    with meter.measure() as again:
        lease = won(lock_of(meter, known).try_acquire())
    assert again.requests == {"get": 1, "put": 1}, "free, and known to this process"
    lease.release()
    with meter.measure() as look_first:
        lease = won(lock_of(meter, VersionWatch(system()), look_first=True).try_acquire())
    assert look_first.requests == {"get": 1, "put": 1}, "free, and looked at first"
    lease.release()
    with meter.measure() as unknown:
        lease = won(lock_of(meter, VersionWatch(system())).try_acquire())
    assert unknown.requests == {"put": 2, "get": 1}, "free, but this process thought it new: one refused put more"
    assert unknown.refused == 1
    lease.release()


def test_a_held_lock_is_one_look(meter: MeteredStore) -> None:
    won(lock_of(meter, VersionWatch(system())).try_acquire())
    contender = lock_of(meter, VersionWatch(system()), look_first=True)
    for _ in range(3):
        with meter.measure() as cost:
            assert isinstance(contender.try_acquire(), Held)
        assert cost.requests == {"get": 1}


def test_a_whole_hold(meter: MeteredStore) -> None:
    def hold() -> None:
        with lock_of(meter, VersionWatch(system())).hold():
            pass

    assert requests(meter, hold) == {"put": 2}


def test_peek_and_break(meter: MeteredStore) -> None:
    lock = lock_of(meter, VersionWatch(system()))
    won(lock.try_acquire())
    assert requests(meter, lock.peek) == {"get": 1}
    assert requests(meter, lock.break_) == {"get": 1, "put": 1}


# ---- taking over, on a clock moved by hand ----

PROBE = {"put": 1, "head": 1}
LOOK_S = look_interval_s(TTL_S)


def plus(*costs: dict[str, int]) -> dict[str, int]:
    total: dict[str, int] = {}
    for cost in costs:
        for verb, count in cost.items():
            total[verb] = total.get(verb, 0) + count
    return total


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
