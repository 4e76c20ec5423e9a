"""`Slots`: a limit on how many claims of a queue there are at once, over all processes (`Policy.concurrency`)."""

from __future__ import annotations

from limpet.kernel.errors import Corrupt, LimpetError
from limpet.kernel.keys import Key
from limpet.kernel.lease import Lease, Lock, Renewer, VersionWatch
from limpet.queue.api import Policy
from limpet.queue.storage import Storage

SLOTS_READ_MAX = 8


class Slot:
    """The right to one claim: a lease. It is kept for later claims, and released if none came between two renewals."""

    def __init__(self, slots: Slots, lease: Lease) -> None:
        self._slots = slots
        self.lease = lease
        self.used = True
        self.busy = True

    def free(self) -> None:
        """Return it after its claim has ended."""
        self.busy = False

    def renew(self) -> None:
        """Keep it while it is of use, else release it.   Cost: 1 PUT."""
        if self._slots.keeps(self):
            self.lease.renew()
        else:
            self.lease.release()


class Slots:
    """A limit on how many claims there are at once, over all processes: one lease for each slot.

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

        Cost: nothing if this process has an idle one, else 1 GET for each slot that is read, 8 at most, + 1 PUT.
        """
        with self._mutex:
            for slot in self._held:
                if not slot.busy and not slot.lease.lost:
                    slot.busy = slot.used = True
                    return slot
            mine = {slot.lease.lock for slot in self._held}
        keys = self._storage.keys
        numbers = [n for n in range(self._policy.concurrency or 0) if keys.slot(n) not in mine]
        self._storage.runtime.rng.shuffle(numbers)
        for number in numbers[:SLOTS_READ_MAX]:
            lease = self._acquired(keys.slot(number))
            if lease is not None:
                slot = Slot(self, lease)
                with self._mutex:
                    self._held.append(slot)
                self._renewer.add(slot)
                return slot
        return None

    def keeps(self, slot: Slot) -> bool:
        """Whether the slot was of use since the last call; if not, it leaves the slots of this process."""
        with self._mutex:
            kept = (slot.busy or slot.used) and not slot.lease.lost
            slot.used = False
            if not kept and slot in self._held:
                self._held.remove(slot)
        if not kept:
            self._renewer.remove(slot)
        return kept

    def _acquired(self, key: Key) -> Lease | None:
        storage = self._storage
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
