"""Whether a service lives, whether it can do its work, and who leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpet.errors import LimpetError
from limpet.runtime import Runtime
from limpet.service.errors import RETRY_AFTER
from limpet.service.routes import Route
from limpet.service.wire import Request, Response, json_response

__all__ = ["Facts", "health_routes"]

REMEMBERED_S = 1.0
SLOW_S = 5.0

Facts = Callable[[], dict[str, Any]]
"""What a part of the process knows of itself; it asks the store.   Raises: whatever is in the way of its work."""


def health_routes(facts: Facts, is_ending: Callable[[], bool], runtime: Runtime) -> list[Route]:
    """`/healthz`: the process answers. `/readyz`: it reaches its store, and does not end. Neither asks for a token.

    What the store said is remembered for a second, and one request at a time asks it: the others are told what it said
    last. So however often strangers ask, and however long the store takes, they occupy one thread.
    """
    mutex = runtime.mutex()
    last = (float("-inf"), _not_ready("it is starting"))
    since_s: float | None = None

    def look() -> Response:
        nonlocal last, since_s
        with mutex:
            now_s = runtime.elapsed_s()
            if since_s is not None:
                return last[1] if now_s - since_s < SLOW_S else _not_ready("the store takes long to answer")
            if now_s - last[0] <= REMEMBERED_S:
                return last[1]
            since_s = now_s
        try:
            last = (runtime.elapsed_s(), _ready(facts))
        finally:
            since_s = None
        return last[1]

    def healthz(_: Request) -> Response:
        return json_response({"status": "ok"})

    def readyz(_: Request) -> Response:
        return json_response({"status": "ending"}, 503, (RETRY_AFTER,)) if is_ending() else look()

    return [Route("GET", "/healthz", healthz, None, quick=True), Route("GET", "/readyz", readyz, None)]


def _ready(facts: Facts) -> Response:
    try:
        return json_response({"status": "ready", **facts()})
    except LimpetError as error:
        return _not_ready(str(error), error.hint)


def _not_ready(error: str, hint: str = "") -> Response:
    return json_response({"status": "not ready", "error": error, "hint": hint}, 503, (RETRY_AFTER,))
