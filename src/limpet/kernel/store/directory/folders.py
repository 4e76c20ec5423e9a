"""The folders of a store: opening, making, syncing and pruning them, without following a link.

**Open folders.** A few folders are kept open. Before one is used, its path is checked again: the same device and inode
number mean the same folder, because an inode number is not reused while the folder is open. So a folder that was
replaced, by another folder or by a link, is detected, and no link is ever followed.

**Durability.** A folder is durable once its parent was synced. The process that made it may be killed before that,
while others already write into it. So each process syncs the parents of a folder before it first acknowledges a write
there, and remembers this while it keeps the folder open. A folder that was removed and made again is a new one (F25).

**Access.** Every user who may write to the root may use the store: the owner always; the group if the root is
group-writable; all users if the root is world-writable and not sticky. All files and folders get these rights,
regardless of the umask.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from itertools import count

from limpet.kernel.runtime import Runtime
from limpet.kernel.store.directory.files import Files, FileStat
from limpet.kernel.waiting import CONTENDED_TRIES_MAX

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
INNER_FOLDER = FOLDER | os.O_NOFOLLOW
"""For the name of a folder in an open one."""
LOOK = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_CLOEXEC
"""Flags for a descriptor on which only `fstat` is called. Opening does not block on a pipe, and on Linux does not need
the right to read."""
PRIVATE = 0o600
OPEN_MAX = 32
EMPTY_LINKS = 2
"""A folder with more links than this contains folders. With fewer it may, too: not every file system counts them."""


def parent(path: str) -> str:
    """The folder of a file or folder."""
    return path.rpartition("/")[0] or "/"


class Folder:
    """A folder that stays open while this object is referenced, so that its inode number is not reused.

    `durable`: its parents were synced since it was made. `stat`: its identity, once it was asked for.
    """

    __slots__ = ("_files", "durable", "fd", "path", "stat")

    def __init__(self, path: str, fd: int, files: Files) -> None:
        self.path = path
        self.fd = fd
        self.durable = False
        self.stat: FileStat | None = None
        self._files = files

    def examine(self) -> FileStat:
        """Its stat when it was first asked for: device and inode number do not change."""
        self.stat = self.stat or self._files.fstat(self.fd)
        return self.stat

    def __del__(self) -> None:
        try:  # noqa: SIM105 - at the end of the interpreter, suppress may be gone already
            self._files.unpin(self.fd)
        except OSError:
            pass


def look(files: Files, folder: Folder | None, name: str) -> FileStat | None:
    """The stat of a plain file in a folder; None if there is no such file, or no folder.

    Raises: OSError, ELOOP for a link.
    """
    if folder is None:
        return None
    try:
        found = files.stat(name, dir_fd=folder.fd)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(found.st_mode):
        return found
    _refuse_link(found, folder.path, name)
    return None


def _refuse_link(found: FileStat, folder: str, name: str) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), f"{folder}/{name}")


def open_folder(files: Files, path: str) -> Folder:
    """Open a folder.   Raises: OSError."""
    return Folder(path, files.open(path, FOLDER), files)


class Folders:
    """The folders below one root."""

    def __init__(self, root: str, files: Files, runtime: Runtime, *, durable: bool) -> None:
        self.root = root
        self.own = f"{root}/.limpet"
        self.temps = f"{self.own}/tmp"
        self.locks = f"{self.own}/locks"
        self.access = 0
        """The rights of every file; 0 until those of the root are known."""

        self._below = root + "/"
        self._files = files
        self._runtime = runtime
        self._durable = durable
        self._mutex = runtime.mutex()
        self._open: dict[str, Folder] = {}
        self.opened_temps: Folder | None = None
        """The folder of temp files, once it is open: only Limpet uses it, so its path is not checked again."""

    def enter(self, path: str) -> Folder | None:
        """The folder at `path`; None if there is none.   Raises: OSError."""
        known = self._open.get(path)
        if known is not None:
            try:
                met, own = self._files.identify(path), known.stat or known.examine()
                if met.st_ino == own.st_ino and met.st_dev == own.st_dev:
                    return known
            except OSError:
                pass  # the open below raises the error, if it persists
        try:
            return self._keep(path, self._files.open(path, FOLDER))
        except FileNotFoundError:
            if known is not None:
                self._forget(path)
            return None

    def _keep(self, path: str, fd: int) -> Folder:
        folder = Folder(path, fd, self._files)
        with self._mutex:
            self._open.pop(path, None)
            self._open[path] = folder
            if len(self._open) > OPEN_MAX:
                del self._open[next(iter(self._open))]
        return folder

    def look(self, folder: str, name: str) -> FileStat | None:
        """The stat of a plain file; None if there is none. A folder that is not open is not opened for this.

        Raises: OSError, ELOOP for a link.
        """
        if folder in self._open:
            return look(self._files, self.enter(folder), name)
        files = self._files
        try:
            fd = files.open(f"{folder}/{name}", LOOK)
        except FileNotFoundError:
            return None
        try:
            found = files.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                _refuse_link(found, folder, name)
                return None
            return found
        finally:
            files.close(fd)

    def make(self, path: str, made: list[str] | None = None) -> Folder:
        """Make the folder at `path`, and its parents if they are missing. Those that were made are added to `made`.

        Raises: FileNotFoundError if it was pruned again.
        """
        above_path, _, name = path.rpartition("/")
        for tries in count(1):
            above = self.enter(above_path or "/") or self.make(above_path, made)
            try:
                if self.access in (0, PRIVATE) or not path.startswith(self._below):
                    self._files.mkdir(name, 0o700 if path.startswith(self.root) else 0o777, dir_fd=above.fd)
                else:
                    self._make_shared(above, name)
                break
            except FileExistsError:
                folder = self.enter(path)
                if folder is None:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
                return folder
            except FileNotFoundError:
                if tries > CONTENDED_TRIES_MAX:
                    raise  # no folder can be made there; other processes do not prune it this often
        if made is not None:
            made.append(path)
        try:
            fd = self._files.reopen(name, INNER_FOLDER, dir_fd=above.fd)
        except NotADirectoryError:
            fd = self._files.open(path, FOLDER)  # which says what has taken its place
        return self._keep(path, fd)

    def _forget(self, path: str) -> None:
        with self._mutex:
            self._open.pop(path, None)

    # -- durability

    def sync(self, folder: Folder) -> None:
        """Make the names in a folder durable, and the folder itself (F25)."""
        self._files.fsync(folder.fd)
        if folder.durable or folder.path == self.root:
            return
        above = self.enter(parent(folder.path))
        # None: the parent was pruned, so the objects written here were deleted, and that was synced.
        if above is not None:
            self.sync(above)
        self._drop_mark(folder)
        folder.durable = True

    def _drop_mark(self, folder: Folder) -> None:
        """Clear the mode bit by which version 0.1 marked durable folders. Copies of a folder have it too, so it proves
        nothing."""
        with suppress(OSError):
            if folder.examine().st_mode & stat.S_ISUID:
                mode = stat.S_IMODE(self._files.fstat(folder.fd).st_mode)
                self._files.fchmod(folder.fd, mode & ~stat.S_ISUID)

    # -- making and removing

    def _make_shared(self, above: Folder, name: str) -> None:
        """Make a folder that users share. It is renamed into place after its rights are set, so it never lacks them."""
        files = self._files
        temp = f"{self._runtime.rng.getrandbits(64):016x}"
        temps = open_folder(files, self.temps)
        files.mkdir(temp, 0o700, dir_fd=temps.fd)
        try:
            self._set_access(open_folder(files, f"{self.temps}/{temp}"))
            files.rename(temp, name, src_dir_fd=temps.fd, dst_dir_fd=above.fd)
        except OSError as error:
            files.rmdir(temp, dir_fd=temps.fd)
            if error.errno in (errno.ENOTEMPTY, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f"{above.path}/{name}") from None
            raise

    def prune(self, path: str) -> None:
        """Remove the folder at `path` and its parents, as far as they are empty. Errors are ignored: an empty folder
        does no harm."""
        try:
            while path != self.root:
                above_path, _, name = path.rpartition("/")
                above = self.enter(above_path)
                if above is None:
                    return
                self._files.rmdir(name, dir_fd=above.fd)
                if path in self._open:
                    self._forget(path)
                if self._files.fstat(above.fd).st_nlink > EMPTY_LINKS:
                    return
                path = above_path
        except OSError:
            pass

    # -- our own folder

    def open_temps(self) -> Folder:
        """Open the folder of temp files; it is made if needed, and the root too."""
        folder = self.enter(self.temps)
        if folder is None:
            self._prepare()
            folder = open_folder(self._files, self.temps)
        elif not self.access:
            self._secure()
        self.opened_temps = folder
        return folder

    def enter_locks(self) -> Folder:
        """The folder of lock files. It is made again if a power loss has removed it and not that of temp files."""
        folder = self.enter(self.locks)
        if folder is None:
            self._prepare()
            folder = open_folder(self._files, self.locks)
        return folder

    def _prepare(self) -> None:
        """Make the root and the folder `.limpet` in it, which need not survive a power loss."""
        made: list[str] = []
        self.make(self.root, made)
        for path in made if self._durable else ():
            above = open_folder(self._files, parent(path))
            self._files.fsync(above.fd)
        self._learn_access()
        for path in (self.own, self.locks, self.temps):  # temps last: if it exists, the others were made
            above, name = open_folder(self._files, parent(path)), path.rpartition("/")[2]
            with suppress(FileExistsError):
                self._files.mkdir(name, 0o700, dir_fd=above.fd)
                if self.access != PRIVATE:
                    self._set_access(open_folder(self._files, path))

    def _secure(self) -> None:
        """Give `.limpet` the rights of the root, once: version 0.1 gave every user of the machine access."""
        self._learn_access()
        if self._set_access(open_folder(self._files, self.own)):
            for path in (self.locks, self.temps):
                with suppress(FileNotFoundError):
                    self._set_access(open_folder(self._files, path))

    def _learn_access(self) -> None:
        root = open_folder(self._files, self.root)
        mode = self._files.fstat(root.fd).st_mode
        group = 0o060 if mode & stat.S_IWGRP else 0
        others = 0o006 if mode & stat.S_IWOTH and not mode & stat.S_ISVTX else 0
        self.access = PRIVATE | group | others

    def _set_access(self, folder: Folder) -> bool:
        """Give a folder the rights of the store; returns whether it had others."""
        wanted = self.access | (self.access & 0o444) >> 2
        mode = stat.S_IMODE(self._files.fstat(folder.fd).st_mode)
        if mode & 0o777 == wanted:
            return False
        with suppress(PermissionError):  # only its owner can change another user's folder
            self._files.fchmod(folder.fd, mode & stat.S_ISGID | wanted)
        return True
