"""`open()` and `Fleet`: the rooms wired together under one URL.

Read `place` (a URL: which store it names), `record` (limpet.json: who may use the fleet there), `fleet` (what lies
there), `tasks` (`@fleet.task`), `nodes` (fleets that are joined). Then what an operator asks for: `health`, `overview`
with `history`, `presence` and `metrics`, `query` (SQL), `backup` with `backup_run`, `backup_order` and
`backup_decide`, `adopt`. `indexes`, `catalogs` and `push_file` are what commands and the service have in common.

It may import every room of data (queue, index, catalog, events), the threads of workers, and the kernel; a room is
imported when it is first used. It knows neither HTTP nor a terminal.
"""

from typing import TYPE_CHECKING, Any

from limpet.app.fleet import Fleet, open
from limpet.app.record import FleetRecord

if TYPE_CHECKING:
    from limpet.app.tasks import TaskFunction, TaskPush, TaskRun, Tasks
    from limpet.publish import Published

__all__ = ["Fleet", "FleetRecord", "Published", "TaskFunction", "TaskPush", "TaskRun", "Tasks", "open"]


def __getattr__(name: str) -> Any:
    """A name that is imported when it is asked for: `Published` needs the packages of the extra `catalog`."""
    if name == "Published":
        from limpet.publish import Published

        return Published
    if name in __all__:
        from limpet.app import tasks

        return getattr(tasks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
