"""What can be seen of a queue without changing it: counts, entries, results, failures.

`Inspection` reads one queue; `summarize` counts all queues of a store by one listing. Names tell the state of an entry
and how many tasks it holds, so that only leases and control records are read. Nothing is written: a read-only key is
enough. Both count with `QueueCount`.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Literal, TypeVar, get_args

import msgspec

from limpet import records
from limpet.cell import Versioned
from limpet.errors import Corrupt, Denied, Invalid, LimpetError, Missing, Unsupported
from limpet.keys import (
    BATCH,
    HASHED,
    LEASE,
    QUEUES,
    REMOTE,
    RETRY_MARK,
    TASK,
    Key,
    QueueKeys,
    batch_of,
    count_of,
    due_of,
    entry_of,
    is_batch,
    is_minted,
    life_before,
    name_of,
    name_of_receipt,
    parts_of_entry,
    parts_of_scheduled,
    retry_of,
)
from limpet.lease import State
from limpet.lease.decide import is_live
from limpet.queue.api import AttemptError, Failure, Outcome, Peeked, Result, Stats
from limpet.queue.decide import (
    at_work,
    attempt_errors,
    attempts_in,
    attempts_of,
    completion,
    errors_of,
    first_done,
    lists_done,
    open_tasks,
)
from limpet.queue.durable import until
from limpet.queue.entry import (
    ENTRY_BYTES_MAX,
    NOTHING,
    EntryLease,
    Part,
    Receipt,
    Storage,
    Suspension,
    lease_of,
    read_content,
    read_task,
)
from limpet.runtime import Runtime, ulid
from limpet.store.api import Blob, Stat, Store, Version

QueueState = Literal["ok", "paused", "no worker"]
Folder = Literal["completed", "failed", "pending", "scheduled"]
FOLDERS: tuple[Folder, ...] = get_args(Folder)

OBJECTS_MAX = 10_000
LEASES_READ_MAX = 200
PAGE = 1000
IDS_MAX = 10
RECEIPTS_AT_ONCE = 50
RECEIPTS_READ_MAX = 1000
"""How many receipts in failed/ are read of a queue whose folders are not counted to their ends."""
RESULTS_AT_ONCE = 256
KIND_CHARS_MAX = 200
WHERE = re.compile(r"\s*(\w+)\s*~\s*(.+?)\s*", re.DOTALL)
NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")

ALL: Mapping[Folder, float] = dict.fromkeys(FOLDERS, float("inf"))
"""Count every object, whatever it costs."""
SOME: Mapping[Folder, float] = dict.fromkeys(FOLDERS, float(OBJECTS_MAX))
"""Stop counting at 10,000 objects of a folder: a fleet keeps a receipt for each entry for weeks."""


@dataclass(slots=True)
class FinishTimes:
    """How many tasks and entries ended in each minute (of the Unix time), by the store's times of their receipts."""

    tasks: Counter[int] = field(default_factory=Counter)
    entries: Counter[int] = field(default_factory=Counter)

    def add(self, stat: Stat) -> None:
        """Count one receipt of an entry."""
        minute = int(stat.modified.timestamp()) // 60
        self.tasks[minute] += count_of(name_of_receipt(stat.key))
        self.entries[minute] += 1


def last_finished(store: Store, keys: QueueKeys, since: datetime, most: int) -> FinishTimes:
    """When tasks completed that were pushed after `since`, of the first `most` of them, in a queue with many receipts.

    Names that Limpet made sort by the time of the push. Ids of users do not: they may be missing.   Cost: 1 LIST per
    1,000 objects.
    """
    found = FinishTimes()
    after = f"{keys.completed}/{ulid(int(since.timestamp() * 1000), 0)}"
    for stat in islice(store.list(keys.completed, after=after), most):
        if not batch_of(name_of_receipt(stat.key)):
            found.add(stat)
    return found


