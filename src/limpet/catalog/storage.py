"""Reading the objects of a catalog: each was written once, and its digest is checked (F23). See `CatalogView`.

The leader writes batches (`leader.add_batch`); the compactor writes all other objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from typing import Any, Protocol, TypeVar

import msgspec

from limpet.catalog.heads import HEADS
from limpet.catalog.records import SCHEMA, CatalogHead, CommitRecord, LedgerBatch, Link, RememberedAnswer, SnapshotRef
from limpet.catalog.state import CatalogState, Leaf
from limpet.events.ledger import OBJECT_BYTES_MAX
from limpet.events.parquet import arrow, read_table, write_table
from limpet.kernel import records
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.cell import Cell, Versioned
from limpet.kernel.errors import Corrupt, Missing, NotModified, Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.records import digest_of, json_text
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Store, Version
from limpet.kernel.waiting import attempts

S = TypeVar("S", bound=msgspec.Struct)


class SnapshotCodec(Protocol):
    """Encodes a state as a snapshot, and decodes it."""

    def to_bytes(self, state: CatalogState) -> bytes:
        """The snapshot."""

    def from_bytes(self, data: bytes, *, what: str) -> CatalogState:
        """The state.   Raises: Corrupt."""


class SharedState:
    """What the leader and the compactor of one process need not read again: the batches that it wrote last, by path,
    and the newest state that it has read."""

    __slots__ = ("batches", "loaded")

    def __init__(self) -> None:
        self.batches: dict[str, LedgerBatch] = {}
        self.loaded: LoadedState | None = None


class CatalogStorage:
    """Reads the objects of a domain; decides nothing. Two storages of one process may share `recent`."""

    def __init__(
        self, store: Store, keys: CatalogKeys, runtime: Runtime, codec: SnapshotCodec, recent: SharedState | None = None
    ) -> None:
        self.store = store
        self.keys = keys
        self.runtime = runtime
        self.codec = codec
        self.recent = recent or SharedState()
        self.view = CatalogView(self)
        """The newest state that this process has read; shared by its catalog and its leader."""

    def head(self) -> Cell[CatalogHead]:
        """The cell of the head."""
        return Cell(self.store, self.keys.head, HEADS, self.runtime)

    def batch(self, path: str) -> LedgerBatch:
        """A stored batch.   Raises: Missing; Corrupt.   Cost: 1 GET."""
        return self._decoded(self.store.get(Key(path), size_max=OBJECT_BYTES_MAX).data, LedgerBatch, path)

    def commit(self, link: Link) -> CommitRecord:
        """The commit record of a link.   Raises: Missing; Corrupt.   Cost: 1 GET."""
        key = self.keys.commit(link.id)
        data = self._checked(key, link.sha256, OBJECT_BYTES_MAX)
        commit = self._decoded(data, CommitRecord, key)
        if (commit.version, commit.id) != (link.version, link.id):
            raise Corrupt(f"{key} is of version {commit.version}, not {link.version}")
        return commit

    def snapshot(self, ref: SnapshotRef | None) -> CatalogState:
        """The state of a snapshot; empty without one.   Raises: Missing; Corrupt.   Cost: 1 GET."""
        if ref is None:
            return CatalogState()
        key = self.keys.snapshot(ref.id)
        return self.codec.from_bytes(self._checked(key, ref.sha256, ref.size), what=key)

    def is_empty(self) -> bool:
        """Whether nothing was ever published here.   Cost: 2 LISTs."""
        return not any(next(iter(self.store.list(prefix)), None) for prefix in (self.keys.commits, self.keys.snapshots))

    def _checked(self, key: Key, sha256: str, size_max: int) -> bytes:
        data = self.store.get(key, size_max=size_max).data
        if digest_of(data) != sha256:
            raise Corrupt(f"{key} was modified since it was published: its digest differs")
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


@dataclass(frozen=True, slots=True)
class LoadedState:
    """The state of a head. Immutable."""

    seen: Versioned[CatalogHead]
    state: CatalogState

    @property
    def head(self) -> CatalogHead:
        """The head."""
        return self.seen.value


class CatalogView:
    """The last head that was read, with its state. Every read checks the store for a newer one."""

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
        for _ in attempts(self._storage.runtime, pause_s=0):
            seen = self._look(self._loaded.seen.version if self._loaded else None)
            if seen is None and self._loaded is None:
                seen = first_head(self._storage)
            if seen is None:
                return self._loaded
            try:
                return self.take(seen)
            except Missing as error:
                # Counterexample 11: GC may have removed an object of an older head meanwhile.
                if seen.version == incomplete:
                    raise Corrupt(f"an object of the newest head is missing: {error}") from None
                incomplete = seen.version
        raise Unavailable("snapshots were replaced faster than they could be read")

    def take(self, seen: Versioned[CatalogHead]) -> LoadedState:
        """Advance to a head that was read elsewhere.   Raises: Missing if its snapshot was collected."""
        loaded = load(self._storage, seen, self._loaded)
        with self._mutex:
            if self._loaded is None or loaded.head.version >= self._loaded.head.version:
                self._loaded = self._storage.recent.loaded = loaded
        return loaded

    def _look(self, known: Version | None) -> Versioned[CatalogHead] | None:
        """The head, if it is not the known one; None also if there is no head."""
        try:
            return self._cell.decode(self._storage.store.get(self._cell.key, if_none_match=known))
        except NotModified:
            return None
        except Missing:
            if known is not None:
                raise Corrupt(f"{self._cell.key} was there and is gone") from None
            return None


def newest_head(storage: CatalogStorage) -> Versioned[CatalogHead] | None:
    """The current head; None if nothing was ever published.   Raises: Corrupt, also if it is lost.

    Cost: 1 GET; without a catalog 2 LISTs more.
    """
    return storage.head().read() or first_head(storage)


def first_head(storage: CatalogStorage) -> Versioned[CatalogHead] | None:
    """Read the head again after it was missing; None if nothing was published.   Raises: Corrupt.   Cost: 2 LISTs."""
    if storage.is_empty():
        return None
    cell = storage.head()
    seen = cell.read()  # it may have been created since
    if seen is None:
        raise Corrupt(f"{cell.key} is missing, and there are commits", hint="restore it from a backup")
    return seen


def load(storage: CatalogStorage, seen: Versioned[CatalogHead], before: LoadedState | None) -> LoadedState:
    """The state of a head; computed from an earlier one if the head's tail continues it.

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
                raise Corrupt(f"version {version + 1} is missing in the tail of {storage.keys.head}")
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


