"""The compactor over HTTP: the routes that it serves, and the publisher that calls them from another process.

Publishing is idempotent: the same request gets the same answer, so the leader repeats it after a lost reply. Only the
answer of a compactor counts: after a timeout, or an answer from a proxy, the outcome is unknown.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn
from urllib.parse import SplitResult, urlsplit, urlunsplit

import msgspec

from limpet.catalog import Publication, PublicationRefused, Publisher
from limpet.catalog.compactor import Unreachable
from limpet.catalog.heads import RefusedBatch
from limpet.kernel import records
from limpet.kernel.errors import Denied, Invalid, LimpetError, OutcomeUnknown, Unavailable
from limpet.kernel.runtime import Runtime
from limpet.service.app import Route
from limpet.service.requests import Rejected, Request, Response, json_response
from limpet.service.tokens import Tokens

SYNC_COMPACT = "/internal/sync-compact"
FLEET = "limpet-fleet"
"""The header with the id of the API's fleet. A compactor of Limpet 0.1 does not read it."""
CONNECT_S = 5.0
ANSWER_S = 20.0
CHECK_S = 2.0
ANSWER_BYTES_MAX = 64 << 10
IDLE_MAX = 4
TOKEN_MAX = 2**63 - 1

_VERSION = re.compile("v([0-9]{1,19})")


class PublishOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to publish."""

    domain: str
    event_paths: list[str]
    fencing_token: int


class PublishAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the answer; a repeated request gets the same one."""

    manifest_version: str
    commit_ulid: str


# ---- the compactor's end ----


def compactor_routes(publishers: Mapping[str, Publisher], secret: Tokens, fleet: str = "") -> list[Route]:
    """`POST /internal/sync-compact` publishes; `GET` lets an API check its secret.

    Each domain has a publisher. The APIs send `secret`, and the id of their fleet, which must be `fleet`.
    """

    def check_fleet(request: Request) -> None:
        theirs = request.header(FLEET.encode()) or ""
        if fleet and theirs and theirs != fleet:
            raise Denied(
                f"this compactor belongs to fleet {fleet}, and the API to fleet {theirs}",
                hint="check --compactor-url, and the URL of the fleet on both sides",
            )

    def check(request: Request) -> Response:
        check_fleet(request)
        return json_response({"domains": [*publishers]})

    def sync_compact(request: Request) -> Response:
        """Publish ledger objects as one commit. Idempotent.

        200 with the version and the commit; 409 `stale_fencing_token` or `version_conflict`, decided by the head;
        400 for paths that are not batches of the domain; 403 for an API of another fleet; 503 if nothing was attempted;
        500 if the outcome is unknown.
        """
        check_fleet(request)
        order = request.struct(PublishOrder)
        publish = publishers.get(order.domain)
        if publish is None:
            raise Invalid(f"there is no domain {order.domain!r}", hint=f"there is {', '.join(publishers)}")
        if not 0 <= order.fencing_token <= TOKEN_MAX:
            raise Invalid(f"{order.fencing_token} is not a fencing token")
        try:
            published = publish(order.event_paths, order.fencing_token)
        except PublicationRefused as refusal:
            kind = "stale_fencing_token" if refusal.stale else "version_conflict"
            raise Rejected(409, kind, str(refusal)) from refusal
        return json_response(PublishAnswer(manifest_version=f"v{published.version}", commit_ulid=published.commit))

    return [
        Route("POST", SYNC_COMPACT, sync_compact, secret, right="publish"),
        Route("GET", SYNC_COMPACT, check, secret, quick=True, right="publish"),
    ]


# ---- the API's end ----


class _ErrorModel(msgspec.Struct, frozen=True):
    message: str
    type: str
    code: int


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _ErrorModel


