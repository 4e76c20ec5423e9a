"""The supervisor's invariants, checked on what users were told, what ran where, and what each place really holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from limpet.keys import Key, QueueKeys
from limpet.lease import State
from limpet.queue import Result, Task
from limpet.queue.claim import EntryClaim
from limpet.queue.names import batch_of, entry_of
from limpet.queue.records import EntryLease, Receipt
from limpet.queue.sync.records import RemoteLease
from limpet.sim.bucket import Bucket
from limpet.sim.nemesis import Knobs
from limpet.sim.world import Violation, World

__all__ = ["Books", "Place", "Run", "check_nodes"]

BUDGET_BASE = 2_500
BUDGET_PER_TASK = 250
TASKS = ("/task.json", "/tasks.jsonl")


@dataclass(frozen=True, slots=True)
class Place:
    """The bucket, or the directory of a node."""

    name: str
    bucket: Bucket
    keys: QueueKeys
    bosses: frozenset[str]
    """The processes that were supervisors."""
    swept: int
    """How many changes there were before the last sweeps, which tidy up what any bug has left."""

    @property
    def is_node(self) -> bool:
        """Whether it is a node's."""
        return self.name != "the bucket"


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a handler."""

    at_s: float
    place: str
    who: str
    id: str
    entry: str


@dataclass(slots=True)
class Books:
    """What the simulation knows beside the stores."""

    ids: set[str] = field(default_factory=set)
    runs: list[Run] = field(default_factory=list)
    done: set[tuple[str, str]] = field(default_factory=set)
    answers: dict[tuple[str, str], Result] = field(default_factory=dict)
    collisions: int = 0

    def pushed(self, ids: Sequence[str]) -> None:
        """These pushes were acknowledged."""
        self.ids |= {*ids}

    def started(self, world: World, place: str, who: str, task: Task, claim: EntryClaim) -> None:
        """A handler starts."""
        self.runs.append(Run(world.now_s, place, who, task.id, claim.entry))

    def told(self, place: str, id_: str, result: Result) -> None:
        """Somebody asked a place for a result. Once it says that a task has completed, it says the same for ever."""
        before = self.answers.get((place, id_))
        if before is not None and before != result:
            raise Violation(f"in {place} the result of {id_} was {before}, and is now {result}")
        if result.state == "completed":
            self.answers[place, id_] = result

    def finished(self, place: str, id_: str) -> None:
        """A task was acknowledged as done."""
        self.done.add((place, id_))


def check_nodes(world: World, knobs: Knobs, places: Sequence[Place], books: Books) -> None:
    """Every invariant of supervised nodes.   Raises: Violation."""
    for place in places:
        _completions_stay(place)
        _ended_here_stays_ended(place, world)
        _ended_tasks_do_not_start(place, books)
        _results_are_whole(place)
        if place.is_node:
            _leases_are_our_own(place)
            _news_only_once(place)
    if knobs.sane_clocks:
        _nobody_is_evicted(places[0])
    _nothing_is_left(places)
    _nothing_is_lost(places, books)
    _all_agree(places, books)
    _requests_are_bounded(world, books)


def _below(place: Place, prefix: str) -> list[str]:
    start = f"{prefix}/"
    return sorted(key.removeprefix(start) for key in place.bucket.objects if key.startswith(start))


def _receipt(place: Place, key: Key) -> Receipt | None:
    blob = place.bucket.objects.get(key)
    return msgspec.json.decode(blob.data, type=Receipt) if blob else None


def _verdict(place: Place, name: str) -> str:
    """How a task ended there: completed beats failed; an empty string if it has not."""
    keys = place.keys
    part = batch_of(name)
    whole = _receipt(place, keys.completed_of(part[0])) if part else None
    if keys.completed_of(name) in place.bucket.objects:
        return "completed"
    if part is not None and whole is not None and part[1] not in whole.failed:
        return "completed"
    failed = keys.failed_of(name) in place.bucket.objects
    return "failed" if failed or (part and keys.failed_of(part[0]) in place.bucket.objects) else ""


def _completions_stay(place: Place) -> None:
    """Receipts only grow: a completion is never removed or written over, a failure only marked as retried."""
    standing: dict[Key, Receipt] = {}
    for applied in place.bucket.journal:
        completed = applied.key.startswith(f"{place.keys.completed}/")
        if not completed and not applied.key.startswith(f"{place.keys.failed}/"):
            continue
        if applied.data is None:
            if completed:
                raise Violation(f"{applied.who} removed {applied.key} from {place.name}: a completion is undone")
            standing.pop(applied.key, None)
            continue
        receipt = msgspec.json.decode(applied.data, type=Receipt)
        before = standing.get(applied.key)
        if before is not None and (completed or receipt.state != "retried"):
            raise Violation(f"{applied.who} wrote over {applied.key} in {place.name}")
        standing[applied.key] = receipt


def _results_are_whole(place: Place) -> None:
    """Whoever reads a receipt finds what it names: parts, and the receipts of single tasks that count before it."""
    here: set[str] = set()
    for applied in place.bucket.journal:
        if applied.data is not None:
            here.add(applied.key)
        if applied.data is None or not applied.key.startswith(f"{place.keys.completed}/"):
            continue
        receipt = msgspec.json.decode(applied.data, type=Receipt)
        named = [*receipt.parts, *(place.keys.completed_of(f"{receipt.id}.{n}") for n in receipt.own)]
        missing = [key for key in named if key not in here]
        if missing:
            raise Violation(f"{applied.who} wrote {applied.key} to {place.name}, and {missing[0]} was not there yet")


def _ended_here_stays_ended(place: Place, world: World) -> None:
    """A supervisor makes nothing pending that has ended there, or takes it back (the push rule)."""
    copies = {event.key for event in world.trace if event.who == "network" and event.result == "lands"}
    journal = place.bucket.journal
    ended: set[str] = set()
    for i, applied in enumerate(journal[: place.swept]):
        if applied.key.startswith((f"{place.keys.completed}/", f"{place.keys.failed}/")):
            ended.add(applied.key.rsplit("/", 1)[1].removesuffix(".json"))
        if not applied.key.endswith(TASKS) or applied.data is None or applied.who not in place.bosses:
            continue
        entry = applied.key.rsplit("/", 2)[1]
        later = [each for each in journal[i + 1 : place.swept] if each.key == applied.key and each.data is None]
        back = any(each.who in place.bosses or not place.is_node for each in later)
        if entry in ended and not back and applied.key not in copies:
            raise Violation(f"{applied.who} made {entry} pending in {place.name}, where it had ended")


def _ended_tasks_do_not_start(place: Place, books: Books) -> None:
    """Once a place knows that an entry has ended, nobody claims and starts it there."""
    ended_s: dict[str, float] = {}
    for applied in place.bucket.journal:
        if applied.key.startswith((f"{place.keys.completed}/", f"{place.keys.failed}/")) and applied.data is not None:
            ended_s.setdefault(applied.key.rsplit("/", 1)[1].removesuffix(".json"), applied.at_s)
    for run in books.runs:
        if run.place == place.name and ended_s.get(run.entry, float("inf")) < _claimed_s(place, run):
            raise Violation(f"{run.who} started {run.id} in {place.name}, where it had ended before it was claimed")


def _claimed_s(place: Place, run: Run) -> float:
    """When the claim that started this run was made."""
    lease = place.keys.lease(run.entry)
    claims = [
        applied.at_s
        for applied in place.bucket.journal
        if applied.key == lease and applied.data is not None and applied.at_s <= run.at_s
        if msgspec.json.decode(applied.data, type=EntryLease).worker_id == run.who
    ]
    return claims[0] if claims else run.at_s


def _leases_are_our_own(place: Place) -> None:
    """A pull never touches the lease by which the workers of a node agree among themselves."""
    ours = {applied.who for applied in place.bucket.journal}
    for applied in place.bucket.journal:
        if applied.key.endswith("/lease.json") and applied.data is not None:
            record = msgspec.json.decode(applied.data, type=EntryLease)
            if record.worker_id not in ours:
                raise Violation(f"{applied.who} wrote a lease of {record.worker_id}, a stranger, to {place.name}")


def _news_only_once(place: Place) -> None:
    """A foreign lease lasts from when it was first heard of: a log that is read again does not prolong it."""
    heard: set[tuple[Key, str, int]] = set()
    for applied in place.bucket.journal:
        if applied.key.endswith("/remote.json") and applied.data is not None:
            record = msgspec.json.decode(applied.data, type=RemoteLease)
            news = (applied.key, record.node, record.log)
            if news in heard:
                raise Violation(f"{applied.who} prolonged {applied.key} by log {record.log} of {record.node} again")
            heard.add(news)


def _nobody_is_evicted(place: Place) -> None:
    """In the bucket a held lease changes hands only when it has run out."""
    last: dict[Key, tuple[float, EntryLease]] = {}
    for applied in place.bucket.journal:
        if not applied.key.endswith("/lease.json"):
            continue
        if applied.data is None:
            last.pop(applied.key, None)
            continue
        record = msgspec.json.decode(applied.data, type=EntryLease)
        at_s, before = last.get(applied.key, (applied.at_s, record))
        taken = before.state is State.HELD and record.state is State.HELD and record.worker_id != before.worker_id
        if taken and applied.at_s - at_s < before.ttl_s:
            raise Violation(f"{record.worker_id} took {applied.key} from {before.worker_id}, which was alive")
        last[applied.key] = (applied.at_s, record)


def _nothing_is_left(places: Sequence[Place]) -> None:
    for place in places:
        left = [*_below(place, place.keys.pending), *_below(place, place.keys.scheduled)]
        if left:
            raise Violation(f"in {place.name} there is still {left[0]}")


def _nothing_is_lost(places: Sequence[Place], books: Books) -> None:
    for place in places:
        for id_ in sorted(books.ids):
            if not _verdict(place, entry_of(id_)):
                raise Violation(f"the push of {id_} was acknowledged, and {place.name} does not know how it ended")
        for _, id_ in sorted(books.done):
            if _verdict(place, entry_of(id_)) != "completed":
                raise Violation(f"{id_} was acknowledged as done, and in {place.name} it is not completed")


def _names(place: Place) -> Iterator[str]:
    for prefix in (place.keys.completed, place.keys.failed):
        yield from (name.removesuffix(".json") for name in _below(place, prefix))


def _all_agree(places: Sequence[Place], books: Books) -> None:
    names = sorted({name for place in places for name in _names(place)} | {entry_of(id_) for id_ in books.ids})
    for name in names:
        verdicts = {place.name: _verdict(place, name) for place in places}
        if len({*verdicts.values()}) > 1:
            raise Violation(f"they do not agree on {name}: {verdicts}")


def _requests_are_bounded(world: World, books: Books) -> None:
    if world.calls > BUDGET_BASE + BUDGET_PER_TASK * len(books.ids):
        raise Violation(f"{world.calls} requests for {len(books.ids)} tasks")
