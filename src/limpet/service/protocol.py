"""Limits on connections, so that clients without a token cannot exhaust memory, threads or connections (F32).

uvicorn limits none of this. A connection is a *stranger* until a request on it has sent a known token. Until then:

- its memory is limited: 64 KiB of request line and headers, no body, no trailers, and few pipelined requests;
- its time is limited: 10 seconds for the headers; the protocol itself writes a refusal, and then closes;
- there are at most 512 strangers, 128 from one address, except for a moment. A further one closes the oldest stranger
  of the address that has most of them. So a client with a token always gets in: after its first request it is not
  a stranger any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from limpet.service.app import HttpApp
from limpet.service.requests import CLOSE, Response

HEAD_BYTES_MAX = 64 << 10
"""Request line and headers; it may be exceeded by one read of the socket."""
HEADERS_MAX = 128
HEAD_S = 10.0
"""Time for the headers of a request, from its first byte; for the first request, from the connection's start."""
REQUEST_S = 40.0
"""Time for a request with its body."""
LINGER_S = 2.0
DISCARD_BYTES_MAX = 256 << 10
"""How long and how much a refused client may go on sending, so that it gets to read the response."""
PIPELINE_MAX = 8
CONNECTIONS_MAX = 1024
"""Further connections are closed immediately: the process needs file descriptors to renew its lease."""
STRANGERS_MAX = 512
PEER_MAX = 128
FILES_KEPT = 256
STRANGER_IDLE_S = 5.0
FIRST_S = 0.25
"""A younger connection is not closed in favour of another one from the same address."""


@dataclass(slots=True, eq=False)
class Connection:
    """A connection as the limiter counts it. `end` closes it."""

    peer: str
    since_s: float
    end: Callable[[], None]
    is_stranger: bool = True
    is_gone: bool = False


