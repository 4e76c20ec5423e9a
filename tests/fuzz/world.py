"""Where a damaged object is read: a copy of a fleet in memory on a virtual clock, with limits on all that is used.

A fleet is built once and copied for every consumer (`Built`, `Bench`). Requests, sleeps, CPU seconds and memory are
bounded; what exceeds them is a `BaseException`, which no code of ours may catch.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import signal
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

import limpet
from cli.harness import Done
from limpet import cli
from limpet.app import Fleet, fleet, place
from limpet.cli import EXIT_INTERNAL
from limpet.kernel import runtime
from limpet.kernel.errors import Corrupt, LimpetError
from limpet.kernel.keys import Key, check_prefix
from limpet.kernel.runtime import Flag, Runtime
from limpet.kernel.store import Blob, MemoryStore, Stat, Store
from support.clock import ManualFlag, QueueRuntime, Time

__all__ = [
    "Bench",
    "Built",
    "Exceeded",
    "FuzzRuntime",
    "FuzzStore",
    "Stopped",
    "Unfit",
    "command",
    "guarded",
    "tolerated",
    "unfit",
]

NAME = "fuzz"
URL = f"memory://{NAME}"
BUCKET = f"s3://{NAME}"
"""The same store under another URL, for commands that refuse memory://: no other process could see that."""
DISKS = "/nowhere/fuzz"
"""Where nodes seem to have their directories."""
REQUESTS_MAX = 20_000
SLEEPS_MAX = 20_000
CPU_S = 8.0
WALL_S = 100.0
MEMORY_BYTES_MAX = 256 << 20
HUGE_BYTES = 3 << 30
READ_BYTES_MAX = 256 << 20

_real_store_for = place.store_for
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SIZE_MAX = inspect.signature(MemoryStore.get).parameters.get("size_max")


class Exceeded(BaseException):
    """More was used than one damaged object may cost: requests, sleeps, CPU seconds or memory."""


class Stopped(AssertionError):
    """Good work beside the damaged object did not get done."""


class Unfit(AssertionError):
    """Something was printed that a terminal would obey, or that cannot be encoded."""


class _FuzzFlag(ManualFlag):
    """A long wait looks at it ten times, so that idle threads cost little."""

    def wait(self, timeout: float) -> bool:
        self.every_s = max(0.1, timeout / 10)
        return super().wait(timeout)


class FuzzRuntime(QueueRuntime):
    """A process on a virtual clock that may sleep only so often."""

    def __init__(self, time: Time, owner: str) -> None:
        super().__init__(time, owner)
        self._sleeps = 0

    def sleep(self, seconds: float) -> None:
        """Wait, unless somebody seems to wait for ever."""
        self._sleeps += 1
        if self._sleeps > SLEEPS_MAX:
            raise Exceeded(f"slept {SLEEPS_MAX} times")
        super().sleep(seconds)

    def flag(self) -> Flag:
        """A latch on the shared time."""
        return _FuzzFlag(self.time)


