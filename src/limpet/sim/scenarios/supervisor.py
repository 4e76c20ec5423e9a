"""Nodes that work offline on directories of their own, their supervisors, and a client on the faulty bucket itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from limpet.errors import Conflict, Missing
from limpet.keys import QueueKeys, QueuePlace, queue_place
from limpet.queue import BucketQueue, Policy, Task
from limpet.queue.claim import EntryClaim
from limpet.queue.storage import Storage
from limpet.queue.sweep import Sweeper
from limpet.queue.sync import ClientLog, Outbox, Supervisor
from limpet.sim.bucket import Bucket
from limpet.sim.cast import Actor, Cast, perform
from limpet.sim.nemesis import Knobs, Nemesis, draw
from limpet.sim.runtime import SimRuntime
from limpet.sim.supervisor_checks import Books, Place, check_nodes
from limpet.sim.supervisor_store import LocalStore, RemoteStore
from limpet.sim.world import Process, Violation, World, mix
from limpet.store.api import Store

__all__ = ["STEPS", "run"]

QUEUE = "q"
BUCKET = "the bucket"
IDS = 2
TURNS = 4
RUN_S = 3_000.0
HEAL_S = 6_000.0
QUIET_S = 120.0
ROUNDS_MAX = 30
WAITING = ("single", "batch", "scheduled")
HANDLER = "handler"
BATCH_HANDLER = "batch handler"
STRIKES_MAX = 6
LARGE = "x" * 1100
"""A result with it goes into a part object."""

STEPS = (
    "completed.put",
    "failed.put",
    "lease.create",
    "lease.renew",
    "local.completed.put",
    "local.cursor.put",
    "local.failed.put",
    "local.lease.put",
    "local.outbox.delete",
    "local.outbox.put",
    "local.remote.put",
    "local.task.delete",
    "local.task.put",
    "sync.list",
    "sync.put",
    "sync.read",
    "task.delete",
    "task.put",
)
"""The steps of the supervisor's protocol at which somebody may lie in wait."""

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
"""The steps right after which a crash is rare, and tells most; in a handler also a sleep through the ttl."""


def run(seed: int, *, muted: frozenset[str] = frozenset()) -> tuple[World, Violation | None]:
    """One run of the seed: the world as it ended, and the invariant that broke, if one did."""
    world = World(seed, muted=muted)
    return perform(world, _Fleet(world, draw(seed)))


