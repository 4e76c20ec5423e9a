"""A worker's key is enough for a worker, and no more."""

from __future__ import annotations

import pytest

from limpet.kernel.errors import Denied, Missing
from limpet.kernel.store import MemoryStore, ScopedStore
from limpet.queue import BucketQueue, Policy
from limpet.queue.claim import EntryClaim
from limpet.queue.entry import Suspension
from support.clock import EPOCH, QueueRuntime, Time


def test_the_worker_role_is_enough_to_work() -> None:
    runtime = QueueRuntime(Time(), "p1")
    bucket = MemoryStore(runtime)
    store = ScopedStore(bucket, role="worker", runtime=runtime)
    queue = BucketQueue(store, "enrich", runtime, policy=Policy(concurrency=2, max_attempts=1))
    queue.push({"n": 1}, id="one")
    queue.push({"n": 2}, delay_s=1)
    queue.push_many([{"m": n} for n in range(3)])
    runtime.sleep(3)
    done = 0
    while claim := queue.claim():
        with claim:
            for task in claim:
                done += 1
                if task.payload == {"n": 1}:
                    task.fail("no")
                else:
                    task.done("x" * 3_000)
    assert done == 5
    assert queue.retry("one") == ["one~1"]
    assert queue.sweep() == 0
    runtime.sleep(4_000)
    with queue.claim() as claim:
        for task in claim:
            task.done()
    assert (queue.stats().completed, queue.stats().failed) == (5, 0)
    assert any(stat.key.endswith("/sweep.json") for stat in bucket.list())


def test_the_worker_role_does_not_steer_the_queue() -> None:
    runtime = QueueRuntime(Time(), "p1")
    store = ScopedStore(MemoryStore(runtime), role="worker", runtime=runtime)
    with pytest.raises(Denied, match=r"may not put queues/q/control\.json"):
        BucketQueue(store, "q", runtime).pause()


@pytest.mark.parametrize("far", [True, False])
def test_the_pusher_role_is_enough_to_send_a_signal(far: bool) -> None:
    """An approval comes from a web application, which pushes tasks and does not work on them."""
    time = Time()
    bucket = MemoryStore(QueueRuntime(time, "store"))
    bucket.far = far

    def opened(role: str) -> BucketQueue:
        runtime = QueueRuntime(time, role)
        return BucketQueue(ScopedStore(bucket, role=role, runtime=runtime), "q", runtime)

    pusher, worker = opened("pusher"), opened("worker")
    pusher.push({}, id="x")
    waits = Suspension(reason="", step=0, since=EPOCH, signal="approved")
    with worker.claim() as claim:
        assert isinstance(claim, EntryClaim)
        for task in claim:
            task.suspend(2.0, waits)
    assert not worker.claim(wait_s=600.0)
    assert pusher.signal("x", "approved", {"by": "ann"})
    assert not pusher.signal("x", "approved", {"by": "bob"})
    with pytest.raises(Missing):
        pusher.signal("y", "approved")
    with pytest.raises(Denied, match=r"may not put queues/q/steps/x/0\.0000\.json"):
        pusher.storage.store.put(pusher.storage.keys.step("x", 0, 0), b"forged")
    began_s = time.now_s
    assert worker.claim(wait_s=600.0)
    assert time.now_s - began_s < 5.0, "the bell tells the worker to look"


def test_a_reader_sees_everything_and_changes_nothing() -> None:
    runtime = QueueRuntime(Time(), "p1")
    bucket = MemoryStore(runtime)
    pushed = BucketQueue(bucket, "q", runtime).push({"n": 1})
    queue = BucketQueue(ScopedStore(bucket, role="reader", runtime=runtime), "q", runtime)
    assert queue.stats().pending == 1
    assert [task.id for task in queue.peek()] == [pushed.id]
    assert queue.result(pushed.id).state == "pending"
    for act in (queue.claim, lambda: queue.push({}), queue.purge, lambda: queue.cancel(pushed.id)):
        with pytest.raises(Denied):
            act()
    assert queue.stats().pending == 1
