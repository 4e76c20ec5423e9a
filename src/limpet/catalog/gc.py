"""Garbage collection: names that no retained head reaches are deleted, after the head says so.

First `gc_floor` is swapped into the head, then names below it go. Whoever was about to publish an older name loses that
swap and begins anew above the floor (counterexample 10). Table data is never touched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
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
from limpet.errors import Corrupt, Invalid, Missing
from limpet.events.fold import Executions, collect_events
from limpet.keys import Key
from limpet.ledger import delete_all, moment, store_time
from limpet.store.api import Stat

TRIES_MAX = 3
GRACE_S = 3600.0
_log = logging.getLogger("limpet.catalog")
MOST = 10_000


def floor_at(snapshot: SnapshotRef | None, first: CommitRecord) -> str:
    """The lowest name that is needed to tell a state from a snapshot and the commits since, of which `first` is one.

    Names of commits rise with their versions, and that of a snapshot lies above the commit of its own version: nothing
    later lies below. Without a snapshot everything is needed.
    """
    return min(snapshot.id, first.id) if snapshot else ""


def raise_floor(storage: CatalogStorage, *, keep: timedelta, keep_versions: int = 1) -> str:
    """Give up the history that is older than `keep` and not among the newest `keep_versions`; the floor that holds now.

    What the catalog was at any moment within `keep` can still be told. Version and token of the head stay as they are.
    Raises: Invalid; Corrupt; OutcomeUnknown (do it again).
    Cost: 1 GET, some for the way back in the chain, and 1 GET + 1 PUT if the floor rises.   Crash: raised or not.
    """
    if keep < timedelta(0) or keep_versions < 1:
        raise Invalid("keep must not be negative, and keep_versions must be at least 1")
    cell = storage.head()
    before = store_time(storage.store, cell.read) - keep
    for tries in range(1, TRIES_MAX + 1):
        seen = newest_head(storage)
        if seen is None:
            return ""
        head = seen.value
        try:
            floor = _floor(storage, head, before, head.version - keep_versions + 1)
        except Missing:
            return head.gc_floor
        except Corrupt:  # or another one collects at the same time
            now = cell.read()
            if tries == TRIES_MAX or now is None or now.version == seen.version:
                raise
            continue
        raised = cell.update(partial(_with_floor, floor=floor))
        return raised.value.gc_floor if raised else ""
    raise AssertionError


def _floor(storage: CatalogStorage, head: CatalogHead, before: datetime, version: int) -> str:
    """The floor under which nothing is needed to tell the newest state before both, and all later ones.

    Raises: Missing if there is none so old; Corrupt.
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
    """Delete commits and snapshots below the head's floor that are older than `grace_s`; how many. For the compactor.

    Raises: Corrupt if the head itself reaches below its floor: then nothing is deleted.
    Cost: 1 GET, 1 LIST per 1,000 names that go and 2 more, 1 DELETE each.   Crash: the rest goes next time.
    """
    cell = storage.head()
    before = store_time(storage.store, cell.read) - timedelta(seconds=grace_s)
    seen = newest_head(storage)
    if seen is None:
        return 0
    head, floor = seen.value, seen.value.gc_floor
    needed = [head.links[0].id, *([head.snapshot.id] if head.snapshot else [])]
    if min(needed) < floor:
        raise Corrupt(f"{storage.keys.head} names objects below its own floor {floor}")
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
    """What went from the ledger: batches that were applied, batches that no head ever will apply, and batches that are
    older than the history by which that could be told."""

    applied: int = 0
    dead: int = 0
    past: int = 0


