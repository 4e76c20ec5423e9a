"""`Lease`: a lock that this process holds, with the fencing token for its writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from limpet.cell import Cell, Lost, Replaced, Unclear, Versioned, Won
from limpet.errors import LeaseLost, OutcomeUnknown
from limpet.lease.decide import LeaseRecord, State, freed, renewed
from limpet.runtime import Runtime

R = TypeVar("R", bound=LeaseRecord)

RELEASED = "the lease was released"
SWAPS_MAX = 5


class HeldLease(Generic[R]):
    """A lease record that this process holds, and changes by swaps on the version that it last saw. The packages above
    extend the record."""

    def __init__(self, cell: Cell[R], seen: Versioned[R], runtime: Runtime, *, sent_at_s: float) -> None:
        self.name = seen.value.name
        """The lock's name."""
        self.token = seen.value.token
        """The fencing token."""
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
    def record(self) -> R:
        """The record as this process last wrote it."""
        return self._seen.value

    @property
    def lock(self) -> str:
        """The lock's key, which a cell stores beside the token."""
        return self._cell.key

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
        return at_s >= self._valid_until_s or self._why_ended() is not None

    def check(self) -> None:
        """Raise unless this process still holds the lease, as far as it can know without a request.

        Raises: LeaseLost.   Cost: no request. It compares the last renewal with a clock that also counts time asleep.
        """
        why = self._why_lost()
        if why is not None:
            raise LeaseLost(why)

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
            freed_before = tried_before and now is not None and now.token == self.token
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
        After an unclear swap we therefore read the record again, and a swap of ours that lands late does not end the
        lease.
        """
        seen = self._cell.read() if self._unsure else self._seen
        if seen is None:
            raise self._end(f"the record of lock {self.name!r} is gone")
        for _ in range(SWAPS_MAX):
            if seen.value.token != self.token or seen.value.state is not State.HELD:
                return seen.value
            try:
                outcome = self._cell.attempt(seen, change(seen.value))
            except OutcomeUnknown:
                self._unsure = True
                raise
            match outcome:
                case Won(mine):
                    self._seen, self._unsure = mine, False
                    return None
                case Replaced(mine, now):
                    return None if mine.value.state is State.FREE else now.value
                case Lost(now) | Unclear(now):
                    seen = now
        raise OutcomeUnknown(f"lock {self.name!r} was swapped by late writes of our own {SWAPS_MAX} times")

    def _end(self, why: str) -> LeaseLost:
        self._ended = why
        return LeaseLost(why)

    def _check_not_ended(self) -> None:
        why = self._why_ended()
        if why is not None:
            raise LeaseLost(why)

    def _why_ended(self) -> str | None:
        if self._ended is not None:
            return self._ended
        if self._runtime.owner != self._seen.value.worker_id:
            return f"the lease of {self.name!r} belongs to the process that this one was forked from"
        return None

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
