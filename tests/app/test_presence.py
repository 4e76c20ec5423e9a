"""Presence objects: when a worker process writes, renews and removes its own, who sees it, and what it costs."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

import limpet
from limpet.app import Fleet
from limpet.app.fleet import is_presence_wanted
from limpet.app.presence import GONE_S, KEPT_S, QUEUES_MAX, FleetWorkers, PresenceWriter, WorkerPresence, sweep, workers
from limpet.app.record import fresh
from limpet.kernel import keys
from limpet.kernel.errors import Invalid, LimpetError, Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.store import MemoryStore, MeteredStore, ScopedStore, Store
from limpet.kernel.store.probe import Findings
from limpet.queue.cost import idle_requests
from support.clock import QueueRuntime, Time
from support.costs import requests
from support.queue import Network, raises

HOUR_S = 3600.0


class Place:
    """A bucket, a clock, and processes on it."""

    def __init__(self) -> None:
        self.time = Time()
        self.memory = MemoryStore(QueueRuntime(self.time, "store"))

    def writer(self, owner: str, *queues: str, store: Store | None = None) -> tuple[PresenceWriter, Network]:
        runtime = QueueRuntime(self.time, owner)
        network = Network(runtime, self.memory)
        return PresenceWriter(store or network, runtime, queues=queues, threads=4), network

    def seen(self) -> FleetWorkers:
        runtime = QueueRuntime(self.time, "looker")
        probe = Findings(conditional=True, etag_style="quoted", at="", by="")
        return workers(Fleet(MeteredStore(self.memory, runtime=runtime), "memory://x", fresh(probe), runtime))


@pytest.fixture
def place() -> Place:
    return Place()


def test_a_process_shows_itself_renews_and_goes(place: Place) -> None:
    writer, network = place.writer("w1", "enrich", "mail")
    began = network._runtime.wall()
    writer.start()
    place.time.sleep(0.9)
    assert network.log == [], "a process that ends within a second costs nothing"
    place.time.sleep(0.2)
    [found] = place.seen().workers
    assert (found.id, found.host, found.queues, found.threads) == ("w1", "host", ("enrich", "mail"), 4)
    assert (found.version, found.since, found.gone) == (limpet.__version__, began, False)
    place.time.sleep(HOUR_S)
    [found] = place.seen().alive
    assert found.since == began
    assert found.renewed_at > began + timedelta(seconds=HOUR_S - 130)
    assert found.renewed_s <= 120
    writer.stop()
    assert place.seen().workers == []


def test_a_process_that_ends_at_once_asks_nothing(place: Place) -> None:
    writer, network = place.writer("w1", "q")
    writer.start()
    writer.stop()
    place.time.sleep(10)
    assert network.log == []


def test_presence_costs_thirty_puts_an_hour(place: Place) -> None:
    """What `limpet queue cost` adds to the idle price; the store counts it."""
    writer, network = place.writer("w1", "q")
    writer.start()
    place.time.sleep(2)
    assert network.log == ["put workers/w1.json", "list workers"]
    network.log.clear()
    place.time.sleep(HOUR_S)
    assert network.log == ["put workers/w1.json"] * idle_requests(2.0, presence=True)["put"]
    place.time.sleep(24 * HOUR_S)
    assert network.log.count("list workers") == 1, "it sweeps once a day"
    network.log.clear()
    writer.stop()
    assert network.log == ["delete workers/w1.json"]


def test_what_a_look_costs() -> None:
    fleet = limpet.open("memory://").check()
    for n in range(3):
        _put(fleet.store, f"w{n}")
    assert requests(fleet, lambda: workers(fleet)) == {"list": 1, "get": 3}


def test_a_killed_process_is_gone_after_five_minutes_and_swept_after_a_day(place: Place) -> None:
    writer, network = place.writer("dead", "q")
    writer.start()
    place.time.sleep(5)
    assert isinstance(network._runtime, QueueRuntime)
    network._runtime.frozen = True  # killed
    place.time.sleep(GONE_S - 10)
    assert [each.gone for each in place.seen().workers] == [False]
    place.time.sleep(20)
    found = place.seen()
    assert ([each.id for each in found.workers], found.alive) == (["dead"], [])
    other, _ = place.writer("other", "q")
    other.start()
    place.time.sleep(5)
    assert [(each.id, each.gone) for each in place.seen().workers] == [("other", False), ("dead", True)]
    place.time.sleep(KEPT_S)
    assert [each.id for each in place.seen().workers] == ["other"]
    other.stop()


def test_what_a_reaped_process_left_behind_goes_with_the_next_one(place: Place) -> None:
    """Its parent knows at once that it is dead, and need not wait for five minutes."""
    writer, network = place.writer("dead", "q")
    writer.start()
    place.time.sleep(5)
    assert isinstance(network._runtime, QueueRuntime)
    network._runtime.frozen = True  # killed
    runtime = QueueRuntime(place.time, "next")
    after = PresenceWriter(Network(runtime, place.memory), runtime, queues=["q"], threads=4, reaped=["dead"])
    after.start()
    place.time.sleep(2)
    assert [each.id for each in place.seen().workers] == ["next"]
    after.stop()


def test_an_outage_is_bridged_and_a_refusal_is_told_once(place: Place) -> None:
    writer, network = place.writer("w1", "q")
    network.before("put", "w1.json", raises(Unavailable("away")))
    writer.start()
    place.time.sleep(5)
    assert place.seen().workers == []
    place.time.sleep(120)
    assert [each.id for each in place.seen().workers] == ["w1"]
    writer.stop()
    refusals: list[LimpetError] = []
    runtime = QueueRuntime(place.time, "w2")
    scoped = ScopedStore(place.memory, role="pusher", runtime=runtime)
    writer = PresenceWriter(scoped, runtime, queues=["q"], threads=1, on_refused=refusals.append)
    writer.start()
    place.time.sleep(HOUR_S)
    writer.stop()
    assert [str(error) for error in refusals] == ["the role pusher may not put workers/w2.json"]


def test_the_role_of_a_worker_is_enough(place: Place) -> None:
    runtime = QueueRuntime(place.time, "w1")
    scoped = ScopedStore(place.memory, role="worker", queues=["q"], runtime=runtime)
    refusals: list[LimpetError] = []
    writer = PresenceWriter(scoped, runtime, queues=["q"], threads=1, on_refused=refusals.append)
    writer.start()
    place.time.sleep(10)
    assert [each.id for each in place.seen().alive] == ["w1"]
    writer.stop()
    assert (place.seen().workers, refusals) == ([], [])


def test_a_wrong_clock_shows_nobody_as_gone(place: Place) -> None:
    """Ages are by the store's stamps: a worker whose clock is a day behind is alive."""
    runtime = QueueRuntime(place.time, "late")
    runtime.wall_offset_s = -86400.0
    writer = PresenceWriter(Network(runtime, place.memory), runtime, queues=["q"], threads=1)
    writer.start()
    place.time.sleep(60)
    assert [each.gone for each in place.seen().workers] == [False]
    writer.stop()


