"""Names of what is in a fleet, for the shell's completion: its queues, indexes and tables.

A completion may not make the shell wait: a child process lists the names, and what it has not said after `WAIT_S` is
left out. It goes on for `LIST_S` at most and keeps the names for `KEPT_S` in the user's cache, for the next completion.
Nothing is written to the fleet, and no failure is shown.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from limpet.kernel.runtime import system

__all__ = ["names_for"]

WAIT_S = 0.2
LIST_S = 5
KEPT_S = 20.0
NAMES_MAX = 1000
BYTES_MAX = 1 << 16
PLAIN = re.compile(r"[A-Za-z0-9_.@%+:,/-]+")
"""Names that mean nothing to a shell. Others are not completed."""


def names_for(kind: str, url: str | None) -> Sequence[str]:
    """The names of the fleet's `queue`s, `index`es or `table`s; none if they cannot be had at once.

    Cost: at most once in `KEPT_S` 1 GET + 1 LIST; for tables that of reading the catalog.
    """
    where = url or os.environ.get("LIMPET_URL")
    if not where:
        return []
    with suppress(OSError):
        kept = _cache_of(kind, where)
        with suppress(FileNotFoundError):
            if system().wall().timestamp() - kept.stat().st_mtime < KEPT_S:
                return _plain(kept.read_bytes())
        return _plain(_asked(lambda: _list(kind, where), kept))
    return []


def _cache_of(kind: str, where: str) -> Path:
    """The file that keeps the names. A relative path is another fleet in another folder."""
    place = where if "://" in where else os.path.abspath(os.path.expanduser(where))
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "limpet" / "names"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / hashlib.sha256(f"{kind}\n{place}".encode()).hexdigest()[:32]


def _plain(data: bytes) -> list[str]:
    return [name for name in data.decode(errors="replace").split("\n") if PLAIN.fullmatch(name)]


def _asked(list_names: Callable[[], Sequence[str]], kept: Path) -> bytes:
    """What a child process lists within `WAIT_S`. The shell waits for our streams, so the child closes them."""
    reads, writes = os.pipe()
    if os.fork() == 0:
        _answer(list_names, kept, writes)
    os.close(writes)
    said = b""
    with open(reads, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], WAIT_S)[0] and (part := pipe.read(BYTES_MAX)):
            said += part
    return said


def _answer(list_names: Callable[[], Sequence[str]], kept: Path, writes: int) -> NoReturn:
    """List the names, keep them, say them, and end: in the child."""
    try:
        os.setsid()
        signal.alarm(LIST_S)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        data = "\n".join(list_names()[:NAMES_MAX]).encode(errors="replace")
        fresh = kept.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(data)
        fresh.replace(kept)
        os.write(writes, data[:BYTES_MAX])
    finally:
        os._exit(0)


def _list(kind: str, where: str) -> Sequence[str]:
    import limpet

    fleet = limpet.open(where, read_only=True)
    if kind == "queue":
        return fleet.queues()
    if kind == "index":
        return fleet.indexes()
    from limpet.app.catalogs import workspace_url

    tables = limpet.open(workspace_url(where), read_only=True).catalog().at().tables
    return [f"{'.'.join(namespace)}.{name}" for namespace, name in tables]
