"""The process of `limpet serve`: its parts behind one port, background jobs, readiness, metrics, start and shutdown.

A process has one or two parts. `ApiPart` answers the REST protocol and leads when it can. Its batches are published by
a `CompactorPart` in the same process, or by a compactor elsewhere, through a `RemoteCompactorPart`.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any, Literal

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import limpet
from limpet.app import Fleet
from limpet.app.catalogs import (
    DOMAIN,
    LEASE_S,
    client_config,
    executions_of,
    leader_of,
    open_catalog,
    storage_of,
    workspace_url,
)
from limpet.app.fleet import absolute, check_has_store, check_same
from limpet.catalog import Compactor, Publisher
from limpet.catalog.catalog import Catalog
from limpet.catalog.gc import collect, collect_ledger
from limpet.catalog.storage import SharedState
from limpet.errors import Corrupt, Invalid, LimpetError
from limpet.events import EXECUTIONS
from limpet.events.fold import hand_over
from limpet.events.parquet import arrow
from limpet.keys import CatalogKeys
from limpet.runtime import BackgroundJob, Runtime, ThreadHandle, system
from limpet.service.auth import METRICS_TOKEN, RPC_SECRET, WatchedFile, check_bind, named_tokens, source_of
from limpet.service.client import API_TOKENS, secrets_of
from limpet.service.http import (
    CONNECTIONS_MAX,
    DEFAULT,
    FILES_KEPT,
    PEER_MAX,
    RETRY_AFTER,
    SECONDS,
    Caller,
    Connection,
    ConnectionLimiter,
    Form,
    HttpApp,
    LimitedProtocol,
    Request,
    Response,
    Route,
    Routes,
    ServiceLog,
    TlsAcceptor,
    Tokens,
    is_loopback,
    json_response,
    timed,
)
from limpet.service.rest import Rest
from limpet.service.rpc import RpcPublisher, RpcPublishers, compactor_routes
from limpet.service.sign import LIFE_S, StsArguments, credential_source, outside_object, signer_of
from limpet.store import ScopedStore, Store

BODY_BYTES_MAX = 16 << 20
BACKLOG = 1024
DRAIN_S = 5.0
"""How long a stopping service waits for running requests. Those that wait for a publication then get "unknown"."""
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

SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


# ---- the parts ----


class ServiceContext:
    """What all parts of a process share. The registry of metrics belongs to it: nothing is registered globally."""

    def __init__(self, fleet: Fleet, runtime: Runtime, log: ServiceLog) -> None:
        self.fleet = fleet
        self.runtime = runtime
        self.log = log
        self.ending = runtime.flag()
        """Raised by the signal that stops the process: streams end then."""
        self.recent = SharedState()
        """Batches that the API has written: a compactor in the same process need not read them."""
        self.registry = CollectorRegistry()
        self._turns = Counter(
            "limpet_loop_turns_total",
            "Runs of the background loops.",
            ("loop", "outcome"),
            registry=self.registry,
        )

    def store(self, role: str) -> Store:
        """The fleet's store with the rights of a role."""
        return ScopedStore(self.fleet.meter, role=role, runtime=self.runtime)

    def periodic(self, name: str, work: Callable[[], None], every_s: float) -> BackgroundJob:
        """A job, not started yet. It counts its runs, and logs an error unless it is the same as the last one."""
        last_error = ""

        def work_counted() -> None:
            nonlocal last_error
            try:
                work()
            except LimpetError as error:
                self._turns.labels(name, "failed").inc()
                if str(error) != last_error:
                    self.log.warn(f"{name}: {error}" + (f" ({error.hint})" if error.hint else ""))
                last_error = str(error)
            else:
                self._turns.labels(name, "done").inc()
                last_error = ""

        return BackgroundJob(name, work_counted, every_s, self.runtime)


