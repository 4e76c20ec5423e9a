"""Threads that do what may wait, for a loop that must not.

Leaner than an executor of the standard library, which spends a tenth of a small request on its futures: everything is
counted on the loop's own thread, so there is nothing to lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from limpet.runtime import Runtime

__all__ = ["Threads"]

T = TypeVar("T")


class Threads(Generic[T]):
    """At most so many, started as they are needed."""

    def __init__(self, most: int, runtime: Runtime) -> None:
        self._most = most
        self._runtime = runtime
        self._jobs: SimpleQueue[_Job[T] | None] = SimpleQueue()
        self._started = 0
        self._in_hand = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises; it is done even if nobody waits for it any more."""
        job = _Job(work, asyncio.get_running_loop(), self._ended)
        self._in_hand += 1
        if self._started < min(self._in_hand, self._most):
            self._started += 1
            self._runtime.spawn(self._work, name=f"limpet-http-{self._started}")
        self._jobs.put(job)
        return await job.done

    def _ended(self) -> None:
        self._in_hand -= 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.do()

    def close(self) -> bool:
        """Let go of the threads; whether some are still at work."""
        for _ in range(self._started):
            self._jobs.put(None)
        return self._in_hand > 0


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T], loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
        self._work = work
        self._loop = loop
        self._ended = ended
        self.done: asyncio.Future[T] = loop.create_future()

    def do(self) -> None:
        try:
            result = self._work()
        except StopIteration:  # no future takes it
            self._tell(partial(self.done.set_exception, RuntimeError("a handler raised StopIteration")))
        except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
            self._tell(partial(self.done.set_exception, error))
        else:
            self._tell(partial(self.done.set_result, result))

    def _tell(self, settle: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            self._loop.call_soon_threadsafe(self._end, settle)

    def _end(self, settle: Callable[[], None]) -> None:
        if not self.done.done():  # else whoever waited was cancelled
            settle()
        self._ended()
