"""Listing: depth first, in key order or from a random place, one folder at a time.

A folder is open while it is read, and what is below it is looked at through it. Links are passed over.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from limpet.keys import Key
from limpet.store.directory.files import Files, FileStat
from limpet.store.directory.folders import FOLDER
from limpet.store.directory.paths import segment_of


class Found(NamedTuple):
    """An object that a walk met."""

    key: Key
    stat: FileStat


class _Entry(NamedTuple):
    """A name in a folder. The key of a folder ends in a slash, so that entries sort like the keys below them."""

    key: str
    name: str


_Visit = Callable[[int, str], Iterator[_Entry]]


def in_order(files: Files, path: str, prefix: str, after: str) -> Iterator[Found]:
    """The objects below `prefix` (empty, or with a slash at its end) whose key is above `after`, in key order.

    A folder is read when its first key is due, and not at all if all its keys come before `after`.
    """

    def visit(folder: int, prefix: str) -> Iterator[_Entry]:
        entries = [
            entry
            for name, is_folder in files.scandir(folder)
            if (entry := _entry(prefix, name, is_folder)) is not None
            and (entry.key > after or (is_folder and after.startswith(entry.key)))
        ]
        # Code points sort like their UTF-8 bytes.
        entries.sort()
        return iter(entries)

    return _walk(files, visit, path, prefix, visit)


def from_anywhere(files: Files, path: str, prefix: str, skip: int) -> Iterator[Found]:
    """The objects below `prefix` in no order, behind the first `skip` names of its folder. Folders are read lazily."""

    def visit(folder: int, prefix: str) -> Iterator[_Entry]:
        for name, is_folder in files.walk(folder):
            entry = _entry(prefix, name, is_folder)
            if entry is not None:
                yield entry

    def first(folder: int, prefix: str) -> Iterator[_Entry]:
        return islice(visit(folder, prefix), skip, None)

    return _walk(files, visit, path, prefix, first)


def folders(files: Files, path: str) -> list[str]:
    """The names of the folders in a folder, sorted. One that is not there has none."""
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
    parts = (segment_of(name, leaf=False) for name, is_folder in names if is_folder)
    return sorted(part for part in parts if part is not None)


class _Level(NamedTuple):
    """A folder that is being read."""

    path: str
    fd: int
    entries: Iterator[_Entry]


def _walk(files: Files, visit: _Visit, path: str, prefix: str, first: _Visit) -> Iterator[Found]:
    """One that is not there, or was removed meanwhile, has no names; any other error is an error (F23)."""
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
            elif (found := _look(files, level.fd, entry.name)) is not None:
                yield Found(Key(entry.key), found)
    finally:
        for level in levels:
            files.close(level.fd)


def _look(files: Files, folder: int, name: str) -> FileStat | None:
    try:
        found = files.stat(folder, name)
    except FileNotFoundError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _entry(prefix: str, name: str, is_folder: bool) -> _Entry | None:
    part = segment_of(name, leaf=not is_folder)
    if part is None:
        return None
    return _Entry(f"{prefix}{part}/" if is_folder else prefix + part, name)
