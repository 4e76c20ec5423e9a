"""Scenario: API processes that lead in turn, compactors, and clients of one catalog, with a faulty network.

The invariants are in `sim.catalog_model`: they are checked for every answer when it is given, and for every head when
it is published. The processes are in `sim.catalog_processes`.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Any

import limpet.catalog.compactor as compactor_module
import limpet.catalog.heads as heads_module
import limpet.catalog.leader as leader_module
import limpet.catalog.state as state_module
import limpet.kernel.cell.decide as cell_module
from limpet.catalog import CatalogView
from limpet.catalog.history import log
from limpet.kernel import records
from limpet.kernel.cell import Header
from limpet.kernel.errors import OutcomeUnknown, Unavailable
from limpet.kernel.lease.decide import LeaseRecord
from limpet.kernel.lease.decide import State as LeaseState
from limpet.kernel.store.api import Absent
from sim.actors import Actor, Actors, Nemesis, RunPlan, Settings, steps
from sim.catalog_model import KEYS, CatalogBucket, CatalogModel, EntryRequest, RequestRefused
from sim.catalog_processes import ApiProcess, CatalogClient, CompactorProcess, RpcPipe
from sim.world import EPOCH, SimProcess, Violation, World

TURNS = 12
RUN_S = 2_000.0
HEAL_S = 700.0
QUIET_S = 150.0
"""After this time no duplicate of a request is in flight."""
BUDGET_BASE = 400
BUDGET_PER_OPERATION = 60
SERVES = 1 << 30
USED = 5_000
STORMS = 0.15
"""The share of runs in which most requests between processes meet a fault, and leaders have short timeouts."""
STEPS = steps(
    "commits: delete list put read settle",
    "ledger: delete list put read settle",
    "lock: create free read renew take takeover",
    "manifests: put read settle",
    "snapshots: delete list put read",
    "warehouse: put",
)
"""The steps of the catalog's protocol that send a request to the store."""
RPC_STEPS = ("commit.rpc", "publish.rpc")
"""Those that send one to another process."""
RARE = ("lock.takeover", "ledger.delete", "ledger.delete", "snapshots.delete")


