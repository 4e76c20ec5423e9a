"""A store in a plain directory.

This module has the verbs, listings and file names; `writer` writes and deletes files; `folders` opens, makes and
removes folders; `files` is the interface to the operating system and its errors; `plain` is for files that other
programs name.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal

from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing
from limpet.kernel.keys import DISK_NAME_BYTES_MAX, Key, check, check_prefix, disk_name, from_disk_name, is_own_path
from limpet.kernel.records import RECORD_BYTES_MAX
from limpet.kernel.runtime import Runtime, system
from limpet.kernel.store.api import Always, Blob, Stat, Store, Version, When, check_read, check_size
from limpet.kernel.store.directory.files import Files, FileStat, OsFiles, WalkFiles, failure
from limpet.kernel.store.directory.folders import FOLDER, INNER_FOLDER, Folders
from limpet.kernel.store.directory.writer import FileClock, FileWriter, version_of
from limpet.kernel.store.memory import clip
from limpet.kernel.wording import many

__all__ = ["DirectoryStore", "FileStat", "Files", "OsFiles", "WalkFiles"]

SKIP_PAGES = 8
DISK_AT_ONCE = 4
"""A disk syncs several files in little more time than one. Without syncs, threads only wait for each other."""

# O_NONBLOCK: opening a pipe, which is no object, does not wait for its writer.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class DirectoryStore(Store):
    """Objects as files below `root`, shared by any number of processes and threads of one machine.

    `durability="fsync"`: an acknowledged write survives a power loss. `"os"`: it survives a crash of the process, but
    not of the machine. Opening and reading change nothing; the first write makes the root, and in it `.limpet` for
    locks and temp files.

    The path of the root may contain links, which are resolved once, when it is opened. Below it no link is followed:
    listings skip links, and a call that would have to follow one is `Denied`.

    `modified` is the file's mtime, but never later than the file system's clock: a file whose mtime is in the future (a
    copy from a machine with another clock) looks as if it was just written, and does not advance the store's clock.

    Crash: the old object or the new one, never a part of one; at worst a temp file remains, which is removed after a
    day, and empty folders. A reader may see a write before it is durable, and so before it is acknowledged.
    """

    conflict_is_final = True

    def __init__(
        self,
        root: Path | str,
        *,
        durability: Literal["fsync", "os"] = "fsync",
        runtime: Runtime | None = None,
        files: Files = OsFiles(),
    ) -> None:
        super().__init__(runtime or system())
        if durability not in ("fsync", "os"):
            raise Invalid(f"durability is {durability!r}", hint='use "fsync" or "os"')
        if not str(root):
            raise Invalid("the root of a directory store is empty", hint="name a folder; . is the one you are in")
        self.root = Path(os.path.abspath(root))
        self._base = os.path.realpath(self.root)
        if self._base == "/":
            raise Invalid("the root of the file system cannot be a store", hint="choose a folder below it")
        self._files = files
        self.at_once = DISK_AT_ONCE if durability == "fsync" else 1
        durable = durability == "fsync"
        self._file_clock = FileClock(self._runtime, self._clock)
        self._folders = Folders(self._base, files, self._runtime, durable=durable)
        self._writer = FileWriter(files, self._folders, self._runtime, self._file_clock, durable=durable)
        self._walks: dict[str, tuple[str, Iterator[_Listed]]] = {}

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self.root)!r})"

    def get(
        self,
        key: Key,
        *,
        range: tuple[int, int] | None = None,
        if_match: Version | None = None,
        if_none_match: Version | None = None,
        size_max: int | None = RECORD_BYTES_MAX,
    ) -> Blob:
        files = self._files
        start = 0
        try:
            fd = self._open(key)
            try:
                found = files.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    raise _not_a_file(key, found)
                stop = size = found.st_size
                version = version_of(found)
                if if_match is not None or if_none_match is not None:
                    check_read(key, version, if_match, if_none_match)
                if range is not None:
                    wanted = clip(key, range, size)
                    start, stop = wanted.start, wanted.stop
                elif size_max is not None and size > size_max:
                    check_size(key, size, size_max)
                data = files.pread(fd, stop - start, start)
                if start + len(data) < stop:
                    data = self._read_on(fd, key, data, start, stop)
            finally:
                files.close(fd)
        except FileNotFoundError:
            raise _missing(key) from None
        except OSError as error:
            raise failure(f"could not read {key}", error) from error
        return Blob(data, version, self._file_clock.modified(found.st_mtime_ns, self._probe), size)

    def _open(self, key: Key) -> int:
        path = f"{self._base}/{key}" if is_own_path(key) else self._path(key)
        if self._writer.doubtful:
            self._writer.confirm(path)
        return self._files.open(path, _READ)

    def _path(self, key: Key) -> str:
        """The path of an object. The requests of a task's life spare this call where the key is its own path.

        Raises: Invalid for a key that no store can hold.
        """
        if is_own_path(key):
            return f"{self._base}/{key}"
        folder, _, leaf = check(key).rpartition("/")
        return f"{self._base}{_folder_path(folder)}/{disk_name(leaf, leaf=True)}"

    def open(self, key: Key) -> int:
        """A descriptor of an object's file, for reading; the caller closes it. No link on its path was followed.

        Raises: Missing; Denied for a link; Unavailable.
        """
        try:
            fd = self._open(key)
        except FileNotFoundError:
            raise _missing(key) from None
        except OSError as error:
            raise failure(f"could not read {key}", error) from error
        found = self._files.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            return fd
        self._files.close(fd)
        raise _not_a_file(key, found)

    def head(self, key: Key) -> Stat:
        folder, _, name = self._path(key).rpartition("/")
        try:
            found = self._folders.look(folder, name)
        except OSError as error:
            raise failure(f"could not look at {key}", error) from error
        if found is None:
            raise _missing(key)
        return Stat(key, found.st_size, version_of(found), self._modified(found))

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """Raises: Unavailable for a full or failing disk and Denied for a read-only one, with nothing changed;
        OutcomeUnknown when the object is in its place but its folder could not be synced.
        """
        try:
            path = f"{self._base}/{key}" if is_own_path(key) else self._path(key)
            return version_of(self._writer.write(key, path, data, when))
        except OSError as error:
            raise failure(f"could not write {key}", error) from error

    def delete(self, key: Key) -> None:
        """Folders that become empty are removed too."""
        try:
            self._writer.remove(key, self._path(key))
        except OSError as error:
            raise failure(f"could not delete {key}", error) from error

    def delete_in_order(self, keys: Sequence[Key]) -> None:
        """It takes no lock, and opens and prunes the folder once."""
        try:
            self._writer.remove_in_order([self._path(key) for key in keys])
        except OSError as error:
            raise failure(f"could not delete {keys[0]}", error) from error

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """Each folder is read once, when the listing reaches its first key."""
        path, below = self._below(prefix)
        try:
            modified, probe = self._file_clock.modified, self._probe
            for key, found in _in_order(self._files, path, below, after or ""):
                yield Stat(key, found.st_size, version_of(found), modified(found.st_mtime_ns, probe))
        except OSError as error:
            raise failure(f"could not list {prefix or 'the store'}", error) from error

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        """Each call continues where the last one ended, and starts again at the end; the first call skips some names.

        So its cost depends on `n`, not on the number of objects.
        """
        path, below = self._below(prefix)
        owner, walked = self._walks.pop(prefix, ("", iter(())))
        try:
            # A forked child shares the position of its parent in the folder, so it starts a new walk.
            found: Sequence[_Listed] = [*islice(walked, n)] if owner == self._runtime.owner else []
            if len(found) < n:
                skip = 0 if owner else self._runtime.rng.randrange(SKIP_PAGES * n)
                found, walked = self._begin_again(path, below, found, n, skip)
                if len(found) < n and skip:
                    found, walked = self._begin_again(path, below, found, n, 0)
        except OSError as error:
            raise failure(f"could not list {prefix or 'the store'}", error) from error
        self._walks[prefix] = (self._runtime.owner, walked)
        return [Stat(key, met.st_size, version_of(met), self._modified(met)) for key, met in found]

    def _begin_again(
        self, path: str, below: str, found: Sequence[_Listed], n: int, skip: int
    ) -> tuple[Sequence[_Listed], Iterator[_Listed]]:
        """`found` and objects from the beginning of the folder, `n` in all, without duplicates."""
        known = {met[0]: met for met in found}
        walked = _from_anywhere(self._files, path, below, skip)
        for met in walked:
            known[met[0]] = met
            if len(known) == n:
                break
        return [*known.values()], walked

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        path, _ = self._below(prefix)
        try:
            return _folder_names(self._files, path)
        except OSError as error:
            raise failure(f"could not list {prefix or 'the store'}", error) from error

    def change_token(self, prefix: str) -> str | None:
        """See `Store.change_token`: the folder's own mtime."""
        try:
            folder = self._folders.enter(self._below(prefix)[0])
            return "" if folder is None else str(self._files.fstat(folder.fd).st_mtime_ns)
        except OSError:
            return None

    def _below(self, prefix: str) -> tuple[str, str]:
        checked = check_prefix(prefix)
        return self._base + _folder_path(prefix), checked + "/" if checked else ""

    def _read_on(self, fd: int, key: Key, data: bytes, start: int, stop: int) -> bytes:
        while start + len(data) < stop:
            more = self._files.pread(fd, stop - start - len(data), start + len(data))
            if not more:
                # F23: Limpet never changes files in place, so another program has truncated this one.
                raise Corrupt(f"{key} ends after {many(start + len(data), 'byte')}, before byte {stop}")
            data += more
        return data

    def _modified(self, found: FileStat) -> datetime:
        return self._file_clock.modified(found.st_mtime_ns, self._probe)

    def _probe(self) -> None:
        with suppress(OSError):  # this process may lack the right to write
            self._writer.probe()


