"""Leases between nodes: published, noted beside ours, never written over, and over by themselves."""

from __future__ import annotations

import msgspec
import pytest

from limpet.kernel import keys
from limpet.kernel.keys import Key, QueueKeys
from limpet.kernel.lease import State
from limpet.kernel.store import MemoryStore
from limpet.queue.claim import EntryClaim
from limpet.queue.entry import EntryLease
from limpet.queue.sync import Collision, Outbox
from limpet.queue.sync.records import RemoteLease
from support.queue import TTL_S, Crash, crash
from support.sync import DOWN_S, UP_S, Fleet, Node, at, names, waiting

BEATS_S = TTL_S


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def _lease(memory: MemoryStore, entry: str = "x") -> EntryLease:
    return msgspec.json.decode(memory.get(at(f"pending/{entry}/lease.json")).data, type=EntryLease)


def _remote(node: Node, entry: str = "x") -> RemoteLease:
    return msgspec.json.decode(node.memory.get(at(f"pending/{entry}/remote.json")).data, type=RemoteLease)


def _taken(node: Node) -> EntryClaim:
    """A claim that has lasted until the others are to hear of it."""
    claim = node.take()
    node.fleet.pass_by(BEATS_S)
    return claim


def _both(fleet: Fleet) -> tuple[Node, Node]:
    a, b = fleet.nodes("a", "b", timeout_s=10 * DOWN_S)
    a.push("x")
    a.sync()
    b.sync()
    return a, b


def test_a_claim_that_lasts_is_told_and_left_alone(fleet: Fleet) -> None:
    a, b = _both(fleet)
    _taken(a)
    assert a.up().leases == 1
    assert (_lease(fleet.memory).worker_id, _lease(fleet.memory).state) == ("node:a", State.HELD)
    assert b.down().leases == 1
    assert (_remote(b).node, _remote(b).worker_id) == ("a", "a.w")
    assert b.work() == []
    assert "pending/x/lease.json" not in names(b.memory)


def test_what_is_done_in_a_batch_shows_at_its_end(fleet: Fleet) -> None:
    """A lease says what is done here. Another node may do the batch too, and its receipt may come first."""
    [a] = fleet.nodes("a", timeout_s=10 * DOWN_S)
    ids = a.queue.push_many([{}, {}])
    tasks = iter(a.take())
    next(tasks).done("here")
    last = next(tasks)
    fleet.pass_by(BEATS_S)
    assert _lease(a.memory, ids[0].rpartition(".")[0]).done == [0]
    assert a.result(ids[0]).state == "pending"
    assert [each.state for each in a.queue.results(ids)] == ["pending", "pending"]
    last.done()
    assert a.result(ids[0]).value == "here"


def test_a_short_claim_costs_nothing(fleet: Fleet) -> None:
    a, _ = _both(fleet)
    a.store.log.clear()
    a.work()
    assert len([line for line in a.store.wrote("put") if "sync/outbox" in line]) == 1


def test_a_direct_worker_waits_for_a_published_lease(fleet: Fleet) -> None:
    a, _ = _both(fleet)
    _taken(a)
    a.up()
    fleet.pass_by(UP_S - 1)
    direct = fleet.client()
    assert direct.work() == []
    a.runtime.frozen = True  # the node dies
    fleet.pass_by(2 * (UP_S + TTL_S))
    assert direct.work() == ["x"]


def test_the_end_removes_every_lease(fleet: Fleet) -> None:
    a, b = _both(fleet)
    with _taken(a) as claim:
        a.up()
        b.down()
        for task in claim:
            task.done()
    a.up()
    b.down()
    assert [names(place.memory, "pending") for place in (fleet, a, b)] == [[], [], []]
    assert a.outbox() == []


def test_a_task_that_is_handed_back_is_free_for_all(fleet: Fleet) -> None:
    a, b = _both(fleet)
    claim = _taken(a)
    a.up()
    b.down()
    claim.hand_back()
    assert a.up().leases == 0
    assert _lease(fleet.memory).state is State.FREE
    assert a.outbox() == []
    b.down()
    assert _remote(b).live_s == 0
    assert b.work() == ["x"]


