"""What operators ask of a queue: counts, results, retry, cancel, pause, purge."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from limpet import records
from limpet.cell import Lost, Replaced, Seen, Unclear, Won
from limpet.errors import Conflict, Corrupt, Invalid, LimpetError, Missing
from limpet.keys import Key, is_minted, segment
from limpet.lease import State
from limpet.queue.api import Outcome, Peeked, Policy, Result, Stats
from limpet.queue.decide import cancelled, claimed
from limpet.queue.push import RETRY_MARK, Pusher
from limpet.queue.records import ControlRecord, EntryLease, Part, Receipt, TaskRecord
from limpet.queue.storage import Storage, read_content

__all__ = ["Admin", "batch_of", "count_of", "entry_of"]

UNTYPED = msgspec.json.Decoder()
CANCEL_TRIES_MAX = 10
CANCELLED = "cancelled"


def entry_of(id_: str) -> str:
    """The entry that a task id names: a minted one as it is, a user's encoded, a retried one with its mark."""
    if not isinstance(id_, str) or not id_:
        raise Invalid(f"a task id is a non-empty string, not {id_!r}")
    base, mark, life = id_.rpartition(RETRY_MARK)
    if mark and life.isdigit():
        return f"{base if is_minted(base) else segment(base)}{mark}{life}"
    return id_ if is_minted(id_) else segment(id_)


def batch_of(id_: str) -> tuple[str, int] | None:
    """The batch and the number of a task of a batch; None for any other id."""
    entry, dot, n = id_.rpartition(".")
    return (entry, int(n)) if dot and is_minted(id_) and n.isdigit() else None


def count_of(entry: str) -> int:
    """How many tasks an entry holds: a batch says so in its name."""
    base, dash, count = entry.rpartition("-")
    return int(count) if dash and is_minted(entry) and is_minted(base) and count.isdigit() else 1


