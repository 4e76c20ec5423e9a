"""Prometheus metrics: of a whole fleet, as anyone with a read-only key sees it, and of the processes of `limpet work`.

`FleetMetrics` reads the fleet when Prometheus asks, through an `OverviewWatch`: a part that has not changed is read
less and less often, so that scraping every 15 s costs an idle fleet under 260 requests an hour. `WorkerMetrics` counts
what the worker processes report, and asks the store nothing. A queue whose figures are lower bounds has
`limpet_queue_sampled` 1, and `limpet_read_age_seconds` says how old the figures of a part are.
docs/run/look.md lists the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from limpet.app.fleet import Fleet
from limpet.app.overview import PRICED, FleetOverview, OverviewWatch
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Invalid, LimpetError, Unavailable, Unsupported
from limpet.kernel.lease import lease_cell, lock_state
from limpet.kernel.store.metered import dollars
from limpet.queue.summary import QueueSummary
from limpet.worker.protocol import Message, StoreRequests, TaskCounts, WorkerEvent

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server, write_to_textfile
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise Unsupported("metrics need the package prometheus-client", hint="pip install 'limpet[metrics]'") from None

BUCKETS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
LEAD_EVERY_S = 60.0
OBJECTS_MAX = 10_000
"""How many objects of a queue's folder are counted by default: alert rules and autoscaling need more than a page."""
IDLE_REQUESTS = 260
"""Requests an hour that scraping an idle fleet costs at most, by default."""
OUTCOMES = {name: name for name in ("done", "failed", "lost", "handed_back", "suspended")} | {"retry": "retried"}
_ADDRESS = re.compile(r"(?:(?P<host>[^:\[\]]+|\[[0-9a-fA-F:]+\]):)?(?P<port>[0-9]{1,5})")
LOCAL = "127.0.0.1"


# ---- where they are read ----


@dataclass(frozen=True, slots=True)
class ScrapePlace:
    """Where Prometheus asks: by default on this machine only."""

    host: str
    port: int

    @staticmethod
    def of(text: str) -> ScrapePlace:
        """`PORT` or `HOST:PORT`; `0.0.0.0:PORT` is every interface.   Raises: Invalid."""
        found = _ADDRESS.fullmatch(text)
        if found is None or int(found["port"]) > 65535:
            raise Invalid(f"{text!r} is no port", hint="write 9464, or 0.0.0.0:9464 for all interfaces")
        return ScrapePlace((found["host"] or LOCAL).strip("[]"), int(found["port"]))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"


@contextmanager
def serving(registry: CollectorRegistry, address: ScrapePlace) -> Iterator[ScrapePlace]:
    """Answer scrapes while the block lasts; the address with the port that was taken for 0.

    Raises: Unavailable if the port cannot be used.
    """
    try:
        server, thread = start_http_server(address.port, address.host, registry)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unavailable(f"cannot listen on {address}: {reason}", hint="choose another port") from None
    try:
        yield ScrapePlace(address.host, server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_textfile(registry: CollectorRegistry, path: str) -> None:
    """Write all metrics to a file, whole or not at all: for the textfile collector of Prometheus' node exporter.

    Raises: Unavailable if it cannot be written.
    """
    try:
        write_to_textfile(path, registry)
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror}", hint="check the folder and your rights") from None
    for left in Path(path).parent.glob(f"{Path(path).name}.*.tmp"):
        left.unlink(missing_ok=True)


# ---- a fleet ----


class _MetricTable:
    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def add(self, name: str, help_: str, value: float | None, **labels: str) -> None:
        """Add a sample; None is no sample, though the metric is there."""
        family = self._found.setdefault(name, GaugeMetricFamily(f"limpet_{name}", help_, labels=[*labels]))
        if value is not None:
            family.add_metric([*labels.values()], value)

    def counter(self, name: str, help_: str, values: Iterable[tuple[str, float]], label: str) -> None:
        """A counter by one label."""
        family = CounterMetricFamily(f"limpet_{name}", help_, labels=[label])
        for value, count in values:
            family.add_metric([value], count)
        self._found[name] = family

    def all(self) -> list[Metric]:
        """What was added."""
        return [*self._found.values()]