def _missing(key: Key) -> Missing:
    return Missing(f"there is no object {key}")


def _not_a_file(key: Key, found: FileStat) -> LimpetError:
    """The error for a name that is not a file: `Missing` for a folder, as in a bucket, `Corrupt` for a pipe, say."""
    if stat.S_ISDIR(found.st_mode):
        return _missing(key)
    return Corrupt(f"{key} is neither a file nor a folder", hint="remove it; Limpet did not make it")


# ---- listing: depth first, in key order or from a random place, one folder at a time ----
#
# A folder is open while it is read, and its files are examined through its descriptor. Links are skipped.


_Listed = tuple[Key, FileStat]
"""An object in a listing."""

_Name = tuple[str, str]
"""The key and the name of something in a folder. The key of a folder ends in a slash, so that it sorts like the keys
below it."""

_Visit = Callable[[int, str], Iterator[_Name]]


def _in_order(files: Files, path: str, prefix: str, after: str) -> Iterator[_Listed]:
    """The objects below `prefix` (empty, or with a slash at its end) whose key is above `after`, in key order.

    A folder is read when the listing reaches its first key, and not at all if all its keys are below `after`.
    """

    def visit(folder: int, prefix: str) -> Iterator[_Name]:
        floor = after.removeprefix(prefix).partition("/")[0] if after.startswith(prefix) else ""
        entries = [
            (key, name)
            for name, is_folder in files.scandir(folder, floor)
            if (part := _segment_of(name, is_folder)) is not None
            and ((key := prefix + part) > after or (is_folder and after.startswith(key)))
        ]
        # Code points sort like their UTF-8 bytes.
        entries.sort()
        return iter(entries)

    return _walk(files, visit, path, prefix, visit)


