"""`Pages`: the backlog of a queue, page by page.

Listing costs a request for 1,000 objects however long the backlog is. Two cursors go through a long one:
`Store.sample` through all of it, the tail through what was pushed last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from math import inf

import msgspec

from limpet.kernel.keys import BATCH, LEASE, TASK, Key, parts_of_entry
from limpet.kernel.runtime import ulid, ulid_ms
from limpet.kernel.store.api import Stat
from limpet.queue.look import IDLE_S, LookSchedule
from limpet.queue.storage import Storage

PAGE = 1000
SCHEDULED_EVERY_S = 60.0
TAIL_S = 60.0
"""How far back the first page of the tail reaches."""
SKEW_S = 10.0
"""By how much the clocks of pushers may differ, so that the tail shows all that they push."""


class Candidate(msgspec.Struct, frozen=True):
    """An entry that a listing showed, with its lease if it had one. `page`: the number of that page."""

    entry: str
    batch: bool
    pushed: datetime
    lease: Stat | None
    page: int = 0


@dataclass(slots=True)
class CandidatePage:
    """Part of the backlog. `scheduled` are delayed pushes, the earliest first; None if they were not listed."""

    at_s: float
    candidates: list[Candidate] = field(default_factory=list)
    scheduled: list[Key] | None = None
    tail: bool = False
    ours: int = 0
    """How many entries were left out because this process is claiming them, or has ended them."""


class Pages:
    """Lists the backlog of a queue page by page. Its owner guards it.

    A page of the whole backlog, while one LIST shows it; else of the part that follows. While few entries of those
    parts can be claimed, every second page is of the tail.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.size = PAGE
        self.listed = 0
        """How many pages were listed."""
        self.whole = False
        """Whether the last page showed all that waits."""
        self.crowded = False
        """Whether few entries of the last part of a long backlog could be claimed."""
        self.unread = 0
        """How many leases of the last page are not known, and not looked at soon."""
        self._tail_is_next = False
        self._tail = ""
        """Where the next page of the tail begins."""
        self._scheduled_at_s = -inf
        self._looks = LookSchedule(IDLE_S, storage.runtime)

    @property
    def complete(self) -> bool:
        """Whether the last page showed all that waits, and no lease was left unread."""
        return self.whole and not self.unread

    def found(self) -> None:
        """An entry was claimed."""
        self._looks.found()

    def next_s(self) -> float:
        """When another page of a long backlog is to be listed, after one without an entry that could be claimed."""
        self._looks.empty()
        self._looks.take()
        return self._storage.runtime.elapsed_s() + self._looks.wait_s()

    def list_next(self) -> CandidatePage:
        """Cost: 1 LIST, at a large backlog 1 more once a minute; the first ones 1 or 2 more."""
        if self.whole:
            return self._listed()
        self._tail_is_next = self.crowded and not self._tail_is_next
        return self._listed_tail() if self._tail_is_next else self._sampled()

    def _listed(self) -> CandidatePage:
        """The whole of a short backlog, and what is scheduled behind it, in one listing."""
        at_s, keys = self._storage.runtime.elapsed_s(), self._storage.keys
        stats = [*islice(self._storage.store.list(keys.root, after=keys.pending), self.size)]
        pending = [stat for stat in stats if stat.key.startswith(f"{keys.pending}/")]
        self.whole = len(pending) < self.size
        scheduled = [stat.key for stat in stats if stat.key.startswith(f"{keys.scheduled}/")] if self.whole else None
        self._scheduled_at_s = at_s
        return CandidatePage(at_s, self.candidates(pending), scheduled)

    def _sampled(self) -> CandidatePage:
        at_s, keys, store = self._storage.runtime.elapsed_s(), self._storage.keys, self._storage.store
        stats = store.sample(keys.pending, self.size)
        self.whole = len(stats) < self.size
        scheduled = None
        if at_s - self._scheduled_at_s > SCHEDULED_EVERY_S:
            self._scheduled_at_s = at_s
            scheduled = [stat.key for stat in islice(store.list(keys.scheduled), PAGE)]
        return CandidatePage(at_s, self.candidates(stats), scheduled)

    def _listed_tail(self) -> CandidatePage:
        """What was pushed last under names that Limpet made, which have a time: from the cursor on."""
        at_s, keys, store = self._storage.runtime.elapsed_s(), self._storage.keys, self._storage.store
        now_ms = int(store.now().timestamp() * 1000)
        begin = self._tail or _key_at(keys.pending, now_ms - int(TAIL_S * 1000))
        stats = [*islice(store.list(keys.pending, after=begin), self.size)]
        end = stats[-1].key if len(stats) == self.size else ""
        skewed = _key_at(keys.pending, now_ms - int(SKEW_S * 1000))
        minted = ulid_ms(end.removeprefix(f"{keys.pending}/").partition("/")[0].partition("-")[0]) is not None
        self._tail = end if end and minted else skewed
        return CandidatePage(at_s, self.candidates(stats), tail=True)

    def candidates(self, stats: Sequence[Stat]) -> list[Candidate]:
        """The entries of a listing, oldest first."""
        storage = self._storage
        leases: dict[str, Stat] = {}
        tasks: list[tuple[str, str, Stat]] = []
        for stat in stats:
            entry, kind = parts_of_entry(stat.key, storage.keys.pending) or ("", "")
            if kind == LEASE:
                leases[entry] = stat
            elif kind in (TASK, BATCH):
                tasks.append((entry, kind, stat))
            elif stat.key.endswith(f"/{TASK}"):
                storage.note_foreign()  # in a folder of folders
        foreign = storage.journal.foreign(stats)
        entries = [
            Candidate(entry, kind == BATCH, stat.modified, leases.get(entry), self.listed + 1)
            for entry, kind, stat in tasks
            if entry not in foreign
        ]
        entries.sort(key=by_age)
        return entries


def by_age(candidate: Candidate) -> tuple[datetime, str]:
    """Sorts candidates from the oldest."""
    return candidate.pushed, candidate.entry


def _key_at(folder: str, ms: int) -> str:
    """The key before all names below a folder that were made at that time or later."""
    return f"{folder}/{ulid(max(0, ms), 0)}"
