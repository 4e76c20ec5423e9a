"""One reading of a whole fleet: queues, locks, indexes, the catalog, workers, what it costs, and alerts.

The dashboard, `limpet top` and the metrics show the same `FleetOverview`. `read_overview` makes one; `OverviewWatch`
keeps one up to date for a page that stays open: it reads a part again when that may have changed, and backs off while
nothing changes. Nothing is written, so a read-only key is enough.

Listings are capped. A figure whose name is in `at_least` is a lower bound; a queue in `uncounted` has no figures yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.util import find_spec
from typing import Any, Literal, get_args

from limpet.app.fleet import Fleet
from limpet.app.health import (
    BrokenLimit,
    FleetLocks,
    Limits,
    attended,
    broken_in,
    broken_on_sqs,
    broken_without_worker,
    default_limits,
    lock_states,
    summaries,
)
from limpet.app.history import HOUR, FinishRate, last_hour
from limpet.app.place import SQS, has_store, provider_of
from limpet.app.presence import workers
from limpet.kernel.errors import Invalid, LimpetError
from limpet.kernel.keys import BATCH, INDEXES, LOCKS, QUEUES, TASK, WORKERS, IndexKeys, Key, QueueKeys, name_of
from limpet.kernel.records import RECORD_BYTES_MAX
from limpet.kernel.runtime import Runtime
from limpet.kernel.store import Store
from limpet.kernel.store.api import Blob, Stat, Version, WrappedStore
from limpet.kernel.store.metered import dollars
from limpet.queue.cost import MONTH_H, Bill, Work, requests_of
from limpet.queue.count import FOLDERS, FinishTimes, Folder, QueueCount, count_below, count_first, last_finished
from limpet.queue.storage import Storage
from limpet.queue.summary import FailedCount, FailedReceipts, QueueSummary, summary_of

OverviewPart = Literal["queues", "locks", "indexes", "catalog", "workers"]
PARTS: tuple[OverviewPart, ...] = get_args(OverviewPart)

PER_HOUR: Mapping[OverviewPart, float] = {"queues": 90, "locks": 15, "indexes": 30, "catalog": 15, "workers": 15}
"""Requests an hour that a watch may spend on each part while nothing changes there; with `CREDIT`, under 200 in all."""
CREDIT = 5.0
"""Requests that a part may spend at once: so it is looked at often for a while after its last change."""
FAST_S = 2.0
"""How soon a part is read again after a change; later if it is expensive: at most 4 requests a second."""
TOKEN_S = 1.0
"""How often a store is asked for its change token, where that costs nothing."""

OBJECTS_MAX = 999
"""How many objects of a folder are counted: one page of a listing."""
RECEIPTS_MAX = 200
"""How many receipts in failed/ are read with a reading, in all queues; of those that were not read before."""
LISTS_MAX = 8
QUEUES_AT_ONCE = 32
QUEUES_IN_TURN = 8
"""How many of many queues are counted again with a reading, once all were counted and unless something changed."""
SHOWN_MAX = 4
NEAR_MIN = 4
NEAR_S = 0.25
"""How long a reading of a directory goes on counting queues, once it has counted four."""
INDEXES_MAX = 50
LOCKS_MAX = 200
SQS_REQUESTS = 3
"""Requests for one queue on SQS, which the fleet's meter does not count."""
CACHED_MAX = 4096
CACHED_BYTES_MAX = 64 << 10
ENTRIES_WATCHED = 50

SOME_OBJECTS: Mapping[Folder, float] = dict.fromkeys(FOLDERS, float(OBJECTS_MAX))
COUNTED: tuple[Folder, ...] = ("failed", "pending", "scheduled")
"""The folders that a watch may count further: receipts of completed tasks are kept for weeks, and only add up."""
ENDED: frozenset[Folder] = frozenset(("completed", "failed"))
PRICED = {"s3": "s3", "gs": "gcs", "az": "azure"}


