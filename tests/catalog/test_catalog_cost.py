"""What commits and loads cost in requests and bytes, by the kind of object; the lock's own renewals are not counted."""

from __future__ import annotations

import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import limpet
from limpet.catalog import Compactor, Grant, Leader
from limpet.catalog.catalog import Catalog, LoadedTable
from limpet.catalog.leader import Documents
from limpet.catalog.names import AlreadyExists, Entry, key_of
from limpet.catalog.records import Change, Row
from limpet.catalog.state import LIVE, MINTED, CatalogState
from limpet.catalog.storage import CatalogStorage, ParquetSnapshots, SharedState
from limpet.catalog.warehouse import Warehouse
from limpet.events.ledger import Publication
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import NotModified
from limpet.kernel.keys import Key
from limpet.kernel.lease import Lock, VersionWatch
from limpet.kernel.runtime import system
from limpet.kernel.sortedmap import WIDTH
from limpet.kernel.store import MemoryStore
from limpet.kernel.store.api import Always, Blob, Version, When
from support.catalog import append, table

KINDS = {
    "warehouse": "metadata",
    "ledger": "ledger",
    "commits": "record",
    "manifests": "head",
    "snapshots": "checkpoint",
}
COMMIT = {"put metadata": 1, "put ledger": 1, "put head": 1, "put record": 1}
EVERY = 20
"""Commits from one checkpoint to the next, in these tests; half of what is set, for they are made early."""
CYCLES = 3
FLAT = 1.5
CLIENTS = 64
WRITES_MAX = 0.2
URL = "memory://cost"
FEW, MANY = 100, 10_000
CALLS_MORE = 1.3
BYTES_MORE = 64 << 10
"""A copy of 20,000 entries takes more than 300 KiB."""


class Sorted(MemoryStore):
    """Counts requests and bytes by verb and kind of object. A GET of what is known has no bytes."""

    def __init__(self) -> None:
        super().__init__(system())
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._counting = threading.Lock()

    def get(self, key: Key, **options: Any) -> Blob:
        try:
            blob = super().get(key, **options)
        except NotModified:
            self._count("get", key, 0)
            raise
        self._count("get", key, len(blob.data))
        return blob

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        self._count("put", key, len(data))
        return super().put(key, data, when=when)

    def _count(self, verb: str, key: Key, size: int) -> None:
        kind = KINDS.get(key.partition("/")[0])
        if kind is not None:
            with self._counting:
                self.requests[f"{verb} {kind}"] += 1
                self.bytes[f"{verb} {kind}"] += size


@dataclass(frozen=True, slots=True)
class World:
    """A catalog, what its store counts, and its leader, which runs unless a test takes its turns."""

    store: Sorted
    catalog: Catalog
    leader: Leader
    loaded: dict[str, LoadedTable] = field(default_factory=dict)

    def create(self, name: str) -> None:
        """Make a table."""
        self.loaded[name] = self.catalog.create_table(["a"], table(name))

    def append(self, name: str, nth: int) -> None:
        """Add a snapshot to a table."""
        self.loaded[name] = self.catalog.commit_table(["a"], name, append(self.loaded[name], nth))

    @contextmanager
    def spending(self) -> Iterator[Counter[str]]:
        """The requests within the block, by verb and kind; filled in at its end."""
        before, spent = self.store.requests.copy(), Counter[str]()
        yield spent
        spent.update(self.store.requests - before)

    def reader(self) -> Catalog:
        """The catalog as another process sees it."""
        storage = CatalogStorage(self.store, CatalogKeys.of("catalog"), system(), ParquetSnapshots())
        return Catalog(storage, Warehouse(self.store, URL, system()))

    def fill(self, tables: int) -> None:
        """So many tables in the namespace `full`, by one commit: no metadata of theirs is ever read."""
        space = Change(key_of("n", (), "full"), {})

        def decide(state: CatalogState, made: Documents) -> Grant:
            entries = [Entry(f"full/t{n:05}-{n:012x}", f"full/t{n:05}-{n:012x}/metadata/0.json") for n in range(tables)]
            changes = [Change(key_of("t", ("full",), f"t{n:05}"), entry.value()) for n, entry in enumerate(entries)]
            return Grant("fill", (space, *changes, *(Change(f"{LIVE}/{entry.root}", 1) for entry in entries)))

        self.leader.commit(f"{MINTED}fill{tables}", decide)