class _Fleet(Cast):
    """Slots: a worker for each node, a supervisor for each node, a client of the bucket, a second worker of a node."""

    def __init__(self, world: World, knobs: Knobs) -> None:
        self.nodes = 1 + int(world.chance(80) < 0.9) + int(world.chance(80) < 0.25)
        super().__init__(world, slots=2 * self.nodes + 2, turns=TURNS)
        self.knobs = replace(knobs, ttl_s=4 + knobs.ttl_s / 3, nemesis_every_s=knobs.nemesis_every_s)
        self.disks = [f"n{i}" for i in range(self.nodes)]
        self.buckets = {name: Bucket(world, self.knobs) for name in (BUCKET, *self.disks)}
        self.swept: dict[str, int] = {}
        self.books = Books()
        self.up_s = 10 + 20 * world.chance(81)
        self.down_s = self.up_s * (1 + 3 * world.chance(82))
        self.retention_s = 400 + 1200 * world.chance(83)
        self.policy = Policy(max_attempts=1 + int(world.chance(84) * 3), ttl_s=self.knobs.ttl_s, backoff_s=1.0)

    def act(self) -> None:
        """The faulty part, then the healed part in which all come to agree; then every check."""
        nemesis = Nemesis(self.world, self.knobs, lambda: self.living, self.restart, steps=STEPS)
        self.world.spawn(self.world.start("mains"), self.cut_power)
        self.world.spawn(self.world.start("steering"), self.steer)
        self.play(nemesis.run, until_s=RUN_S)
        self.heal()
        check_nodes(self.world, self.knobs, [self.place(BUCKET), *map(self.place, self.disks)], self.books)

    def place(self, name: str) -> Place:
        """A place, as the checks want to know it."""
        bosses = frozenset(each.name for each in self.world.processes if self.is_boss(each.name))
        return Place(name, self.buckets[name], QueueKeys.of(QUEUE), bosses, self.swept[name])

    def is_boss(self, name: str) -> bool:
        """Whether a process of this name is a supervisor."""
        return name.startswith("boss") or (
            name.startswith("p") and self.nodes <= int(name[1:].split("#")[0]) < 2 * self.nodes
        )

    def actor(self, process: Process) -> Actor:
        """A program for the slot; some processes have bad clocks, some a newer version of Limpet."""
        slot = int(process.name.split("#")[0].removeprefix("p"))
        process.newer = self.knobs.mixed_versions and process.index % 2 == 1
        if self.knobs.drift:
            process.clock_rate = 0.9 + 0.2 * self.world.chance(30, process.index)
        if slot == 2 * self.nodes:
            return _Client(self, process)
        if slot > 2 * self.nodes:
            return _Worker(self, process, 0)
        return (_Worker if slot < self.nodes else _Boss)(self, process, slot % self.nodes)

    def restart(self, dead: Process) -> None:
        """After a crash the slot's next process starts, a little later."""
        self.living.remove(dead)
        self.world.later(5 * self.world.chance(31, dead.index), lambda: self.relaunch(dead))

    def cut_power(self) -> None:
        """A whole node goes off now and then, in the middle of something, for a while or for longer than logs live."""
        cuts = 0
        while not self.world.healed:
            cuts += 1
            self.world.pause(self.up_s * (0.5 + 4 * self.world.chance(85, cuts)))
            if self.world.chance(89, cuts) < 0.7:
                step = STEPS[mix(self.world.seed, 90, cuts) % len(STEPS)]
                self.world.ambush = (step, partial(self.cut, cuts))
            elif self.living:
                self.cut(cuts, self.living[mix(self.world.seed, 86, cuts) % len(self.living)])

    def cut(self, number: int, struck: Process) -> None:
        """The node of that process is off: none of its processes goes on."""
        node = self.node_of(struck)
        if node is None or struck not in self.living or not self.world.strike(f"mains/{number}", "power_off"):
            return
        off_s = self.world.chance(87, number) ** 3 * 2 * self.retention_s
        self.world.note("nemesis", "power_off", detail=f"n{node}", result=f"{off_s:.0f} s", fault="power_off")
        for victim in [each for each in self.living if self.node_of(each) == node]:
            for flight in victim.in_flight.values():
                self.world.coverage["power_off", flight.step] += 1
            self.world.kill(victim)
            self.living.remove(victim)
            self.world.later(off_s, partial(self.relaunch, victim))

    def node_of(self, process: Process) -> int | None:
        """The node that a process runs on; None for the client."""
        slot = int(process.name.split("#")[0].removeprefix("p"))
        if slot == 2 * self.nodes:
            return None
        return 0 if slot > 2 * self.nodes else slot % self.nodes

    def steer(self) -> None:
        """Lead the nemesis to the rare moments: right after a receipt, a note or a log, and into handlers."""
        for number in range(1, STRIKES_MAX + 1):
            self.world.pause(self.up_s * self.world.chance(91, number))
            step = RARE[mix(self.world.seed, 92, number) % len(RARE)]
            self.world.lurking.setdefault(step, partial(self.strike, number, step))

    def strike(self, number: int, step: str, struck: Process) -> None:
        """Kill the process, or let it sleep until its lease has run out. Its slot gets a turn more to go on with."""
        sleeps = step in (HANDLER, BATCH_HANDLER) and self.world.chance(93, number) < 0.5
        kind = "sleep_past_ttl" if sleeps else "crash_after"
        if struck not in self.living or not self.world.strike(f"steering/{number}", kind):
            return
        self.world.coverage[kind, step] += 1
        self.world.note("nemesis", kind, detail=struck.name, result=step, fault=kind)
        self._turns_left[struck.name.split("#")[0]] += 1
        if sleeps:
            struck.paused_until_s = self.world.now_s + self.policy.ttl_s * (1.5 + 6 * self.world.chance(94, number))
        else:
            self.world.kill(struck)
            self.restart(struck)

    def heal(self) -> None:
        """Faults stop, every node is on again, and none of the old processes."""
        self.world.healed = True
        self.world.note("nemesis", "faults stop")
        for process in self.living:
            self.world.kill(process)
        bosses = [_Boss(self, self.world.start(f"boss{i}"), i) for i in range(self.nodes)]
        at_work = int(self.world.chance(88) * self.nodes)
        worker = _Worker(self, self.world.start("last"), at_work)
        task = self.world.spawn(bosses[0].process, lambda: self.converge(bosses, at_work, worker))
        self.world.run(until_s=self.world.now_s + HEAL_S, done=lambda: task.done)
        self.fail_on_error()
        if not task.done:
            raise Violation(f"no progress: {HEAL_S:g} s after the faults stopped not all have converged")

    def converge(self, bosses: list[_Boss], at_work: int, worker: _Worker) -> None:
        """Cycles, until nothing waits anywhere. Only one node works; whatever was asked for elsewhere reaches it."""
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
        """What still waits anywhere, and has not ended there."""
        return [
            f"{name}: {key}"
            for name, bucket in self.buckets.items()
            for key in bucket.objects
            if "/outbox/" in key or _waits(bucket, queue_place(key))
        ]


