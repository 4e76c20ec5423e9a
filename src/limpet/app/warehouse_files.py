"""Table files on a directory, under the names that they have on the disk."""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import IO

from limpet import keys, records
from limpet.errors import Missing
from limpet.keys import Key, is_ulid
from limpet.runtime import Runtime
from limpet.store import DirectoryStore
from limpet.store.api import Always, Blob, Stat, Store, Version, When, check_size
from limpet.store.base import BaseStore
from limpet.store.directory.failure import failure

__all__ = ["WAREHOUSE", "PlainWarehouse", "plain_warehouse"]

WAREHOUSE = "warehouse"


def plain_warehouse(store: Store, runtime: Runtime) -> Store:
    """The store; on a directory, with the files of the warehouse under the names that they have on the disk.

    Other programs write table files there, under names that the store would take for encoded ones (`day=2026-11-17`).
    """
    return PlainWarehouse(store, runtime) if isinstance(store, DirectoryStore) else store


class PlainWarehouse(BaseStore):
    """A directory store whose keys below `warehouse/` are paths. No link is followed, and none is listed."""

    def __init__(self, store: DirectoryStore, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._store = store
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
        """See `Store.get`."""
        if not key.startswith(f"{WAREHOUSE}/"):
            return self._store.get(key, range=range, if_match=if_match, if_none_match=if_none_match, size_max=size_max)
        with self._at(key) as (folder, name), _file(folder, name, key) as file:
            stat = _stat_of(key, os.fstat(file.fileno()))
            check_size(key, stat.size, size_max)
            return Blob(file.read(), stat.version, stat.modified, stat.size)

    def head(self, key: Key) -> Stat:
        """See `Store.head`."""
        if not key.startswith(f"{WAREHOUSE}/"):
            return self._store.head(key)
        with self._at(key) as (folder, name), _file(folder, name, key) as file:
            return _stat_of(key, os.fstat(file.fileno()))

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`; below `warehouse/` whatever is there."""
        if not key.startswith(f"{WAREHOUSE}/"):
            return self._store.put(key, data, when=when)
        with self._at(key, make=True) as (folder, name):
            temporary = f".{name[:200]}.{self._runtime.new_id()}"
            with _opened(temporary, folder, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                stat = _stat_of(key, os.fstat(file.fileno()))
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
            return stat.version

    def delete(self, key: Key) -> None:
        """See `Store.delete`."""
        if not key.startswith(f"{WAREHOUSE}/"):
            self._store.delete(key)
            return
        with suppress(Missing, FileNotFoundError), self._at(key) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """See `Store.list`. Below `warehouse/` in the order of the file system."""
        if not prefix or prefix.split("/")[0] != WAREHOUSE:
            others = self._store.list(prefix, after=after)
            yield from (stat for stat in others if not stat.key.startswith(f"{WAREHOUSE}/"))
        if not prefix or prefix.split("/")[0] == WAREHOUSE:
            yield from self._files(os.path.join(self._store.root, *(prefix or WAREHOUSE).split("/")))

    def _files(self, top: str) -> Iterator[Stat]:
        root = str(self._store.root)
        for folder, _, names in os.walk(top):
            for name in sorted(names):
                if _is_temporary(name):
                    continue
                path = os.path.join(folder, name)
                with suppress(OSError):
                    found = os.lstat(path)
                    if stat_module.S_ISREG(found.st_mode):
                        yield _stat_of(Key(os.path.relpath(path, root)), found)

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        """See `Store.sample`."""
        return self._store.sample(prefix, n)

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        """See `Store.list_dirs`."""
        return self._store.list_dirs(prefix)

    @contextmanager
    def _at(self, key: Key, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The open folder of a file, and its name there.   Raises: Missing; Denied for a link on the way."""
        *folders, name = keys.check(key).split("/")
        opened = os.open(self._store.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for each in folders:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(each, dir_fd=opened)
                inner = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened)
                os.close(opened)
                opened = inner
            yield opened, name
        except FileNotFoundError:
            raise Missing(f"there is no object {key}") from None
        except OSError as error:
            raise failure(f"could not reach {key}", error) from error
        finally:
            os.close(opened)


@contextmanager
def _opened(name: str, folder: int, flags: int) -> Iterator[IO[bytes]]:
    """A file of an open folder; a link is refused."""
    mode = "rb" if flags == os.O_RDONLY else "wb"
    with open(os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=folder), mode) as file:
        yield file


@contextmanager
def _file(folder: int, name: str, key: Key) -> Iterator[IO[bytes]]:
    """A plain file, to read.   Raises: Missing for anything else."""
    with _opened(name, folder, os.O_RDONLY) as file:
        if not stat_module.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Missing(f"there is no object {key}")
        yield file


def _is_temporary(name: str) -> bool:
    """Whether a file is one that a killed run left half written."""
    return name.startswith(".") and is_ulid(name.rpartition(".")[2])


def _stat_of(key: Key, found: os.stat_result) -> Stat:
    version = Version(f"{found.st_mtime_ns:x}-{found.st_ino:x}-{found.st_size:x}")
    return Stat(key, found.st_size, version, datetime.fromtimestamp(found.st_mtime_ns / 1e9, UTC))
