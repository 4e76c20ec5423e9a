"""What can be seen of a queue without changing it: counts, what waits, how a task ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import msgspec

from limpet import records
from limpet.cell import Versioned
from limpet.errors import Corrupt, Denied, Invalid, LimpetError, Missing, Unsupported
from limpet.keys import Key
from limpet.queue.api import AttemptError, Failure, Outcome, Peeked, Policy, Result, Stats
from limpet.queue.decide import at_work, attempt_errors, completion, errors_of, lists_done
from limpet.queue.entry import (
    BATCH,
    ENTRY_BYTES_MAX,
    LEASE,
    NOTHING,
    TASK,
    Part,
    Receipt,
    Storage,
    batch_of,
    count_of,
    entry_of,
    is_batch,
    lease_of,
    life_before,
    name_of_receipt,
    parts_of_entry,
    read_content,
)
from limpet.queue.push import Pusher

IDS_MAX = 10
KIND_CHARS_MAX = 200
NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")


class Look:
    """The reading side of one queue."""

    def __init__(self, storage: Storage, pusher: Pusher, policy: Policy) -> None:
        self._storage = storage
        self._store = storage.store
        self._keys = storage.keys
        self._pusher = pusher
        self._policy = policy

    def stats(self) -> Stats:
        """Retried tasks count where they are now."""
        pending = 0
        oldest: datetime | None = None
        leases: dict[str, Key] = {}
        waiting: dict[str, int] = {}
        retried: set[str | None] = set()
        for stat in self._store.list(self._keys.pending):
            entry, kind = parts_of_entry(stat.key, self._keys.pending) or ("", "")
            if kind == LEASE:
                leases[entry] = stat.key
            elif kind in (TASK, BATCH):
                waiting[entry] = count_of(entry)
                pending += waiting[entry]
                oldest = min(oldest or stat.modified, stat.modified)
                retried.add(life_before(entry))
        failed = [name_of_receipt(stat.key) for stat in self._store.list(self._keys.failed)]
        parts = {name: part[0] for name in failed if (part := batch_of(name))}
        retried.update(map(life_before, failed))
        completed, ended = self._count_completed(retried, {*parts.values(), *failed})
        now = self._now()
        in_flight, resting = self._at_work(
            {key: waiting[entry] for entry, key in leases.items() if entry in waiting}, now
        )
        return Stats(
            pending=pending,
            in_flight=in_flight,
            scheduled=sum(1 for _ in self._store.list(self._keys.scheduled)),
            completed=completed - sum(1 for name, entry in parts.items() if entry in ended and name not in ended),
            failed=sum(count_of(name) for name in failed if name not in retried and name not in ended),
            oldest_s=max(0.0, (now - oldest).total_seconds()) if oldest else None,
            paused=self._paused(),
            resting=resting,
        )

    def _paused(self) -> bool:
        """A control record that cannot be read counts as none, as it does for workers that start now."""
        try:
            return self._storage.paused()
        except (Corrupt, Unsupported):
            return False

    def _at_work(self, leases: dict[Key, int], now: datetime) -> tuple[int, int]:
        """How many tasks of these leases' entries are in the hands of living workers, and how many rest.

        Cost: 1 GET a lease. One that cannot be read, or is gone, counts for nothing.
        """
        in_flight = resting = 0
        for key, blob in self._store.get_many(leases).items():
            if isinstance(blob, LimpetError):
                continue
            count = leases[key]
            try:
                record = lease_of(blob.data, count=count, what=key)
            except Corrupt:
                continue
            works, rests = at_work(record, count, modified=blob.modified, now=now)
            in_flight += works
            resting += rests
        return in_flight, resting

    def _now(self) -> datetime:
        """The store's clock. Where a read-only key may not ask it: the newest time that was seen, else our clock."""
        for ask in (self._pusher.exact_now, self._store.now):
            with suppress(Denied):
                return ask()
        return self._storage.runtime.wall()

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
            for id_, payload in zip(content.ids, content.payloads, strict=True):
                with suppress(Corrupt):  # a worker that claims it puts it aside
                    found.append(Peeked(id_, _value(payload, id_), content.pushed_at))
        return found[:n]

    def result(self, id_: str) -> Result:
        """A task that was retried is followed to its last life."""
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
                id_ = _next_life(id_, receipt.retried_as)
                continue
            return _as_result(id_, receipt)

    def errors(self, id_: str) -> tuple[AttemptError, ...]:
        """Those of a task that waits are in its lease."""
        part = batch_of(id_)
        entry, n = part or (entry_of(id_), 0)
        seen = self._storage.lease(entry).read()
        if seen is not None and n in seen.value.errors:
            return attempt_errors(seen.value.errors[n])
        return self.result(id_).errors

    def failed(self, n: int, *, where: str | None = None, since_s: float | None = None) -> list[Failure]:
        if n < 1:
            raise Invalid(f"failed wants a positive number, not {n}")
        groups: dict[str, list[Receipt]] = {}
        # A read-only key knows only a lower bound of the store's time: the cut may be no earlier than by our own clock.
        since = None if since_s is None else max(self._now(), self._storage.runtime.wall()) - timedelta(seconds=since_s)
        for _, seen in islice(self.failures(where=where, since=since), n):
            groups.setdefault(_kind_of(seen.value.error or ""), []).append(seen.value)
        found = []
        for error, some in groups.items():
            newest = sorted(some, key=lambda each: each.finished_at, reverse=True)
            ids = tuple(each.id for each in newest[:IDS_MAX])
            found.append(Failure(error, len(some), newest[0].finished_at, ids))
        return sorted(found, key=lambda each: (-each.count, each.error))

    def failures(
        self, *, where: str | None = None, since: datetime | None = None
    ) -> Iterator[tuple[Key, Versioned[Receipt]]]:
        """The receipts of tasks that failed, and were neither retried nor completed since.

        Cost: 1 LIST per 1,000 receipts in failed/, 1 GET each, and for those that are given 1 or 2 GETs more.
        """
        for stat in self._store.list(self._keys.failed):
            if since is not None and stat.modified < since:
                continue
            try:
                seen = self._storage.receipt(stat.key).read()
                if seen is None or seen.value.state != "failed":
                    continue
                told = where is None or where.casefold() in (seen.value.error or "").casefold()
                if told and self.completed(seen.value.id, gone=True) is None:
                    yield stat.key, seen
            except (Corrupt, Unsupported, Invalid):
                continue

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


def _next_life(id_: str, retried_as: str) -> str:
    """The id under which a task was retried.   Raises: Corrupt for one that is not its next life: it could loop."""
    if life_before(entry_of(retried_as)) != entry_of(id_):
        raise Corrupt(f"the receipt of {id_!r} says that it was retried as {retried_as[:100]!r}, which is another task")
    return retried_as


def _value(data: bytes | msgspec.Raw, what: str) -> Any:
    """A payload or a result.   Raises: Corrupt."""
    return records.decode(bytes(data), Any, what=what)


def _kind_of(error: str) -> str:
    """What groups failures: the error without the figures in it."""
    return NUMBERS.sub("#", error)[:KIND_CHARS_MAX]


def _as_result(id_: str, receipt: Receipt) -> Result:
    state: Outcome = "failed" if receipt.state == "retried" else receipt.state
    return Result(
        id=id_,
        state=state,
        value=_value(receipt.result, f"the result of {id_!r}") if receipt.state == "completed" else None,
        error=receipt.error,
        traceback=receipt.traceback,
        worker=receipt.label,
        attempts=receipt.attempts,
        finished_at=receipt.finished_at,
        errors=errors_of(receipt),
    )
