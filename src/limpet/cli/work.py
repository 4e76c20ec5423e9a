"""`limpet work`: run the tasks of a fleet, in any number of processes and threads; and `limpet supervise`, for a node
that works offline: sync its own directory with the bucket."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from limpet.cli import ago, complain, console, print_dated, print_json, printable_json, say, table
from limpet.cli.options import ENV_URL, JsonOption, SignalFlag, UrlOption, is_typed, kept_s
from limpet.cli.parse import Argument, Context, Exit, Option
from limpet.kernel import records
from limpet.kernel.errors import Unavailable
from limpet.kernel.records import printable
from limpet.kernel.runtime import Runtime
from limpet.kernel.wording import many
from limpet.worker.protocol import ROUTINE, Backlog, EventKind, LogLine, Message, TaskCounts, WorkerEvent, WorkerOrder

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

    from limpet.queue.sync import Collision, Cycle, SyncEvent


PROCESSES, REPORTS = "Processes", "Reports"


class LogFormat(StrEnum):
    """How a line of the log looks."""

    text = "text"
    json = "json"


@dataclass
class WorkOptions:
    """The options of `limpet work`, in the order of its help."""

    target: Annotated[
        str | None,
        Argument(
            metavar="MODULE:ATTRIBUTE|QUEUE",
            help="A fleet or a task, found in the current directory, such as app:fleet. With --handler: "
            "a queue's name.",
        ),
    ] = None
    queue: Annotated[
        list[str] | None,
        Option(
            "-q",
            metavar="NAME",
            names="queue",
            help="Only this queue; repeatable: an earlier one always goes first. Without it, all tasks take turns.",
        ),
    ] = None
    handler: Annotated[
        str | None, Option(metavar="MODULE:FUNCTION", help="The function that runs the queue's tasks.")
    ] = None
    url: UrlOption = None
    processes: Annotated[int, Option("-p", min=1, max=1000, panel=PROCESSES, help="Worker processes.")] = 1
    threads: Annotated[int, Option("-t", min=1, max=1000, panel=PROCESSES, help="Tasks at once in each process.")] = 1
    burst: Annotated[bool, Option(panel=PROCESSES, help="Exit when nothing can be claimed now.")] = False
    until_empty: Annotated[bool, Option(panel=PROCESSES, help="Exit when nothing waits, except for signals.")] = False
    max_tasks: Annotated[
        int | None,
        Option("--max-tasks-per-child", min=1, panel=PROCESSES, help="Replace a process after N tasks (memory leaks)."),
    ] = None
    grace: Annotated[
        float,
        Option(
            metavar="SECONDS",
            min=0.0,
            panel=PROCESSES,
            help="Time for running tasks to end after SIGTERM or Ctrl-C; then they are handed back. Keep it below your "
            "platform's: Kubernetes and ECS 30 s, docker 10 s.",
        ),
    ] = 25.0
    poll_s: Annotated[
        float | None,
        Option(
            metavar="SECONDS",
            min=0.1,
            panel=PROCESSES,
            help="How often an idle process asks a bucket whether something was pushed. Default: the task's poll_s, 2.",
        ),
    ] = None
    log: Annotated[LogFormat, Option(panel=REPORTS, help="One line for each event, on stderr, in this form.")] = (
        LogFormat.text
    )
    quiet: Annotated[bool, Option(panel=REPORTS, help="Log only what went wrong.")] = False
    progress: Annotated[
        bool, Option(panel=REPORTS, help="Live counts, rate and time to go, by queue and worker. Implies --quiet.")
    ] = False
    events: Annotated[
        bool,
        Option(
            panel=REPORTS, help="Record every run for `limpet events` (at most 2 % more requests); or LIMPET_EVENTS=1."
        ),
    ] = False
    metrics_port: Annotated[
        str | None,
        Option(
            metavar="[HOST:]PORT",
            panel=REPORTS,
            help="Serve Prometheus metrics of these processes; on this machine only, unless HOST is 0.0.0.0.",
        ),
    ] = None
    reload: Annotated[
        bool,
        Option(
            panel=PROCESSES,
            help="Start the processes again when a Python file below this directory changes. For development.",
        ),
    ] = False
    json: JsonOption = False


def work(context: Context, options: WorkOptions) -> None:
    """Run tasks: claim what waits in a queue, call its function, record the result.

    Any number of machines may do this at once. A task is retried when its function raises, and given up after
    max_attempts; if a worker dies, another one takes its tasks over.

    SIGTERM, SIGINT and SIGHUP stop it: nothing more is claimed, and running tasks have --grace seconds to end. A second
    signal hands them back at once. A worker process that dies is replaced; if limpet itself is killed, its workers hand
    back what they have and end.

    Example: app.py has `fleet = limpet.open(...)` and functions under `@fleet.task()`
    $ limpet work app:fleet -p 4 -t 8
    Example: urgent tasks first, bulk only when there is nothing urgent
    $ limpet work app:fleet -q urgent -q bulk
    Example: a queue without a task function; the payload's fields are the function's arguments
    $ limpet work enrich --handler jobs.sites:enrich --url s3://acme/prod
    Example: in a cron job or in CI, run what waits and exit
    $ limpet work app:fleet --burst --json
    Exit codes: 0 stopped by a signal, or nothing left (--burst, --until-empty), even if tasks failed; 1 the store
      failed, or a worker had to be killed; 2 wrong usage, or the module cannot be used: then nothing was claimed.
    """
    metrics, quiet = options.metrics_port is not None, options.quiet or options.progress
    order = WorkerOrder(
        target=options.target,
        handler=options.handler,
        url=options.url,
        queues=options.queue or [],
        threads=options.threads,
        burst=options.burst or options.until_empty,
        max_tasks=options.max_tasks,
        grace_s=options.grace,
        routine=metrics or options.progress or not quiet,
        count=options.progress,
        events=options.events,
        until_empty=options.until_empty,
        log_json=options.log is LogFormat.json,
        poll_s=options.poll_s,
        requests=metrics,
        url_is_typed=is_typed(context, "url"),
    )
    with _watching(options.reload) as reload_fd:
        _run(order, options, reload_fd, quiet=quiet)


def _run(order: WorkerOrder, options: WorkOptions, reload_fd: int | None, *, quiet: bool) -> None:
    from limpet.kernel.runtime import system
    from limpet.worker.pool import ProcessPool

    runtime = system()
    with _measuring(options.metrics_port, order.url) as measure:
        log = Log(runtime, as_json=order.log_json, progress=order.count, routine=not quiet)

        def hear(message: Message) -> None:
            counts = pool.counts()
            measure(message, counts)
            log.hear(message, counts)

        printed, stdout = log.printed if log.live else None, options.json
        pool = ProcessPool(
            order, options.processes, runtime, hear, quiet_stdout=stdout, printed=printed, reload_fd=reload_fd
        )
        began_s = runtime.elapsed_s()
        try:
            pool.run()
        finally:
            log.close()
    seconds = runtime.elapsed_s() - began_s
    counts = log.totals(pool.counts())
    if options.json:
        facts = {name: getattr(counts, name) for name in ENDINGS}
        print_json({**facts, "seconds": round(seconds, 3), "restarts": pool.restarts})
    elif not order.log_json:
        log.line(f"{in_words(counts)} in {ago(seconds)}")
    if pool.trouble is not None:
        raise Exit(complain(Unavailable(pool.trouble, hint="nothing is lost: what was claimed comes back")))


@contextmanager
def _watching(wanted: bool) -> Iterator[int | None]:
    """The pipe that gets a byte when a source file below the current directory changes; None if that is not wanted."""
    if not wanted:
        yield None
        return
    from limpet.kernel.runtime import system
    from limpet.worker.pool import SourceWatch

    watch = SourceWatch(os.getcwd(), system())
    watch.start()
    try:
        yield watch.fd
    finally:
        watch.close()


@contextmanager
def _measuring(port: str | None, url: str | None) -> Iterator[Callable[[Message, TaskCounts], None]]:
    """A function that takes the messages of worker processes; they are served to Prometheus while the block lasts."""
    if port is None:
        yield lambda message, counts: None
        return
    from limpet.app.metrics import ScrapePlace, WorkerMetrics, provider_priced, serving

    address = ScrapePlace.of(port)
    metrics = WorkerMetrics(provider_priced(url or os.environ.get(ENV_URL)))
    with serving(metrics.registry, address) as found:
        say(f"metrics on {found}", err=True)
        yield metrics.hear


COLOURS = {
    "done": "green",
    "reload": "cyan",
    "retry": "yellow",
    "warning": "yellow",
    "overdue": "yellow",
    "failed": "red",
    "lost": "red",
    "trouble": "red",
    "crashed": "red",
}
LEVELS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}
SAY_EVERY_S = 10.0
DRAW_EVERY_S = 0.1
PROGRESS_ROWS = 8
ENDS: frozenset[EventKind] = frozenset(("done", "failed", "retry", "suspended", "lost", "handed_back"))
"""The events that end a run of a task."""
ENDINGS = ("done", "failed", "retried", "suspended", "lost", "handed_back")
"""The counts of those, in `TaskCounts`."""


def text_line(event: WorkerEvent) -> str:
    """An event for people. Nothing that a task or an error says can break the line or the terminal."""
    words = [f"{event.at:%H:%M:%S}Z", f"{event.kind.replace('_', ' '):<11}"]
    if event.id:
        words += [event.queue, event.id, f"attempt {event.attempt}"] if event.attempt else [event.queue, event.id]
    elif event.queue:
        words.append(event.queue)
    if event.seconds is not None:
        words.append(f"{event.seconds:.3f} s")
    if event.after_s is not None:
        words.append(f"again in {event.after_s:g} s")
    words.append(f"[{event.worker}]")
    return printable(" ".join(words) + (f": {event.note}" if event.note else ""))


def log_text(line: LogLine) -> str:
    """A handler's log record for people; its traceback follows on further lines, which are marked."""
    words = [f"{line.at:%H:%M:%S}Z", f"{'log':<11}"]
    words += [line.queue, line.id, f"attempt {line.attempt}"] if line.id else []
    first = printable(f"{' '.join(words)} [{line.worker}]: {line.level} {line.logger}: {line.message}")
    return "\n".join([first, *(f"| {printable(each.expandtabs())}" for each in line.traceback.splitlines())])


