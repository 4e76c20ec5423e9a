"""The heart: one thread renews every claim of a process, and only while there is reason to (F16)."""

from __future__ import annotations

import threading

import pytest

from limpet.kernel.errors import LeaseLost, OutcomeUnknown, Unavailable
from limpet.kernel.lease import Renewer, State
from limpet.kernel.lease.renewer import RETRY_PART
from limpet.kernel.runtime import SystemRuntime
from limpet.kernel.store import MemoryStore
from limpet.queue import BucketQueue, Policy
from support.clock import ManualRuntime
from support.queue import LATER_S, TTL_S, World, held, rounds
from support.stores import lost_request, unavailable


class Beater:
    """Notes when it was called, and fails as often as told."""

    def __init__(self, runtime: ManualRuntime, failures: int = 0) -> None:
        self.runtime = runtime
        self.failures = failures
        self.at_s: list[float] = []
        self.start_s = runtime.elapsed_s()

    def renew(self) -> None:
        """See `Renewable.renew`."""
        self.at_s.append(self.runtime.elapsed_s() - self.start_s)
        if self.failures:
            self.failures -= 1
            raise Unavailable("away")


# ---- the thread ----


def test_it_beats_three_times_a_ttl() -> None:
    runtime = ManualRuntime()
    renewer = Renewer(runtime, TTL_S, name="heart")
    beater = Beater(runtime)
    renewer.add(beater)
    runtime.sleep(10 * TTL_S)
    gaps = [after - before for before, after in zip([0.0, *beater.at_s], beater.at_s, strict=False)]
    assert len(gaps) >= 24
    assert all(TTL_S / 3 - 0.01 <= gap <= TTL_S / 3 + TTL_S / RETRY_PART + 0.01 for gap in gaps)


def test_after_a_failure_it_beats_again_soon() -> None:
    runtime = ManualRuntime()
    renewer = Renewer(runtime, TTL_S, name="heart")
    beater = Beater(runtime, failures=3)
    renewer.add(beater)
    runtime.sleep(2 * TTL_S)
    first, second, third, fourth, fifth = beater.at_s[:5]
    assert [second - first, third - second, fourth - third] == pytest.approx([TTL_S / RETRY_PART] * 3, abs=0.01)
    assert fifth - fourth >= TTL_S / 3 - 0.01


def test_what_is_removed_is_not_beaten_and_the_thread_ends_and_starts_again() -> None:
    runtime = ManualRuntime()
    renewer = Renewer(runtime, TTL_S, name="heart")
    for _ in range(3):
        beater = Beater(runtime)
        renewer.add(beater)
        runtime.sleep(TTL_S)
        beats = len(beater.at_s)
        assert beats >= 2
        renewer.remove(beater)
        runtime.sleep(10 * TTL_S)
        assert len(beater.at_s) == beats
        assert runtime.time._due == [], "the thread has ended"


def test_one_thread_beats_for_all() -> None:
    runtime = ManualRuntime()
    renewer = Renewer(runtime, TTL_S, name="heart")
    beaters = [Beater(runtime, failures=n) for n in range(5)]
    for beater in beaters:
        renewer.add(beater)
        runtime.sleep(1)
    runtime.sleep(5 * TTL_S)
    assert all(len(beater.at_s) >= 10 for beater in beaters)
    assert len(runtime.time._due) == 1


def test_every_claim_that_is_due_is_renewed_in_the_same_tick() -> None:
    """More claims than ticks: one renewal a tick would let most of them run out."""
    runtime = ManualRuntime()
    renewer = Renewer(runtime, TTL_S, name="heart")
    beaters = [Beater(runtime) for _ in range(3 * RETRY_PART)]
    for beater in beaters:
        renewer.add(beater)
    runtime.sleep(TTL_S)
    assert len({tuple(beater.at_s) for beater in beaters}) == 1
    assert len(beaters[-1].at_s) >= 2


def test_a_claim_whose_renewal_fails_does_not_keep_the_others_from_theirs() -> None:
    runtime = ManualRuntime()
    renewer = Renewer(runtime, TTL_S, name="heart")
    beaters = [Beater(runtime, failures=100), *(Beater(runtime) for _ in range(5))]
    for beater in beaters:
        renewer.add(beater)
    runtime.sleep(TTL_S)
    assert all(len(beater.at_s) >= 2 for beater in beaters[1:])


def test_a_forked_child_gets_a_thread_of_its_own() -> None:
    runtime = ManualRuntime()
    renewer = Renewer(runtime, TTL_S, name="heart")
    renewer.add(Beater(runtime))
    runtime.owner = "child"
    mine = Beater(runtime)
    renewer.add(mine)
    assert len(runtime.time._due) == 2
    runtime.sleep(TTL_S)
    assert len(mine.at_s) >= 2


def test_with_real_threads() -> None:
    runtime = SystemRuntime()
    renewer = Renewer(runtime, 0.06, name="heart")
    called = threading.Event()

    class Once:
        def renew(self) -> None:
            """See `Renewable.renew`."""
            called.set()

    once = Once()
    renewer.add(once)
    assert called.wait(30)
    renewer.remove(once)
    wait = threading.Event()
    while any(thread.name == "heart" for thread in threading.enumerate()):
        wait.wait(0.01)


# ---- what it keeps alive ----


def test_a_claim_lives_as_long_as_its_work(world: World) -> None:
    one, two = world.process(timeout_s=None), world.process()
    one.queue.push({}, id="x")
    _, task = one.start()
    for _ in range(50):
        world.time.sleep(TTL_S)
        assert not two.queue.claim()
    assert not task.lost
    assert world.facts("x") == (State.HELD, 1, "p1")
    task.done()


