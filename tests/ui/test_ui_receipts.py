"""What has ended, as the dashboard lists it: the last ones first, all members of a failure group, and what it costs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import limpet
from limpet.app import Fleet
from limpet.kernel.keys import Key, QueueKeys
from limpet.kernel.runtime import ulid
from limpet.testing import drain
from limpet.ui import receipts
from limpet.ui.receipts import EndedTasks, ReceiptRows
from support.costs import requests
from support.dashboard import HOSTILE
from ui.conftest import Serve

ENDED = ("queue", "mail", "ended")


@pytest.fixture
def fleet() -> Fleet:
    return limpet.open("memory://").check()


def mail(fleet: Fleet, *texts: str) -> None:
    """A task for each text, run at once: it fails if the text begins with "no"."""

    @fleet.task("mail", max_attempts=1)
    def send(text: str) -> str:
        if text.startswith("no"):
            raise ValueError(f"{text} is wrong")
        return text

    for text in texts:
        send.using(id=text[:20]).push(text)
        drain(fleet)


def test_what_ended_lately_is_listed_the_newest_first_and_read_once(serve: Serve, fleet: Fleet) -> None:
    mail(fleet, "one", "no 2", HOSTILE)
    queue = fleet.queue("mail")
    queue.push({"text": "three"}, id="three")
    queue.cancel("three")
    queue.push_many([{"text": "no"}, {"text": "yes"}], id="both")
    drain(fleet)
    server = serve(fleet)
    answer: list[Any] = []
    # completed/ and failed/; three receipts of single tasks, that of the cancelled one, and two of the batch
    assert requests(fleet, lambda: answer.append(server.get(*ENDED).json)) == {"list": 2, "get": 6}
    rows = answer[0]["ended"]
    assert [(row["id"].partition("-")[0][:5], row["state"], row["tasks"], row["failed"]) for row in rows[2:]] == [
        ("three", "cancelled", 1, 1),
        (HOSTILE[:5], "completed", 1, 0),
        ("no 2", "failed", 1, 1),
        ("one", "completed", 1, 0),
    ]
    assert {(row["state"], row["tasks"], row["failed"]) for row in rows[:2]} == {("completed", 2, 1), ("failed", 1, 1)}
    assert rows[4]["error"] == "ValueError: no 2 is wrong"
    assert rows[4]["payload"] == '{"text":"no 2"}'
    assert (answer[0]["more"], answer[0]["sampled"], answer[0]["unreadable"]) == (False, False, 0)
    mail(fleet, "four")
    # the receipt of a batch is read again: it counts others too
    assert requests(fleet, lambda: answer.append(server.get(*ENDED).json)) == {"list": 2, "get": 2}
    assert answer[1]["ended"][0]["id"] == "four"


def test_an_unreadable_receipt_is_counted_and_hides_no_other(serve: Serve, fleet: Fleet) -> None:
    mail(fleet, "one", "two")
    fleet.store.put(QueueKeys.of("mail").completed_of("one"), b"{")
    found = serve(fleet).get(*ENDED).json
    assert ([row["id"] for row in found["ended"]], found["unreadable"]) == (["two"], 1)


def test_of_more_receipts_than_a_listing_gives_the_last_pushed_are_found(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a bucket, names that Limpet made sort by the time of the push: the last hour is listed too."""
    monkeypatch.setattr(receipts, "LISTED_MAX", 5)
    monkeypatch.setattr(receipts, "ENDED_SHOWN", 3)
    monkeypatch.setattr(fleet.store, "far", True)
    keys, queue = QueueKeys.of("mail"), fleet.queue("mail")
    mail(fleet, "old")
    receipt = fleet.store.get(keys.completed_of("old")).data
    for n in range(6):
        fleet.store.put(keys.completed_of(ulid(1_600_000_000_000 + n, 0)), receipt)
    new = {queue.push({"text": str(n)}).id for n in range(2)}
    drain(fleet)
    found = EndedTasks(fleet, "mail").lately()
    assert {row["id"] for row in found["ended"]} >= new
    assert (len(found["ended"]), found["more"], found["sampled"]) == (3, True, True)


