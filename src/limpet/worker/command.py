"""Run a command under a lock: it runs no longer than the lease is held."""

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
from limpet.kernel.errors import Held, LeaseLost
from limpet.kernel.lease import Lease
from limpet.kernel.runtime import Runtime, system
from limpet.kernel.waiting import ticks
from limpet.worker import guard

VALIDITY_MIN_S = 0.001


def run_locked(
    fleet: Fleet, name: str, command: Sequence[str], *, ttl_s: float, wait_s: float, stall_s: float | None
) -> int:
    """Run `command` under the lock `name`; its exit code.

    Raises: Held; LeaseLost, when the lease was lost before the command had ended; then it was ended.
    """
    guarded = GuardedCommand(command, system())
    lock = fleet.lock(name, ttl_s, look_first=True)
    try:
        with lock.hold(wait_s=wait_s, stall_s=stall_s, on_lost=guarded.end) as lease:
            where = fleet.url if "://" in fleet.url else os.path.abspath(os.path.expanduser(fleet.url))
            env = {**os.environ, "LIMPET_TOKEN": str(lease.token), "LIMPET_LOCK": lease.lock, "LIMPET_URL": where}
            return guarded.run(lease, env)
    except Held as held:
        held.hint = f"wait for it with --wait SECONDS, or look at it: limpet lock show {name}"
        raise
    except LeaseLost as lost:
        raise LeaseLost(
            f"the command has ended without the lock: {lost}",
            hint="the holder of the newer token goes on with the work; find what stalled this process, or raise --ttl",
        ) from lost


class GuardedCommand:
    """A command and its guard (see `limpet.worker.guard`), which ends it when this process or the lease ends."""

    def __init__(self, command: Sequence[str], runtime: Runtime) -> None:
        self._command = command
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._ended = runtime.flag()
        self._guard: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._read_fd, self._write_fd = os.pipe()

    def run(self, lease: Lease, env: Mapping[str, str]) -> int:
        """Start it, forward signals to it, wait for it; its exit code, 128 + n for death by signal n."""
        os.set_inheritable(self._read_fd, True)
        self._send(lease)
        with self._forwarding_signals():
            self._guard = self._start(env)
            os.close(self._read_fd)
            for number in self._early:
                self._guard.send_signal(number)
            sender = self._runtime.spawn(lambda: self._keep_sending(lease), name="limpet-guard")
            code = self._guard.wait()
        self._ended.set()
        sender.join()
        self.end()
        return code if code >= 0 else 128 - code

    def _start(self, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the guard, with signals blocked until it can forward them."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, guard.FORWARDED)
        try:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(guard.__file__)), str(self._read_fd), *self._command],
                env=dict(env),
                process_group=0,
                close_fds=False,  # what the caller opened for the command passes through; what we open does not
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def end(self) -> None:
        """Make the guard end the command; before `run`, as soon as it starts. Any thread may call it, repeatedly."""
        with self._mutex:
            if self._write_fd >= 0:
                os.close(self._write_fd)
                self._write_fd = -1

    def _keep_sending(self, lease: Lease) -> None:
        for _ in ticks(self._ended, lease.ttl_s / 6):
            self._send(lease)

    def _send(self, lease: Lease) -> None:
        """Send how long the lease is valid. If this process is stopped, the guard counts by itself."""
        with self._mutex:
            if self._write_fd < 0:
                return
            try:
                os.write(self._write_fd, guard.VALIDITY.pack(max(lease.valid_for_s(), VALIDITY_MIN_S)))
            except BrokenPipeError:  # the guard has ended, and `run` is about to see it
                return

    @contextmanager
    def _forwarding_signals(self) -> Iterator[None]:
        """Forward our signals to the command during the block; those that we were started to ignore stay ignored."""
        before = {
            each: signal.signal(each, self._forward)
            for each in guard.FORWARDED
            if signal.getsignal(each) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _forward(self, number: int, _: FrameType | None) -> None:
        if self._guard is None:
            self._early.append(number)
        else:
            self._guard.send_signal(number)
