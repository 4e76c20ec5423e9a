"""Scenario: virtual months around a few ids that are used again and again, with tasks that sleep longer than receipts
last, retries, cancelled tasks, sweeps that die half-way, workers that fall asleep for weeks, and workers of the last
release, which know no steps.

A life is one push of an id, told apart by what is in its payload. The invariants: no life sees what belongs to another
one; a recorded step is not called again in its life; each life ends as itself, and each retry runs what it retries;
what was once seen of a batch stays until its end and `retention_s` more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import msgspec

from limpet.kernel.cell import Cell, Codec
from limpet.kernel.errors import (
    Conflict,
    Corrupt,
    Invalid,
    LimpetError,
    Missing,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from limpet.kernel.keys import QueueKeys, batch_of, count_of, entry_of, parts_of_step, retry_of
from limpet.queue import BucketQueue, Fail, Policy
from limpet.queue.calls import sleep, step, wait_signal
from limpet.queue.claim import EntryClaim
from limpet.queue.entry import SCHEMA, Content, EntryLease, Receipt, StepRecord, lease_of
from limpet.queue.steps import RUNNING, Suspend, TaskSteps
from limpet.queue.storage import Storage
from sim.actors import Actor, Actors, Nemesis, RunPlan, Turns, steps
from sim.bucket import Bucket, SimStore
from sim.world import SimProcess, SimRuntime, Violation, World

TURNS = 16
QUEUE = "flow"
KEYS = QueueKeys.of(QUEUE)
IDS = ("report", "order")
MANY = "many"
KINDS = ("ok", "fail", "fail", "sleep", "sleep", "signal")
DAY_S = 86400.0
RETENTION_S = 7 * DAY_S
SLEEP_S = 20 * DAY_S
REST_S = 9 * DAY_S
RUN_S = 400 * DAY_S
HEAL_S = 200 * DAY_S
DOZE_S = 30 * DAY_S
DOZES = 0.02
"""The share of steps in which a worker falls asleep, for up to `DOZE_S`."""
SELDOM = 2_000
"""Processes are struck that many times less often than in other scenarios: their turns are days apart."""
LARGE = "y" * 1200

STEPS = steps(
    "completed: put delete",
    "failed: put delete",
    "lease: create free takeover",
    "parts: put delete",
    "pushes: put delete",
    "steps: delete put",
    "task: delete put",
)
"""The steps of the protocol at which a process may be struck."""


@dataclass(slots=True)
class LifeRun:
    """One run of a task: of which life, since when, under which name."""

    at_s: float
    who: str
    life: str
    name: str
    token: int


@dataclass(slots=True)
class LivesModel:
    """What was pushed and acknowledged, which functions ran, and what was seen of batches."""

    world: World
    pushed: dict[str, list[str]] = field(default_factory=dict)
    """By id, the lives whose push was begun, in order."""
    begun_s: dict[str, float] = field(default_factory=dict)
    """By life, when its push was begun."""
    sent: dict[str, float] = field(default_factory=dict)
    """By the value of a signal, when its call had ended."""
    acknowledged: list[tuple[str, str]] = field(default_factory=list)
    """The id and the life of each push that was acknowledged as new."""
    calls: list[tuple[LifeRun, float]] = field(default_factory=list)
    keys: dict[str, set[str]] = field(default_factory=dict)
    """By life, the idempotency keys that its runs had."""
    scratched: set[str] = field(default_factory=set)
    """Lives of which a retry started from scratch."""
    ends: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """By the id of a task of a batch, how it was once seen to have ended."""
    many: list[str] = field(default_factory=list)
    """The ids of the last push of many tasks."""


def life_in(payload: bytes | msgspec.Raw) -> str:
    """The life that a payload tells."""
    return str(msgspec.json.decode(bytes(payload))["of"])


class LivesActors(Actors):
    """Processes on separate machines, around one queue of durable tasks."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        plan = replace(plan, nemesis_every_s=SELDOM * plan.nemesis_every_s, fault_rate=plan.fault_rate / 2)
        super().__init__(world, plan, slots=3, turns=TURNS)
        self.bucket = Bucket(world, plan)
        self.model = LivesModel(world)
        self.old_release = world.chance(71) < 0.3
        """Whether every third process is a worker of the last release."""
        self.policy = Policy(max_attempts=2, ttl_s=plan.ttl_s, backoff_s=1.0, durable=True, retention_s=RETENTION_S)

    def act(self) -> None:
        self.play(Nemesis(self, STEPS).run, until_s=RUN_S)
        self.stop_faults()
        newcomer = LivesActor(self, self.world.start("newcomer"))
        self.alone(newcomer, newcomer.finish_everything, within_s=HEAL_S)
        check_lives(self.bucket, self.model)

    def actor(self, process: SimProcess) -> LivesActor:
        self.vary(process, newer=self.plan.mixed_versions)
        if self.old_release and process.index % 3 == 2:
            return OldActor(self, process)
        return LivesActor(self, process)


