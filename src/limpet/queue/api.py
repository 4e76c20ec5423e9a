"""The interface of a queue: what every provider promises, and the values that it takes and returns."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, cast, get_args

from limpet.kernel.answers import AnswersNames, answers_fields, answers_options
from limpet.kernel.cell import Fence
from limpet.kernel.drop import DropReport
from limpet.kernel.errors import Invalid, LeaseLost, TaskFailed, Unsupported
from limpet.kernel.lease.decide import check_ttl
from limpet.kernel.records import SECONDS_MAX
from limpet.kernel.wording import many

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any, covariant=True)
else:
    from typing import TypeVar

    T = TypeVar("T", covariant=True)

Feature = Literal[
    "attempts",
    "batches",
    "cancel",
    "delay",
    "fencing",
    "ids",
    "pause",
    "peek",
    "poison",
    "purge",
    "results",
    "retry",
    "slots",
    "stats",
    "steps",
]
FEATURES: frozenset[Feature] = frozenset(get_args(Feature))
"""Every feature: per-task attempts, batches of any size, deduplication by id, results, and so on."""

TaskState = Literal[
    "scheduled",
    "waiting",
    "running",
    "resting",
    "suspended",
    "completed",
    "failed",
    "cancelled",
]
TASK_STATES: dict[TaskState, str] = {
    "scheduled": "pushed with a delay, and not due yet",
    "waiting": "waits for a worker: it was not claimed yet, or its worker died, or its next attempt is due",
    "running": "a live worker has claimed it",
    "resting": "waits for its next attempt, which is not due yet",
    "suspended": "a durable task that waits for a time, a signal or other tasks, without a worker",
    "completed": "its handler returned",
    "failed": "its attempts are used up, or it was given up; it was not retried since",
    "cancelled": "an operator ended it",
}
"""The words for the state of a task, the same in every view. The second to the fifth together are `pending`."""

Outcome = Literal["completed", "failed", "cancelled", "pending", "scheduled", "unknown"]


@answers_fields
@dataclass(frozen=True, slots=True)
class Policy:
    """How a process treats the tasks that it claims."""

    max_attempts: int = 5
    ttl_s: float = 60.0
    """How long a claim lasts after its last renewal. Then another worker may take it."""
    timeout_s: float | None = 3600.0
    """How long one task may take (None: no limit). Past it the claim is not renewed, and another worker takes it."""
    backoff_s: float = 2.0
    """The wait before the second attempt; it doubles for each further one."""
    backoff_max_s: float = 300.0
    concurrency: int | None = None
    """The most claims at once, over all processes (None: no limit). The tasks of each then run one at a time."""
    rate_per_s: float | None = None
    """The most tasks a second in this process (None: no limit)."""
    retention_s: float = 30 * 86400.0
    """How long receipts and results are kept, and so how long a user's id stays taken; `float("inf")`: for ever."""
    poll_s: float = 2.0
    """How often an idle worker asks a bucket whether something was pushed; a directory and memory cost no request."""
    durable: bool = False
    """Whether every push of a task is a step, so that an attempt that died after it finds it done. Else a task is
    durable from its first `limpet.step` on."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if not isinstance(value, int | float | None):
                raise Invalid(f"{name} is a number, not {value!r}")
        if self.max_attempts < 1:
            raise Invalid(f"max_attempts must be at least 1, not {self.max_attempts}")
        if self.concurrency is not None and not 1 <= self.concurrency <= 1000:
            raise Invalid(f"concurrency must be between 1 and 1000, not {self.concurrency}")
        for name in ("timeout_s", "rate_per_s", "poll_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise Invalid(f"{name} must be positive, not {value:g}")
        if not (self.backoff_s >= 0 and self.backoff_max_s >= 0):
            raise Invalid("backoff_s and backoff_max_s cannot be negative")
        check_ttl(self.ttl_s)
        if not self.retention_s >= 7 * 86400:
            raise Invalid("receipts must be kept for at least 7 days", hint="retention_s >= 604800")

    @property
    def kept_s(self) -> float | None:
        """`retention_s`; None if receipts are kept for ever, as they are from ten years on."""
        return self.retention_s if self.retention_s <= SECONDS_MAX else None


class Follower(Protocol):
    """A task function that can be pushed to run after others."""

    def push_after(self, tasks: Sequence[TaskHandle], *, many: bool = False) -> Pushed:
        """Push a task that runs when these have ended."""


def check_follower(task: object) -> None:
    """Raises: Invalid for what cannot run after other tasks, such as a plain function."""
    if not hasattr(task, "push_after"):
        raise Invalid(f"{getattr(task, '__name__', task)!r} is not a task", hint="decorate it with @fleet.task")


FAILED_BY_COMMAND = "failed by command"
NO_VERDICT = "the block ended without a verdict"


class TaskHandle(AnswersNames, str, Generic[T]):
    """The id of a task that was pushed: a text like any other, which knows its queue. Queues make them.

    `T` is what the task returns. A copy of it, a pickle, and what JSON holds of it are plain texts. (msgspec alone
    wants `str(handle)`.)
    """

    __slots__ = ("queue",)
    queue: Queue
    """The queue that it was pushed to."""

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    @answers_options
    def result(self, *, wait_s: float = 0.0) -> Result[T]:
        """The outcome of the task, waiting up to `wait_s` for it.   Raises, Cost: see `Queue.result`."""
        return self.queue.result(self, wait_s=wait_s)

    async def result_async(self, *, wait_s: float = 0.0) -> Result[T]:
        """`result`, for coroutines: the event loop goes on meanwhile."""
        return await self.queue.result_async(self, wait_s=wait_s)

    def then(self, task: Follower) -> Pushed:
        """Push a task that runs when this one has ended, with its `Result`.   See `Pushed.then`."""
        check_follower(task)
        return task.push_after([self])


@dataclass(frozen=True, slots=True)
class Pushed(AnswersNames, Generic[T]):
    """The answer to a push of a task that returns a `T`. `created` is False when the id was already taken: pending,
    running or ended."""

    id: str
    """A `TaskHandle`, if a queue has made it."""
    created: bool

    @answers_options
    def result(self, *, wait_s: float = 0.0) -> Result[T]:
        """The outcome of the task, waiting up to `wait_s` for it.   Raises, Cost: see `Queue.result`."""
        return self._handle().result(wait_s=wait_s)

    async def result_async(self, *, wait_s: float = 0.0) -> Result[T]:
        """`result`, for coroutines: the event loop goes on meanwhile."""
        return await self._handle().result_async(wait_s=wait_s)

    def then(self, task: Follower) -> Pushed:
        """`enrich.push("a.com").then(notify)`: push a task that calls `notify(result)` when this one has ended.

        `result` is a `Result`: a failed task has ended too. The follower is a durable task: it holds no worker while it
        waits.   Cost: 1 PUT.   Crash: without an id, a process that dies between the two pushes leaves no follower.
        """
        return self._handle().then(task)

    def _handle(self) -> TaskHandle[T]:
        if not isinstance(self.id, TaskHandle):
            raise Invalid(f"the id {self.id!r} does not say in which queue it is", hint="ask queue.result(id)")
        return cast("TaskHandle[T]", self.id)


@dataclass(frozen=True, slots=True)
class Peeked:
    """A task that waits."""

    id: str
    payload: Any
    pushed_at: datetime | None


@dataclass(frozen=True, slots=True)
class AttemptError:
    """A failed attempt of a task: its number, when and in which worker it failed, and why."""

    attempt: int
    at: datetime
    worker: str
    error: str
    traceback: str | None


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning, or tasks that were failed without running them, met while a queue looked for work.

    `failed` is the number of tasks that it ended in failed/: they could not be read, or their workers died too often.
    With 0 it is only a warning. `id` is the task or its entry; "" for the queue itself.
    """

    id: str
    note: str
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Result(AnswersNames, Generic[T]):
    """The outcome of a task, or that it has not ended yet.

    `value` is what its handler returned, built by the return type of the task function that was asked; if it does not
    fit, it is as stored, and `error` says so. `error` and `traceback` say why a task failed; `errors` are its last
    failed attempts, oldest first.
    """

    id: str
    state: Outcome
    value: T | None = None
    error: str | None = None
    traceback: str | None = None
    worker: str | None = None
    attempts: int = 0
    finished_at: datetime | None = None
    """None for a task that was done in a batch which still runs: state and value stay, the rest comes with its end."""
    errors: tuple[AttemptError, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether it has ended."""
        return self.state in ("completed", "failed", "cancelled")

    @property
    def ok(self) -> bool:
        """Whether it has completed."""
        return self.state == "completed"

    def unwrap(self) -> T:
        """What the handler returned.

        Raises: TaskFailed with the traceback of the worker, if the task has failed; also if it was cancelled, or has
        not ended. Invalid for a value that does not fit the return type.
        """
        if self.ok and self.error is None:
            return cast(T, self.value)
        if self.ok:
            raise Invalid(f"task {self.id!r}: {self.error}", hint="fleet.queue(name).result(id) has it as it is stored")
        raise _no_value(self)


def _no_value(result: Result[Any]) -> TaskFailed:
    """Why a task that has not completed has no value."""
    times = many(result.attempts, "attempt")
    text, hint = {
        "failed": (
            f"failed after {times}: {result.error}",
            f"queue.retry({str(result.id)!r}), or `limpet queue retry`, runs it again",
        ),
        "cancelled": ("was cancelled", "push it again if it is to run"),
        "unknown": (result.error or "is not there", "check the id: a result is kept for retention_s"),
    }.get(result.state, (f"has not ended: it is {result.state}", "wait for it: result(wait_s=60)"))
    trace = f"\n\nin the worker {result.worker}:\n{result.traceback}" if result.traceback else ""
    failed = TaskFailed(f"task {str(result.id)!r} {text}{trace}", hint=hint)
    failed.id, failed.state, failed.attempts = str(result.id), result.state, result.attempts
    failed.error, failed.traceback = result.error, result.traceback
    return failed


@dataclass(frozen=True, slots=True)
class Failure:
    """Tasks that failed with the same error, numbers in it aside: how many, when the last one failed, and some ids.

    At most ten ids, the newest failure first.
    """

    error: str
    count: int
    last_at: datetime
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """How many tasks of a queue are in each state.

    `in_flight` counts tasks whose worker renewed its claim lately, `resting` those that wait for their next attempt or
    are suspended, `done` those that are done in a batch that has not ended, as of its last heartbeat; all are part of
    `pending`.
    """

    pending: int
    in_flight: int
    scheduled: int
    completed: int | None
    """None where the provider keeps no count (SQS)."""
    failed: int
    oldest_s: float | None
    """The age of the task that waits longest, by the store's clock."""
    paused: bool
    resting: int | None = 0
    """None where the provider keeps no count (SQS)."""
    done: int | None = 0
    """None where the provider keeps no count (SQS)."""
    cancelled: int | None = 0
    """Tasks that were cancelled; they are not among `failed`. None where the provider keeps no count (SQS)."""

    @property
    def running(self) -> int:
        """As `in_flight`, by the word that every view has for the state of such a task."""
        return self.in_flight


class Task(Protocol):
    """One task that this process holds. Give it exactly one verdict: `done`, `retry` or `fail`."""

    @property
    def id(self) -> str:
        """Its id: the one that was given to `push`, or a generated one."""

    @property
    def key(self) -> str:
        """Its idempotency key: the same in every attempt and every retry, another one for each push of an id."""

    @property
    def payload(self) -> Any:
        """What was pushed."""

    @property
    def attempt(self) -> int:
        """1-based attempt number. A first claim that dies before its first heartbeat is not counted."""

    @property
    def lost(self) -> bool:
        """Whether the claim is known to be over. The work may go on, but another worker may do it too."""

    @property
    def fence(self) -> Fence | None:
        """The lock and the token of the claim, for `cell.write(value, lease=...)`; None where the provider has none."""

    def done(self, result: Any = None) -> None:
        """It succeeded. With a result, `queue.result(id)` returns it for as long as receipts are kept.

        While the store cannot be reached, it tries again until the claim ends.
        Raises: Invalid for a result that is not JSON or over 256 KiB (the task then still needs a verdict).
        """

    def retry(self, after_s: float | None = None, error: str = "", traceback: str | None = None) -> None:
        """This attempt failed. The task runs again after `after_s`, or fails for good when its attempts are used up."""

    def fail(self, error: str, traceback: str | None = None) -> None:
        """It failed for good."""


class Claim(Protocol):
    """Tasks that this process holds until `ttl_s` after the last renewal: one, or a batch. Falsy when it is empty."""

    @property
    def token(self) -> int:
        """The fencing token; 0 where the provider has none."""

    @property
    def lost(self) -> bool:
        """Whether it is known to be over."""

    def __bool__(self) -> bool:
        """Whether it holds any task."""

    def __iter__(self) -> Iterator[Task]:
        """The tasks, one after another. Each is charged with an attempt just before it is handed out."""

    def start_next(self) -> Task | None:
        """The next task, charged with an attempt; None if none may be started now, beside those that run.

        For threads that run the tasks of one claim side by side. Tasks that ran when an earlier holder died come first,
        one at a time. With `max_attempts=1` or `concurrency` one task runs at a time.
        """

    @property
    def may_start(self) -> bool:
        """Whether `start_next` has a task now, as far as this process knows."""

    def __enter__(self) -> Claim: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Write the verdicts, and release tasks that were never handed out with their attempt restored.

        A task in whose block an exception was raised is retried with that error.
        """

    def hand_back(self) -> None:
        """Release the tasks that have no verdict, running ones too, with their attempts restored (as on SIGTERM)."""


class ResultType(Protocol):
    """Builds the values of results."""

    def built_result(self, result: Result) -> Result:
        """The result with its value built."""


class Queue(Protocol):
    """Tasks that are done at least once, in a directory, a bucket or SQS; `supports` says what each of them can do."""

    @property
    def name(self) -> str:
        """The queue's name."""

    @property
    def provider(self) -> str:
        """`filesystem`, `bucket`, `memory` or `sqs`."""

    @property
    def supports(self) -> frozenset[Feature]:
        """The features of this provider. Using any other raises `Unsupported`."""

    @property
    def policy(self) -> Policy:
        """How this process treats the tasks that it claims."""

    result_type: ResultType | None
    """What builds the values of results; None: they stay as they are stored. A task function sets its return type."""

    def push(self, payload: Any, *, id: str | int | None = None, delay_s: float = 0.0) -> Pushed:
        """Add one task. Once it returns, the task is never lost. With an id, at most one task of that id exists.

        Raises: Invalid for a payload that is not JSON or over 256 KiB; OutcomeUnknown (push again with the same id).
        """

    def push_many(
        self, payloads: Iterable[Any], *, batch: int = 100, id: str | int | None = None
    ) -> Sequence[TaskHandle]:
        """Add many tasks, packed `batch` to an entry; returns their ids, in order.

        With an `id`, the same call made again adds nothing, and returns the same ids, until `retention_s` after it.
        Raises: Conflict if the id was used for another number of tasks, or other batches. OutcomeUnknown if it ended
        half-way, by a full disk, say: `error.pushed` has the handles of the tasks that are there, `error.rest` the
        places of the others. With an `id`, the same call adds them.
        """

    def claim(self, *, wait_s: float = 0.0) -> Claim:
        """Claim one entry (one task, or a batch) for this process, waiting up to `wait_s` for one."""

    def claim_last(self) -> Claim:
        """As `claim`, but nothing is claimed only if a look through all of the backlog found nothing to claim."""

    @property
    def idle_poll_s(self) -> float:
        """The longest pause between two polls of an idle worker."""

    @property
    def claims_ahead(self) -> bool:
        """Whether it pays to claim an entry while another one runs. It does in a bucket, where a claim takes a round
        trip, and one that is not used goes back with its attempt."""

    def claim_ahead(self) -> Claim | None:
        """Claim an entry that is known to wait; None if none is known."""

    def flush(self) -> None:
        """Finish what was left to the background: in a bucket, the deletes of ended entries."""

    def change_token(self) -> str | None:
        """A text that changes whenever a task is pushed or ends; None if asking would cost a request."""

    def stats(self) -> Stats:
        """How many tasks are in each state."""

    def standstill(self) -> Sequence[str] | None:
        """What each task waits for, if no task goes on by itself: all are suspended until a signal comes, or until
        other tasks end that stand still as well. None if a task goes on; empty if there is none.
        """

    def peek(self, n: int = 10) -> Sequence[Peeked]:
        """Up to `n` pending tasks, without claiming them."""

    def result(self, id: str | int, *, wait_s: float = 0.0) -> Result:
        """The outcome of a task, or where it is; with `wait_s`, after waiting so long at most for its end."""

    def results(self, ids: Iterable[str | int]) -> Sequence[Result]:
        """The outcomes of many tasks, or where they are, in the order of `ids`.

        A task of a batch that still runs has ended here once a heartbeat of its worker says so. One whose objects
        cannot be read is `unknown`, with the reason in `error`.
        """

    def wait(self, ids: Iterable[str | int], *, timeout_s: float) -> Sequence[Result]:
        """Wait until all these tasks have ended, or for `timeout_s`; then what `results` says.

        A failed task has ended too, and so has a cancelled one: nothing is raised for them, nor when the time is up.
        """

    async def push_async(self, payload: Any, *, id: str | int | None = None, delay_s: float = 0.0) -> Pushed:
        """`push`, for coroutines: the event loop goes on meanwhile."""

    async def result_async(self, id: str | int, *, wait_s: float = 0.0) -> Result:
        """`result`, for coroutines: the event loop goes on meanwhile, and a wait holds no thread."""

    def errors(self, id: str | int) -> Sequence[AttemptError]:
        """The last failed attempts of a task that has not completed, oldest first."""

    def failed(self, n: int = 100, *, where: str | None = None, since_s: float | None = None) -> Sequence[Failure]:
        """Failed tasks that were not retried, grouped by error, the most frequent first; at most `n` tasks.

        `where` and `since_s` narrow it as they do for `retry`.
        """

    def notices(self) -> Sequence[Notice]:
        """Warnings and tasks that were given up in this process, since the last call."""

    def retry(
        self,
        id: str | int | None = None,
        *,
        all: bool = False,
        where: str | None = None,
        since_s: float | None = None,
        from_scratch: bool = False,
        dry_run: bool = False,
    ) -> Sequence[str]:
        """Run failed tasks again, with fresh attempts; returns their new ids. `dry_run`: nothing is changed, and the
        ids are those of the tasks that would be retried.

        A durable task keeps its recorded steps, unless it starts `from_scratch`.

        Either one task by its `id`, or `all`. The latter may be narrowed to those whose error contains `where`, or with
        `error ~ PATTERN` has that regular expression in it (upper and lower case are the same), and to those that
        failed in the last `since_s` seconds.   Raises: Invalid for a wrong pattern.
        """

    def cancel(self, id: str | int) -> bool:
        """Cancel a task that has not ended; returns whether this call ended it.

        No worker starts it any more. A handler that runs is not stopped by this call: its worker learns of it with its
        next heartbeat, within `ttl_s` / 3, and then cancels an async handler. A plain function runs to its end, unless
        it calls `current_task().check()`. If the handler succeeds all the same, the task has completed.
        """

    def fail(self, id: str | int, error: str = FAILED_BY_COMMAND) -> bool:
        """End a task as failed that no worker holds: it waits, rests, is suspended or delayed. Whether this call did.

        It can be retried like any other failed task, and keeps its recorded steps.
        Raises: Missing if there is no such task; Conflict while a worker holds it; Invalid for a whole batch.
        """

    def signal(self, id: str | int, name: str, value: Any = None, *, early: bool = False) -> bool:
        """Send a signal to a task, which `limpet.wait_signal` waits for; whether this call was the first of that name.

        While the task is suspended until another signal comes, the name is taken for misspelt, unless it is `early`:
        meant for a later wait.
        Raises: Missing if there is no such task, or it has ended; Invalid for a value that is not JSON, and for a name
        that the task does not wait for; Unsupported where there are no steps.
        """

    def pause(self) -> None:
        """Stop all claims until `resume`. Tasks that are running go on."""

    def resume(self) -> None:
        """Undo `pause`."""

    def purge(self) -> int:
        """Drop all pending and scheduled tasks; returns how many there were."""

    def drop(self, *, dry_run: bool = False, progress: Callable[[str], object] = lambda said: None) -> DropReport:
        """Remove the queue with all that it holds; its name can be used again. `dry_run` only says what would go."""


def need(queue: str, provider: str, supports: frozenset[Feature], feature: Feature) -> None:
    """Raises: Unsupported, if the provider lacks the feature."""
    if feature not in supports:
        raise Unsupported(
            f"queue {queue!r} lives in {provider}, which has no {feature}",
            hint=f"it has {', '.join(sorted(supports))}; a bucket or a directory has everything",
        )


class EmptyClaim:
    """The claim that found nothing: falsy, without tasks."""

    token = 0
    lost = False
    may_start = False

    def __bool__(self) -> bool:
        return False

    def start_next(self) -> None:
        pass

    def __iter__(self) -> Iterator[Task]:
        return iter(())

    def __enter__(self) -> EmptyClaim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        return None

    def hand_back(self) -> None:
        pass


class Retry(Exception):
    """Raise it in a handler to run the task again after `after_s` seconds (None: the queue's back-off).

    It costs an attempt.
    """

    @answers_options
    def __init__(self, reason: str = "", *, after_s: float | None = None) -> None:
        super().__init__(reason or "the handler asked for another try")
        if after_s is not None and not after_s >= 0:
            raise Invalid(f"after_s must not be negative, and is {after_s:g}")
        self.after_s = after_s


class Fail(Exception):
    """Raise it in a handler to fail the task for good, whatever attempts are left."""

    @answers_options
    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler gave the task up")


def apply_error(task: Task, error: Exception | None) -> None:
    """Give a task that has no verdict the one that the end of its `with` block implies."""
    match error:
        case Fail():
            task.fail(str(error))
        case Retry():
            task.retry(error.after_s, str(error))
        case None | LeaseLost():
            task.retry(None, NO_VERDICT)
        case _:
            task.retry(None, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))
