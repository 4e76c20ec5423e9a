"""Scenario: processes that lock, write with tokens, count, create and swap through a faulty network.

The kernel's invariants are checked on the answers that the clients got and on every mutation of the bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from limpet.kernel.cell import PLAIN, Cell, Fence, Fenced, Versioned
from limpet.kernel.errors import Conflict, Held, Invalid, LeaseLost, LimpetError, Unavailable
from limpet.kernel.keys import Key, cell_key, lock_key
from limpet.kernel.lease import Lease, Lock, VersionWatch
from limpet.kernel.lease.decide import look_interval_s
from limpet.kernel.store import Store
from sim.actors import Actor, Actors, Nemesis, RunPlan, Turns
from sim.bucket import Bucket, SimStore
from sim.world import SimProcess, SimRuntime, Violation, World

CellState = tuple[Any, int]

LOCKS = ("red", "blue")
TURNS = 9
STALL_TTLS = 2
HEAL_S = 600.0
RUN_S = 3_000.0


class KernelActors(Actors):
    """Processes on separate machines, around one bucket."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        super().__init__(world, plan, slots=plan.processes, turns=TURNS)
        self.bucket = Bucket(world, plan)
        self.history = History()
        self.model = LockModel()

    def act(self) -> None:
        self.play(Nemesis(self).run, until_s=RUN_S)
        self.stop_faults()
        newcomer = KernelActor(self, self.world.start("newcomer"))
        self.alone(newcomer, newcomer.visit_everything, within_s=HEAL_S)
        check_kernel(self.world, self.plan, self.bucket, self.history, self.model)

    def actor(self, process: SimProcess) -> KernelActor:
        self.vary(process, newer=self.plan.mixed_versions)
        return KernelActor(self, process)


class CellActor(Actor):
    """Uses cells; every answer goes into the history."""

    def __init__(self, runtime: SimRuntime, store: Store, history: History) -> None:
        super().__init__(runtime, store)
        self.history = history
        self.register: Versioned[Any] | None = None

    def cell(self, name: str) -> Cell[Any]:
        """A fresh handle on a cell."""
        return Cell(self.store, cell_key(name), PLAIN, self.runtime)

    def recorded(self, key: Key, name: str, argument: Any, call: Callable[[], Any]) -> Any:
        """Run `call` and add it to the history. An unknown outcome stays open; a refusal returns None."""
        operation = self.history.begin(self.process.name, key, name, argument)
        try:
            answer = call()
        except LeaseLost:
            self.history.end(operation, "LeaseLost")
            raise
        except (Conflict, Invalid) as refused:
            self.history.end(operation, type(refused).__name__)
            return None
        self.history.end(operation, answer)
        return answer

    def read(self, cell: Cell[Any]) -> Versioned[Any] | None:
        """A read of the whole cell."""
        operation = self.history.begin(self.process.name, cell.key, "read")
        seen = cell.read()
        self.history.end(operation, seen.value if seen else None)
        return seen

    def write(self, cell: Cell[Any], lease: Fenced | None, *, name: str = "write") -> None:
        """A write, with or without a token."""
        value = self.new_value()
        token = lease.token if lease else None
        self.recorded(cell.key, name, (value, token), lambda: cell.write(value, lease=lease) and "ok")

    def count(self) -> None:
        """A shared counter: increments by update."""
        cell = self.cell("counter")

        def add() -> Any:
            seen = cell.update(lambda n: (n or 0) + 1)
            return seen.value if seen else None

        self.recorded(cell.key, "add", None, add)

    def swap_register(self) -> None:
        """Read a register, and swap it on the value that was read, now or later."""
        cell = self.cell("register")
        seen = self.register if self.register and self.chance() < 0.3 else self.read(cell)
        if seen is None:
            self.create(cell)
            return
        self.register = seen
        if self.chance() < 0.3:
            self.runtime.sleep(self.chance() * 2)
        value = self.new_value()
        self.recorded(cell.key, "swap", (seen.value, value), lambda: cell.swap(seen, value) and "ok")

    def create_once(self) -> None:
        """Race others to create a cell."""
        cell = self.cell(f"once-{int(self.chance() * 3)}")
        self.create(cell)
        self.read(cell)

    def create(self, cell: Cell[Any]) -> None:
        """Create the cell."""
        value = self.new_value()
        self.recorded(cell.key, "create", value, lambda: cell.create(value) and "ok")


