"""100 idle workers of one queue in a bucket, for an hour of virtual time: what they ask, its price, and how soon the
first task after a lull starts."""

from __future__ import annotations

from collections import Counter
from typing import Any

from limpet.queue import BucketQueue
from limpet.queue.cost import MONTH_H, idle_bill, idle_requests
from limpet.sim.actors import draw
from limpet.sim.bucket import Bucket, SimStore
from limpet.sim.world import SimRuntime, World
from limpet.store.metered import dollars
from limpet.worker import Job, Worker

WORKERS = 100
SETTLE_S = 60.0
HOUR_S = 3600.0
LULL_S = 20.0
PUSHES = 30
VERBS = {"head": "head", "list": "list", "read": "get", "settle": "get", "delete": "delete"}


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
        store = SimStore(self.bucket, runtime)
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
