"""Events: off by default, gathered without being felt, written for at most 2 % more requests, and never lost unsaid."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import limpet
from limpet.app.fleet import events_of, is_wanted
from limpet.events import Event, EventSink, task_run
from limpet.events import sink as module
from limpet.events.fold import Executions
from limpet.events.sink import BLOCK, SHARE, EventBatch, LedgerSink, Sequence, SinkLoad, is_due
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Denied, Invalid, Unavailable, Unsupported
from limpet.kernel.runtime import system
from limpet.kernel.store import MemoryStore, MeteredStore, ScopedStore, Store
from limpet.queue import BucketQueue
from limpet.worker import Job, TaskCounts, Worker
from support.clock import QueueRuntime, Time
from support.queue import Network, raises
from support.stores import lost_reply, lost_request, unavailable

KEYS = CatalogKeys.of("executions")


def batches(store: Store) -> list[EventBatch]:
    blobs = [store.get(stat.key, size_max=None) for stat in store.list(KEYS.ledger)]
    return [msgspec.json.decode(blob.data, type=EventBatch) for blob in blobs]


def events(store: Store) -> list[Event]:
    return [event for batch in batches(store) for event in batch.events]


class World:
    """A sink on a scripted network and a hand-moved clock. `others` counts the requests of the work itself."""

    def __init__(self) -> None:
        self.time = Time()
        self.runtime = QueueRuntime(self.time, "p1")
        self.bucket = MemoryStore(self.runtime)
        self.network = Network(self.runtime, self.bucket)
        self.others = 0
        self.sink = LedgerSink(self.network, KEYS, self.runtime, lambda: self.others + self.network.snapshot().total())

    def emit(self, count: int = 1, **fields: Any) -> None:
        for _ in range(count):
            self.sink.emit(Event(self.runtime.new_id(), "task run", self.runtime.wall().isoformat(), fields))


@pytest.fixture
def world() -> World:
    return World()


# ---- when it writes ----


def test_taking_an_event_makes_no_request(world: World) -> None:
    world.emit(100)
    assert world.network.snapshot().total() == 0


def test_nothing_is_written_before_its_time(world: World) -> None:
    world.emit(100)
    world.time.sleep(module.FLUSH_AGE_S * 5)
    assert batches(world.bucket) == []


def test_when_the_work_pays_for_it_events_are_written_after_ten_seconds(world: World) -> None:
    world.others = 1000
    world.emit(3)
    world.time.sleep(module.FLUSH_AGE_S - 1)
    assert batches(world.bucket) == []
    world.time.sleep(module.TICK_S + 1.5)
    assert len(events(world.bucket)) == 3


def test_without_work_they_are_written_after_fifteen_minutes(world: World) -> None:
    world.emit(3)
    world.time.sleep(module.FLUSH_AGE_MAX_S + 2 * module.TICK_S)
    assert len(events(world.bucket)) == 3


def test_ten_thousand_are_written_at_once(world: World) -> None:
    world.emit(module.FLUSH_COUNT + 5)
    world.time.sleep(module.TICK_S)
    assert [len(batch.events) for batch in batches(world.bucket)] == [module.FLUSH_COUNT]


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 100), st.floats(0, 60)), max_size=200))
def test_what_is_paid_for_stays_below_its_share(steps: list[tuple[int, int, float]]) -> None:
    """Any course of events: only a full memory or the age limit may take more than the share, one request each."""
    own = others = held = excess = 0
    age_s = 0.0
    for requests, taken, passed_s in steps:
        others, held, age_s = others + requests, held + taken, age_s + passed_s
        now = SinkLoad(held, age_s, 1, own, others)
        if is_due(now):
            forced = held >= module.FLUSH_COUNT or age_s >= module.FLUSH_AGE_MAX_S
            excess += forced and own + 1 > SHARE * others
            own, held, age_s = own + 1, 0, 0.0
        assert own <= SHARE * others + excess
    assert not is_due(SinkLoad(0, 1e9, 1, 0, 10**9))


def test_what_was_taken_is_written_in_order_with_positions(world: World) -> None:
    world.emit(3)
    world.sink.flush()
    world.emit(2)
    world.sink.flush()
    first, second = batches(world.bucket)
    assert (first.position, second.position) == (1, 4)
    ids = [event.id for event in events(world.bucket)]
    assert ids == sorted(ids)
    assert first.source == world.runtime.label


def test_cost(world: World) -> None:
    world.emit(10)
    world.sink.flush()
    assert world.network.snapshot().requests == {"get": 1, "put": 2}, "a block of positions, and the batch"
    before = world.network.snapshot()
    world.emit(10)
    world.sink.flush()
    world.sink.flush()
    assert (world.network.snapshot() - before).requests == {"put": 1}


# ---- trouble ----


@pytest.mark.parametrize("fault", [lost_reply, lost_request, unavailable])
@pytest.mark.parametrize("nth", [0, 1])
def test_a_fault_neither_loses_nor_doubles(world: World, fault: Any, nth: int) -> None:
    world.emit(3)
    world.network.puts.extend([*[None] * nth, fault])
    world.sink.flush()
    world.sink.flush()
    assert len(events(world.bucket)) == 3
    assert world.sink.lost == 0


def test_while_the_store_is_away_events_wait_and_then_are_counted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    most = module.KEPT_MAX
    world.network.puts.extend([unavailable] * 100)
    world.emit(most)
    assert world.sink.lost == 0
    with caplog.at_level(logging.WARNING, "limpet.events"):
        world.emit(7)
    assert world.sink.lost == 7
    assert len(caplog.records) == 1, "it is said once"
    world.network.puts.clear()
    world.sink.flush()
    assert len(events(world.bucket)) == most


def test_what_cannot_be_written_at_the_end_is_counted_and_said(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.network.puts.extend([unavailable] * 100)
    world.emit(5)
    world.sink.close()
    world.emit(1)
    assert world.sink.lost == 6
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_role_that_may_not_write_them_changes_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    runtime = QueueRuntime(Time(), "p1")
    bucket = MemoryStore(runtime)
    sink = LedgerSink(ScopedStore(bucket, role="reader", runtime=runtime), KEYS, runtime, lambda: 0)
    sink.emit(Event(runtime.new_id(), "task run", "", {}))
    sink.close()
    assert sink.lost == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize("role", ["worker", "compiler"])
def test_the_rights_of_workers_and_compilers_are_enough(role: str) -> None:
    runtime = QueueRuntime(Time(), "p1")
    bucket = MemoryStore(runtime)
    sink = LedgerSink(ScopedStore(bucket, role=role, runtime=runtime), KEYS, runtime, lambda: 0)
    sink.emit(Event(runtime.new_id(), "task run", runtime.wall().isoformat(), {}))
    sink.close()
    [batch] = batches(bucket)
    assert batch.position == 1


def test_an_event_that_json_cannot_hold_spoils_no_other(world: World) -> None:
    world.emit(1, odd="\ud800")
    world.emit(1)
    world.sink.flush()
    assert len(events(world.bucket)) == 1
    assert world.sink.lost == 1


def test_an_error_text_is_short_and_sound() -> None:
    event = task_run(
        QueueRuntime(Time(), "p1"),
        queue="q",
        task="t",
        attempt=1,
        worker="w",
        took_s=1.5,
        outcome="failed",
        error="\ud800" + "x" * 1000,
    )
    assert event.fields["error"].startswith("\\ud800xxx")
    assert len(event.fields["error"]) < 300
    msgspec.json.encode(event)


# ---- positions ----


def test_positions_come_in_blocks_that_no_two_share() -> None:
    time = Time()
    bucket = MemoryStore(QueueRuntime(time, "p0"))
    first, second = (Sequence(bucket, KEYS, QueueRuntime(time, name)) for name in ("p1", "p2"))
    taken: list[int] = []
    for count in (1, 5, BLOCK - 10, 20, BLOCK * 2, 3):
        for sequence in (first, second):
            start = sequence.take(count)
            assert start is not None
            taken += [start, start + count]
    spans = sorted(zip(taken[::2], taken[1::2], strict=True))
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_positions_are_no_gate() -> None:
    runtime = QueueRuntime(Time(), "p1")
    network = Network(runtime, MemoryStore(runtime))
    network.before("get", "executions.json", raises(Unavailable("away")))
    sink = LedgerSink(network, KEYS, runtime, lambda: 0)
    sink.emit(Event(runtime.new_id(), "task run", runtime.wall().isoformat(), {}))
    sink.flush()
    [batch] = batches(network)
    assert batch.position is None


# ---- workers ----


def work(store: MeteredStore, payloads: list[int], sink: EventSink | None, *, batch: int | None) -> TaskCounts:
    queue = BucketQueue(store, "q", system())
    if batch is None:
        for n in payloads:
            queue.push({"n": n})
    else:
        queue.push_many([{"n": n} for n in payloads], batch=batch)
    return Worker([Job(queue, lambda n: None, events=sink)], system(), burst=True).run()


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (100, 10_000),
        (None, 1_000),
        pytest.param(None, 10_000, marks=pytest.mark.full),
        pytest.param(100, 50_000, marks=pytest.mark.full),
    ],
)
def test_tasks_cost_at_most_two_percent_more(batch: int | None, count: int) -> None:
    store = MeteredStore(MemoryStore())
    sink = LedgerSink(store, KEYS, system(), lambda: store.snapshot().total())
    with store.measure() as whole:
        assert work(store, [*range(count)], sink, batch=batch).done == count
        sink.close()
    own = sink._store.snapshot().total()
    assert len(events(store)) == count
    assert own <= 0.02 * (whole.total() - own)
    assert sink.lost == 0


def test_every_outcome_is_told() -> None:
    fleet = limpet.open("memory://", events=True)

    @fleet.task(max_attempts=2, backoff_s=0.01)
    def job(how: str) -> str:
        if how == "fail":
            raise limpet.Fail("no good")
        if how == "raise":
            raise ValueError("odd")
        return how

    for how in ("ok", "fail", "raise"):
        job.using(id=how).push(how)
    worker = Worker([job.job], system(), burst=True)
    assert worker.run().done == 1
    told = sorted(
        (event.fields["task"], event.fields["attempt"], event.fields["outcome"], event.fields.get("error"))
        for event in events(fleet.store)
    )
    assert told[:2] == [("fail", 1, "failed", "no good"), ("ok", 1, "done", None)]
    assert ("raise", 1, "retried", "ValueError: odd") in told
    for event in events(fleet.store):
        assert event.kind == "task run"
        assert event.fields["queue"] == "job"
        assert event.fields["took_s"] >= 0
        assert event.fields["started"] <= event.at


def test_a_sink_that_is_broken_is_not_felt_by_the_work() -> None:
    store = MeteredStore(MemoryStore())
    away = Network(QueueRuntime(Time(), "p1"), MemoryStore())
    away.puts.extend([unavailable] * 1000)
    sink = LedgerSink(away, KEYS, system(), lambda: 0)
    assert work(store, [1, 2, 3], sink, batch=None).done == 3
    sink.close()
    assert sink.lost == 3


# ---- compilers ----


def test_a_compile_run_that_did_something_is_told() -> None:
    fleet = limpet.open("memory://", events=True)
    index = fleet.index("sites", {"fields": [{"name": "id", "type": "string"}], "primaryKey": "id"})
    index.put_many([{"id": str(n)} for n in range(100)])
    report = index.compile(full=True)
    assert report.folded > 0
    index.compile(full=True)
    assert fleet.events is not None
    fleet.events.flush()
    [event] = events(fleet.store)
    assert event.kind == "compaction"
    assert event.fields["index"] == "sites"
    assert (event.fields["folded"], event.fields["records"]) == (report.folded, report.records)
    assert event.fields["written_bytes"] == report.written_bytes
    assert event.fields["took_s"] >= 0


# ---- switching on ----


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("LIMPET_EVENTS", raising=False)
    return monkeypatch


def test_events_are_off_unless_asked_for(switch: pytest.MonkeyPatch) -> None:
    assert limpet.open("memory://").events is None
    assert limpet.open("memory://", events=True).events is not None
    switch.setenv("LIMPET_EVENTS", "1")
    assert limpet.open("memory://").events is not None
    assert limpet.open("memory://", events=False).events is None
    switch.setenv("LIMPET_EVENTS", "yes")
    with pytest.raises(Invalid, match="LIMPET_EVENTS"):
        is_wanted(None)


def test_a_reader_keeps_no_events_and_sqs_cannot(tmp_path: Path) -> None:
    limpet.open(tmp_path).check()
    assert limpet.open(tmp_path, read_only=True, events=True).events is None
    with pytest.raises(Unsupported, match="SQS"):
        limpet.open("sqs://eu-central-1/x", events=True).check()


def test_all_handles_of_a_process_share_one_sink(tmp_path: Path) -> None:
    first, second = limpet.open(tmp_path, events=True), limpet.open(tmp_path, events=True)
    assert first.events is second.events
    assert limpet.open("memory://", events=True).events is not limpet.open("memory://", events=True).events
    store = MeteredStore(MemoryStore())
    assert events_of(store, "memory://", system()) is events_of(store, "memory://", system())


def test_what_a_process_holds_is_written_when_it_ends(tmp_path: Path) -> None:
    code = (
        "import sys, limpet\n"
        "from limpet.events import compaction\n"
        "from limpet.kernel.runtime import system\n"
        "fleet = limpet.open(sys.argv[1], events=True)\n"
        "fleet.events.emit(compaction(system(), index='i', counts={}, took_s=1.0))\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "fleet"], check=True)
    assert [event.kind for event in events(limpet.open(tmp_path / "fleet").store)] == ["compaction"]


@pytest.mark.parametrize("how", ["option", pytest.param("environment", marks=pytest.mark.full)])
def test_limpet_work_notes_what_it_ran(tmp_path: Path, how: str) -> None:
    (tmp_path / "app.py").write_text(
        "import limpet\nfleet = limpet.open('./fleet')\n\n@fleet.task()\ndef job(n: int) -> None: ...\n"
    )
    code = "from app import job; [job.push(n) for n in range(5)]"
    env = {name: value for name, value in os.environ.items() if name != "LIMPET_EVENTS"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=env)
    command = [sys.executable, "-m", "limpet", "work", "app:fleet", "--burst", "--quiet"]
    if how == "option":
        command.append("--events")
    else:
        env["LIMPET_EVENTS"] = "1"
    subprocess.run(command, check=True, cwd=tmp_path, env=env)
    store = limpet.open(tmp_path / "fleet").store
    assert [event.fields["outcome"] for event in events(store)] == ["done"] * 5
    executions = Executions(store, KEYS, system())
    executions.publish([stat.key for stat in store.list(KEYS.ledger)])
    assert executions.head().events == 5


def test_only_what_is_asked_of_the_sink_is_denied() -> None:
    """The protocol is all that rooms know: any object with these three verbs will do."""

    class Mine:
        def __init__(self) -> None:
            self.taken: list[Event] = []

        def emit(self, event: Event) -> None:
            self.taken.append(event)

        def flush(self) -> None: ...

        def close(self) -> None: ...

    mine = Mine()
    assert work(MeteredStore(MemoryStore()), [1, 2], mine, batch=2).done == 2
    assert [event.fields["outcome"] for event in mine.taken] == ["done", "done"]
    with pytest.raises(Denied):
        ScopedStore(MemoryStore(), role="worker").delete(KEYS.batch("0" * 26))
