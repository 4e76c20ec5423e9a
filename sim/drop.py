"""Scenario: a queue in a bucket is dropped again and again while others push to it and work on it.

Every process may push, work and drop; droppers meet every fault, and each drop that was begun is finished by some later
one. The invariants: outside of a drop no task is removed that has no receipt, so what is pushed and acknowledged after
a finished drop runs; a finished drop has left nothing that was there before it; no receipt of an earlier life comes
back under an id; nothing is removed from a worker that holds its lease.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from limpet.kernel import drop as dropping
from limpet.kernel.drop import DropRecord, DropState
from limpet.kernel.errors import Conflict, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.keys import TASK, Key, QueueKeys, is_minted, name_of_receipt, parts_of_entry
from limpet.kernel.lease import State
from limpet.queue import BucketQueue, Policy
from limpet.queue.claim import EntryClaim
from limpet.queue.drop import NOTICE_S
from limpet.queue.entry import EntryLease, Receipt, TaskRecord
from sim.actors import Actor, Actors, Nemesis, RunPlan, Settings, Turns, steps
from sim.bucket import Bucket, BucketChange, SimStore
from sim.world import SimProcess, SimRuntime, Violation, World

TURNS = 30
TRIES = 6
SELDOM = 5
"""Processes are struck that many times less often than in other scenarios: a drop takes two minutes."""
QUEUE = "q"
KEYS = QueueKeys.of(QUEUE)
IDS = ("x", "y")
TTL_MAX_S = 10.0
"""So short that no process sleeps for longer than `SETTLE_S`, less the time that its last request may take."""
RUN_S = 8_000.0
HEAL_S = 4_000.0
QUIET_S = 300.0
HOLD_S = 400.0
SLOW_S = 20.0
"""How long a request may take: a claim that was begun before the pause may come so late."""

STEPS = steps(
    "completed: delete put",
    "drop: put read",
    "lease: create delete",
    "lock: renew take takeover",
    "queue: list",
    "task: delete put",
)
"""The steps of the protocol at which a process may be struck."""


@dataclass(slots=True)
class DropModel:
    """What was pushed and acknowledged as new, and which tasks ran."""

    pushed: dict[str, tuple[float, str]] = field(default_factory=dict)
    """By value: when its push was begun, and the id of its task."""
    acknowledged: dict[str, float] = field(default_factory=dict)
    """By value: when the push was acknowledged as new."""
    ran: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class DropRun:
    """From the first mark of a drop to its end: positions in the journal, and their times."""

    first: int
    last: int
    begun_s: float
    ended_s: float
    removes_from: int
    """The position of the record that objects are being removed."""


class DropActors(Actors):
    """Processes on separate machines, around one queue that is far away."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        plan = replace(plan, ttl_s=min(plan.ttl_s, TTL_MAX_S), store_steps=False, drift=False)
        plan = replace(plan, nemesis_every_s=SELDOM * plan.nemesis_every_s, fault_rate=plan.fault_rate / 2)
        super().__init__(world, plan, slots=plan.processes, turns=TURNS)
        self.bucket = Bucket(world, plan)
        self.model = DropModel()

    @staticmethod
    def tuning(world: World, plan: RunPlan) -> Settings:
        """Few objects a group, so that a drop may be struck between any two."""
        return {(dropping, "GROUP"): 3}

    def act(self) -> None:
        self.play(Nemesis(self, STEPS).run, until_s=RUN_S)
        self.stop_faults()
        newcomer = DropActor(self, self.world.start("newcomer"))
        self.alone(newcomer, newcomer.finish_everything, within_s=HEAL_S)
        check_drops(self.bucket, self.model)

    def actor(self, process: SimProcess) -> Actor:
        self.vary(process, newer=False)
        return DropActor(self, process)