@dataclass(frozen=True, slots=True)
class CatalogSummary:
    """The catalog in numbers, and its last commit: who did what. `version` 0: nothing was ever published."""

    version: int = 0
    at: str | None = None
    namespaces: int = 0
    tables: int = 0
    views: int = 0
    last: tuple[str, ...] = ()
    """What the last commit did."""
    actor: str = ""


@dataclass(frozen=True, slots=True)
class FleetBill:
    """What a fleet has cost. `work` is the least that its receipts stand for, `own` what this process sent.

    `month_dollars` is the price of a month in which each hour is as the last one.
    `free`: the fleet is not in a bucket, and the dollars are what it would cost in one.
    """

    work: Bill
    own: Bill
    own_requests: Mapping[str, int]
    provider: str
    free: bool
    at_least: bool
    month_dollars: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetOverview:
    """A fleet as of `at`. A part that could not be read keeps what was read before, and has its error in `trouble`."""

    url: str
    at: datetime
    limits: Limits
    queues: Sequence[QueueSummary] = ()
    uncounted: Sequence[str] = ()
    """Queues that were not counted yet: there are too many for one reading."""
    rates: Mapping[str, FinishRate] = field(default_factory=dict)
    """How fast tasks end, by queue and receipts. None on SQS."""
    pushed: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Pending tasks by queue and minute of push (of the Unix time), by the store's clock. None on SQS."""
    locks: FleetLocks = field(default_factory=lambda: FleetLocks([], {}, more=False))
    indexes: Sequence[Any] = ()
    """`limpet.index.describe.IndexCount`, by name."""
    indexes_more: int = 0
    """Indexes that were not looked at."""
    catalog: CatalogSummary | None = None
    workers: Any = None
    """`limpet.app.presence.FleetWorkers`; None where presence is not recorded."""
    alerts: Sequence[BrokenLimit] = ()
    bill: FleetBill | None = None
    trouble: Mapping[str, str] = field(default_factory=dict)
    read_at: Mapping[str, datetime] = field(default_factory=dict)
    """When each part was read."""

    @property
    def sampled(self) -> bool:
        """Whether some figure is a lower bound, or missing."""
        cut = any(each.at_least for each in self.queues) or any(each.at_least for each in self.indexes)
        return bool(cut or self.uncounted or self.indexes_more or self.locks.more)


def read_overview(fleet: Fleet, limits: Limits | None = None) -> FleetOverview:
    """One reading of the fleet.   Raises: nothing that concerns one part alone, see `FleetOverview.trouble`.

    `limits`: those of the alerts; `default_limits` by default.

    Cost: for queues 1 LIST; if there are more than 1,000 objects, 1 LIST of the names, and 32 queues by themselves,
    each 1 LIST per 1,000 objects and for each folder that is cut short. On a directory 1 LIST, and 4 LISTs + 1 GET for
    each of 32 queues. 1 GET a lease, at most 200 a queue; 1 or 2 GETs for each receipt in failed/, at most 200 receipts
    in all, and further ones with the next readings; for locks 1 LIST + 1 GET each, at most 200; for each of 50
    indexes 1 LIST or more + 1 GET; for the catalog 1 GET.
    """
    return OverviewWatch(fleet, limits).look()


class CappedStore(WrappedStore):
    """Lists at most a page of a folder of a near store, which must read the whole folder in order to list it in order.

    A folder with no more objects than that is listed whole and in order; of a larger one this gives any of them. A
    bucket lists in order by itself, so there nothing is different. Read-only.
    """

    def __init__(self, inner: Store, runtime: Runtime, most: int = OBJECTS_MAX) -> None:
        """`most` objects of a folder; 0: all."""
        super().__init__(inner, runtime)
        self.most = most

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        if self.far or after is not None or not self.most:
            return super().list(prefix, after=after)
        return iter(sorted(self.inner.sample(prefix, self.most + 1), key=lambda stat: stat.key.encode()))


