"""Which provider a queue lives in: by the fleet's URL, else by LIMPET_QUEUE_TYPE."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, NoReturn, cast
from urllib.parse import urlsplit

from limpet.app.formats import NODE, SUPERVISED, FleetRecord
from limpet.errors import Denied, Invalid, Missing, Unsupported
from limpet.keys import QUEUES, Key, QueueKeys, name_of
from limpet.lease import VersionWatch
from limpet.queue import BucketQueue, Policy, Queue
from limpet.queue.entry import Journal, NoJournal
from limpet.records import RECORD_BYTES_MAX
from limpet.runtime import Runtime
from limpet.store.api import Always, Blob, Stat, Store, Version, When

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


def has_store(url: str) -> bool:
    """Whether the fleet has a store, with locks and cells: `sqs://` has queues only."""
    return not url.startswith("sqs://")


def journal_of(record: FleetRecord, store: Store, runtime: Runtime) -> Journal | None:
    """Where the queues of a fleet note what they do, if it is joined with other places; else None."""
    if SUPERVISED not in record.features:
        return None
    from limpet.queue.sync import ClientLog, Outbox

    return Outbox(store, runtime) if NODE in record.features else ClientLog(store, runtime)


class LaterJournal:
    """The journal of a fleet, found when it is first needed: only limpet.json tells which one it is."""

    def __init__(self, find: Callable[[], Journal | None]) -> None:
        self._find = find
        self._found: Journal | None = None

    def __getattr__(self, name: str) -> Any:
        if self._found is None:
            self._found = self._find() or NoJournal()
        return getattr(self._found, name)


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
    sightings: VersionWatch,
    *,
    policy: Policy,
    payload_type: Any,
    journal: LaterJournal,
) -> Queue:
    """The queue `name` of the fleet at `url`.   Raises: Invalid; Unsupported without the extra that it needs."""
    provider = provider_of(url)
    if provider == SQS:
        from limpet.queue.sqs import SqsQueue

        wire, prefix = _sqs_place(url, runtime)
        return SqsQueue(wire, name, runtime, policy=policy, prefix=prefix, payload_type=payload_type)
    return BucketQueue(
        store,
        name,
        runtime,
        policy=policy,
        provider=provider,
        payload_type=payload_type,
        journal=cast(Journal, journal),
        watch=sightings,
    )


def queue_names(store: Store, url: str, runtime: Runtime) -> list[str]:
    """The queues of the fleet at `url` that were ever used, sorted.   Cost: see `Fleet.queues`."""
    if provider_of(url) != SQS:
        return sorted(name_of(part) for part in store.list_dirs(QUEUES))
    from limpet.queue.sqs import names_of

    return names_of(*_sqs_place(url, runtime))


def is_used(store: Store, queue: Queue) -> bool:
    """Whether the queue was ever used.   Cost: 1 LIST; on SQS 1 request."""
    if isinstance(queue, BucketQueue):
        return next(iter(store.list(QueueKeys.of(queue.name).root)), None) is not None
    exists: bool = cast(Any, queue).exists()
    return exists


def demand_queue(store: Store, url: str, queue: Queue, runtime: Runtime) -> None:
    """Go on only if the queue was ever used, so that a typo changes nothing.

    Raises: Missing, naming one with a similar name.   Cost: that of `is_used`, and of `queue_names` if it was not.
    """
    if is_used(store, queue):
        return
    try:
        names = queue_names(store, url, runtime)
    except Denied:
        names = []
    near = get_close_matches(queue.name, names, n=1)
    if near:
        hint = f"did you mean {near[0]!r}? `limpet queue ls` shows all"
    elif names:
        hint = f"there is {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
    else:
        hint = "no queue was ever used here; `limpet queue push` makes one"
    raise Missing(f"there is no queue {queue.name!r} at {url}", hint=hint)


def _sqs_place(url: str, runtime: Runtime) -> tuple[Any, str]:
    """The client and the prefix of the queues of a fleet on SQS."""
    parts = urlsplit(url if url.startswith("sqs://") else "sqs://")
    region = parts.netloc or os.environ.get("LIMPET_SQS_REGION", "")
    prefix = parts.path.strip("/") or os.environ.get("LIMPET_SQS_PREFIX", "")
    return _sqs_wire(runtime, region, os.environ.get("LIMPET_SQS_ENDPOINT", "")), prefix


def _sqs_wire(runtime: Runtime, region: str, endpoint_url: str) -> Any:
    """One client for all queues of a region."""
    from limpet.queue.sqs.client import SqsClient

    place = (id(runtime), region, endpoint_url)
    if place not in _wires:
        _wires[place] = SqsClient(runtime, region=region or None, endpoint_url=endpoint_url or None)
    return _wires[place]


class NoStore(Store):
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
