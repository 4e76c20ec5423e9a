"""Garbage collection: names that no retained head reaches are deleted, after the head says so.

First `gc_floor` is swapped into the head, then names below it go. Whoever was about to publish an older name loses that
swap and begins anew above the floor (counterexample 10). Table data is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from limpet.catalog.anti_entropy import MOST, BatchFate, classify_ledger, store_time
from limpet.catalog.executions import EventHead, Executions
from limpet.catalog.history import find_commit
from limpet.catalog.records import CatalogHead, CommitRecord, SnapshotRef, moment
from limpet.catalog.storage import CatalogStorage, delete_all, newest_head
from limpet.errors import Corrupt, Invalid, Missing
from limpet.keys import Key
from limpet.store.api import Stat

TRIES_MAX = 3
GRACE_S = 3600.0

_SETTLED = (BatchFate.APPLIED, BatchFate.DEAD, BatchFate.PAST)


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
    """Delete batches of the catalog that are settled and older than `grace_s`. For the API.

    What it cannot read stays. The grace time must exceed the patience of a leader, which asks for them again.
    Cost: as `classify_ledger`, and 1 DELETE each.   Crash: the rest goes next time.
    """
    found = classify_ledger(storage, grace_s=grace_s, most=most)
    settled = {fate: [Key(each.path) for each in found if each.fate is fate] for fate in _SETTLED}
    delete_all(storage.store, [key for keys in settled.values() for key in keys])
    return Ledger(*map(len, settled.values()))


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


def garbage(head: EventHead, listed: Iterable[Stat], ids: Iterable[str | None], before: datetime) -> list[str]:
    """The files of events that no head names: merged before that time, or written before it and never named."""
    named = {file.id for file in head.files}
    merged = {gone.id: moment(gone.at) for gone in head.gone}
    return [
        id_
        for stat, id_ in zip(listed, ids, strict=True)
        if id_ is not None and id_ not in named and merged.get(id_, stat.modified) < before
    ]


def collect_events(executions: Executions, *, grace_s: float = GRACE_S) -> int:
    """Delete files of events that were merged into others, or that no head ever named; how many. For the compactor.

    Before it deletes it swaps the head: whoever was about to name one of them loses, and begins anew with new names.
    Raises: OutcomeUnknown (do it again).   Cost: 1 GET, 1 LIST per 1,000 files; if there is garbage 1 GET + 1 PUT, and
    1 DELETE each.   Crash: the rest goes next time.
    """
    cell, store, keys = executions.cell(), executions.store, executions.keys
    before = store_time(store, cell.read) - timedelta(seconds=grace_s)
    seen = cell.read()
    if seen is None:
        return 0
    listed = [*store.list(keys.states)]
    doomed = {*garbage(seen.value, listed, [keys.id_of(stat.key) for stat in listed], before)}
    if not doomed:
        return 0

    def cleared(head: EventHead | None) -> EventHead | None:
        if head is None:
            return None
        return msgspec.structs.replace(head, gone=tuple(each for each in head.gone if each.id not in doomed))

    after = cell.update(cleared)
    if after is None:
        return 0
    doomed -= {file.id for file in after.value.files}  # named between the listing and the swap
    delete_all(store, [keys.state(id_) for id_ in sorted(doomed)])
    return len(doomed)
