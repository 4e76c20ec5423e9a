"""A process that serves: its parts behind one port, their background jobs, readiness and metrics, from start to end.

A process has one or two parts. `ApiPart` answers the REST protocol and leads when it can. What it decides is published
by a `CompactorPart` in the same process, or by one elsewhere, through a `RemoteCompactorPart`.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from limpet.app import Fleet
from limpet.app.catalogs import (
    DOMAIN,
    client_config,
    executions_of,
    leader_of,
    open_catalog,
    storage_of,
)
from limpet.catalog import Compactor, Published, Publisher
from limpet.catalog.anti_entropy import hand_over
from limpet.catalog.gc import collect, collect_ledger
from limpet.catalog.parquet import ParquetSnapshots, arrow
from limpet.catalog.records import Batch
from limpet.catalog.storage import Own, Storage
from limpet.errors import Corrupt, Invalid, LimpetError
from limpet.events import EXECUTIONS
from limpet.keys import CatalogKeys, Key
from limpet.runtime import Runtime, ThreadHandle
from limpet.service.auth import Tokens
from limpet.service.http import RETRY_AFTER, HttpApp, Request, Response, Route, Routes, json_response
from limpet.service.limits import CONNECTIONS_MAX, FILES_KEPT, PEER_MAX, Gate, LimitedProtocol, Seat, TlsAcceptor
from limpet.service.log import ServiceLog
from limpet.service.rest import Rest
from limpet.service.rpc import RpcPublisher, compactor_routes
from limpet.store import ScopedStore, Store
from limpet.store.api import Put

BODY_BYTES_MAX = 16 << 20
BACKLOG = 1024
DRAIN_S = 5.0
"""How long an ending service waits for running requests; then those that wait for a publication get "unknown"."""
GRACE_S = 12.0
KEEP_ALIVE_S = 75
EXIT_AT_ONCE = 130
SAFE_HEADERS = [("x-content-type-options", "nosniff"), ("cache-control", "no-store")]
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

HAND_OVER_EVERY_S = 30.0
COLLECT_EVERY_S = 3600.0
KEEP = timedelta(days=30)
KEEP_VERSIONS = 100
START_S = 3.0
WATCH_EVERY_S = 0.5
POLL_S = 0.01
IDLE_S = 5.0
REMEMBERED_S = 1.0
SLOW_S = 5.0

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


# ---- background jobs ----


class BackgroundJob:
    """Runs `work` on a background thread every `every_s` seconds, and soon after each `wake()`."""

    def __init__(self, name: str, work: Callable[[], None], every_s: float, runtime: Runtime) -> None:
        self._name = name
        self._work = work
        self._every_s = every_s
        self._runtime = runtime
        self._wake = runtime.flag()
        self._stopped = False
        self._thread: ThreadHandle | None = None

    def start(self) -> None:
        """Start the thread. It does not keep the process alive, and `work` may be cut off at any point."""
        self._thread = self._runtime.spawn(self._run, name=f"limpet-{self._name}")

    def wake(self) -> None:
        """Have `work` run soon."""
        self._wake.set()

    def _run(self) -> None:
        # the first pause is random, so that processes that start together do not work at the same times
        self._wake.wait(self._runtime.rng.uniform(0.1, 1.0) * self._every_s)
        while not self._stopped:
            self._wake = self._runtime.flag()
            self._work()
            if not self._stopped:  # else `stop` may have set the flag before it was replaced
                self._wake.wait(self._every_s)

    def stop(self) -> None:
        """Begin no other run of `work`."""
        self._stopped = True
        self._wake.set()

    def finish(self) -> None:
        """End the thread, and run `work` once more."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self._work()


# ---- the parts ----


