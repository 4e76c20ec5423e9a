"""The compactor's HTTP side: `POST /internal/sync-compact`."""

from __future__ import annotations

from collections.abc import Mapping

from limpet.catalog import Publisher, Refusal
from limpet.errors import Invalid
from limpet.service.auth import Tokens
from limpet.service.routes import Route
from limpet.service.rpc import SYNC_COMPACT, Answer, Order
from limpet.service.wire import Rejected, Request, Response, json_response

__all__ = ["BODY_BYTES_MAX", "CompactorRoutes"]

BODY_BYTES_MAX = 64 << 10
TOKEN_MAX = 2**63 - 1


class CompactorRoutes:
    """Publishes what it is told, by explicit paths; each domain has a publisher of its own."""

    def __init__(self, publishers: Mapping[str, Publisher], secret: Tokens) -> None:
        self._publishers = publishers
        self._secret = secret

    def routes(self) -> list[Route]:
        """The table."""
        return [
            Route("POST", SYNC_COMPACT, self.sync_compact, self._secret, right="publish"),
            Route("GET", SYNC_COMPACT, self.check, self._secret, quick=True, right="publish"),
        ]

    def check(self, _: Request) -> Response:
        """The answer to an API that asks whether its secret is known here."""
        return json_response({"domains": [*self._publishers]})

    def sync_compact(self, request: Request) -> Response:
        """Publish ledger objects as one commit. The same request again gets the same answer.

        200 with the version and the commit; 409 `stale_fencing_token` or `version_conflict`, both decided on the head;
        400 for paths that are not batches of the domain; 503 if nothing was attempted; 500 if the outcome is unknown.
        """
        order = request.struct(Order)
        publish = self._publishers.get(order.domain)
        if publish is None:
            raise Invalid(f"there is no domain {order.domain!r}", hint=f"there is {', '.join(self._publishers)}")
        if not 0 <= order.fencing_token <= TOKEN_MAX:
            raise Invalid(f"{order.fencing_token} is no fencing token")
        try:
            published = publish(order.event_paths, order.fencing_token)
        except Refusal as refusal:
            kind = "stale_fencing_token" if refusal.stale else "version_conflict"
            raise Rejected(409, kind, str(refusal)) from refusal
        return json_response(Answer(manifest_version=f"v{published.version}", commit_ulid=published.commit))
