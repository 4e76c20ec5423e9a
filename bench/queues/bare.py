"""One task at a time by Limpet, and by the bare system calls of the same protocol: the same files in the same order.

`BareQueue` is written from an strace of one task: it makes every system call that Limpet makes for a push, a listing, a
claim and an end, and nothing else. It has no names, no records, no errors, and loses tasks if a second one runs.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from typing import Literal, Protocol

__all__ = ["PAGE", "BareQueue", "serve"]

PAGE = 500
"""How many entries a page of a listing has: a task and a lease each."""
TASK, LEASE, RECEIPT = b"t" * 440, b"l" * 374, b"r" * 569
PAYLOAD = {"n": 1, "text": "x" * 180}
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

Durability = Literal["fsync", "os"]


class SingleTasks(Protocol):
    """Something that pushes tasks, and works them off, one at a time."""

    def push(self, count: int) -> None:
        """Push so many."""

    def drain(self, count: int) -> None:
        """Work off so many, which are there."""


class BareQueue:
    """The system calls of a queue in a folder."""

    def __init__(self, root: str, durability: Durability) -> None:
        self._sync = durability == "fsync"
        self._root = root
        for name in ("tmp", "pending", "completed"):
            os.makedirs(f"{root}/{name}")
        self._tmp, self._pending, self._completed = (
            os.open(f"{root}/{name}", FOLDER) for name in ("tmp", "pending", "completed")
        )
        self._made = self._temps = 0
        self._page: list[str] = []

    def push(self, count: int) -> None:
        for _ in range(count):
            self._made += 1
            entry = f"01m7thjqatea46wvjp{self._made:08}"
            temp = self._fill(TASK)
            os.lstat(f"{self._root}/pending")
            os.mkdir(entry, 0o700, dir_fd=self._pending)
            folder = os.open(entry, FOLDER | os.O_NOFOLLOW, dir_fd=self._pending)
            self._link(temp, folder, "task.json", is_new=True)
            os.close(folder)

    def drain(self, count: int) -> None:
        for _ in range(count):
            if not self._page:
                self._page = self._listed()
            self._work(self._page.pop())

    def _listed(self) -> list[str]:
        """One page; the last entry first."""
        pending = os.open(f"{self._root}/pending", FOLDER)
        entries = sorted(entry.name for entry in os.scandir(pending))[:PAGE]
        for entry in entries:
            folder = os.open(entry, FOLDER | os.O_NOFOLLOW, dir_fd=pending)
            for name in os.scandir(folder):
                os.stat(name.name, dir_fd=folder, follow_symlinks=False)
            os.close(folder)
        os.close(pending)
        return entries[::-1]

    def _work(self, entry: str) -> None:
        path = f"{self._root}/pending/{entry}"
        folder = os.open(path, FOLDER)
        self._put(LEASE, folder, "lease.json", is_new=True)
        task = os.open(f"{path}/task.json", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.pread(task, os.fstat(task).st_size, 0)
        os.close(task)
        os.lstat(f"{self._root}/completed")
        self._put(RECEIPT, self._completed, f"{entry}.json")
        os.lstat(path)
        if not self._sync:
            os.fstat(folder)
        for name in ("task.json", "lease.json"):
            os.unlink(name, dir_fd=folder)
            if self._sync:
                os.fsync(folder)
        os.lstat(f"{self._root}/pending")
        os.rmdir(entry, dir_fd=self._pending)
        os.fstat(self._pending)
        os.close(folder)

    def _put(self, data: bytes, folder: int, name: str, *, is_new: bool = False) -> None:
        if self._sync:
            with suppress(FileNotFoundError):
                os.stat(name, dir_fd=folder, follow_symlinks=False)
        self._link(self._fill(data), folder, name, is_new=is_new)

    def _fill(self, data: bytes) -> str:
        self._temps += 1
        temp = f"{self._temps:x}"
        file = os.open(temp, NEW, 0o600, dir_fd=self._tmp)
        os.write(file, data)
        born_ns = os.fstat(file).st_mtime_ns
        os.utime(file, ns=(born_ns - 1, born_ns - 1))
        os.fstat(file)
        if self._sync:
            os.fsync(file)
        os.close(file)
        return temp

    def _link(self, temp: str, folder: int, name: str, *, is_new: bool = False) -> None:
        os.link(temp, name, src_dir_fd=self._tmp, dst_dir_fd=folder, follow_symlinks=False)
        if self._sync:
            os.fsync(folder)
        if self._sync and is_new:
            os.lstat(f"{self._root}/pending")
            os.fsync(self._pending)
            os.fstat(folder)
        os.unlink(temp, dir_fd=self._tmp)


class LimpetQueue:
    """The same by the Limpet that this process can import: of the checkout, or of another version."""

    def __init__(self, root: str, durability: Durability) -> None:
        import limpet

        self._queue = limpet.open(f"{root}/fleet", durability=durability).queue("single")

    def push(self, count: int) -> None:
        for _ in range(count):
            self._queue.push(PAYLOAD)

    def drain(self, count: int) -> None:
        left = count
        while left:
            with self._queue.claim() as claim:
                for task in claim:
                    task.done("HELLO")
                    left -= 1


def serve(way: str, durability: Durability, folder: str) -> None:
    """Answer `push N` and `drain N` on stdin with the CPU microseconds (user and system) of a task."""
    root = tempfile.mkdtemp(dir=folder)
    try:
        queue: SingleTasks = BareQueue(root, durability) if way == "bare" else LimpetQueue(root, durability)
        acts = {"push": queue.push, "drain": queue.drain}
        for line in sys.stdin:
            verb, count = line.split()
            begun_s = time.process_time()
            acts[verb](int(count))
            print((time.process_time() - begun_s) / int(count) * 1e6, flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
