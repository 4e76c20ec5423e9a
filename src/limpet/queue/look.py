"""What can be seen of a queue without changing it: counts, what waits, how a task ended."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from limpet import records
from limpet.errors import Corrupt, Denied, Invalid, LimpetError, Missing, Unsupported
from limpet.keys import Key
from limpet.queue.api import Outcome, Peeked, Policy, Result, Stats
from limpet.queue.names import (
    BATCH,
    LEASE,
    TASK,
    batch_of,
    count_of,
    entry_of,
    is_batch,
    life_before,
    name_of_receipt,
    parts_of_entry,
)
from limpet.queue.push import Pusher
from limpet.queue.receipts import completion, lists_done
from limpet.queue.records import ENTRY_BYTES_MAX, NOTHING, Part, Receipt
from limpet.queue.storage import Storage, read_content

__all__ = ["Look"]

UNTYPED = msgspec.json.Decoder()


class Look:
    """The reading side of one queue."""

    def __init__(self, storage: Storage, pusher: Pusher, policy: Policy) -> None:
        self._storage = storage
        self._store = storage.store
        self._keys = storage.keys
        self._pusher = pusher
        self._policy = policy

    def stats(self) -> Stats:
        """See `Queue.stats`. Retried tasks count where they are now."""
        pending = 0
        oldest: datetime | None = None
        leased: dict[str, datetime] = {}
        held: list[tuple[datetime, int]] = []
        retried: set[str | None] = set()
        for stat in self._store.list(self._keys.pending):
            entry, kind = parts_of_entry(stat.key, self._keys.pending) or ("", "")
            if kind == LEASE:
                leased = {entry: stat.modified}
            elif kind in (TASK, BATCH):
                count = count_of(entry)
                pending += count
                if entry in leased:
                    held.append((leased[entry], count))
                oldest = min(oldest or stat.modified, stat.modified)
                retried.add(life_before(entry))
        failed = [name_of_receipt(stat.key) for stat in self._store.list(self._keys.failed)]
        parts = {name: part[0] for name in failed if (part := batch_of(name))}
        retried.update(map(life_before, failed))
        completed, ended = self._count_completed(retried, {*parts.values(), *failed})
        control = self._storage.control().read()
        now = self._now()
        fresh = now - timedelta(seconds=self._policy.ttl_s)
        return Stats(
            pending=pending,
            in_flight=sum(count for modified, count in held if modified > fresh),
            scheduled=sum(1 for _ in self._store.list(self._keys.scheduled)),
            completed=completed - sum(1 for name, entry in parts.items() if entry in ended and name not in ended),
            failed=sum(count_of(name) for name in failed if name not in retried and name not in ended),
            oldest_s=max(0.0, (now - oldest).total_seconds()) if oldest else None,
            paused=control is not None and control.value.paused,
        )

    def _now(self) -> datetime:
        """The store's clock; where a read-only key may not ask it, the newest time that was seen."""
        try:
            return self._pusher.exact_now()
        except Denied:
            return self._store.now()

    def _count_completed(self, retried: set[str | None], troubled: set[str]) -> tuple[int, set[str]]:
        """Completed tasks, the failed ones of completed batches among them; and the receipts that tell of those.

        `troubled` are the failed tasks, and the batches that have such.
        """
        count = 0
        ended: set[str] = set()
        for stat in self._store.list(self._keys.completed):
            name = name_of_receipt(stat.key)
            if batch_of(name) or name in troubled:
                ended.add(name)
            if not batch_of(name):
                count += count_of(name)
                retried.add(life_before(name))
        return count, ended

    def peek(self, n: int) -> list[Peeked]:
        """See `Queue.peek`."""
        if n < 1:
            raise Invalid(f"peek wants a positive number, not {n}")
        found: list[Peeked] = []
        keys = [
            stat.key
            for stat in self._store.sample(self._keys.pending, 2 * n)
            if (found_ := parts_of_entry(stat.key, self._keys.pending)) and found_[1] in (TASK, BATCH)
        ]
        for key, blob in self._store.get_many(sorted(keys)[:n], size_max=ENTRY_BYTES_MAX).items():
            if isinstance(blob, LimpetError):
                continue
            entry, kind = key.rsplit("/", 2)[1:]
            try:
                content = read_content(blob, entry, batch=kind == "tasks.jsonl", what=key)
            except (Corrupt, Unsupported):
                continue
            found.extend(
                Peeked(id_, UNTYPED.decode(payload), content.pushed_at)
                for id_, payload in zip(content.ids, content.payloads, strict=True)
            )
        return found[:n]

    def result(self, id_: str) -> Result:
        """See `Queue.result`. A task that was retried is followed to its last life."""
        while True:
            receipt = self.receipt(id_)
            if receipt is None:
                where = self._whereabouts(id_)
                # It may have ended between two looks. A batch that is nowhere will not end any more, unless it travels.
                gone = not self._storage.journal.travels
                receipt = self.receipt(id_, gone=gone) if where == "unknown" else None
                if receipt is None:
                    return Result(id_, where)
            if receipt.state == "retried" and receipt.retried_as:
                id_ = receipt.retried_as
                continue
            return _as_result(id_, receipt)

    def receipt(self, id_: str, *, gone: bool = False) -> Receipt | None:
        """The receipt that counts for a task: completed beats failed. `gone`: its entry does not wait any more.

        Cost: 1 GET for a completed task; 2 GETs for another one, 3 or 4 for one of a batch.
        """
        name = entry_of(id_)
        done = self.completed(id_, gone=gone)
        if done is not None:
            return done
        failed = self._read(self._keys.failed_of(name))
        part = batch_of(id_)
        return failed or (self._read(self._keys.failed_of(part[0])) if part else None)

    def completed(self, id_: str, *, gone: bool = False) -> Receipt | None:
        """The receipt that says that a task completed, with its result; None if there is none."""
        name = entry_of(id_)
        part = batch_of(id_)
        if part is None:
            own = self._read(self._keys.completed_of(name))
            return own if own is None or is_batch(name) else self._with_result(own, id_, 0)
        entry, n = part
        whole = self._read(self._keys.completed_of(entry))
        own = None
        ended = whole is not None or gone
        if whole is None or n in whole.own or not lists_done(whole, n):
            ended = ended or self._storage.exists(self._keys.failed_of(entry))
            own = self._read(self._keys.completed_of(name)) if ended else None
        receipt = completion(n, whole=whole, own=own, ended=ended)
        return receipt and self._with_result(receipt, id_, n)

    def _read(self, key: Key) -> Receipt | None:
        seen = self._storage.receipt(key).read()
        return seen.value if seen else None

    def _with_result(self, receipt: Receipt, id_: str, n: int) -> Receipt:
        """The receipt as that of task `n` alone; its result may lie in a part object."""
        result = receipt.results.get(n) or receipt.result
        for key in receipt.parts if bytes(result) == bytes(NOTHING) else ():
            try:
                part = records.decode(self._store.get(Key(key)).data, Part, what=key)
            except Missing:
                continue
            if n in part.results:
                result = part.results[n]
                break
        return msgspec.structs.replace(receipt, id=id_, count=1, result=result, results={}, parts=[])

    def _whereabouts(self, id_: str) -> Outcome:
        part = batch_of(id_)
        entry = part[0] if part else entry_of(id_)
        if self._storage.exists(self._keys.tasks(entry, batch=part is not None)):
            return "pending"
        return "scheduled" if self.scheduled(entry) else "unknown"

    def scheduled(self, entry: str) -> list[Key]:
        """The delayed pushes of an entry.   Cost: 1 LIST per 1,000 delayed pushes."""
        mark = f"/{entry}@"
        return [stat.key for stat in self._store.list(self._keys.scheduled) if mark in stat.key]


def _as_result(id_: str, receipt: Receipt) -> Result:
    state: Outcome = "failed" if receipt.state == "retried" else receipt.state
    return Result(
        id=id_,
        state=state,
        value=UNTYPED.decode(receipt.result) if receipt.state == "completed" else None,
        error=receipt.error,
        traceback=receipt.traceback,
        worker=receipt.label,
        attempts=receipt.attempts,
        finished_at=receipt.finished_at,
    )
