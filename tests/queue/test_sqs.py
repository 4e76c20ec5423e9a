"""The queue on SQS, over HTTP against moto's server."""

from __future__ import annotations

import gc
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import ref

import pytest

import limpet
from limpet.kernel.errors import (
    Denied,
    Invalid,
    LimpetError,
    Missing,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from limpet.kernel.runtime import SystemRuntime, ThreadHandle, system
from limpet.queue.api import Claim, Fail, Policy, Queue, Retry, Task
from limpet.queue.sqs import SqsClaim, SqsQueue, SqsTask, connect
from limpet.queue.sqs.client import BATCH_BYTES_MAX, SqsClient, pack
from limpet.worker import Job, Worker
from support.servers.moto import REGION, Answer, Body, Meddler, Moto, failing, refusing
from support.servers.process import NotInstalled

KIB = 1024
QUICK = Policy(max_attempts=3, ttl_s=2.0, backoff_s=0.0)
STEADY = Policy(max_attempts=3, ttl_s=60.0, backoff_s=0.0)
PATIENCE_S = 60.0


# ---- the world ----


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """The endpoint of a moto server."""
    try:
        with Moto() as server:
            yield server.bucket.env["LIMPET_SQS_ENDPOINT"]
    except NotInstalled as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials for moto, and nothing of the machine's own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))


class Hasty(SystemRuntime):
    """Rests a hundredth of what it should."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds / 100)


class Skipping(SystemRuntime):
    """A clock that stands almost still, and jumps over every wait. No thread, so no heartbeat but the test's own."""

    skipped_s = 0.0

    def spawn(self, work: Callable[[], None], *, name: str) -> ThreadHandle:
        return threading.Thread()

    def elapsed_s(self) -> float:
        return super().elapsed_s() / 1000 + self.skipped_s

    def sleep(self, seconds: float) -> None:
        self.skipped_s += seconds


HASTY = Hasty()


@dataclass(eq=False)
class World:
    """Queues below one prefix, and a note of every request that their clients make."""

    endpoint: str
    client: Any
    """A client of the test's own, whose requests are not noted."""
    prefix: str = field(default_factory=lambda: f"t{uuid4().hex[:12]}")
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    wires: list[SqsClient] = field(default_factory=list)

    def wire(self, endpoint: str | None = None, runtime: SystemRuntime | None = None) -> SqsClient:
        wire = wire_to(endpoint or self.endpoint, runtime or system())
        wire.client.meta.events.register("before-parameter-build.sqs", self._note, unique_id=self.prefix)
        self.wires.append(wire)
        return wire

    def queue(self, name: str = "jobs", *, wire: SqsClient | None = None, **settings: Any) -> SqsQueue:
        runtime = settings.pop("runtime", system())
        return SqsQueue(wire or self.wire(), name, runtime, prefix=self.prefix, **{"policy": STEADY, **settings})

    def ready(self, name: str = "jobs", **settings: Any) -> SqsQueue:
        """A queue whose SQS queues exist and are known, so that what follows is what it costs."""
        queue = self.queue(name, **settings)
        queue._main(create=True)
        queue._failed(create=True)
        self.requests.clear()
        return queue

    def spoilt(self, meddler: Meddler, **settings: Any) -> SqsQueue:
        """A `ready` queue behind a middleman, whose client does not rest long between its tries."""
        return self.ready(wire=self.wire(meddler.endpoint, HASTY), **settings)

    def spent(self) -> list[str]:
        """The requests since the last look."""
        names = [name for name, _ in self.requests]
        self.requests.clear()
        return names

    def url(self, name: str = "jobs") -> str:
        return str(self.client.get_queue_url(QueueName=f"{self.prefix}_{name}")["QueueUrl"])

    def failed(self, name: str = "jobs") -> list[dict[str, Any]]:
        """Take out what is in the failed queue."""
        found: list[dict[str, Any]] = []
        url = self.url(f"{name}-failed")
        while messages := self.client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            for each in messages:
                found.append(json.loads(each["Body"]))
                self.client.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
        return found

    def _note(self, params: dict[str, Any], model: Any, **_: object) -> None:
        self.requests.append((model.name, params))

    def close(self) -> None:
        for wire in self.wires:
            wire.client.meta.events.unregister("before-parameter-build.sqs", self._note, unique_id=self.prefix)


clients: list[SqsClient] = []


@cache
def wire_to(endpoint: str, runtime: SystemRuntime) -> SqsClient:
    """Clients are dear to make: one for each server."""
    clients.append(SqsClient(runtime, region=REGION, endpoint_url=endpoint))
    return clients[-1]


@pytest.fixture(scope="module")
def client(moto: str) -> Iterator[Any]:
    """A client of the tests' own; at the end all clients are closed."""
    made = import_module("boto3").client(
        "sqs", region_name=REGION, endpoint_url=moto, aws_access_key_id="test", aws_secret_access_key="test"
    )
    yield made
    made.close()
    for wire in clients:
        wire.client.close()


@pytest.fixture
def world(moto: str, client: Any) -> Iterator[World]:
    world = World(moto, client)
    yield world
    world.close()


@pytest.fixture(scope="module")
def middleman(moto: str) -> Iterator[Meddler]:
    with Meddler(moto) as meddler:
        yield meddler


@pytest.fixture
def meddler(middleman: Meddler) -> Iterator[Meddler]:
    """Between a client and moto."""
    yield middleman
    middleman.forget()


def poll(ready: Callable[[], object], what: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < until_s, f"{what}: not within {PATIENCE_S:g} s"
        time.sleep(0.01)


def take(queue: SqsQueue, wait_s: float = 20.0) -> tuple[SqsClaim, SqsTask]:
    """Claim, and take the first task."""
    claim = queue.claim(wait_s=wait_s)
    assert isinstance(claim, SqsClaim)
    return claim, next(iter(claim))


def drain(queue: SqsQueue) -> list[Any]:
    """The payloads of all that waits, done."""
    found = []
    while claim := queue.claim():
        with claim:
            for task in claim:
                found.append(task.payload)
                task.done()
    return found


def finish(queue: SqsQueue) -> Any:
    """The payload of the next task, done."""
    _, task = take(queue)
    task.done()
    return task.payload


def test_it_fits_the_protocol(world: World) -> None:
    queue: Queue = world.queue()
    assert (queue.name, queue.provider, queue.policy) == ("jobs", "sqs", STEADY)
    assert queue.change_token() is None
    queue.push({"n": 1})
    claim: Claim = queue.claim()
    tasks: list[Task] = [*claim]
    assert [task.payload for task in tasks] == [{"n": 1}]
    claim.hand_back()


# ---- what things cost ----


def test_a_task_takes_three_requests_from_push_to_done(world: World) -> None:
    queue = world.ready()
    pushed = queue.push({"domain": "a.com"})
    assert pushed.created
    assert world.spent() == ["SendMessageBatch"]
    with queue.claim() as claim:
        assert world.spent() == ["ReceiveMessage"]
        assert claim
        assert claim.token == 0
        for task in claim:
            assert (task.id, task.payload, task.attempt, task.lost) == (pushed.id, {"domain": "a.com"}, 1, False)
            task.done()
            assert world.spent() == ["DeleteMessageBatch"]
    assert world.spent() == []
    assert not queue.claim()
    assert world.spent() == ["ReceiveMessage"]


def test_the_first_use_makes_the_queues_and_the_next_process_finds_them(world: World) -> None:
    world.queue().push({})
    assert world.spent() == ["GetQueueUrl", "CreateQueue", "SendMessageBatch"]
    with world.queue().claim() as claim:
        assert claim
    assert world.spent()[:4] == ["GetQueueUrl", "GetQueueUrl", "CreateQueue", "ReceiveMessage"]
    names = ["MessageRetentionPeriod", "VisibilityTimeout"]
    for name in ("jobs", "jobs-failed"):
        found = world.client.get_queue_attributes(QueueUrl=world.url(name), AttributeNames=names)["Attributes"]
        assert found == {"MessageRetentionPeriod": str(14 * 86400), "VisibilityTimeout": "60"}
    world.queue().push({})
    assert world.spent() == ["GetQueueUrl", "SendMessageBatch"]


@pytest.mark.parametrize("look", [SqsQueue.stats, SqsQueue.purge, lambda queue: queue.retry(all=True)])
def test_a_look_at_a_misspelt_queue_makes_none(world: World, look: Callable[[SqsQueue], object]) -> None:
    with pytest.raises(Missing, match=f"no SQS queue '{world.prefix}_jobs'"):
        look(world.queue())
    assert world.spent() == ["GetQueueUrl"]


def test_a_queue_that_was_only_pushed_to_has_stats(world: World) -> None:
    queue = world.queue()
    queue.push({})
    stats = queue.stats()
    assert (stats.pending, stats.failed) == (1, 0)
    assert queue.retry(all=True) == []


def test_two_that_create_a_queue_with_other_settings_both_get_it(world: World, meddler: Meddler) -> None:
    world.queue(policy=QUICK).push({"n": 1})
    late = world.queue(wire=world.wire(meddler.endpoint, HASTY))
    meddler.next("GetQueueUrl", failing(400, "QueueDoesNotExist"))
    late.push({"n": 2})
    assert len(drain(late)) == 2


def test_many_tasks_go_ten_to_a_request(world: World) -> None:
    queue = world.ready()
    ids = queue.push_many({"n": n} for n in range(25))
    assert world.spent() == ["SendMessageBatch"] * 3
    assert len(set(ids)) == 25
    assert sorted(payload["n"] for payload in drain(queue)) == [*range(25)]


def test_batch_is_an_upper_bound(world: World) -> None:
    queue = world.ready()
    queue.push_many([{"n": n} for n in range(7)], batch=3)
    assert sorted(len(sent["Entries"]) for _, sent in world.requests) == [1, 3, 3]
    with pytest.raises(Invalid):
        queue.push_many([{}], batch=0)
    world.spent()
    assert queue.push_many([]) == []
    assert world.spent() == []


def test_large_tasks_go_fewer_to_a_request(world: World) -> None:
    queue = world.ready()
    queue.push_many([{"n": n, "fill": "x" * 100 * KIB} for n in range(5)])
    assert sorted(len(sent["Entries"]) for _, sent in world.requests) == [1, 2, 2]
    assert sorted(payload["n"] for payload in drain(queue)) == [*range(5)]


@pytest.mark.parametrize(
    ("sizes", "most", "packed"),
    [
        ([], 10, []),
        ([1] * 11, 10, [10, 1]),
        ([1] * 11, 100, [10, 1]),
        ([1] * 5, 2, [2, 2, 1]),
        ([BATCH_BYTES_MAX, 1], 10, [1, 1]),
        ([BATCH_BYTES_MAX - 1, 1, 1], 10, [2, 1]),
        ([BATCH_BYTES_MAX + 1, 1], 10, [1, 1]),
    ],
)
def test_packing(sizes: list[int], most: int, packed: list[int]) -> None:
    batches = pack(["x" * size for size in sizes], most)
    assert [len(batch) for batch in batches] == packed
    assert [n for batch in batches for n in batch] == [*range(len(sizes))]


def test_size_is_in_bytes() -> None:
    assert [len(batch) for batch in pack(["é" * (BATCH_BYTES_MAX // 2), "x"], 10)] == [1, 1]


def test_ten_to_a_claim_take_a_third_of_a_request_each(world: World) -> None:
    queue = world.ready(receive=10)
    assert "attempts" not in queue.supports
    queue.push_many([{"n": n} for n in range(10)])
    with queue.claim() as claim:
        for task in claim:
            task.done()
    assert world.spent() == ["SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch"]
    assert queue.stats().pending == 0


@pytest.mark.parametrize(
    ("ttl_s", "wait_s", "polls"),
    [
        (60, 0.0, [0]),
        (60, 0.5, [0, 0]),
        (60, 3.0, [3]),
        (60, 20.0, [20]),
        (60, 45.5, [20, 20, 5, 0]),
        (10, 12.0, [5, 5, 2]),
        (1, 2.0, [1, 1]),
    ],
)
def test_waits_are_whole_polls_of_at_most_twenty_seconds(
    world: World, meddler: Meddler, ttl_s: float, wait_s: float, polls: list[int]
) -> None:
    runtime = Skipping()
    queue = world.ready(policy=Policy(ttl_s=ttl_s), runtime=runtime, wire=world.wire(meddler.endpoint))

    def nothing(request: Body, forward: object) -> Answer:
        runtime.skipped_s += request["WaitTimeSeconds"]
        return 200, {}

    meddler.always("ReceiveMessage", nothing)
    began_s = runtime.elapsed_s()
    assert not queue.claim(wait_s=wait_s)
    assert [asked["WaitTimeSeconds"] for _, asked in world.requests] == polls
    assert runtime.elapsed_s() - began_s == pytest.approx(wait_s, abs=0.1)


def test_a_process_that_was_stopped_while_it_asked_does_not_start_what_it_got(world: World, meddler: Meddler) -> None:
    runtime = Skipping()
    queue = world.ready(runtime=runtime, wire=world.wire(meddler.endpoint))
    queue.push({"n": 1})

    def stopped(request: Body, forward: Any) -> Answer:
        runtime.skipped_s += 100
        answer: Answer = forward(request)
        return answer

    meddler.next("ReceiveMessage", stopped)
    with queue.claim() as claim:
        assert claim.lost
        assert [*claim] == []


def test_a_server_that_does_not_wait_is_not_asked_without_pause(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler)
    meddler.always("ReceiveMessage", lambda request, forward: (200, {}))
    queue.claim(wait_s=2.0)
    assert 2 <= world.spent().count("ReceiveMessage") <= 4


def test_a_claim_that_waits_gets_what_comes(world: World) -> None:
    queue = world.ready()
    claims: list[Any] = []
    waiting = threading.Thread(target=lambda: claims.append(queue.claim(wait_s=math.inf)))
    waiting.start()
    poll(lambda: "ReceiveMessage" in [name for name, _ in world.requests], "it asks")
    queue.push({"n": 1})
    waiting.join(PATIENCE_S)
    assert [task.payload for task in claims[0]] == [{"n": 1}]
    claims[0].hand_back()


# ---- input ----

DEEP: dict[str, Any] = {}
for _ in range(100):
    DEEP = {"a": DEEP}
BAD = {
    "nan": {"x": math.nan},
    "large": {"x": "y" * 256 * KIB},
    "just too large with its envelope": {"x": "y" * 253 * KIB},
    "deep": DEEP,
    "key": {1: 2},
    "object": {"x": object()},
    "surrogate": {"x": "\ud800"},
    "no dict": [1, 2],
}


@pytest.mark.parametrize("payload", BAD.values(), ids=BAD.keys())
def test_bad_payloads_are_refused_before_anything_is_sent(world: World, payload: Any) -> None:
    queue = world.queue()
    with pytest.raises(Invalid) as one:
        queue.push(payload)
    with pytest.raises(Invalid):
        queue.push_many([{"fine": 1}] * 20 + [payload])
    assert world.spent() == []
    assert "\n" not in str(one.value)


def test_what_json_can_hold_comes_back_equal(world: World) -> None:
    queue = world.ready()
    payload = {"text": "\x00\x1f\x7f\ufffe\uffff\U0001f600é\u2028", "n": [1, -2.5, True, None], "fill": "z" * 240 * KIB}
    queue.push(payload)
    sent = world.requests[-1][1]["Entries"][0]["MessageBody"]
    assert not {"\ufffe", "\uffff"} & set(sent), "SQS does not take these"
    assert drain(queue) == [payload]


@dataclass
class Site:
    domain: str
    depth: int = 0


def test_payloads_may_be_typed(world: World) -> None:
    queue = world.ready(payload_type=Site)
    queue.push(Site("a.com", 2))
    assert drain(queue) == [Site("a.com", 2)]
    world.queue().push({"domain": 7})
    assert drain(queue) == []
    [record] = world.failed()
    assert record["payload"] == {"domain": 7}
    assert "does not fit" in record["error"]


@pytest.mark.parametrize("delay_s", [-1, 901, math.nan, math.inf])
def test_delays_that_sqs_cannot_do_are_refused(world: World, delay_s: float) -> None:
    queue = world.queue()
    with pytest.raises(Invalid, match="900"):
        queue.push({}, delay_s=delay_s)
    assert world.spent() == []


def test_a_delayed_task_waits(world: World) -> None:
    queue = world.ready()
    queue.push({"n": 1}, delay_s=1.2)
    assert not queue.claim()
    assert queue.stats().scheduled == 1
    assert finish(queue) == {"n": 1}


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("", ""),
        ("", "a.b"),
        ("", "jobs.fifo"),
        ("", "é"),
        ("", "a/b"),
        ("", "jobs-failed"),
        ("a_b", "c"),
        ("p", "n" * 72),
    ],
)
def test_names_that_sqs_cannot_have_are_refused(prefix: str, name: str) -> None:
    with pytest.raises(Invalid):
        connect(name, prefix=prefix, region=REGION)


def test_a_ttl_that_sqs_cannot_do_is_refused() -> None:
    with pytest.raises(Invalid, match="43200"):
        connect("jobs", policy=Policy(ttl_s=50_000), region=REGION)


def test_other_settings_are_checked() -> None:
    with pytest.raises(Invalid, match="receive"):
        connect("jobs", receive=11, region=REGION)
    with pytest.raises(Unsupported, match="slots"):
        connect("jobs", policy=Policy(concurrency=2), region=REGION)


def test_prefixes_keep_fleets_apart(world: World) -> None:
    world.queue().push({"n": 1})
    other = SqsQueue(world.wire(), "jobs", system(), prefix=f"{world.prefix}x")
    assert not other.claim()


# ---- what SQS cannot do ----

CANNOT: dict[str, Callable[[SqsQueue], object]] = {
    "ids": lambda queue: queue.push({}, id="a.com@2026-11"),
    "peek": lambda queue: queue.peek(),
    "results": lambda queue: queue.result("x", wait_s=1),
    "results of many": lambda queue: queue.results(["x"]),
    "results, waiting": lambda queue: queue.wait(["x"], timeout_s=1),
    "cancel": lambda queue: queue.cancel("x"),
    "pause": lambda queue: queue.pause(),
    "resume": lambda queue: queue.resume(),
    "steps": lambda queue: queue.signal("x", "approved"),
}


@pytest.mark.parametrize("feature", CANNOT)
def test_what_it_cannot_do_it_says(world: World, feature: str) -> None:
    queue = world.queue()
    with pytest.raises(Unsupported) as error:
        CANNOT[feature](queue)
    assert "sqs" in str(error.value)
    assert "bucket" in error.value.hint
    assert ("pause" if feature == "resume" else feature.replace(",", "").split()[0]) not in queue.supports
    assert world.spent() == []


def test_a_result_is_refused_and_the_task_is_still_ours(world: World) -> None:
    queue = world.ready()
    queue.push({})
    _, task = take(queue)
    with pytest.raises(Unsupported, match="results"):
        task.done(result=1)
    assert not task.lost
    task.done()
    assert queue.stats().pending == 0


DURABLE: dict[str, Callable[[], object]] = {
    "step": lambda: limpet.step(int, "7", name="seven"),
    "sleep": lambda: limpet.sleep(1),
    "gather": lambda: limpet.gather([]),
    "wait_signal": lambda: limpet.wait_signal("approved"),
    "version": lambda: limpet.version("a change"),
}


@pytest.mark.parametrize("verb", DURABLE)
def test_a_durable_task_is_refused_with_the_reason(world: World, verb: str) -> None:
    queue = world.ready(policy=Policy(max_attempts=1, ttl_s=60.0))
    assert "steps" not in queue.supports
    told: list[str] = []

    def handle(payload: Any) -> None:
        try:
            DURABLE[verb]()
        except Unsupported as error:
            told.append(f"{error} {error.hint}")

    queue.push({})
    Worker([Job(queue, handle)], system(), burst=True).run()
    [said] = told
    assert "lives in sqs, which has no steps" in said
    assert "a bucket or a directory has everything" in said


def test_a_durable_task_of_another_queue_pushes_in_a_step(world: World) -> None:
    """A push to SQS cannot be made once: each attempt would push again."""
    queue = world.ready()
    fleet = limpet.open("memory://")
    told: list[str] = []

    @fleet.task("report", durable=True, backoff_s=0.0)
    def report() -> str:
        for push in (lambda: queue.push({"n": 1}), lambda: queue.push_many([{"n": 1}])):
            with suppress(Unsupported) as refused:
                push()
                raise AssertionError(refused)
        try:
            queue.push({"n": 1})
        except Unsupported as error:
            told.append(f"{error} {error.hint}")
        pushed = limpet.step(queue.push, {"n": 2})
        if len(told) == 1:
            raise RuntimeError("again")
        return pushed.id

    one = report.push()
    Worker([report.job], system(), burst=True, until_empty=True).run()
    assert "each attempt of a durable task would push again" in told[0]
    assert "limpet.step(queue.push, payload)" in told[0]
    assert queue.stats().pending == 1
    _, task = take(queue)
    assert (task.payload, task.id) == ({"n": 2}, one.result().value)


# ---- verdicts ----


def test_a_retry_comes_back_with_one_attempt_more(world: World) -> None:
    queue = world.ready()
    pushed = queue.push({"n": 1})
    _, task = take(queue)
    world.spent()
    task.retry()
    assert world.spent() == ["ChangeMessageVisibilityBatch"]
    _, task = take(queue)
    assert (task.id, task.attempt) == (pushed.id, 2)
    task.retry(after_s=600)
    assert not queue.claim()
    assert queue.stats().in_flight == 1


def test_the_back_off_is_the_policys(world: World) -> None:
    queue = world.ready(policy=Policy(max_attempts=9, backoff_s=100, backoff_max_s=150))
    queue.push({})
    _, task = take(queue)
    world.requests.clear()
    task.retry()
    [(_, asked)] = world.requests
    assert 50 <= asked["Entries"][0]["VisibilityTimeout"] <= 100
    world.client.change_message_visibility_batch(
        **asked | {"Entries": [asked["Entries"][0] | {"VisibilityTimeout": 0}]}
    )
    _, task = take(queue)
    world.requests.clear()
    task.retry()
    assert 75 <= world.requests[0][1]["Entries"][0]["VisibilityTimeout"] <= 150


@pytest.mark.parametrize("after_s", [-1, math.nan, 43_200])
def test_a_retry_that_sqs_cannot_do_is_refused_and_the_task_still_ours(world: World, after_s: float) -> None:
    queue = world.ready()
    queue.push({})
    _, task = take(queue)
    with pytest.raises(Invalid, match="12 hours"):
        task.retry(after_s=after_s)
    task.done()
    assert queue.stats().pending == 0


def test_the_last_attempt_ends_among_the_failed(world: World) -> None:
    queue = world.ready(policy=Policy(max_attempts=2, backoff_s=0))
    pushed = queue.push({"n": 1})
    take(queue)[1].retry(error="first")
    _, task = take(queue)
    world.spent()
    task.retry(error="second", traceback="Traceback ...")
    assert world.spent() == ["SendMessageBatch", "DeleteMessageBatch"]
    stats = queue.stats()
    assert (stats.pending, stats.failed) == (0, 1)
    [record] = world.failed()
    wanted = {
        "id": pushed.id,
        "payload": {"n": 1},
        "error": "second",
        "traceback": "Traceback ...",
        "attempts": 2,
        "worker": system().label,
        "worker_id": system().owner,
    }
    assert {name: record[name] for name in wanted} == wanted


def test_fail_ends_it_at_once(world: World) -> None:
    queue = world.ready()
    queue.push({"n": 1})
    claim, task = take(queue)
    world.spent()
    task.fail("gone")
    assert world.spent() == ["SendMessageBatch", "DeleteMessageBatch"]
    claim.hand_back()
    assert not queue.claim()
    [record] = world.failed()
    assert (record["error"], record["attempts"]) == ("gone", 1)


def test_a_second_verdict_changes_nothing(world: World) -> None:
    queue = world.ready()
    queue.push({"n": 1})
    _, task = take(queue)
    task.retry(after_s=0)
    world.spent()
    task.fail("no")
    task.retry()
    task.done()
    assert world.spent() == []
    assert finish(queue) == {"n": 1}


def fall(queue: SqsQueue, error: BaseException, wait_s: float = 0.0) -> None:
    """A handler that raises."""
    with queue.claim(wait_s=wait_s) as claim:
        for _ in claim:
            raise error


def test_an_error_in_the_block_is_the_verdict(world: World) -> None:
    queue = world.ready(policy=Policy(max_attempts=1))
    queue.push({"n": 1})
    with pytest.raises(ValueError, match="boom"):
        fall(queue, ValueError("boom"))
    [record] = world.failed()
    assert record["error"] == "ValueError: boom"
    assert "raise error\nValueError: boom" in record["traceback"]


def test_retry_and_fail_may_be_raised(world: World) -> None:
    queue = world.ready()
    queue.push({"n": 1})
    with pytest.raises(Retry):
        fall(queue, Retry("later", after_s=0))
    with pytest.raises(Fail):
        fall(queue, Fail("gone"), wait_s=5)
    [record] = world.failed()
    assert (record["error"], record["attempts"]) == ("gone", 2)


def test_a_task_without_a_verdict_is_retried(world: World) -> None:
    queue = world.ready(policy=Policy(max_attempts=1))
    queue.push({"n": 1})
    with queue.claim() as claim:
        assert len([*claim]) == 1
    [record] = world.failed()
    assert "without a verdict" in record["error"]


@pytest.mark.parametrize("signal", [KeyboardInterrupt(), SystemExit(0)])
def test_an_interrupted_task_is_handed_back(world: World, signal: BaseException) -> None:
    queue = world.ready(policy=Policy(max_attempts=1))
    queue.push({"n": 1})
    world.spent()
    with pytest.raises(type(signal)):
        fall(queue, signal)
    assert world.spent() == ["ReceiveMessage", "ChangeMessageVisibilityBatch"]
    assert finish(world.queue()) == {"n": 1}


def test_what_is_handed_back_is_there_for_others_at_once(world: World) -> None:
    queue, other = world.ready(), world.ready()
    queue.push({"n": 1})
    claim, task = take(queue)
    assert (claim.lost, task.lost) == (False, False)
    claim.hand_back()
    assert (claim.lost, task.lost) == (True, True)
    _, again = take(other)
    assert again.attempt == 2
    task.fail("not ours to say")
    task.retry()
    assert not again.lost
    again.done()
    assert world.failed() == []


def test_a_task_that_was_handed_back_may_still_be_done(world: World) -> None:
    queue = world.ready()
    queue.push({"n": 1})
    claim, task = take(queue)
    claim.hand_back()
    task.done()
    assert queue.stats().pending == 0


def test_tasks_that_were_not_handed_out_go_back(world: World) -> None:
    queue = world.ready(receive=10)
    queue.push_many([{"n": n} for n in range(10)])
    world.spent()
    with queue.claim() as claim:
        for done, task in enumerate(claim):
            if done == 3:
                task.retry(after_s=600)
                break
            task.done()
    assert Counter(world.spent()) == {
        "ReceiveMessage": 1,
        "ChangeMessageVisibilityBatch": 2,
        "DeleteMessageBatch": 1,
    }
    assert len(drain(queue)) == 6
    assert queue.stats().pending == 1


# ---- heartbeats ----


def test_a_long_task_is_kept_from_others(world: World) -> None:
    queue, other = world.ready(policy=QUICK), world.ready(policy=QUICK)
    queue.push({"n": 1})
    claim, task = take(queue)
    assert not other.claim(wait_s=1.5 * QUICK.ttl_s)
    assert not task.lost
    beats = [asked for name, asked in world.requests if name == "ChangeMessageVisibilityBatch"]
    assert len(beats) >= 2
    assert {renew["Entries"][0]["VisibilityTimeout"] for renew in beats} == {2}
    task.done()
    claim.hand_back()
    world.spent()
    assert not other.claim(wait_s=QUICK.ttl_s / 2)
    assert set(world.spent()) == {"ReceiveMessage"}, "what has ended is not renewed"


def test_nothing_is_kept_past_its_time(world: World) -> None:
    """The worker hangs; its heartbeat does not help it (F16)."""
    policy = Policy(max_attempts=3, ttl_s=1, timeout_s=0.1)
    queue, other = world.ready(policy=policy), world.ready(policy=policy)
    queue.push({"n": 1})
    _, task = take(queue)
    world.requests.clear()
    theirs, again = take(other)
    assert (again.id, again.attempt) == (task.id, 2)
    poll(lambda: task.lost, "the first one knows")
    assert "ChangeMessageVisibilityBatch" not in world.spent()
    task.fail("not ours to say")
    task.retry()
    assert world.failed() == []
    with suppress(LimpetError):
        theirs.renew()
    again.done()
    assert queue.stats().pending == 0


def test_the_time_of_a_task_counts_from_when_it_was_handed_out(world: World) -> None:
    runtime = Skipping()
    queue = world.ready(policy=Policy(ttl_s=60, timeout_s=10), receive=2, runtime=runtime)
    queue.push_many([{"n": 1}, {"n": 2}])
    claim = queue.claim()
    assert isinstance(claim, SqsClaim)
    tasks = iter(claim)
    first = next(tasks)
    runtime.skipped_s += 20
    world.spent()
    claim.renew()
    assert world.spent() == [], "the first one runs for too long, and whatever waits behind it is let go too"
    first.done()
    next(tasks)
    claim.renew()
    assert world.spent() == ["DeleteMessageBatch", "ChangeMessageVisibilityBatch"]
    claim.hand_back()


@pytest.mark.parametrize("end", [SqsClaim.hand_back, lambda claim: [task.done() for task in claim]])
def test_a_claim_that_is_over_is_forgotten(world: World, end: Callable[[SqsClaim], object]) -> None:
    queue = world.ready()
    queue.push({"n": 1})
    claim = queue.claim()
    assert isinstance(claim, SqsClaim)
    end(claim)
    forgotten = ref(claim)
    del claim
    gc.collect()
    assert forgotten() is None, "the heartbeat holds on to it"


def test_a_lost_receipt_is_noticed_by_the_next_beat(world: World) -> None:
    queue = world.ready()
    queue.push({"n": 1})
    claim, task = take(queue)
    world.client.purge_queue(QueueUrl=world.url())
    claim.renew()
    assert task.lost
    assert claim.lost
    world.spent()
    claim.renew()
    task.retry()
    task.fail("not ours to say")
    assert world.spent() == []
    assert world.failed() == []


EXPIRED = (
    "Value AQ{} for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for "
    + ("visibility timeout change.")
)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("InvalidParameterValue", EXPIRED.format("EB" * 200)),
        ("ReceiptHandleIsInvalid", "The input receipt handle is invalid."),
        ("AWS.SimpleQueueService.MessageNotInflight", "not in flight"),
    ],
)
def test_all_the_ways_in_which_sqs_says_that_a_receipt_is_over(
    world: World, meddler: Meddler, code: str, message: str
) -> None:
    queue = world.spoilt(meddler)
    queue.push({"n": 1})
    claim, task = take(queue)
    over = refusing(lambda entry: True, code, ours=True, message=message)
    meddler.next("ChangeMessageVisibilityBatch", over)
    claim.renew()
    assert task.lost
    meddler.next("DeleteMessageBatch", over)
    task.done()


def test_a_beat_that_fails_loses_nothing_yet(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler)
    queue.push({"n": 1})
    claim, task = take(queue)
    meddler.next("ChangeMessageVisibilityBatch", failing(503, "ServiceUnavailable"))
    with pytest.raises(OutcomeUnknown):
        claim.renew()
    meddler.next("ChangeMessageVisibilityBatch", refusing(lambda entry: True))
    with pytest.raises(Unavailable, match=task.id):
        claim.renew()
    assert not task.lost
    claim.renew()
    task.done()


def test_beats_that_fail_are_made_again_until_one_works(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler, policy=Policy(ttl_s=3))
    queue.push({"n": 1})
    _, task = take(queue)
    meddler.next("ChangeMessageVisibilityBatch", *[failing(503, "ServiceUnavailable")] * 3)
    assert not world.ready(policy=Policy(ttl_s=3)).claim(wait_s=4)
    assert not task.lost
    task.done()


def test_a_yes_that_comes_too_late_is_none(world: World, meddler: Meddler) -> None:
    """SQS says yes to an expired receipt too."""
    queue = world.spoilt(meddler, policy=Policy(ttl_s=1))
    queue.push({"n": 1})
    claim, task = take(queue)
    answered: list[Body] = []

    def late(request: Body, forward: object) -> Answer:
        poll(lambda: task.lost, "it runs out")
        answered.append(request)
        return 200, {"Successful": [{"Id": each["Id"]} for each in request["Entries"]]}

    meddler.always("ChangeMessageVisibilityBatch", late)
    poll(lambda: answered, "the heartbeat has its answer")
    claim.renew()
    assert task.lost
    claim.hand_back()


def test_what_is_done_is_deleted_while_the_next_task_runs(world: World) -> None:
    queue = world.ready(policy=QUICK, receive=2)
    queue.push_many([{"n": 1}, {"n": 2}])
    claim = queue.claim()
    tasks = iter(claim)
    next(tasks).done()
    next(tasks)
    world.spent()
    poll(lambda: "DeleteMessageBatch" in [name for name, _ in world.requests], "the heartbeat deletes it")
    poll(lambda: queue.stats().pending == 1, "one is left")
    claim.hand_back()


# ---- more than one, and the killed ----


def start(how: str, world: World, ttl_s: float) -> subprocess.Popen[str]:
    script = Path(__file__).parent / "sqs_worker.py"
    return subprocess.Popen(
        [sys.executable, str(script), how, world.endpoint, world.prefix, "jobs", str(ttl_s)],
        stdout=subprocess.PIPE,
        text=True,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_task_of_a_killed_worker_goes_to_another(world: World) -> None:
    queue = world.ready(policy=QUICK)
    pushed = queue.push({"n": 1})
    process = start("hang", world, QUICK.ttl_s)
    try:
        assert first_line(process) == f"{pushed.id} 1"
    finally:
        process.kill()
        process.communicate()
    _, task = take(queue)
    assert (task.id, task.attempt) == (pushed.id, 2)
    task.done()


def test_a_task_that_kills_its_worker_ends_among_the_failed(world: World) -> None:
    policy = Policy(max_attempts=2, ttl_s=1)
    queue = world.ready(policy=policy)
    pushed = queue.push({"n": 1})
    for attempt in (1, 2):
        process = start("die", world, policy.ttl_s)
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert said.strip() == f"{pushed.id} {attempt}"
        assert process.returncode == -9
    poll(lambda: not queue.claim() and queue.stats().failed, "it is given up")
    [record] = world.failed()
    assert (record["id"], record["payload"], record["attempts"]) == (pushed.id, {"n": 1}, 3)
    assert "delivered 2 times" in record["error"]


def test_two_consumers_share_the_work(world: World) -> None:
    queue = world.ready(policy=QUICK)
    ids = queue.push_many([{"n": n} for n in range(60)])
    done: list[list[str]] = [[], []]
    both_have_some = threading.Barrier(2, timeout=PATIENCE_S)

    def consume(mine: list[str], receive: int) -> None:
        consumer = world.queue(policy=QUICK, receive=receive)
        while claim := consumer.claim(wait_s=1):
            if not mine:
                both_have_some.wait()
            with claim:
                for task in claim:
                    mine.append(task.id)
                    task.done()

    consumers = [threading.Thread(target=consume, args=(mine, n)) for mine, n in zip(done, (1, 3), strict=True)]
    for each in consumers:
        each.start()
    for each in consumers:
        each.join(PATIENCE_S)
    assert set(done[0]) | set(done[1]) == set(ids)
    poll(lambda: drain(queue) == [] and queue.stats().pending == 0, "what moto delivered twice is gone too")
    assert queue.stats().failed == 0


# ---- the failed ----


def fail_some(queue: SqsQueue, n: int) -> list[str]:
    ids = queue.push_many([{"n": n} for n in range(n)])
    for _ in range(n):
        take(queue)[1].fail("no")
    return [*ids]


def test_all_failed_tasks_get_another_life(world: World) -> None:
    queue = world.ready()
    ids = fail_some(queue, 12)
    assert queue.stats().failed == 12
    world.spent()
    again = queue.retry(all=True)
    assert sorted(again) == sorted(f"{id_}~1" for id_ in ids)
    assert Counter(world.spent()) == {"ReceiveMessage": 3, "SendMessageBatch": 2, "DeleteMessageBatch": 2}
    assert queue.stats().failed == 0
    claim, task = take(queue)
    assert task.attempt == 1
    assert task.id in again
    task.fail("again")
    assert queue.retry(all=True) == [f"{task.id.partition('~')[0]}~2"]
    claim.hand_back()
    assert len(drain(queue)) == 12


def test_one_failed_task_gets_another_life_and_the_others_stay(world: World) -> None:
    queue = world.ready()
    ids = fail_some(queue, 12)
    assert queue.retry(ids[7]) == [f"{ids[7]}~1"]
    assert drain(queue) == [{"n": 7}]
    assert queue.retry(ids[3]) == [f"{ids[3]}~1"], "the others are not hidden"
    with pytest.raises(Missing, match="nobody"):
        queue.retry("nobody")
    assert queue.stats().failed == 10


def test_a_failure_that_was_written_twice_is_retried_once(world: World) -> None:
    queue = world.ready()
    fail_some(queue, 1)
    url = world.url("jobs-failed")
    [record] = world.failed()
    for _ in range(12):
        world.client.send_message(QueueUrl=url, MessageBody=json.dumps(record))
    assert len(queue.retry(all=True)) == 1
    assert drain(queue) == [{"n": 0}]
    assert queue.stats().failed == 0


def test_a_task_that_fails_again_meanwhile_is_not_retried_for_ever(world: World, meddler: Meddler) -> None:
    queue = world.ready()
    [id_] = fail_some(queue, 1)
    spoilt = world.spoilt(meddler)

    def fails_again(request: Body, forward: Any) -> Answer:
        answer: Answer = forward(request)
        take(queue)[1].fail("again")
        return answer

    meddler.always("SendMessageBatch", fails_again)
    assert spoilt.retry(all=True) == [f"{id_}~1"]
    assert queue.stats().failed == 1


def test_a_failed_task_that_cannot_be_pushed_again_stays(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler)
    [id_] = fail_some(queue, 1)
    meddler.always("SendMessageBatch", refusing(lambda entry: True))
    with pytest.raises(Unavailable, match=f"not retried: {id_}~1"):
        queue.retry(all=True)
    meddler.forget()
    assert queue.retry(all=True) == [f"{id_}~1"], "nor is it hidden"


def test_retry_wants_one_or_all(world: World) -> None:
    queue = world.queue()
    with pytest.raises(Invalid):
        queue.retry()
    with pytest.raises(Invalid):
        queue.retry("x", all=True)
    assert world.spent() == []


CORRUPT = {
    "text": "hello",
    "other json": '{"order": 7}',
    "wrong type": '{"schema": 1, "id": 7, "payload": {}}',
    "deep": "[" * 50_000,
    "newer": json.dumps({"schema": 99, "id": "a", "payload": {}, "pushed_at": "2026-01-01T00:00:00Z"}),
}


def test_messages_that_are_no_tasks_go_to_the_failed_with_the_reason(world: World) -> None:
    queue = world.ready()
    for body in CORRUPT.values():
        world.client.send_message(QueueUrl=world.url(), MessageBody=body)
    queue.push({"n": 1})
    assert drain(queue) == [{"n": 1}]
    assert queue.retry(all=True) == [], "they cannot be pushed again"
    records = world.failed()
    assert sorted(record["body"] for record in records) == sorted(CORRUPT.values())
    assert all(record["error"].startswith(f"message {record['id']}") for record in records)
    assert queue.stats().pending == 0


def test_a_message_that_is_no_task_cannot_be_retried_by_its_id(world: World) -> None:
    queue = world.ready()
    sent = world.client.send_message(QueueUrl=world.url(), MessageBody="hello")
    assert not queue.claim()
    with pytest.raises(Invalid, match="could not be read"):
        queue.retry(sent["MessageId"])
    assert queue.stats().failed == 1


def test_a_huge_message_that_is_no_task_is_cut_and_says_so(world: World) -> None:
    queue = world.ready()
    world.client.send_message(QueueUrl=world.url(), MessageBody='"' * 700 * KIB)
    assert not queue.claim()
    [record] = world.failed()
    assert 50 * KIB < len(record["body"]) < 128 * KIB
    assert f"the first {len(record['body'])} of its {700 * KIB:,} characters" in record["error"]


def test_the_failure_of_a_large_task_fits(world: World) -> None:
    queue = world.ready()
    queue.push({"fill": "é" * 125 * KIB})
    take(queue)[1].fail("\x01" * 5000, traceback="\x01" * 20_000)
    [record] = world.failed()
    assert len(record["payload"]["fill"]) == 125 * KIB
    assert len(json.dumps(record, ensure_ascii=False).encode()) < BATCH_BYTES_MAX
    assert set(record["error"]) == {"\x01"}


def test_a_failure_may_quote_what_is_no_unicode(world: World) -> None:
    queue = world.ready()
    queue.push({})
    take(queue)[1].fail("no file caf\udce9", traceback="caf\udce9")
    [record] = world.failed()
    assert (record["error"], record["traceback"]) == ("no file caf?", "caf?")


def test_a_task_beyond_our_limit_fails_whole(world: World) -> None:
    queue = world.ready()
    task = {"schema": 1, "id": "a", "payload": {"fill": "x" * 400 * KIB}, "pushed_at": "2026-01-01T00:00:00Z"}
    world.client.send_message(QueueUrl=world.url(), MessageBody=json.dumps(task))
    take(queue)[1].fail("no")
    [record] = world.failed()
    assert record["payload"] == task["payload"]


def test_the_end_of_a_long_traceback_is_kept(world: World) -> None:
    queue = world.ready()
    queue.push({})
    take(queue)[1].fail("x" * 5000, traceback="y" * 20_000 + "the end")
    [record] = world.failed()
    assert record["traceback"].endswith("the end")
    assert 1000 < len(record["error"]) < 5000


# ---- numbers ----


def test_stats_are_what_sqs_says(world: World) -> None:
    queue = world.ready()
    queue.push_many([{"n": n} for n in range(5)])
    queue.push({}, delay_s=600)
    claim, _ = take(queue)
    world.spent()
    stats = queue.stats()
    assert world.spent() == ["GetQueueAttributes"] * 2
    assert (stats.pending, stats.in_flight, stats.scheduled, stats.failed) == (5, 1, 1, 0)
    assert (stats.completed, stats.oldest_s, stats.paused) == (None, None, False)
    claim.hand_back()


def test_purge_drops_what_waits(world: World) -> None:
    queue = world.ready()
    fail_some(queue, 1)
    queue.push_many([{"n": n} for n in range(5)])
    world.spent()
    assert queue.purge() == 5
    assert world.spent() == ["GetQueueAttributes", "PurgeQueue"]
    stats = queue.stats()
    assert (stats.pending, stats.failed) == (0, 1)


# ---- refused inside a 200 (F20) ----


def body_of(n: int) -> Callable[[dict[str, Any]], bool]:
    return lambda entry: json.loads(entry["MessageBody"])["payload"]["n"] == n


def test_tasks_refused_inside_an_answer_are_sent_again_alone(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler)
    meddler.next("SendMessageBatch", refusing(body_of(2)), refusing(body_of(2)))
    queue.push_many([{"n": n} for n in range(4)])
    sent = [
        [json.loads(each["MessageBody"])["payload"]["n"] for each in asked["Entries"]] for _, asked in world.requests
    ]
    assert sent == [[0, 1, 2, 3], [2], [2]]
    assert sorted(payload["n"] for payload in drain(queue)) == [0, 1, 2, 3]


def test_tasks_that_stay_refused_are_named(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler)
    meddler.always("SendMessageBatch", refusing(lambda entry: body_of(13)(entry) or body_of(14)(entry)))
    with pytest.raises(Unavailable, match="of 25 tasks, number 13-14 were not pushed: InternalError") as error:
        queue.push_many([{"n": n} for n in range(25)])
    assert error.value.hint
    assert len(drain(queue)) == 23
    meddler.always("SendMessageBatch", refusing(body_of(1), "InvalidMessageContents", ours=True))
    world.spent()
    with pytest.raises(Invalid, match=r"not pushed: the task \(InvalidMessageContents"):
        queue.push({"n": 1})
    assert world.spent() == ["SendMessageBatch"], "what is our fault is not sent again"


def test_an_outage_stops_a_large_push(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler)
    meddler.always("SendMessageBatch", failing(403, "AccessDenied"))
    with pytest.raises(Denied, match="of 1,000 tasks, number 0-999 were not pushed") as error:
        queue.push_many([{"n": n} for n in range(1000)])
    assert len(str(error.value)) < 300
    assert len(world.spent()) <= 32


def test_deletes_refused_inside_an_answer_are_made_again(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler, receive=3)
    queue.push_many([{"n": n} for n in range(3)])
    meddler.next("DeleteMessageBatch", refusing(lambda entry: entry["Id"] == "1"))
    with queue.claim() as claim:
        for task in claim:
            task.done()
    assert queue.stats().pending == 0


def test_a_delete_that_stays_refused_is_told_and_made_again_at_the_end(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler)
    queue.push({"n": 1})
    claim, task = take(queue)
    meddler.next("DeleteMessageBatch", *[refusing(lambda entry: True)] * 4)
    with pytest.raises(Unavailable, match="could not be deleted"):
        task.done()
    assert queue.stats().pending == 1
    claim.hand_back()
    assert queue.stats().pending == 0


def test_a_failure_that_cannot_be_kept_keeps_the_task(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler)
    queue.push({"n": 1})
    claim, task = take(queue)
    meddler.always("SendMessageBatch", refusing(lambda entry: True))
    with pytest.raises(Unavailable, match="could not be moved"):
        task.fail("no")
    claim.hand_back()
    assert finish(queue) == {"n": 1}


def test_a_message_that_cannot_be_moved_does_not_hold_up_the_tasks_beside_it(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler, receive=2)
    queue.push({"n": 1})
    world.client.send_message(QueueUrl=world.url(), MessageBody="hello")
    meddler.always("SendMessageBatch", refusing(lambda entry: True))
    assert finish(queue) == {"n": 1}
    world.client.send_message(QueueUrl=world.url(), MessageBody="hello")
    with pytest.raises(Unavailable, match="could not be moved"):
        queue.claim()


# ---- failures of the whole ----


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", Denied),
        (400, "AccessDeniedException", Denied),
        (403, "InvalidClientTokenId", Denied),
        (400, "ExpiredToken", Denied),
        (400, "KMS.AccessDeniedException", Denied),
        (400, "InvalidAttributeName", Invalid),
        (400, "AWS.SimpleQueueService.NonExistentQueue", Missing),
        (400, "RequestThrottled", Unavailable),
        (429, "Whatever", Unavailable),
        (503, "ServiceUnavailable", OutcomeUnknown),
        (500, "InternalError", OutcomeUnknown),
    ],
)
def test_what_sqs_refuses_has_a_kind(
    world: World, meddler: Meddler, status: int, code: str, kind: type[LimpetError]
) -> None:
    queue = world.spoilt(meddler)
    meddler.always("SendMessageBatch", failing(status, code, "it\nis so"))
    with pytest.raises(kind) as error:
        queue.push({})
    assert type(error.value) is kind
    assert "\n" not in str(error.value)
    assert "it is so" in str(error.value)
    assert error.value.hint or kind is Invalid
    assert len(world.spent()) == (3 if kind in (Unavailable, OutcomeUnknown) else 1)
    meddler.always("ReceiveMessage", failing(status, code))
    with pytest.raises(Unavailable if kind is OutcomeUnknown else kind):
        queue.claim()


def test_trouble_that_passes_is_not_noticed(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler)
    meddler.next("SendMessageBatch", failing(503, "ServiceUnavailable"), failing(400, "RequestThrottled"))
    queue.push({"n": 1})
    meddler.next("ReceiveMessage", failing(500, "InternalError"))
    claim, task = take(queue)
    meddler.next("DeleteMessageBatch", failing(503, "ServiceUnavailable"))
    task.done()
    claim.hand_back()
    assert queue.stats().pending == 0


def test_after_a_lost_reply_a_push_may_be_there_twice_and_never_not_at_all(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler)

    def lost(request: Body, forward: Any) -> Answer:
        forward(request)
        return 500, {"__type": "com.amazonaws.sqs#InternalError"}

    meddler.next("SendMessageBatch", lost)
    queue.push({"n": 1})
    assert drain(queue) == [{"n": 1}] * 2
    meddler.next("SendMessageBatch", lost, *[failing(403, "AccessDenied")] * 4)
    with pytest.raises(OutcomeUnknown):
        queue.push({"n": 2})
    assert drain(queue) == [{"n": 2}]


def test_a_queue_that_may_not_be_created_is_denied_with_its_name(world: World, meddler: Meddler) -> None:
    queue = world.queue(wire=world.wire(meddler.endpoint, HASTY))
    meddler.always("CreateQueue", failing(403, "AccessDenied"))
    with pytest.raises(Denied, match=f"no queue {world.prefix}_jobs, and it cannot be created") as error:
        queue.push({})
    assert "CreateQueue" in error.value.hint


def test_no_claim_without_a_place_for_failures(world: World, meddler: Meddler) -> None:
    world.queue().push({"n": 1})
    queue = world.queue(wire=world.wire(meddler.endpoint, HASTY))
    meddler.always("CreateQueue", failing(403, "AccessDenied"))
    world.spent()
    with pytest.raises(Denied, match="jobs-failed"):
        queue.claim()
    assert "ReceiveMessage" not in world.spent()


def test_purging_twice_a_minute_says_what_to_do(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler)
    meddler.always("PurgeQueue", failing(403, "AWS.SimpleQueueService.PurgeQueueInProgress"))
    with pytest.raises(Unavailable) as error:
        queue.purge()
    assert "minute" in error.value.hint


def test_a_server_that_cannot_be_reached(world: World) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        queue = world.queue(wire=world.wire(f"http://127.0.0.1:{unused.getsockname()[1]}", HASTY))
        with pytest.raises(Unavailable, match="Could not connect") as error:
            queue.push({})
    assert "endpoint" in error.value.hint
    assert len(world.spent()) == 3


def test_a_server_that_hangs_up(world: World) -> None:
    queue = world.ready()
    with socket.create_server(("127.0.0.1", 0)) as server:
        wire = world.wire(f"http://127.0.0.1:{server.getsockname()[1]}", HASTY)

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connection.recv(1 << 16)
                    connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(OutcomeUnknown):
            wire.send(queue._main(), ["x"])
        with pytest.raises(Unavailable):
            wire.receive(queue._main(), 1, wait_s=0, visibility_s=1)
        server.shutdown(socket.SHUT_RDWR)


def test_a_server_that_is_no_sqs(world: World, meddler: Meddler) -> None:
    queue = world.spoilt(meddler)
    meddler.always("GetQueueAttributes", lambda request, forward: (502, {"html": "<h1>bad gateway</h1>"}))
    with pytest.raises(Unavailable, match="502"):
        queue.stats()


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, moto: str) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(Denied, match="credentials") as error:
        connect("jobs", region=REGION, endpoint_url=moto).push({})
    assert "AWS_PROFILE" in error.value.hint


