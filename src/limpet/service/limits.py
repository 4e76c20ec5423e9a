"""What one connection may take before it has sent a whole request: bytes of headers, and time (F32).

uvicorn bounds neither. A token is asked for only after the headers, so this is what stands before everybody.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["CONNECTIONS_MAX", "HEAD_BYTES_MAX", "REQUEST_S", "LimitedProtocol"]

HEAD_BYTES_MAX = 64 << 10
"""Request line and headers; give or take what one read of the socket brings."""
REQUEST_S = 40.0
"""By then a request must be there with its body, or the connection ends."""
CONNECTIONS_MAX = 1024
"""After which one more is closed at once: the process needs files of its own to keep its lease."""

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits."""

    _in_head = False
    _is_whole = False
    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP, as uvicorn says
        """Begin to wait for the first request."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.close()
        else:
            self._timer = self.loop.call_later(REQUEST_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is waited for any more."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; then look whether more must come, and whether too much has."""
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()
        if self._is_whole:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST_S, self.transport.close)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head, self._is_whole, self._head_bytes = True, False, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its headers are there."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Its body is there, too."""
        self._is_whole = True
        super().on_message_complete()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
