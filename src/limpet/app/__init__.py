"""`open()` and `Fleet`: the rooms wired together under one URL."""

from typing import TYPE_CHECKING, Any

from limpet.app.fleet import Fleet, FleetRecord, open
from limpet.app.tasks import TaskFunction, TaskPush, TaskRun, Tasks

if TYPE_CHECKING:
    from limpet.publish import Published

__all__ = ["Fleet", "FleetRecord", "Published", "TaskFunction", "TaskPush", "TaskRun", "Tasks", "open"]


def __getattr__(name: str) -> Any:
    """`Published`, imported when it is asked for: it needs the packages of the extra `catalog`."""
    if name == "Published":
        from limpet.publish import Published

        return Published
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
