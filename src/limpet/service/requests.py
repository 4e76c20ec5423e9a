"""A request with its body as strict JSON, a response, and the response to each kind of error.

A handler is a function from `Request` to `Response`. It may block, on a store or until its group is published, so it
runs in a thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec

from limpet.catalog.names import (
    AlreadyExists,
    CommitFailed,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
)
from limpet.kernel import records
from limpet.kernel.errors import (
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
from limpet.service.tokens import ANONYMOUS, Caller, Headers, TokenUnknown, header

T = TypeVar("T")
QUERY_FIELDS_MAX = 32
MESSAGE_MAX = 1000
DEPTH_MAX = 64
ITEMS_MAX = 500_000
"""Brackets and commas in a body. They limit its values: an empty list takes thirty times its bytes in memory."""
JSON = (b"content-type", b"application/json")
RETRY_AFTER = (b"retry-after", b"1")
CLOSE = (b"connection", b"close")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


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
        sent = header(self.headers, name)
        return None if sent is None else sent.decode("latin-1").strip()

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


FAULT = answer_to(Rejected(500, "InternalServerError", "a fault in limpet: the outcome of the request is unknown"))
