"""Scenario: processes that push, work, die, retry, cancel and sweep one queue through a faulty network.

The queue's invariants are checked on the answers that users got, on the handlers that ran, and on every mutation of
the bucket.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from limpet.kernel.errors import Conflict, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.keys import Key, QueueKeys, batch_of, count_of, entry_of, is_batch, is_minted, name_of_receipt
from limpet.kernel.lease import State
from limpet.kernel.runtime import ThreadHandle
from limpet.kernel.store import Store
from limpet.queue import BucketQueue, Fail, Policy, Result, Retry, Task
from limpet.queue.api import apply_error
from limpet.queue.claim import EntryClaim
from limpet.queue.decide import attempts_of, completion
from limpet.queue.entry import EntryLease, Receipt
from limpet.worker import Job, RunningTask, Worker, current_task
from sim.actors import Actor, Actors, Nemesis, RunPlan, Turns, steps
from sim.bucket import Bucket, BucketChange, SimStore
from sim.world import SimProcess, SimRuntime, Violation, World

TURNS = 8
QUEUE = "q"
KEYS = QueueKeys.of(QUEUE)
KINDS = ("ok",) * 13 + ("flaky",) * 2 + ("fail", "fail", "raise", "poison", "sour")
"""`flaky` fails in the first attempt, `sour` in later ones; `poison` kills its process."""
HEAL_S = 4_000.0
RUN_S = 3_000.0
QUIET_S = 120.0
"""After this time no duplicate of a request is in flight."""
HOLD_S = 8.0
LULL_S = 20.0
LULL_POLLS = 4
"""In units of `poll_s`: after this time an idle worker must have started a pushed task."""
FAR_PART = 0.15
"""In so many seeds of a queue that is near it is far away, tasks are short, and their leases slow to create."""
DEAF_S = 6.0
"""For how long an idle worker's listings fail after a ring."""
BACKOFF_S = 8.0
"""How long the worker may then pause."""
BUDGET_BASE = 900
BUDGET_PER_TASK = 90

STEPS = steps(
    "completed: head put",
    "failed: head put",
    "lease: create delete free read renew settle take takeover",
    "queue: list",
    "scheduled: delete put",
    "task: delete put read settle",
)
"""The steps of the queue's protocol at which a process may be struck."""


