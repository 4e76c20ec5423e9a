"""persist-queue: `SQLiteAckQueue`, `get` and `ack`, resuming what was not acknowledged when it is opened."""

from __future__ import annotations

from collections.abc import Sequence

from bench.queues.api import Options, Payload, Place, Queue, Tally, needs

__all__ = ["connect"]

TIDY_EVERY = 1000


def connect(place: Place, options: Options) -> Queue:
    """There are no options."""
    return _PersistQueue(place)


class _PersistQueue(Queue):
    def __init__(self, place: Place) -> None:
        package = needs("persistqueue", "persist-queue")
        self._empty = package.exceptions.Empty
        self._queue = package.SQLiteAckQueue(str(place.folder / "queue"))

    def push(self, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self._queue.put(payload)

    def work(self, tally: Tally) -> None:
        while not tally.over():
            try:
                item = self._queue.get(block=False, raw=True)
            except self._empty:
                tally.rest()
                continue
            tally.handle(item["data"])
            self._queue.ack(id=item["pqid"])
            # Acknowledged rows stay in the way of every later `get` until the user has them cleared.
            if len(tally.numbers) % TIDY_EVERY == 0:
                self._queue.clear_acked_data(max_delete=TIDY_EVERY, keep_latest=0)

    def left(self) -> int:
        return int(self._queue.qsize() + self._queue.unack_count())

    def close(self) -> None:
        self._queue.close()
