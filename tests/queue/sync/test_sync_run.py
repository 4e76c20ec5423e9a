"""The loop: intervals, a bucket that goes away and comes back, stopping, and one supervisor for each directory."""

from __future__ import annotations

import pytest

from limpet.kernel.errors import Held, LeaseLost, Unavailable
from limpet.kernel.keys import SUPERVISOR
from limpet.kernel.lease import Lock, VersionWatch
from limpet.queue.sync import Cycle, Disconnected, Reconnected, Supervisor, SyncEvent
from limpet.queue.sync.supervisor import SyncSchedule
from support.clock import ManualRuntime
from support.queue import Network, raises
from support.sync import DOWN_S, UP_S, Fleet, Node, Stop, at, names, waiting

DAY_S = 86_400.0


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def _run(node: Node, seconds: float) -> list[SyncEvent]:
    """Let it run for so long; what it told."""
    told: list[SyncEvent] = []
    node.supervisor.run(Stop(node.fleet, seconds), told.append)
    return told


def _directions(told: list[SyncEvent]) -> list[str]:
    return [event.direction for event in told if isinstance(event, Cycle)]


def test_it_syncs_at_once_and_then_at_its_intervals(fleet: Fleet) -> None:
    node = Node(fleet, "a")
    told = _directions(_run(node, DOWN_S + UP_S))
    assert told[:2] == ["up", "down"]
    assert told.count("down") == 2
    assert 12 <= told.count("up") <= 16


def test_the_intervals_are_spread() -> None:
    """Nodes that were started together do not meet for ever."""
    schedule = SyncSchedule(ManualRuntime(), UP_S, DOWN_S)
    due_s = []
    for _ in range(100):
        schedule.done("up", 0.0)
        due_s.append(next(at_s for at_s in range(int(UP_S) + 1) if schedule.is_due("up", at_s)))
    assert len({*due_s}) > 1
    assert all(0.9 * UP_S <= at_s <= UP_S for at_s in due_s)


def test_it_stops_after_the_cycle(fleet: Fleet) -> None:
    node = Node(fleet, "a")
    node.push("x")
    stop = Stop(fleet, DAY_S)
    node.network.before("put", "x/task.json", stop.set)
    told: list[SyncEvent] = []
    node.supervisor.run(stop, told.append)
    assert _directions(told) == ["up", "down"]
    assert waiting(fleet) == [["x"]]
    assert node.memory.get(SUPERVISOR).data.count(b'"state":"free"') == 1


def test_asking_brings_the_next_cycle(fleet: Fleet) -> None:
    node = Node(fleet, "a")
    fleet.time.at(60, node.supervisor.ask)
    assert _directions(_run(node, 120)) == ["up", "down"] * 2


def test_while_the_bucket_is_away_it_says_so_once_and_backs_off(fleet: Fleet) -> None:
    (node,) = fleet.nodes("a")
    away = True
    asked = 0

    def refuse() -> None:
        nonlocal asked
        asked += 1
        node.network.before("list", "sync", refuse)
        if away:
            raise Unavailable("no route to host")

    def heal() -> None:
        nonlocal away
        away = False

    node.network.before("list", "sync", refuse)
    fleet.time.at(4 * 3600, heal)
    node.push("x")
    told = _run(node, 5 * 3600)
    weather = [type(event).__name__ for event in told if not isinstance(event, Cycle)]
    assert weather == ["Disconnected", "Reconnected"]
    [back] = [event for event in told if isinstance(event, Reconnected)]
    assert 4 * 3600 <= back.after_s <= 4 * 3600 + 2 * UP_S
    assert asked < 70
    assert waiting(fleet) == [["x"]]


def test_work_goes_on_while_the_bucket_is_away(fleet: Fleet) -> None:
    (node,) = fleet.nodes("a")
    node.network.before("put", "task.json", raises(Unavailable("no route to host")))
    node.push("x")
    told = _run(node, 1)
    assert [type(event) for event in told] == [Disconnected]
    assert node.work() == ["x"]
    node.sync()
    assert names(fleet.memory, "completed") == ["completed/x.json"]


def test_two_supervisors_of_one_directory(fleet: Fleet) -> None:
    node = Node(fleet, "a")
    boss = ManualRuntime(fleet.time, "other")
    other = Supervisor(Network(boss, node.memory), Network(boss, fleet.memory), boss)
    refused: list[Held] = []

    def intrude() -> None:
        try:
            other.once(lambda _: None)
        except Held as held:
            refused.append(held)

    fleet.time.at(60, intrude)
    _run(node, 120)
    [held] = refused
    assert "another supervisor works on this directory" in held.hint
    assert held.name == "supervisor"
    other.once(lambda _: None)


def test_a_dead_supervisor_is_replaced(fleet: Fleet) -> None:
    node = Node(fleet, "a")
    dead = ManualRuntime(fleet.time, "dead")
    Lock(Network(dead, node.memory), SUPERVISOR, "supervisor", 120, dead, VersionWatch(dead)).acquire(0)
    told: list[SyncEvent] = []
    with pytest.raises(Held):
        node.supervisor.once(told.append)
    fleet.pass_by(150)
    node.supervisor.once(told.append)
    assert _directions(told) == ["up", "down"]


def test_one_that_slept_too_long_leaves(fleet: Fleet) -> None:
    node = Node(fleet, "a")

    def sleep_and_be_replaced() -> None:
        fleet.time.now_s += DAY_S  # nobody's threads run, as in a laptop that is closed
        later = ManualRuntime(fleet.time, "later")
        Supervisor(Network(later, node.memory), Network(later, fleet.memory), later).once(lambda _: None)

    node.push("x")
    node.network.before("put", "x/task.json", sleep_and_be_replaced)
    with pytest.raises(LeaseLost):
        _run(node, 600)


def test_both_sides_are_tidied_while_it_runs(fleet: Fleet) -> None:
    """Where there are only nodes nobody else would; a push-only node has no worker either."""
    a, b = fleet.nodes("a", "b")
    a.queue.push({}, id="later", delay_s=600)
    a.sync()
    _run(b, 2.1 * 3600)
    assert names(b.memory, "scheduled") == names(fleet.memory, "scheduled") == []
    assert waiting(b, fleet) == [["later"], ["later"]]


def test_old_receipts_go_on_both_sides(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    a.push("x")
    a.work()
    a.sync()
    for days in (0, 1, 1, 40):
        assert names(a.memory, "completed") == names(fleet.memory, "completed") == ["completed/x.json"]
        fleet.pass_by(days * DAY_S)
        a.supervisor.tidy()
    assert names(a.memory, "completed") == names(fleet.memory, "completed") == []


def test_the_first_pass_sweeps_both_sides(fleet: Fleet) -> None:
    """B9: it waited for the sweeper's own hour first, and so until the next day."""
    (a,) = fleet.nodes("a")
    a.push("x")
    a.work()
    a.sync()
    for memory in (a.memory, fleet.memory):
        memory.put(at("pending/x/task.json"), b"{}")
        memory.put(at("pending/gone/lease.json"), b"{}")
    fleet.pass_by(DAY_S)
    a.supervisor.tidy()
    assert waiting(a, fleet) == [[], []]


def test_a_running_supervisor_sweeps_within_its_first_hours(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    a.push("x")
    a.work()
    a.sync()
    fleet.memory.put(at("pending/x/task.json"), b"{}")
    _run(a, 3 * DOWN_S)
    assert waiting(fleet) == [[]]
