"""Scenario: processes that push and work on durable tasks and the tasks which those push, through a faulty network.

Each durable task records steps, fans out, waits for the ends, sleeps, and may wait for a signal. The invariants are
checked on what every attempt saw, on the functions that ran, and on every mutation of the bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import msgspec

from limpet.kernel import records
from limpet.kernel.errors import Conflict, Invalid, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.kernel.keys import RETRY_MARK, QueueKeys, batch_of, entry_of, is_batch, parts_of_scheduled, parts_of_step
from limpet.kernel.lease import State
from limpet.queue import BucketQueue, Fail, Policy, Result, Task, decide
from limpet.queue.calls import gather, sleep, step, version, wait_signal
from limpet.queue.claim import EntryClaim
from limpet.queue.decide import attempts_of, lists_done
from limpet.queue.durable import CODE_MIN_S
from limpet.queue.entry import EntryLease, Receipt, StepRecord
from limpet.queue.steps import RUNNING, Suspend, TaskSteps
from sim.actors import Actor, Actors, Nemesis, RunPlan, Settings, Turns, steps
from sim.bucket import Bucket, SimStore
from sim.world import SimProcess, SimRuntime, Violation, World

TURNS = 6
FLOW, PART = "flow", "part"
FLOWS, PARTS = QueueKeys.of(FLOW), QueueKeys.of(PART)
KINDS = ("ok",) * 3 + ("flaky", "flaky", "fail", "fail", "signal", "signal", "batch")
CHILD_KINDS = ("ok",) * 5 + ("flaky", "fail")
RUN_S = 1_500.0
HEAL_S = 18_000.0
QUIET_S = 700.0
"""After this time no duplicate of a request is in flight, and what is left of a crash is old enough for a sweep."""
SLEEP_S = 15.0
SIGNAL_S = 40.0
FULL_BYTES, FULL_RECORD_BYTES = 250, 1_560
"""The room for suspensions, for errors, and for a lease as a whole, where leases are at their limit."""
NAP_S = 4_000.0
SET_BACK_S = 3_600.0
"""How far the store's clock is set back during a sleep of `NAP_S`."""
LATE_S = 300.0
"""How long that task may take otherwise: the worker looks every half a minute."""
DELAY_S = 2_000.0
"""How long users delay durable tasks, at most: some still wait when what was sent to them is old enough for a sweep."""

NEWER, OLDER = "newer", "older"
"""The versions of the program, where there are two."""
TRY_SLACK_S = 60.0
"""How much earlier a task that waits for code may be tried than its pause says: clocks differ."""
DOZE_S = 400.0
"""How long a process sleeps inside of a step, at most: its task may have ended by then."""

STEPS = steps("completed: put", "lease: create free take takeover", "steps: delete list put read", "task: delete put")
"""The steps of the protocol at which a process may be struck."""


@dataclass(slots=True)
class FlowRun:
    """One run of a durable task: where it was seen, and how it ended."""

    at_s: float
    who: str
    id: str
    entry: str
    n: int
    token: int
    attempt: int
    code: str = ""
    ended: str = ""


@dataclass(slots=True)
class StepCall:
    """One call of a step's function."""

    at_s: float
    run: FlowRun
    number: int


@dataclass(slots=True)
class DurableModel:
    """What was pushed, which functions ran, and what each attempt saw."""

    world: World
    pushed: list[str] = field(default_factory=list)
    runs: list[FlowRun] = field(default_factory=list)
    calls: list[StepCall] = field(default_factory=list)
    seen: dict[tuple[str, int], Any] = field(default_factory=dict)
    children: dict[tuple[str, int], str] = field(default_factory=dict)
    """The id of each task that a durable task has pushed, by that task and the child's place."""
    returned: dict[str, set[Any]] = field(default_factory=dict)
    """What the handler of each child returned."""
    gathered: list[Result] = field(default_factory=list)
    sent: dict[str, float] = field(default_factory=dict)
    """When the first signal to each task was acknowledged."""
    many: dict[str, list[Any]] = field(default_factory=dict)
    """By the id of a push of many tasks: the ids of these."""

    def saw(self, run: FlowRun, number: int, value: Any) -> None:
        """An attempt got the value of a step.   Raises: Violation unless every attempt gets the same."""
        at = (first_life(run.id), number)
        before = self.seen.setdefault(at, value)
        if before != value:
            raise Violation(f"step {number} of {run.id} was {before!r}, and is {value!r} for {run.who}")

    def pushed_child(self, run: FlowRun, place: int, id_: str) -> None:
        """An attempt pushed a child, or found it pushed.   Raises: Violation unless it is always the same task."""
        before = self.children.setdefault((first_life(run.id), place), id_)
        if before != id_:
            raise Violation(f"{run.id} pushed its child {place} as {before} and as {id_}")


