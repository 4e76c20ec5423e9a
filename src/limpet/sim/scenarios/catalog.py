"""API processes that lead by turns, compactors, and clients that commit to one catalog through a faulty network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Any

import limpet.catalog.compactor as compactor_module
import limpet.catalog.decide as decide_module
import limpet.catalog.leader as leader_module
import limpet.catalog.state as state_module
import limpet.cell.decide as cell_module
from limpet import records
from limpet.catalog.chain import log
from limpet.catalog.view import View
from limpet.cell import Header
from limpet.errors import OutcomeUnknown, Unavailable
from limpet.lease.decide import LeaseRecord, State
from limpet.sim.bucket import SimStore
from limpet.sim.cast import Actor, Cast, perform
from limpet.sim.catalog_books import Books, No, Request
from limpet.sim.catalog_checks import KEYS, CatalogBucket
from limpet.sim.catalog_customer import Customer
from limpet.sim.catalog_roles import Api, Habits, Publisher
from limpet.sim.catalog_wire import Wire
from limpet.sim.index_store import tuned
from limpet.sim.nemesis import Knobs, Nemesis, draw
from limpet.sim.runtime import SimRuntime
from limpet.sim.world import EPOCH, Process, Violation, World
from limpet.store.api import Absent

__all__ = ["RPC_STEPS", "STEPS", "run"]

TURNS = 12
RUN_S = 2_000.0
HEAL_S = 700.0
QUIET_S = 150.0
"""After this long no copy of a request is still under way."""
BUDGET_BASE = 400
BUDGET_PER_OPERATION = 60
SERVES = 1 << 30
USED = 5_000
STORMS = 0.15
"""In so many runs most requests between processes meet with something, and leaders have little patience."""

STEPS = (
    "commits.delete",
    "commits.list",
    "commits.put",
    "commits.read",
    "commits.settle",
    "ledger.delete",
    "ledger.list",
    "ledger.put",
    "ledger.read",
    "ledger.settle",
    "lock.create",
    "lock.free",
    "lock.read",
    "lock.renew",
    "lock.take",
    "lock.takeover",
    "manifests.put",
    "manifests.read",
    "manifests.settle",
    "snapshots.delete",
    "snapshots.list",
    "snapshots.put",
    "snapshots.read",
    "warehouse.put",
)
"""The steps of the catalog's protocol that send a request to the store."""
RPC_STEPS = ("commit.rpc", "publish.rpc")
"""Those that send one to another process."""
RARE = ("lock.takeover", "ledger.delete", "ledger.delete", "snapshots.delete")


def run(seed: int, *, muted: frozenset[str] = frozenset()) -> tuple[World, Violation | None]:
    """One run of the seed: the world as it ended, and the invariant that broke, if one did."""
    world = World(seed, muted=muted)
    knobs = draw(seed)
    with tuned(_tuning(world, knobs)):
        return perform(world, _Fleet(world, knobs))


