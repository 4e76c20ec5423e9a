"""Garbage collection: objects that no retained version needs are deleted.

First `gc_floor` is swapped into the head, then objects with names below it are deleted. A process that is about to
publish an older name loses that swap, and starts again above the floor (counterexample 10). Table data is not touched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from limpet.catalog.history import find_commit, log
from limpet.catalog.records import CatalogHead, CommitRecord, LedgerBatch, SnapshotRef
from limpet.catalog.storage import CatalogStorage, newest_head
from limpet.events.fold import Executions, collect_events
from limpet.events.ledger import delete_all, store_time
from limpet.kernel.errors import Corrupt, Denied, Invalid, Missing, Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.records import moment
from limpet.kernel.store.api import Stat
from limpet.kernel.waiting import attempts

GRACE_S = 3600.0
_log = logging.getLogger("limpet.catalog")
MOST = 10_000


def floor_at(snapshot: SnapshotRef | None, first: CommitRecord) -> str:
    """The lowest name that is needed to compute a state from a snapshot and the commits since; `first` is the first.

    Names of commits increase with their versions, and that of a snapshot is above the commit of its version: so all
    later names are above. Without a snapshot everything is needed.
    """
    return min(snapshot.id, first.id) if snapshot else ""


def raise_floor(storage: CatalogStorage, *, keep: timedelta, keep_versions: int = 1) -> str:
    """Drop the history that is older than `keep` and not among the newest `keep_versions`; returns the new floor.

    Every state within `keep` can still be computed. Version and token of the head do not change.
    Raises: Invalid; Corrupt; OutcomeUnknown (do it again).
    Cost: 1 GET, some to walk back the chain, and 1 GET + 1 PUT if the floor rises.   Crash: raised or not.
    """
    if keep < timedelta(0) or keep_versions < 1:
        raise Invalid("keep must not be negative, and keep_versions must be at least 1")
    cell = storage.head()
    before = store_time(storage.store, cell.read) - keep
    for _ in attempts(storage.runtime, pause_s=0):
        seen = newest_head(storage)
        if seen is None:
            return ""
        head = seen.value
        try:
            floor = _floor(storage, head, before, head.version - keep_versions + 1)
        except Missing:
            return head.gc_floor
        except Corrupt:  # or another process collects concurrently
            now = cell.read()
            if now is None or now.version == seen.version:
                raise
            continue
        raised = cell.update(partial(_with_floor, floor=floor))
        return raised.value.gc_floor if raised else ""
    raise Unavailable("heads were replaced faster than they could be read")


def _floor(storage: CatalogStorage, head: CatalogHead, before: datetime, version: int) -> str:
    """The floor below which no object is needed for the newest state before both limits, and all later ones.

    Raises: Missing if there is no such state; Corrupt.
    """

    def is_past(commit: CommitRecord) -> bool:
        return commit.version <= version and moment(commit.at) <= before

    oldest = find_commit(storage, head, is_past)
    base = oldest.snapshot.version if oldest.snapshot else 0
    first = oldest if oldest.version <= base + 1 else find_commit(storage, head, lambda each: each.version <= base + 1)
    return floor_at(oldest.snapshot, first)


def _with_floor(head: CatalogHead | None, floor: str) -> CatalogHead | None:
    if head is None or floor <= head.gc_floor:
        return None
    return msgspec.structs.replace(head, gc_floor=floor)


def delete_below(storage: CatalogStorage, *, grace_s: float = GRACE_S) -> int:
    """Delete commits and snapshots below the head's floor that are older than `grace_s`; returns how many. For the
    compactor.

    Raises: Corrupt if the head itself needs names below its floor: then nothing is deleted.
    Cost: 1 GET, 1 LIST per 1,000 deleted names and 2 more, 1 DELETE each.   Crash: the next run deletes the rest.
    """
    cell = storage.head()
    before = store_time(storage.store, cell.read) - timedelta(seconds=grace_s)
    seen = newest_head(storage)
    if seen is None:
        return 0
    head, floor = seen.value, seen.value.gc_floor
    needed = [head.links[0].id, *([head.snapshot.id] if head.snapshot else [])]
    if min(needed) < floor:
        raise Corrupt(f"{storage.keys.head} refers to objects below its own floor {floor}")
    doomed: list[Key] = []
    for prefix in (storage.keys.commits, storage.keys.snapshots):
        for stat in storage.store.list(prefix):
            id_ = storage.keys.id_of(stat.key)
            if id_ is not None and id_ >= floor:
                break
            if id_ is not None and stat.modified < before:
                doomed.append(stat.key)
    delete_all(storage.store, doomed)
    return len(doomed)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Deleted batches of the ledger: applied ones, dead ones, and those that are older than the retained history, so
    that their outcome is not known."""

    applied: int = 0
    dead: int = 0
    past: int = 0


