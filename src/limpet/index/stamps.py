"""When a record was written: the store's clock, and never the same time twice."""

from __future__ import annotations

from collections.abc import MutableMapping
from datetime import datetime, timedelta
from weakref import WeakKeyDictionary

from limpet.errors import Invalid
from limpet.index.values import stamp_text, stamp_time
from limpet.runtime import Runtime
from limpet.store.api import Store

__all__ = ["Stamps", "stamps_of"]

READ_EVERY_S = 600.0
AHEAD_MAX = timedelta(days=1)
TICK = timedelta(microseconds=1)
SEEN_MAX = 10_000


class Stamps:
    """The stamps that one process gives to its puts in one fleet.

    The store's clock is read once in ten minutes and goes on by the process's own. It is a lower bound: of two puts by
    two machines within about a second, either may count as the later. A put after a get of its key is always later.
    """

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._last: datetime | None = None
        self._read_at_s: float | None = None
        self._seen: dict[tuple[str, str], str] = {}

    def next(self, index: str, key: str | None) -> str:
        """A stamp later than every one before it, and than what was seen under `key`.

        Cost: 0; 1 PUT + 1 HEAD once in ten minutes.
        """
        now = self._now()
        with self._mutex:
            if self._last is not None and now <= self._last:
                now = self._last + TICK
            seen = self._seen.get((index, key)) if key is not None else None
            if seen is not None and stamp_text(now) <= seen:
                now = stamp_time(seen) + TICK
            self._last = now
        return stamp_text(now)

    def given(self, at: datetime, *, where: str) -> str:
        """The stamp of a record that brings its own time.   Raises: Invalid for one more than a day ahead."""
        if at > self._now() + AHEAD_MAX:
            raise Invalid(
                f"{where}: updated_at is {at}, more than a day ahead of the store's clock",
                hint="a record from the future would hide every later put; leave updated_at out",
            )
        return stamp_text(at)

    def saw(self, index: str, key: str, stamp: str) -> None:
        """A reader of this process was shown that stamp: a later put of the key must count as later."""
        with self._mutex:
            self._seen.pop((index, key), None)
            self._seen[index, key] = stamp
            if len(self._seen) > SEEN_MAX:
                del self._seen[next(iter(self._seen))]

    def _now(self) -> datetime:
        at_s = self._runtime.elapsed_s()
        if self._read_at_s is not None and at_s - self._read_at_s < READ_EVERY_S:
            return self._store.now()
        now = self._store.now(max_age_s=0.0)
        self._read_at_s = at_s
        return now


_all: MutableMapping[Runtime, dict[str, Stamps]] = WeakKeyDictionary()


def stamps_of(store: Store, runtime: Runtime, fleet: str) -> Stamps:
    """The stamps of this process in that fleet: the same for every handle, so that none overtakes another."""
    return _all.setdefault(runtime, {}).setdefault(fleet, Stamps(store, runtime))
