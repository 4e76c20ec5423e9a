"""Whether a batch may be published, and the head that follows, as pure functions.

The head alone decides. A batch is published once: its path is looked up in `applied` first, so that a repeated or late
request gets the answer of the successful one (counterexamples 2 to 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import msgspec

from limpet.catalog.names import Kind, check_name, key_of, parsed
from limpet.catalog.records import CatalogHead, Change, CommitRecord, LedgerBatch, Link, Row, SnapshotRef, Tail
from limpet.events.ledger import AppliedBatch, Publication
from limpet.kernel import records
from limpet.kernel.cell import Codec
from limpet.kernel.errors import Corrupt, Invalid
from limpet.kernel.records import digest_of

APPLIED_MAX = 16
TAIL_BYTES_MAX = 256 << 10
PATH_CHARACTERS_MAX = 4096
_ODD_SEGMENTS = frozenset(("", ".", ".."))


@dataclass(frozen=True, slots=True)
class RefusedBatch:
    """The batch is not published and never will be, by the head. `stale`: by its token, else by its version."""

    stale: bool
    message: str


@dataclass(frozen=True, slots=True)
class Go:
    """The batch may be published on exactly this head."""

    rows: tuple[Row, ...]


def applied_in(head: CatalogHead | None, paths: Sequence[str]) -> Publication | None:
    """How these batches were published, as far as the head remembers; None if it remembers none of them.

    Raises: Invalid if some were published and others not: no leader sends such a request.
    """
    known = {applied.path: applied for applied in (head.applied if head else ())}
    found = [known[path] for path in paths if path in known]
    if not found:
        return None
    if len(found) < len(paths) or len({each.version for each in found}) > 1:
        raise Invalid("some of the paths were published before, and others not")
    return Publication(found[0].version, found[0].commit)


def classify(head: CatalogHead | None, batches: Sequence[LedgerBatch], token: int) -> Go | RefusedBatch:
    """Whether batches that the head does not remember may be published on it. Only an epoch makes the first head."""
    base_versions = {batch.base_version for batch in batches}
    epoch = None in base_versions
    for batch in batches:
        if batch.token != token:
            return RefusedBatch(True, f"the batch was written with token {batch.token}, not {token}")
    if head is None:
        return Go(_rows(batches)) if epoch else RefusedBatch(False, "there is no catalog here yet")
    if epoch:
        if token <= head.token:
            return RefusedBatch(True, f"token {token} is not above {head.token}, which has led already")
    elif token != head.token:
        return RefusedBatch(True, f"token {head.token} leads, not {token}")
    elif base_versions - {head.version}:
        return RefusedBatch(False, f"the batch was validated on another version than {head.version}")
    return Go(_rows(batches))


def unusable(rows: Sequence[Row]) -> str | None:
    """Why readers could not use these rows; None if they can.

    A published row stays in the state for ever, so it is checked before. Keys of unknown kinds are ignored: readers of
    this version do not use them.
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
    """What is wrong with a change: its key, or its value."""
    kind, slash, rest = change.key.partition("/")
    if not slash or kind not in ("n", "t", "v", "l", "p"):
        return None
    if kind in ("l", "p"):
        if not _is_path(rest):
            return "is not a folder"
        return None if change.value in (None, 1) else "has an invalid value for a folder"
    if not _is_name_key(change.key):
        return "has an invalid name of a table, view or namespace"
    value = change.value
    if value is None:
        return None
    if kind == "n":
        sound = isinstance(value, Mapping) and {*map(type, value), *map(type, value.values())} <= {str}
        return None if sound else "has properties that are not strings"
    if not isinstance(value, list | tuple) or len(value) < 2 or {*map(type, value)} != {str}:
        return "does not name its metadata"
    return None if all(map(_is_path, value)) else "names an invalid path"


@lru_cache(maxsize=1024)
def _is_name_key(key: str) -> bool:
    """Whether a key is the key of a valid name. Cached, since leader and compactor both check it."""
    namespace, name = parsed(key)
    try:
        for level in (*namespace, name):
            check_name(level)
    except Invalid:
        return False
    kind = cast(Kind, key[0])  # checked by the caller
    return (kind == "n" or bool(namespace)) and key == key_of(kind, namespace, name)


def _is_path(path: str) -> bool:
    """Whether a text is a valid path below the warehouse: no segment is empty, `.` or `..`."""
    return len(path) <= PATH_CHARACTERS_MAX and _ODD_SEGMENTS.isdisjoint(path.split("/"))


def _rows(batches: Sequence[LedgerBatch]) -> tuple[Row, ...]:
    return (*[row for batch in batches for row in batch.rows],)


@dataclass(frozen=True, slots=True)
class Publish:
    """One attempt to publish: the parts of the new head."""

    paths: tuple[str, ...]
    rows: tuple[Row, ...]
    token: int
    at: str
    commit: Link
    last_id: str
    snapshot: SnapshotRef | None
    """A new snapshot: its commits are removed from the tail. It may include these rows."""


def links_after(head: CatalogHead | None) -> tuple[Link, ...]:
    """The links of the next commit: to the last one, then for each power of two to its last multiple (a skip list).

    So any older commit is reached in a number of steps that is logarithmic in its distance.
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
        *[AppliedBatch(path, version, publish.commit.id) for path in publish.paths],
    ]
    snapshot = publish.snapshot or (head.snapshot if head else None)
    tail = (*(head.tail if head else ()), Tail(version, publish.at, publish.rows))
    return CatalogHead(
        version=version,
        token=publish.token,
        at=publish.at,
        links=(publish.commit, *links_after(head)),
        snapshot=snapshot,
        tail=(*[part for part in tail if snapshot is None or part.version > snapshot.version],),
        applied=tuple(applied[-APPLIED_MAX:]),
        last_id=publish.last_id,
        gc_floor=head.gc_floor if head else "",
    )


def commit_of(head: CatalogHead, domain: str) -> CommitRecord | None:
    """The record of the head's own commit; None if a snapshot contains its rows: then it is written already."""
    if not head.tail:
        return None
    return CommitRecord(
        domain=domain,
        id=head.links[0].id,
        version=head.version,
        token=head.token,
        at=head.at,
        paths=(*[applied.path for applied in head.applied if applied.version == head.version],),
        rows=head.tail[-1].rows,
        links=head.links[1:],
        snapshot=head.snapshot,
    )


def link_to(commit: CommitRecord) -> Link:
    """The link to a commit record."""
    return Link(commit.version, commit.id, digest_of(records.encode(commit)))


def _sealed(head: CatalogHead) -> CatalogHead:
    bare = msgspec.structs.replace(head, seal="")
    return msgspec.structs.replace(bare, seal=digest_of(records.encode(bare)))


def _unsealed(data: bytes, what: str) -> CatalogHead:
    sealed = records.decode(data, CatalogHead, what=what)
    head = msgspec.structs.replace(sealed, seal="")
    if sealed.seal != digest_of(records.encode(head)):
        raise Corrupt(f"{what} was modified: its digest differs", hint="restore it from a backup")
    return head


HEADS: Codec[CatalogHead] = Codec(CatalogHead, _sealed, _unsealed)
"""The stored form of a head: with its seal."""
