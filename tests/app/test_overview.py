"""One reading of a fleet: its figures, which of them are lower bounds, and what a watch costs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from uuid import uuid4

import pytest

import limpet
from limpet.app import Fleet
from limpet.app.health import Limits
from limpet.app.overview import OBJECTS_MAX, OverviewWatch, read_overview
from limpet.app.record import fresh
from limpet.kernel.keys import Key
from limpet.kernel.runtime import ulid
from limpet.kernel.store import MemoryStore, MeteredStore
from limpet.kernel.store.api import Stat, Version
from limpet.kernel.store.probe import Findings
from support.clock import EPOCH, ManualRuntime, QueueRuntime, Time
from support.servers.process import Bucket

HOUR_S = 3600.0


class BucketLikeStore(MemoryStore):
    """Memory, but as in a bucket there is no free change token."""

    far = True

    def change_token(self, prefix: str) -> str | None:
        return None


@cache
def entry_name(n: int) -> str:
    """The name of a task that was pushed as number `n`."""
    return ulid(1_770_000_000_000 + n, n)


class HugeStore(BucketLikeStore):
    """A bucket with a million pending tasks in one queue, more than are counted in 39, and some in 960 others. Objects
    exist only while listed."""

    listed = 0
    queues = 1000

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        names = [f"q{n:03}" for n in range(self.queues)]
        if prefix and not "queues/".startswith(f"{prefix}/"):
            names = [name for name in names if prefix.startswith(f"queues/{name}")]
        for name in names:
            if not f"queues/{name}/pending/".startswith(f"{prefix}/" if prefix else ""):
                continue

            def key_of(n: int, name: str = name) -> str:
                return f"queues/{name}/pending/{entry_name(n)}/task.json"

            numbers = range(1_000_000 if name == "q000" else 1500 if name < "q040" else 10)
            for n in numbers[bisect_right(numbers, after or "", key=key_of) :]:
                self.listed += 1
                yield Stat(Key(key_of(n)), 100, Version("1"), EPOCH)

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        return [f"q{n:03}" for n in range(self.queues)] if prefix == "queues" else []


def fleet_on(store: MemoryStore, runtime: ManualRuntime) -> Fleet:
    found = Findings(conditional=True, etag_style="quoted", at="", by="")
    return Fleet(MeteredStore(store, runtime=runtime), "memory://overview", fresh(found), runtime)


@pytest.fixture
def runtime() -> QueueRuntime:
    return QueueRuntime(Time(), "p1")


@pytest.fixture
def fleet(runtime: QueueRuntime) -> Fleet:
    return fleet_on(BucketLikeStore(runtime), runtime)


def watched(watch: OverviewWatch, seconds: float) -> int:
    """Keep a page open for so long; the requests that it took."""
    runtime, meter = watch.fleet.runtime, watch.fleet.meter
    before, until_s = meter.snapshot(), runtime.elapsed_s() + seconds
    while runtime.elapsed_s() < until_s:
        watch.look()
        runtime.sleep(max(0.1, watch.wait_s()))
    return (meter.snapshot() - before).total()


def used(fleet: Fleet) -> None:
    """Put something of everything into a fleet."""
    for queue in ("enrich", "mail", "thumbs"):
        fleet.queue(queue).push_many({"n": n} for n in range(200))
    enrich = fleet.queue("enrich", max_attempts=1)
    with enrich.claim() as claim:
        for task in claim:
            task.fail("ValueError: no")
    enrich.flush()  # a bucket deletes in the background
    fleet.queue("mail").pause()
    fleet.queue("mail").push({"later": 1}, delay_s=600)
    fleet.lock("nightly").acquire()
    orders = fleet.index("orders", {"fields": [{"name": "id", "type": "string"}]}, key="id")
    orders.put_many({"id": f"o{n}"} for n in range(40))
    orders.compile()
    orders.put({"id": "new"})
    with fleet.lead_catalog() as catalog:
        catalog.create_namespace(["sales"], actor="ada")


def test_reading(fleet: Fleet, runtime: QueueRuntime) -> None:
    used(fleet)
    runtime.sleep(90)
    found = read_overview(fleet, Limits(age_s=60, failed=10))
    enrich, mail, thumbs = found.queues
    assert (enrich.queue, enrich.pending, enrich.failed) == ("enrich", 100, 100)
    assert (mail.pending, mail.scheduled, mail.paused) == (200, 1, True)
    assert thumbs.oldest_s is not None
    assert thumbs.oldest_s >= 90
    assert [(each.name, each.state) for each in found.locks.locks] == [("nightly", "overdue")]
    (orders,) = found.indexes
    assert (orders.records, orders.waiting, orders.quarantined, orders.trouble) == (40, 1, 0, "")
    assert len(orders.sizes) == 256
    assert sum(orders.backlog.values()) == 1
    assert found.catalog is not None
    assert (found.catalog.version, found.catalog.namespaces, found.catalog.actor) == (2, 1, "ada")
    rules = [(each.queue, each.rule) for each in found.alerts]
    assert rules == [("enrich", "max-age"), ("enrich", "max-failed"), ("mail", "max-age"), ("thumbs", "max-age")]
    assert (found.alerts[1].value, found.alerts[1].bound) == (100, "exact")
    assert not found.sampled
    assert found.trouble == {}
    assert found.bill is not None
    assert found.bill.free
    assert found.bill.work.dollars > 0
    assert sum(found.rates["enrich"].minutes) == 100


def test_empty_fleet(fleet: Fleet) -> None:
    found = read_overview(fleet)
    assert (found.queues, found.indexes, found.locks.locks, found.alerts) == ([], [], [], [])
    assert found.catalog is not None
    assert found.catalog.version == 0


def test_idle_page_costs_under_200_requests_an_hour(fleet: Fleet) -> None:
    used(fleet)
    watch = OverviewWatch(fleet)
    watch.look()
    first, later = watched(watch, HOUR_S), watched(watch, HOUR_S)
    assert first <= 200
    assert later <= 170


def test_heartbeats_are_no_change(fleet: Fleet, runtime: QueueRuntime) -> None:
    """A holder that renews its lock every 20 s, and nothing else happens."""
    lease = fleet.lock("leader", ttl_s=60).acquire()
    watch = OverviewWatch(fleet)
    watch.look()
    spent, until_s = 0, runtime.elapsed_s() + 3600
    while runtime.elapsed_s() < until_s:
        lease.renew()
        spent += watched(watch, 20.0)
    assert spent <= 200
    lease.renew()
    found = watch.look(now=True)
    assert found.locks.locks[0].state == "held"
    before = watch.versions()["locks"]
    lease.release()
    watch.look(now=True)
    assert watch.versions()["locks"] == before + 1


def test_second_reading_asks_only_for_lists(fleet: Fleet) -> None:
    used(fleet)
    watch = OverviewWatch(fleet)
    watch.look()
    with fleet.meter.measure() as spent:
        watch.look(now=True)
    # what was listed with the same version is not read again; the head of the catalog is not listed
    assert spent.requests == {"list": 1 + 1 + 1 + 1 + 1, "get": 1}


def test_change_is_noticed_at_once_after_another(fleet: Fleet, runtime: QueueRuntime) -> None:
    watch = OverviewWatch(fleet)
    queue = fleet.queue("enrich")
    for n in range(1, 5):
        queue.push({})
        watch.look(now=True)
        before = watch.versions()["queues"]
        queue.push({})
        runtime.sleep(watch.wait_s())
        found = watch.look()
        assert found.queues[0].pending == 2 * n
        assert watch.versions()["queues"] == before + 1


def test_directory_is_watched_without_requests(tmp_path: Path) -> None:
    runtime = QueueRuntime(Time(), "p1")
    fleet = limpet.open(tmp_path, runtime=runtime)
    queue = fleet.queue("enrich")
    queue.push({})
    watch = OverviewWatch(fleet)
    watch.look()
    watched(watch, HOUR_S)
    idle = watched(watch, HOUR_S)
    assert idle <= 170
    queue.push({})
    runtime.sleep(1.0)
    with fleet.meter.measure() as spent:
        found = watch.look()
    assert found.queues[0].pending == 2
    assert spent.requests["list"] == 1 + 4 + 1  # the last one tells whether a worker has come
    claim = queue.claim()  # changes the folder of an entry only
    assert claim
    runtime.sleep(1.0)
    assert watch.look().queues[0].in_flight == 1


def test_a_million_pending_tasks_are_not_listed(runtime: QueueRuntime) -> None:
    store = HugeStore(runtime)
    fleet = fleet_on(store, runtime)
    watch = OverviewWatch(fleet)
    with fleet.meter.measure() as spent:
        found = watch.look()
    assert found.queues[0].pending == OBJECTS_MAX
    assert "pending" in found.queues[0].at_least
    assert found.sampled
    assert len(found.queues) + len(found.uncounted) == 1000
    assert spent.total() <= 8 + 1 + 2 * 32 + 10
    assert store.listed <= 50_000
    for _ in range(40):
        found = watch.look(now=True)
    assert not found.uncounted


def test_many_queues_cost_under_200_requests_an_hour(runtime: QueueRuntime) -> None:
    """Each reading counts other queues in turn: that is no change."""
    store = HugeStore(runtime)
    store.queues = 60
    watch = OverviewWatch(fleet_on(store, runtime))
    while watch.look(now=True).uncounted:
        continue
    assert watched(watch, HOUR_S) <= 200
    before = watch.versions()["queues"]
    assert watched(watch, HOUR_S) <= 200
    assert watch.versions()["queues"] == before


def crowded(fleet: Fleet, count: int) -> None:
    """Queues of which a reading counts only some."""
    for n in range(count):
        for folder, objects in (("completed", 1200), ("pending", 1)):
            for k in range(objects):
                end = ".json" if folder == "completed" else "/task.json"
                fleet.store.put(Key(f"queues/q{n:02}/{folder}/{ulid(1, k)}{end}"), b"{}")


def test_queue_that_a_page_shows_is_counted_with_every_reading(fleet: Fleet) -> None:
    crowded(fleet, 20)
    watch = OverviewWatch(fleet)
    watch.prefer("q17")
    watch.look()
    for n in range(1, 4):
        fleet.queue("q17").push({})
        found = watch.look(now=True)
        assert {each.queue: each.pending for each in found.queues}["q17"] == 1 + n


def test_changed_queue_of_a_large_directory_is_noticed(runtime: QueueRuntime) -> None:
    fleet = fleet_on(MemoryStore(runtime), runtime)
    for n in range(50):
        fleet.queue(f"q{n:02}").push({})
    watch = OverviewWatch(fleet)
    while watch.look(now=True).uncounted:
        continue
    assert watched(watch, HOUR_S) <= 200
    for name in ("q49", "q01", "q33"):
        before = watch.versions()["queues"]
        fleet.queue(name).push({})
        runtime.sleep(1.0)
        found = watch.look()
        assert {each.queue: each.pending for each in found.queues}[name] == 2
        assert watch.versions()["queues"] == before + 1


class HugeNearStore(MemoryStore):
    """A directory with a million entries in one folder: to list it in order, all of it must be read."""

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        assert not prefix.startswith("queues"), "it would take seconds"
        return super().list(prefix, after=after)

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        some = self._runtime.rng.sample(range(1_000_000), n) if prefix == "queues/q/pending" else ()
        return [Stat(Key(f"{prefix}/{ulid(1, each)}/task.json"), 100, Version("1"), EPOCH) for each in some]

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        return ["q"] if prefix == "queues" else []


def test_a_million_entries_of_a_directory_are_sampled(runtime: QueueRuntime) -> None:
    watch = OverviewWatch(fleet_on(HugeNearStore(runtime), runtime))
    found = watch.look()
    assert (found.queues[0].pending, "pending" in found.queues[0].at_least) == (OBJECTS_MAX, True)
    before = watch.versions()["queues"]
    watch.look(now=True)
    assert watch.versions()["queues"] == before  # another sample is no change


def test_damaged_parts_do_not_hide_the_others(fleet: Fleet) -> None:
    used(fleet)
    fleet.store.put(Key("indexes/orders/manifest.json"), b"{")
    fleet.store.put(Key("manifests/catalog.json"), b"[]")
    fleet.store.put(Key("queues/mail/control.json"), b"\xff")
    found = read_overview(fleet)
    assert "manifest" in found.indexes[0].trouble
    assert "catalog" in found.trouble
    assert "paused" in found.queues[1].trouble
    assert found.queues[0].pending == 100


@pytest.mark.parametrize("kind", ["far", "near"])
def test_names_that_nobody_made_hide_nothing(runtime: QueueRuntime, kind: str) -> None:
    fleet = fleet_on(BucketLikeStore(runtime) if kind == "far" else MemoryStore(runtime), runtime)
    fleet.queue("mail").push({})
    for part in ("%zz", "%E4", "UPPER", "%00", "=" + "0" * 64, "a%2Fb"):
        fleet.store.put(Key(f"queues/{part}/pending/x/task.json"), b"?")
        fleet.store.put(Key(f"queues/{part}/control.json"), b"?")
        fleet.store.put(Key(f"indexes/{part}/manifest.json"), b"?")
        fleet.store.put(Key(f"locks/user/{part}.lock"), b"?")
    watch = OverviewWatch(fleet)
    for _ in range(2):
        found = watch.look(now=True)
        assert found.trouble == {}
        assert [each.pending for each in found.queues if each.queue == "mail"] == [1]
        assert len(found.queues) == 7
        assert all(each.trouble for each in found.indexes)


@pytest.mark.parametrize("depth", [3, 4])
def test_index_of_greater_depth(fleet: Fleet, depth: int) -> None:
    orders = fleet.index("orders", {"fields": [{"name": "id", "type": "string"}]}, key="id", depth=depth)
    orders.put_many({"id": f"o{n}"} for n in range(40))
    orders.compile()
    orders.put({"id": "new"})
    with fleet.meter.measure() as spent:
        found = read_overview(fleet)
    (counted,) = found.indexes
    records = 40 if depth == 3 else None  # a manifest of depth 4 has no counts: there would be 65,536
    assert (counted.records, counted.waiting, counted.depth, counted.trouble) == (records, 1, depth, "")
    assert sum(counted.backlog.values()) == 1
    assert all(len(shard) == depth for shard in counted.backlog)
    assert not found.sampled
    assert spent.total() <= 20


def test_bucket_lists_the_versions_that_it_gives(seaweedfs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read is known again by the version in a listing, on a real server."""
    for name, value in seaweedfs.env.items():
        monkeypatch.setenv(name, value)
    url = seaweedfs.at(f"overview-{uuid4().hex}")
    used(limpet.open(url))
    fleet = limpet.open(url, read_only=True)
    watch = OverviewWatch(fleet)
    found = watch.look()
    assert [(each.queue, each.pending, each.failed) for each in found.queues] == [
        ("enrich", 100, 100),
        ("mail", 200, 0),
        ("thumbs", 200, 0),
    ]
    assert (found.indexes[0].waiting, found.locks.locks[0].name, found.trouble) == (1, "nightly", {})
    with fleet.meter.measure() as spent:
        watch.look(now=True)
    assert spent.requests == {"list": 5, "get": 1}
