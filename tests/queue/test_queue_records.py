"""What a queue writes is read back equal, or recognised as damaged."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.kernel import records
from limpet.kernel.errors import Corrupt, Invalid, Unsupported
from limpet.kernel.keys import batch_of, check_id, count_of, entry_of, is_batch, life_before, name_of_receipt
from limpet.kernel.lease import State
from limpet.kernel.store.api import Blob, Version
from limpet.queue.entry import (
    PAYLOAD_BYTES_MAX,
    RESULT_BYTES_MAX,
    TOKEN_MAX,
    EntryLease,
    Part,
    Receipt,
    batch_bytes,
    batch_lines,
    lease_of,
    new_task,
    payload_bytes,
    read_content,
    read_task,
    result_bytes,
)
from support.clock import EPOCH, steady

MINTED = "01kjkc27j001r32bhe5rq00001"
few = settings(steady, max_examples=50)
NASTY = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r\n\t\x00\\\"'\U0001f980"

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.text(NASTY),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=6,
)


def pack(payloads: list[Any]) -> bytes:
    return batch_bytes([payload_bytes(payload) for payload in payloads], pushed_at=EPOCH, write_id="w")


def unpack(data: bytes) -> list[Any]:
    header, body = batch_lines(data, what="the batch")
    lines = body.split(b"\n")
    assert len(lines) == header.count
    return [msgspec.json.decode(line) for line in lines]


# ---- batches ----


@given(st.lists(json_values, min_size=1, max_size=8))
@few
def test_any_json_comes_back_from_a_batch(payloads: list[Any]) -> None:
    assert unpack(pack(payloads)) == payloads


def test_separators_inside_values_are_no_separators() -> None:
    """F33: only LF ends a line, and JSON never holds a bare one."""
    payloads = [{NASTY: NASTY}, {"x": NASTY * 3}]
    data = pack(payloads)
    assert data.count(b"\n") == 2
    assert unpack(data) == payloads


def test_a_batch_is_lines_that_any_tool_can_read() -> None:
    header, *lines = [json.loads(line) for line in pack([{"n": 1}, {"n": 2}]).decode().split("\n")]
    assert {*header} == {"schema", "count", "sha256", "pushed_at", "write_id"}
    assert lines == [{"n": 1}, {"n": 2}]


@given(st.lists(json_values, min_size=1, max_size=5), st.data())
@few
def test_a_batch_that_is_cut_is_recognised(payloads: list[Any], data: st.DataObject) -> None:
    whole = pack(payloads)
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(Corrupt):
        batch_lines(whole[:size], what="the batch")


@given(st.lists(json_values, min_size=1, max_size=5), st.data())
@few
def test_a_flipped_bit_is_recognised_or_harmless(payloads: list[Any], data: st.DataObject) -> None:
    """Every bit of the tasks is guarded by the digest; of the header, what counts."""
    whole = pack(payloads)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    body_at = whole.index(b"\n")
    try:
        found = unpack(bytes(damaged))
    except (Corrupt, Unsupported):
        return
    assert bit // 8 < body_at, "a task was damaged and nobody noticed"
    assert found == payloads


@given(st.lists(json_values, min_size=2, max_size=5), st.binary(min_size=1, max_size=20))
@few
def test_what_is_added_or_missing_is_recognised(payloads: list[Any], more: bytes) -> None:
    whole = pack(payloads)
    for damaged in (whole + more, whole + b"\n", whole.rpartition(b"\n")[0], whole.replace(b"\n", b"", 1)):
        with pytest.raises(Corrupt):
            batch_lines(damaged, what="the batch")


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (b'"schema":1', b'"schema":2', Unsupported),
        (b'"schema":1', b'"schema":"1"', Corrupt),
        (b'"count":2', b'"count":0', Corrupt),
        (b'"count":2', b'"count":-2', Corrupt),
        (b'"count":2', b'"count":3', Corrupt),
        (b'"sha256":"', b'"sha256":"0', Corrupt),
        (b'"pushed_at":"2026', b'"pushed_at":"x026', Corrupt),
    ],
)
def test_a_header_that_is_wrong(old: bytes, new: bytes, kind: type[Exception]) -> None:
    data = pack([1, 2])
    assert old in data
    with pytest.raises(kind, match="the batch"):
        batch_lines(data.replace(old, new), what="the batch")


# ---- single tasks ----


@given(json_values, st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
@few
def test_a_task_comes_back(payload: Any, id_: str) -> None:
    task = new_task(id_, payload_bytes(payload), pushed_at=EPOCH, write_id="w", retries=2, delayed=True)
    found = read_task(records.encode(task), what="the task")
    assert (found.id, found.pushed_at, found.write_id, found.retries, found.delayed) == (id_, EPOCH, "w", 2, True)
    assert msgspec.json.decode(found.payload) == payload


@given(json_values, st.data())
@few
def test_a_task_that_is_cut_or_flipped_is_recognised_or_harmless(payload: Any, data: st.DataObject) -> None:
    whole = records.encode(new_task("x", payload_bytes(payload), pushed_at=EPOCH, write_id="w"))
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(Corrupt):
        read_task(whole[:size], what="the task")
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        found = read_task(bytes(damaged), what="the task")
    except (Corrupt, Unsupported):
        return
    assert bytes(found.payload) == payload_bytes(payload)


@pytest.mark.parametrize("name", ["id", "payload", "sha256", "pushed_at", "write_id"])
def test_a_task_without_a_field_is_corrupt(name: str) -> None:
    fields = msgspec.json.decode(records.encode(new_task("x", b"{}", pushed_at=EPOCH, write_id="w")))
    del fields[name]
    with pytest.raises(Corrupt, match=name):
        read_task(msgspec.json.encode(fields), what="the task")


# ---- limits ----


def test_the_limits_are_of_bytes() -> None:
    fits = "y" * (PAYLOAD_BYTES_MAX - 2)
    assert len(payload_bytes(fits)) == PAYLOAD_BYTES_MAX
    assert len(result_bytes("y" * (RESULT_BYTES_MAX - 2))) == RESULT_BYTES_MAX
    for refuse in (payload_bytes, result_bytes):
        with pytest.raises(Invalid, match="262,145 bytes"):
            refuse("y" + fits)
        with pytest.raises(Invalid):
            refuse("\u20ac" * (PAYLOAD_BYTES_MAX // 3))
        with pytest.raises(Invalid):
            refuse({"x": float("nan")})


# ---- leases, receipts, parts ----


def lease(**fields: Any) -> EntryLease:
    base: dict[str, Any] = {"state": State.HELD, "name": "x", "worker_id": "w", "label": "l", "token": 1, "attempt": 1}
    times = dict.fromkeys(("created_at", "heartbeat_at", "expires_at"), EPOCH)
    return EntryLease(**(base | times | {"ttl_s": 60.0} | fields))


@given(
    st.lists(st.integers(0, 999), unique=True),
    st.dictionaries(st.integers(0, 999), st.integers(0, 9)),
    st.dictionaries(st.integers(0, 999), st.floats(0, 1e6)),
    st.dictionaries(st.integers(0, 999), json_values, max_size=5),
)
@few
def test_a_lease_comes_back(
    done: list[int], attempts: dict[int, int], waits: dict[int, float], results: dict[int, Any]
) -> None:
    raw = {n: msgspec.Raw(records.encode(value)) for n, value in results.items()}
    before = lease(done=done, attempts=attempts, waits=waits, results=raw, running=3, error=NASTY)
    after = records.decode(records.encode(before), EntryLease, what="the lease")
    assert (after.done, after.attempts, after.waits, after.running, after.error) == (done, attempts, waits, 3, NASTY)
    assert {n: msgspec.json.decode(value) for n, value in after.results.items()} == results


def test_a_plain_lease_is_the_seeds_record_and_little_more() -> None:
    assert {*msgspec.json.decode(records.encode(lease()))} == {
        "state",
        "name",
        "worker_id",
        "label",
        "token",
        "attempt",
        "created_at",
        "heartbeat_at",
        "expires_at",
        "ttl_s",
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"ttl_s": 1e300},
        {"ttl_s": 0},
        {"ttl_s": -1},
        {"wait_s": 1e300},
        {"wait_s": -1},
        {"waits": {"0": 1e300}},
        {"waits": {"0": None}},
        {"waits": {"x": 1}},
        {"attempts": {"0": "many"}},
        {"done": ["0"]},
        {"beside": [-1]},
        {"beside": [1000]},
        {"suspects": [0] * 1001},
        {"state": "lost"},
        {"token": 1.5},
    ],
    ids=str,
)
def test_a_lease_that_would_break_sums_is_corrupt(fields: dict[str, Any]) -> None:
    data = msgspec.json.encode({**msgspec.json.decode(records.encode(lease())), **fields})
    with pytest.raises(Corrupt, match="the lease"):
        records.decode(data, EntryLease, what="the lease")


@given(json_values, json_values, st.text(NASTY))
@few
def test_a_receipt_comes_back(payload: Any, result: Any, error: str) -> None:
    before = Receipt(
        state="failed",
        id="x",
        finished_at=EPOCH,
        payload=msgspec.Raw(records.encode(payload)),
        result=msgspec.Raw(records.encode(result)),
        error=error,
        failed=[1, 2],
    )
    after = records.decode(records.encode(before), Receipt, what="the receipt")
    assert msgspec.json.decode(after.payload) == payload
    assert msgspec.json.decode(after.result) == result
    assert (after.error, after.failed, after.finished_at) == (error, [1, 2], EPOCH)


@given(st.dictionaries(st.integers(0, 999), json_values, max_size=5))
@few
def test_a_part_comes_back(results: dict[int, Any]) -> None:
    part = Part(results={n: msgspec.Raw(records.encode(value)) for n, value in results.items()})
    after = records.decode(records.encode(part), Part, what="the part")
    assert {n: msgspec.json.decode(value) for n, value in after.results.items()} == results


# ---- names ----


@pytest.mark.parametrize(
    ("id_", "entry", "batch", "count", "before"),
    [
        ("x", "x", None, 1, None),
        ("a/b", "a%2fb", None, 1, None),
        ("x~1", "x~1", None, 1, "x"),
        ("x~2", "x~2", None, 1, "x~1"),
        ("x~10", "x~10", None, 1, "x~9"),
        ("a/b~3", "a%2fb~3", None, 1, "a%2fb~2"),
        (MINTED, MINTED, None, 1, None),
        (f"{MINTED}~1", f"{MINTED}~1", None, 1, MINTED),
        (f"{MINTED}-100", f"{MINTED}-100", None, 100, None),
        (f"{MINTED}-100.7", f"{MINTED}-100.7", (f"{MINTED}-100", 7), 1, None),
        (f"{MINTED}-100.7~2", f"{MINTED}-100.7~2", None, 1, f"{MINTED}-100.7~1"),
        ("x-100", "x-100", None, 1, None),
        ("x.7", "x.7", None, 1, None),
        ("x~\u00b2", "x%7e%c2%b2", None, 1, None),
        ("x~", "x%7e", None, 1, None),
    ],
)
def test_names(id_: str, entry: str, batch: tuple[str, int] | None, count: int, before: str | None) -> None:
    assert entry_of(id_) == entry
    assert batch_of(id_) == batch
    assert count_of(entry) == count
    assert is_batch(entry) is (count > 1)
    assert life_before(entry) == before
    assert name_of_receipt(f"queues/q/failed/{entry}.json") == entry


def test_a_batch_of_one_is_a_batch() -> None:
    assert is_batch(f"{MINTED}-1")
    assert count_of(f"{MINTED}-1") == 1


@given(st.text(min_size=1))
@few
def test_a_users_id_never_looks_like_one_of_ours(id_: str) -> None:
    try:
        entry = check_id(id_)
    except Invalid:
        return
    assert "~" not in entry
    assert "/" not in entry
    assert batch_of(entry) is None
    assert not is_batch(entry)
    assert life_before(entry) is None
    assert entry_of(id_) == entry


@given(st.text(min_size=1), st.text(min_size=1))
@few
def test_two_ids_never_share_an_entry(one: str, two: str) -> None:
    try:
        assert (check_id(one) == check_id(two)) is (one == two)
    except Invalid:
        return


@pytest.mark.parametrize(
    "fields",
    [
        {"done": [2]},
        {"failed": [0, 2]},
        {"attempts": {2: 1}},
        {"waits": {2: 1.0}},
        {"results": {2: msgspec.Raw(b"1")}},
        {"errors": {2: []}},
        {"running": 2},
        {"beside": [0, 2]},
        {"suspects": [2]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_lease_names_no_task_beyond_its_entry(fields: dict[str, Any]) -> None:
    data = records.encode(lease(**fields))
    assert lease_of(data, count=3, what="it").token == 1
    with pytest.raises(Corrupt, match="it names task 2; its entry has 2"):
        lease_of(data, count=2, what="it")


def test_a_lease_has_a_token_above_which_there_is_another_one() -> None:
    """A claim of it would write a record that nobody can read."""
    assert lease_of(records.encode(lease(token=TOKEN_MAX - 1)), count=1, what="it").token == TOKEN_MAX - 1
    with pytest.raises(Corrupt, match="no claim could have a higher one"):
        lease_of(records.encode(lease(token=TOKEN_MAX)), count=1, what="it")


def test_a_batch_has_as_many_tasks_as_its_name_says() -> None:
    """Its digest is right, so another batch was put in its place: the ids of its tasks would not be theirs."""
    data = pack([{"n": 1}, {"n": 2}])
    blob = Blob(data, Version("v"), EPOCH, len(data))
    assert len(read_content(blob, f"{MINTED}-2", batch=True, what="it").ids) == 2
    with pytest.raises(Corrupt, match="it holds 2 tasks; its name says 3"):
        read_content(blob, f"{MINTED}-3", batch=True, what="it")
