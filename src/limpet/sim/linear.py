"""Histories of operations, and whether some order of them explains every answer (Wing and Gong's search)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

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
