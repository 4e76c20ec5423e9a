"""Nodes with directories of their own around one bucket, on one hand-moved clock, each behind a scripted network.

In the bucket all have the rights of their role, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from limpet.kernel.keys import Key
from limpet.kernel.store import MemoryStore, ScopedStore
from limpet.queue import BucketQueue, Policy, Result
from limpet.queue.claim import EntryClaim, EntryTask
from limpet.queue.sync import ClientLog, Collision, Cycle, Outbox, Supervisor
from support.clock import QueueRuntime, Time
from support.queue import NAME, ROOT, TTL_S, Network, held

__all__ = ["DOWN_S", "UP_S", "Client", "Fleet", "Node", "Stop", "at", "ended", "names", "waiting"]

UP_S = 300.0
DOWN_S = 3600.0


class Client:
    """A process with a queue: on the bucket itself, or (`Node`) on a directory."""

    def __init__(self, fleet: Fleet, owner: str, memory: MemoryStore, **policy: Any) -> None:
        self.fleet = fleet
        self.memory = memory
        self.runtime = QueueRuntime(fleet.time, owner)
        self.store = Network(self.runtime, memory)
        self.policy = Policy(**{"ttl_s": TTL_S, "backoff_s": 0.0, **policy})
        self.queue = self.open_queue()

    def open_queue(self, name: str = NAME) -> BucketQueue:
        """A queue that logs what it does in the bucket."""
        store = ScopedStore(self.store, role="worker", runtime=self.runtime)
        journal = ClientLog(store, self.runtime)
        return BucketQueue(store, name, self.runtime, journal=journal, policy=self.policy)

    def push(self, *ids: str) -> None:
        """Tasks with these ids."""
        for id_ in ids:
            self.queue.push({"id": id_}, id=id_)

    def work(self, handle: Callable[[EntryTask], object] | None = None) -> list[str]:
        """Do everything that can be claimed now; what was run."""
        ran: list[str] = []
        while claim := self.queue.claim():
            with claim:
                for task in held(claim):
                    ran.append(task.id)
                    if handle is None:
                        task.done({"by": self.runtime.owner})
                    else:
                        handle(task)
        return ran

    def take(self) -> EntryClaim:
        """A claim that stays open."""
        return held(self.queue.claim())

    def result(self, id_: str) -> Result:
        """How a task ended, as this place knows it."""
        return self.queue.result(id_)


class Node(Client):
    """A directory, a worker on it, and its supervisor, which starts anew with `restart`."""

    def __init__(self, fleet: Fleet, name: str, **policy: Any) -> None:
        self.name = name
        super().__init__(fleet, f"{name}.w", MemoryStore(QueueRuntime(fleet.time, f"disk of {name}")), **policy)
        self.restart()

    def open_queue(self, name: str = NAME) -> BucketQueue:
        """A queue that notes what it does in the outbox."""
        journal = Outbox(self.store, self.runtime)
        return BucketQueue(self.store, name, self.runtime, journal=journal, policy=self.policy)

    def restart(self, **options: Any) -> Supervisor:
        """The supervisor's next process."""
        self.boss = QueueRuntime(self.fleet.time, f"s{next(self.fleet.starts)}.{self.name}")
        self.disk = Network(self.boss, self.memory)
        self.network = Network(self.boss, self.fleet.memory)
        settings = {"node": self.name, "up_s": UP_S, "down_s": DOWN_S, **options}
        bucket = ScopedStore(self.network, role="supervisor", runtime=self.boss)
        self.supervisor = Supervisor(self.disk, bucket, self.boss, **settings)
        return self.supervisor

    def up(self) -> Cycle:
        """See `Supervisor.up`."""
        return self.supervisor.up()

    def down(self, *, fresh: bool = False) -> Cycle:
        """See `Supervisor.down`."""
        return self.supervisor.down(fresh=fresh)

    def sync(self) -> list[Collision]:
        """Both ways; the collisions."""
        return [*self.up().collisions, *self.down().collisions]

    def outbox(self) -> list[str]:
        """The keys of what waits to be sent."""
        return [stat.key for stat in self.memory.list("sync/outbox")]


class Fleet:
    """The bucket and the clock. Nodes that were made here are in step with the empty bucket."""

    def __init__(self) -> None:
        self.time = Time()
        self.starts = count(1)
        self.memory = MemoryStore(QueueRuntime(self.time, "bucket"))

    def nodes(self, *names: str, **policy: Any) -> list[Node]:
        """Some nodes that have synced once."""
        made = [Node(self, name, **policy) for name in names]
        for node in made:
            node.sync()
        return made

    def client(self, owner: str = "direct", **policy: Any) -> Client:
        """A process that works on the bucket directly."""
        return Client(self, owner, self.memory, **policy)

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.time.sleep(seconds)

    def logs(self) -> list[str]:
        """The logs in the bucket."""
        return [stat.key.removeprefix("sync/") for stat in self.memory.list("sync")]


class Stop:
    """A flag that is raised after so many seconds, and waits in one leap."""

    def __init__(self, fleet: Fleet, seconds: float) -> None:
        self._fleet = fleet
        self._until_s = fleet.time.now_s + seconds

    def set(self) -> None:
        self._until_s = self._fleet.time.now_s

    def is_set(self) -> bool:
        return self._fleet.time.now_s >= self._until_s

    def wait(self, timeout: float) -> bool:
        self._fleet.pass_by(min(timeout, max(0.0, self._until_s - self._fleet.time.now_s)))
        return self.is_set()


def names(memory: MemoryStore, prefix: str = "") -> list[str]:
    """The objects of the queue in one place."""
    root = f"{ROOT}/{prefix}" if prefix else ROOT
    return [stat.key.removeprefix(f"{ROOT}/") for stat in memory.list(root)]


def waiting(*places: Client | Fleet) -> list[list[str]]:
    """What waits in each place."""
    return [sorted({name.split("/")[1] for name in names(place.memory, "pending")}) for place in places]


def ended(*places: Client | Fleet) -> list[list[str]]:
    """The receipts in each place."""
    return [[*names(place.memory, "completed"), *names(place.memory, "failed")] for place in places]


def at(name: str) -> Key:
    """The key of an object of the queue."""
    return Key(f"{ROOT}/{name}")
