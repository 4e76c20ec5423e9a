"""Writing records: each put is an object of its own, each `put_many` at most one object a shard."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Generic, TypeVar

from limpet.errors import Invalid
from limpet.index.decide import digest, packed, shard_of
from limpet.index.manifest import Manifest
from limpet.index.schema import stamp_in
from limpet.index.stamps import Stamps, given
from limpet.index.storage import Storage
from limpet.index.text import END
from limpet.index.typed import Typed
from limpet.store.api import Put

__all__ = ["Writer"]

R = TypeVar("R")


class Writer(Generic[R]):
    """Turns records into objects that wait for a compiler. Every check is made before anything is written."""

    def __init__(self, storage: Storage, manifest: Manifest, typed: Typed[R], stamps: Stamps) -> None:
        self._storage = storage
        self._depth = manifest.depth
        self._schema = manifest.schema
        self._typed = typed
        self._stamps = stamps
        self._scope = storage.keys.root

    def put(self, record: R | Mapping[str, Any]) -> None:
        """Write one record.   Raises: Invalid; OutcomeUnknown.   Cost: 1 PUT.   Crash: written or not, whole."""
        key, stamp, line, is_own = self._made(record, _Times(self._stamps), "the record")
        self._single(key, stamp, line)
        if is_own:
            self._stamps.saw(self._scope, {key: stamp})

    def delete(self, key: Any) -> None:
        """Write a tombstone, which hides every record of the key that is not later.   Cost: 1 PUT."""
        text = self._schema.key_text(key)
        stamp = self._stamps.next(self._scope, text)
        self._single(text, stamp, self._schema.tombstone(text, stamp))

    def put_many(self, records: Iterable[R | Mapping[str, Any]]) -> int:
        """Write many; of two records with one key the last one counts. Returns how many keys there were.

        Nothing is written unless every record is good. Raises: Invalid; OutcomeUnknown or Unavailable, when some may
        have been written: put them again, the same or all.
        Cost: at most 1 PUT for each shard touched.   Crash: whole objects are there or not; a prefix is not promised.
        """
        times = _Times(self._stamps)
        lines: dict[str, bytes] = {}
        own: dict[str, str] = {}
        for number, record in enumerate(records, 1):
            try:
                key, stamp, line, is_own = self._made(record, times, "")
            except Invalid:
                self._made(record, times, f"record {number}")  # it says the same, and of which record
                raise
            lines[key] = line
            if is_own:
                own[key] = stamp
            else:
                own.pop(key, None)
        self._write(lines)
        self._stamps.saw(self._scope, own)
        return len(lines)

    def put_lines(self, lines: Mapping[str, bytes]) -> None:
        """Write lines that are good already, by key.   Cost and crash: as `put_many`."""
        self._write(lines)

    def _made(self, record: R | Mapping[str, Any], times: _Times, where: str) -> tuple[str, str, bytes, bool]:
        """The record's key, its stamp, its line, and whether the stamp is the record's own.   Raises: Invalid."""
        values = self._typed.values(record, where=where)
        value = values.get(self._schema.key)
        if value is None:
            raise Invalid(f"{where}: field {self._schema.key!r}: expected the key, got nothing")
        key = self._schema.key_text(value)
        if where:
            where = f"{where} ({key!r})"
        at = stamp_in(values, where=where)
        stamp = given(at, times.latest, where=where) if at else self._stamps.after(self._scope, key, times.common)
        return key, stamp, self._schema.line(values, stamp, where=where), at is not None

    def _single(self, key: str, stamp: str, line: bytes) -> None:
        shard = shard_of(digest(key.encode()), self._depth)
        at = self._storage.keys.single(shard, key, stamp, self._storage.runtime.new_id())
        self._storage.add(at, line + END)

    def _write(self, lines: Mapping[str, bytes]) -> None:
        by_shard: dict[str, dict[bytes, bytes]] = defaultdict(dict)
        keys: dict[bytes, str] = {}
        for key, line in lines.items():
            place = digest(key.encode())
            keys[place] = key
            by_shard[shard_of(place, self._depth)][place] = line
        self._storage.add_many([self._object(shard, some, keys) for shard, some in by_shard.items()])

    def _object(self, shard: str, lines: Mapping[bytes, bytes], keys: Mapping[bytes, str]) -> Put:
        """A pack; or for one line a single, which readers of other records need not open."""
        id_ = self._storage.runtime.new_id()
        if len(lines) > 1:
            return Put(self._storage.keys.pack(shard, id_), packed(lines, self._schema.shape))
        ((place, line),) = lines.items()
        return Put(self._storage.keys.single(shard, keys[place], self._schema.stamp_of(line), id_), line + END)


class _Times:
    """The times of one call: a stamp for all records that bring none, and the latest that the others may bring."""

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps

    @cached_property
    def common(self) -> str:
        return self._stamps.common()

    @cached_property
    def latest(self) -> datetime:
        return self._stamps.latest()
