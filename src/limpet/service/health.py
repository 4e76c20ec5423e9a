"""Whether a service lives, whether it can do its work, and who leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpet.errors import LimpetError
from limpet.service.errors import RETRY_AFTER
from limpet.service.routes import Route
from limpet.service.wire import Request, Response, json_response

__all__ = ["Facts", "health_routes"]

Facts = Callable[[], dict[str, Any]]
"""What a part of the process knows of itself; it asks the store.   Raises: whatever is in the way of its work."""


def health_routes(facts: Facts, is_ending: Callable[[], bool]) -> list[Route]:
    """`/healthz`: the process answers. `/readyz`: it reaches its store, and does not end. Neither asks for a token."""

    def healthz(_: Request) -> Response:
        return json_response({"status": "ok"})

    def readyz(_: Request) -> Response:
        if is_ending():
            return json_response({"status": "ending"}, 503, (RETRY_AFTER,))
        try:
            return json_response({"status": "ready", **facts()})
        except LimpetError as error:
            return json_response({"status": "not ready", "error": str(error), "hint": error.hint}, 503, (RETRY_AFTER,))

    return [Route("GET", "/healthz", healthz, None, quick=True), Route("GET", "/readyz", readyz, None)]
