"""Workers: threads that claim tasks and run their handlers, and the processes that hold those threads.

Of one process: `worker` has the threads and says which queue is polled when, `runner` runs one task and records its
verdict, `schedule` pushes tasks by the clock. Of several processes: `pool` starts and replaces them, `child` is what
each of them runs, `protocol` what they say through their pipes. `command` and `guard` run a command under a lock.
"""

from limpet.worker.protocol import TaskCounts, WorkerEvent
from limpet.worker.runner import Job, RunningTask, current_task
from limpet.worker.schedule import Cron
from limpet.worker.worker import Worker

__all__ = ["Cron", "Job", "RunningTask", "TaskCounts", "Worker", "WorkerEvent", "current_task"]
