"""`Rate`: at most so many tasks a second in this process."""

from __future__ import annotations

from limpet.runtime import Runtime

AT_ONCE_S = 0.1


class Rate:
    """A bucket of permits that fills with time. Over any longer time no more than `per_s` a second are handed out.

    It holds a tenth of a second's worth, and at least one, so that a thread which wakes late does not cost throughput.
    """

    def __init__(self, per_s: float, runtime: Runtime) -> None:
        self._per_s = per_s
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._room = max(1.0, per_s * AT_ONCE_S)
        self._permits = 1.0
        self._filled_at_s = runtime.elapsed_s()

    def take(self) -> float:
        """Take a permit: 0.0 if there was one, else how many seconds until there will be."""
        with self._mutex:
            at_s = self._runtime.elapsed_s()
            self._permits = min(self._room, self._permits + (at_s - self._filled_at_s) * self._per_s)
            self._filled_at_s = at_s
            if self._permits < 1.0:
                return (1.0 - self._permits) / self._per_s
            self._permits -= 1.0
            return 0.0

    def give_back(self) -> None:
        """Return a permit that was not used."""
        with self._mutex:
            self._permits += 1.0
