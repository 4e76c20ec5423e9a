"""A limit on how many claims there are at once, over all processes: one lease a slot."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.errors import LeaseLost, LimpetError
from limpet.lease import Lease, Lock, Sightings
from limpet.queue.api import Policy
from limpet.queue.heart import Heart
from limpet.queue.storage import Storage

__all__ = ["Slot", "Slots"]


@dataclass(eq=False, slots=True)
class Slot:
    """The right to one claim. It is kept for the next claim, and given back when there was none between two beats."""

    lease: Lease
    used: bool = True
    busy: bool = True

    def beat(self) -> None:
        """Keep it while it is of use.   Raises: LeaseLost once it is gone."""
        if self.busy or self.used:
            self.used = False
            self.lease.renew()
        else:
            self.lease.release()
            raise LeaseLost("the slot was given back")


class Slots:
    """Takes and returns slots for the claims of this process.

    The limit is as good as a lease: a process that sleeps past its `ttl_s` may overlap with the next one.
    """

    def __init__(self, storage: Storage, policy: Policy, sightings: Sightings, heart: Heart) -> None:
        self._storage = storage
        self._policy = policy
        self._sightings = sightings
        self._heart = heart
        self._mutex = storage.runtime.mutex()
        self._held: list[Slot] = []

    def take(self) -> Slot | None:
        """A slot; None if none is free.   Cost: nothing if this process has an idle one, else 1 GET + at most 1 PUT."""
        with self._mutex:
            self._held = [slot for slot in self._held if not slot.lease.lost]
            for slot in self._held:
                if not slot.busy:
                    slot.busy = slot.used = True
                    return slot
            mine = {slot.lease.lock for slot in self._held}
        limit = self._policy.concurrency or 0
        others = [n for n in range(limit) if self._storage.keys.slot(n) not in mine]
        if not others:
            return None
        number = self._storage.runtime.rng.choice(others)
        key = self._storage.keys.slot(number)
        lock = Lock(
            self._storage.store, key, key, self._policy.ttl_s, self._storage.runtime, self._sightings, look_first=True
        )
        try:
            lease = lock.try_acquire()
        except LimpetError:
            return None
        if not isinstance(lease, Lease):
            return None
        slot = Slot(lease)
        with self._mutex:
            self._held.append(slot)
        self._heart.add(slot)
        return slot

    def give(self, slot: Slot) -> None:
        """The claim is over."""
        slot.busy = False
        if slot.lease.lost:
            self._heart.remove(slot)
