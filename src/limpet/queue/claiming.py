"""`Claiming`: how a queue finds an entry and claims it, the methods by which workers get tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Never
from weakref import WeakMethod

import msgspec

from limpet.kernel.answers import refuse_option
from limpet.kernel.cell import Cell, Outcome, Versioned, Won
from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable, Unsupported
from limpet.kernel.keys import Key, parts_of_scheduled
from limpet.kernel.lease import HeldLease, Renewer, State
from limpet.kernel.waiting import naps
from limpet.queue.api import EmptyClaim, Policy
from limpet.queue.claim import EntryClaim
from limpet.queue.closer import FRESH_S
from limpet.queue.decide import claimed, waits_left
from limpet.queue.discovery import Discovery
from limpet.queue.entry import Content, EntryLease, ForeignTask
from limpet.queue.finish import reject_entry
from limpet.queue.inspect import Inspection
from limpet.queue.look import IDLE_S, LookSchedule
from limpet.queue.pages import Candidate, CandidatePage
from limpet.queue.push import Pusher
from limpet.queue.results import TOKEN_EVERY_S
from limpet.queue.slots import Slot, Slots
from limpet.queue.storage import Storage
from limpet.queue.sweep import Sweeper

LISTS_MAX = 3
"""So many pages a look for work lists."""
CONTROL_EVERY_S = 5.0


class Claiming(Inspection):
    """The methods of a queue by which workers get tasks."""

    _pusher: Pusher

    def __init__(self, storage: Storage, policy: Policy, decoder: msgspec.json.Decoder[Any]) -> None:
        super().__init__(storage)
        self.policy = policy
        self._decoder = decoder
        self._looks = LookSchedule(self.idle_poll_s, storage.runtime)
        self._is_paused = False
        self._ask_control_at_s = float("-inf")
        self.look_anew()
        self._renewer = Renewer(storage.runtime, policy.ttl_s, name=f"limpet-renewer-{storage.keys.name}")
        self._slots = Slots(storage, policy, storage.watch, self._renewer)
        self._sweeper = Sweeper(storage, policy)

    def look_anew(self) -> None:
        """Forget what is known of the backlog, so that each lease in it is looked at again.   Cost: nothing yet."""
        self.discovery = Discovery(self.storage, ttl_s=self.policy.ttl_s)
        self.storage.freed_listener = WeakMethod(self.discovery.note_freed)

    def claim(self, *, wait_s: float = 0.0, **unknown: Never) -> EntryClaim | EmptyClaim:
        """Claim the oldest entry that is free.

        Cost: a first claim 1 PUT + 1 GET, and 2 HEADs for a user's id; a later one 1 GET + 1 PUT + 1 GET + 2 HEADs, and
        1 PUT for each task that it starts, or for all that threads start at once; a share of 1 LIST a page, and 1 GET
        in 5 s. An idle poll is 1 LIST.
        Crash: the entry is taken over after `ttl_s`.
        An entry that cannot be read ends in failed/ with the reason, and in `notices`; other entries are not affected.
        """
        for option in unknown:
            refuse_option(option, ("wait_s",), "claim()")
        if not wait_s >= 0:
            raise Invalid(f"wait_s must not be negative, and is {wait_s:g}")
        runtime, looks = self.storage.runtime, self._looks
        # After a find the page is used up first: that is no look, and needs no preparation.
        claim = self._try_claim(self._from_ready) if self.discovery.ready.entries and looks.is_hot else None
        if claim is not None:
            self._note_claim()
            return claim
        until_s = runtime.elapsed_s() + wait_s
        while True:
            if looks.take(self.change_token() if wait_s > 0 else None, anyway=wait_s <= 0):
                claim = self._try_claim(self._look)
                if claim is not None:
                    looks.found()
                    return claim
                looks.empty()
            if runtime.elapsed_s() >= until_s:
                return EmptyClaim()
            self._sleep(until_s)

    @property
    def idle_poll_s(self) -> float:
        return self.policy.poll_s if self.storage.bell is not None else IDLE_S

    @property
    def claims_ahead(self) -> bool:
        return self.storage.store.far and self.policy.concurrency is None and self.policy.rate_per_s is None

    def claim_last(self) -> EntryClaim | EmptyClaim:
        """Cost: that of a claim; if it found nothing, and did not see all that waits, 1 LIST per 1,000 objects of the
        backlog and 1 GET for each lease that this process does not know.
        """
        listed = self.discovery.pages.listed
        claim = self._try_claim(self._look)
        if claim is None and (self.discovery.pages.listed == listed or not self.discovery.pages.complete):
            for _ in self.discovery.walk():
                claim = self._from_ready()
                while claim is None and (self.discovery.look() or self.discovery.ask(idle=True)):
                    claim = self._from_ready()
                if claim is not None:
                    break
        return claim or EmptyClaim()

    def claim_ahead(self) -> EntryClaim | None:
        """Only of those that are ready.   Cost: that of a claim, without a LIST."""
        return self._first_claim()

    def flush(self) -> None:
        """Cost: 2 DELETEs for each entry that has just ended, in bulk. Takes about a second if there are any."""
        if self.storage.closer is not None:
            self.storage.closer.flush()

    def change_token(self) -> str | None:
        """A directory and memory have one, a bucket has none."""
        token = super().change_token()
        return token and f"{token} {self._looks.is_expected}"

    def _sleep(self, until_s: float) -> None:
        """Sleep until the next look is due, or the change token differs (where asking for it costs no request)."""
        runtime, looks = self.storage.runtime, self._looks

        def pause_s() -> float | None:
            left_s = min(looks.wait_s(), until_s - runtime.elapsed_s())
            return None if left_s <= 0 else left_s if looks.token is None else min(left_s, TOKEN_EVERY_S)

        for _ in naps(runtime, pause_s):
            if looks.token is not None and self.change_token() != looks.token:
                return

    def _try_claim(self, look: Callable[[], EntryClaim | None]) -> EntryClaim | None:
        """A look that failed has not answered a ring: the next ones list, until one has succeeded."""
        try:
            return look()
        except LimpetError:
            self._note_find()
            raise

    def _look(self) -> EntryClaim | None:
        """Claim the first candidate that can be claimed, of those that are ready or of a new page."""
        discovery, pages = self.discovery, self.discovery.pages
        self._looks.forget_expected()
        self._sweeper.sweep_when_due()
        claim = self._from_ready() if discovery.ready.entries else None
        listed = False
        for _ in range(LISTS_MAX):
            # In a bucket, the bell tells an idle worker when to list.
            if claim is not None or not (self.storage.bell is None or self.storage.bell.worth_a_list()):
                break
            page = self._list_page(pages.listed)
            listed = listed or page is not None
            discovery.look()
            if page is not None and not page.tail:
                discovery.ask()
            claim = self._from_ready()
            if claim is None and discovery.ready.stale:
                self._note_find()
            elif pages.whole or not (pages.crowded or (page is not None and page.ours)):
                break  # else another page may have an entry that is free
        while claim is None and (discovery.look() or discovery.ask(idle=True)):
            claim = self._from_ready()
        if claim is not None:
            self._note_claim()
            return claim
        self._expect_due()
        if listed and not pages.whole and self.storage.bell is not None:
            self.storage.bell.expect(pages.next_s())  # no push announces what waits on another page
        return None

    def _list_page(self, listed: int) -> CandidatePage | None:
        """List a page, unless another thread has done so, and make delayed pushes pending that are due."""
        if self.storage.bell is None:
            page = self.discovery.list_page(listed)
        else:
            with self.storage.bell.listing():
                page = self.discovery.list_page(listed)
        if page is not None and page.scheduled:
            now = self.storage.exact_now()
            self.discovery.add(self._pusher.promote(now=now, keys=page.scheduled))
            self._expect_scheduled(page.scheduled, now)
        return page

    def _expect(self, at_s: float) -> None:
        if self.storage.bell is not None:
            self.storage.bell.expect(at_s)
        else:
            self._looks.expect(at_s)

    def _expect_due(self) -> None:
        self._expect(self.discovery.due_s(waits=False))
        if self.storage.bell is None:
            self._expect(self.discovery.due_s(waits=True))

    def _expect_scheduled(self, keys: Sequence[Key], now: datetime) -> None:
        times = (parts[0] for parts in map(parts_of_scheduled, keys) if parts is not None)
        due = next((at for at in times if at > now), None)  # they are sorted
        if due is not None:
            self._expect(self.storage.runtime.elapsed_s() + (due - now).total_seconds())

    def _note_claim(self) -> None:
        if self.storage.bell is not None:
            self.discovery.pages.found()
            self.storage.bell.heard()

    def _note_find(self) -> None:
        """There is work: list without asking the bell for a while."""
        if self.storage.bell is not None:
            self.storage.bell.heard()

    def _paused(self) -> bool:
        """Whether an operator has paused the queue. Asked when there is something to take, at most every 5 s."""
        at_s = self.storage.runtime.elapsed_s()
        if at_s >= self._ask_control_at_s:
            try:
                self._is_paused = self.storage.paused()
            except (Corrupt, Unsupported) as error:
                # One bad object must not stop a fleet: what was last known counts, and `pause` and `resume` mend it.
                was = "paused" if self._is_paused else "not paused"
                self.storage.notices.warn("", f"{error}; the queue counts as {was}")
            self._ask_control_at_s = at_s + CONTROL_EVERY_S
        return self._is_paused

    def _from_ready(self) -> EntryClaim | None:
        if self.policy.concurrency is None:
            return self._first_claim()
        slot: Slot | None = None
        claim: EntryClaim | None = None
        try:
            if self.discovery.ready.entries:
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
            claim: EntryClaim | None = None
            try:
                claim = self._isolated(candidate)
            finally:
                self.discovery.tried(candidate, won=claim is not None)
            if claim is not None:
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
                self._note_find()
                return None  # if the claim took effect after all, it expires
            why = str(error.__cause__)  # what has the lease's name cannot be listed: a pipe, on a directory
        except Unsupported:
            return None
        try:
            reject_entry(self.storage, candidate.entry, why, batch=candidate.batch)
        except ForeignTask:
            self.storage.note_foreign()
            self.discovery.rests(candidate, self.policy.ttl_s)
        except OutcomeUnknown:
            pass  # the next claim of it rejects it again
        except (Corrupt, Invalid, Unsupported) as error:
            self.storage.notices.warn(candidate.entry, f"{why}; it cannot be put aside: {error}")
        return None

    def _claim(self, candidate: Candidate) -> EntryClaim | None:
        if candidate.lease is None:
            return None if self._paused() else self._take(candidate, None)
        lease = self.discovery.judged(candidate)
        if lease is None or self._paused():
            return None
        assert lease.modified is not None
        now, code = self.discovery.now_for(candidate, lease), self.storage.code
        if waits_left(lease.value, modified=lease.modified, now=now, code=code):
            now = self.discovery.now_for(candidate, lease, exact=True)
        waits = waits_left(lease.value, modified=lease.modified, now=now, code=code)
        return self._take(candidate, lease, waits, since_s=max(0.0, (now - lease.modified).total_seconds()))

    def _take(
        self,
        candidate: Candidate,
        lease: Versioned[EntryLease] | None,
        waits: dict[int, float] | None = None,
        since_s: float = 0.0,
    ) -> EntryClaim | None:
        """Claim an entry that has this lease, or none. `waits` are those that are left, `since_s` is its age."""
        runtime, cell = self.storage.runtime, self.storage.lease(candidate.entry)
        record = claimed(
            lease.value if lease else None,
            entry=candidate.entry,
            worker_id=runtime.owner,
            label=runtime.label,
            policy=self.policy,
            wall=runtime.wall(),
            waits=waits,
            since_s=since_s,
        )
        sent_at_s = runtime.elapsed_s()
        read: Content | LimpetError | None = None
        if lease is None and self.storage.store.far:
            outcome, read = self._take_and_read(cell, record, candidate)
            if runtime.elapsed_s() - sent_at_s > FRESH_S or isinstance(read, Unavailable):
                read = None
        else:
            outcome = cell.attempt(lease, record)
        if isinstance(outcome, Won):
            return self._open(HeldLease(cell, outcome.seen, runtime, sent_at_s=sent_at_s), candidate, read)
        self.discovery.lost(candidate)
        return None

    def _take_and_read(
        self, cell: Cell[EntryLease], record: EntryLease, candidate: Candidate
    ) -> tuple[Outcome[EntryLease], Content | LimpetError]:
        """Create the lease and read the task at the same time.

        The read counts only if it is fresh: a task that was read long before the lease was created may have been done
        by another worker in between (docs/inside/decisions/0011-latency.md).   Cost: 1 PUT + 1 GET, in one round trip.
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

        read = self.storage.runtime.fan_out(run, (0, 1))[1]
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
