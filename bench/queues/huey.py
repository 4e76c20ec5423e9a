"""Huey on SQLite and on files.

The worker is Huey's own loop, `dequeue` and `execute`, without its scheduler and its health thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.queues.api import Options, Payload, Place, Queue, Tally, needs

__all__ = ["connect"]


def connect(place: Place, options: Options) -> Queue:
    """`storage` is sqlite or file; `fsync`, if given, goes to the SQLite storage."""
    return _Huey(place, options)


class _Huey(Queue):
    def __init__(self, place: Place, options: Options) -> None:
        huey = needs("huey", "huey")
        if options["storage"] == "file":
            self._huey = huey.FileHuey("bench", path=str(place.folder / "huey"))
        else:
            kept = {"fsync": options["fsync"]} if "fsync" in options else {}
            self._huey = huey.SqliteHuey("bench", filename=str(place.folder / "huey.db"), **kept)
        self._tally: Tally | None = None
        self._task = self._huey.task(name="handle")(self._handle)

    def _handle(self, payload: Payload) -> None:
        assert self._tally is not None
        self._tally.handle(payload)

    def push(self, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self._task(payload)

    def work(self, tally: Tally) -> None:
        self._tally = tally
        while not tally.over():
            task = self._huey.dequeue()
            if task is None:
                tally.rest()
            else:
                self._huey.execute(task)

    def left(self) -> int:
        return int(self._huey.pending_count())
