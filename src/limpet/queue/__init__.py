"""A task queue in a store: tasks are done at least once, and nothing acknowledged is lost.

Read `api` (the interface), `entry` (the objects), `decide` (the rules), then a task's life in its order: `push`,
`discovery` and `claiming` (how an entry is found and claimed), `steps` and `durable` (what a handler records),
`value_types` (how users' values are stored and built back), `claim` and `finish` (how it ends), `sweep` and `closer`
(what a crash has left). `queue` puts them together. `rows` and `inspect` read without changing. `sync` joins queues of
several places, `sqs` keeps a queue on SQS.

It may import events and the kernel, and neither the index nor the catalog: those stand beside it.
"""

from limpet.kernel.drop import DropReport
from limpet.kernel.store.sources import BadFile
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
from limpet.queue.calls import (
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
from limpet.queue.claim import EntryClaim, EntryTask
from limpet.queue.queue import BucketQueue
from limpet.queue.steps import Suspend

__all__ = [
    "AttemptError",
    "BadFile",
    "BucketQueue",
    "Claim",
    "DropReport",
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
