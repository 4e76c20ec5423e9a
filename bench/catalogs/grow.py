"""What a commit and a load cost in requests, bytes and CPU as tables become many: exact but for the CPU.

`python -m bench.catalogs.grow TABLES ROUNDS` fills a catalog in memory, then creates and appends one after another,
and prints what each cost by the kind of object. Checkpoints are the objects below `snapshots/`; all else is outside.
What `limpet serve` writes in the background is written here before the next commit, so that nothing is left to chance.
CPU is that of the whole process, client and leader; what checkpoints take is counted apart. A round goes from one
checkpoint to the next; of all rounds the one that took the least CPU counts, because others disturb it.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any

from bench.catalogs.ours import Bench, fill
from bench.catalogs.work import NAMESPACE, OWN_TABLES, Share
from limpet.app.catalogs import leader_of, open_catalog, storage_of
from limpet.catalog import Compactor, Grant
from limpet.catalog.catalog import Catalog
from limpet.catalog.compactor import EARLY, SNAPSHOT_EVERY
from limpet.catalog.leader import Documents
from limpet.catalog.names import Entry, key_of
from limpet.catalog.records import Change
from limpet.catalog.state import LIVE, MINTED, CatalogState
from limpet.events.ledger import Publication
from limpet.kernel.keys import Key
from limpet.kernel.runtime import system
from limpet.kernel.store import MemoryStore, MeteredStore, Store
from limpet.kernel.store.api import Always, Version, When

__all__ = ["add_entries", "grown"]

KINDS = {
    "warehouse": "metadata",
    "ledger": "ledger",
    "commits": "record",
    "manifests": "head",
    "snapshots": "checkpoint",
}
URL = "file:///bench"
ROUND = int(SNAPSHOT_EVERY * EARLY)
WARM_UP_MAX = 1000
CHUNK = 20_000


class _Sorted(MemoryStore):
    """Counts puts and bytes by the kind of object."""

    def __init__(self) -> None:
        super().__init__(system())
        self.puts: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.checkpoint_s = 0.0

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        kind = KINDS.get(key.partition("/")[0], "other")
        self.puts[kind] += 1
        self.bytes[kind] += len(data)
        return super().put(key, data, when=when)


@contextmanager
def _leading(store: _Sorted, meter: Store) -> Iterator[Catalog]:
    storage = storage_of(meter, system())
    compactor = Compactor(storage)

    def publish(paths: Sequence[str], token: int) -> Publication:
        published = compactor.publish(paths, token)
        compactor.record()
        begun_s = time.process_time()
        compactor.prepare()
        store.checkpoint_s += time.process_time() - begun_s
        return published

    leader = leader_of(storage, publish)
    thread = system().spawn(leader.run, name="leader")
    while not leader.leads:
        system().sleep(0.01)
    try:
        yield open_catalog(storage, URL, leader)
    finally:
        leader.stop()
        thread.join()


def grown(tables: int, rounds: int) -> dict[str, Any]:
    """Requests, bytes and CPU of a create, an append and a load with so many tables."""
    store = _Sorted()
    meter = MeteredStore(store)
    with _leading(store, meter) as catalog:
        fill(catalog, OWN_TABLES)
        add_entries(catalog, tables - OWN_TABLES)
        client, share = Bench(catalog), Share(0, 1)
        commits = rounds * ROUND
        found: dict[str, Any] = {"tables": tables, "commits": commits}
        todo = {"create": (client.create, share.creates()), "append": (client.append, share.appends())}
        for verb, (call, names) in todo.items():
            _go_to_checkpoint(client, catalog, verb)
            puts, bytes_, before = store.puts.copy(), store.bytes.copy(), meter.snapshot()
            spent = [_round(store, call, islice(names, ROUND)) for _ in range(rounds)]
            gets = (meter.snapshot() - before).requests.get("get", 0)
            found[verb] = _each(store.puts - puts, store.bytes - bytes_, gets, commits)
            cpu_s, checkpoint_s = min(spent, key=sum)
            found[verb] |= {"cpu_ms": 1000 * cpu_s / ROUND, "checkpoint_cpu_ms": 1000 * checkpoint_s / ROUND}
        found["load"] = _loads(client, meter)
    return found


def _round(store: _Sorted, call: Callable[[str], object], names: Iterable[str]) -> tuple[float, float]:
    """CPU seconds of calls without checkpoints, and of the checkpoints in it."""
    store.checkpoint_s, begun_s = 0.0, time.process_time()
    for name in names:
        call(name)
    return time.process_time() - begun_s - store.checkpoint_s, store.checkpoint_s


def add_entries(catalog: Catalog, tables: int, namespace_of: Callable[[int], str] = lambda _: NAMESPACE) -> None:
    """So many tables more, whose metadata is never read: entries of the state, and no files."""
    leader = catalog.leader
    assert leader is not None
    for start in range(0, tables, CHUNK):
        changes: dict[str, Change] = {}
        for number in range(start, min(start + CHUNK, tables)):
            space = namespace_of(number)
            new = _entry(f"{space}/other{number:06}-{number:012x}")
            if space != NAMESPACE:
                changes[space] = Change(key_of("n", (), space), {})
            changes[new.root] = Change(key_of("t", (space,), f"other{number:06}"), new.value())
            changes[f"{LIVE}/{new.root}"] = Change(f"{LIVE}/{new.root}", 1)
        leader.commit(f"{MINTED}fill{start}", partial(_granted, Grant("fill", tuple(changes.values()))))


def _entry(root: str) -> Entry:
    """With the name of a metadata file that does not compress, as a digest does not."""
    return Entry(root, f"{root}/metadata/00000-{sha256(root.encode()).hexdigest()}.metadata.json")


def _granted(grant: Grant, state: CatalogState, made: Documents) -> Grant:
    return grant


def _go_to_checkpoint(client: Bench, catalog: Catalog, verb: str) -> None:
    """Commit until the head names a new checkpoint: most bytes of a commit are the head's tail since the last one."""
    first = None
    for number in range(WARM_UP_MAX):
        client.create(f"before-{verb}-{number}")
        loaded = catalog.view.now()
        assert loaded is not None
        first = first or loaded
        if loaded.head.snapshot != first.head.snapshot:
            return
    raise RuntimeError("there was no checkpoint")


def _each(puts: Counter[str], bytes_: Counter[str], gets: int, n: int) -> dict[str, Any]:
    outside = sum(count for kind, count in puts.items() if kind != "checkpoint")
    written = sum(count for kind, count in bytes_.items() if kind != "checkpoint")
    return {
        "puts": outside / n,
        "gets": gets / n,
        "bytes": written / n,
        "checkpoints": puts["checkpoint"] / n,
        "checkpoint_bytes": bytes_["checkpoint"] / n,
        "bytes_by_kind": {kind: count / n for kind, count in sorted(bytes_.items())},
    }


def _loads(client: Bench, meter: MeteredStore) -> dict[str, Any]:
    """What another process pays that loads a table: for the first time, again, and after somebody else's commit."""
    other, name = open_catalog(storage_of(meter, system()), URL), Share(0, 1).own()[0]
    found = {}
    for what in ("first", "again", "after a commit"):
        if what == "after a commit":
            client.create("one-more")
        before = meter.snapshot()
        other.load_table((NAMESPACE,), name)
        spent = meter.snapshot() - before
        found[what] = {"requests": spent.total(), "bytes": spent.read_bytes}
    return found


if __name__ == "__main__":
    print(json.dumps(grown(int(sys.argv[1]), int(sys.argv[2]))))