class KernelActor(CellActor):
    """Holds locks, and writes the cells that they guard."""

    def __init__(self, actors: KernelActors, process: SimProcess) -> None:
        runtime = SimRuntime(actors.world, process)
        super().__init__(runtime, SimStore(actors.bucket, runtime), actors.history)
        self.actors = actors
        self.model = actors.model
        self.ttl_s = actors.plan.ttl_s
        self.watch = VersionWatch(runtime)

    def turns(self) -> Turns:
        return [
            (0.30, self.hold_and_write),
            (0.14, self.acquire_by_hand),
            (0.16, self.count),
            (0.14, self.swap_register),
            (0.08, self.create_once),
            (0.06, self.write_without_lease),
            (0.06, self.use_once),
            (0.04, self.write_with_wrong_lock),
            (0.02, self.look_around),
        ]

    def rest(self) -> None:
        self.runtime.sleep(self.chance() * 3)

    def some_lock(self) -> str:
        """Mostly the same lock, so that processes compete."""
        return LOCKS[self.chance() < 0.3]

    def lock(self, name: str) -> Lock:
        """A new handle, as a user would create one."""
        look_first = self.chance() < 0.3
        return Lock(self.store, lock_key(name), name, self.ttl_s, self.runtime, self.watch, look_first=look_first)

    def hold_and_write(self) -> None:
        """The common use: a block under a lock, writing to the cell that it guards."""
        name = self.some_lock()
        began_s = self.world.now_s
        wait_s = self.chance() * 2 * self.ttl_s
        with self.lock(name).hold(wait_s, stall_s=STALL_TTLS * self.ttl_s) as lease:
            self.won(lease, began_s)
            cell = self.cell(name)
            for _ in range(1 + int(self.chance() * 4)):
                self.checked(lease)
                self.write(cell, lease)
                self.runtime.sleep(self.chance() * self.ttl_s / 2)
                lease.progress()
                self.note_progress(lease)

    def acquire_by_hand(self) -> None:
        """The advanced use: without a renewal thread."""
        name = self.some_lock()
        lock = self.lock(name)
        if self.actors.plan.breaks and self.chance() < 0.2:
            if lock.peek() is not None:
                lock.break_()
            return
        began_s = self.world.now_s
        got = lock.try_acquire()
        if isinstance(got, Held):
            return
        self.won(got, began_s)
        self.runtime.sleep(self.chance() * self.ttl_s * 0.7)
        self.note_progress(got)
        got.renew()
        self.checked(got)
        self.write(self.cell(name), got)
        if self.chance() < 0.7:
            got.release()

    def won(self, lease: Lease, began_s: float) -> None:
        """Record a won lock.   Raises: Violation unless it was ours when the bucket last answered us."""
        self.model.wins.append(HeldMark(self.world.now_s, self.process.name, lease.name, lease.token, began_s))
        self.note_progress(lease)
        record = self.actors.bucket.at(Key(lease.lock), self.process.served)
        if record is None or f'"token":{lease.token},'.encode() not in record:
            raise Violation(
                f"{self.process.name} was given token {lease.token} of {lease.name}, which was already gone"
            )

    def checked(self, lease: Lease) -> None:
        """Check the lease, as just before a side effect outside Limpet."""
        lease.check()
        self.model.checks.append(HeldMark(self.world.now_s, self.process.name, lease.name, lease.token))

    def note_progress(self, lease: Lease) -> None:
        """Record that the work under the lease made progress."""
        self.model.progress_s.setdefault((self.process.name, lease.name, lease.token), []).append(self.world.now_s)

    def write_without_lease(self) -> None:
        """An operator's hand edit of a guarded cell: keeps the fence."""
        cell = self.cell(self.some_lock())
        self.write(cell, None)
        self.read(cell)

    def write_with_wrong_lock(self) -> None:
        """A token of another lock is refused, however high."""
        cell = self.cell("red")
        seen = self.read(cell)
        if seen is not None and seen.header.fence is not None:
            self.write(cell, Fence("locks/user/other.lock", 1_000_000), name="foreign")

    def use_once(self) -> None:
        """Create a cell under a single-use name, and delete every such cell that is there."""
        cell = Cell(self.store, cell_key(f"tmp-{self.new_value()}"), PLAIN, self.runtime, deletable=True)
        with suppress(Conflict):
            cell.create("once")
        self.store.delete_many(stat.key for stat in self.store.list("cells") if stat.key.startswith("cells/tmp-"))

    def look_around(self) -> None:
        """List the locks and read them all, as an operator does."""
        keys = [stat.key for stat in self.store.list("locks")]
        for key, found in self.store.get_many(keys).items():
            if isinstance(found, LimpetError) and not isinstance(found, Unavailable):
                raise Violation(f"{key} was listed, and reading it gave {found!r}")
        for key in keys:
            self.store.head(key)

    def visit_everything(self) -> None:
        """After the faults: every lock can be had, every cell written and read."""
        for name in LOCKS:
            began_s = self.world.now_s
            lease = self.lock(name).acquire(wait_s=None)
            self.won(lease, began_s)
            self.write(self.cell(name), lease)
            lease.release()
        for name in (*LOCKS, "counter", "register", "once-0", "once-1", "once-2"):
            self.read(self.cell(name))
        self.count()


