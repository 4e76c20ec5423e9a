"""What the index's world adds to a store: a look at every write, and an index that is there from the start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from types import ModuleType
from typing import Any

from limpet.cell import Cell, struct_codec
from limpet.index import compiler, decide, describe, reader, seek, stamps, verify
from limpet.index import layout as layouts
from limpet.index.decide import digest, shard_id, shard_ids
from limpet.index.manifest import Count, Manifest, fresh, sum_of, with_counts
from limpet.index.schema import with_own
from limpet.index.typed import typed
from limpet.keys import IndexKeys, Key
from limpet.sim.bucket import SimStore
from limpet.sim.runtime import SimRuntime
from limpet.sim.world import World
from limpet.store import DirectoryStore
from limpet.store.api import Always, Store, Version, When
from limpet.store.memory import MemoryStore

__all__ = [
    "DEPTH",
    "INDEX",
    "KEYS",
    "NAMES",
    "NEWER",
    "OLDER",
    "WAITING",
    "BucketStore",
    "DiskStore",
    "Newer",
    "Older",
    "Watched",
    "layout",
    "tuned",
    "tuning",
]

INDEX = "ix"
KEYS = IndexKeys.of(INDEX)
WAITING = (f"{KEYS.inbox}/", f"{KEYS.packs}/")
"""Below these lies what is not folded yet."""
DEPTH = 1
"""Sixteen shards: a real index has more, and none of them would matter more."""
NAMES = ("b", "e", "f1", "h1", "~x", "a2", "c", "f")
"""The keys that users write: four of one shard, one of another, three of a third."""
OLD = ("old0", "old19", "old39", "old63", "old3", "old43", "old50", "old61", "old36", "old54", "old101")
"""Keys of records that are there from the start, in the three shards that the users write to."""


@dataclass(frozen=True)
class Older:
    """A record."""

    key: str
    by: str | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True)
class Newer:
    """A record of a later version of the program, which has one more column."""

    key: str
    by: str | None = None
    updated_at: datetime | None = None
    note: str | None = None


OLDER = typed(Older, "key")
NEWER = typed(Newer, "key")


class Watched(Store):
    """A store that shows every put to `watch` before it is sent."""

    watch: Callable[[Key, bytes], None] | None


class BucketStore(SimStore, Watched):
    """The bucket, watched."""

    watch: Callable[[Key, bytes], None] | None = None

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`."""
        if self.watch is not None:
            self.watch(key, data)
        return super().put(key, data, when=when)


class DiskStore(DirectoryStore, Watched):
    """A directory, watched."""

    watch: Callable[[Key, bytes], None] | None = None

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        """See `Store.put`."""
        if self.watch is not None:
            self.watch(key, data)
        return super().put(key, data, when=when)


@cache
def layout() -> Mapping[Key, bytes]:
    """The objects of an index with a few old records."""
    assert OLDER.fields is not None
    shards = dict.fromkeys(shard_ids(DEPTH), b"")
    for key in sorted(OLD, key=lambda key: digest(key.encode())):
        shards[shard_id(key, DEPTH)] += f"{key}\x1ffounder\x1f2025-12-31T00:00:00.000000Z\x1f0\n".encode()
    counts = {shard: Count(data.count(b"\n"), len(data), sum_of(data)) for shard, data in shards.items()}
    manifest = with_counts(fresh(with_own(OLDER.fields, "key"), DEPTH), counts)
    world = World(0)
    runtime = SimRuntime(world, world.start("founder"))
    store = MemoryStore(runtime=runtime)
    Cell(store, KEYS.manifest, struct_codec(Manifest), runtime).create(manifest)
    return {
        **{KEYS.shard(shard): data for shard, data in shards.items()},
        KEYS.manifest: store.get(KEYS.manifest).data,
        KEYS.package: describe.package(INDEX, manifest),
        KEYS.json_schema: describe.json_schema(INDEX, manifest),
    }


@contextmanager
def tuned(settings: Mapping[tuple[ModuleType, str], Any]) -> Iterator[None]:
    """Constants that are made for gigabytes, set for a handful of records while a run lasts."""
    before = {(module, name): getattr(module, name) for module, name in settings}
    try:
        for (module, name), value in settings.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


def tuning(world: World, lock_ttl_s: float) -> Mapping[tuple[ModuleType, str], Any]:
    """A compiler that folds or packs as if shards were large, and searches that take several reads, in most runs."""
    chance = world.chance
    settings: dict[tuple[ModuleType, str], Any] = {
        (compiler, "LOCK_TTL_S"): lock_ttl_s,
        (layouts, "DEPTH"): DEPTH,
        (verify, "DEPTHS"): (DEPTH, *decide.DEPTHS),
    }
    if chance(50) < 0.75:
        settings |= {
            (decide, "FOLD_BELOW_BYTES"): 0,
            (decide, "FOLD_SHARE"): 0.5 + 9 * chance(51),
            (decide, "FOLD_PACKS"): 2 + int(3 * chance(52)),
            (decide, "FOLD_AGE"): timedelta(seconds=5 + 200 * chance(53)),
            (decide, "PACK_SINGLES"): 1 + int(2 * chance(54)),
        }
    if chance(55) < 0.6:
        settings |= {
            (seek, "WINDOW_MIN"): 64,
            (seek, "ANCHOR"): 64,
            (seek, "BYTES_MAX"): 256,
            (reader, "SHARE_FOR_WHOLE"): 0 if chance(56) < 0.5 else 60,
        }
    if chance(67) < 0.2:
        settings[stamps, "READ_EVERY_S"] = 3.0
    return settings