class QueueActors(Actors):
    """Processes on separate machines, around one queue."""

    hurried = False
    far = False
    """Whether they treat the bucket as far away: reads beside claims, deletes in the background."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        super().__init__(world, plan, slots=plan.processes, turns=TURNS)
        self.bucket = Bucket(world, plan)
        self.model = QueueModel(world)
        chance = world.chance
        self.duel = chance(56) < 0.15
        """Few ids, and handlers that outlive their lease: two workers end one task with different verdicts."""
        self.policy = Policy(
            max_attempts=2 if self.duel else 1 + int(chance(50) * 3),
            ttl_s=plan.ttl_s,
            timeout_s=plan.ttl_s / 2 if self.duel else 2 * plan.ttl_s if chance(51) < 0.5 else None,
            backoff_s=1.0,
            concurrency=2 if chance(52) < 0.15 else None,
        )
        self.operators = chance(53) < 0.5
        self.threads = 1 if chance(58) < 0.5 else 2 + int(chance(59) * 3)
        """How many threads of a process run the tasks of a claim."""
        self.ids = 1 + int(chance(54) * 3)
        self.named = 0.16 if chance(55) < 0.7 else 0.4
        if chance(119) < FAR_PART:
            self.far = self.hurried = True
        self.deaf = chance(70) < 0.4
        """Whether the listings of an idle worker fail while a bell rings."""

    def act(self) -> None:
        self.play(Nemesis(self, STEPS).run, until_s=RUN_S)
        self.stop_faults()
        newcomer = self.new_actor(self.world.start("newcomer"))
        self.alone(newcomer, newcomer.finish_everything, within_s=HEAL_S)
        check_queue(self.world, self.plan, self.bucket, self.model, self.policy)

    def actor(self, process: SimProcess) -> QueueActor:
        self.vary(process, newer=self.plan.mixed_versions)
        return self.new_actor(process)

    def new_actor(self, process: SimProcess) -> QueueActor:
        """The user and worker that runs in a process."""
        return QueueActor(self, process)


class FarQueueActors(QueueActors):
    """The same around a queue that is far away. In some seeds tasks are short, and their leases slow to create."""

    far = True

    def __init__(self, world: World, plan: RunPlan) -> None:
        super().__init__(world, plan)
        self.hurried = world.chance(57) < 0.4

    def new_actor(self, process: SimProcess) -> QueueActor:
        return FarQueueActor(self, process)


class QueueUser(Actor):
    """Pushes, retries and cancels tasks, and runs those of a claim; `place`: where its queue is."""

    expected = (*Actor.expected, Conflict, Missing)
    kinds: Sequence[str] = KINDS
    batch_max = 4
    duel = False
    place = "the bucket"

    def __init__(self, runtime: SimRuntime, store: Store, queue: BucketQueue, model: QueueModel, *, ids: int) -> None:
        super().__init__(runtime, store)
        self.queue = queue
        self.model = model
        self.ids = ids

    def payload(self) -> dict[str, object]:
        """A task that succeeds, fails, or kills the process that runs it."""
        what, slow = self.kinds[int(self.chance() * len(self.kinds))], self.chance()
        if self.duel:
            what, slow = "sour", 2 * slow
        return {"what": what, "by": self.new_value(), "slow": round(slow, 2)}

    def some_id(self) -> str:
        """One of a few ids that others use too."""
        return f"x{int(self.chance() * self.ids)}"

    def push(self) -> None:
        """A task without an id."""
        payload = self.payload()
        call = self.model.pushing([payload])
        call.ids = [self.queue.push(payload).id]

    def push_with_id(self) -> None:
        """A task whose id others push too."""
        id_ = self.some_id()
        payload = self.payload()
        call = self.model.pushing([payload], id_)
        pushed = self.queue.push(payload, id=id_)
        call.ids, call.created = [id_], pushed.created

    def push_batch(self) -> None:
        """Some tasks in one entry."""
        payloads = [self.payload() for _ in range(2 + int(self.chance() * (self.batch_max - 1)))]
        call = self.model.pushing(payloads)
        call.ids = self.queue.push_many(payloads)

    def push_later(self) -> None:
        """A delayed task, sometimes with an id."""
        id_ = self.some_id() if self.chance() < 0.5 else None
        payload = self.payload()
        call = self.model.pushing([payload], id_, delayed=True)
        pushed = self.queue.push(payload, id=id_, delay_s=1 + self.chance() * 20)
        call.ids, call.created = [pushed.id], pushed.created

    def retry_failed(self) -> None:
        """An operator pushes all failed tasks again."""
        self.model.retries += self.queue.retry(all=True)

    def cancel(self) -> None:
        """An operator ends a task."""
        self.queue.cancel(self.some_id())

    @abstractmethod
    def handle(self, task: Task, claim: EntryClaim) -> None:
        """Run one handler, and report how it ended."""

    def share(self, claim: EntryClaim, threads: int) -> list[ThreadHandle]:
        """Run the tasks of a claim in so many threads more."""
        return [self.runtime.spawn(partial(self.run_some, claim), name=f"thread{n}") for n in range(threads)]

    def run_some(self, claim: EntryClaim) -> None:
        """Run tasks of a claim that other threads run too, until none may be started."""
        with suppress(*self.expected):
            while (task := claim.start_next()) is not None:
                try:
                    self.handle(task, claim)
                except self.expected as error:
                    with suppress(LimpetError):
                        apply_error(task, error)
                    raise

    def ask(self, id_: str) -> Result:
        """The result of a task.   Raises: Violation if it has changed since the task completed."""
        result = self.queue.result(id_)
        self.model.check_result(self.place, id_, result)
        return result


class QueueActor(QueueUser):
    """A user and worker of the queue, and now and then an operator."""

    def __init__(self, actors: QueueActors, process: SimProcess) -> None:
        runtime = SimRuntime(actors.world, process)
        store = SimStore(actors.bucket, runtime)
        store.far = actors.far
        store.hold_s = HOLD_S if actors.hurried else 0.0
        queue = BucketQueue(store, QUEUE, runtime, policy=actors.policy)
        super().__init__(runtime, store, queue, actors.model, ids=actors.ids)
        self.network = store
        self.actors = actors
        self.duel = actors.duel

    def turns(self) -> Turns:
        operator: Turns = [
            (0.08, self.retry_failed),
            (0.04, self.cancel),
            (0.03, self.queue.sweep),
            (0.02, self.pause),
            (0.02, self.look_around),
        ]
        if self.duel:
            return [(0.35, self.push_with_id), (0.25, self.queue.sweep), (0.05, self.retry_failed), (1.0, self.work)]
        return [
            *(operator if self.actors.operators else []),
            (0.12, self.push),
            (self.actors.named, self.push_with_id),
            (0.12, self.push_batch),
            (0.06, self.push_later),
            (1.0, self.work),
        ]

    def rest(self) -> None:
        self.runtime.sleep(self.chance() * 3)

    def work(self) -> None:
        """Claim something and do it, as a worker does."""
        with self.queue.claim(wait_s=self.chance() * self.actors.plan.ttl_s) as claim:
            if not isinstance(claim, EntryClaim):
                return
            hand_back_at = self.chance() * 12
            if self.actors.threads > 1:
                self.work_side_by_side(claim, hand_back_at)
            for task in claim:
                if hand_back_at < 1:
                    claim.hand_back()
                    break
                self.handle(task, claim)
        self.model.settled(claim.entry, claim.token, self.process.name)

    def work_side_by_side(self, claim: EntryClaim, hand_back_at: float) -> None:
        """Run the tasks of a claim in several threads, and sometimes hand it back meanwhile."""
        others = self.share(claim, self.actors.threads)
        try:
            if hand_back_at < 1:
                self.runtime.sleep(hand_back_at * self.actors.plan.ttl_s)
                since_s = self.world.now_s
                whose = (claim.entry, claim.token, self.process.name)
                for run in self.model.runs:  # also if the process dies before it hears of that
                    run.handed_back |= (run.entry, run.token, run.who) == whose and not run.ended
                claim.hand_back()
                for run in self.model.runs:
                    run.handed_back |= (run.entry, run.token, run.who) == whose and run.ended_at_s >= since_s
        finally:
            for other in others:
                other.join()

    def handle(self, task: Task, claim: EntryClaim) -> None:
        run_ = self.model.started(self.place, self.process.name, task, claim.entry, claim.token)
        slow = float(task.payload["slow"])
        error = self.run_handler(run_, task.payload)
        if isinstance(error, Fail):
            task.fail(str(error))
        elif error is not None:
            task.retry(after_s=error.after_s, error=str(error))
        else:
            task.done({"by": self.process.name, "blob": "." * (2_000 if slow > 0.9 else 3)})
            run_.acknowledged = True

    def run_handler(self, run_: HandlerRun, payload: Any) -> Fail | Retry | None:
        """What a handler does; the error with which it ends, if it does."""
        what, slow = payload["what"], float(payload["slow"])
        self.runtime.sleep(0.1 * slow if self.actors.hurried else slow * slow * self.actors.plan.ttl_s)
        if what == "poison" and not self.world.healed:
            self.model.ended(run_, "died")
            self.world.kill(self.process)
            self.actors.restart(self.process)
            self.world.pause(0)
        fails = {"flaky": run_.attempt == 1, "sour": run_.attempt > 1}.get(what, what in ("fail", "raise"))
        if fails:
            self.model.ended(run_, "failed")
            if what in ("fail", "sour"):
                return Fail("it fails")
            return Retry("it raises", after_s=None if what == "raise" else slow * 10)
        self.model.ended(run_, "returned")
        return None

    def pause(self) -> None:
        """An operator stops the queue for a while."""
        self.queue.pause()
        self.runtime.sleep(self.chance() * 10)
        self.queue.resume()

    def look_around(self) -> None:
        """An operator looks at the queue and at some results."""
        self.queue.stats()
        self.queue.peek(3)
        for push in self.model.pushes[:3]:
            for id_ in push.ids[:1]:
                self.ask(id_)

    def finish_everything(self) -> None:
        """After the faults: work until nothing waits, then sweep, and ask for every result."""
        self.runtime.sleep(QUIET_S)
        self.queue.resume()
        while True:
            with suppress(OutcomeUnknown, Unavailable):
                self.work()
            stats = self.queue.stats()
            if stats.pending == 0 and stats.scheduled == 0:
                break
            self.runtime.sleep(1)
        newest = max(each.modified for each in self.actors.bucket.objects.values())
        behind_s = (newest - self.world.store_time()).total_seconds()  # the store's clock may have stepped back
        self.runtime.sleep(QUIET_S + max(0.0, behind_s))
        self.queue.sweep()
        for push in self.model.pushes:
            for id_ in push.ids:
                try:
                    self.model.results[id_] = self.ask(id_)
                except LimpetError as error:
                    raise Violation(f"the result of {id_} cannot be read: {error!r}") from error


class FarQueueActor(QueueActor):
    """The same user, whose turns at work are often those of a real worker with two threads or more."""

    def work(self) -> None:
        if self.chance() < 0.5:
            super().work()
        else:
            self.work_for_a_while()

    def work_for_a_while(self) -> None:
        """Run a worker, and stop it."""
        worker = Worker([Job(self.queue, self.handled)], self.runtime, threads=max(2, self.actors.threads))
        worker.start()
        self.runtime.sleep(self.chance() * 2 * self.actors.plan.ttl_s)
        worker.stop()
        while not worker.wait(self.actors.plan.ttl_s):
            for run in self.model.runs:
                run.handed_back |= run.who == self.process.name and not run.ended
            worker.hand_back()

    def handled(self, payload: Any) -> dict[str, str]:
        """The handler of the worker. That of a dead process notes nothing: the worker keeps what it raises."""
        self.world.check_alive(self.process)
        task = current_task()
        assert task is not None
        part = batch_of(task.id)
        entry = part[0] if part else entry_of(task.id)
        run_ = self.model.started(self.place, self.process.name, task, entry, task.token)
        error = self.run_handler(run_, payload)
        if error is not None:
            raise error
        return {"by": self.process.name}

    def finish_everything(self) -> None:
        self.runtime.sleep(QUIET_S)
        self.queue.resume()
        self.work_for_a_while()
        for applied, record in _leases(self.actors.bucket):
            now = self.actors.bucket.objects.get(applied.key)
            held = record.state is State.HELD and record.worker_id == self.runtime.owner
            if held and now is not None and now.data == applied.data:
                raise Violation(f"the worker was stopped, and still holds {applied.key}")
        super().finish_everything()
        if self.actors.policy.concurrency is None:  # slots of the dead need not be free by now
            self.end_a_lull()

    def end_a_lull(self) -> None:
        """A worker has been idle for a while. A task is pushed, slowly, and must start soon after its push returned."""
        self.network.hold_s = 0.0
        worker = Worker([Job(self.queue, self.handled)], self.runtime)
        worker.start()
        self.runtime.sleep(LULL_S)
        pusher = self.actors.new_actor(self.world.start("pusher"))
        pusher.network.push_hold_s = HOLD_S
        payload = {"what": "ok", "by": self.new_value(), "slow": 0.0}
        call = self.model.pushing([payload])
        self.network.refuses_lists = self.actors.deaf
        call.ids = [pusher.queue.push(payload).id]
        if self.actors.deaf:
            self.runtime.sleep(DEAF_S)
            self.network.refuses_lists = False
            self.runtime.sleep(BACKOFF_S)
        self.runtime.sleep(LULL_POLLS * self.actors.policy.poll_s)
        started = {run.id for run in self.model.runs}
        worker.stop()
        while not worker.wait(self.actors.plan.ttl_s):
            pass
        if call.ids[0] not in started:
            raise Violation(f"{call.ids[0]} was pushed after a lull, and an idle worker did not start it soon")


# ---- what must hold ----


@dataclass(slots=True)
class PushCall:
    """A push, and its answer; `ids` is empty while its outcome is unknown."""

    payloads: Sequence[Any]
    user_id: str | None
    delayed: bool
    ids: Sequence[str] = ()
    created: bool = True


@dataclass(slots=True)
class HandlerRun:
    """One start of a handler, and how it ended: it returned, failed, died with its process, or "" if it never did."""

    at_s: float
    place: str
    who: str
    id: str
    entry: str
    token: int
    attempt: int
    ended: str = ""
    ended_at_s: float = float("inf")
    acknowledged: bool = False
    settled: bool = False
    handed_back: bool = False
    """Whether it was handed back while it ran: its attempt is restored, though its handler goes on."""


@dataclass(slots=True)
class QueueModel:
    """Every push, every run of a handler, and every result that was shown."""

    world: World
    pushes: list[PushCall] = field(default_factory=list)
    runs: list[HandlerRun] = field(default_factory=list)
    retries: list[str] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    """Those of the end."""
    shown: dict[tuple[str, str], Result] = field(default_factory=dict)

    def ids(self) -> list[str]:
        """The tasks whose push, or second push, was acknowledged."""
        return [*(id_ for push in self.pushes for id_ in push.ids), *self.retries]

    def pushing(self, payloads: Sequence[Any], id_: str | None = None, *, delayed: bool = False) -> PushCall:
        """A push begins; it counts as acknowledged once `ids` is set."""
        self.pushes.append(PushCall(payloads, id_, delayed))
        return self.pushes[-1]

    def started(self, place: str, who: str, task: Task | RunningTask, entry: str, token: int) -> HandlerRun:
        """A handler starts."""
        self.runs.append(HandlerRun(self.world.now_s, place, who, task.id, entry, token, task.attempt))
        return self.runs[-1]

    def ended(self, run: HandlerRun, how: str) -> None:
        """A handler ends."""
        run.ended, run.ended_at_s = how, self.world.now_s

    def settled(self, entry: str, token: int, who: str) -> None:
        """A claim's block ended without an error: what it reported is durable."""
        for run in self.runs:
            if (run.entry, run.token, run.who) == (entry, token, who):
                run.settled = True

    def check_result(self, place: str, id_: str, result: Result) -> None:
        """A result was shown.   Raises: Violation unless a completed task's is always the same, in one place."""
        before = self.shown.get((place, id_))
        early = before is not None and before.finished_at is None  # its batch goes on: only state and value are settled
        same = before is None or before == result or (early and _settled(before) == _settled(result))
        if not same:
            raise Violation(f"in {place} the result of {id_} was {before}, and is now {result}")
        if result.state == "completed":
            self.shown[place, id_] = result


