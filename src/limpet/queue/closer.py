"""Removes ended entries of a queue in a bucket, in the background and many at a time.

A receipt ends an entry, so its deletes need not be waited for: a crash before them is a case that claim and sweep
handle. Two rules keep the removal safe:

1. A lease outlives its task. It is deleted only `LINGER_S` after this process knew that the task was gone. A claim that
   read the task beside its PUT (`queue.py`) relies on this: docs/inside/decisions/0011-latency.md has the proof.
2. A lease is deleted only if the delete of its task did not fail.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import islice

from limpet.kernel.errors import LimpetError
from limpet.kernel.keys import QueueKeys
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Store
from limpet.kernel.waiting import naps

LINGER_S = 1.0
FRESH_S = 0.5
"""How old a read may be that a claim relies on: half of `LINGER_S`, so that clocks may differ in rate."""
GROUP = 500
IDLE_MAX = 20


class Closer:
    """One thread that deletes the objects of ended entries. It starts with the first entry and ends when idle.

    Crash: entries that wait here are removed by the next claim of them, or by a sweep.
    """

    def __init__(self, store: Store, keys: QueueKeys, runtime: Runtime) -> None:
        self._store = store
        self._keys = keys
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._step = runtime.mutex()
        self._tasks: dict[str, bool] = {}
        self._leases: dict[str, float] = {}
        self._after: dict[str, Callable[[], object]] = {}
        self._owner: str | None = None

    def add(self, entry: str, *, batch: bool, after: Callable[[], object] | None = None) -> None:
        """Remove an entry that a receipt ends; call `after` when its task is gone, before its lease goes.

        Cost: 2 DELETEs, or a share of two bulk deletes.
        """
        with self._mutex:
            self._tasks[entry] = batch
            if after is not None:
                self._after[entry] = after
            self._start()

    def add_lease(self, entry: str) -> None:
        """Remove the lease of an entry whose task is gone.   Cost: 1 DELETE, or a share of a bulk delete."""
        with self._mutex:
            self._leases[entry] = self._runtime.elapsed_s() + LINGER_S
            self._start()

    def entries(self) -> set[str]:
        """The entries that wait here: they have ended, but a listing may show them."""
        with self._mutex:
            return {*self._tasks, *self._leases}

    def drop_tasks(self) -> None:
        """Delete now, in this thread, the tasks that wait here. Their leases follow in the background."""
        while self._delete_tasks():
            pass

    def flush(self) -> None:
        """Delete everything that waits here, and return when that is done: after about `LINGER_S`."""
        self.drop_tasks()
        for _ in naps(self._runtime, self._until_last_s):
            self._delete_leases()

    def _until_last_s(self) -> float | None:
        with self._mutex:
            return max(self._leases.values()) - self._runtime.elapsed_s() if self._leases else None

    def _start(self) -> None:
        if self._owner != self._runtime.owner:
            self._owner = self._runtime.owner  # a forked child does not have the threads of its parent
            self._runtime.spawn(self._run, name=f"limpet-closer-{self._keys.root}")

    def _run(self) -> None:
        """Delete until there was nothing to delete for a while. After an unexpected error, the next entry that ends
        starts a new thread, which also deletes what was left.
        """
        idle = 0
        try:
            for _ in naps(self._runtime):
                busy = self._delete_tasks()
                busy = self._delete_leases() or busy
                with self._mutex:
                    idle = 0 if busy or self._tasks or self._leases else idle + 1
                    if idle == IDLE_MAX:
                        self._owner = None
                        return
        except BaseException:
            with self._mutex:
                self._owner = None
            raise

    def _delete_tasks(self) -> bool:
        with self._step:
            with self._mutex:
                group = dict(islice(self._tasks.items(), GROUP))
            if not group:
                return False
            keys = {self._keys.tasks(entry, batch=batch): entry for entry, batch in group.items()}
            errors = self._store.delete_many(keys)
            for key, entry in keys.items():
                after = self._after.pop(entry, None)
                if after is not None and errors[key] is None:
                    with suppress(LimpetError):  # a sweep removes what is left
                        after()
            due_s = self._runtime.elapsed_s() + LINGER_S
            with self._mutex:
                for key, entry in keys.items():
                    del self._tasks[entry]
                    if errors[key] is None:
                        self._leases[entry] = due_s
            return True

    def _delete_leases(self) -> bool:
        with self._step:
            at_s = self._runtime.elapsed_s()
            with self._mutex:
                due = [*islice((entry for entry, due_s in self._leases.items() if due_s <= at_s), GROUP)]
                for entry in due:
                    del self._leases[entry]
            if due:
                self._store.delete_many([self._keys.lease(entry) for entry in due])
            return bool(due)