class Admin:
    """The operator's side of one queue."""

    def __init__(self, storage: Storage, pusher: Pusher, policy: Policy) -> None:
        self._storage = storage
        self._store = storage.store
        self._keys = storage.keys
        self._runtime = storage.runtime
        self._pusher = pusher
        self._policy = policy

    def stats(self) -> Stats:
        """See `Queue.stats`. Retried tasks count where they are now."""
        now = self._pusher.exact_now()
        pending = in_flight = 0
        oldest: datetime | None = None
        fresh = now - timedelta(seconds=self._policy.ttl_s)
        held: set[str] = set()
        lives: set[str] = set()
        for stat in self._store.list(self._keys.pending):
            entry, kind = stat.key.rsplit("/", 2)[1:]
            if kind == "lease.json":
                if stat.modified > fresh:
                    held.add(entry)
            elif kind in ("task.json", "tasks.jsonl"):
                count = count_of(entry)
                pending += count
                in_flight += count if entry in held else 0
                oldest = min(oldest or stat.modified, stat.modified)
                _note_life(lives, entry)
        completed, beaten = self._count_completed(lives)
        failed = [_name(stat.key) for stat in self._store.list(self._keys.failed)]
        for name in failed:
            _note_life(lives, name)
        control = self._storage.control().read()
        return Stats(
            pending=pending,
            in_flight=in_flight,
            scheduled=sum(1 for _ in self._store.list(self._keys.scheduled)),
            completed=completed - sum(1 for name in failed if batch_of(name) and name not in beaten),
            failed=sum(count_of(name) for name in failed if name not in lives),
            oldest_s=max(0.0, (now - oldest).total_seconds()) if oldest else None,
            paused=control is not None and control.value.paused,
        )

    def _count_completed(self, lives: set[str]) -> tuple[int, set[str]]:
        """Completed tasks, a batch's failed ones among them; and the tasks of batches with a receipt of their own."""
        count = 0
        beaten: set[str] = set()
        for stat in self._store.list(self._keys.completed):
            name = _name(stat.key)
            if batch_of(name):
                beaten.add(name)
            else:
                count += count_of(name)
                _note_life(lives, name)
        return count, beaten

    def peek(self, n: int) -> list[Peeked]:
        """See `Queue.peek`."""
        found: list[Peeked] = []
        keys = [
            stat.key
            for stat in self._store.sample(self._keys.pending, 2 * n)
            if stat.key.endswith(("task.json", "tasks.jsonl"))
        ]
        for key, blob in self._store.get_many(sorted(keys)[:n]).items():
            if isinstance(blob, LimpetError):
                continue
            entry, kind = key.rsplit("/", 2)[1:]
            try:
                content = read_content(blob, entry, batch=kind == "tasks.jsonl", what=key)
            except Corrupt:
                continue
            found.extend(
                Peeked(id_, UNTYPED.decode(payload), content.pushed_at)
                for id_, payload in zip(content.ids, content.payloads, strict=True)
            )
        return found[:n]

    def result(self, id_: str) -> Result:
        """See `Queue.result`. A task that was retried is followed to its last life."""
        while True:
            receipt = self._receipt_of(id_)
            if receipt is None:
                return Result(id_, self._whereabouts(id_))
            if receipt.state == "retried" and receipt.retried_as:
                id_ = receipt.retried_as
                continue
            return _as_result(id_, receipt)

    def retry(self, id_: str | None, *, all: bool) -> list[str]:
        """See `Queue.retry`."""
        if (id_ is None) is not all:
            raise Invalid("say which task to retry, or all=True")
        if id_ is not None:
            seen = self._storage.receipt(self._keys.failed_of(entry_of(id_))).read()
            if seen is None:
                raise Missing(
                    f"there is no failed task {id_!r}", hint="`limpet queue ls --failed` shows those there are"
                )
            if seen.value.state == "retried":
                return [seen.value.retried_as] if seen.value.retried_as else []
            return [self._retry(self._keys.failed_of(entry_of(id_)), seen)]
        return [*self._retry_all()]

    def _retry_all(self) -> Iterator[str]:
        for stat in self._store.list(self._keys.failed):
            seen = self._storage.receipt(stat.key).read()
            if seen is not None and seen.value.state == "failed" and seen.value.raw is None:
                yield self._retry(stat.key, seen)

    def _retry(self, key: Key, seen: Seen[Receipt]) -> str:
        """First the new life, then the mark on the old receipt: a crash in between is found by the next retry (H1)."""
        receipt = seen.value
        if receipt.raw is not None:
            raise Invalid(f"task {receipt.id!r} could not be read", hint=f"its bytes are kept in {receipt.raw}")
        life = receipt.retries + 1
        entry = _name(key).rpartition(RETRY_MARK)[0] if receipt.retries else _name(key)
        base = receipt.id.rpartition(RETRY_MARK)[0] if receipt.retries else receipt.id
        task = TaskRecord(
            id=f"{base}{RETRY_MARK}{life}",
            payload=receipt.payload,
            pushed_at=self._runtime.wall(),
            write_id=self._runtime.new_id(),
            retries=life,
        )
        self._pusher.place(f"{entry}{RETRY_MARK}{life}", task)
        retried = msgspec.structs.replace(receipt, state="retried", retried_as=task.id)
        self._storage.journal.ended(entry, False, key, retried)
        self._storage.receipt(key).attempt(seen, retried)
        return task.id

    def cancel(self, id_: str) -> bool:
        """See `Queue.cancel`."""
        if batch_of(id_):
            raise Invalid(f"{id_!r} is part of a batch, which is cancelled as a whole", hint="cancel the batch's entry")
        entry = entry_of(id_)
        if self._storage.ended(entry):
            return False
        batch = count_of(entry) > 1 or ("-" in entry and is_minted(entry))
        if not self._swap_to_cancelled(entry, batch=batch):
            raise Missing(f"there is no task {id_!r} waiting")
        return self.finish_cancelled(entry, batch=batch)

    def _swap_to_cancelled(self, entry: str, *, batch: bool) -> bool:
        """Let nobody take the entry any more; False if there is none."""
        cell = self._storage.lease(entry)
        seen = cell.read()
        for _ in range(CANCEL_TRIES_MAX):
            if seen is None and not self._exists(self._keys.tasks(entry, batch=batch)):
                return False
            if seen is not None and seen.value.state is State.CANCELLED:
                return True
            base = seen.value if seen else self._unclaimed(entry)
            match cell.attempt(seen, cancelled(base)):
                case Won() | Replaced():
                    return True
                case Lost(now) | Unclear(now):
                    seen = now
        raise Conflict(f"the lease of {entry} is swapped all the time", hint="try again")

    def _unclaimed(self, entry: str) -> EntryLease:
        return claimed(
            None,
            entry=entry,
            worker_id=self._runtime.owner,
            label=self._runtime.label,
            policy=self._policy,
            wall=self._runtime.wall(),
        )

    def finish_cancelled(self, entry: str, *, batch: bool) -> bool:
        """The receipt of a cancelled entry, then its removal; whether it was still there to be ended."""
        try:
            content = self._storage.content(entry, batch=batch)
        except Missing:
            self._storage.drop_lease(entry)
            return False
        if self._storage.ended(entry):
            self._storage.close(entry, batch=batch)
            return False
        payload = content.payloads[0] if not batch else b"[" + b",".join(content.payloads) + b"]"
        receipt = Receipt(
            state="cancelled",
            id=content.ids[0] if not batch else entry,
            count=len(content.ids),
            worker_id=self._runtime.owner,
            label=self._runtime.label,
            pushed_at=content.pushed_at,
            finished_at=self._runtime.wall(),
            payload=msgspec.Raw(payload if len(payload) < records.RECORD_BYTES_MAX // 2 else b"null"),
            error=CANCELLED,
            retries=content.retries,
        )
        stands = self._storage.write_receipt(entry, self._keys.failed_of(entry), receipt, batch=batch)
        self._storage.close(entry, batch=batch)
        return stands.state == "cancelled"

    def set_paused(self, paused: bool) -> None:
        """See `Queue.pause`."""

        def change(record: ControlRecord | None) -> ControlRecord | None:
            before = record or ControlRecord()
            return None if before.paused == paused else msgspec.structs.replace(before, paused=paused)

        self._storage.control().update(change)

    def purge(self) -> int:
        """See `Queue.purge`. A user's id gets a receipt, so that it stays used; minted names are never used again."""
        gone = 0
        for stat in [*self._store.list(self._keys.pending)]:
            entry, kind = stat.key.rsplit("/", 2)[1:]
            if kind not in ("task.json", "tasks.jsonl"):
                continue
            batch = kind == "tasks.jsonl"
            if is_minted(entry):
                self._store.delete(stat.key)
                self._storage.drop_lease(entry)
                gone += count_of(entry)
            elif self._swap_to_cancelled(entry, batch=batch) and self.finish_cancelled(entry, batch=batch):
                gone += 1
        for stat in [*self._store.list(self._keys.scheduled)]:
            self._store.delete(stat.key)
            gone += 1
        return gone

    def _receipt_of(self, id_: str) -> Receipt | None:
        """The receipt that counts for a task: completed beats failed."""
        name = entry_of(id_)
        completed = self._storage.receipt(self._keys.completed_of(name)).read()
        if completed is not None:
            return completed.value
        part = batch_of(id_)
        if part is not None:
            entry, n = part
            whole = self._storage.receipt(self._keys.completed_of(entry)).read()
            if whole is not None and n < whole.value.count and n not in whole.value.failed:
                return self._part_of(whole.value, id_, n)
            if whole is None and (ended := self._storage.receipt(self._keys.failed_of(entry)).read()) is not None:
                return ended.value
        failed = self._storage.receipt(self._keys.failed_of(name)).read()
        return failed.value if failed else None

    def _part_of(self, whole: Receipt, id_: str, n: int) -> Receipt:
        """The receipt of one task of a completed batch; its result may lie in a part object."""
        result = whole.results.get(n)
        for key in whole.parts if result is None else ():
            try:
                part = records.decode(self._store.get(Key(key)).data, Part, what=key)
            except Missing:
                continue
            if n in part.results:
                result = part.results[n]
                break
        return msgspec.structs.replace(
            whole, id=id_, count=1, result=result or msgspec.Raw(b"null"), results={}, parts=[]
        )

    def _whereabouts(self, id_: str) -> Outcome:
        part = batch_of(id_)
        entry = part[0] if part else entry_of(id_)
        if self._exists(self._keys.tasks(entry, batch=part is not None)):
            return "pending"
        return "unknown"

    def _exists(self, key: Key) -> bool:
        try:
            self._store.head(key)
        except Missing:
            return False
        return True


def _name(key: str) -> str:
    return key.rsplit("/", 1)[1].removesuffix(".json")


def _note_life(lives: set[str], name: str) -> None:
    """Note the name whose next life this is: that one was retried, and no longer counts as failed."""
    base, mark, life = name.rpartition(RETRY_MARK)
    if mark and life.isdigit():
        lives.add(f"{base}{RETRY_MARK}{int(life) - 1}" if life != "1" else base)


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
