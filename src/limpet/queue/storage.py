"""The objects of one queue: entries, leases, receipts, and the order in which they come and go.

Nothing here decides. Names are single-use: a receipt ends one, and only an ended one is deleted, so no delete, however
late, can hit a newer object of the same name (F18).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any, Protocol

from limpet import records
from limpet.cell import Cell, Codec, Lost, Replaced, Unclear, Won, struct_codec
from limpet.errors import Corrupt, Invalid, LimpetError, Missing, Unsupported
from limpet.keys import Key, QueueKeys, is_minted
from limpet.queue.api import Notice
from limpet.queue.names import batch_of, count_of, name_of_receipt
from limpet.queue.records import (
    ENTRY_BYTES_MAX,
    ControlRecord,
    EntryLease,
    Receipt,
    batch_lines,
    lease_of,
    read_task,
)
from limpet.runtime import Runtime
from limpet.store.api import Absent, Blob, Stat, Store

LEASE_CODEC = struct_codec(EntryLease)
NOTICES_MAX = 1_000
RAW_BYTES_MAX = 2 * ENTRY_BYTES_MAX
"""How much of an object that nobody can read is kept."""
RECEIPT_CODEC = struct_codec(Receipt)
CONTROL_CODEC = struct_codec(ControlRecord)


@dataclass(frozen=True, slots=True)
class Content:
    """The tasks of an entry: the payload of each as JSON, when they were pushed, and their earlier lives.

    `minted`: the name was made for this one push, so nothing of it can have ended before it was first claimed.
    """

    ids: Sequence[str]
    payloads: Sequence[bytes]
    pushed_at: datetime
    retries: int
    minted: bool


class Journal(Protocol):
    """Where a supervised node notes each push and each end before it takes effect (H8).

    `travels`: what is pushed and ended here comes from, and goes to, other places too. Then a name may come back after
    it ended, so that every claim looks for a receipt.
    """

    travels: bool

    def pushed(self, key: Key, data: bytes) -> None:
        """A task or batch will be put there."""

    def ended(self, entry: str, batch: bool, key: Key, receipt: Receipt) -> None:
        """A receipt of the entry, or of one of its tasks, will be put there."""

    def held(self, queue: QueueKeys, entry: str, batch: bool) -> None:
        """A claim of the entry lasts: others may want to know."""

    def foreign(self, found: Iterable[Stat]) -> Collection[str]:
        """The entries among those found that somebody elsewhere works on, as far as is known."""


class NoJournal:
    """Nobody listens."""

    travels = False

    def pushed(self, key: Key, data: bytes) -> None:
        pass

    def ended(self, entry: str, batch: bool, key: Key, receipt: Receipt) -> None:
        pass

    def held(self, queue: QueueKeys, entry: str, batch: bool) -> None:
        pass

    def foreign(self, found: Iterable[Stat]) -> Collection[str]:
        return ()


class Notices:
    """What the threads of this process met while they looked for work, until somebody asks."""

    def __init__(self, runtime: Runtime) -> None:
        self._mutex = runtime.mutex()
        self._notices: list[Notice] = []
        self._warned: set[str] = set()

    def failed(self, id_: str, note: str, count: int = 1) -> None:
        """Tasks were ended in failed/ without being run."""
        with self._mutex:
            self._notices = [*self._notices[1 - NOTICES_MAX :], Notice(id_, note, count)]

    def warn(self, id_: str, note: str) -> None:
        """Something could not be read, and was passed over. It is said once."""
        with self._mutex:
            if note not in self._warned:
                if len(self._warned) >= NOTICES_MAX:
                    self._warned.clear()
                self._warned.add(note)
                self._notices = [*self._notices[1 - NOTICES_MAX :], Notice(id_, note)]

    def take(self) -> list[Notice]:
        """All of them; they are forgotten then."""
        if not self._notices:
            return []
        with self._mutex:
            notices, self._notices = self._notices, []
        return notices


def task_name(entry: str, n: int, *, batch: bool) -> str:
    """The name of task `n` of an entry, as receipts have it."""
    return f"{entry}.{n}" if batch else entry


class Storage:
    """One queue in one store."""

    def __init__(self, store: Store, keys: QueueKeys, runtime: Runtime, journal: Journal | None = None) -> None:
        self.store = store
        self.keys = keys
        self.runtime = runtime
        self.journal: Journal = journal or NoJournal()
        self.notices = Notices(runtime)

    def lease(self, entry: str) -> Cell[EntryLease]:
        """The lease of an entry."""
        count = count_of(entry)
        codec = Codec(EntryLease, lambda record: record, lambda data, what: lease_of(data, count=count, what=what))
        return Cell(self.store, self.keys.lease(entry), codec, self.runtime, deletable=True)

    def receipt(self, key: Key) -> Cell[Receipt]:
        """A receipt."""
        return Cell(self.store, key, RECEIPT_CODEC, self.runtime, deletable=True)

    def control(self) -> Cell[ControlRecord]:
        """What an operator has set."""
        return Cell(self.store, self.keys.control, CONTROL_CODEC, self.runtime)

    def content(self, entry: str, *, batch: bool) -> Content:
        """The tasks of an entry.   Raises: Missing; Corrupt; Unsupported.   Cost: 1 GET."""
        key = self.keys.tasks(entry, batch=batch)
        return read_content(self.store.get(key, size_max=ENTRY_BYTES_MAX), entry, batch=batch, what=key)

    def ended(self, entry: str) -> bool:
        """Whether a receipt ends the entry. failed/ first: receipts move only from there to completed/ (H6).

        Cost: 1 or 2 HEADs.
        """
        return self.exists(self.keys.failed_of(entry)) or self.exists(self.keys.completed_of(entry))

    def read_receipt(self, key: Key) -> Receipt | None:
        """A receipt; None if there is none, or none that can be read.   Cost: 1 GET."""
        try:
            seen = self.receipt(key).read()
        except (Corrupt, Unsupported):
            return None
        return seen.value if seen else None

    def own_receipts(self, folder: str, entry: str) -> set[int]:
        """The tasks of a batch that have receipts of their own in completed/ or failed/.   Cost: 1 LIST."""
        after = f"{folder}/{entry}."
        names = takewhile(lambda stat: stat.key.startswith(after), self.store.list(folder, after=after))
        return {part[1] for stat in names if (part := batch_of(name_of_receipt(stat.key)))}

    def write_receipt(self, entry: str, key: Key, receipt: Receipt, *, batch: bool) -> Receipt:
        """Put a receipt there unless one stands there already; the one that stands.

        One that stands there and cannot be read ends the name all the same: then ours is the answer.
        Raises: OutcomeUnknown, Unavailable: then nothing may be deleted.   Cost: 1 PUT, + 1 GET if one stands there.
        """
        self.journal.ended(entry, batch, key, receipt)
        try:
            outcome = self.receipt(key).attempt(None, receipt)
        except (Corrupt, Unsupported) as error:
            self.notices.warn(entry, str(error))
            return receipt
        match outcome:
            case Won(seen):
                return seen.value
            case Replaced(_, now) | Lost(now) | Unclear(now):
                return now.value

    def paused(self) -> bool:
        """Whether an operator has paused the queue.   Raises: Corrupt; Unsupported.   Cost: 1 GET."""
        seen = self.control().read()
        return seen is not None and seen.value.paused

    def raw_bytes(self, key: Key) -> bytes:
        """An object as it is, for keeping: the first 16 MiB.   Raises: Missing.   Cost: 1 GET."""
        try:
            return self.store.get(key, range=(0, RAW_BYTES_MAX)).data
        except Invalid:  # no byte is in that range: it is empty
            return b""

    def kept_payload(self, entry: str, payload: bytes) -> Key | None:
        """Keep a payload that is not JSON as it is, in a part object; None for one that a receipt can hold.

        Cost: 1 PUT, or nothing.
        """
        try:
            records.plain(records.decode(payload, Any, what="the payload"), what="the payload")
        except (Corrupt, Invalid):
            key = self.keys.part(entry, self.runtime.new_id())
            self.store.put(key, payload, when=Absent())
            return key
        return None

    def close(self, entry: str, *, batch: bool) -> None:
        """Remove an entry that a receipt ends: the task, then the lease, so that a lease is never missed in between.

        A delete that fails leaves the rest to the next claim or sweep.   Cost: 2 DELETEs (3 on a supervised node).
        """
        with suppress(LimpetError):
            self.store.delete(self.keys.tasks(entry, batch=batch))
            self.drop_lease(entry)
            if self.journal.travels:
                self.store.delete(self.keys.remote(entry))

    def drop_lease(self, entry: str) -> None:
        """Remove the lease of an entry that has no task any more.   Cost: 1 DELETE."""
        self.store.delete(self.keys.lease(entry))

    def exists(self, key: Key) -> bool:
        """Whether there is such an object.   Cost: 1 HEAD."""
        try:
            self.store.head(key)
        except Missing:
            return False
        return True


def read_content(blob: Blob, entry: str, *, batch: bool, what: str) -> Content:
    """The tasks in an object that was read.   Raises: Corrupt; Unsupported."""
    if blob.size > ENTRY_BYTES_MAX:
        raise Corrupt(f"{what} has {blob.size} bytes, more than the {ENTRY_BYTES_MAX} that an entry may have")
    if not batch:
        task = read_task(blob.data, what=what)
        minted = is_minted(entry) and not task.delayed
        return Content((task.id,), (bytes(task.payload),), task.pushed_at, task.retries, minted)
    header, body = batch_lines(blob.data, what=what)
    if header.count != count_of(entry):
        raise Corrupt(f"{what} holds {header.count} tasks; its name says {count_of(entry)}")
    ids = [f"{entry}.{n}" for n in range(header.count)]
    return Content(ids, body.split(b"\n"), header.pushed_at, 0, minted=True)
