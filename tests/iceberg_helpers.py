"""A catalog with a leader and a compactor of its own, and requests as Iceberg's clients send them."""

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
from limpet.catalog.catalog import Catalog
from limpet.catalog.loaded import LoadedTable
from limpet.catalog.records import Told
from limpet.catalog.state import State
from limpet.catalog.storage import Storage
from limpet.catalog.warehouse import Warehouse
from limpet.keys import CatalogKeys
from limpet.lease import Lock, Sightings
from limpet.runtime import system
from limpet.store import DirectoryStore, MemoryStore
from limpet.store.api import Store

__all__ = [
    "SCHEMA",
    "append",
    "catalog",
    "catalog_on",
    "metadata",
    "snapshot",
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

    def to_bytes(self, state: State) -> bytes:
        return msgspec.json.encode([state.entries(), state.answers()])

    def from_bytes(self, data: bytes, *, what: str) -> State:
        entries, answers = msgspec.json.decode(data)
        return State(entries, msgspec.convert(answers, dict[str, Told]))


@contextmanager
def catalog_on(store: Store | None = None, url: str = "memory://test") -> Iterator[Catalog]:
    """A catalog whose leader runs in a thread."""
    store = store or MemoryStore(system())
    storage = Storage(store, CatalogKeys.of("catalog"), system(), Json())
    lock = Lock(store, storage.keys.lock, "catalog", 10.0, system(), Sightings(system()))
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