class LivesActor(Actor):
    """A user, worker and operator of the queue."""

    expected = (*Actor.expected, Conflict, Corrupt, Invalid, Missing)

    def __init__(self, actors: LivesActors, process: SimProcess) -> None:
        runtime = SimRuntime(actors.world, process)
        store = SimStore(actors.bucket, runtime)
        store.page_size = 50
        super().__init__(runtime, store)
        self.actors = actors
        self.model = actors.model
        self.queue = BucketQueue(store, QUEUE, runtime, policy=actors.policy)

    def turns(self) -> Turns:
        return [
            (0.16, self.push),
            (0.08, self.push_many),
            (0.12, self.retry_failed),
            (0.02, self.retry_from_scratch),
            (0.05, self.cancel),
            (0.08, self.send_signal),
            (0.16, self.sweep),
            (0.06, self.look),
            (1.0, self.work),
        ]

    def rest(self) -> None:
        self.runtime.sleep(self.chance() ** 3 * REST_S)

    # ---- users and operators ----

    def push(self) -> None:
        """A task under an id that was perhaps used before."""
        id_, life = IDS[int(self.chance() * len(IDS))], self.new_value()
        payload = {"what": KINDS[int(self.chance() * len(KINDS))], "slow": round(self.chance(), 2), "of": life}
        self.model.pushed.setdefault(id_, []).append(life)
        self.model.begun_s[life] = self.world.now_s
        if self.queue.push(payload, id=id_).created:
            self.model.acknowledged.append((id_, life))

    def push_many(self) -> None:
        """A batch, or two, under an id: a large result, a failure, and a long sleep."""
        life, batch = self.new_value(), 3 if self.chance() < 0.7 else 2
        calls = [{"what": what, "slow": 1.0, "of": f"{life}/{what}"} for what in ("large", "fail", "sleep")]
        ids = [str(id_) for id_ in self.queue.push_many(calls, batch=batch, id=MANY)]
        before = self.model.many
        if before and {*map(batch_name, before)} != {*map(batch_name, ids)}:
            left = [name for name in map(batch_name, before) if self._is_there(name)]
            if left:
                raise Violation(f"{self.process.name} pushed {MANY} as {ids}, while {left[0]} is there")
        self.model.many = ids

    def _is_there(self, entry: str) -> bool:
        keys = (KEYS.tasks(entry, batch=True), KEYS.completed_of(entry), KEYS.failed_of(entry))
        return any(key in self.actors.bucket.objects for key in keys)

    def retry_failed(self) -> None:
        """Failed tasks go on with their lives."""
        self.queue.retry(all=True)

    def retry_from_scratch(self) -> None:
        """A failed task begins another life with the same payload."""
        id_ = IDS[int(self.chance() * len(IDS))]
        self.model.scratched.update(self.model.pushed.get(id_, ()))
        self.queue.retry(id_, from_scratch=True)

    def cancel(self) -> None:
        """An operator ends a task, and may retry it later."""
        id_ = IDS[int(self.chance() * len(IDS))]
        if self.chance() < 0.5:
            self.queue.cancel(id_)
        else:
            self.queue.retry(id_)

    def send_signal(self) -> None:
        """A life that is pushed after this call has ended must not see the signal."""
        value = self.new_value()
        try:
            self.queue.signal(IDS[int(self.chance() * len(IDS))], "go", value)
        finally:
            self.model.sent[value] = self.world.now_s

    def sweep(self) -> None:
        """A worker tidies up, and lets go what is old enough."""
        self.queue.sweep()

    def look(self) -> None:
        """What is seen of a batch once stays: until its end, and for `retention_s` after it."""
        for result in self.queue.results(self.model.many):
            part = batch_of(str(result.id))
            if part is None:
                continue  # it was retried
            now = (result.state, result.value)
            before = self.model.ends.get(result.id)
            if before is not None and before != now and not self._may_be_gone(part[0]):
                raise Violation(f"{result.id} had ended as {before[0]}, and is {now[0]} for {self.process.name}")
            if result.ready:
                self.model.ends[result.id] = now

    def _may_be_gone(self, entry: str) -> bool:
        """Whether a batch has ended long ago, or another one has its name."""
        bucket = self.actors.bucket
        ends = {KEYS.completed_of(entry), KEYS.failed_of(entry)}
        ended_s = min((each.at_s for each in bucket.journal if each.key in ends), default=self.world.now_s)
        return self.world.now_s - ended_s > RETENTION_S - DAY_S

    # ---- workers ----

    def work(self) -> None:
        """Claim something and do it, as a worker does."""
        with self.queue.claim(wait_s=self.chance() * 4 * self.actors.plan.ttl_s) as claim:
            if isinstance(claim, EntryClaim):
                for task in claim:
                    self.run(task, claim)

    def run(self, task: Any, claim: EntryClaim) -> None:
        """Run a task: the same program whenever it runs."""
        run = LifeRun(self.world.now_s, self.process.name, task.payload["of"], task.id, claim.token)
        self.model.keys.setdefault(run.life, set()).add(task.key)
        token = RUNNING.set(TaskSteps(self.queue, task))
        try:
            task.done(self.flow(task, run))
        except Suspend as error:
            task.suspend(error.wait_s, error.suspension)
        except Fail as error:
            if "it is to fail" not in str(error):
                raise Violation(f"{task.id} of {run.life} failed: {error}") from None
            task.fail(str(error))
        except LimpetError as error:
            task.retry(error=str(error))
        finally:
            RUNNING.reset(token)

    def flow(self, task: Any, run: LifeRun) -> Any:
        """What a handler does."""
        what, slow = task.payload["what"], float(task.payload["slow"])
        first = step(lambda: self.charge(run), name="charge")
        if not first.startswith(f"{run.life} "):
            raise Violation(f"{task.id} of {run.life} got the step {first!r} of another life")
        if what == "fail" and retry_of(task.id) is None:
            raise Fail("it is to fail")
        if what == "sleep":
            sleep(SLEEP_S * slow)
        if what == "signal":
            sent = wait_signal("go", timeout_s=SLEEP_S * slow)
            if self.model.sent.get(sent, inf) < self.model.begun_s[run.life]:
                raise Violation(f"{task.id} of {run.life} got a signal that was sent before its push: {sent}")
        return {"of": run.life, "first": first, "more": LARGE if what == "large" else ""}

    def charge(self, run: LifeRun) -> str:
        """The function of a step. Some workers fall asleep in it."""
        self.model.calls.append((run, self.world.now_s))
        doze = not self.world.healed and self.chance() < DOZES
        self.runtime.sleep(self.chance() * DOZE_S if doze else self.chance() ** 2 * self.actors.plan.ttl_s / 2)
        return f"{run.life} {self.new_value()}"

    def finish_everything(self) -> None:
        """After the faults: work until nothing waits, retry what failed, work again; then all of it grows old."""
        self.runtime.sleep(DAY_S)
        for _ in range(2):
            self.work_until_all_have_ended()
            with suppress(Missing):
                self.queue.retry(all=True)
        self.work_until_all_have_ended()
        self.look()
        self.sweep()

    def work_until_all_have_ended(self) -> None:
        """Work until nothing waits."""
        while True:
            with suppress(OutcomeUnknown, Unavailable):
                self.work()
            if not self.queue.stats().pending:
                return
            self.runtime.sleep(self.chance() * DAY_S / 8)


