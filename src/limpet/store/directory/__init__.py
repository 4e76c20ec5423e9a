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
from typing import Literal, NamedTuple

from limpet.errors import Corrupt, Invalid, LimpetError, Missing
from limpet.keys import DISK_NAME_BYTES_MAX, Key, check, check_prefix, disk_name, from_disk_name, is_own_path
from limpet.records import RECORD_BYTES_MAX
from limpet.runtime import Runtime, system
from limpet.store.api import Always, Blob, Stat, Store, Version, When, check_read, check_size
from limpet.store.directory.files import Files, FileStat, OsFiles, Pin, WalkFiles, failure
from limpet.store.directory.folders import FOLDER, Folders
from limpet.store.directory.writer import FileClock, FileWriter, version_of
from limpet.store.memory import clip

__all__ = ["DirectoryStore", "FileStat", "Files", "OsFiles", "Pin", "WalkFiles"]

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
        try:
            fd = self._open(key)
            try:
                found = files.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    raise _not_a_file(key, found)
                size = found.st_size
                version = version_of(found)
                check_read(key, version, if_match, if_none_match)
                if range is None:
                    check_size(key, size, size_max)
                    data = self._read(fd, key, 0, size)
                else:
                    wanted = clip(key, range, size)
                    data = self._read(fd, key, wanted.start, wanted.stop)
            finally:
                files.close(fd)
        except FileNotFoundError:
            raise _missing(key) from None
        except OSError as error:
            raise failure(f"could not read {key}", error) from error
        return Blob(data, version, self._modified(found), size)

    def _open(self, key: Key) -> int:
        path = self._base + _file_path(key)
        if self._writer.doubtful:
            self._writer.confirm(path)
        return self._files.open(path, _READ)

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
        folder, _, name = (self._base + _file_path(key)).rpartition("/")
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
        path = self._base + _file_path(key)
        try:
            found = self._writer.write(key, path, data, when)
        except OSError as error:
            raise failure(f"could not write {key}", error) from error
        return version_of(found)

    def delete(self, key: Key) -> None:
        """Folders that become empty are removed too."""
        path = self._base + _file_path(key)
        try:
            self._writer.remove(key, path)
        except OSError as error:
            raise failure(f"could not delete {key}", error) from error

    def delete_in_order(self, keys: Sequence[Key]) -> None:
        """It takes no lock, and opens and prunes the folder once."""
        paths = [self._base + _file_path(key) for key in keys]
        try:
            self._writer.remove_in_order(paths)
        except OSError as error:
            raise failure(f"could not delete {keys[0]}", error) from error

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """Each folder is read once, when the listing reaches its first key."""
        path, below = self._below(prefix)
        try:
            for key, found in _in_order(self._files, path, below, after or ""):
                yield Stat(key, found.st_size, version_of(found), self._modified(found))
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
        known = {met.key: met for met in found}
        walked = _from_anywhere(self._files, path, below, skip)
        for met in walked:
            known[met.key] = met
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

    def _read(self, fd: int, key: Key, start: int, stop: int) -> bytes:
        data = self._files.pread(fd, stop - start, start)
        while start + len(data) < stop:
            more = self._files.pread(fd, stop - start - len(data), start + len(data))
            if not more:
                # F23: Limpet never changes files in place, so another program has truncated this one.
                raise Corrupt(f"{key} ends after {start + len(data)} bytes, before byte {stop}")
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


class _Listed(NamedTuple):
    """An object in a listing."""

    key: Key
    stat: FileStat


class _Name(NamedTuple):
    """A name in a folder, and its key. The key of a folder ends in a slash, so that it sorts like the keys below it."""

    key: str
    name: str


_Visit = Callable[[int, str], Iterator[_Name]]


def _in_order(files: Files, path: str, prefix: str, after: str) -> Iterator[_Listed]:
    """The objects below `prefix` (empty, or with a slash at its end) whose key is above `after`, in key order.

    A folder is read when the listing reaches its first key, and not at all if all its keys are below `after`.
    """

    def visit(folder: int, prefix: str) -> Iterator[_Name]:
        floor = after.removeprefix(prefix).partition("/")[0] if after.startswith(prefix) else ""
        entries = [
            entry
            for name, is_folder in files.scandir(folder, floor)
            if (entry := _named(prefix, name, is_folder)) is not None
            and (entry.key > after or (is_folder and after.startswith(entry.key)))
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
            entry = _named(prefix, name, is_folder)
            if entry is not None:
                yield entry

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
    parts = (_segment_of(name, leaf=False) for name, is_folder in names if is_folder)
    return sorted(part for part in parts if part is not None)


class _Level(NamedTuple):
    """A folder that is being read."""

    path: str
    fd: int
    entries: Iterator[_Name]


def _walk(files: Files, visit: _Visit, path: str, prefix: str, first: _Visit) -> Iterator[_Listed]:
    """Walk depth first. A folder that does not exist, or was removed meanwhile, has no names; any other error is raised
    (F23). `first` visits the top folder, `visit` the others."""
    levels: list[_Level] = []

    def enter(path: str, prefix: str, visit: _Visit) -> None:
        try:
            fd = files.open(path, FOLDER)
        except FileNotFoundError:
            return
        except OSError as error:
            if levels and error.errno == errno.ELOOP:
                return  # a link has taken the folder's place since its name was read
            raise
        levels.append(_Level(path, fd, iter(())))
        try:
            levels[-1] = _Level(path, fd, visit(fd, prefix))
        except FileNotFoundError:
            return

    try:
        enter(path, prefix, first)
        while levels:
            level = levels[-1]
            try:
                entry = next(level.entries, None)
            except FileNotFoundError:
                entry = None
            if entry is None:
                levels.pop()
                files.close(level.fd)
            elif entry.key.endswith("/"):
                enter(f"{level.path}/{entry.name}", entry.key, visit)
            elif (found := _plain_stat(files, level.fd, entry.name)) is not None:
                yield _Listed(Key(entry.key), found)
    finally:
        for level in levels:
            files.close(level.fd)


def _plain_stat(files: Files, folder: int, name: str) -> FileStat | None:
    try:
        found = files.stat(folder, name)
    except FileNotFoundError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _named(prefix: str, name: str, is_folder: bool) -> _Name | None:
    part = _segment_of(name, leaf=not is_folder)
    if part is None:
        return None
    return _Name(f"{prefix}{part}/" if is_folder else prefix + part, name)


# ---- keys as file names below the root (F26, F28) ----


@lru_cache(maxsize=4096)
def _file_path(key: Key) -> str:
    """The path of an object, from the root.   Raises: Invalid for a key that no store can hold."""
    if is_own_path(key):
        return f"/{key}"
    folder, _, leaf = check(key).rpartition("/")
    return f"{_folder_path(folder)}/{disk_name(leaf, leaf=True)}"


@lru_cache(maxsize=1024)
def _folder_path(prefix: str) -> str:
    """The path of a prefix's folder, from the root; empty for the root itself.   Raises: Invalid."""
    checked = check_prefix(prefix)
    return "".join(f"/{disk_name(part, leaf=False)}" for part in checked.split("/")) if checked else ""


def _segment_of(name: str, *, leaf: bool) -> str | None:
    """The key segment of a file (`leaf`) or folder; None if Limpet would not have named it so."""
    if len(name) > DISK_NAME_BYTES_MAX:
        return None
    part = name if "=" not in name else _decoded(name)
    return part if part is not None and disk_name(part, leaf=leaf) == name else None


def _decoded(name: str) -> str | None:
    part = from_disk_name(name)
    if part is None or "/" in part:
        return None
    try:
        return check(part)
    except Invalid:
        return None
