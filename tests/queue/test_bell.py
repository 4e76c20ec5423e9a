"""The bell of a queue in a bucket: who rings it and how often, when an idle worker lists, and what that costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import structs

from limpet.kernel.errors import Denied, Invalid, LimpetError, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key
from limpet.kernel.store import Always, ScopedStore, Version, When
from limpet.kernel.store.api import Stat
from limpet.kernel.store.roles import ROLES, allows
from limpet.queue import BucketQueue
from limpet.queue.bell import LIST_EVERY_S, LISTEN_S, must_list
from limpet.queue.cost import idle_bill
from limpet.worker import Job, Worker
from support.queue import NAME, TTL_S, Network, World, raises
from support.roles import OBJECT_VERBS

BELL = "put bell.json"
HOUR_S = 3600.0
NEVER = float("inf")


@pytest.fixture
def world() -> World:
    return World(far=True)


class Idler:
    """A process whose worker runs until the test ends, and when it started which task."""

    def __init__(self, world: World, handle: Callable[[Any], object] | None = None, **policy: Any) -> None:
        self.process = world.process("idler", **policy)
        self.started: list[tuple[float, Any]] = []
        self._time = world.time
        self._handle = handle

        def note(payload: dict[str, Any]) -> None:
            self.started.append((world.time.now_s, payload["n"]))
            if handle is not None:
                handle(payload)

        self.worker = Worker([Job(self.process.queue, note)], self.process.runtime)
        self.worker.start()
        world.time.sleep(300)
        self.process.store.log.clear()

    def requests(self) -> Counter[str]:
        """Verb and kind of what was asked since it became idle or since the last call."""
        found = Counter(" ".join(line.split()[:2]) for line in self.process.store.log)
        self.process.store.log.clear()
        return found


# ---- the decision ----


@pytest.mark.parametrize(
    ("at_s", "heard_s", "listed_s", "due_s", "wanted"),
    [
        (1000.0, -NEVER, -NEVER, NEVER, True),  # never listed
        (1000.0, -NEVER, 999.0, NEVER, False),
        (999.0 + LIST_EVERY_S, -NEVER, 999.0, NEVER, True),
        (998.9 + LIST_EVERY_S, -NEVER, 999.0, NEVER, False),
        (1000.0, 999.5, 999.0, NEVER, True),  # a ring after the listing
        (1000.0, 999.0, 999.5, NEVER, True),  # a listing soon after a ring may have missed the next push
        (1010.0, 1000.0, 1000.0 + LISTEN_S - 0.1, NEVER, True),  # however long ago
        (1010.0, 1000.0, 1000.0 + LISTEN_S, NEVER, False),
        (1000.0, -NEVER, 999.0, 1000.0, True),  # something is due
        (1000.0, -NEVER, 999.0, 1000.1, False),
    ],
)
def test_when_to_list(at_s: float, heard_s: float, listed_s: float, due_s: float, wanted: bool) -> None:
    assert must_list(at_s, heard_s=heard_s, listed_s=listed_s, due_s=due_s) is wanted


# ---- those who ring ----


def test_a_process_rings_at_most_once_a_second(world: World) -> None:
    process = world.process()
    for _ in range(50):
        process.queue.push({})
        world.time.sleep(0.1)
    assert process.store.wrote("put").count(BELL) == 5


def test_the_task_is_there_before_the_bell(world: World) -> None:
    process = world.process()
    process.queue.push({})
    process.queue.push_many([{}, {}])
    world.time.sleep(2)
    process.queue.push({}, delay_s=60)
    kinds = [line.split("/")[0].removeprefix("put ") for line in process.store.wrote("put")]
    assert kinds == ["pending", "bell.json", "pending", "scheduled", "bell.json"]


def test_a_push_of_a_taken_id_does_not_ring(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    world.time.sleep(10)
    process.store.log.clear()
    assert not process.queue.push({}, id="x").created
    assert BELL not in process.store.log


def test_a_hand_back_a_retry_and_a_resume_ring(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")

    def rang(act: Callable[[], object]) -> bool:
        world.time.sleep(5)
        process.store.log.clear()
        act()
        return BELL in process.store.log

    claim = process.take()
    assert rang(claim.hand_back)
    _, task = process.start()
    task.fail("no")
    assert rang(lambda: process.queue.retry("x"))
    process.queue.pause()
    assert rang(process.queue.resume)


@pytest.mark.parametrize("error", [Denied("no"), Unavailable("busy"), OutcomeUnknown("?")], ids=repr)
def test_a_bell_that_cannot_be_rung_fails_no_push(world: World, error: LimpetError) -> None:
    process = world.process()
    process.store.before("put", "bell.json", raises(error))
    assert process.queue.push({"n": 1}).created
    assert BELL in process.store.log
    assert process.drain() != []


def test_a_key_without_the_bell_pushes_all_the_same(world: World) -> None:
    """A policy of an older version does not grant `bell.json`."""

    class Older(Network):
        def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
            if key.endswith("/bell.json"):
                raise Denied("the policy does not say so")
            return super().put(key, data, when=when)

    runtime = world.process().runtime
    queue = BucketQueue(Older(runtime, world.memory), NAME, runtime)
    pushed = [queue.push({}).id, *queue.push_many([{}, {}])]
    assert len(world.process().drain()) == len(pushed)
    assert "bell.json" not in world.names()


def test_the_roles_that_push_may_ring_and_a_worker_may_ask(world: World) -> None:
    for role in ("pusher", "worker", "supervisor"):
        process = world.process(role)
        store = ScopedStore(process.store, role=role, runtime=process.runtime)
        queue = BucketQueue(store, NAME, process.runtime)
        queue.push({})
        assert process.store.log[-1] == BELL, role
    worker = ScopedStore(process.store, role="worker", runtime=process.runtime)
    assert worker.head(queue.storage.keys.bell).size > 0
    rights = {verb: [role for role in ROLES if allows(role, verb, queue.storage.keys.bell)] for verb in OBJECT_VERBS}
    assert rights["put"] == ["pusher", "supervisor", "worker"]
    assert rights["delete"] == []


# ---- those who listen ----


def test_what_an_idle_worker_asks_in_an_hour(world: World) -> None:
    """The figures that `limpet queue cost` shows. The bell is there already, as in a queue that was used."""
    world.process().queue.push({"n": 1})
    idler = Idler(world)
    world.time.sleep(HOUR_S)
    asked = idler.requests()
    idler.worker.stop()
    assert 1_730 <= asked.pop("head bell.json") <= 1_800
    assert 55 <= asked.pop(f"list queues/{NAME}") <= 61
    assert sum(asked.values()) <= 20, asked
    assert idle_bill(2.0).dollars < 0.75


def test_poll_s_is_how_often_it_asks(world: World) -> None:
    idler = Idler(world, poll_s=10.0)
    world.time.sleep(HOUR_S)
    assert 290 <= idler.requests()["head bell.json"] <= 310


def test_a_worker_may_have_a_poll_s_of_its_own(world: World) -> None:
    process = world.process()
    worker = Worker([Job(process.queue, print)], process.runtime, poll_s=30.0)
    worker.start()
    world.time.sleep(300)
    process.store.log.clear()
    world.time.sleep(HOUR_S)
    polls = [line for line in process.store.log if line in ("head bell.json", f"list queues/{NAME}")]
    assert 115 <= len(polls) <= 125
    worker.stop()
    with pytest.raises(Invalid, match="poll_s"):
        Worker([Job(process.queue, print)], process.runtime, poll_s=0)


@pytest.mark.parametrize("batch", [False, True])
def test_a_push_wakes_it_within_poll_s(world: World, batch: bool) -> None:
    idler, pusher = Idler(world), world.process()
    waits = []
    for n in range(20):
        world.time.sleep(97.3 + 0.61 * n)
        pushed_s = world.time.now_s
        if batch:
            pusher.queue.push_many([{"n": n}])
        else:
            pusher.queue.push({"n": n})
        world.time.sleep(5)
        waits.append(idler.started[-1][0] - pushed_s)
        assert idler.started[-1][1] == n
    assert max(waits) < 2.0 / 0.95 + 0.2


def test_without_a_ring_it_is_found_within_a_minute(world: World) -> None:
    idler, pusher = Idler(world), world.process()
    pusher.store.away("put", "bell.json", Unavailable("busy"))
    pushed_s = world.time.now_s
    pusher.queue.push({"n": 1})
    world.time.sleep(LIST_EVERY_S + 5)
    [(started_s, _)] = idler.started
    assert started_s - pushed_s <= LIST_EVERY_S + 3


@pytest.mark.parametrize(
    ("verb", "ending"),
    [("list", NAME), ("put", "lease.json"), ("get", "task.json")],
    ids=["list", "claim", "read"],
)
@pytest.mark.parametrize("error", [Unavailable("busy"), OutcomeUnknown("no answer")], ids=repr)
def test_a_ring_is_answered_by_a_look_that_succeeds(world: World, verb: str, ending: str, error: LimpetError) -> None:
    """Each look fails for a while: the first one that succeeds finds the task."""
    idler, pusher = Idler(world), world.process()
    idler.process.store.away(verb, ending, error)
    pusher.queue.push({"n": 1})
    world.time.sleep(20.0)
    assert idler.started == []
    idler.process.store.back()
    back_s = world.time.now_s
    world.time.sleep(LIST_EVERY_S + TTL_S + 5)
    [(started_s, _)] = idler.started
    assert started_s - back_s < (TTL_S + 5 if verb == "get" else 16 + 2)


def test_a_ring_that_failed_is_none(world: World) -> None:
    idler, pusher = Idler(world), world.process()
    pusher.store.before("put", "bell.json", raises(Unavailable("busy")))
    pusher.queue.push({"n": 1})
    pusher.queue.push({"n": 2})
    assert pusher.store.wrote("put").count(BELL) == 2
    world.time.sleep(5)
    assert [n for _, n in idler.started] == [1, 2]


def test_a_ring_that_is_forbidden_is_not_tried_with_each_push(world: World) -> None:
    pusher = world.process()
    pusher.store.away("put", "bell.json", Denied("no"))
    for _ in range(10):
        pusher.queue.push({})
    assert pusher.store.wrote("put").count(BELL) == 1


def test_a_push_without_a_ring_of_its_own_is_found_after_the_ring_before(world: World) -> None:
    """A process rings at most once a second: its second task relies on the ring of the first."""
    idler, pusher = Idler(world), world.process()
    pusher.queue.push({"n": 1})
    world.time.sleep(0.9)
    pusher.queue.push({"n": 2})
    assert pusher.store.wrote("put").count(BELL) == 1
    world.time.sleep(8)
    assert [n for _, n in idler.started] == [1, 2]


def test_a_delayed_task_is_found_when_it_is_due(world: World) -> None:
    idler = Idler(world)
    world.process().queue.push({"n": 1}, delay_s=30.0)
    pushed_s = world.time.now_s
    world.time.sleep(40)
    [(started_s, _)] = idler.started
    assert 30 <= started_s - pushed_s <= 30 + 1 + 3


def test_a_retry_is_found_when_it_is_due_without_a_ring(world: World) -> None:
    def handle(payload: object) -> None:
        if len(idler.started) == 1:
            raise ValueError("once")

    idler = Idler(world, handle, backoff_s=25.0)
    world.process().queue.push({"n": 1})
    world.time.sleep(45)
    (first_s, _), (second_s, _) = idler.started
    assert 12 <= second_s - first_s <= 25 + 4
    assert BELL not in idler.process.store.log


def test_the_lease_of_a_dead_worker_is_found_when_it_runs_out(world: World) -> None:
    idler, pusher = Idler(world), world.process()
    dead = world.process("dead")
    pusher.queue.push({"n": 1})
    dead.take()
    dead.freeze()
    claimed_s = world.time.now_s
    world.time.sleep(2 * TTL_S)
    [(started_s, _)] = idler.started
    assert TTL_S <= started_s - claimed_s <= TTL_S + 10


def test_whatever_the_bell_holds_is_never_read(world: World) -> None:
    idler = Idler(world)
    for n, data in enumerate((b"", b"\xff", b"[" * 100_000, b"x" * 20_000_000)):
        world.write("bell.json", data)
        world.process().queue.push({"n": n})
        world.time.sleep(10)
    assert [n for _, n in idler.started] == [0, 1, 2, 3]
    assert "get bell.json" not in idler.process.store.log


def test_near_stores_have_no_bell() -> None:
    process = World().process()
    process.queue.push({})
    process.drain()
    assert not [line for line in process.store.log if "bell" in line]


def test_a_page_of_a_long_backlog_without_a_free_entry_is_soon_followed_by_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.process().queue.push({"n": 1})
    sample, pages = world.memory.sample, 0

    def held(prefix: str, n: int) -> Sequence[Stat]:
        nonlocal pages
        pages += 1
        found = sample(prefix, n)
        return (
            [structs.replace(found[0], key=Key(f"{prefix}/x{k}/lease.json")) for k in range(n)] if pages < 9 else found
        )

    monkeypatch.setattr(world.memory, "sample", held)
    process = world.process()
    started: list[int] = []
    Worker([Job(process.queue, lambda payload: started.append(payload["n"]))], process.runtime).start()
    world.time.sleep(LIST_EVERY_S)
    assert started == [1]
