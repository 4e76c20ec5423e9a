"""Hostile requests, rewritten files and damaged objects: each harms itself and nothing else."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from limpet.catalog import Compactor, commit, leader
from limpet.catalog.catalog import Catalog, LoadedTable
from limpet.catalog.gc import BatchOutcome, classify_ledger, collect
from limpet.catalog.heads import unusable
from limpet.catalog.leader import Documents, Grant, add_batch
from limpet.catalog.names import CommitFailed
from limpet.catalog.records import ACTOR, Change, LedgerBatch, Row
from limpet.catalog.state import CatalogState
from limpet.events import Event as Fact
from limpet.events.fold import Executions, hand_over, read_batch
from limpet.events.ledger import Publication
from limpet.events.quarantine import isolate, quarantined
from limpet.events.sink import EventBatch
from limpet.kernel import records
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Corrupt, Invalid, LimpetError
from limpet.kernel.keys import Key
from limpet.kernel.runtime import system
from limpet.kernel.store import DirectoryStore, MemoryStore
from support.catalog import SCHEMA, append, catalog, catalog_on, cold, metadata, stored_at, table, version, view

__all__ = ["catalog"]


@pytest.fixture(autouse=True)
def namespace(catalog: Catalog) -> None:
    catalog.create_namespace(["a"])


def added_schemas(count: int) -> list[dict[str, Any]]:
    """That many schemas that differ only in the last place that is compared."""
    fields: list[dict[str, Any]] = SCHEMA["fields"]
    return [
        {
            "action": "add-schema",
            "schema": {**SCHEMA, "schema-id": n + 1, "fields": [fields[0], {**fields[1], "doc": str(n)}]},
        }
        for n in range(count)
    ]


# ---- what is served was checked (C3) ----


@pytest.mark.parametrize("kind", ["table", "view"])
def test_a_metadata_file_that_was_rewritten_is_not_served(catalog: Catalog, kind: str) -> None:
    if kind == "table":
        made = catalog.commit_table(["a"], "t", append(catalog.create_table(["a"], table()), 1))
    else:
        made = catalog.create_view(["a"], view())
    catalog.create_table(["a"], table("sound"))
    key, store = stored_at(catalog, made), catalog.warehouse.store
    assert key.rpartition("/")[2].partition("-")[2] == f"{sha256(made.metadata).hexdigest()}.metadata.json"
    assert catalog.verify().broken is None
    assert catalog.verify().files == 2
    rewritten = made.metadata.replace(catalog.warehouse.url.encode(), b"s3://elsewhere")
    for damaged in (rewritten, made.metadata + b" ", b"", b"{}"):
        store.put(key, damaged)
        after = cold(catalog)
        with pytest.raises(Corrupt, match="its digest differs"):
            after.load_table(["a"], "t") if kind == "table" else after.load_view(["a"], "v")
        found = after.verify()
        assert found.chain.broken is None
        assert len(found.damaged) == 1
        assert found.damaged[0].startswith(f"the metadata of {kind} a.{'t' if kind == 'table' else 'v'}: ")
        assert after.load_table(["a"], "sound")
    store.put(key, made.metadata)
    assert cold(catalog).verify().broken is None


def test_a_dropped_table_comes_back_only_as_it_was(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table())
    catalog.drop_table(["a"], "t")
    catalog.warehouse.store.put(stored_at(catalog, made), made.metadata + b" ")
    with pytest.raises(Corrupt, match="its digest differs"):
        cold(catalog).undrop(["a"], "t")


def test_metadata_that_version_0_1_wrote_is_served_and_gets_a_digest_with_the_next_commit(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table())
    old = f"{stored_at(catalog, made).rpartition('/')[0]}/00000-3b0fe1f3-7d1c-4d07-8d34-1f5a3e7f1234.metadata.json"
    catalog.warehouse.store.put(Key(old), made.metadata)
    root = metadata(made)["location"].removeprefix(f"{catalog.warehouse.url}/")

    def decide(state: CatalogState, made: Documents) -> Grant:
        return Grant("commit", (Change("t/a//t", [root, old.rpartition("/")[2]]),))

    assert catalog.leader is not None
    catalog.leader.commit("~old", decide)
    after = cold(catalog)
    assert (after.verify().broken, after.verify().undigested) == (None, 1)
    assert after.load_table(["a"], "t").metadata == made.metadata
    after.commit_table(["a"], "t", append(after.load_table(["a"], "t"), 1))
    assert after.verify().undigested == 0


# ---- doubled names (C2) ----


def test_metadata_with_a_name_twice_is_neither_registered_nor_read(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table())
    catalog.drop_table(["a"], "t")
    twice = made.metadata.replace(b"{", b'{"location":"s3://elsewhere/x",', 1)
    inner = made.metadata.replace(b'"properties":{', b'"properties":{"x":"1","x":"2",', 1)
    folder = stored_at(catalog, made).rpartition("/")[0]
    for data in (twice, inner):
        for name in ("00007-x", f"00007-{sha256(data).hexdigest()}"):
            catalog.warehouse.store.put(Key(f"{folder}/{name}.metadata.json"), data)
            with pytest.raises(Invalid, match="twice"):
                catalog.register_table(
                    ["a"], "r", f"{catalog.warehouse.url}/{folder.removeprefix('warehouse/')}/{name}.metadata.json"
                )
    reader = cold(catalog)
    with pytest.raises(Corrupt, match="twice"):
        reader.warehouse.read(f"{folder.removeprefix('warehouse/')}/00007-x.metadata.json")


def test_a_registered_table_does_not_follow_the_file_that_it_was_made_of(catalog: Catalog) -> None:
    made = catalog.create_table(["a"], table())
    catalog.drop_table(["a"], "t")
    folder = stored_at(catalog, made).rpartition("/")[0]
    theirs = Key(f"{folder}/v1.metadata.json")
    url = f"{catalog.warehouse.url}/{str(theirs).removeprefix('warehouse/')}"
    catalog.warehouse.store.put(theirs, records.encode({**metadata(made), "unknown-field": "s3://elsewhere"}))
    with pytest.raises(Invalid, match=r"unknown-field.*not inside the warehouse"):
        catalog.register_table(["a"], "r", url)
    sent = {**metadata(made), "unknown-field": [1]}
    catalog.warehouse.store.put(theirs, records.encode(sent))
    registered = catalog.register_table(["a"], "r", url)
    assert registered.metadata_location != url
    assert metadata(registered) == sent
    catalog.warehouse.store.put(theirs, b"{}")
    assert cold(catalog).load_table(["a"], "r") == registered
    assert catalog.verify().broken is None


# ---- bounds before any work (C4) ----


@pytest.mark.parametrize("name", [" " * 60_000 + "x", "." * 60_000, "-" * 60_000, " ." * 30_000, "a" * 1025])
def test_a_long_name_of_a_property_is_refused_at_once(catalog: Catalog, name: str) -> None:
    """60 KB froze 0.1 for 71 s: a regular expression took quadratic time."""
    catalog.create_table(["a"], table())
    with pytest.raises(Invalid, match="at most 1024 characters"):
        catalog.create_namespace(["b"], {name: "x"})
    with pytest.raises(Invalid, match="at most 1024 characters"):
        catalog.create_table(["a"], table("u", properties={name: "x"}))
    with pytest.raises(Invalid, match="at most 1024 characters"):
        catalog.commit_table(["a"], "t", {"updates": [{"action": "set-properties", "updates": {name: "x"}}]})
    with pytest.raises(Invalid, match="at most 1024 characters"):
        catalog.create_view(["a"], view(properties={name: "x"}))


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"updates": added_schemas(1001)}, "at most 1000 are"),
        ({"updates": [{"action": "set-properties", "updates": {}}] * 10_001}, "at most 10000"),
        ({"updates": [], "requirements": [{"type": "assert-create"}] * 1001}, "at most 1000"),
        ({"updates": [{"action": "set-properties", "updates": {str(n): "" for n in range(10_001)}}]}, "10000"),
        ({"updates": [{"action": "set-properties", "updates": {"x": "y" * ((1 << 20) + 1)}}]}, "1048576"),
        ({"updates": [{"action": "x", "y": [[0] * 1000] * 200}]}, "200000 values"),
    ],
    ids=["schemas", "updates", "requirements", "properties", "value", "values"],
)
def test_commits_that_are_too_large_are_refused_before_any_work(
    catalog: Catalog, request_: dict[str, Any], why: str
) -> None:
    catalog.create_table(["a"], table())
    with pytest.raises(Invalid, match=why):
        catalog.commit_table(["a"], "t", request_)
    with pytest.raises(Invalid, match=why):
        catalog.commit_transaction([{"identifier": {"namespace": ["a"], "name": "t"}, **request_}])


def test_views_that_are_too_large_are_refused(catalog: Catalog) -> None:
    many = {**version("x"), "representations": [{"type": "sql", "sql": "x", "dialect": str(n)} for n in range(101)]}
    with pytest.raises(Invalid, match="at most 100 representations"):
        catalog.create_view(["a"], {**view(), "view-version": many})
    catalog.create_view(["a"], view())
    with pytest.raises(Invalid, match="at most 1000"):
        catalog.replace_view(["a"], "v", {"updates": [{"action": "set-properties", "updates": {}}] * 1001})


def test_a_commit_is_worked_out_in_the_thread_of_its_client(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one client's 200 schemas are worked out, another one commits."""
    catalog.create_table(["a"], table())
    begun, go_on = Event(), Event()
    real = commit.apply

    def slow(*given: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(commit, "apply", slow)
        done: list[LoadedTable] = []
        client = Thread(target=lambda: done.append(catalog.commit_table(["a"], "t", {"updates": added_schemas(200)})))
        client.start()
        assert begun.wait(30)
        catalog.create_namespace(["meanwhile"])
        assert catalog.namespace(["meanwhile"]) == {}
        go_on.set()
        client.join()
    assert len(metadata(done[0])["schemas"]) == 201


def test_a_commit_that_others_overtake_is_worked_out_again(catalog: Catalog) -> None:
    """None of them is refused or lost: each goes by what those before it left."""
    catalog.create_table(["a"], table())

    def work(n: int) -> None:
        for each in range(3):
            updates = [
                {"action": "add-schema", "schema": added_schemas(n * 3 + each + 1)[-1]["schema"]},
                {"action": "set-properties", "updates": {f"p{n}.{each}": "x"}},
            ]
            catalog.commit_table(["a"], "t", {"updates": updates})

    clients = [Thread(target=work, args=(n,)) for n in range(6)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    found = metadata(catalog.load_table(["a"], "t"))
    assert {f"p{n}.{each}" for n in range(6) for each in range(3)} <= found["properties"].keys()
    assert len(found["schemas"]) == 19


def test_what_a_commit_requires_is_checked_on_the_table_as_it_is_when_it_is_published(catalog: Catalog) -> None:
    """Both are worked out on one table; the second is published after the first, and what it requires is gone."""
    catalog.create_table(["a"], table())
    request = {
        "requirements": [{"type": "assert-current-schema-id", "current-schema-id": 0}],
        "updates": [*added_schemas(1), {"action": "set-current-schema", "schema-id": -1}],
    }
    prepared = commit.prepare_commit(catalog.warehouse, catalog._known_or_read, ("a",), "t", request)
    ahead = commit.WorkedMetadata(catalog.warehouse)
    catalog._work_ahead(ahead, prepared)
    first = metadata(catalog.commit_table(["a"], "t", request))
    assert first["current-schema-id"] != 0
    with pytest.raises(CommitFailed, match="current schema"):
        catalog._commit(("late",), partial(commit.commit_table, catalog.warehouse, prepared, ahead), ahead)
    assert metadata(catalog.load_table(["a"], "t")) == first


def test_snapshots_that_go_one_by_one_go_together(catalog: Catalog) -> None:
    """Older Java clients send one update for each snapshot that they expire."""
    loaded = catalog.create_table(["a"], table())
    for n in range(1, 6):
        loaded = catalog.commit_table(["a"], "t", append(loaded, n))
    updates = [{"action": "remove-snapshots", "snapshot-ids": [n]} for n in (1, 2, 3)] * 1000
    found = metadata(catalog.commit_table(["a"], "t", {"updates": updates}))
    assert [each["snapshot-id"] for each in found["snapshots"]] == [4, 5]


def test_a_group_is_decided_in_good_time_and_the_rest_goes_with_the_next(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "DECIDE_S", -1.0)
    assert catalog.leader is not None
    results: list[str] = []

    def client(n: int) -> None:
        assert catalog.leader is not None
        results.append(catalog.leader.commit(str(n), lambda state, made: Grant("x", (Change(f"k{n}", 1),), f"{n}")))

    clients = [Thread(target=client, args=(n,)) for n in range(8)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert sorted(results) == [str(n) for n in range(8)]
    assert all(len(commit.rows) == 1 for commit in catalog.log(8)), "each group had time for one"


# ---- rows that no reader can use (A7) ----

GOOD = Row("1", "create table", (Change("t/n//x", ["n/x", "00000-y.metadata.json"]), Change("l/n/x", 1)), "n/x")


def test_rows_that_readers_can_use() -> None:
    good = [
        GOOD,
        Row("2", "drop", (Change("t/n//x", None), Change("l/n/x", None), Change("p/n/x", 1), Change(ACTOR, "ann"))),
        Row("3", "create namespace", (Change("n//n", {"a": "b"}), Change("n/n//m", {}))),
        Row("4", "view", (Change("v/n/m//x%2fy", ["n/x", "n/y/z.json", "n/more"]),)),
        Row("5", "of a later version", (Change("z/whatever", 7), Change("plain", 7))),
        Row("6", "nothing"),
    ]
    assert unusable(good) is None
    assert unusable([]) is None


@pytest.mark.parametrize(
    "change",
    [
        Change("t/n//x", 5), Change("t/n//x", ["n/x"]), Change("t/n//x", []), Change("t/n//x", "n/x"),
        Change("t/n//x", ["n/x", 5]), Change("t/n//x", ["n/x", ""]), Change("t/n//x", ["../x", "y"]),
        Change("t/n//x", ["n/x", "../../y"]), Change("t/n//x", ["n//x", "y"]), Change("t/n//x", ["n/x", "y" * 5000]),
        Change("t/n//x", {"root": "n/x"}), Change("v/n//x", 5), Change("v/n//x", ["n/x"]),
        Change("t/n//", None), Change("t/n/x", None), Change("t///x", None), Change("t//x", None),
        Change("t/n//..", None), Change("t/n//\x00", None), Change("t/n//x%2F", None),
        Change("t/n//" + "x" * 256, None),
        Change("n//n", 5), Change("n//n", []), Change("n//n", {"a": 1}), Change("n//", None), Change("n/n", None),
        Change("l/", 1), Change("l/../x", 1), Change("l/n/x", 2), Change("l/n/x", "1"), Change("p/n//x", 1),
        Change("p/n", {}), Change("p/./n", None),
    ],
    ids=lambda change: f"{change.key[:20]!r}={change.value!r:.30}",
)  # fmt: skip
def test_rows_that_no_reader_can_use_are_not_published(change: Change) -> None:
    assert unusable([GOOD, Row("2", "x", (Change("l/n/y", 1), change))]) is not None
    with catalog_on() as made:
        head = made.storage.head().read()
        if head is None:
            made.create_namespace(["n"])
            head = made.storage.head().read()
        assert head is not None
        batch = LedgerBatch(
            domain="catalog", token=head.value.token, base_version=head.value.version, rows=(Row("2", "x", (change,)),)
        )
        path = add_batch(made.storage, system().new_id(), batch)
        with pytest.raises(Invalid, match="is not published: the entry"):
            Compactor(made.storage).publish([path], head.value.token)
        assert made.leader is not None
        with pytest.raises(Invalid, match="it cannot be published"):
            made.leader.commit("~bad", lambda state, made: Grant("x", (change,)))
        made.create_namespace(["goes", "on"][:1])


def test_a_row_says_what_it_is() -> None:
    assert unusable([Row("", "x")]) is not None
    assert unusable([Row("1", "")]) is not None


def test_an_entry_that_0_1_published_and_cannot_be_used_harms_no_other(catalog: Catalog) -> None:
    catalog.create_table(["a"], table("sound"))
    state = catalog._state()
    state._entries = state._entries.put("t/a//bad", "5")
    with pytest.raises(Corrupt, match="an invalid entry"):
        catalog.load_table(["a"], "bad")
    found = catalog.verify()
    assert [each.partition(":")[0] for each in found.damaged] == ["the metadata of table a.bad"]
    assert catalog.load_table(["a"], "sound")
    assert catalog.tables(["a"]).names == ["bad", "sound"]


# ---- damaged objects (A5) ----


def test_the_log_goes_on_beyond_a_damaged_record(catalog: Catalog) -> None:
    for n in range(20):
        catalog.create_namespace([f"n{n}"])
    whole = [commit.version for commit in catalog.log()]
    victim = catalog.log()[5]
    key = catalog.storage.keys.commit(victim.id)
    sound = catalog.storage.store.get(key).data
    for damage in (b"", b"{}", sound + b" ", b"[" * 100_000, b"\xff" * 10):
        catalog.storage.store.put(key, damage)
        with pytest.raises(Corrupt):
            catalog.log()
        faults: list[Corrupt] = []
        shown = [commit.version for commit in catalog.log(damaged=faults.append)]
        assert whole[:5] == shown[:5]
        assert shown[-1] == 1, "an older commit is named by others too"
        assert victim.version not in shown
        assert any(str(key) in str(fault) for fault in faults)
        found = catalog.verify()
        assert any(str(key) in fault for fault in found.chain.faults)
    catalog.storage.store.delete(key)
    assert catalog.verify().chain.faults[0].endswith(f"version {victim.version} is missing")


def test_garbage_collection_goes_on_where_the_chain_is_damaged(catalog: Catalog) -> None:
    from datetime import timedelta

    for n in range(6):
        catalog.create_namespace([f"n{n}"])
    storage = catalog.storage
    for old in catalog.log()[1:]:
        storage.store.put(storage.keys.commit(old.id), b"damaged")
    executions = Executions(storage.store, CatalogKeys.of("executions"), system())
    batch = records.encode(EventBatch(domain="executions", source="x", position=None, events=(fact(),)))
    storage.store.put(executions.keys.batch(system().new_id()), batch)
    hand_over(storage.store, executions.keys, executions.publish)
    done = collect(storage, executions, keep=timedelta(0), keep_versions=3, grace_s=-60.0)
    assert [each.partition(":")[0] for each in done.faults] == ["floor"]
    assert "was modified since it was published" in done.faults[0]
    fates = {each.fate for each in classify_ledger(storage, grace_s=-60.0)}
    assert fates == {BatchOutcome.OPEN}, "what lies beyond the damage stays"


def fact(id_: str | None = None) -> Fact:
    return Fact(id_ or system().new_id(), "task run", "2026-11-17T08:00:00.000+00:00", {"queue": "q"})


def test_events_of_a_newer_version_are_put_aside() -> None:
    newer = records.encode(
        {"schema": 2, "domain": "executions", "source": "x", "position": None, "events": [], "more": 1}
    )
    with pytest.raises(Invalid, match="a newer version of limpet wrote it"):
        read_batch(newer, "executions")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff\xfe", b"[" * 200_000, b'{"schema":1,"domain":"executions","source":"x","position":-1,"events":[]}',
        b'{"schema":1,"domain":"executions","source":"x","position":null,"events":[["%s","k","0001-01-01T00:00:00+23:59",{}]]}'
        % (b"0" * 26),
        b'{"schema":' + b"9" * 5000 + b',"domain":"executions","source":"x","position":null,"events":[]}',
        b'{"schema":2,"domain":"executions","source":"x","position":null,"events":[],"more":1}',
    ],
    ids=["empty", "no UTF-8", "deep", "position", "year 1", "digits", "newer"],
)  # fmt: skip
def test_a_batch_of_events_that_cannot_be_read_is_put_aside_and_the_others_are_folded(data: bytes) -> None:
    store, keys = MemoryStore(system()), CatalogKeys.of("executions")
    executions = Executions(store, keys, system())
    good = records.encode(EventBatch(domain="executions", source="x", position=None, events=(fact(),)))
    bad = system().new_id()
    store.put(keys.batch(bad), data)
    store.put(keys.batch(system().new_id()), good)
    assert hand_over(store, keys, executions.publish).batches == 2
    assert executions.head().events == 1
    assert [reason.id for reason in quarantined(store, keys)] == [bad]


def test_a_batch_that_the_compactor_refuses_stays_and_holds_up_no_other() -> None:
    store, keys = MemoryStore(system()), CatalogKeys.of("executions")
    ids = [system().new_id() for _ in range(5)]
    for id_ in ids:
        store.put(keys.batch(id_), b"x")

    def publish(paths: Any, token: int) -> Publication:
        if keys.batch(ids[2]) in paths:
            raise Invalid("no")
        return Publication(1, "c")

    found = hand_over(store, keys, publish)
    assert (found.batches, found.strays) == (4, 1)
    assert [stat.key for stat in store.list(keys.ledger)] == [keys.batch(ids[2])]


def test_a_damaged_file_of_folded_events_is_left_out_and_the_others_go_on() -> None:
    store, keys = MemoryStore(system()), CatalogKeys.of("executions")
    executions = Executions(store, keys, system())

    def fold(count: int) -> list[str]:
        ids = [system().new_id() for _ in range(count)]
        batch = EventBatch(domain="executions", source="x", position=None, events=tuple(map(fact, ids)))
        store.put(keys.batch(ids[0]), records.encode(batch))
        hand_over(store, keys, executions.publish)
        return ids

    fold(20)
    large = executions.head().files[0]
    fold(4)
    for damage in (b"damaged", b"x" * (large.size + 1)):
        store.put(keys.state(large.id), damage)
        newer = fold(8)
        assert large in executions.head().files, "it is named still: a backup may bring it back"
        scan, seen = executions.scan(), [""]
        with pytest.raises(Corrupt, match=large.id):
            seen.extend(event.id for event, _ in scan)
        assert {*newer} <= {*seen}


def test_a_reason_that_cannot_be_read_does_not_hide_the_others() -> None:
    store, keys = MemoryStore(system()), CatalogKeys.of("executions")
    store.put(Key("probe/x"), b"x")
    blob = store.get(Key("probe/x"))
    ids = sorted(system().new_id() for _ in range(3))
    for id_ in ids:
        isolate(store, keys, id_, blob, "why")
    store.put(keys.reason(ids[1]), b"\xff")
    said = [*quarantined(store, keys)]
    assert [reason.id for reason in said] == ids
    assert said[1].reason.startswith("the reason cannot be read")


@pytest.mark.parametrize(
    "damage",
    [b"", b"{}", b"\xff", b"[" * 100_000, b'{"version":1e300}', b" " * (65 << 20)],
    ids=["empty", "fields", "no UTF-8", "deep", "number", "large"],
)
def test_a_damaged_head_batch_or_snapshot_is_corrupt_and_nothing_else(damage: bytes) -> None:
    with catalog_on() as made:
        made.create_namespace(["a"])
        storage = made.storage
        path = storage.keys.batch(system().new_id())
        storage.store.put(path, damage)
        with pytest.raises(LimpetError):
            Compactor(storage).publish([path], 1)
        assert [each.fate for each in classify_ledger(storage, grace_s=-60.0) if each.path == path] == [
            BatchOutcome.MALFORMED
        ]
        storage.store.put(storage.keys.head, damage)
        with pytest.raises(Corrupt):
            Catalog(storage, made.warehouse).namespaces()


def test_who_sent_a_request_is_in_its_row(catalog: Catalog) -> None:
    catalog.create_table(["a"], table(), actor="ann@example")
    catalog.drop_table(["a"], "t", actor="bob")
    catalog.create_namespace(["b"])
    assert [row.actor for commit in catalog.log(3) for row in commit.rows] == ["", "bob", "ann@example"]
    assert ACTOR not in catalog._state().entries()
    assert catalog.verify().broken is None
    catalog.create_namespace(["c"], id_="one", actor="ann")
    catalog.create_namespace(["c"], id_="one", actor="bob")
    assert catalog.log(1)[0].rows[0].actor == "ann", "the same request is told the same, whoever sends it again"


def test_a_purge_that_fails_in_one_folder_goes_on_in_others(tmp_path: Path) -> None:
    with catalog_on(DirectoryStore(tmp_path, durability="os"), str(tmp_path)) as made:
        made.create_namespace(["a"])
        for name in ("t", "u"):
            made.create_table(["a"], table(name, location=f"{made.warehouse.url}/{name}"))
        for name in ("t", "u"):
            assert made.leader is not None
            changes = (Change(f"t/a//{name}", None), Change(f"l/{name}", None), Change(f"p/{name}", 1))
            made.leader.commit(f"~{name}", lambda state, made, changes=changes: Grant("purge table", changes))  # type: ignore[misc]
        (tmp_path / "warehouse" / "t").rename(tmp_path / "elsewhere")
        (tmp_path / "warehouse" / "t").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(LimpetError, match="link"):
            made.finish_purges()
        assert not (tmp_path / "warehouse" / "u").exists()
        assert [*(tmp_path / "elsewhere").rglob("*.json")], "nothing beyond the link is deleted"
