"""A queue as something that is dropped: what it holds, who works on it, and its own mark, which is in `control.json`.

A queue that is being dropped is paused, so that workers of any version claim nothing of it. A process that has opened
the fleet before may still push: that is removed with the rest, or stays and makes the queue anew. A worker that holds a
task for too long learns of the drop before it writes the end of it (`Storage.dropped_within`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec

from limpet.kernel.drop import BEGUN, DropRecord, DropTarget
from limpet.kernel.errors import Corrupt, LimpetError, Missing, Unsupported
from limpet.kernel.keys import BATCH, LEASE, TASK, Key, batch_of, count_of, is_ulid, name_of_receipt, parts_of_entry
from limpet.kernel.lease import LeaseRecord
from limpet.kernel.store.api import Blob, Stat
from limpet.queue.entry import ControlRecord
from limpet.queue.storage import Storage

_BASE = re.compile("[/.~-]")
"""What ends the id with which the name of an object begins."""
NOTICE_S = 7.0
"""A worker reads `control.json` every 5 s (`CONTROL_EVERY_S`); the rest is for a claim that it has begun."""


class QueueTarget(DropTarget):
    """One queue in a store."""

    kind = "queue"

    def __init__(self, storage: Storage, announce: Callable[[bool], object]) -> None:
        self._storage = storage
        self._announce = announce
        self.name = storage.keys.name
        self.root = storage.keys.root
        self.record = storage.keys.drop
        self.mark = storage.keys.control

    def check(self, seen: DropRecord | None) -> None:
        """Raises: Unsupported for a queue that is exchanged with other nodes; Missing.   Cost: 1 LIST, or nothing."""
        if self._storage.journal.travels:
            raise Unsupported(
                f"queue {self.name!r} is exchanged with other nodes, which would bring it back",
                hint=f"`limpet queue purge {self.name}` ends what waits in all places",
            )
        if (seen is None or seen.stage not in BEGUN) and next(iter(self._storage.store.list(self.root)), None) is None:
            raise Missing(f"there is no queue {self.name!r}", hint="`limpet queue ls` shows all")

    def count(self, stats: Iterable[Stat]) -> Mapping[str, int]:
        """Tasks by folder. A batch that has ended in both folders counts in both."""
        counts = Counter(pending=0, scheduled=0, completed=0, failed=0)
        for stat in stats:
            folder = stat.key.removeprefix(f"{self.root}/").partition("/")[0]
            if folder == "pending":
                entry, kind = parts_of_entry(stat.key, self._storage.keys.pending) or ("", "")
                counts[folder] += count_of(entry) if kind in (TASK, BATCH) else 0
            elif folder == "scheduled":
                counts[folder] += 1
            elif folder in ("completed", "failed"):
                name = name_of_receipt(stat.key)
                counts[folder] += 0 if batch_of(name) else count_of(name)
        return dict(counts)

    def leases(self) -> dict[str, Blob | LimpetError]:
        """By the entry.   Cost: 1 LIST per 1,000 objects that wait, 1 GET for each lease."""
        pending = self._storage.keys.pending
        entries = {
            stat.key: part[0]
            for stat in self._storage.store.list(pending)
            if (part := parts_of_entry(stat.key, pending)) is not None and part[1] == LEASE
        }
        return {entries[key]: blob for key, blob in self._storage.store.get_many(entries).items()}

    def lease_of(self, what: str, blob: Blob) -> LeaseRecord:
        return self._storage.lease(what).decode(blob).value

    def close(self) -> float:
        """Pause the queue for good.   Cost: 1 GET + 1 PUT + 1 LIST."""

        def change(record: ControlRecord | None) -> ControlRecord | None:
            before = record or ControlRecord()
            if before.dropping is not msgspec.UNSET:
                return None
            return msgspec.structs.replace(before, paused=True, dropping=before.paused)

        try:
            self._storage.control().update(change)
        except Corrupt:
            self._storage.store.delete(self.mark)
            self._storage.control().update(change)
        waits = next(iter(self._storage.store.list(self._storage.keys.pending)), None) is not None
        return NOTICE_S if waits else 0.0

    def reopen(self) -> None:
        """Pause it no more, unless it was paused before.   Cost: 1 GET + 1 PUT."""

        def change(record: ControlRecord | None) -> ControlRecord | None:
            if record is None or record.dropping is msgspec.UNSET:
                return None
            return msgspec.structs.replace(record, paused=record.dropping, dropping=msgspec.UNSET)

        self._storage.control().update(change)

    def announce(self, dropping: bool) -> None:
        self._announce(dropping)

    def reuses(self, key: Key) -> bool:
        """Names that were minted for a push are used once. A late delete of the queue's settings at worst undoes a
        pause."""
        folder, _, rest = key.removeprefix(f"{self.root}/").partition("/")
        if not rest or folder in ("scheduled", "slots"):  # the name of a delayed push ends with an id of its own
            return False
        return not is_ulid(_BASE.split(rest, 1)[0])
