"""A whole fleet as operators watch it: its queues counted, its locks, and limits that the queues should keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from typing import Literal

from limpet.app.fleet import SQS, Fleet, provider_of
from limpet.errors import Missing
from limpet.lease import LockState, lock_state
from limpet.queue.inspect import SOME, Folder, QueueCount, QueueSummary, count_failed, count_queues, summarize

Rule = Literal["max-age", "max-failed", "max-pending"]
Bound = Literal["exact", "at least", "about"]


def summaries(
    fleet: Fleet, queues: Iterable[str] | None = None, *, limits: Mapping[Folder, float] = SOME
) -> list[QueueSummary]:
    """Count these queues of a fleet, or all of them, in a store or on SQS; by default up to 10,000 objects of a kind.

    Cost: that of `limpet.queue.inspect.summarize`. On SQS 1 request for the names, 3 or more for each queue.
    """
    if provider_of(fleet.url) != SQS:
        return summarize(fleet.store, fleet.runtime, queues, limits=limits)
    names = fleet.queues() if queues is None else queues
    return [QueueSummary(queue=name, **asdict(fleet.queue(name).stats()), approximate=True) for name in names]


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
    Cost: 1 LIST per 1,000 objects that wait or failed, 1 or 2 more for each queue; 1 GET for each failed task, only
    where there are more than allowed.
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
    waiting = limits.age_s is not None or limits.pending is not None
    folders: dict[Folder, float] = {
        "completed": nothing,
        "failed": everything if limits.failed is not None else nothing,
        "pending": everything if waiting else nothing,
        "scheduled": nothing,
    }
    found = count_queues(fleet.store, wanted, folders)
    return wanted or [each.queue for each in found], [
        broken for each in found for broken in broken_in(fleet, each, limits)
    ]


def broken_on_sqs(counted: QueueSummary, limits: Limits) -> Iterator[BrokenLimit]:
    """The limits that a queue on SQS exceeds, or that cannot be checked there.   Cost: none."""
    if limits.age_s is not None:
        yield BrokenLimit(counted.queue, "max-age", limits.age_s, None)
    if limits.failed is not None and counted.failed > limits.failed:
        yield BrokenLimit(counted.queue, "max-failed", limits.failed, counted.failed, "about")
    if limits.pending is not None and counted.pending > limits.pending:
        yield BrokenLimit(counted.queue, "max-pending", limits.pending, counted.pending, "about")


def broken_in(fleet: Fleet, found: QueueCount, limits: Limits) -> Iterator[BrokenLimit]:
    """The limits that a queue exceeds which was counted.   Cost: 1 GET for each failed task, if there are too many."""
    bound: Bound = "at least" if "pending" in found.cut else "exact"
    if limits.age_s is not None and found.oldest is not None:
        age_s = (_now(fleet, found.newest) - found.oldest).total_seconds()
        if age_s > limits.age_s:
            yield BrokenLimit(found.queue, "max-age", limits.age_s, round(age_s, 1), bound)
    if limits.failed is not None and len(found.failed_names()) > limits.failed:
        failed, whole = count_failed(fleet.store, fleet.runtime, found, limits.failed)
        if failed > limits.failed:
            exact = whole and "failed" not in found.cut
            yield BrokenLimit(found.queue, "max-failed", limits.failed, failed, "exact" if exact else "at least")
    if limits.pending is not None and found.pending > limits.pending:
        yield BrokenLimit(found.queue, "max-pending", limits.pending, found.pending, bound)
