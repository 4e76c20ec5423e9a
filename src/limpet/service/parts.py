"""The two services as parts of a process: what each answers, counts and does in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from limpet.app import Fleet
from limpet.app.catalogs import (
    DOMAIN,
    client_config,
    executions_of,
    leader_of,
    open_catalog,
    storage_of,
)
from limpet.catalog import Compactor, Leader, Publisher
from limpet.catalog.anti_entropy import hand_over
from limpet.catalog.gc import collect, collect_ledger
from limpet.catalog.parquet import ParquetSnapshots
from limpet.catalog.records import Batch
from limpet.catalog.storage import Own, Storage
from limpet.errors import Corrupt
from limpet.events import EXECUTIONS
from limpet.keys import CatalogKeys, Key
from limpet.runtime import Runtime, Worker
from limpet.service.auth import Tokens
from limpet.service.background import Afterwards, Loop, Measured
from limpet.service.compactor import CompactorRoutes
from limpet.service.log import ServiceLog
from limpet.service.metrics import SIZES, Counter, Gauge, Histogram
from limpet.service.rest import Rest
from limpet.service.routes import Route
from limpet.service.rpc import RpcPublisher
from limpet.store import ScopedStore, Store
from limpet.store.api import Put

__all__ = ["ApiPart", "CompactorPart", "Metric", "Part", "RpcPart", "Shared"]

HAND_OVER_EVERY_S = 30.0
COLLECT_EVERY_S = 3600.0
KEEP = timedelta(days=30)
KEEP_VERSIONS = 100
START_S = 3.0
WATCH_EVERY_S = 0.5
POLL_S = 0.01

Metric = Counter | Gauge | Histogram


@dataclass(frozen=True, slots=True)
class Shared:
    """What all parts of a process have in common."""

    fleet: Fleet
    runtime: Runtime
    turns: Counter
    log: ServiceLog
    own: Own = field(default_factory=Own)
    """What the API writes, its compactor in the same process need not read back."""

    def store(self, role: str) -> Store:
        """The fleet's store with the rights of a role."""
        return ScopedStore(self.fleet.meter, role=role, runtime=self.runtime)

    def loop(self, name: str, work: Callable[[], None], every_s: float) -> Loop:
        """A loop that has not begun."""
        return Loop(name, work, every_s, self.runtime, self.turns, self.log.tell)


class Part(Protocol):
    """One service within a process."""

    def routes(self) -> list[Route]:
        """What it answers."""

    def metrics(self) -> list[Metric]:
        """What it counts."""

    def facts(self) -> dict[str, Any]:
        """What it knows of itself, for readiness; it asks the store."""

    def start(self) -> None:
        """Begin what it does in the background."""

    def give_up(self) -> None:
        """End what requests wait for, whatever that means for them."""

    def stop(self) -> None:
        """End in order, once there are no more requests."""


class CompactorPart:
    """The compactor: the sole writer of what is published, with the rights of its role."""

    def __init__(self, shared: Shared, secret: Tokens, *, exposed: bool) -> None:
        store = shared.store("compactor")
        self._storage = storage_of(store, shared.runtime, shared.own)
        self._executions = executions_of(store, shared.runtime)
        self._secret = secret
        self._exposed = exposed
        compactor = Compactor(self._storage)
        self._settling = Afterwards("settle", compactor.settle, shared.runtime)
        self._preparing = Afterwards("prepare", compactor.prepare, shared.runtime)
        self._collecting = shared.loop("collect", self._collect, COLLECT_EVERY_S)
        self.publish = Measured(compactor.publish, shared.runtime, self._wake)
        self.fold: Publisher = self._executions.publish

    def routes(self) -> list[Route]:
        """See `Part.routes`. Beside an API in the same process it needs none."""
        if not self._exposed:
            return []
        return CompactorRoutes({DOMAIN: self.publish, EXECUTIONS: self.fold}, self._secret).routes()

    def metrics(self) -> list[Metric]:
        """See `Part.metrics`."""
        return [self.publish.seconds]

    def facts(self) -> dict[str, Any]:
        """See `Part.facts`.   Cost: 1 GET."""
        seen = self._storage.head().read()
        head = seen.value if seen else None
        return {"version": head.version if head else 0, "published_at": head.at if head else None}

    def start(self) -> None:
        """See `Part.start`."""
        self._settling.start()
        self._preparing.start()
        self._collecting.start()

    def _wake(self) -> None:
        self._settling.wake()
        self._preparing.wake()

    def _collect(self) -> None:
        done = collect(self._storage, self._executions, keep=KEEP, keep_versions=KEEP_VERSIONS, ledger=False)
        if done.faults:
            raise Corrupt("; ".join(done.faults))

    def give_up(self) -> None:
        """See `Part.give_up`: its requests wait for the store alone."""

    def stop(self) -> None:
        """See `Part.stop`."""
        self._collecting.stop()
        self._preparing.stop()
        self._settling.stop()


class RpcPart:
    """A compactor elsewhere, for an API that runs apart from it."""

    def __init__(self, shared: Shared, url: str, secret: str | None, ca: str | None = None) -> None:
        self._rpc = RpcPublisher(url, secret, shared.runtime, ca=ca)
        self._folding = RpcPublisher(url, secret, shared.runtime, domain=EXECUTIONS, ca=ca)
        self.publish = Measured(self._rpc, shared.runtime)
        self.fold: Publisher = self._folding

    def routes(self) -> list[Route]:
        """See `Part.routes`."""
        return []

    def metrics(self) -> list[Metric]:
        """See `Part.metrics`."""
        return [self.publish.seconds]

    def facts(self) -> dict[str, Any]:
        """See `Part.facts`. A compactor that is away is told and no obstacle: reads need none.

        Raises: Denied if it does not know our secret.   Cost: one request to the compactor.
        """
        trouble = self._rpc.check()
        return {"compactor": self._rpc.url, **({"compactor_trouble": trouble} if trouble else {})}

    def start(self) -> None:
        """See `Part.start`."""

    def give_up(self) -> None:
        """See `Part.give_up`."""
        self.stop()

    def stop(self) -> None:
        """See `Part.stop`."""
        self._rpc.close()
        self._folding.close()


