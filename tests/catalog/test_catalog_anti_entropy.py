"""Anti-entropy: events are handed over by name and once; of Tier-1 batches only the dead are called dead."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.catalog.gc import BatchOutcome, ClassifiedBatch, classify_ledger, was_met, will_never_be
from limpet.catalog.heads import Go, classify
from limpet.catalog.leader import add_batch
from limpet.catalog.records import CatalogHead, CommitRecord, LedgerBatch
from limpet.catalog.storage import CatalogStorage
from limpet.events import Event
from limpet.events import fold as module
from limpet.events.fold import Executions, HandoverReport, hand_over
from limpet.events.ledger import Publication
from limpet.events.sink import EventBatch
from limpet.kernel import records
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.store import MemoryStore, MeteredStore, ScopedStore
from support.catalog import Leading
from support.clock import QueueRuntime, Time, steady

KEYS = CatalogKeys.of("executions")
LATER_S = 100.0
GRACE_S = 60.0


@pytest.fixture
def runtime() -> QueueRuntime:
    return QueueRuntime(Time(), "p1")


# ---- executions ----


def events_in(store: MemoryStore, runtime: QueueRuntime, count: int) -> list[Key]:
    keys = []
    for _ in range(count):
        event = Event(runtime.new_id(), "task run", runtime.wall().isoformat(), {})
        batch = EventBatch(domain="executions", source="s", position=None, events=(event,))
        keys.append(KEYS.batch(runtime.new_id()))
        store.put(keys[-1], records.encode(batch))
    return keys


def test_what_waits_is_folded_and_removed_with_the_rights_of_each(runtime: QueueRuntime) -> None:
    store = MemoryStore(runtime)
    events_in(store, runtime, 150)
    api = ScopedStore(store, role="api", runtime=runtime)
    compactor = Executions(ScopedStore(store, role="compactor", runtime=runtime), KEYS, runtime)
    sizes: list[int] = []

    def publish(paths: Sequence[str], token: int) -> Publication:
        sizes.append(len(paths))
        return compactor.publish(paths, token)

    assert hand_over(api, KEYS, publish) == HandoverReport(150, 0)
    assert sizes == [64, 64, 22]
    assert [*store.list(KEYS.ledger)] == []
    assert compactor.head().events == 150
    assert hand_over(api, KEYS, publish) == HandoverReport(0, 0)


def test_a_call_is_bounded_in_paths_and_in_bytes(runtime: QueueRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(runtime)
    first, *_ = events_in(store, runtime, 10)
    monkeypatch.setattr(module, "HANDED_BYTES_MAX", 3 * store.head(first).size)
    sizes: list[int] = []
    folded = Executions(store, KEYS, runtime)

    def publish(paths: Sequence[str], token: int) -> Publication:
        sizes.append(len(paths))
        return folded.publish(paths, token)

    assert hand_over(store, KEYS, publish, most=8) == HandoverReport(8, 0)
    assert sizes == [3, 3, 2]
    assert len([*store.list(KEYS.ledger)]) == 2


def test_nothing_goes_before_it_is_folded(runtime: QueueRuntime) -> None:
    store = MemoryStore(runtime)
    keys = events_in(store, runtime, 3)

    def away(paths: Sequence[str], token: int) -> Publication:
        raise Unavailable("the compactor restarts")

    with pytest.raises(Unavailable):
        hand_over(store, KEYS, away)
    assert [stat.key for stat in store.list(KEYS.ledger)] == sorted(keys)


def test_a_pass_that_died_before_it_removed_them_is_done_again(runtime: QueueRuntime) -> None:
    store = MemoryStore(runtime)
    keys = events_in(store, runtime, 3)
    folded = Executions(store, KEYS, runtime)
    folded.publish(keys)
    assert hand_over(store, KEYS, folded.publish) == HandoverReport(3, 0)
    assert (folded.head().events, folded.head().version) == (3, 1)


def test_what_is_no_batch_is_left_alone(runtime: QueueRuntime) -> None:
    store = MemoryStore(runtime)
    store.put(Key(f"{KEYS.ledger}/notes.txt"), b"mine")
    assert hand_over(store, KEYS, Executions(store, KEYS, runtime).publish) == HandoverReport(0, 1)
    assert store.get(Key(f"{KEYS.ledger}/notes.txt")).data == b"mine"


def test_a_batch_too_large_for_memory_is_left_alone(runtime: QueueRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(runtime)
    keys = events_in(store, runtime, 3)
    monkeypatch.setattr(module, "OBJECT_BYTES_MAX", 1 << 20)
    store.put(keys[1], b"x" * ((1 << 20) + 1))
    assert hand_over(store, KEYS, Executions(store, KEYS, runtime).publish) == HandoverReport(2, 1)
    assert [stat.key for stat in store.list(KEYS.ledger)] == [keys[1]]


# ---- catalog: pure ----

tokens = st.integers(1, 4)
versions = st.integers(1, 5)


def head_of(version: int, token: int) -> CatalogHead:
    return CatalogHead(version=version, token=token, at="", links=(), snapshot=None, tail=(), applied=(), last_id="")


def commit_of(version: int, token: int) -> CommitRecord:
    return CommitRecord(
        domain="catalog", id="", version=version, token=token, at="", paths=(), rows=(), links=(), snapshot=None
    )


@given(tokens, st.none() | versions, versions, tokens, versions, tokens)
def test_what_will_never_be_is_refused_by_this_head_and_every_later_one(
    token: int, base: int | None, version: int, led: int, more: int, since: int
) -> None:
    batch = LedgerBatch(domain="catalog", token=token, base_version=base)
    if will_never_be(batch, head_of(version, led)):
        assert not isinstance(classify(head_of(version, led), [batch], token), Go)
        assert not isinstance(classify(head_of(version + more, led + since - 1), [batch], token), Go)


@given(tokens, versions, versions)
def test_a_batch_is_met_at_the_only_version_that_could_publish_it(token: int, base: int, version: int) -> None:
    batch = LedgerBatch(domain="catalog", token=token, base_version=base)
    assert was_met(batch, commit_of(version, token)) == (version <= base + 1)
    epoch = LedgerBatch(domain="catalog", token=token, base_version=None)
    assert not was_met(epoch, commit_of(version + 1, token))
    assert was_met(epoch, commit_of(version, token - 1))


# ---- catalog: the ledger ----


def fates(leading: Leading) -> dict[str, BatchOutcome]:
    return {each.path: each.fate for each in classify_ledger(leading.storage, grace_s=GRACE_S)}


def test_each_batch_has_the_fate_that_the_chain_tells(runtime: QueueRuntime) -> None:
    leading = Leading(runtime)
    leading.create("a")
    dead_base = leading.add(leading.head.version, "b")
    leading.create("c")
    dead_term = leading.add(leading.head.version, "d")
    leading.take_over()
    leading.create("e")
    waiting = leading.add(leading.head.version, "f")
    dead_epoch = leading.add(None)
    strange = KEYS.batch("0").replace("executions", "catalog")
    leading.store.put(Key(strange), b"")
    malformed = leading.storage.keys.batch(runtime.new_id())
    leading.store.put(malformed, b"{")
    assert fates(leading) == {}, "all are young"
    runtime.sleep(LATER_S)
    found = fates(leading)
    assert {path: fate for path, fate in found.items() if fate is not BatchOutcome.APPLIED} == {
        dead_base: BatchOutcome.DEAD,
        dead_term: BatchOutcome.DEAD,
        dead_epoch: BatchOutcome.DEAD,
        waiting: BatchOutcome.OPEN,
        strange: BatchOutcome.STRAY,
        malformed: BatchOutcome.MALFORMED,
    }
    assert sum(fate is BatchOutcome.APPLIED for fate in found.values()) == leading.head.version
    assert {each.path for each in dead(leading.storage)} == {dead_base, dead_term, dead_epoch}


def dead(storage: CatalogStorage) -> list[ClassifiedBatch]:
    return [each for each in classify_ledger(storage, grace_s=GRACE_S) if each.fate is BatchOutcome.DEAD]


def test_a_dead_batch_is_told_with_who_wrote_it_on_what(runtime: QueueRuntime) -> None:
    leading = Leading(runtime)
    path = leading.add(leading.head.version, "b")
    leading.create("c")
    runtime.sleep(LATER_S)
    [found] = dead(leading.storage)
    assert isinstance(found, ClassifiedBatch)
    assert found.path == path
    assert found.batch is not None
    assert (found.batch.token, found.batch.base_version) == (1, 1)


def test_what_may_be_published_yet_is_not_dead_and_can_be(runtime: QueueRuntime) -> None:
    leading = Leading(runtime)
    path = leading.add(leading.head.version, "b")
    runtime.sleep(LATER_S)
    assert fates(leading)[path] is BatchOutcome.OPEN
    leading.publish(path)
    assert fates(leading)[path] is BatchOutcome.APPLIED


def test_without_a_head_everything_is_open(runtime: QueueRuntime) -> None:
    leading = Leading(runtime)
    leading.store.delete(leading.storage.keys.head)
    runtime.sleep(LATER_S)
    assert {*fates(leading).values()} == {BatchOutcome.OPEN}


def test_a_batch_from_a_slow_clock_is_found_all_the_same(runtime: QueueRuntime) -> None:
    """Its name lies below that of every commit."""
    leading = Leading(runtime)
    for name in "abc":
        leading.create(name)
    slow = QueueRuntime(runtime.time, "p0")
    slow.wall_offset_s = -86400.0
    batch = LedgerBatch(domain="catalog", token=1, base_version=leading.head.version)
    path = add_batch(leading.storage, slow.new_id(), batch)
    leading.publish(path)
    other = add_batch(leading.storage, slow.new_id(), batch)
    for name in "def":
        leading.create(name)
    runtime.sleep(LATER_S)
    found = fates(leading)
    assert (found[path], found[other]) == (BatchOutcome.APPLIED, BatchOutcome.DEAD)


def test_cost(runtime: QueueRuntime) -> None:
    bucket = MemoryStore(runtime)
    meter = MeteredStore(bucket, runtime=runtime)
    leading = Leading(runtime, meter)
    for n in range(20):
        leading.create(f"t{n}")
    leading.compactor.record()
    leading.add(1, "dead")
    runtime.sleep(LATER_S)
    meter.now(max_age_s=1.0)
    with meter.measure() as cost:
        classify_ledger(leading.elsewhere(), grace_s=GRACE_S)
    assert cost.requests["list"] == 1
    assert cost.requests["get"] <= 1 + 21 + 1, "the head, each commit, and the one batch that none of them names"
    assert cost.requests.keys() == {"list", "get"}


@steady
@given(st.lists(st.sampled_from(["create", "leave", "take over"]), max_size=12))
def test_any_history(acts: list[str]) -> None:
    runtime = QueueRuntime(Time(), "p1")
    leading = Leading(runtime)
    applied, left = {leading.head.applied[0].path}, set()
    for act in acts:
        if act == "create":
            leading.create(runtime.new_id())
        elif act == "leave":
            left.add(leading.add(leading.head.version, "x"))
        else:
            leading.take_over()
        applied.add(leading.head.applied[-1].path)
    runtime.sleep(LATER_S)
    found = fates(leading)
    assert {path for path, fate in found.items() if fate is BatchOutcome.APPLIED} == applied
    assert {path for path, fate in found.items() if fate in (BatchOutcome.DEAD, BatchOutcome.OPEN)} == left
    for path, fate in found.items():
        if fate is BatchOutcome.OPEN:
            batch = leading.storage.batch(path)
            assert isinstance(classify(leading.head, [batch], batch.token), Go)