def first_life(id_: str) -> str:
    """The id without the mark of a retry."""
    return id_.partition(RETRY_MARK)[0]


class DurableActors(Actors):
    """Processes on separate machines, around the durable tasks of one queue and their children in another."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        super().__init__(world, plan, slots=3, turns=TURNS)
        self.bucket = Bucket(world, plan)
        self.model = DurableModel(world)
        chance = world.chance
        self.far = chance(60) < 0.5
        self.operators = chance(61) < 0.6
        self.crowded = chance(64) < 0.25
        self.fails_before_signal = chance(66) < 0.2
        self.many = chance(65) < 0.2
        """Whether users push many tasks under ids of which several want to use the same."""
        self.delays = chance(67) < 0.25
        """Whether users delay durable tasks, and these delay a child."""
        self.naps = chance(69) < 0.1
        """Whether a task sleeps for more than an hour at the end, while the store's clock is set back."""
        self.bad_batches = chance(68) < 0.5
        """Whether the tasks of a batch fail, each for itself, and are retried."""
        self.dozes = chance(74) < 0.12
        """Whether a process sleeps inside of steps until others, which have more turns, may have ended its tasks.
        Nothing kills it meanwhile."""
        if self.dozes:
            self.turns_left = dict.fromkeys(self.turns_left, 4 * TURNS)
        self.beside = chance(75) < 0.15
        """Whether durable tasks ask for steps in threads beside their own, after a wait."""
        self.reordered = plan.mixed_versions and chance(71) < 0.5
        """Whether the later version of the program makes the same steps in another order."""
        self.fails = chance(76) < 0.15
        """Whether users end tasks as failed that no worker holds."""
        self.policy = Policy(max_attempts=2 + int(chance(62) * 2), ttl_s=plan.ttl_s, backoff_s=1.0, durable=True)

    @staticmethod
    def tuning(world: World, plan: RunPlan) -> Settings:
        """In some seeds leases are at their size limit: a batch has less room than its tasks wait for."""
        if world.chance(70) >= 0.25:
            return {}
        shares = {(decide, name): FULL_BYTES for name in ("SUSPENSIONS_BYTES_MAX", "ERRORS_BYTES_MAX")}
        shares |= {(decide, name): 100 for name in ("TRACEBACK_CHARS_MAX", "ATTEMPT_TRACE_CHARS_MAX")}
        return {**shares, (records, "RECORD_BYTES_MAX"): FULL_RECORD_BYTES}

    def act(self) -> None:
        self.play((lambda: None) if self.dozes else Nemesis(self, STEPS).run, until_s=RUN_S)
        self.stop_faults()
        newcomer = DurableActor(self, self.world.start("newcomer"))
        self.alone(newcomer, newcomer.finish_everything, within_s=HEAL_S)
        check_durable(self.bucket, self.plan, self.model)

    def actor(self, process: SimProcess) -> Actor:
        self.vary(process, newer=self.plan.mixed_versions)
        return DurableActor(self, process)