def _from_anywhere(files: Files, path: str, prefix: str, skip: int) -> Iterator[_Listed]:
    """The objects below `prefix` in any order, without the first `skip` names of its folder. Folders are read
    lazily."""

    def visit(folder: int, prefix: str) -> Iterator[_Name]:
        for name, is_folder in files.walk(folder):
            part = _segment_of(name, is_folder)
            if part is not None:
                yield prefix + part, name

    def first(folder: int, prefix: str) -> Iterator[_Name]:
        return islice(visit(folder, prefix), skip, None)

    return _walk(files, visit, path, prefix, first)


def _folder_names(files: Files, path: str) -> list[str]:
    """The names of the folders in a folder, sorted; none if it does not exist."""
    try:
        folder = files.open(path, FOLDER)
    except FileNotFoundError:
        return []
    try:
        names = files.scandir(folder)
    except FileNotFoundError:
        return []
    finally:
        files.close(folder)
    parts = (_segment_of(name, is_folder) for name, is_folder in names if is_folder)
    return sorted(part[:-1] for part in parts if part is not None)


def _walk(files: Files, visit: _Visit, path: str, prefix: str, first: _Visit) -> Iterator[_Listed]:
    """Walk depth first. A folder that does not exist, or was removed meanwhile, has no names; any other error is raised
    (F23). `first` visits the top folder, `visit` the others."""
    try:
        fd = files.open(path, FOLDER)
    except FileNotFoundError:
        return
    levels: list[tuple[str, int, Iterator[_Name]]] = [(path, fd, iter(()))]
    """The folders that are being read: path, descriptor, and the names that are left."""
    inner, key = True, prefix
    try:
        while levels:
            above, fd, names = levels[-1]
            try:
                if inner:
                    names = (visit if levels[1:] else first)(fd, key)
                    levels[-1] = (above, fd, names)
                inner = False
                for key, name in names:
                    if key[-1] == "/":
                        opened = _open_inner(files, fd, above, name)
                        if opened is not None:
                            levels.append((f"{above}/{name}", opened, iter(())))
                            inner = True
                            break
                        continue
                    try:
                        found = files.stat(name, dir_fd=fd)
                    except FileNotFoundError:
                        continue
                    if stat.S_ISREG(found.st_mode):
                        yield Key(key), found
            except FileNotFoundError:
                pass
            if not inner:
                files.close(levels.pop()[1])
    finally:
        for _, fd, _ in levels:
            files.close(fd)


