"""The clocks of tests: one that runs and can be moved on, and a runtime whose time passes only when something waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import count
from math import ceil, inf
from typing import TypeVar

from limpet.kernel.errors import Invalid
from limpet.kernel.runtime import Flag, SystemRuntime, ThreadHandle, ulid

A = TypeVar("A")
B = TypeVar("B")

US = 1_000_000
BOOTED_US = 100_000 * US
"""What the rising clock shows at the start of a virtual time."""
WAIT_MAX_S = 3600.0
"""For so long a test, or a handler in it, may wait without a drain: nothing runs meanwhile that could end the wait."""
SETTLE_S = 10.0
"""For so long, in real time, the clock waits for a background thread to pause before it moves."""
AT_ONE_TIME_MAX = 1000
"""After so many ids, and so writes, at one time the clock goes on by itself, by a microsecond for each."""
FOREVER_S = 1e6
"""No test takes as long."""


class Clock:
    """The clock of a test's fleet: it runs like the real one, and `advance` moves it."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Delays, retries, leases and retention see that time as passed."""
        self.offset_s += checked_move(seconds)


class MovedRuntime(SystemRuntime):
    """The runtime of this process, on a `Clock`."""

    def __init__(self, clock: Clock) -> None:
        self._moved = clock
        super().__init__()

    def wall(self) -> datetime:
        return super().wall() + timedelta(seconds=self._moved.offset_s)

    def elapsed_s(self) -> float:
        return super().elapsed_s() + self._moved.offset_s


def checked_move(seconds: float) -> float:
    """A time by which a clock is moved.   Raises: Invalid."""
    if not 0 <= seconds < inf:
        raise Invalid(f"a clock moves forward, not by {seconds:g} seconds")
    return seconds


