"""`BucketQueue`: a queue in a store, how an entry of it is found, and how it is claimed.

A listing is a hint (F22); the truth is the swap that claims. Listing costs a request for 1,000 objects however long the
backlog is, so a page is kept and used up: oldest first, and the more claims are lost to others, the wider the choice
among the oldest, so that many workers do not race for the same entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from limpet import records
from limpet.cell import Cell, Lost, Replaced, Unclear, Versioned, Won
from limpet.errors import Corrupt, Invalid, Missing, OutcomeUnknown, Unsupported
from limpet.keys import Key, QueueKeys
from limpet.lease import HeldLease, State, VersionWatch
from limpet.queue.admin import Admin
from limpet.queue.api import (
    FEATURES,
    AsyncQueue,
    AttemptError,
    EmptyClaim,
    Failure,
    Feature,
    Notice,
    Peeked,
    Policy,
    Pushed,
    Result,
    Stats,
)
from limpet.queue.claim import EntryClaim, Renewer
from limpet.queue.decide import Ready, claimable, claimed, error_of, exhausted, waits_left
from limpet.queue.entry import BATCH, LEASE, TASK, EntryLease, Journal, Storage, encoded_payload, parts_of_entry
from limpet.queue.finish import finish_cancelled, reject_entry
from limpet.queue.inspect import Inspection
from limpet.queue.push import Pusher
from limpet.queue.slots import Slot, Slots
from limpet.queue.sweep import Sweeper
from limpet.runtime import Runtime
from limpet.store.api import Stat, Store, Version

POLL_MIN_S = 0.2
POLL_MAX_S = 24.0
POLL_GROWTH = 1.5
TOKEN_EVERY_S = 0.1
TURNS_MAX = 3
CONTROL_EVERY_S = 5.0
DIED = "its worker died, and its attempts are used up"
PAGE = 1000
AGE_MAX_S = 30.0
YOUNG_READS_MAX = 8
WIDTH_MAX = 256
SCHEDULED_EVERY_S = 60.0
LEASES_MAX = 10_000


@dataclass(slots=True)
class PollBackoff:
    """When to poll a queue again: after an empty poll the pause grows from 0.2 s to 24 s, by half each time."""

    pause_s: float = POLL_MIN_S
    due_s: float = 0.0

    def found(self) -> None:
        """A poll found something: the next pause is the shortest again."""
        self.pause_s = POLL_MIN_S

    def empty(self, at_s: float, part: float, *, longest_s: float = POLL_MAX_S) -> None:
        """A poll found nothing: the next one is due after `part` of the pause, and the pause after that is longer."""
        self.due_s = at_s + self.pause_s * part
        self.pause_s = min(self.pause_s * POLL_GROWTH, longest_s)


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry that a listing showed, with its lease if it had one."""

    entry: str
    batch: bool
    pushed: datetime
    lease: Stat | None


@dataclass(slots=True)
class CandidatePage:
    """Part of what waits. `scheduled` are delayed pushes, the earliest first; None if they were not listed."""

    at_s: float
    candidates: list[Candidate] = field(default_factory=list)
    scheduled: list[Key] | None = None
    young_reads: int = YOUNG_READS_MAX


