"""How tests run the command line, and wait for what it does."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 30.0


def _commands() -> Iterator[tuple[tuple[str, ...], list[str] | None]]:
    for line in Path(__file__).with_name("commands.txt").read_text(encoding="utf-8").splitlines()[1:]:
        words, colon, arguments = line.partition(":")
        yield tuple(words.split()), shlex.split(arguments) if colon else None


COMMANDS: list[tuple[str, ...]] = [(), *(words for words, _ in _commands())]
"""Every command, groups too. `test_every_command_is_listed` compares it with the command line."""
NEED_STORE = {words: arguments for words, arguments in _commands() if arguments is not None}
"""The commands that need a store, with arguments that a store would take. URL is that of the store, else it is `-u`."""


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


def on_terminal(*arguments: str) -> tuple[int, int]:
    """A real `limpet` on a terminal of its own: its process id, and our end of the terminal."""
    pid, fd = pty.fork()
    if pid == 0:
        command = limpet_command(*arguments)
        os.execv(command[0], command)
    return pid, fd


def read_until(fd: int, ends: Callable[[bytes], bool], said: bytes = b"") -> bytes:
    """What a terminal shows, after what it has said, up to where that holds."""
    while not ends(said):
        said += os.read(fd, 4096)
    return said


def answered(answer: bytes, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A real `limpet` that has ended, whose question was answered on a terminal."""
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    done = subprocess.run(limpet_command(*arguments), stdin=theirs, capture_output=True, text=True)
    os.close(ours)
    os.close(theirs)
    return done


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