def batch_name(id_: str) -> str:
    """The entry of a task of a batch."""
    return id_.rpartition(".")[0]


class OldStorage(Storage):
    """As the last release reads tasks and leases: it knows no steps, and refuses what has a higher schema."""

    def lease(self, entry: str) -> Cell[EntryLease]:
        count = count_of(entry)
        codec: Codec[EntryLease] = Codec(
            EntryLease, lambda record: record, lambda data, what: lease_of(data, count=count, what=what)
        )
        return Cell(self.store, self.keys.lease(entry), codec, self.runtime, deletable=True)

    def content(self, entry: str, *, batch: bool) -> Content:
        content = super().content(entry, batch=batch)
        if not batch and content.has_steps:
            raise Unsupported(f"{entry} has schema 2; this limpet reads up to {SCHEMA}")
        return content


class OldActor(LivesActor):
    """A worker of the last release: its handlers have no `limpet.step`, and so fail."""

    expected = (*LivesActor.expected, Unsupported)

    def __init__(self, actors: LivesActors, process: SimProcess) -> None:
        super().__init__(actors, process)
        self.queue.storage.__class__ = OldStorage

    def turns(self) -> Turns:
        return [(0.6, self.work), (1.0, lambda: None)]

    def run(self, task: Any, claim: EntryClaim) -> None:
        recorded = self.actors.bucket.below(KEYS.steps_of(claim.entry))
        if retry_of(claim.entry) and claim.token == 1 and recorded:
            raise Violation(f"{self.process.name}, which knows no steps, ran {claim.entry}, which has some")
        task.retry(error="it is to fail: no attribute 'step'")