class ListedStore(CappedStore):
    """A read of an object whose last listed version is the one in memory costs no request. Read-only.

    `digests` stand for everything that was listed since `begin`, names and versions: one for each queue, index and so
    on, by its folder, and one without a name for the rest.
    """

    def __init__(self, inner: Store, runtime: Runtime, most: int) -> None:
        super().__init__(inner, runtime, most)
        self._mutex = runtime.mutex()
        self._listed: dict[str, Version] = {}
        self._blobs: dict[str, Blob] = {}
        self.digests: dict[str, int] = {}
        self.entries: list[str] = []
        """Folders of the first pending entries: their change tokens tell whether one is claimed."""

    def begin(self) -> None:
        """Forget the digests, and what was listed; keep what was read."""
        with self._mutex:
            if len(self._blobs) > CACHED_MAX:
                self._blobs.clear()
            self._listed.clear()
            self.digests = {}
            self.entries = []

    def note(self, value: Hashable, key: str = "") -> None:
        """Take something into the digest of the folder (a queue, an index) that `key` belongs to. The order does not
        matter: folders are listed side by side."""
        folder = "/".join(key.split("/", 2)[:2])
        with self._mutex:
            self.digests[folder] = self.digests.get(folder, 0) ^ hash(value)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        stats: Iterable[Stat] = super().list(prefix, after=after)
        sampled = False
        if self.most and not self.far and after is None:
            stats = [*stats]
            sampled = len(stats) > self.most
            if sampled:  # another sample next time is no change
                self.note((prefix, self.change_token(prefix)), prefix)
        for stat in stats:
            if not sampled:
                self.note((stat.key, stat.version), stat.key)
            if stat.key.endswith((".json", ".lock")):
                self._listed[stat.key] = stat.version
            if len(self.entries) < ENTRIES_WATCHED and stat.key.endswith((f"/{TASK}", f"/{BATCH}")):
                self.entries.append(stat.key.rpartition("/")[0])
            yield stat

    def get(
        self,
        key: Key,
        *,
        range: tuple[int, int] | None = None,
        if_match: Version | None = None,
        if_none_match: Version | None = None,
        size_max: int | None = RECORD_BYTES_MAX,
    ) -> Blob:
        plain = range is None and if_match is None and if_none_match is None
        known = self._blobs.get(key) if plain else None
        if known is not None and self._listed.get(key) == known.version:
            return known
        blob = super().get(key, range=range, if_match=if_match, if_none_match=if_none_match, size_max=size_max)
        if plain and key in self._listed and len(blob.data) <= CACHED_BYTES_MAX:
            with self._mutex:
                self._blobs[key] = blob
        return blob

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        folders = super().list_dirs(prefix)
        self.note(tuple(folders))
        return folders


@dataclass(slots=True)
class _PartState:
    """How a part is read, and when again: soon after a change, else when its credit pays for what a reading costs."""

    view: Fleet
    """The fleet, read through `store`."""
    store: ListedStore
    per_hour: float
    due_s: float = 0.0
    credit: float = CREDIT
    credit_at_s: float = 0.0
    digests: Mapping[str, int] | None = None
    token: str | None = None
    token_at_s: float = 0.0
    changes: int = 0

    def plan(self, now_s: float, cost: int, *, changed: bool) -> None:
        """Set `due_s`, after a reading that took `cost` requests.

        Idle, a part spends at most `CREDIT + per_hour` requests in an hour, or `per_hour` and one reading.
        """
        per_s = self.per_hour / 3600
        if changed:
            self.changes += 1
            self.credit, wait_s = CREDIT, max(FAST_S, cost / 4)
        else:
            self.credit = min(CREDIT, self.credit + (now_s - self.credit_at_s) * per_s) - cost
            wait_s = max(FAST_S, (cost - self.credit) / per_s)
        self.credit_at_s, self.due_s = now_s, now_s + wait_s


