"""The leader's side of the RPC: what each answer means, from a server that says exactly that."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from limpet.catalog import PublicationRefused
from limpet.catalog.compactor import Unreachable
from limpet.events.ledger import Publication
from limpet.kernel.errors import Denied, Invalid, LimpetError, OutcomeUnknown, Unavailable
from limpet.kernel.runtime import system
from limpet.service.rpc import RpcPublisher, RpcPublishers
from support.servers.process import free_ports

PATHS = ["ledger/catalog/" + "0" * 26 + ".json"]


def _error(kind: str, status: int) -> bytes:
    return json.dumps({"error": {"message": "why", "type": kind, "code": status}}).encode()


def _http(status: int, body: bytes, extra: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{extra}\r\n".encode() + body


GOOD = _http(200, b'{"manifest_version": "v12", "commit_ulid": "c"}')


class Peer:
    """A server that gives canned answers, one for each request; an empty one hangs up instead. `heard` is what came."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = [*answers]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.heard: list[bytes] = []
        self.connections = 0
        self.asked = Event()
        self.done = Event()
        Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while self._answers and not self.done.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                while self._answers and self._request(connection):
                    answer = self._answers.pop(0)
                    if not answer:
                        break
                    if answer == b"silence":
                        self.done.wait(30)
                        return
                    connection.sendall(answer)

    def _request(self, connection: socket.socket) -> bool:
        data = b""
        while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < _length(data):
            part = connection.recv(65536)
            if not part:
                return False
            data += part
        self.heard.append(data)
        self.asked.set()
        return True

    def close(self) -> None:
        self.done.set()
        self._listener.close()


def _length(data: bytes) -> int:
    lower = data.lower()
    return int(lower.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)


@contextmanager
def publisher(url: str, secret: str | None = None) -> Iterator[RpcPublisher]:
    made = RpcPublisher(url, secret, system())
    try:
        yield made
    finally:
        made.close()


@contextmanager
def peer(*answers: bytes) -> Iterator[Peer]:
    made = Peer(*answers)
    try:
        yield made
    finally:
        made.close()


def test_a_publication_and_the_connection_is_kept() -> None:
    with peer(GOOD, GOOD) as server, publisher(server.url, "secret") as publish:
        assert publish(PATHS, 7) == Publication(12, "c")
        assert publish(PATHS, 7) == Publication(12, "c")
    assert server.connections == 1
    head, _, body = server.heard[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /internal/sync-compact HTTP/1.1")
    assert b"authorization: bearer secret" in head.lower()
    assert json.loads(body) == {"domain": "catalog", "event_paths": PATHS, "fencing_token": 7}


@pytest.mark.parametrize(
    ("answer", "kind", "stale"),
    [
        (_http(409, _error("stale_fencing_token", 409)), PublicationRefused, True),
        (_http(409, _error("version_conflict", 409)), PublicationRefused, False),
        (_http(400, _error("BadRequestException", 400)), Invalid, None),
        (_http(401, _error("NotAuthorizedException", 401)), Denied, None),
        (_http(503, _error("ServiceUnavailableException", 503)), Unavailable, None),
        (_http(500, _error("CommitStateUnknownException", 500)), OutcomeUnknown, None),
        (_http(409, _error("SomethingElse", 409)), OutcomeUnknown, None),
        (_http(409, b"conflict, says a proxy"), OutcomeUnknown, None),
        (_http(503, b"<html>no upstream</html>"), OutcomeUnknown, None),
        (_http(502, b""), OutcomeUnknown, None),
        (_http(504, _error("ServiceUnavailableException", 504)), OutcomeUnknown, None),
        (_http(301, b"", "location: http://elsewhere/\r\n"), OutcomeUnknown, None),
        (_http(200, b"ok"), OutcomeUnknown, None),
        (_http(200, b'{"manifest_version": "12", "commit_ulid": "c"}'), OutcomeUnknown, None),
        (_http(200, b'{"manifest_version": "v12"}'), OutcomeUnknown, None),
        (_http(200, b"\xff\xfe"), OutcomeUnknown, None),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{}", OutcomeUnknown, None),
        (b"SSH-2.0-OpenSSH\r\n\r\n", OutcomeUnknown, None),
        (b"", OutcomeUnknown, None),
    ],
)
def test_only_what_a_compactor_says_counts(answer: bytes, kind: type[LimpetError], stale: bool | None) -> None:
    with peer(answer) as server, publisher(server.url) as publish, pytest.raises(LimpetError) as raised:
        publish(PATHS, 1)
    assert type(raised.value) is kind
    if isinstance(raised.value, PublicationRefused):
        assert raised.value.stale is stale


def test_a_connection_that_was_closed_while_idle_is_no_error() -> None:
    with peer(GOOD, b"", GOOD) as server, publisher(server.url) as publish:
        assert publish(PATHS, 1) == publish(PATHS, 1) == Publication(12, "c")
    assert len(server.heard) == 3


def test_a_copy_that_went_out_before_nobody_was_there_may_have_arrived() -> None:
    with peer(GOOD) as server, publisher(server.url) as publish:
        assert publish(PATHS, 1) == Publication(12, "c")
        server.close()
        with pytest.raises(OutcomeUnknown):
            publish(PATHS, 1)


def test_nobody_there_is_unavailable() -> None:
    [port] = free_ports(1)
    with pytest.raises(Unreachable):
        RpcPublisher(f"http://127.0.0.1:{port}", None, system())(PATHS, 1)


def test_a_host_that_cannot_be_one_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        RpcPublisher(f"http://{'a' * 70}.example:1", None, system())(PATHS, 1)


def test_closing_ends_the_wait_for_an_answer() -> None:
    with peer(b"silence") as server, publisher(server.url) as publish:
        met: list[LimpetError] = []

        def ask() -> None:
            with pytest.raises(LimpetError) as raised:
                publish(PATHS, 1)
            met.append(raised.value)

        thread = Thread(target=ask)
        thread.start()
        assert server.asked.wait(10)
        publish.close()
        thread.join(10)
        assert not thread.is_alive()
    assert isinstance(met[0], OutcomeUnknown)


# ---- several compactors ----


@contextmanager
def publishers(*urls: str) -> Iterator[RpcPublishers]:
    made = RpcPublishers([RpcPublisher(url, None, system()) for url in urls], system())
    try:
        yield made
    finally:
        made.close()


def nobody() -> str:
    """A URL where nothing listens."""
    [port] = free_ports(1)
    return f"http://127.0.0.1:{port}"


def test_a_compactor_that_is_not_there_is_passed_over_and_not_asked_again() -> None:
    with peer(GOOD, GOOD) as server, publishers(nobody(), server.url) as publish:
        assert publish(PATHS, 1) == Publication(12, "c")
        assert publish.url == server.url
        assert publish(PATHS, 1) == Publication(12, "c")
        assert len(server.heard) == 2


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", OutcomeUnknown),
        (_http(502, b""), OutcomeUnknown),
        (_http(503, _error("ServiceUnavailableException", 503)), Unavailable),
    ],
)
def test_after_an_unclear_failure_the_caller_decides_and_the_next_one_is_asked(
    answer: bytes, kind: type[LimpetError]
) -> None:
    with peer(answer) as broken, peer(GOOD) as server, publishers(broken.url, server.url) as publish:
        with pytest.raises(kind):
            publish(PATHS, 1)
        assert server.heard == [], "it is not sent twice in one call"
        assert publish(PATHS, 1) == Publication(12, "c")
        assert len(broken.heard) == 1


