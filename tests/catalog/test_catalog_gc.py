"""Garbage collection: the floor comes first, what history needs stays, and who was about to publish begins anew."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.catalog import CatalogView, Compactor
from limpet.catalog import compactor as compactor_module
from limpet.catalog.gc import Ledger, collect_ledger, delete_below, raise_floor
from limpet.catalog.history import find_commit, log, state_of, verify
from limpet.catalog.storage import CatalogStorage
from limpet.events import Event
from limpet.events import fold as executions_module
from limpet.events.fold import Executions, MergedFile, collect_events
from limpet.events.sink import EventBatch
from limpet.kernel import records
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Corrupt, Denied, Invalid, Missing
from limpet.kernel.keys import Key
from limpet.kernel.store import MemoryStore, MeteredStore, ScopedStore
from support.catalog import Leading
from support.clock import QueueRuntime, Time, steady
from support.queue import Crash, Network, crash

DAY = timedelta(days=1)
DAY_S = 86400.0
NONE = timedelta(0)


@pytest.fixture
def runtime() -> QueueRuntime:
    return QueueRuntime(Time(), "p1")


@pytest.fixture
def leading(runtime: QueueRuntime, monkeypatch: pytest.MonkeyPatch) -> Leading:
    """A catalog that makes a snapshot after every fourth commit."""
    monkeypatch.setattr(compactor_module, "SNAPSHOT_EVERY", 3)
    return Leading(runtime)


def ids_in(leading: Leading, prefix: str) -> list[str | None]:
    return [leading.storage.keys.id_of(stat.key) for stat in leading.store.list(prefix)]


# ---- the floor ----


def test_version_and_token_stay_when_the_floor_rises(leading: Leading, runtime: QueueRuntime) -> None:
    for n in range(20):
        leading.create(f"t{n}")
    runtime.sleep(DAY_S)
    before = leading.head
    floor = raise_floor(leading.storage, keep=NONE)
    after = leading.head
    assert floor == after.gc_floor > before.gc_floor == ""
    for name in before.__struct_fields__:
        if name != "gc_floor":
            assert getattr(after, name) == getattr(before, name)
    leading.create("more")
    assert leading.head.gc_floor == floor
    assert verify(leading.storage, leading.head).broken is None


def test_nothing_is_deleted_without_a_floor(leading: Leading, runtime: QueueRuntime) -> None:
    for n in range(20):
        leading.create(f"t{n}")
    runtime.sleep(DAY_S)
    assert delete_below(leading.storage, grace_s=0.0) == 0
    assert verify(leading.storage, leading.head).commits == leading.head.version


@pytest.mark.parametrize(("keep", "versions"), [(timedelta(days=-1), 1), (NONE, 0)])
def test_senseless_retention_is_refused(leading: Leading, keep: timedelta, versions: int) -> None:
    with pytest.raises(Invalid):
        raise_floor(leading.storage, keep=keep, keep_versions=versions)


def test_an_empty_place_has_nothing_to_collect(runtime: QueueRuntime) -> None:
    leading = Leading(runtime)
    empty = leading.elsewhere(MemoryStore(runtime), runtime)
    assert raise_floor(empty, keep=NONE) == ""
    assert delete_below(empty) == 0
    assert collect_ledger(empty) == Ledger()
    assert collect_events(Executions(empty.store, CatalogKeys.of("executions"), runtime)) == 0


def test_a_head_that_reaches_below_its_floor_stops_everything(leading: Leading, runtime: QueueRuntime) -> None:
    for n in range(9):
        leading.create(f"t{n}")
    leading.storage.head().update(lambda head: msgspec.structs.replace(head, gc_floor="7" + "z" * 25) if head else None)
    runtime.sleep(DAY_S)
    with pytest.raises(Corrupt, match="below its own floor"):
        delete_below(leading.storage, grace_s=0.0)
    assert len(ids_in(leading, leading.storage.keys.commits)) >= 9


# ---- what stays ----


@settings(steady, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from([1.0, 3600.0]), st.integers(0, 2), st.booleans()), min_size=1, max_size=30),
    st.integers(0, 12),
    st.integers(1, 12),
    st.booleans(),
)
def test_whatever_history_is_kept_can_be_told_exactly(
    acts: list[tuple[float, int, bool]], hours: int, versions: int, twice: bool
) -> None:
    """Every version within `keep` or `keep_versions` gives the state that it gave before; the chain is unbroken.

    Three compactors, two of them with a wrong clock, publish and make snapshots beforehand.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compactor_module, "SNAPSHOT_EVERY", 3)
        runtime = QueueRuntime(Time(), "p1")
        leading = Leading(runtime)
        crew = [leading.compactor, *(_skewed(leading, f"p{n}", offset_s) for n, offset_s in ((2, 5e3), (3, -5e3)))]
        for n, (pause_s, which, settle) in enumerate(acts):
            runtime.sleep(pause_s)
            leading.compactor = crew[which]
            leading.create(f"t{n}")
            if settle:
                leading.compactor.record()
        storage, head = leading.storage, leading.head
        before = {commit.version: state_of(storage, head, commit).entries() for commit in log(storage, head)}
        now = leading.store.now()
        keep = timedelta(hours=hours)
        needed = {v for v in before if v > head.version - versions}
        needed |= {c.version for c in log(storage, head) if datetime.fromisoformat(c.at) >= now - keep}
        for _ in range(1 + twice):
            raise_floor(storage, keep=keep, keep_versions=versions)
            delete_below(storage, grace_s=0.0)
        after = leading.head
        kept = {commit.version: commit for commit in log(storage, after)}
        assert needed <= kept.keys()
        for version in needed:
            assert state_of(storage, after, kept[version]).entries() == before[version]
        assert verify(storage, after).broken is None
        fresh = CatalogView(leading.elsewhere(leading.store, runtime)).now()
        assert fresh is not None
        assert fresh.state.entries() == before[head.version]


