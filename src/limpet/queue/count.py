"""Counting the tasks of queues by listings: names tell the state of an entry, and how many tasks it holds."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Literal, get_args

from limpet.kernel.keys import (
    BATCH,
    LEASE,
    QUEUES,
    REMOTE,
    RETRY_MARK,
    TASK,
    QueueKeys,
    batch_of,
    count_of,
    is_batch,
    is_minted,
    life_before,
    name_of,
    name_of_receipt,
    parts_of_entry,
)
from limpet.kernel.runtime import ulid
from limpet.kernel.store.api import Stat, Store, Version

Folder = Literal["completed", "failed", "pending", "scheduled"]
FOLDERS: tuple[Folder, ...] = get_args(Folder)

OBJECTS_MAX = 10_000
PAGE = 1000

ALL: Mapping[Folder, float] = dict.fromkeys(FOLDERS, float("inf"))
"""Count every object, whatever it costs."""
SOME: Mapping[Folder, float] = dict.fromkeys(FOLDERS, float(OBJECTS_MAX))
"""Stop counting at 10,000 objects of a folder: a fleet keeps a receipt for each entry for weeks."""


@dataclass(slots=True)
class FinishTimes:
    """How many tasks and entries ended in each minute (of the Unix time), by the store's times of their receipts."""

    tasks: Counter[int] = field(default_factory=Counter)
    entries: Counter[int] = field(default_factory=Counter)

    def add(self, stat: Stat) -> None:
        """Count one receipt of an entry."""
        minute = int(stat.modified.timestamp()) // 60
        self.tasks[minute] += count_of(name_of_receipt(stat.key))
        self.entries[minute] += 1


def last_finished(store: Store, keys: QueueKeys, since: datetime, most: int) -> FinishTimes:
    """When tasks completed that were pushed after `since`, of the first `most` of them, in a queue with many receipts.

    Names that Limpet made sort by the time of the push. Ids of users do not: they may be missing.   Cost: 1 LIST per
    1,000 objects.
    """
    found = FinishTimes()
    after = f"{keys.completed}/{ulid(int(since.timestamp() * 1000), 0)}"
    for stat in islice(store.list(keys.completed, after=after), most):
        if not batch_of(name_of_receipt(stat.key)):
            found.add(stat)
    return found