@dataclass(frozen=True, slots=True)
class _Columns:
    """The entries of a snapshot as Arrow arrays, and the first row of each leaf of the state, by the leaf's `id()`.

    `leaves` keeps the leaves alive, so that their ids are not reused.
    """

    leaves: Sequence[Leaf]
    first_rows: Mapping[int, int]
    keys: Any
    texts: Any


class ParquetSnapshots:
    """The `SnapshotCodec` of the catalog: a row for each entry, sorted by key, then one row with all answers.

    It caches the columns of the last snapshot. The next one reuses the rows of all leaves that are still in the state,
    and converts only the others: those that commits in between have changed.
    """

    def __init__(self) -> None:
        self._last: _Columns | None = None
        self.converted = 0
        """How many entries were converted for the last snapshot."""

    def to_bytes(self, state: CatalogState) -> bytes:
        """Equal states give equal bytes.   Raises: Unsupported without pyarrow."""
        pa = arrow()
        columns = self._last = self._columns(state)
        kinds = [pa.repeat(ENTRY, len(columns.keys)), pa.array([ANSWERS])]
        keys, texts = [columns.keys, pa.array([""])], [columns.texts, pa.array([json_text(state.answers())])]
        table = pa.table([*map(pa.chunked_array, (kinds, keys, texts))], schema=_snapshot_schema())
        return write_table(table, use_dictionary=["kind"], write_statistics=False)

    def _columns(self, state: CatalogState) -> _Columns:
        pa, string, leaves, last = arrow(), arrow().string(), state.leaves(), self._last
        known = last.first_rows if last is not None else {}
        first_rows: dict[int, int] = {}
        rows = converted = 0
        for leaf in leaves:
            first_rows[id(leaf)] = rows
            rows += len(leaf[0])

        def moved(leaf: Leaf) -> int | None:
            """By how many rows a leaf has moved since the last snapshot; None if it is new."""
            before = known.get(id(leaf))
            return None if before is None else before - first_rows[id(leaf)]

        keys, texts = [], []
        for shift, group in groupby(leaves, moved):
            run = [*group]
            size = sum(len(leaf[0]) for leaf in run)
            if shift is None or last is None:
                keys.append(pa.array(chain.from_iterable(leaf[0] for leaf in run), string))
                texts.append(pa.array(chain.from_iterable(leaf[1] for leaf in run), string))
                converted += size
            else:
                first = known[id(run[0])]
                keys.append(last.keys.slice(first, size))
                texts.append(last.texts.slice(first, size))
        self.converted = converted
        return _Columns(leaves, first_rows, pa.concat_arrays(keys), pa.concat_arrays(texts))

    def from_bytes(self, data: bytes, *, what: str) -> CatalogState:
        """Raises: Corrupt, with the reason; Unsupported without pyarrow."""
        columns = [column.to_pylist() for column in read_table(data, _snapshot_schema(), what=what).columns]
        kinds, keys, values = columns
        if kinds != [ENTRY] * (len(kinds) - 1) + [ANSWERS]:
            raise Corrupt(f"{what} has rows of another kind, or out of order")
        if None in keys or None in values:
            raise Corrupt(f"{what} lacks values")
        keys.pop()
        answer_text = values.pop()
        if any(first >= second for first, second in pairwise(keys)):
            raise Corrupt(f"{what} has a key twice, or keys out of order")
        try:
            lacking = None in map(msgspec.json.decode, values)
            answers = _answers(answer_text)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Corrupt(f"{what} has an invalid value: {error}") from None
        if lacking:
            raise Corrupt(f"{what} has an entry without a value")
        return CatalogState.of_texts(dict(zip(keys, values, strict=True)), answers)
