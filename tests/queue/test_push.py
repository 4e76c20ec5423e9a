"""Pushing: a name comes to be pending once, whatever the network does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.kernel.errors import Invalid, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key, due_of, is_minted
from limpet.queue import BucketQueue, Pushed, TaskHandle
from limpet.queue.entry import BATCH_MAX, PAYLOAD_BYTES_MAX, Receipt
from limpet.queue.storage import NoJournal
from support.clock import EPOCH, steady
from support.queue import NAME, Crash, Process, World, crash, held, raises, rounds
from support.stores import Fault, late, lost_reply, lost_request, own_conflict, refused_409, unavailable

EVER = [
    ("done", lambda process: process.drain()),
    ("failed", lambda process: process.drain(lambda task: task.fail("no"))),
    ("cancelled", lambda process: process.queue.cancel("x")),
    ("purged", lambda process: process.queue.purge()),
]


def tasks(world: World) -> list[str]:
    return [key for key in world.names() if key.endswith(("task.json", "tasks.jsonl"))]


def payload(world: World, entry: str) -> Any:
    return msgspec.json.decode(world.read(f"pending/{entry}/task.json"))["payload"]


# ---- one task ----


def test_a_push_is_one_object_with_a_name_of_its_own(world: World) -> None:
    process = world.process()
    first, second = process.queue.push({"a": 1}), process.queue.push({"a": 1})
    assert first.created
    assert second.created
    assert first.id != second.id
    assert is_minted(first.id)
    assert world.names() == sorted(f"pending/{pushed.id}/task.json" for pushed in (first, second))
    record = msgspec.json.decode(world.read(f"pending/{first.id}/task.json"))
    assert (record["schema"], record["id"], record["payload"]) == (1, first.id, {"a": 1})


def test_an_id_is_taken_while_it_waits_and_the_first_payload_stays(world: World) -> None:
    process = world.process()
    assert process.queue.push({"a": 1}, id="x") == Pushed("x", True)
    assert world.process().queue.push({"a": 2}, id="x") == Pushed("x", False)
    assert world.names() == ["pending/x/task.json"]
    assert payload(world, "x") == {"a": 1}


def test_an_id_is_taken_while_it_runs(world: World) -> None:
    process = world.process()
    process.queue.push({"a": 1}, id="x")
    claim = process.take()
    assert not world.process().queue.push({"a": 2}, id="x").created
    assert payload(world, "x") == {"a": 1}
    claim.hand_back()


@pytest.mark.parametrize(("how", "end"), EVER, ids=[name for name, _ in EVER])
@pytest.mark.parametrize("delay_s", [0.0, 5.0])
def test_an_id_stays_taken_once_it_has_ended(world: World, how: str, end: Any, delay_s: float) -> None:
    process = world.process()
    process.queue.push({"a": 1}, id="x")
    end(process)
    assert tasks(world) == []
    before = world.names()
    assert not world.process().queue.push({"a": 2}, id="x", delay_s=delay_s).created
    assert world.names() == before
    assert process.drain() == []


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5, unique=True))
@steady
def test_any_text_is_an_id_or_is_refused(ids: list[str]) -> None:
    world = World()
    process = world.process()
    good = []
    for id_ in ids:
        try:
            assert process.queue.push({"id": id_}, id=id_) == Pushed(id_, True)
            good.append(id_)
        except Invalid:
            continue
    assert all(key.startswith("pending/") and key.count("/") == 2 for key in world.names())
    assert [process.queue.push({}, id=id_).created for id_ in good] == [False] * len(good)
    ran = process.collect(lambda task: (task.id, task.payload["id"]), idle_s=1)
    assert sorted(ran) == sorted((id_, id_) for id_ in good)
    assert {process.queue.result(id_).value for id_ in good} == {*good}


@pytest.mark.parametrize(
    "id_", ["a/b", "../x", "..", ".", "a.b", "x" * 500, "é", "e\u0301", "a b", "%2e", "X", "x", "x.1", "x-5"]
)
def test_awkward_ids_are_names_like_any_other(world: World, id_: str) -> None:
    process = world.process()
    assert process.queue.push({"a": 1}, id=id_).created
    (key,) = tasks(world)
    assert key.count("/") == 2
    assert process.queue.result(id_).state == "pending"
    assert process.drain() == [id_]
    assert process.queue.result(id_).state == "completed"
    assert not process.queue.push({"a": 1}, id=id_).created


# ---- the rule, step by step ----


def test_the_receipts_are_looked_for_after_the_put_failed_first(world: World) -> None:
    """H6: receipts move from failed/ to completed/ only, so the other order can miss one that moves."""
    process = world.process()
    process.queue.push({}, id="x")
    assert process.store.log == ["put pending/x/task.json", "head failed/x.json", "head completed/x.json"]


def test_h5_an_ended_task_that_is_pushed_again_does_not_run_while_the_pusher_looks(world: World) -> None:
    worker = world.process(max_attempts=2)
    worker.queue.push({}, id="x")
    worker.drain()
    pusher = world.process()
    claims: list[bool] = []
    pusher.store.before("head", "failed/x.json", lambda: claims.append(bool(worker.queue.claim())))
    assert not pusher.queue.push({}, id="x").created
    assert claims == [False]
    assert world.names() == ["completed/x.json"]


def test_h6_a_receipt_that_moves_is_not_missed(world: World) -> None:
    """W1 finishes, stalls; W2 gives the task up; P pushes it; W1's receipt lands; sweep removes the failed one."""
    world.process().queue.push({"n": 1}, id="x")
    zombie = world.killed(max_attempts=1)
    world.process(max_attempts=1).drain()
    assert world.names() == ["failed/x.json"]
    pusher = world.process()

    def the_receipt_moves() -> None:
        zombie.done()
        world.process().queue.sweep()

    pusher.store.before("head", "failed/x.json", the_receipt_moves)
    assert not pusher.queue.push({"n": 2}, id="x").created
    assert [key for key in world.names() if key.startswith("pending/")] == []
    assert world.process().queue.result("x").state == "completed"