class ConnectionLimiter:
    """Counts the connections of a process, and chooses which to close when there are too many. For one event loop."""

    def __init__(self, *, connections_max: int = CONNECTIONS_MAX, peer_max: int = PEER_MAX) -> None:
        self._connections_max = connections_max
        self._strangers_max = min(STRANGERS_MAX, max(1, connections_max // 2))
        self._peer_max = peer_max
        self._strangers: dict[str, dict[Connection, None]] = {}
        self.connections = 0
        self.strangers = 0
        self.ended = 0
        """How many connections were closed because there were too many."""

    def add(self, peer: str, now_s: float, end: Callable[[], None]) -> Connection | None:
        """Count a new connection; None if there is no room. A stranger may be closed to make room. `end` closes it."""
        here = len(self._strangers.get(peer, ()))
        is_full = self.connections >= self._connections_max
        if is_full or self.strangers >= self._strangers_max or here >= self._peer_max:
            victim = self._victim(peer, now_s)
            if victim is not None:
                self.remove(victim)
                self.ended += 1
                victim.end()
            elif is_full:
                self.ended += 1
                return None
        connection = Connection(peer, now_s, end)
        self._strangers.setdefault(peer, {})[connection] = None
        self.connections += 1
        self.strangers += 1
        return connection

    def identify(self, connection: Connection) -> None:
        """The client has sent a known token."""
        if connection.is_stranger:
            self._count_as_known(connection)

    def remove(self, connection: Connection) -> None:
        """The connection has ended. One that was closed to make room is removed already."""
        if connection.is_stranger:
            self._count_as_known(connection)
        if not connection.is_gone:
            connection.is_gone = True
            self.connections -= 1

    def _victim(self, peer: str, now_s: float) -> Connection | None:
        """The stranger to close for a new connection from `peer`; None if there is none.

        It is the oldest one of the address that has most strangers. One from `peer` itself is closed only after it has
        had time to send a request: else, of many that arrive together, a legitimate one would be closed unread.
        """
        if not self._strangers:
            return None
        most = max(self._strangers.values(), key=len)
        mine = self._strangers.get(peer, {})
        if len(mine) >= min(self._peer_max, len(most)):
            most = mine
        oldest = next(iter(most))
        return oldest if oldest.peer != peer or now_s - oldest.since_s >= FIRST_S else None

    def _count_as_known(self, connection: Connection) -> None:
        here = self._strangers[connection.peer]
        del here[connection]
        if not here:
            del self._strangers[connection.peer]
        connection.is_stranger = False
        self.strangers -= 1


class _OverLimit(Exception):
    """A request exceeds a limit. Raised in a callback of the parser, which then stops."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits. `connection` is given if it was counted before: see `TlsAcceptor`."""

    _connection: Connection | None = None
    _in_head = False
    _is_whole = True
    _has_progress = False
    _unused_bytes = 0
    _discarded = 0
    _is_refused = False
    _is_ended = False
    """Nothing that comes now is read: the connection ends with the answers to what was accepted before."""
    _earlier: Any = None
    """The request before the newest one, `cycle`."""
    _deadline: asyncio.TimerHandle | None = None

    def __init__(
        self, limiter: ConnectionLimiter, app: HttpApp, connection: Connection | None = None, **others: Any
    ) -> None:
        super().__init__(**others)
        self._limiter = limiter
        self._app = app
        self._connection = connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP, as uvicorn says
        """Count the connection, and wait for the first request."""
        super().connection_made(transport)
        if self._connection is None:
            self._connection = self._limiter.add(
                peer_of(transport.get_extra_info("peername")), self.loop.time(), transport.abort
            )
        else:
            self._connection.end = transport.abort
        if self._connection is None:
            transport.abort()
        else:
            self._set_deadline(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        self._clear_deadline()
        self._unset_keepalive_if_required()
        if self._connection is not None:
            self._limiter.remove(self._connection)
            self._connection = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; then check that the parser does not buffer too many bytes of an unfinished element."""
        if self._is_ended:
            self._discarded += len(data)
            if self._discarded > DISCARD_BYTES_MAX:
                self.flow.pause_reading()
            return
        self._has_progress = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # upgrades are not supported, and ignored
            pass
        except httptools.HttpParserError as error:
            self._end(431 if self._in_head and isinstance(error.__context__, _OverLimit) else 400)
            return
        # an endless header, trailer or chunk extension, which the parser buffers
        self._unused_bytes = 0 if self._has_progress else self._unused_bytes + len(data)
        if not self._is_whole and self._unused_bytes > HEAD_BYTES_MAX:
            self._end(431 if self._in_head else 400)

    def on_message_begin(self) -> None:
        """Refuse a request that exceeds the pipeline; else wait for its headers."""
        if self._is_refused or len(self.pipeline) >= PIPELINE_MAX:
            raise _OverLimit
        self._unset_keepalive_if_required()
        self._in_head, self._is_whole, self._has_progress, self._unused_bytes = True, False, True, 0
        if self._deadline is None:
            self._set_deadline(HEAD_S)
        super().on_message_begin()
        self._has_progress = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Refuse trailers: a token in a trailer would count like one in a header."""
        if not self._in_head or len(self.headers) >= HEADERS_MAX:
            raise _OverLimit
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Let the application admit the request. A refusal is answered here, and the body is discarded."""
        self._in_head, self._has_progress = False, True
        self._set_deadline(REQUEST_S)
        raw_path = httptools.parse_url(self.url).path
        if raw_path is None:
            raise _OverLimit
        method = self.parser.get_method().decode("ascii")
        peer = self._connection.peer if self._connection is not None else ""
        admission = self._app.admit(method, raw_path, self.headers, peer)
        if admission.is_known and self._connection is not None:
            self._limiter.identify(self._connection)
        if admission.refusal is not None and not self._is_busy():
            self._is_refused = True
            self._set_deadline(LINGER_S)
            self._answer(method, admission.refusal)
            return
        self._unset_keepalive_if_required()  # of the request before, answered when this one had begun already
        self._earlier = self.cycle
        super().on_headers_complete()
        self.scope["state"]["limpet"] = admission

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body, or discard it if the request was refused."""
        self._has_progress = True
        if self._is_refused:
            self._discarded += len(body)
            if self._discarded > DISCARD_BYTES_MAX:
                raise _OverLimit
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete: close the connection if it was refused."""
        self._is_whole, self._has_progress = True, True
        self._clear_deadline()
        if self._is_refused:
            self.transport.close()
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request; for a stranger, with a shorter timeout."""
        super().on_response_complete()
        is_stranger = self._connection is not None and self._connection.is_stranger
        if self.transport.is_closing():
            if self._is_ended:  # closing waits for the client to read its answers: limit how long
                self._set_deadline(STRANGER_IDLE_S if is_stranger else self.timeout_keep_alive)
            return
        if not (self._is_whole or self._in_head or self._is_busy()):
            self._set_deadline(LINGER_S)  # answered before its body was read: limit how long the client may go on
        if is_stranger and self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(STRANGER_IDLE_S, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close: no further request has arrived."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # close() would wait for a client that does not read
        else:
            super().timeout_keep_alive_handler()

    def _is_busy(self) -> bool:
        """Whether an earlier request on this connection is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _answer(self, method: str, response: Response) -> None:
        headers = [*self.server_state.default_headers, *response.headers, (b"connection", b"close")]
        headers.append((b"content-length", str(len(response.body)).encode()))
        status = f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n".encode()
        head = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(status + head + b"\r\n" + (b"" if method == "HEAD" else response.body))

    def _end(self, refusal: int | None) -> None:
        """End the connection because of what came last on it: invalid HTTP, too much of it, or too slowly.

        The second time answers are not read.

        What was accepted before is answered first (F32): it may have been carried out. The last of these answers says
        that the connection closes. Without any, the answer is `refusal`; None: there is none.
        """
        if self._is_ended:
            self.transport.abort()
        if self.transport.is_closing():
            return
        if self.pipeline and self.cycle.more_body:  # it waits behind others, and is incomplete: it is never begun
            self.pipeline.popleft()
            self.cycle = self._earlier
        self._is_ended = True
        if self._is_busy() and not self.cycle.more_body:
            self.cycle.keep_alive = False
            self.cycle.default_headers = [*self.cycle.default_headers, CLOSE]
            self._clear_deadline()
            if self._connection is not None and self._connection.is_stranger:
                self._set_deadline(HEAD_S)
        elif refusal is None or self._is_refused or (self._is_busy() and self.cycle.response_started):
            self.transport.abort()
        else:
            self._set_deadline(LINGER_S)
            self._answer("", Response(refusal))
            self.transport.close()

    def _set_deadline(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._end, None)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def peer_of(address: Any) -> str:
    """What connections are counted by: an IPv4 address, or a /64 network of IPv6."""
    try:
        found = ip_address(str(address[0]).partition("%")[0])
    except (TypeError, ValueError, IndexError):
        return ""
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return f"{IPv6Address(int(found) >> 64 << 64)}/64"
