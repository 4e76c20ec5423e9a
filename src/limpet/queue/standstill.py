"""Whether the tasks of a queue go on by themselves: a worker that is to end when there is nothing left asks for it.

A suspended task goes on by itself if a time is set, or if what it waits for has ended or goes on by itself. It stands
still if it waits for a signal that has not come, for a task that stands still, or for other code.
"""

from __future__ import annotations

from limpet.kernel.errors import Corrupt, LimpetError, Missing, Unsupported
from limpet.kernel.keys import LEASE, QueueKeys, count_of, parts_of_entry, queue_place
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Blob, Store, batched
from limpet.queue.durable import WaitingStep, stands_still
from limpet.queue.entry import EntryLease, is_of
from limpet.queue.storage import Storage

GROUP = 100


class StandstillCheck:
    """One look at what the tasks of some queues of a store wait for."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._still: dict[str, bool] = {}
        """By the key of the lease: whether the entry stands still. While it is asked for, it is taken to."""

    def reasons(self, keys: QueueKeys) -> list[str] | None:
        """Why each task of a queue waits; None if a task goes on by itself. Empty if there is none.

        An entry without a lease, or one that cannot be read, is for a worker to claim.
        Cost: 1 LIST per 1,000 objects, and while all entries are suspended 1 GET for each lease, 100 at once, and for
        each signal or task that they wait for.
        """
        storage = Storage(self._store, keys, self._runtime)
        leases: set[str] = set()
        entries: set[str] = set()
        for stat in self._store.list(keys.pending):
            entry, kind = parts_of_entry(stat.key, keys.pending) or ("", "")
            (leases if kind == LEASE else entries).add(entry)
        if not entries <= leases:
            return None
        found: list[str] = []
        for group in batched(sorted(entries), lambda entry: 1, size=GROUP):
            blobs = self._store.get_many(map(keys.lease, group))
            for entry in group:
                record = _decoded(storage, entry, blobs[keys.lease(entry)])
                if record is None or not self._stands_still(storage, entry, record):
                    return None
                found += (each.reason for each in record.suspended.values())
        return found

    def _stands_still(self, storage: Storage, entry: str, record: EntryLease | None) -> bool:
        key = str(storage.keys.lease(entry))
        if key not in self._still:
            self._still[key] = True
            waits = [] if record is None else stands_still(record, count_of(entry))
            self._still[key] = bool(waits) and all(self._waits_in_vain(storage, entry, each) for each in waits)
        return self._still[key]

    def _waits_in_vain(self, storage: Storage, entry: str, look: WaitingStep) -> bool:
        if look.signal is not None:
            seen = storage.signal(entry, look.n, look.signal).read()
            return seen is None or (look.life is not None and not is_of(seen.value.life, look.life))
        if not look.awaits:
            return True  # it waits for code, and the worker that asks has tried its own
        for place in filter(None, map(queue_place, look.awaits)):
            other, key = Storage(self._store, place.keys, self._runtime), place.keys.lease(place.name)
            if self._stands_still(other, place.name, _decoded(other, place.name, self._store.get_many([key])[key])):
                return True
        return False


def _decoded(storage: Storage, entry: str, blob: Blob | LimpetError) -> EntryLease | None:
    """The lease of an entry; None if there is none, or none that can be read.   Raises: Unavailable."""
    if isinstance(blob, Missing):
        return None
    if isinstance(blob, LimpetError):
        raise blob
    try:
        return storage.lease(entry).decode(blob).value
    except (Corrupt, Unsupported):
        return None