def test_a_pusher_that_dies_after_the_put_leaves_a_task_that_runs(world: World) -> None:
    pusher = world.process()
    pusher.store.before("head", "failed/x.json", crash)
    with pytest.raises(Crash):
        pusher.queue.push({}, id="x")
    assert world.process().drain() == ["x"]


def test_a_pusher_that_dies_before_it_takes_back_an_ended_task_leaves_nothing_that_runs(world: World) -> None:
    worker = world.process()
    worker.queue.push({}, id="x")
    worker.drain()
    pusher = world.process()
    pusher.store.before("delete", "task.json", crash)
    with pytest.raises(Crash):
        pusher.queue.push({}, id="x")
    assert "pending/x/task.json" in world.names()
    assert worker.drain() == []
    assert world.names() == ["completed/x.json"]


def test_a_store_that_goes_away_after_the_put_says_so_and_the_task_is_there(world: World) -> None:
    process = world.process()
    process.store.before("head", "failed/x.json", raises(Unavailable("away")))
    with pytest.raises(Unavailable):
        process.queue.push({}, id="x")
    assert not process.queue.push({}, id="x").created
    assert process.drain() == ["x"]


# ---- an unreliable network ----


@pytest.mark.parametrize("id_", [None, "x"])
@pytest.mark.parametrize(
    "faults",
    [[lost_reply], [lost_request], [own_conflict], [refused_409], [lost_request] * 2, [refused_409, lost_reply]],
)
def test_an_unclear_push_is_settled(world: World, id_: str | None, faults: list[Fault]) -> None:
    process = world.process()
    process.store.puts.extend(faults)
    pushed = process.queue.push({"n": 1}, id=id_)
    assert pushed.created
    assert process.drain() == [pushed.id]


def test_a_push_that_cannot_be_told_is_said_to_be_unknown_and_may_be_made_again(world: World) -> None:
    process = world.process()
    process.store.puts.extend([lost_request] * 3)
    with pytest.raises(OutcomeUnknown) as caught:
        process.queue.push({"n": 1}, id="x")
    assert "same id" in caught.value.hint
    assert process.queue.push({"n": 2}, id="x").created
    assert process.drain() == ["x"]


def test_a_busy_store_is_said_to_be_busy_and_nothing_is_there(world: World) -> None:
    process = world.process()
    process.store.puts.append(unavailable)
    with pytest.raises(Unavailable):
        process.queue.push({"n": 1})
    assert world.names() == []


