"""`Heart`: one thread that renews every claim of a process (F16)."""

from __future__ import annotations

from typing import Protocol

from limpet.errors import LimpetError
from limpet.lease.decide import renew_interval_s
from limpet.runtime import Runtime

TICK_PART = 12


class Beating(Protocol):
    """What wants to be renewed."""

    def beat(self) -> None:
        """Renew, or do not: a claim that is over or hangs gives itself up."""


class Heart:
    """Calls `beat` of each claim every ttl_s / 3; after one that failed, every ttl_s / 12.

    The thread starts with the first claim and ends when there was none for a while. A claim that is over before its
    first beat costs nothing.
    """

    def __init__(self, runtime: Runtime, ttl_s: float, *, name: str) -> None:
        self._runtime = runtime
        self._ttl_s = ttl_s
        self._name = name
        self._mutex = runtime.mutex()
        self._due_s: dict[Beating, float] = {}
        self._owner: str | None = None

    def add(self, claim: Beating) -> None:
        """Keep `claim` alive from now on."""
        with self._mutex:
            self._due_s[claim] = self._runtime.elapsed_s() + renew_interval_s(self._ttl_s)
            if self._owner != self._runtime.owner:
                self._owner = self._runtime.owner  # a forked child has no thread of its parent's
                self._runtime.spawn(self._run, name=self._name)

    def remove(self, claim: Beating) -> None:
        """Let `claim` go. A beat that is under way may still end."""
        with self._mutex:
            self._due_s.pop(claim, None)

    def _run(self) -> None:
        resting = 0
        while resting < TICK_PART:
            self._runtime.sleep(self._ttl_s / TICK_PART)
            resting = 0 if self._tick() else resting + 1
            with self._mutex:
                if resting == TICK_PART and self._due_s:
                    resting = 0
                elif resting == TICK_PART:
                    self._owner = None

    def _tick(self) -> bool:
        """Beat what is due; whether there is anything to keep alive."""
        at_s = self._runtime.elapsed_s()
        with self._mutex:
            due = [claim for claim, due_s in self._due_s.items() if due_s <= at_s]
            alive = bool(self._due_s)
        for claim in due:
            try:
                claim.beat()
                pause_s = renew_interval_s(self._ttl_s)
            except LimpetError:
                pause_s = 0.0
            with self._mutex:
                if claim in self._due_s:
                    self._due_s[claim] = at_s + pause_s
        return alive