class OverviewWatch:
    """A `FleetOverview` that is kept up to date. Threads may share it; one of them reads at a time.

    Where the store has change tokens (a directory), they are compared every second, which costs no request. Elsewhere a
    part is read 2 s after a change, then less and less often: on an idle fleet all parts together cost under 200
    requests an hour beside the first reading.
    """

    def __init__(
        self, fleet: Fleet, limits: Limits | None = None, *, objects: int | None = None, budget: float = 1.0
    ) -> None:
        """`limits`: those of the alerts; `default_limits` by default.

        `objects`: how many of a queue's folder are counted, 999 by default; receipts of completed tasks never more. A
        reading reads the receipts of a tenth of them in failed/, and at least 200.

        `budget`: how many times as many requests may be spent on an idle fleet.
        """
        self.fleet = fleet
        self._runtime = fleet.runtime
        self._mutex = fleet.runtime.mutex()
        self._objects = OBJECTS_MAX if objects is None else objects
        self._limits = {**SOME_OBJECTS, **dict.fromkeys(COUNTED, float(self._objects))}
        self._states: dict[OverviewPart, _PartState] = {}
        for part in PARTS:
            view = copy(fleet)
            view.store = store = ListedStore(fleet.store, fleet.runtime, self._objects if part == "queues" else 0)
            self._states[part] = _PartState(view, store, PER_HOUR[part] * budget)
        limits = default_limits(fleet.url) if limits is None else limits
        self._overview = FleetOverview(fleet.url, fleet.runtime.wall(), limits)
        self._receipts = FailedReceipts()
        self._receipts_max = max(RECEIPTS_MAX, self._objects // 10)
        self._broken: list[BrokenLimit] = []
        """The limits that do not hold, by the queues alone."""
        self._counts: dict[str, tuple[QueueCount, QueueSummary]] = {}
        self._tokens: dict[str, str] = {}
        self._shown: deque[str] = deque(maxlen=SHOWN_MAX)
        self._turn = ""
        self._many = True
        self._sqs_requests = 0
        self._scans: dict[str, tuple[FinishTimes, float]] = {}

    def look(self, *, now: bool = False) -> FleetOverview:
        """The fleet, with every part read again that is due; with `now`, with all.   Cost: see `read_overview`."""
        with self._mutex:
            due = [part for part in PARTS if now or self._is_due(part)]
            for part in due:
                changed = self._read(part, asked=now)
                if part == "queues" and changed and "workers" not in due and any(q.no_worker for q in self._attended()):
                    due.append("workers")  # one may have started since they were read
            if due:
                queues, limits = self._attended(), self._overview.limits
                unattended = [wrong for queue in queues for wrong in broken_without_worker(queue, limits)]
                overview = replace(
                    self._overview,
                    at=self._runtime.wall(),
                    queues=queues,
                    alerts=sorted([*self._broken, *unattended], key=lambda wrong: wrong.queue),
                    rates=self._rates(),
                    pushed={name: count.pushed for name, (count, _) in self._counts.items()},
                )
                self._overview = replace(overview, bill=self._bill(overview))
            return self._overview

    def _attended(self) -> Sequence[QueueSummary]:
        """The queues, with those marked that no worker works on; as they are while it is not known who works."""
        processes, queues = self._overview.workers, self._overview.queues
        return queues if processes is None else [attended(queue, processes) for queue in queues]

    def prefer(self, queue: str) -> None:
        """Count this queue with every reading from now on: a page shows it. Only the last four have that."""
        with self._mutex:
            if queue in self._shown:
                self._shown.remove(queue)
            self._shown.append(queue)

    def wait_s(self) -> float:
        """Seconds until `look` is worth calling again."""
        parts = PARTS if has_store(self.fleet.url) else ("queues",)
        wait_s = max(0.0, min(self._states[part].due_s for part in parts) - self._runtime.elapsed_s())
        has_tokens = any(state.token is not None for state in self._states.values())
        return min(wait_s, TOKEN_S) if has_tokens else wait_s

    def versions(self) -> dict[str, int]:
        """For each part how often a change was seen: a page reads its details again when the number has risen."""
        return {part: state.changes for part, state in self._states.items()}

    def _is_due(self, part: OverviewPart) -> bool:
        state, now_s = self._states[part], self._runtime.elapsed_s()
        if now_s >= state.due_s:
            return True
        if state.token is None or now_s < state.token_at_s + TOKEN_S:
            return False
        state.token_at_s = now_s
        return self._token(part) != state.token

    def _read(self, part: OverviewPart, *, asked: bool) -> bool:
        """Read a part again; whether it has changed."""
        state = self._states[part]
        token, state.token_at_s = self._token(part), self._runtime.elapsed_s()
        self._many = asked or token != state.token
        state.store.begin()
        before = self.fleet.meter.snapshot()
        trouble, found = dict(self._overview.trouble), {}
        try:
            if part == "queues" or has_store(self.fleet.url):
                read: Callable[[_PartState], dict[str, Any]] = getattr(self, f"_read_{part}")
                found = read(state)
            trouble.pop(part, None)
        except LimpetError as error:
            trouble[part] = f"{error} ({error.hint})" if error.hint else str(error)
            state.store.note(trouble[part])
        cost = (self.fleet.meter.snapshot() - before).total()
        read_at = {**self._overview.read_at, part: self._runtime.wall()}
        self._overview = replace(self._overview, **found, trouble=trouble, read_at=read_at)
        digests, unread = state.store.digests, False
        if part == "queues":
            cost += self._sqs_requests
            roots = {count.keys.root for count, _ in self._counts.values()}
            digests = {folder: n for folder, n in (state.digests or {}).items() if folder in roots} | digests
            unread = any(self._receipts.unread.get(root) for root in roots)
        changed = digests != state.digests or unread
        state.plan(self._runtime.elapsed_s(), cost, changed=changed)
        state.digests = digests
        state.token = self._token(part)
        return changed

    def _token(self, part: OverviewPart) -> str | None:
        """The change tokens of the folders that a part is read from; None where they cost requests."""
        store = self._states[part].store
        match part:
            case "queues":
                roots = (count.keys.root for count, _ in self._counts.values())
                folders = [QUEUES, *(folder for root in roots for folder in _folders_of(root)), *store.entries]
            case "indexes":
                folders = [INDEXES, *self._index_folders()]
            case _:
                folders = [{"locks": LOCKS, "catalog": "manifests", "workers": WORKERS}[part]]
        tokens = [store.change_token(folder) for folder in folders]
        return None if None in tokens else "\n".join(map(str, tokens))

    def _index_folders(self) -> Iterator[str]:
        for index in self._overview.indexes:
            with suppress(Invalid):  # a folder that no index of Limpet's can have
                keys = IndexKeys.of(index.name)
                yield from (keys.root, keys.inbox, keys.packs, keys.shards, keys.quarantine)

    # ---- the parts ----

    def _read_queues(self, state: _PartState) -> dict[str, Any]:
        store, limits = state.store, self._overview.limits
        if provider_of(self.fleet.url) == SQS:
            summed = summaries(state.view)
            self._sqs_requests = 1 + SQS_REQUESTS * len(summed)
            store.note(repr(summed))
            self._broken = [wrong for queue in summed for wrong in broken_on_sqs(queue, limits)]
            return {"queues": summed}
        # the first reading should be quick: what one LIST does not hold is counted side by side
        lists = LISTS_MAX + self._objects // 1000 if self._counts else 1
        counts, whole = count_first(store, self._limits, lists) if store.far else ([], False)
        folders = None if whole else {name_of(part): f"{QUEUES}/{part}" for part in store.list_dirs(QUEUES)}
        if folders is not None:
            counts += self._next_counts(store, folders, {count.queue for count in counts})
        now = max([self._runtime.wall(), *(count.newest for count in counts if count.newest)])
        before = self._receipts.read
        for count in counts:
            store.note(0, count.keys.root)  # an empty queue too has a digest, which replaces that of its last reading
            if "completed" in count.cut:
                count.finished = self._last_finished(store, count, now)
            most = max(0, self._receipts_max - (self._receipts.read - before))
            storage = Storage(store, count.keys, self._runtime)
            self._counts[count.queue] = count, summary_of(storage, count, now, self._receipts, most)
        keep = {count.queue for count in counts} if folders is None else {*folders}
        self._counts = {name: self._counts[name] for name in sorted(self._counts) if name in keep}
        self._broken = [
            wrong
            for count, summary in self._counts.values()
            for wrong in broken_in(
                state.view, count, limits, FailedCount(summary.failed, self._receipts.unread.get(count.keys.root, 0))
            )
        ]
        return {
            "queues": [summary for _, summary in self._counts.values()],
            "uncounted": [name for name in sorted(folders or ()) if name not in self._counts],
        }

    def _next_counts(self, store: ListedStore, folders: Mapping[str, str], done: set[str]) -> list[QueueCount]:
        """Count the next queues of many, given by name with their folders.

        First come those that a page shows or that have changed, where that can be known without a request; then those
        never counted; then the others in turn.
        """
        left = [name for name in sorted(folders) if name not in done]
        self._tokens = {name: token for name, token in self._tokens.items() if name in folders}
        changed = [name for name, token in self._tokens.items() if _token_of(store, folders[name]) != token]
        first = [*dict.fromkeys([*(name for name in self._shown if name in left), *changed])][:QUEUES_AT_ONCE]
        never = [name for name in left if name not in self._counts and name not in first]
        behind = [name for name in left if name > self._turn]
        others = [name for name in dict.fromkeys([*never, *behind, *left]) if name not in first]
        others = others[: QUEUES_AT_ONCE if never or self._many else QUEUES_IN_TURN]
        chosen = {name: folders[name] for name in [*first, *others]}
        if store.far:
            counted = self._runtime.fan_out(lambda root: count_below(store, [root], self._limits), chosen.values())
            counts = [count for below in counted for count in below]
        else:
            counts = [*self._count_near(store, chosen)]
            others = [count.queue for count in counts if count.queue not in first]
        if others:
            self._turn = others[-1] if not never else ""
        return counts

    def _count_near(self, store: ListedStore, folders: Mapping[str, str]) -> Iterator[QueueCount]:
        """Count queues of a near store one after another; some of them if that takes long.   Cost: 4 LISTs each."""
        began_s = self._runtime.elapsed_s()
        for n, (name, root) in enumerate(folders.items()):
            if n >= NEAR_MIN and self._runtime.elapsed_s() - began_s > NEAR_S:
                return
            self._tokens[name] = _token_of(store, root)
            count = QueueCount(name, QueueKeys(root))
            for folder in FOLDERS:
                for stat in store.list(f"{root}/{folder}"):
                    count.add(folder, stat, self._limits)
            count.control = True  # whether there is one costs as much as reading it
            yield count

    def _last_finished(self, store: ListedStore, count: QueueCount, now: datetime) -> FinishTimes:
        """When the last tasks of a queue with many receipts ended. A near store must read the whole folder for it: not
        with the first reading, and then for a fiftieth of the time at most."""
        if store.far:
            return last_finished(store, count.keys, now - HOUR, OBJECTS_MAX)
        began_s = self._runtime.elapsed_s()
        known, due_s = self._scans.get(count.queue, (FinishTimes(), None))
        if due_s is None:
            self._scans[count.queue] = known, began_s
        elif began_s >= due_s:
            known = last_finished(store, count.keys, now - HOUR, OBJECTS_MAX)
            self._scans[count.queue] = known, began_s + 50 * (self._runtime.elapsed_s() - began_s)
        return known

    def _read_locks(self, state: _PartState) -> dict[str, Any]:
        found = lock_states(state.view, LOCKS_MAX)
        # a heartbeat is no change: an idle fleet may have holders too
        held = [(lock.name, lock.state, lock.worker_id, lock.token) for lock in found.locks]
        state.store.digests = {"": hash(repr((held, found.unreadable)))}
        return {"locks": found}

    def _read_indexes(self, state: _PartState) -> dict[str, Any]:
        names = state.view.indexes()
        if not names:
            return {"indexes": [], "indexes_more": 0}
        from limpet.index.describe import IndexCount, count_index
        from limpet.index.storage import IndexStorage

        def counted(name: str) -> IndexCount:
            try:
                storage = IndexStorage(state.store, IndexKeys.of(name), self._runtime)
                return count_index(storage, name, most=OBJECTS_MAX)
            except LimpetError as error:  # one index must not hide the others
                return IndexCount(name, trouble=str(error))

        counts = self._runtime.fan_out(counted, names[:INDEXES_MAX])
        return {"indexes": counts, "indexes_more": max(0, len(names) - INDEXES_MAX)}

    def _read_catalog(self, state: _PartState) -> dict[str, Any]:
        if find_spec("pyiceberg") is None or find_spec("pyarrow") is None:
            return {}
        from limpet.app.catalogs import DOMAIN
        from limpet.catalog.heads import commit_of

        loaded = self.fleet.catalog().view.now()
        if loaded is None:
            return {"catalog": CatalogSummary()}
        head = loaded.head
        state.store.note(head.version)
        commit = commit_of(head, DOMAIN)
        rows = commit.rows if commit else ()
        namespaces, tables, views = (sum(1 for _ in loaded.state.keys_under(kind)) for kind in ("n/", "t/", "v/"))
        said = tuple(row.what for row in rows[:10])
        actor = rows[0].actor if rows else ""
        return {"catalog": CatalogSummary(head.version, head.at, namespaces, tables, views, said, actor)}

    def _read_workers(self, state: _PartState) -> dict[str, Any]:
        found = workers(state.view)
        shown = [(process.id, process.gone, process.queues) for process in found.workers]
        state.store.digests = {"": hash(repr(shown))}
        return {"workers": found}

    # ---- what it costs ----

    def _bill(self, overview: FleetOverview) -> FleetBill:
        scheme = overview.url.partition("://")[0]
        provider = PRICED.get(scheme, "s3")
        counts = [count for count, _ in self._counts.values()]
        ended = sum(count.ended for count in counts)
        named = sum(count.named for count in counts)
        waiting = sum(count.entries + count.scheduled for count in counts)
        spent = requests_of(Work(ended=ended, claims=ended, named=named, waiting=waiting))
        own = self.fleet.meter.snapshot()
        hour = sum(sum(last_hour(count.finished.entries, overview.at)) for count in counts)
        return FleetBill(
            work=Bill(sum(spent.values()), dollars(spent, provider)),
            own=Bill(own.total(), own.dollars(provider)),
            own_requests=own.requests,
            provider=provider,
            free=scheme not in PRICED,
            at_least=bool(any(ENDED & count.cut for count in counts) or overview.uncounted),
            month_dollars=MONTH_H * dollars(requests_of(Work(ended=hour, claims=hour)), provider),
        )

    def _rates(self) -> dict[str, FinishRate]:
        now = self._runtime.wall()
        return {
            name: FinishRate(last_hour(count.finished.tasks, now), bool(count.cut & ENDED))
            for name, (count, _) in self._counts.items()
        }


def _folders_of(root: str) -> list[str]:
    return [root, *(f"{root}/{folder}" for folder in FOLDERS)]


def _token_of(store: Store, root: str) -> str:
    return "\n".join(str(store.change_token(folder)) for folder in _folders_of(root))
