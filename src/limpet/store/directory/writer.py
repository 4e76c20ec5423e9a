"""How bytes reach the disk: fill a temp file, stamp it, put it in its place, make that durable.

**Versions.** A version is `mtime-inode-size`. The kernel's clock ticks every few milliseconds and inodes are used again
at once, so that alone would let two swaps win (F15). Hence every write sets its own mtime: the file system's clock,
minus a random part of a tick, and always above that of the object it replaces. Reading a version costs one `stat`.

**Exclusion.** A name comes to be by `link`, which is atomic. It changes or goes only under its lock. So what a holder
of the lock has seen there stays until it acts, and what it has not seen can only appear by a `link`.

**Reading back.** A write that is visible but could not be synced is unknown. Reading it back must not turn that into
an acknowledgement: so the next read in that folder by this store syncs it first, and fails if that fails.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from zlib import crc32

from limpet.errors import Conflict, Unsupported
from limpet.keys import Key
from limpet.runtime import Runtime
from limpet.store.api import Absent, Match, Version, When
from limpet.store.clock import FileClock
from limpet.store.directory.files import Files, FileStat, not_durable
from limpet.store.directory.folders import PRIVATE, Folder, Folders, look, parent

TICK_BITS = 22
STEPS_NS = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)
TEMP_AGE_NS_MAX = 24 * 60 * 60 * 1_000_000_000
TRIES_MAX = 100
LOCK_FILES = 64

_Move = Callable[[int, str, int, str], None]


def version_of(found: FileStat) -> Version:
    """The version of a file."""
    return Version("%x-%x-%x" % (found.st_mtime_ns, found.st_ino, found.st_size))  # noqa: UP031 - twice as fast


class _ObjectPlace:
    """Where an object goes: a name in a folder, and the folder once it is there."""

    __slots__ = ("folder", "name", "path")

    def __init__(self, path: str) -> None:
        self.path, _, self.name = path.rpartition("/")
        self.folder: Folder | None = None

    def __str__(self) -> str:
        return f"{self.path}/{self.name}"


class _Temp:
    """A temp file: its name, in the folder of temp files, and what it is."""

    __slots__ = ("folder", "name", "stat")

    def __init__(self, folder: Folder, name: str, stat: FileStat) -> None:
        self.folder = folder
        self.name = name
        self.stat = stat


class FileWriter:
    """Writes and removes the files of one root. Raises `OSError` for what failed with nothing changed."""

    def __init__(self, files: Files, folders: Folders, runtime: Runtime, clock: FileClock, *, durable: bool) -> None:
        self._files = files
        self._folders = folders
        self._runtime = runtime
        self._clock = clock
        self._durable = durable
        self._swept = False
        self._temps = 0
        self.doubtful: set[str] = set()

    def write(self, key: Key, path: str, data: bytes, when: When) -> FileStat:
        """Put `data` at `path` if `when` holds.   Raises: Conflict; OutcomeUnknown; OSError."""
        place = _ObjectPlace(path)
        place.folder = self._folders.enter(place.path)
        old = look(self._files, place.folder, place.name)
        _refuse(key, when, old)
        temp = self._fill(data, above_ns=old.st_mtime_ns if old else -1)
        try:
            if old is None:
                try:
                    self._create(temp, place)
                    return temp.stat
                except FileExistsError:
                    if isinstance(when, Absent):
                        raise Conflict(f"{key} exists") from None
            return self._replace(key, place, temp, when)
        except BaseException:
            self._drop(temp.folder, temp.name)
            raise

    def confirm(self, path: str) -> None:
        """See that a read does not confirm a write of ours whose folder could not be synced.   Raises: OSError."""
        if self.doubtful and (above := parent(path)) in self.doubtful:
            folder = self._folders.enter(above)
            if folder is not None:  # else it was pruned, and its objects deleted before that
                self._folders.sync(folder)
            self.doubtful.discard(above)

    def remove(self, key: Key, path: str) -> None:
        """Remove the file, and the folders that it leaves empty.   Raises: OutcomeUnknown; OSError."""
        place = _ObjectPlace(path)
        place.folder = self._folders.enter(place.path)
        if place.folder is None:
            return
        held = self._lock(key)
        try:
            with suppress(FileNotFoundError):
                self._files.unlink(place.folder.fd, place.name)
            # Synced even if it was gone already: whoever removed it may not have come so far.
            self._settle(place.folder, f"{key} was deleted")
            self._folders.prune(place.path)
        finally:
            self._unlock(held)

    def probe(self) -> None:
        """Read the file system's clock by a temp file, if there is a folder for those.   Raises: OSError."""
        folder = self._folders.enter(self._folders.temps)
        if folder is not None:
            name = self._temp_name()
            fd = self._files.create(folder.fd, name, PRIVATE)
            try:
                self._clock.witness(self._files.fstat(fd).st_mtime_ns)
            finally:
                self._files.close(fd)
                self._drop(folder, name)

    # -- temp files

    def _temp_name(self) -> str:
        self._temps += 1
        return f"{self._runtime.rng.getrandbits(64):016x}-{self._temps:x}"

    def _new_temp(self, folder: Folder, name: str) -> int:
        """A new file with the rights that all have, open for writing."""
        fd = self._files.create(folder.fd, name, PRIVATE)
        if self._folders.access != PRIVATE:
            try:
                self._files.fchmod(fd, self._folders.access)
            except BaseException:
                self._files.close(fd)
                self._drop(folder, name)
                raise
        return fd

    def _fill(self, data: bytes, *, above_ns: int) -> _Temp:
        """A durable temp file with `data`, stamped above `above_ns`."""
        files = self._files
        name = self._temp_name()
        folder, fd = self._folders.in_temps(lambda folder: (folder, self._new_temp(folder, name)))
        try:
            try:
                written = files.write(fd, data)
                while written < len(data):
                    written += files.write(fd, memoryview(data)[written:])
                born_ns = files.fstat(fd).st_mtime_ns
                self._clock.witness(born_ns)
                if not self._swept:
                    self._swept = True
                    self._sweep(folder, born_ns)
                new = self._stamp(fd, above_ns, born_ns)
                if self._durable:
                    files.fsync(fd)
            finally:
                files.close(fd)
        except BaseException:
            self._drop(folder, name)
            raise
        return _Temp(folder, name, new)

    def _stamp(self, fd: int, above_ns: int, born_ns: int) -> FileStat:
        """Give an open file an mtime that no other version of its object has."""
        files = self._files
        # Subtracted, not added: LastModified stays a lower bound of the file system's clock (F13).
        mtime_ns = born_ns - self._runtime.rng.getrandbits(TICK_BITS)
        for step_ns in STEPS_NS:
            files.utime(fd, max(mtime_ns, above_ns + step_ns))
            new = files.fstat(fd)
            if new.st_mtime_ns > above_ns:
                return new
        raise Unsupported("this file system does not keep the modification times of files", hint="use another disk")

    def _stamp_again(self, temp: _Temp, above_ns: int) -> None:
        fd = self._files.reopen(temp.folder.fd, temp.name)
        try:
            temp.stat = self._stamp(fd, above_ns, temp.stat.st_mtime_ns)
            if self._durable:
                self._files.fsync(fd)
        finally:
            self._files.close(fd)

    def _drop(self, folder: Folder, name: str) -> None:
        """Remove a temp file. One that stays is swept another day."""
        try:  # noqa: SIM105 - suppress() costs as much as the call
            self._files.unlink(folder.fd, name)
        except OSError:
            pass

    def _sweep(self, folder: Folder, now_ns: int) -> None:
        """Remove the temp files of writers that were killed long ago, by the file system's clock (F27)."""
        for name, is_folder in self._files.scandir(folder.fd):
            # Another user's temp file, or one that is gone by now, is not ours to worry about.
            with suppress(OSError):
                if self._files.stat(folder.fd, name).st_mtime_ns < now_ns - TEMP_AGE_NS_MAX:
                    (self._files.rmdir if is_folder else self._files.unlink)(folder.fd, name)

    # -- into place

    def _create(self, temp: _Temp, place: _ObjectPlace) -> None:
        """Raises: FileExistsError, with nothing changed."""
        self._publish(self._files.link, temp, place)
        self._drop(temp.folder, temp.name)

    def _replace(self, key: Key, place: _ObjectPlace, temp: _Temp, when: When) -> FileStat:
        held = self._lock(key)
        try:
            for _ in range(TRIES_MAX):
                old = look(self._files, place.folder, place.name)
                _refuse(key, when, old)
                if old is None:
                    # Deleted meanwhile. Not by rename: a file that is linked just now would be replaced unseen, and
                    # the stamp might not lie above its own.
                    try:
                        self._create(temp, place)
                    except FileExistsError:
                        continue
                    return temp.stat
                if temp.stat.st_mtime_ns <= old.st_mtime_ns:
                    self._stamp_again(temp, old.st_mtime_ns)
                self._publish(self._files.rename, temp, place)
                return temp.stat
            raise FileExistsError(errno.EEXIST, "something that is not an object stands in its place", str(place))
        finally:
            self._unlock(held)

    def _publish(self, move: _Move, temp: _Temp, place: _ObjectPlace) -> None:
        for _ in range(TRIES_MAX):
            try:
                folder = place.folder = place.folder or self._folders.make(place.path)
                move(temp.folder.fd, temp.name, folder.fd, place.name)
                break
            except FileNotFoundError as error:
                # The folder is new, or a delete has pruned it since we made it.
                missing = error
                place.folder = None
            except FileExistsError:
                raise
            except OSError as error:
                if self._landed(place, temp.stat):
                    self.doubtful.add(place.path)
                    raise not_durable(str(place), error) from error
                raise
        else:
            raise missing
        self._settle(folder, place)

    def _landed(self, place: _ObjectPlace, new: FileStat) -> bool:
        """Whether a failed move was made all the same; if that cannot be told, yes."""
        if place.folder is None:
            return False
        try:
            found = self._files.stat(place.folder.fd, place.name)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return version_of(found) == version_of(new)

    def _settle(self, folder: Folder, what: object) -> None:
        """Make a change in `folder` durable.   Raises: OutcomeUnknown, for it is visible already."""
        if self._durable:
            try:
                self._folders.sync(folder)
            except OSError as error:
                self.doubtful.add(folder.path)
                raise not_durable(str(what), error) from error

    # -- locks

    def _lock(self, key: Key) -> int:
        name = f"{crc32(key.encode()) % LOCK_FILES:02x}"  # the same in every process and version
        path = f"{self._folders.locks}/{name}"
        try:
            return self._files.lock(path)
        except FileNotFoundError:
            self._make_lock(name)
            return self._files.lock(path)

    def _make_lock(self, name: str) -> None:
        """It gets its rights before its name, as every object does."""
        temp = self._temp_name()
        temps, fd = self._folders.in_temps(lambda folder: (folder, self._new_temp(folder, temp)))
        try:
            self._files.close(fd)
            locks = self._folders.enter_locks()
            with suppress(FileExistsError):
                self._files.link(temps.fd, temp, locks.fd, name)
        finally:
            self._drop(temps, temp)

    def _unlock(self, held: int) -> None:
        # What was done is done; a lock that cannot be given back goes with its descriptor.
        try:  # noqa: SIM105 - as above
            self._files.unlock(held)
        except OSError:
            pass


def _refuse(key: Key, when: When, found: FileStat | None) -> None:
    """Raises: Conflict, if `when` does not hold for what is there."""
    if isinstance(when, Match):
        if found is None or version_of(found) != when.version:
            raise Conflict(f"{key} is no longer version {when.version}")
    elif found is not None and isinstance(when, Absent):
        raise Conflict(f"{key} exists")
