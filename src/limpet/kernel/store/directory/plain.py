"""Files below a store's root by their names on the disk, which are not encoded keys: other programs write them.

No link below the root is followed, as in the store itself: a path is opened with every component checked, and
everything else works on a name in an open folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import NamedTuple

from limpet.kernel import keys, records
from limpet.kernel.errors import Missing
from limpet.kernel.keys import Key, is_ulid
from limpet.kernel.runtime import Runtime
from limpet.kernel.store import DirectoryStore
from limpet.kernel.store.api import Always, Blob, Stat, Store, Version, When, WrappedStore, check_size
from limpet.kernel.store.directory.files import OsFiles, failure
from limpet.kernel.store.directory.folders import FOLDER
from limpet.kernel.store.directory.writer import version_of

# Without waiting for the writer of a pipe.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class PlainFile(NamedTuple):
    """A file found by a walk: its path below the root, and the open folder that it is in. A link counts as a file."""

    path: str
    folder: int
    name: str


class PlainFiles:
    """Paths are relative to `root`, whose own links are resolved once.

    Every method raises OSError; for a symbolic link, ELOOP with the link's path.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._base = os.path.realpath(root)

    @contextmanager
    def folder(self, path: str, *, make: bool = False) -> Iterator[int]:
        """An open folder. `make`: make missing folders, the root too."""
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
        """A plain file, open; the caller closes it.   Raises: FileNotFoundError, also for anything but a plain file."""
        fd = OsFiles.open(f"{self._base}/{path}", _READ)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise FileNotFoundError(path)

    def create(self, folder: int, name: str) -> int:
        """A new file in an open folder, for writing; the caller closes it.   Raises: FileExistsError."""
        return os.open(name, _CREATE, 0o666, dir_fd=folder)

    def delete(self, path: str) -> None:
        """Delete a file, or a link itself. It is no error if it does not exist."""
        above, _, name = path.rpartition("/")
        with suppress(FileNotFoundError), self.folder(above) as opened:
            os.unlink(name, dir_fd=opened)

    def walk(self, path: str) -> Iterator[PlainFile]:
        """Every file below a folder, folder by folder, sorted by name in each; none if the folder does not exist."""
        with suppress(FileNotFoundError), self.folder(path) as top:
            for inner, folders, files, opened in os.fwalk(".", dir_fd=top, onerror=_unless_gone):
                here = f"{path}{inner[1:]}".removeprefix("/")
                folders.sort()
                links = [name for name in folders if _is_link(opened, name)]
                for name in sorted([*files, *links]):
                    yield PlainFile(f"{here}/{name}" if here else name, opened, name)

    def stats(self, path: str) -> Iterator[Stat]:
        """Every plain file below a folder that is not half written, with its size and time."""
        for file, folder, name in self.walk(path):
            if _is_temporary(name):
                continue
            with suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(found.st_mode):
                    yield _stat_of(Key(file), found)

    def prune(self, path: str) -> None:
        """Remove the empty folders at and below a path. Those that cannot be removed are left."""
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
    with suppress(OSError):  # it is not empty or no folder, or another process has removed it
        os.rmdir(name, dir_fd=folder)


WAREHOUSE = "warehouse"


def plain_warehouse(store: Store, runtime: Runtime) -> Store:
    """The store; for a directory, a `PlainWarehouse`.

    Other programs write table files there, with names that the store would take for encoded ones (`day=2026-11-17`).
    """
    return PlainWarehouse(store, runtime) if isinstance(store, DirectoryStore) else store


class PlainWarehouse(WrappedStore):
    """A directory store whose keys below `warehouse/` are paths.

    No link is followed: a listing skips links, and a call that would have to follow one is `Denied`.
    """

    def __init__(self, store: DirectoryStore, runtime: Runtime) -> None:
        super().__init__(store, runtime)
        self._files = PlainFiles(store.root)

    def get(
        self,
        key: Key,
        *,
        range: tuple[int, int] | None = None,
        if_match: Version | None = None,
        if_none_match: Version | None = None,
        size_max: int | None = records.RECORD_BYTES_MAX,
    ) -> Blob:
        if not key.startswith(f"{WAREHOUSE}/"):
            return super().get(key, range=range, if_match=if_match, if_none_match=if_none_match, size_max=size_max)
        with _explained(key), open(self._files.read(key), "rb") as file:
            stat = _stat_of(key, os.fstat(file.fileno()))
            check_size(key, stat.size, size_max)
            return Blob(file.read(), stat.version, stat.modified, stat.size)

    def head(self, key: Key) -> Stat:
        if not key.startswith(f"{WAREHOUSE}/"):
            return super().head(key)
        with _explained(key), open(self._files.read(key), "rb") as file:
            return _stat_of(key, os.fstat(file.fileno()))

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`; below `warehouse/` the condition is ignored."""
        if not key.startswith(f"{WAREHOUSE}/"):
            return super().put(key, data, when=when)
        above, _, name = keys.check(key).rpartition("/")
        with _explained(key), self._files.folder(above, make=True) as folder:
            temporary = f".{name[:200]}.{self._runtime.new_id()}"
            with open(self._files.create(folder, temporary), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                stat = _stat_of(key, os.fstat(file.fileno()))
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
            return stat.version

    def delete(self, key: Key) -> None:
        if not key.startswith(f"{WAREHOUSE}/"):
            super().delete(key)
            return
        with _explained(key):
            self._files.delete(keys.check(key))

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """Below `warehouse/` in the order of the file system."""
        if not prefix or prefix.split("/")[0] != WAREHOUSE:
            others = super().list(prefix, after=after)
            yield from (stat for stat in others if not stat.key.startswith(f"{WAREHOUSE}/"))
        if not prefix or prefix.split("/")[0] == WAREHOUSE:
            with _explained(Key(prefix or WAREHOUSE)):
                yield from self._files.stats(prefix or WAREHOUSE)


@contextmanager
def _explained(key: Key) -> Iterator[None]:
    """Translate an OSError of the block.   Raises: Missing; Denied for a link in the path; Unavailable."""
    try:
        yield
    except FileNotFoundError:
        raise Missing(f"there is no object {key}") from None
    except OSError as error:
        raise failure(f"could not reach {key}", error) from error


def _is_temporary(name: str) -> bool:
    """Whether a file is a partial write of a process that was killed."""
    return name.startswith(".") and is_ulid(name.rpartition(".")[2])


def _stat_of(key: Key, found: os.stat_result) -> Stat:
    return Stat(key, found.st_size, version_of(found), datetime.fromtimestamp(found.st_mtime_ns / 1e9, UTC))
