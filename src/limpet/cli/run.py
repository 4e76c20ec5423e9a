"""A command that runs no longer than the lease it runs under."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from limpet.app import Fleet
from limpet.cli import leash
from limpet.cli.shared import ENV_URL
from limpet.errors import Held, LeaseLost
from limpet.lease import Lease
from limpet.runtime import Runtime, system

VALIDITY_MIN_S = 0.001
TELLS_PER_TTL = 6


def run_locked(
    fleet: Fleet, name: str, command: Sequence[str], *, ttl_s: float, wait_s: float, stall_s: float | None
) -> int:
    """Run `command` under the lock `name`; its exit code.

    Raises: Held; LeaseLost, when the lease was lost before the command had ended; then it was ended.
    """
    leashed = LeashedCommand(command, system())
    lock = fleet.lock(name, ttl_s, look_first=True)
    try:
        with lock.hold(wait_s=wait_s, stall_s=stall_s, on_lost=leashed.end) as lease:
            where = fleet.url if "://" in fleet.url else os.path.abspath(os.path.expanduser(fleet.url))
            env = {**os.environ, "LIMPET_TOKEN": str(lease.token), "LIMPET_LOCK": lease.lock, ENV_URL: where}
            return leashed.run(lease, env)
    except Held as held:
        held.hint = f"wait for it with --wait SECONDS, or look at it: limpet lock show {name}"
        raise
    except LeaseLost as lost:
        raise LeaseLost(
            f"the command has ended without the lock: {lost}",
            hint="whoever holds the newer token goes on with the work; look for what stalled us, or raise --ttl",
        ) from lost


class LeashedCommand:
    """A command behind a leash (see `limpet.cli.leash`): this process's end, or the lease's, is its end too."""

    def __init__(self, command: Sequence[str], runtime: Runtime) -> None:
        self._command = command
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._ended = runtime.flag()
        self._leash: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._read_fd, self._write_fd = os.pipe()

    def run(self, lease: Lease, env: Mapping[str, str]) -> int:
        """Start it, pass signals on to it, wait for it; its exit code, 128 + n for death by signal n."""
        os.set_inheritable(self._read_fd, True)
        self._tell(lease)
        with self._passing_signals():
            self._leash = self._start(env)
            os.close(self._read_fd)
            for number in self._early:
                self._leash.send_signal(number)
            teller = self._runtime.spawn(lambda: self._keep_telling(lease), name="limpet-leash")
            code = self._leash.wait()
        self._ended.set()
        teller.join()
        self.end()
        return code if code >= 0 else 128 - code

    def _start(self, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """The leash, with signals blocked until it can pass them on."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, leash.FORWARDED)
        try:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(leash.__file__)), str(self._read_fd), *self._command],
                env=dict(env),
                process_group=0,
                close_fds=False,  # what the caller opened for the command passes through; what we open does not
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def end(self) -> None:
        """Have the command ended; before `run`, as soon as it starts. Any thread may call it, more than once."""
        with self._mutex:
            if self._write_fd >= 0:
                os.close(self._write_fd)
                self._write_fd = -1

    def _keep_telling(self, lease: Lease) -> None:
        while not self._ended.wait(lease.ttl_s / TELLS_PER_TTL):
            self._tell(lease)

    def _tell(self, lease: Lease) -> None:
        """Let the leash know how long the lease is good for; should we be stopped, it counts by itself."""
        with self._mutex:
            if self._write_fd < 0:
                return
            try:
                os.write(self._write_fd, leash.VALIDITY.pack(max(lease.valid_for_s(), VALIDITY_MIN_S)))
            except BrokenPipeError:  # the leash has ended, and `run` is about to see it
                return

    @contextmanager
    def _passing_signals(self) -> Iterator[None]:
        """Have our own signals sent on to the command instead; those that we were started to ignore stay ignored."""
        before = {
            each: signal.signal(each, self._pass_on)
            for each in leash.FORWARDED
            if signal.getsignal(each) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if self._leash is None:
            self._early.append(number)
        else:
            self._leash.send_signal(number)
