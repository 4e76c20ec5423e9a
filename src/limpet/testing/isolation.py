"""`isolated`: an application's own fleet on an empty store in memory and on a clock that a test moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from limpet.app import Fleet, open
from limpet.app.place import SQS, provider_of
from limpet.kernel.errors import Invalid, Unsupported
from limpet.kernel.runtime import system
from limpet.testing.at_once import check_fleet, in_plain_thread
from limpet.testing.clock import VirtualRuntime, checked_move
from limpet.testing.draining import DrainReport, DrainRun

TASKS_MAX = 10_000
KEPT = ("_tasks", "handles")
"""What stays with a fleet that is isolated."""


class IsolatedFleet:
    """A fleet in the block of `isolated`: its clock, and `drain`, which runs its tasks."""

    def __init__(self, fleet: Fleet, runtime: VirtualRuntime) -> None:
        self.fleet = fleet
        self._runtime = runtime
        self._is_over = self._drains = False
        self._since = runtime.wall()

    @property
    def now(self) -> datetime:
        """The time on the clock of the fleet. It stands still but for `move`, `drain`, and waits of the test itself."""
        return self._runtime.wall()

    def move(self, seconds: float) -> None:
        """Move the clock forward; no task runs meanwhile, as if no worker were there.   Raises: Invalid."""
        self._check_open("move")
        self._runtime.move(self.now + timedelta(seconds=checked_move(seconds)))

    def drain(
        self,
        *,
        until_idle: bool = True,
        for_s: float | None = None,
        until: datetime | None = None,
        max_tasks: int = TASKS_MAX,
        raise_failed: bool = True,
    ) -> DrainReport:
        """Run the tasks of the fleet, one after another in this thread, and move the clock to whatever is due next:
        a delayed task, the next attempt, the end of a sleep or of a time limit, a tick of a cron.

        It ends when nothing goes on by itself; `left` says what then waits, for a signal for example. Cron alone does
        not keep it going, unless `for_s` or `until` says how far to go; the clock is then there at the end. With
        `until_idle=False` only what is due now is run. The error of a task that failed for good is raised at the end,
        with its own traceback; with `raise_failed=False` it stands in `failures`. pytest.fail and pytest.skip in a
        handler end the drain at once. A handler's own `time.sleep` really sleeps.
        Raises: Invalid behind the block, in a handler, or when there is no end after `max_tasks` runs; the errors of
        handlers.
        """
        self._check_open("drain")
        end = self._end(until_idle=until_idle, for_s=for_s, until=until)
        if max_tasks < 1:
            raise Invalid(f"max_tasks must be at least 1, not {max_tasks}")
        if self._drains:
            raise Invalid("a drain runs already", hint="a handler cannot drain; what it pushes is run by this drain")
        draining = DrainRun(self.fleet, self._runtime, self._since, max_tasks)
        self._drains = True
        try:
            report = in_plain_thread(lambda: draining.run(end, until_idle=until_idle))
        finally:
            self._drains = False
        if raise_failed:
            draining.failures.raise_first()
        return report

    def close(self) -> None:
        """The block is over."""
        self._is_over = True
        self._runtime.close()

    def _check_open(self, what: str) -> None:
        if self._is_over:
            raise Invalid(
                f"{what} was called behind the block of testing.isolated",
                hint="call it inside: with testing.isolated(fleet) as test: ...",
            )

    def _end(self, *, until_idle: bool, for_s: float | None, until: datetime | None) -> datetime | None:
        if for_s is None and until is None:
            return None
        if for_s is not None and until is not None:
            raise Invalid("give for_s or until, not both")
        if not until_idle:
            raise Invalid("for_s and until move the clock, and until_idle=False does not", hint="give one of them")
        if until is None:
            return self.now + timedelta(seconds=checked_move(for_s or 0.0))
        checked_zone(until, "until")
        if until < self.now:
            raise Invalid(f"the clock is at {self.now}, behind until={until}", hint="a clock moves forward")
        return until


@contextmanager
def isolated(fleet: Fleet, *, start: datetime | None = None, seed: int = 0) -> Iterator[IsolatedFleet]:
    """`with testing.isolated(fleet) as test:` the fleet works on an empty store in memory for the time of the block.

    So does what was made of it, before or in the block: its tasks and their queues, indexes, locks, cells, catalogs.
    Nothing of the fleet's own place is read or written, and it need not exist. Afterwards all of it is as before, and
    what the block wrote is gone. Time is virtual: the clock shows `start` (default: now), and moves when `test.drain`
    or `test.move` moves it; a wait in the test, such as `result(wait_s=5)`, moves it too. Chance follows from `seed`.
    `datetime.now()` and `time.time()` show the real time: ask `test.now`. Fleets that are opened in the block are
    others, and are not isolated. Events are not kept.
    Raises: Invalid for anything but a fleet, or one that is isolated already; Unsupported for one in SQS.
    """
    check_fleet(fleet, "isolated")
    if provider_of(fleet.url) == SQS:
        raise Unsupported("a fleet in SQS cannot be isolated", hint="open memory:// in the tests: LIMPET_URL=memory://")
    if start is not None:
        checked_zone(start, "start")
    runtime = VirtualRuntime(start or system().wall(), seed)
    with _swapped(fleet, runtime):
        runtime.restart()
        test = IsolatedFleet(fleet, runtime)
        try:
            yield test
        finally:
            test.close()


def checked_zone(at: datetime, name: str) -> None:
    """Raises: Invalid for a time without a zone."""
    if at.tzinfo is None:
        raise Invalid(f"{name}={at} has no zone", hint="write datetime(..., tzinfo=UTC)")


@contextmanager
def _swapped(fleet: Fleet, runtime: VirtualRuntime) -> Iterator[None]:
    """In the block the fleet is one in memory, and so are its handles; each stays the object that it is.

    What a handle has read and keeps belongs to one place, so that each gets the state of a new one, and its own back.
    """
    if isinstance(fleet.runtime, VirtualRuntime):
        raise Invalid(
            "the fleet is isolated already", hint="one block at a time, in one thread; a fixture may have opened it"
        )
    own, hooks = fleet.__dict__, fleet.tasks.hooks
    events, hooks.events = hooks.events, None
    inner = open("memory://", events=False, presence=False, runtime=runtime)
    fleet.__dict__ = {**inner.__dict__, **{name: own[name] for name in KEPT}}
    states: dict[Any, dict[str, Any]] = {}
    try:
        for handle in [*fleet.handles]:
            states[handle] = handle.__dict__
            handle.__dict__ = fleet.handles[handle](fleet).__dict__
        yield
    finally:
        fleet.__dict__, hooks.events = own, events
        for handle in [*fleet.handles]:
            handle.__dict__ = states[handle] if handle in states else fleet.handles[handle](fleet).__dict__
