"""The guard: the process between `limpet lock run` and its command. The command cannot outlive limpet or its lease.

It runs alone, on the bare interpreter, so that it starts at once and stays small:

    python -I -S guard.py PIPE COMMAND [ARGUMENT ...]

It is started with the FORWARDED signals blocked. It starts the command in a new process group, forwards those
signals to that group, and exits with the command's code.
Through PIPE limpet sends again and again for how many seconds the lease is valid (one C double each). When that time
is over (limpet is stopped, or hangs) or the pipe closes (limpet lost the lease, or died, by kill -9 too), the guard
ends the whole group: SIGTERM, then SIGKILL after 5 s. If the guard itself is killed, then on Linux the kernel kills the
command, though not what the command has started.

A command that leaves its process group (setsid, a daemon) is no longer guarded.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import sys
from contextlib import suppress
from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT)
VALIDITY = struct.Struct("d")

GRACE_S = 5.0
POLL_S = 0.05
NOT_FOUND, NOT_RUN = 127, 126
PR_SET_PDEATHSIG = 1

_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_SET_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class _Guard:
    def __init__(self, pipe_fd: int) -> None:
        self._pipe_fd = pipe_fd
        self._time_is_up = False
        self._limpet_group = os.getpgid(os.getppid())
        self._gives_terminal = _in_front(self._limpet_group) and os.isatty(1)
        self._woken_fd, wake_fd = os.pipe()
        os.set_inheritable(pipe_fd, False)
        os.set_blocking(wake_fd, False)
        os.set_blocking(self._woken_fd, False)
        signal.set_wakeup_fd(wake_fd)

    def run(self, command: list[str]) -> int:
        """Start the command and wait until it has ended, or end it; its exit code as a shell gives it."""
        signal.signal(signal.SIGCHLD, _do_nothing)
        signal.signal(signal.SIGALRM, self._on_alarm)
        self._group = self._start(command)
        for each in FORWARDED:
            if signal.getsignal(each) is not signal.SIG_IGN:  # as under nohup: then the command ignores it too
                signal.signal(each, self._forward)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        code = self._watch()
        if code is None:
            code = self._end()
        if self._gives_terminal and _in_front(self._group):
            self._give_terminal(self._limpet_group)
        return code

    def _start(self, command: list[str]) -> int:
        """Fork and exec the command; its process id. Forking is safe, for there is one thread. A fork lets us hand over
        the terminal before the command can read it."""
        kept = {each: signal.signal(each, signal.SIG_IGN) for each in _STOPS}
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        guard = os.getpid()
        child = os.fork()
        if child:
            with suppress(PermissionError, ProcessLookupError):  # both processes do it, so that neither is too early
                os.setpgid(child, child)
            return child
        try:
            os.setpgid(0, 0)
            if self._gives_terminal:
                self._give_terminal(os.getpid())
            for each, before in (kept | dict.fromkeys(_SET_BY_PYTHON, signal.SIG_DFL)).items():
                signal.signal(each, before)
            if libc is not None:
                libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != guard:
                os._exit(NOT_RUN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
            os.execvp(command[0], command)
        except OSError as error:
            _say(f"cannot run {command[0]}: {error.strerror}")
            os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUN)

    def _watch(self) -> int | None:
        """The command's exit code; None when it must be ended first."""
        waiting = select.poll()  # not select(): a caller with 1,024 open files hands us a higher descriptor
        for fd in (self._pipe_fd, self._woken_fd):
            waiting.register(fd, select.POLLIN)
        while not self._time_is_up:
            code = self._exit_code()
            if code is not None:
                return code
            ready = {fd for fd, _ in waiting.poll()}
            if self._woken_fd in ready:
                os.read(self._woken_fd, 512)
            if self._pipe_fd in ready:
                validity = os.read(self._pipe_fd, VALIDITY.size)
                if not validity:
                    return None
                signal.setitimer(signal.ITIMER_REAL, *VALIDITY.unpack(validity))
        return None

    def _exit_code(self) -> int | None:
        """The command's exit code; None while it lives. If it was stopped from the terminal, limpet stops as well."""
        found, status = os.waitpid(self._group, os.WNOHANG | os.WUNTRACED)
        if not found:
            return None
        if os.WIFSTOPPED(status):
            if self._gives_terminal:
                _signal(self._limpet_group, signal.SIGTSTP)
            return None
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def _end(self) -> int:
        """End the group; members that are left after the grace time are killed. The command's exit code."""
        _signal(self._group, signal.SIGTERM)
        _signal(self._group, signal.SIGCONT)
        self._time_is_up = False
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)
        code = None
        while not self._time_is_up and (code is None or _signal(self._group, 0)):
            select.select([], [], [], POLL_S)
            code = self._exit_code() if code is None else code
        _signal(self._group, signal.SIGKILL)
        while code is None:
            select.select([], [], [], POLL_S)
            code = self._exit_code()
        return code

    def _forward(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGCONT and self._gives_terminal and _in_front(self._limpet_group):
            self._give_terminal(self._group)
        _signal(self._group, number)

    def _on_alarm(self, number: int, _: FrameType | None) -> None:
        self._time_is_up = True

    def _give_terminal(self, group: int) -> None:
        try:
            os.tcsetpgrp(0, group)
        except OSError:
            self._gives_terminal = False


def _in_front(group: int) -> bool:
    """Whether the group has the terminal that is our stdin."""
    try:
        return os.tcgetpgrp(0) == group
    except OSError:
        return False


def _do_nothing(number: int, _: FrameType | None) -> None:
    """Installed for SIGCHLD, so that it wakes the select."""


def _signal(group: int, number: int) -> bool:
    """Send a signal to every member; False if there is none."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        if number == signal.SIGKILL:
            _say("the command runs as another user and cannot be ended; waiting until it ends by itself")
    return True


def _say(line: str) -> None:
    os.write(2, f"limpet: {line}\n".encode(errors="replace"))


def main(arguments: list[str]) -> int:
    """Run `PIPE COMMAND ...`; the exit code."""
    return _Guard(int(arguments[0])).run(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
