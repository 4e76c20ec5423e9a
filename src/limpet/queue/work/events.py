"""What a worker reports: an event for each turn of a task, and counts."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from limpet.runtime import Runtime

EventKind = Literal[
    "started",
    "done",
    "retry",
    "failed",
    "lost",
    "handed_back",
    "overdue",
    "progress",
    "warning",
    "trouble",
    "cron",
    "ready",
    "stopping",
    "crashed",
]

ROUTINE: frozenset[EventKind] = frozenset(("started", "done"))
"""What happens to every task when all is well."""

RATE_OVER_S = 10.0


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="event", tag_field="what"):
    """One line of the log. `note` says why, or how far; `after_s` is when a retried task comes back.

    The last three kinds are about a whole process, not a task.
    """

    kind: EventKind
    at: datetime
    worker: str
    queue: str = ""
    id: str = ""
    attempt: int = 0
    seconds: float | None = None
    after_s: float | None = None
    note: str = ""


class Tally(msgspec.Struct, frozen=True, kw_only=True, tag="tally", tag_field="what"):
    """How many tasks ended how in one worker, how many run now, and how many end a second lately."""

    done: int = 0
    failed: int = 0
    retried: int = 0
    lost: int = 0
    handed_back: int = 0
    in_flight: int = 0
    rate_per_s: float = 0.0

    @property
    def ended(self) -> int:
        """Tasks that need nobody any more."""
        return self.done + self.failed

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class TallyKeeper:
    """Counts, from any thread. The rate is that of the last 10 s."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mutex = runtime.mutex()
        self._counts = dict.fromkeys(("done", "failed", "retried", "lost", "handed_back"), 0)
        self._marks: list[tuple[float, int]] = [(runtime.elapsed_s(), 0)]

    def add(self, name: str, by: int = 1) -> None:
        """Count one more."""
        with self._mutex:
            self._counts[name] += by

    def now(self, *, in_flight: int = 0) -> Tally:
        """The counts of this moment."""
        at_s = self._runtime.elapsed_s()
        with self._mutex:
            counts = dict(self._counts)
            ended = counts["done"] + counts["failed"]
            while len(self._marks) > 1 and self._marks[1][0] <= at_s - RATE_OVER_S:
                del self._marks[0]
            if at_s - self._marks[-1][0] >= RATE_OVER_S / 10:
                self._marks.append((at_s, ended))
            since_s, before = self._marks[0]
        rate_per_s = (ended - before) / (at_s - since_s) if at_s > since_s else 0.0
        return Tally(**counts, in_flight=in_flight, rate_per_s=rate_per_s)
