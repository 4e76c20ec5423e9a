"""What one connection may take, and how many there may be: uvicorn itself with our protocol, in this process."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from threading import Event, Thread

import pytest
import uvicorn

from limpet.kernel.runtime import system
from limpet.service import protocol as limits
from limpet.service.app import HttpApp, Route, Routes
from limpet.service.protocol import ConnectionLimiter, LimitedProtocol
from limpet.service.requests import Request, Response
from limpet.service.tokens import Tokens
from support.servers.catalog import until

TOKEN = b"a-token-of-the-tests"
BEARER = b"authorization: Bearer " + TOKEN + b"\r\n"
REQUEST = b"POST /echo HTTP/1.1\r\nhost: localhost\r\n" + BEARER + b"content-length: 4\r\n\r\nbody"
CHUNKED = b"POST /echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Served:
    """Takes few connections. `bodies` are those that its handler has seen; it answers once `gate` is set."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.gate = Event()
        self.gate.set()
        self.limiter = ConnectionLimiter(connections_max=12, peer_max=3)
        guard = Tokens([TOKEN.decode()])
        routes = [
            Route("POST", "/echo", self._echo, guard),
            Route("GET", "/healthz", lambda _: Response(200, b"ok"), None, quick=True),
            Route("POST", "/open", lambda _: Response(400, b"no"), None, quick=True),
        ]
        self.app = HttpApp(Routes(routes), system(), body_bytes_max=1000)
        protocol = partial(LimitedProtocol, self.limiter, self.app)
        config = uvicorn.Config(self.app, http=protocol, ws="none", lifespan="off", log_level="critical")  # type: ignore[arg-type]
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self._thread.start()
        until("it runs", lambda: self._server.started)

    def _echo(self, request: Request) -> Response:
        self.bodies.append(request.body)
        assert self.gate.wait(30)
        return Response(200, request.body)

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(self._listener.getsockname(), timeout=30, source_address=(source, 0))

    def answer(self, *parts: bytes) -> bytes:
        """All that comes back, until the server closes."""
        with self.connect() as connection:
            with suppress(OSError):  # it has had enough, and closed
                for part in parts:
                    connection.sendall(part)
            return _rest(connection)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()
        assert not self.app.close()
        assert (self.limiter.connections, self.limiter.strangers) == (0, 0), "every connection was given back"


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch, served: Served) -> Served:
    """The same, with little patience."""
    for name in ("HEAD_S", "REQUEST_S", "LINGER_S", "STRANGER_IDLE_S"):
        monkeypatch.setattr(limits, name, 0.3)
    return served


def _rest(connection: socket.socket) -> bytes:
    found = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
    return found


def _status(answer: bytes) -> int:
    found = re.match(rb"HTTP/1.1 (\d+) ", answer)
    return int(found[1]) if found else 0


HALVES = [
    b"",
    b"GE",
    b"\r\n",
    HEALTH[:30],
    REQUEST[:40],
    REQUEST[:-1],
    CHUNKED + BEARER + b"\r\n4\r\nbo",
    HEALTH + b"\r\n",
]


@pytest.mark.parametrize("sent", HALVES)
def test_a_request_that_does_not_come_ends_the_connection(hasty: Served, sent: bytes) -> None:
    assert _status(hasty.answer(sent)) in (0, 200)
    assert hasty.bodies == []


def test_requests_that_come_are_answered_on_one_connection(served: Served) -> None:
    with served.connect() as connection:
        for part in (REQUEST, REQUEST[:10], REQUEST[10:-2], REQUEST[-2:], REQUEST):
            connection.sendall(part)
            if part.endswith(b"dy"):
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert served.bodies == [b"body"] * 3


