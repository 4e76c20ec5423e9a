"""Where plain record files lie: in a folder, or in a store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from limpet.errors import Denied, LimpetError, Missing, Unavailable
from limpet.index.storage import WAITING_BYTES_MAX
from limpet.keys import Key, join
from limpet.store.api import Stat, Store, Version

__all__ = ["INBOX", "SHARDS", "FolderSource", "Source", "StoreSource"]

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
        """See `Source.files`. Other folders are jumped over.   Cost: 1 LIST a folder, and 1 per 1,000 files."""
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
        """See `Source.read`.   Cost: 1 GET each."""
        found = self._store.get_many([self._key(name) for name in names], size_max=WAITING_BYTES_MAX)
        blobs = {name: found[self._key(name)] for name in names}
        return {name: blob if isinstance(blob, LimpetError) else blob.data for name, blob in blobs.items()}

    def delete(self, names: Sequence[str]) -> Mapping[str, LimpetError | None]:
        """See `Source.delete`.   Cost: 1 DELETE each."""
        done = self._store.delete_many([self._key(name) for name in names])
        return {name: done[self._key(name)] for name in names}

    def _key(self, name: str) -> Key:
        return join(self._prefix, name)


class FolderSource:
    """A folder of this machine, with file names that some other program chose."""

    def __init__(self, path: str | os.PathLike[str], *, shards: bool = True) -> None:
        self._path = Path(path)
        self._shards = shards

    def files(self) -> Iterator[Stat]:
        """See `Source.files`."""
        if not self._path.is_dir():
            raise Missing(f"there is no folder {self._path}")
        yield from self._in(self._path, "")
        if self._shards and (self._path / SHARDS).is_dir():
            yield from self._in(self._path / SHARDS, f"{SHARDS}/")
        if self._shards and (self._path / INBOX).is_dir():
            for folder in sorted(each.name for each in (self._path / INBOX).iterdir() if each.is_dir()):
                yield from self._in(self._path / INBOX / folder, f"{INBOX}/{folder}/")

    def _in(self, path: Path, before: str) -> Iterator[Stat]:
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False):
                        found = entry.stat(follow_symlinks=False)
                        yield Stat(Key(before + entry.name), found.st_size, Version(""), _time(found.st_mtime))
        except OSError as error:
            raise _failure(f"cannot list {path}", error) from None

    def read(self, names: Sequence[str]) -> Mapping[str, bytes | LimpetError]:
        """See `Source.read`."""
        found: dict[str, bytes | LimpetError] = {}
        for name in names:
            try:
                found[name] = (self._path / name).read_bytes()
            except OSError as error:
                found[name] = _failure(f"cannot read {self._path / name}", error)
        return found

    def delete(self, names: Sequence[str]) -> Mapping[str, LimpetError | None]:
        """See `Source.delete`."""
        done: dict[str, LimpetError | None] = {}
        for name in names:
            try:
                (self._path / name).unlink(missing_ok=True)
                done[name] = None
            except OSError as error:
                done[name] = _failure(f"cannot delete {self._path / name}", error)
        return done


def _failure(what: str, error: OSError) -> LimpetError:
    if isinstance(error, FileNotFoundError):
        return Missing(f"{what}: it is not there")
    kind = Denied if isinstance(error, PermissionError) else Unavailable
    return kind(f"{what}: {error.strerror}")


def _time(seconds: float) -> datetime:
    """The time of a file; one that no calendar has is the end of time, which no record may be stamped with."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)
