"""`Lease`: proof of holding a lock, and the token that guards what is written under it."""

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
    """A lease record that is ours: kept by swaps on what we last saw of it. Rooms extend the record."""

    def __init__(self, cell: Cell[R], seen: Versioned[R], runtime: Runtime, *, sent_at_s: float) -> None:
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
        """Our record as we last wrote it."""
        return self._seen.value

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._seen.value.name

    @property
    def lock(self) -> str:
        """The lock's key: what a cell remembers beside the token."""
        return self._cell.key

    @property
    def token(self) -> int:
        """The fencing token."""
        return self._seen.value.token

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
        """Whether the lease is known to be over, or has run out on this process's own clock."""
        return self._why_lost() is not None

    def lost_at(self, at_s: float) -> bool:
        """`lost`, for a caller who has just read the clock."""
        return at_s >= self._valid_until_s or self._why_ended() is not None

    def check(self) -> None:
        """Go on only while the lease is ours as far as this process can know.

        Raises: LeaseLost.   Cost: no request: it compares the last renewal with a clock that counts time asleep.
        """
        why = self._why_lost()
        if why is not None:
            raise LeaseLost(why)

    def progress(self) -> None:
        """Tell a `hold(stall_s=...)` that the work moves on."""
        self._progress_at_s = self._runtime.elapsed_s()

    def renew(self) -> None:
        """Keep the lease for another `ttl_s`.

        Raises: LeaseLost; OutcomeUnknown or Unavailable, after which it may be tried again until it runs out.
        Cost: 1 PUT; after an unclear renewal 1 GET + 1 PUT.
        """
        self.check()  # before the mutex: in a forked child nobody would ever give it back
        with self._mutex:
            self.check()
            self._rewrite(lambda record: record)

    def rewrite(self, change: Callable[[R], R]) -> None:
        """Replace our record by its `change`, which is a renewal too.

        It may also be tried on a lease that has run out: it works for as long as nobody took it.
        Raises: LeaseLost; OutcomeUnknown or Unavailable, after which it may be tried again.
        Cost: 1 PUT; after an unclear one 1 GET + 1 PUT.
        """
        self._check_not_ended()
        with self._mutex:
            self._check_not_ended()
            self._rewrite(change)

    def release(self) -> None:
        """Free the lock for the next one. Releasing twice is fine.

        Raises: LeaseLost if it was no longer ours; OutcomeUnknown, Unavailable: then it runs out by itself.
        Cost: 1 PUT.   Crash: at worst a held lock that runs out after `ttl_s`.
        """
        if not self.released:
            self.check()
            self.free(freed)

    def free(self, change: Callable[[R], R]) -> None:
        """Replace our record by its `change`, which is free, and end the lease; also one that has run out.

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
        """Seconds until the lease runs out if it is not renewed; negative when it has."""
        return self._valid_until_s - self._runtime.elapsed_s()

    def stalled_for_s(self) -> float:
        """Seconds since the last sign of progress."""
        return self._runtime.elapsed_s() - self._progress_at_s

    def _rewrite(self, change: Callable[[R], R]) -> None:
        sent_at_s = self._runtime.elapsed_s()
        now = self._swap(lambda record: renewed(change(record), self._runtime.wall()))
        if now is not None:
            raise self._end(f"lock {self.name!r} was taken from token {self.token}")
        self._valid_until_s = sent_at_s + self.ttl_s

    def _swap(self, change: Callable[[R], R]) -> R | None:
        """Swap our record for its `change`; None when that is done, else the record that is no longer ours.

        A held record with our token is ours, whichever of our swaps wrote it: a token is given once. So after an
        unclear swap we look which version is ours now, and one that lands late does not cost the lease.
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
    """Held from a won acquire until it is released, lost, or not renewed for `ttl_s`.

    `token` is higher than that of every earlier holder. Hand the lease to `cell.write(value, lease=lease)`: the cell
    refuses it once a newer token has written. For any other side effect call `check()` just before it: that narrows
    the window in which a paused holder does harm, and cannot close it.
    """
