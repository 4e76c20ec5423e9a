"""What the catalog writes: batches of events, commit records, and the head."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["ACTOR", "Applied", "Batch", "Change", "Commit", "Head", "Link", "Row", "SnapshotRef", "Tail", "Told"]

SCHEMA = 1
ACTOR = "@"
"""The key under which a row says who sent its request. It is a change like others, because version 0.1 compares digests
of what it has decoded and encoded again: a new field of `Row` would make it refuse the head."""


class Change(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the state gets a value, or goes (None)."""

    key: str
    value: Any


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request that was granted: its id, what it was, what it changes, and what its client was told.

    Whoever sends the same id again is told the same (counterexample 8).
    """

    id: str
    what: str
    changes: tuple[Change, ...] = ()
    result: Any = None

    @property
    def actor(self) -> str:
        """Who sent the request, by the name of the token; empty where it had none."""
        said = next((change.value for change in self.changes if change.key == ACTOR), "")
        return said if isinstance(said, str) else ""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger object. `base_version` is what its rows were validated on; None for the epoch of a new leader."""

    schema: int = SCHEMA
    domain: str
    token: int
    base_version: int | None
    rows: tuple[Row, ...] = ()


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What the client of a request was told, and when that was published."""

    what: str
    at: str
    result: Any = None


class Link(msgspec.Struct, frozen=True, array_like=True):
    """Where a commit record lies, and the digest of its bytes."""

    version: int
    id: str
    sha256: str


class SnapshotRef(msgspec.Struct, frozen=True):
    """A snapshot: the whole state as of a version."""

    id: str
    sha256: str
    version: int
    size: int


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit record. `links`: the commit before, then older ones at ever greater distances. `snapshot` is the newest
    one that the head named when this was published, as of its own version or an earlier one."""

    schema: int = SCHEMA
    domain: str
    id: str
    version: int
    token: int
    at: str
    paths: tuple[str, ...]
    rows: tuple[Row, ...]
    links: tuple[Link, ...]
    snapshot: SnapshotRef | None


class Tail(msgspec.Struct, frozen=True, array_like=True):
    """The rows of one commit that the snapshot does not hold yet, and when it was published."""

    version: int
    at: str
    rows: tuple[Row, ...]


class Applied(msgspec.Struct, frozen=True, array_like=True):
    """A batch that was published, and as what."""

    path: str
    version: int
    commit: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `manifests/<domain>.json` beside the cell's header: all that is published follows from it.

    `links[0]` is the commit of this very version. Unless that came with a snapshot, its record is not written yet: the
    head holds all of it, and whoever publishes the next version writes it first.
    """

    version: int
    token: int
    at: str
    links: tuple[Link, ...]
    snapshot: SnapshotRef | None
    tail: tuple[Tail, ...]
    applied: tuple[Applied, ...]
    last_id: str
    gc_floor: str = ""
    seal: str = ""
    """SHA-256 of the head without it, only where it is stored: what another hand changed is seen on reading (F23)."""