@dataclass(slots=True)
class QueueCount:
    """What listings showed of one queue. `cut` names the folders that were not listed to their end."""

    queue: str
    keys: QueueKeys
    pending: int = 0
    scheduled: int = 0
    failed: dict[str, Version] = field(default_factory=dict)
    """The names in failed/ with the versions of their receipts; `FailedReceipts` tells failed from cancelled."""
    leases: list[Stat] = field(default_factory=list)
    """The leases of entries that have a task."""
    untaken: int = 0
    """Tasks of entries without a lease: no worker has ever claimed them."""
    untaken_since: datetime | None = None
    """When the first of them became due; without those that another node of a supervised fleet holds."""
    worked_at: datetime | None = None
    """When a lease or a receipt was last written, of those that were listed."""
    oldest: datetime | None = None
    newest: datetime | None = None
    control: bool = False
    cut: set[Folder] = field(default_factory=set)
    entries: int = 0
    """Entries in pending/: single tasks and batches."""
    ended: int = 0
    """Entries that have a receipt."""
    named: int = 0
    """Those of `ended` that were pushed with an id."""
    finished: FinishTimes = field(default_factory=lambda: FinishTimes())
    pushed: Counter[int] = field(default_factory=Counter)
    """Pending tasks by the minute (of the Unix time) in which they were pushed, by the store's clock."""
    _beside: dict[str, Stat] = field(default_factory=dict)
    """The objects that were listed last before the task of an entry, by kind."""
    _objects: Counter[str] = field(default_factory=Counter)
    _retried: set[str | None] = field(default_factory=set)
    _completed: int = 0
    _completed_names: array[int] = field(default_factory=lambda: array("q"))
    """A hash of each name in completed/: there may be millions."""
    _compared: tuple[tuple[int, int], set[str]] | None = None
    """What `completed_of_failed` has found, and for how many names."""

    def add(self, folder: str, stat: Stat, limits: Mapping[Folder, float] = ALL) -> bool:
        """Count one object; False if its folder is full, and the rest of it is not worth listing."""
        self.newest = max(self.newest or stat.modified, stat.modified)
        match folder:
            case "completed" | "failed" | "pending" | "scheduled":
                if self._objects[folder] >= limits[folder]:
                    self.cut.add(folder)
                    return False
                self._objects[folder] += 1
                self._count(folder, stat)
                return True
            case "control.json":
                self.control = True
        return folder.endswith(".json")

    def _count(self, folder: Folder, stat: Stat) -> None:
        match folder:
            case "pending":
                entry, kind = parts_of_entry(stat.key, self.keys.pending) or ("", "")
                if kind in (LEASE, REMOTE):
                    self._beside[kind] = stat
                elif kind in (TASK, BATCH):
                    self._count_taken(entry, stat)
                    self.pending += count_of(entry)
                    self.pushed[int(stat.modified.timestamp()) // 60] += count_of(entry)
                    self.entries += 1
                    self.oldest = min(self.oldest or stat.modified, stat.modified)
                    self._retried.add(life_before(entry))
            case "scheduled":
                self.scheduled += 1
            case "completed":
                name = name_of_receipt(stat.key)
                self._completed_names.append(hash(name))
                if not batch_of(name):
                    self._end(name, stat)
                    self._completed += count_of(name)
                    self._retried.add(life_before(name))
            case "failed":
                name = name_of_receipt(stat.key)
                self.failed[name] = stat.version
                self._retried.add(life_before(name))
                self._work(stat)
                if not batch_of(name):
                    self._end(name, stat)

    def _count_taken(self, entry: str, stat: Stat) -> None:
        """Whether an entry has a lease, which is listed before its task."""
        lease, remote = self._beside.get(LEASE), self._beside.get(REMOTE)
        if lease is not None and lease.key == self.keys.lease(entry):
            self.leases.append(lease)
            self._work(lease)
            return
        self.untaken += count_of(entry)
        if remote is None or remote.key != self.keys.remote(entry):
            self.untaken_since = min(self.untaken_since or stat.modified, stat.modified)

    def _work(self, stat: Stat) -> None:
        self.worked_at = max(self.worked_at or stat.modified, stat.modified)

    def _end(self, name: str, stat: Stat) -> None:
        self.ended += 1
        self.named += not is_minted(name)
        self.finished.add(stat)
        self._work(stat)

    def failed_tasks(self) -> dict[str, int]:
        """The names in failed/ that were neither retried nor completed since (H4), and how many tasks each stands for.

        The receipt of a whole batch stands for the tasks that have no receipt of their own. A name that a user gave may
        have a retry of another life: only its receipt tells whether it was retried.
        """
        completed = self.completed_of_failed()
        own = Counter(part[0] for name in {*self.failed, *completed} if (part := batch_of(name)))
        tasks = {
            name: count_of(name) - own[name]
            for name in self.failed
            if name not in completed and not (name in self._retried and is_minted(name.partition(RETRY_MARK)[0]))
        }
        return {name: number for name, number in tasks.items() if number > 0}

    def completed_tasks(self) -> int:
        """Completed tasks: those of completed entries, without the ones of a batch that failed; and those that were
        done in a batch which did not complete."""
        completed = self.completed_of_failed()
        tasks = self._completed
        for name in {*self.failed, *completed}:
            if part := batch_of(name):
                tasks -= part[0] in completed and name not in completed
                tasks += part[0] not in completed and name in completed and part[0] in self.failed
        return tasks

    def completed_of_failed(self) -> set[str]:
        """The names in failed/, the batches of such, and the tasks of such batches, that are in completed/ too."""
        listed = len(self.failed), len(self._completed_names)
        if self._compared is not None and self._compared[0] == listed:
            return self._compared[1]
        batches = [name for name in self.failed if is_batch(name)]
        names = {
            *self.failed,
            *(part[0] for name in self.failed if (part := batch_of(name))),
            *(f"{entry}.{n}" for entry in batches for n in range(count_of(entry))),
        }
        hashes = {hash(name): name for name in names}
        both = {hashes[code] for code in self._completed_names if code in hashes}
        self._compared = listed, both
        return both


def count_queues(store: Store, queues: Iterable[str] | None, limits: Mapping[Folder, float]) -> list[QueueCount]:
    """Count these queues, or all there are, in the order of their names. A queue that has no object is left out.

    Cost: 1 LIST per 1,000 objects listed; 1 more for each folder that is cut short, and for each queue named.
    """
    return count_below(store, [QUEUES] if queues is None else [QueueKeys.of(name).root for name in queues], limits)


def count_below(store: Store, prefixes: Iterable[str], limits: Mapping[Folder, float]) -> list[QueueCount]:
    """Count the queues below these prefixes: that of all queues, or the folders of some.   Cost: as `count_queues`."""
    found: dict[str, QueueCount] = {}
    for prefix in prefixes:
        after: str | None = None
        while (after := _add_listed(store.list(prefix, after=after), found, limits)) is not None:
            continue
    return sorted(found.values(), key=lambda each: each.queue)


def count_first(store: Store, limits: Mapping[Folder, float], lists_max: int) -> tuple[list[QueueCount], bool]:
    """Count queues in the order of their keys by about `lists_max` LISTs, and whether these were all queues.

    A queue that was not listed to its end is left out.
    """
    found: dict[str, QueueCount] = {}
    listing = store.list(QUEUES)
    for _ in range(lists_max):
        listed = [*islice(listing, PAGE)]
        skipped_to = _add_listed(listed, found, limits)
        if skipped_to is not None:
            listing = store.list(QUEUES, after=skipped_to)
        elif len(listed) < PAGE:
            return [*found.values()], True
    return [*found.values()][:-1], False


def _add_listed(listed: Iterable[Stat], found: dict[str, QueueCount], limits: Mapping[Folder, float]) -> str | None:
    """Count what was listed until a folder is full; from where to list on then."""
    for stat in listed:
        _, queue, *below = stat.key.split("/", 3)
        if not below:
            continue  # an object beside the queues, which is not ours
        if queue not in found:
            found[queue] = QueueCount(name_of(queue), QueueKeys(f"{QUEUES}/{queue}"))
        if not found[queue].add(below[0], stat, limits):
            return f"{found[queue].keys.root}/{below[0]}0"  # 0 is the character behind the slash
    return None
