"""`limpet demo`: a fleet at work while its processes are killed and stopped, and a report of what the store holds.

Read `app` (what a user would write: the tasks), `show` (the command: it starts a pool of workers on `app`, kills three
of them and stops one), `report` (what it prints: the progress, and at the end what it read back, compared with what
was pushed). This module says which tasks are pushed, and which result each of them must have.

It may import everything but the simulation, and uses the public interface; nothing imports it but the table of
commands.
"""

from dataclasses import dataclass
from typing import Any

__all__ = [
    "BATCH",
    "CUBES",
    "FANNED",
    "FOLDS",
    "INDEX",
    "KEY",
    "QUEUE",
    "REPORTS",
    "SLOW_CUBE",
    "DemoResult",
    "expected",
    "payload",
]

QUEUE = "demo"
FOLDS = "demo-fold"
REPORTS = "demo-report"
CUBES = "demo-cube"
FANNED = 200
"""The number of tasks that the durable task pushes and waits for."""
SLOW_CUBE = 150
INDEX = "results"
KEY = "number"
BATCH = 100

POISON_EVERY = 625
FLAKY_EVERY = 1250
FLAKY_RUN = 5
SLOW_EVERY = 500
SLOW_AT = 350
"""Halfway through a batch: there a worker is killed or stopped."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The record of a completed task: its number, its square, and the process that computed it."""

    number: int
    square: int
    worker: str


def payload(n: int) -> dict[str, Any]:
    """The arguments of task number `n`. A few are poison, some fail the first time, some are slow."""
    if n % POISON_EVERY == POISON_EVERY // 2:
        return {"n": n, "kind": "poison"}
    if n % FLAKY_EVERY < FLAKY_RUN:
        return {"n": n, "kind": "flaky"}
    return {"n": n, "kind": "slow"} if n % SLOW_EVERY == SLOW_AT else {"n": n}


def expected(n: int) -> int | None:
    """The right result of task `n`; None if it must have failed."""
    return None if payload(n).get("kind") == "poison" else n * n
