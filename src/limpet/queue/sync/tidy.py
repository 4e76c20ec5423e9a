"""What nobody else does where there are only nodes: sweep the bucket's queues, and a directory without workers."""

from __future__ import annotations

from limpet.keys import QueueKeys
from limpet.queue.api import Policy
from limpet.queue.entry import Storage
from limpet.queue.push import Pusher
from limpet.queue.sweep import Sweeper
from limpet.queue.sync.objects import DAMAGE, queues_of
from limpet.runtime import Runtime
from limpet.store.api import Store

TIDY_EVERY_S = 86400.0
FIRST_PART = 24


class Tidy:
    """Once a day, on both sides: receipts that are too old go, and delayed pushes that are due are made pending.

    Workers do the same about once an hour where there are any; a shared note keeps all of them from doing it twice.
    """

    def __init__(self, local: Store, remote: Store, runtime: Runtime) -> None:
        self._stores = (local, remote)
        self._runtime = runtime
        self._next_s = runtime.elapsed_s() + TIDY_EVERY_S / FIRST_PART * runtime.rng.uniform(1, 2)

    def now_and_then(self) -> list[str]:
        """Tidy up if it is time.   Cost: nothing mostly; once a day 1 LIST + 1 GET a queue, and what there is to do."""
        at_s = self._runtime.elapsed_s()
        if at_s < self._next_s:
            return []
        self._next_s = at_s + TIDY_EVERY_S * self._runtime.rng.uniform(0.9, 1.0)
        return self.now()

    def now(self) -> list[str]:
        """Tidy up every queue whose turn it is; the names of what stood in the way."""
        bad: list[str] = []
        for store in self._stores:
            for queue in queues_of(store, bad=bad.append):
                try:
                    self._queue(store, queue)
                except DAMAGE:
                    bad.append(queue.root)
        return bad

    def _queue(self, store: Store, queue: QueueKeys) -> None:
        """One queue of one side. Nothing is journaled: all sides do the same by themselves."""
        storage = Storage(store, queue, self._runtime)
        waiting = [stat.key for stat in store.list(queue.scheduled)]
        if waiting:
            pusher = Pusher(storage)
            pusher.promote(now=storage.exact_now(), keys=waiting)
        Sweeper(storage, Policy()).take_turn()