def test_every_member_of_a_failure_group_is_listed_and_read_once(serve: Serve, fleet: Fleet) -> None:
    mail(fleet, *(f"no {n}" for n in range(30)), "none")
    server = serve(fleet)
    first, other = server.get("queue", "mail").json["groups"]
    assert (first["error"], first["count"], len(first["tasks"]), first["more"]) == (
        "ValueError: no # is wrong",
        30,
        receipts.GROUP_IDS,
        True,
    )
    assert (other["count"], other["more"]) == (1, False)
    answer: list[Any] = []

    def ask(most: int) -> dict[str, int]:
        body = {"group": first["error"], "most": most}
        return requests(fleet, lambda: answer.append(server.post("queue", "mail", "failures", body=body).json))

    assert ask(100) == {"list": 1}, "the page has read all 31 receipts"
    assert {task["id"] for task in answer[0]["tasks"]} == {f"no {n}" for n in range(30)}
    assert (answer[0]["more"], answer[0]["limit"]) == (False, receipts.MEMBERS_MAX)
    ask(25)
    assert (len(answer[1]["tasks"]), answer[1]["more"]) == (25, True)
    for most in (0, receipts.MEMBERS_MAX + 1):
        body = {"group": "x", "most": most}
        assert server.post("queue", "mail", "failures", body=body).error == (400, "BadRequestException")


def test_a_receipt_that_has_changed_is_read_again_and_what_is_kept_is_bounded(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail(fleet, "no 1", "no 2")
    rows = ReceiptRows()
    assert len(EndedTasks(fleet, "mail", rows).groups()["groups"][0]["tasks"]) == 2
    fleet.queue("mail").retry("no 1")
    spent = requests(fleet, lambda: EndedTasks(fleet, "mail", rows).groups())
    assert spent == {"list": 1, "get": 1}, "of the retried one; the other was read before"
    monkeypatch.setattr(receipts, "ROWS_KEPT", 1)
    few = ReceiptRows()
    mail(fleet, "no 3")
    assert len(EndedTasks(fleet, "mail", few).lately()["ended"]) == 3
    assert len(few._rows) == 1


def test_payloads_of_what_waits_are_read_for_a_search(serve: Serve, fleet: Fleet) -> None:
    queue = fleet.queue("mail")
    queue.push({"text": HOSTILE}, id="now")
    queue.push({"text": "x" * 100_000}, id="large")
    queue.push({"text": "later"}, id="then", delay_s=600)
    queue.push_many([{}, {}], id="batch")
    fleet.store.put(Key(f"{QueueKeys.of('mail').pending}/01m7hwq79qx90hmhn3y764bxst/task.json"), b"[")
    server = serve(fleet)
    answer: list[Any] = []
    spent = requests(fleet, lambda: answer.append(server.get("queue", "mail", "payloads").json))
    assert spent == {"list": 2, "get": 4}
    assert answer == [{"now": '{"text":"' + HOSTILE.replace('"', '\\"') + '"}', "then": '{"text":"later"}'}]


# ---- signals ----


def waiting(fleet: Fleet) -> list[str]:
    """A durable task `order-7` that waits for the signal `approved`; the name of the step before that."""
    steps = ["pack"]

    @fleet.task("orders")
    def order() -> str:
        for name in steps:
            limpet.step(int, name=name)
        return str(limpet.wait_signal("approved"))

    order.using(id="order-7").push()
    drain(fleet)
    return steps


def test_a_signal_is_sent_and_the_first_of_a_name_counts(serve: Serve, fleet: Fleet) -> None:
    waiting(fleet)
    server = serve(fleet)
    assert server.get("queue", "orders", "task", "order-7").json["signal"] == "approved"
    body = {"id": "order-7", "name": "approved", "value": {"by": HOSTILE}}
    misspelt = server.post("queue", "orders", "signal", body={**body, "name": "aproved"})
    assert misspelt.error == (400, "BadRequestException")
    assert "it waits for 'approved'" in misspelt.json["error"]["message"]
    later = server.post("queue", "orders", "signal", body={**body, "name": "packed", "early": True}).json
    assert later == {"sent": True, "awaited": False}
    assert server.post("queue", "orders", "signal", body=body).json == {"sent": True, "awaited": True}
    assert server.post("queue", "orders", "signal", body={**body, "value": None}).json["sent"] is False
    keys = QueueKeys.of("orders")
    sent = json.loads(fleet.store.get(keys.signal("order-7", 0, "approved")).data)
    assert sent["label"] == f"dashboard at {fleet.runtime.label}"
    drain(fleet)
    assert fleet.queue("orders").result("order-7").value == str({"by": HOSTILE})
    assert server.post("queue", "orders", "signal", body=body).status == 404, "it has ended"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"id": "order-7", "name": "approved"},
        {"id": "order-7", "value": 1},
        {"id": "order-7", "name": "", "value": 1},
        {"id": "order-7", "name": "a" * 5000, "value": 1},
        {"id": "order-7", "name": "approved", "value": 1, "more": 1},
        [],
    ],
)
def test_a_wrong_signal_is_refused_and_sent_to_nobody(serve: Serve, fleet: Fleet, body: Any) -> None:
    waiting(fleet)
    server = serve(fleet)
    assert server.post("queue", "orders", "signal", body=body).error == (400, "BadRequestException")
    assert server.get("queue", "orders", "task", "order-7").json["state"] == "suspended"


