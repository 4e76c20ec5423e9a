"""The parts of a process of `limpet serve`, with their background jobs.

A process has one or two parts. `ApiPart` answers the REST protocol and leads when it can. Its batches are published by
a `CompactorPart` in the same process, or by a compactor elsewhere, through a `RemoteCompactorPart`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from limpet.app import Fleet
from limpet.app.catalogs import DOMAIN, client_config, executions_of, leader_of, open_catalog, storage_of
from limpet.app.nodes import check_same
from limpet.catalog import Compactor
from limpet.catalog.gc import collect, collect_ledger
from limpet.catalog.storage import SharedState
from limpet.events import EXECUTIONS
from limpet.events.fold import hand_over
from limpet.events.ledger import Publication, Publisher
from limpet.kernel.catalog_keys import CatalogKeys
from limpet.kernel.errors import Corrupt, LimpetError
from limpet.kernel.runtime import Runtime, ThreadHandle
from limpet.kernel.store import ScopedStore, Store
from limpet.kernel.waiting import BackgroundJob
from limpet.service.app import SECONDS, Route
from limpet.service.log import ServiceLog
from limpet.service.rest import Rest
from limpet.service.rpc import RpcPublisher, RpcPublishers, compactor_routes
from limpet.service.sign import StsArguments, credential_source, outside_object, signer_of
from limpet.service.tokens import Tokens


def timed(publish: Publisher, registry: CollectorRegistry, runtime: Runtime, *then: Callable[[], None]) -> Publisher:
    """`publish` with a latency metric by outcome. Each of `then` is called after a publication."""
    seconds = Histogram(
        "limpet_publish_seconds", "Time to publish a batch.", ("outcome",), registry=registry, buckets=SECONDS
    )

    def publish_timed(paths: Sequence[str], token: int) -> Publication:
        since_s, outcome = runtime.elapsed_s(), "fault"
        try:
            published = publish(paths, token)
            outcome = "published"
        except LimpetError as error:
            outcome = type(error).__name__
            raise
        finally:
            seconds.labels(outcome).observe(runtime.elapsed_s() - since_s)
        for each in then:
            each()
        return published

    return publish_timed


HAND_OVER_EVERY_S = 30.0
COLLECT_EVERY_S = 3600.0
KEEP = timedelta(days=30)
KEEP_VERSIONS = 100
START_S = 3.0
WATCH_EVERY_S = 0.5
SETTLE_EVERY_S = 5.0
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


# ---- the parts ----


class ServiceContext:
    """What all parts of a process share. The registry of metrics belongs to it: nothing is registered globally."""

    def __init__(self, fleet: Fleet, runtime: Runtime, log: ServiceLog) -> None:
        self.fleet = fleet
        self.runtime = runtime
        self.log = log
        self.ending = runtime.flag()
        """Raised by the signal that stops the process: streams end then."""
        self.recent = SharedState()
        """Batches that the API has written: a compactor in the same process need not read them."""
        self.registry = CollectorRegistry()
        self._turns = Counter(
            "limpet_loop_turns_total", "Runs of the background loops.", ("loop", "outcome"), registry=self.registry
        )

    def store(self, role: str) -> Store:
        """The fleet's store with the rights of a role."""
        return ScopedStore(self.fleet.meter, role=role, runtime=self.runtime)

    def periodic(self, name: str, work: Callable[[], None], every_s: float) -> BackgroundJob:
        """A job, not started yet. It counts its runs, and logs an error unless it is the same as the last one."""
        last_error = ""

        def work_counted() -> None:
            nonlocal last_error
            try:
                work()
            except LimpetError as error:
                self._turns.labels(name, "failed").inc()
                if str(error) != last_error:
                    self.log.warn(f"{name}: {error}" + (f" ({error.hint})" if error.hint else ""))
                last_error = str(error)
            else:
                self._turns.labels(name, "done").inc()
                last_error = ""

        return BackgroundJob(name, work_counted, every_s, self.runtime)


