"""Scenario: API processes that lead in turn, compactors, and clients of one catalog, with a faulty network.

The invariants are checked for every answer when it is given, and for every head when it is published. The commits
define the serial order. Each request is decided here independently, on the state after those before it, so that a
mistake in `limpet.catalog` is found.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any, cast

import msgspec

import limpet.catalog.compactor as compactor_module
import limpet.catalog.leader as leader_module
import limpet.catalog.state as state_module
import limpet.cell.decide as cell_module
from limpet import records
from limpet.catalog import CatalogView, Compactor, Grant, Leader, PublicationRefused
from limpet.catalog.commit import WorkedMetadata
from limpet.catalog.compactor import Unreachable
from limpet.catalog.gc import (
    BatchOutcome,
    ClassifiedBatch,
    classify_ledger,
    collect_ledger,
    delete_below,
    raise_floor,
    will_never_be,
)
from limpet.catalog.history import find_commit, log, state_of, verify
from limpet.catalog.leader import Decide, Documents, NeedsMetadata
from limpet.catalog.records import (
    ACTOR,
    CatalogHead,
    Change,
    CommitRecord,
    LedgerBatch,
    Link,
    RememberedAnswer,
    Row,
    SnapshotRef,
)
from limpet.catalog.state import MINTED, CatalogState, is_remembered
from limpet.catalog.storage import CatalogStorage
from limpet.cell import Header
from limpet.errors import Conflict, Corrupt, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.keys import CatalogKeys, Key
from limpet.lease import Lock, VersionWatch
from limpet.lease.decide import LeaseRecord
from limpet.lease.decide import State as LeaseState
from limpet.ledger import Publication
from limpet.sim.actors import Actor, Actors, Nemesis, RunPlan, Settings, Turns, pick_fault, steps
from limpet.sim.bucket import Bucket, SimStore
from limpet.sim.world import EPOCH, PendingRequest, SimProcess, SimRuntime, Violation, World
from limpet.store.api import Absent, Put, Version, When

KEYS = CatalogKeys.of("catalog")

Entries = Mapping[str, Any]
"""The state: by key a value, `{"v": text}`, with `"file"` where it came with an object."""

SLACK = timedelta(seconds=5)
"""How far a leader's clock may be ahead of a compactor's: it may forget an id that much early."""

TURNS = 12
RUN_S = 2_000.0
HEAL_S = 700.0
QUIET_S = 150.0
"""After this time no duplicate of a request is in flight."""
BUDGET_BASE = 400
BUDGET_PER_OPERATION = 60
SERVES = 1 << 30
FOREVER_S = 600.0
TRIES_MAX = 8
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
RPC_FAULTS = ("lost_request", "lost_reply", "late", "duplicate", "slow")
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
            settings |= {(state_module, "APPLIED_MAX"): most, (compactor_module, "APPLIED_MAX"): most}
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


class RpcPipe:
    """The network between processes: requests or answers are lost, duplicated or delayed."""

    def __init__(self, world: World, slots: Mapping[str, tuple[SimProcess, Any]], fault_rate: float) -> None:
        self._world = world
        self._slots = slots
        self._fault_rate = fault_rate
        self._sent: Counter[int] = Counter()

    def call(
        self,
        caller: SimRuntime,
        step: str,
        slot: str,
        work: Callable[[Any], Any],
        *,
        patience_s: float,
        unreachable: LimpetError | None = None,
    ) -> Any:
        """Do `work` with the actor that is in the slot when the request arrives, in a task of its process.

        Raises: what `work` raises there; OutcomeUnknown when no answer comes in time; `unreachable`, if it is given,
        when no process is there to connect to.
        """
        world, process = self._world, caller.process
        world.check_alive(process)
        self._sent[process.index] += 1
        sent = self._sent[process.index]
        fault = pick_fault(world, process, RPC_FAULTS, self._fault_rate, salt=80, number=sent, name="rpc")
        world.coverage[fault or "none", step] += 1
        near, far = (world.chance(n, process.index, sent) for n in (82, 83))
        answers: list[tuple[Any, LimpetError | None]] = []
        answered = caller.flag()

        def deliver(result: Any, error: LimpetError | None) -> None:
            answers.append((result, error))
            answered.set()

        def serve(actor: Any, *, reply: bool) -> None:
            result, error = _attempt(partial(work, actor))
            if reply:
                world.later(0.005 + 0.02 * far, partial(deliver, result, error))

        def arrive(*, reply: bool) -> None:
            found = self._slots.get(slot)
            if found is not None and found[0].alive:
                world.spawn(found[0], partial(serve, found[1], reply=reply), name="rpc")
            elif unreachable is not None and reply:
                deliver(None, unreachable)

        process.in_flight[-sent] = PendingRequest(step, partial(arrive, reply=False))
        world.begins(step, process)
        if fault == "late":
            world.later(patience_s * (1 + 12 * near), process.in_flight.pop(-sent).land)
        else:
            world.pause(0.005 + 0.02 * near * (100 if fault == "slow" else 1))
            process.in_flight.pop(-sent, None)
            if fault == "duplicate":
                world.later(8 * patience_s * far * far, partial(arrive, reply=False))
            if fault not in ("lost_request", "cut_off"):
                arrive(reply=fault != "lost_reply")
        answered.wait(patience_s)
        result, error = answers[0] if answers else (None, OutcomeUnknown("no answer came"))
        outcome = (type(error).__name__ if error else "ok") if answers else "no answer"
        world.note(process.name, step, result=outcome, fault=fault)
        if error is not None:
            raise error
        return result


def _attempt(work: Callable[[], Any]) -> tuple[Any, LimpetError | None]:
    try:
        return work(), None
    except LimpetError as error:
        return None, error


class SkewedRuntime(SimRuntime):
    """Its ids come from the machine's wall clock, which may be wrong by days."""

    def new_id(self) -> str:
        self._ids += 1
        ms = int((self.world.now_s + self.process.wall_offset_s + 5e6) * 1000)
        return f"{ms:010d}p{self.process.index:03d}n{self._ids:011d}"


