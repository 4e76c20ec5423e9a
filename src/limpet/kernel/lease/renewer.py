"""The thread that renews leases, and what it renews."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from limpet.kernel.errors import LeaseLost, LimpetError
from limpet.kernel.lease.decide import renew_interval_s
from limpet.kernel.runtime import Runtime, ThreadHandle
from limpet.kernel.waiting import ticks

if TYPE_CHECKING:
    from limpet.kernel.lease import Lease

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
        self._every_s = renew_interval_s(ttl_s)
        self._retry_s = ttl_s / RETRY_PART
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
            self._due_s[held] = self._runtime.elapsed_s() + min(self._every_s, within_s)
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
        for _ in ticks(self._stopped, self._until_due_s):
            self._renew_due()

    def _until_due_s(self) -> float | None:
        """None if nothing is to be renewed: the thread ends."""
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
                pause_s = self._retry_s
            with self._mutex:
                if held in self._due_s:
                    after_s = self._every_s if pause_s is None else pause_s
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
