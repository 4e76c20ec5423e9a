"""`Storage`: the objects of one queue in a store, and the order in which they are written and deleted.

What is in them is in `entry`. Nothing here decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, Protocol, TypeVar
from weakref import WeakMethod

from limpet.kernel import records
from limpet.kernel.cell import Cell, Codec, Lost, Outcome, Replaced, Unclear, Versioned, Won, struct_codec
from limpet.kernel.drop import BEGUN, DropState, drop_cell
from limpet.kernel.errors import Conflict, Corrupt, Denied, Invalid, LimpetError, Unsupported
from limpet.kernel.keys import Key, QueueKeys, batch_of, count_of, name_of_receipt, parts_of_step
from limpet.kernel.lease import VersionWatch
from limpet.kernel.runtime import ComputedField, Runtime
from limpet.kernel.store.api import Absent, Blob, Stat, Store
from limpet.kernel.waiting import attempts
from limpet.kernel.wording import many
from limpet.queue.api import Notice
from limpet.queue.bell import RING_EVERY_S, Bell
from limpet.queue.closer import Closer
from limpet.queue.entry import (
    DURABLE_SCHEMA,
    ENTRY_BYTES_MAX,
    SCHEMA,
    Content,
    ControlRecord,
    EntryLease,
    PushShape,
    Receipt,
    SignalRecord,
    StepRecord,
    SweepRecord,
    is_of,
    lease_of,
    read_content,
)

__all__ = ["Journal", "NoJournal", "Notices", "Storage"]

SIGNAL_CHARS_MAX = 200
NOTICES_MAX = 1_000
EXACT_S = 3600.0
DROP_MARGIN_S = 5.0
RAW_BYTES_MAX = 2 * ENTRY_BYTES_MAX
"""How much of an unreadable object is kept."""
RECEIPT_CODEC = struct_codec(Receipt)
STEP_CODEC = struct_codec(StepRecord)
SIGNAL_CODEC = struct_codec(SignalRecord)
CONTROL_CODEC = struct_codec(ControlRecord)
SWEEP_CODEC = struct_codec(SweepRecord)
SHAPE_CODEC = struct_codec(PushShape)
Lived = TypeVar("Lived", StepRecord, SignalRecord)
"""What belongs to the life of a task."""


@lru_cache(maxsize=64)
def lease_codec(count: int) -> Codec[EntryLease]:
    """The codec of the leases of entries that have `count` tasks."""
    return Codec(
        EntryLease,
        None,
        lambda data, what: lease_of(data, count=count, what=what),
        lambda record: DURABLE_SCHEMA if record.durable or record.suspended else SCHEMA,
        DURABLE_SCHEMA,
    )


class Journal(Protocol):
    """Where a supervised node notes each push and each end before it takes effect (H8).

    `travels`: pushes and ends are exchanged with other places. Then a name may come back after it ended, so that every
    claim looks for a receipt.
    """

    travels: bool

    def pushed(self, key: Key, data: bytes) -> None:
        """A task or batch will be put there."""

    def ended(self, entry: str, batch: bool, key: Key, receipt: Receipt) -> None:
        """A receipt of the entry, or of one of its tasks, will be put there."""

    def held(self, queue: QueueKeys, entry: str, batch: bool) -> None:
        """A claim of the entry was renewed: it is worth telling the other places."""

    def foreign(self, found: Iterable[Stat]) -> Collection[str]:
        """The entries among those found that a worker in another place holds, as far as is known."""


class NoJournal:
    """The journal of a queue that is not synchronized with other places."""

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
    """Collects what the threads of this process met while they looked for work, until `take` is called."""

    def __init__(self, runtime: Runtime) -> None:
        self._mutex = runtime.mutex()
        self._notices: list[Notice] = []
        self._warned: set[str] = set()

    def failed(self, id_: str, note: str, count: int = 1) -> None:
        """Tasks were ended in failed/ without being run."""
        with self._mutex:
            self._notices = [*self._notices[1 - NOTICES_MAX :], Notice(id_, note, count)]

    def warn(self, id_: str, note: str) -> None:
        """Something could not be read, and was passed over. The same note is kept once."""
        with self._mutex:
            if note not in self._warned:
                if len(self._warned) >= NOTICES_MAX:
                    self._warned.clear()
                self._warned.add(note)
                self._notices = [*self._notices[1 - NOTICES_MAX :], Notice(id_, note)]

    def take(self) -> list[Notice]:
        """Return all notices, and forget them."""
        if not self._notices:
            return []
        with self._mutex:
            notices, self._notices = self._notices, []
        return notices


class Storage:
    """One queue in one store."""

    freed_listener: WeakMethod[Callable[..., None]] | None = None
    """Called when this process has suspended tasks of an entry. It is weak, since its object refers to this storage: a
    cycle would keep the files of an unused fleet open."""
    _exact_at_s: float | None = None
    code: str = ""
    """The version of the code by which this process handles the tasks; empty in one that handles none."""

    def __init__(
        self,
        store: Store,
        keys: QueueKeys,
        runtime: Runtime,
        journal: Journal | Callable[[], Journal | None] | None = None,
        epoch: int | Callable[[], int] = 0,
    ) -> None:
        self.store = store
        self.keys = keys
        self.runtime = runtime
        self._journal_of = journal
        self._epoch_of = epoch
        self.notices = Notices(runtime)
        self.watch = VersionWatch(runtime)
        """For how long this process has seen each lease."""
        self.closer = Closer(store, keys, runtime) if store.far else None
        self.bell = Bell(store, keys.bell, runtime) if store.far else None
        self._callers: dict[str, Bell] = {}

    @ComputedField
    def journal(self) -> Journal:
        """Where pushes and ends are noted. A function is called at the first use, which may cost a request."""
        journal = self._journal_of
        return (journal() if callable(journal) else journal) or NoJournal()

    @ComputedField
    def epoch(self) -> int:
        """How many restores lie before the fleet. A function is called at the first use, which may cost a request."""
        return self._epoch_of() if callable(self._epoch_of) else self._epoch_of

    def note_foreign(self) -> None:
        """Tell the worker that tasks of another program lie in the folder of this queue."""
        name, pending = self.keys.name, self.keys.pending
        self.notices.warn(
            "",
            f"{pending} has tasks of another program, which are left alone; stop that program, then "
            f"`limpet queue adopt {name} --quiesced` takes them over",
        )

    def check_steps(self) -> None:
        """Raises: Unsupported, if entries are exchanged with other nodes: steps and signals are not."""
        if self.journal.travels:
            raise Unsupported(
                f"queue {self.keys.name!r} is exchanged with other nodes, and steps are not",
                hint="keep durable tasks in a queue that is not supervised",
            )

    def ring(self) -> None:
        """Wake idle workers.   Cost: in a bucket 1 PUT, at most once a second."""
        if self.bell is not None:
            self.bell.ring()

    def wake(self, queue: str) -> None:
        """Wake the idle workers of another queue: a durable task of it may go on.

        Cost: 1 PUT; in a bucket at most once a second.
        """
        bell = self._callers.get(queue)
        with suppress(LimpetError):
            if bell is None:
                bell = self._callers[queue] = Bell(self.store, QueueKeys.of(queue).bell, self.runtime)
            bell.ring(every_s=RING_EVERY_S if self.store.far else 0.0)

    def exact_now(self) -> datetime:
        """The store's clock to within a round trip.   Cost: once an hour 1 PUT + 1 HEAD, else nothing."""
        at_s = self.runtime.elapsed_s()
        if self._exact_at_s is None or at_s - self._exact_at_s > EXACT_S:
            self._exact_at_s = at_s
            return self.store.now(max_age_s=-1.0)
        return self.store.now()

    def lease(self, entry: str) -> Cell[EntryLease]:
        """The lease of an entry."""
        codec = lease_codec(count_of(entry) if "-" in entry else 1)
        return Cell(self.store, self.keys.lease(entry), codec, self.runtime, deletable=True)

    def receipt(self, key: Key) -> Cell[Receipt]:
        """A receipt."""
        return Cell(self.store, key, RECEIPT_CODEC, self.runtime, deletable=True)

    def step(self, entry: str, n: int, number: int) -> Cell[StepRecord]:
        """A step of a task."""
        return Cell(self.store, self.keys.step(entry, n, number), STEP_CODEC, self.runtime, deletable=True)

    def signal(self, entry: str, n: int, name: str) -> Cell[SignalRecord]:
        """A signal to a task.   Raises: Invalid for an empty, unprintable or long name."""
        if isinstance(name, str) and len(name) > SIGNAL_CHARS_MAX:
            raise Invalid(
                f"the name of a signal has {many(len(name), 'character')}", hint=f"use at most {SIGNAL_CHARS_MAX}"
            )
        return Cell(self.store, self.keys.signal(entry, n, name), SIGNAL_CODEC, self.runtime, deletable=True)

    def put_first(
        self, cell: Cell[Lived], record: Lived, *, confirm: Callable[[], object] = lambda: None
    ) -> Outcome[Lived]:
        """Create a record of a life: the first one counts. One of another life is not there, and is replaced.

        `confirm` is called before that. It raises if the caller's own life may be over, and another one have begun: the
        record that was read is older than its answer, and only that one is replaced.
        Raises: as `Cell.attempt`; Conflict.
        Cost: 1 PUT, + 1 GET if there is one; 1 PUT more for each that is replaced.
        """
        seen: Versioned[Lived] | None = None
        for _ in attempts(self.runtime, pause_s=0):
            outcome = cell.attempt(seen, record)
            match outcome:
                case Replaced(_, now) | Lost(now) | Unclear(now) if not is_of(now.value.life, record.life):
                    confirm()
                    seen = now
                case _:
                    return outcome
        raise Conflict(f"other lives of its task keep writing {cell.key}", hint="try again")

    def steps_of(self, entry: str, n: int) -> dict[int, Key]:
        """The recorded steps of one task, by number.   Cost: 1 LIST."""
        found = ((parts_of_step(key), key) for key in self._of_task(self.keys.steps_of(entry), n))
        return {part[2]: key for part, key in found if part is not None and part[2] is not None}

    def signals_of(self, entry: str, n: int) -> list[Key]:
        """The signals to one task.   Cost: 1 LIST."""
        return [*self._of_task(self.keys.signals_of(entry), n)]

    def _of_task(self, folder: str, n: int) -> Iterator[Key]:
        after = f"{folder}/{n}."
        stats = takewhile(lambda stat: stat.key.startswith(after), self.store.list(folder, after=after))
        return (stat.key for stat in stats)

    def step_blobs(self, entry: str, n: int) -> dict[int, Blob | LimpetError]:
        """The recorded steps of one task, or why one cannot be read.   Cost: 1 LIST, 1 GET each, in bulk."""
        keys = self.steps_of(entry, n)
        blobs = self.store.get_many(keys.values())
        return {number: blobs[key] for number, key in keys.items()}

    def decoded_step(self, entry: str, n: int, number: int, blob: Blob | LimpetError) -> Versioned[StepRecord]:
        """The step in an answer of `step_blobs`.   Raises: the error that it is; Corrupt; Unsupported."""
        if isinstance(blob, LimpetError):
            raise blob
        return self.step(entry, n, number).decode(blob)

    def drop_steps_of(self, entry: str, n: int) -> None:
        """Remove the steps and signals of one task.   Cost: 2 LISTs, 1 DELETE each, in bulk."""
        self.store.delete_many([*self._of_task(self.keys.steps_of(entry), n), *self.signals_of(entry, n)])

    def drop_steps(self, entry: str, keep: Collection[int] = ()) -> None:
        """Remove the steps and signals of an ended entry, except those of the tasks to `keep`.

        Cost: 1 LIST, 1 DELETE each, in bulk.
        """
        stats = [*self.store.list(self.keys.steps_of(entry))]
        parts = ((parts_of_step(stat.key), stat.key) for stat in stats)
        self.store.delete_many([key for part, key in parts if part is not None and part[1] not in keep])

    def shape(self, name: str) -> Cell[PushShape]:
        """The shape of a push of many tasks."""
        return Cell(self.store, self.keys.shape(name), SHAPE_CODEC, self.runtime, deletable=True)

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

    def decoded_receipt(self, key: Key, blob: Blob | LimpetError) -> Versioned[Receipt]:
        """The receipt in an answer of `get_many`.   Raises: the error that it is; Corrupt; Unsupported."""
        if isinstance(blob, LimpetError):
            raise blob
        return self.receipt(key).decode(blob)

    def read_receipt(self, key: Key) -> Receipt | None:
        """A receipt; None if there is none, or none that can be read.   Cost: 1 GET."""
        try:
            seen = self.receipt(key).read()
        except (Corrupt, Unsupported):
            return None
        return seen.value if seen else None

    def own_receipts(self, folder: str, entry: str) -> set[int]:
        """The tasks of a batch that have a separate receipt in completed/ or failed/.   Cost: 1 LIST."""
        after = f"{folder}/{entry}."
        names = takewhile(lambda stat: stat.key.startswith(after), self.store.list(folder, after=after))
        return {part[1] for stat in names if (part := batch_of(name_of_receipt(stat.key)))}

    def write_receipt(self, entry: str, key: Key, receipt: Receipt, *, batch: bool) -> Receipt:
        """Put the receipt unless there is one already. Returns the one that is stored.

        An existing one that cannot be read ends the name all the same: then ours is returned.
        Raises: OutcomeUnknown, Unavailable: then nothing may be deleted.   Cost: 1 PUT, + 1 GET if there is one.
        """
        self.journal.ended(entry, batch, key, receipt)
        try:
            outcome = self.receipt(key).attempt(None, receipt)
        except (Corrupt, Unsupported) as error:
            self.notices.warn(entry, str(error))
            return receipt
        return outcome.seen.value if isinstance(outcome, Won) else outcome.now.value

    def sweeps(self) -> Cell[SweepRecord]:
        """When the queue was last swept, and for how long receipts were kept then."""
        return Cell(self.store, self.keys.sweep, SWEEP_CODEC, self.runtime)

    def paused(self) -> bool:
        """Whether an operator has paused the queue.   Raises: Corrupt; Unsupported.   Cost: 1 GET."""
        seen = self.control().read()
        return seen is not None and seen.value.paused

    def dropped_within(self, seconds: float) -> bool:
        """Whether the queue was dropped in that time, or is being dropped; no, where the role may not know.

        Cost: 1 GET, and 1 PUT + 1 HEAD for the store's clock if it was ever dropped.
        """
        try:
            seen = drop_cell(self.store, self.keys.drop, self.runtime).read()
        except (Corrupt, Denied, Unsupported):
            return False
        if seen is None or seen.modified is None or seen.value.stage is DropState.KEPT:
            return False
        age_s = (self.store.now(max_age_s=-1.0) - seen.modified).total_seconds()
        return seen.value.stage in BEGUN or age_s <= 1.1 * seconds + DROP_MARGIN_S

    def raw_bytes(self, key: Key) -> bytes:
        """The bytes of an object, not decoded: the first 16 MiB.   Raises: Missing.   Cost: 1 GET."""
        try:
            return self.store.get(key, range=(0, RAW_BYTES_MAX)).data
        except (Corrupt, Invalid):  # it is empty, so no byte is in that range; or it is no file
            return b""

    def kept_payload(self, entry: str, payload: bytes) -> Key | None:
        """Keep the bytes of a payload that is not JSON in a part object; None for one that a receipt can hold.

        Cost: 1 PUT, or nothing.
        """
        try:
            records.plain(records.decode(payload, Any, what="the payload"), what="the payload")
        except (Corrupt, Invalid):
            key = self.keys.part(entry, self.runtime.new_id())
            self.store.put(key, payload, when=Absent())
            return key
        return None

    def close(self, entry: str, *, batch: bool, steps: bool = False, keep: Collection[int] = ()) -> None:
        """Remove an entry that a receipt ends: the task, then the lease, so that a lease is never missed in between.

        `steps`: it has recorded steps, which go after the task and before the lease; those of the tasks to `keep` stay.
        In a bucket this happens in the background, soon. A delete that fails leaves the rest to the next claim or
        sweep.   Cost: 2 DELETEs (3 on a supervised node); for steps 1 LIST and 1 DELETE each more.
        """
        if self.closer is not None:
            self.closer.add(entry, batch=batch, after=partial(self.drop_steps, entry, keep) if steps else None)
            return
        if steps:
            with suppress(LimpetError):
                self.store.delete(self.keys.tasks(entry, batch=batch))
                self.drop_steps(entry, keep)
                self.store.delete(self.keys.lease(entry))
            return
        keys = [self.keys.tasks(entry, batch=batch), self.keys.lease(entry)]
        try:
            if self.journal.travels:
                keys.append(self.keys.remote(entry))
            self.store.delete_in_order(keys)
        except LimpetError:
            pass

    def drop_lease(self, entry: str) -> None:
        """Remove the lease of an entry that has no task any more; in a bucket a little later.   Cost: 1 DELETE."""
        if self.closer is not None:
            self.closer.add_lease(entry)
        else:
            self.store.delete(self.keys.lease(entry))

    def exists(self, key: Key) -> bool:
        """Whether there is such an object.   Cost: 1 HEAD."""
        return self.store.exists(key)
