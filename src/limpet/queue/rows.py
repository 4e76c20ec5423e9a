"""`TaskRow`: a task as every view shows it, and what its lease says of it; all tasks of a queue as rows, for SQL.

What waits is read before what has ended, so that a task which ends meanwhile is not missed; it is a row once, as ended.
An object that cannot be read is left out, and counted.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from limpet.kernel import records
from limpet.kernel.cell import Versioned
from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing, Unsupported
from limpet.kernel.keys import (
    BATCH,
    LEASE,
    TASK,
    Key,
    batch_of,
    count_of,
    is_batch,
    name_of_receipt,
    parts_of_entry,
    parts_of_scheduled,
)
from limpet.kernel.lease import State
from limpet.kernel.lease.decide import is_live
from limpet.kernel.store.api import Blob, batched
from limpet.queue.api import TaskState
from limpet.queue.decide import attempts_in, attempts_of, error_of, lists_done, payload_in, took_in
from limpet.queue.durable import until
from limpet.queue.entry import ENTRY_BYTES_MAX, NOTHING, EntryLease, Part, Receipt, read_content, read_task
from limpet.queue.storage import Storage

OBJECTS_AT_ONCE = 64
BYTES_AT_ONCE = 32 << 20


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task, or an entry of several `tasks`, of which some may be `done`.

    `payload` and `result` are JSON text; of the tasks of a completed batch not all payloads are kept. `batch` is the
    entry of such a task. `due_at`: when one that is scheduled, rests or is suspended goes on; None if it waits without
    a limit. `began_at`, `took_s`: when the handler was started that ended it, and how long it ran. `parent`: the
    durable task that pushed it, `<queue>/<id>#<step>`. `reason`: what a suspended one waits for; `signal`: the name of
    the signal, if it is one. `overdue`: its worker has not renewed its claim in time.
    """

    id: str
    state: TaskState
    batch: str | None = None
    attempts: int = 0
    payload: str | None = None
    result: str | None = None
    error: str | None = None
    traceback: str | None = None
    worker: str | None = None
    pushed_at: datetime | None = None
    due_at: datetime | None = None
    began_at: datetime | None = None
    finished_at: datetime | None = None
    took_s: float | None = None
    parent: str | None = None
    reason: str | None = None
    signal: str | None = None
    tasks: int = 1
    done: int = 0
    overdue: bool = False
    suspended_at: datetime | None = None
    waits_for_code: bool = False
    lease: EntryLease | None = None
    lease_age_s: float = 0.0

    def facts(self) -> dict[str, Any]:
        """What is shown of one that has not ended."""
        attempt = self.attempts if self.lease is None or self.batch is not None else self.lease.attempt
        facts: dict[str, Any] = {"state": self.state, "old_state": self._old_state(), "attempt": attempt}
        facts |= {"worker": self.worker} if self.error is None else {"worker": self.worker, "error": self.error}
        if self.lease is not None:
            left_s = max(0.0, self.lease.wait_s - self.lease_age_s)
            facts |= {
                "taken_at": self.lease.created_at if self.worker else None,
                "token": self.lease.token,
                "heartbeat_s": round(self.lease_age_s, 1),
                "ttl_s": self.lease.ttl_s,
                "rests_s": round(left_s, 1) if self.state == "resting" else 0.0,
                "overdue": self.overdue,
                "error": self.error,
            }
        if self.state == "suspended":
            facts |= {"reason": self.reason, "suspended_at": self.suspended_at}
            facts |= {} if self.signal is None else {"signal": self.signal}
            facts |= {"waits_for_code": True} if self.waits_for_code else {}
            facts |= {} if self.due_at is None else {"due_at": self.due_at}
        return facts

    def _old_state(self) -> str:
        """The word of Limpet 0.1, for programs that read `--json`. It goes with the next release."""
        if self.state == "running":
            return "held" if self.lease is not None else "held elsewhere"
        if self.lease is None and self.error is not None:
            return "corrupt"
        return {"waiting": "overdue" if self.overdue else "waits", "resting": "rests"}.get(self.state, self.state)


@dataclass(slots=True)
class TaskRows:
    """The tasks of a queue. `cut` names the folders of which more objects were there than were read."""

    rows: Mapping[str, TaskRow] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)


def task_rows(storage: Storage, objects_max: float = float("inf")) -> TaskRows:
    """The tasks of a queue, by id; at most `objects_max` objects of each folder. A retried task is there as its retry.

    Cost: 1 LIST per 1,000 objects + 1 GET for each task, lease, receipt and part object.
    """
    found = TaskRows()
    rows: dict[str, TaskRow] = {}
    reader = _RowReader(storage, found, objects_max)
    for source in (reader.scheduled, reader.pending, reader.failed, reader.completed):
        rows |= {row.id: row for row in source()}
    found.rows = rows
    return found