class DropActor(Actor):
    """Pushes, works, and drops."""

    expected = (*Actor.expected, Conflict, Missing)

    def __init__(self, actors: DropActors, process: SimProcess) -> None:
        runtime = SimRuntime(actors.world, process)
        store = SimStore(actors.bucket, runtime)
        store.far = True
        super().__init__(runtime, store)
        self.model = actors.model
        self.ttl_s = actors.plan.ttl_s
        policy = Policy(ttl_s=self.ttl_s, timeout_s=2 * self.ttl_s, max_attempts=9, backoff_s=0.5)
        self.queue = BucketQueue(store, QUEUE, runtime, policy=policy)

    def turns(self) -> Turns:
        return [(0.1, self.drop), (0.22, self.push), (0.25, self.push_with_id), (1.0, self.work)]

    def rest(self) -> None:
        self.runtime.sleep(self.chance() * 20)

    def drop(self) -> None:
        """Drop the queue, and go on after an error as an operator does."""
        for _ in range(TRIES):
            try:
                self.queue.drop()
                return
            except (OutcomeUnknown, Unavailable):
                self.runtime.sleep(self.chance() * 5)

    def push(self) -> None:
        """Push a task under a new name."""
        self._push(None)

    def push_with_id(self) -> None:
        """Push a task under a name that others use too."""
        self._push(IDS[self.chance() < 0.3])

    def _push(self, id_: str | None) -> None:
        value = self.new_value()
        self.model.pushed[value] = self.world.now_s, id_ or ""
        if self.queue.push({"of": value}, id=id_).created:
            self.model.acknowledged[value] = self.world.now_s

    def work(self) -> None:
        """Claim something, and hold it for longer than its lease now and then: past `timeout_s` it is not renewed."""
        with self.queue.claim(wait_s=self.chance() * self.ttl_s) as claim:
            if not isinstance(claim, EntryClaim):
                return
            for task in claim:
                self.runtime.sleep(self.chance() ** 4 * HOLD_S)
                self.model.ran.add(task.payload["of"])
                task.done(task.payload["of"])

    def finish_everything(self) -> None:
        """After the faults: a drop ends; then what is pushed runs, under ids that were used before too."""
        self.runtime.sleep(QUIET_S)
        self.push()
        self.drop()
        self.queue.flush()
        for id_ in (*IDS, None):
            self._push(id_)
        self.runtime.sleep(QUIET_S)
        while self.queue.pending():
            self.work()
        self.queue.flush()


# ---- the invariants ----


def windows(bucket: Bucket) -> Iterator[DropRun]:
    """The drops that ended, each with those that died in it."""
    first: int | None = None
    removes_from = -1
    for at, change in enumerate(bucket.journal):
        if change.key != KEYS.drop or change.data is None:
            continue
        stage = msgspec.json.decode(change.data, type=DropRecord).stage
        if stage in dropping.BEGUN and first is None:
            first = at
        if stage is DropState.REMOVING and removes_from < 0:
            removes_from = at
        elif stage is DropState.DROPPED and first is not None:
            yield DropRun(first, at, bucket.journal[first].at_s, change.at_s, removes_from if removes_from >= 0 else at)
        if stage in (DropState.DROPPED, DropState.KEPT):
            first, removes_from = None, -1


def check_drops(bucket: Bucket, model: DropModel) -> None:
    """Raises: Violation."""
    drops = [*windows(bucket)]
    for drop in drops:
        check_nothing_is_left(bucket, drop)
        check_nobody_held_a_lease(bucket, drop)
    check_only_drops_remove(bucket, drops)
    check_nothing_comes_back(bucket, model, drops)
    ended_s = max((drop.ended_s for drop in drops), default=0.0)
    for value, acknowledged_s in model.acknowledged.items():
        if model.pushed[value][0] > ended_s and value not in model.ran:
            raise Violation(f"{value} was acknowledged at {acknowledged_s:.1f}, after the last drop, and never ran")
    bucket.check_empty(KEYS.pending, when="after everything has ended")


