"""`Worker`: the threads of one process that claim entries and run their tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from limpet.errors import Invalid, LimpetError
from limpet.queue.api import Claim
from limpet.queue.work.cron import CronPusher
from limpet.queue.work.events import Event, EventKind, Tally
from limpet.queue.work.looks import Looks
from limpet.queue.work.rate import Rate
from limpet.queue.work.runner import Job, Permits, Report, Runner
from limpet.runtime import Runtime

TICK_S = 0.2
HINT_EVERY_S = 0.1
BURST_PAUSE_S = 0.05
BURST_PAUSE_MAX_S = 1.0
BURST_TROUBLES_MAX = 5
LONG_POLLS = ("sqs",)
"""Providers whose claim waits in the server, and may miss a task if it does not."""
LONG_POLL_S = 20.0
SHORT_POLL_S = 1.0


class Worker:
    """Runs the tasks of some queues until it is told to stop; `burst`: until there is nothing left to claim.

    An earlier job comes first (`in_order`), or they take turns. After `max_tasks` it stops by itself. `listener` hears
    every event; with `routine=False` only what is out of the ordinary.

    A process that ends, in whatever way, loses no task: what it held comes back when its claims run out.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        runtime: Runtime,
        *,
        threads: int = 1,
        burst: bool = False,
        in_order: bool = True,
        max_tasks: int | None = None,
        listener: Callable[[Event], None] | None = None,
        routine: bool = True,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        if not jobs:
            raise Invalid("a worker needs at least one queue to work on")
        if threads < 1 or (max_tasks is not None and max_tasks < 1):
            raise Invalid("threads and max_tasks must be at least 1")
        self.error: LimpetError | None = None
        """Why a burst gave up."""
        self.broken = False
        """Whether a thread ended by a mistake of Limpet's own; its traceback is on stderr."""
        self._jobs = jobs
        self._runtime = runtime
        self._burst = burst
        self._on_end = on_end
        self._report = Report(runtime, listener, routine=routine)
        self._permits = Permits(max_tasks, runtime)
        self._stopping = runtime.flag()
        self._ended = runtime.flag()
        self._looks = Looks(len(jobs), runtime, in_order=in_order)
        self._rates = [_rate(each, runtime) for each in jobs]
        self._cron = CronPusher([(each.queue, each.cron) for each in jobs if each.cron], runtime)
        self._turn = runtime.mutex()
        self._mutex = runtime.mutex()
        self._working = self._alive = threads
        self._runners = [
            Runner(f"{runtime.label}/{n}", runtime, self._report, self._permits, self._stopping)
            for n in range(1, threads + 1)
        ]

    def run(self) -> Tally:
        """Start, and stay until all threads have ended."""
        self.start()
        while not self.wait(TICK_S):
            self.tick()
        return self.tally()

    def run_here(self) -> Tally:
        """Do the work of the first thread in this one, until it ends. Nothing is pushed by the clock."""
        self._live(self._runners[0])
        return self.tally()

    def start(self) -> None:
        """Start the threads."""
        if self._burst:
            self._push_cron()
        elif any(each.cron for each in self._jobs):
            self._runtime.spawn(self._keep_cron, name="limpet-cron")
        for runner in self._runners:
            self._runtime.spawn(partial(self._live, runner), name=f"limpet-worker-{runner.name}")

    def stop(self) -> None:
        """Claim nothing more. What runs goes on to its end; the rest of a batch goes back."""
        self._stopping.set()

    def hand_back(self) -> None:
        """Stop, and give back what runs, with its attempts restored. Handlers that cannot be cancelled go on."""
        self.stop()
        self._runtime.fan_out(self._hand_back_one, self._runners)
        self._flush_events()

    def tick(self) -> None:
        """Look after the tasks that run: to be called now and then by whoever does not call `run`."""
        for runner in self._runners:
            runner.tell_overdue()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all threads have ended, or the time is over; whether they have ended."""
        return self._ended.wait(timeout_s)

    def tally(self) -> Tally:
        """The counts of this moment."""
        return self._report.tally.now(in_flight=sum(runner.runs for runner in self._runners))

    @property
    def stopping(self) -> bool:
        """Whether it claims nothing more."""
        return self._stopping.is_set()

    @property
    def ended(self) -> bool:
        """Whether all threads have ended."""
        return self._ended.is_set()

    @property
    def busy(self) -> bool:
        """Whether any thread has a claim."""
        return any(runner.busy for runner in self._runners)

    @property
    def used_up(self) -> bool:
        """Whether `max_tasks` were started."""
        return self._permits.used_up

    @property
    def halted(self) -> str | None:
        """Why it stopped by itself, if a handler asked the process to end."""
        return next((runner.halted for runner in self._runners if runner.halted), None)

    def _live(self, runner: Runner) -> None:
        """The life of one thread. Whatever ends it ends the worker."""
        went_well = False
        try:
            while (found := self._find(runner)) is not None:
                n, claim = found
                try:
                    runner.work(self._jobs[n], claim, self._rates[n])
                except LimpetError as error:
                    self._report.say("trouble", runner.name, queue=self._jobs[n].queue.name, note=_said(error))
                self._tell_notices(runner, n)
                if runner.halted:
                    self.stop()
            went_well = True
        finally:
            self.broken = self.broken or not went_well
            self.stop()
            runner.close()
            with self._mutex:
                self._alive -= 1
                last = self._alive == 0
            if last:
                self._flush_events()
                self._ended.set()
                if self._on_end is not None:
                    self._on_end()

    def _find(self, runner: Runner) -> tuple[int, Claim] | None:
        """The next entry to work on, and its job; None when the worker is to end.

        A thread that finds nothing waits for its turn, and whose turn it is waits for the queues: any number of idle
        threads make the requests of one.
        """
        found = self._look(runner)
        if found is not None or self._over:
            return found
        self._count_working(-1)
        try:
            with self._turn:
                return self._wait_for_all(runner) if self._burst else self._wait(runner)
        finally:
            self._count_working(1)

    def _wait(self, runner: Runner) -> tuple[int, Claim] | None:
        while not self._over:
            hints = [each.queue.change_token() for each in self._jobs]
            found = self._look(runner, idle=True)
            if found is not None:
                return found
            self._rest(hints)
        return None

    def _rest(self, hints: Sequence[str | None]) -> None:
        """Until a queue may be looked at, or one is seen to have changed where seeing costs no request."""
        while (left_s := self._looks.wait_s()) > 0:
            blind = all(hint is None for hint in hints)
            if self._stopping.wait(left_s if blind else min(left_s, HINT_EVERY_S)):
                return
            for n, (each, hint) in enumerate(zip(self._jobs, hints, strict=True)):
                if hint is not None and each.queue.change_token() != hint:
                    self._looks.wake(n)

    def _wait_for_all(self, runner: Runner) -> tuple[int, Claim] | None:
        """As `_wait`, for a burst: it ends when all queues were empty while no thread of ours was at work."""
        pause_s = BURST_PAUSE_S
        while not self._over:
            quiet = self._working == 0
            for n in self._looks.line():
                if self._rate_wait_s(n):
                    quiet = False
                elif (claim := self._try(runner, n)) is not None:
                    return n, claim
            trouble_s = self._looks.trouble_wait_s()
            if self.error is not None or (quiet and not trouble_s):
                self.stop()
            self._stopping.wait(trouble_s or pause_s)
            pause_s = min(pause_s * 2, BURST_PAUSE_MAX_S)
        return None

    def _look(self, runner: Runner, *, idle: bool = False) -> tuple[int, Claim] | None:
        """Look at the queues whose time has come, each at most once."""
        for _ in self._jobs:
            n = None if self._over else self._looks.take()
            if n is None:
                return None
            wait_s = self._rate_wait_s(n)
            if wait_s:
                self._looks.later(n, wait_s)
            elif (claim := self._try(runner, n, idle=idle)) is not None:
                return n, claim
        return None

    def _try(self, runner: Runner, n: int, *, idle: bool = False) -> Claim | None:
        """Claim an entry of a queue, for which a permit of its rate was taken."""
        queue = self._jobs[n].queue
        wait_s = 0.0
        if queue.provider in LONG_POLLS:
            wait_s = LONG_POLL_S if idle and len(self._jobs) == 1 else SHORT_POLL_S
        try:
            claim = queue.claim(wait_s=wait_s)
        except LimpetError as error:
            times = self._looks.trouble(n)
            self._report.say("trouble", runner.name, queue=queue.name, note=_said(error))
            if self._burst and times >= BURST_TROUBLES_MAX:
                self.error = error
            claim = None
        else:
            if claim:
                self._looks.found(n)
                return claim
            self._looks.empty(n)
        finally:
            self._tell_notices(runner, n)
        rate = self._rates[n]
        if rate is not None:
            rate.give_back()
        return None

    def _tell_notices(self, runner: Runner, n: int) -> None:
        """Report what the queue put aside while it looked for work: it failed, though no handler ran."""
        queue = self._jobs[n].queue
        for notice in queue.notices():
            if notice.failed:
                self._report.tally.add("failed", notice.failed)
            kind: EventKind = "failed" if notice.failed else "trouble"
            self._report.say(kind, runner.name, queue=queue.name, id=notice.id, note=notice.note)

    def _rate_wait_s(self, n: int) -> float:
        rate = self._rates[n]
        return rate.take() if rate is not None else 0.0

    @property
    def _over(self) -> bool:
        return self._stopping.is_set() or self._permits.used_up

    def _count_working(self, by: int) -> None:
        with self._mutex:
            self._working += by

    def _hand_back_one(self, runner: Runner) -> None:
        try:
            runner.hand_back()
        except LimpetError as error:
            self._report.say("trouble", runner.name, note=f"could not hand back: {_said(error)}")

    def _flush_events(self) -> None:
        for sink in {id(job.events): job.events for job in self._jobs}.values():
            if sink is not None:
                sink.flush()

    def _keep_cron(self) -> None:
        while not self._stopping.is_set():
            self._push_cron()
            self._stopping.wait(self._cron.wait_s())

    def _push_cron(self) -> None:
        for queue, pushed in self._cron.push_due():
            self._report.say("cron", self._runtime.label, queue=queue, id=pushed.id)
        if self._cron.error is not None:
            self._report.say("trouble", self._runtime.label, note=f"cron: {_said(self._cron.error)}")


def _rate(job: Job, runtime: Runtime) -> Rate | None:
    per_s = job.queue.policy.rate_per_s
    return None if per_s is None else Rate(per_s, runtime)


def _said(error: LimpetError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)
