"""`Supervisor`: syncs a node's directory with the bucket for as long as it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

from limpet.kernel import keys
from limpet.kernel.errors import (
    Corrupt,
    Denied,
    Held,
    Invalid,
    LeaseLost,
    LimpetError,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from limpet.kernel.keys import QueueKeys
from limpet.kernel.lease import Lease, Lock, VersionWatch
from limpet.kernel.runtime import Flag, Runtime
from limpet.kernel.store.api import Store
from limpet.kernel.waiting import spread_backoff_s, ticks
from limpet.queue.api import Policy
from limpet.queue.push import Pusher
from limpet.queue.storage import Storage
from limpet.queue.sweep import Sweeper
from limpet.queue.sync.apply import Applier, Cycle, queues_of
from limpet.queue.sync.decide import RemoteFleet
from limpet.queue.sync.down import LogApplier
from limpet.queue.sync.records import DAMAGE
from limpet.queue.sync.state import NodeState
from limpet.queue.sync.up import OutboxSender, fill_outbox

UP_S = 300.0
DOWN_S = 3600.0
RETENTION_S = 7 * 86400.0
INTERVAL_MIN_S = 1.0
LOCK_TTL_S = 60.0
OFFLINE_S = 5.0
"""How long the first pause is while the bucket cannot be reached."""
POLL_S = 2.0
SWEEP_EVERY_S = 86400.0
FIRST_SWEEP_S = 3600.0
JITTER = 0.1
REPORTED_MAX = 10_000
NAME = "supervisor"

T = TypeVar("T")
Work = Literal["up", "down", "sweep"]
CYCLES: tuple[Work, ...] = ("up", "down")


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The bucket cannot be reached. The node keeps working offline; this is reported once."""

    error: LimpetError


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The bucket can be reached again, after so many seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Blocked:
    """A cycle failed for a reason other than the network; it is retried, and this is reported once."""

    error: LimpetError


SyncEvent = Cycle | Disconnected | Reconnected | Blocked
OnEvent = Callable[[SyncEvent], None]