def test_of_two_pushes_at_once_one_is_created(world: World) -> None:
    one, two = world.process(), world.process()
    answers: list[bool] = []
    one.store.before("put", "task.json", lambda: answers.append(two.queue.push({"by": 2}, id="x").created))
    answers.append(one.queue.push({"by": 1}, id="x").created)
    assert answers == [True, False]
    assert payload(world, "x") == {"by": 2}


def test_a_lost_reply_to_a_push_that_was_done_meanwhile(world: World) -> None:
    """The task was put, run and removed before the pusher could look: it is created, and done."""
    pusher, worker = world.process(), world.process()
    pusher.store.puts.append(lost_reply)
    pusher.store.before("get", "task.json", worker.drain)
    pushed = pusher.queue.push({"n": 1})
    assert pushed.created
    assert worker.queue.result(pushed.id).state == "completed"
    assert worker.drain() == []


def test_a_push_that_lands_late_after_its_name_ended_does_not_run(world: World) -> None:
    pending: list[Any] = []
    slow = world.process()
    slow.store.puts.extend([late(pending), None])
    slow.queue.push({"n": 1}, id="x")
    worker = world.process()
    assert worker.drain() == ["x"]
    pending[0]()
    assert "pending/x/task.json" in world.names()
    assert worker.drain() == []
    assert world.names() == ["completed/x.json"]


# ---- many at once ----


def test_push_many_packs_batches_and_names_each_task(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(250), batch=100)
    entries = list(dict.fromkeys(id_.rpartition(".")[0] for id_ in ids))
    assert [entry.rpartition("-")[2] for entry in entries] == ["100", "100", "50"]
    assert ids == [f"{entry}.{n}" for entry in entries for n in range(int(entry.rpartition("-")[2]))]
    assert tasks(world) == sorted(f"pending/{entry}/tasks.jsonl" for entry in entries)
    ran = dict(process.collect(lambda task: (task.id, task.payload)))
    assert [ran[id_] for id_ in ids] == rounds(250)


def test_push_many_takes_any_iterable_and_an_empty_one(world: World) -> None:
    process = world.process()
    assert process.queue.push_many([]) == []
    assert world.names() == []
    assert len(process.queue.push_many({"n": n} for n in range(3))) == 3
    assert len(tasks(world)) == 1


@pytest.mark.parametrize("batch", [1, BATCH_MAX])
def test_batches_of_one_and_of_the_most(world: World, batch: int) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(3), batch=batch)
    assert len(tasks(world)) == (3 if batch == 1 else 1)
    assert sorted(process.drain()) == sorted(ids)


@pytest.mark.parametrize("batch", [0, -1, BATCH_MAX + 1])
def test_batches_of_no_size_are_refused(world: World, batch: int) -> None:
    with pytest.raises(Invalid, match="batch must be between"):
        world.process().queue.push_many(rounds(3), batch=batch)
    assert world.names() == []


def test_large_payloads_make_smaller_batches(world: World) -> None:
    process = world.process()
    large = {"x": "y" * (PAYLOAD_BYTES_MAX - 100)}
    ids = process.queue.push_many([large] * 20, batch=20)
    assert len(ids) == 20
    assert len(tasks(world)) > 1
    assert max(stat.size for stat in world.memory.list("queues")) < 8 << 20
    assert sorted(process.drain()) == sorted(ids)


@pytest.mark.parametrize("fault", [lost_reply, lost_request, own_conflict, refused_409])
def test_an_unclear_batch_is_settled(world: World, fault: Fault) -> None:
    process = world.process()
    process.store.puts.extend([None, fault])
    ids = process.queue.push_many(rounds(6), batch=2)
    assert len(tasks(world)) == 3
    assert sorted(process.drain()) == sorted(ids)


