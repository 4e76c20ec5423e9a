"""Folding events: each once, whatever is handed over twice, crashes, or comes from two compactors at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.events import Event
from limpet.events import fold as module
from limpet.events import tail as tail_module
from limpet.events.fold import EventHead, Executions, StateFile, is_late, read_batch, to_merge
from limpet.events.quarantine import isolate, quarantined, reason_of, retry
from limpet.events.sink import EventBatch
from limpet.events.tail import EventFilter, EventTail, SeenIds
from limpet.kernel import records
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Corrupt, Denied, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.runtime import ulid
from limpet.kernel.store import MemoryStore, MeteredStore, ScopedStore, Store
from support.clock import QueueRuntime, Time
from support.costs import requests
from support.queue import Crash, Network, crash
from support.stores import Fault, lost_reply, lost_request, unavailable

KEYS = CatalogKeys.of("executions")
AT = "2026-03-01T00:20:00.000+00:00"


class Ledger:
    """A ledger that the test writes, and a compactor of its own network."""

    def __init__(self) -> None:
        self.time = Time()
        self.runtime = QueueRuntime(self.time, "p1")
        self.bucket = MemoryStore(self.runtime)
        self.network = Network(self.runtime, self.bucket)
        self.executions = Executions(self.network, KEYS, self.runtime)

    def event(self, at: str = AT, **fields: object) -> Event:
        return Event(self.runtime.new_id(), "task run", at, dict(fields))

    def add(self, *events: Event, position: int | None = None) -> Key:
        batch = EventBatch(domain="executions", source="test", position=position, events=events)
        return self.put(records.encode(batch))

    def put(self, data: bytes) -> Key:
        key = KEYS.batch(self.runtime.new_id())
        self.bucket.put(key, data)
        return key

    def kept(self) -> list[str]:
        """The ids that a reader sees, in order; none may be there twice."""
        return sorted(event.id for event, _ in Executions(self.bucket, KEYS, self.runtime).scan())


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


# ---- folding ----


def test_events_are_folded_with_their_positions_and_come_back(ledger: Ledger) -> None:
    events = [ledger.event(n=n, text="\x1f ü") for n in range(5)]
    path, other = ledger.add(*events[:3], position=7), ledger.add(*events[3:])
    assert ledger.executions.publish([path, other]).version == 1
    found = {event.id: (event, position) for event, position in ledger.executions.scan()}
    assert found == {event.id: (event, position) for event, position in zip(events, [7, 8, 9, None, None], strict=True)}


def test_the_same_request_gets_the_same_answer(ledger: Ledger) -> None:
    first = ledger.add(ledger.event())
    answer = ledger.executions.publish([first])
    ledger.executions.publish([ledger.add(ledger.event())])
    assert ledger.executions.publish([first]) == answer
    assert len(ledger.kept()) == 2


def test_a_batch_that_was_removed_is_folded_already(ledger: Ledger) -> None:
    path = ledger.add(ledger.event())
    ledger.executions.publish([path])
    ledger.bucket.delete(path)
    for _ in range(module.APPLIED_MAX):
        ledger.executions.publish([ledger.add(ledger.event())])
    assert path not in [each.path for each in ledger.executions.head().applied]
    before = ledger.executions.head()
    assert ledger.executions.publish([path]).version == before.version
    assert ledger.executions.head() == before


def test_an_event_that_comes_twice_is_kept_once(ledger: Ledger) -> None:
    event, other = ledger.event(), ledger.event()
    ledger.executions.publish([ledger.add(event, event)])
    ledger.executions.publish([ledger.add(other), ledger.add(event)])
    ledger.executions.publish([ledger.add(event, other)])
    head = ledger.executions.head()
    assert ledger.kept() == sorted([event.id, other.id])
    assert (head.events, head.duplicates) == (2, 4)


def test_an_event_that_lies_in_a_large_file_is_known_too(ledger: Ledger) -> None:
    events = [ledger.event() for _ in range(9)]
    ledger.executions.publish([ledger.add(*events)])
    ledger.executions.publish([ledger.add(events[4])])
    assert len(ledger.executions.head().files) == 1
    assert ledger.kept() == sorted(event.id for event in events)


@pytest.mark.parametrize(
    "paths", [[], ["ledger/catalog/x.json"], ["ledger/executions/../x.json"], ["ledger/executions/x.json"]]
)
def test_other_paths_are_refused(ledger: Ledger, paths: list[str]) -> None:
    with pytest.raises(Invalid):
        ledger.executions.publish(paths)
    path = ledger.add(ledger.event())
    with pytest.raises(Invalid):
        ledger.executions.publish([path, path])
    assert ledger.executions.head() == EventHead()


def test_late_events_are_counted_and_kept(ledger: Ledger) -> None:
    ledger.time.sleep(3 * 3600)
    ledger.executions.publish([ledger.add(ledger.event(at=ledger.runtime.wall().isoformat()))])
    ledger.executions.publish([ledger.add(ledger.event(at=AT), ledger.event(at=ledger.runtime.wall().isoformat()))])
    assert ledger.executions.head().late == 1
    assert len(ledger.kept()) == 3


def test_lateness_goes_by_the_time_of_the_store() -> None:
    event = Event("", "task run", "2026-03-01T12:00:00+02:00", {})
    assert not is_late(event, "")
    assert not is_late(event, "2026-03-01T11:00:00+00:00")
    assert is_late(event, "2026-03-01T11:00:01+00:00")


# ---- quarantine ----

GOOD = EventBatch(domain="executions", source="s", position=None, events=(Event(ulid(1, 1), "task run", AT, {}),))
BAD = {
    "no JSON": b"{",
    "not UTF-8": b'{"source": "\xff"}',
    "another domain": records.encode(EventBatch(domain="catalog", source="", position=None, events=())),
    "a position below zero": records.encode(EventBatch(domain="executions", source="", position=-1, events=())),
    "a time without a zone": records.encode(GOOD).replace(b"+00:00", b""),
    "no time": records.encode(GOOD).replace(AT.encode(), b"yesterday"),
    "an id that is none": records.encode(GOOD).replace(ulid(1, 1).encode(), b"x" * 26),
    "fields that are none": records.encode(GOOD).replace(b"{}", b"[]"),
    "nested too deeply": b"[" * 100_000,
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_what_cannot_be_read_goes_to_quarantine_and_the_rest_goes_on(ledger: Ledger, data: bytes) -> None:
    bad, good = ledger.put(data), ledger.add(ledger.event())
    ledger.executions.publish([bad, good])
    assert len(ledger.kept()) == 1
    [reason] = quarantined(ledger.bucket, KEYS)
    assert (reason.path, reason.size) == (bad, len(data))
    assert reason.reason
    assert reason_of(ledger.bucket, KEYS, reason.id) == reason
    assert ledger.bucket.get(KEYS.quarantined(reason.id)).data == data
    assert ledger.executions.head().quarantined == 1
    with pytest.raises(Invalid, match="still cannot be read"):
        retry(ledger.bucket, KEYS, reason.id, ledger.executions.fold)
    assert [*quarantined(ledger.bucket, KEYS)] == [reason]


def test_a_good_batch_can_be_read() -> None:
    assert read_batch(records.encode(GOOD), "executions") == GOOD
    with pytest.raises(Invalid, match="bytes"):
        read_batch(b" " * (64 << 20) + b"{}", "executions")


def test_what_can_be_read_after_all_leaves_quarantine(ledger: Ledger) -> None:
    """As after an upgrade: here it was isolated by a compactor that knew less."""
    path = ledger.add(ledger.event(), ledger.event())
    id_ = KEYS.batch_id(path)
    assert id_ is not None
    isolate(ledger.bucket, KEYS, id_, ledger.bucket.get(path), "unknown schema")
    ledger.bucket.delete(path)
    assert retry(ledger.bucket, KEYS, id_, ledger.executions.fold) == 2
    assert [*quarantined(ledger.bucket, KEYS)] == []
    assert len(ledger.kept()) == 2
    with pytest.raises(Missing):
        retry(ledger.bucket, KEYS, id_, ledger.executions.fold)


def test_a_retry_that_died_before_its_end_can_be_done_again(ledger: Ledger) -> None:
    path = ledger.add(ledger.event())
    id_ = str(KEYS.batch_id(path))
    isolate(ledger.bucket, KEYS, id_, ledger.bucket.get(path), "unknown schema")
    ledger.network.before("delete", ".json", crash)
    with pytest.raises(Crash):
        retry(ledger.network, KEYS, id_, ledger.executions.fold)
    assert retry(ledger.network, KEYS, id_, ledger.executions.fold) == 0
    assert len(ledger.kept()) == 1


# ---- files ----


@given(st.lists(st.integers(1, 40), max_size=60))
def test_the_number_of_files_stays_logarithmic(rows: list[int]) -> None:
    full, files = 100, [StateFile("", "", 0, 0, "", "")][:0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_MAX", full)
        for count in rows:
            kept = len(files) - to_merge(files, count)
            total = sum(file.rows for file in files[kept:]) + count
            parts = [min(full, total - at) for at in range(0, total, full)]
            files = files[:kept] + [StateFile("", "", 0, part, "", "") for part in parts]
    total = sum(rows)
    assert sum(file.rows for file in files) == total
    assert len(files) <= total // full + math.log2(full) + 1


def test_files_are_merged_and_what_is_read_is_the_same(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_MAX", 16)
    ids: list[str] = []
    for n in range(30):
        events = [ledger.event() for _ in range(1 + n % 3)]
        ids += [event.id for event in events]
        ledger.executions.publish([ledger.add(*events)])
        assert ledger.kept() == sorted(ids)
    head = ledger.executions.head()
    assert len(head.files) <= len(ids) // 16 + 5
    assert sum(file.rows for file in head.files) == head.events == len(ids)
    assert {*(gone.id for gone in head.gone)}.isdisjoint(file.id for file in head.files)


def test_damage_to_a_file_is_corrupt_and_never_empty(ledger: Ledger) -> None:
    ledger.executions.publish([ledger.add(ledger.event())])
    [file] = ledger.executions.head().files
    ledger.bucket.put(KEYS.state(file.id), b"x")
    with pytest.raises(Corrupt, match="digest"):
        ledger.kept()
    ledger.bucket.delete(KEYS.state(file.id))
    with pytest.raises(Corrupt, match="missing"):
        ledger.kept()


def test_a_lost_head_is_not_taken_for_one_that_never_was(ledger: Ledger) -> None:
    ledger.executions.publish([ledger.add(ledger.event())])
    ledger.bucket.delete(KEYS.head)
    with pytest.raises(Corrupt, match="there are files"):
        ledger.executions.publish([ledger.add(ledger.event())])


# ---- crashes, faults, races ----


@pytest.mark.parametrize("step", range(12))
def test_a_crash_anywhere_loses_nothing_and_doubles_nothing(step: int) -> None:
    ledger = Ledger()
    first, second = ledger.event(), ledger.event()
    paths = [ledger.add(first), ledger.put(b"{")]
    more = ledger.add(second)
    requests = 0

    def die() -> None:
        nonlocal requests
        if requests == step:
            crash()
        requests += 1

    ledger.network.log = _Alarm(die)
    died = False
    for each in (paths, [more]):
        try:
            ledger.executions.publish(each)
        except Crash:
            died = True
            break
    ledger.network.log = []
    ledger.executions.publish(paths)
    ledger.executions.publish([more])
    assert ledger.kept() == sorted([first.id, second.id])
    assert len([*quarantined(ledger.bucket, KEYS)]) == 1
    assert died or step >= requests


class _Alarm(list[str]):
    """A log that rings before each request is noted."""

    def __init__(self, ring: Callable[[], None]) -> None:
        super().__init__()
        self._ring = ring

    def append(self, line: str) -> None:
        self._ring()


@pytest.mark.parametrize("fault", [lost_reply, lost_request, unavailable])
@pytest.mark.parametrize("nth", range(4))
def test_faults_of_the_network(fault: Fault, nth: int) -> None:
    ledger = Ledger()
    events = [ledger.event() for _ in range(3)]
    path, again = ledger.add(*events[:2]), ledger.add(*events[1:])
    ledger.network.puts.extend([*[None] * nth, fault])
    for each in ([path], [again]):
        for _ in range(3):
            try:
                ledger.executions.publish(each)
            except LimpetError:
                continue
            break
    assert ledger.kept() == sorted(event.id for event in events)


def test_two_compactors_at_a_time(ledger: Ledger) -> None:
    """The second one folds, with files merged, between the first one's reading and its swap."""
    ledger.executions.publish([ledger.add(ledger.event())])
    mine, yours, both = ledger.event(), ledger.event(), ledger.event()
    here, there = ledger.add(mine, both), ledger.add(yours, both)
    other = Executions(ledger.bucket, KEYS, QueueRuntime(ledger.time, "p2"))
    ledger.network.before("put", "executions.json", lambda: other.publish([there]))
    ledger.executions.publish([here])
    assert len(ledger.kept()) == 4
    assert ledger.executions.head().duplicates == 1


