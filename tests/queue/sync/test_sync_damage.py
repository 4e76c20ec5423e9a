"""One bad object stops and misleads no node: hostile and damaged logs, lines, cursors, notes and parts (A2)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from limpet.kernel import keys
from limpet.kernel.errors import Conflict
from limpet.kernel.keys import Key, log_key, log_of, queue_place
from limpet.queue.entry import ENTRY_BYTES_MAX
from limpet.queue.sync import Blocked, Cycle, SyncEvent
from limpet.queue.sync.log import LINES_MAX
from limpet.queue.sync.records import LINE_BYTES_MAX
from support.sync import DOWN_S, UP_S, Fleet, Node, Stop, at, ended, waiting

EVIL = log_key("evil", 1)
DEEP = b"[" * 100_000
LEASE = {"kind": "lease", "root": "queues/q", "entry": "good", "batch": False, "held": True}
LEASE |= {"worker_id": "w", "label": "l", "token": 1, "ttl_s": 60.0}
END = {"kind": "end", "key": "queues/q/completed/other.json", "entry": "other", "batch": False, "write_id": "w"}
RECEIPT = {"state": "completed", "id": "other", "finished_at": "2026-01-01T00:00:00Z"}


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def _log(*lines: object, node: str = "evil", **header: Any) -> bytes:
    """A log with a digest that is right, whatever its lines are."""
    body = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    fields = {"schema": 1, "node": node, "owner": "o", "up_s": 300.0, "count": len(lines)}
    fields |= {"sha256": hashlib.sha256(body).hexdigest(), **header}
    return json.dumps(fields).encode() + b"\n" + body


def _end(**receipt: Any) -> dict[str, Any]:
    return END | {"receipt": RECEIPT | receipt}


WHOLE_LOGS = {
    "empty": b"",
    "not JSON": b"\x00" * 100,
    "not UTF-8": b'{"schema": 1, "node": "\xff\xfe"}\n',
    "cut short": _log(LEASE)[:-3],
    "nested deeply": DEEP,
    "too large": b" " * (LINE_BYTES_MAX + (2 << 20)),
    "an interval without end": _log(LEASE, up_s=1e300),
    "a negative interval": _log(LEASE, up_s=-1.0),
    "a huge interval": json.dumps({"schema": 1}).encode()[:-1] + b', "up_s": 1e999}\n',
    "more lines than a log has": _log(*[b"{}"] * (20 * LINES_MAX)),
    "another count": _log(LEASE, count=7),
    "another node": _log(LEASE, node="good"),
    "from the future": _log(LEASE, schema=99),
}
LINES = {
    "a lease without end": LEASE | {"ttl_s": 1e300},
    "a lease of a negative time": LEASE | {"ttl_s": -5.0},
    "a token of 4,300 digits": json.dumps(LEASE).replace('"token": 1', '"token": ' + "9" * 4300).encode(),
    "nested deeply": DEEP,
    "not UTF-8": b'{"kind": "held", "root": "\xff"}',
    "an unknown kind": {"kind": "prophecy"},
    "a queue outside": LEASE | {"root": "locks/../queues/q"},
    "an entry outside": LEASE | {"entry": "../../x"},
    "a receipt of another entry": _end() | {"key": "queues/q/completed/good.json"},
    "a control character": LEASE | {"entry": "a\x1b]0;b"},
}
RECEIPTS = {
    "a part above its queue": {"parts": ["queues/q/parts/../x.json"]},
    "a part in another queue": {"parts": ["queues/other/parts/x/y.json"]},
    "a part that is no part": {"parts": ["limpet.json"]},
    "bytes above their queue": {"raw": "queues/q/parts/../x.json"},
    "a part with control characters": {"parts": ["queues/q/parts/\x1b]0;x/y.json"]},
}
NAMES = ["sync/%1b%5d0/0000000001.jsonl", "sync/%2e%2e/0000000001.jsonl", "sync/evil/9999999999.jsonl"]
NAMES += ["sync/a%2F/0000000001.jsonl", "sync/A%42/0000000001.jsonl", "sync/%ff/0000000001.jsonl"]


def _lives(fleet: Fleet, a: Node, b: Node) -> tuple[list[str], list[str]]:
    """Both nodes run beside it, a new one comes, and all honest work is done; what `b` and the new one said of it."""
    a.push("good")
    a.up()
    told = _run(b)
    assert waiting(b) == [["good"]], "a bad object keeps nothing of another node from arriving"
    fleet.pass_by(DOWN_S + UP_S + 400.0)
    assert b.work() == ["good"]
    b.up()
    assert {type(event) for event in [*_run(a), *told]} == {Cycle}
    c = Node(fleet, "c")
    late = _run(c)
    for place in (a, b, c, fleet.client()):
        assert place.result("good").value == {"by": "b.w"}
    return _unreadable(told), _unreadable(late)


def _run(node: Node) -> list[SyncEvent]:
    """Three rounds of a running supervisor; what it told."""
    told: list[SyncEvent] = []
    for _ in range(3):
        node.supervisor.ask()
        node.supervisor.run(Stop(node.fleet, 1.0), told.append)
    return told


def _unreadable(told: list[SyncEvent]) -> list[str]:
    return [name for event in told if isinstance(event, Cycle) for name in event.unreadable]


# ---- what another node, or a stranger, wrote into the bucket ----


@pytest.mark.parametrize("data", WHOLE_LOGS.values(), ids=[*WHOLE_LOGS])
def test_a_bad_log_is_told_once_and_passed_over(fleet: Fleet, data: bytes) -> None:
    a, b = fleet.nodes("a", "b")
    fleet.memory.put(EVIL, data)
    told, _ = _lives(fleet, a, b)
    assert told == [EVIL]


@pytest.mark.parametrize("data", WHOLE_LOGS.values(), ids=[*WHOLE_LOGS])
def test_a_bad_log_of_a_client_is_told_once_and_passed_over(fleet: Fleet, data: bytes) -> None:
    """A fresh pull reads the logs of clients, too."""
    a, b = fleet.nodes("a", "b")
    evil = log_key("client-evil", 1)
    fleet.memory.put(evil, data.replace(b'"evil"', b'"client-evil"'))
    assert _lives(fleet, a, b) == ([evil], [evil])


@pytest.mark.parametrize("line", LINES.values(), ids=[*LINES])
def test_a_bad_line_is_told_once_and_the_others_of_its_log_count(fleet: Fleet, line: object) -> None:
    a, b = fleet.nodes("a", "b")
    push = {"kind": "push", "key": "queues/q/pending/neighbour/task.json", "data": "{}"}
    fleet.memory.put(EVIL, _log(push, line, _end()))
    told = _run(b)
    assert _unreadable(told) == [f"{EVIL} line 2"]
    assert waiting(b) == [["neighbour"]]
    assert ended(b) == [["completed/other.json"]]
    b.memory.delete(at("pending/neighbour/task.json"))
    assert _lives(fleet, a, b)[0] == []


@pytest.mark.parametrize("fields", RECEIPTS.values(), ids=[*RECEIPTS])
def test_a_receipt_names_parts_of_its_own_queue_only(fleet: Fleet, fields: dict[str, Any]) -> None:
    a, b = fleet.nodes("a", "b")
    fleet.memory.put(EVIL, _log(_end(**fields)))
    fleet.memory.put(Key("queues/other/parts/x/y.json"), b"secret")
    _lives(fleet, a, b)
    assert ended(b) == [["completed/good.json", "completed/other.json"]]
    assert [stat.key for stat in b.memory.list("queues/other")] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_no_log_has_is_told_once_and_passed_over(fleet: Fleet, name: str) -> None:
    a, b = fleet.nodes("a", "b")
    fleet.memory.put(Key(name), _log(LEASE))
    assert log_of(name) is None
    told, late = _lives(fleet, a, b)
    assert told == late == [name]


def test_a_hole_costs_no_more_than_its_logs(fleet: Fleet) -> None:
    """Numbers are a stranger's: nothing is counted up to them."""
    a, b = fleet.nodes("a", "b")
    fleet.memory.put(log_key("evil", keys.LOG_MAX), _log(LEASE))
    _lives(fleet, a, b)


