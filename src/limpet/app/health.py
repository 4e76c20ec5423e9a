"""A whole fleet as operators watch it: its queues counted, its locks, and limits that the queues should keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Literal

from limpet.app.fleet import Fleet
from limpet.app.place import SQS, provider_of
from limpet.app.presence import GONE_S, FleetWorkers, workers
from limpet.kernel.errors import Denied, Missing
from limpet.kernel.lease import LockState, lock_state
from limpet.queue.count import SOME, Folder, QueueCount, count_queues
from limpet.queue.storage import Storage
from limpet.queue.summary import FailedCount, FailedReceipts, QueueSummary, summarize, summary_of

Rule = Literal["max-age", "max-failed", "max-pending", "no-worker"]
Bound = Literal["exact", "at least", "about"]


def summaries(
    fleet: Fleet, queues: Iterable[str] | None = None, *, limits: Mapping[Folder, float] = SOME
) -> list[QueueSummary]:
    """Count these queues of a fleet, or all of them, in a store or on SQS; by default up to 10,000 objects of a kind.

    Cost: that of `limpet.queue.inspect.summarize`, and where a task is due that of `limpet.app.presence.workers`. On
    SQS 1 request for the names, 3 or more for each queue.
    """
    if provider_of(fleet.url) == SQS:
        names = fleet.queues() if queues is None else queues
        stats = {name: fleet.queue(name).stats() for name in names}
        return [
            QueueSummary(queue=name, **asdict(seen), waiting=seen.pending - seen.in_flight, approximate=True)
            for name, seen in stats.items()
        ]
    found = summarize(fleet.store, fleet.runtime, queues, limits=limits)
    if any(_wants_worker(each) for each in found):
        with suppress(Denied):  # a key that may not list the workers sees the rest
            processes = workers(fleet)
            found = [attended(counted, processes) for counted in found]
    return found


def attended(counted: QueueSummary, processes: FleetWorkers) -> QueueSummary:
    """The queue with its `no_worker`: a task is due, nobody holds one, and no process that is alive names the queue.

    Tasks that are delayed, rest or are suspended need no worker now, and a paused queue wants none. A worker without a
    presence object (LIMPET_PRESENCE=0, or a program that claims by itself) counts while it holds a task.
    """
    return replace(counted, no_worker=_wants_worker(counted) and not processes.may_work_on(counted.queue))


def _wants_worker(counted: QueueSummary) -> bool:
    return counted.due_s is not None and not counted.in_flight and not counted.paused and not counted.trouble


@dataclass(frozen=True, slots=True)
class FleetLocks:
    """The locks of a fleet, in the order of their keys. `more`: there are more than the limit that was given."""

    locks: list[LockState]
    unreadable: dict[str, str]
    """The keys of locks whose record cannot be read, with the reason."""
    more: bool


def lock_states(fleet: Fleet, limit: int | None = None) -> FleetLocks:
    """Every lock that was ever used, or the first `limit`.   Cost: that of `Fleet.locks`."""
    bad: dict[str, str] = {}
    found = fleet.locks(on_error=lambda key, error: bad.update({key: str(error)}))
    seen = [*islice(found, None if limit is None else limit + 1)]
    now = _now(fleet, *(each.modified for each in seen))
    return FleetLocks([lock_state(each, now) for each in seen[:limit]], bad, len(seen) > len(seen[:limit]))


def lock_state_of(fleet: Fleet, name: str) -> LockState:
    """The lock `name` as it is now.   Raises: Missing for one that was never used.   Cost: 1 GET."""
    seen = fleet.lock_seen(name)
    if seen is None:
        raise Missing(f"there is no lock {name!r}", hint="`limpet lock ls` shows those there are")
    return lock_state(seen, _now(fleet, seen.modified))


def _now(fleet: Fleet, *stamps: datetime | None) -> datetime:
    """The store's time, as near as one gets without writing: this machine's, but not before what the store stamped."""
    return max([fleet.runtime.wall(), *(stamp for stamp in stamps if stamp is not None)])


@dataclass(frozen=True, slots=True)
class Limits:
    """What may not be exceeded, for each queue by itself; None: no limit."""

    age_s: float | None = None
    failed: int | None = None
    pending: int | None = None
    no_worker_s: float | None = None
    """How long a task may be due in a queue that has no worker, and where nothing is done."""


DEFAULT_LIMITS = Limits(age_s=3600.0, failed=0, no_worker_s=GONE_S)
"""What `limpet check`, the dashboard, `limpet top` and the metrics warn of, unless they are told otherwise: a task
older than an hour, any failed task, and tasks that nobody has worked on for five minutes."""


def default_limits(url: str) -> Limits:
    """`DEFAULT_LIMITS`, without those that nothing can be told about: SQS reports neither ages nor workers."""
    return DEFAULT_LIMITS if provider_of(url) != SQS else replace(DEFAULT_LIMITS, age_s=None, no_worker_s=None)


@dataclass(frozen=True, slots=True)
class BrokenLimit:
    """A limit that a queue exceeds. Without a `value` it could not be checked: SQS reports no ages."""

    queue: str
    rule: Rule
    limit: float
    value: float | None
    bound: Bound = "exact"


def broken_limits(
    fleet: Fleet, limits: Limits, queues: Sequence[str] | None = None
) -> tuple[list[str], list[BrokenLimit]]:
    """The queues that were looked at, all by default, and the limits that do not hold there.

    Raises: Missing for a queue that is not there, and on SQS, which has no record of a fleet, for a URL without any
    queue: an alert on a typo would never fire.
    Cost: 1 LIST per 1,000 objects that wait or failed, 1 or 2 more for each queue. Only where more names are in failed/
    than tasks may have failed: 2 GETs for each, until that many have failed. For `no_worker_s`, only where tasks wait:
    that of `limpet.app.presence.workers`, and 1 GET + 1 GET a lease, at most 200, for each queue without a worker.
    """
    wanted = [*dict.fromkeys(queues)] if queues else None
    for name in wanted or ():
        fleet.queue(name, create=False)
    if provider_of(fleet.url) == SQS:
        counted = summaries(fleet, wanted)
        if not counted:
            raise Missing(f"there is no queue at {fleet.url}", hint="check region, prefix and account")
        return [each.queue for each in counted], [wrong for each in counted for wrong in broken_on_sqs(each, limits)]
    everything, nothing = float("inf"), 0.0
    waiting = any(each is not None for each in (limits.age_s, limits.pending, limits.no_worker_s))
    folders: dict[Folder, float] = {
        "completed": nothing,
        "failed": everything if limits.failed is not None else nothing,
        "pending": everything if waiting else nothing,
        "scheduled": nothing,
    }
    found = count_queues(fleet.store, wanted, folders)
    broken = [wrong for each in found for wrong in broken_in(fleet, each, limits)]
    if limits.no_worker_s is not None and any(each.pending for each in found):
        broken += _without_worker(fleet, found, limits)
    return wanted or [each.queue for each in found], sorted(broken, key=lambda wrong: wrong.queue)


def _without_worker(fleet: Fleet, counts: Iterable[QueueCount], limits: Limits) -> Iterator[BrokenLimit]:
    processes = workers(fleet)
    receipts = FailedReceipts()
    for count in counts:
        if count.pending and not processes.may_work_on(count.queue):
            storage = Storage(fleet.store, count.keys, fleet.runtime)
            counted = summary_of(storage, count, _now(fleet, count.newest), receipts, 0)
            yield from broken_without_worker(attended(counted, processes), limits)


def broken_without_worker(counted: QueueSummary, limits: Limits) -> Iterator[BrokenLimit]:
    """That nobody has worked on a queue for longer than the limit.   Cost: none."""
    limit_s = limits.no_worker_s
    if counted.no_worker and counted.due_s is not None and limit_s is not None and counted.due_s > limit_s:
        yield BrokenLimit(counted.queue, "no-worker", limit_s, round(counted.due_s, 1))


def broken_on_sqs(counted: QueueSummary, limits: Limits) -> Iterator[BrokenLimit]:
    """The limits that a queue on SQS exceeds, or that cannot be checked there.   Cost: none."""
    if limits.age_s is not None:
        yield BrokenLimit(counted.queue, "max-age", limits.age_s, None)
    if limits.no_worker_s is not None and limits.no_worker_s != float("inf"):
        yield BrokenLimit(counted.queue, "no-worker", limits.no_worker_s, None)
    if limits.failed is not None and counted.failed > limits.failed:
        yield BrokenLimit(counted.queue, "max-failed", limits.failed, counted.failed, "about")
    if limits.pending is not None and counted.pending > limits.pending:
        yield BrokenLimit(counted.queue, "max-pending", limits.pending, counted.pending, "about")


def broken_in(
    fleet: Fleet, found: QueueCount, limits: Limits, ended: FailedCount | None = None
) -> Iterator[BrokenLimit]:
    """The limits that a queue exceeds which was counted; without `no_worker_s`, see `broken_without_worker`.

    `ended`: what the receipts in failed/ say, if they were read.
    Cost: without it, if there are too many names in failed/, that of `FailedReceipts.count` until too many have failed.
    """
    bound: Bound = "at least" if "pending" in found.cut else "exact"
    if limits.age_s is not None and found.oldest is not None:
        age_s = (_now(fleet, found.newest) - found.oldest).total_seconds()
        if age_s > limits.age_s:
            yield BrokenLimit(found.queue, "max-age", limits.age_s, round(age_s, 1), bound)
    if limits.failed is not None and sum(found.failed_tasks().values()) > limits.failed:
        if ended is None:
            storage = Storage(fleet.store, found.keys, fleet.runtime)
            ended = FailedReceipts().count(storage, found, enough=limits.failed)
        if ended.failed > limits.failed:
            exact = not ended.unread and "failed" not in found.cut
            yield BrokenLimit(found.queue, "max-failed", limits.failed, ended.failed, "exact" if exact else "at least")
    if limits.pending is not None and found.pending > limits.pending:
        yield BrokenLimit(found.queue, "max-pending", limits.pending, found.pending, bound)
