"""Readiness and metrics of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import limpet
from limpet.app import Fleet
from limpet.kernel.errors import LimpetError
from limpet.kernel.runtime import Runtime
from limpet.service.app import SECONDS, Route
from limpet.service.protocol import ConnectionLimiter
from limpet.service.requests import RETRY_AFTER, Request, Response, json_response
from limpet.service.tokens import Tokens

REMEMBERED_S = 1.0
SLOW_S = 5.0
METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


# ---- readiness ----

Facts = Callable[[], dict[str, Any]]


def health_routes(facts: Facts, is_ending: Callable[[], bool], runtime: Runtime) -> list[Route]:
    """`/healthz`: the process answers. `/readyz`: it reaches its store, and is not stopping. Neither needs a token.

    The result is cached for a second, and one request at a time reads the store; the others get the last result. So
    clients without a token occupy at most one thread, however often they ask, and however slow the store is.
    """
    mutex = runtime.mutex()
    last = (float("-inf"), _not_ready("it is starting"))
    since_s: float | None = None

    def look() -> Response:
        nonlocal last, since_s
        with mutex:
            now_s = runtime.elapsed_s()
            if since_s is not None:
                return last[1] if now_s - since_s < SLOW_S else _not_ready("the store is slow to answer")
            if now_s - last[0] <= REMEMBERED_S:
                return last[1]
            since_s = now_s
        try:
            last = (runtime.elapsed_s(), _ready(facts))
        finally:
            since_s = None
        return last[1]

    def healthz(_: Request) -> Response:
        return json_response({"status": "ok"})

    def readyz(_: Request) -> Response:
        return json_response({"status": "ending"}, 503, (RETRY_AFTER,)) if is_ending() else look()

    return [Route("GET", "/healthz", healthz, None, quick=True), Route("GET", "/readyz", readyz, None)]


def _ready(facts: Facts) -> Response:
    try:
        return json_response({"status": "ready", "limpet": limpet.__version__, **facts()})
    except LimpetError as error:
        return _not_ready(str(error), error.hint)


def _not_ready(error: str, hint: str = "") -> Response:
    return json_response({"status": "not ready", "error": error, "hint": hint}, 503, (RETRY_AFTER,))


# ---- metrics ----


class _RegistryView(Collector):
    """A registry without the `_created` series that each counter and histogram has."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def metrics_text(registry: CollectorRegistry) -> bytes:
    """All metrics of a process, in Prometheus' text format."""
    return generate_latest(_RegistryView(registry))


def metrics_route(registry: CollectorRegistry, tokens: Tokens) -> Route:
    """`/metrics`, for those tokens."""

    def metrics(_: Request) -> Response:
        return Response(200, metrics_text(registry), (METRICS_TYPE,))

    return Route("GET", "/metrics", metrics, tokens, right="metrics", touched=lambda _: ())


def request_seconds(registry: CollectorRegistry) -> Histogram:
    """The latency of requests, by method, route and status."""
    labels = "method", "route", "status"
    return Histogram("limpet_request_seconds", "Time to answer.", labels, registry=registry, buckets=SECONDS)


class ReadCounts(Collector):
    """Counts that the limiter and the store keep, read at each scrape."""

    def __init__(self, limiter: ConnectionLimiter, fleet: Fleet) -> None:
        self._limiter = limiter
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        """The counts, as Prometheus reads them."""
        limiter = self._limiter
        connections = GaugeMetricFamily(
            "limpet_connections", "Connections; a stranger has not sent a known token yet.", labels=["client"]
        )
        connections.add_metric(["known"], limiter.connections - limiter.strangers)
        connections.add_metric(["stranger"], limiter.strangers)
        ended = "Connections closed because there were too many."
        requests = CounterMetricFamily("limpet_store_requests_total", "Requests sent to the store.", labels=["verb"])
        for verb, count in self._fleet.meter.snapshot().requests.items():
            requests.add_metric([verb], count)
        return [connections, CounterMetricFamily("limpet_connections_ended_total", ended, limiter.ended), requests]
