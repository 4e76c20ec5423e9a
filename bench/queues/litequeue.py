"""litequeue: one SQLite table, `pop` and `done`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from bench.queues.api import Options, Payload, Place, Queue, Tally, needs

__all__ = ["connect"]

LOCKED_S = 60.0


def connect(place: Place, options: Options) -> Queue:
    """There are no options."""
    return _LiteQueue(place)


class _LiteQueue(Queue):
    def __init__(self, place: Place) -> None:
        # With SQLite's own 5 s, one of two workers soon dies of "database is locked".
        self._queue = needs("litequeue", "litequeue").LiteQueue(place.folder / "queue.db", timeout=LOCKED_S)

    def push(self, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self._queue.put(json.dumps(payload))

    def work(self, tally: Tally) -> None:
        while not tally.over():
            message = self._queue.pop()
            if message is None:
                tally.rest()
            else:
                tally.handle(json.loads(message.data))
                self._queue.done(message.message_id)

    def left(self) -> int:
        return int(self._queue.qsize())

    def close(self) -> None:
        self._queue.conn.close()
