"""What each operation costs in requests, on every kind of store, and how many of them follow one another."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from limpet.kernel.runtime import system
from limpet.kernel.store import DirectoryStore, MemoryStore, MeteredStore
from support.clock import Time
from support.costs import COSTS
from support.operations import OPERATIONS, TRIP_S, ParallelRuntime, Place, TimedStore
from support.servers.process import Bucket


def test_every_operation_has_a_cost() -> None:
    assert [*COSTS] == [*OPERATIONS]


@pytest.mark.parametrize("name", OPERATIONS)
def test_requests_and_round_trips_in_a_bucket(name: str) -> None:
    """On a hand-moved clock, on which each request takes the same time."""
    time = Time()
    memory = MemoryStore(ParallelRuntime(time, "store"))
    memory.far, memory.at_once = True, MeteredStore.at_once
    mine, other = ParallelRuntime(time, "p1"), ParallelRuntime(time, "p2")
    store = TimedStore(memory, runtime=mine)
    place = Place(store, mine, memory, other)
    act = OPERATIONS[name](place)
    time.sleep(2)  # so that the bell may ring again
    begun_s = time.now_s
    with store.measure() as cost:
        act()
        trips = round((time.now_s - begun_s) / TRIP_S)
        place.settle()
    expected = {key: number for key, number in COSTS[name].items() if key != "bell"}
    assert cost.requests | {"trips": trips} == expected


@pytest.fixture(params=["directory", "seaweedfs"])
def meter(request: pytest.FixtureRequest, tmp_path: Path) -> MeteredStore:
    """A metered store of each real kind."""
    if request.param == "directory":
        return MeteredStore(DirectoryStore(tmp_path))
    from limpet.kernel.store.cloud import CloudStore

    bucket: Bucket = request.getfixturevalue("seaweedfs")
    return MeteredStore(CloudStore(bucket.at(f"costs-{uuid4().hex}"), options=dict(bucket.options)))


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name.startswith(("lock", "queue"))])
def test_requests_on_real_stores(name: str, meter: MeteredStore) -> None:
    place = Place(meter, system(), meter.inner, system())
    act = OPERATIONS[name](place)
    with meter.measure() as cost:
        act()
        place.settle()
    requests = {key: number for key, number in COSTS[name].items() if key not in ("bell", "trips")}
    silent = requests | {"put": requests.get("put", 0) - COSTS[name].get("bell", 0)}
    expected = [requests, silent] if meter.far else [silent]  # in a bucket the bell was rung a moment ago, or was not
    assert cost.requests in [{verb: number for verb, number in each.items() if number} for each in expected]