def test_half_of_the_credentials(monkeypatch: pytest.MonkeyPatch, moto: str) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(Denied):
        connect("jobs", region=REGION, endpoint_url=moto).push({})


@pytest.mark.parametrize(
    ("environ", "settings"),
    [
        ({}, {"region": None}),
        ({}, {"region": "not a region"}),
        ({"AWS_PROFILE": "nobody"}, {"region": REGION}),
        ({}, {"region": REGION, "endpoint_url": "sqs.example"}),
    ],
)
def test_settings_that_make_no_sense(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], settings: dict[str, Any]
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Invalid) as error:
        connect("jobs", **settings).push({})
    assert "\n" not in str(error.value)
    assert error.value.hint


def test_without_boto3_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(Unsupported) as error:
        connect("jobs")
    assert error.value.hint == "pip install 'limpet[sqs]'"


def test_importing_it_does_not_load_boto3() -> None:
    code = "import sys, limpet.queue.sqs; print({'boto3', 'botocore'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_forked_child_makes_a_client_of_its_own(moto: str) -> None:
    class Forked(SystemRuntime):
        def fork(self) -> None:
            self._fresh()

    runtime = Forked()
    wire = SqsClient(runtime, region=REGION, endpoint_url=moto)
    before = wire.client
    assert wire.client is before
    runtime.fork()
    assert wire.client is not before
