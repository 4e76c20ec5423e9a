"""What `limpet work` prints: a line for each event, and a progress line at the bottom of the terminal."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import msgspec

from limpet import records
from limpet.cli.output import ago, console, printable, printable_json
from limpet.runtime import Runtime
from limpet.worker.protocol import Backlog, LogLine, Message, TaskCounts, WorkerEvent

if TYPE_CHECKING:
    from rich.live import Live

COLOURS = {
    "done": "green",
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
    extra = {"lost": counts.lost, "handed back": counts.handed_back}
    return said + "".join(f", {count:,} {name}" for name, count in extra.items() if count)


def left_of(backlog: tuple[int, int] | None, counts: TaskCounts) -> int | None:
    """How many tasks are left; None if that is unknown, or outdated: more have ended since than waited then.

    `backlog`: how many waited when they were counted, and how many had ended by then.
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


class Log:
    """Prints on stderr: stdout is for results."""

    def __init__(self, runtime: Runtime, *, as_json: bool, progress: bool) -> None:
        self._runtime = runtime
        self._as_json = as_json
        self._progress = progress
        self._console = console(stderr=True)
        self._backlog: tuple[int, int] | None = None
        self._said_at_s = runtime.elapsed_s()
        self._live: Live | None = None
        if progress and sys.stderr.isatty():
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def tell(self, message: Message) -> None:
        """Print an event or log record."""
        if isinstance(message, (WorkerEvent, LogLine)) and self._as_json:
            self._line(json_line(message))
        elif isinstance(message, LogLine):
            self._line(log_text(message), LEVELS.get(message.level))
        elif isinstance(message, WorkerEvent):
            self._line(text_line(message), COLOURS.get(message.kind))

    def show(self, counts: TaskCounts, message: Message) -> None:
        """Update the progress line, if it is wanted and due."""
        if isinstance(message, Backlog):
            self._backlog = (message.pending, counts.ended)
        now_s = self._runtime.elapsed_s()
        every_s = DRAW_EVERY_S if self._live else SAY_EVERY_S
        if not self._progress or now_s - self._said_at_s < every_s:
            return
        self._said_at_s = now_s
        left = left_of(self._backlog, counts)
        if self._live is not None:
            self._live.update(progress_line(counts, left), refresh=True)
        else:
            self._line(progress_line(counts, left))

    @property
    def is_live(self) -> bool:
        """Whether there is a live line, which must not be broken by what handlers print."""
        return self._live is not None

    def printed(self, line: bytes) -> None:
        """Print a line of a handler above the live line. Where stdout is no terminal, it goes there unchanged."""
        if sys.stdout.isatty():
            self._line(printable(line.decode(errors="backslashreplace")))
        else:
            os.write(1, line + b"\n")

    def close(self) -> None:
        """Remove the live line."""
        if self._live is not None:
            self._live.stop()

    def total(self, counts: TaskCounts, seconds: float) -> None:
        """Print the total."""
        self._line(f"{in_words(counts)} in {ago(seconds)}")

    def _line(self, text: str, style: str | None = None) -> None:
        if self._console.is_terminal:
            self._console.print(text, style=style, soft_wrap=True, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)