def test_two_compactors_fold_the_very_same_batch(ledger: Ledger) -> None:
    path = ledger.add(ledger.event())
    other = Executions(ledger.bucket, KEYS, QueueRuntime(ledger.time, "p2"))
    answers = []
    ledger.network.before("put", ".parquet", lambda: answers.append(other.publish([path])))
    answers.append(ledger.executions.publish([path]))
    assert answers[0] == answers[1]
    assert len(ledger.kept()) == 1


# ---- what it costs, and who may ----


def test_cost(ledger: Ledger) -> None:
    meter = MeteredStore(ledger.bucket, runtime=ledger.runtime)
    executions = Executions(meter, KEYS, ledger.runtime)
    executions.publish([ledger.add(*[ledger.event() for _ in range(8)])])
    paths = [ledger.add(ledger.event()), ledger.add(ledger.event())]
    with meter.measure() as cost:
        executions.publish(paths)
    assert cost.requests == {"get": 1 + 2, "put": 2}, "the head and both batches; a file and the head"
    with meter.measure() as cost:
        executions.publish(paths)
    assert cost.requests == {"get": 1}
    path = ledger.add(ledger.event(), ledger.event())
    with meter.measure() as cost:
        executions.publish([path])
    assert cost.requests == {"get": 1 + 1 + 1, "put": 2}, "and the small file, to merge with"