def test_a_foreign_lease_ends_by_itself(fleet: Fleet) -> None:
    a, b = _both(fleet)
    _taken(a)
    a.up()
    b.down()
    a.runtime.frozen = True  # and nobody ever hears of it again
    fleet.pass_by(DOWN_S + UP_S + TTL_S - 60)
    assert b.work() == []
    fleet.pass_by(120)
    assert b.work() == ["x"]


def test_a_lease_that_is_told_again_lasts_longer(fleet: Fleet) -> None:
    a, b = _both(fleet)
    _taken(a)
    for _ in range(3):
        a.up()
        b.down()
        fleet.pass_by(DOWN_S)
        assert b.work() == []


def test_a_log_that_is_read_again_does_not_prolong_it(fleet: Fleet) -> None:
    a, b = _both(fleet)
    _taken(a)
    a.up()
    b.disk.before("put", "cursors/a.json", crash)
    with pytest.raises(Crash):
        b.down()
    a.runtime.frozen = True
    fleet.pass_by(DOWN_S)
    b.restart().down()
    fleet.pass_by(UP_S + TTL_S + 60)
    assert b.work() == ["x"]


def test_ours_is_never_touched_by_a_pull(fleet: Fleet) -> None:
    a, b = _both(fleet)
    _taken(a)
    mine = _taken(b)
    a.up()
    before = b.memory.get(at("pending/x/lease.json")).version
    b.down()
    assert b.memory.get(at("pending/x/lease.json")).version == before
    assert not mine.lost


def test_a_live_foreign_lease_wins_and_is_told_once(fleet: Fleet) -> None:
    a, b = _both(fleet)
    _taken(a)
    _taken(b)
    a.up()
    cycle = b.up()
    assert cycle.collisions == [Collision("lease", "q", "x", "host:a.w")]
    assert _lease(fleet.memory).worker_id == "node:a"
    for _ in range(3):
        fleet.pass_by(UP_S)
        a.up()
        assert b.up().collisions == []
        assert (_lease(fleet.memory).worker_id, _lease(fleet.memory).token) == ("node:a", 1)


def test_an_abandoned_lease_is_taken_over(fleet: Fleet) -> None:
    a, b = _both(fleet)
    _taken(a)
    a.up()
    a.runtime.frozen = True
    _taken(b)
    for _ in range(4):
        fleet.pass_by(UP_S)
        b.up()
    assert (_lease(fleet.memory).worker_id, _lease(fleet.memory).token) == ("node:b", 2)


def test_a_cancelled_entry_is_left_cancelled(fleet: Fleet) -> None:
    a, _ = _both(fleet)
    direct = fleet.client()
    direct.store.before("put", "failed/x.json", crash)
    with pytest.raises(Crash):
        direct.queue.cancel("x")
    _taken(a)
    a.up()
    assert _lease(fleet.memory).state is State.CANCELLED


def test_nothing_is_published_for_what_the_bucket_does_not_have(fleet: Fleet) -> None:
    a, _ = _both(fleet)
    _taken(a)
    fleet.memory.delete(at("pending/x/task.json"))
    a.up()
    assert names(fleet.memory, "pending") == []


def test_a_worker_that_died_lets_go(fleet: Fleet) -> None:
    a, b = _both(fleet)
    _taken(a)
    a.up()
    b.down()
    a.runtime.frozen = True
    fleet.pass_by(2 * TTL_S)
    assert a.up().leases == 0
    b.down()
    assert b.work() == ["x"]


def test_a_restarted_supervisor_knows_what_its_workers_hold(fleet: Fleet) -> None:
    a, _ = _both(fleet)
    _taken(a)
    a.up()
    a.restart()
    assert a.up().leases == 1
    assert _lease(fleet.memory).token == 1


