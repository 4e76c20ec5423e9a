"""`BucketQueue`: a queue in a store, how an entry of it is found, and how it is claimed.

A listing is a hint (F22); the truth is the swap that claims. Listing costs a request for 1,000 objects however long the
backlog is, so a page is kept and used up: oldest first, and the more claims are lost to others, the wider the choice
among the oldest, so that many workers do not race for the same entry.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from limpet import records
from limpet.cell import Cell, Lost, Outcome, Replaced, Unclear, Versioned, Won
from limpet.errors import Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable, Unsupported
from limpet.keys import (
    BATCH,
    LEASE,
    TASK,
    Key,
    QueueKeys,
    check_id,
    count_of,
    derived,
    parts_of_entry,
    parts_of_scheduled,
)
from limpet.lease import HeldLease, Renewer, State, VersionWatch
from limpet.queue.adopt import Adopter, QueueAdoptReport
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
    TaskHandle,
)
from limpet.queue.claim import EntryClaim, Slot, Slots
from limpet.queue.closer import FRESH_S
from limpet.queue.decide import Ready, claimable, claimed, waits_left
from limpet.queue.durable import WaitingStep, look_again_s, looks
from limpet.queue.entry import Content, EntryLease, Journal, PushedStep, Storage, encoded_payload
from limpet.queue.finish import Admin, finish_cancelled, reject_entry
from limpet.queue.inspect import Inspection, plain_id
from limpet.queue.push import Pusher
from limpet.queue.steps import RUNNING, in_order
from limpet.queue.sweep import Sweeper
from limpet.runtime import Runtime, in_thread, pause
from limpet.store.api import Stat, Store, Version
from limpet.store.sources import FileSource
from limpet.tracing import OTEL, span

POLL_MIN_S = 0.2
POLL_MAX_S = 24.0
POLL_GROWTH = 1.5
TOKEN_EVERY_S = 0.1
TURNS_MAX = 3
CONTROL_EVERY_S = 5.0
WAIT_MAX_S = 2.0
PAGE = 1000
AGE_MAX_S = 30.0
YOUNG_READS_MAX = 8
WIDTH_MAX = 256
SCHEDULED_EVERY_S = 60.0
LEASES_MAX = 10_000
LOOK_AGAIN_S = 0.5
"""After a ring, suspended entries are looked at again after this time: what ended may not have been removed at once."""


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


class ResultWait:
    """Waits for tasks to end: `poll` until it says None. Only those that have not ended are asked for again."""

    def __init__(
        self,
        inspection: Inspection,
        runtime: Runtime,
        change_token: Callable[[], str | None],
        ids: list[str],
        until_s: float,
    ) -> None:
        self._inspect = inspection
        self._runtime = runtime
        self._change_token = change_token
        self._ids = ids
        self._until_s = until_s
        self._backoff = PollBackoff()
        self.found: dict[str, Result] = {}
        self.token: str | None = None

    def poll(self) -> float | None:
        """Ask for those that have not ended; how long to pause before the next poll, None if there is none.

        Cost: 2 GETs for each single task that has not ended, 2 GETs + 1 HEAD for each batch; in bulk.
        """
        self.token = self._change_token()
        self.found |= self._inspect.ended({*self._ids} - self.found.keys())
        left_s = self._until_s - self._runtime.elapsed_s()
        if left_s <= 0 or len(self.found) == len({*self._ids}):
            return None
        if self.token is not None:
            return min(left_s, WAIT_MAX_S)
        self._backoff.empty(0.0, self._runtime.rng.uniform(0.8, 1.0), longest_s=WAIT_MAX_S)
        return min(left_s, self._backoff.due_s)

    def same(self) -> bool:
        """Whether the change token is still the one that the last poll saw."""
        return self.token is None or self._change_token() == self.token

    def results(self) -> list[Result]:
        """What was found, in the order of the ids, and where the others are."""
        others = [id_ for id_ in self._ids if id_ not in self.found]
        found = self.found | dict(zip(others, self._inspect.results(others), strict=True))
        return [found[id_] for id_ in self._ids]


class Candidate(msgspec.Struct, frozen=True):
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
    ours: int = 0
    """How many entries were left out because this process is claiming them, or has ended them."""


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
        self._listing = self._runtime.mutex()
        self._page: CandidatePage | None = None
        self.pages = 0
        """How many pages were listed."""
        self._tried: dict[str, tuple[int, float]] = {}
        """Entries that were handed out: of which page, and when the attempt to claim them ended (infinite: not yet)."""
        self.whole = False
        """Whether the last page showed all that waits."""
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
                    self._tried[candidate.entry] = (self.pages, float("inf"))
                    return candidate
            return None

    def tried(self, candidate: Candidate) -> None:
        """The attempt to claim the candidate has ended."""
        with self._mutex:
            page, _ = self._tried.get(candidate.entry, (self.pages, 0.0))
            self._tried[candidate.entry] = (page, self._runtime.elapsed_s())

    def any(self) -> bool:
        """Whether the page in hand has candidates left."""
        with self._mutex:
            return self._page is not None and bool(self._page.candidates)

    def list_page(self, seen: int | None = None) -> CandidatePage | None:
        """List a new page; None if another thread has listed one since there were `seen` pages.

        One thread lists at a time. The page leaves out what other threads were claiming when the listing began, which
        it may show as free, and what this process has ended and not deleted yet.
        Cost: 1 LIST, at a large backlog 1 more once a minute; the first ones 1 or 2 more.
        """
        with self._listing:
            if seen not in (None, self.pages):
                return None
            page = self._listed() if self.whole else self._sampled()
            for candidate in page.candidates:
                if candidate.lease is not None:
                    self._watch.unchanged_s(candidate.lease.key, candidate.lease.version)
            ended = self._storage.closer.entries() if self._storage.closer is not None else ()
            with self._mutex:
                self._tried = {entry: tried for entry, tried in self._tried.items() if tried[1] > page.at_s}
                others = {*self._tried, *ended}
                shown = len(page.candidates)
                page.candidates = [each for each in page.candidates if each.entry not in others]
                page.ours = shown - len(page.candidates)
                self._page = page
                self.pages += 1
                self.stale = False
            return page

    def add(self, entries: Iterable[str]) -> None:
        """Add entries that this process has just made pending."""
        now = self._store.now()
        with self._mutex:
            if self._page is not None:
                self._page.candidates[:0] = [Candidate(entry, False, now, None) for entry in entries]

    def lease(self, cell: Cell[EntryLease], version: Version) -> Versioned[EntryLease] | None:
        """The lease of which a listing showed `version`; None if it is gone.   Cost: 1 GET, once for each version."""
        with self._mutex:
            seen = self._leases.get(version)
        seen = seen or cell.read()
        if seen is not None:
            with self._mutex:
                self._leases[version] = seen
                if len(self._leases) > LEASES_MAX:
                    del self._leases[next(iter(self._leases))]
        return seen

    def lost(self, candidate: Candidate) -> None:
        """A claim was lost to another worker: list again, and choose among more. One that an older page showed is not
        counted.
        """
        with self._mutex:
            page, _ = self._tried.get(candidate.entry, (self.pages, 0.0))
            if page == self.pages and not self.stale:
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
        self.whole = len(waiting) < PAGE
        scheduled = f"{self._keys.scheduled}/"
        later = [stat.key for stat in found if stat.key.startswith(scheduled)] if self.whole else None
        self._scheduled_at_s = at_s
        return CandidatePage(at_s, self._candidates(waiting), later)

    def _sampled(self) -> CandidatePage:
        """Part of a long backlog."""
        at_s = self._runtime.elapsed_s()
        found = self._store.sample(self._keys.pending, PAGE)
        self.whole = len(found) < PAGE
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
        self._next_page = PollBackoff()
        self._token: str | None = None
        self._is_paused = False
        self._ask_control_at_s = float("-inf")
        self._due_s = float("inf")
        """When something that this process has seen is due, where no bell tells."""
        self._gone: set[str] = set()
        """Awaited entries that were seen to have ended."""
        self._looks: dict[tuple[str, Version], tuple[float, float]] = {}
        """Suspended entries, by the version of their lease: when to look at them again, and after which pause."""
        self._pusher = Pusher(self.storage)
        self._discovery = Discovery(self.storage, self._watch, ttl_s=self.policy.ttl_s)
        self._renewer = Renewer(runtime, self.policy.ttl_s, name=f"limpet-renewer-{name}")
        self._slots = Slots(self.storage, self.policy, self._watch, self._renewer)
        self.inspect = Inspection(store, self.storage.keys, runtime, self.storage)
        self._admin = Admin(self.storage, self._pusher.place, self.inspect, self.policy)
        self._sweeper = Sweeper(self.storage, self.policy)

    def __repr__(self) -> str:
        return f"<queue {self.name!r} ({self.provider})>"

    def push(self, payload: Any, *, id: str | None = None, delay_s: float = 0.0) -> Pushed:
        """Cost: 1 PUT; with an id 1 PUT + 2 HEADs.   Crash: the task is there, or it is not."""
        data = encoded_payload(payload, self._payload_type)
        steps = RUNNING.get()
        if steps is not None and steps.numbers_push(has_id=id is not None):
            step = steps.push(self.name, partial(self._push_step, data, id, delay_s))
            return Pushed(self._handle(step.id or ""), step.created)
        pushed = self._push(data, id=id, delay_s=delay_s)
        return Pushed(self._handle(pushed.id), pushed.created)

    def _push(self, data: bytes, **about: Any) -> Pushed:
        if OTEL not in sys.modules:
            return self._pusher.push(data, **about)
        with span("push", self.name, "producer") as traced:
            pushed = self._pusher.push(data, trace=traced.traceparent(), **about)
            traced.set(message_id=pushed.id, created=pushed.created)
        return pushed

    def _push_step(
        self, data: bytes, id_: str | None, delay_s: float, name: str, fresh: bool, caller: str
    ) -> PushedStep:
        """The push of a durable task: under the derived name, unless it has an id."""
        pushed = self._push(data, id=id_, delay_s=delay_s, name=name, fresh=fresh, caller=caller)
        return PushedStep(id=pushed.id, created=pushed.created)

    def push_many(self, payloads: Iterable[Any], *, batch: int = 100, id: str | None = None) -> list[TaskHandle]:
        """Cost: 1 PUT a batch; with an id 2 HEADs more.   Crash: whole batches are there or not."""
        encoded = (encoded_payload(payload, self._payload_type) for payload in payloads)
        name = None if id is None else derived("many", check_id(id))
        steps = RUNNING.get()
        if steps is not None and steps.numbers_push(has_id=id is not None):
            entries = steps.push(self.name, partial(self._push_steps, encoded, batch, name)).entries
        else:
            entries = self._push_many(encoded, batch=batch, name=name)
        return [self._handle(f"{entry}.{n}") for entry in entries for n in range(count_of(entry))]

    def _push_many(self, encoded: Iterable[bytes], **about: Any) -> list[str]:
        if OTEL not in sys.modules:
            return self._pusher.push_many(encoded, **about)
        with span("push", self.name, "producer") as traced:
            entries = self._pusher.push_many(encoded, trace=traced.traceparent(), **about)
            traced.set(tasks=sum(map(count_of, entries)))
        return entries

    def _push_steps(
        self, encoded: Iterable[bytes], batch: int, named: str | None, name: str, fresh: bool, caller: str
    ) -> PushedStep:
        """As `_push_step`, for many tasks."""
        fresh = fresh and named is None
        entries = self._push_many(encoded, batch=batch, name=named or name, fresh=fresh, caller=caller)
        return PushedStep(entries=entries)

    async def push_async(self, payload: Any, *, id: str | None = None, delay_s: float = 0.0) -> Pushed:
        return await in_order(self.push, payload, id=id, delay_s=delay_s)

    def _handle(self, id_: str) -> TaskHandle:
        handle = TaskHandle(id_)
        handle.queue = self
        return handle

    def claim(self, *, wait_s: float = 0.0) -> EntryClaim | EmptyClaim:
        """Claim the oldest entry that is free.

        Cost: a first claim 1 PUT + 1 GET, and 2 HEADs for a user's id; a later one 1 GET + 1 PUT + 1 GET + 2 HEADs, and
        1 PUT for each task that it starts, or for all that threads start at once; a share of 1 LIST a page, and 1 GET
        in 5 s. An idle poll is 1 LIST.
        Crash: the entry is taken over after `ttl_s`.
        An entry that cannot be read ends in failed/ with the reason, and in `notices`; other entries are not affected.
        """
        if not wait_s >= 0:
            raise Invalid(f"wait_s must not be negative, and is {wait_s:g}")
        until_s = self._runtime.elapsed_s() + wait_s
        while True:
            if wait_s <= 0 or self._runtime.elapsed_s() >= self._poll.due_s:
                self._token = self.change_token() if wait_s > 0 else None
                due_s = self._poll.due_s
                found = self._try_claim()
                if found is not None:
                    self._poll.found()
                    return found
                # All threads of this process share the schedule: one of them polls when it is due.
                if self._poll.due_s == due_s:
                    self._poll.empty(
                        self._runtime.elapsed_s(), self._runtime.rng.uniform(0.8, 1.0), longest_s=self.idle_poll_s
                    )
            if self._runtime.elapsed_s() >= until_s:
                return EmptyClaim()
            self._sleep(until_s)

    @property
    def idle_poll_s(self) -> float:
        return self.policy.poll_s if self.storage.bell is not None else POLL_MAX_S

    @property
    def claims_ahead(self) -> bool:
        return self._store.far and self.policy.concurrency is None and self.policy.rate_per_s is None

    def claim_ahead(self) -> EntryClaim | None:
        """Only from the page in hand.   Cost: that of a claim, without a LIST."""
        return self._first_claim()

    def flush(self) -> None:
        """Cost: 2 DELETEs for each entry that has just ended, in bulk. Takes about a second if there are any."""
        if self.storage.closer is not None:
            self.storage.closer.flush()

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
        if pending is None or scheduled is None:
            return None
        due = self._runtime.elapsed_s() >= self._due_s  # a task that rests or is suspended is to be looked at
        return f"{pending} {scheduled} {self._store.change_token(keys.root)} {due}"

    def stats(self) -> Stats:
        """Cost: 1 LIST per 1,000 objects of the queue, 1 GET, and 1 GET for each lease."""
        self._drop_ended()
        return self.inspect.stats()

    def peek(self, n: int = 10) -> Sequence[Peeked]:
        """Cost: 1 or 2 LISTs + 1 GET an entry."""
        self._drop_ended()
        return self.inspect.peek(n)

    def result(self, id: str, *, wait_s: float = 0.0) -> Result:
        """Cost: 1 GET for a completed task, up to 5 GETs and 2 HEADs else; with `wait_s`, that of `wait` before."""
        if wait_s:
            found = self.wait([id], timeout_s=wait_s)[0]
            if found.ready:
                return found
        return self.inspect.result(id)

    def results(self, ids: Iterable[str]) -> list[Result]:
        """Cost: 1 GET for each completed entry: for a whole batch, if none of its tasks failed; in bulk.

        Another single task: 2 GETs and 1 HEAD. A batch that has not ended: 2 GETs and 2 HEADs. A failed one of a batch:
        2 GETs more. Large results: 1 GET for each part object that holds some.
        """
        return self.inspect.results(ids)

    def wait(self, ids: Iterable[str], *, timeout_s: float) -> list[Result]:
        """Cost: that of `results` at the end; before that, a poll takes 2 GETs for each single task that has not ended,
        and 2 GETs + 1 HEAD for each batch. In a bucket it polls after 0.2 s, and then less often, down to every 2 s;
        elsewhere when the change token differs, and every 2 s.
        """
        waiting = self._waiting(ids, timeout_s)
        while (pause_s := waiting.poll()) is not None:
            self._rest(pause_s, waiting.token)
        return waiting.results()

    async def result_async(self, id: str, *, wait_s: float = 0.0) -> Result:
        """Cost: that of `result`."""
        if wait_s:
            waiting = self._waiting([id], wait_s)
            while (pause_s := await in_thread(waiting.poll)) is not None:
                until_s = self._runtime.elapsed_s() + pause_s
                while waiting.same() and (left_s := until_s - self._runtime.elapsed_s()) > 0:
                    await pause(left_s if waiting.token is None else min(left_s, TOKEN_EVERY_S))
            found = waiting.found.get(plain_id(id))
            if found is not None and found.ready:
                return found
        return await in_thread(self.inspect.result, id)

    def _waiting(self, ids: Iterable[str], timeout_s: float) -> ResultWait:
        if not timeout_s >= 0:
            raise Invalid(f"a wait must not be negative, and is {timeout_s:g} s")
        until_s = self._runtime.elapsed_s() + timeout_s
        return ResultWait(self.inspect, self._runtime, self.change_token, [*map(plain_id, ids)], until_s)

    def _rest(self, pause_s: float, seen: str | None) -> None:
        """Sleep, or until the change token differs from the one that was seen (None: there is none)."""
        until_s = self._runtime.elapsed_s() + pause_s
        while (left_s := until_s - self._runtime.elapsed_s()) > 0:
            self._runtime.sleep(left_s if seen is None else min(left_s, TOKEN_EVERY_S))
            if seen is not None and self.change_token() != seen:
                return

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
        self,
        id: str | None = None,
        *,
        all: bool = False,
        where: str | None = None,
        since_s: float | None = None,
        from_scratch: bool = False,
    ) -> Sequence[str]:
        """Cost: each 1 GET + a push + 1 PUT; for all, 1 LIST per 1,000 more. For a durable task 2 LISTs, and 1 GET,
        1 PUT and 1 DELETE for each recorded step more.

        Crash: the new life is there before the receipt says so, so a second call finds it (H1).
        """
        return self._admin.retry(id, all=all, where=where, since_s=since_s, from_scratch=from_scratch)

    def cancel(self, id: str) -> bool:
        """Cost: 1 PUT (1 GET + 1 PUT if it is claimed), 1 GET, 1 PUT, 2 DELETEs."""
        return self._admin.cancel(id)

    def signal(self, id: str, name: str, value: Any = None) -> bool:
        """Cost: 1 PUT, 1 GET; 1 PUT more, and that of a ring, if the task waits for it; else 1 HEAD if it is not held.

        Crash: the signal is there, or it is not. A task that waits for it finds it within a minute.
        """
        return self._admin.signal(id, name, value)

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

    def sweep(self, *, retain: bool = True) -> int:
        """Tidy up after crashes: finish half-done ends, drop what lost, and what is older than `retention_s`.

        Workers do this by themselves, one of them once an hour. How many objects went.
        With `retain=False` no receipt goes by its age: for a process that does not know the workers' `retention_s`.
        Cost: 1 LIST per 1,000 objects, 1 DELETE for each that goes, 1 GET for each batch that has large results.
        """
        gone = self._sweeper.sweep()
        if retain:
            gone += self._sweeper.retain()
        return gone + self._sweeper.drop_parts()

    def adopt(self, source: FileSource, *, quiesced: bool = False) -> QueueAdoptReport:
        """Take over the tasks of another program's queue.   See `queue.adopt.Adopter.take_over`."""
        encode = partial(encoded_payload, payload_type=self._payload_type)
        return Adopter(self.storage, self._pusher.place, encode).take_over(source, quiesced=quiesced)

    def _worth_a_list(self) -> bool:
        """Whether to list the queue. In a bucket, the bell tells an idle worker when.   Cost: 1 HEAD, or nothing."""
        bell = self.storage.bell
        if bell is None:
            return True
        at_s = self._runtime.elapsed_s()
        wanted = bell.worth_a_list()
        if wanted:
            bell.listed(at_s)
        return wanted

    def _expect(self, at: datetime, now: datetime) -> None:
        """An idle worker should look again at that time of the store's clock."""
        self._expect_s(self._runtime.elapsed_s() + (at - now).total_seconds())

    def _expect_s(self, at_s: float) -> None:
        """The same, by this process's clock."""
        if self.storage.bell is not None:
            self.storage.bell.expect(at_s)
        elif not self._due_s <= at_s:
            self._due_s = at_s

    def _expect_scheduled(self, keys: Sequence[Key], now: datetime) -> None:
        for found in map(parts_of_scheduled, keys):
            if found is not None and found[0] > now:
                self._expect(found[0], now)
                return  # they are sorted

    def _drop_ended(self) -> None:
        """Delete the tasks that this process has ended, so that it does not count them itself."""
        if self.storage.closer is not None:
            self.storage.closer.drop_tasks()

    def _try_claim(self) -> EntryClaim | None:
        """Claim the first candidate that can be claimed, from the page in hand or a new one."""
        if self._due_s <= self._runtime.elapsed_s():
            self._due_s = float("inf")
        if self._runtime.elapsed_s() >= self._sweeper.due_s:
            self._sweeper.sweep_when_due()
        pages = self._discovery.pages
        listed = False
        claim = self._from_page()
        for _ in range(TURNS_MAX):
            if claim is not None:
                break
            if not self._worth_a_list():
                break
            page = self._discovery.list_page(pages)
            listed = listed or page is not None
            if page is not None and page.scheduled:
                now = self.storage.exact_now()
                self._discovery.add(self._pusher.promote(now=now, keys=page.scheduled))
                self._expect_scheduled(page.scheduled, now)
            pages = self._discovery.pages
            if page is not None and not page.candidates:
                if page.ours and not self._discovery.whole:
                    continue  # another page has what waits
                break
            claim = self._from_page()
            if not self._discovery.stale:
                break
            self._note_find()
        if claim is not None:
            self._next_page.found()
            self._note_find()
        elif listed and not self._discovery.whole and self.storage.bell is not None:
            # No push announces what waits on another page of a long backlog. Only the thread that listed the page makes
            # the pause longer: all threads share it.
            self._next_page.empty(self._runtime.elapsed_s(), 1.0)
            self.storage.bell.expect(self._next_page.due_s)
        return claim

    def _note_find(self) -> None:
        """There is work: list without asking the bell for a while."""
        if self.storage.bell is not None:
            self.storage.bell.heard()

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
                claim.on_end(slot.free)
            elif slot is not None:
                slot.free()

    def _first_claim(self) -> EntryClaim | None:
        while (candidate := self._discovery.next()) is not None:
            try:
                claim = self._isolated(candidate)
            finally:
                self._discovery.tried(candidate)
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
        except OutcomeUnknown as error:
            if not isinstance(error.__cause__, Corrupt):
                return None  # if the claim took effect after all, it expires
            why = str(error.__cause__)  # what has the lease's name cannot be listed: a pipe, on a directory
        except Unsupported:
            return None
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
        """The lease, if it may be taken now.   Cost: 1 GET, once for each version."""
        seen = self._discovery.lease(cell, listed.version)
        if seen is None:
            return None
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
        if not ready.take and ready.at is not None:
            self._expect(ready.at, self._store.now())
        if ready.finish:
            finish_cancelled(self.storage, candidate.entry, batch=candidate.batch)
        if ready.take and record.suspended and not self._can_go_on(seen, candidate, modified):
            return None
        return seen if ready.take else None

    def _can_go_on(self, seen: Versioned[EntryLease], candidate: Candidate, modified: datetime) -> bool:
        """Whether a task of a suspended entry may have what it waits for. If not, it is looked at again later.

        Cost: mostly 1 HEAD; nothing if it was looked at a moment ago.
        """
        timed = any(each.due_s is not None for each in seen.value.suspended.values())
        now = self.storage.exact_now() if timed else self._store.now()
        now = max(now, modified + timedelta(seconds=seen.value.wait_s))  # so much is known
        at_s = self._runtime.elapsed_s()
        wanted = looks(seen.value, count_of(candidate.entry), modified=modified, now=now)
        if not wanted:
            return True
        key = (candidate.entry, seen.version)
        due_s, pace_s = self._looks.get(key, (0.0, 0.0))
        bell = self.storage.bell
        early = bell is None or bell.listening
        if at_s < (due_s - pace_s + LOOK_AGAIN_S if early else due_s):
            self._expect_s(due_s)
            return False
        if any(self._is_there(candidate.entry, look) for look in wanted):
            self._looks.pop(key, None)
            return True
        pace_s = look_again_s((now - modified).total_seconds())
        if len(self._looks) >= LEASES_MAX:
            self._looks.clear()
        self._looks[key] = (at_s + pace_s, pace_s)
        self._expect_s(at_s + pace_s)
        return False

    def _is_there(self, entry: str, look: WaitingStep) -> bool:
        """Whether a task has what it waits for: the signal, or the end of all entries that its lease names."""
        if look.signal is not None and self.storage.exists(self.storage.keys.signal(entry, look.n, look.signal)):
            return True
        for key in look.awaits if look.signal is None else ():
            if key in self._gone:
                continue
            if self.storage.exists(Key(key)):
                return False
            if len(self._gone) >= LEASES_MAX:
                self._gone.clear()
            self._gone.add(key)
        return look.signal is None

    def _take(
        self, cell: Cell[EntryLease], seen: Versioned[EntryLease] | None, candidate: Candidate
    ) -> EntryClaim | None:
        waits: dict[int, float] = {}
        since_s = 0.0
        if seen is not None and seen.modified is not None:
            now = self._store.now()
            if waits_left(seen.value, modified=seen.modified, now=now):
                now = self.storage.exact_now()
            waits = waits_left(seen.value, modified=seen.modified, now=now)
            since_s = max(0.0, (now - seen.modified).total_seconds())
        record = claimed(
            seen.value if seen else None,
            entry=candidate.entry,
            worker_id=self._runtime.owner,
            label=self._runtime.label,
            policy=self.policy,
            wall=self._runtime.wall(),
            waits=waits,
            since_s=since_s,
        )
        sent_at_s = self._runtime.elapsed_s()
        read: Content | LimpetError | None = None
        if seen is None and self._store.far:
            outcome, read = self._take_and_read(cell, record, candidate)
            if self._runtime.elapsed_s() - sent_at_s > FRESH_S or isinstance(read, Unavailable):
                read = None
        else:
            outcome = cell.attempt(seen, record)
        match outcome:
            case Won(mine):
                return self._open(HeldLease(cell, mine, self._runtime, sent_at_s=sent_at_s), candidate, read)
            case Replaced() | Lost() | Unclear():
                self._discovery.lost(candidate)
                return None

    def _take_and_read(
        self, cell: Cell[EntryLease], record: EntryLease, candidate: Candidate
    ) -> tuple[Outcome[EntryLease], Content | LimpetError]:
        """Create the lease and read the task at the same time.

        The read counts only if it is fresh: a task that was read long before the lease was created may have been done
        by another worker in between (docs/design/0011-latency.md).   Cost: 1 PUT + 1 GET, in one round trip.
        """
        took: list[Outcome[EntryLease] | LimpetError] = []

        def run(n: int) -> Content | LimpetError | None:
            try:
                if n:
                    return self.storage.content(candidate.entry, batch=candidate.batch)
                took.append(cell.attempt(None, record))
            except LimpetError as error:
                if n:
                    return error
                took.append(error)
            return None

        read = self._runtime.fan_out(run, (0, 1))[1]
        assert read is not None
        if isinstance(took[0], LimpetError):
            raise took[0]
        return took[0], read

    def _open(
        self, holding: HeldLease[EntryLease], candidate: Candidate, read: Content | LimpetError | None
    ) -> EntryClaim | None:
        """The claim of an entry whose lease was won; None if the entry has ended or all its tasks are given up.

        `read`: the tasks of the entry, if they are known, or why they cannot be read.
        """
        entry, batch = candidate.entry, candidate.batch
        try:
            if isinstance(read, LimpetError):
                raise read
            content = read or self.storage.content(entry, batch=batch)
        except Missing:
            self._discovery.lost(candidate)
            self.storage.drop_lease(entry)
            return None
        except Unsupported:
            # A newer Limpet wrote the task: the entry rests for `ttl_s`, so that not every poll takes it.
            rests = partial(msgspec.structs.replace, state=State.FREE, wait_s=self.policy.ttl_s)
            holding.free(rests)
            return None
        doubtful = holding.token > 1 or not content.minted or self.storage.journal.travels
        if doubtful and self.storage.ended(entry):
            self.storage.close(entry, batch=batch)  # H5: it ended; only its end was not finished
            return None
        claim = EntryClaim(self.storage, self.policy, self._decoder, self._renewer, holding, content, batch=batch)
        return claim if holding.token == 1 or claim.give_up_exhausted() else None
