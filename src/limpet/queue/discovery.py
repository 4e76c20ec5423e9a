"""`Discovery`: which entries of a queue this process may claim, and when it looks at the others again.

A listing is a hint (F22); the truth is the swap that claims. Listing costs a request for 1,000 objects however long the
backlog is, so a page is kept and used up: oldest first, and the more claims are lost to others, the wider the choice
among the oldest, so that many workers do not race for the same entry.

An entry without a lease is ready. One with a lease has a row in the `LeaseTable`: the lease, if it was read, and when
to look at it again. A page changes nothing about a row whose lease has the same version, so that thousands of entries
that rest cost their share of the listings, and no more. What suspended tasks wait for is looked for by one process of
the queue (docs/inside/decisions/0014-suspended.md); the others only look at what they have suspended lately.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from math import inf

from limpet.kernel.cell import Versioned
from limpet.kernel.errors import Corrupt, LimpetError, Missing, Unsupported
from limpet.kernel.keys import LEASE, count_of, is_batch, parts_of_entry
from limpet.kernel.lease import State
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Stat, Version
from limpet.queue.awaited import TURN_S, AwaitCheck, AwaitedStep
from limpet.queue.closer import FRESH_S
from limpet.queue.decide import Ready, Resting, claimable, is_left_out, now_for
from limpet.queue.durable import WaitingStep, look_again_s, looks
from limpet.queue.entry import EntryLease
from limpet.queue.finish import finish_cancelled
from limpet.queue.pages import Candidate, CandidatePage, Pages, by_age
from limpet.queue.storage import Storage

AGE_MAX_S = 30.0
"""For how long a page may be used."""
WIDTH_MAX = 256
YOUNG_READS_MAX = 8
"""Of the young leases that are not known so many a page are read: most are held by live workers."""
LEASES_A_PAGE = 64
"""So many leases are read, in bulk, before the entries of a page are used."""
ROWS_MAX = 50_000
TURN_FOR = 12
"""If more entries wait, one process of the queue looks for what they wait for."""
OWN_S = 900.0
"""For how long a process looks itself at what it has suspended: until the holder of the turn has seen it."""
SHARE_MAX = 32
"""So many entries that can go on one process keeps for itself."""
SEEN_MAX_S = 600.0
"""A free lease that was seen so long ago is read again, since the entry may have ended."""
SEEN_ROW_S = 0.2
"""So much longer for each row: twice the time in which the pages of an idle process show it again."""
AGAIN_S = 1.0
"""When an entry is looked at again that could not be claimed."""
RUNG_MAX = 8
"""After a ring so many entries are looked at whose tasks wait for others: those that were looked at longest ago."""


@dataclass(slots=True)
class LeaseRow:
    """An entry with a lease. `rest`: with which version, and until when; infinite while the entry is handed out.

    `waits`: its tasks wait for others or for signals, so that a look asks for those.
    """

    candidate: Candidate
    rest: Resting
    seen_s: float
    """When a page showed the lease, or it was read."""
    record: Versioned[EntryLease] | None = None
    waits: bool = False


class LeaseTable:
    """The rows by entry, and when each is due. Its owner guards it."""

    def __init__(self) -> None:
        self.rows: dict[str, LeaseRow] = {}
        self._times: dict[bool, list[tuple[float, str]]] = {False: [], True: []}
        """A heap of the rows that rest, and one of those that wait. They also hold times that no longer count."""
        self._waiting: dict[str, None] = {}
        """The entries that wait, first the one that was looked at longest ago."""

    def put(self, row: LeaseRow) -> None:
        """Add or replace a row."""
        entry = row.candidate.entry
        self.forget(entry)
        if len(self.rows) >= ROWS_MAX:
            self.forget(next(iter(self.rows)))
        self.rows[entry] = row
        if row.waits:
            self._waiting[entry] = None
        self._note_time(row)

    def look_at(self, row: LeaseRow, due_s: float) -> None:
        """Change when a row is due."""
        row.rest = Resting(row.rest.version, due_s, ring_s=row.rest.ring_s)
        self._note_time(row)

    def forget(self, entry: str) -> None:
        """Remove a row, if there is one."""
        self.rows.pop(entry, None)
        self._waiting.pop(entry, None)

    def keep(self, entries: Collection[str]) -> None:
        """Forget the rows of all other entries."""
        for entry in self.rows.keys() - entries:
            self.forget(entry)

    def first_s(self, *, waits: bool) -> float:
        """When the first row is due that waits, or of those that do not."""
        times = self._times[waits]
        while times:
            due_s, entry = times[0]
            row = self.rows.get(entry)
            if row is not None and row.waits is waits and row.rest.due_s == due_s:
                return due_s
            heapq.heappop(times)
        return inf

    def take_due(self, at_s: float, count: int, *, waits: bool) -> Iterator[LeaseRow]:
        """Rows that are due, `count` at most. They are not due again until they are put, or a time is set."""
        for _ in range(count):
            if self.first_s(waits=waits) > at_s:
                return
            row = self.rows[heapq.heappop(self._times[waits])[1]]
            self.look_at(row, inf)
            yield row

    @property
    def waiting(self) -> int:
        """How many rows wait."""
        return len(self._waiting)

    @property
    def seen_max_s(self) -> float:
        """For how long a page needs not show an entry until its lease is read again."""
        return SEEN_MAX_S + SEEN_ROW_S * len(self.rows)

    def take_soon(self, at_s: float) -> Iterator[LeaseRow]:
        """As `take_due`: all rows that wait, and of whose pause more than half is over."""
        for entry in self._waiting:
            row = self.rows[entry]
            if at_s < row.rest.due_s < inf and row.rest.due_s - at_s <= at_s - row.rest.ring_s:
                self.look_at(row, inf)
                yield row

    def rung(self, at_s: float, count: int) -> list[LeaseRow]:
        """The rows that a ring makes due: of those that wait, the ones that were looked at longest ago."""
        oldest = (self.rows[entry] for entry in islice(self._waiting, count))
        return [row for row in oldest if row.rest.ring_s <= at_s < row.rest.due_s < inf]

    def _note_time(self, row: LeaseRow) -> None:
        if row.rest.due_s == inf:
            return
        times = self._times[row.waits]
        heapq.heappush(times, (row.rest.due_s, row.candidate.entry))
        if len(times) > 2 * ROWS_MAX:
            times[:] = [(each.rest.due_s, entry) for entry, each in self.rows.items() if each.waits is row.waits]
            heapq.heapify(times)


class ReadyEntries:
    """The entries that can be claimed. The more claims are lost, the wider the choice among the oldest of them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.entries: list[Candidate] = []
        """Oldest last, so that taking one is cheap."""
        self.at_s = -inf
        """When they were seen."""
        self.stale = False
        """Whether a claim of the last page was lost: others use it up too, and a new one costs less."""
        self._width = 1

    def set(self, entries: Sequence[Candidate], at_s: float) -> None:
        """Replace them by those of a new page, oldest first."""
        self.entries, self.at_s, self.stale = [*reversed(entries)], at_s, False

    def add(self, entries: Sequence[Candidate]) -> None:
        """Add entries, whatever their age."""
        if not self.entries:
            self.at_s = self._runtime.elapsed_s()
        self.entries = sorted([*self.entries, *entries], key=by_age, reverse=True)

    def take(self) -> Candidate | None:
        """One of the oldest."""
        if not self.entries:
            return None
        width = self._width if self._width == 1 else min(self._width, len(self.entries))
        return self.entries.pop(-1 - (self._runtime.rng.randrange(width) if width > 1 else 0))

    def widen(self) -> None:
        """A claim was lost to another worker."""
        self._width = min(WIDTH_MAX, self._width * 4)
        self.stale = True

    def narrow(self) -> None:
        """A claim was won: with a chance of one in eight, choose among half as many from now on."""
        if self._width > 1 and self._runtime.rng.random() < 1 / 8:
            self._width //= 2


