"""Scenario: nodes that work offline on their directories, a supervisor for each, and a client of the faulty bucket.

The supervisor's invariants are checked on the answers that users got, on where handlers ran, and on every mutation in
each place: the bucket, and the directory of each node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import msgspec

from limpet.kernel.errors import LimpetError
from limpet.kernel.keys import Key, entry_of, name_of_receipt, queue_place
from limpet.kernel.lease import State
from limpet.kernel.store.api import Always, Version, When
from limpet.queue import BucketQueue, Policy, Task
from limpet.queue.claim import EntryClaim
from limpet.queue.entry import EntryLease, Receipt
from limpet.queue.storage import Storage
from limpet.queue.sweep import Sweeper
from limpet.queue.sync import ClientLog, Outbox, Supervisor
from limpet.queue.sync.records import RemoteLease
from sim.actors import Actor, Actors, Nemesis, RunPlan, Turns, steps
from sim.bucket import Bucket, SimStore, room_of
from sim.queue import KEYS, QUEUE, HandlerRun, QueueModel, QueueUser, verdict_of
from sim.world import PendingRequest, SimProcess, SimRuntime, Violation, World, mix

R = TypeVar("R")

BUCKET = "the bucket"
IDS = 2
TURNS = 4
RUN_S = 3_000.0
HEAL_S = 6_000.0
QUIET_S = 120.0
ROUNDS_MAX = 30
WAITING_KINDS = ("single", "batch", "scheduled")
HANDLER = "handler"
BATCH_HANDLER = "batch handler"
STRIKES_MAX = 6
BUDGET_BASE = 2_500
BUDGET_PER_TASK = 250
STALL_SHARE = 0.01
STALL_S = 30.0
PACE_S = 0.004
READS = ("read", "head")
READS_AT_ONCE = 3
"""Reads are fast: only every third one yields."""
LARGE = "x" * 1100
"""A result with it goes into a part object."""

STEPS = steps(
    "completed: put",
    "failed: put",
    "lease: create renew",
    "local.completed: put",
    "local.cursor: put",
    "local.failed: put",
    "local.lease: put",
    "local.outbox: delete put",
    "local.remote: put",
    "local.task: delete put",
    "sync: list put read",
    "task: delete put",
)
"""The steps of the supervisor's protocol at which a process may be struck."""

RARE = (
    HANDLER,
    "local.completed.put",
    BATCH_HANDLER,
    "local.outbox.put",
    "completed.put",
    BATCH_HANDLER,
    "sync.put",
    "local.parts.put",
    "local.failed.put",
)
"""Steps right after which crashes are rare but reveal most; in a handler also a sleep past the ttl."""


