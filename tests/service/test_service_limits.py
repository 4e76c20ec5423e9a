"""How long a connection may take to send a request, and how many there may be: uvicorn itself, in this process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest
import uvicorn

from limpet.service import limits
from limpet.service.limits import LimitedProtocol
from servers_catalog import until

REQUEST = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\nbody"


async def _app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server that has little patience and takes two connections."""
    monkeypatch.setattr(limits, "REQUEST_S", 0.3)
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 2)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(_app, http=LimitedProtocol, lifespan="off", log_level="critical"))
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until("it runs", lambda: server.started)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


@pytest.mark.parametrize("sent", [b"", b"GE", REQUEST[:30], REQUEST[:-1]], ids=["nothing", "a word", "half", "most"])
def test_a_request_that_does_not_come_ends_the_connection(port: int, sent: bytes) -> None:
    with _connect(port) as connection:
        connection.sendall(sent)
        while connection.recv(65536):
            pass


def test_requests_that_come_are_answered_on_one_connection(port: int) -> None:
    with _connect(port) as connection:
        for part in (REQUEST, REQUEST[:10], REQUEST[10:-2], REQUEST[-2:], REQUEST):
            connection.sendall(part)
            if part.endswith(b"dy"):
                assert connection.recv(65536).startswith(b"HTTP/1.1 204 ")


def test_one_connection_too_many_is_closed(port: int) -> None:
    with _connect(port) as first, _connect(port) as second:
        for each in (first, second):
            each.sendall(REQUEST)
            assert each.recv(65536).startswith(b"HTTP/1.1 204 ")
        with _connect(port) as third:
            assert third.recv(65536) == b""
        first.sendall(REQUEST)
        assert first.recv(65536).startswith(b"HTTP/1.1 204 ")
