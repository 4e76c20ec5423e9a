"""Table files on a directory, under the names that they have on the disk."""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from limpet import keys, records
from limpet.errors import Missing
from limpet.keys import Key, is_ulid
from limpet.runtime import Runtime
from limpet.store import DirectoryStore
from limpet.store.api import Always, Blob, Stat, Store, Version, When, check_size
from limpet.store.directory.files import failure
from limpet.store.directory.plain import PlainFiles

WAREHOUSE = "warehouse"


def plain_warehouse(store: Store, runtime: Runtime) -> Store:
    """The store; on a directory, with the files of the warehouse under the names that they have on the disk.

    Other programs write table files there, under names that the store would take for encoded ones (`day=2026-11-17`).
    """
    return PlainWarehouse(store, runtime) if isinstance(store, DirectoryStore) else store


class PlainWarehouse(Store):
    """A directory store whose keys below `warehouse/` are paths.

    No link is followed: a listing passes over those that it meets, and a call that would need one is `Denied`.
    """

    def __init__(self, store: DirectoryStore, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._store = store
        self._files = PlainFiles(store.root)
        self.at_once = store.at_once

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
            return self._store.get(key, range=range, if_match=if_match, if_none_match=if_none_match, size_max=size_max)
        with _explained(key), open(self._files.read(key), "rb") as file:
            stat = _stat_of(key, os.fstat(file.fileno()))
            check_size(key, stat.size, size_max)
            return Blob(file.read(), stat.version, stat.modified, stat.size)

    def head(self, key: Key) -> Stat:
        if not key.startswith(f"{WAREHOUSE}/"):
            return self._store.head(key)
        with _explained(key), open(self._files.read(key), "rb") as file:
            return _stat_of(key, os.fstat(file.fileno()))

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`; below `warehouse/` whatever is there."""
        if not key.startswith(f"{WAREHOUSE}/"):
            return self._store.put(key, data, when=when)
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
            self._store.delete(key)
            return
        with _explained(key):
            self._files.delete(keys.check(key))

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """Below `warehouse/` in the order of the file system."""
        if not prefix or prefix.split("/")[0] != WAREHOUSE:
            others = self._store.list(prefix, after=after)
            yield from (stat for stat in others if not stat.key.startswith(f"{WAREHOUSE}/"))
        if not prefix or prefix.split("/")[0] == WAREHOUSE:
            with _explained(Key(prefix or WAREHOUSE)):
                yield from self._below(prefix or WAREHOUSE)

    def _below(self, prefix: str) -> Iterator[Stat]:
        for path, folder, name in self._files.walk(prefix):
            if _is_temporary(name):
                continue
            with suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat_module.S_ISREG(found.st_mode):
                    yield _stat_of(Key(path), found)

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        return self._store.sample(prefix, n)

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        return self._store.list_dirs(prefix)


@contextmanager
def _explained(key: Key) -> Iterator[None]:
    """What an OSError of the block means.   Raises: Missing; Denied for a link on the way."""
    try:
        yield
    except FileNotFoundError:
        raise Missing(f"there is no object {key}") from None
    except OSError as error:
        raise failure(f"could not reach {key}", error) from error


def _is_temporary(name: str) -> bool:
    """Whether a file is one that a killed run left half written."""
    return name.startswith(".") and is_ulid(name.rpartition(".")[2])


def _stat_of(key: Key, found: os.stat_result) -> Stat:
    version = Version(f"{found.st_mtime_ns:x}-{found.st_ino:x}-{found.st_size:x}")
    return Stat(key, found.st_size, version, datetime.fromtimestamp(found.st_mtime_ns / 1e9, UTC))