def collect_ledger(storage: CatalogStorage, *, grace_s: float = GRACE_S, most: int = MOST) -> Ledger:
    """Delete batches of the catalog whose outcome is known and that are older than `grace_s`. For the API.

    What it cannot read stays. The grace time must exceed the patience of a leader, which asks for them again.
    Cost: as `classify_ledger`, and 1 DELETE each.   Crash: the rest goes next time.
    """
    found = classify_ledger(storage, grace_s=grace_s, most=most)
    decided = (BatchOutcome.APPLIED, BatchOutcome.DEAD, BatchOutcome.PAST)
    doomed = {fate: [Key(each.path) for each in found if each.fate is fate] for fate in decided}
    delete_all(storage.store, [key for keys in doomed.values() for key in keys])
    return Ledger(*map(len, doomed.values()))


@dataclass(frozen=True, slots=True)
class Collected:
    """What one turn of garbage collection did, and what went wrong in which part of it."""

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
    """All parts of garbage collection, each by itself: what is damaged in one holds up no other.

    `ledger`: the batches too, which the compactor's role may not delete.
    Raises: Invalid; Unavailable; OutcomeUnknown.
    """
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
    """What became of a batch of the catalog."""

    APPLIED = "a head published it"
    DEAD = "no head published it, and none ever will"
    OPEN = "it may be published yet"
    PAST = "it is older than the history that is kept"
    MALFORMED = "it cannot be read"
    STRAY = "its name is not that of a batch"


@dataclass(frozen=True, slots=True)
class ClassifiedBatch:
    """A ledger object and its fate. Of a dead one: who wrote it, and on what."""

    path: str
    fate: BatchOutcome
    modified: datetime
    batch: LedgerBatch | None = None


def will_never_be(batch: LedgerBatch, head: CatalogHead) -> bool:
    """Whether no head from this one on can publish a batch, as tokens and versions only rise."""
    if batch.base_version is None:
        return batch.token <= head.token
    return batch.token < head.token or batch.base_version < head.version


def was_met(batch: LedgerBatch, commit: CommitRecord) -> bool:
    """Whether a walk from the head down to this commit would have met the one that published the batch."""
    if batch.base_version is None:
        return commit.token < batch.token or commit.version == 1
    return commit.version <= batch.base_version + 1


def classify_ledger(storage: CatalogStorage, *, grace_s: float, most: int = MOST) -> list[ClassifiedBatch]:
    """The fate of each ledger object that is older than `grace_s`, by the chain of the newest head.

    Where a commit record is damaged, nothing older can be told: what is left there may be published yet, and stays.
    Cost: 1 LIST per 1,000 objects, 1 GET, 1 GET for each commit since the oldest of them, and 1 GET for each batch that
    is not among those; once a minute 1 PUT + 1 HEAD for the clock.
    """
    store, cell = storage.store, storage.head()
    before = store_time(store, cell.read) - timedelta(seconds=grace_s)
    listed = [*islice(store.list(storage.keys.ledger), most)]
    for tries in range(1, TRIES_MAX + 1):
        seen = cell.read()
        old = [stat for stat in listed if stat.modified < before]
        judging = _Classifier(storage, seen.value if seen else None, old)
        try:
            return judging.run()
        except Corrupt as error:  # or it was collected since this head was read
            after = cell.read()
            if tries == TRIES_MAX or after is None or seen is None or after.version == seen.version:
                _log.warning("what became of some ledger objects cannot be told: %s", error)
                return judging.leave_open()
    raise AssertionError


class _Classifier:
    """One walk of the chain, and the batches whose fate it has not told yet."""

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
        """What was told so far; the rest may be published yet."""
        self._end(BatchOutcome.OPEN, [*self._waiting])
        return self._found

    def _walk(self, head: CatalogHead) -> None:
        commit: CommitRecord | None = None
        for commit in log(self._storage, head):
            self._end(BatchOutcome.APPLIED, [path for path in commit.paths if path in self._waiting])
            if self._waiting and not self._batches and commit.id < str(self._storage.keys.batch_id(min(self._waiting))):
                self._read(head)  # older than all of them: the few that are left must be asked themselves
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
        """Read what is left; only what is sound and settled goes on waiting."""
        for path in [*self._waiting]:
            try:
                self._batches[path] = self._storage.batch(path)
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