class CatalogActor(Actor):
    """A process of the catalog, with its view of the bucket."""

    def __init__(self, actors: CatalogActors, process: SimProcess) -> None:
        runtime = SkewedRuntime(actors.world, process)
        super().__init__(runtime, SimStore(actors.bucket, runtime))
        self.actors = actors
        self.model = actors.model
        self.bucket = actors.bucket
        self.storage = CatalogStorage(self.store, KEYS, runtime, JsonSnapshots())

    def turns(self) -> Turns:
        """A server only serves."""
        return [(1.0, self.serve)]

    def serve(self) -> None:
        """Serve until the process ends."""
        while True:
            self.runtime.sleep(FOREVER_S)


class CompactorProcess(CatalogActor):
    """A compactor service."""

    def __init__(self, actors: CatalogActors, process: SimProcess) -> None:
        super().__init__(actors, process)
        self.compactor = Compactor(self.storage)
        self.preparing = False

    def publish(self, paths: Sequence[str], token: int) -> Publication:
        """See `Compactor.publish`; often the record of the commit is written after the answer is out."""
        newest = self.bucket.heads[-1] if self.bucket.heads else None
        try:
            published = self.compactor.publish(paths, token)
        except Corrupt as error:
            raise Violation(f"{self.process.name} takes a sound catalog for broken: {error}") from error
        except PublicationRefused:
            self.bucket.refused(paths)
            raise
        except Invalid:
            self.bucket.not_taken(paths, newest)
            raise
        self.bucket.answered(paths, published)
        if self.chance() < self.actors.settles:
            self.runtime.spawn(self.settle, name="settle")
            if not self.preparing:
                self.preparing = True
                self.runtime.spawn(self.prepare, name="prepare")
        return published

    def settle(self) -> None:
        """Write the record of the newest commit."""
        with suppress(Missing, OutcomeUnknown, Unavailable):
            self.compactor.record()

    def prepare(self) -> None:
        """Make the snapshot that will be due soon."""
        with suppress(Missing, OutcomeUnknown, Unavailable):
            self.compactor.prepare()
        self.preparing = False


