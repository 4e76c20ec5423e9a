"""What every queue is measured by: one payload, one handler, and four verbs.

An adapter is a module with `connect(place, options) -> Queue`. It does what its system's own documentation tells a user
to do, in the quickest way that keeps the system's promises.
"""

from __future__ import annotations

import importlib
import json
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

__all__ = ["PAYLOAD_BYTES", "NotHere", "Options", "Payload", "Place", "Queue", "Tally", "needs", "payloads"]

PAYLOAD_BYTES = 200
REST_S = 0.01

Payload = dict[str, Any]
Options = Mapping[str, Any]


class NotHere(Exception):
    """A package or a server that a system needs is not installed; the message names it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a queue lives: a folder on tmpfs, and its server's address if it has one. `fresh`: make it anew, empty."""

    folder: Path
    address: str
    fresh: bool


class Queue(Protocol):
    """One queue of one system, used by one process."""

    @abstractmethod
    def push(self, payloads: Sequence[Payload]) -> None:
        """Store all payloads; what was pushed may be forgotten only in the ways that the system's row states."""

    @abstractmethod
    def work(self, tally: Tally) -> None:
        """Be one worker: hand tasks to `tally.handle` and acknowledge them until `tally.over()`."""

    @abstractmethod
    def left(self) -> int:
        """How many tasks are stored and not done, in whatever state."""

    def fill(self, payloads: Sequence[Payload]) -> None:
        """Store all payloads, untimed: by the quickest way that leaves the same queue behind."""
        self.push(payloads)

    def settle(self) -> None:
        """Whatever a careful user does between a large load and the first worker."""
        return

    def facts(self) -> dict[str, float]:
        """What else was counted, by name."""
        return {}

    def close(self) -> None:
        """Let go of files and connections."""
        return


class Tally:
    """The handler: it does nothing but note which task came, and when.

    `claims_us` is for adapters whose claim is a step of its own: how long each took, from the first on.
    """

    def __init__(self, target: int, patience_s: float) -> None:
        self.numbers: list[int] = []
        self.stamps_ns: list[int] = []
        self.claims_us: list[float] = []
        self._target = target
        self._patience_ns = int(patience_s * 1e9)
        self._begun_ns = time.monotonic_ns()

    def handle(self, payload: Payload) -> None:
        """Handle one task."""
        self.numbers.append(payload["n"])
        self.stamps_ns.append(time.monotonic_ns())

    def over(self) -> bool:
        """Whether the worker may stop: it handled its share, or nothing came for as long as it should wait."""
        if len(self.numbers) >= self._target:
            return True
        last_ns = self.stamps_ns[-1] if self.stamps_ns else self._begun_ns
        return time.monotonic_ns() - last_ns > self._patience_ns

    def rest(self) -> None:
        """Nothing to do just now."""
        time.sleep(REST_S)


def payloads(first: int, n: int) -> list[Payload]:
    """`n` payloads, numbered from `first`, each 200 bytes as JSON."""
    made = []
    for number in range(first, first + n):
        payload: Payload = {"n": number, "k": ""}
        payload["k"] = "x" * (PAYLOAD_BYTES - len(json.dumps(payload)))
        made.append(payload)
    return made


def needs(module: str, package: str) -> Any:
    """The module, untyped: the peers are no part of what Limpet installs.   Raises: NotHere."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise NotHere(f"the Python package {package}") from error
