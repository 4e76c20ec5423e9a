"""The simulated world itself: one seed decides everything, and the dead stay dead."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from limpet.kernel.errors import LimpetError
from limpet.kernel.keys import Key
from limpet.kernel.store import Absent
from sim import SCENARIOS
from sim.actors import draw
from sim.bucket import Bucket, SimStore
from sim.world import SimRuntime, World

CODE = """
from sim import SCENARIOS
print([run(seed)[0].trace_hash() for run in SCENARIOS.values() for seed in range(8)])
"""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_seed_gives_the_same_trace(scenario: str) -> None:
    run = SCENARIOS[scenario]
    hashes = [[run(seed)[0].trace_hash() for seed in range(20)] for _ in range(2)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) == 20


def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    traces = {
        subprocess.run(
            [sys.executable, "-c", CODE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(traces) == 1


def test_muting_a_fault_leaves_the_others_where_they_are() -> None:
    run = SCENARIOS["kernel"]
    world, _ = run(5)
    first, *others = world.faults
    again, _ = run(5, muted=frozenset([first]))
    assert first not in again.faults
    assert set(others) & set(again.faults)


def _store(world: World, name: str) -> tuple[SimStore, Bucket]:
    plan = draw(world.seed)
    bucket = Bucket(world, plan)
    world.healed = True
    return SimStore(bucket, SimRuntime(world, world.start(name))), bucket


def test_the_clean_up_of_a_killed_process_has_no_effect() -> None:
    world = World(1)
    store, bucket = _store(world, "victim")
    process = world.processes[0]
    reached: list[str] = []

    def work() -> None:
        try:
            store.put(Key("locks/user/a.lock"), b'{"seq":1,"state":"held"}', when=Absent())
            world.pause(100)
        finally:
            reached.append("finally")
            store.delete(Key("locks/user/a.lock"))

    world.spawn(process, work)
    world.run(until_s=10, done=lambda: False)
    assert list(bucket.objects) == ["locks/user/a.lock"]
    world.kill(process)
    world.close()
    assert reached == ["finally"]
    assert list(bucket.objects) == ["locks/user/a.lock"]


def test_a_paused_process_does_nothing_and_its_rising_clock_goes_on() -> None:
    world = World(2)
    process = world.start("sleeper")
    runtime = SimRuntime(world, process)
    woke: list[float] = []

    def work() -> None:
        before_s = runtime.elapsed_s()
        process.paused_until_s = 50
        runtime.sleep(1)
        woke.append(runtime.elapsed_s() - before_s)

    world.spawn(process, work)
    world.run(until_s=100, done=lambda: False)
    world.close()
    assert woke == [50]


def test_an_error_that_nobody_expects_ends_the_run() -> None:
    world = World(3)

    def work() -> None:
        raise LimpetError("boom")

    world.spawn(world.start("p"), work)
    world.run(until_s=1, done=lambda: False)
    assert isinstance(world.failure, LimpetError)


def test_fan_out_interleaves_and_keeps_the_order_of_its_results() -> None:
    world = World(4)
    process = world.start("p")
    runtime = SimRuntime(world, process)
    order: list[int] = []
    results: list[list[int]] = []

    def one(item: int) -> int:
        runtime.sleep(10 - item)
        order.append(item)
        return item * 2

    world.spawn(process, lambda: results.append(runtime.fan_out(one, range(5))))
    world.run(until_s=100, done=lambda: False)
    assert results == [[0, 2, 4, 6, 8]]
    assert order == [4, 3, 2, 1, 0]
