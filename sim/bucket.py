"""A simulated bucket, and the faulty network between it and each process."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import TypeVar

import msgspec

from limpet.kernel.errors import Conflict, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.keys import BACKUP_LOCK, Key, check, check_prefix
from limpet.kernel.records import RECORD_BYTES_MAX
from limpet.kernel.store.api import (
    Absent,
    Always,
    Blob,
    Match,
    Stat,
    Store,
    Version,
    When,
    check_put,
    check_read,
    check_size,
)
from limpet.kernel.store.memory import clip
from sim.actors import REQUEST_FAULTS, RunPlan, pick_fault
from sim.world import PendingRequest, SimRuntime, Violation, World

R = TypeVar("R")

GREATEST = "\U0010ffff"
"""No key has a character that comes after this one."""


class BucketChange(msgspec.Struct, frozen=True, gc=False):
    """A mutation of the bucket; `data` is None for a delete. `copy`: by a duplicate of a request of `who`."""

    at_s: float
    who: str
    key: Key
    data: bytes | None
    copy: bool = False

    @property
    def entry(self) -> str:
        """The entry of a queue that the object belongs to: the name of its folder."""
        return self.key.rsplit("/", 2)[1]


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A write that was sent. `direct`: the object was not read back just before."""

    at_s: float
    who: str
    step: str
    key: Key
    write_id: str
    token: int
    direct: bool


class Bucket:
    """The state of the bucket: objects, and the journal of all mutations. Each method is atomic."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        self._world = world
        self.plan = plan
        self.objects: dict[Key, Blob] = {}
        self._names: list[Key] = []
        """The keys of all objects, sorted."""
        self.journal: list[BucketChange] = []
        self.copying = False
        self.sent: list[Sent] = []

    def get(self, key: Key, if_match: Version | None, if_none_match: Version | None) -> Blob:
        """The current object.   Raises: Missing, Conflict, NotModified."""
        blob = self.objects.get(key)
        if blob is None:
            raise Missing(f"there is no object {key}")
        check_read(key, blob.version, if_match, if_none_match)
        return blob

    def put(self, who: str, key: Key, data: bytes, when: When) -> Version:
        """Compare and write.   Raises: Conflict."""
        found = self.objects.get(key)
        check_put(key, found.version if found else None, when)
        self.journal.append(BucketChange(self._world.now_s, who, key, data, self.copying))
        digest = hashlib.md5(data).hexdigest() if self.plan.digest_versions else f"v{len(self.journal)}"
        if found is None:
            insort(self._names, key)
        version = Version(digest)
        self.objects[key] = Blob(data, version, self._modified(), len(data))
        return version

    def delete(self, who: str, key: Key) -> None:
        """Remove."""
        if key in self.objects:
            self.lose(key)
            self.journal.append(BucketChange(self._world.now_s, who, key, None, self.copying))

    def lose(self, key: Key) -> Blob:
        """Remove an object that is there, and no process did it."""
        del self._names[bisect_left(self._names, key)]
        return self.objects.pop(key)

    def changes(self, *prefixes: str, suffix: str = "") -> Iterator[BucketChange]:
        """The mutations of keys with one of these prefixes and this suffix, in order."""
        return (each for each in self.journal if each.key.startswith(prefixes or "") and each.key.endswith(suffix))

    def written(self, kind: type[R], *prefixes: str, suffix: str = "") -> Iterator[tuple[BucketChange, R]]:
        """The puts of these keys, in order, each with its value as a `kind`."""
        for change in self.changes(*prefixes, suffix=suffix):
            if change.data is not None:
                yield change, msgspec.json.decode(change.data, type=kind)

    def successive(self, kind: type[R], *prefixes: str, suffix: str = "") -> Iterator[tuple[BucketChange, float, R, R]]:
        """Each put of those keys that replaced another one: it, the time of the other, and both values as a `kind`."""
        last: dict[Key, tuple[float, R]] = {}
        for change in self.changes(*prefixes, suffix=suffix):
            if change.data is None:
                last.pop(change.key, None)
                continue
            now = msgspec.json.decode(change.data, type=kind)
            if change.key in last:
                yield change, *last[change.key], now
            last[change.key] = change.at_s, now

    def renewals(self, step: str) -> Iterator[Sent]:
        """The renewals of a lease that were sent without reading it back first, without repeats."""
        written: set[str] = set()
        for sent in self.sent:
            if sent.write_id not in written and sent.step == step and sent.direct:
                yield sent
            written.add(sent.write_id)

    def check_empty(self, *folders: str, when: str) -> None:
        """Raises: Violation if there is an object in one of the folders."""
        left = [key for folder in folders for key in self.below(folder)]
        if left:
            raise Violation(f"{when} there is still {left[0]}")

    def below(self, prefix: str) -> list[Key]:
        """The keys under a prefix, sorted."""
        return self.named(f"{prefix}/")

    def named(self, head: str, after: str = "", count: int | None = None) -> list[Key]:
        """The keys that begin with `head` and come after `after`, sorted; the first `count` of them."""
        names = self._names
        start = bisect_right(names, after) if after > head else bisect_left(names, head)
        stop = bisect_left(names, head + GREATEST, start) if head else len(names)
        return names[start : stop if count is None else min(stop, start + count)]

    def at(self, key: Key, moment: int) -> bytes | None:
        """The object's bytes after the first `moment` mutations."""
        for applied in reversed(self.journal[:moment]):
            if applied.key == key:
                return applied.data
        return None

    def _modified(self) -> datetime:
        now = self._world.store_time()
        return now.replace(microsecond=0) if self.plan.whole_seconds else now


