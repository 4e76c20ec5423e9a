"""What a queue's work takes in requests and dollars, beside SQS: `work_of` reads what it did, the rest is arithmetic.

The counts for one entry (a task, or a batch) are those that the queue's tests assert. They are the least that the work
takes: what the store does not show is not in them, see `NOT_COUNTED`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from limpet.kernel.errors import LimpetError
from limpet.kernel.keys import (
    BATCH,
    TASK,
    Key,
    QueueKeys,
    batch_of,
    count_of,
    is_minted,
    name_of_receipt,
    parts_of_entry,
)
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Store
from limpet.kernel.store.metered import AS_OF, dollars
from limpet.queue.bell import LIST_EVERY_S, RING_EVERY_S
from limpet.queue.storage import Storage

MILLION = 1_000_000
RECEIPTS_READ = 200
PAGE = 1000

BATCHES = (1, 10, 100, 1000)
SQS_BATCH = 10
SQS_REQUESTS = 3
SQS_DOLLARS_PER_MILLION = 0.40

NOT_COUNTED = (
    "heartbeats of claims that last longer than a third of their ttl, claims that another worker won, "
    "idle workers, the bell that pushes ring, and what operators ask"
)

HOUR_S = 3600.0
MONTH_H = 730
PRESENCE_EVERY_S = 120.0
"""How often a worker process renews its presence object (`limpet.app.presence`)."""


@dataclass(frozen=True, slots=True)
class Work:
    """How much work some entries took.

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


def idle_requests(poll_s: float, *, presence: bool = False) -> dict[str, int]:
    """The most that one idle worker process asks a bucket in an hour: a HEAD of the bell each `poll_s`, and a LIST a
    minute, for each of its queues; with `presence`, once for the process, a PUT every two minutes. In a directory it
    asks nothing that costs."""
    polls = {"head": ceil(HOUR_S / poll_s), "list": ceil(HOUR_S / LIST_EVERY_S)}
    return {**polls, "put": ceil(HOUR_S / PRESENCE_EVERY_S)} if presence else polls


def idle_bill(poll_s: float, *, presence: bool = False, provider: str = "s3") -> Bill:
    """What one idle worker process costs in a month of 730 hours."""
    spent = {verb: count * MONTH_H for verb, count in idle_requests(poll_s, presence=presence).items()}
    return Bill(sum(spent.values()), dollars(spent, provider))


def bell_bill(*, provider: str = "s3") -> Bill:
    """The most that the bell costs a process that pushes without a pause for an hour."""
    spent = {"put": ceil(HOUR_S / RING_EVERY_S)}
    return Bill(spent["put"], dollars(spent, provider))


def sqs(tasks: int, batch: int) -> Bill:
    """The bill of SQS's standard queues: send, receive and delete, each for up to 10 tasks at once."""
    requests = SQS_REQUESTS * ceil(tasks / batch)
    return Bill(requests, requests * SQS_DOLLARS_PER_MILLION / MILLION)


def break_even(*, provider: str = "s3") -> int:
    """The batch size from which on Limpet is as cheap as SQS in batches of 10."""
    return ceil(as_pushed(MILLION, 1, provider=provider).dollars / sqs(MILLION, SQS_BATCH).dollars)


def cost_facts(work: Work, provider: str, *, poll_s: float, free: bool) -> dict[str, Any]:
    """What a queue has cost, what a million tasks and an idle worker cost. `free`: it is not in a bucket."""
    spent = requests_of(work)
    price = dollars(spent, provider)
    bills = {f"limpet_{batch}": as_pushed(MILLION, batch, provider=provider) for batch in BATCHES}
    bills |= {f"sqs_{batch}": sqs(MILLION, batch) for batch in (1, SQS_BATCH)}
    if work.tasks:
        ended = requests_of(replace(work, waiting=0, waiting_named=0))
        share = MILLION / work.tasks
        bills = {"this_queue": Bill(round(sum(ended.values()) * share), dollars(ended, provider) * share), **bills}
    nothing, idle = Bill(0, 0.0), idle_bill(poll_s, presence=True, provider=provider)
    return {
        "tasks": work.tasks,
        "entries": work.ended,
        "waiting_entries": work.waiting,
        "claims": work.claims,
        "requests": spent,
        "dollars": 0.0 if free else price,
        "dollars_in_a_bucket": price,
        "provider": provider,
        "prices_of": AS_OF,
        "per_million": {name: asdict(bill) for name, bill in bills.items()},
        "idle_worker": {
            "poll_s": poll_s,
            "requests_an_hour": {} if free else idle_requests(poll_s, presence=True),
            "a_month": asdict(nothing if free else idle),
            "a_month_in_a_bucket": asdict(idle),
        },
        "bell_an_hour_at_most": asdict(nothing if free else bell_bill(provider=provider)),
    }


def work_of(store: Store, name: str, runtime: Runtime) -> tuple[Work, int]:
    """The work of a queue as far as the store shows it, and the number of receipts read for the average of claims.

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
    """The number of claims of each entry, by its receipt: a claim's token is its number."""
    blobs = storage.store.get_many(keys).items()
    seen = [storage.receipt(key).decode(blob) for key, blob in blobs if not isinstance(blob, LimpetError)]
    return [max(1, each.value.token) for each in seen]
