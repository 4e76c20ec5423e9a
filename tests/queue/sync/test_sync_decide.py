"""The supervisor's decisions, as tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from limpet.kernel import records
from limpet.kernel.lease import State
from limpet.queue.api import Policy
from limpet.queue.decide import claimed, freed
from limpet.queue.entry import EntryLease, Receipt, new_task
from limpet.queue.sync.decide import (
    FleetVerdict,
    RemoteFleet,
    absent,
    ends,
    entry_of_line,
    is_held_elsewhere,
    is_stale,
    joined,
    let_go,
    merged,
    noted,
    promoted,
    published,
    ran_twice,
    superseded,
    unread,
    won_back,
)
from limpet.queue.sync.records import EndLine, HeldLine, LeaseLine, PushLine, RemoteLease

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def _receipt(state: str, who: str = "w", **fields: Any) -> Receipt:
    return Receipt(state=state, id="x", worker_id=who, finished_at=NOW, **fields)  # type: ignore[arg-type]


def _lease(owner: str = "w", **changes: Any) -> EntryLease:
    record = claimed(None, entry="x", worker_id=owner, label=f"host:{owner}", policy=Policy(), wall=NOW)
    return msgspec.structs.replace(record, **changes)


# ---- receipts ----


@pytest.mark.parametrize(
    ("stands", "ours", "wins"),
    [
        (None, "completed", True),
        (None, "retried", True),
        ("completed", "completed", False),
        ("failed", "failed", False),
        ("failed", "cancelled", False),
        ("failed", "retried", True),
        ("cancelled", "retried", True),
        ("retried", "failed", False),
        ("retried", "retried", False),
        ("completed", "retried", False),
    ],
)
def test_receipts_only_grow(stands: str | None, ours: str, wins: bool) -> None:
    found = merged(_receipt(stands, "first") if stands else None, _receipt(ours, "second", retried_as="x~1"))
    assert (found is not None) is wins
    if found is not None:
        assert found.state == ours
        assert found.worker_id == ("first" if stands else "second")


def test_merging_is_the_same_in_any_order() -> None:
    failed, retried = _receipt("failed"), _receipt("retried", retried_as="x~1")
    for order in ((failed, retried), (retried, failed), (failed, retried, failed, retried)):
        stands: Receipt | None = None
        for each in order:
            stands = merged(stands, each) or stands
        assert stands == retried


@pytest.mark.parametrize(
    ("stands", "ours", "twice"),
    [
        (_receipt("completed", "a"), _receipt("completed", "b"), True),
        (_receipt("completed", "a"), _receipt("completed", "a"), False),
        (_receipt("failed", "a"), _receipt("retried", "a"), False),
        (_receipt("cancelled", "a"), _receipt("failed", "b"), False),
    ],
)
def test_two_runs_are_told_from_one_that_is_sent_twice(stands: Receipt, ours: Receipt, twice: bool) -> None:
    assert ran_twice(stands, ours) is twice


def test_a_batch_that_two_ran_keeps_every_completion() -> None:
    stands = _receipt("completed", "a", count=4, failed=[0, 1, 3])
    ours = _receipt(
        "completed", "b", count=4, failed=[1], results={0: msgspec.Raw(b'"zero"')}, parts=["queues/q/parts/e/1.json"]
    )
    found = won_back("e-4", stands, ours)
    assert {name: bytes(receipt.result) for name, receipt in found.items()} == {"e-4.0": b'"zero"', "e-4.3": b"null"}
    for name, receipt in found.items():
        assert (receipt.id, receipt.state, receipt.count, receipt.worker_id) == (name, "completed", 1, "b")
        assert (receipt.failed, receipt.results, receipt.parts) == ([], {}, [])
    assert won_back("e-4", ours, stands) == {}
    assert won_back("e-4", _receipt("cancelled", failed=[0]), ours) == {}
    assert won_back("e-4", stands, msgspec.structs.replace(ours, state="failed")) == {}
    short = msgspec.structs.replace(ours, count=3)
    assert [*won_back("e-4", stands, short)] == ["e-4.0"], "it had only tasks 0, 1 and 2"


def test_what_ends_in_the_same_breath_need_not_be_pushed() -> None:
    push = PushLine(key="queues/q/pending/x/task.json", data="{}")
    later = PushLine(key="queues/q/scheduled/20260101T000000Z/x@1.json", data="{}")
    end = EndLine(key="queues/q/completed/x.json", entry="x", batch=False, write_id="w")
    part = EndLine(key="queues/q/failed/b.1.json", entry="b", batch=True, write_id="w")
    held = HeldLine(root="queues/q", entry="y", batch=False)
    assert superseded([push, later, end, part, held]) == {("queues/q", "x")}
    assert ends(end)
    assert not ends(part)
    assert entry_of_line(push) == entry_of_line(later) == entry_of_line(end) == ("queues/q", "x")
    assert entry_of_line(part) == ("queues/q", "b")


def _task(*, delayed: bool, payload: bytes = b"{}") -> str:
    task = new_task("x", payload, pushed_at=NOW, write_id="w", delayed=delayed)
    return records.encode(task).decode()


def test_a_delayed_push_that_is_pending_is_scheduled_no_more() -> None:
    pending, later = "queues/q/pending/x/task.json", "queues/q/scheduled/20260101T000000Z/x@1.json"
    assert promoted(PushLine(key=pending, data=_task(delayed=True)))
    assert promoted(PushLine(key=later, data=_task(delayed=True))) is False
    assert promoted(PushLine(key=pending, data=_task(delayed=False))) is False
    assert promoted(PushLine(key=pending, data=_task(delayed=False, payload=b'{"delayed":true}'))) is False
    assert promoted(PushLine(key=pending)) is False
    assert promoted(PushLine(key=pending, data='{"delayed":true}')) is False
    newer = _task(delayed=True).replace('"schema":1', '"schema":9')
    assert promoted(PushLine(key=pending, data=newer)) is False


# ---- leases ----


def _published(stands: EntryLease | None, **sight: Any) -> EntryLease | None:
    given: dict[str, Any] = {"modified": NOW, "unchanged_s": 0.0, "now": NOW} | sight
    return published(stands, _lease("worker"), owner="node:a", hold_s=360.0, wall=NOW, **given)


def test_a_first_lease_is_created() -> None:
    record = _published(None)
    assert record is not None
    assert (record.worker_id, record.label, record.token, record.ttl_s) == ("node:a", "host:worker", 1, 360.0)
    assert (record.state, record.name, record.attempt) == (State.HELD, "x", _lease("worker").attempt)
    assert record.created_at == record.heartbeat_at == NOW
    assert record.expires_at == NOW + timedelta(seconds=360)
    assert record.charged == 0, "a node that dies must not use up the attempts of the others"


def test_ours_is_renewed() -> None:
    began = NOW - DAY
    record = _published(_lease("node:a", token=4, attempts={1: 2}, created_at=began, heartbeat_at=began, running=1))
    assert record is not None
    assert (record.token, record.attempts, record.running, record.not_before) == (4, {1: 2}, None, None)
    assert (record.label, record.ttl_s) == ("host:worker", 360.0)
    assert (record.created_at, record.heartbeat_at) == (began, NOW)
    assert record.expires_at == NOW + timedelta(seconds=360)


def test_a_live_foreign_one_wins() -> None:
    assert _published(_lease("node:b")) is None
    assert _published(_lease("node:b", ttl_s=60.0), now=NOW + timedelta(seconds=59), unchanged_s=59.0) is None


def test_an_abandoned_or_free_one_is_taken() -> None:
    gone = _published(_lease("node:b", token=3, ttl_s=60.0), now=NOW + timedelta(seconds=90), unchanged_s=90.0)
    freely = freed(_lease("node:b", token=3), 1, NOW)
    free = _published(msgspec.structs.replace(freely, not_before=NOW, running=0, created_at=NOW - DAY))
    for record in (gone, free):
        assert record is not None
        assert (record.state, record.worker_id, record.token) == (State.HELD, "node:a", 4)
        assert (record.created_at, record.not_before, record.running) == (NOW, None, None)


def test_a_free_one_of_ours_is_taken_by_a_new_token() -> None:
    record = _published(freed(_lease("node:a", token=3), 1, NOW))
    assert record is not None
    assert record.token == 4


@pytest.mark.parametrize("state", [State.CANCELLED])
def test_what_has_ended_is_left_alone(state: State) -> None:
    assert _published(_lease("node:a", state=state)) is None


def test_only_ours_is_let_go() -> None:
    ours = let_go(_lease("node:a", wait_s=7.0, token=3), owner="node:a")
    assert ours is not None
    assert (ours.state, ours.wait_s, ours.token) == (State.FREE, 0.0, 3)
    assert let_go(_lease("node:b"), owner="node:a") is None
    assert let_go(freed(_lease("node:a"), 1, NOW), owner="node:a") is None
    assert let_go(None, owner="node:a") is None


def _line(*, held: bool = True) -> LeaseLine:
    return LeaseLine(
        root="queues/q", entry="x", batch=False, held=held, worker_id="w2", label="l2", token=5, ttl_s=60.0
    )


@pytest.mark.parametrize(
    ("stands", "held", "seq", "live_s"),
    [
        (None, True, 1, 100.0),
        (None, False, 1, None),
        (("a", 1), True, 2, 100.0),
        (("a", 2), True, 2, None),
        (("a", 3), True, 2, None),
        (("a", 1), False, 2, 0.0),
        (("a", 2), False, 2, None),
        (("b", 9), True, 2, 100.0),
        (("b", 9), False, 2, None),
    ],
)
def test_only_news_is_noted(stands: tuple[str, int] | None, held: bool, seq: int, live_s: float | None) -> None:
    before = stands and RemoteLease(node=stands[0], log=stands[1], worker_id="w", label="l", token=1, live_s=50.0)
    found = noted(before or None, _line(held=held), node="a", seq=seq, live_s=100.0)
    assert (found.live_s if found else None) == live_s
    assert found is None or (found.node, found.log) == ("a", seq)
    assert found is None or (found.worker_id, found.label, found.token) == ("w2", "l2", 5)


def test_a_note_lasts_from_when_it_was_written() -> None:
    assert is_held_elsewhere(NOW, 10.0, NOW + timedelta(seconds=9))
    assert not is_held_elsewhere(NOW, 10.0, NOW + timedelta(seconds=10))
    assert not is_held_elsewhere(NOW, 0.0, NOW)


# ---- logs ----


@pytest.mark.parametrize(
    ("listed", "cursors", "news", "gap"),
    [
        ({}, {}, {}, False),
        ({"a": [1, 2]}, {}, {"a": [1, 2]}, False),
        ({"a": [1, 2]}, {"a": 2}, {}, False),
        ({"a": [1, 2, 3]}, {"a": 1}, {"a": [2, 3]}, False),
        ({"a": [3]}, {"a": 1}, {"a": [3]}, True),
        ({"a": [2]}, {}, {"a": [2]}, True),
        ({"a": [2, 4]}, {"a": 1}, {"a": [2, 4]}, True),
        ({"a": [2]}, {"a": 7}, {}, False),
        ({"me": [5, 9], "a": [1]}, {}, {"a": [1]}, False),
        ({"a": [4]}, {"a": 4, "b": 2}, {}, False),
        ({"a": [0, 1]}, {}, {"a": [1]}, False),
        ({"a": [1], "b": [5]}, {}, {"a": [1], "b": [5]}, True),
        ({"a": [3, 1, 2]}, {}, {"a": [1, 2, 3]}, False),
        ({"a": [1, 999_999_999]}, {}, {"a": [1, 999_999_999]}, True),
    ],
)
def test_numbers_have_no_holes(
    listed: dict[str, list[int]], cursors: dict[str, int], news: dict[str, list[int]], gap: bool
) -> None:
    found = unread(listed, cursors, node="me")
    assert (dict(found.seqs), found.gap) == (news, gap)


def test_an_absence_ends_before_anything_goes() -> None:
    week_s = 7 * 86_400.0
    assert absent(None, NOW, week_s)
    assert not absent(NOW - 5 * DAY, NOW, week_s)
    assert absent(NOW - 6.5 * DAY, NOW, week_s)
    assert not absent(NOW - 6 * DAY + SECOND, NOW, week_s)
    assert absent(NOW - 6 * DAY - SECOND, NOW, week_s)
    assert not absent(NOW - 6 * SECOND, NOW, 7.0)
    assert not is_stale(NOW - 6 * HOUR + SECOND, NOW, week_s)
    assert is_stale(NOW - 6 * HOUR - SECOND, NOW, week_s)
    assert not is_stale(NOW - SECOND, NOW, 28.0)
    assert is_stale(None, NOW, week_s)
    assert not is_stale(NOW - timedelta(hours=5), NOW, week_s)
    assert is_stale(NOW - timedelta(hours=7), NOW, week_s)


@pytest.mark.parametrize(
    ("known", "now", "what"),
    [
        ((None, 0), ("a", 0), FleetVerdict.SAME),
        ((None, 0), (None, 0), FleetVerdict.SAME),
        (("a", 0), (None, 0), FleetVerdict.SAME),
        (("a", 7), ("a", 7), FleetVerdict.SAME),
        ((None, 0), ("a", 7), FleetVerdict.RESTORED),
        (("a", 0), ("a", 7), FleetVerdict.RESTORED),
        (("a", 7), ("a", 0), FleetVerdict.OLDER),
        (("a", 7), ("a", 6), FleetVerdict.OLDER),
        (("a", 0), ("b", 0), FleetVerdict.OTHER),
        (("a", 0), ("b", 7), FleetVerdict.OTHER),
    ],
)
def test_which_fleet_a_node_meets(
    known: tuple[str | None, int], now: tuple[str | None, int], what: FleetVerdict
) -> None:
    assert joined(RemoteFleet(*known), RemoteFleet(*now)) is what
