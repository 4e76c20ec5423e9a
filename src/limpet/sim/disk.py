"""A simulated machine's file system: what a power loss keeps, what it takes, and calls that fail.

A file's bytes and times are safe once it was synced; a name is safe once its folder was. Everything else may be there
after a power loss or not, name by name and file by file. Inode numbers are used again at once, and the clock ticks
every 4 ms, as on real kernels (F15).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from limpet.sim.world import Flight, Process, Task, World

__all__ = ["Disk", "Inode", "Pinned", "SimFiles", "Stat"]

R = TypeVar("R")
TICK_NS = 4_000_000
EPOCH_NS = 1_767_225_600_000_000_000


@dataclass(slots=True, eq=False)
class Inode:
    """A file or folder: as it is, and as it would be after a power loss."""

    number: int
    mode: int
    mtime_ns: int
    data: bytes = b""
    names: dict[str, Inode] = field(default_factory=dict)
    safe_data: bytes = b""
    safe_mtime_ns: int = 0
    safe_names: dict[str, Inode] = field(default_factory=dict)
    links: int = 0
    opened: int = 0

    @property
    def is_folder(self) -> bool:
        """Whether it holds names."""
        return stat.S_ISDIR(self.mode)


@dataclass(frozen=True, slots=True)
class Stat:
    """A snapshot of an inode."""

    st_mode: int
    st_dev: int
    st_ino: int
    st_size: int
    st_mtime_ns: int


@dataclass(frozen=True, slots=True)
class Pinned:
    """A descriptor that its process keeps open."""

    fd: int


class Disk:
    """The file system of one machine."""

    def __init__(self, world: World, *, folders: str) -> None:
        """A disk on which these folders have long been there."""
        self._world = world
        self._used: set[int] = set()
        self.root = self.new(stat.S_IFDIR | 0o755)
        self.root.links = 1
        self.locks: dict[str, Process | None] = {}
        self.opened: dict[Process, list[SimFiles]] = {}
        self.waiting: list[tuple[str, Task]] = []
        self.losses = 0
        folder = self.root
        for name in folders.strip("/").split("/"):
            folder.names[name] = self.new(stat.S_IFDIR | 0o755)
            folder.names[name].links = 1
            folder.safe_names = dict(folder.names)
            folder = folder.names[name]
        self.pace_s = 0.003 if world.chance(57) < 0.5 else 0.00005

    def new(self, mode: int) -> Inode:
        """An inode with the lowest free number."""
        number = 1
        while number in self._used:
            number += 1
        self._used.add(number)
        return Inode(number, mode, self.now_ns())

    def now_ns(self) -> int:
        """The file system's coarse clock."""
        return EPOCH_NS + int(self._world.now_s * 1e9) // TICK_NS * TICK_NS

    def let_go(self, inode: Inode) -> None:
        """Free the number of an inode that nobody can reach."""
        if inode.links == 0 and inode.opened == 0:
            self._used.discard(inode.number)

    def find(self, path: str) -> Inode:
        """The inode at a path.   Raises: OSError."""
        inode = self.root
        for name in path.strip("/").split("/"):
            if not inode.is_folder:
                raise OSError(errno.ENOTDIR, "not a directory", path)
            if name and name not in inode.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            inode = inode.names[name] if name else inode
        return inode

    def bury(self, process: Process) -> None:
        """A process has died: its locks are free, and its files and folders closed."""
        for path, holder in self.locks.items():
            if holder is process:
                self.unlock(path)
        for files in self.opened.pop(process, []):
            files.close_all()

    def unlock(self, path: str) -> None:
        """Free a lock, and let one that waits try."""
        self.locks[path] = None
        for waiting in self.waiting:
            if waiting[0] == path:
                self._world.wake_at(waiting[1], self._world.now_s)
        self.waiting = [waiting for waiting in self.waiting if waiting[0] != path]

    def lose_power(self) -> None:
        """Everything that was not synced may be gone; every lock is."""
        self.losses += 1
        self.locks.clear()
        self.waiting.clear()
        self.opened.clear()
        self._lose(self.root, 0)
        self._count_links(self.root, set())

    def _count_links(self, folder: Inode, seen: set[int]) -> None:
        """Names have come and gone: so have links."""
        for inode in folder.names.values():
            inode.links = inode.links + 1 if id(inode) in seen else 1
            seen.add(id(inode))
            if inode.is_folder:
                self._count_links(inode, seen)

    def _lose(self, inode: Inode, draws: int) -> int:
        inode.opened = 0
        if not inode.is_folder:
            draws += 1
            if self._world.chance(50, self.losses, draws) < 0.5:
                inode.data, inode.mtime_ns = inode.safe_data, inode.safe_mtime_ns
            inode.safe_data, inode.safe_mtime_ns = inode.data, inode.mtime_ns
            return draws
        for name in sorted({*inode.names, *inode.safe_names}):
            draws += 1
            if self._world.chance(51, self.losses, draws) < 0.5:
                safe = inode.safe_names.get(name)
                if safe is None:
                    del inode.names[name]
                else:
                    inode.names[name] = safe
        inode.safe_names = dict(inode.names)
        for name in sorted(inode.names):
            draws = self._lose(inode.names[name], draws)
        return draws


