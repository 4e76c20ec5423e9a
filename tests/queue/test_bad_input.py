"""Bad input changes nothing; bad bytes stop nobody: one clear line, bytes kept, the rest goes on (F23, F28, F32)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import limpet
from limpet.kernel.errors import Corrupt, Denied, Invalid, LimpetError, Unsupported
from limpet.kernel.keys import QueueKeys
from limpet.kernel.lease import State
from limpet.queue import Policy
from limpet.queue.entry import PAYLOAD_BYTES_MAX, batch_bytes
from support.clock import EPOCH
from support.queue import LATER_S, TTL_S, World, rounds

ROTTEN = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"{}",
    b"\xff\xfe\x00",
    b'{"schema":1}',
    b"[" * 100_000,
    b'{"schema":1,"id":"x","payload":NaN}',
    b"x" * (9 << 20),
]
NEWER = b'"schema":9'


def nest(depth: int) -> Any:
    """So many lists in one another."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


UNFIT = {
    "nan": {"x": float("nan")},
    "inf": {"x": float("inf")},
    "object": {"x": object()},
    "int key": {"x": {1: 2}},
    "int key at the top": {1: 2},
    "bytes": {"x": b"bytes"},
    "set": {"x": {1, 2}},
    "surrogate": {"x": "\ud800"},
    "long int": {"x": 10**5000},
    "deep": {"x": nest(100)},
    "very deep": {"x": nest(100_000)},
    "large": {"x": "y" * PAYLOAD_BYTES_MAX},
    "large in bytes": {"x": "\u20ac" * (PAYLOAD_BYTES_MAX // 3)},
    "no dict: text": "text",
    "no dict: int": 5,
    "no dict: None": None,
    "no dict: list": [1],
    "no dict: tuple": (1,),
    "no dict: bytes": b"{}",
    "no dict: function": print,
}


def one_line(error: LimpetError) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < 1000
    assert "correct the input" not in error.hint


# ---- what a user hands in ----


@pytest.mark.parametrize("payload", [*UNFIT.values()], ids=[*UNFIT])
@pytest.mark.parametrize("how", ["push", "push with an id", "push with a delay", "push_many"])
def test_payloads_that_json_cannot_hold_are_refused_and_nothing_is_written(
    world: World, payload: Any, how: str
) -> None:
    queue = world.process().queue
    pushes: dict[str, Callable[[], object]] = {
        "push": lambda: queue.push(payload),
        "push with an id": lambda: queue.push(payload, id="x"),
        "push with a delay": lambda: queue.push(payload, delay_s=5),
        "push_many": lambda: queue.push_many([*rounds(4000), payload]),
    }
    with pytest.raises(Invalid) as caught:
        pushes[how]()
    one_line(caught.value)
    assert world.names() == []


def test_the_largest_payload_that_is_taken(world: World) -> None:
    process = world.process()
    payload = {"x": "y" * (PAYLOAD_BYTES_MAX - len('{"x":""}'))}
    process.queue.push(payload, id="x")
    ids = process.queue.push_many([payload] * 3)
    with pytest.raises(Invalid, match="262,145 bytes"):
        process.queue.push({"x": payload["x"] + "y"})
    process.drain(lambda task: task.fail("no") if task.payload == payload else task.done())
    assert len(process.queue.retry(all=True)) == 4
    assert process.queue.result(ids[0]).state == "pending"


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (dict[str, str], "text"),
        (dict[str, str], {"domain": 5}),
        (dict[str, str], None),
        (dict[str, str], 5j),
        (int, {}),
        (int, float("nan")),
        (float, float("nan")),
        (int | None, "text"),
    ],
)
def test_a_typed_queue_refuses_what_does_not_fit_when_it_is_pushed(world: World, kind: Any, payload: Any) -> None:
    queue = world.process(payload_type=kind).queue
    with pytest.raises(Invalid) as caught:
        queue.push(payload)
    one_line(caught.value)
    with pytest.raises(Invalid):
        queue.push_many([payload])
    assert world.names() == []


