"""`Supervisor`: keeps a node's directory and the bucket in step, for as long as it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from limpet import keys
from limpet.errors import (
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
from limpet.lease import Lease, Lock, VersionWatch
from limpet.queue.sync.adopt import adopt
from limpet.queue.sync.down import Down
from limpet.queue.sync.objects import put_aside
from limpet.queue.sync.report import Cycle
from limpet.queue.sync.state import NodeState
from limpet.queue.sync.tidy import Tidy
from limpet.queue.sync.up import Up
from limpet.runtime import Flag, Runtime
from limpet.store.api import Store

UP_S = 300.0
DOWN_S = 3600.0
RETENTION_S = 7 * 86400.0
INTERVAL_MIN_S = 1.0
LOCK_TTL_S = 60.0
RETRY_MIN_S = 5.0
LOOK_S = 2.0
JITTER = 0.1
COLLISIONS_MAX = 10_000
BLOCKED_MAX = 100
NAME = "supervisor"


@dataclass(frozen=True, slots=True)
class Away:
    """The bucket cannot be reached. The node works on with what it has; this is said once."""

    error: LimpetError


@dataclass(frozen=True, slots=True)
class Back:
    """The bucket is there again, after so many seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Blocked:
    """A cycle could not be finished for a reason that is not the network; it is tried again, and this is said once."""

    error: LimpetError


Event = Cycle | Away | Back | Blocked
Tell = Callable[[Event], None]