class ServiceContext:
    """What all parts of a process share. Each process has a registry of metrics, and nothing is registered globally."""

    def __init__(self, fleet: Fleet, runtime: Runtime, log: ServiceLog) -> None:
        self.fleet = fleet
        self.runtime = runtime
        self.log = log
        self.own = Own()
        """What the API has written; a compactor in the same process need not read it back."""
        self.registry = CollectorRegistry()
        self._turns = Counter(
            "limpet_loop_turns_total",
            "Turns of the loops in the background.",
            ("loop", "outcome"),
            registry=self.registry,
        )

    def store(self, role: str) -> Store:
        """The fleet's store with the rights of a role."""
        return ScopedStore(self.fleet.meter, role=role, runtime=self.runtime)

    def periodic(self, name: str, work: Callable[[], None], every_s: float) -> BackgroundJob:
        """A job that is not started yet. It counts its runs, and logs an error unless it is the last one again."""
        last_error = ""

        def work_counted() -> None:
            nonlocal last_error
            try:
                work()
            except LimpetError as error:
                self._turns.labels(name, "failed").inc()
                if str(error) != last_error:
                    self.log.tell(f"{name}: {error}" + (f" ({error.hint})" if error.hint else ""))
                last_error = str(error)
            else:
                self._turns.labels(name, "done").inc()
                last_error = ""

        return BackgroundJob(name, work_counted, every_s, self.runtime)

    def timed(self, publish: Publisher, then: Callable[[], None] | None = None) -> Publisher:
        """`publish`, with its time measured. `then` is called after each publication."""
        seconds = Histogram(
            "limpet_publish_seconds", "Time to publish a batch.", ("outcome",), registry=self.registry, buckets=SECONDS
        )

        def publish_timed(paths: Sequence[str], token: int) -> Published:
            since_s, outcome = self.runtime.elapsed_s(), "fault"
            try:
                published = publish(paths, token)
                outcome = "published"
            except LimpetError as error:
                outcome = type(error).__name__
                raise
            finally:
                seconds.labels(outcome).observe(self.runtime.elapsed_s() - since_s)
            if then is not None:
                then()
            return published

        return publish_timed


class ServicePart:
    """One service within a process."""

    def routes(self) -> list[Route]:
        """The requests that it answers."""
        return []

    def facts(self) -> dict[str, Any]:
        """Its state, for readiness; it asks the store.   Raises: the error that keeps it from its work."""
        raise NotImplementedError

    def start(self) -> None:
        """Start its background jobs."""

    def give_up(self) -> None:
        """Make running requests end, even if their outcome is then unknown."""

    def stop(self) -> None:
        """End in order, once there are no more requests."""


class CompactorPart(ServicePart):
    """The compactor: the sole writer of what is published, with the rights of its role."""

    def __init__(self, context: ServiceContext, secret: Tokens, *, exposed: bool) -> None:
        """`exposed`: APIs elsewhere may call it. One in the same process needs no route."""
        store = context.store("compactor")
        self._storage = storage_of(store, context.runtime, context.own)
        self._executions = executions_of(store, context.runtime)
        self._secret = secret
        self._exposed = exposed
        compactor = Compactor(self._storage)
        # if one of these fails, the next publication, here or in another process, does its work
        self._settling = BackgroundJob("settle", _quiet(compactor.settle), IDLE_S, context.runtime)
        self._preparing = BackgroundJob("prepare", _quiet(compactor.prepare), IDLE_S, context.runtime)
        self._collecting = context.periodic("collect", self._collect, COLLECT_EVERY_S)
        self.publish = context.timed(compactor.publish, self._wake)
        self.fold: Publisher = self._executions.publish

    def routes(self) -> list[Route]:
        return compactor_routes({DOMAIN: self.publish, EXECUTIONS: self.fold}, self._secret) if self._exposed else []

    def facts(self) -> dict[str, Any]:
        """The newest version that is published.   Cost: 1 GET."""
        seen = self._storage.head().read()
        head = seen.value if seen else None
        return {"version": head.version if head else 0, "published_at": head.at if head else None}

    def start(self) -> None:
        self._settling.start()
        self._preparing.start()
        self._collecting.start()

    def _wake(self) -> None:
        self._settling.wake()
        self._preparing.wake()

    def _collect(self) -> None:
        done = collect(self._storage, self._executions, keep=KEEP, keep_versions=KEEP_VERSIONS, ledger=False)
        if done.faults:
            raise Corrupt("; ".join(done.faults))

    def stop(self) -> None:
        self._collecting.stop()
        self._preparing.finish()
        self._settling.finish()


def _quiet(work: Callable[[], None]) -> Callable[[], None]:
    def work_quietly() -> None:
        with suppress(LimpetError):
            work()

    return work_quietly


