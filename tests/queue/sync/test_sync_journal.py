"""What is written for others: lines, logs, a client's own log, and large things that go by reference."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

from limpet.kernel import keys
from limpet.kernel.errors import Corrupt, OutcomeUnknown, Unavailable, Unsupported
from limpet.kernel.keys import Key
from limpet.kernel.records import encode
from limpet.kernel.store import Always
from limpet.queue.entry import Receipt
from limpet.queue.sync.records import (
    LINE_BYTES_MAX,
    EndLine,
    HeldLine,
    LeaseLine,
    Line,
    PushLine,
    log_bytes,
    read_line,
    read_log,
)
from limpet.queue.sync.up import INLINE_BYTES_MAX
from support.stores import late, lost_reply, lost_request, refused_409, unavailable
from support.sync import Fleet, Node, at, ended, names, waiting

RECEIPT = Receipt(state="completed", id="x", finished_at=datetime(2026, 1, 1, tzinfo=UTC))
PUSH = PushLine(key="queues/q/pending/x/task.json", data='{"a": "\u2603"}')
END = EndLine(key="queues/q/completed/x.json", entry="x", batch=False, write_id="w", receipt=RECEIPT)
HELD = HeldLine(root="queues/q", entry="x", batch=False)
LEASE = LeaseLine(root="queues/q", entry="x", batch=True, held=True, worker_id="w", label="l", token=1, ttl_s=60.0)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


# ---- lines and logs ----


@pytest.mark.parametrize("line", [PUSH, PushLine(key=PUSH.key), END, HELD, LEASE], ids=lambda line: type(line).__name__)
def test_a_line_reads_back_equal(line: Line) -> None:
    assert read_line(encode(line), what="it") == line
    header, lines, bad = read_log(log_bytes([line, line], node="n", owner="o", up_s=5), what="it")
    assert (lines, bad) == ([line, line], [])
    assert (header.node, header.owner, header.up_s, header.count) == ("n", "o", 5, 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", "limpet.json"),
        ("key", "queues/q/pending/../x/task.json"),
        ("key", "/queues/q/pending/x/task.json"),
        ("key", "queues/q/completed/x.json"),
        ("key", "queues/q/parts/x/y.json"),
        ("key", "locks/user/x.lock"),
        ("key", "queues/q/pending/x\\y/task.json"),
        ("kind", "other"),
        ("data", 5),
    ],
)
def test_a_push_goes_only_where_tasks_are(field: str, value: object) -> None:
    """F28: a log is written by another machine, and its keys are not to be trusted."""
    fields = json.loads(encode(PUSH)) | {field: value}
    with pytest.raises(Corrupt):
        read_line(json.dumps(fields).encode(), what="it")


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        (END, "key", "queues/q/pending/x/task.json"),
        (END, "entry", "../x"),
        (END, "entry", "a/b"),
        (LEASE, "root", "queues/q/pending"),
        (LEASE, "root", ".."),
        (LEASE, "entry", ""),
        (HELD, "entry", "x/../../y"),
    ],
)
def test_other_lines_stay_in_their_queue(line: Line, field: str, value: object) -> None:
    fields = json.loads(encode(line)) | {field: value}
    with pytest.raises(Corrupt):
        read_line(json.dumps(fields).encode(), what="it")


def test_a_log_that_is_cut_short_or_changed_is_corrupt() -> None:
    data = log_bytes([PUSH, END], node="n", owner="o", up_s=5)
    for bad in (data[:-1], data.replace(b"task.json", b"tusk.json"), b"", b"{}", data.splitlines()[0]):
        with pytest.raises(Corrupt):
            read_log(bad, what="it")


def test_a_newer_log_is_unsupported() -> None:
    data = log_bytes([PUSH], node="n", owner="o", up_s=5).replace(b'"schema":1', b'"schema":2', 1)
    with pytest.raises(Unsupported):
        read_log(data, what="it")


def test_a_line_has_a_limit() -> None:
    with pytest.raises(Corrupt, match="more than"):
        read_line(b" " * (LINE_BYTES_MAX + 1), what="it")


# ---- a client's log ----


def test_a_client_logs_before_the_effect(fleet: Fleet) -> None:
    direct = fleet.client("c")
    direct.push("x")
    direct.work()
    wrote = [line for line in direct.store.wrote("put") if "lease.json" not in line]
    assert [re.sub("client-[0-9a-z]{26}", "client", line) for line in wrote] == [
        "put sync/client/0000000001.jsonl",
        "put pending/x/task.json",
        "put sync/client/0000000002.jsonl",
        "put completed/x.json",
    ]


@pytest.mark.parametrize("fault", [lost_reply, lost_request, refused_409])
def test_a_clients_numbers_have_no_holes(fleet: Fleet, fault: object) -> None:
    (a,) = fleet.nodes("a")
    direct = fleet.client("c")
    direct.push("x")
    direct.store.puts.extend([fault])  # type: ignore[list-item]
    direct.push("y")
    direct.push("z")
    assert [int(name.split("/")[1][:10]) for name in fleet.logs()] == [1, 2, 3]
    assert not a.down().fresh
    assert waiting(a) == [["x", "y", "z"]]


def test_a_line_that_lands_late_takes_its_number(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    direct = fleet.client("c")
    pending: list[object] = []
    direct.store.puts.extend([late(pending)] * 4)  # type: ignore[arg-type]
    with pytest.raises(OutcomeUnknown):
        direct.push("lost")
    assert waiting(fleet) == [[]]
    pending[0]()  # type: ignore[operator]
    direct.push("x")
    assert [int(name.split("/")[1][:10]) for name in fleet.logs()] == [1, 2]
    a.sync()
    assert waiting(fleet, a) == [["lost", "x"], ["lost", "x"]]


def test_without_its_log_a_client_does_nothing(fleet: Fleet) -> None:
    direct = fleet.client("c")
    direct.store.puts.append(unavailable)
    with pytest.raises(Unavailable):
        direct.push("x")
    assert names(fleet.memory) == []


def test_a_forked_client_is_another_one(fleet: Fleet) -> None:
    direct = fleet.client("c")
    direct.push("x")
    direct.runtime.owner = "d"
    direct.push("y")
    assert [name.split("/")[1] for name in fleet.logs()] == ["0000000001.jsonl"] * 2


def test_two_handles_of_one_process_do_not_meet(fleet: Fleet) -> None:
    (a,) = fleet.nodes("a")
    first, second = fleet.client("c"), fleet.client("c")
    second.runtime = first.runtime
    second.queue = second.open_queue()
    first.push(*(f"x{n}" for n in range(6)))
    second.push("y")
    a.sync()
    assert waiting(a) == [["x0", "x1", "x2", "x3", "x4", "x5", "y"]]


# ---- large things ----


def test_a_large_task_goes_by_reference(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.queue.push({"blob": "x" * 200_000}, id="small enough")
    a.queue.push_many([{"blob": "x" * 200_000}, {"blob": "y" * 200_000}])
    a.up()
    log = fleet.memory.get(keys.log_key("a", 1)).data
    assert 200_000 < len(log) < INLINE_BYTES_MAX
    assert b.down().pushes == 2
    assert len(b.work()) == 3


def test_a_large_end_goes_by_reference(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.queue.push({"blob": "x" * 200_000}, id="x")
    a.work(lambda task: task.done("r" * 200_000))
    a.sync()
    assert len(fleet.memory.get(keys.log_key("a", 1)).data) < 1000
    b.sync()
    assert b.result("x").value == "r" * 200_000


def test_what_is_named_and_gone_is_passed_over(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.queue.push({"blob": "x" * 255_000, "more": ["\\" * 3000]}, id="x")
    a.up()
    direct = fleet.client()
    direct.work()
    b.sync()
    assert waiting(b) == [[]]
    assert ended(b) == [["completed/x.json"]]


def test_results_in_parts_travel(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    ids = a.queue.push_many([{"n": n} for n in range(3)])
    a.work(lambda task: task.done("r" * 5000))
    a.sync()
    b.sync()
    for place in (fleet.client(), b, Node(fleet, "c")):
        if isinstance(place, Node):
            place.sync()
        assert [place.result(id_).value for id_ in ids] == ["r" * 5000] * 3


def test_a_part_of_another_place_is_not_copied(fleet: Fleet) -> None:
    """F28: a receipt names parts; only those of its own queue are read or written."""
    a, b = fleet.nodes("a", "b")
    a.push("x")
    a.work()
    [key] = a.outbox()[-1:]
    line = json.loads(a.memory.get(Key(key)).data)
    line["receipt"]["parts"] = ["limpet.json", "../x", "queues/other/parts/x/y.json"]
    a.memory.put(Key("limpet.json"), b"{}")
    a.memory.put(Key("queues/other/parts/x/y.json"), b"{}")
    a.memory.put(Key(key), json.dumps(line).encode(), when=Always())
    a.sync()
    b.sync()
    assert [stat.key for stat in fleet.memory.list() if "limpet.json" in stat.key or "parts" in stat.key] == []
    assert ended(b) == [["completed/x.json"]]


def test_a_corrupt_task_is_kept_as_it_was_everywhere(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.memory.put(at("pending/bad/task.json"), b"\xff rubbish")
    a.work()
    a.sync()
    b.sync()
    assert b.result("bad").state == "failed"
    [part] = names(b.memory, "parts")
    assert b.memory.get(at(part)).data.startswith(b"\xff rubbish")


def test_many_lines_become_several_logs(fleet: Fleet) -> None:
    a, b = fleet.nodes("a", "b")
    a.push(*(f"t{n}" for n in range(300)))
    assert a.up().logs == 2
    assert b.down().pushes == 300
