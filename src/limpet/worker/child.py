"""A worker process of `limpet work`: `python -P -m limpet.worker.child CONTROL_FD REPORT_FD`.

It obeys the control pipe: its first line is a `WorkerOrder`, then comes `STOP` (finish what runs, within the grace
time) or `NOW` (hand it back). The end of the pipe means that limpet has died: then everything is handed back and the
process ends. A signal to this process counts as `STOP`; limpet starts another process in its place.

Before it is ready, it has claimed nothing: then a stop or a signal ends the process at once, even while the user's
module is being imported.
"""

from __future__ import annotations

import importlib
import logging
import os
import select
import sys
import sysconfig
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import chain
from types import ModuleType
from typing import Any

import msgspec
from msgspec import structs

from limpet.app import Fleet, open
from limpet.app.fleet import EVENTS_SWITCH, is_presence_wanted
from limpet.app.place import absolute
from limpet.app.presence import PresenceWriter
from limpet.app.tasks import TaskFunction
from limpet.kernel.errors import Held, Invalid, LimpetError
from limpet.kernel.runtime import Flag, Runtime, system
from limpet.kernel.store import MeteredStore, ScopedStore
from limpet.kernel.user_code import UserCall, one_line
from limpet.kernel.waiting import ticks
from limpet.kernel.wording import an
from limpet.queue import BucketQueue
from limpet.queue.queue import pending_in
from limpet.worker.protocol import (
    STOP_SIGNALS,
    Backlog,
    ControlPipe,
    EventKind,
    LogLine,
    ProcessPresence,
    SignalPipe,
    StartRefused,
    StoreRequests,
    TaskCounts,
    WorkerEnded,
    WorkerEvent,
    WorkerOrder,
    encode_line,
)
from limpet.worker.runner import Job, task_or_none
from limpet.worker.worker import Worker

TICK_S = 0.25
LAST_S = 0.5
POLL_S = 3.0
"""How long a request that is under way may take once nothing runs: a queue may wait for a task in the server."""
COUNT_EVERY_S = 30.0
REQUESTS_EVERY_S = 5.0
COUNT_PART = 50
EXIT_FAILED, EXIT_REFUSED = 1, 3

CHATTY = ("boto3", "botocore", "urllib3", "asyncio")
MESSAGE_CHARS_MAX = 16 * 1024
NOTHING_CLAIMED = "nothing was claimed"


def readable(fds: Sequence[int], timeout_s: float | None) -> list[int]:
    """Those of the files that can be read, once one can or the time is up (None: no limit)."""
    waiting = select.poll()  # not select(): a handler may have 1,024 files open
    for fd in fds:
        waiting.register(fd, select.POLLIN)
    return [fd for fd, _ in waiting.poll(None if timeout_s is None else timeout_s * 1000)]


