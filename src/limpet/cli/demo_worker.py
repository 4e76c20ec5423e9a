"""A worker of `limpet demo`: it claims batches, puts what they come to into an index, and tells what it does.

    python -m limpet.cli.demo_worker URL NAME LOG

Orders: `begin`; `linger` (stop halfway through a batch, and wait for `go`). Each task that it starts is noted in the
file LOG.
"""

from __future__ import annotations

import os
import sys

import limpet
from limpet.cli.demo_tasks import INDEX, KEY, QUEUE, TTL_S, Result, square
from limpet.cli.demo_wire import Wire
from limpet.errors import LimpetError
from limpet.queue import Claim, Fail, Retry, Task
from limpet.queue.entry import batch_of
from limpet.runtime import system

WORK_S = 0.002
LOOK_S = 0.5
HALFWAY = range(40, 90)
WAIT_S = 60.0


class DemoWorker:
    """What one process does in the demo."""

    def __init__(self, url: str, name: str, log: str) -> None:
        self._name = name
        self._fleet = limpet.open(url)
        self._queue = self._fleet.queue(QUEUE, ttl_s=TTL_S)
        indexed = limpet.open(url)
        self._index = indexed.index(INDEX, Result, key=KEY)
        self._log_fd = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._wire = Wire(tasks=self._fleet, index=indexed)
        self._begin = system().flag()
        self._go = system().flag()
        self._stopping = system().flag()
        self._lingering = False
        self._entry = ""

    def run(self) -> None:
        """Work until the order to end comes. A batch that is begun is ended."""
        self._wire.listen(self._obey)
        self._wire.say("ready")
        self._begin.wait(WAIT_S)
        while not self._stopping.is_set():
            if not self._work():
                self._stopping.wait(LOOK_S)
        self._wire.say("ended")

    def _obey(self, order: str) -> None:
        match order:
            case "begin":
                self._begin.set()
            case "linger":
                self._lingering = True
            case "go":
                self._go.set()
            case "end":
                self._stopping.set()
                self._begin.set()
                self._go.set()

    def _work(self) -> bool:
        """Work on one batch, if there is one."""
        try:
            with self._queue.claim() as claim:
                self._batch(claim)
                return bool(claim)
        except LimpetError as error:
            # the batch comes back by itself; if it does not, the report at the end says so
            self._wire.say("trouble", message=str(error))
            return False

    def _batch(self, claim: Claim) -> None:
        """Run every task of a batch, put their records into the index, and only then say that they are done.

        Killed in between, the batch is run again, and its records are put again: the same key, the same square. So does
        one that slept, for what it had worked out before.
        """
        values: list[tuple[Task, int]] = []
        failed: list[str] = []
        for task in claim:
            try:
                values.append((task, self._run(task)))
            except Fail as verdict:
                task.fail(str(verdict))
                failed.append(task.id)
            except Retry as verdict:
                task.retry(verdict.after_s, str(verdict))
        self._index.put_many(Result(task.payload["n"], value, self._name) for task, value in values)
        for task, value in values:
            task.done(value)
        if values or failed:
            self._wire.say("ran", done=[task.id for task, _ in values], failed=failed)

    def _run(self, task: Task) -> int:
        # One write of a few bytes: it is in the kernel's hands before the work begins, whatever becomes of us.
        os.write(self._log_fd, f"{task.payload['n']}\n".encode())
        part = batch_of(task.id)
        assert part is not None
        assert task.fence is not None
        entry, n = part
        if entry != self._entry:
            self._entry = entry
            self._wire.say("took", entry=entry, attempt=task.attempt)
            if task.fence.token > 1:
                self._sign(entry, task.fence)
        if self._lingering and task.fence.token == 1 and n in HALFWAY:
            self._lingering = False
            self._linger(entry, task.fence)
        system().sleep(WORK_S)
        return square(task.payload, task.attempt)

    def _linger(self, entry: str, fence: limpet.Fence) -> None:
        """Wait in the middle of a batch, where the demo wants us, and then go on as if no time had passed."""
        self._wire.say("lingers", entry=entry, token=fence.token)
        self._go.wait(WAIT_S)
        self._sign(entry, fence)

    def _sign(self, entry: str, fence: limpet.Fence) -> None:
        """Write into the batch's cell who works on it, with our claim's token."""
        try:
            self._fleet.cell(entry).write({"worker": self._name, "token": fence.token}, lease=fence)
        except limpet.LeaseLost as refused:
            self._wire.say("refused", entry=entry, token=fence.token, message=str(refused))
        else:
            self._wire.say("signed", entry=entry, token=fence.token)


def main(arguments: list[str]) -> None:
    """Run one worker."""
    url, name, log = arguments
    DemoWorker(url, name, log).run()


if __name__ == "__main__":
    main(sys.argv[1:])
