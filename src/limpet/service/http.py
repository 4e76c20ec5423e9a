"""HTTP: requests, responses, the error model, routes, and the ASGI application that puts handlers behind its guards.

A handler is a plain function from `Request` to `Response`. It may block, on a store or until its group is published, so
it runs in a thread. There can be many threads, because most of them wait for one publication together.

A request passes these steps, in this order: `limits` has bounded its headers and its connection; `HttpApp.admit` finds
the route and demands the token, by the headers alone; only then is the body read, within the budget of the process; the
route checks the caller's rights in the namespaces that the request names; the handler answers.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from prometheus_client import Histogram
from starlette.routing import compile_path

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
from limpet.runtime import Runtime
from limpet.service.auth import ANYBODY, Caller, Headers, Right, Tokens, TokenUnknown
from limpet.service.log import ServiceLog

T = TypeVar("T")

THREADS_MAX = 256
AT_ONCE_MAX = 1024
"""Requests that may be handled at the same time. More are answered with 503, and nothing of them is attempted."""
BUFFERED_BYTES_MAX = 64 << 20
"""Bytes of bodies that may be in memory, over all connections. More are answered with 503."""
DRAIN_FACTOR = 2
PATH_BYTES_MAX = 8192
QUERY_FIELDS_MAX = 32
MESSAGE_MAX = 1000
DEPTH_MAX = 64
ITEMS_MAX = 500_000
"""Brackets and commas in a body, which bound the values in it: an empty list takes thirty times its bytes in memory."""

JSON = (b"content-type", b"application/json")
RETRY_AFTER = (b"retry-after", b"1")
_CLOSE = (b"connection", b"close")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_QUIET = ("/healthz", "/readyz", "/metrics")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


# ---- requests and responses ----


class Rejected(LimpetError):
    """A request that HTTP itself refuses: no such route, method or body. Nothing was attempted."""

    def __init__(self, status: int, kind: str, message: str, *, hint: str = "", headers: Headers = ()) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.kind = kind
        self.headers = tuple(headers)


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `names` are the variable segments of its path, each decoded by itself."""

    method: str
    names: tuple[str, ...] = ()
    query_string: bytes = b""
    headers: Headers = ()
    body: bytes = b""
    caller: Caller = ANYBODY
    _parsed: list[Any] = field(default_factory=list, repr=False, compare=False)

    def header(self, name: bytes) -> str | None:
        """A header by its lower-case name; the first, if it comes twice."""
        for each, value in self.headers:
            if each == name:
                return value.decode("latin-1").strip()
        return None

    def query(self) -> Mapping[str, str]:
        """The query's fields.   Raises: Invalid for what is not UTF-8, too much, or given twice."""
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
        """The body as a `kind`.   Raises: Invalid, naming the first field that is wrong."""
        try:
            return records.converted(self.fields(), kind)
        except msgspec.ValidationError as error:
            raise Invalid(f"the body is wrong: {error}") from None