@pytest.mark.parametrize(
    "id_",
    [
        "",
        "a~1",
        "~",
        "x~",
        "\x00",
        "a\nb",
        "\ud800",
        "01kjkc27j001r32bhe5rq00001",
        "0" * 26,
        "a" * 26 + "-100",
        "a" * 26 + ".5",
    ],
)
@pytest.mark.parametrize("delay_s", [0.0, 5.0])
def test_ids_that_are_ours_or_nobodys_are_refused(world: World, id_: str, delay_s: float) -> None:
    with pytest.raises(Invalid) as caught:
        world.process().queue.push({}, id=id_, delay_s=delay_s)
    one_line(caught.value)
    assert world.names() == []


@pytest.mark.parametrize("id_", [5.0, True, b"x", ["x"]])
def test_an_id_is_a_text_or_a_whole_number(world: World, id_: Any) -> None:
    queue = world.process().queue
    for call in (queue.result, queue.cancel, queue.errors, lambda id_: queue.push({}, id=id_)):
        with pytest.raises(Invalid, match=r"a task id is a text or a whole number, not "):
            call(id_)
    with pytest.raises(Invalid):
        queue.push_many([{}], id=id_)


@pytest.mark.parametrize(
    "name", ["../up", "..", ".", "/abs", "a/b", "a%2fb", "c:\\x", "é", "x" * 400, ".hidden", "con"]
)
def test_a_queues_name_stays_in_its_place(tmp_path: Path, name: str) -> None:
    fleet = limpet.open(tmp_path / "fleet")
    queue = fleet.queue(name)
    queue.push({"n": 1}, id=name)
    fleet.queue("other").push({"n": 2}, id=name)
    assert [peeked.payload for peeked in queue.peek()] == [{"n": 1}]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.is_relative_to(tmp_path / "fleet") for path in files)
    assert len([*(tmp_path / "fleet" / "queues").iterdir()]) == 2


@pytest.mark.parametrize("name", ["", "\x00", "a\nb", "\ud800", None, 5])
def test_names_that_no_queue_has(name: Any) -> None:
    with pytest.raises(Invalid) as caught:
        limpet.open("memory://").queue(name)
    one_line(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"ttl_s": 0},
        {"ttl_s": -1},
        {"ttl_s": float("nan")},
        {"ttl_s": float("inf")},
        {"timeout_s": 0},
        {"timeout_s": -5},
        {"timeout_s": float("nan")},
        {"backoff_s": -1},
        {"backoff_s": float("nan")},
        {"backoff_max_s": -1},
        {"concurrency": 0},
        {"concurrency": 1001},
        {"rate_per_s": 0},
        {"rate_per_s": -1},
        {"retention_s": 3600},
        {"retention_s": float("nan")},
        {"poll_s": 0},
        {"poll_s": float("nan")},
        {"max_retries": 3},
    ],
    ids=str,
)
def test_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as caught:
        limpet.open("memory://").queue("q", **settings)
    one_line(caught.value)


def test_the_settings_that_there_are() -> None:
    queue = limpet.open("memory://").queue(
        "q",
        max_attempts=2,
        ttl_s=30,
        timeout_s=None,
        backoff_s=1,
        backoff_max_s=2,
        concurrency=3,
        rate_per_s=4,
        retention_s=7 * 86400,
        poll_s=5,
    )
    assert queue.policy == Policy(2, 30, None, 1, 2, 3, 4, 7 * 86400, 5)


def test_a_reader_may_look_and_not_touch(tmp_path: Path) -> None:
    queue = limpet.open(tmp_path / "fleet").queue("q")
    queue.push({}, id="x")
    before = sorted(tmp_path.rglob("*"))
    reader = limpet.open(tmp_path / "fleet", read_only=True).queue("q")
    assert reader.result("x").state == "pending"
    assert [peeked.id for peeked in reader.peek()] == ["x"]
    acts: list[Callable[[], object]] = [
        lambda: reader.push({}),
        lambda: reader.push({}, id="y"),
        lambda: reader.push_many([{}]),
        reader.claim,
        lambda: reader.cancel("x"),
        reader.pause,
        reader.purge,
    ]
    for act in acts:
        with pytest.raises(Denied):
            act()
    assert sorted(tmp_path.rglob("*")) == before


# ---- bytes that are not what we wrote ----


def healthy(world: World) -> list[str]:
    """Tasks that are fine, before and behind the bad one."""
    process = world.process("healthy")
    process.queue.push({}, id="a")
    process.queue.push({}, id="z")
    return ["a", "z", *process.queue.push_many(rounds(2))]


