"""How tests run the command line, and wait for what it does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Done", "Here", "Spawn", "alive", "limpet_command", "poll"]

PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Done:
    """What a finished command left."""

    code: int
    out: str
    err: str


Here = Callable[..., Done]
Spawn = Callable[..., "subprocess.Popen[str]"]


def limpet_command(*arguments: str) -> list[str]:
    """The real command, as it was installed beside this Python."""
    return [str(Path(sys.executable).parent / "limpet"), *arguments]


def poll(what: str, holds: Callable[[], object]) -> None:
    """Wait until it holds."""
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, f"not so after {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and that nobody waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return not Path("/proc").exists()