class _Body(msgspec.Struct):
    write_id: str = ""
    state: str = ""
    token: int = 0
    fence: dict[str, object] | None = None


_body = msgspec.json.Decoder(_Body).decode


class SimStore(Store):
    """One process's view of the bucket: every call yields, may meet a fault, and is added to the trace."""

    page_size: int | None = 4
    """Objects in a page of a listing; None: all of them."""
    hold_s = 0.0
    """The maximum delay of the creation of a lease in the server; SeaweedFS was observed to take seconds."""
    push_hold_s = 0.0
    """The delay of the put of a task in the server."""
    refuses_lists = False
    """Whether the server answers no listing."""

    def __init__(self, bucket: Bucket, runtime: SimRuntime) -> None:
        super().__init__(runtime)
        self._world = runtime.world
        self._bucket = bucket
        self._process = runtime.process
        self._unsettled: set[tuple[int, Key]] = set()
        """Threads and the keys whose put failed: the next read of that key settles the outcome."""
        self._last: dict[int, Key] = {}
        """By thread, the key that it read last."""
        self._sent = 0

    def get(
        self,
        key: Key,
        *,
        range: tuple[int, int] | None = None,
        if_match: Version | None = None,
        if_none_match: Version | None = None,
        size_max: int | None = RECORD_BYTES_MAX,
    ) -> Blob:
        task = id(self._world.current())
        kind = "settle" if (task, key) in self._unsettled else "read"
        self._unsettled.discard((task, key))
        self._last[task] = key
        step = f"{room_of(key)}.{kind}"
        blob = self._call("get", step, check(key), "", lambda: self._bucket.get(key, if_match, if_none_match))
        self._clock.observe(blob.modified)
        if range is not None:
            return Blob(blob.data[clip(key, range, blob.size)], blob.version, blob.modified, blob.size)
        check_size(key, blob.size, size_max)
        return blob

    def head(self, key: Key) -> Stat:
        blob = self._call("head", f"{room_of(key)}.head", check(key), "", lambda: self._bucket.get(key, None, None))
        self._clock.observe(blob.modified)
        return Stat(key, blob.size, blob.version, blob.modified)

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        if self._process.newer and data.endswith(b"}") and len(data) > 2 and not key.endswith(".jsonl"):
            data = data[:-1] + b',"future":[1]}'
        body = _body(data.split(b"\n", 1)[0]) if data.startswith(b"{") else _Body()
        step = self._put_step(check(key), body, when)
        task = id(self._world.current())
        self._bucket.sent.append(
            Sent(
                self._world.now_s, self._process.name, step, key, body.write_id, body.token, self._last.get(task) != key
            )
        )
        try:
            return self._call(
                "put", step, key, data, lambda: self._bucket.put(self._process.name, key, data, when), when
            )
        except LimpetError:
            self._unsettled.add((task, key))
            raise

    def delete(self, key: Key) -> None:
        self._call(
            "delete", f"{room_of(key)}.delete", check(key), "", lambda: self._bucket.delete(self._process.name, key)
        )

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """See `Store.list`: in small pages, each read at a different moment (F22)."""
        head = check_prefix(prefix) + "/" if prefix else ""
        start = after or ""
        while True:
            page = self._call("list", f"{room_of(head)}.list", Key(head), start, partial(self._page, head, start))
            yield from page
            if self.page_size is None or len(page) < self.page_size:
                return
            start = page[-1].key

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        found = [*self.list(prefix)]
        return self._runtime.rng.sample(found, min(n, len(found)))

    def list_dirs(self, prefix: str = "") -> Sequence[str]:
        skip = len(check_prefix(prefix)) + 1 if prefix else 0
        return sorted({stat.key[skip:].split("/")[0] for stat in self.list(prefix) if "/" in stat.key[skip:]})

    def _page(self, head: str, after: str) -> Sequence[Stat]:
        objects = self._bucket.objects
        blobs = ((key, objects[key]) for key in self._bucket.named(head, after, self.page_size))
        return [Stat(key, blob.size, blob.version, blob.modified) for key, blob in blobs]

    def _call(
        self, verb: str, step: str, key: Key, detail: str | bytes, apply: Callable[[], R], when: When | None = None
    ) -> R:
        world, process = self._world, self._process
        world.check_alive(process)
        world.calls += 1
        process.calls += 1
        kinds, rate = REQUEST_FAULTS[verb], self._bucket.plan.fault_rate
        fault = pick_fault(world, process, kinds, rate, salt=10, number=process.calls)
        if fault == "refused_409" and not isinstance(when, Absent | Match):
            fault = "throttled"
        if verb == "list" and self.refuses_lists:
            fault = "throttled"
        world.coverage[fault or "none", step] += 1
        self._sent += 1
        land = partial(self._land, step, key, detail, apply)
        process.in_flight[self._sent] = PendingRequest(step, land)
        if world.strike_during is not None:
            world.begins(step, process)
        try:
            result = self._carry(self._sent, verb, step, key, fault, apply, land)
        except LimpetError as error:
            world.note(process.name, step, key, detail, type(error).__name__, fault)
            raise
        world.note(process.name, step, key, detail, "ok", fault)
        return result

    def _carry(
        self, sent: int, verb: str, step: str, key: Key, fault: str, apply: Callable[[], R], land: Callable[[], None]
    ) -> R:
        """Send a request to the bucket and return the answer, as far as the fault allows. `land`: send a duplicate."""
        world, process = self._world, self._process
        near_s = world.chance(12, process.index, process.calls)
        far_s = world.chance(13, process.index, process.calls)
        if fault in ("slow", "torn_pages"):
            near_s, far_s = near_s * 300, far_s * 300
        give_up_s = 0.5 + 2.5 * far_s
        try:
            if fault in ("lost_request", "throttled", "cut_off"):
                process.in_flight.pop(sent)
                world.pause(give_up_s)
                raise self._no_answer(verb, key)
            if fault == "late":
                world.later(give_up_s * 30 * near_s, process.in_flight.pop(sent).land)
                world.pause(give_up_s)
                raise self._no_answer(verb, key)
            world.pause(0.005 + 0.05 * near_s)
            if self.hold_s and step == "lease.create":
                world.pause(self.hold_s * world.chance(14, process.index, process.calls) ** 3)
            if self.push_hold_s and step == "task.put":
                world.pause(self.push_hold_s)
            process.in_flight.pop(sent)
            if fault == "refused_409":
                raise Conflict(f"{key} is being written by another process")
            if fault == "duplicate" and near_s < 0.5:
                land()
            try:
                result = apply()
            finally:
                process.served = len(self._bucket.journal)
                if fault == "duplicate" and near_s >= 0.5:
                    world.later(far_s * 20, land)
                world.pause(0.005 + 0.05 * far_s)
                if fault == "lost_reply":
                    world.pause(give_up_s)
                    raise self._no_answer(verb, key)
            return result
        finally:
            process.in_flight.pop(sent, None)

    def _land(self, step: str, key: Key, detail: str | bytes, apply: Callable[[], object]) -> None:
        """A duplicate of a request reaches the bucket; its answer is lost."""
        self._bucket.copying = True
        try:
            apply()
            result = "lands"
        except LimpetError as error:
            result = f"comes too late: {type(error).__name__}"
        finally:
            self._bucket.copying = False
        self._world.note("network", f"a copy of {self._process.name}'s {step}", key, detail, result)

    def _no_answer(self, verb: str, key: Key) -> LimpetError:
        kind = OutcomeUnknown if verb == "put" else Unavailable
        return kind(f"no answer to {verb} {key}")

    def _put_step(self, key: Key, body: _Body, when: When) -> str:
        room = room_of(key)
        found = self._bucket.objects.get(key)
        if room in ("lock", "lease", "slot"):
            if isinstance(when, Absent):
                return f"{room}.create"
            if body.state in ("free", "cancelled"):
                return f"{room}.free"
            before = _body(found.data) if found else body
            if before.token == body.token:
                return f"{room}.renew"
            return f"{room}.take" if before.state == "free" else f"{room}.takeover"
        if room in ("cell", "manifest"):
            if isinstance(when, Absent):
                return f"{room}.create"
            return f"{room}.fenced" if body.fence else f"{room}.swap"
        return f"{room}.put"