@pytest.mark.parametrize("fault", [unavailable, lost_request])
@pytest.mark.parametrize("id_", [None, "x"])
def test_a_push_that_ends_half_way_says_what_is_there_and_the_same_one_completes_it(
    world: World, id_: str | None, fault: Fault
) -> None:
    """One of the last 18 batches cannot be put."""
    process = world.process()
    process.store.puts.extend([*([None] if id_ else []), *[None] * 34, fault, *[None] * 15, *[fault] * 200])
    with pytest.raises(OutcomeUnknown) as caught:
        process.queue.push_many(rounds(100), batch=2, id=id_)
    process.store.puts.clear()
    error = caught.value
    assert error.rest == [68, 69]
    there = [n for n in range(100) if n not in error.rest]
    assert len(tasks(world)) == 49
    assert "98 of 100 tasks were pushed" in str(error)
    if id_:
        assert "same id" in error.hint
        whole = process.queue.push_many(rounds(100), batch=2, id=id_)
        assert [whole[n] for n in there] == error.pushed
        assert isinstance(error.pushed[0], TaskHandle)
    else:
        assert "`rest`" in error.hint
        process.queue.push_many([{"n": n} for n in error.rest], batch=2)
    ran = process.collect(lambda task: task.payload["n"])
    assert sorted(ran) == [*range(100)]


def test_a_push_of_which_nothing_is_there_fails_as_the_store_says(world: World) -> None:
    process = world.process()
    process.store.puts.extend([unavailable] * 99)
    with pytest.raises(Unavailable):
        process.queue.push_many(rounds(10), batch=2)
    assert tasks(world) == []


def test_nothing_of_one_bad_payload_is_pushed(world: World) -> None:
    with pytest.raises(Invalid):
        world.process().queue.push_many([*rounds(5), {"n": float("nan")}])
    assert world.names() == []


# ---- delayed ----


def test_a_delayed_push_waits_for_its_time(world: World) -> None:
    process = world.process()
    assert process.queue.push({"n": 1}, id="x", delay_s=100).created
    assert tasks(world) == []
    assert [key.split("/")[0] for key in world.names()] == ["scheduled"]
    assert process.drain(idle_s=98) == []
    assert process.drain(idle_s=60) == ["x"]
    assert world.names() == ["completed/x.json"]


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 0.999])
@pytest.mark.parametrize("delay_s", [0.001, 0.5, 1.0, 1.75, 59.999])
def test_a_delay_is_never_cut_short(world: World, fraction: float, delay_s: float) -> None:
    """Names hold whole seconds, and so does LastModified: both are rounded up, for early is worse than late."""
    world.time.sleep(fraction)
    process = world.process()
    process.queue.push({}, id="x", delay_s=delay_s)
    (key,) = [key for key in world.names() if key.startswith("scheduled/")]
    due = due_of(key.split("/")[1])
    assert due is not None
    assert EPOCH + timedelta(seconds=world.time.now_s + delay_s) <= due
    assert due <= EPOCH + timedelta(seconds=world.time.now_s + delay_s + 2)


def test_a_delayed_push_that_is_due_is_found_at_the_first_look(world: World) -> None:
    world.process().queue.push({}, id="x", delay_s=5)
    world.time.sleep(60)
    assert held(world.process().queue.claim()).entry == "x"


def test_delayed_pushes_come_in_the_order_of_their_time(world: World) -> None:
    process = world.process()
    for delay_s in (300, 100, 200):
        process.queue.push({}, id=f"after {delay_s}", delay_s=delay_s)
    started_s = world.time.now_s
    order = process.collect(lambda task: (task.id, world.time.now_s - started_s), idle_s=200)
    assert [id_ for id_, _ in order] == ["after 100", "after 200", "after 300"]
    assert all(at_s >= float(id_.split()[1]) for id_, at_s in order)


def test_a_delayed_push_comes_though_thousands_wait(world: World) -> None:
    """F22: a long backlog does not hide what is scheduled behind it."""
    process = world.process()
    process.queue.push({}, id="x", delay_s=10)
    for n in range(1100):
        process.queue.push({}, id=f"n{n}")
    world.time.sleep(20)
    taken = 0
    while "pending/x/task.json" not in world.names():
        process.take()
        taken += 1
        world.time.sleep(1)
        assert taken < 200, "it was never promoted"


def test_h7_of_pushes_of_one_id_that_wait_at_once_one_runs(world: World) -> None:
    process = world.process()
    assert process.queue.push({"n": 1}, id="x", delay_s=10).created
    assert process.queue.push({"n": 2}, id="x").created
    assert process.queue.push({"n": 3}, id="x", delay_s=20).created
    assert process.collect(lambda task: task.payload) == [{"n": 2}]
    assert world.names() == ["completed/x.json"]