def _settled(result: Result) -> tuple[str, Any]:
    return result.state, result.value


def check_queue(world: World, plan: RunPlan, bucket: Bucket, model: QueueModel, policy: Policy) -> None:
    """Every invariant of the queue.   Raises: Violation."""
    bucket.check_empty(KEYS.pending, KEYS.scheduled, when="after the sweep")
    _one_place_each(bucket)
    _nothing_is_lost(bucket, model)
    _one_push_creates(model)
    _deletes_are_safe(bucket)
    _completions_stay(bucket)
    _results_stay(bucket, model)
    _completed_means_done(bucket, model)
    _one_winner_each(bucket, model)
    _returned_means_completed(bucket, model)
    _failed_means_failed(bucket, model)
    _attempts_are_limited(bucket, model, policy)
    _only_starts_are_charged(bucket, model)
    _suspects_run_alone(bucket, model, policy)
    _ended_tasks_do_not_start(bucket, model)
    if not plan.drift:
        _only_abandoned_entries_are_taken(bucket, plan)
        _no_renewal_past_the_time(bucket, model, policy)
    _requests_are_bounded(world, model)


def _receipt(bucket: Bucket, key: Key) -> Receipt | None:
    blob = bucket.objects.get(key)
    return msgspec.json.decode(blob.data, type=Receipt) if blob else None


