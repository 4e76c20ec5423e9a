"""What workers report, and what `limpet work` and its worker processes send through their two pipes, as JSON lines.

Down the first pipe goes a `WorkerOrder`, then `STOP` or `NOW`; its end means that limpet has died. Up the second come
messages. Signals come as bytes in a pipe too, so that a loop can wait for all of them together.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from types import FrameType
from typing import Any, Literal

import msgspec

from limpet.kernel import records
from limpet.kernel.runtime import system

STOP = b"stop\n"
NOW = b"now\n"

TaskEventKind = Literal["started", "done", "retry", "failed", "lost", "handed_back", "suspended", "overdue", "progress"]
EventKind = TaskEventKind | Literal["warning", "trouble", "cron", "ready", "stopping", "crashed", "reload"]

ROUTINE: frozenset[EventKind] = frozenset(("started", "done", "suspended"))
"""The events of a task that runs without trouble."""


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker process is to do. `target` is a module's attribute, or with a `handler` the first queue."""

    target: str | None
    handler: str | None
    url: str | None
    queues: list[str]
    threads: int
    burst: bool
    max_tasks: int | None
    grace_s: float
    routine: bool
    count: bool
    events: bool = False
    until_empty: bool = False
    log_json: bool = False
    poll_s: float | None = None
    requests: bool = False
    """Whether to report what was asked of the store."""
    url_is_typed: bool = False
    """The fleet that the target names must be at `url`."""
    reaped: list[str] = []
    """The owners of processes that died, and left a presence object behind."""


class WorkerEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="event", tag_field="what"):
    """One line of the log. `note` gives the reason or the progress; `after_s` is when a retried task comes back."""

    kind: EventKind
    at: datetime
    worker: str
    queue: str = ""
    id: str = ""
    attempt: int = 0
    seconds: float | None = None
    after_s: float | None = None
    note: str = ""
    tasks: int = 1
    """How many tasks it is about."""


class TaskCounts(msgspec.Struct, frozen=True, kw_only=True, tag="counts", tag_field="what"):
    """How many tasks of a worker ended in which way, how many run now, and how many ended per second lately.

    `suspended` counts the runs that ended because a durable task had to wait.
    """

    done: int = 0
    failed: int = 0
    retried: int = 0
    lost: int = 0
    handed_back: int = 0
    suspended: int = 0
    in_flight: int = 0
    rate_per_s: float = 0.0

    @property
    def ended(self) -> int:
        """Tasks that need no further attempt."""
        return self.done + self.failed

    def __add__(self, other: TaskCounts) -> TaskCounts:
        return TaskCounts(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class StartRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused", tag_field="what"):
    """The process cannot begin, and has claimed nothing. `kind` is the name of the error's class."""

    kind: str
    message: str
    hint: str


class Backlog(msgspec.Struct, frozen=True, kw_only=True, tag="backlog", tag_field="what"):
    """How many tasks wait, in all queues that it works on."""

    pending: int


class ProcessPresence(msgspec.Struct, frozen=True, kw_only=True, tag="present", tag_field="what"):
    """The process has written its presence object, under the name of its owner."""

    owner: str


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="log", tag_field="what"):
    """A record of Python's `logging`, and the task in whose handler it was made."""

    at: datetime
    worker: str
    level: str
    logger: str
    message: str
    queue: str = ""
    id: str = ""
    attempt: int = 0
    traceback: str = ""


class StoreRequests(msgspec.Struct, frozen=True, kw_only=True, tag="requests", tag_field="what"):
    """How many requests a worker process has sent to the store since its start, by verb."""

    worker: str
    requests: dict[str, int]


class WorkerEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ended", tag_field="what"):
    """The last message. `again`: another process is to take its place; `trouble`: why it gave up."""

    again: bool
    trouble: str = ""


Message = WorkerEvent | TaskCounts | StartRefused | Backlog | LogLine | StoreRequests | WorkerEnded | ProcessPresence

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode_line(value: msgspec.Struct) -> bytes:
    """One line of JSON."""
    return records.encode(value) + b"\n"


def decode_message(line: bytes) -> Message:
    """The message in a line from a worker process."""
    return _decoder.decode(line)


class PipeReader:
    """Joins the pieces that come out of a pipe into whole lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that this piece completes."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return whole


class ControlPipe:
    """The reading end of the first pipe. One read may bring several lines: each of them counts."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.stop = False
        """Whether anything came after the order: `STOP`, `NOW`, or the end."""
        self.now = False
        """Whether that was `NOW`, or the end: limpet has died."""
        self._lines = PipeReader()
        self._order: bytes | None = None

    def order(self) -> WorkerOrder | None:
        """Wait for the order; None if limpet died before it sent one."""
        while self._order is None and not self.now:
            self.read()
        return None if self._order is None else records.decoder(WorkerOrder).decode(self._order)

    def read(self) -> None:
        """Read what the pipe holds; wait if it holds nothing."""
        piece = os.read(self.fd, 65536)
        self.stop = self.stop or not piece
        self.now = self.now or not piece
        for line in self._lines.feed(piece):
            if self._order is None:
                self._order = line
            else:
                self.stop = True
                self.now = self.now or line == NOW.rstrip()


# ---- signals ----


STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalPipe:
    """A pipe that gets the number of each signal, and a 0 from `wake`. Wait until `fd` can be read, then `read`."""

    def __init__(self) -> None:
        self._mutex = system().mutex()
        self._closed = False
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)

    def wake(self) -> None:
        """Make `fd` readable. Any thread may call it, even after the pipe was closed."""
        with self._mutex:
            if not self._closed:
                with suppress(BlockingIOError):  # the pipe is full, so it is readable
                    os.write(self._write_fd, b"\0")

    def read(self) -> list[int]:
        """The signals since the last call."""
        try:
            return [number for number in os.read(self.fd, 512) if number]
        except BlockingIOError:
            return []

    @classmethod
    @contextmanager
    def catching(cls, numbers: Sequence[int]) -> Iterator[SignalPipe]:
        """A pipe that gets these signals while the block runs. One that we were started to ignore (nohup) stays
        ignored."""
        pipe = cls()
        heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        fd_before = signal.set_wakeup_fd(pipe._write_fd, warn_on_full_buffer=False)
        before = {number: signal.signal(number, _do_nothing) for number in heeded}
        try:
            yield pipe
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(fd_before)
            with pipe._mutex:
                pipe._closed = True
                os.close(pipe.fd)
                os.close(pipe._write_fd)


class InterruptWatch:
    """Notes whether a SIGINT comes while the block runs, as Python's own handler of it makes a KeyboardInterrupt.

    Only the main thread ever gets one: in another thread the block notes nothing.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: Any = None

    def __enter__(self) -> InterruptWatch:
        before = self._before = signal.getsignal(signal.SIGINT)
        try:
            if callable(before):
                signal.signal(signal.SIGINT, self._note)
        except ValueError:  # not the main thread
            self._before = None
        return self

    def __exit__(self, *raised: object) -> None:
        if callable(self._before):
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        self._before(number, frame)


def _do_nothing(number: int, _: FrameType | None) -> None:
    """A handler in Python, and not SIG_IGN, which every command that a task starts would inherit."""
