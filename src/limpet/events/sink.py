"""`LedgerSink`: events are collected in memory and appended to the ledger in batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from limpet.events import Event
from limpet.kernel import records
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.cell import Cell, struct_codec
from limpet.kernel.errors import Invalid, LimpetError, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.records import Name, Positive
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Absent, Store
from limpet.kernel.store.metered import MeteredStore
from limpet.kernel.store.outcome import put_bytes
from limpet.kernel.waiting import BackgroundJob, attempts

SCHEMA = 1
EVENTS_MAX = 100_000
POSITION_MAX = (1 << 62) - 1
SHARE = 0.015
"""Requests for events per request of the work itself. With the last flush they stay below 2 %."""
FLUSH_COUNT = 10_000
FLUSH_AGE_S = 10.0
FLUSH_AGE_MAX_S = 900.0
KEPT_MAX = 50_000
TICK_S = 2.0

_log = logging.getLogger("limpet.events")


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger object of the domain `executions`. `position`: that of the first event; None: without positions."""

    schema: Positive = SCHEMA
    domain: Name
    source: Name
    position: Annotated[int, msgspec.Meta(ge=0, le=POSITION_MAX)] | None
    events: Annotated[tuple[Event, ...], msgspec.Meta(max_length=EVENTS_MAX)]


@dataclass(frozen=True, slots=True)
class SinkLoad:
    """The state of a sink: the number of events, the age of the oldest, the requests that a flush takes, and those that
    the sink and everything else have made so far."""

    count: int
    age_s: float
    cost: int
    own_requests: int
    other_requests: int


def is_due(held: SinkLoad) -> bool:
    """Whether to flush: after 10,000 events, after 15 minutes, or after 10 s if the share of requests allows it.

    So events take at most 1.5 % of the requests, or one for 10,000 tasks, or one in 15 minutes, whichever is most; the
    last flush of a process takes at most 3.
    """
    if held.count >= FLUSH_COUNT or (held.count and held.age_s >= FLUSH_AGE_MAX_S):
        return True
    if not held.count or held.age_s < FLUSH_AGE_S:
        return False
    return held.own_requests + held.cost <= SHARE * held.other_requests


@dataclass(frozen=True, slots=True)
class _UnsentBatch:
    """A batch that is being written: every attempt sends the same bytes under the same name."""

    key: Key
    data: bytes
    count: int