class FleetMetrics(Collector):
    """The metrics of a fleet. A part that cannot be read keeps its last figures, and `limpet_read_error` is 1.

    Cost of a scrape: that of `OverviewWatch.look`, and 1 GET a minute for the leader where there is a catalog.
    """

    def __init__(self, fleet: Fleet, *, objects: int = OBJECTS_MAX, idle_requests: int = IDLE_REQUESTS) -> None:
        """`objects`: how many of a queue's folder are counted. `idle_requests`: an hour, on an idle fleet, at most."""
        self._fleet = fleet
        self._watch = OverviewWatch(fleet, objects=objects, budget=idle_requests / IDLE_REQUESTS)
        self._led: bool | None = None
        self._led_at_s = float("-inf")

    def registry(self) -> CollectorRegistry:
        """A registry with these metrics alone."""
        made = CollectorRegistry()
        made.register(self)
        return made

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry must not read the fleet when it takes this in."""
        return []

    def collect(self) -> Iterable[Metric]:
        """All metrics, as of now."""
        overview = self._watch.look()
        found = _MetricTable()
        now = self._fleet.runtime.wall()
        since_s = _age(overview.read_at.get("queues"), now)
        for queue in overview.queues:
            rate = overview.rates.get(queue.queue)
            _add_queue(found, queue, rate.per_minute if rate is not None else None, since_s)
        for alert in overview.alerts:
            help_ = "1 for each limit that `limpet check` would report."
            found.add("alert", help_, 1, queue=alert.queue, rule=alert.rule)
        _add_rest(found, overview, now)
        if overview.catalog is not None:
            found.add("catalog_led", "Whether a process leads the catalog.", self._lead(overview.catalog.version))
        spent = self._fleet.meter.snapshot().requests
        found.counter("store_requests_total", "Requests that this process sent to the store.", spent.items(), "verb")
        return found.all()

    def _lead(self, version: int) -> float | None:
        """Whether the catalog's lock is held. None where nothing was ever published."""
        now_s = self._fleet.runtime.elapsed_s()
        if version and now_s - self._led_at_s >= LEAD_EVERY_S:
            self._led_at_s = now_s
            try:
                cell = lease_cell(self._fleet.store, CatalogKeys.of("catalog").lock, self._fleet.runtime)
                seen = cell.read()
                self._led = seen is not None and lock_state(seen, self._fleet.runtime.wall()).state == "held"
            except LimpetError:
                self._led = None
        return None if self._led is None else float(self._led)


def _add_queue(found: _MetricTable, queue: QueueSummary, per_minute: float | None, since_s: float) -> None:
    """`pending` is the depth: what waits, runs and rests. `since_s` is how long ago that was counted."""
    oldest_s = queue.oldest_s + since_s if queue.oldest_s is not None else None if queue.approximate else 0.0
    figures: Sequence[tuple[str, str, float | None]] = (
        ("queue_pending", "Tasks that have not ended: waiting, running and resting.", queue.pending),
        ("queue_in_flight", "Tasks that a live worker holds.", queue.in_flight),
        ("queue_resting", "Tasks that failed and wait for their next attempt, and suspended ones.", queue.resting),
        ("queue_suspended", "Durable tasks that wait without a worker.", queue.suspended),
        ("queue_waits_for_code", "Suspended tasks whose recorded steps no code fits.", queue.waits_for_code),
        ("queue_scheduled", "Pushes that are not due yet.", queue.scheduled),
        ("queue_completed", "Completed tasks whose receipts are kept.", queue.completed),
        ("queue_failed", "Tasks that failed for good, and were not retried.", queue.failed),
        ("queue_cancelled", "Cancelled tasks whose receipts are kept.", queue.cancelled),
        ("queue_oldest_seconds", "Time since the push of the oldest task that has not ended; 0: none.", oldest_s),
        ("queue_finished_per_minute", "Tasks that ended per minute, over the last five.", per_minute),
        ("queue_paused", "1 while the queue is paused.", queue.paused),
        ("queue_no_worker", "1 if a task is due and no living worker names the queue.", queue.no_worker),
        ("queue_sampled", "1 if a figure of the queue is a lower bound.", bool(queue.at_least)),
    )
    for name, help_, value in figures:
        found.add(name, help_, value, queue=queue.queue)


