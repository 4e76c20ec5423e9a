"""`Heartbeat`: renews a lease from a thread of its own, and tells when it is gone (F16)."""

from __future__ import annotations

from collections.abc import Callable

from limpet.errors import LeaseLost, LimpetError
from limpet.lease.decide import renew_interval_s
from limpet.lease.lease import Lease
from limpet.runtime import Runtime

RETRY_PART = 12


class Heartbeat:
    """Runs from construction until `stop()` or the loss of the lease.

    A failed renewal is tried again every ttl_s / 12 while the lease lasts. After `stall_s` without `lease.progress()`
    the renewing ends and the lease runs out. `on_lost` is called once, when the lease is gone.
    """

    def __init__(
        self, lease: Lease, runtime: Runtime, *, stall_s: float | None, on_lost: Callable[[], None] | None
    ) -> None:
        self._lease = lease
        self._stall_s = float("inf") if stall_s is None else stall_s
        self._on_lost = on_lost
        self._stopped = runtime.flag()
        self._thread = runtime.spawn(self._run, name=f"limpet-heartbeat-{lease.name}")

    def stop(self) -> None:
        """End the renewing, and wait for a renewal that is under way."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = renew_interval_s(self._lease.ttl_s)
        while not self._stopped.wait(max(0.0, min(pause_s, self._lease.valid_for_s()))):
            if self._lease.lost:
                break
            pause_s = self._beat()
        ended_by_us = self._stopped.is_set() or self._lease.released
        if self._lease.lost and not ended_by_us and self._on_lost is not None:
            self._on_lost()

    def _beat(self) -> float:
        """Renew if the work moves on; how long to wait then."""
        if self._lease.stalled_for_s() >= self._stall_s:
            return self._lease.valid_for_s()
        try:
            self._lease.renew()
        except LeaseLost:
            return 0.0
        except LimpetError:
            return self._lease.ttl_s / RETRY_PART
        return renew_interval_s(self._lease.ttl_s)