class ChildProcess:
    """One worker process, from its order to its last message."""

    def __init__(self, control_fd: int, report_fd: int, signals: SignalPipe, runtime: Runtime) -> None:
        self._control = ControlPipe(control_fd)
        self._report_fd = report_fd
        self._signals = signals
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._sent = TaskCounts()
        self._meters: list[MeteredStore] = []
        self._requests_at_s = 0.0
        for fd in (control_fd, report_fd):
            os.set_inheritable(fd, False)

    def run(self) -> int:
        """Work until a stop, or until there is a reason to end; the exit code."""
        order = self._control.order()
        if order is None or self._control.stop:
            return 0
        if order.events:  # before the user's module opens its fleet
            os.environ[EVENTS_SWITCH] = "1"
        try:
            with self._ending_at_once():
                jobs = jobs_of(order)
                for job in jobs:
                    if isinstance(job.queue, BucketQueue):
                        job.queue.check_own()
                presence = self._presence(order, jobs) if is_presence_wanted() else None
        except LimpetError as error:
            self._send(StartRefused(kind=type(error).__name__, message=str(error), hint=error.hint))
            return EXIT_REFUSED
        if presence is not None:
            presence.start()
        try:
            return self._work(order, jobs, presence)
        finally:
            if presence is not None:
                presence.stop()

    def _wait(self, timeout_s: float) -> None:
        """Wait for a line from limpet, a signal, or the end of the worker. A signal counts as `STOP`."""
        if self._control.fd in readable((self._control.fd, self._signals.fd), timeout_s):
            self._control.read()
        if self._signals.read():
            self._control.stop = True

    @contextmanager
    def _ending_at_once(self) -> Iterator[None]:
        """While the block runs, a stop or a signal ends the process: an import may take longer than any grace time.

        The thread reads the pipes only while the block runs, so that nothing is lost which comes at its end.
        """
        mutex = self._runtime.mutex()
        over = False

        def watch() -> None:
            while True:
                readable((self._control.fd, self._signals.fd), None)
                with mutex:
                    if over:
                        return
                    self._wait(0.0)
                    if self._control.stop:
                        self._send(WorkerEnded(again=True))
                        os._exit(0)

        thread = self._runtime.spawn(watch, name="limpet-start")
        try:
            yield
        finally:
            with mutex:
                over = True
            self._signals.wake()
            thread.join()

    def _work(self, order: WorkerOrder, jobs: list[Job], presence: PresenceWriter | None) -> int:
        label = self._runtime.label
        set_up_logging(_LogForward(self._send, label), label, everything=order.log_json)
        self._say("ready", note=", ".join(job.queue.name for job in jobs))
        over, told = self._runtime.flag(), self._runtime.flag()
        self._runtime.spawn(lambda: self._report_paused(jobs, told), name="limpet-paused")
        if order.count:
            self._runtime.spawn(lambda: self._keep_counting(jobs, over), name="limpet-count")
        if order.requests:
            self._meters = meters_of(jobs)
        worker = self._run_worker(order, jobs)
        over.set()
        if not self._control.stop:  # a burst may be over before the report of paused queues, which says why
            told.wait(POLL_S)
        self._report_requests(0.0)
        self._send(structs.replace(worker.counts(), in_flight=0, rate_per_s=0.0))
        trouble = worker.halted or ("a bug in limpet; please report the traceback" if worker.broken else "")
        again = bool(trouble or self._control.stop or not order.burst or worker.used_up)
        if worker.error is not None:
            trouble, again = str(worker.error), False
        self._send(WorkerEnded(again=again, trouble=trouble))
        code = EXIT_FAILED if worker.halted or worker.error or worker.broken else 0
        if not worker.ended:  # a handler that cannot be cancelled must not keep the process alive
            if presence is not None:
                presence.stop()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    def _presence(self, order: WorkerOrder, jobs: list[Job]) -> PresenceWriter | None:
        """What shows in the fleet that this process is alive; None for SQS, and where it is switched off."""
        stores = [job.queue.storage.store for job in jobs if isinstance(job.queue, BucketQueue) and job.presence]
        if not stores:
            return None

        def refused(error: LimpetError) -> None:
            self._say("warning", note=f"`limpet workers` will not show this process: {error}")

        return PresenceWriter(
            stores[0],
            self._runtime,
            queues=[job.queue.name for job in jobs],
            threads=order.threads,
            on_refused=refused,
            on_written=lambda: self._send(ProcessPresence(owner=self._runtime.owner)),
            reaped=order.reaped,
        )

    def _run_worker(self, order: WorkerOrder, jobs: list[Job]) -> Worker:
        worker = Worker(
            jobs,
            self._runtime,
            threads=order.threads,
            burst=order.burst,
            until_empty=order.until_empty,
            in_order=bool(order.queues),
            max_tasks=order.max_tasks,
            poll_s=order.poll_s,
            listener=self._send,
            routine=order.routine,
            on_end=self._signals.wake,
        )
        worker.start()
        self._watch(worker, order.grace_s)
        if not worker.ended:
            worker.hand_back()
            worker.wait(LAST_S)
        return worker

    def _watch(self, worker: Worker, grace_s: float) -> None:
        until_s: float | None = None
        while not worker.ended:
            self._wait(TICK_S)
            if self._control.now:
                return
            if until_s is None and self._control.stop:
                worker.stop()
                until_s = self._runtime.elapsed_s() + grace_s
            if until_s is not None and not worker.busy:
                until_s = min(until_s, self._runtime.elapsed_s() + POLL_S)
            if until_s is not None and self._runtime.elapsed_s() >= until_s:
                return
            worker.tick()
            counts = worker.counts()
            if counts != self._sent:
                self._sent = counts
                self._send(counts)
            self._report_requests(REQUESTS_EVERY_S)

    def _report_requests(self, every_s: float) -> None:
        now_s = self._runtime.elapsed_s()
        if self._meters and now_s - self._requests_at_s >= every_s:
            self._requests_at_s = now_s
            spent = sum((Counter(meter.snapshot().requests) for meter in self._meters), Counter[str]())
            self._send(StoreRequests(worker=self._runtime.label, requests=dict(spent)))

    def _report_paused(self, jobs: list[Job], told: Flag) -> None:
        """Report the queues that are paused at the start, for nothing of them is claimed; then set `told`.

        Cost: 1 GET a queue.
        """
        for queue in [job.queue for job in jobs if isinstance(job.queue, BucketQueue)]:
            with suppress(LimpetError):  # a claim will fail too, and report it
                if queue.storage.paused():
                    note = f"is paused: nothing is claimed until `limpet queue resume {queue.name}`"
                    self._say("warning", queue=queue.name, note=note)
        told.set()

    def _keep_counting(self, jobs: list[Job], over: Flag) -> None:
        """Report now and then how much waits. Counting lists all of it, so it takes a small part of the time at most.

        It is counted again sooner when as many tasks have ended since as waited then: more were pushed.
        """
        began_s, took_s, pending, before = float("-inf"), 0.0, 0, 0
        for _ in chain((None,), ticks(over, 1.0)):
            now_s = self._runtime.elapsed_s()
            ended = self._sent.ended - before
            is_used_up = ended >= pending > 0 or (not pending and ended > 0)
            least_s = 0.0 if is_used_up else COUNT_EVERY_S
            if now_s - began_s < max(least_s, took_s * COUNT_PART):
                continue
            began_s, before = now_s, self._sent.ended
            try:
                pending = sum(pending_in(job.queue) for job in jobs)
            except LimpetError:  # then no remaining time is shown; if it is serious, the worker will report it
                return
            self._send(Backlog(pending=pending))
            took_s = self._runtime.elapsed_s() - began_s

    def _say(self, kind: EventKind, *, note: str, queue: str = "") -> None:
        at, label = self._runtime.wall(), self._runtime.label
        self._send(WorkerEvent(kind=kind, at=at, worker=label, queue=queue, note=note))

    def _send(self, message: msgspec.Struct) -> None:
        data = encode_line(message)
        with self._mutex:
            try:
                while data:
                    data = data[os.write(self._report_fd, data) :]
            except BrokenPipeError:  # limpet has died; the control pipe says so too
                return


