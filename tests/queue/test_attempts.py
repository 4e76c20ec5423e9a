"""Attempts are per task: who is charged, when, and what a killer costs its neighbours (H3, F19)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from limpet.kernel.errors import LeaseLost, LimpetError, OutcomeUnknown, Unavailable
from limpet.queue.claim import EntryTask
from support.queue import TTL_S, Process, World, raises, rounds
from support.stores import lost_reply, lost_request

MAXIMA = [1, 2, 3]


def starts_of_a_killer(max_attempts: int) -> list[int]:
    """The attempts of a task that kills each process at once: the first death charges nobody, unless it is the last."""
    return [*([1] if max_attempts > 1 else []), *range(1, max_attempts + 1)]


def workers(world: World, max_attempts: int) -> Iterator[Process]:
    """One process after another, as long as there is work."""
    for n in range(40):
        yield world.process(f"w{n}", max_attempts=max_attempts)
    raise AssertionError("the work never ends")


def work_until(process: Process, killer: str, starts: list[tuple[str, int]]) -> bool:
    """Work as a process does that dies of the task `killer`; whether it lived on and found nothing more."""
    while claim := process.queue.claim(wait_s=10 * TTL_S):
        with_claim = iter(claim)
        for task in with_claim:
            starts.append((task.id, task.attempt))
            if task.id == killer:
                process.freeze()
                return False
            task.done()
        claim.hand_back()
    return True


# ---- a single task ----


@pytest.mark.parametrize("max_attempts", MAXIMA)
def test_a_task_that_kills_its_process_is_given_up_at_the_limit(world: World, max_attempts: int) -> None:
    world.process().queue.push({"n": 1}, id="x")
    starts: list[tuple[str, int]] = []
    for process in workers(world, max_attempts):
        if work_until(process, "x", starts):
            break
    assert starts == [("x", n) for n in starts_of_a_killer(max_attempts)]
    result = world.process().queue.result("x")
    assert (result.state, result.attempts) == ("failed", max_attempts)
    assert "worker died" in (result.error or "")
    assert world.names() == ["failed/x.json"]
    assert bytes(world.receipt("failed/x").payload) == b'{"n":1}'


@pytest.mark.parametrize("max_attempts", MAXIMA)
def test_h3_dying_before_the_handler_starts_never_gives_a_task_up(world: World, max_attempts: int) -> None:
    world.process().queue.push({}, id="x")
    for _ in range(4):
        world.dead(max_attempts=max_attempts)
    _, task = world.process(max_attempts=max_attempts).start()
    assert task.attempt == 1
    task.done()
    assert world.process().queue.result("x").state == "completed"


@pytest.mark.parametrize("max_attempts", MAXIMA)
def test_every_handler_that_raises_costs_one_attempt(world: World, max_attempts: int) -> None:
    process = world.process(max_attempts=max_attempts)
    process.queue.push({}, id="x")
    seen: list[int] = []

    def handle(task: EntryTask) -> None:
        seen.append(task.attempt)
        task.retry(after_s=0, error="boom")

    process.drain(handle)
    assert seen == [*range(1, max_attempts + 1)]
    assert process.queue.result("x").error == "boom"


@pytest.mark.parametrize("error", [OutcomeUnknown("no answer"), Unavailable("away")])
@pytest.mark.parametrize("batch", [False, True])
def test_giving_up_that_fails_holds_nothing_for_ever(world: World, error: LimpetError, batch: bool) -> None:
    """F16: nobody has the claim, so nobody may renew it."""
    pusher = world.process()
    id_ = pusher.queue.push_many(rounds(2))[0] if batch else pusher.queue.push({}).id
    world.killed(max_attempts=1)
    two = world.process(max_attempts=1, timeout_s=None)
    two.store.away("put", f"failed/{id_}.json", error)
    while f"put failed/{id_}.json" not in two.store.log:
        world.time.sleep(5)
        with suppress(Unavailable):
            assert not two.queue.claim()
    assert world.process().queue.result(id_).state == "pending"
    world.process(max_attempts=1).drain(idle_s=10 * TTL_S)
    assert world.process().queue.result(id_).state == "failed"


def test_an_error_before_a_death_is_not_forgotten(world: World) -> None:
    process = world.process(max_attempts=2)
    process.queue.push({}, id="x")
    process.start()[1].retry(after_s=0, error="boom")
    world.killed(max_attempts=2)
    assert world.process(max_attempts=2).drain() == []
    error = world.process().queue.result("x").error or ""
    assert "worker died" in error
    assert "boom" in error


# ---- a batch ----


@pytest.mark.parametrize("max_attempts", MAXIMA)
@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_killer_in_a_batch_is_found_and_its_neighbours_are_done(world: World, max_attempts: int, place: int) -> None:
    ids = world.process().queue.push_many(rounds(5))
    starts: list[tuple[str, int]] = []
    for process in workers(world, max_attempts):
        if work_until(process, ids[place], starts):
            break
    queue = world.process().queue
    assert [queue.result(id_).state for id_ in ids] == ["failed" if n == place else "completed" for n in range(5)]
    times = Counter(id_ for id_, _ in starts)
    assert [n for id_, n in starts if id_ == ids[place]] == starts_of_a_killer(max_attempts)
    assert all(times[id_] <= 2 for id_ in ids if id_ != ids[place]), (
        "only what one process did not write down is done again"
    )
    assert "worker died" in (queue.result(ids[place]).error or "")


@pytest.mark.parametrize("max_attempts", MAXIMA)
def test_two_killers_in_a_batch(world: World, max_attempts: int) -> None:
    ids = world.process().queue.push_many(rounds(4))
    starts: list[str] = []
    for process in workers(world, max_attempts):
        claim = process.queue.claim(wait_s=10 * TTL_S)
        if not claim:
            break
        for task in claim:
            starts.append(task.id)
            if task.id in (ids[1], ids[3]):
                process.freeze()
                break
            task.done()
    queue = world.process().queue
    assert [queue.result(id_).state for id_ in ids] == ["completed", "failed", "completed", "failed"]
    assert Counter(starts)[ids[1]] == len(starts_of_a_killer(max_attempts))
    assert Counter(starts)[ids[3]] == max_attempts


def test_a_neighbour_that_was_never_started_is_not_charged_for_the_killer(world: World) -> None:
    ids = world.process().queue.push_many(rounds(3))
    entry = ids[0].rpartition(".")[0]
    for _ in range(3):
        world.killed(max_attempts=5)
    assert (world.lease(entry).charged, world.lease(entry).attempts) == (0, {0: 2})
    _, task = world.process(max_attempts=5).start()
    assert (task.id, task.attempt) == (ids[0], 3)


def test_tasks_that_a_dead_first_claim_never_started_have_all_their_attempts(world: World) -> None:
    """The finding: with two attempts, one run was already the end."""
    ids = world.process().queue.push_many(rounds(3))
    world.killed(max_attempts=2)
    seen: list[tuple[str, int]] = []

    def handle(task: EntryTask) -> None:
        seen.append((task.id, task.attempt))
        task.retry(after_s=0, error="boom")

    world.process(max_attempts=2).drain(handle)
    assert sorted(seen) == [(id_, attempt) for id_ in ids for attempt in (1, 2)]
    assert [world.process().queue.result(id_).attempts for id_ in ids] == [2, 2, 2]


@pytest.mark.parametrize("batch", [False, True])
def test_a_first_claim_that_dies_after_a_heartbeat_charges_what_it_had_started(world: World, batch: bool) -> None:
    pusher = world.process().queue
    ids = pusher.push_many(rounds(3)) if batch else [pusher.push({}, id="x").id]
    process = world.process(max_attempts=5)
    tasks = iter(process.take())
    if batch:
        next(tasks).done()
    killer = next(tasks)
    world.time.sleep(TTL_S / 2)
    if batch:
        killer.done("not written")
        next(tasks)
    process.freeze()
    attempts = {task.id: task.attempt for task in world.process(max_attempts=5).take()}
    assert attempts == ({ids[1]: 2, ids[2]: 1} if batch else {"x": 2})


@pytest.mark.parametrize("max_attempts", MAXIMA)
def test_h3_a_batch_whose_holders_die_before_they_start_loses_no_attempt(world: World, max_attempts: int) -> None:
    ids = world.process().queue.push_many(rounds(3))
    for _ in range(4):
        world.dead(max_attempts=max_attempts)
    assert world.process(max_attempts=max_attempts).drain() == ids
    assert [world.process().queue.result(id_).state for id_ in ids] == ["completed"] * 3


def test_the_charge_is_written_before_the_handler_starts(world: World) -> None:
    process = world.process(max_attempts=1)
    ids = process.queue.push_many(rounds(2))
    entry = ids[0].rpartition(".")[0]
    claim = process.take()
    assert (world.lease(entry).charged, world.lease(entry).running) == (0, None)
    tasks = iter(claim)
    for n in range(2):
        task = next(tasks)
        record = world.lease(entry)
        assert (record.running, record.attempts[n], record.attempt) == (n, 1, 1)
        task.done()


def test_a_first_claim_needs_no_swap_to_start_a_task(world: World) -> None:
    process = world.process(max_attempts=3)
    process.queue.push_many(rounds(3))
    claim = process.take()
    process.store.log.clear()
    tasks = [*claim]
    assert process.store.log == []
    assert [task.attempt for task in tasks] == [1, 1, 1]


# ---- handing back ----


@pytest.mark.parametrize("max_attempts", MAXIMA)
def test_handing_back_restores_the_attempt(world: World, max_attempts: int) -> None:
    world.process().queue.push({}, id="x")
    for n in range(10):
        process = world.process(f"w{n}", max_attempts=max_attempts)
        claim, task = process.start()
        assert task.attempt == 1
        claim.hand_back()
        assert claim.over
    _, task = world.process(max_attempts=max_attempts).start()
    assert task.attempt == 1


def test_handing_back_keeps_the_attempts_of_others(world: World) -> None:
    """One is done, one nacked, one running, one not started: the nack stays charged, and nothing else."""
    process = world.process(max_attempts=5)
    ids = process.queue.push_many(rounds(4))
    with process.take() as claim:
        tasks = iter(claim)
        next(tasks).done("kept")
        next(tasks).retry(after_s=0)
        next(tasks)
        claim.hand_back()
    attempts = {task.id: task.attempt for task in process.take()}
    assert attempts == {ids[1]: 2, ids[2]: 1, ids[3]: 1}


def test_handing_back_a_later_claim_restores_what_it_started_and_no_more(world: World) -> None:
    process = world.process(max_attempts=5)
    ids = process.queue.push_many(rounds(4))
    for n in range(2):
        with process.take() as claim:
            for task in claim:
                task.retry(after_s=0, error=f"round {n}")
    with process.take() as claim:
        tasks = iter(claim)
        next(tasks).retry(after_s=0)
        next(tasks)
        claim.hand_back()
    attempts = {task.id: task.attempt for task in process.take()}
    assert attempts == {ids[0]: 4, ids[1]: 3, ids[2]: 3, ids[3]: 3}


def test_tasks_that_were_started_ahead_are_all_restored(world: World) -> None:
    process = world.process(max_attempts=1)
    process.queue.push_many(rounds(3))
    claim = process.take()
    assert [task.attempt for task in claim] == [1, 1, 1]
    claim.hand_back()
    assert [task.attempt for task in process.take()] == [1, 1, 1]


@pytest.mark.parametrize("started", [False, True])
def test_handing_back_does_not_bring_a_wait_back(world: World, started: bool) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    process.start()[1].retry(after_s=3600)
    world.time.sleep(3601)
    claim = process.take(within_s=60)
    if started:
        next(iter(claim))
    claim.hand_back()
    assert process.start(within_s=60)[1].attempt == 2


def test_a_wait_that_is_over_is_over_for_the_next_holder_too(world: World) -> None:
    """Two tasks wait an hour, then their holder dies in the first: the second does not wait another hour."""
    process = world.process(max_attempts=9)
    ids = process.queue.push_many(rounds(2))
    with process.take() as claim:
        for task in claim:
            task.retry(after_s=3600)
    world.time.sleep(3601)
    world.killed(max_attempts=9)
    assert world.process(max_attempts=9).drain() == ids


def test_a_wait_that_is_over_is_over_for_a_process_that_starts_later(world: World) -> None:
    """On a quiet bucket it has seen no time but that of the record itself. Free or held, it asks for the clock."""
    process = world.process(max_attempts=9)
    free = process.queue.push({}, id="free").id
    process.start()[1].retry(after_s=3600)
    ids = process.queue.push_many(rounds(2))
    tasks = iter(process.take())
    next(tasks).retry(after_s=3600)
    next(tasks)
    world.time.sleep(TTL_S / 2)
    process.freeze()
    assert world.lease(ids[0].rpartition(".")[0]).waits
    world.time.sleep(7200)
    late = world.process(max_attempts=9)
    assert sorted(late.drain(idle_s=10 * TTL_S)) == sorted([free, *ids])
    assert world.time.now_s < 1000 + 2 * 7200


def test_a_wait_that_is_not_over_outlives_its_holder(world: World) -> None:
    process = world.process(max_attempts=9)
    ids = process.queue.push_many(rounds(2))
    started_s = world.time.now_s
    with process.take() as claim:
        next(iter(claim)).retry(after_s=3600)
    world.killed(max_attempts=9)
    worker = world.process(max_attempts=9)
    ran = worker.collect(lambda task: (task.id, world.time.now_s - started_s >= 3600), idle_s=4000)
    assert ran == [(ids[1], False), (ids[0], True)]


# ---- a charge that nobody heard of ----


@pytest.mark.parametrize("fault", [lost_reply, lost_request])
def test_a_task_is_not_started_when_its_charge_is_unknown_and_not_charged_for_it(world: World, fault: object) -> None:
    process = world.process(max_attempts=1)
    process.queue.push({}, id="x")
    with process.take() as claim:
        process.store.puts.append(fault)  # type: ignore[arg-type]
        process.store.before("get", "lease.json", raises(Unavailable("away")))
        assert [*claim] == []
    _, task = process.start()
    assert task.attempt == 1
    task.done()
    assert process.queue.result("x").state == "completed"


def test_a_task_is_not_started_when_the_lease_turns_out_lost(world: World) -> None:
    one = world.process(max_attempts=1)
    one.queue.push({}, id="x")
    claim = one.take()
    one.freeze()
    world.time.sleep(TTL_S / 2)
    world.process().queue.cancel("x")
    assert [*claim] == []
    with pytest.raises(LeaseLost):
        claim.renew()


def test_a_failure_that_could_not_be_written_down_costs_its_attempt(world: World) -> None:
    """The claim has run out on its own clock, and the store is away when it asks. Then the store is back."""
    process = world.process(max_attempts=3)
    process.queue.push({}, id="x")
    process.start()[1].retry(after_s=0)
    claim, task = process.start()
    process.freeze()
    world.time.sleep(TTL_S + 1)
    process.store.before("put", "lease.json", raises(Unavailable("away")))
    task.fail("no")
    claim.hand_back()
    process.runtime.frozen = False
    assert process.start()[1].attempt == 3
