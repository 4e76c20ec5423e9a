"""The bell of a queue in a bucket: an object that pushers rewrite, so that idle workers need not list the queue.

A HEAD tells an idle worker whether the bell has changed; only then does it list. The bell is a hint: a ring that is
lost, late or doubled changes nothing but the wait, since a worker lists at least once a minute all the same. A pusher
puts its task first and rings afterwards, so that a worker which hears the ring finds the task. A ring is answered by a
look that succeeds: until then the worker goes on to list.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from limpet.kernel.errors import Denied, LimpetError, Missing
from limpet.kernel.keys import Key
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Store, Version

RING_EVERY_S = 1.0
"""A process rings at most once in this time."""
LISTEN_S = 2 * RING_EVERY_S
"""How long after a ring a worker goes on to list: a push within `RING_EVERY_S` of a ring does not ring again."""
LIST_EVERY_S = 60.0


class Bell:
    """Both sides of the bell of one queue: those who ring and those who listen."""

    def __init__(self, store: Store, key: Key, runtime: Runtime) -> None:
        self._store = store
        self._key = key
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._rung_at_s = float("-inf")
        self._heard_at_s = float("-inf")
        self._listed_at_s = float("-inf")
        self._due_s = float("inf")
        self._version: Version | None = None

    def ring(self, *, every_s: float = RING_EVERY_S) -> None:
        """Say that a task was pushed.   Cost: 1 PUT, at most once in `every_s`; nothing else.

        A put that fails is no ring, so the next push rings. The task is pushed all the same: a listing finds it.
        """
        at_s = self._runtime.elapsed_s()
        with self._mutex:
            self._heard_at_s = at_s
            if at_s - self._rung_at_s < every_s:
                return
            rung_before_s, self._rung_at_s = self._rung_at_s, at_s
        try:
            self._store.put(self._key, msgspec.json.encode({"ring": self._runtime.new_id()}))
        except Denied:
            pass  # nor may the next push ring
        except LimpetError:
            with self._mutex:
                self._rung_at_s = rung_before_s

    def worth_a_list(self) -> bool:
        """Whether an idle worker should list the queue now.   Cost: 1 HEAD, or nothing where it is known anyway.

        Raises: LimpetError, if the bell cannot be asked.
        """
        at_s = self._runtime.elapsed_s()
        with self._mutex:
            if must_list(at_s, heard_s=self._heard_at_s, listed_s=self._listed_at_s, due_s=self._due_s):
                return True
        try:
            version = self._store.head(self._key).version
        except Missing:
            version = None
        with self._mutex:
            if version == self._version:
                return False
            self._version = version
            self._heard_at_s = at_s
            return True

    def heard(self) -> None:
        """There is work in the queue: list for a while without asking."""
        with self._mutex:
            self._heard_at_s = self._runtime.elapsed_s()

    @property
    def listening(self) -> bool:
        """Whether there was a ring or work a moment ago."""
        with self._mutex:
            return self._runtime.elapsed_s() - self._heard_at_s <= LISTEN_S

    @contextmanager
    def listing(self) -> Iterator[None]:
        """The block lists the queue. If it fails, the queue counts as not listed, and what was due as due."""
        at_s = self._runtime.elapsed_s()
        with self._mutex:
            due_s, self._due_s = self._due_s, float("inf")
        try:
            yield
        except LimpetError:
            self.expect(due_s)
            raise
        with self._mutex:
            self._listed_at_s = max(self._listed_at_s, at_s)

    def expect(self, at_s: float) -> None:
        """Something in the queue is due at that moment: a delayed task, a retry, or a lease that runs out."""
        with self._mutex:
            self._due_s = min(self._due_s, at_s)


def must_list(at_s: float, *, heard_s: float, listed_s: float, due_s: float) -> bool:
    """Whether to list without asking the bell.

    After a ring: until a listing was made `LISTEN_S` later. Otherwise when something is due, and every `LIST_EVERY_S`.
    """
    return listed_s < heard_s + LISTEN_S or at_s >= due_s or at_s - listed_s >= LIST_EVERY_S