class ServicePart(ABC):
    """One service within a process."""

    def routes(self) -> list[Route]:
        """The routes that it serves."""
        return []

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Its state, for readiness; reads the store.   Raises: the error that keeps it from working."""

    def start(self) -> None:  # noqa: B027 (optional)
        """Start its background jobs."""

    def give_up(self) -> None:  # noqa: B027 (optional)
        """Make running requests end, even if their outcome is then unknown."""

    @abstractmethod
    def stop(self) -> None:
        """Shut down, after the last request."""


class CompactorPart(ServicePart):
    """The compactor: the only writer of heads, commits and snapshots, with the rights of its role."""

    def __init__(self, context: ServiceContext, secret: Tokens, *, exposed: bool) -> None:
        """`exposed`: serve a route for APIs elsewhere. An API in the same process needs none."""
        store = context.store("compactor")
        self._storage = storage_of(store, context.runtime, context.recent)
        self._executions = executions_of(store, context.runtime)
        self._secret = secret
        self._exposed = exposed
        self._fleet = context.fleet.record.id or ""
        compactor = Compactor(self._storage)
        # if one of these jobs fails, the next publication does its work, here or in another process
        self._settling = BackgroundJob("settle", compactor.record, IDLE_S, context.runtime)
        self._preparing = BackgroundJob("prepare", compactor.prepare, IDLE_S, context.runtime)
        self._collecting = context.periodic("collect", self._collect, COLLECT_EVERY_S)
        wakes = self._settling.wake, self._preparing.wake
        self.publish = timed(compactor.publish, context.registry, context.runtime, *wakes)
        self.fold: Publisher = self._executions.publish

    def routes(self) -> list[Route]:
        publishers = {DOMAIN: self.publish, EXECUTIONS: self.fold}
        return compactor_routes(publishers, self._secret, self._fleet) if self._exposed else []

    def facts(self) -> dict[str, Any]:
        """The newest published version.   Cost: 1 GET."""
        seen = self._storage.head().read()
        head = seen.value if seen else None
        return {"version": head.version if head else 0, "published_at": head.at if head else None}

    def start(self) -> None:
        self._settling.start()
        self._preparing.start()
        self._collecting.start()

    def _collect(self) -> None:
        done = collect(self._storage, self._executions, keep=KEEP, keep_versions=KEEP_VERSIONS, ledger=False)
        if done.faults:
            raise Corrupt("; ".join(done.faults))

    def stop(self) -> None:
        self._collecting.stop()
        self._preparing.finish()
        self._settling.finish()


class RemoteCompactorPart(ServicePart):
    """Compactors elsewhere, for an API that runs apart from them. One of them is enough."""

    def __init__(self, context: ServiceContext, urls: Sequence[str], secret: str | None, ca: str | None = None) -> None:
        fleet = context.fleet.record.id or ""

        def publishers(domain: str) -> RpcPublishers:
            made = [RpcPublisher(url, secret, context.runtime, domain=domain, ca=ca, fleet=fleet) for url in urls]
            return RpcPublishers(made, context.runtime)

        self._rpc, self._folding = publishers(DOMAIN), publishers(EXECUTIONS)
        self.publish = timed(self._rpc, context.registry, context.runtime)
        self.fold: Publisher = self._folding

    def facts(self) -> dict[str, Any]:
        """The URL of the compactor in use. If one does not answer, that is reported, but the API stays ready: reads
        need none.

        Raises: Denied if none accepts our secret and our fleet, and some reject them.
        Cost: one request to each compactor.
        """
        trouble = self._rpc.check()
        return {"compactor": self._rpc.url, **({"compactor_trouble": trouble} if trouble else {})}

    def give_up(self) -> None:
        self.stop()

    def stop(self) -> None:
        self._rpc.close()
        self._folding.close()


class ApiPart(ServicePart):
    """The API: leads when it can, and answers from the published state, with the rights of its role."""

    def __init__(
        self,
        context: ServiceContext,
        tokens: Tokens,
        publish: Publisher,
        fold: Publisher,
        *,
        lease_s: float,
        remote_signing: bool = False,
        sts: StsArguments | None = None,
    ) -> None:
        self._runtime = context.runtime
        self._log = context.log
        self._store = context.store("api")
        self._fold = fold
        storage = storage_of(self._store, context.runtime, context.recent)
        self.leader = leader_of(storage, publish, lease_s=lease_s)
        self.leader.group_published = Histogram(
            "limpet_group_commits", "Commits published together.", registry=context.registry, buckets=SIZES
        ).observe
        self.leader.check_fleet = partial(check_same, context.fleet)
        self.catalog = open_catalog(storage, context.fleet.url, self.leader)
        url, warehouse = context.fleet.url, self.catalog.warehouse.url
        signer = signer_of(url, warehouse, context.runtime) if remote_signing else None
        issuer = credential_source(url, warehouse, sts, context.runtime) if sts else None
        for each in (signer, issuer):
            if each is not None:
                each.check(outside_object(url))
        self._rest = Rest(self.catalog, tokens, client_config(url), signer, issuer)
        self._jobs = [
            context.periodic("watch", self._log_leader, WATCH_EVERY_S),
            context.periodic("hand over", self._hand_over, HAND_OVER_EVERY_S),
            context.periodic("collect ledger", self._collect, COLLECT_EVERY_S),
        ]
        self._dead = Counter(
            "limpet_dead_batches_total", "Unpublished batches that were removed.", registry=context.registry
        )
        self._strays = Gauge(
            "limpet_event_strays", "Objects in the ledger of events that are not batches.", registry=context.registry
        )
        leads = Gauge("limpet_leader", "1 if this process leads the catalog.", registry=context.registry)
        leads.set_function(lambda: self.leader.leads)
        self._thread: ThreadHandle | None = None
        self._handed_at_s: float | None = None
        self._logged = (False, "", "")

    def routes(self) -> list[Route]:
        return self._rest.routes()

    def facts(self) -> dict[str, Any]:
        """Which process leads, and the published version.   Cost: 1 GET, without a body if nothing changed."""
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
        # usually it leads by then, so that the first request need not be retried
        while not self.leader.leader and self._runtime.elapsed_s() < until_s:
            self._runtime.sleep(POLL_S)
        self._log_leader()
        for job in self._jobs:
            job.start()

    def _log_leader(self) -> None:
        """Log changes: which process leads, and the error that keeps this one from leading.   Cost: none."""
        leads, other, trouble = self.leader.leads, self.leader.leader, str(self.leader.trouble or "")
        led, last_other, last_trouble = self._logged
        if leads != led:
            self._log.event("lead", text="this process leads" if leads else "this process no longer leads")
        elif not leads and other and other != last_other:
            self._log.event("lead", text=f"{other} leads")
        if trouble and trouble != last_trouble:
            self._log.event("trouble", text=f"no process leads: {trouble}")
        self._logged = (leads, other, trouble)

    def _hand_over(self) -> None:
        if self.leader.leads:  # one of several APIs is enough
            since_s = self._runtime.elapsed_s()
            self._strays.set(hand_over(self._store, CatalogKeys.of(EXECUTIONS), self._fold).strays)
            self._handed_at_s = since_s

    def _collect(self) -> None:
        if self.leader.leads:
            self.catalog.finish_purges()
            self._dead.inc(collect_ledger(self.catalog.storage).dead)

    def give_up(self) -> None:
        """Stop the leader: requests that wait for a publication are answered with "outcome unknown"."""
        self.leader.stop()

    def stop(self) -> None:
        """Stop the jobs, and release the leader's lock."""
        for job in self._jobs:
            job.stop()
        self.leader.stop()
        if self._thread is not None:
            self._thread.join()
        self._log_leader()


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


