"""HTTP: a request from the first byte on its connection to its line in the log.

A request passes these steps in order: `ConnectionLimiter` accepts its connection; `LimitedProtocol` limits its headers
and its time; `HttpApp.admit` finds the route and checks the token, from the headers alone; only then is the body read,
within the memory budget of the process; the route checks the caller's rights in the namespaces that the request names;
the handler answers.

A handler is a function from `Request` to `Response`. It may block, on a store or until its group is published, so it
runs in a thread. There can be many threads, because most of them wait for the same publication.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import socket
import ssl
import sys
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from queue import SimpleQueue
from typing import Any, Literal, Protocol, TextIO, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

import httptools
import msgspec
from prometheus_client import CollectorRegistry, Histogram
from starlette.routing import compile_path
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from limpet import records
from limpet.catalog.state import (
    AlreadyExists,
    CommitFailed,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
)
from limpet.errors import (
    Conflict,
    Denied,
    Held,
    Invalid,
    LeaseLost,
    LimpetError,
    Missing,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from limpet.ledger import Publication, Publisher
from limpet.runtime import Runtime, ThreadHandle
from limpet.service.client import API_TOKENS

T = TypeVar("T")

THREADS_MAX = 256
AT_ONCE_MAX = 1024
"""Requests that are handled concurrently. Further ones are answered with 503, and not attempted."""
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bucket bounds of the latency histograms."""
BUFFERED_BYTES_MAX = 64 << 20
"""Bytes of request bodies in memory, over all connections. Requests beyond it are answered with 503."""
RECHECK_S = 1.0
"""The token of a request is checked again when it is handled, if the last check is older: its body may come slowly."""
DRAIN_FACTOR = 2
PATH_BYTES_MAX = 8192
QUERY_FIELDS_MAX = 32
MESSAGE_MAX = 1000
DEPTH_MAX = 64
ITEMS_MAX = 500_000
"""Brackets and commas in a body. They limit its values: an empty list takes thirty times its bytes in memory."""

