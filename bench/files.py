"""`DirectoryStore` against bare file calls in one folder.

Baselines, from least to most promised:

- `rename`: open a temp file, write, fsync, close, rename. After a power loss the name may be the old one.
- `+ folder`: and fsync the folder, so that the name survives too. This is what an acknowledged put promises.
- for `create`, `link` + `unlink` take the place of `rename`: only they refuse a name that is taken.

A number in brackets counts system calls. None of the baselines has versions, swaps, or a way to exclude a second
writer.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

from bench.rounds import Batch, Call, Case
from limpet.kernel.keys import Key
from limpet.kernel.store import Absent, Match
from limpet.kernel.store.directory import DirectoryStore, Files, OsFiles

__all__ = ["file_cases"]

AIM = 1.3
BODY = b"x" * 1024
DOUBLE = ("lock", "unlock")
"""Calls of the seam that are two system calls each."""

Durability = Literal["fsync", "os"]
DURABILITIES: tuple[Durability, ...] = ("fsync", "os")


def file_cases(folder: Path, where: str, *, calls: int, rounds: int) -> Iterator[Case]:
    """Every verb that has a bare counterpart, in a new folder below `folder`, with and without fsync."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="limpet-bench-") as name:
        for durability in DURABILITIES:
            yield from _cases(Path(name), where, durability, calls, rounds)


def _cases(root: Path, where: str, durability: Durability, calls: int, rounds: int) -> Iterator[Case]:
    ours = _Ours(root / f"ours-{durability}", durability)
    sync = durability == "fsync"
    plain = _Bare(root / f"plain-{durability}", sync=sync, sync_folder=False)
    safe = _Bare(root / f"safe-{durability}", sync=sync, sync_folder=True)

    def case(verb: str, bare: str) -> Case:
        ways = [plain, safe] if sync and verb != "get" else [plain]
        against = {
            f"bare {bare}{' + folder' * (way is safe)} ({way.system_calls(bare)})": way.batch(bare) for way in ways
        }
        note = f"{_system_calls(root / 'counted', durability, verb)} system calls"
        return Case(f"{verb}, {durability}", getattr(ours, verb), against, AIM, calls, rounds, where=where, note=note)

    yield case("put", "rename")
    yield case("swap", "rename")
    yield case("create", "link")
    if sync:
        yield case("get", "read")


class _Ours:
    """Batches of calls to our store."""

    def __init__(self, root: Path, durability: Durability, files: Files = OsFiles()) -> None:
        self._root = root
        self._store = DirectoryStore(root, durability=durability, files=files)
        self._key = Key("a/own.json")
        self._version = self._store.put(self._key, BODY)
        self._store.put(Key("a/stays.json"), BODY)
        self._names = count()
        self._made: list[Path] = []

    def put(self, n: int) -> Sequence[Call]:
        return [partial(self._store.put, self._key, BODY)] * n

    def swap(self, n: int) -> Sequence[Call]:
        self._version = self._store.head(self._key).version
        return [self._swap] * n

    def _swap(self) -> None:
        self._version = self._store.put(self._key, BODY, when=Match(self._version))

    def create(self, n: int) -> Sequence[Call]:
        _clear(self._made)
        names = [f"a/{next(self._names):08}.json" for _ in range(n)]
        self._made = [self._root / name for name in names]
        return [partial(self._store.put, Key(name), BODY, when=Absent()) for name in names]

    def get(self, n: int) -> Sequence[Call]:
        return [partial(self._store.get, self._key)] * n


class _Counted:
    """The real file system, counting system calls."""

    def __init__(self) -> None:
        self.calls = 0
        names = [name for name in vars(Files) if not name.startswith("_")]
        self.files = cast(Files, SimpleNamespace(**{name: self._tap(name) for name in names}))

    def _tap(self, name: str) -> Callable[..., Any]:
        real = getattr(OsFiles, name)

        def call(*args: Any, **options: Any) -> Any:
            self.calls += 2 if name in DOUBLE else 1
            return real(*args, **options)

        return call


def _system_calls(root: Path, durability: Durability, verb: str) -> int:
    """How many system calls one call of ours makes, once the store is warm."""
    counted = _Counted()
    ours = _Ours(root, durability, counted.files)
    for call in getattr(ours, verb)(3):
        counted.calls = 0
        call()
    shutil.rmtree(root)
    return counted.calls


class _Bare:
    """The same batches by calls of `os`."""

    def __init__(self, root: Path, *, sync: bool, sync_folder: bool) -> None:
        self._sync = sync
        self._sync_folder = sync_folder
        self._folder = str(root / "a")
        self._temps = str(root / "tmp")
        os.makedirs(self._folder)
        os.makedirs(self._temps)
        self._path = f"{self._folder}/own.json"
        self._names = count()
        self._made: list[Path] = []
        self._put()

    def batch(self, way: str) -> Batch:
        return {"rename": self._puts, "link": self._creates, "read": self._gets}[way]

    def system_calls(self, way: str) -> int:
        """How many system calls one such call makes."""
        if way == "read":
            return 4
        return (5 if way == "link" else 4) + self._sync + 3 * self._sync_folder

    def _fill(self) -> str:
        temp = f"{self._temps}/{next(self._names):016x}"
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        os.write(fd, BODY)
        if self._sync:
            os.fsync(fd)
        os.close(fd)
        return temp

    def _settle(self) -> None:
        if self._sync_folder:
            fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            os.fsync(fd)
            os.close(fd)

    def _put(self) -> None:
        os.rename(self._fill(), self._path)
        self._settle()

    def _puts(self, n: int) -> Sequence[Call]:
        return [self._put] * n

    def _create(self, path: str) -> None:
        temp = self._fill()
        os.link(temp, path)
        self._settle()
        os.unlink(temp)

    def _creates(self, n: int) -> Sequence[Call]:
        _clear(self._made)
        paths = [f"{self._folder}/{next(self._names):08}.json" for _ in range(n)]
        self._made = [Path(path) for path in paths]
        return [partial(self._create, path) for path in paths]

    def _get(self) -> bytes:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        data = os.read(fd, os.fstat(fd).st_size)
        os.close(fd)
        return data

    def _gets(self, n: int) -> Sequence[Call]:
        return [self._get] * n


def _clear(paths: Sequence[Path]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            path.unlink()
