"""The kernel's invariants, checked on what the clients were told and on what the bucket really did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from limpet.keys import Key
from limpet.lease.decide import look_interval_s
from limpet.sim.bucket import Bucket
from limpet.sim.linear import OPEN, History, Operation, linearizable
from limpet.sim.nemesis import Knobs
from limpet.sim.world import Violation, World

__all__ = ["Sign", "Tally", "cell_model", "check_run"]

CellState = tuple[Any, int]


@dataclass(frozen=True, slots=True)
class Sign:
    """A process believes, at this moment, that it holds the lock."""

    at_s: float
    who: str
    lock: str
    token: int
    began_s: float = 0.0


@dataclass(slots=True)
class Tally:
    """What the processes were told about locks."""

    wins: list[Sign] = field(default_factory=list)
    checks: list[Sign] = field(default_factory=list)
    moves: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)

    def won(self, at_s: float, who: str, lock: str, token: int, began_s: float) -> None:
        """`who` got a lease that it began to ask for at `began_s`."""
        self.wins.append(Sign(at_s, who, lock, token, began_s))

    def moved(self, at_s: float, who: str, lock: str, token: int) -> None:
        """The holder's work made progress."""
        self.moves.setdefault((who, lock, token), []).append(at_s)

    def checked(self, at_s: float, who: str, lock: str, token: int) -> None:
        """`lease.check()` let `who` go on."""
        self.checks.append(Sign(at_s, who, lock, token))


class _Lock(msgspec.Struct):
    state: str
    worker_id: str
    token: int
    seq: int
    ttl_s: float


class _Cell(msgspec.Struct):
    seq: int
    write_id: str
    fence: dict[str, Any] | None = None


def check_run(world: World, knobs: Knobs, bucket: Bucket, history: History, tally: Tally, *, stall_s: float) -> None:
    """Every invariant of the kernel.   Raises: Violation."""
    _one_winner_per_token(tally)
    _tokens_rise(bucket)
    if not knobs.drift:
        _only_abandoned_locks_are_taken(bucket, knobs)
        _a_hung_worker_is_not_renewed(bucket, tally, stall_s)
    _fences_rise(bucket)
    _each_write_once(bucket)
    if knobs.sane_clocks:
        _nobody_checks_after_a_newer_win(tally)
    for key, operations in history.operations.items():
        verdict = linearizable(operations, (None, 0), cell_model)
        if verdict is False:
            told = "\n    ".join(str(op) for op in operations)
            raise Violation(f"{key} is not linearizable: no order explains these answers\n    {told}")
        if verdict is None:
            world.fault_counts["(linearizability given up)"] += 1


def _one_winner_per_token(tally: Tally) -> None:
    seen: dict[tuple[str, int], Sign] = {}
    for win in tally.wins:
        first = seen.setdefault((win.lock, win.token), win)
        if first is not win:
            raise Violation(f"token {win.token} of {win.lock} was won by {first.who} and by {win.who}")
        for earlier in seen.values():
            if earlier.lock == win.lock and earlier.at_s < win.began_s and earlier.token >= win.token:
                raise Violation(f"{win.lock}: token {win.token} was won after token {earlier.token}")


def _tokens_rise(bucket: Bucket) -> None:
    last: dict[Key, _Lock] = {}
    for applied in bucket.journal:
        if not applied.key.startswith("locks/"):
            continue
        if applied.data is None:
            raise Violation(f"{applied.key} was deleted by {applied.who}: its tokens would start again")
        now = msgspec.json.decode(applied.data, type=_Lock)
        before = last.get(applied.key)
        if before is not None:
            if now.token < before.token:
                raise Violation(f"{applied.key}: token {now.token} follows {before.token}")
            if now.token == before.token and now.worker_id != before.worker_id:
                raise Violation(f"{applied.key}: token {now.token} passed from {before.worker_id} to {now.worker_id}")
            if now.seq != before.seq + 1:
                raise Violation(f"{applied.key}: seq {now.seq} follows {before.seq}")
        last[applied.key] = now


def _only_abandoned_locks_are_taken(bucket: Bucket, knobs: Knobs) -> None:
    last: dict[Key, tuple[float, _Lock]] = {}
    for applied in bucket.journal:
        if not applied.key.startswith("locks/") or applied.data is None:
            continue
        now = msgspec.json.decode(applied.data, type=_Lock)
        at_s, before = last.get(applied.key, (0.0, now))
        if before.state == "held" and now.token > before.token:
            least_s = before.ttl_s if knobs.sane_clocks else look_interval_s(before.ttl_s)
            if applied.at_s - at_s < least_s:
                raise Violation(
                    f"{applied.key}: {now.worker_id} took token {now.token} at {applied.at_s:.2f} s, only "
                    f"{applied.at_s - at_s:.2f} s after a sign of life of {before.worker_id} (ttl {before.ttl_s:g} s)"
                )
        last[applied.key] = (applied.at_s, now)


def _a_hung_worker_is_not_renewed(bucket: Bucket, tally: Tally, stall_s: float) -> None:
    written: set[str] = set()
    for sent in bucket.sent:
        again = sent.write_id in written
        written.add(sent.write_id)
        if sent.step != "lock.renew" or again or not sent.direct:
            continue
        moves = tally.moves.get((sent.who, sent.key.split("/")[-1].removesuffix(".lock"), sent.token), [])
        last_s = max((at_s for at_s in moves if at_s <= sent.at_s), default=sent.at_s)
        if sent.at_s - last_s > stall_s + 0.1:
            raise Violation(
                f"{sent.who} renewed {sent.key} although its work stood still for {sent.at_s - last_s:.1f} s"
            )


def _fences_rise(bucket: Bucket) -> None:
    last: dict[Key, dict[str, Any]] = {}
    for applied in bucket.journal:
        if not applied.key.startswith("cells/") or applied.data is None:
            continue
        fence = msgspec.json.decode(applied.data, type=_Cell).fence
        before = last.get(applied.key)
        if before is not None:
            if fence is None or fence["lock"] != before["lock"]:
                raise Violation(f"{applied.key}: {applied.who} dropped the fence {before}")
            if fence["token"] < before["token"]:
                raise Violation(
                    f"{applied.key}: a write with token {fence['token']} became visible after token {before['token']}"
                )
        if fence is not None:
            last[applied.key] = fence


def _each_write_once(bucket: Bucket) -> None:
    """Under a name that may be deleted, the network's copies can do this; we must not add to them by sending twice."""
    created: set[str] = set()
    for sent in bucket.sent:
        if sent.key.startswith("cells/tmp-"):
            if sent.write_id in created:
                raise Violation(f"{sent.key} may be deleted at any time, and {sent.who} sent its create twice")
            created.add(sent.write_id)
    written: set[tuple[Key, str]] = set()
    for applied in bucket.journal:
        if applied.data is None or not applied.key.startswith(("cells/", "locks/")):
            continue
        if applied.key.startswith("cells/tmp-"):
            continue
        name = (applied.key, msgspec.json.decode(applied.data, type=_Cell).write_id)
        if name in written:
            raise Violation(f"{applied.key}: the write {name[1]} took effect twice")
        written.add(name)


def _nobody_checks_after_a_newer_win(tally: Tally) -> None:
    for check in tally.checks:
        for win in tally.wins:
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
        case "foreign":
            return [state] if answer == "Invalid" and token else []
    raise AssertionError(op.name)
