"""What every provider of a queue promises, and the values that pass through it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Protocol, get_args

from limpet.cell import Fence
from limpet.errors import Invalid, Unsupported
from limpet.lease.decide import check_ttl
from limpet.runtime import in_thread

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
]
FEATURES: frozenset[Feature] = frozenset(get_args(Feature))
"""All that a queue can do: per-task attempts, batches of any size, deduplication by id, results, and so on."""

Outcome = Literal["completed", "failed", "cancelled", "pending", "scheduled", "unknown"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How a process treats the tasks that it claims."""

    max_attempts: int = 5
    ttl_s: float = 60.0
    """How long a claim outlives the last sign of its worker."""
    timeout_s: float | None = 3600.0
    """How long one task may take (None: for ever). Past it the claim is not renewed, and somebody else takes it."""
    backoff_s: float = 2.0
    """The wait before the second attempt; it doubles for each further one."""
    backoff_max_s: float = 300.0
    concurrency: int | None = None
    """At most so many claims at once, over all processes."""
    rate_per_s: float | None = None
    """At most so many tasks a second in this process."""
    retention_s: float = 30 * 86400.0
    """How long receipts and results are kept, and so how long a user's id stays taken."""

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise Invalid(f"max_attempts must be at least 1, not {self.max_attempts}")
        if self.concurrency is not None and not 1 <= self.concurrency <= 1000:
            raise Invalid(f"concurrency must be between 1 and 1000, not {self.concurrency}")
        for name in ("timeout_s", "rate_per_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise Invalid(f"{name} must be positive, not {value:g}")
        if not (self.backoff_s >= 0 and self.backoff_max_s >= 0):
            raise Invalid("backoff_s and backoff_max_s cannot be negative")
        check_ttl(self.ttl_s)
        if not self.retention_s >= 7 * 86400:
            raise Invalid("receipts must be kept for at least 7 days", hint="retention_s >= 604800")


@dataclass(frozen=True, slots=True)
class Pushed:
    """The answer to a push. `created` is False when the id was already taken: pending, running or ended."""

    id: str
    created: bool


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
    """Something that a queue met while it looked for work, beside the tasks that it handed out.

    `failed` tells how many tasks it ended in failed/ without running them: they could not be read, or their workers
    died too often. With 0 it is only a warning. `id` is the task or its entry; "" for the queue itself.
    """

    id: str
    note: str
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """How a task ended, or that it has not yet.

    `value` is what its handler returned; `error` and `traceback` say why it failed, and `errors` tells of its last
    failed attempts, oldest first.
    """

    id: str
    state: Outcome
    value: Any = None
    error: str | None = None
    traceback: str | None = None
    worker: str | None = None
    attempts: int = 0
    finished_at: datetime | None = None
    errors: tuple[AttemptError, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether it has ended."""
        return self.state in ("completed", "failed", "cancelled")


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
    """How many tasks are where.

    `in_flight` counts tasks in the hands of a worker that renewed its claim lately, `resting` those that wait for their
    next attempt; both are part of `pending`.
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


class Task(Protocol):
    """One task in the hands of this process. Give it exactly one verdict: `done`, `retry` or `fail`."""

    @property
    def id(self) -> str:
        """Its name: the user's, or a made one."""

    @property
    def payload(self) -> Any:
        """What was pushed."""

    @property
    def attempt(self) -> int:
        """1-based attempt number. A first claim that dies before its first heartbeat is not counted."""

    @property
    def lost(self) -> bool:
        """Whether the claim is known to be over. The work may go on, but somebody else may do it too."""

    @property
    def fence(self) -> Fence | None:
        """The lock and the token of the claim, for `cell.write(value, lease=...)`; None where the provider has none."""

    def done(self, result: Any = None) -> None:
        """It succeeded. With a result, `queue.result(id)` tells it for as long as receipts are kept.

        While the store cannot be reached, it tries again until the claim ends.
        Raises: Invalid for a result that is not JSON or over 256 KiB (the task is then still yours to judge).
        """

    def retry(self, after_s: float | None = None, error: str = "", traceback: str | None = None) -> None:
        """It failed this time. It comes back after a while, or fails for good when its attempts are used up."""

    def fail(self, error: str, traceback: str | None = None) -> None:
        """It failed for good."""


class Claim(Protocol):
    """Some tasks that are ours for a while: one task, or the tasks of one batch. Falsy when there was nothing."""

    @property
    def token(self) -> int:
        """The fencing token; 0 where the provider has none."""

    @property
    def lost(self) -> bool:
        """Whether it is known to be over."""

    def __bool__(self) -> bool:
        """Whether there is anything in it."""

    def __iter__(self) -> Iterator[Task]:
        """The tasks, one after another. Each is charged with an attempt just before it is handed out."""

    def __enter__(self) -> Claim: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Settle everything: verdicts are written, tasks that were never handed out go back with their attempt.

        A task in whose block an exception was raised is retried with that error.
        """

    def hand_back(self) -> None:
        """Give back what has no verdict yet, the running task too, with the attempt restored (as on SIGTERM)."""


class Queue(Protocol):
    """Tasks that are done at least once. Three providers: a directory, a bucket, SQS; `supports` tells them apart."""

    @property
    def name(self) -> str:
        """The queue's name."""

    @property
    def provider(self) -> str:
        """`filesystem`, `bucket`, `memory` or `sqs`."""

    @property
    def supports(self) -> frozenset[Feature]:
        """What this provider can do. Asking for anything else is `Unsupported`."""

    @property
    def policy(self) -> Policy:
        """How this process treats what it claims."""

    def push(self, payload: Any, *, id: str | None = None, delay_s: float = 0.0) -> Pushed:
        """Add one task. Once it returns, the task is never lost. With an id, at most one task of that id exists.

        Raises: Invalid for a payload that is not JSON or over 256 KiB; OutcomeUnknown (push again with the same id).
        """

    def push_many(self, payloads: Iterable[Any], *, batch: int = 100) -> Sequence[str]:
        """Add many tasks, packed `batch` to an entry; their ids, in order."""

    def claim(self, *, wait_s: float = 0.0) -> Claim:
        """Take one entry (one task, or a batch) for this process, waiting up to `wait_s` for one."""

    def change_token(self) -> str | None:
        """A text that changes when something was pushed or ended; None if asking would cost a request."""

    def stats(self) -> Stats:
        """How many tasks are where."""

    def peek(self, n: int = 10) -> Sequence[Peeked]:
        """Some tasks that wait, without claiming them."""

    def result(self, id: str) -> Result:
        """How a task ended."""

    async def push_async(self, payload: Any, *, id: str | None = None, delay_s: float = 0.0) -> Pushed:
        """`push`, for coroutines: the event loop goes on meanwhile."""

    async def result_async(self, id: str) -> Result:
        """`result`, for coroutines: the event loop goes on meanwhile."""

    def errors(self, id: str) -> Sequence[AttemptError]:
        """The last failed attempts of a task that has not completed, oldest first."""

    def failed(self, n: int = 100, *, where: str | None = None, since_s: float | None = None) -> Sequence[Failure]:
        """What failed and was not retried, grouped by error, the most frequent first; at most `n` tasks.

        `where` and `since_s` narrow it as they do for `retry`.
        """

    def notices(self) -> Sequence[Notice]:
        """What this process met while it looked for work, since the last call."""

    def retry(
        self, id: str | None = None, *, all: bool = False, where: str | None = None, since_s: float | None = None
    ) -> Sequence[str]:
        """Give failed tasks another life, with fresh attempts; the ids that they have now.

        Either one task by its `id`, or `all`. The latter may be narrowed to those whose error contains `where`
        (upper and lower case are the same), and to those that failed in the last `since_s` seconds.
        """

    def cancel(self, id: str) -> bool:
        """End a task that has not ended; whether it was ended by this."""

    def pause(self) -> None:
        """Let nobody claim anything until `resume`. What is running goes on."""

    def resume(self) -> None:
        """Undo `pause`."""

    def purge(self) -> int:
        """Drop everything that waits; how many tasks that were."""


class AsyncQueue:
    """The forms of a queue's methods for coroutines: each runs the plain method in a thread."""

    async def push_async(self: Queue, payload: Any, *, id: str | None = None, delay_s: float = 0.0) -> Pushed:
        """`push` in a thread."""
        return await in_thread(self.push, payload, id=id, delay_s=delay_s)

    async def result_async(self: Queue, id: str) -> Result:
        """`result` in a thread."""
        return await in_thread(self.result, id)


def need(queue: str, provider: str, supports: frozenset[Feature], feature: Feature) -> None:
    """Go on only if the provider can do it.   Raises: Unsupported."""
    if feature not in supports:
        raise Unsupported(
            f"queue {queue!r} lives in {provider}, which has no {feature}",
            hint=f"it has {', '.join(sorted(supports))}; a bucket or a directory has everything",
        )