def _add_rest(found: _MetricTable, overview: FleetOverview, now: datetime) -> None:
    found.add("queues_uncounted", "Queues that were not counted yet: there are many.", len(overview.uncounted))
    if overview.workers is not None:
        alive = len(overview.workers.alive)
        help_ = "Worker processes by their presence; gone: not renewed for five minutes."
        found.add("workers", help_, alive, state="alive")
        found.add("workers", help_, len(overview.workers.workers) - alive, state="gone")
    for state in ("held", "overdue"):
        count = sum(lock.state == state for lock in overview.locks.locks)
        found.add("locks", "Users' locks by state.", count, state=state)
    for index in overview.indexes:
        named = {"index": index.name}
        found.add("index_records", "Records as of the last compile.", index.records, **named)
        found.add("index_backlog", "Objects that wait to be compiled.", index.waiting, **named)
        found.add("index_backlog_bytes", "Their bytes.", index.waiting_bytes, **named)
        found.add("index_backlog_seconds", "Age of the oldest of them; 0: none.", _age(index.oldest_at, now), **named)
        compiled = None if index.compiled_at is None else _age(index.compiled_at, now)
        found.add("index_compiled_seconds", "Time since the last compile.", compiled, **named)
        found.add("index_quarantined", "Objects in quarantine.", index.quarantined, **named)
    if overview.catalog is not None:
        catalog = overview.catalog
        found.add("catalog_commits", "Commits that were ever published.", catalog.version)
        found.add("catalog_tables", "Tables.", catalog.tables)
        age_s = _age(datetime.fromisoformat(catalog.at), now) if catalog.at else None
        found.add("catalog_commit_seconds", "Time since the last commit.", age_s)
    if overview.bill is not None:
        bill = overview.bill
        help_ = "Requests that the work of the queues took at least, by the receipts that are kept."
        found.add("work_requests", help_, bill.work.requests)
        found.add("work_dollars", "Their list price; on a directory what a bucket would cost.", bill.work.dollars)
        found.add("month_dollars", "The price of a month in which each hour is as the last one.", bill.month_dollars)
    for part, at in overview.read_at.items():
        failed = part in overview.trouble
        found.add("read_error", "1 if that part of the fleet could not be read.", failed, part=part)
        found.add("read_age_seconds", "Time since that part of the fleet was read.", _age(at, now), part=part)


def _age(at: datetime | None, now: datetime) -> float:
    return 0.0 if at is None else max(0.0, (now - at).total_seconds())


# ---- workers ----


class WorkerMetrics:
    """The metrics of the processes of one `limpet work`; `hear` takes what they report."""

    def __init__(self, provider: str = "s3") -> None:
        self.registry = CollectorRegistry()
        self._provider = provider
        self._requests: dict[str, StoreRequests] = {}
        self._spent: dict[str, int] = {}
        made: dict[str, Any] = {"registry": self.registry}
        self._tasks = Counter("limpet_tasks", "Runs of tasks, by how they ended.", ["queue", "outcome"], **made)
        self._seconds = Histogram(
            "limpet_task_seconds", "How long handlers ran.", ["queue", "outcome"], buckets=BUCKETS_S, **made
        )
        self._in_flight = Gauge("limpet_tasks_running", "Tasks that run now in these processes.", **made)
        self._trouble = Counter("limpet_worker_trouble", "Requests to the store that failed for workers.", **made)
        self._crashes = Counter("limpet_worker_crashes", "Worker processes that ended without being asked.", **made)
        self.registry.register(_SpentRequests(self._spent, provider))

    def hear(self, message: Message, counts: TaskCounts) -> None:
        """Count a message of a worker process. `counts` are those of all of them."""
        self._in_flight.set(counts.in_flight)
        match message:
            case WorkerEvent(kind=kind) if kind in OUTCOMES and message.id:
                self._tasks.labels(message.queue, OUTCOMES[kind]).inc()
                if message.seconds is not None:
                    self._seconds.labels(message.queue, OUTCOMES[kind]).observe(message.seconds)
            case WorkerEvent(kind="trouble"):
                self._trouble.inc()
            case WorkerEvent(kind="crashed"):
                self._crashes.inc()
            case StoreRequests():
                before = self._requests.get(message.worker)
                for verb, count in message.requests.items():
                    more = count - (before.requests.get(verb, 0) if before else 0)
                    self._spent[verb] = self._spent.get(verb, 0) + max(0, more)
                self._requests[message.worker] = message


class _SpentRequests(Collector):
    def __init__(self, spent: dict[str, int], provider: str) -> None:
        self._spent = spent
        self._provider = provider

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        found = _MetricTable()
        spent = dict(self._spent)
        found.counter("store_requests_total", "Requests that the worker processes sent.", spent.items(), "verb")
        price = CounterMetricFamily("limpet_store_dollars_total", "Their list price; what a bucket would cost.")
        price.add_metric([], dollars(spent, self._provider))
        return [*found.all(), price]


def provider_priced(url: str | None) -> str:
    """The provider whose list prices hold for a fleet: `s3` where it is not in a bucket."""
    return PRICED.get((url or "").partition("://")[0], "s3")
