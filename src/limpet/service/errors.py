"""What each kind of error is on the wire, in the error model of the Iceberg REST specification.

A client that gets 500 must treat what it asked for as unknown, one that gets 503 may send it again as it is, and one
that gets 4xx knows that nothing was and nothing will be published. So the mapping is part of the catalog's promises.
"""

from __future__ import annotations

from limpet.catalog.refusals import (
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
    Unavailable,
    Unsupported,
)
from limpet.errors import OutcomeUnknown as Unknown
from limpet.service.wire import Rejected, Response, json_response

__all__ = ["RETRY_AFTER", "answer_to"]

MESSAGE_MAX = 1000
RETRY_AFTER = (b"retry-after", b"1")

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
    (Denied, 403, "ForbiddenException"),
    (Unsupported, 406, "UnsupportedOperationException"),
    (Unknown, 500, "CommitStateUnknownException"),
)


def answer_to(error: LimpetError) -> Response:
    """The answer to a request that met this error."""
    if isinstance(error, Rejected):
        return _response(error, error.status, error.kind, error.headers)
    for kind, status, name in _KINDS:
        if isinstance(error, kind):
            return _response(error, status, name, (RETRY_AFTER,) if status == 503 else ())
    return _response(error, 500, "InternalServerError", ())


def _response(error: LimpetError, status: int, kind: str, headers: tuple[tuple[bytes, bytes], ...]) -> Response:
    said = " ".join(str(error).split())  # the client's own text may be in it: one line, and not for ever
    said = said if len(said) <= MESSAGE_MAX else f"{said[:MESSAGE_MAX]}..."
    said = f"{said} ({error.hint})" if error.hint else said
    return json_response({"error": {"message": said, "type": kind, "code": status}}, status, headers)
