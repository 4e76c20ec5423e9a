"""The objects of one queue: what is in them.

An entry is one task (`task.json`) or a batch (`tasks.jsonl`: a header line, then one payload a line), and its lease
while it is worked on. Length, digest and schema are in what we write, so that a truncated or rotten file is recognised
(F23). Entry names are single-use: a receipt ends one, and only an ended one is deleted, so no delete, however late, can
hit a newer object of the same name (F18). Nothing here decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid, Unsupported
from limpet.kernel.keys import STEPS_MAX, count_of, is_minted
from limpet.kernel.lease import LeaseRecord
from limpet.kernel.records import Count, Digest, Instant, Name, Positive, Seconds, Text
from limpet.kernel.store.api import Blob
from limpet.kernel.wording import an, many
from limpet.queue.api import Outcome as TaskOutcome
from limpet.queue.tracing import TraceOrUnset

SCHEMA = 1
DURABLE_SCHEMA = 2
"""That of the lease of a task which has recorded steps, and of a retry that keeps some: a worker that does not know
steps must not run it."""
PAYLOAD_BYTES_MAX = 256 * 1024
RESULT_BYTES_MAX = 256 * 1024
KEPT_PAYLOAD_BYTES_MAX = 4 * 1024
KEPT_PAYLOADS_BYTES_MAX = 64 * 1024
"""So much of the payloads of a batch stays in its receipt."""
BATCH_MAX = 1000
ENTRY_BYTES_MAX = 8 * 1024 * 1024
DELAY_MAX_S = 366 * 86400.0
ERROR_CHARS_MAX = 2_000
NOTHING = msgspec.Raw(b"null")

TOKEN_MAX = 1 << 50
ATTEMPTS_KEPT = 3
"""Of how many failed attempts of a task the error is kept in its lease."""
ATTEMPT_TRACE_CHARS_MAX = 2048


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
    parent: NameOrUnset = msgspec.UNSET
    """The durable task of the queue `caller` that pushed it, and the number of the step: `<id>#<number>`."""


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
    parent: NameOrUnset = msgspec.UNSET
    """As those of a task."""


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
PUSHED_ENTRIES_MAX = 20_000
GATHER_MAX = 10_000
PARENT_MARK = "#"
StepNumber = Annotated[int, msgspec.Meta(ge=0, lt=STEPS_MAX)]
CODES_MAX = 4
"""Of how many versions of a task's code its suspension says that they do not fit."""
CodeName = Annotated[str, msgspec.Meta(max_length=64)]


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
    codes: Annotated[list[CodeName], msgspec.Meta(max_length=CODES_MAX)] = msgspec.field(default_factory=list)
    """Set while it waits for code that fits its recorded steps: the versions of the code that do not. It has no
    `due_s`, by which an earlier version would take it for a sleep: the entry rests, and is tried again then."""


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
    began_at: Instant | None = None
    """When the handler of the last attempt was started, by the clock of its worker. A label."""
    took: Annotated[dict[TaskNumber, Seconds], ByTask] = msgspec.field(default_factory=dict)
    """Of a batch: how long the handlers of tasks took that its last claim has completed."""
    payloads: Annotated[dict[TaskNumber, msgspec.Raw], ByTask] = msgspec.field(default_factory=dict)
    """Of a batch: the payloads of its tasks, as far as there is room: `kept_payloads`."""
    durable: bool = False
    """Whether claims have written histories of its steps."""
    caller: Name | None = None
    parent: Name | None = None
    """As those of the task."""


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
    by: Name = ""
    sent_at: Instant | None = None
    """Who sent it, and when, as the signal says. Earlier versions did not record it."""


class SignalRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A signal to a durable task. It is created once: the first of a name counts."""

    name: Name
    at: Instant
    label: Name = ""
    """Who sent it: the process, or `user@host` of a command."""
    value: msgspec.Raw = NOTHING
    life: Name | None = None
    """As that of a step."""


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
    dropping: bool | msgspec.UnsetType = msgspec.UNSET
    """Set while the queue is being dropped: whether it was paused before. It is paused too, for older workers."""


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
    parent: str = "",
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
        parent=parent or msgspec.UNSET,
    )


def payload_bytes(payload: Any, *, what: str = "the payload") -> bytes:
    """The payload as JSON.   Raises: Invalid for what JSON cannot hold, or more than 256 KiB (F32)."""
    data = records.plain_bytes(payload, what=what)
    if len(data) > PAYLOAD_BYTES_MAX:
        raise Invalid(
            f"{what} takes {many(len(data), 'byte')}; a task holds {PAYLOAD_BYTES_MAX:,}",
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
        raise Invalid(
            f"a payload is a dict, not {an(type(payload).__name__)}", hint="or give the queue a payload_type="
        )
    return payload_bytes(payload)


def result_bytes(result: Any) -> bytes:
    """A task's result as JSON.   Raises: Invalid."""
    data = records.plain_bytes(result, what="the result")
    if len(data) > RESULT_BYTES_MAX:
        raise Invalid(
            f"the result takes {many(len(data), 'byte')}; a receipt holds {RESULT_BYTES_MAX:,}",
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
    parent: str = "",
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
        parent=parent or msgspec.UNSET,
    )
    return records.encode(header) + b"\n" + body


def batch_lines(data: bytes, *, what: str) -> tuple[BatchHeader, bytes]:
    """The header of a batch and its payload lines, one per task.   Raises: Corrupt; Unsupported."""
    first, _, body = data.partition(b"\n")
    header = records.decode(first, BatchHeader, what=what)
    _check_schema(header.schema, what, SCHEMA)
    if body.count(b"\n") != header.count - 1:
        raise Corrupt(f"{what} is cut short: it should hold {many(header.count, 'task')}")
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise Corrupt(f"{what} does not match its digest")
    return header, body


def _check_schema(schema: int, what: str, most: int) -> None:
    if schema > most:
        raise Unsupported(f"{what} has schema {schema}; this limpet reads up to {most}")


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
    parent: str = ""
    has_steps: bool = False


def kept_payloads(payloads: Sequence[bytes]) -> dict[int, msgspec.Raw]:
    """The payloads that the receipt of a batch keeps: those of the first tasks that fit into 64 KiB, of 4 KiB at most.

    One that is no JSON would make the receipt unreadable.
    """
    kept: dict[int, msgspec.Raw] = {}
    room = KEPT_PAYLOADS_BYTES_MAX
    for n, payload in enumerate(payloads):
        room -= len(payload) + 8
        if room < 0:
            break
        if len(payload) <= KEPT_PAYLOAD_BYTES_MAX and _is_json(payload):
            kept[n] = msgspec.Raw(payload)
    return kept


_RAW = records.decoder(msgspec.Raw)


def _is_json(data: bytes) -> bool:
    try:
        _RAW.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


def task_name(entry: str, n: int, *, batch: bool) -> str:
    """The name of task `n` of an entry, as receipts have it."""
    return f"{entry}.{n}" if batch else entry


def read_content(blob: Blob, entry: str, *, batch: bool, what: str) -> Content:
    """The tasks in an object that was read.   Raises: Corrupt; Unsupported."""
    if blob.size > ENTRY_BYTES_MAX:
        raise Corrupt(f"{what} has {many(blob.size, 'byte')}, more than the {ENTRY_BYTES_MAX:,} that an entry may have")
    if not batch:
        task = read_task(blob.data, what=what)
        minted = is_minted(entry) and not task.delayed
        told = (task.trace or "", task.origin or "", task.caller or "", task.write_id, task.life or "", task.epoch or 0)
        parent, has_steps = task.parent or "", task.schema == DURABLE_SCHEMA or bool(task.origin)
        payloads = (bytes(task.payload),)
        return Content((task.id,), payloads, task.pushed_at, task.retries, minted, *told, parent, has_steps)
    header, body = batch_lines(blob.data, what=what)
    if header.count != count_of(entry):
        raise Corrupt(f"{what} holds {many(header.count, 'task')}; its name says {count_of(entry)}")
    ids = [f"{entry}.{n}" for n in range(header.count)]
    about = header.trace or "", "", header.caller or "", header.write_id, "", header.epoch or 0, header.parent or ""
    return Content(ids, body.split(b"\n"), header.pushed_at, 0, not header.named, *about)