def test_a_new_node_hears_of_the_leases_that_stand(fleet: Fleet) -> None:
    a, _ = _both(fleet)
    _taken(a)
    a.up()
    c = Node(fleet, "c")
    assert c.down().leases == 1
    assert waiting(c) == [["x"]]
    assert c.work() == []


def test_a_lease_of_what_is_not_here_is_not_noted(fleet: Fleet) -> None:
    a, b = _both(fleet)
    _taken(a)
    a.up()
    b.memory.delete(at("pending/x/task.json"))
    b.down()
    assert names(b.memory, "pending") == []


def test_two_foreign_leases_are_a_collision(fleet: Fleet) -> None:
    a, b = _both(fleet)
    (c,) = fleet.nodes("c")
    _taken(a)
    a.up()
    c.down()
    fleet.memory.delete(at("pending/x/lease.json"))
    _taken(b)
    b.up()
    assert [each.kind for each in c.down().collisions] == ["lease"]


def test_an_unreadable_note_holds_up_nobody(fleet: Fleet) -> None:
    a, b = _both(fleet)
    _taken(a)
    a.up()
    b.down()
    listed = [*b.memory.list("queues")]
    b.memory.put(at("pending/x/remote.json"), b"rubbish")
    assert Outbox(b.store, b.runtime).foreign([*b.memory.list("queues")]) == set()
    b.memory.delete(at("pending/x/remote.json"))
    assert Outbox(b.store, b.runtime).foreign(listed) == set()
    b.memory.put(at("pending/x/remote.json"), b"rubbish")
    a.up()
    b.down()
    assert Outbox(b.store, b.runtime).foreign([*b.memory.list("queues")]) == {"x"}


@pytest.mark.parametrize("place", ["here", "there"])
def test_an_unreadable_lease_is_left_to_the_next_claim(fleet: Fleet, place: str) -> None:
    a, _ = _both(fleet)
    _taken(a)
    memory = a.memory if place == "here" else fleet.memory
    memory.put(at("pending/x/lease.json"), b"rubbish")
    assert a.up().leases == 0
    assert memory.get(at("pending/x/lease.json")).data == b"rubbish"


def test_orphans_are_swept(fleet: Fleet) -> None:
    a, b = _both(fleet)
    _taken(a)
    a.up()
    b.down()
    b.memory.delete(at("pending/x/task.json"))
    fleet.pass_by(DOWN_S)
    b.queue.sweep()
    assert names(b.memory, "pending") == []


def test_keys_of_queues() -> None:
    queue = QueueKeys.of("a/b")
    place = keys.queue_place(queue.tasks("x", batch=True))
    assert place is not None
    assert (place.keys.name, place.kind, place.name) == ("a/b", "batch", "x")
    assert keys.queue_place("queues/q/pending/x/y/task.json") is None
    assert keys.queue_place("queues/q/scheduled/20260101T000000Z/x@y.json") == keys.QueuePlace(
        QueueKeys("queues/q"), "scheduled", "x"
    )
    assert keys.log_of(keys.log_key("n", 7)) == ("n", 7)
    assert keys.log_of(Key("sync/outbox/x.json")) is None


def test_whoever_holds_a_task_elsewhere_is_shown(fleet: Fleet) -> None:
    """B9: `queue ls` and `queue show` said on a node that it waits."""
    a, b = _both(fleet)
    b.push("free")
    _taken(a)
    a.up()
    b.down()
    assert {row["id"]: (row["state"], row["worker"]) for row in b.queue.entries("pending")} == {
        "x": ("running", "host:a.w at a"),
        "free": ("waiting", None),
    }
    shown = b.queue.waiting_facts("x")
    assert shown is not None
    assert (shown["state"], shown["worker"]) == ("running", "host:a.w at a")
    b.memory.put(at("pending/free/remote.json"), b"rubbish")
    assert b.queue.waiting_facts("free") is not None
    fleet.pass_by(2 * DOWN_S)
    assert {row["state"] for row in b.queue.entries("pending")} == {"waiting"}
    assert sorted(b.work()) == ["free", "x"]