class DurableActor(Actor):
    """A user, worker and operator of both queues."""

    expected = (*Actor.expected, Conflict, Missing)

    def __init__(self, actors: DurableActors, process: SimProcess) -> None:
        runtime = SimRuntime(actors.world, process)
        store = SimStore(actors.bucket, runtime)
        store.far = actors.far
        super().__init__(runtime, store)
        self.actors = actors
        self.model = actors.model
        self.naps = 0
        self.flows = BucketQueue(store, FLOW, runtime, policy=actors.policy)
        plain = Policy(max_attempts=2, ttl_s=actors.policy.ttl_s, backoff_s=1.0)
        self.parts = BucketQueue(store, PART, runtime, policy=plain)
        self.run_program(newer=process.newer)
        if actors.crowded:
            # As if thousands rested: a page shows few objects, and few leases are read before the others.
            for queue in (self.flows, self.parts):
                queue.discovery.pages.size, queue.discovery.leases_a_page = 6, 2

    def run_program(self, *, newer: bool) -> None:
        """This process has that version of the program."""
        self.process.newer = newer
        if self.actors.reordered:
            self.flows.storage.code = NEWER if newer else OLDER

    def turns(self) -> Turns:
        operator: Turns = [(0.08, self.retry_failed), (0.03, self.cancel), (0.04, self.sweep)]
        return [
            *(operator if self.actors.operators else []),
            *([(0.12, self.push_many)] if self.actors.many else []),
            *([(0.05, self.fail)] if self.actors.fails else []),
            (0.14, self.push),
            (0.08, self.send_signal),
            (0.28, partial(self.work, self.parts)),
            (1.0, partial(self.work, self.flows)),
        ]

    def rest(self) -> None:
        self.runtime.sleep(self.chance() * 4)

    def push(self) -> None:
        """A durable task; some of them share an entry, some are delayed."""
        kind = KINDS[int(self.chance() * len(KINDS))]
        payload = {"what": kind, "slow": round(self.chance(), 2), "by": self.new_value()}
        if kind == "batch":
            kinds = ("fail", "signal", "fail") if self.actors.bad_batches else ("ok", "ok")
            self.model.pushed += self.flows.push_many([{**payload, "what": each} for each in kinds])
        else:
            delay_s = round(self.chance() * DELAY_S) if self.actors.delays else 0.0
            self.model.pushed.append(self.flows.push(payload, delay_s=delay_s).id)

    def push_many(self) -> None:
        """Plain tasks under an id that others may use for another number of tasks, or other batches."""
        id_, tasks = f"many-{int(self.chance() * 3)}", 2 + int(self.chance() * 2)
        calls = [{"what": "ok", "slow": 0.1, "of": f"{id_} {place}"} for place in range(tasks)]
        ids = self.parts.push_many(calls, batch=1 + int(self.chance() * 2), id=id_)
        if self.model.many.setdefault(id_, ids) != ids:
            raise Violation(f"the id {id_} was acknowledged for {self.model.many[id_]} and for {ids}")

    def retry_failed(self) -> None:
        """An operator runs failed durable tasks again: they keep their steps."""
        self.model.pushed += self.flows.retry(all=True)

    def cancel(self) -> None:
        """An operator ends a durable task, or all of a batch."""
        if self.model.pushed:
            id_ = self.model.pushed[int(self.chance() * len(self.model.pushed))]
            part = batch_of(id_)
            self.flows.cancel(part[0] if part else id_)

    def fail(self) -> None:
        """An operator ends a durable task as failed, if no worker holds it."""
        if self.model.pushed:
            self.flows.fail(self.model.pushed[int(self.chance() * len(self.model.pushed))])

    def sweep(self) -> None:
        """An operator tidies up."""
        self.flows.sweep()
        self.parts.sweep()

    def send_signal(self) -> None:
        """A signal from outside, to a task that waits for it or not."""
        if self.model.pushed:
            id_ = self.model.pushed[int(self.chance() * len(self.model.pushed))]
            self.flows.signal(id_, "go", self.new_value())
            self.model.sent.setdefault(first_life(id_), self.world.now_s)

    def work(self, queue: BucketQueue) -> None:
        """Claim something of a queue and do it, as a worker does."""
        with queue.claim(wait_s=self.chance() * self.actors.plan.ttl_s) as claim:
            if not isinstance(claim, EntryClaim):
                return
            for task in claim:
                if queue is self.flows:
                    self.run_flow(task, claim)
                else:
                    self.run_child(task)

    def run_child(self, task: Task) -> None:
        """Run a plain task."""
        what, slow = task.payload["what"], float(task.payload["slow"])
        self.runtime.sleep(slow * slow * 0.7 * self.actors.plan.ttl_s)
        if what == "fail" or (what == "flaky" and task.attempt == 1):
            task.retry(error="it fails")
            return
        value = f"{self.new_value()} of {task.payload.get('first')}"
        self.model.returned.setdefault(first_life(task.id), set()).add(value)
        task.done(value)

    def run_flow(self, task: Any, claim: EntryClaim) -> None:
        """Run a durable task, as a worker does."""
        part = batch_of(task.id)
        now = self.world.now_s
        n, code = part[1] if part else 0, self.flows.storage.code
        run = FlowRun(now, self.process.name, task.id, claim.entry, n, claim.token, task.attempt, code)
        self.model.runs.append(run)
        token = RUNNING.set(TaskSteps(self.flows, task))
        try:
            value = self.flow(task, run)
        except Suspend as error:
            run.ended = "sleeps" if error.suspension.reason.startswith("sleeping") else "suspended"
            run.ended = "waits for code" if error.suspension.codes else run.ended
            task.suspend(error.wait_s, error.suspension)
        except Fail as error:
            run.ended = "failed"
            if "it is to fail" not in str(error):
                raise Violation(f"{task.id} failed: {error}") from None
            task.fail(str(error))
        except LimpetError as error:
            run.ended = "failed"
            task.retry(error=str(error))
        else:
            run.ended = "returned"
            task.done(value)
        finally:
            RUNNING.reset(token)

    def noted(self, run: FlowRun) -> Callable[[int, float], str]:
        """The function of a step of that run."""

        def note_step(number: int, slow: float) -> str:
            self.model.calls.append(StepCall(self.world.now_s, run, number))
            self.doze()
            self.runtime.sleep(slow * slow * 0.7 * self.actors.plan.ttl_s)
            return self.new_value()

        return note_step

    def doze(self) -> None:
        """Stop the process now and then, as SIGSTOP does: longer than its lease lasts."""
        self.naps += 1
        chance = partial(self.world.chance, 72, self.process.index, self.naps)
        sleeps = self.actors.dozes and self.process.name.startswith("p0") and chance(0) < 0.5
        if sleeps and self.world.strike(f"{self.process.name}/nap{self.naps}", "pause"):
            self.process.paused_until_s = self.world.now_s + DOZE_S * (0.2 + 0.8 * chance(1))

    def ask_beside(self, run: FlowRun) -> None:
        """Two steps that threads beside the handler's ask for, each after a wait; where that is refused, none."""
        values: dict[int, str] = {}
        errors: list[Exception] = []

        def ask(place: int) -> None:
            self.runtime.sleep(self.world.chance(73, self.process.index, self.draws, place) * 2)
            try:
                values[place] = step(self.new_value, name="beside")
            except Invalid:
                pass
            except (LimpetError, Fail) as error:
                errors.append(error)

        threads = [self.runtime.spawn(partial(copy_context().run, ask, n), name=f"beside-{n}") for n in (0, 1)]
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        for place, value in values.items():
            self.model.saw(run, 20 + place, value)

    def charge(self, run: FlowRun) -> None:
        """Steps of one name, each for somebody else; the later version of the program makes them in another order."""
        for name in ("bob", "ann") if self.process.newer else ("ann", "bob"):
            charged = step(lambda of: f"{of} {self.new_value()}", name, name="charge")
            if not charged.startswith(name):
                raise Violation(f"{run.who} charged {name} in {run.id}, and got {charged!r}")
            self.model.saw(run, 10 + (name == "bob"), charged)

    def flow(self, task: Any, run: FlowRun) -> dict[str, Any]:
        """The program of a durable task: the same whenever it runs. The numbers are those of its steps."""
        what, slow = task.payload["what"], float(task.payload["slow"])
        first = step(self.noted(run), 0, slow, name="first")
        self.model.saw(run, 0, first)
        if self.actors.reordered:
            self.charge(run)
        if self.actors.beside:
            self.ask_beside(run)
        kinds = [CHILD_KINDS[int(self.world.chance(63, ord(char)) * len(CHILD_KINDS))] for char in task.payload["by"]]
        of = first_life(run.id)
        about = {"slow": slow, "first": first}
        calls = [{**about, "what": kind, "of": f"{of} {place}"} for place, kind in enumerate(kinds[-3:])]
        single = {**about, "what": "ok", "slow": 0.5, "of": f"{of} single"}
        delay_s = round(SLEEP_S * slow) if self.actors.delays else 0.0
        handles: list[Any] = [*self.parts.push_many(calls, batch=2), self.parts.push(single, delay_s=delay_s).id]
        for place, handle in enumerate(handles):
            self.model.pushed_child(run, place, handle)
        if run.attempt == 1 and what == "flaky":
            raise Unavailable("it fails in its first attempt")
        ends = gather(handles)
        if [end.id for end in ends] != handles:
            raise Violation(f"a gather of {handles} returned {[end.id for end in ends]}")
        if other := next((end for end in ends if end.ok and not end.value.endswith(f" of {first}")), None):
            raise Violation(f"{run.id} has recorded {first} and pushed {other.id} with another value: {other.value}")
        self.model.saw(run, 3, [(end.state, end.value) for end in ends])
        self.model.gathered += ends
        self.model.saw(run, 4, version("a change"))
        sleep(task.payload.get("nap", SLEEP_S * slow))
        if what == "signal" and self.actors.fails_before_signal and RETRY_MARK not in run.id:
            raise Fail("it is to fail")
        if what == "signal":
            self.model.saw(run, 6, wait_signal("go", timeout_s=SIGNAL_S * slow, default="none came"))
            if run.attempt == 1:
                raise Unavailable("it fails in its first attempt, after the wait")
        last = step(self.noted(run), 99, slow / 2, name="last")
        self.model.saw(run, 99, last)
        if what == "fail" and RETRY_MARK not in run.id:
            raise Fail("it is to fail")
        return {"first": first, "last": last}

    def finish_everything(self) -> None:
        """After the faults: work until nothing waits, with operators also what failed, then sweep."""
        self.runtime.sleep(QUIET_S)
        if self.actors.delays:
            self.sweep()  # what was sent to a delayed task stays
        self.work_until_all_have_ended()
        if self.actors.operators:
            self.sweep()
            self.retry_failed()
            self.work_until_all_have_ended()
        if self.actors.naps:
            self.take_a_nap()
        self.runtime.sleep(QUIET_S)
        self.sweep()
        self.compare_ends()
        self.compare_histories()

    def take_a_nap(self) -> None:
        """A task sleeps for more than an hour. The store's clock is set back meanwhile, and this machine's somehow.

        Raises: Violation if it sleeps for longer.
        """
        began_s = self.world.now_s
        self.model.pushed.append(self.flows.push({"what": "ok", "slow": 0.0, "by": "", "nap": NAP_S}).id)

        def set_clocks() -> None:
            self.world.store_offset_s -= SET_BACK_S
            self.process.wall_offset_s += (self.chance() - 0.5) * 86_400

        self.world.later(NAP_S * self.chance(), set_clocks)
        while self.flows.stats().pending or self.parts.stats().pending:
            for queue in (self.parts, self.flows):
                self.work(queue)
            self.runtime.sleep(30)
        if (late_s := self.world.now_s - began_s - NAP_S / self.process.clock_rate) > LATE_S:
            raise Violation(f"a sleep of {NAP_S:g} s lasted {late_s:.0f} s longer: clocks were set meanwhile")
        self.runtime.sleep(SET_BACK_S)

    def compare_ends(self) -> None:
        """What the gathers returned is what the receipts of the tasks say.   Raises: Violation."""
        ids = sorted({end.id for end in self.model.gathered})
        said = {result.id: (result.state, result.value) for result in self.parts.results(ids)}
        for end in self.model.gathered:
            if said[end.id] != (end.state, end.value):
                raise Violation(f"a gather returned {end.id} as {end.state} {end.value!r}; it ended as {said[end.id]}")

    def compare_histories(self) -> None:
        """What is kept of the steps of a task is what its attempts saw.   Raises: Violation."""
        for id_ in self.model.pushed:
            facts = self.flows.describe(id_) or {}
            for each in facts.get("steps", ()):
                before = self.model.seen.get((first_life(id_), 0), each.get("value"))
                if each.get("name") == "first" and each["value"] != before:
                    raise Violation(f"the history of {id_} has {each['value']!r}, and its attempts saw {before!r}")

    def work_until_all_have_ended(self) -> None:
        """Work on both queues until nothing waits."""
        while True:
            for queue in (self.parts, self.flows):
                with suppress(OutcomeUnknown, Unavailable):
                    self.work(queue)
            if self.actors.reordered:
                self.run_program(newer=self.chance() < 0.5)  # some tasks were begun by the one, some by the other
            if self.chance() < 0.3:
                with suppress(*self.expected):
                    self.send_signal()
            waiting = [queue.stats() for queue in (self.flows, self.parts)]
            if not any(stats.pending or stats.scheduled for stats in waiting):
                break
            self.runtime.sleep(1 if any(stats.pending for stats in waiting) else 60)


