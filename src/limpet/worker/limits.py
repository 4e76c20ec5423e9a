"""How many tasks a process may start: in all (`Permits`), and in a second (`Rate`)."""

from __future__ import annotations

from limpet.kernel.runtime import Runtime

RATE_BURST_S = 0.1


class Permits:
    """How many more tasks may be started; any number if `limit` is None."""

    def __init__(self, limit: int | None, runtime: Runtime) -> None:
        self._left = limit
        self._mutex = runtime.mutex()

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return self._left is not None

    def take(self) -> bool:
        """Take a permit; False if none is left."""
        if self._left is None:
            return True
        with self._mutex:
            if self._left < 1:
                return False
            self._left -= 1
            return True

    def give_back(self) -> None:
        """Return a permit that was not used."""
        if self._left is not None:
            with self._mutex:
                self._left += 1

    @property
    def used_up(self) -> bool:
        """Whether all were taken."""
        return self._left == 0


class Rate:
    """A token bucket: at most `per_s` tasks a second in this process, over any longer time; None: any number.

    It holds a tenth of a second's worth, and at least one, so that a thread which wakes late does not cost throughput.
    """

    def __init__(self, per_s: float | None, runtime: Runtime) -> None:
        self._per_s = per_s
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._room = max(1.0, (per_s or 0.0) * RATE_BURST_S)
        self._permits = 1.0
        self._filled_at_s = runtime.elapsed_s()

    def take(self) -> float:
        """Take a permit: 0.0 if there was one, else the seconds until there will be one."""
        if self._per_s is None:
            return 0.0
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