class SupervisorActors(Actors):
    """Slots: a worker for each node, a supervisor for each node, a client of the bucket, a second worker of a node."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        self.nodes = 1 + int(world.chance(80) < 0.9) + int(world.chance(80) < 0.25)
        plan = replace(plan, ttl_s=4 + plan.ttl_s / 3)
        super().__init__(world, plan, slots=2 * self.nodes + 2, turns=TURNS)
        self.buckets = {name: Bucket(world, plan) for name in (BUCKET, *(f"n{i}" for i in range(self.nodes)))}
        self.swept: dict[str, int] = {}
        self.supervisors: set[str] = set()
        """The processes that are or were supervisors."""
        self.model = QueueModel(world)
        self.up_s = 10 + 20 * world.chance(81)
        self.down_s = self.up_s * (1 + 3 * world.chance(82))
        self.retention_s = 400 + 1200 * world.chance(83)
        self.policy = Policy(max_attempts=1 + int(world.chance(84) * 3), ttl_s=plan.ttl_s, backoff_s=1.0)
        self.threads = 1 if world.chance(85) < 0.5 else 3

    def act(self) -> None:
        self.world.spawn(self.world.start("mains"), self.cut_power)
        self.world.spawn(self.world.start("steering"), self.steer)
        self.play(Nemesis(self, STEPS).run, until_s=RUN_S)
        self.stop_faults()
        bosses = [SupervisorActor(self, self.world.start(f"boss{i}"), i) for i in range(self.nodes)]
        at_work = int(self.world.chance(88) * self.nodes)
        worker = NodeUser(self, self.world.start("last"), f"n{at_work}")
        self.alone(bosses[0], lambda: self.converge(bosses, at_work, worker), within_s=HEAL_S)
        places = [SyncPlace(name, bucket, self.supervisors, self.swept[name]) for name, bucket in self.buckets.items()]
        check_nodes(self.world, self.plan, places, self.model)

    def actor(self, process: SimProcess) -> Actor:
        self.vary(process, newer=self.plan.mixed_versions)
        node = self.node_of(process)
        if node is not None and self.nodes <= _slot(process) < 2 * self.nodes:
            return SupervisorActor(self, process, node)
        return NodeUser(self, process, BUCKET if node is None else f"n{node}")

    def node_of(self, process: SimProcess) -> int | None:
        """The node that a process runs on; None for the client."""
        slot = _slot(process)
        if slot == 2 * self.nodes:
            return None
        return 0 if slot > 2 * self.nodes else slot % self.nodes

    def cut_power(self) -> None:
        """Cut the power of a whole node at random times, or when a process reaches a certain step."""
        cuts = 0
        while not self.world.healed:
            cuts += 1
            self.world.pause(self.up_s * (0.5 + 4 * self.world.chance(85, cuts)))
            if self.world.chance(89, cuts) < 0.7:
                step = STEPS[mix(self.world.seed, 90, cuts) % len(STEPS)]
                self.world.strike_during = (step, partial(self.cut, cuts))
            elif self.living:
                self.cut(cuts, self.living[mix(self.world.seed, 86, cuts) % len(self.living)])

    def cut(self, number: int, struck: SimProcess) -> None:
        """Kill all processes of that process's node, and start them again later, perhaps when logs have expired."""
        node = self.node_of(struck)
        if node is None or struck not in self.living or not self.world.strike(f"mains/{number}", "power_off"):
            return
        off_s = self.world.chance(87, number) ** 3 * 2 * self.retention_s
        self.world.note("nemesis", "power_off", detail=f"n{node}", result=f"{off_s:.0f} s", fault="power_off")
        for victim in [each for each in self.living if self.node_of(each) == node]:
            self.crash(victim, "power_off")
            self.world.later(off_s, partial(self.relaunch, victim))

    def steer(self) -> None:
        """Direct strikes to the rare moments: right after a receipt, a note or a log, and into handlers."""
        for number in range(1, STRIKES_MAX + 1):
            self.world.pause(self.up_s * self.world.chance(91, number))
            step = RARE[mix(self.world.seed, 92, number) % len(RARE)]
            self.world.strike_after.setdefault(step, partial(self.strike, number, step))

    def strike(self, number: int, step: str, struck: SimProcess) -> None:
        """Kill the process, or let it sleep until its lease has expired. Its slot gets one turn more."""
        sleeps = step in (HANDLER, BATCH_HANDLER) and self.world.chance(93, number) < 0.5
        kind = "sleep_past_ttl" if sleeps else "crash_after"
        if struck not in self.living or not self.world.strike(f"steering/{number}", kind):
            return
        self.world.coverage[kind, step] += 1
        self.world.note("nemesis", kind, detail=struck.name, result=step, fault=kind)
        self.turns_left[struck.name.split("#")[0]] += 1
        if sleeps:
            struck.paused_until_s = self.world.now_s + self.policy.ttl_s * (1.5 + 6 * self.world.chance(94, number))
        else:
            self.world.kill(struck)
            self.restart(struck)

    def converge(self, bosses: list[SupervisorActor], at_work: int, worker: NodeUser) -> None:
        """Cycles, until nothing waits anywhere. Only one node works; all tasks from elsewhere must reach it."""
        self.world.pause(QUIET_S)
        for _ in range(ROUNDS_MAX):
            for node, boss in enumerate(bosses):
                boss.supervisor.down()
                if node == at_work:
                    worker.drain()
                boss.supervisor.up()
            if not self.waiting():
                break
            self.world.pause(self.down_s)
        else:
            raise Violation(f"after {ROUNDS_MAX} rounds there still waits {self.waiting()[0]}")
        self.swept = {name: len(bucket.journal) for name, bucket in self.buckets.items()}
        for boss in bosses:
            boss.supervisor.tidy()
            boss.supervisor.down()
        for boss in bosses:
            boss.sweep()
        for boss in bosses:
            boss.look()

    def waiting(self) -> list[str]:
        """The tasks and logs that wait anywhere, and have not ended there."""
        return [
            f"{name}: {key}"
            for name, bucket in self.buckets.items()
            for key in bucket.objects
            if "/outbox/" in key or _waits(bucket, key)
        ]


def _slot(process: SimProcess) -> int:
    return int(process.name.split("#")[0].removeprefix("p"))


def _waits(bucket: Bucket, key: Key) -> bool:
    place = queue_place(key)
    if place is None or place.kind not in WAITING_KINDS:
        return False
    return not {KEYS.completed_of(place.name), KEYS.failed_of(place.name)} & bucket.objects.keys()