# ---- what must hold ----


def check_durable(bucket: Bucket, plan: RunPlan, model: DurableModel) -> None:
    """Every invariant of durable tasks.   Raises: Violation."""
    _all_have_ended(bucket, model)
    _steps_are_written_once(bucket)
    _steps_go_after_the_receipt(bucket)
    _no_steps_are_left(bucket)
    _children_are_pushed_once(bucket)
    _recorded_steps_do_not_run_again(bucket, model)
    _signals_are_seen(bucket, model)
    _ends_are_those_of_the_tasks(bucket, model)
    _suspensions_are_not_charged(bucket, model)
    if plan.sane_clocks:
        _tries_for_code_are_rare(bucket, model)
        _sleeps_last_as_long_as_they_should(bucket, plan, model)


def _receipt(bucket: Bucket, keys: QueueKeys, name: str) -> Receipt | None:
    for key in (keys.completed_of(name), keys.failed_of(name)):
        blob = bucket.objects.get(key)
        if blob is not None:
            return msgspec.json.decode(blob.data, type=Receipt)
    return None


def _all_have_ended(bucket: Bucket, model: DurableModel) -> None:
    for keys in (FLOWS, PARTS):
        bucket.check_empty(keys.pending, keys.scheduled, when="after the sweep")
    for id_ in model.pushed:
        part = batch_of(id_)
        names = [entry_of(id_), *([part[0]] if part else [])]
        if not any(_receipt(bucket, FLOWS, name) for name in names):
            raise Violation(f"the push of {id_} was acknowledged, and the task is nowhere")