def _waits(bucket: Bucket, place: QueuePlace | None) -> bool:
    if place is None or place.kind not in WAITING:
        return False
    return not {place.keys.completed_of(place.name), place.keys.failed_of(place.name)} & bucket.objects.keys()


class _Boss(Actor):
    """A supervisor."""

    def __init__(self, cast: _Fleet, process: Process, node: int) -> None:
        runtime = SimRuntime(cast.world, process)
        self.remote = RemoteStore(cast.world, cast.buckets[BUCKET], runtime, cast.knobs)
        super().__init__(runtime, LocalStore(cast.world, cast.buckets[cast.disks[node]], runtime), cast.history)
        self.cast = cast
        self.disk = cast.disks[node]
        self.supervisor = Supervisor(
            self.store,
            self.remote,
            runtime,
            node=f"n{node}",
            up_s=cast.up_s,
            down_s=cast.down_s,
            retention_s=cast.retention_s,
        )

    def turns(self) -> list[tuple[float, Callable[[], None]]]:
        """The two cycles."""
        return [(0.6, self.up), (0.4, self.down)]

    def turn(self) -> None:
        """One of them, and a rest."""
        super().turn()
        self.runtime.sleep(self.cast.up_s * (0.5 + self.chance() / 2))

    def up(self) -> None:
        """What this node did goes out."""
        self.cast.books.collisions += len(self.supervisor.up().collisions)

    def down(self) -> None:
        """What the others did comes in."""
        self.cast.books.collisions += len(self.supervisor.down().collisions)

    def look(self) -> None:
        """How every task ended, here and in the bucket."""
        for place, store in ((self.disk, self.store), (BUCKET, self.remote)):
            queue = BucketQueue(store, QUEUE, self.runtime, journal=Outbox(store, self.runtime))
            for id_ in sorted(self.cast.books.ids):
                self.cast.books.told(place, id_, queue.result(id_))

    def sweep(self) -> None:
        """Tidy up here and in the bucket."""
        for store in (self.store, self.remote):
            Sweeper(Storage(store, QueueKeys.of(QUEUE), self.runtime), self.cast.policy).sweep()