class LocalStore(SimStore):
    """One process's view of its node's directory: no lost answers, but an SD card that stalls for seconds."""

    page_size = None

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        return self._call("put", "", key, data, lambda: self._bucket.put(self._process.name, key, data, when))

    def _call(
        self, verb: str, step: str, key: Key, detail: str | bytes, apply: Callable[[], R], when: When | None = None
    ) -> R:
        """The process may die before it happens, or, in its next call, after."""
        world, process = self._world, self._process
        world.check_alive(process)
        world.calls += 1
        process.calls += 1
        verb = "read" if verb == "get" else verb
        step = f"local.{room_of(key)}.{verb}"
        fault = ""
        if verb not in READS or process.calls % READS_AT_ONCE == 0:
            fault = self._wait(step)
        world.coverage[fault or "none", step] += 1
        result = "ok"
        try:
            value = apply()
        except LimpetError as error:
            result = type(error).__name__
            raise
        finally:
            world.note(process.name, step, key, detail, result, fault)
        world.completed(step, process)
        return value

    def _wait(self, step: str) -> str:
        """Yield before it happens: the process may die, or the card stall."""
        world, process = self._world, self._process
        flight = -process.calls
        process.in_flight[flight] = PendingRequest(step, lambda: None)
        world.begins(step, process)
        chance = world.chance(70, process.index, process.calls)
        stalls = chance < STALL_SHARE and world.strike(f"{process.name}/stall/{process.calls}", "stall")
        try:
            world.pause(chance / STALL_SHARE * STALL_S if stalls else PACE_S * chance)
        finally:
            process.in_flight.pop(flight, None)
        return "stall" if stalls else ""


class RemoteStore(SimStore):
    """One process's view of the bucket, in longer pages: there is more to list here."""

    page_size = 12

    def put(self, key: Key, data: bytes, *, when: When = Always()) -> Version:
        version = super().put(key, data, when=when)
        self._world.completed(f"{room_of(key)}.put", self._process)
        return version


class SupervisorActor(Actor):
    """The supervisor of a node."""

    def __init__(self, actors: SupervisorActors, process: SimProcess, node: int) -> None:
        runtime = SimRuntime(actors.world, process)
        self.node = f"n{node}"
        super().__init__(runtime, LocalStore(actors.buckets[self.node], runtime))
        self.remote = RemoteStore(actors.buckets[BUCKET], runtime)
        self.actors = actors
        actors.supervisors.add(process.name)
        self.supervisor = Supervisor(
            self.store,
            self.remote,
            runtime,
            node=self.node,
            up_s=actors.up_s,
            down_s=actors.down_s,
            retention_s=actors.retention_s,
        )

    def turns(self) -> Turns:
        return [(0.6, self.supervisor.up), (0.4, self.supervisor.down)]

    def rest(self) -> None:
        self.runtime.sleep(self.actors.up_s * (0.5 + self.chance() / 2))

    def look(self) -> None:
        """Ask how every task ended, here and in the bucket."""
        model = self.actors.model
        for place, store in ((self.node, self.store), (BUCKET, self.remote)):
            queue = BucketQueue(store, QUEUE, self.runtime, journal=Outbox(store, self.runtime))
            for id_ in sorted({*model.ids()}):
                model.check_result(place, id_, queue.result(id_))

    def sweep(self) -> None:
        """Tidy up here and in the bucket."""
        for store in (self.store, self.remote):
            Sweeper(Storage(store, KEYS, self.runtime), self.actors.policy).sweep()


