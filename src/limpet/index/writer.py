"""Writing records: each put is an object of its own, each `put_many` at most one object a shard."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import repeat
from typing import Any, Generic, TypeVar

from limpet.index.bulk import ALONE, Bulk, chunks
from limpet.index.decide import PACK_BYTES, digest, key_of, packed, shard_ids, shard_of, split
from limpet.index.manifest import Manifest
from limpet.index.stamps import Stamps, Times
from limpet.index.storage import Storage
from limpet.index.text import END
from limpet.index.typed import Typed
from limpet.store.api import Put

R = TypeVar("R")

_Shards = defaultdict[int, dict[bytes, bytes]]
"""Lines by the number of their shard and the digest of their key."""


class Writer(Generic[R]):
    """Turns records into objects that wait for a compiler. Every check is made before anything is written."""

    def __init__(self, storage: Storage, manifest: Manifest, typed: Typed[R], stamps: Stamps) -> None:
        self._storage = storage
        self._depth = manifest.depth
        self._schema = manifest.schema
        self._stamps = stamps
        self._scope = storage.keys.root
        self._bulk = Bulk(self._schema, typed, stamps, self._scope)

    def put(self, record: R | Mapping[str, Any]) -> None:
        """Write one record.   Raises: Invalid; OutcomeUnknown.   Cost: 1 PUT.   Crash: written or not, whole."""
        key, stamp, line, is_own = self._bulk.one(record, Times(self._stamps), ALONE)
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
        times = Times(self._stamps)
        shards: _Shards = defaultdict(dict)
        own: dict[str, str | None] = {}
        first = 1
        for some in chunks(records):
            batch = self._bulk.in_columns(some, times) or self._bulk.one_by_one(some, first, times)
            self._gather(shards, batch.keys, batch.lines)
            if batch.own or own:
                own.update(zip(batch.keys, batch.own or repeat(None), strict=False))
            first += len(some)
        self._write(shards)
        self._stamps.saw(self._scope, {key: stamp for key, stamp in own.items() if stamp})
        return sum(map(len, shards.values()))

    def put_lines(self, lines: Mapping[str, bytes]) -> None:
        """Write lines that are good already, by key.   Cost and crash: as `put_many`."""
        shards: _Shards = defaultdict(dict)
        self._gather(shards, lines, lines.values())
        self._write(shards)

    def _single(self, key: str, stamp: str, line: bytes) -> None:
        shard = shard_of(digest(key.encode()), self._depth)
        at = self._storage.keys.single(shard, key, stamp, self._storage.runtime.new_id())
        self._storage.add(at, line + END)

    def _gather(self, shards: _Shards, keys: Iterable[str], lines: Iterable[bytes]) -> None:
        """Put lines to those of their shards; of two with one key the last one stays."""
        above = 16 - 4 * self._depth
        for key, line in zip(keys, lines, strict=True):
            place = sha256(key.encode()).digest()
            shards[(place[0] << 8 | place[1]) >> above][place] = line

    def _write(self, shards: _Shards) -> None:
        ids = shard_ids(self._depth)
        self._storage.add_many(
            [self._object(ids[number], part) for number, lines in shards.items() for part in split(lines, PACK_BYTES)]
        )

    def _object(self, shard: str, lines: Mapping[bytes, bytes]) -> Put:
        """A pack; or for one line a single, which readers of other records need not open."""
        id_ = self._storage.runtime.new_id()
        if len(lines) > 1:
            return Put(self._storage.keys.pack(shard, id_), packed(lines, self._schema.shape))
        [line] = lines.values()
        key = key_of(line, self._schema.shape).decode()
        return Put(self._storage.keys.single(shard, key, self._schema.stamp_of(line), id_), line + END)