class ApiProcess(CompactorProcess):
    """An API service. It leads if it can, and any process may ask it to commit."""

    def __init__(self, actors: CatalogActors, process: SimProcess) -> None:
        super().__init__(actors, process)
        lock = Lock(
            self.store,
            KEYS.lock,
            "catalog",
            self.actors.plan.ttl_s,
            self.runtime,
            VersionWatch(self.runtime),
            look_first=True,
        )
        self.leader = Leader(self.storage, self.ask, lock)
        self.asked: tuple[Sequence[str], int] | None = None
        """The batch, and its token, whose fate the leader does not know yet."""
        self.files = 0

    def serve(self) -> None:
        """Lead, or wait for the lead."""
        self.leader.run()

    def ask(self, paths: Sequence[str], token: int) -> Publication:
        """Called by the leader, which would handle a violation like any bug: so the world records it first."""
        try:
            return self.carry(paths, token)
        except Violation as violation:
            self.world.failure = self.world.failure or violation
            raise

    def carry(self, paths: Sequence[str], token: int) -> Publication:
        """Publish, or ask a compactor to.   Raises: Violation if a term continues before its last batch is settled."""
        if self.asked is not None and self.asked[0] != paths and self.asked[1] == token:
            raise Violation(f"{self.process.name} continues its term, and {self.asked[0]} may still be published")
        before, self.asked = self.asked, None if self.bucket.is_epoch(paths) else (paths, token)
        try:
            published = self.publish(paths, token) if self.actors.embedded else self.send(paths, token)
        except PublicationRefused:
            self.asked = None
            raise
        except Unreachable:
            self.asked = before
            raise
        self.asked = None
        return published

    def send(self, paths: Sequence[str], token: int) -> Publication:
        """Ask some compactor to publish."""
        slot = f"k{int(self.chance() * self.actors.compactors)}"
        published: Publication = self.actors.pipe.call(
            self.runtime,
            "publish.rpc",
            slot,
            lambda compactor: compactor.publish(paths, token),
            patience_s=1 + 3 * self.chance(),
            unreachable=Unreachable("no compactor is there"),
        )
        return published

    def commit(self, id_: str | None, request: EntryRequest, actor: str) -> Any:
        """Handle a request, as the service does. What it would sign for its sender is decided by what it knows."""
        self.authorize()
        id_ = id_ or MINTED + self.runtime.new_id()
        call = self.model.begins(id_, self.process.name, request, actor)
        try:
            result = self.ask_leader(id_, request, actor)
        except RequestRefused as no:
            self.model.refused(call, str(no))
            raise
        except (Unavailable, OutcomeUnknown) as error:
            self.model.ends(call, "503" if isinstance(error, Unavailable) else "unknown")
            raise
        self.model.acknowledged(call, result)
        return result

    def authorize(self) -> None:
        """Read the folders of a table, for a signature, a credential or a plan, as `Catalog.table_folders` does.

        A process that does not lead reads the head (`CatalogClient.look_at`).   Raises: Violation.
        """
        state = self.leader.known
        if state is not None:
            self.model.authorized(self.process.name, state.entries())

    def ask_leader(self, id_: str, request: EntryRequest, actor: str) -> Any:
        """Let the leader decide a request; a swap is worked out ahead of that, as in `Catalog.commit_table`."""
        if request.what != "swap":
            return self.leader.commit(id_, self.decide(id_, request, _ruled), actor)
        ahead, known = WorkedMetadata(_Pages()), self.leader.known  # type: ignore[arg-type]  # reads as a warehouse does
        if known is not None:
            ahead.work_out(_needs(request, known))

        def worked_out(request: EntryRequest, state: CatalogState) -> Granted | NeedsMetadata:
            needs = _needs(request, state)
            (path,) = needs
            if not ahead.has(path):
                return NeedsMetadata(needs)
            made: Any = ahead.result(path)
            return cast(_WorkedDocument, made).granted

        for _ in range(TRIES_MAX):
            answer = self.leader.commit(id_, self.decide(id_, request, worked_out), actor)
            if not isinstance(answer, NeedsMetadata):
                return answer
            ahead.work_out(answer.needs)
        raise Unavailable("others were first too often")

    def decide(
        self, id_: str, request: EntryRequest, rule: Callable[[EntryRequest, CatalogState], Granted | NeedsMetadata]
    ) -> Decide:
        """The request in the form that the leader takes."""

        def decide(state: CatalogState, made: Documents) -> Grant | NeedsMetadata:
            rules = rule(request, state)
            if isinstance(rules, NeedsMetadata):
                return rules
            file = None
            if request.with_file:
                self.files += 1
                file = Key(f"warehouse/{self.process.index}-{self.files}")
            value = {"file": file} if file else {}
            changes = tuple(
                Change(key, None if text is None else {"v": text, **value}) for key, text in rules.texts.items()
            )
            writes = (Put(file, id_.encode(), Absent()),) if file else ()
            return Grant(request.what, changes, rules.result, writes)

        return decide


@dataclass(frozen=True, slots=True)
class _WorkedDocument:
    """A swap that was worked out, in place of a document."""

    granted: Granted

    def digest(self) -> str:
        return ""


class _Pages:
    """A warehouse for `WorkedMetadata`: an entry's text is its metadata, and its path is the entry and the text."""

    def read(self, path: str) -> str:
        return path


def _ruled(request: EntryRequest, state: CatalogState) -> Granted:
    """Raises: RequestRefused."""
    rules = ruling(request, {key: state.get(key) for key in request.wanted if state.get(key)})
    if not isinstance(rules, Granted):
        raise RequestRefused(rules)
    return rules


def _needs(request: EntryRequest, state: CatalogState) -> dict[str, Callable[[Any], Any]]:
    """By the path of an entry's metadata, how a request for that entry is worked out."""
    ((key, value),) = ((key, state.get(key)) for key in request.wanted)
    base = CatalogState({key: value} if value else {}, {})
    return {f"{key}={value['v'] if value else ''}": lambda _: _WorkedDocument(_ruled(request, base))}


