"""`Lease`: a lock that this process holds, with the fencing token for its writes; `Renewer`, which renews leases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from limpet.cell import Cell, Lost, Replaced, Unclear, Versioned, Won
from limpet.errors import LeaseLost, LimpetError, OutcomeUnknown
from limpet.lease.decide import LeaseRecord, State, freed, renew_interval_s, renewed
from limpet.runtime import Runtime, ThreadHandle

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


# ---- renewal, by a thread ----

RETRY_PART = 12
EARLY_S = 0.001
"""What is due within this time is renewed too: a thread may wake up a little early."""


class Renewable(Protocol):
    """Something that a `Renewer` renews."""

    def renew(self) -> float | None:
        """Renew it; returns the seconds until it is due again (None: ttl_s / 3).

        Raises: LimpetError: then it is due again after ttl_s / 12.
        """


class Renewer:
    """Renews what was added, every ttl_s / 3, and after a failure every ttl_s / 12.

    The thread starts with the first `add`, and ends when it wakes up and nothing is left to renew. Something that is
    removed before its first renewal costs no request.
    """

    def __init__(self, runtime: Runtime, ttl_s: float, *, name: str) -> None:
        self._runtime = runtime
        self._ttl_s = ttl_s
        self._name = name
        self._mutex = runtime.mutex()
        self._stopped = runtime.flag()
        self._due_s: dict[Renewable, float] = {}
        self._thread: ThreadHandle | None = None
        self._owner: str | None = None

    @classmethod
    def of_lease(
        cls, lease: Lease, runtime: Runtime, *, stall_s: float | None = None, on_lost: Callable[[], None] | None = None
    ) -> Renewer:
        """A renewer of `lease`, until `stop()` or until the lease is lost.

        After `stall_s` without `lease.progress()`, renewal stops and the lease expires. `on_lost` is called once, in
        the renewer's thread, when the lease is lost.
        """
        renewer = cls(runtime, lease.ttl_s, name=f"limpet-renewer-{lease.name}")
        renewer.add(_KeptLease(renewer, lease, stall_s, on_lost), within_s=lease.valid_for_s())
        return renewer

    def add(self, held: Renewable, *, within_s: float = float("inf")) -> None:
        """Renew `held` from now on, first after ttl_s / 3, or after `within_s` if that is sooner."""
        with self._mutex:
            # The thread already waits for something that is due earlier or at the same time, so it is not woken up.
            self._due_s[held] = self._runtime.elapsed_s() + min(renew_interval_s(self._ttl_s), within_s)
            if self._owner != self._runtime.owner:
                self._owner = self._runtime.owner  # a forked child does not have the threads of its parent
                self._thread = self._runtime.spawn(self._run, name=self._name)

    def remove(self, held: Renewable) -> None:
        """Renew `held` no more. A renewal that is under way may still finish."""
        with self._mutex:
            self._due_s.pop(held, None)

    def stop(self) -> None:
        """End the thread for good, and wait for a renewal that is under way."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._due_s.clear()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def _run(self) -> None:
        while (pause_s := self._until_due_s()) is not None and not self._stopped.wait(pause_s):
            self._renew_due()

    def _until_due_s(self) -> float | None:
        """Seconds until the next renewal is due; None if nothing is left, and the thread ends."""
        with self._mutex:
            if not self._due_s:
                self._owner = None
                return None
            return max(0.0, min(self._due_s.values()) - self._runtime.elapsed_s())

    def _renew_due(self) -> None:
        at_s = self._runtime.elapsed_s() + EARLY_S
        with self._mutex:
            due = [held for held, due_s in self._due_s.items() if due_s <= at_s]
        for held in due:
            try:
                pause_s = held.renew()
            except LimpetError:
                pause_s = self._ttl_s / RETRY_PART
            with self._mutex:
                if held in self._due_s:
                    after_s = renew_interval_s(self._ttl_s) if pause_s is None else pause_s
                    self._due_s[held] = self._runtime.elapsed_s() + after_s


class _KeptLease:
    """Renews one lease while its holder makes progress, and reports its loss."""

    def __init__(
        self, renewer: Renewer, lease: Lease, stall_s: float | None, on_lost: Callable[[], None] | None
    ) -> None:
        self._renewer = renewer
        self._lease = lease
        self._stall_s = float("inf") if stall_s is None else stall_s
        self._on_lost = on_lost

    def renew(self) -> float | None:
        """Renew the lease unless its holder has stalled; it is due again when it expires, if not before."""
        lease = self._lease
        if lease.lost:
            self._renewer.remove(self)
            if self._on_lost is not None and not (lease.released or self._renewer.stopped):
                self._on_lost()
            return None
        if lease.stalled_for_s() >= self._stall_s:
            return lease.valid_for_s()
        try:
            lease.renew()
        except LeaseLost:
            return 0.0
        except LimpetError:
            return min(lease.ttl_s / RETRY_PART, lease.valid_for_s())
        return min(renew_interval_s(lease.ttl_s), lease.valid_for_s())
