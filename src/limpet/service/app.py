"""The application: a request from its headers to its line in the log.

A request passes these steps in order: `ConnectionLimiter` accepts its connection; `LimitedProtocol` limits its headers
and its time; `HttpApp.admit` finds the route and checks the token, from the headers alone; only then is the body read,
within the memory budget of the process; the route checks the caller's rights in the namespaces that the request names;
the handler answers, in a thread. There can be many threads, because most of them wait for the same publication.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any
from urllib.parse import unquote_to_bytes

from prometheus_client import Histogram
from starlette.routing import compile_path

from limpet.kernel.errors import Denied, LimpetError, Unavailable
from limpet.kernel.runtime import Runtime
from limpet.kernel.wording import many
from limpet.service.log import ServiceLog
from limpet.service.requests import CLOSE, FAULT, EventStream, Handler, Rejected, Request, Response, T, answer_to
from limpet.service.tokens import ANONYMOUS, Caller, Headers, Right, Tokens, header

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
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_QUIET = ("/healthz", "/readyz", "/metrics")


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
                is_plain = path.isascii() and "%" not in path and "+" not in path
                return route, match.groups() if is_plain else tuple(map(_decoded, match.groups()))
            takes = ", ".join(sorted(methods))
            allow = (b"allow", takes.encode())
            raise Rejected(405, "MethodNotAllowedException", f"this route takes {takes}", headers=[allow])
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
            elif _length(headers) != 0:  # this route reads no body
                too_large = Rejected(413, "PayloadTooLargeException", "this route takes no body")
                admission.refusal = route.handler(Request(method)) if method == "POST" else answer_to(too_large)
        except LimpetError as error:
            admission.refusal = answer_to(error)
            admission.error = str(error)
        if admission.refusal is not None:
            self._observe(admission, admission.refusal)
        return admission

    def _id_of(self, headers: Headers) -> str:
        """The request's id in the log: the client's X-Request-ID, or a new one."""
        sent = header(headers, b"x-request-id")
        return sent.decode() if sent is not None and _REQUEST_ID.fullmatch(sent) else self._runtime.new_id()

    # ---- with the body ----

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        admitted = scope.get("state", {}).get("limpet")
        admission = admitted or self.admit(scope["method"], scope["raw_path"], scope["headers"], "")
        if admission.refusal is not None:  # pipelined behind another request, so the protocol could not answer it
            await _send(send, admission, admission.refusal, CLOSE)
            return
        response = FAULT
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
        self, send: Send, receive: Receive, admission: Admission, sent: Headers, response: Response, stream: EventStream
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
                if size > admission.taken_bytes:
                    self._take(admission, size - admission.taken_bytes)
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
    while (await receive())["type"] != "http.disconnect":
        continue


def _check_same_site(headers: Headers) -> None:
    """Raises: Rejected (403) for a cross-site request from a browser."""
    for name, value in headers:
        if name == b"sec-fetch-site" and value.strip().lower() == b"cross-site":
            raise Rejected(403, "ForbiddenException", "cross-site requests are not allowed")


def _length(headers: Headers) -> int | None:
    """The declared length of the body; None if it is chunked."""
    for name, value in headers:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            return int(value)  # the server has checked it
    return 0


def _too_large(limit: int) -> Rejected:
    return Rejected(413, "PayloadTooLargeException", f"the body has more than {many(limit, 'byte')}", headers=[CLOSE])


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
