"""`BucketQueue`: a queue in a store, how an entry of it is found, and how it is claimed.

A listing is a hint (F22); the truth is the swap that claims. Listing costs a request for 1,000 objects however long the
backlog is, so a page is kept and used up: oldest first, and the more claims are lost to others, the wider the choice
among the oldest, so that many workers do not race for the same entry.

Entries that rest stay in `pending/`, thousands of them perhaps. A process remembers until when each one rests, and
leaves it out of its pages; of the leases that it does not know it reads some a page, and all of them only when nothing
else can be claimed. If most of a page rests, every second page is of what was pushed last: of the last seconds first.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from math import inf
from operator import itemgetter
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
    count_of,
    is_batch,
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
    Queue,
    Result,
    Stats,
    TaskHandle,
)
from limpet.queue.claim import EntryClaim, Slot, Slots
from limpet.queue.closer import FRESH_S
from limpet.queue.decide import Ready, Resting, claimable, claimed, is_left_out, now_for, waits_left
from limpet.queue.durable import WaitingStep, arguments_digest, look_again_s, looks
from limpet.queue.entry import Content, EntryLease, ForeignTask, Journal, PushedStep, Storage, encoded_payload, is_of
from limpet.queue.finish import Admin, finish_cancelled, reject_entry
from limpet.queue.inspect import Inspection, plain_id
from limpet.queue.push import Pusher
from limpet.queue.standstill import StandstillCheck
from limpet.queue.steps import RUNNING, in_order
from limpet.queue.sweep import Sweeper
from limpet.runtime import Runtime, in_thread, pause, ulid, ulid_ms
from limpet.store.api import Stat, Store, Version, batched
from limpet.store.sources import FileSource
from limpet.tracing import OTEL, span

POLL_MIN_S = 0.2
POLL_MAX_S = 24.0
POLL_GROWTH = 1.5
TOKEN_EVERY_S = 0.1
TURNS_MAX = 3
TURNS_CROWDED_MAX = 30
CONTROL_EVERY_S = 5.0
WAIT_MAX_S = 2.0
PAGE = 1000
AGE_MAX_S = 30.0
YOUNG_READS_MAX = 8
WIDTH_MAX = 256
SCHEDULED_EVERY_S = 60.0
LEASES_MAX = 10_000
LEASES_IN_TURN = 8
"""So many unknown leases of a page are read one by one, each entry in its turn."""
LEASES_A_PAGE = 64
"""If there are more, so many are read in bulk before the page is used, and the others when the rest is used up."""
RESTING_MAX = 50_000
SEEN_MAX_S = 600.0
EARLY_LOOKS_MAX = 8
NEWEST_IN_TURN = 16
NEWEST_WINDOWS_S = (2.0, 15.0)
"""A look for what was pushed last begins with the last seconds: one page shows it, whatever was suspended before."""
NEWEST_S, NEWEST_MAX_S = 60.0, 600.0
"""How far back the pages of what was pushed last reach at first, and later at most."""
SKEW_S = 10.0
"""By how much the clocks of pushers may differ, so that a page of what was pushed last shows all of it."""
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
    """An entry that a listing showed, with its lease if it had one. `seen_s`: when that was, or the lease was read."""

    entry: str
    batch: bool
    pushed: datetime
    lease: Stat | None
    seen_s: float = 0.0


@dataclass(slots=True)
class CandidatePage:
    """Part of what waits. `scheduled` are delayed pushes, the earliest first; None if they were not listed."""

    at_s: float
    candidates: list[Candidate] = field(default_factory=list)
    scheduled: list[Key] | None = None
    ours: int = 0
    """How many entries were left out because this process is claiming them, or has ended them."""
    newest: bool = False
    """Whether it shows what was pushed last, rather than the next part of the backlog."""


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
        self.complete = False
        """Whether it did, and no lease was left unread."""
        self._scheduled_at_s = float("-inf")
        self._width = 1
        self.stale = False
        """Whether a claim from the page in hand was lost: others use it up too, and a new one costs less."""
        self._leases: dict[Version, Versioned[EntryLease]] = {}
        self._unread: list[Candidate] = []
        """Candidates of the last pages whose leases are not known, if there were many of them."""
        self._resting: dict[str, tuple[Resting, Candidate]] = {}
        self._wakes: list[tuple[float, str]] = []
        """When each entry that rests is due: a heap, which also has times that no longer count."""
        self.crowded = False
        """Whether few entries of the last part of a long backlog could be claimed."""
        self._newest_after = self._newest_from = ""
        """All minted names up to the first one rest. The second: where the next page of the newest begins."""
        self._newest_window = 0
        """Which of `NEWEST_WINDOWS_S` the next page of the newest shows; beyond them, all that may not rest."""
        self._newest_seen = self._newest_free = False
        """Whether this look for work has seen all of the newest, and whether the last page of them had a free task."""
        self._newest_in_turn = 0
        """How many pages in turn were of the newest."""
        self.page_size, self.leases_in_turn, self.leases_a_page = PAGE, LEASES_IN_TURN, LEASES_A_PAGE

    def next(self) -> Candidate | None:
        """The next candidate of the page in hand; None when it is used up or too old."""
        with self._mutex:
            page = self._page
            if page is None or self._runtime.elapsed_s() - page.at_s > AGE_MAX_S or self.stale:
                return None
            if not page.candidates:
                return None
            width = min(self._width, len(page.candidates))
            at = len(page.candidates) - 1 - (self._runtime.rng.randrange(width) if width > 1 else 0)
            candidate = page.candidates.pop(at)
            self._tried[candidate.entry] = (self.pages, float("inf"))
            return candidate

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
        it may show as free, what this process has ended and not deleted yet, and what rests.
        Cost: 1 LIST, at a large backlog 1 more once a minute; the first ones 1 or 2 more.
        """
        with self._listing:
            if seen not in (None, self.pages):
                return None
            page = self._listed() if self.whole else self._newest() if self._wants_newest() else self._sampled()
            self._newest_in_turn = self._newest_in_turn + 1 if page.newest else 0
            return self._show(page)

    def walk(self) -> Iterator[CandidatePage]:
        """All of the backlog, page by page. Each becomes the page in hand.   Cost: 1 LIST per 1,000 objects."""
        listing = self._store.list(self._keys.pending)
        lease: list[Stat] = []
        while found := [*islice(listing, self.page_size)]:
            with self._listing:
                page = CandidatePage(self._runtime.elapsed_s(), self._candidates([*lease, *found]))
                self._show(page, young=self.page_size)
            yield page
            _, kind = parts_of_entry(found[-1].key, self._keys.pending) or ("", "")
            lease = found[-1:] if kind == LEASE else []  # its task is on the next page

    def _show(self, page: CandidatePage, *, young: int = YOUNG_READS_MAX) -> CandidatePage:
        """Make a page the page in hand, without what cannot be claimed. `young`: how many young leases may be read."""
        ended = self._storage.closer.entries() if self._storage.closer is not None else ()
        for candidate in page.candidates:
            if candidate.lease is not None:
                self._watch.unchanged_s(candidate.lease.key, candidate.lease.version)
        with self._mutex:
            self._tried = {entry: tried for entry, tried in self._tried.items() if tried[1] > page.at_s}
            others = {*self._tried, *ended}
            shown = len(page.candidates)
            page.candidates = [each for each in page.candidates if each.entry not in others]
            page.ours = shown - len(page.candidates)
            if self._page is None or page.at_s - self._page.at_s > AGE_MAX_S:
                self._unread = []
            self._arrange(page, others, young)
            if not page.newest:
                free = sum(1 for each in page.candidates if each.lease is None)
                self.crowded = not self.whole and 2 * free < shown - page.ours
            self._page = page
            self.pages += 1
            self.stale = False
        return page

    def _wants_newest(self) -> bool:
        """Whether the next page is of the newest: if most of the backlog rests, every second one is, and more of them
        while they have something to claim.
        """
        if not self.crowded or self._newest_seen or self._page is None:
            return False
        if not self._page.newest:
            return True
        if self._newest_free:
            return self._newest_in_turn < NEWEST_IN_TURN
        return bool(self._newest_from) or self._newest_window > 0

    def begin_look(self) -> None:
        """A thread begins to look for work."""
        self._newest_seen = False
        if not self._newest_from:
            self._newest_window = 0

    def turns_max(self) -> int:
        """How many pages a look for work may list: if most of the backlog rests, all those of the newest."""
        return TURNS_CROWDED_MAX if self.crowded and not self._newest_seen else TURNS_MAX

    def _arrange(self, page: CandidatePage, others: Collection[str], young: int) -> None:
        """Leave out of a page what rests, and put aside those whose leases are not known, if they are many.

        What rests and is due is added, whether the page shows it or not.
        """
        bell = self._storage.bell
        ring = bell is None or bell.listening
        at_s, now = self._runtime.elapsed_s(), self._store.now()
        ready: list[Candidate] = []
        unread: list[Candidate] = []
        early: list[tuple[float, Candidate]] = []
        for candidate in reversed(page.candidates):
            rest, before = self._resting.get(candidate.entry, (None, candidate))
            if candidate.lease is None:
                candidate = before  # a page may begin between a lease and its task
            lease = candidate.lease
            if lease is None:
                ready.append(candidate)
                continue
            if rest is not None:
                left_out = partial(is_left_out, rest, version=lease.version, at_s=at_s, now=now)
                if left_out(ring=False):
                    self._resting[candidate.entry] = (rest, candidate)
                    if not left_out(ring=ring):
                        early.append((rest.ring_s, candidate))
                    continue
                del self._resting[candidate.entry]
            known = self._leases.get(lease.version)
            if known is not None and not known.value.suspended:
                ready.append(candidate)
            elif known is not None:
                unread.append(candidate)  # what its tasks wait for is looked at
            elif lease.modified + timedelta(seconds=self._ttl_s) <= now:
                unread.append(candidate)
            else:  # most young leases are held by live workers: a few a page are read
                young -= 1
                if young >= 0:
                    unread.append(candidate)
        self.complete = self.whole and young >= 0
        for _, candidate in heapq.nsmallest(EARLY_LOOKS_MAX, early, key=itemgetter(0)):
            del self._resting[candidate.entry]
            unread.append(candidate)
        if self.whole:
            self._resting = {each.entry: rests for each in page.candidates if (rests := self._resting.get(each.entry))}
        else:
            shown = {each.entry for each in page.candidates}.union(others)
            unread += (each for each in self._due(at_s) if each.entry not in shown)
        if len(unread) <= self.leases_in_turn:
            ready += unread
            unread = []
        ready.sort(key=_by_age, reverse=True)
        page.candidates = ready
        again = {each.entry for each in unread}
        self._unread = [*unread, *(each for each in self._unread if each.entry not in again)][: 2 * self.page_size]

    def _due(self, at_s: float) -> Iterator[Candidate]:
        """Some entries that have rested long enough, of any page. A lease that was seen long ago is read again, since
        the entry may have ended.
        """
        for _ in range(self.leases_a_page):
            if self._first_due_s() > at_s:
                return
            _, candidate = self._resting.pop(heapq.heappop(self._wakes)[1])
            assert candidate.lease is not None
            if at_s - candidate.seen_s > SEEN_MAX_S:
                self._leases.pop(candidate.lease.version, None)
            yield candidate

    def due_s(self) -> float:
        """When the first of the entries that rest is due, as far as is known."""
        with self._mutex:
            return self._first_due_s()

    def _first_due_s(self) -> float:
        while self._wakes:
            due_s, entry = self._wakes[0]
            known = self._resting.get(entry)
            if known is not None and known[0].due_s == due_s:
                return due_s
            heapq.heappop(self._wakes)
        return float("inf")

    def rests(self, candidate: Candidate, due_s: float, *, at: datetime | None = None, ring_s: float = inf) -> None:
        """The entry rests: it is left out of the pages while its lease is the same.

        `due_s`: until then, by this process's clock; `at`: the same by the store's. `ring_s`: after a ring, until then.
        """
        assert candidate.lease is not None
        with self._mutex:
            if len(self._resting) >= RESTING_MAX:
                del self._resting[next(iter(self._resting))]
            self._resting[candidate.entry] = (Resting(candidate.lease.version, due_s, at, ring_s), candidate)
            heapq.heappush(self._wakes, (due_s, candidate.entry))
            if len(self._wakes) > 2 * RESTING_MAX:
                self._wakes = [(rest.due_s, entry) for entry, (rest, _) in self._resting.items()]
                heapq.heapify(self._wakes)

    def unread(self) -> list[Candidate]:
        """Some candidates whose leases are not known. See `learned`."""
        with self._mutex:
            left = [each for each in self._unread if each.entry not in self._resting]
            some, self._unread = left[: self.leases_a_page], left[self.leases_a_page :]
        for each in some:
            assert each.lease is not None
            self._watch.unchanged_s(each.lease.key, each.lease.version)
        return some

    def learned(self, candidates: Sequence[Candidate]) -> None:
        """Put candidates back whose leases are known now, and can be taken."""
        with self._mutex:
            if self._page is not None and candidates:
                self._page.candidates = sorted([*self._page.candidates, *candidates], key=_by_age, reverse=True)

    def knows(self, candidate: Candidate) -> bool:
        """Whether the lease of a candidate was read."""
        assert candidate.lease is not None
        with self._mutex:
            return candidate.lease.version in self._leases

    def know(self, candidate: Candidate, seen: Versioned[EntryLease]) -> None:
        """Note the lease of an entry."""
        assert candidate.lease is not None
        with self._mutex:
            self._leases[candidate.lease.version] = seen
            if len(self._leases) > LEASES_MAX:
                del self._leases[next(iter(self._leases))]

    def add(self, entries: Iterable[str]) -> None:
        """Add entries that this process has just made pending to the page in hand, as far as there is room."""
        now = self._store.now()
        with self._mutex:
            if self._page is not None:
                room = max(0, self.page_size - len(self._page.candidates))
                new = [Candidate(entry, is_batch(entry), now, None) for entry in islice(entries, room)]
                self._page.candidates[:0] = reversed(new)

    def lease(self, cell: Cell[EntryLease], candidate: Candidate) -> Versioned[EntryLease] | None:
        """The lease of a candidate; None if it is gone.   Cost: 1 GET, once for each version that listings show."""
        assert candidate.lease is not None
        with self._mutex:
            seen = self._leases.get(candidate.lease.version)
        if seen is None:
            seen = cell.read()
            if seen is not None:
                self.know(candidate, seen)
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

    def _listed(self) -> CandidatePage:
        """The whole of a short backlog, and what is scheduled behind it, in one listing."""
        at_s = self._runtime.elapsed_s()
        listing = self._store.list(self._keys.root, after=self._keys.pending)
        found = [*islice(listing, self.page_size)]
        pending = f"{self._keys.pending}/"
        waiting = [stat for stat in found if stat.key.startswith(pending)]
        self.whole = len(waiting) < self.page_size
        scheduled = f"{self._keys.scheduled}/"
        later = [stat.key for stat in found if stat.key.startswith(scheduled)] if self.whole else None
        self._scheduled_at_s = at_s
        return CandidatePage(at_s, self._candidates(waiting), later)

    def _sampled(self) -> CandidatePage:
        """Part of a long backlog."""
        at_s = self._runtime.elapsed_s()
        found = self._store.sample(self._keys.pending, self.page_size)
        self.whole = len(found) < self.page_size
        later = None
        if at_s - self._scheduled_at_s > SCHEDULED_EVERY_S:
            self._scheduled_at_s = at_s
            later = [stat.key for stat in islice(self._store.list(self._keys.scheduled), PAGE)]
        return CandidatePage(at_s, self._candidates(found), later)

    def _newest(self) -> CandidatePage:
        """What was pushed last under names that Limpet made, which have a time: a page of them, and then the next one.

        Entries that rest are passed over for good, from the oldest on.
        """
        at_s, now = self._runtime.elapsed_s(), self._store.now()
        folder = f"{self._keys.pending}/"
        now_ms = int(now.timestamp() * 1000)
        back_s = NEWEST_MAX_S if self._newest_after else NEWEST_S
        first = self._newest_after = max(self._newest_after, folder + ulid(max(0, now_ms - int(back_s * 1000)), 0))
        begin = max(first, self._newest_from)
        window = self._newest_window
        if window < len(NEWEST_WINDOWS_S):
            begin = max(first, folder + ulid(max(0, now_ms - int(NEWEST_WINDOWS_S[window] * 1000)), 0))
        found = [*islice(self._store.list(self._keys.pending, after=begin), self.page_size)]
        page = CandidatePage(at_s, self._candidates(found), newest=True)
        self._newest_free = any(each.lease is None for each in page.candidates)
        if window < len(NEWEST_WINDOWS_S):
            self._newest_window = 0 if self._newest_free else window + 1
            return page
        last = found[-1].key if len(found) == self.page_size else ""
        self._newest_from = begin if self._newest_free else last
        self._newest_seen = not self._newest_from
        if begin == first:
            for stat in found:
                entry = stat.key.removeprefix(folder).partition("/")[0]
                made_ms = ulid_ms(entry.partition("-")[0])
                with self._mutex:
                    rests = entry in self._resting
                if not rests or made_ms is None or made_ms > now_ms - int(SKEW_S * 1000):
                    break
                self._newest_after = stat.key
        return page

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
            elif stat.key.endswith(f"/{TASK}"):
                self._storage.note_foreign()  # in a folder of folders
        at_s = self._runtime.elapsed_s()
        entries = [
            Candidate(entry, kind == BATCH, stat.modified, leases.get(entry), at_s) for entry, kind, stat in tasks
        ]
        foreign = self._storage.journal.foreign(found)
        if foreign:
            entries = [candidate for candidate in entries if candidate.entry not in foreign]
        entries.sort(key=_by_age, reverse=True)
        return entries


