"""The memory store among threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from limpet.kernel.keys import Key
from limpet.kernel.store import MemoryStore
from support.clock import ManualRuntime

K = Key("a")


class BusyRuntime(ManualRuntime):
    """Whenever a mutex is given back, another thread gets its turn first."""

    turn: Callable[[], object] | None = None

    def mutex(self) -> AbstractContextManager[Any]:
        """A mutex with that habit."""
        return _Busy(self)


class _Busy:
    def __init__(self, runtime: BusyRuntime) -> None:
        self._runtime = runtime

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        turn, self._runtime.turn = self._runtime.turn, None
        if turn is not None:
            turn()


def test_a_delete_right_behind_a_put() -> None:
    runtime = BusyRuntime()
    store = MemoryStore(runtime)
    runtime.turn = lambda: store.delete(K)
    assert store.put(K, b"1")
    assert [*store.list()] == []
