"""`limpet work`: run the tasks of a fleet, in any number of processes and threads."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from limpet.cli.options import JsonOption, UrlOption
from limpet.cli.output import complain, lines, print_json
from limpet.errors import Unavailable

if TYPE_CHECKING:
    from limpet.worker.protocol import Message, TaskCounts, WorkerOrder

EPILOG = lines(
    "Example: app.py has `fleet = limpet.open(...)` and functions under `@fleet.task()`",
    "$ limpet work app:fleet -p 4 -t 8",
    "Example: urgent tasks first, bulk only when there is nothing urgent",
    "$ limpet work app:fleet -q urgent -q bulk",
    "Example: a queue without a task of its own; the payload's fields are the function's arguments",
    "$ limpet work enrich --handler jobs.sites:enrich --url s3://acme/prod",
    "Example: in a cron job or in CI, do what waits and leave",
    "$ limpet work app:fleet --burst --json",
    "Exit codes: 0 stopped by a signal, or nothing left (--burst, --until-empty), even if tasks failed; 1 the store "
    "failed, or a worker had to be killed; 2 wrong usage, or the module cannot be used: then nothing was claimed.",
)


PROCESSES, REPORTS = "Processes", "Reports"


class LogFormat(StrEnum):
    """How a line of the log looks."""

    text = "text"
    json = "json"


TargetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODULE:ATTRIBUTE|QUEUE",
        show_default=False,
        help="A fleet or a task, found in the current directory, such as app:fleet. With --handler: a queue's name.",
    ),
]
QueueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="NAME",
        show_default=False,
        help="Only this queue; repeatable: an earlier one always goes first. Without it, all tasks take turns.",
    ),
]
HandlerOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        show_default=False,
        help="The function that runs the queue's tasks.",
    ),
]
ProcessesOption = Annotated[
    int,
    typer.Option(
        "--processes", "-p", metavar="N", min=1, max=1000, rich_help_panel=PROCESSES, help="Worker processes."
    ),
]
ThreadsOption = Annotated[
    int,
    typer.Option(
        "--threads",
        "-t",
        metavar="N",
        min=1,
        max=1000,
        rich_help_panel=PROCESSES,
        help="Tasks at once in each process.",
    ),
]
BurstOption = Annotated[
    bool,
    typer.Option("--burst", rich_help_panel=PROCESSES, help="Leave when nothing can be claimed now."),
]
UntilEmptyOption = Annotated[
    bool,
    typer.Option(
        "--until-empty",
        rich_help_panel=PROCESSES,
        help="Leave when nothing waits, rests or runs.",
    ),
]
MaxTasksOption = Annotated[
    int | None,
    typer.Option(
        "--max-tasks-per-child",
        metavar="N",
        min=1,
        rich_help_panel=PROCESSES,
        help="Replace a process after N tasks (memory leaks).",
    ),
]
GraceOption = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        min=0.0,
        rich_help_panel=PROCESSES,
        help="Time for running tasks to end after SIGTERM or Ctrl-C; then they are handed back. Keep it below your "
        "platform's: Kubernetes and ECS 30 s, docker 10 s.",
    ),
]
LogOption = Annotated[
    LogFormat,
    typer.Option("--log", rich_help_panel=REPORTS, help="One line for each event, on stderr, in this form."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", rich_help_panel=REPORTS, help="Log only what went wrong.")]
ProgressOption = Annotated[
    bool,
    typer.Option(
        "--progress",
        rich_help_panel=REPORTS,
        help="One live line with rate, failures and time to go. Implies --quiet.",
    ),
]

EventsOption = Annotated[
    bool,
    typer.Option(
        "--events",
        rich_help_panel=REPORTS,
        help="Record every run for `limpet events` (at most 2 % more requests); or LIMPET_EVENTS=1.",
    ),
]


def work(
    target: TargetArgument = None,
    queue: QueueOption = None,
    handler: HandlerOption = None,
    url: UrlOption = None,
    processes: ProcessesOption = 1,
    threads: ThreadsOption = 1,
    burst: BurstOption = False,
    until_empty: UntilEmptyOption = False,
    max_tasks: MaxTasksOption = None,
    grace: GraceOption = 25.0,
    log: LogOption = LogFormat.text,
    quiet: QuietOption = False,
    progress: ProgressOption = False,
    events: EventsOption = False,
    json: JsonOption = False,
) -> None:
    """Run tasks: claim what waits in a queue, call its function, record the result.

    Any number of machines may do this at once. A task is retried when its function raises, and given up after
    max_attempts; if a worker dies, another one takes its tasks over.

    SIGTERM, SIGINT and SIGHUP stop it: nothing more is claimed, and running tasks have --grace seconds to end. A second
    signal hands them back at once. A worker process that dies is replaced; if limpet itself is killed, its workers hand
    back what they have and end.
    """
    from limpet.worker.protocol import WorkerOrder

    order = WorkerOrder(
        target=target,
        handler=handler,
        url=url,
        queues=queue or [],
        threads=threads,
        burst=burst or until_empty,
        max_tasks=max_tasks,
        grace_s=grace,
        routine=not (quiet or progress),
        count=progress,
        events=events,
        until_empty=until_empty,
        log_json=log is LogFormat.json,
    )
    _run(order, processes, json=json)


def _run(order: WorkerOrder, processes: int, *, json: bool) -> None:
    from limpet.cli.work_log import Log
    from limpet.runtime import system
    from limpet.worker.pool import ProcessPool

    runtime = system()
    log = Log(runtime, as_json=order.log_json, progress=order.count)

    def hear(message: Message) -> None:
        log.tell(message)
        log.show(pool.counts(), message)

    pool = ProcessPool(order, processes, runtime, hear, quiet_stdout=json, printed=log.printed if log.is_live else None)
    began_s = runtime.elapsed_s()
    try:
        pool.run()
    finally:
        log.close()
    seconds = runtime.elapsed_s() - began_s
    counts = pool.counts()
    if json:
        print_json({**_facts(counts), "seconds": round(seconds, 3), "restarts": pool.restarts})
    elif not order.log_json:
        log.total(counts, seconds)
    if pool.trouble is not None:
        raise typer.Exit(complain(Unavailable(pool.trouble, hint="nothing is lost: what was claimed comes back")))


def _facts(counts: TaskCounts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in ("done", "failed", "retried", "lost", "handed_back")}
