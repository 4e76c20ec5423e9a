"""A worker of `limpet demo`: the worker loop of `limpet work` in a process of its own, which tells what it does.

    python -m limpet.cli.demo_worker URL NAME LOG

It takes orders from stdin, one a line, and ends with it: `begin`; `linger` (stop halfway through a batch, and wait for
`go`). What befalls it goes to stdout as JSON lines; each task that it starts is noted in the file LOG.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import limpet
from limpet import records
from limpet.cli.demo_tasks import QUEUE, TTL_S, square
from limpet.cli.queue_options import in_store
from limpet.queue.names import batch_of, count_of
from limpet.queue.work import Event, Job, Worker, current_task
from limpet.runtime import system

__all__ = ["DemoWorker", "main"]

WORK_S = 0.002
SAY_EVERY = 10
HALFWAY = range(40, 90)
WAIT_S = 60.0


class DemoWorker:
    """What one process does in the demo."""

    def __init__(self, url: str, name: str, log: str) -> None:
        self._name = name
        self._fleet = limpet.open(url)
        self._queue = in_store(self._fleet.queue(QUEUE, ttl_s=TTL_S), "run the demo")
        self._log_fd = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._worker = Worker([Job(self._queue, self._handle)], system(), listener=self._hear)
        self._lingering = False
        self._go = system().flag()
        self._entry = ""
        self._ended: dict[str, list[str]] = {}

    def obey(self) -> None:
        """Carry out orders until stdin ends; then stop, and hand back what is not done."""
        self._say("ready")
        for line in iter(sys.stdin.readline, ""):
            match line.strip():
                case "begin":
                    self._worker.start()
                case "linger":
                    self._lingering = True
                case "go":
                    self._go.set()
        self._go.set()
        self._worker.stop()
        self._worker.wait(WAIT_S)
        self._say("ended")

    def _handle(self, task: dict[str, Any]) -> int:
        # One write of a few bytes: it is in the kernel's hands before the work begins, whatever becomes of us.
        os.write(self._log_fd, f"{task['n']}\n".encode())
        running = current_task()
        assert running is not None
        part = batch_of(running.id)
        assert part is not None
        entry, n = part
        if entry != self._entry:
            self._entry = entry
            self._say("took", entry=entry, attempt=running.attempt)
            if running.attempt > 1:
                self._sign(entry, self._fence(entry))
        if self._lingering and running.attempt == 1 and n in HALFWAY:
            self._lingering = False
            self._linger(entry, n)
        system().sleep(WORK_S)
        return square(task, running.attempt)

    def _linger(self, entry: str, n: int) -> None:
        """Wait in the middle of a batch, where the demo wants us, and then go on as if no time had passed."""
        fence = self._fence(entry)
        self._say("lingers", entry=entry, token=fence.token, done=n)
        self._go.wait(WAIT_S)
        self._sign(entry, fence)

    def _fence(self, entry: str) -> limpet.Fence:
        """The token of our claim, with the lease that gave it."""
        seen = self._queue.storage.lease(entry).read()
        assert seen is not None
        return limpet.Fence(self._queue.storage.keys.lease(entry), seen.value.token)

    def _sign(self, entry: str, fence: limpet.Fence) -> None:
        """Write into the batch's cell who works on it, with our claim's token."""
        try:
            self._fleet.cell(entry).write({"worker": self._name, "token": fence.token}, lease=fence)
        except limpet.LeaseLost as refused:
            self._say("refused", entry=entry, token=fence.token, message=str(refused))
        else:
            self._say("signed", entry=entry, token=fence.token)

    def _hear(self, event: Event) -> None:
        """Tell how tasks ended: ten at a time, but at once what is out of the ordinary, and at the end of a batch."""
        part = batch_of(event.id)
        if part is None or event.kind not in ("done", "failed", "retry"):
            return
        self._ended.setdefault(event.kind, []).append(event.id)
        entry, n = part
        if event.kind != "done" or event.attempt > 1 or n % SAY_EVERY == SAY_EVERY - 1 or n == count_of(entry) - 1:
            ended, self._ended = self._ended, {}
            self._say("ran", **ended)

    def _say(self, what: str, **fields: Any) -> None:
        spent = self._fleet.meter.snapshot().requests
        event = {"what": what, "at_s": system().elapsed_s(), "requests": spent, **fields}
        os.write(sys.stdout.fileno(), records.encode(event) + b"\n")


def main(arguments: list[str]) -> None:
    """Run one worker."""
    url, name, log = arguments
    DemoWorker(url, name, log).obey()


if __name__ == "__main__":
    main(sys.argv[1:])
