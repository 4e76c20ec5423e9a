"""`LookSchedule`: when a process asks one queue for work. An empty look costs a request, so the pauses grow."""

from __future__ import annotations

from limpet.kernel.runtime import Runtime
from limpet.kernel.waiting import GROWTH

FIRST_S = 0.2
IDLE_S = 24.0
FAILED_MAX_S = 30.0
EARLY_PART = 0.9
MEAN_PART = (EARLY_PART + 1.0) / 2
"""Pauses are cut by up to a tenth at random, so that a fleet does not look in step; so long is one on average."""


class LookSchedule:
    """The looks of all threads of a process at one queue.

    After a look the next one is due when a pause is over, which grows from 0.2 s to `longest_s`, by half each time; it
    counts from the beginning of the look. After a look that found an entry every thread may look at once.
    """

    def __init__(self, longest_s: float, runtime: Runtime) -> None:
        self._longest_s = longest_s
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._hot = False
        """Whether the last look found an entry."""
        self._pause_s = FIRST_S
        self._open_at_s = float("-inf")
        self._expected_s = float("inf")
        self.failures = 0
        """How many looks in a row have failed."""
        self.token: str | None = None
        """The change token of the queue before the last look."""

    @property
    def is_hot(self) -> bool:
        """Whether the last look found an entry, and the next one was not put off."""
        return self._hot and self._open_at_s == float("-inf")

    def take(self, token: str | None = None, *, anyway: bool = False) -> bool:
        """Whether to look now: it is due, or the queue's change token differs. Report the result to `found`, `empty`,
        `defer` or `failed`.
        """
        at_s = self._runtime.elapsed_s()
        with self._mutex:
            due = self._open_at_s <= at_s
            if not (due or anyway or token != self.token):
                return False
            self.token = token
            if due and not self._hot:
                self._open_at_s = at_s + self._pause_s * self._runtime.rng.uniform(EARLY_PART, 1.0)
                self._pause_s = min(self._pause_s * GROWTH, self._longest_s)
            return True

    def found(self) -> None:
        """The look found an entry."""
        with self._mutex:
            self._hot, self._pause_s, self._open_at_s, self.failures = True, FIRST_S, float("-inf"), 0

    def empty(self) -> None:
        """The look found none. Threads that look at the same time do not make the pause longer: `take` does."""
        at_s = self._runtime.elapsed_s()
        with self._mutex:
            self.failures = 0
            if self._hot:
                self._hot, self._pause_s, self._open_at_s = False, FIRST_S, at_s + FIRST_S

    def defer(self, after_s: float) -> None:
        """There was no look; the next one is due in so many seconds."""
        with self._mutex:
            self._open_at_s = self._runtime.elapsed_s() + after_s

    def failed(self) -> int:
        """The store failed: look again after one second, then two, up to 30. How many failures in a row."""
        with self._mutex:
            self._hot = False
            self.failures += 1
            self._open_at_s = self._runtime.elapsed_s() + min(FAILED_MAX_S, 2.0 ** (self.failures - 1))
            return self.failures

    def soon(self, within_s: float) -> None:
        """Look within so many seconds, and after pauses that are no longer."""
        with self._mutex:
            self._pause_s = min(self._pause_s, within_s)
            self._open_at_s = min(self._open_at_s, self._runtime.elapsed_s() + within_s)

    def wake(self) -> None:
        """The queue has changed: a look is due now."""
        with self._mutex:
            self._open_at_s = float("-inf")

    def expect(self, at_s: float) -> None:
        """Something in the queue is due at that moment: `is_expected` changes then, and with it the change token."""
        with self._mutex:
            self._expected_s = min(self._expected_s, at_s)

    @property
    def is_expected(self) -> bool:
        """Whether something is due by now."""
        return self._runtime.elapsed_s() >= self._expected_s

    def forget_expected(self) -> None:
        """A look begins, which sees what is due."""
        at_s = self._runtime.elapsed_s()
        with self._mutex:
            if at_s >= self._expected_s:
                self._expected_s = float("inf")

    def wait_s(self) -> float:
        """Seconds until a look is due."""
        return max(0.0, self._open_at_s - self._runtime.elapsed_s())