def json_line(event: WorkerEvent | LogLine) -> str:
    """An event or log record for programs: `at`, `event`, `worker`, and the other fields that are set."""
    fields = msgspec.to_builtins(event)
    del fields["what"]
    text = records.encode({"at": fields.pop("at"), "event": fields.pop("kind", "log"), **fields}).decode()
    return printable_json(text)


def in_words(counts: TaskCounts) -> str:
    """The counts as text."""
    said = f"{counts.done:,} done, {counts.failed:,} failed, {counts.retried:,} retried"
    extra = {"suspended": counts.suspended, "lost": counts.lost, "handed back": counts.handed_back}
    return said + "".join(f", {count:,} {name}" for name, count in extra.items() if count)


def left_of(backlog: tuple[int, int] | None, counts: TaskCounts) -> int | None:
    """The number of tasks left; None if unknown, or if the count is outdated: more have ended since than it had.

    `backlog`: the tasks that waited when they were counted, and those that had ended by then.
    """
    if backlog is None:
        return None
    waited, ended = backlog
    since = counts.ended - ended
    return waited - since if waited > since or waited == since == 0 else None


def progress_line(counts: TaskCounts, left: int | None) -> str:
    """The counts, the rate, and the remaining time."""
    said = f"{in_words(counts)} · {counts.in_flight} in flight · {counts.rate_per_s:,.1f}/s"
    if left is None:
        return said
    eta = f" · about {ago(left / counts.rate_per_s)} to go" if counts.rate_per_s and left else ""
    return f"{said} · {left:,} left{eta}"