@lru_cache(maxsize=4096)
def room_of(key: str) -> str:
    """The kind of an object or folder: the first half of the name of a protocol step."""
    parts = key.split("/")
    if parts[0] == "queues" and len(parts) > 1:
        return _queue_room(parts)
    if parts[0] == "indexes":
        return _index_room(parts)
    if parts[0] == "sync":
        return {"outbox": "outbox", "cursors": "cursor", "node.json": "node"}.get(parts[1], "sync")
    if key == BACKUP_LOCK:
        return "lock"
    return {"locks": "lock", "cells": "cell"}.get(parts[0], parts[0] or "root")


def _queue_room(parts: Sequence[str]) -> str:
    kinds = {"task.json": "task", "tasks.jsonl": "task", "lease.json": "lease", "remote.json": "remote"}
    if parts[1].endswith((".drop.json", ".drop.lock")):
        return "drop" if parts[1].endswith("json") else "lock"
    if len(parts) < 3 or not parts[2]:
        return "queue"
    return kinds.get(parts[-1]) or {"slots": "slot"}.get(parts[2], parts[2].removesuffix(".json"))


def _index_room(parts: Sequence[str]) -> str:
    if parts[-1].endswith(".lock"):
        return "lock"
    if len(parts) < 3:
        return "index"
    kinds = {"inbox": "single", "packs": "pack", "shards": "shard", "manifest.json": "manifest"}
    return kinds.get(parts[2], "package" if parts[2].endswith(".json") else parts[2])