class RpcPublisher:
    """Publishes batches of one domain through the compactor at `url`. Thread-safe; connections are reused."""

    def __init__(
        self,
        url: str,
        secret: str | None,
        runtime: Runtime,
        *,
        domain: str = "catalog",
        ca: str | None = None,
        fleet: str = "",
    ) -> None:
        """`ca` is a file with the certificate authorities to trust; None: those of the system.   Raises: Invalid."""
        parts = _parts_of(url)
        self.url = redacted(url).rstrip("/")
        """The compactor's URL without user and password, for messages."""
        self._tls = _context(ca) if parts.scheme == "https" else None
        if ca is not None and self._tls is None:
            raise Invalid(
                f"{self.url} does not use TLS, so a certificate authority has no effect", hint="write https://HOST:PORT"
            )
        self._host, self._port = parts.hostname or "", parts.port
        self._path = parts.path.rstrip("/") + SYNC_COMPACT
        self._headers = {"content-type": "application/json"}
        if secret:
            self._headers["authorization"] = f"Bearer {secret}"
        if fleet:
            self._headers[FLEET] = fleet
        self._domain = domain
        self._mutex = runtime.mutex()
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._closed = False

    def __call__(self, paths: Sequence[str], token: int) -> Publication:
        """Publish, as `Compactor.publish` does: the same answers and errors.

        Raises: PublicationRefused; Invalid; Unavailable; OutcomeUnknown; Denied for a rejected secret.
        """
        order = PublishOrder(domain=self._domain, event_paths=[*paths], fencing_token=token)
        status, body = self._exchange(records.encode(order))
        if status != 200:
            self._refuse(status, body)
        return _published(body)

    def check(self) -> str:
        """Check that the compactor answers and accepts our secret. Returns the problem, or "".

        Raises: Denied for a rejected secret, or by the compactor of another fleet.
        Cost: one request to the compactor, none to the store.
        """
        try:
            connection = self._connect(CHECK_S, CHECK_S)
        except Unreachable as error:
            return str(error)
        try:
            connection.request("GET", self._path, headers=self._headers)
            response = connection.getresponse()
            answer = response.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            return f"no answer from the compactor at {self.url}: {error or type(error).__name__}"
        finally:
            connection.close()
        if response.status in (401, 403):
            with suppress(OutcomeUnknown):  # it is not a compactor that answers
                self._refuse(response.status, answer)
            raise self._denied()
        return ""

    def _exchange(self, body: bytes) -> tuple[int, bytes]:
        with self._mutex:
            kept = self._idle.pop() if self._idle else None
        sent = kept is not None
        if kept is not None:
            try:
                return self._send(kept, body)
            except (ConnectionError, http.client.BadStatusLine):
                kept.close()  # usually closed by the compactor while it was idle: send the same request again
            except (OSError, http.client.HTTPException) as error:
                kept.close()
                raise self._unknown(error) from error
        try:
            connection = self._connect()
        except Unreachable as error:
            if sent:  # the first request may have arrived
                raise self._unknown(error) from error
            raise
        try:
            return self._send(connection, body)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unknown(error) from error

    def _connect(self, connect_s: float = CONNECT_S, answer_s: float = ANSWER_S) -> http.client.HTTPConnection:
        if self._closed:
            raise Unreachable("this process is stopping")
        connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=connect_s)
            if self._tls is None
            else http.client.HTTPSConnection(self._host, self._port, timeout=connect_s, context=self._tls)
        )
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            raise Unreachable(
                f"the compactor at {self.url} cannot be reached: {error}",
                hint="is `limpet serve compactor` running there?",
            ) from error
        connection.sock.settimeout(answer_s)
        return connection

    def _send(self, connection: http.client.HTTPConnection, body: bytes) -> tuple[int, bytes]:
        with self._mutex:
            self._busy.add(connection)
        try:
            connection.request("POST", self._path, body=body, headers=self._headers)
            response = connection.getresponse()
            answer = response.read(ANSWER_BYTES_MAX)
        finally:
            with self._mutex:
                self._busy.discard(connection)
        with self._mutex:
            if response.isclosed() and not response.will_close and len(self._idle) < IDLE_MAX and not self._closed:
                self._idle.append(connection)
            else:
                connection.close()
        return response.status, answer

    def _refuse(self, status: int, body: bytes) -> NoReturn:
        try:
            error = records.decoder(_ErrorBody).decode(body).error
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise OutcomeUnknown(f"{self.url} answered {status}, and is not a compactor") from None
        match status, error.type:
            case 409, "stale_fencing_token" | "version_conflict" as kind:
                raise PublicationRefused(RefusedBatch(kind == "stale_fencing_token", error.message))
            case 400, "BadRequestException":
                raise Invalid(error.message, hint="")
            case 401, "NotAuthorizedException":
                raise self._denied()
            case 403, "ForbiddenException":
                raise Denied(f"the compactor at {self.url} refuses: {error.message}", hint="")
            case 503, "ServiceUnavailableException":
                raise Unavailable(error.message, hint="")
        raise OutcomeUnknown(f"{self.url} answered {status}: {error.message}", hint="")

    def _denied(self) -> Denied:
        return Denied(
            f"the compactor at {self.url} rejects our secret",
            hint="set LIMPET_RPC_SECRET to the same secret on both sides",
        )

    def _unknown(self, error: Exception) -> OutcomeUnknown:
        return OutcomeUnknown(f"no answer from the compactor at {self.url}: {error or type(error).__name__}")

    def close(self) -> None:
        """Close the connections: the outcome of running requests is unknown."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = [connection.sock for connection in self._busy if connection.sock is not None]
        for connection in idle:
            connection.close()
        for each in busy:
            with suppress(OSError):  # closed by the compactor
                each.shutdown(socket.SHUT_RDWR)


class RpcPublishers:
    """Publishes through one of several compactors, any of which may. Thread-safe.

    It stays with the compactor that answered last, and begins with the next one after any failure. Within one call it
    passes over compactors that were not reached or reject us (another secret, another fleet), and no others: what those
    did is not known, so the caller decides. The leader sends the same batch again, and each compactor answers for the
    head, so it never counts twice.
    """

    def __init__(self, publishers: Sequence[RpcPublisher], runtime: Runtime) -> None:
        self._publishers = list({publisher.url: publisher for publisher in publishers}.values())
        self._runtime = runtime
        self._first = 0

    @property
    def url(self) -> str:
        """The URL of the compactor that is asked first."""
        return self._publishers[self._first].url

    def __call__(self, paths: Sequence[str], token: int) -> Publication:
        """Publish, as `RpcPublisher` does.   Raises: its errors; Unreachable if no compactor was reached."""
        first, many = self._first, len(self._publishers)
        passed: list[Unreachable | Denied] = []
        for number in ((first + step) % many for step in range(many)):
            try:
                published = self._publishers[number](paths, token)
            except (Unreachable, Denied) as error:
                passed.append(error)
            except (PublicationRefused, Invalid):  # definite, whichever compactor says so
                self._first = number
                raise
            except LimpetError:
                self._first = (number + 1) % many
                raise
            else:
                self._first = number
                return published
        for rejection in passed:
            if isinstance(rejection, Denied):
                raise rejection
        raise Unreachable("; ".join(map(str, passed)), hint=passed[0].hint)

    def check(self) -> str:
        """Check all compactors at once. Returns the problems, or "".

        Raises: Denied if some reject our secret or our fleet, and none accepts them.   Cost: one request to each.
        """

        def problem(publisher: RpcPublisher) -> str | Denied:
            try:
                return publisher.check()
            except Denied as rejection:
                return rejection

        problems = self._runtime.fan_out(problem, self._publishers, at_once=len(self._publishers))
        for rejection in problems:
            if not isinstance(rejection, str) and "" not in problems:
                raise rejection
        return "; ".join(str(each) for each in problems if each)

    def close(self) -> None:
        """Close the connections: the outcome of running requests is unknown."""
        for publisher in self._publishers:
            publisher.close()


def redacted(url: str) -> str:
    """`url` without user, password, query and fragment, for messages."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "(invalid URL)"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _published(body: bytes) -> Publication:
    try:
        answer = records.decoder(PublishAnswer).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise OutcomeUnknown("the compactor's answer cannot be read") from None
    version = _VERSION.fullmatch(answer.manifest_version)
    if version is None:
        raise OutcomeUnknown(f"the compactor's answer has no valid version: {answer.manifest_version!r}")
    return Publication(int(version[1]), answer.commit_ulid)


def _parts_of(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_valid = parts.port is None or parts.port > 0
    except ValueError:
        is_valid = False
    if not is_valid or parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise Invalid(f"{redacted(url)!r} is not a compactor's URL", hint="write http://HOST:PORT")
    return parts


def _context(ca: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # ssl.SSLError is one
        raise Invalid(f"the authorities in {ca} cannot be used: {error}", hint="give a PEM file") from None