class Discovery:
    """Hands out candidates of one queue to the threads of this process."""

    def __init__(self, storage: Storage, *, ttl_s: float) -> None:
        self._storage = storage
        self._ttl_s = ttl_s
        self._mutex = storage.runtime.mutex()
        self._listing = storage.runtime.mutex()
        self.pages = Pages(storage)
        self._table = LeaseTable()
        self._awaited = AwaitCheck(storage)
        self.ready = ReadyEntries(storage.runtime)
        self._handed: dict[str, float] = {}
        """Entries that were handed out, and when the attempt to claim them ended; infinite: it has not."""
        self.leases_a_page = LEASES_A_PAGE

    def next(self) -> Candidate | None:
        """The next entry that is ready; None if there is none, or the page is too old."""
        with self._mutex:
            if self._storage.runtime.elapsed_s() - self.ready.at_s > AGE_MAX_S:
                self._drop_ready()
            candidate = self.ready.take()
            if candidate is not None:
                self._handed[candidate.entry] = inf
            return candidate

    def tried(self, candidate: Candidate, *, won: bool = False) -> None:
        """The attempt to claim the candidate has ended."""
        at_s = self._storage.runtime.elapsed_s()
        with self._mutex:
            self._handed[candidate.entry] = at_s
            if won:
                self._table.forget(candidate.entry)
                self.ready.narrow()
                return
            row = self._table.rows.get(candidate.entry)
            if row is not None and row.rest.due_s == inf:
                self._table.look_at(row, at_s + AGAIN_S)

    def lost(self, candidate: Candidate) -> None:
        """A claim was lost to another worker: list again, and choose among more. One that an older page showed is not
        counted.
        """
        with self._mutex:
            row = self._table.rows.get(candidate.entry)
            if row is not None:
                row.record, row.waits = None, False
            if candidate.page == self.pages.listed and not self.ready.stale:
                self.ready.widen()
                self._drop_ready()

    def rests(self, candidate: Candidate, for_s: float) -> None:
        """Leave the entry alone for that time, while its lease is the same."""
        with self._mutex:
            row = self._table.rows.get(candidate.entry)
            if row is not None:
                self._table.look_at(row, self._storage.runtime.elapsed_s() + for_s)

    def add(self, entries: Iterable[str]) -> None:
        """Add entries that this process has just made pending to those that are ready, as far as there is room."""
        now = self._storage.store.now()
        with self._mutex:
            if self.pages.listed:
                room = max(0, self.pages.size - len(self.ready.entries))
                new = [Candidate(entry, is_batch(entry), now, None) for entry in islice(entries, room)]
                self.ready.entries[:0] = reversed(new)

    def due_s(self, *, waits: bool) -> float:
        """When the first entry that rests is due, or the first one that waits for others."""
        with self._mutex:
            return self._table.first_s(waits=waits)

    def list_page(self, listed: int | None = None) -> CandidatePage | None:
        """List a new page; None if another thread has listed one since there were so many.

        One thread lists at a time. The page leaves out what other threads were claiming when the listing began, which
        it may show as free, and what this process has ended and not deleted yet.
        Cost: that of `Pages.list_next`.
        """
        with self._listing:
            if listed not in (None, self.pages.listed):
                return None
            page = self.pages.list_next()
            self._absorb(page, young=YOUNG_READS_MAX)
            return page

    def walk(self) -> Iterator[None]:
        """Go through all of the backlog; after each page its entries are ready.   Cost: 1 LIST per 1,000 objects."""
        keys = self._storage.keys
        listing = self._storage.store.list(keys.pending)
        lease: list[Stat] = []
        while stats := [*islice(listing, self.pages.size)]:
            with self._listing:
                at_s = self._storage.runtime.elapsed_s()
                page = CandidatePage(at_s, self.pages.candidates([*lease, *stats]))
                self._absorb(page, young=self.pages.size)
            yield
            _, kind = parts_of_entry(stats[-1].key, keys.pending) or ("", "")
            lease = stats[-1:] if kind == LEASE else []  # its task is on the next page

    def look(self) -> bool:
        """Look at entries that have rested: whether each can be claimed, or when to look again. Whether there were any.

        Cost: 1 GET for each lease that is not known, 64 at most, in bulk.
        """
        return self._look_at(self._looked_at, waits=False, count=self.leases_a_page)

    def ask(self, *, idle: bool = False) -> bool:
        """Look for what the tasks of suspended entries wait for, of those that are due. Whether there were any.

        `idle`: there is nothing else to do, so that all of them are looked at.
        Cost: that of `AwaitCheck.ready`, for 64 entries at most unless `idle`; if many wait that of the turn.
        """
        if self._table.waiting > TURN_FOR:
            self._awaited.turn.keep()
        return self._look_at(self._asked_for, waits=True, count=ROWS_MAX if idle else self.leases_a_page)

    def note_freed(self, entry: str, *, batch: bool, version: Version, wait_s: float) -> None:
        """This process has suspended tasks of an entry, which no page may show for long."""
        at_s, now = self._storage.runtime.elapsed_s(), self._storage.store.now()
        with self._mutex:
            if not self.pages.whole:
                stat = Stat(self._storage.keys.lease(entry), 0, version, now)
                self._table.put(LeaseRow(Candidate(entry, batch, now, stat), Resting(version, at_s + wait_s), at_s))

    def _look_at(
        self,
        look: Callable[[list[LeaseRow], float], list[LeaseRow]],
        *,
        waits: bool,
        count: int,
    ) -> bool:
        at_s = self._storage.runtime.elapsed_s()
        with self._mutex:
            rows = [*self._table.take_due(at_s, count, waits=waits)]
        if not rows:
            return False
        try:
            ready = look(rows, at_s)
        except LimpetError:
            with self._mutex:
                for row in rows:
                    if row.rest.due_s == inf and self._table.rows.get(row.candidate.entry) is row:
                        self._table.look_at(row, at_s)
            raise
        with self._mutex:
            self.ready.add([row.candidate for row in ready])
        return True

    def judged(self, candidate: Candidate) -> Versioned[EntryLease] | None:
        """The lease of an entry that was handed out, if it may be taken.

        Raises: the error of its read.   Cost: nothing; 1 GET if a look at it failed.
        """
        row = self._table.rows.get(candidate.entry)
        if row is not None and row.record is None:
            row.record = self._storage.lease(candidate.entry).read()
            if row.record is None:
                self._forget(row)
            elif not self._is_due(row):
                return None
        return None if row is None else row.record

    def now_for(self, candidate: Candidate, lease: Versioned[EntryLease], *, exact: bool = False) -> datetime:
        """The store's clock, as far as it says how old a lease is."""
        storage, key = self._storage, self._storage.keys.lease(candidate.entry)
        version, modified = _listed_version(candidate, lease), lease.modified
        assert modified is not None
        now = storage.exact_now() if exact else storage.store.now()
        unchanged_s = storage.watch.unchanged_s(key, version)
        return now_for(now, modified=modified, unchanged_s=unchanged_s, ours=storage.watch.ours(key, version))

    def _looked_at(self, rows: list[LeaseRow], at_s: float) -> list[LeaseRow]:
        """Those of the rows that can be claimed. Where that cannot be said, the claim meets the same error, and handles
        it.
        """
        ready: list[LeaseRow] = []
        for row in self._read([row for row in rows if self._must_read(row, at_s)], rows, at_s):
            try:
                if row.record is not None and not self._is_due(row):
                    continue
            except LimpetError:
                row.record = None
            if row.record is not None and self._awaited_steps(row, row.record):
                self._set(row, Resting(row.rest.version, at_s), waits=True)
            else:
                ready.append(row)
        return ready

    def _asked_for(self, rows: list[LeaseRow], at_s: float) -> list[LeaseRow]:
        """Those of the rows of which a task can go on.

        If many wait, only the holder of the turn asks for all of them, and for those that would soon be due, so that
        one listing serves them. If more can go on than this process may take soon, the turn is passed on.
        """
        many = self._storage.store.far and self._table.waiting > TURN_FOR
        if rows and many:
            if self._awaited.turn.take():
                with self._mutex:
                    rows += self._table.take_soon(at_s) if len(rows) > TURN_FOR else ()
            else:
                rows = self._own(rows, at_s)
        ready: list[LeaseRow] = []
        waiting: dict[str, LeaseRow] = {}
        steps: list[AwaitedStep] = []
        seen_max_s = self._table.seen_max_s
        for row in self._read([row for row in rows if at_s - row.seen_s > seen_max_s], rows, at_s):
            awaited = self._awaited_steps(row, row.record) if row.record is not None else ()
            if row.record is not None and awaited:
                waiting[row.candidate.entry] = row
                steps += (AwaitedStep(row.candidate.entry, row.record.version, step) for step in awaited)
            else:
                ready.append(row)
        come = self._awaited.ready(steps)
        for entry, row in waiting.items():
            if entry in come:
                ready.append(row)
            else:
                self._put_off(row)
        return self._share(ready, at_s) if many else ready

    def _own(self, rows: Sequence[LeaseRow], at_s: float) -> list[LeaseRow]:
        """Those that this process has suspended lately. The holder of the turn looks at the others."""
        keys, watch, own = self._storage.keys, self._storage.watch, []
        for row in rows:
            age_s = 0.0
            if row.record is not None and row.record.modified is not None:
                age_s = (self._storage.store.now() - row.record.modified).total_seconds()
            if age_s < OWN_S and watch.ours(keys.lease(row.candidate.entry), row.rest.version):
                own.append(row)
            else:
                with self._mutex:
                    self._table.look_at(row, at_s + TURN_S)
        return own

    def _share(self, ready: list[LeaseRow], at_s: float) -> list[LeaseRow]:
        """The entries that this process may take soon, with the leases that they have now."""
        if len(ready) > SHARE_MAX:
            self._storage.runtime.rng.shuffle(ready)
            with self._mutex:
                for row in ready[SHARE_MAX:]:
                    self._table.look_at(row, at_s)
            ready = ready[:SHARE_MAX]
            self._awaited.turn.pass_on()
        current = self._read([row for row in ready if at_s - row.seen_s > AGAIN_S], ready, at_s)
        return [row for row in current if row.record is None or self._is_due(row)]

    def _read(self, rows: Sequence[LeaseRow], of: Sequence[LeaseRow], at_s: float) -> list[LeaseRow]:
        """Read the leases of some rows; of all rows `of` which they are some, those whose leases are still there."""
        storage = self._storage
        blobs = storage.store.get_many([storage.keys.lease(row.candidate.entry) for row in rows]) if rows else {}
        for row in rows:
            entry, row.seen_s = row.candidate.entry, at_s
            blob = blobs[storage.keys.lease(entry)]
            if isinstance(blob, Missing):
                self._forget(row)
            try:
                row.record = None if isinstance(blob, LimpetError) else storage.lease(entry).decode(blob)
            except (Corrupt, Unsupported):
                row.record = None
        return [row for row in of if self._table.rows.get(row.candidate.entry) is row]

    def _must_read(self, row: LeaseRow, at_s: float) -> bool:
        """Whether a lease is not known, or may have changed since it was seen: a holder renews it."""
        if row.record is None or at_s - row.seen_s > self._table.seen_max_s:
            return True
        return row.record.value.state is State.HELD and at_s - row.seen_s > AGAIN_S

    def _is_due(self, row: LeaseRow) -> bool:
        """Whether the lease may be taken. If not, the row gets another time, or the end of the entry is finished."""
        candidate, lease, runtime = row.candidate, row.record, self._storage.runtime
        assert lease is not None
        record, modified = lease.value, lease.modified
        assert modified is not None
        version = _listed_version(candidate, lease)

        def classify(now: datetime) -> Ready:
            unchanged_s = self._storage.watch.unchanged_s(self._storage.keys.lease(candidate.entry), version)
            clocks = {"modified": modified, "now": now, "wall": runtime.wall()}
            return claimable(record, **clocks, unchanged_s=unchanged_s, code=self._storage.code)

        now = self.now_for(candidate, lease)
        ready = classify(now)
        if not ready.take and record.state is State.FREE:
            # The lower bound of the clock may lie far behind, and the wait be long over.
            now = self.now_for(candidate, lease, exact=True)
            ready = classify(now)
        if ready.finish:
            finish_cancelled(self._storage, candidate.entry, batch=candidate.batch)
            self._forget(row)
        elif not ready.take and ready.at is not None:
            free = record.state is State.FREE
            after_s = (ready.at - now).total_seconds()
            due_s = runtime.elapsed_s() + (after_s if free else max(after_s, AGAIN_S))
            self._set(row, Resting(version, due_s, ready.at if free else None), waits=False)
        return ready.take

    def _awaited_steps(self, row: LeaseRow, lease: Versioned[EntryLease]) -> Sequence[WaitingStep]:
        """What the tasks of an entry wait for; empty if one of them can go on."""
        if not lease.value.suspended:
            return ()
        modified = lease.modified
        assert modified is not None
        timed = any(each.due_s is not None for each in lease.value.suspended.values())
        now = self.now_for(row.candidate, lease, exact=timed)
        now = max(now, modified + timedelta(seconds=lease.value.wait_s))  # so much is known
        code = self._storage.code
        return looks(lease.value, count_of(row.candidate.entry), modified=modified, now=now, code=code)

    def _put_off(self, row: LeaseRow) -> None:
        """Look at an entry again later, the tasks of which wait for others."""
        lease, at_s = row.record, self._storage.runtime.elapsed_s()
        assert lease is not None
        assert lease.modified is not None
        now = max(self.now_for(row.candidate, lease), lease.modified + timedelta(seconds=lease.value.wait_s))
        pace_s = look_again_s((now - lease.modified).total_seconds())
        version = _listed_version(row.candidate, lease)
        self._set(row, Resting(version, at_s + pace_s, ring_s=at_s + FRESH_S), waits=True)

    def _set(self, row: LeaseRow, rest: Resting, *, waits: bool) -> None:
        with self._mutex:
            row.rest, row.waits = rest, waits
            self._table.put(row)

    def _forget(self, row: LeaseRow) -> None:
        with self._mutex:
            self._table.forget(row.candidate.entry)

    def _absorb(self, page: CandidatePage, *, young: int) -> None:
        """Take over what a page shows. `young`: how many young leases may be read."""
        storage = self._storage
        ended = storage.closer.entries() if storage.closer is not None else ()
        for candidate in page.candidates:
            if candidate.lease is not None:
                storage.watch.unchanged_s(candidate.lease.key, candidate.lease.version)
        at_s, now = storage.runtime.elapsed_s(), storage.store.now()
        with self._mutex:
            if self.ready.entries:
                self._drop_ready()
            self._handed = {entry: ended_s for entry, ended_s in self._handed.items() if ended_s > page.at_s}
            out = {*self._handed, *ended}
            shown = [candidate for candidate in page.candidates if candidate.entry not in out]
            page.ours, page.candidates = len(page.candidates) - len(shown), shown
            free: list[Candidate] = []
            self.pages.unread = 0
            for candidate in shown:
                row = self._table.rows.get(candidate.entry)
                if candidate.lease is not None:
                    young -= self._note(candidate, candidate.lease, row, page.at_s, now, young=young)
                elif row is None or self.pages.whole:
                    self._table.forget(candidate.entry)
                    free.append(candidate)  # else the page begins between a lease and its task
            if self.pages.whole:
                self._table.keep({candidate.entry for candidate in shown}.union(self._handed))
            if not page.tail:
                self.pages.crowded = not self.pages.whole and 2 * len(free) < len(shown)
            if self._table.waiting and (storage.bell is None or storage.bell.listening):
                for row in self._table.rung(at_s, RUNG_MAX):
                    self._table.look_at(row, at_s)
            self.ready.set(free, page.at_s)
            self.pages.listed += 1

    def _note(
        self, candidate: Candidate, lease: Stat, row: LeaseRow | None, at_s: float, now: datetime, *, young: int
    ) -> bool:
        """A page shows the lease of an entry. Returns whether it is a young one, and to be read."""
        elapsed_s = self._storage.runtime.elapsed_s()
        if row is not None and row.rest.version == lease.version:
            row.candidate, row.seen_s = candidate, at_s
            if not is_left_out(row.rest, version=lease.version, at_s=elapsed_s, now=now):
                self._table.look_at(row, elapsed_s)
            if row.record is not None or row.rest.due_s <= elapsed_s or row.rest.due_s == inf:
                return False
        else:
            row = LeaseRow(candidate, Resting(lease.version, elapsed_s), at_s)
            self._table.put(row)
        left_s = (lease.modified - now).total_seconds() + self._ttl_s
        read = left_s > 0 and young > 0
        if left_s > 0 and not read:
            self.pages.unread += 1
        self._table.look_at(row, elapsed_s if left_s <= 0 or read else elapsed_s + left_s)
        return read

    def _drop_ready(self) -> None:
        """What is ready and not handed out is to be looked at again."""
        for candidate in self.ready.entries:
            row = self._table.rows.get(candidate.entry)
            if row is not None:
                self._table.look_at(row, self._storage.runtime.elapsed_s())
        self.ready.entries = []


def _listed_version(candidate: Candidate, lease: Versioned[EntryLease]) -> Version:
    """The version by which listings name the lease that was read: that of the page, if it showed the same one."""
    listed = candidate.lease
    return listed.version if listed is not None and listed.modified == lease.modified else lease.version
