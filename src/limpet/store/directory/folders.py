"""The folders of a store: opening, making, syncing and pruning them, without following a link.

**Open folders.** A few folders are kept open. Before one is used its path is looked at again: the same device and inode
number mean the same folder, for a number is not given away while a folder is open. So a folder that was replaced, by
another folder or by a link, is noticed, and nothing is ever done through the link.

**Durability.** A folder is durable once its parent was synced. Its maker may be killed before that, and others may
write into it meanwhile: so each process syncs the parents of a folder before its first acknowledgement there, and
remembers that for as long as it keeps the folder open. A folder that was pruned and made again is another one (F25).

**Access.** Who may write into the root takes part: the owner always; the group if the root is group-writable; everybody
if the root is writable for all and not sticky. All files and folders get exactly these rights, whatever the umask.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from limpet.runtime import Runtime
from limpet.store.directory.files import Files, FileStat, Pin

R = TypeVar("R")

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
PRIVATE = 0o600
OPEN_MAX = 32
MKDIR_TRIES = 1000


def parent(path: str) -> str:
    """The folder of a file or folder."""
    return path.rpartition("/")[0] or "/"


class Folder:
    """A folder that is open while this is referred to. `durable`: whether its parents were synced since it was made."""

    __slots__ = ("_pin", "device", "durable", "fd", "inode", "path")

    def __init__(self, path: str, pin: Pin, found: FileStat) -> None:
        self.path = path
        self.fd = pin.fd
        self.device = found.st_dev
        self.inode = found.st_ino
        self.durable = False
        self._pin = pin


def look(files: Files, folder: Folder | None, name: str) -> FileStat | None:
    """What stands at a name in a folder (None: there is no folder), if it is a plain file.

    Raises: OSError, ELOOP for a link.
    """
    if folder is None:
        return None
    try:
        found = files.stat(folder.fd, name)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(found.st_mode):
        return found
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), f"{folder.path}/{name}")
    return None


def open_folder(files: Files, path: str) -> Folder:
    """Open a folder.   Raises: OSError."""
    fd = files.open(path, FOLDER)
    try:
        found = files.fstat(fd)
    except BaseException:
        files.close(fd)
        raise
    return Folder(path, files.pin(fd), found)


class Folders:
    """The folders below one root."""

    def __init__(self, root: str, files: Files, runtime: Runtime, *, durable: bool) -> None:
        self.root = root
        self.own = f"{root}/.limpet"
        self.temps = f"{self.own}/tmp"
        self.locks = f"{self.own}/locks"
        self.access = 0
        """The rights of every file; 0 until the root was looked at."""

        self._below = root + "/"
        self._files = files
        self._runtime = runtime
        self._durable = durable
        self._mutex = runtime.mutex()
        self._open: dict[str, Folder] = {}
        self._temps: Folder | None = None

    def enter(self, path: str) -> Folder | None:
        """The folder at `path`; None if there is none.   Raises: OSError."""
        known = self._open.get(path)
        if known is not None:
            try:
                met = self._files.identify(path)
                if met.st_ino == known.inode and met.st_dev == known.device:
                    return known
            except OSError:
                pass  # opening it tells what is wrong
        try:
            folder = open_folder(self._files, path)
        except FileNotFoundError:
            self._forget(path)
            return None
        with self._mutex:
            self._open.pop(path, None)
            self._open[path] = folder
            if len(self._open) > OPEN_MAX:
                del self._open[next(iter(self._open))]
        return folder

    def make(self, path: str) -> Folder:
        """The folder at `path`, which was missing just now.   Raises: FileNotFoundError, when it was pruned again."""
        self._make_all(path)
        folder = self.enter(path)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return folder

    def _forget(self, path: str) -> None:
        with self._mutex:
            self._open.pop(path, None)

    # -- durability

    def sync(self, folder: Folder) -> None:
        """Make the names in a folder survive a power loss, and the folder itself (F25)."""
        self._files.fsync(folder.fd)
        if folder.durable or folder.path == self.root:
            return
        above = self.enter(parent(folder.path))
        # None: it was pruned, so what we wrote here was deleted, and that was synced.
        if above is not None:
            self.sync(above)
        self._drop_mark(folder)
        folder.durable = True

    def _drop_mark(self, folder: Folder) -> None:
        """Version 0.1 set a bit of a durable folder's mode. Copies of the folder have it too, so it proves nothing."""
        with suppress(OSError):
            mode = stat.S_IMODE(self._files.fstat(folder.fd).st_mode)
            if mode & stat.S_ISUID:
                self._files.fchmod(folder.fd, mode & ~stat.S_ISUID)

    # -- making and removing

    def _make_all(self, path: str) -> list[str]:
        """Make a folder and what is missing above it; those that were missing, topmost first."""
        made: list[str] = []
        missing = [path]
        tries = 0
        while missing:
            above, _, name = missing[-1].rpartition("/")
            folder = self.enter(above or "/")
            if folder is None:
                missing.append(above)
                continue
            try:
                self._make(folder, name, missing[-1])
                made.append(missing[-1])
            except FileExistsError:
                pass
            except FileNotFoundError:
                tries += 1
                if tries > MKDIR_TRIES:
                    raise  # no place for folders; others prune no folder so often
                continue
            missing.pop()
        return made

    def _make(self, above: Folder, name: str, path: str) -> None:
        """Make one folder.   Raises: FileExistsError."""
        if not path.startswith(self._below):
            self._files.mkdir(above.fd, name, 0o700 if path == self.root else 0o777)
        elif self.access in (0, PRIVATE):
            self._files.mkdir(above.fd, name, 0o700)
        else:
            self._make_shared(above, name)

    def _make_shared(self, above: Folder, name: str) -> None:
        """Make a folder that others use, too. It gets its rights before its name, so nobody ever sees it without."""
        files = self._files
        temp = f"{self._runtime.rng.getrandbits(64):016x}"
        temps = open_folder(files, self.temps)
        files.mkdir(temps.fd, temp, 0o700)
        try:
            self._set_access(open_folder(files, f"{self.temps}/{temp}"))
            files.rename(temps.fd, temp, above.fd, name)
        except OSError as error:
            files.rmdir(temps.fd, temp)
            if error.errno in (errno.ENOTEMPTY, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f"{above.path}/{name}") from None
            raise

    def prune(self, path: str) -> None:
        """Remove folders that are empty now, from `path` up. One that stays does no harm."""
        with suppress(OSError):
            while path != self.root:
                above = self.enter(parent(path))
                if above is None:
                    return
                self._files.rmdir(above.fd, path.rpartition("/")[2])
                self._forget(path)
                path = above.path

    # -- our own folder

    def in_temps(self, call: Callable[[Folder], R]) -> R:
        """Do something in the folder of temp files, which is made if need be, with the root above it.

        It is ours, so it is not looked at again while it is open: one that was removed answers FileNotFoundError.
        """
        if self._temps is not None:
            try:
                return call(self._temps)
            except FileNotFoundError:
                self._temps = None
        folder = self.enter(self.temps)
        if folder is None:
            self._prepare()
            folder = open_folder(self._files, self.temps)
        elif not self.access:
            self._secure()
        result = call(folder)
        self._temps = folder
        return result

    def enter_locks(self) -> Folder:
        """The folder of lock files. A power loss may take it and leave that of temp files; then it is made again."""
        folder = self.enter(self.locks)
        if folder is None:
            self._prepare()
            folder = open_folder(self._files, self.locks)
        return folder

    def _prepare(self) -> None:
        """Make the root and our own folder in it. What lies in there need not survive a power loss."""
        for made in self._make_all(self.root):
            if self._durable:
                above = open_folder(self._files, parent(made))
                self._files.fsync(above.fd)
        self._learn_access()
        for path in (self.own, self.locks, self.temps):  # temps last: where it is, the others are
            above, name = open_folder(self._files, parent(path)), path.rpartition("/")[2]
            with suppress(FileExistsError):
                self._files.mkdir(above.fd, name, 0o700)
                if self.access != PRIVATE:
                    self._set_access(open_folder(self._files, path))

    def _secure(self) -> None:
        """Hold our own folder to the rights of the root, once: version 0.1 let every user of the machine in."""
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
        """Give a folder the rights that all have; whether it had others."""
        wanted = self.access | (self.access & 0o444) >> 2
        mode = stat.S_IMODE(self._files.fstat(folder.fd).st_mode)
        if mode & 0o777 == wanted:
            return False
        with suppress(PermissionError):  # another user's folder is for its owner to change
            self._files.fchmod(folder.fd, mode & stat.S_ISGID | wanted)
        return True
