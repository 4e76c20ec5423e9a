"""The objects of one domain: written once under names that rise, and checked by digest when they are read (F23)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

import msgspec

from limpet import records
from limpet.catalog.records import SCHEMA, Batch, Commit, Head, Link, SnapshotRef
from limpet.catalog.state import State
from limpet.cell import Cell, Codec
from limpet.errors import Corrupt, LimpetError, Missing, OutcomeUnknown
from limpet.keys import CatalogKeys, Key
from limpet.runtime import Runtime, ulid
from limpet.store.api import Absent, Put, Store
from limpet.store.outcome import put_bytes

S = TypeVar("S", bound=msgspec.Struct)

OBJECT_BYTES_MAX = 64 << 20
OWN_MAX = 4
DELETED_AT_ONCE = 1000
WIDER = 4
"""A whole group of clients waits for its batch, so more is written at once than elsewhere."""
TIME_CHARACTERS = 10
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


class SnapshotCodec(Protocol):
    """How a state becomes the bytes of a snapshot, and back."""

    def to_bytes(self, state: State) -> bytes:
        """The snapshot."""

    def from_bytes(self, data: bytes, *, what: str) -> State:
        """The state.   Raises: Corrupt."""


def above(id_: str, floor: str) -> str:
    """`id_`, or if it is not above `floor` the same with a time right above that one's.

    So names rise even where a clock is slow, and no two are the same (counterexample 9).
    """
    if id_ > floor:
        return id_
    number = 0
    for character in floor[:TIME_CHARACTERS]:
        number = number * 32 + _ALPHABET.index(character)
    return ulid(number + 1, 0)[:TIME_CHARACTERS] + id_[TIME_CHARACTERS:]


class Own:
    """The batches that this process wrote last: its compactor need not read them back. They never change."""

    def __init__(self) -> None:
        self._batches: dict[str, Batch] = {}

    def get(self, path: str) -> Batch | None:
        """The batch at `path`, if it is one of them."""
        return self._batches.get(path)

    def add(self, path: str, batch: Batch) -> None:
        """Remember a batch that is durable now."""
        kept = [*self._batches.items()][1 - OWN_MAX :]
        self._batches = {**dict(kept), path: batch}


class Storage:
    """Reads and writes the objects of a domain; decides nothing."""

    def __init__(
        self, store: Store, keys: CatalogKeys, runtime: Runtime, codec: SnapshotCodec, own: Own | None = None
    ) -> None:
        self.store = store
        self.keys = keys
        self.runtime = runtime
        self._codec = codec
        self._own = own if own is not None else Own()

    def head(self) -> Cell[Head]:
        """The cell of the head."""
        return Cell(self.store, self.keys.head, HEADS, self.runtime)

    def batch(self, path: str) -> Batch:
        """A batch of events.   Raises: Missing; Corrupt.   Cost: 1 GET; 0 if this process wrote it just now."""
        own = self._own.get(path)
        if own is not None:
            return own
        return self._decoded(self.store.get(Key(path), size_max=OBJECT_BYTES_MAX).data, Batch, path)

    def add_batch(self, id_: str, batch: Batch, writes: Sequence[Put] = ()) -> Key:
        """Write a batch under a name of its own, and beside it the objects that its rows will name, all at once.

        Raises: OutcomeUnknown; Unavailable; nobody else knows the names.   Cost: 1 PUT, and 1 for each of `writes`.
        """
        key = self.keys.batch(id_)
        puts = [Put(key, records.encode(batch)), *writes]
        for outcome in self.runtime.fan_out(self._create, puts, at_once=WIDER * self.store.at_once):
            if outcome is not None:
                raise outcome
        self._own.add(key, batch)
        return key

    def _create(self, put: Put) -> LimpetError | None:
        try:
            put_bytes(self.store, self.runtime, put.key, put.data, Absent())
        except LimpetError as error:
            return error
        return None

    def add_commit(self, link: Link, commit: Commit) -> None:
        """Write the commit record that `link` points to; everybody writes the same bytes there.

        Raises: Corrupt if they are others; OutcomeUnknown.   Cost: 1 PUT.
        """
        if self.link(commit) != link:
            raise Corrupt(f"{self.keys.head} does not hold the commit that it names")
        key, data = self.keys.commit(link.id), records.encode(commit)
        try:
            put_bytes(self.store, self.runtime, key, data, Absent())
        except OutcomeUnknown:
            with suppress(Missing):
                if self.store.get(key, size_max=OBJECT_BYTES_MAX).data != data:
                    raise Corrupt(f"{key} is not what the head names", hint="delete it: it is written anew") from None
            raise

    def link(self, commit: Commit) -> Link:
        """What points to a commit record."""
        return Link(commit.version, commit.id, _digest(records.encode(commit)))

    def commit(self, link: Link) -> Commit:
        """A commit record that another one points to.   Raises: Missing; Corrupt.   Cost: 1 GET."""
        key = self.keys.commit(link.id)
        data = self._checked(key, link.sha256, OBJECT_BYTES_MAX)
        commit = self._decoded(data, Commit, key)
        if (commit.version, commit.id) != (link.version, link.id):
            raise Corrupt(f"{key} is of version {commit.version}, not {link.version}")
        return commit

    def add_snapshot(self, id_: str, state: State, version: int) -> SnapshotRef:
        """Write a snapshot under a name of its own.   Raises: OutcomeUnknown.   Cost: 1 PUT."""
        data = self._codec.to_bytes(state)
        put_bytes(self.store, self.runtime, self.keys.snapshot(id_), data, Absent())
        return SnapshotRef(id_, _digest(data), version, len(data))

    def snapshot(self, ref: SnapshotRef | None) -> State:
        """The state of a snapshot; an empty one if there is none yet.   Raises: Missing; Corrupt.   Cost: 1 GET."""
        if ref is None:
            return State()
        key = self.keys.snapshot(ref.id)
        return self._codec.from_bytes(self._checked(key, ref.sha256, ref.size), what=key)

    def is_empty(self) -> bool:
        """Whether nothing was ever published here.   Cost: 2 LISTs."""
        return not any(next(iter(self.store.list(prefix)), None) for prefix in (self.keys.commits, self.keys.snapshots))

    def _checked(self, key: Key, sha256: str, size_max: int) -> bytes:
        data = self.store.get(key, size_max=size_max).data
        if _digest(data) != sha256:
            raise Corrupt(f"{key} is not what was published: its digest differs")
        return data

    def _decoded(self, data: bytes, kind: type[S], what: str) -> S:
        found = records.decode(data, kind, what=what, size_max=OBJECT_BYTES_MAX)
        schema = getattr(found, "schema", SCHEMA)
        if schema > SCHEMA:
            raise Corrupt(
                f"a newer version of limpet wrote {what} (schema {schema}; this one reads up to {SCHEMA})",
                hint="upgrade limpet here",
            )
        return found


def delete_all(store: Store, keys: Sequence[Key]) -> None:
    """Delete every one.   Raises: the first error, and the rest may stay.   Cost: 1 DELETE each."""
    for start in range(0, len(keys), DELETED_AT_ONCE):
        for error in store.delete_many(keys[start : start + DELETED_AT_ONCE]).values():
            if error is not None:
                raise error


def _sealed(head: Head) -> Head:
    bare = msgspec.structs.replace(head, seal="")
    return msgspec.structs.replace(bare, seal=_seal(bare))


def _unsealed(data: bytes, what: str) -> Head:
    sealed = records.decode(data, Head, what=what)
    head = msgspec.structs.replace(sealed, seal="")
    if sealed.seal != _seal(head):
        raise Corrupt(f"{what} is not as it was written: its digest differs", hint="restore it from a backup")
    return head


def _seal(head: Head) -> str:
    return _digest(records.encode(head))


HEADS: Codec[Head] = Codec(Head, _sealed, _unsealed)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
