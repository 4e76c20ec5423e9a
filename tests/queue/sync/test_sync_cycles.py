"""What is done on one node reaches the bucket and every other node, whatever dies in between."""

from __future__ import annotations

import pytest

from limpet.kernel.errors import Conflict, Invalid, LimpetError, OutcomeUnknown, Unavailable
from limpet.queue.claim import EntryTask
from limpet.queue.sync import Collision
from support.queue import Crash, crash, raises
from support.stores import lost_reply, lost_request, refused_409
from support.sync import DOWN_S, Fleet, Node, at, ended, names, waiting


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_a_push_is_done_elsewhere_and_heard_of_at_home(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("x")
    assert a.up().pushes == 1
    assert b.down().pushes == 1
    assert waiting(fleet, a, b) == [["x"], ["x"], ["x"]]
    assert b.work() == ["x"]
    assert b.up().ends == 1
    assert a.down().ends == 1
    assert waiting(fleet, a, b) == [[], [], []]
    assert ended(fleet, a, b) == [["completed/x.json"]] * 3
    assert a.result("x").value == {"by": "b.w"}


def test_all_kinds_of_pushes_travel(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    minted = a.queue.push({"n": 1}).id
    batch = a.queue.push_many([{"n": n} for n in range(3)])
    a.queue.push({"n": 2}, id="later", delay_s=60)
    a.sync()
    b.sync()
    fleet.pass_by(120)
    assert sorted(b.work()) == sorted([minted, *batch, "later"])
    b.sync()
    a.sync()
    assert a.work() == []
    assert [a.result(id_).state for id_ in (minted, *batch, "later")] == ["completed"] * 5


def test_failures_and_retries_and_cancels_travel(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("bad", "dull")
    a.sync()
    b.sync()
    b.queue.cancel("dull")
    b.work(lambda task: task.fail("no"))
    b.sync()
    a.sync()
    assert [a.result(id_).state for id_ in ("bad", "dull")] == ["failed", "cancelled"]
    assert a.queue.retry("bad") == ["bad~1"]
    a.sync()
    b.sync()
    assert b.result("bad").state == "pending"
    assert b.work() == ["bad~1"]
    b.sync()
    a.sync()
    assert a.result("bad").state == "completed"


def test_purged_tasks_do_not_come_back(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("x")
    a.queue.push({})
    a.queue.push_many([{}, {}])
    a.queue.push({}, delay_s=60)
    a.sync()
    b.sync()
    assert a.queue.purge() == 5
    for node in (a, b, a):
        node.sync()
    assert waiting(fleet, a, b) == [[], [], []]
    fleet.pass_by(120)
    assert b.work() == []


def test_what_was_pulled_is_not_sent_again(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("x")
    a.sync()
    b.sync()
    assert b.outbox() == []
    before = fleet.logs()
    b.sync()
    assert fleet.logs() == before


def test_a_client_of_the_bucket_is_heard_and_hears(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    direct = fleet.client()
    direct.push("x")
    a.push("y")
    a.sync()
    assert waiting(fleet, a) == [["x", "y"], ["x", "y"]]
    assert sorted(a.work(lambda task: task.done() if task.id == "x" else task.retry(after_s=60))) == ["x", "y"]
    a.sync()
    assert direct.result("x").state == "completed"


def test_a_node_that_was_off_for_a_day_catches_up(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    b.push("old")
    b.sync()
    a.sync()
    fleet.pass_by(86_400)
    b.push("new")
    assert sorted(b.work()) == ["new", "old"]
    b.sync()
    a.restart()
    a.sync()
    assert waiting(a) == [[]]
    assert ended(a) == ended(b)


def test_double_work_is_counted_and_the_first_end_stands(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("x")
    a.sync()
    b.sync()
    assert a.work() == b.work() == ["x"]
    assert a.up().collisions == []
    assert b.up().collisions == [Collision("run", "q", "x", "host:a.w")]
    assert a.down().collisions == [Collision("run", "q", "x", "host:a.w")]
    b.down()
    assert fleet.client().result("x").value == {"by": "a.w"}
    assert b.result("x").value == {"by": "b.w"}


def test_completed_beats_failed_wherever_it_comes_from(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("x")
    a.sync()
    b.sync()
    a.work(lambda task: task.fail("not here"))
    b.work()
    for node in (a, b, a, b):
        node.sync()
    direct = fleet.client()
    for place in (a, b, direct):
        place.queue.sweep()
        assert place.result("x").state == "completed"
    assert ended(fleet, a, b) == [["completed/x.json"]] * 3


def test_per_task_completed_beats_failed_in_a_batch_that_two_nodes_ran(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    ids = a.queue.push_many([{"n": n} for n in range(3)])
    a.sync()
    b.sync()

    def unlucky(*which: int) -> object:
        return lambda task: task.fail("no") if task.payload["n"] in which else task.done({"n": task.payload["n"]})

    a.work(unlucky(0, 1))  # type: ignore[arg-type]
    b.work(unlucky(1, 2))  # type: ignore[arg-type]
    for node in (a, b, a, b):
        node.sync()
    for place in (a, b, fleet.client()):
        place.queue.sweep()
        assert [place.result(id_).state for id_ in ids] == ["completed", "failed", "completed"]
        assert place.result(ids[0]).value == {"n": 0}


def test_one_id_with_two_payloads_is_told(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.queue.push({"n": 1}, id="x")
    b.queue.push({"n": 2}, id="x")
    a.up()
    told = b.up().collisions
    assert [(each.kind, each.entry) for each in told] == [("payload", "x")]
    assert [each.kind for each in a.down().collisions] == ["payload"]
    b.push("same")
    a.push("same")
    b.up()
    assert a.up().collisions == []


def test_the_same_collision_is_told_once(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("x")
    a.sync()
    b.sync()
    a.work()
    b.work()
    a.up()
    assert len([*b.up().collisions, *b.down().collisions, *b.down(fresh=True).collisions]) == 1


# ---- crashes and faults ----


def _everything(fleet: Fleet, a: Node, b: Node) -> None:
    """After whatever happened: both are in step, and nothing is missing anywhere."""
    for node in (a, b, a, b):
        node.sync()
    fleet.pass_by(2 * DOWN_S)
    for node in (a, b):
        node.work()
        node.sync()
    a.down()
    assert waiting(fleet, a, b) == [[], [], []]
    assert ended(fleet, a, b) == [ended(a)[0]] * 3
    assert {"completed/done.json", "completed/x.json"} <= {*ended(a)[0]}
    assert a.outbox() == []


STEPS = [
    ("network", "put", "task.json"),
    ("network", "head", "failed/x.json"),
    ("network", "put", "completed/done.json"),
    ("network", "delete", "task.json"),
    ("network", "delete", "lease.json"),
    ("network", "put", "0000000001.jsonl"),
    ("disk", "put", "node.json"),
    ("disk", "delete", ".json"),
]


@pytest.mark.parametrize(("side", "verb", "ending"), STEPS)
def test_up_may_die_anywhere(fleet: Fleet, side: str, verb: str, ending: str) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("done")
    a.work()
    a.push("x")
    getattr(a, side).before(verb, ending, crash)
    if (verb, ending) == ("head", "failed/x.json"):
        fleet.client().push("x")
    with pytest.raises(Crash):
        a.up()
    a.restart()
    _everything(fleet, a, b)


@pytest.mark.parametrize(
    ("verb", "ending"),
    [
        ("put", "pending/x/task.json"),
        ("put", "completed/done.json"),
        ("delete", "pending/done/task.json"),
        ("put", "cursors/b.json"),
    ],
)
def test_down_may_die_anywhere(fleet: Fleet, verb: str, ending: str) -> None:
    a, b = fleet.nodes("a", "b")
    b.push("done")
    b.sync()
    a.sync()
    b.work()
    b.push("x")
    b.up()
    a.disk.before(verb, ending, crash)
    with pytest.raises(Crash):
        a.down()
    a.restart()
    _everything(fleet, a, b)


@pytest.mark.parametrize("fault", [lost_reply, lost_request, refused_409])
@pytest.mark.parametrize("which", range(4))
def test_up_sends_again_what_was_not_answered(fleet: Fleet, which: int, fault: object) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("done")
    a.work()
    a.push("x")
    a.network.puts.extend([None] * which + [fault])  # type: ignore[list-item]
    try:
        a.up()
    except (OutcomeUnknown, Unavailable):
        assert a.outbox() != []
    a.network.puts.clear()
    _everything(fleet, a, b)


def test_what_could_not_be_sent_does_not_hold_up_the_rest(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("stuck", "x")
    a.network.before("put", "stuck/task.json", raises(Unavailable("slow down")))
    with pytest.raises(Unavailable):
        a.up()
    b.sync()
    assert waiting(b) == [["x"]]
    a.sync()
    b.sync()
    assert waiting(b) == [["stuck", "x"]]


@pytest.mark.parametrize("ending", ["task.json", "completed/x.json"])
def test_a_note_without_its_effect_is_finished_here_too(fleet: Fleet, ending: str) -> None:
    """The outbox is written ahead: what a process of ours died over is done, here and there."""
    a, b = fleet.nodes("a", "b")
    if ending != "task.json":
        a.push("x")
    a.store.before("put", ending, crash)
    with pytest.raises(Crash):
        a.push("x") if ending == "task.json" else a.work()
    a.up()
    assert waiting(a) == ([["x"]] if ending == "task.json" else [[]])
    b.sync()
    a.sync()
    fleet.pass_by(DOWN_S)
    a.work()
    _ = a.sync(), b.sync()
    assert ended(fleet, a, b) == [["completed/x.json"]] * 3


@pytest.mark.parametrize("act", ["push", "push_many", "delayed", "done", "fail", "cancel", "retry", "reject"])
def test_the_note_comes_before_the_effect(fleet: Fleet, act: str) -> None:
    """H8: whatever changes the queue is in the outbox first."""
    (a,) = fleet.nodes("a")
    if act in ("done", "fail", "cancel", "retry"):
        a.push("x")
    if act == "retry":
        a.work(lambda task: task.fail("no"))
    if act == "reject":
        a.memory.put(at("pending/x/task.json"), b"rubbish")
    a.store.log.clear()

    def fail(task: EntryTask) -> None:
        task.fail("no")

    match act:
        case "push":
            a.queue.push({})
        case "push_many":
            a.queue.push_many([{}, {}])
        case "delayed":
            a.queue.push({}, delay_s=10)
        case "done" | "reject":
            a.work()
        case "fail":
            a.work(fail)
        case "cancel":
            a.queue.cancel("x")
        case "retry":
            a.queue.retry("x")
    wrote = [line for line in a.store.wrote("put") if "lease.json" not in line and " parts/" not in line]
    notes = [line.startswith("put sync/outbox/") for line in wrote]
    assert notes == [True, False] * (len(notes) // 2)
    assert notes


def test_a_push_that_finds_the_name_taken_is_noted(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    a.push("x")
    a.up()
    a.push("x")
    assert len(a.outbox()) == 1


def test_no_effect_without_a_note(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    a.store.before("put", ".json", raises(Unavailable("the disk is full")))
    with pytest.raises(Unavailable):
        a.push("x")
    assert names(a.memory) == []


# ---- names of nodes ----


def test_a_directory_keeps_its_name(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    with pytest.raises(Invalid, match="this directory is the node 'a', not 'z'"):
        a.restart(node="z").up()
    assert a.restart(node=None).up() is not None
    assert a.supervisor.node == "a"


def test_a_name_is_made_from_the_host(fleet: Fleet) -> None:
    node = Node(fleet, "x")
    node.restart(node=None).up()
    assert node.supervisor.node.startswith("host-")


@pytest.mark.parametrize("name", ["", "a/b", "..", "client-x", "outbox", "x" * 65, "a b"])
def test_names_that_a_node_cannot_have(fleet: Fleet, name: str) -> None:
    with pytest.raises(Invalid):
        Node(fleet, "ok").restart(node=name)


def test_two_directories_of_one_name_are_found_out(fleet: Fleet) -> None:
    first, second = Node(fleet, "pi"), Node(fleet, "pi")
    first.push("x")
    first.sync()
    second.push("y")
    with pytest.raises(Conflict, match="another directory writes to the bucket as the node 'pi'"):
        second.up()
    assert second.outbox() != []


def test_a_copied_directory_is_found_out(fleet: Fleet) -> None:
    """By whichever of the two meets a log of a process that it never was."""
    (a,) = fleet.nodes("a")
    a.push("x")
    a.up()
    copy = Node(fleet, "a")
    for stat in a.memory.list():
        copy.memory.put(stat.key, a.memory.get(stat.key).data)
    copy.push("z")
    copy.up()
    a.push("y")
    with pytest.raises(Conflict):
        a.up()


def test_an_interval_must_make_sense(fleet: Fleet) -> None:
    with pytest.raises(Invalid, match="up_s must be at least 1"):
        Node(fleet, "a").restart(up_s=0)


def test_errors_have_hints(fleet: Fleet) -> None:
    first, second = Node(fleet, "pi"), Node(fleet, "pi")
    first.push("x")
    first.up()
    second.push("y")
    with pytest.raises(LimpetError) as caught:
        second.up()
    assert "--node" in caught.value.hint