class FuzzStore(MemoryStore):
    """A memory store with a request budget. An object in `huge` claims to have 3 GB: whoever reads it whole fails."""

    def __init__(self, runtime: FuzzRuntime, objects: dict[Key, Any] | None = None) -> None:
        super().__init__(runtime)
        self._objects = dict(objects or {})
        self._in_order: list[Key] | None = None
        self.huge: set[str] = set()
        self._requests = 0

    @property
    def objects(self) -> dict[Key, Any]:
        """A copy of what is stored."""
        return dict(self._objects)

    def date_back(self, key: Key, modified: datetime) -> None:
        """Give an object the time that it had before it was damaged."""
        self._objects[key] = replace(self._objects[key], modified=modified)

    def place(self, key: str, of: Key, data: bytes | None) -> None:
        """An object under a name that `put` would refuse: a copy of another one, or with other bytes."""
        entry = self._objects[of]
        self._objects[Key(key)] = entry if data is None else replace(entry, data=data)
        self._in_order = None

    def _count(self) -> None:
        self._requests += 1
        if self._requests > REQUESTS_MAX:
            raise Exceeded(f"made {REQUESTS_MAX} requests")

    def get(self, key: Key, **options: Any) -> Blob:
        """See `Store.get`."""
        self._count()
        if key in self.huge:
            return self._huge(key, **options)
        return super().get(key, **options)

    def _huge(self, key: Key, range: tuple[int, int] | None = None, **options: Any) -> Blob:
        entry = self._objects[key]
        if range is not None:
            wanted = min(range[1], HUGE_BYTES) - range[0]
            if wanted > READ_BYTES_MAX:
                raise Exceeded(f"asked for {wanted} bytes of {key} at once")
            return Blob(
                (entry.data * (wanted // max(len(entry.data), 1) + 1))[:wanted],
                entry.version,
                entry.modified,
                HUGE_BYTES,
            )
        size_max = options.get("size_max", _SIZE_MAX.default if _SIZE_MAX else None)
        if size_max is None or size_max > READ_BYTES_MAX:
            raise Exceeded(f"read all 3 GB of {key}")
        raise Corrupt(f"{key} has {HUGE_BYTES} bytes, more than {size_max}")

    def head(self, key: Key) -> Stat:
        """See `Store.head`."""
        self._count()
        return self._sized(super().head(key))

    def put(self, key: Key, data: bytes, **options: Any) -> Any:
        """See `Store.put`."""
        self._count()
        if key not in self._objects:
            self._in_order = None
        version = super().put(key, data, **options)
        self.huge.discard(key)
        return version

    def delete(self, key: Key) -> None:
        """See `Store.delete`."""
        self._count()
        self._in_order = None
        super().delete(key)
        self.huge.discard(key)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """See `Store.list`."""
        self._count()
        return map(self._sized, super().list(prefix, after=after))

    def _below(self, prefix: str) -> Sequence[Key]:
        """As in `MemoryStore`; the keys stay sorted, for most consumers list more often than they write."""
        if self._in_order is None:
            self._in_order = sorted(self._objects, key=str.encode)
        head = check_prefix(prefix) + "/" if prefix else ""
        keys = self._in_order
        return keys[bisect_left(keys, head) : bisect_left(keys, head + chr(sys.maxunicode))]

    def _sized(self, stat: Stat) -> Stat:
        return Stat(stat.key, HUGE_BYTES, stat.version, stat.modified) if stat.key in self.huge else stat


@dataclass(frozen=True, slots=True)
class Built:
    """A fleet as it was built: objects by place, and the time. `""` is the bucket, other places are nodes' disks."""

    places: dict[str, dict[Key, Any]]
    now_s: float
    facts: dict[str, Any] = field(default_factory=dict)

    def data(self, key: str, place: str = "") -> bytes:
        """The bytes of an object."""
        return bytes(self.places[place][Key(key)].data)

    def keys(self, pattern: str, place: str = "") -> list[str]:
        """The objects whose keys match, in order."""
        return sorted(key for key in self.places[place] if re.fullmatch(pattern, key))


def command(*arguments: str) -> Done:
    """Run a command in this process. A bug in limpet (exit code 71) comes out; so does unfit output."""
    out, err = _stream(), _stream()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(arguments)
        except SystemExit as exit_:
            code = exit_.code
            if code == EXIT_INTERNAL and exit_.__context__ is not None:
                raise exit_.__context__ from None
    said = [_said(stream) for stream in (out, err)]
    for text in said:
        if "--format" not in arguments and (found := unfit(text)):
            raise Unfit(f"`limpet {' '.join(arguments)}` printed {found!r}")
    if not isinstance(code, int):
        raise Unfit(f"`limpet {' '.join(arguments)}` ended with {code!r}")
    return Done(code, *said)


class Bench:
    """A copy of a fleet for one consumer. `with bench:` makes its clock and store those of this process."""

    def __init__(self, built: Built) -> None:
        self.built = built
        self.time = Time()
        self.time.now_s = built.now_s
        self.runtime = FuzzRuntime(self.time, "reader")
        self.places = {name: FuzzStore(self.runtime, objects) for name, objects in built.places.items()}
        self._dead: list[Any] = []
        self.missing: list[str] = []
        self.key = self.place = ""
        """The damaged object, and where it lies."""

    @property
    def store(self) -> FuzzStore:
        """The bucket."""
        return self.places[""]

    @property
    def facts(self) -> dict[str, Any]:
        """What the builder noted."""
        return self.built.facts

    def open(self, **options: Any) -> Fleet:
        """The fleet, as a program opens it."""
        return self.open_at(URL, **options)

    def open_at(self, url: str, **options: Any) -> Fleet:
        """The fleet at one of its URLs."""
        return limpet.open(url, runtime=self.runtime, **options)

    def demand(self, holds: object, what: str) -> None:
        """Good work that must be done beside the damage; what is missing is told when the consumer has ended."""
        if not holds:
            self.missing.append(what)

    def pass_by(self, seconds: float) -> None:
        """All processes are killed, and time passes."""
        self._dead.append(self.time._due[:])
        self.time._due.clear()
        self.time.now_s += seconds

    def process(self, owner: str) -> FuzzRuntime:
        """Another process on the same clock."""
        return FuzzRuntime(self.time, owner)

    def cli(self, *arguments: str) -> Done:
        """Run a command on the bucket; see `command`."""
        given = arguments[0] in ("backup", "restore", "supervise") or "--url" in arguments
        return command(*arguments) if given else command(*arguments, "--url", URL)

    def __enter__(self) -> Bench:
        self._patches: list[Any] = [
            patch.object(runtime, "_system", self.runtime),
            patch.object(cli, "parser", _parser),
            patch.object(fleet, "store_for", self._store_for),
        ]
        for each in self._patches:
            each.start()
        place._named_memory |= {f"{NAME}-{name}" if name else NAME: store for name, store in self.places.items()}
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._patches:
            each.stop()
        for name in [each for each in place._named_memory if each.startswith(NAME)]:
            del place._named_memory[name]

    def _store_for(self, url: str, runtime: Runtime, **options: Any) -> Store:
        """As `fleet.store_for`; the bucket and the disks of nodes have URLs that look like real ones."""
        places = {BUCKET: "", **{f"{DISKS}/{name}": name for name in self.places if name}}
        return self.places[places[url]] if url in places else _real_store_for(url, runtime, **options)


_parser = cache(cli.parser)
"""The command line, made into commands once: that takes longer than the rest."""


def build(make: Callable[[Bench], dict[str, Store] | None]) -> Built:
    """A fleet, as `make` fills it; what it returns are further places. `bench.facts` goes with it."""
    bench = Bench(Built({"": {}}, 0.0))
    with bench:
        more = make(bench) or {}
    places = {"": bench.store.objects}
    for name, store in more.items():
        assert isinstance(store, MemoryStore)
        places[name] = dict(store._objects)
    return Built(places, bench.time.now_s, bench.facts)


def unfit(text: str) -> str | None:
    """What in `text` a terminal would obey, with a little around it."""
    found = _CONTROL.search(text)
    return text[max(0, found.start() - 30) : found.end() + 20] if found else None


def tolerated(act: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What `act` returns; the error, if Limpet refuses it with one of its own."""
    try:
        return act(*arguments, **options)
    except LimpetError as error:
        if not str(error) or "\n" in str(error) or _CONTROL.search(str(error)):
            raise Unfit(f"{type(error).__name__} says {str(error)[:200]!r}") from error
        return error


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Bounds on CPU time, waiting and memory, for the main thread of a process on Linux."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Exceeded(f"took more than {CPU_S:g} s of CPU" if number == signal.SIGPROF else f"waited {WALL_S:g} s")

    before = {each: signal.signal(each, stop) for each in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    signal.setitimer(signal.ITIMER_REAL, WALL_S)
    at_first = _reset_peak()
    try:
        yield
        peak = _memory("VmHWM")
        if peak - at_first > MEMORY_BYTES_MAX:
            raise Exceeded(f"took {(peak - at_first) >> 20} MiB of memory")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in before.items():
            signal.signal(each, handler)


def _reset_peak() -> int:
    """Forget the peak of the resident size; the size now. 0 where the system cannot tell."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration):
        return 0


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n")


def _said(stream: io.TextIOWrapper) -> str:
    stream.flush()
    data = stream.buffer
    assert isinstance(data, io.BytesIO)
    return data.getvalue().decode(errors="replace")


os.environ.setdefault("COLUMNS", "120")
assert sys.version_info >= (3, 11)
