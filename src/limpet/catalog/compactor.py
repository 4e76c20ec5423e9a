"""The compactor: the only writer of heads, commits and snapshots.

It is stateless, and does not decide by listings: everything follows from the head, the lock and the given paths. Any
number may run, be killed at any point, and get the same request twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from limpet.catalog.heads import (
    APPLIED_MAX,
    TAIL_BYTES_MAX,
    Go,
    Publish,
    RefusedBatch,
    applied_in,
    classify,
    commit_of,
    link_to,
    links_after,
    next_head,
    unusable,
)
from limpet.catalog.history import find_commit
from limpet.catalog.records import CatalogHead, CommitRecord, LedgerBatch, Link, Row, SnapshotRef, Tail
from limpet.catalog.state import CatalogState, time_text
from limpet.catalog.storage import CatalogStorage, LoadedState, load
from limpet.events.ledger import OBJECT_BYTES_MAX, Publication
from limpet.kernel import records
from limpet.kernel.cell import Cell, Replaced, Versioned, Won, struct_codec
from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.lease import LeaseRecord
from limpet.kernel.records import digest_of
from limpet.kernel.runtime import ulid_above
from limpet.kernel.store.api import Absent
from limpet.kernel.store.outcome import put_bytes
from limpet.kernel.waiting import attempts

SNAPSHOT_EVERY = 500
"""A snapshot is due after this many commits. With more, every head is longer; with fewer, snapshots take a larger share
of the CPU time: at 100,000 tables one takes as much as 60 commits (0006)."""
EARLY = 0.5
"""At this share of the limits that make a snapshot due, one is prepared in advance."""


class PublicationRefused(LimpetError):
    """The head refuses the batch: it is not published and never will be."""

    default_hint = "load the catalog again and decide again"

    def __init__(self, refused: RefusedBatch) -> None:
        super().__init__(refused.message)
        self.stale = refused.stale


class Unreachable(Unavailable):
    """The compactor was not reached: it does not know the batch."""


@dataclass(frozen=True, slots=True)
class _ReadySnapshot:
    """A snapshot that no head refers to yet, and its state."""

    ref: SnapshotRef
    loaded: LoadedState


class Compactor:
    """Publishes batches of one domain."""

    def __init__(self, storage: CatalogStorage) -> None:
        self._storage = storage
        self._head = storage.head()
        self._lock = Cell(storage.store, storage.keys.lock, struct_codec(LeaseRecord), storage.runtime)
        self._seen: Versioned[CatalogHead] | None = None
        self._recording = storage.runtime.mutex()
        self._recorded = ""
        self._base: LoadedState | None = None
        self._ready: _ReadySnapshot | None = None
        self._measured: tuple[tuple[Tail, ...], int] = (), len(records.encode(()))

    def publish(self, paths: Sequence[str], token: int) -> Publication:
        """Publish those ledger objects as one commit, if the head allows it.

        Raises: PublicationRefused (definite: by the head); Invalid for paths that are not batches of this domain;
        Unavailable if another token holds the lock (nothing was attempted, and it may be repeated); OutcomeUnknown.
        Cost: 1 PUT, 1 GET a path that this process did not write, 1 GET if another one swapped the head. Without a
        `record` before, 1 PUT more; when a snapshot is due, 2 PUTs, and 1 GET of the last one unless it is in memory.
        Crash: published or not; at worst an unused snapshot remains, which GC removes.
        """
        if not paths or len({*paths}) != len(paths) or len(paths) > APPLIED_MAX:
            raise Invalid(f"give 1 to {APPLIED_MAX} paths, and none twice")
        for path in paths:
            if self._storage.keys.batch_id(path) is None:
                raise Invalid(f"{path!r} is not a batch of this catalog")
        seen = self._seen
        if seen is not None:
            try:
                published = self._attempt(seen, paths, token)
            except (PublicationRefused, Invalid, Unavailable, Corrupt):
                published = None  # the head in memory may be old: only the newest one decides
            if published is not None:
                return published
        for _ in attempts(self._storage.runtime, pause_s=0):
            seen = self._seen = self._head.read()  # another thread may set the field to an older one concurrently
            published = self._attempt(seen, paths, token)
            if published is not None:
                return published
        raise Unavailable("too many concurrent swaps of the head")

    def record(self) -> None:
        """Write the record of the newest known commit, so that the next publication need not wait for it.

        Raises: OutcomeUnknown; Unavailable.   Cost: 1 PUT, or 0.   Crash: the next publication writes it.
        """
        seen = self._seen
        if seen is not None:
            self._record(seen.value)

    def prepare(self) -> None:
        """Write a snapshot that will be due soon, so that no publication waits for it. One thread at a time.

        Raises: OutcomeUnknown; Unavailable; Missing if the head is no longer the newest one.
        Cost: 0; if it is due soon, 1 PUT, and 1 GET of the last one if this process has neither written nor read it.
        Crash: at worst an unused snapshot remains, which GC removes.
        """
        seen = self._seen
        if seen is None or not self._is_due(seen.value, (), share=EARLY) or self._ready_for(seen.value) is not None:
            return
        head, loaded = seen.value, self._forgetful(seen)
        id_ = ulid_above(self._storage.runtime.new_id(), max(head.last_id, head.gc_floor))
        self._ready = _ReadySnapshot(self._add_snapshot(id_, loaded.state, head.version), loaded)

    def _ready_for(self, head: CatalogHead) -> _ReadySnapshot | None:
        """The prepared snapshot, if this head can use it. GC may have deleted one below the floor."""
        ready, known = self._ready, head.snapshot.version if head.snapshot else 0
        if ready is None or not known < ready.ref.version <= head.version or ready.ref.id < head.gc_floor:
            return None
        return ready

    def _forgetful(self, seen: Versioned[CatalogHead]) -> LoadedState:
        known = self._base or self._storage.recent.loaded
        return LoadedState(seen, load(self._storage, seen, known).state.forgetting(seen.value.at))

    def _record(self, head: CatalogHead) -> None:
        with self._recording:  # a concurrent caller waits for the same write instead of repeating it
            if self._recorded == head.links[0].id:
                return
            commit = commit_of(head, self._storage.keys.domain)
            if commit is not None:
                self._add_commit(head.links[0], commit)
                self._recorded = head.links[0].id

    def _attempt(self, seen: Versioned[CatalogHead] | None, paths: Sequence[str], token: int) -> Publication | None:
        """One attempt on one head; None: the head has changed, read it again."""
        head = seen.value if seen else None
        done = applied_in(head, paths)
        if done is not None:
            return done
        if head is None or head.token < token:
            self._check_lock(token)  # a token in the head has led; a new one must hold the lock
        batches = self._batches(paths)
        match classify(head, batches, token):
            case RefusedBatch() as refused:
                published = self._published_long_ago(head, batches, paths)
                if published is None:
                    raise PublicationRefused(refused)
                return published
            case Go(rows):
                if head is not None:
                    self._record(head)
                elif not self._storage.is_empty():
                    self._check_moved(seen, "the head is missing, and there are commits")
                    return None
                try:
                    new, state = self._build(seen, tuple(paths), rows, token)
                except Missing as error:
                    self._check_moved(seen, f"an object of the newest head is missing: {error}")
                    return None
        match self._head.attempt(seen, new):
            case Won(after):
                self._seen = after
                self._base = self._held(new, after, state)
                return Publication(new.version, new.links[0].id)
            case Replaced(now=after):
                self._seen = after
                return Publication(new.version, new.links[0].id)
            case _:
                return None

    def _check_moved(self, seen: Versioned[CatalogHead] | None, wrong: str) -> None:
        """A problem is expected if the head is not the newest any more.   Raises: Corrupt if it is."""
        now = self._head.read()
        if (now.version if now else None) == (seen.version if seen else None):
            raise Corrupt(wrong, hint="restore it from a backup")

    def _held(self, new: CatalogHead, after: Versioned[CatalogHead], state: CatalogState | None) -> LoadedState | None:
        """The newest state in memory that the tail of a later head can continue."""
        if state is not None:
            return LoadedState(after, state)
        ready = self._ready
        return ready.loaded if ready and new.snapshot == ready.ref else self._base

    def _check_lock(self, token: int) -> None:
        holder = self._lock.read()
        if holder is None or holder.value.token != token:
            raise Unavailable("this token does not hold the lock", hint="send the same request again")

    def _published_long_ago(
        self, head: CatalogHead | None, batches: Sequence[LedgerBatch], paths: Sequence[str]
    ) -> Publication | None:
        """Look up batches in the chain that may have been published too long ago for the head to remember them.

        Raises: OutcomeUnknown if that history was collected.   Cost: 0; for an old `base_version` some GETs.
        """
        base = batches[0].base_version
        if (
            head is None
            or base is None
            or base >= head.version
            or base + 1 >= min(each.version for each in head.applied)
        ):
            return None
        try:
            commit = find_commit(self._storage, head, lambda each: each.version <= base + 1)
        except Missing as error:
            raise OutcomeUnknown(f"the history of the batch was collected: {error}") from None
        return Publication(commit.version, commit.id) if set(commit.paths) == set(paths) else None

    def _batches(self, paths: Sequence[str]) -> list[LedgerBatch]:
        batches: list[LedgerBatch] = []
        for path in paths:
            try:
                batch = self._storage.recent.batches.get(path) or self._storage.batch(path)
            except Missing:
                raise Invalid(f"there is no batch {path}") from None
            except Corrupt as error:
                raise Invalid(str(error)) from None
            if batch.domain != self._storage.keys.domain:
                raise Invalid(f"{path} is a batch of the domain {batch.domain!r}")
            wrong = unusable(batch.rows)
            if wrong is not None:
                raise Invalid(f"{path} is not published: {wrong}")
            batches.append(batch)
        return batches

    def _build(
        self, seen: Versioned[CatalogHead] | None, paths: tuple[str, ...], rows: tuple[Row, ...], token: int
    ) -> tuple[CatalogHead, CatalogState | None]:
        """The next head, and its state if it comes with a new snapshot. New names are above all names in the head.

        Counterexamples 9 and 10: attempts never share a name, and after a swap lost to GC one starts above the floor.
        """
        head, storage = seen.value if seen else None, self._storage
        version = head.version + 1 if head else 1
        at = max(time_text(storage.store.now()), head.at if head else "")
        id_ = ulid_above(storage.runtime.new_id(), max(head.last_id, head.gc_floor) if head else "")
        ready = self._ready_for(head) if head else None
        snapshot = ready.ref if ready else head.snapshot if head else None
        commit = CommitRecord(
            domain=storage.keys.domain,
            id=id_,
            version=version,
            token=token,
            at=at,
            paths=paths,
            rows=rows,
            links=links_after(head),
            snapshot=snapshot,
        )
        publish = Publish(paths, rows, token, at, link_to(commit), id_, ready.ref if ready else None)
        new = next_head(head, publish)
        if seen is None or not self._is_due(seen.value, rows, share=1.0):
            return new, None
        if ready is not None and not self._is_due(new, (), share=1.0):
            return new, None
        state = self._forgetful(seen).state.after(rows, at)
        snapshot_id = ulid_above(storage.runtime.new_id(), id_)
        snapshot = self._add_snapshot(snapshot_id, state, version)
        commit = msgspec.structs.replace(commit, snapshot=snapshot)
        link = link_to(commit)
        self._add_commit(link, commit)
        return next_head(head, Publish(paths, rows, token, at, link, snapshot_id, snapshot)), state

    def _add_commit(self, link: Link, commit: CommitRecord) -> None:
        """Write the commit record of `link`; every process writes the same bytes.

        Raises: Corrupt if other bytes are there; OutcomeUnknown.   Cost: 1 PUT.
        """
        storage = self._storage
        if link_to(commit) != link:
            raise Corrupt(f"{storage.keys.head} does not match its own commit")
        key, data = storage.keys.commit(link.id), records.encode(commit)
        try:
            put_bytes(storage.store, storage.runtime, key, data, Absent())
        except OutcomeUnknown:
            with suppress(Missing):
                if storage.store.get(key, size_max=OBJECT_BYTES_MAX).data != data:
                    raise Corrupt(f"{key} does not match the head", hint="delete it: it is written again") from None
            raise

    def _add_snapshot(self, id_: str, state: CatalogState, version: int) -> SnapshotRef:
        storage, data = self._storage, self._storage.codec.to_bytes(state)
        put_bytes(storage.store, storage.runtime, storage.keys.snapshot(id_), data, Absent())
        return SnapshotRef(id_, digest_of(data), version, len(data))

    def _is_due(self, head: CatalogHead, rows: tuple[Row, ...], *, share: float) -> bool:
        """Whether the tail with these rows exceeds this share of the limits."""
        if len(head.tail) >= SNAPSHOT_EVERY * share:
            return True
        return self._tail_bytes(head.tail) + len(records.encode(rows)) > TAIL_BYTES_MAX * share

    def _tail_bytes(self, tail: tuple[Tail, ...]) -> int:
        """The encoded size of a tail. One that grew by a commit is not encoded again: versions are consecutive, so
        tails with the same ends are equal."""
        known, size = self._measured
        if tail is not known:
            ends = tail[0] is known[0] and tail[-2] is known[-1] if known and len(tail) == len(known) + 1 else False
            size = size + len(b",") + len(records.encode(tail[-1])) if ends else len(records.encode(tail))
            self._measured = tail, size
        return size