class VirtualRuntime(SystemRuntime):
    """A runtime whose clock stands still, but for `move` and for whoever waits: a wait moves it on, and returns.

    Threads that it spawns, such as those that renew leases, really wait, each until the clock comes to its time or its
    flag is set. The clock stops at each of these times, until that thread waits again or has ended. Ids rise in the
    order in which they are made, and all that is random follows from `seed`.
    """

    def __init__(self, start: datetime, seed: int) -> None:
        self._start = start
        self._seed = seed
        self._now_us = 0
        self._waited_us = 0
        super().__init__()
        self._background: set[object] = set()
        self._busy = 0
        """How many background threads do not wait."""
        self._quiet = super().flag()
        """Set when all of them wait; replaced when one goes on."""
        self._quiet.set()
        self._waits: dict[Flag, tuple[float, VirtualFlag | None]] = {}
        """What each background thread waits for: the event that lets it go on, its time, and its flag."""
        self._closed = False

    def _fresh(self) -> None:
        self._made, self._made_before = count(1), 0
        super()._fresh()
        self.restart()

    def restart(self) -> None:
        """Begin with chance and ids as at the start: how often they were used before counts no more."""
        self.rng.seed(self._seed)
        self._made, self._made_before = count(1), 0
        self.owner = self.new_id()

    def wall(self) -> datetime:
        return self._start + timedelta(microseconds=self._now_us)

    def elapsed_s(self) -> float:
        return (BOOTED_US + self._now_us) / US

    def new_id(self) -> str:
        made = next(self._made)
        if made - self._made_before > AT_ONE_TIME_MAX:
            self._now_us += 1  # what waits for a part of a microsecond gets it, and does not try for ever
        unix_ms = int(self.wall().timestamp() * 1000)
        return ulid(unix_ms, made << 40 | self.rng.getrandbits(40))

    def sleep(self, seconds: float) -> None:
        self.pause(seconds, None)

    def flag(self) -> Flag:
        return VirtualFlag(self)

    def fan_out(self, call: Callable[[A], B], items: Iterable[A], *, at_once: int = 1) -> list[B]:
        """One after the other."""
        return [call(item) for item in items]

    def spawn(self, work: Callable[[], None], *, name: str) -> ThreadHandle:
        ended = VirtualFlag(self)

        def run() -> None:
            me = self.thread()
            self._background.add(me)
            try:
                work()
            except _ClosedError:
                pass
            finally:
                self._background.discard(me)
                ended.set()
                self._count(-1)

        self._count(1)
        super().spawn(run, name=name)
        return _VirtualThread(self, ended)

    def move(self, to: datetime) -> None:
        """Move the clock, unless it is there already."""
        self._waited_us = 0
        self._made_before = next(self._made)
        self._run_until((to - self._start) // timedelta(microseconds=1), None)

    def pause(self, seconds: float, flag: VirtualFlag | None) -> None:
        """Let so much time pass, or less if the flag is set before.

        Raises: Invalid if a thread of the test has waited for an hour.
        """
        until_us = self._now_us + ceil(max(0.0, seconds) * US) if seconds < inf else inf
        if self.thread() in self._background:
            self._rest(max(until_us, self._now_us + 1), flag)  # so that one that never rests does not stop the clock
            return
        began_us = self._now_us
        if until_us < inf and self._waited_us + until_us - began_us > WAIT_MAX_S * US:
            raise Invalid(
                f"this waits for more than {WAIT_MAX_S / 3600:g} h on the clock of a test, and nothing runs meanwhile",
                hint="call test.drain() first, which runs the tasks and moves the clock",
            )
        self._run_until(until_us, flag)
        self._waited_us += self._now_us - began_us

    def wake(self, flag: VirtualFlag) -> None:
        """The flag is set: the background threads that wait for it go on."""
        self._let_go(lambda _, awaited: awaited is flag)

    def close(self) -> None:
        """End the background threads that wait, and each other one when it would wait."""
        self._closed = True
        self._let_go(lambda _, __: True)

    def _run_until(self, until_us: float, flag: VirtualFlag | None) -> None:
        """Move the clock from one time to the next at which a background thread goes on, unless the flag is set."""
        while self._has_moved(until_us, flag):
            pass
        if flag is None or not flag.is_set():
            self._now_us = max(self._now_us, int(until_us))

    def _has_moved(self, until_us: float, flag: VirtualFlag | None) -> bool:
        """Wait until all background threads wait, and let the next of them go on. False if there is none in time."""
        self._quiet.wait(SETTLE_S)
        if flag is not None and flag.is_set():
            return False
        with self._mutex:
            due_us = min((until for until, _ in self._waits.values()), default=inf)
        if due_us < inf and due_us <= until_us:
            self._now_us = max(self._now_us, int(due_us))
            self._let_go(lambda until, _: until <= self._now_us)
            return True
        return until_us == inf  # a thread that is to end is busy

    def _rest(self, until_us: float, flag: VirtualFlag | None) -> None:
        """Wait, as a background thread."""
        go_on = super().flag()
        with self._mutex:
            if not self._closed:
                if flag is not None and flag.is_set():
                    return
                self._waits[go_on] = (until_us, flag)
                self._add(-1)
        go_on.wait(FOREVER_S)
        if self._closed:
            raise _ClosedError

    def _let_go(self, chosen: Callable[[float, VirtualFlag | None], bool]) -> None:
        with self._mutex:
            for go_on in [each for each, (until, flag) in self._waits.items() if chosen(until, flag)]:
                del self._waits[go_on]
                self._add(1)
                go_on.set()

    def _count(self, by: int) -> None:
        with self._mutex:
            self._add(by)

    def _add(self, by: int) -> None:
        self._busy += by
        if self._busy == 0:
            self._quiet.set()
        elif self._quiet.is_set():
            self._quiet = super().flag()


class VirtualFlag:
    """A `Flag` on a virtual clock."""

    def __init__(self, runtime: VirtualRuntime) -> None:
        self._runtime = runtime
        self._is_set = False

    def set(self) -> None:
        """See `Flag`."""
        self._is_set = True
        self._runtime.wake(self)

    def is_set(self) -> bool:
        """See `Flag`."""
        return self._is_set

    def wait(self, timeout: float) -> bool:
        """See `Flag`. A thread of the test does not wait: it moves the clock."""
        if not self._is_set:
            self._runtime.pause(timeout, self)
        return self._is_set


class _VirtualThread:
    def __init__(self, runtime: VirtualRuntime, ended: VirtualFlag) -> None:
        self._runtime = runtime
        self._ended = ended

    def join(self) -> None:
        if not self._ended.is_set():
            self._runtime.pause(inf, self._ended)


class _ClosedError(BaseException):
    """Ends a background thread."""