class Supervisor:
    """Sends what a node did to the bucket every `up_s`, and brings what the others did every `down_s`.

    A node works offline on its own directory; whatever it acknowledged there reaches the bucket and every other node,
    and a completion is never undone anywhere. Nodes hear of each other late, so double work is allowed: two of them
    may run one task, and the token of a claim fences nothing beyond its node.

    `retention_s` is for how long logs are kept. It must not exceed the time for which any process keeps receipts.
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
    ) -> None:
        for name, value in (("up_s", up_s), ("down_s", down_s), ("retention_s", retention_s)):
            if not value >= INTERVAL_MIN_S:
                raise Invalid(f"{name} must be at least {INTERVAL_MIN_S:g} second, not {value:g}")
        self._local = local
        self._runtime = runtime
        self._up_s = up_s
        self._down_s = down_s
        self._state = NodeState(local, runtime, node=node, queues=queues)
        self._up = Up(local, remote, runtime, self._state, up_s=up_s)
        self._down = Down(local, remote, runtime, self._state, down_s=down_s, retention_s=retention_s)
        self._tidy = Tidy(local, remote, runtime)
        self._told: set[tuple[str, str, str]] = set()
        self._told_unreadable: set[str] = set()
        self._told_blocked: set[str] = set()
        self._unreadable: list[str] = []
        self._asked = False
        self._up_at_s = self._down_at_s = float("-inf")
        self._away_since_s: float | None = None
        self._failures = 0

    @property
    def node(self) -> str:
        """The node's name; known once it has started."""
        return self._state.node

    def start(self) -> None:
        """Give the node its name, and take in what is in its directory already. `up` and `down` do so by themselves."""
        self._state.start()
        if not self._state.record.adopted:
            adopt(self._local, self._runtime, bad=self._unreadable.append)
            self._state.adopted()

    def up(self) -> Cycle:
        """Send the outbox, and publish what workers here hold. See `Up.run` for errors, cost and crashes."""
        self.start()
        return self._reported(self._up.run())

    def down(self, *, fresh: bool = False) -> Cycle:
        """Apply what the others did. See `Down.run` for errors, cost and crashes."""
        self.start()
        return self._reported(self._down.run(fresh=fresh))

    def tidy(self) -> None:
        """Sweep both sides, as `run` does once a day. See `Tidy`."""
        self._unreadable += self._tidy.now()

    def ask(self) -> None:
        """Let a running supervisor sync in both directions within seconds. Safe in a signal handler."""
        self._asked = True

    def once(self, tell: Tell) -> None:
        """One `up` and one `down`.   Raises: Held if another supervisor works on the directory; what they raise."""
        with self._alone():
            tell(self.up())
            tell(self.down())

    def run(self, stop: Flag, tell: Tell) -> None:
        """Sync until `stop` is raised; a cycle that has begun is finished.

        While the bucket is away it backs off, up to `up_s`, and says so once. No object, here or there, ends it: what
        only a person can mend is told as `Blocked`, and the other direction goes on.
        Raises: Held if another supervisor works on the directory; LeaseLost if one took over while this one slept;
        Invalid for a node that has another name.
        """
        with self._alone() as lease:
            self.start()
            while not stop.is_set():
                lease.check()
                self._round(tell)
                self._rest(stop)

    @contextmanager
    def _alone(self) -> Iterator[Lease]:
        """Two supervisors of one directory would do everything twice, to no harm and no use."""
        sightings = VersionWatch(self._runtime)
        lock = Lock(self._local, keys.SUPERVISOR, NAME, LOCK_TTL_S, self._runtime, sightings, look_first=True)
        try:
            self._mend_lock(lock)
            with lock.hold(wait_s=0) as lease:
                yield lease
        except Held as held:
            if held.name == NAME:
                held.hint = "another supervisor works on this directory; one is enough"
            raise

    def _mend_lock(self, lock: Lock) -> None:
        """Put a lock that cannot be read aside: two supervisors do no harm, and none would be worse."""
        try:
            lock.peek()
        except (Corrupt, Unsupported):
            put_aside(self._local, self._runtime, keys.SUPERVISOR)
            self._unreadable.append(keys.SUPERVISOR)

    def _round(self, tell: Tell) -> None:
        """Whatever is due."""
        at_s = self._runtime.elapsed_s()
        if self._asked:
            self._asked = False
            self._up_at_s = self._down_at_s = at_s
        try:
            if at_s >= self._up_at_s:
                self._try(self.up, tell)
                self._up_at_s = at_s + self._spread(self._up_s)
            if at_s >= self._down_at_s:
                self._try(self.down, tell)
                self._down_at_s = at_s + self._spread(self._down_s)
            self._unreadable += self._tidy.now_and_then()
        except (Unavailable, OutcomeUnknown, Denied) as error:
            self._failed(error, tell)
            return
        if self._away_since_s is not None:
            tell(Back(self._runtime.elapsed_s() - self._away_since_s))
        self._away_since_s, self._failures = None, 0

    def _try(self, cycle: Callable[[], Cycle], tell: Tell) -> None:
        """One cycle. What is wrong with it, and not with the network, is told once, and tried again when it is due."""
        try:
            tell(cycle())
        except (Unavailable, OutcomeUnknown, Denied, LeaseLost):
            raise
        except LimpetError as error:
            if str(error) not in self._told_blocked:
                self._told_blocked = {*[*self._told_blocked][-BLOCKED_MAX:], str(error)}
                tell(Blocked(error))

    def _failed(self, error: LimpetError, tell: Tell) -> None:
        """Back off. One line when it goes away, not one for each try."""
        if self._away_since_s is None:
            self._away_since_s = self._runtime.elapsed_s()
            tell(Away(error))
        self._failures += 1
        pause_s = min(self._up_s, RETRY_MIN_S * 2.0 ** min(self._failures - 1, 30))
        again_s = self._runtime.elapsed_s() + self._spread(pause_s)
        self._up_at_s, self._down_at_s = max(self._up_at_s, again_s), max(self._down_at_s, again_s)

    def _rest(self, stop: Flag) -> None:
        """Until something is due; a signal handler can only set a mark, so it is looked for every other second."""
        while not self._asked:
            left_s = min(self._up_at_s, self._down_at_s) - self._runtime.elapsed_s()
            if left_s <= 0 or stop.wait(min(left_s, LOOK_S)):
                return

    def _spread(self, seconds: float) -> float:
        """Nodes that were started together do not sync together for ever."""
        return seconds * self._runtime.rng.uniform(1 - JITTER, 1)

    def _reported(self, cycle: Cycle) -> Cycle:
        """The cycle, with those collisions and unreadable objects that were not told before."""
        new = {(each.kind, each.queue, each.entry): each for each in cycle.collisions}
        cycle.collisions = [each for key, each in new.items() if key not in self._told]
        self._told |= new.keys()
        if len(self._told) > COLLISIONS_MAX:
            self._told = {*new}
        bad = dict.fromkeys([*self._state.damaged, *self._unreadable, *cycle.unreadable])
        self._state.damaged.clear()
        self._unreadable.clear()
        cycle.unreadable = [name for name in bad if name not in self._told_unreadable]
        self._told_unreadable |= bad.keys()
        if len(self._told_unreadable) > COLLISIONS_MAX:
            self._told_unreadable = {*bad}
        return cycle
