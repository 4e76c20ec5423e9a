"""A limit on how many claims there are at once, over all processes: one lease a slot."""

from __future__ import annotations

from limpet.errors import Corrupt, LimpetError
from limpet.lease import Lease, Lock, VersionWatch
from limpet.queue.api import Policy
from limpet.queue.claim import Renewer
from limpet.queue.entry import Storage

LOOKS_MAX = 8


class Slot:
    """The right to one claim. It is kept for the next claim, and given back when there was none between two beats."""

    def __init__(self, slots: Slots, lease: Lease) -> None:
        self._slots = slots
        self.lease = lease
        self.used = True
        self.busy = True

    def renew(self) -> None:
        """Keep it while it is of use.   Cost: 1 PUT."""
        if self._slots.wants(self):
            self.lease.renew()
        else:
            self.lease.release()


class Slots:
    """Takes and returns slots for the claims of this process.

    The limit is as good as a lease: a process that sleeps past its `ttl_s` may overlap with the next one.
    """

    def __init__(self, storage: Storage, policy: Policy, watch: VersionWatch, renewer: Renewer) -> None:
        self._storage = storage
        self._policy = policy
        self._watch = watch
        self._renewer = renewer
        self._mutex = storage.runtime.mutex()
        self._held: list[Slot] = []

    def take(self) -> Slot | None:
        """A slot; None if none is free.

        Cost: nothing if this process has an idle one, else 1 GET for each slot that is looked at, 8 at most, + 1 PUT.
        """
        with self._mutex:
            for slot in self._held:
                if not slot.busy and not slot.lease.lost:
                    slot.busy = slot.used = True
                    return slot
            mine = {slot.lease.lock for slot in self._held}
        numbers = [n for n in range(self._policy.concurrency or 0) if self._storage.keys.slot(n) not in mine]
        self._storage.runtime.rng.shuffle(numbers)
        for number in numbers[:LOOKS_MAX]:
            lease = self._acquired(number)
            if lease is not None:
                slot = Slot(self, lease)
                with self._mutex:
                    self._held.append(slot)
                self._renewer.add(slot)
                return slot
        return None

    def give(self, slot: Slot) -> None:
        """Return a slot after its claim has ended."""
        slot.busy = False

    def wants(self, slot: Slot) -> bool:
        """Whether the slot was of use since it was last asked; else it is let go."""
        with self._mutex:
            wanted = (slot.busy or slot.used) and not slot.lease.lost
            slot.used = False
            if not wanted and slot in self._held:
                self._held.remove(slot)
        if not wanted:
            self._renewer.remove(slot)
        return wanted

    def _acquired(self, number: int) -> Lease | None:
        storage = self._storage
        key = storage.keys.slot(number)
        lock = Lock(storage.store, key, key, self._policy.ttl_s, storage.runtime, self._watch, look_first=True)
        try:
            lease = lock.try_acquire()
        except Corrupt as error:
            # It only says who may claim, and nothing is written under its token: make room for a new one.
            storage.notices.warn("", f"{error}; it is removed")
            storage.store.delete(key)
            return None
        except LimpetError:
            return None
        return lease if isinstance(lease, Lease) else None
