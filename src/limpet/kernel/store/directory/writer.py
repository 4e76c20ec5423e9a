"""Writes files: fill a temp file, set its mtime, move it into place, sync the folder.

**Versions.** A version is `mtime-inode-size`. The kernel's clock ticks every few milliseconds and inode numbers are
reused at once, so without more, two swaps could win (F15). Hence every write sets its own mtime: the file system's
clock minus a random part of a tick, and always above that of the object it replaces. Reading a version costs one
`stat`.

**Exclusion.** A name is created by `link`, which is atomic. It is replaced or removed only under its lock. So an object
that the holder of the lock has seen stays until the holder acts, and a missing one can only appear by a `link`. The one
exception are names that are no longer used (`remove_in_order`): no process acts on the outcome of a write to them.

**Reading back.** The outcome of a write that is visible but could not be synced is unknown. A read must not confirm it,
so the next read in that folder by this store syncs the folder first, and fails if that fails.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Literal
from zlib import crc32

from limpet.kernel.errors import Conflict, Unsupported
from limpet.kernel.keys import Key
from limpet.kernel.runtime import Runtime
from limpet.kernel.store.api import Absent, Match, StoreClock, Version, When
from limpet.kernel.store.directory.files import Files, FileStat, not_durable
from limpet.kernel.store.directory.folders import PRIVATE, Folder, Folders, look, parent
from limpet.kernel.waiting import CONTENDED_TRIES_MAX

TICK_BITS = 22
STEPS_NS = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)
TEMP_AGE_NS_MAX = 24 * 60 * 60 * 1_000_000_000
LOCK_FILES = 64

OBSERVE_NS = 10_000_000
"""A reading is used only if it is later than the last one by more than this: using one takes some CPU time."""

TRUSTED_NS = 1_000_000_000
"""How far ahead of our estimate of a file system's clock an mtime may be: clocks tick coarsely, and drift."""

