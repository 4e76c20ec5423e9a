"""Records, keys of one shard, and whole indexes: handles, snapshots, crashes."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from pathlib import Path
from typing import Any

from limpet.index import Index
from limpet.index.decide import digest, newest, packed, shard_of
from limpet.index.maintain import WholeIndex
from limpet.index.storage import Manifest
from limpet.index.types import typed
from limpet.index.writer import stamps_of
from limpet.kernel import records
from limpet.kernel.keys import IndexKeys, Key
from limpet.kernel.lease import VersionWatch
from limpet.kernel.store import MemoryStore, Store
from support.clock import ManualRuntime, Time
from support.stores import Meddled

__all__ = [
    "HOSTILE_SQL",
    "KEYS",
    "NAME",
    "PAST",
    "REFUSED_SQL",
    "Killed",
    "Process",
    "Rec",
    "at",
    "contents",
    "data_of",
    "keys_in",
    "line_count",
    "line_sizes",
    "lines_of",
    "manifest_of",
    "objects",
    "pack_of",
    "records_of",
    "shard_data",
    "shard_key",
    "texts_of",
    "until_done",
    "whole_of",
]

REFUSED_SQL: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("refused_sql.toml").read_text("utf-8"))
HOSTILE_SQL = REFUSED_SQL["hostile"]

NAME = "recs"
KEYS = IndexKeys.of(NAME)
PAST = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Rec:
    """What most tests put."""

    key: str
    text: str | None = None


def at(seconds: float) -> datetime:
    """A moment of the past, for records that bring their own time."""
    return PAST + timedelta(seconds=seconds)


def keys_in(shard: str, number: int, *, prefix: str = "k") -> list[str]:
    """So many keys that all belong to one shard."""

    def all_() -> Iterator[str]:
        wanted, half = bytes.fromhex(shard[: len(shard) // 2 * 2]), shard[len(shard) // 2 * 2 :]
        for n in count():
            digest = hashlib.sha256(f"{prefix}{n}".encode()).digest()
            if digest.startswith(wanted) and digest.hex().startswith(shard if half else ""):
                yield f"{prefix}{n}"

    return [*islice(all_(), number)]


def objects(store: Store, below: str, name: str = NAME) -> list[Key]:
    """The objects of the index under `inbox`, `packs`, `shards` or `quarantine`."""
    return [stat.key for stat in store.list(f"{IndexKeys.of(name).root}/{below}")]


def manifest_of(store: Store) -> Manifest:
    """The manifest, read by hand."""
    return records.decode(store.get(KEYS.manifest).data, Manifest, what="it")


def shard_data(store: Store, shard: str, name: str = NAME) -> bytes:
    """The bytes of a shard."""
    return store.get(IndexKeys.of(name).shard(shard)).data


def line_count(store: Store, name: str = NAME) -> int:
    """How many records, tombstones included, all the shards have."""
    return sum(store.get(key).data.count(b"\n") for key in objects(store, "shards", name) if key.endswith(".usv"))


def line_sizes(kind: str, chance: Any) -> Iterator[int]:
    """Endless sizes of lines: `constant`, `large`, `mixed` or `exponential`, none above 4 KiB."""
    while True:
        match kind:
            case "constant":
                yield 100
            case "large":
                yield 4096
            case "mixed":
                yield chance.choice((60, 4096))
            case _:
                yield min(4096, 60 + int(chance.expovariate(1 / 400)))


class Killed(BaseException):
    """The process is gone: no handler of an error runs, and nothing it sends arrives."""


@dataclass(slots=True)
class Process:
    """One process on a virtual clock, which may be killed at its n-th write."""

    bucket: MemoryStore
    store: Meddled
    runtime: ManualRuntime
    index: Index[Any]
    whole: WholeIndex

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
            VersionWatch(runtime),
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


def until_done(bucket: MemoryStore, time: Time, act: Callable[[WholeIndex], object], number: int) -> bool:
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


def whole_of(index: Index[Any]) -> WholeIndex:
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
