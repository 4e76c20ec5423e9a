"""Results of many tasks, waiting for them, and the handles that a push returns."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

import limpet
from limpet.app import Fleet
from limpet.kernel.errors import Corrupt, Invalid
from limpet.kernel.keys import QueueKeys
from limpet.queue import Pushed, Queue, Result, TaskHandle
from support.costs import plus
from support.queue import LATER_S, TTL_S, World, held, rounds

LARGE = "x" * 5000
WAIT_S = 60.0


def work(queue: Queue) -> None:
    """Do everything that is there. A payload may say how it ends."""
    while claim := queue.claim():
        with claim:
            for task in claim:
                if task.payload.get("fails"):
                    task.fail(f"no {task.payload['n']}", f"trace {task.payload['n']}")
                else:
                    task.done(task.payload)


# ---- on every store, on the real clock ----


def test_results_are_those_of_result_in_the_order_of_the_ids(fleet: Fleet) -> None:
    queue = fleet.queue("q")
    ids: list[str] = [*queue.push_many([*rounds(3), {"n": 3, "fails": True}, {"n": 4, "text": LARGE}], batch=5)]
    ids += [queue.push({"n": 5}).id, queue.push({"n": 6, "fails": True}, id="six").id]
    work(queue)
    queue.retry("six")
    late = [queue.push({"n": 7}, id="é").id, *queue.push_many(rounds(2)), queue.push({"n": 9}, delay_s=1000).id]
    wanted = [*reversed(ids), *late, ids[0], "nobody", "six"]
    found = queue.results(wanted)
    assert found == [queue.result(id_) for id_ in wanted]
    states = ["pending", "completed", "completed", "failed", *["completed"] * 3]
    assert [result.state for result in found[: len(ids)]] == states
    assert [result.state for result in found[len(ids) :]] == [
        *("pending", "pending", "pending", "scheduled", "completed", "unknown", "pending")
    ]
    assert found[3].error == "no 3"
    assert found[2].value == {"n": 4, "text": LARGE}
    assert queue.results([]) == []


def test_waiting_ends_with_the_last_task(fleet: Fleet, url: str) -> None:
    queue = fleet.queue("q")
    handles = [*queue.push_many([*rounds(2), {"n": 2, "fails": True}]), queue.push({"n": 3}).id]
    worker = threading.Thread(target=lambda: work(limpet.open(url).queue("q")))
    worker.start()
    found = queue.wait(handles, timeout_s=WAIT_S)
    worker.join()
    assert [result.state for result in found] == ["completed", "completed", "failed", "completed"]
    assert [result.id for result in found] == handles


def test_handles_wait_too(fleet: Fleet, url: str) -> None:
    queue = fleet.queue("q")
    pushed, (handle,) = queue.push({"n": 1}), queue.push_many([{"n": 2}])
    worker = threading.Thread(target=lambda: work(limpet.open(url).queue("q")))
    worker.start()
    assert pushed.result(wait_s=WAIT_S).value == {"n": 1}
    assert handle.result(wait_s=WAIT_S).value == {"n": 2}
    worker.join()


def test_coroutines_wait_without_holding_threads(fleet: Fleet, url: str) -> None:
    """More of them than there are threads for coroutines."""
    queue = fleet.queue("q")
    pushed = [queue.push({"n": n}) for n in range(40)]

    async def all_of_them() -> list[Result]:
        waits = [asyncio.create_task(each.result_async(wait_s=WAIT_S)) for each in pushed]
        await asyncio.to_thread(work, limpet.open(url).queue("q"))
        return [await each for each in waits]

    assert [result.unwrap()["n"] for result in asyncio.run(all_of_them())] == [*range(40)]
    assert asyncio.run(queue.result_async("nobody", wait_s=0.01)).state == "unknown"


# ---- handles are ids ----


def test_a_handle_is_its_id(world: World) -> None:
    queue = world.process().queue
    pushed = queue.push({}, id="a")
    (handle, *_), other = queue.push_many(rounds(2)), queue.push({"ids": [pushed.id], pushed.id: 1})
    assert isinstance(pushed.id, TaskHandle)
    assert isinstance(handle, TaskHandle)
    assert handle.queue is queue
    assert pushed == Pushed("a", True)
    assert repr(pushed) == "Pushed(id='a', created=True)"
    assert (pushed.id == "a", {str(handle): 1, pushed.id: 1}["a"], json.dumps([pushed.id]), f"{pushed.id}") == (
        True,
        1,
        '["a"]',
        "a",
    )
    for text in (pickle.loads(pickle.dumps(pushed.id)), copy.deepcopy(pushed.id), copy.copy(pushed.id)):
        assert (text, type(text)) == ("a", str)
    assert msgspec.convert([handle], list[str]) == [handle]
    peeked = {each.id: each.payload for each in queue.peek(9)}
    assert peeked[other.id] == {"ids": ["a"], "a": 1}
    assert type(queue.result(pushed.id).id) is str
    assert queue.cancel(pushed.id)


def test_handles_go_into_payloads_and_results() -> None:
    fleet = limpet.open("memory://")

    @fleet.task("first")
    def first(ids: list[str]) -> list[str]:
        return [*second.push_many([(id_,) for id_ in ids])]

    @fleet.task("second")
    def second(id_: str) -> str:
        return id_

    from limpet import testing

    given: Sequence[str] = second.push_many([("a",)])
    pushed = first.push([*given])
    testing.drain(fleet)
    (made,) = pushed.result().unwrap()
    assert second.queue.result(made).value == given[0]
    assert isinstance(given[0], TaskHandle)
    assert given[0].result().value == "a"


def test_an_answer_that_no_queue_gave_cannot_be_asked() -> None:
    with pytest.raises(Invalid, match="in which queue"):
        Pushed("a", True).result()


@pytest.mark.parametrize("call", [lambda q: q.wait(["a"], timeout_s=-1), lambda q: q.result("a", wait_s=float("nan"))])
def test_waits_that_make_no_sense(world: World, call: Callable[[Any], object]) -> None:
    with pytest.raises(Invalid, match="wait must not be negative"):
        call(world.process().queue)


# ---- what it costs ----


def test_results_cost_one_get_an_entry(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(250), batch=100)
    singles = [process.queue.push({"n": n}).id for n in range(5)]
    work(process.queue)
    assert process.cost(lambda: process.queue.results([*ids, *singles])) == {"get": 3 + 5}


def test_failed_and_large_ones_cost_what_they_need(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many([*rounds(50), {"n": 50, "fails": True}, *({"n": n, "t": LARGE} for n in range(9))])
    work(process.queue)
    spent = process.cost(lambda: process.queue.results(ids))
    assert spent == plus({"get": 1}, {"get": 1}, {"get": 2}), "its receipt, one part, two for the one that failed"


def test_what_has_not_ended_costs_by_the_entry_too(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(100))
    single = process.queue.push({}).id
    assert process.cost(lambda: process.queue.results(ids)) == {"get": 2, "head": 2}
    assert process.cost(lambda: process.queue.results([single])) == {"get": 2, "head": 1}


def test_a_wait_polls_less_and_less_often(world: World) -> None:
    """Ten minutes for a batch of 100 and a single task: a poll takes 2 GETs each, and 1 HEAD for the batch."""
    process = world.process()
    ids = [*process.queue.push_many(rounds(100)), process.queue.push({}).id]
    spent = process.cost(lambda: process.queue.wait(ids, timeout_s=600))
    polls = spent["head"] - 3  # at the end it is asked where they are
    assert 300 <= polls <= 390, "a poll in 1.6 to 2 s, and more at the beginning"
    assert spent == {"get": 4 * polls + 4, "head": polls + 3}


def test_a_wait_asks_only_for_those_that_have_not_ended(world: World) -> None:
    process = world.process()
    done = [process.queue.push({"n": n}).id for n in range(10)]
    work(process.queue)
    waits = process.queue.push({}).id
    spent = process.cost(lambda: process.queue.wait([*done, waits], timeout_s=0.1))
    assert spent == {"get": 10 + 2 * 2 + 2, "head": 1}, "two polls, and where the last one is"


def test_with_a_change_token_a_wait_polls_when_something_changed(world: World) -> None:
    """Two seconds at the latest; a change wakes it at once."""
    process, other = world.process(), world.process()
    process.store.hints = True
    pushed = process.queue.push({})
    spent = process.cost(lambda: process.queue.wait([pushed.id], timeout_s=60))
    assert spent == {"get": 2 * 31 + 2, "head": 1}
    claim = other.take()
    process.store.before("get", f"failed/{pushed.id}.json", lambda: next(iter(claim)).done(7))
    began = process.runtime.elapsed_s()
    assert process.queue.result(pushed.id, wait_s=600).value == 7
    assert process.runtime.elapsed_s() - began <= 0.2


# ---- a batch that runs ----


def test_a_task_that_is_done_shows_with_the_next_heartbeat(world: World) -> None:
    process, reader = world.process(), world.process()
    ids = process.queue.push_many([{"n": 0}, {"n": 1, "t": LARGE}, {"n": 2}, {"n": 3}])
    claim = process.take()
    tasks = iter(claim)
    next(tasks).done(None)
    next(tasks).done(LARGE)
    next(tasks).fail("own error", "own trace")
    assert reader.queue.result(ids[0]).state == "pending"
    world.time.sleep(TTL_S / 2)
    for found in (reader.queue.results(ids), [reader.queue.result(id_) for id_ in ids]):
        assert [each.state for each in found] == ["completed", "completed", "failed", "pending"]
        assert [each.value for each in found] == [None, LARGE, None, None]
        assert (found[2].error, found[2].traceback) == ("own error", "own trace")
        assert (found[0].finished_at, found[0].attempts) == (None, 1)
    assert reader.cost(lambda: reader.queue.wait(ids[:2], timeout_s=9)) == {"get": 3, "head": 1}
    next(tasks).done(3)
    assert [each.value for each in reader.queue.results(ids)] == [None, LARGE, None, 3]
    assert reader.queue.result(ids[0]).finished_at is not None


def test_what_the_first_claim_has_done_stays_done(world: World) -> None:
    """However often the batch is taken later; what later claims have done shows at the end."""
    first, reader = world.process(), world.process()
    ids = first.queue.push_many(rounds(3))
    tasks = iter(first.take())
    next(tasks).done("one")
    next(tasks)
    world.time.sleep(TTL_S / 2)
    first.freeze()
    second = world.process()
    claim = second.take(within_s=LATER_S)
    again = iter(claim)
    next(again).done("two")
    world.time.sleep(TTL_S / 2)
    assert claim.token == 2
    assert [each.state for each in reader.queue.results(ids)] == ["completed", "pending", "pending"]
    assert reader.queue.result(ids[0]).value == "one"
    next(again).done("three")
    assert [each.value for each in reader.queue.results(ids)] == ["one", "two", "three"]


def test_a_zombie_cannot_change_what_was_shown(world: World) -> None:
    """It finishes a task that its successor has done, and noted in the lease: that was not shown yet."""
    first, reader = world.process(), world.process()
    ids = first.queue.push_many(rounds(2))
    tasks = iter(first.take())
    zombie = next(tasks)
    first.freeze()
    second = world.process()
    again = iter(second.take(within_s=LATER_S))
    next(again).done("successor")
    world.time.sleep(TTL_S / 2)
    shown = reader.queue.result(ids[0])
    zombie.done("zombie")
    held(zombie._claim).hand_back()
    next(again).done()
    ended = reader.queue.result(ids[0])
    assert not shown.ready or shown.value == ended.value
    assert ended.ready


def test_one_damaged_receipt_hides_no_other_result() -> None:
    fleet = limpet.open("memory://")
    queue = fleet.queue("q")
    ids = [queue.push({"n": n}, id=f"x{n}").id for n in range(3)]
    while claim := queue.claim():
        with claim:
            for task in claim:
                task.done(task.payload["n"])
    fleet.store.put(QueueKeys.of("q").completed_of("x1"), b"{")
    for found in (queue.results(ids), queue.wait(ids, timeout_s=0.0)):
        assert [result.state for result in found] == ["completed", "unknown", "completed"]
        assert [result.value for result in found] == [0, None, 2]
        assert "x1.json is not a valid" in (found[1].error or "")
    with pytest.raises(Corrupt):
        queue.result("x1", wait_s=0.1)
