"""Receipts of a claim: pure functions of its record, its content and a verdict."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec

from limpet.queue.api import AttemptError
from limpet.queue.records import (
    ATTEMPT_TRACE_CHARS_MAX,
    ATTEMPTS_KEPT,
    ERROR_CHARS_MAX,
    NOTHING,
    AttemptRecord,
    Ended,
    EntryLease,
    Receipt,
)
from limpet.queue.storage import Content

TRACEBACK_CHARS_MAX = 8_000
CUT = "\n...\n"


def clean_text(text: str, chars_max: int = ERROR_CHARS_MAX) -> str:
    """What an exception says, as text that JSON can hold."""
    return text[:chars_max].encode("utf-8", "replace").decode()


def trimmed(text: str, chars_max: int) -> str:
    """The beginning and the end of a text that is too long."""
    if len(text) <= chars_max:
        return text
    head = chars_max // 3
    return f"{text[:head]}{CUT}{text[head + len(CUT) - chars_max :]}"


def attempt_record(attempt: int, *, at: datetime, worker: str, error: str, trace: str | None) -> AttemptRecord:
    """A failed attempt, cut to what a lease can hold of it."""
    kept = clean_text(trimmed(trace, ATTEMPT_TRACE_CHARS_MAX), ATTEMPT_TRACE_CHARS_MAX) if trace else None
    return AttemptRecord(attempt=attempt, at=at, worker=worker, error=clean_text(error), traceback=kept)


def errors_of(receipt: Receipt) -> tuple[AttemptError, ...]:
    """The failed attempts that a receipt tells of, oldest first."""
    if receipt.errors or not receipt.error or receipt.state not in ("failed", "retried"):
        return attempt_errors(receipt.errors)
    last = AttemptError(receipt.attempts, receipt.finished_at, receipt.label, receipt.error, receipt.traceback)
    return (last,)


def attempt_errors(kept: Sequence[AttemptRecord]) -> tuple[AttemptError, ...]:
    """Failed attempts as a user sees them."""
    return tuple(AttemptError(each.attempt, each.at, each.worker, each.error, each.traceback) for each in kept)


def lists_done(whole: Receipt, n: int) -> bool:
    """Whether the receipt of a batch says that task `n` is done."""
    return n < whole.count and n not in whole.failed


def completion(n: int, *, whole: Receipt | None, own: Receipt | None, ended: bool) -> Receipt | None:
    """The receipt by which task `n` of a batch has completed; None if it has not.

    `whole` is the batch's receipt in completed/, `own` the task's own one there, which a worker writes that finished
    the task after it had lost the batch. The batch's receipt counts if it lists the task as done, unless it names the
    task's own one as the earlier (`whole.own`). Otherwise a task's own receipt counts once the batch has `ended`:
    before that, the batch's present holder may still complete the task with another result. Both are created once and
    never change, so neither does the answer.
    """
    if whole is not None and lists_done(whole, n):
        return own if own is not None and n in whole.own else whole
    return own if ended else None


def task_receipt(
    record: EntryLease,
    content: Content,
    n: int,
    state: Ended,
    *,
    attempts: int,
    wall: datetime,
    result: msgspec.Raw | None = None,
    parts: list[str] | None = None,
    error: str | None = None,
    trace: str | None = None,
) -> Receipt:
    """The receipt of task `n`. One that failed before keeps the errors of its attempts, this one's among them."""
    errors: list[AttemptRecord] = []
    if state == "failed" and record.errors.get(n):
        last = attempt_record(attempts, at=wall, worker=record.label, error=error or "", trace=trace)
        errors = [*record.errors.get(n, ())[-ATTEMPTS_KEPT:], last]
    return Receipt(
        state=state,
        id=content.ids[n],
        attempts=attempts,
        token=record.token,
        worker_id=record.worker_id,
        label=record.label,
        pushed_at=content.pushed_at,
        finished_at=wall,
        payload=msgspec.Raw(content.payloads[n]),
        result=result or NOTHING,
        parts=parts or [],
        error=clean_text(error) if error else None,
        traceback=clean_text(trace[-TRACEBACK_CHARS_MAX:], TRACEBACK_CHARS_MAX) if trace else None,
        errors=errors,
        retries=content.retries,
    )


def batch_receipt(record: EntryLease, content: Content, *, wall: datetime, own: Collection[int] = ()) -> Receipt:
    """The receipt of a batch, which lists every verdict: what is not in `failed` is done.

    `own`: the tasks that another worker finished before, and wrote receipts of their own for.
    """
    return Receipt(
        state="completed",
        id=record.name,
        count=len(content.ids),
        attempts=record.token,
        token=record.token,
        worker_id=record.worker_id,
        label=record.label,
        pushed_at=content.pushed_at,
        finished_at=wall,
        failed=record.failed,
        results=record.results,
        parts=record.parts,
        own=sorted(n for n in own if n not in record.failed),
    )
