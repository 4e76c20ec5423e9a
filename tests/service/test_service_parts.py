"""The service's small parts: paths, bodies, tokens, errors and metrics, each by itself."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Iterator, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from limpet.catalog import NotLeader, PublicationRefused
from limpet.catalog.heads import RefusedBatch
from limpet.catalog.names import (
    AlreadyExists,
    CommitFailed,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
)
from limpet.kernel.errors import (
    Conflict,
    Corrupt,
    Denied,
    Invalid,
    LeaseLost,
    LimpetError,
    Missing,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from limpet.kernel.runtime import system
from limpet.service.app import HttpApp, Receive, Route, Routes
from limpet.service.client import secrets_of
from limpet.service.requests import (
    DEPTH_MAX,
    ITEMS_MAX,
    Rejected,
    Request,
    Response,
    answer_to,
    json_response,
    strict_json,
)
from limpet.service.status import metrics_text
from limpet.service.tokens import Caller, Headers, Tokens, check_bind, digest_of

JSON = [(b"content-type", b"application/json; charset=utf-8")]


def _nothing(_: Request) -> Response:
    return Response(204)


ROUTES = Routes(
    [
        Route("GET", "/v1/namespaces", _nothing, None),
        Route("GET", "/v1/namespaces/{namespace}/tables/{table}", _nothing, None),
        Route("DELETE", "/v1/namespaces/{namespace}/tables/{table}", _nothing, None),
        Route("POST", "/v1/tables/rename", _nothing, None),
    ]
)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (b"/v1/namespaces", ()),
        (b"/v1/namespaces/a/tables/b", ("a", "b")),
        (b"/v1/namespaces/a%2Fb%1Fc/tables/%C3%BC%20x.y", ("a/b\x1fc", "ü x.y")),
        (b"/v1/namespaces/tables/tables/tables", ("tables", "tables")),
        (b"/v1/namespaces/%2e%2e/tables/a+b%2B", ("..", "a b+")),
        (b"/v1/namespaces/a+b%20c/tables/+", ("a b c", " ")),
    ],
)
def test_names_are_decoded_one_by_one(path: bytes, names: tuple[str, ...]) -> None:
    assert ROUTES.find("GET", path)[1] == names


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", b"/", 404),
        ("GET", b"", 404),
        ("GET", b"/v1/namespaces/", 404),
        ("GET", b"/v1//namespaces", 404),
        ("GET", b"/v1/namespaces//tables/x", 404),
        ("GET", b"/v1/namespaces/a/tables/b/c", 404),
        ("GET", b"/v1/namespaces/a%2Ftables%2Fb", 404),
        ("PUT", b"/v1/namespaces", 405),
        ("GET", b"/v1/tables/rename", 405),
        ("GET", b"/v1/namespaces/%ff/tables/x", 400),
        ("GET", b"/v1/namespaces/" + b"a" * 9000, 414),
    ],
)
def test_other_paths_are_refused(method: str, path: bytes, status: int) -> None:
    with pytest.raises(Rejected) as refused:
        ROUTES.find(method, path)
    assert refused.value.status == status
    if status == 405:
        assert dict(refused.value.headers)[b"allow"]


def test_head_is_answered_by_get() -> None:
    assert ROUTES.find("HEAD", b"/v1/namespaces")[0].method == "GET"


def _json(body: bytes) -> object:
    return Request("POST", headers=JSON, body=body).json()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b'{"a": NaN}',
        b'"\xed\xa0\x80"',
        b'{"a": 1e999}',
        b"[" * 100_000,
        b"[" * (DEPTH_MAX + 2) + b"]" * (DEPTH_MAX + 2),
        b'{"a":' * (DEPTH_MAX + 2) + b"1" + b"}" * (DEPTH_MAX + 2),
        b'{"a": 1} {}',
        b'{"a": 1}\x00',
        b'\xef\xbb\xbf{"a": 1}',
        b'{"a": Infinity}',
        b'{"a": -1e999}',
        b'{"a": 1, "a": 1}',
        b'{"a": 1, "\\u0061": 2}',
        b'[{"b": {"c": [{"x": {}, "y": 1, "x": []}]}}]',
        b'{"a": "\\u003a", "a": ":"}',  # the escaped colon stands for the one that is dropped
        b'{"a": 0, "a": "\\u003A"}',
        b'{"a": 18446744073709551617, "a": 18446744073709551617}',
        b"[" + b"[]," * ITEMS_MAX + b"[]]",
    ],
)
def test_bad_json_is_invalid(body: bytes) -> None:
    with pytest.raises(Invalid):
        _json(body)


def test_json_that_is_wide_and_not_deep_is_fine() -> None:
    assert _json(b"[" + b",".join([b"{}"] * 500) + b"]") == [{}] * 500
    assert _json(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX) is not None


@pytest.mark.parametrize(
    "text",
    [
        '{"a:b": "s3://x/y", "c": ["\\u003a", ":", {"a:b": 1}]}',
        '{"a": {"a": {"a": 1}}, "b": {"a": 1}}',
        '{"a": 18446744073709551617, "b": "\\\\u003a"}',
        '{"a": "\\\\\\u003a\\\\", "b": "\\\\\\\\u003A:"}',
        '{"\\u00e4": "\\ud83d\\ude00:", "": 1.5e-7}',
    ],
)
def test_strict_json_reads_what_the_standard_library_reads(text: str) -> None:
    assert strict_json(text.encode()) == json.loads(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(':\\u03a"{[,é', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(st.text(":a\\", max_size=2), inner), max_size=3),
    max_leaves=12,
)


def _written(value: object, ascii_: bool) -> str:
    """JSON of a value in which a list of pairs is an object, whose names may double."""
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        members = (f"{json.dumps(name, ensure_ascii=ascii_)} :{_written(inner, ascii_)}" for name, inner in value)
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_written(inner, ascii_) for inner in value) + "]"
    text = json.dumps(value, ensure_ascii=ascii_)
    return text.replace(":", "\\u003a") if ascii_ else text


def _doubles(value: object) -> bool:
    if not isinstance(value, list):
        return False
    if value and isinstance(value[0], tuple):
        names = [name for name, _ in value]
        return len({*names}) != len(names) or any(_doubles(inner) for _, inner in value)
    return any(map(_doubles, value))


@given(VALUES, st.booleans())
def test_doubled_names_are_refused_and_nothing_else(value: object, ascii_: bool) -> None:
    data = _written(value, ascii_).encode()
    if _doubles(value):
        with pytest.raises(Invalid, match="twice"):
            strict_json(data)
    else:
        assert strict_json(data) == json.loads(data)


def test_a_body_that_looks_doubled_takes_little_memory() -> None:
    """An escaped colon, or a long integer, once had it decoded again in Python: 24 such bodies took 1.5 GB and 17 s."""
    for first in (b'"a\\u003a":1', b'"a":18446744073709551617'):
        data = b"{" + first + b"".join(b',"k%d":"v"' % n for n in range(50_000)) + b"}"
        tracemalloc.start()
        value = strict_json(data)
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(value) == 50_001
        assert peak - kept < 3 * len(data)
        with pytest.raises(Invalid, match="twice"):
            strict_json(data[:-1] + b',"k7":1}')


@pytest.mark.parametrize("headers", [[], [(b"content-type", b"text/plain")], [(b"content-type", b"")]])
def test_a_body_must_say_that_it_is_json(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Rejected) as refused:
        Request("POST", headers=headers, body=b"{}").json()
    assert refused.value.status == 415


@pytest.mark.parametrize("query", [b"a=1&a=2", b"a=%ff", b"&".join(b"x%d=1" % n for n in range(40)), b"\xff=1"])
def test_bad_queries_are_invalid(query: bytes) -> None:
    with pytest.raises(Invalid):
        Request("GET", query_string=query).query()


def test_a_query_is_decoded() -> None:
    assert Request("GET", query_string=b"parent=a%1Fb&x=&y=%2B+").query() == {"parent": "a\x1fb", "x": "", "y": "+ "}


SECRET, OTHER = "s" * 20, "o" * 20


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 401),
        ([(b"authorization", b"Bearer " + b"x" * 20)], 401),
        ([(b"authorization", SECRET.encode())], 401),
        ([(b"authorization", b"Basic " + SECRET.encode())], 401),
        ([(b"authorization", b"Bearer ")], 401),
        ([(b"authorization", b"Bearer \xff")], 401),
        ([(b"authorization", b"Bearer " + SECRET.encode())], None),
        ([(b"authorization", b"bearer " + OTHER.encode())], None),
    ],
)
def test_tokens(headers: list[tuple[bytes, bytes]], status: int | None) -> None:
    tokens = Tokens([SECRET, OTHER])
    if status is None:
        tokens.authenticate(headers)
        return
    with pytest.raises(Denied) as refused:
        tokens.authenticate(headers)
    assert answer_to(refused.value).status == status


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        (b"127.0.0.1:8181", True),
        (b"localhost", True),
        (b"[::1]:8181", True),
        (b"evil.example:8181", False),
        (b"127.0.0.1.evil.example", False),
        (b"10.0.0.1", False),
        (b"[", False),
    ],
)
def test_without_tokens_only_this_machine_is_answered(host: bytes, allowed: bool) -> None:
    if allowed:
        Tokens().authenticate([(b"host", host)])
        return
    with pytest.raises(Denied) as refused:
        Tokens().authenticate([(b"host", host)])
    assert answer_to(refused.value).status == 403


def test_secrets_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    assert secrets_of("S", {}) == []
    assert secrets_of("S", {"S": f"{SECRET}, {OTHER}"}) == [SECRET, OTHER]
    assert secrets_of("S", {"S_FILE": str(file)}) == [SECRET]


@pytest.mark.parametrize(
    "environ",
    [{"S": "short"}, {"S": " , "}, {"S": SECRET, "S_FILE": "x"}, {"S_FILE": "/nowhere/at/all"}, {"S": "ü" * 20}],
)
def test_bad_secrets_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        secrets_of("S", environ)


def test_a_public_address_needs_a_secret() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9"):
        check_bind(host, {"S": False})
    for host in ("0.0.0.0", "::", "10.0.0.1", "catalog.example", "localhost.example"):
        check_bind(host, {"S": True})
        with pytest.raises(Invalid, match="S is not set"):
            check_bind(host, {"S": False})


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (NoSuchNamespace("x"), 404, "NoSuchNamespaceException"),
        (NoSuchTable("x"), 404, "NoSuchTableException"),
        (NoSuchView("x"), 404, "NoSuchViewException"),
        (Missing("x"), 404, "NotFoundException"),
        (AlreadyExists("x"), 409, "AlreadyExistsException"),
        (NamespaceNotEmpty("x"), 409, "NamespaceNotEmptyException"),
        (CommitFailed("x"), 409, "CommitFailedException"),
        (Conflict("x"), 409, "CommitFailedException"),
        (Invalid("x"), 400, "BadRequestException"),
        (NotLeader("x"), 503, "ServiceUnavailableException"),
        (Unavailable("x"), 503, "ServiceUnavailableException"),
        (LeaseLost("x"), 503, "ServiceUnavailableException"),
        (Denied("x"), 403, "ForbiddenException"),
        (Unsupported("x"), 406, "UnsupportedOperationException"),
        (OutcomeUnknown("x"), 500, "CommitStateUnknownException"),
        (Corrupt("x"), 500, "InternalServerError"),
        (PublicationRefused(RefusedBatch(True, "x")), 500, "InternalServerError"),
    ],
)
def test_each_kind_of_error_has_its_status(error: LimpetError, status: int, kind: str) -> None:
    answer = answer_to(error)
    assert answer.status == status
    assert f'"type":"{kind}","code":{status}'.encode() in answer.body
    assert ((b"retry-after", b"1") in answer.headers) is (status == 503)


def test_metrics_are_what_prometheus_reads() -> None:
    registry = CollectorRegistry()
    counter = Counter("c_total", "A counter.", ("name",), registry=registry)
    counter.labels('a"\n\\').inc()
    counter.labels('a"\n\\').inc(2)
    histogram = Histogram("h", "A histogram.", registry=registry, buckets=(1.0, 2.5))
    for value in (0.5, 1.0, 2.0, 9.0):
        histogram.observe(value)
    Gauge("g", "A gauge.", ("verb",), registry=registry).labels("x").set_function(lambda: 1.5)
    assert metrics_text(registry).decode().splitlines() == [
        "# HELP c_total A counter.",
        "# TYPE c_total counter",
        'c_total{name="a\\"\\n\\\\"} 3.0',
        "# HELP h A histogram.",
        "# TYPE h histogram",
        'h_bucket{le="1.0"} 2.0',
        'h_bucket{le="2.5"} 3.0',
        'h_bucket{le="+Inf"} 4.0',
        "h_count 4.0",
        "h_sum 12.5",
        "# HELP g A gauge.",
        "# TYPE g gauge",
        'g{verb="x"} 1.5',
    ]


def test_a_client_cannot_make_up_labels() -> None:
    registry = CollectorRegistry()
    seconds = Histogram("s", "Seconds.", ("method", "route", "status"), registry=registry)
    counted = HttpApp(ROUTES, system(), body_bytes_max=10, seconds=seconds)
    for number in range(10):
        counted.admit(f"VERB{number}", b"/made-up/%d" % number, [], "")
        counted.admit("POST", b"/v1/namespaces/n%d/tables/t" % number, [], "")
    counts = [line for line in metrics_text(registry).decode().splitlines() if line.startswith("s_count")]
    assert counts == [
        's_count{method="other",route="",status="404"} 10.0',
        's_count{method="other",route="",status="405"} 10.0',
    ]


Sent = list[dict[str, Any]]


def _sent(app: HttpApp, method: str, path: bytes, headers: Headers, receive: Receive, sent: Sent) -> Sent:
    """What the application sends in answer to a request, as the server would hand it over."""

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append({**message})

    scope = {"type": "http", "method": method, "raw_path": path, "query_string": b"", "headers": headers}
    asyncio.run(app(scope, receive, send))
    return sent


def _asked(app: HttpApp, path: bytes, *chunks: bytes, into: Sent | None = None) -> Sent:
    """The answer to a POST."""
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> MutableMapping[str, Any]:
        return messages.pop(0)

    headers = [(b"host", b"localhost"), (b"transfer-encoding", b"chunked"), *JSON]
    return _sent(app, "POST", path, headers, receive, [] if into is None else into)


def _raising(error: Exception, _: Request) -> Response:
    raise error


@pytest.fixture
def app() -> Iterator[HttpApp]:
    routes = [
        Route("POST", "/broken", partial(_raising, ZeroDivisionError()), Tokens()),
        Route("POST", "/stopped", partial(_raising, StopIteration()), Tokens()),
        Route("POST", "/echo", lambda request: json_response(request.json()), Tokens()),
    ]
    made = HttpApp(Routes(routes), system(), body_bytes_max=10)
    yield made
    assert not made.close()


def test_a_fault_is_answered_and_told_to_the_server(app: HttpApp) -> None:
    sent: list[dict[str, Any]] = []
    with pytest.raises(ZeroDivisionError):
        _asked(app, b"/broken", into=sent)
    assert sent[0]["status"] == 500
    assert b'"type":"InternalServerError","code":500' in sent[1]["body"]
    with pytest.raises(RuntimeError, match="StopIteration"):
        _asked(app, b"/stopped")


def test_a_body_comes_in_parts_and_is_cut_off(app: HttpApp) -> None:
    start, body = _asked(app, b"/echo", b"[1,", b"2]")
    assert (start["status"], body["body"]) == (200, b"[1,2]")
    assert _asked(app, b"/echo", b"[", b" " * 9, b"]")[0]["status"] == 413
    assert _asked(app, b"/echo", *[b" " * 10] * 9)[0]["status"] == 413


def test_too_many_at_once_are_told_to_come_back(app: HttpApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpet.service.app.AT_ONCE_MAX", 0)
    start, _ = _asked(app, b"/echo", b"[]")
    assert start["status"] == 503
    assert (b"retry-after", b"1") in start["headers"]


class _Later:
    """The runtime of this machine, whose clock a test sets ahead."""

    by_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(system(), name)

    def elapsed_s(self) -> float:
        return system().elapsed_s() + self.by_s


READER = Caller("r", frozenset(("read",)))
WRITER = Caller("r", frozenset(("read", "write")))


@pytest.mark.parametrize(
    ("late_s", "after", "status"),
    [
        (0.0, WRITER, 200),
        (2.0, WRITER, 200),
        (2.0, None, 401),
        (2.0, READER, 403),
        (2.0, Caller("r", WRITER.rights, (("b",),)), 403),
    ],
)
def test_a_token_that_is_revoked_before_the_body_has_come_does_nothing(
    late_s: float, after: Caller | None, status: int
) -> None:
    """The headers say who it is; the body may come 40 seconds later."""
    token, clock, handled = b"a-token-of-some-length", _Later(), []
    digest = digest_of(token.decode())
    known: list[tuple[bytes, Caller]] = [(digest, WRITER)]

    def handler(request: Request) -> Response:
        handled.append(request.caller)
        return Response(200)

    routes = [Route("POST", "/a", handler, Tokens((), lambda: tuple(known)))]
    app = HttpApp(Routes(routes), clock, body_bytes_max=10)

    async def receive() -> MutableMapping[str, Any]:
        clock.by_s = late_s
        known[:] = [(digest, after)] if after is not None else []
        return {"type": "http.request", "body": b"{}", "more_body": False}

    headers = [(b"authorization", b"Bearer " + token), (b"transfer-encoding", b"chunked")]
    sent = _sent(app, "POST", b"/a", headers, receive, [])
    app.close()
    assert (sent[0]["status"], len(handled)) == (status, int(status == 200))


@pytest.mark.parametrize(("after", "ends"), [(WRITER, False), (READER, True), (None, True)])
def test_a_stream_ends_when_its_token_is_revoked(after: Caller | None, ends: bool) -> None:
    token, clock = b"a-token-of-some-length", _Later()
    digest = digest_of(token.decode())
    known: list[tuple[bytes, Caller]] = [(digest, WRITER)]

    class Stream:
        parts = 0

        def next(self) -> bytes | None:
            self.parts += 1
            if self.parts == 2:
                clock.by_s = 2.0
                known[:] = [(digest, after)] if after is not None else []
            return f"{self.parts} ".encode() if self.parts < 4 else None

        def close(self) -> None:
            self.parts = 9

    stream = Stream()
    tokens = Tokens((), lambda: tuple(known))
    routes = [Route("GET", "/a", lambda _: Response(200, stream=stream), tokens, right="read")]
    app = HttpApp(Routes(routes), clock, body_bytes_max=10)

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        return {}

    sent = _sent(app, "GET", b"/a", [(b"authorization", b"Bearer " + token)], receive, [])
    app.close()
    assert b"".join(each.get("body", b"") for each in sent) == (b"1 " if ends else b"1 2 3 ")
    assert stream.parts == 9