# ---- what must hold ----


def check_lives(bucket: Bucket, model: LivesModel) -> None:
    """Every invariant of lives.   Raises: Violation."""
    bucket.check_empty(KEYS.pending, KEYS.scheduled, when="after the sweep")
    _each_life_ends_as_itself(bucket, model)
    _each_retry_is_of_what_it_retries(bucket)
    _recorded_steps_do_not_run_again(bucket, model)
    _each_life_has_one_key(model)


def _receipts(bucket: Bucket) -> Iterator[tuple[float, str, Receipt]]:
    for applied, receipt in bucket.written(Receipt, f"{KEYS.completed}/", f"{KEYS.failed}/"):
        yield applied.at_s, applied.key.rsplit("/", 1)[1].removesuffix(".json"), receipt


def _each_life_ends_as_itself(bucket: Bucket, model: LivesModel) -> None:
    """A push that was acknowledged as new has a receipt of its own: a result of its run, or its payload."""
    ended = set[str]()
    for _, name, receipt in _receipts(bucket):
        if batch_of(name) is None and receipt.count == 1:
            data = receipt.result if receipt.state == "completed" else receipt.payload
            with suppress(msgspec.DecodeError, KeyError, TypeError):
                ended.add(life_in(data))
    for id_, life in model.acknowledged:
        if life not in ended:
            raise Violation(f"the push of {id_} as {life} was acknowledged, and never ended")


def _each_retry_is_of_what_it_retries(bucket: Bucket) -> None:
    """What has the name of a retry has the payload of the failed task."""
    pushed: dict[str, set[str]] = {}
    for applied in bucket.changes(f"{KEYS.pending}/", suffix="/task.json"):
        if applied.data is not None:
            pushed.setdefault(applied.entry, set()).add(
                life_in(msgspec.json.decode(applied.data, type=_Pushed).payload)
            )
    for _, name, receipt in _receipts(bucket):
        if receipt.state == "retried" and receipt.retried_as:
            life = life_in(receipt.payload)
            if life not in pushed.get(entry_of(receipt.retried_as), set()):
                raise Violation(f"{name} of {life} counts as retried, and its retry never ran")


class _Pushed(msgspec.Struct):
    payload: msgspec.Raw


def _recorded_steps_do_not_run_again(bucket: Bucket, model: LivesModel) -> None:
    """A step that was recorded under a name before a run of it began, or before the task of that name had failed, is
    not called in that run, or in one of a retry."""
    recorded: dict[str, list[tuple[float, str]]] = {}
    for applied in bucket.changes(f"{KEYS.steps}/"):
        part = parts_of_step(applied.key)
        if applied.data is None or part is None or part[2] is None:
            continue
        record = msgspec.json.decode(applied.data, type=StepRecord)
        if record.kind == "step":
            life = str(msgspec.json.decode(record.value)).partition(" ")[0]
            name = f"{part[0]}.{part[1]}" if batch_of(f"{part[0]}.{part[1]}") else part[0]
            recorded.setdefault(life, []).append((applied.at_s, name))
    ended: dict[str, list[tuple[float, str]]] = {}
    for at_s, name, receipt in _receipts(bucket):
        if receipt.state in ("failed", "cancelled") and receipt.count == 1:
            ended.setdefault(life_in(receipt.payload), []).append((at_s, name))
    for run, at_s in model.calls:
        if run.life in model.scratched:
            continue
        name = entry_of(run.name)
        for recorded_s, place in recorded.get(run.life, ()):
            before = place == name and recorded_s < run.at_s
            kept = place != name and any(
                recorded_s < ended_s < run.at_s for ended_s, of in ended.get(run.life, ()) if of == place
            )
            if before or kept:
                raise Violation(
                    f"{run.who} charged {run.name} of {run.life} at {at_s:.0f}: recorded at {recorded_s:.0f}"
                )


def _each_life_has_one_key(model: LivesModel) -> None:
    owners: dict[str, str] = {}
    for life, keys in model.keys.items():
        if len(keys) > 1 and life not in model.scratched:
            raise Violation(f"the runs of {life} had the keys {sorted(keys)}")
        for key in keys:
            if owners.setdefault(key, life) != life:
                raise Violation(f"{life} and {owners[key]} had the same key {key}")
