"""What can be seen of a queue without changing it: entries, tasks, failures.

Nothing is written: a read-only key is enough.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import cached_property
from heapq import nlargest
from itertools import groupby, islice
from typing import Any, Literal

import msgspec

from limpet.kernel import records
from limpet.kernel.cell import Cell, Versioned
from limpet.kernel.errors import Corrupt, Denied, Invalid, LimpetError, Missing, Unsupported
from limpet.kernel.keys import (
    BATCH,
    HASHED,
    LEASE,
    REMOTE,
    TASK,
    Key,
    QueueKeys,
    batch_of,
    count_of,
    due_of,
    entry_of,
    is_batch,
    is_history,
    name_of,
    name_of_receipt,
    parts_of_entry,
    parts_of_scheduled,
)
from limpet.kernel.runtime import ulid
from limpet.kernel.store.api import Stat
from limpet.queue.api import AttemptError, Failure, Notice, Peeked, Result, Stats
from limpet.queue.count import Folder, QueueCount
from limpet.queue.decide import payload_in, took_in
from limpet.queue.entry import ENTRY_BYTES_MAX, PARENT_MARK, Receipt, is_of, read_content, read_task
from limpet.queue.history import (
    HistoryRecord,
    HistoryStep,
    children_of,
    cut_value,
    history_step,
    plain,
    step_facts,
    value_facts,
)
from limpet.queue.results import TaskResults, plain_value
from limpet.queue.rows import TaskRow, with_lease
from limpet.queue.standstill import StandstillCheck
from limpet.queue.storage import SIGNAL_CODEC, Storage
from limpet.queue.summary import FailedReceipts, count_leases, stats_fields

IDS_MAX = 10
KIND_CHARS_MAX = 200
RECEIPTS_AT_ONCE = 50
CHILDREN_SHOWN = 20
SIGNALS_SHOWN = 100
HISTORIES_MAX = 100
DURATIONS_OF = 200
RECEIPTS_LISTED_MAX = 100_000
WHERE = re.compile(r"\s*(\w+)\s*~\s*(.+?)\s*", re.DOTALL)
NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")


class Inspection(TaskResults):
    """The reading side of one queue. A listing needs names only."""

    @cached_property
    def _receipts(self) -> FailedReceipts:
        return FailedReceipts()

    def stats(self) -> Stats:
        """A retried task counts in its current state.

        Cost: 1 LIST per 1,000 objects of the queue, 1 GET, 1 GET for each lease, and once 1 GET for each receipt in
        failed/: only receipts tell failed tasks from cancelled ones.
        """
        self._drop_ended()
        count = QueueCount("", self._keys)
        for folder in ("pending", "failed", "completed"):
            for stat in self._store.list(f"{self._keys.root}/{folder}"):
                count.add(folder, stat)
        now = self._now()
        work = count_leases(self._store, count.leases, now)
        for stat in self._store.list(self._keys.scheduled):
            count.add("scheduled", stat)
        paused = False
        with suppress(Corrupt, Unsupported):  # it counts as not paused, as it does for workers that start now
            paused = self.storage.paused()
        ended = self._receipts.count(self.storage, count)
        return Stats(**stats_fields(count, work, ended, now, paused=paused))

    def pending(self) -> int:
        """How many tasks have not ended.   Cost: 1 LIST per 1,000 objects in pending/."""
        self._drop_ended()
        count = QueueCount("", self._keys)
        for stat in self._store.list(self._keys.pending):
            count.add("pending", stat)
        return count.pending

    def _now(self) -> datetime:
        """The store's clock. Where a read-only key may not ask it: the newest time that was seen, else our clock."""
        for ask in (self.storage.exact_now, self._store.now):
            with suppress(Denied):
                return ask()
        return self._runtime.wall()

    def _drop_ended(self) -> None:
        """Delete the tasks that this process has ended, so that it does not count them itself."""
        if self.storage.closer is not None:
            self.storage.closer.drop_tasks()

    def standstill(self) -> list[str] | None:
        """Cost: 1 LIST per 1,000 objects of the backlog; while all tasks are suspended 1 GET for each lease, and for
        each signal or task that they wait for.
        """
        self._drop_ended()
        return StandstillCheck(self._store, self._runtime).reasons(self._keys)

    def notices(self) -> Sequence[Notice]:
        """Cost: nothing."""
        return self.storage.notices.take()

    def peek(self, n: int = 10) -> list[Peeked]:
        """Those that cannot be read are left out.   Cost: 1 or 2 LISTs + 1 GET an entry."""
        self._drop_ended()
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
                    found.append(Peeked(id_, plain_value(payload, id_), content.pushed_at))
        return found[:n]

    def failed(self, n: int = 100, *, where: str | None = None, since_s: float | None = None) -> list[Failure]:
        """Cost: 1 LIST per 1,000 receipts in failed/ + 1 GET for each that is looked at."""
        if n < 1:
            raise Invalid(f"failed wants a positive number, not {n}")
        groups: dict[str, list[Receipt]] = {}
        # A read-only key knows only a lower bound of the store's time: the cut may be no earlier than by our own clock.
        since = None if since_s is None else max(self._now(), self._runtime.wall()) - timedelta(seconds=since_s)
        for _, seen in islice(self.failures(where=where, since=since), n):
            groups.setdefault(kind_of(seen.value.error or ""), []).append(seen.value)
        found = []
        for error, some in groups.items():
            newest = sorted(some, key=lambda each: each.finished_at, reverse=True)
            ids = tuple(each.id for each in newest[:IDS_MAX])
            count = sum(self._stands_for(entry_of(each.id)) for each in some)
            found.append(Failure(error, count, newest[0].finished_at, ids))
        return sorted(found, key=lambda each: (-each.count, each.error))

    def _stands_for(self, name: str) -> int:
        """How many tasks a receipt in failed/ is about: that of a batch, about those without a receipt of their own.

        Cost: for a batch 2 LISTs.
        """
        if not is_batch(name):
            return 1
        folders = (self._keys.failed, self._keys.completed)
        own = {n for folder in folders for n in self.storage.own_receipts(folder, name)}
        return count_of(name) - len(own)

    def failures(
        self, *, where: str | None = None, since: datetime | None = None
    ) -> Iterator[tuple[Key, Versioned[Receipt]]]:
        """The receipts of tasks that failed, and were neither retried nor completed since.

        Cost: 1 LIST per 1,000 receipts in failed/, 1 GET each, and for those that are given 1 or 2 GETs more.
        """
        fits = error_filter(where)
        for stat in self._store.list(self._keys.failed):
            if since is not None and stat.modified < since:
                continue
            try:
                seen = self.storage.receipt(stat.key).read()
                if seen is None or seen.value.state != "failed":
                    continue
                if fits(seen.value.error or "") and self.completed(seen.value.id, gone=True) is None:
                    yield stat.key, seen
            except (Corrupt, Unsupported, Invalid):
                continue

    def entries(
        self, state: Folder, on_unreadable: Callable[[LimpetError], None] | None = None
    ) -> Iterator[dict[str, Any]]:
        """The entries in that state, in the order of their names, as facts; lazily.

        `on_unreadable`: pass over a receipt that cannot be read, and call it with the error.
        Raises: Corrupt for a receipt that cannot be read, without `on_unreadable`.
        Cost: 1 LIST per 1,000 objects; 1 GET for each lease, or for each receipt.
        """
        match state:
            case "pending":
                return self._pending_entries()
            case "scheduled":
                return self._scheduled_entries()
            case "failed" | "completed":
                return self._ended_entries(state, on_unreadable)

    def _pending_entries(self) -> Iterator[dict[str, Any]]:
        beside: dict[str, Stat] = {}  # the objects of the entry that are listed before its task
        for stat in self._store.list(self._keys.pending):
            entry, kind = parts_of_entry(stat.key, self._keys.pending) or ("", "")
            if kind in (LEASE, REMOTE):
                beside[kind] = stat
            elif kind in (TASK, BATCH):
                row = TaskRow(self._id_of(entry, batch=kind == BATCH), "waiting", tasks=count_of(entry))
                if (lease := beside.get(LEASE)) and lease.key == self._keys.lease(entry):
                    row = self._leased(row, entry)
                if (remote := beside.get(REMOTE)) and remote.key == self._keys.remote(entry):
                    row = self._elsewhere(row, entry)
                counts = {"tasks": row.tasks, "done": row.done, "age_s": self._since_s(stat.modified)}
                yield {"id": row.id, **counts, **row.facts()}

    def _leased(self, row: TaskRow, entry: str, n: int | None = None) -> TaskRow:
        """The row with what the lease of its entry says, if there is one.   Cost: 1 GET."""
        try:
            seen = self.storage.lease(entry).read()
        except Corrupt as error:
            return replace(row, error=str(error))  # the worker that claims it puts it aside
        return with_lease(row, seen, n, self._now_of(seen.modified)) if seen else row

    def _recorded(self, entry: str, n: int) -> dict[str, Any]:
        """The recorded steps of a task that has not completed, the signals to it, and the tasks that it has pushed.

        Cost: 2 LISTs, 1 GET for each step and signal, in bulk; for its children that of `results`, of 20 at most.
        """
        steps: list[HistoryStep] = []
        unread: list[dict[str, Any]] = []
        for number, blob in sorted(self.storage.step_blobs(entry, n).items()):
            try:
                steps.append(history_step(number, self.storage.decoded_step(entry, n, number, blob).value))
            except LimpetError as error:
                unread.append({"number": number, "error": str(error)})
        facts = sorted([*step_facts(steps), *unread], key=lambda each: each["number"])
        return {"steps": facts, **self._signal_facts(entry, n), **self._children(steps)}

    def _signal_facts(self, entry: str, n: int) -> dict[str, Any]:
        """The signals that were sent to a task: to whichever life."""
        signals: list[dict[str, Any]] = []
        for key, blob in self._store.get_many(self.storage.signals_of(entry, n)[:SIGNALS_SHOWN]).items():
            with suppress(Corrupt, Invalid, Missing, Unsupported):
                if isinstance(blob, LimpetError):
                    raise blob
                record = Cell(self._store, key, SIGNAL_CODEC, self._runtime).decode(blob).value
                about = {"name": record.name, "by": record.label, "at": record.at}
                signals.append(about | value_facts(*cut_value(record.value)))
        return {"signals": signals} if signals else {}

    def _children(self, steps: Sequence[HistoryStep]) -> dict[str, Any]:
        """The tasks that these steps have pushed, the first 20 of them with their states.   Cost: that of `results`."""
        pushed = sum(step.tasks for step in steps)
        chosen = children_of(steps, CHILDREN_SHOWN)
        children: list[dict[str, Any]] = []
        for queue, group in groupby(chosen, key=lambda child: child[0]):
            reader = TaskResults(Storage(self._store, QueueKeys.of(queue), self._runtime))
            results = reader.results([id_ for _, id_ in group])
            children += ({"queue": queue, "id": each.id, "state": each.state} for each in results)
        return {"children": children, "pushed": pushed} if pushed else {}

    def _histories(self, entry: str, n: int, receipt: Receipt) -> dict[str, Any]:
        """What is kept of the steps of a task that has completed.

        Cost: 1 GET; for a task of a batch 1 LIST, and 1 GET for each claim that completed some of its tasks. For its
        children as `_recorded`.
        """
        keys = [self._keys.history(entry, receipt.token)]
        if is_batch(entry):
            listed = (stat for stat in self._store.list(f"{self._keys.parts}/{entry}") if is_history(stat.key))
            keys = [stat.key for stat in nlargest(HISTORIES_MAX, listed, key=_age_key)]
        for key, blob in self._store.get_many(keys).items():
            try:
                if isinstance(blob, LimpetError):
                    raise blob
                history = records.decode(blob.data, HistoryRecord, what=key).tasks.get(n)
            except (Corrupt, Invalid, Missing, Unsupported):
                continue
            if history is not None and is_of(receipt.life, history.life):
                left_out = {"steps_left_out": history.left_out} if history.left_out else {}
                return {"steps": step_facts(history.steps), **left_out, **self._children(history.steps)}
        return {"steps_lost": True}

    def _elsewhere(self, row: TaskRow, entry: str) -> TaskRow:
        """On a supervised node: a worker of another node may hold an entry that waits here.   Cost: 1 GET."""
        from limpet.queue.sync import RemoteLeases

        if row.state != "waiting" or row.overdue:
            return row
        remote = RemoteLeases(self._store, self._runtime).holder(self._keys.remote(entry))
        return replace(row, state="running", worker=f"{remote.label} at {remote.node}", lease=None) if remote else row

    def _id_of(self, entry: str, *, batch: bool) -> str:
        """The id behind an entry's name. A name too long for a key is a hash; then the task is read."""
        if not entry.startswith(HASHED):
            return name_of(entry)
        try:
            return self.storage.content(entry, batch=batch).ids[0]
        except (Missing, Corrupt):
            return entry

    def _scheduled_entries(self) -> Iterator[dict[str, Any]]:
        for stat in self._store.list(self._keys.scheduled):
            if found := parts_of_scheduled(stat.key):
                due, entry = found
                due_in_s = round((due - self._now_of(stat.modified)).total_seconds(), 1)
                yield {"id": name_of(entry), "due_at": due, "due_in_s": due_in_s}

    def _ended_entries(
        self, state: Literal["failed", "completed"], on_unreadable: Callable[[LimpetError], None] | None
    ) -> Iterator[dict[str, Any]]:
        folder = self._keys.failed if state == "failed" else self._keys.completed
        return (facts for _, _, facts in self.listed_entries(self._store.list(folder), on_unreadable))

    def listed_entries(
        self, stats: Iterable[Stat], on_unreadable: Callable[[LimpetError], None] | None = None
    ) -> Iterator[tuple[Key, Receipt, dict[str, Any]]]:
        """The receipts that a listing showed, each with its facts as in `entries`; no task that was retried.

        Cost: 1 GET each; for a batch in failed/ 2 LISTs more.
        """
        for key, seen in self._receipts_of(stats, on_unreadable):
            if seen.value.state != "retried":
                yield key, seen.value, self._ended_entry(key, seen)

    def latest(
        self, limit: int, on_unreadable: Callable[[LimpetError], None] | None = None
    ) -> tuple[list[dict[str, Any]], bool]:
        """The entries that completed last, the newest first, as facts; and whether all receipts were listed.

        Cost: that of `latest_receipts`, and `limit` GETs.
        """
        chosen, whole = self.latest_receipts(self._keys.completed, limit)
        rows = [self._ended_entry(key, seen) for key, seen in self._receipts_of(chosen, on_unreadable)]
        return sorted(rows, key=lambda row: row["age_s"]), whole

    def durations(self, limit: int = DURATIONS_OF) -> dict[str, Any]:
        """How long the handlers ran of tasks that completed lately, as the last `limit` receipts say: half of them at
        most `p50_s`, and 99 of 100 at most `p99_s`.   Cost: as `latest`.
        """
        chosen, _ = self.latest_receipts(self._keys.completed, limit)
        receipts = (seen.value for _, seen in self._receipts_of(chosen, lambda error: None))
        return duration_facts([took_s for receipt in receipts for took_s in took_of(receipt)])

    def latest_receipts(self, folder: str, limit: int, listed_max: int | None = None) -> tuple[list[Stat], bool]:
        """The receipts in a folder that were written last, and whether all were looked at.

        Of very many receipts the first 100,000 (`listed_max`) are, and as many of tasks that were pushed lately without
        an id: within 5 minutes, an hour, or a day, until there are `limit` of them.
        Cost: 1 LIST per 1,000 receipts, by default 202 at most.
        """
        most, recent = listed_max or RECEIPTS_LISTED_MAX, list[Stat]()
        listing = self._store.list(folder)
        newest = nlargest(limit, islice(listing, most), key=_age_key)
        if next(listing, None) is None:
            return newest, True
        for span_s in (300, 3600, 86_400):
            since_ms = int((self._runtime.wall().timestamp() - span_s) * 1000)
            pushed_since = self._store.list(folder, after=f"{folder}/{ulid(since_ms, 0)}")
            recent = nlargest(limit, islice(pushed_since, most), key=_age_key)
            if len(recent) == limit:
                break
        return nlargest(limit, {stat.key: stat for stat in (*newest, *recent)}.values(), key=_age_key), False

    def _receipts_of(
        self, stats: Iterable[Stat], on_unreadable: Callable[[LimpetError], None] | None
    ) -> Iterator[tuple[Key, Versioned[Receipt]]]:
        """These receipts, without those that are gone.   Cost: 1 GET each, in bulk."""
        listing = iter(stats)
        while page := [*islice(listing, RECEIPTS_AT_ONCE)]:
            for key, blob in self._store.get_many([stat.key for stat in page]).items():
                if isinstance(blob, Missing):
                    continue
                try:
                    seen = self.storage.decoded_receipt(key, blob)
                except (Corrupt, Invalid, Unsupported) as error:
                    if on_unreadable is None:
                        raise
                    on_unreadable(error)
                    continue
                yield key, seen

    def _ended_entry(self, key: Key, seen: Versioned[Receipt]) -> dict[str, Any]:
        receipt = seen.value
        completed = receipt.state == "completed"
        tasks = receipt.count if completed else self._stands_for(name_of_receipt(key))
        payload, took_s = (payload_in(receipt, 0), took_in(receipt, 0)) if receipt.count == 1 else (None, None)
        return {
            "id": receipt.id,
            "state": receipt.state,
            "tasks": tasks,
            "failed": len(receipt.failed) if completed else tasks,
            "attempts": receipt.attempts,
            "age_s": self._since_s(seen.modified),
            "pushed_at": receipt.pushed_at,
            "began_at": receipt.began_at,
            "finished_at": receipt.finished_at,
            "took_s": took_s,
            "worker": receipt.label,
            "error": receipt.error,
            "payload": None if payload is None else plain(payload),
            **_parent_facts(receipt.caller or "", receipt.parent or ""),
        }

    def describe(self, id_: str) -> dict[str, Any] | None:
        """Everything that the store has about a task or a batch, as facts; None if there is none of that id.

        For a retried task: the facts of its last retry.   Cost: up to 12 GETs, HEADs and LISTs; 4 for a failed task.
        For a durable task also that of its children, 20 at most, as of `results`; and 1 GET if it has completed, else 2
        LISTs and 1 GET for each recorded step and each signal.
        """
        result = self.result(id_)
        facts = {"id": result.id, "state": result.state}
        if result.id != id_:
            facts["asked_for"] = id_
        if result.ready:
            return {**facts, **self._ended_facts(result), **self._kept_facts(), **_error_facts(result.errors)}
        waiting = self.waiting_facts(result.id) or self._scheduled_facts(result.id)
        return waiting and {**facts, **waiting, **_error_facts(self.errors(result.id))}

    def _kept_facts(self) -> dict[str, Any]:
        """For how long receipts are kept, as of the last sweep; None if for ever. Nothing if that is not known."""
        with suppress(Corrupt, Denied, Unsupported):
            seen = self.storage.sweeps().read()
            if seen is not None and seen.value.retention_s is not msgspec.UNSET:
                return {"receipts_kept_s": seen.value.retention_s}
        return {}

    def _ended_facts(self, result: Result) -> dict[str, Any]:
        name = entry_of(result.id)
        facts: dict[str, Any] = {
            "worker": result.worker,
            "attempts": result.attempts,
            "finished_at": result.finished_at,
        }
        entry, n = batch_of(name) or (name, 0)
        if result.state == "completed":
            whole = self._read(self._keys.completed_of(name)) or self._read(self._keys.completed_of(entry))
            if whole is None:  # done in a batch that goes on
                return {**facts, "result": result.value}
            if whole.count > 1 and is_batch(name):
                return {**facts, "tasks": whole.count, "failed": [f"{result.id}.{m}" for m in whole.failed]}
            facts |= {**_receipt_facts(whole, n), "result": result.value}
            return {**facts, **(self._histories(entry, n, whole) if whole.durable else {})}
        receipt = self._read(self._keys.failed_of(name))
        facts |= {"error": result.error, "traceback": result.traceback}
        if receipt is not None:
            facts |= {"payload": plain(receipt.payload), **_receipt_facts(receipt, n)}
            facts |= {"tasks": receipt.count} if receipt.count > 1 else {}
            facts |= {"raw": receipt.raw} if receipt.raw else {}
            if receipt.origin:
                facts |= self._recorded(entry, n)
        return facts

    def waiting_facts(self, id_: str) -> dict[str, Any] | None:
        """What is known of a task, a task of a batch, or a whole batch that has not ended; None if it does not wait."""
        part = batch_of(id_)
        entry = part[0] if part else entry_of(id_)
        batch = part is not None or is_batch(entry)
        try:
            content = self.storage.content(entry, batch=batch)
        except Missing:
            return None
        n = part[1] if part else 0
        if n >= len(content.payloads):
            return None
        whole = batch and part is None
        facts: dict[str, Any] = {"pushed_at": content.pushed_at}
        facts |= {"tasks": len(content.ids)} if whole else {"payload": plain(content.payloads[n])}
        facts |= _parent_facts(content.caller, content.parent)
        row = self._leased(TaskRow(id_, "waiting", batch=part and entry), entry, None if whole else n)
        lease = row.lease
        if self.storage.journal.travels:
            row = self._elsewhere(row, entry)
        facts |= row.facts()
        if lease is None:
            return facts
        if part is not None:
            facts["batch"] = entry
        if whole:
            facts |= {"done": row.done, "failed": [f"{entry}.{m}" for m in lease.failed]}
        elif n in {*lease.durable, *lease.suspended}:
            facts |= self._recorded(entry, n)
        return facts

    def _scheduled_facts(self, id_: str) -> dict[str, Any] | None:
        """What is known of a push that is not due yet; None if there is none.   Cost: 1 LIST per 1,000 of them."""
        for key in self.scheduled(entry_of(id_)):
            task = read_task(self._store.get(key).data, what=key)
            return {
                "state": "scheduled",
                "due_at": due_of(key.rsplit("/", 2)[1]),
                "pushed_at": task.pushed_at,
                "payload": plain(task.payload),
                **_parent_facts(task.caller or "", task.parent or ""),
            }
        return None

    def _now_of(self, stamp: datetime | None) -> datetime:
        """An estimate of the store's time without writing: this machine's, but not before a stamp of the store."""
        wall = self._runtime.wall()
        return wall if stamp is None else max(wall, stamp)

    def _since_s(self, stamp: datetime | None) -> float:
        assert stamp is not None
        return round((self._now_of(stamp) - stamp).total_seconds(), 1)


