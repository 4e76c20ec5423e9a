"""The task that runs now, as its handler sees it: `limpet.current_task()`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from limpet.cell import Fence
from limpet.errors import LeaseLost, Unsupported
from limpet.queue.api import Task

_current: ContextVar[RunningTask | None] = ContextVar("limpet_current_task", default=None)


class RunningTask:
    """What a handler may know of its own task."""

    __slots__ = ("_say", "_task", "attempt", "queue")

    def __init__(self, queue: str, task: Task, say: Callable[[str], None], *, attempt: int | None = None) -> None:
        self.queue = queue
        self.attempt = task.attempt if attempt is None else attempt
        self._task = task
        self._say = say

    @property
    def id(self) -> str:
        """The task's id. Hand it on as an idempotency key: a task that runs twice has the same id twice."""
        return self._task.id

    @property
    def lost(self) -> bool:
        """Whether the claim is over, so that somebody else may run the task too."""
        return self._task.lost

    @property
    def lock(self) -> str:
        """The lock of its entry: `cell.write(value, lease=limpet.current_task())` is refused once a newer claim wrote.

        Give each task a cell of its own: a cell is guarded by one lock, and every entry has its own.
        Raises: Unsupported where the queue has no fencing.
        """
        return self._fence().lock

    @property
    def token(self) -> int:
        """The token of its claim, higher than that of every earlier one.   Raises: Unsupported."""
        return self._fence().token

    def _fence(self) -> Fence:
        if self._task.fence is None:
            raise Unsupported(f"queue {self.queue!r} has no fencing", hint="a bucket or a directory has it")
        return self._task.fence

    def check(self) -> None:
        """Go on only while the task is ours, as far as this process can know.   Raises: LeaseLost."""
        if self._task.lost:
            raise LeaseLost(f"task {self.id!r} is no longer ours")

    def progress(self, note: str) -> None:
        """Say in the worker's log how far the work is.   Raises: LeaseLost, so that a long loop ends when it should."""
        self.check()
        self._say(note)


def current_task() -> RunningTask | None:
    """The task that this code runs for; None in a plain call of the function."""
    return _current.get()


class AsCurrent:
    """A block in which a task is the current one, and the coroutines that are started there."""

    __slots__ = ("_before", "_task")

    def __init__(self, task: RunningTask) -> None:
        self._task = task

    def __enter__(self) -> None:
        self._before = _current.set(self._task)

    def __exit__(self, *raised: object) -> None:
        _current.reset(self._before)