class Discovery:
    """Hands out candidates of one queue to the threads of this process."""

    def __init__(self, storage: Storage, watch: VersionWatch, *, ttl_s: float) -> None:
        self._storage = storage
        self._store = storage.store
        self._keys = storage.keys
        self._runtime = storage.runtime
        self._watch = watch
        self._ttl_s = ttl_s
        self._mutex = self._runtime.mutex()
        self._page: CandidatePage | None = None
        self._whole = False
        self._scheduled_at_s = float("-inf")
        self._width = 1
        self.stale = False
        """Whether a claim from the page in hand was lost: others use it up too, and a new one costs less."""
        self._leases: dict[Version, Versioned[EntryLease]] = {}

    def next(self) -> Candidate | None:
        """The next candidate of the page in hand; None when it is used up or too old."""
        with self._mutex:
            page = self._page
            if page is None or self._runtime.elapsed_s() - page.at_s > AGE_MAX_S or self.stale:
                return None
            while page.candidates:
                width = min(self._width, len(page.candidates))
                at = len(page.candidates) - 1 - (self._runtime.rng.randrange(width) if width > 1 else 0)
                candidate = page.candidates.pop(at)
                if self._worth_a_read(page, candidate):
                    return candidate
            return None

    def any(self) -> bool:
        """Whether the page in hand has candidates left."""
        with self._mutex:
            return self._page is not None and bool(self._page.candidates)

    def list_page(self) -> CandidatePage:
        """List a new page.   Cost: 1 LIST, at a large backlog 1 more once a minute; the first ones 1 or 2 more."""
        page = self._listed() if self._whole else self._sampled()
        for candidate in page.candidates:
            if candidate.lease is not None:
                self._watch.unchanged_s(candidate.lease.key, candidate.lease.version)
        with self._mutex:
            self._page = page
            self.stale = False
        return page

    def add(self, entries: Iterable[str]) -> None:
        """Add entries that this process has just made pending."""
        now = self._store.now()
        with self._mutex:
            if self._page is not None:
                self._page.candidates[:0] = [Candidate(entry, False, now, None) for entry in entries]

    def remember(self, version: Version, seen: Versioned[EntryLease]) -> None:
        """Keep a lease that was read, by the version that the listing showed: each version is read once."""
        with self._mutex:
            self._leases[version] = seen
            if len(self._leases) > LEASES_MAX:
                del self._leases[next(iter(self._leases))]

    def remembered(self, version: Version) -> Versioned[EntryLease] | None:
        """The lease of that version, if it was read before."""
        with self._mutex:
            return self._leases.get(version)

    def lost(self) -> None:
        """A claim was lost to another worker: list again, and choose among more."""
        with self._mutex:
            self._width = min(WIDTH_MAX, self._width * 4)
            self.stale = True

    def won(self) -> None:
        """A claim was won: with a chance of one in eight, choose among half as many from now on."""
        with self._mutex:
            if self._width > 1 and self._runtime.rng.random() < 1 / 8:
                self._width //= 2

    def _worth_a_read(self, page: CandidatePage, candidate: Candidate) -> bool:
        """Whether to read the candidate's lease. Most young leases are held by live workers: a few a page are read."""
        lease = candidate.lease
        if lease is None or lease.version in self._leases:
            return True
        if lease.modified + timedelta(seconds=self._ttl_s) <= self._store.now():
            return True
        page.young_reads -= 1
        return page.young_reads >= 0

    def _listed(self) -> CandidatePage:
        """The whole of a short backlog, and what is scheduled behind it, in one listing."""
        at_s = self._runtime.elapsed_s()
        listing = self._store.list(self._keys.root, after=self._keys.pending)
        found = [*islice(listing, PAGE)]
        pending = f"{self._keys.pending}/"
        waiting = [stat for stat in found if stat.key.startswith(pending)]
        self._whole = len(waiting) < PAGE
        scheduled = f"{self._keys.scheduled}/"
        later = [stat.key for stat in found if stat.key.startswith(scheduled)] if self._whole else None
        self._scheduled_at_s = at_s
        return CandidatePage(at_s, self._candidates(waiting), later)

    def _sampled(self) -> CandidatePage:
        """Part of a long backlog."""
        at_s = self._runtime.elapsed_s()
        found = self._store.sample(self._keys.pending, PAGE)
        self._whole = len(found) < PAGE
        later = None
        if at_s - self._scheduled_at_s > SCHEDULED_EVERY_S:
            self._scheduled_at_s = at_s
            later = [stat.key for stat in islice(self._store.list(self._keys.scheduled), PAGE)]
        return CandidatePage(at_s, self._candidates(found), later)

    def _candidates(self, found: Sequence[Stat]) -> list[Candidate]:
        """Oldest last, so that taking one is cheap."""
        leases: dict[str, Stat] = {}
        tasks: list[tuple[str, str, Stat]] = []
        for stat in found:
            entry, kind = parts_of_entry(stat.key, self._keys.pending) or ("", "")
            if kind == LEASE:
                leases[entry] = stat
            elif kind in (TASK, BATCH):
                tasks.append((entry, kind, stat))
        entries = [Candidate(entry, kind == BATCH, stat.modified, leases.get(entry)) for entry, kind, stat in tasks]
        foreign = self._storage.journal.foreign(found)
        if foreign:
            entries = [candidate for candidate in entries if candidate.entry not in foreign]
        entries.sort(key=lambda candidate: (candidate.pushed, candidate.entry), reverse=True)
        return entries


