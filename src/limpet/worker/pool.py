"""`ProcessPool`: the worker processes of `limpet work`, started, heard, replaced and ended.

Each is a fresh interpreter, never a fork (a store's client does not survive one), in its own process group, so
that Ctrl-C reaches limpet and not the commands that tasks have started.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec import structs

from limpet.kernel import errors
from limpet.kernel.errors import Invalid, LimpetError, Unavailable
from limpet.kernel.runtime import Runtime
from limpet.kernel.waiting import spread_backoff_s, ticks
from limpet.worker.protocol import (
    NOW,
    STOP,
    STOP_SIGNALS,
    EventKind,
    Message,
    PipeReader,
    ProcessPresence,
    SignalPipe,
    StartRefused,
    TaskCounts,
    WorkerEnded,
    WorkerEvent,
    WorkerOrder,
    decode_message,
    encode_line,
)

LONG_LIFE_S = 30.0
KILL_AFTER_S = 10.0
NEVER_S = float("inf")
RELOAD = "reload"
LOOK_EVERY_S = 0.5
FILES_MAX = 10_000
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"})


@dataclass(slots=True)
class _PoolProcess:
    process: subprocess.Popen[bytes]
    control_fd: int
    report_fd: int
    started_s: float
    lines: PipeReader = field(default_factory=PipeReader)
    counts: TaskCounts = field(default_factory=TaskCounts)
    ended: WorkerEnded | None = None
    refused: StartRefused | None = None
    present: ProcessPresence | None = None
    kill_at_s: float = NEVER_S

    def tell(self, line: bytes) -> None:
        """Send a line. A process that has ended gets none, and we are about to see its end."""
        try:
            os.write(self.control_fd, line)
        except BrokenPipeError:
            return

    def end(self) -> None:
        """Wait for its end, and kill it if that takes long."""
        try:
            self.process.wait(KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.report_fd)

    @property
    def death(self) -> str:
        """How it ended, in words."""
        who, code = f"process {self.process.pid}", self.process.returncode
        if self.ended is not None:
            return f"{who} ended, for {self.ended.trouble}"
        if self.refused is not None:
            return f"{who} could not begin: {self.refused.message}"
        return f"{who} was killed by {signal.Signals(-code).name}" if code < 0 else f"{who} ended with exit code {code}"


@dataclass(slots=True)
class _PoolPlace:
    """One of the `processes` places: the process that is there, or when the next one starts (None: never)."""

    number: int
    child: _PoolProcess | None = None
    start_at_s: float | None = 0.0
    short_lives: int = 0


class ProcessPool:
    """Keeps `processes` workers running until they are done, or a signal stops them.

    `listener` gets every message. `printed` takes the lines that workers print; without it they go where our output
    goes, and with `quiet_stdout` all of them to stderr. A byte on `reload_fd` replaces all processes, each as after a
    stop: source files have changed.
    """

    def __init__(
        self,
        order: WorkerOrder,
        processes: int,
        runtime: Runtime,
        listener: Callable[[Message], None],
        *,
        quiet_stdout: bool,
        printed: Callable[[bytes], None] | None = None,
        reload_fd: int | None = None,
    ) -> None:
        self.restarts = 0
        self.trouble: str | None = None
        """Why it did not end well."""
        self._order = order
        self._runtime = runtime
        self._listener = listener
        self._quiet_stdout = quiet_stdout
        self._printed = printed
        self._reload_fd = reload_fd
        self._places = [_PoolPlace(number) for number in range(processes)]
        self._past = TaskCounts()
        self._reaped: list[str] = []
        """The owners whose presence objects the next process removes: this one has no store."""
        self._selector = selectors.DefaultSelector()
        self._stops = 0
        self._ever_ready = False

    def run(self) -> None:
        """Run the processes. Returns when all have ended.

        Raises: what kept the first workers from beginning; nothing was claimed then.
        """
        with SignalPipe.catching((*STOP_SIGNALS, signal.SIGCHLD)) as signals:
            self._selector.register(signals.fd, selectors.EVENT_READ)
            if self._reload_fd is not None:
                self._selector.register(self._reload_fd, selectors.EVENT_READ, RELOAD)
            try:
                while any(place.child or place.start_at_s is not None for place in self._places):
                    self._start_due()
                    self._wait(signals)
                    self._reap()
                    self._kill_due()
            finally:
                self._end_all()
                self._drain_printed()
                self._selector.close()

    def counts(self) -> TaskCounts:
        """The counts of all processes, past and present."""
        return sum((child.counts for child in self._children()), self._past)

    def _children(self) -> list[_PoolProcess]:
        return [place.child for place in self._places if place.child is not None]

    def _start_due(self) -> None:
        now_s = self._runtime.elapsed_s()
        for place in self._places:
            if place.start_at_s is not None and place.start_at_s <= now_s:
                place.start_at_s = None
                place.child = self._start(count=self._order.count and place.number == 0)

    def _start(self, *, count: bool) -> _PoolProcess:
        control_read, control_write = os.pipe()
        report_read, report_write = os.pipe()
        env = {**os.environ, "LIMPET_URL": self._order.url} if self._order.url else {**os.environ}
        if self._reload_fd is not None:  # a file that changes twice in a second may have the time of its old bytecode
            env["PYTHONDONTWRITEBYTECODE"] = "1"
        printed_read, printed_write = os.pipe() if self._printed else (-1, -1)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "limpet.worker.child", str(control_read), str(report_write)],
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
        child = _PoolProcess(process, control_write, report_read, self._runtime.elapsed_s())
        if self._printed:
            os.set_blocking(printed_read, False)
            self._selector.register(printed_read, selectors.EVENT_READ, PipeReader())
        self._selector.register(report_read, selectors.EVENT_READ, child)
        child.tell(encode_line(structs.replace(self._order, count=count, reaped=self._reaped)))
        self._reaped = []
        return child

    def _wait(self, signals: SignalPipe) -> None:
        moments = [place.start_at_s for place in self._places if place.start_at_s is not None]
        soonest_s = min([*moments, *(child.kill_at_s for child in self._children())], default=NEVER_S)
        timeout_s = None if soonest_s == NEVER_S else max(0.0, soonest_s - self._runtime.elapsed_s())
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, _PoolProcess):
                self._read(key.data)
            elif isinstance(key.data, PipeReader):
                self._read_printed(key.fd, key.data)
            elif key.data is RELOAD:
                self._reload(key.fd)
            else:
                for _number in [number for number in signals.read() if number in STOP_SIGNALS]:
                    self._stop()

    def _read(self, child: _PoolProcess) -> None:
        while True:
            try:
                piece = os.read(child.report_fd, 65536)
            except BlockingIOError:
                return
            if not piece:
                self._unregister(child.report_fd)
                return
            for line in child.lines.feed(piece):
                self._note(child, decode_message(line))

    def _note(self, child: _PoolProcess, message: Message) -> None:
        match message:
            case TaskCounts():
                child.counts = message
            case StartRefused():
                child.refused = message
            case ProcessPresence():
                child.present = message
            case WorkerEnded():
                child.ended = message
                child.kill_at_s = min(child.kill_at_s, self._runtime.elapsed_s() + KILL_AFTER_S)
            case WorkerEvent(kind="ready"):
                self._ever_ready = True
        self._listener(message)

    def _read_printed(self, fd: int, lines: PipeReader) -> None:
        """Read what a worker, or a command that it started, has printed. The last to close the pipe ends it."""
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
        """Read what was printed last. A command that a task has left behind may hold the pipe open; we do not."""
        for fd, lines in [(key.fd, key.data) for key in self._selector.get_map().values()]:
            if isinstance(lines, PipeReader):
                self._read_printed(fd, lines)
                if fd in self._selector.get_map():
                    self._unregister(fd)
                    os.close(fd)

    def _reload(self, fd: int) -> None:
        """Have every process end after the tasks that it runs, and another take its place, now if it waits to start."""
        os.read(fd, 65536)
        if self._stops:
            return
        now_s = self._runtime.elapsed_s()
        for place in self._places:
            place.short_lives = 0
            if place.start_at_s is not None:
                place.start_at_s = now_s
        for child in self._children():
            child.tell(STOP)
            child.kill_at_s = min(child.kill_at_s, now_s + KILL_AFTER_S + self._order.grace_s)
        self._say("reload", "a source file has changed; the processes start again")

    def _stop(self) -> None:
        """The first time, let running tasks go on for the grace time; the second time, have them handed back."""
        self._stops += 1
        first = self._stops == 1
        kill_at_s = self._runtime.elapsed_s() + KILL_AFTER_S + (self._order.grace_s if first else 0.0)
        for place in self._places:
            place.start_at_s = None
        for child in self._children():
            child.tell(STOP if first else NOW)
            child.kill_at_s = min(child.kill_at_s, kill_at_s)
        if first:
            self._say("stopping", f"what runs has {self._order.grace_s:g} s to end; once more hands it back at once")

    def _reap(self) -> None:
        for place in self._places:
            child = place.child
            if child is not None and child.process.poll() is not None:
                self._read(child)
                self._unregister(child.report_fd)
                os.close(child.report_fd)
                os.close(child.control_fd)
                place.child = None
                self._past += structs.replace(child.counts, in_flight=0, rate_per_s=0.0)
                died = child.ended is None or child.process.returncode < 0
                if child.present is not None and died:  # else it has removed its own
                    self._reaped.append(child.present.owner)
                self._replace(place, child)

    def _replace(self, place: _PoolPlace, child: _PoolProcess) -> None:
        ended = child.ended
        if ended is None and not (self._ever_ready or self._stops):
            raise (
                error_of(child.refused)
                if child.refused
                else Unavailable(
                    f"{child.death} while it imported the module",
                    hint="import it by hand, with python, to see why; nothing was claimed",
                )
            )
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
        wait_s = spread_backoff_s(place.short_lives, 0.5, LONG_LIFE_S, 1.0)
        place.start_at_s = now_s + wait_s
        self._say("crashed", f"{child.death}; another one starts in {wait_s:g} s")

    def _kill_due(self) -> None:
        now_s = self._runtime.elapsed_s()
        for child in self._children():
            if child.kill_at_s <= now_s:
                child.kill_at_s = NEVER_S
                child.process.kill()
                if self._stops:
                    self.trouble = f"process {child.process.pid} did not end in time, and was killed"

    def _unregister(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _end_all(self) -> None:
        """Leave no process behind, whatever made us leave: each hands back, and is killed if it does not end."""
        left = self._children()
        for child in left:
            os.close(child.control_fd)
        for child in left:
            child.end()

    def _say(self, kind: EventKind, note: str) -> None:
        self._listener(WorkerEvent(kind=kind, at=self._runtime.wall(), worker=self._runtime.label, note=note))


def error_of(refused: StartRefused) -> LimpetError:
    """The error that kept a process from beginning."""
    kind = getattr(errors, refused.kind, Invalid)
    assert issubclass(kind, LimpetError)
    return kind(refused.message, hint=refused.hint)


# ---- `limpet work --reload` ----


class SourceWatch:
    """Writes a byte to a pipe whenever a Python file below `folder` was added, changed or removed.

    They are compared by time and size twice a second, which works on a network share too. Hidden folders and those of
    installed packages are left out. At most 10,000 files are watched.
    """

    def __init__(self, folder: str, runtime: Runtime) -> None:
        self._folder = folder
        self._runtime = runtime
        self._over = runtime.flag()
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        self._seen = self._look()

    def start(self) -> None:
        """Start the thread that watches."""
        self._runtime.spawn(self._watch, name="limpet-reload")

    def close(self) -> None:
        """End the thread."""
        self._over.set()

    def _watch(self) -> None:
        for _ in ticks(self._over, LOOK_EVERY_S):
            self.check()

    def check(self) -> bool:
        """Look once; whether something has changed since the last look."""
        found = self._look()
        if found == self._seen:
            return False
        self._seen = found
        with suppress(BlockingIOError):  # the pipe is full: a reload is already due
            os.write(self._write_fd, b"x")
        return True

    def _look(self) -> dict[str, tuple[int, int]]:
        files: dict[str, tuple[int, int]] = {}
        for folder, folders, names in os.walk(self._folder):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
            for path in [os.path.join(folder, name) for name in sorted(names) if name.endswith(".py")]:
                with suppress(OSError):  # it went just now
                    stat = os.stat(path)
                    files[path] = (stat.st_mtime_ns, stat.st_size)
                if len(files) >= FILES_MAX:
                    return files
        return files
