"""The objects of one domain: written once under names that rise, and checked by digest when they are read (F23)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import msgspec

from limpet import records
from limpet.catalog.records import SCHEMA, CatalogHead, CommitRecord, LedgerBatch, Link, RememberedAnswer, SnapshotRef
from limpet.catalog.state import CatalogState
from limpet.cell import Cell, Codec, Versioned
from limpet.errors import Corrupt, LimpetError, Missing, NotModified, OutcomeUnknown, Unavailable
from limpet.events.parquet import arrow, json_text, read_table, write_table
from limpet.keys import CatalogKeys, Key
from limpet.ledger import OBJECT_BYTES_MAX
from limpet.runtime import Runtime
from limpet.store.api import Absent, Put, Store, Version
from limpet.store.outcome import put_bytes

S = TypeVar("S", bound=msgspec.Struct)

OWN_MAX = 4
WIDER = 4
"""A whole group of clients waits for its batch, so more is written at once than elsewhere."""


class SnapshotCodec(Protocol):
    """How a state becomes the bytes of a snapshot, and back."""

    def to_bytes(self, state: CatalogState) -> bytes:
        """The snapshot."""

    def from_bytes(self, data: bytes, *, what: str) -> CatalogState:
        """The state.   Raises: Corrupt."""


class RecentBatches:
    """The batches that this process wrote last: its compactor need not read them back. They never change."""

    def __init__(self) -> None:
        self._batches: dict[str, LedgerBatch] = {}

    def get(self, path: str) -> LedgerBatch | None:
        """The batch at `path`, if it is one of them."""
        return self._batches.get(path)

    def add(self, path: str, batch: LedgerBatch) -> None:
        """Remember a batch that is durable now."""
        kept = [*self._batches.items()][1 - OWN_MAX :]
        self._batches = {**dict(kept), path: batch}


class CatalogStorage:
    """Reads and writes the objects of a domain; decides nothing."""

    def __init__(
        self, store: Store, keys: CatalogKeys, runtime: Runtime, codec: SnapshotCodec, own: RecentBatches | None = None
    ) -> None:
        self.store = store
        self.keys = keys
        self.runtime = runtime
        self._codec = codec
        self._own = own if own is not None else RecentBatches()

    def head(self) -> Cell[CatalogHead]:
        """The cell of the head."""
        return Cell(self.store, self.keys.head, HEADS, self.runtime)

    def batch(self, path: str) -> LedgerBatch:
        """A batch of events.   Raises: Missing; Corrupt.   Cost: 1 GET; 0 if this process wrote it just now."""
        own = self._own.get(path)
        if own is not None:
            return own
        return self._decoded(self.store.get(Key(path), size_max=OBJECT_BYTES_MAX).data, LedgerBatch, path)

    def add_batch(self, id_: str, batch: LedgerBatch, writes: Sequence[Put] = ()) -> Key:
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

    def add_commit(self, link: Link, commit: CommitRecord) -> None:
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

    def link(self, commit: CommitRecord) -> Link:
        """What points to a commit record."""
        return Link(commit.version, commit.id, _digest(records.encode(commit)))

    def commit(self, link: Link) -> CommitRecord:
        """A commit record that another one points to.   Raises: Missing; Corrupt.   Cost: 1 GET."""
        key = self.keys.commit(link.id)
        data = self._checked(key, link.sha256, OBJECT_BYTES_MAX)
        commit = self._decoded(data, CommitRecord, key)
        if (commit.version, commit.id) != (link.version, link.id):
            raise Corrupt(f"{key} is of version {commit.version}, not {link.version}")
        return commit

    def add_snapshot(self, id_: str, state: CatalogState, version: int) -> SnapshotRef:
        """Write a snapshot under a name of its own.   Raises: OutcomeUnknown.   Cost: 1 PUT."""
        data = self._codec.to_bytes(state)
        put_bytes(self.store, self.runtime, self.keys.snapshot(id_), data, Absent())
        return SnapshotRef(id_, _digest(data), version, len(data))

    def snapshot(self, ref: SnapshotRef | None) -> CatalogState:
        """The state of a snapshot; an empty one if there is none yet.   Raises: Missing; Corrupt.   Cost: 1 GET."""
        if ref is None:
            return CatalogState()
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


def _sealed(head: CatalogHead) -> CatalogHead:
    bare = msgspec.structs.replace(head, seal="")
    return msgspec.structs.replace(bare, seal=_seal(bare))


def _unsealed(data: bytes, what: str) -> CatalogHead:
    sealed = records.decode(data, CatalogHead, what=what)
    head = msgspec.structs.replace(sealed, seal="")
    if sealed.seal != _seal(head):
        raise Corrupt(f"{what} is not as it was written: its digest differs", hint="restore it from a backup")
    return head


def _seal(head: CatalogHead) -> str:
    return _digest(records.encode(head))


HEADS: Codec[CatalogHead] = Codec(CatalogHead, _sealed, _unsealed)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


TRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class LoadedState:
    """The state that a head stands for. Nobody changes it."""

    seen: Versioned[CatalogHead]
    state: CatalogState

    @property
    def head(self) -> CatalogHead:
        """The head."""
        return self.seen.value


class CatalogView:
    """The last head that was seen, with its state. Every read asks the store whether there is a newer one."""

    def __init__(self, storage: CatalogStorage) -> None:
        self._storage = storage
        self._cell = storage.head()
        self._mutex = storage.runtime.mutex()
        self._loaded: LoadedState | None = None

    def now(self) -> LoadedState | None:
        """The state as of a moment after the call began; None if there is no catalog yet.

        Raises: Corrupt; Unavailable.
        Cost: 1 GET, without a body if nothing changed; a new snapshot 1 GET more; without a catalog 2 LISTs.
        """
        incomplete: Version | None = None
        for _ in range(TRIES_MAX):
            seen = self._look(self._loaded.seen.version if self._loaded else None)
            if seen is None and self._loaded is None:
                seen = first_head(self._storage)
            if seen is None:
                return self._loaded
            try:
                return self.take(seen)
            except Missing as error:
                # Counterexample 11: while we were slow GC removed what an older head named.
                if seen.version == incomplete:
                    raise Corrupt(f"the newest head names an object that is not there: {error}") from None
                incomplete = seen.version
        raise Unavailable("new snapshots came faster than they could be read")

    def take(self, seen: Versioned[CatalogHead]) -> LoadedState:
        """Go on to a head that was read elsewhere.   Raises: Missing if it is so old that its snapshot is gone."""
        loaded = load(self._storage, seen, self._loaded)
        with self._mutex:
            if self._loaded is None or loaded.head.version >= self._loaded.head.version:
                self._loaded = loaded
        return loaded

    def _look(self, known: Version | None) -> Versioned[CatalogHead] | None:
        """The head, if it is not the known one. None also if there is no head at all."""
        try:
            return self._cell.decode(self._storage.store.get(self._cell.key, if_none_match=known))
        except NotModified:
            return None
        except Missing:
            if known is not None:
                raise Corrupt(f"{self._cell.key} was there and is gone") from None
            return None


def newest_head(storage: CatalogStorage) -> Versioned[CatalogHead] | None:
    """The head as it is now; None if nothing was ever published.   Raises: Corrupt, also if it is lost.

    Cost: 1 GET; without a catalog 2 LISTs more.
    """
    return storage.head().read() or first_head(storage)


def first_head(storage: CatalogStorage) -> Versioned[CatalogHead] | None:
    """There was no head: because nothing was ever published, or is it lost?   Raises: Corrupt.   Cost: 2 LISTs."""
    if storage.is_empty():
        return None
    cell = storage.head()
    seen = cell.read()  # commits may have come since
    if seen is None:
        raise Corrupt(f"{cell.key} is missing, and there are commits", hint="restore it from a backup")
    return seen


def load(storage: CatalogStorage, seen: Versioned[CatalogHead], before: LoadedState | None) -> LoadedState:
    """The state of a head; from an earlier one, if the head's tail reaches back to it.

    Raises: Missing; Corrupt.   Cost: 0, or 1 GET of the snapshot.
    """
    head = seen.value
    base = head.snapshot.version if head.snapshot else 0
    if before is not None and base <= before.head.version <= head.version:
        state, version = before.state, before.head.version
    else:
        state, version = storage.snapshot(head.snapshot), base
    for tail in head.tail:
        if tail.version > version:
            if tail.version != version + 1:
                raise Corrupt(f"{storage.keys.head} has a hole in its tail at version {version + 1}")
            state = state.after(tail.rows, tail.at)
            version = tail.version
    if version != head.version:
        raise Corrupt(f"{storage.keys.head} is of version {head.version}, and its tail ends at {version}")
    return LoadedState(seen, state)


# ---- snapshots as Parquet ----

ENTRY, ANSWERS = "entry", "answers"
_answers = msgspec.json.Decoder(dict[str, RememberedAnswer]).decode


def _snapshot_schema() -> Any:
    pa = arrow()
    return pa.schema([(name, pa.string()) for name in ("kind", "key", "value")])


class ParquetSnapshots:
    """The `SnapshotCodec` of the catalog: a row for each entry in the order of keys, then one row with all answers."""

    def to_bytes(self, state: CatalogState) -> bytes:
        """Equal states give equal bytes.   Raises: Unsupported without pyarrow."""
        entries = [*state.entries().items()]
        columns = {
            "kind": [ENTRY] * len(entries) + [ANSWERS],
            "key": [key for key, _ in entries] + [""],
            "value": [json_text(value) for _, value in entries] + [json_text(state.answers())],
        }
        table = arrow().table(columns, schema=_snapshot_schema())
        return write_table(table, use_dictionary=["kind"], write_statistics=False)

    def from_bytes(self, data: bytes, *, what: str) -> CatalogState:
        """Raises: Corrupt, with the reason; Unsupported without pyarrow."""
        columns = [column.to_pylist() for column in read_table(data, _snapshot_schema(), what=what).columns]
        kinds, keys, values = columns
        if kinds != [ENTRY] * (len(kinds) - 1) + [ANSWERS]:
            raise Corrupt(f"{what} has rows of another kind, or out of order")
        if None in keys or None in values:
            raise Corrupt(f"{what} lacks values")
        keys.pop()
        told = values.pop()
        if any(first >= second for first, second in pairwise(keys)):
            raise Corrupt(f"{what} has a key twice, or keys out of order")
        try:
            entries = dict(zip(keys, map(msgspec.json.decode, values), strict=True))
            answers = _answers(told)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Corrupt(f"{what} holds a value that is not what it should be: {error}") from None
        if None in entries.values():
            raise Corrupt(f"{what} has an entry without a value")
        return CatalogState(entries, answers)