class _ReadCounts(Collector):
    """Counts that the limiter and the store keep, read at each scrape."""

    def __init__(self, limiter: ConnectionLimiter, fleet: Fleet) -> None:
        self._limiter = limiter
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
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


# ---- the process ----

Kind = Literal["all", "api", "compactor"]
MoreParts = Callable[[ServiceContext, Tokens, Catalog], Sequence[ServicePart]]
Announce = Callable[[str, str, bool], None]
"""Receives the URL of the service, the URL of its fleet, and whether clients need a token."""


def serve_fleet(
    kind: Kind,
    url: str,
    announce: Announce,
    *,
    host: str,
    port: int,
    log: Form,
    peer_max: int,
    metrics_token_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tokens_file: str | None = None,
    lease_s: float = LEASE_S,
    remote_signing: bool = False,
    sts_role_arn: str | None = None,
    sts_endpoint: str | None = None,
    sts_duration_s: int = LIFE_S,
    compactor_urls: Sequence[str] = (),
    ca: str | None = None,
    beside: MoreParts | None = None,
) -> None:
    """Serve the catalog of the fleet at `url`, or one half of it, until a signal. See `run`.

    `beside` makes the parts that are served beside an API, such as the dashboard. Tokens and secrets come from the
    environment.   Raises: Invalid for contradictory or unsafe settings; the error that keeps the fleet from being
    opened.
    """
    runtime = system()
    to_log = ServiceLog(runtime, log)
    if (tls_cert is None) != (tls_key is None):
        raise Invalid("--tls-cert and --tls-key go together", hint="give both, or neither")
    tls = _tls_context(tls_cert, tls_key) if tls_cert and tls_key else None
    secrets = secrets_of(RPC_SECRET)
    tokens, metrics_tokens = _tokens(kind, tokens_file, metrics_token_file, runtime, to_log.warn)
    check_bind(host, {RPC_SECRET if kind == "compactor" else API_TOKENS: bool(tokens)})
    where = absolute(workspace_url(url))
    if "%" in where.partition("?")[0]:
        raise Invalid(
            f"{where} contains a %, which table clients decode in different ways",
            hint="use a path, tenant and workspace of letters, digits, - and _",
        )
    check_has_store(where, "a catalog needs a store")
    fleet = limpet.open(where)
    fleet.identify()
    fleet.check()
    context = ServiceContext(fleet, runtime, to_log)
    publishing: CompactorPart | RemoteCompactorPart
    if kind == "api":
        publishing = RemoteCompactorPart(context, compactor_urls, secrets[0] if secrets else None, ca)
    else:
        publishing = CompactorPart(context, tokens, exposed=kind == "compactor")
    parts: list[ServicePart] = [publishing]
    if kind != "compactor":
        if sts_endpoint and not sts_role_arn:
            raise Invalid("--sts-endpoint has no effect without --sts-role-arn", hint="give the role to assume")
        sts = StsArguments(sts_role_arn, sts_endpoint, sts_duration_s) if sts_role_arn else None
        given = publishing.publish, publishing.fold
        api = ApiPart(context, tokens, *given, lease_s=lease_s, remote_signing=remote_signing, sts=sts)
        parts += [api, *(beside(context, tokens, api.catalog) if beside else ())]
    listener = listen(host, port)
    if tls is None and not is_loopback(host):
        to_log.warn(f"{host} is served without TLS: tokens are sent in clear text; give --tls-cert, or use a proxy")
    started = partial(announce, address_of(listener, tls=tls is not None), absolute(fleet.url), bool(tokens))
    run(parts, context, listener, metrics_tokens, started, tls=tls, peer_max=peer_max)