def test_the_compactors_rights_are_enough_and_do_not_reach_the_ledger(ledger: Ledger) -> None:
    store: Store = ScopedStore(ledger.bucket, role="compactor", runtime=ledger.runtime)
    executions = Executions(store, KEYS, ledger.runtime)
    path = ledger.put(b"{")
    executions.publish([path, ledger.add(ledger.event())])
    executions.publish([ledger.add(ledger.event())])
    assert len(ledger.kept()) == 2
    with pytest.raises(Denied):
        store.delete(path)
    with pytest.raises(Denied):
        store.put(path, b"")
    with pytest.raises(Denied):
        Executions(ScopedStore(ledger.bucket, role="api"), KEYS, ledger.runtime).publish([ledger.add(ledger.event())])


def test_unknown_outcomes_are_said(ledger: Ledger) -> None:
    ledger.executions.publish([ledger.add(ledger.event())])
    path = ledger.add(ledger.event())
    ledger.network.puts.extend([None, *[lost_request] * 3])
    with pytest.raises(OutcomeUnknown):
        ledger.executions.publish([path])
    ledger.executions.publish([path])
    assert len(ledger.kept()) == 2


# ---- following ----


def follow(ledger: Ledger, wanted: EventFilter = EventFilter()) -> EventTail:
    """A tail that has looked once."""
    tail = EventTail(ledger.network, ledger.runtime, wanted)
    tail.look()
    return tail


