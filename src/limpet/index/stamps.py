"""When a record was written: the store's clock, and never the same time twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property

from limpet.errors import Corrupt, Invalid
from limpet.index.values import stamp_text, stamp_time
from limpet.runtime import Runtime
from limpet.store.api import Store

READ_EVERY_S = 600.0
AHEAD_MAX = timedelta(days=1)
READ_NOW_S = -1.0
TICK = timedelta(microseconds=1)
AHEAD_KEPT = 100_000


class Floor:
    """What the stamps of one process in one fleet must exceed, whichever handle gives them."""

    def __init__(self, runtime: Runtime) -> None:
        self.mutex = runtime.mutex()
        self.at: datetime | None = None
        self.ahead: OrderedDict[tuple[str, str], datetime] = OrderedDict()
        """What was seen under a key, if it is later than every stamp given before."""


class Stamps:
    """The stamps of puts through one store.

    The store's clock is read once in ten minutes and goes on by the process's own. It is a lower bound: of two puts by
    two machines within about a second, either may count as the later. A put after a get of its key is always later.
    """

    def __init__(self, store: Store, runtime: Runtime, floor: Floor) -> None:
        self._store = store
        self._runtime = runtime
        self._floor = floor
        self._reading: tuple[datetime, float] | None = None

    def next(self, index: str, key: str) -> str:
        """A stamp later than every one before it, and than what was seen under `key`.

        Cost: 0; 1 PUT + 1 HEAD once in ten minutes.
        """
        return self.after(index, key, self.common())

    def common(self) -> str:
        """A stamp later than every one before it, for many records at once.   Cost: as `next`."""
        now = self._now()
        with self._floor.mutex:
            if self._floor.at is not None and now <= self._floor.at:
                now = self._floor.at + TICK
            self._floor.at = now
        return stamp_text(now)

    def after(self, index: str, key: str, stamp: str) -> str:
        """`stamp`, or a later one if something later was seen under `key`."""
        with self._floor.mutex:
            seen = self._floor.ahead.get((index, key))
            if seen is None or stamp_text(seen) < stamp:
                return stamp
            try:
                later = seen + TICK
            except OverflowError:
                raise Corrupt(
                    f"the record {key!r} is stamped at the end of time, and nothing can be later",
                    hint="remove it from its shard by hand; no Limpet wrote it",
                ) from None
            self._floor.ahead[index, key] = later
            return stamp_text(later)

    def after_each(self, index: str, keys: Sequence[str], stamp: str) -> list[str]:
        """`after` for each key."""
        with self._floor.mutex:
            if not self._floor.ahead:
                return [stamp] * len(keys)
        return [self.after(index, key, stamp) for key in keys]

    def latest(self) -> datetime:
        """The latest time that a record may bring along: a day ahead of the store's clock.   Cost: as `next`."""
        now = self._now()
        with self._floor.mutex:
            if self._floor.at is None or now > self._floor.at:
                self._floor.at = now
        return now + AHEAD_MAX

    def saw(self, index: str, stamps: Mapping[str, str]) -> None:
        """By key, stamps that were shown to this process or given by it: a later put of the key must count as later."""
        floor = self._floor
        with floor.mutex:
            for key, stamp in stamps.items():
                at = stamp_time(stamp)
                if floor.at is None or at > floor.at:
                    kept = floor.ahead.pop((index, key), at)
                    floor.ahead[index, key] = max(kept, at)
                    if len(floor.ahead) > AHEAD_KEPT:
                        floor.ahead.popitem(last=False)

    def _now(self) -> datetime:
        """The store's time by a reading of our own: what is read in between may be stamped in the future."""
        reading = self._reading
        if reading is None or self._runtime.elapsed_s() - reading[1] >= READ_EVERY_S:
            now = self._store.now(max_age_s=READ_NOW_S)
            reading = self._reading = (now, self._runtime.elapsed_s())
        return reading[0] + timedelta(seconds=self._runtime.elapsed_s() - reading[1])


class Times:
    """The times of one call: a stamp for all records that bring none, and the latest that the others may bring."""

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps

    @cached_property
    def common(self) -> str:
        """`Stamps.common`, asked once."""
        return self._stamps.common()

    @cached_property
    def latest(self) -> datetime:
        """`Stamps.latest`, asked once."""
        return self._stamps.latest()

    def is_ahead(self, at: datetime) -> bool:
        """Whether a time that a record brings is later than the store's own, so that `Stamps.saw` would keep it."""
        return at > self.latest - AHEAD_MAX


def given(at: datetime, latest: datetime, *, where: str) -> str:
    """The stamp of a record that brings its own time.   Raises: Invalid for one after `latest`."""
    if at > latest:
        raise Invalid(
            f"{where}: updated_at is {at}, more than a day ahead of the store's clock",
            hint="a record from the future would hide every later put; leave updated_at out",
        )
    try:
        return stamp_text(at)
    except OverflowError:
        raise Invalid(f"{where}: updated_at is {at}, which UTC cannot express") from None


def stamps_of(store: Store, runtime: Runtime, fleet: str) -> Stamps:
    """The stamps of puts through `store`. All handles of a process on one fleet share a floor, so none overtakes."""
    floor = runtime.shared.setdefault((Floor, fleet), Floor(runtime))
    return Stamps(store, runtime, floor)
