"""Run a whole fleet from one bucket: `fleet = limpet.open("s3://bucket/prefix")`.

A task queue, a record index, locks with fencing and a table catalog whose only server is the object store that you
already have, or a plain directory.
"""

from limpet.app import Fleet, TaskFunction, TaskPush, TaskRun, open
from limpet.cell import Cell, Fence
from limpet.errors import (
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
    Unavailable,
    Unsupported,
)
from limpet.lease import Lease, Lock
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
    Task,
)
from limpet.worker import RunningTask, current_task

__version__ = "0.1.0"

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
    "Task",
    "TaskFunction",
    "TaskPush",
    "TaskRun",
    "Unavailable",
    "Unsupported",
    "__version__",
    "current_task",
    "open",
]