def _open_inner(files: Files, fd: int, above: str, name: str) -> int | None:
    """A folder in an open one; None if it is gone, or a link has taken its place since its name was read."""
    try:
        return files.reopen(name, INNER_FOLDER, dir_fd=fd)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        pass
    try:
        return files.open(f"{above}/{name}", FOLDER)  # which says what has taken its place
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOENT):
            return None
        raise


# ---- keys as file names below the root (F26, F28) ----


@lru_cache(maxsize=1024)
def _folder_path(prefix: str) -> str:
    """The path of a prefix's folder, from the root; empty for the root itself.   Raises: Invalid."""
    checked = check_prefix(prefix)
    return "".join(f"/{disk_name(part, leaf=False)}" for part in checked.split("/")) if checked else ""


@lru_cache(maxsize=4096)
def _segment_of(name: str, is_folder: bool) -> str | None:
    """The key segment of a file, or of a folder with a slash; None if Limpet would not have named it so."""
    if len(name) > DISK_NAME_BYTES_MAX:
        return None
    part = name if "=" not in name else _decoded(name)
    if part is None or disk_name(part, leaf=not is_folder) != name:
        return None
    return part + "/" if is_folder else part


def _decoded(name: str) -> str | None:
    part = from_disk_name(name)
    if part is None or "/" in part:
        return None
    try:
        return check(part)
    except Invalid:
        return None