class CatalogActors(Actors):
    """Processes on separate machines, around one catalog."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        chance = world.chance
        customers = 2 + int(2 * chance(60))
        super().__init__(world, plan, slots=customers, turns=TURNS)
        duel = chance(61) < 0.4
        self.model = CatalogModel(world)
        storm = chance(74) < STORMS
        self.names = ("a",) if storm or chance(62) < 0.3 else ("a", "b", "c")
        self.apis = 2 + int(2 * chance(63))
        self.compactors = 1 + int(3 * chance(64))
        self.embedded = chance(65) < 0.2
        """Each API process publishes by itself."""
        self.rest_s = 0.5 if duel else 6.0
        self.patience_s = 4 + 20 * chance(66)
        self.settles = (0.0, 0.5, 1.0)[int(3 * chance(67))]
        self.collects = (0.0, 0.05, 0.2)[int(3 * chance(68))]
        self.keeps = 1 + int(4 * chance(69))
        self.bucket = CatalogBucket(world, plan, self.model, keeps=self.keeps)
        self.slots: dict[str, tuple[SimProcess, Any]] = {}
        """By slot, the process that runs in it now."""
        self.pipe = RpcPipe(world, self.slots, 0.5 if storm else plan.fault_rate)
        servers = [f"a{n}" for n in range(self.apis)]
        servers += [] if self.embedded else [f"k{n}" for n in range(self.compactors)]
        self.turns_left |= dict.fromkeys(servers, SERVES)

    @staticmethod
    def tuning(world: World, plan: RunPlan) -> Settings:
        """Constants with which, in most runs, a handful of commits makes snapshots, long chains and forgotten ids."""
        chance = world.chance
        settings: dict[tuple[ModuleType, str], Any] = {
            (leader_module, "PUBLISH_S"): 2.0 if chance(74) < STORMS else 4 + 20 * chance(50),
            (leader_module, "LOOK_EVERY_S"): 2 + 8 * chance(51),
        }
        if chance(52) < 0.8:
            settings[compactor_module, "SNAPSHOT_EVERY"] = 1 + int(6 * chance(53))
        if chance(54) < 0.2:
            settings[compactor_module, "TAIL_BYTES_MAX"] = 300
        if chance(49) < 0.3:
            settings[cell_module, "RING_SIZE"] = 1
        if chance(55) < 0.5:
            most = 1 + int(3 * chance(56))
            settings |= {(heads_module, "APPLIED_MAX"): most, (compactor_module, "APPLIED_MAX"): most}
        if chance(57) < 0.3 and not plan.drift and not plan.store_steps:
            settings[state_module, "ID_LIFETIME"] = timedelta(seconds=60 + 300 * chance(58))
            settings[state_module, "MINTED_LIFETIME"] = timedelta(seconds=30)
        settings[state_module, "TIDY_ABOVE"] = int(4 * chance(59))
        return settings

    def act(self) -> None:
        chance = self.world.chance
        if chance(70) < 0.25:
            self.bucket.put("founder", KEYS.lock, _used_lock(self.plan.ttl_s), Absent())
            for n in range(2 + int(3 * chance(71))):
                self.world.later(10 + 120 * chance(72, n), partial(self.lose_lock, n))
        self.play(Nemesis(self, (*STEPS, *RPC_STEPS, *RARE)).run, until_s=RUN_S)
        self.stop_faults()
        for slot in [*self.turns_left]:
            if slot == "a0" or slot.startswith("k"):
                self.launch(slot, 1_000)
        newcomer = CatalogClient(self, self.world.start("newcomer"))
        self.alone(newcomer, partial(self.ask_again, newcomer), within_s=HEAL_S)
        self.alone(newcomer, partial(self.look_back, newcomer), within_s=HEAL_S)
        self.model.close()
        operations = self.model.operations
        self.world.check_calls(BUDGET_BASE + BUDGET_PER_OPERATION * operations, f"{operations} operations")

    def lose_lock(self, n: int) -> None:
        """A user's script removes the lock, and its holder notices late: tokens start again."""
        if not self.world.strike(f"vandal/{n}", "lost_lock"):
            return
        self.bucket.delete("vandal", KEYS.lock)
        self.world.note("vandal", "removes", KEYS.lock, fault="lost_lock")
        for process in self.living:
            for task in process.renewals():
                task.paused_until_s = self.world.now_s + self.plan.ttl_s * self.world.chance(73, n)

    def actor(self, process: SimProcess) -> Actor:
        slot = process.name.partition("#")[0]
        self.vary(process, newer=False)
        process.wall_offset_s = 20_000 * (self.world.chance(32, process.index) - 0.5)
        role = {"a": ApiProcess, "k": CompactorProcess, "p": CatalogClient}[slot[0]](self, process)
        self.slots[slot] = (process, role)
        return role

    def relaunch(self, dead: SimProcess) -> None:
        """As for every actor; after the faults there are only newcomers."""
        if not self.world.healed:
            super().relaunch(dead)

    def ask_again(self, newcomer: CatalogClient) -> None:
        """A new request is granted; every request that was still open is granted or refused."""
        newcomer.runtime.sleep(QUIET_S)
        self.insist(newcomer, "newcomer", EntryRequest("put", {}, {"new": "1"}, with_file=True))
        for id_, calls in [*self.model.calls.items()]:
            asks = not id_.startswith(state_module.MINTED)  # no client knows such an id
            if asks and any(call.outcome in ("", "unknown") for call in calls):
                self.insist(newcomer, id_, calls[0].request)

    def insist(self, newcomer: CatalogClient, id_: str, request: EntryRequest) -> None:
        """Send a request until it is answered."""
        while True:
            try:
                with suppress(RequestRefused):
                    newcomer.send("a0", id_, request)
                return
            except (Unavailable, OutcomeUnknown):
                newcomer.runtime.sleep(5.0)

    def look_back(self, newcomer: CatalogClient) -> None:
        """Every way to read the catalog shows what was published."""
        head = newcomer.look_at(CatalogView(newcomer.storage))
        if head is None or head.version != self.bucket.version:
            raise Violation("a newcomer does not read the newest version")
        self.bucket.walked([*log(newcomer.storage, head)], head)
        if self.collects:
            newcomer.collect()
        newcomer.look_back(self.bucket.kept_from)
        newcomer.look_back()


def _used_lock(ttl_s: float) -> bytes:
    """A lock that has changed hands many times."""
    record = LeaseRecord(
        state=LeaseState.FREE,
        name="catalog",
        worker_id="old",
        label="old",
        token=USED,
        attempt=USED,
        created_at=EPOCH,
        heartbeat_at=EPOCH,
        expires_at=EPOCH,
        ttl_s=ttl_s,
    )
    return records.encode(Header(1, USED, "old"))[:-1] + b"," + records.encode(record)[1:]
