"""From a path to its handler, by the raw path: `%2F` inside a name is part of the name, and `+` is a space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from limpet.service.auth import Tokens
from limpet.service.wire import Handler, Rejected, Request, Right

__all__ = ["Route", "Routes", "Touched"]

PATH_BYTES_MAX = 8192

Touched = Callable[[Request], Iterable[Sequence[str]]]
"""The namespaces that a request reads or changes.   Raises: Invalid if the request does not say."""


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path with `{names}` in it, and who handles it.

    `tokens` are those that it asks for; None: anybody may call, and a body is not read. The caller must have `right` in
    all namespaces that `touched` finds in the request; a route without it is only for callers with rights in every
    namespace. `sight`: it is enough to see the namespaces. `quick`: it waits for nothing, and needs no thread.
    """

    method: str
    path: str
    handler: Handler
    tokens: Tokens | None
    quick: bool = False
    right: Right = "write"
    touched: Touched | None = None
    sight: bool = False

    def admit(self, request: Request) -> None:
        """Raises: Rejected (403) for a caller without the right here; Invalid."""
        caller = request.caller
        caller.demand(self.right)
        if caller.prefixes is None:
            return
        namespaces = [()] if self.touched is None else self.touched(request)
        if self.sight:
            caller.demand_sight(namespaces)
        else:
            caller.demand_in(namespaces)


@dataclass(slots=True)
class _Node:
    below: dict[bytes, _Node] = field(default_factory=dict)
    name: _Node | None = None
    routes: dict[str, Route] = field(default_factory=dict)


class Routes:
    """A table of routes. Words in a path come before names; a HEAD without a route of its own is answered by GET's."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._root = _Node()
        for route in routes:
            node = self._root
            for part in route.path.encode().split(b"/")[1:]:
                if part.startswith(b"{"):
                    node.name = node.name or _Node()
                    node = node.name
                else:
                    node = node.below.setdefault(part, _Node())
            node.routes[route.method] = route

    def find(self, method: str, raw_path: bytes) -> tuple[Route, tuple[str, ...]]:
        """The route, and the decoded names in its path.   Raises: Rejected (400, 404, 405, 414)."""
        if len(raw_path) > PATH_BYTES_MAX:
            raise Rejected(414, "BadRequestException", "the path is too long")
        node: _Node | None = self._root
        names: list[bytes] = []
        for part in raw_path.split(b"/")[1:]:
            assert node is not None
            after = node.below.get(part)
            if after is None and part:
                after = node.name
                names.append(part)
            node = after
            if node is None:
                break
        if node is None or not node.routes:
            raise Rejected(
                404,
                "NotFoundException",
                "there is no such route",
                hint="GET /v1/config lists what there is",
            )
        route = node.routes.get(method) or (node.routes.get("GET") if method == "HEAD" else None)
        if route is None:
            allowed = ", ".join(sorted(node.routes))
            raise Rejected(
                405,
                "MethodNotAllowedException",
                f"this route takes {allowed}",
                headers=[(b"allow", allowed.encode())],
            )
        return route, tuple(map(_decoded, names))


def _decoded(part: bytes) -> str:
    """A name in a path. Java's client and the reference server write a space as `+`; a plus is `%2B` for everybody."""
    try:
        return unquote_to_bytes(part.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise Rejected(400, "BadRequestException", "a name in the path is not UTF-8") from None
