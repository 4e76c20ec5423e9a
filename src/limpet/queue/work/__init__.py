"""Workers: threads that claim entries, run handlers, and turn what comes of them into verdicts.

Read `judge` for the verdicts, `runner` for one entry, `looks` for which queue is asked when, `worker` for the threads.
"""

from limpet.queue.work.cron import Cron
from limpet.queue.work.events import Event, Tally
from limpet.queue.work.runner import Job
from limpet.queue.work.running import RunningTask, current_task
from limpet.queue.work.worker import Worker

__all__ = ["Cron", "Event", "Job", "RunningTask", "Tally", "Worker", "current_task"]