def meters_of(jobs: list[Job]) -> list[MeteredStore]:
    """The meters through which the queues of these jobs send their requests, each once."""
    stores = [job.queue.storage.store for job in jobs if isinstance(job.queue, BucketQueue)]
    found = [store.inner if isinstance(store, ScopedStore) else store for store in stores]
    return [*{id(each): each for each in found if isinstance(each, MeteredStore)}.values()]


# ---- what to work on ----


def jobs_of(order: WorkerOrder) -> list[Job]:
    """The jobs that an order names, those of `order.queues` in that order.

    Raises: Invalid, with one line that says what is wrong with the target, its module, or what was found there.
    """
    tasks = _of_module(order) if order.handler is None else _with_handler(order, order.handler)
    for task in tasks:
        if task.queue.provider == "memory":
            raise Invalid(
                f"task {task.name!r} lives in memory://, which no other process can see",
                hint="open the fleet at a directory or a bucket; for tests there is limpet.testing",
            )
    return [task.job for task in tasks]


def _with_handler(order: WorkerOrder, handler: str) -> list[TaskFunction[..., Any]]:
    names = list(dict.fromkeys([*([order.target] if order.target else []), *order.queues]))
    if not names:
        raise Invalid("no queue was named", hint="limpet work QUEUE --handler pkg.mod:function --url URL")
    found = _resolve(handler)
    if not callable(found):
        raise Invalid(f"{handler} is {an(type(found).__name__)}, which cannot be called", hint="name a function")
    fleet = open(order.url, create=False)
    fleet.check()
    if isinstance(found, TaskFunction):
        policy = asdict(found.queue.policy)
        return [TaskFunction(found.function, fleet.queue(name, **policy), fleet.tasks) for name in names]
    return [TaskFunction(found, fleet.queue(name), fleet.tasks) for name in names]


