"""Running a service: one process, one port, and an orderly end."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

from limpet.catalog.parquet import arrow
from limpet.errors import Invalid, Unsupported
from limpet.runtime import Runtime

if TYPE_CHECKING:
    from limpet.service.asgi import Shell
    from limpet.service.limits import Gate

__all__ = ["gate_of", "listen", "load", "serve", "tls_context"]

BACKLOG = 1024
DRAIN_S = 5.0
"""For so long an ending service waits for what its requests wait for; then they are told that it is unknown."""
GRACE_S = 12.0
KEEP_ALIVE_S = 75
EXIT_AT_ONCE = 130
SAFE_HEADERS = [("x-content-type-options", "nosniff"), ("cache-control", "no-store")]
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def load() -> None:
    """Load what is written in C before there are threads, and have its crashes tell where they were.

    Raises: Unsupported without the extra.
    """
    faulthandler.enable()
    arrow()
    _uvicorn()
    with suppress(ImportError):  # then the loop is Python's own
        import_module("uvloop")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Port 0 takes a free one.   Raises: Invalid if the address cannot be had."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        made = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise Invalid(
            f"cannot listen on {host}:{port}: {error}", hint="choose another --port, or end what listens there"
        ) from None
    return made


def tls_context(cert: str, key: str) -> ssl.SSLContext:
    """What a server needs for TLS, from the files of a certificate with its chain and of its key.   Raises: Invalid."""
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


def gate_of(peer_max: int | None = None) -> Gate:
    """The gate of a process: as many connections as it has files for, and some to spare for its store."""
    limits = import_module("limpet.service.limits")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.CONNECTIONS_MAX + limits.FILES_KEPT
    if soft != resource.RLIM_INFINITY and soft < wanted:
        more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = wanted if soft == resource.RLIM_INFINITY else soft
    most = max(16, min(limits.CONNECTIONS_MAX, files - limits.FILES_KEPT))
    made: Gate = limits.Gate(connections_max=most, peer_max=peer_max or limits.PEER_MAX)
    return made


def serve(
    app: Shell,
    listener: socket.socket,
    runtime: Runtime,
    gate: Gate,
    *,
    ending: Callable[[], None],
    give_up: Callable[[], None],
    tls: ssl.SSLContext | None = None,
) -> None:
    """Answer requests until SIGTERM, SIGINT or SIGHUP; then take no more, answer those in hand, and return.

    `ending` is called at the signal, and `give_up` if they take too long: it must make them end. A second signal ends
    the process at once.   Raises: Unsupported without the extra.
    """
    uvicorn = _uvicorn()
    config = uvicorn.Config(
        app,
        http=partial(import_module("limpet.service.limits").LimitedProtocol, gate, app, None),
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
    server = uvicorn.Server(config)
    server.capture_signals = _nothing  # uvicorn's own would end us by the signal, and not with 0
    if tls is not None:
        _with_tls(server, app, gate, tls, listener)
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


def _with_tls(server: Any, app: Shell, gate: Gate, context: ssl.SSLContext, listener: socket.socket) -> None:
    """Have a server of uvicorn take its connections from a `TlsAcceptor`."""
    limits = import_module("limpet.service.limits")
    start = server.startup

    def protocol(seat: Any) -> Any:
        state = {"server_state": server.server_state, "app_state": server.lifespan.state}
        return limits.LimitedProtocol(gate, app, seat, config=server.config, **state)

    async def startup(sockets: Any = None) -> None:
        await start(sockets=[])
        server.servers.append(limits.TlsAcceptor(listener, gate, context, protocol))

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


def _uvicorn() -> Any:
    try:
        import uvicorn
    except ImportError:
        raise Unsupported("serving needs uvicorn", hint="pip install 'limpet[catalog]'") from None
    return uvicorn