@dataclass(frozen=True, slots=True)
class Response:
    """One answer."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()


Handler = Callable[[Request], Response]


def json_response(value: Any, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Response:
    """`value`, of plain types or structs, as a JSON answer."""
    return Response(status, _encode(value), (JSON, *headers))


def strict_json(data: bytes) -> Any:
    """JSON that every reader reads alike: UTF-8, finite numbers, no name twice in an object, nothing behind it.

    Raises: Invalid, also for what is nested too deeply or has too many values (F32).
    """
    if data.count(b"[") + data.count(b"{") + data.count(b",") > ITEMS_MAX:
        raise Invalid(f"the body has more than {ITEMS_MAX} values", hint="send it in several requests")
    try:
        value = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not valid JSON: {error}", hint="send a JSON object in UTF-8") from None
    if _may_double(data, value):
        try:  # slowly, with the standard library, which shows every name
            json.loads(data, object_pairs_hook=_refuse_doubled)
        except (ValueError, RecursionError) as error:
            raise Invalid(f"the body is not valid JSON: {error}", hint="give each name once") from None
    if _depth_exceeds(value, DEPTH_MAX):
        raise Invalid(f"the body is nested deeper than {DEPTH_MAX} levels")
    return value


def _may_double(data: bytes, value: Any) -> bool:
    """Whether an object in `data` may have a name twice, of which `value` has kept the last.

    Each member of an object has a colon, and no value has one outside of strings. So a member that was dropped is
    missed when the colons are counted, unless some are escaped: then the count proves nothing.
    """
    try:
        return b"\\u003" in data or _encode(value).count(b":") != data.count(b":")
    except (OverflowError, RecursionError):  # an integer of more than 64 bits
        return True


def _refuse_doubled(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("an object has the same name twice")


def _depth_exceeds(value: Any, levels: int) -> bool:
    """Whether a decoded value is nested deeper. The decoder has bounded it, so this does not overflow."""
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
    """The answer to a request that met this error, in the error model of the Iceberg REST specification.

    A client that gets 500 must treat the outcome as unknown, one that gets 503 may send the same request again, and one
    that gets 4xx knows that nothing was and nothing will be published: the mapping is one of the catalog's promises.
    """
    if isinstance(error, Rejected):
        status, kind, headers = error.status, error.kind, error.headers
    else:
        status, kind = next((status, name) for each, status, name in _KINDS if isinstance(error, each))
        headers = tuple(_EXTRA_HEADERS.get(status, ()))
    said = " ".join(str(error).split())  # it may quote the client's text: one line, and of bounded length
    said = said if len(said) <= MESSAGE_MAX else f"{said[:MESSAGE_MAX]}..."
    said = f"{said} ({error.hint})" if error.hint else said
    return json_response({"error": {"message": said, "type": kind, "code": status}}, status, headers)


_FAULT = answer_to(Rejected(500, "InternalServerError", "a fault in limpet: the outcome of the request is unknown"))


# ---- routes ----

Touched = Callable[[Request], Iterable[Sequence[str]]]
"""The namespaces that a request reads or changes.   Raises: Invalid if the request does not say."""


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path with `{names}` in it, its handler, and what it demands of the caller.

    `tokens` are those that it accepts; None: no token is needed, and a body is not read. The caller must have `right`
    in all namespaces that `touched` finds in the request; a route without `touched` is only for callers with rights in
    every namespace. `sight`: it is enough to see the namespaces. `quick`: it never blocks, and needs no thread.
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
        """The handler's answer.   Raises: Denied for a caller without the right here; the handler's errors."""
        request.caller.demand(self.right)
        if request.caller.prefixes is not None:
            namespaces = [()] if self.touched is None else self.touched(request)
            request.caller.demand_in(namespaces, sight=self.sight)
        return self.handler(request)


class Routes:
    """The table of routes. Starlette's patterns are matched in the order given, so frequent paths come first.

    They are matched with the raw path, and each name is decoded after that: `%2F` inside a name is part of the name.
    A HEAD that has no route for itself is answered by the route for GET.
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
    """A name in a path. Java's client and the reference server write a space as `+`; a plus is always `%2B`."""
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
    """A request as far as its headers tell, and the refusal if they are enough to refuse it."""

    since_s: float
    method: str
    peer: str
    id: str
    path: str = ""
    route: Route | None = None
    names: tuple[str, ...] = ()
    caller: Caller = ANYBODY
    is_known: bool = False
    """Whether it has sent a token that the service knows."""
    refusal: Response | None = None
    error: str = ""
    taken_bytes: int = 0


