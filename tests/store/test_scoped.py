"""A scope hides its prefix and its neighbours; a role is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from limpet.kernel.errors import Conflict, Denied, Invalid, Missing
from limpet.kernel.keys import FLEET, Key, cell_key, clock_key, lock_key, probe_key
from limpet.kernel.runtime import SystemRuntime, system
from limpet.kernel.store.api import Absent, Match, Put, Store
from limpet.kernel.store.memory import MemoryStore
from limpet.kernel.store.metered import MeteredStore
from limpet.kernel.store.roles import ROLES, TABLE, Role, ScopedStore, Verb, allows, as_markdown
from limpet.queue.queue import BucketQueue

K = Key


def queue_on(store: Store, name: str) -> BucketQueue:
    return BucketQueue(store, name, system())


def keys_of(store: Store) -> list[str]:
    return [stat.key for stat in store.list()]


@pytest.fixture
def memory() -> MemoryStore:
    """Objects that another process wrote: this one has not seen their times."""
    return MemoryStore(SystemRuntime())


def test_a_scope_is_a_store(memory: MemoryStore) -> None:
    assert isinstance(ScopedStore(memory, "a"), Store)


def test_verbs_work_on_keys_without_the_prefix(memory: MemoryStore) -> None:
    scope = ScopedStore(memory, "t/w")
    version = scope.put(K("x"), b"1", when=Absent())
    with pytest.raises(Conflict):
        scope.put(K("x"), b"2", when=Absent())
    swapped = scope.put(K("x"), b"two", when=Match(version))
    assert scope.get(K("x"), range=(1, 3), if_match=swapped).data == b"wo"
    assert (scope.head(K("x")).key, scope.head(K("x")).version) == ("x", swapped)
    assert keys_of(memory) == ["t/w/x"]
    scope.delete(K("x"))
    assert keys_of(memory) == []
    with pytest.raises(Missing):
        scope.get(K("x"))


def test_batch_verbs_answer_with_scoped_keys(memory: MemoryStore) -> None:
    scope = ScopedStore(memory, "p")
    assert [*scope.put_many([Put(K("a"), b"1"), Put(K("b/c"), b"2")])] == ["a", "b/c"]
    found = scope.get_many([K("a"), K("b/c"), K("no")])
    assert isinstance(found[K("no")], Missing)
    assert [*found] == ["a", "b/c", "no"]
    assert scope.delete_many([K("a"), K("no")]) == {"a": None, "no": None}
    assert keys_of(memory) == ["p/b/c"]


def test_lists_show_no_neighbours(memory: MemoryStore) -> None:
    for key in ("a", "a/1", "a/d/2", "a/d.x", "ab/3", "a-/4", "b"):
        memory.put(K(key), b"")
    scope = ScopedStore(memory, "a")
    assert keys_of(scope) == ["1", "d.x", "d/2"]
    assert [stat.key for stat in scope.list("d")] == ["d/2"]
    assert [stat.key for stat in scope.list(after="1")] == ["d.x", "d/2"]
    assert [stat.key for stat in scope.list("d", after="d/2")] == []
    assert scope.list_dirs() == ["d"]
    assert sorted(stat.key for stat in scope.sample("", 9)) == ["1", "d.x", "d/2"]
    assert [stat.key for stat in scope.sample("d", 9)] == ["d/2"]


@pytest.mark.parametrize("key", ["", "/x", "../x", "a/../../x", "a//b", "x/", "."])
def test_no_key_climbs_out(memory: MemoryStore, key: str) -> None:
    scope = ScopedStore(memory, "p")
    calls: list[Callable[[], object]] = [
        lambda: scope.get(K(key)),
        lambda: scope.head(K(key)),
        lambda: scope.put(K(key), b""),
        lambda: scope.delete(K(key)),
    ]
    for call in calls:
        with pytest.raises(Invalid):
            call()
    assert keys_of(memory) == []


def test_no_prefix_climbs_out(memory: MemoryStore) -> None:
    with pytest.raises(Invalid):
        ScopedStore(memory, "../q")
    with pytest.raises(Invalid):
        ScopedStore(memory, "p").list("..")


def test_scopes_nest(memory: MemoryStore) -> None:
    ScopedStore(ScopedStore(memory, "a"), "b").put(K("x"), b"")
    assert keys_of(memory) == ["a/b/x"]


def test_an_empty_scope_is_the_store(memory: MemoryStore) -> None:
    scope = ScopedStore(memory)
    scope.put(K("x/y"), b"")
    assert keys_of(scope) == keys_of(memory) == ["x/y"]
    assert [stat.key for stat in scope.list(after="x/y")] == []


def test_an_unknown_role_is_refused(memory: MemoryStore) -> None:
    with pytest.raises(Invalid, match="no role 'root'"):
        ScopedStore(memory, role="root")


def test_what_a_role_may_not_do_is_not_sent(memory: MemoryStore) -> None:
    memory.put(K("p/snapshots/x"), b"1")
    meter = MeteredStore(memory)
    worker = ScopedStore(meter, "p", "worker")
    key = K("snapshots/x")
    calls: list[Callable[[], object]] = [
        lambda: worker.get(key),
        lambda: worker.head(key),
        lambda: worker.put(key, b"2"),
        lambda: worker.delete(key),
        lambda: worker.list("snapshots"),
        lambda: worker.list(),
        lambda: worker.sample("snapshots", 1),
        lambda: worker.list_dirs("snapshots"),
    ]
    for call in calls:
        with pytest.raises(Denied, match="worker may not") as refused:
            call()
        assert "role" in refused.value.hint
    assert meter.snapshot().total() == 0


def test_batch_verbs_deny_key_by_key(memory: MemoryStore) -> None:
    meter = MeteredStore(memory)
    worker = ScopedStore(meter, role="worker")
    good, bad = cell_key("a"), K("commits/x")
    with meter.measure() as cost:
        put = worker.put_many([Put(bad, b""), Put(good, b"")])
        got = worker.get_many([good, bad])
        gone = worker.delete_many([good, bad])
    assert isinstance(put[bad], Denied)
    assert isinstance(put[good], str)
    assert isinstance(got[bad], Denied)
    assert isinstance(gone[good], Denied)
    assert isinstance(gone[bad], Denied)
    assert cost.requests == {"put": 1, "get": 1}


def test_the_clock_is_read_inside_the_scope(memory: MemoryStore) -> None:
    scope = ScopedStore(memory, "p", "worker")
    before = datetime.now(UTC)
    assert before <= scope.now() <= datetime.now(UTC)
    assert [key.startswith("p/clock/") for key in keys_of(memory)] == [True]


@pytest.mark.parametrize("role", ["reader", "compactor"])
def test_a_role_without_locks_never_writes_to_read_the_clock(memory: MemoryStore, role: str) -> None:
    memory.put(K("manifests/x"), b"1")
    modified = memory.head(K("manifests/x")).modified
    meter = MeteredStore(memory)
    scope = ScopedStore(meter, role=role)
    with pytest.raises(Denied) as refused:
        scope.now()
    assert "LastModified" in refused.value.hint
    scope.head(K("manifests/x"))
    with meter.measure() as cost:
        bound = scope.now(max_age_s=-1)
    assert modified <= bound <= datetime.now(UTC)
    assert cost.requests == {}


@pytest.mark.parametrize("see", [lambda s: [*s.list()], lambda s: s.sample("", 1), lambda s: s.get(K("x"))])
def test_every_answer_with_a_time_tells_a_reader_the_clock(memory: MemoryStore, see: Callable[[Store], object]) -> None:
    memory.put(K("x"), b"1")
    reader = ScopedStore(memory, role="reader")
    see(reader)
    assert reader.now() >= memory.head(K("x")).modified


@pytest.mark.parametrize("role", [role for role in ROLES if allows(role, "put", lock_key("x"))])
def test_a_role_that_writes_locks_reads_the_clock(memory: MemoryStore, role: str) -> None:
    ScopedStore(memory, role=role).now()
    assert keys_of(memory)[0].startswith("clock/")


# The table of roles.

RIGHTS = """
api may get manifests/catalog.json
api may put locks/catalog.lock warehouse/ns/t/metadata/1.metadata.json ledger/catalog/1.json
api may put warehouse/ns/t/metadata/1.json
api may-not get locks/user/x.lock
api may-not list locks
api may-not put locks/user/x.lock manifests/catalog.json
compactor may get locks/catalog.lock
compactor may put manifests/catalog.json
compactor may-not list ledger/catalog
compactor may-not put locks/catalog.lock
compiler may delete indexes/i/inbox/5e/k/1.usv
compiler may put indexes/i/shards/5e.lock indexes/i/manifest.json
compiler may-not get queues/q/pending/e/task.json
compiler may-not put indexes/i/manifest.json/x
pusher may delete queues/q/pending/e/task.json
pusher may get queues/q/completed/e.json queues/q/parts/e/1.json
pusher may put queues/q/pending/e/task.json queues/q/pending/e/tasks.jsonl queues/q/scheduled/2026/e@1.json
pusher may put queues/q/bell.json
pusher may-not delete queues/q/pending/e/tasks.jsonl queues/q/pending/e/lease.json queues/q/bell.json
pusher may-not list queues/q
pusher may-not put queues/q/pending/e/lease.json queues/q/completed/e.json queues/q/control.json
pusher may-not put queues/q/pending/bell.json workers/w.json cells/x.json locks/user/x.lock
reader may get anything/at/all
reader may list everything workers
reader may-not put clock/0.json queues/q/bell.json workers/w.json
supervisor may put queues/q/bell.json sync/pi-a/1.jsonl queues/q/pending/e/lease.json
supervisor may-not put indexes/i/inbox/5e/k/1.usv
tables may get warehouse/ns/t/metadata/1.metadata.json
tables may put warehouse/ns/t/data/1.parquet warehouse/ns/t/metadata/snap-1.avro
tables may-not delete warehouse/ns/t/metadata/1.metadata.json
tables may-not get manifests/catalog.json
tables may-not put warehouse/ns/t/metadata/1.metadata.json
worker may delete workers/w.json
worker may get queues/q/control.json queues/q/bell.json
worker may list queues/q/pending queues
worker may put queues/q/pending/e/lease.json indexes/i/inbox/5e/k/1.usv ledger/executions/1.json locks/user/x.lock
worker may put queues/q/bell.json workers/w.json
worker may-not delete indexes/i/inbox/5e/k/1.usv
worker may-not list everything
worker may-not put queues/q/control.json queues/q/pending queues/a/b/pending/e queuesx/q/pending/e queues/q/pendingx/e
worker may-not put indexes/i/shards/5e.usv ledger/catalog/1.json locks/catalog.lock
"""
WORDS = [line.split() for line in RIGHTS.split("\n") if line]


@pytest.mark.parametrize(
    ("role", "may", "verb", "key"), [(role, may, verb, key) for role, may, verb, *keys in WORDS for key in keys]
)
def test_rights(role: Role, may: str, verb: Verb, key: str) -> None:
    assert allows(role, verb, "" if key == "everything" else key) is (may == "may")


def test_a_role_can_be_narrowed_to_some_queues(memory: MemoryStore) -> None:
    worker = ScopedStore(memory, role="worker", queues=["emails", "a b"])
    for queue in ("emails", "a%20b"):
        worker.put(K(f"queues/{queue}/pending/e/lease.json"), b"")
        worker.put(K(f"queues/{queue}/slots/1.lock"), b"")
        assert [*worker.list(f"queues/{queue}")]
    worker.put(cell_key("x"), b"")
    for queue in ("other", "email", "emailsx", "pending"):
        for call in (
            lambda queue=queue: worker.put(K(f"queues/{queue}/pending/e/lease.json"), b""),
            lambda queue=queue: worker.get(K(f"queues/{queue}/completed/e.json")),
            lambda queue=queue: worker.list(f"queues/{queue}"),
        ):
            with pytest.raises(Denied):
                call()
    with pytest.raises(Denied):
        worker.list("queues")


def test_only_some_roles_can_be_narrowed(memory: MemoryStore) -> None:
    for role in set(ROLES) - {"worker", "pusher"}:
        with pytest.raises(Invalid, match="cannot be narrowed"):
            ScopedStore(memory, role=role, queues=["x"])


def test_a_pusher_pushes_and_reads_results(memory: MemoryStore) -> None:
    """With the rights of its role alone, and those of one queue; a worker of that queue does the rest."""
    pusher = queue_on(ScopedStore(memory, role="pusher", queues=["emails"]), "emails")
    pusher.push({"n": 1}, id="one")
    assert not pusher.push({"n": 1}, id="one").created
    ids = pusher.push_many([{"n": 2}, {"n": 3}])
    pusher.push({"n": 4}, delay_s=60)
    worker = queue_on(ScopedStore(memory, role="worker", queues=["emails"]), "emails")
    while claim := worker.claim():
        with claim:
            for task in claim:
                task.done({"was": task.id})
    assert [pusher.result(each).value for each in ("one", *ids)] == [{"was": each} for each in ("one", *ids)]
    assert not pusher.push({"n": 1}, id="one").created, "a receipt ends the name: the task is taken back"
    with pytest.raises(Denied):
        pusher.claim()
    with pytest.raises(Denied):
        queue_on(ScopedStore(memory, role="pusher", queues=["emails"]), "other").push({})


def who_may(verb: Verb, key: str) -> set[Role]:
    return {role for role in ROLES if allows(role, verb, key)}


@pytest.mark.parametrize("folder", ["snapshots", "state", "manifests", "commits", "quarantine"])
def test_only_the_compactor_writes_catalog_state(folder: str) -> None:
    assert who_may("put", f"{folder}/catalog/x.json") == {"compactor"}
    assert who_may("delete", f"{folder}/catalog/x.json") <= {"compactor"}


@pytest.mark.parametrize(
    "key",
    [
        lock_key("x"), cell_key("x"), clock_key(0), FLEET, "locks/catalog.lock", "manifests/catalog.json",
        "sequence/executions.json", "queues/q/slots/1.lock", "indexes/i/shards/5e.lock", "indexes/i/shards/5e.usv",
    ],
)  # fmt: skip
def test_nobody_deletes_what_must_keep_rising(key: str) -> None:
    assert who_may("delete", key) == set()


def test_every_role_knows_the_fleet_and_none_rewrites_it() -> None:
    assert who_may("get", FLEET) == set(ROLES)
    assert who_may("put", FLEET) == set()
    assert who_may("delete", probe_key("r", "x")) == set(ROLES) - {"pusher", "reader", "tables"}


def test_patterns_are_plain_prefixes() -> None:
    for pattern in {pattern for grants in TABLE.values() for pattern in grants} - {""}:
        parts = pattern.removesuffix("/").split("/")
        assert all(part == "*" or "*" not in part for part in parts), pattern
        assert parts.count("*") <= 2, pattern
        assert all(parts), pattern
        assert parts[0] != "*", pattern


def test_the_docs_show_the_table() -> None:
    header, _, *rows = as_markdown().splitlines()
    assert header == "| prefix | api | compactor | compiler | pusher | reader | supervisor | tables | worker |"
    assert "| everything |  |  |  |  | get list |  |  |  |" in rows
    assert "| `locks/catalog.lock` | get put |  |  |  |  |  |  |  |" in rows
    assert len(rows) == len({pattern for grants in TABLE.values() for pattern in grants})
