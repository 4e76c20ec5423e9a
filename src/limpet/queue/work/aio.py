"""Async handlers: an event loop for each thread of a worker, and an end to what must not go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

from limpet.queue.api import Retry

LOOK_S = 0.2


class Loop:
    """The event loop of one thread. Made with the first coroutine, and kept: what a handler binds to it stays good."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, work: Awaitable[Any], over: Callable[[], Exception | None]) -> Any:
        """What `work` returns or raises. Once `over` has a reason, it is cancelled, and that reason raised instead.

        Work that catches the cancellation and returns has returned. One that does not end cannot be made to.
        """
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(_watched(work, over), context=copy_context())

    def close(self) -> None:
        """End the loop. What a handler left running in it is cancelled."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None


async def _watched(work: Awaitable[Any], over: Callable[[], Exception | None]) -> Any:
    task = asyncio.ensure_future(work)
    reason: Exception | None = None
    while not task.done():
        await asyncio.wait({task}, timeout=LOOK_S)
        if reason is None and not task.done():
            reason = over()
            if reason is not None:
                task.cancel()
    if task.cancelled():
        raise reason or Retry("it was cancelled")
    return task.result()


def in_loop() -> bool:
    """Whether this thread runs an event loop, so that it cannot run another."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
