"""100 idle workers of one queue in a bucket, for an hour of virtual time: what they ask, its price, and how soon the
first task after a lull starts. And 20 workers beside thousands of suspended tasks."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from limpet.kernel import records
from limpet.kernel.keys import Key, QueueKeys
from limpet.kernel.lease import State
from limpet.kernel.runtime import ulid
from limpet.kernel.store.api import Always, Stat
from limpet.kernel.store.metered import dollars
from limpet.queue import BucketQueue
from limpet.queue.api import Policy
from limpet.queue.cost import MONTH_H, idle_bill, idle_requests
from limpet.queue.decide import claimed
from limpet.queue.entry import Suspension, new_task
from limpet.queue.look import MEAN_PART
from limpet.worker import Job, Worker
from sim.actors import draw
from sim.bucket import Bucket, SimStore
from sim.world import SimRuntime, World

WORKERS = 100
SETTLE_S = 60.0
HOUR_S = 3600.0
LULL_S = 20.0
PUSHES = 30
VERBS = {"head": "head", "list": "list", "read": "get", "settle": "get", "delete": "delete"}


class PagedStore(SimStore):
    """A bucket of many objects: a sample is the page after the last one, and their names are not sorted for each."""

    _sorted: tuple[int, list[Key]] = (-1, [])
    _sampled = ""

    def sample(self, prefix: str, n: int) -> Sequence[Stat]:
        """As `CloudStore.sample`: the next page, filled up from the first one at the end."""
        head = f"{prefix}/"

        def page() -> Sequence[Stat]:
            found = [*self._page(head, self._sampled, n)]
            return (
                found
                if len(found) == n
                else [*{each.key: each for each in [*found, *self._page(head, "", n)]}.values()]
            )

        found = self._call("list", "pending.list", Key(prefix), "", page)
        self._sampled = found[-1].key if len(found) == n else ""
        return found[:n]

    def _page(self, head: str, after: str, n: int = 1000) -> Sequence[Stat]:
        writes = len(self._bucket.journal)
        if PagedStore._sorted[0] != writes:
            PagedStore._sorted = writes, sorted(self._bucket.objects)
        names = PagedStore._sorted[1]
        begin = bisect_right(names, max(head, after))
        end = bisect_right(names, f"{head}\U0010ffff")
        blobs = ((key, self._bucket.objects[key]) for key in names[begin : min(end, begin + n)])
        return [Stat(key, blob.size, blob.version, blob.modified) for key, blob in blobs]


class IdleFleet:
    """Workers on separate machines, and a pusher."""

    def __init__(self) -> None:
        self.world = World(1)
        self.world.healed = True
        self.bucket = Bucket(self.world, draw(1))
        self.started_s: dict[int, float] = {}

    def queue(self, name: str) -> tuple[BucketQueue, SimRuntime]:
        """A process and its queue."""
        runtime = SimRuntime(self.world, self.world.start(name))
        store = PagedStore(self.bucket, runtime)
        store.far, store.page_size = True, None
        return BucketQueue(store, "q", runtime), runtime

    def start_worker(self, name: str) -> None:
        """A worker of one thread."""
        queue, runtime = self.queue(name)
        worker = Worker([Job(queue, self.note)], runtime)
        self.world.spawn(runtime.process, worker.start)

    def note(self, payload: dict[str, Any]) -> None:
        """The handler: note when it began."""
        self.started_s.setdefault(payload["n"], self.world.now_s)

    def run(self, for_s: float) -> Counter[str]:
        """Let time pass; the requests of that time, by verb."""
        self.world.trace.clear()
        self.world.run(until_s=self.world.now_s + for_s, done=lambda: False)
        assert self.world.failure is None
        return Counter(VERBS.get(event.what.rsplit(".", 1)[1], "put") for event in self.world.trace)


def test_a_hundred_idle_workers_for_an_hour() -> None:
    fleet = IdleFleet()
    for n in range(WORKERS):
        fleet.start_worker(f"w{n}")
    fleet.run(SETTLE_S)
    asked = fleet.run(HOUR_S)
    month = dollars({verb: count * MONTH_H for verb, count in asked.items()}, "s3")

    queue, runtime = fleet.queue("pusher")
    pushed_s: list[float] = []

    def push_now_and_then() -> None:
        for n in range(PUSHES):
            runtime.sleep(LULL_S * (1 + fleet.world.chance(99, n)))
            queue.push({"n": n})
            pushed_s.append(fleet.world.now_s)

    fleet.world.spawn(runtime.process, push_now_and_then)
    woken = fleet.run(2 * LULL_S * (PUSHES + 1))
    fleet.world.close()
    waits = sorted(max(0.0, fleet.started_s[n] - at_s) for n, at_s in enumerate(pushed_s))

    print(f"\n{WORKERS} idle workers, an hour: {dict(asked)}, ${month:.2f} a month, ${month / WORKERS:.3f} each")
    print(f"start after a lull: p50 {waits[PUSHES // 2]:.2f} s, p99 {waits[-1]:.2f} s (the longest of {PUSHES})")
    print(f"LISTs of the whole fleet for each push after a lull: {woken['list'] / PUSHES:.0f}")
    most = {verb: count * WORKERS for verb, count in idle_requests(2.0).items()}
    assert 0.9 * most["head"] <= asked["head"] <= most["head"]
    assert 0.9 * most["list"] <= asked["list"] <= 1.05 * most["list"]
    assert sum(asked.values()) - asked["head"] - asked["list"] <= 10 * WORKERS
    assert month / WORKERS <= idle_bill(2.0).dollars < 0.75
    assert len(waits) == PUSHES
    assert waits[-1] <= 2.5, "poll_s, and a few round trips"
    assert woken["list"] / PUSHES <= 12 * WORKERS


# ---- suspended tasks ----

SUSPENDED_WORKERS = 20
MINUTES = 5
CHILDREN = QueueKeys.of("children")


def suspend(fleet: IdleFleet, count: int) -> list[str]:
    """So many tasks: each waits for a child that has not ended, every tenth for a signal."""
    queue, runtime = fleet.queue("before")
    policy, wall = Policy(), runtime.wall()
    at_ms = int(wall.timestamp() * 1000)
    entries = [ulid(at_ms - 1000 * (count - n), n) for n in range(count)]

    def put(key: Key, value: msgspec.Struct) -> None:
        fleet.bucket.put("before", key, records.encode(value), Always())

    def suspend_all() -> None:
        for n, entry in enumerate(entries):
            child = child_key(entry)
            lease = claimed(None, entry=entry, worker_id="gone", label="gone", policy=policy, wall=wall)
            waits = Suspension(reason="it waits", step=1, since=wall, awaits=[child])
            if n % 10 == 0:
                waits = Suspension(reason="it waits", step=1, since=wall, signal="go", life=f"w{n}")
            free = msgspec.structs.replace(lease, state=State.FREE, wait_s=2.0, waits={0: 2.0}, suspended={0: waits})
            task = new_task(entry, b'{"n":%d}' % n, pushed_at=wall, write_id=f"w{n}")
            put(queue.storage.keys.tasks(entry, batch=False), task)
            put(child, new_task(f"child{n}", b"{}", pushed_at=wall, write_id=f"c{n}"))
            queue.storage.lease(entry).create(free)

    fleet.world.spawn(runtime.process, suspend_all)
    fleet.run(2.0 * count)
    assert len(fleet.bucket.objects) >= 3 * count
    return entries


def child_key(entry: str) -> Key:
    """The task that a suspended one waits for."""
    return CHILDREN.tasks(entry, batch=False)


@pytest.mark.parametrize("count", [600, pytest.param(10_000, marks=[pytest.mark.full, pytest.mark.timeout(1_200)])])
def test_suspended_tasks_cost_the_fleet_and_not_each_process(count: int) -> None:
    """At most 200 requests a minute of 20 workers, beside the looks at the bell; what can go on is found within two
    minutes, and also after the process that looks for it has died.
    """
    fleet = IdleFleet()
    entries = suspend(fleet, count)
    for n in range(SUSPENDED_WORKERS):
        fleet.start_worker(f"w{n}")
    learning = fleet.run(300.0 + 0.12 * count)
    assert not fleet.started_s
    asked = fleet.run(60.0 * MINUTES)
    bells = asked.pop("head")
    a_minute = sum(asked.values()) / MINUTES
    print(f"\n{count} suspended, {SUSPENDED_WORKERS} workers: {dict(learning)} until all leases are known; then")
    print(f"{a_minute:.0f} requests a minute ({dict(asked)} in {MINUTES} minutes) beside {bells / MINUTES:.0f} HEADs")

    queue, runtime = fleet.queue("user")
    ready_s: dict[int, float] = {}

    def wake(n: int) -> None:
        if n % 10 == 0:
            assert queue.signal(entries[n], "go")
        else:
            fleet.bucket.delete("user", child_key(entries[n]))
            queue.storage.wake("q")
        ready_s[n] = fleet.world.now_s

    def wake_some() -> None:
        for n in (10, count // 3, count // 2, count - 1):
            wake(n)
            runtime.sleep(120.0)

    fleet.world.spawn(runtime.process, wake_some)
    fleet.run(480.0)
    delays = {n: fleet.started_s.get(n, float("inf")) - at_s for n, at_s in ready_s.items()}
    print(f"what can go on starts after {[f'{each:.1f} s' for each in delays.values()]}")
    fleet.world.close()
    assert a_minute <= 200
    assert bells / MINUTES <= 1.02 * SUSPENDED_WORKERS * 60 / Policy().poll_s / MEAN_PART
    assert max(delays.values()) <= 120.0
