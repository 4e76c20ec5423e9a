"""`CloudStore`, `Cell` and `Lock` against the bare client, on one server.

The bare side makes the same requests with clients of the same settings (time-outs, retries), in plain Python, and
looks at nothing but what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, cycle, islice
from typing import Any

import obstore

from bench.rounds import Batch, Call, Case
from limpet.kernel.cell import PLAIN, Cell
from limpet.kernel.keys import Key, cell_key, lock_key
from limpet.kernel.lease import Lock, VersionWatch
from limpet.kernel.runtime import system
from limpet.kernel.store import Absent, Match, Put, Version
from limpet.kernel.store.cloud import _READ, _SMALL_PUT, CloudStore, _client
from limpet.kernel.store.credentials import locate
from support.servers.process import Bucket

__all__ = ["cloud_cases"]

AIM = 1.15
BODY = b"x" * 1024
LISTED = 900


def cloud_cases(bucket: Bucket, *, threads: int, rounds: int) -> Iterator[Case]:
    """Every verb, and the kernel's operations, with so many threads."""
    ours, bare = _Ours(bucket, f"ours-{threads}", threads), _Bare(bucket, f"bare-{threads}", threads)
    again = _Bare(bucket, f"again-{threads}", threads)
    calls = 20 if threads == 1 else 4 * threads

    def case(name: str, mine: Batch, theirs: Batch, note: str = "", calls: int = calls) -> Case:
        against = {"the same requests": theirs}
        return Case(name, mine, against, AIM, calls, rounds, threads, where="SeaweedFS", note=note)

    yield replace(case("noise: bare get against itself", again.get, bare.get), aim=None)
    yield case("put 1 KiB", ours.put, bare.put)
    yield case("create (Absent)", ours.create, bare.create)
    yield case("swap (Match)", ours.swap, bare.swap)
    yield case("get 1 KiB", ours.get, bare.get)
    yield case("head", ours.head, bare.head)
    yield case(f"list {LISTED} objects", ours.list, bare.list, calls=3 if threads == 1 else threads)
    yield case("delete", ours.delete, bare.delete)
    yield case("Cell.update", ours.update, bare.update, "GET + PUT")
    yield case("Lock: acquire + release", ours.lock, bare.lock, "GET + 2 PUT")