def _of_module(order: WorkerOrder) -> list[TaskFunction[..., Any]]:
    if order.target is None:
        raise Invalid("nothing was named to work on", hint="limpet work app:fleet, where app.py has a fleet")
    found = _resolve(order.target)
    match found:
        case Fleet():
            _check_place(order, found)
            tasks = list(found.tasks)
        case TaskFunction():
            tasks = [found]
        case _:
            raise Invalid(
                f"{order.target} is {an(type(found).__name__)}, neither a fleet nor a task",
                hint="name what limpet.open() or @fleet.task() gave; or a queue, with --handler",
            )
    if not tasks:
        raise Invalid(
            f"{order.target} has no tasks", hint="define one with @fleet.task(), in a module that this one imports"
        )
    if order.queues:
        by_name = {task.name: task for task in tasks}
        for name in order.queues:
            if name not in by_name:
                raise Invalid(f"{order.target} has no task {name!r}", hint=f"it has {', '.join(by_name)}")
        tasks = [by_name[name] for name in dict.fromkeys(order.queues)]
    tasks[0].check()
    return tasks


def _check_place(order: WorkerOrder, fleet: Fleet) -> None:
    """Raises: Invalid if the module opens another fleet than the one whose URL was typed."""
    if order.url_is_typed and order.url is not None:
        here, wanted = (absolute(url).partition("?")[0] for url in (fleet.url, order.url))
        if here != wanted:
            raise Invalid(
                f"{order.target} is at {fleet.url}, and --url says {order.url}",
                hint="leave --url out; or write limpet.open() in the module, which then takes the one of --url",
            )


