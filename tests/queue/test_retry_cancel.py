"""What operators do: retry, cancel, pause, purge, stats, peek."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest

from limpet.kernel.errors import Conflict, Invalid, LeaseLost, Missing, OutcomeUnknown
from limpet.kernel.lease import State
from limpet.queue import Stats
from limpet.queue.claiming import CONTROL_EVERY_S
from limpet.queue.queue import pending_in
from support.queue import TTL_S, Crash, World, crash, raises, rounds
from support.stores import lost_reply


def entry_of(ids: Sequence[str]) -> str:
    return ids[0].rpartition(".")[0]


def failed(world: World, *names: str) -> None:
    """Push tasks that fail."""
    process = world.process()
    for name in names:
        process.queue.push({"name": name}, id=name)
    process.drain(lambda task: task.fail(f"{task.id} failed"))


# ---- retry ----


def test_a_failed_task_gets_another_life_with_fresh_attempts(world: World) -> None:
    failed(world, "x")
    process = world.process()
    assert process.queue.retry("x") == ["x~1"]
    assert process.queue.result("x").state == "pending"
    assert process.queue.result("x").id == "x~1"
    _, task = process.start()
    assert (task.id, task.payload, task.attempt) == ("x~1", {"name": "x"}, 1)
    task.done("at last")
    for id_ in ("x", "x~1"):
        result = process.queue.result(id_)
        assert (result.id, result.state, result.value) == ("x~1", "completed", "at last")
    assert world.names() == ["completed/x~1.json", "failed/x.json"]
    assert (world.receipt("failed/x").state, world.receipt("failed/x").retried_as) == ("retried", "x~1")


def test_lives_are_counted(world: World) -> None:
    failed(world, "x")
    process = world.process()
    for life in range(1, 4):
        before = "x" if life == 1 else f"x~{life - 1}"
        assert process.queue.retry(before) == [f"x~{life}"]
        assert process.queue.retry(before) == [f"x~{life}"], "it is told again, not done again"
        process.drain(lambda task: task.fail("again"))
    assert process.queue.result("x").id == "x~3"
    assert not process.queue.push({}, id="x").created
    assert process.queue.stats().failed == 1


def test_an_awkward_id_can_be_retried(world: World) -> None:
    for id_ in ("a/b.json", "é~"[:1], "x" * 400, "a.b.1"):
        failed(world, id_)
        process = world.process()
        assert process.queue.retry(id_) == [f"{id_}~1"]
        assert process.drain() == [f"{id_}~1"]
        assert process.queue.result(id_).state == "completed"


def test_a_minted_task_can_be_retried(world: World) -> None:
    process = world.process()
    pushed = process.queue.push({"n": 1})
    process.drain(lambda task: task.fail("no"))
    assert process.queue.retry(pushed.id) == [f"{pushed.id}~1"]
    assert process.drain() == [f"{pushed.id}~1"]


def test_h2_a_failed_task_of_a_batch_can_be_retried(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(3))
    process.drain(lambda task: task.fail("no") if task.payload["n"] == 1 else task.done())
    process.queue.sweep()
    assert process.queue.retry(ids[1]) == [f"{ids[1]}~1"]
    assert process.collect(lambda task: (task.id, task.payload)) == [(f"{ids[1]}~1", {"n": 1})]
    assert process.queue.result(ids[1]).value == f"{ids[1]}~1"
    assert process.queue.stats() == Stats(
        pending=0, in_flight=0, scheduled=0, completed=3, failed=0, oldest_s=None, paused=False
    )


def test_all_failed_tasks_at_once(world: World) -> None:
    failed(world, "a", "b", "c")
    process = world.process()
    process.queue.retry("b")
    process.drain()
    assert sorted(process.queue.retry(all=True)) == ["a~1", "c~1"]
    assert process.queue.retry(all=True) == []
    assert sorted(process.drain()) == ["a~1", "c~1"]


@pytest.mark.parametrize(
    ("verb", "key"), [("put", "failed/x.json"), ("head", "failed/x~1.json"), ("head", "completed/x~1.json")]
)
def test_h1_a_retry_that_dies_half_way_loses_nothing(world: World, verb: str, key: str) -> None:
    failed(world, "x")
    operator = world.process()
    operator.store.before(verb, key, crash)
    with pytest.raises(Crash):
        operator.queue.retry("x")
    other = world.process()
    assert other.queue.retry("x") == ["x~1"]
    assert other.drain() == ["x~1"]
    assert other.queue.retry("x") == ["x~1"]
    assert other.drain() == []
    assert other.queue.result("x").state == "completed"


def test_h1_the_new_life_comes_before_the_mark(world: World) -> None:
    failed(world, "x")
    process = world.process()
    process.queue.retry("x")
    assert process.store.wrote("put") == ["put pending/x~1/task.json", "put failed/x.json"]


def test_a_retry_that_died_and_whose_new_life_is_over_runs_nothing_twice(world: World) -> None:
    failed(world, "x")
    operator = world.process()
    operator.store.before("put", "failed/x.json", crash)
    with pytest.raises(Crash):
        operator.queue.retry("x")
    other = world.process()
    assert other.drain() == ["x~1"]
    assert other.queue.retry("x") == ["x~1"]
    assert other.drain() == []
    assert other.queue.result("x").state == "completed"


def test_two_retries_at_once_make_one_life(world: World) -> None:
    failed(world, "x")
    one, two = world.process(), world.process()
    answers: list[list[str]] = []
    one.store.before("put", "task.json", lambda: answers.append([*two.queue.retry("x")]))
    answers.append([*one.queue.retry("x")])
    assert answers == [["x~1"], ["x~1"]]
    assert one.drain() == ["x~1"]
    assert one.queue.retry(all=True) == []


def test_a_lost_reply_to_a_retry(world: World) -> None:
    failed(world, "x")
    process = world.process()
    process.store.puts.append(lost_reply)
    assert process.queue.retry("x") == ["x~1"]
    assert process.drain() == ["x~1"]


def test_what_completed_all_the_same_is_not_retried(world: World) -> None:
    """H4: completed beats failed, also before a sweep has tidied up."""
    world.process().queue.push({}, id="x")
    zombie = world.killed(max_attempts=1)
    process = world.process(max_attempts=1)
    process.drain()
    zombie.done()
    assert process.queue.retry(all=True) == []
    with pytest.raises(Missing):
        process.queue.retry("x")
    assert process.drain() == []


def test_what_was_cancelled_is_retried_by_name_only(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    process.queue.cancel("x")
    assert process.queue.retry(all=True) == []
    assert process.queue.retry("x") == ["x~1"]
    assert process.drain() == ["x~1"]


@pytest.mark.parametrize("how", ["nothing", "both", "unknown", "pending", "completed", "a cancelled batch"])
def test_what_cannot_be_retried(world: World, how: str) -> None:
    process = world.process()
    process.queue.push({}, id="done")
    process.drain()
    process.queue.push({}, id="waits")
    ids = process.queue.push_many(rounds(2))
    before = world.names()
    match how:
        case "nothing":
            with pytest.raises(Invalid, match="which task"):
                process.queue.retry()
        case "both":
            with pytest.raises(Invalid, match="which task"):
                process.queue.retry("x", all=True)
        case "a cancelled batch":
            process.queue.cancel(entry_of(ids))
            before = world.names()
            with pytest.raises(Invalid, match="cannot be retried"):
                process.queue.retry(entry_of(ids))
        case _:
            with pytest.raises(Missing, match="no failed task"):
                process.queue.retry({"unknown": "x", "pending": "waits", "completed": "done"}[how])
    assert world.names() == before


# ---- cancel ----


def test_a_task_that_waits_is_cancelled(world: World) -> None:
    process = world.process()
    process.queue.push({"n": 1}, id="x")
    assert process.queue.cancel("x")
    assert world.names() == ["failed/x.json"]
    result = process.queue.result("x")
    assert (result.state, result.error, result.ready) == ("cancelled", "cancelled", True)
    assert process.drain() == []
    assert not process.queue.cancel("x")
    assert bytes(world.receipt("failed/x").payload) == b'{"n":1}'


def test_a_task_that_rests_is_cancelled(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    process.start()[1].retry(after_s=100)
    assert process.queue.cancel("x")
    assert process.drain(idle_s=300) == []
    assert world.names() == ["failed/x.json"]


def test_a_task_that_runs_is_cancelled_and_its_worker_learns_of_it(world: World) -> None:
    worker, operator = world.process(), world.process()
    worker.queue.push({}, id="x")
    claim, task = worker.start()
    assert operator.queue.cancel("x")
    assert world.names() == ["failed/x.json"]
    assert not claim.lost
    world.time.sleep(TTL_S / 2)
    assert task.lost
    with pytest.raises(LeaseLost):
        claim.renew()
    with claim:
        pass
    assert world.names() == ["failed/x.json"]
    assert worker.drain() == []


def test_a_cancelled_task_that_succeeds_all_the_same_succeeded(world: World) -> None:
    worker, operator = world.process(), world.process()
    worker.queue.push({}, id="x")
    _, task = worker.start()
    operator.queue.cancel("x")
    task.done("all the same")
    assert operator.queue.result("x").value == "all the same"
    operator.queue.sweep()
    assert world.names() == ["completed/x.json"]


@pytest.mark.parametrize("verdict", ["fail", "retry"])
def test_a_cancelled_task_that_fails_stays_cancelled(world: World, verdict: str) -> None:
    worker, operator = world.process(max_attempts=2), world.process()
    worker.queue.push({}, id="x")
    claim, task = worker.start()
    operator.queue.cancel("x")
    with claim:
        if verdict == "fail":
            task.fail("no")
        else:
            task.retry(after_s=0)
    assert world.names() == ["failed/x.json"]
    assert operator.queue.result("x").state == "cancelled"


@pytest.mark.parametrize("verb", ["put", "delete"])
def test_a_cancel_that_dies_half_way_is_finished_by_the_next_worker(world: World, verb: str) -> None:
    operator = world.process()
    operator.queue.push({}, id="x")
    operator.store.before(verb, "failed/x.json" if verb == "put" else "task.json", crash)
    with pytest.raises(Crash):
        operator.queue.cancel("x")
    assert world.facts("x")[0] is State.CANCELLED
    worker = world.process()
    assert worker.drain() == []
    assert world.names() == ["failed/x.json"]
    assert worker.queue.result("x").state == "cancelled"


def test_a_cancel_against_a_claim(world: World) -> None:
    """The claim comes first: the cancel swaps what it made. The cancel comes first: there is nothing to claim."""
    worker, operator = world.process(), world.process()
    worker.queue.push({}, id="x")
    operator.store.before("put", "lease.json", lambda: worker.start())
    assert operator.queue.cancel("x")
    assert world.names() == ["failed/x.json"]
    worker.queue.push({}, id="y")
    worker.queue.discovery.list_page()
    worker.store.before("put", "pending/y/lease.json", lambda: operator.queue.cancel("y"))
    assert not worker.queue.claim()
    world.process().queue.sweep()
    assert world.names() == ["failed/x.json", "failed/y.json"]


def test_a_cancel_against_an_end(world: World) -> None:
    worker, operator = world.process(), world.process()
    worker.queue.push({}, id="x")
    _, task = worker.start()
    operator.store.before("put", "lease.json", task.done)
    with suppress(Conflict, OutcomeUnknown, Missing):
        assert not operator.queue.cancel("x")
    world.process().queue.sweep()
    assert world.names() == ["completed/x.json"]


def test_a_delayed_task_is_cancelled(world: World) -> None:
    process = world.process()
    for n in range(2):
        process.queue.push({"n": n}, id="x", delay_s=50 + n)
    process.queue.push({}, id="xx", delay_s=50)
    assert process.queue.cancel("x")
    assert process.queue.result("x").state == "cancelled"
    assert process.drain(idle_s=200) == ["xx"]
    assert not process.queue.push({}, id="x").created


def test_a_delayed_task_is_cancelled_while_it_is_promoted(world: World) -> None:
    process, promoter = world.process(), world.process()
    process.queue.push({}, id="x", delay_s=5)
    world.time.sleep(60)
    promoter.store.before("put", "pending/x/task.json", lambda: process.queue.cancel("x"))
    assert promoter.drain() == []
    assert world.names() == ["failed/x.json"]


def test_a_batch_is_cancelled_as_a_whole(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(3))
    with pytest.raises(Invalid, match="as a whole"):
        process.queue.cancel(ids[0])
    assert process.queue.cancel(entry_of(ids))
    assert [process.queue.result(id_).state for id_ in ids] == ["cancelled"] * 3
    assert process.drain() == []
    assert world.names() == [f"failed/{entry_of(ids)}.json"]
    assert (process.queue.stats().failed, process.queue.stats().cancelled) == (0, 3)


def test_what_is_not_there_cannot_be_cancelled(world: World) -> None:
    with pytest.raises(Missing, match="waiting"):
        world.process().queue.cancel("x")
    assert world.names() == []


def test_a_retried_life_can_be_cancelled(world: World) -> None:
    failed(world, "x")
    process = world.process()
    process.queue.retry("x")
    assert process.queue.cancel("x~1")
    assert process.queue.result("x").state == "cancelled"
    assert process.drain() == []


# ---- pause ----


def test_a_paused_queue_gives_nothing_however_often_it_is_asked(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    process.queue.pause()
    process.queue.pause()
    for _ in range(5):
        assert not process.queue.claim(wait_s=20)
    assert process.queue.stats().paused
    process.queue.resume()
    process.queue.resume()
    assert process.drain() == ["x"]
    assert not process.queue.stats().paused


def test_a_pause_is_noticed_within_seconds_in_the_middle_of_a_page(world: World) -> None:
    worker, operator = world.process(), world.process()
    for n in range(3):
        worker.queue.push({}, id=f"x{n}")
    worker.take()
    operator.queue.pause()
    world.time.sleep(CONTROL_EVERY_S)
    assert not worker.queue.claim()
    operator.queue.resume()
    assert worker.queue.claim(wait_s=60)


def test_what_runs_goes_on_when_the_queue_is_paused(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    _, task = process.start()
    process.queue.pause()
    world.time.sleep(3 * TTL_S)
    assert not task.lost
    task.done("done")
    assert process.queue.result("x").value == "done"


def test_pushing_goes_on_when_the_queue_is_paused(world: World) -> None:
    process = world.process()
    process.queue.pause()
    assert process.queue.push({}, id="x").created
    assert process.queue.push_many(rounds(2))
    process.queue.push({}, id="y", delay_s=1)
    assert process.drain(idle_s=60) == []
    process.queue.resume()
    assert len(process.drain()) == 4


# ---- purge ----


def test_purge_drops_all_that_waits_and_nothing_else(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="done")
    process.drain()
    process.queue.push({}, id="no")
    process.drain(lambda task: task.fail("no"))
    process.queue.push({}, id="x")
    process.queue.push({})
    process.queue.push_many(rounds(5))
    process.queue.push({}, id="later", delay_s=100)
    assert process.queue.purge() == 8
    assert process.drain(idle_s=300) == []
    assert process.queue.result("x").state == "cancelled"
    stats = process.queue.stats()
    assert (stats.pending, stats.scheduled, stats.completed) == (0, 0, 1)
    assert process.queue.purge() == 0
    assert not process.queue.push({}, id="x").created


@pytest.mark.parametrize("id_", [None, "x"])
def test_purge_under_a_running_task(world: World, id_: str | None) -> None:
    process = world.process()
    pushed = process.queue.push({}, id=id_)
    _, task = process.start()
    assert world.process().queue.purge() == 1
    world.time.sleep(TTL_S)
    assert task.lost
    task.done("done")
    assert process.queue.result(pushed.id).value == "done"
    process.queue.sweep()
    assert world.names() == [f"completed/{pushed.id}.json"]


# ---- stats and peek ----


def test_a_failure_counts_though_a_retry_of_another_life_has_its_name(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="report")
    process.drain(lambda task: task.fail("january"))
    process.queue.retry("report")
    process.queue.storage.store.delete(process.queue.storage.keys.failed_of("report"))  # expired; its retry sleeps
    process.queue.push({}, id="report")
    for _ in range(2):
        with process.take() as claim:
            for task in claim:
                task.fail("february") if task.id == "report" else task.retry(after_s=100_000)
    assert [failure.error for failure in process.queue.failed()] == ["february"]
    assert (process.queue.stats().failed, process.queue.stats().pending) == (1, 1)


def test_counting_what_waits_lists_only_that(world: World) -> None:
    failed(world, "x", "y")
    process = world.process()
    process.queue.push_many(rounds(3), batch=3)
    process.queue.push({})
    process.store.log.clear()
    assert pending_in(process.queue) == 4
    assert [line.split()[0] for line in process.store.log] == ["list"]
    assert process.queue.stats().pending == 4


def test_stats_of_an_empty_queue(world: World) -> None:
    assert world.process().queue.stats() == Stats(
        pending=0, in_flight=0, scheduled=0, completed=0, failed=0, oldest_s=None, paused=False
    )


def test_stats_count_tasks_not_entries(world: World) -> None:
    process = world.process()
    process.queue.push_many(rounds(10), batch=5)
    process.queue.push({}, id="x")
    process.queue.push({}, delay_s=100)
    world.time.sleep(50)
    stats = process.queue.stats()
    assert (stats.pending, stats.in_flight, stats.scheduled) == (11, 0, 1)
    assert stats.oldest_s == pytest.approx(50, abs=2)
    with process.take() as claim:
        tasks = [*claim]
        assert process.queue.stats().in_flight == len(tasks)
        for task in tasks:
            task.done()


def test_stats_add_up_at_every_moment_of_a_mixed_batch(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(5))

    def look() -> tuple[int, int]:
        stats = process.queue.stats()
        assert stats.completed is not None
        assert stats.completed >= 0
        assert stats.failed <= 2
        return stats.pending, stats.completed + stats.failed

    with process.take() as claim:
        for n, task in enumerate(claim):
            assert look()[0] == 5
            task.fail("no") if n % 3 == 1 else task.done()
    assert look() == (0, 5)
    assert (process.queue.stats().completed, process.queue.stats().failed) == (3, 2)
    process.queue.retry(ids[1])
    assert (process.queue.stats().pending, process.queue.stats().failed) == (1, 1)
    process.drain()
    assert (process.queue.stats().completed, process.queue.stats().failed) == (4, 1)


def test_stats_count_a_task_once_though_it_failed_and_then_completed(world: World) -> None:
    world.process().queue.push({}, id="x")
    zombie = world.killed(max_attempts=1)
    process = world.process(max_attempts=1)
    process.drain()
    zombie.done()
    for _ in range(2):
        assert (process.queue.stats().completed, process.queue.stats().failed) == (1, 0)
        process.queue.sweep()


def test_peek_shows_what_waits_and_takes_nothing(world: World) -> None:
    process = world.process()
    process.queue.push({"n": 7}, id="x")
    ids = process.queue.push_many(rounds(3))
    before = world.names()
    shown = {peeked.id: peeked.payload for peeked in process.queue.peek(10)}
    assert shown == {"x": {"n": 7}, **{str(id_): {"n": n} for n, id_ in enumerate(ids)}}
    assert all(peeked.pushed_at is not None for peeked in process.queue.peek())
    assert len(process.queue.peek(2)) == 2
    assert world.names() == before


@pytest.mark.parametrize("n", [0, -1])
def test_peek_wants_a_number(world: World, n: int) -> None:
    with pytest.raises(Invalid, match="positive"):
        world.process().queue.peek(n)


def test_an_operator_is_told_when_the_store_is_away(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    process.store.before("put", "failed/x.json", raises(OutcomeUnknown("no answer")))
    with pytest.raises(OutcomeUnknown):
        process.queue.cancel("x")
    assert world.facts("x")[0] is State.CANCELLED
    assert process.drain() == []
    assert process.queue.result("x").state == "cancelled"