class _Keys:
    """Names for the calls of a batch: one that stays for each thread, or a fresh one for each call."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._fresh = count()

    def own(self, n: int) -> Sequence[Key]:
        return [Key(f"own/{i % self._threads:02}.json") for i in range(n)]

    def fresh(self, n: int) -> Sequence[Key]:
        return [Key(f"fresh/{next(self._fresh):08}.json") for _ in range(n)]


class _Ours:
    """Batches of calls to our store."""

    def __init__(self, bucket: Bucket, prefix: str, threads: int) -> None:
        self._store = store = CloudStore(bucket.at(prefix), options=bucket.options)
        self._keys = _Keys(threads)
        self._versions = {key: store.put(key, BODY) for key in self._keys.own(threads)}
        store.put_many(Put(Key(f"listed/{i:04}.json"), BODY) for i in range(LISTED))
        sightings, runtime = VersionWatch(system()), system()
        self._cells = [Cell(store, cell_key(f"{i}"), PLAIN, runtime) for i in range(threads)]
        self._locks = [Lock(store, lock_key(f"{i}"), f"{i}", 60.0, runtime, sightings) for i in range(threads)]

    def put(self, n: int) -> Sequence[Call]:
        return [partial(self._store.put, key, BODY) for key in self._keys.own(n)]

    def create(self, n: int) -> Sequence[Call]:
        return [partial(self._store.put, key, BODY, when=Absent()) for key in self._keys.fresh(n)]

    def swap(self, n: int) -> Sequence[Call]:
        for key in self._versions:
            self._versions[key] = self._store.head(key).version
        return [partial(self._swap, key) for key in self._keys.own(n)]

    def _swap(self, key: Key) -> None:
        self._versions[key] = self._store.put(key, BODY, when=Match(self._versions[key]))

    def get(self, n: int) -> Sequence[Call]:
        return [partial(self._store.get, key) for key in self._keys.own(n)]

    def head(self, n: int) -> Sequence[Call]:
        return [partial(self._store.head, key) for key in self._keys.own(n)]

    def list(self, n: int) -> Sequence[Call]:
        return [lambda: [*self._store.list("listed")]] * n

    def delete(self, n: int) -> Sequence[Call]:
        keys = self._keys.fresh(n)
        self._store.put_many(Put(key, BODY) for key in keys)
        return [partial(self._store.delete, key) for key in keys]

    def update(self, n: int) -> Sequence[Call]:
        return [partial(cell.update, _count) for cell in islice(cycle(self._cells), n)]

    def lock(self, n: int) -> Sequence[Call]:
        return [partial(_hold, lock) for lock in islice(cycle(self._locks), n)]


class _Bare:
    """The same batches by the client's own calls."""

    def __init__(self, bucket: Bucket, prefix: str, threads: int) -> None:
        place = locate(bucket.at(prefix), bucket.options)
        self._reads = _client(place, _READ, max_retries=3)
        self._puts = _client(place, _SMALL_PUT, max_retries=0)
        self._keys = _Keys(threads)
        self._versions = {key: self._put(key, "overwrite") for key in self._keys.own(threads)}
        for i in range(LISTED):
            self._put(Key(f"listed/{i:04}.json"), "overwrite")

    def _put(self, key: Key, mode: object) -> Version:
        result = obstore.put(self._puts, key, BODY, mode=mode, use_multipart=False)  # type: ignore[arg-type]
        return Version(str(result["e_tag"]))

    def put(self, n: int) -> Sequence[Call]:
        return [partial(self._put, key, "overwrite") for key in self._keys.own(n)]

    def create(self, n: int) -> Sequence[Call]:
        return [partial(self._put, key, "create") for key in self._keys.fresh(n)]

    def swap(self, n: int) -> Sequence[Call]:
        for key in self._versions:
            self._versions[key] = Version(str(obstore.head(self._reads, key)["e_tag"]))
        return [partial(self._swap, key) for key in self._keys.own(n)]

    def _swap(self, key: Key) -> None:
        self._versions[key] = self._put(key, {"e_tag": self._versions[key]})

    def get(self, n: int) -> Sequence[Call]:
        return [partial(self._get, key) for key in self._keys.own(n)]

    def _get(self, key: Key) -> bytes:
        return bytes(obstore.get(self._reads, key).bytes())

    def head(self, n: int) -> Sequence[Call]:
        return [partial(obstore.head, self._reads, key) for key in self._keys.own(n)]

    def list(self, n: int) -> Sequence[Call]:
        return [lambda: [meta for page in obstore.list(self._reads, "listed", chunk_size=1000) for meta in page]] * n

    def delete(self, n: int) -> Sequence[Call]:
        keys = self._keys.fresh(n)
        for key in keys:
            self._put(key, "overwrite")
        return [partial(obstore.delete, self._reads, key) for key in keys]

    def update(self, n: int) -> Sequence[Call]:
        return [partial(self._cycle, key, 1) for key in self._keys.own(n)]

    def lock(self, n: int) -> Sequence[Call]:
        return [partial(self._cycle, key, 2) for key in self._keys.own(n)]

    def _cycle(self, key: Key, swaps: int) -> None:
        found = obstore.get(self._reads, key)
        bytes(found.bytes())
        version = found.meta["e_tag"]
        for _ in range(swaps):
            version = self._put(key, {"e_tag": version})


def _count(value: Any) -> Any:
    return (value or 0) + 1


def _hold(lock: Lock) -> None:
    lock.acquire(wait_s=0).release()