@dataclass(slots=True)
class QueueCount:
    """What listings showed of one queue. `cut` names the folders that were not listed to their end."""

    queue: str
    keys: QueueKeys
    pending: int = 0
    scheduled: int = 0
    failed: dict[str, Version] = field(default_factory=dict)
    """The names in failed/ with the versions of their receipts; `FailedReceipts` tells failed from cancelled."""
    leases: list[Stat] = field(default_factory=list)
    """The leases of entries that have a task."""
    untaken: int = 0
    """Tasks of entries without a lease: no worker has ever claimed them."""
    untaken_since: datetime | None = None
    """When the first of them became due; without those that another node of a supervised fleet holds."""
    worked_at: datetime | None = None
    """When a lease or a receipt was last written, of those that were listed."""
    oldest: datetime | None = None
    newest: datetime | None = None
    control: bool = False
    cut: set[Folder] = field(default_factory=set)
    entries: int = 0
    """Entries in pending/: single tasks and batches."""
    ended: int = 0
    """Entries that have a receipt."""
    named: int = 0
    """Those of `ended` that were pushed with an id."""
    finished: FinishTimes = field(default_factory=lambda: FinishTimes())
    pushed: Counter[int] = field(default_factory=Counter)
    """Pending tasks by the minute (of the Unix time) in which they were pushed, by the store's clock."""
    _beside: dict[str, Stat] = field(default_factory=dict)
    """The objects that were listed last before the task of an entry, by kind."""
    _objects: Counter[str] = field(default_factory=Counter)
    _retried: set[str | None] = field(default_factory=set)
    _completed: int = 0
    _completed_names: array[int] = field(default_factory=lambda: array("q"))
    """A hash of each name in completed/: there may be millions."""
    _compared: tuple[tuple[int, int], set[str]] | None = None
    """What `completed_of_failed` has found, and for how many names."""

    def add(self, folder: str, stat: Stat, limits: Mapping[Folder, float] = ALL) -> bool:
        """Count one object; False if its folder is full, and the rest of it is not worth listing."""
        self.newest = max(self.newest or stat.modified, stat.modified)
        match folder:
            case "completed" | "failed" | "pending" | "scheduled":
                if self._objects[folder] >= limits[folder]:
                    self.cut.add(folder)
                    return False
                self._objects[folder] += 1
                self._count(folder, stat)
                return True
            case "control.json":
                self.control = True
        return folder.endswith(".json")

    def _count(self, folder: Folder, stat: Stat) -> None:
        match folder:
            case "pending":
                entry, kind = parts_of_entry(stat.key, self.keys.pending) or ("", "")
                if kind in (LEASE, REMOTE):
                    self._beside[kind] = stat
                elif kind in (TASK, BATCH):
                    self._count_taken(entry, stat)
                    self.pending += count_of(entry)
                    self.pushed[int(stat.modified.timestamp()) // 60] += count_of(entry)
                    self.entries += 1
                    self.oldest = min(self.oldest or stat.modified, stat.modified)
                    self._retried.add(life_before(entry))
            case "scheduled":
                self.scheduled += 1
            case "completed":
                name = name_of_receipt(stat.key)
                self._completed_names.append(hash(name))
                if not batch_of(name):
                    self._end(name, stat)
                    self._completed += count_of(name)
                    self._retried.add(life_before(name))
            case "failed":
                name = name_of_receipt(stat.key)
                self.failed[name] = stat.version
                self._retried.add(life_before(name))
                self._work(stat)
                if not batch_of(name):
                    self._end(name, stat)

    def _count_taken(self, entry: str, stat: Stat) -> None:
        """Whether an entry has a lease, which is listed before its task."""
        lease, remote = self._beside.get(LEASE), self._beside.get(REMOTE)
        if lease is not None and lease.key == self.keys.lease(entry):
            self.leases.append(lease)
            self._work(lease)
            return
        self.untaken += count_of(entry)
        if remote is None or remote.key != self.keys.remote(entry):
            self.untaken_since = min(self.untaken_since or stat.modified, stat.modified)

    def _work(self, stat: Stat) -> None:
        self.worked_at = max(self.worked_at or stat.modified, stat.modified)

    def _end(self, name: str, stat: Stat) -> None:
        self.ended += 1
        self.named += not is_minted(name)
        self.finished.add(stat)
        self._work(stat)

    def failed_tasks(self) -> dict[str, int]:
        """The names in failed/ that were neither retried nor completed since (H4), and how many tasks each stands for.

        The receipt of a whole batch stands for the tasks that have no receipt of their own. A name that a user gave may
        have a retry of another life: only its receipt tells whether it was retried.
        """
        completed = self.completed_of_failed()
        own = Counter(part[0] for name in {*self.failed, *completed} if (part := batch_of(name)))
        tasks = {
            name: count_of(name) - own[name]
            for name in self.failed
            if name not in completed and not (name in self._retried and is_minted(name.partition(RETRY_MARK)[0]))
        }
        return {name: number for name, number in tasks.items() if number > 0}

    def completed_tasks(self) -> int:
        """Completed tasks: those of completed entries, without the ones of a batch that failed; and those that were
        done in a batch which did not complete."""
        completed = self.completed_of_failed()
        tasks = self._completed
        for name in {*self.failed, *completed}:
            if part := batch_of(name):
                tasks -= part[0] in completed and name not in completed
                tasks += part[0] not in completed and name in completed and part[0] in self.failed
        return tasks

    def completed_of_failed(self) -> set[str]:
        """The names in failed/, the batches of such, and the tasks of such batches, that are in completed/ too."""
        listed = len(self.failed), len(self._completed_names)
        if self._compared is not None and self._compared[0] == listed:
            return self._compared[1]
        batches = [name for name in self.failed if is_batch(name)]
        names = {
            *self.failed,
            *(part[0] for name in self.failed if (part := batch_of(name))),
            *(f"{entry}.{n}" for entry in batches for n in range(count_of(entry))),
        }
        hashes = {hash(name): name for name in names}
        both = {hashes[code] for code in self._completed_names if code in hashes}
        self._compared = listed, both
        return both


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary(Stats):
    """The `Stats` of one queue among others.

    `at_least` names the fields that are lower bounds, because counting stopped; while `completed` is one, `cancelled`
    counts tasks that were done in a cancelled batch too.
    """

    queue: str
    at_least: tuple[str, ...] = ()
    waiting: int = 0
    """Tasks that no worker holds, and that wait for nothing but a worker."""
    due_s: float | None = None
    """How long a task has waited for a worker while nothing was done in the queue; None: no task is due."""
    no_worker: bool = False
    """Whether a task is due and no living worker names the queue; see `limpet.app.health.attended`."""
    trouble: str = ""
    """Why part of it is not known."""
    approximate: bool = False
    """Whether these are numbers of SQS. Then `completed`, `oldest_s`, `resting` and `done` are None."""
    suspended: int = 0
    """How many durable tasks wait without a worker; they are counted as pending and as resting."""
    suspended_reason: str = ""
    """What the one that has waited for the longest time waits for."""
    unread: int = 0
    """Tasks of entries whose lease was not read: they may be in flight, or rest, or neither."""

    @property
    def state(self) -> QueueState:
        """Whether somebody works on it, or should."""
        return "paused" if self.paused else "no worker" if self.no_worker else "ok"

    def facts(self) -> dict[str, Any]:
        """The fields for `--json`, without those that say nothing."""
        facts = {"queue": self.queue, "state": self.state, **asdict(self)}
        rare = ("trouble", "approximate", "suspended", "suspended_reason", "unread", "due_s", "no_worker")
        return {name: value for name, value in facts.items() if name not in rare or value}


def count_queues(store: Store, queues: Iterable[str] | None, limits: Mapping[Folder, float]) -> list[QueueCount]:
    """Count these queues, or all there are, in the order of their names. A queue that has no object is left out.

    Cost: 1 LIST per 1,000 objects listed; 1 more for each folder that is cut short, and for each queue named.
    """
    return count_below(store, [QUEUES] if queues is None else [QueueKeys.of(name).root for name in queues], limits)


def count_below(store: Store, prefixes: Iterable[str], limits: Mapping[Folder, float]) -> list[QueueCount]:
    """Count the queues below these prefixes: that of all queues, or the folders of some.   Cost: as `count_queues`."""
    found: dict[str, QueueCount] = {}
    for prefix in prefixes:
        after: str | None = None
        while (after := _add_listed(store.list(prefix, after=after), found, limits)) is not None:
            continue
    return sorted(found.values(), key=lambda each: each.queue)


def count_first(store: Store, limits: Mapping[Folder, float], lists_max: int) -> tuple[list[QueueCount], bool]:
    """Count queues in the order of their keys by about `lists_max` LISTs, and whether these were all queues.

    A queue that was not listed to its end is left out.
    """
    found: dict[str, QueueCount] = {}
    listing = store.list(QUEUES)
    for _ in range(lists_max):
        listed = [*islice(listing, PAGE)]
        skipped_to = _add_listed(listed, found, limits)
        if skipped_to is not None:
            listing = store.list(QUEUES, after=skipped_to)
        elif len(listed) < PAGE:
            return [*found.values()], True
    return [*found.values()][:-1], False


def _add_listed(listed: Iterable[Stat], found: dict[str, QueueCount], limits: Mapping[Folder, float]) -> str | None:
    """Count what was listed until a folder is full; from where to list on then."""
    for stat in listed:
        _, queue, *below = stat.key.split("/", 3)
        if not below:
            continue  # an object beside the queues, which is not ours
        if queue not in found:
            found[queue] = QueueCount(name_of(queue), QueueKeys(f"{QUEUES}/{queue}"))
        if not found[queue].add(below[0], stat, limits):
            return f"{found[queue].keys.root}/{below[0]}0"  # 0 is the character behind the slash
    return None


def summarize(
    store: Store,
    runtime: Runtime,
    queues: Iterable[str] | None = None,
    *,
    limits: Mapping[Folder, float] = SOME,
) -> list[QueueSummary]:
    """Count these queues of a store, or all there are, in the order of their names.

    Ages are by this machine's clock, but never before what the store stamped.
    Cost: that of `count_queues`, 1 GET for each queue that was ever paused, and for each queue 1 GET a lease, at most
    200, and 1 GET a receipt in failed/, at most 1,000 unless all of that folder is to be counted.
    """
    counts = count_queues(store, queues, limits)
    now = max([runtime.wall(), *(each.newest for each in counts if each.newest)])
    most = float("inf") if limits["failed"] == float("inf") else RECEIPTS_READ_MAX
    receipts = FailedReceipts()
    return [summary_of(Storage(store, each.keys, runtime), each, now, receipts, most) for each in counts]


def summary_of(
    storage: Storage, count: QueueCount, now: datetime, receipts: FailedReceipts, receipts_max: float
) -> QueueSummary:
    """The summary of a queue that was counted.

    Cost: 1 GET if it was ever paused, 1 GET a lease, at most 200, and what `receipts` needs for its count.
    """
    leases = sorted(count.leases, key=lambda stat: stat.modified, reverse=True)
    cut: set[str] = {*count.cut}
    if "pending" in cut:
        cut |= {"done", "in_flight", "oldest_s", "resting", "suspended", "waiting"}
    if "failed" in cut:
        cut.add("cancelled")
    if len(leases) > LEASES_READ_MAX:
        cut |= {"done", "in_flight", "resting", "suspended", "waiting"}
    work = _at_work(storage.store, leases[:LEASES_READ_MAX], now)
    if work.error is not None:
        raise work.error
    paused, trouble = False, ""
    try:
        paused = count.control and storage.paused()
    except (Corrupt, Invalid, Unsupported) as unread:  # the other queues are still shown
        trouble = f"cannot tell whether it is paused: {unread}"
    ended = receipts.count(storage, count, receipts_max)
    if ended.unread:
        cut |= {"cancelled", "failed"}
    figures = _figures(count, work, ended, now, paused=paused)
    due_at = min(filter(None, [count.untaken_since, work.due_at]), default=None)
    reason = "" if work.suspended_longest is None else work.suspended_longest.reason
    return QueueSummary(
        queue=count.queue,
        at_least=tuple(sorted(cut)),
        waiting=count.untaken + work.waiting,
        due_s=None if due_at is None else (now - max(due_at, count.worked_at or due_at)).total_seconds(),
        trouble=trouble,
        suspended=work.suspended,
        suspended_reason=reason,
        unread=sum(count_of(stat.key.rsplit("/", 2)[1]) for stat in leases[LEASES_READ_MAX:]),
        **figures,
    )


def _figures(
    count: QueueCount, work: LeaseCounts, ended: FailedCount, now: datetime, *, paused: bool
) -> dict[str, Any]:
    """The fields of `Stats`."""
    return {
        "pending": count.pending,
        "in_flight": work.in_flight,
        "scheduled": count.scheduled,
        "completed": count.completed_tasks() + ended.done,
        "failed": ended.failed,
        "cancelled": ended.cancelled,
        "oldest_s": None if count.oldest is None else max(0.0, (now - count.oldest).total_seconds()),
        "paused": paused,
        "resting": work.resting,
        "done": work.done,
    }


@dataclass(slots=True)
class LeaseCounts:
    """How many tasks live workers hold, how many wait for their next attempt, how many are done in batches that have
    not ended, and how many are suspended; how many wait for a worker, and since when one does; and the first error of
    the store."""

    in_flight: int = 0
    resting: int = 0
    done: int = 0
    suspended: int = 0
    suspended_longest: Suspension | None = None
    waiting: int = 0
    due_at: datetime | None = None
    error: LimpetError | None = None

    def add(self, record: EntryLease, count: int, *, modified: datetime, now: datetime) -> None:
        """Count an entry of `count` tasks by its lease."""
        works, rests = at_work(record, count, modified=modified, now=now)
        suspended = record.suspended if record.state is State.FREE else {}
        self.in_flight += works
        self.resting += max(rests, len(suspended))
        self.done += len(record.done)
        self.suspended += len(suspended)
        longest = [*suspended.values(), *filter(None, [self.suspended_longest])]
        self.suspended_longest = min(longest, key=lambda each: each.since, default=None)
        if record.state is State.CANCELLED or works or rests:
            return
        waiting = len(open_tasks(record, count)) - len(suspended)
        self.waiting += waiting
        # a suspended task whose time has come needs a worker as well
        dues = [due for each in suspended.values() if (due := until(each, modified)) is not None and due <= now]
        if waiting:
            dues.append(modified + timedelta(seconds=record.ttl_s if record.state is State.HELD else record.wait_s))
        self.due_at = min([*dues, *filter(None, [self.due_at])], default=None)


def _at_work(store: Store, leases: Sequence[Stat], now: datetime) -> LeaseCounts:
    """Count by leases. One that is gone or cannot be read counts for none.   Cost: 1 GET a lease."""
    found = LeaseCounts()
    for key, blob in store.get_many([stat.key for stat in leases]).items():
        if isinstance(blob, LimpetError):
            if not isinstance(blob, (Missing, Corrupt, Invalid)):
                found.error = found.error or blob
            continue
        count = count_of(key.rsplit("/", 2)[1])
        with suppress(Corrupt, Unsupported):
            found.add(lease_of(blob.data, count=count, what=key), count, modified=blob.modified, now=now)
    return found


@dataclass(frozen=True, slots=True)
class FailedCount:
    """How many tasks the receipts in failed/ stand for, by what became of them. `done`: those that are done after all,
    as the receipt of their batch says. `unread`: those whose receipts were not read."""

    failed: int = 0
    cancelled: int = 0
    done: int = 0
    unread: int = 0


class FailedReceipts:
    """Tells failed tasks from cancelled ones, and from those that were retried: every view counts with it.

    Names in failed/ do not tell, so that receipts are read, in bulk. They are remembered by their versions: who keeps
    this object pays once for each receipt. A receipt that cannot be read counts as failed.
    """

    def __init__(self) -> None:
        self._verdicts: dict[str, dict[str, tuple[Version, bool, str]]] = {}
        self.read = 0
        """How many receipts in failed/ were read."""
        self.unread: dict[str, int] = {}
        """By the folder of a queue: how many tasks the last count left out."""

    def count(
        self, storage: Storage, count: QueueCount, most: float = float("inf"), enough: float = float("inf")
    ) -> FailedCount:
        """Count the tasks of a queue that was listed. Of receipts that are not known it reads `most`, and stops once
        more than `enough` tasks have failed; `unread` says how many tasks are left then.

        Where completed/ was not listed to its end, a task that failed is looked for there, as by `Queue.failed`.
        Cost: 1 GET for each receipt that is not known; 1 more for each batch of failed tasks that has completed; and if
        completed/ was not listed to its end 1 more for each receipt.
        """
        names = count.failed_tasks()
        completed = count.completed_of_failed()
        cut = "completed" in count.cut

        def ended(name: str) -> bool:
            """Whether there may be a receipt of its batch in completed/."""
            part = batch_of(name)
            return cut or (part is not None and part[0] in completed)

        before = self._verdicts.get(count.keys.root, {})
        verdicts = {
            name: before[name]
            for name in names
            if name in before and before[name][:2] == (count.failed[name], ended(name))
        }
        self._verdicts[count.keys.root] = verdicts
        missing = [name for name in names if name not in verdicts]
        chosen = missing if len(missing) <= most else missing[: int(most)]
        tally = Counter[str]()
        for name, (_, _, verdict) in verdicts.items():
            tally[verdict] += names[name]
        for start in range(0, len(chosen), RECEIPTS_AT_ONCE):
            if tally["failed"] > enough:
                break
            page = chosen[start : start + RECEIPTS_AT_ONCE]
            self.read += len(page)
            for name, verdict in self._read(storage, page, ended, cut=cut).items():
                verdicts[name] = count.failed[name], ended(name), verdict
                tally[verdict] += names[name]
        self.unread[count.keys.root] = unread = sum(names.values()) - sum(tally.values())
        return FailedCount(tally["failed"], tally["cancelled"], tally["done"], unread)

    def _read(
        self, storage: Storage, names: Sequence[str], ended: Callable[[str], bool], *, cut: bool
    ) -> dict[str, str]:
        """What became of these: failed, cancelled, retried, done (in its batch), completed or gone."""
        keys = storage.keys
        receipts = _receipts_at(storage, {name: keys.failed_of(name) for name in names})
        verdicts: dict[str, str] = {}
        for name in names:
            receipt = receipts[name]
            verdicts[name] = "failed" if isinstance(receipt, LimpetError) else receipt.state if receipt else "gone"
        failed = [name for name in names if verdicts[name] == "failed"]
        batches = dict.fromkeys(part[0] for name in failed if (part := batch_of(name)) and ended(name))
        wholes = _receipts_at(storage, {entry: keys.completed_of(entry) for entry in batches})
        for name in failed:
            part = batch_of(name)
            whole = wholes.get(part[0]) if part else None
            if part and isinstance(whole, Receipt) and lists_done(whole, part[1]):
                verdicts[name] = "done"
        asked = [name for name in failed if cut and verdicts[name] == "failed"]
        for name, own in _receipts_at(storage, {name: keys.completed_of(name) for name in asked}).items():
            if own is not None:
                verdicts[name] = "completed"
        return verdicts


def _receipts_at(storage: Storage, keys: Mapping[str, Key]) -> dict[str, Receipt | LimpetError | None]:
    """The receipts at these keys, by name; None for one that is not there, and the error of one that cannot be read.

    Raises: errors of the store.   Cost: 1 GET each, in bulk.
    """
    receipts: dict[str, Receipt | LimpetError | None] = {}
    blobs = storage.store.get_many([*keys.values()])
    for name, key in keys.items():
        try:
            receipts[name] = storage.decoded_receipt(key, blobs[key]).value
        except Missing:
            receipts[name] = None
        except (Corrupt, Invalid, Unsupported) as error:
            receipts[name] = error
    return receipts


@dataclass(frozen=True, slots=True)
class ResultRead:
    """A read that the answer about a task needs. One that several tasks need is made once."""

    what: Literal["receipt", "lease", "part", "exists", "scheduled"]
    key: Key


T = TypeVar("T")
Reads = Generator[ResultRead, Any, T]
"""A query about one task: it yields the reads that it needs, and is sent their results."""


class Inspection:
    """The reading side of one queue. A listing needs names only; `storage` is for what must be read."""

    def __init__(self, store: Store, keys: QueueKeys, runtime: Runtime, storage: Storage | None = None) -> None:
        self._store = store
        self._keys = keys
        self._runtime = runtime
        self._opened = storage
        self._receipts = FailedReceipts()

    @property
    def _storage(self) -> Storage:
        if self._opened is None:
            self._opened = Storage(self._store, self._keys, self._runtime)
        return self._opened

    def stats(self) -> Stats:
        """A retried task counts in its current state."""
        count = QueueCount("", self._keys)
        for folder in ("pending", "failed", "completed"):
            for stat in self._store.list(f"{self._keys.root}/{folder}"):
                count.add(folder, stat)
        now = self._now()
        work = _at_work(self._store, count.leases, now)
        for stat in self._store.list(self._keys.scheduled):
            count.add("scheduled", stat)
        paused = False
        with suppress(Corrupt, Unsupported):  # it counts as not paused, as it does for workers that start now
            paused = self._storage.paused()
        ended = self._receipts.count(self._storage, count)
        return Stats(**_figures(count, work, ended, now, paused=paused))

    def pending(self) -> int:
        """How many tasks have not ended.   Cost: 1 LIST per 1,000 objects in pending/."""
        count = QueueCount("", self._keys)
        for stat in self._store.list(self._keys.pending):
            count.add("pending", stat)
        return count.pending

    def _now(self) -> datetime:
        """The store's clock. Where a read-only key may not ask it: the newest time that was seen, else our clock."""
        for ask in (self._storage.exact_now, self._store.now):
            with suppress(Denied):
                return ask()
        return self._runtime.wall()

    def peek(self, n: int) -> list[Peeked]:
        """Up to `n` pending tasks. Those that cannot be read are left out."""
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
        """For a retried task: the result of its last retry. A task that is done in a running batch has ended."""
        return self._answer(self._result(plain_id(id_)))

    def results(self, ids: Iterable[str]) -> list[Result]:
        """As `result`, for many; a failed task of a batch that still runs is known by the last heartbeat.

        A task whose objects cannot be read is `unknown`, with the reason as its error; the others are not affected.
        """
        wanted = [*map(plain_id, ids)]
        found = self._answer_all({id_: self._standing(id_) for id_ in wanted})
        return [found[id_] for id_ in wanted]

    def ended(self, ids: Iterable[str]) -> dict[str, Result]:
        """The results of those that have ended.   Cost: see `BucketQueue.wait`."""
        found = self._answer_all({id_: self._ended(id_) for id_ in sorted(ids)})
        return {id_: result for id_, result in found.items() if result.ready or result.error}

    def _answer(self, question: Reads[T]) -> T:
        """Read what it asks for, one after another."""
        try:
            read = next(question)
            while True:
                found = self._found_all({read})[read]
                read = question.throw(found) if isinstance(found, LimpetError) else question.send(found)
        except StopIteration as end:
            answer: T = end.value
            return answer

    def _answer_all(self, questions: Mapping[str, Reads[Result]]) -> dict[str, Result]:
        """Read what they ask for: the first read of all of them at the same time, then the second, and so on."""
        answers: dict[str, Result] = {}
        sent: dict[str, Any] = dict.fromkeys(questions)
        while sent:
            reads: dict[str, ResultRead] = {}
            for id_, found in sent.items():
                question = questions[id_]
                try:
                    reads[id_] = question.throw(found) if isinstance(found, LimpetError) else question.send(found)
                except StopIteration as end:
                    answers[id_] = end.value
                except (Corrupt, Unsupported) as error:
                    answers[id_] = Result(id_, "unknown", error=str(error))
            found_of = self._found_all({*reads.values()})
            sent = {id_: found_of[read] for id_, read in reads.items()}
        return answers

    def _found_all(self, reads: set[ResultRead]) -> dict[ResultRead, Any]:
        """What each read found; the error of an object that cannot be read (F23).   Raises: other errors."""
        found: dict[ResultRead, Any] = {}
        gets = sorted((read for read in reads if read.what in ("receipt", "lease", "part")), key=lambda read: read.key)
        for start in range(0, len(gets), RESULTS_AT_ONCE):
            some = gets[start : start + RESULTS_AT_ONCE]
            blobs = self._store.get_many([read.key for read in some])
            for read in some:
                blob = blobs[read.key]
                try:
                    if isinstance(blob, LimpetError):
                        raise blob
                    found[read] = self._decoded(read, blob)
                except Missing:
                    found[read] = None
                except (Corrupt, Unsupported) as error:
                    found[read] = error
        heads = sorted((read for read in reads if read.what == "exists"), key=lambda read: read.key)
        for read, answer in zip(heads, self._runtime.fan_out(self._exists, heads), strict=True):
            if isinstance(answer, LimpetError):
                raise answer
            found[read] = answer
        if later := [read for read in reads if read.what == "scheduled"]:
            waiting = self.due_times()
            found |= {read: read.key.rsplit("/", 1)[1] in waiting for read in later}
        return found

    def _exists(self, read: ResultRead) -> bool | LimpetError:
        try:
            return self._storage.exists(read.key)
        except LimpetError as error:
            return error

    def _decoded(self, read: ResultRead, blob: Blob) -> Any:
        match read.what:
            case "lease":
                return self._storage.lease(read.key.rsplit("/", 2)[1]).decode(blob)
            case "part":
                return records.decode(blob.data, Part, what=read.key)
            case _:
                return self._storage.receipt(read.key).decode(blob).value

    def _result(self, id_: str) -> Reads[Result]:
        while True:
            receipt = yield from self._receipt(id_)
            if receipt is None:
                where = yield from self._whereabouts(id_)
                if where == "unknown":
                    # It may have ended between two looks. A batch that is nowhere does not end any more, unless it
                    # travels.
                    receipt = yield from self._receipt(id_, gone=not self._storage.journal.travels)
                elif where == "pending" and (part := batch_of(id_)):
                    early = yield from self._early(id_, *part)
                    if isinstance(early, Result):
                        return early
                    receipt = early
                if receipt is None:
                    return Result(id_, where)
            if receipt.state == "retried" and receipt.retried_as:
                id_ = next_life(id_, receipt.retried_as)
                continue
            return _as_result(id_, receipt)

    def _standing(self, id_: str) -> Reads[Result]:
        """As `_result`, with what the tasks of a batch have in common read first."""
        found = yield from self._ended(id_)
        if found.ready:
            return found
        where = yield from self._whereabouts(found.id)
        if where == "unknown":
            return (yield from self._result(found.id))
        return Result(found.id, where)

    def _ended(self, id_: str) -> Reads[Result]:
        """The result of a task that has ended; for another one, only the id of its last retry."""
        while True:
            part = batch_of(id_)
            receipt: Receipt | Result | None
            if part is None:
                receipt = yield from self._receipt(id_)
            else:
                receipt = yield from self._receipt_of_part(id_, *part)
            if receipt is None:
                return Result(id_, "unknown")
            if isinstance(receipt, Result):
                return receipt
            if receipt.state == "retried" and receipt.retried_as:
                id_ = next_life(id_, receipt.retried_as)
                continue
            return _as_result(id_, receipt)

    def _receipt_of_part(self, id_: str, entry: str, n: int) -> Reads[Receipt | Result | None]:
        """The receipt of task `n` of a batch; what the lease says if the batch has none."""
        whole: Receipt | None = yield ResultRead("receipt", self._keys.completed_of(entry))
        if whole is not None:
            return (yield from self._receipt(id_, whole=whole))
        if (yield ResultRead("exists", self._keys.failed_of(entry))):
            return (yield from self._receipt(id_))
        return (yield from self._early(id_, entry, n))

    def _early(self, id_: str, entry: str, n: int) -> Reads[Receipt | Result | None]:
        """The receipt of a failed task of a batch that still runs, or the result of one that is done.

        As of the last heartbeat. Not on a supervised node, where the batch may run in another place too.
        """
        if self._storage.journal.travels:
            return None
        seen: Versioned[EntryLease] | None = yield ResultRead("lease", self._keys.lease(entry))
        if seen is None:
            return None
        record = seen.value
        if n in record.failed:
            failed: Receipt | None = yield ResultRead("receipt", self._keys.failed_of(entry_of(id_)))
            return failed
        if n not in first_done(record):
            return None
        data = yield from self._large_result(record.results.get(n, NOTHING), record.parts, n)
        value = _value(data, f"the result of {id_!r}")
        return Result(id_, "completed", value, worker=record.label, attempts=max(1, attempts_of(record, n)))

    def errors(self, id_: str) -> tuple[AttemptError, ...]:
        """Those of a task that waits are in its lease."""
        part = batch_of(id_)
        entry, n = part or (entry_of(id_), 0)
        seen = self._storage.lease(entry).read()
        if seen is not None and n in seen.value.errors:
            return attempt_errors(seen.value.errors[n])
        return self.result(id_).errors

    def failed(self, n: int, *, where: str | None = None, since_s: float | None = None) -> list[Failure]:
        """Failed tasks that were not retried, at most `n`, grouped by error without the figures in it."""
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
        own = {n for folder in folders for n in self._storage.own_receipts(folder, name)}
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
                seen = self._storage.receipt(stat.key).read()
                if seen is None or seen.value.state != "failed":
                    continue
                if fits(seen.value.error or "") and self.completed(seen.value.id, gone=True) is None:
                    yield stat.key, seen
            except (Corrupt, Unsupported, Invalid):
                continue

    def receipt(self, id_: str, *, gone: bool = False) -> Receipt | None:
        """The receipt that counts for a task: completed beats failed. `gone`: its entry does not wait any more.

        Cost: 1 GET for a completed task; 2 GETs for another one, 3 or 4 for one of a batch.
        """
        return self._answer(self._receipt(id_, gone=gone))

    def completed(self, id_: str, *, gone: bool = False) -> Receipt | None:
        """The receipt that says that a task completed, with its result; None if there is none."""
        return self._answer(self._completed(id_, gone=gone))

    def _receipt(self, id_: str, *, gone: bool = False, whole: Receipt | None = None) -> Reads[Receipt | None]:
        done = yield from self._completed(id_, gone=gone, whole=whole)
        if done is not None:
            return done
        failed: Receipt | None = yield ResultRead("receipt", self._keys.failed_of(entry_of(id_)))
        part = batch_of(id_)
        if failed is None and part is not None:
            failed = yield ResultRead("receipt", self._keys.failed_of(part[0]))
        return failed

    def _completed(self, id_: str, *, gone: bool = False, whole: Receipt | None = None) -> Reads[Receipt | None]:
        """`whole`: the receipt of its batch, if that was read already."""
        name = entry_of(id_)
        part = batch_of(id_)
        own: Receipt | None = None
        if part is None:
            own = yield ResultRead("receipt", self._keys.completed_of(name))
            return own if own is None or is_batch(name) else (yield from self._with_result(own, id_, 0))
        entry, n = part
        if whole is None:
            whole = yield ResultRead("receipt", self._keys.completed_of(entry))
        ended = whole is not None or gone
        if whole is None or n in whole.own or not lists_done(whole, n):
            ended = ended or (yield ResultRead("exists", self._keys.failed_of(entry)))
            if ended:
                own = yield ResultRead("receipt", self._keys.completed_of(name))
        receipt = completion(n, whole=whole, own=own, ended=ended)
        return receipt and (yield from self._with_result(receipt, id_, n))

    def _read(self, key: Key) -> Receipt | None:
        seen = self._storage.receipt(key).read()
        return seen.value if seen else None

    def _with_result(self, receipt: Receipt, id_: str, n: int) -> Reads[Receipt]:
        """The receipt as that of task `n` alone; its result may lie in a part object."""
        result = yield from self._large_result(receipt.results.get(n) or receipt.result, receipt.parts, n)
        attempts = attempts_in(receipt, n)
        about = {"id": id_, "count": 1, "attempts": attempts, "tried": {}}
        return msgspec.structs.replace(receipt, **about, result=result, results={}, parts=[])

    def _large_result(self, result: msgspec.Raw, parts: Sequence[str], n: int) -> Reads[msgspec.Raw]:
        """The result of task `n`: the one in hand, if there is one, else what a part object has.

        Raises: Corrupt if none that is there has it, and one is gone.
        """
        gone = ""
        for key in parts if bytes(result) == bytes(NOTHING) else ():
            part: Part | None = yield ResultRead("part", Key(key))
            if part is not None and n in part.results:
                return part.results[n]
            gone = gone or (key if part is None else "")
        if gone:
            raise Corrupt(f"{gone}, which may hold the result, is gone", hint="push the task again")
        return result

    def _whereabouts(self, id_: str) -> Reads[Outcome]:
        part = batch_of(id_)
        entry = part[0] if part else entry_of(id_)
        if (yield ResultRead("exists", self._keys.tasks(entry, batch=part is not None))):
            return "pending"
        return "scheduled" if (yield ResultRead("scheduled", Key(f"{self._keys.scheduled}/{entry}"))) else "unknown"

    def due_times(self) -> dict[str, datetime]:
        """When each delayed entry is due.   Cost: 1 LIST per 1,000 delayed pushes."""
        listing = self._store.list(self._keys.scheduled)
        due = [parts for stat in listing if (parts := parts_of_scheduled(stat.key))]
        return {entry: at for at, entry in reversed(due)}  # of two pushes of an id the earlier one counts

    def scheduled(self, entry: str) -> list[Key]:
        """The delayed pushes of an entry.   Cost: 1 LIST per 1,000 delayed pushes."""
        listing = self._store.list(self._keys.scheduled)
        return [stat.key for stat in listing if (found := parts_of_scheduled(stat.key)) and found[1] == entry]

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
                facts = {
                    "id": self._id_of(entry, batch=kind == BATCH),
                    "tasks": count_of(entry),
                    "done": 0,
                    "age_s": self._since_s(stat.modified),
                    "state": "waits",
                    "attempt": 0,
                    "worker": None,
                }
                if (lease := beside.get(LEASE)) and lease.key == self._keys.lease(entry):
                    facts |= self._listed_lease_facts(entry)
                if (remote := beside.get(REMOTE)) and remote.key == self._keys.remote(entry):
                    facts |= self._elsewhere(entry) if facts["state"] == "waits" else {}
                yield facts

    def _listed_lease_facts(self, entry: str) -> dict[str, Any]:
        try:
            seen = self._storage.lease(entry).read()
        except Corrupt:
            return {"state": "corrupt"}
        return {**self._lease_facts(seen), "done": len(seen.value.done)} if seen else {}

    def _lease_facts(self, seen: Versioned[EntryLease], n: int | None = None) -> dict[str, Any]:
        """The state of an entry that has a lease (held, overdue, rests, suspended, waits or cancelled), and its last
        worker. `n`: of this task of a batch, which need not be the one that is suspended."""
        record = seen.value
        assert seen.modified is not None
        now = self._now_of(seen.modified)
        age_s = (now - seen.modified).total_seconds()
        match record.state:
            case State.HELD:
                state = "held" if is_live(record, modified=seen.modified, now=now) else "overdue"
            case State.FREE:
                state = "rests" if record.wait_s > age_s else "waits"
            case _:
                state = "cancelled"
        facts: dict[str, Any] = {}
        suspended = {m: each for m, each in record.suspended.items() if n in (None, m)}
        if record.state is State.FREE and suspended:
            first = min(suspended)
            others = len(suspended) - 1
            reason = suspended[first].reason + (f", and {others} more" if others else "")
            facts = {"state": "suspended", "reason": reason, "suspended_at": suspended[first].since}
            dues = (until(each, seen.modified) for each in suspended.values())
            due_at = min((due for due in dues if due is not None), default=None)
            facts |= {} if due_at is None else {"due_at": due_at}
        return {
            "state": state,
            "attempt": record.attempt,
            "worker": record.label if state in ("held", "overdue") else None,
            "taken_at": record.created_at if state in ("held", "overdue") else None,
            "token": record.token,
            "heartbeat_s": round(age_s, 1),
            "ttl_s": record.ttl_s,
            "rests_s": round(max(0.0, record.wait_s - age_s), 1) if state == "rests" else 0.0,
            "error": record.error,
            **facts,
        }

    def _step_facts(self, entry: str, n: int) -> list[dict[str, Any]]:
        """The recorded steps of a task, in order.   Cost: 1 LIST, 1 GET for each step, in bulk.

        `waited_s`, of a step that suspends the task: how long a sleep is, and otherwise the time since the step before.
        """
        found: list[dict[str, Any]] = []
        before: datetime | None = None
        for number, blob in sorted(self._storage.step_blobs(entry, n).items()):
            try:
                if isinstance(blob, LimpetError):
                    raise blob
                step = self._storage.step(entry, n, number).decode(blob).value
            except LimpetError as error:
                found.append({"number": number, "error": str(error)})
                continue
            took_s = round(max(0.0, (step.at - step.began_at).total_seconds()), 3)
            name = step.name
            if step.kind in ("sleep", "timer"):
                name = f"of {step.wait_s:g} s" + (f" for {step.name}" if step.name else "")
            about = {"kind": step.kind, "name": name, "worker": step.label, "at": step.at, "took_s": took_s}
            if step.kind == "sleep":
                about["waited_s"] = step.wait_s
            elif step.kind in ("gather", "signal"):
                about["waited_s"] = round(max(0.0, (step.at - (before or step.began_at)).total_seconds()), 3)
            before = step.at
            found.append({"number": number, **about, "value": _shown(step.value)})
        return found

    def _elsewhere(self, entry: str) -> dict[str, Any]:
        """On a supervised node: that a worker of another node holds an entry that waits here.   Cost: 1 GET."""
        from limpet.queue.sync import RemoteLeases

        found = RemoteLeases(self._store, self._runtime).holder(self._keys.remote(entry))
        return {"state": "held elsewhere", "worker": f"{found.label} at {found.node}"} if found else {}

    def _id_of(self, entry: str, *, batch: bool) -> str:
        """The id behind an entry's name. A name too long for a key is a hash; then the task is read."""
        if not entry.startswith(HASHED):
            return name_of(entry)
        try:
            return self._storage.content(entry, batch=batch).ids[0]
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
        listing = self._store.list(self._keys.failed if state == "failed" else self._keys.completed)
        while some := [*islice(listing, RECEIPTS_AT_ONCE)]:
            for key, blob in self._store.get_many([stat.key for stat in some]).items():
                if isinstance(blob, Missing):
                    continue
                try:
                    seen = self._storage.decoded_receipt(key, blob)
                except (Corrupt, Invalid, Unsupported) as error:
                    if on_unreadable is None:
                        raise
                    on_unreadable(error)
                    continue
                receipt = seen.value
                if receipt.state != "retried":
                    tasks = receipt.count if state == "completed" else self._stands_for(name_of_receipt(key))
                    yield {
                        "id": receipt.id,
                        "state": receipt.state,
                        "tasks": tasks,
                        "failed": len(receipt.failed) if receipt.state == "completed" else tasks,
                        "attempts": receipt.attempts,
                        "age_s": self._since_s(seen.modified),
                        "finished_at": receipt.finished_at,
                        "worker": receipt.label,
                        "error": receipt.error,
                    }

    def describe(self, id_: str) -> dict[str, Any] | None:
        """Everything that the store has about a task or a batch, as facts; None if there is none of that id.

        For a retried task: the facts of its last retry.   Cost: up to 12 GETs, HEADs and LISTs; 4 for a failed task;
        for a durable task that is suspended or has failed 1 LIST more, and 1 GET for each recorded step.
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
            seen = self._storage.sweeps().read()
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
        if result.state == "completed":
            whole = self._read(self._keys.completed_of(name))
            if whole is not None and whole.count > 1:
                return {**facts, "tasks": whole.count, "failed": [f"{result.id}.{n}" for n in whole.failed]}
            return {**facts, "result": result.value}
        receipt = self._read(self._keys.failed_of(name))
        facts |= {"error": result.error, "traceback": result.traceback}
        if receipt is not None:
            facts |= {"payload": _shown(receipt.payload), "pushed_at": receipt.pushed_at}
            facts |= {"tasks": receipt.count} if receipt.count > 1 else {}
            facts |= {"raw": receipt.raw} if receipt.raw else {}
            if receipt.origin:
                facts["steps"] = self._step_facts(*(batch_of(name) or (name, 0)))
        return facts

    def waiting_facts(self, id_: str) -> dict[str, Any] | None:
        """What is known of a task, a task of a batch, or a whole batch that has not ended; None if it does not wait."""
        part = batch_of(id_)
        entry = part[0] if part else entry_of(id_)
        batch = part is not None or is_batch(entry)
        try:
            content = self._storage.content(entry, batch=batch)
        except Missing:
            return None
        n = part[1] if part else 0
        if n >= len(content.payloads):
            return None
        facts: dict[str, Any] = {"pushed_at": content.pushed_at}
        if batch and part is None:
            facts["tasks"] = len(content.ids)
        else:
            facts["payload"] = _shown(content.payloads[n])
        seen = self._storage.lease(entry).read()
        facts |= self._lease_facts(seen, part and n) if seen else {"state": "waits"}
        if facts["state"] == "waits" and self._storage.journal.travels:
            facts |= self._elsewhere(entry)
        if seen is not None and part is not None:
            lease = seen.value
            facts |= {"batch": entry, "attempt": attempts_of(lease, n)}
            if n in lease.done or n in lease.failed:  # its verdict is known before the batch has ended
                facts["state"] = f"{'done' if n in lease.done else 'failed'}, and its batch goes on"
        if seen is not None and n in {*seen.value.durable, *seen.value.suspended} and (part is not None or not batch):
            facts["steps"] = self._step_facts(entry, n)
        if seen is not None and batch and part is None:
            facts |= {"done": len(seen.value.done), "failed": [f"{entry}.{n}" for n in seen.value.failed]}
        return facts

    def _scheduled_facts(self, id_: str) -> dict[str, Any] | None:
        """What is known of a push that is not due yet; None if there is none.   Cost: 1 LIST per 1,000 of them."""
        for key in self.scheduled(entry_of(id_)):
            task = read_task(self._store.get(key).data, what=key)
            return {
                "state": "scheduled",
                "due_at": due_of(key.rsplit("/", 2)[1]),
                "pushed_at": task.pushed_at,
                "payload": _shown(task.payload),
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


def plain_id(id_: str) -> str:
    """The text of a handle; anything else as it is."""
    return str(id_) if isinstance(id_, str) else id_


def _shown(data: bytes | msgspec.Raw) -> Any:
    """A payload as JSON; if it is none, a text that says so."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"(not JSON: {error}) {bytes(data)[:1000]!r}"


def next_life(id_: str, retried_as: str) -> str:
    """The id under which a task was retried.   Raises: Corrupt for one that is not its next retry: it could loop."""
    before, after = retry_of(entry_of(id_)) or (entry_of(id_), 0, ""), retry_of(entry_of(retried_as))
    if after is None or (after[0], after[1]) != (before[0], before[1] + 1):
        raise Corrupt(f"the receipt of {id_!r} says that it was retried as {retried_as[:100]!r}, which is another task")
    return retried_as


def _value(data: bytes | msgspec.Raw, what: str) -> Any:
    """A payload or a result.   Raises: Corrupt."""
    return records.decode(bytes(data), Any, what=what)


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