@pytest.mark.parametrize("data", ROTTEN, ids=lambda data: f"{len(data)} bytes {data[:8]!r}")
@pytest.mark.parametrize("id_", ["x", None])
def test_a_task_that_cannot_be_read_fails_and_its_bytes_are_kept(world: World, data: bytes, id_: str | None) -> None:
    process = world.process()
    pushed = process.queue.push({"n": 1}, id=id_)
    world.write(f"pending/{pushed.id}/task.json", data)
    good = healthy(world)
    assert sorted(process.drain()) == sorted(good)
    result = process.queue.result(pushed.id)
    assert result.state == "failed"
    assert result.error
    assert "\n" not in result.error
    raw = world.receipt(f"failed/{pushed.id}").raw
    assert raw is not None
    assert data in world.read(raw.removeprefix("queues/q/"))
    assert [key for key in world.names() if key.startswith("pending/")] == []
    with pytest.raises(Invalid, match="cannot be retried"):
        process.queue.retry(pushed.id)
    assert process.queue.retry(all=True) == []


@pytest.mark.parametrize("data", ROTTEN, ids=lambda data: f"{len(data)} bytes {data[:8]!r}")
def test_a_batch_that_cannot_be_read_fails_and_its_bytes_are_kept(world: World, data: bytes) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(3))
    entry = ids[0].rpartition(".")[0]
    world.write(f"pending/{entry}/tasks.jsonl", data)
    good = healthy(world)
    assert sorted(process.drain()) == sorted(good)
    assert [process.queue.result(id_).state for id_ in ids] == ["failed"] * 3
    raw = world.receipt(f"failed/{entry}").raw
    assert raw is not None
    assert data in world.read(raw.removeprefix("queues/q/"))
    assert process.queue.stats().failed == 3


@pytest.mark.parametrize("change", ["cut", "flip", "line", "count", "more"])
def test_a_damaged_batch_is_recognised(world: World, change: str) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(3))
    key = f"pending/{ids[0].rpartition('.')[0]}/tasks.jsonl"
    data = world.read(key)
    damaged = {
        "cut": data[:-5],
        "flip": data.replace(b'{"n":1}', b'{"n":7}'),
        "line": data.rpartition(b"\n")[0],
        "count": data.replace(b'"count":3', b'"count":2'),
        "more": data + b'\n{"n":4}',
    }[change]
    assert damaged != data
    world.write(key, damaged)
    assert process.drain() == []
    assert [process.queue.result(id_).state for id_ in ids] == ["failed"] * 3


def test_a_damaged_payload_of_a_single_task_is_recognised(world: World) -> None:
    process = world.process()
    process.queue.push({"domain": "a.com"}, id="x")
    world.write("pending/x/task.json", world.read("pending/x/task.json").replace(b"a.com", b"b.com"))
    assert process.drain() == []
    assert "digest" in (process.queue.result("x").error or "")


@pytest.mark.parametrize("data", ROTTEN, ids=lambda data: f"{len(data)} bytes {data[:8]!r}")
def test_a_lease_that_cannot_be_read_fails_its_task_which_can_be_retried(world: World, data: bytes) -> None:
    process = world.process()
    process.queue.push({"n": 1}, id="x")
    process.take().hand_back()
    world.write("pending/x/lease.json", data)
    good = healthy(world)
    world.time.sleep(TTL_S + 1)
    assert sorted(process.drain()) == sorted(good)
    result = process.queue.result("x")
    assert result.state == "failed"
    assert "lease.json" in (result.error or "")
    raw = world.receipt("failed/x").raw
    assert raw is not None
    assert data in world.read(raw.removeprefix("queues/q/"))
    assert process.queue.retry("x") == ["x~1"]
    assert process.drain() == ["x~1"]


