"""`DrainRun` runs the tasks of a fleet on a virtual clock, and moves the clock to whatever is due next.

The work is done by a `Worker` in the caller's thread: claims, verdicts, retries and suspensions are those of
production. Each round looks at every lease anew, so that a task goes on as soon as it may, and not when an idle worker
would look again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from inspect import isawaitable
from typing import Any, cast

from limpet.app import Fleet
from limpet.kernel.errors import Invalid
from limpet.kernel.keys import QueueKeys, count_of
from limpet.kernel.lease import State
from limpet.kernel.store.api import Version
from limpet.kernel.wording import many
from limpet.queue import BucketQueue
from limpet.queue.api import Fail, TaskState
from limpet.queue.awaited import AwaitCheck, AwaitedStep
from limpet.queue.durable import looks, until
from limpet.queue.rows import TaskRow, open_rows
from limpet.queue.steps import Suspend
from limpet.queue.storage import Storage
from limpet.testing.clock import VirtualRuntime
from limpet.worker import TaskCounts, Worker, WorkerEvent, current_task
from limpet.worker.runner import Job
from limpet.worker.schedule import CronPusher
from limpet.worker.verdict import user_frames

MOVES_MAX = 1000
"""So often the clock is moved without a task that runs."""
NAMED = 3
NOTE = "task {0.id!r} of queue {0.queue!r} failed in attempt {0.attempts}; drain(raise_failed=False) only reports it"


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task that failed for good, and the `error` of its last attempt."""

    queue: str
    id: str
    attempts: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class OpenTask:
    """A task that has not ended. `reason`: what a suspended one waits for; `due_at`: when one goes on by itself."""

    queue: str
    id: str
    state: TaskState
    reason: str
    due_at: datetime | None


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What a drain did: how many tasks are `done` and `failed`, how many attempts were `retried`, and how often a
    durable task was `suspended`; the failures, the tasks that are `left`, and by how much it moved the clock.
    """

    done: int
    failed: int
    retried: int
    suspended: int
    failures: Sequence[FailedTask]
    left: Sequence[OpenTask]
    moved_s: float

    def waiting(self) -> list[str]:
        """What the tasks that are left wait for, or their states, sorted."""
        return sorted(task.reason or task.state for task in self.left)


class Failures:
    """What the handlers of a drain raised, and which tasks failed."""

    def __init__(self) -> None:
        self.tasks: list[FailedTask] = []
        self.stop: Callable[[], None] = lambda: None
        self.abort: BaseException | None = None
        """What ends the whole drain: pytest.fail, pytest.skip, a KeyboardInterrupt."""
        self._raised: dict[tuple[str, str], BaseException] = {}

    def watched(self, job: Job) -> Callable[[Any], Any]:
        """The handler of a job; what it raises is noted."""

        def handle(payload: Any) -> Any:
            with self._noting():
                value = job.handle(payload)
            return self._awaited(value) if isawaitable(value) else value

        return handle

    async def _awaited(self, work: Any) -> Any:
        with self._noting():
            return await work

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except Suspend:
            raise
        except BaseException as error:
            task = current_task()
            assert task is not None
            self._raised[task.queue, task.id] = error
            if not isinstance(error, Exception | SystemExit | GeneratorExit) and not _is_cancelled(error):
                self.abort = error
                self.stop()
            raise

    def hear(self, event: WorkerEvent) -> None:
        """Note a task that failed."""
        if event.kind == "failed":
            error = self._raised.get((event.queue, event.id)) or Fail(event.note)
            self.tasks.append(FailedTask(event.queue, event.id, event.attempt, error))

    def raise_first(self) -> None:
        """Raise the error of the first task that failed, with its own traceback, if there is one."""
        if not self.tasks:
            return
        error = self.tasks[0].error
        for task in self.tasks[:NAMED]:
            error.add_note(NOTE.format(task))
        if len(self.tasks) > NAMED:
            error.add_note(f"and {len(self.tasks) - NAMED} more failed")
        raise error.with_traceback(user_frames(error))


def _is_cancelled(error: BaseException) -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


class DrainRun:
    """One drain of a fleet: at most `max_tasks` runs of its tasks; ticks until `since` are left out."""

    def __init__(self, fleet: Fleet, runtime: VirtualRuntime, since: datetime, max_tasks: int) -> None:
        self._fleet = fleet
        self._runtime = runtime
        crons = [(task.queue, task.cron) for task in fleet.tasks if task.cron is not None]
        self._cron = CronPusher(crons, runtime, since=since)  # a tick that an earlier drain pushed has its id
        self._max_tasks = max_tasks
        self._counts = TaskCounts()
        self.failures = Failures()

    def run(self, end: datetime | None, *, until_idle: bool) -> DrainReport:
        """Run all that is due; `until_idle` also what becomes due, cron and all until `end`.

        Raises: Invalid if it does not come to an end.
        """
        began, moves = self._runtime.wall(), 0
        while self.failures.abort is None:
            ran = self._round()
            to = self._next_due(end, ran=ran > 0) if self.failures.abort is None else None
            if not until_idle and to != self._runtime.wall():
                break
            if to is None:
                break
            moves = 0 if ran else moves + 1
            if moves > MOVES_MAX:
                raise self._endless(f"moved the clock {MOVES_MAX} times, and no task ran", "tell us: this is a bug")
            self._runtime.move(to)
        if self.failures.abort is not None:
            raise self.failures.abort.with_traceback(user_frames(self.failures.abort))
        if end is not None:
            self._runtime.move(end)
        counts, moved_s = self._counts, (self._runtime.wall() - began).total_seconds()
        return DrainReport(
            counts.done, counts.failed, counts.retried, counts.suspended, self.failures.tasks, self._left(), moved_s
        )

    def _round(self) -> int:
        """Run what is due now; how many tasks ran."""
        self._cron.push_due()
        if self._cron.error is not None:
            raise self._cron.error
        jobs = [self._job(task.job) for task in self._fleet.tasks]
        if not jobs:
            return 0
        left = self._max_tasks - _runs(self._counts)
        worker = Worker(
            jobs, self._runtime, burst=True, in_order=False, max_tasks=left + 1, listener=self.failures.hear
        )
        self.failures.stop = worker.stop
        counts = worker.run_here()
        if worker.error is not None:
            raise worker.error
        self._counts += counts
        if _runs(counts) > left:
            raise self._endless(
                f"ran {many(self._max_tasks, 'task')}, and there are more",
                "a task that pushes itself again, or a frequent cron, has no end: give for_s=, or a higher max_tasks=",
            )
        return _runs(counts)

    def _job(self, job: Job) -> Job:
        cast(BucketQueue, job.queue).look_anew()
        return replace(job, handle=self.failures.watched(job), cron=None)

    def _endless(self, what: str, hint: str) -> Invalid:
        names = sorted({task.queue for task in self._left()})
        return Invalid(f"drain {what} (queues with open tasks: {', '.join(names) or 'none'})", hint=hint)

    def _next_due(self, end: datetime | None, *, ran: bool) -> datetime | None:
        """The next time at which a task goes on, or is pushed by cron; None if there is none until `end`.

        Without an `end`, cron alone does not go on. It is the present time if tasks that `ran` have made something due,
        which the round looked at before: a task that waits for one of them. What no round takes, say of a queue that is
        paused, is not due.
        """
        now = self._runtime.wall()
        times = [due for task in self._fleet.tasks for due in self._due_times(task.name)]
        if ran and any(due <= now for due in times):
            return now
        times = [due for due in times if due > now]
        if not times and end is None:
            return None
        tick = self._cron.next_tick()
        first = min([*times, *([] if tick is None else [tick])], default=None)
        return None if first is None or (end is not None and first > end) else first

    def _due_times(self, queue: str) -> Iterator[datetime]:
        storage, now = self._storage(queue), self._runtime.wall()
        seen: set[str] = set()
        for row in open_rows(storage):
            name = row.batch or row.id
            if row.lease is not None and name not in seen:
                seen.add(name)
                due = _lease_due(storage, row, now)
            else:
                due = row.due_at if row.state == "scheduled" else None
            if due is not None:
                yield due

    def _left(self) -> list[OpenTask]:
        return [
            OpenTask(queue, row.id, row.state, row.reason or "", row.due_at)
            for queue in self._fleet.queues()
            for row in open_rows(self._storage(queue))
            if row.state not in ("completed", "failed", "cancelled")
        ]

    def _storage(self, queue: str) -> Storage:
        return Storage(self._fleet.store, QueueKeys.of(queue), self._runtime)


def _runs(counts: TaskCounts) -> int:
    return counts.ended + counts.retried + counts.suspended + counts.lost


def _lease_due(storage: Storage, row: TaskRow, now: datetime) -> datetime | None:
    """When an entry goes on that has a lease; None if that depends on others, on a signal, or on who holds it."""
    lease = row.lease
    if lease is None or lease.state is not State.FREE:
        return None
    modified = now - timedelta(seconds=row.lease_age_s)
    at = modified + timedelta(seconds=lease.wait_s)
    steps = looks(lease, count_of(lease.name), modified=modified, now=max(now, at))
    awaited = [AwaitedStep(lease.name, Version(""), step) for step in steps]
    if not awaited or AwaitCheck(storage).ready(awaited):
        return at
    dues = (until(each, modified) for each in lease.suspended.values())
    return min((due for due in dues if due is not None), default=None)
