"""The HTTP shell: routes, tokens, body limits, errors and the log around handlers that are plain functions.

A handler may wait, for a store or for its group to be published: it runs in a thread. The pool is wide, because all
that most of its threads do is wait for one publication together.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from limpet.errors import LimpetError, Unavailable
from limpet.runtime import Runtime
from limpet.service.errors import answer_to
from limpet.service.log import ServiceLog
from limpet.service.metrics import Requests
from limpet.service.routes import Route, Routes
from limpet.service.threads import Threads
from limpet.service.wire import ANYBODY, Caller, Headers, Rejected, Request, Response

__all__ = ["AT_ONCE_MAX", "BUFFERED_BYTES_MAX", "THREADS_MAX", "Shell"]

THREADS_MAX = 256
AT_ONCE_MAX = 1024
"""Requests in hand, after which more are told to come back: nothing of theirs was attempted."""
BUFFERED_BYTES_MAX = 64 << 20
"""Bytes of bodies in hand, over all connections, after which more are told to come back."""
DRAIN_FACTOR = 2

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_BROKEN = answer_to(Rejected(500, "InternalServerError", "a fault in limpet: what became of the request is unknown"))
_CLOSE = (b"connection", b"close")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_QUIET = ("/healthz", "/readyz", "/metrics")


@dataclass(slots=True)
class _Admission:
    """A request as far as its headers tell, and what becomes of it."""

    since_s: float
    method: str
    peer: str
    id: str
    path: str = ""
    route: Route | None = None
    names: tuple[str, ...] = ()
    caller: Caller = ANYBODY
    refusal: Response | None = None
    error: str = ""
    taken_bytes: int = 0


class Shell:
    """An ASGI application over a table of routes, and the doorkeeper of its connections."""

    def __init__(
        self,
        routes: Routes,
        runtime: Runtime,
        requests: Requests,
        *,
        body_bytes_max: int,
        log: ServiceLog | None = None,
    ) -> None:
        self._routes = routes
        self._runtime = runtime
        self._requests = requests
        self._body_bytes_max = body_bytes_max
        self._log = log or ServiceLog(runtime, "none")
        self._threads = Threads[Response](THREADS_MAX, runtime)
        self._at_once = 0
        self._buffered_bytes = 0

    # ---- by the headers ----

    def admit(
        self, method: str, raw_path: bytes, headers: Headers, peer: str
    ) -> tuple[_Admission, Response | None, bool]:
        """See `Doorkeeper.admit`. What is refused here is counted and logged here."""
        admission = _Admission(self._runtime.elapsed_s(), method, peer, self._id_of(headers))
        is_known = False
        try:
            _demand_same_site(headers)
            route, admission.names = self._routes.find(method, raw_path)
            admission.route, admission.path = route, route.path
            if route.tokens is not None:
                admission.caller = route.tokens.demand(headers)
                is_known = True
                admission.caller.demand(route.right)
            elif _length(headers) != 0:
                admission.refusal = _answer_bodiless(route, method)
        except LimpetError as error:
            admission.refusal = answer_to(error)
            admission.error = str(error)
        if admission.refusal is not None:
            self._observe(admission, admission.refusal)
        return admission, admission.refusal, is_known

    def _id_of(self, headers: Headers) -> str:
        """What the request is called in the log: the client's X-Request-ID, or one of ours."""
        sent = next((value for name, value in headers if name == b"x-request-id"), b"")
        return sent.decode() if _REQUEST_ID.fullmatch(sent) else self._runtime.new_id()

    # ---- with the body ----

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        admission = scope.get("limpet") or self.admit(scope["method"], scope["raw_path"], scope["headers"], "")[0]
        if admission.refusal is not None:  # behind another one on its connection, else the protocol had answered it
            await _send(send, admission, admission.refusal, _CLOSE)
            return
        response = _BROKEN
        self._at_once += 1
        try:
            response = await self._answer(admission, scope, receive)
        finally:  # a fault is logged by the server; the client gets an answer in any case
            self._at_once -= 1
            self._buffered_bytes -= admission.taken_bytes
            self._observe(admission, response)
            await _send(send, admission, response)

    async def _answer(self, admission: _Admission, scope: Scope, receive: Receive) -> Response:
        route = admission.route
        assert route is not None
        try:
            if self._at_once > AT_ONCE_MAX and not route.quick:
                raise Unavailable("too many requests at once")
            body = b"" if route.tokens is None else await self._body(admission, scope, receive)
            headers = scope["headers"]
            request = Request(admission.method, admission.names, scope["query_string"], headers, body, admission.caller)
            work = partial(_handle, route, request, admission)
            return work() if route.quick else await self._threads.run(work)
        except LimpetError as error:
            return _told(admission, error)

    async def _body(self, admission: _Admission, scope: Scope, receive: Receive) -> bytes:
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
            else:  # somewhat more is taken in, and not kept, so that a client that only sends first hears the answer
                parts.clear()
        if size > limit:
            raise _too_large(limit)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take(self, admission: _Admission, size: int) -> None:
        """Count bytes that are kept until the request is answered.   Raises: Unavailable."""
        if size and self._buffered_bytes + size > BUFFERED_BYTES_MAX:
            raise Unavailable("too many large requests at once")
        self._buffered_bytes += size
        admission.taken_bytes += size

    # ---- afterwards ----

    def _observe(self, admission: _Admission, response: Response) -> None:
        seconds = self._runtime.elapsed_s() - admission.since_s
        self._requests.observe(admission.method, admission.path, response.status, seconds)
        refused = admission.refusal is not None
        if admission.path in _QUIET and response.status < 500 and not refused:
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
        """Let go of the threads; whether some are still at work, on requests that nobody waits for any more."""
        return self._threads.close()


def _handle(route: Route, request: Request, admission: _Admission) -> Response:
    try:
        route.admit(request)
        return route.handler(request)
    except LimpetError as error:
        return _told(admission, error)


def _told(admission: _Admission, error: LimpetError) -> Response:
    admission.error = f"{type(error).__name__}: {error}"
    return answer_to(error)


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


async def _send(send: Send, admission: _Admission, response: Response, *more: tuple[bytes, bytes]) -> None:
    body = b"" if admission.method == "HEAD" or response.status in (204, 304) else response.body
    headers = [*response.headers, *more, (b"x-request-id", admission.id.encode())]
    if response.status not in (204, 304):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