_RunCounts = defaultdict[str, Any]
"""How many tasks ended in which way (`ENDINGS`), and the `seconds` that their runs took."""


class ProgressTable:
    """Counts by queue and by worker process, from the events of tasks."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._queues: dict[str, _RunCounts] = {}
        self._workers: dict[str, _RunCounts] = {}
        self._running: dict[str, tuple[str, str, float]] = {}
        """By thread: the queue and the id of the task that it runs, and since when."""

    def hear(self, event: WorkerEvent) -> None:
        """Count an event."""
        if event.kind == "crashed" and (gone := re.search(r"process (\d+)", event.note)):
            dead = f":{gone[1]}"
            self._running = {name: run for name, run in self._running.items() if not _process_of(name).endswith(dead)}
        if not event.id or event.kind not in ("started", *ENDS):
            return
        if event.kind == "started":
            self._running[event.worker] = (event.queue, event.id, self._runtime.elapsed_s())
            return
        self._running.pop(event.worker, None)
        ending = "retried" if event.kind == "retry" else event.kind
        for counts, name in ((self._queues, event.queue), (self._workers, _process_of(event.worker))):
            runs = counts.setdefault(name, _RunCounts(int))
            runs[ending] += event.tasks
            runs["seconds"] += event.seconds or 0.0  # a durable task's time is that of its runs between waits

    def totals(self, counts: TaskCounts) -> TaskCounts:
        """The counts that processes reported, as this table has them: those reports come later than the events."""
        summed = {name: sum(runs[name] for runs in self._queues.values()) for name in ENDINGS}
        return msgspec.structs.replace(counts, **summed, in_flight=len(self._running))

    def rendered(self, summary: str) -> Group:
        """The summary, the queues and the worker processes: those that run the most tasks, as far as there is room.

        Cells are `Text`: a line that is printed without markup draws this again without markup, too.
        """
        from rich.console import Group

        by_queue: dict[str, list[tuple[float, str]]] = {}
        by_worker: dict[str, list[tuple[float, str]]] = {}
        for thread, (queue, id_, since_s) in self._running.items():
            by_queue.setdefault(queue, []).append((since_s, id_))
            by_worker.setdefault(_process_of(thread), []).append((since_s, id_))
        return Group(
            self._rows("queue", self._queues, by_queue), self._rows("worker", self._workers, by_worker), summary
        )

    def _rows(self, title: str, counts: dict[str, _RunCounts], running: dict[str, list[tuple[float, str]]]) -> Table:
        from rich.text import Text

        figures = ("running", "done", "failed", "retried", "mean")
        listed = table(title, *figures, "longest now", right=figures)
        nothing, now_s = _RunCounts(int), self._runtime.elapsed_s()
        names = sorted(
            {*counts, *running},
            key=lambda name: (-len(running.get(name, ())), -counts.get(name, nothing)["done"], name),
        )
        for name in names[:PROGRESS_ROWS]:
            ways, runs = counts.get(name, nothing), running.get(name, [])
            ended = ways["done"] + ways["failed"] + ways["retried"]
            since_s, id_ = min(runs, default=(now_s, ""))
            listed.add_row(
                Text(printable(name)),
                Text(str(len(runs))),
                Text(f"{ways['done']:,}"),
                Text(f"{ways['failed']:,}", style="red" if ways["failed"] else ""),
                Text(f"{ways['retried']:,}"),
                Text(f"{ways['seconds'] / ended:.3f} s" if ended else "-"),
                Text(printable(f"{id_} {ago(now_s - since_s)}") if runs else ""),
            )
        if len(names) > PROGRESS_ROWS:
            listed.add_row(Text(f"and {len(names) - PROGRESS_ROWS} more", style="dim"))
        return listed


def _process_of(thread: str) -> str:
    return thread.rpartition("/")[0]


class Log:
    """Prints on stderr: stdout is for results."""

    def __init__(self, runtime: Runtime, *, as_json: bool, progress: bool, routine: bool = True) -> None:
        self._runtime = runtime
        self._routine = routine
        self._as_json = as_json
        self._progress = progress
        self._console = console(stderr=True)
        self._backlog: tuple[int, int] | None = None
        self._said_at_s = runtime.elapsed_s()
        self._table = ProgressTable(runtime)
        self.live: Live | None = None
        """The live line, which must not be broken by what handlers print."""
        if progress and sys.stderr.isatty():
            from rich.live import Live

            self.live = Live(console=self._console, auto_refresh=False, transient=True)
            self.live.start()

    def totals(self, counts: TaskCounts) -> TaskCounts:
        """The counts to show: those of the table, where it is shown."""
        return self._table.totals(counts) if self.live is not None else counts

    def hear(self, message: Message, counts: TaskCounts) -> None:
        """Print an event or log record; update the progress line, if it is wanted and due."""
        if self.live is not None and isinstance(message, WorkerEvent):
            self._table.hear(message)
        counts = self.totals(counts)
        if isinstance(message, WorkerEvent) and message.kind in ROUTINE and not self._routine:
            pass
        elif isinstance(message, (WorkerEvent, LogLine)) and self._as_json:
            self.line(json_line(message))
        elif isinstance(message, LogLine):
            self.line(log_text(message), LEVELS.get(message.level))
        elif isinstance(message, WorkerEvent):
            self.line(text_line(message), COLOURS.get(message.kind))
        elif isinstance(message, Backlog):
            self._backlog = (message.pending, counts.ended)
        now_s = self._runtime.elapsed_s()
        every_s = DRAW_EVERY_S if self.live else SAY_EVERY_S
        if not self._progress or now_s - self._said_at_s < every_s:
            return
        self._said_at_s = now_s
        left = left_of(self._backlog, counts)
        if self.live is not None:
            self.live.update(self._table.rendered(progress_line(counts, left)), refresh=True)
        else:
            self.line(progress_line(counts, left))

    def printed(self, line: bytes) -> None:
        """Print a line of a handler above the live line. Where stdout is no terminal, it goes there unchanged."""
        if sys.stdout.isatty():
            self.line(printable(line.decode(errors="backslashreplace")))
        else:
            os.write(1, line + b"\n")

    def close(self) -> None:
        """Remove the live line."""
        if self.live is not None:
            self.live.stop()

    def line(self, text: str, style: str | None = None) -> None:
        """Print a line."""
        if self._console.is_terminal:
            self._console.print(text, style=style, soft_wrap=True, markup=False, highlight=False)
        else:
            sys.stderr.write(f"{text}\n")  # in one write: what handlers print must not come in between
            sys.stderr.flush()


# ---- limpet supervise ----


@dataclass
class SuperviseOptions:
    """The options of `limpet supervise`, in the order of its help."""

    local: Annotated[Path, Option(metavar="DIR", help="The node's own fleet: a directory on this machine.")]
    remote: Annotated[str, Option(metavar="URL", envvar="LIMPET_REMOTE", help="The bucket that all nodes share.")]
    up: Annotated[float, Option(metavar="SECONDS", min=1.0, help="How often to send what was done here.")] = 300.0
    down: Annotated[float, Option(metavar="SECONDS", min=1.0, help="How often to apply what the others did.")] = 3600.0
    node: Annotated[
        str | None,
        Option(
            metavar="NAME",
            show_default="made at the first start, then kept",
            help="The name of this node in the bucket.",
        ),
    ] = None
    queue: Annotated[
        list[str] | None,
        Option("-q", metavar="NAME", show_default="all", help="Pull only this queue. May be repeated."),
    ] = None
    receipts: Annotated[
        float | None,
        Option(
            metavar="AGE",
            parser=kept_s,
            show_default="30d",
            help="How long the supervisor keeps receipts when it sweeps: a time like 60d, or forever. As the "
            "workers do.",
        ),
    ] = None
    once: Annotated[bool, Option(help="One cycle in both directions, then exit.")] = False
    create: Annotated[bool, Option(help="Set up a new fleet at --remote if there is none.")] = False
    rehome: Annotated[bool, Option(help="Join the fleet at --remote, though this node belongs to another one.")] = False
    json: JsonOption = False


def supervise(options: SuperviseOptions) -> None:
    """Let this machine work offline on its own directory, and sync that with the bucket at intervals.

    Everything that is pushed or done on a node reaches the bucket and every other node; a completion is never undone.
    Two nodes may run one task, because they learn of each other late: that is reported as a collision.

    The first start marks both places as supervised. Processes that opened one of them before that must be restarted:
    they do not journal what they do.

    A node belongs to the fleet that it first meets, by the id in limpet.json. At another one it stops; --rehome joins
    that, and sends it all that is here. After a restore of its fleet from a backup it sends everything again by itself.

    Example: the first node of a new fleet
    $ limpet supervise --local ~/fleet --remote s3://acme/prod --create
    Example: a Raspberry Pi that works with or without a network
    $ limpet supervise --local ~/fleet --remote s3://acme/prod
    $ limpet work app:fleet --url ~/fleet
    Example: bring everything up to date once, in a cron job, or before the machine is switched off
    $ limpet supervise --local ~/fleet --remote s3://acme/prod --once
    Signals: on SIGTERM, SIGINT and SIGHUP it finishes the cycle and exits; on SIGUSR1 it syncs at once.
    Exit codes: 0 stopped by a signal, or (--once) in sync; 1 refused, no fleet at --remote, or (--once) the bucket
      cannot be reached; 2 wrong usage, or another fleet; 70 the machine slept and another supervisor took over; 75
      another supervisor works on the directory.
    """
    from limpet.app.nodes import home_of, open_node, open_shared
    from limpet.kernel.runtime import system
    from limpet.queue import Policy
    from limpet.queue.sync import Cycle, Supervisor
    from limpet.worker.protocol import STOP_SIGNALS, SignalPipe

    once, receipts = options.once, options.receipts

    def write(event: SyncEvent) -> None:
        if once or not isinstance(event, Cycle) or not event.quiet:
            print_dated(*_shown(event), json=options.json)

    with SignalPipe.catching((*STOP_SIGNALS, signal.SIGUSR1)) as signals:
        stop = SignalFlag(signals)
        here = open_node(options.local, options.remote)
        there = open_shared(options.remote, stop, write, once=once, create=options.create)
        if there is None:
            return
        supervisor = Supervisor(
            here.store,
            there.store,
            system(),
            node=options.node,
            queues=options.queue,
            up_s=options.up,
            down_s=options.down,
            policy=Policy() if receipts is None else Policy(retention_s=receipts),
            home=partial(home_of, there),
            rehome=options.rehome,
        )
        stop.on_usr1 = supervisor.ask
        if once:
            supervisor.once(write)
        else:
            supervisor.run(stop, write)


def _shown(event: SyncEvent) -> tuple[dict[str, Any], list[str]]:
    from limpet.queue.sync import Blocked, Disconnected, Reconnected

    match event:
        case Disconnected(error):
            fields = {"event": "away", "error": str(error), "hint": error.hint}
            return fields, [f"away  {error}; the node keeps working offline"]
        case Blocked(error):
            fields = {"event": "blocked", "error": str(error), "hint": error.hint}
            return fields, [f"stuck {error}; it is retried", *([f"      {error.hint}"] if error.hint else [])]
        case Reconnected(after_s):
            return {"event": "back", "after_s": round(after_s, 1)}, [f"back  after {ago(after_s)}"]
        case cycle:
            fields = asdict(cycle)
            lines = [f"{cycle.direction:<5} {_counts(cycle)}", *map(_collision, cycle.collisions)]
            # Names may come from another program: `printable` keeps control characters from the terminal.
            lines += [f"bad   {printable(name)} cannot be read; the rest is synced" for name in cycle.unreadable]
            return {"event": fields.pop("direction"), **fields}, lines


def _counts(cycle: Cycle) -> str:
    kinds = [(cycle.pushes, "push", "pushes"), (cycle.ends, "end", "ends"), (cycle.leases, "lease", "leases")]
    kinds.append((cycle.dropped, "dropped", "dropped"))
    said = ", ".join(many(*kind) for kind in kinds if kind[0]) or "nothing new"
    return f"{said}, by a full pull" if cycle.fresh else said


def _collision(collision: Collision) -> str:
    what = {
        "run": "was run twice",
        "lease": "is held here and elsewhere",
        "payload": "was pushed with two payloads, of which one counts",
    }[collision.kind]
    other = f" ({printable(collision.other)})" if collision.other else ""
    return f"twice task {collision.entry!r} of queue {collision.queue!r} {what}{other}"
