"""Run a whole fleet from one bucket: `fleet = limpet.open("s3://bucket/prefix")`.

A task queue, a record index, locks with fencing and a table catalog whose only server is the object store that you
already have, or a plain directory.

`import limpet` loads the errors only; every other name is imported when it is first used (PEP 562).
"""

import typing as _typing
from importlib import import_module as _import_module

from limpet.kernel.errors import (
    Conflict,
    Corrupt,
    Denied,
    Held,
    Invalid,
    LeaseLost,
    LimpetError,
    Missing,
    NotModified,
    OutcomeUnknown,
    TaskFailed,
    Unavailable,
    Unsupported,
)

if _typing.TYPE_CHECKING:
    from limpet.app import Fleet, TaskFunction, TaskPush, TaskRun, open
    from limpet.kernel.cell import Cell, Fence
    from limpet.kernel.lease import Lease, Lock
    from limpet.queue import (
        AttemptError,
        Claim,
        Fail,
        Failure,
        Notice,
        Peeked,
        Policy,
        Pushed,
        Queue,
        Result,
        Retry,
        Stats,
        Suspend,
        Task,
        TaskHandle,
        gather,
        gather_async,
        signal,
        sleep,
        sleep_async,
        step,
        step_async,
        version,
        wait_signal,
        wait_signal_async,
    )
    from limpet.worker import RunningTask, current_task

__version__ = "0.2.0.dev1"

__all__ = [
    "AttemptError",
    "Cell",
    "Claim",
    "Conflict",
    "Corrupt",
    "Denied",
    "Fail",
    "Failure",
    "Fence",
    "Fleet",
    "Held",
    "Invalid",
    "Lease",
    "LeaseLost",
    "LimpetError",
    "Lock",
    "Missing",
    "NotModified",
    "Notice",
    "OutcomeUnknown",
    "Peeked",
    "Policy",
    "Pushed",
    "Queue",
    "Result",
    "Retry",
    "RunningTask",
    "Stats",
    "Suspend",
    "Task",
    "TaskFailed",
    "TaskFunction",
    "TaskHandle",
    "TaskPush",
    "TaskRun",
    "Unavailable",
    "Unsupported",
    "__version__",
    "current_task",
    "gather",
    "gather_async",
    "open",
    "signal",
    "sleep",
    "sleep_async",
    "step",
    "step_async",
    "version",
    "wait_signal",
    "wait_signal_async",
]

_HOMES = {
    "limpet.app": ("Fleet", "TaskFunction", "TaskPush", "TaskRun", "open"),
    "limpet.kernel.cell": ("Cell", "Fence"),
    "limpet.kernel.lease": ("Lease", "Lock"),
    "limpet.worker": ("RunningTask", "current_task"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> _typing.Any:
    """A public name that is not loaded yet: import its module."""
    if name not in __all__:
        from limpet.kernel.answers import UnknownName

        raise UnknownName(f"module {__name__!r} has no attribute {name!r}", name, __all__)
    value = getattr(_import_module(_HOME_OF.get(name, "limpet.queue")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
