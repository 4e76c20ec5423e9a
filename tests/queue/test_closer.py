"""Deletes of ended entries in the background, and claims ahead: what a worker of a queue in a bucket does beside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.kernel.errors import Unavailable
from limpet.kernel.lease import State
from limpet.kernel.runtime import SystemRuntime, ThreadHandle
from limpet.queue.closer import LINGER_S
from limpet.worker import Job, Worker
from support.queue import Process, World, raises, rounds

SOON_S = LINGER_S / 2
LATER_S = 5.0


@pytest.fixture
def world() -> World:
    return World(far=True)


def deleted(process: Process, world: World, *, within_s: float) -> list[str]:
    """What the process deletes in that time: `task x`, `lease x`."""
    process.store.log.clear()
    world.time.sleep(within_s)
    names = [line.split("/") for line in process.store.wrote("delete")]
    return [f"{kind.removesuffix('.json')} {entry}" for _, entry, kind in names]


def done(process: Process, *ids: str) -> None:
    """Push and complete tasks with these ids."""
    for id_ in ids:
        process.queue.push({}, id=id_)
    assert process.drain(idle_s=0.0) == [*ids]


def left(world: World) -> list[str]:
    """What is left below pending/."""
    return [name for name in world.names() if name.startswith("pending/")]


# ---- the closer ----


def test_an_end_waits_for_no_delete(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    _, task = process.start()
    process.store.log.clear()
    task.done()
    assert process.store.wrote("put", "delete") == ["put completed/x.json"]


def test_tasks_go_first_and_leases_a_second_later(world: World) -> None:
    process = world.process()
    done(process, "x", "y", "z")
    assert deleted(process, world, within_s=SOON_S) == ["task x", "task y", "task z"]
    assert deleted(process, world, within_s=SOON_S - 0.2) == []
    assert deleted(process, world, within_s=1.0) == ["lease x", "lease y", "lease z"]
    assert left(world) == []


def test_an_unexpected_error_does_not_end_the_deletes_of_a_process(world: World) -> None:
    """The next entry that ends starts a new thread, which deletes what was left, too."""
    process = world.process()
    done(process, "x")
    process.store.before("delete", "x/task.json", raises(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        world.time.sleep(SOON_S)
    assert left(world) == ["pending/x/lease.json", "pending/x/task.json"]
    done(process, "y")
    world.time.sleep(LATER_S)
    assert left(world) == []


def test_a_lease_stays_if_the_delete_of_its_task_failed(world: World) -> None:
    process = world.process()
    process.store.before("delete", "pending/y/task.json", raises(Unavailable("busy")))
    done(process, "x", "y")
    world.time.sleep(LATER_S)
    assert left(world) == ["pending/y/lease.json", "pending/y/task.json"]
    other = world.process()
    world.time.sleep(600)
    assert other.drain() == []
    other.queue.flush()
    assert left(world) == []


def test_flush_leaves_nothing(world: World) -> None:
    process = world.process()
    done(process, *"abcdefg")
    process.queue.flush()
    assert left(world) == []
    assert process.cost(process.queue.flush) == {}


def test_the_closer_begins_again_after_a_lull(world: World) -> None:
    process = world.process()
    for id_ in "xyz":
        done(process, id_)
        world.time.sleep(600)
        assert left(world) == []


@pytest.mark.parametrize("after_s", [0.0, SOON_S], ids=["task and lease", "lease only"])
@pytest.mark.parametrize("by", ["claim", "sweep"])
def test_what_a_dead_process_leaves_is_removed_by_others(world: World, by: str, after_s: float) -> None:
    process = world.process()
    done(process, "x")
    world.time.sleep(after_s)
    process.freeze()
    world.time.sleep(LATER_S)
    assert left(world) != []
    other = world.process()
    if by == "claim":
        world.time.sleep(600)
        assert other.drain() == [], "it has ended"
    other.queue.sweep()
    other.queue.flush()
    assert left(world) == []


def test_the_process_that_ended_tasks_does_not_count_them(world: World) -> None:
    process = world.process()
    done(process, "x", "y")
    stats = process.queue.stats()
    assert (stats.pending, stats.completed) == (0, 2)
    done(process, "z")
    assert process.queue.peek() == []


# ---- claims ahead ----


class Fleet:
    """A worker of one thread on a far queue, and which entries it held while each handler ran."""

    def __init__(self, world: World, handle: Callable[[Any], object], *, tasks: int = 6, **options: Any) -> None:
        policy = {name: options.pop(name) for name in ("ttl_s", "concurrency", "rate_per_s") if name in options}
        self.world = world
        self.process = world.process("ahead", **policy)
        self.held: list[int] = []
        """For each task that ran: how many leases the process held when its handler ended."""
        self.ids = [self.process.queue.push({"n": n}, id=f"t{n}").id for n in range(tasks)]

        def note(payload: dict[str, Any]) -> None:
            handle(payload)
            self.held.append(len(self.holding()))

        self.worker = Worker([Job(self.process.queue, note)], self.process.runtime, **options)

    def holding(self) -> list[str]:
        """The entries without a receipt whose leases the process holds."""
        names = self.world.names()
        return [
            id_
            for id_ in self.ids
            if f"pending/{id_}/lease.json" in names
            and f"completed/{id_}.json" not in names
            and self.world.facts(id_)[::2] == (State.HELD, "ahead")
        ]

    def run(self, for_s: float) -> None:
        """Let it work so long, and stop it."""
        self.worker.start()
        self.world.time.sleep(for_s)
        self.worker.stop()
        self.world.time.sleep(LATER_S)


def test_short_handlers_have_the_next_entry_claimed_while_they_run(world: World) -> None:
    fleet = Fleet(world, lambda payload: world.time.sleep(0.3))
    fleet.run(30.0)
    assert fleet.held == [1, 2, 2, 2, 2, 1], "not before the first showed how long they take"
    assert left(world) == []


def test_long_handlers_claim_nothing_ahead(world: World) -> None:
    fleet = Fleet(world, lambda payload: world.time.sleep(4.0))
    fleet.run(60.0)
    assert fleet.held == [1] * 6, "4 s are more than a tenth of 30 s"


@pytest.mark.parametrize("options", [{"max_tasks": 6}, {"rate_per_s": 100.0}, {"concurrency": 5}], ids=str)
def test_limits_claim_nothing_ahead(world: World, options: dict[str, Any]) -> None:
    fleet = Fleet(world, lambda payload: world.time.sleep(0.3), **options)
    fleet.run(60.0)
    assert fleet.held == [1] * 6


def test_a_directory_has_no_thread_that_claims_ahead(tmp_path: Path) -> None:
    """A claim there takes less time than the start of a thread."""
    fleet = limpet.open(tmp_path, durability="os")
    names: set[str] = set()
    queue = fleet.queue("q")
    for _ in range(5):
        queue.push({})

    class Spy(SystemRuntime):
        def spawn(self, work: Callable[[], None], *, name: str) -> ThreadHandle:
            names.add(name)
            return super().spawn(work, name=name)

    worker = Worker([Job(queue, lambda payload: None)], Spy(), burst=True)
    assert worker.run().done == 5
    assert [name for name in names if "ahead" in name] == []
    assert names, "the runtime saw no thread at all"


def test_a_stop_hands_back_what_was_claimed_ahead(world: World) -> None:
    def handle(payload: dict[str, Any]) -> None:
        world.time.sleep(0.3)
        if payload["n"] == 2:
            fleet.worker.stop()

    fleet = Fleet(world, handle)
    fleet.run(30.0)
    assert fleet.held == [1, 2, 2]
    assert fleet.holding() == []
    state, token, _ = world.facts("t3")
    assert (state, token) == (State.FREE, 1)
    other = world.process()
    attempts = other.collect(lambda task: (task.id, task.attempt))
    assert sorted(attempts) == [("t3", 1), ("t4", 1), ("t5", 1)], "the attempt was restored"


def test_hand_back_returns_what_runs_and_what_was_claimed_ahead(world: World) -> None:
    fleet = Fleet(world, lambda payload: world.time.sleep(0.3 if payload["n"] < 2 else 20.0))
    fleet.worker.start()
    world.time.sleep(5.0)
    assert fleet.holding() == ["t2", "t3"]
    fleet.worker.hand_back()
    assert fleet.holding() == []
    other = world.process()
    attempts = dict(other.collect(lambda task: (task.id, task.attempt)))
    assert attempts == dict.fromkeys(["t2", "t3", "t4", "t5"], 1)


def test_what_a_dead_worker_had_claimed_ahead_comes_back(world: World) -> None:
    fleet = Fleet(world, lambda payload: world.time.sleep(0.3 if payload["n"] < 2 else 1_000.0))
    fleet.worker.start()
    world.time.sleep(5.0)
    assert fleet.holding() == ["t2", "t3"]
    fleet.process.freeze()
    assert sorted(world.process().drain(idle_s=600.0)) == ["t2", "t3", "t4", "t5"]


def test_batches_end_in_the_background_too(world: World) -> None:
    process = world.process()
    process.queue.push_many(rounds(3))
    assert len(process.drain(idle_s=0.0)) == 3
    assert [name.split()[0] for name in deleted(process, world, within_s=SOON_S)] == ["tasks.jsonl"]
    world.time.sleep(LATER_S)
    assert left(world) == []