class BucketQueue(AsyncQueue):
    """Tasks in a store: at least once, nothing acknowledged is lost, each ends in one place.

    Safe to share between threads. See `Queue` for the promises and docs/GUARANTEES.md for the proofs.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        runtime: Runtime,
        *,
        policy: Policy | None = None,
        provider: str = "bucket",
        payload_type: Any = None,
        journal: Journal | Callable[[], Journal | None] | None = None,
        watch: VersionWatch | None = None,
    ) -> None:
        self.name = name
        self.policy = policy or Policy()
        self.provider = provider
        self.supports: frozenset[Feature] = FEATURES
        self.storage = Storage(store, QueueKeys.of(name), runtime, journal)
        self._store = store
        self._runtime = runtime
        self._payload_type = payload_type
        self._decoder: msgspec.json.Decoder[Any] = records.decoder(payload_type or Any)
        self._watch = watch or VersionWatch(runtime)
        self._poll = PollBackoff()
        self._token: str | None = None
        self._is_paused = False
        self._ask_control_at_s = float("-inf")
        self._pusher = Pusher(self.storage)
        self._discovery = Discovery(self.storage, self._watch, ttl_s=self.policy.ttl_s)
        self._renewer = Renewer(runtime, self.policy.ttl_s, name=f"limpet-heartbeat-{name}")
        self._slots = Slots(self.storage, self.policy, self._watch, self._renewer)
        self.inspect = Inspection(self.storage)
        self._admin = Admin(self.storage, self._pusher, self.inspect, self.policy)
        self._sweeper = Sweeper(self.storage, self.policy)

    def __repr__(self) -> str:
        return f"<queue {self.name!r} ({self.provider})>"

    def push(self, payload: Any, *, id: str | None = None, delay_s: float = 0.0) -> Pushed:
        """Cost: 1 PUT; with an id 1 PUT + 2 HEADs.   Crash: the task is there, or it is not."""
        return self._pusher.push(encoded_payload(payload, self._payload_type), id=id, delay_s=delay_s)

    def push_many(self, payloads: Iterable[Any], *, batch: int = 100) -> list[str]:
        """Not deduplicated.   Cost: 1 PUT a batch.   Crash: whole batches are there or not."""
        encoded = (encoded_payload(payload, self._payload_type) for payload in payloads)
        return self._pusher.push_many(encoded, batch=batch)

    def claim(self, *, wait_s: float = 0.0) -> EntryClaim | EmptyClaim:
        """Claim the oldest entry that is free.

        Cost: a first claim 1 PUT + 1 GET, and 2 HEADs for a user's id; a later one 1 GET + 1 PUT + 1 GET + 2 HEADs, and
        1 PUT for each task that it starts; a share of 1 LIST a page, and 1 GET in 5 s. An idle poll is 1 LIST.
        Crash: the entry is taken over after `ttl_s`.
        An entry that cannot be read ends in failed/ with the reason, and in `notices`; other entries are not affected.
        """
        if not wait_s >= 0:
            raise Invalid(f"wait_s must not be negative, and is {wait_s:g}")
        until_s = self._runtime.elapsed_s() + wait_s
        while True:
            if wait_s <= 0 or self._runtime.elapsed_s() >= self._poll.due_s:
                self._token = self.change_token() if wait_s > 0 else None
                found = self._try_claim()
                if found is not None:
                    self._poll.found()
                    return found
                # All threads of this process share the schedule: one of them polls when it is due.
                self._poll.empty(self._runtime.elapsed_s(), self._runtime.rng.uniform(0.8, 1.0))
            if self._runtime.elapsed_s() >= until_s:
                return EmptyClaim()
            self._sleep(until_s)

    def _sleep(self, until_s: float) -> None:
        """Sleep until the next poll is due, or the change token differs (where asking for it costs no request)."""
        seen = self._token
        while (left_s := min(self._poll.due_s, until_s) - self._runtime.elapsed_s()) > 0:
            self._runtime.sleep(left_s if seen is None else min(left_s, TOKEN_EVERY_S))
            if seen is not None and self.change_token() != seen:
                self._poll.due_s = 0.0

    def change_token(self) -> str | None:
        """A directory and memory have one, a bucket has none."""
        keys = self.storage.keys
        pending, scheduled = self._store.change_token(keys.pending), self._store.change_token(keys.scheduled)
        return None if pending is None or scheduled is None else f"{pending} {scheduled}"

    def stats(self) -> Stats:
        """Cost: 1 LIST per 1,000 objects of the queue, 1 GET, and 1 GET for each lease."""
        return self.inspect.stats()

    def peek(self, n: int = 10) -> Sequence[Peeked]:
        """Cost: 1 or 2 LISTs + 1 GET an entry."""
        return self.inspect.peek(n)

    def result(self, id: str) -> Result:
        """Cost: 1 GET for a completed task, up to 4 GETs and 2 HEADs else."""
        return self.inspect.result(id)

    def errors(self, id: str) -> Sequence[AttemptError]:
        """Cost: 1 GET for a task that waits, up to 4 for one that ended."""
        return self.inspect.errors(id)

    def failed(self, n: int = 100, *, where: str | None = None, since_s: float | None = None) -> Sequence[Failure]:
        """Cost: 1 LIST per 1,000 receipts in failed/ + 1 GET for each that is looked at."""
        return self.inspect.failed(n, where=where, since_s=since_s)

    def notices(self) -> Sequence[Notice]:
        """Cost: nothing."""
        return self.storage.notices.take()

    def retry(
        self, id: str | None = None, *, all: bool = False, where: str | None = None, since_s: float | None = None
    ) -> Sequence[str]:
        """Cost: each 1 GET + a push + 1 PUT; for all, 1 LIST per 1,000 more.

        Crash: the new life is there before the receipt says so, so a second call finds it (H1).
        """
        return self._admin.retry(id, all=all, where=where, since_s=since_s)

    def cancel(self, id: str) -> bool:
        """Cost: 1 PUT (1 GET + 1 PUT if it is claimed), 1 GET, 1 PUT, 2 DELETEs."""
        return self._admin.cancel(id)

    def pause(self) -> None:
        """Workers notice within a few seconds.   Cost: 1 GET + 1 PUT."""
        self._admin.set_paused(True)
        self._ask_control_at_s = float("-inf")

    def resume(self) -> None:
        """Cost: 1 GET + 1 PUT."""
        self._admin.set_paused(False)
        self._ask_control_at_s = float("-inf")

    def purge(self) -> int:
        """Cost: 1 LIST per 1,000 objects + 2 DELETEs an entry, 1 PUT for a user's id."""
        return self._admin.purge()

    def sweep(self) -> int:
        """Tidy up after crashes: finish half-done ends, drop what lost, and what is older than `retention_s`.

        Workers do this by themselves, one of them once an hour. How many objects went.
        Cost: 1 LIST per 1,000 objects, 1 DELETE for each that goes, 1 GET for each batch that has large results.
        """
        return self._sweeper.sweep() + self._sweeper.retain() + self._sweeper.drop_parts()

    def _try_claim(self) -> EntryClaim | None:
        """Claim the first candidate that can be claimed, from the page in hand or a new one."""
        if self._runtime.elapsed_s() >= self._sweeper.due_s:
            self._sweeper.sweep_when_due()
        claim = self._from_page()
        for _ in range(TURNS_MAX):
            if claim is not None:
                break
            page = self._discovery.list_page()
            if page.scheduled:
                self._discovery.add(self._pusher.promote(now=self.storage.exact_now(), keys=page.scheduled))
            if not page.candidates:
                break
            claim = self._from_page()
            if not self._discovery.stale:
                break
        return claim

    def _paused(self) -> bool:
        """Whether an operator has paused the queue. Asked when there is something to take, at most every 5 s."""
        at_s = self._runtime.elapsed_s()
        if at_s >= self._ask_control_at_s:
            try:
                self._is_paused = self.storage.paused()
            except (Corrupt, Unsupported) as error:
                # One bad object must not stop a fleet: what was last known counts, and `pause` and `resume` mend it.
                was = "paused" if self._is_paused else "not paused"
                self.storage.notices.warn("", f"{error}; the queue counts as {was}")
            self._ask_control_at_s = at_s + CONTROL_EVERY_S
        return self._is_paused

    def _from_page(self) -> EntryClaim | None:
        if self.policy.concurrency is None:
            return self._first_claim()
        slot: Slot | None = None
        claim: EntryClaim | None = None
        try:
            if self._discovery.any():
                slot = self._slots.take()
            if slot is not None:
                claim = self._first_claim()
            return claim
        finally:
            if slot is not None and claim is not None:
                claim.on_end(partial(self._slots.give, slot))
            elif slot is not None:
                self._slots.give(slot)

    def _first_claim(self) -> EntryClaim | None:
        while (candidate := self._discovery.next()) is not None:
            claim = self._isolated(candidate)
            if claim is not None:
                self._discovery.won()
                return claim
        return None

    def _isolated(self, candidate: Candidate) -> EntryClaim | None:
        """Claim the candidate if that is possible. Whatever its bytes are, only this entry fails by them (F23).

        An entry that a newer Limpet wrote is left to a newer worker.
        """
        try:
            return self._claim(candidate)
        except (Corrupt, Invalid) as error:
            why = str(error)
        except (OutcomeUnknown, Unsupported):
            return None  # if the claim took effect after all, it expires
        try:
            reject_entry(self.storage, candidate.entry, why, batch=candidate.batch)
        except OutcomeUnknown:
            pass  # the next claim of it rejects it again
        except (Corrupt, Invalid, Unsupported) as error:
            self.storage.notices.warn(candidate.entry, f"{why}; it cannot be put aside: {error}")
        return None

    def _claim(self, candidate: Candidate) -> EntryClaim | None:
        cell = self.storage.lease(candidate.entry)
        seen: Versioned[EntryLease] | None = None
        if candidate.lease is not None:
            seen = self._takeable(cell, candidate, candidate.lease)
            if seen is None:
                return None
        return None if self._paused() else self._take(cell, seen, candidate)

    def _takeable(self, cell: Cell[EntryLease], candidate: Candidate, listed: Stat) -> Versioned[EntryLease] | None:
        """The lease, if it may be taken now. Each version is read once.   Cost: 1 GET."""
        seen = self._discovery.remembered(listed.version) or cell.read()
        if seen is None:
            return None
        self._discovery.remember(listed.version, seen)
        modified = seen.modified
        assert modified is not None
        if seen.version != listed.version and modified != listed.modified:
            return None
        record, unchanged_s = seen.value, self._watch.unchanged_s(listed.key, listed.version)

        def classify(now: datetime) -> Ready:
            return claimable(record, modified=modified, unchanged_s=unchanged_s, now=now, wall=self._runtime.wall())

        ready = classify(self._store.now())
        if not ready.take and record.state is State.FREE:
            # The lower bound of the clock may lie far behind, and the wait be long over.
            ready = classify(self.storage.exact_now())
        if ready.finish:
            finish_cancelled(self.storage, candidate.entry, batch=candidate.batch)
        return seen if ready.take else None

    def _take(
        self, cell: Cell[EntryLease], seen: Versioned[EntryLease] | None, candidate: Candidate
    ) -> EntryClaim | None:
        waits: dict[int, float] = {}
        if seen is not None and seen.modified is not None:
            waits = waits_left(seen.value, modified=seen.modified, now=self._store.now())
            if waits:
                waits = waits_left(seen.value, modified=seen.modified, now=self.storage.exact_now())
        record = claimed(
            seen.value if seen else None,
            entry=candidate.entry,
            worker_id=self._runtime.owner,
            label=self._runtime.label,
            policy=self.policy,
            wall=self._runtime.wall(),
            waits=waits,
        )
        sent_at_s = self._runtime.elapsed_s()
        match cell.attempt(seen, record):
            case Won(mine):
                return self._open(HeldLease(cell, mine, self._runtime, sent_at_s=sent_at_s), candidate)
            case Replaced() | Lost() | Unclear():
                self._discovery.lost()
                return None

    def _open(self, holding: HeldLease[EntryLease], candidate: Candidate) -> EntryClaim | None:
        """The claim of an entry whose lease was won; None if the entry has ended or all its tasks are given up."""
        entry, batch = candidate.entry, candidate.batch
        try:
            content = self.storage.content(entry, batch=batch)
        except Missing:
            self._discovery.lost()
            self.storage.drop_lease(entry)
            return None
        except Unsupported:
            holding.free(self._left_to_newer)
            return None
        doubtful = holding.token > 1 or not content.minted or self.storage.journal.travels
        if doubtful and self.storage.ended(entry):
            self.storage.close(entry, batch=batch)  # H5: it ended; only its end was not finished
            return None
        claim = EntryClaim(self.storage, self.policy, self._decoder, self._renewer, holding, content, batch=batch)
        if holding.token > 1 and not self._has_work_left(claim, holding.record, len(content.ids)):
            return None
        return claim

    def _left_to_newer(self, record: EntryLease) -> EntryLease:
        """A newer Limpet wrote the task: the entry rests for `ttl_s`, so that not every poll takes it."""
        return msgspec.structs.replace(record, state=State.FREE, wait_s=self.policy.ttl_s)

    def _has_work_left(self, claim: EntryClaim, record: EntryLease, count: int) -> bool:
        """Give up the tasks whose attempts are used up, and finish an entry that has no other ones."""
        try:
            for n in exhausted(record, count, self.policy):
                before = error_of(record, n, count)
                claim.give_up(n, f"{DIED} (before that: {before})" if before else DIED)
            if not claim.over:
                return True
            claim.hand_back()
        except BaseException:
            claim.abandon()
            raise
        return False
