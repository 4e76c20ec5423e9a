"""Signals as bytes in a pipe, so that a loop can wait for them together with other pipes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from limpet.runtime import system

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


def _do_nothing(number: int, _: FrameType | None) -> None:
    """A handler in Python, and not SIG_IGN, which every command that a task starts would inherit."""