class _RowReader:
    """Reads the folders of a queue one after the other."""

    def __init__(self, storage: Storage, found: TaskRows, objects_max: float) -> None:
        self._storage = storage
        self._store = storage.store
        self._keys = storage.keys
        self._found = found
        self._objects_max = objects_max

    def scheduled(self) -> Iterator[TaskRow]:
        """Pushes that are not due."""
        for key, blob in self._objects("scheduled", self._keys.scheduled):
            due = parts_of_scheduled(key)
            with _noting(self._found, key):
                task = read_task(blob.data, what=key)
                due_at = due[0] if due else None
                payload = _text(task.payload)
                row = TaskRow(task.id, "scheduled", payload=payload, pushed_at=task.pushed_at, due_at=due_at)
                yield replace(row, parent=parent_text(task.caller or "", task.parent or ""))

    def pending(self) -> Iterator[TaskRow]:
        """What waits, rests or runs; the tasks that a running batch has done."""
        leases: dict[str, Blob] = {}
        for key, blob in self._objects("pending", self._keys.pending):
            entry, kind = parts_of_entry(key, self._keys.pending) or ("", "")
            if kind == LEASE:
                leases[entry] = blob
                continue
            with _noting(self._found, key):
                yield from self._entry(entry, blob, leases.pop(entry, None), key)

    def _entry(self, entry: str, blob: Blob, lease: Blob | None, key: Key) -> Iterator[TaskRow]:
        batch = is_batch(entry)
        content = read_content(blob, entry, batch=batch, what=key)
        seen = self._storage.lease(entry).decode(lease) if lease is not None else None
        now = max(self._storage.runtime.wall(), lease.modified if lease else blob.modified)
        for n, (id_, payload) in enumerate(zip(content.ids, content.payloads, strict=True)):
            row = TaskRow(
                id_,
                "waiting",
                batch=entry if batch else None,
                payload=_text(payload),
                pushed_at=content.pushed_at,
                parent=parent_text(content.caller, content.parent),
            )
            if seen is None:
                yield row
            elif n not in seen.value.failed:  # a failed task of a batch has a receipt
                yield with_lease(row, seen, n, now)

    def failed(self) -> Iterator[TaskRow]:
        """What failed or was cancelled."""
        return self._ended("failed", self._keys.failed)

    def completed(self) -> Iterator[TaskRow]:
        """What succeeded."""
        return self._ended("completed", self._keys.completed)

    def _ended(self, folder: str, prefix: str) -> Iterator[TaskRow]:
        own: set[tuple[str, int] | None] = set()  # a task's own receipt counts, and is listed before its batch's
        for key, blob in self._objects(folder, prefix):
            own.add(batch_of(name_of_receipt(key)))
            with _noting(self._found, key):
                receipt = self._storage.decoded_receipt(key, blob).value
                if receipt.state != "retried":
                    yield from self._of_receipt(name_of_receipt(key), receipt, own)

    def _of_receipt(self, name: str, receipt: Receipt, own: Container[tuple[str, int] | None]) -> Iterator[TaskRow]:
        part = batch_of(name)
        if part is not None or not is_batch(name):
            result = self._results(receipt).get(part[1] if part else 0)
            yield _ended_row(receipt, part[1] if part else 0, receipt.id, result, part[0] if part else None)
            return
        results = self._results(receipt) if receipt.state == "completed" else {}
        for n in range(count_of(name)):
            if lists_done(receipt, n) if receipt.state == "completed" else (name, n) not in own:
                yield _ended_row(receipt, n, f"{name}.{n}", results.get(n), name, attempts_in(receipt, n))

    def _results(self, receipt: Receipt) -> dict[int, bytes]:
        """The results of a receipt by the number of the task; those of part objects too."""
        found = {0: bytes(receipt.result)} if bytes(receipt.result) != bytes(NOTHING) else {}
        for key, blob in self._store.get_many([Key(key) for key in receipt.parts]).items():
            with _noting(self._found, key):
                if isinstance(blob, LimpetError):
                    raise blob
                found |= {n: bytes(data) for n, data in records.decode(blob.data, Part, what=key).results.items()}
        return found | {n: bytes(data) for n, data in receipt.results.items()}

    def _objects(self, folder: str, prefix: str) -> Iterator[tuple[Key, Blob]]:
        """The objects of a folder, in the order of their keys, without those that are gone by now; of pending/ only
        tasks and leases."""
        sizes: dict[Key, int] = {}
        for stat in self._store.list(prefix):
            if folder == "pending" and (parts_of_entry(stat.key, prefix) or ("", ""))[1] not in (TASK, BATCH, LEASE):
                continue
            if len(sizes) >= self._objects_max:
                self._found.cut.append(folder)
                break
            sizes[stat.key] = stat.size
        for keys in batched([*sizes], lambda key: sizes[key], size=BYTES_AT_ONCE, count=OBJECTS_AT_ONCE):
            for key, blob in self._store.get_many(keys, size_max=ENTRY_BYTES_MAX).items():
                if isinstance(blob, Missing):
                    continue
                with _noting(self._found, key):
                    if isinstance(blob, LimpetError):
                        raise blob
                    yield key, blob