def test_a_task_that_waits_for_code_can_be_failed(serve: Serve, fleet: Fleet) -> None:
    waiting(fleet)[0] = "ship"
    fleet.queue("orders").signal("order-7", "approved")
    drain(fleet)
    server = serve(fleet)
    found = server.get("queue", "orders", "task", "order-7").json
    assert (found["state"], found["waits_for_code"]) == ("suspended", True)
    [queue] = server.get("overview").json["queues"]
    assert queue["waits_for_code"] == 1
    assert server.post("queue", "orders", "fail", body={"id": "order-7"}).json == {"failed": True}
    assert server.get("queue", "orders", "task", "order-7").json["state"] == "failed"
    assert server.post("queue", "orders", "fail", body={}).status == 400


# ---- the page of a task that has ended ----


def report(fleet: Fleet, rows: int = 7) -> str:
    """A durable task that has pushed a child, got a signal and completed; the id of the child."""

    @fleet.task("parts")
    def part(n: int) -> int:
        return n * n

    @fleet.task("reports")
    def make(text: str) -> str:
        limpet.step(str, "x" * rows, name="count")
        part.push(rows)
        return f"{text}: {limpet.wait_signal('approved')}"

    make.using(id="report-1").push(HOSTILE)
    drain(fleet)
    fleet.queue("reports").signal("report-1", "approved", "ann")
    drain(fleet)
    [child] = EndedTasks(fleet, "parts").lately()["ended"]
    return str(child["id"])


def test_the_page_of_a_completed_task_has_its_times_steps_signals_parent_and_children(
    serve: Serve, fleet: Fleet
) -> None:
    child = report(fleet)
    server = serve(fleet)
    answer: list[Any] = []
    spent = requests(fleet, lambda: answer.append(server.get("queue", "reports", "task", "report-1").json))
    [found] = answer
    # the receipt, as result and for its facts; how long it is kept; the history; and the child's receipt
    assert spent == {"get": 5}
    assert (found["state"], found["errors"]) == ("completed", [])
    assert HOSTILE.replace('"', '\\"') in found["payload"]
    assert found["result"].endswith(': ann"')
    assert found["pushed_at"] <= found["began_at"] <= found["finished_at"]
    assert found["took_s"] >= 0
    assert [(step["kind"], step["name"]) for step in found["steps"]] == [
        ("step", "count"),
        ("push", "parts"),
        ("signal", "approved"),
    ]
    [signal] = found["signals"]
    assert (signal["name"], signal["by"], signal["value"]) == ("approved", fleet.runtime.label, '"ann"')
    assert signal["at"] <= found["finished_at"]
    assert found["children"] == [{"queue": "parts", "id": child, "state": "completed"}]
    of_child = server.get("queue", "parts", "task", child).json
    assert of_child["parent"] == {"queue": "reports", "id": "report-1", "step": 1}


def test_a_value_that_was_not_kept_says_so(serve: Serve, fleet: Fleet) -> None:
    report(fleet, 5000)
    step = serve(fleet).get("queue", "reports", "task", "report-1").json["steps"][0]
    assert re.fullmatch(r"not kept: 5,002 bytes, SHA-256 [0-9a-f]{64}", step["value"])


def test_how_long_handlers_took_is_told_of_those_that_completed(serve: Serve, fleet: Fleet) -> None:
    mail(fleet, "one", "two", "no 3")
    queue = fleet.queue("mail")
    queue.push_many([{"text": "a"}, {"text": "b"}])
    drain(fleet)
    found = serve(fleet).get(*ENDED).json
    durations = found["durations"]
    assert durations["tasks"] == 4
    assert 0 <= durations["p50_s"] <= durations["p99_s"] <= durations["longest_s"]
    assert {row["id"]: row["took_s"] is None for row in found["ended"] if row["tasks"] == 1} == {
        "one": False,
        "two": False,
        "no 3": False,
    }
