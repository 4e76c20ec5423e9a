"""When to try again, and when to look again. All loops that pause are made of these.

`attempts` repeats a request that failed, `polls` looks at something until a time is over, and `ticks` repeats the work
of a background thread until it is stopped. A loop asks one of them for its next round, and holds no pause of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from limpet.kernel.runtime import Flag, Runtime

TRIES_MAX = 10
"""How often a refused or unclear request is sent by default."""
BACKOFF_S = 0.1
BACKOFF_MAX_S = 3.0


def attempts(
    runtime: Runtime,
    times: int | None = TRIES_MAX,
    pause_s: float = BACKOFF_S,
    *,
    longest_s: float = BACKOFF_MAX_S,
    stop: Flag | None = None,
) -> Iterator[int]:
    """1, 2, ... `times` (None: without end), with a pause of `backoff_s` before each but the first.

    With `pause_s=0` it does not pause: the other writer, which has won meanwhile, has made room. `stop` ends it, also
    within a pause.
    """
    for tries in count(1) if times is None else range(1, times + 1):
        if tries > 1 and pause_s:
            left_s = backoff_s(runtime, tries - 1, pause_s, longest_s=longest_s)
            if stop is None:
                runtime.sleep(left_s)
            else:
                stop.wait(left_s)
        if stop is not None and stop.is_set():
            return
        yield tries


def backoff_s(
    runtime: Runtime, failures: int, pause_s: float = BACKOFF_S, *, longest_s: float = BACKOFF_MAX_S
) -> float:
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

    A random part of up to 30 % is taken off each pause, so that processes that wait for the same object do not look
    together; the last pause ends when the time is over.
    """
    until_s = runtime.elapsed_s() + wait_s
    while (left_s := until_s - runtime.elapsed_s()) > 0:
        yield left_s
        runtime.sleep(min(pause_s * runtime.rng.uniform(0.7, 1.0), until_s - runtime.elapsed_s()))
    yield 0.0


def ticks(stop: Flag, every_s: float | Callable[[], float | None]) -> Iterator[None]:
    """One round after each pause of `every_s`, until `stop` is set, which also ends a pause.

    A function says before each pause how long it takes; None ends the rounds.
    """
    pause_s = every_s if callable(every_s) else lambda: every_s
    while (seconds := pause_s()) is not None and not stop.wait(seconds):
        yield