def collect_ledger(storage: CatalogStorage, *, grace_s: float = GRACE_S, most: int = MOST) -> Ledger:
    """Delete batches of the catalog whose outcome is known and that are older than `grace_s`. For the API.

    Unreadable ones stay. The grace time must exceed the timeout of a leader, which repeats its requests.
    Cost: as `classify_ledger`, and 1 DELETE each.   Crash: the next run deletes the rest.
    """
    found = classify_ledger(storage, grace_s=grace_s, most=most)
    decided = (BatchOutcome.APPLIED, BatchOutcome.DEAD, BatchOutcome.PAST)
    doomed = {fate: [Key(each.path) for each in found if each.fate is fate] for fate in decided}
    delete_all(storage.store, [key for keys in doomed.values() for key in keys])
    return Ledger(*map(len, doomed.values()))


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of one run of garbage collection, with the problems of each part."""

    floor: str = ""
    history: int = 0
    ledger: Ledger = Ledger()
    events: int = 0
    faults: tuple[str, ...] = ()


def collect(
    storage: CatalogStorage,
    executions: Executions,
    *,
    keep: timedelta,
    keep_versions: int = 1,
    grace_s: float = GRACE_S,
    ledger: bool = True,
) -> Collected:
    """Run all parts of garbage collection independently: damage in one does not stop the others.

    `ledger`: the batches too, which the compactor's role may not delete.

    It asks the store for the time first. A new process otherwise knows only the time of the newest object that it has
    read. In an idle catalog that is the last commit, so files of that time would never be old enough to be deleted.
    Raises: Invalid; Unavailable; OutcomeUnknown.   Cost: 1 PUT + 1 HEAD for the clock, and that of each part.
    """
    with suppress(Denied):
        storage.store.now(max_age_s=-1.0)
    found: dict[str, Any] = {}
    faults: list[str] = []
    parts: dict[str, Callable[[], Any]] = {
        "floor": lambda: raise_floor(storage, keep=keep, keep_versions=keep_versions),
        "history": lambda: delete_below(storage, grace_s=grace_s),
        **({"ledger": lambda: collect_ledger(storage, grace_s=grace_s)} if ledger else {}),
        "events": lambda: collect_events(executions, grace_s=grace_s),
    }
    for name, part in parts.items():
        try:
            found[name] = part()
        except Corrupt as error:
            faults.append(f"{name}: {error}")
    return Collected(**found, faults=tuple(faults))


class BatchOutcome(Enum):
    """The outcome of a batch of the catalog."""

    APPLIED = "it was published"
    DEAD = "it was not published, and never will be"
    OPEN = "it may still be published"
    PAST = "it is older than the retained history"
    MALFORMED = "it cannot be read"
    STRAY = "its name is not the name of a batch"


@dataclass(frozen=True, slots=True)
class ClassifiedBatch:
    """A ledger object and its outcome; for a dead batch also its content."""

    path: str
    fate: BatchOutcome
    modified: datetime
    batch: LedgerBatch | None = None


def will_never_be(batch: LedgerBatch, head: CatalogHead) -> bool:
    """Whether this head and all later ones exclude a batch: tokens and versions only increase."""
    if batch.base_version is None:
        return batch.token <= head.token
    return batch.token < head.token or batch.base_version < head.version


def was_met(batch: LedgerBatch, commit: CommitRecord) -> bool:
    """Whether reading from the head down to this commit would have found the commit of the batch."""
    if batch.base_version is None:
        return commit.token < batch.token or commit.version == 1
    return commit.version <= batch.base_version + 1


def classify_ledger(storage: CatalogStorage, *, grace_s: float, most: int = MOST) -> list[ClassifiedBatch]:
    """The outcome of each ledger object that is older than `grace_s`, by the chain of the newest head.

    If a commit record is damaged, older outcomes are not known: those objects count as open, and stay.
    Cost: 1 LIST per 1,000 objects, 1 GET, 1 GET for each commit since the oldest of them, and 1 GET for each batch that
    is not among those; once a minute 1 PUT + 1 HEAD for the clock.
    """
    store, cell = storage.store, storage.head()
    before = store_time(store, cell.read) - timedelta(seconds=grace_s)
    listed = [*islice(store.list(storage.keys.ledger), most)]
    for _ in attempts(storage.runtime, pause_s=0):
        seen = cell.read()
        old = [stat for stat in listed if stat.modified < before]
        judging = _Classifier(storage, seen.value if seen else None, old)
        try:
            return judging.run()
        except Corrupt as error:  # or the record was collected since this head was read
            after, reason = cell.read(), str(error)
            if after is None or seen is None or after.version == seen.version:
                break
    _log.warning("the outcome of some ledger objects is not known: %s", reason)
    return judging.leave_open()


class _Classifier:
    """One walk of the chain, and the batches whose outcome is not known yet."""

    def __init__(self, storage: CatalogStorage, head: CatalogHead | None, old: Sequence[Stat]) -> None:
        self._storage = storage
        self._head = head
        self._waiting = {str(stat.key): stat for stat in old}
        self._batches: dict[str, LedgerBatch] = {}
        self._found: list[ClassifiedBatch] = []

    def run(self) -> list[ClassifiedBatch]:
        keys = self._storage.keys
        self._end(BatchOutcome.STRAY, [path for path in self._waiting if keys.batch_id(path) is None])
        if self._head is None:
            self._end(BatchOutcome.OPEN, [*self._waiting])
        elif self._waiting:
            self._walk(self._head)
        return self._found

    def leave_open(self) -> list[ClassifiedBatch]:
        """The outcomes so far; the rest counts as open."""
        self._end(BatchOutcome.OPEN, [*self._waiting])
        return self._found

    def _walk(self, head: CatalogHead) -> None:
        commit: CommitRecord | None = None
        for commit in log(self._storage, head):
            self._end(BatchOutcome.APPLIED, [path for path in commit.paths if path in self._waiting])
            if self._waiting and not self._batches and commit.id < str(self._storage.keys.batch_id(min(self._waiting))):
                self._read(head)  # older than all of them: read the few remaining batches
            self._end(BatchOutcome.DEAD, self._met(commit))
            if not self._waiting:
                return
        if not self._batches:
            self._read(head)
        self._end(BatchOutcome.DEAD, self._met(commit))
        self._end(BatchOutcome.PAST, [*self._waiting])

    def _met(self, commit: CommitRecord | None) -> list[str]:
        known = {path: self._batches[path] for path in self._waiting if path in self._batches}
        return [path for path, batch in known.items() if commit is not None and was_met(batch, commit)]

    def _read(self, head: CatalogHead) -> None:
        for path in [*self._waiting]:
            try:
                self._batches[path] = self._storage.recent.batches.get(path) or self._storage.batch(path)
            except Missing:
                del self._waiting[path]
            except Corrupt:
                self._end(BatchOutcome.MALFORMED, [path])
            else:
                if not will_never_be(self._batches[path], head):
                    self._end(BatchOutcome.OPEN, [path])

    def _end(self, fate: BatchOutcome, paths: Sequence[str]) -> None:
        for path in paths:
            stat = self._waiting.pop(path)
            self._found.append(ClassifiedBatch(path, fate, stat.modified, self._batches.get(path)))