class HttpApp:
    """An ASGI application over a table of routes. `limits.LimitedProtocol` asks it to admit each request first."""

    def __init__(
        self,
        routes: Routes,
        runtime: Runtime,
        *,
        body_bytes_max: int,
        seconds: Histogram | None = None,
        log: ServiceLog | None = None,
    ) -> None:
        """`seconds`: the time to answer, by method, path of the route and status. A client cannot make up labels."""
        self._routes = routes
        self._runtime = runtime
        self._seconds = seconds
        self._body_bytes_max = body_bytes_max
        self._log = log
        self._threads = HandlerThreads(THREADS_MAX, runtime)
        self._at_once = 0
        self._buffered_bytes = 0

    # ---- by the headers ----

    def admit(self, method: str, raw_path: bytes, headers: Headers, peer: str) -> Admission:
        """Decide on a request before anything but its headers is read. A refusal is counted and logged here."""
        admission = Admission(self._runtime.elapsed_s(), method, peer, self._id_of(headers))
        try:
            _demand_same_site(headers)
            route, admission.names = self._routes.find(method, raw_path)
            admission.route, admission.path = route, route.path
            if route.tokens is not None:
                admission.caller = route.tokens.demand(headers)
                admission.is_known = True
                admission.caller.demand(route.right)
            elif _length(headers) != 0:
                admission.refusal = _answer_bodiless(route, method)
        except LimpetError as error:
            admission.refusal = answer_to(error)
            admission.error = str(error)
        if admission.refusal is not None:
            self._observe(admission, admission.refusal)
        return admission

    def _id_of(self, headers: Headers) -> str:
        """The request's id in the log: the client's X-Request-ID, or one that we make."""
        sent = next((value for name, value in headers if name == b"x-request-id"), b"")
        return sent.decode() if _REQUEST_ID.fullmatch(sent) else self._runtime.new_id()

    # ---- with the body ----

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        admission = scope.get("limpet") or self.admit(scope["method"], scope["raw_path"], scope["headers"], "")
        if admission.refusal is not None:  # behind another one on its connection, else the protocol had answered it
            await _send(send, admission, admission.refusal, _CLOSE)
            return
        response = _FAULT
        self._at_once += 1
        try:
            response = await self._answer(admission, scope, receive)
        finally:  # a fault is logged by the server; the client gets an answer in any case
            self._at_once -= 1
            self._buffered_bytes -= admission.taken_bytes
            self._observe(admission, response)
            await _send(send, admission, response)

    async def _answer(self, admission: Admission, scope: Scope, receive: Receive) -> Response:
        route = admission.route
        assert route is not None
        try:
            if self._at_once > AT_ONCE_MAX and not route.quick:
                raise Unavailable("too many requests at once")
            body = b"" if route.tokens is None else await self._body(admission, scope, receive)
            headers = scope["headers"]
            request = Request(admission.method, admission.names, scope["query_string"], headers, body, admission.caller)
            return route.handle(request) if route.quick else await self._threads.run(partial(route.handle, request))
        except LimpetError as error:
            admission.error = f"{type(error).__name__}: {error}"
            return answer_to(error)

    async def _body(self, admission: Admission, scope: Scope, receive: Receive) -> bytes:
        """The whole body.   Raises: Rejected for one that is too large, or does not come (`limits` ends the wait)."""
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
                raise Rejected(400, "BadRequestException", "the client went away")
            part = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size <= limit:
                self._take(admission, max(0, size - admission.taken_bytes))
                parts.append(part)
            else:  # somewhat more is read and dropped, so that a client that sends before it reads gets the answer
                parts.clear()
        if size > limit:
            raise _too_large(limit)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take(self, admission: Admission, size: int) -> None:
        """Count bytes that are kept until the request is answered.   Raises: Unavailable."""
        if size and self._buffered_bytes + size > BUFFERED_BYTES_MAX:
            raise Unavailable("too many large requests at once")
        self._buffered_bytes += size
        admission.taken_bytes += size

    # ---- afterwards ----

    def _observe(self, admission: Admission, response: Response) -> None:
        seconds = self._runtime.elapsed_s() - admission.since_s
        if self._seconds is not None:
            method = admission.method if admission.path else "other"
            self._seconds.labels(method, admission.path, str(response.status)).observe(seconds)
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
        """Release the threads; whether some still run, for requests whose clients no longer wait."""
        return self._threads.close()


def _demand_same_site(headers: Headers) -> None:
    """Raises: Rejected (403) for a request that a page of another site has made a browser send."""
    if any(name == b"sec-fetch-site" and value.strip().lower() == b"cross-site" for name, value in headers):
        raise Rejected(403, "ForbiddenException", "a page of another site may not call this service")


def _answer_bodiless(route: Route, method: str) -> Response:
    """The answer to a request that comes with a body although its route reads none."""
    if method == "POST":
        return route.handler(Request(method))
    return answer_to(Rejected(413, "PayloadTooLargeException", "this route takes no body"))


def _length(headers: Headers) -> int | None:
    """The announced length of the body; None if it comes in chunks."""
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

_Job = tuple[Callable[[], Response], asyncio.AbstractEventLoop, "asyncio.Future[Response]"]


class HandlerThreads:
    """Runs handlers, which may block, for the event loop, which must not. Threads are started when they are needed.

    An executor of the standard library spends a tenth of a small request on its futures. Here the loop's thread does
    all the counting, so there is nothing to lock.
    """

    def __init__(self, most: int, runtime: Runtime) -> None:
        self._most = most
        self._runtime = runtime
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._started = 0
        self._unfinished = 0

    async def run(self, work: Callable[[], Response]) -> Response:
        """The result of `work`, or its error. `work` runs to its end even if this coroutine is cancelled."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Response] = loop.create_future()
        self._unfinished += 1
        if self._started < min(self._unfinished, self._most):
            self._started += 1
            self._runtime.spawn(self._work, name=f"limpet-http-{self._started}")
        self._jobs.put((work, loop, done))
        return await done

    def _work(self) -> None:
        while self._work_once():  # a call each, so that an idle thread keeps no request in memory
            pass

    def _work_once(self) -> bool:
        job = self._jobs.get()
        if job is None:
            return False
        work, loop, done = job
        try:
            resolve = partial(done.set_result, work())
        except StopIteration:  # no future takes it
            resolve = partial(done.set_exception, RuntimeError("a handler raised StopIteration"))
        except BaseException as error:  # noqa: BLE001 - the coroutine that waits raises it
            resolve = partial(done.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended, and with it all that waited
            loop.call_soon_threadsafe(self._end, done, resolve)
        return True

    def _end(self, done: asyncio.Future[Response], resolve: Callable[[], None]) -> None:
        self._unfinished -= 1
        if not done.done():  # else the coroutine that waited was cancelled
            resolve()

    def close(self) -> bool:
        """End the threads once their work is done; whether some still work."""
        for _ in range(self._started):
            self._jobs.put(None)
        return self._unfinished > 0