class NodeUser(QueueUser):
    """Pushes, works, and now and then acts as an operator; on a node or on the bucket."""

    kinds = ("ok",) * 8 + ("flaky", "fail")
    batch_max = 3

    def __init__(self, actors: SupervisorActors, process: SimProcess, place: str) -> None:
        runtime = SimRuntime(actors.world, process)
        kind, journal = (RemoteStore, ClientLog) if place == BUCKET else (LocalStore, Outbox)
        store = kind(actors.buckets[place], runtime)
        queue = BucketQueue(store, QUEUE, runtime, journal=journal(store, runtime), policy=actors.policy)
        super().__init__(runtime, store, queue, actors.model, ids=IDS)
        self.actors = actors
        self.place = place

    def turns(self) -> Turns:
        return [
            (0.10, self.push),
            (0.18, self.push_with_id),
            (0.10, self.push_batch),
            (0.03, self.push_later),
            (0.03, self.retry_failed),
            (0.03, self.cancel),
            (0.08, self.look),
            (1.0, self.work),
        ]

    def rest(self) -> None:
        self.runtime.sleep(self.chance() * self.actors.up_s)

    def push_with_id(self) -> None:
        """A task whose id others push too, at other nodes."""
        payload = self.payload()
        call = self.model.pushing([payload])
        call.ids = [self.queue.push(payload, id=self.some_id()).id]

    def look(self) -> None:
        """Ask how some tasks ended, as this place knows it."""
        for id_ in sorted({*self.model.ids()})[:4]:
            self.ask(id_)

    def work(self) -> bool:
        """Claim something and do it, as a worker does; whether there was anything."""
        with self.queue.claim() as claim:
            if not isinstance(claim, EntryClaim):
                return False
            for other in self.share(claim, self.actors.threads) if self.actors.threads > 1 else ():
                other.join()
            for task in claim:
                self.handle(task, claim)
        return True

    def drain(self) -> None:
        """Work while there is something to claim."""
        for _ in range(50):
            if not self.work():
                return

    def handle(self, task: Task, claim: EntryClaim) -> None:
        """Run one handler, and report how it ended."""
        run_ = self.model.started(self.place, self.process.name, task, claim.entry, claim.token)
        self.world.completed(BATCH_HANDLER if claim.batch else HANDLER, self.process)
        what, slow = task.payload["what"], float(task.payload["slow"])
        if not self.world.healed:
            self.runtime.sleep(slow * slow * slow * 2 * self.actors.up_s)
        if what == "fail":
            task.fail("it fails")
        elif what == "flaky" and task.attempt == 1:
            task.retry(after_s=slow * 10, error="it raises")
        else:
            large = claim.batch and slow < 0.4
            task.done({"by": self.process.name, "large": LARGE if large else ""})
            run_.acknowledged = not claim.batch


# ---- what must hold ----

TASKS = ("/task.json", "/tasks.jsonl")


@dataclass(frozen=True, slots=True)
class SyncPlace:
    """The bucket, or the directory of a node."""

    name: str
    bucket: Bucket
    supervisors: set[str]
    swept: int
    """How many changes there were before the last sweeps, which tidy up what any bug has left."""

    @property
    def is_node(self) -> bool:
        """Whether it is a node's."""
        return self.name != BUCKET


def check_nodes(world: World, plan: RunPlan, places: Sequence[SyncPlace], model: QueueModel) -> None:
    """Every invariant of supervised nodes.   Raises: Violation."""
    for place in places:
        _completions_stay(place)
        _ended_here_stays_ended(place, world)
        _ended_tasks_do_not_start(place, model)
        _results_are_whole(place)
        if place.is_node:
            _leases_are_our_own(place)
            _news_only_once(place)
    if plan.sane_clocks:
        _nobody_is_evicted(places[0])
    for place in places:
        place.bucket.check_empty(KEYS.pending, KEYS.scheduled, when=f"in {place.name}")
    _nothing_is_lost(places, model)
    _all_agree(places, model)
    tasks = len({*model.ids()})
    world.check_calls(BUDGET_BASE + BUDGET_PER_TASK * tasks, f"{tasks} tasks")


def _completions_stay(place: SyncPlace) -> None:
    """Receipts only grow: a completion is never removed or written over, a failure only marked as retried."""
    standing: dict[Key, Receipt] = {}
    for applied in place.bucket.changes(f"{KEYS.completed}/", f"{KEYS.failed}/"):
        completed = applied.key.startswith(f"{KEYS.completed}/")
        if applied.data is None:
            if completed:
                raise Violation(f"{applied.who} removed {applied.key} from {place.name}: a completion is undone")
            standing.pop(applied.key, None)
            continue
        receipt = msgspec.json.decode(applied.data, type=Receipt)
        before = standing.get(applied.key)
        if before is not None and (completed or receipt.state != "retried"):
            raise Violation(f"{applied.who} wrote over {applied.key} in {place.name}")
        standing[applied.key] = receipt


def _results_are_whole(place: SyncPlace) -> None:
    """When a receipt becomes visible, all that it names exists: parts, and receipts of single tasks."""
    here: set[str] = set()
    for applied in place.bucket.journal:
        if applied.data is None:
            continue
        here.add(applied.key)
        if not applied.key.startswith(f"{KEYS.completed}/"):
            continue
        receipt = msgspec.json.decode(applied.data, type=Receipt)
        named = [*receipt.parts, *(KEYS.completed_of(f"{receipt.id}.{n}") for n in receipt.own)]
        missing = [key for key in named if key not in here]
        if missing:
            raise Violation(f"{applied.who} wrote {applied.key} to {place.name}, and {missing[0]} was not there yet")