class LedgerSink:
    """Accepts events from any thread; a background thread writes them. Order within a process is kept.

    `spent` returns the number of all requests of this process, including this sink's. While the store is unavailable up
    to 50,000 events are kept in memory; events that could not be written are counted in `lost`, and logged once.
    Crash: events in memory are lost: at most 10,000, or those of 15 minutes, while the store is available.
    """

    def __init__(self, store: Store, keys: CatalogKeys, runtime: Runtime, spent: Callable[[], int]) -> None:
        self.lost = 0
        """How many events could not be written."""
        self._store = MeteredStore(store, runtime=runtime)
        self._keys = keys
        self._runtime = runtime
        self._spent = spent
        self._sequence = Sequence(self._store, keys, runtime)
        self._mutex = runtime.mutex()
        self._writing = runtime.mutex()
        self._job = BackgroundJob("events", self._write_if_due, TICK_S, runtime)
        self._events: list[Event] = []
        self._since_s = 0.0
        self._ready: _UnsentBatch | None = None
        self._started = False
        self._said = False

    def emit(self, event: Event) -> None:
        """Cost: nothing now; later a share of a PUT."""
        with self._mutex:
            taken = not self._job.stopped and len(self._events) < KEPT_MAX
            if taken:
                if not self._events:
                    self._since_s = self._runtime.elapsed_s()
                self._events.append(event)
                if len(self._events) >= FLUSH_COUNT:
                    self._job.wake()
            starts, self._started = not self._started, True
        if not taken:
            self._lose(1, "too many wait in memory, or the sink is closed")
        if starts:
            self._job.start()

    def flush(self) -> None:
        """Cost: 1 PUT for each 10,000 events; 1 GET + 1 PUT for each block of positions."""
        with self._writing:
            while self._held().count and self._write():
                pass

    def close(self) -> None:
        """Events that cannot be written now are lost, and counted."""
        self._job.stop()
        for _ in attempts(self._runtime, 3, 0):
            self.flush()
        with self._mutex:
            left = len(self._events) + (self._ready.count if self._ready else 0)
            self._events, self._ready = [], None
        if left:
            self._lose(left, "the store did not take them in time")

    def _write_if_due(self) -> None:
        with self._writing:
            if not self._job.stopped and is_due(self._held()):
                self._write()

    def _held(self) -> SinkLoad:
        own = self._store.snapshot().total()
        with self._mutex:
            count = len(self._events) + (self._ready.count if self._ready else 0)
            age_s = self._runtime.elapsed_s() - self._since_s
        cost = 1 if self._ready else 1 + self._sequence.cost(min(count, FLUSH_COUNT))
        return SinkLoad(count, age_s, cost, own, self._spent() - own)

    def _write(self) -> bool:
        """Write one batch; False if the outcome is unknown or the store is unavailable: then it is sent again."""
        ready = self._ready = self._ready or self._gather()
        try:
            # If it was folded and removed since, it is written again: the compactor recognises its events by their ids.
            put_bytes(self._store, self._runtime, ready.key, ready.data, Absent())
        except (Unavailable, OutcomeUnknown):
            return False
        except LimpetError as error:
            self._lose(ready.count, str(error))
        self._ready = None
        return True

    def _gather(self) -> _UnsentBatch:
        with self._mutex:
            events, self._events = self._events[:FLUSH_COUNT], self._events[FLUSH_COUNT:]
            self._since_s = self._runtime.elapsed_s()
        sound = [event for event in events if _is_sound(event)]
        if len(sound) < len(events):
            self._lose(len(events) - len(sound), "JSON cannot hold them")
        batch = EventBatch(
            domain=self._keys.domain,
            source=self._runtime.label,
            position=self._sequence.take(len(sound)),
            events=tuple(sound),
        )
        return _UnsentBatch(self._keys.batch(self._runtime.new_id()), records.encode(batch), len(sound))

    def _lose(self, count: int, why: str) -> None:
        with self._mutex:
            self.lost += count
            said, self._said = self._said, True
        if not said:
            _log.warning("events could not be written and are lost (logged once): %s", why)


def _is_sound(event: Event) -> bool:
    try:
        records.encode(event)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


BLOCK = 100_000
NEXT_MAX = 1 << 62


class SequenceRecord(msgspec.Struct, frozen=True):
    """The fields of `sequence/<domain>.json` beside the cell's header: the next free position."""

    next: Annotated[int, msgspec.Meta(ge=0, le=NEXT_MAX)]


class Sequence:
    """The positions of one process, reserved in blocks. The rest of a block is skipped when the process ends."""

    def __init__(self, store: Store, keys: CatalogKeys, runtime: Runtime) -> None:
        self._cell = Cell(store, keys.sequence, struct_codec(SequenceRecord), runtime)
        self._next = 0
        self._end = 0

    def cost(self, count: int) -> int:
        """The number of requests of `take`."""
        return 0 if self._next + count <= self._end else 2

    def take(self, count: int) -> int | None:
        """The first of `count` consecutive positions; None if the store is not available. Never raises.

        Cost: mostly none; for each block 1 GET + 1 PUT.   Crash: the block is skipped.
        """
        if self.cost(count):
            size = max(BLOCK, count)

            def further(record: SequenceRecord | None) -> SequenceRecord:
                after = (record.next if record else 1) + size
                if after > NEXT_MAX:
                    raise Invalid(f"{self._cell.key} has the implausible position {after}")
                return SequenceRecord(after)

            try:
                seen = self._cell.update(further)
            except LimpetError:
                return None
            assert seen is not None
            self._next, self._end = seen.value.next - size, seen.value.next
        first = self._next
        self._next += count
        return first