class _SlowStorage(CatalogStorage):
    """Delays a reader between a head and the snapshot that it names, often until GC has run."""

    bucket: CatalogBucket

    def snapshot(self, ref: SnapshotRef | None) -> CatalogState:
        for _ in range(20):
            self.runtime.sleep(self.runtime.rng.random() * 10)
            if ref is None or self.keys.snapshot(ref.id) not in self.bucket.objects:
                break
        return super().snapshot(ref)


class CatalogClient(CatalogActor):
    """A client: commits, reads, walks the chain, and now and then collects garbage."""

    def __init__(self, actors: CatalogActors, process: SimProcess) -> None:
        super().__init__(actors, process)
        self.view = CatalogView(self.storage)
        self.api = 0
        self.name = process.name if process.index % 2 else ""
        """The name by which the service knows it; some clients have none."""
        self.seen: dict[str, str | None] = {}
        self.old: CatalogHead | None = None

    def turns(self) -> Turns:
        return [
            (self.actors.collects, self.collect),
            (0.04, self.walk),
            (0.04, self.look_back),
            (0.12, self.look),
            (0.25, self.commit_some),
            (1.0, lambda: self.commit(self.request())),
        ]

    def rest(self) -> None:
        self.runtime.sleep(self.chance() * self.actors.rest_s)

    def commit_some(self) -> None:
        """Several at once."""
        requests = [self.request() for _ in range(2 + int(self.chance() * 3))]

        def one(request: EntryRequest) -> None:
            with suppress(Unavailable, OutcomeUnknown):
                self.commit(request)

        self.runtime.fan_out(one, requests)

    def request(self) -> EntryRequest:
        """A request that may be refused."""
        name, kind = self.some_key(), self.chance()
        with_file = self.chance() < 0.25
        if kind < 0.3:
            return EntryRequest("create", {name: None}, {name: self.new_value()}, with_file)
        if kind < 0.5:
            return EntryRequest("drop", {name: self.seen.get(name)}, {name: None})
        if kind < 0.6:
            return EntryRequest("put", {}, {name: self.new_value()}, with_file)
        if kind < 0.8:
            return EntryRequest("swap", {name: self.seen.get(name)}, {name: self.new_value()}, with_file)
        names = sorted({name, self.some_key(), self.some_key()})
        wanted = {each: None if self.chance() < 0.3 else self.new_value() for each in names}
        return EntryRequest("transaction", {name: self.seen.get(name)}, wanted, with_file)

    def some_key(self) -> str:
        """Some key."""
        return self.actors.names[int(self.chance() * len(self.actors.names))]

    def commit(self, request: EntryRequest) -> None:
        """Send it until it is answered, or the client gives up: with the same id, to any API."""
        id_ = f"{self.process.name}-{self.new_value()}" if self.chance() < 0.85 else None
        for _ in range(8):
            try:
                self.send(f"a{self.api}", id_, request)
                self.seen.update(request.wanted)
                return
            except RequestRefused:
                return
            except (OutcomeUnknown, Unavailable) as error:
                if isinstance(error, OutcomeUnknown) and (id_ is None or self.chance() < 0.2):
                    return
            self.api = int(self.chance() * self.actors.apis)
            self.runtime.sleep(self.chance() * self.actors.plan.ttl_s / 2)

    def send(self, slot: str, id_: str | None, request: EntryRequest) -> Any:
        """One request to an API."""
        return self.actors.pipe.call(
            self.runtime,
            "commit.rpc",
            slot,
            lambda api: api.commit(id_, request, self.name),
            patience_s=self.actors.patience_s * (0.5 + self.chance()),
        )

    def look(self) -> None:
        """Read, with an old view or a new one, alone or twice at a time."""
        if self.chance() < 0.3:
            self.runtime.fan_out(self.look_at, [self.view] * 2)
        elif self.chance() < 0.5:
            self.look_at(self.view)
        elif self.chance() < 0.5:
            self.look_at(CatalogView(self.storage))
        else:
            slow = _SlowStorage(self.store, KEYS, self.runtime, JsonSnapshots())
            slow.bucket = self.bucket
            self.look_at(CatalogView(slow))

    def look_at(self, view: CatalogView) -> CatalogHead | None:
        """Read.   Raises: Violation unless it is what was published at some moment of the call."""
        self.model.operations += 1
        least = self.bucket.version
        try:
            loaded = view.now()
        except Unavailable:
            return None
        found = loaded.head.version if loaded else 0
        if not least <= found <= self.bucket.version:
            raise Violation(f"{self.process.name} read version {found} when {least} was published")
        if loaded is None:
            return None
        if loaded.head not in self.bucket.heads:
            raise Violation(f"{self.process.name} read a head that never was: {loaded.head}")
        self.same(loaded.state, found)
        self.seen = {key: value["v"] for key, value in loaded.state.entries().items()}
        return loaded.head

    def same(self, state: CatalogState, version: int) -> None:
        """Raises: Violation unless the state is that of the version."""
        if state.entries() != self.bucket.known[version].entries:
            known = self.bucket.known[version].entries
            raise Violation(f"{self.process.name} read {state.entries()} as version {version}, which is {known}")

    def head(self) -> CatalogHead | None:
        """A head to walk from: the newest, or one that was read a while ago."""
        head = self.old if self.old and self.chance() < 0.4 else self.look_at(self.view)
        self.old = head
        return head

    def walk(self) -> None:
        """The whole chain."""
        head = self.head()
        if head is None:
            return
        if self.chance() < 0.5:
            self.bucket.walked([*log(self.storage, head)], head)
        elif (checked := verify(self.storage, head)).broken:
            raise Violation(f"the chain of version {head.version} is broken: {checked.broken}")

    def look_back(self, version: int | None = None) -> None:
        """The state as it once was."""
        head = self.head()
        if head is None:
            return
        wanted = version or 1 + int(self.chance() * head.version)
        try:
            commit = find_commit(self.storage, head, lambda commit: commit.version <= wanted)
            if commit != self.bucket.known[wanted].commit:
                raise Violation(f"version {wanted} was found as {commit}")
            self.same(state_of(self.storage, head, commit), wanted)
        except Missing as error:
            if wanted >= self.bucket.kept_from:
                raise Violation(f"version {wanted} must be kept: {error}") from error

    def collect(self) -> None:
        """Collect garbage, all of it or some."""
        self.model.operations += 3
        grace_s = self.chance() * self.actors.plan.ttl_s
        raise_floor(self.storage, keep=timedelta(0), keep_versions=self.actors.keeps)
        if self.chance() < 0.8:
            delete_below(self.storage, grace_s=grace_s)
        if self.chance() < 0.5:
            self.bucket.classified(classify_ledger(self.storage, grace_s=grace_s))
            collect_ledger(self.storage, grace_s=grace_s)


