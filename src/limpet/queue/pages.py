"""Discovery: list once, claim many.

A listing is a hint (F22); the truth is the swap that claims. Listing costs a request for 1,000 objects however long the
backlog is, so a page is kept and used up: oldest first, and the more claims are lost to others, the wider the choice
among the oldest, so that many workers do not race for the same entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from limpet.cell import Versioned
from limpet.keys import Key
from limpet.lease import VersionWatch
from limpet.queue.names import BATCH, LEASE, TASK, parts_of_entry
from limpet.queue.records import EntryLease
from limpet.queue.storage import Storage
from limpet.store.api import Stat, Version

PAGE = 1000
AGE_MAX_S = 30.0
YOUNG_READS_MAX = 8
WIDTH_MAX = 256
SCHEDULED_EVERY_S = 60.0
LEASES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry that a listing showed, with its lease if it had one."""

    entry: str
    batch: bool
    pushed: datetime
    lease: Stat | None


@dataclass(slots=True)
class Page:
    """Part of what waits. `scheduled` are delayed pushes in the order of their time; None if not looked at."""

    at_s: float
    candidates: list[Candidate] = field(default_factory=list)
    scheduled: list[Key] | None = None
    young_reads: int = YOUNG_READS_MAX


class Pages:
    """Hands out candidates of one queue to the threads of this process."""

    def __init__(self, storage: Storage, sightings: VersionWatch, *, ttl_s: float) -> None:
        self._storage = storage
        self._store = storage.store
        self._keys = storage.keys
        self._runtime = storage.runtime
        self._sightings = sightings
        self._ttl_s = ttl_s
        self._mutex = self._runtime.mutex()
        self._page: Page | None = None
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

    def turn(self) -> Page:
        """List a new page.   Cost: 1 LIST, at a large backlog 1 more once a minute; the first ones 1 or 2 more."""
        page = self._listed() if self._whole else self._sampled()
        for candidate in page.candidates:
            if candidate.lease is not None:
                self._sightings.unchanged_s(candidate.lease.key, candidate.lease.version)
        with self._mutex:
            self._page = page
            self.stale = False
        return page

    def add(self, entries: Iterable[str]) -> None:
        """Entries that were just made pending, by us."""
        now = self._store.now()
        with self._mutex:
            if self._page is not None:
                self._page.candidates[:0] = [Candidate(entry, False, now, None) for entry in entries]

    def remember(self, version: Version, seen: Versioned[EntryLease]) -> None:
        """Keep a lease that was read, by the version that a listing showed: each version of it is read once."""
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
        """A claim was won: now and then, choose among fewer again."""
        with self._mutex:
            if self._width > 1 and self._runtime.rng.random() < 1 / 8:
                self._width //= 2

    def _worth_a_read(self, page: Page, candidate: Candidate) -> bool:
        """Young leases are mostly held by the living: only a few a page are looked at."""
        lease = candidate.lease
        if lease is None or lease.version in self._leases:
            return True
        if lease.modified + timedelta(seconds=self._ttl_s) <= self._store.now():
            return True
        page.young_reads -= 1
        return page.young_reads >= 0

    def _listed(self) -> Page:
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
        return Page(at_s, self._candidates(waiting), later)

    def _sampled(self) -> Page:
        """Part of a long backlog."""
        at_s = self._runtime.elapsed_s()
        found = self._store.sample(self._keys.pending, PAGE)
        self._whole = len(found) < PAGE
        later = None
        if at_s - self._scheduled_at_s > SCHEDULED_EVERY_S:
            self._scheduled_at_s = at_s
            later = [stat.key for stat in islice(self._store.list(self._keys.scheduled), PAGE)]
        return Page(at_s, self._candidates(found), later)

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
