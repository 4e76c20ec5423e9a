"""How many tasks of a queue are in each state: what listings show, and what leases and receipts in failed/ tell.

Nothing is written: a read-only key is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing, Unsupported
from limpet.kernel.keys import Key, batch_of, count_of
from limpet.kernel.lease import State
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Stat, Store, Version
from limpet.queue.api import Stats
from limpet.queue.count import SOME, Folder, QueueCount, count_queues
from limpet.queue.decide import lists_done, open_tasks
from limpet.queue.durable import until
from limpet.queue.entry import EntryLease, Receipt, Suspension, lease_of
from limpet.queue.rows import state_of
from limpet.queue.storage import Storage

QueueState = Literal["ok", "paused", "no worker"]

LEASES_READ_MAX = 200
RARE = ("trouble", "approximate", "suspended", "suspended_reason", "waits_for_code", "unread", "due_s", "no_worker")
"""Facts that are left out if they say nothing."""
BY_LEASES = frozenset(("done", "in_flight", "resting", "running", "suspended", "waiting", "waits_for_code"))
"""What leases tell."""
RECEIPTS_AT_ONCE = 50
RECEIPTS_READ_MAX = 1000
"""How many receipts in failed/ are read of a queue whose folders are not counted to their ends."""


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
    """What the one that has waited for the longest time waits for; of those that wait for code, if there are any."""
    waits_for_code: int = 0
    """How many of the suspended tasks wait for code that fits their recorded steps."""
    unread: int = 0
    """Tasks of entries whose lease was not read: they may be in flight, or rest, or neither."""

    @property
    def state(self) -> QueueState:
        """Whether somebody works on it, or should."""
        return "paused" if self.paused else "no worker" if self.no_worker else "ok"

    def facts(self) -> dict[str, Any]:
        """The fields for `--json`, without those that say nothing."""
        facts = {"queue": self.queue, "state": self.state, **asdict(self), "running": self.running}
        return {name: value for name, value in facts.items() if name not in RARE or value}


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
        cut |= {"oldest_s", *BY_LEASES}
    if "failed" in cut:
        cut.add("cancelled")
    if len(leases) > LEASES_READ_MAX:
        cut |= BY_LEASES
    work = count_leases(storage.store, leases[:LEASES_READ_MAX], now)
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
    figures = stats_fields(count, work, ended, now, paused=paused)
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
        waits_for_code=work.waits_for_code,
        unread=sum(count_of(stat.key.rsplit("/", 2)[1]) for stat in leases[LEASES_READ_MAX:]),
        **figures,
    )


def stats_fields(
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
    not ended, how many are suspended, and how many of these wait for code; how many wait for a worker, and since when
    one does; and the first error of the store."""

    in_flight: int = 0
    resting: int = 0
    done: int = 0
    suspended: int = 0
    suspended_longest: Suspension | None = None
    waits_for_code: int = 0
    waiting: int = 0
    due_at: datetime | None = None
    error: LimpetError | None = None

    def add(self, record: EntryLease, count: int, *, modified: datetime, now: datetime) -> None:
        """Count an entry of `count` tasks by its lease."""
        states = Counter(state_of(record, n, modified=modified, now=now) for n in open_tasks(record, count))
        suspended = record.suspended if states["suspended"] else {}
        self.in_flight += states["running"]
        self.resting += states["resting"] + states["suspended"]
        self.waiting += states["waiting"]
        self.suspended += states["suspended"]
        self.done += len(record.done)
        longest = [*suspended.values(), *filter(None, [self.suspended_longest])]
        self.suspended_longest = min(longest, key=lambda each: (not each.codes, each.since), default=None)
        self.waits_for_code += sum(1 for each in suspended.values() if each.codes)
        # a suspended task whose time has come needs a worker as well
        dues = [due for each in suspended.values() if (due := until(each, modified)) is not None and due <= now]
        if states["running"]:
            return
        if states["waiting"]:
            dues.append(modified + timedelta(seconds=record.ttl_s if record.state is State.HELD else record.wait_s))
        self.due_at = min([*dues, *filter(None, [self.due_at])], default=None)


def count_leases(store: Store, leases: Sequence[Stat], now: datetime) -> LeaseCounts:
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
