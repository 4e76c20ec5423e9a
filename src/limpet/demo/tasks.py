"""The work that `limpet demo` hands out, and the record of each result: what a user would write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from limpet import Fail, Retry

QUEUE = "demo"
BATCH = 100
TTL_S = 3.0

INDEX = "results"
KEY = "number"

POISON_EVERY = 625
FLAKY_EVERY = 1250
FLAKY_RUN = 5


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The record of a completed task: its number, its square, and the worker that computed it."""

    number: int
    square: int
    worker: str


def payload(n: int) -> dict[str, Any]:
    """Task number `n`. A few are poison, and some fail the first time."""
    if n % POISON_EVERY == POISON_EVERY // 2:
        return {"n": n, "kind": "poison"}
    if n % FLAKY_EVERY < FLAKY_RUN:
        return {"n": n, "kind": "flaky"}
    return {"n": n}


def square(task: dict[str, Any], attempt: int) -> int:
    """The handler.   Raises: Fail for poison; Retry for a flaky task's first attempt."""
    match task.get("kind"):
        case "poison":
            raise Fail(f"{task['n']} is poison")
        case "flaky" if attempt == 1:
            raise Retry(f"{task['n']} fails the first time", after_s=0.5)
    return int(task["n"]) ** 2


def expected(n: int) -> int | None:
    """The right result of task `n`; None if it must have failed."""
    task = payload(n)
    return None if task.get("kind") == "poison" else square(task, attempt=2)


def split_id(id_: str) -> tuple[str, int]:
    """The batch that a task was pushed with, and the task's number in it."""
    entry, _, n = id_.rpartition(".")
    return entry, int(n)
