"""Claiming one task: how it is taken, judged, lost and taken over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from limpet.kernel.cell import PLAIN, Cell
from limpet.kernel.errors import Invalid, LeaseLost, LimpetError, OutcomeUnknown, Unavailable
from limpet.kernel.keys import cell_key
from limpet.kernel.lease import State
from limpet.queue import Fail, Retry
from support.clock import EPOCH
from support.queue import LATER_S, TTL_S, Crash, World, crash, held, raises
from support.stores import lost_reply, lost_request, unavailable


@dataclass
class Site:
    """A payload with a type."""

    domain: str
    depth: int = 1


# ---- taking ----


def test_there_is_nothing_to_take(world: World) -> None:
    claim = world.process().queue.claim()
    assert not claim
    assert claim.token == 0
    assert not claim.lost
    with claim as same:
        assert [*same] == []
    claim.hand_back()
    assert world.names() == []


def test_a_claim_is_a_lease_beside_the_task(world: World) -> None:
    process = world.process()
    process.queue.push({"n": 1}, id="x")
    claim = process.take()
    assert bool(claim)
    assert (claim.token, claim.lost, claim.entry) == (1, False, "x")
    assert world.names() == ["pending/x/lease.json", "pending/x/task.json"]
    assert world.facts("x") == (State.HELD, 1, "p1")
    record = world.lease("x")
    assert (record.label, record.ttl_s, record.attempt) == ("host:p1", TTL_S, 1)
    assert record.created_at == EPOCH + timedelta(seconds=world.time.now_s)
    assert record.expires_at == record.heartbeat_at + timedelta(seconds=TTL_S)
    (task,) = claim
    assert (task.id, task.payload, task.attempt, task.lost) == ("x", {"n": 1}, 1, False)


def test_what_is_claimed_is_nobody_elses(world: World) -> None:
    one, two = world.process(), world.process()
    one.queue.push({}, id="x")
    claim = one.take()
    assert not one.queue.claim(wait_s=TTL_S)
    assert not two.queue.claim(wait_s=TTL_S)
    claim.hand_back()
    assert two.take().token == 2


def test_a_claim_waits_for_a_push(world: World) -> None:
    process = world.process()
    world.time.at(50, lambda: world.process().queue.push({}, id="x"))
    started_s = world.time.now_s
    claim = held(process.queue.claim(wait_s=500))
    assert claim.entry == "x"
    assert 50 <= world.time.now_s - started_s < 100


def test_a_claim_waits_no_longer_than_told(world: World) -> None:
    started_s = world.time.now_s
    assert not world.process().queue.claim(wait_s=7.5)
    assert world.time.now_s - started_s == pytest.approx(7.5, abs=0.1)


def test_claims_come_oldest_first(world: World) -> None:
    process = world.process()
    for name in ("c", "a", "d", "b"):
        process.queue.push({}, id=name)
        world.time.sleep(1)
    assert process.drain() == ["c", "a", "d", "b"]


def test_a_payload_has_its_type(world: World) -> None:
    process = world.process(payload_type=Site)
    process.queue.push(Site("a.com"))
    process.queue.push_many([Site("b.com", 2), Site("c.com", 3)])
    found = process.collect(lambda task: task.payload)
    assert sorted(found, key=lambda site: site.domain) == [Site("a.com"), Site("b.com", 2), Site("c.com", 3)]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (dict[int, str], {1: "a"}),
        (datetime, EPOCH),
        (bytes, b"\xff\x00"),
        (Decimal, Decimal("1.10")),
        (tuple[int, str], (1, "a")),
        (int | None, None),
        (list[Site], [Site("a.com"), Site("b.com", 2)]),
    ],
    ids=str,
)
def test_a_payload_comes_back_as_it_was_pushed(world: World, kind: Any, payload: Any) -> None:
    process = world.process(payload_type=kind)
    process.queue.push(payload)
    process.queue.push_many([payload])
    assert process.collect(lambda task: task.payload) == [payload, payload]


def test_a_payload_that_does_not_fit_its_type_fails_and_the_rest_goes_on(world: World) -> None:
    plain = world.process()
    plain.queue.push({"depth": 1}, id="bad")
    ids = plain.queue.push_many([{"domain": "a.com"}, {"domain": 5}, {"domain": "c.com"}])
    assert [*world.process(payload_type=Site).drain()] == [ids[0], ids[2]]
    assert "does not fit" in (plain.queue.result("bad").error or "")
    assert [plain.queue.result(id_).state for id_ in ids] == ["completed", "failed", "completed"]


# ---- verdicts ----


def test_done_ends_it(world: World) -> None:
    process = world.process()
    process.queue.push({"n": 1}, id="x")
    with process.take() as claim:
        for task in claim:
            task.done({"rows": 3})
    assert world.names() == ["completed/x.json"]
    result = process.queue.result("x")
    assert (result.state, result.value, result.attempts, result.worker) == ("completed", {"rows": 3}, 1, "host:p1")


def test_fail_ends_it(world: World) -> None:
    process = world.process()
    process.queue.push({"n": 1}, id="x")
    with process.take() as claim:
        for task in claim:
            task.fail("gone", "Traceback: line 1")
    assert world.names() == ["failed/x.json"]
    result = process.queue.result("x")
    assert (result.state, result.error, result.traceback, result.value) == ("failed", "gone", "Traceback: line 1", None)


def test_retry_is_one_swap_and_the_payload_never_moves(world: World) -> None:
    process = world.process()
    process.queue.push({"n": 1}, id="x")
    _, task = process.start()
    before = world.memory.head(process.queue.storage.keys.tasks("x", batch=False))
    process.store.log.clear()
    task.retry(after_s=100)
    assert process.store.log == ["put pending/x/lease.json"]
    assert world.memory.head(process.queue.storage.keys.tasks("x", batch=False)) == before
    assert world.facts("x") == (State.FREE, 1, "p1")
    assert world.lease("x").not_before == EPOCH + timedelta(seconds=world.time.now_s + 100)
    assert not process.queue.claim(wait_s=98)
    claim = held(process.queue.claim(wait_s=50))
    assert claim.token == 2
    assert [task.attempt for task in claim] == [2]


def test_without_a_time_a_retry_waits_longer_each_time(world: World) -> None:
    process = world.process(backoff_s=10.0, max_attempts=5, backoff_max_s=35.0)
    process.queue.push({}, id="x")
    waits: list[float] = []
    for _ in range(4):
        claim, task = process.start()
        task.retry()
        waits.append(world.lease("x").wait_s)
        assert claim.over
    assert all(
        low <= wait_s <= high for wait_s, low, high in zip(waits, (5, 10, 17.5, 17.5), (10, 20, 35, 35), strict=True)
    )


def test_the_last_attempt_fails_with_its_own_error(world: World) -> None:
    process = world.process(max_attempts=2)
    process.queue.push({}, id="x")
    process.start()[1].retry(after_s=0, error="first")
    process.start()[1].retry(after_s=0, error="second", traceback="trace")
    result = process.queue.result("x")
    assert (result.state, result.error, result.traceback, result.attempts) == ("failed", "second", "trace", 2)
    assert world.names() == ["failed/x.json"]


@pytest.mark.parametrize(
    ("error", "attempts", "state", "text"),
    [
        (ValueError("boom"), 5, "pending", ""),
        (ValueError("boom"), 1, "failed", "ValueError: boom"),
        (Fail("gone"), 5, "failed", "gone"),
        (Fail(), 5, "failed", "gave the task up"),
        (Retry("later", after_s=5), 5, "pending", ""),
        (Retry("later", after_s=5), 1, "failed", "later"),
        (OutcomeUnknown("who knows"), 1, "failed", "OutcomeUnknown: who knows"),
    ],
)
def test_what_the_block_raises_is_the_tasks_verdict(
    world: World, error: Exception, attempts: int, state: str, text: str
) -> None:
    process = world.process(max_attempts=attempts)
    process.queue.push({}, id="x")

    def work() -> None:
        with process.take() as claim:
            for _ in claim:
                raise error

    with pytest.raises(type(error)):
        work()
    result = process.queue.result("x")
    assert result.state == state
    assert text in (result.error or "")
    if state == "failed" and not isinstance(error, Fail | Retry):
        assert "raise error" in (result.traceback or "")
    elif state == "pending":
        assert world.facts("x")[0] is State.FREE
        assert process.drain() == ["x"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(0), GeneratorExit()])
def test_the_end_of_the_process_hands_back(world: World, error: BaseException) -> None:
    process = world.process(max_attempts=1)
    process.queue.push({}, id="x")

    def work() -> None:
        with process.take() as claim:
            for _ in claim:
                raise error

    with pytest.raises(type(error)):
        work()
    assert [task.attempt for task in process.take()] == [1]


def test_a_block_without_a_verdict_is_a_retry(world: World) -> None:
    process = world.process(max_attempts=2)
    process.queue.push({}, id="x")
    for _ in range(2):
        with process.take() as claim:
            assert len([*claim]) == 1
    result = process.queue.result("x")
    assert (result.state, result.attempts) == ("failed", 2)
    assert "without a verdict" in (result.error or "")


def test_a_claim_that_was_never_looked_into_goes_back_as_it_was(world: World) -> None:
    process = world.process(max_attempts=1)
    process.queue.push({}, id="x")
    for _ in range(3):
        with process.take():
            pass
    assert [task.attempt for task in process.take()] == [1]


def test_a_second_verdict_changes_nothing(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    with process.take() as claim:
        for task in claim:
            task.done("first")
            task.done("second")
            task.fail("third")
            task.retry()
    assert world.names() == ["completed/x.json"]
    assert process.queue.result("x").value == "first"


def test_a_bad_result_is_refused_and_the_task_is_still_ours_to_judge(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    with process.take() as claim:
        for task in claim:
            for bad in (float("nan"), object(), "y" * (257 * 1024), {1: 2}):
                with pytest.raises(Invalid):
                    task.done(bad)
            task.done("good")
    assert process.queue.result("x").value == "good"


@pytest.mark.parametrize("after_s", [-1.0, float("nan")])
def test_a_wait_that_makes_no_sense_is_refused_and_the_task_is_still_ours(world: World, after_s: float) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    with process.take() as claim:
        for task in claim:
            with pytest.raises(Invalid, match="after_s"):
                task.retry(after_s=after_s)
            task.done()
    assert process.queue.result("x").state == "completed"


@pytest.mark.parametrize("after_s", [float("inf"), 1e300, 1e10])
def test_a_wait_has_an_end(world: World, after_s: float) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    world.time.sleep(1)
    ids = process.queue.push_many([{}, {}])
    process.start()[1].retry(after_s=after_s)
    with process.take() as claim:
        next(iter(claim)).retry(after_s=after_s)
    assert process.drain() == [ids[1]]
    world.time.sleep(366 * 86400)
    assert sorted(process.drain()) == sorted(["x", ids[0]])


@pytest.mark.parametrize("text", ["bad \udcff name", "\ud800", "nul \x00 bell \x07", "\u2028", "x" * 100_000, ""])
def test_any_text_is_an_error(world: World, text: str) -> None:
    process = world.process(max_attempts=1)
    process.queue.push({}, id="x")
    ids = process.queue.push_many([{}, {}])
    for _ in range(3):
        try:
            with process.take() as claim:
                for _ in claim:
                    raise ValueError(text)
        except ValueError:
            continue
    assert [process.queue.result(id_).state for id_ in ("x", *ids)] == ["failed"] * 3
    assert all("ValueError" in (process.queue.result(id_).error or "") for id_ in ("x", *ids))


# ---- a network that fails while a verdict is written ----


@pytest.mark.parametrize("fault", [lost_reply, lost_request, unavailable])
def test_done_survives_an_unclear_receipt(world: World, fault: Any) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    try:
        with process.take() as claim:
            for task in claim:
                process.store.puts.append(fault)
                task.done("kept")
    except (OutcomeUnknown, Unavailable):
        assert fault is not lost_reply
    assert process.queue.result("x").value == "kept"
    assert world.names() == ["completed/x.json"]


@pytest.mark.parametrize("verdict", ["done", "fail", "retry", "raise", "hand back"])
@pytest.mark.parametrize("attempts", [1, 3])
def test_a_store_that_is_away_at_the_end_holds_nothing_for_ever(world: World, verdict: str, attempts: int) -> None:
    """F16: once the block is over the heart beats no more, whatever the store says."""
    process = world.process(max_attempts=attempts, timeout_s=None)
    process.queue.push({}, id="x")
    try:
        with process.take() as claim:
            for task in claim:
                process.store.puts.extend([unavailable, lost_request] * 60)
                match verdict:
                    case "done":
                        task.done()
                    case "fail":
                        task.fail("no")
                    case "retry":
                        task.retry(after_s=0)
                    case "hand back":
                        claim.hand_back()
                    case _:
                        raise ValueError("boom")
    except (LimpetError, ValueError):
        assert process.store.puts
    process.store.puts.clear()
    others = world.process(max_attempts=attempts)
    others.drain(idle_s=LATER_S)
    assert world.process().queue.result("x").ready


@pytest.mark.parametrize("ending", ["pending/x/task.json", "pending/x/lease.json"])
def test_an_end_whose_deletes_fail_is_finished_by_the_next_claim(world: World, ending: str) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    _, task = process.start()
    process.store.before("delete", ending, raises(Unavailable("away")))
    task.done()
    assert "pending/x/lease.json" in world.names()
    assert world.process().drain() == []
    world.process().queue.sweep()
    assert world.names() == ["completed/x.json"]


def test_the_task_goes_before_its_lease(world: World) -> None:
    """Else a task that has ended would stand there without a lease, and be claimed as if it were new."""
    process = world.process()
    process.queue.push({})
    process.drain()
    writes = [line.rsplit("/", 1)[1] for line in process.store.wrote("put", "delete")]
    assert writes[-2:] == ["task.json", "lease.json"]


# ---- taking over ----


def test_an_abandoned_task_is_taken_over_with_the_next_token(world: World) -> None:
    world.process().queue.push({}, id="x")
    zombie = world.killed()
    two = world.process()
    claim, task = two.start()
    assert (claim.token, task.attempt) == (2, 1), "a first claim that dies charges nobody"
    assert world.facts("x") == (State.HELD, 2, two.runtime.owner)
    assert zombie.lost


def test_a_living_holder_is_not_taken_over(world: World) -> None:
    one, two = world.process(timeout_s=None), world.process()
    one.queue.push({}, id="x")
    claim = one.take()
    assert not two.queue.claim(wait_s=20 * TTL_S)
    assert not claim.lost
    assert world.facts("x") == (State.HELD, 1, "p1")


def test_takeover_needs_two_looks_however_old_the_lease_is(world: World) -> None:
    """F24: nothing is reaped at start-up. A clock that is wrong cannot make one look enough."""
    world.process().queue.push({}, id="x")
    world.dead()
    world.time.sleep(1_000_000)
    two = world.process()
    two.store.now(max_age_s=-1)
    assert not two.queue.claim()
    world.time.sleep(TTL_S / 3 + 1)
    assert not two.queue.claim()
    world.time.sleep(2)
    assert held(two.queue.claim()).token == 2


def test_a_lease_that_is_renewed_between_two_looks_is_not_taken(world: World) -> None:
    one, two = world.process(), world.process()
    one.queue.push({}, id="x")
    claim = one.take()
    one.freeze()
    two.queue.claim(wait_s=TTL_S)
    claim.renew()
    assert not two.queue.claim(wait_s=TTL_S - 1)
    assert not claim.lost


def test_of_two_that_take_over_one_wins(world: World) -> None:
    world.process().queue.push({}, id="x")
    world.dead()
    two, three = world.process(), world.process()
    for process in (two, three):
        process.queue.claim()
    world.time.sleep(2 * TTL_S)
    won: list[bool] = []
    two.store.before("put", "lease.json", lambda: won.append(bool(three.queue.claim())))
    won.append(bool(two.queue.claim()))
    assert won == [True, False]
    assert world.facts("x") == (State.HELD, 2, three.runtime.owner)


def test_h5_a_task_whose_worker_died_after_the_receipt_does_not_run_again(world: World) -> None:
    one = world.process()
    pushed = one.queue.push({})
    _, task = one.start()
    one.store.before("delete", "task.json", crash)
    with pytest.raises(Crash):
        task.done("first")
    one.freeze()
    two = world.process()
    assert two.drain(idle_s=LATER_S) == []
    assert world.names() == [f"completed/{pushed.id}.json"]
    assert two.queue.result(pushed.id).value == "first"


def test_a_claim_from_a_stale_listing_leaves_nothing_behind(world: World) -> None:
    """F22: the task was done and removed since the page was listed."""
    one, two = world.process(), world.process()
    first, second = one.queue.push({}), one.queue.push({})
    two.queue.discovery.list_page()
    one.drain()
    assert not two.queue.claim()
    assert world.names() == sorted(f"completed/{pushed.id}.json" for pushed in (first, second))


def test_a_claim_whose_outcome_is_unknown_runs_out_by_itself(world: World) -> None:
    process = world.process(max_attempts=1)
    process.queue.push({}, id="x")
    process.store.puts.append(lost_reply)
    process.store.before("get", "lease.json", raises(Unavailable("away")))
    assert not process.queue.claim()
    assert world.facts("x") == (State.HELD, 1, "p1")
    assert [task.attempt for task in process.take()] == [1]


def test_a_claim_lost_before_its_task_was_read_runs_out_by_itself(world: World) -> None:
    process = world.process(max_attempts=1)
    process.queue.push({}, id="x")
    process.store.before("get", "task.json", raises(Unavailable("away")))
    with pytest.raises(Unavailable):
        process.queue.claim()
    assert [task.attempt for task in process.take()] == [1]


# ---- lost ----


def test_a_lost_claim_says_so_and_gives_no_more_tasks(world: World) -> None:
    one = world.process()
    one.queue.push_many([{}, {}])
    claim = one.take()
    tasks = iter(claim)
    task = next(tasks)
    one.freeze()
    world.time.sleep(TTL_S + 1)
    assert task.lost
    assert claim.lost
    assert [*tasks] == []


@pytest.mark.parametrize("verdict", ["fail", "retry", "hand back", "nothing"])
def test_without_the_lease_only_success_counts(world: World, verdict: str) -> None:
    """H4: a failure is not ours to say any more; the next holder decides."""
    one = world.process(max_attempts=1)
    one.queue.push({}, id="x")
    claim, task = one.start()
    one.freeze()
    two = world.process(max_attempts=2)
    claim2, task2 = two.start()
    with claim:
        match verdict:
            case "fail":
                task.fail("late")
            case "retry":
                task.retry(after_s=0)
            case "hand back":
                claim.hand_back()
    assert world.facts("x") == (State.HELD, 2, two.runtime.owner)
    task2.done("second")
    assert claim2.over
    assert world.names() == ["completed/x.json"]


def test_a_lease_that_ran_out_but_was_not_taken_is_still_good_for_a_verdict(world: World) -> None:
    one = world.process(max_attempts=1)
    one.queue.push({}, id="x")
    _, task = one.start()
    one.freeze()
    world.time.sleep(10 * TTL_S)
    task.fail("slow, but ours")
    assert world.process().queue.result("x").error == "slow, but ours"
    assert world.names() == ["failed/x.json"]


def test_losing_the_lease_inside_the_block_is_not_the_tasks_fault(world: World) -> None:
    one, two = world.process(max_attempts=3), world.process(max_attempts=3)
    one.queue.push({}, id="x")
    claim, _ = one.start()
    one.freeze()
    two.start()

    def leave() -> None:
        with claim:
            raise LeaseLost("found out")

    with pytest.raises(LeaseLost):
        leave()
    assert world.facts("x") == (State.HELD, 2, two.runtime.owner)
    assert world.lease("x").attempts == {0: 1}


def test_a_cell_that_was_written_with_a_claims_token_refuses_the_one_before(world: World) -> None:
    """F12: the token is compared where the write lands, whatever a zombie thinks of its claim."""
    world.process().queue.push({}, id="x")
    zombie = world.killed()
    two = world.process()
    _, task = two.start()
    cell = Cell(two.store, cell_key("report"), PLAIN, two.runtime)
    cell.write("early", lease=zombie.fence)
    cell.write("now", lease=task.fence)
    with pytest.raises(LeaseLost, match="token 1 is too old"):
        cell.write("late", lease=zombie.fence)
    seen = cell.read()
    assert seen is not None
    assert seen.value == "now"
