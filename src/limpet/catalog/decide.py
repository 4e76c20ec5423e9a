"""What the compactor decides, as pure functions: whether a batch may be published, and the head that follows.

The head alone decides. A batch is published once: its path is looked for among `applied` before anything else, so that
a request that comes twice, or too late, gets the answer of the one that worked (counterexamples 2 to 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from limpet.catalog.records import CatalogHead, Change, CommitRecord, LedgerBatch, Link, Row, SnapshotRef, Tail
from limpet.catalog.state import check_name, key_of, parsed
from limpet.errors import Invalid
from limpet.ledger import AppliedBatch

APPLIED_MAX = 16
TAIL_BYTES_MAX = 256 << 10
PATH_CHARACTERS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Done:
    """It was published before, as this version."""

    version: int
    commit: str


@dataclass(frozen=True, slots=True)
class RefusedBatch:
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
class PartlyPublished:
    """Some of the paths were published and others not: no such request was ever made by a leader."""


def applied_in(head: CatalogHead | None, paths: Sequence[str]) -> Done | PartlyPublished | None:
    """What the head remembers of those batches; None if nothing."""
    known = {applied.path: applied for applied in (head.applied if head else ())}
    found = [known[path] for path in paths if path in known]
    if not found:
        return None
    if len(found) < len(paths) or len({each.version for each in found}) > 1:
        return PartlyPublished()
    return Done(found[0].version, found[0].commit)


def classify(head: CatalogHead | None, batches: Sequence[LedgerBatch], token: int) -> Go | RefusedBatch | NoHead:
    """Whether batches that the head does not remember may be published on it."""
    epoch = any(batch.base_version is None for batch in batches)
    for batch in batches:
        if batch.token != token:
            return RefusedBatch(True, f"the batch was written with token {batch.token}, not {token}")
    if head is None:
        return Go(_rows(batches)) if epoch else NoHead()
    if epoch:
        if token <= head.token:
            return RefusedBatch(True, f"token {token} is not above {head.token}, which has led already")
    elif token != head.token:
        return RefusedBatch(True, f"token {head.token} leads, not {token}")
    elif any(batch.base_version != head.version for batch in batches):
        return RefusedBatch(False, f"the batch was validated on another version than {head.version}")
    return Go(_rows(batches))


def unusable(rows: Sequence[Row]) -> str | None:
    """Why no reader could use what these rows would publish; None if all can.

    A published row stays in the state for ever, so it is looked at before that, whoever wrote it. Keys of kinds that
    this version does not know are left alone: no reader of this version looks there.
    """
    for row in rows:
        if not row.id or not row.what:
            return "a row has no id, or does not say what it is"
        for change in row.changes:
            wrong = _wrong(change)
            if wrong is not None:
                return f"the entry {change.key[:100]!r} of request {row.id[:100]!r} {wrong}"
    return None


def _wrong(change: Change) -> str | None:
    """What is wrong with an entry: its key, or the value that it gets."""
    kind, slash, rest = change.key.partition("/")
    if not slash or kind not in ("n", "t", "v", "l", "p"):
        return None
    if kind in ("l", "p"):
        if not _is_path(rest):
            return "is of no folder"
        return None if change.value in (None, 1) else "has a value that is none of a folder's"
    if not _is_name_key(change.key):
        return "has no name that a table, view or namespace can have"
    value = change.value
    if value is None:
        return None
    if kind == "n":
        sound = isinstance(value, Mapping) and all(isinstance(each, str) for each in (*value.keys(), *value.values()))
        return None if sound else "has properties that are no texts"
    if not isinstance(value, list | tuple) or len(value) < 2 or not all(isinstance(each, str) for each in value):
        return "does not say where its metadata lies"
    return None if all(map(_is_path, value)) else "names a path that is none"


def _is_name_key(key: str) -> bool:
    """Whether a key is one that a name makes."""
    namespace, name = parsed(key)
    try:
        for level in (*namespace, name):
            check_name(level)
    except Invalid:
        return False
    kind = key[0]
    return (kind == "n" or bool(namespace)) and key == key_of(kind, namespace, name)  # type: ignore[arg-type]


def _is_path(path: str) -> bool:
    """Whether a text is a path below the warehouse: no segment is empty or leads upwards."""
    return len(path) <= PATH_CHARACTERS_MAX and all(part not in ("", ".", "..") for part in path.split("/"))


def _rows(batches: Sequence[LedgerBatch]) -> tuple[Row, ...]:
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


def links_after(head: CatalogHead | None) -> tuple[Link, ...]:
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


def next_head(head: CatalogHead | None, publish: Publish) -> CatalogHead:
    """The head after a publication."""
    version = publish.commit.version
    applied = [
        *(head.applied if head else ()),
        *(AppliedBatch(path, version, publish.commit.id) for path in publish.paths),
    ]
    snapshot = publish.snapshot or (head.snapshot if head else None)
    tail = (*(head.tail if head else ()), Tail(version, publish.at, publish.rows))
    return CatalogHead(
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


def commit_of(head: CatalogHead, domain: str) -> CommitRecord | None:
    """The record of the head's own commit; None if a snapshot holds its rows, for then it is written already."""
    if not head.tail:
        return None
    return CommitRecord(
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
