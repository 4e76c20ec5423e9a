"""Leases of other nodes, noted beside our own as `remote.json`: workers here leave those entries alone for a while.

Our own lease is never touched by a pull. What is noted ends by itself, so that a node that died holds up nobody; and
only a newer log makes it last longer, so that one that is read again does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from limpet.cell import Cell, struct_codec
from limpet.errors import LimpetError
from limpet.keys import Key, QueueKeys
from limpet.queue.sync.decide import is_live, noted
from limpet.queue.sync.objects import DAMAGE
from limpet.queue.sync.records import LeaseLine, RemoteLease
from limpet.runtime import Runtime
from limpet.store.api import Stat, Store, Version

CODEC = struct_codec(RemoteLease)
KNOWN_MAX = 10_000


class RemoteLeases:
    """The `remote.json` objects of one node."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._known: dict[tuple[Key, Version], float] = {}

    def note(self, line: LeaseLine, *, node: str, seq: int, live_s: float) -> str | None:
        """Note that `node` holds an entry, or has let it go, as its log `seq` says; it counts for `live_s` from now.

        Returns the holder's label if another node's lease is live there, too.   Cost: 1 GET + at most 1 PUT.
        """
        cell = self._cell(QueueKeys(line.root).remote(line.entry))
        try:
            seen = cell.read()
        except DAMAGE:
            self._store.delete(cell.key)
            seen = None
        value = noted(seen.value if seen else None, line, node=node, seq=seq, live_s=live_s)
        if value is None:
            return None
        cell.attempt(seen, value)
        if seen is None or seen.modified is None or seen.value.node == node or not line.held:
            return None
        return seen.value.label if is_live(seen.modified, seen.value.live_s, self._store.now()) else None

    def live(self, found: Iterable[Stat]) -> set[str]:
        """The entries of a listing that somebody elsewhere works on, as far as we heard.

        Cost: 1 GET for each `remote.json` that was not seen before.
        """
        notes = {stat.key: stat for stat in found if stat.key.endswith("/remote.json")}
        if not notes:
            return set()
        unknown = [key for key, stat in notes.items() if (key, stat.version) not in self._known]
        for key, blob in self._store.get_many(unknown).items():
            if not isinstance(blob, LimpetError):
                with suppress(*DAMAGE):  # what cannot be read holds up nobody
                    self._remember(key, blob.version, self._cell(key).decode(blob).value.live_s)
        now = self._store.now()
        return {
            key.rsplit("/", 2)[1]
            for key, stat in notes.items()
            if is_live(stat.modified, self._known.get((key, stat.version), 0.0), now)
        }

    def holder(self, key: Key) -> RemoteLease | None:
        """Who works on an entry elsewhere, as the note at `key` says; None if nobody does any more.   Cost: 1 GET."""
        try:
            seen = self._cell(key).read()
        except DAMAGE:
            return None
        if seen is None or seen.modified is None:
            return None
        return seen.value if is_live(seen.modified, seen.value.live_s, self._store.now()) else None

    def _remember(self, key: Key, version: Version, live_s: float) -> None:
        self._known[key, version] = live_s
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def _cell(self, key: Key) -> Cell[RemoteLease]:
        return Cell(self._store, key, CODEC, self._runtime, deletable=True)