def _skewed(leading: Leading, owner: str, offset_s: float) -> Compactor:
    runtime = QueueRuntime(leading.runtime.time, owner)
    runtime.wall_offset_s = offset_s
    return Compactor(leading.elsewhere(runtime=runtime))


def test_the_state_at_any_moment_within_keep_can_be_told(leading: Leading, runtime: QueueRuntime) -> None:
    """Also at one before the first commit within it: that is the state which the last commit before it left."""
    leading.create("a")
    runtime.sleep(10 * DAY_S)
    moment = (leading.store.now() - 5 * DAY).isoformat()
    for n in range(12):
        leading.create(f"t{n}")
    raise_floor(leading.storage, keep=6 * DAY)
    delete_below(leading.storage, grace_s=0.0)
    commit = find_commit(leading.storage, leading.head, lambda each: each.at <= moment)
    assert state_of(leading.storage, leading.head, commit).get("a") == {"of": "a"}


def test_what_is_no_longer_kept_is_missing_and_not_corrupt(leading: Leading, runtime: QueueRuntime) -> None:
    for n in range(20):
        leading.create(f"t{n}")
    runtime.sleep(DAY_S)
    raise_floor(leading.storage, keep=NONE)
    gone = delete_below(leading.storage, grace_s=60.0)
    assert gone >= 15
    with pytest.raises(Missing, match="may have been collected"):
        find_commit(leading.storage, leading.head, lambda each: each.version <= 2)


def test_young_names_below_the_floor_have_their_grace(leading: Leading, runtime: QueueRuntime) -> None:
    for n in range(20):
        leading.create(f"t{n}")
    raise_floor(leading.storage, keep=NONE)
    assert delete_below(leading.storage, grace_s=3600.0) == 0
    runtime.sleep(3601.0)
    assert delete_below(leading.storage, grace_s=3600.0) > 0


def test_foreign_objects_and_table_data_stay(leading: Leading, runtime: QueueRuntime) -> None:
    mine = [Key("warehouse/a/00.parquet"), Key("commits/catalog/notes.txt"), Key("snapshots/catalog/0.parquet")]
    for key in mine:
        leading.store.put(key, b"mine")
    for n in range(20):
        leading.create(f"t{n}")
    runtime.sleep(DAY_S)
    raise_floor(leading.storage, keep=NONE)
    assert delete_below(leading.storage, grace_s=0.0) > 0
    collect_ledger(leading.storage, grace_s=0.0)
    assert [leading.store.get(key).data for key in mine] == [b"mine"] * 3


