"""The interface to the file system: every system call of a `DirectoryStore` is a method of `Files`.

The simulation runs the store unchanged on another `Files`, with power loss and failing calls. So the interface is
small, has no state that a caller can see, and raises only `OSError`.

**Links.** No symbolic link is ever followed. A path is opened with every component checked by the kernel (`openat2` on
Linux, O_NOFOLLOW_ANY on macOS), or component by component where neither exists; everything else works on a name in an
open folder. So a link that another process makes at any moment is not followed either.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from limpet.kernel.errors import Denied, Invalid, LimpetError, OutcomeUnknown, Unavailable


class FileStat(Protocol):
    """The fields of `os.stat_result` that the store reads."""

    @property
    def st_mode(self) -> int:
        """Kind and permissions."""

    @property
    def st_dev(self) -> int:
        """The number of the file system."""

    @property
    def st_ino(self) -> int:
        """The inode's number."""

    @property
    def st_nlink(self) -> int:
        """How many names it has."""

    @property
    def st_size(self) -> int:
        """Bytes."""

    @property
    def st_mtime_ns(self) -> int:
        """When the bytes were last written, on the file system's clock, or the time that `utime` set."""


class Files(Protocol):
    """A POSIX file system, as far as the store needs it: the calls of `os`, without links.

    Paths are absolute; a link anywhere in one raises ELOOP with the link's path. `dir_fd` is an open folder; if the
    folder was removed since, a call for a name in it raises FileNotFoundError.
    """

    def open(self, path: str, flags: int, /) -> int:
        """Open an existing file or folder, for reading."""

    def create(self, name: str, flags: int, mode: int, /, *, dir_fd: int) -> int:
        """A new file in a folder, for writing.   Raises: FileExistsError."""

    def reopen(self, name: str, flags: int, /, *, dir_fd: int) -> int:
        """Open something that this process has made in a folder."""

    def close(self, fd: int, /) -> None:
        """The descriptor is closed even if it raises."""

    def unpin(self, fd: int, /) -> None:
        """Close a folder to which nothing refers any more."""

    def write(self, fd: int, data: bytes | memoryview, /) -> int:
        """Append; returns the number of bytes that were written."""

    def pread(self, fd: int, size: int, offset: int, /) -> bytes:
        """Fewer bytes than asked for are allowed, none means the end."""

    def fstat(self, fd: int, /) -> FileStat:
        """The stat of an open file or folder."""

    def stat(self, name: str, /, *, dir_fd: int) -> FileStat:
        """The stat of a name in a folder."""

    def identify(self, path: str, /) -> FileStat:
        """The stat of a path, following links above its last name: only for comparison with an open folder."""

    def utime(self, fd: int, /, *, ns: tuple[int, int]) -> None:
        """Set the times of an open file, as exactly as the file system can store them."""

    def fchmod(self, fd: int, mode: int, /) -> None:
        """Set the rights of an open file or folder."""

    def fsync(self, fd: int, /) -> None:
        """Afterwards, the bytes and times of a file or the names in a folder survive a power loss."""

    def link(self, name: str, to_name: str, /, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        """A second name, atomically.   Raises: FileExistsError; FileNotFoundError."""

    def rename(self, name: str, to_name: str, /, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        """Replace the target atomically."""

    def unlink(self, name: str, /, *, dir_fd: int) -> None:
        """Remove a file, or a link itself."""

    def mkdir(self, name: str, mode: int, /, *, dir_fd: int) -> None:
        """Make a folder."""

    def rmdir(self, name: str, /, *, dir_fd: int) -> None:
        """Remove a folder, if it is empty."""

    def scandir(self, folder: int, floor: str = "", /) -> Sequence[tuple[str, bool]]:
        """The plain files and folders in a folder, in any order: (name, whether it is a folder). Links are left out.

        Names below `floor` may be left out, except those with an escape (`=`) and those with which it begins.
        Not a snapshot. On tmpfs a name that is replaced during the call may be missing, in folders too large for one
        `getdents` (about 1,000 names).
        """

    def walk(self, folder: int, /) -> Iterator[tuple[str, bool]]:
        """The same, read lazily, in any order: a folder of a million names is not read as a whole."""

    def lock(self, path: str, /) -> int:
        """Open the lock file, which must exist, and wait until this caller has locked it. Returns the argument of
        `unlock`.

        The lock excludes other processes and other threads of this one. It ends with `unlock` or with the process.
        """

    def unlock(self, fd: int, /) -> None:
        """Release the lock. It is released even if this raises."""


# ---- paths without links ----


_PASS = getattr(os, "O_PATH", getattr(os, "O_SEARCH", os.O_RDONLY)) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_FDCWD = -100
_OPENAT2 = 437
_RESOLVE_NO_SYMLINKS = 0x04
_O_NOFOLLOW_ANY = 0x20000000


class _OpenArguments(ctypes.Structure):
    """`struct open_how` of openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _by_openat2() -> Callable[[str, int], int] | None:
    """`open` by one system call of Linux 5.6 and later; None where it does not exist, or a sandbox refuses it."""
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return None
    # Arguments converted to C types once: that halves the time of a call.
    number, cwd, size = (
        ctypes.c_long(_OPENAT2),
        ctypes.c_long(_AT_FDCWD),
        ctypes.c_size_t(ctypes.sizeof(_OpenArguments)),
    )
    get_errno = ctypes.get_errno
    known: dict[int, tuple[ctypes.c_void_p, _OpenArguments]] = {}

    def open_path(path: str, flags: int, /) -> int:
        how = known.get(flags)
        if how is None:
            made = _OpenArguments(flags, 0, _RESOLVE_NO_SYMLINKS)
            how = known[flags] = (ctypes.c_void_p(ctypes.addressof(made)), made)
        while True:
            fd: int = syscall(number, cwd, path.encode("utf-8", "surrogateescape"), how[0], size)
            if fd >= 0:
                return fd
            code = get_errno()
            if code == errno.ENOENT:
                raise FileNotFoundError(code, os.strerror(code), path)
            if code != errno.EINTR:
                raise _error(code, path)

    try:
        os.close(open_path("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError:
        return None
    return open_path


def _by_nofollow_any(path: str, flags: int, /) -> int:
    """`open` by one system call of macOS 11 and later."""
    try:
        return os.open(path, flags | _O_NOFOLLOW_ANY)
    except OSError as error:
        raise _error(error.errno or 0, path) from None


def _by_steps(path: str, flags: int, /) -> int:
    """`open` one component after the other: works on every POSIX system."""
    *folders, name = path.split("/")[1:]
    at = os.open("/", _PASS)
    try:
        for folder in folders:
            try:
                inner = os.open(folder, _PASS, dir_fd=at)
            except NotADirectoryError:
                is_link = stat.S_ISLNK(os.stat(folder, dir_fd=at, follow_symlinks=False).st_mode)
                raise _error(errno.ELOOP if is_link else errno.ENOTDIR, path) from None
            os.close(at)
            at = inner
        try:
            return os.open(name, flags | os.O_NOFOLLOW, dir_fd=at)
        except OSError as error:
            code = error.errno or 0
            if code == errno.ENOTDIR:
                with suppress(OSError):
                    if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                        code = errno.ELOOP
            raise _error(code, path) from None
    finally:
        os.close(at)


def _error(code: int, path: str) -> OSError:
    """The error of an open; for a link in the path, with the first link as the file's name."""
    if code == errno.ELOOP:
        parts = path.split("/")
        above = ("/".join(parts[:n]) for n in range(2, len(parts) + 1))
        path = next((each for each in above if os.path.islink(each)), path)
    return OSError(code, os.strerror(code), path)


_open_path: Callable[[str, int], int] = (
    _by_nofollow_any if sys.platform == "darwin" else (sys.platform == "linux" and _by_openat2()) or _by_steps
)


class OsFiles:
    """The real file system."""

    open = staticmethod(_open_path)
    create = reopen = staticmethod(os.open)
    close = unpin = staticmethod(os.close)
    write = staticmethod(os.write)
    pread = staticmethod(os.pread)
    fstat = staticmethod(os.fstat)
    stat = staticmethod(partial(os.stat, follow_symlinks=False))
    identify = staticmethod(os.lstat)
    utime = staticmethod(os.utime)
    fchmod = staticmethod(os.fchmod)
    fsync = staticmethod(os.fsync)
    link = staticmethod(partial(os.link, follow_symlinks=False))
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)

    @staticmethod
    def scandir(folder: int, floor: str = "", /) -> Sequence[tuple[str, bool]]:
        with os.scandir(folder) as entries:
            return [
                (name, is_folder)
                for entry in entries
                if ((name := entry.name) >= floor or "=" in name or floor.startswith(name))
                and ((is_folder := entry.is_dir(follow_symlinks=False)) or entry.is_file(follow_symlinks=False))
            ]

    @staticmethod
    def walk(folder: int, /) -> Iterator[tuple[str, bool]]:
        with os.scandir(folder) as entries:
            for entry in entries:
                if (is_folder := entry.is_dir(follow_symlinks=False)) or entry.is_file(follow_symlinks=False):
                    yield entry.name, is_folder

    @classmethod
    def lock(cls, path: str, /) -> int:
        """Each call opens a new descriptor: flock excludes other descriptors, not other threads."""
        fd = cls.open(path, os.O_RDWR | os.O_CLOEXEC)
        _locked.add(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except BaseException:
            OsFiles.unlock(fd)
            raise
        return fd

    @staticmethod
    def unlock(fd: int, /) -> None:
        """Closing alone is not enough: a forked child may share the descriptor, and with it the lock."""
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            _locked.discard(fd)
            os.close(fd)


class WalkFiles(OsFiles):
    """The real file system, with paths opened one component after the other, as `OsFiles` does on other kernels."""

    open = staticmethod(_by_steps)


_locked: set[int] = set()


def _forget_locks() -> None:
    """Close the parent's locks in a forked child. Else they would stay locked after the parent, and writers would
    hang."""
    for fd in _locked:
        os.close(fd)
    _locked.clear()


os.register_at_fork(after_in_child=_forget_locks)


# ---- errors ----


_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_TOO_MANY_OPEN = (errno.EMFILE, errno.ENFILE)


def is_full(error: LimpetError) -> bool:
    """Whether a write failed since the disk is full."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL


def failure(what: str, error: OSError) -> LimpetError:
    """The error for a call that failed and changed nothing (F27)."""
    reason = f"{what}: {error.strerror or error}"
    if error.errno in _FULL:
        return Unavailable(f"the disk is full; {reason}", hint="free some space or raise the quota, then retry")
    if error.errno in _FORBIDDEN:
        return Denied(reason, hint="check the folder's owner and mode, and whether its disk is mounted read-only")
    if error.errno in _TOO_MANY_OPEN:
        return Unavailable(reason, hint="raise the limit of open files (ulimit -n), or use fewer threads")
    if error.errno == errno.ENOTDIR:
        return Invalid(reason, hint="a file stands where the store needs a folder; check the path of the store")
    if error.errno == errno.ENOENT:  # of a write: folders are made on the way
        return Unavailable(reason, hint="no folder can be made there, or its disk is gone; check the path of the store")
    if error.errno == errno.ELOOP:
        return Denied(
            f"{what}: {error.filename or 'its path'} is a symbolic link, and Limpet follows none below a store's root",
            hint="replace the link by what it points to (or by a bind mount), or point the store's root there",
        )
    return Unavailable(reason, hint="back off and retry; if it stays, check the disk (dmesg)")


def not_durable(what: str, error: OSError) -> OutcomeUnknown:
    """The error for a change that is visible, but may not survive a power loss."""
    return OutcomeUnknown(
        f"{what}: it is visible but may not be durable: {error.strerror or error}",
        hint="do not clean up after it; check the disk (dmesg), then read again before deciding",
    )
