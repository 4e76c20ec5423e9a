"""When to try again, and when to look again. All loops that pause are made of these.

`attempts` repeats a request that failed, `polls` looks at something until a time is over, `ticks` and `naps` repeat
work after each pause, and a `BackgroundJob` can also be woken. A loop asks one of them for its next round, and holds
no pause of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

from limpet.kernel.errors import LimpetError
from limpet.kernel.runtime import Flag, Runtime, ThreadHandle

TRIES_MAX = 10
"""How often a refused or unclear request is sent by default."""
SENDS_MAX = 3
"""How often the same bytes are sent while a caller waits for the outcome."""
CONTENDED_TRIES_MAX = 100
"""How often a write is tried that others may prevent each time, by a write or delete of their own."""
PAUSE_S = 0.1
"""The pause after a first failure, and of a thread that repeats its work, by default."""
BACKOFF_MAX_S = 3.0
GROWTH = 1.5
"""Pauses between looks that find nothing grow by half."""


def attempts(
    runtime: Runtime,
    times: int | None = TRIES_MAX,
    pause_s: float | Callable[[int], float] = PAUSE_S,
    *,
    longest_s: float = BACKOFF_MAX_S,
    stop: Flag | None = None,
) -> Iterator[int]:
    """1, 2, ... `times` (None: without end), with a pause of `backoff_s` before each but the first.

    With `pause_s=0` it does not pause: the other writer, which has won meanwhile, has made room. A function says how
    long to pause after so many tries. `stop` ends it, also within a pause.
    """
    for tries in count(1) if times is None else range(1, times + 1):
        if tries > 1 and pause_s:
            failures = tries - 1
            if callable(pause_s):
                left_s = pause_s(failures)
            else:
                left_s = backoff_s(runtime, failures, pause_s, longest_s=longest_s)
            if stop is not None:
                stop.wait(left_s)
            elif left_s > 0:
                runtime.sleep(left_s)
        if stop is not None and stop.is_set():
            return
        yield tries


def backoff_s(runtime: Runtime, failures: int, pause_s: float = PAUSE_S, *, longest_s: float = BACKOFF_MAX_S) -> float:
    """The pause after so many failures in a row, with a random part (see `spread_backoff_s`)."""
    return spread_backoff_s(failures, pause_s, longest_s, runtime.rng.random())


def spread_backoff_s(failures: int, pause_s: float, longest_s: float, chance: float) -> float:
    """`pause_s`, doubled by each failure after the first, at most `longest_s`; `chance` is in [0, 1).

    Up to a half is taken off, so that processes that failed together do not try again together.
    """
    doubled_s: float = pause_s * 2.0 ** min(failures - 1, 60)
    return min(doubled_s, longest_s) * (0.5 + chance / 2)


def polls(runtime: Runtime, wait_s: float, pause_s: float) -> Iterator[float]:
    """The seconds that are left: `wait_s` at once, less after each pause, at last 0.0.

    The pauses have a random part (see `poll_pause_s`); the last one ends when the time is over.
    """
    until_s = runtime.elapsed_s() + wait_s
    while (left_s := until_s - runtime.elapsed_s()) > 0:
        yield left_s
        runtime.sleep(min(poll_pause_s(runtime, 1, pause_s, pause_s), until_s - runtime.elapsed_s()))
    yield 0.0


def poll_pause_s(runtime: Runtime, looks: int, pause_s: float, longest_s: float) -> float:
    """The pause after so many looks: `pause_s`, longer by half after each look but the first, at most `longest_s`.

    Up to 30 % is taken off, so that processes that wait for the same object do not look together.
    """
    grown_s: float = pause_s * GROWTH ** min(looks - 1, 60)
    return min(grown_s, longest_s) * runtime.rng.uniform(0.7, 1.0)


def ticks(stop: Flag, every_s: float | Callable[[], float | None]) -> Iterator[None]:
    """One round after each pause of `every_s`, until `stop` is set, which also ends a pause.

    A function says before each pause how long it takes; None ends the rounds.
    """
    return _rounds(stop.wait, every_s)


def naps(runtime: Runtime, every_s: float | Callable[[], float | None] = PAUSE_S) -> Iterator[None]:
    """As `ticks`, for a thread that nothing stops."""
    return _rounds(runtime.sleep, every_s)


def _rounds(wait: Callable[[float], object], every_s: float | Callable[[], float | None]) -> Iterator[None]:
    pause_s = every_s if callable(every_s) else lambda: every_s
    while (seconds := pause_s()) is not None and not wait(seconds):
        yield


class WakeFlag:
    """The pauses of a background thread that other threads can wake and stop."""

    def __init__(self, runtime: Runtime) -> None:
        self.stopped = False
        self._runtime = runtime
        self._flag = runtime.flag()

    def wake(self) -> None:
        """End the pause, or the next one."""
        self._flag.set()

    def rest(self) -> None:
        """The work that follows does all that `wake` was called for so far."""
        if not self.stopped:
            self._flag = self._runtime.flag()

    def stop(self) -> None:
        """End the rounds."""
        self.stopped = True
        self._flag.set()

    def rounds(self, every_s: float, first_s: float | None = None) -> Iterator[bool]:
        """After each pause, whether it was woken; until it is stopped, and once then."""
        pause_s = every_s if first_s is None else first_s
        while not self.stopped:  # looked at again, since `stop` may have set the flag before `rest` replaced it
            yield self._flag.wait(pause_s)
            pause_s = every_s


class BackgroundJob:
    """Runs `work` on a background thread every `every_s` seconds, and soon after each `wake()`.

    A `LimpetError` of `work` is ignored: the next run tries again.
    """

    def __init__(self, name: str, work: Callable[[], None], every_s: float, runtime: Runtime) -> None:
        self._name = name
        self._work = work
        self._every_s = every_s
        self._runtime = runtime
        self._waker = WakeFlag(runtime)
        self._thread: ThreadHandle | None = None

    def start(self) -> None:
        """Start the thread. It does not keep the process alive, and `work` may be cut off at any point."""
        self._thread = self._runtime.spawn(self._run, name=f"limpet-{self._name}")

    def wake(self) -> None:
        """Run `work` soon."""
        self._waker.wake()

    def _run(self) -> None:
        # The first pause is random, so that processes that start together do not all work at the same times.
        for _ in self._waker.rounds(self._every_s, self._runtime.rng.uniform(0.1, 1.0) * self._every_s):
            if not self._waker.stopped:
                self._waker.rest()
                self._work_once()

    @property
    def stopped(self) -> bool:
        """Whether no further run of `work` starts."""
        return self._waker.stopped

    def stop(self) -> None:
        """Start no further run of `work`."""
        self._waker.stop()

    def finish(self) -> None:
        """End the thread, and run `work` once more."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self._work_once()

    def _work_once(self) -> None:
        with suppress(LimpetError):
            self._work()
