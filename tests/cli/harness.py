"""How tests run the command line, and wait for what it does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["COMMANDS", "Done", "Here", "Spawn", "alive", "limpet_command", "poll"]

PATIENCE_S = 30.0
COMMANDS: list[tuple[str, ...]] = [
    (),
    ("backup",),
    ("catalog",),
    ("catalog", "gc"),
    ("catalog", "import"),
    ("catalog", "log"),
    ("catalog", "quarantine"),
    ("catalog", "quarantine", "ls"),
    ("catalog", "quarantine", "retry"),
    ("catalog", "show"),
    ("catalog", "undrop"),
    ("catalog", "verify"),
    ("check",),
    ("completion",),
    ("demo",),
    ("doctor",),
    ("events",),
    ("events", "ls"),
    ("events", "tail"),
    ("iam",),
    ("index",),
    ("index", "adopt"),
    ("index", "compile"),
    ("index", "create"),
    ("index", "delete"),
    ("index", "export"),
    ("index", "get"),
    ("index", "import"),
    ("index", "ls"),
    ("index", "publish"),
    ("index", "purge"),
    ("index", "put"),
    ("index", "reshard"),
    ("index", "schema"),
    ("index", "sql"),
    ("index", "stats"),
    ("index", "verify"),
    ("lock",),
    ("lock", "break"),
    ("lock", "ls"),
    ("lock", "run"),
    ("lock", "show"),
    ("metrics",),
    ("queue",),
    ("queue", "adopt"),
    ("queue", "cancel"),
    ("queue", "cost"),
    ("queue", "failed"),
    ("queue", "ls"),
    ("queue", "pause"),
    ("queue", "peek"),
    ("queue", "purge"),
    ("queue", "push"),
    ("queue", "resume"),
    ("queue", "retry"),
    ("queue", "show"),
    ("queue", "signal"),
    ("queue", "stats"),
    ("queue", "sweep"),
    ("restore",),
    ("serve",),
    ("serve", "api"),
    ("serve", "compactor"),
    ("sql",),
    ("status",),
    ("supervise",),
    ("tables",),
    ("tables", "compact"),
    ("tables", "expire"),
    ("tables", "orphans"),
    ("top",),
    ("ui",),
    ("upgrade",),
    ("work",),
    ("workers",),
]
"""Every command, groups too. `test_every_command_is_listed` compares it with the command line."""


class Done(NamedTuple):
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
