"""A task queue in a store: tasks are done at least once, and nothing acknowledged is lost.

Read `api` for the interface, `entry` for the objects, `decide` for the rules, `queue` for how an entry is found and
claimed, and `push`, `claim` and `sweep` for the rest of its life.
"""

from limpet.queue.adopt import QueueAdoptReport
from limpet.queue.api import (
    AttemptError,
    Claim,
    EmptyClaim,
    Fail,
    Failure,
    Feature,
    Notice,
    Peeked,
    Policy,
    Pushed,
    Queue,
    Result,
    Retry,
    Stats,
    Task,
    TaskHandle,
)
from limpet.queue.claim import EntryClaim, EntryTask
from limpet.queue.queue import BucketQueue
from limpet.queue.steps import (
    Suspend,
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
from limpet.store.sources import BadFile

__all__ = [
    "AttemptError",
    "BadFile",
    "BucketQueue",
    "Claim",
    "EmptyClaim",
    "EntryClaim",
    "EntryTask",
    "Fail",
    "Failure",
    "Feature",
    "Notice",
    "Peeked",
    "Policy",
    "Pushed",
    "Queue",
    "QueueAdoptReport",
    "Result",
    "Retry",
    "Stats",
    "Suspend",
    "Task",
    "TaskHandle",
    "gather",
    "gather_async",
    "signal",
    "sleep",
    "sleep_async",
    "step",
    "step_async",
    "version",
    "wait_signal",
    "wait_signal_async",
]