def _steps_are_written_once(bucket: Bucket) -> None:
    """The first record counts, for good."""
    first: dict[str, str] = {}
    for applied in bucket.changes(f"{FLOWS.steps}/"):
        if applied.data is None:
            first.pop(applied.key, None)
        elif applied.key in first:
            raise Violation(f"{applied.who} replaced {applied.key}, which {first[applied.key]} had recorded")
        else:
            first[applied.key] = applied.who


def _steps_go_after_the_receipt(bucket: Bucket) -> None:
    """A step is removed when its task has ended; that of a failed or cancelled one, when it is retried."""
    receipts: dict[str, Receipt] = {}
    present: dict[str, float] = {}
    for applied in bucket.changes(f"{FLOWS.root}/"):
        if applied.key.startswith((f"{FLOWS.completed}/", f"{FLOWS.failed}/")) and applied.data is not None:
            receipts[applied.key] = msgspec.json.decode(applied.data, type=Receipt)
        if not applied.key.startswith(f"{FLOWS.steps}/"):
            continue
        if applied.data is not None:
            present.setdefault(applied.key, applied.at_s)
            continue
        old_s = applied.at_s - present.pop(applied.key, applied.at_s)
        part = parts_of_step(applied.key)
        assert part is not None
        entry = part[0]
        name = f"{entry}.{part[1]}" if is_batch(entry) else entry
        failed = receipts.get(FLOWS.failed_of(name))
        whole = receipts.get(FLOWS.completed_of(entry))
        done = FLOWS.completed_of(name) in receipts or (whole is not None and lists_done(whole, part[1]))
        cancelled = receipts.get(FLOWS.failed_of(entry))
        over = done or (is_batch(entry) and cancelled is not None and cancelled.state == "cancelled")
        ended = over or (failed is not None and failed.state == "retried")
        if failed is not None and failed.state in ("failed", "cancelled") and not done:
            raise Violation(f"{applied.who} deleted {applied.key}, which a retry of the failed task needs")
        if not ended and (FLOWS.tasks(entry, batch=is_batch(entry)) in bucket.objects or old_s < 60.0):
            raise Violation(f"{applied.who} deleted {applied.key}, whose task no receipt ends")
        if not ended and _was_waiting(bucket, entry, applied.at_s):
            raise Violation(f"{applied.who} deleted {applied.key}, whose task waits")