def found(tail: EventTail) -> list[str]:
    return [event.id for event in reversed(tail.look().events)]


def test_a_tail_finds_each_event_once_however_it_is_stored(ledger: Ledger) -> None:
    ledger.add(ledger.event())
    tail = follow(ledger)
    assert found(tail) == []
    first, second, third, fourth = (ledger.event() for _ in range(4))
    path = ledger.add(first)
    assert found(tail) == [first.id]
    ledger.executions.publish([path])
    ledger.bucket.delete(path)
    assert found(tail) == []
    unseen = ledger.add(second, third)
    ledger.executions.publish([unseen])
    ledger.bucket.delete(unseen)
    ledger.add(fourth)
    assert found(tail) == [second.id, third.id, fourth.id]
    assert found(tail) == []


def test_a_look_of_a_tail_costs_a_list_and_a_get(ledger: Ledger) -> None:
    paths = [ledger.add(ledger.event()) for _ in range(20)]
    tail = follow(ledger)
    assert requests(ledger.network, tail.look) == {"list": 1, "get": 1}
    paths += [ledger.add(ledger.event()) for _ in range(3)]
    assert requests(ledger.network, tail.look) == {"list": 1, "get": 1 + 3}
    ledger.executions.publish(paths)
    assert requests(ledger.network, tail.look) == {"list": 1, "get": 1}  # all of them were read before
    unseen = ledger.add(ledger.event())
    ledger.executions.publish([unseen])
    ledger.bucket.delete(unseen)
    assert requests(ledger.network, tail.look) == {"list": 1, "get": 1 + 1}
    assert requests(ledger.network, tail.look) == {"list": 1, "get": 1}


