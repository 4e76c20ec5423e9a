"""Files below a store's root under the names that they have on the disk: those that other programs write there.

No link below the root is followed, as in the store itself: a path is opened with every component checked, and
everything else works on a name in an open folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from limpet.store.directory.files import OsFiles
from limpet.store.directory.folders import FOLDER

# Without waiting for the writer of a pipe.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class PlainFile(NamedTuple):
    """A file that a walk met: its path below the root, and the open folder that it is in. A link is a file, too."""

    path: str
    folder: int
    name: str


class PlainFiles:
    """Paths are relative to `root`, whose own links are resolved once.

    Every method raises OSError, ELOOP with the link's path for a link.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._base = os.path.realpath(root)

    @contextmanager
    def folder(self, path: str, *, make: bool = False) -> Iterator[int]:
        """An open folder. `make`: what is missing is made, the root too."""
        fd = self._open(path, make)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open(self, path: str, make: bool) -> int:
        try:
            return OsFiles.open(f"{self._base}/{path}" if path else self._base, FOLDER)
        except FileNotFoundError:
            if not make:
                raise
        if not path:
            os.makedirs(self._base, exist_ok=True)
        else:
            above, _, name = path.rpartition("/")
            with self.folder(above, make=True) as opened, suppress(FileExistsError):
                os.mkdir(name, dir_fd=opened)
        return self._open(path, make)

    def read(self, path: str) -> int:
        """A plain file, open; the caller closes it.   Raises: FileNotFoundError for anything else, too."""
        fd = OsFiles.open(f"{self._base}/{path}", _READ)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise FileNotFoundError(path)

    def create(self, folder: int, name: str) -> int:
        """A new file in an open folder, for writing; the caller closes it.   Raises: FileExistsError."""
        return os.open(name, _CREATE, 0o666, dir_fd=folder)

    def delete(self, path: str) -> None:
        """Delete a file; of a link, the link itself. One that is not there is fine."""
        above, _, name = path.rpartition("/")
        with suppress(FileNotFoundError), self.folder(above) as opened:
            os.unlink(name, dir_fd=opened)

    def walk(self, path: str) -> Iterator[PlainFile]:
        """Every file below a folder, in the order of their names folder by folder; none if there is no such folder."""
        with suppress(FileNotFoundError), self.folder(path) as top:
            for inner, folders, files, opened in os.fwalk(".", dir_fd=top, onerror=_unless_gone):
                here = f"{path}{inner[1:]}".removeprefix("/")
                folders.sort()
                links = [name for name in folders if _is_link(opened, name)]
                for name in sorted([*files, *links]):
                    yield PlainFile(f"{here}/{name}" if here else name, opened, name)

    def prune(self, path: str) -> None:
        """Remove the folders at and below a path that are empty. One that stays does no harm."""
        above, _, name = path.rpartition("/")
        with suppress(FileNotFoundError), self.folder(path) as top:
            for _, folders, _, opened in os.fwalk(".", topdown=False, dir_fd=top):
                for each in folders:
                    _remove(opened, each)
        with suppress(FileNotFoundError), self.folder(above) as opened:
            _remove(opened, name)


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _is_link(folder: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _remove(folder: int, name: str) -> None:
    with suppress(OSError):  # it is not empty, no folder, or another process was first
        os.rmdir(name, dir_fd=folder)
