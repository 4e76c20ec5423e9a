"""The objects of one queue: what is in them, and the order in which they are written and deleted.

An entry is one task (`task.json`) or a batch (`tasks.jsonl`: a header line, then one payload a line), and its lease
while it is worked on. Length, digest and schema are in what we write, so that a truncated or rotten file is recognised
(F23). Entry names are single-use: a receipt ends one, and only an ended one is deleted, so no delete, however late, can
hit a newer object of the same name (F18). Nothing here decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache, partial
from itertools import takewhile
from typing import Annotated, Any, Literal, Protocol, TypeVar

import msgspec

from limpet import records
from limpet.cell import Cell, Codec, Lost, Outcome, Replaced, Unclear, Versioned, Won, struct_codec
from limpet.errors import Conflict, Corrupt, Invalid, LimpetError, Unsupported
from limpet.keys import (
    STEPS_MAX,
    Key,
    QueueKeys,
    batch_of,
    count_of,
    is_minted,
    name_of_receipt,
    parts_of_step,
)
from limpet.lease import LeaseRecord, VersionWatch
from limpet.queue.api import Notice
from limpet.queue.api import Outcome as TaskOutcome
from limpet.queue.bell import RING_EVERY_S, Bell
from limpet.queue.closer import Closer
from limpet.records import Count, Digest, Instant, Name, Positive, Seconds, Text
from limpet.runtime import Runtime
from limpet.store.api import Absent, Blob, Stat, Store
from limpet.tracing import TraceOrUnset

SCHEMA = 1
DURABLE_SCHEMA = 2
"""That of the lease of a task which has recorded steps, and of a retry that keeps some: a worker that does not know
steps must not run it."""
PAYLOAD_BYTES_MAX = 256 * 1024
RESULT_BYTES_MAX = 256 * 1024
BATCH_MAX = 1000
ENTRY_BYTES_MAX = 8 * 1024 * 1024
DELAY_MAX_S = 366 * 86400.0
ERROR_CHARS_MAX = 2_000
NOTHING = msgspec.Raw(b"null")

TOKEN_MAX = 1 << 50
ATTEMPTS_KEPT = 3
"""Of how many failed attempts of a task the error is kept in its lease."""
ATTEMPT_TRACE_CHARS_MAX = 2048

REPLACE_TRIES_MAX = 10

Ended = Literal["completed", "failed", "cancelled", "retried"]

TaskNumber = Annotated[int, msgspec.Meta(ge=0, lt=BATCH_MAX)]
"""The place of a task in its entry, from 0; a single task is number 0."""
TaskNumbers = Annotated[list[TaskNumber], msgspec.Meta(max_length=BATCH_MAX)]
TaskCount = Annotated[int, msgspec.Meta(ge=1, le=BATCH_MAX)]
WaitSeconds = Annotated[float, msgspec.Meta(ge=0.0, le=DELAY_MAX_S)]
ByTask = msgspec.Meta(max_length=BATCH_MAX)
NameOrUnset = Name | msgspec.UnsetType
PartKeys = Annotated[list[Name], msgspec.Meta(max_length=10 * BATCH_MAX)]


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One task. `write_id` identifies the push; `retries` counts the runs that it retries; `sha256` is the payload's.

    `delayed`: it was scheduled first, so it may be made pending more than once.
    """

    schema: Positive = SCHEMA
    id: Text
    payload: msgspec.Raw
    sha256: Digest
    pushed_at: Instant
    write_id: Name
    retries: Count = 0
    delayed: bool = False
    trace: TraceOrUnset = msgspec.UNSET
    """The trace that its push belongs to. Limpet 0.1 does not know it, nor what follows."""
    origin: NameOrUnset = msgspec.UNSET
    """Of a retry that has no `life`: what the names of its pushes are derived from, which ends in `@` and the write id
    of the first push. Written before there were lives."""
    caller: NameOrUnset = msgspec.UNSET
    """The queue of the durable task that pushed it. That queue's workers are woken when it ends."""
    life: NameOrUnset = msgspec.UNSET
    """The life that it goes on with, as a retry; that of any other task is its `write_id`."""
    epoch: Count | msgspec.UnsetType = msgspec.UNSET
    """The fleet's epoch at its push, if not 0."""


class BatchHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a batch: how many payload lines follow, and the digest of them all."""

    schema: Positive = SCHEMA
    count: TaskCount
    sha256: Digest
    pushed_at: Instant
    write_id: Name
    trace: TraceOrUnset = msgspec.UNSET
    named: bool | msgspec.UnsetType = msgspec.UNSET
    """Its name is derived from an id, so it may have ended before. Limpet 0.1 does not know it, nor what follows."""
    caller: NameOrUnset = msgspec.UNSET
    epoch: Count | msgspec.UnsetType = msgspec.UNSET
    """As that of a task."""


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failed attempt of a task: which, when, in which worker, and why."""

    attempt: Count
    at: Instant
    worker: Name
    error: Annotated[str, msgspec.Meta(max_length=ERROR_CHARS_MAX)]
    traceback: Annotated[str, msgspec.Meta(max_length=ATTEMPT_TRACE_CHARS_MAX)] | None = None


AttemptRecords = Annotated[list[AttemptRecord], msgspec.Meta(max_length=16)]


AWAITS_MAX = 100
REASON_CHARS_MAX = 300
SIGNAL_CHARS_MAX = 200
PUSHED_ENTRIES_MAX = 20_000
GATHER_MAX = 10_000
StepNumber = Annotated[int, msgspec.Meta(ge=0, lt=STEPS_MAX)]