# ---- what must hold: every answer ----


class RequestRefused(Conflict):
    """Why a request is refused. It names the conflicting value, and values are unique."""


@dataclass(frozen=True, slots=True)
class EntryRequest:
    """Make, change or drop entries, if each is as expected. `expected`: by key a text, or None for no entry."""

    what: str
    expected: Mapping[str, str | None]
    wanted: Mapping[str, str | None]
    with_file: bool = False


@dataclass(frozen=True, slots=True)
class Granted:
    """A request is granted: the texts that it leaves behind, and its result."""

    texts: Mapping[str, str | None]
    result: Any


def ruling(request: EntryRequest, entries: Entries) -> Granted | str:
    """The decision on a request in a state; a text is the reason for a refusal."""
    found = {key: entries[key]["v"] if key in entries else None for key in request.wanted}
    for key, text in request.expected.items():
        if found[key] != text:
            return f"{key} is {found[key]}, not {text}"
    return Granted(request.wanted, {"was": [found[key] for key in sorted(found)]})


@dataclass(slots=True)
class CommitCall:
    """A call of `Leader.commit`. `first` is the serial point at which it began; an open one has no outcome."""

    id: str
    who: str
    request: EntryRequest
    began_s: float
    first: int
    actor: str
    """The name of the client that sent it."""
    ended_s: float = float("inf")
    outcome: str = ""


@dataclass(slots=True)
class _Grant:
    point: int
    at: str
    result: Any
    by: str
    written_s: float