WITNESS_AGE_S_MAX = 600.0
"""For how long a reading of a file system's clock is used: in this time, rates that differ by 0.1 % make 0.6 s."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_REOPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def version_of(found: FileStat) -> Version:
    """The version of a file."""
    return Version("%x-%x-%x" % (found.st_mtime_ns, found.st_ino, found.st_size))  # noqa: UP031 - twice as fast


class _FileWrite:
    """A write: a temp file, in its folder, and the name that it is to have in another folder, once that is open."""

    __slots__ = ("folder", "name", "path", "stat", "temp", "temps")

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.name = name
        self.folder: Folder | None = None
        self.temp = ""
        self.temps: Folder
        self.stat: FileStat

    def __str__(self) -> str:
        return f"{self.path}/{self.name}"


class FileWriter:
    """Writes and removes the files of one root. Raises `OSError` for a call that failed and changed nothing."""

    def __init__(self, files: Files, folders: Folders, runtime: Runtime, clock: FileClock, *, durable: bool) -> None:
        self._files = files
        self._folders = folders
        self._runtime = runtime
        self._clock = clock
        self._durable = durable
        self._swept = False
        self._temps = 0
        self._founder = ""
        """The name whose folder was missing last: the next folder for it, a new task's, is not looked for in vain."""
        self.doubtful: set[str] = set()

    def write(self, key: Key, path: str, data: bytes, when: When) -> FileStat:
        """Put `data` at `path` if `when` holds.   Raises: Conflict; OutcomeUnknown; OSError."""
        above, _, name = path.rpartition("/")
        create = type(when) is Absent
        write = _FileWrite(above, name)
        if not create or name != self._founder:
            write.folder = self._folders.enter(above)
        old = None
        # Before a create, this check only saves the temp file of a refused one; that pays where the file is synced.
        if self._durable or not create:
            old = look(self._files, write.folder, name)
            _refuse(key, when, old)
        self._fill(write, data, -1 if old is None else old.st_mtime_ns)
        try:
            if old is None:
                try:
                    self._publish("link", write)
                    self._drop(write.temps, write.temp)
                    return write.stat
                except FileExistsError:
                    if create:
                        look(self._files, write.folder, name)  # raises another error for a link
                        raise Conflict(f"{key} exists") from None
            self._replace(key, write, when)
            return write.stat
        except BaseException:
            self._drop(write.temps, write.temp)
            raise

    def confirm(self, path: str) -> None:
        """Sync the folder of `path` if an earlier write of ours could not, before a read there.   Raises: OSError."""
        if self.doubtful and (above := parent(path)) in self.doubtful:
            folder = self._folders.enter(above)
            if folder is not None:  # else it was pruned, after its objects were deleted
                self._folders.sync(folder)
            self.doubtful.discard(above)

    def remove(self, key: Key, path: str) -> None:
        """Remove the file, and the folders that it leaves empty.   Raises: OutcomeUnknown; OSError."""
        above, _, name = path.rpartition("/")
        folder = self._folders.enter(above)
        if folder is None:
            return
        held = self._lock(key)
        try:
            with suppress(FileNotFoundError):
                self._files.unlink(name, dir_fd=folder.fd)
            # Synced even if it did not exist: the process that removed it may have ended before its sync.
            if self._durable:
                self._settle(folder, f"{key} was deleted")
            self._folders.prune(above)
        finally:
            self._unlock(held)

    def remove_in_order(self, paths: Sequence[str]) -> None:
        """Remove files of one folder whose names are no longer used, in order, and the folders that this leaves empty.

        It takes no locks. A lock keeps a name unchanged between the stat and the rename of a swap; a process that swaps
        one of these names does not rely on the outcome (`Store.delete_in_order`).   Raises: OutcomeUnknown; OSError.
        """
        above = paths[0].rpartition("/")[0]
        folder = self._folders.enter(above)
        if folder is None:
            return
        for path in paths:
            try:  # noqa: SIM105 - suppress() costs as much as the call
                self._files.unlink(path.rpartition("/")[2], dir_fd=folder.fd)
            except FileNotFoundError:
                pass
            # Each before the next: after a power loss, no file may exist while a later one in the order is gone.
            if self._durable:
                self._settle(folder, f"{path} was deleted")
        self._folders.prune(above)

    def probe(self) -> None:
        """Read the file system's clock from a new temp file, if the folder for temp files exists.   Raises: OSError."""
        folder = self._folders.enter(self._folders.temps)
        if folder is not None:
            name = f"probe-{self._runtime.new_id()}"
            fd = self._files.create(name, _NEW, PRIVATE, dir_fd=folder.fd)
            try:
                self._clock.witness(self._files.fstat(fd).st_mtime_ns)
            finally:
                self._files.close(fd)
                self._drop(folder, name)

    # -- temp files

    def _new_temp(self) -> tuple[Folder, str, int]:
        """A new file with the rights of the store, open for writing: its folder, its name and its descriptor."""
        self._temps += 1
        name = f"{self._runtime.rng.getrandbits(64):016x}-{self._temps:x}"
        folder = self._folders.opened_temps or self._folders.open_temps()
        try:
            fd = self._files.create(name, _NEW, PRIVATE, dir_fd=folder.fd)
        except FileNotFoundError:  # the folder was removed
            folder = self._folders.open_temps()
            fd = self._files.create(name, _NEW, PRIVATE, dir_fd=folder.fd)
        if self._folders.access != PRIVATE:
            try:
                self._files.fchmod(fd, self._folders.access)
            except BaseException:
                self._files.close(fd)
                self._drop(folder, name)
                raise
        return folder, name, fd

    def _fill(self, write: _FileWrite, data: bytes, above_ns: int) -> None:
        """Make the temp file of a write: durable, with `data` and an mtime above `above_ns`."""
        files = self._files
        write.temps, write.temp, fd = folder, name, _ = self._new_temp()
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
                write.stat = self._stamp(fd, above_ns, born_ns)
                if self._durable:
                    files.fsync(fd)
            finally:
                files.close(fd)
        except BaseException:
            self._drop(folder, name)
            raise

    def _stamp(self, fd: int, above_ns: int, born_ns: int) -> FileStat:
        """Give an open file an mtime that no other version of its object has."""
        files = self._files
        # Subtracted, not added: LastModified stays a lower bound of the file system's clock (F13).
        mtime_ns = born_ns - self._runtime.rng.getrandbits(TICK_BITS)
        for step_ns in STEPS_NS:
            stamp_ns = max(mtime_ns, above_ns + step_ns)
            files.utime(fd, ns=(stamp_ns, stamp_ns))
            new = files.fstat(fd)
            if new.st_mtime_ns > above_ns:
                return new
        raise Unsupported("this file system does not keep the modification times of files", hint="use another disk")

    def _stamp_again(self, write: _FileWrite, above_ns: int) -> None:
        fd = self._files.reopen(write.temp, _REOPEN, dir_fd=write.temps.fd)
        try:
            write.stat = self._stamp(fd, above_ns, write.stat.st_mtime_ns)
            if self._durable:
                self._files.fsync(fd)
        finally:
            self._files.close(fd)

    def _drop(self, folder: Folder, name: str) -> None:
        """Remove a temp file. If that fails, a later sweep removes it."""
        try:  # noqa: SIM105 - suppress() costs as much as the call
            self._files.unlink(name, dir_fd=folder.fd)
        except OSError:
            pass

    def _sweep(self, folder: Folder, now_ns: int) -> None:
        """Remove the temp files of writers that were killed long ago, by the file system's clock (F27)."""
        for name, is_folder in self._files.scandir(folder.fd):
            # A temp file of another user, or one that is gone by now, is left alone.
            with suppress(OSError):
                if self._files.stat(name, dir_fd=folder.fd).st_mtime_ns < now_ns - TEMP_AGE_NS_MAX:
                    (self._files.rmdir if is_folder else self._files.unlink)(name, dir_fd=folder.fd)

    # -- into place

    def _replace(self, key: Key, write: _FileWrite, when: When) -> None:
        held = self._lock(key)
        try:
            for _ in range(CONTENDED_TRIES_MAX):
                old = look(self._files, write.folder, write.name)
                _refuse(key, when, old)
                if old is None:
                    # Deleted meanwhile. No rename: it would replace a file that was linked since the check, whose
                    # mtime may be higher.
                    try:
                        self._publish("link", write)
                    except FileExistsError:
                        continue
                    self._drop(write.temps, write.temp)
                    return
                if write.stat.st_mtime_ns <= old.st_mtime_ns:
                    self._stamp_again(write, old.st_mtime_ns)
                self._publish("rename", write)
                return
            raise FileExistsError(errno.EEXIST, "something that is not an object stands in its place", str(write))
        finally:
            self._unlock(held)

    def _publish(self, move: Literal["link", "rename"], write: _FileWrite) -> None:
        """Raises: FileExistsError of `link`, with nothing changed."""
        for _ in range(CONTENDED_TRIES_MAX):
            try:
                folder = write.folder
                if folder is None:
                    self._founder = write.name
                    folder = write.folder = self._folders.make(write.path)
                getattr(self._files, move)(write.temp, write.name, src_dir_fd=write.temps.fd, dst_dir_fd=folder.fd)
                break
            except FileNotFoundError as error:
                # The folder is new, or a delete has pruned it since we made it.
                missing = error
                write.folder = None
            except FileExistsError:
                raise
            except OSError as error:
                if self._landed(write):
                    self.doubtful.add(write.path)
                    raise not_durable(str(write), error) from error
                raise
        else:
            raise missing
        if self._durable:
            self._settle(folder, write)

    def _landed(self, write: _FileWrite) -> bool:
        """Whether a move took effect although it raised an error; True if that is unknown."""
        if write.folder is None:
            return False
        try:
            found = self._files.stat(write.name, dir_fd=write.folder.fd)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return version_of(found) == version_of(write.stat)

    def _settle(self, folder: Folder, what: object) -> None:
        """Make a change in `folder` durable.   Raises: OutcomeUnknown if that fails: the change is visible already."""
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
        """Make a lock file. As for every object, its rights are set before it gets its name."""
        temps, temp, fd = self._new_temp()
        try:
            self._files.close(fd)
            locks = self._folders.enter_locks()
            with suppress(FileExistsError):
                self._files.link(temp, name, src_dir_fd=temps.fd, dst_dir_fd=locks.fd)
        finally:
            self._drop(temps, temp)

    def _unlock(self, held: int) -> None:
        # The write has happened; a lock that cannot be released ends when its descriptor is closed.
        try:  # noqa: SIM105 - as above
            self._files.unlock(held)
        except OSError:
            pass