class Suspension(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a task does not run, and what it waits for. Times in seconds count from the lease's own LastModified."""

    reason: Annotated[str, msgspec.Meta(max_length=REASON_CHARS_MAX)]
    step: StepNumber
    since: Instant
    """When it was first suspended at this step, by the clock of that worker. A label."""
    waited_s: WaitSeconds = 0.0
    """How long it has waited at this step: the base of the back-off."""
    due_s: WaitSeconds | None = None
    """When it runs again whatever it waits for; None if no time was set."""
    awaits: Annotated[list[Name], msgspec.Meta(max_length=AWAITS_MAX)] = msgspec.field(default_factory=list)
    """The keys of some of the entries that it waits for. Each is deleted soon after the entry has ended."""
    signal: Name | None = None
    """The name of the signal that it waits for."""
    life: Name | None = None
    """The life of a task that waits for a signal: one to another life is not there."""


class EntryLease(LeaseRecord, frozen=True, kw_only=True, omit_defaults=True):
    """Who works on an entry, and how far its tasks are. Tasks are numbered from 0; a single task is number 0.

    Waits are seconds after this record's own LastModified: writer and reader need no common clock.
    """

    charged: Count = 1
    """Attempts of every task that `attempts` does not name. Limpet 0.1 wrote 1 with a first claim."""
    attempts: Annotated[dict[TaskNumber, Count], ByTask] = msgspec.field(default_factory=dict)
    running: TaskNumber | None = None
    """A task that runs, as far as the lease knows: started by the swap that named it, or before a first claim's."""
    beside: TaskNumbers = msgspec.field(default_factory=list)
    """The tasks that run beside `running`. Limpet 0.1 does not know them; `attempts` counts each."""
    suspects: TaskNumbers = msgspec.field(default_factory=list)
    """The tasks that ran when a holder died, and have had no verdict since: each is run alone."""
    done: TaskNumbers = msgspec.field(default_factory=list)
    failed: TaskNumbers = msgspec.field(default_factory=list)
    waits: Annotated[dict[TaskNumber, WaitSeconds], ByTask] = msgspec.field(default_factory=dict)
    wait_s: WaitSeconds = 0.0
    """How long a free entry rests."""
    results: Annotated[dict[TaskNumber, msgspec.Raw], ByTask] = msgspec.field(default_factory=dict)
    parts: PartKeys = msgspec.field(default_factory=list)
    error: Text | None = None
    """The last error of a single task. Limpet 0.1 wrote that of any task of a batch, too."""
    errors: Annotated[dict[TaskNumber, AttemptRecords], ByTask] = msgspec.field(default_factory=dict)
    """The last failed attempts of the tasks that have not ended, oldest first."""
    settled: Count = 0
    """How many of `done`, the first ones, were done by the first claim: `first_done`."""
    contested: bool = False
    """Whether a claim of it was ever taken over from a holder that did not let go: it may still finish tasks."""
    suspended: Annotated[dict[TaskNumber, Suspension], ByTask] = msgspec.field(default_factory=dict)
    """The tasks that have suspended themselves; each is in `waits` too."""
    durable: TaskNumbers = msgspec.field(default_factory=list)
    """The tasks that have recorded steps, as far as the lease knows."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of an entry, or of one task of a batch. `failed` lists a batch's failed tasks; all others are done."""

    state: Ended
    id: Text
    count: TaskCount = 1
    attempts: Count = 0
    """Of a batch: the most that one of its tasks took."""
    tried: Annotated[dict[TaskNumber, Count], ByTask] = msgspec.field(default_factory=dict)
    """The attempts of the tasks of a batch that took more than one. Limpet 0.1 did not write them."""
    token: Count = 0
    worker_id: Name = ""
    label: Name = ""
    pushed_at: Instant | None = None
    finished_at: Instant
    payload: msgspec.Raw = NOTHING
    result: msgspec.Raw = NOTHING
    error: Text | None = None
    traceback: Text | None = None
    errors: AttemptRecords = msgspec.field(default_factory=list)
    """The last failed attempts, oldest first, with the one that ended the task. Empty if that was the only one."""
    failed: TaskNumbers = msgspec.field(default_factory=list)
    results: Annotated[dict[TaskNumber, msgspec.Raw], ByTask] = msgspec.field(default_factory=dict)
    parts: PartKeys = msgspec.field(default_factory=list)
    own: TaskNumbers = msgspec.field(default_factory=list)
    """Tasks of a batch whose own receipts stood before this one, and count."""
    retries: Count = 0
    retried_as: Text | None = None
    """The id of its retry. Of a task that is still failed: the only id that a retry may have."""
    raw: Name | None = None
    """The key of bytes that could not be read, kept as they were."""
    origin: Name | None = None
    """Set if the task may have recorded steps: what the names of its pushes are derived from."""
    life: Name | None = None
    """Of one task: its life. Receipts that were written before there were lives have none."""


StepKind = Literal["step", "push", "sleep", "timer", "gather", "signal", "version"]


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of a durable task. It is created once and never rewritten: the first record counts."""

    kind: StepKind
    name: Name
    token: Annotated[int, msgspec.Meta(ge=0, le=TOKEN_MAX)]
    label: Name = ""
    """The worker that recorded it."""
    began_at: Instant
    at: Instant
    """When it began and when it was recorded, by that worker's clock. Labels."""
    value: msgspec.Raw = NOTHING
    wait_s: WaitSeconds = 0.0
    """Of a sleep or a timer: how long after this record's LastModified it is due."""
    sha256: Digest | None = None
    """Of a step or a push: of its arguments. Earlier versions did not record it."""
    life: Name | None = None
    """The life of its task. One without belongs to the task that has its entry's name."""


class PushedStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a push of a durable task has made: one task, or entries of several."""

    id: Text | None = None
    created: bool = True
    entries: Annotated[list[Name], msgspec.Meta(max_length=PUSHED_ENTRIES_MAX)] = msgspec.field(default_factory=list)


class GatheredTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an awaited task had ended, or that it had not when the time was up."""

    state: TaskOutcome
    value: msgspec.Raw = NOTHING
    error: Annotated[str, msgspec.Meta(max_length=ERROR_CHARS_MAX)] | None = None
    attempts: Count = 0
    worker: Name | None = None


class GatheredStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ends of the tasks that a durable task has waited for, in their order.

    `values`: whether the results are here. If they were too large, completed tasks are asked for them again, which
    never change.
    """

    tasks: Annotated[list[GatheredTask], msgspec.Meta(max_length=GATHER_MAX)]
    values: bool = True
    sha256: Digest | None = None
    """Of the queues and ids of the tasks, in their order."""


class SignalStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of a signal that a durable task has waited for; `came` is False if the time was up first."""

    value: msgspec.Raw = NOTHING
    came: bool = True


class SignalRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A signal to a durable task. It is created once: the first of a name counts."""

    name: Name
    at: Instant
    label: Name = ""
    value: msgspec.Raw = NOTHING
    life: Name | None = None
    """As that of a step."""


Lived = TypeVar("Lived", StepRecord, SignalRecord)
"""What belongs to the life of a task."""


def is_of(recorded: str | None, life: str | None) -> bool:
    """Whether an object in which that life is recorded belongs to the task of this life. One without a life does."""
    return recorded is None or recorded == life


class PushShape(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks a push with an id had, and how they were put into entries. It is created once, before the entries:
    their names are derived from the id and end in the number of their tasks, so that another shape has other names.
    """

    id: Text
    tasks: Count
    entries: Count
    sha256: Digest
    """Of the number of tasks of each entry, in order."""
    at: Instant


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Results that are too large for a lease record, by the number of their task."""

    schema: Positive = SCHEMA
    results: Annotated[dict[TaskNumber, msgspec.Raw], ByTask]


class ControlRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator has set."""

    paused: bool = False


class SweepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """When a sweep was last begun; it lasts until another one takes its turn."""

    worker_id: Name
    begun_at: Instant
    retained_at: Instant
    retention_s: Seconds | msgspec.UnsetType | None = msgspec.UNSET
    """For how long receipts are kept by the process that took the turn; None: for ever. Limpet 0.1 did not write it."""


def new_task(
    id_: str,
    payload: bytes,
    *,
    pushed_at: datetime,
    write_id: str,
    retries: int = 0,
    delayed: bool = False,
    trace: str = "",
    caller: str = "",
    life: str = "",
    epoch: int = 0,
    has_steps: bool = False,
) -> TaskRecord:
    """A task to be pushed. `has_steps`: it is a retry that keeps recorded steps."""
    return TaskRecord(
        schema=DURABLE_SCHEMA if has_steps else SCHEMA,
        id=id_,
        payload=msgspec.Raw(payload),
        sha256=hashlib.sha256(payload).hexdigest(),
        pushed_at=pushed_at,
        write_id=write_id,
        retries=retries,
        delayed=delayed,
        trace=trace or msgspec.UNSET,
        caller=caller or msgspec.UNSET,
        life=life or msgspec.UNSET,
        epoch=epoch or msgspec.UNSET,
    )


def payload_bytes(payload: Any, *, what: str = "the payload") -> bytes:
    """The payload as JSON.   Raises: Invalid for what JSON cannot hold, or more than 256 KiB (F32)."""
    data = records.plain_bytes(payload, what=what)
    if len(data) > PAYLOAD_BYTES_MAX:
        raise Invalid(
            f"{what} takes {len(data)} bytes; a task holds {PAYLOAD_BYTES_MAX}",
            hint="put the data into a separate object, and its name into the task",
        )
    return data


def value_bytes(value: Any, what: str) -> bytes:
    """The value of a step or a signal as JSON.   Raises: Invalid for what JSON cannot hold, or more than 256 KiB."""
    try:
        return payload_bytes(records.builtins(value), what=what)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(
            f"{what} cannot be written as JSON: {error}",
            hint="use plain values, dataclasses, msgspec structs, datetimes or enums",
        ) from None


def encoded_payload(payload: Any, payload_type: Any) -> bytes:
    """The payload as JSON, checked against the queue's type (None: any dict).   Raises: Invalid."""
    if payload_type is not None:
        try:
            payload = records.builtins(payload)
            records.converted(payload, payload_type, str_keys=True)
        except (TypeError, ValueError) as error:
            raise Invalid(f"the payload is no {getattr(payload_type, '__name__', payload_type)}: {error}") from None
    elif not isinstance(payload, dict):
        raise Invalid(f"a payload is a dict, not {type(payload).__name__}", hint="or give the queue a payload_type=")
    return payload_bytes(payload)


def result_bytes(result: Any) -> bytes:
    """A task's result as JSON.   Raises: Invalid."""
    data = records.plain_bytes(result, what="the result")
    if len(data) > RESULT_BYTES_MAX:
        raise Invalid(
            f"the result takes {len(data)} bytes; a receipt holds {RESULT_BYTES_MAX}",
            hint="put the data into a separate object, and its name into the result",
        )
    return data


class ForeignTask(Unsupported):
    """A task that another program wrote: it is left alone until it is adopted."""

    default_hint = "stop that program, then `limpet queue adopt QUEUE --quiesced` takes its tasks over"


def read_task(data: bytes, *, what: str) -> TaskRecord:
    """A task.   Raises: Corrupt; Unsupported for one that a newer Limpet wrote; ForeignTask."""
    try:
        record = records.decode(data, TaskRecord, what=what)
    except Corrupt:
        if records.is_foreign(data):
            raise ForeignTask(f"{what} is a task of another program") from None
        raise
    _check_schema(record.schema, what, DURABLE_SCHEMA)
    if hashlib.sha256(record.payload).hexdigest() != record.sha256:
        raise Corrupt(f"{what} does not match its digest")
    return record


def lease_of(data: bytes, *, count: int, what: str) -> EntryLease:
    """The lease of an entry that has `count` tasks.   Raises: Corrupt, also if it names a task beyond them."""
    record = records.decode(data, EntryLease, what=what)
    if record.token >= TOKEN_MAX:
        raise Corrupt(f"{what} has token {record.token}: no claim could have a higher one")
    numbered = (
        *(record.done, record.failed, record.attempts, record.waits, record.results, record.errors),
        *(record.beside, record.suspects, record.suspended, record.durable),
    )
    highest = max((max(numbers) for numbers in numbered if numbers), default=0)
    if max(highest, record.running or 0) >= count:
        raise Corrupt(f"{what} names task {max(highest, record.running or 0)}; its entry has {count}")
    return record


def batch_bytes(
    payloads: Sequence[bytes],
    *,
    pushed_at: datetime,
    write_id: str,
    trace: str = "",
    named: bool = False,
    caller: str = "",
    epoch: int = 0,
) -> bytes:
    """The object of a batch."""
    body = b"\n".join(payloads)
    header = BatchHeader(
        count=len(payloads),
        sha256=hashlib.sha256(body).hexdigest(),
        pushed_at=pushed_at,
        write_id=write_id,
        trace=trace or msgspec.UNSET,
        named=named or msgspec.UNSET,
        caller=caller or msgspec.UNSET,
        epoch=epoch or msgspec.UNSET,
    )
    return records.encode(header) + b"\n" + body


def batch_lines(data: bytes, *, what: str) -> tuple[BatchHeader, bytes]:
    """The header of a batch and its payload lines, one per task.   Raises: Corrupt; Unsupported."""
    first, _, body = data.partition(b"\n")
    header = records.decode(first, BatchHeader, what=what)
    _check_schema(header.schema, what, SCHEMA)
    if body.count(b"\n") != header.count - 1:
        raise Corrupt(f"{what} is cut short: it should hold {header.count} tasks")
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise Corrupt(f"{what} does not match its digest")
    return header, body


def _check_schema(schema: int, what: str, most: int) -> None:
    if schema > most:
        raise Unsupported(f"{what} has schema {schema}; this limpet reads up to {most}")


@lru_cache(maxsize=64)
def lease_codec(count: int) -> Codec[EntryLease]:
    """The codec of the leases of entries that have `count` tasks."""
    return Codec(
        EntryLease,
        lambda record: record,
        lambda data, what: lease_of(data, count=count, what=what),
        lambda record: DURABLE_SCHEMA if record.durable or record.suspended else SCHEMA,
        DURABLE_SCHEMA,
    )


NOTICES_MAX = 1_000
EXACT_S = 3600.0
RAW_BYTES_MAX = 2 * ENTRY_BYTES_MAX
"""How much of an unreadable object is kept."""
RECEIPT_CODEC = struct_codec(Receipt)
STEP_CODEC = struct_codec(StepRecord)
SIGNAL_CODEC = struct_codec(SignalRecord)
CONTROL_CODEC = struct_codec(ControlRecord)
SWEEP_CODEC = struct_codec(SweepRecord)
SHAPE_CODEC = struct_codec(PushShape)


class Content(msgspec.Struct, frozen=True):
    """The tasks of an entry: the payload of each as JSON, when they were pushed, and how often they were retried.

    `minted`: the name was made for this one push, so nothing of it can have ended before it was first claimed. `life`:
    that which a retry goes on with; `has_steps`: it keeps recorded ones.
    """

    ids: Sequence[str]
    payloads: Sequence[bytes]
    pushed_at: datetime
    retries: int
    minted: bool
    trace: str = ""
    origin: str = ""
    caller: str = ""
    write_id: str = ""
    life: str = ""
    epoch: int = 0
    has_steps: bool = False


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


def task_name(entry: str, n: int, *, batch: bool) -> str:
    """The name of task `n` of an entry, as receipts have it."""
    return f"{entry}.{n}" if batch else entry


class Storage:
    """One queue in one store."""

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
        self._journal = journal
        self._epoch = epoch
        self.notices = Notices(runtime)
        self.watch = VersionWatch(runtime)
        """For how long this process has seen each lease."""
        self._exact_at_s: float | None = None
        self.closer = Closer(store, keys, runtime) if store.far else None
        self.bell = Bell(store, keys.bell, runtime) if store.far else None
        self._callers: dict[str, Bell] = {}

    @property
    def journal(self) -> Journal:
        """Where pushes and ends are noted. A function is called at the first use, which may cost a request."""
        if self._journal is None or callable(self._journal):
            self._journal = (self._journal and self._journal()) or NoJournal()
        return self._journal

    @property
    def epoch(self) -> int:
        """How many restores lie before the fleet. A function is called at the first use, which may cost a request."""
        if callable(self._epoch):
            self._epoch = self._epoch()
        return self._epoch

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
        return Cell(self.store, self.keys.lease(entry), lease_codec(count_of(entry)), self.runtime, deletable=True)

    def receipt(self, key: Key) -> Cell[Receipt]:
        """A receipt."""
        return Cell(self.store, key, RECEIPT_CODEC, self.runtime, deletable=True)

    def step(self, entry: str, n: int, number: int) -> Cell[StepRecord]:
        """A step of a task."""
        return Cell(self.store, self.keys.step(entry, n, number), STEP_CODEC, self.runtime, deletable=True)

    def signal(self, entry: str, n: int, name: str) -> Cell[SignalRecord]:
        """A signal to a task.   Raises: Invalid for an empty, unprintable or long name."""
        if isinstance(name, str) and len(name) > SIGNAL_CHARS_MAX:
            raise Invalid(f"the name of a signal has {len(name)} characters", hint=f"use at most {SIGNAL_CHARS_MAX}")
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
        for _ in range(REPLACE_TRIES_MAX):
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
        match outcome:
            case Won(seen):
                return seen.value
            case Replaced(_, now) | Lost(now) | Unclear(now):
                return now.value

    def sweeps(self) -> Cell[SweepRecord]:
        """When the queue was last swept, and for how long receipts were kept then."""
        return Cell(self.store, self.keys.sweep, SWEEP_CODEC, self.runtime)

    def paused(self) -> bool:
        """Whether an operator has paused the queue.   Raises: Corrupt; Unsupported.   Cost: 1 GET."""
        seen = self.control().read()
        return seen is not None and seen.value.paused

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
        with suppress(LimpetError):
            if self.journal.travels:
                keys.append(self.keys.remote(entry))
            self.store.delete_in_order(keys)

    def drop_lease(self, entry: str) -> None:
        """Remove the lease of an entry that has no task any more; in a bucket a little later.   Cost: 1 DELETE."""
        if self.closer is not None:
            self.closer.add_lease(entry)
        else:
            self.store.delete(self.keys.lease(entry))

    def exists(self, key: Key) -> bool:
        """Whether there is such an object.   Cost: 1 HEAD."""
        return self.store.exists(key)


def read_content(blob: Blob, entry: str, *, batch: bool, what: str) -> Content:
    """The tasks in an object that was read.   Raises: Corrupt; Unsupported."""
    if blob.size > ENTRY_BYTES_MAX:
        raise Corrupt(f"{what} has {blob.size} bytes, more than the {ENTRY_BYTES_MAX} that an entry may have")
    if not batch:
        task = read_task(blob.data, what=what)
        minted = is_minted(entry) and not task.delayed
        told = (task.trace or "", task.origin or "", task.caller or "", task.write_id, task.life or "", task.epoch or 0)
        has_steps = task.schema == DURABLE_SCHEMA or bool(task.origin)
        return Content((task.id,), (bytes(task.payload),), task.pushed_at, task.retries, minted, *told, has_steps)
    header, body = batch_lines(blob.data, what=what)
    if header.count != count_of(entry):
        raise Corrupt(f"{what} holds {header.count} tasks; its name says {count_of(entry)}")
    ids = [f"{entry}.{n}" for n in range(header.count)]
    told = (header.trace or "", "", header.caller or "", header.write_id, "", header.epoch or 0)
    return Content(ids, body.split(b"\n"), header.pushed_at, 0, not header.named, *told)
