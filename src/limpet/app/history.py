"""The last hour of a fleet's queues, minute by minute: how many tasks ended, and how many had not ended.

How many ended is known by the times of the receipts. Where there are too many receipts to list, and for what was
waiting before this process looked, the events in the bucket tell it, if workers record them (`limpet work --events`).
Without events, how many were waiting is known from the moment on at which this process looked for the first time.
Each figure names its source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from limpet.app.fleet import Fleet
from limpet.app.place import has_store
from limpet.kernel.errors import Corrupt, LimpetError
from limpet.kernel.keys import batch_of, is_minted
from limpet.kernel.records import moment
from limpet.kernel.runtime import ulid_ms

if TYPE_CHECKING:
    from limpet.app.overview import FleetOverview

MINUTES = 60
RATE_MINUTES = 5
HOUR = timedelta(hours=1)
EVENTS_MAX = 20_000
BATCHES_MAX = 100
"""How many objects with events are read at most."""
FILES_MAX = 8
"""How many files with folded events are read at most."""
EVENTS_EVERY_S = 300.0
QUEUES_MAX = 5000
GAP_MINUTES = 15
"""After so long without a look, what was between two looks is not known."""
TASK_RUN = "task run"
ENDED = ("done", "failed")


@dataclass(frozen=True, slots=True)
class FinishRate:
    """How many tasks of a queue ended in each of the last 60 minutes, the oldest first.

    `source` is `receipts`: by the store's times of the receipts that are kept; or `events`: by the task runs that
    workers recorded. `at_least`: there are more receipts or events than were counted.
    """

    minutes: tuple[int, ...] = ()
    at_least: bool = False
    source: Literal["receipts", "events"] = "receipts"

    @property
    def per_minute(self) -> float:
        """The mean of the last five minutes."""
        return sum(self.minutes[-RATE_MINUTES:]) / RATE_MINUTES


@dataclass(frozen=True, slots=True)
class DepthHistory:
    """How many tasks of a queue had not ended at the end of each of the last 60 minutes, the oldest first.

    None: it is not known. `source` is `seen`: by this process, whose first look was at `since`; or `events`: minutes
    before that are reckoned back from the tasks that ended since. `at_least`: some tasks may be missing.
    """

    minutes: tuple[int | None, ...]
    at_least: bool
    source: Literal["seen", "events"]
    since: datetime


@dataclass(slots=True)
class RecordedRuns:
    """The tasks of a queue that ended in the last hour, by events: how many for each minute of push and of end.

    A task with an id of the user has no known minute of push, None. `cut`: there are more events than were read.
    """

    ended: Counter[tuple[int | None, int]] = field(default_factory=Counter)
    cut: bool = False

    def rate(self, now: datetime) -> FinishRate:
        """How many ended in each minute."""
        minutes: Counter[int] = Counter()
        for (_, end), count in self.ended.items():
            minutes[end] += count
        return FinishRate(last_hour(minutes, now), self.cut, "events")

    def depth(self, minute: int, pushed: Mapping[int, int]) -> int:
        """How many had not ended at the end of a minute; `pushed`: those that have not ended yet, by minute of push."""
        ended = sum(n for (push, end), n in self.ended.items() if push is not None and push <= minute < end)
        return ended + sum(n for push, n in pushed.items() if push <= minute)

    @property
    def at_least(self) -> bool:
        """Whether some tasks are missing in `depth`."""
        return self.cut or any(push is None for push, _ in self.ended)


def recorded_runs(fleet: Fleet) -> dict[str, RecordedRuns]:
    """The tasks that ended in the last hour, by queue, by the events in the bucket; empty where none were recorded.

    Workers write their events now and then: the last ones may be missing for up to 15 minutes.
    Cost: 1 LIST per 1,000 objects with events of the last hour, and of these the newest 100 by a GET each; 1 GET of the
    head, and 1 for each of at most 8 files that hold events of the last hour.
    """
    from limpet.events.tail import EventFilter, recent

    now = fleet.runtime.wall()
    wanted = EventFilter(since=now - HOUR)
    try:
        found = recent(fleet.store, fleet.runtime, EVENTS_MAX, wanted, batches_max=BATCHES_MAX, files_max=FILES_MAX)
    except LimpetError:  # events are informational: without them the page shows what it has seen
        return {}
    runs: dict[str, RecordedRuns] = {}
    cut = found.cut or len(found.events) == EVENTS_MAX
    for event in found.events:
        queue, outcome, task = (event.fields.get(name) for name in ("queue", "outcome", "task"))
        if event.kind == TASK_RUN and isinstance(queue, str) and outcome in ENDED and isinstance(task, str):
            with suppress(Corrupt):  # its time is what the worker wrote
                end = minute_of(moment(event.at))
                runs.setdefault(queue, RecordedRuns(cut=cut)).ended[_push_minute(task), end] += 1
    return runs


def _push_minute(id_: str) -> int | None:
    """The minute in which a task was pushed, by an id that Limpet made."""
    if not is_minted(id_):
        return None
    part = batch_of(id_)
    ms = ulid_ms((part[0] if part else id_)[:26])
    return None if ms is None else ms // 60_000


@dataclass(slots=True)
class _SeenQueue:
    """How many tasks had not ended at the last look within each minute, and whether some of these are lower bounds."""

    depths: dict[int, int] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)
    first: int = 0

    def at(self, minute: int) -> int | None:
        """The depth at a minute: of the last look before its end, if that was not long ago."""
        looks = (before for before in range(minute, minute - GAP_MINUTES, -1) if before in self.depths)
        return next((self.depths[before] for before in looks), None)


class FleetHistory:
    """What one process has seen of the last hour, and what the events in the bucket add. Not for several threads."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._seen: dict[str, _SeenQueue] = {}
        self._runs: Mapping[str, RecordedRuns] = {}
        self._version: int | None = None
        self._next_s = 0.0

    def look(self, overview: FleetOverview, version: int) -> None:
        """Note how many tasks wait, and read the events if queues changed since: `version` rises with each change.

        Cost: that of `recorded_runs` at the first look, and then after a change, every 5 minutes at most.
        """
        self._note(overview)
        now_s = self._fleet.runtime.elapsed_s()
        if has_store(self._fleet.url) and version != self._version and now_s >= self._next_s:
            self._version, self._next_s = version, now_s + EVENTS_EVERY_S
            self._runs = recorded_runs(self._fleet)

    def rate(self, overview: FleetOverview, queue: str) -> FinishRate | None:
        """How fast tasks end: by receipts if all of the last hour were counted, else by events, if there are any."""
        rate, runs = overview.rates.get(queue), self._runs.get(queue)
        if runs is None or (rate is not None and not rate.at_least):
            return rate
        by_events = runs.rate(overview.at)
        return by_events if rate is None or sum(by_events.minutes) > sum(rate.minutes) else rate

    def depth(self, overview: FleetOverview, queue: str) -> DepthHistory | None:
        """How many tasks had not ended: as this process saw it, and before that by events, if there are any."""
        seen = self._seen.get(queue)
        if seen is None:
            return None
        last = minute_of(overview.at)
        minutes = [seen.at(minute) for minute in range(last - MINUTES + 1, last + 1)]
        cut = any(minute > last - MINUTES for minute in seen.cut)
        since = datetime.fromtimestamp(seen.first * 60, UTC)
        runs, pushed = self._runs.get(queue), overview.pushed.get(queue)
        if runs is None or pushed is None or None not in minutes:
            return DepthHistory(tuple(minutes), cut, "seen", since)
        filled = [
            runs.depth(last - MINUTES + 1 + at, pushed) if value is None else value for at, value in enumerate(minutes)
        ]
        return DepthHistory(tuple(filled), cut or runs.at_least, "events", since)

    def _note(self, overview: FleetOverview) -> None:
        read_at = overview.read_at.get("queues")
        if read_at is None:
            return
        minute = minute_of(read_at)
        for each in overview.queues[:QUEUES_MAX]:
            seen = self._seen.setdefault(each.queue, _SeenQueue(first=minute))
            seen.depths[minute] = each.pending - (each.done or 0)
            if "pending" in each.at_least:
                seen.cut.add(minute)
            if len(seen.depths) > 2 * MINUTES:
                seen.depths = {at: depth for at, depth in seen.depths.items() if at > minute - MINUTES - GAP_MINUTES}
                seen.cut &= {*seen.depths}
        if len(self._seen) > QUEUES_MAX:
            names = {each.queue for each in overview.queues}
            self._seen = {name: seen for name, seen in self._seen.items() if name in names}


def minute_of(at: datetime) -> int:
    """The minute of the Unix time."""
    return int(at.timestamp()) // 60


def last_hour(minutes: Mapping[int, int], now: datetime) -> tuple[int, ...]:
    """The counts of the last 60 minutes, the oldest first. What the store's clock stamped later counts as now."""
    last = minute_of(now)
    late = sum(count for minute, count in minutes.items() if minute > last)
    found = [minutes.get(minute, 0) for minute in range(last - MINUTES + 1, last + 1)]
    return (*found[:-1], found[-1] + late)
