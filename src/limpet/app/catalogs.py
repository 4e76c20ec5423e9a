"""How the catalog of a fleet is put together: where it lies, who leads it, who publishes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from limpet.app.place import absolute
from limpet.catalog import Compactor, Leader, NotLeader
from limpet.catalog.catalog import Catalog
from limpet.catalog.storage import CatalogStorage, ParquetSnapshots, SharedState
from limpet.catalog.warehouse import Warehouse
from limpet.events import EXECUTIONS
from limpet.events.fold import Executions
from limpet.events.ledger import Publisher
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.lease import Lock, VersionWatch
from limpet.kernel.runtime import Runtime
from limpet.kernel.store import Store
from limpet.kernel.store.credentials import locate
from limpet.kernel.store.policies import root_of
from limpet.kernel.waiting import polls

DOMAIN = "catalog"
LEASE_S = 10.0
WAIT_S = 2 * LEASE_S
POLL_S = 0.02


def workspace_url(url: str) -> str:
    """The fleet of the workspace that LIMPET_TENANT_ID and LIMPET_WORKSPACE_ID name, below `url`; without them `url`.

    Raises: Invalid for one without the other.
    """
    root = root_of(os.environ.get("LIMPET_TENANT_ID"), os.environ.get("LIMPET_WORKSPACE_ID"))
    if not root:
        return url
    place, mark, query = url.partition("?")
    return f"{place.rstrip('/')}/{root}{mark}{query}"


def client_config(url: str) -> dict[str, str]:
    """What clients must know to reach the data, beside credentials of their own: never a key of ours."""
    if not url.startswith("s3://"):
        return {}
    place = locate(url)
    config = {"s3.region": place.options.get("region", "")}
    if place.endpoint:
        config |= {"s3.endpoint": place.endpoint, "s3.path-style-access": "true"}
    return {name: value for name, value in config.items() if value}


def storage_of(store: Store, runtime: Runtime, recent: SharedState | None = None) -> CatalogStorage:
    """The objects of the catalog; two storages of one process may share `recent`.   Cost: nothing yet."""
    return CatalogStorage(store, CatalogKeys.of(DOMAIN), runtime, ParquetSnapshots(), recent)


def executions_of(store: Store, runtime: Runtime) -> Executions:
    """The events of task runs and compactions.   Cost: nothing yet."""
    return Executions(store, CatalogKeys.of(EXECUTIONS), runtime)


def leader_of(storage: CatalogStorage, publish: Publisher, *, lease_s: float = LEASE_S) -> Leader:
    """One that leads the catalog when it can; `publish` is a compactor's, here or elsewhere.   Cost: nothing yet."""
    runtime = storage.runtime
    lock = Lock(storage.store, storage.keys.lock, DOMAIN, lease_s, runtime, VersionWatch(runtime), look_first=True)
    return Leader(storage, publish, lock)


def open_catalog(storage: CatalogStorage, url: str, leader: Leader | None = None) -> Catalog:
    """The catalog of the fleet at `url`; without a leader it only reads.   Cost: nothing yet."""
    return Catalog(storage, Warehouse(storage.store, absolute(url), storage.runtime), leader)


@contextmanager
def lead(storage: CatalogStorage, url: str, *, wait_s: float = WAIT_S) -> Iterator[Catalog]:
    """The catalog, to change: this process leads it for as long as the block lasts, and publishes by itself.

    Raises: NotLeader if another process still leads it after `wait_s`; whatever else is in the way of leading.
    """
    runtime = storage.runtime
    leader = leader_of(storage, Compactor(storage).publish)
    leader.turn()
    thread = runtime.spawn(leader.run, name="limpet-leader")
    try:
        for left_s in polls(runtime, wait_s, POLL_S):
            if leader.leads:
                break
            if not left_s:
                raise leader.trouble or NotLeader(
                    f"{leader.leader or 'another process'} leads the catalog at {url}",
                    hint="ask the service that leads it (--service http://HOST:PORT), or stop that one first",
                )
        yield open_catalog(storage, url, leader)
    finally:
        leader.stop()
        thread.join()
