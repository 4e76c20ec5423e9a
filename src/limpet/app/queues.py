"""Which provider a queue lives in: by the fleet's URL, else by LIMPET_QUEUE_TYPE."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, NoReturn
from urllib.parse import urlsplit

from limpet.app.formats import NODE, SUPERVISED, FleetRecord
from limpet.errors import Invalid, Unsupported
from limpet.keys import Key
from limpet.lease import Sightings
from limpet.queue import BucketQueue, Policy, Queue
from limpet.queue.storage import Journal
from limpet.records import RECORD_BYTES_MAX
from limpet.runtime import Runtime
from limpet.store.api import Always, Blob, Stat, Store, Version, When
from limpet.store.base import BaseStore

__all__ = ["NoStore", "journal_of", "open_queue", "policy_of", "provider_of"]

SQS = "sqs"
PROVIDERS = ("filesystem", "bucket", SQS)

_wires: dict[tuple[int, str, str], Any] = {}


def provider_of(url: str) -> str:
    """The provider of a fleet's queues: `filesystem`, `memory`, `bucket` or `sqs`.

    LIMPET_QUEUE_TYPE=sqs puts the queues of any fleet on SQS.   Raises: Invalid where it contradicts the URL.
    """
    scheme, separator, _ = url.partition("://")
    own = "filesystem" if not separator or scheme == "file" else scheme if scheme in ("memory", SQS) else "bucket"
    asked = os.environ.get("LIMPET_QUEUE_TYPE", "")
    if not asked or asked == own:
        return own
    if asked not in PROVIDERS:
        raise Invalid(f"LIMPET_QUEUE_TYPE is {asked!r}", hint=f"it can be {', '.join(PROVIDERS)}")
    if asked == SQS:
        return SQS
    raise Invalid(f"LIMPET_QUEUE_TYPE is {asked}, and {url} is a {own}", hint="unset it, or open another URL")


def journal_of(record: FleetRecord, store: Store, runtime: Runtime) -> Journal | None:
    """Where the queues of a fleet note what they do, if it is joined with other places; else None."""
    if SUPERVISED not in record.features:
        return None
    from limpet.queue.sync import ClientLog, Outbox

    return Outbox(store, runtime) if NODE in record.features else ClientLog(store, runtime)


def policy_of(settings: dict[str, Any]) -> Policy:
    """The policy with these settings.   Raises: Invalid for one that there is not."""
    known = [field.name for field in fields(Policy)]
    unknown = sorted(settings.keys() - {*known})
    if unknown:
        raise Invalid(f"a queue has no setting {unknown[0]!r}", hint=f"there are {', '.join(known)}")
    return Policy(**settings)


def open_queue(
    store: Store,
    url: str,
    name: str,
    runtime: Runtime,
    sightings: Sightings,
    *,
    policy: Policy,
    payload_type: Any,
    journal: Journal | None,
) -> Queue:
    """The queue `name` of the fleet at `url`.   Raises: Invalid; Unsupported without the extra that it needs."""
    provider = provider_of(url)
    if provider == SQS:
        from limpet.queue.sqs import SqsQueue

        parts = urlsplit(url if url.startswith("sqs://") else "sqs://")
        region = parts.netloc or os.environ.get("LIMPET_SQS_REGION", "")
        prefix = parts.path.strip("/") or os.environ.get("LIMPET_SQS_PREFIX", "")
        wire = _sqs_wire(runtime, region, os.environ.get("LIMPET_SQS_ENDPOINT", ""))
        return SqsQueue(wire, name, runtime, policy=policy, prefix=prefix, payload_type=payload_type)
    return BucketQueue(
        store,
        name,
        runtime,
        policy=policy,
        provider=provider,
        payload_type=payload_type,
        journal=journal,
        sightings=sightings,
    )


def _sqs_wire(runtime: Runtime, region: str, endpoint_url: str) -> Any:
    """One client for all queues of a region."""
    from limpet.queue.sqs_wire import Wire

    place = (id(runtime), region, endpoint_url)
    if place not in _wires:
        _wires[place] = Wire(runtime, region=region or None, endpoint_url=endpoint_url or None)
    return _wires[place]


class NoStore(BaseStore):
    """What `sqs://` has instead of a store: queues only."""

    def get(
        self,
        key: Key,
        *,
        range: tuple[int, int] | None = None,
        if_match: Version | None = None,
        if_none_match: Version | None = None,
        size_max: int | None = RECORD_BYTES_MAX,
    ) -> Blob:
        """Refused."""
        self._refuse()

    def head(self, key: Key) -> Stat:
        """Refused."""
        self._refuse()

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """Refused."""
        self._refuse()

    def delete(self, key: Key) -> None:
        """Refused."""
        self._refuse()

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """Refused."""
        self._refuse()

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        """Refused."""
        self._refuse()

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise Unsupported("SQS has queues and nothing else", hint="open a bucket or a directory for locks and cells")