class RemoteCompactorPart(ServicePart):
    """A compactor elsewhere, for an API that runs apart from it."""

    def __init__(self, context: ServiceContext, url: str, secret: str | None, ca: str | None = None) -> None:
        self._rpc = RpcPublisher(url, secret, context.runtime, domain=DOMAIN, ca=ca)
        self._folding = RpcPublisher(url, secret, context.runtime, domain=EXECUTIONS, ca=ca)
        self.publish = context.timed(self._rpc)
        self.fold: Publisher = self._folding

    def facts(self) -> dict[str, Any]:
        """Where the compactor is. If it does not answer, that is reported, but is no obstacle: reads need none.

        Raises: Denied if it does not know our secret.   Cost: one request to the compactor.
        """
        trouble = self._rpc.check()
        return {"compactor": self._rpc.url, **({"compactor_trouble": trouble} if trouble else {})}

    def give_up(self) -> None:
        self.stop()

    def stop(self) -> None:
        self._rpc.close()
        self._folding.close()


class ApiPart(ServicePart):
    """The API: leads when it can, answers from what is published, with the rights of its role."""

    def __init__(
        self, context: ServiceContext, tokens: Tokens, publish: Publisher, fold: Publisher, *, lease_s: float
    ) -> None:
        self._runtime = context.runtime
        self._log = context.log
        self._store = context.store("api")
        self._fold = fold
        storage = _CountedStorage(self._store, CatalogKeys.of(DOMAIN), context.runtime, ParquetSnapshots(), context.own)
        storage.groups = Histogram(
            "limpet_group_commits", "Commits published together.", registry=context.registry, buckets=SIZES
        )
        self.leader = leader_of(storage, publish, lease_s=lease_s)
        self.catalog = open_catalog(storage, context.fleet.url, self.leader)
        self._rest = Rest(self.catalog, tokens, client_config(context.fleet.url))
        self._jobs = [
            context.periodic("watch", self._log_leader, WATCH_EVERY_S),
            context.periodic("hand over", self._hand_over, HAND_OVER_EVERY_S),
            context.periodic("collect ledger", self._collect, COLLECT_EVERY_S),
        ]
        self._dead = Counter(
            "limpet_dead_batches_total", "Batches that no head published, removed.", registry=context.registry
        )
        self._strays = Gauge(
            "limpet_event_strays", "Objects among the events that are no batches.", registry=context.registry
        )
        leads = Gauge("limpet_leader", "1 if this process leads the catalog.", registry=context.registry)
        leads.set_function(lambda: self.leader.leads)
        self._thread: ThreadHandle | None = None
        self._handed_at_s: float | None = None
        self._logged = (False, "", "")

    def routes(self) -> list[Route]:
        return self._rest.routes()

    def facts(self) -> dict[str, Any]:
        """Which process leads, and what is published.   Cost: 1 GET, without a body if nothing changed."""
        loaded, leader, handed_at_s = self.catalog.view.now(), self.leader, self._handed_at_s
        return {
            "leads": leader.leads,
            "leader": leader.leader,
            **({"trouble": str(leader.trouble)} if leader.trouble else {}),
            "version": loaded.head.version if loaded else 0,
            "published_at": loaded.head.at if loaded else None,
            "events_lag_s": None if handed_at_s is None else round(self._runtime.elapsed_s() - handed_at_s, 1),
        }

    def start(self) -> None:
        self._thread = self._runtime.spawn(self.leader.run, name="limpet-leader")
        until_s = self._runtime.elapsed_s() + START_S
        # usually it leads by then, and the first request need not be sent again
        while not self.leader.leader and self._runtime.elapsed_s() < until_s:
            self._runtime.sleep(POLL_S)
        self._log_leader()
        for job in self._jobs:
            job.start()

    def _log_leader(self) -> None:
        """Log which process leads, and what keeps this one from it, if that has changed.   Cost: none."""
        leads, other, trouble = self.leader.leads, self.leader.leader, str(self.leader.trouble or "")
        led, last_other, last_trouble = self._logged
        if leads != led:
            self._log.event("lead", text="this process leads" if leads else "this process leads no more")
        elif not leads and other and other != last_other:
            self._log.event("lead", text=f"{other} leads")
        if trouble and trouble != last_trouble:
            self._log.event("trouble", text=f"no process leads: {trouble}")
        self._logged = (leads, other, trouble)

    def _hand_over(self) -> None:
        if self.leader.leads:  # one API of many is enough
            since_s = self._runtime.elapsed_s()
            self._strays.set(hand_over(self._store, CatalogKeys.of(EXECUTIONS), self._fold).strays)
            self._handed_at_s = since_s

    def _collect(self) -> None:
        if self.leader.leads:
            self.catalog.finish_purges()
            self._dead.inc(collect_ledger(self.catalog.storage).dead)

    def give_up(self) -> None:
        """End the leader: requests that wait for a publication get the answer that its outcome is unknown."""
        self.leader.stop()

    def stop(self) -> None:
        """End the jobs, and hand the leader's lock back."""
        for job in self._jobs:
            job.stop()
        self.leader.stop()
        if self._thread is not None:
            self._thread.join()
        self._log_leader()


