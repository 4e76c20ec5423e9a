"""The tasks of one claim in several threads: what is charged, what runs alone, and whose verdict counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from limpet.kernel.errors import Denied, Unavailable
from limpet.kernel.keys import QueueKeys
from limpet.queue import Fail
from limpet.queue.claim import EntryClaim, EntryTask
from limpet.queue.decide import ABANDONED
from limpet.queue.entry import EntryLease
from limpet.worker import Job, Worker, WorkerEvent
from support.queue import NAME, TTL_S, Process, World, raises, rounds
from support.stores import lost_reply


def entry_of(ids: Sequence[str]) -> str:
    return ids[0].rpartition(".")[0]


def started(claim: EntryClaim, number: int) -> list[EntryTask]:
    """So many tasks of the claim, as that many threads run them."""
    tasks = [claim.start_next() for _ in range(number)]
    assert all(tasks)
    return [task for task in tasks if task is not None]


def attempts(process: Process) -> dict[str, int]:
    """The attempt of each task that the next claim starts."""
    return {task.id: task.attempt for task in process.take()}


def died_at(world: World, number: int, **policy: Any) -> list[str]:
    """A batch of 5 whose second holder died while it ran the first `number` tasks."""
    ids = world.process().queue.push_many(rounds(5))
    world.dead(**policy)
    process = world.process(**policy)
    started(process.take(), number)
    process.freeze()
    return [*map(str, ids)]


# ---- attempts ----


def test_each_task_that_runs_is_named_in_the_lease_and_charged_and_no_other(world: World) -> None:
    ids = died_at(world, 3)
    record = world.lease(entry_of(ids))
    assert ({record.running, *record.beside}, record.attempts) == ({0, 1, 2}, {0: 1, 1: 1, 2: 1})
    assert attempts(world.process()) == dict(zip(ids, [2, 2, 2, 1, 1], strict=True))


def test_the_heartbeat_of_a_first_claim_names_what_runs_just_then(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(5))
    claim = process.take()
    tasks = started(claim, 3)
    tasks[1].done()
    world.time.sleep(TTL_S / 2)
    record = world.lease(entry_of(ids))
    assert ({record.running, *record.beside}, record.done) == ({0, 2}, [1])
    tasks[0].done()
    process.freeze()
    assert attempts(world.process()) == {ids[0]: 2, ids[2]: 2, ids[3]: 1, ids[4]: 1}


def test_each_task_that_ran_when_its_worker_died_says_so(world: World) -> None:
    ids = died_at(world, 2)
    world.process().take()
    said = [[error.error for error in world.process().queue.errors(id_)] for id_ in ids]
    assert said == [[ABANDONED], [ABANDONED], [], [], []]


def test_threads_that_start_at_the_same_time_share_one_put(world: World) -> None:
    world.process().queue.push_many(rounds(6))
    world.dead()
    process = world.process()
    claim = process.take()
    process.store.log.clear()
    process.store.before("put", "lease.json", lambda: world.time.sleep(1))
    found: list[EntryTask | None] = []
    for n in range(5):
        process.runtime.spawn(lambda: found.append(claim.start_next()), name=f"t{n}")
    world.time.sleep(2)
    assert process.store.wrote("put") == [f"put pending/{claim.entry}/lease.json"] * 2
    assert sorted(task.id for task in found if task) == [f"{claim.entry}.{n}" for n in range(5)]
    assert world.lease(claim.entry).attempts == dict.fromkeys(range(5), 1)


def test_a_group_whose_charge_is_unknown_is_not_started_and_not_charged(world: World) -> None:
    world.process().queue.push_many(rounds(4))
    world.dead()
    process = world.process()
    with process.take() as claim:
        first = claim.start_next()
        assert first is not None
        process.store.before("put", "lease.json", lambda: world.time.sleep(1))
        found: list[EntryTask | None] = []
        for n in range(3):
            process.runtime.spawn(lambda: found.append(claim.start_next()), name=f"t{n}")
        world.time.sleep(0.5)
        process.store.puts.extend([lost_reply, lost_reply])
        process.store.before("get", "lease.json", raises(Unavailable("away")))
        process.store.before("get", "lease.json", raises(Unavailable("away")))
        world.time.sleep(1)
        assert found == [None, None, None]
        assert not claim.may_start
        first.done()
    assert sorted(attempts(process).values()) == [1, 1, 1]


def test_a_worker_of_0_1_that_takes_over_counts_each_attempt(world: World) -> None:
    """It does not know `beside` and `suspects`, and writes the lease without them."""
    ids = died_at(world, 3)
    key = QueueKeys.of(NAME).lease(entry_of(ids))
    fields = msgspec.json.decode(world.memory.get(key).data)
    del fields["beside"]
    world.memory.put(key, msgspec.json.encode(fields))
    assert [*attempts(world.process()).values()] == [2, 2, 2, 1, 1]


# ---- suspects ----


def test_suspects_run_first_and_one_at_a_time_with_nothing_beside(world: World) -> None:
    ids = died_at(world, 3)
    claim = world.process().take()
    for n in range(3):
        task = claim.start_next()
        assert task is not None
        assert task.id == ids[n]
        assert (claim.start_next(), claim.may_start) == (None, False)
        task.done() if n else task.retry(60.0)
    assert [task.id for task in started(claim, 2)] == ids[3:]


def test_a_suspect_stays_one_until_it_has_a_verdict(world: World) -> None:
    ids = died_at(world, 3)
    process = world.process()
    claim = process.take()
    started(claim, 1)[0].done()
    started(claim, 1)
    claim.hand_back()
    assert sorted(world.lease(entry_of(ids)).suspects) == [1, 2]
    again = process.take()
    assert (started(again, 1)[0].id, again.start_next()) == (ids[1], None)


@pytest.mark.parametrize("max_attempts", [2, 3, 5])
def test_what_runs_beside_a_killer_is_charged_once_for_it(world: World, max_attempts: int) -> None:
    ids = [*map(str, world.process().queue.push_many(rounds(4)))]
    starts: list[tuple[str, int]] = []
    for n in range(20):
        process = world.process(f"w{n}", max_attempts=max_attempts)
        claim = process.queue.claim(wait_s=10 * TTL_S)
        if not claim:
            break
        while tasks := [task for _ in range(4) if (task := claim.start_next()) is not None]:
            starts += [(task.id, task.attempt) for task in tasks]
            if any(task.id == ids[1] for task in tasks):
                process.freeze()
                break
            for task in tasks:
                task.done()
    queue = world.process().queue
    assert [queue.result(id_).state for id_ in ids] == ["completed", "failed", "completed", "completed"]
    assert max(attempt for id_, attempt in starts if id_ != ids[1]) == 2
    assert [attempt for id_, attempt in starts if id_ == ids[1]] == [1, *range(1, max_attempts + 1)]


@pytest.mark.parametrize("policy", [{"max_attempts": 1}, {"concurrency": 2}])
def test_nothing_is_spread_with_one_attempt_or_a_limit(world: World, policy: dict[str, Any]) -> None:
    process = world.process(**policy)
    ids = process.queue.push_many(rounds(3))
    claim = process.take()
    for n in range(3):
        task = claim.start_next()
        assert task is not None
        assert task.id == ids[n]
        assert (claim.start_next(), claim.may_start) == (None, False)
        task.done()


# ---- verdicts ----


@pytest.mark.parametrize("size", [1, 5_000])
@pytest.mark.parametrize("other", [1, 5_000])
def test_a_verdict_that_comes_while_another_thread_ends_the_claim_counts(world: World, size: int, other: int) -> None:
    """Whatever is being written just then, the lease or a large result. The task went back too, and fails there."""
    process = world.process()
    ids = process.queue.push_many(rounds(3))
    claim = process.take()
    one, two, _ = started(claim, 3)
    two.done("r" * other)
    process.store.before("put", ".json", lambda: one.done("r" * size))
    claim.hand_back()
    world.process().drain(lambda task: task.fail("no"))
    results = [process.queue.result(id_) for id_ in ids]
    assert [result.state for result in results] == ["completed", "completed", "failed"]
    assert [result.value for result in results] == ["r" * size, "r" * other, None]


@pytest.mark.parametrize("by_swap", [False, True])
def test_handing_back_restores_the_attempts_of_all_that_run(world: World, by_swap: bool) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(5))
    if by_swap:
        process.take().hand_back()
    claim = process.take()
    tasks = started(claim, 4)
    tasks[1].retry(after_s=0)
    world.time.sleep(TTL_S / 2)
    claim.hand_back()
    assert attempts(process) == {id_: 2 if n == 1 else 1 for n, id_ in enumerate(ids)}


def test_each_task_has_its_own_error(world: World) -> None:
    process = world.process(max_attempts=2)
    ids = process.queue.push_many(rounds(3))
    claim = process.take()
    for n, task in reversed([*enumerate(started(claim, 3))]):
        task.retry(0.0, f"error {n}", f"Traceback {n}")
    found = [process.queue.errors(id_)[-1] for id_ in ids]
    assert [(error.error, error.traceback) for error in found] == [(f"error {n}", f"Traceback {n}") for n in range(3)]


def test_the_last_verdict_of_several_threads_ends_the_batch(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(3))
    one, two, three = started(process.take(), 3)
    process.store.before("put", f"failed/{ids[0]}.json", lambda: two.done(2))
    three.done(3)
    one.fail("no")
    assert [process.queue.result(id_).state for id_ in ids] == ["failed", "completed", "completed"]
    assert world.names() == [f"completed/{entry_of(ids)}.json", f"failed/{ids[0]}.json"]


def test_a_store_that_refuses_one_verdict_is_no_error_of_the_neighbours(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(4))
    events: list[WorkerEvent] = []

    def handle(payload: dict[str, int]) -> None:
        world.time.sleep(1)
        if payload["n"] < 2:
            raise Fail(f"error {payload['n']}")

    process.store.before("put", f"failed/{ids[0]}.json", raises(Denied("no")))
    worker = Worker([Job(process.queue, handle)], process.runtime, threads=4, listener=events.append)
    world.time.at(60, worker.stop)
    worker.run()
    assert [event.note.partition(" ")[0] for event in events if event.kind == "trouble"] == ["no"]
    results = [process.queue.result(id_) for id_ in ids]
    assert [result.error for result in results] == ["error 0", "error 1", None, None]
    assert [[each.error for each in result.errors] for result in results[:2]] == [
        ["Denied: no", "error 0"],
        ["error 1"],
    ]


# ---- time ----


def held_s(world: World, process: Process, entry: str) -> float:
    """How long the lease was renewed from now on."""
    began_s, last_s, before = world.time.now_s, world.time.now_s, world.lease(entry)
    while world.time.now_s < began_s + 20 * TTL_S:
        world.time.sleep(1)
        now: EntryLease = world.lease(entry)
        if now != before:
            before, last_s = now, world.time.now_s
    return last_s - began_s


def test_the_time_counts_for_each_task(world: World) -> None:
    process = world.process(timeout_s=4 * TTL_S)
    ids = process.queue.push_many(rounds(4))
    claim = process.take()
    one = started(claim, 1)[0]
    world.time.sleep(3 * TTL_S)
    started(claim, 1)
    one.done()
    assert 3 * TTL_S < held_s(world, process, entry_of(ids)) <= 4 * TTL_S + 1, "that of the second task"


def test_one_task_past_its_time_ends_the_claim_though_others_are_young(world: World) -> None:
    process = world.process(timeout_s=4 * TTL_S)
    ids = process.queue.push_many(rounds(4))
    claim = process.take()
    started(claim, 1)
    world.time.sleep(3 * TTL_S)
    started(claim, 1)
    assert held_s(world, process, entry_of(ids)) <= TTL_S + 1
    assert (claim.lost, claim.may_start, claim.start_next()) == (True, False, None)
