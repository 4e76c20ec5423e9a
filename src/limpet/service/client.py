"""One POST to a running service, for the command line. It needs no extra."""

from __future__ import annotations

import http.client
from typing import Any
from urllib.parse import urlsplit

import msgspec

from limpet import records
from limpet.errors import Conflict, Denied, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable

ANSWER_S = 60.0
ANSWER_BYTES_MAX = 64 << 20

_KINDS: dict[int, type[LimpetError]] = {
    400: Invalid,
    401: Denied,
    403: Denied,
    404: Missing,
    409: Conflict,
    503: Unavailable,
}


def post(url: str, path: str, body: Any, token: str | None) -> dict[str, Any]:
    """Post JSON to the service at `url`; its answer.   Raises: the error that it answers with; Unavailable."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Invalid(f"{url!r} is not a service's URL", hint="write http://HOST:PORT")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=ANSWER_S)
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}
    try:
        connection.connect()
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{url} cannot be reached: {error}", hint="is `limpet serve` running there?") from None
    try:
        connection.request("POST", parts.path.rstrip("/") + path, body=records.encode(body), headers=headers)
        response = connection.getresponse()
        status, data = response.status, response.read(ANSWER_BYTES_MAX)
        answer = records.decoder(dict[str, Any]).decode(data)
    except (OSError, http.client.HTTPException, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OutcomeUnknown(f"{url} gave no answer that can be read: {error}") from None
    finally:
        connection.close()
    if status == 200:
        return answer
    said = answer.get("error")
    message = said.get("message") if isinstance(said, dict) else None
    raise _KINDS.get(status, OutcomeUnknown)(f"{url} answered {status}: {message}", hint="")