def _was_waiting(bucket: Bucket, entry: str, at_s: float) -> bool:
    """Whether the task of an entry was pending or scheduled at that time."""
    there: set[str] = set()
    for applied in bucket.changes(f"{FLOWS.root}/"):
        if applied.at_s > at_s:
            break
        later = parts_of_scheduled(applied.key)
        if applied.key == FLOWS.tasks(entry, batch=is_batch(entry)) or (later is not None and later[1] == entry):
            (there.discard if applied.data is None else there.add)(applied.key)
    return bool(there)


def _no_steps_are_left(bucket: Bucket) -> None:
    for key in bucket.below(FLOWS.steps):
        part = parts_of_step(key)
        assert part is not None
        name = f"{part[0]}.{part[1]}" if is_batch(part[0]) else part[0]
        blob = bucket.objects.get(FLOWS.failed_of(name))
        receipt = msgspec.json.decode(blob.data, type=Receipt) if blob else None
        if receipt is None or receipt.state not in ("failed", "cancelled"):
            raise Violation(f"{key} is left behind: its task has ended")


def _children_are_pushed_once(bucket: Bucket) -> None:
    """A task that a durable task pushes has one name, however often an attempt dies after the push."""
    names: dict[str, str] = {}
    for applied in bucket.changes(f"{PARTS.pending}/"):
        if applied.data is None or applied.key.endswith("/lease.json"):
            continue
        entry, leaf = applied.key.rsplit("/", 2)[1:]
        lines = applied.data.split(b"\n")[1:] if leaf == "tasks.jsonl" else [applied.data]
        for line in lines:
            body = msgspec.json.decode(line)
            of = body.get("payload", body)["of"]
            if names.setdefault(of, entry) != entry:
                raise Violation(f"{applied.who} pushed the child of {of} as {entry}; it was pushed as {names[of]}")


