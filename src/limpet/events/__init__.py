"""Events: task runs and compactions of the fleet. Other packages emit them through `EventSink` and know no more.

`sink` writes them in batches to the ledger, `fold` merges the batches into Parquet files that a head names, and
`quarantine` keeps what could not be read. Nothing depends on an event: a sink that is slow or broken never holds up,
fails or changes the work itself.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Protocol

import msgspec

from limpet.records import Name
from limpet.runtime import Runtime

__all__ = ["EXECUTIONS", "Event", "EventSink", "compaction", "task_run"]

EXECUTIONS = "executions"
"""The domain that events are kept under."""

ERROR_CHARS_MAX = 200


class Event(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened: a "task run" or a "compaction". `id` is a ULID: an event that comes twice is one event.
    `at` is the wall clock of the machine where it happened, for people."""

    id: Name
    kind: Name
    at: Name
    fields: Annotated[dict[Name, Any], msgspec.Meta(max_length=100)]


class EventSink(Protocol):
    """Where events go. None of these ever raises or blocks the work that they tell of; `flush` and `close` may take as
    long as the store takes."""

    def emit(self, event: Event) -> None:
        """Take an event."""

    def flush(self) -> None:
        """Write down what was taken, if the store lets it."""

    def close(self) -> None:
        """Flush, and take nothing more."""


def task_run(
    runtime: Runtime, *, queue: str, task: str, attempt: int, worker: str, took_s: float, outcome: str, error: str = ""
) -> Event:
    """A handler ran, and this came of it: done, failed, retried, lost or released."""
    ended = runtime.wall()
    fields: dict[str, Any] = {
        "queue": queue,
        "task": task,
        "attempt": attempt,
        "worker": worker,
        "started": (ended - timedelta(seconds=took_s)).isoformat(timespec="milliseconds"),
        "took_s": took_s,
        "outcome": outcome,
    }
    if error:
        fields["error"] = _sound(error[:ERROR_CHARS_MAX])
    return Event(runtime.new_id(), "task run", ended.isoformat(timespec="milliseconds"), fields)


def compaction(runtime: Runtime, *, index: str, counts: dict[str, int], took_s: float, error: str = "") -> Event:
    """A compiler folded or packed shards of an index: how many, of how much."""
    fields: dict[str, Any] = {"index": index, **counts, "took_s": took_s}
    if error:
        fields["error"] = _sound(error[:ERROR_CHARS_MAX])
    return Event(runtime.new_id(), "compaction", runtime.wall().isoformat(timespec="milliseconds"), fields)


def _sound(text: str) -> str:
    """`text` as something that UTF-8 can hold: an error may quote half a character."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