def _by_age(candidate: Candidate) -> tuple[datetime, str]:
    return candidate.pushed, candidate.entry


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
        epoch: int | Callable[[], int] = 0,
    ) -> None:
        self.name = name
        self.policy = policy or Policy()
        self.provider = provider
        self.supports: frozenset[Feature] = FEATURES
        self.storage = Storage(store, QueueKeys.of(name), runtime, journal, epoch)
        self._store = store
        self._runtime = runtime
        self._payload_type = payload_type
        self._decoder: msgspec.json.Decoder[Any] = records.decoder(payload_type or Any)
        self._watch = self.storage.watch = watch or self.storage.watch
        self._poll = PollBackoff()
        self._next_page = PollBackoff()
        self._token: str | None = None
        self._is_paused = False
        self._ask_control_at_s = float("-inf")
        self._due_s = float("inf")
        """When something that this process has seen is due, where no bell tells."""
        self._gone: set[str] = set()
        """Awaited entries that were seen to be gone, each with the version of the lease that named it."""
        self._pusher = Pusher(self.storage)
        self.discovery = Discovery(self.storage, self._watch, ttl_s=self.policy.ttl_s)
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
            push = partial(self._push_step, data, id, delay_s)
            step = steps.push(self.name, self._store, push, arguments_digest([payload, id], {}))
            return Pushed(self._handle(step.id or ""), step.created)
        pushed = self._push(data, id=id, delay_s=delay_s)
        return Pushed(self._handle(pushed.id), pushed.created)

    def _push(self, data: bytes, *, delay_s: float, **about: Any) -> Pushed:
        if OTEL not in sys.modules:
            pushed = self._pusher.push(data, delay_s=delay_s, **about)
        else:
            with span("push", self.name, "producer") as traced:
                pushed = self._pusher.push(data, delay_s=delay_s, trace=traced.traceparent(), **about)
                traced.set(message_id=pushed.id, created=pushed.created)
        if self.discovery.crowded and pushed.created and not delay_s:
            self.discovery.add([pushed.id])  # so that it need not be looked for among thousands
        return pushed

    def _push_step(
        self, data: bytes, id_: str | None, delay_s: float, name: str, fresh: bool, caller: str
    ) -> PushedStep:
        """The push of a durable task: under the derived name, unless it has an id."""
        pushed = self._push(data, id=id_, delay_s=delay_s, name=name, fresh=fresh, caller=caller)
        return PushedStep(id=pushed.id, created=pushed.created)

    def push_many(self, payloads: Iterable[Any], *, batch: int = 100, id: str | None = None) -> list[TaskHandle]:
        """Cost: 1 PUT a batch; with an id 2 HEADs more for each, and 1 PUT.   Crash: whole batches are there or not."""
        steps = RUNNING.get()
        if steps is not None:
            payloads = [*payloads]  # in a task the iterable may ask for steps itself
        encoded: Iterable[bytes] = (encoded_payload(payload, self._payload_type) for payload in payloads)
        try:
            if steps is not None and steps.numbers_push(has_id=id is not None):
                encoded = [*encoded]
                push = partial(self._push_steps, encoded, batch, id)
                entries = steps.push(self.name, self._store, push, arguments_digest([*payloads, id, batch], {})).entries
            else:
                entries = self._push_many(encoded, batch=batch, id=id)
        except OutcomeUnknown as error:
            error.pushed = [*map(self._handle, error.pushed)]
            raise
        return [self._handle(f"{entry}.{n}") for entry in entries for n in range(count_of(entry))]

    def _push_many(self, encoded: Iterable[bytes], **about: Any) -> list[str]:
        if OTEL not in sys.modules:
            entries = self._pusher.push_many(encoded, **about)
        else:
            with span("push", self.name, "producer") as traced:
                entries = self._pusher.push_many(encoded, trace=traced.traceparent(), **about)
                traced.set(tasks=sum(map(count_of, entries)))
        if self.discovery.crowded and not about.get("id"):
            self.discovery.add(entries)
        return entries

    def _push_steps(
        self, encoded: Iterable[bytes], batch: int, id_: str | None, name: str, fresh: bool, caller: str
    ) -> PushedStep:
        """As `_push_step`, for many tasks."""
        about: dict[str, Any] = {"name": name, "fresh": fresh} if id_ is None else {"id": id_}
        entries = self._push_many(encoded, batch=batch, caller=caller, **about)
        return PushedStep(entries=entries)

    def push_async(self, payload: Any, *, id: str | None = None, delay_s: float = 0.0) -> Coroutine[Any, Any, Pushed]:
        return in_order(self.push, payload, id=id, delay_s=delay_s)

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
            if wait_s <= 0 or self._runtime.elapsed_s() >= self._poll.due_s or self.change_token() != self._token:
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

    def claim_last(self) -> EntryClaim | EmptyClaim:
        """Cost: that of a claim; if it found nothing, and did not see all that waits, 1 LIST per 1,000 objects of the
        backlog and 1 GET for each lease that this process does not know.
        """
        pages = self.discovery.pages
        claim = self._try_claim()
        if claim is None and (self.discovery.pages == pages or not self.discovery.complete):
            for _ in self.discovery.walk():
                claim = self._from_page()
                while claim is None and self._learn():
                    claim = self._from_page()
                if claim is not None:
                    break
        return claim or EmptyClaim()

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
        """Cost: 1 LIST per 1,000 objects of the queue, 1 GET, 1 GET for each lease, and once 1 GET for each receipt in
        failed/: only receipts tell failed tasks from cancelled ones."""
        self._drop_ended()
        return self.inspect.stats()

    def standstill(self) -> list[str] | None:
        """Cost: 1 LIST per 1,000 objects of the backlog; while all tasks are suspended 1 GET for each lease, and for
        each signal or task that they wait for.
        """
        self._drop_ended()
        return StandstillCheck(self._store, self._runtime).reasons(self.storage.keys)

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
        """Cost: each 1 GET + a push + 1 PUT; for all, 1 LIST per 1,000 more. For a durable task 4 LISTs, and 1 GET,
        1 PUT and 1 DELETE for each recorded step and each signal more; for one whose workers died 2 LISTs.

        Crash: the new life is there before the receipt says so, so a second call finds it (H1).
        """
        return self._admin.retry(id, all=all, where=where, since_s=since_s, from_scratch=from_scratch)

    def cancel(self, id: str) -> bool:
        """Cost: 1 PUT (1 GET + 1 PUT if it is claimed), 1 GET, 1 PUT, 2 DELETEs."""
        return self._admin.cancel(id)

    def signal(self, id: str, name: str, value: Any = None) -> bool:
        """Cost: 2 HEADs, 1 PUT, 1 GET; 1 PUT more, and that of a ring, if the task waits for it.

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

    def adopt(self, source: FileSource, *, quiesced: bool = False, in_place: bool = False) -> QueueAdoptReport:
        """Take over the tasks of another program's queue. `in_place`: its files lie in the folder of this one.

        See `queue.adopt.Adopter.take_over`.
        """
        encode = partial(encoded_payload, payload_type=self._payload_type)
        adopter = Adopter(self.storage, self._pusher.place, encode, source, in_place=in_place)
        return adopter.take_over(quiesced=quiesced)

    def check_own(self) -> None:
        """Check, before a worker starts, that these are not the files of another program.

        A sweep would take those that have ended there for receipts, and delete them by their age.
        Raises: Unsupported, if one is the first of its folder, and nothing was swept before.
        Cost: 1 HEAD; before the first sweep 3 LISTs and up to 3 GETs more.
        """
        keys = self.storage.keys
        try:
            if self.storage.exists(keys.sweep):
                return
            firsts = [next(self._store.list(folder), None) for folder in (keys.pending, keys.completed, keys.failed)]
            blobs = self._store.get_many([first.key for first in firsts if first is not None])
        except LimpetError:
            return  # a claim will fail too, and report it
        for key, blob in blobs.items():
            if not isinstance(blob, LimpetError) and records.is_foreign(blob.data):
                raise Unsupported(
                    f"{key} is a file of another program, in the folder of queue {self.name!r}",
                    hint=f"stop that program, then `limpet queue adopt {self.name} --quiesced` takes its tasks over",
                )

    def _worth_a_list(self) -> bool:
        """Whether to list the queue. In a bucket, the bell tells an idle worker when.   Cost: 1 HEAD, or nothing."""
        return self.storage.bell is None or self.storage.bell.worth_a_list()

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
        """Claim the first candidate that can be claimed, from the page in hand or a new one.

        A look that failed has not answered a ring: the next ones list, until one has succeeded.
        """
        try:
            return self._look()
        except LimpetError:
            self._note_find()
            raise

    def _look(self) -> EntryClaim | None:
        if self._due_s <= self._runtime.elapsed_s():
            self._due_s = float("inf")
        if self._runtime.elapsed_s() >= self._sweeper.due_s:
            self._sweeper.sweep_when_due()
        pages = self.discovery.pages
        listed = False
        claim = self._from_page()
        self.discovery.begin_look()
        for turn in range(TURNS_CROWDED_MAX):
            if claim is not None or turn >= self.discovery.turns_max() or not self._worth_a_list():
                break
            with self._listing():
                page = self.discovery.list_page(pages)
            listed = listed or page is not None
            if page is not None and page.scheduled:
                now = self.storage.exact_now()
                self.discovery.add(self._pusher.promote(now=now, keys=page.scheduled))
                self._expect_scheduled(page.scheduled, now)
            pages = self.discovery.pages
            if page is not None and not page.newest:
                self._learn()
            if page is not None and not self.discovery.any():
                if not self.discovery.whole and (page.ours or self.discovery.crowded):
                    continue  # another page has what waits
                break
            claim = self._from_page()
            if claim is None and self.discovery.crowded:
                continue
            if not self.discovery.stale:
                break
            self._note_find()
        while claim is None and self._learn():
            claim = self._from_page()
        self._expect_s(self.discovery.due_s())
        if claim is not None:
            self._next_page.found()
            self._note_find()
        elif listed and not self.discovery.whole and self.storage.bell is not None:
            # No push announces what waits on another page of a long backlog. Only the thread that listed the page makes
            # the pause longer: all threads share it.
            self._next_page.empty(self._runtime.elapsed_s(), 1.0)
            self.storage.bell.expect(self._next_page.due_s)
        return claim

    def _listing(self) -> AbstractContextManager[None]:
        return nullcontext() if self.storage.bell is None else self.storage.bell.listing()

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
            if self.discovery.any():
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
        while (candidate := self.discovery.next()) is not None:
            try:
                claim = self._isolated(candidate)
            finally:
                self.discovery.tried(candidate)
            if claim is not None:
                self.discovery.won()
                return claim
        return None

    def _learn(self) -> bool:
        """Read some leases that are not known, and look for what their tasks wait for; those that can be taken become
        candidates. Returns whether there were any to read.

        Cost: 1 GET each, 64 at most, in bulk; and that of `_can_go_on` for each suspended entry that is due, at once.
        """
        some = self.discovery.unread()
        if not some:
            return False
        unread = {
            self.storage.keys.lease(each.entry): n for n, each in enumerate(some) if not self.discovery.knows(each)
        }
        at_s = self._runtime.elapsed_s()
        for key, blob in self._store.get_many(unread).items() if unread else ():
            with suppress(Corrupt, Unsupported):  # the claim of it says so
                if not isinstance(blob, LimpetError):
                    each = some[unread[key]] = msgspec.structs.replace(some[unread[key]], seen_s=at_s)
                    self.discovery.know(each, self.storage.lease(each.entry).decode(blob))
        at_once = self._store.at_once if self._store.far else 1
        known = [each for each in some if self.discovery.knows(each)]
        takes = self._runtime.fan_out(self._is_takeable, known, at_once=at_once)
        dropped = {each.entry for each, take in zip(known, takes, strict=True) if not take}
        self.discovery.learned([each for each in some if each.entry not in dropped])
        return True

    def _is_takeable(self, candidate: Candidate) -> bool:
        """Whether a claim of the candidate is worth an attempt."""
        try:
            return self._takeable(self.storage.lease(candidate.entry), candidate) is not None
        except LimpetError:
            return True  # the claim of it meets the same error, and handles it

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
                self._note_find()
                return None  # if the claim took effect after all, it expires
            why = str(error.__cause__)  # what has the lease's name cannot be listed: a pipe, on a directory
        except Unsupported:
            return None
        try:
            reject_entry(self.storage, candidate.entry, why, batch=candidate.batch)
        except ForeignTask:
            self.storage.note_foreign()
            if candidate.lease is not None:
                self.discovery.rests(candidate, self._runtime.elapsed_s() + self.policy.ttl_s)
        except OutcomeUnknown:
            pass  # the next claim of it rejects it again
        except (Corrupt, Invalid, Unsupported) as error:
            self.storage.notices.warn(candidate.entry, f"{why}; it cannot be put aside: {error}")
        return None

    def _claim(self, candidate: Candidate) -> EntryClaim | None:
        cell = self.storage.lease(candidate.entry)
        seen: Versioned[EntryLease] | None = None
        if candidate.lease is not None:
            seen = self._takeable(cell, candidate)
            if seen is None:
                return None
        return None if self._paused() else self._take(cell, seen, candidate)

    def _takeable(self, cell: Cell[EntryLease], candidate: Candidate) -> Versioned[EntryLease] | None:
        """The lease, if it may be taken now.   Cost: 1 GET, once for each version."""
        listed = candidate.lease
        assert listed is not None
        seen = self.discovery.lease(cell, candidate)
        if seen is None:
            return None
        modified = seen.modified
        assert modified is not None
        if seen.version != listed.version and modified != listed.modified:
            return None
        record, unchanged_s = seen.value, self._watch.unchanged_s(listed.key, listed.version)

        def classify(now: datetime) -> Ready:
            return claimable(record, modified=modified, unchanged_s=unchanged_s, now=now, wall=self._runtime.wall())

        now = self._now_for(candidate, modified)
        ready = classify(now)
        if not ready.take and record.state is State.FREE:
            # The lower bound of the clock may lie far behind, and the wait be long over.
            now = self._now_for(candidate, modified, exact=True)
            ready = classify(now)
        if not ready.take and ready.at is not None:
            self._expect(ready.at, now)
            if record.state is State.FREE:
                due_s = self._runtime.elapsed_s() + (ready.at - now).total_seconds()
                self.discovery.rests(candidate, due_s, at=ready.at)
        if ready.finish:
            finish_cancelled(self.storage, candidate.entry, batch=candidate.batch)
        if ready.take and record.suspended and not self._can_go_on(seen, candidate, modified):
            return None
        return seen if ready.take else None

    def _now_for(self, candidate: Candidate, modified: datetime, *, exact: bool = False) -> datetime:
        """The store's clock, as far as it says how old the candidate's lease is, which was `modified` then."""
        lease, watch = candidate.lease, self._watch
        assert lease is not None
        now = self.storage.exact_now() if exact else self._store.now()
        unchanged_s, ours = watch.unchanged_s(lease.key, lease.version), watch.ours(lease.key, lease.version)
        return now_for(now, modified=modified, unchanged_s=unchanged_s, ours=ours)

    def _can_go_on(self, seen: Versioned[EntryLease], candidate: Candidate, modified: datetime) -> bool:
        """Whether a task of a suspended entry may have what it waits for. If not, it is looked at again later.

        Cost: mostly 1 HEAD.
        """
        timed = any(each.due_s is not None for each in seen.value.suspended.values())
        now = self._now_for(candidate, modified, exact=timed)
        now = max(now, modified + timedelta(seconds=seen.value.wait_s))  # so much is known
        at_s = self._runtime.elapsed_s()
        wanted = looks(seen.value, count_of(candidate.entry), modified=modified, now=now)
        if not wanted:
            return True
        if self._is_there(candidate.entry, wanted, seen.version):
            return True
        pace_s = look_again_s((now - modified).total_seconds())
        self.discovery.rests(candidate, at_s + pace_s, ring_s=at_s + LOOK_AGAIN_S)
        self._expect_s(at_s + pace_s)
        return False

    def _is_there(self, entry: str, wanted: Sequence[WaitingStep], version: Version) -> bool:
        """Whether one of the tasks of an entry has what it waits for.

        Cost: 1 GET for a signal, for several 1 LIST and 1 GET for each that has come; mostly 1 HEAD for each task that
        waits for others, 32 at once in a bucket.
        """
        signals = {
            self.storage.keys.signal(entry, look.n, look.signal): look for look in wanted if look.signal is not None
        }
        if len(signals) > 1:
            come = {stat.key for stat in self._store.list(self.storage.keys.signals_of(entry))}
            signals = {key: look for key, look in signals.items() if key in come}
        if any(self._has_come(entry, look) for look in signals.values()):
            return True
        others = [look for look in wanted if look.signal is None]
        at_once = self._store.at_once if self._store.far else 1
        for group in batched(others, lambda look: 1, size=at_once):
            answers = self._runtime.fan_out(partial(self._have_ended_or_why, version=version), group, at_once=at_once)
            for answer in answers:
                if isinstance(answer, LimpetError):
                    raise answer
            if any(answers):
                return True
        return False

    def _have_ended_or_why(self, look: WaitingStep, *, version: Version) -> bool | LimpetError:
        try:
            return self._have_ended(look, version=version)
        except LimpetError as error:
            return error

    def _has_come(self, entry: str, look: WaitingStep) -> bool:
        """Whether the signal that a task waits for is there.   Cost: 1 GET."""
        assert look.signal is not None
        try:
            seen = self.storage.signal(entry, look.n, look.signal).read()
        except (Corrupt, Unsupported):
            return True  # the run of the task says so
        return seen is not None and (look.life is None or is_of(seen.value.life, look.life))

    def _have_ended(self, look: WaitingStep, *, version: Version) -> bool:
        """Whether all entries have ended that the lease names for a task.

        What is gone is not looked for again on behalf of the same `version` of the lease. A later one may name an entry
        again that was only delayed.   Cost: mostly 1 HEAD.
        """
        for key in look.awaits:
            gone = f"{version} {key}"
            if gone in self._gone:
                continue
            try:
                if self.storage.exists(Key(key)):
                    return False
            except (OutcomeUnknown, Unavailable):
                return False  # the next look asks again; other looks go on beside this one
            if len(self._gone) >= LEASES_MAX:
                self._gone.clear()
            self._gone.add(gone)
        return True

    def _take(
        self, cell: Cell[EntryLease], seen: Versioned[EntryLease] | None, candidate: Candidate
    ) -> EntryClaim | None:
        waits: dict[int, float] = {}
        since_s = 0.0
        if seen is not None and seen.modified is not None:
            now = self._now_for(candidate, seen.modified)
            if waits_left(seen.value, modified=seen.modified, now=now):
                now = self._now_for(candidate, seen.modified, exact=True)
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
                self.discovery.lost(candidate)
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
            self.discovery.lost(candidate)
            self.storage.drop_lease(entry)
            return None
        except Unsupported as error:
            # A newer Limpet wrote the task, or another program: it rests for `ttl_s`, so that not every poll takes it.
            if isinstance(error, ForeignTask):
                self.storage.note_foreign()
            rests = partial(msgspec.structs.replace, state=State.FREE, wait_s=self.policy.ttl_s)
            holding.free(rests)
            return None
        doubtful = holding.token > 1 or not content.minted or self.storage.journal.travels
        if doubtful and self.storage.ended(entry):
            self.storage.close(entry, batch=batch)  # H5: it ended; only its end was not finished
            return None
        claim = EntryClaim(self.storage, self.policy, self._decoder, self._renewer, holding, content, batch=batch)
        return claim if holding.token == 1 or claim.give_up_exhausted() else None


def pending_in(queue: Queue) -> int:
    """How many tasks of a queue have not ended: the `pending` of its `stats`.

    Cost: 1 LIST per 1,000 objects that wait; on SQS that of `stats`.
    """
    if not isinstance(queue, BucketQueue):
        return queue.stats().pending
    queue._drop_ended()
    return queue.inspect.pending()