@contextmanager
def _noting(found: TaskRows, key: str) -> Iterator[None]:
    """In the block, an object that cannot be read is noted, and left out (F23)."""
    try:
        yield
    except (Corrupt, Invalid, Unsupported, Missing) as error:
        found.unreadable.append(f"{key}: {error}")


def state_of(record: EntryLease, n: int | None, *, modified: datetime, now: datetime) -> TaskState:
    """The state of task `n` by the lease of its entry; without `n`, that of the entry as a whole."""
    if n is not None and n in record.done:
        return "completed"
    if n is not None and n in record.failed:
        return "failed"
    if record.state is State.CANCELLED:
        return "cancelled"
    since_s = (now - modified).total_seconds()
    free = record.state is State.FREE
    waits = n is not None and record.waits.get(n, since_s) > since_s
    if (free or waits) and (record.suspended if n is None else n in record.suspended):
        return "suspended"
    if waits or (free and record.wait_s > since_s):
        return "resting"
    return "running" if is_live(record, modified=modified, now=now) else "waiting"


def with_lease(row: TaskRow, seen: Versioned[EntryLease], n: int | None, now: datetime) -> TaskRow:
    """A task that has not ended, or has in a batch that goes on, as the lease of its entry says; without `n`, the
    entry as a whole."""
    record, modified = seen.value, seen.modified
    assert modified is not None
    state = state_of(record, n, modified=modified, now=now)
    held = record.state is State.HELD and state in ("running", "waiting")
    count = count_of(record.name)
    result = None if n is None else record.results.get(n)
    about: dict[str, Any] = {}
    if state == "suspended":
        suspended = {m: each for m, each in record.suspended.items() if n in (None, m)}
        first = suspended[min(suspended)]
        others = f", and {len(suspended) - 1} more" if len(suspended) > 1 else ""
        dues = (until(each, modified) for each in suspended.values())
        due_at = min((due for due in dues if due is not None), default=None)
        about = {"reason": first.reason + others, "signal": first.signal, "suspended_at": first.since, "due_at": due_at}
        about["waits_for_code"] = any(each.codes for each in suspended.values())
    elif state == "resting":
        wait_s = record.wait_s if n is None else record.waits.get(n, record.wait_s)
        about = {"due_at": modified + timedelta(seconds=wait_s)}
    return replace(
        row,
        state=state,
        attempts=0 if n is None else attempts_of(record, n),
        result=None if result is None else _text(result),
        error=record.error if n is None else error_of(record, n, count),
        worker=record.label if held or (state == "completed" and is_live(record, modified=modified, now=now)) else None,
        done=len(record.done) if n is None else 0,
        overdue=held and state == "waiting",
        lease=record,
        lease_age_s=(now - modified).total_seconds(),
        **about,
    )


def _ended_row(
    receipt: Receipt, n: int, id_: str, result: bytes | None, batch: str | None, attempts: int | None = None
) -> TaskRow:
    payload = payload_in(receipt, n)
    return TaskRow(
        id_,
        "failed" if receipt.state == "retried" else receipt.state,
        batch=batch,
        attempts=receipt.attempts if attempts is None else attempts,
        payload=None if payload is None else _text(payload),
        result=None if result is None else _text(result),
        error=receipt.error,
        traceback=receipt.traceback,
        worker=receipt.label or None,
        pushed_at=receipt.pushed_at,
        began_at=receipt.began_at,
        finished_at=receipt.finished_at,
        took_s=took_in(receipt, n),
        parent=parent_text(receipt.caller or "", receipt.parent or ""),
    )


def parent_text(caller: str, parent: str) -> str | None:
    """The durable task that pushed a task: `<queue>/<id>#<step>`; None if none did."""
    return f"{caller}/{parent}" if caller and parent else None


def _text(data: bytes | msgspec.Raw) -> str:
    return bytes(data).decode(errors="replace")


def columns_of(rows: Sequence[TaskRow], names: Iterable[str]) -> dict[str, list[Any]]:
    """The rows by column."""
    return {name: [getattr(row, name) for row in rows] for name in names}
