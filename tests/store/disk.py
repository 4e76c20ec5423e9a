"""File systems for the tests of the directory store: recorded, failing, coarse; and processes to run on them."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from limpet.kernel.store.directory import Files, FileStat, OsFiles

__all__ = [
    "Fault",
    "Tape",
    "Versioned",
    "coarse",
    "failing",
    "files_with",
    "fork",
    "join",
    "new_root",
    "run_threads",
    "temps",
    "unstamped",
]

CALLS = [name for name in vars(Files) if not name.startswith("_")]
TICK_NS = 4_000_000
CACHE = Path(__file__).resolve().parent.parent.parent / ".cache"
"""Of the checkout: what `make test` calls a temporary folder may lie in memory."""

Before = Callable[[str, tuple[Any, ...]], None]
"""Gets the name of a call and its arguments: those without a name, then the folders."""


@dataclass(frozen=True)
class Versioned:
    """A `FileStat` made by hand."""

    st_mode: int
    st_dev: int
    st_ino: int
    st_size: int
    st_mtime_ns: int
    st_nlink: int = 1


def files_with(before: Before = lambda name, args: None, **instead: Callable[..., Any]) -> Files:
    """The real file system, with a word before each call, and other calls instead of some."""

    def tap(name: str) -> Callable[..., Any]:
        real = instead.get(name) or getattr(OsFiles, name)

        def call(*args: Any, **named: Any) -> Any:
            before(name, (*args, *named.values()))
            return real(*args, **named)

        return call

    return cast(Files, SimpleNamespace(**{name: tap(name) for name in CALLS}))


def failing(calls: str, code: int) -> Files:
    """Every one of these calls fails."""

    def before(name: str, args: tuple[Any, ...]) -> None:
        if name in calls.split():
            raise OSError(code, os.strerror(code))

    return files_with(before)


class Fault:
    """Fails the call of that number, once. `failed` is its name."""

    def __init__(self, number: int, code: int) -> None:
        self.left, self.code = number, code
        self.failed = ""
        self.files = files_with(self._before)

    def _before(self, name: str, args: tuple[Any, ...]) -> None:
        self.left -= 1
        if self.left == 0:
            self.failed = name
            raise OSError(self.code, os.strerror(self.code))


class Tape:
    """Records each call as `name path`: the path is taken from `above`, and temp files are called TEMP."""

    def __init__(self, above: Path) -> None:
        self.files = files_with(self._note, open=self._open, create=self._create, reopen=self._create)
        self._said: list[str] = []
        self._above = str(above)
        self._paths: dict[int, str] = {}

    def _open(self, path: str, flags: int, /) -> int:
        fd = OsFiles.open(path, flags)
        self._paths[fd] = path
        return fd

    def _create(self, name: str, flags: int, mode: int = 0, /, *, dir_fd: int) -> int:
        fd = OsFiles.create(name, flags, mode, dir_fd=dir_fd)
        self._paths[fd] = f"{self._paths[dir_fd]}/{name}"
        return fd

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "unpin":
            return
        at = args[1 if name in ("link", "rename") else 0]
        path = at if isinstance(at, str) else self._paths.get(at, "")
        if not path.startswith("/"):
            path = f"{self._paths.get(args[-1], '')}/{path}"
        short = path.removeprefix(self._above).lstrip("/") or "."
        self._said.append(f"{name} {'TEMP' if '.limpet/tmp/' in short else short}")

    def take(self, *names: str) -> list[str]:
        """The calls since the last take; only those of these names, if any are given."""
        said = [line for line in self._said if not names or line.split()[0] in names]
        self._said.clear()
        return said


def coarse() -> Files:
    """The worst disk: its clock ticks every 4 ms, and every file has the same inode number (F15)."""

    def write(fd: int, data: bytes) -> int:
        count = os.write(fd, data)
        os.utime(fd, ns=(0, os.fstat(fd).st_mtime_ns // TICK_NS * TICK_NS))
        return count

    return files_with(
        write=write,
        fstat=lambda fd: _same_inode(os.fstat(fd)),
        stat=lambda name, dir_fd: _same_inode(OsFiles.stat(name, dir_fd=dir_fd)),
    )


def unstamped() -> Files:
    """The planted bug, on the worst disk: files keep the clock's own mtime, and `fstat` hides it from the store."""
    files = coarse()
    asked_ns: dict[int, int] = {}

    def fstat(fd: int) -> FileStat:
        real = os.fstat(fd)
        return _same_inode(real, asked_ns.get(fd, real.st_mtime_ns))

    def close(fd: int) -> None:
        asked_ns.pop(fd, None)
        os.close(fd)

    def utime(fd: int, ns: tuple[int, int]) -> None:
        asked_ns[fd] = ns[1]

    return files_with(write=files.write, stat=files.stat, utime=utime, fstat=fstat, close=close)


def _same_inode(real: FileStat, mtime_ns: int | None = None) -> Versioned:
    """Folders keep their own: nobody's folders are all alike while they are open."""
    inode = real.st_ino if stat.S_ISDIR(real.st_mode) else 1
    made_ns = real.st_mtime_ns if mtime_ns is None else mtime_ns
    return Versioned(real.st_mode, real.st_dev, inode, real.st_size, made_ns, real.st_nlink)


def fork(work: Callable[[], object]) -> int:
    """Run `work` in a forked child; its pid. The child fails if `work` raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is what is tested
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def join(*pids: int) -> None:
    """Wait for forked children; all must have succeeded."""
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * len(pids)


def run_threads(*works: Callable[[], object]) -> None:
    """Run all at once; none may raise."""
    failed: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


@contextmanager
def new_root(where: str) -> Iterator[Path]:
    """A folder that is not there yet, on "disk", where the checkout lies, or on "tmpfs"."""
    above = Path("/dev/shm") if where == "tmpfs" else CACHE
    if where == "tmpfs" and not above.is_dir():
        pytest.skip("no tmpfs at /dev/shm")
    above.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="limpet-", dir=above) as folder:
        yield Path(folder) / "store"


def temps(root: Path) -> list[str]:
    """The temp files of a store."""
    folder = root / ".limpet" / "tmp"
    return os.listdir(folder) if folder.exists() else []
