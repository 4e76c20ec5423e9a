"""The file system of a simulated machine, with power loss and failing calls.

The bytes and times of a file are durable after it was synced; a name is durable after its folder was synced. Everything
else may be lost in a power loss, independently for each name and file. Inode numbers are reused immediately, and the
clock has a resolution of 4 ms, as on real kernels (F15).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from limpet.sim.world import PendingRequest, SimProcess, SimTask, World
from limpet.store.directory.files import Files

P = ParamSpec("P")
R = TypeVar("R")
TICK_NS = 4_000_000
EPOCH_NS = 1_767_225_600_000_000_000


@dataclass(slots=True, eq=False)
class Inode:
    """A file or folder: its current content, and its durable content."""

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

    def stat(self) -> SimStat:
        """A snapshot of its metadata."""
        links = 2 + sum(inode.is_folder for inode in self.names.values()) if self.is_folder else self.links
        return SimStat(self.mode, 1, self.number, links, len(self.data), self.mtime_ns)


@dataclass(frozen=True, slots=True)
class SimStat:
    """A snapshot of an inode."""

    st_mode: int
    st_dev: int
    st_ino: int
    st_nlink: int
    st_size: int
    st_mtime_ns: int


@dataclass(frozen=True, slots=True)
class Pinned:
    """A descriptor that its process keeps open."""

    fd: int


class Disk:
    """The file system of one machine."""

    def __init__(self, world: World, *, folders: str) -> None:
        """A disk on which these folders are durable from the start."""
        self._world = world
        self._used: set[int] = set()
        self.root = self.new(stat.S_IFDIR | 0o755)
        self.root.links = 1
        self.locks: dict[str, SimProcess | None] = {}
        self.opened: dict[SimProcess, list[SimFiles]] = {}
        self.waiting: list[tuple[str, SimTask]] = []
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
        """Free the number of an inode that has neither names nor open descriptors."""
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

    def bury(self, process: SimProcess) -> None:
        """A process has died: its locks are free, and its files and folders closed."""
        for path, holder in self.locks.items():
            if holder is process:
                self.unlock(path)
        for files in self.opened.pop(process, []):
            files.close_all()

    def unlock(self, path: str) -> None:
        """Free a lock, and wake the tasks that wait for it."""
        self.locks[path] = None
        for waiting in self.waiting:
            if waiting[0] == path:
                self._world.wake_at(waiting[1], self._world.now_s)
        self.waiting = [waiting for waiting in self.waiting if waiting[0] != path]

    def lose_power(self) -> None:
        """Lose what was not synced, at random, and all locks."""
        self.losses += 1
        self.locks.clear()
        self.waiting.clear()
        self.opened.clear()
        self._lose(self.root, 0)
        self._count_links(self.root, set())

    def _count_links(self, folder: Inode, seen: set[int]) -> None:
        """Count links again after names have come and gone."""
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


def _system_call(call: Callable[Concatenate[SimFiles, P], R]) -> Callable[Concatenate[SimFiles, P], R]:
    """A call that yields, may fail, and is added to the trace with its file name or descriptor."""

    @wraps(call)
    def simulated(self: SimFiles, /, *args: P.args, **kwargs: P.kwargs) -> R:
        names = [each for each in args if isinstance(each, str)]
        about = names[-1] if names else f"fd {args[0]}"
        return self._simulate(call.__name__, about, lambda: call(self, *args, **kwargs))

    return simulated


class SimFiles(Files):
    """One process's system calls."""

    def __init__(self, disk: Disk, world: World, process: SimProcess, *, fault_rate: float) -> None:
        self._disk = disk
        self._world = world
        self._process = process
        self._fault_rate = fault_rate
        self._open: dict[int, Inode] = {}
        self._held: dict[int, str] = {}
        self._fds = 2
        disk.opened.setdefault(process, []).append(self)

    @_system_call
    def open(self, path: str, flags: int, /) -> int:
        return self._opened(self._disk.find(path))

    @_system_call
    def create(self, folder: int, name: str, mode: int, /) -> int:
        return self._opened(self._made(folder, name, stat.S_IFREG | mode))

    @_system_call
    def reopen(self, folder: int, name: str, /) -> int:
        return self._opened(self._found(folder, name))

    def close(self, fd: int, /) -> None:
        """The files of a dead process were closed when it died."""
        inode = self._open.pop(fd, None)
        if inode is not None:
            inode.opened -= 1
            self._disk.let_go(inode)

    def close_all(self) -> None:
        """Close every descriptor: the process has died."""
        for fd in [*self._open]:
            self.close(fd)

    def pin(self, fd: int, /) -> Pinned:
        """It is kept until the process ends: Python's garbage collector must not change the trace."""
        return Pinned(fd)

    @_system_call
    def write(self, fd: int, data: bytes | memoryview, /) -> int:
        """See `Files.write`: one in ten writes is short."""
        inode = self._open[fd]
        whole = self._world.chance(53, self._process.index, self._process.calls) < 0.9
        taken = len(data) if whole else len(data) // 2
        inode.data += bytes(data[:taken])
        inode.mtime_ns = self._disk.now_ns()
        return taken

    @_system_call
    def pread(self, fd: int, size: int, offset: int, /) -> bytes:
        return self._open[fd].data[offset : offset + size]

    @_system_call
    def fstat(self, fd: int, /) -> SimStat:
        return self._open[fd].stat()

    @_system_call
    def stat(self, folder: int, name: str, /) -> SimStat:
        return self._found(folder, name).stat()

    @_system_call
    def identify(self, path: str, /) -> SimStat:
        return self._disk.find(path).stat()

    @_system_call
    def utime(self, fd: int, mtime_ns: int, /) -> None:
        self._open[fd].mtime_ns = mtime_ns

    @_system_call
    def fchmod(self, fd: int, mode: int, /) -> None:
        inode = self._open[fd]
        inode.mode = stat.S_IFMT(inode.mode) | mode

    @_system_call
    def fsync(self, fd: int, /) -> None:
        inode = self._open[fd]
        inode.safe_data, inode.safe_mtime_ns = inode.data, inode.mtime_ns
        inode.safe_names = dict(inode.names)

    @_system_call
    def link(self, folder: int, name: str, to_folder: int, to_name: str, /) -> None:
        inode = self._found(folder, name)
        self._without(to_folder, to_name)[to_name] = inode
        inode.links += 1

    @_system_call
    def rename(self, folder: int, name: str, to_folder: int, to_name: str, /) -> None:
        inode = self._found(folder, name)
        names = self._names(to_folder)
        old = names.get(to_name)
        del self._names(folder)[name]
        names[to_name] = inode
        if old is not None:
            old.links -= 1
            self._disk.let_go(old)

    @_system_call
    def unlink(self, folder: int, name: str, /) -> None:
        self._remove(folder, name)

    @_system_call
    def mkdir(self, folder: int, name: str, mode: int, /) -> None:
        self._made(folder, name, stat.S_IFDIR | mode)

    @_system_call
    def rmdir(self, folder: int, name: str, /) -> None:
        if self._found(folder, name).names:
            raise OSError(errno.ENOTEMPTY, "not empty", name)
        self._remove(folder, name)

    @_system_call
    def scandir(self, folder: int, /) -> Sequence[tuple[str, bool]]:
        return [(name, inode.is_folder) for name, inode in self._names(folder).items()]

    def walk(self, folder: int, /) -> Iterator[tuple[str, bool]]:
        yield from self.scandir(folder)

    @_system_call
    def lock(self, path: str, /) -> int:
        self._disk.find(path)
        while self._disk.locks.get(path) is not None:
            task = self._world.current()
            self._disk.waiting.append((path, task))
            self._world.park(task)
        self._disk.locks[path] = self._process
        self._fds += 1
        self._held[self._fds] = path
        return self._fds

    def unlock(self, fd: int, /) -> None:
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

    def _without(self, folder: int, name: str) -> dict[str, Inode]:
        """The names in an open folder.   Raises: FileExistsError if `name` is one of them."""
        names = self._names(folder)
        if name in names:
            raise FileExistsError(errno.EEXIST, "exists", name)
        return names

    def _made(self, folder: int, name: str, mode: int) -> Inode:
        names = self._without(folder, name)
        names[name] = inode = self._disk.new(mode)
        inode.links = 1
        return inode

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

    def _simulate(self, what: str, path: str, call: Callable[[], R]) -> R:
        """Yield, then fail or make the call."""
        world, process = self._world, self._process
        world.check_alive(process)
        world.calls += 1
        process.calls += 1
        number = process.calls
        process.in_flight[number] = PendingRequest(what, lambda: None)
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
        """The fault of a call: EIO before it took effect, EIO after it (where that is possible), or a full disk."""
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
