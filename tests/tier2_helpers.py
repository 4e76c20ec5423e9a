"""A catalog whose leader is the test: it publishes what it is told, batch by batch, on a hand-moved clock."""

from __future__ import annotations

from limpet.catalog import Compactor, Published
from limpet.catalog.parquet import ParquetSnapshots
from limpet.catalog.records import Batch, Change, Head, Row
from limpet.catalog.storage import Storage
from limpet.errors import Held
from limpet.keys import CatalogKeys, Key
from limpet.lease import Lease, Lock, Sightings
from limpet.store import MemoryStore, Store
from queue_helpers import QueueRuntime

__all__ = ["Leading"]


class Leading:
    """One domain, its storage, a compactor, and the lease of whoever leads."""

    def __init__(self, runtime: QueueRuntime, store: Store | None = None) -> None:
        self.runtime = runtime
        self.store = store or MemoryStore(runtime)
        self.storage = self.elsewhere()
        self.compactor = Compactor(self.storage)
        self.lease = self._acquire(runtime)
        self.epoch()

    def elsewhere(self, store: Store | None = None, runtime: QueueRuntime | None = None) -> Storage:
        """The storage of another process."""
        return Storage(store or self.store, CatalogKeys.of("catalog"), runtime or self.runtime, ParquetSnapshots())

    def _acquire(self, runtime: QueueRuntime) -> Lease:
        lock = Lock(self.store, self.storage.keys.lock, "catalog", 10.0, runtime, Sightings(runtime))
        lease = lock.try_acquire()
        assert not isinstance(lease, Held)
        return lease

    def take_over(self) -> None:
        """Another term begins."""
        self.lease.release()
        self.lease = self._acquire(self.runtime)
        self.epoch()

    def epoch(self) -> Published:
        """Publish the epoch of this term."""
        return self.publish(self.add(None))

    def add(self, base: int | None, *names: str) -> Key:
        """Write a batch, and do not publish it."""
        rows = tuple(Row(self.runtime.new_id(), "create", (Change(name, {"of": name}),)) for name in names)
        batch = Batch(domain="catalog", token=self.lease.token, base_version=base, rows=rows)
        return self.storage.add_batch(self.runtime.new_id(), batch)

    def publish(self, path: Key) -> Published:
        """Have a batch published."""
        return self.compactor.publish([path], self.lease.token)

    def create(self, *names: str) -> Published:
        """Publish a batch that creates entries."""
        return self.publish(self.add(self.head.version, *names))

    @property
    def head(self) -> Head:
        """What is published."""
        seen = self.storage.head().read()
        assert seen is not None
        return seen.value
