"""Start a server, wait until it answers, and stop it surely."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

__all__ = ["Bucket", "NotInstalled", "NotStarted", "Server", "free_ports", "temp_folder"]

START_S = 60.0
ATTEMPTS = 3


class NotInstalled(Exception):
    """The machine lacks a server; the message names the package."""


class NotStarted(Exception):
    """The server ended, or stayed silent, instead of answering."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where an empty bucket is and how to log in. `options` go to `CloudStore`, `env` to a child process."""

    url: str
    options: Mapping[str, str]
    env: Mapping[str, str] = field(default_factory=dict)
    read_only: Mapping[str, str] = field(default_factory=dict)

    def at(self, prefix: str) -> str:
        """The URL of `prefix` in this bucket."""
        base, mark, query = self.url.partition("?")
        return f"{base}/{prefix}{mark}{query}"


class Server(ABC):
    """A context manager around one or more server processes and their folder."""

    def __init__(self) -> None:
        self.folder = Path()
        self._running: list[subprocess.Popen[bytes]] = []

    @abstractmethod
    def launch(self) -> Bucket:
        """Start the processes with `run`, wait until they answer, make the bucket."""

    def __enter__(self) -> Self:
        atexit.register(self.stop)
        for attempt in range(ATTEMPTS):
            self.folder = temp_folder()
            try:
                self.bucket = self.launch()
                return self
            except NotStarted:  # most likely another process took the port between our look and the server's bind
                if attempt == ATTEMPTS - 1:
                    raise
                self.stop()
            except BaseException:
                self.stop()
                raise
        raise AssertionError("unreachable")

    def __exit__(self, *_: object) -> None:
        self.stop()
        atexit.unregister(self.stop)

    def stop(self) -> None:
        """Kill every process group that was started here, and remove the folder."""
        for process in reversed(self._running):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._running.clear()
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start `command` in a process group of its own; its output goes to `<folder>/<name>.log`."""
        with open(self.folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                [*_dies_with_parent(), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Poll `ready` until it is true.   Raises: NotStarted when a process ends first, or nothing answers in time."""
        until = time.monotonic() + START_S
        while not ready():
            ended = [process for process in self._running if process.poll() is not None]
            if ended or time.monotonic() > until:
                logs = "\n".join(_tail(path) for path in sorted(self.folder.glob("*.log")))
                raise NotStarted(f"{what} {'ended' if ended else 'did not answer'}\n{logs}")
            time.sleep(0.05)


def _dies_with_parent() -> Sequence[str]:
    tool = shutil.which("setpriv")
    return [tool, "--pdeathsig", "KILL", "--"] if tool else []


def _tail(path: Path) -> str:
    return f"--- {path.name}\n{path.read_bytes()[-2000:].decode(errors='replace')}"


def free_ports(n: int) -> list[int]:
    """`n` ports of 127.0.0.1 that nobody listens on just now."""
    sockets = [socket.socket() for _ in range(n)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def temp_folder(name: str | None = None) -> Path:
    """A new folder, or the path of one of that name, in memory where the machine allows it."""
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    return parent / name if name else Path(tempfile.mkdtemp(prefix="limpet-", dir=parent))