class _CountedStorage(Storage):
    """The storage of a leader, with the size of each group counted."""

    groups: Histogram

    def add_batch(self, id_: str, batch: Batch, writes: Sequence[Put] = ()) -> Key:
        if batch.rows:
            self.groups.observe(len(batch.rows))
        return super().add_batch(id_, batch, writes)


# ---- readiness ----

Facts = Callable[[], dict[str, Any]]


def health_routes(facts: Facts, is_ending: Callable[[], bool], runtime: Runtime) -> list[Route]:
    """`/healthz`: the process answers. `/readyz`: it reaches its store, and is not ending. Neither asks for a token.

    The store's answer is remembered for a second, and one request at a time asks it; the others get the last answer. So
    strangers occupy one thread, however often they ask, and however long the store takes.
    """
    mutex = runtime.mutex()
    last = (float("-inf"), _not_ready("it is starting"))
    since_s: float | None = None

    def look() -> Response:
        nonlocal last, since_s
        with mutex:
            now_s = runtime.elapsed_s()
            if since_s is not None:
                return last[1] if now_s - since_s < SLOW_S else _not_ready("the store takes long to answer")
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
        return json_response({"status": "ready", **facts()})
    except LimpetError as error:
        return _not_ready(str(error), error.hint)


def _not_ready(error: str, hint: str = "") -> Response:
    return json_response({"status": "not ready", "error": error, "hint": hint}, 503, (RETRY_AFTER,))


# ---- metrics ----


class _ReadCounts(Collector):
    """Figures that the gate and the store count themselves, read when Prometheus asks."""

    def __init__(self, gate: Gate, fleet: Fleet) -> None:
        self._gate = gate
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        gate = self._gate
        connections = GaugeMetricFamily(
            "limpet_connections", "Connections; a stranger has not sent a known token yet.", labels=["client"]
        )
        connections.add_metric(["known"], gate.connections - gate.strangers)
        connections.add_metric(["stranger"], gate.strangers)
        ended = "Connections ended because there were too many."
        requests = CounterMetricFamily("limpet_store_requests_total", "Requests sent to the store.", labels=["verb"])
        for verb, count in self._fleet.meter.snapshot().requests.items():
            requests.add_metric([verb], count)
        return [connections, CounterMetricFamily("limpet_connections_ended_total", ended, gate.ended), requests]


class _RegistryView(Collector):
    """A registry without the `_created` series, one for each counter and histogram, which we do not need."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def metrics_text(registry: CollectorRegistry) -> bytes:
    """All metrics of a process, in Prometheus' text format."""
    return generate_latest(_RegistryView(registry))


# ---- the process ----


