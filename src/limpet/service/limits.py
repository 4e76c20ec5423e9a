"""Limits on connections, so that clients without a token cannot exhaust memory, threads or connections (F32).

A connection is a *stranger* until a request on it has sent a token that the service knows. Until then:

- it gets little memory: 64 KiB of request line and headers, no body, no trailers, and few requests in a row;
- it gets little time: 10 seconds for the headers; a refusal is written by the protocol itself, which then closes;
- there are at most 512 strangers, 128 from one address, except for a moment. One more ends the oldest one from the
  address that has most. So an honest client gets in, however many strangers there are: with its first
  request it is none.

uvicorn bounds none of this.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from limpet.service.http import HttpApp, Response

HEAD_BYTES_MAX = 64 << 10
"""Request line and headers, up to one read of the socket more."""
HEADERS_MAX = 128
HEAD_S = 10.0
"""Time for the headers of a request, from its first byte; for the first one, from the start of the connection."""
REQUEST_S = 40.0
"""Time for a request with its body."""
LINGER_S = 2.0
DISCARD_BYTES_MAX = 256 << 10
"""A client that is refused may go on sending for so long and so much, so that it reads the answer."""
PIPELINE_MAX = 8
HANDSHAKE_S = 10.0
ACCEPT_MAX = 64
ACCEPT_AGAIN_S = 0.5
CONNECTIONS_MAX = 1024
"""More are closed at once: the process needs file descriptors to renew its lease."""
STRANGERS_MAX = 512
PEER_MAX = 128
FILES_KEPT = 256
STRANGER_IDLE_S = 5.0
FIRST_S = 0.25
"""A connection this young is not ended for another one from its address."""


@dataclass(slots=True, eq=False)
class Seat:
    """A connection that the gate counts."""

    peer: str
    since_s: float
    end: Callable[[], None]
    is_stranger: bool = True
    is_gone: bool = False


class Gate:
    """Counts the connections of a process, and decides which one ends when there are too many. For one event loop."""

    def __init__(self, *, connections_max: int = CONNECTIONS_MAX, peer_max: int = PEER_MAX) -> None:
        self._connections_max = connections_max
        self._strangers_max = min(STRANGERS_MAX, max(1, connections_max // 2))
        self._peer_max = peer_max
        self._strangers: dict[str, dict[Seat, None]] = {}
        self.connections = 0
        self.strangers = 0
        self.ended = 0
        """Connections that were ended because there were too many."""

    def enter(self, peer: str, now_s: float, end: Callable[[], None]) -> Seat | None:
        """A seat for a new connection; None if there is none. Another stranger may lose its seat. `end` ends it."""
        here = len(self._strangers.get(peer, ()))
        is_full = self.connections >= self._connections_max
        if is_full or self.strangers >= self._strangers_max or here >= self._peer_max:
            victim = self._victim(peer, now_s)
            if victim is not None:
                self.leave(victim)
                self.ended += 1
                victim.end()
            elif is_full:
                self.ended += 1
                return None
        seat = Seat(peer, now_s, end)
        self._strangers.setdefault(peer, {})[seat] = None
        self.connections += 1
        self.strangers += 1
        return seat

    def know(self, seat: Seat) -> None:
        """Its client has sent a token that the service knows."""
        if seat.is_stranger:
            self._remove(seat)

    def leave(self, seat: Seat) -> None:
        """The connection has ended. One that was ended for another has left before."""
        if seat.is_stranger:
            self._remove(seat)
        if not seat.is_gone:
            seat.is_gone = True
            self.connections -= 1

    def _victim(self, peer: str, now_s: float) -> Seat | None:
        """The stranger that makes room for one from `peer`; None if there is none that should.

        It is the oldest one of the address that has most. A connection from `peer` itself is ended only after it
        had time to send a request: of many that come at once, an honest one would else be ended before it is read.
        """
        if not self._strangers:
            return None
        most = max(self._strangers.values(), key=len)
        mine = self._strangers.get(peer, {})
        if len(mine) >= min(self._peer_max, len(most)):
            most = mine
        oldest = next(iter(most))
        return oldest if oldest.peer != peer or now_s - oldest.since_s >= FIRST_S else None

    def _remove(self, seat: Seat) -> None:
        here = self._strangers[seat.peer]
        del here[seat]
        if not here:
            del self._strangers[seat.peer]
        seat.is_stranger = False
        self.strangers -= 1


class _TooMuch(Exception):
    """Raised in a callback of the parser: it parses no further."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits. `seat` is given if the connection has one already: see `TlsAcceptor`."""

    _seat: Seat | None = None
    _in_head = False
    _is_whole = True
    _has_progress = False
    _unused_bytes = 0
    _discarded = 0
    _is_refused = False
    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, gate: Gate, app: HttpApp, seat: Seat | None = None, **others: Any) -> None:
        super().__init__(**others)
        self._gate = gate
        self._app = app
        self._seat = seat

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP, as uvicorn says
        """Take a seat, and wait for the first request."""
        super().connection_made(transport)
        if self._seat is None:
            self._seat = self._gate.enter(
                peer_of(transport.get_extra_info("peername")), self.loop.time(), transport.abort
            )
        else:
            self._seat.end = transport.abort
        if self._seat is None:
            transport.abort()
        else:
            self._set_deadline(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the seat back."""
        self._clear_deadline()
        self._unset_keepalive_if_required()
        if self._seat is not None:
            self._gate.leave(self._seat)
            self._seat = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; then check whether the parser holds too many bytes from which it has made nothing yet."""
        self._has_progress = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # no upgrade is offered: the request is answered as if it had not asked
            pass
        except httptools.HttpParserError as error:
            self._refuse_form(isinstance(error.__context__, _TooMuch))
            return
        # a header, a trailer or an extension of a chunk that has no end, kept by the parser
        self._unused_bytes = 0 if self._has_progress else self._unused_bytes + len(data)
        if not self._is_whole and self._unused_bytes > HEAD_BYTES_MAX:
            self._refuse_form(True)

    def on_message_begin(self) -> None:
        """Refuse one request too many; else wait for its headers."""
        if self._is_refused or len(self.pipeline) >= PIPELINE_MAX:
            raise _TooMuch
        self._unset_keepalive_if_required()
        self._in_head, self._is_whole, self._has_progress, self._unused_bytes = True, False, True, 0
        if self._deadline is None:
            self._set_deadline(HEAD_S)
        super().on_message_begin()
        self._has_progress = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Refuse a trailer: it would count as a header, and a token in it as sent."""
        if not self._in_head or len(self.headers) >= HEADERS_MAX:
            raise _TooMuch
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Have the application admit the request. A refusal is answered here, and the body is never kept."""
        self._in_head, self._has_progress = False, True
        self._set_deadline(REQUEST_S)
        raw_path = httptools.parse_url(self.url).path
        if raw_path is None:
            raise _TooMuch
        method = self.parser.get_method().decode("ascii")
        peer = self._seat.peer if self._seat is not None else ""
        admission = self._app.admit(method, raw_path, self.headers, peer)
        if admission.is_known and self._seat is not None:
            self._gate.know(self._seat)
        if admission.refusal is not None and not self._is_busy():
            self._is_refused = True
            self._set_deadline(LINGER_S)
            self._answer(method, admission.refusal)
            return
        super().on_headers_complete()
        self.scope["limpet"] = admission  # type: ignore[typeddict-unknown-key]

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body, or drop it if the request was refused."""
        self._has_progress = True
        if self._is_refused:
            self._discarded += len(body)
            if self._discarded > DISCARD_BYTES_MAX:
                raise _TooMuch
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Have the request answered, or close if it was refused."""
        self._is_whole, self._has_progress = True, True
        self._clear_deadline()
        if self._is_refused:
            self.transport.close()
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, but not long for a stranger's."""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if not self._is_whole:  # answered before its body was read: a client that goes on sending must end
            self._set_deadline(LINGER_S)
        if self._seat is not None and self._seat.is_stranger and self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(STRANGER_IDLE_S, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close: no further request has come."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # closing would wait for a client that does not read
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

    def _refuse_form(self, too_much: bool) -> None:
        """End a connection that sent something that is not HTTP, or more than the limits allow.

        It gets an answer, unless a request is being handled: the client would take it for the answer to that one.
        """
        if self.transport.is_closing():
            return
        if self._is_refused or (self._is_busy() and not self.cycle.more_body) or self.pipeline:
            self.transport.abort()
            return
        status = 431 if too_much and self._in_head else 400
        self._answer("", Response(status))
        self.transport.close()

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class TlsAcceptor:
    """Accepts connections for TLS. Each takes a seat before its handshake, so the number of handshakes is limited too.

    It has the methods that uvicorn calls on an asyncio server.
    """

    def __init__(
        self,
        listener: socket.socket,
        gate: Gate,
        context: ssl.SSLContext,
        protocol: Callable[[Seat], LimitedProtocol],
    ) -> None:
        self._listener = listener
        self._gate = gate
        self._context = context
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._closed = False
        listener.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPT_MAX):  # then the loop serves those that were accepted
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no file descriptor is left: try again when some are closed
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(ACCEPT_AGAIN_S, self._listen)
                return
            accepted.setblocking(False)
            seat = self._gate.enter(peer_of(address), self._loop.time(), partial(_hang_up, accepted))
            if seat is None:
                accepted.close()
                continue
            handshake = self._loop.create_task(self._shake(accepted, seat))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _shake(self, accepted: socket.socket, seat: Seat) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(seat),
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=LINGER_S,
            )
        except OSError:  # ssl.SSLError and TimeoutError are such
            self._gate.leave(seat)
            accepted.close()

    def close(self) -> None:
        """Accept no more connections."""
        self._closed = True
        self._loop.remove_reader(self._listener.fileno())

    async def wait_closed(self) -> None:
        """Wait for running handshakes."""
        if self._handshakes:
            await asyncio.wait(self._handshakes, timeout=LINGER_S)


def _hang_up(accepted: socket.socket) -> None:
    with suppress(OSError):  # closed at the other end
        accepted.shutdown(socket.SHUT_RDWR)


def peer_of(address: Any) -> str:
    """The name under which connections from an address are counted: an IPv4 address, or a /64 network of IPv6."""
    try:
        found = ip_address(str(address[0]).partition("%")[0])
    except (TypeError, ValueError, IndexError):
        return ""
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return f"{IPv6Address(int(found) >> 64 << 64)}/64"