class SimFiles:
    """One process's system calls. Each gives way, may fail, and is written down."""

    def __init__(self, disk: Disk, world: World, process: Process, *, fault_rate: float) -> None:
        self._disk = disk
        self._world = world
        self._process = process
        self._fault_rate = fault_rate
        self._open: dict[int, Inode] = {}
        self._held: dict[int, str] = {}
        self._fds = 2
        disk.opened.setdefault(process, []).append(self)

    def open(self, path: str, flags: int, /) -> int:
        """See `Files.open`."""
        return self._do("open", path, lambda: self._opened(self._disk.find(path)))

    def create(self, folder: int, name: str, mode: int, /) -> int:
        """See `Files.create`."""

        def call() -> int:
            names = self._names(folder)
            if name in names:
                raise FileExistsError(errno.EEXIST, "exists", name)
            inode = self._disk.new(stat.S_IFREG | mode)
            names[name] = inode
            inode.links = 1
            return self._opened(inode)

        return self._do("create", name, call)

    def reopen(self, folder: int, name: str, /) -> int:
        """See `Files.reopen`."""
        return self._do("reopen", name, lambda: self._opened(self._found(folder, name)))

    def close(self, fd: int, /) -> None:
        """See `Files.close`. What a dead process had open was closed when it died."""
        inode = self._open.pop(fd, None)
        if inode is not None:
            inode.opened -= 1
            self._disk.let_go(inode)

    def close_all(self) -> None:
        """The process has died."""
        for fd in [*self._open]:
            self.close(fd)

    def pin(self, fd: int, /) -> Pinned:
        """See `Files.pin`. It stays until the process ends: Python's own clean-up must not change the story."""
        return Pinned(fd)

    def write(self, fd: int, data: bytes | memoryview, /) -> int:
        """See `Files.write`: a short write now and then."""

        def call() -> int:
            inode = self._open[fd]
            taken = (
                len(data) if self._world.chance(53, self._process.index, self._process.calls) < 0.9 else len(data) // 2
            )
            inode.data += bytes(data[:taken])
            inode.mtime_ns = self._disk.now_ns()
            return taken

        return self._do("write", f"fd {fd}", call)

    def pread(self, fd: int, size: int, offset: int, /) -> bytes:
        """See `Files.pread`."""
        return self._do("pread", f"fd {fd}", lambda: self._open[fd].data[offset : offset + size])

    def fstat(self, fd: int, /) -> Stat:
        """See `Files.fstat`."""
        return self._do("fstat", f"fd {fd}", lambda: _stat(self._open[fd]))

    def stat(self, folder: int, name: str, /) -> Stat:
        """See `Files.stat`."""
        return self._do("stat", name, lambda: _stat(self._found(folder, name)))

    def identify(self, path: str, /) -> Stat:
        """See `Files.identify`."""
        return self._do("identify", path, lambda: _stat(self._disk.find(path)))

    def utime(self, fd: int, mtime_ns: int, /) -> None:
        """See `Files.utime`."""

        def call() -> None:
            self._open[fd].mtime_ns = mtime_ns

        self._do("utime", f"fd {fd}", call)

    def fchmod(self, fd: int, mode: int, /) -> None:
        """See `Files.fchmod`."""

        def call() -> None:
            inode = self._open[fd]
            inode.mode = stat.S_IFMT(inode.mode) | mode

        self._do("fchmod", f"fd {fd}", call)

    def fsync(self, fd: int, /) -> None:
        """See `Files.fsync`."""

        def call() -> None:
            inode = self._open[fd]
            inode.safe_data, inode.safe_mtime_ns = inode.data, inode.mtime_ns
            inode.safe_names = dict(inode.names)

        self._do("fsync", f"fd {fd}", call)

    def link(self, folder: int, name: str, to_folder: int, to_name: str, /) -> None:
        """See `Files.link`."""

        def call() -> None:
            inode = self._found(folder, name)
            names = self._names(to_folder)
            if to_name in names:
                raise FileExistsError(errno.EEXIST, "exists", to_name)
            names[to_name] = inode
            inode.links += 1

        self._do("link", to_name, call)

    def rename(self, folder: int, name: str, to_folder: int, to_name: str, /) -> None:
        """See `Files.rename`."""

        def call() -> None:
            inode = self._found(folder, name)
            names = self._names(to_folder)
            old = names.get(to_name)
            del self._names(folder)[name]
            names[to_name] = inode
            if old is not None:
                old.links -= 1
                self._disk.let_go(old)

        self._do("rename", to_name, call)

    def unlink(self, folder: int, name: str, /) -> None:
        """See `Files.unlink`."""
        self._do("unlink", name, lambda: self._remove(folder, name))

    def mkdir(self, folder: int, name: str, mode: int, /) -> None:
        """See `Files.mkdir`."""

        def call() -> None:
            names = self._names(folder)
            if name in names:
                raise FileExistsError(errno.EEXIST, "exists", name)
            names[name] = self._disk.new(stat.S_IFDIR | mode)
            names[name].links = 1

        self._do("mkdir", name, call)

    def rmdir(self, folder: int, name: str, /) -> None:
        """See `Files.rmdir`."""

        def call() -> None:
            if self._found(folder, name).names:
                raise OSError(errno.ENOTEMPTY, "not empty", name)
            self._remove(folder, name)

        self._do("rmdir", name, call)

    def scandir(self, folder: int, /) -> Sequence[tuple[str, bool]]:
        """See `Files.scandir`."""
        return self._do("scandir", f"fd {folder}", lambda: [(n, i.is_folder) for n, i in self._names(folder).items()])

    def walk(self, folder: int, /) -> Iterator[tuple[str, bool]]:
        """See `Files.walk`."""
        yield from self.scandir(folder)

    def lock(self, path: str, /) -> int:
        """See `Files.lock`."""

        def call() -> int:
            self._disk.find(path)
            while self._disk.locks.get(path) is not None:
                task = self._world.current()
                self._disk.waiting.append((path, task))
                self._world.park(task)
            self._disk.locks[path] = self._process
            self._fds += 1
            self._held[self._fds] = path
            return self._fds

        return self._do("lock", path, call)

    def unlock(self, fd: int, /) -> None:
        """See `Files.unlock`."""
        self._world.check_alive(self._process)
        self._disk.unlock(self._held.pop(fd))

    def _opened(self, inode: Inode) -> int:
        self._fds += 1
        self._open[self._fds] = inode
        inode.opened += 1
        return self._fds

    def _names(self, folder: int) -> dict[str, Inode]:
        """The names in an open folder.   Raises: FileNotFoundError for one that was removed."""
        inode = self._open[folder]
        if not inode.is_folder:
            raise OSError(errno.ENOTDIR, "not a directory")
        if not inode.links:
            raise FileNotFoundError(errno.ENOENT, "the folder was removed")
        return inode.names

    def _found(self, folder: int, name: str) -> Inode:
        names = self._names(folder)
        if name not in names:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return names[name]

    def _remove(self, folder: int, name: str) -> None:
        inode = self._found(folder, name)
        del self._names(folder)[name]
        inode.links -= 1
        self._disk.let_go(inode)

    def _do(self, what: str, path: str, call: Callable[[], R]) -> R:
        """Give way, maybe fail, act, give way."""
        world, process = self._world, self._process
        world.check_alive(process)
        world.calls += 1
        process.calls += 1
        number = process.calls
        process.in_flight[number] = Flight(what, lambda: None)
        fault = self._fault(what, number)
        world.coverage[fault or "none", what] += 1
        try:
            world.pause(self._disk.pace_s * (0.1 + world.chance(54, process.index, number)))
            if fault == "after":
                call()
            if fault:
                code = errno.ENOSPC if fault == "enospc" else errno.EIO
                raise OSError(code, os.strerror(code), path)
            result = call()
        except OSError as error:
            world.note(process.name, what, path, "", errno.errorcode.get(error.errno or 0, "?"), fault)
            raise
        finally:
            process.in_flight.pop(number, None)
        world.note(process.name, what, path, "", "ok", fault)
        return result

    def _fault(self, what: str, number: int) -> str:
        """EIO before the call had an effect, EIO after it (only where that can be), or a full disk."""
        world, process = self._world, self._process
        if what == "lock" or world.chance(55, process.index, number) >= self._fault_rate:
            return ""
        kinds = ["eio"]
        if what in ("create", "write", "link", "rename", "mkdir"):
            kinds.append("enospc")
        if what in ("rename", "link", "unlink"):
            kinds.append("after")
        kind = kinds[int(world.chance(56, process.index, number) * len(kinds))]
        return kind if world.strike(f"{process.name}/{number}", kind) else ""


def _stat(inode: Inode) -> Stat:
    return Stat(inode.mode, 1, inode.number, len(inode.data), inode.mtime_ns)
