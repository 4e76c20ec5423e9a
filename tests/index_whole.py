"""Whole indexes for the tests of verify, adopt, reshard and purge: handles, snapshots, crashes, and meddling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from index_helpers import NAME, Rec
from kernel_helpers import ManualRuntime, Time
from limpet.index import Index
from limpet.index.decide import digest, newest, packed, shard_of
from limpet.index.offline import Whole
from limpet.index.stamps import stamps_of
from limpet.index.typed import typed
from limpet.keys import IndexKeys, Key
from limpet.lease import Sightings
from limpet.records import RECORD_BYTES_MAX
from limpet.store import Always, Blob, MemoryStore, MeteredStore, Stat, Store, Version, When

__all__ = [
    "KEYS",
    "Killed",
    "Meddled",
    "Process",
    "contents",
    "data_of",
    "lines_of",
    "pack_of",
    "records_of",
    "shard_key",
    "texts_of",
    "until_done",
    "whole_of",
]

KEYS = IndexKeys.of(NAME)


class Killed(BaseException):
    """The process is gone: no handler of an error runs, and nothing it sends arrives."""


class Meddled(MeteredStore):
    """A store that calls `before` with the verb and the key of each request, and `after` when it was answered."""

    def __init__(self, store: Store, runtime: ManualRuntime) -> None:
        super().__init__(store, runtime=runtime)
        self.before: Callable[[str, str], None] = lambda verb, key: None
        self.after: Callable[[str, str], None] = lambda verb, key: None

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
        self.before("get", key)
        blob = super().get(key, range=range, if_match=if_match, if_none_match=if_none_match, size_max=size_max)
        self.after("get", key)
        return blob

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`."""
        self.before("put", key)
        version = super().put(key, data, when=when)
        self.after("put", key)
        return version

    def delete(self, key: Key) -> None:
        """See `Store.delete`."""
        self.before("delete", key)
        super().delete(key)
        self.after("delete", key)

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[Stat]:
        """See `Store.list`, but all at once."""
        self.before("list", prefix)
        listed = [*super().list(prefix, after=after)]
        self.after("list", prefix)
        return iter(listed)


@dataclass(slots=True)
class Process:
    """One process on a virtual clock, which may be killed at its n-th write."""

    bucket: MemoryStore
    store: Meddled
    runtime: ManualRuntime
    index: Index[Any]
    whole: Whole

    @classmethod
    def start(
        cls, bucket: MemoryStore, time: Time, owner: str, *, kind: Any = Rec, depth: int | None = None
    ) -> Process:
        """A new process at work on the index `recs`."""
        runtime = ManualRuntime(time, owner)
        store = Meddled(bucket, runtime)
        index: Index[Any] = Index(
            store,
            NAME,
            runtime,
            typed(kind, "key"),
            stamps_of(store, runtime, "memory"),
            Sightings(runtime),
            depth=depth,
        )
        return cls(bucket, store, runtime, index, whole_of(index))

    def another(self, owner: str, *, kind: Any = Rec) -> Process:
        """Another process on the same bucket and clock."""
        return Process.start(self.bucket, self.runtime.time, owner, kind=kind)

    def die_at_write(self, number: int) -> None:
        """Be killed before the write of that number lands; every later request is lost too."""
        left = number

        def before(verb: str, key: str) -> None:
            nonlocal left
            if verb in ("put", "delete"):
                left -= 1
            if left <= 0:
                raise Killed

        self.store.before = before


def until_done(bucket: MemoryStore, time: Time, act: Callable[[Whole], object], number: int) -> bool:
    """Let a process die at its n-th write of `act`, and another one do it again; whether the first one died.

    The second one comes when the locks of the first have run out.
    """
    first = Process.start(bucket, time, f"first{number}")
    first.die_at_write(number)
    try:
        act(first.whole)
    except Killed:
        time.sleep(400.0)
        act(Process.start(bucket, time, f"second{number}").whole)
        return True
    return False


def whole_of(index: Index[Any]) -> Whole:
    """What `Index` hands to operations on all of it."""
    return index._whole()


def contents(store: Store, *, locks: bool = False) -> dict[str, bytes]:
    """Every object of the index, but for locks."""
    keys = [stat.key for stat in store.list(KEYS.root) if locks or not stat.key.endswith(".lock")]
    return {key: store.get(key).data for key in keys}


def records_of(index: Index[Any]) -> dict[str, str | None]:
    """Every live record, by `scan`."""
    return {record.key: record.text for record in index.scan()}


def texts_of(index: Index[Any], keys: Iterable[str]) -> dict[str, str | None]:
    """What `get` finds under each key; a key without a record is left out."""
    found = {key: index.get(key) for key in keys}
    return {key: record.text for key, record in found.items() if record is not None}


def shard_key(key: str, depth: int = 2) -> Key:
    """The shard object of a record."""
    return KEYS.shard(shard_of(digest(key.encode()), depth))


def data_of(store: Store, key: Key) -> bytes:
    """An object's bytes."""
    return store.get(key).data


def lines_of(store: Store, key: Key) -> list[bytes]:
    """An object's lines, each with its LF."""
    return store.get(key).data.splitlines(keepends=True)


def pack_of(index: Index[Any], records: Mapping[str, str], stamp: str) -> bytes:
    """The records as a pack."""
    schema = index.manifest.schema
    lines = [schema.line({"key": key, "text": text}, stamp, where="") for key, text in records.items()]
    return packed(newest(lines, schema.shape), schema.shape)
