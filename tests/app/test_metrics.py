"""Prometheus metrics: what a scrape says and costs; the board and the alert rules ask for what there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import limpet
from app.test_overview import BucketLikeStore, fleet_on
from limpet import testing
from limpet.app import Fleet
from limpet.app.metrics import FleetMetrics, ScrapePlace, WorkerMetrics, provider_priced, serving
from limpet.kernel.errors import Invalid, Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.runtime import ulid
from limpet.worker.protocol import StoreRequests, TaskCounts, WorkerEvent
from support.clock import EPOCH, QueueRuntime, Time
from support.docs import ROOT

Samples = dict[tuple[str, str], float]


@dataclass
class Site:
    """A record."""

    domain: str


def samples(registry: CollectorRegistry) -> Samples:
    """The samples of a scrape, by name and the values of their labels."""
    return parsed(generate_latest(registry).decode())


def parsed(text: str) -> Samples:
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    kept = [sample for sample in found if not sample.name.endswith("_created")]
    return {(each.name, ",".join(value for _, value in sorted(each.labels.items()))): each.value for each in kept}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    fleet = limpet.open(tmp_path / "fleet", durability="os").check()

    @fleet.task(max_attempts=1)
    def enrich(n: int) -> None:
        if n == 1:
            raise ValueError("no")

    for n in range(3):
        enrich.push(n)
    testing.drain(fleet)
    enrich.push(3)
    enrich.push(4)
    fleet.__dict__["claim"] = enrich.queue.claim()
    enrich.using(delay_s=600).push(5)
    fleet.lock("mine").acquire()
    sites = fleet.index("sites", Site, key="domain")
    sites.put_many([Site("a.com"), Site("b.com")])
    sites.compile(full=True)
    sites.put(Site("c.com"))
    fleet.publish_index("sites", compile=False)
    return fleet


def test_a_scrape_of_a_fleet(fleet: Fleet) -> None:
    found = samples(FleetMetrics(fleet).registry())
    queue = {name.removeprefix("limpet_queue_"): value for (name, label), value in found.items() if label == "enrich"}
    assert {name: queue[name] for name in ("pending", "in_flight", "resting", "scheduled", "completed", "failed")} == {
        "pending": 2,
        "in_flight": 1,
        "resting": 0,
        "scheduled": 1,
        "completed": 2,
        "failed": 1,
    }
    assert 0 < queue["oldest_seconds"] < 600
    assert queue["finished_per_minute"] == 3 / 5
    assert found["limpet_alert", "enrich,max-failed"] == 1
    assert (found["limpet_locks", "held"], found["limpet_workers", "alive"]) == (1, 0)
    assert (found["limpet_index_records", "sites"], found["limpet_index_backlog", "sites"]) == (2, 1)
    assert found["limpet_index_compiled_seconds", "sites"] < 600
    assert (found["limpet_catalog_tables", ""], found["limpet_catalog_led", ""]) == (1, 0)
    assert found["limpet_catalog_commits", ""] >= 2
    assert found["limpet_work_requests", ""] >= 3 * 6
    assert found["limpet_store_requests_total", "list"] > 0
    assert {value for (name, _), value in found.items() if name == "limpet_read_error"} == {0}


def test_suspended_tasks_are_counted_apart(fleet: Fleet) -> None:
    @fleet.task
    def order() -> str:
        return str(limpet.wait_signal("approved"))

    order.push()
    testing.drain(fleet)
    found = samples(FleetMetrics(fleet).registry())
    names = ("limpet_queue_pending", "limpet_queue_resting", "limpet_queue_suspended")
    assert [found[name, "order"] for name in names] == [1, 1, 1]
    assert found["limpet_queue_suspended", "enrich"] == 0


def test_an_idle_fleet_costs_under_260_requests_an_hour() -> None:
    runtime = QueueRuntime(Time(), "p1")
    fleet = fleet_on(BucketLikeStore(runtime), runtime)
    fleet.queue("q").push({"n": 1})
    fleet.lock("mine").acquire()
    registry = FleetMetrics(fleet).registry()
    first = samples(registry)["limpet_queue_oldest_seconds", "q"]
    before = fleet.meter.snapshot()
    for _ in range(3600 // 15):
        runtime.sleep(15)
        last = samples(registry)["limpet_queue_oldest_seconds", "q"]
    assert (fleet.meter.snapshot() - before).total() < 260
    assert last - first == pytest.approx(3600, abs=1), "the age rises with every scrape, whether it was read or not"


def test_deep_queues_are_counted_as_far_as_was_asked_for() -> None:
    runtime = QueueRuntime(Time(), "p1")
    fleet = fleet_on(BucketLikeStore(runtime), runtime)
    for n in range(2500):
        fleet.store.put(Key(f"queues/q/pending/{ulid(1, n)}/task.json"), b"{}")
    before = fleet.meter.snapshot()
    found = samples(FleetMetrics(fleet).registry())
    assert (found["limpet_queue_pending", "q"], found["limpet_queue_sampled", "q"]) == (2500, 0)
    assert (fleet.meter.snapshot() - before).requests[
        "list"
    ] <= 5 + 5  # 1 LIST per 1,000 objects, after a page and the names; and the other parts
    found = samples(FleetMetrics(fleet, objects=1000).registry())
    assert (found["limpet_queue_pending", "q"], found["limpet_queue_sampled", "q"]) == (1000, 1)


@pytest.mark.parametrize(("idle_requests", "at_most_s"), [(260, 60), (2600, 15)])
def test_first_push_after_an_idle_hour_is_noticed(idle_requests: int, at_most_s: int) -> None:
    runtime = QueueRuntime(Time(), "p1")
    fleet = fleet_on(BucketLikeStore(runtime), runtime)
    fleet.queue("q").push({"n": 1})
    registry = FleetMetrics(fleet, idle_requests=idle_requests).registry()
    for _ in range(3600 // 5):
        runtime.sleep(5)
        samples(registry)
    fleet.queue("q").push({"n": 2})
    waited_s = 0
    while (found := samples(registry))["limpet_queue_pending", "q"] == 1:
        assert found["limpet_read_age_seconds", "queues"] <= at_most_s
        runtime.sleep(5)
        waited_s += 5
    assert waited_s <= at_most_s


def test_hostile_names_are_labels(tmp_path: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet", durability="os").check()
    name = 'a"} 1\nlimpet_x{b="\\'
    fleet.queue("q").push({})
    fleet.store.put(Key("queues/a%22%7d%201/pending/x/task.json"), b"{")
    fleet.store.put(Key("queues/%0alimpet_x/pending/x/task.json"), b"{")
    found = samples(FleetMetrics(fleet).registry())
    assert found["limpet_queue_pending", 'a"} 1'] == 1
    assert found["limpet_queue_pending", "\nlimpet_x"] == 1
    assert not [key for key in found if key[0] == "limpet_x"], name


def test_a_part_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    fleet = limpet.open(tmp_path / "fleet", durability="os").check()
    with fleet.lead_catalog() as catalog:
        catalog.create_namespace(["a"])
    fleet.store.put(Key("manifests/catalog.json"), b"{")
    found = samples(FleetMetrics(limpet.open(fleet.url)).registry())
    assert (found["limpet_read_error", "catalog"], found["limpet_read_error", "queues"]) == (1, 0)


def _event(kind: Any, seconds: float | None = None) -> WorkerEvent:
    return WorkerEvent(kind=kind, at=EPOCH + timedelta(seconds=1), worker="h:1/1", queue="q", id="x", seconds=seconds)


def worker_metrics() -> WorkerMetrics:
    """The metrics of workers that have seen everything once."""
    metrics = WorkerMetrics()
    for kind in ("started", "done", "retry", "failed", "lost", "handed_back", "suspended"):
        metrics.hear(_event(kind, 0.3), TaskCounts(in_flight=2))
    for kind in ("trouble", "crashed"):
        metrics.hear(_event(kind), TaskCounts(in_flight=1))
    for puts in (3, 5):
        metrics.hear(StoreRequests(worker="h:1", requests={"put": puts, "get": 1}), TaskCounts(in_flight=1))
    metrics.hear(StoreRequests(worker="h:2", requests={"put": 2}), TaskCounts(in_flight=1))
    return metrics


def test_what_workers_report_is_counted() -> None:
    found = samples(worker_metrics().registry)
    for outcome in ("done", "retried", "failed", "lost", "handed_back", "suspended"):
        assert found["limpet_tasks_total", f"{outcome},q"] == 1
        assert found["limpet_task_seconds_count", f"{outcome},q"] == 1
        assert found["limpet_task_seconds_bucket", f"0.5,{outcome},q"] == 1
        assert found["limpet_task_seconds_bucket", f"0.25,{outcome},q"] == 0
    assert found["limpet_tasks_running", ""] == 1
    assert (found["limpet_worker_trouble_total", ""], found["limpet_worker_crashes_total", ""]) == (1, 1)
    assert (found["limpet_store_requests_total", "put"], found["limpet_store_requests_total", "get"]) == (7, 1)
    assert found["limpet_store_dollars_total", ""] == pytest.approx(7 * 5e-6 + 4e-7)
    assert (provider_priced("gs://x"), provider_priced("./x"), provider_priced(None)) == ("gcs", "s3", "s3")


def test_it_is_served_until_the_block_ends(fleet: Fleet) -> None:
    with serving(FleetMetrics(fleet).registry(), ScrapePlace("127.0.0.1", 0)) as address:
        with urllib.request.urlopen(str(address), timeout=30) as answer:
            assert parsed(answer.read().decode())["limpet_queue_pending", "enrich"] == 2
        with pytest.raises(Unavailable, match="cannot listen on"), serving(CollectorRegistry(), address):
            pass
    with serving(CollectorRegistry(), address):
        pass


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("9464", "127.0.0.1", 9464), ("0.0.0.0:1", "0.0.0.0", 1), ("[::1]:80", "::1", 80), ("box:0", "box", 0)],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert ScrapePlace.of(text) == ScrapePlace(host, port)


@pytest.mark.parametrize("text", ["", "x", "65536", "-1", "1:2:3", "http://x:1"])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(Invalid, match="is no port"):
        ScrapePlace.of(text)


# ---- deploy/ ----

NAME = re.compile(r"\blimpet_[a-z_]+")


def _asked(path: Path) -> set[str]:
    """The metrics that the board or the rules ask for."""
    if path.suffix == ".json":
        board = json.loads(path.read_text())
        targets = [each for panel in board["panels"] for each in panel.get("targets", ())]
        return {name for each in targets for name in NAME.findall(each["expr"])}
    return {name for line in path.read_text().splitlines() if "expr:" in line for name in NAME.findall(line)}


@pytest.mark.parametrize("name", ["alerts.yml", "grafana.json"])
def test_what_is_asked_for_is_scraped(name: str, fleet: Fleet) -> None:
    there = {sample for sample, _ in {**samples(FleetMetrics(fleet).registry()), **samples(worker_metrics().registry)}}
    asked = _asked(ROOT / "deploy" / name)
    assert len(asked) > 10
    assert asked - there == set()


def test_the_page_lists_every_metric(fleet: Fleet) -> None:
    there = {sample for sample, _ in {**samples(FleetMetrics(fleet).registry()), **samples(worker_metrics().registry)}}
    page = {*re.findall(r"`(limpet_[a-z_]+)`", (ROOT / "docs" / "run" / "look.md").read_text())}
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in there} == page


@pytest.mark.full
def test_promtool_accepts_the_rules_and_a_scrape(fleet: Fleet, tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's prometheus)")
    rules = [promtool, "check", "rules", str(ROOT / "deploy" / "alerts.yml")]
    done = subprocess.run(rules, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for registry in (FleetMetrics(fleet).registry(), worker_metrics().registry):
        scrape = generate_latest(registry)
        checked = subprocess.run([promtool, "check", "metrics"], input=scrape, capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, b""), checked.stderr.decode()
