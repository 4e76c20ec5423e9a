"""`limpet work`: run the tasks of a fleet, in any number of processes and threads."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from limpet.cli.shared import JsonOption, UrlOption, complain, lines, print_json
from limpet.errors import Unavailable

if TYPE_CHECKING:
    from limpet.cli.work_wire import Message, Order
    from limpet.queue.work import Tally

__all__ = ["EPILOG", "LogFormat", "work"]

EPILOG = lines(
    "Example: app.py has `fleet = limpet.open(...)` and functions under `@fleet.task()`",
    "$ limpet work app:fleet -p 4 -t 8",
    "Example: urgent tasks first, bulk only when there is nothing urgent",
    "$ limpet work app:fleet -q urgent -q bulk",
    "Example: a queue without a task of its own; the payload's fields are the function's arguments",
    "$ limpet work enrich --handler jobs.sites:enrich --url s3://acme/prod",
    "Example: in a cron job or in CI, do what waits and leave",
    "$ limpet work app:fleet --burst --json",
    "Exit codes: 0 told to stop, or nothing left (--burst, --until-empty), even if tasks failed; 1 the store failed, "
    "or a worker had to be killed; 2 wrong usage, or the module cannot be used: then nothing was claimed.",
)


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
        help="Work only on this one. Give it several times for several: an earlier one goes first, always. Without it, "
        "all of the fleet's tasks take turns.",
    ),
]
HandlerOption = Annotated[
    str | None,
    typer.Option(metavar="MODULE:FUNCTION", show_default=False, help="The function that runs the queue's tasks."),
]
ProcessesOption = Annotated[int, typer.Option("--processes", "-p", min=1, max=1000, help="Worker processes.")]
ThreadsOption = Annotated[
    int, typer.Option("--threads", "-t", min=1, max=1000, help="Tasks at once in each process, one a thread.")
]
BurstOption = Annotated[
    bool,
    typer.Option("--burst", help="Leave when nothing can be claimed, without waiting for tasks that rest."),
]
UntilEmptyOption = Annotated[
    bool, typer.Option("--until-empty", help="As --burst, but wait for tasks that rest, or that others hold, to end.")
]
MaxTasksOption = Annotated[
    int | None,
    typer.Option(
        "--max-tasks-per-child",
        min=1,
        show_default="no limit",
        help="Put a new process in a worker's place after so many tasks, for handlers that leak memory.",
    ),
]
GraceOption = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        min=0.0,
        help="How long running tasks may go on after SIGTERM or Ctrl-C. What is not done then is handed back, with its "
        "attempt restored. Keep it below what your platform waits: Kubernetes and ECS 30 s, docker stop 10 s.",
    ),
]
LogOption = Annotated[LogFormat, typer.Option("--log", help="One line for each event, on stderr, in this form.")]
QuietOption = Annotated[
    bool, typer.Option("--quiet", help="Say nothing of tasks that start and succeed; only of what went wrong.")
]
ProgressOption = Annotated[
    bool,
    typer.Option(
        "--progress",
        help="Show rate, tasks in flight, failures and the time to go in one live line. Implies --quiet. Counting what "
        "is left lists the queues now and then.",
    ),
]

EventsOption = Annotated[
    bool,
    typer.Option(
        "--events",
        help="Note every run in the fleet's ledger, for at most 2 % more requests. LIMPET_EVENTS=1 does the same.",
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
    """Run tasks: claim what waits in a queue, call its function, record what came of it.

    Any number of machines may do this at once. A task is retried when its function raises, and given up after
    max_attempts; if a worker dies, another one takes its tasks over.

    SIGTERM, SIGINT and SIGHUP stop it: nothing more is claimed, and running tasks have --grace seconds to end. A second
    signal hands them back at once. A worker process that dies is replaced; if limpet itself is killed, its workers hand
    back what they have and end.
    """
    from limpet.cli.work_wire import Order

    order = Order(
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


def _run(order: Order, processes: int, *, json: bool) -> None:
    from limpet.cli.work_crew import Crew
    from limpet.cli.work_log import Log
    from limpet.runtime import system

    runtime = system()
    log = Log(runtime, as_json=order.log_json, progress=order.count)

    def hear(message: Message) -> None:
        log.tell(message)
        log.show(crew.tally(), message)

    crew = Crew(order, processes, runtime, hear, quiet_stdout=json, printed=log.printed if log.is_live else None)
    began_s = runtime.elapsed_s()
    try:
        crew.run()
    finally:
        log.close()
    seconds = runtime.elapsed_s() - began_s
    tally = crew.tally()
    if json:
        print_json({**_facts(tally), "seconds": round(seconds, 3), "restarts": crew.restarts})
    elif not order.log_json:
        log.total(tally, seconds)
    if crew.trouble is not None:
        raise typer.Exit(complain(Unavailable(crew.trouble, hint="nothing is lost: what was claimed comes back")))


def _facts(tally: Tally) -> dict[str, int]:
    return {name: getattr(tally, name) for name in ("done", "failed", "retried", "lost", "handed_back")}