def run(
    parts: Sequence[ServicePart],
    context: ServiceContext,
    listener: socket.socket,
    tokens: Tokens,
    started: Callable[[], None],
    *,
    tls: ssl.SSLContext | None = None,
    peer_max: int = PEER_MAX,
) -> None:
    """Serve until a signal, then end in order: no new requests, running ones answered, the lock handed back.

    `started` is called once the parts run; the port takes requests already. `tokens` guard the metrics. `peer_max` is
    how many connections without a token one address may have.
    """
    _load_native_code()
    gate = _gate(peer_max)
    for name in ("uvicorn.error", "asyncio"):
        context.log.hear(name)
    context.registry.register(_ReadCounts(gate, context.fleet))
    seconds = Histogram(
        "limpet_request_seconds",
        "Time to answer.",
        ("method", "route", "status"),
        registry=context.registry,
        buckets=SECONDS,
    )
    ending = context.runtime.flag()

    def facts() -> dict[str, Any]:
        return {name: value for part in parts for name, value in part.facts().items()}

    def metrics(_: Request) -> Response:
        return Response(200, metrics_text(context.registry), (METRICS_TYPE,))

    def give_up() -> None:
        for part in reversed(parts):
            part.give_up()

    routes = [
        *(route for part in parts for route in part.routes()),
        *health_routes(facts, ending.is_set, context.runtime),
        Route("GET", "/metrics", metrics, tokens, right="metrics", touched=lambda _: ()),
    ]
    app = HttpApp(Routes(routes), context.runtime, body_bytes_max=BODY_BYTES_MAX, seconds=seconds, log=context.log)
    context.log.start()
    for part in parts:
        part.start()
    try:
        started()
        _serve(app, listener, context.runtime, gate, ending=ending.set, give_up=give_up, tls=tls)
    finally:
        context.log.event("ending")
        for part in reversed(parts):
            part.stop()
        stuck = app.close()
        context.log.stop()
    if stuck:
        os._exit(0)  # else Python would wait for threads that wait for a store


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Port 0 takes a free one.   Raises: Invalid if the address cannot be had."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise Invalid(
            f"cannot listen on {host}:{port}: {error}", hint="choose another --port, or end what listens there"
        ) from None


def tls_context(cert: str, key: str) -> ssl.SSLContext:
    """The TLS settings of a server, from files with its certificate and chain, and its key.   Raises: Invalid."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(cert, key, password="")
    except OSError as error:  # ssl.SSLError is one
        raise Invalid(
            f"the certificate {cert} with the key {key} cannot be used: {error}",
            hint="both in PEM, and the key without a password",
        ) from None
    return made


def _load_native_code() -> None:
    """Load modules written in C before there are threads, and have crashes in them print where they happened."""
    faulthandler.enable()
    arrow()
    with suppress(ImportError):  # then the loop is Python's own
        import_module("uvloop")


def _gate(peer_max: int) -> Gate:
    """The gate of a process: as many connections as it has files for, less some for its store."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + FILES_KEPT
    if soft != resource.RLIM_INFINITY and soft < wanted:
        more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = wanted if soft == resource.RLIM_INFINITY else soft
    return Gate(connections_max=max(16, min(CONNECTIONS_MAX, files - FILES_KEPT)), peer_max=peer_max)


def _serve(
    app: HttpApp,
    listener: socket.socket,
    runtime: Runtime,
    gate: Gate,
    *,
    ending: Callable[[], None],
    give_up: Callable[[], None],
    tls: ssl.SSLContext | None,
) -> None:
    """Answer requests until SIGTERM, SIGINT or SIGHUP; then take no more, answer the running ones, and return.

    `ending` is called at the signal, and `give_up` if they take too long: it must make them end. A second signal ends
    the process at once.
    """
    config = uvicorn.Config(
        app,
        http=partial(LimitedProtocol, gate, app, None),  # type: ignore[arg-type]  # called as a class is
        ws="none",
        headers=SAFE_HEADERS,
        log_config=None,
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(GRACE_S),
        backlog=BACKLOG,
    )
    server: Any = uvicorn.Server(config)
    server.capture_signals = _nothing  # uvicorn's own would end us by the signal, and not with 0
    if tls is not None:
        _accept_tls(server, app, gate, tls, listener)
    ended = runtime.flag()

    def drain() -> None:
        if not ended.wait(DRAIN_S):
            give_up()

    def stop(number: int, _: FrameType | None) -> None:
        if server.should_exit:
            os._exit(EXIT_AT_ONCE)
        server.should_exit = True
        ending()
        runtime.spawn(drain, name="limpet-drain")

    with _signals(stop):
        try:
            server.run(sockets=[listener])
        finally:
            ended.set()


def _accept_tls(server: Any, app: HttpApp, gate: Gate, context: ssl.SSLContext, listener: socket.socket) -> None:
    """Have a server of uvicorn take its connections from a `TlsAcceptor`."""
    start = server.startup

    def protocol(seat: Seat) -> LimitedProtocol:
        state = {"server_state": server.server_state, "app_state": server.lifespan.state}
        return LimitedProtocol(gate, app, seat, config=server.config, **state)

    async def startup(sockets: Any = None) -> None:
        await start(sockets=[])
        server.servers.append(TlsAcceptor(listener, gate, context, protocol))

    server.startup = startup


@contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals that stop, while the block lasts. One that we were started to ignore (nohup) stays ignored."""
    heeded = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
