"""Locks that expire if their holder crashes or is paused, with fencing tokens that refuse the writes of a late holder.

`Lock` is how a lease is won, `Lease` a lock that this process holds, with the token for its writes, and `Renewer` the
thread that renews leases. `decide` has the rules.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    asynccontextmanager,
    contextmanager,
    suppress,
)
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from limpet.kernel.answers import answers_options
from limpet.kernel.cell import Cell, Lost, Replaced, Unclear, Versioned, Won, struct_codec
from limpet.kernel.errors import Corrupt, Held, Invalid, LeaseLost, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.keys import LOCKS, Key, lock_key
from limpet.kernel.lease.decide import (
    TOKEN_MAX,
    Create,
    LeaseRecord,
    State,
    Take,
    Wait,
    check_ttl,
    freed,
    is_live,
    look_interval_s,
    next_step,
    renewed,
    reset,
    taken,
)
from limpet.kernel.lease.renewer import Renewable, Renewer
from limpet.kernel.records import INTEGER_MAX
from limpet.kernel.runtime import Runtime, in_thread
from limpet.kernel.store.api import Store, Version
from limpet.kernel.waiting import attempts, poll_pause_s

__all__ = [
    "HeldLease",
    "Lease",
    "LeaseRecord",
    "Lock",
    "LockState",
    "Renewable",
    "Renewer",
    "State",
    "VersionWatch",
    "lease_cell",
    "lock_state",
]

R = TypeVar("R", bound=LeaseRecord)

RELEASED = "the lease was released"
SWAPS_MAX = 5
POLL_MIN_S = 0.2
POLL_MAX_S = 5.0
WATCHED_MAX = 10_000
_BLOCKS: ContextVar[tuple[tuple[Lock, Any], ...]] = ContextVar("blocks", default=())
"""The `with` blocks of locks that this thread, or coroutine, is in: a lock may be shared by several of them."""


class HeldLease(Generic[R]):
    """A lease record that this process holds, and changes by swaps on the version that it last saw. The packages above
    extend the record."""

    def __init__(self, cell: Cell[R], seen: Versioned[R], runtime: Runtime, *, sent_at_s: float) -> None:
        self.name = seen.value.name
        """The lock's name."""
        self.token = seen.value.token
        """The fencing token."""
        self.record = seen.value
        """The record as this process last wrote it."""
        self._cell = cell
        self._seen = seen
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._valid_until_s = sent_at_s + seen.value.ttl_s
        self._progress_at_s = sent_at_s
        self._unsure = False
        self._freeing = False
        self._ended: str | None = None

    @property
    def lock(self) -> str:
        """The lock's key, which a cell stores beside the token."""
        return self._cell.key

    @property
    def version(self) -> Version:
        """The version of the record as this process last wrote it."""
        return self._seen.version

    @property
    def ttl_s(self) -> float:
        """How long the lease lasts without a renewal."""
        return self._seen.value.ttl_s

    @property
    def released(self) -> bool:
        """Whether `release()` has ended it."""
        return self._ended == RELEASED

    @property
    def lost(self) -> bool:
        """Whether the lease is known to have ended, or has expired on this process's own clock."""
        return self._why_lost() is not None

    def lost_at(self, at_s: float) -> bool:
        """`lost`, for a caller that has just read the clock."""
        of_parent = self._runtime.owner != self._seen.value.worker_id
        return at_s >= self._valid_until_s or self._ended is not None or of_parent

    def check(self) -> None:
        """Raise unless this process still holds the lease, as far as it can know without a request.

        Raises: LeaseLost.   Cost: no request. It compares the last renewal with a clock that also counts time asleep.
        """
        why = self._why_lost()
        if why is not None:
            raise LeaseLost(why)

    def check_held(self) -> None:
        """Raise unless this process still holds the lease: then what it wrote before this call was written under it.

        Nobody takes a lease that was renewed within `look_interval_s`, whatever the store's clock says. A process that
        has slept longer reads it: it still holds the lease if no other one has taken it.
        Raises: LeaseLost; Unavailable.   Cost: no request after such a renewal, else 1 GET.
        """
        self._check_not_ended()
        renewed_s = self._valid_until_s - self.ttl_s
        if self._runtime.elapsed_s() - renewed_s < min(self.ttl_s, look_interval_s(self.ttl_s)):
            return
        seen = self._cell.read()
        if seen is None or not self._is_of_this_claim(seen.value) or seen.value.state is not State.HELD:
            raise self._end(f"the lease of {self.name!r} (token {self.token}) ran out, and is no longer ours")

    def progress(self) -> None:
        """Report progress, so that the renewer of `hold(stall_s=...)` keeps renewing."""
        self._progress_at_s = self._runtime.elapsed_s()

    def renew(self) -> None:
        """Keep the lease for another `ttl_s`.

        Raises: LeaseLost; OutcomeUnknown or Unavailable, after which it may be tried again until the lease expires.
        Cost: 1 PUT; after an unclear renewal 1 GET + 1 PUT.
        """
        self.check()  # before the mutex, which in a forked child may be locked by a thread that does not exist
        with self._mutex:
            self.check()
            self._rewrite(lambda record: record)

    def rewrite(self, change: Callable[[R], R]) -> None:
        """Replace the record by `change(record)`, and renew the lease.

        It also works on an expired lease, unless another process has taken the lock.
        Raises: LeaseLost; OutcomeUnknown or Unavailable, after which it may be tried again.
        Cost: 1 PUT; after an unclear one 1 GET + 1 PUT.
        """
        self._check_not_ended()
        with self._mutex:
            self._check_not_ended()
            self._rewrite(change)

    def release(self) -> None:
        """Release the lock. A second release does nothing.

        Raises: LeaseLost if another process has taken the lock; OutcomeUnknown, Unavailable: then the lease expires.
        Cost: 1 PUT.   Crash: at worst a held lock that expires after `ttl_s`.
        """
        if not self.released:
            self.check()
            self.free(freed)

    def free(self, change: Callable[[R], R]) -> None:
        """Replace the record by `change(record)`, whose state is free, and end the lease; also an expired one.

        Raises, Cost: as `release`.
        """
        if not self.released:
            self._check_not_ended()
        with self._mutex:
            if self.released:
                return
            self._check_not_ended()
            tried_before, self._freeing = self._freeing, True
            now = self._swap(change)
            freed_before = tried_before and now is not None and self._is_of_this_claim(now)
            if now is not None and not freed_before:
                raise self._end(f"lock {self.name!r} was taken from token {self.token}")
            self._ended = RELEASED

    def valid_for_s(self) -> float:
        """Seconds until the lease expires if it is not renewed; negative if it has expired."""
        return self._valid_until_s - self._runtime.elapsed_s()

    def stalled_for_s(self) -> float:
        """Seconds since the last call of `progress`."""
        return self._runtime.elapsed_s() - self._progress_at_s

    def _rewrite(self, change: Callable[[R], R]) -> None:
        sent_at_s = self._runtime.elapsed_s()
        now = self._swap(lambda record: renewed(change(record), self._runtime.wall()))
        if now is not None:
            raise self._end(f"lock {self.name!r} was taken from token {self.token}")
        self._valid_until_s = sent_at_s + self.ttl_s

    def _swap(self, change: Callable[[R], R]) -> R | None:
        """Swap the record for `change(record)`. Returns None, or the record of another holder if the lease is lost.

        A token is given to one holder only, so a held record with our token is ours, whichever of our swaps wrote it.
        (Names that are deleted may begin anew at token 1: there the holder and the time of its claim tell them apart.)
        After an unclear swap we therefore read the record again, and a swap of ours that lands late does not end the
        lease.
        """
        seen = self._cell.read() if self._unsure else self._seen
        if seen is None:
            raise self._end(f"the record of lock {self.name!r} is gone")
        for _ in range(SWAPS_MAX):
            if not self._is_of_this_claim(seen.value) or seen.value.state is not State.HELD:
                return seen.value
            try:
                outcome = self._cell.attempt(seen, change(seen.value))
            except OutcomeUnknown:
                self._unsure = True
                raise
            match outcome:
                case Won(mine):
                    self._seen, self.record, self._unsure = mine, mine.value, False
                    return None
                case Replaced(mine, now):
                    return None if mine.value.state is State.FREE else now.value
                case Lost(now) | Unclear(now):
                    seen = now
        raise OutcomeUnknown(f"lock {self.name!r} was swapped by late writes of our own {SWAPS_MAX} times")

    def _is_of_this_claim(self, record: R) -> bool:
        ours = self._seen.value
        return (record.token, record.worker_id, record.created_at) == (ours.token, ours.worker_id, ours.created_at)

    def _end(self, why: str) -> LeaseLost:
        self._ended = why
        return LeaseLost(why)

    def _check_not_ended(self) -> None:
        if (why := self._why_ended()) is not None:
            raise LeaseLost(why)

    def _why_ended(self) -> str | None:
        if self._ended is None and self._runtime.owner != self._seen.value.worker_id:
            return f"the lease of {self.name!r} belongs to the process that this one was forked from"
        return self._ended

    def _why_lost(self) -> str | None:
        why = self._why_ended()
        if why is None and self.valid_for_s() <= 0:
            return f"the lease of {self.name!r} (token {self.token}) ran out without a renewal"
        return why