def _tokens(
    kind: Kind,
    tokens_file: str | None,
    metrics_token_file: str | None,
    runtime: Runtime,
    warn: Callable[[str], None],
) -> tuple[Tokens, Tokens]:
    """The tokens of the service, and those for its metrics: the same, and one for metrics only."""
    if kind == "compactor":
        given = source_of(RPC_SECRET, Caller("rpc", frozenset(("publish", "metrics"))), runtime, warn)
    else:
        given = source_of(API_TOKENS, Caller(DEFAULT, frozenset(("read", "write", "metrics"))), runtime, warn)
    named = None if tokens_file is None else WatchedFile(tokens_file, named_tokens, runtime, warn, private=True)
    environ = {**os.environ, **({f"{METRICS_TOKEN}_FILE": metrics_token_file} if metrics_token_file else {})}
    scraper = source_of(METRICS_TOKEN, Caller("metrics", frozenset(("metrics",))), runtime, warn, environ)
    found = [source for source in (given, named) if source is not None]
    return Tokens((), *found), Tokens((), *found, *([scraper] if scraper is not None else []))


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
    """Serve until a signal, then shut down: accept no new requests, answer running ones, release the lock.

    `started` is called once the parts run; the port accepts requests already. `tokens` guard the metrics. `peer_max`
    limits the connections without a token from one address.
    """
    _load_native_code()
    limiter = _limiter(peer_max)
    for name in ("uvicorn.error", "asyncio"):
        context.log.redirect(name)
    context.registry.register(_ReadCounts(limiter, context.fleet))
    seconds = Histogram(
        "limpet_request_seconds",
        "Time to answer.",
        ("method", "route", "status"),
        registry=context.registry,
        buckets=SECONDS,
    )
    ending = context.ending

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
        _serve(app, listener, context.runtime, limiter, ending=ending.set, give_up=give_up, tls=tls)
    finally:
        context.log.event("ending")
        for part in reversed(parts):
            part.stop()
        stuck = app.close()
        context.log.stop()
    if stuck:
        os._exit(0)  # else Python would wait for threads that are blocked on the store


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Port 0 picks a free one.   Raises: Invalid if the address is not available."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise Invalid(
            f"cannot listen on {host}:{port}: {error}", hint="choose another --port, or stop the process that uses it"
        ) from None


