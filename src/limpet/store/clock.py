"""The store's clock, as a lower bound (F13, F14)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from limpet.runtime import Runtime

OBSERVE_NS = 1_000_000
"""A reading is used only if it is later than the last one by more than this: using one takes some CPU time."""

TRUSTED_NS = 1_000_000_000
"""How far ahead of our estimate of a file system's clock an mtime may be: clocks tick coarsely, and drift."""

WITNESS_AGE_S_MAX = 600.0
"""For how long a reading of a file system's clock is used: in this time, rates that differ by 0.1 % make 0.6 s."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StoreClock:
    """The newest LastModified seen, plus the time since then on this machine's monotonic clock.

    The store stamped that LastModified before this process saw it, so the sum never exceeds the store's time while both
    clocks run at the same rate. A LastModified in whole seconds is rounded down, so it stays a lower bound.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sample: tuple[datetime, float] | None = None

    def observe(self, modified: datetime) -> None:
        """Take note of a LastModified in an answer."""
        if self._sample is not None and modified <= self._sample[0]:
            return  # most objects are older than the sample; for them this comparison is enough
        bound = self.read(max_age_s=None)
        if bound is None or modified > bound:
            self.reset(modified)

    def reset(self, modified: datetime) -> None:
        """Replace the sample by the LastModified of an object that was written just now, even if it is lower."""
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
    """A lower bound of a file system's clock, and of the times at which its files were modified.

    A server stamps LastModified itself, but any program can set an mtime (`cp -a` and `rsync -a` do). So the clock is
    read only from a file that this process has just made, and an mtime is used only up to that clock. A later mtime is
    taken for the current time until the clock has reached it. Such an object looks as if it was just written; it does
    not advance the store's clock, and rules that go by age apply to it only after its mtime has passed.
    """

    def __init__(self, runtime: Runtime, clock: StoreClock) -> None:
        self._runtime = runtime
        self._clock = clock
        self._newest_ns = 0
        self._witnessed: tuple[int, float] | None = None

    def witness(self, born_ns: int) -> None:
        """Record the time of the file system's clock at which this process has just made a file."""
        self._witnessed = (born_ns, self._runtime.elapsed_s())
        if born_ns < self._newest_ns - TRUSTED_NS:
            # The clock was set back: use its new time, not the highest one.
            self._newest_ns = born_ns
            self._clock.reset(_moment(born_ns))
        else:
            self._observe(born_ns)

    def modified(self, mtime_ns: int, probe: Callable[[], object]) -> datetime:
        """When a file with this mtime was modified. `probe` is called to make a file and `witness` its time, if it
        can."""
        if mtime_ns > self._newest_ns + OBSERVE_NS:
            mtime_ns = self._credible(mtime_ns, probe)
            self._observe(mtime_ns)
        return _moment(mtime_ns)

    def _credible(self, mtime_ns: int, probe: Callable[[], object]) -> int:
        """The mtime, but not later than the clock: a local disk's is this machine's wall clock, a file server's clock
        is estimated from the last `witness`."""
        wall_ns = (self._runtime.wall() - _EPOCH) // timedelta(microseconds=1) * 1000
        if mtime_ns <= wall_ns + TRUSTED_NS:
            return mtime_ns
        if self._witnessed is None or self._runtime.elapsed_s() - self._witnessed[1] > WITNESS_AGE_S_MAX:
            probe()
        if self._witnessed is None:
            return wall_ns  # this process cannot write here, so it deletes nothing by age either
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