def test_an_address_with_too_many_strangers_loses_its_oldest(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FIRST_S", 0.0)
    with ExitStack() as stack:
        known = stack.enter_context(served.connect())
        known.sendall(REQUEST)
        assert known.recv(65536).startswith(b"HTTP/1.1 200 ")
        idle = [stack.enter_context(served.connect()) for _ in range(3)]
        elsewhere = stack.enter_context(served.connect("127.0.0.2"))
        until("all have a connection", lambda: served.limiter.connections == 5)
        idle.append(stack.enter_context(served.connect()))
        assert _rest(idle[0]) == b""
        for each in (elsewhere, idle[3], known):
            each.sendall(REQUEST)
            assert each.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_one_connection_too_many_ends_a_stranger_and_never_a_known_client(served: Served) -> None:
    with ExitStack() as stack:
        known = []
        for n in range(11):
            known.append(stack.enter_context(served.connect(f"127.0.1.{n + 1}")))
            known[-1].sendall(REQUEST)
            assert known[-1].recv(65536).startswith(b"HTTP/1.1 200 ")
        stranger = stack.enter_context(served.connect())
        until("it has a connection", lambda: served.limiter.connections == 12)
        known.append(stack.enter_context(served.connect("127.0.1.99")))
        assert _rest(stranger) == b""
        known[-1].sendall(REQUEST)
        for each in known[:-1]:
            each.sendall(REQUEST)
            assert each.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert _rest(stack.enter_context(served.connect())) == b"", "all are known: one more is closed"
        assert served.limiter.ended == 2


def test_of_a_crowd_from_one_address_each_gets_a_moment_to_be_heard() -> None:
    limiter, ended = ConnectionLimiter(connections_max=12, peer_max=3), []

    def add(peer: str, now_s: float) -> limits.Connection | None:
        return limiter.add(peer, now_s, lambda: ended.append((peer, now_s)))

    crowd = [connection for connection in (add("a", 0.0) for _ in range(10)) if connection is not None]
    assert len(crowd) == 10
    assert ended == [], "all came at the same moment"
    assert add("b", 0.0) is not None
    assert ended == [("a", 0.0)], "another address need not wait for that"
    assert add("a", limits.FIRST_S) is not None
    assert ended == [("a", 0.0)] * 2, "now the oldest gives way"
    limiter.identify(crowd[9])
    for connection in crowd:
        limiter.remove(connection)
        limiter.remove(connection)
    assert (limiter.connections, limiter.strangers) == (2, 2)
    full = [add("c", 1.0) for _ in range(12)]
    assert full.count(None) == 2, "it takes no connection from an address that has fewer"
    assert limiter.connections == 12


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (CHUNKED + b"\r\n4\r\nbody\r\n0\r\n" + BEARER + b"\r\n", 401),
        (CHUNKED + BEARER + b"\r\n4\r\nbody\r\n0\r\nx: y\r\n\r\n", 400),
        (CHUNKED + BEARER + b"\r\n4\r\nbody\r\n0\r\n" + b"x: " + b"y" * 200_000, 0),
        (CHUNKED + BEARER + b"\r\n4;" + b"x" * 200_000, 0),
        (b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 100_000, 431),
        (b"GET /" + b"y" * 100_000, 431),
        (b"hello\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", 404),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_what_is_refused_by_its_form(served: Served, sent: bytes, status: int) -> None:
    parts = [sent[n : n + 20_000] for n in range(0, len(sent), 20_000)]
    assert _status(served.answer(*parts)) in ({status} if status else {0, 400})
    assert served.bodies == []


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\ncontent-length: 5\r\n\r\n", 413),
        (b"GET /healthz HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", 413),
        (b"POST /open HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n", 401),
        (b"POST /echo HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 99\r\n\r\n", 401),
        (b"POST /nowhere HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n", 404),
        (b"GET /healthz HTTP/1.1\r\nsec-fetch-site: cross-site\r\n\r\n", 403),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 200),
    ],
)
def test_a_stranger_is_answered_by_its_headers_and_closed(hasty: Served, head: bytes, status: int) -> None:
    assert _status(hasty.answer(head)) == status, "the body is not waited for"
    assert hasty.answer(head, *[b"x" * 100_000] * 20)[:4] in (b"HTTP", b""), "nor read for long"
    assert hasty.bodies == []


