"""The orders that a supervisor must keep, and what each of them protects. Each has a planted bug that reverses it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec
import pytest

from limpet.kernel import records
from limpet.kernel.errors import Unavailable
from limpet.kernel.keys import QueueKeys
from limpet.kernel.store.api import batched
from limpet.queue import Result
from limpet.queue.entry import Receipt
from limpet.queue.storage import Storage
from limpet.queue.sync.log import LINES_MAX, LOG_BYTES_MAX
from limpet.queue.sync.records import HeldLine, Line, PushLine, log_bytes, read_log
from support.queue import Crash, crash, raises
from support.sync import Client, Fleet, Node, at, ended, names, waiting

KEYS = QueueKeys.of("q")


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


# ---- a fresh pull drops nothing that was not sent ----


@pytest.mark.parametrize("listing", ["pending", "scheduled", "outbox"])
def test_a_push_during_a_fresh_pull_stays(fleet: Fleet, listing: str) -> None:
    """What waits here is listed before the outbox: the other way round, a push in between would be in neither."""
    (a,) = fleet.nodes("a")
    a.push("old")
    a.up()
    a.disk.before("list", listing, lambda: a.push("new"))
    assert a.down(fresh=True).fresh
    assert waiting(a) == [["new", "old"]]
    a.up()
    assert waiting(fleet) == [["new", "old"]]


@pytest.mark.parametrize("listing", ["pending", "scheduled", "outbox"])
def test_a_delayed_push_during_a_fresh_pull_stays(fleet: Fleet, listing: str) -> None:
    (a,) = fleet.nodes("a")
    a.push("old")
    a.disk.before("list", listing, lambda: a.queue.push({}, id="new", delay_s=60))
    assert a.down(fresh=True).fresh
    assert len(names(a.memory, "scheduled")) == 1


def test_an_entry_that_goes_to_the_bucket_during_a_fresh_pull_stays(fleet: Fleet) -> None:
    """The outbox is listed before the bucket: what leaves the one in between is in the other."""
    (a,) = fleet.nodes("a")
    a.push("x")
    other = Node(fleet, "spare")
    other.memory, other.runtime, other.store = a.memory, a.runtime, a.store
    other.restart(node="a")
    a.disk.before("list", "outbox", other.up)
    assert a.down(fresh=True).fresh
    assert waiting(a, fleet) == [["x"], ["x"]]


def test_what_a_client_has_logged_is_kept_by_a_fresh_pull(fleet: Fleet) -> None:
    """A client's line comes before its task, so a listing that does not show the task does not say that it has ended.

    Here the id was used before: its receipt is too old to be kept, and this node did not hear of its end.
    """
    (a,) = fleet.nodes("a")
    a.push("x")
    a.up()
    fleet.memory.delete(at("pending/x/task.json"))
    direct = fleet.client()
    direct.store.before("put", "x/task.json", crash)
    with pytest.raises(Crash):
        direct.push("x")
    assert waiting(fleet) == [[]]
    assert a.down(fresh=True).dropped == 0
    assert waiting(fleet, a) == [["x"], ["x"]]
    assert a.work() == ["x"]


# ---- every line arrives ----


def _packed(lines: Sequence[Line]) -> list[list[Line]]:
    """As `LogWriter.write` packs them."""
    return [*batched(lines, lambda line: len(records.encode(line)), size=LOG_BYTES_MAX, count=LINES_MAX)]


def test_packing_keeps_every_line() -> None:
    small = [HeldLine(root="queues/q", entry=f"e{n}", batch=False) for n in range(2 * LINES_MAX + 1)]
    packs = _packed(small)
    assert [len(pack) for pack in packs] == [LINES_MAX, LINES_MAX, 1]
    assert [line for pack in packs for line in pack] == small
    large = [PushLine(key="queues/q/pending/x/task.json", data="x" * (LOG_BYTES_MAX // 3)) for _ in range(7)]
    packs = _packed(large)
    assert [len(pack) for pack in packs] == [2, 2, 2, 1]
    assert _packed([]) == []


@pytest.mark.parametrize("count", [1, 2, 3, 1000])
def test_a_log_reads_back_with_every_line(count: int) -> None:
    lines = [HeldLine(root="queues/q", entry=f"e{n}", batch=False) for n in range(count)]
    assert read_log(log_bytes(lines, node="n", owner="o", up_s=1.0), what="it")[1:] == (lines, [])


@pytest.mark.parametrize("count", [1, 2, 3, 17, 40])
def test_every_line_of_every_log_reaches_the_others(fleet: Fleet, count: int) -> None:
    """Pushes and ends of all kinds, in logs that are split by size, read many at a time."""
    a, b = fleet.nodes("a", "b")
    for n in range(count):
        a.queue.push({"blob": "x" * 200_000}, id=f"x{n}")
        a.push(f"y{n}")
    a.up()
    for n in range(count):
        a.push(f"z{n}")
        a.up()
    b.down()
    assert waiting(b) == waiting(a)
    a.work()
    a.up()
    b.down()
    assert ended(b) == ended(a)
    assert len(ended(b)[0]) == 3 * count


def test_every_line_of_a_client_reaches_the_nodes(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    direct = fleet.client()
    direct.push(*(f"x{n}" for n in range(40)))
    late = Node(fleet, "late")
    a.down()
    late.down()
    assert waiting(a, late) == [sorted(f"x{n}" for n in range(40))] * 2
    direct.work()
    a.down()
    assert waiting(a) == [[]]


# ---- a receipt never names what is not there ----


def _large(fleet: Fleet) -> tuple[Node, Node, list[str]]:
    a, b = fleet.nodes("a", "b")
    ids = a.queue.push_many([{"n": n} for n in range(3)])
    a.work(lambda task: task.done("r" * 5000))
    return a, b, [*ids]


def test_parts_come_before_their_receipt(fleet: Fleet) -> None:
    a, b, ids = _large(fleet)
    for node, network in ((a, a.network), (b, b.disk)):
        network.before("put", f"{ids[0][:-2]}.json", crash)
        with pytest.raises(Crash):
            node.sync()
        memory = fleet.memory if node is a else b.memory
        assert len(names(memory, "parts")) == 1
        assert names(memory, "completed") == []
        node.restart()
        node.sync()
        assert [place.result(id_).value for id_ in ids for place in (node, fleet.client())] == ["r" * 5000] * 6


def test_a_part_that_was_refused_and_never_landed_is_sent_again(fleet: Fleet) -> None:
    """F6, found by the simulation: S3 may answer 409 to a racing write, and nothing stands there."""
    from support.stores import refused_409

    a, _, ids = _large(fleet)
    a.network.puts.append(refused_409)
    a.up()
    assert [fleet.client().result(id_).value for id_ in ids] == ["r" * 5000] * 3


# ---- what was told of a completed task, a place tells for ever ----


def _write(place: Client, name: str, result: str, **fields: object) -> None:
    """A receipt in completed/, as a worker of that place writes it."""
    entry = name.partition(".")[0]
    receipt = Receipt(
        state="completed",
        id=name,
        worker_id=place.runtime.owner,
        label=result,
        finished_at=place.runtime.wall(),
        result=msgspec.Raw(json.dumps(result).encode()),
        **fields,  # type: ignore[arg-type]
    )
    place.queue.storage.write_receipt(entry, KEYS.completed_of(name), receipt, batch=True)


class _Told:
    """Asks every place for a task, and refuses another answer than the first."""

    def __init__(self, id_: str, *places: Client) -> None:
        self._id = id_
        self._places = places
        self.answers: dict[str, Result] = {}

    def ask(self) -> None:
        for place in self._places:
            found = place.result(self._id)
            first = self.answers.get(place.runtime.owner)
            assert first is None or found == first
            if found.state == "completed":
                self.answers[place.runtime.owner] = found


def test_two_nodes_that_complete_one_batch_each_keep_their_answer(fleet: Fleet) -> None:
    a, b, c = fleet.nodes("a", "b", "c")
    id_ = a.queue.push_many([{}, {}])[1]
    a.sync()
    b.sync()
    told = _Told(id_, a, b, c, fleet.client())
    for node in (a, b):
        node.work()
        told.ask()
    for node in (b, a, c, b, a, c):
        node.sync()
        told.ask()
    c.down(fresh=True)
    told.ask()
    assert {owner: found.unwrap()["by"] for owner, found in told.answers.items()} == {
        "a.w": "a.w",
        "b.w": "b.w",
        "c.w": "a.w",  # the first of which it heard: it reads the logs of a first
        "direct": "b.w",
    }


@pytest.mark.parametrize("fails", ["", "-2.json", "-2.0.json"])
def test_a_receipt_that_counts_before_that_of_its_batch_travels_before_it(fleet: Fleet, fails: str) -> None:
    a, b = fleet.nodes("a", "b")
    id_ = a.queue.push_many([{}, {}])[0]
    a.sync()
    b.sync()
    _write(a, id_, "own")
    _write(a, id_[:-2], "whole", count=2, own=[0])
    told = _Told(id_, a, b, fleet.client())
    if fails:
        a.network.before("put", fails, raises(Unavailable("away")))
        with pytest.raises(Unavailable):
            a.up()
        told.ask()
    for node in (a, b):
        node.sync()
        told.ask()
    assert {found.worker for found in told.answers.values()} == {"own"}
    assert len(told.answers) == 3


def test_a_late_finisher_of_a_batch_that_is_not_here_yet_does_not_count_yet(fleet: Fleet) -> None:
    """A node may hear of the receipt of one task before it hears of the batch, which another node pushed."""
    a, b = fleet.nodes("a", "b")
    id_ = a.queue.push_many([{}, {}])[0]
    a.up()
    b.sync()
    _write(b, id_, "own")
    b.up()
    c = Node(fleet, "c")
    c.supervisor.start()
    told = _Told(id_, c)
    c.network.before("list", "pending", raises(Unavailable("away")))
    Storage(c.memory, KEYS, c.boss).receipt(KEYS.completed_of(id_)).create(
        Storage(b.memory, KEYS, b.boss).receipt(KEYS.completed_of(id_)).read().value  # type: ignore[union-attr]
    )
    told.ask()
    assert told.answers == {}
    c.network._deeds.clear()
    for node in (c, a):
        node.sync()
        told.ask()
    a.work()
    a.up()
    c.down()
    told.ask()
    assert told.answers["c.w"].state == "completed"


# ---- delayed pushes ----


def test_a_delayed_push_that_a_node_has_done_is_not_scheduled_in_the_bucket(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.queue.push({}, id="x", delay_s=60)
    a.queue.push({}, id="later", delay_s=90_000)
    a.queue.push({}, id="once", delay_s=60)
    a.up()
    b.down()
    assert [re.sub("@.*", "", name[-60:]) for name in names(fleet.memory, "scheduled")] != []
    fleet.pass_by(120.0)
    assert sorted(a.work()) == ["once", "x"]
    cycle = a.up()
    assert cycle.ends == 2
    assert [name.split("/")[2].partition("@")[0] for name in names(fleet.memory, "scheduled")] == ["later"]
    assert waiting(fleet) == [[]]
    b.sync()
    assert b.work() == []
    assert waiting(b, fleet) == [[], []]


def test_a_delayed_push_that_is_due_on_a_node_waits_in_the_bucket(fleet: Fleet) -> None:
    a, _ = fleet.nodes("a", "b")
    a.queue.push({}, id="x", delay_s=60)
    a.up()
    fleet.pass_by(120.0)
    a.take()
    a.up()
    assert waiting(fleet) == [["x"]]
    assert names(fleet.memory, "scheduled") == []


def test_sending_a_delayed_push_lists_what_is_scheduled_once(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    a.push("plain")
    a.up()
    a.network.log.clear()
    for n in range(5):
        a.queue.push({}, id=f"x{n}", delay_s=60)
    a.up()
    assert [line for line in a.network.log if line.startswith("list")] == []
    fleet.pass_by(120.0)
    a.work()
    a.network.log.clear()
    a.up()
    assert [line for line in a.network.log if line.startswith("list")] == ["list scheduled"]
