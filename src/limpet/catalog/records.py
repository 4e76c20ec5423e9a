"""The stored records of the catalog: batches, commit records, and the head.

All fields have limits; a record that exceeds them is `Corrupt`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from limpet.events.ledger import AppliedBatch
from limpet.kernel.records import Count, Digest, Moment, Name, Positive

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
"""16 levels and a name of 255 characters each; an escaped character takes three."""
ACTOR = "@"
"""The key of the change that holds the sender of a row's request. It is a change like others, because version 0.1
compares digests of decoded and re-encoded rows: a new field of `Row` would make it refuse the head."""


CREATE, DROP, PURGE, DROP_VIEW = "create table", "drop table", "purge table", "drop view"
"""The kinds of rows that history searches for."""


class Change(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the state gets a value, or is removed (None)."""

    key: StateKey
    value: Any


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One granted request: its id, its kind, its changes, and the answer to its client.

    A request with the same id gets the same answer again (counterexample 8).
    """

    id: Name
    what: Name
    changes: Annotated[tuple[Change, ...], msgspec.Meta(max_length=CHANGES_MAX)] = ()
    result: Any = None

    @property
    def actor(self) -> str:
        """The name of the token that sent the request; empty without one."""
        said = next((change.value for change in self.changes if change.key == ACTOR), "")
        return said if isinstance(said, str) else ""


class LedgerBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger object. `base_version`: the version that its rows were decided on; None for the epoch of a leader."""

    schema: Positive = SCHEMA
    domain: Name
    token: Count
    base_version: Count | None
    rows: Annotated[tuple[Row, ...], msgspec.Meta(max_length=ROWS_MAX)] = ()


class RememberedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a request, and when it was published."""

    what: Name
    at: Moment
    result: Any = None


class Link(msgspec.Struct, frozen=True, array_like=True):
    """A reference to a commit record, with the digest of its bytes."""

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
    """A commit record. `links`: the previous commit, then older ones at increasing distances. `snapshot`: the newest
    snapshot in the head when this was published, as of this version or an earlier one."""

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
    """The rows of one commit that is not in the snapshot yet, and when it was published."""

    version: Positive
    at: Moment
    rows: Annotated[tuple[Row, ...], msgspec.Meta(max_length=ROWS_MAX)]


class CatalogHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `manifests/<domain>.json` beside the cell's header: all that is published follows from it.

    `links[0]` is the commit of this version. Unless it came with a snapshot, its record may not be written yet: the
    head contains all of it, and the next publication writes it first.
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
    """SHA-256 of the head without this field, only in the stored form: so a modified head is detected (F23)."""