class ApiPart:
    """The API: leads when it can, answers from what is published, with the rights of its role."""

    def __init__(self, shared: Shared, tokens: Tokens, publish: Publisher, fold: Publisher, *, lease_s: float) -> None:
        runtime, url = shared.runtime, shared.fleet.url
        self._runtime = runtime
        self._store = shared.store("api")
        self._fold = fold
        self._groups = Histogram("limpet_group_commits", "Commits published together.", (), runtime, SIZES)
        storage = _CountedStorage(self._store, CatalogKeys.of(DOMAIN), runtime, ParquetSnapshots(), shared.own)
        storage.groups = self._groups
        self.leader = leader_of(storage, publish, lease_s=lease_s)
        self.catalog = open_catalog(storage, url, self.leader)
        self._dead = Counter("limpet_dead_batches_total", "Batches that no head published, removed.", (), runtime)
        self._rest = Rest(self.catalog, tokens, client_config(url))
        self._watch = _LeaderWatch(self.leader, shared)
        self._loops = [
            shared.loop("watch", self._watch.look, WATCH_EVERY_S),
            shared.loop("hand over", self._hand_over, HAND_OVER_EVERY_S),
            shared.loop("collect ledger", self._collect, COLLECT_EVERY_S),
        ]
        self._thread: Worker | None = None
        self._handed_at_s: float | None = None
        self._strays = 0

    def routes(self) -> list[Route]:
        """See `Part.routes`."""
        return self._rest.routes()

    def metrics(self) -> list[Metric]:
        """See `Part.metrics`."""
        leader = self.leader
        leads = Gauge("limpet_leader", "1 if this process leads the catalog.", lambda: {"": float(leader.leads)})
        strays = Gauge(
            "limpet_event_strays", "Objects among the events that are no batches.", lambda: {"": float(self._strays)}
        )
        return [self._groups, self._dead, leads, strays]

    def facts(self) -> dict[str, Any]:
        """See `Part.facts`.   Cost: 1 GET, without a body if nothing changed."""
        loaded, leader, handed_at_s = self.catalog.view.now(), self.leader, self._handed_at_s
        return {
            "leads": leader.leads,
            "leader": leader.leader,
            **({"trouble": str(leader.trouble)} if leader.trouble else {}),
            "version": loaded.head.version if loaded else 0,
            "published_at": loaded.head.at if loaded else None,
            "events_lag_s": None if handed_at_s is None else round(self._runtime.elapsed_s() - handed_at_s, 1),
        }

    def start(self) -> None:
        """See `Part.start`."""
        self._thread = self._runtime.spawn(self.leader.run, name="limpet-leader")
        until_s = self._runtime.elapsed_s() + START_S
        # most often it leads then, and the first request need not be sent again
        while not self.leader.leader and self._runtime.elapsed_s() < until_s:
            self._runtime.sleep(POLL_S)
        self._watch.look()
        for loop in self._loops:
            loop.start()

    def _hand_over(self) -> None:
        if self.leader.leads:  # one of many is enough
            since_s = self._runtime.elapsed_s()
            self._strays = hand_over(self._store, CatalogKeys.of(EXECUTIONS), self._fold).strays
            self._handed_at_s = since_s

    def _collect(self) -> None:
        if not self.leader.leads:
            return
        self.catalog.finish_purges()
        dead = collect_ledger(self.catalog.storage).dead
        if dead:
            self._dead.add(amount=dead)

    def give_up(self) -> None:
        """See `Part.give_up`: who waits for a publication that does not come is told that it is unknown."""
        self.leader.stop()

    def stop(self) -> None:
        """See `Part.stop`: the lock is handed back."""
        for loop in self._loops:
            loop.stop()
        self.leader.stop()
        if self._thread is not None:
            self._thread.join()
        self._watch.look()


class _LeaderWatch:
    """Logs who leads, and what keeps this process from it, each time that changes."""

    def __init__(self, leader: Leader, shared: Shared) -> None:
        self._leader = leader
        self._log = shared.log
        self._leads = False
        self._other = ""
        self._trouble = ""

    def look(self) -> None:
        """Compare with what was logged last. It asks no store."""
        leads, other = self._leader.leads, self._leader.leader
        trouble = str(self._leader.trouble or "")
        if leads != self._leads:
            self._log.event("lead", text="this process leads" if leads else "this process leads no more")
        elif not leads and other and other != self._other:
            self._log.event("lead", text=f"{other} leads")
        if trouble and trouble != self._trouble:
            self._log.event("trouble", text=f"nobody leads: {trouble}")
        self._leads, self._other, self._trouble = leads, other, trouble


class _CountedStorage(Storage):
    """The storage of a leader, with the size of each group counted."""

    groups: Histogram

    def add_batch(self, id_: str, batch: Batch, writes: Sequence[Put] = ()) -> Key:
        if batch.rows:
            self.groups.observe(len(batch.rows))
        return super().add_batch(id_, batch, writes)
