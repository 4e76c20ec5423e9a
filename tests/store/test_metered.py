"""What a store is asked is counted exactly, and a budget stops it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from limpet.kernel.errors import Conflict, Denied, Invalid, Missing
from limpet.kernel.keys import Key
from limpet.kernel.store import metered
from limpet.kernel.store.api import Absent, Put, Store
from limpet.kernel.store.memory import MemoryStore
from limpet.kernel.store.metered import Cost, MeteredStore

K = Key


@pytest.fixture
def meter() -> MeteredStore:
    return MeteredStore(MemoryStore())


def filled(count: int) -> MeteredStore:
    memory = MemoryStore()
    for n in range(count):
        memory.put(K(f"many/{n:04}"), b"")
    return MeteredStore(memory)


def test_a_meter_is_a_store(meter: MeteredStore) -> None:
    assert isinstance(meter, Store)


def test_each_verb_counts_one(meter: MeteredStore) -> None:
    with meter.measure() as cost:
        meter.put(K("a"), b"12345")
        meter.get(K("a"), range=(1, 3))
        meter.head(K("a"))
        meter.delete(K("a"))
    assert cost == Cost({"put": 1, "get": 1, "head": 1, "delete": 1}, read_bytes=2, written_bytes=5)


def test_a_refused_put_is_counted_as_sent_and_refused(meter: MeteredStore) -> None:
    meter.put(K("a"), b"1")
    with meter.measure() as cost, pytest.raises(Conflict):
        meter.put(K("a"), b"22", when=Absent())
    assert cost == Cost({"put": 1}, written_bytes=2, refused=1)


def test_an_answer_of_missing_costs_a_request(meter: MeteredStore) -> None:
    with meter.measure() as cost:
        for call in (meter.get, meter.head):
            with pytest.raises(Missing):
                call(K("a"))
    assert cost.requests == {"get": 1, "head": 1}


def test_what_is_never_sent_costs_nothing(meter: MeteredStore) -> None:
    with meter.measure() as cost:
        for call in (meter.get, meter.head, meter.delete):
            with pytest.raises(Invalid):
                call(K("../a"))
        meter.list("a")
    assert cost.requests == {}


def test_batches_count_each_key(meter: MeteredStore) -> None:
    with meter.measure() as cost:
        meter.put_many([Put(K("a"), b"1"), Put(K("b"), b"2"), Put(K("a"), b"3", when=Absent())])
        meter.get_many([K("a"), K("b"), K("c")])
        meter.delete_many([K("a"), K("b")])
    assert cost == Cost({"put": 3, "get": 3, "delete": 2}, read_bytes=2, written_bytes=3, refused=1)


@pytest.mark.parametrize(("objects", "lists"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (2000, 2), (2001, 3)])
def test_a_list_counts_its_started_pages(objects: int, lists: int) -> None:
    meter = filled(objects)
    with meter.measure() as cost:
        assert len([*meter.list("many")]) == objects
    assert cost.requests == {"list": lists}
    with meter.measure() as cost:
        assert len(meter.sample("many", 5000)) == objects
    assert cost.requests == {"list": lists}


def test_a_list_left_early_counts_what_was_reached() -> None:
    meter = filled(2500)
    with meter.measure() as cost:
        found = meter.list("many")
        for _ in range(1001):
            next(found)
    assert cost.requests == {"list": 2}


def test_folders_count_by_the_thousand(meter: MeteredStore) -> None:
    meter.put_many([Put(K(f"{n}/x"), b"") for n in range(1001)])
    with meter.measure() as cost:
        assert len(meter.list_dirs()) == 1001
    assert cost.requests == {"list": 2}


def test_the_clock_probe_is_counted_once(meter: MeteredStore) -> None:
    with meter.measure() as cost:
        meter.now()
        meter.now()
    assert cost.requests == {"put": 1, "head": 1}
    with meter.measure() as cost:
        meter.now(max_age_s=-1)
    assert cost.requests == {"put": 1, "head": 1}


@pytest.mark.parametrize(
    "see", [lambda s: s.get(K("x")), lambda s: s.head(K("x")), lambda s: [*s.list()], lambda s: s.sample("", 1)]
)
def test_an_answer_with_a_time_spares_the_clock_probe(meter: MeteredStore, see: Callable[[Store], object]) -> None:
    meter.put(K("x"), b"1")
    see(meter)
    with meter.measure() as cost:
        meter.now()
    assert cost.requests == {}


def test_snapshots_stand_still_and_subtract(meter: MeteredStore) -> None:
    meter.put(K("a"), b"1")
    before = meter.snapshot()
    meter.put(K("a"), b"22")
    meter.get(K("a"))
    assert before == Cost({"put": 1}, written_bytes=1)
    assert meter.snapshot() - before == Cost({"put": 1, "get": 1}, read_bytes=2, written_bytes=2)


def test_a_measure_is_filled_when_its_block_fails(meter: MeteredStore) -> None:
    with pytest.raises(Missing), meter.measure() as cost:
        meter.get(K("a"))
    assert cost.requests == {"get": 1}


def test_threads_are_counted_exactly() -> None:
    meter = filled(1)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [meter.head(K("many/0000")) for _ in range(250)], range(8)))
    assert meter.snapshot().requests == {"head": 2000}


def test_the_budget_is_never_exceeded() -> None:
    meter = MeteredStore(MemoryStore(), budget=3)
    meter.put(K("a"), b"1")
    meter.get(K("a"))
    results = meter.put_many([Put(K("b"), b""), Put(K("c"), b""), Put(K("d"), b"")])
    assert sorted(type(result) is Denied for result in results.values()) == [False, True, True]
    calls: list[Callable[[], object]] = [
        lambda: meter.get(K("a")),
        lambda: meter.head(K("a")),
        lambda: meter.put(K("a"), b""),
        lambda: meter.delete(K("a")),
        lambda: [*meter.list()],
        lambda: meter.sample("", 1),
        lambda: meter.list_dirs(),
        lambda: meter.now(max_age_s=-1),
    ]
    for call in calls:
        with pytest.raises(Denied, match="budget of 3 requests") as refused:
            call()
        assert "raise LIMPET_REQUEST_BUDGET" in refused.value.hint
    assert meter.snapshot().total() == 3
    assert meter.inner.get(K("a")).data == b"1"


def test_the_budget_stops_a_long_list() -> None:
    meter = MeteredStore(filled(1500).inner, budget=1)
    with pytest.raises(Denied):
        list(meter.list("many"))
    assert meter.snapshot().requests == {"list": 1}


def test_dollars() -> None:
    cost = Cost({"put": 1000, "get": 10_000, "list": 100, "delete": 5000})
    assert cost.dollars("s3") == pytest.approx(0.005 + 0.004 + 0.0005)
    assert cost.total() == 16_100
    with pytest.raises(Invalid, match="no prices for 'floppy'"):
        cost.dollars("floppy")


@pytest.mark.parametrize("provider", metered.DOLLARS_PER_1000)
def test_every_provider_prices_every_verb(provider: str) -> None:
    verbs = {"get": 1, "head": 1, "put": 1, "list": 1, "delete": 1}
    assert Cost(verbs).dollars(provider) == pytest.approx(0.0108 / 1000)