def _objects_at(bucket: Bucket, position: int) -> dict[Key, tuple[int, bytes]]:
    """What was below the queue after that mutation: by key, the position of its last write, and its bytes."""
    found: dict[Key, tuple[int, bytes]] = {}
    for at, change in enumerate(bucket.journal[: position + 1]):
        if change.key.startswith(f"{KEYS.root}/"):
            if change.data is None:
                found.pop(change.key, None)
            else:
                found[change.key] = at, change.data
    return found


def check_nothing_is_left(bucket: Bucket, drop: DropRun) -> None:
    """Raises: Violation for an object of before the drop that is there at its end."""
    for key, (at, _) in _objects_at(bucket, drop.last).items():
        if at < drop.first:
            raise Violation(f"{key} was there before the drop at {drop.begun_s:.1f}, and is at its end")


def check_nobody_held_a_lease(bucket: Bucket, drop: DropRun) -> None:
    """Raises: Violation for a lease that was held before the drop, and as it began to remove."""
    removes_s = bucket.journal[drop.removes_from].at_s
    before = _objects_at(bucket, drop.first)
    for key, (at, data) in _objects_at(bucket, drop.removes_from).items():
        if not key.endswith("/lease.json") or key not in before:
            continue
        lease, earlier = (msgspec.json.decode(each, type=EntryLease) for each in (data, before[key][1]))
        renewed_s = bucket.journal[at].at_s
        if (
            lease.state is not State.HELD
            or lease.token != earlier.token
            or removes_s - drop.begun_s > SLOW_S + NOTICE_S
        ):
            continue
        if renewed_s + lease.ttl_s > removes_s:
            raise Violation(f"{key} was held when the drop of {drop.begun_s:.1f} began to remove")


def check_only_drops_remove(bucket: Bucket, drops: list[DropRun]) -> None:
    """Raises: Violation for a task without a receipt that was removed while nobody dropped the queue."""
    tasks: dict[Key, tuple[int, str]] = {}
    ended: dict[str, int] = {}
    for at, change in enumerate(bucket.journal):
        entry, kind = parts_of_entry(change.key, KEYS.pending) or ("", "")
        if kind == TASK and change.data is not None:
            tasks[change.key] = at, _value_of(change)
        elif kind == TASK:
            _, value = tasks.pop(change.key, (at, ""))
            during = any(drop.first <= at <= drop.last for drop in drops) or _is_open(bucket, at)
            if not during and ended.get(entry, -1) < 0:
                raise Violation(f"{value} was pushed, and removed at {change.at_s:.1f} without a receipt or a drop")
        elif change.key.startswith((f"{KEYS.completed}/", f"{KEYS.failed}/")):
            ended[name_of_receipt(change.key)] = at if change.data is not None else -1


def _is_open(bucket: Bucket, position: int) -> bool:
    """Whether a drop was begun and not ended at that moment."""
    data = bucket.at(KEYS.drop, position)
    return data is not None and msgspec.json.decode(data, type=DropRecord).stage in dropping.BEGUN


def _value_of(change: BucketChange) -> str:
    assert change.data is not None
    return str(msgspec.json.decode(bytes(msgspec.json.decode(change.data, type=TaskRecord).payload))["of"])


def check_nothing_comes_back(bucket: Bucket, model: DropModel, drops: list[DropRun]) -> None:
    """Raises: Violation for a receipt under an id that is of a push from before a drop, and came after it."""
    for change, receipt in bucket.written(Receipt, f"{KEYS.completed}/"):
        entry = name_of_receipt(change.key)
        value: Any = msgspec.json.decode(bytes(receipt.result)) if receipt.result else None
        if is_minted(entry) or value not in model.pushed:
            continue
        landed = next(at for at, each in enumerate(bucket.journal) if each is change)
        for drop in drops:
            put_at = first_put(bucket, value)
            if put_at < drop.first and landed > drop.last:
                raise Violation(f"the end of {value} came at {change.at_s:.1f}, after the drop that removed it")


def first_put(bucket: Bucket, value: str) -> int:
    """The position of the first mutation that wrote the task with that value."""
    mark = f'"of":"{value}"'.encode()
    return next(at for at, each in enumerate(bucket.journal) if each.data is not None and mark in each.data)