class ServicePart(ABC):
    """One service within a process."""

    def routes(self) -> list[Route]:
        """The routes that it serves."""
        return []

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Its state, for readiness; reads the store.   Raises: the error that keeps it from working."""

    def start(self) -> None:  # noqa: B027 (optional)
        """Start its background jobs."""

    def give_up(self) -> None:  # noqa: B027 (optional)
        """Make running requests end, even if their outcome is then unknown."""

    @abstractmethod
    def stop(self) -> None:
        """Shut down, after the last request."""


class CompactorPart(ServicePart):
    """The compactor: the only writer of heads, commits and snapshots, with the rights of its role."""

    def __init__(self, context: ServiceContext, secret: Tokens, *, exposed: bool) -> None:
        """`exposed`: serve a route for APIs elsewhere. An API in the same process needs none."""
        store = context.store("compactor")
        self._storage = storage_of(store, context.runtime, context.recent)
        self._executions = executions_of(store, context.runtime)
        self._secret = secret
        self._exposed = exposed
        self._fleet = context.fleet.record.id or ""
        compactor = Compactor(self._storage)
        # if one of these jobs fails, the next publication does its work, here or in another process
        self._settling = BackgroundJob("settle", compactor.record, SETTLE_EVERY_S, context.runtime)
        self._preparing = BackgroundJob("prepare", compactor.prepare, SETTLE_EVERY_S, context.runtime)
        self._collecting = context.periodic("collect", self._collect, COLLECT_EVERY_S)
        wakes = self._settling.wake, self._preparing.wake
        self.publish = timed(compactor.publish, context.registry, context.runtime, *wakes)
        self.fold: Publisher = self._executions.publish

    def routes(self) -> list[Route]:
        publishers = {DOMAIN: self.publish, EXECUTIONS: self.fold}
        return compactor_routes(publishers, self._secret, self._fleet) if self._exposed else []

    def facts(self) -> dict[str, Any]:
        """The newest published version.   Cost: 1 GET."""
        seen = self._storage.head().read()
        head = seen.value if seen else None
        return {"version": head.version if head else 0, "published_at": head.at if head else None}

    def start(self) -> None:
        self._settling.start()
        self._preparing.start()
        self._collecting.start()

    def _collect(self) -> None:
        done = collect(self._storage, self._executions, keep=KEEP, keep_versions=KEEP_VERSIONS, ledger=False)
        if done.faults:
            raise Corrupt("; ".join(done.faults))

    def stop(self) -> None:
        self._collecting.stop()
        self._preparing.finish()
        self._settling.finish()


class RemoteCompactorPart(ServicePart):
    """Compactors elsewhere, for an API that runs apart from them. One of them is enough."""

    def __init__(self, context: ServiceContext, urls: Sequence[str], secret: str | None, ca: str | None = None) -> None:
        fleet = context.fleet.record.id or ""

        def publishers(domain: str) -> RpcPublishers:
            made = [RpcPublisher(url, secret, context.runtime, domain=domain, ca=ca, fleet=fleet) for url in urls]
            return RpcPublishers(made, context.runtime)

        self._rpc, self._folding = publishers(DOMAIN), publishers(EXECUTIONS)
        self.publish = timed(self._rpc, context.registry, context.runtime)
        self.fold: Publisher = self._folding

    def facts(self) -> dict[str, Any]:
        """The URL of the compactor in use. If one does not answer, that is reported, but the API stays ready: reads
        need none.

        Raises: Denied if none accepts our secret and our fleet, and some reject them.
        Cost: one request to each compactor.
        """
        trouble = self._rpc.check()
        return {"compactor": self._rpc.url, **({"compactor_trouble": trouble} if trouble else {})}

    def stop(self) -> None:
        self._rpc.close()
        self._folding.close()

    give_up = stop


class ApiPart(ServicePart):
    """The API: leads when it can, and answers from the published state, with the rights of its role."""

    def __init__(
        self,
        context: ServiceContext,
        tokens: Tokens,
        publish: Publisher,
        fold: Publisher,
        *,
        lease_s: float,
        remote_signing: bool = False,
        sts: StsArguments | None = None,
    ) -> None:
        self._runtime = context.runtime
        self._log = context.log
        self._store = context.store("api")
        self._fold = fold
        storage = storage_of(self._store, context.runtime, context.recent)
        self.leader = leader_of(storage, publish, lease_s=lease_s)
        self.leader.group_published = Histogram(
            "limpet_group_commits", "Commits published together.", registry=context.registry, buckets=SIZES
        ).observe
        self.leader.check_fleet = partial(check_same, context.fleet)
        self.catalog = open_catalog(storage, context.fleet.url, self.leader)
        url, warehouse = context.fleet.url, self.catalog.warehouse.url
        signer = signer_of(url, warehouse, context.runtime) if remote_signing else None
        issuer = credential_source(url, warehouse, sts, context.runtime) if sts else None
        for each in (signer, issuer):
            if each is not None:
                each.check(outside_object(url))
        self._rest = Rest(self.catalog, tokens, client_config(url), signer, issuer)
        self._jobs = [
            context.periodic("watch", self._log_leader, WATCH_EVERY_S),
            context.periodic("hand over", self._hand_over, HAND_OVER_EVERY_S),
            context.periodic("collect ledger", self._collect, COLLECT_EVERY_S),
        ]
        self._dead = Counter(
            "limpet_dead_batches_total", "Unpublished batches that were removed.", registry=context.registry
        )
        self._strays = Gauge(
            "limpet_event_strays", "Objects in the ledger of events that are not batches.", registry=context.registry
        )
        leads = Gauge("limpet_leader", "1 if this process leads the catalog.", registry=context.registry)
        leads.set_function(lambda: self.leader.leads)
        self._thread: ThreadHandle | None = None
        self._handed_at_s: float | None = None
        self._logged = (False, "", "")

    def routes(self) -> list[Route]:
        return self._rest.routes()

    def facts(self) -> dict[str, Any]:
        """Which process leads, and the published version.   Cost: 1 GET, without a body if nothing changed."""
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
        self._thread = self._runtime.spawn(self.leader.run, name="limpet-leader")
        self.leader.leader_known.wait(
            START_S
        )  # usually it leads by then, so that the first request need not be retried
        self._log_leader()
        for job in self._jobs:
            job.start()

    def _log_leader(self) -> None:
        """Log changes: which process leads, and the error that keeps this one from leading.   Cost: none."""
        leads, other, trouble = self.leader.leads, self.leader.leader, str(self.leader.trouble or "")
        led, last_other, last_trouble = self._logged
        if leads != led:
            self._log.event("lead", text="this process leads" if leads else "this process no longer leads")
        elif not leads and other and other != last_other:
            self._log.event("lead", text=f"{other} leads")
        if trouble and trouble != last_trouble:
            self._log.event("trouble", text=f"no process leads: {trouble}")
        self._logged = (leads, other, trouble)

    def _hand_over(self) -> None:
        if self.leader.leads:  # one of several APIs is enough
            since_s = self._runtime.elapsed_s()
            self._strays.set(hand_over(self._store, CatalogKeys.of(EXECUTIONS), self._fold).strays)
            self._handed_at_s = since_s

    def _collect(self) -> None:
        if self.leader.leads:
            self.catalog.finish_purges()
            self._dead.inc(collect_ledger(self.catalog.storage).dead)

    def give_up(self) -> None:
        """Stop the leader: requests that wait for a publication are answered with "outcome unknown"."""
        self.leader.stop()

    def stop(self) -> None:
        """Stop the jobs, and release the leader's lock."""
        for job in self._jobs:
            job.stop()
        self.leader.stop()
        if self._thread is not None:
            self._thread.join()
        self._log_leader()