class Supervisor:
    """Sends what a node did to the bucket every `up_s`, and applies what the others did every `down_s`.

    A node works offline on its own directory; everything that it acknowledged reaches the bucket and every other node,
    and a completion is never undone anywhere. Nodes learn of each other late, so duplicate work is possible: two of
    them may run one task, and the token of a claim fences nothing outside of its node.

    `retention_s` is for how long logs are kept. It must not exceed the time for which any process keeps receipts.
    `policy` says for how long the supervisor itself keeps receipts, when it sweeps: 30 days, if it is left out.
    `home` asks which fleet the remote is, before each cycle: one that was replaced or restored meanwhile is noticed.
    `rehome`: join it, whichever it is.
    """

    def __init__(
        self,
        local: Store,
        remote: Store,
        runtime: Runtime,
        *,
        node: str | None = None,
        queues: Sequence[str] | None = None,
        up_s: float = UP_S,
        down_s: float = DOWN_S,
        retention_s: float = RETENTION_S,
        policy: Policy | None = None,
        home: Callable[[], RemoteFleet] | None = None,
        rehome: bool = False,
    ) -> None:
        for name, value in (("up_s", up_s), ("down_s", down_s), ("retention_s", retention_s)):
            if not value >= INTERVAL_MIN_S:
                raise Invalid(f"{name} must be at least {INTERVAL_MIN_S:g} second, not {value:g}")
        self._policy = policy or Policy()
        self._local = local
        self._remote = remote
        self._runtime = runtime
        self._state = state = NodeState(local, runtime, node=node, queues=queues)
        state.rehome = rehome
        here, there = Applier(local, runtime, remote=False), Applier(remote, runtime, remote=True)
        self._up = OutboxSender(here, there, runtime, state, up_s=up_s)
        self._down = LogApplier(here, there, runtime, state, down_s=down_s, retention_s=retention_s)
        self._home = home
        self._schedule = SyncSchedule(runtime, up_s, down_s)
        self._report = SyncReport(runtime)

    @property
    def node(self) -> str:
        """The node's name; valid after `start`."""
        return self._state.node

    def start(self) -> None:
        """Name the node, compare fleets, and import objects that are in the directory. `up` and `down` call this.

        Raises: Invalid for a remote that is another fleet; the errors of `home`.
        Cost: what `home` takes; then nothing but at the first start, and after a restore: `NodeState.join`.
        """
        self._state.start()
        if self._home is not None:
            self._state.join(self._home())
        if not self._state.record.adopted:
            fill_outbox(self._local, self._runtime, bad=self._state.unreadable.append)
            self._state.change(adopted=True)

    def up(self) -> Cycle:
        """Send the outbox, and publish the leases of workers here. See `OutboxSender.run` for errors, cost, crashes."""
        self.start()
        return self._only_news(self._up.run())

    def down(self, *, fresh: bool = False) -> Cycle:
        """Apply what the others did. See `LogApplier.run` for errors, cost and crashes."""
        self.start()
        return self._only_news(self._down.run(fresh=fresh))

    def tidy(self) -> None:
        """Sweep the queues on both sides, as `run` does once a day: the bucket may have no workers that do so.

        Expired receipts are deleted, and delayed pushes that are due become pending. Workers do the same about once an
        hour; a shared note keeps all of them from doing it twice. Nothing is journaled: all sides sweep by themselves.
        Cost: 1 LIST + 1 GET a queue, and the cost of the sweeps that are due.
        """
        bad = self._state.unreadable.append
        for store in (self._local, self._remote):
            for queue in queues_of(store, bad=bad):
                try:
                    _sweep(store, queue, self._runtime, self._policy)
                except DAMAGE:
                    bad(queue.root)

    def ask(self) -> None:
        """Make a running supervisor sync in both directions within seconds. Safe in a signal handler."""
        self._schedule.asked = True

    def once(self, on_event: OnEvent) -> None:
        """Run one `up` and one `down`.   Raises: Held if another supervisor works on the directory; their errors."""
        with self._alone():
            on_event(self.up())
            on_event(self.down())

    def run(self, stop: Flag, on_event: OnEvent) -> None:
        """Sync until `stop` is raised; a cycle that has begun is finished.

        While the bucket cannot be reached it backs off, up to `up_s`, and reports that once. No object on either side
        ends it: an error that needs an operator is reported as `Blocked`, and the other direction goes on.
        Raises: Held if another supervisor works on the directory; LeaseLost if one took over while this machine slept;
        Invalid for a node that has another name, or belongs to another fleet.
        """
        with self._alone() as lease:
            try:
                self.start()
            except (Unavailable, OutcomeUnknown, Denied) as error:
                self._back_off(error, on_event)
            for _ in self._schedule.rounds(stop):
                lease.check()
                self._run_due(on_event)

    @contextmanager
    def _alone(self) -> Iterator[Lease]:
        """Hold the directory's lock: two supervisors of one directory would do the same work twice, without harm."""
        watch = VersionWatch(self._runtime)
        lock = Lock(self._local, keys.SUPERVISOR, NAME, LOCK_TTL_S, self._runtime, watch, look_first=True)
        try:
            try:
                lock.peek()
            except (Corrupt, Unsupported):  # two supervisors do no harm, and none would be worse
                self._state.put_aside(keys.SUPERVISOR)
            with lock.hold(wait_s=0) as lease:
                yield lease
        except Held as held:
            if held.name == NAME:
                held.hint = "another supervisor works on this directory; one is enough"
            raise

    def _run_due(self, on_event: OnEvent) -> None:
        """Run the cycles and the sweep that are due."""
        schedule, at_s = self._schedule, self._schedule.begin()
        try:
            if schedule.is_due("up", at_s):
                self._try(self.up, on_event)
                schedule.done("up", at_s)
            if schedule.is_due("down", at_s):
                self._try(self.down, on_event)
                schedule.done("down", at_s)
            if schedule.is_due("sweep", sweep_at_s := self._runtime.elapsed_s()):
                schedule.done("sweep", sweep_at_s)
                self.tidy()
        except (Unavailable, OutcomeUnknown, Denied) as error:
            self._back_off(error, on_event)
            return
        schedule.failures = 0
        self._report.reached(on_event)

    def _try(self, cycle: Callable[[], Cycle], on_event: OnEvent) -> None:
        """Run one cycle. An error other than of the network is reported once, and the cycle retried when it is due."""
        try:
            on_event(cycle())
        except (Unavailable, OutcomeUnknown, Denied, LeaseLost):
            raise
        except LimpetError as error:
            if self._report.of({("blocked", str(error)): error}):
                on_event(Blocked(error))

    def _back_off(self, error: LimpetError, on_event: OnEvent) -> None:
        """Postpone both cycles; report the first of several failures."""
        self._report.away(error, on_event)
        self._schedule.back_off()

    def _only_news(self, cycle: Cycle) -> Cycle:
        """The cycle, without the collisions and unreadable objects that were reported before."""
        unreadable = [*self._state.unreadable, *cycle.unreadable]
        self._state.unreadable.clear()
        cycle.collisions = self._report.of({(each.kind, each.queue, each.entry): each for each in cycle.collisions})
        cycle.unreadable = self._report.of({("unreadable", name): name for name in unreadable})
        return cycle


