"""Reading the catalog: the state as of the newest head, kept up to date at the price of what changed."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.catalog.records import Head
from limpet.catalog.state import State
from limpet.catalog.storage import Storage
from limpet.cell import Versioned
from limpet.errors import Corrupt, Missing, NotModified, Unavailable
from limpet.store.api import Version

TRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class Loaded:
    """The state that a head stands for. Nobody changes it."""

    seen: Versioned[Head]
    state: State

    @property
    def head(self) -> Head:
        """The head."""
        return self.seen.value


class View:
    """The last head that was seen, with its state. Every read asks the store whether there is a newer one."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._cell = storage.head()
        self._mutex = storage.runtime.mutex()
        self._loaded: Loaded | None = None

    def now(self) -> Loaded | None:
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

    def take(self, seen: Versioned[Head]) -> Loaded:
        """Go on to a head that was read elsewhere.   Raises: Missing if it is so old that its snapshot is gone."""
        loaded = load(self._storage, seen, self._loaded)
        with self._mutex:
            if self._loaded is None or loaded.head.version >= self._loaded.head.version:
                self._loaded = loaded
        return loaded

    def _look(self, known: Version | None) -> Versioned[Head] | None:
        """The head, if it is not the known one. None also if there is no head at all."""
        try:
            return self._cell.decode(self._storage.store.get(self._cell.key, if_none_match=known))
        except NotModified:
            return None
        except Missing:
            if known is not None:
                raise Corrupt(f"{self._cell.key} was there and is gone") from None
            return None


def newest_head(storage: Storage) -> Versioned[Head] | None:
    """The head as it is now; None if nothing was ever published.   Raises: Corrupt, also if it is lost.

    Cost: 1 GET; without a catalog 2 LISTs more.
    """
    return storage.head().read() or first_head(storage)


def first_head(storage: Storage) -> Versioned[Head] | None:
    """There was no head: because nothing was ever published, or is it lost?   Raises: Corrupt.   Cost: 2 LISTs."""
    if storage.is_empty():
        return None
    cell = storage.head()
    seen = cell.read()  # commits may have come since
    if seen is None:
        raise Corrupt(f"{cell.key} is missing, and there are commits", hint="restore it from a backup")
    return seen


def load(storage: Storage, seen: Versioned[Head], before: Loaded | None) -> Loaded:
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
    return Loaded(seen, state)