def test_a_batchs_lease_that_cannot_be_read_fails_its_tasks_which_can_be_retried(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(3))
    process.take().hand_back()
    world.write(f"pending/{ids[0].rpartition('.')[0]}/lease.json", b"")
    assert process.drain(idle_s=2 * TTL_S) == []
    assert [process.queue.result(id_).state for id_ in ids] == ["failed"] * 3
    assert process.queue.stats().failed == 3
    assert process.queue.retry(all=True) == [f"{id_}~1" for id_ in ids]
    process.drain()
    assert [process.queue.result(id_).state for id_ in ids] == ["completed"] * 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"ttl_s":30.0', b'"ttl_s":1e300'),
        (b'"ttl_s":30.0', b'"ttl_s":-1'),
        (b'"token":1', b'"token":"1"'),
        (b'"state":"free"', b'"state":"lent"'),
        (b'"state":"free"', b'"state":"done"'),
        (b'"seq":2', b'"seq":0'),
        (b'"name":"x"', b'"name":"../../y"'),
        (b'"name":"x"', b'"name":"a"'),
        (b'"charged":0', b'"charged":0,"wait_s":1e300'),
        (b'"charged":0', b'"charged":0,"waits":{"0":1e300}'),
        (b'"charged":0', b'"charged":0,"waits":{"-5":1,"77":3}'),
        (b'"charged":0', b'"charged":0,"done":[7,-1]'),
        (b'"charged":0', b'"charged":-100'),
        (b'"charged":0', b'"charged":9999999999'),
        (b'"charged":0', b'"charged":0,"results":{"0":5},"parts":["../../x","no"]'),
        (b'"charged":0', b'"charged":0,"running":99'),
    ],
)
def test_a_lease_with_nonsense_in_it_stops_nobody_and_touches_nobody_else(world: World, old: bytes, new: bytes) -> None:
    process = world.process()
    process.queue.push({"n": 1}, id="x")
    process.take().hand_back()
    data = world.read("pending/x/lease.json")
    assert old in data, data
    world.write("pending/x/lease.json", data.replace(old, new))
    good = healthy(world)
    ran = process.drain(lambda task: task.done(task.id), idle_s=LATER_S)
    assert {*good} <= {*ran} <= {"x", *good}
    assert [process.queue.result(id_).value for id_ in good] == good
    assert process.queue.result("x").ready
    assert [key for key in world.names() if key.startswith("pending/")] == []


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"schema":1,"seq":1,"write_id":"w"}'])
@pytest.mark.parametrize("place", ["completed", "failed"])
def test_a_receipt_that_cannot_be_read_is_said_to_be_corrupt_and_stops_nobody(
    world: World, data: bytes, place: str
) -> None:
    process = world.process()
    process.queue.push({}, id="bad")
    process.drain(lambda task: task.fail("no"))
    world.write(f"{place}/x.json", data)
    with pytest.raises(Corrupt) as caught:
        process.queue.result("x")
    one_line(caught.value)
    good = healthy(world)
    assert sorted(process.drain()) == sorted(good)
    assert process.queue.retry(all=True) == ["bad~1"]
    process.queue.sweep()
    process.queue.stats()
    assert world.read(f"{place}/x.json") == data
    assert not process.queue.push({}, id="x").created, "a name that may have ended is not used again"


def test_a_batchs_receipt_that_cannot_be_read_keeps_its_failed_tasks(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(2))
    process.drain(lambda task: task.fail("no") if task.payload["n"] else task.done())
    world.write(f"completed/{ids[0].rpartition('.')[0]}.json", b"")
    process.queue.sweep()
    assert f"failed/{ids[1]}.json" in world.names()
    process.queue.retry(all=True)


def test_a_part_that_cannot_be_read_is_said_to_be_corrupt(world: World) -> None:
    process = world.process()
    ids = process.queue.push_many(rounds(2))
    process.drain(lambda task: task.done("y" * 2000 if task.payload["n"] else "small"))
    (part,) = [key for key in world.names() if key.startswith("parts/")]
    world.write(part, b"{")
    with pytest.raises(Corrupt, match="parts/"):
        process.queue.result(ids[1])
    assert process.queue.result(ids[0]).value == "small"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"schema":1}', b"x" * (2 << 20)], ids=lambda data: repr(data[:8]))
def test_a_control_record_that_cannot_be_read_stops_nobody_and_is_told(world: World, data: bytes) -> None:
    """What was last known counts. `pause` and `resume` mend it."""
    process = world.process()
    good = healthy(world)
    world.write("control.json", data)
    assert sorted(process.drain()) == sorted(good)
    (notice,) = process.queue.notices()
    assert "control.json" in notice.note
    assert notice.failed == 0
    assert not process.queue.stats().paused
    process.queue.pause()
    assert process.queue.stats().paused
    process.queue.push({})
    world.time.sleep(40)
    assert not process.queue.claim()
    world.write("control.json", data)
    world.time.sleep(40)
    assert not process.queue.claim(), "it was paused when that could last be read"
    process.queue.resume()
    world.time.sleep(40)
    assert process.queue.claim()


