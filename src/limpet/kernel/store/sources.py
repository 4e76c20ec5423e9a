"""Files that other programs wrote, in a local folder or below a prefix of a store: the input of `adopt`.

The caller says at which depth of which folders files are read: `{"": (0,), "inbox": (1,)}` are the files at the top
level and those in the folders of `inbox/`. Other files are named to the caller, so that none is passed over in silence.
File names are arbitrary, and the contents are not trusted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeVar

from limpet.kernel.errors import LimpetError, Missing
from limpet.kernel.keys import Key, disk_name, join
from limpet.kernel.store.api import Stat, Store, Version, check_size
from limpet.kernel.store.directory.files import failure
from limpet.kernel.store.directory.plain import PlainFiles

A = TypeVar("A")

Folders = Mapping[str, Collection[int]]
"""By folder, the allowed numbers of folders between it and its files. The empty name is the top level."""
NoteOther = Callable[[str], None]
"""Gets the name of each file that lies at another place. A link, or a pipe, counts as a file."""


def has_place(folders: Folders, name: str) -> bool:
    """Whether a file of that name is one of those to be read."""
    folder, slash, rest = name.partition("/")
    return (rest or name).count("/") in folders.get(folder if slash else "", ())


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that was not imported, and why. It is not changed."""

    name: str
    reason: str


def bad_file(name: str, reason: str | LimpetError) -> BadFile:
    """Report an invalid file. On a disk its name may not be valid Unicode."""
    if isinstance(reason, LimpetError):
        reason = f"{reason} ({reason.hint})" if reason.hint else str(reason)
    return BadFile(shown(name), reason)


def shown(name: str) -> str:
    """The name of a file as valid Unicode, which it may not be on a disk."""
    return name.encode(errors="replace").decode()


class FileSource(Protocol):
    """Files by their name below one folder."""

    def files(self, note_other: NoteOther | None = None) -> Iterator[Stat]:
        """Every file to be read; `key` is its name. Folders are sorted; so are the files of one, or they are adjacent.

        With `note_other` all folders are listed, but those that are the store's own.
        Raises: Missing if there is no such folder.
        """

    def name_of(self, name: str) -> str:
        """The name here of an object of Limpet, by its key below the same folder."""

    def read(self, names: Sequence[str], *, size_max: int) -> Mapping[str, bytes | LimpetError]:
        """The bytes of each, or the error of its read: Corrupt for a file of more than `size_max` bytes."""

    def delete(self, names: Sequence[str]) -> Mapping[str, LimpetError | None]:
        """Delete each; None, or the error."""

    def prune(self, folder: str) -> None:
        """Remove the folders at and below `folder` that are empty."""


class StoreSource:
    """Files below a prefix of a store. `own`: folders and files there that are not of the other program."""

    def __init__(self, store: Store, prefix: str, folders: Folders, *, own: Collection[str] = ()) -> None:
        self._store = store
        self._prefix = prefix
        self._folders = folders
        self._own = own

    def files(self, note_other: NoteOther | None = None) -> Iterator[Stat]:
        """Cost: 1 LIST a folder that is not listed, and 1 per 1,000 files."""
        after: str | None = None
        while True:
            for stat in self._store.list(self._prefix, after=after):
                name = stat.key[len(self._prefix) + 1 :] if self._prefix else stat.key
                folder, slash, _ = name.partition("/")
                if folder not in self._own and has_place(self._folders, name):
                    yield Stat(Key(name), stat.size, stat.version, stat.modified)
                elif slash and (folder in self._own or (note_other is None and folder not in self._folders)):
                    # all names in the folder sort before this one
                    after = join(self._prefix, f"{folder}0")
                    break
                elif note_other is not None and folder not in self._own:
                    note_other(name)
            else:
                return

    def name_of(self, name: str) -> str:
        return name

    def read(self, names: Sequence[str], *, size_max: int) -> Mapping[str, bytes | LimpetError]:
        """Cost: 1 GET each."""
        found = self._store.get_many([self._key(name) for name in names], size_max=size_max)
        blobs = {name: found[self._key(name)] for name in names}
        return {name: blob if isinstance(blob, LimpetError) else blob.data for name, blob in blobs.items()}

    def delete(self, names: Sequence[str]) -> Mapping[str, LimpetError | None]:
        """Cost: 1 DELETE each."""
        done = self._store.delete_many([self._key(name) for name in names])
        return {name: done[self._key(name)] for name in names}

    def prune(self, folder: str) -> None:
        """A store has no empty folders."""

    def _key(self, name: str) -> Key:
        return join(self._prefix, name)