@dataclass(slots=True)
class CatalogModel:
    """Every call, every serial point, every grant."""

    world: World
    points: list[Entries] = field(default_factory=lambda: [{}])
    """The state after each granted request, in order: all states that ever were."""
    granted: dict[str, list[_Grant]] = field(default_factory=dict)
    calls: dict[str, list[CommitCall]] = field(default_factory=dict)
    operations: int = 0
    settled: int = 0
    """The newest point that a client knows of."""

    def begins(self, id_: str, who: str, request: EntryRequest, actor: str) -> CommitCall:
        """A process is asked to commit, by a client of that name."""
        self.operations += 1
        call = CommitCall(id_, who, request, self.world.now_s, len(self.points) - 1, actor)
        self.calls.setdefault(id_, []).append(call)
        return call

    def ends(self, call: CommitCall, outcome: str, detail: object = "") -> None:
        """It was answered: by 503 if it was not attempted; by 500, "unknown", it stays open."""
        call.ended_s, call.outcome = self.world.now_s, outcome
        self.world.note(call.who, "answers", call.id, call.request.what, f"{outcome} {detail}")

    def acknowledged(self, call: CommitCall, result: Any) -> None:
        """It was acknowledged.   Raises: Violation unless it is published, with that very result."""
        self.ends(call, "ok", result)
        grants = self.granted.get(call.id, [])
        if not grants:
            raise Violation(f"{call.who} acknowledged {call.id}, which is not published")
        if result not in [grant.result for grant in grants]:
            raise Violation(f"{call.id} was answered with {result}, and {grants[-1].result} was published")
        self.settled = max(self.settled, grants[0].point)

    def authorized(self, who: str, entries: Entries) -> None:
        """A right was checked by this state.   Raises: Violation if it lacks a change that was acknowledged before."""
        if entries not in self.points[self.settled :]:
            raise Violation(f"{who} signs by {entries}, and {self.points[self.settled]} was acknowledged")

    def refused(self, call: CommitCall, why: str) -> None:
        """It was refused.   Raises: Violation unless that was so at some moment of the call."""
        self.ends(call, "no", why)
        grant = self.granted.get(call.id, [])[-1:]
        now = self.world.store_time().isoformat(timespec="microseconds")
        for at, entries in enumerate(self.points[call.first :], call.first):
            if grant and grant[0].point <= at and is_remembered(call.id, grant[0].at, _later(now)):
                raise Violation(f"{call.id} was published, and {call.who} refused it: {why}")
            if ruling(call.request, entries) == why:
                return
        raise Violation(f"{call.who} refused {call.id} because {why}, and that was never so during the call")

    def publish(self, row: Row, at: str, by: str, written_s: float, read: Callable[[str], bytes | None]) -> None:
        """A head holds a new row, whose batch `by` wrote.   Raises: Violation."""
        before = self.points[-1]
        calls = self.calls.get(row.id)
        if not calls:
            raise Violation(f"{row.id} was published, and no client ever sent it")
        earlier = self.granted.get(row.id, [])[-1:]
        if earlier and is_remembered(row.id, earlier[0].at, _later(at)):
            raise Violation(f"{row.id} was published twice")
        for call in calls:
            if call.outcome == "no" and written_s < call.began_s:
                raise Violation(f"{call.who} refused {row.id}, and then an older copy of it was published")
        rules = ruling(calls[0].request, before)
        if isinstance(rules, str):
            raise Violation(f"{row.id} was published although {rules}")
        if row.actor not in {call.actor for call in calls}:
            raise Violation(f"{row.id} was published as a request of {row.actor!r}, and {calls[0].actor!r} sent it")
        changes = [change for change in row.changes if change.key != ACTOR]
        texts = {change.key: change.value["v"] if change.value else None for change in changes}
        if texts != rules.texts or row.result != rules.result:
            raise Violation(f"{row.id} was published as {row}, and should be {rules}")
        after = dict(before)
        for change in changes:
            if change.value is None:
                after.pop(change.key, None)
                continue
            file = change.value.get("file")
            if file is not None and read(file) != row.id.encode():
                raise Violation(f"{row.id} was published, and {file} is not there yet, or not its own")
            after[change.key] = change.value
        self.points.append(after)
        grant = _Grant(len(self.points) - 1, at, row.result, by, written_s)
        self.granted.setdefault(row.id, []).append(grant)

    def close(self) -> None:
        """At the end: what was published was attempted.   Raises: Violation."""
        for id_, grants in self.granted.items():
            for grant in grants:
                calls = [call for call in self.calls[id_] if call.who == grant.by]
                during = [call for call in calls if call.began_s <= grant.written_s <= call.ended_s]
                if not any(call.outcome in ("", "ok", "unknown") for call in during):
                    answers = [call.outcome for call in during]
                    raise Violation(f"{id_} was published by {grant.by}, which had answered {answers}")


def _later(at: str) -> str:
    return (datetime.fromisoformat(at) + SLACK).isoformat(timespec="microseconds")


# ---- every head ----


class JsonSnapshots:
    """Snapshots as JSON."""

    def to_bytes(self, state: CatalogState) -> bytes:
        """The state as JSON."""
        return msgspec.json.encode([state.entries(), state.answers()])

    def from_bytes(self, data: bytes, *, what: str) -> CatalogState:
        """The state that `to_bytes` encoded."""
        entries, answers = msgspec.json.decode(data, type=tuple[dict[str, Any], dict[str, RememberedAnswer]])
        return CatalogState(entries, answers)


@dataclass(frozen=True, slots=True)
class KnownVersion:
    """A version that was published: its commit, and the serial point that it left behind."""

    commit: CommitRecord
    link: Link
    entries: Entries


@dataclass(frozen=True, slots=True)
class _WrittenBatch:
    batch: LedgerBatch
    by: str
    at_s: float


