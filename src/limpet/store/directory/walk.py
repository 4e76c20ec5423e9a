"""Listing: depth first, in key order or from a random place, one folder at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from limpet.keys import Key
from limpet.store.directory.files import Files, FileStat
from limpet.store.directory.paths import segment_of
from limpet.store.directory.writer import look

__all__ = ["Found", "folders", "from_anywhere", "in_order"]


class Found(NamedTuple):
    """An object that a walk met."""

    key: Key
    stat: FileStat


class _Entry(NamedTuple):
    """A name in a folder. The key of a folder ends in a slash, so that entries sort like the keys below them."""

    key: str
    path: str


_Visit = Callable[[str, str], Iterator[_Entry]]


def in_order(files: Files, path: str, prefix: str, after: str) -> Iterator[Found]:
    """The objects below `prefix` (empty, or with a slash at its end) whose key is above `after`, in key order.

    A folder is read when its first key is due, and not at all if all its keys come before `after`.
    """

    def visit(path: str, prefix: str) -> Iterator[_Entry]:
        entries = [
            entry
            for name, is_folder in _read(files, path)
            if (entry := _entry(path, prefix, name, is_folder)) is not None
            and (entry.key > after or (is_folder and after.startswith(entry.key)))
        ]
        # Code points sort like their UTF-8 bytes.
        entries.sort()
        return iter(entries)

    return _walk(files, visit, path, prefix)


def from_anywhere(files: Files, path: str, prefix: str, skip: int) -> Iterator[Found]:
    """The objects below `prefix` in no order, behind the first `skip` names of its folder. Folders are read lazily."""

    def visit(path: str, prefix: str) -> Iterator[_Entry]:
        for name, is_folder in _read_lazily(files, path):
            entry = _entry(path, prefix, name, is_folder)
            if entry is not None:
                yield entry

    def first(path: str, prefix: str) -> Iterator[_Entry]:
        yield from islice(visit(path, prefix), skip, None)

    return _walk(files, visit, path, prefix, first)


def folders(files: Files, path: str) -> list[str]:
    """The names of the folders in a folder, sorted."""
    parts = (segment_of(name, leaf=False) for name, is_folder in _read(files, path) if is_folder)
    return sorted(part for part in parts if part is not None)


def _walk(files: Files, visit: _Visit, path: str, prefix: str, first: _Visit | None = None) -> Iterator[Found]:
    open_folders = [(first or visit)(path, prefix)]
    while open_folders:
        entry = next(open_folders[-1], None)
        if entry is None:
            open_folders.pop()
        elif entry.key.endswith("/"):
            open_folders.append(visit(entry.path, entry.key))
        else:
            stat = look(files, entry.path)
            if stat is not None:
                yield Found(Key(entry.key), stat)


def _entry(path: str, prefix: str, name: str, is_folder: bool) -> _Entry | None:
    part = segment_of(name, leaf=not is_folder)
    if part is None:
        return None
    return _Entry(f"{prefix}{part}/" if is_folder else prefix + part, f"{path}/{name}")


def _read_lazily(files: Files, path: str) -> Iterator[tuple[str, bool]]:
    try:
        yield from files.walk(path)
    except FileNotFoundError:
        return


def _read(files: Files, path: str) -> Sequence[tuple[str, bool]]:
    """A folder's names. One that is not there has none; any other error is an error (F23)."""
    try:
        return files.scandir(path)
    except FileNotFoundError:
        return ()