class Lease(HeldLease[LeaseRecord]):
    """A held lock: from its acquisition until it is released, lost, or not renewed for `ttl_s`.

    `token` is higher than that of every earlier holder. Pass the lease to `cell.write(value, lease=lease)`: the cell
    refuses the write once a newer token has written. Before any other side effect call `check()`: that makes the time
    shorter in which a paused holder can do harm, but not zero.
    """


# ---- taking a lock ----


@dataclass(slots=True)
class _WatchedVersion:
    version: Version
    since_s: float
    doubted: bool = False
    ours: bool = False


class VersionWatch:
    """For how long this process has seen the same version of each lock's record, on its monotonic clock."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._first: dict[Key, _WatchedVersion] = {}
        self._mutex = runtime.mutex()

    def knows(self, key: Key) -> bool:
        """Whether this process has seen a record there."""
        return key in self._first

    def unchanged_s(self, key: Key, version: Version) -> float:
        """Seconds since this process first saw `version` there, if it saw no other since; records the first time."""
        at_s = self._runtime.elapsed_s()
        with self._mutex:
            first = self._first.pop(key, None)
            if first is None or first.version != version:
                first = _WatchedVersion(version, at_s)
            self._first[key] = first
            if len(self._first) > WATCHED_MAX:
                del self._first[next(iter(self._first))]
        return at_s - first.since_s

    def wrote(self, key: Key, version: Version) -> None:
        """This process has just written `version` there: it knows its age from now on, not only a lower bound of it."""
        self.unchanged_s(key, version)
        with self._mutex:
            watched = self._first.get(key)
            if watched is not None and watched.version == version:
                watched.ours = True

    def ours(self, key: Key, version: Version) -> bool:
        """Whether this process wrote `version` there, as far as it remembers."""
        watched = self._first.get(key)
        return watched is not None and watched.version == version and watched.ours

    def first_doubt(self, key: Key) -> bool:
        """True once per version: the caller then reads the store's clock. One reading is enough."""
        watched = self._first.get(key)
        if watched is None or watched.doubted:
            return False
        watched.doubted = True
        return True


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Another process holds the lock. `watch_s`: how long to watch it even after `wait_s`; not 0 if it seems
    abandoned."""

    seen: Versioned[LeaseRecord]
    held: Held
    watch_s: float


@dataclass(frozen=True, slots=True)
class LockState:
    """A lock for display. `state` is free, held or overdue: held, but not renewed within its ttl."""

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
    """None for a name that no lock can have."""


def lock_state(seen: Versioned[LeaseRecord], now: datetime) -> LockState:
    """The state of a lock at `now`, a lower bound of the store's time. Pure."""
    record, at = seen.value, seen.modified
    assert at is not None
    overdue = record.state is State.HELD and not is_live(record, modified=at, now=now)
    key: str | None = None
    with suppress(Invalid):
        key = lock_key(record.name)
    return LockState(
        name=record.name,
        state="overdue" if overdue else record.state.value,
        holder=record.label,
        worker_id=record.worker_id,
        token=record.token,
        taken_at=record.created_at,
        heartbeat_at=at,
        age_s=round(max(0.0, (now - at).total_seconds()), 1),
        ttl_s=record.ttl_s,
        key=key,
    )