def test_unreadable_and_foreign_objects_hide_nobody() -> None:
    fleet = limpet.open("memory://").check()
    _put(fleet.store, "fine")
    fleet.store.put(keys.worker_key("bad"), b"{")
    fleet.store.put(keys.worker_key("many"), msgspec.json.encode({"queues": ["q"] * (QUEUES_MAX + 1)}))
    fleet.store.put(Key("workers/folder/x.json"), b"{}")
    found = workers(fleet)
    assert [each.id for each in found.workers] == ["fine"]
    assert sorted(found.unreadable) == ["workers/bad.json", "workers/many.json"]
    found = workers(fleet, limit=1)
    assert (len(found.workers) + len(found.unreadable), found.more) == (1, True)
    assert sweep(fleet.store, fleet.runtime) == 0


def _put(store: Store, id_: str) -> None:
    now = limpet.open("memory://").runtime.wall()
    record = WorkerPresence(host="h", pid=1, version="1", queues=["q"], threads=1, since=now, renewed_at=now)
    store.put(keys.worker_key(id_), msgspec.json.encode(record))


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle() -> None: ...

    assert limpet.open("memory://").task("q")(handle).job.presence
    assert not limpet.open("memory://", presence=False).task("q")(handle).job.presence
    assert is_presence_wanted()
    monkeypatch.setenv("LIMPET_PRESENCE", "0")
    assert not is_presence_wanted()
    monkeypatch.setenv("LIMPET_PRESENCE", "no")
    with pytest.raises(Invalid, match="LIMPET_PRESENCE is 'no'"):
        is_presence_wanted()
