"""`limpet queue push`: one task, or a file of them."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING, Annotated

import typer

import limpet
from limpet.cli import answer, lines, many, progress_bar, say
from limpet.cli.options import (
    DELAY_HELP,
    STDIN,
    JsonOption,
    QueueArgument,
    UrlOption,
    duration_s,
    open_input,
    refuse_path,
)
from limpet.errors import Invalid, LimpetError

if TYPE_CHECKING:
    from limpet.app.push_file import FilePush
    from limpet.queue import Queue

EPILOGS = {
    "push": lines(
        "Example: one task; the same task at most once; many, a hundred to an object",
        """$ limpet queue push enrich '{"domain": "a.com"}' -u s3://acme/prod""",
        """$ limpet queue push enrich '{"domain": "a.com"}' --id a.com@2026-11 --delay 15m -u s3://acme/prod""",
        "$ limpet queue push enrich --file domains.jsonl -u s3://acme/prod",
        "Exit codes: 0 pushed, or the id was pushed before; 1 the store refused; 2 wrong usage, or bad JSON.",
    )
}


def push(
    queue: QueueArgument,
    payload: Annotated[str | None, typer.Argument(metavar="JSON", help="The task: a JSON object.")] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="The task's name. A second push of it changes nothing.")
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option("--delay", metavar="TIME", parser=duration_s, help=f"Run it after this time, {DELAY_HELP}."),
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="JSON objects, one a line; - is stdin.")
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=1000, help="How many tasks of a file share an object.")
    ] = 100,
    create: Annotated[
        bool, typer.Option("--create/--no-create", help="Whether a fleet or a queue that is not there is made.")
    ] = True,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Push a task, or a file of tasks. The queue is made by its first push, and stderr then says "(new queue)".

    A task is a JSON object of at most 256 KiB. Once the command has ended, no crash loses it.

    Tasks of a file go in batches: 100 tasks in one object cost a hundredth of 100 objects. They get ids of their own
    and are not deduplicated. At the first bad line it stops: nothing of that line's batch is pushed, and the line is
    named.
    """
    from limpet.app.push_file import EXAMPLE, parse_payload

    if (payload is None) is (file is None):
        raise Invalid("say what to push: JSON, or --file", hint=EXAMPLE if file is None else "one of the two")
    if file is not None:
        if id is not None or delay is not None:
            raise Invalid("--id and --delay are for a single task, not for --file", hint="leave them out")
        with open_input(file) as stream:
            handle, remark = _queue(url, queue, create=create)
            _push_file(handle, stream, file, batch=batch, json=json)
        _remark(remark)
        return
    assert payload is not None
    task = parse_payload(payload, what="the payload")
    handle, remark = _queue(url, queue, create=create)
    pushed = handle.push(task, id=id, delay_s=delay or 0.0)
    _remark(remark)
    new, old = f"pushed {pushed.id} to {queue!r}", f"{pushed.id!r} was pushed to {queue!r} before; nothing was changed"
    answer(pushed, new if pushed.created else old, json=json)


def _queue(url: str | None, name: str, *, create: bool) -> tuple[Queue, str]:
    """The queue to push to, and what to say if it is new, or its fleet is: it may be a typo.   Cost: 1 LIST more."""
    from limpet.app.fleet import is_used

    if create:
        refuse_path(name, "queue", lambda: _queue(url, name, create=False))
    fleet = limpet.open(url, create=create).check()
    queue = fleet.queue(name, create=create)
    if fleet.is_new:
        return queue, f"(new fleet at {fleet.url})"
    return queue, "(new queue)" if create and not is_used(fleet, queue) else ""


def _remark(text: str) -> None:
    if text:
        say(text, err=True)


def _push_file(queue: Queue, stream: IO[bytes], file: str, *, batch: int, json: bool) -> None:
    from limpet.app.push_file import BadLine, FilePush

    work = FilePush(queue, batch)
    try:
        size = 0 if file == STDIN else os.path.getsize(file)
        with progress_bar("pushing", total=size or None) as update:
            for _ in work.run(stream):
                update(completed=work.read_bytes, description=f"{many(work.pushed, 'task')} pushed")
    except KeyboardInterrupt:
        say(f"interrupted: {_so_far(work)}", err=True)
        raise
    except BadLine as error:
        hint = _go_on(work, file) if work.pushed else error.hint
        raise Invalid(f"{error}; {_so_far(work)}", hint=hint) from None
    except LimpetError as error:
        raise type(error)(f"{error}; {_so_far(work)}; more may have been", hint=error.hint) from error
    facts = {name: getattr(work, name) for name in ("pushed", "batches", "first_id", "last_id")}
    text = f"pushed {many(work.pushed, 'task')} to {queue.name!r} in {many(work.batches, 'batch', 'batches')}"
    nothing = "the file has no line; nothing was pushed"
    answer({"queue": queue.name, **facts}, text if work.pushed else nothing, json=json)


def _so_far(work: FilePush) -> str:
    if not work.pushed:
        return "nothing was pushed"
    return f"{many(work.pushed, 'task')} before line {work.next_line} went in"


def _go_on(work: FilePush, file: str) -> str:
    if file == STDIN:
        return f"correct it, and push from line {work.next_line} on"
    return f"correct it, then: tail -n +{work.next_line} {file} | limpet queue push {work.queue.name} --file -"
