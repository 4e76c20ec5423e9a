"""Signals as bytes in a pipe, so that a loop can wait for them beside everything else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Bell:
    """A pipe that rings: with the number of each signal, or with 0 when somebody calls `ring`."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)

    @property
    def wakeup_fd(self) -> int:
        """For `signal.set_wakeup_fd`."""
        return self._write_fd

    def ring(self) -> None:
        """Wake whoever waits for `fd`. Any thread may."""
        try:
            os.write(self._write_fd, b"\0")
        except BlockingIOError:  # it rings already
            return

    def heard(self) -> list[int]:
        """The signals since the last call."""
        try:
            return [number for number in os.read(self.fd, 512) if number]
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.fd)
        os.close(self._write_fd)


@contextmanager
def bell(numbers: Sequence[int]) -> Iterator[Bell]:
    """A bell for these signals while the block lasts. One that we were started to ignore (nohup) stays ignored."""
    made = Bell()
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    fd_before = signal.set_wakeup_fd(made.wakeup_fd, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _do_nothing) for number in heeded}
    try:
        yield made
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(fd_before)
        made.close()


def _do_nothing(number: int, _: FrameType | None) -> None:
    """A handler in Python, and not SIG_IGN, which every command that a task starts would inherit."""
