"""A process that serves: its parts behind one port, from the first request to the last."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from limpet.service.asgi import Shell
from limpet.service.auth import Tokens
from limpet.service.health import health_routes
from limpet.service.metrics import Gauge, Metrics, Requests
from limpet.service.parts import Part, Shared
from limpet.service.routes import Route, Routes
from limpet.service.server import gate_of, load, serve

if TYPE_CHECKING:
    from limpet.service.limits import Gate

__all__ = ["BODY_BYTES_MAX", "run"]

BODY_BYTES_MAX = 16 << 20


def run(
    parts: Sequence[Part],
    shared: Shared,
    listener: socket.socket,
    tokens: Tokens,
    started: Callable[[], None],
    *,
    tls: ssl.SSLContext | None = None,
    peer_max: int | None = None,
) -> None:
    """Serve until a signal, then end in order: no new requests, those in hand answered, the lock handed back.

    `started` is called once the parts run; the port takes requests already. `tokens` guard the metrics. `peer_max` is
    how many connections without a token one address may have.
    Raises: Unsupported without the extra.
    """
    load()
    gate = gate_of(peer_max)
    for name in ("uvicorn.error", "asyncio"):
        shared.log.hear(name)
    requests = Requests(shared.runtime)
    metrics = Metrics(requests.seconds, shared.turns, _store_requests(shared), *_connections(gate))
    routes: list[Route] = []
    for part in parts:
        metrics.add(*part.metrics())
        routes += part.routes()
    ending = shared.runtime.flag()

    def facts() -> dict[str, Any]:
        return {name: value for part in parts for name, value in part.facts().items()}

    def give_up() -> None:
        for part in reversed(parts):
            part.give_up()

    routes += [
        *health_routes(facts, ending.is_set, shared.runtime),
        Route("GET", "/metrics", metrics.handle, tokens, right="metrics", touched=lambda _: ()),
    ]
    shell = Shell(Routes(routes), shared.runtime, requests, body_bytes_max=BODY_BYTES_MAX, log=shared.log)
    shared.log.start()
    for part in parts:
        part.start()
    try:
        started()
        serve(shell, listener, shared.runtime, gate, ending=ending.set, give_up=give_up, tls=tls)
    finally:
        shared.log.event("ending")
        for part in reversed(parts):
            part.stop()
        stuck = shell.close()
        shared.log.stop()
    if stuck:
        os._exit(0)  # else Python would wait for threads that wait for a store


def _connections(gate: Gate) -> list[Gauge]:
    def read() -> dict[str, float]:
        return {"known": float(gate.connections - gate.strangers), "stranger": float(gate.strangers)}

    return [
        Gauge("limpet_connections", "Connections; a stranger has not sent a known token yet.", read, "client"),
        Gauge(
            "limpet_connections_ended_total",
            "Connections ended because there were too many.",
            lambda: {"": float(gate.ended)},
            kind="counter",
        ),
    ]


def _store_requests(shared: Shared) -> Gauge:
    def read() -> dict[str, float]:
        return {verb: float(count) for verb, count in shared.fleet.meter.snapshot().requests.items()}

    return Gauge("limpet_store_requests_total", "Requests sent to the store.", read, "verb", kind="counter")
