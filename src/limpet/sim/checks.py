"""The kernel's invariants, checked on what the clients were told and on what the bucket really did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from limpet.keys import Key
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


@dataclass(slots=True)
class Tally:
    """What the processes were told about locks."""

    wins: list[Sign] = field(default_factory=list)
    checks: list[Sign] = field(default_factory=list)

    def won(self, at_s: float, who: str, lock: str, token: int) -> None:
        """`who` got a lease."""
        self.wins.append(Sign(at_s, who, lock, token))

    def checked(self, at_s: float, who: str, lock: str, token: int) -> None:
        """`lease.check()` let `who` go on."""
        self.checks.append(Sign(at_s, who, lock, token))


class _Lock(msgspec.Struct):
    state: str
    worker_id: str
    token: int
    seq: int


class _Cell(msgspec.Struct):
    seq: int
    write_id: str
    fence: dict[str, Any] | None = None


def check_run(world: World, knobs: Knobs, bucket: Bucket, history: History, tally: Tally) -> None:
    """Every invariant of the kernel.   Raises: Violation."""
    _one_winner_per_token(tally)
    _tokens_rise(bucket)
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
    latest: dict[str, Sign] = {}
    for win in tally.wins:
        before = latest.get(win.lock)
        if before and before.token > win.token and before.at_s < win.at_s - 200:
            raise Violation(f"{win.lock}: token {win.token} was won long after token {before.token}")
        if not before or win.token > before.token:
            latest[win.lock] = win


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
    written: set[tuple[Key, str]] = set()
    for applied in bucket.journal:
        if applied.data is None or not applied.key.startswith(("cells/", "locks/")):
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
            after = (value or 0) + 1
            return [(after, token)] if op.ended == OPEN or answer == after else []
        case "foreign":
            return [state] if answer == "Invalid" and token else []
    raise AssertionError(op.name)
