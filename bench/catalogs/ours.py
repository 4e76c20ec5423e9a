"""Limpet in this process: the parts of `limpet serve`, a leader and a compactor, each with its rights; no HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

import limpet
from bench.catalogs.api import Client, Driven, Place, Threaded
from bench.catalogs.work import NAMESPACE, Share, append_body, create_body, table
from bench.slow import SlowStore
from limpet.app import Fleet
from limpet.catalog.catalog import Catalog
from limpet.kernel.runtime import system
from limpet.kernel.store import MeteredStore
from limpet.service.log import ServiceLog
from limpet.service.parts import ApiPart, CompactorPart, ServiceContext
from limpet.service.tokens import Tokens

__all__ = ["NEEDS", "NOBODY", "Bench", "connect", "fill", "opened", "parts_of", "set_delay", "spent"]

NEEDS: Mapping[str, str] = {
    "pyiceberg": "pyiceberg",
    "prometheus_client": "prometheus-client",
    "pyarrow": "pyarrow",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
}
NOBODY = Tokens([])
"""No tokens: anybody on this machine may call."""
LEASE_S = 10.0
FILLERS = 64


def connect(place: Place) -> Threaded:
    """Open it, or make it, and lead it."""
    return _Ours(place)


def opened(place: Place) -> Fleet:
    """The fleet of a place. One that is far away becomes so only by `set_delay`."""
    fleet = limpet.open(place.url)
    if place.delay_s:
        fleet.meter.inner = SlowStore(fleet.meter.inner, 0.0)
        fleet.meter.at_once = SlowStore.at_once
    return fleet


def parts_of(fleet: Fleet) -> tuple[ServiceContext, CompactorPart, ApiPart]:
    """What `limpet serve` is made of, not started yet."""
    runtime = system()
    shared = ServiceContext(fleet, runtime, ServiceLog(runtime))
    compactor = CompactorPart(shared, NOBODY, exposed=False)
    return shared, compactor, ApiPart(shared, NOBODY, compactor.publish, compactor.fold, lease_s=LEASE_S)


def set_delay(meter: MeteredStore, delay_s: float) -> None:
    """From now on each request waits so long, if the store is one that is far away."""
    if isinstance(meter.inner, SlowStore):
        meter.inner.delay_s = delay_s


def spent(meter: MeteredStore) -> dict[str, float]:
    """Requests by verb, and bytes, so far."""
    cost = meter.snapshot()
    return {**cost.requests, "read_bytes": cost.read_bytes, "written_bytes": cost.written_bytes}


def fill(catalog: Catalog, tables: int) -> None:
    """The namespace and so many tables, through the front door, many at once."""
    catalog.create_namespace((NAMESPACE,))
    with ThreadPoolExecutor(FILLERS) as pool:
        for _ in pool.map(lambda number: catalog.create_table((NAMESPACE,), create_body(table(number))), range(tables)):
            pass


class _Ours(Threaded):
    def __init__(self, place: Place) -> None:
        self._delay_s = place.delay_s
        self._fleet = opened(place)
        _, self._compactor, self._api = parts_of(self._fleet)
        self._compactor.start()
        self._api.start()
        while not self._api.leader.leads:
            system().sleep(0.01)

    def fill(self, tables: int) -> None:
        fill(self._api.catalog, tables)

    def client(self) -> Client:
        return Bench(self._api.catalog)

    def drive(self, verb: str, shares: Sequence[Share], seconds: float) -> Driven:
        """See `Catalog.drive`. Only it finds the store far away."""
        set_delay(self._fleet.meter, self._delay_s)
        try:
            return super().drive(verb, shares, seconds)
        finally:
            set_delay(self._fleet.meter, 0.0)

    def spent(self) -> Mapping[str, float]:
        return spent(self._fleet.meter)

    def count(self) -> int:
        return len(self._api.catalog.tables((NAMESPACE,)).names)

    def snapshots(self, names: Sequence[str]) -> int:
        return sum(_newest(self._api.catalog.load_table((NAMESPACE,), name).metadata) for name in names)

    def close(self) -> None:
        self._api.stop()
        self._compactor.stop()


class Bench(Client):
    """A client that calls the catalog itself."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._nth: dict[str, int] = {}

    def prepare(self, names: Sequence[str]) -> None:
        """See `Client.prepare`: there is nothing to look at, the leader knows."""
        return

    def create(self, name: str) -> None:
        """See `Client.create`."""
        self._catalog.create_table((NAMESPACE,), create_body(name))

    def append(self, name: str) -> None:
        """See `Client.append`."""
        nth = self._nth.get(name, 0) + 1
        self._catalog.commit_table((NAMESPACE,), name, append_body(name, nth, self._catalog.warehouse.url))
        self._nth[name] = nth


def _newest(metadata: bytes) -> int:
    found: dict[str, Any] = msgspec.json.decode(metadata)
    return max(0, found.get("current-snapshot-id") or 0)