def _tuning(world: World, knobs: Knobs) -> Mapping[tuple[ModuleType, str], Any]:
    """Snapshots, long chains, and ids that are forgotten within a handful of commits, in most runs."""
    chance = world.chance
    settings: dict[tuple[ModuleType, str], Any] = {
        (leader_module, "PATIENCE_S"): 2.0 if chance(74) < STORMS else 4 + 20 * chance(50),
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
        settings |= {(decide_module, "APPLIED_MAX"): most, (compactor_module, "APPLIED_MAX"): most}
    if chance(57) < 0.3 and not knobs.drift and not knobs.store_steps:
        settings[state_module, "ID_LIFETIME"] = timedelta(seconds=60 + 300 * chance(58))
        settings[state_module, "MINTED_LIFETIME"] = timedelta(seconds=30)
    settings[state_module, "TIDY_ABOVE"] = int(4 * chance(59))
    return settings


class _Fleet(Cast):
    """Processes on machines of their own, around one catalog."""

    def __init__(self, world: World, knobs: Knobs) -> None:
        chance = world.chance
        customers = 2 + int(2 * chance(60))
        super().__init__(world, slots=customers, turns=TURNS)
        duel = chance(61) < 0.4
        self.knobs = knobs
        self.books = Books(world)
        self.storm = chance(74) < STORMS
        self.wire = Wire(world, 0.5 if self.storm else knobs.fault_rate)
        self.habits = Habits(
            names=("a",) if self.storm or chance(62) < 0.3 else ("a", "b", "c"),
            ttl_s=knobs.ttl_s,
            apis=2 + int(2 * chance(63)),
            compactors=1 + int(3 * chance(64)),
            embedded=chance(65) < 0.2,
            rest_s=0.5 if duel else 6.0,
            patience_s=4 + 20 * chance(66),
            settles=(0.0, 0.5, 1.0)[int(3 * chance(67))],
            collects=(0.0, 0.05, 0.2)[int(3 * chance(68))],
            keeps=1 + int(4 * chance(69)),
        )
        self.bucket = CatalogBucket(world, knobs, self.books, keeps=self.habits.keeps)
        self.slots: dict[str, tuple[Process, Any]] = {}
        servers = [f"a{n}" for n in range(self.habits.apis)]
        servers += [] if self.habits.embedded else [f"k{n}" for n in range(self.habits.compactors)]
        self._turns_left |= dict.fromkeys(servers, SERVES)

    def act(self) -> None:
        """The faulty part, then the healed part in which every request gets its answer; then every check."""
        chance = self.world.chance
        if chance(70) < 0.25:
            self.bucket.put("founder", KEYS.lock, _used_lock(self.knobs.ttl_s), Absent())
            for n in range(2 + int(3 * chance(71))):
                self.world.later(10 + 120 * chance(72, n), partial(self.lose_lock, n))
        nemesis = Nemesis(self.world, self.knobs, lambda: self.living, self.restart, steps=(*STEPS, *RPC_STEPS, *RARE))
        self.play(nemesis.run, until_s=RUN_S)
        self.heal()
        self.books.close()
        budget = BUDGET_BASE + BUDGET_PER_OPERATION * self.books.operations
        if self.world.calls > budget:
            raise Violation(f"{self.world.calls} store calls for {self.books.operations} operations")

    def lose_lock(self, n: int) -> None:
        """Somebody's script removes the lock, and for a while its holder does not notice: tokens begin anew."""
        if not self.world.strike(f"vandal/{n}", "lost_lock"):
            return
        self.bucket.delete("vandal", KEYS.lock)
        self.world.note("vandal", "removes", KEYS.lock, fault="lost_lock")
        for process in self.living:
            for task in process.tasks:
                if task.name.startswith("limpet-heart"):
                    task.paused_until_s = self.world.now_s + self.knobs.ttl_s * self.world.chance(73, n)

    def actor(self, process: Process) -> Actor:
        """A program; some processes have bad clocks."""
        slot = process.name.partition("#")[0]
        if self.knobs.drift:
            process.clock_rate = 0.9 + 0.2 * self.world.chance(30, process.index)
        process.wall_offset_s = 20_000 * (self.world.chance(32, process.index) - 0.5)
        role = {"a": Api, "k": Publisher, "p": Customer}[slot[0]](self, process)
        self.slots[slot] = (process, role)
        return role

    def relaunch(self, dead: Process) -> None:
        """After the faults there are only newcomers."""
        if not self.world.healed:
            super().relaunch(dead)

    def find(self, slot: str) -> tuple[Process, Any] | None:
        """The process that runs in a slot now."""
        return self.slots.get(slot)

    def store(self, runtime: SimRuntime) -> SimStore:
        """A process's view of the bucket."""
        return SimStore(self.world, self.bucket, runtime, self.knobs)

    def heal(self) -> None:
        """Faults stop. Whatever happened before, newcomers lead, and whoever still wants an answer gets one."""
        self.world.healed = True
        self.world.note("nemesis", "faults stop")
        for process in [*self.living]:
            self.world.kill(process)
        for slot in [*self._turns_left]:
            if slot == "a0" or slot.startswith("k"):
                self.launch(slot, 1_000)
        newcomer = Customer(self, self.world.start("newcomer"))
        self.alone(newcomer, partial(self.ask_again, newcomer))
        self.alone(newcomer, partial(self.look_back, newcomer))

    def alone(self, actor: Customer, work: Callable[[], None]) -> None:
        """Let one actor work, without faults, until it is done.   Raises: Violation if it never is."""
        task = self.world.spawn(actor.process, work)
        self.world.run(until_s=self.world.now_s + HEAL_S, done=lambda: task.done)
        self.fail_on_error()
        if not task.done:
            raise Violation(f"no progress: {HEAL_S:g} s after the faults stopped {actor.process.name} still works")

    def ask_again(self, newcomer: Customer) -> None:
        """A new request is granted; so is, or else refused, what was still open."""
        newcomer.runtime.sleep(QUIET_S)
        self.insist(newcomer, "newcomer", Request("put", {}, {"new": "1"}, with_file=True))
        for id_, calls in [*self.books.calls.items()]:
            asks = not id_.startswith(state_module.MINTED)  # nobody knows such an id
            if asks and any(call.outcome in ("", "unknown") for call in calls):
                self.insist(newcomer, id_, calls[0].request)

    def insist(self, newcomer: Customer, id_: str, request: Request) -> None:
        """Send a request until it is answered."""
        while True:
            try:
                newcomer.send("a0", id_, request)
            except No:
                return
            except (Unavailable, OutcomeUnknown):
                newcomer.runtime.sleep(5.0)
            else:
                return

    def look_back(self, newcomer: Customer) -> None:
        """The catalog reads as it was published, by whatever way."""
        head = newcomer.look_at(View(newcomer.storage))
        if head is None or head.version != self.bucket.version:
            raise Violation("a newcomer does not read the newest version")
        self.bucket.walked([*log(newcomer.storage, head)], head)
        if self.habits.collects:
            newcomer.collect()
        newcomer.look_back(self.bucket.kept_from)
        newcomer.look_back()


def _used_lock(ttl_s: float) -> bytes:
    """A lock that has changed hands many times."""
    record = LeaseRecord(
        state=State.FREE,
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