class _User(Actor):
    """Pushes, works, and now and then acts as an operator; on a node or on the bucket."""

    def __init__(self, cast: _Fleet, process: Process, place: str, store: Store, runtime: SimRuntime) -> None:
        super().__init__(runtime, store, cast.history)
        self.cast = cast
        self.books = cast.books
        self.place = place
        journal = ClientLog(store, runtime) if place == BUCKET else Outbox(store, runtime)
        self.queue = BucketQueue(store, QUEUE, runtime, journal=journal, policy=cast.policy)

    def turns(self) -> list[tuple[float, Callable[[], None]]]:
        """The things that users and workers do."""
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

    def turn(self) -> None:
        """One of them, and a rest."""
        with suppress(Conflict, Missing):
            super().turn()
        self.runtime.sleep(self.chance() * self.cast.up_s)

    def payload(self) -> dict[str, object]:
        """What a task is to do: most succeed, some fail."""
        at = self.chance()
        what = "ok" if at < 0.8 else "flaky" if at < 0.9 else "fail"
        return {"what": what, "by": self.new_value(), "slow": round(self.chance(), 2)}

    def push(self) -> None:
        """A task without an id."""
        self.books.pushed([self.queue.push(self.payload()).id])

    def push_with_id(self) -> None:
        """A task whose id others push too, at other nodes."""
        self.books.pushed([self.queue.push(self.payload(), id=f"x{int(self.chance() * IDS)}").id])

    def push_batch(self) -> None:
        """Some tasks in one entry."""
        self.books.pushed(self.queue.push_many([self.payload() for _ in range(2 + int(self.chance() * 2))]))

    def push_later(self) -> None:
        """A delayed task, sometimes with an id."""
        id_ = f"x{int(self.chance() * IDS)}" if self.chance() < 0.5 else None
        self.books.pushed([self.queue.push(self.payload(), id=id_, delay_s=1 + self.chance() * 20).id])

    def retry_failed(self) -> None:
        """An operator gives what failed another life."""
        self.books.pushed(self.queue.retry(all=True))

    def cancel(self) -> None:
        """An operator ends a task."""
        self.queue.cancel(f"x{int(self.chance() * IDS)}")

    def look(self) -> None:
        """Somebody asks how some tasks ended, as this place knows it."""
        for id_ in sorted(self.books.ids)[:4]:
            self.books.told(self.place, id_, self.queue.result(id_))

    def work(self) -> None:
        """Claim something and do it, as a worker does."""
        with self.queue.claim() as claim:
            if not isinstance(claim, EntryClaim):
                return
            for task in claim:
                self.handle(task, claim)

    def handle(self, task: Task, claim: EntryClaim) -> None:
        """Run one handler, and pass its verdict on."""
        self.books.started(self.world, self.place, self.process.name, task, claim)
        self.world.passed(BATCH_HANDLER if claim.batch else HANDLER, self.process)
        what, slow = task.payload["what"], float(task.payload["slow"])
        if not self.world.healed:
            self.runtime.sleep(slow * slow * slow * 2 * self.cast.up_s)
        if what == "fail" or (what == "flaky" and task.attempt == 1):
            if what == "fail":
                task.fail("it fails")
            else:
                task.retry(after_s=slow * 10, error="it raises")
            return
        large = claim.batch and slow < 0.4
        task.done({"by": self.process.name, "large": LARGE if large else ""})
        if not claim.batch:
            self.books.finished(self.place, task.id)

    def drain(self) -> None:
        """Work while there is something to claim."""
        for _ in range(50):
            with self.queue.claim() as claim:
                if not isinstance(claim, EntryClaim):
                    return
                for task in claim:
                    self.handle(task, claim)


class _Worker(_User):
    """A process on a node."""

    def __init__(self, cast: _Fleet, process: Process, node: int) -> None:
        runtime = SimRuntime(cast.world, process)
        super().__init__(
            cast, process, f"n{node}", LocalStore(cast.world, cast.buckets[cast.disks[node]], runtime), runtime
        )


class _Client(_User):
    """A process that works on the bucket directly."""

    def __init__(self, cast: _Fleet, process: Process) -> None:
        runtime = SimRuntime(cast.world, process)
        store = RemoteStore(cast.world, cast.buckets[BUCKET], runtime, cast.knobs)
        super().__init__(cast, process, BUCKET, store, runtime)
