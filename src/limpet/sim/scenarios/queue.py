"""Processes that push, work, die, retry, cancel and sweep one queue through a faulty network."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from limpet.errors import Conflict, LimpetError, Missing, OutcomeUnknown, Unavailable
from limpet.keys import QueueKeys
from limpet.queue import BucketQueue, Policy, Task
from limpet.queue.claim import EntryClaim
from limpet.sim.bucket import Bucket, SimStore
from limpet.sim.cast import Actor, Cast, perform
from limpet.sim.nemesis import Knobs, Nemesis, draw
from limpet.sim.queue_checks import Books, check_queue
from limpet.sim.runtime import SimRuntime
from limpet.sim.world import Process, Violation, World

__all__ = ["STEPS", "run"]

TURNS = 8
QUEUE = "q"
KINDS = ("ok",) * 13 + ("flaky",) * 2 + ("fail", "fail", "raise", "poison", "sour")
"""`flaky` fails at first, `sour` fails once another attempt was made; `poison` takes its process along."""
HEAL_S = 4_000.0
RUN_S = 3_000.0
QUIET_S = 120.0
"""After this long no copy of a request is still under way."""

STEPS = (
    "completed.head",
    "completed.put",
    "failed.head",
    "failed.put",
    "lease.create",
    "lease.delete",
    "lease.free",
    "lease.read",
    "lease.renew",
    "lease.settle",
    "lease.take",
    "lease.takeover",
    "queue.list",
    "scheduled.delete",
    "scheduled.put",
    "task.delete",
    "task.put",
    "task.read",
    "task.settle",
)
"""The steps of the queue's protocol at which somebody may lie in wait."""


def run(seed: int, *, muted: frozenset[str] = frozenset()) -> tuple[World, Violation | None]:
    """One run of the seed: the world as it ended, and the invariant that broke, if one did."""
    world = World(seed, muted=muted)
    return perform(world, _Fleet(world, draw(seed)))


class _Fleet(Cast):
    """Processes on machines of their own, around one queue."""

    def __init__(self, world: World, knobs: Knobs) -> None:
        super().__init__(world, slots=knobs.processes, turns=TURNS)
        self.knobs = knobs
        self.bucket = Bucket(world, knobs)
        self.books = Books()
        chance = world.chance
        self.duel = chance(56) < 0.15
        """Few ids, and handlers that outlive their lease: two workers end one task, one well and one badly."""
        self.policy = Policy(
            max_attempts=2 if self.duel else 1 + int(chance(50) * 3),
            ttl_s=knobs.ttl_s,
            timeout_s=knobs.ttl_s / 2 if self.duel else 2 * knobs.ttl_s if chance(51) < 0.5 else None,
            backoff_s=1.0,
            concurrency=2 if chance(52) < 0.15 else None,
        )
        self.operators = chance(53) < 0.5
        self.ids = 1 + int(chance(54) * 3)
        self.named = 0.16 if chance(55) < 0.7 else 0.4

    def act(self) -> None:
        """The faulty part, then the healed part in which everything drains; then every check."""
        nemesis = Nemesis(self.world, self.knobs, lambda: self.living, self.restart, steps=STEPS)
        self.play(nemesis.run, until_s=RUN_S)
        self.heal()
        check_queue(self.world, self.knobs, self.bucket, QueueKeys.of(QUEUE), self.books, self.policy)

    def actor(self, process: Process) -> _Actor:
        """A program; some processes have bad clocks, some a newer version of Limpet."""
        process.newer = self.knobs.mixed_versions and process.index % 2 == 1
        if self.knobs.drift:
            process.clock_rate = 0.9 + 0.2 * self.world.chance(30, process.index)
        return _Actor(self, process)

    def heal(self) -> None:
        """Faults stop. Whatever happened before, newcomers finish everything, and a sweep tidies up."""
        self.world.healed = True
        self.world.note("nemesis", "faults stop")
        for process in self.living:
            self.world.kill(process)
        newcomer = _Actor(self, self.world.start("newcomer"))
        task = self.world.spawn(newcomer.process, newcomer.finish_everything)
        self.world.run(until_s=self.world.now_s + HEAL_S, done=lambda: task.done)
        self.fail_on_error()
        if not task.done:
            raise Violation(f"no progress: {HEAL_S:g} s after the faults stopped the queue has not drained")


