"""`limpet queue push`: one task, or a file of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from limpet.cli.options import DELAY_HELP, JsonOption, QueueArgument, UrlOption, duration_s, opened
from limpet.cli.output import console, lines, many, print_json, say
from limpet.errors import Invalid, LimpetError, Missing

if TYPE_CHECKING:
    from limpet.queue import Queue

EPILOG = lines(
    "Example: one task; the same task at most once; many, a hundred to an object",
    """$ limpet queue push enrich '{"domain": "a.com"}' -u s3://acme/prod""",
    """$ limpet queue push enrich '{"domain": "a.com"}' --id a.com@2026-11 --delay 15m -u s3://acme/prod""",
    "$ limpet queue push enrich --file domains.jsonl -u s3://acme/prod",
    "Exit codes: 0 pushed, or the id was pushed before; 1 the store refused; 2 wrong usage, or bad JSON.",
)

CHUNK_BATCHES = 16
CHUNK_BYTES_MAX = 16 * 1024 * 1024
STDIN = "-"
EXAMPLE = """quote it for the shell: '{"domain": "a.com"}'"""
OTHERWHERE = "put the data into an object of its own and its name into the task"


def push(
    queue: QueueArgument,
    payload: Annotated[
        str | None, typer.Argument(metavar="JSON", show_default=False, help="The task: a JSON object.")
    ] = None,
    id: Annotated[
        str | None,
        typer.Option("--id", show_default=False, help="The task's name. A second push of it changes nothing."),
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(
            "--delay", metavar="TIME", parser=duration_s, show_default=False, help=f"Not before so long, {DELAY_HELP}."
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", show_default=False, help="JSON objects, one a line; - is stdin."),
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
    if (payload is None) is (file is None):
        raise Invalid("say what to push: JSON, or --file", hint=EXAMPLE if file is None else "one of the two")
    if file is not None:
        if id is not None or delay is not None:
            raise Invalid("--id and --delay are for a single task, not for --file", hint="leave them out")
        with _lines_of(file) as stream:
            handle, remark = _queue(url, queue, create=create)
            _push_file(handle, stream, file, batch=batch, json=json)
        _remark(remark)
        return
    assert payload is not None
    task = parse_payload(payload, what="the payload")
    handle, remark = _queue(url, queue, create=create)
    pushed = handle.push(task, id=id, delay_s=delay or 0.0)
    _remark(remark)
    if json:
        print_json(pushed)
    elif pushed.created:
        say(f"pushed {pushed.id} to {queue!r}")
    else:
        say(f"{pushed.id!r} was pushed to {queue!r} before; nothing was changed")


def _queue(url: str | None, name: str, *, create: bool) -> tuple[Queue, str]:
    """The queue to push to, and what to say if it is new, or its fleet is: it may be a typo.   Cost: 1 LIST more."""
    from limpet.app.fleet import is_used

    fleet = opened(url, create=create)
    queue = fleet.queue(name, create=create)
    if fleet.is_new:
        return queue, f"(new fleet at {fleet.url})"
    return queue, "(new queue)" if create and not is_used(fleet, queue) else ""


def _remark(text: str) -> None:
    if text:
        say(text, err=True)


def parse_payload(text: str | bytes, *, what: str) -> dict[str, Any]:
    """A task's payload from JSON text, strictly.   Raises: Invalid, with a hint for the shell."""
    from limpet import records
    from limpet.queue.entry import PAYLOAD_BYTES_MAX, payload_bytes

    size = len(text) if isinstance(text, bytes) else len(text.encode(errors="surrogatepass"))
    if size > records.RECORD_BYTES_MAX:
        raise Invalid(
            f"{what} takes more than {records.RECORD_BYTES_MAX} bytes; a task holds {PAYLOAD_BYTES_MAX}",
            hint=OTHERWHERE,
        )
    try:
        value = records.parse_json(text, what=what)
    except Invalid as error:
        raise _explained(error, what) from None
    if not isinstance(value, dict):
        raise Invalid(f"{what} is a JSON {_kind(value)}, and a task is a JSON object", hint=EXAMPLE)
    payload_bytes(value, what=what)
    return value


def _explained(error: Invalid, what: str) -> Invalid:
    """The same error, with what to do about it."""
    said = str(error)
    if "nested" in said or "recursion" in said:
        return Invalid(f"{what} is nested too deeply; 64 levels are allowed", hint=OTHERWHERE)
    if said.endswith("is not JSON"):
        return Invalid(said, hint="JSON has no NaN and no infinity: use null, or a string")
    return Invalid(said, hint=EXAMPLE)


def _kind(value: Any) -> str:
    match value:
        case list():
            return "array"
        case str():
            return "string"
        case bool() | None:
            return "literal"
        case _:
            return "number"


@contextmanager
def _lines_of(file: str) -> Iterator[IO[bytes]]:
    if file == STDIN:
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(open(file, "rb"))
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise Missing(f"cannot read {file}: {reason}", hint="check the path; - reads from stdin") from None
        yield stream


class BadLine(Invalid):
    """A line of a file is no task. Everything before its batch was pushed, nothing from there on."""


@dataclass(slots=True)
class Pushing:
    """A file on its way into a queue, batch by batch. `next_line` is the first line that is not pushed yet."""

    queue: Queue
    batch: int
    pushed: int = 0
    batches: int = 0
    next_line: int = 1
    read_bytes: int = 0
    first_id: str | None = None
    last_id: str | None = None
    _line: int = 0
    _tasks: list[dict[str, Any]] = field(default_factory=list)
    _at: list[int] = field(default_factory=list)

    def run(self, stream: IO[bytes]) -> Iterator[None]:
        """Push it all; yields after each few batches.   Raises: BadLine; what `Queue.push_many` raises."""
        from limpet.records import RECORD_BYTES_MAX

        waiting_bytes = 0
        while line := stream.readline(RECORD_BYTES_MAX + 1):
            self._line += 1
            self.read_bytes += len(line)
            if not line.strip():
                continue
            self._take(line)
            waiting_bytes += len(line)
            if len(self._tasks) == CHUNK_BATCHES * self.batch or waiting_bytes > CHUNK_BYTES_MAX:
                self._send(len(self._tasks))
                waiting_bytes = 0
                yield
        self._send(len(self._tasks))
        yield

    def _take(self, line: bytes) -> None:
        try:
            task = parse_payload(line, what=f"line {self._line}")
        except Invalid as error:
            self._send(len(self._tasks) // self.batch * self.batch)
            self.next_line = self._at[0] if self._at else self._line
            raise BadLine(str(error), hint=error.hint) from None
        self._tasks.append(task)
        self._at.append(self._line)

    def _send(self, count: int) -> None:
        if not count:
            return
        self.next_line = self._at[0]
        ids = self.queue.push_many(self._tasks[:count], batch=self.batch)
        del self._tasks[:count], self._at[:count]
        self.pushed += len(ids)
        self.batches += len({id_.rpartition(".")[0] for id_ in ids})
        self.first_id, self.last_id = self.first_id or ids[0], ids[-1]
        self.next_line = self._line + 1


def _push_file(queue: Queue, stream: IO[bytes], file: str, *, batch: int, json: bool) -> None:
    pushing = Pushing(queue, batch)
    try:
        with _progress(pushing, 0 if file == STDIN else os.path.getsize(file)) as show:
            for _ in pushing.run(stream):
                show()
    except KeyboardInterrupt:
        say(f"interrupted: {_so_far(pushing)}", err=True)
        raise
    except BadLine as error:
        hint = _go_on(pushing, file) if pushing.pushed else error.hint
        raise Invalid(f"{error}; {_so_far(pushing)}", hint=hint) from None
    except LimpetError as error:
        raise type(error)(f"{error}; {_so_far(pushing)}; more may have been", hint=error.hint) from error
    if json:
        print_json(
            {
                "queue": queue.name,
                "pushed": pushing.pushed,
                "batches": pushing.batches,
                "first_id": pushing.first_id,
                "last_id": pushing.last_id,
            }
        )
    elif pushing.pushed:
        batches = many(pushing.batches, "batch", "batches")
        say(f"pushed {many(pushing.pushed, 'task')} to {queue.name!r} in {batches}")
    else:
        say("the file has no line; nothing was pushed")


def _so_far(pushing: Pushing) -> str:
    if not pushing.pushed:
        return "nothing was pushed"
    return f"{many(pushing.pushed, 'task')} before line {pushing.next_line} went in"


def _go_on(pushing: Pushing, file: str) -> str:
    if file == STDIN:
        return f"correct it, and push from line {pushing.next_line} on"
    return f"correct it, then: tail -n +{pushing.next_line} {file} | limpet queue push {pushing.queue.name} --file -"


@contextmanager
def _progress(pushing: Pushing, size_bytes: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr over the file's bytes; one that only moves where the end is not known. Only on a terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    err = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("pushing", total=size_bytes or None)
        yield lambda: bar.update(
            task, completed=pushing.read_bytes, description=f"{many(pushing.pushed, 'task')} pushed"
        )
