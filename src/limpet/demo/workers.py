"""The processes of `limpet demo`: workers claim batches and put results into an index, compilers compile it.

    python -m limpet.demo.workers worker URL NAME LOG
    python -m limpet.demo.workers compiler URL

Orders come on stdin, one a line; events go to stdout as JSON lines. The last order is `end`, also when the demo itself
has died and stdin is closed.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import limpet
from limpet import records
from limpet.demo.tasks import INDEX, KEY, QUEUE, TTL_S, DemoResult, split_id, square
from limpet.runtime import system

WORK_S = 0.002
LOOK_S = 0.5
REST_S = 1.5
HALFWAY = range(40, 90)
WAIT_S = 60.0


class DemoChild:
    """A process that obeys orders and tells what it does. `fleets`: one for each purpose of requests."""

    def __init__(self, **fleets: limpet.Fleet) -> None:
        self._fleets = fleets
        self._begin = system().flag()
        self._go = system().flag()
        self._ending = system().flag()
        self._lingering = False

    def run(self) -> None:
        """Wait for the order to begin, work until the order to end."""
        system().spawn(self._listen, name="limpet-demo-orders")
        self.say("ready")
        self._begin.wait(WAIT_S)
        self.work()
        self.say("ended")

    def work(self) -> None:
        """What the process does between the orders `begin` and `end`."""
        raise NotImplementedError

    def say(self, what: str, **fields: Any) -> None:
        """Tell what happened, when, and how many requests this process has made so far, by purpose."""
        spent = {purpose: fleet.meter.snapshot().requests for purpose, fleet in self._fleets.items()}
        event = {"what": what, "at_s": system().elapsed_s(), "requests": spent, **fields}
        os.write(sys.stdout.fileno(), records.encode(event) + b"\n")

    def _listen(self) -> None:
        # unbuffered: a thread that waits in a buffer's lock would break the end of the process
        with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as orders:
            for line in orders:
                match line.strip():
                    case b"begin":
                        self._begin.set()
                    case b"linger":
                        self._lingering = True
                    case b"go":
                        self._go.set()
                    case b"tell":
                        self.say("tells")
        for flag in (self._ending, self._begin, self._go):
            flag.set()


class DemoWorker(DemoChild):
    """Claims batches until the order to end comes; a batch that is begun is finished.

    The order `linger` stops it halfway through a batch until the order `go`. Each task that it starts is noted in LOG.
    """

    def __init__(self, url: str, name: str, log: str) -> None:
        self._fleet, indexed = limpet.open(url), limpet.open(url)
        super().__init__(tasks=self._fleet, index=indexed)
        self._name = name
        self._queue = self._fleet.queue(QUEUE, ttl_s=TTL_S)
        self._index = indexed.index(INDEX, DemoResult, key=KEY)
        self._log_fd = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._entry = ""

    def work(self) -> None:
        while not self._ending.is_set():
            try:
                with self._queue.claim() as claim:
                    self._batch(claim)
                    found = bool(claim)
            except limpet.LimpetError as error:
                # another worker takes the batch over; if none does, the report at the end says so
                self.say("trouble", message=str(error))
                found = False
            if not found:
                self._ending.wait(LOOK_S)

    def _batch(self, claim: limpet.Claim) -> None:
        """Run every task of a batch, put their records into the index, and only then mark the tasks as done.

        After a kill in between, the batch is run again and its records are put again: same key, same square. A worker
        that was stopped does the same with what it had computed before.
        """
        values: list[tuple[limpet.Task, int]] = []
        failed: list[str] = []
        for task in claim:
            try:
                values.append((task, self._run(task)))
            except limpet.Fail as verdict:
                task.fail(str(verdict))
                failed.append(task.id)
            except limpet.Retry as verdict:
                task.retry(verdict.after_s, str(verdict))
        self._index.put_many(DemoResult(task.payload["n"], value, self._name) for task, value in values)
        for task, value in values:
            task.done(value)
        if values or failed:
            self.say("ran", done=[task.id for task, _ in values], failed=failed)

    def _run(self, task: limpet.Task) -> int:
        # One write of a few bytes: the kernel has it before the work begins, even if this process is killed.
        os.write(self._log_fd, f"{task.payload['n']}\n".encode())
        entry, n = split_id(task.id)
        assert task.fence is not None
        if entry != self._entry:
            self._entry = entry
            self.say("took", entry=entry, attempt=task.attempt)
            if task.fence.token > 1:
                self._sign(entry, task.fence)
        if self._lingering and task.fence.token == 1 and n in HALFWAY:
            self._lingering = False
            self.say("lingers", entry=entry, token=task.fence.token)
            self._go.wait(WAIT_S)
            self._sign(entry, task.fence)  # as if no time had passed
        system().sleep(WORK_S)
        return square(task.payload, task.attempt)

    def _sign(self, entry: str, fence: limpet.Fence) -> None:
        """Write into the batch's cell which worker has it, with our claim's token."""
        try:
            self._fleet.cell(entry).write({"worker": self._name, "token": fence.token}, lease=fence)
        except limpet.LeaseLost as refused:
            self.say("refused", entry=entry, token=fence.token, message=str(refused))
        else:
            self.say("signed", entry=entry, token=fence.token)


class DemoCompiler(DemoChild):
    """Compiles the index again and again; after the order to end once more, everything."""

    def __init__(self, url: str) -> None:
        fleet = limpet.open(url)
        super().__init__(index=fleet)
        self._index = fleet.index(INDEX)

    def work(self) -> None:
        while not self._ending.is_set():
            self._compile()
            self._ending.wait(REST_S)
        self._compile(full=True)

    def _compile(self, *, full: bool = False) -> None:
        self.say("folds")
        try:
            report = self._index.compile(full=full)
        except limpet.LimpetError as error:
            # the other shards were compiled; the report at the end says what this one lacks
            self.say("trouble", message=str(error))
        else:
            self.say("folded", shards=report.folded, objects=report.objects)


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    {"worker": DemoWorker, "compiler": DemoCompiler}[kind](*arguments).run()