# ---- what must hold ----


@dataclass(frozen=True, slots=True)
class HeldMark:
    """A moment at which a process believes that it holds a lock."""

    at_s: float
    who: str
    lock: str
    token: int
    began_s: float = 0.0


@dataclass(slots=True)
class LockModel:
    """The answers that the processes got about locks."""

    wins: list[HeldMark] = field(default_factory=list)
    checks: list[HeldMark] = field(default_factory=list)
    progress_s: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    """By process, lock and token, when the work made progress."""


class _LockBody(msgspec.Struct):
    state: str
    worker_id: str
    token: int
    seq: int
    ttl_s: float


class _CellBody(msgspec.Struct):
    seq: int
    write_id: str
    fence: dict[str, Any] | None = None


def check_kernel(world: World, plan: RunPlan, bucket: Bucket, history: History, model: LockModel) -> None:
    """Every invariant of the kernel.   Raises: Violation."""
    _one_winner_per_token(model)
    _tokens_rise(bucket)
    if not plan.drift:
        _only_abandoned_locks_are_taken(bucket, plan)
        _a_hung_worker_is_not_renewed(bucket, model, STALL_TTLS * plan.ttl_s)
    _fences_rise(bucket)
    _each_write_once(bucket)
    if plan.sane_clocks:
        _nobody_checks_after_a_newer_win(model)
    for key, operations in history.operations.items():
        verdict = linearizable(operations, (None, 0), cell_model)
        if verdict is False:
            raise Violation(explained(f"{key} is not linearizable: no order explains these answers", operations))
        if verdict is None:
            world.fault_counts["(linearizability given up)"] += 1


def _one_winner_per_token(model: LockModel) -> None:
    seen: dict[tuple[str, int], HeldMark] = {}
    for win in model.wins:
        first = seen.setdefault((win.lock, win.token), win)
        if first is not win:
            raise Violation(f"token {win.token} of {win.lock} was won by {first.who} and by {win.who}")
        for earlier in seen.values():
            if earlier.lock == win.lock and earlier.at_s < win.began_s and earlier.token >= win.token:
                raise Violation(f"{win.lock}: token {win.token} was won after token {earlier.token}")


def _tokens_rise(bucket: Bucket) -> None:
    for applied in bucket.changes("locks/"):
        if applied.data is None:
            raise Violation(f"{applied.key} was deleted by {applied.who}: its tokens would start again")
    for applied, _, before, now in bucket.successive(_LockBody, "locks/"):
        if now.token < before.token:
            raise Violation(f"{applied.key}: token {now.token} follows {before.token}")
        if now.token == before.token and now.worker_id != before.worker_id:
            raise Violation(f"{applied.key}: token {now.token} passed from {before.worker_id} to {now.worker_id}")
        if now.seq != before.seq + 1:
            raise Violation(f"{applied.key}: seq {now.seq} follows {before.seq}")


def _only_abandoned_locks_are_taken(bucket: Bucket, plan: RunPlan) -> None:
    for applied, at_s, before, now in bucket.successive(_LockBody, "locks/"):
        if before.state == "held" and now.token > before.token:
            least_s = before.ttl_s if plan.sane_clocks else look_interval_s(before.ttl_s)
            if applied.at_s - at_s < least_s:
                raise Violation(
                    f"{applied.key}: {now.worker_id} took token {now.token} at {applied.at_s:.2f} s, only "
                    f"{applied.at_s - at_s:.2f} s after {before.worker_id} wrote it (ttl {before.ttl_s:g} s)"
                )


def _a_hung_worker_is_not_renewed(bucket: Bucket, model: LockModel, stall_s: float) -> None:
    for sent in bucket.renewals("lock.renew"):
        moments = model.progress_s.get((sent.who, sent.key.split("/")[-1].removesuffix(".lock"), sent.token), [])
        last_s = max((at_s for at_s in moments if at_s <= sent.at_s), default=sent.at_s)
        if sent.at_s - last_s > stall_s + 0.1:
            raise Violation(
                f"{sent.who} renewed {sent.key} although its work stood still for {sent.at_s - last_s:.1f} s"
            )


def _fences_rise(bucket: Bucket) -> None:
    for applied, _, old, new in bucket.successive(_CellBody, "cells/"):
        before, fence = old.fence, new.fence
        if before is None:
            continue
        if fence is None or fence["lock"] != before["lock"]:
            raise Violation(f"{applied.key}: {applied.who} dropped the fence {before}")
        if fence["token"] < before["token"]:
            raise Violation(
                f"{applied.key}: a write with token {fence['token']} became visible after token {before['token']}"
            )


