"""Requests and responses as the handlers see them: plain values, and JSON that every reader reads alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl

import msgspec

from limpet import records
from limpet.errors import Invalid, LimpetError

__all__ = [
    "ANYBODY",
    "DEPTH_MAX",
    "JSON",
    "RIGHTS",
    "Caller",
    "Handler",
    "Headers",
    "Rejected",
    "Request",
    "Response",
    "Right",
    "json_response",
    "strict_json",
]

T = TypeVar("T")

DEPTH_MAX = 64
ITEMS_MAX = 500_000
"""Brackets and commas in a body, which bound the values in it: an empty list takes thirty times its bytes in memory."""
QUERY_FIELDS_MAX = 32

Headers = Sequence[tuple[bytes, bytes]]

Right = Literal["read", "write", "metrics", "publish"]
RIGHTS: frozenset[Right] = frozenset(("read", "write", "metrics", "publish"))

JSON = (b"content-type", b"application/json")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Rejected(LimpetError):
    """A request that HTTP itself refuses: no such route, method, body or token. Nothing was attempted."""

    def __init__(
        self, status: int, kind: str, message: str, *, hint: str = "", headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.kind = kind
        self.headers = tuple(headers)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: the name of the token, what it may do, and in which namespaces.

    `prefixes` are namespaces; the rights hold in them and in everything below. None: in every namespace.
    """

    name: str
    rights: frozenset[Right]
    prefixes: tuple[tuple[str, ...], ...] | None = None

    def demand(self, right: Right) -> None:
        """Raises: Rejected (403) without the right."""
        if right not in self.rights:
            raise Rejected(403, "ForbiddenException", f"the token {self.name!r} does not have the right {right!r}")

    def demand_in(self, namespaces: Iterable[Sequence[str]]) -> None:
        """Raises: Rejected (403) unless the rights hold in all of these namespaces."""
        if not all(self.acts_in(namespace) for namespace in namespaces):
            raise self._outside()

    def demand_sight(self, namespaces: Iterable[Sequence[str]]) -> None:
        """Raises: Rejected (403) unless the caller sees all of these namespaces."""
        if not all(self.sees(namespace) for namespace in namespaces):
            raise self._outside()

    def acts_in(self, namespace: Sequence[str]) -> bool:
        """Whether the rights hold in a namespace."""
        if self.prefixes is None:
            return True
        return any(tuple(namespace[: len(prefix)]) == prefix for prefix in self.prefixes)

    def sees(self, namespace: Sequence[str]) -> bool:
        """Whether a namespace is shown to the caller: it lies in one of the prefixes, or on the way to one."""
        if self.prefixes is None:
            return True
        levels = tuple(namespace)
        return any(levels[: len(prefix)] == prefix[: len(levels)] for prefix in self.prefixes)

    def _outside(self) -> Rejected:
        return Rejected(403, "ForbiddenException", f"the token {self.name!r} has no rights in that namespace")


ANYBODY = Caller("", RIGHTS)
"""The caller of a service without tokens."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `names` are the variable segments of its path, each decoded by itself."""

    method: str
    names: tuple[str, ...] = ()
    query_string: bytes = b""
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""
    caller: Caller = ANYBODY
    _parsed: list[Any] = field(default_factory=list, repr=False, compare=False)

    @property
    def actor(self) -> str:
        """The name of the caller's token, for the record of what it does; empty where the service has no tokens."""
        return self.caller.name

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
    headers: tuple[tuple[bytes, bytes], ...] = field(default=())


Handler = Callable[[Request], Response]


def json_response(value: Any, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Response:
    """`value`, of plain types or structs, as a JSON answer."""
    return Response(status, _encode(value), (JSON, *headers))


def strict_json(data: bytes) -> Any:
    """JSON of which every reader makes the same: UTF-8, finite numbers, no name twice in an object, nothing behind it.

    Raises: Invalid, also for what is nested too deeply or has too many values (F32).
    """
    if data.count(b"[") + data.count(b"{") + data.count(b",") > ITEMS_MAX:
        raise Invalid(f"the body has more than {ITEMS_MAX} values", hint="send it in several requests")
    try:
        value = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not valid JSON: {error}", hint="send a JSON object in UTF-8") from None
    if _may_double(data, value):
        _refuse_doubled(data)
    if _depth_exceeds(value, DEPTH_MAX):
        raise Invalid(f"the body is nested deeper than {DEPTH_MAX} levels")
    return value


def _may_double(data: bytes, value: Any) -> bool:
    """Whether an object in `data` may have a name twice, of which `value` has kept the last.

    Each member of an object has a colon, and no value has one outside of strings. So a member that was dropped is
    missed when the colons are counted, unless some are escaped: then we cannot tell.
    """
    try:
        return b"\\u003" in data or _encode(value).count(b":") != data.count(b":")
    except (OverflowError, RecursionError):  # an integer of more than 64 bits
        return True


def _refuse_doubled(data: bytes) -> None:
    """The slow way.   Raises: Invalid if an object has a name twice."""
    try:
        json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the body is not valid JSON: {error}", hint="give each name once") from None


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
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
