"""TLS: the context of a server, and the acceptor that counts each connection before its handshake."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from limpet.kernel.errors import Invalid
from limpet.kernel.waiting import PAUSE_S
from limpet.service.protocol import LINGER_S, Connection, ConnectionLimiter, LimitedProtocol, peer_of

HANDSHAKE_S = 10.0
ACCEPT_MAX = 64


class TlsAcceptor:
    """Accepts TLS connections. Each is counted before its handshake, so the number of handshakes is limited too.

    It has the methods that uvicorn calls on an asyncio server.
    """

    def __init__(
        self,
        listener: socket.socket,
        limiter: ConnectionLimiter,
        context: ssl.SSLContext,
        protocol: Callable[[Connection], LimitedProtocol],
    ) -> None:
        self._listener = listener
        self._limiter = limiter
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
        for _ in range(ACCEPT_MAX):  # then the loop serves the accepted ones
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # out of file descriptors: try again later
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(PAUSE_S, self._listen)
                return
            accepted.setblocking(False)
            connection = self._limiter.add(peer_of(address), self._loop.time(), partial(_hang_up, accepted))
            if connection is None:
                accepted.close()
                continue
            handshake = self._loop.create_task(self._shake(accepted, connection))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _shake(self, accepted: socket.socket, connection: Connection) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(connection),
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=LINGER_S,
            )
        except OSError:  # ssl.SSLError and TimeoutError are such
            self._limiter.remove(connection)
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
    with suppress(OSError):  # closed by the client
        accepted.shutdown(socket.SHUT_RDWR)


def tls_context(cert: str, key: str) -> ssl.SSLContext:
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