def address_of(listener: socket.socket, *, tls: bool = False) -> str:
    """The URL at which this machine reaches a socket that listens."""
    address, number = listener.getsockname()[:2]
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    return f"{'https' if tls else 'http'}://{f'[{reached}]' if ':' in reached else reached}:{number}"


def _tls_context(cert: str, key: str) -> ssl.SSLContext:
    """The TLS context of a server, from files with its certificate chain and its key.   Raises: Invalid."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(cert, key, password="")
    except OSError as error:  # ssl.SSLError is one
        raise Invalid(
            f"the certificate {cert} with the key {key} cannot be used: {error}",
            hint="both must be PEM files, and the key must not have a password",
        ) from None
    return made


def _load_native_code() -> None:
    """Load C extensions before threads are started, and print tracebacks of crashes in them."""
    faulthandler.enable()
    arrow()
    with suppress(ImportError):  # then asyncio's loop is used
        import_module("uvloop")


def _limiter(peer_max: int) -> ConnectionLimiter:
    """The limiter of a process: as many connections as there are file descriptors, less some for the store."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + FILES_KEPT
    if soft != resource.RLIM_INFINITY and soft < wanted:
        more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = wanted if soft == resource.RLIM_INFINITY else soft
    return ConnectionLimiter(connections_max=max(16, min(CONNECTIONS_MAX, files - FILES_KEPT)), peer_max=peer_max)


def _serve(
    app: HttpApp,
    listener: socket.socket,
    runtime: Runtime,
    limiter: ConnectionLimiter,
    *,
    ending: Callable[[], None],
    give_up: Callable[[], None],
    tls: ssl.SSLContext | None,
) -> None:
    """Answer requests until SIGTERM, SIGINT or SIGHUP; then accept no more, answer the running ones, and return.

    `ending` is called at the signal, and `give_up` if the running requests take too long: it must make them end. A
    second signal ends the process immediately.
    """
    config = uvicorn.Config(
        app,
        http=partial(LimitedProtocol, limiter, app, None),  # type: ignore[arg-type]  # called like a class
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
    server.capture_signals = _nothing  # uvicorn would raise the signal again, and the exit code would not be 0
    if tls is not None:
        _accept_tls(server, app, limiter, tls, listener)
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


def _accept_tls(
    server: Any, app: HttpApp, limiter: ConnectionLimiter, context: ssl.SSLContext, listener: socket.socket
) -> None:
    """Make uvicorn's server accept its connections through a `TlsAcceptor`."""
    start = server.startup

    def protocol(connection: Connection) -> LimitedProtocol:
        state = {"server_state": server.server_state, "app_state": server.lifespan.state}
        return LimitedProtocol(limiter, app, connection, config=server.config, **state)

    async def startup(sockets: Any = None) -> None:
        await start(sockets=[])
        server.servers.append(TlsAcceptor(listener, limiter, context, protocol))

    server.startup = startup


@contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the stop signals inside the block. A signal that the parent made us ignore (nohup) stays ignored."""
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
