"""Workers: threads that claim tasks and run their handlers, and the processes that hold those threads.

Of one process, read `worker` (its threads, and which queue is asked when), `runner` (one task: the handler is called,
and its end recorded), `verdict` (what an end means), `coroutines` and `limits`, `schedule` (tasks by the clock). Of
several, read `pool` (starts and replaces processes), `child` (what each of them runs), `protocol` (what they say
through their pipes). `command` and `guard` run a command under a lock.

The threads may import the queue, events and the kernel, and know nothing of processes, so that a test or a user's own
program may use them alone. The processes may import the app, which has the user's tasks.
"""

from limpet.worker.protocol import TaskCounts, WorkerEvent
from limpet.worker.runner import Job, RunningTask, current_task
from limpet.worker.schedule import Cron
from limpet.worker.worker import Worker

__all__ = ["Cron", "Job", "RunningTask", "TaskCounts", "Worker", "WorkerEvent", "current_task"]