def test_a_refusal_counts_and_is_asked_of_no_other() -> None:
    refusal = _http(409, _error("version_conflict", 409))
    with peer(refusal, GOOD) as server, peer(GOOD) as other, publishers(server.url, other.url) as publish:
        with pytest.raises(PublicationRefused):
            publish(PATHS, 1)
        assert publish(PATHS, 1) == Publication(12, "c")
        assert other.heard == []


@pytest.mark.parametrize("kind", [(401, "NotAuthorizedException"), (403, "ForbiddenException")])
def test_a_compactor_of_another_secret_or_fleet_is_passed_over_and_told(kind: tuple[int, str]) -> None:
    other = _http(kind[0], _error(kind[1], kind[0]))
    with peer(other) as wrong, peer(GOOD) as server, publishers(wrong.url, server.url) as publish:
        assert publish(PATHS, 1) == Publication(12, "c")
        assert publish.url == server.url
    with peer(other) as wrong, publishers(wrong.url, nobody()) as publish, pytest.raises(Denied):
        publish(PATHS, 1)
    with peer(other) as wrong, publishers(wrong.url, nobody()) as publish, pytest.raises(Denied):
        publish.check()
    with peer(other) as wrong, peer(_http(200, b"{}")) as server, publishers(wrong.url, server.url) as publish:
        assert publish.check() != ""


def test_only_if_none_was_reached_is_it_known_that_none_knows_the_batch() -> None:
    with publishers(nobody(), nobody()) as publish, pytest.raises(Unreachable, match=r"reached: .*; .* reached: "):
        publish(PATHS, 1)
    with peer(GOOD) as server, publishers(server.url, nobody()) as publish:
        assert publish(PATHS, 1) == Publication(12, "c")
        server.close()
        with pytest.raises(OutcomeUnknown):  # on the kept connection the batch may have arrived
            publish(PATHS, 1)
        with pytest.raises(Unreachable):
            publish(PATHS, 1)


@pytest.mark.parametrize("url", ["", "compactor:8182", "ftp://x", "http://", "http://h:99999", "http://h/?a=b"])
def test_a_bad_url_is_invalid(url: str) -> None:
    with pytest.raises(Invalid):
        RpcPublisher(url, None, system())
