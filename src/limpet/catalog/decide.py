"""What the compactor decides, as pure functions: whether a batch may be published, and the head that follows.

The head alone decides. A batch is published once: its path is looked for among `applied` before anything else, so that
a request that comes twice, or too late, gets the answer of the one that worked (counterexamples 2 to 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from limpet.catalog.records import Applied, Batch, Commit, Head, Link, Row, SnapshotRef, Tail

__all__ = [
    "APPLIED_MAX",
    "Done",
    "Go",
    "NoHead",
    "Partly",
    "Publish",
    "Refused",
    "applied_in",
    "commit_of",
    "judge",
    "links_after",
    "next_head",
]

APPLIED_MAX = 16
TAIL_BYTES_MAX = 256 << 10


@dataclass(frozen=True, slots=True)
class Done:
    """It was published before, as this version."""

    version: int
    commit: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The head says that it is not published and never will be. `stale`: by its token, else by its version."""

    stale: bool
    message: str


@dataclass(frozen=True, slots=True)
class Go:
    """It may be published on exactly this head."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class NoHead:
    """There is no head: only an epoch may make the first one."""


@dataclass(frozen=True, slots=True)
class Partly:
    """Some of the paths were published and others not: no such request was ever made by a leader."""


def applied_in(head: Head | None, paths: Sequence[str]) -> Done | Partly | None:
    """What the head remembers of those batches; None if nothing."""
    known = {applied.path: applied for applied in (head.applied if head else ())}
    found = [known[path] for path in paths if path in known]
    if not found:
        return None
    if len(found) < len(paths) or len({each.version for each in found}) > 1:
        return Partly()
    return Done(found[0].version, found[0].commit)


def judge(head: Head | None, batches: Sequence[Batch], token: int) -> Go | Refused | NoHead:
    """Whether batches that the head does not remember may be published on it."""
    epoch = any(batch.base_version is None for batch in batches)
    for batch in batches:
        if batch.token != token:
            return Refused(True, f"the batch was written with token {batch.token}, not {token}")
    if head is None:
        return Go(_rows(batches)) if epoch else NoHead()
    if epoch:
        if token <= head.token:
            return Refused(True, f"token {token} is not above {head.token}, which has led already")
    elif token != head.token:
        return Refused(True, f"token {head.token} leads, not {token}")
    elif any(batch.base_version != head.version for batch in batches):
        return Refused(False, f"the batch was validated on another version than {head.version}")
    return Go(_rows(batches))


def _rows(batches: Sequence[Batch]) -> tuple[Row, ...]:
    return tuple(row for batch in batches for row in batch.rows)


@dataclass(frozen=True, slots=True)
class Publish:
    """One attempt to publish: what a new head is made of."""

    paths: tuple[str, ...]
    rows: tuple[Row, ...]
    token: int
    at: str
    commit: Link
    last_id: str
    snapshot: SnapshotRef | None
    """A new snapshot: what it holds leaves the tail. It may hold these rows too."""


def links_after(head: Head | None) -> tuple[Link, ...]:
    """What the next commit points back to: the last one, then for each power of two the last multiple of it.

    So any older commit is reached in about as many steps as its distance has bits.
    """
    if head is None or not head.links:
        return ()
    kept: list[Link] = [head.links[0]]
    step = 2
    while step <= head.links[0].version:
        wanted = head.links[0].version // step * step
        kept += [link for link in head.links if link.version == wanted and link not in kept]
        step *= 2
    return tuple(kept)


def next_head(head: Head | None, publish: Publish) -> Head:
    """The head after a publication."""
    version = publish.commit.version
    applied = [*(head.applied if head else ()), *(Applied(path, version, publish.commit.id) for path in publish.paths)]
    snapshot = publish.snapshot or (head.snapshot if head else None)
    tail = (*(head.tail if head else ()), Tail(version, publish.at, publish.rows))
    return Head(
        version=version,
        token=publish.token,
        at=publish.at,
        links=(publish.commit, *links_after(head)),
        snapshot=snapshot,
        tail=tuple(each for each in tail if snapshot is None or each.version > snapshot.version),
        applied=tuple(applied[-APPLIED_MAX:]),
        last_id=publish.last_id,
        gc_floor=head.gc_floor if head else "",
    )


def commit_of(head: Head, domain: str) -> Commit | None:
    """The record of the head's own commit; None if a snapshot holds its rows, for then it is written already."""
    if not head.tail:
        return None
    return Commit(
        domain=domain,
        id=head.links[0].id,
        version=head.version,
        token=head.token,
        at=head.at,
        paths=tuple(applied.path for applied in head.applied if applied.version == head.version),
        rows=head.tail[-1].rows,
        links=head.links[1:],
        snapshot=head.snapshot,
    )
