"""The last hour of a queue: from receipts, from events, or as one process has seen it; and what reading it costs."""

from __future__ import annotations

import pytest

from app.test_overview import BucketLikeStore, fleet_on
from limpet.app import Fleet
from limpet.app import history as module
from limpet.app.history import FleetHistory, recorded_runs
from limpet.app.overview import FleetOverview, OverviewWatch
from limpet.events import task_run
from limpet.events.fold import Executions, hand_over
from limpet.events.sink import LedgerSink
from limpet.kernel.catalog_keys import CatalogKeys
from support.clock import QueueRuntime, Time

KEYS = CatalogKeys.of("executions")


@pytest.fixture
def runtime() -> QueueRuntime:
    return QueueRuntime(Time(), "p1")


@pytest.fixture
def fleet(runtime: QueueRuntime) -> Fleet:
    return fleet_on(BucketLikeStore(runtime), runtime)


class OpenPage:
    """A page that is open: it looks when that is due."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.watch = OverviewWatch(fleet)
        self.history = FleetHistory(fleet)

    def look(self) -> FleetOverview:
        found = self.watch.look(now=True)
        self.history.look(found, self.watch.versions()["queues"])
        return found

    def depth(self) -> list[int | None]:
        found = self.history.depth(self.look(), "enrich")
        assert found is not None
        return [*found.minutes]


def run_some(fleet: Fleet, n: int, *, recorded: bool) -> None:
    """Claim and end `n` tasks, and record it or not."""
    queue = fleet.queue("enrich")
    sink = LedgerSink(fleet.store, KEYS, fleet.runtime, lambda: 0)
    for _ in range(n):
        with queue.claim() as claim:
            for task in claim:
                task.done()
                run = task_run(
                    fleet.runtime, queue="enrich", task=task.id, attempt=1, worker="w", took_s=1.0, outcome="done"
                )
                sink.emit(run)
    queue.flush()
    if recorded:
        sink.flush()


def test_without_events_it_is_what_this_process_has_seen(fleet: Fleet, runtime: QueueRuntime) -> None:
    queue = fleet.queue("enrich")
    page = OpenPage(fleet)
    page.look()
    queue.push({})
    queue.push({})
    assert page.depth()[-1] == 2
    runtime.sleep(120)
    queue.push({})
    minutes = page.depth()
    assert minutes[-3:] == [2, 2, 3]
    assert minutes[:50] == [None] * 50
    found = page.history.depth(page.look(), "enrich")
    assert found is not None
    assert (found.source, found.at_least) == ("seen", False)
    assert found.since <= runtime.wall()
    rate = page.history.rate(page.look(), "enrich")
    assert rate is not None
    assert rate.source == "receipts"


def test_a_long_time_without_a_look_is_a_gap(fleet: Fleet, runtime: QueueRuntime) -> None:
    fleet.queue("enrich").push({})
    page = OpenPage(fleet)
    page.look()
    runtime.sleep(40 * 60)
    minutes = page.depth()
    assert minutes[-1] == 1
    assert None in minutes[-25:-1]


def test_events_tell_what_was_before_the_first_look(fleet: Fleet, runtime: QueueRuntime) -> None:
    queue = fleet.queue("enrich")
    for _ in range(4):
        queue.push({})
    runtime.sleep(600)
    run_some(fleet, 3, recorded=True)
    runtime.sleep(600)
    page = OpenPage(fleet)
    found = page.look()
    depth = page.history.depth(found, "enrich")
    assert depth is not None
    assert (depth.source, depth.at_least) == ("events", False)
    assert depth.minutes[-1] == 1
    assert depth.minutes[-9] == 1
    assert depth.minutes[-15] == 4
    assert depth.minutes[-30] == 0


def test_ids_of_users_make_the_depth_a_lower_bound(fleet: Fleet, runtime: QueueRuntime) -> None:
    fleet.queue("enrich").push({}, id="mine")
    fleet.queue("enrich").push({})
    run_some(fleet, 2, recorded=True)
    runtime.sleep(600)
    page = OpenPage(fleet)
    depth = page.history.depth(page.look(), "enrich")
    assert depth is not None
    assert (depth.source, depth.at_least) == ("events", True)


def test_rate_by_events_where_receipts_are_cut(
    fleet: Fleet, runtime: QueueRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limpet.app.overview.OBJECTS_MAX", 3)
    monkeypatch.setattr("limpet.app.overview.SOME_OBJECTS", dict.fromkeys(module_folders(), 3.0))
    queue = fleet.queue("enrich")
    for _ in range(6):
        queue.push({})
    run_some(fleet, 6, recorded=True)
    page = OpenPage(fleet)
    found = page.look()
    assert found.rates["enrich"].at_least
    rate = page.history.rate(found, "enrich")
    assert rate is not None
    assert (rate.source, sum(rate.minutes), rate.at_least) == ("events", 6, False)


def module_folders() -> tuple[str, ...]:
    return ("completed", "failed", "pending", "scheduled")


def test_folded_events_count_too(fleet: Fleet, runtime: QueueRuntime) -> None:
    fleet.queue("enrich").push({})
    run_some(fleet, 1, recorded=True)
    hand_over(fleet.store, KEYS, Executions(fleet.store, KEYS, runtime).publish)
    assert sum(recorded_runs(fleet)["enrich"].rate(runtime.wall()).minutes) == 1


def test_cost_is_bounded_however_many_events_there_are(
    fleet: Fleet, runtime: QueueRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module.BATCHES_MAX <= 100
    monkeypatch.setattr(module, "BATCHES_MAX", 20)
    queue = fleet.queue("enrich")
    page = OpenPage(fleet)
    with fleet.meter.measure() as spent:
        assert recorded_runs(fleet) == {}
    assert spent.requests == {"list": 1, "get": 1}
    for _ in range(module.BATCHES_MAX + 20):
        queue.push({})
        run_some(fleet, 1, recorded=True)
    with fleet.meter.measure() as spent:
        runs = recorded_runs(fleet)["enrich"]
    assert spent.requests == {"list": 1, "get": module.BATCHES_MAX + 1}
    assert (sum(runs.ended.values()), runs.cut, runs.at_least) == (module.BATCHES_MAX, True, True)
    runtime.sleep(2 * 3600)
    with fleet.meter.measure() as spent:
        assert recorded_runs(fleet) == {}
    assert spent.requests == {"list": 1, "get": 1}, "what is older than an hour is neither listed nor read"
    page.look()
    with fleet.meter.measure() as spent:
        for _ in range(10):  # nothing changes: the events are not read again
            found = page.watch.look()
            page.history.look(found, page.watch.versions()["queues"])
    assert spent.total() == 0


def test_busy_fleet_reads_its_events_every_five_minutes(fleet: Fleet, runtime: QueueRuntime) -> None:
    page = OpenPage(fleet)
    found = page.look()
    with fleet.meter.measure() as spent:
        for version in range(1, 721):  # an hour in which queues change every 5 s
            runtime.sleep(5)
            page.history.look(found, version)
    assert spent.requests == {"list": 12, "get": 12}
