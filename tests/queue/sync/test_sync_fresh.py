"""First syncs, long absences, missing logs: all from a listing, and nothing is resurrected or lost."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from limpet.kernel import keys
from limpet.kernel.errors import Invalid
from limpet.kernel.keys import Key
from limpet.kernel.store import Always, MemoryStore
from limpet.queue.sync.decide import RemoteFleet
from limpet.queue.sync.log import PAGE
from limpet.queue.sync.supervisor import RETENTION_S
from support.clock import QueueRuntime
from support.queue import Crash, crash
from support.sync import Fleet, Node, at, ended, names, waiting

DAY_S = 86_400.0


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def _expire(*places: Node | Fleet) -> None:
    """As `Sweeper.retain` does when receipts are old enough."""
    for place in places:
        for name in [*names(place.memory, "completed"), *names(place.memory, "failed")]:
            place.memory.delete(at(name))


def test_a_new_node_gets_everything(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    direct = fleet.client()
    a.push("done", "waits")
    a.queue.push_many([{"n": 1}, {"n": 2}])
    a.queue.push({}, id="later", delay_s=9 * DAY_S)
    a.work(lambda task: task.done("r") if task.id == "done" else task.retry(after_s=DAY_S))
    direct.push("direct")
    a.sync()
    b = Node(fleet, "b")
    cycle = b.down()
    assert cycle.fresh
    assert waiting(b) == waiting(fleet)
    assert ended(b) == [["completed/done.json"]]
    assert b.result("done").value == "r"
    assert names(b.memory, "scheduled") == names(fleet.memory, "scheduled")
    assert b.outbox() == []
    assert not b.down().fresh


def test_a_new_node_keeps_what_it_has_itself(fleet: Fleet) -> None:
    """What is in a directory before its first supervisor is adopted: sent, and not dropped."""
    (a,) = fleet.nodes("a")
    b = Node(fleet, "b")
    b.push("mine", "over")
    batch = b.queue.push_many([{"n": 1}])
    b.work(lambda task: task.done() if task.id == "over" else task.retry(after_s=DAY_S))
    for key in b.outbox():
        b.memory.delete(Key(key))  # as if there had been no journal
    assert b.down().dropped == 0
    assert "mine" in waiting(b)[0]
    b.up()
    a.down()
    assert waiting(a) == waiting(b)
    assert a.result("over").state == "completed"
    assert a.result(batch[0]).state == "pending"
    before = [*b.memory.list(keys.OUTBOX)]
    b.restart().up()
    assert [*b.memory.list(keys.OUTBOX)] == before, "adopted twice"


def test_an_adoption_that_died_is_done_again(fleet: Fleet) -> None:
    b = Node(fleet, "b")
    b.push("x", "y")
    for key in b.outbox():
        b.memory.delete(Key(key))
    b.disk.before("put", "node.json", lambda: b.disk.before("put", "node.json", crash))
    with pytest.raises(Crash):
        b.up()
    b.restart().up()
    assert waiting(fleet) == [["x", "y"]]


def test_what_ended_during_a_long_absence_is_not_resurrected(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("x", "y")
    a.sync()
    b.sync()
    b.queue.push({}, id="unsent")
    assert sorted(a.work(lambda task: task.done() if task.id == "x" else task.retry(after_s=60 * DAY_S))) == ["x", "y"]
    a.sync()
    for tens in range(4):
        fleet.pass_by(10 * DAY_S)
        a.push(f"keeps busy {tens}")
        a.sync()
    _expire(fleet, a)
    b.restart()
    cycle = b.down()
    assert (cycle.fresh, cycle.dropped) == (True, 1)
    assert "x" not in waiting(b)[0]
    assert {"y", "unsent"} <= {*waiting(b)[0]}
    b.up()
    assert "unsent" in waiting(fleet)[0]
    assert "x" not in waiting(fleet)[0]


def test_a_delayed_push_that_ended_during_a_long_absence_is_not_resurrected(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.queue.push({}, id="x", delay_s=DAY_S)
    a.sync()
    b.sync()
    b.queue.push({}, id="mine", delay_s=90 * DAY_S)
    fleet.pass_by(2 * DAY_S)
    assert a.work() == ["x"]
    a.sync()
    fleet.pass_by(40 * DAY_S)
    a.supervisor.tidy()
    _expire(fleet, a)
    b.restart()
    assert b.down().dropped == 1
    assert b.work() == []
    assert [name.rsplit("/")[-1].split("@")[0] for name in names(b.memory, "scheduled")] == ["mine"]


def test_an_absence_is_measured_on_the_buckets_clock(fleet: Fleet) -> None:
    """A Pi without a clock of its own wakes up in the past."""
    a, b = fleet.nodes("a", "b")
    a.push("x")
    a.sync()
    b.sync()
    a.work()
    a.sync()
    fleet.pass_by(40 * DAY_S)
    _expire(fleet, a)
    b.restart()
    b.boss.wall_offset_s = -40 * DAY_S
    assert b.down().fresh
    assert waiting(b) == [[]]


def test_a_short_absence_reads_the_logs(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    fleet.pass_by(5 * DAY_S)
    a.push("x")
    a.up()
    b.restart()
    assert not b.down().fresh
    assert waiting(b) == [["x"]]


def test_a_gap_in_the_logs_is_pulled_afresh(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    for id_ in ("x", "y", "z"):
        a.push(id_)
        a.up()
    fleet.memory.delete(keys.log_key("a", 2))
    assert b.down().fresh
    assert waiting(b) == [["x", "y", "z"]]
    assert not b.down().fresh


def test_a_log_that_goes_while_it_is_read_is_a_gap(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("x")
    a.up()
    b.network.before("get", "0000000001.jsonl", lambda: fleet.memory.delete(keys.log_key("a", 1)))
    assert b.down().fresh
    assert waiting(b) == [["x"]]


def test_a_log_that_cannot_be_read_is_a_gap(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("x")
    a.up()
    key = keys.log_key("a", 1)
    fleet.memory.put(key, fleet.memory.get(key).data[:-5], when=Always())
    assert b.down().fresh
    assert waiting(b) == [["x"]]
    assert not b.down().fresh


def test_an_unreadable_receipt_is_told_and_the_rest_comes(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    a.push("x", "y")
    a.work()
    a.sync()
    fleet.memory.put(at("completed/x.json"), b"rubbish", when=Always())
    b = Node(fleet, "b")
    assert b.down().unreadable == ["queues/q/completed/x.json"]
    assert ended(b) == [["completed/y.json"]]


@pytest.mark.parametrize("place", ["here", "there"])
def test_an_unreadable_receipt_ends_its_name_all_the_same(fleet: Fleet, place: str) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("x", "y")
    a.sync()
    b.sync()
    b.work()
    memory = a.memory if place == "here" else fleet.memory
    memory.put(at("completed/x.json"), b"rubbish")
    b.up()
    a.down()
    assert waiting(fleet, a, b) == [[], [], []]
    assert memory.get(at("completed/x.json")).data == b"rubbish"


def test_a_client_that_has_logged_and_not_yet_pushed_is_not_passed_over(fleet: Fleet) -> None:
    """Its line precedes its effect, so a listing of the bucket does not cover its log."""
    direct = fleet.client()
    b = Node(fleet, "b")
    direct.store.before("put", "x/task.json", b.down)
    direct.push("x")
    assert waiting(b) == [["x"]]


def test_a_client_that_died_after_its_log_is_finished_by_a_node(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    direct = fleet.client()
    direct.push("x")
    a.sync()
    direct.store.before("put", "completed/x.json", crash)
    with pytest.raises(Crash):
        direct.work()
    a.sync()
    assert waiting(fleet, a) == [[], []]
    assert ended(fleet, a) == [["completed/x.json"]] * 2


def test_a_fresh_pull_finds_the_completions_of_a_batch_that_failed_here(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    ids = a.queue.push_many([{"n": 0}, {"n": 1}])
    a.sync()
    b.sync()
    a.work(lambda task: task.fail("not here") if task.payload["n"] else task.done())
    b.work(lambda task: task.done("there"))
    b.up()
    a.down(fresh=True)
    assert [a.result(id_).state for id_ in ids] == ["completed", "completed"]
    assert a.result(ids[1]).value == "there"


def test_a_fresh_pull_that_died_is_done_again(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    a.push("x", "y")
    a.up()
    b = Node(fleet, "b")
    b.disk.before("put", "y/task.json", crash)
    with pytest.raises(Crash):
        b.down()
    b.restart()
    assert b.down().fresh
    assert waiting(b) == [["x", "y"]]


def test_other_queues_are_left_alone_if_told_so(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    a.open_queue("mine").push({}, id="m")
    a.open_queue("other").push({}, id="o")
    a.up()
    b = Node(fleet, "b")
    b.restart(queues=["mine"])
    b.down()
    a.open_queue("other").push({}, id="o2")
    a.open_queue("mine").push({}, id="m2")
    a.up()
    b.down()
    assert [stat.key.split("/")[3] for stat in b.memory.list("queues")] == ["m", "m2"]
    b.restart(queues=None)
    assert b.down().fresh
    assert [stat.key.split("/")[3] for stat in b.memory.list("queues")] == ["m", "m2", "o", "o2"]


# ---- trimming ----


def test_old_logs_go_and_the_last_one_stays(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    for id_ in ("x", "y", "z"):
        a.push(id_)
        a.sync()
        b.sync()
    fleet.pass_by(RETENTION_S + 60)
    assert a.down().trimmed == 2
    assert fleet.logs() == ["a/0000000003.jsonl"]
    assert b.down().trimmed == 0
    a.push("more")
    a.up()
    assert fleet.logs() == ["a/0000000003.jsonl", "a/0000000004.jsonl"]


def test_logs_of_clients_go_with_their_cursors(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    fleet.client("gone").push("x")
    a.sync()
    assert [stat.key.startswith("sync/cursors/client-") for stat in a.memory.list(keys.CURSORS)] == [True]
    fleet.pass_by(RETENTION_S + 60)
    assert a.down().trimmed == 1
    a.down()
    assert fleet.logs() == []
    assert [*a.memory.list(keys.CURSORS)] == []


def test_a_restarted_node_goes_on_with_its_numbers(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    a.push("x")
    a.up()
    a.push("y")
    a.disk.before("put", "node.json", crash)
    with pytest.raises(Crash):
        a.up()
    a.restart().up()
    assert fleet.logs() == [f"a/{seq:010d}.jsonl" for seq in (1, 2, 3)]


def test_the_first_log_that_was_not_noted_is_recognised(fleet: Fleet) -> None:
    a = Node(fleet, "a")
    a.supervisor.start()
    a.push("x")
    a.disk.before("put", "node.json", crash)
    with pytest.raises(Crash):
        a.up()
    a.restart().up()
    assert fleet.logs() == [f"a/{seq:010d}.jsonl" for seq in (1, 2)]


def test_long_stretches_of_known_logs_are_skipped(fleet: Fleet) -> None:
    """Listing costs what is new, however many logs are kept."""
    (b,) = fleet.nodes("b")
    (a,) = fleet.nodes("a")
    known = 3 * PAGE
    for seq in range(1, known + 1):
        fleet.memory.put(keys.log_key("a", seq), b"old")
        fleet.memory.put(keys.log_key("b", seq), b"old")
    b.supervisor.start()
    b.supervisor._state.read_up_to("a", known)
    a.supervisor._state.start()
    a.supervisor._state.change(last_log=known)
    b.supervisor._state.change(last_log=known)
    a.push("x")
    a.up()
    with b.network.measure() as cost:
        cycle = b.down()
    assert waiting(b) == [["x"]]
    assert not cycle.fresh
    assert cost.requests["list"] <= 5
    assert cost.requests["get"] == 1


def test_down_reads_the_exact_clock_once(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    a.restart()
    with a.network.measure() as first:
        a.down()
    with a.network.measure() as second:
        a.down()
    assert first.requests == {"put": 1, "head": 1, "list": 1}
    assert second.requests == {"list": 1}


def test_when_everything_was_heard_is_noted_now_and_then(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    before = a.supervisor._state.record.pulled_at
    assert before is not None
    fleet.pass_by(3600)
    a.down()
    assert a.supervisor._state.record.pulled_at == before
    fleet.pass_by(7 * 3600)
    a.down()
    after = a.supervisor._state.record.pulled_at
    assert after is not None
    assert after - before >= timedelta(hours=6)


# ---- the bucket is another fleet, or was restored ----


def test_after_a_restore_all_nodes_send_again_what_they_have(fleet: Fleet) -> None:
    """A15: what was pushed, or ended, between the backup and the loss. Cursors and numbers of logs are no longer right:
    another node's next log has a number that was used before."""
    homes = [RemoteFleet("f", 0)]
    nodes = {name: Node(fleet, name) for name in "abc"}
    a, b, c = nodes.values()

    def restart() -> None:
        for node in nodes.values():
            node.restart(home=lambda: homes[-1])
            node.sync()

    restart()
    a.push("kept")
    restart()
    saved = dict(fleet.memory._objects)
    a.push("lost", "done")
    for node in (a, b):
        node.sync()
    b.work(lambda task: task.done() if task.id == "done" else task.retry(after_s=DAY_S))
    for node in (b, a, c):
        node.sync()
    fleet.memory._objects.clear()
    fleet.memory._objects.update(saved)
    homes.append(RemoteFleet("f", 8))
    b.push("new")
    for _ in range(2):
        for node in (c, b, a):
            node.sync()
    assert waiting(a) == waiting(b) == waiting(c) == waiting(fleet) == [["kept", "lost", "new"]]
    assert {node.result("done").state for node in (a, b, c)} == {"completed"}
    before = [*fleet.memory.list(keys.SYNC)]
    for node in (a, b, c):
        assert node.up().quiet
        node.down()
    assert [stat.key for stat in fleet.memory.list(keys.SYNC)] == [stat.key for stat in before], "sent once"


