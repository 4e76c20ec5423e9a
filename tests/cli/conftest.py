"""The command line: in this process where that will do, else as a process of its own."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.harness import Spawn, limpet_command

__all__ = ["spawn"]


@pytest.fixture(autouse=True, scope="session")
def _signals() -> None:
    """A run under nohup, or in the background, hands down ignored signals; what we start must not inherit them."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LIMPET_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """`spawn("lock", "run", ...)` starts a real `limpet` with pipes; whatever is left at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(limpet_command(*arguments), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