class SyncSchedule:
    """When the next cycle in each direction and the next sweep are due. `asked`: both cycles, as soon as it is seen."""

    def __init__(self, runtime: Runtime, up_s: float, down_s: float) -> None:
        self._runtime = runtime
        self._every_s = {"up": up_s, "down": down_s, "sweep": SWEEP_EVERY_S}
        self._due_s = {work: float("-inf") for work in CYCLES}
        self._due_s["sweep"] = runtime.elapsed_s() + FIRST_SWEEP_S * runtime.rng.uniform(1, 2)
        self.asked = False
        self.failures = 0

    def begin(self) -> float:
        """The time now. What was asked for is due from now on."""
        at_s = self._runtime.elapsed_s()
        if self.asked:
            self.asked = False
            self._due_s |= dict.fromkeys(CYCLES, at_s)
        return at_s

    def is_due(self, work: Work, at_s: float) -> bool:
        """Whether it is due at that time."""
        return at_s >= self._due_s[work]

    def done(self, work: Work, at_s: float) -> None:
        """It began at that time, and is due again after its interval."""
        self._due_s[work] = at_s + self._spread(self._every_s[work])

    def back_off(self) -> None:
        """The bucket could not be reached: postpone both cycles, by `up_s` at most."""
        self.failures += 1
        pause_s = spread_backoff_s(self.failures, OFFLINE_S, self._every_s["up"], chance=1.0)
        again_s = self._runtime.elapsed_s() + self._spread(pause_s)
        self._due_s |= {work: max(self._due_s[work], again_s) for work in CYCLES}

    def rounds(self, stop: Flag) -> Iterator[None]:
        """One at once, and one whenever a cycle is due, until `stop` is set."""
        while not stop.is_set():
            yield
            for _ in ticks(stop, self._pause_s):
                pass

    def _pause_s(self) -> float | None:
        """A signal handler can only set the mark `asked`, so it is polled."""
        left_s = min(self._due_s[work] for work in CYCLES) - self._runtime.elapsed_s()
        return min(left_s, POLL_S) if left_s > 0 and not self.asked else None

    def _spread(self, seconds: float) -> float:
        """The interval with jitter, so that nodes that were started together do not sync together."""
        return seconds * self._runtime.rng.uniform(1 - JITTER, 1)


class SyncReport:
    """Which events were reported: every one once, and an outage by its beginning and its end."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._reported: set[tuple[str, ...]] = set()
        self._away_since_s: float | None = None

    def of(self, values: Mapping[tuple[str, ...], T]) -> list[T]:
        """The values whose keys were not reported before; they count as reported from now on."""
        news = [value for key, value in values.items() if key not in self._reported]
        if len(self._reported) > REPORTED_MAX:
            self._reported = set()
        self._reported |= values.keys()
        return news

    def away(self, error: LimpetError, on_event: OnEvent) -> None:
        """The bucket could not be reached."""
        if self._away_since_s is None:
            self._away_since_s = self._runtime.elapsed_s()
            on_event(Disconnected(error))

    def reached(self, on_event: OnEvent) -> None:
        """The bucket was reached."""
        if self._away_since_s is not None:
            on_event(Reconnected(self._runtime.elapsed_s() - self._away_since_s))
            self._away_since_s = None


def _sweep(store: Store, queue: QueueKeys, runtime: Runtime, policy: Policy) -> None:
    """Sweep one queue of one side, if its turn has come."""
    storage = Storage(store, queue, runtime)
    waiting = [stat.key for stat in store.list(queue.scheduled)]
    if waiting:
        pusher = Pusher(storage)
        pusher.promote(now=storage.exact_now(), keys=waiting)
    Sweeper(storage, policy).take_turn()