def _refuse(key: Key, when: When, found: FileStat | None) -> None:
    """Raises: Conflict if `when` does not hold for the file that was found."""
    if isinstance(when, Match):
        if found is None or version_of(found) != when.version:
            raise Conflict(f"{key} is no longer version {when.version}")
    elif found is not None and isinstance(when, Absent):
        raise Conflict(f"{key} exists")


# ---- the file system's clock ----


class FileClock:
    """A lower bound of a file system's clock, and of the times at which its files were modified.

    A server stamps LastModified itself, but any program can set an mtime (`cp -a` and `rsync -a` do). So the clock is
    read only from a file that this process has just made, and an mtime is used only up to that clock. A later mtime is
    taken for the current time until the clock has reached it. Such an object looks as if it was just written; it does
    not advance the store's clock, and rules that go by age apply to it only after its mtime has passed.
    """

    def __init__(self, runtime: Runtime, clock: StoreClock) -> None:
        self._runtime = runtime
        self._clock = clock
        self._newest_ns = 0
        self._witnessed: tuple[int, float] | None = None

    def witness(self, born_ns: int) -> None:
        """Record the time of the file system's clock at which this process has just made a file."""
        if self._witnessed is not None and self._newest_ns - TRUSTED_NS <= born_ns <= self._newest_ns + OBSERVE_NS:
            return
        self._witnessed = (born_ns, self._runtime.elapsed_s())
        if born_ns < self._newest_ns - TRUSTED_NS:
            # The clock was set back: use its new time, not the highest one.
            self._newest_ns = born_ns
            self._clock.reset(_moment(born_ns))
        elif born_ns > self._newest_ns + OBSERVE_NS:
            self._observe(born_ns)

    def modified(self, mtime_ns: int, probe: Callable[[], object]) -> datetime:
        """When a file with this mtime was modified. `probe` is called to make a file and `witness` its time, if it
        can."""
        if mtime_ns > self._newest_ns + OBSERVE_NS:
            mtime_ns = self._credible(mtime_ns, probe)
            if mtime_ns > self._newest_ns + OBSERVE_NS:
                self._observe(mtime_ns)
        return _EPOCH + timedelta(0, 0, mtime_ns // 1000)  # rounded down: LastModified is a lower bound

    def _credible(self, mtime_ns: int, probe: Callable[[], object]) -> int:
        """The mtime, but not later than the clock: a local disk's is this machine's wall clock, a file server's clock
        is estimated from the last `witness`."""
        wall_ns = (self._runtime.wall() - _EPOCH) // timedelta(microseconds=1) * 1000
        if mtime_ns <= wall_ns + TRUSTED_NS:
            return mtime_ns
        if self._witnessed is None or self._runtime.elapsed_s() - self._witnessed[1] > WITNESS_AGE_S_MAX:
            probe()
        if self._witnessed is None:
            return wall_ns  # this process cannot write here, so it deletes nothing by age either
        born_ns, at_s = self._witnessed
        now_ns = born_ns + int((self._runtime.elapsed_s() - at_s) * 1e9)
        return mtime_ns if mtime_ns <= now_ns + TRUSTED_NS else now_ns

    def _observe(self, mtime_ns: int) -> None:
        self._newest_ns = mtime_ns
        self._clock.observe(_moment(mtime_ns))


def _moment(unix_ns: int) -> datetime:
    """Rounded down: LastModified is a lower bound."""
    return _EPOCH + timedelta(0, 0, unix_ns // 1000)
