"""Dramatiq on a real redis-server, through a Unix socket; its own worker with `threads` threads."""

from __future__ import annotations

from collections.abc import Sequence

from bench.queues.api import Options, Payload, Place, Queue, Tally, needs

__all__ = ["HEARTBEAT_S", "connect"]

HEARTBEAT_S = 2.0
MAINTENANCE_PER_MILLION = 1000
"""Dramatiq's own value: one command in a thousand looks for dead workers."""


def connect(place: Place, options: Options) -> Queue:
    """`threads` work on the queue; `maintenance`, if given, is how many in a million commands look for dead workers."""
    return _Dramatiq(place, options)


class _Dramatiq(Queue):
    def __init__(self, place: Place, options: Options) -> None:
        self._package = needs("dramatiq", "dramatiq")
        needs("redis", "redis")
        self._threads = int(options["threads"])
        self._broker = needs("dramatiq.brokers.redis", "dramatiq").RedisBroker(
            url=f"unix://{place.address}",
            heartbeat_timeout=int(HEARTBEAT_S * 1000),
            maintenance_chance=options.get("maintenance", MAINTENANCE_PER_MILLION),
        )
        if place.fresh:
            self._broker.client.flushall()
        self._tally: Tally | None = None
        self._actor = self._package.actor(self._handle, actor_name="handle", broker=self._broker)

    def _handle(self, payload: Payload) -> None:
        assert self._tally is not None
        self._tally.handle(payload)

    def push(self, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self._actor.send(payload)

    def work(self, tally: Tally) -> None:
        self._tally = tally
        worker = self._package.Worker(self._broker, worker_threads=self._threads, worker_timeout=100)
        worker.start()
        while not tally.over():
            tally.rest()
        worker.stop()

    def left(self) -> int:
        return int(self._broker.client.hlen(f"{self._broker.namespace}:{self._actor.queue_name}.msgs"))

    def close(self) -> None:
        self._broker.close()