def make_world(store: Sorted | None = None) -> World:
    """What `limpet serve` writes in the background is written here before the next commit, so costs are exact.

    As there, the leader and the compactor have a storage each, and share what they have read.
    """
    store, keys, recent = store or Sorted(), CatalogKeys.of("catalog"), SharedState()
    storage, other = (CatalogStorage(store, keys, system(), ParquetSnapshots(), recent) for _ in range(2))
    compactor = Compactor(other)

    def publish(paths: Sequence[str], token: int) -> Publication:
        published = compactor.publish(paths, token)
        compactor.record()
        compactor.prepare()
        return published

    lock = Lock(store, storage.keys.lock, "catalog", 60.0, system(), VersionWatch(system()))
    leader = Leader(storage, publish, lock)
    return World(store, Catalog(storage, Warehouse(store, URL, system()), leader), leader)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A catalog with the namespace `a` that this process leads, with frequent checkpoints."""
    monkeypatch.setattr("limpet.catalog.compactor.SNAPSHOT_EVERY", 2 * EVERY)
    with leading(make_world()) as made:
        made.catalog.create_namespace(["a"])
        yield made


@contextmanager
def leading(world: World) -> Iterator[World]:
    """Its leader runs."""
    thread = threading.Thread(target=world.leader.run)
    thread.start()
    try:
        yield world
    finally:
        world.leader.stop()
        thread.join()


def test_a_create_and_an_append_are_four_puts_of_which_one_is_metadata(world: World) -> None:
    with world.spending() as create:
        world.create("t")
    with world.spending() as add:
        world.append("t", 1)
    assert create == COMMIT
    assert add == COMMIT, "what the leader wrote, it need not read"


def test_a_refused_request_is_one_look_at_the_head(world: World) -> None:
    world.create("t")
    with world.spending() as spent, pytest.raises(AlreadyExists):
        world.create("t")
    assert spent == {"get head": 1}


def test_clients_that_come_together_share_all_but_their_metadata() -> None:
    world = make_world()
    namespace = threading.Thread(target=world.catalog.create_namespace, args=(["a"],))
    clients = [threading.Thread(target=world.create, args=(f"t{n}",)) for n in range(CLIENTS)]
    namespace.start()
    take_turn(world, 1)
    namespace.join()
    for client in clients:
        client.start()
    with world.spending() as spent:
        take_turn(world, CLIENTS)
        rest = threading.Thread(target=world.leader.run)
        rest.start()  # so that a client that the turn left out ends too
        for client in clients:
            client.join()
    world.leader.stop()
    rest.join()
    assert spent == {**COMMIT, "put metadata": CLIENTS}
    assert (spent.total() - CLIENTS) / CLIENTS <= WRITES_MAX


def take_turn(world: World, clients: int) -> None:
    """Let the leader serve, once so many clients wait."""
    until_s = time.monotonic() + 30
    while len(world.leader._waiting) < clients:
        assert time.monotonic() < until_s, "the clients did not come"
        time.sleep(0.001)
    world.leader.turn()


@pytest.mark.parametrize("verb", ["create", "append"])
def test_a_commit_costs_the_same_with_few_tables_and_with_10_000(verb: str, world: World) -> None:
    few, few_bytes = commits_cost(world, verb, "few")
    world.fill(10_000)
    many, many_bytes = commits_cost(world, verb, "many")
    for spent in (few, many):
        assert spent.pop("put checkpoint") == CYCLES
        assert spent == dict.fromkeys(COMMIT, CYCLES * EVERY)
    assert many_bytes <= FLAT * few_bytes
    assert few_bytes <= FLAT * many_bytes, "both begin right after a checkpoint"


def commits_cost(world: World, verb: str, name: str) -> tuple[Counter[str], int]:
    """Requests, and bytes outside checkpoints, of some rounds from one checkpoint to the next."""
    go_to_checkpoint(world, name)
    world.create(name)
    go_to_checkpoint(world, f"{name}-again")
    before = world.store.bytes.copy()
    with world.spending() as spent:
        for n in range(1, CYCLES * EVERY + 1):
            if verb == "create":
                world.create(f"{name}{n:03}")
            else:
                world.append(name, n)
    written = world.store.bytes - before
    return spent, sum(size for request, size in written.items() if request != "put checkpoint")


def go_to_checkpoint(world: World, name: str) -> None:
    """Commit until the head names a new checkpoint."""
    before = snapshot_of(world)
    for n in range(10 * EVERY):
        world.catalog.create_namespace([f"{name}-{n}"])
        if snapshot_of(world) != before:
            return
    raise AssertionError("there was no checkpoint")


def snapshot_of(world: World) -> Any:
    loaded = world.catalog.view.now()
    assert loaded is not None
    return loaded.head.snapshot


def test_a_load_reads_the_state_at_most_once_a_version(world: World) -> None:
    world.fill(1_000)
    world.create("t")
    go_to_checkpoint(world, "x")
    other = world.reader()
    with world.spending() as first:
        other.load_table(["a"], "t")
    assert first == {"get head": 1, "get checkpoint": 1, "get metadata": 1}
    before = world.store.bytes.copy()
    with world.spending() as again:
        other.load_table(["a"], "t")
        other.tables(["full"])
    assert again == {"get head": 2}
    assert not world.store.bytes - before, "the head is only asked whether it is still the same"
    world.create("u")
    with world.spending() as changed:
        other.load_table(["a"], "t")
    assert changed == {"get head": 1}, "from the head's tail; the table itself is still in memory"
    world.append("t", 1)
    with world.spending() as appended:
        other.load_table(["a"], "t")
    assert appended == {"get head": 1, "get metadata": 1}


def test_a_reader_that_comes_late_reads_one_checkpoint(world: World) -> None:
    world.create("t")
    go_to_checkpoint(world, "x")
    other = world.reader()
    other.load_table(["a"], "t")
    for number in range(3):
        go_to_checkpoint(world, f"more{number}")
    with world.spending() as late:
        other.load_table(["a"], "t")
    assert late == {"get head": 1, "get checkpoint": 1}


@pytest.mark.parametrize("what", ["tables, a page", "namespaces, a page", "load"])
def test_lists_and_loads_touch_as_much_with_few_tables_as_with_many(world: World, what: str) -> None:
    """One question to the head, and what is listed; nothing else of the catalog."""
    ways: dict[str, Callable[[], object]] = {
        "tables, a page": lambda: world.catalog.tables(["full"], "t00050", 10),
        "namespaces, a page": lambda: world.catalog.namespaces((), "x", 10),
        "load": lambda: world.catalog.load_table(["a"], "t"),
    }
    asked = ways[what]
    world.create("t")
    calls = []
    for tables in (FEW, MANY):
        world.fill(tables)
        go_to_checkpoint(world, f"x{tables}")
        asked()
        with world.spending() as spent, counted() as made:
            asked()
        assert spent == {"get head": 1}
        calls.append(made[0])
    assert calls[1] <= CALLS_MORE * calls[0], "it goes through all tables"


def test_leader_and_compactor_of_a_new_process_read_one_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpet.catalog.compactor.SNAPSHOT_EVERY", 2 * EVERY)
    with leading(make_world()) as first:
        first.catalog.create_namespace(["a"])
        go_to_checkpoint(first, "x")
    with leading(make_world(first.store)) as second:
        second.catalog.create_namespace(["b"])
        go_to_checkpoint(second, "y")
        go_to_checkpoint(second, "z")
    assert second.store.requests["put checkpoint"] >= 3
    assert second.store.requests["get checkpoint"] == 1


@pytest.mark.parametrize("verb", ["create", "append"])
def test_a_group_touches_as_much_with_few_tables_as_with_many(verb: str) -> None:
    few_calls, few_bytes = cost_of_a_group(FEW, verb)
    many_calls, many_bytes = cost_of_a_group(MANY, verb)
    assert many_calls <= CALLS_MORE * few_calls, "it goes through all tables"
    assert many_bytes <= few_bytes + BYTES_MORE, "it copies all tables"


def cost_of_a_group(tables: int, verb: str) -> tuple[int, int]:
    """How many calls a leader makes for a group of one commit, and how many bytes of memory it takes meanwhile."""
    world = make_world()

    def grouped(act: Callable[[], object]) -> None:
        client = threading.Thread(target=act)
        client.start()
        take_turn(world, 1)
        client.join()

    grouped(lambda: world.catalog.create_namespace(["a"]))
    grouped(lambda: world.create("t"))
    grouped(lambda: world.append("t", 1))  # PyIceberg is imported, caches are full
    grouped(lambda: world.fill(tables))
    grouped(lambda: world.create("u"))  # with a checkpoint
    last: Callable[[], None] = (lambda: world.create("v")) if verb == "create" else (lambda: world.append("t", 2))
    client = threading.Thread(target=last)
    client.start()
    until_s = time.monotonic() + 30
    while len(world.leader._waiting) < 1:
        assert time.monotonic() < until_s, "the client did not come"
        time.sleep(0.001)
    with counted() as calls, allocated() as peak:
        world.leader.turn()
    client.join()
    return calls[0], peak[0]


@contextmanager
def counted() -> Iterator[list[int]]:
    """How many calls this thread makes, and how often it goes on with a generator."""
    calls, before = [0], sys.getprofile()

    def see(frame: FrameType, event: str, _: object) -> None:
        calls[0] += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@contextmanager
def allocated() -> Iterator[list[int]]:
    """The most memory that was taken at a time."""
    peak = [0]
    tracemalloc.start()
    try:
        yield peak
        peak[0] = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("tables", [100, 10_000])
def test_a_checkpoint_converts_only_what_changed_since_the_last_one(tables: int) -> None:
    state = CatalogState({f"{kind}/t{n:05}": [f"{hash((kind, n)):x}"] for n in range(tables) for kind in (1, 2)})
    codec = ParquetSnapshots()
    codec.to_bytes(state)
    assert codec.converted == 2 * tables
    changed = [Change("1/t00007", ["new"]), Change("2/t00050", None), Change("l/x", 1), Change("t/x", ["x"])]
    after = state.after([Row("id", "what", tuple(changed))], "2026-11-17T00:00:00+00:00")
    data = codec.to_bytes(after)
    assert 0 < codec.converted <= len(changed) * WIDTH
    assert codec.from_bytes(data, what="it").entries() == after.entries()
    assert data == ParquetSnapshots().to_bytes(after), "what is taken over is what would be made"
    codec.to_bytes(after)
    assert codec.converted == 0


def test_all_catalogs_of_a_fleet_and_its_leader_share_one_state(tmp_path: Path) -> None:
    fleet = limpet.open(str(tmp_path / "fleet"), durability="os")
    reader = fleet.catalog()
    with fleet.lead_catalog() as leading:
        leading.create_namespace(["a"])
        assert reader.namespaces().names == ["a"]
        state = reader.view.now()
        assert state is not None
        before = fleet.meter.snapshot()
        assert fleet.catalog().view.now() is state
        assert leading.view.now() is state
        spent = fleet.meter.snapshot() - before
        assert (spent.requests.get("get"), spent.read_bytes) == (2, 0), "each asks for a newer head"
