"""Limpet on a directory: `push` or `push_many`, `claim`, `done`."""

from __future__ import annotations

import time
from collections.abc import Sequence

import limpet
from bench.queues.api import Options, Payload, Place, Queue, Tally

__all__ = ["connect"]


def connect(place: Place, options: Options) -> Queue:
    """`batch` tasks to an entry, or 1: a push each. `durability` is os or fsync. `ttl_s`, if given: a claim's life."""
    return _Ours(place, options)


class _Ours(Queue):
    def __init__(self, place: Place, options: Options) -> None:
        self._fleet = limpet.open(place.folder / "fleet", durability=options["durability"])
        self._queue = self._fleet.queue("bench", **({"ttl_s": options["ttl_s"]} if "ttl_s" in options else {}))
        self._batch = int(options["batch"])
        self._facts: dict[str, float] = {}

    def push(self, payloads: Sequence[Payload]) -> None:
        if self._batch > 1:
            self._queue.push_many(payloads, batch=self._batch)
        else:
            for payload in payloads:
                self._queue.push(payload)

    def work(self, tally: Tally) -> None:
        before = self._fleet.meter.snapshot()
        while not tally.over():
            begun_s = time.perf_counter()
            with self._queue.claim() as claim:
                if claim:
                    tally.claims_us.append((time.perf_counter() - begun_s) * 1e6)
                else:
                    tally.rest()
                for task in claim:
                    tally.handle(task.payload)
                    task.done()
        spent = self._fleet.meter.snapshot() - before
        claims = max(1, len(tally.claims_us))
        self._facts = {verb: count / claims for verb, count in sorted(spent.requests.items())}

    def left(self) -> int:
        return self._queue.stats().pending

    def facts(self) -> dict[str, float]:
        return self._facts
