"""The seam to the file system: every system call that a `DirectoryStore` makes is a method here.

The simulation runs the store unchanged on another `Files`, with power loss and failing calls. So the seam is small, has
no state that a caller can see, and raises nothing but `OSError`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from typing import Protocol

__all__ = ["FileStat", "Files", "OsFiles"]


class FileStat(Protocol):
    """The fields of `os.stat_result` that the store reads."""

    @property
    def st_mode(self) -> int:
        """Kind and permissions."""

    @property
    def st_ino(self) -> int:
        """The inode's number."""

    @property
    def st_size(self) -> int:
        """Bytes."""

    @property
    def st_mtime_ns(self) -> int:
        """When the bytes were last written, on the file system's clock, or what `utime` set."""


class Files(Protocol):
    """A POSIX file system, as far as the store needs it. Paths are absolute; folders are opened like files."""

    def open(self, path: str, flags: int, mode: int = 0o777, /) -> int:
        """`os.open`. Only with O_RDONLY (file or folder), or O_WRONLY | O_CREAT | O_EXCL (a new temp file)."""

    def close(self, fd: int, /) -> None:
        """`os.close`. The descriptor is gone even if it raises."""

    def write(self, fd: int, data: bytes | memoryview, /) -> int:
        """`os.write`: append; how many bytes were taken."""

    def pread(self, fd: int, size: int, offset: int, /) -> bytes:
        """`os.pread`; fewer bytes than asked for are allowed, none means the end."""

    def fstat(self, fd: int, /) -> FileStat:
        """`os.fstat` of a file or a folder."""

    def stat(self, path: str, /) -> FileStat:
        """`os.lstat`: a link is not followed."""

    def utime(self, fd: int, mtime_ns: int, /) -> None:
        """Set the modification time of an open file, as exactly as the file system can keep it."""

    def fchmod(self, fd: int, mode: int, /) -> None:
        """`os.fchmod`. Only on folders."""

    def fsync(self, fd: int, /) -> None:
        """`os.fsync`: bytes and times of a file, or the names in a folder, survive a power loss from here on."""

    def link(self, source: str, target: str, /) -> None:
        """`os.link`: a second name, atomically.   Raises: FileExistsError; FileNotFoundError (also for no folder)."""

    def rename(self, source: str, target: str, /) -> None:
        """`os.rename`: replace the target atomically."""

    def unlink(self, path: str, /) -> None:
        """`os.unlink`."""

    def mkdir(self, path: str, mode: int = 0o777, /) -> None:
        """`os.mkdir`."""

    def rmdir(self, path: str, /) -> None:
        """`os.rmdir`: only an empty folder."""

    def scandir(self, path: str, /) -> Sequence[tuple[str, bool]]:
        """The plain files and folders in a folder, in any order: (name, whether it is a folder). Links are left out.

        Not a snapshot. On tmpfs a name that is replaced during the call may be missing, in folders too large for one
        `getdents` (about 1,000 names).
        """

    def walk(self, path: str, /) -> Iterator[tuple[str, bool]]:
        """The same, little by little, in no order: a folder of a million names costs nothing at once."""

    def lock(self, path: str, /) -> int:
        """Open the lock file, making it if need be, and wait until nobody else has it locked; what `unlock` takes.

        It excludes other processes and other threads of this one. It ends with `unlock` or with the process.
        """

    def unlock(self, fd: int, /) -> None:
        """Give the lock back. It is free even if this raises."""


class OsFiles:
    """The real file system."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    write = staticmethod(os.write)
    pread = staticmethod(os.pread)
    fstat = staticmethod(os.fstat)
    stat = staticmethod(os.lstat)
    fchmod = staticmethod(os.fchmod)
    fsync = staticmethod(os.fsync)
    link = staticmethod(os.link)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)

    @staticmethod
    def utime(fd: int, mtime_ns: int, /) -> None:
        """See `Files.utime`."""
        os.utime(fd, ns=(mtime_ns, mtime_ns))

    @staticmethod
    def scandir(path: str, /) -> Sequence[tuple[str, bool]]:
        """See `Files.scandir`."""
        with os.scandir(path) as entries:
            return [
                (entry.name, folder)
                for entry in entries
                if (folder := entry.is_dir(follow_symlinks=False)) or entry.is_file(follow_symlinks=False)
            ]

    @staticmethod
    def walk(path: str, /) -> Iterator[tuple[str, bool]]:
        """See `Files.walk`."""
        with os.scandir(path) as entries:
            for entry in entries:
                if (folder := entry.is_dir(follow_symlinks=False)) or entry.is_file(follow_symlinks=False):
                    yield entry.name, folder

    @staticmethod
    def lock(path: str, /) -> int:
        """See `Files.lock`. A descriptor of its own for each call: flock excludes descriptors, not threads."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _locked.add(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except BaseException:
            OsFiles.unlock(fd)
            raise
        return fd

    @staticmethod
    def unlock(fd: int, /) -> None:
        """See `Files.unlock`. Closing alone would not do: a forked child may share the descriptor, and the lock."""
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            _locked.discard(fd)
            os.close(fd)


_locked: set[int] = set()


def _forget_locks() -> None:
    """Close the parent's locks in a forked child, or they would outlive the parent, and writers wait for ever."""
    for fd in _locked:
        os.close(fd)
    _locked.clear()


os.register_at_fork(after_in_child=_forget_locks)
