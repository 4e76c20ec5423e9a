"""Scenario: processes of one machine on a directory, with power loss, full disks, failing calls, and kill -9; and the
file system of that machine.

The bytes and times of a file are durable after it was synced; a name is durable after its folder was synced. Everything
else may be lost in a power loss, independently for each name and file. Inode numbers are reused immediately, and the
clock has a resolution of 4 ms, as on real kernels (F15).
"""

from __future__ import annotations

import errno
import os
import stat
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from limpet.kernel.cell import PLAIN, Cell
from limpet.kernel.errors import Conflict, LimpetError, Missing
from limpet.kernel.keys import Key, cell_key
from limpet.kernel.store import Absent, Blob, DirectoryStore, Match, Store, When
from limpet.kernel.store.directory.files import Files
from sim.actors import Actors, RunPlan, Turns
from sim.kernel import CellActor, History, Operation, cell_model, explained, linearizable
from sim.world import PendingRequest, SimProcess, SimRuntime, SimTask, Violation, World

# ---- the disk ----

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

    def free(self, inode: Inode) -> None:
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

    def release(self, process: SimProcess) -> None:
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
    def create(self, name: str, flags: int, mode: int, /, *, dir_fd: int) -> int:
        return self._opened(self._made(dir_fd, name, stat.S_IFREG | mode))

    @_system_call
    def reopen(self, name: str, flags: int, /, *, dir_fd: int) -> int:
        return self._opened(self._found(dir_fd, name))

    def close(self, fd: int, /) -> None:
        """The files of a dead process were closed when it died."""
        inode = self._open.pop(fd, None)
        if inode is not None:
            inode.opened -= 1
            self._disk.free(inode)

    def close_all(self) -> None:
        """Close every descriptor: the process has died."""
        for fd in [*self._open]:
            self.close(fd)

    def unpin(self, fd: int, /) -> None:
        """It is kept until the process ends: Python's garbage collector must not change the trace."""

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
    def stat(self, name: str, /, *, dir_fd: int) -> SimStat:
        return self._found(dir_fd, name).stat()

    @_system_call
    def identify(self, path: str, /) -> SimStat:
        return self._disk.find(path).stat()

    @_system_call
    def utime(self, fd: int, /, *, ns: tuple[int, int]) -> None:
        self._open[fd].mtime_ns = ns[1]

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
    def link(self, name: str, to_name: str, /, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        inode = self._found(src_dir_fd, name)
        self._without(dst_dir_fd, to_name)[to_name] = inode
        inode.links += 1

    @_system_call
    def rename(self, name: str, to_name: str, /, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        inode = self._found(src_dir_fd, name)
        names = self._names(dst_dir_fd)
        old = names.get(to_name)
        del self._names(src_dir_fd)[name]
        names[to_name] = inode
        if old is not None:
            old.links -= 1
            self._disk.free(old)

    @_system_call
    def unlink(self, name: str, /, *, dir_fd: int) -> None:
        self._remove(dir_fd, name)

    @_system_call
    def mkdir(self, name: str, mode: int, /, *, dir_fd: int) -> None:
        self._made(dir_fd, name, stat.S_IFDIR | mode)

    @_system_call
    def rmdir(self, name: str, /, *, dir_fd: int) -> None:
        if self._found(dir_fd, name).names:
            raise OSError(errno.ENOTEMPTY, "not empty", name)
        self._remove(dir_fd, name)

    @_system_call
    def scandir(self, folder: int, floor: str = "", /) -> Sequence[tuple[str, bool]]:
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
        self._disk.free(inode)

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


# ---- the scenario ----

ROOT = "/srv/fleet"
SLOTS = 3
TURNS = 7
RUN_S = 600.0
TTL_CALLS = 20
"""The ttl of an entry's lease, in disk calls: sometimes shorter than its work."""
RAW = Key("raw/object.json")
CELLS = ("counter", "register", "once-0", "once-1", "once-2")


class MachineActors(Actors):
    """The processes of one machine, its disk, and kill -9 and power loss at random times."""

    def __init__(
        self, world: World, plan: RunPlan, *, turns: int, pauses: tuple[float, float], power_losses: float
    ) -> None:
        """`pauses`: the minimum time between two faults, and the maximum random addition, in disk calls.

        `power_losses`: the share of faults that are power losses; the others kill one process.
        """
        super().__init__(world, plan, slots=SLOTS, turns=turns)
        self.disk = Disk(world, folders=ROOT)
        self._pauses = pauses
        self._power_losses = power_losses

    def inject_faults(self) -> None:
        """Inject faults until they stop."""
        strikes = 0
        while not self.world.healed:
            strikes += 1
            least, more = self._pauses
            self.world.pause(self.disk.pace_s * (least + more * self.world.chance(61, strikes)))
            kind = "power_loss" if self.world.chance(62, strikes) < self._power_losses else "crash"
            if not self.living or not self.world.strike(f"nemesis/{strikes}", kind):
                continue
            one = int(self.world.chance(63, strikes) * len(self.living))
            self.hit(kind, [*self.living] if kind == "power_loss" else [self.living[one]])

    def hit(self, kind: str, victims: list[SimProcess]) -> None:
        """Kill these processes, for a power loss also lose unsynced data; then start new ones."""
        self.world.note("nemesis", kind, detail=" ".join(victim.name for victim in victims), fault=kind)
        for victim in victims:
            self.crash(victim, kind)
            self.disk.release(victim)
        if kind == "power_loss":
            self.disk.lose_power()
            self.recover()
        for victim in victims:
            self.relaunch(victim)

    @abstractmethod
    def recover(self) -> None:
        """Check the disk after a power loss; no process runs.   Raises: Violation."""


class StillFiles(SimFiles):
    """System calls that take no time and never fail. They are counted, so that each write draws another number."""

    def _simulate(self, what: str, about: str, call: Callable[[], R]) -> R:
        self._process.calls += 1
        return call()


class DirectoryActors(MachineActors):
    """Processes that use cells and objects; `kept`: the cells as the last power loss left them."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        super().__init__(world, plan, turns=TURNS, pauses=(15, 250), power_losses=0.3)
        self.fault_rate = 0.01 + 0.05 * world.chance(60)
        self.history = History()
        self.kept: dict[Key, object] = {}
        self.entries = EntryModel(ttl_s=TTL_CALLS * self.disk.pace_s)

    def act(self) -> None:
        self.play(self.inject_faults, until_s=RUN_S)
        self.world.healed = True
        self.recover()

    def actor(self, process: SimProcess) -> DirectoryActor:
        runtime = SimRuntime(self.world, process)
        files = SimFiles(self.disk, self.world, process, fault_rate=self.fault_rate)
        return DirectoryActor(runtime, DirectoryStore(ROOT, runtime=runtime, files=files), self.history, self.entries)

    def recover(self) -> None:
        """Acknowledged writes are on the disk, and the answers so far are linearizable."""
        when = "the end" if self.world.healed else f"power loss {self.disk.losses}"
        found = self.recovered()
        for key in [*(cell_key(name) for name in CELLS), RAW]:
            operations = self.history.operations.get(key, [])
            before = (self.kept.get(key), 0)
            if linearizable(operations, before, cell_model) is False:
                raise Violation(explained(f"{key} is not linearizable before {when}", operations))
            # A reader may have seen a write that was not durable yet: only acknowledged writes must exist.
            writes = [op for op in operations if op.name != "read" and op.answer not in ("Conflict",)]
            last = Operation("the disk", "read", None, float(10**9), float(10**9 + 1), found.get(key))
            if linearizable([*writes, last], before, cell_model) is False:
                raise Violation(explained(f"after {when}, {key} is {found.get(key)!r}", operations))
        self.kept = found
        self.history.operations.clear()

    def recovered(self) -> dict[Key, object]:
        """The cells as the next process will find them.   Raises: Violation for one that is torn."""
        process = self.world.start("inspector")
        runtime = SimRuntime(self.world, process)
        store = DirectoryStore(ROOT, runtime=runtime, files=StillFiles(self.disk, self.world, process, fault_rate=0))
        found: dict[Key, object] = {}
        with suppress(Missing):
            found[RAW] = store.get(RAW).data
        self.entries.check({stat.key for stat in store.list("queues")})
        for name in CELLS:
            cell = Cell(store, cell_key(name), PLAIN, runtime)
            try:
                seen = cell.read()
            except LimpetError as error:
                raise Violation(f"{cell.key} cannot be read: {error}") from error
            if seen is not None:
                found[cell.key] = seen.value
        return found


def entry_keys(name: str) -> tuple[Key, Key, Key]:
    """The task, the lease and the receipt of an entry."""
    return Key(f"queues/e/{name}/task.json"), Key(f"queues/e/{name}/lease.json"), Key(f"queues/ended/{name}.json")


@dataclass(slots=True)
class EntryModel:
    """Entries as a queue has them.

    `pushed`: those that may be listed; `claimed_s`: when the last claim of each was sent; `ended`: those whose receipt
    was acknowledged.
    """

    ttl_s: float
    pushed: list[str] = field(default_factory=list)
    claimed_s: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    def start(self, name: str, token: int) -> None:
        """A process that holds `token` of the entry begins its work.   Raises: Violation, if it has ended."""
        if name in self.ended:
            raise Violation(f"{name} was ended, and starts again under token {token}")

    def check(self, there: set[Key]) -> None:
        """Nothing is lost, and no ended task is without its lease: a first claim would start it again.

        Raises: Violation.
        """
        for name in self.pushed:
            task, lease, receipt = entry_keys(name)
            if not {task, receipt} & there:
                raise Violation(f"{name} was pushed, and neither its task nor its receipt is there")
            if name in self.ended and task in there and lease not in there:
                raise Violation(f"{name} was ended, and its task is there without its lease")


class DirectoryActor(CellActor):
    """Uses cells, objects that come and go, and entries whose names are used once."""

    def __init__(self, runtime: SimRuntime, store: Store, history: History, entries: EntryModel) -> None:
        super().__init__(runtime, store, history)
        self.entries = entries

    def turns(self) -> Turns:
        return [
            (0.15, self.count),
            (0.15, self.swap_register),
            (0.1, self.create_once),
            (0.25, self.swap_bytes),
            (0.1, self.come_and_go),
            (0.25, self.run_entry),
        ]

    def swap_bytes(self) -> None:
        """Swap an object without a header, always of the same size, as fast as possible (F15); sometimes delete it."""
        for _ in range(4):
            if self.chance() < 0.1:
                self.recorded(RAW, "delete", None, lambda: self.store.delete(RAW) or "ok")
            operation = self.history.begin(self.process.name, RAW, "read")
            try:
                found = self.store.get(RAW)
            except Missing:
                self.history.end(operation, None)
                self.put_bytes("create", None, Absent())
                continue
            self.history.end(operation, found.data)
            self.put_bytes("swap", found.data, Match(found.version))

    def put_bytes(self, name: str, base: bytes | None, when: When) -> None:
        """One conditional put; a directory's Conflict is final."""
        self.values += 1
        data = f"{self.process.index:04x}{self.values:04x}".encode()
        argument = data if base is None else (base, data)
        self.recorded(RAW, name, argument, lambda: self.store.put(RAW, data, when=when) and "ok")

    def come_and_go(self) -> None:
        """Create and delete a single-use object in a folder that others create and prune too."""
        key = Key(f"queues/q/{int(self.chance() * 2)}/{self.new_value().replace('#', '-')}.json")
        self.store.put(key, b"{}")
        if key not in [stat.key for stat in self.store.list("queues")]:
            raise Violation(f"{key} was acknowledged and is not listed")
        self.store.delete(key)

    def run_entry(self) -> None:
        """Claim an entry, run it and end it, by the queue's rules (docs/inside/architecture.md)."""
        entries = self.entries
        if not entries.pushed or self.chance() < 0.4:
            name = self.new_value().replace("#", "-")
            self.store.put(entry_keys(name)[0], b"{}", when=Absent())
            entries.pushed.append(name)
        else:
            name = entries.pushed[-1 - int(self.chance() * min(2, len(entries.pushed)))]
        task, lease, receipt = entry_keys(name)
        claim = self.claim(name, lease)
        if claim is None:
            return
        token, sent_s = claim
        try:
            self.store.get(task)
        except Missing:
            self.store.delete(lease)
            return
        if (token > 1 and self.store.exists(receipt)) or self.world.now_s - sent_s > entries.ttl_s:
            return
        entries.start(name, token)
        try:
            self.store.put(receipt, b"{}", when=Absent())
        except Conflict:
            return  # of another claim: it may not be durable yet, so we must not act on it
        entries.ended.add(name)
        self.store.delete_in_order([task, lease])

    def claim(self, name: str, lease: Key) -> tuple[int, float] | None:
        """Create the lease, or take over an expired one; returns its token and the time of the request, or None."""
        try:
            found: Blob | None = self.store.get(lease)
        except Missing:
            found = None
        sent_s = self.world.now_s
        if found is not None and sent_s - self.entries.claimed_s[name] <= self.entries.ttl_s:
            return None
        self.entries.claimed_s[name] = sent_s
        token = int(found.data) + 1 if found else 1
        try:
            self.store.put(lease, b"%d" % token, when=Match(found.version) if found else Absent())
        except Conflict:
            return None
        return token, sent_s
