"""The compactor: the sole writer of heads, commits and snapshots.

It holds no state of its own and never lists to decide: everything follows from the head, the lock and the paths that it
is given. Any number may run, be killed at any point, and be asked the same thing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from limpet import records
from limpet.catalog.decide import (
    TAIL_BYTES_MAX,
    Done,
    Go,
    NoHead,
    Partly,
    Publish,
    Refused,
    applied_in,
    judge,
    links_after,
    next_head,
)
from limpet.catalog.records import Batch, Commit, Head, Row, SnapshotRef
from limpet.catalog.storage import Storage, above
from limpet.catalog.view import load
from limpet.cell import Cell, Replaced, Seen, Won, struct_codec
from limpet.errors import Corrupt, Invalid, LimpetError, Missing, Unavailable
from limpet.lease import LeaseRecord

__all__ = ["Compactor", "Published", "Refusal"]

TRIES_MAX = 10
SNAPSHOT_EVERY = 200


@dataclass(frozen=True, slots=True)
class Published:
    """The answer to a publication: the same for whoever asks again."""

    version: int
    commit: str


class Refusal(LimpetError):
    """The head says no: this batch is not published and never will be."""

    default_hint = "load the catalog again and decide again"

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.stale = refused.stale


class Compactor:
    """Publishes batches of one domain."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._head = storage.head()
        self._lock = Cell(storage.store, storage.keys.lock, struct_codec(LeaseRecord), storage.runtime)

    def publish(self, paths: Sequence[str], token: int) -> Published:
        """Publish those ledger objects as one commit, if the head allows it.

        Raises: Refusal (definite: decided on the head); Invalid for paths that are not batches of this domain;
        Unavailable if another token holds the lock (nothing was attempted, and that decides nothing); OutcomeUnknown.
        Cost: 2 GETs, 1 GET a path, 2 PUTs; with a snapshot 1 PUT more, and 1 GET of the old one.
        Crash: published or not; at worst objects that no head names, which GC removes.
        """
        self._check(paths)
        for _ in range(TRIES_MAX):
            seen = self._head.read()
            done = applied_in(seen.value if seen else None, paths)
            if isinstance(done, Done):
                return Published(done.version, done.commit)
            if isinstance(done, Partly):
                raise Invalid("some of the paths were published before, and others not")
            published = self._attempt(seen, paths, token)
            if published is not None:
                return published
        raise Unavailable("the head was swapped by others too often")

    def _check(self, paths: Sequence[str]) -> None:
        if not paths or len({*paths}) != len(paths):
            raise Invalid("give at least one path, and none twice")
        for path in paths:
            if self._storage.keys.batch_id(path) is None:
                raise Invalid(f"{path!r} is not a batch of this catalog")

    def _attempt(self, seen: Seen[Head] | None, paths: Sequence[str], token: int) -> Published | None:
        """One try on one head; None: the head moved, look again."""
        holder = self._lock.read()
        if holder is None or holder.value.token != token:
            raise Unavailable("another process holds the lock, or none", hint="send the same request again")
        head = seen.value if seen else None
        match judge(head, self._batches(paths), token):
            case Refused() as refused:
                raise Refusal(refused)
            case NoHead():
                raise Refusal(Refused(False, "there is no catalog here yet"))
            case Go(rows):
                if head is None and not self._storage.is_empty():
                    raise Corrupt("the head is missing, and there are commits", hint="restore manifests/ from a backup")
                new = self._build(seen, tuple(paths), rows, token)
        match self._head.attempt(seen, new):
            case Won() | Replaced():
                return Published(new.version, new.links[0].id)
            case _:
                return None

    def _batches(self, paths: Sequence[str]) -> list[Batch]:
        batches: list[Batch] = []
        for path in paths:
            try:
                batch = self._storage.batch(path)
            except Missing:
                raise Invalid(f"there is no batch {path}") from None
            except Corrupt as error:
                raise Invalid(str(error)) from None
            if batch.domain != self._storage.keys.domain:
                raise Invalid(f"{path} is a batch of the domain {batch.domain!r}")
            batches.append(batch)
        return batches

    def _build(self, seen: Seen[Head] | None, paths: tuple[str, ...], rows: tuple[Row, ...], token: int) -> Head:
        """Write a commit record, and a snapshot if it is time, under new names above all that the head knows."""
        head = seen.value if seen else None
        version = head.version + 1 if head else 1
        runtime = self._storage.runtime
        id_ = above(runtime.new_id(), max(head.last_id, head.gc_floor) if head else "")
        at = max(runtime.wall().isoformat(timespec="microseconds"), head.at if head else "")
        snapshot: SnapshotRef | None = None
        if seen is not None and self._is_time(seen.value, rows):
            state = load(self._storage, seen, None).state
            state.apply(rows)
            state.forget(at)
            snapshot = self._storage.add_snapshot(id_, state, version)
            id_ = above(runtime.new_id(), id_)
        commit = Commit(
            domain=self._storage.keys.domain,
            version=version,
            token=token,
            at=at,
            paths=paths,
            rows=rows,
            links=links_after(head),
            snapshot=snapshot or (head.snapshot if head else None),
        )
        link = self._storage.add_commit(id_, commit)
        return next_head(head, Publish(paths, rows, token, at, link, id_, snapshot))

    def _is_time(self, head: Head, rows: tuple[Row, ...]) -> bool:
        if len(head.tail) >= SNAPSHOT_EVERY:
            return True
        return len(records.encode(head.tail)) + len(records.encode(rows)) > TAIL_BYTES_MAX
