"""Receipts of a claim: pure functions of its record, its content and a verdict."""

from __future__ import annotations

from datetime import datetime

import msgspec

from limpet.queue.decide import attempts_of
from limpet.queue.records import NOTHING, Ended, EntryLease, Receipt
from limpet.queue.storage import Content

__all__ = ["batch_receipt", "clean_text", "task_receipt"]

ERROR_CHARS_MAX = 2_000
TRACEBACK_CHARS_MAX = 8_000


def clean_text(text: str, chars_max: int = ERROR_CHARS_MAX) -> str:
    """What an exception says, as text that JSON can hold."""
    return text[:chars_max].encode("utf-8", "replace").decode()


def task_receipt(
    record: EntryLease,
    content: Content,
    n: int,
    state: Ended,
    *,
    wall: datetime,
    result: msgspec.Raw | None = None,
    parts: list[str] | None = None,
    error: str | None = None,
    trace: str | None = None,
) -> Receipt:
    """The receipt of task `n`."""
    return Receipt(
        state=state,
        id=content.ids[n],
        attempts=attempts_of(record, n),
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
        retries=content.retries,
    )


def batch_receipt(record: EntryLease, content: Content, *, wall: datetime) -> Receipt:
    """The receipt of a batch, which lists every verdict: what is not in `failed` is done."""
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
    )
