"""Anti-entropy: the only place that lists the ledger. It finds what nobody handed over, and what nobody ever will.

Events of `executions` are handed to the compactor, by name. Batches of `catalog` never are: one that no head applied
was never acknowledged, and is only reported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from itertools import islice

from limpet.catalog.compactor import Publisher
from limpet.catalog.history import log
from limpet.catalog.records import CatalogHead, CommitRecord, LedgerBatch
from limpet.catalog.storage import OBJECT_BYTES_MAX, CatalogStorage, delete_all
from limpet.errors import Corrupt, Denied, Invalid, Missing
from limpet.keys import CatalogKeys
from limpet.store.api import Stat, Store

PATHS_MAX = 64
BYTES_MAX = 16 << 20
MOST = 10_000
CLOCK_AGE_S = 60.0
TRIES_MAX = 3

_log = logging.getLogger("limpet.catalog")


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What a pass over the events found: batches that were handed over and removed, and objects that are no batch, or
    too large for one, or that the compactor does not take. Those stay where they are."""

    batches: int
    strays: int


def hand_over(store: Store, keys: CatalogKeys, publish: Publisher, *, most: int = MOST) -> HandedOver:
    """Have the batches of events that wait folded, and remove each from the ledger once that is published.

    One that the compactor does not take holds up no other: then they are handed over one by one.
    Raises: Unavailable and the like; what was not folded still waits.   Cost: 1 LIST per 1,000 batches, 1 publication
    for each 64 of them or 16 MiB, 1 DELETE each.   Crash: what was folded and not removed is recognised by the next.
    """
    batches = strays = 0
    waiting: list[Stat] = []

    def send() -> None:
        nonlocal batches, strays
        groups = [[stat.key for stat in waiting]] if waiting else []
        waiting.clear()
        while groups:
            keys_ = groups.pop(0)
            try:
                publish(keys_, 0)
            except (Invalid, Corrupt) as error:
                if len(keys_) > 1:
                    groups = [[key] for key in keys_]
                    continue
                _log.warning("the events in %s cannot be folded, and stay there: %s", keys_[0], error)
                batches, strays = batches - 1, strays + 1
                continue
            delete_all(store, keys_)

    for stat in islice(store.list(keys.ledger), most):
        if keys.batch_id(stat.key) is None or stat.size > OBJECT_BYTES_MAX:
            strays += 1  # it stays; the compactor would have to take all of it into memory (F32)
            continue
        if len(waiting) == PATHS_MAX or sum(each.size for each in waiting) + stat.size > BYTES_MAX:
            send()
        waiting.append(stat)
        batches += 1
    send()
    return HandedOver(batches, strays)


class BatchFate(Enum):
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
    fate: BatchFate
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


def store_time(store: Store, look: Callable[[], object]) -> datetime:
    """The store's time, asked for before anything old is read: in a quiet bucket that would be all that is known of it.

    A role that may not ask knows only what it has seen, at first the age of what `look` reads: it keeps things longer.
    Cost: 0; once a minute 1 PUT + 1 HEAD, or for such a role at first 1 GET.
    """
    try:
        return store.now(max_age_s=CLOCK_AGE_S)
    except Denied:
        look()
        return store.now()


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
        self._end(BatchFate.STRAY, [path for path in self._waiting if keys.batch_id(path) is None])
        if self._head is None:
            self._end(BatchFate.OPEN, [*self._waiting])
        elif self._waiting:
            self._walk(self._head)
        return self._found

    def leave_open(self) -> list[ClassifiedBatch]:
        """What was told so far; the rest may be published yet."""
        self._end(BatchFate.OPEN, [*self._waiting])
        return self._found

    def _walk(self, head: CatalogHead) -> None:
        commit: CommitRecord | None = None
        for commit in log(self._storage, head):
            self._end(BatchFate.APPLIED, [path for path in commit.paths if path in self._waiting])
            if self._waiting and not self._batches and commit.id < str(self._storage.keys.batch_id(min(self._waiting))):
                self._read(head)  # older than all of them: the few that are left must be asked themselves
            self._end(BatchFate.DEAD, self._met(commit))
            if not self._waiting:
                return
        if not self._batches:
            self._read(head)
        self._end(BatchFate.DEAD, self._met(commit))
        self._end(BatchFate.PAST, [*self._waiting])

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
                self._end(BatchFate.MALFORMED, [path])
            else:
                if not will_never_be(self._batches[path], head):
                    self._end(BatchFate.OPEN, [path])

    def _end(self, fate: BatchFate, paths: Sequence[str]) -> None:
        for path in paths:
            stat = self._waiting.pop(path)
            self._found.append(ClassifiedBatch(path, fate, stat.modified, self._batches.get(path)))