def _leases(bucket: Bucket) -> Iterator[tuple[BucketChange, EntryLease]]:
    """Every lease that was written, in order."""
    return bucket.written(EntryLease, suffix="/lease.json")


def _one_place_each(bucket: Bucket) -> None:
    for key in bucket.below(KEYS.failed):
        name = name_of_receipt(key)
        part = batch_of(name)
        if KEYS.completed_of(name) in bucket.objects:
            raise Violation(f"{name} is both failed and completed")
        whole = _receipt(bucket, KEYS.completed_of(part[0])) if part else None
        if part and whole is not None and part[1] not in whole.failed:
            raise Violation(f"{name} has failed, and its batch says that it completed")


def verdict_of(bucket: Bucket, name: str) -> str:
    """How a task ended: `completed`, which beats `failed`, or an empty string if it has not."""
    if KEYS.completed_of(name) in bucket.objects:
        return "completed"
    part = batch_of(name)
    whole = _receipt(bucket, KEYS.completed_of(part[0])) if part else None
    if whole is not None and part is not None and part[1] not in whole.failed:
        return "completed"
    if KEYS.failed_of(name) in bucket.objects:
        return "failed"
    return "failed" if part and KEYS.failed_of(part[0]) in bucket.objects else ""


def _nothing_is_lost(bucket: Bucket, model: QueueModel) -> None:
    for id_ in model.ids():
        if not verdict_of(bucket, entry_of(id_)):
            raise Violation(f"the push of {id_} was acknowledged, and the task is nowhere")
        if (result := model.results.get(id_)) is not None and not result.ready:
            raise Violation(f"{id_} has ended, and result() says {result.state}")
    for key in bucket.below(KEYS.failed):
        receipt = _receipt(bucket, key)
        if receipt is not None and receipt.retried_as and not verdict_of(bucket, entry_of(receipt.retried_as)):
            raise Violation(f"{receipt.id} was retried as {receipt.retried_as}, which is nowhere (H1)")


