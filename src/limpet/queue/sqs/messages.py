"""What Limpet's messages on SQS look like: tasks, and tasks that failed. Nothing here asks SQS for anything."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec

from limpet import records
from limpet.errors import Corrupt, Invalid
from limpet.queue.decide import TRACEBACK_CHARS_MAX, clean_text
from limpet.queue.entry import RETRY_MARK
from limpet.queue.sqs.client import BATCH_BYTES_MAX, Message
from limpet.records import Count, Instant, Name, Text
from limpet.runtime import Runtime

SCHEMA = 1
BODY_BYTES_MAX = BATCH_BYTES_MAX
ROOM_BYTES = 4096
"""Left free in a task's message, so that the message of its failure fits too."""
ERROR_CHARS_MIN = 200
NOTHING = msgspec.Raw(b"null")

_Long = Annotated[str, msgspec.Meta(max_length=1 << 20)]
"""A text that may fill a message: SQS takes no more than 1 MiB."""


class TaskMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the main queue. `retries` counts the task's earlier lives."""

    schema: Count = SCHEMA
    id: Text
    payload: msgspec.Raw
    pushed_at: Instant
    retries: Count = 0


class FailedMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of the failed queue: a task, and how it failed.

    `message` is the SQS id of the one that failed, `body` its text if it is no task (as much of it as fits).
    """

    schema: Count = SCHEMA
    id: Text
    payload: msgspec.Raw = NOTHING
    error: _Long
    traceback: _Long | None = None
    worker: Name
    worker_id: Name
    attempts: Count
    retries: Count = 0
    pushed_at: Instant | None = None
    failed_at: Instant
    message: Name
    body: _Long | None = None


@dataclass(frozen=True, slots=True)
class FailedDelivery:
    """A message that goes to the failed queue, and why. Without a task it is one that could not be read."""

    message: Message
    task: TaskMessage | None
    error: str
    traceback: str | None = None


def task_text(task: TaskMessage) -> str:
    """The message of a task.   Raises: Invalid if it is too large (F32)."""
    text = _as_text(records.encode(task))
    size, most = len(text.encode()), BODY_BYTES_MAX - ROOM_BYTES
    if size > most:
        raise Invalid(
            f"the task takes {size} bytes; on SQS it may take {most}",
            hint="put the data into an object of its own and its name into the task",
        )
    return text


def read_message(message: Message) -> TaskMessage:
    """The task in a message.   Raises: Corrupt if it is none, or one of a newer Limpet."""
    what = f"message {message.id}"
    task = records.decode(message.body.encode(), TaskMessage, what=what)
    if task.schema > SCHEMA:
        raise Corrupt(f"{what} has schema {task.schema}; this limpet reads up to {SCHEMA}")
    return task


def failed_text(failed: FailedDelivery, runtime: Runtime) -> str:
    """The message for the failed queue, cut where it would not fit: first the traceback, then the error, then the text
    of what could not be read.
    """
    message, task = failed.message, failed.task
    record = FailedMessage(
        id=task.id if task else message.id,
        payload=task.payload if task else NOTHING,
        error=clean_text(failed.error),
        traceback=clean_text(failed.traceback[-TRACEBACK_CHARS_MAX:], TRACEBACK_CHARS_MAX)
        if failed.traceback
        else None,
        worker=runtime.label,
        worker_id=runtime.owner,
        attempts=message.count,
        retries=task.retries if task else 0,
        pushed_at=task.pushed_at if task else None,
        failed_at=runtime.wall(),
        message=message.id,
        body=None if task else message.body,
    )
    shorter = msgspec.structs.replace(record, traceback=None)
    shortest = msgspec.structs.replace(shorter, error=record.error[:ERROR_CHARS_MIN])
    for each in (record, shorter, shortest):
        if _fits(text := _as_text(records.encode(each))):
            return text
    while record.body and not _fits(text):
        record = msgspec.structs.replace(record, body=record.body[: len(record.body) // 2])
        why = (
            f"{shortest.error} (only the first {len(record.body or '')} of its {len(message.body)} characters are kept)"
        )
        text = _as_text(records.encode(msgspec.structs.replace(shortest, body=record.body, error=why)))
    return text  # a task beyond our limit came from a queue that takes such: nothing of it is cut


def read_failed(message: Message, id_: str | None) -> FailedMessage | None:
    """The failed task in a message; None if it is another one or cannot be pushed again."""
    try:
        record = records.decode(message.body.encode(), FailedMessage, what=f"message {message.id}")
    except Corrupt:
        return None
    if id_ not in (None, record.id):
        return None
    if record.body is not None and id_ is not None:
        raise Invalid(f"{id_!r} could not be read as a task", hint="its text is in the `body` of the failed message")
    return record if record.body is None else None


def next_life(record: FailedMessage, now: datetime) -> TaskMessage:
    """The task that a failed one becomes when it is retried: fresh attempts, and a new id."""
    life = record.retries + 1
    base = record.id.rpartition(RETRY_MARK)[0] if record.retries else record.id
    return TaskMessage(
        id=f"{base}{RETRY_MARK}{life}",
        payload=record.payload,
        pushed_at=now,
        retries=life,
    )


def _as_text(data: bytes) -> str:
    """JSON as SQS takes it: two characters that are fine in JSON are not in a message."""
    return data.decode().replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")


def _fits(text: str) -> bool:
    """Whether SQS takes a message of that text."""
    return len(text.encode()) <= BODY_BYTES_MAX