def _error_facts(errors: Sequence[AttemptError]) -> dict[str, Any]:
    """The attempts that failed, the oldest first."""
    return {"errors": [asdict(each) for each in errors]} if errors else {}


def took_of(receipt: Receipt) -> list[float]:
    """How long handlers ran, as far as a receipt tells it."""
    alone = None if receipt.began_at is None else took_in(receipt, 0)
    return [*receipt.took.values()] if alone is None else [alone]


def duration_facts(took_s: Sequence[float]) -> dict[str, Any]:
    """Half of these durations are at most `p50_s`, and 99 of 100 at most `p99_s`."""
    if not took_s:
        return {"tasks": 0}
    rising = sorted(took_s)
    p50_s, p99_s = (rising[min(len(rising) - 1, int(len(rising) * part))] for part in (0.5, 0.99))
    return {"tasks": len(rising), "p50_s": p50_s, "p99_s": p99_s, "longest_s": rising[-1]}


def _age_key(stat: Stat) -> tuple[datetime, str]:
    return stat.modified, stat.key


def _receipt_facts(receipt: Receipt, n: int) -> dict[str, Any]:
    """What a receipt says of task `n` beside its end."""
    payload, took_s = payload_in(receipt, n), took_in(receipt, n)
    facts: dict[str, Any] = {"pushed_at": receipt.pushed_at}
    facts |= {} if payload is None else {"payload": plain(payload)}
    facts |= {} if receipt.began_at is None else {"began_at": receipt.began_at}
    facts |= {} if took_s is None else {"took_s": took_s}
    return {**facts, **_parent_facts(receipt.caller or "", receipt.parent or "")}