def test_a_running_supervisor_stops_sending_to_another_fleet(fleet: Fleet) -> None:
    homes = [RemoteFleet("f", 0)]
    a = Node(fleet, "a")
    a.restart(home=lambda: homes[-1])
    a.sync()
    a.push("x")
    homes.append(RemoteFleet("g", 0))
    with pytest.raises(Invalid, match="belongs to fleet f; --remote is another one, g"):
        a.up()
    assert waiting(fleet) == [[]]
    a.restart(home=lambda: homes[-1], rehome=True).up()
    assert waiting(fleet) == [["x"]]


def test_a_node_that_joins_another_fleet_gets_what_is_there(fleet: Fleet) -> None:
    """A node of that fleet has the name of one of the old fleet, whose logs were read: by number they seem known."""
    homes = [RemoteFleet("f", 0)]
    a, b = Node(fleet, "a"), Node(fleet, "b")
    a.restart(home=lambda: homes[-1])
    a.sync()
    b.push("f1")
    b.sync()
    a.sync()
    fleet.memory = MemoryStore(QueueRuntime(fleet.time, "bucket of g"))
    other = Node(fleet, "b")
    other.push("g1")
    other.sync()
    homes.append(RemoteFleet("g", 0))
    a.restart(home=lambda: homes[-1], rehome=True)
    a.sync()
    assert waiting(a) == waiting(fleet) == [["f1", "g1"]]


def test_a_rehoming_that_died_is_done_again(fleet: Fleet) -> None:
    a = Node(fleet, "a")
    a.restart(home=lambda: RemoteFleet("f", 0)).up()
    a.push("x")
    a.sync()
    fleet.memory._objects.clear()
    a.restart(home=lambda: RemoteFleet("f", 1))
    second = partial(a.disk.before, "put", "node.json", crash)
    a.disk.before("put", "node.json", lambda: a.disk.before("put", "node.json", second))
    with pytest.raises(Crash):
        a.up()
    a.restart(home=lambda: RemoteFleet("f", 1)).up()
    assert waiting(fleet) == [["x"]]