def _leases(bucket: Bucket) -> Iterator[tuple[Any, EntryLease]]:
    return bucket.written(EntryLease, f"{FLOWS.pending}/", suffix="/lease.json")


def _recorded_steps_do_not_run_again(bucket: Bucket, model: DurableModel) -> None:
    """A step that was recorded before a claim is not called in it."""
    claims: dict[tuple[str, int], float] = {}
    for applied, record in _leases(bucket):
        claims.setdefault((applied.entry, record.token), applied.at_s)
    recorded: dict[tuple[str, str], float] = {}
    for applied in bucket.changes(f"{FLOWS.steps}/"):
        if applied.data is not None and (names := [name for name in ("first", "last") if _names(applied.data, name)]):
            [name] = names
            entry, leaf = applied.key.rsplit("/", 2)[1:]
            recorded.setdefault((f"{entry}/{leaf.split('.')[0]}", name), applied.at_s)
    for call in model.calls:
        at_s = recorded.get((f"{call.run.entry}/{call.run.n}", "first" if call.number == 0 else "last"))
        claimed_at_s = claims.get((call.run.entry, call.run.token), call.run.at_s)
        if at_s is not None and at_s < claimed_at_s and not _ended_before(bucket, call.run.entry, claimed_at_s):
            raise Violation(f"{call.run.who} ran step {call.number} of {call.run.id}, which was recorded before")


def _sleeps_last_as_long_as_they_should(bucket: Bucket, plan: RunPlan, model: DurableModel) -> None:
    """A step that follows a sleep begins when that is over, and a run that begins later is not suspended by it again,
    whatever the clocks of the machines say."""
    sleeps: dict[tuple[str, int], tuple[float, float]] = {}
    for applied in bucket.changes(f"{FLOWS.steps}/"):
        part = parts_of_step(applied.key)
        if part is not None and applied.data is not None and b'"kind":"sleep"' in applied.data:
            record = msgspec.json.decode(applied.data, type=StepRecord)
            sleeps.setdefault(part[:2], (applied.at_s, record.wait_s))
    for call in model.calls:
        recorded_s, wait_s = sleeps.get((call.run.entry, call.run.n), (0.0, 0.0))
        slept_s = call.at_s - recorded_s + (1.0 if plan.whole_seconds else 0.01)
        if call.number == 99 and slept_s < wait_s:
            raise Violation(f"{call.run.id} slept for {slept_s:.2f} s in {call.run.who}, not for {wait_s:g} s")
    for run in model.runs:
        recorded_s, wait_s = sleeps.get((run.entry, run.n), (inf, 0.0))
        if run.ended == "sleeps" and run.at_s > recorded_s + wait_s + 5.0:
            raise Violation(
                f"{run.who} suspended {run.id} in a sleep of {wait_s:g} s, {run.at_s - recorded_s:.0f} s old"
            )


