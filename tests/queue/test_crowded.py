"""Thousands of entries that rest beside tasks that can run: what a claim of the others costs (0012)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import msgspec
import pytest

from limpet.kernel import records
from limpet.kernel.errors import Denied
from limpet.kernel.keys import QueueKeys
from limpet.kernel.lease import State
from limpet.kernel.runtime import ulid
from limpet.queue.awaited import TURN_S
from limpet.queue.claim import EntryClaim
from limpet.queue.decide import claimed
from limpet.queue.discovery import LEASES_A_PAGE, YOUNG_READS_MAX
from limpet.queue.entry import EntryLease, Suspension, new_task
from limpet.queue.pages import PAGE
from limpet.worker import Job, Worker
from support.clock import EPOCH
from support.queue import NAME, TTL_S, Process, World, held

A = TypeVar("A")
B = TypeVar("B")

CAUSES = ("sleeping", "waiting for a signal", "waiting for tasks", "between two attempts", "held")
MANY = [
    pytest.param(1_000, id="1,000"),
    pytest.param(10_000, id="10,000", marks=[pytest.mark.full, pytest.mark.timeout(900)]),
]
FANNED = 32
KEYS, PARTS = QueueKeys.of(NAME), QueueKeys.of("parts")


def crowd(world: World, count: int, cause: str, *, named: bool = False) -> list[str]:
    """Entries that rest for that cause, as their workers left them; they were pushed over an hour."""
    began_s = world.time.now_s
    world.time.sleep(3600)
    process = world.process("crowd")
    wall = process.runtime.wall()
    entries: list[str] = []
    world.memory.put(PARTS.tasks(ulid(1, 0), batch=False), b"a task that has not ended")
    for n in range(count):
        at_ms = int((EPOCH.timestamp() + began_s + 3600 * n / count) * 1000)
        entry = f"order-{n:06}" if named else ulid(at_ms, n)
        entries.append(entry)
        task = new_task(entry, b"{}", pushed_at=wall, write_id=f"w{n}")
        world.memory.put(KEYS.tasks(entry, batch=False), records.encode(task))
        process.queue.storage.lease(entry).create(_lease(process, entry, cause))
    if cause != "held":
        world.time.sleep(TTL_S + 1)  # no worker holds them, as their age tells
    return entries


def _lease(process: Process, entry: str, cause: str) -> EntryLease:
    wall = process.runtime.wall()
    policy = process.queue.policy
    record = claimed(None, entry=entry, worker_id="gone", label="gone", policy=policy, wall=wall)
    if cause == "held":
        return record
    rests_s = {"sleeping": 90_000.0, "between two attempts": 90_000.0}.get(cause, 2.0)
    suspended: dict[int, Suspension] = {}
    if cause != "between two attempts":
        awaits: list[str] = [PARTS.tasks(ulid(1, n), batch=False) for n in range(3)]
        suspended[0] = Suspension(
            reason=cause,
            step=1,
            since=wall,
            due_s=rests_s if cause == "sleeping" else None,
            awaits=awaits if cause == "waiting for tasks" else [],
            signal="approved" if cause == "waiting for a signal" else None,
        )
    return msgspec.structs.replace(
        record, state=State.FREE, wait_s=rests_s, waits={0: rests_s}, suspended=suspended, durable=[0]
    )


class Rounds(Process):
    """A process in front of a bucket, which counts how many requests run one after the other."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "counted", ttl_s=TTL_S)
        self.rounds = 0
        self._inside = 0
        one_by_one = self.runtime.fan_out
        note = self.store._note
        self.store.at_once = FANNED

        def fan_out(call: Callable[[A], B], items: Iterable[A], *, at_once: int = FANNED) -> list[B]:
            todo = [*items]
            self.rounds += 0 if self._inside else -(-len(todo) // at_once)
            self._inside += 1
            try:
                return one_by_one(call, todo, at_once=at_once)
            finally:
                self._inside -= 1

        def noted(verb: str, key: str) -> None:
            self.rounds += not self._inside
            note(verb, key)

        self.runtime.fan_out = fan_out  # type: ignore[method-assign]
        self.store._note = noted  # type: ignore[method-assign]


def costs(process: Rounds, act: Callable[[], object]) -> tuple[int, int]:
    """How many requests it takes, and how many of them one after the other. The looks at what tasks wait for are not
    counted: those are theirs."""
    before = process.rounds
    with process.store.measure() as cost:
        act()
    return sum(cost.requests.values()) - cost.requests.get("head", 0), process.rounds - before


def drain(process: Process, tasks: int) -> None:
    """Run so many tasks that another process pushes."""
    process.world.process("pusher").queue.push_many([{} for _ in range(tasks)], batch=1)
    for _ in range(tasks):
        with process.queue.claim(wait_s=60.0) as claim:
            assert isinstance(claim, EntryClaim)
            for task in claim:
                task.done()
    process.queue.flush()


def trickle(process: Process, tasks: int) -> None:
    """Run one task after another, each pushed by another process."""
    for _ in range(tasks):
        process.world.time.sleep(5.0)
        drain(process, 1)


def learn(process: Process, looks: int = 100) -> None:
    """Let a process without other work see all entries that rest: each look shows a part that is chosen at random."""
    for _ in range(looks):
        process.world.time.sleep(61.0)
        assert not process.queue.claim()


def alone(act: Callable[[Process, int], None], tasks: int) -> tuple[int, int]:
    """What it costs in a queue that holds nothing else."""
    process = Rounds(World(far=True))
    return costs(process, lambda: act(process, tasks))


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("cause", [cause for cause in CAUSES if cause != "held"])
def test_entries_that_rest_do_not_slow_the_claims_of_others(count: int, cause: str) -> None:
    """Within twice the requests of an otherwise empty queue, and twice those that run one after the other."""
    world = World(far=True)
    crowd(world, count, cause)
    process = Rounds(world)
    learn(process, max(100, count // 25))
    for act, tasks in ((drain, 200), (trickle, 20)):
        requests, rounds = alone(act, tasks)
        found = costs(process, partial(act, process, tasks))
        assert found[0] <= 2 * requests, (act, found, requests)
        assert found[1] <= 2 * rounds, (act, found, rounds)


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("cause", CAUSES)
def test_a_new_process_reads_each_lease_once_and_few_before_the_tasks_that_wait(count: int, cause: str) -> None:
    world = World(far=True)
    crowd(world, count, cause)
    process = Rounds(world)
    requests, rounds = alone(drain, 200)
    found = costs(process, lambda: drain(process, 200))
    lists = sum(1 for line in process.store.log if line.startswith("list"))
    assert found[0] <= requests + 5 + lists * (1 + LEASES_A_PAGE)
    assert found[1] <= 2 * rounds
    if cause == "held":
        return
    learn(process, max(100, count // 25))
    read = Counter(line for line in process.store.log if line.startswith("get ") and line.endswith("lease.json"))
    assert len(read) >= count
    if cause in ("sleeping", "between two attempts"):
        lists = sum(1 for line in process.store.log if line.startswith("list"))
        assert read.total() - len(read) <= lists, "a page may begin between a lease and its task"


def test_a_new_task_is_found_with_few_listings_among_many_that_rest() -> None:
    world = World(far=True)
    crowd(world, 2 * PAGE, "sleeping")
    process = world.process()
    learn(process)
    before = process.store.snapshot().requests["list"]
    trickle(process, 20)
    assert process.store.snapshot().requests["list"] - before <= 3 * 20


def test_a_process_finds_its_own_pushes_without_a_listing_among_many_that_rest() -> None:
    world = World(far=True)
    crowd(world, 2 * PAGE, "sleeping")
    process = world.process()
    learn(process)
    before = process.store.snapshot().requests["list"]
    pushed = [process.queue.push({}).id for _ in range(3)] + [process.queue.push({}, id="mine").id]
    [batch] = {handle.rpartition(".")[0] for handle in process.queue.push_many([{}, {}])}
    assert {held(process.queue.claim()).entry for _ in range(5)} == {*pushed, batch}
    assert process.store.snapshot().requests["list"] == before


def test_what_is_due_is_found_among_many_that_rest(world: World) -> None:
    """At its time, although a page shows one in twenty of them."""
    world.memory.far = True
    entries = crowd(world, 3 * PAGE, "sleeping")
    process = world.process()
    learn(process)
    began_s = world.time.now_s
    cell = process.queue.storage.lease(entries[1000])
    seen = cell.read()
    assert seen is not None
    cell.swap(seen, msgspec.structs.replace(seen.value, wait_s=5000.0, waits={0: 5000.0}))
    claim = held(process.queue.claim(wait_s=20_000.0))
    assert claim.entry == entries[1000]
    assert 5000.0 <= world.time.now_s - began_s < 5070.0


@pytest.mark.parametrize("cause", ["waiting for a signal", "waiting for tasks"])
def test_what_a_task_waits_for_is_found_among_many_that_wait(world: World, cause: str) -> None:
    world.memory.far = True
    entries = crowd(world, 2 * PAGE, cause)
    process = world.process()
    learn(process)
    if cause == "waiting for tasks":
        world.memory.delete(PARTS.tasks(ulid(1, 0), batch=False))
    else:
        assert world.process().queue.signal(entries[700], "approved")
    began_s = world.time.now_s
    claim = held(process.queue.claim(wait_s=1000.0))
    assert cause == "waiting for tasks" or claim.entry == entries[700]
    assert world.time.now_s - began_s <= 120.0


@pytest.mark.parametrize("far", [True, False])
def test_a_task_with_an_id_is_found_among_many_that_rest(far: bool) -> None:
    """Its name says nothing about its age: the pages of the backlog show it."""
    world = World(far=far)
    crowd(world, 2 * PAGE, "sleeping", named=True)
    process = world.process()
    learn(process)
    for n in range(5):
        world.time.sleep(100.0)
        process.queue.push({}, id=f"order-{n:03}-new")
        began_s = world.time.now_s
        with held(process.queue.claim(wait_s=600.0)) as claim:
            for task in claim:
                assert task.id == f"order-{n:03}-new"
                task.done()
        assert world.time.now_s - began_s <= 60.0


def test_an_entry_whose_lease_changes_is_seen_before_it_would_be_due(world: World) -> None:
    process, other = world.process(), world.process()
    process.queue.push({}, id="x")
    _, task = process.start()
    task.retry(after_s=5000.0)
    assert not process.queue.claim(wait_s=100.0)
    cell = other.queue.storage.lease("x")
    seen = cell.read()
    assert seen is not None
    cell.swap(seen, msgspec.structs.replace(seen.value, wait_s=0.0, waits={}))
    assert held(process.queue.claim(wait_s=100.0)).entry == "x"


@pytest.mark.parametrize("far", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_a_burst_ends_only_after_a_look_at_all_of_the_backlog(far: bool, named: bool) -> None:
    """A page shows five of 1,000 entries that rest. The names of the tasks come before those, which have a time."""
    world = World(far=far)
    crowd(world, 1_000, "sleeping", named=named)
    process = world.process()
    process.queue.discovery.pages.size = 10
    for n in range(0, 1_000, 200):
        process.queue.push({"n": n}, id=f"00-{n:06}")
    world.time.sleep(100.0)
    ran: list[int] = []
    Worker([Job(process.queue, lambda payload: ran.append(payload["n"]))], process.runtime, burst=True).run_here()
    assert sorted(ran) == [*range(0, 1_000, 200)]


def test_a_last_claim_takes_what_an_ordinary_look_leaves_out(world: World) -> None:
    """Of the entries that others have just handed back or hold, an ordinary look reads eight."""
    other, process = world.process(), world.process()
    entries = [other.queue.push({}).id for _ in range(YOUNG_READS_MAX + 1)]
    claims = [held(other.queue.claim()) for _ in entries]
    next(claim for claim in claims if claim.entry == max(entries)).hand_back()
    assert not process.queue.claim()
    assert held(process.queue.claim_last()).entry == max(entries)
    third = world.process()
    with third.store.measure() as cost:
        assert not third.queue.claim_last()
    assert cost.requests == {"list": 3, "get": len(entries)}, "a first look lists what is scheduled, too"
    world.memory.delete_in_order([stat.key for stat in [*world.memory.list(KEYS.pending)]])
    with process.store.measure() as cost:
        assert not process.queue.claim_last()
    assert cost.requests == {"list": 1}, "the look saw all"


# ---- one process looks for what many tasks wait for (0014) ----


def looks_for_parts(process: Process) -> list[str]:
    """The requests so far for what the tasks wait for; then forget them."""
    found = [line for line in process.store.log if " queues/parts" in line]
    process.store.log.clear()
    return found


def test_one_process_looks_for_what_many_tasks_wait_for_and_another_one_after_it() -> None:
    world = World(far=True)
    crowd(world, 100, "waiting for tasks")
    one, two = world.process("one"), world.process("two")
    for process in (one, two):
        learn(process, 3)
    for process in (one, two):
        looks_for_parts(process)
    for _ in range(100):
        world.time.sleep(6.0)
        assert not one.queue.claim()
        assert not two.queue.claim()
    both = [looks_for_parts(process) for process in (one, two)]
    assert [] in both
    assert 10 <= max(map(len, both)) <= 21, "once a minute, a LIST and a HEAD"
    world.memory.delete(PARTS.tasks(ulid(1, 0), batch=False))
    waits, looks = (two, one) if both[0] else (one, two)
    assert looks_for_parts(looks) == []
    began_s = world.time.now_s
    assert held(waits.queue.claim(wait_s=300.0))
    assert world.time.now_s - began_s <= 120.0, "the other process has died"


def test_who_finds_more_than_it_can_take_passes_the_turn_on() -> None:
    world = World(far=True)
    crowd(world, 200, "waiting for tasks")
    one, two = world.process("one"), world.process("two")
    for process in (one, two):
        learn(process, 2)
    world.memory.delete(PARTS.tasks(ulid(1, 0), batch=False))
    found_s: dict[str, float] = {}
    for _ in range(60):
        world.time.sleep(2.0)
        for process in (one, two):
            if process.queue.claim():
                found_s.setdefault(process.runtime.owner, world.time.now_s)
    first_s, second_s = sorted(found_s.values())
    assert second_s - first_s <= TURN_S + 2.0


def test_a_process_looks_itself_at_what_it_has_suspended() -> None:
    world = World(far=True)
    crowd(world, 2 * PAGE, "waiting for tasks")
    one, two = world.process("one"), world.process("two")
    learn(one)
    mine = two.queue.push({}).id
    own = PARTS.tasks(ulid(1, 7), batch=False)
    world.memory.put(own, b"a task that has not ended")
    with held(two.queue.claim(wait_s=60.0)) as claim:
        waits = Suspension(reason="it waits", step=1, since=two.runtime.wall(), awaits=[own])
        next(iter(claim)).suspend(2.0, waits)
    assert claim.entry == mine
    assert not two.queue.claim(wait_s=30.0)
    world.memory.delete(own)
    began_s = world.time.now_s
    assert held(two.queue.claim(wait_s=60.0)).entry == mine
    assert world.time.now_s - began_s <= 20.0


def test_a_key_that_may_not_take_the_turn_looks_itself() -> None:
    world = World(far=True)
    crowd(world, 50, "waiting for tasks")
    process = world.process()
    process.store.away("put", "asking.lock", Denied("no"))
    learn(process, 3)
    world.memory.delete(PARTS.tasks(ulid(1, 0), batch=False))
    assert held(process.queue.claim(wait_s=120.0))
