"""A cycle costs what changed, on both sides: requests and files touched, with 10,000 old tasks lying around."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.kernel.runtime import system
from limpet.kernel.store import DirectoryStore, MeteredStore
from limpet.queue import BucketQueue
from limpet.queue.sync import Cycle, Outbox, Supervisor
from support.queue import Network
from support.sync import Fleet, Node, at

OLD = 10_000


@pytest.fixture(scope="module")
def old_fleet() -> Fleet:
    """A bucket and two nodes with 5,000 tasks that wait and 5,000 that ended long ago."""
    fleet = Fleet()
    a, b = fleet.nodes("a", "b")
    a.push("model")
    task = a.memory.get(at("pending/model/task.json")).data
    a.work()
    receipt = a.memory.get(at("completed/model.json")).data
    for node in (a, b, a):
        node.sync()
    for place in (fleet.memory, a.memory, b.memory):
        for n in range(OLD // 2):
            place.put(at(f"pending/old{n}/task.json"), task.replace(b"model", f"old{n}".encode()))
            place.put(at(f"completed/older{n}.json"), receipt)
    fleet.pair = (a, b)  # type: ignore[attr-defined]
    return fleet


@pytest.fixture
def pair(old_fleet: Fleet) -> Iterator[tuple[Node, Node]]:
    a, b = old_fleet.pair  # type: ignore[attr-defined]
    for node in (a, b, a, b):
        node.sync()
    yield a, b
    for node in (a, b, a, b):
        node.sync()


def _cost(node: Node, what: str) -> tuple[Cycle, dict[str, int], dict[str, int]]:
    node.disk.log.clear()
    with node.disk.measure() as here, node.network.measure() as there:
        cycle = getattr(node, what)()
    return cycle, here.requests, there.requests


def _touched(store: Network) -> set[str]:
    return {line.split()[1] for line in store.log}


def test_an_idle_cycle_is_one_list_each(pair: tuple[Node, Node]) -> None:
    for node in pair:
        assert _cost(node, "up")[1:] == ({"list": 1}, {})
        assert _cost(node, "down")[1:] == ({}, {"list": 1})


@pytest.mark.parametrize("count", [1, 10, 60])
def test_pushes_cost_as_many_as_there_are(pair: tuple[Node, Node], count: int) -> None:
    a, b = pair
    ids = [f"new{count}.{n}" for n in range(count)]
    a.push(*ids)
    cycle, here, there = _cost(a, "up")
    assert cycle.pushes == count
    assert there == {"put": count + 1, "head": 2 * count}
    assert here == {"list": 1, "get": 2 * count + 1, "head": 2 * count, "delete": count, "put": 1}
    assert len(_touched(a.disk)) <= 4 * count + 2
    cycle, here, there = _cost(b, "down")
    assert cycle.pushes == count
    assert there == {"list": 1, "get": 1}
    assert here == {"get": count + 1, "head": 4 * count, "put": count + 1}
    assert len(_touched(b.disk)) <= 4 * count + 2
    for id_ in ids:
        a.queue.cancel(id_)


@pytest.mark.parametrize("count", [1, 10, 60])
def test_ends_cost_as_many_as_there_are(pair: tuple[Node, Node], count: int) -> None:
    a, b = pair
    ids = [f"over{count}.{n}" for n in range(count)]
    a.push(*ids)
    a.sync()
    b.sync()
    for id_ in ids:
        a.queue.cancel(id_)
    cycle, here, there = _cost(a, "up")
    assert cycle.ends == count
    assert there == {"put": count + 1, "delete": 2 * count}
    assert here == {"list": 1, "get": 2 * count + 1, "head": count, "delete": count, "put": 1}
    cycle, here, there = _cost(b, "down")
    assert cycle.ends == count
    assert there == {"list": 1, "get": 1}
    assert here == {"get": count + 1, "head": count, "put": count + 1, "delete": 3 * count}


def test_what_is_pushed_and_ended_between_two_cycles_costs_its_end_only(pair: tuple[Node, Node]) -> None:
    a, _ = pair
    for n in range(20):
        a.push(f"quick{n}")
        a.queue.cancel(f"quick{n}")
    cycle, _, there = _cost(a, "up")
    assert (cycle.pushes, cycle.ends) == (20, 20)
    assert there == {"put": 21, "delete": 40}


def test_a_held_lease_costs_one_put_a_cycle(pair: tuple[Node, Node]) -> None:
    a, _ = pair
    a.push("long")
    a.up()
    for candidate in [*a.memory.list("queues/q/pending")]:
        if "/old" in candidate.key:
            a.memory.delete(candidate.key)
    claim = a.take()
    a.fleet.pass_by(40)
    _, _, first = _cost(a, "up")
    assert first == {"get": 1, "head": 1, "put": 2}
    _, here, again = _cost(a, "up")
    assert again == {"put": 2}
    assert here == {"list": 1, "get": 2, "put": 1}
    with claim:
        for task in claim:
            task.done()


def test_batches_travel_as_one_object(pair: tuple[Node, Node]) -> None:
    a, b = pair
    a.queue.push_many([{"n": n} for n in range(100)], batch=100)
    _, _, there = _cost(a, "up")
    assert there == {"put": 2, "head": 2}
    assert _cost(b, "down")[2] == {"list": 1, "get": 1}


def test_files_on_a_real_disk(tmp_path: Path) -> None:
    """The same on directories: an idle cycle opens no file of any queue."""
    runtime = system()
    disk, bucket = (
        MeteredStore(DirectoryStore(tmp_path / name, durability="os", runtime=runtime)) for name in ("n", "r")
    )
    supervisor = Supervisor(disk, bucket, runtime, node="n")
    queue = BucketQueue(disk, "q", runtime, journal=Outbox(disk, runtime))
    for n in range(50):
        queue.push({}, id=f"t{n}")
    supervisor.up()
    supervisor.down()
    with disk.measure() as here, bucket.measure() as there:
        assert supervisor.up().quiet
        assert supervisor.down().quiet
    assert (here.requests, there.requests) == ({"list": 1}, {"list": 1})
    assert len([*bucket.list("queues/q/pending")]) == 50