def wrapped(payload: bytes) -> bytes:
    """A task whose digest is right, whatever its payload is."""
    task = b'{"schema":1,"id":"x","payload":%s,"sha256":"%s","pushed_at":"2026-01-01T00:00:00Z","write_id":"w"}'
    return task % (payload, hashlib.sha256(payload).hexdigest().encode())


HOSTILE_PAYLOADS = {
    "not UTF-8": b'{"a":"\xff\xfe"}',
    "deep": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep and open": b"[" * 100_000,
    "surrogate": b'{"a":"\\ud800"}',
    "no JSON": b"{",
    "long number": b'{"a":' + b"9" * 5000 + b"}",
    "huge number": b'{"a":1e999}',
}


@pytest.mark.parametrize("payload", [*HOSTILE_PAYLOADS.values()], ids=[*HOSTILE_PAYLOADS])
@pytest.mark.parametrize("kind", ["single", "batch", "typed"])
def test_a_payload_that_cannot_be_read_fails_alone_and_is_told(world: World, payload: bytes, kind: str) -> None:
    process = world.process(payload_type=dict[str, int] if kind == "typed" else None)
    if kind == "batch":
        ids = process.queue.push_many(rounds(3))
        entry = ids[0].rpartition(".")[0]
        lines = [b'{"n":0}', payload, b'{"n":2}']
        world.write(f"pending/{entry}/tasks.jsonl", batch_bytes(lines, pushed_at=EPOCH, write_id="w"))
        bad, beside = str(ids[1]), [str(ids[0]), str(ids[2])]
    else:
        process.queue.push({}, id="x")
        world.write("pending/x/task.json", wrapped(payload))
        bad, beside = "x", []
    good = healthy(world)
    ran = process.drain()
    assert sorted({*ran} - {bad}) == sorted([*good, *beside])
    if bad not in ran:  # what the decoder accepts is the handler's affair
        result = process.queue.result(bad)
        assert (result.state, result.attempts) == ("failed", 0)
        assert (result.error or "").isprintable()
        assert sum(notice.failed for notice in process.queue.notices()) == 1
    process.queue.peek(20)
    process.queue.stats()
    assert [key for key in world.names() if key.startswith("pending/")] == []


class Picky(msgspec.Struct):
    """A user's type whose own code raises."""

    n: int

    def __post_init__(self) -> None:
        if self.n == 1:
            raise {"k": KeyError("n"), "a": AssertionError()}["k"]


def test_a_payload_that_a_users_type_refuses_fails_alone(world: World) -> None:
    ids = world.process().queue.push_many(rounds(3))
    process = world.process(payload_type=Picky)
    assert process.drain() == [ids[0], ids[2]]
    assert [process.queue.result(id_).state for id_ in ids] == ["completed", "failed", "completed"]


HOSTILE_LEASES = [
    (b'"expires_at":"', b'"expires_at":"2026-01-01T00:00:00","x":"'),
    (b'"expires_at":"', b'"expires_at":"9999-12-31T23:59:59-12:00","x":"'),
    (b'"seq":1', b'"seq":' + b"1" * 4300),
    (b'"token":1', b'"token":' + b"1" * 4300),
    (b'"token":1', b'"token":9007199254740991'),
    (b'"token":1', b'"token":%d' % (1 << 50)),
    (b'"charged":0', b'"charged":0,"done":[1],"failed":[999]'),
    (b'"charged":0', b'"charged":0,"failed":[0]'),
    (b'"charged":0', b'"charged":0,"attempts":{"0":-100000000}'),
    (b'"charged":0', b'"charged":0,"attempts":{"0":1e300}'),
    (b'"charged":0', b'"charged":0,"errors":{"0":[{"attempt":1,"at":"2026-01-01T00:00:00","worker":"w","error":"e"}]}'),
    (b'"label":"', b'"label":"\xff'),
]


@pytest.mark.parametrize(
    ("old", "new"), HOSTILE_LEASES, ids=[new[:60].decode("ascii", "replace") for _, new in HOSTILE_LEASES]
)
@pytest.mark.parametrize("batch", [False, True])
def test_a_hostile_lease_stops_nobody_and_no_task_vanishes(world: World, old: bytes, new: bytes, batch: bool) -> None:
    process = world.process("pusher")
    ids = process.queue.push_many(rounds(2)) if batch else [process.queue.push({"n": 1}, id="x").id]
    entry = ids[0].rpartition(".")[0] if batch else "x"
    world.dead()
    data = world.read(f"pending/{entry}/lease.json")
    assert old in data, data
    world.write(f"pending/{entry}/lease.json", data.replace(old, new, 1))
    good = healthy(world)
    worker = world.process(max_attempts=3)
    ran = worker.drain(lambda task: task.done(task.id), idle_s=LATER_S)
    assert {*good} <= {*ran} <= {*ids, *good}
    assert all(worker.queue.result(id_).ready for id_ in [*ids, *good])
    assert [key for key in world.names() if key.startswith("pending/")] == []


LARGE_OBJECTS = ["pending/x/lease.json", "pending/x/task.json", "completed/x.json", "failed/x.json", "sweep.json"]


@pytest.mark.parametrize(
    "key", [*LARGE_OBJECTS, "slots/0.lock", "pending/{batch}/tasks.jsonl", "pending/{batch}/lease.json"]
)
def test_a_large_object_is_not_read_whole_and_stops_nobody(world: World, key: str) -> None:
    process = world.process("pusher", concurrency=2)
    process.queue.push({}, id="x")
    ids = process.queue.push_many(rounds(2))
    world.write(key.format(batch=ids[0].rpartition(".")[0]), b" " * (40 << 20))
    good = healthy(world)
    worker = world.process(concurrency=2)
    worker.store.read_max = 17 << 20
    assert {*good} <= {*worker.drain(idle_s=LATER_S)}
    worker.queue.sweep()
    worker.queue.stats()
    worker.queue.peek(10)


def test_slots_that_cannot_be_read_are_made_again(world: World) -> None:
    process = world.process(concurrency=2)
    good = healthy(world)
    for n in range(2):
        world.write(f"slots/{n}.lock", b"{")
    assert sorted(process.drain(idle_s=LATER_S)) == sorted(good)
    assert ["slots/" in notice.note for notice in process.queue.notices()] == [True, True]


@pytest.mark.parametrize("data", ROTTEN, ids=lambda data: f"{len(data)} bytes {data[:8]!r}")
@pytest.mark.parametrize("beside", [False, True])
def test_a_delayed_push_that_cannot_be_read_fails_and_its_bytes_are_kept(
    world: World, data: bytes, beside: bool
) -> None:
    process = world.process()
    process.queue.push({"n": 1}, id="x", delay_s=5)
    (key,) = [key for key in world.names() if key.startswith("scheduled/")]
    world.write(key, data)
    good = healthy(world)
    if beside:
        process.queue.push({"n": 2}, id="x")
        good.append("x")
    assert sorted(process.drain(idle_s=200)) == sorted(good)
    (receipt,) = [key for key in world.names() if key.startswith("failed/")]
    raw = world.receipt(receipt.removesuffix(".json")).raw
    assert raw is not None
    assert world.read(raw.removeprefix("queues/q/")) == data
    assert [key for key in world.names() if key.startswith(("scheduled/", "pending/"))] == []


# ---- what a newer Limpet wrote ----


def newer(world: World, key: str) -> None:
    data = world.read(key)
    assert b'"schema":1' in data
    world.write(key, data.replace(b'"schema":1', NEWER))


@pytest.mark.parametrize("kind", ["task", "batch", "lease", "scheduled"])
def test_what_a_newer_limpet_wrote_is_left_to_it_and_the_rest_goes_on(world: World, kind: str) -> None:
    process = world.process(max_attempts=1)
    if kind == "batch":
        entry = process.queue.push_many(rounds(2))[0].rpartition(".")[0]
        key = f"pending/{entry}/tasks.jsonl"
    elif kind == "scheduled":
        process.queue.push({}, id="x", delay_s=5)
        (key,) = [key for key in world.names() if key.startswith("scheduled/")]
    else:
        process.queue.push({}, id="x")
        if kind == "lease":
            process.take().hand_back()
        key = f"pending/x/{kind}.json"
    newer(world, key)
    theirs = world.read(key)
    good = healthy(world)
    assert sorted(process.drain(idle_s=200)) == sorted(good)
    process.queue.peek()
    process.queue.stats()
    process.queue.sweep()
    assert world.read(key) == theirs
    world.write(key, theirs.replace(NEWER, b'"schema":1'))
    ran = process.drain(idle_s=LATER_S)
    assert ran in (["x"], [f"{key.split('/')[1]}.{n}" for n in range(2)])
    assert process.queue.stats().failed == 0, "the newer one is not charged with our looking at it"


def test_looking_at_what_a_newer_limpet_wrote_costs_little(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    newer(world, "pending/x/task.json")
    spent = process.cost(lambda: process.queue.claim(wait_s=3600))
    assert sum(spent.values()) <= 1000


def test_a_receipt_of_a_newer_limpet(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    process.drain(lambda task: task.fail("no"))
    newer(world, "failed/x.json")
    with pytest.raises(Unsupported):
        process.queue.result("x")
    assert process.queue.retry(all=True) == []
    process.queue.sweep()
    assert world.names() == ["failed/x.json"]


# ---- purge and cancel of what cannot be read ----


def test_purge_gets_rid_of_everything(world: World) -> None:
    process = world.process()
    for name in ("bad task", "bad lease", "fine"):
        process.queue.push({}, id=name)
    for _ in range(3):
        process.take()
    world.write("pending/bad%20task/task.json", b"")
    world.write("pending/bad%20lease/lease.json", b"")
    pushed = process.queue.push({})
    world.write(f"pending/{pushed.id}/task.json", b"")
    assert process.queue.purge() == 4
    assert [key for key in world.names() if key.startswith("pending/")] == []


def test_cancel_of_a_task_that_cannot_be_read(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    world.write("pending/x/task.json", b"")
    with pytest.raises(Corrupt):
        process.queue.cancel("x")
    assert world.facts("x")[0] is State.CANCELLED
    assert process.drain() == []
    assert process.queue.result("x").state == "failed"


def test_two_that_reject_the_same_task(world: World) -> None:
    one, two = world.process(), world.process()
    one.queue.push({}, id="x")
    world.write("pending/x/task.json", b"")
    one.store.before("put", "failed/x.json", lambda: two.drain(idle_s=5 * TTL_S))
    assert one.drain() == []
    assert [key for key in world.names() if not key.startswith("parts/")] == ["failed/x.json"]


def test_a_rotten_lease_of_a_task_that_is_done(world: World) -> None:
    process = world.process()
    process.queue.push({}, id="x")
    _, task = process.start()
    world.write("pending/x/lease.json", b"")
    task.done("done")
    assert world.names() == ["completed/x.json"]
    assert process.queue.result("x").value == "done"


def test_a_record_may_have_fields_that_we_do_not_know(world: World) -> None:
    """A newer version may add them without a new schema."""
    process = world.process()
    process.queue.push({"n": 1}, id="x")
    record = msgspec.json.decode(world.read("pending/x/task.json"))
    world.write("pending/x/task.json", msgspec.json.encode({**record, "colour": "blue"}))
    assert process.drain() == ["x"]


@pytest.mark.parametrize("batch", [False, True])
def test_a_foreign_object_of_the_other_kind_does_not_end_a_task(batch: bool) -> None:
    fleet = limpet.open("memory://")
    queue = fleet.queue("q")
    id_ = queue.push_many([{"n": 1}, {"n": 2}])[0] if batch else queue.push({"n": 1}, id="x").id
    entry = id_.rpartition(".")[0] if batch else id_
    fleet.store.put(QueueKeys.of("q").tasks(entry, batch=not batch), b"{")
    for _ in range(3):
        with queue.claim() as claim:
            for task in claim:
                task.done(task.payload)
    assert queue.result(id_).value == {"n": 1}


def test_a_pipe_in_place_of_a_lease_fails_its_task_alone(tmp_path: Path) -> None:
    queue = limpet.open(tmp_path / "fleet", durability="os").queue("q")
    bad, good = queue.push({"n": 1}), queue.push({"n": 2})
    os.mkfifo(tmp_path / "fleet/queues/q/pending" / bad.id / "lease.json")
    with queue.claim() as claim:
        for task in claim:
            task.done()
    assert not queue.claim()
    assert queue.result(good.id).state == "completed"
    assert [(notice.id, notice.failed) for notice in queue.notices()] == [(bad.id, 1)]
    assert "neither a file nor a folder" in (queue.result(bad.id).error or "")
    assert queue.stats().pending == 0
    assert queue.retry(bad.id)