def test_a_lease_is_believed_for_a_bounded_time(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("good")
    a.up()
    fleet.memory.put(EVIL, _log(LEASE | {"ttl_s": 7 * 86400.0}, up_s=86400.0))
    b.down()
    fleet.pass_by(9 * 86400.0)
    assert b.work() == ["good"]


@pytest.mark.parametrize("data", [b"", b"\xff", _log(LEASE, schema=99), b" " * (LINE_BYTES_MAX + (2 << 20))])
@pytest.mark.parametrize("count", [1, 9])
def test_bad_logs_in_our_own_folder_are_stepped_over(fleet: Fleet, data: bytes, count: int) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("first")
    a.up()
    for seq in range(2, 2 + count):
        fleet.memory.put(log_key("a", seq), data)
    a.push("good")
    told = _run(a)
    assert {type(event) for event in told} == {Cycle}
    assert a.outbox() == []
    b.down()
    assert waiting(b) == [["first", "good"]]
    assert Node(fleet, "c").down().fresh


def test_a_log_far_ahead_in_our_own_folder_does_not_silence_us(fleet: Fleet) -> None:
    """Whoever has read it waits for the number after it."""
    a, b = fleet.nodes("a", "b")
    a.push("first")
    a.up()
    fleet.memory.put(log_key("a", 1_000_000), b"")
    b.down()
    a.sync()
    a.push("good")
    a.up()
    b.down()
    assert waiting(b) == [["first", "good"]]


def test_a_name_that_another_directory_uses_stops_the_sending_and_not_the_hearing(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("first")
    a.up()
    fleet.memory.put(log_key("a", 2), _log(LEASE, node="a"))
    a.push("unsent")
    b.push("good")
    b.up()
    told = _run(a)
    assert [type(event.error) for event in told if isinstance(event, Blocked)] == [Conflict], "told once"
    assert waiting(a) == [["first", "good", "unsent"]]
    assert a.outbox() != []
    with pytest.raises(Conflict):
        a.supervisor.once(told.append)


@pytest.mark.parametrize("what", ["task", "receipt", "lease"])
@pytest.mark.parametrize("data", [b"\xff", DEEP, b" " * (ENTRY_BYTES_MAX + (2 << 20))], ids=["text", "deep", "large"])
def test_a_bad_object_where_ours_belongs_does_not_hold_up_the_rest(fleet: Fleet, what: str, data: bytes) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("x", "y")
    claim = a.take()
    a.fleet.pass_by(30.0)
    claim.renew()
    name = {"task": "pending/x/task.json", "receipt": "completed/x.json", "lease": "pending/x/lease.json"}[what]
    fleet.memory.put(at(name), data)
    if what == "receipt":
        for task in claim:
            task.done()
    told = _run(a)
    assert {type(event) for event in told} == {Cycle}
    b.down(fresh=True)
    assert "y" in waiting(b)[0]


@pytest.mark.parametrize("folder", ["%1b%5d0", "x\\y", "n" * 400])
def test_a_bad_queue_folder_is_passed_over(fleet: Fleet, folder: str) -> None:
    a, b = fleet.nodes("a", "b")
    data = b"\xff"
    fleet.memory._objects[Key(f"queues/{folder}/pending/x/task.json")] = fleet.memory._objects[_any(fleet, data)]
    b.down(fresh=True)
    b.supervisor.tidy()
    _lives(fleet, a, b)


def _any(fleet: Fleet, data: bytes) -> Key:
    fleet.memory.put(Key("probe/x/y.json"), data)
    return Key("probe/x/y.json")


# ---- what the disk of a node did to its own objects ----


@pytest.mark.parametrize("data", [b"", b"\xff\x00", DEEP, b" " * (LINE_BYTES_MAX + 1), b"{}"])
def test_a_damaged_note_is_put_aside_and_the_rest_is_sent(fleet: Fleet, data: bytes) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("lost")
    (note,) = a.outbox()
    a.memory.put(Key(note), data)
    a.push("x")
    told = _run(a)
    assert _unreadable(told) == [note]
    assert a.outbox() == []
    assert [bytes(a.memory.get(stat.key, size_max=None).data) for stat in a.memory.list(keys.DAMAGED)] == [
        data[: 1 << 20]
    ]
    b.down()
    assert waiting(b) == [["x"]]
    a.down(fresh=True)
    assert waiting(a) == [["lost", "x"]], "a push that may never have been sent is not taken for one that has ended"
    assert sorted(a.work()) == ["lost", "x"]
    a.up()
    b.down()
    assert ended(b) == [["completed/lost.json", "completed/x.json"]]


def test_an_end_whose_note_is_damaged_is_sent_from_its_receipt(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    b.push("x")
    b.up()
    a.down()
    a.work()
    (note,) = a.outbox()
    a.memory.put(Key(note), b"\xff")
    a.up()
    b.sync()
    assert b.result("x").value == {"by": "a.w"}
    assert waiting(b, fleet) == [[], []]


@pytest.mark.parametrize("data", [b"", b"\xff", DEEP, b'{"node": "b", "last_log": 1e300}', b" " * (2 << 20)])
def test_a_damaged_cursor_starts_over(fleet: Fleet, data: bytes) -> None:
    a, b = fleet.nodes("a", "b")
    b.push("x")
    b.up()
    a.down()
    a.memory.put(keys.cursor_key("b"), data)
    b.push("y")
    b.up()
    a.restart()
    assert _unreadable(_run(a)) == [keys.cursor_key("b")]
    assert waiting(a) == [["x", "y"]]


@pytest.mark.parametrize("data", [b"", b"\xff", DEEP, b'{"last_log": -5}', b" " * (2 << 20)])
@pytest.mark.parametrize("name", ["a", None])
def test_a_node_that_lost_its_record_goes_on(fleet: Fleet, data: bytes, name: str | None) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("sent")
    a.up()
    a.push("unsent")
    a.memory.put(keys.NODE, data)
    a.restart(node=name)
    told = _run(a)
    assert {type(event) for event in told} == {Cycle}
    assert _unreadable(told) == [keys.NODE]
    assert a.supervisor.node != "b"
    assert waiting(a) == [["sent", "unsent"]], "nothing is dropped by a node that does not know what it has sent"
    b.down()
    assert waiting(b) == [["sent", "unsent"]]
    a.restart(node=name)
    assert {type(event) for event in _run(a)} == {Cycle}


@pytest.mark.parametrize("data", [b"", b"\xff", DEEP, b" " * (2 << 20)])
def test_a_damaged_lock_is_put_aside(fleet: Fleet, data: bytes) -> None:
    a, b = fleet.nodes("a", "b")
    a.memory.put(keys.SUPERVISOR, data)
    _lives(fleet, a, b)


REMOTES = [b"", b"\xff", DEEP, b" " * (2 << 20)]
REMOTES += [b'{"node":"n","log":1,"worker_id":"w","label":"l","token":1,"live_s":1e300,"seq":1,"schema":1}']


@pytest.mark.parametrize("data", REMOTES)
def test_a_damaged_note_about_a_foreign_lease_holds_up_nobody(fleet: Fleet, data: bytes) -> None:
    a, b = fleet.nodes("a", "b")
    a.push("x")
    a.memory.put(at("pending/x/remote.json"), data)
    a.up()
    b.down()
    claim = b.take()
    fleet.pass_by(30.0)
    claim.renew()
    b.up()
    a.down()
    assert a.work() == [], "b has it"
    claim.hand_back()
    a.memory.put(at("pending/x/remote.json"), data)
    assert a.work() == ["x"]


def test_places_are_told_from_keys_without_raising() -> None:
    for key in ("queues/q/parts/../x.json", "queues/q/parts/\x1b/x.json", "queues/q/parts/" + "x" * 900 + "/y.json"):
        assert queue_place(key) is None
    assert queue_place("queues/q/parts/x/y.json") is not None