@pytest.mark.parametrize("id_", [None, "x"])
def test_a_promoter_that_dies_half_way_makes_no_second_run(world: World, id_: str | None) -> None:
    pushed = world.process().queue.push({"n": 1}, id=id_, delay_s=5)
    world.time.sleep(10)
    promoter = world.process()
    promoter.store.before("delete", ".json", crash)
    with pytest.raises(Crash):
        promoter.queue.claim(wait_s=60)
    worker = world.process()
    assert worker.drain() == [pushed.id]
    assert worker.drain() == []
    assert world.names() == [f"completed/{pushed.id}.json"]


@pytest.mark.parametrize("id_", [None, "x"])
def test_two_promoters_at_once_make_no_second_run(world: World, id_: str | None) -> None:
    """F24: the slow one puts the task after the fast one's worker has done it."""
    pushed = world.process().queue.push({"n": 1}, id=id_, delay_s=5)
    world.time.sleep(10)
    slow, fast = world.process(), world.process()
    ran: list[str] = []
    slow.store.before("put", "task.json", lambda: ran.extend(fast.drain(idle_s=60)))
    ran.extend(slow.drain(idle_s=60))
    assert ran == [pushed.id]


@pytest.mark.parametrize("id_", [None, "x"])
def test_h5_a_task_that_is_promoted_again_does_not_run_while_the_promoter_looks(world: World, id_: str | None) -> None:
    pushed = world.process().queue.push({"n": 1}, id=id_, delay_s=5)
    world.time.sleep(10)
    slow, fast = world.process(), world.process()
    ran: list[str] = []
    slow.store.before("put", "task.json", lambda: ran.extend(fast.drain(idle_s=60)))
    slow.store.before("head", f"failed/{pushed.id}.json", lambda: ran.extend(fast.drain(idle_s=60)))
    ran.extend(slow.drain(idle_s=60))
    assert ran == [pushed.id]
    assert world.names() == [f"completed/{pushed.id}.json"]


@pytest.mark.parametrize("delay_s", [-1.0, float("nan"), float("inf"), 400 * 86400.0])
def test_delays_that_make_no_sense_are_refused(world: World, delay_s: float) -> None:
    with pytest.raises(Invalid, match="delay_s"):
        world.process().queue.push({}, delay_s=delay_s)
    assert world.names() == []


def test_a_lost_reply_to_a_delayed_push(world: World) -> None:
    process = world.process()
    process.queue.push({}, delay_s=1)
    process.drain()
    process.store.puts.append(lost_reply)
    pushed = process.queue.push({}, delay_s=5)
    assert process.drain() == [pushed.id]


# ---- the journal of a supervised node ----


class Journal(NoJournal):
    """Notes what it is told, and what stood in the store when it was told."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.noted: list[tuple[str, bool]] = []

    def pushed(self, key: Key, data: bytes) -> None:
        """See `Journal.pushed`."""
        self._note(key)

    def ended(self, entry: str, batch: bool, key: Key, receipt: Receipt) -> None:
        """See `Journal.ended`."""
        self._note(key)

    def _note(self, key: Key) -> None:
        name = key.removeprefix("queues/q/")
        self.noted.append((name, name in self.world.names()))


def test_h8_every_push_and_end_is_noted_before_it_takes_effect(world: World) -> None:
    journal = Journal(world)
    process = world.process()
    node = Process(world, "node")
    node.queue = BucketQueue(node.store, NAME, node.runtime, policy=process.queue.policy, journal=journal)
    node.queue.push({}, id="x")
    node.queue.push({}, id="x")
    node.drain(lambda task: task.fail("no"))
    node.queue.retry("x")
    node.drain()
    node.queue.push({}, id="z")
    node.queue.cancel("z")
    assert journal.noted == [
        ("pending/x/task.json", False),
        ("pending/x/task.json", True),
        ("failed/x.json", False),
        ("pending/x~1/task.json", False),
        ("failed/x.json", True),
        ("completed/x~1.json", False),
        ("pending/z/task.json", False),
        ("failed/z.json", False),
    ]