def test_a_token_known_on_a_connection_is_asked_for_again(served: Served) -> None:
    assert re.findall(rb"HTTP/1.1 (\d+)", served.answer(REQUEST + REQUEST.replace(TOKEN, b"x" * 20))) == [
        b"200",
        b"401",
    ]
    assert served.bodies == [b"body"]


def test_a_few_requests_may_come_in_a_row_and_not_many(hasty: Served) -> None:
    answers = hasty.answer(HEALTH * 5)
    assert answers.count(b"HTTP/1.1 200 OK") == 5
    assert hasty.answer(HEALTH * 10_000).count(b"HTTP/1.1 200 OK") <= limits.PIPELINE_MAX + 1


BEHIND = [
    b"x",
    b"\x00garbage\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00" * 100_000,
    b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 100_000,
    HEALTH * 10_000,
    CHUNKED + BEARER + b"\r\nno length\r\n",
    CHUNKED + BEARER + b"\r\n4\r\nbody\r\n0\r\nx: y\r\n\r\n",
    CHUNKED + b"\r\nno length\r\n",
]
"""What may follow a request on its connection and is no request."""


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("sent", [REQUEST, REQUEST * 3, REQUEST.replace(BEARER, BEARER + b"connection: close\r\n")])
def test_what_was_accepted_is_answered_before_garbage_ends_the_connection(
    served: Served, sent: bytes, behind: bytes
) -> None:
    answers = served.answer(sent + behind)
    statuses = re.findall(rb"HTTP/1.1 (\d+)", answers)
    accepted = sent.count(b"POST")
    assert statuses[:accepted] == [b"200"] * accepted
    assert served.bodies == [b"body"] * accepted, "nothing that was handled is unanswered"
    assert {*statuses[accepted:]} <= {b"200"}, "garbage is not answered: it would count for a later request"
    assert len(statuses) <= limits.PIPELINE_MAX + 1
    assert b"connection: close" in answers[answers.rindex(b"HTTP/1.1") :], "the last answer says that it is the last"


@pytest.mark.parametrize("behind", [b"x", HEALTH[:30], REQUEST[:-1], *BEHIND[3:5]])
def test_what_comes_or_stays_away_while_a_request_is_handled_does_not_cost_its_answer(
    hasty: Served, behind: bytes
) -> None:
    with hasty.connect() as connection:
        hasty.gate.clear()
        connection.sendall(REQUEST)
        until("it is handled", lambda: hasty.bodies == [b"body"])
        with suppress(ConnectionError):
            connection.sendall(behind)
        for _ in range(3):  # in the meantime deadlines pass
            assert _status(hasty.answer(HEALTH)) == 200
        hasty.gate.set()
        answer = _rest(connection)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer)[:1] == [b"200"]
    assert hasty.bodies == [b"body"]


def test_a_client_that_never_reads_does_not_keep_a_connection_that_has_ended(hasty: Served) -> None:
    with hasty.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        with suppress(OSError):
            for _ in range(20):
                connection.sendall(HEALTH * 5000)
        until("it was closed", lambda: hasty.limiter.connections == 0)


def test_too_much_at_once_is_told_to_come_back(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    once = REQUEST.replace(BEARER, BEARER + b"connection: close\r\n")
    monkeypatch.setattr("limpet.service.app.BUFFERED_BYTES_MAX", 3)
    assert _status(served.answer(once)) == 503
    assert _status(served.answer(CHUNKED + BEARER + b"connection: close\r\n\r\n4\r\nbody\r\n0\r\n\r\n")) == 503
    monkeypatch.setattr("limpet.service.app.BUFFERED_BYTES_MAX", 4)
    for _ in range(3):
        assert _status(served.answer(once)) == 200, "what was counted is given back"


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        (("10.0.0.1", 1), "10.0.0.1"),
        (("::ffff:10.0.0.1", 1, 0, 0), "10.0.0.1"),
        (("2001:db8::1", 1, 0, 0), "2001:db8::/64"),
        (("2001:db8::ffff:1", 1, 0, 0), "2001:db8::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        ("", ""),
        (None, ""),
    ],
)
def test_a_network_of_ipv6_is_one_address(address: object, peer: str) -> None:
    assert limits.peer_of(address) == peer