def _one_push_creates(model: QueueModel) -> None:
    created = Counter(
        push.user_id for push in model.pushes if push.user_id and push.ids and push.created and not push.delayed
    )
    for id_, count in created.items():
        if count > 1:
            raise Violation(f"{count} pushes of {id_} were answered that they created it")


def _deletes_are_safe(bucket: Bucket) -> None:
    """A task is deleted only when a receipt ends it; a lease only when its task is gone (F18, F20).

    A task may come back after it was deleted: by a late copy of its push, or by a pusher that heard no answer.
    """
    present: dict[Key, bool] = {}
    deleted: set[Key] = set()
    for applied in bucket.journal:
        if applied.data is not None:
            present[applied.key] = applied.copy or applied.key in deleted
            continue
        present.pop(applied.key, None)
        deleted.add(applied.key)
        if not applied.key.startswith(f"{KEYS.pending}/"):
            continue
        entry, kind = applied.key.rsplit("/", 2)[1:]
        ended = KEYS.completed_of(entry) in present or KEYS.failed_of(entry) in present
        copied = [present[key] for batch in (False, True) if (key := KEYS.tasks(entry, batch=batch)) in present]
        if kind != "lease.json" and not ended:
            raise Violation(f"{applied.who} deleted {applied.key}, which no receipt ends")
        if kind == "lease.json" and copied and not ended:
            raise Violation(f"{applied.who} deleted {applied.key}, whose task waits: its tokens start again")
        if kind == "lease.json" and is_minted(entry) and not applied.copy and copied == [False]:
            raise Violation(f"{applied.who} deleted {applied.key} before its task: an ended task is claimable again")


