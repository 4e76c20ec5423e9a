"""Bearer tokens: who may call, and why a service without any stays on this machine (F31)."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from limpet.errors import Invalid
from limpet.service.wire import ANYBODY, RIGHTS, Caller, Rejected

__all__ = ["API_TOKENS", "RPC_SECRET", "Tokens", "check_bind", "secrets_of"]

API_TOKENS = "LIMPET_API_TOKENS"
RPC_SECRET = "LIMPET_RPC_SECRET"
SECRET_MIN = 16
DEFAULT = "default"
"""The name of a token that was given without one."""


class Tokens:
    """The tokens that a service takes.

    Without any it takes every request to this machine by its own name: a page in a browser here that has its host's
    name point to this machine (DNS rebinding) is refused, and one that posts what is not JSON too (`Request.json`).
    """

    def __init__(self, tokens: Sequence[str] = ()) -> None:
        self._digests = [_digest(token.encode()) for token in tokens]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def demand(self, headers: Sequence[tuple[bytes, bytes]]) -> Caller:
        """The caller whose token it is.   Raises: Rejected (401, 403)."""
        if not self._digests:
            _demand_local(headers)
            return ANYBODY
        sent = next((value for name, value in headers if name == b"authorization"), b"")
        scheme, _, token = sent.partition(b" ")
        digest = _digest(token.strip())
        # every token is compared, in constant time: how long it takes tells nothing
        known = sum(hmac.compare_digest(digest, each) for each in self._digests)
        if not known or scheme.lower() != b"bearer":
            raise Rejected(
                401,
                "NotAuthorizedException",
                "no token, or one that is not known here",
                hint="send Authorization: Bearer TOKEN",
                headers=[(b"www-authenticate", b"Bearer")],
            )
        return Caller(DEFAULT, RIGHTS)


def secrets_of(name: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The secrets in the variable `name`, or in the file that `name`_FILE names: separated by commas or white space.

    Raises: Invalid for both, a file that cannot be read, or a secret that is too short.
    """
    text, path = environ.get(name, ""), environ.get(f"{name}_FILE", "")
    if text and path:
        raise Invalid(f"both {name} and {name}_FILE are set", hint="unset one of them")
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"{name}_FILE cannot be read: {error}") from None
    found = text.replace(",", " ").split()
    if any(len(each) < SECRET_MIN or not each.isascii() for each in found):
        raise Invalid(
            f"{name} holds a secret with fewer than {SECRET_MIN} characters, or one that is not ASCII",
            hint="make one: openssl rand -hex 32",
        )
    if (text or path) and not found:
        raise Invalid(f"{name} is set and empty", hint="unset it, or put a secret there")
    return found


def check_bind(host: str, needed: Mapping[str, bool]) -> None:
    """Whether a service may listen on `host`; `needed` says of each variable whether it holds a secret.

    Raises: Invalid for an address that others can reach, without the secrets.
    """
    if _is_loopback(host):
        return
    missing = [name for name, given in needed.items() if not given]
    if missing:
        raise Invalid(
            f"{host} can be reached from elsewhere, and {' and '.join(missing)} is not set",
            hint="set it, or listen on 127.0.0.1",
        )


def _demand_local(headers: Sequence[tuple[bytes, bytes]]) -> None:
    sent = next((value for name, value in headers if name == b"host"), b"").decode("latin-1")
    if sent and not _is_loopback(_host_in(sent)):
        raise Rejected(
            403,
            "ForbiddenException",
            "this service has no tokens, and answers only to localhost and 127.0.0.1",
            hint=f"set {API_TOKENS} to let others in",
        )


@lru_cache(maxsize=256)
def _host_in(sent: str) -> str:
    """The name in a Host header, without its port; empty if it is none."""
    try:
        return urlsplit(f"//{sent}").hostname or ""
    except ValueError:
        return ""


@lru_cache(maxsize=256)
def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
