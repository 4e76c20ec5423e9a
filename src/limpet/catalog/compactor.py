"""The compactor: the sole writer of heads, commits and snapshots.

It holds no state of its own and never lists to decide: everything follows from the head, the lock and the paths that it
is given. Any number may run, be killed at any point, and be asked the same thing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from limpet import records
from limpet.catalog.decide import (
    APPLIED_MAX,
    TAIL_BYTES_MAX,
    Done,
    Go,
    NoHead,
    PartlyPublished,
    Publish,
    RefusedBatch,
    applied_in,
    classify,
    commit_of,
    links_after,
    next_head,
    unusable,
)
from limpet.catalog.history import find_commit
from limpet.catalog.records import CatalogHead, CommitRecord, LedgerBatch, Row, SnapshotRef
from limpet.catalog.state import CatalogState, time_text
from limpet.catalog.storage import CatalogStorage, LoadedState, load
from limpet.cell import Cell, Replaced, Versioned, Won, struct_codec
from limpet.errors import Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.lease import LeaseRecord
from limpet.ledger import Publication, above

TRIES_MAX = 10
SNAPSHOT_EVERY = 200
EARLY = 0.5
"""At such a share of what makes a snapshot due, one is made beforehand."""


class PublicationRefused(LimpetError):
    """The head says no: this batch is not published and never will be."""

    default_hint = "load the catalog again and decide again"

    def __init__(self, refused: RefusedBatch) -> None:
        super().__init__(refused.message)
        self.stale = refused.stale


class Unreachable(Unavailable):
    """The compactor was told nothing."""


@dataclass(frozen=True, slots=True)
class _ReadySnapshot:
    """A snapshot that no head names yet, and what it holds."""

    ref: SnapshotRef
    loaded: LoadedState


class Compactor:
    """Publishes batches of one domain."""

    def __init__(self, storage: CatalogStorage) -> None:
        self._storage = storage
        self._head = storage.head()
        self._lock = Cell(storage.store, storage.keys.lock, struct_codec(LeaseRecord), storage.runtime)
        self._seen: Versioned[CatalogHead] | None = None
        self._settling = storage.runtime.mutex()
        self._settled = ""
        self._base: LoadedState | None = None
        self._ready: _ReadySnapshot | None = None

    def publish(self, paths: Sequence[str], token: int) -> Publication:
        """Publish those ledger objects as one commit, if the head allows it.

        Raises: Refusal (definite: decided on the head); Invalid for paths that are not batches of this domain;
        Unavailable if another token holds the lock (nothing was attempted, and that decides nothing); OutcomeUnknown.
        Cost: 1 PUT, 1 GET a path that this process did not write, 1 GET if another one swapped the head. Without
        `settle` beforehand 1 PUT more, and when a snapshot is due 2 PUTs, and 1 GET of the last one.
        Crash: published or not; at worst a snapshot that no head names, which GC removes.
        """
        self._check(paths)
        seen = self._seen
        if seen is not None:
            try:
                published = self._attempt(seen, paths, token)
            except (PublicationRefused, Invalid, Unavailable, Corrupt):
                published = None  # by a head that may be old: only the newest one decides
            if published is not None:
                return published
        for _ in range(TRIES_MAX):
            seen = self._seen = self._head.read()  # another thread may set the field at once, to an older one
            published = self._attempt(seen, paths, token)
            if published is not None:
                return published
        raise Unavailable("the head was swapped by others too often")

    def settle(self) -> None:
        """Write the record of the newest commit that this process knows, so that the next one need not wait for it.

        Raises: OutcomeUnknown; Unavailable.   Cost: 1 PUT, or 0.   Crash: whoever publishes next writes it.
        """
        seen = self._seen
        if seen is not None:
            self._settle(seen.value)

    def prepare(self) -> None:
        """Make a snapshot that will be due soon, so that no publication waits for it. One thread at a time.

        Raises: OutcomeUnknown; Unavailable; Missing if the head is no longer the newest one.
        Cost: 0; if it is time 1 PUT, and 1 GET of the last one if this process has not made it.
        Crash: at worst a snapshot that no head names, which GC removes.
        """
        seen = self._seen
        if seen is None or not _is_due(seen.value, (), share=EARLY) or self._ready_for(seen.value) is not None:
            return
        head, loaded = seen.value, self._forgetful(seen)
        id_ = above(self._storage.runtime.new_id(), max(head.last_id, head.gc_floor))
        self._ready = _ReadySnapshot(self._storage.add_snapshot(id_, loaded.state, head.version), loaded)

    def _ready_for(self, head: CatalogHead) -> _ReadySnapshot | None:
        """The snapshot that was made beforehand, if that head can use it. GC may have deleted one below the floor."""
        ready, known = self._ready, head.snapshot.version if head.snapshot else 0
        if ready is None or not known < ready.ref.version <= head.version or ready.ref.id < head.gc_floor:
            return None
        return ready

    def _forgetful(self, seen: Versioned[CatalogHead]) -> LoadedState:
        """The state of a head, without answers that are too old.   Raises: Missing; Corrupt."""
        return LoadedState(seen, load(self._storage, seen, self._base).state.forgetting(seen.value.at))

    def _settle(self, head: CatalogHead) -> None:
        with self._settling:  # whoever comes second waits for the same write, and need not make it
            commit = commit_of(head, self._storage.keys.domain)
            if commit is not None and self._settled != head.links[0].id:
                self._storage.add_commit(head.links[0], commit)
                self._settled = head.links[0].id

    def _check(self, paths: Sequence[str]) -> None:
        if not paths or len({*paths}) != len(paths) or len(paths) > APPLIED_MAX:
            raise Invalid(f"give 1 to {APPLIED_MAX} paths, and none twice")
        for path in paths:
            if self._storage.keys.batch_id(path) is None:
                raise Invalid(f"{path!r} is not a batch of this catalog")

    def _attempt(self, seen: Versioned[CatalogHead] | None, paths: Sequence[str], token: int) -> Publication | None:
        """One try on one head; None: the head moved, look again."""
        head = seen.value if seen else None
        done = applied_in(head, paths)
        if isinstance(done, Done):
            return Publication(done.version, done.commit)
        if isinstance(done, PartlyPublished):
            raise Invalid("some of the paths were published before, and others not")
        if head is None or head.token < token:
            self._demand_lock(token)  # the head vouches for a token that has led; for a new one the lock does
        batches = self._batches(paths)
        match classify(head, batches, token):
            case RefusedBatch() as refused:
                return self._published_long_ago(head, batches, paths) or _refuse(refused)
            case NoHead():
                raise PublicationRefused(RefusedBatch(False, "there is no catalog here yet"))
            case Go(rows):
                if head is not None:
                    self._settle(head)
                elif not self._storage.is_empty():
                    self._demand_moved(seen, "the head is missing, and there are commits")
                    return None
                try:
                    new, state = self._build(seen, tuple(paths), rows, token)
                except Missing as error:
                    self._demand_moved(seen, f"the newest head names an object that is not there: {error}")
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

    def _demand_moved(self, seen: Versioned[CatalogHead] | None, wrong: str) -> None:
        """What is wrong with a head is no wonder if it is not the newest.   Raises: Corrupt if it is."""
        now = self._head.read()
        if (now.version if now else None) == (seen.version if seen else None):
            raise Corrupt(wrong, hint="restore it from a backup")

    def _held(self, new: CatalogHead, after: Versioned[CatalogHead], state: CatalogState | None) -> LoadedState | None:
        """The newest state in memory that a later head's tail reaches back to."""
        if state is not None:
            return LoadedState(after, state)
        ready = self._ready
        return ready.loaded if ready and new.snapshot == ready.ref else self._base

    def _demand_lock(self, token: int) -> None:
        holder = self._lock.read()
        if holder is None or holder.value.token != token:
            raise Unavailable("another process holds the lock, or none", hint="send the same request again")

    def _published_long_ago(
        self, head: CatalogHead | None, batches: Sequence[LedgerBatch], paths: Sequence[str]
    ) -> Publication | None:
        """What the chain knows of batches that may have been published so long ago that the head forgot them.

        Raises: OutcomeUnknown if that is no longer kept.   Cost: 0; for an old `base_version` some GETs.
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
            raise OutcomeUnknown(f"whether it was published is no longer kept: {error}") from None
        return Publication(commit.version, commit.id) if set(commit.paths) == set(paths) else None

    def _batches(self, paths: Sequence[str]) -> list[LedgerBatch]:
        batches: list[LedgerBatch] = []
        for path in paths:
            try:
                batch = self._storage.batch(path)
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
        """The next head; if it comes with a snapshot of itself, that state. New objects have names above all it knows.

        Counterexamples 9 and 10: no two attempts share a name, and one whose swap is lost to GC starts from the floor.
        """
        head, storage = seen.value if seen else None, self._storage
        version = head.version + 1 if head else 1
        at = max(time_text(storage.store.now()), head.at if head else "")
        id_ = above(storage.runtime.new_id(), max(head.last_id, head.gc_floor) if head else "")
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
        publish = Publish(paths, rows, token, at, storage.link(commit), id_, ready.ref if ready else None)
        new = next_head(head, publish)
        if seen is None or not _is_due(seen.value, rows, share=1.0) or (ready and not _is_due(new, (), share=1.0)):
            return new, None
        state = self._forgetful(seen).state.after(rows, at)
        snapshot_id = above(storage.runtime.new_id(), id_)
        snapshot = storage.add_snapshot(snapshot_id, state, version)
        commit = msgspec.structs.replace(commit, snapshot=snapshot)
        storage.add_commit(storage.link(commit), commit)
        return next_head(head, Publish(paths, rows, token, at, storage.link(commit), snapshot_id, snapshot)), state


def _is_due(head: CatalogHead, rows: tuple[Row, ...], *, share: float) -> bool:
    """Whether the tail, with those rows, is longer than it should be, or than that share of it."""
    if len(head.tail) >= SNAPSHOT_EVERY * share:
        return True
    return len(records.encode(head.tail)) + len(records.encode(rows)) > TAIL_BYTES_MAX * share


def _refuse(refused: RefusedBatch) -> NoReturn:
    raise PublicationRefused(refused)