def _resolve(text: str) -> Any:
    """The object that `module:attribute` names; the module is looked for in the current directory first.

    Raises: Invalid; and what the module itself raises of Limpet's errors.
    """
    name, colon, path = text.partition(":")
    if name.endswith(".py") or "/" in name:
        dotted = name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise Invalid(f"{name} is a file, not a module", hint=f"write {dotted}:{path or 'fleet'}")
    if not (name and colon and path):
        raise Invalid(
            f"{text!r} names no attribute of a module",
            hint="write module:attribute, such as app:fleet; or a queue's name, with --handler",
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    found: Any = _import(name)
    module = found
    for part in path.split("."):
        if not hasattr(found, part):
            known = [
                f"{name}:{each}" for each, value in vars(module).items() if isinstance(value, Fleet | TaskFunction)
            ]
            hint = f"it has {', '.join(known)}" if known else "it has no fleet and no task"
            raise Invalid(f"module {name!r} has no {path!r}", hint=hint)
        found = getattr(found, part)
    return found


def _import(name: str) -> ModuleType:
    with UserCall() as call:
        return importlib.import_module(name)
    error = call.error
    assert error is not None
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        raise Invalid(
            f"there is no module {error.name!r}", hint=f"run limpet where it can be imported; this is {os.getcwd()}"
        )
    place = _place(error)
    if isinstance(error, LimpetError) and not isinstance(error, Held):
        raise type(error)(f"{name} cannot be imported: {error}{place}", hint=error.hint)
    raise Invalid(f"{name} cannot be imported: {one_line(error)}{place}", hint=f"correct it; {NOTHING_CLAIMED}")


def _place(error: BaseException) -> str:
    """The innermost line of the user's own code that led to the error, as ` (file:line)`."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    places = [place for place in places if _is_users(place[0])]
    if isinstance(error, SyntaxError) and error.filename:
        places = [(error.filename, error.lineno or 0)]
    if not places:
        return ""
    file, line = places[-1]
    relative = os.path.relpath(file)
    return f" ({file if relative.startswith('..') else relative}:{line})"


def _is_users(file: str) -> bool:
    """Whether a file belongs neither to Python, nor to a package that was installed, nor to Limpet."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = sysconfig.get_paths()
    others = (ours, *(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")))
    return not file.startswith(("<", *(f"{other}{os.sep}" for other in others)))


# ---- Python's logging: what handlers log becomes lines of the worker's log, with their task ----


class _LogForward(logging.Handler):
    _plain = logging.Formatter()

    def __init__(self, send: Callable[[msgspec.Struct], None], label: str) -> None:
        super().__init__()
        self._send = send
        self._label = label

    def emit(self, record: logging.LogRecord) -> None:
        task = task_or_none()
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError) as error:
            message = f"{record.msg!r} does not fit its arguments {record.args!r}: {error}"
        raised = self._plain.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
        self._send(
            LogLine(
                at=datetime.fromtimestamp(record.created, UTC),
                worker=self._label,
                level=record.levelname,
                logger=record.name,
                message=message[:MESSAGE_CHARS_MAX],
                queue=task.queue if task else "",
                id=task.id if task else "",
                attempt=task.attempt if task else 0,
                traceback="\n".join(filter(None, (raised, record.stack_info)))[:MESSAGE_CHARS_MAX],
            )
        )


def set_up_logging(forward: logging.Handler, label: str, *, everything: bool) -> None:
    """Have `forward` handle records of level INFO and above, once the user's module is imported.

    A module that has set logging up keeps its handlers. With `everything` (`--log json`), `forward` replaces those that
    write to stderr or stdout, so that only JSON comes out there.

    Every record gets the attributes `limpet_task` (the task's id), `limpet_queue`, `limpet_attempt` and
    `limpet_worker`, for the formats of a user; outside a task the first three are empty.
    """
    make = logging.getLogRecordFactory()

    def with_task(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        task = task_or_none()
        record.limpet_task = task.id if task else ""
        record.limpet_queue = task.queue if task else ""
        record.limpet_attempt = task.attempt if task else 0
        record.limpet_worker = label
        return record

    logging.setLogRecordFactory(with_task)
    root = logging.getLogger()
    terminal = (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)
    own = [
        handler
        for handler in root.handlers
        if everything and isinstance(handler, logging.StreamHandler) and handler.stream in terminal
    ]
    for handler in own:
        root.removeHandler(handler)
    if root.handlers and not own:
        return
    if not own and root.level == logging.WARNING:  # Python's default, which the user has not chosen
        root.setLevel(logging.INFO)
        for name in CHATTY:
            if logging.getLogger(name).level == logging.NOTSET:
                logging.getLogger(name).setLevel(logging.WARNING)
    root.addHandler(forward)


def main(arguments: list[str]) -> int:
    """Run one worker process; the exit code."""
    control_fd, report_fd = map(int, arguments)
    with SignalPipe.catching(STOP_SIGNALS) as signals:
        return ChildProcess(control_fd, report_fd, signals, system()).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
