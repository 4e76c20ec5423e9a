"""How an index comes to be, and how its columns grow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from limpet.cell import Cell
from limpet.errors import Conflict, Corrupt, Denied, Invalid, LimpetError, Missing, Unavailable
from limpet.index.decide import DEPTHS, shard_ids
from limpet.index.described import write_descriptions
from limpet.index.manifest import Manifest, fresh
from limpet.index.schema import Schema, extended, nullable, with_own
from limpet.index.storage import Storage
from limpet.index.typed import Typed
from limpet.keys import Key
from limpet.store.api import Absent, Put

DEPTH = 2
PUTS_MAX = 5


class Layout:
    """The manifest of one index, as a program's type wants it to be."""

    def __init__(self, storage: Storage, cell: Cell[Manifest], name: str, typed: Typed[Any], depth: int | None):
        if depth is not None and depth not in DEPTHS:
            raise Invalid(f"an index has a depth of {DEPTHS[0]} to {DEPTHS[-1]}, not {depth}")
        self._storage = storage
        self._cell = cell
        self._name = name
        self._typed = typed
        self._depth = depth

    def load(self) -> Manifest:
        """The manifest as it is now: created if there is none, extended if the type has new columns.

        Raises: Missing without a type; Invalid for a type that does not fit.   Cost: 1 GET; see `_create`, `_evolved`.
        """
        seen = self._cell.read()
        if seen is None:
            return self._create()
        if self._depth is not None and seen.value.depth != self._depth:
            raise Invalid(
                f"the index {self._name!r} has depth {seen.value.depth}, not {self._depth}",
                hint="leave depth out, or `limpet index reshard`",
            )
        return self._evolved(seen.value)

    def _evolved(self, manifest: Manifest) -> Manifest:
        """The manifest with the type's new columns; without them if this process may not add any.

        Cost: 0, or 1 GET + 1 PUT and the descriptions.
        """
        if self._typed.fields is None:
            return manifest
        fields, key = self._typed.fields, self._typed.key or manifest.key
        if extended(manifest.schema, fields, key) is None:
            return manifest
        try:
            return self._changed(lambda schema: extended(schema, fields, key))
        except Denied:
            return manifest  # whoever may only read needs no new columns; a put of one is refused

    def allow_null(self, name: str) -> Manifest:
        """Let a column be null from now on.   Raises: Missing; Invalid.   Cost: 1 GET + 1 PUT and the descriptions."""
        return self._changed(lambda schema: nullable(schema, name))

    def _changed(self, new: Callable[[Schema], Schema | None]) -> Manifest:
        def change(now: Manifest | None) -> Manifest | None:
            schema = new(now.schema) if now else None
            if now is None or schema is None:
                return None
            return msgspec.structs.replace(now, fields=schema.fields, schema_version=now.schema_version + 1)

        seen = self._cell.update(change)
        if seen is None:
            raise self._missing()
        if seen.value.described != seen.value.schema_version:
            write_descriptions(self._storage, self._name, seen.value)
        return seen.value

    def _create(self) -> Manifest:
        """Lay out a new index: all shards empty, then the manifest, then the descriptions.

        Raises: Corrupt or Conflict if records of something else lie there: nothing is written then.
        Cost: 1 LIST, 1 PUT a shard + 3 PUTs and 2 GETs.
        Crash: without a manifest there is no index, and creating it again completes it.
        """
        manifest = self.planned()
        if next(self._storage.store.list(self._storage.keys.root), None) is not None:
            self._demand_empty()
        if self.put_shards(manifest):
            self._demand_empty()
        return self.complete(manifest)

    def planned(self) -> Manifest:
        """The manifest of a new index of this type.   Raises: Missing without a type; Invalid without a key."""
        if self._typed.fields is None:
            raise self._missing()
        if self._typed.key is None:
            raise Invalid(f"the index {self._name!r} is new: say which field is its key", hint="key=...")
        return fresh(with_own(self._typed.fields, self._typed.key), self._depth or DEPTH)

    def complete(self, manifest: Manifest) -> Manifest:
        """Write the manifest of a new index, whose shards are there: from now on it exists. Then describe it.

        The manifest as it is now, if another process was first.   Cost: 3 PUTs and 2 GETs.
        """
        try:
            self._cell.create(manifest)
        except Conflict:
            return self.load()
        write_descriptions(self._storage, self._name, manifest)
        return manifest

    def put_shards(self, manifest: Manifest) -> bool:
        """Put empty shards where there are none; whether some were there already.

        A conflict does not tell that a shard is there: a store may refuse two puts at once (F15). So it is asked.
        Raises: Unavailable if a shard can neither be put nor found.   Cost: 1 PUT each; 1 HEAD for each conflict.
        """
        shards: Sequence[Key] = [self._storage.keys.shard(shard) for shard in shard_ids(manifest.depth)]
        some_were_there = False
        for _ in range(PUTS_MAX):
            left: list[Key] = []
            for key, outcome in self._storage.store.put_many([Put(key, b"", Absent()) for key in shards]).items():
                if isinstance(outcome, Conflict):
                    some_were_there = True
                    if not self._storage.exists(key):
                        left.append(key)
                elif isinstance(outcome, LimpetError):
                    raise outcome
            if not left:
                return some_were_there
            shards = left
        raise Unavailable(f"{shards[0]} could not be put: the store refused it {PUTS_MAX} times", hint="try again")

    def _demand_empty(self) -> None:
        """Shards that are there already are those of a creation that did not end, or runs beside this one: empty.

        Raises: Corrupt for records without a manifest.   Cost: 1 LIST per 1,000 shards, 2 LISTs, 1 GET.
        """
        store, keys = self._storage.store, self._storage.keys
        full = [stat.key for stat in store.list(keys.shards) if stat.size and stat.key.endswith(".usv")]
        waits = [stat.key for prefix in (keys.inbox, keys.packs) if (stat := next(store.list(prefix), None))]
        if (full or waits) and self._cell.read() is None:
            what = f"{len(full)} shards with records" if full else "records that wait to be compiled"
            raise Corrupt(
                f"{keys.root} holds {what}, such as {(full or waits)[0]}, and no manifest; nothing was written",
                hint=f"another program's files: stop it, then `limpet index adopt {self._name} --quiesced` makes an "
                f"index of them; an index of Limpet's: restore {self._cell.key} from a backup",
            )

    def _missing(self) -> Missing:
        return Missing(
            f"there is no index {self._name!r}",
            hint='create it with a type: fleet.index(name, Type, key="...") or `limpet index create`',
        )
