"""`Lock`: how a lease is won."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from limpet.cell import Cell, Lost, Replaced, Unclear, Versioned, Won, struct_codec
from limpet.errors import Corrupt, Held, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.keys import LOCKS, Key, lock_key
from limpet.lease.decide import (
    TOKEN_MAX,
    Create,
    LeaseRecord,
    State,
    Take,
    Wait,
    check_ttl,
    freed,
    look_interval_s,
    next_step,
    renewed,
    reset,
    taken,
)
from limpet.lease.heartbeat import Heartbeat
from limpet.lease.lease import Lease
from limpet.records import INTEGER_MAX
from limpet.runtime import Runtime, in_thread
from limpet.store.api import Store, Version

POLL_MIN_S = 0.2
POLL_MAX_S = 5.0
WATCHED_MAX = 10_000


@dataclass(slots=True)
class _Sighting:
    version: Version
    since_s: float
    doubted: bool = False


class VersionWatch:
    """Since when this process has seen which version of which lock, on its own rising clock."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._first: dict[Key, _Sighting] = {}
        self._mutex = runtime.mutex()

    def knows(self, key: Key) -> bool:
        """Whether this process has seen a record there."""
        return key in self._first

    def unchanged_s(self, key: Key, version: Version) -> float:
        """How long `version` has stood there, as far as this process saw; notes the first sight of it."""
        at_s = self._runtime.elapsed_s()
        with self._mutex:
            first = self._first.pop(key, None)
            if first is None or first.version != version:
                first = _Sighting(version, at_s)
            self._first[key] = first
            if len(self._first) > WATCHED_MAX:
                del self._first[next(iter(self._first))]
        return at_s - first.since_s

    def first_doubt(self, key: Key) -> bool:
        """True once per version: the moment to ask the store for its clock. The reading stays good by itself."""
        sighting = self._first.get(key)
        if sighting is None or sighting.doubted:
            return False
        sighting.doubted = True
        return True


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Another process holds the lock. `watch_s`: how long to watch it all the same, because it seems abandoned."""

    seen: Versioned[LeaseRecord]
    held: Held
    watch_s: float


@dataclass(frozen=True, slots=True)
class LockState:
    """A lock as people look at it. `state` is free, held or overdue: held, but not renewed within its ttl."""

    name: str
    state: str
    holder: str
    worker_id: str
    token: int
    taken_at: datetime
    """By the holder's clock."""
    heartbeat_at: datetime
    """By the store's clock; the last change of a free lock."""
    age_s: float
    """Since `heartbeat_at`."""
    ttl_s: float
    key: str | None
    """None for a name that no lock of Limpet's can have."""


def lock_state(seen: Versioned[LeaseRecord], now: datetime) -> LockState:
    """The state of a lock at `now`, the store's time as near as it is known. Pure."""
    record, at = seen.value, seen.modified
    assert at is not None
    age_s = max(0.0, (now - at).total_seconds())
    try:
        key: str | None = lock_key(record.name)
    except Invalid:
        key = None
    return LockState(
        name=record.name,
        state="overdue" if record.state is State.HELD and age_s > record.ttl_s + 1 else record.state.value,
        holder=record.label,
        worker_id=record.worker_id,
        token=record.token,
        taken_at=record.created_at,
        heartbeat_at=at,
        age_s=round(age_s, 1),
        ttl_s=record.ttl_s,
        key=key,
    )


def lease_cell(store: Store, key: Key, runtime: Runtime) -> Cell[LeaseRecord]:
    """The record of a lock."""
    is_ours = not key.startswith(f"{LOCKS}/")
    remedy = None if is_ours else "stop what uses this lock, then `limpet lock break NAME --force`"
    return Cell(store, key, struct_codec(LeaseRecord), runtime, remedy=remedy)