def _tries_for_code_are_rare(bucket: Bucket, model: DurableModel) -> None:
    """A task that waits for code is not tried by the code that did not fit before its pause is over."""
    written: dict[tuple[str, int], tuple[float, EntryLease]] = {}
    for applied, record in _leases(bucket):
        if record.state is State.FREE:
            written.setdefault((applied.entry, record.token), (applied.at_s, record))
    for run in model.runs:
        at_s, before = written.get((run.entry, run.token - 1), (run.at_s, None))
        each = None if before is None else before.suspended.get(run.n)
        if each is not None and run.code and run.code in each.codes and run.at_s < at_s + CODE_MIN_S - TRY_SLACK_S:
            tried = any(
                other.ended == "waits for code"
                and (other.entry, other.n, other.token) == (run.entry, run.n, run.token - 1)
                for other in model.runs
            )
            if tried:
                raise Violation(f"{run.who} tried {run.id} again after {run.at_s - at_s:.0f} s with the same code")


def _names(record: bytes, name: str) -> bool:
    return b'"kind":"step"' in record and f'"name":"{name}"'.encode() in record


def _signals_are_seen(bucket: Bucket, model: DurableModel) -> None:
    """A wait that times out began before the signal was sent: also if that was to an earlier life of the task."""
    claims: dict[tuple[str, int], float] = {}
    for applied, record in _leases(bucket):
        claims.setdefault((applied.key.rsplit("/", 2)[1], record.token), applied.at_s)
    for applied in bucket.changes(f"{FLOWS.steps}/"):
        part = parts_of_step(applied.key)
        if applied.data is None or part is None or b'"came":false' not in applied.data:
            continue
        entry, n, _ = part
        step_ = msgspec.json.decode(applied.data, type=StepRecord)
        claimed_at_s = claims.get((entry, step_.token), inf)
        sent_at_s = model.sent.get(first_life(f"{entry}.{n}" if is_batch(entry) else entry), inf)
        if sent_at_s < claimed_at_s <= applied.at_s:  # not the copy that a retry made
            raise Violation(f"{applied.who} waited in vain for a signal to {entry}, which was sent before")


def _ended_before(bucket: Bucket, entry: str, at_s: float) -> bool:
    receipts = {FLOWS.completed_of(entry), FLOWS.failed_of(entry)}
    return any(applied.key in receipts and applied.at_s <= at_s for applied in bucket.journal)


def _ends_are_those_of_the_tasks(bucket: Bucket, model: DurableModel) -> None:
    """A gather returns what the tasks returned, and `failed` only for one that failed or was given up."""
    children = {*model.children.values()}
    for end in model.gathered:
        if end.id not in children or not end.ready:
            raise Violation(f"a gather returned {end.id} as {end.state}")
        if end.ok and end.value not in model.returned.get(end.id, ()):
            raise Violation(f"a gather returned {end.value!r} for {end.id}, which its handler never did")
        if not end.ok and PARTS.failed_of(end.id) not in {applied.key for applied in bucket.journal}:
            raise Violation(f"a gather returned {end.id} as {end.state}, and it has not failed")


def _suspensions_are_not_charged(bucket: Bucket, model: DurableModel) -> None:
    """A task has at most as many attempts as it had runs that were not suspended, and one that runs."""
    let_go: set[tuple[str, int, int]] = set()
    started: dict[tuple[str, int], set[int]] = {}
    for run in model.runs:
        started.setdefault((run.entry, run.n), set()).add(run.token)
    for applied, record in _leases(bucket):
        entry = applied.entry
        if record.state is State.FREE:
            let_go |= {(entry, n, record.token) for n in record.suspended}
        named = {*record.beside, *([] if record.running is None else [record.running])}
        for n in named:
            started.setdefault((entry, n), set()).add(record.token)
        for n in {*record.attempts}:
            tokens = {token for token in started.get((entry, n), ()) if token <= record.token}
            charged = {token for token in tokens if (entry, n, token) not in let_go}
            if attempts_of(record, n) > len(charged):
                raise Violation(f"{applied.who} wrote {attempts_of(record, n)} attempts of {entry}.{n}: {len(charged)}")
