"""A worker process of `limpet work`: `python -P -m limpet.cli.work_child CONTROL_FD REPORT_FD`.

It obeys the pipe: its first line is an `Order`, then comes `STOP` (finish what runs, within the grace time) or `NOW`
(hand it back). The end of the pipe means that limpet has died: then everything is handed back and the process ends. A
signal to this process is a `STOP`; limpet starts another process in its place.

Before it is ready, it has claimed nothing: then either of them, or a signal, ends the process at once, even while the
user's module is being imported.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging import LogRecord

import msgspec
from msgspec import structs

from limpet.app.events import SWITCH
from limpet.cli.shared import EXIT_FAILED
from limpet.cli.work_load import jobs_of
from limpet.cli.work_logging import message_of, set_up_logging, traceback_of
from limpet.cli.work_signals import STOPS, Bell, bell
from limpet.cli.work_wire import Backlog, ControlPipe, Ended, LogLine, Order, Refused, encode_line
from limpet.errors import LimpetError
from limpet.queue import BucketQueue
from limpet.queue.work import Event, Job, Tally, Worker, current_task
from limpet.queue.work.events import EventKind
from limpet.runtime import Flag, Runtime, system

TICK_S = 0.25
LAST_S = 0.5
LOOKS_S = 3.0
"""How long a claim that is under way may take once nothing runs: a queue may wait for a task in the server."""
COUNT_EVERY_S = 30.0
COUNT_AGAIN_S = 1.0
EMPTY_PAUSE_S = 0.5
EMPTY_PAUSE_MAX_S = 15.0
COUNT_PART = 50
EXIT_REFUSED = 3


class Child:
    """One worker process, from its order to its last words."""

    def __init__(self, control_fd: int, report_fd: int, runtime: Runtime) -> None:
        self._control = ControlPipe(control_fd)
        self._report_fd = report_fd
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._told = Tally()
        self._done_before = Tally()
        for fd in (control_fd, report_fd):
            os.set_inheritable(fd, False)

    def run(self) -> int:
        """Work until told to stop, or until there is a reason to; the exit code."""
        with bell(STOPS) as stops:
            order = self._control.order()
            if order is None or self._control.stop:
                return 0
            if order.events:  # before the user's module opens its fleet
                os.environ[SWITCH] = "1"
            try:
                with self._ending_at_once(stops):
                    jobs = jobs_of(order)
            except LimpetError as error:
                self._say(Refused(kind=type(error).__name__, message=str(error), hint=error.hint))
                return EXIT_REFUSED
            return self._work(order, jobs, stops)

    @contextmanager
    def _ending_at_once(self, stops: Bell) -> Iterator[None]:
        """While the block runs, a stop or a signal ends the process: an import may take longer than any grace time.

        The thread reads the pipes only while the block runs, so that nothing is lost which comes at its end.
        """
        mutex = self._runtime.mutex()
        over = False

        def watch() -> None:
            while True:
                ready, _, _ = select.select([self._control.fd, stops.fd], [], [])
                with mutex:
                    if over:
                        return
                    if self._control.fd in ready:
                        self._control.read()
                    if stops.heard() or self._control.stop:
                        self._say(Ended(again=True))
                        os._exit(0)

        thread = self._runtime.spawn(watch, name="limpet-start")
        try:
            yield
        finally:
            with mutex:
                over = True
            stops.ring()
            thread.join()

    def _work(self, order: Order, jobs: list[Job], stops: Bell) -> int:
        set_up_logging(self._log, everything=order.log_json)
        names = ", ".join(job.queue.name for job in jobs)
        self._say(self._event("ready", note=names))
        over = self._runtime.flag()
        self._runtime.spawn(lambda: self._tell_paused(jobs), name="limpet-paused")
        if order.count:
            self._runtime.spawn(lambda: self._keep_counting(jobs, over), name="limpet-count")
        worker, asked = self._run_worker(order, jobs, stops)
        pause_s = EMPTY_PAUSE_S
        while order.until_empty and not asked and worker.ended and _ended_well(worker) and self._anything_left(jobs):
            if self._is_stopped_within(pause_s, stops):
                asked = True
                break
            pause_s = min(2 * pause_s, EMPTY_PAUSE_MAX_S)
            before = self._done_before
            worker, asked = self._run_worker(order, jobs, stops)
            if self._done_before != before:
                pause_s = EMPTY_PAUSE_S
        over.set()
        self._say(self._done_before)
        self._say(_last_words(worker, asked=asked, burst=order.burst))
        code = EXIT_FAILED if worker.halted or worker.error or worker.broken else 0
        if not worker.ended:  # a handler that cannot be cancelled must not keep the process
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def _run_worker(self, order: Order, jobs: list[Job], stops: Bell) -> tuple[Worker, bool]:
        """Work until it is over; the worker, and whether we were asked to stop."""
        worker = Worker(
            jobs,
            self._runtime,
            threads=order.threads,
            burst=order.burst,
            in_order=bool(order.queues),
            max_tasks=order.max_tasks,
            listener=self._say,
            routine=order.routine,
            on_end=stops.ring,
        )
        worker.start()
        asked = self._watch(worker, order.grace_s, stops)
        if not worker.ended:
            worker.hand_back()
            worker.wait(LAST_S)
        self._done_before += structs.replace(worker.tally(), in_flight=0, rate_per_s=0.0)
        return worker, asked

    def _anything_left(self, jobs: list[Job]) -> bool:
        """Whether a task of the queues has not ended: it rests, or another process has it. Delayed ones do not count.

        A queue that cannot be asked may have some.
        """
        try:
            return any(job.queue.stats().pending for job in jobs)
        except LimpetError as error:
            self._say(self._event("trouble", note=str(error)))
            return True

    def _is_stopped_within(self, seconds: float, stops: Bell) -> bool:
        until_s = self._runtime.elapsed_s() + seconds
        while (left_s := until_s - self._runtime.elapsed_s()) > 0:
            ready, _, _ = select.select([self._control.fd, stops.fd], [], [], left_s)
            if self._control.fd in ready:
                self._control.read()
            if stops.heard() or self._control.stop:
                return True
        return False

    def _tell_paused(self, jobs: list[Job]) -> None:
        """Say which queues are paused at the start: a worker that claims nothing would be a riddle.   Cost: 1 GET a
        queue."""
        for job in jobs:
            if not isinstance(job.queue, BucketQueue):
                continue
            try:
                seen = job.queue.storage.control().read()
            except LimpetError:  # a claim will meet it too, and say so
                continue
            if seen is not None and seen.value.paused:
                note = f"is paused: nothing is claimed until `limpet queue resume {job.queue.name}`"
                self._say(self._event("warning", queue=job.queue.name, note=note))

    def _event(self, kind: EventKind, *, note: str, queue: str = "") -> Event:
        return Event(kind=kind, at=self._runtime.wall(), worker=self._runtime.label, queue=queue, note=note)

    def _log(self, record: LogRecord) -> None:
        """Pass a record of Python's `logging` on to limpet, which prints it."""
        task = current_task()
        self._say(
            LogLine(
                at=datetime.fromtimestamp(record.created, UTC),
                worker=self._runtime.label,
                level=record.levelname,
                logger=record.name,
                message=message_of(record),
                queue=task.queue if task else "",
                id=task.id if task else "",
                attempt=task.attempt if task else 0,
                traceback=traceback_of(record),
            )
        )

    def _watch(self, worker: Worker, grace_s: float, stops: Bell) -> bool:
        """Wait until the worker ends, or must; whether it was asked to."""
        until_s: float | None = None
        while not worker.ended:
            ready, _, _ = select.select([self._control.fd, stops.fd], [], [], TICK_S)
            if self._control.fd in ready:
                self._control.read()
            signals = stops.heard()
            if self._control.now:
                return True
            if until_s is None and (self._control.stop or signals):
                worker.stop()
                until_s = self._runtime.elapsed_s() + grace_s
            if until_s is not None and not worker.busy:
                until_s = min(until_s, self._runtime.elapsed_s() + LOOKS_S)
            if until_s is not None and self._runtime.elapsed_s() >= until_s:
                return True
            worker.tick()
            self._tell_tally(self._done_before + worker.tally())
        return until_s is not None

    def _tell_tally(self, tally: Tally) -> None:
        if tally != self._told:
            self._told = tally
            self._say(tally)

    def _keep_counting(self, jobs: list[Job], over: Flag) -> None:
        """Tell now and then how much waits. Counting lists all of it, so it takes a small part of the time at most.

        It is counted again sooner when as much was done since as waited then: more has come.
        """
        while not over.is_set():
            began_s = self._runtime.elapsed_s()
            ended = self._told.ended
            try:
                pending = sum(job.queue.stats().pending for job in jobs)
            except LimpetError:  # then there is no time to go; if it is serious, the work itself will tell
                return
            self._say(Backlog(pending=pending))
            took_s = self._runtime.elapsed_s() - began_s
            soonest_s, latest_s = max(COUNT_AGAIN_S, took_s * COUNT_PART), max(COUNT_EVERY_S, took_s * COUNT_PART)
            while not over.wait(COUNT_AGAIN_S):
                waited_s = self._runtime.elapsed_s() - began_s
                used_up = self._told.ended - ended >= pending > 0 or (not pending and self._told.ended > ended)
                if waited_s >= latest_s or (used_up and waited_s >= soonest_s):
                    break

    def _say(self, message: msgspec.Struct) -> None:
        data = encode_line(message)
        with self._mutex:
            try:
                while data:
                    data = data[os.write(self._report_fd, data) :]
            except BrokenPipeError:  # limpet is gone; the other pipe has told, or will
                return


def _ended_well(worker: Worker) -> bool:
    return not (worker.error or worker.halted or worker.broken or worker.used_up)


def _last_words(worker: Worker, *, asked: bool, burst: bool) -> Ended:
    if worker.error is not None:
        return Ended(again=False, trouble=str(worker.error))
    if worker.halted or worker.broken:
        return Ended(again=True, trouble=worker.halted or "a mistake in limpet; please report the traceback")
    return Ended(again=asked or not burst or worker.used_up)


def main(arguments: list[str]) -> int:
    """Run one worker process; the exit code."""
    control_fd, report_fd = map(int, arguments)
    return Child(control_fd, report_fd, system()).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
