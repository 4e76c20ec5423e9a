"""What a queue costs: the arithmetic, held against what a real queue asks of its store."""

from __future__ import annotations

import pytest

import limpet
from limpet.queue.cost import (
    MILLION,
    Work,
    as_pushed,
    bell_bill,
    break_even,
    idle_bill,
    idle_requests,
    requests_of,
    sqs,
)


def _requests(put: int = 0, get: int = 0, head: int = 0, list: int = 0, delete: int = 0) -> dict[str, int]:
    return {"put": put, "get": get, "head": head, "list": list, "delete": delete}


@pytest.mark.parametrize(
    ("work", "requests"),
    [
        (Work(), _requests()),
        (Work(ended=1, tasks=1, claims=1), _requests(put=3, get=2, list=1, delete=2)),
        (Work(ended=1, tasks=1, claims=1, named=1), _requests(put=3, get=2, head=4, list=1, delete=2)),
        (Work(ended=1, tasks=1, claims=3), _requests(put=9, get=6, head=4, list=1, delete=2)),
        (Work(ended=1, tasks=100, claims=1, parts=7), _requests(put=10, get=2, list=1, delete=2)),
        (Work(waiting=5, waiting_named=2), _requests(put=5, head=4)),
        (Work(ended=2001, tasks=2001, claims=2001), _requests(put=6003, get=2004, list=3, delete=4002)),
    ],
)
def test_requests_of_an_entry(work: Work, requests: dict[str, int]) -> None:
    assert requests_of(work) == requests


@pytest.mark.parametrize(("batch", "entries", "named"), [(1, 20, False), (1, 20, True), (10, 20, False)])
def test_a_real_queue_takes_no_less_and_little_more(batch: int, entries: int, named: bool) -> None:
    fleet = limpet.open("memory://")
    fleet.check()
    queue = fleet.queue("x")
    before = fleet.meter.snapshot()
    if batch == 1:
        for n in range(entries):
            queue.push({"n": n}, id=f"task-{n}" if named else None)
    else:
        queue.push_many([{"n": n} for n in range(entries * batch)], batch=batch)
    while claim := queue.claim():
        with claim:
            for task in claim:
                task.done()
    spent = (fleet.meter.snapshot() - before).requests
    least = requests_of(Work(ended=entries, tasks=entries * batch, claims=entries, named=entries if named else 0))
    exact = ("put", "head", "delete")
    assert {verb: spent.get(verb, 0) for verb in exact} == {verb: least[verb] for verb in exact}
    assert 0 <= spent["get"] - least["get"] <= 2
    assert 0 <= spent["list"] - least["list"] <= 4


def test_sqs_takes_three_requests_a_task_or_a_tenth_of_it() -> None:
    assert [sqs(MILLION, batch).requests for batch in (1, 10)] == [3_000_000, 300_000]
    assert [sqs(MILLION, batch).dollars for batch in (1, 10)] == pytest.approx([1.20, 0.12])
    assert sqs(11, 10).requests == 6


def test_a_million_tasks_on_s3() -> None:
    """1,000,000 tasks: 3 PUTs and 1 GET for each entry, 1 LIST and 1 GET for 1,000 entries."""
    assert as_pushed(MILLION, 1).dollars == pytest.approx(3 * 5.0 + 0.4 + 0.005 + 0.0004)
    assert as_pushed(MILLION, 100).dollars == pytest.approx(as_pushed(MILLION, 1).dollars / 100)
    assert as_pushed(MILLION, 1, named=True).dollars == pytest.approx(as_pushed(MILLION, 1).dollars + 4 * 0.4)


def test_break_even_is_the_first_batch_that_is_cheaper_than_sqs() -> None:
    enough, theirs = break_even(), sqs(MILLION, 10).dollars
    assert as_pushed(MILLION, enough).dollars <= theirs < as_pushed(MILLION, enough - 1).dollars


def test_an_idle_worker_and_the_bell() -> None:
    """`test_what_an_idle_worker_asks_in_an_hour` counts what a worker really asks, and
    `test_presence_costs_thirty_puts_an_hour` what its presence takes."""
    assert idle_requests(2.0) == {"head": 1_800, "list": 60}
    assert idle_bill(2.0).dollars == pytest.approx(0.7446)
    assert idle_bill(10.0).dollars == pytest.approx(0.3241, abs=0.0001)
    assert idle_requests(2.0, presence=True) == {"head": 1_800, "list": 60, "put": 30}
    assert idle_bill(2.0, presence=True).dollars == pytest.approx(0.7446 + 0.1095)
    assert bell_bill().requests == 3_600
    assert bell_bill().dollars == pytest.approx(0.018)
