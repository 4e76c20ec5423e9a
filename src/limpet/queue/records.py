"""What a queue writes: tasks, batches, the lease of an entry, receipts, control.

An entry is one task (`task.json`) or a batch (`tasks.jsonl`: a header line, then one payload a line). Length, digest
and schema are in what we write, so that a truncated or rotten file is recognised (F23).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from limpet import records
from limpet.errors import Corrupt, Invalid, Unsupported
from limpet.lease import LeaseRecord
from limpet.records import Count, Digest, Instant, Name, Positive, Text

SCHEMA = 1
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

Ended = Literal["completed", "failed", "cancelled", "retried"]

TaskNumber = Annotated[int, msgspec.Meta(ge=0, lt=BATCH_MAX)]
"""The place of a task in its entry, from 0; a single task is number 0."""
TaskNumbers = Annotated[list[TaskNumber], msgspec.Meta(max_length=BATCH_MAX)]
TaskCount = Annotated[int, msgspec.Meta(ge=1, le=BATCH_MAX)]
WaitSeconds = Annotated[float, msgspec.Meta(ge=0.0, le=DELAY_MAX_S)]
ByTask = msgspec.Meta(max_length=BATCH_MAX)
PartKeys = Annotated[list[Name], msgspec.Meta(max_length=10 * BATCH_MAX)]


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One task. `write_id` tells whose push it was; `retries` counts its earlier lives; `sha256` is the payload's.

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


class BatchHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a batch: how many payload lines follow, and the digest of them all."""

    schema: Positive = SCHEMA
    count: TaskCount
    sha256: Digest
    pushed_at: Instant
    write_id: Name


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failed attempt of a task: which, when, in which worker, and why."""

    attempt: Count
    at: Instant
    worker: Name
    error: Annotated[str, msgspec.Meta(max_length=ERROR_CHARS_MAX)]
    traceback: Annotated[str, msgspec.Meta(max_length=ATTEMPT_TRACE_CHARS_MAX)] | None = None


AttemptRecords = Annotated[list[AttemptRecord], msgspec.Meta(max_length=16)]


class EntryLease(LeaseRecord, frozen=True, kw_only=True, omit_defaults=True):
    """Who works on an entry, and how far its tasks are. Tasks are numbered from 0; a single task is number 0.

    Waits are seconds after this record's own LastModified: writer and reader need no common clock.
    """

    charged: Count = 1
    """Attempts of every task that `attempts` does not name. Limpet 0.1 wrote 1 with a first claim."""
    attempts: Annotated[dict[TaskNumber, Count], ByTask] = msgspec.field(default_factory=dict)
    running: TaskNumber | None = None
    """The task whose handler was started by the swap that wrote this."""
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
    contested: bool = False
    """Whether a claim of it was ever taken over from a holder that did not let go: it may still finish tasks."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of an entry, or of one task of a batch. `failed` lists a batch's failed tasks; all others are done."""

    state: Ended
    id: Text
    count: TaskCount = 1
    attempts: Count = 0
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
    raw: Name | None = None
    """The key of bytes that could not be read, kept as they were."""


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


def new_task(
    id_: str, payload: bytes, *, pushed_at: datetime, write_id: str, retries: int = 0, delayed: bool = False
) -> TaskRecord:
    """A task to be pushed."""
    return TaskRecord(
        id=id_,
        payload=msgspec.Raw(payload),
        sha256=hashlib.sha256(payload).hexdigest(),
        pushed_at=pushed_at,
        write_id=write_id,
        retries=retries,
        delayed=delayed,
    )


def payload_bytes(payload: Any, *, what: str = "the payload") -> bytes:
    """The payload as JSON.   Raises: Invalid for what JSON cannot hold, or more than 256 KiB (F32)."""
    data = records.plain_bytes(payload, what=what)
    if len(data) > PAYLOAD_BYTES_MAX:
        raise Invalid(
            f"{what} takes {len(data)} bytes; a task holds {PAYLOAD_BYTES_MAX}",
            hint="put the data into an object of its own and its name into the task",
        )
    return data


def result_bytes(result: Any) -> bytes:
    """A task's result as JSON.   Raises: Invalid."""
    data = records.plain_bytes(result, what="the result")
    if len(data) > RESULT_BYTES_MAX:
        raise Invalid(
            f"the result takes {len(data)} bytes; a receipt holds {RESULT_BYTES_MAX}",
            hint="put the data into an object of its own and its name into the result",
        )
    return data


def read_task(data: bytes, *, what: str) -> TaskRecord:
    """A task.   Raises: Corrupt; Unsupported for one that a newer Limpet wrote."""
    record = records.decode(data, TaskRecord, what=what)
    _check_schema(record.schema, what)
    if hashlib.sha256(record.payload).hexdigest() != record.sha256:
        raise Corrupt(f"{what} does not match its digest")
    return record


def lease_of(data: bytes, *, count: int, what: str) -> EntryLease:
    """The lease of an entry that has `count` tasks.   Raises: Corrupt, also if it tells of a task beyond them."""
    record = records.decode(data, EntryLease, what=what)
    if record.token > TOKEN_MAX:
        raise Corrupt(f"{what} has token {record.token}: no claim could have a higher one")
    told = (record.done, record.failed, record.attempts, record.waits, record.results, record.errors)
    highest = max((max(numbers) for numbers in told if numbers), default=0)
    if max(highest, record.running or 0) >= count:
        raise Corrupt(f"{what} tells of task {max(highest, record.running or 0)}; its entry has {count}")
    return record


def batch_bytes(payloads: Sequence[bytes], *, pushed_at: datetime, write_id: str) -> bytes:
    """The object of a batch."""
    body = b"\n".join(payloads)
    header = BatchHeader(
        count=len(payloads), sha256=hashlib.sha256(body).hexdigest(), pushed_at=pushed_at, write_id=write_id
    )
    return records.encode(header) + b"\n" + body


def batch_lines(data: bytes, *, what: str) -> tuple[BatchHeader, bytes]:
    """The header of a batch and its payload lines, one per task.   Raises: Corrupt; Unsupported."""
    first, _, body = data.partition(b"\n")
    header = records.decode(first, BatchHeader, what=what)
    _check_schema(header.schema, what)
    if body.count(b"\n") != header.count - 1:
        raise Corrupt(f"{what} is cut short: it should hold {header.count} tasks")
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise Corrupt(f"{what} does not match its digest")
    return header, body


def _check_schema(schema: int, what: str) -> None:
    if schema > SCHEMA:
        raise Unsupported(f"{what} has schema {schema}; this limpet reads up to {SCHEMA}")