class CatalogBucket(Bucket):
    """The bucket, and what was published in it."""

    def __init__(self, world: World, plan: RunPlan, model: CatalogModel, *, keeps: int) -> None:
        super().__init__(world, plan)
        self.world = world
        self.model = model
        self.heads: list[CatalogHead] = []
        """In the order in which they were swapped in, those of GC too."""
        self.known: dict[int, KnownVersion] = {}
        self.kept_from = 1
        """The oldest version that must still be readable."""
        self._keeps = keeps
        self._dead: set[str] = set()
        self._batches: dict[str, _WrittenBatch] = {}
        self._paths: set[str] = set()

    @property
    def version(self) -> int:
        """The version of the newest head; 0: there is none."""
        return self.heads[-1].version if self.heads else 0

    def put(self, who: str, key: Key, data: bytes, when: When) -> Version:
        """A violation ends the run, whichever process caused it."""
        version = super().put(who, key, data, when)
        if key == KEYS.head:
            try:
                self._swapped(_unsealed(data))
            except Violation as violation:
                self.world.failure = self.world.failure or violation
        elif key.startswith(KEYS.ledger) and key not in self._batches:
            self._batches[key] = _WrittenBatch(msgspec.json.decode(data, type=LedgerBatch), who, self.world.now_s)
        return version

    def _swapped(self, head: CatalogHead) -> None:
        before = self.heads[-1] if self.heads else None
        self.heads.append(head)
        if before is not None and before.version == head.version:
            if msgspec.structs.replace(before, gc_floor=head.gc_floor) != head or head.gc_floor < before.gc_floor:
                raise Violation(f"version {head.version} was published twice, and more than its floor has changed")
            self.kept_from = max(self.kept_from, head.version - self._keeps + 1)
            return
        self._follows(before, head)
        commit = self._commit(before, head)
        self.known[head.version] = KnownVersion(commit, head.links[0], {})
        self._rows(before, head, commit)
        self.known[head.version] = KnownVersion(commit, head.links[0], self.model.points[-1])
        self._state(head)
        self.world.note("bucket", "publishes", f"version {head.version}", f"token {head.token}", commit.id)

    def _follows(self, before: CatalogHead | None, head: CatalogHead) -> None:
        if head.version != (before.version if before else 0) + 1:
            raise Violation(f"version {head.version} follows {before.version if before else 0}")
        if head.links[0].version != head.version:
            raise Violation(f"the first link of version {head.version} is to {head.links[0].version}")
        if before is not None:
            if head.token < before.token or head.at < before.at or head.gc_floor != before.gc_floor:
                raise Violation(f"token, time or floor fell at version {head.version}: {before} became {head}")
            if not before.last_id < head.links[0].id <= head.last_id or head.links[0].id < before.gc_floor:
                raise Violation(f"{head.links[0]} was named below {before.last_id} or {before.gc_floor}")
            if head.links[1:2] != before.links[:1]:
                raise Violation(f"version {head.version} does not point back to {before.links[0]}")
        for link in head.links[1:]:
            if self.known[link.version].link != link:
                raise Violation(f"version {head.version} points to {link}, not to {self.known[link.version].link}")
        if any(one.version <= other.version for one, other in pairwise(head.links)):
            raise Violation(f"the links of version {head.version} are out of order")

    def _commit(self, before: CatalogHead | None, head: CatalogHead) -> CommitRecord:
        """The commit of a head; the one before it must be on record by now."""
        if before is not None and before.links[0].id >= before.gc_floor:
            self._on_record(before.links[0])
        paths = tuple(each.path for each in head.applied if each.version == head.version)
        if not paths or self._paths.intersection(paths) or self._dead.intersection(paths):
            raise Violation(f"version {head.version} publishes nothing, or something again, or dead: {paths}")
        if before is not None and not set(head.applied) <= {*before.applied, *head.applied[-len(paths) :]}:
            raise Violation(f"version {head.version} remembers what was never published")
        self._paths.update(paths)
        if not head.tail:
            return msgspec.json.decode(self._on_record(head.links[0]), type=CommitRecord)
        commit = CommitRecord(
            domain=KEYS.domain,
            id=head.links[0].id,
            version=head.version,
            token=head.token,
            at=head.at,
            paths=paths,
            rows=head.tail[-1].rows,
            links=head.links[1:],
            snapshot=head.snapshot,
        )
        if _digest(records.encode(commit)) != head.links[0].sha256:
            raise Violation(f"the head of version {head.version} does not hold the commit that it names")
        return commit

    def _on_record(self, link: Link) -> bytes:
        found = self.objects.get(KEYS.commit(link.id))
        if found is None or _digest(found.data) != link.sha256:
            raise Violation(f"the commit of version {link.version} is not on record, or is another")
        return found.data

    def _rows(self, before: CatalogHead | None, head: CatalogHead, commit: CommitRecord) -> None:
        rows: list[Row] = []
        for path in commit.paths:
            written = self._batches.get(path)
            if written is None:
                raise Violation(f"{path} was published, and no process wrote it")
            batch, led = written.batch, before.token if before else 0
            fits = batch.base_version == head.version - 1 and led == head.token
            if batch.token != head.token or not (fits or (batch.base_version is None and led < head.token)):
                raise Violation(f"version {head.version} with token {head.token} publishes {batch}")
            for row in batch.rows:
                rows.append(row)
                self.model.publish(row, head.at, written.by, written.at_s, self._read)
        if commit.rows != tuple(rows):
            raise Violation(f"version {head.version} holds other rows than {commit.paths}")

    def _read(self, key: str) -> bytes | None:
        found = self.objects.get(Key(key))
        return found.data if found else None

    def _state(self, head: CatalogHead) -> None:
        """The state that a reader derives from the head is the one that was published."""
        entries: dict[str, Any] = {}
        answers: dict[str, RememberedAnswer] = {}
        base = 0
        if head.snapshot is not None:
            found = self.objects.get(KEYS.snapshot(head.snapshot.id))
            if found is None or _digest(found.data) != head.snapshot.sha256 or found.size != head.snapshot.size:
                raise Violation(f"the head of version {head.version} names a snapshot that is not there, or another")
            state = JsonSnapshots().from_bytes(found.data, what="snapshot")
            entries, answers, base = dict(state.entries()), dict(state.answers()), head.snapshot.version
        if [tail.version for tail in head.tail] != [*range(base + 1, head.version + 1)]:
            raise Violation(f"the tail of version {head.version} does not follow its snapshot of {base}")
        for tail in head.tail:
            for row in tail.rows:
                answers[row.id] = RememberedAnswer(row.what, tail.at, row.result)
                entries.update({change.key: change.value for change in row.changes if change.key != ACTOR})
        if {key: value for key, value in entries.items() if value is not None} != self.model.points[-1]:
            raise Violation(f"the head of version {head.version} says {entries}, not {self.model.points[-1]}")
        for id_, grants in self.model.granted.items():
            answer = answers.get(id_)
            if (answer is None or answer.result != grants[-1].result) and is_remembered(id_, grants[-1].at, head.at):
                raise Violation(f"the head of version {head.version} has forgotten {id_}")

    def walked(self, commits: Sequence[CommitRecord], head: CatalogHead) -> None:
        """A client walked the chain from `head`.   Raises: Violation unless it is the true one, down to the floor."""
        for commit, version in zip(commits, range(head.version, 0, -1), strict=False):
            if commit != self.known[version].commit:
                raise Violation(f"the chain says {commit}, not {self.known[version].commit}")
        oldest = commits[-1].version if commits else head.version + 1
        if head.version >= self.kept_from and oldest > self.kept_from:
            raise Violation(f"the chain ends at version {oldest}, and {self.kept_from} must be kept")

    def is_epoch(self, paths: Sequence[str]) -> bool:
        """Whether those are epochs: they change nothing, and a token has only one that is published."""
        return all(self._batches[path].batch.base_version is None for path in paths if path in self._batches)

    def answered(self, paths: Sequence[str], published: Publication) -> None:
        """A compactor says that those batches were published.   Raises: Violation unless they were, as that."""
        known = self.known.get(published.version)
        if known is None or known.commit.paths != tuple(paths) or known.commit.id != published.commit:
            raise Violation(f"{paths} were answered with {published}, and are not that")

    def refused(self, paths: Sequence[str]) -> None:
        """A compactor says that they never will be.   Raises: Violation if they are, or still may be.

        An epoch that is long past may be refused: the process that asks for it does not lead any more.
        """
        for written in (self._batches[path] for path in paths if path in self._batches):
            epoch = written.batch.base_version is None
            if not epoch and self._paths.intersection(paths):
                raise Violation(f"{paths} were published, and then refused")
            if self.heads and not will_never_be(written.batch, self.heads[-1]):
                raise Violation(f"{paths} were refused, and may still be published: {written.batch}")
        self._dead.update(paths)

    def not_taken(self, paths: Sequence[str], before: CatalogHead | None) -> None:
        """A compactor says that they are no batches.   Raises: Violation if the head remembered them all the time."""
        if before is not None and {*paths} <= {each.path for each in before.applied}:
            raise Violation(f"{paths} were published, and then called invalid")

    def classified(self, found: Sequence[ClassifiedBatch]) -> None:
        """A client classified the ledger.   Raises: Violation unless each batch has the fate that was reported."""
        for each in found:
            if each.fate is BatchOutcome.APPLIED and each.path not in self._paths:
                raise Violation(f"{each.path} counts as applied, and never was published")
            if each.fate is BatchOutcome.DEAD:
                if each.path in self._paths:
                    raise Violation(f"{each.path} counts as dead, and was published")
                self._dead.add(each.path)


def _unsealed(data: bytes) -> CatalogHead:
    """A head without its seal.   Raises: Violation unless its seal is the digest of the rest."""
    head = msgspec.json.decode(data, type=CatalogHead)
    bare = msgspec.structs.replace(head, seal="")
    if head.seal != _digest(records.encode(bare)):
        raise Violation(f"the head of version {head.version} is not sealed")
    return bare


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
