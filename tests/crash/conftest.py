"""Places to crash in, and processes that surely end with the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from support.servers.process import Bucket

__all__ = ["Start", "place", "poll", "start"]

TESTS = Path(__file__).resolve().parent.parent
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(params=["directory", "seaweedfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty place that this process and its children can open."""
    if request.param == "directory":
        return str(tmp_path / "fleet")
    bucket: Bucket = request.getfixturevalue("seaweedfs")
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    return bucket.at(f"crash-{uuid4().hex}")


@pytest.fixture
def start() -> Iterator[Start]:
    """`start("count", url, ...)` runs a program of `crash.programs`."""
    running: list[subprocess.Popen[str]] = []

    def run(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "crash.programs", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            start_new_session=True,
        )
        running.append(process)
        return process

    yield run
    for process in running:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its own children too: they hold its pipes open
        process.communicate()


@pytest.fixture
def poll() -> Callable[[Callable[[], bool], str], None]:
    """Wait until something is true."""

    def wait(ready: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + 60
        while not ready():
            assert time.monotonic() < until_s, f"{what}: not within 60 s"
            time.sleep(0.005)

    return wait
