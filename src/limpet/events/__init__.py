"""Events: task runs and compactions of the fleet. Other packages emit them through `EventSink`.

Read `sink` (writes them in batches to the ledger), `fold` (merges the batches into the Parquet files of a head), `tail`
(the newest ones, from both), `quarantine` (batches that could not be read). `ledger` has what it shares with the
catalog's ledger, `parquet` the files.

Events are informational: a slow or broken sink never delays, fails or changes the work itself. The room may import the
kernel only, so that every other room may emit events.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Protocol

import msgspec

from limpet.kernel.records import Name
from limpet.kernel.runtime import Runtime

__all__ = ["EXECUTIONS", "OUTCOMES", "Event", "EventSink", "compaction", "task_run"]

EXECUTIONS = "executions"
"""The domain of events."""
OUTCOMES = ("done", "failed", "retried", "lost", "released")
"""The outcomes of a task run."""

ERROR_CHARS_MAX = 200


class Event(msgspec.Struct, frozen=True, array_like=True):
    """A "task run" or a "compaction". `id` is a ULID, by which duplicates are recognised. `at` is the wall clock of the
    machine, for people."""

    id: Name
    kind: Name
    at: Name
    fields: Annotated[dict[Name, Any], msgspec.Meta(max_length=100)]


class EventSink(Protocol):
    """Takes events. No method raises, and `emit` never blocks; `flush` and `close` may take as long as the store
    takes."""

    def emit(self, event: Event) -> None:
        """Accept an event."""

    def flush(self) -> None:
        """Write the accepted events, if the store is available."""

    def close(self) -> None:
        """Flush, and accept no more events."""


def task_run(
    runtime: Runtime, *, queue: str, task: str, attempt: int, worker: str, took_s: float, outcome: str, error: str = ""
) -> Event:
    """A handler ran, with one of `OUTCOMES`. `released`: the task was handed back, or suspended itself."""
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
    """A compile run folded or packed shards of an index; `counts` says how many."""
    fields: dict[str, Any] = {"index": index, **counts, "took_s": took_s}
    if error:
        fields["error"] = _sound(error[:ERROR_CHARS_MAX])
    return Event(runtime.new_id(), "compaction", runtime.wall().isoformat(timespec="milliseconds"), fields)


def _sound(text: str) -> str:
    """`text` as valid Unicode: an error message may contain half a character."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
