"""The process of `limpet serve`: its parts behind one port, start and shutdown."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any, Literal

import uvicorn

import limpet
from limpet.app.catalogs import LEASE_S, workspace_url
from limpet.app.place import absolute, check_has_store
from limpet.catalog.catalog import Catalog
from limpet.events.parquet import arrow
from limpet.kernel.errors import Invalid
from limpet.kernel.runtime import Runtime, system
from limpet.service.app import HttpApp, Routes
from limpet.service.client import API_TOKENS, secrets_of
from limpet.service.log import Form, ServiceLog
from limpet.service.parts import ApiPart, CompactorPart, RemoteCompactorPart, ServiceContext, ServicePart
from limpet.service.protocol import (
    CONNECTIONS_MAX,
    FILES_KEPT,
    PEER_MAX,
    Connection,
    ConnectionLimiter,
    LimitedProtocol,
)
from limpet.service.sign import LIFE_S, StsArguments
from limpet.service.status import ReadCounts, health_routes, metrics_route, request_seconds
from limpet.service.tls import TlsAcceptor, tls_context
from limpet.service.tokens import (
    DEFAULT,
    METRICS_TOKEN,
    RPC_SECRET,
    Caller,
    Tokens,
    WatchedFile,
    check_bind,
    is_loopback,
    named_tokens,
    source_of,
)

BODY_BYTES_MAX = 16 << 20
BACKLOG = 1024
DRAIN_S = 5.0
"""How long a stopping service waits for running requests. Those that wait for a publication then get "unknown"."""
GRACE_S = 12.0
KEEP_ALIVE_S = 75
EXIT_AT_ONCE = 130
SAFE_HEADERS = [("x-content-type-options", "nosniff"), ("cache-control", "no-store")]
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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
    tls = tls_context(tls_cert, tls_key) if tls_cert and tls_key else None
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
    kind: Kind, tokens_file: str | None, metrics_token_file: str | None, runtime: Runtime, warn: Callable[[str], None]
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
    faulthandler.enable()
    arrow()  # C extensions are loaded before threads are started
    with suppress(ImportError):  # then asyncio's loop is used
        import_module("uvloop")
    limiter = _limiter(peer_max)
    for name in ("uvicorn.error", "asyncio"):
        context.log.redirect(name)
    context.registry.register(ReadCounts(limiter, context.fleet))

    def facts() -> dict[str, Any]:
        return {name: value for part in parts for name, value in part.facts().items()}

    def give_up() -> None:
        for part in reversed(parts):
            part.give_up()

    routes = [
        *(route for part in parts for route in part.routes()),
        *health_routes(facts, context.ending.is_set, context.runtime),
        metrics_route(context.registry, tokens),
    ]
    seconds = request_seconds(context.registry)
    app = HttpApp(Routes(routes), context.runtime, body_bytes_max=BODY_BYTES_MAX, seconds=seconds, log=context.log)
    context.log.start()
    for part in parts:
        part.start()
    try:
        started()
        _serve(app, listener, context.runtime, limiter, ending=context.ending.set, give_up=give_up, tls=tls)
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
    server.capture_signals = nullcontext  # uvicorn would raise the signal again, and the exit code would not be 0
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
