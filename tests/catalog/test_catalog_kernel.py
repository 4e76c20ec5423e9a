"""The catalog's kernel in memory: group commits, epochs, publications that come twice, the chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread

import msgspec
import pytest

from limpet.catalog import CatalogView, Compactor, Grant, Leader, NotLeader, PublicationRefused
from limpet.catalog.compactor import Unreachable
from limpet.catalog.history import find_commit, log, state_of, verify
from limpet.catalog.leader import Decide, Documents, add_batch
from limpet.catalog.records import Change, LedgerBatch, Row
from limpet.catalog.state import CatalogState
from limpet.catalog.storage import CatalogStorage
from limpet.events.ledger import Publication
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown
from limpet.kernel.lease import Lock, VersionWatch
from limpet.kernel.runtime import system
from limpet.kernel.store import MemoryStore
from support.catalog import Json


@pytest.fixture
def storage() -> CatalogStorage:
    return CatalogStorage(MemoryStore(system()), CatalogKeys.of("catalog"), system(), Json())


@contextmanager
def leading(storage: CatalogStorage) -> Iterator[Leader]:
    lock = Lock(storage.store, storage.keys.lock, "catalog", 10.0, system(), VersionWatch(system()))
    leader = Leader(storage, Compactor(storage).publish, lock)
    thread = Thread(target=leader.run)
    thread.start()
    try:
        yield leader
    finally:
        leader.stop()
        thread.join()


def create(name: str) -> Decide:
    def decide(state: CatalogState, made: Documents) -> Grant:
        if state.get(name) is not None:
            raise Invalid(f"{name} is there already")
        return Grant("create", (Change(name, {"of": name}),), {"made": name})

    return decide


def test_a_request_is_granted_once_and_told_the_same_again(storage: CatalogStorage) -> None:
    with leading(storage) as leader:
        assert leader.commit("1", create("a")) == {"made": "a"}
        assert leader.commit("1", create("a")) == {"made": "a"}
        with pytest.raises(Invalid, match="a is there already"):
            leader.commit("2", create("a"))
    loaded = CatalogView(storage).now()
    assert loaded is not None
    assert loaded.state.get("a") == {"of": "a"}
    assert loaded.head.version == 2, "the epoch, and one commit"


def test_one_leads_and_the_next_one_knows_what_was_told(storage: CatalogStorage) -> None:
    with leading(storage) as first:
        assert first.commit("1", create("a")) == {"made": "a"}
        with leading(storage) as second, pytest.raises(NotLeader):
            second.commit("2", create("b"))
    with leading(storage) as third:
        assert third.commit("1", create("a")) == {"made": "a"}
        assert third.commit("3", create("b")) == {"made": "b"}
    loaded = CatalogView(storage).now()
    assert loaded is not None
    assert loaded.head.token == 2


def test_many_clients_share_publications(storage: CatalogStorage) -> None:
    with leading(storage) as leader:
        clients = [Thread(target=leader.commit, args=(str(n), create(f"t{n}"))) for n in range(40)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    loaded = CatalogView(storage).now()
    assert loaded is not None
    assert {key for key, _ in loaded.state.under("t")} == {f"t{n}" for n in range(40)}
    assert loaded.head.version <= 41
    assert verify(storage, loaded.head).broken is None


def test_a_publication_that_comes_twice_has_one_answer_and_a_late_one_is_refused(storage: CatalogStorage) -> None:
    lock = Lock(storage.store, storage.keys.lock, "catalog", 10.0, system(), VersionWatch(system()))
    lease = lock.acquire()
    compactor = Compactor(storage)
    row = Row("1", "create", (Change("a", 1),))
    paths = [
        add_batch(storage, system().new_id(), LedgerBatch(domain="catalog", token=1, base_version=base, rows=rows))
        for base, rows in ((None, ()), (1, (row,)), (1, (row,)))
    ]
    with pytest.raises(PublicationRefused, match="no catalog here yet"):
        compactor.publish([paths[1]], 1)
    first = compactor.publish([paths[0]], 1)
    second = compactor.publish([paths[1]], 1)
    assert (first.version, second.version) == (1, 2)
    assert compactor.publish([paths[1]], 1) == second
    assert compactor.publish([paths[0]], 1) == first
    with pytest.raises(PublicationRefused, match="another version") as moved:
        compactor.publish([paths[2]], 1)
    assert not moved.value.stale
    for wrong in ([], ["ledger/catalog/../x.json"], ["ledger/other/" + "0" * 26 + ".json"], [paths[0], paths[0]]):
        with pytest.raises(Invalid):
            compactor.publish(wrong, 1)
    lease.release()
    newer = lock.acquire()
    epoch = add_batch(storage, system().new_id(), LedgerBatch(domain="catalog", token=newer.token, base_version=None))
    compactor.publish([epoch], newer.token)
    assert compactor.publish([paths[1]], 1) == second, "what was published stays told, whoever leads"


def test_the_past_is_reached_by_the_chain_and_a_changed_commit_shows(storage: CatalogStorage) -> None:
    with leading(storage) as leader:
        for n in range(30):
            leader.commit(str(n), create(f"t{n:02d}"))
    loaded = CatalogView(storage).now()
    assert loaded is not None
    head = loaded.head
    assert [commit.version for commit in log(storage, head)] == [*range(31, 0, -1)]
    for version in (1, 2, 7, 16, 30, 31):
        commit = find_commit(storage, head, lambda commit: commit.version <= version)  # noqa: B023
        assert commit.version == version
        assert [key for key, _ in state_of(storage, head, commit).under("t")] == [
            f"t{n:02d}" for n in range(version - 1)
        ]
    with pytest.raises(Missing):
        find_commit(storage, head, lambda commit: commit.version < 1)
    old = find_commit(storage, head, lambda commit: commit.version <= 9)
    key = storage.keys.commit(find_commit(storage, head, lambda commit: commit.version <= 10).links[0].id)
    storage.store.put(key, msgspec.json.encode(msgspec.structs.replace(old, at="2020")))
    assert "digest differs" in (verify(storage, head).broken or "")


def test_a_missing_snapshot_or_head_is_an_error_never_an_empty_catalog(
    storage: CatalogStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limpet.catalog.compactor.SNAPSHOT_EVERY", 3)
    with leading(storage) as leader:
        for n in range(8):
            leader.commit(str(n), create(f"t{n}"))
    view = CatalogView(storage)
    loaded = view.now()
    assert loaded is not None
    assert loaded.head.snapshot is not None
    assert len([*loaded.state.under("t")]) == 8
    storage.store.delete(storage.keys.snapshot(loaded.head.snapshot.id))
    with pytest.raises(Corrupt):
        CatalogView(storage).now()
    storage.store.delete(storage.keys.head)
    with pytest.raises(Corrupt):
        view.now()


def test_a_head_that_another_hand_changed_is_an_error_for_everybody(storage: CatalogStorage) -> None:
    with leading(storage) as leader:
        leader.commit("1", create("m1"))
    head = storage.store.get(storage.keys.head).data
    assert head.count(b'"m1"') >= 1
    storage.store.put(storage.keys.head, head.replace(b'"m1"', b'"m7"'))
    for read in (CatalogView(storage).now, storage.head().read):
        with pytest.raises(Corrupt, match="digest differs"):
            read()


def test_a_damaged_record_of_the_newest_commit_is_named(storage: CatalogStorage) -> None:
    with leading(storage) as leader:
        leader.commit("1", create("a"))
    loaded = CatalogView(storage).now()
    assert loaded is not None
    assert verify(storage, loaded.head).broken is None, "it need not be written yet"
    key = storage.keys.commit(loaded.head.links[0].id)
    storage.store.put(key, b"{}")
    assert key in (verify(storage, loaded.head).broken or "")
    lease = Lock(storage.store, storage.keys.lock, "catalog", 10.0, system(), VersionWatch(system())).acquire()
    batch = LedgerBatch(domain="catalog", token=lease.token, base_version=None)
    with pytest.raises(Corrupt, match="does not match the head"):
        Compactor(storage).publish([add_batch(storage, system().new_id(), batch)], lease.token)
    storage.store.delete(key)
    assert Compactor(storage).publish([add_batch(storage, system().new_id(), batch)], lease.token).version == 3


def test_a_compactor_that_was_told_nothing_published_nothing(
    storage: CatalogStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limpet.catalog.leader.PUBLISH_S", 0.05)
    compactor, away = Compactor(storage), list[LimpetError]()

    def publish(paths: Sequence[str], token: int) -> Publication:
        if away:
            raise away[0]
        return compactor.publish(paths, token)

    lock = Lock(storage.store, storage.keys.lock, "catalog", 10.0, system(), VersionWatch(system()))
    for error, told in ((Unreachable("nobody listens"), NotLeader), (OutcomeUnknown("no answer"), OutcomeUnknown)):
        leader = Leader(storage, publish, lock)
        leader.turn()
        assert leader.leads
        away[:] = [error]
        thread = Thread(target=leader.run)
        thread.start()
        with pytest.raises(told):
            leader.commit(str(error), create("a"))
        away[:] = []
        assert leader.commit(f"again {error}", create(str(error))) == {"made": str(error)}
        leader.stop()
        thread.join()