def _completions_stay(bucket: Bucket) -> None:
    """The first finisher wins, for good."""
    first: dict[Key, str] = {}
    for applied in bucket.changes(f"{KEYS.completed}/"):
        if applied.data is None:
            raise Violation(f"{applied.who} deleted {applied.key}: a completion is undone")
        if applied.key in first:
            raise Violation(f"{applied.who} replaced {applied.key}, which {first[applied.key]} had written")
        first[applied.key] = applied.who


def _results_stay(bucket: Bucket, model: QueueModel) -> None:
    """The result of a completed task of a batch never changes, however late another worker finishes it."""
    receipts: dict[str, Receipt] = {}
    ended: set[str] = set()
    shown: dict[str, Receipt] = {}
    for applied in bucket.changes(f"{KEYS.completed}/", f"{KEYS.failed}/"):
        if applied.data is None:
            continue
        name = name_of_receipt(applied.key)
        entry = (batch_of(name) or (name, 0))[0]
        if not is_batch(entry):
            continue
        if name == entry:
            ended.add(entry)
        if applied.key.startswith(f"{KEYS.completed}/"):
            receipts[name] = msgspec.json.decode(applied.data, type=Receipt)
        for n in range(count_of(entry)):
            own, id_ = receipts.get(f"{entry}.{n}"), f"{entry}.{n}"
            now = completion(n, whole=receipts.get(entry), own=own, ended=entry in ended)
            if id_ in shown and now is not shown[id_]:
                raise Violation(f"{applied.who} changed the result of {id_} by {applied.key}")
            if now is not None:
                shown[id_] = now
    for id_, receipt in shown.items():
        result = model.results.get(id_)
        if result is not None and result.finished_at != receipt.finished_at:
            raise Violation(f"result({id_}) is that of {result.worker}, and {receipt.label} was the first to finish it")


def _completed_means_done(bucket: Bucket, model: QueueModel) -> None:
    """Nothing is completed whose handler never returned (H2)."""
    returned = {run.id for run in model.runs if run.ended == "returned"}
    for push in model.pushes:
        for id_ in push.ids:
            if verdict_of(bucket, entry_of(id_)) == "completed" and id_ not in returned:
                raise Violation(f"{id_} is completed, and its handler never returned")


def _one_winner_each(bucket: Bucket, model: QueueModel) -> None:
    """One process a token; and tokens of a lease rise for as long as its entry lives."""
    holders: dict[tuple[str, int], HandlerRun] = {}
    for run in model.runs:
        first = holders.setdefault((run.entry, run.token), run)
        if first.who != run.who and not _ended_before(bucket, run.entry, run.at_s):
            raise Violation(f"token {run.token} of {run.entry} was won by {first.who} and by {run.who}")
    starts: dict[tuple[str, int, int], HandlerRun] = {}
    for run in model.runs:
        first = starts.setdefault((run.id, run.token, run.attempt), run)
        if first is not run and not _ended_before(bucket, run.entry, run.at_s):
            raise Violation(f"attempt {run.attempt} of {run.id} was started by {first.who} and by {run.who}")