def test_keeping_a_claim_is_three_puts_a_ttl(world: World) -> None:
    process = world.process(timeout_s=None)
    process.queue.push({}, id="x")
    process.start()
    requests = process.cost(lambda: world.time.sleep(20 * TTL_S))
    assert [*requests] == ["put"]
    assert 48 <= requests["put"] <= 60


def test_a_claim_that_ends_soon_costs_no_beat(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    _, task = process.start()
    task.done()
    assert process.cost(lambda: world.time.sleep(10 * TTL_S)) == {}


def test_several_claims_of_one_process_live(world: World) -> None:
    process = world.process()
    for n in range(5):
        process.queue.push({}, id=f"x{n}")
    claims = [process.take() for _ in range(5)]
    world.time.sleep(5 * TTL_S)
    assert [claim.lost for claim in claims] == [False] * 5
    assert not world.process().queue.claim(wait_s=3 * TTL_S)


@pytest.mark.parametrize("failures", [[unavailable] * 2, [lost_request] * 3])
def test_a_beat_that_fails_is_made_again_in_time(world: World, failures: list[object]) -> None:
    one, two = world.process(), world.process()
    one.queue.push({}, id="x")
    claim = one.take()
    one.store.puts.extend(failures)  # type: ignore[arg-type]
    assert not two.queue.claim(wait_s=5 * TTL_S)
    assert not claim.lost


def test_a_claim_whose_beats_all_fail_is_lost_and_says_so(world: World) -> None:
    one, two = world.process(), world.process()
    one.queue.push({}, id="x")
    claim, task = one.start()
    one.store.puts.extend([unavailable] * 1000)
    world.time.sleep(TTL_S + 1)
    assert task.lost
    assert held(two.queue.claim(wait_s=LATER_S)).token == 2
    assert claim.lost


def test_verdicts_and_beats_of_real_threads_do_not_lose_each_others_results() -> None:
    """The heart writes down what is done while more is done: every result is there at the end."""
    runtime = SystemRuntime()
    queue = BucketQueue(MemoryStore(runtime), "q", runtime, policy=Policy(ttl_s=1.0, max_attempts=1))
    ids = queue.push_many(rounds(60))
    pause = threading.Event()
    with queue.claim() as claim:
        for task in claim:
            pause.wait(0.02)
            task.done([task.payload["n"], "y" * 2000] if task.payload["n"] % 2 else task.payload["n"])
        record = queue.storage.lease(ids[0].rpartition(".")[0]).read()
        assert record is None
    values = [queue.result(id_).value for id_ in ids]
    assert values == [[n, "y" * 2000] if n % 2 else n for n in range(60)]


# ---- a task that hangs ----


def test_no_beat_after_the_time_of_a_task_is_over(world: World) -> None:
    one, two = world.process(timeout_s=100.0), world.process()
    one.queue.push({}, id="x")
    claim, task = one.start()
    world.time.sleep(99)
    assert not claim.lost
    world.time.sleep(2 * TTL_S + 1)
    assert task.lost
    _, again = two.start()
    assert (again.id, again.attempt) == ("x", 2)


def test_each_task_of_a_batch_has_its_own_time(world: World) -> None:
    process = world.process(timeout_s=100.0)
    ids = process.queue.push_many(rounds(5))
    with process.take() as claim:
        for task in claim:
            world.time.sleep(90)
            assert not task.lost
            task.done()
    assert [process.queue.result(id_).state for id_ in ids] == ["completed"] * 5


def test_a_hung_task_of_a_batch_is_given_up_and_its_neighbours_are_done(world: World) -> None:
    ids = world.process().queue.push_many(rounds(3))
    for _ in range(2):
        process = world.process(timeout_s=100.0, max_attempts=2)
        for task in process.take():
            if task.id == ids[1]:
                world.time.sleep(500)
                assert task.lost
                break
            task.done()
    queue = world.process(max_attempts=2)
    queue.drain(idle_s=LATER_S)
    assert [queue.queue.result(id_).state for id_ in ids] == ["completed", "failed", "completed"]


def test_a_heart_that_stops_apart_from_its_worker_loses_the_claim_not_the_work(world: World) -> None:
    """The nemesis `heartbeat paused`: the worker works on, and what it finishes counts."""
    one = world.process()
    one.queue.push({}, id="x")
    claim, task = one.start()
    one.freeze()
    world.time.sleep(TTL_S + 1)
    assert claim.lost
    task.done("finished")
    assert one.queue.result("x").value == "finished"
    assert world.names() == ["completed/x.json"]


def test_a_beat_that_is_under_way_when_the_claim_ends_brings_nothing_back(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    claim, task = process.start()
    process.store.before("put", "pending/x/lease.json", lambda: world.process().queue.purge())
    with pytest.raises((LeaseLost, OutcomeUnknown)):
        claim.renew()
    task.done()
    assert world.names() == ["completed/x.json", "failed/x.json"]
    world.process().queue.sweep()
    assert world.names() == ["completed/x.json"]


def test_progress_written_by_a_beat_does_not_end_the_entry_early(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(3))
    tasks = iter(process.take())
    for _ in range(2):
        next(tasks).done()
        world.time.sleep(TTL_S)
    assert world.facts(ids[0].rpartition(".")[0])[0] is State.HELD
    assert [process.queue.result(id_).state for id_ in ids] == ["completed", "completed", "pending"]