# ---- counterexamples 10 and 11 ----


@pytest.mark.parametrize("before", ["catalog.json", ".parquet"])
def test_a_publication_that_meets_the_floor_begins_anew(
    runtime: QueueRuntime, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Counterexample 10: a snapshot is written; GC swaps the floor and deletes; the swap is lost, and tried again."""
    monkeypatch.setattr(compactor_module, "SNAPSHOT_EVERY", 3)
    bucket = MemoryStore(runtime)
    network = Network(runtime, bucket)
    leading = Leading(runtime, network)
    other = leading.elsewhere(bucket, QueueRuntime(runtime.time, "p2"))
    for n in range(10):
        leading.create(f"t{n}")
    assert len(leading.head.tail) == 3, "the next commit makes a snapshot"

    def collect() -> None:
        runtime.sleep(DAY_S)
        raise_floor(other, keep=NONE)
        delete_below(other, grace_s=0.0)

    network.before("put", before, collect)
    leading.create("last")
    head = leading.head
    assert head.gc_floor
    assert head.snapshot is not None
    assert min(head.snapshot.id, head.links[0].id) >= head.gc_floor
    delete_below(other, grace_s=0.0)
    loaded = CatalogView(other).now()
    assert loaded is not None
    assert len(loaded.state.entries()) == 11
    assert verify(other, head).broken is None


def test_a_slow_reader_looks_again(leading: Leading, runtime: QueueRuntime) -> None:
    """Counterexample 11: its head names a snapshot that goes before it is read."""
    for n in range(12):
        leading.create(f"t{n}")
    network = Network(runtime, leading.store)
    slow = CatalogView(leading.elsewhere(network, runtime))

    def collect() -> None:
        for n in range(12):
            leading.create(f"u{n}")
        runtime.sleep(DAY_S)
        raise_floor(leading.storage, keep=NONE)
        delete_below(leading.storage, grace_s=0.0)

    network.before("get", ".parquet", collect)
    loaded = slow.now()
    assert loaded is not None
    assert len(loaded.state.entries()) == 24


def test_two_collectors_at_a_time(runtime: QueueRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor_module, "SNAPSHOT_EVERY", 3)
    bucket = MemoryStore(runtime)
    leading = Leading(runtime, bucket)
    for n in range(30):
        leading.create(f"t{n}")
    runtime.sleep(DAY_S)
    network = Network(runtime, bucket)
    mine = leading.elsewhere(network, QueueRuntime(runtime.time, "p2"))

    def collect() -> None:
        raise_floor(leading.storage, keep=NONE)
        delete_below(leading.storage, grace_s=0.0)

    commits = leading.storage.keys.commits
    network.before("get", f"{commits}/{ids_in(leading, commits)[7]}.json", collect)
    raise_floor(mine, keep=timedelta(hours=1), keep_versions=25)
    delete_below(mine, grace_s=0.0)
    assert verify(mine, leading.head).broken is None


@pytest.mark.parametrize("verb", ["put", "delete"])
def test_a_collector_that_dies_is_followed_by_another(
    runtime: QueueRuntime, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(compactor_module, "SNAPSHOT_EVERY", 3)
    bucket = MemoryStore(runtime)
    leading = Leading(runtime, bucket)
    for n in range(20):
        leading.create(f"t{n}")
    runtime.sleep(DAY_S)
    network = Network(runtime, bucket)
    mine = leading.elsewhere(network, runtime)
    network.before(verb, ".json", crash)

    def collect() -> int:
        raise_floor(mine, keep=NONE)
        return delete_below(mine, grace_s=0.0)

    with pytest.raises(Crash):
        collect()
    leading.create("x")
    assert collect() > 0
    assert verify(mine, leading.head).broken is None


# ---- roles and cost ----


def test_each_role_does_its_part_and_no_other(leading: Leading, runtime: QueueRuntime) -> None:
    for n in range(20):
        leading.create(f"t{n}")
    left = leading.add(1, "dead")
    runtime.sleep(DAY_S)

    def role(name: str) -> CatalogStorage:
        scoped = ScopedStore(leading.store, role=name, runtime=runtime)
        return leading.elsewhere(scoped, runtime)

    with pytest.raises(Denied):
        raise_floor(role("api"), keep=NONE)
    with pytest.raises(Denied):
        collect_ledger(role("compactor"))
    old = leading.add(1, "dead, too")
    assert collect_ledger(role("api")) == Ledger(applied=leading.head.version, dead=1)
    assert raise_floor(role("compactor"), keep=NONE)
    with pytest.raises(Denied):
        delete_below(role("api"), grace_s=0.0)
    assert delete_below(role("compactor"), grace_s=0.0) > 0
    runtime.sleep(DAY_S)
    assert collect_ledger(role("api")) == Ledger(past=1)
    with pytest.raises(Missing):
        leading.store.get(old)
    assert [*leading.store.list(leading.storage.keys.ledger)] == []
    with pytest.raises(Missing):
        leading.store.get(left)
    leading.create("more")


def test_a_batch_that_may_be_published_yet_stays(leading: Leading, runtime: QueueRuntime) -> None:
    path = leading.add(leading.head.version, "b")
    runtime.sleep(DAY_S)
    assert collect_ledger(leading.storage) == Ledger(applied=1)
    leading.publish(path)
    assert collect_ledger(leading.storage) == Ledger(applied=1)


def test_a_request_for_a_batch_that_is_gone_is_still_answered_from_the_head(
    leading: Leading, runtime: QueueRuntime
) -> None:
    path = leading.add(leading.head.version, "a")
    answer = leading.publish(path)
    runtime.sleep(DAY_S)
    collect_ledger(leading.storage)
    assert Compactor(leading.storage).publish([path], leading.lease.token) == answer


def test_cost(runtime: QueueRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor_module, "SNAPSHOT_EVERY", 7)
    meter = MeteredStore(MemoryStore(runtime), runtime=runtime)
    leading = Leading(runtime, meter)
    for n in range(200):
        leading.create(f"t{n}")
    leading.compactor.record()
    runtime.sleep(DAY_S)
    meter.now(max_age_s=1.0)
    with meter.measure() as cost:
        raise_floor(leading.storage, keep=NONE, keep_versions=150)
    assert cost.requests["put"] == 1
    assert cost.requests["get"] <= 2 + 40
    with meter.measure() as cost:
        gone = delete_below(leading.storage)
    assert gone > 40
    assert cost.requests == {"get": 1, "list": 2, "delete": gone}
    with meter.measure() as cost:
        raise_floor(leading.storage, keep=NONE, keep_versions=150)
        delete_below(leading.storage)
    assert "put" not in cost.requests
    assert "delete" not in cost.requests


# ---- executions ----


class Folding:
    """A ledger of events, folded one by one."""

    def __init__(self, runtime: QueueRuntime) -> None:
        self.keys = CatalogKeys.of("executions")
        self.runtime = runtime
        self.bucket = MemoryStore(runtime)
        self.network = Network(runtime, self.bucket)
        self.executions = Executions(self.network, self.keys, runtime)
        self.ids: list[str] = []

    def add(self) -> Key:
        event = Event(self.runtime.new_id(), "task run", self.runtime.wall().isoformat(), {})
        self.ids.append(event.id)
        key = self.keys.batch(self.runtime.new_id())
        batch = EventBatch(domain="executions", source="", position=None, events=(event,))
        self.bucket.put(key, records.encode(batch))
        return key

    def fold(self, count: int = 1) -> None:
        for _ in range(count):
            self.executions.publish([self.add()])

    def collect(self, grace_s: float = 0.0) -> int:
        other = Executions(self.bucket, self.keys, QueueRuntime(self.runtime.time, "p2"))
        return collect_events(other, grace_s=grace_s)

    def is_whole(self) -> bool:
        """Whether a reader sees every event once, and nothing else."""
        return sorted(event.id for event, _ in self.executions.scan()) == sorted(self.ids)


def test_merged_files_go_after_their_grace(runtime: QueueRuntime) -> None:
    folding = Folding(runtime)
    folding.fold(20)
    runtime.sleep(2 * DAY_S)
    folding.fold(4)
    listed = len([*folding.bucket.list(folding.keys.states)])
    young = len(
        [gone for gone in folding.executions.head().gone if gone.at >= (folding.bucket.now() - DAY).isoformat()]
    )
    assert young > 0
    assert folding.collect(DAY_S) == listed - young - len(folding.executions.head().files)
    assert folding.is_whole()
    runtime.sleep(2 * DAY_S)
    assert folding.collect(DAY_S) == young
    assert len([*folding.bucket.list(folding.keys.states)]) == len(folding.executions.head().files)
    assert folding.executions.head().gone == ()
    assert folding.collect(DAY_S) == 0
    folding.fold(5)
    assert folding.is_whole()


@pytest.mark.parametrize("ending", ["executions.json", ".parquet"])
def test_a_fold_that_meets_the_collector_begins_anew(runtime: QueueRuntime, ending: str) -> None:
    folding = Folding(runtime)
    folding.fold(7)
    path = folding.add()
    runtime.sleep(1.0)

    def collect() -> None:
        runtime.sleep(1.0)
        folding.collect()
        folding.collect()

    folding.network.before("put", ending, collect)
    folding.executions.publish([path])
    folding.collect()
    assert folding.is_whole()


def test_a_fold_that_reads_a_file_that_goes_looks_again(runtime: QueueRuntime) -> None:
    folding = Folding(runtime)
    folding.fold(1)
    path = folding.add()

    def collect() -> None:
        Executions(folding.bucket, folding.keys, QueueRuntime(runtime.time, "p3")).publish([folding.add()])
        runtime.sleep(1.0)
        folding.collect()

    folding.network.before("get", ".parquet", collect)
    folding.executions.publish([path])
    assert folding.is_whole()


def test_a_file_that_is_named_after_it_was_listed_stays(runtime: QueueRuntime) -> None:
    folding = Folding(runtime)
    folding.fold(3)
    executions, path = folding.executions, folding.add()
    cell = executions.cell()
    seen = cell.read()
    assert seen is not None
    about = executions._build(seen.value, executions._read({path: folding.bucket.get(path)}))
    runtime.sleep(1.0)
    network = Network(runtime, folding.bucket)
    network.before("put", "executions.json", lambda: cell.swap(seen, about))
    collect_events(Executions(network, folding.keys, runtime), grace_s=0.0)
    assert folding.is_whole()


def test_a_file_that_no_head_ever_named_goes(runtime: QueueRuntime) -> None:
    folding = Folding(runtime)
    folding.fold(3)
    path = folding.add()
    folding.network.before("put", "executions.json", crash)
    with pytest.raises(Crash):
        folding.executions.publish([path])
    runtime.sleep(DAY_S)
    files = len(folding.executions.head().files)
    assert folding.collect(3600.0) > 0
    assert len([*folding.bucket.list(folding.keys.states)]) == files
    folding.executions.publish([path])
    assert folding.is_whole()


def test_the_list_of_merged_files_is_bounded(runtime: QueueRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executions_module, "GONE_MAX", 3)
    folding = Folding(runtime)
    folding.fold(20)
    gone = folding.executions.head().gone
    assert len(gone) == 3
    assert all(isinstance(each, MergedFile) for each in gone)
    runtime.sleep(DAY_S)
    folding.collect(60.0)
    assert len([*folding.bucket.list(folding.keys.states)]) == len(folding.executions.head().files)
    assert folding.is_whole()


def test_a_head_that_is_lost_is_an_error_and_nothing_goes(leading: Leading) -> None:
    for n in range(8):
        leading.create(f"t{n}")
    kept = ids_in(leading, leading.storage.keys.commits)
    leading.store.delete(leading.storage.keys.head)
    for collect in (lambda: raise_floor(leading.storage, keep=NONE), lambda: delete_below(leading.storage)):
        with pytest.raises(Corrupt, match="is missing, and there are commits"):
            collect()
    with pytest.raises(Corrupt, match="is missing, and there are commits"):
        CatalogView(leading.storage).now()
    assert ids_in(leading, leading.storage.keys.commits) == kept