def lease_cell(store: Store, key: Key, runtime: Runtime) -> Cell[LeaseRecord]:
    """The record of a lock."""
    is_ours = not key.startswith(f"{LOCKS}/")
    remedy = None if is_ours else "stop what uses this lock, then `limpet lock break NAME --force`"
    return Cell(store, key, struct_codec(LeaseRecord), runtime, remedy=remedy)


class Lock:
    """A name that at most one process holds at a time, with a token that rises with each new holder.

    Clocks only decide how soon an abandoned lock is taken over. Safety does not depend on them: a cell refuses a write
    with a lease's token once a newer token has written, whatever any clock says.
    """

    def __init__(
        self,
        store: Store,
        key: Key,
        name: str,
        ttl_s: float,
        runtime: Runtime,
        watch: VersionWatch,
        *,
        look_first: bool = False,
    ) -> None:
        self._store = store
        self._name = name
        self._ttl_s = check_ttl(ttl_s)
        self._runtime = runtime
        self._watch = watch
        self._look_first = look_first
        self._unsure: set[str] = set()
        self._cell = lease_cell(store, key, runtime)

    def try_acquire(self) -> Lease | Held:
        """Take the lock if it is free or abandoned, without waiting.

        An abandoned one is taken if its LastModified + ttl_s has passed on the store's clock *and* this process has
        read the same version twice, at least a renew interval + 2 s apart.
        Raises: OutcomeUnknown (call it again: if the first call did take the lock, the second one recognises that).
        Cost: 1 PUT for a lock that was never used; 1 GET + 1 PUT for a free one that this process knows, or with
        `look_first` (an unknown one: 1 refused PUT more); 1 GET when held; on takeover at most 1 PUT + 1 HEAD more
        for a clock reading.
        Crash: at worst a held lock that expires after ttl_s.
        """
        outcome = self._try()
        return outcome.held if isinstance(outcome, _Waiting) else outcome

    @answers_options
    def acquire(self, wait_s: float | None = None) -> Lease:
        """Take the lock, waiting up to `wait_s` seconds for its holder (None: for ever). The caller renews it.

        A lock that seems abandoned is watched for a renew interval + 2 s even if `wait_s` is shorter, so that short
        jobs started by cron do take over from a dead holder. Before giving up, the store's clock is read to decide
        whether it seems abandoned: neither the holder's wall clock nor ours decides that.
        Raises: Held when the time is over; OutcomeUnknown.
        Cost: `try_acquire` every 0.2 to 5 s; 1 PUT + 1 HEAD more before giving up.
        """
        started_s = self._runtime.elapsed_s()
        patience_s = float("inf") if wait_s is None else wait_s
        asked, left_s = False, patience_s

        def pause_s(looks: int) -> float:
            return min(poll_pause_s(self._runtime, looks, POLL_MIN_S, POLL_MAX_S), left_s)

        for _ in attempts(self._runtime, None, pause_s):
            if isinstance(outcome := self._try(), Lease):
                return outcome
            waited_s = self._runtime.elapsed_s() - started_s
            if patience_s <= waited_s and outcome.watch_s == 0.0 and not asked:
                asked = True
                outcome = self._waiting(outcome.seen, self._decide(outcome.seen, asks_clock=True))
            left_s = max(patience_s, outcome.watch_s) - waited_s
            if left_s <= 0:
                raise outcome.held
        raise AssertionError

    @contextmanager
    @answers_options
    def hold(
        self, wait_s: float | None = None, *, stall_s: float | None = None, on_lost: Callable[[], None] | None = None
    ) -> Iterator[Lease]:
        """`with lock.hold() as lease:` holds the lock during the block, and renews it in a background thread.

        With `stall_s`, renewal stops if the block has not called `lease.progress()` for that long, so that a hung
        process does not keep the lock for ever (F16). `on_lost` is called once, in that thread, when the lease is lost.
        Raises: Held; OutcomeUnknown; LeaseLost at the end of a block whose lease was lost meanwhile.
        Cost: `acquire`, then 1 PUT per ttl_s / 3, then 1 PUT.   Crash: the lock expires after ttl_s.
        """
        lease = self.acquire(wait_s)
        renewer = Renewer.of_lease(lease, self._runtime, stall_s=stall_s, on_lost=on_lost)
        try:
            yield lease
        except BaseException:
            renewer.stop()
            with suppress(LimpetError):  # the block's own error says more
                lease.release()
            raise
        renewer.stop()
        with suppress(OutcomeUnknown, Unavailable):  # as after a crash, the lease expires
            lease.release()

    @asynccontextmanager
    async def hold_async(
        self, wait_s: float | None = None, *, stall_s: float | None = None, on_lost: Callable[[], None] | None = None
    ) -> AsyncIterator[Lease]:
        """`async with lock.hold_async() as lease:` is `hold` for coroutines: the event loop runs while it waits.

        A coroutine that is cancelled while it waits does not keep the lock: its thread releases it if it gets it later.
        """
        held = self.hold(wait_s, stall_s=stall_s, on_lost=on_lost)
        lease = await in_thread(held.__enter__)
        try:
            yield lease
        except BaseException as error:
            if not await in_thread(held.__exit__, type(error), error, error.__traceback__):
                raise
        else:
            await in_thread(held.__exit__, None, None, None)

    def __enter__(self) -> Lease:
        """`with lock as lease:` is `with lock.hold() as lease:`, which waits for the lock as long as it takes.

        It does not nest: a block that enters the lock which it holds waits for itself.
        """
        block = self.hold()
        lease = block.__enter__()
        _BLOCKS.set((*_BLOCKS.get(), (self, block)))
        return lease

    def __exit__(self, *error: Any) -> None:
        self._left().__exit__(*error)

    async def __aenter__(self) -> Lease:
        """`async with lock as lease:` is `async with lock.hold_async() as lease:`."""
        block = self.hold_async()
        lease = await block.__aenter__()
        _BLOCKS.set((*_BLOCKS.get(), (self, block)))
        return lease

    async def __aexit__(self, *error: Any) -> None:
        await self._left().__aexit__(*error)

    def _left(self) -> Any:
        """The innermost block of this lock that this thread, or coroutine, leaves."""
        blocks = [*_BLOCKS.get()]
        block = blocks.pop(max(n for n, (lock, _) in enumerate(blocks) if lock is self))[1]
        _BLOCKS.set(tuple(blocks))
        return block

    def peek(self) -> LeaseRecord | None:
        """The current record; None if the lock was never used, or was dropped.   Cost: 1 GET."""
        seen = self._cell.read()
        return seen.value if seen and seen.value.dropped is not True else None

    def break_(self, *, force: bool = False) -> LeaseRecord:
        """Free a lock that another process may hold. It keeps its token, so the next one is higher and the old one
        stale.

        `force`: also free a lock whose record cannot be read, or has no higher token. It is replaced by a free record
        whose token is the time in milliseconds: higher than any token reached by counting from 1. A cell that was
        written with a still higher one refuses the next holder.
        Raises: Missing for a lock that was never used; Corrupt; Conflict; OutcomeUnknown.
        Cost: 1 GET + 1 PUT; 1 HEAD more for a record that is replaced.
        """
        if force and self.damage() is not None:
            runtime = self._runtime
            record = reset(self._name, runtime.owner, runtime.label, self._ttl_s, runtime.wall())
            return self._cell.replace_unreadable(record).value
        seen = self._cell.update(lambda record: freed(record) if record and record.state is State.HELD else None)
        if seen is None:
            raise Missing(f"there is no lock {self._name!r}", hint="`limpet lock ls` shows those there are")
        return seen.value

    def drop(self) -> LeaseRecord:
        """Drop a lock that is free: for `peek` and listings it was never used. The record that was there.

        An object of about 400 bytes stays, with the token: so the tokens of later holders are higher, and what an
        earlier one still writes is refused.
        Raises: Held while it is held, also by a process that seems dead; Missing; Corrupt; OutcomeUnknown.
        Cost: 1 GET + 1 PUT.   Crash: dropped, or not.
        """

        before: list[LeaseRecord] = []

        def change(record: LeaseRecord | None) -> LeaseRecord | None:
            if record is None or record.dropped is True:
                raise Missing(f"there is no lock {self._name!r}", hint="`limpet lock ls` shows those there are")
            if record.state is State.HELD:
                held = Held(self._name, by=record.label, until=None, token=record.token)
                held.hint = f"wait until it is free; if its holder is gone: limpet lock break {self._name}"
                raise held
            before[:] = [record]
            return msgspec.structs.replace(record, dropped=True)

        self._cell.update(change)
        return before[0]

    def damage(self) -> str | None:
        """Why no process can ever take this lock; None if it is in order.   Cost: 1 GET."""
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
        looks = bool(self._look_first or self._unsure or self._watch.knows(self._cell.key))
        seen = self._cell.read() if looks else None
        for swaps_left in (1, 0) if looks else (2, 1, 0):
            if seen is not None and seen.header.write_id in self._unsure:
                # An acquisition of ours whose outcome was unknown, and which did land.
                outcome = self._swap(seen, renewed(seen.value, self._runtime.wall()))
            else:
                step = self._decide(seen) if seen else None
                if seen is not None and (isinstance(step, Wait) or not swaps_left):
                    return self._waiting(seen, step)
                outcome = self._swap(seen, self._taken(seen.value if seen else None))
            if isinstance(outcome, Lease):
                return outcome
            seen = outcome
        assert seen is not None
        return self._waiting(seen, self._decide(seen))

    def _decide(self, seen: Versioned[LeaseRecord], *, asks_clock: bool = False) -> Create | Take | Wait:
        """What to do about that record. `asks_clock`: by a new reading of the store's clock (1 PUT + 1 HEAD)."""
        record, modified, key = seen.value, seen.modified, self._cell.key
        assert modified is not None
        unchanged_s = self._watch.unchanged_s(key, seen.version)

        def step(max_age_s: float | None) -> Create | Take | Wait:
            now, wall = self._store.now(max_age_s=max_age_s), self._runtime.wall()
            return next_step(record, modified=modified, unchanged_s=unchanged_s, now=now, wall=wall)

        first = step(-1.0 if asks_clock else None)
        watched = record.state is State.HELD and unchanged_s >= look_interval_s(record.ttl_s)
        doubtful = isinstance(first, Wait) and watched and not asks_clock and self._watch.first_doubt(key)
        return step(record.ttl_s / 4) if doubtful else first

    def _taken(self, record: LeaseRecord | None) -> LeaseRecord:
        runtime = self._runtime
        owner, label, wall = runtime.owner, runtime.label, runtime.wall()
        try:
            return taken(record, name=self._name, worker_id=owner, label=label, ttl_s=self._ttl_s, wall=wall)
        except Corrupt as error:
            self._cell.explain(error)
            raise

    def _swap(self, seen: Versioned[LeaseRecord] | None, record: LeaseRecord) -> Lease | Versioned[LeaseRecord]:
        """A lease if our record was written and not replaced; else the record that is there instead."""
        sent_at_s = self._runtime.elapsed_s()
        write_id = self._runtime.new_id()
        self._unsure.add(write_id)
        outcome = self._cell.attempt(seen, record, write_id=write_id)
        self._unsure.discard(write_id)
        match outcome:
            case Won(mine):
                self._watch.unchanged_s(self._cell.key, mine.version)
                return Lease(self._cell, mine, self._runtime, sent_at_s=sent_at_s)
            case Replaced(_, now) | Lost(now) | Unclear(now):  # our record is not the one that is stored now
                return now

    def _waiting(self, seen: Versioned[LeaseRecord], step: Create | Take | Wait | None) -> _Waiting:
        record, wait = seen.value, step if isinstance(step, Wait) else None
        held = Held(self._name, by=record.label, until=wait.until if wait else None, token=record.token)
        watch_s = look_interval_s(record.ttl_s) + POLL_MAX_S if wait and wait.confirm else 0.0
        return _Waiting(seen, held, watch_s)
