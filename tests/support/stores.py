"""Stores that answer as a test says, or let something happen between two requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from limpet.kernel.errors import Conflict, LimpetError, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.store import Always, Blob, MemoryStore, MeteredStore, Stat, Store, Version, When
from support.clock import ManualRuntime

__all__ = [
    "Fault", "Meddled", "ScriptedStore", "fails", "late", "lost_reply", "lost_request", "own_conflict",
    "refused_409", "then", "unavailable",
]  # fmt: skip

Send = Callable[[], Version]
Fault = Callable[[Send], Version]
"""What becomes of a put: calls `send` to have it land, then answers or raises."""


def lost_reply(send: Send) -> Version:
    """It lands; nobody says so (F1)."""
    send()
    raise OutcomeUnknown("no answer")


def lost_request(send: Send) -> Version:
    """It never arrives; nobody says so (F3)."""
    raise OutcomeUnknown("no answer")


def own_conflict(send: Send) -> Version:
    """A proxy sends it twice, and the answer is that of the second copy (F1)."""
    send()
    send()
    raise AssertionError("a conditional put cannot win twice")


def refused_409(send: Send) -> Version:
    """S3's answer to a racing write: nothing has landed (F6)."""
    raise Conflict("conditional request conflict")


def unavailable(send: Send) -> Version:
    """The store is too busy, and says so."""
    raise Unavailable("slow down")


def late(pending: list[Send]) -> Fault:
    """The client gives up; it lands when the test calls what is in `pending`."""

    def fault(send: Send) -> NoReturn:
        pending.append(send)
        raise OutcomeUnknown("no answer")

    return fault


def then(fault: Fault, deed: Callable[[], object]) -> Fault:
    """The fault, with somebody else's `deed` done before its answer is read."""

    def both(send: Send) -> Version:
        try:
            return fault(send)
        finally:
            deed()

    return both


def fails(error: LimpetError) -> Callable[[], NoReturn]:
    """For `ScriptedStore.gets`: a read that meets this error."""

    def fail() -> NoReturn:
        raise error

    return fail


class ScriptedStore(MeteredStore):
    """A memory store behind a network that does to the next puts what `puts` says, and to the next gets `gets`.

    When they are used up, all is well. `others` is the same bucket, reached by somebody whose network is fine.
    """

    def __init__(self, runtime: ManualRuntime, others: Store | None = None) -> None:
        self.others: Store = others or MemoryStore(runtime)
        super().__init__(self.others, runtime=runtime)
        self.conflict_is_final = False
        self.puts: deque[Fault | None] = deque()
        self.gets: deque[Callable[[], object] | None] = deque()
        self.sent: list[tuple[bytes, When]] = []

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`."""
        self.sent.append((data, when))
        fault = self.puts.popleft() if self.puts else None

        def send() -> Version:
            return super(ScriptedStore, self).put(key, data, when=when)

        return send() if fault is None else fault(send)

    def get(self, key: Key, **options: Any) -> Blob:
        """See `Store.get`."""
        fault = self.gets.popleft() if self.gets else None
        if fault is not None:
            fault()
        return super().get(key, **options)


class Meddled(MeteredStore):
    """A store that calls `before` with the verb and the key of each request, and `after` when it was answered."""

    def __init__(self, store: Store, runtime: ManualRuntime | None = None) -> None:
        super().__init__(store, runtime=runtime)
        self.before: Callable[[str, str], object] = lambda verb, key: None
        self.after: Callable[[str, str], object] = lambda verb, key: None

    def get(self, key: Key, **options: Any) -> Blob:
        """See `Store.get`."""
        self.before("get", key)
        blob = super().get(key, **options)
        self.after("get", key)
        return blob

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`."""
        self.before("put", key)
        version = super().put(key, data, when=when)
        self.after("put", key)
        return version

    def delete(self, key: Key) -> None:
        """See `Store.delete`."""
        self.before("delete", key)
        super().delete(key)
        self.after("delete", key)

    def delete_in_order(self, keys: Sequence[Key]) -> None:
        """See `Store.delete_in_order`."""
        for key in keys:
            self.delete(key)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """See `Store.list`, but all at once."""
        self.before("list", prefix)
        listed = [*super().list(prefix, after=after)]
        self.after("list", prefix)
        return iter(listed)