JSON = (b"content-type", b"application/json")
RETRY_AFTER = (b"retry-after", b"1")
_CLOSE = (b"connection", b"close")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_QUIET = ("/healthz", "/readyz", "/metrics")
USER_INFO_MAX = 2048
_USER_INFO = re.compile(rf"//[^/?#\s'\"]{{1,{USER_INFO_MAX}}}@")
"""The user and password of a URL, such as `s3n://ID:SECRET@bucket/`."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


# ---- callers and tokens ----

Headers = Sequence[tuple[bytes, bytes]]

Right = Literal["read", "write", "metrics", "publish"]
RIGHTS: frozenset[Right] = frozenset(("read", "write", "metrics", "publish"))
DEFAULT = "default"
"""The name of a token that was configured without one."""


class TokenUnknown(Denied):
    """The request carries no token, or one that the service does not know."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: the name of its token, its rights, and the namespaces that they are limited to.

    `prefixes` are namespaces; the rights hold in them and in everything below. None: in every namespace.
    """

    name: str
    rights: frozenset[Right]
    prefixes: tuple[tuple[str, ...], ...] | None = None

    def check_right(self, right: Right) -> None:
        """Raises: Denied without the right."""
        if right not in self.rights:
            raise Denied(f"the token {self.name!r} does not have the right {right!r}", hint="")

    def check_namespaces(self, namespaces: Iterable[Sequence[str]], *, sight: bool = False) -> None:
        """Raises: Denied unless the rights hold in these namespaces; with `sight`, unless it may see them."""
        may = self.sees if sight else self.acts_in
        if not all(map(may, namespaces)):
            raise Denied(f"the token {self.name!r} has no rights in that namespace", hint="")

    def acts_in(self, namespace: Sequence[str]) -> bool:
        """Whether the rights hold in a namespace."""
        if self.prefixes is None:
            return True
        return any(tuple(namespace[: len(prefix)]) == prefix for prefix in self.prefixes)

    def sees(self, namespace: Sequence[str]) -> bool:
        """Whether a namespace is visible to the caller: it is in one of the prefixes, or an ancestor of one."""
        if self.prefixes is None:
            return True
        levels = tuple(namespace)
        return any(levels[: len(prefix)] == prefix[: len(levels)] for prefix in self.prefixes)


ANONYMOUS = Caller("", RIGHTS)
"""The caller of a service without tokens."""

Known = tuple[tuple[bytes, Caller], ...]
"""The SHA-256 digest of each token, and the caller that it identifies."""


class Tokens:
    """The tokens that a service accepts.

    A service without tokens accepts every request whose Host header names this machine. That refuses a web page in a
    local browser whose host name resolves to this machine (DNS rebinding). A POST must be JSON (`Request.json`).
    """

    def __init__(self, tokens: Sequence[str] = (), *sources: Known | Callable[[], Known]) -> None:
        fixed = tuple((digest_of(token), Caller(DEFAULT, RIGHTS)) for token in tokens)
        self._sources = [*([fixed] if fixed else ()), *sources]

    def __bool__(self) -> bool:
        return bool(self._sources)

    def authenticate(self, headers: Headers) -> Caller:
        """The owner of the token in the headers.   Raises: TokenUnknown; Denied."""
        if not self._sources:
            _check_local(headers)
            return ANONYMOUS
        sent = [value for name, value in headers if name == b"authorization"]
        scheme, _, token = sent[0].partition(b" ") if len(sent) == 1 else (b"", b"", b"")
        digest = hashlib.sha256(token.strip()).digest()
        caller: Caller | None = None
        for source in self._sources:
            for each, owner in source() if callable(source) else source:
                # all tokens are compared, in constant time, so that the duration reveals nothing
                if hmac.compare_digest(digest, each):
                    caller = owner
        if caller is None or scheme.lower() != b"bearer":
            raise TokenUnknown("the token is missing or unknown", hint="send Authorization: Bearer TOKEN")
        return caller


def _check_local(headers: Headers) -> None:
    sent = next((value for name, value in headers if name == b"host"), b"").decode("latin-1")
    if sent and not is_loopback(_host_in(sent)):
        raise Denied(
            "this service has no tokens, so it answers only requests to localhost and 127.0.0.1",
            hint=f"set {API_TOKENS} to serve other hosts",
        )


@lru_cache(maxsize=256)
def _host_in(sent: str) -> str:
    """The host name in a Host header, without the port; empty if it has none."""
    try:
        return urlsplit(f"//{sent}").hostname or ""
    except ValueError:
        return ""


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether an address or host name is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def digest_of(token: str) -> bytes:
    """The SHA-256 digest of a token. Only digests are stored and compared."""
    return hashlib.sha256(token.encode()).digest()


# ---- requests and responses ----


class Rejected(LimpetError):
    """A request that is refused at the HTTP level: route, method or body. Nothing was attempted."""

    def __init__(self, status: int, kind: str, message: str, *, hint: str = "", headers: Headers = ()) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.kind = kind
        self.headers = tuple(headers)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `names` are the variable segments of its path, decoded separately."""

    method: str
    names: tuple[str, ...] = ()
    query_string: bytes = b""
    headers: Headers = ()
    body: bytes = b""
    caller: Caller = ANONYMOUS
    _parsed: list[Any] = field(default_factory=list, repr=False, compare=False)

    def header(self, name: bytes) -> str | None:
        """A header by its lower-case name; the first one, if there are several."""
        for each, value in self.headers:
            if each == name:
                return value.decode("latin-1").strip()
        return None

    def query(self) -> Mapping[str, str]:
        """The fields of the query.   Raises: Invalid if it is not UTF-8, has too many fields, or one of them twice."""
        if not self.query_string:
            return {}
        try:
            pairs = parse_qsl(
                self.query_string.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=QUERY_FIELDS_MAX,
            )
        except ValueError as error:  # UnicodeDecodeError is one
            raise Invalid(f"the query cannot be read: {error}") from None
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise Invalid("the query has the same field twice")
        return fields

    def json(self) -> Any:
        """The body as JSON.   Raises: Rejected (415); Invalid, see `strict_json`."""
        if self._parsed:
            return self._parsed[0]
        kind = (self.header(b"content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Rejected(
                415, "UnsupportedMediaTypeException", "the body must come with Content-Type: application/json"
            )
        value = strict_json(self.body)
        self._parsed.append(value)
        return value

    def fields(self) -> dict[str, Any]:
        """The body as a JSON object.   Raises: Invalid."""
        value = self.json()
        if not isinstance(value, dict):
            raise Invalid("the body is not a JSON object", hint="send a JSON object")
        return value

    def struct(self, kind: type[T]) -> T:
        """The body as a `kind`.   Raises: Invalid, naming the first invalid field."""
        try:
            return records.converted(self.fields(), kind)
        except msgspec.ValidationError as error:
            raise Invalid(f"the body is not valid: {error}") from None


class EventStream(Protocol):
    """The body of an answer that comes bit by bit, for as long as the client listens."""

    def next(self) -> bytes | None:
        """Wait for the next part, in a thread; None ends the answer. It should return within some seconds."""

    def close(self) -> None:
        """The client has gone, or the answer has ended: have `next` return."""


@dataclass(frozen=True, slots=True)
class Response:
    """One answer. With a `stream`, its parts follow the headers, and the body is not sent."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    stream: EventStream | None = None


Handler = Callable[[Request], Response]


def json_response(value: Any, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Response:
    """`value`, of plain types or structs, as a JSON answer."""
    return Response(status, _encode(value), (JSON, *headers))


def strict_json(data: bytes) -> Any:
    """JSON without ambiguity: UTF-8, finite numbers, no duplicate name in an object, no trailing data.

    Raises: Invalid, also if it is nested too deeply or has too many values (F32).
    """
    brackets = data.count(b"[") + data.count(b"{")
    if brackets + data.count(b",") > ITEMS_MAX:
        raise Invalid(f"the body has more than {ITEMS_MAX} values", hint="send it in several requests")
    try:
        value = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not valid JSON: {error}", hint="send a JSON object in UTF-8") from None
    if brackets > DEPTH_MAX and _depth_exceeds(value, DEPTH_MAX):
        raise Invalid(f"the body is nested deeper than {DEPTH_MAX} levels")
    if _has_doubled(data, value):
        raise Invalid("the body is not valid JSON: an object has the same name twice", hint="give each name once")
    return value


def _has_doubled(data: bytes, value: Any) -> bool:
    """Whether an object in `data` has a duplicate name, of which the decoder kept only the last in `value`.

    Each member of an object has a colon, and the others are in strings, plain or escaped. So a dropped member changes
    the number of colons. Before the escaped ones are counted, escaped backslashes are taken out.
    """
    colons = data.count(b":")
    if b"\\u003" in data:
        plain = data.replace(b"\\\\", b"")
        colons += plain.count(b"\\u003a") + plain.count(b"\\u003A")
    try:
        return _encode(value).count(b":") != colons
    except OverflowError:  # an integer of more than 64 bits
        return json.dumps(value).count(":") != colons


def _depth_exceeds(value: Any, levels: int) -> bool:
    """Whether a decoded value has more nested levels. The decoder limits the depth, so this cannot overflow."""
    kinds = (dict, list)
    layer = [value] if type(value) in kinds else []
    for _ in range(levels):
        if not layer:
            return False
        layer = [
            inner for each in layer for inner in (each.values() if type(each) is dict else each) if type(inner) in kinds
        ]
    return bool(layer)


# ---- errors ----

_KINDS: tuple[tuple[type[LimpetError], int, str], ...] = (
    (NoSuchNamespace, 404, "NoSuchNamespaceException"),
    (NoSuchTable, 404, "NoSuchTableException"),
    (NoSuchView, 404, "NoSuchViewException"),
    (AlreadyExists, 409, "AlreadyExistsException"),
    (NamespaceNotEmpty, 409, "NamespaceNotEmptyException"),
    (CommitFailed, 409, "CommitFailedException"),
    (Invalid, 400, "BadRequestException"),
    (Missing, 404, "NotFoundException"),
    (Conflict, 409, "CommitFailedException"),
    (Unavailable, 503, "ServiceUnavailableException"),
    (LeaseLost, 503, "ServiceUnavailableException"),
    (Held, 503, "ServiceUnavailableException"),
    (TokenUnknown, 401, "NotAuthorizedException"),
    (Denied, 403, "ForbiddenException"),
    (Unsupported, 406, "UnsupportedOperationException"),
    (OutcomeUnknown, 500, "CommitStateUnknownException"),
    (LimpetError, 500, "InternalServerError"),
)
_EXTRA_HEADERS: dict[int, Headers] = {401: ((b"www-authenticate", b"Bearer"),), 503: (RETRY_AFTER,)}


def answer_to(error: LimpetError) -> Response:
    """The response for an error, in the error model of the Iceberg REST specification.

    After 500 a client must treat the outcome as unknown; after 503 it may send the same request again; after 4xx it
    knows that nothing was or will be published. This mapping is one of the catalog's guarantees.
    """
    if isinstance(error, Rejected):
        status, kind, headers = error.status, error.kind, error.headers
    else:
        status, kind = next((status, name) for each, status, name in _KINDS if isinstance(error, each))
        headers = tuple(_EXTRA_HEADERS.get(status, ()))
    said = " ".join(str(error).split())  # it may quote the client's text: limited to one line of bounded length
    said = said if len(said) <= MESSAGE_MAX else f"{said[:MESSAGE_MAX]}..."
    said = f"{said} ({error.hint})" if error.hint else said
    return json_response({"error": {"message": said, "type": kind, "code": status}}, status, headers)


_FAULT = answer_to(Rejected(500, "InternalServerError", "a fault in limpet: the outcome of the request is unknown"))


# ---- routes ----

Touched = Callable[[Request], Iterable[Sequence[str]]]
"""The namespaces that a request reads or changes.   Raises: Invalid if the request does not name them."""


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path with `{names}` in it, its handler, and what it requires of the caller.

    `tokens` are those that it accepts; None: no token is needed, and a body is not read. The caller must have `right`
    in all namespaces that `touched` finds in the request; a route without `touched` requires rights in every namespace.
    `sight`: visibility of the namespaces is enough. `quick`: it never blocks, and needs no thread.
    """

    method: str
    path: str
    handler: Handler
    tokens: Tokens | None
    quick: bool = False
    right: Right = "write"
    touched: Touched | None = None
    sight: bool = False

    def handle(self, request: Request) -> Response:
        """The handler's response.   Raises: Denied for a caller without the right; the handler's errors."""
        request.caller.check_right(self.right)
        if request.caller.prefixes is not None:
            namespaces = [()] if self.touched is None else self.touched(request)
            request.caller.check_namespaces(namespaces, sight=self.sight)
        return self.handler(request)


class Routes:
    """The table of routes. Starlette's patterns are matched in the order given, so frequent paths come first.

    They are matched against the raw path, and names are decoded afterwards: `%2F` inside a name is part of the name.
    A HEAD without a separate route is answered by the route for GET.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            by_path.setdefault(route.path, {})[route.method] = route
        self._table = [(compile_path(path)[0], methods) for path, methods in by_path.items()]

    def find(self, method: str, raw_path: bytes) -> tuple[Route, tuple[str, ...]]:
        """The route, and the decoded names in its path.   Raises: Rejected (400, 404, 405, 414)."""
        if len(raw_path) > PATH_BYTES_MAX:
            raise Rejected(414, "BadRequestException", "the path is too long")
        path = raw_path.decode("latin-1")
        for pattern, methods in self._table:
            match = pattern.match(path)
            if match is None:
                continue
            route = methods.get(method) or (methods.get("GET") if method == "HEAD" else None)
            if route is not None:
                return route, tuple(map(_decoded, match.groups()))
            takes = ", ".join(sorted(methods))
            raise Rejected(
                405, "MethodNotAllowedException", f"this route takes {takes}", headers=[(b"allow", takes.encode())]
            )
        raise Rejected(404, "NotFoundException", "there is no such route", hint="GET /v1/config lists the routes")


def _decoded(part: str) -> str:
    """A name in a path. Java's client and the reference server encode a space as `+`, and a plus as `%2B`."""
    try:
        return unquote_to_bytes(part.replace("+", " ").encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise Rejected(400, "BadRequestException", "a name in the path is not UTF-8") from None


# ---- the application ----

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(slots=True)
class Admission:
    """What the headers of a request say, and the response if the request is refused because of them."""

    since_s: float
    method: str
    peer: str
    id: str
    path: str = ""
    route: Route | None = None
    names: tuple[str, ...] = ()
    caller: Caller = ANONYMOUS
    is_known: bool = False
    """Whether it has sent a known token."""
    refusal: Response | None = None
    error: str = ""
    taken_bytes: int = 0
    checked_s: float = 0.0
    """When its token was last checked."""


class HttpApp:
    """An ASGI application over a table of routes. `LimitedProtocol` calls `admit` for each request first."""

    def __init__(
        self,
        routes: Routes,
        runtime: Runtime,
        *,
        body_bytes_max: int,
        seconds: Histogram | None = None,
        log: ServiceLog | None = None,
    ) -> None:
        """`seconds`: latency by method, path of the route and status. Clients cannot create new label values."""
        self._routes = routes
        self._runtime = runtime
        self._seconds = seconds
        self._timers: dict[tuple[str, ...], Histogram] = {}
        self._body_bytes_max = body_bytes_max
        self._log = log
        self._threads = HandlerThreads(THREADS_MAX, runtime)
        self._at_once = 0
        self._buffered_bytes = 0

    # ---- by the headers ----

    def admit(self, method: str, raw_path: bytes, headers: Headers, peer: str) -> Admission:
        """Admit or refuse a request from its headers alone. A refusal is counted and logged here."""
        admission = Admission(self._runtime.elapsed_s(), method, peer, self._id_of(headers))
        admission.checked_s = admission.since_s
        try:
            _check_same_site(headers)
            route, admission.names = self._routes.find(method, raw_path)
            admission.route, admission.path = route, route.path
            if route.tokens is not None:
                admission.caller = route.tokens.authenticate(headers)
                admission.is_known = True
                admission.caller.check_right(route.right)
            elif _length(headers) != 0:
                admission.refusal = _answer_bodiless(route, method)
        except LimpetError as error:
            admission.refusal = answer_to(error)
            admission.error = str(error)
        if admission.refusal is not None:
            self._observe(admission, admission.refusal)
        return admission

    def _id_of(self, headers: Headers) -> str:
        """The request's id in the log: the client's X-Request-ID, or a new one."""
        sent = next((value for name, value in headers if name == b"x-request-id"), b"")
        return sent.decode() if _REQUEST_ID.fullmatch(sent) else self._runtime.new_id()

    # ---- with the body ----

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        admitted = scope.get("state", {}).get("limpet")
        admission = admitted or self.admit(scope["method"], scope["raw_path"], scope["headers"], "")
        if admission.refusal is not None:  # pipelined behind another request, so the protocol could not answer it
            await _send(send, admission, admission.refusal, _CLOSE)
            return
        response = _FAULT
        self._at_once += 1
        try:
            response = await self._answer(admission, scope, receive)
        finally:  # the server logs an internal error; the client gets a response in any case
            self._at_once -= 1
            self._buffered_bytes -= admission.taken_bytes
            self._observe(admission, response)
            if response.stream is None:
                await _send(send, admission, response)
            else:
                await self._send_stream(send, receive, admission, scope["headers"], response, response.stream)

    async def _answer(self, admission: Admission, scope: Scope, receive: Receive) -> Response:
        route = admission.route
        assert route is not None
        try:
            if self._at_once > AT_ONCE_MAX and not route.quick:
                raise Unavailable("too many requests at once")
            body = b"" if route.tokens is None else await self._body(admission, scope, receive)
            headers = scope["headers"]
            self._check_again(admission, headers)
            request = Request(admission.method, admission.names, scope["query_string"], headers, body, admission.caller)
            return route.handle(request) if route.quick else await self._threads.run(partial(route.handle, request))
        except LimpetError as error:
            admission.error = f"{type(error).__name__}: {error}"
            return answer_to(error)

    def _check_again(self, admission: Admission, headers: Headers) -> None:
        """Authenticate again: the token may have been revoked since the headers came, or its rights may have changed.

        Raises: TokenUnknown; Denied.
        """
        route, now_s = admission.route, self._runtime.elapsed_s()
        if route is not None and route.tokens is not None and now_s - admission.checked_s >= RECHECK_S:
            admission.caller, admission.checked_s = route.tokens.authenticate(headers), now_s

    def _is_same_caller(self, admission: Admission, headers: Headers) -> bool:
        """Whether a token that was known before still is, with the same rights."""
        caller = admission.caller
        try:
            self._check_again(admission, headers)
        except Denied:
            return False
        return admission.caller == caller

    async def _send_stream(
        self,
        send: Send,
        receive: Receive,
        admission: Admission,
        sent: Headers,
        response: Response,
        stream: EventStream,
    ) -> None:
        """Send the parts of a stream until it ends, its client goes, or its token is revoked or has other rights.

        Each is waited for in a thread. `sent`: the headers of the request.
        """
        headers = [*response.headers, (b"x-request-id", admission.id.encode())]
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            part: bytes | None = b""
            while part is not None and admission.method != "HEAD":
                await send({"type": "http.response.body", "body": part, "more_body": True})
                waits = asyncio.ensure_future(self._threads.run(stream.next))
                await asyncio.wait({gone, waits}, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    stream.close()
                    await waits
                    return
                part = waits.result() if self._is_same_caller(admission, sent) else None
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            stream.close()

    async def _body(self, admission: Admission, scope: Scope, receive: Receive) -> bytes:
        """The whole body.   Raises: Rejected if it is too large or does not arrive in time."""
        length = _length(scope["headers"])
        if length == 0:
            return b""
        limit = self._body_bytes_max
        if length is not None and length > DRAIN_FACTOR * limit:
            raise _too_large(limit)
        self._take(admission, min(length or 0, limit))
        parts: list[bytes] = []
        size, more = 0, True
        while more and size <= DRAIN_FACTOR * limit:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Rejected(400, "BadRequestException", "the client disconnected")
            part = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size <= limit:
                self._take(admission, max(0, size - admission.taken_bytes))
                parts.append(part)
            else:  # some more is read and discarded, so that a client that sends before it reads gets the response
                parts.clear()
        if size > limit:
            raise _too_large(limit)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take(self, admission: Admission, size: int) -> None:
        """Reserve memory for bytes of the body until the request is answered.   Raises: Unavailable."""
        if size and self._buffered_bytes + size > BUFFERED_BYTES_MAX:
            raise Unavailable("too many large requests at once")
        self._buffered_bytes += size
        admission.taken_bytes += size

    # ---- afterwards ----

    def _observe(self, admission: Admission, response: Response) -> None:
        seconds = self._runtime.elapsed_s() - admission.since_s
        if self._seconds is not None:
            labels = admission.method if admission.path else "other", admission.path, str(response.status)
            timer = self._timers.get(labels)
            if timer is None:
                timer = self._timers[labels] = self._seconds.labels(*labels)
            timer.observe(seconds)
        refused = admission.refusal is not None
        if self._log is None or (admission.path in _QUIET and response.status < 500 and not refused):
            return
        (self._log.rare if refused else self._log.event)(
            "refused" if refused else "request",
            method=admission.method if admission.path else None,
            route=admission.path,
            status=response.status,
            ms=round(seconds * 1000, 1),
            bytes_in=admission.taken_bytes,
            bytes_out=len(response.body),
            actor=admission.caller.name,
            peer=admission.peer,
            request_id=admission.id,
            error=admission.error,
        )

    def close(self) -> bool:
        """Release the threads. Returns whether some still run, for requests whose clients no longer wait."""
        return self._threads.close()


async def _disconnected(receive: Receive) -> None:
    """Return once the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        continue


def _check_same_site(headers: Headers) -> None:
    """Raises: Rejected (403) for a cross-site request from a browser."""
    if any(name == b"sec-fetch-site" and value.strip().lower() == b"cross-site" for name, value in headers):
        raise Rejected(403, "ForbiddenException", "cross-site requests are not allowed")


def _answer_bodiless(route: Route, method: str) -> Response:
    """The response to a request with a body on a route that reads none."""
    if method == "POST":
        return route.handler(Request(method))
    return answer_to(Rejected(413, "PayloadTooLargeException", "this route takes no body"))


def _length(headers: Headers) -> int | None:
    """The declared length of the body; None if it is chunked."""
    for name, value in headers:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            return int(value)  # the server has checked it
    return 0


def _too_large(limit: int) -> Rejected:
    return Rejected(413, "PayloadTooLargeException", f"the body has more than {limit} bytes", headers=[_CLOSE])


async def _send(send: Send, admission: Admission, response: Response, *more: tuple[bytes, bytes]) -> None:
    body = b"" if admission.method == "HEAD" or response.status in (204, 304) else response.body
    headers = [*response.headers, *more, (b"x-request-id", admission.id.encode())]
    if response.status not in (204, 304):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# ---- threads ----

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class HandlerThreads:
    """Runs blocking handlers on threads, for the event loop. Threads are started on demand.

    The futures of a standard library executor take a tenth of the time of a small request. Here only the loop's thread
    updates the counters, so no lock is needed.
    """

    def __init__(self, most: int, runtime: Runtime) -> None:
        self._most = most
        self._runtime = runtime
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._started = 0
        self._unfinished = 0

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, or its error. `work` is completed even if this coroutine is cancelled."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._unfinished += 1
        if self._started < min(self._unfinished, self._most):
            self._started += 1
            self._runtime.spawn(self._work, name=f"limpet-http-{self._started}")
        self._jobs.put((work, loop, done))
        return await done

    def _work(self) -> None:
        while self._work_once():  # a call for each job, so that an idle thread keeps no request in memory
            pass

    def _work_once(self) -> bool:
        job = self._jobs.get()
        if job is None:
            return False
        work, loop, done = job
        try:
            resolve = partial(done.set_result, work())
        except StopIteration:  # futures do not accept it
            resolve = partial(done.set_exception, RuntimeError("a handler raised StopIteration"))
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting coroutine
            resolve = partial(done.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended, and with it every waiting coroutine
            loop.call_soon_threadsafe(self._end, done, resolve)
        return True

    def _end(self, done: asyncio.Future[Any], resolve: Callable[[], None]) -> None:
        self._unfinished -= 1
        if not done.done():  # else the waiting coroutine was cancelled
            resolve()

    def close(self) -> bool:
        """End the threads after their current work. Returns whether some are still working."""
        for _ in range(self._started):
            self._jobs.put(None)
        return self._unfinished > 0


# ---- connections ----
#
# Limits on connections, so that clients without a token cannot exhaust memory, threads or connections (F32). uvicorn
# limits none of this. A connection is a *stranger* until a request on it has sent a known token. Until then:
#
# - its memory is limited: 64 KiB of request line and headers, no body, no trailers, and few pipelined requests;
# - its time is limited: 10 seconds for the headers; the protocol itself writes a refusal, and then closes;
# - there are at most 512 strangers, 128 from one address, except for a moment. A further one closes the oldest stranger
#   of the address that has most of them. So a client with a token always gets in: after its first request it is not
#   a stranger any more.

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
HANDSHAKE_S = 10.0
ACCEPT_MAX = 64
ACCEPT_AGAIN_S = 0.5
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

        What was accepted before is answered first (F32): it may have been carried out. The last of these answers says
        that the connection closes. Without any, the answer is `refusal`; None: there is none.
        """
        if self.transport.is_closing():
            return
        if self.pipeline and self.cycle.more_body:  # it waits behind others, and is incomplete: it is never begun
            self.pipeline.popleft()
            self.cycle = self._earlier
        self._is_ended = True
        if self._is_busy() and not self.cycle.more_body:
            self.cycle.keep_alive = False
            self.cycle.default_headers = [*self.cycle.default_headers, _CLOSE]
            self._clear_deadline()
            if self._connection is not None and self._connection.is_stranger:
                self._set_deadline(HEAD_S)
        elif refusal is None or self._is_refused or (self._is_busy() and self.cycle.response_started):
            self.transport.abort()
        else:
            self._set_deadline(LINGER_S)
            self._answer("", Response(refusal))
            self.transport.close()

    def _expire(self) -> None:
        """The deadline has passed: what came so far is too slow, or answers are not read."""
        if self._is_ended:
            self.transport.abort()
        else:
            self._end(None)

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, self._expire)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


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
                self._loop.call_later(ACCEPT_AGAIN_S, self._listen)
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


def timed(publish: Publisher, registry: CollectorRegistry, runtime: Runtime, *then: Callable[[], None]) -> Publisher:
    """`publish` with a latency metric by outcome. Each of `then` is called after a publication."""
    seconds = Histogram(
        "limpet_publish_seconds", "Time to publish a batch.", ("outcome",), registry=registry, buckets=SECONDS
    )

    def publish_timed(paths: Sequence[str], token: int) -> Publication:
        since_s, outcome = runtime.elapsed_s(), "fault"
        try:
            published = publish(paths, token)
            outcome = "published"
        except LimpetError as error:
            outcome = type(error).__name__
            raise
        finally:
            seconds.labels(outcome).observe(runtime.elapsed_s() - since_s)
        for each in then:
            each()
        return published

    return publish_timed


# ---- the log: one line for each event, as text or as JSON, on stderr ----
#
# No line contains a secret, and a client's text cannot break a line or control a terminal. A slow reader of the log, or
# a full disk, never delays a request: a thread writes the lines, and those that do not fit into its queue are dropped
# and counted. Clients without a token cannot fill the disk: refusals are rate-limited.

Form = Literal["text", "json", "none"]

LINES_MAX = 10_000
TEXT_MAX = 300
RARE_PER_S = 10
IDLE_S = 1.0
TRACE_MAX = 30


class ServiceLog:
    """The log of a service. Thread-safe. Before `start`, lines are written by the calling thread."""

    def __init__(self, runtime: Runtime, form: Form = "text", out: TextIO | None = None) -> None:
        self._runtime = runtime
        self._form = form
        self._out = out
        self._mutex = runtime.mutex()
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._rare: dict[str, tuple[int, int]] = {}
        self._wake = runtime.flag()
        self._stopped = runtime.flag()
        self._thread: ThreadHandle | None = None

    def start(self) -> None:
        """Start the thread that writes the lines."""
        self._thread = self._runtime.spawn(self._run, name="limpet-log")

    def event(self, kind: str, **fields: Any) -> None:
        """Log an event. Fields that are None or empty are omitted."""
        if self._form != "none":
            self._add(self._line(kind, fields))

    def rare(self, kind: str, **fields: Any) -> None:
        """Log an event that clients without a token can cause: rate-limited by kind, with a count of the rest."""
        second = int(self._runtime.elapsed_s())
        with self._mutex:
            begun, count = self._rare.get(kind, (second, 0))
            left_out = max(0, count - RARE_PER_S) if begun != second else 0
            count = count + 1 if begun == second else 1
            self._rare[kind] = (second, count)
        if left_out:
            self.event(kind, left_out=left_out)
        if count <= RARE_PER_S:
            self.event(kind, **fields)

    def warn(self, text: str) -> None:
        """Log a warning."""
        self.event("warning", text=text)

    def redirect(self, name: str) -> None:
        """Redirect the warnings and errors of the standard library's logger `name` to this log."""
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_LibraryLog(self)], False

    def _line(self, kind: str, fields: dict[str, Any]) -> str:
        at = self._runtime.wall()
        shown = {
            name: printable(value) if isinstance(value, str) else value
            for name, value in fields.items()
            if value is not None and value != ""
        }
        if self._form == "json":
            return records.encode({"at": at, "event": kind, **shown}).decode()
        text, trace = shown.pop("text", ""), shown.pop("traceback", [])
        words = [f"{at:%H:%M:%S}Z", f"{kind:<9}", *([text] if text else [])]
        line = " ".join([*words, *(f"{name}={_word(value)}" for name, value in shown.items())])
        return "\n".join([line, *(f"    | {each}" for each in trace)])

    def _add(self, line: str) -> None:
        with self._mutex:
            if self._thread is not None and len(self._lines) < LINES_MAX:
                self._lines.append(line)
                line = ""
            elif self._thread is not None:
                self._dropped += 1
                line = ""
        if line:
            self._write(line + "\n")
        else:
            self._wake.set()

    def _run(self) -> None:
        while not self._stopped.is_set() or self._lines:
            self._wake.wait(IDLE_S)
            self._wake = self._runtime.flag()
            self._flush()

    def _flush(self) -> None:
        with self._mutex:
            lines, dropped = [*self._lines], self._dropped
            self._lines.clear()
            self._dropped = 0
        if dropped:
            lines.append(self._line("warning", {"text": f"{dropped} lines of the log were dropped"}))
        if lines:
            self._write("\n".join(lines) + "\n")

    def _write(self, text: str) -> None:
        out = self._out or sys.stderr
        with suppress(OSError, ValueError):  # closed, or a full disk: it cannot be reported anywhere
            out.write(text)
            out.flush()

    def stop(self) -> None:
        """Write the remaining lines. The thread ends too, unless the reader of the log blocks it."""
        self._stopped.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._flush()


class _LibraryLog(logging.Handler):
    """Sends warnings and errors of a library to the service's log, with the traceback of an exception."""

    def __init__(self, log: ServiceLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        trace = "".join(traceback.format_exception(error)[-TRACE_MAX:]).splitlines() if error else []
        kind = "fault" if error else "warning"
        self._log.event(kind, text=record.getMessage().strip(), traceback=[*map(printable, trace)] or None)


def printable(text: str) -> str:
    """`text` as one line of bounded length, without control characters for a terminal, or passwords in URLs."""
    text = _USER_INFO.sub("//...@", text[: 2 * USER_INFO_MAX])
    return records.printable(text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}...")


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    text = str(value)
    return f'"{text}"' if not text or " " in text or '"' in text else text
