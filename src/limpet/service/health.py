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

Facts = Callable[[], dict[str, Any]]
"""What a part of the process knows of itself; it asks the store.   Raises: whatever is in the way of its work."""


def health_routes(facts: Facts, is_ending: Callable[[], bool], runtime: Runtime) -> list[Route]:
    """`/healthz`: the process answers. `/readyz`: it reaches its store, and does not end. Neither asks for a token.

    What the store said is remembered for a second: whoever asks more often costs nothing.
    """
    mutex = runtime.mutex()
    last: list[tuple[float, Response]] = []

    def look() -> Response:
        with mutex:
            if not last or runtime.elapsed_s() - last[0][0] > REMEMBERED_S:
                last[:] = [(runtime.elapsed_s(), _ready(facts))]
            return last[0][1]

    def healthz(_: Request) -> Response:
        return json_response({"status": "ok"})

    def readyz(_: Request) -> Response:
        return json_response({"status": "ending"}, 503, (RETRY_AFTER,)) if is_ending() else look()

    return [Route("GET", "/healthz", healthz, None, quick=True), Route("GET", "/readyz", readyz, None)]


def _ready(facts: Facts) -> Response:
    try:
        return json_response({"status": "ready", **facts()})
    except LimpetError as error:
        return json_response({"status": "not ready", "error": str(error), "hint": error.hint}, 503, (RETRY_AFTER,))