def _ended_before(bucket: Bucket, entry: str, at_s: float) -> bool:
    """Whether the entry had a receipt by then: late copies of its task may run again, which at least once allows."""
    receipts = {KEYS.completed_of(entry), KEYS.failed_of(entry)}
    return any(applied.key in receipts and applied.at_s <= at_s for applied in bucket.journal)


def _returned_means_completed(bucket: Bucket, model: QueueModel) -> None:
    """Work that a handler finished, and whose worker lived to say so, is never thrown away (H4)."""
    for run in model.runs:
        single = batch_of(run.id) is None
        heard = run.acknowledged and (single or run.settled)
        if run.ended == "returned" and heard and verdict_of(bucket, entry_of(run.id)) != "completed":
            raise Violation(f"{run.who} finished {run.id} (token {run.token}), and it is not completed")


def _failed_means_failed(bucket: Bucket, model: QueueModel) -> None:
    """Nothing in failed/ whose handler never failed or died (H3)."""
    named = _named_running(bucket)
    troubled = {run.id for run in model.runs if run.ended != "returned" or not run.acknowledged}
    for key in bucket.below(KEYS.failed):
        receipt = _receipt(bucket, key)
        assert receipt is not None
        if receipt.state != "cancelled" and receipt.id not in troubled and name_of_receipt(key) not in named:
            raise Violation(f"{receipt.id} is in failed/ ({receipt.error}), and its handler never failed or died")


def _named_running(bucket: Bucket) -> set[str]:
    """Tasks that were named running by a swap whose holder then lost the entry without a verdict."""
    named: set[str] = set()
    last: dict[Key, EntryLease] = {}
    for applied, record in _leases(bucket):
        before = last.get(applied.key)
        if before is not None and record.token > before.token:
            batch = KEYS.tasks(before.name, batch=True) in {a.key for a in bucket.journal}
            named |= {f"{before.name}.{n}" if batch else before.name for n in _running(before)}
        last[applied.key] = record
    return named


def _running(record: EntryLease) -> set[int]:
    """The tasks that a lease names running."""
    return {*record.beside, *([] if record.running is None else [record.running])}


def _attempts_are_limited(bucket: Bucket, model: QueueModel, policy: Policy) -> None:
    for run in model.runs:
        if run.attempt > policy.max_attempts:
            raise Violation(f"{run.id} was started as attempt {run.attempt} of {policy.max_attempts}")
    dead = {process.name for process in model.world.processes if not process.alive}
    tokens: dict[str, set[int]] = {}
    for run in model.runs:
        died = run.ended == "died" or (not run.ended and run.who in dead)
        counts = (died or run.ended == "failed") and not run.handed_back
        if counts and not _ended_before(bucket, run.entry, run.at_s):
            tokens.setdefault(run.id, set()).add(run.token)
    for id_, seen in tokens.items():
        counted = seen if policy.max_attempts == 1 else seen - {1}  # a first claim that dies charges no task
        if len(counted) > policy.max_attempts:
            raise Violation(
                f"{id_} failed or died under {len(seen)} tokens; {policy.max_attempts} attempts are allowed"
            )


def _only_starts_are_charged(bucket: Bucket, model: QueueModel) -> None:
    """A task has as many attempts as it had starts, at most: neighbours of a killer are not charged (H3).

    A swap that names a task running counts as a start: the process may have died just before the handler.
    """
    starts: dict[str, set[int]] = {}
    for run in model.runs:
        starts.setdefault(entry_of(run.id), set()).add(run.token)
    for applied, record in _leases(bucket):
        for n in _running(record):
            name = f"{record.name}.{n}" if is_batch(record.name) else record.name
            starts.setdefault(name, set()).add(record.token)
        for n in range(count_of(record.name)):
            name = f"{record.name}.{n}" if is_batch(record.name) else record.name
            if attempts_of(record, n) > len(starts.get(name, ())):
                raise Violation(
                    f"{applied.who} wrote {attempts_of(record, n)} attempts of {name}, which was started "
                    f"{len(starts.get(name, ()))} times"
                )


def _suspects_run_alone(bucket: Bucket, model: QueueModel, policy: Policy) -> None:
    """Nothing runs beside a task that ran when a holder died, until it has a verdict; nor beside any with one attempt,
    or with `concurrency`.
    """
    suspects = _suspects(bucket)
    claims: dict[tuple[str, int, str], list[HandlerRun]] = {}
    for run in model.runs:
        claims.setdefault((run.entry, run.token, run.who), []).append(run)
    for (entry, token, who), runs in claims.items():
        alone = suspects.get((entry, token), set())
        for run in runs:
            part = batch_of(run.id)
            if not (part and part[1] in alone) and policy.max_attempts > 1 and policy.concurrency is None:
                continue
            for other in runs:
                if other is not run and other.at_s < run.ended_at_s and run.at_s < other.ended_at_s:
                    raise Violation(f"{who} ran {other.id} beside {run.id} (token {token}), which must run alone")