def test_a_look_that_failed_loses_nothing(ledger: Ledger) -> None:
    tail = follow(ledger)
    event = ledger.event()
    path = ledger.add(event)
    for verb, ending in (("list", ""), ("get", path), ("get", KEYS.head)):
        ledger.network.away(verb, ending, Unavailable("slow down"))
        with pytest.raises(Unavailable):
            tail.look()
        ledger.network.back()
    assert found(tail) == [event.id]


def test_a_bad_batch_is_told_once_and_hides_no_other(ledger: Ledger) -> None:
    tail = follow(ledger)
    event = ledger.event()
    bad, _ = ledger.put(b"\xff"), ledger.add(event)
    looked = tail.look()
    assert [each.id for each in looked.events] == [event.id]
    assert [line.split(":")[0] for line in looked.unreadable] == [bad]
    assert tail.look().unreadable == []


def test_a_tail_holds_the_batches_of_an_hour_and_a_bounded_number_of_ids(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "TAIL_IDS_MAX", 10)
    tail = follow(ledger)
    ledger.add(*(Event(f"7{'z' * 20}{n:05}", "task run", AT, {}) for n in range(30)))  # of a clock that is far ahead
    assert len(found(tail)) == 30
    for _ in range(50):
        ledger.time.sleep(600)
        event = ledger.event()
        ledger.add(event)
        assert found(tail) == [event.id]
    assert len(tail._read) <= 7
    assert len(tail._seen) <= 10


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 20))
def test_no_id_is_new_twice_and_only_low_ones_are_missed(ids: list[int], most: int) -> None:
    seen, told = SeenIds("", most), set()
    for number in ids:
        id_ = f"{number:02}"
        before = seen.floor
        if seen.is_new(id_):
            assert id_ not in told
            told.add(id_)
        else:
            assert id_ in told or id_ <= before
        assert len(seen) <= most
