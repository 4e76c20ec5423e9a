"""The store's clock, as a lower bound (F13, F14)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from limpet.runtime import Runtime

OBSERVE_NS = 1_000_000
"""By how much a reading must be later than the last to be worth its price."""

TRUSTED_NS = 1_000_000_000
"""How far ahead of our estimate of a file system's clock an mtime may be: clocks tick coarsely, and drift."""

WITNESS_AGE_S_MAX = 600.0
"""For how long a reading of a file system's clock is good: clocks that differ by 0.1 % drift apart by 0.6 s."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StoreClock:
    """The newest LastModified seen, plus the time since then on this machine's rising clock.

    LastModified was true when it was stamped, which was before we saw it: so the sum never exceeds the store's time
    while both clocks run at one rate. A whole-second LastModified is rounded down, which keeps it a lower bound.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sample: tuple[datetime, float] | None = None

    def observe(self, modified: datetime) -> None:
        """Take note of a LastModified in an answer."""
        bound = self.read(max_age_s=None)
        if bound is None or modified > bound:
            self.reset(modified)

    def reset(self, modified: datetime) -> None:
        """Take over the LastModified of an object that was written just now, even if it is lower than before."""
        self._sample = (modified, self._runtime.elapsed_s())

    def read(self, *, max_age_s: float | None) -> datetime | None:
        """The bound; None when nothing was seen, or nothing within `max_age_s`."""
        if self._sample is None:
            return None
        modified, seen_at_s = self._sample
        age_s = self._runtime.elapsed_s() - seen_at_s
        if max_age_s is not None and age_s > max_age_s:
            return None
        return modified + timedelta(seconds=age_s)


class FileClock:
    """A file system's clock, and when its files were really modified.

    A server stamps LastModified itself; an mtime can be set by anyone, to anything, and is by `cp -a` and `rsync -a`.
    So only a file of ours that was made just now is a witness of the file system's clock, and an mtime counts for what
    it says only up to that clock. A later one reads as now, for as long as it lies ahead: such an object looks as if
    written just now, moves no clock, and is deleted or given up by its age only when that time has really come.
    """

    def __init__(self, runtime: Runtime, clock: StoreClock) -> None:
        self._runtime = runtime
        self._clock = clock
        self._newest_ns = 0
        self._witnessed: tuple[int, float] | None = None

    def witness(self, born_ns: int) -> None:
        """A file of ours was made just now, at this time of the file system's clock."""
        self._witnessed = (born_ns, self._runtime.elapsed_s())
        if born_ns < self._newest_ns - TRUSTED_NS:
            # The clock was set back: it rules, not what it said before.
            self._newest_ns = born_ns
            self._clock.reset(_moment(born_ns))
        else:
            self._observe(born_ns)

    def modified(self, mtime_ns: int, probe: Callable[[], object]) -> datetime:
        """When a file with this mtime was modified. `probe` may be asked to make a witness; it need not."""
        if mtime_ns > self._newest_ns + OBSERVE_NS:
            mtime_ns = self._credible(mtime_ns, probe)
            self._observe(mtime_ns)
        return _moment(mtime_ns)

    def _credible(self, mtime_ns: int, probe: Callable[[], object]) -> int:
        """A local disk has this machine's wall clock. A file server may have another, which a witness has shown."""
        wall_ns = (self._runtime.wall() - _EPOCH) // timedelta(microseconds=1) * 1000
        if mtime_ns <= wall_ns + TRUSTED_NS:
            return mtime_ns
        if self._witnessed is None or self._runtime.elapsed_s() - self._witnessed[1] > WITNESS_AGE_S_MAX:
            probe()
        if self._witnessed is None:
            return wall_ns  # we cannot write here: then nothing is deleted by age, either
        born_ns, at_s = self._witnessed
        now_ns = born_ns + int((self._runtime.elapsed_s() - at_s) * 1e9)
        return mtime_ns if mtime_ns <= now_ns + TRUSTED_NS else now_ns

    def _observe(self, mtime_ns: int) -> None:
        if mtime_ns > self._newest_ns + OBSERVE_NS:
            self._newest_ns = mtime_ns
            self._clock.observe(_moment(mtime_ns))


def _moment(unix_ns: int) -> datetime:
    """Rounded down: LastModified is a lower bound."""
    return _EPOCH + timedelta(0, 0, unix_ns // 1000)
