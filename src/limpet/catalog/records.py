"""What the catalog writes: batches of events, commit records, and the head.

All of it has bounds: what is beyond them is `Corrupt`, whoever wrote it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from limpet.ledger import AppliedBatch, Moment
from limpet.records import Count, Digest, Name, Positive

SCHEMA = 1
ROWS_MAX = 65_536
CHANGES_MAX = 65_536
TAIL_MAX = 4096
APPLIED_KEPT_MAX = 256
LINKS_MAX = 64
PATHS_KEPT_MAX = 256
SNAPSHOT_BYTES_MAX = 1 << 30

UlidOrNone = Annotated[str, msgspec.Meta(pattern="^([0-9a-hjkmnp-tv-z]{26})?$", max_length=26)]
StateKey = Annotated[str, msgspec.Meta(max_length=16_384)]
"""16 levels and a name of 255 characters each, of which each may be escaped into three."""
ACTOR = "@"
"""The key under which a row says who sent its request. It is a change like others, because version 0.1 compares digests
of what it has decoded and encoded again: a new field of `Row` would make it refuse the head."""


CREATE, DROP, PURGE, DROP_VIEW = "create table", "drop table", "purge table", "drop view"
"""What rows are called that are looked for later."""


class Change(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the state gets a value, or goes (None)."""

    key: StateKey
    value: Any


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request that was granted: its id, what it was, what it changes, and what its client was told.

    Whoever sends the same id again is told the same (counterexample 8).
    """

    id: Name
    what: Name
    changes: Annotated[tuple[Change, ...], msgspec.Meta(max_length=CHANGES_MAX)] = ()
    result: Any = None

    @property
    def actor(self) -> str:
        """Who sent the request, by the name of the token; empty where it had none."""
        said = next((change.value for change in self.changes if change.key == ACTOR), "")
        return said if isinstance(said, str) else ""


class LedgerBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger object. `base_version` is what its rows were validated on; None for the epoch of a new leader."""

    schema: Positive = SCHEMA
    domain: Name
    token: Count
    base_version: Count | None
    rows: Annotated[tuple[Row, ...], msgspec.Meta(max_length=ROWS_MAX)] = ()


class RememberedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What the client of a request was told, and when that was published."""

    what: Name
    at: Moment
    result: Any = None


class Link(msgspec.Struct, frozen=True, array_like=True):
    """Where a commit record lies, and the digest of its bytes."""

    version: Positive
    id: Name
    sha256: Digest


class SnapshotRef(msgspec.Struct, frozen=True):
    """A snapshot: the whole state as of a version."""

    id: Name
    sha256: Digest
    version: Positive
    size: Annotated[int, msgspec.Meta(ge=0, le=SNAPSHOT_BYTES_MAX)]


class CommitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A commit record. `links`: the commit before, then older ones at ever greater distances. `snapshot` is the newest
    one that the head named when this was published, as of its own version or an earlier one."""

    schema: Positive = SCHEMA
    domain: Name
    id: Name
    version: Positive
    token: Count
    at: Moment
    paths: Annotated[tuple[Name, ...], msgspec.Meta(max_length=PATHS_KEPT_MAX)]
    rows: Annotated[tuple[Row, ...], msgspec.Meta(max_length=ROWS_MAX)]
    links: Annotated[tuple[Link, ...], msgspec.Meta(max_length=LINKS_MAX)]
    snapshot: SnapshotRef | None


class Tail(msgspec.Struct, frozen=True, array_like=True):
    """The rows of one commit that the snapshot does not hold yet, and when it was published."""

    version: Positive
    at: Moment
    rows: Annotated[tuple[Row, ...], msgspec.Meta(max_length=ROWS_MAX)]


class CatalogHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `manifests/<domain>.json` beside the cell's header: all that is published follows from it.

    `links[0]` is the commit of this very version. Unless that came with a snapshot, its record is not written yet: the
    head holds all of it, and whoever publishes the next version writes it first.
    """

    version: Positive
    token: Count
    at: Moment
    links: Annotated[tuple[Link, ...], msgspec.Meta(max_length=LINKS_MAX)]
    snapshot: SnapshotRef | None
    tail: Annotated[tuple[Tail, ...], msgspec.Meta(max_length=TAIL_MAX)]
    applied: Annotated[tuple[AppliedBatch, ...], msgspec.Meta(max_length=APPLIED_KEPT_MAX)]
    last_id: UlidOrNone
    gc_floor: UlidOrNone = ""
    seal: Name = ""
    """SHA-256 of the head without it, only where it is stored: what another hand changed is seen on reading (F23)."""