def _suspects(bucket: Bucket) -> dict[tuple[str, int], set[int]]:
    """By entry and token, the tasks that ran when an earlier holder died, and had no verdict since."""
    found: dict[tuple[str, int], set[int]] = {}
    last: dict[str, EntryLease] = {}
    left: dict[str, set[int]] = {}
    for applied, record in _leases(bucket):
        entry = applied.entry
        before = last.get(entry)
        if before is not None and record.token > before.token and before.state is State.HELD:
            left.setdefault(entry, set()).update(_running(before))
        for each in (before, record):
            if each is not None:
                left.setdefault(entry, set()).difference_update(each.done, each.failed, each.waits)
        found.setdefault((entry, record.token), {*left[entry]})
        last[entry] = record
    return found


def _ended_tasks_do_not_start(bucket: Bucket, model: QueueModel) -> None:
    """An entry with a user's id, or taken over, is looked up in failed/ and completed/ before it runs (H5).

    Of any other entry the task must still be there once its lease is created. (It may be there again, by a late copy
    of its push.)
    """
    claims = {(applied.entry, record.token): applied.at_s for applied, record in reversed([*_leases(bucket)])}
    created = {(applied.entry, applied.who): applied.at_s for applied, record in _leases(bucket) if record.token == 1}
    for run in model.runs:
        if is_minted(run.entry) and run.token == 1:
            since_s = created.get((run.entry, run.who), run.at_s)
            if not _task_exists_between(bucket, run.entry, since_s, run.at_s):
                raise Violation(f"{run.who} started {run.id}, whose task was gone when it was claimed")
            continue
        claimed_at_s = claims.get((run.entry, run.token), run.at_s)
        if _ended_before(bucket, run.entry, claimed_at_s):
            raise Violation(f"{run.who} started {run.id} (token {run.token}), which had ended before it was claimed")


def _task_exists_between(bucket: Bucket, entry: str, since_s: float, until_s: float) -> bool:
    """Whether the task of an entry was there at some moment of that time."""
    there = False
    for applied in bucket.changes(KEYS.tasks(entry, batch=is_batch(entry))):
        if applied.at_s > until_s:
            break
        if applied.at_s >= since_s and (there or applied.data is not None):
            return True
        there = applied.data is not None
    return there


def _only_abandoned_entries_are_taken(bucket: Bucket, plan: RunPlan) -> None:
    for applied, at_s, before, record in bucket.successive(EntryLease, suffix="/lease.json"):
        if record.token < before.token:
            raise Violation(f"{applied.key}: token {record.token} follows {before.token}")
        rested_s = applied.at_s - at_s
        wanted_s = before.ttl_s if before.state is State.HELD else before.wait_s - 1
        early = record.token > before.token and rested_s < wanted_s and plan.sane_clocks
        if early and not _ended_before(bucket, applied.entry, applied.at_s):
            raise Violation(
                f"{applied.key}: {record.worker_id} took it {rested_s:.2f} s after {before.worker_id} wrote "
                f"{before.state.value}, not {wanted_s:g} s"
            )


def _no_renewal_past_the_time(bucket: Bucket, model: QueueModel, policy: Policy) -> None:
    """A worker that hangs in a handler does not keep the entry for ever (F16)."""
    if policy.timeout_s is None:
        return
    starts: dict[tuple[str, str, int], list[HandlerRun]] = {}
    for run in model.runs:
        starts.setdefault((run.who, run.entry, run.token), []).append(run)
    for sent in bucket.renewals("lease.renew"):
        for run in starts.get((sent.who, sent.key.rsplit("/", 2)[1], sent.token), ()):
            if run.at_s + policy.timeout_s + 1 < sent.at_s < run.ended_at_s:
                raise Violation(f"{sent.who} renewed {sent.key} {sent.at_s - run.at_s:.1f} s after {run.id} began")


def _requests_are_bounded(world: World, model: QueueModel) -> None:
    tasks = sum(len(push.payloads) for push in model.pushes) + len(model.retries)
    world.check_calls(BUDGET_BASE + BUDGET_PER_TASK * tasks, f"{tasks} tasks")
