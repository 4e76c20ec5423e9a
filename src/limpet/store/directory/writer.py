"""How bytes reach the disk: fill a temp file, stamp it, put it in its place, make that durable.

**Versions.** A version is `mtime-inode-size`. The kernel's clock ticks every few milliseconds and inodes are used again
at once, so that alone would let two swaps win (F15). Hence every write sets its own mtime: the file system's clock,
minus a random part of a tick, and always above that of the object it replaces. Reading a version costs one `stat`.

**Exclusion.** A name comes to be by `link`, which is atomic. It changes or goes only under its lock. So what a holder
of the lock has seen there stays until it acts, and what it has not seen can only appear by a `link`.

**Reading back.** A write that is visible but could not be synced is unknown. Reading it back must not turn that into
an acknowledgement: so the next read in that folder by this store syncs it first, and fails if that fails.

**Folders.** A folder is durable once its parent was synced. Its maker may be killed before that, and others may write
into it meanwhile: so whoever syncs a folder looks for a mark (set-user-id, which has no meaning on a folder); without
one it syncs the parent too, and then sets it. A folder that was pruned and made again has no mark (F25).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress

from limpet.errors import Conflict, Unsupported
from limpet.keys import Key
from limpet.runtime import Runtime
from limpet.store.api import Absent, Match, Version, When
from limpet.store.directory.failure import unsettled
from limpet.store.directory.files import Files, FileStat
from limpet.store.directory.paths import lock_name, parent

__all__ = ["Writer", "look", "version_of"]

TICK_BITS = 22
STEPS_NS = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)
TEMP_AGE_NS_MAX = 24 * 60 * 60 * 1_000_000_000
TRIES_MAX = 100

DURABLE = stat.S_ISUID

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_AGAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
MKDIR_TRIES = 1000


def version_of(found: FileStat) -> Version:
    """The version of a file."""
    return Version("%x-%x-%x" % (found.st_mtime_ns, found.st_ino, found.st_size))  # noqa: UP031 - twice as fast


def look(files: Files, path: str) -> FileStat | None:
    """What is there, if it is a plain file."""
    try:
        found = files.stat(path)
    except FileNotFoundError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


class Writer:
    """Writes and removes the files of one root. Raises `OSError` for what failed with nothing changed."""

    def __init__(self, root: str, files: Files, runtime: Runtime, *, durable: bool) -> None:
        self._root = root
        self._below = root + "/"
        self._own = f"{root}/.limpet"
        self._files = files
        self._runtime = runtime
        self._durable = durable
        self._swept = False
        self.doubtful: set[str] = set()

    def write(self, key: Key, path: str, data: bytes, when: When) -> FileStat:
        """Put `data` at `path` if `when` holds.   Raises: Conflict; OutcomeUnknown; OSError."""
        old = look(self._files, path)
        _refuse(key, when, old)
        temp, new = self._fill(data, above_ns=old.st_mtime_ns if old else -1)
        try:
            if old is None:
                try:
                    self._create(temp, path, new)
                    return new
                except FileExistsError:
                    if isinstance(when, Absent):
                        raise Conflict(f"{key} exists") from None
            return self._replace(key, path, temp, new, when)
        except BaseException:
            self._drop(temp)
            raise

    def confirm(self, path: str) -> None:
        """See that a read does not confirm a write of ours whose folder could not be synced.   Raises: OSError."""
        if self.doubtful and (folder := parent(path)) in self.doubtful:
            self._sync(folder)
            self.doubtful.discard(folder)

    def remove(self, key: Key, path: str) -> None:
        """Remove the file, and the folders that it leaves empty.   Raises: OutcomeUnknown; OSError."""
        folder = parent(path)
        try:
            self._files.stat(folder)
        except FileNotFoundError:
            return
        held = self._lock(key)
        try:
            with suppress(FileNotFoundError):
                self._files.unlink(path)
            # Synced even if it was gone already: whoever removed it may not have come so far.
            self._settle(folder, f"{key} was deleted")
            self._prune(folder)
        finally:
            self._unlock(held)

    # -- temp files

    def _fill(self, data: bytes, *, above_ns: int) -> tuple[str, FileStat]:
        """A durable temp file with `data`, stamped above `above_ns`."""
        files = self._files
        temp = f"{self._own}/tmp/{self._runtime.rng.getrandbits(64):016x}"
        try:
            fd = files.open(temp, _NEW, 0o666)
        except FileNotFoundError:
            self._prepare()
            fd = files.open(temp, _NEW, 0o666)
        try:
            try:
                written = files.write(fd, data)
                while written < len(data):
                    written += files.write(fd, memoryview(data)[written:])
                new = self._stamp(fd, above_ns)
                if self._durable:
                    files.fsync(fd)
            finally:
                files.close(fd)
        except BaseException:
            self._drop(temp)
            raise
        return temp, new

    def _stamp(self, fd: int, above_ns: int) -> FileStat:
        """Give an open file an mtime that no other version of its object has."""
        files = self._files
        born_ns = files.fstat(fd).st_mtime_ns
        if not self._swept:
            self._swept = True
            self._sweep(born_ns)
        # Subtracted, not added: LastModified stays a lower bound of the file system's clock (F13).
        mtime_ns = born_ns - self._runtime.rng.getrandbits(TICK_BITS)
        for step_ns in STEPS_NS:
            files.utime(fd, max(mtime_ns, above_ns + step_ns))
            new = files.fstat(fd)
            if new.st_mtime_ns > above_ns:
                return new
        raise Unsupported("this file system does not keep the modification times of files", hint="use another disk")

    def _stamp_again(self, temp: str, above_ns: int) -> FileStat:
        fd = self._files.open(temp, _AGAIN)
        try:
            new = self._stamp(fd, above_ns)
            if self._durable:
                self._files.fsync(fd)
            return new
        finally:
            self._files.close(fd)

    def _drop(self, temp: str) -> None:
        """Remove a temp file. One that stays is swept another day."""
        try:  # noqa: SIM105 - suppress() costs as much as the call
            self._files.unlink(temp)
        except OSError:
            pass

    def _sweep(self, now_ns: int) -> None:
        """Remove the temp files of writers that were killed long ago, by the file system's clock (F27)."""
        temps = f"{self._own}/tmp"
        for name, _ in self._files.scandir(temps):
            # Another user's temp file, or one that is gone by now, is not ours to worry about.
            with suppress(OSError):
                if self._files.stat(f"{temps}/{name}").st_mtime_ns < now_ns - TEMP_AGE_NS_MAX:
                    self._files.unlink(f"{temps}/{name}")

    # -- into place

    def _create(self, temp: str, path: str, new: FileStat) -> None:
        """Raises: FileExistsError, with nothing changed."""
        self._publish(self._files.link, temp, path, new)
        self._drop(temp)

    def _replace(self, key: Key, path: str, temp: str, new: FileStat, when: When) -> FileStat:
        held = self._lock(key)
        try:
            for _ in range(TRIES_MAX):
                old = look(self._files, path)
                _refuse(key, when, old)
                if old is None:
                    # Deleted meanwhile. Not by rename: a file that is linked just now would be replaced unseen, and
                    # the stamp might not lie above its own.
                    try:
                        self._create(temp, path, new)
                    except FileExistsError:
                        continue
                    return new
                if new.st_mtime_ns <= old.st_mtime_ns:
                    new = self._stamp_again(temp, old.st_mtime_ns)
                self._publish(self._files.rename, temp, path, new)
                return new
            raise FileExistsError(errno.EEXIST, "something that is not an object stands in its place", path)
        finally:
            self._unlock(held)

    def _publish(self, move: Callable[[str, str], None], temp: str, path: str, new: FileStat) -> None:
        folder = parent(path)
        for _ in range(TRIES_MAX):
            try:
                move(temp, path)
                break
            except FileNotFoundError as error:
                # The folder is new, or a delete has pruned it since we made it.
                missing = error
                self._make_folder(folder)
            except FileExistsError:
                raise
            except OSError as error:
                if self._landed(path, new):
                    self.doubtful.add(folder)
                    raise unsettled(path, error) from error
                raise
        else:
            raise missing
        self._settle(folder, path)

    def _landed(self, path: str, new: FileStat) -> bool:
        """Whether a failed move was made all the same; if that cannot be told, yes."""
        try:
            found = self._files.stat(path)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return version_of(found) == version_of(new)

    # -- folders

    def _settle(self, folder: str, what: str) -> None:
        """Make a change in `folder` durable.   Raises: OutcomeUnknown, for it is visible already."""
        if self._durable:
            try:
                self._sync(folder)
            except OSError as error:
                self.doubtful.add(folder)
                raise unsettled(what, error) from error

    def _sync(self, folder: str) -> None:
        """Make the names in `folder` survive a power loss, and the folder itself (F25)."""
        files = self._files
        try:
            fd = files.open(folder, _FOLDER)
        except FileNotFoundError:
            # Pruned: what we wrote there was deleted, and that was synced.
            return
        try:
            files.fsync(fd)
            if folder.startswith(self._below):
                mode = files.fstat(fd).st_mode
                if not mode & DURABLE:
                    self._sync(parent(folder))
                    # A folder of another user's cannot be marked: then each write syncs its parent too.
                    with suppress(OSError):
                        files.fchmod(fd, stat.S_IMODE(mode) | DURABLE)
        finally:
            files.close(fd)

    def _make_folder(self, folder: str) -> list[str]:
        """Make `folder` and what is missing above it; those that were missing, topmost first."""
        made: list[str] = []
        missing = [folder]
        tries = 0
        while missing:
            try:
                self._files.mkdir(missing[-1])
            except FileNotFoundError:
                tries += 1
                if tries > MKDIR_TRIES:
                    raise  # a link that leads nowhere, or no place for folders; others prune no folder so often
                missing.append(parent(missing[-1]))
                continue
            except FileExistsError:
                pass
            else:
                made.append(missing[-1])
            missing.pop()
        return made

    def _prune(self, folder: str) -> None:
        """Remove folders that are empty now, from `folder` up. One that stays does no harm."""
        with suppress(OSError):
            while folder != self._root:
                self._files.rmdir(folder)
                folder = parent(folder)

    def _prepare(self) -> None:
        """Make the root and our own folder in it. What lies in there need not survive a power loss."""
        for folder in self._make_folder(self._root):
            if self._durable:
                self._sync(parent(folder))
        for name in ("", "/tmp", "/locks"):
            with suppress(FileExistsError):
                self._files.mkdir(self._own + name)

    # -- locks

    def _lock(self, key: Key) -> int:
        path = f"{self._own}/locks/{lock_name(key)}"
        try:
            return self._files.lock(path)
        except FileNotFoundError:
            self._prepare()
            return self._files.lock(path)

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
