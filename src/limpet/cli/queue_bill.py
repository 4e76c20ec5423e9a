"""What a queue's work takes in requests and dollars, beside SQS: arithmetic only.

The counts for one entry (a task, or a batch) are those that the queue's tests assert. They are the least that the work
takes: what the store does not show is not in them, see `NOT_COUNTED`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from limpet.store.metered import dollars

MILLION = 1_000_000
PAGE = 1000

SQS_BATCH = 10
SQS_REQUESTS = 3
SQS_DOLLARS_PER_MILLION = 0.40

NOT_COUNTED = (
    "heartbeats of claims that last longer than a third of their ttl, claims that another worker won, "
    "looks of idle workers (at most 200 an hour each), and what operators ask"
)


@dataclass(frozen=True, slots=True)
class Work:
    """What became of some entries.

    `named` of them were pushed with an id. `claims` is at least `ended`: an entry that is retried, or whose worker
    died, is claimed again. `parts` are failed tasks of batches, each with a receipt of its own. `waiting` entries were
    pushed and have not ended; `waiting_named` of them have an id.
    """

    ended: int = 0
    tasks: int = 0
    named: int = 0
    claims: int = 0
    parts: int = 0
    waiting: int = 0
    waiting_named: int = 0


@dataclass(frozen=True, slots=True)
class Bill:
    """Requests, and their price in dollars."""

    requests: int
    dollars: float


def requests_of(work: Work) -> dict[str, int]:
    """The least number of requests behind `work`, for each verb.

    An entry: 1 PUT to push, 1 PUT + 1 GET to claim, 1 PUT + 2 DELETEs to end; with an id 2 HEADs more to push and to
    claim. Each further claim: 1 PUT to give the entry back, 1 GET + 1 PUT + 1 GET + 2 HEADs to take it, 1 PUT to charge
    a task. Finding entries takes 1 LIST + 1 GET for 1,000 of them.
    """
    again = max(0, work.claims - work.ended)
    pages = ceil(work.ended / PAGE)
    return {
        "put": 3 * work.ended + 3 * again + work.parts + work.waiting,
        "get": work.ended + 2 * again + pages,
        "head": 4 * work.named + 2 * again + 2 * work.waiting_named,
        "list": pages,
        "delete": 2 * work.ended,
    }


def as_pushed(tasks: int, batch: int, *, named: bool = False, provider: str = "s3") -> Bill:
    """Limpet's bill for `tasks` tasks that are pushed `batch` to an entry and succeed at once."""
    ended = ceil(tasks / batch)
    spent = requests_of(Work(ended=ended, tasks=tasks, claims=ended, named=ended if named else 0))
    return Bill(sum(spent.values()), dollars(spent, provider))


def sqs(tasks: int, batch: int) -> Bill:
    """The bill of SQS's standard queues: send, receive and delete, each for up to 10 tasks at once."""
    requests = SQS_REQUESTS * ceil(tasks / batch)
    return Bill(requests, requests * SQS_DOLLARS_PER_MILLION / MILLION)


def break_even(*, provider: str = "s3") -> int:
    """How many tasks to an entry make Limpet as cheap as SQS in batches of 10."""
    return ceil(as_pushed(MILLION, 1, provider=provider).dollars / sqs(MILLION, SQS_BATCH).dollars)
