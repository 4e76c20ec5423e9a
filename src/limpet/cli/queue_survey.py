"""Counting what waits and what ended, for all queues of a fleet at once. Reads only, so a read-only key is enough.

One listing shows everything: names tell the state of an entry and how many tasks it holds. Only leases and control
records are read. A fleet keeps a receipt for each entry for weeks, so counting stops at a number of objects for each
folder of a queue, and says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from limpet.cell import Cell, Versioned
from limpet.errors import Corrupt, Invalid, LimpetError, Missing, Unsupported
from limpet.keys import QUEUES, Key, QueueKeys, name_of
from limpet.lease import State
from limpet.queue.decide import at_work
from limpet.queue.names import batch_of, count_of, is_batch, life_before, name_of_receipt
from limpet.queue.records import EntryLease, lease_of
from limpet.queue.storage import CONTROL_CODEC
from limpet.runtime import Runtime
from limpet.store.api import Blob, Stat, Store

if TYPE_CHECKING:
    from limpet.app import Fleet

Folder = Literal["completed", "failed", "pending", "scheduled"]
FOLDERS: tuple[Folder, ...] = ("completed", "failed", "pending", "scheduled")

OBJECTS_MAX = 10_000
LEASES_MAX = 200
RESOLUTION_S = 1.0

ALL: Mapping[Folder, float] = dict.fromkeys(FOLDERS, float("inf"))
"""Count every object, whatever it costs."""


@dataclass(frozen=True, slots=True)
class Survey:
    """How many tasks of one queue are where. The fields that `Stats` has too mean the same.

    `at_least` names the fields that are lower bounds, because counting stopped; while `completed` is one, `failed` may
    count tasks that were retried since.
    """

    queue: str
    pending: int
    in_flight: int
    scheduled: int
    completed: int | None
    failed: int
    oldest_s: float | None
    paused: bool
    at_least: tuple[str, ...]
    resting: int | None = 0
    trouble: str = ""
    """Why some of it could not be found out."""
    approximate: bool = False
    """Whether these are numbers of SQS. Then `completed`, `oldest_s` and `resting` are None."""

    def facts(self) -> dict[str, Any]:
        """The fields for `--json`, without those that say nothing."""
        facts = asdict(self)
        return {name: value for name, value in facts.items() if name not in ("trouble", "approximate") or value}


@dataclass(slots=True)
class Found:
    """What a listing showed of one queue."""

    queue: str
    keys: QueueKeys
    pending: int = 0
    scheduled: int = 0
    completed: int = 0
    failed: list[str] = field(default_factory=list)
    leases: list[Stat] = field(default_factory=list)
    oldest: datetime | None = None
    newest: datetime | None = None
    control: bool = False
    cut: set[Folder] = field(default_factory=set)
    _lease: Stat | None = None
    _objects: Counter[str] = field(default_factory=Counter)
    _retried: set[str | None] = field(default_factory=set)
    _ended: set[str] = field(default_factory=set)

    def add(self, folder: str, name: str, stat: Stat, limits: Mapping[Folder, float]) -> bool:
        """Count one object; False if its folder is full, and the rest of it is not worth listing."""
        self.newest = max(self.newest or stat.modified, stat.modified)
        match folder:
            case "completed" | "failed" | "pending" | "scheduled":
                if self._objects[folder] >= limits[folder]:
                    self.cut.add(folder)
                    return False
                self._objects[folder] += 1
                self._count(folder, name, stat)
                return True
            case "control.json":
                self.control = True
        return folder.endswith(".json")

    def ended_badly(self) -> list[str]:
        """The names in failed/ of which no later life was seen, and no completion after all."""
        return [name for name in self.failed if name not in self._retried and name not in self._ended]

    def ended_well(self) -> int:
        """Completed tasks: those of completed entries, without the ones of a batch that failed."""
        parts = [(name, part[0]) for name in self.failed if (part := batch_of(name))]
        return self.completed - sum(1 for name, entry in parts if entry in self._ended and name not in self._ended)

    def _count(self, folder: Folder, name: str, stat: Stat) -> None:
        match folder:
            case "pending":
                entry, _, kind = name.partition("/")
                if kind == "lease.json":
                    self._lease = stat
                elif kind in ("task.json", "tasks.jsonl"):
                    if self._lease is not None and self._lease.key == self.keys.lease(entry):  # it is listed before
                        self.leases.append(self._lease)
                    self.pending += count_of(entry)
                    self.oldest = min(self.oldest or stat.modified, stat.modified)
                    self._retried.add(life_before(entry))
            case "scheduled":
                self.scheduled += 1
            case "completed":
                receipt = name_of_receipt(stat.key)
                if batch_of(receipt) or is_batch(receipt):
                    self._ended.add(receipt)
                if not batch_of(receipt):
                    self.completed += count_of(receipt)
                    self._retried.add(life_before(receipt))
            case "failed":
                self.failed.append(name_of_receipt(stat.key))
                self._retried.add(life_before(self.failed[-1]))


def find(store: Store, queues: Iterable[str] | None, limits: Mapping[Folder, float]) -> list[Found]:
    """What a listing shows of these queues, or of all there are.

    A queue that has no object is not among them.
    Cost: 1 LIST per 1,000 objects listed; 1 more for each folder that is cut short, and for each queue named.
    """
    found: dict[str, Found] = {}
    for prefix in [QUEUES] if queues is None else [QueueKeys.of(name).root for name in queues]:
        after: str | None = None
        while (after := _walk(store, prefix, after, found, limits)) is not None:
            continue
    return [*found.values()]


def _walk(
    store: Store, prefix: str, after: str | None, found: dict[str, Found], limits: Mapping[Folder, float]
) -> str | None:
    """List on from `after` until a folder is full; from where to list on then."""
    for stat in store.list(prefix, after=after):
        _, queue, *below = stat.key.split("/", 3)
        if not below:
            continue  # an object of somebody else's, beside the queues
        folder = below.pop(0)
        if queue not in found:
            found[queue] = Found(name_of(queue), QueueKeys(f"{QUEUES}/{queue}"))
        if not found[queue].add(folder, "".join(below), stat, limits):
            return f"{found[queue].keys.root}/{folder}0"  # 0 is the character behind the slash
    return None


def surveys(
    fleet: Fleet,
    runtime: Runtime,
    queues: Iterable[str] | None = None,
    *,
    limits: Mapping[Folder, float] | None = None,
) -> list[Survey]:
    """Count these queues of a fleet, or all there are, wherever they live; see `survey`.

    On SQS: 1 request for the names, 3 or more for each queue.
    """
    from limpet.app.urls import SQS, provider_of

    if provider_of(fleet.url) != SQS:
        return survey(fleet.store, runtime, queues, limits=limits)
    return [_of_sqs(fleet, name) for name in (fleet.queues() if queues is None else queues)]


def _of_sqs(fleet: Fleet, name: str) -> Survey:
    stats = fleet.queue(name).stats()
    return Survey(
        queue=name,
        pending=stats.pending,
        in_flight=stats.in_flight,
        scheduled=stats.scheduled,
        completed=stats.completed,
        failed=stats.failed,
        oldest_s=stats.oldest_s,
        paused=stats.paused,
        at_least=(),
        resting=stats.resting,
        approximate=True,
    )


def survey(
    store: Store,
    runtime: Runtime,
    queues: Iterable[str] | None = None,
    *,
    limits: Mapping[Folder, float] | None = None,
) -> list[Survey]:
    """Count these queues, or all there are, by their names' order. By default each folder up to 10,000 objects.

    Ages are by this machine's clock, but never before what the store stamped.
    Cost: that of `find`, 1 GET for each queue that was ever paused, and 1 GET a lease, at most 200 a queue.
    """
    limits = limits or dict.fromkeys(FOLDERS, float(OBJECTS_MAX))
    found = find(store, queues, limits)
    now = max([runtime.wall(), *(each.newest for each in found if each.newest)])
    return [_counted(store, runtime, each, now) for each in sorted(found, key=lambda each: each.queue)]


def _counted(store: Store, runtime: Runtime, found: Found, now: datetime) -> Survey:
    leases = sorted(found.leases, key=lambda stat: stat.modified, reverse=True)
    blobs = store.get_many([stat.key for stat in leases[:LEASES_MAX]])
    cut: set[str] = {*found.cut}
    if "pending" in cut:
        cut |= {"in_flight", "oldest_s", "resting"}
    if len(leases) > LEASES_MAX:
        cut |= {"in_flight", "resting"}
    works, rests = _at_work(blobs, now)
    trouble = ""
    try:
        paused = found.control and _paused(store, runtime, found.keys)
    except (Corrupt, Invalid, Unsupported) as error:  # the other queues are shown all the same
        paused, trouble = False, f"cannot tell whether it is paused: {error}"
    return Survey(
        queue=found.queue,
        pending=found.pending,
        in_flight=works,
        scheduled=found.scheduled,
        completed=found.ended_well(),
        failed=sum(count_of(name) for name in found.ended_badly()),
        oldest_s=max(0.0, (now - found.oldest).total_seconds()) if found.oldest else None,
        paused=paused,
        at_least=tuple(sorted(cut)),
        resting=rests,
        trouble=trouble,
    )


def _at_work(leases: Mapping[Key, Blob | LimpetError], now: datetime) -> tuple[int, int]:
    """How many tasks are in the hands of living workers, and how many rest. An unreadable lease counts for none."""
    in_flight = resting = 0
    for key, blob in leases.items():
        if isinstance(blob, (Missing, Corrupt, Invalid)):
            continue
        if isinstance(blob, LimpetError):
            raise blob
        count = count_of(key.rsplit("/", 2)[1])
        try:
            record = lease_of(blob.data, count=count, what=key)
        except (Corrupt, Unsupported):
            continue
        works, rests = at_work(record, count, modified=blob.modified, now=now)
        in_flight += works
        resting += rests
    return in_flight, resting


def is_live(seen: Versioned[EntryLease], now: datetime) -> bool:
    """Whether somebody works on the entry, as far as its lease tells."""
    assert seen.modified is not None
    lasts = timedelta(seconds=seen.value.ttl_s + RESOLUTION_S)
    return seen.value.state is State.HELD and seen.modified + lasts > now


def _paused(store: Store, runtime: Runtime, keys: QueueKeys) -> bool:
    seen = Cell(store, keys.control, CONTROL_CODEC, runtime).read()
    return seen is not None and seen.value.paused