def _ended_here_stays_ended(place: SyncPlace, world: World) -> None:
    """A supervisor makes nothing pending that has ended there, or takes it back (the push rule)."""
    copies = {event.key for event in world.trace if event.who == "network" and event.result == "lands"}
    journal = place.bucket.journal
    ended: set[str] = set()
    for i, applied in enumerate(journal[: place.swept]):
        if applied.key.startswith((f"{KEYS.completed}/", f"{KEYS.failed}/")):
            ended.add(name_of_receipt(applied.key))
        if not applied.key.endswith(TASKS) or applied.data is None or applied.who not in place.supervisors:
            continue
        entry = applied.entry
        later = [each for each in journal[i + 1 : place.swept] if each.key == applied.key and each.data is None]
        back = any(each.who in place.supervisors or not place.is_node for each in later)
        if entry in ended and not back and applied.key not in copies:
            raise Violation(f"{applied.who} made {entry} pending in {place.name}, where it had ended")


def _ended_tasks_do_not_start(place: SyncPlace, model: QueueModel) -> None:
    """Once a place knows that an entry has ended, no worker claims and starts it there."""
    ended_s: dict[str, float] = {}
    for applied in place.bucket.changes(f"{KEYS.completed}/", f"{KEYS.failed}/"):
        if applied.data is not None:
            ended_s.setdefault(name_of_receipt(applied.key), applied.at_s)
    for run in model.runs:
        if run.place == place.name and ended_s.get(run.entry, float("inf")) < _claimed_s(place, run):
            raise Violation(f"{run.who} started {run.id} in {place.name}, where it had ended before it was claimed")


def _claimed_s(place: SyncPlace, run: HandlerRun) -> float:
    """When the claim that started this run was made."""
    for applied, record in place.bucket.written(EntryLease, KEYS.lease(run.entry)):
        if applied.at_s <= run.at_s and record.worker_id == run.who:
            return applied.at_s
    return run.at_s


def _leases_are_our_own(place: SyncPlace) -> None:
    """A pull never touches the lease by which the workers of a node agree among themselves."""
    ours = {applied.who for applied in place.bucket.journal}
    for applied, record in place.bucket.written(EntryLease, suffix="/lease.json"):
        if record.worker_id not in ours:
            raise Violation(f"{applied.who} wrote a lease of {record.worker_id}, a stranger, to {place.name}")


def _news_only_once(place: SyncPlace) -> None:
    """A foreign lease lasts from when it was first heard of: a log that is read again does not prolong it."""
    heard: set[tuple[Key, str, int]] = set()
    for applied, record in place.bucket.written(RemoteLease, suffix="/remote.json"):
        news = (applied.key, record.node, record.log)
        if news in heard:
            raise Violation(f"{applied.who} prolonged {applied.key} by log {record.log} of {record.node} again")
        heard.add(news)


def _nobody_is_evicted(place: SyncPlace) -> None:
    """In the bucket a held lease changes hands only when it has run out."""
    for applied, at_s, before, record in place.bucket.successive(EntryLease, suffix="/lease.json"):
        taken = before.state is State.HELD and record.state is State.HELD and record.worker_id != before.worker_id
        if taken and applied.at_s - at_s < before.ttl_s:
            raise Violation(f"{record.worker_id} took {applied.key} from {before.worker_id}, which was alive")


def _nothing_is_lost(places: Sequence[SyncPlace], model: QueueModel) -> None:
    for place in places:
        for id_ in sorted({*model.ids()}):
            if not verdict_of(place.bucket, entry_of(id_)):
                raise Violation(f"the push of {id_} was acknowledged, and {place.name} does not know how it ended")
        for id_ in sorted({run.id for run in model.runs if run.acknowledged}):
            if verdict_of(place.bucket, entry_of(id_)) != "completed":
                raise Violation(f"{id_} was acknowledged as done, and in {place.name} it is not completed")


def _all_agree(places: Sequence[SyncPlace], model: QueueModel) -> None:
    receipts = {
        key for place in places for key in [*place.bucket.below(KEYS.completed), *place.bucket.below(KEYS.failed)]
    }
    for name in sorted({*map(name_of_receipt, receipts), *map(entry_of, model.ids())}):
        verdicts = {place.name: verdict_of(place.bucket, name) for place in places}
        if len({*verdicts.values()}) > 1:
            raise Violation(f"they do not agree on {name}: {verdicts}")
