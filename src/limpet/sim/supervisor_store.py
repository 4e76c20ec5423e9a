"""The disk of a node in the supervisor's world: no network and no lost answers, but crashes, stalls and power cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from limpet.errors import LimpetError
from limpet.keys import Key, check, check_prefix
from limpet.records import RECORD_BYTES_MAX
from limpet.sim.bucket import Bucket, SimStore
from limpet.sim.runtime import SimRuntime
from limpet.sim.world import Flight, World
from limpet.store.api import Always, Blob, Stat, Store, Version, When, check_size
from limpet.store.memory import clip

__all__ = ["LocalStore", "RemoteStore", "listed", "room_of"]

R = TypeVar("R")

STALL_PART = 0.01
STALL_S = 30.0
PACE_S = 0.004
PAGE = 12
READS = ("read", "head")
READS_AT_ONCE = 3
"""Reads are quick: only every third gives way to the rest of the world."""


class LocalStore(Store):
    """One process's view of its node's directory. An SD card stalls now and then, for seconds."""

    def __init__(self, world: World, bucket: Bucket, runtime: SimRuntime) -> None:
        super().__init__(runtime)
        self._world = world
        self._bucket = bucket
        self._process = runtime.process

    def get(
        self,
        key: Key,
        *,
        range: tuple[int, int] | None = None,
        if_match: Version | None = None,
        if_none_match: Version | None = None,
        size_max: int | None = RECORD_BYTES_MAX,
    ) -> Blob:
        """See `Store.get`."""
        blob = self._call("read", check(key), "", lambda: self._bucket.get(key, if_match, if_none_match))
        self._clock.observe(blob.modified)
        if range is not None:
            return Blob(blob.data[clip(key, range, blob.size)], blob.version, blob.modified, blob.size)
        check_size(key, blob.size, size_max)
        return blob

    def head(self, key: Key) -> Stat:
        """See `Store.head`."""
        blob = self._call("head", check(key), "", lambda: self._bucket.get(key, None, None))
        self._clock.observe(blob.modified)
        return Stat(key, blob.size, blob.version, blob.modified)

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`."""
        return self._call("put", check(key), data, lambda: self._bucket.put(self._process.name, key, data, when))

    def delete(self, key: Key) -> None:
        """See `Store.delete`."""
        self._call("delete", check(key), "", lambda: self._bucket.delete(self._process.name, key))

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """See `Store.list`: a directory is read once."""
        head = check_prefix(prefix) + "/" if prefix else ""
        yield from self._call("list", Key(head), after or "", lambda: listed(self._bucket, head, after or "", None))

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        """See `Store.sample`."""
        found = [*self.list(prefix)]
        return self._runtime.rng.sample(found, min(n, len(found)))

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        """See `Store.list_dirs`."""
        skip = len(check_prefix(prefix)) + 1 if prefix else 0
        return sorted({stat.key[skip:].split("/")[0] for stat in self.list(prefix) if "/" in stat.key[skip:]})

    def _call(self, verb: str, key: Key, detail: str | bytes, apply: Callable[[], R]) -> R:
        """The process may die before it happens, or, in its next call, after."""
        world, process = self._world, self._process
        world.check_alive(process)
        world.calls += 1
        process.calls += 1
        step = f"local.{room_of(key)}.{verb}"
        fault = ""
        if verb not in READS or process.calls % READS_AT_ONCE == 0:
            fault = self._wait(step)
        world.coverage[fault or "none", step] += 1
        result = "ok"
        try:
            value = apply()
        except LimpetError as error:
            result = type(error).__name__
            raise
        finally:
            world.note(process.name, step, key, detail, result, fault)
        world.passed(step, process)
        return value

    def _wait(self, step: str) -> str:
        """Let others go on, and perhaps die, before it happens."""
        world, process = self._world, self._process
        flight = -process.calls
        process.in_flight[flight] = Flight(step, lambda: None)
        world.passing(step, process)
        chance = world.chance(70, process.index, process.calls)
        stalls = chance < STALL_PART and world.strike(f"{process.name}/stall/{process.calls}", "stall")
        try:
            world.pause(chance / STALL_PART * STALL_S if stalls else PACE_S * chance)
        finally:
            process.in_flight.pop(flight, None)
        return "stall" if stalls else ""


class RemoteStore(SimStore):
    """One process's view of the bucket, in longer pages: there is more to list here."""

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`."""
        version = super().put(key, data, when=when)
        self._world.passed(f"{room_of(key)}.put", self._process)
        return version

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """See `Store.list`: pages of twelve, each read at its own moment (F22)."""
        head = check_prefix(prefix) + "/" if prefix else ""
        step = f"{room_of(head)}.list"
        start = after or ""
        while True:
            page = self._call("list", step, Key(head), start, partial(listed, self._bucket, head, start, PAGE))
            yield from page
            if len(page) < PAGE:
                return
            start = page[-1].key


def listed(bucket: Bucket, head: str, after: str, at_most: int | None) -> Sequence[Stat]:
    """The objects whose keys begin with `head`, behind `after`."""
    names = sorted(key for key in bucket.objects if key.startswith(head) and key > after)[:at_most]
    return [Stat(key, (blob := bucket.objects[key]).size, blob.version, blob.modified) for key in names]


def room_of(key: str) -> str:
    """Which object of a node this is."""
    parts = key.split("/")
    if parts[0] == "sync":
        return {"outbox": "outbox", "cursors": "cursor", "node.json": "node"}.get(parts[1], "sync")
    if parts[0] != "queues" or len(parts) < 4:
        return "queue" if parts[0] == "queues" else parts[0]
    kinds = {"task.json": "task", "tasks.jsonl": "task", "lease.json": "lease", "remote.json": "remote"}
    return kinds.get(parts[-1], parts[2])
