"""`Worker`: the threads of one process that claim and run tasks; `LookLine`: which queue they ask for work next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from limpet.kernel.errors import Invalid, LimpetError
from limpet.kernel.runtime import Runtime
from limpet.kernel.user_code import code_version
from limpet.kernel.waiting import backoff_s, ticks
from limpet.queue.api import Claim, Queue
from limpet.queue.look import FIRST_S, IDLE_S, MEAN_PART, LookSchedule
from limpet.queue.queue import BucketQueue
from limpet.worker.limits import Permits, Rate
from limpet.worker.protocol import EventKind, InterruptWatch, TaskCounts, WorkerEvent
from limpet.worker.runner import Job, Runner, SharedClaim, WorkerReport
from limpet.worker.schedule import CronPusher

TICK_S = 0.2
TOKEN_EVERY_S = 0.1
BURST_FAILURES_MAX = 5
LONG_POLLS = ("sqs",)
"""Providers whose claim waits in the server, and may miss a task if it does not."""
LONG_POLL_S = 20.0
SHORT_POLL_S = 1.0

BUSY_S = 1.0
REASONS_NAMED = 3
AHEAD_PART = 10
"""An entry is claimed ahead if entries have lately taken less than this part of `ttl_s`."""


class LookLine:
    """Which queue the threads of a worker ask next, by the schedule of each.

    All queues together are asked about once a second while any of them has work, and once in 24 s when none has: more
    queues, or more threads, cost no more requests.
    `in_order`: an earlier queue comes first. Otherwise the queue that had an entry goes to the end of the line.
    """

    def __init__(self, idle_s: Sequence[float], runtime: Runtime, *, in_order: bool) -> None:
        self.queues = [LookSchedule(longest_s, runtime) for longest_s in idle_s]
        self._mutex = runtime.mutex()
        self._line = [*range(len(idle_s))]
        self._in_order = in_order

    def take(self) -> int | None:
        """The queue to ask now; None when it is too early for each. Its schedule wants to know the result."""
        return next((n for n in self.line() if self.queues[n].take()), None)

    def found(self, n: int) -> None:
        """The queue had an entry. The others are asked soon: tasks often push tasks."""
        for schedule in self.queues:
            schedule.soon(BUSY_S * len(self.queues))
        self.queues[n].found()
        if not self._in_order:
            with self._mutex:
                self._line.remove(n)
                self._line.append(n)

    def line(self) -> list[int]:
        """All queues, in the order in which they are asked."""
        with self._mutex:
            return [*self._line]

    def failed_wait_s(self) -> float:
        """Seconds until every queue whose last look failed may be asked; 0.0 if there is none."""
        return max((max(each.wait_s(), FIRST_S) for each in self.queues if each.failures), default=0.0)

    def wait_s(self) -> float:
        """Seconds until a queue may be asked."""
        return min(each.wait_s() for each in self.queues)


class AheadClaim:
    """A claim that is made on another thread, while a task of the same queue, the job number `n`, runs."""

    def __init__(self, n: int, queue: Queue, runtime: Runtime) -> None:
        self.n = n
        self._queue = queue
        self._claim: Claim | None = None
        self._mutex = runtime.mutex()
        self._thread = runtime.spawn(self._run, name=f"limpet-ahead-{queue.name}")

    def _run(self) -> None:
        try:
            self._claim = self._queue.claim_ahead()
        except LimpetError:
            return  # the next poll meets the same trouble, and reports it

    def take(self) -> Claim | None:
        """Wait for the claim and take it; None if there is none, or it was taken before."""
        self._thread.join()
        with self._mutex:
            claim, self._claim = self._claim, None
        return claim


class Worker:
    """Runs the tasks of some queues until `stop`; with `burst`, until there is nothing left to claim.

    The tasks of a batch are spread over the threads: a thread that has claimed one offers it, and a thread without work
    takes a task of it before it polls.
    With `burst` and `until_empty` it also waits for tasks that are to be retried, that other processes have, or that
    are suspended and go on by themselves: not for those that wait for a signal, or for such a task. Delayed ones do not
    count. After `max_tasks` it stops by itself. Earlier jobs come first (`in_order`), or all take turns.
    `poll_s` replaces that of the queues' policies.
    `listener` gets every event; with `routine=False` only what is out of the ordinary.

    Crash: no task is lost. What the process held comes back when its claims run out.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        runtime: Runtime,
        *,
        threads: int = 1,
        burst: bool = False,
        until_empty: bool = False,
        in_order: bool = True,
        max_tasks: int | None = None,
        poll_s: float | None = None,
        listener: Callable[[WorkerEvent], None] | None = None,
        routine: bool = True,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        if not jobs:
            raise Invalid("a worker needs at least one queue to work on")
        if threads < 1 or (max_tasks is not None and max_tasks < 1):
            raise Invalid("threads and max_tasks must be at least 1")
        if poll_s is not None and not poll_s > 0:
            raise Invalid(f"poll_s must be positive, not {poll_s:g}")
        self.error: LimpetError | None = None
        """Why a burst gave up."""
        self.broken = False
        """Whether a thread ended by a bug in Limpet; its traceback is on stderr."""
        self._jobs = jobs
        _note_code(jobs)
        self._runtime = runtime
        self._burst = burst
        self._until_empty = until_empty
        self._on_end = on_end
        self._report = WorkerReport(runtime, listener, routine=routine)
        self._permits = Permits(max_tasks, runtime)
        self._stopping = runtime.flag()
        self._ended = runtime.flag()
        idle_s = [  # where a poll lists, all queues share the price of one
            IDLE_S * len(jobs) if job.queue.idle_poll_s == IDLE_S else (poll_s or job.queue.idle_poll_s) / MEAN_PART
            for job in jobs
        ]
        self._looks = LookLine(idle_s, runtime, in_order=in_order)
        self._rates = [Rate(each.queue.policy.rate_per_s, runtime) for each in jobs]
        self._cron = CronPusher([(each.queue, each.cron) for each in jobs if each.cron], runtime)
        self._turn = runtime.mutex()
        self._mutex = runtime.mutex()
        self._working = self._alive = threads
        self._claims_ahead: dict[str, AheadClaim] = {}
        self._offers: list[SharedClaim] = []
        self._wake = runtime.flag()
        """Ends the pause of the thread whose turn it is to wait. That thread replaces it, and then looks around."""
        self._runners = [
            Runner(f"{runtime.label}/{n}", runtime, self._report, self._permits, self._stopping, self._offer)
            for n in range(1, threads + 1)
        ]

    def run(self) -> TaskCounts:
        """Start the threads and wait until all have ended."""
        self.start()
        for _ in ticks(self._ended, TICK_S):
            self.tick()
        return self.counts()

    def run_here(self) -> TaskCounts:
        """Do the work of the first thread in the calling one, until it ends. Cron pushes nothing.

        Raises: KeyboardInterrupt after a SIGINT; the task that it interrupted went back.
        """
        with InterruptWatch() as interrupts:
            self._runners[0].interrupts = interrupts
            self._run_thread(self._runners[0])
        if interrupts.came:
            raise KeyboardInterrupt
        return self.counts()

    def start(self) -> None:
        """Start the threads."""
        if self._burst:
            self._push_cron()
        elif any(each.cron for each in self._jobs):
            self._runtime.spawn(self._keep_cron, name="limpet-cron")
        for runner in self._runners:
            self._runtime.spawn(partial(self._run_thread, runner), name=f"limpet-worker-{runner.name}")

    def stop(self) -> None:
        """Claim nothing more. Running tasks go on to their end; the rest of a batch goes back."""
        self._stopping.set()
        self._wake.set()

    def hand_back(self) -> None:
        """Stop, and hand back running tasks with their attempts restored. Handlers that cannot be cancelled go on."""
        self.stop()
        self._runtime.fan_out(self._hand_back_one, self._runners)
        self._flush_events()  # ended entries are removed in the background, or by the next claim of them

    def tick(self) -> None:
        """Report tasks that are overdue. `run` calls it every 0.2 s; a caller of `start` must do so too."""
        for runner in self._runners:
            runner.report_overdue()

    def wait(self, timeout_s: float) -> bool:
        """Wait at most so long until all threads have ended; whether they have."""
        return self._ended.wait(timeout_s)

    def counts(self) -> TaskCounts:
        """The counts so far."""
        return self._report.counts(in_flight=sum(runner.runs for runner in self._runners))

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called, by itself or from outside."""
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

    def _run_thread(self, runner: Runner) -> None:
        """Run one thread. Whatever ends it stops the worker."""
        went_well = False
        try:
            while (shared := self._ahead(runner) or self._join(runner) or self._find(runner)) is not None:
                queue = shared.job.queue
                short = runner.lately_s <= queue.policy.ttl_s / AHEAD_PART  # entries have lately been short
                if short and queue.claims_ahead and not (shared.offered or self._permits.limited or self._over):
                    self._claims_ahead[runner.name] = AheadClaim(shared.n, queue, self._runtime)
                try:
                    runner.work(shared)
                except LimpetError as error:
                    self._report.say("trouble", runner.name, queue=queue.name, note=_text(error))
                if shared.offered and shared.over:  # this thread was the last in it
                    with self._mutex:
                        self._offers = [offer for offer in self._offers if offer is not shared]
                self._report_notices(runner, shared.n)
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
                for job in self._jobs:
                    job.queue.flush()
                self._flush_events()
                self._ended.set()
                if self._on_end is not None:
                    self._on_end()

    def _shared(self, runner: Runner, n: int, claim: Claim) -> SharedClaim:
        return SharedClaim(n, self._jobs[n], claim, self._rates[n], runner.name, self._runtime)

    def _offer(self, shared: SharedClaim) -> None:
        if len(self._runners) > 1:
            with self._mutex:
                self._offers = [*self._offers, shared]
            self._wake.set()

    def _join(self, runner: Runner) -> SharedClaim | None:
        """A claim of another thread that has a task to start: this thread has joined it."""
        if not self._offers or self._over:
            return None
        return next((shared for shared in self._offers if shared.join(runner.name)), None)

    def _pause(self, seconds: float) -> bool:
        """Wait so long, or until the worker stops or tasks are offered; whether one of them came first.

        Where tasks wait for their rate, it is a short wait.
        """
        return self._wake.wait(min(seconds, TOKEN_EVERY_S) if self._may_join() else seconds)

    def _may_join(self) -> bool:
        return any(shared.claim.may_start for shared in self._offers)

    def _ahead(self, runner: Runner) -> SharedClaim | None:
        """The entry that was claimed while the last one ran. It goes back if the worker is to end."""
        ahead = self._claims_ahead.pop(runner.name, None)
        claim = ahead.take() if ahead is not None else None
        if ahead is None or claim is None:
            return None
        if self._over:
            self._give_back(runner, claim)
            return None
        return self._shared(runner, ahead.n, claim)

    def _give_back(self, runner: Runner, held: Runner | Claim) -> None:
        try:
            held.hand_back()
        except LimpetError as error:
            self._report.say("trouble", runner.name, note=f"could not hand back: {_text(error)}")

    def _find(self, runner: Runner) -> SharedClaim | None:
        """The next entry, or one of another thread; None when the worker is to end.

        Idle threads take turns: one waits for the queues, the others for it. So any number of idle threads make the
        requests of one.
        """
        found = self._poll(runner)
        if found is not None or self._over:
            return found
        with self._mutex:
            self._working -= 1
        try:
            with self._turn:
                return self._wait_for_all(runner) if self._burst else self._wait(runner)
        finally:
            with self._mutex:
                self._working += 1

    def _wait(self, runner: Runner) -> SharedClaim | None:
        while True:
            self._wake = self._runtime.flag()
            if self._over:
                return None
            tokens = [each.queue.change_token() for each in self._jobs]
            found = self._join(runner) or self._poll(runner, idle=True)
            if found is not None:
                return found
            self._rest(tokens)

    def _rest(self, tokens: Sequence[str | None]) -> None:
        """Wait until a queue is due, or its change token differs, where reading that costs no request."""
        while (left_s := self._looks.wait_s()) > 0:
            blind = all(token is None for token in tokens)
            woken = self._pause(left_s if blind else min(left_s, TOKEN_EVERY_S))
            for n, (each, token) in enumerate(zip(self._jobs, tokens, strict=True)):
                if token is not None and each.queue.change_token() != token:
                    self._looks.queues[n].wake()
            if woken or self._may_join():
                return

    def _wait_for_all(self, runner: Runner) -> SharedClaim | None:
        """As `_wait`, for a burst: it ends when all queues were empty while no thread of this worker had a task."""
        rounds = empty_rounds = 0
        while True:
            self._wake = self._runtime.flag()
            if self._over:
                return None
            quiet = self._working == 0
            found = self._join(runner)
            for n in self._looks.line() if found is None else ():
                if self._rates[n].take():
                    quiet = False
                elif (found := self._try(runner, n, last=quiet)) is not None:
                    break
            if found is not None:
                return found
            failed_s = self._looks.failed_wait_s()
            if self.error is not None:
                self.stop()
            elif not quiet or failed_s:
                rounds += 1
                self._pause(failed_s or backoff_s(self._runtime, rounds, longest_s=1.0))
            elif self._until_empty and self._anything_left(runner):
                empty_rounds += 1
                self._pause(backoff_s(self._runtime, empty_rounds, 1.0, longest_s=20.0))
                self._push_cron()
            else:
                self.stop()

    def _anything_left(self, runner: Runner) -> bool:
        """Whether a task has not ended that goes on by itself. A queue that cannot be read may have some.

        What is left is said: it waits for signals, or for tasks that do.
        """
        reasons: list[str] = []
        try:
            for each in self._jobs:
                still = each.queue.standstill()
                if still is None:
                    return True
                reasons += still
        except LimpetError as error:
            self._report.say("trouble", runner.name, note=_text(error))
            return True
        if reasons:
            self._report.say("warning", runner.name, note=_left(reasons))
        return False

    def _poll(self, runner: Runner, *, idle: bool = False) -> SharedClaim | None:
        """Poll the queues that are due, each at most once."""
        for _ in self._jobs:
            n = None if self._over else self._looks.take()
            if n is None:
                return None
            wait_s = self._rates[n].take()
            if wait_s:
                self._looks.queues[n].defer(wait_s)
            elif (shared := self._try(runner, n, idle=idle)) is not None:
                return shared
        return None

    def _try(self, runner: Runner, n: int, *, idle: bool = False, last: bool = False) -> SharedClaim | None:
        """Claim an entry of a queue. The caller took a permit of its rate; it goes back if there is no entry.

        `last`: the worker ends if there is none.
        """
        queue = self._jobs[n].queue
        wait_s = 0.0
        if queue.provider in LONG_POLLS:
            wait_s = LONG_POLL_S if idle and len(self._jobs) == 1 else SHORT_POLL_S
        try:
            claim = queue.claim_last() if last else queue.claim(wait_s=wait_s)
        except LimpetError as error:
            times = self._looks.queues[n].failed()
            self._report.say("trouble", runner.name, queue=queue.name, note=_text(error))
            if self._burst and times >= BURST_FAILURES_MAX:
                self.error = error
            claim = None
        else:
            if claim:
                self._looks.found(n)
                return self._shared(runner, n, claim)
            self._looks.queues[n].empty()
        finally:
            self._report_notices(runner, n)
        self._rates[n].give_back()
        return None

    def _report_notices(self, runner: Runner, n: int) -> None:
        """Report what the queue quarantined while it looked for entries: those tasks failed, though no handler ran."""
        queue = self._jobs[n].queue
        for notice in queue.notices():
            if notice.failed:
                self._report.count("failed", notice.failed)
            kind: EventKind = "failed" if notice.failed else "trouble"
            about = {"queue": queue.name, "id": notice.id, "note": notice.note, "tasks": max(1, notice.failed)}
            self._report.say(kind, runner.name, **about)

    @property
    def _over(self) -> bool:
        return self._stopping.is_set() or self._permits.used_up

    def _hand_back_one(self, runner: Runner) -> None:
        self._give_back(runner, runner)
        ahead = self._claims_ahead.get(runner.name)
        claim = ahead.take() if ahead is not None else None
        if claim is not None:
            self._give_back(runner, claim)

    def _flush_events(self) -> None:
        for sink in {id(job.events): job.events for job in self._jobs}.values():
            if sink is not None:
                sink.flush()

    def _keep_cron(self) -> None:
        self._push_cron()
        for _ in ticks(self._stopping, self._cron.wait_s):
            self._push_cron()

    def _push_cron(self) -> None:
        for queue, pushed in self._cron.push_due():
            self._report.say("cron", self._runtime.label, queue=queue, id=pushed.id)
        if self._cron.error is not None:
            self._report.say("trouble", self._runtime.label, note=f"cron: {_text(self._cron.error)}")


def _note_code(jobs: Sequence[Job]) -> None:
    """Each queue knows by which version of the code this process handles its tasks."""
    for job in jobs:
        if isinstance(job.queue, BucketQueue):
            job.queue.storage.code = code_version(job.handle)


def _left(reasons: Sequence[str]) -> str:
    """What is said of suspended tasks that a worker leaves, which is to end when there is nothing left."""
    often = Counter(reasons).most_common()
    named = "; ".join(f"{reason} ({count})" if count > 1 else reason for reason, count in often[:REASONS_NAMED])
    more = "; and others" if len(often) > REASONS_NAMED else ""
    tasks, them = ("1 task is", "it") if len(reasons) == 1 else (f"{len(reasons)} tasks are", "them")
    return f"{tasks} suspended, and nothing here wakes {them}: {named}{more}"


def _text(error: LimpetError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)
