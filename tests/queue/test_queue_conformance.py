"""Every name that users rely on, the same in memory, on a directory and in a bucket, on the real clock."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

import limpet
from limpet.app import Fleet
from limpet.kernel.errors import Invalid, Missing
from limpet.kernel.keys import is_minted
from limpet.queue import BucketQueue, Pushed, Queue, Result, Stats
from limpet.queue.api import FEATURES, Claim
from support.queue import held, rounds

WAIT_S = 60.0
NASTY: dict[str, Any] = {
    "text": 'quote " slash \\ line \n \u2028 nul \u0000 crab \U0001f980',
    "deep": [1, -2.5, 1e300, True, None, {"": []}],
}


@dataclass
class Site:
    """A payload with a type."""

    domain: str
    tags: list[str] = field(default_factory=list)


class Page(msgspec.Struct):
    """Another one."""

    url: str
    depth: int = 0


def drain(queue: Queue) -> list[str]:
    """Do everything that is there; the ids, in order."""
    ran = []
    while claim := queue.claim():
        with claim:
            for task in claim:
                ran.append(task.id)
                task.done(task.payload)
    return ran


# ---- one task ----


def test_push_claim_done_result(fleet: Fleet) -> None:
    queue = fleet.queue("q")
    pushed = queue.push(NASTY)
    assert pushed.created
    assert is_minted(pushed.id)
    assert queue.result(pushed.id).state == "pending"
    with queue.claim() as claim:
        assert claim
        assert claim.token == 1
        assert not claim.lost
        (task,) = claim
        assert (task.id, task.payload, task.attempt, task.lost) == (pushed.id, NASTY, 1, False)
        task.done(NASTY)
    assert not queue.claim()
    result = queue.result(pushed.id)
    assert (result.state, result.value, result.attempts, result.ready) == ("completed", NASTY, 1, True)
    assert result.finished_at is not None


def test_an_id_is_used_once(fleet: Fleet, url: str) -> None:
    other = limpet.open(url).queue("q")
    queue = fleet.queue("q")
    assert queue.push({"n": 1}, id="a.com@2026-11") == Pushed("a.com@2026-11", True)
    assert other.push({"n": 2}, id="a.com@2026-11") == Pushed("a.com@2026-11", False)
    assert drain(other) == ["a.com@2026-11"]
    assert queue.result("a.com@2026-11").value == {"n": 1}
    assert not queue.push({"n": 3}, id="a.com@2026-11").created
    assert drain(queue) == []


@pytest.mark.parametrize("id_", ["../../up", "A", "é", "e\u0301", "a/b", "x" * 300, "con.json", ".", "a b%2e"])
def test_awkward_ids(fleet: Fleet, id_: str) -> None:
    queue = fleet.queue("q")
    assert queue.push({"n": 1}, id=id_).created
    assert queue.push({"n": 2}, id=id_ + "x").created
    assert not queue.push({"n": 1}, id=id_).created
    assert sorted(drain(queue)) == sorted([id_, id_ + "x"])
    assert queue.result(id_).value == {"n": 1}


def test_retry_and_fail(fleet: Fleet) -> None:
    queue = fleet.queue("q", max_attempts=2)
    queue.push({}, id="x")
    for n in (1, 2):
        with queue.claim(wait_s=WAIT_S) as claim:
            for task in claim:
                assert (claim.token, task.attempt) == (n, n)
                task.retry(after_s=0, error="not yet")
    assert not queue.claim()
    assert (queue.result("x").state, queue.result("x").error) == ("failed", "not yet")
    queue.push({}, id="y")
    with queue.claim(wait_s=WAIT_S) as claim:
        for task in claim:
            task.fail("gone", "trace")
    assert (queue.result("y").state, queue.result("y").error, queue.result("y").traceback) == (
        "failed",
        "gone",
        "trace",
    )


def test_a_retry_waits(fleet: Fleet) -> None:
    queue = fleet.queue("q")
    queue.push({}, id="x")
    with queue.claim() as claim:
        for task in claim:
            task.retry(after_s=2)
    assert not queue.claim()
    with queue.claim(wait_s=WAIT_S) as claim:
        assert [task.attempt for task in claim] == [2]


def test_verdicts_by_exception(fleet: Fleet) -> None:
    queue = fleet.queue("q", max_attempts=3, backoff_s=0)
    queue.push({}, id="x")

    def work(error: Exception) -> None:
        with queue.claim(wait_s=WAIT_S) as claim:
            for _ in claim:
                raise error

    for error in (ValueError("boom"), limpet.Retry(after_s=0), limpet.Fail("gone")):
        with pytest.raises(type(error)):
            work(error)
    assert (queue.result("x").state, queue.result("x").error, queue.result("x").attempts) == ("failed", "gone", 3)


def test_hand_back(fleet: Fleet) -> None:
    queue = fleet.queue("q", max_attempts=1)
    queue.push({}, id="x")
    for _ in range(3):
        with queue.claim(wait_s=WAIT_S) as claim:
            assert [task.attempt for task in claim] == [1]
            claim.hand_back()
    assert drain(queue) == ["x"]


# ---- batches ----


def test_a_batch(fleet: Fleet) -> None:
    queue = fleet.queue("q", max_attempts=1)
    ids = queue.push_many(rounds(250), batch=100)
    assert len({*ids}) == 250
    assert queue.stats().pending == 250
    seen: dict[str, int] = {}
    while claim := queue.claim():
        with claim:
            for task in claim:
                seen[task.id] = task.payload["n"]
                if task.payload["n"] == 123:
                    task.fail("unlucky")
                else:
                    task.done("y" * 2000 if task.payload["n"] == 7 else task.payload["n"])
    assert [seen[id_] for id_ in ids] == [*range(250)]
    assert (queue.result(ids[0]).value, queue.result(ids[249]).value) == (0, 249)
    assert queue.result(ids[7]).value == "y" * 2000
    assert (queue.result(ids[123]).state, queue.result(ids[123]).error) == ("failed", "unlucky")
    stats = queue.stats()
    assert (stats.pending, stats.completed, stats.failed) == (0, 249, 1)
    assert queue.retry(ids[123]) == [f"{ids[123]}~1"]
    assert drain(queue) == [f"{ids[123]}~1"]
    assert queue.result(ids[123]).state == "completed"


def test_part_of_a_batch_comes_back(fleet: Fleet) -> None:
    queue = fleet.queue("q")
    ids = queue.push_many(rounds(5))
    with queue.claim() as claim:
        for n, task in enumerate(claim):
            if n == 3:
                claim.hand_back()
                break
            task.done(n)
    assert drain(queue) == ids[3:]
    assert [queue.result(id_).state for id_ in ids] == ["completed"] * 5


# ---- typed payloads ----


@pytest.mark.parametrize(
    ("kind", "payload"), [(Site, Site("a.com", ["x"])), (Page, Page("u", 3)), (int, 5), (list[str], ["a", "b"])]
)
def test_typed_payloads(fleet: Fleet, kind: type, payload: object) -> None:
    queue = fleet.queue("q", payload_type=kind)
    queue.push(payload)
    queue.push_many([payload, payload])
    with pytest.raises(Invalid):
        queue.push({"no": "such"})
    found = []
    while claim := queue.claim():
        with claim:
            for task in claim:
                found.append(task.payload)
                task.done()
    assert found == [payload] * 3


# ---- delay ----


def test_delay(fleet: Fleet) -> None:
    queue = fleet.queue("q")
    assert queue.push({"n": 1}, id="x", delay_s=2).created
    assert queue.stats().scheduled == 1
    assert queue.result("x").state == "scheduled"
    assert not queue.claim()
    with queue.claim(wait_s=WAIT_S) as claim:
        for task in claim:
            assert (task.id, task.payload) == ("x", {"n": 1})
            task.done()
    assert queue.stats().scheduled == 0
    assert not queue.push({"n": 2}, id="x", delay_s=2).created


# ---- what operators do ----


def test_stats_peek(fleet: Fleet) -> None:
    queue = fleet.queue("q")
    assert queue.stats() == Stats(0, 0, 0, 0, 0, None, False)
    assert queue.peek() == []
    queue.push({"n": 0}, id="x")
    queue.push_many(rounds(4), batch=2)
    stats = queue.stats()
    assert (stats.pending, stats.in_flight, stats.completed, stats.failed, stats.paused) == (5, 0, 0, 0, False)
    assert stats.oldest_s is not None
    assert 0 <= stats.oldest_s < 300
    assert sorted(peeked.payload["n"] for peeked in queue.peek(100)) == [0, 0, 1, 2, 3]
    assert len(queue.peek(2)) == 2


def test_retry_all_and_cancel(fleet: Fleet) -> None:
    queue = fleet.queue("q")
    for name in ("a", "b", "c"):
        queue.push({}, id=name)
    assert queue.cancel("c")
    assert not queue.cancel("c")
    while claim := queue.claim():
        with claim:
            for task in claim:
                task.fail("no")
    assert queue.result("c") == Result(
        "c", "cancelled", error="cancelled", worker=queue.result("c").worker, finished_at=queue.result("c").finished_at
    )
    assert sorted(queue.retry(all=True)) == ["a~1", "b~1"]
    assert sorted(drain(queue)) == ["a~1", "b~1"]
    assert queue.result("a").state == "completed"
    with pytest.raises(Missing):
        queue.cancel("nobody")
    with pytest.raises(Missing):
        queue.retry("nobody")
    assert queue.result("nobody").state == "unknown"


def test_cancel_while_it_runs(fleet: Fleet, url: str) -> None:
    queue = fleet.queue("q", ttl_s=3)
    queue.push({}, id="x")
    with queue.claim() as claim:
        for task in claim:
            assert limpet.open(url).queue("q").cancel("x")
            for _ in range(600):
                if task.lost:
                    break
                threading.Event().wait(0.05)
            assert task.lost
    assert queue.result("x").state == "cancelled"
    assert not queue.claim()


def test_pause_resume_purge(fleet: Fleet, url: str) -> None:
    queue = fleet.queue("q")
    queue.push({}, id="x")
    limpet.open(url).queue("q").pause()
    assert not queue.claim()
    assert not queue.claim(wait_s=1)
    assert queue.stats().paused
    queue.resume()
    other = limpet.open(url).queue("q")
    assert drain(other) == ["x"]
    queue.push({}, id="y")
    queue.push_many(rounds(3))
    queue.push({}, delay_s=1000)
    assert queue.purge() == 5
    assert drain(queue) == []
    assert (queue.stats().pending, queue.stats().scheduled) == (0, 0)


def left(fleet: Fleet) -> list[str]:
    """What is left of the queue, its bell aside."""
    return [stat.key for stat in fleet.store.list("queues/q") if not stat.key.endswith("/bell.json")]


def test_sweep_and_what_is_left(fleet: Fleet) -> None:
    queue = fleet.queue("q")
    assert isinstance(queue, BucketQueue)
    queue.push({}, id="x")
    ids = queue.push_many(rounds(2))
    drain(queue)
    queue.flush()
    assert queue.sweep() == 0
    assert left(fleet) == sorted(f"queues/q/completed/{name}.json" for name in ("x", ids[0].rpartition(".")[0]))


# ---- two processes ----


def test_a_dead_workers_task_is_taken_over(fleet: Fleet, url: str) -> None:
    """The claim is renewed by nobody: its heart is cut out, as kill -9 does."""
    queue = fleet.queue("q", ttl_s=2)
    assert isinstance(queue, BucketQueue)
    queue.push({}, id="x")
    dead = held(queue.claim())
    (zombie,) = dead
    queue._renewer.remove(dead)
    other = limpet.open(url).queue("q", ttl_s=2)
    with other.claim(wait_s=WAIT_S) as claim:
        assert claim.token == 2
        for task in claim:
            assert task.attempt == 1, "a first claim that dies charges nobody"
            zombie.done("late, but first")
            task.done("second")
    assert zombie.lost
    assert other.result("x").value == "late, but first"
    queue.flush()
    other.flush()
    assert left(fleet) == ["queues/q/completed/x.json"]


def test_a_claim_outlives_its_ttl_while_its_worker_lives(fleet: Fleet, url: str) -> None:
    queue, other = fleet.queue("q", ttl_s=1), limpet.open(url).queue("q", ttl_s=1)
    queue.push({}, id="x")
    with queue.claim() as claim:
        for task in claim:
            assert not other.claim(wait_s=4)
            assert not task.lost
            task.done()
    assert queue.result("x").state == "completed"


def test_slots(fleet: Fleet, url: str) -> None:
    queues = [limpet.open(url).queue("q", concurrency=2) for _ in range(3)]
    queues[0].push_many(rounds(6), batch=1)
    claims: list[Claim] = [claim for queue in queues for _ in range(2) if (claim := queue.claim())]
    assert len(claims) == 2
    for claim in claims:
        claim.hand_back()
    assert [bool(queue.claim()) for queue in queues].count(True) <= 2


def test_many_threads_do_each_task_once(fleet: Fleet) -> None:
    queue = fleet.queue("q")
    ids = [*queue.push_many(rounds(60), batch=3), *(queue.push({"n": n}).id for n in range(20))]
    ran: list[list[str]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda n=n: ran[n].extend(drain(queue))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = drain(queue)
    assert Counter(id_ for some in [*ran, left] for id_ in some) == Counter(ids)


def test_a_queue_has_a_provider_and_everything_that_there_is(fleet: Fleet, url: str) -> None:
    queue = fleet.queue("q")
    scheme = url.partition("://")[0]
    assert queue.provider == {"memory": "memory", "s3": "bucket"}.get(scheme, "filesystem")
    assert queue.supports == FEATURES
    assert queue.name == "q"
    assert "q" in repr(queue)
