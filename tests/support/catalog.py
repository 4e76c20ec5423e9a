"""Catalogs with a leader that runs or with the test as the leader, and requests as Iceberg's clients send them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from limpet.catalog import Compactor, Leader
from limpet.catalog.catalog import Catalog, LoadedTable
from limpet.catalog.leader import add_batch
from limpet.catalog.records import CatalogHead, Change, LedgerBatch, RememberedAnswer, Row
from limpet.catalog.state import CatalogState
from limpet.catalog.storage import CatalogStorage, ParquetSnapshots
from limpet.catalog.warehouse import Warehouse
from limpet.events.ledger import Publication
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Held
from limpet.kernel.keys import Key
from limpet.kernel.lease import Lease, Lock, VersionWatch
from limpet.kernel.runtime import system
from limpet.kernel.store import DirectoryStore, MemoryStore
from limpet.kernel.store.api import Store
from support.clock import QueueRuntime

__all__ = [
    "SCHEMA",
    "Leading",
    "append",
    "catalog",
    "catalog_on",
    "cold",
    "metadata",
    "snapshot",
    "staged",
    "stored_at",
    "table",
    "version",
    "view",
]

SCHEMA: dict[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "data", "required": False, "type": "string"},
    ],
}


class Json:
    """Snapshots as JSON."""

    def to_bytes(self, state: CatalogState) -> bytes:
        return msgspec.json.encode([state.entries(), state.answers()])

    def from_bytes(self, data: bytes, *, what: str) -> CatalogState:
        entries, answers = msgspec.json.decode(data)
        return CatalogState(entries, msgspec.convert(answers, dict[str, RememberedAnswer]))


@contextmanager
def catalog_on(store: Store | None = None, url: str = "memory://test") -> Iterator[Catalog]:
    """A catalog whose leader runs in a thread."""
    store = store or MemoryStore(system())
    storage = CatalogStorage(store, CatalogKeys.of("catalog"), system(), Json())
    lock = Lock(store, storage.keys.lock, "catalog", 10.0, system(), VersionWatch(system()))
    leader = Leader(storage, Compactor(storage).publish, lock)
    thread = Thread(target=leader.run)
    thread.start()
    try:
        yield Catalog(storage, Warehouse(store, url, system()), leader)
    finally:
        leader.stop()
        thread.join()


@pytest.fixture(params=["memory", "directory"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    """An empty catalog, in memory and in a directory."""
    if request.param == "memory":
        with catalog_on() as made:
            yield made
    else:
        root = tmp_path / "my fleet"
        with catalog_on(DirectoryStore(root, durability="os"), str(root)) as made:
            yield made


def table(name: str = "t", **fields: Any) -> dict[str, Any]:
    """A request to create a table."""
    return {"name": name, "schema": SCHEMA, **fields}


def view(name: str = "v", sql: str = "select 1", **fields: Any) -> dict[str, Any]:
    """A request to create a view."""
    return {"name": name, "schema": SCHEMA, "view-version": version(sql), "properties": {}, **fields}


def version(sql: str, schema_id: int = 0) -> dict[str, Any]:
    """A version of a view."""
    return {
        "version-id": 1,
        "schema-id": schema_id,
        "timestamp-ms": 1_700_000_000_000,
        "summary": {"engine-name": "test"},
        "representations": [{"type": "sql", "sql": sql, "dialect": "duckdb"}],
        "default-namespace": ["a"],
    }


def metadata(loaded: LoadedTable) -> dict[str, Any]:
    """The metadata as JSON."""
    found: dict[str, Any] = msgspec.json.decode(loaded.metadata)
    return found


def snapshot(loaded: LoadedTable, id_: int, **fields: Any) -> dict[str, Any]:
    """A snapshot that follows the current one of a table."""
    base = metadata(loaded)
    return {
        "snapshot-id": id_,
        **({"parent-snapshot-id": base["current-snapshot-id"]} if base.get("current-snapshot-id") else {}),
        "sequence-number": base.get("last-sequence-number", 0) + 1,
        "timestamp-ms": 1_700_000_000_000 + id_,
        "manifest-list": f"{base['location']}/metadata/snap-{id_}-1-{uuid4()}.avro",
        "summary": {"operation": "append", "added-records": "1", "total-records": "1"},
        "schema-id": 0,
        **fields,
    }


def staged(loaded: LoadedTable, **fields: Any) -> list[dict[str, Any]]:
    """The updates by which PyIceberg creates a table that was staged; `fields` replace those of its metadata."""
    base = {**metadata(loaded), **fields}
    return [
        {"action": "assign-uuid", "uuid": base["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": base["format-version"]},
        {"action": "add-schema", "schema": base["schemas"][0], "last-column-id": base["last-column-id"]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": base["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": base["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": base["location"]},
        {"action": "set-properties", "updates": base["properties"]},
    ]


def cold(catalog: Catalog) -> Catalog:
    """The same catalog, with nothing in memory."""
    warehouse = Warehouse(catalog.warehouse.store, catalog.warehouse.url.removesuffix("/warehouse"), system())
    return Catalog(catalog.storage, warehouse, catalog.leader)


def stored_at(catalog: Catalog, loaded: LoadedTable) -> Key:
    """The key of the metadata of a table or view."""
    return Key("warehouse/" + str(loaded.metadata_location).removeprefix(f"{catalog.warehouse.url}/"))


def append(loaded: LoadedTable, id_: int, **fields: Any) -> dict[str, Any]:
    """A commit that adds a snapshot to the main branch."""
    base = metadata(loaded)
    return {
        "requirements": [
            {"type": "assert-table-uuid", "uuid": base["table-uuid"]},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": base.get("current-snapshot-id")},
        ],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot(loaded, id_, **fields)},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id_},
        ],
    }


class Leading:
    """A catalog whose leader is the test: it publishes what it is told, batch by batch, on a hand-moved clock."""

    def __init__(self, runtime: QueueRuntime, store: Store | None = None) -> None:
        self.runtime = runtime
        self.store = store or MemoryStore(runtime)
        self.storage = self.elsewhere()
        self.compactor = Compactor(self.storage)
        self.lease = self._acquire(runtime)
        self.epoch()

    def elsewhere(self, store: Store | None = None, runtime: QueueRuntime | None = None) -> CatalogStorage:
        """The storage of another process."""
        return CatalogStorage(
            store or self.store, CatalogKeys.of("catalog"), runtime or self.runtime, ParquetSnapshots()
        )

    def _acquire(self, runtime: QueueRuntime) -> Lease:
        lock = Lock(self.store, self.storage.keys.lock, "catalog", 10.0, runtime, VersionWatch(runtime))
        lease = lock.try_acquire()
        assert not isinstance(lease, Held)
        return lease

    def take_over(self) -> None:
        """Another term begins."""
        self.lease.release()
        self.lease = self._acquire(self.runtime)
        self.epoch()

    def epoch(self) -> Publication:
        """Publish the epoch of this term."""
        return self.publish(self.add(None))

    def add(self, base: int | None, *names: str) -> Key:
        """Write a batch, and do not publish it."""
        rows = tuple(Row(self.runtime.new_id(), "create", (Change(name, {"of": name}),)) for name in names)
        batch = LedgerBatch(domain="catalog", token=self.lease.token, base_version=base, rows=rows)
        return add_batch(self.storage, self.runtime.new_id(), batch)

    def publish(self, path: Key) -> Publication:
        """Have a batch published."""
        return self.compactor.publish([path], self.lease.token)

    def create(self, *names: str) -> Publication:
        """Publish a batch that creates entries."""
        return self.publish(self.add(self.head.version, *names))

    @property
    def head(self) -> CatalogHead:
        """What is published."""
        seen = self.storage.head().read()
        assert seen is not None
        return seen.value
