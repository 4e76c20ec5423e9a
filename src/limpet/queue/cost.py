"""What a queue's work takes in requests and dollars, beside SQS: `work_of` reads what it did, the rest is arithmetic.

The counts for one entry (a task, or a batch) are those that the queue's tests assert. They are the least that the work
takes: what the store does not show is not in them, see `NOT_COUNTED`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import ceil

from limpet.errors import LimpetError
from limpet.keys import Key, QueueKeys, is_minted
from limpet.queue.entry import BATCH, TASK, Storage, batch_of, count_of, name_of_receipt, parts_of_entry
from limpet.runtime import Runtime
from limpet.store.api import Store
from limpet.store.metered import dollars

MILLION = 1_000_000
RECEIPTS_READ = 200
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
    died, is claimed again. `parts` are failed tasks of batches, which have a receipt each. `waiting` entries were
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


def work_of(store: Store, name: str, runtime: Runtime) -> tuple[Work, int]:
    """What the store shows of a queue's work, and how many receipts were read to learn how often entries are claimed.

    Cost: 1 LIST per 1,000 objects, and at most 200 GETs.
    """
    storage = Storage(store, QueueKeys.of(name), runtime)
    tally: Counter[str] = Counter()
    sample: list[Key] = []
    for folder in (storage.keys.completed, storage.keys.failed):
        for stat in storage.store.list(folder):
            name = name_of_receipt(stat.key)
            if batch_of(name):
                tally["parts"] += 1
                continue
            tally.update(ended=1, tasks=count_of(name), named=not is_minted(name))
            if len(sample) < RECEIPTS_READ:
                sample.append(stat.key)
            elif (place := runtime.rng.randrange(tally["ended"])) < RECEIPTS_READ:
                sample[place] = stat.key
    for stat in storage.store.list(storage.keys.pending):
        entry, kind = parts_of_entry(stat.key, storage.keys.pending) or ("", "")
        if kind in (TASK, BATCH):
            tally.update(waiting=1, waiting_named=not is_minted(entry))
    tally["waiting"] += sum(1 for _ in storage.store.list(storage.keys.scheduled))
    tokens = _tokens(storage, sample)
    tally["claims"] = round(tally["ended"] * sum(tokens) / len(tokens)) if tokens else tally["ended"]
    return Work(**tally), len(tokens)


def _tokens(storage: Storage, keys: list[Key]) -> list[int]:
    """How often the entries behind these receipts were claimed: a claim's token is its number."""
    blobs = storage.store.get_many(keys).items()
    seen = [storage.receipt(key).decode(blob) for key, blob in blobs if not isinstance(blob, LimpetError)]
    return [max(1, each.value.token) for each in seen]
