"""What a queue writes: tasks, batches, the lease of an entry, receipts, control.

An entry is one task (`task.json`) or a batch (`tasks.jsonl`: a header line, then one payload a line). Length, digest
and schema are in what we write, so that a truncated or rotten file is recognised (F23).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from limpet import records
from limpet.errors import Corrupt, Invalid, Unsupported
from limpet.lease import LeaseRecord
from limpet.lease.decide import TTL_MAX_S

__all__ = [
    "BATCH_MAX",
    "DELAY_MAX_S",
    "PAYLOAD_BYTES_MAX",
    "BatchHeader",
    "ControlRecord",
    "Ended",
    "EntryLease",
    "Part",
    "Receipt",
    "SweepRecord",
    "TaskRecord",
    "batch_bytes",
    "batch_lines",
    "new_task",
    "payload_bytes",
    "read_task",
    "result_bytes",
]

SCHEMA = 1
PAYLOAD_BYTES_MAX = 256 * 1024
RESULT_BYTES_MAX = 256 * 1024
BATCH_MAX = 1000
ENTRY_BYTES_MAX = 8 * 1024 * 1024
DELAY_MAX_S = 366 * 86400.0
NOTHING = msgspec.Raw(b"null")

Ended = Literal["completed", "failed", "cancelled", "retried"]


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One task. `write_id` tells whose push it was; `retries` counts its earlier lives; `sha256` is the payload's.

    `delayed`: it was scheduled first, so it may be made pending more than once.
    """

    schema: int = SCHEMA
    id: str
    payload: msgspec.Raw
    sha256: str
    pushed_at: datetime
    write_id: str
    retries: int = 0
    delayed: bool = False


class BatchHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a batch: how many payload lines follow, and the digest of them all."""

    schema: int = SCHEMA
    count: int
    sha256: str
    pushed_at: datetime
    write_id: str


class EntryLease(LeaseRecord, frozen=True, kw_only=True, omit_defaults=True):
    """Who works on an entry, and how far its tasks are. Tasks are numbered from 0; a single task is number 0.

    Waits are seconds after this record's own LastModified: writer and reader need no common clock.
    """

    charged: int = 1
    """Attempts of every task that `attempts` does not name."""
    attempts: dict[int, int] = msgspec.field(default_factory=dict)
    running: int | None = None
    """The task whose handler was started by the swap that wrote this."""
    done: list[int] = msgspec.field(default_factory=list)
    failed: list[int] = msgspec.field(default_factory=list)
    waits: dict[int, float] = msgspec.field(default_factory=dict)
    wait_s: float = 0.0
    """How long a free entry rests."""
    results: dict[int, msgspec.Raw] = msgspec.field(default_factory=dict)
    parts: list[str] = msgspec.field(default_factory=list)
    error: str | None = None
    contested: bool = False
    """Whether a claim of it was ever taken over from a holder that did not let go: it may still finish tasks."""

    def __post_init__(self) -> None:
        """What would break sums with times is refused on reading: it is Corrupt."""
        if not 0 < self.ttl_s <= TTL_MAX_S:
            raise ValueError(f"ttl_s is {self.ttl_s:g}")
        if not all(0 <= wait_s <= DELAY_MAX_S for wait_s in (self.wait_s, *self.waits.values())):
            raise ValueError("a wait is out of range")


class Receipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of an entry, or of one task of a batch. `failed` lists a batch's failed tasks; all others are done."""

    state: Ended
    id: str
    count: int = 1
    attempts: int = 0
    token: int = 0
    worker_id: str = ""
    label: str = ""
    pushed_at: datetime | None = None
    finished_at: datetime
    payload: msgspec.Raw = NOTHING
    result: msgspec.Raw = NOTHING
    error: str | None = None
    traceback: str | None = None
    failed: list[int] = msgspec.field(default_factory=list)
    results: dict[int, msgspec.Raw] = msgspec.field(default_factory=dict)
    parts: list[str] = msgspec.field(default_factory=list)
    own: list[int] = msgspec.field(default_factory=list)
    """Tasks of a batch whose own receipts stood before this one, and count."""
    retries: int = 0
    retried_as: str | None = None
    raw: str | None = None
    """The key of bytes that could not be read, kept as they were."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Results that are too large for a lease record, by the number of their task."""

    schema: int = SCHEMA
    results: dict[int, msgspec.Raw]


class ControlRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator has set."""

    paused: bool = False


class SweepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """When a sweep was last begun; it lasts until another one takes its turn."""

    worker_id: str
    begun_at: datetime
    retained_at: datetime


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
    if header.count < 1 or body.count(b"\n") != header.count - 1:
        raise Corrupt(f"{what} is cut short: it should hold {header.count} tasks")
    if hashlib.sha256(body).hexdigest() != header.sha256:
        raise Corrupt(f"{what} does not match its digest")
    return header, body


def _check_schema(schema: int, what: str) -> None:
    if schema > SCHEMA:
        raise Unsupported(f"{what} has schema {schema}; this limpet reads up to {SCHEMA}")
