"""What a real service refuses: requests that are wrong in form, too large, or not for it."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from limpet.service.serve import BODY_BYTES_MAX
from support.servers.catalog import CatalogServer

NAMESPACES = "/v1/namespaces"


@pytest.mark.parametrize(
    ("method", "path", "error"),
    [
        ("GET", "/", (404, "NotFoundException")),
        ("GET", "/v2/config", (404, "NotFoundException")),
        ("GET", "/v1/namespaces/a/tables/b/nothing", (404, "NotFoundException")),
        ("GET", "/v1/namespaces/a/tables/b/plan", (405, "MethodNotAllowedException")),
        ("GET", "/internal/sync-compact", (404, "NotFoundException")),
        ("POST", "/internal/sync-compact", (404, "NotFoundException")),
        ("PUT", "/v1/namespaces", (405, "MethodNotAllowedException")),
        ("OPTIONS", "/v1/namespaces", (405, "MethodNotAllowedException")),
        ("DELETE", "/healthz", (405, "MethodNotAllowedException")),
        ("GET", "/v1/namespaces?parent=%ff", (400, "BadRequestException")),
        ("GET", "/v1/namespaces?pageSize=1&pageSize=2", (400, "BadRequestException")),
        ("GET", "/v1/namespaces/a/tables/t?snapshots=some", (400, "BadRequestException")),
        ("DELETE", "/v1/namespaces/a/tables/t?purgeRequested=perhaps", (400, "BadRequestException")),
    ],
)
def test_other_routes(served: CatalogServer, method: str, path: str, error: tuple[int, str]) -> None:
    answer = served.ask(method, path, {} if method == "POST" else None)
    assert answer.error == error
    assert ("allow" in answer.headers) is (error[0] == 405)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"namespace": "a"}',
        b'{"namespace": []}',
        b'{"namespace": [1]}',
        b'{"namespace": [""]}',
        b'{"namespace": ["a"], "properties": []}',
        b'{"namespace": ["a"], "properties": {"x": {}}}',
        b'{"namespace": ["a"], "namespace": ["doubled"]}',
        b'{"namespace": ["doubled"], "properties": {"x": "1", "x": "2"}}',
        b"[" * 100_000,
    ],
)
def test_bodies_that_make_no_sense_change_nothing(served: CatalogServer, body: bytes) -> None:
    before = served.ask("GET", NAMESPACES).json
    assert served.ask("POST", NAMESPACES, body).error == (400, "BadRequestException")
    assert served.ask("GET", NAMESPACES).json == before


def test_a_body_must_be_json(served: CatalogServer) -> None:
    answer = served.ask("POST", NAMESPACES, b'{"namespace": ["a"]}', {"content-type": "text/plain"})
    assert answer.error == (415, "UnsupportedMediaTypeException")


def test_a_page_of_another_site_is_refused(served: CatalogServer) -> None:
    answer = served.ask("GET", NAMESPACES, headers={"host": "evil.example"})
    assert answer.error == (403, "ForbiddenException")


def _raw(
    served: CatalogServer, data: bytes, *, then: bytes = b"", times: int = 4 * (BODY_BYTES_MAX >> 20) + 8
) -> bytes:
    """The answer to bytes as they are, until the server closes."""
    place = urlsplit(served.url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        connection.sendall(data)
        try:
            for _ in range(times if then else 0):
                connection.sendall(then)
        except OSError:  # it has had enough, and closed
            assert then
        found = b""
        while part := _received(connection):
            found += part
        return found


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


def test_a_body_that_is_announced_as_too_large_is_not_read(served: CatalogServer) -> None:
    head = f"POST {NAMESPACES} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    answer = _raw(served, f"{head}content-length: {100 * BODY_BYTES_MAX}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"PayloadTooLargeException" in answer


def test_a_body_in_chunks_is_counted(served: CatalogServer) -> None:
    size = 1 << 20
    head = f"POST {NAMESPACES} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    chunk = f"{size:x}\r\n".encode() + b" " * size + b"\r\n"
    answer = _raw(served, head, then=chunk)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413 ")
    assert served.ask("GET", "/healthz").status == 200


def test_a_body_a_little_too_large_is_told_so(served: CatalogServer) -> None:
    answer = served.ask("POST", NAMESPACES, b" " * (BODY_BYTES_MAX + 1))
    assert answer.error == (413, "PayloadTooLargeException")
    large = b'{"namespace": []' + b" " * (BODY_BYTES_MAX - 17) + b"}"
    assert served.ask("POST", NAMESPACES, large).error == (400, "BadRequestException")


def test_what_is_no_http_ends_with_400(served: CatalogServer) -> None:
    assert _raw(served, b"hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert served.ask("GET", "/healthz").status == 200


@pytest.mark.parametrize("head", [b"GET /healthz HTTP/1.1\r\nx: ", b"GET /"], ids=["a header", "a path"])
def test_headers_without_end_are_cut_off(served: CatalogServer, head: bytes) -> None:
    answer = _raw(served, head, then=b"x" * 65536, times=100)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 "), "the end of the answer may be lost with the rest"
    assert served.ask("GET", "/healthz").status == 200


def test_headers_of_some_length_are_taken(served: CatalogServer) -> None:
    assert served.ask("GET", "/healthz", headers={f"x-{n}": "y" * 1000 for n in range(40)}).status == 200
