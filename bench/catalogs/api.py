"""What every catalog is measured by: tables made, and snapshots added, by many clients at once for some seconds.

An adapter is a module with `NEEDS`, the Python packages that it uses, and `connect(place) -> Catalog`.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from bench.catalogs.work import Share
from bench.queues.api import NotHere, needs

__all__ = ["Catalog", "Client", "Driven", "NotHere", "Place", "Threaded", "needs", "together"]

REST_S = 0.01
"""After an error a client rests so long."""
ERRORS_MAX = 3
"""Of so many errors the text is kept."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a catalog lives: a folder of its own, or a prefix of a bucket; each request is `delay_s` away."""

    folder: Path
    """For a bucket too: what must lie on a disk, SQLite's file, lies here."""
    url: str
    """The same as a URL: `file:///...` or `s3://bucket/prefix`."""
    delay_s: float = 0.0
    properties: Mapping[str, str] = field(default_factory=dict)
    """What PyIceberg's FileIO must know to reach a bucket: endpoint and keys."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The same for our own store: its processes run with these."""
    server: str = ""
    """Of a catalog behind HTTP: `host:port`."""


@dataclass(slots=True)
class Driven:
    """What some clients did together. `acknowledged` are the answers that said yes, `refused` the others."""

    acknowledged: int = 0
    refused: int = 0
    took_s: float = 0.0
    seconds: list[float] = field(default_factory=list)
    """How long each acknowledged call took."""
    errors: list[str] = field(default_factory=list)
    before: Mapping[str, float] = field(default_factory=dict)
    """What was spent when the clock started, where clients looked at their tables before."""

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def fail(self, error: str) -> None:
        """Note a call that was not acknowledged."""
        self.refused += 1
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(error)


class Client(Protocol):
    """One client, used by one thread. Each call returns when it is acknowledged, or raises."""

    def prepare(self, names: Sequence[str]) -> None:
        """Look at the tables that it will append to. Not timed."""

    def create(self, name: str) -> None:
        """Make a table."""

    def append(self, name: str) -> None:
        """Add one more snapshot to a table."""


class Catalog(Protocol):
    """One catalog, as one process sees it."""

    @abstractmethod
    def fill(self, tables: int) -> None:
        """Make the namespace and so many tables (`work.table`), in the quickest way. Not timed."""

    @abstractmethod
    def drive(self, verb: str, shares: Sequence[Share], seconds: float) -> Driven:
        """Let one client for each share create or append until the seconds are over."""

    @abstractmethod
    def spent(self) -> Mapping[str, float]:
        """Requests by verb that this process made of its storage so far, and `written_bytes` where they are counted."""

    @abstractmethod
    def count(self) -> int:
        """How many tables there are."""

    @abstractmethod
    def snapshots(self, names: Sequence[str]) -> int:
        """How many snapshots those tables have together."""

    def close(self) -> None:
        """Let go of everything."""
        return


class Threaded(Catalog, Protocol):
    """A catalog whose clients are threads of this process."""

    @abstractmethod
    def client(self) -> Client:
        """One more client."""

    def drive(self, verb: str, shares: Sequence[Share], seconds: float) -> Driven:
        """See `Catalog.drive`."""
        clients = [self.client() for _ in shares]
        done = [Driven() for _ in shares]
        start = threading.Barrier(len(shares) + 1)
        threads = [
            threading.Thread(target=_work, args=(client, share, verb, start, each, seconds))
            for client, share, each in zip(clients, shares, done, strict=True)
        ]
        for thread in threads:
            thread.start()
        start.wait()
        begun_s, before = time.perf_counter(), self.spent()
        for thread in threads:
            thread.join()
        found = together(done, time.perf_counter() - begun_s)
        found.before = before
        return found


def calls(client: Client, share: Share, verb: str) -> Iterator[Callable[[], None]]:
    """The calls of one client, without end."""
    names, call = (share.creates(), client.create) if verb == "create" else (share.appends(), client.append)
    return (partial(call, name) for name in names)


def together(parts: Sequence[Driven], took_s: float) -> Driven:
    """Several clients as one."""
    return Driven(
        sum(part.acknowledged for part in parts),
        sum(part.refused for part in parts),
        took_s,
        [seconds for part in parts for seconds in part.seconds],
        [error for part in parts for error in part.errors][:ERRORS_MAX],
    )


def _work(client: Client, share: Share, verb: str, start: threading.Barrier, done: Driven, seconds: float) -> None:
    try:
        if verb == "append":
            client.prepare(share.own())
    except Exception as error:  # noqa: BLE001 - a peer raises whatever it likes
        done.fail(_line(error))
    todo = calls(client, share, verb)
    start.wait()
    until_s = time.perf_counter() + seconds
    while (begun_s := time.perf_counter()) < until_s:
        try:
            next(todo)()
        except Exception as error:  # noqa: BLE001
            done.fail(_line(error))
            time.sleep(REST_S)
            continue
        done.acknowledged += 1
        done.seconds.append(time.perf_counter() - begun_s)


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