class FolderSource:
    """A local folder with file names of another program. Symbolic links below it are not followed.

    `own`: as in `StoreSource`. `root`: a folder above it, such as that of a store, below which links are not followed
    either.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        folders: Folders,
        *,
        own: Collection[str] = (),
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        self._path = Path(path)
        self._folders = folders
        self._own = own
        self._files = PlainFiles(root or path)
        self._at = os.path.relpath(path, root) if root else ""

    def files(self, note_other: NoteOther | None = None) -> Iterator[Stat]:
        """Raises: Denied, also for a link in the place of a folder to be read."""
        if not self._path.is_dir():
            raise Missing(f"there is no folder {self._path}", hint="check the path")
        yield from self._below("", note_other)

    def _below(self, folder: str, note_other: NoteOther | None) -> Iterator[Stat]:
        inner: list[str] = []
        with self._scan(folder) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if not folder and name in self._own:
                    continue
                # A link in the place of a folder to be read is not passed over: to open it is denied.
                is_read = note_other is not None or entry.is_file(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False) or (name in self._folders and entry.is_symlink()):
                    inner.append(name)
                elif is_read and has_place(self._folders, name):
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # deleted since its name was read
                    yield Stat(Key(name), found.st_size, Version(""), _time(found.st_mtime))
                elif note_other is not None:
                    note_other(name)
        for name in sorted(inner):
            if note_other is not None or name.partition("/")[0] in self._folders:
                yield from self._below(name, note_other)

    def name_of(self, name: str) -> str:
        *folders, leaf = name.split("/")
        return "/".join([*(disk_name(each, leaf=False) for each in folders), disk_name(leaf, leaf=True)])

    @contextmanager
    def _scan(self, folder: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        """The entries of a folder; none if it does not exist.   Raises: Denied; Unavailable."""
        with ExitStack() as stack:
            entries: Iterator[os.DirEntry[str]] = iter(())
            try:
                opened = stack.enter_context(self._files.folder(self._name(folder)))
                entries = stack.enter_context(os.scandir(opened))
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                raise _failure(f"cannot list {self._path / folder}", error) from None
            yield entries

    def _name(self, name: str) -> str:
        return "/".join(part for part in (self._at, name) if part)

    def read(self, names: Sequence[str], *, size_max: int) -> Mapping[str, bytes | LimpetError]:
        def read(name: str) -> bytes:
            with open(self._files.read(self._name(name)), "rb") as file:
                check_size(Key(name), os.fstat(file.fileno()).st_size, size_max)
                return file.read(size_max)

        return self._each(names, "read", read)

    def delete(self, names: Sequence[str]) -> Mapping[str, LimpetError | None]:
        return self._each(names, "delete", lambda name: self._files.delete(self._name(name)))

    def _each(self, names: Sequence[str], verb: str, act: Callable[[str], A]) -> dict[str, A | LimpetError]:
        done: dict[str, A | LimpetError] = {}
        for name in names:
            try:
                done[name] = act(name)
            except OSError as error:
                done[name] = _failure(f"cannot {verb} {self._path / name}", error)
            except LimpetError as error:
                done[name] = error
        return done

    def prune(self, folder: str) -> None:
        try:
            self._files.prune(self._name(folder))
        except OSError as error:
            raise _failure(f"cannot remove empty folders of {self._path / folder}", error) from None


def _failure(what: str, error: OSError) -> LimpetError:
    if isinstance(error, FileNotFoundError):
        return Missing(f"{what}: it does not exist, or is no plain file")
    return failure(what, error)


def _time(seconds: float) -> datetime:
    """The time of a file; `datetime.max` if it is out of range."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)
