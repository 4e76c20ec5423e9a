"""The store's clock, as a lower bound (F13, F14)."""

from __future__ import annotations

from datetime import datetime, timedelta

from limpet.runtime import Runtime

__all__ = ["StoreClock"]


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