def _each_write_once(bucket: Bucket) -> None:
    """For a deletable name only the network may create duplicates: our own code must not send the write twice."""
    created: set[str] = set()
    for sent in bucket.sent:
        if sent.key.startswith("cells/tmp-"):
            if sent.write_id in created:
                raise Violation(f"{sent.key} may be deleted at any time, and {sent.who} sent its create twice")
            created.add(sent.write_id)
    written: set[tuple[Key, str]] = set()
    for applied, body in bucket.written(_CellBody, "cells/", "locks/"):
        if applied.key.startswith("cells/tmp-"):
            continue
        if (applied.key, body.write_id) in written:
            raise Violation(f"{applied.key}: the write {body.write_id} took effect twice")
        written.add((applied.key, body.write_id))


def _nobody_checks_after_a_newer_win(model: LockModel) -> None:
    for check in model.checks:
        for win in model.wins:
            if win.lock == check.lock and win.token > check.token and win.at_s < check.at_s:
                raise Violation(
                    f"{check.who} passed check() with token {check.token} of {check.lock} at {check.at_s:.2f} s, "
                    f"after {win.who} had won token {win.token} at {win.at_s:.2f} s"
                )


def cell_model(state: CellState, op: Operation) -> Iterable[CellState]:
    """What a cell may become: (value, highest token)."""
    value, token = state
    answer = op.answer if op.ended != OPEN else "ok"
    match op.name:
        case "read":
            return [state] if op.ended == OPEN or op.answer == value else []
        case "create":
            if answer == "Conflict":
                return [state] if value is not None else []
            return [(op.argument, token)] if value is None else []
        case "swap":
            expected, new = op.argument
            if answer == "Conflict":
                return [state] if value != expected else []
            return [(new, token)] if value == expected else []
        case "write":
            new, offered = op.argument
            if answer == "LeaseLost":
                return [state] if offered is not None and offered < token else []
            if offered is not None and offered < token:
                return []
            return [(new, max(token, offered or 0))]
        case "add":
            if not isinstance(value, int | None):
                return []
            after = (value or 0) + 1
            return [(after, token)] if op.ended == OPEN or answer == after else []
        case "delete":
            return [(None, token)]
        case "foreign":
            return [state] if answer == "Invalid" and token else []
    raise AssertionError(op.name)


# ---- linearizability: whether some order of the operations explains every answer (Wing and Gong's search) ----

S = TypeVar("S")
OPEN = float("inf")
STATES_MAX = 200_000


@dataclass(slots=True, eq=False)
class Operation:
    """One call by one client: when it began, when it was answered (OPEN: never, or by "unknown"), and the answer."""

    who: str
    name: str
    argument: Any
    began: float
    ended: float = OPEN
    answer: Any = None

    def __str__(self) -> str:
        answer = "no clear answer" if self.ended == OPEN else repr(self.answer)
        return f"{self.who}: {self.name}({self.argument!r}) -> {answer}"


@dataclass(slots=True)
class History:
    """The operations on each key, in the order in which they began."""

    operations: dict[str, list[Operation]] = field(default_factory=dict)
    _ticks: int = 0

    def begin(self, who: str, key: str, name: str, argument: Any = None) -> Operation:
        """A client sends an operation."""
        self._ticks += 1
        operation = Operation(who, name, argument, self._ticks)
        self.operations.setdefault(key, []).append(operation)
        return operation

    def end(self, operation: Operation, answer: Any) -> None:
        """It has its answer. An operation whose outcome is unknown is never ended."""
        self._ticks += 1
        operation.ended = self._ticks
        operation.answer = answer


def linearizable(operations: list[Operation], initial: S, apply: Callable[[S, Operation], Iterable[S]]) -> bool | None:
    """Whether the operations took effect one at a time, each between its beginning and its end.

    `apply(state, operation)` gives the states that may follow if the operation took effect at `state` with the answer
    that it had; none, if that answer was impossible there. An open operation may take effect at any time, or never.
    None: the search, depth first, was given up because it is too large.
    """
    must = sum(1 << i for i, op in enumerate(operations) if op.ended != OPEN)
    dead: set[tuple[int, S]] = set()
    stack: list[tuple[int, S]] = [(0, initial)]
    while stack:
        done, state = stack.pop()
        if done & must == must:
            return True
        if (done, state) in dead:
            continue
        dead.add((done, state))
        if len(dead) > STATES_MAX:
            return None
        first_end = min(op.ended for i, op in enumerate(operations) if not done >> i & 1)
        for i, op in enumerate(operations):
            if op.began > first_end:
                break
            if not done >> i & 1:
                stack.extend((done | 1 << i, after) for after in apply(state, op))
    return False


def explained(what: str, operations: Iterable[Operation]) -> str:
    """A text with the operations below it."""
    return "\n    ".join([what, *map(str, operations)])