class _Actor(Actor):
    """One process's program."""

    def __init__(self, cast: _Fleet, process: Process) -> None:
        runtime = SimRuntime(cast.world, process)
        super().__init__(runtime, SimStore(cast.world, cast.bucket, runtime, cast.knobs), cast.history)
        self.cast = cast
        self.books = cast.books
        self.queue = BucketQueue(self.store, QUEUE, runtime, policy=cast.policy)

    def turns(self) -> list[tuple[float, Callable[[], None]]]:
        """The things that users and workers do."""
        operator = [
            (0.08, self.retry_failed),
            (0.04, self.cancel),
            (0.03, self.sweep),
            (0.02, self.pause),
            (0.02, self.look_around),
        ]
        if self.cast.duel:
            return [(0.35, self.push_with_id), (0.25, self.sweep), (0.05, self.retry_failed), (1.0, self.work)]
        return [
            *(operator if self.cast.operators else []),
            (0.12, self.push),
            (self.cast.named, self.push_with_id),
            (0.12, self.push_batch),
            (0.06, self.push_later),
            (1.0, self.work),
        ]

    def turn(self) -> None:
        """One of them, and a rest."""
        with suppress(Conflict, Missing):
            super().turn()
        self.runtime.sleep(self.chance() * 3)

    def payload(self) -> dict[str, object]:
        """What a task is to do: most succeed, some fail, some kill the process that runs them."""
        what = KINDS[int(self.chance() * len(KINDS))]
        slow = self.chance()
        if self.cast.duel:
            what, slow = "sour", 2 * slow
        return {"what": what, "by": self.new_value(), "slow": round(slow, 2)}

    def push(self) -> None:
        """A task without an id."""
        payload = self.payload()
        with self.books.pushing(self.world, payload, None) as push:
            push.ids = [self.queue.push(payload).id]

    def push_with_id(self) -> None:
        """A task whose id others push too."""
        id_ = f"x{int(self.chance() * self.cast.ids)}"
        payload = self.payload()
        with self.books.pushing(self.world, payload, id_) as push:
            pushed = self.queue.push(payload, id=id_)
            push.ids, push.created = [id_], pushed.created

    def push_batch(self) -> None:
        """Some tasks in one entry."""
        payloads = [self.payload() for _ in range(2 + int(self.chance() * 3))]
        with self.books.pushing(self.world, payloads, None) as push:
            push.ids = self.queue.push_many(payloads)

    def push_later(self) -> None:
        """A delayed task, sometimes with an id."""
        id_ = f"x{int(self.chance() * self.cast.ids)}" if self.chance() < 0.5 else None
        payload = self.payload()
        with self.books.pushing(self.world, payload, id_, delayed=True) as push:
            pushed = self.queue.push(payload, id=id_, delay_s=1 + self.chance() * 20)
            push.ids, push.created = [pushed.id], pushed.created

    def work(self) -> None:
        """Claim something and do it, as a worker does."""
        with self.queue.claim(wait_s=self.chance() * self.cast.knobs.ttl_s) as claim:
            if not isinstance(claim, EntryClaim):
                return
            hand_back_at = self.chance() * 12
            for task in claim:
                if hand_back_at < 1:
                    claim.hand_back()
                    break
                self.handle(task, claim)
        self.books.settled(claim.entry, claim.token, self.process.name)

    def handle(self, task: Task, claim: EntryClaim) -> None:
        """Run one handler, and pass its verdict on."""
        run_ = self.books.started(self.world, self.process.name, task, claim)
        what = task.payload["what"]
        slow = float(task.payload["slow"])
        self.runtime.sleep(slow * slow * self.cast.knobs.ttl_s)
        if what == "poison" and not self.world.healed:
            run_.end(self.world, "died")
            self.cast.world.kill(self.process)
            self.cast.restart(self.process)
            self.world.pause(0)
        fails = {"flaky": task.attempt == 1, "sour": task.attempt > 1}.get(what, what in ("fail", "raise"))
        if fails:
            run_.end(self.world, "failed")
            if what in ("fail", "sour"):
                task.fail("it fails")
            else:
                task.retry(after_s=None if what == "raise" else slow * 10, error="it raises")
            return
        run_.end(self.world, "returned")
        task.done({"by": self.process.name, "blob": "." * (2_000 if slow > 0.9 else 3)})
        run_.acknowledged = True

    def retry_failed(self) -> None:
        """An operator gives what failed another life."""
        self.books.retried(self.queue.retry(all=True))

    def cancel(self) -> None:
        """An operator ends a task."""
        id_ = f"x{int(self.chance() * self.cast.ids)}"
        self.books.cancelled.add(id_)
        self.queue.cancel(id_)

    def sweep(self) -> None:
        """An operator tidies up."""
        self.queue.sweep()

    def pause(self) -> None:
        """An operator stops the queue for a while."""
        self.queue.pause()
        self.runtime.sleep(self.chance() * 10)
        self.queue.resume()

    def look_around(self) -> None:
        """An operator looks; nothing may be shown as completed that is not."""
        self.queue.stats()
        self.queue.peek(3)
        for push in self.books.pushes[:3]:
            for id_ in push.ids[:1]:
                self.books.tell(self.queue.result(id_))

    def finish_everything(self) -> None:
        """After the faults: work until nothing waits, then sweep."""
        self.runtime.sleep(QUIET_S)
        self.queue.resume()
        while True:
            with suppress(OutcomeUnknown, Unavailable):
                self.work()
            stats = self.queue.stats()
            if stats.pending == 0 and stats.scheduled == 0:
                break
            self.runtime.sleep(1)
        self.runtime.sleep(QUIET_S)
        self.queue.sweep()
        for push in self.books.pushes:
            for id_ in push.ids:
                try:
                    self.books.results[id_] = result = self.queue.result(id_)
                except LimpetError as error:
                    raise Violation(f"the result of {id_} cannot be read: {error!r}") from error
                self.books.tell(result)
