"""The event loop of a worker's thread, for handlers that are coroutines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from limpet.kernel.user_code import CallResult, UserCall, ended_async
from limpet.queue.steps import RUNNING

if TYPE_CHECKING:
    import asyncio

CANCEL_CHECK_S = 0.2
WIND_UP_S = 30.0
"""For so long what a run has left in its event loop may take to end."""


WIND_UPS_MAX = 100


class EventLoop:
    """The event loop of one thread, created for the first coroutine and kept: what a handler binds to it stays valid.

    Its tasks end with the run that made them. asyncio is imported only where there is something to await.
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self.abandoned = 0
        """How many coroutines of the last run went on although they were cancelled. Their loop does not run again."""

    def run(self, work: Awaitable[Any], over: Callable[[], Exception | None]) -> Any:
        """Return or raise what `work` does. Once `over` returns an error, cancel `work` and raise that error instead.

        Work that catches the cancellation and returns has returned. Work that ignores it cannot be ended.
        Steps that have begun come to their end before a suspension; all else that is left in the loop is cancelled,
        and has ended when this returns.
        """
        import asyncio

        if self._runner is None:
            self._runner = asyncio.Runner()
        with UserCall() as call:  # a coroutine beside may end the loop by a SystemExit
            end = self._runner.run(_watched(work, over), context=copy_context())
        self._wind_up(self._runner)
        if call.error is not None:
            raise call.error
        return end.get()

    def _wind_up(self, runner: asyncio.Runner) -> None:
        """End all that is left in the loop, whatever it raises; what cannot be ended stays behind with the loop."""
        from asyncio import all_tasks

        loop = runner.get_loop()
        for _ in range(WIND_UPS_MAX):
            if not all_tasks(loop):
                break
            with UserCall() as call:
                runner.run(_cancel_others())
            if call.error is None:
                break
        self.abandoned = len(all_tasks(loop))
        if self.abandoned:
            self._runner = None
            loop.close()

    def close(self) -> None:
        """Close the loop."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None


def has_running_loop() -> bool:
    """Whether this thread runs an event loop, so that it cannot run another."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _watched(work: Awaitable[Any], over: Callable[[], Exception | None]) -> CallResult:
    import asyncio

    steps = RUNNING.get()
    main = asyncio.ensure_future(ended_async(work))
    if steps is not None:
        steps.main = main
    reason = await _all_done({main}, over)
    end = CallResult(None, asyncio.CancelledError()) if main.cancelled() else main.result()
    if reason is not None:
        return CallResult(None, reason) if isinstance(end.error, asyncio.CancelledError) else end
    if steps is not None and steps.suspended is not None:
        reason = await _all_done(steps.under_way, over)
    return end if reason is None else CallResult(None, reason)


async def _all_done(tasks: Collection[asyncio.Task[Any]], over: Callable[[], Exception | None]) -> Exception | None:
    """Wait until these tasks are done. Once `over` returns an error, cancel them; that error."""
    import asyncio

    reason: Exception | None = None
    while left := {task for task in tasks if not task.done()}:
        await asyncio.wait(left, timeout=CANCEL_CHECK_S)
        if reason is None and not all(task.done() for task in left):
            reason = over()
            if reason is not None:
                for task in left:
                    task.cancel()
    return reason


async def _cancel_others() -> None:
    """Cancel all other tasks of the loop, each once, and wait until they are done, for `WIND_UP_S` at most."""
    import asyncio

    loop = asyncio.get_running_loop()
    until_s = loop.time() + WIND_UP_S
    cancelled: set[asyncio.Task[Any]] = set()
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left - cancelled:
            task.cancel()
        cancelled |= left
        wait_s = until_s - loop.time()
        if wait_s <= 0:
            return
        await asyncio.wait(left, timeout=wait_s)
