"""The HTTP shell: routes, tokens, body limits and errors around handlers that are plain functions.

A handler may wait, for a store or for its group to be published: it runs in a thread. The pool is wide, because all
that most of its threads do is wait for one publication together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from limpet.errors import LimpetError, Unavailable
from limpet.runtime import Runtime
from limpet.service.errors import answer_to
from limpet.service.metrics import Requests
from limpet.service.routes import Route, Routes
from limpet.service.threads import Threads
from limpet.service.wire import ANYBODY, Caller, Rejected, Request, Response

__all__ = ["AT_ONCE_MAX", "THREADS_MAX", "Shell"]

THREADS_MAX = 256
AT_ONCE_MAX = 1024
"""Requests in hand, after which more are told to come back: nothing of theirs was attempted."""
DRAIN_FACTOR = 4

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_BROKEN = answer_to(Rejected(500, "InternalServerError", "a fault in limpet: what became of the request is unknown"))
_CLOSE = (b"connection", b"close")


class Shell:
    """An ASGI application over a table of routes."""

    def __init__(self, routes: Routes, runtime: Runtime, requests: Requests, *, body_bytes_max: int) -> None:
        self._routes = routes
        self._runtime = runtime
        self._requests = requests
        self._body_bytes_max = body_bytes_max
        self._threads = Threads[Response](THREADS_MAX, runtime)
        self._at_once = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        since_s = self._runtime.elapsed_s()
        path, response = "", _BROKEN
        self._at_once += 1
        try:
            path, response = await self._answer(scope, receive)
        finally:  # a fault is logged by the server; the client gets an answer in any case
            self._at_once -= 1
            self._requests.observe(scope["method"], path, response.status, self._runtime.elapsed_s() - since_s)
            await _send(send, scope["method"], response)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[str, Response]:
        path = ""
        try:
            route, names = self._routes.find(scope["method"], scope["raw_path"])
            path = route.path
            caller = self._admit(route, scope)
            body = await self._body(scope, receive)
            request = Request(scope["method"], names, scope["query_string"], scope["headers"], body, caller)
            if route.quick:
                return path, _handle(route, request)
            return path, await self._threads.run(partial(_handle, route, request))
        except LimpetError as error:
            return path, answer_to(error)

    def _admit(self, route: Route, scope: Scope) -> Caller:
        caller = ANYBODY
        if route.tokens is not None:
            caller = route.tokens.demand(scope["headers"])
            caller.demand(route.right)
        if self._at_once > AT_ONCE_MAX and not route.quick:
            raise Unavailable("too many requests at once")
        return caller

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body.   Raises: Rejected for one that is too large, or does not come (`limits` ends the wait)."""
        length = _length(scope)
        if length == 0:
            return b""
        limit = self._body_bytes_max
        if length is not None and length > DRAIN_FACTOR * limit:
            raise _too_large(limit)
        body = await _read(receive, DRAIN_FACTOR * limit)
        if len(body) > limit:
            raise _too_large(limit)
        return body

    def close(self) -> bool:
        """Let go of the threads; whether some are still at work, on requests that nobody waits for any more."""
        return self._threads.close()


def _handle(route: Route, request: Request) -> Response:
    try:
        route.admit(request)
        return route.handler(request)
    except LimpetError as error:
        return answer_to(error)


def _length(scope: Scope) -> int | None:
    """The announced length of the body; None if it comes in chunks."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)  # the server has checked it
        if name == b"transfer-encoding":
            return None
    return 0


async def _read(receive: Receive, bytes_max: int) -> bytes:
    """The body; somewhat more than the limit is taken in, so that a client that only sends first hears the answer."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise _gone()
    if not message.get("more_body"):
        return bytes(message.get("body", b""))
    parts = [message.get("body", b"")]
    size = len(parts[0])
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _gone()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > bytes_max:
            break
    return b"".join(parts)


def _gone() -> Rejected:
    return Rejected(400, "BadRequestException", "the client went away")


def _too_large(limit: int) -> Rejected:
    return Rejected(413, "PayloadTooLargeException", f"the body has more than {limit} bytes", headers=[_CLOSE])


async def _send(send: Send, method: str, response: Response) -> None:
    body = b"" if method == "HEAD" or response.status in (204, 304) else response.body
    headers = list(response.headers)
    if response.status not in (204, 304):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
