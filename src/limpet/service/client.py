"""Requests to a running service, for the command line and `publish`, and their secrets. Needs no extra."""

from __future__ import annotations

import http.client
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from limpet.kernel import records
from limpet.kernel.errors import Conflict, Denied, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable

API_TOKENS = "LIMPET_API_TOKENS"
SECRET_MIN = 16
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
    """Post JSON to the service at `url`, and return its answer.   Raises: the service's error; Unavailable."""
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
        raise OutcomeUnknown(f"no valid answer from {url}: {error}") from None
    finally:
        connection.close()
    if status == 200:
        return answer
    said = answer.get("error")
    message = said.get("message") if isinstance(said, dict) else None
    raise _KINDS.get(status, OutcomeUnknown)(f"{url} answered {status}: {message}", hint="")


class ServiceWriter:
    """The `through` of `publish` and others: writes to a catalog through a running service, with the first of
    LIMPET_API_TOKENS.

    Each method raises the service's error, or Unavailable.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._token = next(iter(secrets_of(API_TOKENS)), None)

    def create_namespace(self, namespace: Sequence[str], properties: Mapping[str, str] | None = None) -> None:
        body = {"namespace": [*namespace], "properties": dict(properties or {})}
        post(self._url, "/v1/namespaces", body, self._token)

    def register_table(self, namespace: Sequence[str], name: str, metadata_location: str) -> None:
        self._register("register", namespace, name, metadata_location)

    def register_view(self, namespace: Sequence[str], name: str, metadata_location: str) -> None:
        self._register("register-view", namespace, name, metadata_location)

    def _register(self, route: str, namespace: Sequence[str], name: str, metadata_location: str) -> None:
        where = quote("\x1f".join(namespace), safe="")
        body = {"name": name, "metadata-location": metadata_location}
        post(self._url, f"/v1/namespaces/{where}/{route}", body, self._token)

    def undrop(self, namespace: Sequence[str], name: str) -> str:
        """Put back what was dropped last under that name; where its metadata is."""
        body = {"namespace": [*namespace], "name": name}
        return str(post(self._url, "/limpet/undrop", body, self._token).get("metadata-location"))

    def commit_table(self, namespace: Sequence[str], name: str, request: Mapping[str, Any]) -> str:
        where = quote("\x1f".join(namespace), safe="")
        path = f"/v1/namespaces/{where}/tables/{quote(name, safe='')}"
        return str(post(self._url, path, request, self._token).get("metadata-location"))


def secrets_of(name: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The secrets in the variable `name`, or in the file named by `name`_FILE, separated by commas or white space.

    Raises: Invalid if both are set, the file cannot be read, or a secret is too short.
    """
    text, path = environ.get(name, ""), environ.get(f"{name}_FILE", "")
    if text and path:
        raise Invalid(f"both {name} and {name}_FILE are set", hint="unset one of them")
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"{name}_FILE cannot be read: {error}", hint="name a file that this user can read") from None
    return parsed_secrets(text, name) if text or path else []


def parsed_secrets(text: str, name: str) -> list[str]:
    """The secrets in a text.   Raises: Invalid if there is none, or one is too short."""
    found = text.replace(",", " ").split()
    check_secrets(found, name)
    if not found:
        raise Invalid(f"{name} is set but empty", hint="unset it, or set a secret")
    return found


def check_secrets(secrets: Sequence[str], where: str) -> None:
    """Check the length of secrets.   Raises: Invalid."""
    if any(len(each) < SECRET_MIN or not each.isascii() for each in secrets):
        raise Invalid(
            f"{where} holds a secret with fewer than {SECRET_MIN} characters, or one that is not ASCII",
            hint="make one: openssl rand -hex 32",
        )