def _parent_facts(caller: str, parent: str) -> dict[str, Any]:
    """The durable task that pushed a task, and its step."""
    id_, mark, number = parent.rpartition(PARENT_MARK)
    if not (caller and mark and number.isdecimal()):
        return {}
    return {"parent": {"queue": caller, "id": id_, "step": int(number)}}


def error_filter(where: str | None) -> Callable[[str], bool]:
    """Whether an error is meant by `where`: a text that it contains, or `error ~ PATTERN`, a regular expression that is
    found in it. Upper and lower case are the same; None means every error.   Raises: Invalid for a wrong pattern, and
    for another name than `error`."""
    if where is None:
        return lambda error: True
    found = WHERE.fullmatch(where)
    if found is None:
        part = where.casefold()
        return lambda error: part in error.casefold()
    if found[1] != "error":
        raise Invalid(f"tasks cannot be chosen by {found[1]!r}", hint="write error ~ PATTERN, or a text of the error")
    try:
        pattern = re.compile(found[2], re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        raise Invalid(f"{found[2]!r} is no regular expression: {error}", hint="write error ~ 'HTTP 4..'") from None
    return lambda error: pattern.search(error) is not None


def kind_of(error: str) -> str:
    """What groups failures: the error without the figures in it, unless it is nothing but figures, such as a status."""
    kind = NUMBERS.sub("#", error)
    return (kind if any(map(str.isalpha, kind)) else error)[:KIND_CHARS_MAX]
