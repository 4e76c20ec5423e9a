"""Where plain record files lie: in a folder, or in a store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from limpet.errors import LimpetError, Missing
from limpet.index.storage import WAITING_BYTES_MAX
from limpet.keys import Key, join
from limpet.store.api import Stat, Store, Version
from limpet.store.directory.files import failure
from limpet.store.directory.plain import PlainFiles

SHARDS = "shards"
INBOX = "inbox"


class Source(Protocol):
    """Some files, by their name below one place: those just there, in its folder `shards/`, and in `inbox/*/`."""

    def files(self) -> Iterator[Stat]:
        """Every file, in no particular order; `key` is its name.   Raises: Missing if there is no such place."""

    def read(self, names: Sequence[str]) -> Mapping[str, bytes | LimpetError]:
        """The bytes of each, or the error that its read met."""

    def delete(self, names: Sequence[str]) -> Mapping[str, LimpetError | None]:
        """Delete each; None, or the error that it met."""


_DEPTHS = {SHARDS: 0, INBOX: 1}
"""By folder, how many more are between it and its files."""


class StoreSource:
    """Below a prefix of a store. `shards=False`: only what lies just there, as in the folder of an index of ours."""

    def __init__(self, store: Store, prefix: str = "", *, shards: bool = True) -> None:
        self._store = store
        self._prefix = prefix
        self._shards = shards

    def files(self) -> Iterator[Stat]:
        """Other folders are jumped over.   Cost: 1 LIST a folder, and 1 per 1,000 files."""
        after: str | None = None
        while True:
            for stat in self._store.list(self._prefix, after=after):
                name = stat.key[len(self._prefix) + 1 :] if self._prefix else stat.key
                folder, _, rest = name.partition("/")
                if not rest or (self._shards and rest.count("/") == _DEPTHS.get(folder)):
                    yield Stat(Key(name), stat.size, stat.version, stat.modified)
                elif not self._shards or folder not in _DEPTHS:
                    # no name that begins with the folder's and a slash comes after this one
                    after = join(self._prefix, f"{folder}0")
                    break
            else:
                return

    def read(self, names: Sequence[str]) -> Mapping[str, bytes | LimpetError]:
        """Cost: 1 GET each."""
        found = self._store.get_many([self._key(name) for name in names], size_max=WAITING_BYTES_MAX)
        blobs = {name: found[self._key(name)] for name in names}
        return {name: blob if isinstance(blob, LimpetError) else blob.data for name, blob in blobs.items()}

    def delete(self, names: Sequence[str]) -> Mapping[str, LimpetError | None]:
        """Cost: 1 DELETE each."""
        done = self._store.delete_many([self._key(name) for name in names])
        return {name: done[self._key(name)] for name in names}

    def _key(self, name: str) -> Key:
        return join(self._prefix, name)


class FolderSource:
    """A folder of this machine, with file names that some other program chose. No link below it is followed.

    `root`: a folder above it below which none is followed either, such as that of a store.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, shards: bool = True, root: str | os.PathLike[str] | None = None
    ) -> None:
        self._path = Path(path)
        self._shards = shards
        self._files = PlainFiles(root or path)
        self._at = os.path.relpath(path, root) if root else ""

    def files(self) -> Iterator[Stat]:
        if not self._path.is_dir():
            raise Missing(f"there is no folder {self._path}")
        yield from self._in("")
        if self._shards:
            yield from self._in(SHARDS)
            for folder in sorted(self._folders(INBOX)):
                yield from self._in(f"{INBOX}/{folder}")

    def _in(self, folder: str) -> Iterator[Stat]:
        with self._scan(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # deleted since its name was read
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    yield Stat(Key(name), found.st_size, Version(""), _time(found.st_mtime))

    def _folders(self, folder: str) -> list[str]:
        with self._scan(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    @contextmanager
    def _scan(self, folder: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        """What is in a folder; nothing if it is none.   Raises: Denied; Unavailable."""
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

    def read(self, names: Sequence[str]) -> Mapping[str, bytes | LimpetError]:
        found: dict[str, bytes | LimpetError] = {}
        for name in names:
            try:
                with open(self._files.read(self._name(name)), "rb") as file:
                    found[name] = file.read()
            except OSError as error:
                found[name] = _failure(f"cannot read {self._path / name}", error)
        return found

    def delete(self, names: Sequence[str]) -> Mapping[str, LimpetError | None]:
        done: dict[str, LimpetError | None] = {}
        for name in names:
            try:
                self._files.delete(self._name(name))
                done[name] = None
            except OSError as error:
                done[name] = _failure(f"cannot delete {self._path / name}", error)
        return done


def _failure(what: str, error: OSError) -> LimpetError:
    if isinstance(error, FileNotFoundError):
        return Missing(f"{what}: it is not there")
    return failure(what, error)


def _time(seconds: float) -> datetime:
    """The time of a file; one that no calendar has is the end of time, which no record may be stamped with."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)
