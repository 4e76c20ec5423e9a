"""`ClaimState`: what a claim knows of its tasks, in memory. `Results`: their results, until they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from limpet.kernel import records
from limpet.kernel.cell import Versioned
from limpet.kernel.errors import Conflict, Denied
from limpet.kernel.keys import Key
from limpet.kernel.store.api import Absent
from limpet.queue.api import Policy
from limpet.queue.decide import Progress, may_start, must_charge, open_tasks, start_order
from limpet.queue.entry import EntryLease, Part, StepRecord
from limpet.queue.history import TaskHistory, fitted_histories, history_of
from limpet.queue.storage import Storage

INLINE_BYTES_MAX = 1024
INLINE_TOTAL_MAX = 256 * 1024
PART_BYTES_MAX = 512 * 1024


class Results:
    """The results of one claim, and the large ones until they are written.

    `inline_bytes`: how many bytes the record of the entry has, those of earlier claims too.
    """

    def __init__(self, inline_bytes: int) -> None:
        self.all: dict[int, msgspec.Raw] = {}
        self.large: dict[int, msgspec.Raw] = {}
        self._inline_bytes = inline_bytes

    def is_large(self, n: int, data: bytes) -> bool:
        """Whether the result of task `n` goes into a part object; then it is kept here."""
        raw = self.all[n] = msgspec.Raw(data)
        if len(data) <= INLINE_BYTES_MAX and self._inline_bytes + len(data) <= INLINE_TOTAL_MAX:
            self._inline_bytes += len(data)
            return False
        self.large[n] = raw
        return True

    def write_large(self, storage: Storage, entry: str) -> Iterator[Key]:
        """Write what is kept; the keys of the parts. It comes before the record that names them.

        Cost: 1 PUT per 512 KiB.
        """
        while self.large:
            part: dict[int, msgspec.Raw] = {}
            size = 0
            for n, data in [*self.large.items()]:
                size += len(bytes(data))
                if part and size > PART_BYTES_MAX:
                    break
                part[n] = data
            key = storage.keys.part(entry, storage.runtime.new_id())
            storage.store.put(key, records.encode(Part(results=part)), when=Absent())
            for n in part:
                self.large.pop(n, None)
            yield key


class ClaimHistories:
    """The steps of the durable tasks of one claim, and the histories of those that were done until they are written."""

    def __init__(self) -> None:
        self.logs: dict[int, Mapping[int, Versioned[StepRecord]]] = {}
        self.done: dict[int, TaskHistory] = {}
        self.written = False

    def keep(self, n: int, life: str) -> None:
        """Task `n` is done."""
        if n in self.logs:
            self.done[n] = history_of(self.logs.pop(n), life)

    def write(self, storage: Storage, entry: str, token: int) -> None:
        """Write them once, before the record that says that the tasks are done. Without a right to there is none.

        Cost: 1 PUT if there are any.
        """
        if self.done and not self.written:
            data = records.encode(fitted_histories(self.done))
            with suppress(Conflict, Denied):  # Conflict: an earlier try of this claim
                storage.store.put(storage.keys.history(entry, token), data, when=Absent())
            self.written = True


@dataclass(slots=True)
class StartGroup:
    """Tasks that threads start at the same time: one swap charges them all. `charged`: it did."""

    tasks: list[int] = field(default_factory=list)
    charged: bool = False


class ClaimState:
    """The tasks of one claim: which are open, wait or run, and what was decided (`progress`). The claim guards it.

    `first` is the record with which the claim began. `by_swap`: each start is charged by a swap of its own.
    """

    starts: StartGroup | None = None
    """The tasks that wait to be charged by the next such swap."""
    spent: Set[int] = frozenset()
    """The tasks that failed after the lease was lost: their attempts are not given back."""
    histories: ClaimHistories | None = None
    """Those of its durable tasks, if there are any."""

    def __init__(self, record: EntryLease, count: int, policy: Policy, at_s: float) -> None:
        self.first = record
        self.by_swap = must_charge(record, policy)
        due = start_order(record, count)
        self.waiting = due[::-1]
        self.open = {*open_tasks(record, count)} if record.waits else {*due}
        self.running: dict[int, float] = {}
        """The tasks that were started and have no verdict, and when."""
        self.began_s = self.started_s = at_s
        self.progress = Progress()
        self.results = Results(sum(map(len, map(bytes, record.results.values()))) if record.results else 0)
        if record.waits:
            self.progress.due_s = {n: at_s + wait_s for n, wait_s in record.waits.items()}
            self.progress.suspended = {
                n: (suspension, at_s) for n, suspension in record.suspended.items() if n in record.waits
            }

    def next_may_start(self, policy: Policy) -> bool:
        """Whether the other tasks of the claim allow it to start the next one."""
        if not self.waiting:
            return False
        return may_start(self.waiting[-1], running=self.running, suspects=self.first.suspects, policy=policy)

    def put_back(self, n: int) -> None:
        """Undo the start of a task whose handler does not run."""
        self.running.pop(n, None)
        if not self.by_swap:
            self.progress.attempts.pop(n, None)

    def close(self, n: int) -> bool:
        """Task `n` has ended; whether it was the last one."""
        self.open.discard(n)
        self.running.pop(n, None)
        return not self.open

    def note_log(self, n: int, log: Mapping[int, Versioned[StepRecord]]) -> None:
        """Task `n` is durable. `log`: its recorded steps, as its run knows them."""
        if self.histories is None:
            self.histories = ClaimHistories()
        self.histories.logs[n] = log

    def all_wait(self) -> bool:
        """Whether every open task waits for another claim."""
        return self.open == self.progress.due_s.keys()