class Lock:
    """A name that at most one process holds at a time, with a token that rises each time it changes hands.

    Clocks matter for how soon an abandoned lock is taken over, never for safety: what is written with a lease's token
    is refused once a newer token has written, whatever any clock says.
    """

    def __init__(
        self,
        store: Store,
        key: Key,
        name: str,
        ttl_s: float,
        runtime: Runtime,
        sightings: VersionWatch,
        *,
        look_first: bool = False,
    ) -> None:
        self._store = store
        self._name = name
        self._ttl_s = check_ttl(ttl_s)
        self._runtime = runtime
        self._sightings = sightings
        self._look_first = look_first
        self._unsure: set[str] = set()
        self._cell = lease_cell(store, key, runtime)

    def try_acquire(self) -> Lease | Held:
        """Take the lock if it is free or abandoned, without waiting.

        An abandoned one is taken once its LastModified + ttl_s has passed on the store's clock *and* this process saw
        the same version at two looks at least a renew interval + 2 s apart.
        Raises: OutcomeUnknown (ask again; a token that was won meanwhile is recognised or skipped).
        Cost: 1 PUT for a lock that was never used; 1 GET + 1 PUT for a free one that this process knows, or with
        `look_first` (an unknown one: 1 refused PUT more); 1 GET when held; on takeover at most 1 PUT + 1 HEAD more
        for a clock reading.
        Crash: at worst a held lock that runs out after ttl_s.
        """
        outcome = self._try()
        return outcome.held if isinstance(outcome, _Waiting) else outcome

    def acquire(self, wait_s: float | None = None) -> Lease:
        """Take the lock, waiting up to `wait_s` seconds for its holder (None: for ever). The caller renews it.

        A lock that seems abandoned is watched for a renew interval + 2 s even when `wait_s` is shorter, so that short
        jobs started by cron do take over from a dead one. Whether it seems so is asked of the store's clock before
        giving up: neither the dead holder's wall clock nor ours decides.
        Raises: Held when the wait is over; OutcomeUnknown.
        Cost: `try_acquire` every 0.2 to 5 s; 1 PUT + 1 HEAD more before giving up.
        """
        started_s = self._runtime.elapsed_s()
        patience_s = float("inf") if wait_s is None else wait_s
        pause_s = POLL_MIN_S
        asked = False
        while True:
            outcome = self._try()
            if isinstance(outcome, Lease):
                return outcome
            waited_s = self._runtime.elapsed_s() - started_s
            if patience_s <= waited_s and outcome.watch_s == 0.0 and not asked:
                asked = True
                outcome = self._by_store_clock(outcome.seen)
            left_s = max(patience_s, outcome.watch_s) - waited_s
            if left_s <= 0:
                raise outcome.held
            self._runtime.sleep(min(pause_s * self._runtime.rng.uniform(0.7, 1.0), left_s))
            pause_s = min(pause_s * 1.5, POLL_MAX_S)

    @contextmanager
    def hold(
        self,
        wait_s: float | None = None,
        *,
        stall_s: float | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> Iterator[Lease]:
        """`with lock.hold() as lease:` keeps the lock for the block, renewing it from a thread of its own.

        With `stall_s` the renewing stops when the block does not call `lease.progress()` for so long, so that a hung
        worker does not keep a lock for ever (F16). `on_lost` runs once, in that thread, when the lease is gone.
        Raises: Held; OutcomeUnknown; LeaseLost at the end of a block whose lease was lost meanwhile.
        Cost: `acquire`, then 1 PUT per ttl_s / 3, then 1 PUT.   Crash: the lock runs out after ttl_s.
        """
        lease = self.acquire(wait_s)
        heartbeat = Heartbeat(lease, self._runtime, stall_s=stall_s, on_lost=on_lost)
        try:
            yield lease
        except BaseException:
            heartbeat.stop()
            with suppress(LimpetError):  # the block's own error says more
                lease.release()
            raise
        heartbeat.stop()
        with suppress(OutcomeUnknown, Unavailable):  # as after a crash, it runs out by itself
            lease.release()

    @asynccontextmanager
    async def hold_async(
        self,
        wait_s: float | None = None,
        *,
        stall_s: float | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> AsyncIterator[Lease]:
        """`async with lock.hold_async() as lease:` is `hold` for coroutines: the event loop goes on while it waits."""
        held = self.hold(wait_s, stall_s=stall_s, on_lost=on_lost)
        lease = await in_thread(held.__enter__)
        try:
            yield lease
        except BaseException as error:
            if not await in_thread(held.__exit__, type(error), error, error.__traceback__):
                raise
        else:
            await in_thread(held.__exit__, None, None, None)

    def peek(self) -> LeaseRecord | None:
        """The record as it stands; None if the lock was never used.   Cost: 1 GET."""
        seen = self._cell.read()
        return seen.value if seen else None

    def break_(self, *, force: bool = False) -> LeaseRecord:
        """Free a held lock, whoever holds it. The token stays, so the next one is higher and the old one stale.

        `force`: also one whose record cannot be read, or has no higher token to give. It is replaced by a free record
        whose token is the time in milliseconds: higher than any that was counted up from 1. Cells that were written
        with a higher one refuse the next holder.
        Raises: Missing for a lock that was never used; Corrupt; Conflict; OutcomeUnknown.
        Cost: 1 GET + 1 PUT; 1 HEAD more for one that is replaced.
        """
        if force and self.damage() is not None:
            runtime = self._runtime
            record = reset(self._name, runtime.owner, runtime.label, self._ttl_s, runtime.wall())
            return self._cell.replace_unreadable(record).value
        seen = self._cell.update(lambda record: freed(record) if record and record.state is State.HELD else None)
        if seen is None:
            raise Missing(f"there is no lock {self._name!r}", hint="`limpet lock ls` shows those there are")
        return seen.value

    def damage(self) -> str | None:
        """Why no process can ever take this lock; None for one that is in order.   Cost: 1 GET."""
        try:
            seen = self._cell.read()
        except Corrupt as error:
            return str(error)
        if seen is not None and seen.value.token >= TOKEN_MAX:
            return f"its token is {seen.value.token}"
        if seen is not None and seen.header.seq >= INTEGER_MAX:
            return f"its seq is {seen.header.seq}"
        return None

    def _try(self) -> Lease | _Waiting:
        if self._look_first or self._unsure or self._sightings.knows(self._cell.key):
            seen = self._cell.read()
        else:
            claimed = self._claim(None)
            if isinstance(claimed, Lease):
                return claimed
            seen = claimed
        if seen is not None and seen.header.write_id in self._unsure:
            return self._lease_or_wait(self._adopt(seen))
        step = self._decide(seen) if seen else Create()
        if isinstance(step, Wait):
            assert seen is not None
            return self._waiting(seen, step)
        return self._lease_or_wait(self._claim(seen))

    def _decide(self, seen: Versioned[LeaseRecord]) -> Create | Take | Wait:
        unchanged_s = self._sightings.unchanged_s(self._cell.key, seen.version)
        step = self._step(seen, unchanged_s, max_age_s=None)
        record = seen.value
        watched = record.state is State.HELD and unchanged_s >= look_interval_s(record.ttl_s)
        if isinstance(step, Wait) and watched and self._sightings.first_doubt(self._cell.key):
            return self._step(seen, unchanged_s, max_age_s=record.ttl_s / 4)
        return step

    def _by_store_clock(self, seen: Versioned[LeaseRecord]) -> _Waiting:
        """Whether a held lock seems abandoned by a fresh reading of the store's clock.   Cost: 1 PUT + 1 HEAD."""
        unchanged_s = self._sightings.unchanged_s(self._cell.key, seen.version)
        step = self._step(seen, unchanged_s, max_age_s=-1.0)
        return self._waiting(seen, step if isinstance(step, Wait) else None)

    def _step(
        self, seen: Versioned[LeaseRecord], unchanged_s: float, *, max_age_s: float | None
    ) -> Create | Take | Wait:
        assert seen.modified is not None
        return next_step(
            seen.value,
            modified=seen.modified,
            unchanged_s=unchanged_s,
            now=self._store.now(max_age_s=max_age_s),
            wall=self._runtime.wall(),
        )

    def _claim(self, seen: Versioned[LeaseRecord] | None) -> Lease | Versioned[LeaseRecord]:
        with self._cell.explained():
            record = taken(
                seen.value if seen else None,
                name=self._name,
                worker_id=self._runtime.owner,
                label=self._runtime.label,
                ttl_s=self._ttl_s,
                wall=self._runtime.wall(),
            )
        return self._swap(seen, record)

    def _adopt(self, seen: Versioned[LeaseRecord]) -> Lease | Versioned[LeaseRecord]:
        """A claim of ours whose outcome was unknown has landed: renew it, and it is a lease."""
        return self._swap(seen, renewed(seen.value, self._runtime.wall()))

    def _swap(self, seen: Versioned[LeaseRecord] | None, record: LeaseRecord) -> Lease | Versioned[LeaseRecord]:
        """A lease if our record now stands there; else what stands there instead."""
        sent_at_s = self._runtime.elapsed_s()
        write_id = self._runtime.new_id()
        self._unsure.add(write_id)
        outcome = self._cell.attempt(seen, record, write_id=write_id)
        self._unsure.discard(write_id)
        match outcome:
            case Won(mine):
                self._sightings.unchanged_s(self._cell.key, mine.version)
                return Lease(self._cell, mine, self._runtime, sent_at_s=sent_at_s)
            case Replaced(_, now) | Lost(now) | Unclear(now):  # whatever became of it, it does not stand there now
                return now

    def _lease_or_wait(self, outcome: Lease | Versioned[LeaseRecord]) -> Lease | _Waiting:
        if not isinstance(outcome, Lease) and outcome.header.write_id in self._unsure:
            outcome = self._adopt(outcome)
        if isinstance(outcome, Lease):
            return outcome
        step = self._decide(outcome)
        return self._waiting(outcome, step if isinstance(step, Wait) else None)

    def _waiting(self, seen: Versioned[LeaseRecord], step: Wait | None) -> _Waiting:
        record = seen.value
        held = Held(self._name, by=record.label, until=step.until if step else None, token=record.token)
        confirm = step is not None and step.confirm
        return _Waiting(seen, held, watch_s=look_interval_s(record.ttl_s) + POLL_MAX_S if confirm else 0.0)
