"""The worker processes of `limpet work`: started, heard, put in each other's place, and ended.

Each is a fresh interpreter, never a fork (a store's client does not survive one), in a process group of its own, so
that Ctrl-C reaches limpet and not the commands that tasks have started.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import structs

from limpet import errors
from limpet.cli.shared import ENV_URL
from limpet.cli.work_signals import STOPS, Bell, bell
from limpet.cli.work_wire import NOW, STOP, Ended, Lines, Message, Order, Refused, decode_message, encode_line
from limpet.errors import Invalid, LimpetError, Unavailable
from limpet.queue.work import Event, Tally
from limpet.queue.work.events import EventKind
from limpet.runtime import Runtime

BACKOFF_S = 0.5
BACKOFF_MAX_S = 30.0
LONG_LIFE_S = 30.0
KILL_AFTER_S = 10.0


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    control_fd: int
    report_fd: int
    started_s: float
    lines: Lines = field(default_factory=Lines)
    tally: Tally = field(default_factory=Tally)
    ready: bool = False
    ended: Ended | None = None
    refused: Refused | None = None
    kill_at_s: float = float("inf")


@dataclass(slots=True)
class _Place:
    """Where one process belongs: the one that is there, or when the next one comes."""

    number: int
    child: _Child | None = None
    start_at_s: float | None = 0.0
    short_lives: int = 0


class Crew:
    """Keeps `processes` workers at work until they are done, or limpet is told to stop."""

    def __init__(
        self,
        order: Order,
        processes: int,
        runtime: Runtime,
        listener: Callable[[Message], None],
        *,
        quiet_stdout: bool,
        printed: Callable[[bytes], None] | None = None,
    ) -> None:
        self.restarts = 0
        self.trouble: str | None = None
        """Why it did not end well."""
        self._order = order
        self._runtime = runtime
        self._listener = listener
        self._quiet_stdout = quiet_stdout
        self._printed = printed
        """Takes the lines that workers print; without it they go where our own output goes."""
        self._places = [_Place(number) for number in range(processes)]
        self._past = Tally()
        self._selector = selectors.DefaultSelector()
        self._stops = 0
        self._ever_ready = False

    def run(self) -> None:
        """Work. Returns when everybody has ended.

        Raises: what kept the first workers from beginning; nothing was claimed then.
        """
        with bell((*STOPS, signal.SIGCHLD)) as signals:
            self._selector.register(signals.fd, selectors.EVENT_READ)
            try:
                while any(place.child or place.start_at_s is not None for place in self._places):
                    self._start_due()
                    self._hear(signals)
                    self._bury()
                    self._kill_due()
            finally:
                self._end_all()
                self._drain_printed()
                self._selector.close()

    def tally(self) -> Tally:
        """The counts of all processes, past and present."""
        return sum((place.child.tally for place in self._places if place.child), self._past)

    def _start_due(self) -> None:
        now_s = self._runtime.elapsed_s()
        for place in self._places:
            if place.start_at_s is not None and place.start_at_s <= now_s:
                place.start_at_s = None
                place.child = self._start(count=self._order.count and place.number == 0)

    def _start(self, *, count: bool) -> _Child:
        control_read, control_write = os.pipe()
        report_read, report_write = os.pipe()
        env = {**os.environ, ENV_URL: self._order.url} if self._order.url else None
        printed_read, printed_write = os.pipe() if self._printed else (-1, -1)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "limpet.cli.work_child", str(control_read), str(report_write)],
                stdin=subprocess.DEVNULL,
                stdout=printed_write if self._printed else 2 if self._quiet_stdout else None,
                stderr=printed_write if self._printed else None,
                env=env,
                pass_fds=(control_read, report_write),
                process_group=0,
            )
        finally:
            for fd in (control_read, report_write, *([printed_write] if self._printed else [])):
                os.close(fd)
        os.set_blocking(report_read, False)
        child = _Child(process, control_write, report_read, self._runtime.elapsed_s())
        if self._printed:
            os.set_blocking(printed_read, False)
            self._selector.register(printed_read, selectors.EVENT_READ, Lines())
        self._selector.register(report_read, selectors.EVENT_READ, child)
        _tell(child, encode_line(structs.replace(self._order, count=count)))
        return child

    def _hear(self, signals: Bell) -> None:
        """Wait for whatever comes next: a message, a signal, or a time that we set ourselves."""
        for key, _ in self._selector.select(self._patience_s()):
            if isinstance(key.data, _Child):
                self._read(key.data)
            elif isinstance(key.data, Lines):
                self._pass_on(key.fd, key.data)
            else:
                for _number in [number for number in signals.heard() if number in STOPS]:
                    self._stop()

    def _patience_s(self) -> float | None:
        moments = [place.start_at_s for place in self._places if place.start_at_s is not None]
        moments += [place.child.kill_at_s for place in self._places if place.child]
        soonest_s = min(moments, default=float("inf"))
        return None if soonest_s == float("inf") else max(0.0, soonest_s - self._runtime.elapsed_s())

    def _read(self, child: _Child) -> None:
        """Take in all that a child has said."""
        while True:
            try:
                piece = os.read(child.report_fd, 65536)
            except BlockingIOError:
                return
            if not piece:
                self._deafen(child)
                return
            for line in child.lines.feed(piece):
                self._note(child, decode_message(line))

    def _pass_on(self, fd: int, lines: Lines) -> None:
        """Take in what a worker, or a command that it started, has printed. The last to close the pipe ends it."""
        assert self._printed is not None
        try:
            piece = os.read(fd, 65536)
        except BlockingIOError:
            return
        for line in lines.feed(piece or b"\n"):
            if piece or line:
                self._printed(line)
        if not piece:
            self._selector.unregister(fd)
            os.close(fd)

    def _drain_printed(self) -> None:
        """Take in what was printed last. A command that a task has left behind may hold the pipe open; we do not."""
        for fd, lines in [(key.fd, key.data) for key in self._selector.get_map().values()]:
            if isinstance(lines, Lines):
                self._pass_on(fd, lines)
                if fd in self._selector.get_map():
                    self._selector.unregister(fd)
                    os.close(fd)

    def _note(self, child: _Child, message: Message) -> None:
        match message:
            case Tally():
                child.tally = message
            case Refused():
                child.refused = message
            case Ended():
                child.ended = message
                child.kill_at_s = min(child.kill_at_s, self._runtime.elapsed_s() + KILL_AFTER_S)
            case Event(kind="ready"):
                child.ready = self._ever_ready = True
        self._listener(message)

    def _stop(self) -> None:
        """The first time, let what runs go on for the grace time; the second time, have it handed back."""
        self._stops += 1
        first = self._stops == 1
        patience_s = KILL_AFTER_S + (self._order.grace_s if first else 0.0)
        for place in self._places:
            place.start_at_s = None
            if place.child is not None:
                _tell(place.child, STOP if first else NOW)
                place.child.kill_at_s = min(place.child.kill_at_s, self._runtime.elapsed_s() + patience_s)
        if first:
            self._say("stopping", f"what runs has {self._order.grace_s:g} s to end; once more hands it back at once")

    def _bury(self) -> None:
        for place in self._places:
            child = place.child
            if child is not None and child.process.poll() is not None:
                self._close(child)
                place.child = None
                self._past += structs.replace(child.tally, in_flight=0, rate_per_s=0.0)
                self._succeed(place, child)

    def _succeed(self, place: _Place, child: _Child) -> None:
        """Whether, and when, another process takes the place of one that has ended."""
        ended = child.ended
        if ended is None and not (self._ever_ready or self._stops):
            raise _error_of(child.refused) if child.refused else _never_ready(child)
        if ended is not None and ended.trouble and not ended.again:
            self.trouble = ended.trouble
        if self._stops or (ended is not None and not ended.again):
            return
        self.restarts += 1
        now_s = self._runtime.elapsed_s()
        if ended is not None and not ended.trouble:
            place.start_at_s = now_s
            return
        place.short_lives = 1 if now_s - child.started_s > LONG_LIFE_S else place.short_lives + 1
        wait_s = min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** (place.short_lives - 1))
        place.start_at_s = now_s + wait_s
        self._say("crashed", f"{_death_of(child)}; another one starts in {wait_s:g} s")

    def _kill_due(self) -> None:
        now_s = self._runtime.elapsed_s()
        for place in self._places:
            if place.child is not None and place.child.kill_at_s <= now_s:
                place.child.kill_at_s = float("inf")
                place.child.process.kill()
                if self._stops:
                    self.trouble = f"process {place.child.process.pid} did not end in time, and was killed"

    def _close(self, child: _Child) -> None:
        """Hear the last words of a process that has ended."""
        self._read(child)
        self._deafen(child)
        os.close(child.report_fd)
        os.close(child.control_fd)

    def _deafen(self, child: _Child) -> None:
        if child.report_fd in self._selector.get_map():
            self._selector.unregister(child.report_fd)

    def _end_all(self) -> None:
        """Leave nobody behind, whatever made us leave: each hands back, and is killed if it does not end."""
        left = [place.child for place in self._places if place.child is not None]
        for child in left:
            os.close(child.control_fd)
        for child in left:
            try:
                child.process.wait(KILL_AFTER_S)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            os.close(child.report_fd)

    def _say(self, kind: EventKind, note: str) -> None:
        self._listener(Event(kind=kind, at=self._runtime.wall(), worker=self._runtime.label, note=note))


def _tell(child: _Child, line: bytes) -> None:
    try:
        os.write(child.control_fd, line)
    except BrokenPipeError:  # it has ended, and we are about to see it
        return


def _death_of(child: _Child) -> str:
    who, code = f"process {child.process.pid}", child.process.returncode
    if child.ended is not None:
        return f"{who} ended, for {child.ended.trouble}"
    if child.refused is not None:
        return f"{who} could not begin: {child.refused.message}"
    return f"{who} was killed by {signal.Signals(-code).name}" if code < 0 else f"{who} ended with exit code {code}"


def _never_ready(child: _Child) -> LimpetError:
    return Unavailable(
        f"{_death_of(child)} while it imported the module",
        hint="import it by hand, with python, to see why; nothing was claimed",
    )


def _error_of(refused: Refused) -> LimpetError:
    kind = getattr(errors, refused.kind, Invalid)
    assert issubclass(kind, LimpetError)
    return kind(refused.message, hint=refused.hint)
